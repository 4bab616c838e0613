// expect: tigon: a device needs a name
#include <tigon/backend/device.hpp>

#ifdef SHOULD_NOT_COMPILE
constexpr tigon::device card{""};
#else
constexpr tigon::device card{"card"};
#endif
