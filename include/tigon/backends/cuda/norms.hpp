// Norms on a GPU.
#ifndef TIGON_BACKENDS_CUDA_NORMS_HPP
#define TIGON_BACKENDS_CUDA_NORMS_HPP

#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/numbers.hpp>
#include <tigon/ops/norm/fused_add_rms_norm_kernel.hpp>
#include <tigon/ops/norm/layer_norm_kernel.hpp>
#include <tigon/ops/norm/modulated_rms_norm_kernel.hpp>
#include <tigon/ops/norm/poly_norm_kernel.hpp>
#include <tigon/ops/norm/rms_norm_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// Sums of the terms of dw, and of that of db.
template <class W, class P>
struct poly_norm_gradients {
  W* dw;
  P* db;
  bool accumulate;
  TIGON_DEVICE_INLINE void operator()(std::size_t k, double sum) const {
    if (k < 3 && dw != nullptr) gradient_of_number<W>{dw + k, accumulate}(k, sum);
    if (k == 3 && db != nullptr) gradient_of_number<P>{db, accumulate}(k, sum);
  }
};

}  // namespace TIGON_ABI
}  // namespace gpu

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

/// Gradients of all groups in one launch.
template <>
struct kernel<op::modulated_rms_norm, backends::cuda> : kernel<op::modulated_rms_norm, backends::generic> {
  using shared = kernel<op::modulated_rms_norm, backends::generic>;
  template <backend B, element T, element W, element S>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, in_matrix<S> scale,
                       std::span<const accumulator_t<T>> rstd,
                       modulated_rms_norm_gradients<T, vector_view<W>, S> gradients, modulated_rms_norm_options opt,
                       context& ctx) {
    opt = detail::options_for_weight(opt, w);
    if (by_row(x.rows, x.cols, scale.rows))
      detail::with_casting<T>(opt.casting, [&](auto rule) {
        shared::backward_rows<B, rule.value, T, W, S>(dy, x, w, scale, rstd.data(), gradients, opt, ctx);
      });
    else
      backward_groups<B, T, W, S>(dy, x, w, scale, rstd.data(), gradients, opt, ctx);
  }

  template <backend B, element T, element W, element S, class A>
  static void backward_groups(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, in_matrix<S> scale, const A* rstd,
                              modulated_rms_norm_gradients<T, vector_view<W>, S> to, modulated_rms_norm_options opt,
                              context& ctx) {
    workspace::frame frame(ctx.workspace());
    const matrix_view<A> weights = group_weights<B, A>(frame, scale, w, opt, ctx);
    const auto run = [&](auto program, auto first) {
      const row_of_group weight(weights, x.rows / std::max<std::size_t>(scale.rows, 1));
      B::rows::reduce_map(ctx, program, reads(first, x, weight), of_rows(rstd), writes(to.dx),
                          adds_to(parameter_gradient<A>{{weights.data, x.cols}},
                                  parameter_gradient<S>{{to.dshift.data, x.cols}, opt.dscale}),
                          gpu::in_groups(scale.rows, weights.row_stride, to.dshift.row_stride));
    };
    const A cols = static_cast<A>(x.cols), eps = static_cast<A>(opt.eps);
    detail::with_casting<T>(opt.casting, [&](auto rule) {
      if (x.cols <= plain::narrow)
        run(detail::shifted_rms_norm_gradient<rule.value, T, A, true>{{cols, A(0), eps}}, in_f64(dy));
      else
        run(detail::shifted_rms_norm_gradient<rule.value, T, A>{{cols, A(0), eps}}, dy);
    });
    map_rows<B>(ctx, detail::group_weight_gradient<A>{static_cast<A>(opt.offset)},
                reads(weights, or_ones(w), scale, added_to(to.dscale, opt.dscale)), writes(to.dscale),
                adds_to(parameter_gradient<W>{to.dw, opt.dw}));
  }
  /// Bytes of what backward takes for its groups, beside their weights, and for what follows.
  template <backend B, class A>
  static std::size_t groups_workspace(std::size_t rows, std::size_t cols, std::size_t groups, std::size_t last,
                                      const context&) {
    const std::size_t partials = groups * gpu::most_tasks(rows / std::max<std::size_t>(groups, 1));
    const std::size_t of_groups = cols <= plain::narrow
                                      ? workspace::bytes_for<double>(partials, 2, workspace::padded<double>(cols))
                                      : workspace::bytes_for<A>(partials, 2, workspace::padded<A>(cols));
    return std::max(of_groups, last);
  }
};

template <>
struct kernel<op::poly_norm, backends::cuda> : kernel<op::poly_norm, backends::generic> {
  template <backend B, element T, element W, element P>
  static void forward(in_matrix<T> x, in_vector<W> w, in_vector<P> b, matrix_view<T> y,
                      std::span<accumulator_t<T>> rstd, poly_norm_options opt, context& ctx) {
    using A = accumulator_t<T>;
    using program = detail::poly_norm_at<A, W, P>;
    auto* const saved = reinterpret_cast<detail::of_powers<A>*>(rstd.data());
    reduce_map<B>(ctx, gpu::made_late<program>{{w.data, b.data, static_cast<A>(x.cols), static_cast<A>(opt.eps)}},
                  reads(x), writes(y), saves(saved));
  }

  template <backend B, element T, element W, element P>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, std::span<const accumulator_t<T>> rstd,
                       norm_gradients<T, vector_view<W>, vector_view<P>> to, poly_norm_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const auto* const saved = reinterpret_cast<const detail::of_powers<A>*>(rstd.data());
    const gpu::made_late<detail::poly_norm_gradient_at<A, W>> program{
        {w.data, static_cast<A>(x.cols), static_cast<A>(opt.eps), x.cols <= narrow || x.rows * x.cols <= few}};
    if (!to.dw && !to.db) return reduce_map<B>(ctx, program, reads(dy, x), of_rows(saved), writes(to.dx));
    workspace::frame frame(ctx.workspace());
    const matrix_view<double> terms{frame.template take<double>(4 * x.rows), 4, x.rows};
    reduce_map<B>(ctx, program, reads(dy, x), of_rows(saved), writes(to.dx),
                  saves(terms.row(0), terms.row(1), terms.row(2), terms.row(3)));
    const gpu::poly_norm_gradients<W, P> put{to.dw.data, to.db.data, opt.dparams == gradient::accumulate};
    gpu::launch(ctx, gpu::add_up<gpu::number_of_row, decltype(put)>, 4, gpu::threads_of_sum, gpu::number_of_row{terms},
                x.rows, put);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_NORMS_HPP
