// Version, build switches and the instruction-set tag: every macro that the library reads, in one place.
//
//   TIGON_BACKEND         name of the default backend (a type in tigon::backends); unset or empty: by TIGON_DEVICE
//   TIGON_BACKEND_HEADER  where that type is defined, in quotes; unset: one of the library's own
//   TIGON_BACKEND_OF_<op> the same for a single operator (backend/choices.hpp)
//   TIGON_DEVICE          cpu (default), gpu, npu, or a vendor's: the device for which a backend is chosen when none is
//                         named; gpu under nvcc, for which it defines TIGON_DEVICE_CODE
//   TIGON_TILE_CAPACITY_BITS  memory of a chip's core for tiles; unset: what the backend says (backend/capacity.hpp)
//   TIGON_VECTOR_CORES    the same of the number of cores
//   TIGON_CORE            intel, zen4, zen5 or other: the CPU core that row kernels are scheduled for; unset: by the
//                         flags
//   TIGON_CHECKS          1 (default): public functions check shapes, strides and aliasing; 0: only indices that come
//                         from data
//   TIGON_DEVICE_CODE     under nvcc: functions of row programs are of host and device, on single numbers alone
//   TIGON_CANDIDATES      a call that no function takes: the compiler's list of them, in place of a sentence
//   TIGON_ALLOW_FAST_MATH accept -ffast-math, and with it wrong answers for NaN and infinity
#ifndef TIGON_CONFIG_HPP
#define TIGON_CONFIG_HPP

#define TIGON_VERSION_MAJOR 0
#define TIGON_VERSION_MINOR 2
#define TIGON_VERSION_PATCH 0
#define TIGON_VERSION_STRING "0.2.0"

// Behind a refusal by the preprocessor, a header that does not exist ends the compilation (.ci/greps): g++ and clang++
// would otherwise go on, and print a thousand errors behind the sentence.
#if defined(_MSC_VER) && !defined(__clang__)
#error "tigon: MSVC cannot compile the headers; use g++ or clang++"
#include <the_error_above_ends_compilation>
#endif

#if defined(_MSVC_LANG) ? _MSVC_LANG < 202002L : __cplusplus < 202002L
#error "tigon: C++20 is needed (-std=c++20)"
#include <the_error_above_ends_compilation>
#endif

#if defined(__FAST_MATH__) && !defined(TIGON_ALLOW_FAST_MATH)
#error "tigon: -ffast-math breaks NaN, infinities and compensated sums; remove it or define TIGON_ALLOW_FAST_MATH"
#include <the_error_above_ends_compilation>
#endif

#if defined(min) || defined(max)
#error "tigon: min and max are macros, as of <windows.h>; define NOMINMAX before it is included"
#include <the_error_above_ends_compilation>
#endif

#ifndef TIGON_CHECKS
#define TIGON_CHECKS 1
#endif

// A setting that is empty is not set.
#define TIGON_IS_SET_(...) (0 __VA_OPT__(+1))
#define TIGON_IS_SET(...) TIGON_IS_SET_(__VA_ARGS__)

#ifndef TIGON_DEVICE
#define TIGON_DEVICE cpu
#endif
#define TIGON_DEVICE_cpu 1
#define TIGON_DEVICE_npu 2
#define TIGON_DEVICE_gpu 3
#define TIGON_DEVICE_NUMBER_(name) TIGON_DEVICE_##name
#define TIGON_DEVICE_NUMBER(name) TIGON_DEVICE_NUMBER_(name)
#if TIGON_DEVICE_NUMBER(TIGON_DEVICE) == TIGON_DEVICE_gpu && defined(__CUDACC__) && !defined(TIGON_DEVICE_CODE)
#define TIGON_DEVICE_CODE
#endif

