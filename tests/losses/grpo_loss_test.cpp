// The contract of include/tigon/losses/grpo_loss.hpp and of the policy losses, promise by promise.
#include <gtest/gtest.h>

#include <tigon/losses/grpo_loss.hpp>

#include "support/backends.hpp"
#include "support/central_difference.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/policy_loss.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::importance, tigon::lse_parts;
using tigon::luspo_reduction, tigon::matrix_view, tigon::policy_loss;
using options = tigon::policy_options;
using enum policy_loss;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type loss_bound{.f32 = 1e-5, .bf16 = 1e-5, .f16 = 1e-5, .f64 = 5e-14};
constexpr by_type gradient_bound{.f32 = 1e-5, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 5e-14};

constexpr policy_loss every_type[] = {grpo, bnpo, dr_grpo, dapo, luspo, cispo, sapo, vespo, gmpo};
bool by_token_only(policy_loss type) { return type == cispo || type == sapo || type == vespo || type == gmpo; }

enum class omega { none, sequence, token };

/// A batch, its logits with a gap behind each sequence, and all results. Inputs may be left out by emptying `in`.
template <class T>
struct problem {
  using A = accumulator_t<T>;
  std::size_t batch, len, vocab;
  options opt;
  guarded_matrix<T> logits, dlogits;
  guarded<lse_parts<A>> saved;
  guarded<A> loss, kl, clipped;
  policy_inputs in;
  guarded<std::int64_t> ids;
  guarded<std::uint8_t> mask;
  guarded<A> advantages, old_logp, ref_logp, sampling_ratio, upstream;

