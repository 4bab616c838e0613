// The running softmax of attention's rows: maximum, sum and weighted sum of values, tile by tile.
#ifndef TIGON_OPS_ATTENTION_RUNNING_SOFTMAX_HPP
#define TIGON_OPS_ATTENTION_RUNNING_SOFTMAX_HPP

#include <tigon/ops/attention/score_tiles.hpp>
#include <tigon/simd/totals.hpp>

#include <limits>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// The running softmax of rows. With top the largest score so far, or the logit of the sink,
///   sum = sum_j exp(s[j] - top),   o = sum_j exp(s[j] - top) v[j]
/// over at most simd::plain_rows tiles. These are then added to compensated totals, whose maximum is `total_top`.
template <class A>
struct running_softmax {
  matrix_view<A> o, high, low;
  A *top, *sum, *factor;
  A *total_top, *total_high, *total_low;

  static std::size_t bytes(std::size_t rows, std::size_t d) {
    return 3 * workspace::bytes_for<A>(rows, workspace::padded<A>(d)) + 6 * workspace::bytes_for<A>(rows);
  }
  running_softmax() = default;
  running_softmax(workspace::frame& frame, std::size_t rows, std::size_t d) {
    for (matrix_view<A>* m : {&o, &high, &low})
      *m = {frame.take<A>(rows * workspace::padded<A>(d)), rows, d, workspace::padded<A>(d)};
    for (A** p : {&top, &sum, &factor, &total_top, &total_high, &total_low}) *p = frame.take<A>(rows);
  }
  running_softmax from(std::size_t first, std::size_t count) const {
    running_softmax part = *this;
    for (matrix_view<A>* m : {&part.o, &part.high, &part.low}) *m = m->rows_from(first, count);
    for (A** p : {&part.top, &part.sum, &part.factor, &part.total_top, &part.total_high, &part.total_low}) *p += first;
    return part;
  }
};

/// What is subtracted from scores of at most `top`: 0 where they are all -infinity, whose exponentials are then 0.
template <class A>
TIGON_INLINE A finite_top(A top) {
  return top == -std::numeric_limits<A>::infinity() ? A(0) : top;
}

/// exp(before - top), of what was added before the maximum grew from `before` to `top`.
template <class A>
TIGON_INLINE A factor_of(A before, A top) {
  if (before == top) return A(1);
  return before == -std::numeric_limits<A>::infinity() ? A(0) : math::exp_nonpositive(before - top);
}

/// Rows of a part that have one tile of scores at a time.
template <class B, element T>
class softmax_rows {
 public:
  using A = accumulator_t<T>;
  using rows_backend = row_backend<B>;

  softmax_rows() = default;
  /// State of `rows` rows from a sink for each head, if there are sinks.
  softmax_rows(running_softmax<A> state, std::size_t rows, std::size_t heads, const float* sinks)
      : state_(state), rows_(rows) {
    for (std::size_t r = 0; r < rows; ++r) {
      state_.top[r] = sinks == nullptr ? -std::numeric_limits<A>::infinity() : static_cast<A>(sinks[r % heads]);
      state_.sum[r] = sinks == nullptr ? A(0) : A(1);
    }
  }
  std::size_t rows() const { return rows_; }

  /// A tile of keys, in strips of rows: begin_keys, add or skip for every strip, end_keys.
  void begin_keys(context& own) {
    if (tiles_ == simd::plain_rows) add_to_totals(own);
  }
  void end_keys() { ++tiles_; }

  /// The scores s of the rows from `first` on become exponentials, 0 where they are not seen, and o += them * v. `v`
  /// has as many rows as s has columns.
  void add(std::size_t first, matrix_view<A> s, const seen_columns& seen, gemm_operand<T> v, context& own) {
    const std::size_t rows = std::min(s.rows, rows_ - first);
    const running_softmax<A> state = state_.from(first, rows);
    exponentials(state, s.rows_from(0, rows), seen, own);
    if (tiles_ != 0) rescale(state, own);
    const matrix_view<A> o(state.o.data, s.rows, state.o.cols, state.o.row_stride);
    tile_product<B, A, T, A>(s, v, o, {.beta = tiles_ != 0 ? 1.0 : 0.0}, own);
  }
  /// These rows see none of the keys.
  void skip(std::size_t first, std::size_t rows) {
    for (std::size_t r = first; tiles_ == 0 && r < first + rows; ++r) clear_row(state_.o, r);
  }

