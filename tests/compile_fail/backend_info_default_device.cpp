// expect: tigon: default devices of a backend must be among its devices
#include <tigon/backend/backend.hpp>

#ifdef SHOULD_NOT_COMPILE
constexpr tigon::backend_info info{"mine", {tigon::device::cpu}, {tigon::device::npu}};
#else
constexpr tigon::backend_info info{"mine", {tigon::device::cpu, tigon::device::npu}, {tigon::device::npu}};
#endif
static_assert(!info.default_devices.empty());