  TIGON_TEST_NOINLINE problem(std::size_t b, std::size_t l, std::size_t v, options o, omega ratio = omega::none,
                              double deviation = 1)
      : batch(b),
        len(l),
        vocab(v),
        opt(o),
        logits(random_matrix<T>({b * (l + 1), v, 1}, 3, guard::behind, {.deviation = deviation})),
        dlogits(b * (l + 1), v, 2),
        saved(b * (l + 1)),
        loss(o.reduce ? 1 : b * l),
        kl(loss.size()),
        clipped(loss.size()),
        in(example()),
        ids(b * l),
        mask(b * l),
        advantages(b),
        old_logp(b * l),
        ref_logp(b * l),
        sampling_ratio(ratio == omega::sequence ? b : b * l),
        upstream(loss.size()) {
    if (ratio == omega::none) in.sampling_ratio.clear();
    if (ratio == omega::sequence) in.sampling_ratio.resize(b);
    upstream.assign(o.reduce ? std::vector<double>{1} : random_vector<A>(b * l, 9).f64());
    fill();
  }
  policy_inputs example() const {
    policy_inputs made = policy_example(batch, len, vocab, std::vector<double>(batch * len, 0.0));
    const std::vector<double> logp = log_probabilities(logits.f64(), made.ids);
    return policy_example(batch, len, vocab, logp);
  }
  /// The typed copies of `in`.
  TIGON_TEST_NOINLINE void fill() {
    std::ranges::copy(in.ids, ids.begin());
    std::ranges::transform(in.mask, mask.begin(), [](auto m) { return static_cast<std::uint8_t>(m); });
    advantages.assign(in.advantages), old_logp.assign(in.old_logp), ref_logp.assign(in.ref_logp);
    sampling_ratio.assign(in.sampling_ratio);
  }
  TIGON_TEST_NOINLINE tigon::policy_batch<A> given() const {
    const auto view = [&](const guarded<A>& v, const std::vector<double>& of) {
      return of.empty() ? matrix_view<const A>{} : matrix_view<const A>(v.data(), batch, of.size() / batch);
    };
    tigon::policy_batch<A> out{.ids = matrix_view(ids.data(), batch, len),
                               .advantages = advantages,
                               .old_logp = view(old_logp, in.old_logp),
                               .ref_logp = view(ref_logp, in.ref_logp),
                               .sampling_ratio = view(sampling_ratio, in.sampling_ratio)};
    if (!in.mask.empty()) out.mask = matrix_view(mask.data(), batch, len);
    return out;
  }
  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    const bool reference = !in.ref_logp.empty();
    tigon::grpo_loss_forward<B>(logits.view(), given(), loss, saved, opt,
                                {reference ? std::span<A>(kl) : std::span<A>{}, clipped}, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(matrix_view<T> to, context& ctx = tigon::default_context()) {
    tigon::grpo_loss_backward<B>(logits, given(), saved, upstream, to, opt, ctx);
  }

  template <class B>
  TIGON_TEST_NOINLINE void at_once(matrix_view<T> to, context& ctx = tigon::default_context()) {
    tigon::grpo_loss_forward_backward<B>(logits, given(), loss, to, opt,
                                         {in.ref_logp.empty() ? std::span<A>{} : std::span<A>(kl), clipped}, upstream,
                                         ctx);
  }

  std::vector<double> log_probabilities(const std::vector<double>& z, const std::vector<std::int64_t>& at) const {
    std::vector<double> out;
    for (std::size_t b = 0; b < batch; ++b)
      for (std::size_t t = 0; t < len; ++t)
        out.push_back(log_softmax_row(z.data() + (b * (len + 1) + t) * vocab, vocab, opt.temperature)
                          .at(static_cast<std::size_t>(at[b * len + t])));
    return out;
  }
  TIGON_TEST_NOINLINE policy_outputs wanted(const std::vector<double>& z) const {
    return policy_reference(in, opt, log_probabilities(z, in.ids), log_probabilities(logits.f64(), in.ids));
  }
  policy_outputs wanted() const { return wanted(logits.f64()); }
  /// What is differentiated.
  TIGON_TEST_NOINLINE double objective(const std::vector<double>& z) const {
    const policy_outputs out = wanted(z);
    if (opt.reduce) return out.total * to_f64(upstream[0]);
    double sum = 0;
    for (std::size_t i = 0; i < out.loss.size(); ++i) sum += out.loss[i] * to_f64(upstream[i]);
    return sum;
  }
  TIGON_TEST_NOINLINE void expect_loss() const {
    const policy_outputs out = wanted();
    const auto compare = [&](const guarded<A>& got, const std::vector<double>& rows, double total) {
      return close(got.f64(), opt.reduce ? std::vector<double>{total} : rows, loss_bound.of<T>(), {.scale = 1e-2});
    };
    EXPECT_TRUE(compare(loss, out.loss, out.total));
    if (!in.ref_logp.empty()) {
      EXPECT_TRUE(compare(kl, out.kl, out.kl_mean));
    }
    EXPECT_TRUE(compare(clipped, out.clipped, out.clip_ratio));
  }
  TIGON_TEST_NOINLINE void expect_gradient() const {
    const auto z = logits.f64();
    const auto at = probes(z.size(), 80);
    const auto want = central_difference([&](const auto& x) { return objective(x); }, z, at);
    EXPECT_TRUE(close(pick(dlogits.f64(), at), want, 1e-8, {.scale = 1e-3}));
  }
};

template <class B, class T>
void run(problem<T>& p) {
  p.template forward<B>();
  p.template backward<B>(p.dlogits.view());
}

using exact = single_numbers;

/// One sequence of one token at a ratio rho, without penalty.
problem<double> of_ratio(double rho, double advantage, options opt) {
  opt.beta = 0;
  problem<double> p(1, 1, 5, opt);
  p.in.mask.clear(), p.in.ref_logp.clear();
  p.in.old_logp = {p.log_probabilities(p.logits.f64(), p.in.ids)[0] - std::log(rho)};
  p.in.advantages = {advantage};
  p.fill();
  run<exact>(p);
  return p;
}
/// d loss / d logp, from the column of the id.
double u_of(const problem<double>& p) {
  const auto k = static_cast<std::size_t>(p.in.ids[0]);
  return p.dlogits(0, k) / -std::expm1(p.log_probabilities(p.logits.f64(), p.in.ids)[0]) * p.opt.temperature;
}

/// Everything that a gradient test runs: all types, levels, ways of the KL penalty, bounds, sampling ratios.
template <class F>
void for_every_combination(F f) {
  for (const policy_loss type : every_type)
    for (const importance level : {importance::token, importance::sequence})
      for (const int kl : {0, 1, 2})
        for (const double delta : {0.0, 1.5, 1.1})
          for (const omega ratio : {omega::none, omega::token, omega::sequence}) {
            if (by_token_only(type) && (level == importance::sequence || delta != 0)) continue;
            if (ratio == omega::sequence && delta == 1.5) continue;
            options opt{.type = type, .level = level, .temperature = 0.8, .beta = kl == 0 ? 0 : 0.3};
            opt.epsilon_high = type == cispo ? 1.2 : 0.4, opt.delta = delta, opt.bias_corrected_kl = kl == 2;
            SCOPED_TRACE(testing::Message()
                         << "type " << static_cast<int>(type) << ", level " << static_cast<int>(level) << ", kl " << kl
                         << ", delta " << delta << ", sampling ratio " << static_cast<int>(ratio));
            f(opt, ratio);
          }
}

TEST(grpo_loss_gradient, is_that_of_the_definition) {
  for_every_combination([](options opt, omega ratio) {
    problem<double> p(4, 3, 5, opt, ratio);
    p.upstream[0] = -1.5;
    run<exact>(p);
    p.expect_loss();
    p.expect_gradient();
  });
}

TEST(grpo_loss_gradient, of_losses_of_tokens_is_that_of_the_definition) {
  for_every_combination([](options opt, omega ratio) {
    opt.reduce = false;
    problem<double> p(3, 3, 5, opt, ratio);
    run<exact>(p);
    p.expect_loss();
    p.expect_gradient();
  });
}

TEST(grpo_loss_gradient, where_inputs_are_left_out) {
  for (const policy_loss type : every_type)
    for (int without = 0; without < 8; ++without) {
      options opt{.type = type, .epsilon_high = type == cispo ? 1.2 : 0.4};
      if (without & 2) opt.beta = 0;
      SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type) << ", without " << without);
      problem<double> p(3, 4, 5, opt, omega::token);
      if (without & 1) p.in.old_logp.clear();
      if (without & 2) p.in.ref_logp.clear();
      if (without & 4) p.in.mask.clear();
      // The ratio is 1 then, and at 1 nothing is clipped.
      run<exact>(p);
      p.expect_loss();
      p.expect_gradient();
    }
}

