// The contract of include/tigon/losses/jsd.hpp, promise by promise.
#include <gtest/gtest.h>

#include <tigon/losses/jsd.hpp>

#include "support/backends.hpp"
#include "support/complex_step.hpp"
#include "support/row_loss.hpp"
#include "support/scratch.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::absent, tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::divergence_reduction;
using options = tigon::jsd_options;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

// The loss in units of the sum of its terms' absolute values, the gradient in those of |reference| + its root mean
// square; at most ten times the worst that was seen.
constexpr by_type loss_bound{.f32 = 1e-6, .bf16 = 1e-6, .f16 = 1e-6, .f64 = 4e-15};
constexpr by_type gradient_bound{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 1e-3, .f64 = 4e-15};

/// The textbook's summand, of any number type.
template <class N>
N textbook(N x, N y, double beta) {
  using std::exp, std::log;
  const N p = exp(y), q = exp(x);
  if (beta == 0) return p * (y - x);
  if (beta == 1) return q * (x - y);
  const N m = static_cast<decltype(std::real(N()))>(beta) * p + static_cast<decltype(std::real(N()))>(1 - beta) * q;
  return static_cast<decltype(std::real(N()))>(beta) * p * y + static_cast<decltype(std::real(N()))>(1 - beta) * q * x -
         m * log(m);
}

element_of_loss reference(long double x, long double y, double beta) {
  const long double p = std::exp(y), q = std::exp(x), b = beta, w = 1 - b;
  if (beta == 0) return {p * (y - x), -p};
  if (beta == 1) return {q * (x - y), q * (x - y + 1)};
  // By the difference, in long double: expm1 and log1p where they are exact, logarithms of sums where they are not.
  const long double d = x - y, a = std::log1p(w * std::expm1(d)), c = std::log1p(b * std::expm1(-d));
  const auto phi = [](long double t) {
    long double sum = 0, term = 0.5L;
    for (int k = 3; k < 30; ++k) sum += term, term *= t / k;
    return std::abs(t) < 0.25L ? t * t * sum : std::expm1(t) - t;
  };
  return {b * p * phi(a) + w * q * phi(c), -w * q * c};
}

struct variant {
  const char* name;
  bool masked;
  options opt;
};
const variant variants[] = {
    {"half", true, {}},
    {"a tenth", true, {.beta = 0.1, .ignore_index = 5, .denominator = 7}},
    {"nine tenths", false, {.beta = 0.9}},
    {"forward KL", true, {.beta = 0}},
    {"reverse KL", true, {.beta = 1, .ignore_index = 2}},
};

template <class B, class T>
row_loss_case<T> case_of(const variant& v, double near = 0) {
  const options opt = v.opt;
  return {v.name,
          v.masked,
          divergence_reduction::batchmean,
          opt.ignore_index,
          opt.denominator,
          [=](long double x, long double y) { return reference(x, y, opt.beta); },
          [=, masked = v.masked](row_problem<T>& p, tigon::matrix_view<T> to, context& ctx) {
            if (masked)
              tigon::jsd_forward<B>(p.student, p.teacher, p.loss, to, opt, p.labels, ctx);
            else
              tigon::jsd_forward<B>(p.student, p.teacher, p.loss, to, opt, absent, ctx);
          },
          [=](shape s) { return log_probs(s, 1, near); },
          [=](shape s) { return log_probs(s, near == 0 ? 2 : 1); }};
}
template <class B, class T>
row_loss_cases<T> cases() {
  row_loss_cases<T> out;
  for (const variant& v : variants) out.push_back(case_of<B, T>(v));
  return out;
}

template <class On>
class jsd : public testing::Test {};
TYPED_TEST_SUITE(jsd, row_loss_pairs, names);

TYPED_TEST(jsd, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  check_errors_and_padding(cases<B, T>(), row_shapes<B, T>(), loss_bound.of<T>(), gradient_bound.of<T>());
}

TYPED_TEST(jsd, gradient_may_overwrite_an_input_or_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  check_aliasing(cases<B, T>(), {3, 4 * lanes<B, T> + 3, 0});
}

TYPED_TEST(jsd, ignored_rows_are_not_read) {
  check_ignored_rows(cases<typename TypeParam::backend, typename TypeParam::element>());
}

TYPED_TEST(jsd, bad_numbers_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants) {
    check_bad_numbers(case_of<B, T>(v), true, v.opt.beta != 0);
    check_bad_numbers(case_of<B, T>(v), false, true);
  }
}