// A function of a row that for_rows calls. What runs on a device is a struct of TIGON_INLINE functions. g++ does not
// always flatten what is called by functions that are always inlined, such as those of the driver of programs; clang++
// takes no attribute in this place.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__INTEL_COMPILER) && !defined(TIGON_DEVICE_CODE)
#define TIGON_FN __attribute__((always_inline))
#else
#define TIGON_FN
#endif
// What names a CPU's registers, or catches exceptions: for the host alone.
#define TIGON_HOST_INLINE inline __attribute__((always_inline))
#if defined(TIGON_DEVICE_CODE)
#if !defined(__CUDACC__)
#error "tigon: TIGON_DEVICE_CODE is for nvcc, which compiles functions for host and device"
#include <the_error_above_ends_compilation>
#endif
// For either side. So is a lambda in such a function, without a word of its own.
#define TIGON_INLINE __host__ __device__ inline __attribute__((always_inline))
#define TIGON_LAMBDA
#define TIGON_FLATTEN
#define TIGON_RARE TIGON_INLINE
// For the threads of a device alone.
#define TIGON_DEVICE_INLINE __device__ inline __attribute__((always_inline))
#define TIGON_DEVICE_NOINLINE __device__ __attribute__((noinline))
#else
#define TIGON_INLINE TIGON_HOST_INLINE
#define TIGON_DEVICE_INLINE TIGON_HOST_INLINE
#define TIGON_DEVICE_NOINLINE TIGON_NOINLINE
// On what few rows of a program need: out of line, but for a device, which has no calls.
#define TIGON_RARE TIGON_NOINLINE
// Force-inline a lambda into the loop that calls it.
#define TIGON_LAMBDA __attribute__((always_inline))
// On the body of a task: the row program and every function it passes are inlined into one loop nest. g++ keeps the
// operations of an unrolled loop in source order, one vector after the other, unless its scheduler is switched on. Each
// operation then depends on the one before it, and the reorder buffer of a CPU holds too few independent ones (up to a
// sixth of the time).
#if defined(__GNUC__) && !defined(__clang__) && !defined(__INTEL_COMPILER)
#define TIGON_FLATTEN __attribute__((flatten, optimize("schedule-insns", "sched-pressure")))
#else
#define TIGON_FLATTEN __attribute__((flatten))
#endif
#endif

// On what is compiled once and called: the checks of a public function.
#define TIGON_NOINLINE __attribute__((noinline))

// Tile registers: all three of their features.
#if (defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)) || \
    (defined(__AMXTILE__) && defined(__AMXBF16__) && defined(__AMXINT8__))  // clang before 16
#define TIGON_FLAGS_tiles 1
#else
#define TIGON_FLAGS_tiles 0
#endif

// The instruction set that the flags of this translation unit promise, as one token. It names the inline namespace
// of every backend and engine type, so that two translation units built with different flags share no kernel symbol.
#if defined(__AVX512BF16__) && defined(__AVX512F__) && TIGON_FLAGS_tiles
#define TIGON_TARGET amx
#elif defined(__AVX512BF16__) && defined(__AVX512F__)
#define TIGON_TARGET avx512_bf16
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && \
    defined(__AVX512CD__)
#if defined(__AVX512VNNI__)
#define TIGON_TARGET avx512_vnni
#else
#define TIGON_TARGET avx512
#endif
#elif defined(__AVX2__) && defined(__FMA__)
#if defined(__AVXVNNI__)
#define TIGON_TARGET avx2_vnni
#else
#define TIGON_TARGET avx2
#endif
#elif defined(__AVX2__)
#define TIGON_TARGET avx2_without_fma
#elif defined(__AVX__)
#define TIGON_TARGET avx
#elif defined(__SSE4_1__)
#define TIGON_TARGET sse4
#elif defined(__SSE2__)
#define TIGON_TARGET sse2
#elif defined(__ARM_NEON)
// Composed below: neon, then what of it the flags add.
#define TIGON_TARGET \
  TIGON_NEON_(TIGON_NEON_SVE, TIGON_NEON_DOT, TIGON_NEON_CRYPTO, TIGON_NEON_BF16, TIGON_NEON_I8MM, TIGON_NEON_FP16)
#elif defined(__riscv_vector)
#define TIGON_TARGET rvv
#else
#define TIGON_TARGET baseline
#endif
#if defined(__ARM_NEON)
#define TIGON_NEON_JOIN(sve, dot, crypto, bf16, i8mm, fp16) neon##sve##dot##crypto##bf16##i8mm##fp16
#define TIGON_NEON_(sve, dot, crypto, bf16, i8mm, fp16) TIGON_NEON_JOIN(sve, dot, crypto, bf16, i8mm, fp16)
#if defined(__ARM_FEATURE_SVE)
#define TIGON_NEON_SVE _sve
#else
#define TIGON_NEON_SVE
#endif
#if defined(__ARM_FEATURE_DOTPROD)
#define TIGON_NEON_DOT _dot
#else
#define TIGON_NEON_DOT
#endif
#if defined(__ARM_FEATURE_CRYPTO)
#define TIGON_NEON_CRYPTO _crypto
#else
#define TIGON_NEON_CRYPTO
#endif
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define TIGON_NEON_BF16 _bf16
#else
#define TIGON_NEON_BF16
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define TIGON_NEON_I8MM _i8mm
#else
#define TIGON_NEON_I8MM
#endif
#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#define TIGON_NEON_FP16 _fp16
#else
#define TIGON_NEON_FP16
#endif
#endif

// The CPU core that the flags name, of those that backend/cores.hpp knows: Intel's with 512 bits, Zen 4, Zen 5, or
// other. Compilers that know neither say Zen 3 with AVX-512 for both Zen 4 and Zen 5; they say Zen 4 for Zen 5, which
// has more instructions. It is part of the symbols, too.
#if !defined(TIGON_CORE)
#if defined(__skylake_avx512__) || defined(__cascadelake__) || defined(__cooperlake__) ||       \
    defined(__icelake_server__) || defined(__sapphirerapids__) || defined(__graniterapids__) || \
    (defined(__corei7__) && defined(__AVX512F__))
