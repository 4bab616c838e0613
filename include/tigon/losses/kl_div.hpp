// Pointwise Kullback-Leibler divergence of probabilities or their logarithms from log-probabilities.
#ifndef TIGON_LOSSES_KL_DIV_HPP
#define TIGON_LOSSES_KL_DIV_HPP

#include <tigon/losses/parts/divergence_contract.hpp>
#include <tigon/losses/parts/kl_div_program.hpp>

namespace tigon {

namespace op {
struct kl_div {
  static constexpr std::string_view name = "kl_div";
};
}  // namespace op

/// Divergence of the teacher P from the student, y = student_log_probs:
///
///   loss_ij  = P (log max(P, eps) - y),   P = teacher, or exp(teacher) with log_target
///   loss     = c sum loss_ij,   dstudent = -c g P          c = 1 / n (batchmean), 1 / (n vocab) (mean), 1 (sum, none)
///   dteacher = c g (log max(P, eps) - y + [P > eps]),   c g P (teacher - y + 1) with log_target
///
/// Formula    docs/formulas/divergences.md. log P - y is made in one piece, without the rounding of log P.
/// Shapes     student_log_probs, teacher, dstudent, dteacher [rows, vocab]; loss and upstream [1], with reduction none
///            [rows, vocab]. n = rows. vocab >= 1, rows may be 0.
/// Types      one of f32, bf16, f16, f64 for all; loss and upstream f32 (f64 for f64).
/// Precision  f32 (f64 for f64) inside; totals in f64; one rounding at dstudent and dteacher.
/// Writes     loss, dstudent; dteacher, by kl_div_teacher_backward alone. forward makes dstudent for g = 1 in the same
///            pass, unless its data is null.
/// Aliasing   dstudent may be student_log_probs (forward) or teacher, dteacher either, which is then gone. Otherwise
///            any layout in which no element is shared.
/// Throws     tigon::error: shape, stride, alias, argument, workspace; before the first write.
/// Edges      no rows: loss 0. P = 0 adds 0, also where y is -inf; P > 0 there makes the loss inf and leaves the
///            gradient finite. NaN in y or P < 0: the loss of the element; NaN in teacher: its gradient too.
///            exp(teacher) below the smallest normal f32 (f64) counts as 0. dteacher is 0 where P is, though its limit
///            without log_target is -inf (with eps it is log eps - y, unless y is -inf); inf where P > 0 alone.
/// Max error  loss 1e-6 of the sum of its terms' absolute values where sums are f32; with reduction none 1e-6, and
///            dstudent and dteacher f32 8e-7, bf16 4e-3, of |reference| + its root mean square
///            (tests/losses/kl_div_test.cpp).
struct kl_div_options {
  divergence_reduction reduction = divergence_reduction::batchmean;
  bool log_target = false;  ///< teacher holds log-probabilities
  double eps = 0;           ///< log P is taken of no less than this, without log_target; 0: of every P, 0 log 0 = 0
  double denominator = 0;   ///< what stands for n, for a batch in several calls; 0: rows
};

template <>
struct kernel<op::kl_div, backends::generic> {
  template <class>
  using saved = no_state;  // the teacher alone

  template <backend B, element T>
  static void forward(in_matrix<T> student, in_matrix<T> teacher, matrix_view<accumulator_t<T>> loss,
                      matrix_view<T> dstudent, const detail::divergence_rows& out, kl_div_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const A lowest = std::max(static_cast<A>(opt.eps), std::numeric_limits<A>::min());
    const A factor = static_cast<A>(-out.scale);
    const bool elements = opt.reduction == divergence_reduction::none, write = dstudent.data != nullptr;
    with_target(opt, [&](auto log) {
      const detail::kl_div_program<log.value, A> program{lowest, factor};
      if (elements)
        map_rows<B>(ctx, program, reads(student, teacher), writes(loss));
      else if (write)
        reduce_map<B>(ctx, program, reads(student, teacher), reduce_writes(dstudent), saves(out.loss));
      else
        reduce_map<B>(ctx, program, reads(student, teacher), saves(out.loss));
    });
    if (elements && write) backward<B, T>(teacher, {}, A(1), dstudent, opt, ctx);
  }

  /// upstream: a matrix, or without memory, and `factor` for all.
  template <backend B, element T>
  static void backward(in_matrix<T> teacher, in_matrix<accumulator_t<T>> upstream, accumulator_t<T> factor,
                       matrix_view<T> dstudent, kl_div_options opt, context& ctx) {
    with_target(opt, [&](auto log) {
      const detail::kl_div_gradient<log.value, accumulator_t<T>> program{-factor};
      if (upstream.data != nullptr)
        map_rows<B>(ctx, program, reads(teacher, upstream), writes(dstudent));
      else
        map_rows<B>(ctx, program, reads(teacher), writes(dstudent));
    });
  }

