// The contract of include/tigon/ops/matmul_int8_int2.hpp, promise by promise: exact, against sums in 64 bits.
#include <gtest/gtest.h>

#include <tigon/ops/matmul_int8_int2.hpp>

#include <array>
#include <cstdint>
#include <random>

#include "support/backends.hpp"
#if !defined(TIGON_CONFORMANCE_BACKEND)
#include "support/emulated_tiles.hpp"
#endif
#include "support/guarded.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

namespace {

using namespace tigon::test;
using tigon::context;

struct sizes {
  std::size_t m, n, k;
  std::size_t padding = 0;
  std::size_t packed_rows() const { return (k + 3) / 4; }
  friend std::ostream& operator<<(std::ostream& out, const sizes& s) {
    return out << s.m << " x " << s.n << " x " << s.k << ", padding " << s.padding;
  }
};

/// The values of a: any, or only the ends of their range.
enum class values { any, extreme };

/// Every buffer at a guard page, outputs full of canaries. Columns of a beyond k hold any number.
struct problem {
  sizes s;
  guarded_matrix<std::int8_t> a, w, again;
  guarded_matrix<std::uint8_t> packed;
  guarded_matrix<std::int32_t> c;

  TIGON_TEST_NOINLINE explicit problem(sizes of, values kind = values::any, guard side = guard::behind)
      : s(of),
        a(s.m, 4 * s.packed_rows(), s.padding, side),
        w(s.k, s.n, s.padding, side),
        again(s.k, s.n, s.padding, side),
        packed(s.packed_rows(), s.n, s.padding, side),
        c(s.m, s.n, s.padding, side) {
    std::mt19937 random(static_cast<unsigned>(s.m * 8191 + s.n * 31 + s.k));
    const auto draw = [&](int low, int high) { return low + static_cast<int>(random() % unsigned(high - low + 1)); };
    for (std::size_t i = 0; i < a.rows(); ++i)
      for (std::size_t p = 0; p < a.cols(); ++p)
        a(i, p) = static_cast<std::int8_t>(kind == values::any ? draw(-128, 127) : draw(0, 1) * 255 - 128);
    for (std::size_t p = 0; p < s.k; ++p)
      for (std::size_t j = 0; j < s.n; ++j)
        w(p, j) = static_cast<std::int8_t>(kind == values::any ? draw(-1, 2) : draw(0, 1) * 3 - 1);
  }