#define TIGON_CORE intel
#elif (defined(__znver3__) || defined(__znver4__)) && defined(__AVX512F__)
#if defined(__AVXVNNI__) || defined(__MOVDIRI__) || defined(__AVX512VP2INTERSECT__)
#define TIGON_CORE zen5
#else
#define TIGON_CORE zen4
#endif
#elif defined(__znver5__)
#define TIGON_CORE zen5
#else
#define TIGON_CORE other
#endif
#endif
#define TIGON_CORE_intel 1
#define TIGON_CORE_zen4 2
#define TIGON_CORE_zen5 3
#define TIGON_CORE_other 4
#define TIGON_CORE_NUMBER_(name) TIGON_CORE_##name
#define TIGON_CORE_NUMBER(name) TIGON_CORE_NUMBER_(name)

#define TIGON_STRING_(x) #x
#define TIGON_STRING(x) TIGON_STRING_(x)

// A chip's numbers decide how kernels are cut, so they are part of the symbols. 0: not set.
namespace tigon::detail {
consteval bool is_one_number(const char* s) {
  for (; *s != 0; ++s)
    if (*s < '0' || *s > '9') return false;
  return true;
}
}  // namespace tigon::detail
#if defined(TIGON_TILE_CAPACITY_BITS) && TIGON_IS_SET(TIGON_TILE_CAPACITY_BITS)
#if TIGON_TILE_CAPACITY_BITS < 8
static_assert(false, "tigon: TIGON_TILE_CAPACITY_BITS is " TIGON_STRING(
                         TIGON_TILE_CAPACITY_BITS) "; expected a positive number of bits, written as one number");
#undef TIGON_TILE_CAPACITY_BITS
#define TIGON_TILE_CAPACITY_BITS 0
#else
static_assert(tigon::detail::is_one_number(TIGON_STRING(TIGON_TILE_CAPACITY_BITS)),
              "tigon: TIGON_TILE_CAPACITY_BITS is " TIGON_STRING(
                  TIGON_TILE_CAPACITY_BITS) "; expected a positive number of bits, written as one number");
#endif
#else
#undef TIGON_TILE_CAPACITY_BITS
#define TIGON_TILE_CAPACITY_BITS 0
#endif
#if defined(TIGON_VECTOR_CORES) && TIGON_IS_SET(TIGON_VECTOR_CORES)
#if TIGON_VECTOR_CORES < 1
static_assert(false, "tigon: TIGON_VECTOR_CORES is " TIGON_STRING(
                         TIGON_VECTOR_CORES) "; expected a positive number, written as one number");
#undef TIGON_VECTOR_CORES
#define TIGON_VECTOR_CORES 0
#else
static_assert(tigon::detail::is_one_number(TIGON_STRING(TIGON_VECTOR_CORES)),
              "tigon: TIGON_VECTOR_CORES is " TIGON_STRING(
                  TIGON_VECTOR_CORES) "; expected a positive number, written as one number");
#endif
#else
#undef TIGON_VECTOR_CORES
#define TIGON_VECTOR_CORES 0
#endif

#define TIGON_PASTE_(a, b, c, d) a##b##_checks##c##_##d
#define TIGON_PASTE(a, b, c, d) TIGON_PASTE_(a, b, c, d)
#define TIGON_PASTE_CHIP_(a, b, c, d, bits, cores) a##b##_checks##c##_##d##_chip##bits##x##cores
#define TIGON_PASTE_CHIP(a, b, c, d, bits, cores) TIGON_PASTE_CHIP_(a, b, c, d, bits, cores)
#if defined(TIGON_DEVICE_CODE)
#define TIGON_ABI_BEGIN v0_2_device_
#else
#define TIGON_ABI_BEGIN v0_2_
#endif
#if TIGON_TILE_CAPACITY_BITS || TIGON_VECTOR_CORES
#define TIGON_ABI                                                                                     \
  TIGON_PASTE_CHIP(TIGON_ABI_BEGIN, TIGON_TARGET, TIGON_CHECKS, TIGON_CORE, TIGON_TILE_CAPACITY_BITS, \
                   TIGON_VECTOR_CORES)
#else
#define TIGON_ABI TIGON_PASTE(TIGON_ABI_BEGIN, TIGON_TARGET, TIGON_CHECKS, TIGON_CORE)
#endif

// On a function of a type that crosses translation units (a context, an executor) and that is too long to be inlined
// into its caller: the symbol of the function names the instruction set, the type does not.
#define TIGON_TAGGED __attribute__((abi_tag(TIGON_STRING(TIGON_ABI))))

#endif  // TIGON_CONFIG_HPP
