// The generic kernel of fused_linear_preference.
#ifndef TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_PREFERENCE_KERNEL_HPP
#define TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_PREFERENCE_KERNEL_HPP

#include <tigon/losses/sequence/fused_linear_preference_options.hpp>
#include <tigon/losses/sequence/sequence_kernel.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
using pair_kernel = named_sequence_kernel<op::fused_linear_preference>;
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::fused_linear_preference, backends::generic> : detail::sequence_kernel {};

/// Bytes of workspace that the forward of any loss on pairs takes for a call with all gradients, or those of x alone,
/// all results, a bias and an nll_target; with a reference layer if reference_hidden is not 0.
template <class B = default_backend, class T>
std::size_t fused_linear_preference_workspace(std::size_t pairs, std::size_t length, std::size_t hidden,
                                              std::size_t vocab, std::size_t reference_hidden = 0,
                                              const context& ctx = default_context<B>(),
                                              parameters of = parameters::trained) {
  return detail::preference_workspace<B, T>(pairs, 2, length, hidden, vocab, reference_hidden, {true, of}, ctx) +
         detail::bytes_of_logit_sums<B, T>(hidden) + detail::sums_of_sequences<B>(pairs);
}

namespace detail {
inline namespace TIGON_ABI {
/// What the public functions of the losses on pairs are called with.
template <layer_types T>
struct pair_arguments {
  const linear_layer<T>& layer;
  const preference_batch& batch;
  const preference_results<accumulator_t<T>>& to;
  const linear_gradients<T>& gradients;
  const preference_options& opt;
  const reference_model<T>& reference;
};

/// Whether the nll has targets of its own.
inline bool has_own_nll(const preference_batch& batch) { return batch.nll_target.bytes().data != nullptr; }

/// The checks of all of them.
template <class B, layer_types T>
void check_pairs(std::string_view op, const pair_terms& terms, const pair_arguments<T>& of, const context& ctx) {
  const linear_layer<T>& head = of.layer;
  const token_ids &target = of.batch.target, &nll_target = of.batch.nll_target;
  const preference_results<accumulator_t<T>>& out = of.to;
  const preference_options& opt = of.opt;
  const reference_model<T>& reference = of.reference;
  using A = accumulator_t<T>;
  const std::size_t pairs = target.rows / 2, length = target.cols;
  if (target.rows == 0 || target.rows % 2 != 0)
    fail_argument(error_code::shape, op, "target", "of " + std::to_string(target.rows) + " sequences",
                  "an even number of at least 2");
  arguments args(op);
  declare_sequences<B>(args, op, head, reference, target);
  const bool own_nll = has_own_nll(of.batch);
  if (own_nll && (nll_target.cols != length || (nll_target.rows != pairs && nll_target.rows != 2 * pairs)))
    fail_argument(error_code::shape, op, "nll_target", shape_text(nll_target.rows, nll_target.cols),
                  shape_text(pairs, length));
  args.in("nll_target", nll_target.bytes());
  declare_gradients(args, head, of.gradients);
  args.out("loss", out.loss, 1);
  args.optional_out("chosen_logps", out.chosen_logps, pairs);
  args.optional_out("rejected_logps", out.rejected_logps, pairs);
  args.optional_out("chosen_rewards", out.chosen_rewards, pairs);
  args.optional_out("rejected_rewards", out.rejected_rewards, pairs);
  args.optional_out("nll_loss", out.nll_loss, 1);
  args.optional_out("chosen_logits_mean", out.chosen_logits_mean, 1);
  args.optional_out("rejected_logits_mean", out.rejected_logits_mean, 1);
  args.optional_out("metrics", out.metrics, 2);
  args.optional_out("empty_sequences", out.empty_sequences, 1);
  args.check();
  args.finite<A>("alpha", opt.alpha), args.finite<A>("upstream", opt.upstream);
  args.above_zero<A>("beta", terms.beta);
  args.denominator<A>(opt.denominator), args.denominator<A>(opt.nll_denominator, "nll_denominator");
  args.made<A>("upstream over the denominator", opt.upstream / (opt.denominator != 0 ? opt.denominator : 1));
  args.made<A>("upstream alpha over the nll_denominator",
               opt.upstream * opt.alpha / (opt.nll_denominator != 0 ? opt.nll_denominator : 1));
  expect_softcap(args, opt.softcap, "chosen_logits_mean", out.chosen_logits_mean, out.rejected_logits_mean);
  if constexpr (host_memory<B>) {
    expect_ids(op, "target", target, head.w.rows, opt.ignore_index);
    if (own_nll) expect_ids(op, "nll_target", nll_target, head.w.rows, opt.ignore_index);
  }
  ctx.workspace().expect(
      op, fused_linear_preference_workspace<B, T>(pairs, length, head.x.cols, head.w.rows, reference.layer.w.cols, ctx,
                                                  of.gradients.of_weights()));
}

/// What all of them do on CPUs; `kernel` is the kernel of the operator.
template <class B, layer_types T>
void run_pairs(std::string_view op, void (*kernel)(const sequence_call<T>&, context&), pair_loss f,
               const pair_terms& terms, const pair_arguments<T>& of, context& ctx) {
  const linear_layer<T>& head = of.layer;
  const token_ids &target = of.batch.target, &nll_target = of.batch.nll_target;
  const preference_results<accumulator_t<T>>& out = of.to;
  const preference_options& opt = of.opt;
  const reference_model<T>& reference = of.reference;
  using A = accumulator_t<T>;
  check_pairs<B, T>(op, terms, of, ctx);
  const std::size_t pairs = target.rows / 2, length = target.cols, rows = head.x.rows, vocab = head.w.rows;
  workspace::frame frame(ctx.workspace());
  const bool second = terms.nll && has_own_nll(of.batch);
  const sequence_tokens<A> tokens(frame, pairs, 2, length, second, reference.layer.w.data != nullptr);
  const auto id = [&](const token_ids& ids, std::size_t i) {
    const std::int64_t t = ids(i / length, i % length);
    return t == opt.ignore_index ? -1 : t;
  };
  std::size_t nll_count = 0;
  for (std::size_t i = 0; i < pairs * length; ++i) nll_count += id(second ? nll_target : target, i) >= 0 ? 1u : 0u;
  tokens.list([&](std::size_t i) { return id(target, i); },
              [&](std::size_t i) { return i < pairs * length ? id(nll_target, i) : -1; });
  pair_losses<A> losses{
      {{tokens, target, opt.ignore_index, terms.average, reference.logps}, nll_target, terms.beta, terms.nll, opt, out},
      f};
  const double m = opt.nll_denominator != 0 ? opt.nll_denominator : static_cast<double>(nll_count);
  losses.per_pair = 1 / (opt.denominator != 0 ? opt.denominator : static_cast<double>(pairs));
  const double per_nll = terms.nll && m != 0 ? 1 / m : 0;
  losses.per_token = opt.alpha * per_nll;
  kernel({head, of.gradients, reference.layer, tokens, 1.0, losses, opt.softcap}, ctx);

  losses.put_results(per_nll * losses.nll_sum, losses.loss, losses.metrics.data(), losses.empty);
  if (out.chosen_logits_mean.data() == nullptr && out.rejected_logits_mean.data() == nullptr) return;
  const logit_sums<B, T> sums(frame, head, ctx);
  const std::size_t half = rows / 2;
  const auto mean_of = [&](std::size_t begin) {
    double sum = 0;
    sums.add(begin, half, sum);
    return half == 0 ? 0 : sum / (static_cast<double>(half) * static_cast<double>(vocab));
  };
  put_where_wanted(out.chosen_logits_mean, 0, mean_of(0));
  put_where_wanted(out.rejected_logits_mean, 0, mean_of(half));
}

/// The same on backend B: where its memory is elsewhere f is an object that the device calls.
template <class B, layer_types T, class F>
void pair_door(std::string_view op, void (*kernel)(const sequence_call<T>&, context&), const F& f,
               const pair_terms& terms, const pair_arguments<T>& of, context& ctx) {
  if constexpr (host_memory<B>)
    run_pairs<B, T>(op, kernel, f, terms, of, ctx);
  else
    kernel_for<op::fused_linear_preference, B>::template pairs<B, T>(op, kernel, f, terms, of, ctx);
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_PREFERENCE_KERNEL_HPP
