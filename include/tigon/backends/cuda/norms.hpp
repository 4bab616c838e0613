// Norms on a GPU.
#ifndef TIGON_BACKENDS_CUDA_NORMS_HPP
#define TIGON_BACKENDS_CUDA_NORMS_HPP

#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <tigon/ops/norm/layer_norm_kernel.hpp>
#include <tigon/ops/norm/rms_norm_kernel.hpp>

namespace tigon {

/// The row program in f64 has rows of a few columns, too.
template <>
struct kernel<op::rms_norm, backends::cuda> : kernel<op::rms_norm, backends::generic> {
  using shared = kernel<op::rms_norm, backends::generic>;
  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, std::span<const accumulator_t<T>> rstd,
                       matrix_view<T> dx, vector_view<W> dw, rms_norm_options opt, context& ctx) {
    opt = detail::options_for_weight(opt, w);
    detail::with_casting<T>(opt.casting, [&](auto rule) {
      if (x.cols > shared::narrow)
        return shared::backward_rows<B, rule.value>(dy, x, or_ones(w), rstd.data(), dx, dw, opt, ctx);
      const auto program = shared::gradient_of<rule.value, T, accumulator_t<T>, true>(x.cols, opt);
      reduce_map<B>(ctx, program, reads(in_f64(dy), x, or_ones(w)), of_rows(rstd.data()), writes(dx),
                    adds_to(parameter_gradient<W>{dw, opt.dw}));
    });
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_NORMS_HPP
