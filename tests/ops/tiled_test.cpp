// The contract of include/tigon/ops/tiled.hpp, promise by promise.
// Operators: several
#include <gtest/gtest.h>

#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/tiled.hpp>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::float16, tigon::gradient, tigon::matrix_view;
using tigon::tile, tigon::tile_sums, tigon::tiled_options;

constexpr by_type bound{.f32 = 2.5e-6, .bf16 = 4.1e-3, .f16 = 7e-4, .f64 = 5e-15};

/// y = x w + b, column by column, and the tiles that it was called for.
template <class T>
struct affine {
  const std::vector<double>& w;
  const std::vector<double>& b;
  std::vector<tile>* seen;

  void operator()(matrix_view<const T> x, matrix_view<T> y, tile t, context&) const {
    seen->push_back(t);
    EXPECT_EQ(x.rows, t.rows);
    for (std::size_t i = 0; i < x.rows; ++i)
      for (std::size_t j = 0; j < x.cols; ++j) y.row(i)[j] = from_f64<T>(to_f64(x.row(i)[j]) * w[j] + b[j]);
  }
  template <class A>
  void operator()(matrix_view<const T> dy, matrix_view<const T> x, matrix_view<T> dx, const tile_sums<A, 2>& sums,
                  tile t, context&) const {
    seen->push_back(t);
    EXPECT_EQ(dy.rows, t.rows);
    for (std::size_t j = 0; j < x.cols; ++j) {
      double dw = 0, db = 0;
      for (std::size_t i = 0; i < x.rows; ++i) {
        const double d = to_f64(dy.row(i)[j]);
        dw += d * to_f64(x.row(i)[j]), db += d;
        if (dx.data != nullptr) dx.row(i)[j] = from_f64<T>(d * w[j]);
      }
      const double share[] = {dw, db};
      for (std::size_t k = 0; k < 2; ++k) {
        if (sums.of[k].data == nullptr) continue;
        A& to = sums.of[k].data[j];
        to = static_cast<A>(share[k]) + (sums.mode == gradient::accumulate ? to : A(0));
      }
    }
  }
};

template <class T, class G = T>
struct problem {
  std::size_t rows, cols;
  guarded_matrix<T> x, y, dy, dx;
  std::vector<double> w, b;
  guarded_matrix<G> dw, db;
  std::vector<tile> seen;
  affine<T> f;

  TIGON_TEST_NOINLINE problem(std::size_t r, std::size_t c)
      : rows(r),
        cols(c),
        x(random_matrix<T>({r, c, 2}, 1)),
        y(r, c, 1),
        dy(random_matrix<T>({r, c, 3}, 2)),
        dx(r, c, 1),
        w(normal_values(c, 3)),
        b(normal_values(c, 4)),
        dw(1, c),
        db(1, c),
        f{w, b, &seen} {
    dw.assign(std::vector<double>(c, 5)), db.assign(std::vector<double>(c, 7));
  }
  template <class B>
  TIGON_TEST_NOINLINE void run(tiled_options opt, context& ctx = tigon::default_context()) {
    seen.clear();
    tigon::tiled_forward<B>(x.view(), y.view(), opt, f, ctx);
    tigon::tiled_backward<B>(dy.view(), x.view(), dx.view(), {dw.view(), db.view()}, opt, f, ctx);
  }
};

template <class On>
class tiled : public testing::Test {};
TYPED_TEST_SUITE(tiled, every_pair, names);

