// Products by blocks of bf16: the emulation that other tests multiply with, the CPU's instruction against it where
// there is one, and panels word by word. What the products promise: tests/gemm/gemm_test.cpp.
// Operators: gemm
#include <tigon/gemm/gemm.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "../support/backends.hpp"
#include "../support/emulated_blocks.hpp"
#include "../support/guarded.hpp"

namespace tigon::test {
namespace {

using row = std::array<float, 4>;

/// Sums of two rows of a with two columns of b.
template <class Instruction>
std::array<float, 4> product_of(row a0, row a1, row b0, row b1, std::array<float, 4> c) {
  std::array<std::uint16_t, 8> a, b;
  for (std::size_t p = 0; p < 4; ++p) {
    a[p] = bfloat16(a0[p]).bits, a[4 + p] = bfloat16(a1[p]).bits;
    b[p] = bfloat16(b0[p]).bits, b[4 + p] = bfloat16(b1[p]).bits;
  }
  const auto sums = Instruction::multiply_add(std::bit_cast<typename Instruction::operand>(a),
                                              std::bit_cast<typename Instruction::operand>(b),
                                              std::bit_cast<typename Instruction::sums>(c));
  return std::bit_cast<std::array<float, 4>>(sums);
}
float dot(row a, row b, float sum) { return product_of<emulated_bfmmla>({}, a, {}, b, {0, 0, 0, sum})[3]; }

TEST(EmulatedBlocks, AreTwoRowsByTwoColumns) {
  const std::array<float, 4> got = product_of<emulated_bfmmla>({1, 2, 3, 4}, {5, 6, 7, 8}, {1, 10, 100, 1000},
                                                               {2, 20, 200, 2000}, {0.5f, 0.25f, 0.125f, 0});
  EXPECT_EQ(got, (std::array<float, 4>{4321.5f, 8642.25f, 8765.125f, 17530}));
}

TEST(EmulatedBlocks, RoundToOdd) {
  // 2^24 + 1 lies between 2^24 and 2^24 + 2: cut off, then the last bit is set.
  EXPECT_EQ(dot({1, 0, 0, 0}, {1, 0, 0, 0}, 0x1p24f), 0x1.000002p24f);
  EXPECT_EQ(dot({-1, 0, 0, 0}, {1, 0, 0, 0}, -0x1p24f), -0x1.000002p24f);
  EXPECT_EQ(dot({1, 0, 0, 0}, {1, 0, 0, 0}, 0x1.000002p24f), 0x1.000002p24f);
  EXPECT_EQ(dot({-1, 0, 0, 0}, {0x1p-60f, 0, 0, 0}, 1), 0x1.fffffep-1f);
  EXPECT_EQ(dot({1, 0, 0, 0}, {0x1p-120f, 0, 0, 0}, 1), 0x1.000002p0f);
  // Products of a pair are added first, exactly if they can be.
  EXPECT_EQ(dot({0x1p24f, -0x1p24f, 1, 0}, {1, 1, 1, 0}, 0x1p24f), 0x1.000002p24f);
  EXPECT_EQ(dot({1, 1, 1, 1}, {1, 1, 1, 1}, 0x1p24f), 0x1p24f + 4);
}

TEST(EmulatedBlocks, TakeSubnormalNumbersForZeros) {
  const float least = std::numeric_limits<float>::min();
  EXPECT_EQ(dot({least / 2, 0, 0, 0}, {0x1p30f, 0, 0, 0}, 0), 0.0f);  // an operand
  EXPECT_EQ(dot({least, 0, 0, 0}, {0.5f, 0, 0, 0}, 1), 1.0f);         // a product: not even a last bit of the sum
  EXPECT_EQ(dot({least, 0, 0, 0}, {1.5f, 0, 0, 0}, -least), 0.0f);    // the result
  EXPECT_EQ(dot({0, 0, 0, 0}, {0, 0, 0, 0}, least / 2), 0.0f);        // the sum before
}

TEST(EmulatedBlocks, KeepNaNAndInfinity) {
  EXPECT_TRUE(std::isnan(dot({0, 1, 0, 0}, {INFINITY, 1, 0, 0}, 0)));
  EXPECT_EQ(dot({1, 1, 0, 0}, {INFINITY, 1, 0, 0}, 0), INFINITY);
  EXPECT_TRUE(std::isnan(dot({1, 1, 0, 0}, {INFINITY, 1, 0, 0}, -INFINITY)));
  EXPECT_EQ(dot({0x1p100f, 0, 0, 0}, {-0x1p100f, 0, 0, 0}, 0), -INFINITY);
  EXPECT_EQ(dot({0x1.fep127f, 0, 0, 0}, {1, 0, 0, 0}, 0x1.fep127f), INFINITY);
}

TEST(BlockInstruction, OfTheCpuComputesWhatTheEmulationDoes) {
#if TIGON_FLAGS_arm_bf16
  std::mt19937 random(1);
  const auto number = [&] {
    const int exponent = random() % 4 == 0 ? static_cast<int>(random() % 240) - 120 : static_cast<int>(random() % 16);
    return std::ldexp(static_cast<float>(static_cast<int>(random() % 511) - 255), exponent - 8);
  };
  for (int round = 0; round < 100000; ++round) {
    std::array<row, 4> x;
    std::array<float, 4> c;
    for (row& r : x)
      for (float& v : r) v = number();
    for (float& v : c) v = number() * (1 + std::ldexp(static_cast<float>(random() % 65536), -20));
    if (round % 97 == 0) x[0][1] = INFINITY;
    const auto cpu = product_of<packed::bfmmla>(x[0], x[1], x[2], x[3], c);
    const auto emulated = product_of<emulated_bfmmla>(x[0], x[1], x[2], x[3], c);
    for (std::size_t i = 0; i < 4; ++i)
      ASSERT_TRUE(std::bit_cast<std::uint32_t>(cpu[i]) == std::bit_cast<std::uint32_t>(emulated[i]) ||
                  (std::isnan(cpu[i]) && std::isnan(emulated[i])))
          << round << ": " << cpu[i] << " and " << emulated[i];
  }
#else
  GTEST_SKIP() << "the flags of this build promise no matrix instruction of bf16";
#endif
}

/// Element (i, p) of what is packed, i a row of a or a column of b.
template <bool OfA>
void packs_every_word(std::size_t rows, std::size_t depth, bool along) {
  using P = packed::block_lanes<four_lanes, emulated_bfmmla>;
  using shape = packed::tile_shape<P>;
  constexpr std::size_t U = OfA ? shape::rows : shape::cols;
  guarded_matrix<bfloat16> m(along ? rows : depth, along ? depth : rows, 3);
  const auto value = [&](std::size_t i, std::size_t p) {
    return i < rows && p < depth ? static_cast<std::uint16_t>(1 + i * 211 + p) : std::uint16_t{0};
  };
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t p = 0; p < depth; ++p) (along ? m(i, p) : m(p, i)).bits = value(i, p);
  const std::size_t panels = (rows + U - 1) / U, length = (depth + 3) / 4;
  std::vector<P::word> to(panels * U * length, ~P::word(0));
  P::pack<OfA>(packed::source<bfloat16>{m.view().data, m.view().row_stride, along}, 0, rows, 0, depth, to.data());
  for (std::size_t panel = 0; panel < panels; ++panel)
    for (std::size_t q = 0; q < length; ++q)
      for (std::size_t y = 0; y < U; ++y)
        for (std::size_t p = 0; p < 4; ++p)
          ASSERT_EQ(to[panel * U * length + q * U + y] >> 16 * p & 0xffffu, value(panel * U + y, q * 4 + p))
              << (OfA ? "a " : "b ") << panel * U + y << ", " << q * 4 + p << " of " << rows << " x " << depth
              << (along ? " along" : "");
}

/// Panels of U rows of one element a word. Vectors reach beyond six rows, and nothing is written behind the last panel.
template <class P, std::size_t U>
void packs_every_element(std::size_t rows, std::size_t depth, bool along) {
  using T = typename P::value;
  guarded_matrix<T> m(along ? rows : depth, along ? depth : rows, 3);
  const auto value = [&](std::size_t i, std::size_t p) { return i < rows ? static_cast<T>(1 + i * 32 + p) : T(0); };
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t p = 0; p < depth; ++p) (along ? m(i, p) : m(p, i)) = value(i, p);
  const std::size_t panels = (rows + U - 1) / U, behind = 16;
  std::vector<T> to(panels * U * depth + behind, T(-1));
  packed::pack<P, U>(packed::source<T>{m.view().data, m.view().row_stride, along}, 0, rows, 0, depth, to.data());
  for (std::size_t panel = 0; panel < panels; ++panel)
    for (std::size_t p = 0; p < depth; ++p)
      for (std::size_t y = 0; y < U; ++y)
        ASSERT_EQ(to[(panel * depth + p) * U + y], value(panel * U + y, p))
            << panel * U + y << ", " << p << " of " << rows << " x " << depth << (along ? " along" : "");
  for (std::size_t i = to.size() - behind; i < to.size(); ++i) ASSERT_EQ(to[i], T(-1)) << rows << " x " << depth;
}

