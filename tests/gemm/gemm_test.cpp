// The matrix product on every backend: each promise of gemm_options, against sums in f64.
#include <tigon/gemm/gemm.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <mutex>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "../support/backends.hpp"
#if !defined(TIGON_CONFORMANCE_BACKEND)
#include "../support/emulated_blocks.hpp"
#include "../support/emulated_tiles.hpp"
#endif
#include "../support/guarded.hpp"
#include "../support/threads.hpp"
#include "../support/throws.hpp"

namespace tigon::test {
namespace {

constexpr transpose kNo = transpose::no, kYes = transpose::yes;
constexpr transpose kBoth[] = {kNo, kYes};

struct shape {
  std::size_t m, n, k;
};

/// op(x), rows x cols, in storage order and rounded to T; its true values stay at hand.
template <class T>
struct operand {
  operand(std::size_t rows, std::size_t cols, transpose t, unsigned seed, std::size_t padding = 0)
      : t(t), stored(t == kNo ? rows : cols, t == kNo ? cols : rows, padding) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    std::vector<double> values(rows * cols);
    for (double& v : values) v = normal(random);
    stored.assign(values);
  }
  double at(std::size_t i, std::size_t j) const { return to_f64(t == kNo ? stored(i, j) : stored(j, i)); }
  matrix_view<const T> view() const { return stored.view(); }

  transpose t;
  guarded_matrix<T> stored;
};

template <class T>
double unit_of() {  // half a unit in the last place of 1
  return std::same_as<T, double>    ? 0x1p-53
         : std::same_as<T, float>   ? 0x1p-24
         : std::same_as<T, float16> ? 0x1p-11
                                    : 0x1p-8;
}

/// The bound that the contract states; `got` against alpha a b + beta before + bias.
template <class TA, class TB, class TC>
testing::AssertionResult is_product(const operand<TA>& a, const operand<TB>& b, const std::vector<double>& before,
                                    const std::vector<double>& bias, double alpha, double beta, std::size_t k,
                                    const guarded_matrix<TC>& got) {
  const double eps = unit_of<accumulator_t<TC>>(), half = std::same_as<TC, accumulator_t<TC>> ? 0 : unit_of<TC>();
  for (std::size_t i = 0; i < got.rows(); ++i)
    for (std::size_t j = 0; j < got.cols(); ++j) {
      long double sum = 0, size = 0;
      for (std::size_t p = 0; p < k; ++p) {
        const long double term = static_cast<long double>(a.at(i, p)) * b.at(p, j);
        sum += term;
        size += std::abs(term);
      }
      long double want = alpha * sum;
      size *= std::abs(alpha);
      if (beta != 0) want += beta * before[i * got.cols() + j], size += std::abs(beta * before[i * got.cols() + j]);
      if (!bias.empty()) want += bias[j], size += std::abs(bias[j]);
      const double value = to_f64(got(i, j));
      const long double bound =
          eps * (4 + std::sqrt(static_cast<double>(k))) * size + half * std::abs(want) + (half == 0 ? 0 : 0x1p-25);
      if (!(std::abs(value - want) <= bound))
        return testing::AssertionFailure()
               << "c(" << i << ", " << j << ") is " << value << " and should be " << static_cast<double>(want)
               << ", error " << static_cast<double>(std::abs(value - want)) << ", bound " << static_cast<double>(bound)
               << "; k " << k << ", c " << got.rows() << " x " << got.cols();
    }
  if (!got.padding_intact()) return testing::AssertionFailure() << "padding was written";
  return testing::AssertionSuccess();
}

template <class B, class TA, class TB, class TC>
testing::AssertionResult multiplies(shape s, transpose ta, transpose tb, double alpha, double beta, std::size_t padding,
                                    bool with_bias = false) {
  const operand<TA> a(s.m, s.k, ta, 1, padding);
  const operand<TB> b(s.k, s.n, tb, 2, padding);
  guarded_matrix<TC> c(s.m, s.n, padding);
  std::vector<double> before;
  if (beta != 0) {
    c.assign(operand<TC>(s.m, s.n, kNo, 3).stored.f64());
    before = c.f64();
  }  // else: NaN, which must not be read
  std::vector<double> bias;
  if (with_bias) bias = operand<TC>(1, s.n, kNo, 4).stored.f64();
  guarded<TC> bias_in_memory(bias.size());
  bias_in_memory.assign(bias);
  const gemm_options opt{.alpha = alpha, .beta = beta, .a = ta, .b = tb};
  if (with_bias)
    gemm<B>(a.view(), b.view(), c.view(), bias_in_memory, no_epilogue{}, opt);
  else
    gemm<B>(a.view(), b.view(), c.view(), opt);
  return is_product(a, b, before, bias, alpha, beta, s.k, c);
}

template <class P>
class gemm_on : public testing::Test {};
#if defined(TIGON_CONFORMANCE_BACKEND)
using gemm_pairs = every_product_pair;
#else
template <class... P, class... Q>
testing::Types<P..., Q...> with(testing::Types<P...>, list<Q...>);
#if defined(TIGON_TESTS_ENGINES) || defined(TIGON_TESTS_ALL_PAIRS) || defined(TIGON_TESTS_FEW_PAIRS)
using own_products = list<>;  // every_product_pair has them, or is to be few
#else
using own_products = other_engines;
#endif
using gemm_pairs = decltype(with(
    every_product_pair{},
    own_products{} + list<on<backends::emulated_amx, bfloat16>, on<backends::emulated_arm_bf16, bfloat16>>{}));
#endif
TYPED_TEST_SUITE(gemm_on, gemm_pairs, names);

TYPED_TEST(gemm_on, keeps_its_error_around_the_tiles) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const std::size_t rows[] = {1, 2, 5, 7, 8, 9, 13, 14, 15, 31, 33, 100};
  const std::size_t cols[] = {1, 13, 15, 16, 17, 31, 33, 47, 48, 49, 100};
  const std::size_t depths[] = {1, 2, 3, 15, 33, 100};
  for (const transpose ta : kBoth)
    for (const transpose tb : kBoth)
      for (const std::size_t k : depths)
        for (const std::size_t m : rows)
          for (const std::size_t n : cols)
            ASSERT_TRUE((multiplies<B, T, T, T>({m, n, k}, ta, tb, 1, (m + n) % 2 == 0 ? 0 : 1, (m + k) % 2 * 3)));
}

