// expect: tigon: a backend supports at least one device
#include <tigon/backend/backend.hpp>

#ifdef SHOULD_NOT_COMPILE
constexpr tigon::backend_info info{"mine", tigon::device_set{}};
#else
constexpr tigon::backend_info info{"mine", {tigon::device::cpu}};
#endif
static_assert(info.default_devices.empty());
