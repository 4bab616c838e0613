// Products by tile registers: the emulation that other tests multiply with, the CPU's registers against it where there
// are some, panels word by word, and what is said where there are none. What the products promise:
// tests/gemm/gemm_test.cpp, tests/ops/matmul_int8_int2_test.cpp.
// Operators: gemm matmul_int8_int2
#include <tigon/gemm/gemm.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "../support/backends.hpp"
#include "../support/emulated_tiles.hpp"
#include "../support/guarded.hpp"
#include "../support/threads.hpp"
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
#if defined(__x86_64__)
  const std::string_view none = "this CPU has none (cpuid, leaf 7";
#else
  const std::string_view none = "they are known on Linux for x86-64 alone";
#endif
  EXPECT_TRUE(has ? missing.empty() : missing.starts_with(none)) << missing;
  EXPECT_EQ(simd::tile_registers_missing().data(), missing.data()) << "asked once";
}

/// The promise of gemm that nothing was written, also where the system is what does not fit.
TEST(TileRegisters, AreMissedInASentenceBeforeTheFirstWrite) {
  using B = backends::refused;
  guarded_matrix<bfloat16> a(3, 5), b(5, 4), c(3, 4);
  a.assign(std::vector<double>(15, 1)), b.assign(std::vector<double>(20, 2));
  EXPECT_TIGON_ERROR(gemm<B>(a.view(), b.view(), c.view()), state,
                     "gemm: backend amx needs tile registers, and Linux refuses them; expected a CPU and a system", c);
  guarded_matrix<float> wide(3, 4), af(3, 5), bf(5, 4);
  af.assign(std::vector<double>(15, 1)), bf.assign(std::vector<double>(20, 2));
  EXPECT_TIGON_ERROR(gemm<B>(af.view(), b.view(), wide.view()), state, "gemm: backend amx needs tile registers", wide);
  gemm<B>(a.view(), bf.view(), wide.view());  // by other registers
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

/// The same of a in f32: the three words of an element, smallest parts first, add up to it.
void packs_every_part(std::size_t rows, std::size_t depth, bool along) {
  using P = packed::tile_lanes<backends::emulated_amx, emulated_tiles, 3>;
  guarded_matrix<float> m(along ? rows : depth, along ? depth : rows, 3);
  const auto value = [&](std::size_t i, std::size_t p) {
    return i < rows && p < depth ? 1.0f + 0x1p-23f * static_cast<float>(1 + (i * 211 + p) * 65537 % 8388607) : 0.0f;
  };
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t p = 0; p < depth; ++p) (along ? m(i, p) : m(p, i)) = value(i, p);
  const std::size_t panels = (rows + 31) / 32, length = (depth + 31) / 32;
  std::vector<P::word> to(panels * 32 * length * 3);
  P::pack<true>(packed::source<float>{m.view().data, m.view().row_stride, along}, 0, rows, 0, depth, to.data());
  for (std::size_t panel = 0; panel < panels; ++panel)
    for (std::size_t q = 0; q < length; ++q)
      for (std::size_t y = 0; y < 32; ++y)
        for (std::size_t x = 0; x < 32; ++x) {
          const std::size_t i = panel * 32 + y, p = q * 32 + x;
          float part[3];
          for (std::size_t k = 0; k < 3; ++k) {
            const std::uint32_t pair = to[(panel * length + q) * 96 + k * 32 + y].pairs[x / 2];
            part[k] = std::bit_cast<float>(x % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
          }
          ASSERT_EQ(part[0] + part[1] + part[2], value(i, p)) << i << ", " << p << (along ? " along" : "");
          ASSERT_TRUE(part[0] <= part[1] && part[1] <= part[2]) << i << ", " << p;
        }
}

TEST(TilePanels, HoldThreePartsOfEveryElementInF32) {
  for (const std::size_t rows : {1u, 15u, 16u, 33u, 70u})
    for (const std::size_t depth : {1u, 2u, 15u, 17u, 32u, 33u, 100u})
      for (const bool along : {false, true}) packs_every_part(rows, depth, along);
}

/// The three parts of x, each with its lower half to see that it is zero.
std::array<std::uint32_t, 3> parts_of(std::uint32_t x) {
  packed::word_line rest = {};
  rest[5] = x;
  const packed::word_line first = packed::take_part(rest), second = packed::take_part(rest);
  return {first[5], second[5], rest[5]};
}

TEST(Bf16Parts, AddUpToTheNumberExactly) {
  std::mt19937 random(1);
  std::vector<std::uint32_t> numbers{bits_of_f32(1),      bits_of_f32(-1),       bits_of_f32(0x1.000002p0f),
                                     bits_of_f32(-1e30f), bits_of_f32(0x1p-98f), bits_of_f32(0x1.fffffep127f),
                                     0x3f800100u,         0x3f808000u,           0x3fffffffu};
  for (int i = 0; i < 100000; ++i) {  // of any exponent from 2^-98 on, some with few digits
    const std::uint32_t bits = random() & 0x80ffffffu & ~0u << random() % 24;
    numbers.push_back((bits & 0x807fffffu) | (29 + static_cast<std::uint32_t>(random() % 226)) << 23);
  }
  for (const std::uint32_t bits : numbers) {
    const auto parts = parts_of(bits);
    double sum = 0, size = 0;
    for (const std::uint32_t part : parts) {
      const double value = std::bit_cast<float>(part);
      ASSERT_EQ(part & 0xffffu, 0u) << std::hex << bits;
      ASSERT_NE(value, 0) << std::hex << bits;
      sum += value, size += std::abs(value);
    }
    ASSERT_EQ(sum, std::bit_cast<float>(bits)) << std::hex << bits;
    ASSERT_EQ(size, std::abs(sum)) << std::hex << bits;
  }
}

TEST(Bf16Parts, KeepZeroInfinityAndNaN) {
  for (const std::uint32_t same : {0u, 0x80000000u, 0x7f800000u, 0xff800000u})
    for (const std::uint32_t part : parts_of(same)) EXPECT_EQ(part, same);
  for (const std::uint32_t nan : {0x7fc00000u, 0x7f800001u, 0xff80ffffu, 0x7fffffffu, 0x7f810000u}) {
    bool any = false;
    for (const std::uint32_t part : parts_of(nan)) any = any || std::isnan(std::bit_cast<float>(part & 0xffff0000u));
    EXPECT_TRUE(any) << std::hex << nan;
  }
  for (const std::uint32_t small : {1u, 0x80000001u, 0x007fffffu, 0x00800000u, 0x00ffffffu, 0x8123ffffu, 0x01ffffffu}) {
    float sum = 0;  // of parts that are read: no subnormal numbers
    for (const std::uint32_t part : parts_of(small))
      if ((part & 0x7f800000u) != 0) sum += std::bit_cast<float>(part & 0xffff0000u);
    EXPECT_LE(std::abs(sum - std::bit_cast<float>(small)), 0x1p-125f) << std::hex << small;
  }
}

// ---- Products of an f32 matrix with a bf16 matrix: the promises of gemm_options, as in tests/gemm/gemm_test.cpp.

/// Small tuning: several chunks and shared parts, carried sums, totals. Blocks are 128 deep.
struct cramped_f32 : backends::emulated_amx {
  using parent = backends::emulated_amx;
  static constexpr backend_info info{"cramped_f32", {device::cpu}};
  using overrides = op_list<>;
  static constexpr tile_tuning tile_product_f32{.product = {.depth = 1,
                                                            .rows_per_task = 32,
                                                            .cols_per_task = 64,
                                                            .segment = 64,
                                                            .shared_rows = 64,
                                                            .shared_cols = 64,
                                                            .shared_bytes = 65536,
                                                            .carry_bytes = 32768}};
};
/// The same with room for both operands: all workers pack both, several chunks of depth.
struct roomy_f32 : cramped_f32 {
  using parent = cramped_f32;
  static constexpr backend_info info{"roomy_f32", {device::cpu}};
  using overrides = op_list<>;
  static constexpr tile_tuning tile_product_f32{.product = {.depth = 4,
                                                            .rows_per_task = 32,
                                                            .cols_per_task = 32,
                                                            .segment = 64,
                                                            .shared_rows = 128,
                                                            .shared_cols = 128,
                                                            .shared_bytes = 1048576,
                                                            .carry_bytes = 65536},
                                                .steps_ahead = 0};
};

template <class TA, class TB>
struct operands {
  operands(std::size_t m, std::size_t n, std::size_t k, transpose ta, transpose tb)
      : opt{.a = ta, .b = tb},
        a(ta == transpose::no ? m : k, ta == transpose::no ? k : m, 3),
        b(tb == transpose::no ? k : n, tb == transpose::no ? n : k, 1),
        depth(k) {
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    std::vector<double> left(m * k), right(k * n);
    for (double& x : left) x = normal(random);
    for (double& x : right) x = normal(random);
    a.assign(left), b.assign(right);
  }
  double at_a(std::size_t i, std::size_t p) const { return to_f64(opt.a == transpose::no ? a(i, p) : a(p, i)); }
  double at_b(std::size_t p, std::size_t j) const { return to_f64(opt.b == transpose::no ? b(p, j) : b(j, p)); }

  /// Whether c is alpha a b + beta before, as exactly as the contract says.
  template <class TC>
  TIGON_TEST_NOINLINE testing::AssertionResult made(const guarded_matrix<TC>& c, const std::vector<double>& before) {
    const double half = std::same_as<TC, float> ? 0 : 0x1p-8;
    for (std::size_t i = 0; i < c.rows(); ++i)
      for (std::size_t j = 0; j < c.cols(); ++j) {
        double sum = opt.beta == 0 ? 0 : opt.beta * before[i * c.cols() + j], size = std::abs(sum);
        for (std::size_t p = 0; p < depth; ++p) {
          const double term = opt.alpha * at_a(i, p) * at_b(p, j);
          sum += term, size += std::abs(term);
        }
        const double bound = 0x1p-24 * (4 + std::sqrt(static_cast<double>(depth))) * size + half * std::abs(sum);
        if (!(std::abs(to_f64(c(i, j)) - sum) <= bound))
          return testing::AssertionFailure()
                 << "c(" << i << ", " << j << ") is " << to_f64(c(i, j)) << ", not " << sum
                 << "; error in units of 2^-24 " << std::abs(to_f64(c(i, j)) - sum) / size * 0x1p24;
      }
    if (!c.padding_intact()) return testing::AssertionFailure() << "padding was written";
    return testing::AssertionSuccess();
  }

  gemm_options opt;
  guarded_matrix<TA> a;
  guarded_matrix<TB> b;
  std::size_t depth;
};

struct extents {
  std::size_t m, n, k;
};
constexpr extents product_sizes[] = {{1, 1, 1},      {17, 33, 31},   {33, 17, 32},  {70, 100, 0},
                                     {50, 200, 131}, {200, 50, 700}, {48, 48, 1603}};

template <class B, class TC>
void keeps_its_error_and_its_bits() {
  for (const extents e : product_sizes)
    for (const transpose ta : {transpose::no, transpose::yes})
      for (const transpose tb : {transpose::no, transpose::yes}) {
        SCOPED_TRACE(testing::Message() << e.m << " x " << e.n << " x " << e.k << (ta == transpose::yes ? " a^T" : "")
                                        << (tb == transpose::yes ? " b^T" : ""));
        operands<float, bfloat16> x(e.m, e.n, e.k, ta, tb);
        if (e.k % 2 == 0) x.opt.alpha = 0.5, x.opt.beta = 1;
        guarded_matrix<TC> c(e.m, e.n, 5);
        std::vector<double> before(e.m * e.n, 0.75);
        const auto run = [&](auto b, context& ctx) {
          if (x.opt.beta == 0)
            c.clear();
          else
            c.assign(before);
          gemm<B>(x.a.view(), b, c.view(), x.opt, ctx);
          return bits_of(c);
        };
        const auto plain = run(x.b.view(), default_context());
        ASSERT_TRUE(x.made(c, before));
        if (ta != tb) continue;
        EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) { return run(x.b.view(), ctx); }));
        const std::size_t bytes = gemm_pack_bytes<B, float, bfloat16>(e.k, e.n);
        workspace memory;
        memory.expect("test", bytes);
        workspace::frame frame(memory);
        const auto packed = gemm_pack<B, float>(x.b.view(), {frame.template take<std::byte>(bytes), bytes}, tb);
        EXPECT_TRUE(run(packed, default_context()) == plain);
        EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) { return run(packed, ctx); }));
      }
}

