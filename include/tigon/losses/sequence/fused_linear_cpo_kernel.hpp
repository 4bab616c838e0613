// Contrastive preference optimisation, from hidden states.
#ifndef TIGON_LOSSES_FUSED_LINEAR_CPO_HPP
#define TIGON_LOSSES_FUSED_LINEAR_CPO_HPP

#include <tigon/losses/fused_linear_preference.hpp>

namespace tigon {

namespace op {
struct fused_linear_cpo {
  static constexpr std::string_view name = "fused_linear_cpo";
};
}  // namespace op

/// Contrastive preference optimisation on pairs of sequences, without a reference:
///
///   u = beta (c - r),   f = (1 - e) log(1 + e^-u) + e log(1 + e^u)          e = label_smoothing
///
/// Everything else as preference_options has it. Xu et al., 2024.
struct fused_linear_cpo_options {
  preference_options pairs{};
  double beta = 0.1;           ///< above 0
  double label_smoothing = 0;  ///< in [0, 1]
  bool compute_nll_loss = true;
  bool average_log_prob = false;
};

namespace detail {
inline namespace TIGON_ABI {

/// Also SimPO, which has a margin.
struct cpo_pair {
  double beta, label_smoothing, margin = 0;

  pair_value operator()(const preference_pair& p) const {
    const double u = beta * (p.chosen - p.rejected) - margin, e = label_smoothing;
    const auto share = [](double part, double v) { return part == 0 ? 0 : part * v; };  // 0 times infinity
    const double d = beta * (e * logistic(u) - (1 - e) * logistic(-u));
    return {share(1 - e, softplus(-u)) + share(e, softplus(u)), d, -d, {}};
  }
};

template <class A>
void expect_cpo(std::string_view op, double label_smoothing) {
  expects(op).number<A>(label_smoothing >= 0 && label_smoothing <= 1, "label_smoothing", label_smoothing,
                        "a number from 0 to 1");
}

}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::fused_linear_cpo, backends::generic> : detail::pair_kernel {};

/// Loss, results and all gradients in one call. See fused_linear_cpo_options
/// for the contract.
template <class B = default_backend, class T>
void fused_linear_cpo_forward(const linear_layer<T>& layer, const token_ids& target,
                              const std::type_identity_t<preference_results<accumulator_t<T>>>& to,
                              const std::type_identity_t<linear_gradients<T>>& gradients = {},
                              fused_linear_cpo_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using K = kernel_for<op::fused_linear_cpo, B>;
  constexpr std::string_view op = "fused_linear_cpo_forward";
  detail::expect_cpo<accumulator_t<T>>(op, opt.label_smoothing);
  const detail::cpo_pair f{opt.beta, opt.label_smoothing};
  detail::pair_door<B, T>(op, &K::template forward<B, T>, {f, opt.beta, opt.compute_nll_loss, opt.average_log_prob},
                          {layer, {target}, to, gradients, opt.pairs, {}}, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_CPO_HPP
