// Losses on sequences that are liked or not, each for itself, from hidden states: the base of KTO.
#ifndef TIGON_LOSSES_FUSED_LINEAR_UNPAIRED_PREFERENCE_HPP
#define TIGON_LOSSES_FUSED_LINEAR_UNPAIRED_PREFERENCE_HPP

#include <tigon/losses/parts/sequence.hpp>

namespace tigon {

namespace op {
struct fused_linear_unpaired_preference {
  static constexpr std::string_view name = "fused_linear_unpaired_preference";
};
}  // namespace op

/// A sequence as an unpaired loss sees it.
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

/// For B sequences with a label each and token log-probabilities log p of z = x w^T + bias at the targets that are not
/// ignore_index:
///
///   s_b  = sum of log p over the tokens of sequence b, or their mean (average_log_prob);   s0: the reference's, or 0
///   loss = 1/B sum_b f(s_b, s_b - s0_b, desirable_b)
///   D_tj = u_t ([j = target_t] - p_tj),   u = f' / B / tokens,   dx = D w, dw = D^T x, db = sum D
///
/// Formula    docs/formulas/preference.md.
/// Shapes     x, dx [B len, hidden], row b * len + t for token t of sequence b; target [B, len]; desirable [B]; w, dw
///            [vocab, hidden]; bias, dbias [vocab], or none; reference_model and unpaired_results as there.
///            vocab >= 1; B may be 0.
/// Types      x, w, bias, their gradients and the reference of one type, f32, bf16, f16 or f64; loss and results f32
///            (f64 for f64); target std::int32_t or std::int64_t; desirable std::uint8_t, 0 or not.
/// Precision  as a loss on pairs.
/// Writes     loss, the results that have memory, dx, dw, dbias; a gradient whose view has no memory is not computed.
///            dw and dbias are added to with gradient::accumulate. Rows that no target counts are not read, unless sums
///            of logits are asked for; their dx is 0.
/// Aliasing   none: any layout in which no element is shared.
/// Memory     as a loss on pairs; see fused_linear_unpaired_preference_workspace.
/// Throws     tigon::error: shape, stride, alias, argument, workspace, and index (in every build) for a target outside
///            [0, vocab) that is not ignore_index; before the first write.
/// Edges      B = 0: loss 0, gradients 0. A sequence without a token that counts: log-probability 0, no gradient,
///            counted in empty_sequences. NaN or +inf in a row of logits: its sequence, and the loss, are NaN.
/// Max error  loss and results 2e-7, in bf16 too, gradients f32 2e-6, bf16 8e-3 of |reference| + their root mean
///            square (tests/losses/fused_linear_kto_test.cpp).
struct unpaired_options {
  std::int64_t ignore_index = -100;
  double upstream = 1;     ///< gradients are those of the loss times this
  double denominator = 0;  ///< instead of B, for a batch in several calls; 0: B
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

/// From log-probabilities of tokens to the loss, the results and the tokens' u.
template <class A>
struct unpaired_losses {
  sequence_scores<A> score;
  std::span<const std::uint8_t> desirable;
  sequence_loss f;
  double beta, per_sequence, upstream;
  unpaired_results<A> out;
  double loss = 0, logps[2] = {}, rewards[2] = {};  ///< of the others, of the desirable
  std::int64_t empty = 0;