TYPED_TEST(jsd, large_gradients_have_the_bits_of_small_ones) {
  using B = typename TypeParam::backend;
  check_streaming(case_of<B, typename TypeParam::element>({"all", false, {.denominator = 3}}), B::row.stream_bytes);
}

TYPED_TEST(jsd, bits_do_not_depend_on_threads) {
  check_threads(cases<typename TypeParam::backend, typename TypeParam::element>());
}

/// Where the textbook's sum has lost all digits.
TYPED_TEST(jsd, is_exact_where_the_distributions_are_near) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  if constexpr (std::same_as<T, A>) {  // differences of 16-bit logarithms are not small
    const double near = std::same_as<T, float> ? 1e-3 : 1e-7;
    for (const double beta : {1e-6, 0.1, 0.5, 0.9, 1 - 1e-6})
      for (const std::size_t cols : {1000u, 32000u}) {
        SCOPED_TRACE(testing::Message() << beta << ", " << cols);
        const auto c = case_of<B, T>({"near", false, {.beta = beta}}, near);
        row_problem<T> p = c.problem({2, cols});
        const row_loss_reference wanted = c.wanted(p);
        c.run(p);
        EXPECT_TRUE(right_loss(p, wanted, c.reduction, loss_bound.of<T>()));
        EXPECT_TRUE(close(p.dstudent.f64(), wanted.gradient, gradient_bound.of<T>()));
        A plain = 0;
        for (std::size_t k = 0; k < 2 * cols; ++k)
          plain += textbook(static_cast<A>(p.student(k / cols, k % cols)),
                            static_cast<A>(p.teacher(k / cols, k % cols)), beta);
        EXPECT_GT(std::abs(to_f64(plain) / 2 / wanted.total - 1), 1e-3) << "the textbook would do";
      }
  }
}

/// Liger evaluates 0 log 0 below log-probabilities of about -104 and for hard zeros.
TYPED_TEST(jsd, deep_tails_and_hard_zeros) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const double one = std::exp(-1), deep[] = {-1.0, std::same_as<T, double> ? -750.0 : -110.0, -800.0, -infinity};
  for (const double beta : {0.0, 0.25, 0.75, 1.0})
    for (const double x : deep)
      for (const double y : deep) {
        SCOPED_TRACE(testing::Message() << beta << ": " << x << ", " << y);
        row_problem<T> p({1, 3}, {-1, x, -1}, {-1, y, -1});
        tigon::jsd_forward<B>(p.student, p.teacher, p.loss, p.dstudent.view(), {.beta = beta});
        const double q = x == -1 ? one : 0, t = y == -1 ? one : 0;  // nothing is left of the others
        double loss = 0, gradient = 0;
        if (beta == 0)
          loss = t == 0 ? 0 : t * (y - x), gradient = -t;
        else if (beta == 1)
          loss = q == 0 ? 0 : q * (x - y), gradient = q == 0 ? 0 : q * (x - y + 1);
        else if (q == 0 && t != 0)
          loss = -beta * t * std::log(beta);
        else if (q != 0 && t == 0)
          loss = -(1 - beta) * q * std::log1p(-beta), gradient = -(1 - beta) * q * std::log1p(-beta);
        const double slack = std::same_as<T, double> ? 1e-15 : 1e-6;
        const double rounding = std::same_as<T, accumulator_t<T>> ? slack : 4e-3;
        if (std::isinf(loss))
          EXPECT_EQ(to_f64(p.loss[0]), loss);
        else
          EXPECT_NEAR(to_f64(p.loss[0]), loss, slack * (1 + std::abs(loss)));
        if (std::isinf(gradient))
          EXPECT_EQ(to_f64(p.dstudent(0, 1)), gradient);
        else
          EXPECT_NEAR(to_f64(p.dstudent(0, 1)), gradient, rounding * (1 + std::abs(gradient)));
      }
}

TYPED_TEST(jsd, backward_multiplies_by_the_upstream_gradient) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  auto saved = random_matrix<T>({5, 2 * lanes<B, T> + 3, 2}, 1);
  const guarded<A> upstream{-0.7};
  guarded_matrix<T> once(5, saved.cols(), 1), again(5, saved.cols(), 1);
  tigon::jsd_backward<B>(saved, upstream, once.view());
  tigon::jsd_backward<B>(saved, upstream, again.view());  // the saved gradient is left as it was
  for (std::size_t i = 0; i < 5; ++i)
    for (std::size_t j = 0; j < saved.cols(); ++j)
      EXPECT_EQ(to_f64(once(i, j)), to_f64(static_cast<T>(static_cast<A>(saved(i, j)) * upstream[0])));
  EXPECT_EQ(bits_of(once), bits_of(again));
  EXPECT_TRUE(once.padding_intact());
  tigon::jsd_backward<B>(saved, upstream, saved.view());
  EXPECT_EQ(saved.f64(), once.f64());
}

