// Tile registers: blocks of 16 rows of 64 bytes that are multiplied by one instruction (Intel AMX). Whether this
// process may use them, and the few instructions that a product of 2 x 2 tiles is made of.
//
// What multiplies by tiles is a template over a type with the functions of tile_registers; tests instantiate it with an
// emulation in plain C++, so that packing and tiling run on any CPU.
//
//   sums     four tiles of 16 x 16 sums, f32 or int32: (i, j) is block row i, block column j
//   a        two tiles, rows of a: 16 words of 4 bytes that follow each other in depth
//   b        two tiles, columns of b: row p has word p of 16 columns
//   word     two bf16, or four signed bytes, that follow each other in depth
#ifndef TIGON_SIMD_TILE_REGISTERS_HPP
#define TIGON_SIMD_TILE_REGISTERS_HPP

#include <tigon/config.hpp>
#include <tigon/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>
#endif
#if TIGON_FLAGS_tiles
#include <immintrin.h>
#endif

namespace tigon::simd {
inline namespace TIGON_ABI {

namespace detail {

#if defined(__x86_64__) && defined(__linux__)
/// What is missing, by the CPU and by the system; asks Linux to permit the tile registers to this process.
inline std::string_view ask_for_tile_registers() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned osxsave = 1u << 27;                               // leaf 1, ecx
  constexpr unsigned tiles = 1u << 22 | 1u << 24 | 1u << 25;           // leaf 7, edx: AMX-BF16, AMX-TILE, AMX-INT8
  constexpr unsigned saved = 1u << 17 | 1u << 18;                      // XCR0: tile configuration, tile data
  constexpr long request_permission = 0x1023, tile_data_feature = 18;  // ARCH_REQ_XCOMP_PERM
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & tiles) != tiles)
    return "this CPU has none (cpuid, leaf 7: AMX-TILE, AMX-BF16 and AMX-INT8)";
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & osxsave) == 0)
    return "the operating system does not save extended registers (cpuid, leaf 1: OSXSAVE)";
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & saved) != saved)
    return "the operating system does not save them (xgetbv, bits 17 and 18); Linux 5.16 does";
  if (::syscall(SYS_arch_prctl, request_permission, tile_data_feature) != 0)
    return errno == ENOSPC ? std::string_view("Linux refuses them, because a signal stack of this process is too small")
                           : std::string_view("Linux refuses them (arch_prctl, ARCH_REQ_XCOMP_PERM, feature 18)");
  return {};
}
#else
inline std::string_view ask_for_tile_registers() { return "they are known on Linux for x86-64 alone"; }
#endif

}  // namespace detail

/// Why this process may not use tile registers, in words for a sentence; empty where it may. The system is queried once
/// a process, at the first call; its permission then holds for all threads.
inline std::string_view tile_registers_missing() {
  static const std::string_view once = detail::ask_for_tile_registers();
  return once;
}

/// Throws tigon::error, code `state`, where `missing` is not empty.
inline void expect_tile_registers(std::string_view op, std::string_view missing) {
  if (missing.empty()) return;
  tigon::detail::fail(error_code::state, "tigon: " + std::string(op) + ": backend amx needs tile registers, and " +
                                             std::string(missing) +
                                             "; expected a CPU and a system with AMX, or another "
                                             "backend (TIGON_BACKEND=avx512_bf16)");
}

/// Rows of a tile, and bytes of a row.
inline constexpr std::size_t tile_rows = 16, tile_bytes = 64;

#if TIGON_FLAGS_tiles

namespace detail {
struct alignas(64) tile_layout {  // as LDTILECFG reads it
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(tile_layout) == 64);
inline constexpr tile_layout eight_full_tiles{};
}  // namespace detail

/// The CPU's. All functions but missing() are called between the construction and the destruction of a `configured` on
/// the calling thread. Sums are tiles 0 to 3, a is 4 and 5, b is 6 and 7.
struct tile_registers {
  static std::string_view missing() { return tile_registers_missing(); }

