// Losses of logits and behind linear layers, with their default options.
#include <tigon/losses/cross_entropy_divergence.hpp>
#include <tigon/losses/fused_linear_cosine_distillation.hpp>
#include <tigon/losses/fused_linear_cpo.hpp>
#include <tigon/losses/fused_linear_distillation.hpp>
#include <tigon/losses/fused_linear_dpo.hpp>
#include <tigon/losses/fused_linear_grpo.hpp>
#include <tigon/losses/fused_linear_jsd_distillation.hpp>
#include <tigon/losses/fused_linear_kl_div.hpp>
#include <tigon/losses/fused_linear_kto.hpp>
#include <tigon/losses/fused_linear_orpo.hpp>
#include <tigon/losses/fused_linear_scaled_cross_entropy.hpp>
#include <tigon/losses/fused_linear_simpo.hpp>
#include <tigon/losses/grpo_loss.hpp>
#include <tigon/losses/selective_log_softmax.hpp>

#include "ops/squared.hpp"
#include "plain/check.hpp"
#include "plain/linear_losses.hpp"
#include "plain/sequences.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace tigon_bench {
namespace {

using B = passes::lanes;
constexpr std::size_t tokens = 24, hidden = 19, vocab = 101, sequences = 4, len = tokens / sequences;
using steps_type = passes::logit_steps<float>;

/// A layer, and a teacher or reference of the same sizes.
struct layers {
  matrix<float> x = uniform_matrix<float>(tokens, hidden, -1, 1, 1),
                w = uniform_matrix<float>(vocab, hidden, -.5, .5, 2),
                other_x = uniform_matrix<float>(tokens, hidden, -1, 1, 3),
                other_w = uniform_matrix<float>(vocab, hidden, -.5, .5, 4);
  buffer<float> bias = uniform<float>(vocab, -.5, .5, 5);
  buffer<std::int32_t> ids = uniform<std::int32_t>(tokens, 0, vocab - 1, 6);
  both_matrices dx{tokens, hidden}, dw{vocab, hidden};
  both_buffers dbias{vocab}, loss{1};
  steps_type steps{tokens, vocab};
  buffer<float> logp{tokens}, ref_logp{tokens};

  passes::linear<float> in_steps() const {
    return {x.view(), w.view(), in(bias), dx.got.view(), dw.got.view(), out(dbias.got)};
  }
  passes::linear<float> other_in_steps() const { return {other_x.view(), other_w.view(), {}, {}, {}, {}}; }
  tigon::linear_layer<float> layer() const { return {x.view(), w.view(), bias.span()}; }
  tigon::linear_layer<float> other() const { return {other_x.view(), other_w.view()}; }
  tigon::linear_gradients<float> gradients() const { return {dx.want.view(), dw.want.view(), dbias.want.span()}; }
  tigon::matrix_view<const std::int32_t> target() const { return {ids.data(), sequences, len}; }

