// Rows of two steps, software-pipelined: the second step of a row overlaps the first step of the next.
#ifndef TIGON_ROWS_LANES_PIPELINED_HPP
#define TIGON_ROWS_LANES_PIPELINED_HPP

#include <tigon/rows/lanes/row.hpp>

#include <algorithm>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace detail {

// Columns of a block: no more than so many blocks a row, and whole steps of a loop.
constexpr std::size_t pipelined_columns(std::size_t cols, std::size_t wanted, std::size_t most_blocks) {
  constexpr std::size_t step = 256;
  const std::size_t all = most_blocks * step;
  return std::max(wanted, (cols + all - 1) / all * step);
}

// Rows of a task: the first and the last of them overlap no other.
template <class B>
constexpr std::size_t pipelined_rows(std::size_t rows, std::size_t cols) {
  return std::max(rows_per_task<B>(rows, cols), std::min<std::size_t>(8, rows / 128));
}

}  // namespace detail

template <class B, class A>
std::size_t pipelined_workspace(std::size_t cols, std::size_t scratch_rows, const context& ctx) {
  return scratch_workspace<B, A>(cols, 2 * scratch_rows, ctx);
}

template <class B, class A, class State, class Gather, class Close, class Write>
void for_rows_pipelined(context& ctx, pipelined of, Gather gather, Close close, Write write) {
  const std::size_t cols = of.cols, per_task = detail::pipelined_rows<B>(of.rows, cols);
  const std::size_t stride = workspace::padded<A>(cols), scratch_stride = of.scratch_rows * stride;
  const std::size_t width = detail::pipelined_columns(cols, of.block_cols, State::most);
  const std::size_t blocks = (cols + width - 1) / width;
  const bool overlap = of.overlap && cols * sizeof(A) <= B::row.cpu.prefetch_row_bytes;
  workspace::frame frame(ctx.workspace());
  A* scratch = frame.template take<A>(ctx.executor().workers() * 2 * scratch_stride);
  static_assert(tigon::detail::loops_on_host<B>());
  ctx.executor().run((of.rows + per_task - 1) / per_task, [&](std::size_t task, std::size_t worker) TIGON_FLATTEN {
    A* own = scratch + worker * 2 * scratch_stride;
    const std::size_t begin = task * per_task, end = std::min(of.rows, begin + per_task);
    State states[2];
    const auto block = [&](std::size_t i, std::size_t k) TIGON_LAMBDA {
      return row_worker<B, A>(i, cols, nullptr, own + i % 2 * scratch_stride, stride)
          .part(k * width, std::min(width, cols - k * width));
    };
    // Row i is gathered and, if they overlap, row i - 1 is written.
    for (std::size_t i = begin; i < end + (overlap ? 1 : 0); ++i) {
      const bool gathers = i < end, writes = overlap && i > begin;
      State& next = states[i % 2];
      if (gathers) next = State{};
      for (std::size_t k = 0; k < blocks; ++k) {
        if (gathers) gather(block(i, k), next);
        if (writes) write(block(i - 1, k), states[(i - 1) % 2], k);
      }
      if (gathers) close(next);
      if (!overlap)
        for (std::size_t k = blocks; k-- > 0;) write(block(i, k), next, k);
    }
    stream_fence();
  });
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_ROWS_LANES_PIPELINED_HPP
