// Losses on single sequences that are liked or not, from hidden states: the base of KTO.
#ifndef TIGON_LOSSES_FUSED_LINEAR_UNPAIRED_PREFERENCE_HPP
#define TIGON_LOSSES_FUSED_LINEAR_UNPAIRED_PREFERENCE_HPP

#include <tigon/losses/sequence/fused_linear_unpaired_preference_kernel.hpp>

namespace tigon {

/// For B sequences with a label each and token log-probabilities log p of z = x w^T + bias at the targets that are not
/// ignore_index:
///
///   s_b  = sum of log p over the tokens of sequence b, or their mean (average_log_prob);   s0: the reference's, or 0
///   loss = 1/B sum_b f(s_b, s_b - s0_b, desirable_b)
///   D_tj = u_t ([j = target_t] - p_tj),   u = f' / B / tokens,   dx = D w, dw = D^T x, db = sum D
///   with a softcap p is of s = softcap tanh(z / softcap), and D_tj is times 1 - (s_tj / softcap)^2
///
/// Formula    docs/formulas/preference.md.
/// Shapes     x, dx [B len, hidden], row b * len + t for token t of sequence b; target [B, len]; desirable [B]; w, dw
///            [vocab, hidden]; bias, dbias [vocab], or none; reference_model and unpaired_results as they say. vocab >=
///            1; B may be 0.
/// Types      x, w, bias, their gradients and the reference of one type, f32, bf16, f16 or f64; loss and results f32
///            (f64 for f64); target std::int32_t or std::int64_t; desirable std::uint8_t, 0 or not. With linear_types x
///            and dx have one type, w and bias one, their gradients one (f64 is refused), and each output has the error
///            of its own type.
/// Precision  as preference_options.
/// Writes     loss, the results that have memory, dx, dw, dbias; a gradient whose view has no memory is not computed.
///            dw and dbias are added to with gradient::accumulate. Rows that no target counts are not read, unless sums
///            of logits are requested; their dx is 0.
/// Aliasing   no output shares an element with another argument; any layout.
/// Memory     as preference_options; see fused_linear_unpaired_preference_workspace.
/// Throws     tigon::error: shape, stride, alias, argument (a number outside option_range, sums of logits with a
///            softcap), workspace, and index (in every build) for a target outside [0, vocab) that is not ignore_index;
///            before the first write.
/// Edges      B = 0: loss 0, gradients 0. A sequence without a token that counts: log-probability 0, no gradient,
///            counted in empty_sequences. NaN or +inf in a row of logits: its sequence, and the loss, are NaN.
/// Max error  loss and results 2e-7, in bf16 too, gradients f32 2e-6, bf16 8e-3 of |reference| + their root mean
///            square (tests/losses/fused_linear_kto_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), w(100 * 16, 0.1f), dx(x), dw(w), loss(1);
/// const std::vector<std::int64_t> tokens{1, 2, 3, -100};  // two sequences
/// const tigon::matrix_view target(tokens.data(), 2, 2);
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), v.size() / 16, 16); };
/// const tigon::linear_layer layer{rows(x), rows(w)};
/// const tigon::linear_gradients gradients{rows(dx), rows(dw)};
/// const std::vector<std::uint8_t> desirable{1, 0};
/// const auto likely = [](const tigon::preference_sequence& s) {
///   const double sign = s.desirable ? 1 : -1;
///   return tigon::sequence_value{-sign * s.logp, -sign};
/// };
/// tigon::fused_linear_unpaired_preference_forward(layer, {target, desirable}, likely, {loss}, gradients);
/// ```
struct unpaired_options;

/// Loss, results and all gradients in one call. See unpaired_options for the contract; f is called once a sequence, by
/// the calling thread. For another upstream gradient: fused_linear_backward.
template <class B = default_backend, class T>
void fused_linear_unpaired_preference_forward(const linear_layer<T>& layer, const unpaired_batch& batch,
                                              sequence_loss f,
                                              const std::type_identity_t<unpaired_results<accumulator_t<T>>>& to,
                                              const std::type_identity_t<linear_gradients<T>>& gradients = {},
                                              fused_linear_unpaired_preference_options opt = {},
                                              const std::type_identity_t<reference_model<T>>& reference = {},
                                              context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using K = kernel_for<op::fused_linear_unpaired_preference, B>;
  constexpr std::string_view op = "fused_linear_unpaired_preference_forward";
  detail::unpaired_door<B, T>(op, &K::template forward<B, T>, f, {opt.beta, opt.average_log_prob},
                              {layer, batch, to, gradients, opt.sequences, reference}, ctx);
}

TIGON_EXPLAINS(fused_linear_unpaired_preference_forward)

}  // namespace tigon

#include <tigon/losses/selective_logprob.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_UNPAIRED_PREFERENCE_HPP
