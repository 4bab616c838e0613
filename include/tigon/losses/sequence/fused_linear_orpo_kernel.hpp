// Odds-ratio preference optimisation, from hidden states.
#ifndef TIGON_LOSSES_FUSED_LINEAR_ORPO_HPP
#define TIGON_LOSSES_FUSED_LINEAR_ORPO_HPP

#include <tigon/losses/fused_linear_preference.hpp>

namespace tigon {

namespace op {
struct fused_linear_orpo {
  static constexpr std::string_view name = "fused_linear_orpo";
};
}  // namespace op

/// Odds-ratio preference optimisation on pairs of sequences, without a reference: with means c and r over tokens,
///
///   o = log(e^c / (1 - e^c)) - log(e^r / (1 - e^r)),   f = beta log(1 + e^-o)
///   metrics: means over the pairs of log(1 / (1 + e^-o)) and of o
///
/// Everything else as preference_options has it. 1 - e^c is -expm1(c), and at least the smallest normal f32, so that a
/// sequence of probability 1 gives finite numbers. Hong et al., 2024.
struct fused_linear_orpo_options {
  preference_options pairs{};
  double beta = 0.1;  ///< above 0
  bool compute_nll_loss = true;
};

namespace detail {
inline namespace TIGON_ABI {

struct orpo_pair {
  double beta;

  pair_value operator()(const preference_pair& p) const {
    const auto rest = [](double logp) {
      return std::max(-std::expm1(logp), double{std::numeric_limits<float>::min()});
    };
    const double c = rest(p.chosen), r = rest(p.rejected);
    // log(1 - e^x) from the side on which nothing cancels.
    const auto log_rest = [](double logp, double one_minus) {
      return one_minus < 0.5 ? std::log(one_minus) : std::log1p(-std::exp(logp));
    };
    const double odds = p.chosen - p.rejected - (log_rest(p.chosen, c) - log_rest(p.rejected, r));
    const double against = c + std::exp(p.chosen - p.rejected) * r;  // c / (1 + e^odds) is its share
    return {beta * softplus(-odds), -beta / against, beta * (c / against) / r, {-softplus(-odds), odds}};
  }
};

}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::fused_linear_orpo, backends::generic> : detail::pair_kernel {};

/// Loss, results and all gradients in one call. See fused_linear_orpo_options
/// for the contract.
template <class B = default_backend, class T>
void fused_linear_orpo_forward(const linear_layer<T>& layer, const preference_batch& batch,
                               const std::type_identity_t<preference_results<accumulator_t<T>>>& to,
                               const std::type_identity_t<linear_gradients<T>>& gradients = {},
                               fused_linear_orpo_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using K = kernel_for<op::fused_linear_orpo, B>;
  constexpr std::string_view op = "fused_linear_orpo_forward";
  const detail::orpo_pair f{opt.beta};
  detail::pair_door<B, T>(op, &K::template forward<B, T>, {f, opt.beta, opt.compute_nll_loss, true},
                          {layer, batch, to, gradients, opt.pairs, {}}, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_ORPO_HPP
