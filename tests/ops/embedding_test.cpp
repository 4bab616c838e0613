// The contract of include/tigon/ops/embedding.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <tigon/ops/embedding.hpp>

#include <numeric>

#include "support/backends.hpp"
#include "support/guarded.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::context, tigon::gradient;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// Every buffer at a guard page, outputs full of canaries. Of 7 tokens in the vocabulary, 0 never occurs and 3 is
/// common.
template <class T, class I = std::int64_t>
struct problem {
  static constexpr std::size_t vocab = 7;
  tigon::embedding_options opt;
  guarded_matrix<T> weight, y, dy, dweight;
  guarded<I> ids;

  TIGON_TEST_NOINLINE explicit problem(shape s, tigon::embedding_options of = {}, guard side = guard::behind)
      : opt(of),
        weight(random_matrix<T>({vocab, s.cols, s.padding}, 1, side)),
        y(s.rows, s.cols, s.padding, side),
        dy(random_matrix<T>(s, 2, side)),
        dweight(vocab, s.cols, s.padding, side),
        ids(s.rows, side) {
    for (std::size_t i = 0; i < s.rows; ++i) ids[i] = static_cast<I>(i % 3 == 0 ? 3 : 1 + i * i % 6);
  }

  template <class B>
  TIGON_TEST_NOINLINE void both_ways(context& ctx = tigon::default_context()) {
    tigon::embedding_forward<B>(weight, ids, y.view(), opt, ctx);
    tigon::embedding_backward<B>(dy, ids, dweight.view(), opt, ctx);
  }

  bool is_padding(std::size_t i) const { return static_cast<std::ptrdiff_t>(ids[i]) == opt.padding_index; }
  TIGON_TEST_NOINLINE std::vector<double> y_wanted() const {
    std::vector<double> out;
    for (std::size_t i = 0; i < y.rows(); ++i)
      for (std::size_t j = 0; j < y.cols(); ++j)
        out.push_back(is_padding(i) ? 0 : to_f64(weight(static_cast<std::size_t>(ids[i]), j)));
    return out;
  }
  /// Sums in the accumulator type and in the order of the tokens, rounded once: exact.
  TIGON_TEST_NOINLINE std::vector<double> dweight_wanted(const std::vector<double>& before = {}) const {
    using A = accumulator_t<T>;
    std::vector<A> sums(before.begin(), before.end());
    sums.resize(vocab * y.cols());
    for (std::size_t i = 0; i < y.rows(); ++i)
      for (std::size_t j = 0; j < y.cols(); ++j)
        if (!is_padding(i)) sums[static_cast<std::size_t>(ids[i]) * y.cols() + j] += static_cast<A>(dy(i, j));
    std::vector<double> out;
    for (const A sum : sums) out.push_back(to_f64(static_cast<T>(sum)));
    return out;
  }
};

template <class On>
class embedding : public testing::Test {};
TYPED_TEST_SUITE(embedding, every_pair, names);

TYPED_TEST(embedding, is_exact_and_leaves_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  auto shapes = row_shapes<B, T>();
  shapes.insert(shapes.end(), {{3, 0}, {40, 2 * lanes<B, T> + 3, 1}});
  for (const shape s : shapes)
    for (const std::ptrdiff_t padding : {-1, 3})
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", padding token " << padding << ", " << side);
        problem<T> p(s, {.padding_index = padding}, side);
        p.template both_ways<B>();
        EXPECT_EQ(p.y.f64(), p.y_wanted());
        EXPECT_EQ(p.dweight.f64(), p.dweight_wanted());
        EXPECT_TRUE(p.y.padding_intact() && p.dweight.padding_intact());
      }
}

TYPED_TEST(embedding, accumulates_when_asked) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t rows : {0u, 20u})
    for (const std::ptrdiff_t padding : {-1, 3}) {
      problem<T> p({rows, 37}, {.padding_index = padding, .dweight = gradient::accumulate});
      p.dweight.assign(normal_values(7 * 37, 3));
      const auto wanted = p.dweight_wanted(p.dweight.f64());
      p.template both_ways<B>();
      EXPECT_EQ(p.dweight.f64(), wanted) << rows << " rows";
    }
}

