// The contract of include/tigon/losses/cross_entropy.hpp, promise by promise, on every backend.
#include <gtest/gtest.h>

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/cross_entropy.hpp>
#include <tigon/losses/cross_entropy.hpp>

#include "support/backends.hpp"
#include "support/complex_step.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/logit_loss.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::absent, tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::reduction;
using options = tigon::cross_entropy_options;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type loss_bound{.f32 = 4e-7, .bf16 = 4e-7, .f16 = 4e-7, .f64 = 2e-15};
constexpr by_type gradient_bound{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-15};

struct variant {
  const char* name;
  bool weighted;
  options opt;
};
const variant variants[] = {
    {"plain", false, {}},
    {"rows, a class is ignored", true, {.ignore_index = 0, .reduction = reduction::none}},
    {"smoothed sum", false, {.reduction = reduction::sum, .label_smoothing = 0.1}},
    {"softcap, z-loss", false, {.lse_square_scale = 0.01, .softcap = 3}},
    {"all",
     true,
     {.ignore_index = 2, .label_smoothing = 0.2, .lse_square_scale = 0.05, .softcap = 5, .denominator = 7}},
    {"all smoothed", true, {.reduction = reduction::none, .label_smoothing = 1, .lse_square_scale = 0.05}},
};

/// Every buffer at a guard page, outputs full of canaries.
template <class T, class W = T, class I = std::int64_t>
struct problem {
  using A = accumulator_t<T>;
  variant v;
  guarded_matrix<T> logits, dlogits;
  guarded<I> target;
  guarded<W> weight;
  guarded<A> loss, z_loss, accuracy;
  guarded<std::int64_t> predicted;

  TIGON_TEST_NOINLINE explicit problem(shape s, variant of = variants[0], guard side = guard::behind)
      : v(of),
        logits(random_matrix<T>(s, 1, side, {.deviation = 2})),
        dlogits(s.rows, s.cols, s.padding, side),
        target(s.rows, side),
        weight(v.weighted ? s.cols : 0, side),
        loss(v.opt.reduction == reduction::none ? s.rows : 1, side),
        z_loss(loss.size(), side),
        accuracy(loss.size(), side),
        predicted(s.rows, side) {
    std::ranges::copy(random_labels(s.rows, s.cols, v.opt.ignore_index, 2), target.begin());
    if (v.weighted) weight.assign(random_class_weights(s.cols, 3));
  }

  template <class B>
  TIGON_TEST_NOINLINE void forward(tigon::matrix_view<T> to, context& ctx = tigon::default_context()) {
    const tigon::cross_entropy_metrics<A> metrics{z_loss, accuracy, predicted};
    if (v.weighted)
      tigon::cross_entropy_forward<B>(logits, target, loss, to, v.opt, weight, metrics, ctx);
    else
      tigon::cross_entropy_forward<B>(logits, target, loss, to, v.opt, absent, metrics, ctx);
  }
  template <class B>
  void forward(context& ctx = tigon::default_context()) {
    forward<B>(dlogits.view(), ctx);
  }
  auto results() const { return bits_of(loss, z_loss, accuracy, predicted); }

  TIGON_TEST_NOINLINE std::vector<std::int64_t> labels() const { return {target.begin(), target.end()}; }
  TIGON_TEST_NOINLINE std::vector<double> weights() const {
    return v.weighted ? weight.f64() : std::vector<double>(logits.cols(), 1);
  }
  loss_reference wanted() const { return {logits.f64(), labels(), logits.cols(), weights(), v.opt}; }
  std::vector<double> of_reduction(const std::vector<double>& rows, double total) const {
    return v.opt.reduction == reduction::none ? rows : std::vector<double>{total};
  }
  TIGON_TEST_NOINLINE std::vector<double> predicted_wanted() const {
    std::vector<double> out;
    const auto values = logits.f64();
    for (std::size_t i = 0; i < logits.rows(); ++i) {
      const auto row = values.begin() + static_cast<std::ptrdiff_t>(i * logits.cols());
      const auto best = std::max_element(row, row + static_cast<std::ptrdiff_t>(logits.cols())) - row;
      out.push_back(target[i] == v.opt.ignore_index ? -1 : static_cast<double>(best));
    }
    return out;
  }
  TIGON_TEST_NOINLINE std::vector<double> accuracy_wanted() const {
    std::vector<double> rows;
    double kept = 0, hits = 0;
    for (std::size_t i = 0; i < target.size(); ++i) {
      const bool counts = target[i] != v.opt.ignore_index;
      rows.push_back(counts && predicted_wanted()[i] == static_cast<double>(target[i]));
      kept += counts, hits += rows.back();
    }
    return of_reduction(rows, kept == 0 ? 0 : hits / kept);
  }
};

template <class On>
class cross_entropy : public testing::Test {};
TYPED_TEST_SUITE(cross_entropy, every_pair, names);

