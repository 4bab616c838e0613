// The rows of logits of one rank's classes, reduced for cross entropy, and what those of all ranks make together.
#ifndef TIGON_LOSSES_RANKS_SHARD_CROSS_ENTROPY_HPP
#define TIGON_LOSSES_RANKS_SHARD_CROSS_ENTROPY_HPP

#include <tigon/losses/ranks/shard_linear.hpp>
#include <tigon/losses/softmax/tiled_cross_entropy.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// The reductions of tiled_cross_entropy, by ranks instead of tiles: of a chunk of rows each rank makes
///   top, rest, s_t    of its part of the row
///   weighted          sum_j w_j (s_j - top), where Weighted
///   largest, column   its largest raw logit and where it is, where predicted tokens are wanted
template <class B, bool Capped, bool Weighted, token_id I, class A>
class shard_cross_entropy {
 public:
  using kind = logits_kind<Capped, A>;

  shard_cross_entropy(workspace::frame& frame, communicator_ref comm, const shard_columns* shards, std::size_t chunk,
                      const A* class_weight, const cross_entropy_options& opt, bool predicts)
      : comm_(comm),
        shards_(shards),
        weight_(class_weight),
        weights_(frame.template take<double>(comm.size())),
        opt_(opt),
        numbers_(frame, comm, predicts ? of_loss + 1 : of_loss, chunk),
        columns_(frame, comm, predicts ? 1 : 0, chunk),
        predicts_(predicts) {
    for (std::size_t r = 0; r < comm.size(); ++r) {
      weights_[r] = 0;
      if constexpr (Weighted)
        for (std::size_t j = 0; j < shards[r].cols; ++j)
          weights_[r] += static_cast<double>(weight_[shards[r].first + j]);
    }
  }
  static std::size_t bytes(std::size_t ranks, std::size_t chunk) {
    return workspace::bytes_for<double>(ranks) + rank_numbers<A>::bytes(ranks, 5, chunk) +
           rank_numbers<std::int64_t>::bytes(ranks, 1, chunk);
  }

  /// This rank's numbers of the rows of z, sent to all.
  void reduce(matrix_view<A> z, const I* target, context& ctx) const {
    const std::size_t n = z.rows, first = shards_[comm_.rank()].first;
    const std::int64_t ignored = opt_.ignore_index;
    const kind logits = kind::of(opt_.softcap);
    A* mine = numbers_.mine();
    std::int64_t* at = columns_.mine();
    const bool predicts = predicts_;
    in_vector<A> weight{};
    if constexpr (Weighted) weight = {weight_ + first, z.cols};
    for_rows<B, A>(ctx, n, z.cols, {.scratch = 1}, [=] TIGON_FN(auto row) {
      A* to = mine + row.i;
      const auto t = static_cast<std::int64_t>(target[row.i]);
      if (t == ignored) {
        if (row.first()) {
          for (std::size_t k = 0; k < of_loss + (predicts ? 1 : 0); ++k) to[k * n] = A(0);
          if (predicts) at[row.i] = 0;
        }
        return;
      }
      const std::size_t column = static_cast<std::size_t>(t) - first;
      A own(0);
      if (column < row.cols) own = row.at(z, column);
      largest_element<A> largest;
      if (predicts) largest = first_largest<A>(row, z);
      const auto part = part_of_row<Weighted>(row, row.scratch(0), logits, z, weight);
      if (row.first()) {
        to[0] = part.parts.top, to[n] = part.parts.rest, to[2 * n] = own;
        if constexpr (Weighted) to[3 * n] = part.weighted;
        if (predicts) to[of_loss * n] = largest.value, at[row.i] = static_cast<std::int64_t>(first + largest.column);
      }
    });
    numbers_.gather(n);
    if (predicts_) columns_.gather(n);
  }

  /// What all ranks' numbers make of n rows, as tiled_cross_entropy::finish takes it.
  void merge(tiled_rows<A> rows, std::size_t n, const I* target, std::int64_t* predicted, context& ctx) const {
    const std::size_t ranks = comm_.size(), step = numbers_.step(n);
    const std::int64_t ignored = opt_.ignore_index;
    const kind logits = kind::of(opt_.softcap);
    const A* all = numbers_.all();
    const std::int64_t* columns = columns_.all();
    const shard_columns* shards = shards_;
    const double* weights = weights_;
    const bool predicts = predicts_;
    for_rows<B, A>(ctx, n, ranks, [=] TIGON_FN(auto row) {
      const auto t = static_cast<std::int64_t>(target[row.i]);
      if (t == ignored) return;
      lse_parts<double> parts{-std::numeric_limits<double>::infinity(), -1};
      A own(0), best(0);
      std::int64_t best_column = -1;
      for (std::size_t r = 0; r < ranks; ++r) {
        const A* of = all + r * step + row.i;
        add_part<A>(parts, {of[0], of[n]}, logits);
        if (static_cast<std::size_t>(t) - shards[r].first < shards[r].cols) own = of[2 * n];
        if (predicts && shards[r].cols != 0 && (best_column < 0 || of[of_loss * n] > best)) {
          best = of[of_loss * n], best_column = columns[r * n + row.i];
        }
      }
      double weighted = 0;
      if constexpr (Weighted)
        for (std::size_t r = 0; r < ranks; ++r) {
          const A* of = all + r * step + row.i;
          weighted += seen_from(of[3 * n], of[0], parts.top, logits, weights[r]);
        }
      if (row.first()) {
        rows.parts[row.i] = parts, rows.own[row.i] = own, rows.weighted[row.i] = weighted;
        if (predicts) predicted[row.i] = best_column;
      }
    });
  }

 private:
  static constexpr std::size_t of_loss = Weighted ? 4 : 3;

  communicator_ref comm_;
  const shard_columns* shards_;
  const A* weight_;
  double* weights_;  ///< of the classes of each rank
  cross_entropy_options opt_;
  rank_numbers<A> numbers_;
  rank_numbers<std::int64_t> columns_;
  bool predicts_;
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_RANKS_SHARD_CROSS_ENTROPY_HPP
