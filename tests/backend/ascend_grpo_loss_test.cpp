// grpo_loss on ascend: what the parents give, through tiles.
#include <tigon/losses/grpo_loss.hpp>

#include "ascend_chips.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::context, tigon::default_context, tigon::policy_loss;

struct variant {
  const char* name;
  tigon::policy_options opt;
  bool at_once = false;
};
const variant variants[] = {{"dapo", {.temperature = 0.7}},
                            {"sequences", {.type = policy_loss::grpo, .level = tigon::importance::sequence}},
                            {"both ways in one call", {}, true}};

template <class T>
struct problem {
  using A = accumulator_t<T>;
  static constexpr std::size_t batch = 3;
  variant v;
  std::size_t len;
  guarded_matrix<T> logits, dlogits;
  guarded_matrix<std::int64_t> ids, mask;
  guarded_matrix<A> old_logp, ref_logp;
  guarded<A> advantages, loss, kl, clipped;
  std::vector<tigon::lse_parts<A>> saved;

  TIGON_TEST_NOINLINE explicit problem(std::size_t tokens, std::size_t vocab, variant of = variants[0],
                                       std::size_t padding = 0)
      : v(of),
        len(tokens),
        logits(random_matrix<T>({batch * len, vocab, padding}, 1, guard::behind, {.deviation = 2})),
        dlogits(batch * len, vocab, padding),
        ids(batch, len),
        mask(batch, len),
        old_logp(random_matrix<A>({batch, len}, 3, guard::behind, {.mean = -3})),
        ref_logp(random_matrix<A>({batch, len}, 4, guard::behind, {.mean = -3})),
        advantages(random_vector<A>(batch, 5)),
        loss(1),
        kl(1),
        clipped(1),
        saved(batch * len) {
    for (std::size_t i = 0; i < batch * len; ++i) {
      ids(i / len, i % len) = static_cast<std::int64_t>(i * 7919 % vocab);
      mask(i / len, i % len) = i % 5 != 3;
    }
  }
  template <class B>
  TIGON_TEST_NOINLINE void run(context& ctx = default_context()) {
    const tigon::policy_batch<A> of{
        .ids = ids.view(), .advantages = advantages, .old_logp = old_logp, .ref_logp = ref_logp, .mask = mask.view()};
    if (v.at_once)
      return tigon::grpo_loss_forward_backward<B>(logits, of, loss, dlogits.view(), v.opt, {kl, clipped}, {}, ctx);
    tigon::grpo_loss_forward<B>(logits.view(), of, loss, saved, v.opt, {kl, clipped}, ctx);
    tigon::grpo_loss_backward<B>(logits, of, saved, {}, dlogits.view(), v.opt, ctx);
  }
};

template <class P>
struct ascend_grpo_loss : testing::Test {};
TYPED_TEST_SUITE(ascend_grpo_loss, chip_pairs, names);

// In units of what f32 holds of log-probabilities, as the contract has it.
constexpr by_type bound{.f32 = 1e-5, .bf16 = 7.9e-3, .f16 = 9.8e-4, .f64 = 2e-14};

TYPED_TEST(ascend_grpo_loss, agrees_with_its_parents) {
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  const audited ledger;
  struct {
    std::size_t len, vocab, padding;
  } const sizes[] = {{1, 1, 0}, {4, 37, 3}, {9, 1000, 0}, {3, 4097, 1}, {2, 20001, 0}};
  for (const auto& s : sizes)
    for (const variant& v : variants) {
      SCOPED_TRACE(testing::Message() << s.len << " tokens of " << s.vocab << ", " << v.name);
      problem<T> p(s.len, s.vocab, v, s.padding), q(s.len, s.vocab, v, s.padding);
      p.template run<typename TypeParam::backend>();
      q.template run<usual_backend>();
      EXPECT_TRUE(close(p.loss.f64(), q.loss.f64(), bound.of<A>(), {.scale = 1}));
      EXPECT_TRUE(close(p.kl.f64(), q.kl.f64(), bound.of<A>(), {.scale = 1}));
      EXPECT_EQ(p.clipped.f64(), q.clipped.f64());
      EXPECT_TRUE(close(p.dlogits.f64(), q.dlogits.f64(), bound.of<T>()));
      EXPECT_TRUE(p.dlogits.padding_intact());
    }
}

TYPED_TEST(ascend_grpo_loss, gives_the_same_bits_for_any_threads) {
  for (const variant& v : variants)
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      problem<typename TypeParam::element> p(9, 4500, v);
      p.template run<typename TypeParam::backend>(ctx);
      return bits_of(p.loss, p.dlogits);
    }));
}

// Of a block the logits come in for its maximum and stay for its exponentials, which go out. Backward reads them once.
TEST(ascend_grpo_loss_copies, are_the_logits_and_their_gradient) {
  problem<float> p(8, 9000);
  const std::size_t kept = 19, n = 9000 * sizeof(float);  // tokens of 24 that are not masked
  std::size_t unmasked = 0;
  for (std::size_t i = 0; i < 24; ++i) unmasked += p.mask(i / 8, i % 8) != 0;
  ASSERT_EQ(unmasked, kept);
  const tigon::policy_batch<float> of{.ids = p.ids.view(),
                                      .advantages = p.advantages,
                                      .old_logp = p.old_logp,
                                      .ref_logp = p.ref_logp,
                                      .mask = p.mask.view()};
  {
    const audited ledger;
    tigon::grpo_loss_forward<usual_chip>(p.logits.view(), of, p.loss, p.saved);
    EXPECT_EQ(counting_ledger::total.programs, 20u);
    EXPECT_EQ(counting_ledger::total.copied_in, kept * n);
    EXPECT_EQ(counting_ledger::total.copied_out, kept * n);
  }
  const audited ledger;
  tigon::grpo_loss_backward<usual_chip>(p.logits, of, p.saved, {}, p.dlogits.view());
  EXPECT_EQ(counting_ledger::total.copied_in, kept * n);
  EXPECT_EQ(counting_ledger::total.copied_out, 24 * n);
}

}  // namespace
