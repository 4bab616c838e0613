// A linear layer in front of a loss, a tile of rows and vocabulary columns at a time: no row of logits is ever whole.
#ifndef TIGON_LOSSES_LINEAR_TILED_LINEAR_HPP
#define TIGON_LOSSES_LINEAR_TILED_LINEAR_HPP

#include <tigon/losses/linear/kept_linear.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Whether B wants tiles, and a row of logits does not fit in one.
template <class B>
constexpr bool streams(std::size_t vocab) {
  return B::chunk.rule == chunk_rule::stream && vocab > B::chunk.cols;
}

/// Logits of one tile after the other, and from the gradient D of a tile its share of
///   dx = D w,   dw = D^T x,   db[j] = sum_i D[i,j]
/// Columns are the outer loop: a pass reads w once, and dw of a tile's columns is complete after its rows and rounded
/// once. The sums in memory are those of dx, which is smaller. Logits and D belong to the caller, and so do the sums of
/// dx.
template <class B, layer_types T>
class tiled_linear {
 public:
  using A = accumulator_t<T>;
  using X = input_t<T>;
  using W = weight_t<T>;
  static_assert(B::chunk.cols > 0, "tigon: a tile of logits has at least one column");

  /// `tile`: most rows of a tile, as of which all products are cut; `tiles`: most tiles of a column.
  tiled_linear(workspace::frame& frame, linear_layer<T> head, linear_gradients<T> out, std::size_t tile,
               std::size_t tiles, context& ctx)
      : head_(head), out_(out), ctx_(ctx), tile_(tile), cols_(B::chunk.cols) {
    if (head.bias.data() != nullptr) bias_ = frame.template take<A>(cols_);
    if (out.dw.data != nullptr) dw_ = sums(frame, cols_ * head.w.cols, tiles, wide);
    if (out.dbias.data() != nullptr) dbias_ = sums(frame, cols_, tiles, false);
  }

  /// f(first, n) for every tile of columns.
  template <class F>
  void for_columns(F f) {
    for_chunks(head_.w.rows, cols_, [&](std::size_t first, std::size_t n) {
      first_ = first, n_ = n, begun_ = false;
      if (dw_) {
        if constexpr (wide)
          dw_.begin(n_, head_.w.cols, out_.dw.rows_from(first_, n_), adds());
        else
          dw_.begin(n_, head_.w.cols, {}, adds());
      }
      if (dbias_) dbias_.begin(1, n_, {}, adds());
      if (bias_ != nullptr) round_sums<row_backend<B>, A>(as_row(bias()), part_of(as_row(head_.bias)), false, ctx_);
      f(first, n);
      if (begun_) finish_columns();
    });
  }

  /// z = x w^T + bias, for these columns.
  void logits(matrix_view<const X> x, matrix_view<A> z) const {
    linear_product<B>(x, w(), packed_operand<W>{}, z, in_vector<A>(bias()),
                      {.b = transpose::yes, .cut_as = {.rows = tile_}}, ctx_);
  }

  /// The gradients of rows x from the gradient d of their logits in these columns. dx: where their share of it goes, to
  /// what is there if `more`; not wanted without memory.
  void backward(matrix_view<const X> x, matrix_view<A> d, matrix_view<A> dx, bool more_dx) {
    if (dx.data != nullptr)
      linear_product<B>(d, w(), packed_operand<W>{}, dx, in_vector<A>{},
                        {.beta = more_dx ? 1.0 : 0.0, .cut_as = {.rows = tile_}}, ctx_);
    if (dw_) {
      const auto [to, more] = dw_.next(ctx_);
      share_product<B, A, X>(d, x, to, {.beta = more ? 1.0 : 0.0, .a = transpose::yes, .cut_as = {.depth = tile_}},
                             ctx_);
    }
    if (dbias_) {
      const auto [to, more] = dbias_.next(ctx_);
      sum_columns<row_backend<B>>(d, vector_view<A>{to.data, n_}, more ? gradient::accumulate : gradient::overwrite,
                                  ctx_);
    }
    begun_ = true;
  }

 private:
  static constexpr bool wide = std::same_as<weight_gradient_t<T>, A>;
  using sums = chunk_sums<row_backend<B>, A>;

