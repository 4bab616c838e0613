// Sums over very many rows, and over very long ones, keep the errors that the contracts of the operators state. Rows
// that are all alike are the hardest: every addition to a running sum is rounded the same way.
#include <gtest/gtest.h>

#include <cmath>
#include <tigon/backends/ascend/backend.hpp>
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/ops/dyt.hpp>
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/group_norm.hpp>
#include <tigon/ops/layer_norm.hpp>
#include <tigon/ops/modulated_rms_norm.hpp>
#include <tigon/ops/poly_norm.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/sparsemax.hpp>
#include <vector>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::absent, tigon::context, tigon::default_context, tigon::gradient, tigon::matrix_view;
namespace backends = tigon::backends;

constexpr double eps = 1e-6;
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Rows that are all alike in x and, but for the sign, in dy; the sum over rows of a gradient is that of one row times
/// `weight`. In f64, of the numbers that the operator is given.
struct problem {
  std::size_t rows, cols;
  std::vector<float> x, dy, dx, w, first, second;
  double weight = 0;
  std::vector<float> mean, rstd;

  /// dy is `value` everywhere, or with a sign for every row that is as good as random.
  problem(std::size_t rows_, std::size_t cols_, float value, bool signs = false)
      : rows(rows_),
        cols(cols_),
        x(rows * cols),
        dy(rows * cols),
        dx(rows * cols),
        w(cols, 1),
        first(cols, -1),
        second(cols, -1) {
    std::uint32_t state = 1;
    for (std::size_t i = 0; i < rows; ++i) {
      state = state * 1664525 + 1013904223;
      const float sign = signs && state >> 31 != 0 ? -1.0f : 1.0f;
      weight += sign;
      for (std::size_t j = 0; j < cols; ++j) x[i * cols + j] = value_at(j), dy[i * cols + j] = sign * value;
    }
    const double v = variance(), m = centre();
    mean.assign(rows, static_cast<float>(m));
    rstd.assign(rows, static_cast<float>(1 / std::sqrt(v + eps)));
  }
  static float value_at(std::size_t j) { return 0.3f + 0.1f * static_cast<float>(j % 7); }
  double centre() const {
    double sum = 0;
    for (std::size_t j = 0; j < cols; ++j) sum += x[j];
    return sum / static_cast<double>(cols);
  }
  double variance() const {
    double sum = 0;
    for (std::size_t j = 0; j < cols; ++j) sum += (x[j] - centre()) * (x[j] - centre());
    return sum / static_cast<double>(cols);
  }
  double square() const { return variance() + centre() * centre(); }
  /// The root mean square takes the place of the deviation.
  void without_mean() { rstd.assign(rows, static_cast<float>(1 / std::sqrt(square() + eps))); }

  matrix_view<const float> view(const std::vector<float>& of) const { return {of.data(), rows, cols}; }
  matrix_view<float> out() { return {dx.data(), rows, cols}; }
  template <class F>
  std::vector<double> sum_of(F f) const {
    std::vector<double> sums(cols);
    for (std::size_t j = 0; j < cols; ++j) sums[j] = weight * dy[0] * f(static_cast<double>(x[j]));
    return sums;
  }
};

std::vector<double> f64(const std::vector<float>& v) { return {v.begin(), v.end()}; }

/// What dy is: exact in f32, its sums too for long; not so; and of changing sign.
struct input {
  float value;
  bool signs;
};
const input inputs[] = {{1, false}, {0.1f, false}, {0.7f, true}};

template <class B>
struct many_rows : testing::Test {};
/// Lanes, and with TIGON_TESTS_ENGINES tiles and single numbers: how sums are nested depends on these, and not on the
/// engine that has the lanes.
using lanes_and_tiles = with_engines<list<usual_backend>, backends::ascend, backends::generic>;
struct backend_names {
  template <class B>
  static std::string GetName(int) {
    return std::string(B::info.name);
  }
};
TYPED_TEST_SUITE(many_rows, lanes_and_tiles, backend_names);

constexpr std::size_t rows = std::size_t{1} << 17;

TYPED_TEST(many_rows, rms_norm_keeps_its_error) {
  for (const input in : inputs) {
    problem p(rows, 9, in.value, in.signs);
    p.without_mean();
    tigon::rms_norm_backward<TypeParam>(p.view(p.dy), p.view(p.x), p.w, p.rstd, p.out(), p.first, {.eps = eps});
    const double r = 1 / std::sqrt(p.square() + eps);
    EXPECT_TRUE(close(f64(p.first), p.sum_of([&](double v) { return v * r; }), 1e-6)) << in.value;
  }
}