TYPED_TEST(embedding, common_tokens_do_not_stop_growing) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({10000, 3});
  std::fill(p.ids.begin(), p.ids.end(), 5);
  p.dy.assign(std::vector<double>(30000, 1));
  tigon::embedding_backward<B>(p.dy, p.ids, p.dweight.view());
  for (std::size_t v = 0; v < 7; ++v)  // 10000 has no room in 8 bits
    for (std::size_t j = 0; j < 3; ++j) EXPECT_EQ(to_f64(p.dweight(v, j)), v == 5 ? to_f64(from_f64<T>(10000)) : 0);
}

TYPED_TEST(embedding, common_tokens_keep_what_a_sum_leaves_over) {
  using B = typename TypeParam::backend;
  using A = accumulator_t<typename TypeParam::element>;
  // The first of these is so large that the type has no odd numbers beside it; each of the other sums of 64 is 1.
  constexpr std::size_t count = 3 * tigon::simd::plain_rows, cols = 19;
  const A large = std::ldexp(A(1), std::numeric_limits<A>::digits);
  guarded_matrix<A> dy(count, cols), dweight(2, cols);
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t j = 0; j < cols; ++j) dy(i, j) = i == 0 ? large : A(i % tigon::simd::plain_rows == 0);
  const std::vector<std::int64_t> ids(count, 0);
  tigon::embedding_backward<B>(dy.view(), ids, dweight.view());
  for (std::size_t j = 0; j < cols; ++j) ASSERT_EQ(dweight(0, j), large + 2);
}

TEST(embedding_options, of_the_default_have_no_padding) {
  problem<float> p({7, 5});
  std::iota(p.ids.begin(), p.ids.end(), 0);
  p.both_ways<tigon::default_backend>();
  EXPECT_EQ(p.y.f64(), p.weight.f64());
  EXPECT_EQ(p.dweight.f64(), p.dweight_wanted());
}

TYPED_TEST(embedding, sparse_gradients_are_the_rows_of_dense_ones) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  auto shapes = row_shapes<B, T>();
  shapes.insert(shapes.end(), {{3, 0}, {40, 2 * lanes<B, T> + 3, 1}});
  for (const shape s : shapes)
    for (const std::ptrdiff_t padding : {-1, 3, 7})
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", padding token " << padding << ", " << side);
        problem<T> p(s, {.padding_index = padding}, side);
        if (s.rows > 1) p.ids[0] = 6, p.ids[s.rows - 1] = 0;  // the last and the first of the vocabulary
        const std::size_t room = std::min<std::size_t>(s.rows, 7);
        guarded<std::int64_t> tokens(room, side);
        guarded_matrix<T> drows(room, s.cols, s.padding, side);
        const auto dense = p.dweight_wanted();
        std::vector<std::int64_t> tokens_wanted;
        for (std::int64_t v = 0; v < 7; ++v)
          if (v != padding && std::ranges::count(p.ids, v) > 0) tokens_wanted.push_back(v);

        const std::size_t n = tigon::embedding_backward_sparse<B>(p.dy, p.ids, 7, tokens, drows.view(), p.opt);
        ASSERT_EQ(n, tokens_wanted.size());
        const auto got = drows.f64();
        for (std::size_t k = 0; k < n; ++k) {
          ASSERT_EQ(tokens[k], tokens_wanted[k]);
          for (std::size_t j = 0; j < s.cols; ++j)
            ASSERT_EQ(got[k * s.cols + j], dense[static_cast<std::size_t>(tokens[k]) * s.cols + j]);
        }
        const auto behind = [](auto bytes, std::size_t from) {
          return std::ranges::all_of(bytes.subspan(std::min(from, bytes.size())), [](std::byte b) {
            return b == std::byte{canary<T>} || b == std::byte{canary<std::int64_t>};
          });
        };
        EXPECT_TRUE(behind(drows.bytes(), n * (s.cols + s.padding) * sizeof(T)));
        EXPECT_TRUE(behind(tokens.bytes(), n * sizeof(std::int64_t)));
        EXPECT_TRUE(drows.padding_intact());

        // Adding it to a table is a backward pass of its own.
        if (n == 0) continue;
        const auto rows = drows.view().rows_from(0, n);
        tigon::embedding_backward<B>(rows, std::span(tokens).first(n), p.dweight.view());
        EXPECT_EQ(p.dweight.f64(), dense);
      }
}

