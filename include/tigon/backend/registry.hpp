// The backends that the library brings, one line each, and which of them is chosen when nobody asks for one. Metadata
// alone: no vendor's header is read here. A backend in a repository of its own needs no line: TIGON_BACKEND and
// TIGON_BACKEND_HEADER choose it, or the template argument of a call.
#ifndef TIGON_BACKEND_REGISTRY_HPP
#define TIGON_BACKEND_REGISTRY_HPP

#include <tigon/config.hpp>

// In order of preference: name, devices, devices on which it is the default, what it needs. The first line that is a
// default on TIGON_DEVICE, and that finds what it needs, is chosen; `none` makes a backend opt-in. The type states its
// devices again in `info`; tests/backend/registry_test.cpp compares the two.
// clang-format off
#define TIGON_REGISTRY(X)                                              \
  X(ascend,      npu,         npu,                        hwy)         \
  X(avx512_bf16, cpu,         TIGON_CPU_WITH_AVX512_BF16, hwy_and_dot) \
  X(highway,     cpu,         cpu,                        hwy)         \
  X(onednn,      cpu,         none,                       dnnl)        \
  X(xsimd,       cpu,         none,                       xsimd)       \
  X(eigen,       cpu,         none,                       eigen)       \
  X(generic,     cpu_and_npu, none,                       nothing)
// clang-format on

// A default that depends on the flags: the dot instruction, and all that lanes of 512 bits need.
#if defined(__AVX512BF16__) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__) && defined(__AVX512CD__)
#define TIGON_CPU_WITH_AVX512_BF16 cpu
#define TIGON_FOUND_hwy_and_dot TIGON_FOUND_hwy
#define TIGON_NEEDS_hwy_and_dot TIGON_NEEDS_hwy
#else
#define TIGON_CPU_WITH_AVX512_BF16 none
#define TIGON_FOUND_hwy_and_dot 0
#define TIGON_NEEDS_hwy_and_dot "AVX512_BF16; compile with -march=cooperlake and later"
#endif

// The libraries: whether the header is found, and what is said if not.
#define TIGON_FOUND_nothing 1
#define TIGON_NEEDS_nothing "nothing"
#define TIGON_NEEDS_hwy "<hwy/highway.h>; install libhwy-dev"
#define TIGON_NEEDS_dnnl "<oneapi/dnnl/dnnl.hpp>; install libdnnl-dev"
#define TIGON_NEEDS_xsimd "<xsimd/xsimd.hpp>; install libxsimd-dev"
#define TIGON_NEEDS_eigen "<Eigen/Core>; install libeigen3-dev"
#if __has_include(<hwy/highway.h>)
#define TIGON_FOUND_hwy 1
#else
#define TIGON_FOUND_hwy 0
#endif
#if __has_include(<hwy/highway.h>) && __has_include(<oneapi/dnnl/dnnl.hpp>)
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

// A cell of devices: is TIGON_DEVICE in it, and which set is it.
#define TIGON_ON_cpu_none 0
#define TIGON_ON_cpu_cpu 1
#define TIGON_ON_cpu_npu 0
#define TIGON_ON_cpu_cpu_and_npu 1
#define TIGON_ON_npu_none 0
#define TIGON_ON_npu_cpu 0
#define TIGON_ON_npu_npu 1
#define TIGON_ON_npu_cpu_and_npu 1
#define TIGON_DEVICES_none device_set({})
#define TIGON_DEVICES_cpu device_set({device::cpu})
#define TIGON_DEVICES_npu device_set({device::npu})
#define TIGON_DEVICES_cpu_and_npu device_set({device::cpu, device::npu})

// A setting that says nothing is not set.
#define TIGON_SAYS_(...) (0 __VA_OPT__(+1))
#define TIGON_SAYS(...) TIGON_SAYS_(__VA_ARGS__)

#if !TIGON_SAYS(TIGON_DEVICE)  // config.hpp defines it
#undef TIGON_DEVICE
#define TIGON_DEVICE cpu
#elif TIGON_DEVICE_NUMBER(TIGON_DEVICE) == 0
static_assert(false, "tigon: TIGON_DEVICE is " TIGON_STRING(TIGON_DEVICE) "; expected cpu or npu");
#undef TIGON_DEVICE
#define TIGON_DEVICE cpu
#endif

// Of every line that is a default on TIGON_DEVICE: its name if its library is found, whether it is, and what it needs.
#define TIGON_CAT_(a, b) a##b
#define TIGON_CAT(a, b) TIGON_CAT_(a, b)
#define TIGON_ON_(device, cell) TIGON_ON_##device##_##cell
#define TIGON_ON(device, cell) TIGON_ON_(device, cell)
#define TIGON_IF_0(...)
#define TIGON_IF_1(...) __VA_ARGS__
#define TIGON_DEFAULT(cell, ...) TIGON_CAT(TIGON_IF_, TIGON_ON(TIGON_DEVICE, cell))(__VA_ARGS__)
#define TIGON_DEFAULT_NAME(name, devices, defaults, library) \
  TIGON_DEFAULT(defaults, TIGON_CAT(TIGON_IF_, TIGON_FOUND_##library)(name, ))
#define TIGON_DEFAULT_FOUND(name, devices, defaults, library) TIGON_DEFAULT(defaults, TIGON_FOUND_##library, )
#define TIGON_DEFAULT_NEEDS(name, devices, defaults, library) \
  TIGON_DEFAULT(defaults, #name " needs " TIGON_NEEDS_##library, )
#define TIGON_FIRST_(first, ...) first
#define TIGON_FIRST(...) TIGON_FIRST_(__VA_ARGS__)

// For the sentences: ascend (npu), avx512_bf16 (cpu), ...
#define TIGON_REGISTERED_NAME(name, devices, defaults, library) #name " (" #devices "), "
#define TIGON_REGISTERED \
  TIGON_REGISTRY(TIGON_REGISTERED_NAME) "and one of your own with TIGON_BACKEND_HEADER (docs/backends.md)"

#if defined(TIGON_BACKEND) && TIGON_SAYS(TIGON_BACKEND)
#define TIGON_BACKEND_NAMED 1
#else
#define TIGON_BACKEND_NAMED 0
#undef TIGON_BACKEND
#define TIGON_BACKEND TIGON_FIRST(TIGON_REGISTRY(TIGON_DEFAULT_NAME) TIGON_IF_1(generic, ))
#define TIGON_BACKEND_FELL_BACK (TIGON_FIRST(TIGON_REGISTRY(TIGON_DEFAULT_FOUND) 1, ) == 0)
#if TIGON_BACKEND_FELL_BACK
// clang-format off
#pragma message("tigon: backend " TIGON_FIRST(TIGON_REGISTRY(TIGON_DEFAULT_NEEDS) "", ) \
                "; until then device " TIGON_STRING(TIGON_DEVICE) " gets backend " TIGON_STRING(TIGON_BACKEND))
// clang-format on
#endif
#endif

#endif  // TIGON_BACKEND_REGISTRY_HPP
