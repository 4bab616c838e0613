// errors: 1
// expect: tigon: TIGON_DEVICE is tpu; expected cpu, gpu or npu
#ifdef SHOULD_NOT_COMPILE
#define TIGON_DEVICE tpu
#else
#define TIGON_DEVICE cpu
#endif
#include <tigon/ops/rms_norm.hpp>