  bool adds() const { return out_.mode == gradient::accumulate; }
  vector_view<A> bias() const { return {bias_, bias_ == nullptr ? 0 : n_}; }
  matrix_view<const W> w() const { return head_.w.rows_from(first_, n_); }
  template <class M>
  M part_of(M row) const {
    return row.cols_from(first_, n_);
  }
  void finish_columns() {
    if (dw_) dw_.finish(out_.dw.rows_from(first_, n_), adds(), ctx_);
    if (dbias_) dbias_.finish(part_of(as_row(out_.dbias)), adds(), ctx_);
  }

  linear_layer<T> head_;
  linear_gradients<T> out_;
  context& ctx_;
  std::size_t tile_, cols_;
  A* bias_ = nullptr;
  sums dw_, dbias_;
  std::size_t first_ = 0, n_ = 0;
  bool begun_ = false;  ///< the gradients of these columns hold something
};

/// Bytes that tiled_linear takes for `tiles` tiles of up to `tile` rows, with all gradients, or those of x alone, and a
/// bias; without the logits and the sums of dx.
template <class B, layer_types T>
std::size_t tiled_linear_workspace(std::size_t hidden, std::size_t vocab, std::size_t tile, std::size_t tiles,
                                   const context& ctx, parameters of = parameters::trained) {
  using A = accumulator_t<T>;
  using X = input_t<T>;
  using W = weight_t<T>;
  const bool trains = detail::trains(of);
  const std::size_t workers = ctx.executor().workers(), cols = B::chunk.cols;
  std::size_t inner = 0;
  // Narrower products may want more.
  for (const std::size_t c : {cols, (vocab - 1) % cols + 1})
    inner = std::max({inner, gemm_workspace<B, X, W, A>(tile, c, hidden, workers),
                      gemm_workspace<B, A, W, A>(tile, hidden, c, workers),
                      trains ? parameter_workspace<B, X>(tile, hidden, c, workers) : 0});
  using sums = chunk_sums<row_backend<B>, A>;
  const std::size_t bytes = inner + workspace::bytes_for<A>(cols);
  if (!trains) return bytes;
  return bytes + sums::bytes(cols, tiles, false) +
         sums::bytes(workspace::product(cols, hidden), tiles, std::same_as<weight_gradient_t<T>, A>);
}

/// The rows of x that are chosen, a tile at a time: gathered, or where all are chosen as they are. dx of f32 (f64) is
/// its own sum.
template <class B, layer_types T>
class chosen_tiles {
 public:
  using A = accumulator_t<T>;
  using X = input_t<T>;

  chosen_tiles(workspace::frame& frame, matrix_view<const X> x, chosen_rows kept, std::size_t tile)
      : from_(x), kept_(kept), gathered_(kept.all() ? nullptr : frame.template take<X>(tile * x.cols)) {}

  std::size_t size() const { return kept_.n; }
  matrix_view<const X> x(std::size_t begin, std::size_t n, context& ctx) const {
    if (kept_.all()) return from_.rows_from(begin, n);
    const matrix_view<X> x(gathered_, n, from_.cols);
    gather_rows<row_backend<B>, A>(from_, kept_.row + begin, x, ctx);
    return x;
  }
  matrix_view<A> sums(workspace::frame& frame, matrix_view<X> dx) const {
    if constexpr (wide)
      return dx.rows_from(0, kept_.n);
    else
      return {frame.template take<A>(kept_.n * dx.cols), kept_.n, dx.cols};
  }
  /// dx, of rows that are not chosen 0.
  void finish(matrix_view<const A> sums, matrix_view<X> dx, context& ctx) const {
    if (kept_.all()) {
      if constexpr (!wide) round_sums<row_backend<B>, A>(dx, sums, false, ctx);
      return;
    }
    if constexpr (wide) {
      put_chosen<B>(dx, kept_, ctx);
    } else {
      scatter_rows<row_backend<B>, A>(sums, kept_.row, dx, ctx);
      clear_other_rows<B>(dx, kept_, ctx);
    }
  }

 private:
  static constexpr bool wide = std::same_as<X, A>;

  matrix_view<const X> from_;
  chosen_rows kept_;
  X* gathered_;
};

/// tiled_linear over rows that are chosen, in passes, with the memory of a tile's logits and of the sums of dx.
template <class B, layer_types T>
class tiled_layer {
 public:
  using A = accumulator_t<T>;
  using X = input_t<T>;

