// The contract of include/tigon/losses/tvd.hpp, promise by promise.
#include <gtest/gtest.h>

#include <tigon/losses/tvd.hpp>

#include "support/backends.hpp"
#include "support/central_difference.hpp"
#include "support/row_loss.hpp"
#include "support/scratch.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::absent, tigon::accumulator_t, tigon::context, tigon::divergence_reduction;
using options = tigon::tvd_options;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

// The loss in units of the sum of its terms' absolute values, elements of it and the gradient in those of |reference| +
// its root mean square; at most ten times the worst that was seen.
constexpr by_type loss_bound{.f32 = 5e-7, .bf16 = 5e-7, .f16 = 5e-7, .f64 = 2e-15};
constexpr by_type gradient_bound{.f32 = 2e-7, .bf16 = 4e-3, .f16 = 1e-3, .f64 = 4e-16};

element_of_loss reference(long double q, long double p) {
  return {std::abs(q - p) / 2, q > p ? 0.5L : q < p ? -0.5L : 0};
}

struct variant {
  const char* name;
  bool masked;
  options opt;
};
const variant variants[] = {
    {"batchmean", false, {}},
    {"mean, labels", true, {.reduction = divergence_reduction::mean, .ignore_index = 5}},
    {"sum, labels", true, {.reduction = divergence_reduction::sum}},
    {"none, labels", true, {.reduction = divergence_reduction::none, .ignore_index = 1}},
    {"none", false, {.reduction = divergence_reduction::none}},
    {"batchmean, labels, denominator", true, {.denominator = 7}},
};

std::vector<double> probs(shape s, std::uint64_t seed) {
  std::vector<double> out = log_probs(s, seed);
  for (double& x : out) x = std::exp(x);
  return out;
}

template <class B, class T>
row_loss_case<T> case_of(const variant& v) {
  const options opt = v.opt;
  return {v.name,
          v.masked,
          opt.reduction,
          opt.ignore_index,
          opt.denominator,
          reference,
          [=, masked = v.masked](row_problem<T>& p, tigon::matrix_view<T> to, context& ctx) {
            if (masked)
              tigon::tvd_forward<B>(p.student, p.teacher, p.loss_for(opt.reduction), to, opt, p.labels, ctx);
            else
              tigon::tvd_forward<B>(p.student, p.teacher, p.loss_for(opt.reduction), to, opt, absent, ctx);
          },
          [](shape s) { return probs(s, 1); },
          [](shape s) { return probs(s, 2); }};
}
template <class B, class T>
row_loss_cases<T> cases() {
  row_loss_cases<T> out;
  for (const variant& v : variants) out.push_back(case_of<B, T>(v));
  return out;
}

template <class On>
class tvd : public testing::Test {};
TYPED_TEST_SUITE(tvd, row_loss_pairs, names);

TYPED_TEST(tvd, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  check_errors_and_padding(cases<B, T>(), row_shapes<B, T>(), loss_bound.of<T>(), gradient_bound.of<T>());
}

TYPED_TEST(tvd, gradient_may_overwrite_an_input_or_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  check_aliasing(cases<B, T>(), {3, 4 * lanes<B, T> + 3, 0});
}

/// Liger divides by the number of kept rows on the host and raises where that is 0.
TYPED_TEST(tvd, ignored_rows_are_not_read) {
  check_ignored_rows(cases<typename TypeParam::backend, typename TypeParam::element>());
}

TYPED_TEST(tvd, bad_numbers_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const bool of_student : {true, false})
    for (const variant& v : variants) check_bad_numbers(case_of<B, T>(v), of_student, true);
}

TYPED_TEST(tvd, large_gradients_have_the_bits_of_small_ones) {
  using B = typename TypeParam::backend;
  check_streaming(case_of<B, typename TypeParam::element>({"", false, {.denominator = 3}}), B::row.stream_bytes);
}

TYPED_TEST(tvd, bits_do_not_depend_on_threads) {
  auto some = cases<typename TypeParam::backend, typename TypeParam::element>();
  some.resize(4);
  check_threads(some);
}

/// Liger's gradient is -1/2 at the minimum.
TYPED_TEST(tvd, is_at_rest_where_the_distributions_are_equal) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants) {
    const auto c = case_of<B, T>(v);
    row_problem<T> p = c.problem({3, 37});
    p.teacher.assign(p.student.f64());
    const double far = to_f64(p.teacher(2, 3)) + 0.25;
    p.teacher(2, 3) = from_f64<T>(far);
    c.run(p);
    for (std::size_t k = 0; k < 3 * 37; ++k) {
      const double d = to_f64(p.dstudent(k / 37, k % 37));
      EXPECT_TRUE(k == 2 * 37 + 3 ? d < 0 : d == 0) << v.name << ", element " << k << ": " << d;
    }
  }
}

