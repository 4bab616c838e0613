// Cross entropy of rows of logits that are computed a tile of columns at a time.
#ifndef TIGON_LOSSES_SOFTMAX_TILED_CROSS_ENTROPY_HPP
#define TIGON_LOSSES_SOFTMAX_TILED_CROSS_ENTROPY_HPP

#include <tigon/losses/softmax/label_terms.hpp>
#include <tigon/losses/softmax/partial_softmax.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// What is kept of every row from tile to tile: first its reductions, then what its gradient needs.
template <class A>
struct tiled_rows {
  lse_parts<double>* parts;
  double* weighted;
  A *own, *best;

  static constexpr std::size_t bytes(std::size_t rows) {
    return workspace::bytes_for<lse_parts<double>>(rows) + workspace::bytes_for<double>(rows) +
           2 * workspace::bytes_for<A>(rows);
  }
  tiled_rows(workspace::frame& frame, std::size_t rows)
      : parts(frame.template take<lse_parts<double>>(rows)),
        weighted(frame.template take<double>(rows)),
        own(frame.template take<A>(rows)),
        best(frame.template take<A>(rows)) {}
  tiled_rows from(std::size_t begin) const {
    tiled_rows part = *this;
    part.parts += begin, part.own += begin, part.weighted += begin, part.best += begin;
    return part;
  }
};

/// The row program of kernel<op::cross_entropy>, cut at the borders of tiles. Weighted: every column has a weight in
/// the uniform part of label smoothing, which may be 0.
template <class B, bool Capped, bool Weighted, token_id I, class A>
class tiled_cross_entropy {
 public:
  using kind = logits_kind<Capped, A>;

  tiled_cross_entropy(tiled_rows<A> rows, std::span<const I> target, const A* class_weight, cross_entropy_rows out,
                      cross_entropy_scale scale, const cross_entropy_options& opt, std::size_t vocab, context& ctx)
      : rows_(rows),
        target_(target),
        weight_(class_weight),
        out_(out),
        scale_(scale),
        opt_(opt),
        vocab_(vocab),
        ctx_(ctx) {}

  /// Before the rows of a tile of columns.
  void columns(std::size_t first, std::size_t n) {
    first_ = first, before_ = first == 0 ? 0 : before_ + own_weight_, own_weight_ = 0;
    if constexpr (Weighted)
      for (std::size_t j = first; j < first + n; ++j) own_weight_ += static_cast<double>(weight_[j]);
  }

  /// Reduces rows [begin, begin + z.rows) in the columns of this tile. The logits are overwritten.
  void reduce(std::size_t begin, matrix_view<A> z) const {
    const tiled_rows<A> rows = rows_.from(begin);
    const I* target = target_.data() + begin;
    std::int64_t* predicted = out_.predicted == nullptr ? nullptr : out_.predicted + begin;
    const auto weight = weight_of(z.cols);
    const kind logits = kind_of();
    const std::int64_t ignored = opt_.ignore_index;
    const std::size_t first = first_;
    const double before = before_, here = own_weight_;
    for_rows<B, A>(ctx_, z.rows, z.cols, [=] TIGON_FN(auto row) {
      const auto t = static_cast<std::int64_t>(target[row.i]);
      if (t == ignored) return;
      const std::size_t column = static_cast<std::size_t>(t) - first;
      A own(0);
      if (column < row.cols) own = row.at(z, column);
      if (predicted != nullptr) {
        const auto best = first_largest<A>(row, z);
        if (row.first() && (first == 0 || best.value > rows.best[row.i])) {
          rows.best[row.i] = best.value;
          predicted[row.i] = static_cast<std::int64_t>(first + best.column);
        }
      }
      const auto part = part_of_row<Weighted>(row, vector_view<A>{z.row(row.i), row.cols}, logits, z, weight);
      lse_parts<double> all{part.parts.top, part.parts.rest};
      double weighted = part.weighted;
      if (first != 0) {
        all = rows.parts[row.i];
        const double old = all.top;
        add_part(all, part.parts, logits);
        if constexpr (Weighted)
          weighted = seen_from(rows.weighted[row.i], old, all.top, logits, before) +
                     seen_from(part.weighted, part.parts.top, all.top, logits, here);
      }
      if (row.first()) {
        if (column < row.cols) rows.own[row.i] = own;
        rows.parts[row.i] = all;
        rows.weighted[row.i] = weighted;
      }
    });
  }

