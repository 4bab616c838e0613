// The generic kernel of fused_linear_unpaired_preference.
#ifndef TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_UNPAIRED_PREFERENCE_KERNEL_HPP
#define TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_UNPAIRED_PREFERENCE_KERNEL_HPP

#include <tigon/losses/sequence/fused_linear_unpaired_preference_options.hpp>
#include <tigon/losses/sequence/sequence_kernel.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
using unpaired_kernel = named_sequence_kernel<op::fused_linear_unpaired_preference>;
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::fused_linear_unpaired_preference, backends::generic> : detail::sequence_kernel {};

/// Bytes of workspace that the forward of any unpaired loss takes for a call with all gradients, or those of x alone,
/// all results and a bias;
/// with a reference layer if reference_hidden is not 0.
template <class B = default_backend, class T>
std::size_t fused_linear_unpaired_preference_workspace(std::size_t sequences, std::size_t length, std::size_t hidden,
                                                       std::size_t vocab, std::size_t reference_hidden = 0,
                                                       const context& ctx = default_context<B>(),
                                                       parameters of = parameters::trained) {
  return detail::preference_workspace<B, T>(sequences, 1, length, hidden, vocab, reference_hidden, {false, of}, ctx) +
         detail::bytes_of_logit_sums<B, T>(hidden) + detail::sums_of_sequences<B>(sequences);
}

namespace detail {
inline namespace TIGON_ABI {
/// The numbers that an unpaired loss comes with.
struct unpaired_terms {
  double beta;
  bool average;
};

/// What the public functions of the unpaired losses are called with.
template <layer_types T>
struct unpaired_arguments {
  const linear_layer<T>& layer;
  const unpaired_batch& batch;
  const unpaired_results<accumulator_t<T>>& to;
  const linear_gradients<T>& gradients;
  const unpaired_options& opt;
  const reference_model<T>& reference;
  std::span<const accumulator_t<T>> kl{};  ///< of kto: one number, one a sequence, or none
};

/// The checks of all of them.
template <class B, layer_types T>
void check_unpaired(std::string_view op, const unpaired_terms& terms, const unpaired_arguments<T>& of,
                    const context& ctx) {
  const linear_layer<T>& head = of.layer;
  const token_ids& target = of.batch.target;
  const std::span<const std::uint8_t> desirable = of.batch.desirable;
  const unpaired_results<accumulator_t<T>>& out = of.to;
  const unpaired_options& opt = of.opt;
  const reference_model<T>& reference = of.reference;
  const double beta = terms.beta;
  using A = accumulator_t<T>;
  const std::size_t sequences = target.rows, length = target.cols;
  arguments args(op);
  declare_sequences<B>(args, op, head, reference, target);
  args.in("desirable", desirable, sequences);
  if (!of.kl.empty()) args.in("kl", of.kl, of.kl.size() == 1 ? 1 : sequences);
  declare_gradients(args, head, of.gradients);
  args.out("loss", out.loss, 1);
  args.optional_out("logps", out.logps, sequences);
  args.optional_out("rewards", out.rewards, sequences);
  args.optional_out("chosen_logps_sum", out.chosen_logps_sum, 1);
  args.optional_out("rejected_logps_sum", out.rejected_logps_sum, 1);
  args.optional_out("chosen_logits_sum", out.chosen_logits_sum, 1);
  args.optional_out("rejected_logits_sum", out.rejected_logits_sum, 1);
  args.optional_out("chosen_rewards_sum", out.chosen_rewards_sum, 1);
  args.optional_out("rejected_rewards_sum", out.rejected_rewards_sum, 1);
  args.optional_out("empty_sequences", out.empty_sequences, 1);
  args.check();
  args.finite<A>("upstream", opt.upstream);
  args.above_zero<A>("beta", beta);
  args.denominator<A>(opt.denominator);
  args.made<A>("upstream over the denominator", opt.upstream / (opt.denominator != 0 ? opt.denominator : 1));
  expect_softcap(args, opt.softcap, "chosen_logits_sum", out.chosen_logits_sum, out.rejected_logits_sum);
  if constexpr (host_memory<B>) expect_ids(op, "target", target, head.w.rows, opt.ignore_index);
  ctx.workspace().expect(
      op, fused_linear_unpaired_preference_workspace<B, T>(sequences, length, head.x.cols, head.w.rows,
                                                           reference.layer.w.cols, ctx, of.gradients.of_weights()));
}

/// What all of them do on CPUs; `kernel` is the kernel of the operator.
template <class B, layer_types T>
void run_unpaired(std::string_view op, void (*kernel)(const sequence_call<T>&, context&), sequence_loss f,
                  const unpaired_terms& terms, const unpaired_arguments<T>& of, context& ctx) {
  const linear_layer<T>& head = of.layer;
  const token_ids& target = of.batch.target;
  const std::span<const std::uint8_t> desirable = of.batch.desirable;
  const unpaired_results<accumulator_t<T>>& out = of.to;
  const unpaired_options& opt = of.opt;
  const reference_model<T>& reference = of.reference;
  using A = accumulator_t<T>;
  check_unpaired<B, T>(op, terms, of, ctx);
  const std::size_t sequences = target.rows, length = target.cols;
  workspace::frame frame(ctx.workspace());
  const sequence_tokens<A> tokens(frame, sequences, 1, length, false, reference.layer.w.data != nullptr);
  const auto id = [&](std::size_t i) {
    const std::int64_t t = target(i / length, i % length);
    return t == opt.ignore_index ? -1 : t;
  };
  tokens.list(id, id);
  const double count = opt.denominator != 0 ? opt.denominator : static_cast<double>(sequences);
  unpaired_losses<A> losses{{{tokens, target, opt.ignore_index, terms.average, reference.logps},
                             desirable,
                             terms.beta,
                             count == 0 ? 0 : 1 / count,
                             opt.upstream,
                             out},
                            f};
  kernel({head, of.gradients, reference.layer, tokens, 1.0, losses, opt.softcap}, ctx);

  losses.put_results(losses.loss, losses.logps, losses.rewards, losses.empty);
  if (out.chosen_logits_sum.data() == nullptr && out.rejected_logits_sum.data() == nullptr) return;
  const logit_sums<B, T> sums(frame, head, ctx);
  double logits[2] = {};
  for (std::size_t b = 0; b < sequences; ++b) sums.add(b * length, length, logits[desirable[b] != 0]);
  put_where_wanted(out.chosen_logits_sum, 0, logits[1]), put_where_wanted(out.rejected_logits_sum, 0, logits[0]);
}

/// The same on backend B: where its memory is elsewhere f is an object that the device calls.
template <class B, layer_types T, class F>
void unpaired_door(std::string_view op, void (*kernel)(const sequence_call<T>&, context&), const F& f,
                   const unpaired_terms& terms, const unpaired_arguments<T>& of, context& ctx) {
  if constexpr (host_memory<B>)
    run_unpaired<B, T>(op, kernel, f, terms, of, ctx);
  else
    kernel_for<op::fused_linear_unpaired_preference, B>::template sequences<B, T>(op, kernel, f, terms, of, ctx);
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_UNPAIRED_PREFERENCE_KERNEL_HPP
