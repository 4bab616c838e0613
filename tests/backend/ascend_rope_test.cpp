// rope on ascend: what the parents give, through tiles.
#include <tigon/ops/rope.hpp>

#include "ascend_chips.hpp"
#include "support/guarded_heads.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::context, tigon::default_context;

struct sizes {
  std::size_t batch, heads, kv_heads, seq_len, d;
  layout in = layout::tokens;
  std::size_t padding = 0;
  bool table_for_each = false;  // sequence
};

/// Nothing in every extent; more tokens than cores; more heads than a tile holds; a head that no tile holds.
const sizes every_size[] = {{0, 2, 1, 3, 8},
                            {1, 2, 1, 3, 0},
                            {1, 3, 0, 2, 6},
                            {1, 1, 1, 1, 2},
                            {2, 4, 2, 31, 64, layout::tokens, 0, true},
                            {2, 4, 2, 31, 40, layout::heads, 3},
                            {1, 150, 8, 3, 128},
                            {1, 40, 3, 2, 602, layout::heads, 1},
                            {1, 2, 1, 2, 70002, layout::tokens, 5}};

template <class T, class U = T>
struct problem {
  guarded_matrix<U> cos, sin;
  guarded_heads<T> q, k, q_out, k_out, dq, dk;

  TIGON_TEST_NOINLINE explicit problem(sizes s, guard side = guard::behind)
      : cos(random_matrix<U>({(s.table_for_each ? s.batch : 1) * s.seq_len, s.d / 2, s.padding}, 3, side)),
        sin(random_matrix<U>({cos.rows(), s.d / 2, s.padding}, 4, side)),
        q({s.batch, s.heads, s.seq_len, s.d, s.in, s.padding}, side),
        k({s.batch, s.kv_heads, s.seq_len, s.d, s.in, s.padding}, side),
        q_out({s.batch, s.heads, s.seq_len, s.d, s.in, s.padding}, side),
        k_out({s.batch, s.kv_heads, s.seq_len, s.d, s.in, s.padding}, side),
        dq({s.batch, s.heads, s.seq_len, s.d, s.in, s.padding}, side),
        dk({s.batch, s.kv_heads, s.seq_len, s.d, s.in, s.padding}, side) {
    q.assign(normal_values(q.count(), 1)), k.assign(normal_values(k.count(), 2));
  }
  template <class B>
  TIGON_TEST_NOINLINE void run(context& ctx = default_context(), tigon::rope_options opt = {}) {
    tigon::rope_forward<B>(q, k, cos.view(), sin.view(), q_out.view(), k_out.view(), opt, ctx);
    tigon::rope_backward<B>(q, k, cos.view(), sin.view(), dq.view(), dk.view(), opt, ctx);
  }
};

template <class P>
struct ascend_rope : testing::Test {};
TYPED_TEST_SUITE(ascend_rope, chip_pairs, names);

template <class T, class U>
void expect_equal(const problem<T, U>& p, const problem<T, U>& q) {
  const double bound = parity.of<T>();
  const comparison with{.may_be_empty = true};
  EXPECT_TRUE(close(p.q_out.f64(), q.q_out.f64(), bound, with));
  EXPECT_TRUE(close(p.k_out.f64(), q.k_out.f64(), bound, with));
  EXPECT_TRUE(close(p.dq.f64(), q.dq.f64(), bound, with));
  EXPECT_TRUE(close(p.dk.f64(), q.dk.f64(), bound, with));
  EXPECT_TRUE(p.q_out.padding_intact() && p.k_out.padding_intact() && p.dq.padding_intact() && p.dk.padding_intact());
}

TYPED_TEST(ascend_rope, agrees_with_its_parents) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const audited ledger;
  for (const sizes& s : every_size)
    for (const guard side : both_guards) {
      SCOPED_TRACE(testing::Message() << s.batch << " x " << s.heads << " x " << s.seq_len << " x " << s.d);
      problem<T> p(s, side), q(s), r(s);
      p.template run<B>();
      q.template run<usual_backend>();
      expect_equal(p, q);
      if constexpr (compared_with_generic<T>) {
        r.template run<tigon::backends::generic>();
        expect_equal(p, r);
      }
    }
  problem<T, accumulator_t<T>> p(every_size[4]), q(every_size[4]);
  p.template run<B>();
  q.template run<usual_backend>();
  expect_equal(p, q);
}

TYPED_TEST(ascend_rope, turns_a_part_of_a_head_as_its_parents_do) {
  using T = typename TypeParam::element;
  problem<T> p(every_size[5]), q(every_size[5]);
  p.template run<typename TypeParam::backend>(default_context(), {.rotary_dim = 26});
  q.template run<usual_backend>(default_context(), {.rotary_dim = 26});
  expect_equal(p, q);
}

TYPED_TEST(ascend_rope, turns_neighbours_as_its_parents_do) {
  using T = typename TypeParam::element;
  problem<T> p(every_size[5]), q(every_size[5]);
  const tigon::rope_options opt{.pairs = tigon::rotary_pairs::neighbours};
  p.template run<typename TypeParam::backend>(default_context(), opt);
  q.template run<usual_backend>(default_context(), opt);
  expect_equal(p, q);
}

TYPED_TEST(ascend_rope, works_in_place) {
  for (const sizes& s : every_size) {
    problem<typename TypeParam::element> p(s), q(s);
    p.template run<typename TypeParam::backend>();
    tigon::rope_forward<typename TypeParam::backend>(q.q, q.k, q.cos.view(), q.sin.view(), q.q.view(), q.k.view());
    EXPECT_EQ(q.q.f64(), p.q_out.f64());
    EXPECT_EQ(q.k.f64(), p.k_out.f64());
  }
}

TYPED_TEST(ascend_rope, gives_the_same_bits_for_any_threads) {
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    problem<typename TypeParam::element> p(every_size[4]);
    p.template run<typename TypeParam::backend>(ctx);
    return bits_of(p.q_out, p.k_out, p.dq, p.dk);
  }));
}

// The row of a table comes in once a token for all its heads; 62 tokens are runs of 4 on 16 of the 20 cores.
TEST(ascend_rope_copies, are_the_heads_and_a_row_of_each_table) {
  problem<float> p(every_size[4]);
  const audited ledger;
  tigon::rope_forward<usual_chip>(p.q, p.k, p.cos.view(), p.sin.view(), p.q_out.view(), p.k_out.view());
  EXPECT_EQ(counting_ledger::total.copied_in, 62u * (6 * 64 + 64) * sizeof(float));
  EXPECT_EQ(counting_ledger::total.copied_out, 62u * 6 * 64 * sizeof(float));
}

}  // namespace