TYPED_TEST(embedding, nan_stays_with_its_token) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({9, 11});
  p.dy(4, 5) = from_f64<T>(nan), p.weight(static_cast<std::size_t>(p.ids[4]), 2) = from_f64<T>(nan);
  p.template both_ways<B>();
  for (std::size_t v = 0; v < 7; ++v)
    for (std::size_t j = 0; j < 11; ++j)
      EXPECT_EQ(std::isnan(to_f64(p.dweight(v, j))), static_cast<std::int64_t>(v) == p.ids[4] && j == 5);
  for (std::size_t i = 0; i < 9; ++i)
    for (std::size_t j = 0; j < 11; ++j) EXPECT_EQ(std::isnan(to_f64(p.y(i, j))), p.ids[i] == p.ids[4] && j == 2);
}

TYPED_TEST(embedding, large_outputs_are_exact) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({B::row.stream_bytes / (1000 * sizeof(T)) + 2, 1001, 4});
  tigon::embedding_forward<B>(p.weight, p.ids, p.y.view());
  EXPECT_TRUE(p.y.padding_intact());
  for (std::size_t i = 0; i < p.y.rows(); ++i)
    ASSERT_TRUE(std::ranges::equal(std::as_bytes(std::span(&p.y(i, 0), 1001)),
                                   std::as_bytes(std::span(&p.weight(static_cast<std::size_t>(p.ids[i]), 0), 1001))));
}

TYPED_TEST(embedding, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({30, 20001});  // three rows of y or of dweight a task
  guarded<std::int64_t> tokens(7);
  guarded_matrix<T> drows(7, 20001);
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.y.clear(), p.dweight.clear(), tokens.clear(), drows.clear();
    p.template both_ways<B>(ctx);
    tigon::embedding_backward_sparse<B>(p.dy, p.ids, 7, tokens, drows.view(), p.opt, ctx);
    return bits_of(p.y, p.dweight, tokens, drows);
  }));
}

TEST(embedding_ids, may_have_32_bits) {
  problem<float, std::int32_t> p({20, 9}, {.padding_index = 3});
  p.both_ways<tigon::default_backend>();
  EXPECT_EQ(p.y.f64(), p.y_wanted());
  EXPECT_EQ(p.dweight.f64(), p.dweight_wanted());
  guarded<std::int32_t> tokens(7);
  guarded_matrix<float> drows(7, 9);
  ASSERT_EQ(tigon::embedding_backward_sparse(p.dy, p.ids, 7, tokens, drows.view(), p.opt), 2u);
  EXPECT_EQ(std::vector<std::int32_t>(tokens.begin(), tokens.begin() + 2), (std::vector<std::int32_t>{2, 5}));
  // A padding index that no id can have is none, even where its lower 32 bits are those of a token.
  p.opt.padding_index = (std::ptrdiff_t{1} << 32) + 3;
  p.both_ways<tigon::default_backend>();
  EXPECT_EQ(p.y.f64(), p.y_wanted());
}

/// The doors, which are the same for every backend: refused before the first write.
class embedding_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;
  problem<float> p{{3, 8, 2}};
  const view w = p.weight.view(), y = p.y.view(), dy = p.dy.view(), dw = p.dweight.view();
  const std::span<std::int64_t> ids{p.ids};
};

