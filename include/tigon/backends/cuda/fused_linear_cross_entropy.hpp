// Cross entropy of a linear layer's output on a GPU: logits of a chunk of rows in f32, in whose place their gradient is made.
#ifndef TIGON_BACKENDS_CUDA_FUSED_LINEAR_CROSS_ENTROPY_HPP
#define TIGON_BACKENDS_CUDA_FUSED_LINEAR_CROSS_ENTROPY_HPP

#include <tigon/backends/cuda/cross_entropy.hpp>
#include <tigon/backends/cuda/linear.hpp>
// Behind them: they say how these are compiled.
#include <tigon/losses/softmax/fused_linear_cross_entropy_kernel.hpp>

namespace tigon {

template <>
struct kernel<op::fused_linear_cross_entropy, backends::cuda> {
  template <class>
  using saved = no_state;

  /// Bytes of workspace beside those of labels and losses of rows.
  template <backend B, layer_types T>
  static std::size_t workspace_bytes(std::size_t rows, std::size_t hidden, std::size_t vocab, const context& ctx,
                                     parameters of) {
    const std::size_t chunk = chunk_of<B, T>(rows, hidden, vocab, ctx);
    return workspace::bytes_for<accumulator_t<T>>(chunk, vocab) +
           gpu::linear_chunks<B, T>::bytes(hidden, vocab, chunk,
                                           detail::ceil_div(rows, std::max<std::size_t>(chunk, 1)), of);
  }

  template <backend B, layer_types T, token_id I>
  static void forward(detail::linear_loss<T> t, std::span<const I> target, const accumulator_t<T>* class_weight,
                      cross_entropy_rows out, gpu::loss_scale<accumulator_t<T>> scale,
                      fused_linear_cross_entropy_options opt, context& ctx) {
    using A = accumulator_t<T>;
    using layer_type = gpu::linear_chunks<B, T>;
    using D = typename layer_type::D;
    const std::size_t rows = t.head.x.rows, vocab = t.head.w.rows,
                      chunk = chunk_of<B, T>(rows, t.head.x.cols, vocab, ctx);
    out.token_scaling = opt.token_scaling;
    scale.upstream = t.upstream.data, scale.upstream_step = t.upstream.size == 1 ? 0 : 1;
    workspace::frame frame(ctx.workspace());
    A* const logits = frame.template take<A>(chunk * vocab);
    layer_type layer(frame, t.head, t.out, chunk, detail::ceil_div(rows, std::max<std::size_t>(chunk, 1)), ctx);
    detail::for_chunks(rows, chunk, [&](std::size_t begin, std::size_t n) {
      const matrix_view<A> z(logits, n, vocab);
      const matrix_view<D> d(t.out.any() ? reinterpret_cast<D*>(logits) : nullptr, n, vocab,
                             vocab * sizeof(A) / sizeof(D));
      layer.logits(begin, z);
      const cross_entropy_rows part{out.loss + begin, out.z_loss + begin,
                                    out.predicted == nullptr ? nullptr : out.predicted + begin, out.token_scaling};
      kernel_for<op::cross_entropy, B>::template forward<B, A, I, D>(z, target.subspan(begin, n), class_weight, d, part,
                                                                     scale.from(begin), opt.loss, ctx);
      if (t.out.any()) layer.backward(begin, d);
    });
    layer.finish();
  }
  template <backend B, layer_types T, token_id I>
  static void backward(detail::linear_loss<T> t, std::span<const I> target, const accumulator_t<T>* class_weight,
                       cross_entropy_rows out, gpu::loss_scale<accumulator_t<T>> scale,
                       fused_linear_cross_entropy_options opt, context& ctx) {
    forward<B, T, I>(t, target, class_weight, out, scale, opt, ctx);
  }

 private:
  template <backend B, layer_types T>
  static std::size_t chunk_of(std::size_t rows, std::size_t hidden, std::size_t vocab, const context& ctx) {
    return detail::cross_entropy_chunk<B, accumulator_t<T>>(rows, hidden, vocab, ctx);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_FUSED_LINEAR_CROSS_ENTROPY_HPP