TYPED_TEST(gemm_on, keeps_its_error_over_several_blocks_of_depth) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const transpose ta : kBoth)
    for (const transpose tb : kBoth)
      for (const shape s : {shape{14, 31, 385}, {33, 15, 513}, {13, 100, 1029}, {100, 14, 2100}, {300, 50, 600}})
        ASSERT_TRUE((multiplies<B, T, T, T>(s, ta, tb, 1, 0.5, 5)));
}

/// Terms that are all alike: every addition to a running sum is rounded the same way.
TYPED_TEST(gemm_on, keeps_its_error_over_very_many_equal_terms) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  if (B::info.name == "onednn") GTEST_SKIP() << "sums are the library's own";
  for (const std::size_t k : {std::size_t{128}, std::size_t{1} << 14, std::size_t{1} << 20, (std::size_t{1} << 18) + 7})
    for (const double value : {0.1, 1.0 / 3})
      for (const transpose ta : kBoth) {
        constexpr std::size_t m = 1, n = 3;
        const std::vector<T> a(m * k, from_f64<T>(value)), b(k * n, from_f64<T>(1 - value));
        std::vector<A> c(m * n);
        gemm<B>(matrix_view<const T>(a.data(), ta == kNo ? m : k, ta == kNo ? k : m),
                matrix_view<const T>(b.data(), k, n), matrix_view<A>(c.data(), m, n), {.a = ta});
        const long double want = static_cast<long double>(k) * to_f64(a[0]) * to_f64(b[0]);
        const double bound = unit_of<A>() * (4 + std::sqrt(static_cast<double>(k)));
        for (const A got : c)
          EXPECT_LE(std::abs(static_cast<long double>(got) - want) / want, bound) << "k " << k << ", " << value;
      }
}

/// The same for every short depth: numbers for which roundings are half a unit over the last half of a chain.
TYPED_TEST(gemm_on, keeps_its_error_over_equal_terms_of_any_depth) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  if (B::info.name == "onednn") GTEST_SKIP() << "sums are the library's own";
  constexpr int digits = std::same_as<T, double> ? 52 : std::same_as<T, float> ? 23 : std::same_as<T, float16> ? 10 : 7;
  constexpr std::size_t n = 100, m = 9;
  std::vector<std::size_t> depths(200);
  for (std::size_t k = 0; k < depths.size(); ++k) depths[k] = k + 1;
  for (const std::size_t k : {227u, 228u, 255u, 257u, 384u, 513u, 700u, 1023u, 1025u, 2500u}) depths.push_back(k);
  std::mt19937_64 random(1);
  for (const std::size_t k : depths) {
    const double ends = std::bit_ceil(k);  // where the sum of the first numbers ends
    std::vector<double> numbers(n);
    for (std::size_t j = 0; j < n; ++j) {
      const double first = j % 2 == 0 ? std::min(ends / static_cast<double>(k), 1.99) : 1,
                   unit = std::ldexp(ends, -1 - digits);
      const double about = (std::floor(first / unit) - static_cast<double>(random() % 8) + 0.5) * unit;
      const double steps = static_cast<double>(random() % 64) - 32;
      numbers[j] = std::max(0.5, std::ldexp(std::nearbyint(std::ldexp(about, digits) + steps), -digits));
    }
    const std::vector<T> a(m * k, from_f64<T>(1.0 + 0x1p-7 * static_cast<double>(k % 128)));
    std::vector<T> b(k * n);
    for (std::size_t p = 0; p < b.size(); ++p) b[p] = from_f64<T>(numbers[p % n]);
    for (const std::size_t rows : {std::size_t{1}, m}) {
      std::vector<A> c(rows * n);
      gemm<B>(matrix_view<const T>(a.data(), rows, k), matrix_view<const T>(b.data(), k, n),
              matrix_view<A>(c.data(), rows, n));
      const double bound = unit_of<A>() * (4 + std::sqrt(static_cast<double>(k)));
      for (std::size_t j = 0; j < c.size(); ++j) {
        const long double want = static_cast<long double>(k) * to_f64(a[0]) * to_f64(b[j % n]);
        ASSERT_LE(std::abs(static_cast<long double>(c[j]) - want) / want, bound)
            << "k " << k << ", " << to_f64(b[j % n]);
      }
    }
  }
}