TEST(jsd_reference, gradient_is_that_of_a_complex_step) {
  const shape s{3, 7};
  for (const double beta : {0.0, 0.1, 0.5, 0.9, 1.0}) {
    const auto c = case_of<single_numbers, double>({"", true, {.beta = beta}});
    row_problem<double> p = c.problem(s);
    const std::vector<double> teacher = p.teacher.f64();
    const auto loss = [&](const auto& x) {
      typename std::remove_cvref_t<decltype(x)>::value_type sum = 0;
      for (std::size_t k = 0; k < x.size(); ++k)
        if (k / s.cols != 1) sum += textbook(x[k], decltype(sum)(teacher[k]), beta);
      return sum / 2.0;
    };
    c.run(p);
    EXPECT_TRUE(close(p.dstudent.f64(), complex_step(loss, p.student.f64(), probes(21)), 4e-15)) << beta;
    EXPECT_TRUE(close(c.wanted(p).gradient, complex_step(loss, p.student.f64(), probes(21)), 4e-15)) << beta;
    EXPECT_NEAR(p.loss[0], loss(p.student.f64()), 1e-14) << beta;
  }
}

TEST(jsd_roles, may_be_swapped) {
  for (const double beta : {0.0, 0.25, 0.5, 1.0}) {
    const shape s{4, 100};
    row_problem<float> p(s, log_probs(s, 1), log_probs(s, 2)), swapped(s, log_probs(s, 2), log_probs(s, 1));
    tigon::jsd_forward(p.student, p.teacher, p.loss, p.dstudent.view(), {.beta = beta});
    tigon::jsd_forward(swapped.student, swapped.teacher, swapped.loss, swapped.dstudent.view(), {.beta = 1 - beta});
    EXPECT_NEAR(p.loss[0] / swapped.loss[0], 1, 1e-6);
    // The teacher's gradient, -beta P (log M - log P) / n.
    for (std::size_t k = 0; k < 400; ++k) {
      const long double x = p.student(k / 100, k % 100), y = p.teacher(k / 100, k % 100);
      const long double m = std::log(beta * std::exp(y) + (1 - beta) * std::exp(x));
      const double want = static_cast<double>(beta == 0   ? std::exp(y) * (y - x + 1) / 4
                                              : beta == 1 ? -std::exp(x) / 4
                                                          : -beta * std::exp(y) * (m - y) / 4);
      EXPECT_NEAR(to_f64(swapped.dstudent(k / 100, k % 100)), want, 1e-8 + 2e-6 * std::abs(want));
    }
  }
}

TEST(jsd_beta, is_a_half_by_default) {
  row_problem<float> p({4, 100}, log_probs({4, 100}, 1), log_probs({4, 100}, 2));
  tigon::jsd_forward(p.student, p.teacher, p.loss, p.dstudent.view());
  const float loss = p.loss[0];
  tigon::jsd_forward(p.student, p.teacher, p.loss, p.dstudent.view(), {.beta = 0.5});
  EXPECT_EQ(p.loss[0], loss);
}

TEST(jsd_beta, ends_are_not_limits) {
  const shape s{4, 100};
  double loss[4];
  const double betas[] = {0, 1e-7, 1 - 1e-7, 1};
  for (int k = 0; k < 4; ++k) {
    row_problem<float> p(s, log_probs(s, 1), log_probs(s, 2));
    tigon::jsd_forward(p.student, p.teacher, p.loss, p.dstudent.view(), {.beta = betas[k]});
    loss[k] = p.loss[0];
  }
  EXPECT_TRUE(loss[0] > 1 && loss[1] < 1e-5 && loss[2] < 1e-5 && loss[3] > 1);
  EXPECT_NEAR(loss[1] / 1e-7 / loss[0], 1, 1e-3);  // beta KL(P || Q) to first order
}