TEST(grpo_loss_gradient, with_a_limit_of_the_ratio) {
  for (const policy_loss type : {grpo, sapo}) {
    const problem<double> p = of_ratio(3, -1, {.type = type, .epsilon_high = 5, .max_log_ratio = 0.3});
    const double held = std::exp(0.3);
    EXPECT_NEAR(p.loss[0], type == grpo ? held : 4 / 1.05 / (1 + std::exp(-1.05 * (held - 1))), 1e-13);
    for (const double g : p.dlogits.f64()) EXPECT_EQ(g, 0);
  }
  for (const policy_loss type : {grpo, dapo, sapo})
    for (const importance level : {importance::token, importance::sequence}) {
      if (type == sapo && level == importance::sequence) continue;
      options opt{.type = type, .level = level, .temperature = 0.8, .beta = 0.3};
      opt.bias_corrected_kl = true, opt.epsilon_high = 5, opt.epsilon_low = 0.9, opt.max_log_ratio = 0.3;
      problem<double> p(4, 3, 5, opt), far(4, 3, 5, opt);
      run<exact>(p);
      // Beyond the limit the loss is that of a ratio at the limit, whose gradient is that of the penalty alone.
      for (std::size_t i = 0; i < far.in.old_logp.size(); ++i) {
        const double r = far.log_probabilities(far.logits.f64(), far.in.ids)[i] - far.in.old_logp[i];
        if (std::abs(r) > 0.3) far.in.old_logp[i] -= std::copysign(0.05, r);
      }
      far.fill();
      run<exact>(far);
      EXPECT_NEAR(far.loss[0], p.loss[0], 1e-13);
      EXPECT_TRUE(close(far.dlogits.f64(), p.dlogits.f64(), 1e-12));
    }
}

TEST(grpo_loss_gradient, of_gmpo_where_tokens_of_a_sequence_are_clipped) {
  for (const int kl : {0, 2}) {
    options opt{.type = gmpo, .temperature = 0.8, .beta = kl == 0 ? 0 : 0.3, .epsilon_low = 0.3, .epsilon_high = 0.4};
    opt.bias_corrected_kl = kl == 2;
    problem<double> p(4, 3, 5, opt, omega::token);
    const auto logp = p.log_probabilities(p.logits.f64(), p.in.ids);
    const double ratios[] = {0.7, -0.6, 0.1};  // one is clipped where A > 0, another where A < 0
    for (std::size_t i = 0; i < logp.size(); ++i) p.in.old_logp[i] = logp[i] - ratios[i % 3];
    p.in.mask.assign(12, 1);
    p.in.mask[4] = 0;
    p.fill();
    run<exact>(p);
    p.expect_loss();
    p.expect_gradient();
    EXPECT_NEAR(p.clipped[0], 4.0 / 11, 1e-15);
  }
}

// Defects of other implementations, one by one.

TEST(grpo_loss_defects, luspo_has_the_gradient_of_every_token_of_a_sequence) {
  for (const importance level : {importance::token, importance::sequence})
    for (const luspo_reduction how : {luspo_reduction::sequences, luspo_reduction::tokens, luspo_reduction::padded})
      for (const double beta : {0.0, 0.2})
        for (const omega ratio : {omega::none, omega::sequence, omega::token}) {
          SCOPED_TRACE(testing::Message()
                       << static_cast<int>(level) << static_cast<int>(how) << beta << static_cast<int>(ratio));
          options opt{.type = luspo, .level = level, .beta = beta, .epsilon_high = 0.4, .luspo = how};
          problem<double> p(4, 3, 5, opt, ratio);
          run<exact>(p);
          p.expect_loss();
          p.expect_gradient();
        }
}

TEST(grpo_loss_defects, a_bound_of_the_ratio_below_the_clipping_has_a_gradient) {
  // delta < rho <= 1 + epsilon_high and A < 0: the clipped term is the smaller one, and it moves.
  const problem<double> p = of_ratio(1.25, -2, {.epsilon_high = 0.4, .delta = 1.1});
  EXPECT_NEAR(p.loss[0], 2 * 1.25, 1e-13);
  EXPECT_NEAR(u_of(p), 2 * 1.25, 1e-12);
}

TEST(grpo_loss_defects, bias_corrected_kl_of_a_sequence_has_both_parts) {
  for (const double shift : {0.0, 0.7}) {
    options opt{.type = grpo, .level = importance::sequence, .beta = 1, .bias_corrected_kl = true};
    problem<double> p(2, 4, 6, opt);
    for (double& a : p.in.advantages) a = 0;  // the penalty alone
    for (double& r : p.in.ref_logp) r += shift;
    p.fill();
    run<exact>(p);
    p.expect_loss();
    p.expect_gradient();
  }
}

TEST(grpo_loss_defects, padding_does_not_contribute) {
  for (const policy_loss type : every_type)
    for (const importance level : {importance::token, importance::sequence}) {
      if (by_token_only(type) && level == importance::sequence) continue;
      problem<double> p(4, 3, 5, {.type = type, .level = level}, omega::token), q(4, 3, 5, p.opt, omega::token);
      for (std::size_t i = 0; i < 12; ++i) {
        if (q.in.mask[i] != 0) continue;
        for (auto* v : {&q.in.old_logp, &q.in.ref_logp, &q.in.sampling_ratio}) (*v)[i] = nan;
        q.ids[i] = -7;
        for (std::size_t j = 0; j < 5; ++j) q.logits(i / 3 * 4 + i % 3, j) = nan;
      }
      q.old_logp.assign(q.in.old_logp), q.ref_logp.assign(q.in.ref_logp), q.sampling_ratio.assign(q.in.sampling_ratio);
      run<exact>(p), run<exact>(q);
      EXPECT_EQ(bits_of(p.loss, p.kl, p.clipped, p.dlogits), bits_of(q.loss, q.kl, q.clipped, q.dlogits))
          << static_cast<int>(type);
      p.at_once<exact>(p.dlogits.view()), q.at_once<exact>(q.dlogits.view());
      EXPECT_EQ(bits_of(p.loss, p.dlogits), bits_of(q.loss, q.dlogits)) << static_cast<int>(type);
    }
}

