// Asked for and not installed: the package is named. Not asked for, nobody misses it.
// hide: oneapi
// errors: 2
// expect: tigon: backend onednn needs <oneapi/dnnl/dnnl.hpp>; install libdnnl-dev
#ifdef SHOULD_NOT_COMPILE
#define TIGON_BACKEND onednn
#endif
#include <tigon/ops/rms_norm.hpp>

#ifndef SHOULD_NOT_COMPILE
static_assert(!TIGON_FOUND_dnnl && !TIGON_BACKEND_NAMED);
#endif
