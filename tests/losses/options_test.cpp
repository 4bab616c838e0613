// The scalar options of losses, a row each, as tests/ops/options_test.cpp has those of operators.
// Operators: several
#include <gtest/gtest.h>

#include <tigon/comm/communicator.hpp>
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/losses/cross_entropy_divergence.hpp>
#include <tigon/losses/fused_linear_cosine_distillation.hpp>
#include <tigon/losses/fused_linear_cpo.hpp>
#include <tigon/losses/fused_linear_cross_entropy.hpp>
#include <tigon/losses/fused_linear_dpo.hpp>
#include <tigon/losses/fused_linear_grpo.hpp>
#include <tigon/losses/fused_linear_jsd.hpp>
#include <tigon/losses/fused_linear_kl_div.hpp>
#include <tigon/losses/fused_linear_kto.hpp>
#include <tigon/losses/fused_linear_orpo.hpp>
#include <tigon/losses/fused_linear_scaled_cross_entropy.hpp>
#include <tigon/losses/fused_linear_simpo.hpp>
#include <tigon/losses/grpo_loss.hpp>
#include <tigon/losses/jsd.hpp>
#include <tigon/losses/kl_div.hpp>
#include <tigon/losses/selective_log_softmax.hpp>
#include <tigon/losses/selective_logprob.hpp>
#include <tigon/losses/tvd.hpp>
#include <tigon/losses/vocab_parallel_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_scaled_cross_entropy.hpp>

#include "support/option_table.hpp"

TIGON_TEST_NO_KERNELS(op::cross_entropy, op::cross_entropy_tvd, op::cross_entropy_jsd, op::jsd, op::kl_div, op::tvd,
                      op::selective_log_softmax, op::selective_logprob, op::fused_linear_cross_entropy,
                      op::fused_linear_scaled_cross_entropy, op::fused_linear_kl_div, op::fused_linear_jsd,
                      op::fused_linear_jsd_distillation, op::fused_linear_cosine_distillation, op::grpo_loss,
                      op::vocab_parallel_cross_entropy, op::vocab_parallel_fused_linear_cross_entropy,
                      op::vocab_parallel_fused_linear_scaled_cross_entropy)

