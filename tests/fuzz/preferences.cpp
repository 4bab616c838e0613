// Fuzzing of losses of pairs of sequences, of single ones, and of policies, fused with the layer before them.
#include <tigon/losses/fused_linear_cpo.hpp>
#include <tigon/losses/fused_linear_dpo.hpp>
#include <tigon/losses/fused_linear_grpo.hpp>
#include <tigon/losses/fused_linear_kto.hpp>
#include <tigon/losses/fused_linear_orpo.hpp>
#include <tigon/losses/fused_linear_simpo.hpp>

#include "labels.hpp"
#include "linear.hpp"
#include "support/kernels.hpp"

namespace {

using namespace tigon::fuzz;

// About three times what was measured; contracts state more, of the results alone.
constexpr bounds of_logps{.f32 = 2.5e-7, .bf16 = 2.5e-7, .f16 = 2.5e-7, .f64 = 6e-16};
constexpr bounds gradients_within(double f32, double f64) { return {f32, 8e-3, 1e-3, f64}; }
/// Of the bias, whose gradient has fewer roundings.
constexpr bounds of_dbias(bounds of) { return {of.f32 / 2.5, 0.7 * of.bf16, of.f16, of.f64 / 2.5}; }

/// A loss of pairs: f(layer, target, results, gradients, reference's log-probabilities, context).
template <class P, class F>
void pairs_loss(P& p, bool references, double steepness, bounds of_gradient, F f) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds of_loss{.f32 = 2e-7, .bf16 = 1.5e-7, .f16 = 1.5e-7, .f64 = 3e-16};
  const std::size_t pairs = p.in.between(1, 4), len = p.in.below(6);
  const some_layer<P> l(p, 2 * pairs * len, 30, 60);
  auto& target = some_labels(p, p.template matrix<std::int64_t>("target", 2 * pairs, len), l.vocab);
  auto& reference = p.template vector<A>("reference", references ? 2 * pairs : 0);
  generator next(p.in.seed());
  for (std::size_t s = 0; s < reference.size(); ++s)
    reference.set(s, static_cast<double>(len) * (next.normal() - 1 - std::log(static_cast<double>(l.vocab))) * 0.8);
  auto &loss = p.template vector<A>("loss", 1), &chosen = p.template vector<A>("chosen", pairs);
  auto& rejected = p.template vector<A>("rejected", pairs);
  p.call({&loss, &chosen, &rejected, &l.dx, &l.dw, &l.dbias}, [&](auto s) {
    using N = std::conditional_t<decltype(s)::is_reference, double, A>;
    const rows_at_a_time chunk(s.ctx, l.at_a_time);
    const tigon::preference_results<N> to{
        .loss = loss.vec(s), .chosen_logps = chosen.vec(s), .rejected_logps = rejected.vec(s)};
    f(l, s, target.at(s), to, std::span<const N>(reference.vec(s)));
  });
  const double size = static_cast<double>(len + 1) * (1 + std::log(static_cast<double>(l.vocab)));
  p.compare(chosen, {.bound = l.stretch() * of_logps.of<T>()});
  p.compare(rejected, {.bound = l.stretch() * of_logps.of<T>()});
  // A loss is as steep as beta, and of differences of log-probabilities.
  p.compare(loss, {.bound = l.stretch() * of_loss.of<T>(), .scale = (1 + steepness * size) / 4});
  l.compare(of_gradient.of<T>(), of_dbias(of_gradient).of<T>(), steepness / static_cast<double>(pairs));
}

