// Policy losses of the GRPO family as functions of log-probabilities: all that is a number a token or a sequence.
#ifndef TIGON_LOSSES_SEQUENCE_POLICY_HPP
#define TIGON_LOSSES_SEQUENCE_POLICY_HPP

#include <tigon/losses/sequence/policy_options.hpp>
#include <tigon/losses/softmax/selective_log_softmax_kernel.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {

/// exp(d) - 1 - d without cancellation.
TIGON_EITHER_SIDE inline double phi(double d) {
  if (math::abs(d) >= 0.25) return math::expm1(d) - d;
  double sum = 0;
  for (int k = 13; k >= 2; --k) sum = (1 + sum) * d / k;
  return sum * d;
}

/// rho * a, which is 0 for a = 0 and an infinite ratio.
TIGON_EITHER_SIDE inline double times(double rho, double a) { return a == 0 && !math::is_nan(rho) ? 0 : rho * a; }

TIGON_EITHER_SIDE inline double clamp(double v, double low, double high) { return v < low ? low : v > high ? high : v; }

/// What a sequence's own numbers are made of: sums over its tokens that count.
struct policy_sums {
  double count = 0;
  double log_ratio = 0;  ///< of r; gmpo: of the clipped r
  double clamped = 0;    ///< vespo: of r within 20 of 0
  double weight = 0;     ///< vespo: of the logarithm of the sampling ratio
};
/// A sequence's own numbers.
struct policy_sequence {
  double count = 0;      ///< n_b
  double log_ratio = 0;  ///< mean of r; gmpo: of the clipped r
  double weight = 1;     ///< vespo's
  double tokens = 0;     ///< sum of the mask, of all sequences
};

/// A token's loss, and its derivative by the token's log-probability: by itself, and through the ratio of a sequence.
struct policy_term {
  double loss = 0, kl = 0, clipped = 0;
  double direct = 0, through_ratio = 0;
};

/// Where a policy loss goes.
template <class A>
struct policy_output {
  std::span<A> loss;
  policy_metrics<A> metrics;
  double* partial = nullptr;  ///< scratch, 3 * batch
};

/// A policy loss of the rows of logits: row b * stride + t is token t of sequence b.
template <class A>
struct policy {
  policy_batch<A> in;
  policy_options opt;
  token_rows at;
  const token_loss* function = nullptr;    ///< of policy_loss::own
  const double* made_reference = nullptr;  ///< of every row, instead of in.ref_logp
  double tokens = 0;                       ///< sum of the mask

  /// `count`: 0 for tokens that a device counts.
  policy(const policy_batch<A>& batch, const policy_options& options, token_rows rows, const token_loss* own_loss,
         double count)
      : in(batch), opt(options), at(rows), function(own_loss), tokens(count) {}
  policy(const policy_batch<A>& batch, const policy_options& options, token_rows rows, const token_loss* own_loss)
      : policy(batch, options, rows, own_loss, 0) {
    for (std::size_t b = 0; b < at.batch; ++b)
      for (std::size_t t = 0; t < at.len; ++t) tokens += counts(b, t);
  }
  /// For backend B, which may count tokens where they are.
  template <class B>
  static policy on(const policy_batch<A>& batch, const policy_options& options, token_rows rows,
                   const token_loss* own_loss) {
    if constexpr (host_memory<B>)
      return policy(batch, options, rows, own_loss);
    else
      return policy(batch, options, rows, own_loss, 0);
  }

  TIGON_EITHER_SIDE bool counts(std::size_t b, std::size_t t) const { return !in.mask || in.mask(b, t) != 0; }
  /// Masked tokens take part in the sum.
  TIGON_EITHER_SIDE bool padded() const {
    return opt.reduce && opt.type == policy_loss::luspo && opt.luspo == luspo_reduction::padded &&
           (opt.level == importance::token || opt.beta != 0 || (in.sampling_ratio.data != nullptr && !of_sequence()));
  }
  TIGON_EITHER_SIDE bool reads(std::size_t b, std::size_t t) const { return padded() || counts(b, t); }
  TIGON_EITHER_SIDE bool by_token() const { return policy_by_token(opt); }
  /// One ratio for all tokens of a sequence.
  TIGON_EITHER_SIDE bool by_sequence() const {
    return opt.level == importance::sequence || opt.type == policy_loss::gmpo;
  }