TYPED_TEST(cross_entropy, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : row_shapes<B, T>())
    for (const variant& v : variants) {
      const loss_reference wanted = problem<T>(s, v).wanted();
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", " << v.name << ", " << side);
        problem<T> p(s, v, side);
        p.template forward<B>();
        const comparison with{.may_be_empty = s.rows == 0};
        EXPECT_TRUE(close(p.loss.f64(), p.of_reduction(wanted.loss, wanted.total), loss_bound.of<T>(), with));
        EXPECT_TRUE(close(p.z_loss.f64(), p.of_reduction(wanted.z_loss, wanted.z_total), loss_bound.of<T>(), with));
        EXPECT_TRUE(close(p.dlogits.f64(), wanted.dlogits, gradient_bound.of<T>(), with));
        EXPECT_EQ(p.predicted.f64(), p.predicted_wanted());
        EXPECT_TRUE(close(p.accuracy.f64(), p.accuracy_wanted(), 1e-7, with));
        EXPECT_TRUE(p.dlogits.padding_intact());
      }
    }
}

TYPED_TEST(cross_entropy, is_exact_where_the_target_is_confident) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const double lift : {16.0, 25.0})
    for (const double softcap : {0.0, 30.0}) {
      problem<T> p({8, 1000}, {"rows", false, {.reduction = reduction::none, .softcap = softcap}});
      const double bound = (std::same_as<T, double> ? 1e-10 : softcap == 0 ? 1e-6 : 1e-5);
      p.target[1] = 7;
      for (std::size_t i = 0; i < 8; ++i) {
        const auto row = std::span(&p.logits(i, 0), 1000);
        const double top = to_f64(*std::ranges::max_element(row, {}, to_f64<T>));
        p.logits(i, static_cast<std::size_t>(p.target[i])) = from_f64<T>(top + lift);
      }
      p.template forward<B>();
      const loss_reference wanted = p.wanted();
      for (std::size_t i = 0; i < 8; ++i) {
        EXPECT_NEAR(to_f64(p.loss[i]) / wanted.loss[i], 1, bound);
        const std::size_t t = static_cast<std::size_t>(p.target[i]);
        // The target's own gradient, p_t - 1. f16 has no numbers that small.
        if (std::same_as<T, tigon::float16>) continue;
        EXPECT_NEAR(to_f64(p.dlogits(i, t)) / wanted.dlogits[i * 1000 + t], 1,
                    (std::same_as<T, bfloat16> ? 4e-3 : bound));
      }
    }
}

/// A row is summed below its target's logit or below its maximum, whole or in pieces.
TYPED_TEST(cross_entropy, keeps_its_error_in_wide_rows_and_where_the_maximum_is_far) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  for (const std::size_t cols : {std::size_t{1003}, B::row.cpu.prefetch_row_bytes / sizeof(T) + 4099}) {
    const variant rows{"rows", false, {.reduction = reduction::none}};
    problem<T> p({5, cols}, rows), in_place({5, cols}, rows);
    const auto at = [&](std::size_t i) { return static_cast<std::size_t>(p.target[i]); };
    p.target.assign({3, static_cast<double>(cols) - 2, 5, static_cast<double>(cols / 2), 0});
    p.logits(1, at(1)) = from_f64<T>(25);                                                // confident, in the last piece
    p.logits(2, at(2)) = from_f64<T>(-70);                                               // far below the maximum
    for (std::size_t j = 0; j < cols / 3; ++j) p.logits(3, j) = from_f64<T>(-infinity);  // the whole first piece
    p.logits(4, 1) = from_f64<T>(-3.3e38);  // no power of e that a sum would stand
    std::ranges::copy(p.target, in_place.target.begin());
    for (std::size_t i = 0; i < 5; ++i) std::ranges::copy(std::span(&p.logits(i, 0), cols), &in_place.logits(i, 0));
    auto values = p.logits.f64();
    for (double& v : values) v = std::max(v, -1e4);
    const loss_reference wanted(values, p.labels(), cols, p.weights(), p.v.opt);
    p.template forward<B>();
    in_place.template forward<B>(in_place.logits.view());
    EXPECT_EQ(bits_of(in_place.logits), bits_of(p.dlogits)) << cols;
    EXPECT_EQ(in_place.results(), p.results()) << cols;
    EXPECT_TRUE(close(p.dlogits.f64(), wanted.dlogits, gradient_bound.of<T>())) << cols;
    const double bound = std::same_as<A, double> ? 1e-14 : 1e-6;
    for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(p.loss[i] / wanted.loss[i], 1, bound) << cols << ", row " << i;
  }
}

TYPED_TEST(cross_entropy, gradients_of_a_row_add_up_to_that_of_the_z_loss) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const double z : {0.0, 0.1}) {
    problem<T> p({5, 1003},
                 {"rows", true, {.reduction = reduction::none, .label_smoothing = 0.1, .lse_square_scale = z}});
    p.template forward<B>();
    for (std::size_t i = 0; i < 5; ++i) {
      double sum = 0, size = 0;
      for (std::size_t j = 0; j < 1003; ++j) sum += to_f64(p.dlogits(i, j)), size += std::abs(to_f64(p.dlogits(i, j)));
      const double lse = z == 0 ? 0 : std::sqrt(to_f64(p.z_loss[i]) / z);
      EXPECT_NEAR(sum, 2 * z * lse, gradient_bound.of<T>() * (size + 1e-30)) << "row " << i;
    }
  }
}

