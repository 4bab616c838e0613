// Kahneman-Tversky optimisation, from hidden states.
#ifndef TIGON_LOSSES_FUSED_LINEAR_KTO_HPP
#define TIGON_LOSSES_FUSED_LINEAR_KTO_HPP

#include <tigon/losses/sequence/fused_linear_kto_kernel.hpp>

namespace tigon {

/// Kahneman-Tversky optimisation on sequences that are desirable (g = 1) or not (g = -1):
///
///   u_b = beta g_b (s_b - s0_b - kl_b),   f_b = weight_b / (1 + e^u_b)
///   df_b/ds_b = -weight_b beta g_b sigmoid(u_b) sigmoid(-u_b)
///
/// s_b is the log-probability of sequence b, s0_b that of the reference, weight_b desirable_weight or
/// undesirable_weight. kl is a constant: one number for the batch, one a sequence, or none. Everything else is as
/// unpaired_options has it (losses/fused_linear_unpaired_preference.hpp). Ethayarajh et al., 2024.
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), w(100 * 16, 0.1f), dx(x), dw(w), loss(1);
/// const std::vector<std::int64_t> tokens{1, 2, 3, -100};  // two sequences
/// const tigon::matrix_view target(tokens.data(), 2, 2);
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), v.size() / 16, 16); };
/// const tigon::linear_layer layer{rows(x), rows(w)};
/// const tigon::linear_gradients gradients{rows(dx), rows(dw)};
/// const std::vector<std::uint8_t> desirable{1, 0};
/// const std::vector<float> kl(1);
/// tigon::fused_linear_kto_forward(layer, {target, desirable}, kl, {loss}, gradients);
/// ```
struct fused_linear_kto_options;

/// Loss, results and all gradients in one call. See fused_linear_kto_options for the contract; kl is one number, one a
/// sequence, or without memory.
template <class B = default_backend, class T>
void fused_linear_kto_forward(const linear_layer<T>& layer, const unpaired_batch& batch,
                              std::type_identity_t<std::span<const accumulator_t<T>>> kl,
                              const std::type_identity_t<unpaired_results<accumulator_t<T>>>& to,
                              const std::type_identity_t<linear_gradients<T>>& gradients = {},
                              fused_linear_kto_options opt = {},
                              const std::type_identity_t<reference_model<T>>& reference = {},
                              context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using K = kernel_for<op::fused_linear_kto, B>;
  constexpr std::string_view op = "fused_linear_kto_forward";
  const expects expect(op);
  expect.finite<accumulator_t<T>>("desirable_weight", opt.desirable_weight);
  expect.finite<accumulator_t<T>>("undesirable_weight", opt.undesirable_weight);
  const detail::kto_sequence<accumulator_t<T>> f{kl, opt.beta, opt.desirable_weight, opt.undesirable_weight};
  detail::unpaired_door<B, T>(op, &K::template forward<B, T>, f, {opt.beta, opt.average_log_prob},
                              {layer, batch, to, gradients, opt.sequences, reference, kl}, ctx);
}

TIGON_EXPLAINS(fused_linear_kto_forward)

}  // namespace tigon

#include <tigon/losses/fused_linear_unpaired_preference.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_KTO_HPP
