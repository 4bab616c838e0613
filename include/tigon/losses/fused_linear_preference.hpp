// Losses on pairs of sequences, one preferred to the other, from hidden states: the base of DPO, ORPO, CPO and SimPO.
#ifndef TIGON_LOSSES_FUSED_LINEAR_PREFERENCE_HPP
#define TIGON_LOSSES_FUSED_LINEAR_PREFERENCE_HPP

#include <tigon/losses/parts/sequence.hpp>

#include <array>

namespace tigon {

namespace op {
struct fused_linear_preference {
  static constexpr std::string_view name = "fused_linear_preference";
};
}  // namespace op

/// A pair of sequences as a pair loss sees it.
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

/// For P pairs of sequences, chosen ones first, with token log-probabilities log p of z = x w^T + bias at the targets
/// that are not ignore_index:
///
///   c = sum of log p over the tokens of a chosen sequence, r of the rejected one, or their means (average_log_prob)
///   nll  = -1/M sum of log p of the chosen half at nll_target (or target), M = number of its entries that count
///   loss = alpha nll + 1/P sum_b f(c_b, r_b, c_b - c0_b, r_b - r0_b)          c0, r0: the reference's, or 0
///   D_tj = u_t ([j = target_t] - p_tj),   u = f' / P / tokens - [chosen] alpha / M,   dx = D w, dw = D^T x, db = sum D
///
/// Formula    docs/formulas/preference.md.
/// Shapes     x, dx [2 P len, hidden], row s * len + t for token t of sequence s, sequence P + b the partner of b;
///            target [2 P, len]; w, dw [vocab, hidden]; bias, dbias [vocab], or none; nll_target,
///            reference_model and preference_results as they say. At least one pair and one class.
/// Types      x, w, bias, their gradients and the reference of one type, f32, bf16, f16 or f64; loss and results f32
///            (f64 for f64); targets std::int32_t or std::int64_t.
/// Precision  logits, D and the sums of dw and db over all chunks in f32 (f64 for f64); log p in f64, with the logits
///            that weigh most made again; sums over tokens and pairs in f64, those with a reference as sums of
///            differences; one rounding at each output.
/// Writes     loss, the results that have memory, dx, dw, dbias; a gradient whose view has no memory is not computed.
///            dw and dbias are added to with gradient::accumulate. Rows that no target counts are not read, unless
///            means of logits are asked for; their dx is 0.
/// Aliasing   none: any layout in which no element is shared.
/// Memory     chunk * vocab logits in f32, by default at most 64 MiB (B::chunk), and chunk rows of x and dx; for 16-bit
///            w also an f32 dw; see fused_linear_preference_workspace. w may come packed (linear_layer).
/// Throws     tigon::error: shape (an odd number of sequences, or none), stride, alias, argument, workspace, and index
///            (in every build) for a target outside [0, vocab) that is not ignore_index; before the first write.
/// Edges      a sequence without a token that counts: log-probability 0, no gradient, counted in empty_sequences. No
///            entry that counts for the nll: nll 0. NaN or +inf in a row of logits: its pair, and the loss, are NaN.
/// Max error  loss and results 4e-7, in bf16 too, gradients f32 4e-6, bf16 8e-3 of |reference| + their root mean
///            square (tests/losses/fused_linear_preference_test.cpp).
struct preference_options {
  std::int64_t ignore_index = -100;
  double alpha = 1;            ///< weight of the nll
  double upstream = 1;         ///< gradients are those of the loss times this
  double denominator = 0;      ///< instead of P, for a batch in several calls; 0: P
  double nll_denominator = 0;  ///< instead of M; 0: M
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

/// A pair loss with the numbers it needs.
struct pair_terms {
  pair_loss f;
  double beta;
  bool nll, average;
};

/// From log-probabilities of tokens to the loss, the results and the tokens' u.
template <class A>
struct pair_losses {
  sequence_scores<A> score;
  token_ids nll_target;  ///< empty: no nll, or that of the target
  pair_terms terms;
  preference_options opt;
  preference_results<A> out;
  double per_pair = 0, per_token = 0;  ///< 1 / P, alpha / M
  double loss = 0, nll_sum = 0;
  std::array<double, 2> metrics{};
  std::int64_t empty = 0;