/// The least number that is rounded up, after a one: all roundings are of a unit. As every term, or as the sum of every
/// 64 after the first ones, so that each addition of a chain to what is before it is rounded up.
TYPED_TEST(gemm_on, has_a_bound_for_any_terms) {
  using B = typename TypeParam::backend;
  if (B::info.name == "onednn" || !std::same_as<typename TypeParam::element, float>) return;
  for (const std::size_t k : {std::size_t{64}, std::size_t{500}, std::size_t{5000}, std::size_t{1} << 17})
    for (const std::size_t step : {1u, 64u}) {
      const float least = std::nextafter(0x1p-24f, 1.0f);
      std::vector<float> a(k, 1.0f), b(k), c(1);
      double want = 1;
      for (std::size_t p = 1; p < k; ++p)
        if (p < 64 || p % step == 0) b[p] = least, want += static_cast<double>(least);
      b[0] = 1;
      gemm<B>(matrix_view<const float>(a.data(), 1, k), matrix_view<const float>(b.data(), k, 1),
              matrix_view<float>(c.data(), 1, 1));
      const double got = static_cast<double>(c[0]) / want - 1;
      EXPECT_LE(std::abs(got), 0x1p-24 * static_cast<double>(4 + std::min<std::size_t>(k, 704))) << k << ", " << step;
    }
}

TYPED_TEST(gemm_on, scales_adds_and_biases) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const double alpha : {1.0, -0.75, 0.0})
    for (const double beta : {0.0, 1.0, 0.5})
      for (const bool bias : {false, true})
        for (const shape s : {shape{15, 33, 31}, {8, 48, 16}, {33, 15, 700}, {3, 5, 0}})
          ASSERT_TRUE((multiplies<B, T, T, T>(s, kNo, kYes, alpha, beta, 2, bias)));
}

TYPED_TEST(gemm_on, of_nothing_is_nothing) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{0, 5, 3}, {5, 0, 3}, {0, 0, 0}}) {
    guarded_matrix<T> a(s.m, s.k), b(s.k, s.n), c(s.m, s.n);
    gemm<B>(a.view(), b.view(), c.view());
  }
}

TYPED_TEST(gemm_on, has_the_same_bits_for_any_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{65, 700, 1100}, {700, 65, 1100}, {33, 40, 20}}) {
    const operand<T> a(s.m, s.k, kNo, 1), b(s.k, s.n, kYes, 2);
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      guarded_matrix<T> c(s.m, s.n);
      gemm<B>(a.view(), b.view(), c.view(), {.b = kYes}, ctx);
      return bits_of(c);
    }));
  }
}

TYPED_TEST(gemm_on, gives_a_packed_b_the_bits_of_an_unpacked_one) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const transpose tb : kBoth)
    for (const shape s :
         {shape{33, 100, 385}, {300, 50, 1100}, {1, 300, 700}, {300, 1, 700}, {50, 300, 513}, {4, 4, 0}, {4, 0, 4}}) {
      const operand<T> a(s.m, s.k, kNo, 1), b(s.k, s.n, tb, 2);
      guarded_matrix<T> plain(s.m, s.n), packed(s.m, s.n);
      gemm<B>(a.view(), b.view(), plain.view(), {.b = tb});
      workspace memory;
      const std::size_t bytes = gemm_pack_bytes<B, T>(s.k, s.n);
      memory.expect("test", bytes);
      workspace::frame frame(memory);
      const packed_operand<T> p = gemm_pack<B, T>(b.view(), {frame.template take<std::byte>(bytes), bytes}, tb);
      gemm<B>(a.view(), p, packed.view());
      EXPECT_TRUE(bits_of(plain) == bits_of(packed));
      gemm<B>(a.view(), p, packed.view(), absent, no_epilogue{}, {});
      EXPECT_TRUE(bits_of(plain) == bits_of(packed));
    }
}

TYPED_TEST(gemm_on, shows_the_epilogue_every_finished_element_once) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  thread_pool pool(3);
  workspace scratch;
  context ctx(pool, scratch);
  for (const shape s : {shape{65, 700, 1100}, {700, 65, 30}, {5, 3, 0}}) {
    const operand<T> a(s.m, s.k, kNo, 1), b(s.k, s.n, kNo, 2);
    guarded_matrix<T> c(s.m, s.n);
    std::vector<double> seen(s.m * s.n, 0);
    std::vector<int> times(s.m * s.n, 0);
    gemm<B>(
        a.view(), b.view(), c.view(), absent,
        [&](matrix_view<T> part, std::size_t row, std::size_t col, std::size_t worker) {
          EXPECT_LT(worker, 3u);
          for (std::size_t i = 0; i < part.rows; ++i)
            for (std::size_t j = 0; j < part.cols; ++j) {
              seen[(row + i) * s.n + col + j] = to_f64(part.row(i)[j]);
              ++times[(row + i) * s.n + col + j];
            }
        },
        {}, ctx);
    EXPECT_EQ(times, std::vector<int>(s.m * s.n, 1));
    EXPECT_EQ(seen, c.f64());
  }
}