  /// As backward, for dteacher.
  template <backend B, element T>
  static void teacher_backward(in_matrix<T> student, in_matrix<T> teacher, in_matrix<accumulator_t<T>> upstream,
                               accumulator_t<T> factor, matrix_view<T> dteacher, kl_div_options opt, context& ctx) {
    using A = accumulator_t<T>;
    with_target(opt, [&](auto log) {
      const detail::kl_div_teacher_gradient<log.value, A> program{static_cast<A>(opt.eps), factor};
      if (upstream.data != nullptr)
        map_rows<B>(ctx, program, reads(student, teacher, upstream), writes(dteacher));
      else
        map_rows<B>(ctx, program, reads(student, teacher), writes(dteacher));
    });
  }

  /// run(log) with whether the teacher is given as logarithms as a constant.
  template <class Run>
  static void with_target(const kl_div_options& opt, Run run) {
    if (opt.log_target)
      run(std::true_type{});
    else
      run(std::false_type{});
  }
};

inline namespace TIGON_ABI {
/// Bytes of workspace that kl_div_forward takes.
constexpr std::size_t kl_div_workspace(std::size_t rows) { return detail::divergence_workspace(rows); }
}  // namespace TIGON_ABI

/// Loss, and dstudent for an upstream gradient of 1. See kl_div_options for the contract.
template <class B = default_backend, class T>
void kl_div_forward(in_matrix<T> student_log_probs, in_matrix<T> teacher,
                    std::type_identity_t<loss_elements<accumulator_t<T>>> loss, matrix_view<T> dstudent,
                    kl_div_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  const std::size_t rows = student_log_probs.rows, vocab = student_log_probs.cols;
  const bool elements = opt.reduction == divergence_reduction::none;
  const expects expect("kl_div_forward");
  detail::expect_divergence(expect, {"student_log_probs", "teacher", student_log_probs, teacher, dstudent}, "loss",
                            loss.view, elements, matrix_view<const A>{}, opt.denominator);
  expect.option(opt.eps >= 0 && opt.eps <= 1, "eps", opt.eps, "a number from 0 to 1");
  ctx.workspace().expect("kl_div_forward", kl_div_workspace(rows));

  workspace::frame frame(ctx.workspace());
  const detail::divergence_rows out(frame, rows, vocab, opt.reduction, opt.denominator,
                                    std::span<const std::int64_t>{});
  kernel_for<op::kl_div, B>::template forward<B, T>(student_log_probs, teacher, loss.view, dstudent, out, opt, ctx);
  if (!elements) loss.view.data[0] = static_cast<A>(out.total());
}

namespace detail {
inline namespace TIGON_ABI {

/// The gradient of the loss as a backward pass takes it: one for each element, or without memory and one for all.
template <class A>
struct kl_div_upstream {
  matrix_view<const A> each;
  A factor;

  kl_div_upstream(matrix_view<const A> upstream, std::size_t rows, std::size_t vocab, const kl_div_options& opt) {
    const bool elements = opt.reduction == divergence_reduction::none;
    const double n = opt.denominator != 0 ? opt.denominator : static_cast<double>(rows);
    if (elements) each = upstream;
    factor = static_cast<A>(
        elements ? 1 : divergence_scale(opt.reduction, n, vocab) * static_cast<double>(upstream.data[0]));
  }
};

}  // namespace TIGON_ABI
}  // namespace detail

/// dstudent from the teacher and the gradient of the loss. See kl_div_options for the contract.
template <class B = default_backend, class T>
void kl_div_backward(in_matrix<T> teacher, std::type_identity_t<loss_elements<const accumulator_t<T>>> upstream,
                     matrix_view<T> dstudent, kl_div_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  const expects expect("kl_div_backward");
  expect.memory("dstudent", dstudent);
  detail::expect_divergence(expect, {"teacher", "teacher", teacher, teacher, dstudent}, "upstream", upstream.view,
                            opt.reduction == divergence_reduction::none, matrix_view<const A>{}, opt.denominator);
  const detail::kl_div_upstream<A> g(upstream.view, dstudent.rows, dstudent.cols, opt);
  kernel_for<op::kl_div, B>::template backward<B, T>(teacher, g.each, g.factor, dstudent, opt, ctx);
}

/// dteacher from both inputs and the gradient of the loss, for a teacher that learns too. See kl_div_options for the
/// contract.
template <class B = default_backend, class T>
void kl_div_teacher_backward(in_matrix<T> student_log_probs, in_matrix<T> teacher,
                             std::type_identity_t<loss_elements<const accumulator_t<T>>> upstream,
                             matrix_view<T> dteacher, kl_div_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  const expects expect("kl_div_teacher_backward");
  expect.memory("dteacher", dteacher);
  detail::expect_divergence(expect, {"student_log_probs", "teacher", student_log_probs, teacher, dteacher, "dteacher"},
                            "upstream", upstream.view, opt.reduction == divergence_reduction::none,
                            matrix_view<const A>{}, opt.denominator);
  expect.option(opt.eps >= 0 && opt.eps <= 1, "eps", opt.eps, "a number from 0 to 1");
  const detail::kl_div_upstream<A> g(upstream.view, dteacher.rows, dteacher.cols, opt);
  kernel_for<op::kl_div, B>::template teacher_backward<B, T>(student_log_probs, teacher, g.each, g.factor, dteacher,
                                                             opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_KL_DIV_HPP