  /// Adds a token that counts.
  TIGON_EITHER_SIDE void add(std::size_t b, std::size_t t, double logp, policy_sums& to) const {
    ++to.count;
    if (by_token()) return;
    const double r = log_ratio(b, t, logp);
    to.log_ratio += opt.type == policy_loss::gmpo ? clipped_log_ratio(b, r) : r;
    to.clamped += clamp(r, -20, 20);
    if (opt.type == policy_loss::vespo && in.sampling_ratio.data != nullptr && !of_sequence())
      to.weight += log_omega(b, t);
  }
  TIGON_EITHER_SIDE policy_sequence sequence(std::size_t b, const policy_sums& of, double all_tokens) const {
    policy_sequence s;
    s.count = of.count, s.tokens = all_tokens;
    s.log_ratio = of.log_ratio / math::max(s.count, 1.0);
    if (opt.type == policy_loss::vespo) {
      const double weight = in.sampling_ratio.data != nullptr && of_sequence() ? log_omega(b, 0) : of.weight;
      const bool up = static_cast<double>(in.advantages[b]) >= 0;
      const double k = up ? opt.k_positive : opt.k_negative;
      const double lambda = math::max(up ? opt.lambda_positive : opt.lambda_negative, 1e-4);
      const double total = clamp(of.clamped + weight, math::log(1e-8), 20);
      s.weight = math::exp(lambda + k * total - lambda * math::exp(total));
      if (!(s.weight <= std::numeric_limits<double>::max())) s.weight = 0;
    }
    return s;
  }
  policy_sequence sequence(std::size_t b, const double* logp) const {
    policy_sums sums;
    for (std::size_t t = 0; t < at.len; ++t)
      if (counts(b, t)) add(b, t, logp == nullptr ? 0 : logp[t], sums);
    return sequence(b, sums, tokens);
  }

  TIGON_EITHER_SIDE policy_term term(std::size_t b, std::size_t t, double logp, const policy_sequence& s) const {
    const double a = static_cast<double>(in.advantages[b]);
    const bool of_sequence = by_sequence();
    double r = of_sequence ? s.log_ratio : log_ratio(b, t, logp);
    const bool clamped = opt.max_log_ratio > 0 && math::abs(r) > opt.max_log_ratio;
    if (clamped) r = clamp(r, -opt.max_log_ratio, opt.max_log_ratio);
    const double rho = math::exp(r), low = 1 - opt.epsilon_low, high = 1 + opt.epsilon_high;
    double f = 0, by_ratio = 0;  // and df / dr
    policy_term out;
    switch (opt.type) {
      case policy_loss::cispo: {
        const double factor = (rho > opt.epsilon_high ? opt.epsilon_high : rho) * a;
        f = -times(logp, factor), out.direct = -factor;
        out.clipped = rho > opt.epsilon_high && a > 0;
        break;
      }
      case policy_loss::sapo: {
        const double tau = a > 0 ? opt.tau_positive : opt.tau_negative;
        const auto s_of = math::sigmoid_both(tau * math::expm1(r));
        f = -4 / tau * s_of.of_x * a;
        by_ratio = s_of.of_minus_x == 0 ? 0 : -4 * a * s_of.of_x * s_of.of_minus_x * rho;
        break;
      }
      case policy_loss::gmpo: {
        f = by_ratio = -times(rho, a);
        const double own = log_ratio(b, t, logp);
        out.clipped = clipped_log_ratio(b, own) != own && !math::is_nan(own);
        break;
      }
      case policy_loss::own: {
        const double ref_ratio = referenced() ? logp - reference(b, t) : 0;
        const policy_value v = (*function)({logp, r, ref_ratio, a, s.count, b, t});
        f = v.loss, out.direct = v.dlogp, by_ratio = v.dlog_ratio, out.clipped = v.clipped;
        break;
      }
      case policy_loss::vespo: f = -times(logp, s.weight * a), out.direct = -s.weight * a; break;
      default: {
        const double free = times(opt.delta > 0 && rho > opt.delta ? opt.delta : rho, a);
        const double inside = times(clamp(rho, low, high), a);
        const bool is_free = free <= inside;
        f = is_free ? -free : -inside;
        if (is_free ? !(opt.delta > 0) || rho <= opt.delta : low <= rho && rho <= high) by_ratio = -times(rho, a);
        if (math::is_nan(rho)) f = by_ratio = rho;
        out.clipped = (rho < low && a < 0) || (rho > high && a > 0);
      }
    }
    const double weight = opt.type == policy_loss::vespo ? 1 : omega(b, t);
    out.loss = f * weight;
    out.direct *= weight;
    if (!clamped) (of_sequence ? out.through_ratio : out.direct) += by_ratio * weight;
    if (referenced()) {
      const double d = reference(b, t) - logp;
      const double factor = opt.bias_corrected_kl ? rho : 1, distance = phi(d);
      out.kl = factor * distance;
      if (opt.beta != 0) {
        out.loss += opt.beta * out.kl;
        // d (rho phi) / dlogp = rho phi - rho (exp(d) - 1) = -rho d.
        const bool moves = opt.bias_corrected_kl && !clamped;
        out.direct -= opt.beta * factor * (moves && !of_sequence ? d : math::expm1(d));
        if (moves && of_sequence) out.through_ratio += opt.beta * factor * distance;
      }
    }
    if (math::is_nan(logp)) out.loss = out.kl = out.direct = logp;
    return out;
  }

