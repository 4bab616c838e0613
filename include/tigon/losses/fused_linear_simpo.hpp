// Simple preference optimisation, from hidden states.
#ifndef TIGON_LOSSES_FUSED_LINEAR_SIMPO_HPP
#define TIGON_LOSSES_FUSED_LINEAR_SIMPO_HPP

#include <tigon/losses/sequence/fused_linear_simpo_kernel.hpp>

namespace tigon {

/// Simple preference optimisation on pairs of sequences: CPO of means over tokens, with a margin and without a
/// reference. With the means c and r of the log-probabilities of the tokens of the chosen and of the rejected sequence,
///
///   u = beta (c - r) - gamma,   f = (1 - e) log(1 + e^-u) + e log(1 + e^u)          e = label_smoothing
///
/// Everything else is as preference_options has it (losses/fused_linear_preference.hpp); rewards do not contain the
/// margin. Meng et al., 2024.
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), w(100 * 16, 0.1f), dx(x), dw(w), loss(1);
/// const std::vector<std::int64_t> tokens{1, 2, 3, -100};  // a chosen sequence, then a rejected one
/// const tigon::matrix_view target(tokens.data(), 2, 2);
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), v.size() / 16, 16); };
/// const tigon::linear_layer layer{rows(x), rows(w)};
/// const tigon::linear_gradients gradients{rows(dx), rows(dw)};
/// tigon::fused_linear_simpo_forward(layer, target, {loss}, gradients);
/// ```
struct fused_linear_simpo_options;

/// Loss, results and all gradients in one call. See fused_linear_simpo_options
/// for the contract.
template <class B = default_backend, class T>
void fused_linear_simpo_forward(const linear_layer<T>& layer, const token_ids& target,
                                const std::type_identity_t<preference_results<accumulator_t<T>>>& to,
                                const std::type_identity_t<linear_gradients<T>>& gradients = {},
                                fused_linear_simpo_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using K = kernel_for<op::fused_linear_simpo, B>;
  constexpr std::string_view op = "fused_linear_simpo_forward";
  detail::expect_cpo<accumulator_t<T>>(op, opt.label_smoothing);
  expects(op).finite<accumulator_t<T>>("gamma", opt.gamma);
  const detail::cpo_pair f{opt.beta, opt.label_smoothing, opt.gamma};
  detail::pair_door<B, T>(op, &K::template forward<B, T>, f, {opt.beta, opt.compute_nll_loss, true},
                          {layer, {target}, to, gradients, opt.pairs, {}}, ctx);
}

TIGON_EXPLAINS(fused_linear_simpo_forward)

}  // namespace tigon

#include <tigon/losses/fused_linear_cpo.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_SIMPO_HPP
