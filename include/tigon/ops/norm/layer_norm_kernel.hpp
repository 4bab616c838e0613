// The generic kernel of layer_norm.
#ifndef TIGON_OPS_NORM_LAYER_NORM_KERNEL_HPP
#define TIGON_OPS_NORM_LAYER_NORM_KERNEL_HPP

#include <tigon/ops/norm/layer_norm_options.hpp>
#include <tigon/ops/norm/layer_norm_program.hpp>
#include <tigon/ops/norm/norm_gradients.hpp>
#include <tigon/rows/reduce_map.hpp>

namespace tigon {

template <>
struct kernel<op::layer_norm, backends::generic> {
  template <class A>
  using saved = std::span<A>;  // mean and rstd, a row of numbers each

  template <backend B, element T, element W>
  static void forward(in_matrix<T> x, in_vector<W> w, in_vector<W> b, matrix_view<T> y,
                      std::span<accumulator_t<T>> mean, std::span<accumulator_t<T>> rstd, layer_norm_options opt,
                      context& ctx) {
    using A = accumulator_t<T>;
    const detail::layer_norm_program<A> program{static_cast<A>(x.cols), static_cast<A>(opt.eps)};
    reduce_map<B>(ctx, program, reads(x), map_reads(or_ones(w), or_zeros(b)), writes(y),
                  saves(mean.data(), rstd.data()));
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, std::span<const accumulator_t<T>> mean,
                       std::span<const accumulator_t<T>> rstd,
                       norm_gradients<T, vector_view<W>, vector_view<W>> gradients, layer_norm_options opt,
                       context& ctx) {
    // Not in bf16, whose numbers lie too far apart.
    constexpr bool exact = !std::same_as<T, bfloat16>;
    using A = accumulator_t<T>;
    reduce_map<B>(
        ctx, detail::layer_norm_gradient<exact, A>{static_cast<A>(x.cols)}, reads(dy, x, or_ones(w)),
        of_rows(mean.data(), rstd.data()), writes(gradients.dx),
        adds_to(parameter_gradient<W>{gradients.dw, opt.dparams}, parameter_gradient<W>{gradients.db, opt.dparams}));
  }
};

/// Bytes of workspace that layer_norm_backward takes, with dw or db, or without both.
template <class B = default_backend, class T>
std::size_t layer_norm_workspace(std::size_t rows, std::size_t cols, parameters of = parameters::trained) {
  return of == parameters::frozen ? 0 : simd::partials_workspace<B, accumulator_t<T>>(rows, cols, 2);
}

}  // namespace tigon

#endif  // TIGON_OPS_NORM_LAYER_NORM_KERNEL_HPP