TEST(F32TimesBf16, KeepsItsErrorAndItsBits) { keeps_its_error_and_its_bits<backends::emulated_amx, float>(); }
TEST(F32TimesBf16, KeepsThemInSmallParts) { keeps_its_error_and_its_bits<cramped_f32, float>(); }
TEST(F32TimesBf16, KeepsThemInSmallPartsOfBf16) { keeps_its_error_and_its_bits<cramped_f32, bfloat16>(); }
TEST(F32TimesBf16, KeepsThemWhereAllWorkersPackBoth) { keeps_its_error_and_its_bits<roomy_f32, float>(); }

/// Every sum of terms that are all alike, of 1024 pairs of numbers.
TEST(F32TimesBf16, KeepsItsErrorOverEqualTerms) {
  using B = backends::emulated_amx;
  std::mt19937 random(3);
  const auto digits = [&] { return static_cast<float>(0x800000u | random() % 0x800000u); };
  for (const std::size_t k : {1u, 2u, 3u, 31u, 33u, 100u, 256u, 1024u, 1535u, 1537u, 2100u, 9000u, 1u << 17}) {
    std::vector<float> a(32 * k), c(32 * 32);
    std::vector<bfloat16> b(k * 32);
    for (std::size_t i = 0; i < 32; ++i) std::fill_n(a.begin() + static_cast<std::ptrdiff_t>(i * k), k, digits());
    for (std::size_t j = 0; j < 32; ++j) b[j] = bfloat16(digits());
    for (std::size_t i = 32; i < b.size(); ++i) b[i] = b[i - 32];
    gemm<B>(matrix_view<const float>(a.data(), 32, k), matrix_view<const bfloat16>(b.data(), k, 32),
            matrix_view<float>(c.data(), 32, 32));
    for (std::size_t i = 0; i < 32; ++i)
      for (std::size_t j = 0; j < 32; ++j) {
        const double want = static_cast<double>(k) * to_f64(a[i * k]) * to_f64(b[j]);
        ASSERT_LE(std::abs(to_f64(c[i * 32 + j]) / want - 1), 0x1p-24 * (4 + std::sqrt(static_cast<double>(k)))) << k;
      }
  }
}