/// Rows that are multiplied in parts, and sums over a part of the depth, each in the workspace of the whole.
template <class B, class T>
void expect_alike_in_every_part(shape s, transpose tb) {
  const operand<T> a(s.m, s.k, kNo, 1), b(s.k, s.n, tb, 2);
  const auto product = [&](matrix_view<const T> rows, matrix_view<const T> right, gemm_options opt, auto& c) {
    const std::size_t bytes = gemm_workspace<B, T>(s.m, s.n, s.k);
    workspace memory;
    memory.expect("test", bytes + workspace::alignment);
    workspace::frame frame(memory);
    workspace exact(std::span(frame.template take<std::byte>(bytes), bytes));
    context ctx(serial(), exact);
    gemm<B>(rows, right, c.view(), opt, ctx);
  };
  guarded_matrix<T> whole(s.m, s.n);
  product(a.view(), b.view(), {.b = tb, .cut_as = {.rows = s.m}}, whole);
  for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{7}, std::size_t{24}, s.m - 1}) {
    guarded_matrix<T> part(count, s.n);
    for (std::size_t first = 0; first + count <= s.m; first += count) {
      part.clear();
      product(a.view().rows_from(first, count), b.view(), {.b = tb, .cut_as = {.rows = s.m}}, part);
      for (std::size_t i = 0; i < count; ++i)
        for (std::size_t j = 0; j < s.n; ++j)
          ASSERT_EQ(to_f64(part(i, j)), to_f64(whole(first + i, j)))
              << count << " of " << s.m << " rows from " << first << " on, row " << i << ", column " << j;
    }
  }
  const operand<T> left(s.m, s.k / 3, kNo, 1), right(s.k / 3, s.n, tb, 2);
  product(left.view(), right.view(), {.b = tb, .cut_as = {.depth = s.k}}, whole);
  EXPECT_TRUE(is_product(left, right, {}, {}, 1, 0, s.k / 3, whole));
}

TYPED_TEST(gemm_on, gives_a_row_the_same_bits_in_every_part) {
  for (const transpose tb : kBoth)
    for (const shape s : {shape{70, 100, 40}, {70, 33, 700}, {37, 1, 9}, {45, 3, 1}})
      expect_alike_in_every_part<typename TypeParam::backend, typename TypeParam::element>(s, tb);
}

TYPED_TEST(gemm_on, throws_what_the_epilogue_throws_and_stays_usable) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const shape s{65, 700, 300};
  const operand<T> a(s.m, s.k, kNo, 1), b(s.k, s.n, kNo, 2);
  guarded_matrix<T> c(s.m, s.n), wanted(s.m, s.n);
  gemm<B>(a.view(), b.view(), wanted.view());
  for (const std::size_t threads : {1u, 4u}) {
    thread_pool pool(threads);
    workspace scratch;
    context ctx(pool, scratch);
    for (const std::size_t last : {std::size_t{0}, s.n / 2, s.n - 1}) {  // the column that must not come
      const auto epilogue = [&](matrix_view<T> part, std::size_t, std::size_t col, std::size_t) {
        if (col <= last && last < col + part.cols) throw last;
      };
      EXPECT_THROW(gemm<B>(a.view(), b.view(), c.view(), absent, epilogue, {}, ctx), std::size_t);
      EXPECT_EQ(scratch.used(), 0u);
      c.clear();
      gemm<B>(a.view(), b.view(), c.view(), {}, ctx);
      EXPECT_TRUE(bits_of(c) == bits_of(wanted));
    }
  }
}

TYPED_TEST(gemm_on, stays_within_the_workspace_it_states) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{65, 300, 1100}, {300, 65, 1100}, {3, 5, 7}}) {
    const operand<T> a(s.m, s.k, kYes, 1), b(s.k, s.n, kNo, 2);
    guarded_matrix<T> c(s.m, s.n);
    const std::size_t bytes = gemm_workspace<B, T>(s.m, s.n, s.k);
    workspace memory;
    memory.expect("test", bytes + workspace::alignment);
    workspace::frame frame(memory);
    std::byte* fixed = frame.template take<std::byte>(bytes);
    {
      workspace exact(std::span(fixed, bytes));
      context ctx(serial(), exact);
      gemm<B>(a.view(), b.view(), c.view(), {.a = kYes}, ctx);
      EXPECT_LE(exact.high_water(), bytes);
    }
    if (bytes == 0) continue;
    workspace small(std::span(fixed, bytes - workspace::alignment));
    context ctx(serial(), small);
    c.clear();
    EXPECT_TIGON_ERROR((gemm<B>(a.view(), b.view(), c.view(), {.a = kYes}, ctx)), workspace, "gemm: workspace", c);
  }
}

