// The two models of the training example: one differentiates the other's mathematics.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../../examples/train_llama/fused_model.hpp"
#include "../../examples/train_llama/parameters.hpp"
#include "../../examples/train_llama/plain_model.hpp"
#include "../../examples/train_llama/rng.hpp"

namespace {

using namespace example;

constexpr model_config dense{50, 2, 24, 40, 6, 2};
constexpr std::size_t seq_len = 16, batch = 3;

/// The same with experts; with such a weight of the balance loss its gradient counts.
constexpr model_config mixture(std::size_t experts, std::size_t top_k) {
  model_config c = dense;
  c.experts = experts, c.top_k = top_k, c.balance = 0.5f;
  return c;
}

struct problem {
  model_config config;
  parameter_layout layout;
  std::vector<float> master;
  std::vector<tigon::bfloat16> rounded;
  std::vector<std::int32_t> ids, targets;

  explicit problem(model_config c = dense) : config(c), layout(c), master(initial_weights(layout, 3)) {
    rng draw(5);
    // Away from the beginning, where the norms' weights are all 1 and the scores almost 0.
    for (float& w : master) w += 0.15f * static_cast<float>(draw.normal());
    for (const float w : master) rounded.emplace_back(w);
    for (auto* list : {&ids, &targets})
      for (std::size_t i = 0; i < batch * seq_len; ++i) list->push_back(static_cast<std::int32_t>(draw.below(c.vocab)));
  }
  template <class T>
  weight_views<T> weights() const {
    if constexpr (std::same_as<T, float>)
      return {master, master};
    else
      return {rounded, master};
  }
};

struct result {
  double loss, again, balance;
  std::vector<float> gradient, logits;
};

/// Of the model's last step; what is between tensors is 0.
template <class Model>
std::vector<float> gradient_of(Model& model, const problem& p) {
  std::vector<float> all(p.layout.total);
  for (std::size_t i = 0; i < p.layout.tensors.size(); ++i)
    std::ranges::copy(p.layout.of(model.gradient(), i), p.layout.of(std::span(all), i).begin());
  return all;
}

template <template <class> class Model, class T>
result run(const problem& p, std::size_t threads = 2) {
  tigon::thread_pool pool(threads);
  tigon::workspace workspace;
  tigon::context ctx(pool, workspace);
  Model<T> model(p.config, p.layout, seq_len, batch, ctx);
  result r{0, 0, 0, {}, std::vector<float>(p.config.vocab)};
  r.loss = model.step(p.weights<T>(), p.ids, p.targets);
  r.gradient = gradient_of(model, p);
  r.balance = model.balance_loss();
  r.again = model.loss(p.weights<T>(), p.ids, p.targets);
  model.next_logits(p.weights<T>(), std::span(p.ids).first(seq_len), 4, r.logits);
  return r;
}

/// The largest over the parameter tensors of |a - b| / |b|.
double difference(const problem& p, const std::vector<float>& a, const std::vector<float>& b, std::string& worst) {
  double largest = 0;
  for (const auto& t : p.layout.tensors) {
    double apart = 0, norm = 0;
    for (std::size_t i = t.offset; i < t.offset + t.size(); ++i) {
      apart += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
      norm += std::pow(static_cast<double>(b[i]), 2);
    }
    EXPECT_GT(norm, 0) << t.name;
    const double relative = std::sqrt(apart / norm);
    if (!(relative <= largest)) largest = relative, worst = t.name;
  }
  return largest;
}

void expect_agreement_in_f32(const problem& p) {
  const result fused = run<fused_model, float>(p), plain = run<plain_model, float>(p);
  std::string worst;
  EXPECT_NEAR(fused.loss, plain.loss, 2e-6 * plain.loss);
  EXPECT_NEAR(fused.balance, plain.balance, 2e-6 * plain.balance);
  EXPECT_LT(difference(p, fused.gradient, plain.gradient, worst), 2e-5) << worst;
  for (std::size_t i = 0; i < p.config.vocab; ++i) EXPECT_NEAR(fused.logits[i], plain.logits[i], 2e-5);
}

/// Scores of tokens one after the other, of a cache and of none; then of another text, and of a window that has moved.
template <class T>
void expect_the_cache_changes_nothing(const problem& p, double bound) {
  tigon::context& ctx = tigon::default_context();
  fused_model<T> cached(p.config, p.layout, seq_len, batch, ctx), fresh(p.config, p.layout, seq_len, batch, ctx);
  std::vector<float> got(p.config.vocab), want(p.config.vocab);
  const auto compare = [&](std::span<const std::int32_t> window, std::size_t position) {
    cached.next_logits(p.weights<T>(), window, position, got);
    fresh.uncache();
    fresh.next_logits(p.weights<T>(), window, position, want);
    for (std::size_t i = 0; i < p.config.vocab; ++i)
      ASSERT_NEAR(got[i], want[i], bound) << "token " << i << " after " << position;
  };
  for (const std::size_t position : {0u, 1u, 2u, 5u, 6u, 15u, 15u}) compare(std::span(p.ids).first(seq_len), position);
  compare(std::span(p.ids).subspan(1, seq_len), 15);
  std::vector<std::int32_t> other(p.ids.begin() + 1, p.ids.begin() + 1 + seq_len);
  other[7] = (other[7] + 1) % 50;
  compare(other, 9);
  compare(other, 10);
}

TEST(model, a_cache_of_keys_and_values_changes_no_scores) {
  expect_the_cache_changes_nothing<float>(problem(), 2e-5);
  expect_the_cache_changes_nothing<float>(problem(mixture(5, 2)), 2e-5);
  expect_the_cache_changes_nothing<tigon::bfloat16>(problem(), 5e-2);
}

TEST(model, fused_and_plain_agree_in_f32) { expect_agreement_in_f32(problem()); }
TEST(model, fused_and_plain_mixtures_agree_in_f32) {
  expect_agreement_in_f32(problem(mixture(5, 2)));
  expect_agreement_in_f32(problem(mixture(2, 1)));
  expect_agreement_in_f32(problem(mixture(60, 2)));  // more than one of them without tokens
}

void expect_agreement_in_bf16(const problem& p) {
  const result fused = run<fused_model, tigon::bfloat16>(p), plain = run<plain_model, tigon::bfloat16>(p),
               exact = run<plain_model, float>(p);
  std::string worst;
  EXPECT_NEAR(fused.loss, plain.loss, 1e-2 * plain.loss);
  EXPECT_NEAR(fused.loss, exact.loss, 1e-2 * exact.loss);
  EXPECT_LT(difference(p, fused.gradient, exact.gradient, worst), 5e-2) << worst;
  EXPECT_LT(difference(p, plain.gradient, exact.gradient, worst), 5e-2) << worst;
}

TEST(model, fused_and_plain_agree_in_bf16) { expect_agreement_in_bf16(problem()); }
// All experts are chosen: where some are, a rounding may change the choice.
TEST(model, fused_and_plain_mixtures_agree_in_bf16) { expect_agreement_in_bf16(problem(mixture(3, 3))); }

void expect_slopes(problem p) {
  tigon::context& ctx = tigon::default_context();
  fused_model<float> model(p.config, p.layout, seq_len, batch, ctx);
  model.step(p.weights<float>(), p.ids, p.targets);
  const std::vector<float> gradient = gradient_of(model, p);
  rng draw(9);
  const std::vector<float> start = p.master;
  for (const auto& t : p.layout.tensors) {
    std::vector<double> way(t.size());
    double slope = 0, length = 0, steepest = 0;
    for (std::size_t i = 0; i < t.size(); ++i) {
      const double g = gradient[t.offset + i];
      way[i] = draw.normal() + (g > 0 ? 1 : -1);  // not across the gradient, where the slope would be all rounding
      slope += g * way[i];
      length += way[i] * way[i];
      steepest += g * g;
    }
    const double h = 3e-2 / std::sqrt(length);
    const auto at = [&](double steps) {
      for (std::size_t i = 0; i < t.size(); ++i)
        p.master[t.offset + i] = start[t.offset + i] + static_cast<float>(steps * h * way[i]);
      const double loss = model.loss(p.weights<float>(), p.ids, p.targets);
      return loss + model.balance_loss();
    };
    // Fourth order, because f32 leaves no room for a smaller step.
    const double measured = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * h);
    p.master = start;
    EXPECT_NEAR(measured, slope, 2e-3 * std::sqrt(steepest * length)) << t.name;
  }
}

