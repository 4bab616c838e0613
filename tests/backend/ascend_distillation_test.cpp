// fused_linear_jsd on ascend: what the parents give, with the divergence of a chunk of logits through tiles.
#include <tigon/losses/fused_linear_jsd.hpp>

#include "ascend_chips.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::absent, tigon::accumulator_t, tigon::context, tigon::default_context;

struct variant {
  const char* name;
  tigon::fused_linear_jsd_options opt;
  bool labelled = false;
};
const variant variants[] = {{"half", {}}, {"forward KL, labels", {.beta = 0, .temperature = 2}, true}};

struct sizes {
  std::size_t rows, hidden, vocab, padding = 0;
};
const sizes every_size[] = {{0, 5, 7}, {1, 1, 1}, {7, 33, 65, 3}, {9, 16, 5003, 1}};

template <class T>
struct problem {
  using A = accumulator_t<T>;
  variant v;
  guarded_matrix<T> x, w, teacher_x, teacher_w, dx, dw;
  guarded<T> dbias, bias;
  guarded<std::int64_t> labels;
  guarded<A> loss;

  TIGON_TEST_NOINLINE explicit problem(sizes s, variant of = variants[0])
      : v(of),
        x(random_matrix<T>({s.rows, s.hidden, s.padding}, 1)),
        w(random_matrix<T>({s.vocab, s.hidden, s.padding}, 2, guard::behind, {.deviation = 0.4})),
        teacher_x(random_matrix<T>({s.rows, s.hidden + 2, s.padding}, 3)),
        teacher_w(random_matrix<T>({s.vocab, s.hidden + 2, s.padding}, 4, guard::behind, {.deviation = 0.4})),
        dx(s.rows, s.hidden, s.padding),
        dw(s.vocab, s.hidden, s.padding),
        dbias(s.vocab),
        bias(random_vector<T>(s.vocab, 5)),
        labels(s.rows),
        loss(1) {
    for (std::size_t i = 0; i < s.rows; ++i) labels[i] = i % 3 == 1 ? -100 : 5;
  }
  template <class B>
  TIGON_TEST_NOINLINE void run(context& ctx = default_context()) {
    const tigon::linear_layer<T> student{x, w, bias}, teacher{teacher_x, teacher_w, {}};
    const tigon::linear_gradients<T> gradients{dx.view(), dw.view(), dbias};
    if (v.labelled)
      tigon::fused_linear_jsd_forward<B>(student, teacher, labels, loss, gradients, v.opt, ctx);
    else
      tigon::fused_linear_jsd_forward<B>(student, teacher, absent, loss, gradients, v.opt, ctx);
  }
};

template <class P>
struct ascend_distillation : testing::Test {};
/// Logits are f32 for all types but one, and the products, of which each type and chip has its own, are the parents'.
using pairs = testing::Types<on<usual_chip, float>>;
TYPED_TEST_SUITE(ascend_distillation, pairs, names);

TYPED_TEST(ascend_distillation, agrees_with_its_parents) {
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  const audited ledger;
  for (const sizes& s : every_size)
    for (const variant& v : variants) {
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.hidden << " x " << s.vocab << ", " << v.name);
      problem<T> p(s, v), q(s, v);
      p.template run<typename TypeParam::backend>();
      q.template run<usual_backend>();
      const comparison with{.may_be_empty = s.rows == 0};
      EXPECT_TRUE(close(p.loss.f64(), q.loss.f64(), 2 * parity.of<A>(), {.scale = 1}));
      EXPECT_TRUE(close(p.dx.f64(), q.dx.f64(), 4 * parity.of<T>(), with));
      EXPECT_TRUE(close(p.dw.f64(), q.dw.f64(), 4 * parity.of<T>(), with));
      EXPECT_TRUE(close(p.dbias.f64(), q.dbias.f64(), 4 * parity.of<T>()));
      EXPECT_TRUE(p.dx.padding_intact() && p.dw.padding_intact());
    }
}

// Every program of the divergence, and none of the products, is in the ledger.
TEST(ascend_distillation_copies, are_those_of_both_logits) {
  problem<float> p({9, 16, 3000});
  const audited ledger;
  p.run<usual_chip>();
  EXPECT_EQ(counting_ledger::total.programs, 9u);
  EXPECT_EQ(counting_ledger::total.copied_in, 2 * 9 * 3000 * sizeof(float));         // both rows, once
  EXPECT_EQ(counting_ledger::total.copied_out, (2 + 1) * 9 * 3000 * sizeof(float));  // what becomes of them; D
}

TEST(ascend_distillation_bits, do_not_depend_on_threads) {
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    problem<float> p({23, 16, 5003});
    p.run<usual_chip>(ctx);
    return bits_of(p.loss, p.dx, p.dw, p.dbias);
  }));
}

}  // namespace
