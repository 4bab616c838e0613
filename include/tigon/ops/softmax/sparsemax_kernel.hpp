// The generic kernel of sparsemax.
#ifndef TIGON_OPS_SOFTMAX_SPARSEMAX_KERNEL_HPP
#define TIGON_OPS_SOFTMAX_SPARSEMAX_KERNEL_HPP

#include <tigon/ops/softmax/axis_columns.hpp>
#include <tigon/ops/softmax/sparsemax_options.hpp>
#include <tigon/rows/row.hpp>

namespace tigon {

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
    for_rows<B, A>(ctx, x.rows, x.cols, {.scratch = 1}, [=] TIGON_FN(auto row) {
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
      detail::sparsemax_threshold<A> t{row.part(0, few).max(reads(highest), [](auto v) { return v; }), A(-1)};
      t = project(row.part(0, few), t, highest);
      if (again) t = project(row.part(0, eighth), t, vector_view<const A>{tops, eighth});
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
    row.part(0, n).map(reads(part(0), part(1), part(2), part(3), part(4), part(5), part(6), part(7)),
                       writes(vector_view<A>{out, n}), detail::largest_of_eight);
    const std::size_t rest = x.size - 8 * n;
    row.part(0, rest).map(reads(vector_view<const T>{x.data + 8 * n, rest}), writes(vector_view<A>{out + n, rest}),
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
std::size_t sparsemax_workspace(std::size_t cols, const context& ctx = default_context<B>()) {
  return simd::scratch_workspace<B, accumulator_t<T>>(cols, 1, ctx);
}

/// Bytes of workspace that sparsemax_forward takes along an axis with `inner` elements behind it.
template <class B = default_backend, class T>
std::size_t sparsemax_workspace(std::size_t axis, std::size_t inner, const context& ctx = default_context<B>()) {
  using tiles = detail::column_tiles<B>;
  const detail::sparsemax_columns::scratch_lines in(axis);
  return simd::scratch_workspace<B, accumulator_t<T>>(tiles::width_of_tops(axis, inner), in.lines(), ctx);
}

}  // namespace tigon

#endif  // TIGON_OPS_SOFTMAX_SPARSEMAX_KERNEL_HPP
