// The pairs of all ranks and of the own tokens, and how rows of a chunk come back to the rank of their tokens.
#ifndef TIGON_OPS_MOE_EXPERT_EXCHANGE_HPP
#define TIGON_OPS_MOE_EXPERT_EXCHANGE_HPP

#include <tigon/ops/moe/expert_parallel_moe_options.hpp>
#include <tigon/ops/moe/weight_gradients.hpp>

#include <algorithm>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// m of every rank, one behind the other, in memory that `frame` takes.
template <class B, element E, element T>
matrix_view<E> gather_ranks(communicator_ref comm, matrix_view<const T> m, workspace::frame& frame, context& ctx) {
  const std::size_t n = m.rows * m.cols;
  const matrix_view<E> mine(frame.template take<E>(n), m.rows, m.cols);
  const matrix_view<E> all(frame.template take<E>(comm.size() * n), comm.size() * m.rows, m.cols);
  round_sums<B, accumulator_t<E>, E, T>(mine, m, false, ctx);
  comm::all_gather<E>(comm, {mine.data, n}, std::span(all.data, comm.size() * n));
  return all;
}
template <class E>
std::size_t gather_ranks_bytes(std::size_t ranks, std::size_t rows, std::size_t cols) {
  return workspace::bytes_for<E>(rows, cols) + workspace::bytes_for<E>(ranks, rows, cols);
}
template <token_id I>
matrix_view<const I> gather_indices(communicator_ref comm, matrix_view<const I> m, workspace::frame& frame) {
  const std::size_t n = m.rows * m.cols;
  I* mine = frame.template take<I>(n);
  I* all = frame.template take<I>(comm.size() * n);
  for (std::size_t t = 0; t < m.rows; ++t)
    for (std::size_t j = 0; j < m.cols; ++j) mine[t * m.cols + j] = m.row(t)[j];
  comm::all_gather<I>(comm, {mine, n}, std::span(all, comm.size() * n));
  return {all, comm.size() * m.rows, m.cols};
}

/// Rounds, in each of which every rank has one chunk or none.
template <class B, class A>
class expert_exchange {
 public:
  /// `all`: the pairs of all ranks; `own`: those of this rank's tokens, whose places are `positions`.
  expert_exchange(communicator_ref comm, moe_pairs all, moe_pairs own, const std::int64_t* positions, bool sends,
                  workspace::frame& frame)
      : comm_(comm), all_(all), own_(own), positions_(positions), next_(frame.take<place>(comm.size())) {
    const std::size_t ranks = comm.size(), hidden = own.shape.hidden, pairs = own.shape.tokens * own.shape.choices;
    for (std::size_t r = 0; r < ranks; ++r) {
      next_[r] = {r * experts(), 0};
      std::size_t chunks = 0;
      for (std::size_t e = r * experts(); e < (r + 1) * experts(); ++e) chunks += all.chunks(e);
      rounds_ = std::max(rounds_, chunks);
    }
    if (!sends) return;
    rows_ = {frame.take<A>(ranks * all.most * hidden), ranks * all.most, hidden};
    received_ = {frame.take<A>(pairs * hidden), pairs, hidden};
  }
  static std::size_t bytes(std::size_t ranks, std::size_t most, moe_shape own) {
    return workspace::bytes_for<place>(ranks) + workspace::bytes_for<A>(ranks, most, own.hidden) +
           workspace::bytes_for<A>(own.tokens, own.choices, own.hidden);
  }

  const moe_pairs& all() const { return all_; }
  /// Of this rank.
  std::size_t experts() const { return all_.shape.experts / comm_.size(); }
  std::size_t first_expert() const { return comm_.rank() * experts(); }

  /// Sends the rows of this rank's next chunk, in a plane of `most` rows, and takes those of its tokens from all ranks.
  void round(matrix_view<A> plane, context& ctx) {
    ++made_;
    if (rows_.data == nullptr) return;
    const std::size_t n = all_.most * rows_.cols;
    comm::all_gather<A>(comm_, {plane.data, n}, std::span(rows_.data, comm_.size() * n));
    for (std::size_t r = 0; r < comm_.size(); ++r) {
      const moe_chunk c = next(r);
      const auto pairs = static_cast<std::int64_t>(received_.rows),
                 mine = pairs * static_cast<std::int64_t>(comm_.rank());
      const std::int64_t* const end = c.pair + c.rows;
      const std::int64_t* const from = std::lower_bound(c.pair, end, mine);
      const auto count = static_cast<std::size_t>(std::lower_bound(from, end, mine + pairs) - from);
      if (count == 0) continue;
      const matrix_view<const A> rows = rows_.rows_from(r * all_.most + static_cast<std::size_t>(from - c.pair), count);
      const auto at = static_cast<std::size_t>(positions_[*from - mine]);
      round_sums<B, A, A, A>(received_.rows_from(at, count), rows, false, ctx);
    }
  }
  /// The rounds in which other ranks have chunks still.
  void finish(matrix_view<A> plane, context& ctx) {
    while (made_ < rounds_) round(plane, ctx);
  }
  /// Adds what was received to the tokens, in the order of the experts.
  template <element R>
  void combine(matrix_view<const R> weights, matrix_view<A> sum, context& ctx) const {
    for (std::size_t e = 0; e < own_.shape.experts; ++e) {
      const std::size_t first = own_.first(e), count = own_.first(e + 1) - first;
      const moe_chunk c{own_.scatter + first, count, own_.shape.choices, first};
      kernel_for<op::moe_scatter, B>::template forward<B, A>(matrix_view<const A>(received_.rows_from(first, count)), c,
                                                             weights, sum, ctx);
    }
  }

 private:
  struct place {
    std::size_t index, begin;  ///< of an expert; behind its first pair
  };
  /// The next chunk of a rank; without rows where it has no more.
  moe_chunk next(std::size_t rank) {
    place& at = next_[rank];
    const std::size_t end = (rank + 1) * experts();
    for (; end > at.index; ++at.index, at.begin = 0) {  // nvcc takes `at.index <` for a template
      const std::size_t first = all_.first(at.index), count = all_.first(at.index + 1) - first;
      if (at.begin >= count) continue;
      const std::size_t rows = std::min(even_part(count, all_.most), count - at.begin), p = first + at.begin;
      at.begin += rows;
      return {all_.scatter + p, rows, all_.shape.choices, p};
    }
    return {all_.scatter, 0, all_.shape.choices, 0};
  }

  communicator_ref comm_;
  moe_pairs all_, own_;
  const std::int64_t* positions_;
  place* next_;
  matrix_view<A> rows_, received_;
  std::size_t rounds_ = 0, made_ = 0;
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_MOE_EXPERT_EXCHANGE_HPP