TEST(grpo_loss_defects, luspo_means_what_its_reduction_says) {
  const auto loss = [](luspo_reduction how, bool masked, importance level, double beta) {
    problem<double> p(3, 4, 5, {.type = luspo, .level = level, .beta = beta, .luspo = how});
    if (!masked) p.in.mask.clear();
    run<exact>(p);
    return p.loss[0];
  };
  using enum luspo_reduction;
  for (const importance level : {importance::token, importance::sequence})
    for (const double beta : {0.0, 0.2}) {  // where every token counts, all three are the same
      EXPECT_NEAR(loss(tokens, false, level, beta), loss(sequences, false, level, beta), 1e-14);
      EXPECT_NEAR(loss(padded, false, level, beta), loss(sequences, false, level, beta), 1e-14);
    }
  EXPECT_EQ(loss(padded, true, importance::sequence, 0), loss(sequences, true, importance::sequence, 0));
  EXPECT_GT(std::abs(loss(padded, true, importance::token, 0) - loss(tokens, true, importance::token, 0)), 1e-3);
}

TEST(grpo_loss_defects, upstream_gradients_of_masked_tokens_do_not_count) {
  options opt{.level = importance::sequence, .reduce = false};
  problem<double> p(3, 4, 5, opt), q(3, 4, 5, opt);
  for (std::size_t i = 0; i < 12; ++i) p.upstream[i] = 1, q.upstream[i] = q.in.mask[i] != 0 ? 1 : 1e6;
  run<exact>(p), run<exact>(q);
  EXPECT_EQ(bits_of(p.dlogits), bits_of(q.dlogits));
  p.expect_gradient();  // that of an unmasked sum of the results
}

TEST(grpo_loss_defects, vespo_counts_the_ratio_of_a_sequence_once) {
  const double each = 0.7;
  problem<double> p(1, 4, 5, {.type = vespo, .beta = 0}, omega::sequence), q(1, 4, 5, p.opt, omega::token);
  p.in.mask.clear(), q.in.mask.clear();
  p.in.sampling_ratio = {std::pow(each, 4)}, q.in.sampling_ratio.assign(4, each);
  p.fill(), q.fill();
  run<exact>(p), run<exact>(q);
  EXPECT_NEAR(p.loss[0], q.loss[0], 1e-13 * std::abs(q.loss[0]));
  p.expect_loss();
}

TEST(grpo_loss_defects, the_normaliser_is_an_argument) {
  // Two calls on half a batch each, with the number of tokens of the whole batch, add up to one call.
  for (const policy_loss type : {dapo, cispo, vespo}) {
    problem<double> whole(4, 3, 5, {.type = type});
    run<exact>(whole);
    whole.expect_loss();
    double sum = 0;
    options opt = whole.opt;
    opt.denominator = static_cast<double>(std::ranges::count(whole.in.mask, 1));
    const auto all = whole.given();
    for (const std::size_t b : {0u, 2u}) {
      auto half = all;
      half.ids = matrix_view(whole.ids.data() + b * 3, 2, 3), half.mask = matrix_view(whole.mask.data() + b * 3, 2, 3);
      half.advantages = all.advantages.subspan(b, 2);
      half.old_logp = all.old_logp.rows_from(b, 2), half.ref_logp = all.ref_logp.rows_from(b, 2);
      double part = 0;
      tigon::grpo_loss_forward<exact>(whole.logits.view().rows_from(b * 4, 8), half, {&part, 1}, {}, opt);
      sum += part;
    }
    EXPECT_NEAR(sum, whole.loss[0], 1e-14 * (1 + std::abs(sum)));
  }
}

TEST(grpo_loss_defects, dr_grpo_divides_by_the_length_or_by_what_is_given) {
  for (const double length : {0.0, 16.0}) {
    problem<double> p(3, 4, 5, {.type = dr_grpo, .max_length = length});
    run<exact>(p);
    p.expect_loss();
  }
}

// Small and large numbers.

TEST(grpo_loss_numbers, small_divergences_are_exact) {
  for (const double d : {1e-1, 1e-3, 1e-4, 1e-6, -1e-4, 0.25, -0.2499, -3.0}) {
    long double want = 0, power = 1;
    for (int k = 1; k < 40; ++k) {
      power *= static_cast<long double>(d) / k;
      if (k > 1) want += power;
    }
    EXPECT_NEAR(tigon::detail::phi(d) / static_cast<double>(want), 1, 1e-14) << d;
  }
  // In f32: exp(d) - 1 - d is 0 or wrong for these.
  problem<float> p(1, 1, 9, {.type = grpo, .reduce = false, .beta = 1});
  p.upstream[0] = 1;
  p.in.mask.clear();
  p.in.advantages = {0.0};
  p.fill();
  p.forward<usual_backend>();
  const double logp = p.saved[0].log_p(p.logits(0, static_cast<std::size_t>(p.ids[0])), 1);
  p.ref_logp[0] = static_cast<float>(logp + 3e-4);
  p.forward<usual_backend>();
  const double d = static_cast<double>(p.ref_logp[0]) - logp;
  EXPECT_NEAR(to_f64(p.kl[0]) / (d * d / 2 * (1 + d / 3)), 1, 1e-6);
}