  /// Eight full tiles, from here to the end of its scope. Its cost is that of a few multiplications. Without it the
  /// registers are in their initial state, in which a change of threads need not save them, so it lives as long as one
  /// block of a product.
  class configured {
   public:
    TIGON_INLINE configured() { _tile_loadconfig(&detail::eight_full_tiles); }
    TIGON_INLINE ~configured() { _tile_release(); }
    configured(const configured&) = delete;
    configured& operator=(const configured&) = delete;
  };

  /// Memory that was written before may be loaded: the compiler's statements for loads do not say that they read it.
  static TIGON_INLINE void begin() { asm volatile("" ::: "memory"); }

  template <std::size_t I>
  static TIGON_INLINE void load_a(const void* p) {
    static_assert(I < 2);
    if constexpr (I == 0) _tile_loadd(4, p, 64);
    if constexpr (I == 1) _tile_loadd(5, p, 64);
  }
  template <std::size_t J>
  static TIGON_INLINE void load_b(const void* p) {
    static_assert(J < 2);
    if constexpr (J == 0) _tile_loadd(6, p, 64);
    if constexpr (J == 1) _tile_loadd(7, p, 64);
  }
  template <std::size_t I, std::size_t J>
  static TIGON_INLINE void zero() {
    static_assert(I < 2 && J < 2);
    if constexpr (I == 0 && J == 0) _tile_zero(0);
    if constexpr (I == 0 && J == 1) _tile_zero(1);
    if constexpr (I == 1 && J == 0) _tile_zero(2);
    if constexpr (I == 1 && J == 1) _tile_zero(3);
  }
  /// Sums from rows that are `stride` bytes apart, and to them.
  template <std::size_t I, std::size_t J>
  static TIGON_INLINE void load(const void* p, std::size_t stride) {
    static_assert(I < 2 && J < 2);
    if constexpr (I == 0 && J == 0) _tile_loadd(0, p, stride);
    if constexpr (I == 0 && J == 1) _tile_loadd(1, p, stride);
    if constexpr (I == 1 && J == 0) _tile_loadd(2, p, stride);
    if constexpr (I == 1 && J == 1) _tile_loadd(3, p, stride);
  }
  template <std::size_t I, std::size_t J>
  static TIGON_INLINE void store(void* p, std::size_t stride) {
    static_assert(I < 2 && J < 2);
    if constexpr (I == 0 && J == 0) _tile_stored(0, p, stride);
    if constexpr (I == 0 && J == 1) _tile_stored(1, p, stride);
    if constexpr (I == 1 && J == 0) _tile_stored(2, p, stride);
    if constexpr (I == 1 && J == 1) _tile_stored(3, p, stride);
  }
  /// sums(i, j) += a(i) b(j). The products of a row with a column are added up apart, those of first and of second
  /// elements of words, then to each other and to the sum: f32, to nearest even, subnormal numbers are 0.
  template <std::size_t I, std::size_t J>
  static TIGON_INLINE void multiply_bf16() {
    static_assert(I < 2 && J < 2);
    if constexpr (I == 0 && J == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (I == 0 && J == 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (I == 1 && J == 0) _tile_dpbf16ps(2, 5, 6);
    if constexpr (I == 1 && J == 1) _tile_dpbf16ps(3, 5, 7);
  }
  /// The same of signed bytes, exact modulo 2^32.
  template <std::size_t I, std::size_t J>
  static TIGON_INLINE void multiply_int8() {
    static_assert(I < 2 && J < 2);
    if constexpr (I == 0 && J == 0) _tile_dpbssd(0, 4, 6);
    if constexpr (I == 0 && J == 1) _tile_dpbssd(1, 4, 7);
    if constexpr (I == 1 && J == 0) _tile_dpbssd(2, 5, 6);
    if constexpr (I == 1 && J == 1) _tile_dpbssd(3, 5, 7);
  }
};

#endif

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_TILE_REGISTERS_HPP