  void agree(const char* name) const {
    const std::string n(name);
    loss.agree((n + " loss").c_str()), dx.agree((n + " dx").c_str());
    dw.agree((n + " dw").c_str()), dbias.agree((n + " dbias").c_str());
  }
  /// The same by a function of log-probabilities.
  template <class F>
  void by_tokens(tigon::context& ctx, bool reference, F f) const {
    passes::linear_token_loss<float, float>(
        ctx, in_steps(), reference ? other_in_steps() : passes::linear<float>{}, ids.span(), steps,
        {logp.span(), reference ? ref_logp.span() : std::span<float>()}, loss.got.data(), f);
  }
  template <class Soft>
  void by_teacher(tigon::context& ctx, Soft soft) const {
    const passes::linear<float> student = in_steps(), teacher = other_in_steps();
    const matrix<float> logits(tokens, vocab), of_labels(tokens, vocab);
    passes::linear_distillation<float, float>(ctx, {student, teacher}, ids.span(), steps,
                                              {logits.view(), of_labels.view()}, {0.5, 0.5}, loss.got.data(), soft);
  }
};

void preferences(tigon::context& ctx) {
  const layers l;
  const tigon::reference_model<float> reference{.layer = l.other()};
  const std::vector<std::uint8_t> desirable(sequences, 1);
  const tigon::preference_results<float> to{l.loss.want.span()};

  l.by_tokens(ctx, true, passes::of_pairs(sequences, false, false, passes::sigmoid_pair{0.1, 0, true}));
  tigon::fused_linear_dpo_forward<B>(l.layer(), {l.target()}, to, l.gradients(), {}, reference, ctx);
  l.agree("fused_linear_dpo");
  l.by_tokens(ctx, false, passes::of_pairs(sequences, false, true, passes::sigmoid_pair{0.1, 0, false}));
  tigon::fused_linear_cpo_forward<B>(l.layer(), l.target(), to, l.gradients(), {}, ctx);
  l.agree("fused_linear_cpo");
  l.by_tokens(ctx, false, passes::of_pairs(sequences, true, false, passes::sigmoid_pair{0.1, 0.5, false}));
  tigon::fused_linear_simpo_forward<B>(l.layer(), l.target(), to, l.gradients(), {}, ctx);
  l.agree("fused_linear_simpo");
  l.by_tokens(ctx, false, passes::of_pairs(sequences, true, true, passes::odds_pair{0.1}));
  tigon::fused_linear_orpo_forward<B>(l.layer(), {l.target()}, to, l.gradients(), {}, ctx);
  l.agree("fused_linear_orpo");
  const squared_margin margin;
  l.by_tokens(ctx, true, passes::of_pairs(sequences, true, true, margin));
  tigon::fused_linear_preference_forward<B>(l.layer(), {l.target()}, margin, to, l.gradients(), {}, reference, ctx);
  l.agree("fused_linear_preference");

  l.by_tokens(ctx, true, passes::of_sequences(sequences, passes::prospect{0.1}));
  tigon::fused_linear_kto_forward<B>(l.layer(), {l.target(), desirable}, {}, {l.loss.want.span()}, l.gradients(), {},
                                     reference, ctx);
  l.agree("fused_linear_kto");
  const squared_ratio ratio;
  l.by_tokens(ctx, true, passes::of_sequences(sequences, ratio));
  tigon::fused_linear_unpaired_preference_forward<B>(l.layer(), {l.target(), desirable}, ratio, {l.loss.want.span()},
                                                     l.gradients(), {}, reference, ctx);
  l.agree("fused_linear_unpaired_preference");
}

void policies(tigon::context& ctx) {
  const layers l;
  const auto advantages = uniform<float>(sequences, -1, 1, 7), ref = uniform<float>(tokens, -6, -3, 8);
  const tigon::policy_options opt{.type = tigon::policy_loss::grpo, .beta = 0.1};
  const tigon::policy_batch<float> batch{
      .ids = l.target(), .advantages = advantages.span(), .ref_logp = {ref.data(), sequences, len}};
  const auto f = passes::of_policy<float>(sequences, advantages.span(), opt.beta);
  passes::linear_token_loss<float, float>(ctx, l.in_steps(), {}, l.ids.span(), l.steps, {l.logp.span(), ref.span()},
                                          l.loss.got.data(), f);
  tigon::fused_linear_grpo_forward<B, float>(l.layer(), batch, {l.loss.want.span()}, l.gradients(), opt, {}, {}, ctx);
  l.agree("fused_linear_grpo");

  const auto logits = uniform_matrix<float>(tokens, vocab, -4, 4, 9);
  both_matrices dlogits(tokens, vocab), logp(1, tokens);
  const buffer<tigon::lse_parts<float>> saved(tokens);
  l.steps.log_probabilities_of(ctx, logits.view(), l.ids.span(), logp.got.values.data());
  l.loss.got[0] = static_cast<float>(f(logp.got.values.span(), ref.span(), l.steps.room_for_gradients()));
  l.steps.log_probabilities_backward(ctx, l.ids.span(), l.steps.room_for_gradients(), dlogits.got.view());
  tigon::grpo_loss_forward<B>(logits.view(), batch, l.loss.want.span(), saved.span(), opt, {}, ctx);
  tigon::grpo_loss_backward<B>(logits.view(), batch, saved.span(), {}, dlogits.want.view(), opt, ctx);
  l.loss.agree("grpo_loss loss"), dlogits.agree("grpo_loss dlogits");

  const auto dlogp = uniform_matrix<float>(1, tokens, -1, 1, 10);
  const tigon::matrix_view<const std::int32_t> ids(l.ids.data(), 1, tokens);
  l.steps.log_probabilities_backward(ctx, l.ids.span(), dlogp.values.data(), dlogits.got.view());
  tigon::selective_log_softmax_forward<B>(logits.view(), ids, logp.want.view(), {}, tigon::absent, saved.span(), ctx);
  tigon::selective_log_softmax_backward<B>(logits.view(), ids, saved.span(), dlogp.view(), dlogits.want.view(), {},
                                           tigon::absent, ctx);
  logp.agree("selective_log_softmax logp"), dlogits.agree("selective_log_softmax dlogits");
}

void distillation(tigon::context& ctx) {
  const layers l;
  using loss_of_rows = float (*)(tigon::context&, const steps_type&, passes::in<float>, passes::out<float>);
  const loss_of_rows jsd = passes::jsd_of_logits<float, float>, distance = passes::distance_of_logits<float, float>;
  l.by_teacher(ctx, jsd);
  tigon::fused_linear_jsd_distillation_forward<B>(l.layer(), l.other(), l.ids.span(), {l.loss.want.span()},
                                                  l.gradients(), {}, ctx);
  l.agree("fused_linear_jsd_distillation");
  l.by_teacher(ctx, [](tigon::context& own, const steps_type& m, passes::in<float> t, passes::out<float> dz) {
    return passes::cosine_of_logits<float, float>(own, m, t, dz);
  });
  tigon::fused_linear_cosine_distillation_forward<B>(l.layer(), l.other(), l.ids.span(), {l.loss.want.span()},
                                                     l.gradients(), {}, ctx);
  l.agree("fused_linear_cosine_distillation");
  l.by_teacher(ctx, distance);
  tigon::fused_linear_distillation_forward<B>(l.layer(), l.other(), l.ids.span(), squared_error<float>{},
                                              {l.loss.want.span()}, l.gradients(), {}, ctx);
  l.agree("fused_linear_distillation");

  const auto probabilities = uniform_matrix<float>(tokens, vocab, 0, 0.02, 7),
             logs = uniform_matrix<float>(tokens, vocab, -7, -4, 8);
  passes::linear_kl_div<float, float>(ctx, l.in_steps(), probabilities.view(), l.steps, l.loss.got.data());
  tigon::fused_linear_kl_div_forward<B, float>(l.layer(), probabilities.view(), tigon::absent, l.loss.want.span(),
                                               l.gradients(), {}, ctx);
  l.agree("fused_linear_kl_div");

  const auto z = uniform_matrix<float>(tokens, vocab, -4, 4, 9);
  both_matrices dz(tokens, vocab);
  passes::cross_entropy_and<float>(ctx, passes::distance::tvd, z.view(), l.ids.span(), probabilities.view(), l.steps,
                                   l.loss.got.data(), dz.got.view());
  tigon::cross_entropy_tvd_forward<B, float>(z.view(), l.ids.span(), probabilities.view(), {l.loss.want.span()},
                                             dz.want.view(), {}, tigon::absent, ctx);
  l.loss.agree("cross_entropy_tvd loss"), dz.agree("cross_entropy_tvd dlogits");
  passes::cross_entropy_and<float>(ctx, passes::distance::jsd, z.view(), l.ids.span(), logs.view(), l.steps,
                                   l.loss.got.data(), dz.got.view());
  tigon::cross_entropy_jsd_forward<B, float>(z.view(), l.ids.span(), logs.view(), {l.loss.want.span()}, dz.want.view(),
                                             {}, tigon::absent, ctx);
  l.loss.agree("cross_entropy_jsd loss"), dz.agree("cross_entropy_jsd dlogits");
}

void scaled(tigon::context& ctx) {
  const layers l;
  const auto of_nll = uniform<float>(tokens, 0.25, 1.25, 7), of_entropy = uniform<float>(tokens, -1, 1, 8);
  both_buffers nll(tokens), entropy(tokens);
  passes::linear_scaled_cross_entropy<float, float>(
      ctx, l.in_steps(), l.ids.span(), l.steps, {nll.got.data(), entropy.got.data(), of_nll.data(), of_entropy.data()});
  tigon::fused_linear_scaled_cross_entropy_forward<B, float>(l.layer(), l.ids.span(),
                                                             {nll.want.span(), entropy.want.span()}, l.gradients(), {},
                                                             {of_nll.span(), of_entropy.span()}, ctx);
  nll.agree("fused_linear_scaled_cross_entropy nll"), entropy.agree("fused_linear_scaled_cross_entropy entropy");
  l.dx.agree("fused_linear_scaled_cross_entropy dx"), l.dw.agree("fused_linear_scaled_cross_entropy dw");
}

}  // namespace

void check_losses(tigon::context& ctx) { preferences(ctx), policies(ctx), distillation(ctx), scaled(ctx); }

}  // namespace tigon_bench
