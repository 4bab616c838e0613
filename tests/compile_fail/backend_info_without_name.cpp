// expect: tigon: a backend needs a name
#include <tigon/backend/backend.hpp>

#ifdef SHOULD_NOT_COMPILE
constexpr tigon::backend_info info{"", {tigon::device::cpu}};
#else
constexpr tigon::backend_info info{"mine", {tigon::device::cpu}};
#endif
static_assert(info.default_devices.empty());