TEST(grpo_loss_numbers, a_ratio_that_overflows) {
  for (const double rho_log : {800.0, -800.0})
    for (const double a : {1.0, 0.0, -1.0})
      for (const policy_loss type : {grpo, cispo, sapo, vespo}) {
        options opt{.type = type, .beta = 0, .epsilon_high = 0.4};
        problem<double> p(1, 1, 5, opt);
        p.in.mask.clear(), p.in.ref_logp.clear();
        p.in.old_logp[0] -= rho_log, p.in.advantages = {a};
        p.fill();
        run<exact>(p);
        const bool infinite = type == grpo && rho_log > 0 && a < 0;
        EXPECT_EQ(p.loss[0] == infinity, infinite);
        EXPECT_FALSE(std::isnan(p.loss[0]));
        const bool clipped = rho_log > 0 && a > 0;
        for (const double g : p.dlogits.f64()) {
          EXPECT_TRUE(infinite || std::isfinite(g)) << static_cast<int>(type);
          EXPECT_TRUE(type != grpo || !(clipped || a == 0) || g == 0) << g;
        }
        EXPECT_TRUE(type != grpo || !clipped || p.loss[0] == -1.4) << p.loss[0];
        opt.max_log_ratio = 20;
        p.opt = opt;
        run<exact>(p);
        EXPECT_TRUE(std::isfinite(p.loss[0]));
      }
}

TEST(grpo_loss_numbers, an_id_of_no_probability) {
  for (const policy_loss type : {dapo, cispo, vespo})
    for (const double a : {1.0, 0.0}) {
      problem<double> p(1, 1, 5, {.type = type, .beta = 0});
      p.in.mask.clear(), p.in.ref_logp.clear();
      p.in.advantages = {a};
      p.fill();
      p.logits(0, static_cast<std::size_t>(p.ids[0])) = -infinity;
      run<exact>(p);
      EXPECT_FALSE(std::isnan(p.loss[0])) << static_cast<int>(type);
      EXPECT_TRUE(a != 0 || p.loss[0] == 0);
      for (const double g : p.dlogits.f64()) EXPECT_TRUE(std::isfinite(g)) << static_cast<int>(type);
    }
}

TEST(grpo_loss_numbers, bad_tokens_stay_alone) {
  for (const policy_loss type : every_type)
    for (const auto& [what, at_once] : {std::pair{0, false}, {0, true}, {1, false}, {1, true}}) {
      problem<double> clean(2, 4, 5, {.type = type, .reduce = false}), p(2, 4, 5, clean.opt);
      clean.in.mask.clear(), p.in.mask.clear();
      if (what == 0)
        p.logits(1, 2) = nan;
      else
        p.ref_logp[1] = nan;
      for (problem<double>* each : {&clean, &p}) {
        if (at_once)
          each->at_once<exact>(each->dlogits.view());
        else
          run<exact>(*each);
      }
      for (std::size_t i = 0; i < 8; ++i) {
        if ((type == vespo || type == gmpo) && i != 1 && i < 4) continue;  // one weight or ratio of the sequence
        const auto as_wanted = [&](double got, double of_clean) { return i == 1 ? std::isnan(got) : got == of_clean; };
        EXPECT_TRUE(as_wanted(p.loss[i], clean.loss[i])) << static_cast<int>(type);
        for (std::size_t j = 0; j < 5; ++j)
          EXPECT_TRUE(as_wanted(p.dlogits(i + i / 4, j), clean.dlogits(i + i / 4, j))) << static_cast<int>(type);
      }
    }
}

TEST(grpo_loss_numbers, nothing_counts) {
  for (const policy_loss type : every_type)
    for (const auto& [batch, len] : {std::pair{3u, 4u}, {0u, 4u}, {3u, 0u}}) {
      problem<float> p(batch, len, 5, {.type = type});
      std::ranges::fill(p.in.mask, 0);
      p.fill();
      if (p.in.ref_logp.empty()) p.opt.beta = 0, p.kl[0] = 0;
      run<usual_backend>(p);
      for (const auto& zeros : {p.loss.f64(), p.kl.f64(), p.clipped.f64(), p.dlogits.f64()})
        EXPECT_EQ(std::ranges::count(zeros, 0.0), std::ssize(zeros)) << static_cast<int>(type);
    }
}

TEST(grpo_loss_numbers, one_class_and_a_wide_vocabulary) {
  problem<float> one(2, 3, 1, {});
  one.in.old_logp.assign(6, -0.1), one.in.ref_logp.assign(6, 0.2);
  one.fill();
  run<usual_backend>(one);
  one.expect_loss();
  for (const double g : one.dlogits.f64()) EXPECT_EQ(g, 0);
  problem<float> wide(2, 1, 256000, {});
  run<usual_backend>(wide);
  wide.expect_loss();
}

// The row programs, on several engines and types, against f64.

template <class On>
class grpo_loss : public testing::Test {};
#if defined(TIGON_CONFORMANCE_BACKEND)
using pairs = testing::Types<on<usual_backend, float>, on<usual_backend, bfloat16>>;
#else
using pairs =
    with_engines<list<on<usual_backend, float>, on<usual_backend, bfloat16>>, on<tigon::backends::xsimd, float>>;
#endif
TYPED_TEST_SUITE(grpo_loss, pairs, names);