TYPED_TEST(cross_entropy, gradient_may_overwrite_the_logits_or_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants) {
    const shape s{3, 4 * lanes<B, T> + 3, 2};
    problem<T> apart(s, v), in_place(s, v), without(s, v);
    apart.template forward<B>();
    in_place.template forward<B>(in_place.logits.view());
    without.template forward<B>(tigon::matrix_view<T>{});
    EXPECT_EQ(bits_of(in_place.logits), bits_of(apart.dlogits)) << v.name;
    EXPECT_EQ(in_place.results(), apart.results()) << v.name;
    EXPECT_EQ(without.results(), apart.results()) << v.name;
  }
}

TYPED_TEST(cross_entropy, ignored_rows_are_not_read) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (variant v : variants)
    for (const reduction r : {reduction::mean, reduction::none}) {
      v.opt.reduction = r;
      problem<T> p({3, 37}, v);
      std::ranges::fill(p.target, v.opt.ignore_index);
      p.logits.assign(std::vector<double>(3 * 37, nan));
      p.template forward<B>();
      for (const auto& zeros : {p.loss.f64(), p.z_loss.f64(), p.accuracy.f64(), p.dlogits.f64()})
        EXPECT_EQ(std::ranges::count(zeros, 0.0), std::ssize(zeros)) << v.name;
      EXPECT_EQ(p.predicted.f64(), std::vector<double>(3, -1)) << v.name;
    }
}

TYPED_TEST(cross_entropy, bad_rows_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t n = lanes<B, T>;
  const shape s{4, 2 * n + 3};
  const variant rows{"rows", false, {.reduction = reduction::none}};
  problem<T> clean(s, rows);
  std::ranges::fill(clean.target, 0);
  clean.template forward<B>();
  const auto with = [&](std::size_t column, double bad) {
    problem<T> p(s, rows);
    std::ranges::fill(p.target, 0);
    p.logits(2, column) = from_f64<T>(bad);
    p.template forward<B>();
    for (const std::size_t i : {0u, 1u, 3u}) {
      EXPECT_EQ(p.loss[i], clean.loss[i]);
      EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(&p.dlogits(i, 0), s.cols)),
                                     std::as_bytes(std::span(&clean.dlogits(i, 0), s.cols))));
    }
    return p;
  };
  for (const std::size_t column : {std::size_t{0}, n - 1, n, s.cols - 1})
    for (const double bad : {nan, infinity}) {
      SCOPED_TRACE(testing::Message() << bad << " in column " << column);
      const problem<T> p = with(column, bad);
      EXPECT_TRUE(std::isnan(p.loss[2]));
      EXPECT_EQ(p.predicted[2], -1);
      for (std::size_t j = 0; j < s.cols; ++j) EXPECT_TRUE(std::isnan(to_f64(p.dlogits(2, j)))) << j;
    }
  const problem<T> other = with(s.cols - 1, -infinity), at_target = with(0, -infinity);
  EXPECT_TRUE(std::isfinite(other.loss[2]));
  EXPECT_EQ(to_f64(other.dlogits(2, s.cols - 1)), 0);
  EXPECT_EQ(to_f64(at_target.loss[2]), infinity);
  EXPECT_EQ(to_f64(at_target.dlogits(2, 0)), -1);
  for (std::size_t j = 1; j < s.cols; ++j) EXPECT_TRUE(std::isfinite(to_f64(at_target.dlogits(2, j))));
  problem<T> nothing({1, 5}, rows);
  nothing.logits.assign(std::vector<double>(5, -infinity));
  nothing.template forward<B>();
  EXPECT_TRUE(std::isnan(nothing.loss[0]));
  EXPECT_EQ(nothing.predicted[0], -1);
}

TYPED_TEST(cross_entropy, predicts_the_first_of_equals) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t n = lanes<B, T>;
  const std::size_t cols = 9 * n + 5;
  for (const std::size_t first : {std::size_t{0}, n, 4 * n + 1, cols - 2})
    for (const double softcap : {0.0, 0.5}) {  // at 0.5 tanh is 1 for several columns
      problem<T> p({1, cols}, {"rows", false, {.softcap = softcap}});
      p.logits.assign(std::vector<double>(cols, 20.0));
      p.logits(0, first) = p.logits(0, cols - 1) = from_f64<T>(21);
      p.target[0] = static_cast<std::int64_t>(first);
      p.template forward<B>();
      EXPECT_EQ(p.predicted[0], static_cast<std::int64_t>(first));
      EXPECT_EQ(p.accuracy[0], 1);
    }
}

/// A column is found by an index of its own, not by a number of f32, which has no odd ones above 2^24.
TYPED_TEST(cross_entropy, predicts_any_of_very_many_classes) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  if (!std::same_as<accumulator_t<T>, float>) return;
  constexpr std::size_t edge = std::size_t{1} << 24, cols = edge + 100;
  guarded_matrix<T> logits(1, cols);
  guarded<std::int64_t> target(1), predicted(1);
  guarded<accumulator_t<T>> loss(1), accuracy(1);
  logits.assign(std::vector<double>(cols, -1));
  for (const std::size_t at : {edge - 1, edge, edge + 1, edge + 77, cols - 1}) {
    logits(0, at) = from_f64<T>(2), target[0] = static_cast<std::int64_t>(at);
    tigon::cross_entropy_forward<B>(logits, target, loss, tigon::matrix_view<T>{}, {}, absent,
                                    {.token_accuracy = accuracy, .predicted_tokens = predicted});
    EXPECT_EQ(predicted[0], target[0]);
    EXPECT_EQ(accuracy[0], 1);
    logits(0, at) = from_f64<T>(-1);
  }
  logits(0, 3) = logits(0, edge + 7) = from_f64<T>(2), target[0] = 3;  // the first of equals, also far from each other
  tigon::cross_entropy_forward<B>(logits, target, loss, tigon::matrix_view<T>{}, {}, absent,
                                  {.token_accuracy = accuracy, .predicted_tokens = predicted});
  EXPECT_EQ(predicted[0], 3);
  EXPECT_EQ(accuracy[0], 1);
}

