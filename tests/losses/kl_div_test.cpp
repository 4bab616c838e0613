// The contract of include/tigon/losses/kl_div.hpp, promise by promise.
#include <gtest/gtest.h>

#include <tigon/losses/kl_div.hpp>

#include "support/backends.hpp"
#include "support/complex_step.hpp"
#include "support/row_loss.hpp"
#include "support/scratch.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::context, tigon::divergence_reduction;
using options = tigon::kl_div_options;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

// The loss in units of the sum of its terms' absolute values, elements of it and the gradient in those of |reference| +
// its root mean square; at most ten times the worst that was seen.
constexpr by_type loss_bound{.f32 = 1e-6, .bf16 = 1e-6, .f16 = 1e-6, .f64 = 2e-15};
constexpr by_type gradient_bound{.f32 = 8e-7, .bf16 = 4e-3, .f16 = 1e-3, .f64 = 1.5e-15};

element_of_loss reference(long double y, long double t, const options& opt) {
  if (opt.log_target) return {std::exp(t) * (t - y), -std::exp(t)};
  if (t == 0) return {0, 0};
  return {t * (std::log(std::max(t, static_cast<long double>(opt.eps))) - y), -t};
}

/// The derivative of the same by t.
long double of_teacher(long double y, long double t, const options& opt) {
  if (opt.log_target) return t == -infinity ? 0 : std::exp(t) * (t - y + 1);
  if (t == 0 && opt.eps == 0) return 0;
  return std::log(std::max(t, static_cast<long double>(opt.eps))) - y + (t > opt.eps ? 1 : 0);
}

struct variant {
  const char* name;
  options opt;
};
const variant variants[] = {
    {"batchmean", {}},
    {"mean, log target", {.reduction = divergence_reduction::mean, .log_target = true}},
    {"sum, eps", {.reduction = divergence_reduction::sum, .eps = 1e-2}},
    {"none", {.reduction = divergence_reduction::none}},
    {"none, log target", {.reduction = divergence_reduction::none, .log_target = true}},
    {"batchmean, log target, denominator", {.log_target = true, .denominator = 7}},
};

std::vector<double> exponentials(std::vector<double> v) {
  for (double& x : v) x = std::exp(x);
  return v;
}

template <class B, class T>
row_loss_case<T> case_of(const variant& v, double near = 0) {
  const options opt = v.opt;
  return {v.name,
          false,
          opt.reduction,
          -100,
          opt.denominator,
          [=](long double y, long double t) { return reference(y, t, opt); },
          [=](row_problem<T>& p, tigon::matrix_view<T> to, context& ctx) {
            tigon::kl_div_forward<B>(p.student, p.teacher, p.loss_for(opt.reduction), to, opt, ctx);
          },
          [=](shape s) { return log_probs(s, 1, near); },
          [=](shape s) {
            const std::vector<double> logs = log_probs(s, near == 0 ? 2 : 1);
            return opt.log_target ? logs : exponentials(logs);
          }};
}
template <class B, class T>
row_loss_cases<T> cases() {
  row_loss_cases<T> out;
  for (const variant& v : variants) out.push_back(case_of<B, T>(v));
  return out;
}

template <class On>
class kl_div : public testing::Test {};
TYPED_TEST_SUITE(kl_div, row_loss_pairs, names);

TYPED_TEST(kl_div, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  check_errors_and_padding(cases<B, T>(), row_shapes<B, T>(), loss_bound.of<T>(), gradient_bound.of<T>());
}

TYPED_TEST(kl_div, gradient_may_overwrite_an_input_or_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  check_aliasing(cases<B, T>(), {3, 4 * lanes<B, T> + 3, 0});
}

/// Liger's means of no rows are NaN.
TYPED_TEST(kl_div, without_rows_is_0) {
  check_ignored_rows(cases<typename TypeParam::backend, typename TypeParam::element>());
}

TYPED_TEST(kl_div, bad_numbers_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants) {
    check_bad_numbers(case_of<B, T>(v), true, false);
    check_bad_numbers(case_of<B, T>(v), false, true);
  }
}

TYPED_TEST(kl_div, large_gradients_have_the_bits_of_small_ones) {
  using B = typename TypeParam::backend;
  check_streaming(case_of<B, typename TypeParam::element>({"sum", {.denominator = 3}}), B::row.stream_bytes);
}

