// Attention backward: tiles of p and ds, and what they add to dq, dk and dv.
#ifndef TIGON_OPS_ATTENTION_BACKWARD_HPP
#define TIGON_OPS_ATTENTION_BACKWARD_HPP

#include <tigon/gemm/chunk_sums.hpp>
#include <tigon/ops/attention_softmax.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// The inputs of backward.
template <element T>
struct backward_inputs {
  in_heads<T> d_o, q, k, v, o;
  std::span<const accumulator_t<T>> lse;
  const attention_options& opt;
  double scale;
};

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
  static constexpr std::size_t score_stride = workspace::padded<A>(extents::keys);

  static std::size_t bytes(std::size_t d) {
    return workspace::bytes_for<visible_keys>(extents::rows) + 2 * workspace::bytes_for<T>(extents::rows, d) +
           2 * workspace::bytes_for<A>(extents::rows) + 2 * workspace::bytes_for<A>(extents::rows, score_stride);
  }
  backward_rows(workspace::frame& frame, const backward_inputs<T>& in)
      : in_(in),
        seen_(frame.take<visible_keys>(extents::rows)),
        lse_(frame.take<A>(extents::rows)),
        delta_(frame.take<A>(extents::rows)) {
    for (matrix_view<T>* m : {&q_, &d_o_}) *m = {frame.take<T>(extents::rows * in.q.head_dim), 0, in.q.head_dim};
    for (matrix_view<A>* m : {&p_, &ds_}) *m = {frame.take<A>(extents::rows * score_stride), 0, 0, score_stride};
  }

  /// These rows come next. Returns the keys that they see.
  key_range begin(const query_part& part) {
    part_ = part, loaded_ = false;
    const visibility rule{in_.opt, in_.k.seq_len};
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
    p_.rows = ds_.rows = padded(), p_.cols = ds_.cols = n;
    tile_product<B, T, T, A>(q_, k, p_, {.alpha = in_.scale, .b = transpose::yes}, own);
    tile_product<B, T, T, A>(d_o_, v, ds_, {.b = transpose::yes}, own);
    const matrix_view<A> p = p_.rows_from(0, rows), ds = ds_.rows_from(0, rows);
    if (in_.opt.softcap != 0) {
      cap_scores<row_backend<B>>(p, static_cast<A>(in_.opt.softcap), own);
      gradients_of_capped(p, ds, static_cast<A>(in_.opt.softcap), own);
    } else {
      gradients(p, ds, own);
    }
    for (const matrix_view<A>& m : {p_, ds_}) {
      if (kind({first, first + n}) != tile_kind::whole) hide(m.rows_from(0, rows), seen_, part_.heads, first, A(0));
      for (std::size_t r = rows; r < m.rows; ++r) std::fill_n(m.row(r), n, A(0));
    }
  }

  /// to (+)= scale ds k
  void dq(gemm_operand<T> k, matrix_view<A> to, bool more, context& own) const {
    tile_product<B, A, T, A>(ds_, k, to, {.alpha = in_.scale, .beta = more ? 1.0 : 0.0}, own);
  }
  /// to (+)= scale ds^T q;   to (+)= p^T do
  void dk(matrix_view<A> to, bool more, context& own) const { share(ds_, q_, in_.scale, to, more, own); }
  void dv(matrix_view<A> to, bool more, context& own) const { share(p_, d_o_, 1, to, more, own); }

  static std::size_t product_bytes(std::size_t d) {
    const std::size_t sums = extents::most([=](std::size_t m, std::size_t n) {
      return std::max({gemm_workspace<B, A, T, A>(m, d, n), gemm_packed_workspace<B, A, T, A>(m, d, n),
                       gemm_workspace<B, A, T, A>(n, d, m)});
    });
    return std::max(sums, score_product_bytes<B, T>(d));
  }

  void gradients(matrix_view<A> p, matrix_view<A> ds, context& own) const {
    const A *lse = lse_, *delta = delta_;
    for_rows<row_backend<B>, A>(own, p.rows, p.cols, [=] TIGON_FN(auto row) {
      const A l = finite_top(lse[row.i]), mean = delta[row.i];
      row.map(reads(p, ds), writes(p, ds), [=](auto s, auto g) {
        const auto e = exp_nonpositive(s - l);
        return pack{e, e * (g - mean)};
      });
    });
  }
  void gradients_of_capped(matrix_view<A> p, matrix_view<A> ds, A softcap, context& own) const {
    const A *lse = lse_, *delta = delta_, inverse = 1 / softcap;
    for_rows<row_backend<B>, A>(own, p.rows, p.cols, [=] TIGON_FN(auto row) {
      const A l = finite_top(lse[row.i]), mean = delta[row.i];
      row.map(reads(p, ds), writes(p, ds), [=](auto s, auto g) {
        const auto e = exp_nonpositive(s - l), t = s * inverse;
        return pack{e, e * (g - mean) * fnma(t, t, decltype(t)(A(1)))};
      });
    });
  }

 private:
  static void share(matrix_view<A> of, matrix_view<T> x, double alpha, matrix_view<A> to, bool more, context& own) {
    tile_product<B, A, T, A>(of, {x}, to, {.alpha = alpha, .beta = more ? 1.0 : 0.0, .a = transpose::yes}, own);
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
      row_products<B, T>(part_.tensor(in_.d_o, h), part_.tensor(in_.o, h), delta_ + h, heads, own);
    }
    loaded_ = true;
  }

  const backward_inputs<T>& in_;
  visible_keys* seen_;
  A *lse_, *delta_;
  matrix_view<T> q_, d_o_;
  matrix_view<A> p_, ds_;
  query_part part_{};
  bool loaded_ = false;
};