/// All 24 digits come through, whatever the sign and wherever in the depth the number stands.
TEST(F32TimesBf16, GivesANumberBack) {
  using B = backends::emulated_amx;
  std::mt19937 random(5);
  constexpr std::size_t k = 300;
  for (const float scale : {1.0f, -1.0f, 0x1p60f, 0x1p-60f}) {
    guarded_matrix<float> a(40, k), c(40, 3);
    guarded_matrix<bfloat16> b(k, 3);
    b.assign(std::vector<double>(k * 3, 0.25));
    a.assign(std::vector<double>(40 * k, 0));
    std::vector<float> numbers(40);
    for (std::size_t i = 0; i < 40; ++i) {
      numbers[i] = scale * static_cast<float>(0x800001u | random() % 0x800000u);
      a(i, random() % k) = numbers[i];
    }
    gemm<B>(a.view(), b.view(), c.view());
    for (std::size_t i = 0; i < 40; ++i) ASSERT_EQ(c(i, 2), numbers[i] * 0.25f);
  }
}

TEST(F32TimesBf16, KeepsInfinityAndNaN) {
  using B = backends::emulated_amx;
  const float inf = INFINITY, low_nan = std::bit_cast<float>(0x7f800001u);
  const float first[] = {inf, -inf, low_nan, 1, 0.1f, 0, 3e38f, inf};
  guarded_matrix<float> a(8, 40), c(8, 3);
  guarded_matrix<bfloat16> b(40, 3);
  a.assign(std::vector<double>(8 * 40, 1)), b.assign(std::vector<double>(40 * 3, 1));
  for (std::size_t i = 0; i < 8; ++i) a(i, 1) = first[i];
  b(1, 0) = bfloat16(2.0f), b(1, 1) = bfloat16(inf), b(1, 2) = bfloat16(0.0f);
  gemm<B>(a.view(), b.view(), c.view());
  for (std::size_t i = 0; i < 8; ++i)
    for (std::size_t j = 0; j < 3; ++j) {
      const float want = first[i] * static_cast<float>(to_f64(b(1, j))) + 39;
      if (std::isnan(want))
        EXPECT_TRUE(std::isnan(c(i, j))) << i << ", " << j << ": " << c(i, j);
      else
        EXPECT_EQ(std::isinf(want) ? c(i, j) : want, want) << i << ", " << j;
    }
}