TYPED_TEST(kl_div, bits_do_not_depend_on_threads) {
  auto some = cases<typename TypeParam::backend, typename TypeParam::element>();
  some.resize(4);
  check_threads(some);
}

TYPED_TEST(kl_div, backward_needs_the_teacher_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  for (const variant& v : variants) {
    SCOPED_TRACE(v.name);
    const auto c = case_of<B, T>(v);
    const bool each = v.opt.reduction == divergence_reduction::none;
    row_problem<T> p = c.problem({5, 2 * lanes<B, T> + 3, 2});
    const row_loss_reference wanted = c.wanted(p);
    const auto g = random_matrix<A>({5, p.s.cols, 1}, 9);
    const guarded<A> one{-0.7};
    const auto backward = [&](tigon::matrix_view<T> to) {
      if (each)
        tigon::kl_div_backward<B>(p.teacher, g.view(), to, v.opt);
      else
        tigon::kl_div_backward<B>(p.teacher, one, to, v.opt);
    };
    backward(p.dstudent.view());
    std::vector<double> want = wanted.gradient;
    for (std::size_t k = 0; k < want.size(); ++k) want[k] *= each ? g.f64()[k] : to_f64(one[0]);
    EXPECT_TRUE(close(p.dstudent.f64(), want, gradient_bound.of<T>()));
    EXPECT_TRUE(p.padding_intact());
    const std::vector<double> first = p.dstudent.f64();
    backward(p.teacher.view());
    EXPECT_EQ(p.teacher.f64(), first);
  }
}

TYPED_TEST(kl_div, a_teacher_has_a_gradient_too) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  for (const variant& v : variants)
    for (const shape s : {shape{0, 3}, shape{1, 1}, shape{5, 2 * lanes<B, T> + 3, 2}, shape{40, 5003}}) {
      SCOPED_TRACE(testing::Message() << v.name << ", " << s);
      const auto c = case_of<B, T>(v);
      const bool each = v.opt.reduction == divergence_reduction::none;
      row_problem<T> p = c.problem(s);
      const row_loss_reference wanted(
          [&](long double y, long double t) {
            return element_of_loss{0, of_teacher(y, t, v.opt)};
          },
          p.student.f64(), p.teacher.f64(), s, {}, v.opt.reduction, v.opt.denominator);
      const auto g = random_matrix<A>({s.rows, s.cols, 1}, 9);
      const guarded<A> one{-0.7};
      const auto backward = [&](tigon::matrix_view<T> to, context& ctx = tigon::default_context()) {
        if (each)
          tigon::kl_div_teacher_backward<B>(p.student, p.teacher, g.view(), to, v.opt, ctx);
        else
          tigon::kl_div_teacher_backward<B>(p.student, p.teacher, one, to, v.opt, ctx);
      };
      backward(p.dstudent.view());
      std::vector<double> want = wanted.gradient,
                          of_loss = each ? g.f64() : std::vector<double>(want.size(), to_f64(one[0]));
      for (std::size_t k = 0; k < want.size(); ++k) want[k] *= of_loss[k];
      if (s.rows == 40) {
        EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
          p.dstudent.clear();
          backward(p.dstudent.view(), ctx);
          return bits_of(p.dstudent);
        }));
        continue;
      }
      EXPECT_TRUE(close(p.dstudent.f64(), want, gradient_bound.of<T>(), {.may_be_empty = s.rows == 0}));
      EXPECT_TRUE(p.padding_intact());
      const std::vector<double> first = p.dstudent.f64(), y = p.student.f64();
      backward(p.student.view());
      EXPECT_EQ(p.student.f64(), first);
      p.student.assign(y);
      backward(p.teacher.view());
      EXPECT_EQ(p.teacher.f64(), first);
    }
}