TYPED_TEST(many_rows, layer_norm_keeps_its_error) {
  for (const input in : inputs) {
    problem p(rows, 9, in.value, in.signs);
    tigon::layer_norm_backward<TypeParam>(p.view(p.dy), p.view(p.x), p.w, p.mean, p.rstd,
                                          tigon::norm_gradients{p.out(), p.first, p.second}, {.eps = eps});
    const double r = 1 / std::sqrt(p.variance() + eps), m = p.centre();
    EXPECT_TRUE(close(f64(p.first), p.sum_of([&](double v) { return (v - m) * r; }), 2e-6)) << in.value;
    EXPECT_TRUE(close(f64(p.second), p.sum_of([](double) { return 1; }), 2e-6)) << in.value;
  }
}

TEST(very_many_rows, layer_norm_keeps_its_error) {
  problem p(std::size_t{1} << 23, 1, 0.1f);
  tigon::layer_norm_backward<usual_backend>(p.view(p.dy), p.view(p.x), p.w, p.mean, p.rstd,
                                            tigon::norm_gradients{p.out(), p.first, p.second}, {.eps = eps});
  EXPECT_TRUE(close(f64(p.second), p.sum_of([](double) { return 1; }), 2e-6));
}

TYPED_TEST(many_rows, fused_add_rms_norm_keeps_its_error) {
  for (const input in : inputs) {
    problem p(rows, 9, in.value, in.signs);
    p.without_mean();
    tigon::fused_add_rms_norm_backward<TypeParam>(p.view(p.dy), {}, p.view(p.x), p.w, p.rstd,
                                                  tigon::fused_add_rms_norm_gradients{p.out(), p.first}, {.eps = eps});
    const double r = 1 / std::sqrt(p.square() + eps);
    EXPECT_TRUE(close(f64(p.first), p.sum_of([&](double v) { return v * r; }), 2e-6)) << in.value;
  }
}

TYPED_TEST(many_rows, modulated_rms_norm_keeps_its_error) {
  for (const std::size_t groups : {std::size_t{1}, std::size_t{4}, std::size_t{64}}) {
    problem p(rows, 9, 0.1f);
    p.without_mean();
    std::vector<float> scale(groups * p.cols, 0.0f), dscale(scale.size()), dshift(scale.size());
    const auto of_groups = [&](auto& v) { return matrix_view(v.data(), groups, p.cols); };
    tigon::modulated_rms_norm_backward<TypeParam>(
        p.view(p.dy), p.view(p.x), p.w, matrix_view<const float>(of_groups(scale)), p.rstd,
        tigon::modulated_rms_norm_gradients{p.out(), p.first, of_groups(dscale), of_groups(dshift)},
        {.eps = eps, .group_rows = rows / groups});
    const double r = 1 / std::sqrt(p.square() + eps);
    EXPECT_TRUE(close(f64(p.first), p.sum_of([&](double v) { return v * r; }), 2e-6)) << groups;
    p.weight /= static_cast<double>(groups);
    const auto one = p.sum_of([](double) { return 1; }), scaled = p.sum_of([&](double v) { return v * r; });
    std::vector<double> all_ones, all_scaled;
    for (std::size_t g = 0; g < groups; ++g)
      all_ones.insert(all_ones.end(), one.begin(), one.end()),
          all_scaled.insert(all_scaled.end(), scaled.begin(), scaled.end());
    EXPECT_TRUE(close(f64(dshift), all_ones, 2e-6)) << groups;
    EXPECT_TRUE(close(f64(dscale), all_scaled, 2e-6)) << groups;
  }
}

TYPED_TEST(many_rows, group_norm_keeps_its_error) {
  constexpr std::size_t channels = 2, positions = 9;
  problem p(rows / 2, positions, 0.1f);  // groups of one channel
  std::vector<float> w(channels, 1), dw(channels), db(channels);
  tigon::group_norm_backward<TypeParam>(p.view(p.dy), p.view(p.x), w, p.mean, p.rstd,
                                        tigon::norm_gradients{p.out(), dw, db},
                                        {.groups = channels, .channels = channels, .eps = eps});
  const double sum = p.weight / channels * p.dy[0] * positions;
  EXPECT_TRUE(close(f64(db), std::vector<double>{sum, sum}, 2e-6));
}

