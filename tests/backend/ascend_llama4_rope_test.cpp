// llama4_rope on ascend: the bits of the parents, through tiles.
#include <tigon/ops/llama4_rope.hpp>

#include "ascend_chips.hpp"
#include "support/guarded_heads.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::default_context;

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
                            {1, 2, 1, 2, 70002, layout::tokens, 5}};

template <class T>
struct problem {
  tigon::llama4_rope_options opt;
  guarded_matrix<T> freqs;
  guarded_heads<T> q, k, q_out, k_out, dq, dk;

  TIGON_TEST_NOINLINE explicit problem(sizes s, guard side = guard::behind)
      : opt{s.table_for_each ? tigon::rotary_table::per_sequence : tigon::rotary_table::shared},
        freqs(random_matrix<T>({(s.table_for_each ? s.batch : 1) * s.seq_len, s.d, s.padding}, 3, side)),
        q({s.batch, s.heads, s.seq_len, s.d, s.in, s.padding}, side),
        k({s.batch, s.kv_heads, s.seq_len, s.d, s.in, s.padding}, side),
        q_out({s.batch, s.heads, s.seq_len, s.d, s.in, s.padding}, side),
        k_out({s.batch, s.kv_heads, s.seq_len, s.d, s.in, s.padding}, side),
        dq({s.batch, s.heads, s.seq_len, s.d, s.in, s.padding}, side),
        dk({s.batch, s.kv_heads, s.seq_len, s.d, s.in, s.padding}, side) {
    q.assign(normal_values(q.count(), 1)), k.assign(normal_values(k.count(), 2));
  }
  template <class B>
  TIGON_TEST_NOINLINE void run(context& ctx = default_context()) {
    tigon::llama4_rope_forward<B>(q, k, freqs.view(), q_out.view(), k_out.view(), opt, ctx);
    tigon::llama4_rope_backward<B>(q, k, freqs.view(), dq.view(), dk.view(), opt, ctx);
  }
};

template <class P>
struct ascend_llama4_rope : testing::Test {};
TYPED_TEST_SUITE(ascend_llama4_rope, chip_pairs, names);

TYPED_TEST(ascend_llama4_rope, has_the_bits_of_its_parents) {
  using T = typename TypeParam::element;
  const audited ledger;
  for (const sizes& s : every_size)
    for (const guard side : both_guards) {
      SCOPED_TRACE(testing::Message() << s.batch << " x " << s.heads << " x " << s.seq_len << " x " << s.d);
      problem<T> p(s, side), q(s);
      p.template run<typename TypeParam::backend>();
      q.template run<usual_backend>();
      EXPECT_EQ(bits_of(p.q_out, p.k_out, p.dq, p.dk), bits_of(q.q_out, q.k_out, q.dq, q.dk));
      EXPECT_TRUE(p.q_out.padding_intact() && p.k_out.padding_intact() && p.dq.padding_intact() &&
                  p.dk.padding_intact());
    }
}

TYPED_TEST(ascend_llama4_rope, works_in_place) {
  using B = typename TypeParam::backend;
  for (const sizes& s : every_size) {
    problem<typename TypeParam::element> p(s), q(s);
    p.template run<B>();
    tigon::llama4_rope_forward<B>(q.q, q.k, q.freqs.view(), q.q.view(), q.k.view(), q.opt);
    EXPECT_EQ(q.q.f64(), p.q_out.f64());
    EXPECT_EQ(q.k.f64(), p.k_out.f64());
  }
}

TYPED_TEST(ascend_llama4_rope, gives_the_same_bits_for_any_threads) {
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    problem<typename TypeParam::element> p(every_size[4]);
    p.template run<typename TypeParam::backend>(ctx);
    return bits_of(p.q_out, p.k_out, p.dq, p.dk);
  }));
}

// The row of the table comes in once a token, for the heads of q and of k.
TEST(ascend_llama4_rope_copies, are_the_heads_and_a_row_of_the_table) {
  problem<float> p(every_size[4]);
  const audited ledger;
  tigon::llama4_rope_forward<usual_chip>(p.q, p.k, p.freqs.view(), p.q_out.view(), p.k_out.view(), p.opt);
  EXPECT_EQ(counting_ledger::total.programs, 20u);
  EXPECT_EQ(counting_ledger::total.copied_in, 62u * (6 * 64 + 64) * sizeof(float));
  EXPECT_EQ(counting_ledger::total.copied_out, 62u * 6 * 64 * sizeof(float));
}

}  // namespace
