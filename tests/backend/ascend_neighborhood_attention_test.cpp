// neighborhood_attention on ascend: its parents' kernel, with the chip's softmax inside; and the layer around it, which
// calls the chip's layer_norm.
#include <tigon/ops/neighborhood_attention.hpp>
#include <tigon/ops/neighborhood_attention_layer.hpp>

#include "ascend_chips.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;

template <class T>
struct problem {
  static constexpr std::size_t n = 2 * 150, d = 8, taps = 5;
  using A = tigon::accumulator_t<T>;
  guarded_matrix<T> q = random_matrix<T>({n, d}, 1), k = random_matrix<T>({n, d}, 2), v = random_matrix<T>({n, d}, 3),
                    d_o = random_matrix<T>({n, d}, 4), o{n, d}, dq{n, d}, dk{n, d}, dv{n, d};
  guarded_matrix<A> probs{n, taps};

  static tigon::heads_view<T> of(guarded_matrix<T>& m) {
    return tigon::heads_view<T>::of_heads(m.view().data, 1, 2, n / 2, d);
  }
  template <class B>
  TIGON_TEST_NOINLINE void run(tigon::context& ctx = tigon::default_context()) {
    const tigon::neighborhood_attention_options opt{.kernel_size = taps, .dilation = 2};
    tigon::neighborhood_attention_forward<B, T>(of(q), of(k), of(v), of(o), {probs.view(), {}}, opt, ctx);
    tigon::neighborhood_attention_backward<B, T>(of(d_o), of(q), of(k), of(v), {probs.view(), {}},
                                                 tigon::neighborhood_attention_gradients{of(dq), of(dk), of(dv)}, opt,
                                                 ctx);
  }
};

TEST(ascend_neighborhood_attention, runs_the_softmax_of_the_chip_and_agrees_with_its_parents) {
  problem<float> parents, p;
  parents.run<usual_backend>();
  {
    const audited ledger;
    p.run<usual_chip>();
    EXPECT_GE(counting_ledger::total.copied_in, 2 * p.n * p.taps);  // scores in forward, dp and p in backward
  }
  EXPECT_TRUE(close(p.probs.f64(), parents.probs.f64(), parity.f32));
  EXPECT_TRUE(close(p.o.f64(), parents.o.f64(), parity.f32));
  EXPECT_TRUE(close(p.dq.f64(), parents.dq.f64(), 4 * parity.f32));
  EXPECT_TRUE(close(p.dk.f64(), parents.dk.f64(), 4 * parity.f32));
  EXPECT_TRUE(close(p.dv.f64(), parents.dv.f64(), 4 * parity.f32));
}

TEST(ascend_neighborhood_attention, bits_do_not_depend_on_threads) {
  problem<float> p;
  EXPECT_TRUE(same_bits_for_any_threads([&](tigon::context& ctx) {
    p.run<usual_chip>(ctx);
    return bits_of(p.o, p.probs, p.dq, p.dk, p.dv);
  }));
}

template <class T>
struct layer_problem {
  static constexpr std::size_t tokens = 2 * 19, hidden = 3 * 8;
  static constexpr tigon::neighborhood_attention_layer_options opt{
      .heads = 3, .seq_len = tokens / 2, .attention = {.kernel_size = 5}};
  using A = tigon::accumulator_t<T>;
  using weights = tigon::neighborhood_attention_layer_weights<T>;
  guarded_matrix<T> x = random_matrix<T>({tokens, hidden}, 1), dy = random_matrix<T>({tokens, hidden}, 2),
                    wqkv = random_matrix<T>({3 * hidden, hidden}, 3, guard::behind, {.deviation = 0.2}),
                    wo = random_matrix<T>({hidden, hidden}, 4, guard::behind, {.deviation = 0.2}), y{tokens, hidden},
                    values{tokens, 5 * hidden}, dx{tokens, hidden}, dwqkv{3 * hidden, hidden}, dwo{hidden, hidden};
  guarded<T> norm = random_vector<T>(hidden, 5, guard::behind, {.mean = 1, .deviation = 0.3}),
             norm_bias = random_vector<T>(hidden, 6), dnorm = guarded<T>(hidden), dnorm_bias = guarded<T>(hidden);
  guarded<A> numbers = guarded<A>(tigon::neighborhood_attention_layer_numbers(tokens, opt));

  template <class B>
  TIGON_TEST_NOINLINE void run() {
    const weights w{wqkv.view(), wo.view(), {}, {}, norm, norm_bias};
    const tigon::neighborhood_attention_layer_saved<T> saved{values.view(), numbers};
    tigon::neighborhood_attention_layer_forward<B, T>(x, w, y.view(), saved, opt);
    tigon::neighborhood_attention_layer_backward<B, T>(
        dy, x, w, saved, dx.view(), weights{dwqkv.view(), dwo.view(), {}, {}, dnorm, dnorm_bias}, opt);
  }
};

TEST(ascend_neighborhood_attention_layer, agrees_with_its_parents) {
  layer_problem<float> parents, p;
  parents.run<usual_backend>();
  p.run<usual_chip>();
  EXPECT_TRUE(close(p.y.f64(), parents.y.f64(), parity.f32));
  EXPECT_TRUE(close(p.dx.f64(), parents.dx.f64(), 4 * parity.f32));
  EXPECT_TRUE(close(p.dwqkv.f64(), parents.dwqkv.f64(), 4 * parity.f32));
  EXPECT_TRUE(close(p.dwo.f64(), parents.dwo.f64(), 4 * parity.f32));
  EXPECT_TRUE(close(p.dnorm.f64(), parents.dnorm.f64(), 4 * parity.f32));
  EXPECT_TRUE(close(p.dnorm_bias.f64(), parents.dnorm_bias.f64(), 4 * parity.f32));
}

}  // namespace
