// expect: tigon: no backend is called turbo (TIGON_BACKEND, device cpu); there are
#ifdef SHOULD_NOT_COMPILE
#define TIGON_BACKEND turbo
#else
#define TIGON_BACKEND generic
#endif
#include <tigon/ops/rms_norm.hpp>
