// Device gpu is for nvcc.
// errors: 2
// expect: tigon: device gpu (TIGON_DEVICE) needs a compiler of CUDA C++; compile the file with nvcc
#ifdef SHOULD_NOT_COMPILE
#define TIGON_DEVICE gpu
#endif
#include <tigon/ops/rms_norm.hpp>
