// Cross entropy and total variation distance, or Jensen-Shannon divergence, of the same logits in one pass.
#ifndef TIGON_LOSSES_CROSS_ENTROPY_DIVERGENCE_HPP
#define TIGON_LOSSES_CROSS_ENTROPY_DIVERGENCE_HPP

#include <tigon/losses/divergence/divergence_rows.hpp>
#include <tigon/losses/softmax/cross_entropy_divergence_options.hpp>
#include <tigon/losses/softmax/cross_entropy_kernel.hpp>
#include <tigon/losses/softmax/divergence_of_row.hpp>

namespace tigon {

template <>
struct kernel<op::cross_entropy_tvd, backends::generic> {
  using forward_only = void;

  /// Losses of rows, and dlogits if there is memory for it.
  template <backend B, element T, token_id I>
  static void forward(const detail::cross_entropy_divergence_call<T>& of, const I* target,
                      const cross_entropy_divergence_options&, context& ctx) {
    detail::cross_entropy_divergence<B, T, I>(of, target, detail::tvd_columns<accumulator_t<T>>{}, ctx);
  }
};

template <>
struct kernel<op::cross_entropy_jsd, backends::generic> {
  using forward_only = void;

  /// The same.
  template <backend B, element T, token_id I>
  static void forward(const detail::cross_entropy_divergence_call<T>& of, const I* target,
                      const cross_entropy_divergence_options& opt, context& ctx) {
    using A = accumulator_t<T>;
    simd::with_divergence<A>(opt.beta, [&](const auto& divergence) {
      using D = std::remove_cvref_t<decltype(divergence)>;
      detail::cross_entropy_divergence<B, T, I>(of, target, detail::jsd_columns<A, D>(divergence), ctx);
    });
  }
};

/// Bytes of workspace that cross_entropy_tvd_forward and cross_entropy_jsd_forward take.
template <class B = default_backend, class T>
std::size_t cross_entropy_divergence_workspace(std::size_t rows, std::size_t vocab,
                                               const context& ctx = default_context()) {
  using A = accumulator_t<T>;
  return cross_entropy_workspace<B, T>(rows, vocab, ctx) - simd::scratch_workspace<B, A>(vocab, 1, ctx) +
         workspace::bytes_for<double>(rows) + simd::scratch_workspace<B, A>(vocab, 3, ctx);
}

namespace detail {
inline namespace TIGON_ABI {

/// What the doors are called with.
template <element T>
struct cross_entropy_divergence_arguments {
  std::string_view name, teacher_name;
  matrix_view<const T> logits, teacher;
  cross_entropy_divergence_losses<accumulator_t<T>> losses;
  matrix_view<T> dlogits;
  const cross_entropy_divergence_options& opt;
};

/// Checks of both doors.
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
  expect_labels(of.name, target, vocab, opt.ignore_index);
  ctx.workspace().expect(of.name, cross_entropy_divergence_workspace<B, T>(rows, vocab, ctx));
}

/// Checks, the call of Op's kernel, and the totals of the losses of rows.
template <class Op, class B, element T, class Target, class Weight>
void run_cross_entropy_divergence(const cross_entropy_divergence_arguments<T>& of, const Target& target, Weight weight,
                                  context& ctx) {
  using A = accumulator_t<T>;
  const std::span labels(target);
  using I = std::remove_const_t<typename decltype(labels)::element_type>;
  static_assert(token_id<I>, "tigon: targets are std::int32_t or std::int64_t");
  const std::span<const I> targets(labels);
  const auto& opt = of.opt;
  cross_entropy_options ce;
  ce.ignore_index = opt.ignore_index, ce.reduction = opt.reduction, ce.label_smoothing = opt.label_smoothing;
  ce.lse_square_scale = opt.lse_square_scale, ce.denominator = opt.denominator;
  check_cross_entropy_divergence<B, T, I>(of, targets, weight, ce, ctx);

  const std::size_t rows = of.logits.rows, vocab = of.logits.cols;
  workspace::frame frame(ctx.workspace());
  const loss_rows<A> of_rows(frame, targets, vocab, weight, {}, ce);
  double* divergence = frame.template take<double>(rows);
  const double n = opt.denominator != 0 ? opt.denominator : static_cast<double>(of_rows.kept);
  const double share = opt.reduction != reduction::mean ? 1 : of_rows.kept == 0 ? 0 : 1 / n;
  const bool diverges = opt.weight_divergence != 0 || of.losses.divergence.data() != nullptr;
  const cross_entropy_divergence_call<T> call{of.logits,
                                              of.teacher,
                                              of.dlogits,
                                              {of_rows.weight, of_rows.weight == nullptr ? 0 : vocab},
                                              {ce, of_rows.scale, of_rows.out, vocab},
                                              of_rows.out,
                                              diverges ? divergence : nullptr,
                                              static_cast<A>(opt.upstream * opt.weight_ce),
                                              static_cast<A>(opt.upstream * opt.weight_divergence * share),
                                              static_cast<A>(1 / opt.temperature),
                                              opt.label_smoothing > 0,
                                              opt.temperature == 1,
                                              opt.ignore_index};
  kernel_for<Op, B>::template forward<B, T, I>(call, targets.data(), opt, ctx);

  const auto put = [&](std::span<A> to, auto value) {
    if (to.data() == nullptr) return;
    double total = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      total += value(i);
      if (opt.reduction == reduction::none) to[i] = static_cast<A>(value(i));
    }
    if (opt.reduction != reduction::none) to[0] = static_cast<A>(total);
  };
  const auto part = [](double weight_of, double value) { return weight_of == 0 ? 0 : weight_of * value; };
  const auto distance = [&](std::size_t i) { return diverges ? share * divergence[i] : 0; };
  put(of.losses.ce, [&](std::size_t i) { return of_rows.out.loss[i]; });
  put(of.losses.divergence, distance);
  put(of.losses.loss, [&](std::size_t i) {
    return part(opt.weight_ce, of_rows.out.loss[i]) + part(opt.weight_divergence, distance(i));
  });
}

}  // namespace TIGON_ABI
}  // namespace detail

/// Both losses, their weighted sum and its gradient, with the total variation distance from the teacher's probabilities.
/// See cross_entropy_divergence_options for the contract.
template <class B = default_backend, class T, class Target, parameter Weight = absent_t>
void cross_entropy_tvd_forward(in_matrix<T> logits, const Target& target, in_matrix<T> teacher_probs,
                               std::type_identity_t<cross_entropy_divergence_losses<accumulator_t<T>>> losses,
                               matrix_view<T> dlogits, cross_entropy_divergence_options opt = {},
                               const Weight& class_weight = absent, context& ctx = default_context()) {
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
                               const Weight& class_weight = absent, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<T>(class_weight);
  static_assert(admits_parameter<T, decltype(weight)>());
  detail::run_cross_entropy_divergence<op::cross_entropy_jsd, B, T>(
      {"cross_entropy_jsd_forward", "teacher_log_probs", logits, teacher_log_probs, losses, dlogits, opt}, target,
      weight, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_CROSS_ENTROPY_DIVERGENCE_HPP