TYPED_TEST(grpo_loss, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const policy_loss type : every_type)
    for (const importance level : {importance::token, importance::sequence})
      for (const std::size_t vocab : {std::size_t{7}, lanes<B, T> + 1, std::size_t{1000}})
        for (const bool reduce : {true, false}) {
          if (by_token_only(type) && level == importance::sequence) continue;
          SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type) << ", level " << static_cast<int>(level)
                                          << ", vocab " << vocab << (reduce ? "" : ", of tokens"));
          options opt{.type = type, .level = level, .reduce = reduce, .temperature = 0.9, .epsilon_high = 0.4};
          problem<T> p(5, 7, vocab, opt, omega::token, 2);
          problem<double> q(5, 7, vocab, opt, omega::token, 2);
          q.logits.assign(p.logits.f64());
          q.in = p.in;
          q.fill();
          q.upstream.assign(p.upstream.f64());
          run<B>(p);
          run<exact>(q);
          p.expect_loss();
          EXPECT_TRUE(close(p.dlogits.f64(), q.dlogits.f64(), gradient_bound.of<T>()));
          EXPECT_TRUE(p.dlogits.padding_intact());
          p.dlogits.clear(), p.loss.clear(), p.kl.clear();
          p.template at_once<B>(p.dlogits.view());
          p.expect_loss();
          EXPECT_TRUE(close(p.dlogits.f64(), q.dlogits.f64(), gradient_bound.of<T>()));
          EXPECT_TRUE(p.dlogits.padding_intact());
          p.template at_once<B>(p.logits.view());
          EXPECT_EQ(p.logits.f64(), p.dlogits.f64());
        }
}

TYPED_TEST(grpo_loss, gradient_may_overwrite_the_logits_and_be_asked_for_again) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p(3, 4, 37, {}, omega::token);
  run<B>(p);
  const auto once = bits_of(p.dlogits);
  p.upstream[0] = 2;
  p.template backward<B>(p.dlogits.view());
  p.upstream[0] = 1;
  p.template backward<B>(p.dlogits.view());
  EXPECT_EQ(bits_of(p.dlogits), once);
  p.template backward<B>(p.logits.view());
  EXPECT_EQ(p.logits.f64(), p.dlogits.f64());
}

TYPED_TEST(grpo_loss, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const importance level : {importance::token, importance::sequence}) {
    problem<T> p(7, 5, 5003, {.level = level});
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      p.loss.clear(), p.kl.clear(), p.clipped.clear(), p.dlogits.clear();
      p.template forward<B>(ctx);
      p.template backward<B>(p.dlogits.view(), ctx);
      const auto apart = bits_of(p.loss, p.kl, p.clipped, p.dlogits);
      p.dlogits.clear();
      p.template at_once<B>(p.dlogits.view(), ctx);
      auto both = bits_of(p.loss, p.kl, p.clipped, p.dlogits);
      both.insert(both.end(), apart.begin(), apart.end());
      return both;
    }));
  }
}

TYPED_TEST(grpo_loss, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p(3, 4, 37, {});
  const std::size_t bytes = tigon::grpo_loss_workspace<B, T>(15, 3);
  const auto forward = [&](context& ctx) {
    tigon::grpo_loss_forward<B>(p.logits.view(), p.given(), p.loss, {}, p.opt, {}, ctx);
    EXPECT_LE(ctx.workspace().high_water(), bytes);
    EXPECT_GE(ctx.workspace().high_water() * 10, bytes * 9);
  };
  const auto backward = [&](context& ctx) { p.template backward<B>(p.dlogits.view(), ctx); };
  EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, forward), workspace, "grpo_loss_forward: workspace is of", p.loss);
  EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, backward), workspace, "grpo_loss_backward: workspace is of",
                     p.dlogits);
  with_workspace_of(bytes, forward);
  run<B>(p);
  with_workspace_of(bytes, backward);
  for (const importance level : {importance::token, importance::sequence})
    with_workspace_of(64, [&](context& of_size) {
      problem<T> q(3, 4, 37, {.level = level});
      const std::size_t all = tigon::grpo_loss_forward_backward_workspace<B, T>(15, 3, 37, of_size);
      const auto at_once = [&](context& ctx) { q.template at_once<B>(q.dlogits.view(), ctx); };
      EXPECT_TIGON_ERROR(with_workspace_of(all - 1, at_once), workspace, "grpo_loss_forward_backward: workspace is of",
                         q.loss, q.dlogits);
      with_workspace_of(all, at_once);
    });
}

/// The doors, which are the same for every backend: refused before the first write.
struct arguments {
  problem<float> p{2, 3, 6, {}, omega::token};
  tigon::policy_batch<float> in = p.given();
  matrix_view<float> z = p.logits.view(), dz = p.dlogits.view();
  std::span<float> loss = p.loss, kl = p.kl, clipped = p.clipped;
  std::span<const float> upstream = p.upstream;
  options& opt = p.opt;
  std::vector<float> two{1, 1};
};

enum class door { both, forward, backward };
void refused(door which, tigon::error_code code, const std::string& part, void (*change)(arguments&)) {
  arguments a;
  change(a);
  const auto forward = [&] {
    tigon::grpo_loss_forward<usual_backend>(a.z, a.in, a.loss, a.p.saved, a.opt, {a.kl, a.clipped});
  };
  const auto backward = [&] {
    tigon::grpo_loss_backward<usual_backend>(a.z, a.in, a.p.saved, a.upstream, a.dz, a.opt);
  };
  if (which != door::backward) {
    EXPECT_TRUE(refuses(forward, code, "grpo_loss_forward: " + part, a.p.loss, a.p.kl, a.p.clipped, a.p.saved));
  }
  EXPECT_TRUE(refuses(
      [&] {
        tigon::grpo_loss_forward_backward<usual_backend>(a.z, a.in, a.loss, a.dz, a.opt, {a.kl, a.clipped}, a.upstream);
      },
      code, "grpo_loss_forward_backward: " + part, a.p.loss, a.p.kl, a.p.clipped, a.p.dlogits));
  if (which != door::forward) {
    EXPECT_TRUE(refuses(backward, code, "grpo_loss_backward: " + part, a.p.dlogits));
  }
}