/// A block of keys: its operands, and the sums of dk and dv.
template <class B, element T>
class backward_keys {
 public:
  using A = accumulator_t<T>;
  using extents = tile_extents<B>;
  using sums = chunk_sums<row_backend<B>, A>;
  static constexpr std::size_t many = static_cast<std::size_t>(-1);  ///< tiles of rows, for which sums have totals

  static std::size_t bytes(std::size_t d) {
    return 2 * key_tiles<B, T>::bytes(d) + 2 * packed_keys<B, T, T>::bytes(d) + packed_keys<B, A, T>::bytes(d) +
           2 * sums::bytes(workspace::product(extents::keys, d), many, false);
  }
  backward_keys(workspace::frame& frame, const backward_inputs<T>& in, std::size_t batch, std::size_t head,
                std::size_t tiles)
      : keys_(frame, in.k.head(batch, head)),
        values_(frame, in.v.head(batch, head)),
        scored_k_(frame, in.q.head_dim, transpose::yes),
        scored_v_(frame, in.q.head_dim, transpose::yes),
        summed_k_(frame, in.q.head_dim, transpose::no),
        dk_(frame, extents::keys * in.q.head_dim, tiles, false),
        dv_(frame, extents::keys * in.q.head_dim, tiles, false) {}

  void begin(std::size_t first, std::size_t count, std::size_t d) {
    first_ = first, count_ = count, n_ = extents::padded_keys(count), begun_ = false, packed_ = false;
    for (sums* s : {&dk_, &dv_}) s->begin(count, d, {}, false);
  }
  bool begun() const { return begun_; }

  /// Adds the shares of these rows to dk and dv. `dq` becomes theirs of this block of keys, unless it has no memory.
  void add(backward_rows<B, T>& rows, key_range seen, matrix_view<A> dq, context& own) {
    const std::size_t n = std::min(n_, extents::padded_keys(std::min(extents::keys, seen.end - first_)));
    gemm_operand<T> k{}, v{}, plain_k{};
    if (n == n_) {
      if (!packed_) pack(own);
      k = k_, v = v_, plain_k = plain_k_;
    } else {
      k = plain_k = {keys_.at(first_, n)}, v = {values_.at(first_, n)};
    }
    rows.scores(first_, n, k, v, own);
    const auto [dk, more_dk] = dk_.next(own);
    rows.dk(wide(dk, n, more_dk), more_dk, own);
    const auto [dv, more_dv] = dv_.next(own);
    rows.dv(wide(dv, n, more_dv), more_dv, own);
    if (dq.data != nullptr) rows.dq(plain_k, dq, false, own);
    begun_ = true;
  }

  /// dk and dv (+)= the sums.
  void finish(matrix_view<T> dk, matrix_view<T> dv, bool add, context& own) {
    if (begun_) dk_.finish(dk, add, own), dv_.finish(dv, add, own);
    if (!begun_ && !add) clear_matrix<row_backend<B>>(dk, own), clear_matrix<row_backend<B>>(dv, own);
  }

 private:
  void pack(context& own) {
    const auto k = keys_.at(first_, n_), v = values_.at(first_, n_);
    k_ = scored_k_.pack(k, own), v_ = scored_v_.pack(v, own), plain_k_ = summed_k_.pack(k, own), packed_ = true;
  }
  /// The first n of the block's padded rows; the others become 0 before anything is added to them.
  matrix_view<A> wide(matrix_view<A> sum, std::size_t n, bool more) const {
    sum.rows = n_;
    if (!more)
      for (std::size_t j = n; j < n_; ++j) std::fill_n(sum.row(j), sum.cols, A(0));
    return sum.rows_from(0, n);
  }

  key_tiles<B, T> keys_, values_;
  packed_keys<B, T, T> scored_k_, scored_v_;
  packed_keys<B, A, T> summed_k_;
  sums dk_, dv_;
  gemm_operand<T> k_{}, v_{}, plain_k_{};
  std::size_t first_ = 0, count_ = 0, n_ = 0;
  bool begun_ = false, packed_ = false;
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_ATTENTION_BACKWARD_HPP
