// swiglu and geglu on ascend: what the parents give, through tiles.
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/swiglu.hpp>

#include "ascend_chips.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::default_context, tigon::in_matrix, tigon::matrix_view;

struct swiglu {
  using options = tigon::swiglu_options;
  static std::vector<options> variants() {
    return {{},
            {.gate_multiplier = -0.75, .down_multiplier = 1.5},
            {.round_gate = true},
            {.gate_multiplier = 0.75, .down_multiplier = 1.5, .round_gate = true},
            {.limit = 2, .slope = 1.702, .up_offset = 1}};
  }
  template <class B, class T>
  static void forward(in_matrix<T> a, in_matrix<T> b, matrix_view<T> c, options opt, context& ctx) {
    tigon::swiglu_forward<B>(a, b, c, opt, ctx);
  }
  template <class B, class T>
  static void backward(in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da, matrix_view<T> db,
                       options opt, context& ctx) {
    tigon::swiglu_backward<B>(dc, a, b, da, db, opt, ctx);
  }
};
struct geglu {
  using options = tigon::geglu_options;
  static std::vector<options> variants() {
    using tigon::gelu_form;
    return {{}, {.form = gelu_form::erf}, {.round_gate = true}, {.form = gelu_form::erf, .round_gate = true}};
  }
  template <class B, class T>
  static void forward(in_matrix<T> a, in_matrix<T> b, matrix_view<T> c, options opt, context& ctx) {
    tigon::geglu_forward<B>(a, b, c, opt, ctx);
  }
  template <class B, class T>
  static void backward(in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da, matrix_view<T> db,
                       options opt, context& ctx) {
    tigon::geglu_backward<B>(dc, a, b, da, db, opt, ctx);
  }
};

template <class Gate, class T>
struct problem {
  typename Gate::options opt;
  guarded_matrix<T> a, b, dc, c, da, db;

  TIGON_TEST_NOINLINE problem(shape s, typename Gate::options of, guard side = guard::behind)
      : opt(of),
        a(random_matrix<T>(s, 1, side, {.deviation = 3})),
        b(random_matrix<T>(s, 2, side)),
        dc(random_matrix<T>(s, 3, side)),
        c(s.rows, s.cols, s.padding, side),
        da(s.rows, s.cols, s.padding, side),
        db(s.rows, s.cols, s.padding, side) {}
  template <class B>
  TIGON_TEST_NOINLINE void run(context& ctx = default_context()) {
    Gate::template forward<B, T>(a, b, c.view(), opt, ctx);
    Gate::template backward<B, T>(dc, a, b, da.view(), db.view(), opt, ctx);
  }
};

template <class Gate, class B, class T>
void check_parity() {
  const audited ledger;
  for (const shape s : chip_shapes())
    for (const auto& opt : Gate::variants()) {
      SCOPED_TRACE(testing::Message() << s);
      const comparison with{.may_be_empty = s.rows * s.cols == 0};
      const guard side = s.rows % 2 == 0 ? guard::behind : guard::before;
      problem<Gate, T> p(s, opt, side), q(s, opt);
      p.template run<B>();
      q.template run<usual_backend>();
      const double bound = parity.of<T>();
      EXPECT_TRUE(close(p.c.f64(), q.c.f64(), bound, with));
      EXPECT_TRUE(close(p.da.f64(), q.da.f64(), bound, with));
      EXPECT_TRUE(close(p.db.f64(), q.db.f64(), bound, with));
      EXPECT_TRUE(p.c.padding_intact() && p.da.padding_intact() && p.db.padding_intact());
    }
  if constexpr (compared_with_generic<T>) {
    problem<Gate, T> p({50, 300, 4}, {}), q({50, 300, 4}, {});
    p.template run<B>();
    q.template run<tigon::backends::generic>();
    EXPECT_TRUE(close(p.c.f64(), q.c.f64(), parity.of<T>()));
    EXPECT_TRUE(close(p.da.f64(), q.da.f64(), parity.of<T>()));
  }
}

template <class Gate, class B, class T>
void check_in_place() {
  for (const shape s : {shape{45, 300}, shape{45, 300, 9}, shape{3, 30000}}) {
    problem<Gate, T> p(s, {}), q(s, {});
    p.template run<B>();
    const auto c = p.c.f64(), da = p.da.f64(), db = p.db.f64();
    Gate::template backward<B, T>(q.dc, q.a, q.b, q.dc.view(), q.b.view(), q.opt, default_context());
    EXPECT_EQ(q.dc.f64(), da);
    EXPECT_EQ(q.b.f64(), db);
    Gate::template forward<B, T>(p.a, p.b, p.a.view(), p.opt, default_context());
    EXPECT_EQ(p.a.f64(), c);
  }
}

template <class P>
struct ascend_gates : testing::Test {};
TYPED_TEST_SUITE(ascend_gates, chip_pairs, names);

TYPED_TEST(ascend_gates, agree_with_their_parents) {
  check_parity<swiglu, typename TypeParam::backend, typename TypeParam::element>();
  check_parity<geglu, typename TypeParam::backend, typename TypeParam::element>();
}

TYPED_TEST(ascend_gates, work_in_place) {
  check_in_place<swiglu, typename TypeParam::backend, typename TypeParam::element>();
  check_in_place<geglu, typename TypeParam::backend, typename TypeParam::element>();
}

TYPED_TEST(ascend_gates, give_the_same_bits_for_any_threads) {
  EXPECT_TRUE(same_bits_for_any_threads([](context& ctx) {
    problem<swiglu, typename TypeParam::element> p({61, 3001}, {});
    p.template run<typename TypeParam::backend>(ctx);
    return bits_of(p.c, p.da, p.db);
  }));
}

// A block of each operand once, and no element more.
TEST(ascend_gates_copies, are_the_operands) {
  constexpr std::size_t n = 61 * 3001 * sizeof(float);
  problem<swiglu, float> p({61, 3001}, {});
  const audited ledger;
  swiglu::forward<usual_chip, float>(p.a, p.b, p.c.view(), {}, default_context());
  EXPECT_EQ(counting_ledger::total.programs, 20u);
  EXPECT_EQ(counting_ledger::total.copied_in, 2 * n);
  EXPECT_EQ(counting_ledger::total.copied_out, n);
  swiglu::backward<usual_chip, float>(p.dc, p.a, p.b, p.da.view(), p.db.view(), {}, default_context());
  EXPECT_EQ(counting_ledger::total.copied_in, 5 * n);
  EXPECT_EQ(counting_ledger::total.copied_out, 3 * n);
}

}  // namespace