/// A logarithm that is rounded before y is taken from it has lost the difference.
TEST(kl_div_precision, of_probabilities_that_are_near) {
  const variant v{"near", {.reduction = divergence_reduction::none}};
  for (const std::size_t cols : {1000u, 32000u}) {
    const auto c = case_of<usual_backend, float>(v, 1e-3);
    row_problem<float> p = c.problem({2, cols});
    const row_loss_reference wanted = c.wanted(p);
    c.run(p);
    const std::vector<double> got = p.losses.f64();
    double worst = 0, plain = 0;
    for (std::size_t k = 0; k < 2 * cols; ++k) {
      const float y = p.student(k / cols, k % cols), t = p.teacher(k / cols, k % cols);
      const double unit = static_cast<double>(t);
      worst = std::max(worst, std::abs(got[k] - wanted.elements[k]) / unit);
      plain = std::max(plain, std::abs(static_cast<double>(t * (std::log(t) - y)) - wanted.elements[k]) / unit);
    }
    EXPECT_LE(worst, 1.5e-7 * error_scale);
    EXPECT_GT(plain, 4e-7) << "the textbook would do";
  }
}

TYPED_TEST(kl_div, zeros_and_infinities) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const options plain{.reduction = divergence_reduction::none},
      eps{.reduction = divergence_reduction::none, .eps = 0.1},
      logs{.reduction = divergence_reduction::none, .log_target = true};
  const auto run = [](const options& opt, double y, double t) {
    row_problem<T> p({1, 3}, {-1, y, -1}, {0.5, t, 0.5});
    tigon::kl_div_forward<B>(p.student, p.teacher, p.losses.view(), p.dstudent.view(), opt);
    return std::pair{to_f64(p.losses(0, 1)), to_f64(p.dstudent(0, 1))};
  };
  for (const options& opt : {plain, eps, logs}) {
    const double none = opt.log_target ? -infinity : 0, some = opt.log_target ? -1 : 0.5;
    for (const double y : {-1.0, -1e4, -infinity}) EXPECT_EQ(run(opt, y, none), std::pair(0.0, 0.0)) << y;
    EXPECT_EQ(run(opt, -infinity, some).first, infinity);
    EXPECT_NEAR(run(opt, -infinity, some).second, opt.log_target ? -std::exp(-1) : -0.5, 1e-3);
    EXPECT_TRUE(std::isnan(run(opt, nan, none).first));
    EXPECT_TRUE(std::isnan(run(opt, -1, nan).first) && std::isnan(run(opt, -1, nan).second));
  }
  EXPECT_TRUE(std::isnan(run(plain, -1, -0.5).first));
  EXPECT_EQ(run(plain, -1, -0.5).second, 0.5);
  // Where P is below eps, Liger's log eps stands for log P; without it the logarithm is that of P.
  EXPECT_NEAR(run(eps, -1, 0.0625).first, 0.0625 * (std::log(0.1) + 1), 1e-7);
  EXPECT_NEAR(run(plain, -1, 0.0625).first, 0.0625 * (std::log(0.0625) + 1), 1e-7);
  if (!std::same_as<T, tigon::float16>) {
    EXPECT_NEAR(run(plain, -1, 0x1p-60).first / (0x1p-60 * (1 - 60 * std::log(2))), 1, 1e-6);
  }
}

TYPED_TEST(kl_div, zeros_and_infinities_of_the_teachers_gradient) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const options plain{.reduction = divergence_reduction::sum},
      eps{.reduction = divergence_reduction::sum, .eps = 0.125},
      logs{.reduction = divergence_reduction::sum, .log_target = true};
  const auto run = [](const options& opt, double y, double t) {
    row_problem<T> p({1, 3}, {-1, y, -1}, {0.5, t, 0.5});
    const guarded<accumulator_t<T>> one{1};
    tigon::kl_div_teacher_backward<B>(p.student, p.teacher, one, p.dstudent.view(), opt);
    for (const std::size_t j : {0u, 2u})
      EXPECT_NEAR(to_f64(p.dstudent(0, j)), static_cast<double>(of_teacher(-1, 0.5, opt)), 0.01);
    return to_f64(p.dstudent(0, 1));
  };
  for (const double y : {-1.0, -infinity}) {
    EXPECT_EQ(run(plain, y, 0), 0) << y;
    EXPECT_EQ(run(logs, y, -infinity), 0) << y;
    EXPECT_EQ(run(logs, y, -2000), 0) << y;  // its exponential is
  }
  EXPECT_NEAR(run(eps, -1, 0), std::log(0.125) + 1, 0.01);
  EXPECT_NEAR(run(eps, -1, 0.0625), std::log(0.125) + 1, 0.01);
  EXPECT_NEAR(run(eps, -1, 0.125), std::log(0.125) + 1, 0.01) << "at eps the logarithm is constant";
  EXPECT_NEAR(run(eps, -1, 0.25), std::log(0.25) + 2, 0.01);
  EXPECT_EQ(run(eps, -infinity, 0), 0);
  for (const options& opt : {plain, eps, logs}) {
    EXPECT_EQ(run(opt, -infinity, opt.log_target ? -1 : 0.5), infinity);
    EXPECT_TRUE(std::isnan(run(opt, -1, nan)));
    EXPECT_TRUE(std::isnan(run(opt, nan, 0.5)));
  }
  EXPECT_TRUE(std::isnan(run(plain, -1, -0.5)));
}

