// Products by tile registers: the emulation that other tests multiply with, the CPU's registers against it where there are
// some, panels word by word, and what is said where there are none. What the products promise: tests/gemm/gemm_test.cpp,
// tests/ops/matmul_int8_int2_test.cpp.
#include <tigon/gemm/gemm.hpp>

#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "../support/backends.hpp"
#include "../support/emulated_tiles.hpp"
#include "../support/guarded.hpp"
#include "../support/throws.hpp"

namespace tigon::test {
/// As on a system that does not permit the registers.
struct refused_tiles : emulated_tiles {
  static std::string_view missing() { return "Linux refuses them"; }
};
}  // namespace tigon::test

namespace tigon::backends {
inline namespace TIGON_ABI {
struct refused : highway {
  using self = refused;
  using parent = highway;
  static constexpr backend_info info{"refused", {device::cpu}};
  using overrides = op_list<op::gemm, op::matmul_int8_int2>;
};
}  // namespace TIGON_ABI
}  // namespace tigon::backends

namespace tigon {
template <>
struct kernel<op::gemm, backends::refused> : packed::gemm_by_tiles<test::refused_tiles, backends::highway> {};
template <>
struct kernel<op::matmul_int8_int2, backends::refused> : kernel<op::matmul_int8_int2, backends::generic> {
  template <backend B>
  static void forward(matrix_view<const std::int8_t> a, matrix_view<const std::uint8_t> packed,
                      matrix_view<std::int32_t> c, context& ctx) {
    int2::matmul_by_tiles<test::refused_tiles>::forward(a, packed, c, ctx);
  }
};
}  // namespace tigon