/// Where a vector has at most eight numbers: longer ones have panels of eight rows.
template <class E, class A>
void packs_panels_of_six_rows() {
  using P = packed::fma_lanes<E, A>;
  if constexpr (P::size <= 8)
    for (const std::size_t rows : {1u, 5u, 6u, 7u, 12u, 17u, 18u})
      for (const std::size_t depth : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 9u, 15u, 16u, 17u})
        for (const bool along : {false, true}) packs_every_element<P, 6>(rows, depth, along);
}

TEST(Panels, OfSixRowsHoldEveryElementAndNothingBehind) {
  packs_panels_of_six_rows<four_lanes, float>();
  packs_panels_of_six_rows<backends::highway::engine, float>();
  packs_panels_of_six_rows<backends::highway::engine, double>();
}

TEST(BlockPanels, HoldEveryElementWhereTheInstructionExpectsIt) {
  for (const std::size_t rows : {1u, 2u, 3u, 7u, 8u, 9u, 11u, 12u, 13u, 16u, 24u, 29u})
    for (const std::size_t depth : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 9u, 16u, 23u})
      for (const bool along : {false, true}) {
        packs_every_word<true>(rows, depth, along);
        packs_every_word<false>(rows, depth, along);
      }
}

}  // namespace
}  // namespace tigon::test
