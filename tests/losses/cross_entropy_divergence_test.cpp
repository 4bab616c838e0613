// The contract of include/tigon/losses/cross_entropy_divergence.hpp, promise by promise.
// Operators: cross_entropy_tvd cross_entropy_jsd
#include <gtest/gtest.h>

#include <tigon/losses/cross_entropy.hpp>
#include <tigon/losses/cross_entropy_divergence.hpp>
#include <tigon/losses/jsd.hpp>
#include <tigon/losses/tvd.hpp>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/logit_loss.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::matrix_view, tigon::reduction;
using options = tigon::cross_entropy_divergence_options;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

struct variant {
  const char* name;
  bool jsd, weighted;
  options opt;
};
const variant variants[] = {
    {"tvd", false, false, {}},
    {"tvd, smoothed, weighted, warm",
     false,
     true,
     {.label_smoothing = 0.1, .lse_square_scale = 0.01, .weight_ce = 0.3, .weight_divergence = 2, .temperature = 1.7}},
    {"tvd of rows", false, true, {.reduction = reduction::none, .weight_divergence = 0.5, .upstream = -2}},
    {"jsd", true, false, {}},
    {"jsd, sum, smoothed, cool",
     true,
     false,
     {.ignore_index = 0,
      .reduction = reduction::sum,
      .label_smoothing = 0.2,
      .temperature = 0.7,
      .beta = 0.1,
      .upstream = 0.25}},
    {"KL(P || Q), weighted", true, true, {.weight_ce = 0.5, .beta = 0, .denominator = 3}},
    {"KL(Q || P) of rows", true, false, {.reduction = reduction::none, .temperature = 2, .beta = 1}},
    {"divergence alone", true, false, {.weight_ce = 0, .temperature = 1.5}},
    {"cross entropy alone", false, true, {.label_smoothing = 0.1, .weight_divergence = 0}},
};

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type loss_bound{.f32 = 1e-6, .bf16 = 1e-6, .f16 = 1e-6, .f64 = 2e-15};
constexpr by_type gradient_bound{.f32 = 2e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 6e-15};

/// Every buffer at a guard page, outputs full of canaries.
template <class T>
struct problem {
  using A = accumulator_t<T>;
  shape s;
  variant v;
  bool rows;
  guarded_matrix<T> logits, teacher, dlogits;
  guarded<T> weight;
  guarded<std::int64_t> target;
  guarded<A> loss, ce, divergence;

  TIGON_TEST_NOINLINE problem(shape of, const variant& which, guard side = guard::behind)
      : s(of),
        v(which),
        rows(v.opt.reduction == reduction::none),
        logits(random_matrix<T>(s, 1, side, {.deviation = 2})),
        teacher(s.rows, s.cols, 2 * s.padding, side),
        dlogits(s.rows, s.cols, 3 * s.padding, side),
        weight(v.weighted ? s.cols : 0, side),
        target(s.rows, side),
        loss(rows ? s.rows : 1, side),
        ce(loss.size(), side),
        divergence(loss.size(), side) {
    std::ranges::copy(random_labels(s.rows, s.cols, v.opt.ignore_index, 2), target.begin());
    if (v.weighted) weight.assign(random_class_weights(s.cols, 3));
    const auto numbers = normal_values(s.rows * s.cols, 4, {.deviation = 2});
    for (std::size_t i = 0; i < s.rows; ++i) {
      long double sum = 0;
      for (std::size_t j = 0; j < s.cols; ++j) sum += std::exp((long double)numbers[i * s.cols + j]);
      for (std::size_t j = 0; j < s.cols; ++j) {
        const double log_p = numbers[i * s.cols + j] - static_cast<double>(std::log(sum));
        teacher(i, j) = from_f64<T>(v.jsd ? log_p : std::exp(log_p));
      }
    }
  }
  void clear() { dlogits.clear(), loss.clear(), ce.clear(), divergence.clear(); }
  static std::span<T> given(guarded<T>& w) { return w.size() == 0 ? std::span<T>() : std::span<T>(w); }

