// Attention backward: a tile of rows with p and ds, and its shares of dq, dk and dv.
#ifndef TIGON_OPS_ATTENTION_BACKWARD_ROWS_HPP
#define TIGON_OPS_ATTENTION_BACKWARD_ROWS_HPP

#include <tigon/ops/attention/running_softmax.hpp>

#include <cmath>
#include <utility>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// The inputs of backward.
template <element T>
struct backward_inputs {
  in_heads<T> d_o, q, k, v, o;
  std::span<const accumulator_t<T>> lse;
  const attention_options& opt;
  double scale;
  heads_view<T> kept_delta = {};  ///< what backward_rows::keep_delta left; or empty
};

/// The memory for delta as heads whose rows each have room for one; or none.
template <element T>
heads_view<T> rows_for_delta(in_heads<T> q, const attention_gradients<T>& to) {
  if (to.delta.empty() || to.dk.data == nullptr || to.dq.data != nullptr) return {};
  constexpr std::size_t width = sizeof(accumulator_t<T>) / sizeof(T);
  return heads_view<T>::of_heads(reinterpret_cast<T*>(to.delta.data()), q.batch, q.heads, q.seq_len, width);
}

/// to[i * stride] = sum_c a[i,c] b[i,c]
template <class B, element T, class A = accumulator_t<T>>
void row_products(matrix_view<const T> a, matrix_view<const T> b, A* to, std::size_t stride, context& own) {
  for_rows<row_backend<B>, A>(own, a.rows, a.cols, [=] TIGON_FN(auto row) {
    const A sum = row.sum(reads(a, b), [](auto x, auto y) { return x * y; });
    if (row.first()) to[row.i * stride] = sum;
  });
}

/// A tile of rows with its operands, and one tile of p and ds.
template <class B, element T>
class backward_rows {
 public:
  using A = accumulator_t<T>;
  using extents = tile_extents<B>;
  static constexpr std::size_t score_stride = round_up(extents::keys, workspace::alignment / sizeof(A));

  /// Of q of d columns and do of e.
  static std::size_t bytes(std::size_t d, std::size_t e) {
    return workspace::bytes_for<visible_keys>(extents::rows) + workspace::bytes_for<T>(extents::rows, d) +
           workspace::bytes_for<T>(extents::rows, e) + 2 * workspace::bytes_for<A>(extents::rows) +
           2 * workspace::bytes_for<A>(extents::rows, score_stride);
  }
  backward_rows(workspace::frame& frame, const backward_inputs<T>& in)
      : in_(in),
        seen_(frame.take<visible_keys>(extents::rows)),
        lse_(frame.take<A>(extents::rows)),
        delta_(frame.take<A>(extents::rows)) {
    q_ = {frame.take<T>(extents::rows * in.q.head_dim), 0, in.q.head_dim};
    d_o_ = {frame.take<T>(extents::rows * in.v.head_dim), 0, in.v.head_dim};
    for (matrix_view<A>* m : {&p_, &ds_}) *m = {frame.take<A>(extents::rows * score_stride), 0, 0, score_stride};
  }

  /// These rows come next. Returns the keys that they see.
  key_range begin(const query_part& part) {
    part_ = part, loaded_ = false;
    const visibility rule{in_.opt, in_.k.seq_len, part.batch};
    for (std::size_t i = 0; i < part.queries; ++i) seen_[i] = rule.of(part.query + i);
    return seen_by_any(seen_, part.queries);
  }
  tile_kind kind(key_range keys) const { return kind_of(seen_, part_.queries, keys); }
  const query_part& part() const { return part_; }
  std::size_t padded() const { return extents::padded_rows(part_.rows()); }

  /// p and ds of these rows and of keys [first, first + n), which are not hidden.
  void scores(std::size_t first, std::size_t n, gemm_operand<T> k, gemm_operand<T> v, context& own) {
    if (!loaded_) load(own);
    const std::size_t rows = part_.rows();
    two_products(n, k, v, own);
    const matrix_view<A> p = p_.rows_from(0, rows), ds = ds_.rows_from(0, rows);
    const seen_columns seen = seen_of({first, first + n});
    if (in_.opt.softcap != 0)
      gradients_of_capped(p, ds, seen, static_cast<A>(in_.opt.softcap), own);
    else
      gradients(p, ds, seen, own);
    for (const matrix_view<A>& m : {p_, ds_}) {
      if (in_.opt.prefix != 0) hide_between(m.rows_from(0, rows), seen, A(0));
      for (std::size_t r = rows; r < m.rows; ++r) clear_row(m, r);
    }
  }

