// Simple preference optimisation, from hidden states.
#ifndef TIGON_LOSSES_FUSED_LINEAR_SIMPO_HPP
#define TIGON_LOSSES_FUSED_LINEAR_SIMPO_HPP

#include <tigon/losses/sequence/fused_linear_simpo_kernel.hpp>

namespace tigon {

/// Simple preference optimisation on pairs of sequences: CPO of means over tokens, with a margin and without a
/// reference.
///
///   u = beta (c - r) - gamma,   f = (1 - e) log(1 + e^-u) + e log(1 + e^u)          e = label_smoothing
///
/// Everything else as preference_options has it; rewards do not contain the margin. Meng et al., 2024.
struct fused_linear_simpo_options;

/// Loss, results and all gradients in one call. See fused_linear_simpo_options
/// for the contract.
template <class B = default_backend, class T>
void fused_linear_simpo_forward(const linear_layer<T>& layer, const token_ids& target,
                                const std::type_identity_t<preference_results<accumulator_t<T>>>& to,
                                const std::type_identity_t<linear_gradients<T>>& gradients = {},
                                fused_linear_simpo_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using K = kernel_for<op::fused_linear_simpo, B>;
  constexpr std::string_view op = "fused_linear_simpo_forward";
  detail::expect_cpo<accumulator_t<T>>(op, opt.label_smoothing);
  expects(op).finite<accumulator_t<T>>("gamma", opt.gamma);
  const detail::cpo_pair f{opt.beta, opt.label_smoothing, opt.gamma};
  detail::pair_door<B, T>(op, &K::template forward<B, T>, {f, opt.beta, opt.compute_nll_loss, true},
                          {layer, {target}, to, gradients, opt.pairs, {}}, ctx);
}

}  // namespace tigon

#include <tigon/losses/fused_linear_cpo.hpp>  // the doors beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_SIMPO_HPP
