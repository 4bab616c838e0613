// On another device: what it would get is named with its package, and what it gets instead.
// hide: hwy
// flags: -DTIGON_DEVICE=npu
// accepted says: tigon: backend ascend needs <hwy/highway.h>; install libhwy-dev
// accepted says: ; until then device npu gets backend generic
// expect: <hwy/highway.h>; install libhwy-dev
#ifdef SHOULD_NOT_COMPILE
#define TIGON_BACKEND ascend
#endif
#include <tigon/ops/rms_norm.hpp>

#ifndef SHOULD_NOT_COMPILE
static_assert(tigon::default_backend::info.name == "generic");
#endif
