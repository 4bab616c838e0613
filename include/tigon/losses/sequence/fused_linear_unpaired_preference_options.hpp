// The tag, options and operands of fused_linear_unpaired_preference.
#ifndef TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_UNPAIRED_PREFERENCE_OPTIONS_HPP
#define TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_UNPAIRED_PREFERENCE_OPTIONS_HPP

#include <tigon/losses/sequence/sequence_tokens.hpp>

namespace tigon {

namespace op {
struct fused_linear_unpaired_preference {
  static constexpr std::string_view name = "fused_linear_unpaired_preference";
};
}  // namespace op

/// A sequence, the argument of an unpaired loss.
struct preference_sequence {
  std::size_t index = 0;
  bool desirable = false;
  double logp = 0;   ///< sum or mean over the tokens that count
  double ratio = 0;  ///< the same minus the reference's, or the same
};

struct sequence_value {
  double loss = 0, dlogp = 0;
};

/// sequence_value f(const preference_sequence&)
using sequence_loss = detail::function_ref<sequence_value(const preference_sequence&)>;

/// The contract is in losses/fused_linear_unpaired_preference.hpp.
struct unpaired_options {
  std::int64_t ignore_index = -100;
  double upstream = 1;     ///< gradients are those of the loss times this
  double denominator = 0;  ///< instead of B, for a batch in several calls; 0: B
  double softcap = 0;      ///< above 0: of both layers softcap tanh(z / softcap) in the place of z; 0: none
};

/// The options of the base itself; losses of their own name have their own defaults.
struct fused_linear_unpaired_preference_options {
  unpaired_options sequences{};
  double beta = 0.1;  ///< of the rewards
  bool average_log_prob = false;
};

/// The sequences of a call.
struct unpaired_batch {
  token_ids target;                         ///< [B, len]
  std::span<const std::uint8_t> desirable;  ///< [B], 0 or not
};

/// The loss, and optional results without gradients; a span without memory is not written. Sums are over the desirable
/// (chosen) and the other (rejected) sequences.
template <class A>
struct unpaired_results {
  std::span<A> loss{};                                        // [1], which has to be there
  std::span<A> logps{}, rewards{};                            // [B] s and beta (s - s0)
  std::span<A> chosen_logps_sum{}, rejected_logps_sum{};      // [1]
  std::span<A> chosen_logits_sum{}, rejected_logits_sum{};    // [1] over all positions and classes
  std::span<A> chosen_rewards_sum{}, rejected_rewards_sum{};  // [1]
  std::span<std::int64_t> empty_sequences{};                  // [1]
};

namespace detail {
inline namespace TIGON_ABI {
/// What all sequences of a call share, with what becomes of one.
template <class A>
struct unpaired_rule {
  sequence_scores<A> score;
  std::span<const std::uint8_t> desirable;
  double beta, per_sequence, upstream;
  unpaired_results<A> out;

  TIGON_EITHER_SIDE bool liked(std::size_t b) const { return desirable[b] != 0; }
  TIGON_EITHER_SIDE void put(std::size_t b, const sequence_logp& s) const {
    put_where_wanted(out.logps, b, s.logp), put_where_wanted(out.rewards, b, beta * s.ratio);
  }
  /// The results of the call, sums over the sequences; logps and rewards: of the others, and of the desirable.
  TIGON_EITHER_SIDE void put_results(double loss, const double* logps, const double* rewards,
                                     std::int64_t empty) const {
    put_where_wanted(out.loss, 0, loss);
    put_where_wanted(out.rejected_logps_sum, 0, logps[0]), put_where_wanted(out.chosen_logps_sum, 0, logps[1]);
    put_where_wanted(out.rejected_rewards_sum, 0, rewards[0]), put_where_wanted(out.chosen_rewards_sum, 0, rewards[1]);
    if (out.empty_sequences.data() != nullptr) out.empty_sequences[0] = empty;
  }
};

/// From log-probabilities of tokens to the loss, the results and the tokens' u.
template <class A>
struct unpaired_losses : unpaired_rule<A> {
  sequence_loss f;
  double loss = 0, logps[2] = {}, rewards[2] = {};  ///< of the others, of the desirable
  std::int64_t empty = 0;

  TIGON_NOINLINE void operator()(std::size_t begin, std::size_t n) {
    for (std::size_t b = begin; b < begin + n; ++b) {
      const bool is_liked = this->liked(b);
      const sequence_logp s = this->score(b);
      const sequence_value v = f({b, is_liked, s.logp, s.ratio});
      loss += this->per_sequence * v.loss;
      logps[is_liked] += s.logp, rewards[is_liked] += this->beta * s.ratio;
      empty += s.empty ? 1 : 0;
      this->put(b, s);
      this->score.spread(b, this->per_sequence * this->upstream * v.dlogp / s.divisor);
    }
  }
};
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_FUSED_LINEAR_UNPAIRED_PREFERENCE_OPTIONS_HPP
