// Where the flags prefer another backend to highway, that is the one whose library is missed.
// hide: hwy
// flags: -march=sapphirerapids
// accepted says: tigon: backend amx needs <hwy/highway.h>; install libhwy-dev
// accepted says: ; until then device cpu gets backend generic
// expect: tigon: backend highway needs <hwy/highway.h>; install libhwy-dev
#ifdef SHOULD_NOT_COMPILE
#define TIGON_BACKEND amx
#endif
#include <tigon/ops/rms_norm.hpp>

#ifndef SHOULD_NOT_COMPILE
static_assert(tigon::default_backend::info.name == "generic");
#endif
