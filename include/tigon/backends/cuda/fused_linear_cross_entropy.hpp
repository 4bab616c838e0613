// Cross entropy of a linear layer's output on a GPU: logits of a chunk of rows in f32, in whose place their gradient is
// made.
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
    return gpu::chunks_workspace<B, T>(rows, hidden, vocab, chunk_of<B, T>(rows, hidden, vocab, ctx), of);
  }

  template <backend B, layer_types T, token_id I>
  static void forward(detail::linear_loss<T> t, std::span<const I> target, const accumulator_t<T>* class_weight,
                      cross_entropy_rows out, gpu::loss_scale<accumulator_t<T>> scale,
                      fused_linear_cross_entropy_options opt, context& ctx) {
    using A = accumulator_t<T>;
    out.token_scaling = opt.token_scaling;
    scale.upstream = t.upstream.data, scale.upstream_step = t.upstream.size == 1 ? 0 : 1;
    const std::size_t chunk = chunk_of<B, T>(t.head.x.rows, t.head.x.cols, t.head.w.rows, ctx);
    gpu::each_chunk_of_logits<B, T>(
        t.head, t.out, chunk, ctx, [&]<class D>(std::size_t begin, auto z, matrix_view<D> d) {
          const cross_entropy_rows part{out.loss + begin, out.z_loss + begin,
                                        out.predicted == nullptr ? nullptr : out.predicted + begin, out.token_scaling};
          kernel_for<op::cross_entropy, B>::template forward<B, A, I, D>(z, target.subspan(begin, z.rows), class_weight,
                                                                         d, part, scale.from(begin), opt.loss, ctx);
        });
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
