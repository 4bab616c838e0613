// Sparsemax along any axis, forward and backward.
#ifndef TIGON_OPS_SPARSEMAX_HPP
#define TIGON_OPS_SPARSEMAX_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/softmax/axis_columns.hpp>
#include <tigon/rows/row.hpp>

namespace tigon {

namespace op {
struct sparsemax {
  static constexpr std::string_view name = "sparsemax";
};
}  // namespace op

/// The point of the probability simplex that is nearest to x, along one axis.
///
///   y[i,j] = max(0, x[i,j] - tau[i]),   tau[i] such that sum_j y[i,j] = 1
///   dx[i,j] = dy[i,j] - mean of dy[i,k] over all k with y[i,k] > 0,   0 where y[i,j] = 0
///
/// Formula    docs/formulas/sparsemax.md; Martins and Astudillo, "From Softmax to Sparsemax", 2016.
/// Shapes     x, y, dy, dx [rows, cols], the axis being the columns, or an `axis_view` [outer, axis, inner] with any
///            strides that keep elements apart. The axis has at least 1 element; the other extents may be 0.
/// Types      f32, bf16, f16, f64, one for all.
/// Precision  sums in f32 (f64 for f64); tau in two parts, so that a common offset of x costs nothing; one rounding at
///            y and dx. The support is that of the stored y: in f16 an element below 3e-8 is not in it.
/// Writes     y, dx.
/// Aliasing   forward: y may be x. backward: dx may be dy or y. Otherwise any layout in which no written element is
///            shared.
/// Throws     tigon::error: shape, stride, alias, workspace; before the first write.
/// Edges      -inf gives 0; what has only -inf, +inf or NaN along the axis is NaN throughout, and so is its dx.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square over the support, both ways
///            (tests/ops/sparsemax_test.cpp), for an axis of any length.
struct sparsemax_options {};

namespace detail {
inline namespace TIGON_ABI {

/// tau of one row, which rises from a lower bound until the support no longer shrinks. In two parts, the second far
/// below the first, so that neither a large x nor a small y costs a digit.
template <class A>
struct sparsemax_threshold {
  A high, low, support = std::numeric_limits<A>::infinity();

  /// Takes the sum of what lies above tau, and the number of these elements; false when done.
  TIGON_INLINE bool rise(std::array<A, 2> above) {
    const A next = low + (above[0] - A(1)) / above[1];
    const bool shrinks = above[1] < support;
    const A sum = shrinks ? high + next : high;
    low = next - (sum - high);
    high = sum;
    support = above[1];
    return shrinks;
  }
};

}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::sparsemax, backends::generic> {
  template <class>
  using saved = no_state;  // y itself

  template <backend B, element T>
  static void forward(in_axis<T> x, axis_view<T> y, sparsemax_options, context& ctx) {
    if (x.is_last() && y.is_last())
      forward_rows<B>(x.rows(), y.rows(), ctx);
    else
      detail::sparsemax_columns::forward<B>(x, y, ctx);
  }

  template <backend B, element T>
  static void backward(in_axis<T> dy, in_axis<T> y, axis_view<T> dx, sparsemax_options, context& ctx) {
    if (dy.is_last() && y.is_last() && dx.is_last())
      backward_rows<B>(dy.rows(), y.rows(), dx.rows(), ctx);
    else
      detail::sparsemax_columns::backward<B>(dy, y, dx, ctx);
  }

  template <backend B, element T>
  static void forward_rows(matrix_view<const T> x, matrix_view<T> y, context& ctx) {
    using A = accumulator_t<T>;
    for_rows_with_scratch<B, A>(ctx, x.rows, x.cols, 1, [=] TIGON_FN(auto row) {
      const auto project = [=](auto worker, detail::sparsemax_threshold<A> t, auto from) {
        const auto above = [=](A high, A low) TIGON_LAMBDA {
          return worker.sum(reads(from), [=](auto v) { return detail::excess(v, high, low); });
        };
        auto found = above(t.high, t.low);
        // The support is a subset of that of the round before: of the same size, it is the same.
        if (found[1] != t.support) t.support = std::numeric_limits<A>::infinity();
        while (t.rise(found)) found = above(t.high, t.low);
        return t;
      };
      // The threshold of some elements is a lower bound of that of all. So the rounds begin with the largest of every
      // 64 elements, then of every 8, and few rounds over all elements are left.
      A* const tops = row.scratch(0).data;
      const std::size_t eighth = fold(row, in_vector<T>{x.row(row.i), row.cols}, tops);
      const bool again = eighth >= 64;
      const std::size_t few = again ? fold(row, in_vector<A>{tops, eighth}, tops + eighth) : eighth;
      const vector_view<const A> highest{again ? tops + eighth : tops, few};
      detail::sparsemax_threshold<A> t{row.narrow(few).max(reads(highest), [](auto v) { return v; }), A(-1)};
      t = project(row.narrow(few), t, highest);
      if (again) t = project(row.narrow(eighth), t, vector_view<const A>{tops, eighth});
      t = project(row, t, read_again(x));
      const A total = row.map_sum(reads(x), writes(y), [=](auto v) {
        const auto p = detail::excess(v, t.high, t.low).v[0];
        return pack{p, p};
      });
      if (math::is_nan(total)) row.map(reads(constant(total)), writes(y), [](auto bad) { return bad; });
    });
  }

  /// The largest of every eight elements, which lie an eighth of the row apart, and what is left over; returns their
  /// number. A row of less than 64 is copied.
  template <class Row, class T, class A>
  static TIGON_INLINE std::size_t fold(Row row, vector_view<const T> x, A* out) {
    const std::size_t n = x.size < 64 ? 0 : x.size / 8;
    const auto part = [=](std::size_t k) { return vector_view<const T>{x.data + k * n, n}; };
    row.narrow(n).map(reads(part(0), part(1), part(2), part(3), part(4), part(5), part(6), part(7)),
                      writes(vector_view<A>{out, n}), detail::largest_of_eight);
    const std::size_t rest = x.size - 8 * n;
    row.narrow(rest).map(reads(vector_view<const T>{x.data + 8 * n, rest}), writes(vector_view<A>{out + n, rest}),
                         [](auto v) { return v; });
    return n + rest;
  }

  template <backend B, element T>
  static void backward_rows(matrix_view<const T> dy, matrix_view<const T> y, matrix_view<T> dx, context& ctx) {
    using A = accumulator_t<T>;
    for_rows<B, A>(ctx, y.rows, y.cols, [=] TIGON_FN(auto row) {
      // Sums over the support of dy - origin, of its square, and of ones; origin is a number close to dy. Where the
      // mean is far from it compared with the deviation, digits were lost, and the sums are computed once more.
      const auto from = [=](A origin) {
        return row.sum(reads(read_again(dy), read_again(y)), [=](auto d, auto p) {
          using V = decltype(d);
          const auto inside = p > V(0);
          const V c = select(inside, d - origin, V(0));
          return pack{c, c * c, select(inside, V(1), V(0))};
        });
      };
      const A any = row.at(dy, 0);
      A origin = any - any == A(0) ? any : A(0);
      auto s = from(origin);
      if (s[0] * s[0] > s[1] * s[2] * A(0.99)) {
        origin += s[0] / s[2];
        s = from(origin);
      }
      const A rest = s[0] / s[2];
      row.map(reads(dy, y), writes(dx), [=](auto d, auto p) {
        using V = decltype(d);
        return select(p > V(0), d - origin - rest, p);
      });
    });
  }
};

/// Bytes of workspace that sparsemax_forward takes along the columns.
template <class B = default_backend, class T>
std::size_t sparsemax_workspace(std::size_t cols, const context& ctx = default_context()) {
  return simd::scratch_workspace<B, accumulator_t<T>>(cols, 1, ctx);
}

/// Bytes of workspace that sparsemax_forward takes along an axis with `inner` elements behind it.
template <class B = default_backend, class T>
std::size_t sparsemax_workspace(std::size_t axis, std::size_t inner, const context& ctx = default_context()) {
  using tiles = detail::column_tiles<B>;
  const detail::sparsemax_columns::scratch_lines in(axis);
  return simd::scratch_workspace<tiles, accumulator_t<T>>(tiles::width_of_tops(axis, inner), in.lines(), ctx);
}

/// Bytes of workspace that sparsemax_backward takes; none along the last axis.
template <class B = default_backend, class T>
std::size_t sparsemax_backward_workspace(std::size_t axis, std::size_t inner, const context& ctx = default_context()) {
  using tiles = detail::column_tiles<B>;
  const std::size_t lines = detail::sparsemax_columns::backward_lines(axis);
  return simd::scratch_workspace<tiles, accumulator_t<T>>(tiles::width(inner), lines, ctx);
}

/// y from x along the columns. See sparsemax_options for the contract.
template <class B = default_backend, class T>
void sparsemax_forward(in_matrix<T> x, matrix_view<T> y, sparsemax_options opt = {}, context& ctx = default_context()) {
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
void sparsemax_forward(in_axis<T> x, axis_view<T> y, sparsemax_options opt = {}, context& ctx = default_context()) {
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
                        context& ctx = default_context()) {
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
                        context& ctx = default_context()) {
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

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_SPARSEMAX_HPP
