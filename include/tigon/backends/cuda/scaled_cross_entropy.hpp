// Negative log-likelihood and entropy of rows of logits on a GPU, behind a linear layer.
#ifndef TIGON_BACKENDS_CUDA_SCALED_CROSS_ENTROPY_HPP
#define TIGON_BACKENDS_CUDA_SCALED_CROSS_ENTROPY_HPP

#include <tigon/backends/cuda/labels.hpp>
#include <tigon/backends/cuda/linear.hpp>
#include <tigon/backends/cuda/powers.hpp>
// Behind them: they say how these are compiled.
#include <tigon/losses/softmax/fused_linear_scaled_cross_entropy_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// losses/softmax/fused_linear_scaled_cross_entropy_kernel.hpp, a row. D may lie where the rows of logits begin.
template <class A, class D, class I>
struct scaled_cross_entropy_of_rows {
  using element = A;
  static constexpr row_passes passes = row_passes::several;

  matrix_view<const A> logits;
  matrix_view<D> dlogits;  ///< without memory: not computed
  unsigned cols;
  labels_of_rows<I> labels;
  tigon::detail::scaled_cross_entropy_rows<A> rows;
  tempered_powers<exponentials::fast, A> powers;

  template <int N>
  bool begins_accesses() const {
    return gpu::begins_accesses<N>(logits.data, logits.row_stride) &&
           (dlogits.data == nullptr || gpu::begins_accesses<N>(dlogits.data, dlogits.row_stride));
  }
  TIGON_DEVICE_INLINE const A* row_of(std::size_t i) const { return logits.row(i); }
  TIGON_DEVICE_INLINE I target_of(std::size_t i) const { return labels.target[i]; }
  TIGON_DEVICE_INLINE auto label_of(I target, std::size_t i) const { return labels.of(target, row_of(i)); }
  TIGON_DEVICE_INLINE no_state shared() const { return {}; }

  template <class Part, class Label>
  TIGON_DEVICE_INLINE void row(Part& part, std::size_t i, const Label& label, no_state) const {
    const bool gradient = dlogits.data != nullptr;
    if (!label.counts) {
      const A none = label.is_ignored ? A(0) : std::numeric_limits<A>::quiet_NaN();
      if (part.first()) rows.put(i, none, none, none);
      if (gradient) part.clear(dlogits.row(i));
      return;
    }
    const A inverse = powers.inverse, top = largest_of_row<A>(part, -std::numeric_limits<A>::infinity());
    A sum[2] = {A(0), A(0)};
    part.each([&](unsigned, const auto& e) {
      numbers_of<A>(e, [&](int, A v) {
        const A p = powers.of(v - top);
        sum[0] += p, sum[1] += p == A(0) ? A(0) : p * ((v - top) * inverse);
      });
    });
    part.template reduce<add>(sum);
    A d = sum[0] - A(1);
    if (d < A(1)) d = rest_of_row<A>(part, powers, top);
    const A tail = math::log1p(d), u = sum[1] / (A(1) + d), below = (label.own - top) * inverse, nll = tail - below;
    if (part.first()) rows.put(i, nll, tail - u, top * inverse + tail);
    if (!gradient) return;
    const A g = rows.upstream_nll != nullptr ? rows.upstream_nll[i * rows.step_nll] : A(0);
    const A h = rows.upstream_entropy != nullptr ? rows.upstream_entropy[i * rows.step_entropy] : A(0);
    const A factor = inverse / (A(1) + d), of_p = g * factor, of_slope = h * factor;
    part.map(dlogits.row(i), [&](unsigned, const auto& e) {
      return mapped<D>(e, [&](A v, int) {
        const A p = powers.of(v - top), s = p == A(0) ? A(0) : (v - top) * inverse;  // where p is 0, v may be -inf
        return normal_product(p * (of_p - of_slope * (s - u)), A(1));
      });
    });
    // p_t - 1 cancels where p_t is near 1.
    if (!part.has(label.column)) return;
    const A p_t = math::exp(-nll), bent = p_t == A(0) ? A(0) : h * p_t * (below - u);
    dlogits.row(i)[label.column] = as_element<D>(inverse * (g * math::expm1(-nll) - bent));
  }
};

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::fused_linear_scaled_cross_entropy, backends::cuda> : gpu::loss_by_chunks {
  template <backend B, layer_types T, token_id I>
  static void forward(linear_layer<T> head, linear_gradients<T> out, detail::chosen_rows, std::span<const I> target,
                      detail::scaled_cross_entropy_rows<accumulator_t<T>> rows,
                      fused_linear_scaled_cross_entropy_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t vocab = head.w.rows, chunk = detail::chunk_rows<B, A>(head.x.rows, head.x.cols, vocab, ctx);
    const unsigned cols = gpu::columns(vocab);
    gpu::each_chunk_of_logits<B, T>(head, out, chunk, ctx, [&]<class D>(std::size_t begin, auto z, matrix_view<D> d) {
      gpu::each_row_of_logits(
          ctx,
          gpu::scaled_cross_entropy_of_rows<A, D, I>{
              z, d, cols, {target.data() + begin, opt.ignore_index, cols}, rows.from(begin), {opt.temperature}},
          z.rows);
    });
  }
  template <backend B, layer_types T, token_id I>
  static void backward(linear_layer<T> head, linear_gradients<T> out, detail::chosen_rows kept,
                       std::span<const I> target, detail::scaled_cross_entropy_rows<accumulator_t<T>> rows,
                       fused_linear_scaled_cross_entropy_options opt, context& ctx) {
    forward<B, T, I>(head, out, kept, target, rows, opt, ctx);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_SCALED_CROSS_ENTROPY_HPP
