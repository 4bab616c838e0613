// The generic kernel of rms_norm. Operators that are made of it include this: unlike the public functions it brings no
// backend, which may be made of those operators.
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

/// What the gradient of a row of single numbers reads: matrices, or copies of one of their rows.
template <class X, class W, class A>
struct rms_norm_reads {
  X dy, x;
  vector_view<const W> w;
  const A* rstd;
};
template <class X, class W, class A>
rms_norm_reads(X, X, vector_view<const W>, const A*) -> rms_norm_reads<X, W, A>;

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
    if (x.cols <= narrow)
      return backward_in_f64<B>(x.rows, detail::rms_norm_reads{dy, x, w, rstd.data()}, dx, dw, opt, ctx);
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
    const auto program = gradient_of<C, T, A>(x.cols, opt);
    reduce_map<B>(ctx, program, reads(dy, x, w), of_rows(rstd), writes(dx), adds_to(parameter_gradient<W>{dw, opt.dw}));
  }
  template <casting C, element T, class A, bool InF64 = false>
  static TIGON_INLINE detail::rms_norm_gradient<C, T, A, InF64> gradient_of(std::size_t cols, rms_norm_options opt) {
    return {static_cast<A>(cols), static_cast<A>(opt.offset), static_cast<A>(opt.eps)};
  }

  /// In a row of a few columns the two terms of dx nearly cancel: there everything is computed in f64.
  static constexpr std::size_t narrow = 8;
  template <backend B, element T, element W, class A>
  static void backward_in_f64(simd::rows_of_all rows, detail::rms_norm_reads<matrix_view<const T>, W, A> in,
                              matrix_view<T> dx, vector_view<W> dw, rms_norm_options opt, context& ctx) {
    detail::with_casting<T>(opt.casting, [&](auto rule) {
      const auto program = gradient_of<rule.value, T, A, true>(dx.cols, opt);
      for_rows<B, A>(ctx, rows, dx.cols, adds_to(parameter_gradient<W>{dw, opt.dw}),
                     [=] TIGON_FN(auto row) TIGON_LAMBDA {
                       if (row.first()) row_in_f64(row, program, in, dx, row.partial(0));
                     });
    });
  }
  /// One row of it. Operands are matrices or what a backend has copied of their row.
  template <class Row, class P, class X, class W, class DX, class A>
  static TIGON_INLINE void row_in_f64(const Row& row, const P& program, const detail::rms_norm_reads<X, W, A>& in,
                                      DX dx, vector_view<A> dw) {
    const auto with = [&](std::size_t j, auto f) TIGON_LAMBDA {
      return f(math::lane<double>(row.at(in.dy, j)), math::lane<double>(row.at(in.x, j)),
               math::lane<double>(in.w ? row.at(in.w, j) : A(1)));
    };
    const A rstd = in.rstd[row.i];
    double m_m = 0, m_v = 0, v_v = 0;  // not an array, which g++ keeps in memory
    for (std::size_t j = 0; j < row.cols; ++j) {
      const auto terms = with(j, [&](auto... v) TIGON_LAMBDA { return program.reduce(rstd, v...); });
      m_m += terms.v[0].r, m_v += terms.v[1].r, v_v += terms.v[2].r;
    }
    const auto value = program.finish(std::array{m_m, m_v, v_v}, rstd);
    for (std::size_t j = 0; j < row.cols; ++j) {
      const math::lane<double> sum(dw ? dw.data[j] : A(0));
      const auto to = with(j, [&](auto... v) TIGON_LAMBDA { return program.map(value, v..., sum); });
      row.put(dx, j, static_cast<A>(to.v[0].r));
      if (dw) dw.data[j] = static_cast<A>(to.v[1].r);
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
