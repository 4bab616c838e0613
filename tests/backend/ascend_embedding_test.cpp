// embedding on ascend: the bits of the parents, through tiles.
#include <tigon/ops/embedding.hpp>

#include "ascend_chips.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::default_context;

template <class T>
struct problem {
  static constexpr std::size_t vocab = 50;
  tigon::embedding_options opt;
  std::vector<std::int32_t> ids;
  guarded_matrix<T> weight, y, dy, dweight, drows;
  guarded<std::int32_t> tokens;

  TIGON_TEST_NOINLINE explicit problem(shape s, tigon::embedding_options of = {}, guard side = guard::behind)
      : opt(of),
        weight(random_matrix<T>({vocab, s.cols, s.padding}, 1, side)),
        y(s.rows, s.cols, s.padding, side),
        dy(random_matrix<T>(s, 2, side)),
        dweight(random_matrix<T>({vocab, s.cols, s.padding}, 3, side)),
        drows(std::min(vocab, s.rows), s.cols, s.padding, side),
        tokens(std::min(vocab, s.rows), side) {
    for (std::size_t i = 0; i < s.rows; ++i) ids.push_back(i % 3 == 0 ? 7 : static_cast<std::int32_t>(i * 37 % vocab));
  }
  template <class B>
  TIGON_TEST_NOINLINE void run(context& ctx = default_context()) {
    tigon::embedding_forward<B>(weight, ids, y.view(), opt, ctx);
    tigon::embedding_backward<B>(dy, ids, dweight.view(), opt, ctx);
    if (opt.dweight == tigon::gradient::accumulate) return;
    tigon::embedding_backward_sparse<B>(dy, ids, vocab, tokens, drows.view(), opt, ctx);
  }
};

template <class P>
struct ascend_embedding : testing::Test {};
TYPED_TEST_SUITE(ascend_embedding, chip_pairs, names);

// One token occurs more often than a plain sum has terms, where there are many rows.
TYPED_TEST(ascend_embedding, has_the_bits_of_its_parents) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const audited ledger;
  for (const shape s : chip_shapes())
    for (const bool added : {false, true}) {
      SCOPED_TRACE(testing::Message() << s << (added ? ", padding index, accumulating" : ""));
      tigon::embedding_options opt;
      if (added) opt = {.padding_index = 12, .dweight = tigon::gradient::accumulate};
      problem<T> p(s, opt, s.rows % 2 == 0 ? guard::behind : guard::before), q(s, opt);
      p.template run<B>();
      q.template run<usual_backend>();
      EXPECT_EQ(bits_of(p.y, p.dweight, p.drows, p.tokens), bits_of(q.y, q.dweight, q.drows, q.tokens));
      EXPECT_TRUE(p.y.padding_intact() && p.dweight.padding_intact() && p.drows.padding_intact());
    }
}

TYPED_TEST(ascend_embedding, gives_the_same_bits_for_any_threads) {
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    problem<typename TypeParam::element> p({300, 301});
    p.template run<typename TypeParam::backend>(ctx);
    return bits_of(p.y, p.dweight, p.drows);
  }));
}

// A row of the table is copied in for every id, but for ids that a core meets again while their row is there. In
// backward the sum of a token stays in the buffer where it is one block; each step of it goes out.
TEST(ascend_embedding_copies, are_the_rows) {
  problem<float> p({40, 9000});
  for (std::size_t i = 0; i < 40; ++i) p.ids[i] = static_cast<std::int32_t>(i);
  {
    const audited ledger;
    tigon::embedding_forward<usual_chip>(p.weight, p.ids, p.y.view());
    EXPECT_EQ(counting_ledger::total.programs, 40u);
    EXPECT_EQ(counting_ledger::total.copied_in, 40 * 9000 * sizeof(float));
    EXPECT_EQ(counting_ledger::total.copied_out, 40 * 9000 * sizeof(float));
  }
  problem<float> q({40, 8192});
  std::ranges::fill(q.ids, 3);
  const audited ledger;
  tigon::embedding_backward<usual_chip>(q.dy, q.ids, q.dweight.view());
  EXPECT_EQ(counting_ledger::total.copied_in, 40 * 8192 * sizeof(float));
  EXPECT_EQ(counting_ledger::total.copied_out, (40 + q.vocab) * 8192 * sizeof(float));
}

}  // namespace
