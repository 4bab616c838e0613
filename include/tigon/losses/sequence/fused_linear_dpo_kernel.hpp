// The generic kernel of fused_linear_dpo.
#ifndef TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_DPO_KERNEL_HPP
#define TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_DPO_KERNEL_HPP

#include <tigon/losses/sequence/fused_linear_dpo_options.hpp>
#include <tigon/losses/sequence/fused_linear_preference_kernel.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
/// KL of a Bernoulli distribution with probability s(u) from one with s(v), without a difference of large numbers.
TIGON_EITHER_SIDE inline double coin_divergence(double u, double v) {
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

  TIGON_EITHER_SIDE pair_value operator()(const preference_pair& p) const {
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
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::fused_linear_dpo, backends::generic> : detail::pair_kernel {};

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_DPO_KERNEL_HPP
