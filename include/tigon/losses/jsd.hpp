// Generalised Jensen-Shannon divergence of log-probabilities, with its gradient made in the same pass.
#ifndef TIGON_LOSSES_JSD_HPP
#define TIGON_LOSSES_JSD_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/losses/divergence/jsd_kernel.hpp>

namespace tigon {

/// Divergence of teacher P = exp(teacher_log_probs) and student Q = exp(student_log_probs), M = beta P + (1 - beta) Q:
///
///   0 < beta < 1   r = beta KL(P || M) + (1 - beta) KL(Q || M),   dr/dx = -(1 - beta) Q (log M - x)
///   beta = 0       r = KL(P || Q),                                dr/dx = -P
///   beta = 1       r = KL(Q || P),                                dr/dx = Q (x - log P + 1)
///   loss = sum r / n,   dstudent = dr/dx / n                      x = log Q, n = number of kept rows
///
/// Formula    docs/formulas/divergences.md. Between 0 and 1 no term cancels, however near P and Q are. At 0 and 1 the
///            terms are P (log P - x) and Q (x - log P), not the limits of the others. Rows need not sum to 1.
/// Shapes     student_log_probs, teacher_log_probs, dstudent [rows, vocab]; labels [rows] or `absent`; loss [1].
///            vocab >= 1, rows may be 0.
/// Types      one of f32, bf16, f16, f64 for all; loss f32 (f64 for f64); labels std::int32_t or std::int64_t.
/// Precision  f32 (f64 for f64) inside; totals in f64; one rounding at dstudent.
/// Writes     loss, dstudent (unless its data is null). A row whose label is ignore_index is not read; its loss and
///            gradient are 0. Labels are no indices: every value is legal.
/// Aliasing   dstudent may be student_log_probs or teacher_log_probs, which are then overwritten. Otherwise no output
///            shares an element with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias, argument (a number outside option_range), workspace; before the first
///            write.
/// Edges      no kept row: loss 0, gradients 0. -inf is a probability of 0 and 0 log 0 is 0; a probability below the
///            smallest normal f32 (f64) counts as 0. Infinite are KL(P || Q) where only Q is 0 and KL(Q || P) where
///            only P is. NaN or +inf makes the loss NaN or infinite, and of the gradient that element at most.
/// Max error  loss 1e-6 of the sum of its terms' absolute values where sums are f32: between 0 and 1, of the loss;
///            dstudent f32 1e-6, bf16 4e-3 of |reference| + its root mean square (tests/losses/jsd_test.cpp).
///
/// For the gradient of the teacher, swap student and teacher and pass 1 - beta.
///
/// ```cpp
/// std::vector<float> student(4 * 100, -4.6f), teacher(student), gradient(student), loss(1), upstream(1, 2);
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), 4, 100); };
/// tigon::jsd_forward(rows(student), rows(teacher), loss, rows(gradient), {.beta = 0.5});
/// tigon::jsd_backward(rows(gradient), upstream, rows(gradient));  // for a gradient of the loss other than 1
/// ```
struct jsd_options;

inline namespace TIGON_ABI {
/// Bytes of workspace that jsd_forward takes.
constexpr std::size_t jsd_workspace(std::size_t rows) { return detail::divergence_workspace(rows); }
}  // namespace TIGON_ABI

/// Loss and dstudent. See jsd_options for the contract.
template <class B = default_backend, class T, class Labels = absent_t>
void jsd_forward(in_matrix<T> student_log_probs, in_matrix<T> teacher_log_probs,
                 std::type_identity_t<std::span<accumulator_t<T>>> loss, matrix_view<T> dstudent, jsd_options opt = {},
                 const Labels& labels = absent, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto ids = detail::label_span(labels);
  const std::size_t rows = student_log_probs.rows, vocab = student_log_probs.cols;
  arguments args("jsd_forward");
  args.size("loss", loss.size(), 1);
  if constexpr (!std::same_as<Labels, absent_t>) args.size("labels", ids.size(), rows);
  detail::declare_divergence<accumulator_t<T>>(
      args, {"student_log_probs", "teacher_log_probs", student_log_probs, teacher_log_probs, dstudent},
      {"loss", as_row(loss)}, ids, opt.denominator);
  args.check();
  detail::expect_beta<accumulator_t<T>>(args, opt.beta);
  ctx.workspace().expect("jsd_forward", jsd_workspace(rows));

  workspace::frame frame(ctx.workspace());
  const auto out = detail::rows_of_divergence<B>(ctx, frame, rows, vocab, divergence_reduction::batchmean,
                                                 opt.denominator, ids, opt.ignore_index);
  kernel_for<op::jsd, B>::template forward<B, T>(student_log_probs, teacher_log_probs, dstudent, out, opt.beta, ctx);
  out.put_total(loss.data(), ctx);
}

/// dstudent = upstream * saved: the gradient for another upstream gradient than 1. dstudent may be the saved gradient.
template <class B = default_backend, class T>
void jsd_backward(in_matrix<T> saved_dstudent, std::type_identity_t<std::span<const accumulator_t<T>>> upstream,
                  matrix_view<T> dstudent, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  detail::check_saved<T, accumulator_t<T>>("jsd_backward", saved_dstudent, upstream, dstudent);
  kernel_for<op::jsd, B>::template backward<B, T>(saved_dstudent, detail::number_of<B>(upstream.data(), 1), dstudent,
                                                  ctx);
}

TIGON_EXPLAINS(jsd_forward)
TIGON_EXPLAINS(jsd_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_JSD_HPP
