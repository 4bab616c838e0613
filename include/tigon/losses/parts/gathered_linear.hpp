// A linear layer on rows chosen by their index.
#ifndef TIGON_LOSSES_PARTS_GATHERED_LINEAR_HPP
#define TIGON_LOSSES_PARTS_GATHERED_LINEAR_HPP

#include <tigon/losses/parts/selective_log_softmax_contract.hpp>
#include <tigon/losses/parts/tiled_linear.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Rows of a product for n chosen rows: whole eighths of a chunk, so that the memory of any is known beforehand.
constexpr std::size_t padded_rows(std::size_t n, std::size_t chunk) {
  const std::size_t step = (chunk + 7) / 8;
  return std::min(chunk, (n + step - 1) / step * step);
}

/// to: rows row[0], ..., row[n - 1] of from, and zeros.
template <class B, element T>
void gather_rows(matrix_view<const T> from, const std::size_t* row, std::size_t n, matrix_view<T> to, context& ctx) {
  using A = accumulator_t<T>;
  for_rows<B, A>(ctx, to.rows, to.cols, [=] TIGON_FN(auto r) {
    if (r.i < n)
      r.map(reads(vector_view<const T>{from.row(row[r.i]), r.cols}), writes(to), [](auto v) { return v; });
    else
      r.map(reads(constant(A(0))), writes(to), [](auto v) { return v; });
  });
}

/// Rows row[0], ..., row[n - 1] of to: the first n of from.
template <class B, class A, element From, element T>
void scatter_rows(matrix_view<const From> from, const std::size_t* row, std::size_t n, matrix_view<T> to,
                  context& ctx) {
  for_rows<B, A>(ctx, n, to.cols, [=] TIGON_FN(auto r) {
    r.map(reads(from), writes(vector_view<T>{to.row(row[r.i]), r.cols}), [](auto v) { return v; });
  });
}

/// Rows of x by their index, a chunk at a time: gathered for the products, and their gradients scattered. Other rows
/// are not read. Products have as many rows as are chosen or a few more, which are zeros.
template <class B, layer_types T>
class gathered_linear {
 public:
  using A = accumulator_t<T>;
  using X = input_t<T>;
  using W = weight_t<T>;

  gathered_linear(workspace::frame& frame, linear_layer<T> head, linear_gradients<T> out, std::size_t chunk,
                  context& ctx)
      : from_(head.x),
        w_(head.w),
        bias_(head.bias),
        to_(out.dx),
        ctx_(ctx),
        chunk_(chunk),
        vocab_(head.w.rows),
        x_(frame.template take<X>(chunk * head.x.cols), chunk, head.x.cols),
        dx_(out.dx.data == nullptr ? matrix_view<X>{}
                                   : matrix_view<X>(frame.template take<X>(chunk * head.x.cols), chunk, head.x.cols)),
        layer_(frame, {x_, head.w, head.bias, head.packed}, {dx_, out.dw, out.dbias, out.mode},
               most_chunks(head.x.rows, chunk), ctx) {}

  /// Most chunks, for groups of rows that share a chunk where they fit: two chunks in succession have more rows than
  /// one holds.
  static constexpr std::size_t most_chunks(std::size_t rows, std::size_t chunk) {
    return 2 * gemm_detail::ceil_div(rows, chunk);
  }

  /// The logits of rows row[0], ..., row[n - 1], at `memory`.
  matrix_view<A> logits(const std::size_t* row, std::size_t n, A* memory) {
    const std::size_t all = padded_rows(n, chunk_);
    gather_rows<row_backend<B>>(from_, row, n, x_.rows_from(0, all), ctx_);
    const matrix_view<A> z(memory, all, vocab_);
    layer_.logits(0, z);
    return {memory, n, z.cols};
  }

  /// The gradients from that of the logits that were computed last, at the same memory.
  void backward(const std::size_t* row, std::size_t n, A* memory) {
    const matrix_view<A> d(memory, padded_rows(n, chunk_), vocab_);
    std::fill(d.row(n), d.row(d.rows), A(0));
    layer_.backward(0, d);
    if (to_.data == nullptr) return;
    scatter_rows<row_backend<B>, A>(matrix_view<const X>(dx_), row, n, to_, ctx_);
  }

