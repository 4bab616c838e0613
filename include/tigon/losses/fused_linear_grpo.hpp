// Policy-gradient losses of the GRPO family from hidden states; the logits never exist as a whole.
#ifndef TIGON_LOSSES_FUSED_LINEAR_GRPO_HPP
#define TIGON_LOSSES_FUSED_LINEAR_GRPO_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/losses/sequence/fused_linear_grpo_kernel.hpp>

namespace tigon {

/// Bytes of workspace that fused_linear_grpo_forward takes for a call with a bias and all gradients, or those of x
/// alone; with a reference layer if reference_hidden is not 0. `rows`: of x.
template <class B = default_backend, class T>
std::size_t fused_linear_grpo_workspace(std::size_t batch, std::size_t rows, std::size_t hidden, std::size_t vocab,
                                        const policy_options& opt = {}, std::size_t reference_hidden = 0,
                                        const context& ctx = default_context<B>(),
                                        parameters trained = parameters::trained) {
  using A = accumulator_t<T>;
  const detail::policy_groups of(opt, {batch, 0, batch == 0 ? 0 : rows / batch});
  return detail::sequence_workspace<B, T>(of.groups, 1, of.length, hidden, vocab, reference_hidden, {false, trained},
                                          ctx) +
         workspace::bytes_for<std::int64_t>(rows) + 2 * workspace::bytes_for<double>(rows) +
         workspace::bytes_for<A>(rows) + workspace::bytes_for<double>(3, batch) +
         detail::policy_workspace<B>(rows, batch);
}

namespace detail {
inline namespace TIGON_ABI {
template <class B, layer_types T, class A = accumulator_t<T>>
void linear_grpo(const linear_layer<T>& head, const policy_call<A>& call, const linear_gradients<T>& out,
                 const reference_model<T>& reference, context& ctx) {
  const auto& [batch, to, opt, upstream, own] = call;
  constexpr std::string_view name = "fused_linear_grpo_forward";
  const std::size_t rows = head.x.rows, vocab = head.w.rows;
  const linear_layer<T>& other = reference.layer;
  const bool layer = other.w.data != nullptr, referenced = layer || batch.ref_logp.data != nullptr;
  arguments args(name);
  declare_layer<B>(args, name, head);
  args.that(!layer || batch.ref_logp.data == nullptr, error_code::argument, "ref_logp", "given beside a layer",
            "one reference");
  args.that(reference.logps.empty() && (layer || other.x.data == nullptr), error_code::argument, "reference",
            "not a layer", "x and w, or ref_logp of the batch");
  if (layer) declare_layer<B>(args, name, other, rows, vocab, reference_names);
  const token_rows at = declare_policy(args, name, batch, opt, rows, referenced, own);
  expect_finite_advantages<B>(name, batch.advantages);
  declare_gradients(args, head, out);
  declare_policy_results(args, at, opt, to, referenced);
  if (!upstream.empty()) args.in("upstream", upstream, opt.reduce ? 1 : at.batch * at.len);
  args.check();
  ctx.workspace().expect(name, fused_linear_grpo_workspace<B, T>(at.batch, rows, head.x.cols, vocab, opt, other.w.cols,
                                                                 ctx, out.of_weights()));

  if constexpr (!host_memory<B>)
    return kernel_for<op::fused_linear_grpo, B>::template losses<B, T>(
        name, head, policy<A>::template on<B>(batch, opt, at, own), {to.loss, to.metrics, nullptr}, out, other,
        upstream, ctx);
  else {
    workspace::frame frame(ctx.workspace());
    auto* column = frame.template take<std::int64_t>(rows);
    double* logp = frame.template take<double>(rows);
    double* reference_logp = frame.template take<double>(rows);
    A* u = frame.template take<A>(rows);
    double* partial = frame.template take<double>(3 * at.batch);
    policy<A> losses(batch, opt, at, own);
    if (layer) losses.made_reference = reference_logp;
    select_columns(name, at, batch.ids, batch.mask, vocab, column, losses.padded());
    const policy_groups of(opt, at);
    const sequence_tokens<A> tokens(frame, of.groups, 1, of.length, false, layer);
    tokens.list([&](std::size_t i) { return column[i]; }, [](std::size_t) { return std::int64_t{-1}; });
    policy_coefficients<A> coefficients{losses, tokens, logp, reference_logp, u, upstream};
    kernel_for<op::fused_linear_grpo, B>::template forward<B, T>(
        sequence_call<T>{head, out, other, tokens, opt.temperature, coefficients}, ctx);
    losses.template evaluate<B>(logp, {to.loss, to.metrics, partial}, ctx);
  }
}
}  // namespace TIGON_ABI
}  // namespace detail

/// The losses of policy_options on log-probabilities of a linear layer, with all gradients:
///
///   logp = log softmax((x w^T + bias) / temperature) at the ids,   u = upstream d loss / d logp
///   D_j = u / temperature ([j = id] - p_j),   dx = D w,   dw = D^T x,   dbias[j] = sum_i D[i,j]
///
/// ref_logp is given in the batch, or comes from a reference layer, at the same temperature.
///
/// Formula    docs/formulas/policy.md.
/// Shapes     x, dx [batch * len, hidden], row b * len + t for token t of sequence b, or [batch * (len + 1), hidden],
///            where position len of a sequence predicts nothing; w, dw [vocab, hidden]; bias, dbias [vocab],
///            or none; ids, mask and the other inputs, loss and metrics as grpo_loss_forward; x of the reference [rows
///            of x, reference hidden], its w [vocab, reference hidden]; upstream [1], or [batch * len] with reduce =
///            false, or empty for 1. vocab >= 1; batch, len and hidden may be 0.
/// Types      x, w, bias, their gradients and the reference layer of one type, f32, bf16, f16 or f64; loss, metrics and
///            the numbers of tokens f32 (f64 for f64); ids and mask as grpo_loss_forward. With linear_types x and dx
///            have one type, w and bias one, their gradients one (f64 is refused), and each output has the error of its
///            own type.
/// Precision  logits, D and the sums of dw and dbias over all chunks in f32 (f64 for f64); f64 between
///            log-probabilities and u; one rounding at each output.
/// Writes     loss, the metrics that have memory, dx, dw, dbias; a gradient whose view has no memory is not computed.
///            dw and dbias are added to with gradient::accumulate. Masked tokens are not read, nor multiplied; their dx
///            is 0.
/// Aliasing   no output shares an element with another argument; any layout.
/// Memory     chunk * vocab logits in f32, by default at most 64 MiB (B::chunk), and chunk rows of x and dx; for 16-bit
///            w also an f32 dw; see fused_linear_grpo_workspace. w may come packed (linear_layer).
/// Products   three where what a gradient needs at once (a token, or a sequence for level sequence and vespo) fits in a
///            chunk, otherwise four; one more for a reference layer.
/// Throws     tigon::error as policy_options and selective_log_softmax; argument for two references; before the first
///            write.
/// Max error  loss 4e-7, in bf16 too, gradients f32 1e-5, bf16 8e-3 of |reference| + its root mean square
///            (tests/losses/fused_linear_grpo_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), w(100 * 16, 0.1f), dx(x), dw(w), loss(1);
/// const std::vector<std::int64_t> tokens{1, 2, 3, 4};  // two sequences
/// const tigon::matrix_view target(tokens.data(), 2, 2);
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), v.size() / 16, 16); };
/// const tigon::linear_layer layer{rows(x), rows(w)};
/// const tigon::linear_gradients gradients{rows(dx), rows(dw)};
/// const std::vector<float> advantages{1, -1};
/// tigon::fused_linear_grpo_forward(layer, {target, advantages}, {loss}, gradients, {.beta = 0});
/// ```
template <class B = default_backend, class T>
void fused_linear_grpo_forward(const linear_layer<T>& layer,
                               const std::type_identity_t<policy_batch<accumulator_t<T>>>& batch,
                               const std::type_identity_t<policy_results<accumulator_t<T>>>& to,
                               const std::type_identity_t<linear_gradients<T>>& gradients = {},
                               const policy_options& opt = {},
                               const std::type_identity_t<reference_model<T>>& reference = {},
                               std::type_identity_t<std::span<const accumulator_t<T>>> upstream = {},
                               context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  detail::linear_grpo<B, T>(layer, {batch, to, opt, upstream}, gradients, reference, ctx);
}

/// The same with a policy loss of your own. opt.type is policy_loss::own; the gradients are those of the loss.
template <class B = default_backend, class T>
void fused_linear_grpo_forward(const linear_layer<T>& layer,
                               const std::type_identity_t<policy_batch<accumulator_t<T>>>& batch, token_loss f,
                               const std::type_identity_t<policy_results<accumulator_t<T>>>& to,
                               const std::type_identity_t<linear_gradients<T>>& gradients, const policy_options& opt,
                               const std::type_identity_t<reference_model<T>>& reference = {},
                               context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  detail::linear_grpo<B, T>(layer, {batch, to, opt, {}, &f}, gradients, reference, ctx);
}

TIGON_EXPLAINS(fused_linear_grpo_forward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_GRPO_HPP
