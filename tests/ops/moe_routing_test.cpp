// The contract of include/tigon/ops/moe_routing.hpp, promise by promise.
#include <gtest/gtest.h>

#include <tigon/ops/moe_routing.hpp>

#include <algorithm>
#include <numeric>

#include "support/guarded.hpp"
#include "support/scratch.hpp"
#include "support/throws.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::matrix_view, tigon::moe_order;

/// Indices, and outputs full of canaries, each at a guard page.
template <class I, class O = I>
struct problem {
  std::size_t experts;
  guarded_matrix<I> indices;
  guarded<O> counts, offsets, gather, scatter, positions;

  problem(std::size_t tokens, std::size_t k, std::size_t e, const std::vector<double>& values, std::size_t padding = 0)
      : experts(e),
        indices(tokens, k, padding),
        counts(e),
        offsets(e + 1),
        gather(tokens * k),
        scatter(tokens * k),
        positions(tokens * k) {
    indices.assign(values);
  }
  moe_order<O> all() {
    const auto of = [](guarded<O>& g) { return std::span<O>(g.data(), g.size()); };
    return {of(counts), of(offsets), of(gather), of(scatter), of(positions)};
  }
  void run(context& ctx = tigon::default_context()) { tigon::moe_routing_forward(indices.view(), experts, all(), ctx); }
};

TEST(moe_routing, sorts_pairs_by_expert) {
  const auto check = [](auto p) {
    p.run();
    EXPECT_EQ(p.counts.f64(), (std::vector<double>{2, 2, 5, 1, 0}));
    EXPECT_EQ(p.offsets.f64(), (std::vector<double>{0, 2, 4, 9, 10, 10}));
    EXPECT_EQ(p.gather.f64(), (std::vector<double>{0, 3, 1, 2, 0, 1, 2, 3, 4, 4}));
    EXPECT_EQ(p.scatter.f64(), (std::vector<double>{1, 6, 2, 5, 0, 3, 4, 7, 9, 8}));
    EXPECT_EQ(p.positions.f64(), (std::vector<double>{4, 0, 2, 5, 6, 3, 1, 7, 9, 8}));
    EXPECT_TRUE(p.indices.padding_intact());
  };
  const std::vector<double> values{2, 0, 1, 2, 2, 1, 0, 2, 3, 2};
  check(problem<std::int32_t>(5, 2, 5, values));
  check(problem<std::int64_t>(5, 2, 5, values, 3));
  check(problem<std::int32_t, std::int64_t>(5, 2, 5, values, 1));
  check(problem<std::int64_t, std::int32_t>(5, 2, 5, values));
}

TEST(moe_routing, is_a_stable_sort_of_any_choices) {
  std::uint64_t state = 1;
  const auto draw = [&](std::size_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(state >> 33) % below;
  };
  for (int repeat = 0; repeat < 50; ++repeat) {
    const std::size_t tokens = draw(40), k = draw(6), experts = 1 + draw(9);
    std::vector<double> values(tokens * k);
    for (double& v : values) v = static_cast<double>(draw(experts));
    problem<std::int32_t> p(tokens, k, experts, values, draw(3));
    p.run();
    std::vector<double> order(values.size());
    std::iota(order.begin(), order.end(), 0.0);
    const auto expert = [&](double q) { return values[static_cast<std::size_t>(q)]; };
    std::ranges::stable_sort(order, {}, expert);
    EXPECT_EQ(p.scatter.f64(), order);
    for (std::size_t at = 0; at < order.size(); ++at) {
      EXPECT_EQ(static_cast<std::size_t>(p.gather[at]), static_cast<std::size_t>(order[at]) / k);
      EXPECT_EQ(static_cast<std::size_t>(p.positions[static_cast<std::size_t>(order[at])]), at);
    }
    for (std::size_t e = 0; e <= experts; ++e) {
      const auto below = std::ranges::count_if(values, [&](double v) { return v < static_cast<double>(e); });
      EXPECT_EQ(p.offsets[e], below);
      if (e < experts) {
        EXPECT_EQ(p.counts[e], std::ranges::count(values, static_cast<double>(e)));
      }
    }
  }
}

TEST(moe_routing, writes_what_has_memory) {
  const std::vector<double> values{1, 1, 0, 2, 2, 2};
  problem<std::int32_t> full(3, 2, 4, values);
  full.run();
  for (int which = 0; which < 32; ++which) {
    problem<std::int32_t> p(3, 2, 4, values);
    moe_order<std::int32_t> to = p.all();
    std::span<std::int32_t>* const outputs[] = {&to.counts, &to.offsets, &to.gather, &to.scatter, &to.positions};
    guarded<std::int32_t>* const memory[] = {&p.counts, &p.offsets, &p.gather, &p.scatter, &p.positions};
    guarded<std::int32_t>* const wanted[] = {&full.counts, &full.offsets, &full.gather, &full.scatter, &full.positions};
    for (int i = 0; i < 5; ++i)
      if (!(which >> i & 1)) *outputs[i] = {};
    tigon::moe_routing_forward(p.indices.view(), p.experts, to);
    for (int i = 0; i < 5; ++i)
      EXPECT_TRUE(which >> i & 1 ? bits_of(*memory[i]) == bits_of(*wanted[i]) : memory[i]->untouched()) << which << i;
  }
}