TEST(grpo_loss_doors, refuse_wrong_shapes_and_overlaps) {
  using enum tigon::error_code;
  const auto both = door::both, forward = door::forward, backward = door::backward;
  refused(both, shape, "logits is of 7 rows; expected 6 or 8", [](arguments& a) { a.z.rows = 7; });
  refused(both, shape, "vocab is 0", [](arguments& a) { a.z.cols = 0; });
  refused(both, shape, "advantages is of 1", [](arguments& a) { a.in.advantages = a.in.advantages.first(1); });
  refused(both, shape, "old_logp is 2 x 2; expected 2 x 3", [](arguments& a) { a.in.old_logp.cols = 2; });
  refused(both, shape, "ref_logp is 1 x 3; expected 2 x 3", [](arguments& a) { a.in.ref_logp.rows = 1; });
  refused(both, shape, "sampling_ratio is 2 x 2; expected 2 x 3", [](arguments& a) { a.in.sampling_ratio.cols = 2; });
  refused(both, shape, "mask is 2 x 2; expected 2 x 3", [](arguments& a) { a.in.mask.cols = 2; });
  refused(forward, shape, "loss is of 1 elements; expected 6", [](arguments& a) { a.opt.reduce = false; });
  refused(forward, argument, "kl is asked for; expected a reference",
          [](arguments& a) { a.in.ref_logp = {}, a.opt.beta = 0; });
  refused(forward, alias, "clipped overlaps loss", [](arguments& a) { a.clipped = a.loss; });
  refused(forward, alias, "kl overlaps loss", [](arguments& a) { a.kl = a.loss; });
  refused(forward, alias, "loss overlaps advantages",
          [](arguments& a) { a.in.advantages = a.two, a.loss = std::span(a.two).first(1); });
  refused(forward, alias, "loss overlaps logits", [](arguments& a) { a.loss = {a.z.data, 1}; });
  refused(backward, shape, "dlogits is 8 x 5; expected 8 x 6", [](arguments& a) { a.dz.cols = 5; });
  refused(backward, shape, "upstream is of 2 elements; expected 1", [](arguments& a) { a.upstream = a.two; });
  refused(backward, alias, "dlogits overlaps logits", [](arguments& a) { a.dz = a.z, a.dz.data += 1; });
  refused(backward, alias, "dlogits overlaps upstream", [](arguments& a) { a.upstream = {a.dz.data, 1}; });
}

TEST(grpo_loss_doors, refuse_results_in_the_upstream_gradient) {
  const auto refuse = [](const char* part, std::span<float> arguments::*result) {
    arguments a;
    const std::vector<float> before(1, 2);
    std::vector<float> shared = before;
    a.upstream = a.*result = shared;
    EXPECT_TRUE(refuses(
        [&] {
          tigon::grpo_loss_forward_backward<usual_backend>(a.z, a.in, a.loss, a.dz, a.opt, {a.kl, a.clipped},
                                                           a.upstream);
        },
        tigon::error_code::alias, std::string("grpo_loss_forward_backward: ") + part, a.p.loss, a.p.kl, a.p.clipped,
        a.p.dlogits));
    EXPECT_EQ(shared, before);
  };
  refuse("loss overlaps upstream", &arguments::loss);
  refuse("kl overlaps upstream", &arguments::kl);
  refuse("clipped overlaps upstream", &arguments::clipped);
}

TEST(grpo_loss_doors, refuse_wrong_numbers) {
  using enum tigon::error_code;
  const auto both = door::both;
  refused(both, argument, "temperature is 0", [](arguments& a) { a.opt.temperature = 0; });
  refused(both, argument, "temperature is nan", [](arguments& a) { a.opt.temperature = nan; });
  refused(both, argument, "epsilon_low is -0.1", [](arguments& a) { a.opt.epsilon_low = -0.1; });
  refused(both, argument, "epsilon_high is nan", [](arguments& a) { a.opt.epsilon_high = nan; });
  refused(both, argument, "delta is -1", [](arguments& a) { a.opt.delta = -1; });
  refused(both, argument, "tau is 0", [](arguments& a) { a.opt.tau_negative = 0; });
  refused(both, argument, "beta is inf", [](arguments& a) { a.opt.beta = infinity; });
  refused(both, argument, "denominator is -1", [](arguments& a) { a.opt.denominator = -1; });
  refused(both, argument, "max_length is nan", [](arguments& a) { a.opt.max_length = nan; });
  refused(both, argument, "lambda_positive is nan", [](arguments& a) { a.opt.lambda_positive = nan; });
  refused(both, argument, "beta is 0.04; expected 0 where there is no reference",
          [](arguments& a) { a.in.ref_logp = {}, a.kl = {}; });
  refused(both, argument, "advantages[1] is nan; expected a finite number",
          [](arguments& a) { a.p.advantages[1] = static_cast<float>(nan); });
  refused(both, index, "ids[0, 2] is 6; expected at least 0 and below 6", [](arguments& a) { a.p.ids[2] = 6; });
  refused(both, index, "ids[0, 0] is -1; expected", [](arguments& a) { a.p.ids[0] = -1; });
  refused(both, index, "mask[1, 2] is 3; expected 0 or 1", [](arguments& a) { a.p.mask[5] = 3; });
}

