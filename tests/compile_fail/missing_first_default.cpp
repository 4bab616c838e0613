// The same where the flags prefer another backend to highway. Single numbers are for those who name them.
// hide: hwy
// flags: -march=sapphirerapids
// errors: 2
// expect: tigon: the default backend needs <hwy/highway.h>; install libhwy-dev (vcpkg and Conan highway)
#ifndef SHOULD_NOT_COMPILE
#define TIGON_BACKEND generic
#endif
#include <tigon/ops/rms_norm.hpp>

static_assert(tigon::default_backend::info.name == "generic");