TYPED_TEST(gemm_on, has_the_gradients_of_its_sum_of_squares) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const shape s{33, 50, 29};
  const double alpha = 0.5;
  for (const transpose ta : kBoth)
    for (const transpose tb : kBoth)
      for (const gradient mode : {gradient::overwrite, gradient::accumulate}) {
        const operand<T> a(s.m, s.k, ta, 1, 3), b(s.k, s.n, tb, 2, 3), dc(s.m, s.n, kNo, 3, 3);
        guarded_matrix<T> da(a.stored.rows(), a.stored.cols(), 2), db(b.stored.rows(), b.stored.cols(), 2);
        const double beta = mode == gradient::accumulate ? 1 : 0;
        if (beta != 0) {
          da.assign(operand<T>(da.rows(), da.cols(), kNo, 5).stored.f64());
          db.assign(operand<T>(db.rows(), db.cols(), kNo, 6).stored.f64());
        }
        const std::vector<double> da_before = da.f64(), db_before = db.f64();
        gemm_backward<B>(dc.view(), a.view(), b.view(), da.view(), db.view(),
                         {.alpha = alpha, .a = ta, .b = tb, .da = mode, .db = mode});
        // d op(a)[i,p] = alpha sum_j dc[i,j] op(b)[p,j], compared in storage order.
        operand<T> left(s.m, s.n, kNo, 0), right(s.n, s.k, kNo, 0);
        for (std::size_t i = 0; i < s.m; ++i)
          for (std::size_t j = 0; j < s.n; ++j) left.stored(i, j) = dc.stored(i, j);
        for (std::size_t j = 0; j < s.n; ++j)
          for (std::size_t p = 0; p < s.k; ++p) right.stored(j, p) = tb == kNo ? b.stored(p, j) : b.stored(j, p);
        if (ta == kNo) {
          EXPECT_TRUE(is_product(left, right, da_before, {}, alpha, beta, s.n, da));
        } else {
          operand<T> rt(s.k, s.n, kNo, 0), lt(s.n, s.m, kNo, 0);
          for (std::size_t j = 0; j < s.n; ++j) {
            for (std::size_t p = 0; p < s.k; ++p) rt.stored(p, j) = right.stored(j, p);
            for (std::size_t i = 0; i < s.m; ++i) lt.stored(j, i) = left.stored(i, j);
          }
          EXPECT_TRUE(is_product(rt, lt, da_before, {}, alpha, beta, s.n, da));
        }
        // d op(b)[p,j] = alpha sum_i op(a)[i,p] dc[i,j]
        operand<T> at(s.k, s.m, kNo, 0), dct(s.n, s.m, kNo, 0), ap(s.m, s.k, kNo, 0);
        for (std::size_t i = 0; i < s.m; ++i) {
          for (std::size_t p = 0; p < s.k; ++p)
            at.stored(p, i) = ap.stored(i, p) = ta == kNo ? a.stored(i, p) : a.stored(p, i);
          for (std::size_t j = 0; j < s.n; ++j) dct.stored(j, i) = dc.stored(i, j);
        }
        if (tb == kNo)
          EXPECT_TRUE(is_product(at, left, db_before, {}, alpha, beta, s.m, db));
        else
          EXPECT_TRUE(is_product(dct, ap, db_before, {}, alpha, beta, s.m, db));

        guarded_matrix<T> alone(da.rows(), da.cols());
        gemm_backward<B>(dc.view(), a.view(), b.view(), alone.view(), absent, {.alpha = alpha, .a = ta, .b = tb});
        gemm_backward<B>(dc.view(), a.view(), b.view(), absent, db.view(), {.alpha = alpha, .a = ta, .b = tb});
      }
}

TYPED_TEST(gemm_on, writes_between_the_rows_of_its_operands) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  // Rows of 8 in one buffer: a at 0, 2, 4, 6, b in columns 5 to 7 of 0, 2, 4, 6, 8, c at 3, 7, 11, 15.
  guarded<T> buffer(8 * 16);
  const operand<T> a(4, 5, kNo, 1), b(5, 3, kNo, 2);
  guarded_matrix<T> c(4, 3);
  const auto rows = [&](std::size_t first, std::size_t n, std::size_t width, std::size_t stride) {
    return matrix_view<T>(buffer.data() + first, n, width, stride);
  };
  const auto in_a = rows(0, 4, 5, 16), in_b = rows(5, 5, 3, 16), in_c = rows(24, 4, 3, 32);
  for (std::size_t i = 0; i < 4; ++i) std::copy_n(a.view().row(i), 5, in_a.row(i));
  for (std::size_t i = 0; i < 5; ++i) std::copy_n(b.view().row(i), 3, in_b.row(i));
  gemm<B>(a.view(), b.view(), c.view());
  gemm<B>(in_a, in_b, in_c);
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < 3; ++j) ASSERT_EQ(to_f64(in_c.row(i)[j]), to_f64(c(i, j))) << i << ' ' << j;
  EXPECT_TIGON_ERROR(gemm<B>(in_a, in_b, rows(22, 4, 3, 32)), alias, "gemm: c overlaps b", buffer);
}

