// Odds-ratio preference optimisation, from hidden states.
#ifndef TIGON_LOSSES_FUSED_LINEAR_ORPO_HPP
#define TIGON_LOSSES_FUSED_LINEAR_ORPO_HPP

#include <tigon/losses/sequence/fused_linear_orpo_kernel.hpp>

namespace tigon {

/// Odds-ratio preference optimisation on pairs of sequences, without a reference. With the means c and r of the
/// log-probabilities of the tokens of the chosen and of the rejected sequence,
///
///   o = log(e^c / (1 - e^c)) - log(e^r / (1 - e^r)),   f = beta log(1 + e^-o)
///   metrics: means over the pairs of log(1 / (1 + e^-o)) and of o
///
/// Everything else is as preference_options has it (losses/fused_linear_preference.hpp). 1 - e^c is -expm1(c), and at
/// least the smallest normal f32, so that a sequence of probability 1 gives finite numbers. Hong et al., 2024.
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), w(100 * 16, 0.1f), dx(x), dw(w), loss(1);
/// const std::vector<std::int64_t> tokens{1, 2, 3, -100};  // a chosen sequence, then a rejected one
/// const tigon::matrix_view target(tokens.data(), 2, 2);
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), v.size() / 16, 16); };
/// const tigon::linear_layer layer{rows(x), rows(w)};
/// const tigon::linear_gradients gradients{rows(dx), rows(dw)};
/// tigon::fused_linear_orpo_forward(layer, {target}, {loss}, gradients);
/// ```
struct fused_linear_orpo_options;

/// Loss, results and all gradients in one call. See fused_linear_orpo_options
/// for the contract.
template <class B = default_backend, class T>
void fused_linear_orpo_forward(const linear_layer<T>& layer, const preference_batch& batch,
                               const std::type_identity_t<preference_results<accumulator_t<T>>>& to,
                               const std::type_identity_t<linear_gradients<T>>& gradients = {},
                               fused_linear_orpo_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using K = kernel_for<op::fused_linear_orpo, B>;
  constexpr std::string_view op = "fused_linear_orpo_forward";
  const detail::orpo_pair f{opt.beta};
  detail::pair_door<B, T>(op, &K::template forward<B, T>, f, {opt.beta, opt.compute_nll_loss, true},
                          {layer, batch, to, gradients, opt.pairs, {}}, ctx);
}

TIGON_EXPLAINS(fused_linear_orpo_forward)

}  // namespace tigon

#include <tigon/losses/fused_linear_preference.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_ORPO_HPP