template <class P>
void fused_linear_dpo(P& p) {
  using enum tigon::dpo_loss;
  tigon::fused_linear_dpo_options opt;
  opt.loss = p.in.pick({sigmoid, exo_pair, nca_pair, robust, bco_pair, sppo_hard, apo_zero, apo_down, discopop, ipo});
  opt.beta = p.in.pick({0.1, 0.5}), opt.average_log_prob = p.in.one_in(3), opt.compute_nll_loss = p.in.one_in(2);
  opt.label_smoothing = opt.loss == exo_pair ? 1e-3 : opt.loss == sigmoid || opt.loss == robust ? 0.1 : 0;
  p.note_options(static_cast<int>(opt.loss), opt.beta, opt.average_log_prob);
  const bool references = p.in.one_in(2);
  const double steepness = opt.loss == sppo_hard || opt.loss == ipo ? 40 : opt.loss == discopop ? 20 : 2;
  pairs_loss(p, references, steepness, gradients_within(1.5e-6, 2e-15),
             [&](const auto& l, auto s, auto target, const auto& to, auto logps) {
               using S = decltype(s);
               using E = typename S::element;
               tigon::fused_linear_dpo_forward<typename S::backend, E>(
                   l.layer(s), tigon::preference_batch{target}, to, l.gradients(s), opt,
                   tigon::reference_model<E>{.logps = references ? logps : decltype(logps){}}, s.ctx);
             });
}

template <class P>
void fused_linear_orpo(P& p) {
  tigon::fused_linear_orpo_options opt;
  opt.beta = p.in.pick({0.1, 0.5}), opt.compute_nll_loss = p.in.one_in(2);
  pairs_loss(p, false, 4, gradients_within(6e-7, 4e-16), [&](const auto& l, auto s, auto target, const auto& to, auto) {
    using S = decltype(s);
    tigon::fused_linear_orpo_forward<typename S::backend, typename S::element>(
        l.layer(s), tigon::preference_batch{target}, to, l.gradients(s), opt, s.ctx);
  });
}

template <class P>
void fused_linear_cpo(P& p) {
  tigon::fused_linear_cpo_options opt;
  opt.beta = p.in.pick({0.1, 0.5}), opt.label_smoothing = p.in.pick({0.0, 0.1});
  opt.compute_nll_loss = p.in.one_in(2), opt.average_log_prob = p.in.one_in(2);
  pairs_loss(p, false, 2, gradients_within(1e-6, 6e-16), [&](const auto& l, auto s, auto target, const auto& to, auto) {
    using S = decltype(s);
    tigon::fused_linear_cpo_forward<typename S::backend, typename S::element>(l.layer(s), target, to, l.gradients(s),
                                                                              opt, s.ctx);
  });
}

template <class P>
void fused_linear_simpo(P& p) {
  tigon::fused_linear_simpo_options opt;
  opt.beta = p.in.pick({0.1, 2.0}), opt.gamma = p.in.pick({0.5, 0.0}), opt.label_smoothing = p.in.pick({0.0, 0.1});
  pairs_loss(p, false, 4, gradients_within(6e-7, 6e-16), [&](const auto& l, auto s, auto target, const auto& to, auto) {
    using S = decltype(s);
    tigon::fused_linear_simpo_forward<typename S::backend, typename S::element>(l.layer(s), target, to, l.gradients(s),
                                                                                opt, s.ctx);
  });
}