  TIGON_NOINLINE void operator()(std::size_t begin, std::size_t n) {
    for (std::size_t b = begin; b < begin + n; ++b) {
      const bool liked = desirable[b] != 0;
      const sequence_logp s = score(b);
      const sequence_value v = f({b, liked, s.logp, s.ratio});
      loss += per_sequence * v.loss;
      logps[liked] += s.logp, rewards[liked] += beta * s.ratio;
      empty += s.empty ? 1 : 0;
      if (out.logps.data() != nullptr) out.logps[b] = static_cast<A>(s.logp);
      if (out.rewards.data() != nullptr) out.rewards[b] = static_cast<A>(beta * s.ratio);
      score.spread(b, per_sequence * upstream * v.dlogp / s.divisor);
    }
  }
};

using unpaired_kernel = named_sequence_kernel<op::fused_linear_unpaired_preference>;

}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::fused_linear_unpaired_preference, backends::generic> : detail::sequence_kernel {};

/// Bytes of workspace that the forward of any unpaired loss takes for a call with all gradients and results and a bias;
/// with a reference layer if reference_hidden is not 0.
template <class B = default_backend, class T>
std::size_t fused_linear_unpaired_preference_workspace(std::size_t sequences, std::size_t length, std::size_t hidden,
                                                       std::size_t vocab, std::size_t reference_hidden = 0,
                                                       const context& ctx = default_context()) {
  return detail::sequence_workspace<B, T>(sequences, 1, length, hidden, vocab, reference_hidden, false, ctx) +
         detail::logit_sums<T>::bytes(hidden);
}

namespace detail {
inline namespace TIGON_ABI {

/// An unpaired loss with the numbers it needs; `also_read` is what f reads.
struct unpaired_terms {
  sequence_loss f;
  double beta;
  bool average;
  named_view also_read{"target", matrix_view<const std::byte>()};
};

/// What the doors of the unpaired losses are called with.
template <element T>
struct unpaired_arguments {
  const linear_layer<T>& layer;
  const unpaired_batch& batch;
  const unpaired_results<accumulator_t<T>>& to;
  const linear_gradients<T>& gradients;
  const unpaired_options& opt;
  const reference_model<T>& reference;
};

/// All that they do; `kernel` is the kernel of the operator.
template <class B, element T>
void unpaired_door(std::string_view op, void (*kernel)(const sequence_call<T>&, context&), const unpaired_terms& terms,
                   const unpaired_arguments<T>& of, context& ctx) {
  const linear_layer<T>& head = of.layer;
  const token_ids& target = of.batch.target;
  const std::span<const std::uint8_t> desirable = of.batch.desirable;
  const unpaired_results<accumulator_t<T>>& out = of.to;
  const unpaired_options& opt = of.opt;
  const reference_model<T>& reference = of.reference;
  const double beta = terms.beta;
  using A = accumulator_t<T>;
  const expects expect(op);
  const std::size_t sequences = target.rows, length = target.cols;
  const auto expect_size = [&](std::string_view name, auto span, std::size_t n) {
    if (span.data() != nullptr) expect.size(name, span.size(), n);
  };
  expect.size("desirable", desirable.size(), sequences);
  expect.size("loss", out.loss.size(), 1);
  expect_size("logps", out.logps, sequences), expect_size("rewards", out.rewards, sequences);
  expect_size("chosen_logps_sum", out.chosen_logps_sum, 1),
      expect_size("rejected_logps_sum", out.rejected_logps_sum, 1);
  expect_size("chosen_logits_sum", out.chosen_logits_sum, 1);
  expect_size("rejected_logits_sum", out.rejected_logits_sum, 1);
  expect_size("chosen_rewards_sum", out.chosen_rewards_sum, 1);
  expect_size("rejected_rewards_sum", out.rejected_rewards_sum, 1);
  expect_size("empty_sequences", out.empty_sequences, 1);
  expect.finite("upstream", opt.upstream);
  expect.option(beta > 0 && beta <= 1e300, "beta", beta, "a finite number above 0");
  expect.option(opt.denominator >= 0 && opt.denominator <= 1e300, "denominator", opt.denominator,
                "a finite number above 0, or 0 to count");
  expect_sequences<B>(expect, op, head, of.gradients, reference, target, opt.ignore_index,
                      {{"loss", as_row(out.loss)},
                       {"logps", as_row(out.logps)},
                       {"rewards", as_row(out.rewards)},
                       {"chosen_logps_sum", as_row(out.chosen_logps_sum)},
                       {"rejected_logps_sum", as_row(out.rejected_logps_sum)},
                       {"chosen_logits_sum", as_row(out.chosen_logits_sum)},
                       {"rejected_logits_sum", as_row(out.rejected_logits_sum)},
                       {"chosen_rewards_sum", as_row(out.chosen_rewards_sum)},
                       {"rejected_rewards_sum", as_row(out.rejected_rewards_sum)},
                       {"empty_sequences", as_row(out.empty_sequences)}},
                      {{"desirable", as_row(desirable)}, terms.also_read});
  ctx.workspace().expect(op, fused_linear_unpaired_preference_workspace<B, T>(
                                 sequences, length, head.x.cols, head.w.rows, reference.layer.w.cols, ctx));

  workspace::frame frame(ctx.workspace());
  const sequence_tokens<A> tokens(frame, sequences, 1, length, false, reference.layer.w.data != nullptr);
  const auto id = [&](std::size_t i) {
    const std::int64_t t = target(i / length, i % length);
    return t == opt.ignore_index ? -1 : t;
  };
  tokens.list(id, id);
  const double count = opt.denominator != 0 ? opt.denominator : static_cast<double>(sequences);
  unpaired_losses<A> losses{{tokens, target, opt.ignore_index, terms.average, reference.logps},
                            desirable,
                            terms.f,
                            beta,
                            count == 0 ? 0 : 1 / count,
                            opt.upstream,
                            out};
  kernel({head, of.gradients, reference.layer, tokens, 1.0, losses}, ctx);

  const auto put = [](std::span<A> to, double v) {
    if (to.data() != nullptr) to[0] = static_cast<A>(v);
  };
  put(out.loss, losses.loss);
  put(out.chosen_logps_sum, losses.logps[1]), put(out.rejected_logps_sum, losses.logps[0]);
  put(out.chosen_rewards_sum, losses.rewards[1]), put(out.rejected_rewards_sum, losses.rewards[0]);
  if (out.empty_sequences.data() != nullptr) out.empty_sequences[0] = losses.empty;
  if (out.chosen_logits_sum.data() == nullptr && out.rejected_logits_sum.data() == nullptr) return;
  const logit_sums<T> sums(frame, head, ctx);
  double logits[2] = {};
  for (std::size_t b = 0; b < sequences; ++b) sums.add(b * length, length, logits[desirable[b] != 0]);
  put(out.chosen_logits_sum, logits[1]), put(out.rejected_logits_sum, logits[0]);
}

}  // namespace TIGON_ABI
}  // namespace detail

/// Loss, results and all gradients in one call. See unpaired_options for the contract; f is called once a sequence, by the
/// calling thread. For another upstream gradient: fused_linear_backward.
template <class B = default_backend, class T>
void fused_linear_unpaired_preference_forward(const linear_layer<T>& layer, const unpaired_batch& batch,
                                              sequence_loss f,
                                              const std::type_identity_t<unpaired_results<accumulator_t<T>>>& to,
                                              const std::type_identity_t<linear_gradients<T>>& gradients = {},
                                              fused_linear_unpaired_preference_options opt = {},
                                              const std::type_identity_t<reference_model<T>>& reference = {},
                                              context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using K = kernel_for<op::fused_linear_unpaired_preference, B>;
  constexpr std::string_view op = "fused_linear_unpaired_preference_forward";
  detail::unpaired_door<B, T>(op, &K::template forward<B, T>, {f, opt.beta, opt.average_log_prob},
                              {layer, batch, to, gradients, opt.sequences, reference}, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_UNPAIRED_PREFERENCE_HPP
