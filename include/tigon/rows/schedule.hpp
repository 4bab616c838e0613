// The rules by which row kernels are scheduled, one line each: what a backend's core (backend/cores.hpp) makes of a loop.
// They change the order in which memory is read and written, never a result. Measured: docs/findings.md.
#ifndef TIGON_ROWS_SCHEDULE_HPP
#define TIGON_ROWS_SCHEDULE_HPP

#include <tigon/backend/tuning.hpp>

#include <algorithm>
#include <cstddef>

namespace tigon::simd {
inline namespace TIGON_ABI {

template <class B>
struct schedule {
  static constexpr core cpu = B::row.cpu;
  static constexpr bool interleaved = cpu.order == row_order::interleaved;
  static constexpr bool lookahead = cpu.order == row_order::lookahead;

  // Prefetching.
  /// Every reduction prefetches the next rows: memory is read while it is written.
  static constexpr bool reduce_prefetches = interleaved;
  /// Elsewhere those over two or three matrices, while the rows fit beside each other: a single one the hardware follows.
  static constexpr bool reduce_may_prefetch(std::size_t matrices) {
    return !interleaved && (matrices == 2 || matrices == 3);
  }
  /// More matrices than the hardware prefetcher follows are prefetched 2 KiB ahead of the loads.
  static constexpr bool reduce_prefetches_ahead(std::size_t matrices) { return matrices > 3; }
  /// Matrices whose rows share the cache with a row that is prefetched; lookahead decides for each of them alone.
  static constexpr std::size_t sharing(std::size_t matrices) { return lookahead ? 1 : matrices; }
  /// So many times as many where rows are reduced and read again: half as many bytes stay until both passes are done.
  static constexpr std::size_t times_until_mapped = interleaved ? 1 : 2;
  /// Reductions prefetch what the map reads again, unless that is long after.
  static constexpr bool prefetches_for_map = !lookahead;
  /// Maps leave consecutive rows to the hardware prefetcher, which crosses their ends.
  static constexpr bool follows_contiguous = interleaved;

  // Order of the columns.
  /// Bandwidth-bound maps issue prefetches first and keep loads in program order.
  static constexpr bool in_order = !lookahead;
  /// A row that was just reduced is mapped from its end: the end is still in L1.
  static constexpr bool backwards = lookahead;
  /// Serpentine: with vectors that leave L1 with every row, every other row is mapped from its end.
  static constexpr bool serpentine(std::size_t matrices, bool vectors) {
    return interleaved && matrices == 1 && vectors;
  }

  // How many rows at a time.
  /// Map and reduction of a later row share one loop.
  static constexpr bool reduces_while_mapping = lookahead;
  /// Rows mapped together that add to `sums` partial rows. Interleaved: eight streams fit into the ways of L1. Elsewhere
  /// three, four where they save more than one sum; one of three matrices and more, unless of 16 bits: non-temporal
  /// stores to several rows in turns cost more than they save.
  static constexpr std::size_t rows_adding(std::size_t matrices, bool narrow, std::size_t sums) {
    if (interleaved) return std::clamp<std::size_t>(8 / std::max<std::size_t>(matrices, 1), 1, 3);
    return matrices > 2 && !narrow ? 1 : sums > 1 ? 4 : 3;
  }
  /// The same without a reduction that has brought the rows near.
  static constexpr std::size_t rows_adding_unreduced = lookahead ? 1 : 2;
  /// Rows mapped together without partial rows: of 16 bits four, which widen the vectors beside them once; of others two
  /// beside two vectors and more, which leave L1 with every row.
  static constexpr std::size_t rows_mapped(std::size_t bytes, std::size_t vectors, bool reduced) {
    return lookahead ? 1 : bytes == 2 ? 4 : interleaved && reduced && vectors > 1 ? 2 : 1;
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_ROWS_SCHEDULE_HPP
