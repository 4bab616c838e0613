// A linear layer in front of a loss, a chunk of rows at a time.
#ifndef TIGON_LOSSES_LINEAR_CHUNKED_LINEAR_HPP
#define TIGON_LOSSES_LINEAR_CHUNKED_LINEAR_HPP

#include <tigon/gemm/chunk_sums.hpp>
#include <tigon/losses/linear/linear_layer.hpp>

#include <bit>
#include <cstring>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Rows of a chunk by a tuning, with `bytes` bytes of one logit of all layers. A budget's chunks are of one size.
constexpr std::size_t chunk_rows(const chunk_tuning& by, std::size_t bytes, std::size_t rows, std::size_t hidden,
                                 std::size_t vocab) {
  const auto within = [=](std::size_t n) { return std::clamp<std::size_t>(n, 1, std::max<std::size_t>(rows, 1)); };
  using gemm_detail::ceil_div;
  if (by.rule == chunk_rule::fixed_rows || by.rule == chunk_rule::stream) return within(by.rows);
  if (by.rule == chunk_rule::liger) {
    const std::size_t parts = std::max<std::size_t>(ceil_div(vocab, std::max<std::size_t>(hidden, 1)), 1);
    return within(std::bit_ceil(std::min(ceil_div(rows, parts), std::size_t{workspace::most_bytes})));
  }
  const std::size_t multiple = by.row_multiple;
  const auto rounded = [=](std::size_t n) { return n < multiple ? n : n / multiple * multiple; };
  const std::size_t budget = by.logits_bytes / std::max<std::size_t>(workspace::product(vocab, bytes), 1);
  const std::size_t most = rounded(std::max<std::size_t>({budget, std::min(by.least_rows, 2 * budget), 1}));
  const std::size_t chunks = ceil_div(rows, most);
  if (chunks <= 1) return within(rows);
  return std::min(most, ceil_div(ceil_div(rows, chunks), multiple) * multiple);
}

/// Rows of a chunk, or of a tile: those that the context names, or else by a tuning for `heads` layers at a time.
template <class A>
std::size_t chunk_rows(chunk_tuning by, std::size_t rows, std::size_t hidden, std::size_t vocab, const context& ctx,
                       std::size_t heads) {
  if (ctx.logit_rows() != 0) by = chunk_tuning::fixed(ctx.logit_rows());
  return chunk_rows(by, heads * sizeof(A), rows, hidden, vocab);
}
/// By B::chunk, within its bytes.
template <class B>
constexpr chunk_tuning chunk_within_bytes() {
  chunk_tuning by = B::chunk;
  by.least_rows = 0;
  return by;
}
template <class B, class A>
std::size_t chunk_rows(std::size_t rows, std::size_t hidden, std::size_t vocab, const context& ctx,
                       std::size_t heads = 1) {
  return chunk_rows<A>(chunk_within_bytes<B>(), rows, hidden, vocab, ctx, heads);
}

/// f(begin, n) for chunks of `chunk` rows, the last one shorter.
template <class F>
void for_chunks(std::size_t rows, std::size_t chunk, F f) {
  for (std::size_t begin = 0; begin < rows; begin += chunk) f(begin, std::min(chunk, rows - begin));
}

/// One of the layer's products. `packed` replaces b where it has memory.
template <class B, class TA, element TB, element TC>
void linear_product(matrix_view<TA> a, matrix_view<const TB> b, packed_operand<TB> packed, matrix_view<TC> c,
                    in_vector<TC> bias, gemm_options opt, context& ctx) {
  if (packed.data != nullptr) opt.b = packed.stored;
  kernel_for<op::gemm, B>::template forward<B, std::remove_const_t<TA>, TB, TC>(a, {b, packed.data}, bias, c,
                                                                                no_epilogue{}, opt, ctx);
}

/// f(i) for the rows of m that hold a NaN or an infinity while row i of d is 0 throughout, as the gradient of an
/// ignored row is. Such a row contributes nothing, but 0 times a NaN is NaN.
template <class A, element T, class F>
void for_rows_without_share(matrix_view<A> d, matrix_view<const T> m, F f) {
  const auto zeros = [&](std::size_t i, std::size_t cols) {
    return std::all_of(d.row(i), d.row(i) + cols, [](A v) { return v == A(0); });
  };
  const auto finite = [](T v) { return math::abs(static_cast<A>(v)) <= std::numeric_limits<A>::max(); };
  for (std::size_t i = 0; i < d.rows; ++i)
    if (zeros(i, std::min<std::size_t>(d.cols, 16)) && !std::all_of(m.row(i), m.row(i) + m.cols, finite) &&
        zeros(i, d.cols))
      f(i);
}