/// With a cap an infinite logit is any number far beyond the cap; in a row of -inf the first class is the largest.
template <class B, class T>
void expect_capped_infinities() {
  const variant rows{"rows", true, {.reduction = reduction::none, .label_smoothing = 0.1, .softcap = 4}};
  for (const std::size_t cols : {std::size_t{7}, std::size_t{1003}}) {
    problem<T> p({4, cols}, rows), large({4, cols}, rows);
    const auto set = [&](std::size_t i, std::size_t j, double v) {
      p.logits(i, j) = from_f64<T>(v * infinity), large.logits(i, j) = from_f64<T>(v);
    };
    set(0, 2, 2e4), set(0, cols - 1, 1e4), set(0, 3, -1e4), set(1, 4, -1e4), set(2, 5, 1e4);
    for (std::size_t j = 0; j < cols; ++j) set(3, j, -1e4);
    for (auto* each : {&p, &large}) each->target[0] = 1, each->target[1] = 4, each->target[2] = 5, each->target[3] = 3;
    p.template forward<B>(), large.template forward<B>();
    EXPECT_EQ(bits_of(p.dlogits), bits_of(large.dlogits));
    EXPECT_EQ(p.results(), large.results());
    EXPECT_EQ(p.predicted[0], 2);
    EXPECT_EQ(p.predicted[2], 5);
    EXPECT_EQ(p.predicted[3], 0);
    for (const double l : p.loss.f64()) EXPECT_TRUE(std::isfinite(l)) << cols;
    p.logits(3, 2) = from_f64<T>(nan);
    p.template forward<B>();
    EXPECT_TRUE(std::isnan(p.loss[3]));
    EXPECT_EQ(p.predicted[3], -1);
  }
}
TYPED_TEST(cross_entropy, capped_logits_may_be_infinite) {
  expect_capped_infinities<typename TypeParam::backend, typename TypeParam::element>();
}
TEST(cross_entropy_on_ascend, capped_logits_may_be_infinite) {
  expect_capped_infinities<tigon::backends::ascend, float>();
  expect_capped_infinities<tigon::backends::ascend, bfloat16>();
}

TYPED_TEST(cross_entropy, an_upstream_gradient_that_is_not_finite_leaves_ignored_rows) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  const auto check = [&]<class On>() {
    problem<T> p({3, 37}, {"rows", false, {.reduction = reduction::none}});
    p.target[0] = p.target[2] = 4, p.target[1] = -100;
    guarded<A> upstream{1, nan, nan};
    p.template forward<On>();
    tigon::cross_entropy_backward<On>(p.dlogits, upstream, p.dlogits.view());
    tigon::cross_entropy_backward_recompute<On>(p.logits, p.target, upstream, p.logits.view(), p.v.opt);
    for (const auto* d : {&p.dlogits, &p.logits})
      for (std::size_t j = 0; j < 37; ++j) {
        EXPECT_EQ(to_f64((*d)(1, j)), 0);
        EXPECT_TRUE(std::isnan(to_f64((*d)(2, j))));
      }
  };
  check.template operator()<B>();
  check.template operator()<tigon::backends::ascend>();
}

/// Its parent, on a core on which rows that were read before are taken from their end.
template <class Parent>
struct reversed : Parent {
  using parent = Parent;
  static constexpr tigon::backend_info info = Parent::info;
  using overrides = tigon::op_list<>;
  static constexpr tigon::row_tuning row = [] {
    tigon::row_tuning tuning = Parent::row;
    tuning.cpu.order = tigon::row_order::lookahead;
    return tuning;
  }();
};

TYPED_TEST(cross_entropy, metrics_do_not_change_the_loss) {
  using B = reversed<typename TypeParam::backend>;
  using T = typename TypeParam::element;
  for (const std::size_t cols : {std::size_t{5001}, std::size_t{20011}}) {
    problem<T> p({12, cols}, {"rows", false, {.reduction = reduction::none}}), plain({12, cols}, p.v);
    p.template forward<B>();
    tigon::cross_entropy_forward<B>(plain.logits, plain.target, plain.loss, plain.dlogits.view(), plain.v.opt);
    EXPECT_EQ(bits_of(p.loss, p.dlogits), bits_of(plain.loss, plain.dlogits));
  }
}

