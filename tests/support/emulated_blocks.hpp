// The instruction of gemm/block_panels.hpp in plain C++, for CPUs that have none, and a backend whose products run on
// it. What the emulation computes is the description of BFMMLA in Arm's manual, as of processors without FEAT_EBF16, or
// with FPCR.EBF = 0.
#ifndef TIGON_TESTS_SUPPORT_EMULATED_BLOCKS_HPP
#define TIGON_TESTS_SUPPORT_EMULATED_BLOCKS_HPP

#include <tigon/backends/highway/backend.hpp>
#include <tigon/gemm/block_panels.hpp>
#include <tigon/simd/engines/vectors.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "guarded.hpp"

namespace tigon::test {

struct emulated_bfmmla {
  struct operand {
    std::uint16_t element[8];  ///< (0, 0) to (0, 3), (1, 0) to (1, 3)
  };
  struct sums {
    float element[4];  ///< (0, 0), (0, 1), (1, 0), (1, 1)
  };

  TIGON_TEST_NOINLINE static sums multiply_add(operand a, operand b, sums c) {
    numbers sum;
    for (std::size_t k = 0; k < 4; ++k) sum[k] = static_cast<double>(c.element[k]);
    sum = flushed(sum);
    for (std::size_t p = 0; p < 4; p += 2)
      sum = add(sum, add(product(a.element + p, b.element + p), product(a.element + p + 1, b.element + p + 1)));
    for (std::size_t k = 0; k < 4; ++k) c.element[k] = static_cast<float>(sum[k]);
    return c;
  }

 private:
  // All four sums at a time, numbers of f32 held in f64.
  typedef double numbers __attribute__((vector_size(32)));
  typedef std::int64_t words __attribute__((vector_size(32)));

  static numbers select(words m, numbers x, numbers y) { return (numbers)(((words)x & m) | ((words)y & ~m)); }
  static numbers magnitude(numbers x) { return (numbers)((words)x & ~sign); }
  /// Subnormal numbers are zeros of the same sign.
  static numbers flushed(numbers x) {
    return select(magnitude(x) < numbers{} + 0x1p-126, (numbers)((words)x & sign), x);
  }
  /// Rounded to odd; beyond the largest number infinity, below the least normal one zero.
  static numbers rounded(numbers x) {
    const words lost = (words)x & ((std::int64_t{1} << 29) - 1);
    const numbers odd = (numbers)(((words)x ^ lost) | ((lost != 0) & (std::int64_t{1} << 29)));
    const numbers infinity = (numbers)(((words)x & sign) | (words)(numbers{} + HUGE_VAL));
    return select(magnitude(x) >= numbers{} + 0x1p128, infinity, flushed(odd));
  }
  static double of_bf16(std::uint16_t bits) {
    return static_cast<double>(std::bit_cast<float>(std::uint32_t{bits} << 16));
  }
  static numbers product(const std::uint16_t* a, const std::uint16_t* b) {
    const double a0 = of_bf16(a[0]), a1 = of_bf16(a[4]), b0 = of_bf16(b[0]), b1 = of_bf16(b[4]);
    return rounded(flushed(numbers{a0, a0, a1, a1}) * flushed(numbers{b0, b1, b0, b1}));
  }
  static numbers add(numbers a, numbers b) {
    const numbers sum = a + b;
    // The sum in f64 rounds to nearest; what it lost says on which side of it the exact sum is. That of NaN is NaN.
    const numbers part = sum - a, lost = (a - (sum - part)) + (b - part);
    const words inexact = (lost < 0) | (lost > 0), away = (words)((lost > 0) == (sum > 0));
    const words even = ((words)sum & 1) - 1;
    return rounded((numbers)((words)sum + (inexact & even & ((away & 2) - 1))));
  }
  static constexpr std::int64_t sign = std::numeric_limits<std::int64_t>::min();
};

/// Four lanes of f32, on any CPU.
struct four_lanes {
  static constexpr std::string_view name = "four_lanes";
  static constexpr std::string_view target = simd::vectors::target;
  template <class A>
  using lanes = simd::vectors::lanes<A>;
};

}  // namespace tigon::test

namespace tigon::backends {
inline namespace TIGON_ABI {

struct emulated_arm_bf16 : highway {
  using self = emulated_arm_bf16;
  using parent = highway;
  static constexpr backend_info info{"emulated_arm_bf16", {device::cpu}};
  using engine = test::four_lanes;
  using overrides = op_list<op::gemm>;
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

namespace tigon {

template <>
struct kernel<op::gemm, backends::emulated_arm_bf16>
    : packed::gemm_by_blocks<test::emulated_bfmmla, backends::highway> {};

}  // namespace tigon

#endif  // TIGON_TESTS_SUPPORT_EMULATED_BLOCKS_HPP
