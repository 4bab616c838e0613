// The options and operands of policy losses, and the checks of what they read and write.
#ifndef TIGON_LOSSES_SEQUENCE_POLICY_OPTIONS_HPP
#define TIGON_LOSSES_SEQUENCE_POLICY_OPTIONS_HPP

#include <tigon/core/function_ref.hpp>
#include <tigon/losses/softmax/selective_log_softmax_options.hpp>

namespace tigon {

enum class policy_loss { grpo, bnpo, dr_grpo, dapo, luspo, cispo, sapo, vespo, gmpo, own };

/// What the importance ratio is of: each token, or the geometric mean over its sequence.
enum class importance { token, sequence };

/// How luspo, a sequence's mean times its length n, is averaged; equal where every token counts, up to a factor.
enum class luspo_reduction {
  sequences,  ///< mean over the sequences of the sum over their tokens
  tokens,     ///< mean over batch * len of n times the token's loss, 0 where masked
  padded,     ///< the same with the loss of masked tokens, which are then read and need ids; a loss that is one number
              ///< a sequence (level sequence, beta 0, no sampling ratio of each token): as `sequences`
};

/// A token as a policy loss of your own sees it.
struct policy_token {
  double logp = 0;       ///< its log-probability
  double log_ratio = 0;  ///< r; with level sequence the mean of r over the sequence, the same for all its tokens
  double ref_ratio = 0;  ///< logp - ref_logp, or 0 without a reference
  double advantage = 0;
  double tokens = 0;  ///< n_b, those of its sequence that count
  std::size_t sequence = 0, position = 0;
};

/// What it makes of a token: its value, and the derivatives by logp and by log_ratio, each with the other one fixed.
struct policy_value {
  double loss = 0, dlogp = 0, dlog_ratio = 0;
  bool clipped = false;  ///< counted in policy_metrics::clipped
};

/// policy_value f(const policy_token&), called by several threads at a time and more than once a token: without state.
using token_loss = detail::function_ref<policy_value(const policy_token&)>;

/// The contract is in losses/grpo_loss.hpp.
struct policy_options {
  policy_loss type = policy_loss::dapo;
  importance level = importance::token;
  bool reduce = true;  ///< false: loss, KL and clipping of each token; the upstream gradient is then one a token
  double temperature = 1;
  double beta = 0.04;                          ///< weight of the KL penalty; 0: no reference is needed
  double epsilon_low = 0.2;                    ///< at least 0; gmpo: of the logarithm, as epsilon_high
  double epsilon_high = 0.2;                   ///< at least 0; cispo: the upper bound itself; gmpo: of the logarithm
  double delta = 0;                            ///< upper bound of the ratio where A < 0 too, or 0 for none
  bool bias_corrected_kl = false;              ///< the KL penalty times the ratio
  double max_log_ratio = 0;                    ///< the logarithm of the ratio is clamped to it, or 0 for no limit
  double tau_positive = 1;                     ///< sapo, A > 0
  double tau_negative = 1.05;                  ///< sapo, otherwise
  double k_positive = 2, lambda_positive = 3;  ///< vespo, A >= 0
  double k_negative = 3, lambda_negative = 2;  ///< vespo, otherwise
  double max_length = 0;                       ///< dr_grpo; 0: len
  double denominator = 0;  ///< dapo, cispo, vespo, own: for a batch in several calls or processes; 0: max(sum mu, 1)
  luspo_reduction luspo = luspo_reduction::sequences;
};

/// What a policy loss reads beside logits; [batch, len] where nothing else is said. What is masked is not read.
template <class A>
struct policy_batch {
  token_ids ids;
  std::span<const A> advantages;          ///< [batch]
  matrix_view<const A> old_logp{};        ///< or without memory: the current ones
  matrix_view<const A> ref_logp{};        ///< or without memory, with beta = 0
  matrix_view<const A> sampling_ratio{};  ///< importance ratio of the rollout engine; [batch, 1]: one a sequence
  token_mask mask = absent;
};

/// Optional results; a span without memory is not written. [1], or [batch * len] with reduce = false.
template <class A>
struct policy_metrics {
  std::span<A> kl{};       ///< mean of K over the tokens that count
  std::span<A> clipped{};  ///< share of the tokens whose ratio is clipped
};

/// What a call makes beside gradients.
template <class A>
struct policy_results {
  std::span<A> loss{};  ///< [1], or [batch * len] with reduce = false
  policy_metrics<A> metrics{};
};

namespace detail {
inline namespace TIGON_ABI {

/// What the public functions that make loss and gradient in one call have beside logits or layers.
template <class A>
struct policy_call {
  const policy_batch<A>& batch;
  const policy_results<A>& to;
  const policy_options& opt;
  std::span<const A> upstream{};
  const token_loss* own = nullptr;  ///< of policy_loss::own
};

/// Each token's loss needs nothing of other tokens.
TIGON_EITHER_SIDE inline bool policy_by_token(const policy_options& opt) {
  return opt.level == importance::token && opt.type != policy_loss::vespo && opt.type != policy_loss::gmpo;
}

/// Declares what a policy loss reads, for so many rows of logits, and checks its scalars; `reference`: it has one.
template <class A>
TIGON_NOINLINE token_rows declare_policy(arguments& args, std::string_view op, const policy_batch<A>& in,
                                         const policy_options& opt, std::size_t rows, bool reference,
                                         const token_loss* own) {
  const expects& expect = args;
  const token_rows at = declare_tokens(args, op, in.ids, in.mask, rows);
  args.in("advantages", in.advantages, at.batch);
  args.optional_in("old_logp", in.old_logp, at.batch, at.len);
  args.optional_in("ref_logp", in.ref_logp, at.batch, at.len);
  args.optional_in("sampling_ratio", in.sampling_ratio, at.batch, in.sampling_ratio.cols == 1 ? 1 : at.len);
  expect_temperature<A>(expect, opt.temperature);
  expect.from_zero<A>("epsilon_low", opt.epsilon_low);
  expect.from_zero<A>("epsilon_high", opt.epsilon_high);
  expect.from_zero<A>("delta", opt.delta);
  expect.from_zero<A>("max_log_ratio", opt.max_log_ratio);
  expect.from_zero<A>("max_length", opt.max_length);
  expect.from_zero<A>("denominator", opt.denominator);
  expect.finite<A>("beta", opt.beta);
  expect.finite<A>("k_positive", opt.k_positive);
  expect.finite<A>("k_negative", opt.k_negative);
  expect.finite<A>("lambda_positive", opt.lambda_positive);
  expect.finite<A>("lambda_negative", opt.lambda_negative);
  expect.above_zero<A>("tau", opt.tau_positive);
  expect.above_zero<A>("tau", opt.tau_negative);
  const bool no_level = opt.type == policy_loss::cispo || opt.type == policy_loss::sapo ||
                        opt.type == policy_loss::vespo || opt.type == policy_loss::gmpo;
  expect.that(opt.level == importance::token || !no_level, error_code::argument, "level", "sequence",
              "token for cispo, sapo, vespo and gmpo");
  expect.that((opt.type == policy_loss::own) == (own != nullptr), error_code::argument, "type",
              own != nullptr ? "another one" : "own",
              own != nullptr ? "own, for a function" : "own with a function alone");
  expect.option(opt.delta == 0 || !no_level, "delta", opt.delta, "0 for cispo, sapo, vespo and gmpo");
  expect.option(opt.beta == 0 || reference, "beta", opt.beta, "0 where there is no reference");
  return at;
}
/// Advantages are finite, where the host reads them; elsewhere one that is not makes its tokens NaN.
template <class B, class A>
void expect_finite_advantages(std::string_view op, std::span<const A> advantages) {
  if constexpr (host_memory<B>)
    for (std::size_t b = 0; b < advantages.size(); ++b)
      if (!(math::abs(static_cast<double>(advantages[b])) <= std::numeric_limits<double>::max()))
        fail_argument(error_code::argument, op, "advantages[" + std::to_string(b) + "]",
                      number_text(static_cast<double>(advantages[b])), "a finite number");
}

/// Declares its results.
template <class A>
void declare_policy_results(arguments& args, token_rows at, const policy_options& opt, const policy_results<A>& to,
                            bool reference) {
  const std::size_t results = opt.reduce ? 1 : at.batch * at.len;
  args.out("loss", to.loss, results);
  args.optional_out("clipped", to.metrics.clipped, results);
  args.optional_out("kl", to.metrics.kl, results);
  args.that(reference || to.metrics.kl.data() == nullptr, error_code::argument, "kl", "asked for",
            "a reference, or no memory for it");
}

}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SEQUENCE_POLICY_OPTIONS_HPP