TYPED_TEST(tvd, backward_needs_the_inputs_alone) {
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
    const auto upstream = each ? tigon::loss_elements<const A>(g.view())
                               : tigon::loss_elements<const A>(std::span<const A>(one.data(), 1));
    const auto backward = [&](tigon::matrix_view<T> to) {
      if (v.masked)
        tigon::tvd_backward<B>(p.student, p.teacher, upstream, to, v.opt, p.labels);
      else
        tigon::tvd_backward<B>(p.student, p.teacher, upstream, to, v.opt);
    };
    backward(p.dstudent.view());
    std::vector<double> want = wanted.gradient;
    for (std::size_t k = 0; k < want.size(); ++k) want[k] *= each ? g.f64()[k] : to_f64(one[0]);
    EXPECT_TRUE(close(p.dstudent.f64(), want, gradient_bound.of<T>()));
    EXPECT_TRUE(p.padding_intact());
    const std::vector<double> first = p.dstudent.f64();
    std::vector<double> negative = first;
    for (double& d : negative) d = -d;
    const auto of_teacher = [&](tigon::matrix_view<T> to) {
      if (v.masked)
        tigon::tvd_teacher_backward<B>(p.student, p.teacher, upstream, to, v.opt, p.labels);
      else
        tigon::tvd_teacher_backward<B>(p.student, p.teacher, upstream, to, v.opt);
    };
    p.dstudent.clear();
    of_teacher(p.dstudent.view());
    EXPECT_EQ(p.dstudent.f64(), negative);
    EXPECT_TRUE(p.padding_intact());
    const std::vector<double> t = p.teacher.f64();
    of_teacher(p.teacher.view());
    EXPECT_EQ(p.teacher.f64(), negative);
    p.teacher.assign(t);
    backward(p.student.view());
    EXPECT_EQ(p.student.f64(), first);
  }
}

/// A mean over many elements is smaller than any f16: the upstream gradient has to come in before the rounding.
TEST(tvd_f16, large_upstream_gradients_save_small_means) {
  const shape s{4, 5000};
  row_problem<tigon::float16> p(s, probs(s, 1), probs(s, 2));
  const float g = 65536;
  tigon::tvd_backward(p.student, p.teacher, std::span(&g, 1), p.dstudent.view(),
                      {.reduction = divergence_reduction::mean, .denominator = 1e6});
  for (std::size_t j = 0; j < s.cols; ++j) {
    const double q = to_f64(p.student(0, j)), t = to_f64(p.teacher(0, j));
    const double want = q == t ? 0 : std::copysign(0.5 / 5e9 * 65536, q - t);
    EXPECT_NEAR(to_f64(p.dstudent(0, j)), want, 1e-3 * std::abs(want));
  }
}

TEST(tvd_reference, gradient_is_that_of_a_central_difference) {
  const shape s{3, 7};
  for (const variant& v : variants) {
    const auto c = case_of<single_numbers, double>(v);
    // Apart by more than the two steps of the difference.
    std::vector<double> q = normal_values(21, 1), t = q;
    for (std::size_t k = 0; k < 21; ++k) t[k] += k % 3 == 0 ? 0.1 : -0.2;
    row_problem<double> p(s, q, t, v.opt.ignore_index);
    const double kept = v.masked ? 2 : 3, n = v.opt.denominator != 0 ? 7 : kept;
    const double scale = v.opt.reduction == divergence_reduction::mean        ? 1 / (7 * n)
                         : v.opt.reduction == divergence_reduction::batchmean ? 1 / n
                                                                              : 1;
    const auto loss = [&](const std::vector<double>& x) {
      double sum = 0;
      for (std::size_t k = 0; k < x.size(); ++k)
        if (!v.masked || k / 7 != 1) sum += std::abs(x[k] - t[k]) / 2;
      return sum * scale;
    };
    c.run(p);
    EXPECT_TRUE(close(p.dstudent.f64(), central_difference(loss, q, probes(21)), 1e-11)) << v.name;
    if (v.opt.reduction != divergence_reduction::none) {
      EXPECT_NEAR(p.loss[0], loss(q), 1e-14) << v.name;
    }
  }
}