TYPED_TEST(cross_entropy, large_gradients_have_the_bits_of_small_ones) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const shape s{B::row.stream_bytes / (5000 * sizeof(T)) + 2, 5001, 4};
  const variant sum{"sum", false, {.reduction = reduction::sum}};
  problem<T> p(s, sum), small({3, s.cols, s.padding}, sum);
  p.template forward<B>();
  EXPECT_TRUE(p.dlogits.padding_intact());
  for (const std::size_t first : {std::size_t{0}, s.rows - 3}) {
    tigon::cross_entropy_forward<B>(p.logits.view().rows_from(first, 3), std::span(p.target).subspan(first, 3),
                                    small.loss, small.dlogits.view(), sum.opt);
    for (std::size_t i = 0; i < 3; ++i)
      ASSERT_TRUE(std::ranges::equal(std::as_bytes(std::span(&p.dlogits(first + i, 0), s.cols)),
                                     std::as_bytes(std::span(&small.dlogits(i, 0), s.cols))))
          << "row " << first + i;
  }
}

TYPED_TEST(cross_entropy, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({40, 5003}, variants[2]);  // four tasks
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.dlogits.clear(), p.loss.clear(), p.z_loss.clear(), p.accuracy.clear(), p.predicted.clear();
    p.template forward<B>(ctx);
    return bits_of(p.dlogits, p.loss, p.z_loss, p.accuracy, p.predicted);
  }));
}

TYPED_TEST(cross_entropy, backward_multiplies_by_the_upstream_gradient) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  const auto saved = random_matrix<T>({5, 2 * lanes<B, T> + 3, 2}, 1);
  const guarded<A> one{-0.7}, each{1, 2, -3, 0.3, 0};
  for (const guarded<A>* upstream : {&one, &each}) {
    guarded_matrix<T> out(5, saved.cols(), 1);
    tigon::cross_entropy_backward<B>(saved, *upstream, out.view());
    for (std::size_t i = 0; i < 5; ++i)
      for (std::size_t j = 0; j < saved.cols(); ++j)
        EXPECT_EQ(to_f64(out(i, j)),
                  to_f64(static_cast<T>(static_cast<A>(saved(i, j)) * (*upstream)[i % upstream->size()])));
    EXPECT_TRUE(out.padding_intact());
  }
  auto in_place = random_matrix<T>({5, saved.cols()}, 1);
  tigon::cross_entropy_backward<B>(in_place, each, in_place.view());
  EXPECT_EQ(to_f64(in_place(1, 4)), to_f64(static_cast<T>(static_cast<A>(saved(1, 4)) * 2)));
}

TYPED_TEST(cross_entropy, backward_from_the_logits_is_that_from_a_saved_gradient) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  const shape s{5, 2 * lanes<B, T> + 3, 2};
  const guarded<A> nothing_to_do{1}, twice{2}, one{-0.7}, each{1, 2, -3, 0.3, 0};
  for (const variant& v : variants)
    for (const guarded<A>* upstream : {&nothing_to_do, &twice, &one, &each}) {
      SCOPED_TRACE(testing::Message() << v.name << ", upstream of " << upstream->size() << ", " << (*upstream)[0]);
      problem<T> p(s, v), q(s, v);
      p.template forward<B>();
      guarded_matrix<T> wanted(s.rows, s.cols, 1);
      tigon::cross_entropy_backward<B>(p.dlogits, *upstream, wanted.view());
      const auto weight = v.weighted ? std::span<const T>(q.weight) : std::span<const T>{};
      tigon::cross_entropy_backward_recompute<B>(q.logits, q.target, *upstream, q.dlogits.view(), v.opt, weight);
      EXPECT_EQ(q.dlogits.f64(), wanted.f64());
      EXPECT_TRUE(q.dlogits.padding_intact());
      tigon::cross_entropy_backward_recompute<B>(q.logits, q.target, *upstream, q.logits.view(), v.opt, weight);
      EXPECT_EQ(q.logits.f64(), wanted.f64());
    }
}

TEST(cross_entropy_metrics, kept_rows_tell_a_mean_of_nothing) {
  for (const std::int64_t kept : {0, 2}) {
    problem<float> p({3, 8, 0});
    std::fill(p.target.begin(), p.target.end(), -100);
    std::fill_n(p.target.begin(), kept, 5);
    guarded<std::int64_t> count(1);
    tigon::cross_entropy_forward(p.logits, p.target, p.loss, p.dlogits.view(), {}, absent,
                                 {.token_accuracy = p.accuracy, .kept_rows = count});
    EXPECT_EQ(count[0], kept);
    EXPECT_EQ(p.loss[0] == 0, kept == 0);
  }
}

TEST(cross_entropy_metrics, may_be_wanted_one_by_one) {
  problem<float> all({5, 19}), p({5, 19});
  all.forward<tigon::default_backend>();
  const auto with = [&](const tigon::cross_entropy_metrics<float>& metrics) {
    tigon::cross_entropy_forward(p.logits, p.target, p.loss, p.dlogits.view(), p.v.opt, absent, metrics);
  };
  with({.z_loss = p.z_loss}), with({.token_accuracy = p.accuracy}), with({.predicted_tokens = p.predicted});
  EXPECT_EQ(p.results(), all.results());
}

TEST(cross_entropy_edges, no_rows_need_no_upstream_gradient) {
  problem<float> p({0, 9});
  EXPECT_NO_THROW(tigon::cross_entropy_backward_recompute(p.logits, p.target, {}, p.dlogits.view()));
}

