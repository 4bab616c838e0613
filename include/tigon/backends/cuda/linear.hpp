// A linear layer in front of a loss on a GPU, a chunk of rows at a time: as losses/linear/chunked_linear.hpp has it.
// Logits are f32; their gradient has the 16 bits of the layer, so that products are by tensor cores.
#ifndef TIGON_BACKENDS_CUDA_LINEAR_HPP
#define TIGON_BACKENDS_CUDA_LINEAR_HPP

#include <tigon/backends/cuda/gemm.hpp>
#include <tigon/backends/cuda/halved_sums.hpp>
#include <tigon/backends/cuda/tokens.hpp>
// Behind it: it says how these are compiled.
#include <tigon/gemm/chunk_sums.hpp>
#include <tigon/losses/linear/chunked_linear.hpp>

namespace tigon::gpu {
inline namespace TIGON_ABI {

template <class T>
TIGON_DEVICE_INLINE bool is_finite(T v) {
  const auto a = static_cast<accumulator_t<T>>(v);
  return a - a == decltype(a)(0);
}

/// Whether a row of the gradient of logits is 0 throughout, as that of an ignored row is, while a row of x or dx is not
/// finite: the product is to be as if that were 0. All threads of the block ask.
template <class D, class T>
TIGON_DEVICE_INLINE bool has_no_share(const D* d, std::size_t vocab, const T* x, std::size_t cols) {
  bool any = threadIdx.x < vocab && threadIdx.x < 32 &&
             !(static_cast<accumulator_t<D>>(d[threadIdx.x]) == accumulator_t<D>(0));
  if (__syncthreads_or(any) != 0) return false;
  bool finite = true;
  for (std::size_t j = threadIdx.x; j < cols; j += blockDim.x) finite = finite && is_finite(x[j]);
  if (__syncthreads_or(!finite) == 0) return false;
  for (std::size_t j = threadIdx.x; j < vocab; j += blockDim.x)
    any = any || !(static_cast<accumulator_t<D>>(d[j]) == accumulator_t<D>(0));
  return __syncthreads_or(any) == 0;
}
/// A factor of the gradients of the logits of a chunk, in the device's memory; null: 1. With 0 no row has a share.
template <class D>
using factor_of_rows = const product_factor<accumulator_t<D>>*;
template <class D>
TIGON_DEVICE_INLINE bool is_zero(factor_of_rows<D> factor) {
  return factor != nullptr && factor->value == accumulator_t<D>(0);
}
/// to = x with zeros in the rows that have no share.
template <class D, class T>
__global__ void __launch_bounds__(256)
    copy_rows_with_share(matrix_view<const D> d, matrix_view<const T> x, matrix_view<T> to, factor_of_rows<D> factor) {
  const std::size_t i = blockIdx.x;
  const bool none = is_zero<D>(factor) || has_no_share(d.row(i), d.cols, x.row(i), x.cols);
  for (std::size_t j = threadIdx.x; j < x.cols; j += blockDim.x) to.row(i)[j] = none ? T(0.0f) : x.row(i)[j];
}
/// Zeros in the rows of dx that have no share.
template <class D, class T>
__global__ void __launch_bounds__(256)
    clear_rows_without_share(matrix_view<const D> d, matrix_view<T> dx, factor_of_rows<D> factor) {
  const std::size_t i = blockIdx.x;
  if (!is_zero<D>(factor) && !has_no_share(d.row(i), d.cols, dx.row(i), dx.cols)) return;
  for (std::size_t j = threadIdx.x; j < dx.cols; j += blockDim.x) dx.row(i)[j] = T(0.0f);
}

/// to = factor from, or to += factor from
template <class A>
struct scaled_sums {
  const A* from;
  const product_factor<A>* factor;
  A* to;
  bool more;
  TIGON_DEVICE_INLINE void operator()(std::size_t j) const { to[j] = (more ? to[j] : A(0)) + factor->value * from[j]; }
};

/// Chunks of up to `rows` rows, `count` of them, and the rows of all.
struct chunks_of_rows {
  std::size_t rows, count, all;
  bool scaled = false;  ///< the gradients of their logits have a factor, each chunk another one
};
/// Of so many rows, which may be none.
constexpr chunks_of_rows chunks_of(std::size_t rows, std::size_t chunk) {
  return {chunk, tigon::detail::ceil_div(rows, std::max<std::size_t>(chunk, 1)), rows};
}

/// z, and with D the gradients of a chunk:   dx = D w,   dw = D^T x,   db[j] = sum_i D[i,j]
template <class B, layer_types T>
class linear_chunks {
 public:
  using A = accumulator_t<T>;
  using X = input_t<T>;
  using W = weight_t<T>;
  /// Of the gradient of logits.
  using D = std::conditional_t<std::same_as<X, W> && sizeof(X) == 2, X, A>;

  /// For calls of backward with up to `of.rows` rows, `of.count` of them, `all` rows in all.
  linear_chunks(workspace::frame& frame, linear_layer<T> head, linear_gradients<T> out, chunks_of_rows of, context& ctx)
      : head_(head),
        out_(out),
        ctx_(ctx),
        kept_(of.count <= 1 && out.mode == gradient::overwrite ? sums_kept::nowhere
                                                               : kept(head.x.cols, head.w.rows, of, out.of_weights())),
        sums_(frame, head, out, of.count, out.dw.data != nullptr && kept_ == sums_kept::in_workspace, ctx) {
    if (out.dw.data == nullptr) return;
    const std::size_t hidden = head.x.cols, vocab = head.w.rows, rows = kept_ == sums_kept::rows ? of.all : of.rows;
    shared_x_ = {frame.template take<X>(rows * hidden), rows, hidden};
    if (kept_ == sums_kept::rows) gradients_ = {frame.template take<D>(rows * vocab), rows, vocab};
    if constexpr (halves::exist)
      if (kept_ == sums_kept::half_in_dw) halves_ = halves(frame, out.dw);
    if (of.scaled && out.dbias.data() != nullptr) bias_share_ = {frame.template take<A>(vocab), vocab};
  }
  /// Bytes of all this, with a bias and without the logits.
  static std::size_t bytes(std::size_t hidden, std::size_t vocab, chunks_of_rows chunks, parameters of) {
    const std::size_t product = workspace::bytes_for<std::byte>(workspace_bytes);
    const bool trains = tigon::detail::trains(of);
    const sums_kept dw = kept(hidden, vocab, chunks, of);
    const std::size_t sums = layer_sums::bytes(hidden, vocab, chunks.count, trains, dw == sums_kept::in_workspace) +
                             (dw == sums_kept::half_in_dw ? halves::bytes(vocab, hidden) : 0);
    const std::size_t bias_share = chunks.scaled ? workspace::bytes_for<A>(vocab) : 0;
    if (!trains) return sums + product;
    // x of as many rows as are kept, or would be of fewer, which then take no more than this.
    const std::size_t kept_rows =
        vocab == 0 || chunks.scaled ? 0
                                    : std::min(chunks.all, sums_bytes(hidden, vocab, chunks, of) / (vocab * sizeof(D)));
    return sums + bias_share + (dw == sums_kept::rows ? workspace::bytes_for<D>(chunks.all, vocab) : 0) +
           workspace::bytes_for<X>(std::max(chunks.rows, kept_rows), hidden) +
           std::max(product, simd::most_partials_workspace<B, A>(chunks.rows, vocab, 1));
  }

  /// z = x w^T + bias for rows [begin, begin + z.rows) of x.
  void logits(std::size_t begin, matrix_view<A> z) const {
    product(head_.x.rows_from(begin, z.rows), head_.w, z, in_vector<A>(sums_.bias), {.b = transpose::yes});
  }
  /// Where the gradient of the logits z goes for the next call of backward: where z is, or where it is kept.
  matrix_view<D> gradient_of(matrix_view<A> z) const {
    if (gradients_.data != nullptr) return gradients_.rows_from(done_, z.rows);
    return {reinterpret_cast<D*>(z.data), z.rows, z.cols, z.row_stride * sizeof(A) / sizeof(D)};
  }
  /// The gradients of rows [begin, begin + d.rows) from the gradient d of their logits. A row of zeros in d contributes
  /// nothing and has a dx of zeros, whatever stands in x and w. With a factor the gradient is that times d: products
  /// are multiplied by it before they are rounded.
  void backward(std::size_t begin, matrix_view<D> d, const product_factor<A>* factor = nullptr) {
    const matrix_view<const D> of = d;
    const dim3 rows(blocks(d.rows)), threads(256);
    if (out_.dw.data != nullptr) {
      const matrix_view<X> x = shared_x_.rows_from(kept_ == sums_kept::rows ? done_ : 0, d.rows);
      const matrix_view<const X> from = head_.x.rows_from(begin, d.rows);
      if (head_.x.cols != 0) launch(ctx_, copy_rows_with_share<D, X>, rows, threads, of, from, x, factor);
      if (kept_ == sums_kept::rows) {
        done_ += d.rows;
      } else if (kept_ == sums_kept::nowhere) {
        share_product(of, x, out_.dw, false, factor);
      } else if (kept_ == sums_kept::in_workspace) {
        const auto [to, more] = sums_.dw.next(ctx_);
        share_product(of, x, to, more, factor);
      } else if constexpr (halves::exist) {
        halves_.each([&](matrix_view<A> to, std::size_t row) {
          share_product<A>(of.cols_from(row, to.rows), x, to, any_, factor);
        });
      }
    }
    add_bias(of, factor);
    if (out_.dx.data != nullptr && out_.dx.cols != 0) {
      const matrix_view<X> dx = out_.dx.rows_from(begin, d.rows);
      product<D, W, X>(of, head_.w, dx, {}, {}, factor);
      launch(ctx_, clear_rows_without_share<D, X>, rows, threads, of, dx, factor);
    }
    any_ = true;
  }
  /// dw and dbias, after the last chunk. Without one they are zeros.
  void finish() {
    if (done_ != 0)
      share_product(matrix_view<const D>(gradients_.rows_from(0, done_)), shared_x_.rows_from(0, done_), out_.dw,
                    out_.mode == gradient::accumulate, nullptr);
    if constexpr (halves::exist)
      if (any_ && halves_)
        halves_.finish({reinterpret_cast<G*>(shared_x_.data), shared_x_.rows * shared_x_.cols * sizeof(X) / sizeof(G)},
                       ctx_);
    sums_.finish(out_, any_, ctx_);
  }

 private:
  using G = weight_gradient_t<T>;
  using layer_sums = tigon::detail::layer_sums<B, T>;
  using halves = halved_sums<B, A, G>;
  /// Where the sums of dw over chunks are: nowhere if one product makes dw and rounds it. `rows`: the gradients of all
  /// logits are kept in their place, for one product, where they take no more memory. A product for each chunk reads
  /// and writes the sums, and is slower.
  enum class sums_kept { nowhere, in_workspace, half_in_dw, rows };
  static constexpr bool halved(std::size_t hidden, std::size_t vocab, chunks_of_rows chunks, parameters of) {
    return of == parameters::overwritten && halves::exist &&
           !layer_sums::sums::many(workspace::product(vocab, hidden), chunks.count, false);
  }
  static constexpr std::size_t sums_bytes(std::size_t hidden, std::size_t vocab, chunks_of_rows chunks, parameters of) {
    return halved(hidden, vocab, chunks, of)
               ? halves::bytes(vocab, hidden)
               : layer_sums::sums::bytes(workspace::product(vocab, hidden), chunks.count, layer_sums::wide);
  }
  static constexpr sums_kept kept(std::size_t hidden, std::size_t vocab, chunks_of_rows chunks, parameters of) {
    if (of == parameters::overwritten && chunks.count <= 1) return sums_kept::nowhere;
    if (chunks.count > 1 && !chunks.scaled &&
        workspace::bytes_for<D>(chunks.all, vocab) <= sums_bytes(hidden, vocab, chunks, of))
      return sums_kept::rows;
    return halved(hidden, vocab, chunks, of) ? sums_kept::half_in_dw : sums_kept::in_workspace;
  }
#if defined(TIGON_CUDA_MODEL)
  static constexpr std::size_t workspace_bytes = 0;
#else
  static constexpr std::size_t workspace_bytes = cublas::workspace_bytes;
#endif

  template <class TA, class TB, class TC>
  void product(matrix_view<const TA> a, matrix_view<const TB> b, matrix_view<TC> c, in_vector<TC> bias,
               gemm_options opt, const product_factor<accumulator_t<TC>>* factor = nullptr) const {
    kernel_for<op::gemm, B>::template run<B, TA, TB, TC>(a, {b}, bias, c, opt, factor, ctx_);
  }

  /// to = factor d^T x, or to += that
  template <class To>
  void share_product(matrix_view<const D> d, matrix_view<const X> x, matrix_view<To> to, bool more,
                     const product_factor<A>* factor) const {
    product<D, X, To>(d, x, to, {}, {.beta = more ? 1.0 : 0.0, .a = transpose::yes}, factor);
  }
  void add_bias(matrix_view<const D> d, const product_factor<A>* factor) {
    if (factor == nullptr) return sums_.add_bias(d, ctx_);
    if (!sums_.dbias) return;
    tigon::detail::sum_columns<B>(d, bias_share_, gradient::overwrite, ctx_);
    const auto [to, more] = sums_.dbias.next(ctx_);
    for_each_of(ctx_, to.cols, scaled_sums<A>{bias_share_.data, factor, to.data, more});
  }

  linear_layer<T> head_;
  linear_gradients<T> out_;
  context& ctx_;
  sums_kept kept_;
  bool any_ = false;
  layer_sums sums_;
  halves halves_;
  matrix_view<X> shared_x_;    ///< of a chunk, or of all rows that are kept
  matrix_view<D> gradients_;   ///< of the logits of all rows, where they are kept
  std::size_t done_ = 0;       ///< rows that are kept
  vector_view<A> bias_share_;  ///< of a chunk, before its factor
};

/// For each chunk of rows loss(begin, z, d): z are its logits, and where d has memory, which is that of the logits,
/// their gradient goes there; then the gradients of the layer.
template <backend B, layer_types T, class Loss>
void each_chunk_of_logits(const linear_layer<T>& head, const linear_gradients<T>& out, std::size_t chunk, context& ctx,
                          Loss loss) {
  using layer_type = linear_chunks<B, T>;
  using A = typename layer_type::A;
  using D = typename layer_type::D;
  const std::size_t rows = head.x.rows, vocab = head.w.rows;
  workspace::frame frame(ctx.workspace());
  A* const logits = frame.template take<A>(chunk * vocab);
  layer_type layer(frame, head, out, chunks_of(rows, chunk), ctx);
  tigon::detail::for_chunks(rows, chunk, [&](std::size_t begin, std::size_t n) {
    const matrix_view<A> z(logits, n, vocab);
    const matrix_view<D> d = out.any() ? layer.gradient_of(z) : matrix_view<D>(nullptr, n, vocab);
    layer.logits(begin, z);
    loss(begin, z, d);
    if (out.any()) layer.backward(begin, d);
  });
  layer.finish();
}
/// Bytes that it takes.
template <backend B, layer_types T>
std::size_t chunks_workspace(std::size_t rows, std::size_t hidden, std::size_t vocab, std::size_t chunk,
                             parameters of) {
  return workspace::bytes_for<accumulator_t<T>>(chunk, vocab) +
         linear_chunks<B, T>::bytes(hidden, vocab, chunks_of(rows, chunk), of);
}

/// What kernels of such losses have in common: the bytes of a call beside those of its rows.
struct loss_by_chunks {
  template <class>
  using saved = no_state;

  template <backend B, layer_types T>
  static std::size_t workspace_bytes(std::size_t rows, std::size_t hidden, std::size_t vocab, const context& ctx,
                                     parameters of) {
    return chunks_workspace<B, T>(rows, hidden, vocab,
                                  tigon::detail::chunk_rows<B, accumulator_t<T>>(rows, hidden, vocab, ctx), of);
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_LINEAR_HPP
