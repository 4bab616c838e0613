// The generic kernel of fused_add_rms_norm.
#ifndef TIGON_OPS_NORM_FUSED_ADD_RMS_NORM_KERNEL_HPP
#define TIGON_OPS_NORM_FUSED_ADD_RMS_NORM_KERNEL_HPP

#include <tigon/ops/norm/fused_add_rms_norm_options.hpp>
#include <tigon/ops/norm/rms_norm_kernel.hpp>
#include <tigon/rows/matrices.hpp>

namespace tigon {

template <>
struct kernel<op::fused_add_rms_norm, backends::generic> {
  template <class A>
  using saved = std::span<A>;  // rstd

  template <backend B, element T, element W>
  static void forward(in_matrix<T> x, in_matrix<T> r, in_vector<W> w, matrix_view<T> y, matrix_view<T> s,
                      std::span<accumulator_t<T>> rstd, rms_norm_options opt, context& ctx) {
    opt = detail::options_for_weight(opt, w);
    detail::with_casting<T>(
        opt.casting, [&](auto rule) { forward_rows<B, rule.value>(x, r, or_ones(w), y, s, rstd.data(), opt, ctx); });
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> ds, in_matrix<T> s, in_vector<W> w,
                       std::span<const accumulator_t<T>> rstd,
                       fused_add_rms_norm_gradients<T, vector_view<W>> gradients, rms_norm_options opt, context& ctx) {
    if (dy.data == nullptr) return backward_of_sum<B, T, W>(ds, gradients, opt, ctx);
    opt = detail::options_for_weight(opt, w);
    detail::with_casting<T>(opt.casting, [&](auto rule) {
      backward_rows<B, rule.value, T, W>(dy, ds, s, w, rstd.data(), gradients, opt, ctx);
    });
    copy<B, T>(gradients.dx, gradients.dr, ctx);
  }

  /// The gradient of the sum alone.
  template <backend B, element T, element W>
  static void backward_of_sum(matrix_view<const T> ds, fused_add_rms_norm_gradients<T, vector_view<W>> to,
                              rms_norm_options opt, context& ctx) {
    if (ds.data != to.dx.data) copy<B, T>(ds, to.dx, ctx);
    copy<B, T>(to.dx, to.dr, ctx);
    if (!to.dw || opt.dw == gradient::accumulate) return;
    using A = accumulator_t<T>;
    const vector_view<W> dw = to.dw;
    if constexpr (host_memory<B>)
      for_rows<B, A>(ctx, 1, dw.size, [=] TIGON_FN(auto row) {
        row.map(reads(constant(A(0))), writes(dw), [](auto zero) { return zero; });
      });
    else
      detail::clear_matrix<B>(matrix_view<W>{dw.data, 1, dw.size}, ctx);
  }

  template <backend B, element T>
  static void copy(matrix_view<const T> dx, matrix_view<T> dr, context& ctx) {
    if (dr.data != nullptr) detail::convert_matrix<B>(dx, dr, ctx);
  }

  template <backend B, casting C, element T, class Weight, class A>
  static void forward_rows(matrix_view<const T> x, matrix_view<const T> r, Weight w, matrix_view<T> y, matrix_view<T> s,
                           A* rstd, rms_norm_options opt, context& ctx) {
    const detail::fused_add_rms_norm_program<C, T, A> program{{static_cast<A>(x.cols), static_cast<A>(opt.eps)},
                                                              static_cast<A>(opt.offset)};
    reduce_map<B>(ctx, program, reads(x, r), map_reads(w), reduce_writes(s), writes(y), saves(rstd));
  }

  template <backend B, casting C, element T, element W, class A>
  static void backward_rows(matrix_view<const T> dy, matrix_view<const T> ds, matrix_view<const T> s, in_vector<W> w,
                            const A* rstd, fused_add_rms_norm_gradients<T, vector_view<W>> to, rms_norm_options opt,
                            context& ctx) {
    const detail::fused_add_rms_norm_gradient<C, T, A> program{
        {static_cast<A>(s.cols), static_cast<A>(opt.offset), static_cast<A>(opt.eps)}};
    reduce_map<B>(ctx, program, reads(dy, s, or_ones(w)), map_reads(or_zeros(ds)), of_rows(rstd), writes(to.dx),
                  adds_to(parameter_gradient<W>{to.dw, opt.dw}));
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_NORM_FUSED_ADD_RMS_NORM_KERNEL_HPP
