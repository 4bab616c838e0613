// Kernels that are written row by row: a function of a row, which a driver calls for every row.
//
//   for_rows<B>(ctx, rows, cols, [=] TIGON_FN(auto row) {
//     const auto r = tigon::math::rsqrt(row.sum(reads(x), [](auto v) { return v * v; }) / row.cols + eps);
//     row.map(reads(x, w), writes(y), [=](auto v, auto g) { return v * r * g; });
//   });
//
// A row is the engine's worker on one row: on a CPU the lanes of one core. A device may have many workers for a row,
// all of which run the function, with the same numbers. Of a map, a reduction or a scan each does a part of the
// columns, and all get the result. A map or a scan begins when all workers have come to it; each of the three has ended
// when they go on. Elsewhere row.sync() alone makes what one worker has written known to the others. Operands are
// matrix views (their row i), vector views (the same for every row) and `columns` (the column index as a number); or a
// struct of an operator's own that loads itself (ops/attention/weighted_rows.hpp is one). Functions take and return
// vectors of any engine. Rows are cut into tasks by shape alone and sums are made in a fixed order, so results do not
// depend on the number of threads.
//
//   row.i, row.cols               its index and its width
//   row.map(reads, writes, f)     y[j]... = f(x[j]...)
//   row.sum(reads, f)             the sum of f(x[j]...), or an array of sums
//   row.max, row.reduce           the maximum; any monoid
//   row.map_sum(reads, writes, f) a map, and of further vectors that f returns the sums, or the maximum
//   row.at, row.put, row.first()  one element, read or written; whether this worker writes what belongs to the row
//   row.save(to, value)           a number of the row, written by that worker
//   row.sync()                    the workers of a row wait for one another: what one has written, all may read
//   row.array<S, N>()             memory of the row for N numbers; a local array would be of one worker
//   row.part, row.on              the same worker on some columns, on another row
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

/// Calls fn(row) for every row, as `how` says. Takes scratch_workspace<B, A>(cols, how.scratch, ctx) from the
/// workspace.
template <class B, class A = float, class F>
void for_rows(context& ctx, std::size_t rows, std::size_t cols, row_loop how, F fn);
template <class B, class A = float, class F>
  requires rows::loops_over_rows<B>
void for_rows(context& ctx, std::size_t rows, std::size_t cols, row_loop how, F fn) {
  B::rows::template for_rows<A>(ctx, rows, cols, how, fn);
}
template <class B, class A = float, class F>
void for_rows(context& ctx, std::size_t rows, std::size_t cols, F fn) {
  for_rows<B, A>(ctx, rows, cols, row_loop{}, fn);
}
template <class B, class A>
std::size_t scratch_workspace(std::size_t cols, std::size_t scratch_rows, const context& ctx);

/// The same with sums over the rows: row.partial(k) is a row of A in which the task sums up its share of the k-th
/// parameter gradient. The partial rows are combined by column, task by task in pairs, and rounded once into the
/// gradients. Without rows these are zero. The rounding error of the sums in A does not grow with the number of rows.
/// Takes partials_workspace<B, A>(rows, cols, gradients) from the workspace. Where no gradient has memory, nothing is
/// summed up and no workspace is taken: then row.partial(k) has no memory either.
template <class B, class A = float, class F, class... T>
void for_rows(context& ctx, rows_of_all rows, std::size_t cols, adds_to<T...> gradients, F fn);

template <class B, class A = float, class F, class... T>
  requires rows::sums_over_rows<B>
void for_rows(context& ctx, rows_of_all rows, std::size_t cols, adds_to<T...> gradients, F fn) {
  B::rows::template for_rows<A>(ctx, rows, cols, gradients, fn);
}

/// Bytes that it takes from the workspace for `count` parameter gradients.
template <class B, class A>
constexpr std::size_t partials_workspace(rows_of_all rows, std::size_t cols, std::size_t count);
/// The same for any number of rows up to `rows`.
template <class B, class A>
constexpr std::size_t most_partials_workspace(std::size_t rows, std::size_t cols, std::size_t count);

}  // namespace TIGON_ABI
}  // namespace tigon::simd

namespace tigon {
using simd::for_rows;
}  // namespace tigon

#include <tigon/rows/lanes/gradients.hpp>
#include <tigon/rows/lanes/row.hpp>

#endif  // TIGON_ROWS_ROW_HPP