TEST(kl_div_reference, gradient_is_that_of_a_complex_step) {
  const shape s{3, 7};
  for (const variant& v : variants) {
    const auto c = case_of<single_numbers, double>(v);
    row_problem<double> p = c.problem(s);
    const std::vector<double> teacher = p.teacher.f64();
    const double n = v.opt.denominator != 0 ? 7 : 3;
    const double scale = v.opt.reduction == divergence_reduction::mean        ? 1 / (7 * n)
                         : v.opt.reduction == divergence_reduction::batchmean ? 1 / n
                                                                              : 1;
    const auto loss = [&](const auto& y) {
      typename std::remove_cvref_t<decltype(y)>::value_type sum = 0;
      for (std::size_t k = 0; k < y.size(); ++k) {
        const double t = teacher[k], of = std::max(t, v.opt.eps);
        sum += v.opt.log_target ? std::exp(t) * (t - y[k]) : t * (std::log(of) - y[k]);
      }
      return sum * scale;
    };
    c.run(p);
    EXPECT_TRUE(close(p.dstudent.f64(), complex_step(loss, p.student.f64(), probes(21)), 4e-15)) << v.name;
    const auto of_t = [&, y = p.student.f64()](const auto& t) {
      using N = typename std::remove_cvref_t<decltype(t)>::value_type;
      N sum = 0;
      for (std::size_t k = 0; k < t.size(); ++k) {
        const N of = std::real(t[k]) > v.opt.eps ? t[k] : N(v.opt.eps);
        sum += v.opt.log_target ? std::exp(t[k]) * (t[k] - y[k]) : t[k] * (std::log(of) - y[k]);
      }
      return sum * scale;
    };
    const guarded<double> ones{1};
    guarded_matrix<double> each(3, 7);
    each.assign(std::vector<double>(21, 1.0));
    if (v.opt.reduction == divergence_reduction::none)
      tigon::kl_div_teacher_backward(p.student, p.teacher, each.view(), p.dstudent.view(), v.opt);
    else
      tigon::kl_div_teacher_backward(p.student, p.teacher, ones, p.dstudent.view(), v.opt);
    EXPECT_TRUE(close(p.dstudent.f64(), complex_step(of_t, teacher, probes(21)), 4e-15)) << v.name;
    if (v.opt.reduction != divergence_reduction::none) {
      EXPECT_NEAR(p.loss[0], loss(p.student.f64()), 1e-14) << v.name;
    }
  }
}

TEST(kl_div_edges, one_class_and_very_many) {
  row_problem<float> one({2, 1}, {0, 0}, {1, 1});
  tigon::kl_div_forward(one.student, one.teacher, one.loss, one.dstudent.view());
  EXPECT_EQ(one.loss[0], 0);
  EXPECT_EQ(one.dstudent(1, 0), -0.5f);
  for (const bool log_target : {false, true}) {
    const auto c = case_of<usual_backend, float>({"wide", {.log_target = log_target}});
    row_problem<float> wide = c.problem({2, 256000});
    const row_loss_reference wanted = c.wanted(wide);
    c.run(wide);
    EXPECT_TRUE(right_loss(wide, wanted, c.reduction, loss_bound.f32));
    EXPECT_TRUE(close(wide.dstudent.f64(), wanted.gradient, gradient_bound.f32));
  }
}

