// What the registry says of backend cuda (backend/library.hpp reads it, several times).
#define TIGON_LINE cuda
#define TIGON_LINE_ON "gpu"
#define TIGON_LINE_DEVICES gpu::of_cuda
#define TIGON_LINE_DEFAULTS gpu::of_cuda
#define TIGON_LINE_FOUND TIGON_FOUND_cuda
#define TIGON_LINE_NEEDS "a compiler of CUDA C++; compile the file with nvcc"
#if defined(TIGON_FIND_DEFAULT) && TIGON_DEVICE_NUMBER(TIGON_DEVICE) == TIGON_DEVICE_gpu
#undef TIGON_FIND_DEFAULT
#define TIGON_BACKEND cuda
#endif
#define TIGON_IS_cuda_cuda 1
#include <tigon/backend/read_line.hpp>