TEST(F32TimesBf16, StaysWithinTheWorkspaceItStates) {
  for (const extents e : {extents{65, 300, 1100}, {300, 65, 1100}, {3, 5, 7}}) {
    const operands<float, bfloat16> x(e.m, e.n, e.k, transpose::yes, transpose::no);
    guarded_matrix<float> c(e.m, e.n);
    const std::size_t bytes = gemm_workspace<cramped_f32, float, bfloat16, float>(e.m, e.n, e.k);
    workspace memory;
    memory.expect("test", bytes);
    workspace::frame frame(memory);
    workspace exact(std::span(frame.take<std::byte>(bytes), bytes));
    context ctx(serial(), exact);
    gemm<cramped_f32>(x.a.view(), x.b.view(), c.view(), x.opt, ctx);
    EXPECT_EQ(exact.high_water(), bytes);
  }
}

/// Blocks of depth differ, so what is packed for one is not for the other.
TEST(F32TimesBf16, HasALayoutOfItsOwn) {
  using B = backends::emulated_amx;
  const operands<float, bfloat16> x(3, 5, 7, transpose::no, transpose::no);
  alignas(64) std::byte memory[1 << 13];
  guarded_matrix<float> c(3, 5);
  const auto other = gemm_pack<B, bfloat16>(x.b.view(), memory);
  EXPECT_TIGON_ERROR(gemm<B>(x.a.view(), other, c.view()), state, "b is packed as \"tiles of bf16 pairs\"", c);
}

}  // namespace
}  // namespace tigon::test