TEST(grpo_loss_doors, refuse_what_a_loss_does_not_have) {
  using enum tigon::error_code;
  refused(door::both, argument, "level is sequence; expected token for cispo, sapo, vespo and gmpo",
          [](arguments& a) { a.opt.type = cispo, a.opt.level = importance::sequence; });
  refused(door::both, argument, "level is sequence",
          [](arguments& a) { a.opt.type = vespo, a.opt.level = importance::sequence; });
  refused(door::both, argument, "delta is 1.5; expected 0 for cispo, sapo, vespo and gmpo",
          [](arguments& a) { a.opt.type = sapo, a.opt.delta = 1.5; });
  refused(door::both, argument, "delta is 1.5", [](arguments& a) { a.opt.type = vespo, a.opt.delta = 1.5; });
}

// A loss of the user's own.

/// grpo's loss with bounds 0.8 and 1.4.
tigon::policy_value clipped_ratio(const tigon::policy_token& t) {
  const double rho = std::exp(t.log_ratio), inside = std::clamp(rho, 0.8, 1.4), a = t.advantage;
  const bool moves = rho * a <= inside * a || inside == rho;
  return {.loss = -std::min(rho * a, inside * a),
          .dlog_ratio = moves ? -rho * a : 0,
          .clipped = (rho < 0.8 && a < 0) || (rho > 1.4 && a > 0)};
}

TEST(grpo_loss_own, is_a_loss_among_the_others) {
  for (const importance level : {importance::token, importance::sequence})
    for (const bool reduce : {true, false})
      for (const omega ratio : {omega::none, omega::token}) {
        options opt{.type = dapo, .level = level, .reduce = reduce, .beta = 0.3, .epsilon_high = 0.4};
        opt.bias_corrected_kl = true;
        problem<double> p(4, 3, 5, opt, ratio), q(4, 3, 5, opt, ratio);
        std::ranges::fill(p.upstream, 1);
        p.at_once<exact>(p.dlogits.view());
        q.opt.type = own;
        tigon::grpo_loss_forward_backward<exact>(q.logits, q.given(), clipped_ratio, {q.loss, {q.kl, q.clipped}},
                                                 q.dlogits.view(), q.opt);
        EXPECT_EQ(bits_of(q.loss, q.kl, q.clipped, q.dlogits), bits_of(p.loss, p.kl, p.clipped, p.dlogits));
      }
}

TEST(grpo_loss_own, may_depend_on_logp_the_reference_and_the_place) {
  const auto f = [](const tigon::policy_token& t) -> tigon::policy_value {
    const double own = 1 + 0.5 * static_cast<double>(t.sequence) + 0.1 * static_cast<double>(t.position);
    return {.loss = -t.advantage * own * t.logp / t.tokens + t.ref_ratio * t.ref_ratio,
            .dlogp = -t.advantage * own / t.tokens + 2 * t.ref_ratio};
  };
  problem<double> p(4, 3, 5, {.type = own, .temperature = 0.8, .beta = 0, .denominator = 7});
  tigon::grpo_loss_forward_backward<exact>(p.logits, p.given(), f, {p.loss}, p.dlogits.view(), p.opt);
  const auto wanted = [&](const std::vector<double>& z) {
    const std::vector<double> logp = p.log_probabilities(z, p.in.ids);
    double sum = 0;
    for (std::size_t b = 0; b < 4; ++b) {
      const double n = static_cast<double>(std::accumulate(&p.in.mask[3 * b], &p.in.mask[3 * b] + 3, std::int64_t{0}));
      for (std::size_t t = 0; t < 3; ++t) {
        const std::size_t i = 3 * b + t;
        if (p.in.mask[i] == 0) continue;
        const double weight = 1 + 0.5 * static_cast<double>(b) + 0.1 * static_cast<double>(t);
        sum += -p.in.advantages[b] * weight * logp[i] / n + std::pow(logp[i] - p.in.ref_logp[i], 2);
      }
    }
    return sum / 7;
  };
  const auto z = p.logits.f64();
  const auto at = probes(z.size(), 80);
  EXPECT_NEAR(p.loss[0], wanted(z), 1e-13);
  EXPECT_TRUE(close(pick(p.dlogits.f64(), at), central_difference(wanted, z, at), 1e-8, {.scale = 1e-3}));
}

TEST(grpo_loss_own, needs_a_function) {
  arguments a;
  a.opt.type = own;
  EXPECT_TRUE(refuses([&] { tigon::grpo_loss_forward<usual_backend>(a.z, a.in, a.loss, a.p.saved, a.opt); },
                      tigon::error_code::argument, "grpo_loss_forward: type is own; expected own with a function alone",
                      a.p.loss, a.p.saved));
  a.opt.type = dapo;
  EXPECT_TRUE(refuses(
      [&] { tigon::grpo_loss_forward_backward<usual_backend>(a.z, a.in, clipped_ratio, {a.loss}, a.dz, a.opt); },
      tigon::error_code::argument, "grpo_loss_forward_backward: type is another one; expected own, for a function",
      a.p.loss, a.p.dlogits));
}

}  // namespace