TYPED_TEST(many_rows, dyt_keeps_its_error) {
  for (const input in : inputs) {
    problem p(rows, 9, in.value, in.signs);
    const std::vector<float> alpha{0.5f};
    std::vector<float> dalpha{-1};
    tigon::dyt_backward<TypeParam>(p.view(p.dy), p.view(p.x), alpha, p.w,
                                   tigon::dyt_gradients{p.out(), dalpha, p.first, p.second});
    const auto near = [&](const auto& got, const auto& want) {  // of |reference| + the root sum of squares
      for (std::size_t j = 0; j < p.cols; ++j)
        if (std::abs(got[j] - want[j]) > 2e-6 * (std::abs(want[j]) + std::abs(p.dy[0]) * std::sqrt(rows)))
          return testing::AssertionFailure() << got[j] << " instead of " << want[j];
      return testing::AssertionSuccess();
    };
    EXPECT_TRUE(near(p.first, p.sum_of([](double v) { return std::tanh(0.5 * v); }))) << in.value;
    EXPECT_TRUE(near(p.second, p.sum_of([](double) { return 1; }))) << in.value;
    double want = 0;
    for (const double v : p.sum_of([](double x) { return x * (1 - std::tanh(0.5 * x) * std::tanh(0.5 * x)); }))
      want += v;
    EXPECT_NEAR(dalpha[0], want, 2e-6 * (std::abs(want) + std::abs(p.dy[0]) * std::sqrt(rows * p.cols))) << in.value;
  }
}

TYPED_TEST(many_rows, embedding_keeps_its_error) {
  for (const input in : inputs) {
    problem p(2 * rows, 1, in.value, in.signs);
    std::vector<std::int32_t> ids(p.rows, 1);
    std::vector<float> dweight(2, -1);
    for (const gradient mode : {gradient::overwrite, gradient::accumulate}) {
      tigon::embedding_backward<TypeParam>(p.view(p.dy), ids, matrix_view<float>(dweight.data(), 2, 1),
                                           {.dweight = mode});
      const double sums = mode == gradient::overwrite ? 1 : 2, want = sums * p.weight * p.dy[0];
      EXPECT_NEAR(dweight[1], want, sums * 2e-6 * p.dy[0] * static_cast<double>(in.signs ? 0x1p12 : p.rows));
      EXPECT_EQ(dweight[0], 0);
    }
  }
}

TYPED_TEST(many_rows, infinite_and_undefined_sums_stay_what_they_are) {
  problem p(5000, 3, 0.1f);
  p.dy[3 * 70] = static_cast<float>(infinity);
  p.dy[3 * 4000 + 1] = -static_cast<float>(infinity);
  p.dy[3 * 1000 + 2] = std::numeric_limits<float>::quiet_NaN();
  tigon::layer_norm_backward<TypeParam>(p.view(p.dy), p.view(p.x), p.w, p.mean, p.rstd,
                                        tigon::norm_gradients{p.out(), p.first, p.second}, {.eps = eps});
  EXPECT_EQ(p.second[0], infinity);
  EXPECT_EQ(p.second[1], -infinity);
  EXPECT_TRUE(std::isnan(p.second[2]));
  const std::vector<int> ids(p.rows, 0);
  tigon::embedding_backward<TypeParam>(p.view(p.dy), ids, matrix_view<float>(p.first.data(), 1, 3));
  EXPECT_EQ(p.first[0], infinity);
  EXPECT_EQ(p.first[1], -infinity);
  EXPECT_TRUE(std::isnan(p.first[2]));
}

/// One row whose terms are all alike, 65536 blocks of the sum on single numbers.
TEST(very_long_rows, keep_the_error_of_rms_norm) {
  const auto keeps = []<class B>(std::type_identity<B>) {
    constexpr std::size_t cols = std::size_t{1} << 24;
    std::vector<float> x(cols, 0.1f), y(cols), rstd(1);
    tigon::rms_norm_forward<B>(matrix_view<const float>(x.data(), 1, cols), absent,
                               matrix_view<float>(y.data(), 1, cols), rstd, {.eps = eps});
    const double v = x[0], want = v / std::sqrt(v * v + eps);
    EXPECT_NEAR(y[0], want, 2 * 4e-7 * want);  // |reference| is its root mean square
    EXPECT_EQ(y[0], y[cols - 1]);
  };
  keeps(std::type_identity<backends::generic>());
  keeps(std::type_identity<usual_backend>());
}