namespace tigon::test {
namespace {

using bits = std::vector<std::uint32_t>;

std::uint32_t bits_of_f32(float x) { return std::bit_cast<std::uint32_t>(x); }
std::uint32_t pair_of(float low, float high) {
  return bfloat16(low).bits | static_cast<std::uint32_t>(bfloat16(high).bits) << 16;
}

/// Tiles a, b and sums of 16 x 16 words; the sums after a product of all four pairs of tiles with the same contents.
template <class Registers, bool Int8>
bits product_of(const bits& a, const bits& b, const bits& sums) {
  bits out(4 * 256);
  const typename Registers::configured registers;
  Registers::begin();
  Registers::template load_a<0>(a.data());
  Registers::template load_a<1>(a.data() + 256);
  Registers::template load_b<0>(b.data());
  Registers::template load_b<1>(b.data() + 256);
  packed::for_sums<2, 2>([&](auto i, auto j) {
    if (i == 0 && j == 0)
      Registers::template zero<i, j>();
    else
      Registers::template load<i, j>(sums.data() + i * 16 * 32 + j * 16, 32 * 4);
    if constexpr (Int8)
      Registers::template multiply_int8<i, j>();
    else
      Registers::template multiply_bf16<i, j>();
    Registers::template store<i, j>(out.data() + i * 16 * 32 + j * 16, 32 * 4);
  });
  return out;
}

/// The first sum of a product of one row with one column.
float dot(const std::vector<float>& row, const std::vector<float>& column, float sum) {
  bits a(512), b(512), sums(1024);
  for (std::size_t k = 0; 2 * k < row.size(); ++k) {
    a[256 + k] = pair_of(row[2 * k], row[2 * k + 1]);
    b[k * 16] = pair_of(column[2 * k], column[2 * k + 1]);
  }
  sums[16 * 32] = bits_of_f32(sum);
  return std::bit_cast<float>(product_of<emulated_tiles, false>(a, b, sums)[16 * 32]);
}

TEST(EmulatedTiles, AddUpFirstAndSecondElementsApart) {
  EXPECT_EQ(dot({1, 2, 3, 4}, {5, 6, 7, 8}, 0.5f), 5 + 12 + 21 + 32 + 0.5f);
  // 2^24 + 1 is 2^24: in one chain the second one would be lost as the first is.
  EXPECT_EQ(dot({0x1p24f, 1, 0, 1}, {1, 1, 0, 1}, 0), 0x1p24f + 2);
  EXPECT_EQ(dot({0x1p24f, 0, 1, 0, 1, 0}, {1, 0, 1, 0, 1, 0}, 0), 0x1p24f);
  // The sum comes last, in one rounding.
  EXPECT_EQ(dot({1, 1}, {1, 1}, 0x1p24f), 0x1p24f + 2);
  EXPECT_EQ(dot({1, 0}, {1, 0}, 0x1p24f), 0x1p24f);
  // A product is not rounded before it is added.
  EXPECT_EQ(dot({0x1p100f, 0, -0x1p100f, 0}, {0x1p27f, 0, 0x1p28f, 0}, 0), -0x1p127f);
}

TEST(EmulatedTiles, TakeSubnormalNumbersForZeros) {
  const float least = std::numeric_limits<float>::min();
  EXPECT_EQ(dot({least / 2, 0}, {0x1p30f, 0}, 0), 0.0f);                                  // an operand
  EXPECT_EQ(dot({least, 0}, {0.5f, 0}, 0), 0.0f);                                         // a sum of products
  EXPECT_EQ(dot({least, 0}, {1.5f, 0}, -least), 0.0f);                                    // the result
  EXPECT_TRUE(std::signbit(dot(std::vector(32, -least), std::vector(32, 0.5f), -0.0f)));  // keeps its sign
  EXPECT_EQ(dot({0, 0}, {0, 0}, least / 2), 0.0f);                                        // the sum before
  EXPECT_EQ(dot({0x1p-70f, 0, 0x1p-70f, 0}, {0x1p-70f, 0, 0x1p70f, 0}, 0), 1.0f);
}

TEST(EmulatedTiles, KeepNaNAndInfinity) {
  EXPECT_TRUE(std::isnan(dot({0, 1}, {INFINITY, 1}, 0)));
  EXPECT_EQ(dot({1, 1}, {INFINITY, 1}, 0), INFINITY);
  EXPECT_TRUE(std::isnan(dot({1, 1}, {INFINITY, 1}, -INFINITY)));
}

[[maybe_unused]] bits random_words(std::size_t count, unsigned seed, bool as_bf16) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  bits x(count);
  for (std::uint32_t& w : x) {
    const float scale = std::ldexp(1.0f, static_cast<int>(random() % 40) - 20);
    w = as_bf16 ? pair_of(scale * normal(random), normal(random)) : static_cast<std::uint32_t>(random());
    if (as_bf16 && random() % 64 == 0) w &= 0xffff807fu;  // a subnormal number
  }
  return x;
}

TEST(TileRegisters, OfTheCpuComputeWhatTheEmulationDoes) {
#if TIGON_FLAGS_amx
  if (!simd::tile_registers_missing().empty()) GTEST_SKIP() << simd::tile_registers_missing();
  for (unsigned seed = 0; seed < 200; ++seed) {
    const bits a = random_words(512, seed, true), b = random_words(512, seed + 1000, true);
    bits sums(1024);
    for (std::size_t i = 0; i < sums.size(); ++i)
      sums[i] = bits_of_f32(std::ldexp(static_cast<float>(random_words(1, seed + 1, false)[0] % 97), -int(i % 60)));
    ASSERT_EQ((product_of<simd::tile_registers, false>(a, b, sums)), (product_of<emulated_tiles, false>(a, b, sums)));
    const bits x = random_words(512, seed + 2000, false), y = random_words(512, seed + 3000, false);
    ASSERT_EQ((product_of<simd::tile_registers, true>(x, y, sums)), (product_of<emulated_tiles, true>(x, y, sums)));
  }
#else
  GTEST_SKIP() << "the flags of this build promise no tile registers";
#endif
}

TEST(TileRegisters, AreMissingWhereTheCpuHasNone) {
  std::ifstream file("/proc/cpuinfo");
  const std::string cpu{std::istreambuf_iterator<char>(file), {}};
  if (cpu.empty()) GTEST_SKIP() << "no /proc/cpuinfo";
  const bool has = cpu.find(" amx_tile") != cpu.npos && cpu.find(" amx_bf16") != cpu.npos;
  const std::string_view missing = simd::tile_registers_missing();
  if (has)
    EXPECT_TRUE(missing.empty()) << missing;
  else
    EXPECT_TRUE(missing.starts_with("this CPU has none (cpuid, leaf 7")) << missing;
  EXPECT_EQ(simd::tile_registers_missing().data(), missing.data()) << "asked once";
}

/// The promise of gemm that nothing was written, also where the system is what does not fit.
TEST(TileRegisters, AreMissedInASentenceBeforeTheFirstWrite) {
  using B = backends::refused;
  guarded_matrix<bfloat16> a(3, 5), b(5, 4), c(3, 4);
  a.assign(std::vector<double>(15, 1)), b.assign(std::vector<double>(20, 2));
  EXPECT_TIGON_ERROR(gemm<B>(a.view(), b.view(), c.view()), state,
                     "gemm: backend amx needs tile registers, and Linux refuses them; expected a CPU and a system", c);
  guarded_matrix<float> wide(3, 4);
  guarded_matrix<float> af(3, 5);
  af.assign(std::vector<double>(15, 1));
  gemm<B>(af.view(), b.view(), wide.view());  // by other registers
  EXPECT_EQ(wide(2, 3), 10.0f);
  guarded_matrix<std::int8_t> x(2, 8);
  guarded_matrix<std::uint8_t> w(2, 3);
  guarded_matrix<std::int32_t> y(2, 3);
  EXPECT_TIGON_ERROR(matmul_int8_int2<B>(x.view(), w.view(), y.view()), state,
                     "matmul_int8_int2: backend amx needs tile registers, and Linux refuses them", y);
}

/// An epilogue may multiply, too: the registers are free by then.
TEST(TileRegisters, AreFreeInAnEpilogue) {
  using B = backends::emulated_amx;
  guarded_matrix<bfloat16> a(40, 70), b(70, 50);
  a.assign(std::vector<double>(40 * 70, 1)), b.assign(std::vector<double>(70 * 50, 2));
  guarded_matrix<float> c(40, 50), inner(40, 50);
  const auto epilogue = [&](matrix_view<float>, std::size_t, std::size_t, std::size_t) {
    workspace own;
    context ctx(serial(), own);
    gemm<B>(a.view(), b.view(), inner.view(), {}, ctx);
  };
  gemm<B>(a.view(), b.view(), c.view(), absent, epilogue);
  EXPECT_EQ(c(39, 49), 140.0f);
  EXPECT_EQ(inner(39, 49), 140.0f);
}

/// Element (i, p) of what is packed, i a row of a or a column of b.
template <bool OfA>
void packs_every_word(std::size_t rows, std::size_t depth, bool along) {
  using P = packed::tile_lanes<backends::emulated_amx, emulated_tiles>;
  guarded_matrix<bfloat16> m(along ? rows : depth, along ? depth : rows, 3);
  const auto value = [&](std::size_t i, std::size_t p) {
    return i < rows && p < depth ? static_cast<std::uint16_t>(1 + i * 211 + p) : std::uint16_t{0};
  };
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t p = 0; p < depth; ++p) (along ? m(i, p) : m(p, i)).bits = value(i, p);
  const std::size_t panels = (rows + 31) / 32, length = (depth + 31) / 32;
  std::vector<P::word> to(panels * 32 * length);
  P::pack<OfA>(packed::source<bfloat16>{m.view().data, m.view().row_stride, along}, 0, rows, 0, depth, to.data());
  for (std::size_t panel = 0; panel < panels; ++panel)
    for (std::size_t q = 0; q < length; ++q)
      for (std::size_t half = 0; half < 2; ++half)
        for (std::size_t y = 0; y < 16; ++y)
          for (std::size_t x = 0; x < 16; ++x) {
            const std::size_t i = panel * 32 + half * 16 + (OfA ? y : x), p = q * 32 + 2 * (OfA ? x : y);
            const std::uint32_t want = value(i, p) | static_cast<std::uint32_t>(value(i, p + 1)) << 16;
            ASSERT_EQ(to[panel * 32 * length + q * 32 + half * 16 + y].pairs[x], want)
                << (OfA ? "a " : "b ") << i << ", " << p << " of " << rows << " x " << depth << (along ? " along" : "");
          }
}

TEST(TilePanels, HoldEveryElementWhereTheTilesExpectIt) {
  for (const std::size_t rows : {1u, 15u, 16u, 17u, 31u, 32u, 33u, 70u})
    for (const std::size_t depth : {1u, 2u, 31u, 32u, 33u, 63u, 100u})
      for (const bool along : {false, true}) {
        packs_every_word<true>(rows, depth, along);
        packs_every_word<false>(rows, depth, along);
      }
}

}  // namespace
}  // namespace tigon::test