TEST(tvd_edges, one_class_and_very_many) {
  row_problem<float> one({2, 1}, {1, 0.25}, {0.5, 1});
  tigon::tvd_forward(one.student, one.teacher, one.loss, one.dstudent.view());
  EXPECT_EQ(one.loss[0], 0.3125f);
  EXPECT_EQ(one.dstudent(0, 0), 0.25f);
  EXPECT_EQ(one.dstudent(1, 0), -0.25f);
  const auto c = case_of<usual_backend, float>({"wide", false, {.reduction = divergence_reduction::mean}});
  row_problem<float> wide = c.problem({2, 256000});
  const row_loss_reference wanted = c.wanted(wide);
  c.run(wide);
  EXPECT_TRUE(right_loss(wide, wanted, c.reduction, loss_bound.f32));
  EXPECT_TRUE(close(wide.dstudent.f64(), wanted.gradient, gradient_bound.f32));
}

TEST(tvd_denominator, joins_calls_on_the_parts_of_a_batch) {
  const shape s{6, 33};
  for (const auto r : {divergence_reduction::batchmean, divergence_reduction::mean}) {
    const auto c = case_of<single_numbers, double>({"", true, {.reduction = r}});
    row_problem<double> whole = c.problem(s), part = c.problem(s);
    c.run(whole);
    double loss = 0;
    for (const std::size_t first : {0u, 3u}) {
      tigon::tvd_forward(part.student.view().rows_from(first, 3), part.teacher.view().rows_from(first, 3), part.loss,
                         part.dstudent.view().rows_from(first, 3), {.reduction = r, .denominator = 5},
                         std::span(part.labels).subspan(first, 3));
      loss += part.loss[0];
    }
    EXPECT_NEAR(loss, whole.loss[0], 1e-15);
    EXPECT_TRUE(close(part.dstudent.f64(), whole.dstudent.f64(), 1e-15));
  }
}

/// The doors, which are the same for every backend: refused before the first write.
class tvd_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;
  using to = tigon::loss_elements<float>;

  void forward(tigon::in_matrix<float> student, tigon::in_matrix<float> teacher, to where, view dstudent,
               options opt = {}) {
    tigon::tvd_forward(student, teacher, where, dstudent, opt);
  }
  void backward(tigon::in_matrix<float> student, tigon::in_matrix<float> teacher,
                tigon::loss_elements<const float> upstream, view dstudent, options opt = {}) {
    tigon::tvd_backward(student, teacher, upstream, dstudent, opt);
  }

  row_problem<float> p{{3, 8, 2}, probs({3, 8}, 1), probs({3, 8}, 2)};
  const view q = p.student.view(), t = p.teacher.view(), dq = p.dstudent.view(), each = p.losses.view();
  const std::span<float> loss{p.loss};
  const options none{.reduction = divergence_reduction::none};
};

TEST_F(tvd_doors, refuse_wrong_shapes) {
  EXPECT_TIGON_ERROR(forward(view(q.data, 3, 0, 8), view(t.data, 3, 0, 8), loss, view(dq.data, 3, 0, 8)), shape,
                     "tvd_forward: vocab is 0; expected at least 1", p.dstudent, p.loss);
  EXPECT_TIGON_ERROR(forward(view(q.data, 3, 8, 7), t, loss, dq), stride,
                     "tvd_forward: student_probs is of row stride 7", p.dstudent, p.loss);
  EXPECT_TIGON_ERROR(forward(q, view(t.data, 2, 8, 11), loss, dq), shape,
                     "tvd_forward: teacher_probs is 2 x 8; expected 3 x 8", p.dstudent, p.loss);
  EXPECT_TIGON_ERROR(forward(q, t, loss, view(dq.data, 3, 7, 10)), shape,
                     "tvd_forward: dstudent is 3 x 7; expected 3 x 8", p.dstudent, p.loss);
  EXPECT_TIGON_ERROR(forward(q, t, each, dq), shape, "tvd_forward: loss is 3 x 8; expected 1 x 1", p.dstudent,
                     p.losses);
  EXPECT_TIGON_ERROR(forward(q, t, loss, dq, none), shape, "tvd_forward: loss is 1 x 1; expected 3 x 8", p.dstudent,
                     p.loss);
  EXPECT_TIGON_ERROR(backward(q, t, loss, view(nullptr, 3, 8, 8)), shape, "tvd_backward: dstudent is a null pointer");
  EXPECT_TIGON_ERROR(backward(q, t, loss, dq, none), shape, "tvd_backward: upstream is 1 x 1; expected 3 x 8",
                     p.dstudent);
  EXPECT_TIGON_ERROR(backward(q, t, loss, view(dq.data, 2, 8, 10)), shape,
                     "tvd_backward: dstudent is 2 x 8; expected 3 x 8", p.dstudent);
  const std::int64_t two[2] = {};
  const auto of_teacher = [&](view to, const auto& labels) { tigon::tvd_teacher_backward(q, t, loss, to, {}, labels); };
  EXPECT_TIGON_ERROR(of_teacher(view(nullptr, 3, 8, 8), p.labels), shape,
                     "tvd_teacher_backward: dteacher is a null pointer");
  EXPECT_TIGON_ERROR(of_teacher(view(dq.data, 2, 8, 10), p.labels), shape,
                     "tvd_teacher_backward: dteacher is 2 x 8; expected 3 x 8", p.dstudent);
  EXPECT_TIGON_ERROR(of_teacher(dq, two), shape, "tvd_teacher_backward: labels is of 2 elements; expected 3",
                     p.dstudent);
  EXPECT_TIGON_ERROR(tigon::tvd_forward(q, t, loss, dq, {}, two), shape,
                     "tvd_forward: labels is of 2 elements; expected 3", p.dstudent, p.loss);
  EXPECT_TIGON_ERROR(tigon::tvd_backward(q, t, loss, dq, {}, two), shape,
                     "tvd_backward: labels is of 2 elements; expected 3", p.dstudent);
}