  /// Adds the share of these keys to the sum of p do v^T of every row, which is delta without the rounding of o.
  void add_to_delta(std::size_t first, std::size_t n, gemm_operand<T> k, gemm_operand<T> v, double* sums,
                    context& own) {
    if (!loaded_) load(own);
    two_products(n, k, v, own);
    const matrix_view<A> s = p_.rows_from(0, part_.rows()), g = ds_.rows_from(0, part_.rows());
    const seen_columns seen = seen_of({first, first + n});
    if (in_.opt.prefix != 0) hide_between(s, seen, -std::numeric_limits<A>::infinity());
    const A* lse = lse_;
    for_rows<row_backend<B>, A>(own, s.rows, s.cols, [=] TIGON_FN(auto row) {
      const key_range columns = seen.of(row.i);
      if (columns.empty()) return;
      const A l = finite_top(lse[row.i]);
      const A sum = row.part(columns.first, columns.size()).sum(reads(s, g), [=](auto score, auto of) {
        return exp_nonpositive(score - l) * of;
      });
      if (row.first()) sums[row.i] += static_cast<double>(sum);
    });
  }

  /// Keeps delta of row i of head h of these rows in the row of `to`: in its first bytes or, where a row is of one
  /// element of 16 bits, as (delta - do o) / sum_c |do[c]|, times a power of two that keeps it among the normal
  /// numbers. That is what the rounding of o took away: of delta as many digits again.
  void keep_delta(std::size_t h, std::size_t i, double delta, heads_view<T> to) const {
    T* const row = part_.tensor(to, h).row(i);
    if (const A sum = static_cast<A>(delta); to.head_dim * sizeof(T) >= sizeof(A))
      std::memcpy(static_cast<void*>(row), &sum, sizeof sum);
    else {
      const auto [rounded, size] = rounded_delta(h, i);
      *row = T(static_cast<A>(size == 0 ? 0 : (delta / size - rounded / size) * rest_scale));
    }
  }

  /// to (+)= scale ds k
  void dq(gemm_operand<T> k, matrix_view<A> to, bool more, context& own) const {
    tile_product<B, A, T, A>(ds_, k, to, {.alpha = in_.scale, .beta = more ? 1.0 : 0.0}, own);
  }
  /// to (+)= scale ds^T q;   to (+)= p^T do
  void dk(matrix_view<A> to, bool more, context& own) const { share(ds_, q_, in_.scale, to, more, own); }
  void dv(matrix_view<A> to, bool more, context& own) const { share(p_, d_o_, 1, to, more, own); }

  static std::size_t product_bytes(std::size_t d, std::size_t e) {
    std::size_t most = 0;
    for (const std::size_t cols : {d, e}) {
      const std::size_t sums = extents::most(cols, [](std::size_t m, std::size_t n, std::size_t k) {
        return std::max({gemm_workspace<B, A, T, A>(m, k, n), gemm_packed_workspace<B, A, T, A>(m, k, n),
                         gemm_workspace<B, A, T, A>(n, k, m)});
      });
      most = std::max({most, sums, score_product_bytes<B, T>(cols)});
    }
    return most;
  }

  /// p and ds, which are 0 where nothing is seen.
  void gradients(matrix_view<A> p, matrix_view<A> ds, const seen_columns& seen, context& own) const {
    const A *lse = lse_, *delta = delta_;
    for_rows<row_backend<B>, A>(own, p.rows, p.cols, [=] TIGON_FN(auto row) {
      const key_range columns = seen.of(row.i);
      clear_outside(p.row(row.i), p.cols, columns), clear_outside(ds.row(row.i), ds.cols, columns);
      if (columns.empty()) return;
      const A l = finite_top(lse[row.i]), mean = delta[row.i];
      row.part(columns.first, columns.size()).map(reads(p, ds), writes(p, ds), [=](auto s, auto g) {
        const auto e = exp_nonpositive(s - l);
        return pack{e, e * (g - mean)};
      });
    });
  }
  void gradients_of_capped(matrix_view<A> p, matrix_view<A> ds, const seen_columns& seen, A softcap,
                           context& own) const {
    const A *lse = lse_, *delta = delta_, inverse = 1 / softcap;
    for_rows<row_backend<B>, A>(own, p.rows, p.cols, [=] TIGON_FN(auto row) {
      const key_range columns = seen.of(row.i);
      clear_outside(p.row(row.i), p.cols, columns), clear_outside(ds.row(row.i), ds.cols, columns);
      if (columns.empty()) return;
      const A l = finite_top(lse[row.i]), mean = delta[row.i];
      row.part(columns.first, columns.size()).map(reads(p, ds), writes(p, ds), [=](auto s, auto g) {
        const auto e = exp_nonpositive(s - l), t = s * inverse;
        return pack{e, e * (g - mean) * fnma(t, t, decltype(t)(A(1)))};
      });
    });
  }

