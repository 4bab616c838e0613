// Parts of a mixture of experts on ascend: gathered and scattered rows have the bits of the parents.
#include <tigon/ops/moe.hpp>

#include "ascend_chips.hpp"
#include "support/moe_problem.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::context, tigon::default_context;

struct sizes {
  std::size_t pairs, choices, cols, padding = 0;
};
/// No pairs; one; fewer and more than programs, several of one token; rows around the blocks of each capacity, and of
/// several blocks with a tail.
const sizes every_size[] = {{0, 2, 5},    {1, 1, 1},    {7, 3, 33, 1}, {90, 4, 41, 3},
                            {3, 2, 4096}, {5, 2, 8193}, {9, 3, 16385}, {4, 1, 40001, 2}};

/// A chunk: `pairs` pairs of tokens with `choices` choices, of which it has 1, 2, ... , choices, 1, ...
template <class T>
struct problem {
  using A = accumulator_t<T>;
  std::vector<std::int64_t> pair;
  tigon::detail::moe_chunk chunk;
  guarded_matrix<T> x, gathered, weights, dweights, weighted, alone;
  guarded_matrix<A> from, sum, products, activated;

  static std::size_t tokens(sizes s) { return s.pairs + 1; }
  TIGON_TEST_NOINLINE explicit problem(sizes s, guard side = guard::behind)
      : x(random_matrix<T>({tokens(s), s.cols, s.padding}, 1, side)),
        gathered(s.pairs, s.cols, s.padding, side),
        weights(random_matrix<T>({tokens(s), s.choices, s.padding}, 2, side)),
        dweights(tokens(s), s.choices, s.padding, side),
        weighted(s.pairs, s.cols, s.padding, side),
        alone(s.pairs, s.cols, s.padding, side),
        from(random_matrix<A>({s.pairs, s.cols, s.padding}, 3, side)),
        sum(random_matrix<A>({tokens(s), s.cols, s.padding}, 4, side)),
        products(random_matrix<A>({s.pairs, s.cols, s.padding}, 5, side)),
        activated(random_matrix<A>({s.pairs, s.cols, s.padding}, 6, side)) {
    for (std::size_t t = 0; pair.size() < s.pairs; ++t)
      for (std::size_t j = 0; j <= t % s.choices && pair.size() < s.pairs; ++j)
        pair.push_back(static_cast<std::int64_t>(t * s.choices + j));
    chunk = {pair.data(), s.pairs, s.choices, 0};
    dweights.assign(std::vector<double>(tokens(s) * s.choices));
  }
  template <class B>
  TIGON_TEST_NOINLINE void run(context& ctx = default_context()) {
    using gather = tigon::kernel_for<tigon::op::moe_gather, B>;
    using scatter = tigon::kernel_for<tigon::op::moe_scatter, B>;
    const tigon::matrix_view<const T> w = weights.view();
    gather::template forward<B, T>(x.view(), chunk, gathered.view(), ctx);
    scatter::template forward<B, A>(from.view(), chunk, w, sum.view(), ctx);
    scatter::template forward<B, A>(from.view(), chunk, tigon::matrix_view<const T>{}, sum.view(), ctx);
    scatter::template backward<B, T>(activated.view(), alone.view(), chunk, w, ctx);
    scatter::template backward<B, T>(products.view(), activated.view(), weighted.view(), chunk, w, dweights.view(),
                                     ctx);
  }
  auto rows() const { return bits_of(gathered, sum, products, weighted, alone); }
};

template <class P>
struct ascend_moe : testing::Test {};
TYPED_TEST_SUITE(ascend_moe, chip_pairs, names);

TYPED_TEST(ascend_moe, has_the_rows_of_its_parents) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const audited ledger;
  for (const sizes& s : every_size) {
    SCOPED_TRACE(testing::Message() << s.pairs << " pairs of " << s.choices << " x " << s.cols);
    problem<T> p(s, s.pairs % 2 == 0 ? guard::before : guard::behind), q(s);
    p.template run<B>();
    q.template run<tigon::backends::highway>();
    EXPECT_EQ(p.rows(), q.rows());
    EXPECT_TRUE(close(p.dweights.f64(), q.dweights.f64(), 2 * parity.of<T>(), {.scale = std::sqrt(s.cols)}));
    EXPECT_TRUE(p.gathered.padding_intact() && p.weighted.padding_intact() && p.alone.padding_intact() &&
                p.sum.padding_intact() && p.products.padding_intact());
  }
}

TYPED_TEST(ascend_moe, gives_the_same_bits_for_any_threads) {
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    problem<typename TypeParam::element> p({90, 3, 5000});
    p.template run<typename TypeParam::backend>(ctx);
    return bits_of(p.gathered, p.sum, p.products, p.weighted, p.alone, p.dweights);
  }));
}

// A row is copied in for every pair, unless its token has the pair before in the same program; a sum goes out with every
// pair and stays for the next one where it is one block.
TEST(ascend_moe_copies, are_the_rows_of_pairs) {
  problem<float> p({40, 1, 8192});
  const std::size_t row = 8192 * sizeof(float);
  const auto copied = [&](auto run) {
    const audited ledger;
    run();
    EXPECT_EQ(counting_ledger::total.programs, 20u);
    return std::pair<std::size_t, std::size_t>(counting_ledger::total.copied_in / row,
                                               counting_ledger::total.copied_out / row);
  };
  using rows = std::pair<std::size_t, std::size_t>;
  using gather = tigon::kernel_for<tigon::op::moe_gather, usual_chip>;
  using scatter = tigon::kernel_for<tigon::op::moe_scatter, usual_chip>;
  const tigon::matrix_view<const float> w = p.weights.view();
  context& ctx = default_context();
  EXPECT_EQ(copied([&] { gather::forward<usual_chip, float>(p.x.view(), p.chunk, p.gathered.view(), ctx); }),
            (rows{40, 40}));
  EXPECT_EQ(copied([&] { scatter::forward<usual_chip, float>(p.from.view(), p.chunk, w, p.sum.view(), ctx); }),
            (rows{80, 40}));
  EXPECT_EQ(copied([&] {
              scatter::backward<usual_chip, float>(p.products.view(), p.activated.view(), p.weighted.view(), p.chunk, w,
                                                   p.dweights.view(), ctx);
            }),
            (rows{80, 80}));
}

TEST(ascend_moe_of_f32, keeps_the_error_of_the_operator) {
  const audited ledger;
  for (const moe_sizes& s : {moe_sizes{7, 2, 4, 33, 17, 3},
                             {1, 2, 5, 16, 9},
                             {30, 2, 3, 12, 19, 0, chosen::one_expert},
                             {0, 2, 3, 5, 7},
                             {6, 4, 5, 20, 3, 1, chosen::few},
                             {150, 2, 4, 70, 50}}) {
    SCOPED_TRACE(testing::Message() << s);
    moe_problem<float> p(s);
    const moe_results want = p.wanted();
    tigon::moe_forward<middle_chip, float>(p.x, p.choices(), p.experts(), p.y.view(), p.saved, p.opt);
    tigon::moe_backward<middle_chip, float>(p.dy, p.x, p.choices(), p.experts(), p.saved, p.all(), p.opt);
    p.expect_value(want);
    p.expect_gradients(want);
    const auto dx = bits_of(p.dx);
    p.dx.clear();
    tigon::moe_backward<middle_chip, float>(p.dy, p.x, p.choices(), p.experts(), p.saved,
                                            tigon::moe_gradients<float, float, float>{p.dx.view(), {}, {}, {}}, p.opt);
    EXPECT_EQ(bits_of(p.dx), dx);
  }
}

}  // namespace
