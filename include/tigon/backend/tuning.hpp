// Tuning: aggregates of numbers that change the speed, and of a result no more than its rounding. The order of sums
// follows from some of them: partial rows, vectors in flight, chunks of logits, blocks of attention. Errors stay within
// each operator's bound for all of them, and results do not depend on the number of threads for any. Fields are only
// ever added at the end.
#ifndef TIGON_BACKEND_TUNING_HPP
#define TIGON_BACKEND_TUNING_HPP

#include <tigon/backend/cores.hpp>

#include <cstddef>

namespace tigon {

/// Row kernels. What follows from the core: rows/lanes/schedule.hpp.
struct row_tuning {
  core cpu = this_core;
  std::size_t unroll = 4;               ///< vectors in flight in a loop over a row: 1, 2 or 4
  std::size_t task_elements = 1 << 16;  ///< elements handed to a worker at a time
  std::size_t partials = 32;            ///< most partial rows of a parameter gradient
  std::size_t stream_bytes = 4 << 20;   ///< outputs of at least this many bytes are written by non-temporal stores
  std::size_t block_cols = 1024;        ///< columns of a block of a row; whole vectors
  friend constexpr bool operator==(row_tuning, row_tuning) = default;
};

/// How many rows of logits a fused linear loss has at a time.
enum class chunk_rule {
  budget,      ///< as many as logits_bytes hold
  liger,       ///< about rows * hidden / vocab, so that logits take the memory of x: that of Liger Kernel
  fixed_rows,  ///< `rows`, exactly
  stream,      ///< tiles of rows x cols, never a row of logits, in cross entropy and selective_logprob; else `rows`
};

/// Fused linear losses: how much of the logits exists at a time. A context may name other rows (context::logit_rows).
struct chunk_tuning {
  std::size_t logits_bytes = std::size_t{64} << 20;  ///< budget: most bytes of one chunk of logits
  std::size_t row_multiple = 16;  ///< budget: rows of a chunk are a multiple of this where they can be
  chunk_rule rule = chunk_rule::budget;
  std::size_t rows = 512;      ///< fixed_rows: of a chunk; stream: of a tile
  std::size_t cols = 8192;     ///< stream: columns of a tile
  std::size_t least_rows = 0;  ///< budget: at least so many for cross entropy, for up to twice the bytes
  friend constexpr bool operator==(chunk_tuning, chunk_tuning) = default;

  static constexpr TIGON_INLINE chunk_tuning budget(std::size_t bytes) { return {.logits_bytes = bytes}; }
  static constexpr TIGON_INLINE chunk_tuning liger() { return {.rule = chunk_rule::liger}; }
  static constexpr TIGON_INLINE chunk_tuning fixed(std::size_t rows) {
    return {.rule = chunk_rule::fixed_rows, .rows = rows};
  }
  static constexpr TIGON_INLINE chunk_tuning stream(std::size_t rows, std::size_t cols) {
    return {.rule = chunk_rule::stream, .rows = rows, .cols = cols};
  }
};

/// Attention: extents of blocks of queries and of keys.
struct attention_tuning {
  std::size_t query_block = 64;  ///< neighborhood_attention: queries of a block
  std::size_t key_block = 192;   ///< attention: keys of a tile of scores
  std::size_t query_rows = 192;  ///< attention: rows of a tile, those of all heads that share keys
  std::size_t query_tiles = 4;   ///< attention: tiles of rows in a task of forward, for which keys are packed once
  friend constexpr bool operator==(attention_tuning, attention_tuning) = default;
};

/// Hyper-connections: whether backward reads the steps of Sinkhorn's iteration or computes them again.
struct hyper_connection_tuning {
  /// Forward keeps all steps for backward: 4 tmax n^2 bytes a token (8 in f64), tokens rounded up to whole vectors.
  /// Otherwise backward computes them again, for as many tokens as a vector has lanes at a time.
  bool keep_history = false;
  friend constexpr bool operator==(hyper_connection_tuning, hyper_connection_tuning) = default;
};

}  // namespace tigon

#endif  // TIGON_BACKEND_TUNING_HPP