TYPED_TEST(tiled, is_the_function_of_all_rows) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t rows : {0u, 1u, 7u, 200u})
    for (const std::size_t tiles : {1u, 3u, 150u, 1000u})
      for (const gradient mode : {gradient::overwrite, gradient::accumulate}) {
        SCOPED_TRACE(testing::Message() << rows << " rows, " << tiles << " tiles");
        problem<T> p(rows, 5);
        p.template run<B>({.tiles = tiles, .dw = mode});
        const auto x = p.x.f64(), y = p.y.f64(), dy = p.dy.f64(), dx = p.dx.f64();
        std::vector<double> dw(5, 0.0), db(5, 0.0), most_dw(5, 0.0), most_db(5, 0.0);
        if (mode == gradient::accumulate)
          std::fill(dw.begin(), dw.end(), 5), std::fill(db.begin(), db.end(), 7), most_dw = dw, most_db = db;
        for (std::size_t i = 0; i < x.size(); ++i) {
          const std::size_t j = i % 5;
          ASSERT_EQ(y[i], to_f64(from_f64<T>(x[i] * p.w[j] + p.b[j]))) << i;
          ASSERT_EQ(dx[i], to_f64(from_f64<T>(dy[i] * p.w[j]))) << i;
          dw[j] += dy[i] * x[i], most_dw[j] += std::abs(dy[i] * x[i]);
          db[j] += dy[i], most_db[j] += std::abs(dy[i]);
        }
        for (std::size_t j = 0; j < 5; ++j) {
          EXPECT_NEAR(to_f64(p.dw(0, j)), dw[j], bound.of<T>() * most_dw[j]) << j;
          EXPECT_NEAR(to_f64(p.db(0, j)), db[j], bound.of<T>() * most_db[j]) << j;
        }
        EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
        // Both passes have the same tiles, one behind the other.
        const std::size_t count = p.seen.size() / 2;
        for (std::size_t k = 0, begin = 0; k < count; begin += p.seen[k++].rows) {
          EXPECT_EQ(p.seen[k].begin, begin);
          EXPECT_EQ(p.seen[count + k].begin, begin);
          EXPECT_EQ(p.seen[count + k].rows, p.seen[k].rows);
        }
        EXPECT_EQ(count, rows == 0 ? 1 : (rows + (rows - 1) / tiles) / ((rows - 1) / tiles + 1));
      }
}

/// Every row adds one to db. Added up in 16 bits the sum stays at 256, or 2048.
TYPED_TEST(tiled, sums_are_not_rounded_from_tile_to_tile) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const std::size_t rows = 3000;
  for (const std::size_t tiles : {1u, 60u, 3000u}) {
    problem<T> p(rows, 3);
    p.dy.assign(std::vector<double>(rows * 3, 1.0));
    p.template run<B>({.tiles = tiles});
    for (std::size_t j = 0; j < 3; ++j) EXPECT_NEAR(to_f64(p.db(0, j)), 3000, bound.of<T>() * 3000) << tiles;
  }
}

TYPED_TEST(tiled, gradients_may_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> full(20, 5);
  full.template run<B>({.tiles = 3});
  for (int which = 0; which < 8; ++which) {
    problem<T> p(20, 5);
    p.dw.clear(), p.db.clear();
    const bool dx = which & 1, dw = which & 2, db = which & 4;
    const auto given = [](bool is, auto& m) { return is ? m.view() : decltype(m.view()){}; };
    tigon::tiled_backward<B>(p.dy.view(), p.x.view(), given(dx, p.dx), {given(dw, p.dw), given(db, p.db)}, {.tiles = 3},
                             p.f);
    EXPECT_TRUE(dx ? bits_of(p.dx) == bits_of(full.dx) : p.dx.untouched()) << which;
    EXPECT_TRUE(dw ? bits_of(p.dw) == bits_of(full.dw) : p.dw.untouched()) << which;
    EXPECT_TRUE(db ? bits_of(p.db) == bits_of(full.db) : p.db.untouched()) << which;
  }
}