  template <class B>
  TIGON_TEST_NOINLINE void forward(matrix_view<T> to, context& ctx = tigon::default_context()) {
    if (v.jsd)
      tigon::cross_entropy_jsd_forward<B, T>(logits, target, teacher, {loss, ce, divergence}, to, v.opt, given(weight),
                                             ctx);
    else
      tigon::cross_entropy_tvd_forward<B, T>(logits, target, teacher, {loss, ce, divergence}, to, v.opt, given(weight),
                                             ctx);
  }
  template <class B>
  void forward(context& ctx = tigon::default_context()) {
    forward<B>(dlogits.view(), ctx);
  }
  auto bits() const { return bits_of(loss, ce, divergence, dlogits); }
  tigon::cross_entropy_options of_ce() const {
    return {.ignore_index = v.opt.ignore_index,
            .reduction = v.opt.reduction,
            .label_smoothing = v.opt.label_smoothing,
            .lse_square_scale = v.opt.lse_square_scale,
            .denominator = v.opt.denominator};
  }
  double kept() const {
    return static_cast<double>(std::ssize(target) - std::ranges::count(target, v.opt.ignore_index));
  }

  struct reference {
    std::vector<double> loss, ce, divergence, dlogits;
  };
  /// The definition in long double.
  TIGON_TEST_NOINLINE reference wanted() const {
    using N = long double;
    const auto z = logits.f64(), t = teacher.f64();
    const loss_reference hard(z, {target.begin(), target.end()}, s.cols,
                              v.weighted ? weight.f64() : std::vector<double>(s.cols, 1), of_ce());
    const double n = v.opt.denominator != 0 ? v.opt.denominator : kept();
    const double share = v.opt.reduction != reduction::mean ? 1 : kept() == 0 ? 0 : 1 / n;
    const N beta = v.opt.beta, temperature = v.opt.temperature;
    reference out;
    for (std::size_t i = 0; i < s.rows; ++i) {
      N top = -infinity, sum = 0, value = 0, mean = 0;
      std::vector<N> u(s.cols, 0), q(s.cols, 0);
      if (target[i] != v.opt.ignore_index) {
        for (std::size_t j = 0; j < s.cols; ++j) top = std::max(top, static_cast<N>(z[i * s.cols + j]) / temperature);
        for (std::size_t j = 0; j < s.cols; ++j) sum += std::exp(static_cast<N>(z[i * s.cols + j]) / temperature - top);
        for (std::size_t j = 0; j < s.cols; ++j) {
          const N x = static_cast<N>(z[i * s.cols + j]) / temperature - top - std::log(sum), y = t[i * s.cols + j];
          q[j] = std::exp(x);
          // Rows of the teacher that are rounded to 16 bits do not sum to 1: a KL is the sum of its Bregman terms.
          const N p = v.jsd ? std::exp(y) : y;
          if (!v.jsd) {
            value += std::abs(q[j] - p) / 2, u[j] = (q[j] > p ? 1 : q[j] < p ? -1 : 0) / N(2);
          } else if (beta == 0) {
            value += p * (y - x) + (q[j] - p), u[j] = 1 - p / q[j];
          } else if (beta == 1) {
            value += q[j] * (x - y) + (p - q[j]), u[j] = x - y;
          } else {
            const N m = std::log(beta * p + (1 - beta) * q[j]);
            value += beta * p * (y - m) + (1 - beta) * q[j] * (x - m), u[j] = (1 - beta) * (x - m);
          }
          mean += q[j] * u[j];
        }
      }
      out.divergence.push_back(static_cast<double>(share * value));
      for (std::size_t j = 0; j < s.cols; ++j)
        out.dlogits.push_back(static_cast<double>(
            v.opt.upstream * (v.opt.weight_ce * (N)hard.dlogits[i * s.cols + j] +
                              v.opt.weight_divergence * share / temperature * q[j] * (u[j] - mean))));
      out.loss.push_back(v.opt.weight_ce * hard.loss[i] + v.opt.weight_divergence * out.divergence[i]);
    }
    out.ce = hard.loss;
    if (rows) return out;
    for (auto* of : {&out.loss, &out.ce, &out.divergence}) {
      double total = 0;
      for (const double value : *of) total += value;
      *of = {total};
    }
    return out;
  }
  TIGON_TEST_NOINLINE void expect_wanted(const reference& r) const {
    const comparison with{.scale = 1e-3, .may_be_empty = true};
    EXPECT_TRUE(close(loss.f64(), r.loss, loss_bound.of<T>(), with)) << "loss";
    EXPECT_TRUE(close(ce.f64(), r.ce, loss_bound.of<T>(), with)) << "ce";
    EXPECT_TRUE(close(divergence.f64(), r.divergence, loss_bound.of<T>(), with)) << "divergence";
    // A vocabulary of one class has no gradient.
    EXPECT_TRUE(close(dlogits.f64(), r.dlogits, gradient_bound.of<T>(),
                      {.scale = s.cols == 1 ? 1.0 : 0, .may_be_empty = s.rows == 0}))
        << "dlogits";
    EXPECT_TRUE(dlogits.padding_intact());
  }
};

