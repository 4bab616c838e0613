// As ops/equivariance_test.cpp, of losses whose rows or sequences are independent: support/equivariance.hpp says what
// holds. Means divide by the rows that count, in any order; what is summed over rows is not compared.
// Operators: several
#include <gtest/gtest.h>

#include <tigon/losses/cross_entropy_divergence.hpp>
#include <tigon/losses/grpo_loss.hpp>
#include <tigon/losses/jsd.hpp>
#include <tigon/losses/selective_log_softmax.hpp>
#include <tigon/losses/tvd.hpp>

#include "support/equivariance.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::matrix_view;
using B = usual_backend;

template <class On>
class equivariance_of_losses : public testing::Test {};
TYPED_TEST_SUITE(equivariance_of_losses, usual_pairs, names);

TYPED_TEST(equivariance_of_losses, of_divergences) {
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  for (const double beta : {0.0, 0.25, 1.0})
    expect_equivariant<T>([=](auto& call) {
      const auto student = call.in(), teacher = call.in(), saved = call.out(), dstudent = call.gradient();
      const A upstream[] = {call.factor()};
      A loss[1];
      tigon::jsd_forward<B, T>(student, teacher, loss, saved, {.beta = beta});
      tigon::jsd_backward<B, T>(saved, upstream, dstudent);
    });
  expect_equivariant<T>([](auto& call) {
    const auto student = call.in(), teacher = call.in(), dstudent = call.gradient(), dteacher = call.gradient();
    const auto loss = call.template out<A>(), upstream = call.template upstream<A>();
    const tigon::tvd_options opt{.reduction = tigon::divergence_reduction::none};
    tigon::tvd_forward<B, T>(student, teacher, loss, matrix_view<T>{}, opt);
    tigon::tvd_backward<B, T>(student, teacher, upstream, dstudent, opt);
    tigon::tvd_teacher_backward<B, T>(student, teacher, upstream, dteacher, opt);
  });
  for (const bool jsd : {false, true})
    expect_equivariant<T>([=](auto& call) {
      const auto logits = call.in(), teacher = call.in(), dlogits = call.gradient();
      const auto target = call.labels();
      const auto loss = call.numbers(), ce = call.numbers(), divergence = call.numbers();
      const double upstream = static_cast<double>(call.factor());
      const tigon::cross_entropy_divergence_options opt{.reduction = tigon::reduction::none, .upstream = upstream};
      if (jsd)
        tigon::cross_entropy_jsd_forward<B, T>(logits, target, teacher, {loss, ce, divergence}, dlogits, opt);
      else
        tigon::cross_entropy_tvd_forward<B, T>(logits, target, teacher, {loss, ce, divergence}, dlogits, opt);
    });
}

TYPED_TEST(equivariance_of_losses, of_policies) {
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  constexpr std::size_t tokens = 3;
  const auto logits_of = [](auto m) { return matrix_view<T>(m.data, rows * tokens, cols); };
  expect_equivariant<T>([=](auto& call) {
    const auto logits = logits_of(call.in(tokens * cols)), dlogits = logits_of(call.gradient(tokens * cols));
    const auto logp = call.template out<A>(tokens), dlogp = call.template upstream<A>(tokens);
    const auto labels = call.labels(tokens);
    const matrix_view<const std::int32_t> ids(labels.data(), rows, tokens);
    std::vector<tigon::lse_parts<A>> saved(rows * tokens);
    tigon::selective_log_softmax_forward<B, T>(logits, ids, logp, {}, tigon::absent, saved);
    tigon::selective_log_softmax_backward<B, T>(logits, ids, saved, dlogp, dlogits);
  });
  for (const auto level : {tigon::importance::token, tigon::importance::sequence})
    expect_equivariant<T>([=](auto& call) {
      const auto logits = logits_of(call.in(tokens * cols)), dlogits = logits_of(call.gradient(tokens * cols));
      const auto labels = call.labels(tokens);
      const matrix_view<const std::int32_t> ids(labels.data(), rows, tokens);
      const auto advantages = call.template in<A>(1), old = call.template in<A>(tokens);
      const auto upstream = call.template upstream<A>(tokens);
      const auto loss = call.numbers(tokens), kl = call.numbers(tokens), clipped = call.numbers(tokens);
      const tigon::policy_batch<A> batch{
          .ids = ids, .advantages = std::span(advantages.data, rows), .old_logp = old, .ref_logp = old};
      const tigon::policy_options opt{.level = level, .reduce = false};
      std::vector<tigon::lse_parts<A>> saved(rows * tokens);
      tigon::grpo_loss_forward<B, T>(logits, batch, loss, saved, opt, {kl, clipped});
      tigon::grpo_loss_backward<B, T>(logits, batch, saved, std::span(upstream.data, rows * tokens), dlogits, opt);
    });
}

}  // namespace
