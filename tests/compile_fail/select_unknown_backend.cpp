// errors: 1
// expect: tigon: no backend is called turbo (TIGON_BACKEND, device cpu); there are
// expect: ascend (npu), cuda (gpu), amx (cpu), avx512_bf16 (cpu), arm_bf16 (cpu), highway (cpu)
#ifdef SHOULD_NOT_COMPILE
#define TIGON_BACKEND turbo
#else
#define TIGON_BACKEND generic
#endif
#include <tigon/ops/rms_norm.hpp>