  template <class B>
  TIGON_TEST_NOINLINE void pack(context& ctx = tigon::default_context()) {
    tigon::matmul_int8_int2_pack<B>(w, packed.view(), ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void unpack(context& ctx = tigon::default_context()) {
    tigon::matmul_int8_int2_unpack<B>(packed, again.view(), ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void multiply(context& ctx = tigon::default_context()) {
    tigon::matmul_int8_int2<B>(a, packed, c.view(), ctx);
  }

  TIGON_TEST_NOINLINE testing::AssertionResult is_packed() const {
    for (std::size_t r = 0; r < s.packed_rows(); ++r)
      for (std::size_t j = 0; j < s.n; ++j) {
        int want = 0;
        for (std::size_t part = 4; part-- > 0;) {
          const std::size_t p = part * s.packed_rows() + r;
          want = 4 * want + (p < s.k ? w(p, j) : 0) + 1;
        }
        if (packed(r, j) != want)
          return testing::AssertionFailure() << int{packed(r, j)} << " at " << r << ", " << j << "; should be " << want;
      }
    if (!packed.padding_intact()) return testing::AssertionFailure() << "padding was written";
    return testing::AssertionSuccess();
  }
  TIGON_TEST_NOINLINE testing::AssertionResult is_product() const {
    std::vector<std::int64_t> sums(s.n);
    for (std::size_t i = 0; i < s.m; ++i) {
      std::fill(sums.begin(), sums.end(), 0);
      for (std::size_t p = 0; p < s.k; ++p)
        for (std::size_t j = 0; j < s.n; ++j) sums[j] += std::int64_t{a(i, p)} * w(p, j);
      for (std::size_t j = 0; j < s.n; ++j)
        if (c(i, j) != sums[j])
          return testing::AssertionFailure() << c(i, j) << " at " << i << ", " << j << "; should be " << sums[j];
    }
    if (!c.padding_intact()) return testing::AssertionFailure() << "padding was written";
    return testing::AssertionSuccess();
  }
};

/// Around the tiles of rows and columns, around depths that are multiples of 4, of 64 and of a block, several tasks.
std::vector<sizes> every_size() {
  std::vector<sizes> all;
  for (const std::size_t m : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 9u, 12u, 17u})
    for (const std::size_t n : {1u, 3u, 4u, 8u, 15u, 16u, 17u, 32u, 47u, 48u, 49u, 100u})
      for (const std::size_t k : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 60u, 64u, 67u, 260u})
        all.push_back({m, n, k, (m + n) % 3});
  for (const sizes& s : {sizes{1, 1700, 1030, 5}, {8, 100, 2052}, {130, 50, 516, 1}, {137, 901, 40}, {300, 17, 1025}})
    all.push_back(s);
  return all;
}

template <class On>
class matmul_int8_int2 : public testing::Test {};
#if defined(TIGON_CONFORMANCE_BACKEND)
using pairs = pairs_of<float>;
#else
using pairs = testing::Types<on<tigon::backends::generic, float>, on<usual_backend, float>,
#if TIGON_FLAGS_amx
                             on<tigon::backends::amx, float>,
#endif
                             on<tigon::backends::emulated_amx, float> >;
#endif
TYPED_TEST_SUITE(matmul_int8_int2, pairs, names);

TYPED_TEST(matmul_int8_int2, is_exact_and_keeps_the_padding) {
  using B = typename TypeParam::backend;
  for (const sizes& s : every_size()) {
    SCOPED_TRACE(testing::Message() << s);
    problem p(s, s.m % 2 == 0 ? values::extreme : values::any, s.n % 2 == 0 ? guard::before : guard::behind);
    p.template pack<B>();
    ASSERT_TRUE(p.is_packed());
    p.template multiply<B>();
    ASSERT_TRUE(p.is_product());
  }
}

TYPED_TEST(matmul_int8_int2, unpacks_what_was_packed) {
  using B = typename TypeParam::backend;
  for (const std::size_t n : {1u, 3u, 63u, 64u, 65u, 200u})
    for (const std::size_t k : {1u, 4u, 5u, 6u, 7u, 8u, 9u, 41u}) {
      problem p({1, n, k, 3});
      p.template pack<B>();
      p.template unpack<B>();
      EXPECT_TRUE(bits_of(p.again) == bits_of(p.w)) << n << " x " << k;
      // All rows that there are: those beyond k are 0.
      guarded_matrix<std::int8_t> all(4 * p.packed.rows(), n, 2);
      tigon::matmul_int8_int2_unpack<B>(p.packed, all.view());
      for (std::size_t i = 0; i < all.rows(); ++i)
        for (std::size_t j = 0; j < n; ++j) ASSERT_EQ(all(i, j), i < k ? p.w(i, j) : 0) << i << ", " << j;
      EXPECT_TRUE(all.padding_intact());
    }
}

TYPED_TEST(matmul_int8_int2, packs_the_published_example) {
  using B = typename TypeParam::backend;
  guarded_matrix<std::int8_t> w(4, 2);
  w.assign({-1, 0, 0, 1, 1, 2, 2, -1});
  guarded_matrix<std::uint8_t> packed(1, 2);
  tigon::matmul_int8_int2_pack<B>(w, packed.view());
  EXPECT_EQ(packed.f64(), (std::vector<double>{228, 57}));
}

TYPED_TEST(matmul_int8_int2, leaves_its_inputs_alone) {
  using B = typename TypeParam::backend;
  problem p({9, 50, 30, 1});
  const auto a = bits_of(p.a), w = bits_of(p.w);
  p.template pack<B>();
  const auto packed = bits_of(p.packed);
  p.template multiply<B>();
  p.template unpack<B>();
  EXPECT_TRUE(bits_of(p.a) == a && bits_of(p.w) == w && bits_of(p.packed) == packed);
}

TYPED_TEST(matmul_int8_int2, of_nothing_is_nothing) {
  using B = typename TypeParam::backend;
  for (const sizes& s : {sizes{0, 5, 8}, sizes{5, 0, 8}, sizes{9, 50, 0, 2}}) {
    problem p(s);
    p.template pack<B>();
    p.template multiply<B>();
    p.template unpack<B>();
    EXPECT_TRUE(p.is_product()) << s;
  }
}

TYPED_TEST(matmul_int8_int2, sums_of_the_most_terms_stay_in_32_bits) {
  using B = typename TypeParam::backend;
  // So many rows that a sum is one chain.
  constexpr std::size_t q = (std::size_t{1} << 21) - 1, rows = 8;
  std::vector<std::int8_t> a(rows * 4 * q, -128);
  std::vector<std::uint8_t> packed(q, 0xff);  // weights of 2
  std::array<std::int32_t, rows> c{};
  tigon::matmul_int8_int2<B>({a.data(), rows, 4 * q}, {packed.data(), q, 1}, {c.data(), rows, 1});
  for (const std::int32_t sum : c) EXPECT_EQ(sum, -256 * static_cast<std::int64_t>(4 * q));
}

TYPED_TEST(matmul_int8_int2, is_the_same_for_any_threads) {
  using B = typename TypeParam::backend;
  for (const sizes& s : {sizes{3, 700, 300}, {150, 200, 520, 1}}) {
    problem p(s);
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      p.packed.clear(), p.c.clear(), p.again.clear();
      p.template pack<B>(ctx);
      p.template multiply<B>(ctx);
      p.template unpack<B>(ctx);
      return bits_of(p.packed, p.c, p.again);
    }));
    EXPECT_TRUE(p.is_product());
  }
}

