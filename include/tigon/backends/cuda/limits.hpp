// What a GPU has.
#ifndef TIGON_BACKENDS_CUDA_LIMITS_HPP
#define TIGON_BACKENDS_CUDA_LIMITS_HPP

#include <tigon/backends/cuda/runtime.hpp>

namespace tigon::gpu {
inline namespace TIGON_ABI {

#if defined(__CUDACC__)
/// What of a GPU decides how work is cut; asked once by each thread.
struct gpu_limits {
  int multiprocessors = 0, capability = 0, shared_bytes = 0;
};
inline const gpu_limits& limits() {
  constexpr int most = 64;
  thread_local gpu_limits of_device[most];
  int device = 0;
  expect_success(cudaGetDevice(&device), "the device");
  gpu_limits& of = of_device[device % most];
  if (of.multiprocessors == 0) {
    int major = 0;
    expect_success(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "the device");
    expect_success(cudaDeviceGetAttribute(&of.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                   "the device");
    of.capability = major;
    expect_success(cudaDeviceGetAttribute(&of.multiprocessors, cudaDevAttrMultiProcessorCount, device), "the device");
  }
  return of;
}
#endif

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_LIMITS_HPP