  TIGON_NOINLINE void operator()(std::size_t begin, std::size_t n) {
    const auto& t = score.tokens;
    const auto put = [](std::span<A> to, std::size_t b, double v) {
      if (to.data() != nullptr) to[b] = static_cast<A>(v);
    };
    for (std::size_t b = begin; b < begin + n; ++b) {
      const sequence_logp c = score(2 * b), r = score(2 * b + 1);
      const pair_value v = terms.f({c.logp, r.logp, c.ratio, r.ratio, c.tokens, r.tokens});
      loss += per_pair * v.loss;
      for (std::size_t k = 0; k < metrics.size(); ++k) metrics[k] += per_pair * v.metrics[k];
      empty += (c.empty ? 1 : 0) + (r.empty ? 1 : 0);
      put(out.chosen_logps, b, c.logp), put(out.rejected_logps, b, r.logp);
      put(out.chosen_rewards, b, terms.beta * c.ratio), put(out.rejected_rewards, b, terms.beta * r.ratio);
      const double scale = per_pair * opt.upstream, nll = per_token * opt.upstream;
      score.spread(2 * b, scale * v.dchosen / c.divisor);
      score.spread(2 * b + 1, scale * v.drejected / r.divisor);
      for (std::size_t k = t.first[2 * b]; k < t.first[2 * b + 2]; ++k) {
        const bool chosen = k < t.first[2 * b + 1];
        if (t.second_column != nullptr) {
          const bool kept = chosen && nll_target(t.row[k] / t.length, t.row[k] % t.length) != opt.ignore_index;
          t.second_u[k] = kept ? static_cast<A>(-nll) : A(0);
          if (kept) nll_sum -= t.second_logp[k];
        } else if (terms.nll && chosen) {
          t.u[k] = static_cast<A>(scale * v.dchosen / c.divisor - nll);
          nll_sum -= t.logp[k];
        }
      }
    }
  }
};

using pair_kernel = named_sequence_kernel<op::fused_linear_preference>;

}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::fused_linear_preference, backends::generic> : detail::sequence_kernel {};

/// Bytes of workspace that the forward of any loss on pairs takes for a call with all gradients and results, a bias and
/// an nll_target; with a reference layer if reference_hidden is not 0.
template <class B = default_backend, class T>
std::size_t fused_linear_preference_workspace(std::size_t pairs, std::size_t length, std::size_t hidden,
                                              std::size_t vocab, std::size_t reference_hidden = 0,
                                              const context& ctx = default_context()) {
  return detail::sequence_workspace<B, T>(pairs, 2, length, hidden, vocab, reference_hidden, true, ctx) +
         detail::logit_sums<T>::bytes(hidden);
}

namespace detail {
inline namespace TIGON_ABI {

/// What the doors of the losses on pairs are called with.
template <element T>
struct pair_arguments {
  const linear_layer<T>& layer;
  const preference_batch& batch;
  const preference_results<accumulator_t<T>>& to;
  const linear_gradients<T>& gradients;
  const preference_options& opt;
  const reference_model<T>& reference;
};

/// All that they do; `kernel` is the kernel of the operator.
template <class B, element T>
void pair_door(std::string_view op, void (*kernel)(const sequence_call<T>&, context&), const pair_terms& terms,
               const pair_arguments<T>& of, context& ctx) {
  const linear_layer<T>& head = of.layer;
  const token_ids &target = of.batch.target, &nll_target = of.batch.nll_target;
  const preference_results<accumulator_t<T>>& out = of.to;
  const preference_options& opt = of.opt;
  const reference_model<T>& reference = of.reference;
  using A = accumulator_t<T>;
  const expects expect(op);
  const std::size_t pairs = target.rows / 2, length = target.cols, rows = head.x.rows, vocab = head.w.rows;
  if (target.rows == 0 || target.rows % 2 != 0)
    fail_argument(error_code::shape, op, "target", "of " + std::to_string(target.rows) + " sequences",
                  "an even number of at least 2");
  const auto expect_size = [&](std::string_view name, auto span, std::size_t n) {
    if (span.data() != nullptr) expect.size(name, span.size(), n);
  };
  expect.size("loss", out.loss.size(), 1);
  expect_size("chosen_logps", out.chosen_logps, pairs), expect_size("rejected_logps", out.rejected_logps, pairs);
  expect_size("chosen_rewards", out.chosen_rewards, pairs),
      expect_size("rejected_rewards", out.rejected_rewards, pairs);
  expect_size("nll_loss", out.nll_loss, 1), expect_size("empty_sequences", out.empty_sequences, 1);
  expect_size("chosen_logits_mean", out.chosen_logits_mean, 1);
  expect_size("rejected_logits_mean", out.rejected_logits_mean, 1), expect_size("metrics", out.metrics, 2);
  const bool own_nll = nll_target.bytes().data != nullptr;
  if (own_nll) {
    expect.memory("nll_target", nll_target.bytes());
    if (nll_target.cols != length || (nll_target.rows != pairs && nll_target.rows != 2 * pairs))
      fail_argument(error_code::shape, op, "nll_target", shape_text(nll_target.rows, nll_target.cols),
                    shape_text(pairs, length));
  }
  expect.finite("alpha", opt.alpha), expect.finite("upstream", opt.upstream);
  expect.option(terms.beta > 0 && terms.beta <= 1e300, "beta", terms.beta, "a finite number above 0");
  expect.option(opt.denominator >= 0 && opt.denominator <= 1e300, "denominator", opt.denominator,
                "a finite number above 0, or 0 to count");
  expect.option(opt.nll_denominator >= 0 && opt.nll_denominator <= 1e300, "nll_denominator", opt.nll_denominator,
                "a finite number above 0, or 0 to count");
  expect_sequences<B>(expect, op, head, of.gradients, reference, target, opt.ignore_index,
                      {{"loss", as_row(out.loss)},
                       {"chosen_logps", as_row(out.chosen_logps)},
                       {"rejected_logps", as_row(out.rejected_logps)},
                       {"chosen_rewards", as_row(out.chosen_rewards)},
                       {"rejected_rewards", as_row(out.rejected_rewards)},
                       {"nll_loss", as_row(out.nll_loss)},
                       {"chosen_logits_mean", as_row(out.chosen_logits_mean)},
                       {"rejected_logits_mean", as_row(out.rejected_logits_mean)},
                       {"metrics", as_row(out.metrics)},
                       {"empty_sequences", as_row(out.empty_sequences)}},
                      {{"nll_target", nll_target.bytes()}});
  if (own_nll) expect_ids(op, "nll_target", nll_target, vocab, opt.ignore_index);
  ctx.workspace().expect(
      op, fused_linear_preference_workspace<B, T>(pairs, length, head.x.cols, vocab, reference.layer.w.cols, ctx));

  workspace::frame frame(ctx.workspace());
  const bool second = terms.nll && own_nll;
  const sequence_tokens<A> tokens(frame, pairs, 2, length, second, reference.layer.w.data != nullptr);
  const auto id = [&](const token_ids& ids, std::size_t i) {
    const std::int64_t t = ids(i / length, i % length);
    return t == opt.ignore_index ? -1 : t;
  };
  std::size_t nll_count = 0;
  for (std::size_t i = 0; i < pairs * length; ++i) nll_count += id(second ? nll_target : target, i) >= 0 ? 1 : 0;
  tokens.list([&](std::size_t i) { return id(target, i); },
              [&](std::size_t i) { return i < pairs * length ? id(nll_target, i) : -1; });
  pair_losses<A> losses{
      {tokens, target, opt.ignore_index, terms.average, reference.logps}, nll_target, terms, opt, out};
  const double m = opt.nll_denominator != 0 ? opt.nll_denominator : static_cast<double>(nll_count);
  losses.per_pair = 1 / (opt.denominator != 0 ? opt.denominator : static_cast<double>(pairs));
  const double per_nll = terms.nll && m != 0 ? 1 / m : 0;
  losses.per_token = opt.alpha * per_nll;
  kernel({head, of.gradients, reference.layer, tokens, 1.0, losses}, ctx);

  const auto put = [](std::span<A> to, std::size_t k, double v) {
    if (to.data() != nullptr) to[k] = static_cast<A>(v);
  };
  const double nll = per_nll * losses.nll_sum;
  put(out.nll_loss, 0, nll);
  put(out.loss, 0, (terms.nll && opt.alpha != 0 ? opt.alpha * nll : 0) + losses.loss);
  put(out.metrics, 0, losses.metrics[0]), put(out.metrics, 1, losses.metrics[1]);
  if (out.empty_sequences.data() != nullptr) out.empty_sequences[0] = losses.empty;
  if (out.chosen_logits_mean.data() == nullptr && out.rejected_logits_mean.data() == nullptr) return;
  const logit_sums<T> sums(frame, head, ctx);
  const std::size_t half = rows / 2;
  const auto mean_of = [&](std::size_t begin) {
    double sum = 0;
    sums.add(begin, half, sum);
    return half == 0 ? 0 : sum / (static_cast<double>(half) * static_cast<double>(vocab));
  };
  put(out.chosen_logits_mean, 0, mean_of(0)), put(out.rejected_logits_mean, 0, mean_of(half));
}

}  // namespace TIGON_ABI
}  // namespace detail

/// Loss, results and all gradients in one call. See preference_options for the contract; f is called once a pair, by
/// the calling thread. For another upstream gradient: fused_linear_backward.
template <class B = default_backend, class T>
void fused_linear_preference_forward(const linear_layer<T>& layer, const preference_batch& batch, pair_loss f,
                                     const std::type_identity_t<preference_results<accumulator_t<T>>>& to,
                                     const std::type_identity_t<linear_gradients<T>>& gradients = {},
                                     fused_linear_preference_options opt = {},
                                     const std::type_identity_t<reference_model<T>>& reference = {},
                                     context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using K = kernel_for<op::fused_linear_preference, B>;
  constexpr std::string_view op = "fused_linear_preference_forward";
  detail::pair_door<B, T>(op, &K::template forward<B, T>, {f, opt.beta, opt.compute_nll_loss, opt.average_log_prob},
                          {layer, batch, to, gradients, opt.pairs, reference}, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_PREFERENCE_HPP