/// Columns of x that share_product copies at a time, and the bytes of it with the product, for up to n rows.
constexpr std::size_t share_columns = 256;
template <class B, element T>
std::size_t share_workspace(std::size_t n, std::size_t hidden, std::size_t vocab, std::size_t workers) {
  using A = accumulator_t<T>;
  const std::size_t width = std::min(share_columns, hidden);
  return workspace::bytes_for<T>(n, width) +
         std::max(gemm_workspace<B, A, T, A>(vocab, width, n, workers),
                  gemm_workspace<B, A, T, A>(vocab, hidden % share_columns, n, workers));
}

/// sums = d^T x, or added to that; rows without a share in it count as zeros.
template <class B, class A, element T>
void share_product(matrix_view<A> d, matrix_view<const T> x, matrix_view<A> sums, gemm_options opt, context& ctx) {
  bool all = true;
  for_rows_without_share<A, T>(d, x, [&](std::size_t) { all = false; });
  if (all) return linear_product<B>(d, x, packed_operand<T>{}, sums, in_vector<A>{}, opt, ctx);
  workspace::frame frame(ctx.workspace());
  T* copy = frame.template take<T>(x.rows * std::min(share_columns, x.cols));
  for_chunks(x.cols, share_columns, [&](std::size_t first, std::size_t n) {
    const matrix_view<T> part(copy, x.rows, n);
    for (std::size_t i = 0; i < x.rows; ++i) std::memcpy(part.row(i), x.row(i) + first, n * sizeof(T));
    for_rows_without_share<A, T>(
        d, x, [&](std::size_t i) { std::memset(static_cast<void*>(part.row(i)), 0, n * sizeof(T)); });
    linear_product<B>(d, matrix_view<const T>(part), packed_operand<T>{}, sums.cols_from(first, n), in_vector<A>{}, opt,
                      ctx);
  });
}

/// Zeros in the rows of dx = d w that have no share in the loss, where w is not finite.
template <class A, element T>
void clear_rows_without_share(matrix_view<A> d, matrix_view<T> dx) {
  for_rows_without_share<A, T>(
      d, dx, [&](std::size_t i) { std::memset(static_cast<void*>(dx.row(i)), 0, dx.cols * sizeof(T)); });
}

/// Gradients of parameters where there is no row to make them of.
template <class B, layer_types T>
void clear_parameters(const linear_gradients<T>& out, context& ctx) {
  if (out.mode == gradient::accumulate) return;
  if (out.dw.data != nullptr) clear_matrix<B>(out.dw, ctx);
  if (out.dbias.data() != nullptr) clear_matrix<B>(as_row(out.dbias), ctx);
}

/// What a layer by chunks keeps beside logits: its bias in A, and sums over the chunks of dw, if it is summed, and of
/// dbias. R: the backend of rows.
template <class R, layer_types T>
class layer_sums {
 public:
  using A = accumulator_t<T>;
  using sums = chunk_sums<R, A>;
  static constexpr bool wide = std::same_as<weight_gradient_t<T>, A>;  ///< dw itself takes the sums
  vector_view<A> bias;
  sums dw, dbias;

  layer_sums(workspace::frame& frame, const linear_layer<T>& head, const linear_gradients<T>& out, std::size_t chunks,
             bool sums_dw, context& ctx) {
    const std::size_t vocab = head.w.rows;
    if (head.bias.data() != nullptr) {
      bias = {frame.template take<A>(vocab), vocab};
      round_sums<R, A>(as_row(bias), as_row(head.bias), false, ctx);
    }
    const bool add = out.mode == gradient::accumulate;
    if (sums_dw) {
      dw = sums(frame, vocab * head.w.cols, chunks, wide);
      if constexpr (wide)
        dw.begin(vocab, head.w.cols, out.dw, add);
      else
        dw.begin(vocab, head.w.cols, {}, add);
    }
    if (out.dbias.data() != nullptr) {  // apart from dbias itself, because it is short
      dbias = sums(frame, vocab, chunks, false);
      dbias.begin(1, vocab, {}, add);
    }
  }
  /// After the last chunk, if there was `any`; without one the gradients are zeros.
  void finish(const linear_gradients<T>& out, bool any, context& ctx) {
    const bool add = out.mode == gradient::accumulate;
    if (!any) return clear_parameters<R>(out, ctx);
    if (dw) dw.finish(out.dw, add, ctx);
    if (dbias) dbias.finish(as_row(out.dbias), add, ctx);
  }
  /// The share of d in dbias.
  template <class D>
  void add_bias(matrix_view<D> d, context& ctx) {
    if (!dbias) return;
    const auto [to, more] = dbias.next(ctx);
    sum_columns<R>(d, vector_view<A>{to.data, to.cols}, more ? gradient::accumulate : gradient::overwrite, ctx);
  }
  /// Bytes that it takes for a bias, and where they are trained for dbias, and for dw if `sums_dw`.
  static std::size_t bytes(std::size_t hidden, std::size_t vocab, std::size_t chunks, bool trains, bool sums_dw) {
    const std::size_t bias = workspace::bytes_for<A>(vocab);
    if (!trains) return bias;
    return bias + sums::bytes(vocab, chunks, false) +
           (sums_dw ? sums::bytes(workspace::product(vocab, hidden), chunks, wide) : 0);
  }
};

