// Not asked for and not installed: the next backend, said aloud. Asked for: refused.
// hide: hwy
// accepted says: tigon: <hwy/highway.h> was not found, the backend is generic (scalar); install libhwy-dev
// expect: tigon: backend highway needs <hwy/highway.h>; install libhwy-dev
#ifdef SHOULD_NOT_COMPILE
#define TIGON_BACKEND highway
#endif
#include <tigon/ops/rms_norm.hpp>

#ifndef SHOULD_NOT_COMPILE
static_assert(tigon::default_backend::info.name == "generic");
#endif
