// Parameter gradients: every program adds up a partial row, and these are combined.
#ifndef TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_PARTIALS_HPP
#define TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_PARTIALS_HPP

#include <tigon/backends/ascend/unified_buffer/loops.hpp>

namespace tigon::unified_buffer {
inline namespace TIGON_ABI {

/// The gradient of a parameter from the partial rows of all programs: added in pairs, level by level, and rounded once.
template <class Plan, class A, class W>
void combine(context& ctx, matrix_view<const A> partials, simd::parameter_gradient<W> g) {
  static_assert(std::bit_ceil(Plan::programs) <= Plan::block);
  if (g.out.data == nullptr) return;
  const std::size_t cols = partials.cols, programs = partials.rows;
  const std::size_t width = std::min(Plan::block / std::bit_ceil(std::max<std::size_t>(programs, 1)), cols);
  const bool add = g.mode == gradient::accumulate;
  for_programs<Plan>(
      ctx, ceil_div(cols, width), Plan::programs, [=](auto& core, std::size_t, auto blocks) TIGON_LAMBDA {
        core.shape(programs, cols, {std::max<std::size_t>(programs, 1), width, 1});
        auto tiles = core.place(partials, vector_view<const W>(g.out), g.out);
        std::apply(
            [&](auto& sums, auto& old, auto& out) TIGON_LAMBDA {
              blocks([&](std::size_t block) TIGON_LAMBDA {
                core.cols_at(block);
                core.fetch(sums);
                if (add) core.fetch(old);
                const std::size_t n = core.col_count;
                const simd::row_worker<typename Plan::backend, A> row(0, n);
                const auto sum = [&](std::size_t k) TIGON_LAMBDA { return vector_view<A>{sums.data + k * width, n}; };
                for (std::size_t step = 1; step < programs; step *= 2)
                  for (std::size_t k = 0; k + step < programs; k += 2 * step)
                    row.map(tigon::reads(sum(k), sum(k + step)), tigon::writes(sum(k)),
                            [](auto a, auto b) { return a + b; });
                if (programs == 0) std::fill(sums.data, sums.data + n, A(0));
                if (add)
                  row.map(tigon::reads(sum(0), vector_view<W>{old.data, n}), tigon::writes(vector_view<W>{out.data, n}),
                          [](auto s, auto v) { return v + s; });
                else
                  row.map(tigon::reads(sum(0)), tigon::writes(vector_view<W>{out.data, n}), [](auto s) { return s; });
                core.store(out);
              });
            },
            tiles);
      });
}

/// How many programs add up rows, and in how many rows of memory each: three where it has to keep totals, for fewer
/// programs if memory is for no more.
struct sums_of_programs {
  std::size_t programs, rows = 1;

  constexpr sums_of_programs(std::size_t grid, std::size_t row_blocks, std::size_t block_rows, std::size_t reserved)
      : programs(grid) {
    if (grid == 0 || ceil_div(row_blocks, grid) * block_rows <= simd::plain_rows) return;
    rows = simd::rows_per_sum(simd::plain_rows + 1);
    programs = std::clamp<std::size_t>(reserved / rows, 1, grid);
  }
};

/// The partial rows of one program, `count` of them, in columns [first, first + n). Where it adds up more than
/// simd::plain_rows rows, the high and the low parts of their compensated totals lie behind them.
template <class V>
class program_sums {
  using A = typename V::value_type;

 public:
  TIGON_INLINE program_sums(A* memory, std::size_t count, std::size_t stride, bool totals, std::size_t first,
                            std::size_t n)
      : memory_(memory + first), count_(count), stride_(stride), n_(n), totals_(totals) {
    for (std::size_t k = 0; k < (totals ? 3 : 1) * count; ++k) std::fill_n(memory_ + k * stride, n, A(0));
  }
  /// Before so many rows more; flush() writes back what a tile holds of the sums.
  template <class F>
  TIGON_INLINE void before(std::size_t rows, F flush) {
    if (totals_ && plain_ + rows > simd::plain_rows) {
      flush();
      add_to_totals<simd::sums_after::zero>();
      plain_ = 0;
    }
    plain_ += rows;
  }
  /// After the last: the partial rows become the totals.
  template <class F>
  TIGON_INLINE void finish(F flush) const {
    flush();
    if (totals_) add_to_totals<simd::sums_after::total>();
  }

 private:
  template <simd::sums_after After>
  TIGON_INLINE void add_to_totals() const {
    for (std::size_t k = 0; k < count_; ++k) {
      A* const sums = memory_ + k * stride_;
      simd::add_to_total<V, After>(sums, sums + count_ * stride_, sums + 2 * count_ * stride_, n_);
    }
  }

  A* memory_;
  std::size_t count_, stride_, n_, plain_ = 0;
  bool totals_;
};

/// As for_row_blocks, in two steps: sum(core, values, tiles...) leaves in values[i] what row i of the block needs of
/// its whole length; write(core, values, tiles...) works on the present block of columns. `sum` and `write` are given
/// a tile of each partial row of a parameter gradient first, and then those of the operands. Where rows have several
/// blocks of columns, some rows share the visit to a block, so that partial rows and weights are copied more rarely.
/// If it has a member `rest`, write.rest(core, values, flush, sums...) is called behind all blocks, where flush()
/// brings the partial rows to the memory that `sums` are.
/// Programs of more than simd::plain_rows rows keep compensated totals behind their partial rows.
template <class Plan, class S, class Sum, class Write, class... W, class... Operand>
void for_row_blocks_with_partials(context& ctx, std::size_t rows, std::size_t cols, cut by, Sum sum, Write write,
                                  std::tuple<simd::parameter_gradient<W>...> gradients, Operand... operand) {
  using A = typename Plan::accumulator;
  constexpr std::size_t K = sizeof...(W);
  by.rows = std::min(by.rows, simd::plain_rows);
  // No more partial rows than the public function has reserved memory for.
  const std::size_t row_blocks = ceil_div(rows, by.rows);
  const std::size_t stride = workspace::padded<A>(cols);
  std::size_t reserved = row_blocks;
  if constexpr (K != 0)
    reserved = (simd::partials_workspace<typename Plan::backend, A>(rows, cols, K) - workspace::alignment) /
               (K * stride * sizeof(A));
  const sums_of_programs sums(std::min({by.programs, reserved, row_blocks}), row_blocks, by.rows, reserved);
  const std::size_t grid = sums.programs, step = sums.rows * K * stride;
  using V = simd::vec<typename Plan::backend::engine, A>;
  workspace::frame frame(ctx.workspace());
  A* partials = frame.template take<A>(grid * step);
  for_programs<Plan>(ctx, row_blocks, grid, [=](auto& core, std::size_t program, auto blocks) TIGON_LAMBDA {
    A* own = partials + program * step;
    program_sums<V> partial_rows(own, K, stride, sums.rows > 1, 0, cols);
    core.shape(rows, cols, by);
    auto tiles = [&]<std::size_t... k>(std::index_sequence<k...>) TIGON_LAMBDA {
      return core.place(local<S>{}, (static_cast<void>(k), partial<A>{own + k * stride})..., operand...);
    }(std::make_index_sequence<K>{});
    std::apply(
        [&](auto& values, auto&... t) TIGON_LAMBDA {
          const std::size_t most = core.whole_rows() ? 1 : Plan::group;
          std::size_t group[Plan::group], count = 0;
          const auto flush = [&]() TIGON_LAMBDA { (core.flush(t), ...); };
          const auto work = [&]() TIGON_LAMBDA {
            partial_rows.before(count * by.rows, flush);
            for (std::size_t k = 0; k < count; ++k) {
              core.rows_at(group[k]);
              sum(core, values.data + k, t...);
            }
            for (std::size_t j = 0; j < core.col_blocks(); ++j) {
              core.cols_at(j);
              for (std::size_t k = 0; k < count; ++k) {
                core.rows_at(group[k]);
                write(core, values.data + k, t...);
              }
            }
            if constexpr (requires { write.rest; })
              for (std::size_t k = 0; k < count; ++k) {
                core.rows_at(group[k]);
                [&]<std::size_t... p>(std::index_sequence<p...>) TIGON_LAMBDA {
                  write.rest(core, values.data + k, flush, vector_view<A>{own + p * stride, cols}...);
                }(std::make_index_sequence<K>{});
              }
            count = 0;
          };
          blocks([&](std::size_t block) TIGON_LAMBDA {
            group[count++] = block;
            if (count == most) work();
          });
          if (count != 0) work();
          partial_rows.finish(flush);
        },
        tiles);
  });
  [&]<std::size_t... k>(std::index_sequence<k...>) {
    (combine<Plan>(ctx, matrix_view<const A>(partials + k * stride, grid, cols, step), std::get<k>(gradients)), ...);
  }(std::make_index_sequence<K>{});
}

}  // namespace TIGON_ABI
}  // namespace tigon::unified_buffer

#endif  // TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_PARTIALS_HPP
