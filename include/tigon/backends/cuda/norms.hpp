// Norms on a GPU: what the doors of a CPU read of rstd and mean before they choose a kernel is not read on the host.
#ifndef TIGON_BACKENDS_CUDA_NORMS_HPP
#define TIGON_BACKENDS_CUDA_NORMS_HPP

#include <tigon/backends/cuda/backend.hpp>
// After it.
#include <tigon/ops/norm/layer_norm_kernel.hpp>
#include <tigon/ops/norm/rms_norm_kernel.hpp>

namespace tigon {

template <>
struct kernel<op::rms_norm, backends::cuda> : kernel<op::rms_norm, backends::generic> {
  using shared = kernel<op::rms_norm, backends::generic>;
  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, std::span<const accumulator_t<T>> rstd,
                       matrix_view<T> dx, vector_view<W> dw, rms_norm_options opt, context& ctx) {
    opt = detail::options_for_weight(opt, w);
    detail::with_casting<T>(opt.casting, [&](auto rule) {
      shared::backward_rows<B, rule.value>(dy, x, or_ones(w), rstd.data(), dx, dw, opt, ctx);
    });
  }
};

template <>
struct kernel<op::layer_norm, backends::cuda> : kernel<op::layer_norm, backends::generic> {
  using shared = kernel<op::layer_norm, backends::generic>;
  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, std::span<const accumulator_t<T>> mean,
                       std::span<const accumulator_t<T>> rstd, norm_gradients<T, vector_view<W>, vector_view<W>> to,
                       layer_norm_options opt, context& ctx) {
    shared::backward_rows<B, !std::same_as<T, bfloat16>, T, W>(dy, x, w, mean, rstd, to, opt, ctx);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_NORMS_HPP
