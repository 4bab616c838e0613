// Dynamic tanh on a GPU, whose alpha is in the device's memory.
#ifndef TIGON_BACKENDS_CUDA_DYT_HPP
#define TIGON_BACKENDS_CUDA_DYT_HPP

#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/numbers.hpp>
#include <tigon/ops/norm/dyt_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// tanh(alpha v) for results of bf16: by the GPU's instruction, within 2^-11 of the result.
template <class A>
struct rough_tanh {
  A alpha;
  template <class V>
  TIGON_INLINE V operator()(V v) const {
    return V(simd::cuda::lanes<A>::tanh_rough(v.r * alpha));
  }
};
/// tanh_parts for such results: the same tanh, and q and y by the GPU's power and reciprocal.
template <class A>
struct rough_tanh_parts {
  A alpha;

  template <class V>
  TIGON_INLINE auto power(V v) const {
    using lanes = simd::cuda::lanes<A>;
    return simd::pack<V, 2>{{V(lanes::exp_rough(-std::fabs(v.r * (alpha + alpha)))), rough_tanh<A>{alpha}(v)}};
  }
  template <class V>
  TIGON_INLINE auto rest(const simd::pack<V, 2>& p, V) const {
    const V sum = V(A(1)) + p.v[0];
    return typename simd::tanh_parts<8, A>::template result<V>{p.v[1] * sum, p.v[0],
                                                               V(simd::cuda::lanes<A>::reciprocal_estimate(sum.r))};
  }
};

// Programs whose alpha is in memory, for results of so many bits.

template <std::size_t Bits, class A, class W>
struct dyt_at : number_at<A, W> {
  using tanh = std::conditional_t<Bits == 8, rough_tanh<A>, simd::scaled_tanh<A>>;
  TIGON_INLINE auto program() const { return detail::dyt_program<tanh>{tanh{this->value()}}; }
};

/// The weight of a column is 4 alpha times what is read.
template <std::size_t Bits, class A, class W>
struct dyt_gradient_at : number_at<A, W> {
  using parts = std::conditional_t<Bits == 8, rough_tanh_parts<A>, simd::tanh_parts<Bits, A>>;
  struct of_gamma : detail::dyt_gradient<parts> {
    A alpha;
    template <class Power, class V>
    TIGON_INLINE auto map(Power power, V x, V dy, V gamma, V s, V dgamma, V dbeta) const {
      return detail::dyt_gradient<parts>::map(power, x, dy, V(A(4)) * (gamma * V(alpha)), s, dgamma, dbeta);
    }
  };
  TIGON_INLINE auto program() const { return of_gamma{{parts{this->value()}}, this->value()}; }
};

/// 4 gamma s of a column, whose sum is dalpha.
template <class A, class W>
struct dyt_alpha_of_column {
  const W* gamma;
  const A* s;
  TIGON_DEVICE_INLINE double operator()(std::size_t, std::size_t j) const {
    return 4 * static_cast<double>(static_cast<A>(gamma[j])) * static_cast<double>(s[j]);
  }
};

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::dyt, backends::cuda> : kernel<op::dyt, backends::generic> {
  template <backend B, element T, element W>
  static void forward(in_matrix<T> x, in_vector<W> alpha, in_vector<W> gamma, in_vector<W> beta, matrix_view<T> y,
                      context& ctx) {
    using program = gpu::dyt_at<detail::dyt_bits<B, T>, accumulator_t<T>, W>;
    map_rows<B>(ctx, gpu::made_late<program>{{{alpha.data}}}, reads(x, gamma, or_zeros(beta)), writes(y));
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> alpha, in_vector<W> gamma,
                       dyt_gradients<T, vector_view<W>, vector_view<W>, vector_view<W>> to, dyt_options opt,
                       context& ctx) {
    using A = accumulator_t<T>;
    const bool alpha_sums = static_cast<bool>(to.dalpha), in_f64 = alpha_sums && is_small(x.rows, x.cols);
    workspace::frame frame(ctx.workspace());
    const vector_view<A> by_column{alpha_sums ? frame.template take<A>(x.cols) : nullptr, alpha_sums ? x.cols : 0};
    const vector_view<double> by_row{in_f64 ? frame.template take<double>(x.rows) : nullptr, in_f64 ? x.rows : 0};
    if (in_f64) {
      using parts = simd::tanh_parts<53, double>;
      using of_alpha = detail::dyt_at<detail::dyt_alpha_gradient, parts, double, W>;
      reduce_map<B>(ctx, gpu::made_late<of_alpha>{{alpha.data}}, reads(tigon::in_f64(gamma), dy, x),
                    saves(by_row.data));
    }
    using program = gpu::dyt_gradient_at<detail::dyt_bits<B, T, W>, A, W>;
    map_rows<B>(ctx, gpu::made_late<program>{{{alpha.data}}}, reads(x, dy, gamma), writes(to.dx),
                adds_to(parameter_gradient<A>{by_column}, parameter_gradient<W>{to.dgamma, opt.dparams},
                        parameter_gradient<W>{to.dbeta, opt.dparams}));
    if (!alpha_sums) return;
    const gpu::gradient_of_number<W> put{to.dalpha.data, opt.dparams == gradient::accumulate};
    const auto sum = [&](auto term, std::size_t n) {
      gpu::launch(ctx, gpu::add_up<decltype(term), decltype(put)>, 1, gpu::threads_of_sum, term, n, put);
    };
    if (in_f64)
      sum(gpu::number_of_vector{by_row.data}, x.rows);
    else
      sum(gpu::dyt_alpha_of_column<A, W>{gamma.data, by_column.data}, x.cols);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_DYT_HPP
