// The generic kernel of rms_norm. Operators that are made of it include this: unlike the doors it brings no backend, which
// may be made of those operators.
#ifndef TIGON_OPS_NORM_RMS_NORM_KERNEL_HPP
#define TIGON_OPS_NORM_RMS_NORM_KERNEL_HPP

#include <tigon/ops/norm/rms_norm_options.hpp>
#include <tigon/ops/norm/rms_norm_program.hpp>
#include <tigon/ops/norm/row_scale.hpp>
#include <tigon/rows/reduce_map.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
/// Calls run(rule) with the casting rule as a constant. Rounding to the type of the sums is none.
template <element T, class Run>
void with_casting(casting rule, Run run) {
  if constexpr (!std::same_as<T, accumulator_t<T>>)
    if (rule == casting::llama) return run(std::integral_constant<casting, casting::llama>{});
  run(std::integral_constant<casting, casting::none>{});
}

/// What the gradient reads in f64: matrices, or copies of one of their rows. ds is added to dx, and may be an empty
/// view.
template <class X, class W, class A>
struct rms_norm_reads {
  X dy, x, ds;
  vector_view<const W> w;
  const A* rstd;
};
template <class X, class W, class A>
rms_norm_reads(X, X, X, vector_view<const W>, const A*) -> rms_norm_reads<X, W, A>;

/// The options for this weight: where it is absent, nothing is added to its ones or rounded before them.
template <class Options, class W>
Options options_for_weight(Options opt, in_vector<W> w) {
  if (!w) opt.offset = 0, opt.casting = casting::none;
  return opt;
}
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::rms_norm, backends::generic> {
  template <class A>
  using saved = std::span<A>;  // rstd

  template <backend B, element T, element W>
  static void forward(in_matrix<T> x, in_vector<W> w, matrix_view<T> y, std::span<accumulator_t<T>> rstd,
                      rms_norm_options opt, context& ctx) {
    opt = detail::options_for_weight(opt, w);
    detail::with_casting<T>(opt.casting,
                            [&](auto rule) { forward_rows<B, rule.value>(x, or_ones(w), y, rstd.data(), opt, ctx); });
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, std::span<const accumulator_t<T>> rstd,
                       matrix_view<T> dx, vector_view<W> dw, rms_norm_options opt, context& ctx) {
    opt = detail::options_for_weight(opt, w);
    if (x.cols <= narrow || !detail::holds_products(rstd.data(), x.rows))
      return backward_in_f64<B>(x.rows, detail::rms_norm_reads{dy, x, in_matrix<T>(), w, rstd.data()}, dx, dw, opt,
                                ctx);
    detail::with_casting<T>(opt.casting, [&](auto rule) {
      backward_rows<B, rule.value>(dy, x, or_ones(w), rstd.data(), dx, dw, opt, ctx);
    });
  }

  template <backend B, casting C, element T, class Weight, class A>
  static void forward_rows(matrix_view<const T> x, Weight w, matrix_view<T> y, A* rstd, rms_norm_options opt,
                           context& ctx) {
    const detail::rms_norm_program<C, T, A> program{{static_cast<A>(x.cols), static_cast<A>(opt.eps)},
                                                    static_cast<A>(opt.offset)};
    reduce_map<B>(ctx, program, reads(x), map_reads(w), writes(y), saves(rstd));
  }

  template <backend B, casting C, element T, class Weight, element W, class A>
  static void backward_rows(matrix_view<const T> dy, matrix_view<const T> x, Weight w, const A* rstd, matrix_view<T> dx,
                            vector_view<W> dw, rms_norm_options opt, context& ctx) {
    const detail::rms_norm_gradient<C, T, A> program{static_cast<A>(x.cols), static_cast<A>(opt.offset)};
    reduce_map<B>(ctx, program, reads(dy, x, w), of_rows(rstd), writes(dx), adds_to(parameter_gradient<W>{dw, opt.dw}));
  }

  /// In a row of a few columns the two terms of dx nearly cancel: there everything is computed in f64.
  static constexpr std::size_t narrow = 8;
  template <backend B, element T, element W, class A>
  static void backward_in_f64(simd::rows_of_all rows, detail::rms_norm_reads<matrix_view<const T>, W, A> in,
                              matrix_view<T> dx, vector_view<W> dw, rms_norm_options opt, context& ctx) {
    for_rows<B, A>(ctx, rows, dx.cols, adds_to(parameter_gradient<W>{dw, opt.dw}), [=] TIGON_FN(auto row) TIGON_LAMBDA {
      if (row.first()) row_in_f64(row, in, dx, row.partial(0), opt);
    });
  }
  /// One row of it. Operands are matrices or what a backend has copied of their row.
  template <class Row, class X, class W, class DX, class A>
  static TIGON_INLINE void row_in_f64(const Row& row, const detail::rms_norm_reads<X, W, A>& in, DX dx,
                                      vector_view<A> dw, rms_norm_options opt) {
    const X dy = in.dy, x = in.x, ds = in.ds;
    const vector_view<const W> w = in.w;
    const A* const rstd = in.rstd;
    using T = std::remove_const_t<std::remove_pointer_t<decltype(x.data)>>;
    const bool llama = opt.casting == casting::llama;
    const double scale = detail::scale_of_row(rstd[row.i]), r = rstd[row.i] / scale;
    const auto m = [=](std::size_t j) TIGON_LAMBDA {
      return static_cast<double>(row.at(dy, j)) * (w ? static_cast<double>(row.at(w, j)) + opt.offset : 1.0);
    };
    const auto scaled = [=](std::size_t j) TIGON_LAMBDA { return static_cast<double>(row.at(x, j)) * scale; };
    detail::sums_along_row sums;
    for (std::size_t j = 0; j < row.cols; ++j) sums.add(m(j), scaled(j));
    const double n = static_cast<double>(row.cols);
    const double c = r * r * sums.m_v / n * detail::correction_along_row<A>(sums, n, r, opt.eps * scale * scale);
    for (std::size_t j = 0; j < row.cols; ++j) {
      const double v = scaled(j);
      const A xh = static_cast<A>(v * r);
      if (dw) dw.data[j] += static_cast<A>(row.at(dy, j)) * (llama ? static_cast<A>(static_cast<T>(xh)) : xh);
      const double extra = ds.data != nullptr ? static_cast<double>(row.at(ds, j)) : 0;
      row.put(dx, j, static_cast<A>(r * (m(j) - v * c) * scale + extra));
    }
  }
};

/// Bytes of workspace that rms_norm_backward takes, with dw or without.
template <class B = default_backend, class T>
std::size_t rms_norm_workspace(std::size_t rows, std::size_t cols, parameters of = parameters::trained) {
  return of == parameters::frozen ? 0 : simd::partials_workspace<B, accumulator_t<T>>(rows, cols, 1);
}

}  // namespace tigon

#endif  // TIGON_OPS_NORM_RMS_NORM_KERNEL_HPP