TEST(model, gradient_is_the_slope_of_the_loss) { expect_slopes(problem()); }
// All experts are chosen, because the loss jumps where the choice changes; and the balance loss is then its weight,
// with no slope.
TEST(model, gradient_is_the_slope_of_the_loss_of_a_mixture) { expect_slopes(problem(mixture(3, 3))); }

// f is a count, which these logits leave as it is.
TEST(model, balance_gradient_is_the_slope_of_the_balance_loss) {
  constexpr std::size_t tokens = 7, experts = 4, top_k = 2;
  rng draw(11);
  std::vector<float> logits(tokens * experts), gradient(logits.size(), 1.0f);
  std::vector<std::int32_t> chosen(tokens * top_k);
  for (float& z : logits) z = static_cast<float>(2 * draw.normal());
  for (std::int32_t& e : chosen) e = static_cast<std::int32_t>(draw.below(3));
  // Two layers together: the first has four of the rows.
  const auto rows = [](auto& of, std::size_t begin, std::size_t count) {
    const std::size_t cols = of.size() / tokens;
    return tigon::matrix_view(of.data() + begin * cols, count, cols);
  };
  const auto at = [&] {
    router_balance out(experts);
    out.add(rows(logits, 0, 4), rows(chosen, 0, 4)), out.add(rows(logits, 4, 3), rows(chosen, 4, 3));
    return out;
  };
  at().add_gradient(0.25, rows(logits, 0, 4), rows(gradient, 0, 4));
  at().add_gradient(0.25, rows(logits, 4, 3), rows(gradient, 4, 3));
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float before = logits[i], h = 0x1p-7f;
    logits[i] = before + h;
    const double above = at().loss();
    logits[i] = before - h;
    const double below = at().loss();
    logits[i] = before;
    EXPECT_NEAR(static_cast<double>(gradient[i]), 1 + 0.25 * (above - below) / (2 * static_cast<double>(h)), 1e-5);
  }
  // Where all experts are chosen alike it is top_k; where one has all tokens and all of the scores, the number of
  // experts.
  for (std::size_t i = 0; i < chosen.size(); ++i) chosen[i] = static_cast<std::int32_t>(i % 4);
  router_balance even(4), uneven(4);
  even.add({std::vector<float>(6 * 4).data(), 6, 4}, {chosen.data(), 6, 2});
  EXPECT_NEAR(even.loss(), 2, 1e-12);
  const std::vector<float> one{50, 0, 0, 0};
  uneven.add({one.data(), 1, 4}, {std::vector<std::int32_t>(1).data(), 1, 1});
  EXPECT_NEAR(uneven.loss(), 4, 1e-12);
}

