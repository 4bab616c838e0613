// The loops over blocks: of rows, of independent elements, and of columns whose parameters stay in the buffer for all
// rows.
#ifndef TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_LOOPS_HPP
#define TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_LOOPS_HPP

#include <tigon/backends/ascend/unified_buffer/vector_core.hpp>

namespace tigon::unified_buffer {
inline namespace TIGON_ABI {

/// f(core, items) for every program: `items(g)` calls g(item) for the program's share of the work.
template <class Plan, class F>
void for_programs(context& ctx, std::size_t items, std::size_t most_programs, F f) {
  expect_capacity<typename Plan::backend>();
  const std::size_t grid = std::min(most_programs, items);
  const std::size_t chunk = grid == 0 ? 0 : ceil_div(items, grid);
  ctx.executor().run(grid, [&](std::size_t program, std::size_t worker) TIGON_FLATTEN {
    constexpr bool chunked = Plan::rule.order == tiling::schedule::chunked;
    vector_core<Plan> core(0, 0, {1, 1, 1});
    core.worker = worker;
    f(core, program, [=](auto item) TIGON_LAMBDA {
      const std::size_t end = chunked ? std::min(items, (program + 1) * chunk) : items;
      for (std::size_t i = chunked ? program * chunk : program; i < end; i += chunked ? 1 : grid) item(i);
    });
  });
}

/// f(core, tiles...) for every block of rows.
template <class Plan, class F, class... Operand>
void for_row_blocks(context& ctx, std::size_t rows, std::size_t cols, cut by, F f, Operand... operand) {
  for_programs<Plan>(ctx, ceil_div(rows, by.rows), by.programs, [=](auto& core, std::size_t, auto blocks) TIGON_LAMBDA {
    core.shape(rows, cols, by);
    auto tiles = core.place(operand...);
    blocks([&](std::size_t block) TIGON_LAMBDA {
      core.rows_at(block);
      std::apply([&](auto&... t) TIGON_LAMBDA { f(core, t...); }, tiles);
    });
  });
}

/// f(core, tiles...) for every block of matrices whose elements are independent of one another. Matrices without
/// padding are cut as the one row that they are in memory.
template <class Plan, class F, class T, class... M>
void for_blocks(context& ctx, F f, matrix_view<T> first, M... more) {
  std::size_t rows = first.rows, cols = first.cols;
  const bool dense = first.row_stride == cols && ((more.row_stride == cols) && ... && true);
  if (dense) cols *= std::exchange(rows, rows == 0 ? 0 : 1);
  if (cols == 0) return;
  const std::size_t width = std::min(cols, Plan::block);
  const cut by{width < cols ? 1 : std::clamp<std::size_t>(Plan::block / width, 1, std::max<std::size_t>(rows, 1)),
               width, Plan::programs};
  const std::size_t across = ceil_div(cols, width);
  for_programs<Plan>(ctx, ceil_div(rows, by.rows) * across, by.programs,
                     [=](auto& core, std::size_t, auto blocks) TIGON_LAMBDA {
                       core.shape(rows, cols, by);
                       core.visits_once();
                       auto tiles = core.place(first, more...);
                       blocks([&](std::size_t block) TIGON_LAMBDA {
                         core.rows_at(block / across);
                         core.cols_at(block % across);
                         std::apply([&](auto&... t) TIGON_LAMBDA { f(core, t...); }, tiles);
                       });
                     });
}

/// y = x * factor, with one factor for all rows or one a row; y may be x. A 0 stays 0 for any factor.
template <class Plan, class T, class A>
void multiply_rows(context& ctx, matrix_view<const T> x, vector_view<const A> factor, matrix_view<T> y, cut by) {
  const bool common = factor.size == 1;
  for_row_blocks<Plan>(
      ctx, y.rows, y.cols, by,
      [=](auto& core, auto& xt, auto& yt) TIGON_LAMBDA {
        core.pass(reads(xt), writes(yt), [&](auto row, auto xv, auto yv) TIGON_LAMBDA {
          const A f = factor.data[common ? 0 : core.row + row.i];
          if (math::abs(f) <= std::numeric_limits<A>::max())
            row.map(tigon::reads(xv), tigon::writes(yv), [=](auto v) { return v * f; });
          else
            row.map(tigon::reads(xv), tigon::writes(yv), [=](auto v) {
              const decltype(v) zero(A(0));
              return select(v == zero, zero, v * f);
            });
        });
      },
      x, y);
}

/// How a matrix whose columns share parameters is cut: strip (c, r) is block c of the columns in every `down`-th block
/// of the rows, from block r on. As many strips as programs, where there are not more blocks of columns than that.
struct strips {
  cut by;
  std::size_t row_blocks = 0, across = 0, down = 0;

  constexpr strips(cut of, std::size_t rows, std::size_t cols, std::size_t most_down = nothing) : by(of) {
    if (cols == 0) return;
    row_blocks = ceil_div(rows, by.rows), across = ceil_div(cols, by.cols);
    down = std::min({std::max<std::size_t>(by.programs / across, 1), row_blocks, most_down});
  }
  constexpr std::size_t count() const { return across * down; }
};

/// f(core, strip, blocks, tiles...) for every strip: `blocks(g)` calls g() for each block of it.
template <class Plan, class F, class... Operand>
void for_strips(context& ctx, std::size_t rows, std::size_t cols, strips s, F f, Operand... operand) {
  for_programs<Plan>(ctx, s.count(), s.by.programs, [=](auto& core, std::size_t, auto items) TIGON_LAMBDA {
    core.shape(rows, cols, s.by);
    auto tiles = core.place(operand...);
    items([&](std::size_t strip) TIGON_LAMBDA {
      core.cols_at(strip % s.across);
      const auto blocks = [&](auto g) TIGON_LAMBDA {
        for (std::size_t block = strip / s.across; block < s.row_blocks; block += s.down) {
          core.rows_at(block);
          g();
        }
      };
      std::apply([&](auto&... t) TIGON_LAMBDA { f(core, strip, blocks, t...); }, tiles);
    });
  });
}

}  // namespace TIGON_ABI
}  // namespace tigon::unified_buffer

#endif  // TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_LOOPS_HPP