  /// One logit of the i-th of the rows whose logits were computed last, in f64.
  double logit(std::size_t i, std::size_t column) const {
    const X* x = x_.row(i);
    const W* w = w_.row(column);
    const auto number = [](auto v) { return static_cast<double>(static_cast<A>(v)); };
    double sum[4] = {bias_.data() != nullptr ? number(bias_[column]) : 0, 0, 0, 0};
    for (std::size_t h = 0; h < x_.cols; ++h) sum[h % 4] += number(x[h]) * number(w[h]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }

  void finish() { layer_.finish(); }

 private:
  matrix_view<const X> from_;
  matrix_view<const W> w_;
  std::span<const W> bias_;
  matrix_view<X> to_;
  context& ctx_;
  std::size_t chunk_, vocab_;
  matrix_view<X> x_, dx_;
  chunked_linear<B, T> layer_;
};

/// Bytes that gathered_linear takes for chunks of `chunk` of `rows` rows, with all gradients, or those of x alone, a
/// bias and nothing packed; without the logits. between(n): bytes that the loss takes between products of n rows, and
/// gives back.
template <class B, layer_types T>
std::size_t gathered_linear_workspace(std::size_t rows, std::size_t hidden, std::size_t vocab, std::size_t chunk,
                                      const context& ctx, auto between, parameters of = parameters::trained) {
  std::size_t most = 0;
  const std::size_t chunks = gathered_linear<B, T>::most_chunks(rows, chunk);
  for (std::size_t n = 0; n < chunk;) {
    n = padded_rows(n + 1, chunk);
    most = std::max(most, chunked_linear_workspace<B, T>(n, hidden, vocab, n, chunks, ctx, between(n), of));
  }
  return most + 2 * workspace::bytes_for<input_t<T>>(chunk, hidden);
}

/// The same rows as tiled_layer takes them.
template <class B, layer_types T>
class chosen_tiles {
 public:
  using A = accumulator_t<T>;
  using X = input_t<T>;
  std::size_t tile;

  chosen_tiles(workspace::frame& frame, linear_layer<T> head, const std::size_t* row, std::size_t n, const context& ctx)
      : tile(chunk_rows<B, A>(head.x.rows, head.x.cols, head.w.rows, ctx)),
        from_(head.x),
        row_(row),
        n_(n),
        x_(frame.template take<X>(tile * head.x.cols), tile, head.x.cols) {}

  /// Rows of memory for n chosen ones: with the padding of the last tile.
  static constexpr std::size_t padded_to_tiles(std::size_t n, std::size_t tile) {
    return n / tile * tile + padded_rows(n % tile, tile);
  }

  std::size_t size() const { return n_; }
  matrix_view<const X> x(std::size_t begin, std::size_t n, context& ctx) const {
    const matrix_view<X> x = x_.rows_from(0, padded_rows(n, tile));
    gather_rows<row_backend<B>>(from_, row_ + begin, n, x, ctx);
    return x;
  }
  matrix_view<A> sums(workspace::frame& frame, matrix_view<X> dx) const {
    const std::size_t padded = padded_to_tiles(n_, tile);
    return {frame.template take<A>(padded * dx.cols), padded, dx.cols};
  }
  template <class>
  void finish(matrix_view<const A> sums, matrix_view<X> dx, context& ctx) const {
    scatter_rows<row_backend<B>, A>(sums, row_, n_, dx, ctx);
  }

 private:
  matrix_view<const X> from_;
  const std::size_t* row_;
  std::size_t n_;
  matrix_view<X> x_;
};

/// Bytes that a tiled_layer of chosen_tiles and the softmax of a tile's rows take, with all gradients, or those of x
/// alone, and a bias.
template <class B, layer_types T>
std::size_t chosen_tiles_workspace(std::size_t rows, std::size_t hidden, std::size_t vocab, std::size_t tile,
                                   const context& ctx, parameters of = parameters::trained) {
  using A = accumulator_t<T>;
  std::size_t most = 0;
  for (std::size_t n = 0; n < tile;) {
    n = padded_rows(n + 1, tile);
    most =
        std::max(most, tiled_linear_workspace<B, T>(hidden, vocab, n, n, gemm_detail::ceil_div(rows, tile), ctx, of));
  }
  const std::size_t forward = workspace::bytes_for<lse_parts<double>>(rows) + workspace::bytes_for<lse_parts<A>>(tile) +
                              workspace::bytes_for<A>(tile) + workspace::bytes_for<std::int64_t>(tile);
  const std::size_t padded = chosen_tiles<B, T>::padded_to_tiles(rows, tile);
  using layer = tiled_layer<B, T, chosen_tiles<B, T>>;
  return most + std::max(forward, workspace::bytes_for<A>(padded, hidden) + layer::total_bytes(padded, hidden, vocab)) +
         workspace::bytes_for<input_t<T>>(tile, hidden) + workspace::bytes_for<A>(tile, B::chunk.cols);
}

/// Zeros in the rows [begin, end) of dx that are not among row[0] < row[1] < ... < row[n - 1].
template <element T>
void clear_other_rows(matrix_view<T> dx, std::size_t begin, std::size_t end, const std::size_t* row, std::size_t n) {
  for (std::size_t k = 0; k <= n; ++k) {
    const std::size_t next = k < n ? row[k] : end;
    for (; begin < next; ++begin)
      for (std::size_t j = 0; j < dx.cols; ++j) dx.row(begin)[j] = static_cast<T>(accumulator_t<T>(0));
    ++begin;
  }
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_PARTS_GATHERED_LINEAR_HPP