namespace {

using namespace tigon::test;
using tigon::absent;
using B = tigon::backends::no_kernels;

template <class T>
class options_of_losses : public testing::Test {};
TYPED_TEST_SUITE(options_of_losses, option_types);

const std::vector<std::int64_t> ids{0, 1, 2, 0};

/// The rows of `name` for every option of cross_entropy_options; call(options).
template <class Table, class Call>
void cross_entropy_rows(Table& t, const std::string& name, const Call& call) {
  t.row(name + ": label_smoothing", takes::share, [&](double v) { call({.label_smoothing = v}); });
  t.row(name + ": lse_square_scale", takes::from_zero, [&](double v) { call({.lse_square_scale = v}); });
  t.row(name + ": softcap", takes::from_zero, [&](double v) { call({.softcap = v}); });
  t.row(name + ": denominator", takes::from_zero, [&](double v) { call({.denominator = v}); });
  if constexpr (Table::is_f32) {
    EXPECT_TIGON_ERROR(call({.lse_square_scale = 1e20, .denominator = 1e-20}), argument,
                       "2 lse_square_scale over the denominator is 2e+40");
  }
}
using cross_entropy_call = std::function<void(tigon::cross_entropy_options)>;

TYPED_TEST(options_of_losses, of_logits) {
  using T = TypeParam;
  option_table<T> t;
  const auto z = t.in(4, 3);
  const auto dz = t.out(4, 3);
  const auto loss = t.out(1), rows = t.out(4), rows2 = t.out(4), rows3 = t.out(4);
  cross_entropy_rows(t, "cross_entropy_forward",
                     cross_entropy_call([&](auto o) { tigon::cross_entropy_forward<B>(z, ids, loss, dz, o); }));
  cross_entropy_rows(t, "cross_entropy_backward_recompute", cross_entropy_call([&](auto o) {
                       tigon::cross_entropy_backward_recompute<B>(z, ids, t.in(1), dz, o);
                     }));

  const std::function<void(tigon::cross_entropy_divergence_options)> both[] = {
      [&](auto o) { tigon::cross_entropy_tvd_forward<B>(z, ids, z, {loss}, dz, o); },
      [&](auto o) { tigon::cross_entropy_jsd_forward<B>(z, ids, z, {loss}, dz, o); }};
  for (const bool jsd : {false, true}) {
    const std::string name = jsd ? "cross_entropy_jsd_forward" : "cross_entropy_tvd_forward";
    const auto& call = both[jsd];
    t.row(name + ": label_smoothing", takes::share, [&](double v) { call({.label_smoothing = v}); });
    t.row(name + ": lse_square_scale", takes::from_zero, [&](double v) { call({.lse_square_scale = v}); });
    t.row(name + ": weight_ce", takes::number, [&](double v) { call({.weight_ce = v}); });
    t.row(name + ": weight_divergence", takes::number, [&](double v) { call({.weight_divergence = v}); });
    t.row(name + ": temperature", takes::range, [&](double v) { call({.temperature = v}); });
    t.row(name + ": beta", takes::share, [&](double v) { call({.beta = v}); });
    t.row(name + ": denominator", takes::from_zero, [&](double v) { call({.denominator = v}); });
    t.row(name + ": upstream", takes::number, [&](double v) { call({.upstream = v}); });
    if constexpr (t.is_f32) {
      EXPECT_TIGON_ERROR(call({.weight_ce = 1e20, .upstream = 1e20}), argument, "upstream weight_ce over");
      EXPECT_TIGON_ERROR(call({.temperature = 1e-20, .upstream = 1e20}), argument, "upstream weight_divergence over");
    }
  }

  t.row("jsd_forward: beta", takes::share, [&](double v) { tigon::jsd_forward<B>(z, z, loss, dz, {.beta = v}); });
  t.row("jsd_forward: denominator", takes::from_zero,
        [&](double v) { tigon::jsd_forward<B>(z, z, loss, dz, {.denominator = v}); });
  t.row("kl_div_forward: eps", takes::share, [&](double v) { tigon::kl_div_forward<B>(z, z, loss, dz, {.eps = v}); });
  t.row("kl_div_forward: denominator", takes::from_zero,
        [&](double v) { tigon::kl_div_forward<B>(z, z, loss, dz, {.denominator = v}); });
  t.row("kl_div_backward: denominator", takes::from_zero,
        [&](double v) { tigon::kl_div_backward<B>(z, t.in(1), dz, {.denominator = v}); });
  t.row("tvd_forward: denominator", takes::from_zero,
        [&](double v) { tigon::tvd_forward<B>(z, z, loss, dz, {.denominator = v}); });
  t.row("tvd_backward: denominator", takes::from_zero,
        [&](double v) { tigon::tvd_backward<B>(z, z, t.in(1), dz, {.denominator = v}); });

  const tigon::matrix_view<const std::int64_t> tokens(ids.data(), 2, 2);
  const tigon::matrix_view<T> logp(rows.data(), 2, 2);
  std::vector<tigon::lse_parts<T>> saved(4);
  t.row("selective_log_softmax_forward: temperature", takes::above_zero,
        [&](double v) { tigon::selective_log_softmax_forward<B>(z, tokens, logp, {.temperature = v}, absent, saved); });
  t.row("selective_log_softmax_backward: temperature", takes::above_zero, [&](double v) {
    tigon::selective_log_softmax_backward<B>(z, tokens, saved, t.in(2, 2), dz, {.temperature = v});
  });
  tigon::comm::serial alone;
  t.row("vocab_parallel_cross_entropy_forward: label_smoothing", takes::share, [&](double v) {
    tigon::vocab_parallel_cross_entropy_forward<B>(alone, z, {0, 3}, ids, {rows, rows2, rows3}, {.label_smoothing = v});
  });
  t.row("vocab_parallel_cross_entropy_backward: label_smoothing", takes::share, [&](double v) {
    tigon::vocab_parallel_cross_entropy_backward<B>(z, {0, 3}, ids, t.in(4), {t.in(4), t.in(4)}, dz,
                                                    {.label_smoothing = v});
  });
}

TYPED_TEST(options_of_losses, of_policies) {
  using T = TypeParam;
  option_table<T> t;
  const auto z = t.in(4, 3);
  const auto dz = t.out(4, 3);
  const auto loss = t.out(1);
  tigon::policy_batch<T> batch{tigon::matrix_view<const std::int64_t>(ids.data(), 2, 2), t.in(2)};
  batch.ref_logp = t.in(2, 2);
  std::vector<tigon::lse_parts<T>> saved(4);
  const std::function<void(tigon::policy_options)> doors[] = {
      [&](auto o) { tigon::grpo_loss_forward<B>(z, batch, loss, saved, o); },
      [&](auto o) { tigon::grpo_loss_backward<B>(z, batch, saved, {}, dz, o); }};
  for (const bool backward : {false, true}) {
    const std::string name = backward ? "grpo_loss_backward" : "grpo_loss_forward";
    const auto& call = doors[backward];
    t.row(name + ": temperature", takes::above_zero, [&](double v) { call({.temperature = v}); });
    t.row(name + ": beta", takes::number, [&](double v) { call({.beta = v}); });
    t.row(name + ": epsilon_low", takes::from_zero, [&](double v) { call({.epsilon_low = v}); });
    t.row(name + ": epsilon_high", takes::from_zero, [&](double v) { call({.epsilon_high = v}); });
    t.row(name + ": delta", takes::from_zero, [&](double v) { call({.delta = v}); });
    t.row(name + ": max_log_ratio", takes::from_zero, [&](double v) { call({.max_log_ratio = v}); });
    t.row(name + ": tau", takes::above_zero, [&](double v) { call({.tau_positive = v}); });
    t.row(name + ": tau", takes::above_zero, [&](double v) { call({.tau_negative = v}); });
    t.row(name + ": k_positive", takes::number, [&](double v) { call({.k_positive = v}); });
    t.row(name + ": lambda_positive", takes::number, [&](double v) { call({.lambda_positive = v}); });
    t.row(name + ": k_negative", takes::number, [&](double v) { call({.k_negative = v}); });
    t.row(name + ": lambda_negative", takes::number, [&](double v) { call({.lambda_negative = v}); });
    t.row(name + ": max_length", takes::from_zero, [&](double v) { call({.max_length = v}); });
    t.row(name + ": denominator", takes::from_zero, [&](double v) { call({.denominator = v}); });
  }
}

TYPED_TEST(options_of_losses, of_layers) {
  using T = TypeParam;
  option_table<T> t;
  const tigon::linear_layer<T> layer{t.in(4, 2), t.in(3, 2)};
  const auto dx = t.out(4, 2), dw = t.out(3, 2);
  const tigon::linear_gradients<T> to{dx, dw};
  const auto loss = t.out(1), rows = t.out(4);
  cross_entropy_rows(t, "fused_linear_cross_entropy_forward", cross_entropy_call([&](auto o) {
                       tigon::fused_linear_cross_entropy_forward<B>(layer, ids, {loss}, to, {.loss = o});
                     }));
  tigon::comm::serial alone;
  const tigon::linear_shard<T> shard{layer, {0, 3}};
  cross_entropy_rows(t, "vocab_parallel_fused_linear_cross_entropy_forward", cross_entropy_call([&](auto o) {
                       tigon::vocab_parallel_fused_linear_cross_entropy_forward<B>(alone, shard, ids, {loss}, to,
                                                                                   {.loss = o});
                     }));
  t.row("vocab_parallel_fused_linear_cross_entropy_forward: upstream", takes::number, [&](double v) {
    tigon::vocab_parallel_fused_linear_cross_entropy_forward<B>(alone, shard, ids, {loss}, to,
                                                                {.loss = {}, .upstream = v});
  });
  t.row("vocab_parallel_fused_linear_scaled_cross_entropy_forward: temperature", takes::range, [&](double v) {
    tigon::vocab_parallel_fused_linear_scaled_cross_entropy_forward<B>(alone, shard, ids, {.nll = rows}, {},
                                                                       {.temperature = v});
  });
  t.row("fused_linear_scaled_cross_entropy_forward: temperature", takes::range, [&](double v) {
    tigon::fused_linear_scaled_cross_entropy_forward<B>(layer, ids, {.nll = rows}, {}, {.temperature = v});
  });
  std::vector<tigon::lse_parts<T>> saved(4);
  t.row("selective_logprob_forward: temperature", takes::above_zero,
        [&](double v) { tigon::selective_logprob_forward<B>(layer, ids, rows, saved, {.temperature = v}); });
  t.row("selective_logprob_backward: temperature", takes::above_zero,
        [&](double v) { tigon::selective_logprob_backward<B>(layer, ids, t.in(4), saved, to, {.temperature = v}); });

  const auto teacher = t.in(4, 3);
  const auto kl = [&](tigon::fused_linear_kl_div_options o) {
    tigon::fused_linear_kl_div_forward<B>(layer, teacher, absent, loss, to, o);
  };
  t.row("fused_linear_kl_div_forward: eps", takes::share, [&](double v) { kl({.eps = v}); });
  t.row("fused_linear_kl_div_forward: temperature", takes::range, [&](double v) { kl({.temperature = v}); });
  t.row("fused_linear_kl_div_forward: denominator", takes::from_zero, [&](double v) { kl({.denominator = v}); });
  t.row("fused_linear_kl_div_forward: upstream", takes::number, [&](double v) { kl({.upstream = v}); });
  if constexpr (t.is_f32) {
    EXPECT_TIGON_ERROR(kl({.temperature = 1e-20, .upstream = 1e20}), argument, "upstream over the denominator and");
  }
}

TYPED_TEST(options_of_losses, of_distillation) {
  using T = TypeParam;
  option_table<T> t;
  const tigon::linear_layer<T> layer{t.in(4, 2), t.in(3, 2)};
  const auto dx = t.out(4, 2), dw = t.out(3, 2);
  const tigon::linear_gradients<T> to{dx, dw};
  const auto loss = t.out(1);
  const auto teacher = t.in(4, 3);
  const auto jsd = [&](tigon::fused_linear_jsd_options o) {
    tigon::fused_linear_jsd_forward<B>(layer, teacher, absent, loss, to, o);
  };
  t.row("fused_linear_jsd_forward: beta", takes::share, [&](double v) { jsd({.beta = v}); });
  t.row("fused_linear_jsd_forward: temperature", takes::range, [&](double v) { jsd({.temperature = v}); });
  t.row("fused_linear_jsd_forward: denominator", takes::from_zero, [&](double v) { jsd({.denominator = v}); });
  t.row("fused_linear_jsd_forward: upstream", takes::number, [&](double v) { jsd({.upstream = v}); });
  t.row("fused_linear_jsd_backward: upstream", takes::number,
        [&](double v) { tigon::fused_linear_jsd_backward<B>(layer, teacher, absent, v, to); });

  const auto soft = [&](tigon::fused_linear_distillation_options o, double beta = 0.5) {
    tigon::fused_linear_jsd_distillation_forward<B>(layer, teacher, ids, {loss}, to, {.distillation = o, .beta = beta});
  };
  const std::string name = "fused_linear_jsd_distillation_forward: ";
  t.row(name + "beta", takes::share, [&](double v) { soft({}, v); });
  t.row(name + "weight_hard", takes::number, [&](double v) { soft({.weight_hard = v}); });
  t.row(name + "weight_soft", takes::number, [&](double v) { soft({.weight_soft = v}); });
  t.row(name + "temperature", takes::range, [&](double v) { soft({.temperature = v}); });
  t.row(name + "denominator", takes::from_zero, [&](double v) { soft({.denominator = v}); });
  t.row(name + "upstream", takes::number, [&](double v) { soft({.upstream = v}); });
  t.row(name + "softcap", takes::from_zero, [&](double v) { soft({.softcap = v}); });
  t.row(name + "teacher_softcap", takes::from_zero, [&](double v) { soft({.teacher_softcap = v}); });
  t.row("fused_linear_cosine_distillation_forward: beta", takes::number, [&](double v) {
    tigon::fused_linear_cosine_distillation_forward<B>(layer, teacher, ids, {loss}, to,
                                                       {.distillation = {}, .beta = v});
  });
  if constexpr (t.is_f32) {
    EXPECT_TIGON_ERROR(soft({.weight_hard = 1e20, .upstream = 1e20}), argument, "upstream weight_hard over");
    EXPECT_TIGON_ERROR(soft({.temperature = 1e-20, .upstream = 1e20}), argument, "upstream weight_soft over");
  }
}

// Kernels of these take the losses themselves: they run.
TYPED_TEST(options_of_losses, of_preferences) {
  using T = TypeParam;
  option_table<T> t;
  const tigon::linear_layer<T> layer{t.in(4, 2), t.in(3, 2)};
  const auto loss = t.out(1);
  const tigon::matrix_view<const std::int64_t> target(ids.data(), 2, 2);
  const auto dpo = [&](tigon::fused_linear_dpo_options o) {
    tigon::fused_linear_dpo_forward<B>(layer, {target}, {loss}, {}, o), ++kernel_calls;
  };
  const std::string name = "fused_linear_dpo_forward: ";
  t.row(name + "beta", takes::above_zero, [&](double v) { dpo({.beta = v}); });
  t.row(name + "label_smoothing", takes::share, [&](double v) { dpo({.label_smoothing = v}); });
  t.row(name + "discopop_tau", takes::above_zero, [&](double v) { dpo({.discopop_tau = v}); });
  t.row(name + "alpha", takes::number, [&](double v) { dpo({.pairs = {.alpha = v}}); });
  t.row(name + "upstream", takes::number, [&](double v) { dpo({.pairs = {.upstream = v}}); });
  t.row(name + "denominator", takes::from_zero, [&](double v) { dpo({.pairs = {.denominator = v}}); });
  t.row(name + "nll_denominator", takes::from_zero, [&](double v) { dpo({.pairs = {.nll_denominator = v}}); });
  t.row(name + "softcap", takes::from_zero, [&](double v) { dpo({.pairs = {.softcap = v}}); });
  if constexpr (t.is_f32) {
    EXPECT_TIGON_ERROR(dpo({.pairs = {.upstream = 1e20, .denominator = 1e-20}}), argument, "upstream over the");
    EXPECT_TIGON_ERROR(dpo({.pairs = {.alpha = 1e20, .upstream = 1e20}}), argument, "upstream alpha over the");
  }
  t.row("fused_linear_orpo_forward: beta", takes::above_zero, [&](double v) {
    tigon::fused_linear_orpo_forward<B>(layer, {target}, {loss}, {}, {.beta = v}), ++kernel_calls;
  });
  t.row("fused_linear_cpo_forward: label_smoothing", takes::share, [&](double v) {
    tigon::fused_linear_cpo_forward<B>(layer, target, {loss}, {}, {.label_smoothing = v}), ++kernel_calls;
  });
  t.row("fused_linear_simpo_forward: gamma", takes::number, [&](double v) {
    tigon::fused_linear_simpo_forward<B>(layer, target, {loss}, {}, {.gamma = v}), ++kernel_calls;
  });
  const std::vector<std::uint8_t> desirable{1, 0};
  const auto kto = [&](tigon::fused_linear_kto_options o) {
    tigon::fused_linear_kto_forward<B>(layer, {target, desirable}, {}, {loss}, {}, o), ++kernel_calls;
  };
  t.row("fused_linear_kto_forward: beta", takes::above_zero, [&](double v) { kto({.beta = v}); });
  t.row("fused_linear_kto_forward: desirable_weight", takes::number, [&](double v) { kto({.desirable_weight = v}); });
  t.row("fused_linear_kto_forward: undesirable_weight", takes::number,
        [&](double v) { kto({.undesirable_weight = v}); });
  t.row("fused_linear_kto_forward: upstream", takes::number, [&](double v) { kto({.sequences = {.upstream = v}}); });
  t.row("fused_linear_kto_forward: denominator", takes::from_zero,
        [&](double v) { kto({.sequences = {.denominator = v}}); });
  t.row("fused_linear_kto_forward: softcap", takes::from_zero, [&](double v) { kto({.sequences = {.softcap = v}}); });
  if constexpr (t.is_f32) {
    EXPECT_TIGON_ERROR(kto({.sequences = {.upstream = 1e20, .denominator = 1e-20}}), argument, "upstream over the");
  }
}

}  // namespace
