// Direct preference optimisation and its relatives, from hidden states.
#ifndef TIGON_LOSSES_FUSED_LINEAR_DPO_HPP
#define TIGON_LOSSES_FUSED_LINEAR_DPO_HPP

#include <tigon/losses/fused_linear_preference.hpp>

namespace tigon {

namespace op {
struct fused_linear_dpo {
  static constexpr std::string_view name = "fused_linear_dpo";
};
}  // namespace op

/// The loss of a pair, as a function of u = beta ((c - c0) - (r - r0)) or of its two parts.
enum class dpo_loss {
  sigmoid,    ///< Rafailov et al., 2023; with label_smoothing the conservative form
  hinge,      ///< Zhao et al., 2023 (SLiC)
  exo_pair,   ///< Ji et al., 2024; label_smoothing above 0
  nca_pair,   ///< Chen et al., 2024
  robust,     ///< Chowdhury et al., 2024; label_smoothing below 1/2
  bco_pair,   ///< Jung et al., 2024, without the running mean
  sppo_hard,  ///< Wu et al., 2024
  apo_zero,   ///< D'Oosterlinck et al., 2024
  apo_down,   ///< the same
  discopop,   ///< Lu et al., 2024
  ipo,        ///< Azar et al., 2023; always on means over tokens
};

/// Direct preference optimisation and its relatives on pairs of sequences. With xi = c - c0, nu = r - r0,
/// u = beta (xi - nu), s = 1 / (1 + e^-x) and sp = log(1 + e^x):
///
///   sigmoid    (1 - e) sp(-u) + e sp(u)                    e = label_smoothing
///   hinge      max(0, 1 - u)
///   exo_pair   KL of (s(u), s(-u)) from (1 - e, e)
///   nca_pair   sp(-beta xi) + sp(beta xi) / 2 + sp(beta nu) / 2
///   robust     ((1 - e) sp(-u) - e sp(u)) / (1 - 2 e)
///   bco_pair   sp(-beta xi) + sp(beta nu)
///   sppo_hard  (xi - 1 / (2 beta))^2 + (nu + 1 / (2 beta))^2
///   apo_zero   s(-beta xi) + s(beta nu)
///   apo_down   s(beta xi) + s(-u)
///   discopop   (1 - h) sp(-u) + h e^-u,   h = s(u / discopop_tau)
///   ipo        (xi / tokens - nu / tokens - 1 / (2 beta))^2
///
/// Everything else (shapes, memory, the nll) as preference_options has it; the derivatives are in
/// docs/formulas/preference.md. Without a reference c0 = r0 = 0. label_smoothing is refused where the form above has no
/// e. e^-u h is made in the exponent, and e^-u alone does not exceed the largest f32.
struct fused_linear_dpo_options {
  preference_options pairs{};
  dpo_loss loss = dpo_loss::sigmoid;
  double beta = 0.1;           ///< above 0
  double label_smoothing = 0;  ///< sigmoid: [0, 1/2]; robust: [0, 1/2); exo_pair: (0, 1/2)
  double discopop_tau = 0.05;  ///< above 0
  bool compute_nll_loss = false;
  bool average_log_prob = false;
};

namespace detail {
inline namespace TIGON_ABI {

/// KL of a Bernoulli distribution with probability s(u) from one with s(v), without a difference of large numbers.
inline double coin_divergence(double u, double v) {
  double delta = u - v;
  const auto term = [](double p, double log_p) { return p == 0 ? 0 : p * log_p; };
  if (!(std::abs(delta) < 0.1)) {
    return term(logistic(u), softplus(-v) - softplus(-u)) + term(logistic(-u), softplus(v) - softplus(u));
  }
  // With t = s(-u) <= 1/2 it is log1p(t expm1(delta)) - t delta = t (e^d - 1 - d) - (y - log1p(y)), y = t expm1(d):
  // two sums of their leading terms, the second one at most half of the first.
  if (u < 0) u = -u, delta = -delta;
  const double t = logistic(-u), y = t * std::expm1(delta);
  double power = delta * delta / 2, above = 0, square = y * y, below = 0;
  for (int n = 3; n < 24; ++n, power *= delta / (n - 1), square *= -y) above += power, below += square / (n - 1);
  return t * above - below;
}

/// One of the pair losses.
struct dpo_pair {
  fused_linear_dpo_options opt;

  pair_value operator()(const preference_pair& p) const {
    const double beta = opt.beta, e = opt.label_smoothing, xi = p.chosen_ratio, nu = p.rejected_ratio;
    const double u = beta * (xi - nu), half = 1 / (2 * beta);
    const auto of_u = [](double value, double d) { return pair_value{value, d, -d}; };
    switch (opt.loss) {
      case dpo_loss::sigmoid:
        return of_u((1 - e) * softplus(-u) + (e == 0 ? 0 : e * softplus(u)),
                    beta * (e * logistic(u) - (1 - e) * logistic(-u)));
      case dpo_loss::hinge: return u >= 1 ? of_u(0, 0) : of_u(1 - u, u < 1 ? -beta : u);
      case dpo_loss::exo_pair: {
        const double v = std::log1p(-e) - std::log(e), slope = logistic(u) * logistic(-u);
        return of_u(coin_divergence(u, v), slope == 0 ? 0 : beta * slope * (u - v));
      }
      case dpo_loss::nca_pair:
        return {softplus(-beta * xi) + softplus(beta * xi) / 2 + softplus(beta * nu) / 2,
                beta * (logistic(beta * xi) / 2 - logistic(-beta * xi)), beta * logistic(beta * nu) / 2};
      case dpo_loss::robust:
        return of_u(((1 - e) * softplus(-u) - (e == 0 ? 0 : e * softplus(u))) / (1 - 2 * e),
                    -beta * ((1 - e) * logistic(-u) + e * logistic(u)) / (1 - 2 * e));
      case dpo_loss::bco_pair:
        return {softplus(-beta * xi) + softplus(beta * nu), -beta * logistic(-beta * xi), beta * logistic(beta * nu)};
      case dpo_loss::sppo_hard:
        return {(xi - half) * (xi - half) + (nu + half) * (nu + half), 2 * (xi - half), 2 * (nu + half)};
      case dpo_loss::apo_zero:
        return {logistic(-beta * xi) + logistic(beta * nu), -beta * logistic(beta * xi) * logistic(-beta * xi),
                beta * logistic(beta * nu) * logistic(-beta * nu)};
      case dpo_loss::apo_down: {
        const double by_u = beta * logistic(u) * logistic(-u);
        return {logistic(beta * xi) + logistic(-u), beta * logistic(beta * xi) * logistic(-beta * xi) - by_u, by_u};
      }
      case dpo_loss::discopop: {
        const double v = u / opt.discopop_tau, most = std::numeric_limits<float>::max();
        const double eta = logistic(v), rest = logistic(-v);
        const double grown = std::min(std::exp(-u - softplus(-v)), most);  // e^-u eta
        const double slope = std::min(std::exp(-u - softplus(-v) - softplus(v)), most) - softplus(-u) * eta * rest;
        return of_u(softplus(-u) * rest + grown, beta * (slope / opt.discopop_tau - logistic(-u) * rest - grown));
      }
      case dpo_loss::ipo: break;
    }
    const double distance = xi / p.chosen_tokens - nu / p.rejected_tokens - half;
    return {distance * distance, 2 * distance / p.chosen_tokens, -2 * distance / p.rejected_tokens};
  }
};

template <class A>
void expect_dpo(std::string_view op, const fused_linear_dpo_options& opt) {
  const expects expect(op);
  const double e = opt.label_smoothing;
  expect.above_zero<A>("discopop_tau", opt.discopop_tau);
  const auto smoothing = [&](bool holds, const char* expected) {
    expect.number<A>(holds, "label_smoothing", e, expected);
  };
  switch (opt.loss) {
    case dpo_loss::sigmoid: return smoothing(e >= 0 && e <= 0.5, "a number from 0 to 1/2");
    case dpo_loss::robust: return smoothing(e >= 0 && e < 0.5, "at least 0 and below 1/2");
    case dpo_loss::exo_pair: return smoothing(e > 0 && e < 0.5, "above 0 and below 1/2");
    default: return smoothing(e == 0, "0: only sigmoid, robust and exo_pair have it");
  }
}

}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::fused_linear_dpo, backends::generic> : detail::pair_kernel {};

/// Loss, results and all gradients in one call. See fused_linear_dpo_options
/// for the contract.
template <class B = default_backend, class T>
void fused_linear_dpo_forward(const linear_layer<T>& layer, const preference_batch& batch,
                              const std::type_identity_t<preference_results<accumulator_t<T>>>& to,
                              const std::type_identity_t<linear_gradients<T>>& gradients = {},
                              fused_linear_dpo_options opt = {},
                              const std::type_identity_t<reference_model<T>>& reference = {},
                              context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using K = kernel_for<op::fused_linear_dpo, B>;
  constexpr std::string_view op = "fused_linear_dpo_forward";
  detail::expect_dpo<accumulator_t<T>>(op, opt);
  const detail::dpo_pair f{opt};
  detail::pair_door<B, T>(op, &K::template forward<B, T>, {f, opt.beta, opt.compute_nll_loss, opt.average_log_prob},
                          {layer, batch, to, gradients, opt.pairs, reference}, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_DPO_HPP
