// Sparsemax along any axis, forward and backward.
#ifndef TIGON_OPS_SPARSEMAX_HPP
#define TIGON_OPS_SPARSEMAX_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/softmax/sparsemax_kernel.hpp>

namespace tigon {

/// The point of the probability simplex that is nearest to x, along one axis.
///
///   y[i,j] = max(0, x[i,j] - tau[i]),   tau[i] such that sum_j y[i,j] = 1
///   dx[i,j] = dy[i,j] - mean of dy[i,k] over all k with y[i,k] > 0,   0 where y[i,j] = 0
///
/// Formula    docs/formulas/sparsemax.md; Martins and Astudillo, "From Softmax to Sparsemax", 2016.
/// Shapes     x, y, dy, dx [rows, cols], the axis being the columns, or an `axis_view` [outer, axis, inner] with any
///            strides that keep elements apart. The axis has at least 1 element; the other extents may be 0.
/// Types      f32, bf16, f16 or f64, the same for all.
/// Precision  sums in f32 (f64 for f64); tau in two parts, so that a common offset of x costs nothing; one rounding at
///            y and dx. The support is that of the stored y: in f16 an element below 3e-8 is not in it.
/// Writes     y, dx.
/// Aliasing   forward: y may be x. backward: dx may be dy or y. Otherwise no output shares an element with another
///            argument; any layout.
/// Throws     tigon::error: shape, stride, alias, workspace; before the first write.
/// Edges      -inf gives 0; a line along the axis that has +inf or NaN, or only -inf, is NaN, and so is its dx.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square over the support, both ways
///            (tests/ops/sparsemax_test.cpp), for an axis of any length.
///
/// ```cpp
/// std::vector<float> x(4 * 64 * 7, 0.5f), y(x.size()), dx(x.size());  // along the axis of 64
/// const tigon::axis_view in(x.data(), 4, 64, 7), out(y.data(), 4, 64, 7), gradient(dx.data(), 4, 64, 7);
/// tigon::sparsemax_forward(in, out);
/// tigon::sparsemax_backward(out, out, gradient);  // dy = y
/// ```
struct sparsemax_options;

/// Bytes of workspace that sparsemax_backward takes; none along the last axis.
template <class B = default_backend, class T>
std::size_t sparsemax_backward_workspace(std::size_t axis, std::size_t inner,
                                         const context& ctx = default_context<B>()) {
  using tiles = detail::column_tiles<B>;
  const std::size_t lines = detail::sparsemax_columns::backward_lines(axis);
  return simd::scratch_workspace<B, accumulator_t<T>>(tiles::width(inner), lines, ctx);
}

/// y from x along the columns. See sparsemax_options for the contract.
template <class B = default_backend, class T>
void sparsemax_forward(in_matrix<T> x, matrix_view<T> y, sparsemax_options opt = {},
                       context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("sparsemax_forward");
  args.at_least_one("cols", x.cols);
  args.in("x", x);
  args.out("y", y, x.rows, x.cols).may_be("x");
  args.check();
  ctx.workspace().expect("sparsemax_forward", sparsemax_workspace<B, T>(x.cols, ctx));
  kernel_for<op::sparsemax, B>::template forward<B, T>(axis_view(x), axis_view(y), opt, ctx);
}

/// y from x along any axis. See sparsemax_options for the contract.
template <class B = default_backend, class T>
void sparsemax_forward(in_axis<T> x, axis_view<T> y, sparsemax_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("sparsemax_forward");
  args.at_least_one("axis", x.axis);
  detail::expect_axis("sparsemax_forward", "x", x, x);
  detail::expect_axis("sparsemax_forward", "y", y, x);
  args.in("x", x.heads(), {1, x.outer, x.axis, x.inner});
  args.out("y", y.heads(), {1, x.outer, x.axis, x.inner}).may_be("x");
  args.check();
  ctx.workspace().expect("sparsemax_forward", x.is_last() && y.is_last()
                                                  ? sparsemax_workspace<B, T>(x.axis, ctx)
                                                  : sparsemax_workspace<B, T>(x.axis, x.inner, ctx));
  kernel_for<op::sparsemax, B>::template forward<B, T>(x, y, opt, ctx);
}

/// dx from dy and y along the columns. See sparsemax_options for the contract.
template <class B = default_backend, class T>
void sparsemax_backward(in_matrix<T> dy, in_matrix<T> y, matrix_view<T> dx, sparsemax_options opt = {},
                        context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("sparsemax_backward");
  args.at_least_one("cols", y.cols);
  args.in("y", y);
  args.in("dy", dy, y.rows, y.cols);
  args.out("dx", dx, y.rows, y.cols).may_be("dy", "y");
  args.check();
  kernel_for<op::sparsemax, B>::template backward<B, T>(axis_view(dy), axis_view(y), axis_view(dx), opt, ctx);
}

/// dx from dy and y along any axis. See sparsemax_options for the contract.
template <class B = default_backend, class T>
void sparsemax_backward(in_axis<T> dy, in_axis<T> y, axis_view<T> dx, sparsemax_options opt = {},
                        context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("sparsemax_backward");
  args.at_least_one("axis", y.axis);
  detail::expect_axis("sparsemax_backward", "y", y, y);
  detail::expect_axis("sparsemax_backward", "dy", dy, y);
  detail::expect_axis("sparsemax_backward", "dx", dx, y);
  args.in("y", y.heads(), {1, y.outer, y.axis, y.inner});
  args.in("dy", dy.heads(), {1, y.outer, y.axis, y.inner});
  args.out("dx", dx.heads(), {1, y.outer, y.axis, y.inner}).may_be("dy", "y");
  args.check();
  if (!dy.is_last() || !y.is_last() || !dx.is_last())
    ctx.workspace().expect("sparsemax_backward", sparsemax_backward_workspace<B, T>(y.axis, y.inner, ctx));
  kernel_for<op::sparsemax, B>::template backward<B, T>(dy, y, dx, opt, ctx);
}

TIGON_EXPLAINS(sparsemax_forward)
TIGON_EXPLAINS(sparsemax_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_SPARSEMAX_HPP
