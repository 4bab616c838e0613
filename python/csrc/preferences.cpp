// Losses on sequences, from hidden states.
#include <tigon/losses/fused_linear_cpo.hpp>
#include <tigon/losses/fused_linear_dpo.hpp>
#include <tigon/losses/fused_linear_grpo.hpp>
#include <tigon/losses/fused_linear_kto.hpp>
#include <tigon/losses/fused_linear_orpo.hpp>
#include <tigon/losses/fused_linear_simpo.hpp>

#include "groups.hpp"
#include "linear.hpp"
#include "policy.hpp"

namespace tigon_torch {
namespace {

template <class T>
tigon::reference_model<T> reference_of(const reference_model& r) {
  return {layer_of<T>(r.layer), view<const tigon::accumulator_t<T>>(r.logps)};
}

/// [4 pairs + 3]: log-probabilities and rewards of the chosen and the rejected, nll, metrics of the loss.
template <class A>
tigon::preference_results<A> results_of(vector loss, vector results, std::size_t pairs) {
  const std::span<A> all = view<A>(results);
  tigon::preference_results<A> to;
  to.loss = view<A>(loss);
  to.chosen_logps = all.subspan(0, pairs), to.rejected_logps = all.subspan(pairs, pairs);
  to.chosen_rewards = all.subspan(2 * pairs, pairs), to.rejected_rewards = all.subspan(3 * pairs, pairs);
  to.nll_loss = all.subspan(4 * pairs, 1), to.metrics = all.subspan(4 * pairs + 1, 2);
  return to;
}

/// The loss by its number.
template <class T>
void preference_door(const preference_call& c, const preference_options& o, tigon::context& ctx) {
  using A = tigon::accumulator_t<T>;
  const auto layer = layer_of<T>(c.layer);
  const auto gradients = gradients_of<T>(c.to);
  const auto results = results_of<A>(c.loss, c.results, c.target.rows / 2);
  const tigon::preference_options pairs{o.ignore_index, o.alpha, 1, 0, 0};
  const tigon::token_ids target(view<const std::int64_t>(c.target));
  tigon::preference_batch batch{target};
  if (c.nll_target.data != nullptr) batch.nll_target = tigon::token_ids(view<const std::int64_t>(c.nll_target));
  switch (o.kind) {
    case preference::dpo: {
      tigon::fused_linear_dpo_options opt;
      opt.pairs = pairs, opt.loss = static_cast<tigon::dpo_loss>(o.dpo), opt.beta = o.beta;
      opt.label_smoothing = o.label_smoothing, opt.discopop_tau = o.discopop_tau;
      opt.compute_nll_loss = o.nll, opt.average_log_prob = o.average;
      return tigon::fused_linear_dpo_forward(layer, batch, results, gradients, opt, reference_of<T>(c.reference), ctx);
    }
    case preference::orpo:
      return tigon::fused_linear_orpo_forward(layer, batch, results, gradients, {pairs, o.beta, o.nll}, ctx);
    case preference::simpo: {
      const tigon::fused_linear_simpo_options opt{pairs, o.beta, o.gamma, o.label_smoothing, o.nll};
      return tigon::fused_linear_simpo_forward(layer, target, results, gradients, opt, ctx);
    }
    case preference::cpo: {
      const tigon::fused_linear_cpo_options opt{pairs, o.beta, o.label_smoothing, o.nll, o.average};
      return tigon::fused_linear_cpo_forward(layer, target, results, gradients, opt, ctx);
    }
    case preference::kto: break;
  }
  tigon::fused_linear_kto_options opt;
  opt.sequences = {o.ignore_index, 1, 0};
  opt.beta = o.beta, opt.desirable_weight = o.desirable_weight, opt.undesirable_weight = o.undesirable_weight;
  opt.average_log_prob = o.average;
  const std::size_t n = c.target.rows;
  const std::span<A> all = view<A>(c.results);
  tigon::unpaired_results<A> to;
  to.loss = view<A>(c.loss), to.logps = all.subspan(0, n), to.rewards = all.subspan(n, n);
  tigon::fused_linear_kto_forward(layer, {target, {c.desirable, n}}, view<const A>(c.kl), to, gradients, opt,
                                  reference_of<T>(c.reference), ctx);
}

void fused_linear_preference(const host& h, const preference_call& c, const preference_options& o) {
  with_type<tigon::op::fused_linear_dpo>("fused_linear_preference", c.layer.x.of, [&]<class T>() {
    const auto of = gradients_of<T>(c.to).of_weights();
    const std::size_t n = c.target.rows, len = c.target.cols, hidden = c.layer.x.cols, vocab = c.layer.w.rows;
    run(
        h,
        [&](const tigon::context& ctx) {
          if (o.kind == preference::kto)
            return tigon::fused_linear_unpaired_preference_workspace<tigon::default_backend, T>(
                n, len, hidden, vocab, c.reference.layer.w.cols, ctx, of);
          return tigon::fused_linear_preference_workspace<tigon::default_backend, T>(n / 2, len, hidden, vocab,
                                                                                     c.reference.layer.w.cols, ctx, of);
        },
        [&](tigon::context& ctx) { preference_door<T>(c, o, ctx); });
  });
}

void fused_linear_grpo(const host& h, const linear_policy_call& c, const policy_options& o) {
  with_type<tigon::op::fused_linear_grpo>("fused_linear_grpo", c.layer.x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const tigon::policy_options opt = policy_options_of(o);
    const auto trained = gradients_of<T>(c.to).of_weights();
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::fused_linear_grpo_workspace<tigon::default_backend, T>(
              c.batch.ids.rows, c.layer.x.rows, c.layer.x.cols, c.layer.w.rows, opt, c.reference.w.cols, ctx, trained);
        },
        [&](tigon::context& ctx) {
          tigon::policy_results<A> to;
          to.loss = view<A>(c.loss), to.metrics.kl = view<A>(c.kl), to.metrics.clipped = view<A>(c.clipped);
          tigon::reference_model<T> reference;
          reference.layer = layer_of<T>(c.reference);
          tigon::fused_linear_grpo_forward(layer_of<T>(c.layer), batch_of<A>(c.batch), to, gradients_of<T>(c.to), opt,
                                           reference, view<const A>(c.upstream), ctx);
        });
  });
}

}  // namespace

const preference_kernels* preferences() {
  static constexpr preference_kernels table{entry<tigon::op::fused_linear_dpo>(&fused_linear_preference),
                                            entry<tigon::op::fused_linear_grpo>(&fused_linear_grpo)};
  return &table;
}

}  // namespace tigon_torch