/// Terms that are all alike, one a tile: every addition of a tile's share is rounded the same way.
TEST(tiled_sums, keep_their_error_for_any_number_of_tiles) {
  const std::size_t tiles = 1 << 14;
  const auto error = [&]<class G>(G, double most) {
    const std::vector<float> x(tiles, 0.7f), dy(tiles, 0.3f);
    std::vector<G> sum(1);
    const matrix_view<const float> of_x(x.data(), tiles, 1), of_dy(dy.data(), tiles, 1);
    tigon::tiled_backward<tigon::default_backend>(
        of_dy, of_x, matrix_view<float>{}, {matrix_view<G>(sum.data(), 1, 1)}, {.tiles = tiles},
        [](matrix_view<const float> d, matrix_view<const float> v, matrix_view<float> dx,
           const tile_sums<accumulator_t<G>, 1>& sums, tile, context&) {
          EXPECT_EQ(dx.data, nullptr);
          accumulator_t<G>& to = *sums.of[0].data;
          to = static_cast<accumulator_t<G>>(d.data[0] * v.data[0]) + (sums.mode == gradient::accumulate ? to : 0);
        });
    const double wanted = static_cast<double>(tiles) * static_cast<double>(0.3f * 0.7f);
    EXPECT_NEAR(to_f64(sum[0]), wanted, most * wanted);
  };
  error(float(), bound.f32), error(double(), bound.f64), error(bfloat16(), bound.bf16), error(float16(), bound.f16);
}

/// A norm whose rstd is computed again in backward, on the workers of the context.
TYPED_TEST(tiled, runs_operators_with_the_same_bits_for_any_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  const std::size_t rows = 300, cols = 40, tiles = 4;
  problem<T> p(rows, cols), whole(rows, cols);
  const std::vector<T> w(cols, from_f64<T>(1.5));
  guarded<A> rstd(rows);
  tigon::rms_norm_forward<B>(whole.x.view(), w, whole.y.view(), rstd);
  tigon::rms_norm_backward<B>(whole.dy.view(), whole.x.view(), w, rstd, whole.dx.view(),
                              std::span<T>(whole.dw.view().data, cols));
  const std::size_t bytes = tigon::rms_norm_workspace<B, T>(rows / tiles, cols);
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.y.clear(), p.dx.clear(), p.dw.clear();
    const tiled_options opt{.tiles = tiles, .workspace = bytes};
    tigon::tiled_forward<B>(
        p.x.view(), p.y.view(), opt,
        [&](matrix_view<const T> x, matrix_view<T> y, tile t, context& own) {
          tigon::rms_norm_forward<B>(x, w, y, std::span<A>(rstd.data() + t.begin, t.rows), {}, own);
        },
        ctx);
    EXPECT_EQ(bits_of(p.y), bits_of(whole.y));
    tigon::tiled_backward<B>(
        p.dy.view(), p.x.view(), p.dx.view(), {p.dw.view()}, opt,
        [&](matrix_view<const T> dy, matrix_view<const T> x, matrix_view<T> dx, const tile_sums<A, 1>& sums, tile t,
            context& own) {
          const std::vector<A> wide(w.begin(), w.end());
          tigon::rms_norm_backward<B>(dy, x, wide, std::span<A>(rstd.data() + t.begin, t.rows), dx,
                                      std::span<A>(sums.of[0].data, cols), {.dw = sums.mode}, own);
        },
        ctx);
    return bits_of(p.y, p.dx, p.dw);
  }));
  EXPECT_EQ(bits_of(p.dx), bits_of(whole.dx));
  EXPECT_TRUE(close(p.dw.f64(), whole.dw.f64(), 2 * bound.of<T>()));
}