TEST(kl_div_denominator, joins_calls_on_the_parts_of_a_batch) {
  const shape s{6, 33};
  for (const auto r : {divergence_reduction::batchmean, divergence_reduction::mean}) {
    const auto c = case_of<single_numbers, double>({"", {.reduction = r}});
    row_problem<double> whole = c.problem(s), part = c.problem(s);
    c.run(whole);
    double loss = 0;
    for (const std::size_t first : {0u, 3u}) {
      tigon::kl_div_forward(part.student.view().rows_from(first, 3), part.teacher.view().rows_from(first, 3), part.loss,
                            part.dstudent.view().rows_from(first, 3), {.reduction = r, .denominator = 6});
      loss += part.loss[0];
    }
    EXPECT_NEAR(loss, whole.loss[0], 1e-15);
    EXPECT_TRUE(close(part.dstudent.f64(), whole.dstudent.f64(), 1e-15));
  }
}

/// The doors, which are the same for every backend: refused before the first write.
class kl_div_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;
  using to = tigon::loss_elements<float>;

  void forward(tigon::in_matrix<float> student, tigon::in_matrix<float> teacher, to where, view dstudent,
               options opt = {}) {
    tigon::kl_div_forward(student, teacher, where, dstudent, opt);
  }
  void backward(tigon::in_matrix<float> teacher, tigon::loss_elements<const float> upstream, view dstudent,
                options opt = {}) {
    tigon::kl_div_backward(teacher, upstream, dstudent, opt);
  }

  void of_teacher(tigon::in_matrix<float> student, tigon::in_matrix<float> teacher,
                  tigon::loss_elements<const float> upstream, view dteacher, options opt = {}) {
    tigon::kl_div_teacher_backward(student, teacher, upstream, dteacher, opt);
  }

  row_problem<float> p{{3, 8, 2}, log_probs({3, 8}, 1), exponentials(log_probs({3, 8}, 2))};
  const view x = p.student.view(), t = p.teacher.view(), dx = p.dstudent.view(), each = p.losses.view();
  const std::span<float> loss{p.loss};
  const options none{.reduction = divergence_reduction::none};
};

TEST_F(kl_div_doors, refuse_wrong_shapes) {
  EXPECT_TIGON_ERROR(forward(view(x.data, 3, 0, 8), view(t.data, 3, 0, 8), loss, view(dx.data, 3, 0, 8)), shape,
                     "kl_div_forward: vocab is 0; expected at least 1", p.dstudent, p.loss);
  EXPECT_TIGON_ERROR(forward(view(x.data, 3, 8, 7), t, loss, dx), stride,
                     "kl_div_forward: student_log_probs is of row stride 7", p.dstudent, p.loss);
  EXPECT_TIGON_ERROR(forward(x, view(t.data, 2, 8, 11), loss, dx), shape,
                     "kl_div_forward: teacher is 2 x 8; expected 3 x 8", p.dstudent, p.loss);
  EXPECT_TIGON_ERROR(forward(x, t, loss, view(dx.data, 3, 7, 10)), shape,
                     "kl_div_forward: dstudent is 3 x 7; expected 3 x 8", p.dstudent, p.loss);
  EXPECT_TIGON_ERROR(forward(x, t, each, dx), shape, "kl_div_forward: loss is 3 x 8; expected 1 x 1", p.dstudent,
                     p.losses);
  EXPECT_TIGON_ERROR(forward(x, t, loss, dx, none), shape, "kl_div_forward: loss is 1 x 1; expected 3 x 8", p.dstudent,
                     p.loss);
  EXPECT_TIGON_ERROR(forward(x, t, view(each.data, 3, 8, 7), dx, none), stride,
                     "kl_div_forward: loss is of row stride 7", p.dstudent, p.losses);
  EXPECT_TIGON_ERROR(backward(view(t.data, 2, 8, 11), loss, dx), shape,
                     "kl_div_backward: dstudent is 3 x 8; expected 2 x 8", p.dstudent);
  EXPECT_TIGON_ERROR(backward(t, loss, view(nullptr, 3, 8, 8)), shape, "kl_div_backward: dstudent is a null pointer");
  EXPECT_TIGON_ERROR(backward(t, loss, dx, none), shape, "kl_div_backward: upstream is 1 x 1; expected 3 x 8",
                     p.dstudent);
  EXPECT_TIGON_ERROR(backward(t, each, dx), shape, "kl_div_backward: upstream is 3 x 8; expected 1 x 1", p.dstudent);
}