template <class P>
void fused_linear_kto(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds of_loss{.f32 = 2e-7, .bf16 = 2e-7, .f16 = 2e-7, .f64 = 1.5e-16};
  constexpr bounds of_gradient{.f32 = 5e-7, .bf16 = 6e-3, .f16 = 1e-3, .f64 = 2.5e-16};
  const std::size_t sequences = p.in.below(6), len = p.in.below(6);
  const some_layer<P> l(p, sequences * len, 30, 60);
  tigon::fused_linear_kto_options opt{.beta = p.in.pick({0.1, 0.5}), .desirable_weight = p.in.pick({1.0, 1.5})};
  opt.average_log_prob = p.in.one_in(2);
  auto& target = some_labels(p, p.template matrix<std::int64_t>("target", sequences, len), l.vocab);
  auto& desirable = p.template vector<std::uint8_t>("desirable", sequences);
  for (std::size_t b = 0; b < sequences; ++b) desirable.set(b, p.in.one_in(2) ? 1 : 0);
  auto& kl = p.filled(p.template vector<A>("kl", p.in.one_in(2) ? 1 : sequences), 0, 0.3, false);
  auto &loss = p.template vector<A>("loss", 1), &logps = p.template vector<A>("logps", sequences);
  p.call({&loss, &logps, &l.dx, &l.dw, &l.dbias}, [&](auto s) {
    using S = decltype(s);
    using N = std::conditional_t<S::is_reference, double, A>;
    const rows_at_a_time chunk(s.ctx, l.at_a_time);
    tigon::fused_linear_kto_forward<typename S::backend, typename S::element>(
        l.layer(s), tigon::unpaired_batch{target.at(s), desirable.vec(s)}, kl.vec(s),
        tigon::unpaired_results<N>{.loss = loss.vec(s), .logps = logps.vec(s)}, l.gradients(s), opt, {}, s.ctx);
  });
  const double size = static_cast<double>(len + 1) * (1 + std::log(static_cast<double>(l.vocab)));
  p.compare(logps, {.bound = l.stretch() * of_logps.of<T>()});
  p.compare(loss, {.bound = l.stretch() * of_loss.of<T>(), .scale = (1 + size) / 4});
  l.compare((1 + opt.beta * size) * of_gradient.of<T>(), (1 + opt.beta * size) * of_dbias(of_gradient).of<T>(),
            opt.beta / static_cast<double>(sequences + 1));
}

template <class P>
void fused_linear_grpo(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds of_loss{.f32 = 4e-7, .bf16 = 2.5e-7, .f16 = 2.5e-7, .f64 = 1.5e-15};
  constexpr bounds of_gradient{.f32 = 2.2e-6, .bf16 = 8e-3, .f16 = 2e-3, .f64 = 2e-15};
  const std::size_t batch = p.in.between(1, 3), len = p.in.between(1, 5), more = p.in.below(2);
  // Ratios are exponentials of log-probabilities: of large ones the gradient of a logit is more than f16 holds.
  some_layer<P> l(p, batch * (len + more), 30, 60);
  l.limit_logits(4);
  const some_policy<P> policy(p, batch, len, l.vocab);
  auto& loss = p.template vector<A>("loss", policy.results());
  p.call({&loss, &l.dx, &l.dw, &l.dbias}, [&](auto s) {
    using S = decltype(s);
    using N = std::conditional_t<S::is_reference, double, A>;
    const rows_at_a_time chunk(s.ctx, l.at_a_time);
    tigon::fused_linear_grpo_forward<typename S::backend, typename S::element>(
        l.layer(s), policy.batch(s), tigon::policy_results<N>{.loss = loss.vec(s)}, l.gradients(s), policy.opt, {}, {},
        s.ctx);
  });
  // These multiply the ratios of a sequence.
  const bool of_sequences = policy.opt.type == tigon::policy_loss::vespo || policy.opt.type == tigon::policy_loss::gmpo;
  const double steep = of_sequences ? static_cast<double>(len) : 1;
  p.compare(loss, {.bound = steep * l.stretch() * of_loss.of<T>(), .scale = 4 * p.stretch()});
  l.compare(steep * of_gradient.of<T>(), steep * of_dbias(of_gradient).of<T>(), p.stretch());
}

constexpr target all[] = {TIGON_FUZZ_TARGET(fused_linear_dpo), TIGON_FUZZ_TARGET(fused_linear_orpo),
                          TIGON_FUZZ_TARGET(fused_linear_cpo), TIGON_FUZZ_TARGET(fused_linear_simpo),
                          TIGON_FUZZ_TARGET(fused_linear_kto), TIGON_FUZZ_TARGET(fused_linear_grpo)};

}  // namespace

#include "driver.hpp"

std::span<const tigon::fuzz::target> tigon::fuzz::targets() { return all; }