TEST(cross_entropy_reference, gradient_is_that_of_a_complex_step) {
  for (const variant& v : variants) {
    const problem<double> p({3, 7, 0}, v);
    const auto total = [&](const auto& z) {
      using N = typename std::remove_cvref_t<decltype(z)>::value_type;
      N main = 0, square = 0;
      double kept = 0, kept_weight = 0;
      for (std::size_t i = 0; i < 3; ++i) {
        if (p.target[i] == v.opt.ignore_index) continue;
        const auto t = static_cast<std::size_t>(p.target[i]);
        const row_of_loss<N> row(std::vector<N>(z.begin() + 7 * i, z.begin() + 7 * (i + 1)), t, p.weights(), v.opt);
        main += row.main, square += v.opt.lse_square_scale * row.lse * row.lse;
        kept += 1, kept_weight += p.weights()[t];
      }
      if (v.opt.reduction != reduction::mean) return main + square;
      return v.opt.denominator != 0 ? (main + square) / v.opt.denominator : main / kept_weight + square / kept;
    };
    EXPECT_TRUE(close(p.wanted().dlogits, complex_step(total, p.logits.f64(), probes(21)), 4e-15)) << v.name;
    EXPECT_NEAR(p.wanted().total, total(p.logits.f64()), 1e-14) << v.name;
  }
}

TEST(cross_entropy_types, labels_of_32_bits_and_weights_of_another_type) {
  for (const variant& v : variants) {
    problem<bfloat16, float, std::int32_t> p({5, 67}, v);
    p.forward<tigon::default_backend>();
    const loss_reference wanted = p.wanted();
    EXPECT_TRUE(close(p.loss.f64(), p.of_reduction(wanted.loss, wanted.total), loss_bound.bf16)) << v.name;
    EXPECT_TRUE(close(p.dlogits.f64(), wanted.dlogits, gradient_bound.bf16)) << v.name;
  }
}

TEST(cross_entropy_denominator, joins_calls_on_the_parts_of_a_batch) {
  problem<double> whole({6, 33});
  whole.forward<tigon::default_backend>();
  double loss = 0;
  guarded_matrix<double> dlogits(6, 33);
  for (const std::size_t first : {0u, 3u}) {
    guarded<double> part(1);
    tigon::cross_entropy_forward(whole.logits.view().rows_from(first, 3), std::span(whole.target).subspan(first, 3),
                                 part, dlogits.view().rows_from(first, 3),
                                 {.denominator = 5});  // one of six is ignored
    loss += part[0];
  }
  EXPECT_NEAR(loss, whole.loss[0], 1e-14);
  EXPECT_TRUE(close(dlogits.f64(), whole.dlogits.f64(), 1e-15));
}

TEST(cross_entropy_edges, zero_weights_and_infinities_do_not_meet) {
  // -inf in a class of weight 0 takes no part in smoothing; in a class with weight it makes the loss infinite.
  problem<float> p({1, 9}, {"", true, {.label_smoothing = 0.1}});
  p.target[0] = 1;
  p.logits(0, 3) = -std::numeric_limits<float>::infinity();  // class 3 has weight 0
  p.forward<tigon::default_backend>();
  EXPECT_TRUE(std::isfinite(p.loss[0]));
  p.logits(0, 5) = -std::numeric_limits<float>::infinity();
  p.forward<tigon::default_backend>();
  EXPECT_EQ(to_f64(p.loss[0]), infinity);
  for (const double d : p.dlogits.f64()) EXPECT_TRUE(std::isfinite(d));
  // All kept targets of weight 0: nothing to divide by.
  problem<float> weightless({1, 9}, {"", true, {}});
  weightless.target[0] = 3;
  weightless.forward<tigon::default_backend>();
  EXPECT_EQ(weightless.loss[0], 0);
  for (const double d : weightless.dlogits.f64()) EXPECT_EQ(d, 0);
}

TEST(cross_entropy_edges, gradients_are_never_subnormal) {
  problem<float> p({1, 64});
  for (std::size_t j = 0; j < 64; ++j)
    p.logits(0, j) = -1.7f * static_cast<float>(j);  // exp(-87.3) is the last normal one
  p.target[0] = 0;
  p.forward<tigon::default_backend>();
  for (const float d : std::span(&p.dlogits(0, 0), 64)) EXPECT_TRUE(d == 0 || std::isnormal(d));
  EXPECT_GT(p.dlogits(0, 51), 0);
  EXPECT_EQ(p.dlogits(0, 52), 0);
}

/// The doors, which are the same for every backend: refused before the first write.
class cross_entropy_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;
  using metrics = tigon::cross_entropy_metrics<float>;

  void forward(tigon::in_matrix<float> logits, std::span<const std::int64_t> target, std::span<float> loss,
               view dlogits, options opt = {}, std::span<const float> weight = {}, metrics m = {}) {
    tigon::cross_entropy_forward(logits, target, loss, dlogits, opt, weight, m);
  }
  void forward(options opt) { forward(z, t, loss, dz, opt); }

  problem<float> p{{3, 8, 2}, {"", true, {.reduction = reduction::none}}};
  const view z = p.logits.view(), dz = p.dlogits.view();
  const std::span<float> rows{p.loss}, loss = rows.first(1), w{p.weight};
  const std::span<std::int64_t> t{p.target};
};

