// How row kernels are scheduled: a shape says what a pass over rows reads, writes and sums, and four functions make of
// it, and of a core (backend/cores.hpp), the order in which memory is read and written: plan_operand, plan_reduce,
// plan_map and plan_program. No rule changes a result. Measured: docs/lab/findings.md.
//
//   pass       a loop over the columns of a row: a reduction, or a map that writes
//   program    rows that are reduced, if need be, and mapped; with sums over the rows (parameter gradients) or without
//   group      rows of a program that are reduced before the first of them is mapped
//   block      columns of a row that are mapped in one go, the same of every row of a group
#ifndef TIGON_ROWS_LANES_SCHEDULE_HPP
#define TIGON_ROWS_LANES_SCHEDULE_HPP

#include <tigon/backend/tuning.hpp>

#include <algorithm>
#include <cstddef>

namespace tigon {

/// What a plan is for.
enum class row_pass {
  reduce,   ///< a reduction over the columns of a row
  map,      ///< a map over the columns of a row
  program,  ///< a reduction and a map of many rows
};

/// How a program's rows are reduced before they are mapped.
enum class reduction_kind {
  none,
  declared,    ///< by a function of a column, summed up
  imperative,  ///< by passes that the program makes itself
};

/// What the rules need to know of a pass or a program.
struct row_shape {
  row_pass pass = row_pass::reduce;
  std::size_t matrices = 0;       ///< operands that have a row for every row; of a program: those of its map
  std::size_t vectors = 0;        ///< operands that are the same for every row
  std::size_t others = 0;         ///< of a pass: constants, column indices, pairs, matrices that may be absent
  std::size_t sums = 0;           ///< of a pass: over the columns; of a program: over the rows, parameter gradients
  std::size_t element_bytes = 0;  ///< of the matrices, the narrowest where they differ; 0: there are none
  std::size_t lanes = 1;
  // Of a program.
  reduction_kind reduction = reduction_kind::none;
  std::size_t reduced_bytes = 0;  ///< a column of what the declared reduction reads
  std::size_t outputs = 0;        ///< of a declared map; 0: the map is a function of a row
  friend constexpr bool operator==(row_shape, row_shape) = default;
};

/// What follows for a reduction over the columns of a row.
struct reduce_plan {
  bool prefetches = false;      ///< the next rows of operands that are read again
  bool may_prefetch = false;    ///< the same behind a branch: if there is one to prefetch
  bool prefetches_far = false;  ///< 2 KiB ahead of the loads
};

/// For a map over the columns of a row.
struct map_plan {
  bool leaves_contiguous = false;  ///< does not prefetch rows that lie behind each other and have not been reduced
  bool in_order = false;           ///< prefetches first, and keeps loads in program order
  bool backwards = false;          ///< maps a row that was reduced from its end
  bool serpentine = false;         ///< maps every other row that was reduced from its end
};

/// For reading an operand.
struct operand_plan {
  bool reduce_brings_operands = true;  ///< reductions also bring what the map reads into the cache
  std::size_t rows_until_mapped = 2;   ///< rows of an operand that is read again, in the cache at a time
  bool rows_share_cache = true;        ///< a row is prefetched if those of all matrices fit, not it alone
};

/// For a program.
struct program_plan {
  row_order order = row_order::reduce_then_map;  ///< of its reduction and its map
  std::size_t rows = 1;                          ///< rows mapped together, with their sums in registers
  bool reduce_writes = false;                    ///< outputs that need no reduction are written by it, not by the map
  bool prefetches = false;                       ///< both passes prefetch, and a group is `rows` rows
  bool map_prefetches = true;                    ///< the map prefetches the next rows of its operands
  bool column_blocks = false;                    ///< a group is mapped block by block
  std::size_t group_rows = 32;                   ///< most rows of a group
  std::size_t group_elements = 0;                ///< most elements of a group of more than one row
};

inline namespace TIGON_ABI {
constexpr operand_plan plan_operand(core cpu) {
  const bool interleaved = cpu.order == row_order::interleaved, lookahead = cpu.order == row_order::lookahead;
  operand_plan p;
  // The map comes long after the reduction: what it reads would have left the cache.
  p.reduce_brings_operands = !lookahead;
  // Rows that are reduced and those that are mapped are in the cache at the same time, unless few rows are both.
  p.rows_until_mapped = interleaved ? 1 : 2;
  // Measured: where reduction and map share a loop, prefetching pays while a row of one matrix fits.
  p.rows_share_cache = !lookahead;
  return p;
}

constexpr reduce_plan plan_reduce(core cpu, row_shape s) {
  const bool interleaved = cpu.order == row_order::interleaved, vectorised = s.lanes > 1;
  reduce_plan p;
  // Memory is read while it is written: every reduction prefetches the next rows.
  p.prefetches = interleaved && vectorised;
  // Elsewhere those over two or three matrices, if their rows fit into the cache together: a single matrix is left to
  // the hardware prefetcher.
  p.may_prefetch = !interleaved && (s.matrices == 2 || s.matrices == 3) && vectorised;
  // More matrices than the hardware prefetcher follows: beside the loads, not a row ahead.
  p.prefetches_far = s.matrices > 3 && vectorised;
  return p;
}

constexpr map_plan plan_map(core cpu, row_shape s) {
  const bool interleaved = cpu.order == row_order::interleaved, lookahead = cpu.order == row_order::lookahead;
  map_plan p;
  // The hardware prefetcher crosses the ends of contiguous rows.
  p.leaves_contiguous = interleaved && s.sums == 0;
  // Bandwidth-bound: nothing but matrices, and a cache line with every vector. Narrower vectors compute for longer.
  const bool bandwidth_bound = s.matrices > 1 && s.vectors + s.others == 0 && s.lanes * s.element_bytes >= 64;
  p.in_order = !lookahead && s.sums == 0 && bandwidth_bound;
  // The end of a row that was just reduced is still in L1.
  p.backwards = lookahead;
  // A vector that leaves L1 with every row begins with the columns that the row before has left there.
  p.serpentine = interleaved && s.sums == 0 && s.matrices == 1 && s.vectors != 0;
  return p;
}

constexpr program_plan plan_program(core cpu, row_shape s) {
  const bool interleaved = cpu.order == row_order::interleaved, lookahead = cpu.order == row_order::lookahead;
  const bool vectorised = s.lanes > 1, narrow = s.element_bytes <= 2;
  const bool reduced = s.reduction == reduction_kind::declared;
  program_plan p;
  // Lookahead needs a reduction that can run beside the map. Not with single numbers: compilers contract their products
  // and sums in one loop and not in another, and a row's bits would depend on its place.
  p.order = lookahead && !(reduced && vectorised) ? row_order::reduce_then_map : cpu.order;
  p.rows = [&]() -> std::size_t {
    // A map that is a function of a row, or has several outputs, takes one at a time; so do single numbers, and
    // lookahead.
    if (s.outputs != 1 || !vectorised || lookahead) return 1;
    // Nothing that rows could share, neither sums nor vectors, or too many streams for what they share.
    if (s.sums == 0 && (s.vectors == 0 || s.matrices > 1)) return 1;
    // Without sums, rows of 16 bits widen the vectors beside them once for four rows.
    if (s.sums == 0 && !reduced && s.element_bytes == 2) return 4;
    if (s.sums == 0 && !reduced) return 1;
    // Nothing was reduced: the rows are not in the cache yet.
    if (s.reduction == reduction_kind::none) return 2;
    // One row was reduced.
    if (s.reduction == reduction_kind::imperative) return 1;
    // Eight streams fit into the ways of L1.
    if (interleaved) return std::clamp<std::size_t>(8 / std::max<std::size_t>(s.matrices, 1), 1, 3);
    // From three matrices on, non-temporal stores that alternate between rows cost more than is saved.
    if (s.matrices > 2 && !narrow) return 1;
    return s.sums > 1 ? 4 : 3;
  }();
  // Outputs that need no reduction: where memory is read while it is written; not of 16 bits, which compute for longer.
  // Beside sums over the rows, wherever reduction and map are two passes: the map has outputs enough.
  p.reduce_writes = s.sums == 0 ? interleaved && !narrow : !lookahead;
  const bool shares_loop = p.order == row_order::lookahead;
  // Where memory is read while it is written, where rows are mapped together unreduced, and where a map is a function.
  p.prefetches = vectorised && !shares_loop && (reduced ? interleaved || s.outputs == 0 : p.rows > 1);
  // A map of rows that were reduced finds the next ones prefetched by the reduction, unless both passes prefetch.
  p.map_prefetches = !reduced || p.prefetches;
  // Rows that are mapped one at a time keep vectors and sums over rows in L1 by blocks of columns.
  const bool whole_rows = p.rows > 1 || s.sums == 0 || p.prefetches || s.reduction == reduction_kind::imperative;
  p.column_blocks = shares_loop || !whole_rows;
  // Rows that were reduced whole, block by block: two, because four are slower.
  const bool reduced_blocks = p.column_blocks && reduced && vectorised && !shares_loop;
  p.group_rows = !p.column_blocks ? 32 : reduced_blocks ? 2 : 8;
  // A row that the program reduces itself is mapped at once.
  if (s.reduction == reduction_kind::imperative && s.outputs != 0) p.group_rows = p.rows;
  // As many rows as stay in the cache from one pass to the next. Rows of 16 bits gain by fewer changes between the two.
  const std::size_t cached_bytes = narrow && s.reduced_bytes != 0 ? 2 * cpu.reduced_bytes : cpu.reduced_bytes;
  p.group_elements = !p.column_blocks || reduced_blocks ? cached_bytes / std::max<std::size_t>(s.reduced_bytes, 1)
                                                        : cpu.group_elements;
  return p;
}

template <row_pass Pass>
constexpr auto plan_for(core cpu, row_shape s) {
  if constexpr (Pass == row_pass::reduce)
    return plan_reduce(cpu, s);
  else if constexpr (Pass == row_pass::map)
    return plan_map(cpu, s);
  else
    return plan_program(cpu, s);
}
}  // namespace TIGON_ABI

namespace simd {
inline namespace TIGON_ABI {
/// The plan that the loops of a backend read. One that wants to see the shapes specialises it (tigon_info,
/// noted_plans.hpp).
template <class B, row_shape Shape>
inline constexpr auto plan_of = plan_for<Shape.pass>(B::row.cpu, Shape);

}  // namespace TIGON_ABI
}  // namespace simd
}  // namespace tigon

#endif  // TIGON_ROWS_LANES_SCHEDULE_HPP