  tiled_layer(workspace::frame& frame, linear_layer<T> head, linear_gradients<T> out, chosen_rows kept, kept_chunk tile,
              context& ctx)
      : rows_(frame, head.x, kept, tile.rows),
        tile_(tile.rows),
        to_(out.dx),
        ctx_(ctx),
        logits_(frame.template take<A>(tile.rows * B::chunk.cols)),
        layer_(frame, head, out, tile.cut, gemm_detail::ceil_div(kept.n, tile.rows), ctx) {
    if (to_.data == nullptr) return;
    dx_ = rows_.sums(frame, to_);
    dx_sums_ = sums(frame, dx_.rows * dx_.cols, column_tiles(head.w.rows), true);
    dx_sums_.begin(dx_.rows, dx_.cols, dx_, false);
  }

  /// f(begin, first, z) for every tile: the logits z of rows [begin, begin + z.rows) in columns [first, first +
  /// z.cols). begin is 0 in the first tile of these columns, first is 0 in the first tile of these rows.
  template <class F>
  void for_each(F f) {
    layer_.for_columns([&](std::size_t first, std::size_t cols) {
      for_chunks(rows_.size(), tile_, [&](std::size_t begin, std::size_t n) {
        const matrix_view<A> z(logits_, n, cols);
        x_ = rows_.x(begin, n, ctx_);
        layer_.logits(x_, z);
        f(begin, first, z);
      });
    });
  }

  /// The gradients from that of the logits that f was given, in their place; for every tile of a column or for none.
  void backward(std::size_t begin, matrix_view<A> z) {
    if (dx_sums_ && begin == 0) share_ = dx_sums_.next(ctx_);
    layer_.backward(x_, z, dx_sums_ ? share_.sum.rows_from(begin, z.rows) : matrix_view<A>{}, share_.more);
  }

  /// dx, after the last tile.
  void finish() {
    if (to_.data == nullptr) return;
    dx_sums_.finish(dx_, false, ctx_);
    rows_.finish(dx_, to_, ctx_);
  }

 private:
  using sums = chunk_sums<row_backend<B>, A>;
  static constexpr std::size_t column_tiles(std::size_t vocab) { return gemm_detail::ceil_div(vocab, B::chunk.cols); }

  chosen_tiles<B, T> rows_;
  std::size_t tile_;
  matrix_view<X> to_;
  context& ctx_;
  A* logits_;
  tiled_linear<B, T> layer_;
  matrix_view<const X> x_;
  matrix_view<A> dx_;
  sums dx_sums_;                  ///< in dx_
  typename sums::place share_{};  ///< of these columns
};

/// Bytes of a row of a tile: of its logits, and of x, which is gathered in memory of its own: dx holds sums.
template <class B, layer_types T>
constexpr kept_bytes bytes_of_tile_row(std::size_t hidden) {
  return {B::chunk.cols * sizeof(accumulator_t<T>), workspace::product(hidden, sizeof(input_t<T>))};
}

/// Bytes that tiled_layer takes for `rows` rows, gathered or as they are, with all gradients, or those of x alone, and
/// a bias. `forward`: bytes that the loss takes where there are no gradients.
template <class B, layer_types T>
std::size_t tiled_layer_workspace(layer_extents of, kept_chunk tile, bool gathered, const context& ctx,
                                  parameters trained, std::size_t forward = 0) {
  using A = accumulator_t<T>;
  using X = input_t<T>;
  const std::size_t dx = (std::same_as<X, A> ? 0 : workspace::bytes_for<A>(of.rows, of.hidden)) +
                         chunk_sums<row_backend<B>, A>::bytes(workspace::product(of.rows, of.hidden),
                                                              gemm_detail::ceil_div(of.vocab, B::chunk.cols), true);
  return workspace::bytes_for<A>(tile.rows, B::chunk.cols) +
         (gathered ? workspace::bytes_for<X>(tile.rows, of.hidden) : 0) + std::max(forward, dx) +
         tiled_linear_workspace<B, T>(of.hidden, of.vocab, tile.cut, gemm_detail::ceil_div(of.rows, tile.rows), ctx,
                                      trained);
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_LINEAR_TILED_LINEAR_HPP