TYPED_TEST(gemm_on, refuses_what_does_not_fit) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const operand<T> a(4, 6, kNo, 1), b(6, 5, kNo, 2);
  guarded_matrix<T> c(4, 5), wide(4, 6), square(4, 4);
  guarded<T> bias(4);
  const auto run = [&](auto x, auto y, auto z, gemm_options opt = {}) { gemm<B>(x, y, z, opt); };
  EXPECT_TIGON_ERROR(run(a.view(), b.view(), wide.view()), shape, "gemm: b is 6 x 5; expected 6 x 6", wide);
  EXPECT_TIGON_ERROR(run(a.view(), b.view(), c.view(), {.a = kYes}), shape, "gemm: a is 4 x 6; expected 4 x 4", c);
  EXPECT_TIGON_ERROR(run(a.view(), b.view(), c.view(), {.b = kYes}), shape, "gemm: b is 6 x 5", c);
  EXPECT_TIGON_ERROR(run(matrix_view<const T>(a.view().data, 4, 6, 5), b.view(), c.view()), stride, "gemm: a", c);
  EXPECT_TIGON_ERROR(run(a.view(), b.view(), matrix_view<T>(c.view().data, 4, 5, 4)), stride, "gemm: c", c);
  EXPECT_TIGON_ERROR(run(square.view(), square.view(), square.view()), alias, "gemm: c overlaps a", square);
  EXPECT_TIGON_ERROR(run(a.view(), b.view(), c.view(), {.alpha = NAN}), argument, "gemm: alpha", c);
  EXPECT_TIGON_ERROR(run(a.view(), b.view(), c.view(), {.beta = INFINITY}), argument, "gemm: beta", c);
  EXPECT_TIGON_ERROR((gemm<B>(a.view(), b.view(), c.view(), bias, no_epilogue{})), shape, "gemm: bias is of 4", c);
  EXPECT_TIGON_ERROR((gemm_backward<B>(c.view(), a.view(), b.view(), c.view(), absent)), shape, "da is 4 x 5", c);

  alignas(64) std::byte memory[1 << 14];
  const packed_operand<T> p = gemm_pack<B, T>(b.view(), memory);
  EXPECT_TIGON_ERROR(gemm<B>(c.view(), p, wide.view()), shape, "gemm: b is packed from 6 x 5; expected 5 x 6", wide);
  EXPECT_TIGON_ERROR(gemm<B>(a.view(), p, wide.view()), shape, "gemm: b is packed from 6 x 5; expected 6 x 6", wide);
  packed_operand<T> other = p;
  other.layout = "of another kernel";
  EXPECT_TIGON_ERROR(gemm<B>(a.view(), other, c.view()), state, "gemm: b is packed as \"of another kernel\"", c);
  EXPECT_TIGON_ERROR((gemm_pack<B, T>(b.view(), std::span(memory, 8))), workspace, "gemm_pack: to is of 8 bytes");
  EXPECT_TIGON_ERROR((gemm_pack<B, T>(b.view(), std::span(memory).subspan(4))), workspace, "unaligned");
}

template <class B>
class gemm_between : public testing::Test {};
template <class... B>
testing::Types<B...> types_of(list<B...>);
TYPED_TEST_SUITE(gemm_between, decltype(types_of(all_backends{})));

TYPED_TEST(gemm_between, mixes_element_types) {
  using B = TypeParam;
  for (const transpose ta : kBoth)
    for (const transpose tb : kBoth)
      for (const shape s : {shape{33, 49, 100}, {17, 50, 1000}}) {
        ASSERT_TRUE((multiplies<B, bfloat16, bfloat16, float>(s, ta, tb, 1, 1, 1, true)));
        ASSERT_TRUE((multiplies<B, float, bfloat16, float>(s, ta, tb, 1, 0, 1)));
        ASSERT_TRUE((multiplies<B, float, bfloat16, bfloat16>(s, ta, tb, 1, 0.5, 1, true)));
        ASSERT_TRUE((multiplies<B, bfloat16, float16, float16>(s, ta, tb, 1, 0, 1)));
        ASSERT_TRUE((multiplies<B, float16, float, bfloat16>(s, ta, tb, 2, 1, 1)));
      }
}

// 4096 ones are 4096: neither summed in 16 bits (bf16 stops at 256) nor rounded between blocks of depth.
TYPED_TEST(gemm_between, sums_and_carries_in_f32) {
  using B = TypeParam;
  const std::size_t k = 5000;
  guarded_matrix<bfloat16> a(9, k), b(k, 50), c(9, 50);
  a.assign(std::vector<double>(9 * k, 1));
  b.assign(std::vector<double>(k * 50, 0.0078125));
  gemm<B>(a.view(), b.view(), c.view());
  for (const double v : c.f64()) ASSERT_EQ(v, to_f64(bfloat16(39.0625f)));
}

#if !defined(TIGON_CONFORMANCE_BACKEND)  // tuning of the library's own products

/// Tuning so small that one small product meets every limit: several chunks, several shared parts, carried sums,
/// totals.
struct cramped : backends::highway {
  using parent = backends::highway;
  static constexpr backend_info info{"cramped", {device::cpu}};
  using overrides = op_list<>;
  static constexpr gemm_tuning gemm{.depth = 12,
                                    .rows_per_task = 16,
                                    .cols_per_task = 48,
                                    .segment = 24,
                                    .shared_rows = 24,
                                    .shared_cols = 48,
                                    .shared_bytes = 4096,
                                    .carry_bytes = 8192};
};

/// The same with room for both operands of most products: all workers pack both.
struct roomy : cramped {
  using parent = cramped;
  static constexpr backend_info info{"roomy", {device::cpu}};
  using overrides = op_list<>;
  static constexpr gemm_tuning gemm{.depth = 12,
                                    .rows_per_task = 16,
                                    .cols_per_task = 48,
                                    .segment = 24,
                                    .shared_rows = 48,
                                    .shared_cols = 48,
                                    .shared_bytes = 131072,
                                    .carry_bytes = 8192};
};