TEST_F(kl_div_doors, refuse_wrong_numbers) {
  for (const double bad : {-1e-9, 1.5, nan})
    EXPECT_TIGON_ERROR(forward(x, t, loss, dx, {.eps = bad}), argument, "kl_div_forward: eps is", p.dstudent, p.loss);
  for (const double bad : {-0.1, infinity, nan}) {
    EXPECT_TIGON_ERROR(forward(x, t, loss, dx, {.denominator = bad}), argument, "kl_div_forward: denominator is",
                       p.dstudent, p.loss);
    EXPECT_TIGON_ERROR(backward(t, loss, dx, {.denominator = bad}), argument, "kl_div_backward: denominator is",
                       p.dstudent);
  }
}

TEST_F(kl_div_doors, refuse_overlaps) {
  EXPECT_TIGON_ERROR(forward(x.rows_from(0, 2), t.rows_from(0, 2), loss, x.rows_from(1, 2)), alias,
                     "kl_div_forward: dstudent overlaps student_log_probs", p.student, p.loss);
  EXPECT_TIGON_ERROR(forward(x, t, x, dx, none), alias, "kl_div_forward: loss overlaps student_log_probs", p.student,
                     p.dstudent);
  EXPECT_TIGON_ERROR(forward(x, t, t, dx, none), alias, "kl_div_forward: loss overlaps teacher", p.teacher, p.dstudent);
  EXPECT_TIGON_ERROR(forward(x, t, dx, dx, none), alias, "kl_div_forward: dstudent overlaps loss", p.dstudent);
  EXPECT_TIGON_ERROR(backward(t.rows_from(0, 2), loss, t.rows_from(1, 2)), alias,
                     "kl_div_backward: dstudent overlaps teacher", p.teacher);
  EXPECT_TIGON_ERROR(backward(t, dx, dx, none), alias, "kl_div_backward: dstudent overlaps upstream", p.dstudent);
}

TEST_F(kl_div_doors, teacher_backward_refuses) {
  EXPECT_TIGON_ERROR(of_teacher(x, view(t.data, 2, 8, 11), loss, dx), shape,
                     "kl_div_teacher_backward: teacher is 2 x 8; expected 3 x 8", p.dstudent);
  EXPECT_TIGON_ERROR(of_teacher(x, t, loss, view(dx.data, 3, 7, 10)), shape,
                     "kl_div_teacher_backward: dteacher is 3 x 7; expected 3 x 8", p.dstudent);
  EXPECT_TIGON_ERROR(of_teacher(x, t, loss, view(nullptr, 3, 8, 8)), shape,
                     "kl_div_teacher_backward: dteacher is a null pointer");
  EXPECT_TIGON_ERROR(of_teacher(x, t, loss, dx, none), shape,
                     "kl_div_teacher_backward: upstream is 1 x 1; expected 3 x 8", p.dstudent);
  EXPECT_TIGON_ERROR(of_teacher(x, t, loss, dx, {.eps = 1.5}), argument, "kl_div_teacher_backward: eps is", p.dstudent);
  EXPECT_TIGON_ERROR(of_teacher(x, t, loss, dx, {.denominator = nan}), argument,
                     "kl_div_teacher_backward: denominator is", p.dstudent);
  EXPECT_TIGON_ERROR(of_teacher(x.rows_from(0, 2), t.rows_from(0, 2), loss, x.rows_from(1, 2)), alias,
                     "kl_div_teacher_backward: dteacher overlaps student_log_probs", p.student);
  EXPECT_TIGON_ERROR(of_teacher(x, t, dx, dx, none), alias, "kl_div_teacher_backward: dteacher overlaps upstream",
                     p.dstudent);
}

TEST_F(kl_div_doors, take_the_workspace_that_they_name) {
  const std::size_t bytes = tigon::kl_div_workspace(3);
  const auto call = [&](context& ctx) { tigon::kl_div_forward(x, t, loss, dx, {}, ctx); };
  EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call), workspace, "kl_div_forward: workspace is of", p.loss,
                     p.dstudent);
  with_workspace_of(bytes, call);
  // docs/formulas/divergences.md: 9 bytes a row, whatever the vocabulary.
  const auto c = case_of<usual_backend, float>(variants[0]);
  row_problem<float> many = c.problem({1000, 50});
  tigon::workspace scratch;
  context ctx(tigon::serial(), scratch);
  c.run(many, ctx);
  EXPECT_NEAR(static_cast<double>(scratch.high_water()), 9.0 * 1000, 0.1 * 9000);
}

}  // namespace
