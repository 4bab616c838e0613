// A linear layer on rows chosen by their index, a chunk of them at a time.
#ifndef TIGON_LOSSES_LINEAR_GATHERED_LINEAR_HPP
#define TIGON_LOSSES_LINEAR_GATHERED_LINEAR_HPP

#include <tigon/losses/linear/chosen_rows.hpp>
#include <tigon/losses/linear/chunked_linear.hpp>
#include <tigon/rows/row.hpp>

namespace tigon::op {
struct fused_linear_preference;
}  // namespace tigon::op

namespace tigon::detail {
inline namespace TIGON_ABI {

/// A layer by chunks of rows. A backend whose memory is elsewhere has it and copies of rows beside its losses on
/// sequences.
template <class B, layer_types T, bool on_host>
struct find_linear_chunks {
  using type = chunked_linear<B, T>;
};
template <class B, layer_types T>
struct find_linear_chunks<B, T, false> {
  using type = typename kernel_for<op::fused_linear_preference, B>::template linear_chunks<B, T>;
};
template <class B, layer_types T>
using linear_chunks_of = typename find_linear_chunks<B, T, host_memory<B>>::type;

/// to: rows row[0], ..., row[to.rows - 1] of from.
template <class B, class A, element From, element T>
void gather_rows(matrix_view<const From> from, const std::size_t* row, matrix_view<T> to, context& ctx) {
  if constexpr (!host_memory<B>)
    kernel_for<op::fused_linear_preference, B>::copy_rows(from, row, to, nullptr, ctx);
  else
    for_rows<B, A>(ctx, to.rows, to.cols, [=] TIGON_FN(auto r) {
      r.map(reads(vector_view<const From>{from.row(row[r.i]), r.cols}), writes(to), [](auto v) { return v; });
    });
}

/// Rows row[0], ..., row[from.rows - 1] of to: those of from.
template <class B, class A, element From, element T>
void scatter_rows(matrix_view<const From> from, const std::size_t* row, matrix_view<T> to, context& ctx) {
  if constexpr (!host_memory<B>)
    kernel_for<op::fused_linear_preference, B>::copy_rows(from, nullptr, to, row, ctx);
  else
    for_rows<B, A>(ctx, from.rows, to.cols, [=] TIGON_FN(auto r) {
      r.map(reads(from), writes(vector_view<T>{to.row(row[r.i]), r.cols}), [](auto v) { return v; });
    });
}

/// to: the chosen rows of from, from the begin-th on.
template <class B, class A, element From, element T>
void copy_chosen(matrix_view<const From> from, chosen_rows kept, std::size_t begin, matrix_view<T> to, context& ctx) {
  if (kept.all())
    round_sums<B, A>(to, from.rows_from(begin, to.rows), false, ctx);
  else
    gather_rows<B, A>(from, kept.row + begin, to, ctx);
}

/// Rows of x by their index, a chunk at a time: gathered for the products, and their gradients scattered. Other rows
/// are not read.
template <class B, layer_types T>
class gathered_linear {
 public:
  using A = accumulator_t<T>;
  using X = input_t<T>;
  using W = weight_t<T>;
  using layer_type = linear_chunks_of<B, T>;
  /// Of the gradient of logits.
  using D = typename layer_type::D;

  /// At most `rows` rows are gathered at a time, for products that are cut as those of `chunk`; `chunks`: most calls of
  /// backward.
  gathered_linear(workspace::frame& frame, linear_layer<T> head, linear_gradients<T> out, std::size_t rows,
                  std::size_t chunk, std::size_t chunks, context& ctx)
      : from_(head.x),
        w_(head.w),
        bias_(head.bias),
        to_(out.dx),
        ctx_(ctx),
        x_(frame.template take<X>(rows * head.x.cols), rows, head.x.cols),
        dx_(out.dx.data == nullptr ? matrix_view<X>{}
                                   : matrix_view<X>(frame.template take<X>(rows * head.x.cols), rows, head.x.cols)),
        layer_(layer_of(frame, {x_, head.w, head.bias, head.packed}, {dx_, out.dw, out.dbias, out.mode}, chunk, chunks,
                        head.x.rows, ctx)) {}

  /// Most chunks, for groups of rows that share a chunk where they fit: two chunks in succession have more rows than
  /// one holds.
  static constexpr std::size_t most_chunks(std::size_t rows, std::size_t chunk) {
    return 2 * gemm_detail::ceil_div(rows, chunk);
  }

  /// z: the logits of rows row[0], ..., row[z.rows - 1].
  void logits(const std::size_t* row, matrix_view<A> z) {
    gather_rows<row_backend<B>, A>(from_, row, x_.rows_from(0, z.rows), ctx_);
    layer_.logits(0, z);
  }

  /// Where the gradient of the logits z goes.
  matrix_view<D> gradient_of(matrix_view<A> z) const {
    if constexpr (host_memory<B>)
      return z;
    else
      return layer_.gradient_of(z);
  }
  /// The gradients from that of the logits that were computed last.
  void backward(const std::size_t* row, matrix_view<D> d) {
    layer_.backward(0, d);
    if (to_.data != nullptr)
      scatter_rows<row_backend<B>, A>(matrix_view<const X>(dx_.rows_from(0, d.rows)), row, to_, ctx_);
  }

  /// The rows whose logits were computed last, w and the bias.
  matrix_view<const X> rows() const { return x_; }
  matrix_view<const W> w() const { return w_; }
  std::span<const W> bias() const { return bias_; }

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
  static layer_type layer_of(workspace::frame& frame, linear_layer<T> head, linear_gradients<T> out, std::size_t chunk,
                             std::size_t chunks, std::size_t rows, context& ctx) {
    if constexpr (host_memory<B>)
      return {frame, head, out, chunk, chunks, ctx};
    else
      return {frame, head, out, {chunk, chunks, rows}, ctx};
  }

  matrix_view<const X> from_;
  matrix_view<const W> w_;
  std::span<const W> bias_;
  matrix_view<X> to_;
  context& ctx_;
  matrix_view<X> x_, dx_;
  layer_type layer_;
};

/// Bytes that gathered_linear takes for chunks of `chunk` of `rows` rows, with all gradients, or those of x alone, a
/// bias and nothing packed; without the logits. `between`: bytes that the loss takes between the products, and gives
/// back.
template <class B, layer_types T>
std::size_t gathered_linear_workspace(std::size_t rows, std::size_t hidden, std::size_t vocab, std::size_t chunk,
                                      const context& ctx, std::size_t between, parameters of = parameters::trained) {
  using layer = gathered_linear<B, T>;
  if constexpr (!host_memory<B>)
    return 2 * workspace::bytes_for<input_t<T>>(chunk, hidden) +
           linear_chunks_of<B, T>::bytes(hidden, vocab, {chunk, layer::most_chunks(rows, chunk), rows}, of);
  return 2 * workspace::bytes_for<input_t<T>>(chunk, hidden) +
         chunked_linear_workspace<B, T>(hidden, vocab, chunk, layer::most_chunks(rows, chunk), ctx, between, of);
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_LINEAR_GATHERED_LINEAR_HPP
