// Tuning: aggregates of numbers that change the speed, never the result. Fields are only ever added at the end.
#ifndef TIGON_BACKEND_TUNING_HPP
#define TIGON_BACKEND_TUNING_HPP

#include <tigon/config.hpp>

#include <cstddef>

namespace tigon {

/// Row programs.
struct row_tuning {
  std::size_t unroll = 4;                    ///< vectors in flight in a loop over a row: 1, 2 or 4
  std::size_t task_elements = 1 << 16;       ///< elements handed to a worker at a time
  std::size_t partials = 32;                 ///< most partial rows of a parameter gradient
  std::size_t stream_bytes = 4 << 20;        ///< outputs of at least this many bytes are written past the caches
  std::size_t prefetch_row_bytes = 1 << 18;  ///< widest row whose successor is asked for during its work; 0: never
  std::size_t group_elements = 1 << (TIGON_INTEL_CORES ? 14 : 13);  ///< rows that parameter gradients take together
  std::size_t block_cols = 1024;  ///< columns of those rows at a time; a multiple of every engine's lanes
  std::size_t near_cols = TIGON_INTEL_CORES ? 4096 : 32768;  ///< columns that softmax takes at a time
  bool sum_ahead = TIGON_INTEL_CORES;  ///< a row's sums for its gradients are made while rows before it are written
  bool reverse = TIGON_INTEL_CORES;    ///< a row that was read before is written from its end to its beginning
  friend constexpr bool operator==(row_tuning, row_tuning) = default;
};

/// Fused linear losses: how many rows of logits exist at a time.
struct chunk_tuning {
  std::size_t logits_bytes = std::size_t{64} << 20;  ///< most bytes of one chunk of logits
  std::size_t row_multiple = 16;                     ///< rows of a chunk are a multiple of this where they can be
  friend constexpr bool operator==(chunk_tuning, chunk_tuning) = default;
};

/// Attention: extent of a block of queries.
struct attention_tuning {
  std::size_t query_block = 64;  ///< rows of scores that exist at a time, per worker
  friend constexpr bool operator==(attention_tuning, attention_tuning) = default;
};

}  // namespace tigon

#endif  // TIGON_BACKEND_TUNING_HPP