  /// What a token's loss is multiplied with in the sum.
  TIGON_EITHER_SIDE double weight(std::size_t b, std::size_t t, const policy_sequence& s) const {
    const double mu = counts(b, t), batch = static_cast<double>(at.batch), len = static_cast<double>(at.len);
    switch (opt.type) {
      case policy_loss::grpo:
      case policy_loss::gmpo:
      case policy_loss::sapo: return mu / (batch * math::max(s.count, 1.0));
      case policy_loss::bnpo: return mu / math::max(s.tokens, 1.0);
      case policy_loss::dr_grpo: return mu / (batch * (opt.max_length > 0 ? opt.max_length : len));
      case policy_loss::luspo:
        if (padded()) return s.count / (batch * len);
        return opt.luspo == luspo_reduction::tokens ? mu * s.count / (batch * len) : mu / batch;
      default: return mu / (opt.denominator > 0 ? opt.denominator : math::max(s.tokens, 1.0));
    }
  }

  /// Loss and metrics of token i; and of all tokens, from sums over those that count.
  static TIGON_EITHER_SIDE void put(const policy_output<A>& out, std::size_t i, const policy_term& v) {
    put_where_wanted(out.loss, i, v.loss);
    put_where_wanted(out.metrics.kl, i, v.kl), put_where_wanted(out.metrics.clipped, i, v.clipped);
  }
  static TIGON_EITHER_SIDE void put_totals(const policy_output<A>& out, double loss, double kl, double clipped,
                                           double tokens) {
    const double n = math::max(tokens, 1.0);
    put_where_wanted(out.loss, 0, loss);
    put_where_wanted(out.metrics.kl, 0, kl / n), put_where_wanted(out.metrics.clipped, 0, clipped / n);
  }

  /// Loss and metrics from the log-probabilities of all rows.
  template <class B>
  void evaluate(const double* logp, policy_output<A> out, context& ctx) const {
    for_host_tasks<B>(ctx, at.batch, [&](std::size_t b, std::size_t) {
      const double* own = logp + b * at.stride;
      const policy_sequence s = sequence(b, own);
      double* partial = out.partial + 3 * b;
      partial[0] = partial[1] = partial[2] = 0;
      for (std::size_t t = 0; t < at.len; ++t) {
        const bool mu = counts(b, t);
        const policy_term v = reads(b, t) ? term(b, t, own[t], s) : policy_term{};
        if (reads(b, t)) partial[0] += weight(b, t, s) * v.loss;
        if (mu) partial[1] += v.kl, partial[2] += v.clipped;
        if (opt.reduce) continue;
        put(out, b * at.len + t, mu ? v : policy_term{});
      }
    });
    if (!opt.reduce) return;
    const auto total = [&](std::size_t k) {
      double sum = 0;
      for (std::size_t b = 0; b < at.batch; ++b) sum += out.partial[3 * b + k];
      return sum;
    };
    put_totals(out, total(0), total(1), total(2), tokens);
  }

  /// u = d loss / d logp of all rows, times the upstream gradient: none for 1, one number, or one a token.
  template <class B>
  void gradient(const double* logp, std::span<const A> upstream, A* u, context& ctx) const {
    for_host_tasks<B>(ctx, at.batch, [&](std::size_t b, std::size_t) {
      gradient_of_tokens(b, 0, at.len, logp + b * at.stride, upstream, u + b * at.stride);
      if (at.stride > at.len) u[b * at.stride + at.len] = 0;
    });
  }

