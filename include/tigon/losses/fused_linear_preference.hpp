// Losses on pairs of sequences, one preferred to the other, from hidden states: the base of DPO, ORPO, CPO and SimPO.
#ifndef TIGON_LOSSES_FUSED_LINEAR_PREFERENCE_HPP
#define TIGON_LOSSES_FUSED_LINEAR_PREFERENCE_HPP

#include <tigon/losses/sequence/fused_linear_preference_kernel.hpp>

namespace tigon {

/// For P pairs of sequences, chosen ones first, with token log-probabilities log p of z = x w^T + bias at the targets
/// that are not ignore_index:
///
///   c = sum of log p over the tokens of a chosen sequence, r of the rejected one, or their means (average_log_prob)
///   nll  = -1/M sum of log p of the chosen half at nll_target (or target), M = number of its entries that count
///   loss = alpha nll + 1/P sum_b f(c_b, r_b, c_b - c0_b, r_b - r0_b)          c0, r0: the reference's, or 0
///   D_tj = u_t ([j = target_t] - p_tj),   u = f' / P / tokens - [chosen] alpha / M,   dx = D w, dw = D^T x, db = sum D
///   with a softcap p is of s = softcap tanh(z / softcap), and D_tj has the factor 1 - (s_tj / softcap)^2
///
/// Formula    docs/formulas/preference.md.
/// Shapes     x, dx [2 P len, hidden], row s * len + t for token t of sequence s, sequence P + b the partner of b;
///            target [2 P, len]; w, dw [vocab, hidden]; bias, dbias [vocab], or none; nll_target,
///            reference_model and preference_results as they say. At least one pair and one class.
/// Types      x, w, bias, their gradients and the reference of one type, f32, bf16, f16 or f64; loss and results f32
///            (f64 for f64); targets std::int32_t or std::int64_t. With linear_types x and dx have one type, w and bias
///            one, their gradients one (f64 is refused), and each output has the error of its own type.
/// Precision  logits, D and the sums of dw and db over all chunks in f32 (f64 for f64); log p in f64, with the logits
///            that weigh most made again; sums over tokens and pairs in f64, those with a reference as sums of
///            differences; one rounding at each output.
/// Writes     loss, the results that have memory, dx, dw, dbias; a gradient whose view has no memory is not computed.
///            dw and dbias are added to with gradient::accumulate. Rows that no target counts are not read, unless
///            means of logits are requested; their dx is 0.
/// Aliasing   no output shares an element with another argument; any layout.
/// Memory     chunk * vocab logits in f32, by default at most 64 MiB (B::chunk), and chunk rows of x and dx; for 16-bit
///            w also an f32 dw; see fused_linear_preference_workspace. w may come packed (linear_layer).
/// Throws     tigon::error: shape (an odd number of sequences, or none), stride, alias, argument (a number outside
///            option_range, means of logits with a softcap), workspace, and index (in every build) for a target outside
///            [0, vocab) that is not ignore_index; before the first write.
/// Edges      a sequence without a token that counts: log-probability 0, no gradient, counted in empty_sequences. No
///            entry that counts for the nll: nll 0. NaN or +inf in a row of logits: its pair, and the loss, are NaN.
/// Max error  loss and results 4e-7, in bf16 too, gradients f32 4e-6, bf16 8e-3 of |reference| + their root mean
///            square (tests/losses/fused_linear_preference_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), w(100 * 16, 0.1f), dx(x), dw(w), loss(1);
/// const std::vector<std::int64_t> tokens{1, 2, 3, -100};  // a chosen sequence, then a rejected one
/// const tigon::matrix_view target(tokens.data(), 2, 2);
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), v.size() / 16, 16); };
/// const tigon::linear_layer layer{rows(x), rows(w)};
/// const tigon::linear_gradients gradients{rows(dx), rows(dw)};
/// const auto hinge = [](const tigon::preference_pair& p) {
///   const double short_of_one = 1 - (p.chosen - p.rejected), slope = short_of_one > 0 ? 1 : 0;
///   return tigon::pair_value{.loss = slope * short_of_one, .dchosen = -slope, .drejected = slope, .metrics = {}};
/// };
/// tigon::fused_linear_preference_forward(layer, {target}, hinge, {loss}, gradients);
/// ```
struct preference_options;

/// Loss, results and all gradients in one call. See preference_options for the contract; f is called once a pair, by
/// the calling thread. For another upstream gradient: fused_linear_backward.
template <class B = default_backend, class T>
void fused_linear_preference_forward(const linear_layer<T>& layer, const preference_batch& batch, pair_loss f,
                                     const std::type_identity_t<preference_results<accumulator_t<T>>>& to,
                                     const std::type_identity_t<linear_gradients<T>>& gradients = {},
                                     fused_linear_preference_options opt = {},
                                     const std::type_identity_t<reference_model<T>>& reference = {},
                                     context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using K = kernel_for<op::fused_linear_preference, B>;
  constexpr std::string_view op = "fused_linear_preference_forward";
  detail::pair_door<B, T>(op, &K::template forward<B, T>, f, {opt.beta, opt.compute_nll_loss, opt.average_log_prob},
                          {layer, batch, to, gradients, opt.pairs, reference}, ctx);
}

TIGON_EXPLAINS(fused_linear_preference_forward)

}  // namespace tigon

#include <tigon/losses/selective_logprob.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_PREFERENCE_HPP
