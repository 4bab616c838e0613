// The rows of logits of one rank's classes, reduced for cross entropy and entropy at a temperature, and what those of
// all ranks make together.
#ifndef TIGON_LOSSES_RANKS_SHARD_SCALED_CROSS_ENTROPY_HPP
#define TIGON_LOSSES_RANKS_SHARD_SCALED_CROSS_ENTROPY_HPP

#include <tigon/losses/ranks/shard_linear.hpp>
#include <tigon/losses/softmax/fused_linear_scaled_cross_entropy_options.hpp>
#include <tigon/losses/softmax/partial_softmax.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Of a chunk of rows each rank makes, with s in units of the temperature,
///   top, rest, z_t    of its part of the row; the logit at the target
///   e s               sum_j exp(s_j - top) (s_j - top)
/// and of all ranks' numbers merge() makes, beside the results, what the gradient needs.
template <class B, token_id I, class A>
class shard_scaled_cross_entropy {
 public:
  shard_scaled_cross_entropy(workspace::frame& frame, communicator_ref comm, const shard_columns* shards,
                             std::size_t chunk, fused_linear_scaled_cross_entropy_options opt)
      : comm_(comm),
        shards_(shards),
        opt_(opt),
        numbers_(frame, comm, 4, chunk),
        rows_(frame.template take<row_sums>(chunk)) {}
  static std::size_t bytes(std::size_t ranks, std::size_t chunk) {
    return rank_numbers<A>::bytes(ranks, 4, chunk) + workspace::bytes_for<row_sums>(chunk);
  }

  /// This rank's numbers of the rows of z, sent to all.
  void reduce(matrix_view<A> z, const I* target, context& ctx) const {
    const std::size_t n = z.rows, first = shards_[comm_.rank()].first;
    const std::int64_t ignored = opt_.ignore_index;
    const A inverse = static_cast<A>(1 / opt_.temperature);
    A* mine = numbers_.mine();
    for_rows<B, A>(ctx, n, z.cols, {.scratch = 1}, [=] TIGON_FN(auto row) {
      A* to = mine + row.i;
      const auto t = static_cast<std::int64_t>(target[row.i]);
      if (t == ignored) {
        if (row.first()) to[0] = to[n] = to[2 * n] = to[3 * n] = A(0);
        return;
      }
      const std::size_t column = static_cast<std::size_t>(t) - first;
      const A own = column < row.cols ? row.at(z, column) : A(0);
      const A top = row.max(reads(z), [](auto v) { return v; });
      const A from = top == -std::numeric_limits<A>::infinity() ? std::numeric_limits<A>::lowest() : top;
      const vector_view<A> e = row.scratch(0);
      const auto sums = row.map_sum(reads(cached{z}), writes(e), [=](auto v) {
        const auto s = (v - from) * inverse;
        const auto p = exp_nonpositive(s);
        const decltype(v) zero(A(0));
        return pack{p, p, select(p == zero, zero, p * s)};
      });
      A rest = sums[0] - A(1);
      if (rest < A(1)) rest = sum_without_one(row, e);
      if (row.first()) to[0] = top, to[n] = rest, to[2 * n] = own, to[3 * n] = sums[1];
    });
    numbers_.gather(n);
  }

