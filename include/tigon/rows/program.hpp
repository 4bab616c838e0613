// The groups of arguments that a row program is run with (rows/reduce_map.hpp says what they mean). A driver that wants
// more of them than their members includes rows/driver.hpp.
#ifndef TIGON_ROWS_PROGRAM_HPP
#define TIGON_ROWS_PROGRAM_HPP

#include <tigon/core/element.hpp>
#include <tigon/core/views.hpp>
#include <tigon/rows/operands.hpp>

#include <cstddef>
#include <tuple>

namespace tigon::simd {
inline namespace TIGON_ABI {

/// Operands of a program's map alone.
template <class... X>
struct map_reads {
  std::tuple<X...> x;
  explicit constexpr TIGON_INLINE map_reads(X... operands) : x(operands...) {}
};

/// Operand of a map: row i / rows of a matrix for row i, which so many rows in succession share.
template <class Operand>
struct row_of_group {
  Operand operand;
  std::size_t rows;
  constexpr TIGON_INLINE row_of_group(Operand o, std::size_t shared_by) : operand(o), rows(shared_by) {}
};

/// Outputs of a program that need no reduction.
template <class... Y>
struct reduce_writes {
  std::tuple<Y...> y;
  explicit constexpr TIGON_INLINE reduce_writes(Y... outputs) : y(outputs...) {}
};

/// A parameter gradient that the partial rows of all tasks add up to; not written where `out` is empty.
template <class T>
struct parameter_gradient {
  vector_view<T> out;
  gradient mode = gradient::overwrite;
};

/// Rows of a program with parameter gradients, and the rows of all such programs that run side by side: the more there
/// are, the fewer tasks is each of them cut into.
struct rows_of_all {
  std::size_t count, all;
  constexpr rows_of_all(std::size_t rows) : rows_of_all(rows, rows) {}
  constexpr rows_of_all(std::size_t rows, std::size_t of) : count(rows), all(of) {}
};

/// What for_rows takes beside the rows.
struct row_loop {
  std::size_t scratch = 0;  ///< rows of A that belong to a worker: row.scratch(k), k < scratch
  bool row_tasks = false;   ///< a task for every row: what is called a row is a piece of work of its own
};

/// Sums over very many rows: up to plain_rows rows are added one after the other in a row of sums. Of more rows, every
/// column's sum is added to a compensated total, and begins anew, after plain_rows rows or fewer, so that the rounding
/// error does not grow with the number of rows. Such a sum has three rows in memory, others have one.
inline constexpr std::size_t plain_rows = 64;
constexpr std::size_t rows_per_sum(std::size_t rows) { return rows > plain_rows ? 3 : 1; }

/// Parameter gradients that every row adds to.
template <class... T>
struct adds_to {
  std::tuple<parameter_gradient<T>...> g;
  explicit constexpr TIGON_INLINE adds_to(parameter_gradient<T>... gradients) : g(gradients...) {}
  /// Whether any of them has memory.
  bool wanted() const {
    return std::apply([](const auto&... one) { return ((one.out.data != nullptr) || ...); }, g);
  }
};

/// Numbers of every row that a program reads.
template <class... S>
struct of_rows {
  std::tuple<const S*...> p;
  explicit constexpr TIGON_INLINE of_rows(const S*... numbers) : p(numbers...) {}
};

/// Numbers of every row that a program writes.
template <class... S>
struct saves {
  std::tuple<S*...> p;
  explicit constexpr TIGON_INLINE saves(S*... numbers) : p(numbers...) {}
};

/// A flag for every row. Rows whose flag is 0 are not read: their outputs are zeros, and nothing is saved.
template <class... F>
struct kept_rows {
  std::tuple<const F*...> flags;
  explicit constexpr TIGON_INLINE kept_rows(const F*... of_rows) : flags(of_rows...) {}
  TIGON_INLINE bool keeps(std::size_t i) const {
    return std::apply([i](auto... flag) TIGON_LAMBDA { return ((flag[i] != 0) && ...); }, flags);
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::simd

namespace tigon {
using simd::adds_to;
using simd::kept_rows;
using simd::map_reads;
using simd::of_rows;
using simd::parameter_gradient;
using simd::reduce_writes;
using simd::row_of_group;
using simd::saves;
}  // namespace tigon

#endif  // TIGON_ROWS_PROGRAM_HPP