  /// Losses of all rows; their reductions become what the gradient needs: the maximum and the factor of the
  /// exponentials in `parts`, the gradient at the target in `own`, what a column's weight subtracts in `weighted`.
  void finish(vector_view<const A> upstream) const {
    const cross_entropy_terms<A> terms(opt_, scale_, out_, vocab_);
    const std::int64_t ignored = opt_.ignore_index;
    const tiled_rows<A> rows = rows_;
    const cross_entropy_rows out = out_;
    const I* target = target_.data();
    const A *weight = weight_, *g = upstream.data;
    const std::size_t step = upstream.size == 1 ? 0 : 1;
    const kind logits = kind_of();
    for_rows<B, A>(ctx_, target_.size(), 1, [=] TIGON_FN(auto row) {
      const std::size_t i = row.i;
      const auto t = static_cast<std::int64_t>(target[i]);
      if (t == ignored) {
        if (row.first()) put_ignored(out, i);
        return;
      }
      const A top = static_cast<A>(rows.parts[i].top), own = rows.own[i];
      const A d = top == -std::numeric_limits<A>::infinity() ? std::numeric_limits<A>::quiet_NaN()
                                                             : static_cast<A>(rows.parts[i].rest);
      const auto of_row = terms.of(logits, top, own, d, weight != nullptr ? weight[t] : A(1));
      const A up = g == nullptr ? of_row.token : of_row.token * g[i * step];
      if (row.first()) {
        terms.put_loss(out, i, of_row, static_cast<A>(rows.weighted[i]));
        rows.parts[i] = {top, terms.factor(of_row, up)};
        rows.weighted[i] = terms.subtract(up);
        rows.own[i] = terms.at_target(of_row, up, logits, own);
      }
    });
  }

  /// The gradient of the logits of rows [begin, begin + z.rows), in their place.
  void gradient(std::size_t begin, matrix_view<A> z) const {
    const tiled_rows<A> rows = rows_.from(begin);
    const I* target = target_.data() + begin;
    const auto weight = weight_of(z.cols);
    const kind logits = kind_of();
    const std::int64_t ignored = opt_.ignore_index;
    const std::size_t first = first_;
    for_rows<B, A>(ctx_, z.rows, z.cols, [=] TIGON_FN(auto row) {
      const auto t = static_cast<std::int64_t>(target[row.i]);
      if (t == ignored) {
        row.map(reads(constant(A(0))), writes(z), [](auto zero) { return zero; });
        return;
      }
      const A top = static_cast<A>(rows.parts[row.i].top), factor = static_cast<A>(rows.parts[row.i].rest),
              subtract = static_cast<A>(rows.weighted[row.i]);
      if constexpr (Capped) {
        const auto from = logits.from(top);
        row.map(reads(z, weight), writes(z), [=](auto v, auto w) {
          const auto [distance, slope] = from.both(v);
          return normal_or_zero((exp_nonpositive(distance) * factor - w * subtract) * slope);
        });
      } else if constexpr (Weighted) {
        row.map(reads(z, weight), writes(z),
                [=](auto v, auto w) { return normal_or_zero(exp_nonpositive(v - top) * factor - w * subtract); });
      } else {
        row.map(reads(z), writes(z), [=](auto v) { return normal_or_zero(exp_nonpositive(v - top) * factor); });
      }
      const std::size_t column = static_cast<std::size_t>(t) - first;
      if (column < row.cols && row.first()) row.put(z, column, rows.own[row.i]);
    });
  }

 private:
  kind kind_of() const { return kind::of(opt_.softcap); }
  in_vector<A> weight_of(std::size_t cols) const {
    if constexpr (Weighted)
      return {weight_ + first_, cols};
    else
      return {};
  }

  tiled_rows<A> rows_;
  std::span<const I> target_;
  const A* weight_;
  cross_entropy_rows out_;
  cross_entropy_scale scale_;
  cross_entropy_options opt_;
  std::size_t vocab_;
  context& ctx_;
  std::size_t first_ = 0;
  double before_ = 0, own_weight_ = 0;  ///< weights of the columns before these, and of these
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_SOFTMAX_TILED_CROSS_ENTROPY_HPP