  void merge(scaled_cross_entropy_rows<A> out, std::size_t n, const I* target, context& ctx) const {
    const std::size_t ranks = comm_.size(), step = numbers_.step(n);
    const std::int64_t ignored = opt_.ignore_index;
    const A inverse = static_cast<A>(1 / opt_.temperature);
    const double scale = static_cast<double>(inverse);
    const A* all = numbers_.all();
    const shard_columns* shards = shards_;
    row_sums* to = rows_;
    for_rows<B, A>(ctx, n, ranks, [=] TIGON_FN(auto row) {
      const auto t = static_cast<std::int64_t>(target[row.i]);
      if (t == ignored) {
        if (row.first()) out.put(row.i, A(0), A(0), A(0));
        return;
      }
      lse_parts<double> parts{-std::numeric_limits<double>::infinity(), -1};
      A own(0);
      for (std::size_t r = 0; r < ranks; ++r) {
        const A* of = all + r * step + row.i;
        add_part<A>(parts, {of[0], of[n]}, logits_times{scale});
        if (static_cast<std::size_t>(t) - shards[r].first < shards[r].cols) own = of[2 * n];
      }
      double moment = 0;  // sum_j exp(s_j - top) (s_j - top)
      for (std::size_t r = 0; r < ranks; ++r) {
        const A* of = all + r * step + row.i;
        const double below = (static_cast<double>(of[0]) - parts.top) * scale, p = math::exp(below);
        if (!(p == 0)) moment += p * (static_cast<double>(of[3 * n]) + below * (static_cast<double>(of[n]) + 1));
      }
      row_sums sums;
      sums.top = static_cast<A>(parts.top);
      sums.rest = sums.top == -std::numeric_limits<A>::infinity() ? std::numeric_limits<A>::quiet_NaN()
                                                                  : static_cast<A>(parts.rest);
      sums.u = static_cast<A>(moment) / (A(1) + sums.rest);
      sums.below = (own - sums.top) * inverse;
      const A tail = math::log1p(sums.rest);
      sums.nll = tail - sums.below;
      if (row.first()) to[row.i] = sums;
      if (row.first()) out.put(row.i, sums.nll, tail - sums.u, sums.top * inverse + tail);
    });
  }

  /// The gradient of the logits z of this rank, in their place.
  void gradient(matrix_view<A> z, const I* target, scaled_cross_entropy_rows<A> of, context& ctx) const {
    const std::size_t first = shards_[comm_.rank()].first;
    const std::int64_t ignored = opt_.ignore_index;
    const A inverse = static_cast<A>(1 / opt_.temperature);
    const row_sums* rows = rows_;
    for_rows<B, A>(ctx, z.rows, z.cols, [=] TIGON_FN(auto row) {
      const auto t = static_cast<std::int64_t>(target[row.i]);
      if (t == ignored) {
        row.map(reads(constant(A(0))), writes(z), [](auto zero) { return zero; });
        return;
      }
      const row_sums sums = rows[row.i];
      const A top = sums.top, u = sums.u, factor = inverse / (A(1) + sums.rest);
      const A g = of.upstream_nll != nullptr ? of.upstream_nll[row.i * of.step_nll] : A(0);
      const A h = of.upstream_entropy != nullptr ? of.upstream_entropy[row.i * of.step_entropy] : A(0);
      const A of_p = g * factor, of_slope = h * factor;
      if (of.upstream_entropy != nullptr)
        row.map(reads(z), writes(z), [=](auto v) {
          // Where p is 0, s may be -inf.
          const auto s = (v - top) * inverse;
          const auto p = exp_nonpositive(s);
          const decltype(v) zero(A(0));
          return normal_or_zero(p * fnma(of_slope, select(p == zero, zero, s) - u, of_p));
        });
      else
        row.map(reads(z), writes(z),
                [=](auto v) { return normal_or_zero(exp_nonpositive((v - top) * inverse) * of_p); });
      const std::size_t column = static_cast<std::size_t>(t) - first;
      if (column < row.cols && row.first()) {
        // The target's column is computed again: p_t - 1 cancels where p_t is near 1.
        const A p_t = math::exp(-sums.nll), bent = p_t == A(0) ? A(0) : h * p_t * (sums.below - u);
        row.put(z, column, inverse * (g * math::expm1(-sums.nll) - bent));
      }
    });
  }

 private:
  struct row_sums {
    A top, rest;  ///< over all ranks
    A u;          ///< sum_j p_j (s_j - top)
    A below;      ///< s - top at the target
    A nll;
  };

  communicator_ref comm_;
  const shard_columns* shards_;
  fused_linear_scaled_cross_entropy_options opt_;
  rank_numbers<A> numbers_;
  row_sums* rows_;
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_RANKS_SHARD_SCALED_CROSS_ENTROPY_HPP
