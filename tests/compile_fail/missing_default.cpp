// Not asked for and not installed: the next backend, said aloud. Asked for: refused.
// hide: hwy
// accepted says: tigon: backend highway needs <hwy/highway.h>; install libhwy-dev
// accepted says: ; until then device cpu gets backend generic
// expect: tigon: backend highway needs <hwy/highway.h>; install libhwy-dev
#ifdef SHOULD_NOT_COMPILE
#define TIGON_BACKEND highway
#endif
#include <tigon/ops/rms_norm.hpp>

#ifndef SHOULD_NOT_COMPILE
static_assert(tigon::default_backend::info.name == "generic");
#endif
