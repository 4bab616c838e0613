// The same for another device.
// hide: hwy
// flags: -DTIGON_DEVICE=npu
// errors: 2
// expect: tigon: the default backend of device npu needs <hwy/highway.h>; install libhwy-dev
// expect: by -DTIGON_BACKEND=generic
#ifndef SHOULD_NOT_COMPILE
#define TIGON_BACKEND generic
#endif
#include <tigon/ops/rms_norm.hpp>

static_assert(tigon::default_backend::info.name == "generic");