#if defined(TIGON_TESTS_ENGINES)

/// A chip with little memory, so that a row has very many blocks of columns.
struct small_chip : backends::ascend {
  using parent = backends::ascend;
  static constexpr tigon::backend_info info{"small_chip", {tigon::device::npu}};
  using overrides = tigon::op_list<>;
  static constexpr std::size_t tile_capacity_bits = 48 * 8192;
};

/// One row whose blocks of columns are all alike.
TEST(very_long_rows, in_blocks_of_columns_keep_their_error) {
  using B = small_chip;
  constexpr std::size_t cols = std::size_t{1} << 22;
  constexpr double n = cols;
  std::vector<float> x(cols), dy(cols, 0.7f), y(cols), dx(cols), mean(1), rstd(3), loss(1);
  for (std::size_t j = 0; j < cols; ++j) x[j] = j % 2 == 0 ? 0.1f : 0.3f;
  const auto row = [=](auto& v) { return matrix_view(v.data(), 1, cols); };
  const auto in = [=](const auto& v) { return matrix_view<const float>(v.data(), 1, cols); };
  const double a = x[0], b = x[1], up = dy[0];
  const auto expect = [](double got, double want, double bound) { EXPECT_NEAR(got / want, 1, 2 * bound); };

  const double root = std::sqrt((a * a + b * b) / 2 + eps), of_rms = (a + b) / 2 / root;
  tigon::rms_norm_forward<B>(in(x), absent, row(y), std::span(rstd).first(1), {.eps = eps});
  expect(y[0], a / root, 4e-7);
  rstd[0] = static_cast<float>(1 / root);
  tigon::rms_norm_backward<B>(in(dy), in(x), absent, std::span<const float>(rstd).first(1), row(dx), absent);
  expect(dx[0], up * (1 - a / root * of_rms) / root, 1e-6);

  const double m = (a + b) / 2, deviation = std::sqrt((b - a) * (b - a) / 4 + eps);
  tigon::layer_norm_forward<B>(in(x), absent, absent, row(y), mean, std::span(rstd).first(1), {.eps = eps});
  expect(mean[0], m, 4e-7), expect(y[0], (a - m) / deviation, 4e-7);
  mean[0] = static_cast<float>(m), rstd[0] = static_cast<float>(1 / deviation);
  for (std::size_t j = 0; j < cols; ++j) dy[j] = j % 4 < 2 ? 0.7f : 0;  // nothing of xh, and a mean
  tigon::layer_norm_backward<B>(in(dy), in(x), absent, mean, std::span<const float>(rstd).first(1),
                                tigon::norm_gradients{row(dx), absent, absent}, {.eps = eps});
  expect(dx[0], up / 2 / deviation, 2e-6);

  const double sum = n / 2 * (std::exp(a - b) + 1), p = 1 / sum;
  tigon::softmax_forward<B>(in(x), row(y));
  expect(y[1], p, 1e-6);
  for (float& v : y) v = static_cast<float>(1 / n);
  for (std::size_t j = 0; j < cols; ++j) dy[j] = j % 4 == 0 ? 0.7f : 0;
  tigon::softmax_backward<B>(in(dy), in(y), row(dx));
  expect(dx[1], -up / 4 / n, 1e-6);

  const std::vector<std::int32_t> target{1};
  tigon::cross_entropy_forward<B, float>(in(x), target, loss, row(dx), {.label_smoothing = 0.25});
  expect(loss[0], 0.75 * std::log(sum) + 0.25 * (std::log(sum) - (a - b) / 2), 4e-7);

  const double k1 = root, k2 = std::sqrt((std::pow(a, 4) + std::pow(b, 4)) / 2 + eps),
               k3 = std::sqrt((std::pow(a, 6) + std::pow(b, 6)) / 2 + eps);
  const std::vector<float> w{0.5f, 0.25f, 1}, bias{0};
  tigon::poly_norm_forward<B, float>(in(x), w, bias, row(y), rstd, {.eps = eps});
  expect(y[1], 0.5 * b * b * b / k3 + 0.25 * b * b / k2 + b / k1, 4e-7);
}
#endif

