// Included first: functions of row programs are of host and device (config.hpp), CUDA's own header is there, and calls
// that name no backend run on the GPU. Tests compile the same headers with a C++ compiler against a model of blocks and
// threads in the place of CUDA (TIGON_CUDA_MODEL).
#ifndef TIGON_BACKENDS_CUDA_DEVICE_CODE_HPP
#define TIGON_BACKENDS_CUDA_DEVICE_CODE_HPP

#if !defined(TIGON_CUDA_MODEL)
#if !defined(__CUDACC__)
#error "tigon: backend cuda is compiled by nvcc; include it in a .cu file"
#include <the_error_above_ends_compilation>
#endif
#if !defined(TIGON_DEVICE_CODE)
#if defined(TIGON_CONFIG_HPP)
#error "tigon: include <tigon/backends/cuda/backend.hpp> before other headers of tigon, or define TIGON_DEVICE_CODE"
#include <the_error_above_ends_compilation>
#endif
#define TIGON_DEVICE_CODE
#endif
#include <cuda_runtime.h>
// Whoever names no backend gets this one.
#if !defined(TIGON_BACKEND) && !defined(TIGON_DEVICE)
#define TIGON_DEVICE gpu
#endif
#endif

#include <tigon/config.hpp>

#endif  // TIGON_BACKENDS_CUDA_DEVICE_CODE_HPP
