// The instruction of gemm/block_panels.hpp in plain C++, for CPUs that have none, and a backend whose products run on it.
// What the emulation computes is the description of BFMMLA in Arm's manual, as of processors without FEAT_EBF16, or with
// FPCR.EBF = 0.
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
    for (std::size_t i = 0; i < 2; ++i)
      for (std::size_t j = 0; j < 2; ++j)
        for (std::size_t p = 0; p < 4; p += 2) {
          const float first = product(a.element[4 * i + p], b.element[4 * j + p]);
          const float second = product(a.element[4 * i + p + 1], b.element[4 * j + p + 1]);
          float& sum = c.element[2 * i + j];
          sum = add(sum, add(first, second));
        }
    return c;
  }

 private:
  /// Subnormal numbers are zeros of the same sign.
  static float flushed(float x) { return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }
  static float of_bf16(std::uint16_t bits) { return flushed(std::bit_cast<float>(std::uint32_t{bits} << 16)); }
  /// Rounded to odd; beyond the largest number infinity, below the least normal one zero.
  static float rounded(double x) {
    if (std::abs(x) < static_cast<double>(std::numeric_limits<float>::min())) return x < 0 ? -0.0f : 0.0f;
    if (std::abs(x) >= 0x1p128)
      return x < 0 ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
    const auto bits = std::bit_cast<std::uint64_t>(x);
    constexpr std::uint64_t lost = (std::uint64_t{1} << 29) - 1;
    const double cut = std::bit_cast<double>(bits & ~lost);
    const auto odd = std::bit_cast<std::uint32_t>(static_cast<float>(cut)) | std::uint32_t{(bits & lost) != 0};
    return std::bit_cast<float>(odd);
  }
  static float product(std::uint16_t x, std::uint16_t y) {
    const double exact = static_cast<double>(of_bf16(x)) * static_cast<double>(of_bf16(y));
    if (std::isnan(exact)) return std::numeric_limits<float>::quiet_NaN();
    if (exact == 0) return static_cast<float>(exact);
    return rounded(exact);
  }
  static float add(float x, float y) {
    const double a = static_cast<double>(flushed(x)), b = static_cast<double>(flushed(y));
    const double sum = a + b;
    if (std::isnan(sum)) return std::numeric_limits<float>::quiet_NaN();
    if (std::isinf(sum) || sum == 0) return static_cast<float>(sum);
    // The sum in f64 rounds to nearest; what it lost says on which side of it the exact sum is.
    const double part = sum - a, lost = (a - (sum - part)) + (b - part);
    auto bits = std::bit_cast<std::uint64_t>(sum);
    if (lost != 0 && (bits & 1) == 0) bits += (lost > 0) == (sum > 0) ? std::uint64_t{1} : ~std::uint64_t{0};
    return rounded(std::bit_cast<double>(bits));
  }
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