/// Logits of one chunk of rows after the other, and from the gradient D of the logits:
///   dx = D w,   dw = D^T x,   db[j] = sum_i D[i,j]
/// Sums over the chunks are f32 (f64 for f64), rounded once by finish(); for any number of chunks the error is that of
/// a few. The bits of a row of logits and of dx do not depend on which chunk the row is in, on its place there or on
/// the rows beside it; those of dw and db depend on the rows of each chunk and their order. Logits and D belong to the
/// caller.
template <class B, layer_types T>
class chunked_linear {
 public:
  using A = accumulator_t<T>;
  using X = input_t<T>;
  using D = A;  ///< of the gradient of logits

  /// `chunk`: most rows of a chunk, as of which all products are cut; `chunks`: most calls of backward.
  chunked_linear(workspace::frame& frame, linear_layer<T> head, linear_gradients<T> out, std::size_t chunk,
                 std::size_t chunks, context& ctx)
      : head_(head),
        out_(out),
        ctx_(ctx),
        chunk_(chunk),
        sums_(frame, head, out, chunks, out.dw.data != nullptr, ctx) {}

  /// z = x w^T + bias for rows [begin, begin + z.rows) of x.
  void logits(std::size_t begin, matrix_view<A> z) const {
    linear_product<B>(head_.x.rows_from(begin, z.rows), head_.w, head_.packed.logits, z, in_vector<A>(sums_.bias),
                      {.b = transpose::yes, .cut_as = {.rows = chunk_}}, ctx_);
  }

  /// The gradients of rows [begin, begin + d.rows) from the gradient d of their logits; dx last, which may be x. A row
  /// of zeros in d contributes nothing and has a dx of zeros, whatever x and w hold.
  void backward(std::size_t begin, matrix_view<A> d) {
    if (sums_.dw) {
      const auto [to, more] = sums_.dw.next(ctx_);
      share_product<B, A, X>(d, head_.x.rows_from(begin, d.rows), to,
                             {.beta = more ? 1.0 : 0.0, .a = transpose::yes, .cut_as = {.depth = chunk_}}, ctx_);
    }
    sums_.add_bias(d, ctx_);
    if (out_.dx.data != nullptr) {
      const matrix_view<X> dx = out_.dx.rows_from(begin, d.rows);
      linear_product<B>(d, head_.w, head_.packed.gradient, dx, in_vector<X>{}, {.cut_as = {.rows = chunk_}}, ctx_);
      clear_rows_without_share(d, dx);
    }
    first_ = false;
  }

  /// dw and dbias, after the last chunk. Without a chunk they are zeros.
  void finish() { sums_.finish(out_, !first_, ctx_); }

 private:
  linear_layer<T> head_;
  linear_gradients<T> out_;
  context& ctx_;
  std::size_t chunk_;
  layer_sums<row_backend<B>, T> sums_;
  bool first_ = true;
};

/// Bytes that the shares of up to n rows in dw and dbias take, by products that are cut as that of n rows.
template <class B, element X>
std::size_t parameter_workspace(std::size_t n, std::size_t hidden, std::size_t vocab, std::size_t workers) {
  using A = accumulator_t<X>;
  return std::max({gemm_workspace<B, A, X, A>(vocab, hidden, n, workers),
                   share_workspace<B, X>(n, hidden, vocab, workers), simd::most_partials_workspace<B, A>(n, vocab, 1)});
}

/// Bytes that chunked_linear takes for `chunks` chunks of up to `chunk` rows, with all gradients, or those of x alone,
/// a bias and nothing packed; without the logits. `between`: bytes that the loss takes between the products, and gives
/// back.
template <class B, layer_types T>
std::size_t chunked_linear_workspace(std::size_t hidden, std::size_t vocab, std::size_t chunk, std::size_t chunks,
                                     const context& ctx, std::size_t between = 0, parameters of = parameters::trained) {
  using A = accumulator_t<T>;
  using X = input_t<T>;
  using W = weight_t<T>;
  const bool trains = detail::trains(of);
  const std::size_t workers = ctx.executor().workers();
  const std::size_t inner = std::max({between, gemm_workspace<B, X, W, A>(chunk, vocab, hidden, workers),
                                      gemm_workspace<B, A, W, X>(chunk, hidden, vocab, workers),
                                      trains ? parameter_workspace<B, X>(chunk, hidden, vocab, workers) : 0});
  return inner + layer_sums<row_backend<B>, T>::bytes(hidden, vocab, chunks, trains, trains);
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_LINEAR_CHUNKED_LINEAR_HPP