template <class On>
class cross_entropy_divergence : public testing::Test {};
#if defined(TIGON_CONFORMANCE_BACKEND)
using pairs = testing::Types<on<usual_backend, float>, on<usual_backend, bfloat16>>;
#else
using pairs = testing::Types<on<single_numbers, double>, on<usual_backend, float>, on<usual_backend, bfloat16>>;
#endif
TYPED_TEST_SUITE(cross_entropy_divergence, pairs, names);

TYPED_TEST(cross_entropy_divergence, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : row_shapes<B, T>())
    for (const variant& v : variants)
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", " << v.name << ", " << side);
        problem<T> p(s, v, side);
        const auto wanted = p.wanted();
        p.template forward<B>();
        p.expect_wanted(wanted);
      }
}

TEST(cross_entropy_divergence_of_f16, keeps_its_error) {
  for (const shape s : {shape{3, 77, 1}, shape{2, 1000, 0}})
    for (const variant& v : variants) {
      SCOPED_TRACE(testing::Message() << s << ", " << v.name);
      problem<tigon::float16> p(s, v);
      const auto wanted = p.wanted();
      p.forward<usual_backend>();
      p.expect_wanted(wanted);
    }
}

TYPED_TEST(cross_entropy_divergence, gradients_work_in_place_and_may_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants) {
    SCOPED_TRACE(v.name);
    problem<T> p({5, 123, 3}, v), none({5, 123, 3}, v), in_place({5, 123, 3}, v), over({5, 123, 3}, v);
    p.template forward<B>();
    none.template forward<B>({});
    EXPECT_EQ(bits_of(none.loss, none.ce, none.divergence), bits_of(p.loss, p.ce, p.divergence));
    EXPECT_TRUE(none.dlogits.f64()[0] != none.dlogits.f64()[0]);
    in_place.template forward<B>(in_place.logits.view());
    over.template forward<B>(over.teacher.view());
    EXPECT_EQ(in_place.logits.f64(), p.dlogits.f64());
    EXPECT_EQ(over.teacher.f64(), p.dlogits.f64());
  }
}

TYPED_TEST(cross_entropy_divergence, parts_without_memory_change_no_bit_of_the_loss) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  for (const variant& v : variants) {
    SCOPED_TRACE(v.name);
    problem<T> p({5, 123, 3}, v), alone({5, 123, 3}, v);
    p.template forward<B>();
    const tigon::cross_entropy_divergence_losses<A> loss{alone.loss};
    const auto weight = p.given(alone.weight);
    if (v.jsd)
      tigon::cross_entropy_jsd_forward<B, T>(alone.logits, alone.target, alone.teacher, loss, alone.dlogits.view(),
                                             v.opt, weight);
    else
      tigon::cross_entropy_tvd_forward<B, T>(alone.logits, alone.target, alone.teacher, loss, alone.dlogits.view(),
                                             v.opt, weight);
    EXPECT_EQ(bits_of(alone.loss, alone.dlogits), bits_of(p.loss, p.dlogits));
    EXPECT_TRUE(alone.ce.untouched() && alone.divergence.untouched());
  }
}

TYPED_TEST(cross_entropy_divergence, ignored_rows_are_not_read) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants) {
    SCOPED_TRACE(v.name);
    problem<T> clean({5, 37, 1}, v), p({5, 37, 1}, v);
    for (std::size_t j = 0; j < 37; ++j) p.logits(1, j) = p.teacher(1, j) = from_f64<T>(nan);
    clean.template forward<B>(), p.template forward<B>();
    EXPECT_EQ(p.bits(), clean.bits());
    for (std::size_t j = 0; j < 37; ++j) EXPECT_EQ(to_f64(p.dlogits(1, j)), 0);
    std::ranges::fill(p.target, v.opt.ignore_index);
    std::ranges::fill(p.logits.view().row(0), p.logits.view().row(0) + 37, from_f64<T>(nan));
    p.template forward<B>();
    for (const auto& zeros : {p.loss.f64(), p.ce.f64(), p.divergence.f64(), p.dlogits.f64()})
      EXPECT_EQ(std::ranges::count(zeros, 0.0), std::ssize(zeros));
  }
}