TEST_F(cross_entropy_doors, refuse_wrong_shapes) {
  EXPECT_TIGON_ERROR(forward(view(z.data, 3, 0, 8), t, loss, view(dz.data, 3, 0, 8)), shape,
                     "cross_entropy_forward: vocab is 0; expected at least 1", p.dlogits, p.loss);
  EXPECT_TIGON_ERROR(forward(view(z.data, 3, 8, 7), t, loss, dz), stride,
                     "cross_entropy_forward: logits is of row stride 7; expected at least its 8 columns", p.dlogits,
                     p.loss);
  EXPECT_TIGON_ERROR(forward(view(nullptr, 3, 8, 8), t, loss, dz), shape,
                     "cross_entropy_forward: logits is a null pointer", p.dlogits, p.loss);
  EXPECT_TIGON_ERROR(forward(z, t, loss, view(dz.data, 2, 8, 10)), shape,
                     "cross_entropy_forward: dlogits is 2 x 8; expected 3 x 8", p.dlogits, p.loss);
  EXPECT_TIGON_ERROR(forward(z, t, loss, view(dz.data, 3, 8, 7)), stride,
                     "cross_entropy_forward: dlogits is of row stride 7", p.dlogits, p.loss);
  EXPECT_TIGON_ERROR(forward(z, t.first(2), loss, dz), shape,
                     "cross_entropy_forward: target is of 2 elements; expected 3", p.dlogits, p.loss);
  EXPECT_TIGON_ERROR(forward(z, t, rows, dz), shape, "cross_entropy_forward: loss is of 3 elements; expected 1",
                     p.dlogits, p.loss);
  EXPECT_TIGON_ERROR(forward(z, t, loss, dz, {.reduction = reduction::none}), shape,
                     "cross_entropy_forward: loss is of 1 elements; expected 3", p.dlogits, p.loss);
  EXPECT_TIGON_ERROR(forward(z, t, loss, dz, {}, w.first(7)), shape,
                     "cross_entropy_forward: class_weight is of 7 elements; expected 8", p.dlogits, p.loss);
  EXPECT_TIGON_ERROR(forward(z, t, loss, dz, {}, w, {p.z_loss, {}, {}}), shape,
                     "cross_entropy_forward: z_loss is of 3 elements; expected 1", p.dlogits, p.loss, p.z_loss);
  EXPECT_TIGON_ERROR(forward(z, t, loss, dz, {}, w, {{}, p.accuracy, {}}), shape,
                     "cross_entropy_forward: token_accuracy is of 3 elements; expected 1", p.dlogits, p.loss,
                     p.accuracy);
  EXPECT_TIGON_ERROR(forward(z, t, loss, dz, {}, w, {{}, {}, std::span(p.predicted).first(2)}), shape,
                     "cross_entropy_forward: predicted_tokens is of 2 elements; expected 3", p.dlogits, p.loss,
                     p.predicted);
  EXPECT_TIGON_ERROR(forward(z, t, loss, dz, {}, w, {{}, {}, {}, p.predicted}), shape,
                     "cross_entropy_forward: kept_rows is of 3 elements; expected 1", p.dlogits, p.loss, p.predicted);
}

TEST_F(cross_entropy_doors, refuse_a_wrong_upstream_gradient) {
  const auto backward = [&](std::span<const float> upstream, view to) {
    tigon::cross_entropy_backward_recompute(z, t, upstream, to);
  };
  EXPECT_TIGON_ERROR(backward({}, dz), shape,
                     "cross_entropy_backward_recompute: upstream is empty; expected one number", p.dlogits);
  EXPECT_TIGON_ERROR(backward(rows.first(2), dz), shape,
                     "cross_entropy_backward_recompute: upstream is of 2 elements; expected 3", p.dlogits);
  EXPECT_TIGON_ERROR(backward(std::span(dz.data, 3), dz), alias,
                     "cross_entropy_backward_recompute: dlogits overlaps upstream", p.dlogits);
  EXPECT_TIGON_ERROR(backward(rows, view(nullptr, 3, 8, 10)), shape,
                     "cross_entropy_backward_recompute: dlogits is a null pointer", p.dlogits);
  p.target[1] = 8;
  EXPECT_TIGON_ERROR(backward(rows, dz), index, "cross_entropy_backward_recompute: target[1] is 8", p.dlogits);
}

TEST_F(cross_entropy_doors, refuse_wrong_numbers) {
  for (const double bad : {-0.1, 1.1, nan})
    EXPECT_TIGON_ERROR(forward({.label_smoothing = bad}), argument, "cross_entropy_forward: label_smoothing is",
                       p.dlogits, p.loss);
  for (const double bad : {-0.1, infinity, nan}) {
    EXPECT_TIGON_ERROR(forward({.lse_square_scale = bad}), argument, "cross_entropy_forward: lse_square_scale is",
                       p.dlogits, p.loss);
    EXPECT_TIGON_ERROR(forward({.softcap = bad}), argument, "cross_entropy_forward: softcap is", p.dlogits, p.loss);
    EXPECT_TIGON_ERROR(forward({.denominator = bad}), argument, "cross_entropy_forward: denominator is", p.dlogits,
                       p.loss);
  }
}