/// The same for tiles, whose blocks are 128 deep at least.
struct cramped_tiles : backends::emulated_amx {
  using parent = backends::emulated_amx;
  static constexpr backend_info info{"cramped_tiles", {device::cpu}};
  using overrides = op_list<>;
  static constexpr tile_tuning tile_product{.product = {.depth = 1,
                                                        .rows_per_task = 32,
                                                        .cols_per_task = 64,
                                                        .shared_rows = 64,
                                                        .shared_cols = 32,
                                                        .shared_bytes = 4096,
                                                        .carry_bytes = 32768}};
};

template <class P>
class gemm_cramped : public testing::Test {};
using cramped_pairs = testing::Types<on<cramped, float>, on<cramped, double>, on<cramped, bfloat16>, on<roomy, float>,
                                     on<roomy, bfloat16>, on<cramped_tiles, bfloat16>>;
TYPED_TEST_SUITE(gemm_cramped, cramped_pairs, names);

TYPED_TEST(gemm_cramped, keeps_its_error_and_its_bits) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{50, 200, 131},
                        {200, 50, 131},
                        {61, 300, 37},
                        {300, 101, 64},
                        {100, 100, 0},
                        {48, 48, 1603},
                        {30, 100, 1603},
                        {100, 30, 1603}}) {
    for (const transpose ta : kBoth)
      for (const transpose tb : kBoth) ASSERT_TRUE((multiplies<B, T, T, T>(s, ta, tb, 0.5, s.k % 2, 3, true)));
    const operand<T> a(s.m, s.k, kNo, 1), b(s.k, s.n, kNo, 2);
    guarded_matrix<T> plain(s.m, s.n), packed(s.m, s.n);
    gemm<B>(a.view(), b.view(), plain.view());
    workspace memory;
    const std::size_t bytes = gemm_pack_bytes<B, T>(s.k, s.n);
    memory.expect("test", bytes);
    workspace::frame frame(memory);
    const auto p = gemm_pack<B, T>(b.view(), {frame.template take<std::byte>(bytes), bytes});
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      packed.clear();
      std::vector<int> times(s.m * s.n, 0);
      gemm<B>(
          a.view(), p, packed.view(), absent,
          [&](matrix_view<T> part, std::size_t row, std::size_t col, std::size_t) {
            for (std::size_t i = 0; i < part.rows; ++i)
              for (std::size_t j = 0; j < part.cols; ++j) ++times[(row + i) * s.n + col + j];
          },
          {}, ctx);
      EXPECT_EQ(times, std::vector<int>(s.m * s.n, 1));
      return bits_of(packed);
    }));
    EXPECT_TRUE(bits_of(plain) == bits_of(packed));
  }
}

TYPED_TEST(gemm_cramped, gives_a_row_the_same_bits_in_every_part) {
  for (const transpose tb : kBoth)
    for (const shape s : {shape{50, 200, 131}, {200, 50, 131}, {48, 100, 1603}})
      expect_alike_in_every_part<typename TypeParam::backend, typename TypeParam::element>(s, tb);
}

// Time of the tasks of one product on so many workers, each of which takes the next task when it is done, and the time
// in which they could share it. A task takes as long as its part of c is large.
struct schedule {
  double time = 0, shared_evenly = 0;

  void add(shape s, double workers) {
    using P = packed::widened<backends::highway, float, float>;
    const packed::plan<P, float> plan(s.m, s.n, s.k, packed::tuning_of<backends::highway, P>(),
                                      static_cast<std::size_t>(workers));
    const auto depth = static_cast<double>(s.k);
    for (std::size_t first = 0; first < plan.shared_extent(); first += plan.shared) {
      const std::size_t shared = std::min(plan.shared, plan.shared_extent() - first);
      std::vector<double> until(static_cast<std::size_t>(workers), 0);
      const auto parts = plan.parts_of(plan.extent());
      for (std::size_t i = 0; i < parts.count; ++i)
        for (std::size_t j = 0; j < shared; j += plan.segment) {
          const auto rows = static_cast<double>(parts.begin(i + 1) - parts.begin(i));
          const auto cols = static_cast<double>(std::min(plan.segment, shared - j));
          *std::min_element(until.begin(), until.end()) += rows * cols * depth;
          shared_evenly += rows * cols * depth / workers;
        }
      time += *std::max_element(until.begin(), until.end());
    }
  }
};

// Forward and both gradients of the layers of a Llama: hidden 768, vocabulary 32000, 2048 tokens, 512 of logits.
TEST(gemm_tasks, of_a_training_step_are_shared_evenly) {
  for (const double workers : {2.0, 4.0, 16.0, 64.0}) {
    schedule step;
    const auto layer = [&](std::size_t tokens, std::size_t out, std::size_t in) {
      for (const shape s : {shape{tokens, out, in}, shape{tokens, in, out}, shape{out, in, tokens}}) {
        schedule one;
        one.add(s, workers);
        EXPECT_LE(one.time, 1.25 * one.shared_evenly) << s.m << 'x' << s.n << 'x' << s.k << " on " << workers;
        step.add(s, workers);
      }
    };
    for (int block = 0; block < 12; ++block) {
      layer(2048, 768 + 2 * 256, 768);
      layer(2048, 768, 768);
      layer(2048, 2 * 2048, 768);
      layer(2048, 768, 2048);
    }
    for (int chunk = 0; chunk < 4; ++chunk) layer(512, 32000, 768);
    EXPECT_LE(step.time, 1.1 * step.shared_evenly) << workers << " workers";
  }
}