TEST(jsd_edges, one_class_and_very_many) {
  for (const double beta : {0.0, 0.5, 1.0}) {
    row_problem<float> one({2, 1}, {0, 0}, {0, 0});
    tigon::jsd_forward(one.student, one.teacher, one.loss, one.dstudent.view(), {.beta = beta});
    EXPECT_EQ(one.loss[0], 0);
    for (const double d : one.dstudent.f64()) EXPECT_EQ(d, beta == 0 ? -0.5 : beta == 1 ? 0.5 : 0);
  }
  const auto c = case_of<usual_backend, float>({"wide", false, {.beta = 0.3}}, 1e-2);
  row_problem<float> wide = c.problem({2, 256000});
  const row_loss_reference wanted = c.wanted(wide);
  c.run(wide);
  EXPECT_TRUE(right_loss(wide, wanted, c.reduction, loss_bound.f32));
  EXPECT_TRUE(close(wide.dstudent.f64(), wanted.gradient, gradient_bound.f32));
}

TEST(jsd_denominator, joins_calls_on_the_parts_of_a_batch) {
  const shape s{6, 33};
  row_problem<double> whole(s, log_probs(s, 1), log_probs(s, 2)), part(s, log_probs(s, 1), log_probs(s, 2));
  tigon::jsd_forward(whole.student, whole.teacher, whole.loss, whole.dstudent.view(), {}, whole.labels);
  double loss = 0;
  for (const std::size_t first : {0u, 3u}) {
    tigon::jsd_forward(part.student.view().rows_from(first, 3), part.teacher.view().rows_from(first, 3), part.loss,
                       part.dstudent.view().rows_from(first, 3), {.denominator = 5},
                       std::span(part.labels).subspan(first, 3));
    loss += part.loss[0];
  }
  EXPECT_NEAR(loss, whole.loss[0], 1e-15);
  EXPECT_TRUE(close(part.dstudent.f64(), whole.dstudent.f64(), 1e-15));
}

/// The doors, which are the same for every backend: refused before the first write.
class jsd_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;

  void forward(tigon::in_matrix<float> student, tigon::in_matrix<float> teacher, std::span<float> to, view dstudent,
               options opt = {}) {
    tigon::jsd_forward(student, teacher, to, dstudent, opt);
  }

  row_problem<float> p{{3, 8, 2}, log_probs({3, 8}, 1), log_probs({3, 8}, 2)};
  const view x = p.student.view(), y = p.teacher.view(), dx = p.dstudent.view();
  const std::span<float> loss{p.loss};
};

TEST_F(jsd_doors, refuse_wrong_shapes) {
  EXPECT_TIGON_ERROR(forward(view(x.data, 3, 0, 8), view(y.data, 3, 0, 8), loss, view(dx.data, 3, 0, 8)), shape,
                     "jsd_forward: vocab is 0; expected at least 1", p.dstudent, p.loss);
  EXPECT_TIGON_ERROR(forward(view(x.data, 3, 8, 7), y, loss, dx), stride,
                     "jsd_forward: student_log_probs is of row stride 7; expected at least its 8 columns", p.dstudent,
                     p.loss);
  EXPECT_TIGON_ERROR(forward(view(nullptr, 3, 8, 8), y, loss, dx), shape,
                     "jsd_forward: student_log_probs is a null pointer", p.dstudent, p.loss);
  EXPECT_TIGON_ERROR(forward(x, view(y.data, 2, 8, 11), loss, dx), shape,
                     "jsd_forward: teacher_log_probs is 2 x 8; expected 3 x 8", p.dstudent, p.loss);
  EXPECT_TIGON_ERROR(forward(x, y, loss, view(dx.data, 3, 7, 10)), shape,
                     "jsd_forward: dstudent is 3 x 7; expected 3 x 8", p.dstudent, p.loss);
  EXPECT_TIGON_ERROR(forward(x, y, loss, view(dx.data, 3, 8, 7)), stride, "jsd_forward: dstudent is of row stride 7",
                     p.dstudent, p.loss);
  EXPECT_TIGON_ERROR(forward(x, y, loss.first(0), dx), shape, "jsd_forward: loss is of 0 elements; expected 1",
                     p.dstudent, p.loss);
  const std::int64_t two[2] = {};
  EXPECT_TIGON_ERROR(tigon::jsd_forward(x, y, loss, dx, {}, two), shape,
                     "jsd_forward: labels is of 2 elements; expected 3", p.dstudent, p.loss);
}

