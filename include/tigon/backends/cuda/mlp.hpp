// The gated MLP on a GPU: products with the gate in one kernel where its tensor cores have one (gated_product.hpp),
// otherwise with the gate as a pass of its own.
#ifndef TIGON_BACKENDS_CUDA_MLP_HPP
#define TIGON_BACKENDS_CUDA_MLP_HPP

#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/gated_product.hpp>
#include <tigon/ops/mlp/mlp_kernel.hpp>

namespace tigon {

template <>
struct kernel<op::mlp, backends::cuda> : kernel<op::mlp, backends::generic> {
  using passes = kernel<op::mlp, backends::generic>;

  template <backend B, element T, element W, class Options>
  static void activate(matrix_view<const T> x, mlp_weights<const W> w, detail::mlp_biases<T> b,
                       detail::mlp_values<T> to, const Options& opt, context& ctx) {
#if defined(__CUDACC__)
    if constexpr (in_one_kernel<T, W>)
      if (with_gate<B, T>(opt, ctx, [&]<class Gate>(const Gate& gate) {
            gpu::gated_sums<T, Gate> sums{
                x, w.gate, w.up, to, b.gate.data, b.up.data, static_cast<float>(opt.gate_multiplier), gate};
            return gpu::queue_tensor_product(ctx, sums);
          }))
        return;
#endif
    passes::activate<B>(x, w, b, to, opt, ctx);
  }

  template <backend B, element T, element W, class Options>
  static void differentiate(matrix_view<const T> dy, matrix_view<const W> down, detail::mlp_values<T> values,
                            const Options& opt, context& ctx) {
#if defined(__CUDACC__)
    if constexpr (in_one_kernel<T, W>)
      if (with_gate<B, T>(opt, ctx, [&]<class Gate>(const Gate& gate) {
            gpu::gate_gradients<T, Gate> gradients{dy, down, values, static_cast<float>(opt.down_multiplier), gate};
            return gpu::queue_tensor_product(ctx, gradients);
          }))
        return;
#endif
    passes::differentiate<B>(dy, down, values, opt, ctx);
  }

 private:
  template <class T, class W>
  static constexpr bool in_one_kernel = std::same_as<T, W> && sizeof(T) == 2;

  /// f(program) with that of the gate for results of type T, unless weights lie the other way round.
  template <backend B, element T, class Options, class F>
  static bool with_gate(const Options& opt, context& ctx, F f) {
    bool done = false;
    const detail::mlp_gate_kernel<row_backend<B>, T, decltype(opt.gate)> gates{opt.gate};
    if (opt.weights == transpose::no)
      gates.with(ctx,
                 [&](const auto& of) { of.template with_program<T>([&](const auto& program) { done = f(program); }); });
    return done;
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_MLP_HPP
