// Row programs of two steps, of which the second of a row and the first of the next are made by turns.
//
//   for_rows_in_turns<B, A, State>(ctx, rows, cols, scratch_rows, width, by_turns, gather, close, write);
#ifndef TIGON_ROWS_TURNS_HPP
#define TIGON_ROWS_TURNS_HPP

#include <tigon/rows/row.hpp>

#include <algorithm>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace detail {

// Columns of a block: no more than so many blocks a row, and whole steps of a loop.
constexpr std::size_t turn_cols(std::size_t cols, std::size_t wanted, std::size_t most_blocks) {
  constexpr std::size_t step = 256;
  const std::size_t all = most_blocks * step;
  return std::max(wanted, (cols + all - 1) / all * step);
}

// Rows of a task: the first and the last have no neighbour to take turns with.
template <class B>
constexpr std::size_t turning_rows(std::size_t rows, std::size_t cols) {
  return std::max(rows_per_task<B>(rows, cols), std::min<std::size_t>(8, rows / 128));
}

}  // namespace detail

/// Bytes that for_rows_in_turns takes from the workspace.
template <class B, class A>
std::size_t turns_workspace(std::size_t cols, std::size_t scratch_rows, const context& ctx) {
  return scratch_workspace<B, A>(cols, 2 * scratch_rows, ctx);
}

/// Calls for every row gather(block, state) with its blocks of about `width` columns, one after the other, then
/// close(state), then write(block, state, k) with the k-th block for all k. A block is a row_worker on a part of the row;
/// a State begins as State{} for every row and takes at most State::most blocks. block.scratch(k), k < scratch_rows, are
/// rows of A that belong to the row.
///
/// If `by_turns`, and where two rows and their scratch stay in the second-level cache, a block of one row is written,
/// then one of the next is gathered, and so on: memory is written while lanes compute. Results do not depend on it.
template <class B, class A, class State, class Gather, class Close, class Write>
void for_rows_in_turns(context& ctx, std::size_t rows, std::size_t cols, std::size_t scratch_rows, std::size_t width,
                       bool by_turns, Gather gather, Close close, Write write) {
  const std::size_t per_task = detail::turning_rows<B>(rows, cols);
  const std::size_t stride = workspace::padded<A>(cols);
  width = detail::turn_cols(cols, width, State::most);
  const std::size_t blocks = (cols + width - 1) / width;
  by_turns = by_turns && prefetches_rows_of<B>(cols * sizeof(A));
  workspace::frame frame(ctx.workspace());
  A* scratch = frame.template take<A>(ctx.executor().workers() * 2 * scratch_rows * stride);
  ctx.executor().run((rows + per_task - 1) / per_task, [&](std::size_t task, std::size_t worker) TIGON_FLATTEN {
    A* own = scratch + worker * 2 * scratch_rows * stride;
    const std::size_t begin = task * per_task, end = std::min(rows, begin + per_task);
    State states[2];
    const auto block = [&](std::size_t i, std::size_t k) TIGON_LAMBDA {
      return row_worker<B, A>(i, cols, nullptr, own + i % 2 * scratch_rows * stride, stride)
          .part(k * width, std::min(width, cols - k * width));
    };
    // Row i is gathered and, by turns, row i - 1 is written.
    for (std::size_t i = begin; i < end + (by_turns ? 1 : 0); ++i) {
      const bool gathers = i < end, writes = by_turns && i > begin;
      State& next = states[i % 2];
      if (gathers) next = State{};
      for (std::size_t k = 0; k < blocks; ++k) {
        if (gathers) gather(block(i, k), next);
        if (writes) write(block(i - 1, k), states[(i - 1) % 2], k);
      }
      if (gathers) close(next);
      if (!by_turns)
        for (std::size_t k = blocks; k-- > 0;) write(block(i, k), next, k);
    }
    stream_fence();
  });
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

namespace tigon {
using simd::for_rows_in_turns;
}  // namespace tigon

#endif  // TIGON_ROWS_TURNS_HPP