TEST_F(jsd_doors, refuse_wrong_numbers) {
  for (const double bad : {-1e-9, 1 + 1e-9, nan})
    EXPECT_TIGON_ERROR(forward(x, y, loss, dx, {.beta = bad}), argument, "jsd_forward: beta is", p.dstudent, p.loss);
  for (const double bad : {-0.1, infinity, nan})
    EXPECT_TIGON_ERROR(forward(x, y, loss, dx, {.denominator = bad}), argument, "jsd_forward: denominator is",
                       p.dstudent, p.loss);
}

TEST_F(jsd_doors, refuse_overlaps) {
  EXPECT_TIGON_ERROR(forward(x.rows_from(0, 2), y.rows_from(0, 2), loss, x.rows_from(1, 2)), alias,
                     "jsd_forward: dstudent overlaps student_log_probs", p.student, p.loss);
  EXPECT_TIGON_ERROR(forward(x.rows_from(0, 2), y.rows_from(0, 2), loss, y.rows_from(1, 2)), alias,
                     "jsd_forward: dstudent overlaps teacher_log_probs", p.teacher, p.loss);
  EXPECT_TIGON_ERROR(forward(x, y, {x.data, 1}, dx), alias, "jsd_forward: loss overlaps student_log_probs", p.student,
                     p.dstudent);
  EXPECT_TIGON_ERROR(forward(x, y, {y.data, 1}, dx), alias, "jsd_forward: loss overlaps teacher_log_probs", p.teacher,
                     p.dstudent);
  EXPECT_TIGON_ERROR(forward(x, y, {dx.data, 1}, dx), alias, "jsd_forward: dstudent overlaps loss", p.dstudent);
  const std::span<float> in_labels(reinterpret_cast<float*>(p.labels.data()), 1);
  EXPECT_TIGON_ERROR(tigon::jsd_forward(x, y, in_labels, dx, {}, p.labels), alias, "jsd_forward: loss overlaps labels",
                     p.labels, p.dstudent);
}

TEST_F(jsd_doors, take_the_workspace_that_they_name) {
  const std::size_t bytes = tigon::jsd_workspace(3);
  const auto call = [&](context& ctx) { tigon::jsd_forward(x, y, loss, dx, {}, p.labels, ctx); };
  EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call), workspace, "jsd_forward: workspace is of", p.loss, p.dstudent);
  with_workspace_of(bytes, call);
  // docs/formulas/divergences.md: 9 bytes a row, whatever the vocabulary.
  const shape s{1000, 50};
  row_problem<float> many(s, log_probs(s, 1), log_probs(s, 2));
  tigon::workspace scratch;
  context ctx(tigon::serial(), scratch);
  tigon::jsd_forward(many.student, many.teacher, many.loss, many.dstudent.view(), {}, many.labels, ctx);
  EXPECT_NEAR(static_cast<double>(scratch.high_water()), 9.0 * 1000, 0.1 * 9000);
}

TEST_F(jsd_doors, take_labels_of_32_bits) {
  const std::int32_t narrow[] = {-7, -100, 1 << 30};
  tigon::jsd_forward(x, y, loss, dx, {}, narrow);
  const float got = loss[0];
  tigon::jsd_forward(x, y, loss, dx, {}, p.labels);
  EXPECT_EQ(got, loss[0]);
}

TEST_F(jsd_doors, backward_refuses) {
  const float g[2] = {};
  const auto backward = [](tigon::in_matrix<float> saved, std::span<const float> upstream, view to) {
    tigon::jsd_backward(saved, upstream, to);
  };
  EXPECT_TIGON_ERROR(backward(view(x.data, 2, 8, 10), {g, 1}, dx), shape,
                     "jsd_backward: saved_dstudent is 2 x 8; expected 3 x 8", p.dstudent);
  EXPECT_TIGON_ERROR(backward(x, {g, 1}, view(nullptr, 3, 8, 8)), shape, "jsd_backward: dstudent is a null pointer");
  for (const std::size_t size : {0u, 2u})
    EXPECT_TIGON_ERROR(backward(x, {g, size}, dx), shape, "jsd_backward: upstream is of", p.dstudent);
  EXPECT_TIGON_ERROR(backward(x.rows_from(0, 2), {g, 1}, x.rows_from(1, 2)), alias,
                     "jsd_backward: dstudent overlaps saved_dstudent", p.student);
  EXPECT_TIGON_ERROR(backward(x, {dx.data, 1}, dx), alias, "jsd_backward: dstudent overlaps upstream", p.dstudent);
}

}  // namespace
