// The tile registers of simd/tile_registers.hpp in plain C++, for CPUs that have none, and a backend whose products run
// on them. What the emulation computes is the description of TDPBF16PS and TDPBSSD in Intel's manual, operation by
// operation.
#ifndef TIGON_TESTS_SUPPORT_EMULATED_TILES_HPP
#define TIGON_TESTS_SUPPORT_EMULATED_TILES_HPP

#include <tigon/backends/highway/backend.hpp>
#include <tigon/gemm/int2_tiles.hpp>
#include <tigon/gemm/tile_panels.hpp>
#include <tigon/ops/matmul_int8_int2.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#include "guarded.hpp"

namespace tigon::test {

/// Each thread has registers of its own. A use of them that is not configured ends the program, as the CPU would.
struct emulated_tiles {
  static std::string_view missing() { return {}; }

  class configured {
   public:
    configured() {
      if (here().configured) std::abort();  // would lose the tiles of an outer use
      here() = {};
      here().configured = true;
    }
    ~configured() { here().configured = false; }
    configured(const configured&) = delete;
    configured& operator=(const configured&) = delete;
  };

  static void begin() {}
  template <std::size_t I>
  static void load_a(const void* p) {
    static_assert(I < 2);
    std::memcpy(&use().a[I], p, sizeof(tile));
  }
  template <std::size_t J>
  static void load_b(const void* p) {
    static_assert(J < 2);
    std::memcpy(&use().b[J], p, sizeof(tile));
  }
  template <std::size_t I, std::size_t J>
  static void zero() {
    use().sums[I][J] = {};
  }
  template <std::size_t I, std::size_t J>
  static void load(const void* p, std::size_t stride) {
    for (std::size_t row = 0; row < 16; ++row)
      std::memcpy(use().sums[I][J].words[row], static_cast<const char*>(p) + row * stride, 64);
  }
  template <std::size_t I, std::size_t J>
  static void store(void* p, std::size_t stride) {
    for (std::size_t row = 0; row < 16; ++row)
      std::memcpy(static_cast<char*>(p) + row * stride, use().sums[I][J].words[row], 64);
  }
  template <std::size_t I, std::size_t J>
  static void multiply_bf16() {
    multiply_bf16(use().a[I], use().b[J], use().sums[I][J]);
  }
  template <std::size_t I, std::size_t J>
  static void multiply_int8() {
    multiply_int8(use().a[I], use().b[J], use().sums[I][J]);
  }

 private:
  struct tile {
    std::uint32_t words[16][16];
  };
  struct registers {
    tile a[2], b[2], sums[2][2];
    bool configured;
  };
  static registers& here() {
    thread_local registers of_this_thread{};
    return of_this_thread;
  }
  static registers& use() {
    registers& r = here();
    if (!r.configured) std::abort();
    return r;
  }

  /// Subnormal operands and results are zeros of the same sign.
  static float flushed(float x) { return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }
  static float of_bits(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return flushed(x);
  }
  TIGON_TEST_NOINLINE static void multiply_bf16(const tile& a, const tile& b, tile& sums) {
    float b0[16][16], b1[16][16];
    bool finite = true;
    for (std::size_t k = 0; k < 16; ++k)
      for (std::size_t n = 0; n < 16; ++n) {
        b0[k][n] = of_bits(b.words[k][n] << 16), b1[k][n] = of_bits(b.words[k][n] & 0xffff0000u);
        finite = finite && std::isfinite(b0[k][n]) && std::isfinite(b1[k][n]);
      }
    for (std::size_t m = 0; m < 16; ++m) {
      float first[16] = {}, second[16] = {};
      const bool padding = finite && std::all_of(a.words[m], a.words[m] + 16, [](std::uint32_t w) { return w == 0; });
      for (std::size_t k = 0; k < 16 && !padding; ++k) {
        const float a0 = of_bits(a.words[m][k] << 16), a1 = of_bits(a.words[m][k] & 0xffff0000u);
        for (std::size_t n = 0; n < 16; ++n) {
          first[n] = flushed(std::fma(a0, b0[k][n], first[n]));
          second[n] = flushed(std::fma(a1, b1[k][n], second[n]));
        }
      }
      for (std::size_t n = 0; n < 16; ++n) {
        const float sum = flushed(of_bits(sums.words[m][n]) + flushed(first[n] + second[n]));
        std::memcpy(&sums.words[m][n], &sum, sizeof sum);
      }
    }
  }
  TIGON_TEST_NOINLINE static void multiply_int8(const tile& a, const tile& b, tile& sums) {
    const auto byte = [](std::uint32_t word, int i) {
      return static_cast<std::int32_t>(static_cast<std::int8_t>(word >> 8 * i & 255));
    };
    for (std::size_t m = 0; m < 16; ++m)
      for (std::size_t k = 0; k < 16; ++k)
        for (std::size_t n = 0; n < 16 && a.words[m][k] != 0; ++n)
          for (int i = 0; i < 4; ++i)
            sums.words[m][n] += static_cast<std::uint32_t>(byte(a.words[m][k], i) * byte(b.words[k][n], i));
  }
};

}  // namespace tigon::test

namespace tigon::backends {
inline namespace TIGON_ABI {

struct emulated_amx : highway {
  using self = emulated_amx;
  using parent = highway;
  static constexpr backend_info info{"emulated_amx", {device::cpu}};
  using overrides = op_list<op::gemm, op::matmul_int8_int2>;
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

namespace tigon {

template <>
struct kernel<op::gemm, backends::emulated_amx> : packed::gemm_by_tiles<test::emulated_tiles, backends::highway> {};

template <>
struct kernel<op::matmul_int8_int2, backends::emulated_amx> : kernel<op::matmul_int8_int2, backends::generic> {
  using tiles = int2::matmul_by_tiles<test::emulated_tiles>;

  template <backend B>
  static std::size_t workspace_bytes(std::size_t m, std::size_t n, std::size_t packed_rows, std::size_t workers) {
    return tiles::workspace_bytes(m, n, packed_rows, workers);
  }
  template <backend B>
  static void forward(matrix_view<const std::int8_t> a, matrix_view<const std::uint8_t> packed,
                      matrix_view<std::int32_t> c, context& ctx) {
    tiles::forward(a, packed, c, ctx);
  }
};

}  // namespace tigon

#endif  // TIGON_TESTS_SUPPORT_EMULATED_TILES_HPP