  /// After the last tile: o, which is not yet divided by sum.
  matrix_view<A> finish(context& own) {
    if (tiles_ == 0 && !has_totals_)
      for (std::size_t r = 0; r < rows_; ++r) std::fill_n(state_.o.row(r), state_.o.cols, A(0));
    if (!has_totals_) return state_.o.rows_from(0, rows_);
    if (tiles_ != 0) add_to_totals(own);
    const auto high = state_.high, low = state_.low, o = state_.o;
    for_rows<rows_backend, A>(own, rows_, o.cols, [=] TIGON_FN(auto row) {
      row.map(reads(high, low), writes(o), [](auto h, auto l) { return h + l; });
    });
    for (std::size_t r = 0; r < rows_; ++r)
      state_.top[r] = state_.total_top[r], state_.sum[r] = state_.total_high[r] + state_.total_low[r];
    return o.rows_from(0, rows_);
  }

  /// Scores become exp(score - maximum); `factor` is that of the terms that were added before.
  static void exponentials(const running_softmax<A>& of, matrix_view<A> s, const seen_columns& seen, context& own) {
    const running_softmax<A> state = of;
    for_rows<rows_backend, A>(own, s.rows, s.cols, [=] TIGON_FN(auto row) {
      const key_range columns = seen.of(row.i);
      clear_outside(s.row(row.i), s.cols, columns);
      if (columns.empty()) {
        if (row.first()) state.factor[row.i] = A(1);
        return;
      }
      const auto part = row.part(columns.first, columns.size());
      const A before = state.top[row.i], top = math::max(before, part.max(reads(s), [](auto v) { return v; }));
      const A shift = finite_top(top);
      const A sum = part.map_sum(reads(cached{s}), writes(s), [=](auto v) {
        const auto e = exp_nonpositive(v - shift);
        return pack{e, e};
      });
      const A factor = factor_of(before, top);
      if (row.first()) {
        state.top[row.i] = top;
        state.sum[row.i] = state.sum[row.i] * factor + sum;
        state.factor[row.i] = factor;
      }
    });
  }

  static void rescale(const running_softmax<A>& of, context& own) {
    const running_softmax<A> state = of;
    const matrix_view<A> o = state.o;
    for_rows<rows_backend, A>(own, o.rows, o.cols, [=] TIGON_FN(auto row) {
      const A factor = state.factor[row.i];
      if (factor == 1) return;
      row.map(reads(o), writes(o), [=](auto v) { return v * factor; });
    });
  }

  /// Totals += these tiles, which begin anew.
  void add_to_totals(context& own) {
    const running_softmax<A> state = state_;
    const bool first = !has_totals_;
    for_rows<rows_backend, A>(own, rows_, state.o.cols, [=] TIGON_FN(auto row) {
      const std::size_t i = row.i;
      const A old = first ? state.top[i] : state.total_top[i], top = math::max(old, state.top[i]);
      const A of_old = factor_of(old, top), of_new = factor_of(state.top[i], top);
      if (first)
        row.map(reads(state.o, constant(A(0))), writes(state.high, state.low), [](auto o, auto zero) {
          return pack{o, zero};
        });
      else
        row.map(reads(state.high, state.low, state.o), writes(state.high, state.low), [=](auto high, auto low, auto o) {
          return simd::add_compensated(high * of_old, low * of_old, o * of_new);
        });
      if (row.first()) {
        using V = simd::vec<simd::scalar, A>;
        const auto total =
            simd::add_compensated(V(first ? A(0) : state.total_high[i] * of_old),
                                  V(first ? A(0) : state.total_low[i] * of_old), V(state.sum[i] * of_new));
        simd::store(total.v[0], state.total_high + i), simd::store(total.v[1], state.total_low + i);
        state.total_top[i] = top, state.top[i] = top, state.sum[i] = A(0);
      }
    });
    has_totals_ = true, tiles_ = 0;
  }

 private:
  running_softmax<A> state_{};
  std::size_t rows_ = 0, tiles_ = 0;
  bool has_totals_ = false;
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_ATTENTION_RUNNING_SOFTMAX_HPP
