// Kernels that are written row by row: a function of a row, which a driver calls for every row.
//
//   for_rows<B>(ctx, rows, cols, [=] TIGON_FN(auto row) {
//     const auto r = tigon::math::rsqrt(row.sum(reads(x), [](auto v) { return v * v; }) / row.cols + eps);
//     row.map(reads(x, w), writes(y), [=](auto v, auto g) { return v * r * g; });
//   });
//
// A row is the engine's worker on one row: on a CPU the lanes of one core. A device may have many workers for a row, all of
// which run the function, with the same numbers. Of a map, a reduction or a scan each does a part of the columns, and all
// get the result. A map or a scan begins when all workers have come to it; each of the three has ended when they go on.
// Elsewhere row.sync() alone makes what one worker has written known to the others. Operands are matrix views (their row i),
// vector views (the same for every row) and `columns` (the column index as a number); or a struct of an operator's own
// that loads itself (ops/attention/weighted_rows.hpp is one). Functions take and return vectors of any engine. Rows are
// cut into tasks by shape alone and sums are made in a fixed order, so results do not depend on the number of threads.
//
//   for_rows                      fn(row) for every row
//   for_rows_with_scratch         rows of memory beside it: row.scratch(k)
//   for_rows_with_partials        sums over the rows, for parameter gradients: row.partial(k)
//   for_row_parts_with_partials   the same for columns that need nothing of one another: fn(part of a row)
//   for_rows_pipelined            two steps a row, the second of which overlaps the first of the next row
//
//   row.i, row.cols               its index and its width
//   row.map(reads, writes, f)     y[j]... = f(x[j]...)
//   row.sum(reads, f)             the sum of f(x[j]...), or an array of sums
//   row.max(reads, f)             the maximum
//   row.map_sum, row.map_sum_max  a map, and of further vectors that f returns the sums, and a maximum
//   row.reduce, row.scan          any monoid; running sums
//   row.at, row.put, row.first()  one element, read or written; whether this worker writes what belongs to the row
//   row.save(to, value)           a number of the row, written by that worker
//   row.sync()                    the workers of a row wait for one another: what one has written, all may read
//   row.array<S, N>()             memory of the row for N numbers; a local array would be of one worker
//   row.narrow, row.part, row.on  the same worker on fewer columns, on some columns, on another row
//   row.prefetch(m, k)            row k of a matrix
#ifndef TIGON_ROWS_ROW_HPP
#define TIGON_ROWS_ROW_HPP

#include <tigon/backend/tuning.hpp>
#include <tigon/core/context.hpp>
#include <tigon/rows/driver.hpp>
#include <tigon/rows/program.hpp>
#include <tigon/simd/math.hpp>
#include <tigon/simd/vec.hpp>

#include <cstddef>

