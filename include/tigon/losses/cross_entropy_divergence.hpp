// Cross entropy and total variation distance, or Jensen-Shannon divergence, of the same logits in one pass.
#ifndef TIGON_LOSSES_CROSS_ENTROPY_DIVERGENCE_HPP
#define TIGON_LOSSES_CROSS_ENTROPY_DIVERGENCE_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/losses/softmax/cross_entropy_divergence_kernel.hpp>

namespace tigon {

/// Cross entropy with labels and the distance from a teacher's distribution P, of the same logits z, which are read
/// once. With Q = softmax(z / temperature):
///
///   ce         as cross_entropy: smoothed, with class weights and z-loss
///   divergence c sum_i tvd(Q_i, P_i), or c sum_i jsd(Q_i, P_i)              as tvd and jsd have them
///   loss       = weight_ce ce + weight_divergence divergence
///   dlogits    = upstream dloss / dz
///   tvd(Q, P)  = 1/2 sum_j |Q_j - P_j|
///              d tvd / dz_j = Q_j / (2 temperature) (sign(Q_j - P_j) - sum_k Q_k sign(Q_k - P_k))
///   jsd(Q, P)  = beta KL(P || M) + (1 - beta) KL(Q || M),   M = beta P + (1 - beta) Q
///              beta = 0: KL(P || Q),   beta = 1: KL(Q || P)
///   c = 1 / n (mean), 1 (sum, none)                n = number of rows whose target is not ignore_index, or denominator
///
/// Formula    docs/formulas/cross_entropy_divergence.md.
/// Shapes     logits, teacher, dlogits [rows, vocab]; target [rows]; class weight [vocab] or `absent`; losses [1], with
///            reduction::none [rows]. vocab >= 1, rows may be 0.
/// Types      logits, teacher and dlogits one of f32, bf16, f16, f64; losses f32 (f64 for f64); target std::int32_t or
///            std::int64_t. Of the teacher the probabilities (tvd) or their logarithms (jsd), of sum 1 in each row.
/// Precision  f32 (f64 for f64) inside; totals in f64; one rounding at dlogits.
/// Writes     loss, the other losses that have memory, dlogits (unless its data is null). A row whose target is
///            ignore_index is not read; its losses and gradient are 0. A divergence of weight 0 is not computed unless
///            its loss has memory. For another upstream gradient of the loss: cross_entropy_backward of dlogits.
/// Aliasing   dlogits may be logits or teacher, which are then overwritten. Otherwise no output shares an element with
///            another argument; any layout.
/// Throws     tigon::error: shape, stride, alias, argument (a number outside option_range), workspace, and index (in
///            every build) for a target outside [0, vocab) that is not ignore_index; before the first write.
/// Edges      those of ce as cross_entropy, those of the divergence as tvd and jsd. Without a kept row all results are
///            0. NaN or +inf in a row of logits, or logits of -inf alone: that row is NaN. -inf is a probability of 0;
///            there, KL(P || Q) is inf where P is not 0. A gradient below the smallest normal f32 (f64) is written as
///            0.
/// Max error  each loss 1e-6 of |reference| + its root mean square where sums are f32; dlogits f32 2e-6, bf16 4e-3 of
///            the same (tests/losses/cross_entropy_divergence_test.cpp). Where the terms of jsd's gradient cancel, the
///            error of dlogits is also relative to weight_divergence c Q_j (|log Q_j| + |log P_j|) / temperature
///            (tests/fuzz/losses.cpp).
///
/// ```cpp
/// std::vector<float> logits(4 * 100, 0.5f), teacher(logits), dlogits(logits), loss(1);
/// const std::vector<std::int64_t> target{1, -100, 3, 99};
/// const tigon::matrix_view in(logits.data(), 4, 100), gradient(dlogits.data(), 4, 100);
/// const tigon::matrix_view of_teacher(teacher.data(), 4, 100);
/// tigon::cross_entropy_tvd_forward(in, std::span(target), of_teacher, {loss}, gradient);
/// tigon::cross_entropy_jsd_forward(in, std::span(target), of_teacher, {loss}, gradient);
/// ```
struct cross_entropy_divergence_options;

/// Bytes of workspace that cross_entropy_tvd_forward and cross_entropy_jsd_forward take.
template <class B = default_backend, class T>
std::size_t cross_entropy_divergence_workspace(std::size_t rows, std::size_t vocab,
                                               const context& ctx = default_context<B>()) {
  using A = accumulator_t<T>;
  return cross_entropy_workspace<B, T>(rows, vocab, ctx) - simd::scratch_workspace<B, A>(vocab, 1, ctx) +
         workspace::bytes_for<double>(rows) + simd::scratch_workspace<B, A>(vocab, 3, ctx);
}

namespace detail {
inline namespace TIGON_ABI {
/// Checks of both public functions.
template <class B, element T, class I, class Weight>
void check_cross_entropy_divergence(const cross_entropy_divergence_arguments<T>& of, std::span<const I> target,
                                    Weight weight, const cross_entropy_options& ce, const context& ctx) {
  const auto& opt = of.opt;
  const std::size_t rows = of.logits.rows, vocab = of.logits.cols,
                    results = opt.reduction == reduction::none ? rows : 1;
  arguments args(of.name);
  args.at_least_one("vocab", vocab);
  args.in("logits", of.logits);
  args.in(of.teacher_name, of.teacher, rows, vocab);
  declare_labels(args, target, weight, rows, vocab);
  args.optional_out("dlogits", of.dlogits, rows, vocab).may_be("logits", of.teacher_name);
  args.out("loss", of.losses.loss, results);
  args.optional_out("ce", of.losses.ce, results);
  args.optional_out("divergence", of.losses.divergence, results);
  args.check();
  expect_loss_options<accumulator_t<T>>(args, ce);
  using A = accumulator_t<T>;
  args.finite<A>("weight_ce", opt.weight_ce);
  args.finite<A>("weight_divergence", opt.weight_divergence);
  args.finite<A>("upstream", opt.upstream);
  args.option(opt.temperature >= 1e-30 && opt.temperature <= 1e30, "temperature", opt.temperature,
              "a number from 1e-30 to 1e30");
  expect_beta<A>(args, opt.beta);
  const double per_row = opt.upstream / (ce.reduction == reduction::mean && ce.denominator != 0 ? ce.denominator : 1);
  args.made<A>("upstream weight_ce over the denominator", per_row * opt.weight_ce);
  args.made<A>("upstream weight_divergence over the denominator and the temperature",
               per_row * opt.weight_divergence / std::min(opt.temperature, 1.0));
  expect_labels_of<B>(of.name, target, vocab, opt.ignore_index);
  ctx.workspace().expect(of.name, cross_entropy_divergence_workspace<B, T>(rows, vocab, ctx));
}

/// Checks, and the call.
template <class Op, class B, element T, class Target, class Weight>
void run_cross_entropy_divergence(const cross_entropy_divergence_arguments<T>& of, const Target& target, Weight weight,
                                  context& ctx) {
  const std::span labels(target);
  using I = std::remove_const_t<typename decltype(labels)::element_type>;
  static_assert(token_id<I>, "tigon: targets are std::int32_t or std::int64_t");
  const std::span<const I> targets(labels);
  const auto& opt = of.opt;
  cross_entropy_options ce;
  ce.ignore_index = opt.ignore_index, ce.reduction = opt.reduction, ce.label_smoothing = opt.label_smoothing;
  ce.lse_square_scale = opt.lse_square_scale, ce.denominator = opt.denominator;
  check_cross_entropy_divergence<B, T, I>(of, targets, weight, ce, ctx);
  compute_cross_entropy_divergence<Op, B, T, I>(of, targets, weight, ce, ctx);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Both losses, their weighted sum and its gradient, with the total variation distance from the teacher's
/// probabilities. See cross_entropy_divergence_options for the contract.
template <class B = default_backend, class T, class Target, parameter Weight = absent_t>
void cross_entropy_tvd_forward(in_matrix<T> logits, const Target& target, in_matrix<T> teacher_probs,
                               std::type_identity_t<cross_entropy_divergence_losses<accumulator_t<T>>> losses,
                               matrix_view<T> dlogits, cross_entropy_divergence_options opt = {},
                               const Weight& class_weight = absent, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<T>(class_weight);
  static_assert(admits_parameter<T, decltype(weight)>());
  detail::run_cross_entropy_divergence<op::cross_entropy_tvd, B, T>(
      {"cross_entropy_tvd_forward", "teacher_probs", logits, teacher_probs, losses, dlogits, opt}, target, weight, ctx);
}

/// The same with the generalised Jensen-Shannon divergence from the teacher's log-probabilities.
template <class B = default_backend, class T, class Target, parameter Weight = absent_t>
void cross_entropy_jsd_forward(in_matrix<T> logits, const Target& target, in_matrix<T> teacher_log_probs,
                               std::type_identity_t<cross_entropy_divergence_losses<accumulator_t<T>>> losses,
                               matrix_view<T> dlogits, cross_entropy_divergence_options opt = {},
                               const Weight& class_weight = absent, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<T>(class_weight);
  static_assert(admits_parameter<T, decltype(weight)>());
  detail::run_cross_entropy_divergence<op::cross_entropy_jsd, B, T>(
      {"cross_entropy_jsd_forward", "teacher_log_probs", logits, teacher_log_probs, losses, dlogits, opt}, target,
      weight, ctx);
}

TIGON_EXPLAINS(cross_entropy_tvd_forward)
TIGON_EXPLAINS(cross_entropy_jsd_forward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_CROSS_ENTROPY_DIVERGENCE_HPP
