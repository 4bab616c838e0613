// The parts of a mixture of experts that ascend adapts: rows that are gathered, scattered and weighted through tiles.
// Moe as a whole on ascend: tests/training.
#include <tigon/ops/moe.hpp>

#include <cmath>

#include "ascend_chips.hpp"

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
  guarded_matrix<A> from, sum, products, activated, more;  // more: a number for each pair

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
        activated(random_matrix<A>({s.pairs, s.cols, s.padding}, 6, side)),
        more(random_matrix<A>({1, s.pairs}, 7, side)) {
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
                                     more.view().data, ctx);
  }
  auto rows() const { return bits_of(gathered, sum, products, weighted, alone); }
  auto bits() const { return bits_of(gathered, sum, products, weighted, alone, dweights); }

  /// What run() makes, one number after the other, rounded in the same places; the products of rows in long double.
  TIGON_TEST_NOINLINE std::vector<double> by_definition() {
    std::vector<long double> of_weights(dweights.rows() * dweights.cols());
    const auto rounded = [](A v) { return from_f64<T>(static_cast<double>(v)); };
    for (std::size_t i = 0; i < chunk.rows; ++i) {
      const std::size_t t = chunk.token(i), k = chunk.choice(i);
      const A w = static_cast<A>(to_f64(weights(t, k)));
      of_weights[t * weights.cols() + k] = more(0, i);
      for (std::size_t j = 0; j < x.cols(); ++j) {
        gathered(i, j) = x(t, j);
        sum(t, j) = std::fma(from(i, j), w, sum(t, j));
        of_weights[t * weights.cols() + k] += static_cast<long double>(products(i, j)) * activated(i, j);
        alone(i, j) = weighted(i, j) = rounded(activated(i, j) * w);
        products(i, j) *= w;
      }
    }
    for (std::size_t i = 0; i < chunk.rows; ++i)
      for (std::size_t j = 0; j < x.cols(); ++j) sum(chunk.token(i), j) += from(i, j);
    return {of_weights.begin(), of_weights.end()};
  }
};

template <class P>
struct ascend_moe : testing::Test {};
using pairs = testing::Types<on<usual_chip, float>, on<double_chip, tigon::bfloat16>, on<small_chip, double>,
                             on<middle_chip, tigon::float16>>;
TYPED_TEST_SUITE(ascend_moe, pairs, names);

TYPED_TEST(ascend_moe, moves_rows_as_defined) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const audited ledger;
  for (const sizes& s : every_size) {
    SCOPED_TRACE(testing::Message() << s.pairs << " pairs of " << s.choices << " x " << s.cols);
    problem<T> p(s, s.pairs % 2 == 0 ? guard::before : guard::behind), q(s);
    p.template run<B>();
    const std::vector<double> of_weights = q.by_definition();
    EXPECT_EQ(p.rows(), q.rows());
    EXPECT_TRUE(close(p.dweights.f64(), of_weights, 2 * parity.of<T>(), {.scale = std::sqrt(s.cols)}));
    EXPECT_TRUE(p.gathered.padding_intact() && p.weighted.padding_intact() && p.alone.padding_intact() &&
                p.sum.padding_intact() && p.products.padding_intact());
  }
}

TYPED_TEST(ascend_moe, gives_the_same_bits_for_any_threads) {
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    problem<typename TypeParam::element> p({90, 3, 1000});
    p.template run<typename TypeParam::backend>(ctx);
    return p.bits();
  }));
}

// Every row comes in once and goes out once; a row of products that is summed stays to be weighted where it is one
// block.
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
                                                   p.dweights.view(), nullptr, ctx);
            }),
            (rows{80, 80}));
}

}  // namespace