  /// The same for one token that is read, by_token().
  TIGON_NOINLINE A gradient_of_token(std::size_t row, double logp, const policy_sequence* sequences,
                                     std::span<const A> upstream) const {
    const std::size_t b = row / at.stride, t = row % at.stride;
    return static_cast<A>(times(term(b, t, logp, sequences[b]).direct, of_token(b, t, sequences[b], upstream)));
  }

  /// u of a token from its term, but for what it has through the ratio of its sequence, which is added to
  /// `through_ratio`.
  TIGON_EITHER_SIDE A direct_gradient(std::size_t b, std::size_t t, double logp, const policy_sequence& s,
                                      std::span<const A> upstream, double& through_ratio) const {
    const policy_term v = term(b, t, logp, s);
    const double of_loss = of_token(b, t, s, upstream);
    through_ratio += times(v.through_ratio, of_loss);
    return static_cast<A>(times(v.direct, of_loss));
  }
  /// u with what it has through the ratio.
  TIGON_EITHER_SIDE A with_ratio(std::size_t b, std::size_t t, double logp, const policy_sequence& s, A u,
                                 double through_ratio) const {
    if (!counts(b, t) || !moves_ratio(b, t, logp)) return u;
    return static_cast<A>(static_cast<double>(u) + through_ratio / math::max(s.count, 1.0));
  }

  /// The same for tokens [first, last) of one sequence, which has to be all of it unless by_token().
  void gradient_of_tokens(std::size_t b, std::size_t first, std::size_t last, const double* logp,
                          std::span<const A> upstream, A* u) const {
    const policy_sequence s = sequence(b, logp);
    double through_ratio = 0;
    for (std::size_t t = first; t < last; ++t) {
      u[t] = reads(b, t) ? direct_gradient(b, t, logp[t], s, upstream, through_ratio) : A(0);
    }
    if (!by_sequence()) return;
    for (std::size_t t = first; t < last; ++t) u[t] = with_ratio(b, t, logp[t], s, u[t], through_ratio);
  }

 private:
  /// d objective / d the token's loss.
  TIGON_EITHER_SIDE double of_token(std::size_t b, std::size_t t, const policy_sequence& s,
                                    std::span<const A> upstream) const {
    if (!opt.reduce) return upstream.empty() ? 1.0 : static_cast<double>(upstream[b * at.len + t]);
    return weight(b, t, s) * (upstream.empty() ? 1.0 : static_cast<double>(upstream[0]));
  }
  TIGON_EITHER_SIDE bool referenced() const { return made_reference != nullptr || in.ref_logp.data != nullptr; }
  TIGON_EITHER_SIDE double reference(std::size_t b, std::size_t t) const {
    return made_reference != nullptr ? made_reference[b * at.stride + t] : static_cast<double>(in.ref_logp.row(b)[t]);
  }
  TIGON_EITHER_SIDE bool of_sequence() const { return in.sampling_ratio.cols == 1; }
  TIGON_EITHER_SIDE double omega(std::size_t b, std::size_t t) const {
    if (in.sampling_ratio.data == nullptr) return 1;
    return static_cast<double>(in.sampling_ratio.row(b)[of_sequence() ? 0 : t]);
  }
  TIGON_EITHER_SIDE double log_omega(std::size_t b, std::size_t t) const {
    return clamp(math::log(omega(b, t)), math::log(1e-8), 20);
  }
  /// gmpo: r, at most epsilon_high where A >= 0, at least -epsilon_low otherwise.
  TIGON_EITHER_SIDE double clipped_log_ratio(std::size_t b, double r) const {
    if (static_cast<double>(in.advantages[b]) >= 0) return r > opt.epsilon_high ? opt.epsilon_high : r;
    return r < -opt.epsilon_low ? -opt.epsilon_low : r;
  }
  /// The ratio of the sequence depends on this token.
  TIGON_EITHER_SIDE bool moves_ratio(std::size_t b, std::size_t t, double logp) const {
    if (opt.type != policy_loss::gmpo) return true;
    const double r = log_ratio(b, t, logp);
    return clipped_log_ratio(b, r) == r || math::is_nan(r);
  }
  TIGON_EITHER_SIDE double log_ratio(std::size_t b, std::size_t t, double logp) const {
    if (in.old_logp.data == nullptr) return math::is_nan(logp) ? logp : 0;
    return logp - static_cast<double>(in.old_logp.row(b)[t]);
  }
};

}  // namespace TIGON_ABI
}  // namespace detail
}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_POLICY_HPP