TEST(moe_routing, takes_the_workspace_that_it_names) {
  problem<std::int32_t> p(3, 2, 40, {1, 1, 0, 39, 2, 2});
  const std::size_t bytes = tigon::moe_routing_workspace(40);
  EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, [&](context& ctx) { p.run(ctx); }), workspace,
                     "moe_routing_forward: workspace is of", p.counts, p.offsets, p.gather, p.scatter, p.positions);
  with_workspace_of(bytes, [&](context& ctx) { p.run(ctx); });
  EXPECT_EQ(p.counts[39], 1);
}

TEST(moe_routing, refuses_before_the_first_write) {
  using I = std::int64_t;
  problem<I> p(3, 2, 4, {1, 1, 0, 3, 2, 2}, 1);
  const auto refused = [&](tigon::error_code code, const std::string& part, auto change) {
    matrix_view<I> indices = p.indices.view();
    std::size_t experts = 4;
    moe_order<I> to = p.all();
    change(indices, experts, to);
    EXPECT_TRUE(refuses([&] { tigon::moe_routing_forward(indices, experts, to); }, code, "moe_routing_forward: " + part,
                        p.counts, p.offsets, p.gather, p.scatter, p.positions));
  };
  using enum tigon::error_code;
  refused(shape, "experts is 0; expected at least 1", [](auto&, auto& experts, auto&) { experts = 0; });
  refused(shape, "counts is of 4 elements; expected 5", [](auto&, auto& experts, auto&) { experts = 5; });
  refused(shape, "offsets is of 4 elements; expected 5", [](auto&, auto&, auto& to) { to.offsets = to.counts; });
  refused(shape, "gather is of 4 elements; expected 6", [](auto&, auto&, auto& to) { to.gather = to.counts; });
  refused(shape, "scatter is of 4 elements; expected 6", [](auto&, auto&, auto& to) { to.scatter = to.counts; });
  refused(shape, "positions is of 4 elements; expected 6", [](auto&, auto&, auto& to) { to.positions = to.counts; });
  refused(stride, "indices is of row stride 1", [](auto& m, auto&, auto&) { m.row_stride = 1; });
  refused(shape, "indices is a null pointer", [](auto& m, auto&, auto&) { m.data = nullptr; });
  refused(alias, "scatter overlaps gather", [](auto&, auto&, auto& to) { to.scatter = to.gather; });
  refused(alias, "positions overlaps gather", [](auto&, auto&, auto& to) { to.positions = to.gather; });
  refused(alias, "gather overlaps indices", [&](auto&, auto&, auto& to) { to.gather = {&p.indices(0, 0), 6}; });
  for (const I bad : {I{4}, I{-1}, std::numeric_limits<I>::min(), std::numeric_limits<I>::max()}) {
    const I before = std::exchange(p.indices(2, 1), bad);
    refused(index, "indices[2, 1] is " + std::to_string(bad) + "; expected at least 0 and below 4",
            [](auto&, auto&, auto&) {});
    p.indices(2, 1) = std::exchange(p.indices(0, 0), bad);
    refused(index, "indices[0, 0] is " + std::to_string(bad) + "; expected at least 0 and below 4",
            [](auto&, auto&, auto&) {});
    p.indices(0, 0) = std::exchange(p.indices(2, 1), before);
  }
  p.run();
}

// The indices are not read, and the outputs not written.
TEST(moe_routing, refuses_more_pairs_than_its_type_counts) {
  std::int32_t number = 0;
  const matrix_view<const std::int32_t> many(&number, std::size_t{1} << 31, 1);
  EXPECT_TIGON_ERROR(tigon::moe_routing_forward(many, 1, moe_order<std::int32_t>{}), argument,
                     "moe_routing_forward: indices is of more pairs than the type of the outputs counts");
}

TEST(moe_routing, without_tokens_has_no_pairs) {
  for (const std::size_t k : {0u, 3u}) {
    problem<std::int32_t> p(k == 0 ? 5 : 0, k, 3, {});
    p.run();
    EXPECT_EQ(p.counts.f64(), std::vector<double>(3, 0));
    EXPECT_EQ(p.offsets.f64(), std::vector<double>(4, 0));
  }
}

}  // namespace