TEST(model, bits_do_not_depend_on_the_threads) {
  const auto check = [&]<template <class> class Model, class T>(const problem& p) {
    const result one = run<Model, T>(p, 1);
    EXPECT_NEAR(one.again, one.loss, 1e-6 * one.loss);
    for (const std::size_t threads : {2u, 3u, 7u}) {
      const result many = run<Model, T>(p, threads);
      EXPECT_EQ(many.loss, one.loss);
      EXPECT_EQ(many.gradient, one.gradient);
      EXPECT_EQ(many.logits, one.logits);
    }
  };
  for (const problem& p : {problem(), problem(mixture(5, 2))}) {
    check.template operator()<fused_model, float>(p);
    check.template operator()<fused_model, tigon::bfloat16>(p);
    check.template operator()<plain_model, float>(p);
    check.template operator()<plain_model, tigon::bfloat16>(p);
  }
}

TEST(model, what_follows_a_token_does_not_change_its_scores) {
  problem p;
  const result before = run<fused_model, float>(p);
  for (std::size_t i = 5; i < seq_len; ++i) p.ids[i] = (p.ids[i] + 1) % static_cast<std::int32_t>(p.config.vocab);
  const result later = run<fused_model, float>(p);
  EXPECT_EQ(later.logits, before.logits);
  p.ids[4] = (p.ids[4] + 1) % static_cast<std::int32_t>(p.config.vocab);
  const result itself = run<fused_model, float>(p);
  EXPECT_NE(itself.logits, before.logits);
}

}  // namespace