TEST_F(embedding_doors, forward_refuses) {
  const auto forward = [](view w, std::span<const std::int64_t> ids, view y) { tigon::embedding_forward(w, ids, y); };
  EXPECT_TIGON_ERROR(forward({w.data, 0, 8}, ids, y), shape, "embedding_forward: vocab is 0; expected at least 1", p.y);
  EXPECT_TIGON_ERROR(forward({w.data, 7, 8, 7}, ids, y), stride, "embedding_forward: weight is of row stride 7", p.y);
  EXPECT_TIGON_ERROR(forward({nullptr, 7, 8}, ids, y), shape, "embedding_forward: weight is a null pointer", p.y);
  EXPECT_TIGON_ERROR(forward(w, ids.first(2), y), shape, "embedding_forward: y is 3 x 8; expected 2 x 8", p.y);
  EXPECT_TIGON_ERROR(forward(w, ids, {y.data, 3, 7, 10}), shape, "embedding_forward: y is 3 x 7; expected 3 x 8", p.y);
  EXPECT_TIGON_ERROR(forward(w, ids, {y.data, 3, 8, 7}), stride, "embedding_forward: y is of row stride 7", p.y);
  EXPECT_TIGON_ERROR(forward(w, ids, w.rows_from(4, 3)), alias, "embedding_forward: y overlaps weight", p.weight);
  EXPECT_TIGON_ERROR(forward(w.cols_from(0, 1), ids.first(1), {reinterpret_cast<float*>(ids.data()), 1, 1}), alias,
                     "embedding_forward: y overlaps ids", p.ids);
}

TEST_F(embedding_doors, backward_refuses) {
  const auto backward = [](view dy, std::span<const std::int64_t> ids, view dw) {
    tigon::embedding_backward(dy, ids, dw);
  };
  EXPECT_TIGON_ERROR(backward(dy, ids, {dw.data, 0, 8}), shape, "embedding_backward: vocab is 0; expected at least 1",
                     p.dweight);
  EXPECT_TIGON_ERROR(backward(dy, ids, {dw.data, 7, 8, 7}), stride, "embedding_backward: dweight is of row stride 7",
                     p.dweight);
  EXPECT_TIGON_ERROR(backward(dy, ids, {nullptr, 7, 8}), shape, "embedding_backward: dweight is a null pointer",
                     p.dweight);
  EXPECT_TIGON_ERROR(backward(dy, ids.first(2), dw), shape, "embedding_backward: dy is 3 x 8; expected 2 x 8",
                     p.dweight);
  EXPECT_TIGON_ERROR(backward({dy.data, 3, 8, 7}, ids, dw), stride, "embedding_backward: dy is of row stride 7",
                     p.dweight);
  EXPECT_TIGON_ERROR(backward(dw.rows_from(0, 3), ids, dw), alias, "embedding_backward: dweight overlaps dy",
                     p.dweight);
  EXPECT_TIGON_ERROR(
      backward(dy.rows_from(0, 1).cols_from(0, 1), ids.first(1), {reinterpret_cast<float*>(ids.data()), 4, 1}), alias,
      "embedding_backward: dweight overlaps ids", p.ids);
}