/// Lines of an axis that share a sum of 1, along the rows and down the columns.
TYPED_TEST(many_rows, sparsemax_keeps_its_error) {
  constexpr std::size_t axis = 3 * (std::size_t{1} << 16) + 7, inner = 2;
  std::vector<float> x(axis * inner, 0.3f), dy(x.size()), y(x.size()), dx(x.size());
  const double share = 1 / static_cast<double>(axis), mean = 0.1f * static_cast<double>(axis / 2) * share;
  for (std::size_t k = 0; k < x.size(); ++k) dy[k] = k / inner % 2 == 0 ? 0 : 0.1f;  // far from all alike
  const auto down = [=](auto& v) {
    return tigon::axis_view<std::remove_reference_t<decltype(v[0])>>(v.data(), 1, axis, inner, axis * inner, inner);
  };
  const auto expect_results = [&](std::size_t n, const char* name) {
    for (std::size_t k = 0; k < n; ++k) {
      ASSERT_NEAR(y[k], share, 2e-6 * share) << name << ' ' << k;
      ASSERT_NEAR(dx[k], dy[k] - mean, 1e-7) << name << ' ' << k;  // their size is 0.05
    }
  };
  with_workspace_of(tigon::sparsemax_workspace<TypeParam, float>(axis, inner), [&](context& ctx) {
    tigon::sparsemax_forward<TypeParam, float>(down(std::as_const(x)), down(y), {}, ctx);
  });
  with_workspace_of(tigon::sparsemax_backward_workspace<TypeParam, float>(axis, inner), [&](context& ctx) {
    tigon::sparsemax_backward<TypeParam, float>(down(std::as_const(dy)), down(std::as_const(y)), down(dx), {}, ctx);
  });
  expect_results(x.size(), "columns");
  for (std::size_t k = 0; k < axis; ++k) dy[k] = k % 2 == 0 ? 0 : 0.1f;
  const auto row = [=](auto& v) { return matrix_view(v.data(), 1, axis); };
  tigon::sparsemax_forward<TypeParam, float>(row(std::as_const(x)), row(y));
  tigon::sparsemax_backward<TypeParam, float>(row(std::as_const(dy)), row(std::as_const(y)), row(dx));
  expect_results(axis, "rows");
}

/// Rows of tasks that end before, at and behind the rows of a plain sum.
TYPED_TEST(many_rows, threads_change_no_bit_and_the_stated_workspace_is_enough) {
  for (const std::size_t n : {std::size_t{2048}, std::size_t{2049}, std::size_t{5003}})
    for (const std::size_t cols : {std::size_t{1}, std::size_t{37}, std::size_t{1500}}) {
      if (cols > 37 && n != 2049) continue;
      SCOPED_TRACE(testing::Message() << n << " x " << cols);
      problem p(n, cols, 0.1f, true);
      for (std::size_t k = 0; k < p.x.size(); ++k) p.x[k] += static_cast<float>(k % 1009) * 0x1p-10f;
      const std::vector<float> alpha{0.5f};
      std::vector<std::int32_t> ids(n);
      for (std::size_t i = 0; i < n; ++i) ids[i] = static_cast<std::int32_t>(i % 5 == 0);
      std::vector<float> dalpha(1), of_dyt(2 * cols), dweight(2 * cols);
      const auto layer_norm = [&](context& ctx) {
        tigon::layer_norm_backward<TypeParam>(p.view(p.dy), p.view(p.x), p.w, p.mean, p.rstd,
                                              tigon::norm_gradients{p.out(), p.first, p.second}, {.eps = eps}, ctx);
      };
      const auto dyt = [&](context& ctx) {
        tigon::dyt_backward<TypeParam>(
            p.view(p.dy), p.view(p.x), alpha, p.w,
            tigon::dyt_gradients{p.out(), dalpha, std::span(of_dyt).first(cols), std::span(of_dyt).last(cols)}, {},
            ctx);
      };
      const auto embedding = [&](context& ctx) {
        tigon::embedding_backward<TypeParam>(p.view(p.dy), ids, matrix_view<float>(dweight.data(), 2, cols), {}, ctx);
      };
      EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
        layer_norm(ctx), dyt(ctx), embedding(ctx);
        std::vector<std::byte> bits;
        for (const auto* v : {&p.first, &p.second, &p.dx, &dalpha, &of_dyt, &dweight}) {
          const auto bytes = std::as_bytes(std::span(*v));
          bits.insert(bits.end(), bytes.begin(), bytes.end());
        }
        return bits;
      }));
      with_workspace_of(tigon::layer_norm_workspace<TypeParam, float>(n, cols) + 64, layer_norm, 3);
      with_workspace_of(tigon::dyt_workspace<TypeParam, float>(n, cols) + 64, dyt, 3);
    }
}

}  // namespace