TYPED_TEST(cross_entropy_divergence, has_the_edges_of_both) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t which : {2, 6}) {
    problem<T> clean({6, 37}, variants[which]), p({6, 37}, variants[which]);
    p.logits(3, 5) = from_f64<T>(nan);
    for (std::size_t j = 0; j < 37; ++j) p.logits(4, j) = from_f64<T>(-infinity);
    p.logits(5, 2) = from_f64<T>(-infinity), clean.target[5] = p.target[5] = 2;  // at the target
    clean.template forward<B>(), p.template forward<B>();
    for (std::size_t i = 0; i < 6; ++i) {
      if (i == 3 || i == 4)
        EXPECT_TRUE(std::isnan(p.ce[i]) && std::isnan(p.divergence[i]) && std::isnan(to_f64(p.dlogits(i, 7)))) << i;
      else if (i == 5)
        EXPECT_TRUE(p.ce[i] == infinity && std::isfinite(p.divergence[i]) && std::isfinite(to_f64(p.dlogits(i, 2))));
      else
        EXPECT_TRUE(p.loss[i] == clean.loss[i] && to_f64(p.dlogits(i, 7)) == to_f64(clean.dlogits(i, 7))) << i;
    }
  }
  // KL(P || Q) where Q is 0.
  variant v = variants[5];
  v.opt.reduction = reduction::none;
  problem<T> p({3, 37}, v);
  p.logits(0, 4) = from_f64<T>(-infinity), p.target[0] = 7;
  p.template forward<B>();
  EXPECT_EQ(p.divergence[0], infinity);
  EXPECT_TRUE(std::isfinite(p.ce[0]) && std::isfinite(p.divergence[2]));
}

TYPED_TEST(cross_entropy_divergence, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t which : {1, 4}) {
    problem<T> p({70, 900}, variants[which]);
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      p.clear();
      p.template forward<B>(ctx);
      return p.bits();
    }));
  }
}

/// The two losses by themselves, added up.
TEST(cross_entropy_divergence_sum, is_what_the_two_losses_are_by_themselves) {
  using B = usual_backend;
  using T = float;
  using A = float;
  for (const std::size_t which : {0, 3, 5}) {
    problem<T> p({6, 211}, variants[which]);
    p.template forward<B>();
    A ce(0), distance(0);
    guarded_matrix<T> dz(6, 211);
    tigon::cross_entropy_forward<B, T>(p.logits, p.target, std::span(&ce, 1), dz.view(), p.of_ce(), p.given(p.weight));
    EXPECT_NEAR(p.ce[0] / ce, 1, 2 * loss_bound.of<T>());
    guarded_matrix<T> student(6, 211);
    const auto z = p.logits.f64();
    for (std::size_t i = 0; i < 6; ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < 211; ++j) sum += std::exp(z[i * 211 + j]);
      for (std::size_t j = 0; j < 211; ++j) {
        const double log_q = z[i * 211 + j] - std::log(sum);
        student(i, j) = from_f64<T>(p.v.jsd ? log_q : std::exp(log_q));
      }
    }
    const double n = p.v.opt.denominator != 0 ? p.v.opt.denominator : p.kept();
    if (p.v.jsd)
      tigon::jsd_forward<B, T>(student, p.teacher, std::span(&distance, 1), {},
                               {.beta = p.v.opt.beta, .ignore_index = p.v.opt.ignore_index, .denominator = n},
                               p.target);
    else
      tigon::tvd_forward<B, T>(student, p.teacher, std::span(&distance, 1), {},
                               {.ignore_index = p.v.opt.ignore_index, .denominator = n}, p.target);
    EXPECT_NEAR(p.divergence[0] / distance, 1, 1e-5);
    EXPECT_NEAR(p.loss[0], p.v.opt.weight_ce * to_f64(p.ce[0]) + p.v.opt.weight_divergence * to_f64(p.divergence[0]),
                1e-5);
  }
}