/// 1100 columns of depth in 600 rows are more than is packed at a time only in a longer product.
TYPED_TEST(matmul_int8_int2, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  for (const sizes& s : {sizes{5, 33, 100}, {200, 100, 1100}, {40, 3, 600'000}}) {
    problem p(s);
    p.template pack<B>();
    const std::size_t bytes = tigon::matmul_int8_int2_workspace<B>(s.m, s.n, s.packed_rows(), 3);
    const auto runs = [&](std::size_t with) {
      with_workspace_of(
          with, [&](context& ctx) { p.template multiply<B>(ctx); }, 3);
    };
    EXPECT_TIGON_ERROR(runs(bytes - 1), workspace, "matmul_int8_int2: workspace is of", p.c);
    runs(bytes);
    EXPECT_TRUE(p.is_product()) << s;
  }
}

/// Lanes of other widths, each with the instructions that the flags have for it.
template <std::size_t N>
void multiplies_in_lanes() {
  for (const sizes& s : {sizes{1, 2 * N, 260}, {7, 5 * N + 1, 64}, {17, 100, 67}, {130, 3 * N, 1024}}) {
    problem p(s, s.m == 7 ? values::extreme : values::any);
    p.pack<usual_backend>();
    const tigon::int2::plan<N> plan(s.m, s.n, s.packed_rows());
    with_workspace_of(plan.workspace_bytes(1), [&](context& ctx) {
      tigon::int2::product<N>(plan, p.a.view(), p.packed.view(), p.c.view()).template run<usual_backend>(ctx);
    });
    EXPECT_TRUE(p.is_product()) << N << " lanes, " << s;
  }
}

TEST(matmul_int8_int2_lanes, of_any_width_are_exact) {
  multiplies_in_lanes<4>();
  multiplies_in_lanes<8>();
}

/// The doors, which are the same for every backend: refused before the first write.
TEST(matmul_int8_int2_doors, refuse_what_does_not_fit) {
  using B = tigon::default_backend;
  using tigon::matmul_int8_int2, tigon::matmul_int8_int2_pack, tigon::matmul_int8_int2_unpack;
  problem p({3, 10, 8, 2});
  p.pack<B>();
  const auto a = p.a.view();
  const auto packed = p.packed.view();
  const auto c = p.c.view();
  // A depth that is no multiple of 4.
  EXPECT_TIGON_ERROR(matmul_int8_int2<B>(a.cols_from(0, 7), packed, c), shape,
                     "matmul_int8_int2: a is 3 x 7; expected 3 x 8", p.c);
  EXPECT_TIGON_ERROR(matmul_int8_int2<B>(a.rows_from(0, 2), packed, c), shape, "a is 2 x 8; expected 3 x 8", p.c);
  EXPECT_TIGON_ERROR(matmul_int8_int2<B>(a, packed.cols_from(0, 9), c), shape, "c is 3 x 10; expected 3 x 9", p.c);
  EXPECT_TIGON_ERROR(matmul_int8_int2<B>({a.data, 3, 8, 7}, packed, c), stride, "a is of row stride 7", p.c);
  EXPECT_TIGON_ERROR(matmul_int8_int2<B>({nullptr, 3, 8}, packed, c), shape, "a is a null pointer", p.c);
  EXPECT_TIGON_ERROR(matmul_int8_int2<B>({reinterpret_cast<std::int8_t*>(c.data), 3, 8}, packed, c), alias,
                     "c overlaps a", p.c);
  EXPECT_TIGON_ERROR(matmul_int8_int2<B>(a, {reinterpret_cast<std::uint8_t*>(c.data), 2, 10}, c), alias,
                     "c overlaps packed", p.c);
  // 2^23 terms, of which nothing is read.
  constexpr std::size_t rows = std::size_t{1} << 21;
  EXPECT_TIGON_ERROR(matmul_int8_int2<B>({a.data, 3, 4 * rows}, {packed.data, rows, 10}, c), shape,
                     "packed is of 2^21 rows or more", p.c);
  EXPECT_TIGON_ERROR(matmul_int8_int2<B>({a.data, 3, 0}, {packed.data, std::size_t{1} << 62, 10}, c), shape,
                     "packed is of 2^21 rows or more", p.c);

  problem q({3, 10, 9});
  const auto w = q.w.view();
  EXPECT_TIGON_ERROR(matmul_int8_int2_pack<B>(w, q.packed.view().rows_from(0, 2)), shape,
                     "matmul_int8_int2_pack: packed is 2 x 10; expected 3 x 10", q.packed);
  EXPECT_TIGON_ERROR(matmul_int8_int2_pack<B>(w, {reinterpret_cast<std::uint8_t*>(w.data), 3, 10}), alias,
                     "packed overlaps w", q.w);
  for (const int outside : {-128, -2, 3, 127}) {
    const auto right = std::exchange(q.w(8, 9), static_cast<std::int8_t>(outside));
    EXPECT_TIGON_ERROR(matmul_int8_int2_pack<B>(w, q.packed.view()), argument,
                       "matmul_int8_int2_pack: w is outside of two bits; expected -1, 0, 1 or 2", q.packed);
    q.w(8, 9) = right;
  }
  EXPECT_TRUE(q.packed.untouched());
  EXPECT_TIGON_ERROR(matmul_int8_int2_unpack<B>(packed, w), shape,
                     "matmul_int8_int2_unpack: packed is 2 x 10; expected 3 x 10", q.w);
  EXPECT_TIGON_ERROR(matmul_int8_int2_unpack<B>({reinterpret_cast<std::uint8_t*>(w.data), 3, 10}, w), alias,
                     "w overlaps packed", q.w);
}

}  // namespace