// 704 and 2048 rows are no multiple of a long task: as many tasks for each of two workers, and of the same length.
TEST(gemm_tasks, of_two_workers_are_even) {
  for (const shape s : {shape{704, 256, 2048}, {2048, 256, 704}, {2048, 704, 256}}) {
    schedule one;
    one.add(s, 2);
    EXPECT_LE(one.time, 1.02 * one.shared_evenly) << s.m << 'x' << s.n << 'x' << s.k;
  }
}

TEST(gemm_tasks, have_parts_that_cover_all) {
  using P = packed::widened<backends::highway, float, float>;
  for (const shape s : {shape{704, 256, 64}, {256, 704, 64}, {1, 1000, 64}, {1000, 1, 64}, {97, 97, 64}, {389, 40, 64}})
    for (std::size_t workers = 1; workers <= 5; ++workers) {
      const packed::plan<P, float> plan(s.m, s.n, s.k, packed::tuning_of<backends::highway, P>(), workers);
      const auto parts = plan.parts_of(plan.extent());
      EXPECT_EQ(parts.begin(0), 0u);
      EXPECT_EQ(parts.begin(parts.count), plan.extent());
      for (std::size_t i = 0; i < parts.count; ++i) {
        EXPECT_EQ(parts.begin(i) % plan.part_unit(), 0u) << s.m << 'x' << s.n << " on " << workers;
        EXPECT_LT(parts.begin(i), parts.begin(i + 1)) << s.m << 'x' << s.n << " on " << workers;
        EXPECT_LE(parts.begin(i + 1) - parts.begin(i), plan.part) << s.m << 'x' << s.n << " on " << workers;
      }
    }
}

TEST(gemm_tasks, of_few_workers_are_long_and_take_all_that_is_shared) {
  using P = packed::widened<backends::highway, float, float>;
  constexpr gemm_tuning tuning = packed::tuning_of<backends::highway, P>();
  for (const shape s : {shape{1024, 576, 576}, {576, 1024, 576}}) {
    const packed::plan<P, float> few(s.m, s.n, s.k, tuning, 2), many(s.m, s.n, s.k, tuning, 64);
    EXPECT_EQ(few.part, 96u);
    EXPECT_EQ(few.segments(), 1u);
    EXPECT_FALSE(few.share_both);
    EXPECT_LT(many.part, few.part);
    EXPECT_GT(many.segments(), 1u);
    EXPECT_EQ(few.block, many.block);
    EXPECT_EQ(few.chunk, many.chunk);
    const packed::plan<P, float> five(s.m, s.n, s.k, tuning, tuning.few_workers + 1);
    EXPECT_EQ(five.part, many.part);
    EXPECT_EQ(five.segment, many.segment);
  }
}

TEST(gemm_tasks, of_fewer_workers_fit_into_the_workspace_of_more) {
  for (const shape s : {shape{1024, 576, 576}, {576, 1024, 1500}, {3000, 64, 64}, {64, 3000, 2500}, {40, 300, 90}})
    for (std::size_t workers = 2; workers <= 64; ++workers) {
      const auto takes = [&](std::size_t of) { return gemm_workspace<backends::highway, float>(s.m, s.n, s.k, of); };
      const auto takes_packed = [&](std::size_t of) {
        return gemm_packed_workspace<backends::highway, float>(s.m, s.n, s.k, of);
      };
      ASSERT_LE(takes(workers - 1), takes(workers)) << s.m << 'x' << s.n << 'x' << s.k << " on " << workers;
      ASSERT_LE(takes_packed(workers - 1), takes_packed(workers)) << s.m << 'x' << s.n << 'x' << s.k;
    }
}

TEST(gemm_tasks, show_an_epilogue_the_same_parts_for_any_number_of_workers) {
  using part = std::array<std::size_t, 4>;
  const operand<float> a(800, 20, kNo, 1), b(20, 300, kNo, 2);
  guarded_matrix<float> c(800, 300);
  const auto parts_on = [&](std::size_t threads) {
    thread_pool pool(threads);
    workspace scratch;
    context ctx(pool, scratch);
    std::mutex one_at_a_time;
    std::set<part> parts;
    gemm<backends::highway>(
        a.view(), b.view(), c.view(), absent,
        [&](matrix_view<float> of, std::size_t row, std::size_t col, std::size_t) {
          const std::lock_guard lock(one_at_a_time);
          parts.insert({row, col, of.rows, of.cols});
        },
        {}, ctx);
    return parts;
  };
  const std::set<part> of_one = parts_on(1);
  EXPECT_GT(of_one.size(), 8u);
  EXPECT_EQ(parts_on(2), of_one);
  EXPECT_EQ(parts_on(7), of_one);
}

#endif

}  // namespace
}  // namespace tigon::test
