// The tag, options and operands of fused_linear_preference.
#ifndef TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_PREFERENCE_OPTIONS_HPP
#define TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_PREFERENCE_OPTIONS_HPP

#include <tigon/losses/sequence/sequence_tokens.hpp>

#include <array>

namespace tigon {

namespace op {
struct fused_linear_preference {
  static constexpr std::string_view name = "fused_linear_preference";
};
}  // namespace op

/// A pair of sequences, the argument of a pair loss.
struct preference_pair {
  double chosen = 0, rejected = 0;                ///< log-probabilities, sums or means over the tokens that count
  double chosen_ratio = 0, rejected_ratio = 0;    ///< the same minus the reference's, or the same
  double chosen_tokens = 1, rejected_tokens = 1;  ///< what makes means of sums; 1 where they are means
};

/// What a pair loss makes of a pair: its value, its derivatives by the two log-probabilities, and numbers of its own
/// whose means over the pairs are reported.
struct pair_value {
  double loss = 0, dchosen = 0, drejected = 0;
  std::array<double, 2> metrics{};
};

/// pair_value f(const preference_pair&)
using pair_loss = detail::function_ref<pair_value(const preference_pair&)>;

/// The contract is in losses/fused_linear_preference.hpp.
struct preference_options {
  std::int64_t ignore_index = -100;
  double alpha = 1;            ///< weight of the nll
  double upstream = 1;         ///< gradients are those of the loss times this
  double denominator = 0;      ///< instead of P, for a batch in several calls; 0: P
  double nll_denominator = 0;  ///< instead of M; 0: M
  double softcap = 0;          ///< above 0: of both layers softcap tanh(z / softcap) in the place of z; 0: none
};

/// The options of the base itself; losses of their own name have their own defaults.
struct fused_linear_preference_options {
  preference_options pairs{};
  double beta = 0.1;  ///< of the rewards
  bool compute_nll_loss = true;
  bool average_log_prob = true;
};

/// The sequences of a call: those of the chosen first, in the order of pairs.
struct preference_batch {
  token_ids target;        ///< [2 P, len]
  token_ids nll_target{};  ///< [P, len] or [2 P, len], of which the first half is used, or without memory: target
};

/// The loss, and optional results without gradients; a span without memory is not written.
template <class A>
struct preference_results {
  std::span<A> loss{};                                        // [1], which has to be there
  std::span<A> chosen_logps{}, rejected_logps{};              // [P] c and r
  std::span<A> chosen_rewards{}, rejected_rewards{};          // [P] beta (c - c0), beta (r - r0)
  std::span<A> nll_loss{};                                    // [1]
  std::span<A> chosen_logits_mean{}, rejected_logits_mean{};  // [1] over all positions and classes
  std::span<A> metrics{};                                     // [2] means of the loss's own numbers
  std::span<std::int64_t> empty_sequences{};                  // [1]
};

namespace detail {
inline namespace TIGON_ABI {
/// The numbers that a pair loss comes with.
struct pair_terms {
  double beta;
  bool nll, average;
};

/// What all pairs of a call share, with what becomes of one.
template <class A>
struct pair_rule {
  sequence_scores<A> score;
  token_ids nll_target;  ///< empty: no nll, or that of the target
  double beta;           ///< of the rewards
  bool nll;
  preference_options opt;
  preference_results<A> out;
  double per_pair = 0, per_token = 0;  ///< 1 / P, alpha / M

  TIGON_EITHER_SIDE void put(std::size_t b, const sequence_logp& c, const sequence_logp& r) const {
    put_where_wanted(out.chosen_logps, b, c.logp), put_where_wanted(out.rejected_logps, b, r.logp);
    put_where_wanted(out.chosen_rewards, b, beta * c.ratio), put_where_wanted(out.rejected_rewards, b, beta * r.ratio);
  }
  /// The results of the call: the mean nll, and sums over the pairs.
  TIGON_EITHER_SIDE void put_results(double nll_loss, double loss, const double* metrics, std::int64_t empty) const {
    put_where_wanted(out.nll_loss, 0, nll_loss);
    put_where_wanted(out.loss, 0, (nll && opt.alpha != 0 ? opt.alpha * nll_loss : 0) + loss);
    put_where_wanted(out.metrics, 0, metrics[0]), put_where_wanted(out.metrics, 1, metrics[1]);
    if (out.empty_sequences.data() != nullptr) out.empty_sequences[0] = empty;
  }
  /// u of token k, of which the pair gives `of_pair`, and the nll takes `of_nll` where it counts there; returns what it
  /// adds to minus the sum of the nll.
  TIGON_EITHER_SIDE double put_u(std::size_t k, bool chosen, double of_pair, double of_nll) const {
    const auto& t = score.tokens;
    score.put_u(k, of_pair);
    if (t.second_column != nullptr) {
      const bool kept = chosen && nll_target(t.row[k] / t.length, t.row[k] % t.length) != opt.ignore_index;
      t.second_u[k] = kept ? static_cast<A>(-of_nll) : A(0);
      return kept ? t.second_logp[k] : 0;
    }
    if (!nll || !chosen || !score.counts(k)) return 0;
    t.u[k] = static_cast<A>(of_pair - of_nll);
    return t.logp[k];
  }
};

/// From log-probabilities of tokens to the loss, the results and the tokens' u.
template <class A>
struct pair_losses : pair_rule<A> {
  pair_loss f;
  double loss = 0, nll_sum = 0;
  std::array<double, 2> metrics{};
  std::int64_t empty = 0;

  TIGON_NOINLINE void operator()(std::size_t begin, std::size_t n) {
    const auto& t = this->score.tokens;
    for (std::size_t b = begin; b < begin + n; ++b) {
      const sequence_logp c = this->score(2 * b), r = this->score(2 * b + 1);
      const pair_value v = f({c.logp, r.logp, c.ratio, r.ratio, c.tokens, r.tokens});
      loss += this->per_pair * v.loss;
      for (std::size_t k = 0; k < metrics.size(); ++k) metrics[k] += this->per_pair * v.metrics[k];
      empty += (c.empty ? 1 : 0) + (r.empty ? 1 : 0);
      this->put(b, c, r);
      const double scale = this->per_pair * this->opt.upstream, of_token = this->per_token * this->opt.upstream;
      const double of_chosen = scale * v.dchosen / c.divisor, of_rejected = scale * v.drejected / r.divisor;
      for (std::size_t k = t.first[2 * b]; k < t.first[2 * b + 2]; ++k) {
        const bool chosen = k < t.first[2 * b + 1];
        nll_sum -= this->put_u(k, chosen, chosen ? of_chosen : of_rejected, of_token);
      }
    }
  }
};
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_PREFERENCE_OPTIONS_HPP