TEST(tiled_places, may_be_those_of_x_and_dy) {
  using B = tigon::default_backend;
  problem<float> apart(20, 5), p(20, 5), on_x(20, 5);
  apart.run<B>({.tiles = 3});
  tigon::tiled_backward<B>(p.dy.view(), p.x.view(), p.dy.view(), {p.dw.view(), p.db.view()}, {.tiles = 3}, p.f);
  tigon::tiled_forward<B>(on_x.x.view(), on_x.x.view(), {.tiles = 3}, on_x.f);
  EXPECT_EQ(p.dy.f64(), apart.dx.f64());
  EXPECT_EQ(bits_of(p.dw, p.db), bits_of(apart.dw, apart.db));
  EXPECT_EQ(on_x.x.f64(), apart.y.f64());
  // Without parameters.
  apart.dx.clear();
  tigon::tiled_backward<B>(apart.dy.view(), apart.x.view(), apart.dx.view(), {.tiles = 3},
                           [&](auto dy, auto x, auto dx, tile t, context& ctx) {
                             apart.f(dy, x, dx, tile_sums<float, 2>{{}, gradient::overwrite}, t, ctx);
                           });
  EXPECT_EQ(p.dy.f64(), apart.dx.f64());
}

TEST(tiled_memory, is_what_it_names) {
  using B = tigon::default_backend;
  const auto check = [&]<class G>(G, std::size_t tiles) {
    problem<float, G> p(200, 5);
    const std::size_t bytes = tigon::tiled_workspace<B, G>(200, tiles, {std::size_t{5}, std::size_t{5}}) + 100;
    const tiled_options opt{.tiles = tiles, .workspace = 100};
    const auto run = [&](context& ctx) {
      tigon::tiled_backward<B>(p.dy.view(), p.x.view(), p.dx.view(), {p.dw.view(), p.db.view()}, opt, p.f, ctx);
    };
    EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, run), workspace, "tiled_backward: workspace is of", p.dx, p.dw,
                       p.db);
    with_workspace_of(bytes, run);
    return bytes;
  };
  EXPECT_EQ(check(float(), 64), 100u);
  EXPECT_GT(check(float(), 100), 100u);
  EXPECT_GT(check(bfloat16(), 1), 100u);
}

TEST(tiled_doors, refuse_before_the_first_write) {
  using B = tigon::default_backend;
  problem<float> p(4, 5);
  const auto forward = [&](auto x, auto y, tiled_options opt) { tigon::tiled_forward<B>(x, y, opt, p.f); };
  const auto backward = [&](auto dy, auto dx, auto dw, tiled_options opt) {
    tigon::tiled_backward<B>(dy, p.x.view(), dx, {dw, p.db.view()}, opt, p.f);
  };
  const auto x = p.x.view(), y = p.y.view(), dy = p.dy.view(), dx = p.dx.view(), dw = p.dw.view();
  EXPECT_TIGON_ERROR(forward(x, y, {.tiles = 0}), argument, "tiled_forward: tiles is 0; expected at least 1", p.y);
  EXPECT_TIGON_ERROR(forward(x, y.rows_from(0, 3), {}), shape, "tiled_forward: y is 3 x 5; expected 4 x 5", p.y);
  EXPECT_TIGON_ERROR(forward(x.rows_from(0, 2), x.rows_from(1, 2), {}), alias, "tiled_forward: y overlaps x", p.x);
  EXPECT_TIGON_ERROR(backward(dy, dx, dw, {.tiles = 0}), argument, "tiled_backward: tiles is 0", p.dx, p.dw, p.db);
  EXPECT_TIGON_ERROR(backward(dy.rows_from(0, 3), dx, dw, {}), shape, "tiled_backward: dy is 3 x 5; expected 4 x 5",
                     p.dx, p.dw, p.db);
  EXPECT_TIGON_ERROR(backward(dy, dx.cols_from(0, 4), dw, {}), shape, "tiled_backward: dx is 4 x 4; expected 4 x 5",
                     p.dx, p.dw, p.db);
  EXPECT_TIGON_ERROR(backward(dy, dx, p.db.view(), {}), alias, "tiled_backward: dw overlaps dw", p.dx, p.dw, p.db);
  EXPECT_TIGON_ERROR(backward(dy, dx, dx.rows_from(0, 1), {}), alias, "tiled_backward: dw overlaps dx", p.dx, p.db);
  EXPECT_TRUE(p.seen.empty());
}

}  // namespace