TEST_F(embedding_doors, backward_sparse_refuses) {
  guarded<std::int64_t> tokens(3);
  guarded_matrix<float> drows(3, 8, 2);
  const view rows = drows.view();
  const auto backward = [&](view dy, std::span<const std::int64_t> ids, std::span<std::int64_t> tokens, view rows,
                            tigon::embedding_options opt = {}, std::size_t vocab = 7) {
    tigon::embedding_backward_sparse(dy, ids, vocab, tokens, rows, opt);
  };
  EXPECT_TIGON_ERROR(backward(dy, ids, tokens, rows, {}, 0), shape,
                     "embedding_backward_sparse: vocab is 0; expected at least 1", tokens, drows);
  EXPECT_TIGON_ERROR(backward(dy, ids.first(2), tokens, rows), shape,
                     "embedding_backward_sparse: dy is 3 x 8; expected 2 x 8", tokens, drows);
  EXPECT_TIGON_ERROR(backward({dy.data, 3, 7, 10}, ids, tokens, rows), shape,
                     "embedding_backward_sparse: dy is 3 x 7; expected 3 x 8", tokens, drows);
  EXPECT_TIGON_ERROR(backward({dy.data, 3, 8, 7}, ids, tokens, rows), stride,
                     "embedding_backward_sparse: dy is of row stride 7", tokens, drows);
  EXPECT_TIGON_ERROR(backward(dy, ids, tokens, {rows.data, 3, 8, 7}), stride,
                     "embedding_backward_sparse: drows is of row stride 7", tokens, drows);
  EXPECT_TIGON_ERROR(backward(dy, ids, tokens, {nullptr, 3, 8}), shape,
                     "embedding_backward_sparse: drows is a null pointer", tokens, drows);
  EXPECT_TIGON_ERROR(backward(dy, ids, std::span(tokens).first(2), rows), shape,
                     "embedding_backward_sparse: tokens is of 2 elements; expected 3", tokens, drows);
  EXPECT_TIGON_ERROR(backward(dy, ids, std::span(tokens).first(2), rows.rows_from(0, 2)), shape,
                     "embedding_backward_sparse: drows is of too few rows; expected as many", tokens, drows);
  EXPECT_TIGON_ERROR(backward(dy, ids, tokens, rows, {.dweight = gradient::accumulate}), argument,
                     "embedding_backward_sparse: dweight is gradient::accumulate; expected gradient::overwrite", tokens,
                     drows);
  EXPECT_TIGON_ERROR(backward(rows, ids, tokens, rows), alias, "embedding_backward_sparse: drows overlaps dy", tokens,
                     drows);
  EXPECT_TIGON_ERROR(backward(dy, ids, ids, rows), alias, "embedding_backward_sparse: tokens overlaps ids", p.ids,
                     drows);
  EXPECT_TIGON_ERROR(backward(dy.cols_from(0, 1), ids, tokens, {reinterpret_cast<float*>(tokens.data()), 3, 1}), alias,
                     "embedding_backward_sparse: drows overlaps tokens", tokens);
  EXPECT_TIGON_ERROR(backward(dy.cols_from(0, 1), ids, tokens, {reinterpret_cast<float*>(ids.data()), 3, 1}), alias,
                     "embedding_backward_sparse: drows overlaps ids", p.ids);
  p.ids[2] = 7;
  EXPECT_TIGON_ERROR(backward(dy, ids, tokens, rows), index,
                     "embedding_backward_sparse: ids[2] is 7; expected at least 0 and below 7", tokens, drows);
  EXPECT_EQ(tigon::embedding_backward_sparse(view{nullptr, 0, 8}, std::span<std::int64_t>(), 7,
                                             std::span<std::int64_t>(), view{nullptr, 0, 8}),
            0u);
}

TEST_F(embedding_doors, refuse_ids_outside) {
  for (const std::int64_t bad :
       {std::int64_t{-1}, std::int64_t{7}, std::int64_t{1} << 32, std::numeric_limits<std::int64_t>::min()}) {
    p.ids[2] = bad;
    const std::string says = "ids[2] is " + std::to_string(bad) + "; expected at least 0 and below 7";
    EXPECT_TIGON_ERROR(tigon::embedding_forward(w, ids, y), index, "embedding_forward: " + says, p.y);
    EXPECT_TIGON_ERROR(tigon::embedding_backward(dy, ids, dw), index, "embedding_backward: " + says, p.dweight);
  }
}

TEST_F(embedding_doors, backward_needs_the_workspace_that_it_names) {
  for (const std::size_t threads : {1u, 3u})
    with_workspace_of(
        64,
        [&](context& of_size) {
          const std::size_t bytes = tigon::embedding_workspace<tigon::default_backend, float>(7, 3, 8, of_size);
          const auto call = [&](context& ctx) { tigon::embedding_backward(dy, ids, dw, {}, ctx); };
          p.dweight.clear();
          EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call, threads), workspace,
                             "embedding_backward: workspace is of", p.dweight);
          with_workspace_of(bytes, call, threads);
          EXPECT_FALSE(p.dweight.untouched());
          guarded<std::int64_t> tokens(3);
          guarded_matrix<float> drows(3, 8);
          const auto sparse = [&](context& ctx) {
            tigon::embedding_backward_sparse(dy, ids, 7, tokens, drows.view(), {}, ctx);
          };
          EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, sparse, threads), workspace,
                             "embedding_backward_sparse: workspace is of", tokens, drows);
          with_workspace_of(bytes, sparse, threads);
          EXPECT_FALSE(drows.untouched());
        },
        threads);
}

}  // namespace