TEST_F(tvd_doors, refuse_wrong_numbers) {
  for (const double bad : {-0.1, infinity, nan}) {
    EXPECT_TIGON_ERROR(forward(q, t, loss, dq, {.denominator = bad}), argument, "tvd_forward: denominator is",
                       p.dstudent, p.loss);
    EXPECT_TIGON_ERROR(backward(q, t, loss, dq, {.denominator = bad}), argument, "tvd_backward: denominator is",
                       p.dstudent);
  }
}

TEST_F(tvd_doors, refuse_overlaps) {
  EXPECT_TIGON_ERROR(forward(q.rows_from(0, 2), t.rows_from(0, 2), loss, q.rows_from(1, 2)), alias,
                     "tvd_forward: dstudent overlaps student_probs", p.student, p.loss);
  EXPECT_TIGON_ERROR(forward(q, t, q, dq, none), alias, "tvd_forward: loss overlaps student_probs", p.student,
                     p.dstudent);
  EXPECT_TIGON_ERROR(forward(q, t, t, dq, none), alias, "tvd_forward: loss overlaps teacher_probs", p.teacher,
                     p.dstudent);
  EXPECT_TIGON_ERROR(forward(q, t, dq, dq, none), alias, "tvd_forward: dstudent overlaps loss", p.dstudent);
  EXPECT_TIGON_ERROR(backward(q, t, dq, dq, none), alias, "tvd_backward: dstudent overlaps upstream", p.dstudent);
  EXPECT_TIGON_ERROR(backward(q.rows_from(0, 2), t.rows_from(0, 2), loss, t.rows_from(1, 2)), alias,
                     "tvd_backward: dstudent overlaps teacher_probs", p.teacher);
  const std::span<float> in_labels(reinterpret_cast<float*>(p.labels.data()), 1);
  EXPECT_TIGON_ERROR(tigon::tvd_forward(q, t, in_labels, dq, {}, p.labels), alias, "tvd_forward: loss overlaps labels",
                     p.labels, p.dstudent);
}

TEST_F(tvd_doors, take_the_workspace_that_they_name) {
  const std::size_t bytes = tigon::tvd_workspace(3);
  const auto call = [&](context& ctx) { tigon::tvd_forward(q, t, loss, dq, {}, p.labels, ctx); };
  const auto back = [&](context& ctx) { tigon::tvd_backward(q, t, loss, dq, {}, p.labels, ctx); };
  EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call), workspace, "tvd_forward: workspace is of", p.loss, p.dstudent);
  EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, back), workspace, "tvd_backward: workspace is of", p.dstudent);
  with_workspace_of(bytes, call);
  with_workspace_of(bytes, back);
  // docs/formulas/divergences.md: 9 bytes a row, whatever the vocabulary.
  const auto c = case_of<usual_backend, float>(variants[2]);
  row_problem<float> many = c.problem({1000, 50});
  tigon::workspace scratch;
  context ctx(tigon::serial(), scratch);
  c.run(many, ctx);
  EXPECT_NEAR(static_cast<double>(scratch.high_water()), 9.0 * 1000, 0.1 * 9000);
}

TEST_F(tvd_doors, take_labels_of_32_bits) {
  const std::int32_t narrow[] = {-7, -100, 1 << 30};
  tigon::tvd_forward(q, t, loss, dq, {}, narrow);
  const float got = loss[0];
  tigon::tvd_forward(q, t, loss, dq, {}, p.labels);
  EXPECT_EQ(got, loss[0]);
  tigon::tvd_forward(q, t, loss, dq, {.ignore_index = -100}, narrow);  // as it is by default
  EXPECT_EQ(got, loss[0]);
}

}  // namespace
