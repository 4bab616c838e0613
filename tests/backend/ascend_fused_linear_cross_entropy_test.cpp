// fused_linear_cross_entropy on ascend: what the parents give, with cross entropy and all that is no product through
// tiles.
#include <tigon/losses/fused_linear_cross_entropy.hpp>

#include "ascend_chips.hpp"
#include "support/linear_cross_entropy.hpp"
#include "support/logit_loss.hpp"

namespace tigon::backends {
inline namespace TIGON_ABI {

/// A few rows of logits at a time: several chunks of every problem below.
template <class Chip>
struct in_chunks : Chip {
  using parent = Chip;
  static constexpr backend_info info{"in_chunks", {device::npu}};
  using overrides = op_list<>;
  static constexpr chunk_tuning chunk{.logits_bytes = 4096, .row_multiple = 2};
};
struct highway_in_chunks : highway {
  using parent = highway;
  static constexpr backend_info info{"highway_in_chunks", {device::cpu}};
  using overrides = op_list<>;
  static constexpr chunk_tuning chunk{.logits_bytes = 4096, .row_multiple = 2};
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::context, tigon::default_context, tigon::gradient, tigon::matrix_view;
using tigon::reduction;
using tigon::backends::in_chunks, tigon::backends::highway_in_chunks;

struct variant {
  const char* name;
  tigon::fused_linear_cross_entropy_options opt;
  bool biased = false, weighted = false;
  gradient mode = gradient::overwrite;
};
const variant variants[] = {
    {"plain", {}},
    {"biased sum, added", {.loss = {.reduction = reduction::sum}}, true, false, gradient::accumulate},
    {"all",
     {.loss = {.label_smoothing = 0.1, .lse_square_scale = 0.01, .softcap = 5, .denominator = 3},
      .token_scaling = true},
     true,
     true},
    {"rows", {.loss = {.reduction = reduction::none}}, true, false, gradient::accumulate},
};

struct sizes {
  std::size_t rows, hidden, vocab, padding = 0;
};
const sizes every_size[] = {{0, 5, 7}, {1, 1, 1}, {3, 0, 9}, {7, 33, 65, 3}, {40, 16, 123}, {9, 20, 5003, 1}};

template <class T>
struct problem {
  using A = accumulator_t<T>;
  sizes s;
  variant v;
  guarded_matrix<T> x, w, dx, dw;
  guarded<T> bias, dbias, weight;
  guarded<std::int64_t> target;
  guarded<A> upstream, loss;

  TIGON_TEST_NOINLINE explicit problem(sizes of, variant which = variants[0])
      : s(of),
        v(which),
        x(random_matrix<T>({s.rows, s.hidden, s.padding}, 1)),
        w(random_matrix<T>({s.vocab, s.hidden, s.padding}, 2, guard::behind, {.deviation = 0.4})),
        dx(s.rows, s.hidden, s.padding),
        dw(random_matrix<T>({s.vocab, s.hidden, s.padding}, 5)),
        bias(random_vector<T>(s.vocab, 3)),
        dbias(random_vector<T>(s.vocab, 6)),
        weight(s.vocab),
        target(s.rows),
        upstream(random_vector<A>(s.rows, 7)),
        loss(v.opt.loss.reduction == reduction::none ? s.rows : 1) {
    std::ranges::copy(random_labels(s.rows, s.vocab, v.opt.loss.ignore_index, 2), target.begin());
    weight.assign(random_class_weights(s.vocab, 3));
  }
  template <class B>
  TIGON_TEST_NOINLINE void run(context& ctx = default_context()) {
    const std::span<T> none;
    const std::span<T> cw = v.weighted ? std::span<T>(weight) : none;
    const tigon::linear_layer<T> layer{x, w, v.biased ? std::span<T>(bias) : none};
    const tigon::linear_gradients<T> gradients{dx.view(), dw.view(), v.biased ? std::span<T>(dbias) : none, v.mode};
    if (v.opt.loss.reduction == reduction::none) {
      tigon::fused_linear_cross_entropy_forward<B>(layer, target, {loss}, {}, v.opt, cw, {}, ctx);
      tigon::fused_linear_cross_entropy_backward<B>(layer, target, upstream, gradients, v.opt, cw, ctx);
    } else {
      tigon::fused_linear_cross_entropy_forward<B>(layer, target, {loss}, gradients, v.opt, cw, {}, ctx);
    }
  }
};

template <class P>
struct ascend_fused_linear_cross_entropy : testing::Test {};
TYPED_TEST_SUITE(ascend_fused_linear_cross_entropy, chip_pairs, names);

TYPED_TEST(ascend_fused_linear_cross_entropy, agrees_with_its_parents) {
  using T = typename TypeParam::element;
  const audited ledger;
  for (const sizes& s : every_size)
    for (const variant& v : variants) {
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.hidden << " x " << s.vocab << ", " << v.name);
      const comparison with{.may_be_empty = s.rows == 0 || s.hidden == 0};
      problem<T> p(s, v), q(s, v);
      p.template run<in_chunks<typename TypeParam::backend>>();
      q.template run<highway_in_chunks>();
      EXPECT_TRUE(close(p.loss.f64(), q.loss.f64(), parity.of<accumulator_t<T>>(), {.scale = 1, .may_be_empty = true}));
      EXPECT_TRUE(close(p.dx.f64(), q.dx.f64(), parity.of<T>(), with));
      EXPECT_TRUE(close(p.dw.f64(), q.dw.f64(), parity.of<T>(), with));
      EXPECT_TRUE(close(p.dbias.f64(), q.dbias.f64(), parity.of<T>(), with));
      EXPECT_TRUE(p.dx.padding_intact() && p.dw.padding_intact());
    }
}

TYPED_TEST(ascend_fused_linear_cross_entropy, knows_ignored_rows_and_capped_infinities) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  expect_nothing_of_ignored_rows<B, T>({20, 17, 67, 2}, {"mean", true, true, {}});
  expect_nothing_of_ignored_rows<B, T>({20, 17, 67, 2},
                                       {"rows", true, false, {.loss = {.reduction = reduction::none}}});
  expect_capped_infinities<B, T>({9, 5, 67});
}

TYPED_TEST(ascend_fused_linear_cross_entropy, gives_the_same_bits_for_any_threads) {
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    problem<typename TypeParam::element> p({40, 16, 1203}, variants[1]);
    p.template run<in_chunks<typename TypeParam::backend>>(ctx);
    return bits_of(p.loss, p.dx, p.dw, p.dbias);
  }));
}

}  // namespace
