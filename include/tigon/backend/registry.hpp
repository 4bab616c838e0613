// The backends of the library, and which of them is the default where none is named. Metadata alone: no vendor's header
// is read here. A backend in a repository of its own needs no line: TIGON_BACKEND and TIGON_BACKEND_HEADER choose it,
// or the template argument of a call; `registered_backends` (backend/lookup.hpp) shows it before these.
//
// A new backend of the library is a line of backend/library.hpp, and says in a file of its own folder what stands in
// the registry. The type states its devices again in `info`; tests/backend/registry_test.cpp compares all.
#ifndef TIGON_BACKEND_REGISTRY_HPP
#define TIGON_BACKEND_REGISTRY_HPP

#include <tigon/backend/backend.hpp>
#include <tigon/config.hpp>

// What this translation unit can use: a library whose header is found; the dot instruction of bf16, with all that lanes
// of 512 bits need, and tile registers beside it, or the matrix instruction of 64-bit ARM, where the flags promise
// them.
#if __has_include(<hwy/highway.h>)
#define TIGON_FOUND_hwy 1
#else
#define TIGON_FOUND_hwy 0
#endif
#if TIGON_FOUND_hwy && __has_include(<oneapi/dnnl/dnnl.hpp>)
#define TIGON_FOUND_dnnl 1
#else
#define TIGON_FOUND_dnnl 0
#endif
#if __has_include(<xsimd/xsimd.hpp>)
#define TIGON_FOUND_xsimd 1
#else
#define TIGON_FOUND_xsimd 0
#endif
#if __has_include(<Eigen/Core>)
#define TIGON_FOUND_eigen 1
#else
#define TIGON_FOUND_eigen 0
#endif
#if defined(__AVX512BF16__) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__) && defined(__AVX512CD__)
#define TIGON_FLAGS_avx512_bf16 1
#else
#define TIGON_FLAGS_avx512_bf16 0
#endif
#if TIGON_FLAGS_avx512_bf16 && TIGON_FLAGS_tiles
#define TIGON_FLAGS_amx 1
#else
#define TIGON_FLAGS_amx 0
#endif
#if defined(__CUDACC__)
#define TIGON_FOUND_cuda 1
#else
#define TIGON_FOUND_cuda 0
#endif
#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define TIGON_FLAGS_arm_bf16 1
#else
#define TIGON_FLAGS_arm_bf16 0
#endif

#if !TIGON_IS_SET(TIGON_DEVICE)  // config.hpp defines it
#undef TIGON_DEVICE
#define TIGON_DEVICE cpu
#elif TIGON_DEVICE_NUMBER(TIGON_DEVICE) == 0 && \
    !(defined(TIGON_BACKEND) && TIGON_IS_SET(TIGON_BACKEND) && defined(TIGON_BACKEND_HEADER))
static_assert(false, "tigon: TIGON_DEVICE is " TIGON_STRING(
                         TIGON_DEVICE) "; expected cpu, gpu or npu, or a device of a vendor's backend, which TIGON_BACKEND "
                                       "and TIGON_BACKEND_HEADER name");
#undef TIGON_DEVICE
#define TIGON_DEVICE cpu
#endif

// The default, where none is named. All that may be one need Highway. Without it nothing takes their place: another
// engine, or single numbers, are for those who name them.
#if defined(TIGON_BACKEND) && TIGON_IS_SET(TIGON_BACKEND)
#define TIGON_BACKEND_NAMED 1
#else
#define TIGON_BACKEND_NAMED 0
#undef TIGON_BACKEND
#if TIGON_DEVICE_NUMBER(TIGON_DEVICE) == TIGON_DEVICE_gpu
#if !TIGON_FOUND_cuda
#error "tigon: device gpu (TIGON_DEVICE) needs a compiler of CUDA C++; compile the file with nvcc"
#include <the_error_above_ends_compilation>
#endif
#elif TIGON_DEVICE_NUMBER(TIGON_DEVICE) == TIGON_DEVICE_npu
#if !TIGON_FOUND_hwy
#error \
    "tigon: the default backend of device npu needs <hwy/highway.h>; install libhwy-dev (vcpkg and Conan highway), or choose single numbers, which are slow, by -DTIGON_BACKEND=generic"
#include <the_error_above_ends_compilation>
#endif
#else
#if !TIGON_FOUND_hwy
#error \
    "tigon: the default backend needs <hwy/highway.h>; install libhwy-dev (vcpkg and Conan highway), or choose a backend by name: -DTIGON_BACKEND=xsimd or eigen where their headers are installed, or generic, which is single numbers and slow"
#include <the_error_above_ends_compilation>
#endif
#endif
#define TIGON_FIND_DEFAULT
#include <tigon/backend/library.hpp>
#undef TIGON_FIND_DEFAULT
#endif

namespace tigon {

/// A line of the registry.
struct registered_backend {
  backend_info info;
  bool found;              ///< this translation unit could use it
  std::string_view needs;  ///< for that: a header and its package, or an instruction set
};

namespace gpu {
inline namespace TIGON_ABI {
#if TIGON_FOUND_cuda
/// Whether CUDA finds a GPU; it is asked once.
inline bool found() {
  static const bool there = [] {
    int devices = 0;
    const bool success = cudaGetDeviceCount(&devices) == cudaSuccess;
    if (!success) (void)cudaGetLastError();  // which would otherwise be reported by the next call
    return success && devices > 0;
  }();
  return there;
}
/// The device gpu, in translation units that can use it.
inline constexpr device of_cuda{"gpu", found};
#else
inline constexpr const device& of_cuda = device::gpu;
#endif
}  // namespace TIGON_ABI
}  // namespace gpu

// Constants without `inline`: translation units of one program may find other libraries.

/// The backends of the library, in order of preference: the first line that is a default on TIGON_DEVICE, and that is
/// found, is the default backend. A line without default devices is opt-in. With a program's own: registered_backends
/// (backend/lookup.hpp).
constexpr registered_backend library_backends[] = {
#define TIGON_LINES_AS_ROWS
#include <tigon/backend/library.hpp>
#undef TIGON_LINES_AS_ROWS
};

}  // namespace tigon

#endif  // TIGON_BACKEND_REGISTRY_HPP