TEST(cross_entropy_divergence_options, have_the_defaults_of_cross_entropy) {
  const tigon::cross_entropy_options ce;
  EXPECT_EQ(options().ignore_index, ce.ignore_index);
  EXPECT_EQ(options().reduction, ce.reduction);
}

TEST(cross_entropy_divergence_doors, take_the_workspace_that_they_name) {
  for (const std::size_t which : {1, 4}) {
    problem<float> p({30, 90}, variants[which]);
    const std::string name = which == 1 ? "cross_entropy_tvd_forward" : "cross_entropy_jsd_forward";
    const std::size_t bytes = tigon::cross_entropy_divergence_workspace<usual_backend, float>(30, 90);
    const auto call = [&](context& ctx) { p.forward<usual_backend>(ctx); };
    EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call), workspace, name + ": workspace is of", p.loss, p.dlogits);
    with_workspace_of(bytes, call);
    EXPECT_FALSE(p.loss.untouched());
  }
}

TEST(cross_entropy_divergence_doors, refuse_before_the_first_write) {
  problem<float> p({4, 9, 2}, variants[0]);
  struct arguments {
    matrix_view<const float> logits, teacher;
    std::vector<std::int64_t> target;
    std::vector<float> weight;
    std::span<float> loss, ce, divergence;
    matrix_view<float> dlogits;
    options opt;
  };
  const auto refuses = [&](tigon::error_code code, const std::string& part, auto change) {
    arguments a{p.logits,
                p.teacher,
                {p.target.begin(), p.target.end()},
                std::vector<float>(9, 1.0f),
                p.loss,
                p.ce,
                p.divergence,
                p.dlogits.view(),
                {}};
    change(a);
    EXPECT_TRUE(tigon::test::refuses(
        [&] {
          tigon::cross_entropy_tvd_forward<usual_backend, float>(
              a.logits, a.target, a.teacher, {a.loss, a.ce, a.divergence}, a.dlogits, a.opt, a.weight);
        },
        code, "cross_entropy_tvd_forward: " + part, p.loss, p.ce, p.divergence, p.dlogits));
  };
  using enum tigon::error_code;
  refuses(shape, "vocab is 0; expected at least 1", [](auto& a) { a.logits.cols = 0; });
  refuses(shape, "teacher_probs is 4 x 8; expected 4 x 9", [](auto& a) { --a.teacher.cols; });
  refuses(shape, "target is of 3 elements; expected 4", [](auto& a) { a.target.pop_back(); });
  refuses(shape, "class_weight is of 8 elements; expected 9", [](auto& a) { a.weight.pop_back(); });
  refuses(shape, "dlogits is 3 x 9; expected 4 x 9", [](auto& a) { --a.dlogits.rows; });
  refuses(shape, "loss is of 1 elements; expected 4", [](auto& a) { a.opt.reduction = reduction::none; });
  refuses(stride, "logits is of row stride 8", [](auto& a) { a.logits.row_stride = 8; });
  refuses(alias, "dlogits overlaps logits", [](auto& a) {
    a.dlogits = {const_cast<float*>(a.logits.data) + 1, 4, 9, a.logits.row_stride};
  });
  refuses(alias, "ce overlaps loss", [](auto& a) { a.ce = a.loss; });
  refuses(index, "target[2] is 9; expected at least 0 and below 9", [](auto& a) { a.target[2] = 9; });
  for (const double bad : {-0.1, 1.1, nan}) {
    refuses(argument, "label_smoothing is", [=](auto& a) { a.opt.label_smoothing = bad; });
    refuses(argument, "beta is", [=](auto& a) { a.opt.beta = bad; });
  }
  for (const double bad : {0.0, -1.0, nan, infinity})
    refuses(argument, "temperature is", [=](auto& a) { a.opt.temperature = bad; });
  refuses(argument, "weight_ce is inf", [](auto& a) { a.opt.weight_ce = infinity; });
  refuses(argument, "weight_divergence is nan", [](auto& a) { a.opt.weight_divergence = nan; });
  refuses(argument, "upstream is inf", [](auto& a) { a.opt.upstream = infinity; });
  refuses(argument, "denominator is -1", [](auto& a) { a.opt.denominator = -1; });
}

}  // namespace