namespace tigon::simd {
inline namespace TIGON_ABI {

/// Calls fn(row) for every row.
template <class B, class A = float, class F>
void for_rows(context& ctx, std::size_t rows, std::size_t cols, F fn);

/// As for_rows; row.scratch(k), k < scratch_rows, are rows of A that belong to the worker. Takes
/// scratch_workspace<B, A>(cols, scratch_rows, ctx) from the workspace.
template <class B, class A, class F>
void for_rows_with_scratch(context& ctx, std::size_t rows, std::size_t cols, std::size_t scratch_rows, F fn);
template <class B, class A>
std::size_t scratch_workspace(std::size_t cols, std::size_t scratch_rows, const context& ctx);

template <class B, class A = float, class F>
  requires rows::loops_over_rows<B>
void for_rows(context& ctx, std::size_t rows, std::size_t cols, F fn) {
  B::rows::template for_rows<A>(ctx, rows, cols, fn);
}
template <class B, class A, class F>
  requires rows::loops_over_rows<B>
void for_rows_with_scratch(context& ctx, std::size_t rows, std::size_t cols, std::size_t scratch_rows, F fn) {
  B::rows::template for_rows_with_scratch<A>(ctx, rows, cols, scratch_rows, fn);
}

/// Calls fn(row) for every row, as for_rows. row.partial(k) is a row of A in which the task sums up its share of the
/// k-th parameter gradient. The partial rows are combined by column, task by task in pairs, and rounded once into
/// `out`. Without rows the gradients are zero. The rounding error of the sums in A does not grow with the number of
/// rows. Takes partials_workspace<B, A>(rows, cols, gradients) from the workspace. Where no gradient has memory,
/// nothing is summed up and no workspace is taken: then row.partial(k) has no memory either.
template <class B, class A, class F, class... T>
void for_rows_with_partials(context& ctx, rows_of_all rows, std::size_t cols, F fn, parameter_gradient<T>... out);

/// The same where no column needs anything of the others: fn(part) is called for parts of rows, so that a part of the
/// partial rows stays in L1 from row to row.
template <class B, class A, class F, class... T>
void for_row_parts_with_partials(context& ctx, rows_of_all rows, std::size_t cols, F fn, parameter_gradient<T>... out);

template <class B, class A, class F, class... T>
  requires rows::sums_over_rows<B>
void for_rows_with_partials(context& ctx, rows_of_all rows, std::size_t cols, F fn, parameter_gradient<T>... out) {
  B::rows::template for_rows_with_partials<A>(ctx, rows, cols, fn, out...);
}
template <class B, class A, class F, class... T>
  requires rows::sums_over_rows<B>
void for_row_parts_with_partials(context& ctx, rows_of_all rows, std::size_t cols, F fn, parameter_gradient<T>... out) {
  B::rows::template for_row_parts_with_partials<A>(ctx, rows, cols, fn, out...);
}

/// Bytes that for_rows_with_partials takes from the workspace for `count` parameter gradients.
template <class B, class A>
constexpr std::size_t partials_workspace(rows_of_all rows, std::size_t cols, std::size_t count);
/// The same for any number of rows up to `rows`.
template <class B, class A>
constexpr std::size_t most_partials_workspace(std::size_t rows, std::size_t cols, std::size_t count);

/// Calls for every row gather(block, state) with its blocks of columns, one after the other, then close(state), then
/// write(block, state, k) with the k-th block for all k. A block is a row_worker on a part of the row. A State begins
/// as State{} for every row and takes at most State::most blocks.
///
/// Where two rows and their scratch stay in L2, a block of one row is written, then a block of the next row is
/// gathered, and so on: stores drain while lanes compute. Results do not depend on it.
template <class B, class A, class State, class Gather, class Close, class Write>
void for_rows_pipelined(context& ctx, pipelined of, Gather gather, Close close, Write write);
/// Bytes that for_rows_pipelined takes from the workspace.
template <class B, class A>
std::size_t pipelined_workspace(std::size_t cols, std::size_t scratch_rows, const context& ctx);

// What a kernel may know of a backend: extents of blocks, and prefetching.

/// Columns of a block of a row: a few rows of so many numbers stay in L1.
template <class B>
constexpr std::size_t columns_per_block() {
  return B::row.block_cols;
}
/// Columns of a block of a row whose intermediate values take the place of the row itself: they stay in L2.
template <class B>
constexpr std::size_t columns_in_place() {
  return B::row.cpu.in_place_cols;
}
/// Columns of one step of an unrolled loop in accumulator type A.
template <class B, class A>
constexpr std::size_t columns_per_step() {
  return B::row.unroll * vec<typename B::engine, A>::size;
}
/// Elements of the rows of a task.
template <class B>
constexpr std::size_t elements_per_task() {
  return B::row.task_elements;
}
/// Most tasks of a program with sums over the rows.
template <class B>
constexpr std::size_t most_tasks_with_sums() {
  return B::row.partials;
}
/// Whether a row of so many bytes can be prefetched while another is computed.
template <class B>
constexpr bool prefetches_rows_of(std::size_t bytes) {
  return bytes <= B::row.cpu.prefetch_row_bytes;
}
/// Prefetches n elements into L2, where rows are prefetched at all.
template <class B, class T>
TIGON_INLINE void prefetch_elements(const T* from, std::size_t n) {
  if constexpr (B::row.cpu.prefetch_row_bytes != 0)
    for (std::size_t j = 0; j < n; j += 64 / sizeof(T)) __builtin_prefetch(from + j, 0, 2);
}

/// B, with a task for every row.
template <class B>
struct with_row_tasks : B {
  static constexpr row_tuning row = [] {
    row_tuning one = B::row;
    one.task_elements = 1;
    return one;
  }();
};
/// B, with whole rows for blocks: programs with sums over the rows see whole rows.
template <class B>
struct with_whole_rows : B {
  static constexpr row_tuning row = [] {
    row_tuning whole = B::row;
    whole.block_cols = std::size_t{1} << 48;
    return whole;
  }();
};

}  // namespace TIGON_ABI
}  // namespace tigon::simd

namespace tigon {
using simd::columns_in_place;
using simd::columns_per_block;
using simd::columns_per_step;
using simd::elements_per_task;
using simd::for_row_parts_with_partials;
using simd::for_rows;
using simd::for_rows_pipelined;
using simd::for_rows_with_partials;
using simd::for_rows_with_scratch;
using simd::most_tasks_with_sums;
using simd::pack;
using simd::prefetch_elements;
using simd::prefetches_rows_of;
using simd::round_computed_to;
using simd::round_to;
using simd::with_row_tasks;
using simd::with_whole_rows;
}  // namespace tigon

#include <tigon/rows/lanes/gradients.hpp>
#include <tigon/rows/lanes/pipelined.hpp>
#include <tigon/rows/lanes/row.hpp>

#endif  // TIGON_ROWS_ROW_HPP