TEST_F(cross_entropy_doors, refuse_labels_outside) {
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{8}, std::int64_t{-99}, std::int64_t{1} << 32,
                                 std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}) {
    p.target[2] = bad;
    EXPECT_TIGON_ERROR(forward(z, t, loss, dz), index,
                       "cross_entropy_forward: target[2] is " + std::to_string(bad) +
                           "; expected at least 0 and below 8, or ignore_index -100",
                       p.dlogits, p.loss);
  }
  const std::int32_t narrow[] = {0, -5, 1};
  EXPECT_TIGON_ERROR(tigon::cross_entropy_forward(z, narrow, loss, dz), index, "cross_entropy_forward: target[1] is -5",
                     p.dlogits, p.loss);
}

TEST_F(cross_entropy_doors, refuse_overlaps) {
  const options none{.reduction = reduction::none};
  const std::span<float> in_z(z.data, 3), in_dz(dz.data, 3);
  EXPECT_TIGON_ERROR(forward(z.rows_from(0, 2), t.first(2), loss, z.rows_from(1, 2)), alias,
                     "cross_entropy_forward: dlogits overlaps logits; expected the same buffer or no common memory",
                     p.logits, p.loss);
  EXPECT_TIGON_ERROR(forward(z, t, in_dz, dz, none), alias, "cross_entropy_forward: loss overlaps dlogits", p.dlogits);
  EXPECT_TIGON_ERROR(forward(z, t, loss, dz, {}, std::span(dz.data, 8)), alias,
                     "cross_entropy_forward: dlogits overlaps class_weight", p.dlogits, p.loss);
  EXPECT_TIGON_ERROR(forward(z, t, in_z, dz, none), alias, "cross_entropy_forward: loss overlaps logits", p.logits,
                     p.dlogits);
  EXPECT_TIGON_ERROR(forward(z, t, rows, dz, none, w, {rows, {}, {}}), alias,
                     "cross_entropy_forward: z_loss overlaps loss", p.dlogits, p.loss);
  EXPECT_TIGON_ERROR(forward(z, t, rows, dz, none, w, {{}, in_dz, {}}), alias,
                     "cross_entropy_forward: token_accuracy overlaps dlogits", p.dlogits, p.loss);
  EXPECT_TIGON_ERROR(forward(z, t, rows, dz, none, w, {{}, {}, t}), alias,
                     "cross_entropy_forward: predicted_tokens overlaps target", p.dlogits, p.loss, p.target);
  const std::span<float> in_target(reinterpret_cast<float*>(t.data()), 3);
  EXPECT_TIGON_ERROR(forward(z, t, in_target, dz, none), alias, "cross_entropy_forward: loss overlaps target",
                     p.target);
  EXPECT_TIGON_ERROR(forward(z.rows_from(0, 1), t.first(1), loss, view(reinterpret_cast<float*>(t.data()), 1, 2)),
                     shape, "dlogits is 1 x 2", p.target);
}

TEST_F(cross_entropy_doors, forward_needs_the_workspace_that_it_names) {
  for (const std::size_t threads : {1u, 3u})
    with_workspace_of(
        1 << 20,
        [&](context& of_size) {
          const std::size_t bytes = tigon::cross_entropy_workspace<tigon::default_backend, float>(3, 8, of_size);
          const auto call = [&](context& ctx) {
            tigon::cross_entropy_forward(z, t, rows, dz, p.v.opt, w, {p.z_loss, p.accuracy, p.predicted}, ctx);
          };
          EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call, threads), workspace,
                             "cross_entropy_forward: workspace is of", p.loss, p.predicted);
          with_workspace_of(bytes, call, threads);
          EXPECT_FALSE(p.dlogits.untouched());
        },
        threads);
}

TEST_F(cross_entropy_doors, backward_refuses) {
  const std::span<const float> g(p.weight);
  const auto backward = [](tigon::in_matrix<float> saved, std::span<const float> upstream, view to) {
    tigon::cross_entropy_backward(saved, upstream, to);
  };
  EXPECT_TIGON_ERROR(backward(view(z.data, 2, 8, 10), g.first(1), dz), shape,
                     "cross_entropy_backward: saved_dlogits is 2 x 8; expected 3 x 8", p.dlogits);
  EXPECT_TIGON_ERROR(backward(z, g.first(1), view(dz.data, 3, 8, 7)), stride,
                     "cross_entropy_backward: dlogits is of row stride 7", p.dlogits);
  for (const std::size_t size : {0u, 2u, 4u})
    EXPECT_TIGON_ERROR(backward(z, g.first(size), dz), shape, "cross_entropy_backward: upstream is of", p.dlogits);
  EXPECT_TIGON_ERROR(backward(z.rows_from(0, 2), g.first(1), z.rows_from(1, 2)), alias,
                     "cross_entropy_backward: dlogits overlaps saved_dlogits", p.logits);
  EXPECT_TIGON_ERROR(backward(z, {dz.data, 3}, dz), alias, "cross_entropy_backward: dlogits overlaps upstream",
                     p.dlogits);
}

}  // namespace
