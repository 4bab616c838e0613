// Pointwise Kullback-Leibler divergence of probabilities or their logarithms from log-probabilities.
#ifndef TIGON_LOSSES_KL_DIV_HPP
#define TIGON_LOSSES_KL_DIV_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/losses/divergence/kl_div_kernel.hpp>

namespace tigon {

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
/// Options    backward takes those of forward.
/// Writes     loss, dstudent; dteacher, by kl_div_teacher_backward alone. forward makes dstudent for g = 1 in the same
///            pass, unless its data is null.
/// Aliasing   dstudent may be student_log_probs (forward) or teacher, dteacher either, which is then overwritten.
///            Otherwise no output shares an element with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias, argument (a number outside option_range), workspace; before the first
///            write.
/// Edges      no rows: loss 0. P = 0 adds 0, also where y is -inf; P > 0 there makes the loss inf and leaves the
///            gradient finite. NaN in y, or P < 0, makes the loss of the element NaN, and NaN in teacher its gradient
///            too. exp(teacher) below the smallest normal f32 (f64) counts as 0. dteacher is 0 where P is 0, though its
///            limit without log_target is -inf (with eps it is log eps - y, unless y is -inf), and infinite where P > 0
///            and y is -inf.
/// Max error  loss 1e-6 of c P (|log P| + |y|), whose two terms cancel where log P is near y, summed over all elements
///            or, with reduction none, of one, where sums are f32; dstudent f32 8e-7, bf16 4e-3, of |reference| + its
///            root mean square (tests/losses/kl_div_test.cpp).
///            dteacher the same of the sum of its terms' absolute values, which cancel at log P near y - 1:
///            c |g| (|log max(P, eps) - y| + 1), c |g| P (|teacher - y| + 1) with log_target (tests/fuzz/losses.cpp).
///
/// ```cpp
/// std::vector<float> student(4 * 100, -4.6f), teacher(student), gradient(student), loss(1), upstream(1, 2);
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), 4, 100); };
/// tigon::kl_div_forward(rows(student), rows(teacher), loss, rows(gradient), {.log_target = true});
/// tigon::kl_div_backward(rows(teacher), upstream, rows(gradient), {.log_target = true});
/// ```
struct kl_div_options;

namespace detail {
inline namespace TIGON_ABI {
/// The gradient of the loss as a backward pass takes it: one for each element, or without memory and one for all.
template <class B, class A>
struct kl_div_upstream {
  matrix_view<const A> each;
  decltype(number_of<B, A>(nullptr, 1)) factor;

  kl_div_upstream(matrix_view<const A> upstream, std::size_t rows, std::size_t vocab, const kl_div_options& opt) {
    const bool elements = opt.reduction == divergence_reduction::none;
    const double n = opt.denominator != 0 ? opt.denominator : static_cast<double>(rows);
    if (elements) each = upstream;
    factor =
        number_of<B, A>(elements ? nullptr : upstream.data, elements ? 1 : divergence_scale(opt.reduction, n, vocab));
  }
};
}  // namespace TIGON_ABI
}  // namespace detail

inline namespace TIGON_ABI {
/// Bytes of workspace that kl_div_forward takes.
constexpr std::size_t kl_div_workspace(std::size_t rows) { return detail::divergence_workspace(rows); }
}  // namespace TIGON_ABI

/// Loss, and dstudent for an upstream gradient of 1. See kl_div_options for the contract.
template <class B = default_backend, class T>
void kl_div_forward(in_matrix<T> student_log_probs, in_matrix<T> teacher,
                    std::type_identity_t<loss_elements<accumulator_t<T>>> loss, matrix_view<T> dstudent,
                    kl_div_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  const std::size_t rows = student_log_probs.rows, vocab = student_log_probs.cols;
  const bool elements = opt.reduction == divergence_reduction::none;
  arguments args("kl_div_forward");
  detail::declare_divergence<accumulator_t<T>>(
      args, {"student_log_probs", "teacher", student_log_probs, teacher, dstudent}, {"loss", loss.view, elements},
      detail::label_span(absent), opt.denominator);
  args.check();
  args.number<A>(opt.eps >= 0 && opt.eps <= 1, "eps", opt.eps, "a number from 0 to 1");
  ctx.workspace().expect("kl_div_forward", kl_div_workspace(rows));

  workspace::frame frame(ctx.workspace());
  const auto out = detail::rows_of_divergence<B>(ctx, frame, rows, vocab, opt.reduction, opt.denominator,
                                                 std::span<const std::int64_t>{}, 0);
  kernel_for<op::kl_div, B>::template forward<B, T>(student_log_probs, teacher, loss.view, dstudent, out, opt, ctx);
  if (!elements) out.put_total(loss.view.data, ctx);
}

/// dstudent from the teacher and the gradient of the loss. See kl_div_options for the contract.
template <class B = default_backend, class T>
void kl_div_backward(in_matrix<T> teacher, std::type_identity_t<loss_elements<const accumulator_t<T>>> upstream,
                     matrix_view<T> dstudent, kl_div_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  arguments args("kl_div_backward");
  args.memory("dstudent", dstudent);
  const detail::divergence_loss g_of{"upstream", upstream.view, opt.reduction == divergence_reduction::none};
  detail::declare_divergence<accumulator_t<T>>(args, {"", "teacher", teacher, teacher, dstudent}, g_of,
                                               detail::label_span(absent), opt.denominator);
  args.check();
  const detail::kl_div_upstream<B, A> g(upstream.view, dstudent.rows, dstudent.cols, opt);
  kernel_for<op::kl_div, B>::template backward<B, T>(teacher, g.each, g.factor, dstudent, opt, ctx);
}

/// dteacher from both inputs and the gradient of the loss, for a teacher that learns too. See kl_div_options for the
/// contract.
template <class B = default_backend, class T>
void kl_div_teacher_backward(in_matrix<T> student_log_probs, in_matrix<T> teacher,
                             std::type_identity_t<loss_elements<const accumulator_t<T>>> upstream,
                             matrix_view<T> dteacher, kl_div_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  arguments args("kl_div_teacher_backward");
  args.memory("dteacher", dteacher);
  const detail::divergence_loss g_of{"upstream", upstream.view, opt.reduction == divergence_reduction::none};
  detail::declare_divergence<accumulator_t<T>>(
      args, {"student_log_probs", "teacher", student_log_probs, teacher, dteacher, "dteacher"}, g_of,
      detail::label_span(absent), opt.denominator);
  args.check();
  args.number<A>(opt.eps >= 0 && opt.eps <= 1, "eps", opt.eps, "a number from 0 to 1");
  const detail::kl_div_upstream<B, A> g(upstream.view, dteacher.rows, dteacher.cols, opt);
  kernel_for<op::kl_div, B>::template teacher_backward<B, T>(student_log_probs, teacher, g.each, g.factor, dteacher,
                                                             opt, ctx);
}

TIGON_EXPLAINS(kl_div_forward)
TIGON_EXPLAINS(kl_div_backward)
TIGON_EXPLAINS(kl_div_teacher_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_KL_DIV_HPP