 private:
  seen_columns seen_of(key_range keys) const {
    return {kind(keys) == tile_kind::whole ? nullptr : seen_, part_.heads, keys};
  }
  void two_products(std::size_t n, gemm_operand<T> k, gemm_operand<T> v, context& own) {
    p_.rows = ds_.rows = padded(), p_.cols = ds_.cols = n;
    tile_product<B, T, T, A>(q_, k, p_, {.alpha = in_.scale, .b = transpose::yes}, own);
    tile_product<B, T, T, A>(d_o_, v, ds_, {.b = transpose::yes}, own);
    if (in_.opt.softcap != 0)
      cap_scores<row_backend<B>>(p_.rows_from(0, part_.rows()), static_cast<A>(in_.opt.softcap), own);
  }
  static void share(matrix_view<A> of, matrix_view<T> x, double alpha, matrix_view<A> to, bool more, context& own) {
    tile_product<B, A, T, A>(of, {x}, to, {.alpha = alpha, .beta = more ? 1.0 : 0.0, .a = transpose::yes}, own);
  }

  /// do o and sum_c |do[c]| of a row, one column after the other, so that both calls have the same.
  std::pair<double, double> rounded_delta(std::size_t h, std::size_t i) const {
    const T *const g = part_.tensor(in_.d_o, h).row(i), *const o = part_.tensor(in_.o, h).row(i);
    double sum = 0, size = 0;
    for (std::size_t c = 0; c < in_.d_o.head_dim; ++c) {
      const double of_g = static_cast<double>(static_cast<A>(g[c]));
      sum += of_g * static_cast<double>(static_cast<A>(o[c])), size += std::abs(of_g);
    }
    return {sum, size};
  }
  A kept_delta(std::size_t h, std::size_t i) const {
    const T* const row = part_.tensor(in_.kept_delta, h).row(i);
    A delta;
    if (in_.kept_delta.head_dim * sizeof(T) >= sizeof(A))
      std::memcpy(&delta, row, sizeof delta);
    else {
      const auto [rounded, size] = rounded_delta(h, i);
      delta = static_cast<A>(rounded + size * (static_cast<double>(static_cast<A>(*row)) / rest_scale));
    }
    return delta;
  }

  /// q, do, lse, and delta = do o, of these rows.
  void load(context& own) {
    q_.rows = d_o_.rows = padded();
    gather<T>(part_, in_.q, q_), gather<T>(part_, in_.d_o, d_o_);
    const std::size_t heads = part_.heads;
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t head = part_.batch * in_.q.heads + part_.head + h;
      const A* lse = in_.lse.data() + head * in_.q.seq_len + part_.query;
      for (std::size_t i = 0; i < part_.queries; ++i) lse_[i * heads + h] = lse[i];
      if (in_.kept_delta.data == nullptr)
        row_products<B, T>(part_.tensor(in_.d_o, h), part_.tensor(in_.o, h), delta_ + h, heads, own);
      else
        for (std::size_t i = 0; i < part_.queries; ++i) delta_[i * heads + h] = kept_delta(h, i);
    }
    loaded_ = true;
  }

  static constexpr double rest_scale = 256;  ///< o of f16 has digits down to 2^-24
  const backward_inputs<T>& in_;
  visible_keys* seen_;
  A *lse_, *delta_;
  matrix_view<T> q_, d_o_;
  matrix_view<A> p_, ds_;  ///< scores and the gradients of p, then p and ds in their place
  query_part part_{};
  bool loaded_ = false;
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_ATTENTION_BACKWARD_ROWS_HPP
