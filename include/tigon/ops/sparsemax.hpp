// Sparsemax along any axis, forward and backward.
#ifndef TIGON_OPS_SPARSEMAX_HPP
#define TIGON_OPS_SPARSEMAX_HPP

#include <tigon/ops/axis.hpp>
#include <tigon/ops/contract.hpp>
#include <tigon/simd/row.hpp>

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
/// Aliasing   forward: y may be x. backward: dx may be dy or y.
/// Throws     tigon::error: shape, stride, alias, workspace; before the first write.
/// Edges      -inf gives 0; what has only -inf, +inf or NaN along the axis is NaN throughout, and so is its dx.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square over the support, both ways
///            (tests/ops/sparsemax_test.cpp).
struct sparsemax_options {};

namespace detail {
inline namespace TIGON_ABI {

/// How far v lies above high + low, and whether it does.
template <class V, class L>
TIGON_INLINE pack<V, 2> excess(V v, L high, L low) {
  const V none(0), over = v - high - low;
  return {{max(none, over), select(over > none, V(1), none)}};
}

/// tau of one row: from below, until the support no longer shrinks. In two parts, the second far below the first, so
/// that neither a large x nor a small y costs a digit.
template <class A>
struct sparsemax_threshold {
  A high, low, support = std::numeric_limits<A>::infinity();

  /// From the sum of what lies above and the number of it; false when done.
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

/// Columns [first, first + count) of o, as rows: line `from` of the axis and what follows it.
template <class T>
TIGON_INLINE rows_of<T> lines(axis_view<T> v, std::size_t o, std::size_t from, std::size_t first, std::size_t count) {
  return {{v.line(o, from, first, count).data, v.axis - from, count, v.axis_stride},
          v.outer * v.axis * v.inner * sizeof(T)};
}

/// Tiles of an axis that is not the last: lanes are columns, about equally many in every tile.
template <class B>
struct column_tiles : B {
  static constexpr row_tuning row = [] {
    row_tuning one = B::row;
    one.task_elements = 1;  // a tile a task
    return one;
  }();
  static constexpr std::size_t most = 512;  // so that memory is read by the page

  static constexpr std::size_t width(std::size_t inner, std::size_t at_most = most) {
    const std::size_t tiles = (inner + at_most - 1) / at_most;
    return tiles == 0 ? 0 : std::min(inner, ((inner + tiles - 1) / tiles + 63) / 64 * 64);
  }
  static constexpr std::size_t count(std::size_t inner, std::size_t width) {
    return width == 0 ? 0 : (inner + width - 1) / width;
  }
  /// So many that the largest of every eight elements stay in the second-level cache.
  static constexpr std::size_t width_of_tops(std::size_t axis, std::size_t inner) {
    return width(inner, std::clamp<std::size_t>(16 * B::row.task_elements / axis / 64 * 64, 64, most));
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
      forward_columns<B>(x, y, ctx);
  }

  template <backend B, element T>
  static void backward(in_axis<T> dy, in_axis<T> y, axis_view<T> dx, sparsemax_options, context& ctx) {
    if (dy.is_last() && y.is_last() && dx.is_last())
      backward_rows<B>(dy.rows(), y.rows(), dx.rows(), ctx);
    else
      backward_columns<B>(dy, y, dx, ctx);
  }

  template <backend B, element T>
  static void forward_rows(matrix_view<const T> x, matrix_view<T> y, context& ctx) {
    using A = accumulator_t<T>;
    for_rows_with_scratch<B, A>(ctx, x.rows, x.cols, 1, [=] TIGON_FN(auto row) {
      const auto project = [=](auto worker, detail::sparsemax_threshold<A> t, auto from) {
        const auto above = [=](A high, A low) TIGON_LAMBDA {
          return worker.sum([=](auto v) { return detail::excess(v, high, low); }, from);
        };
        auto found = above(t.high, t.low);
        // As many as at the end of the rounds before, which are among them, are the same ones.
        if (found[1] != t.support) t.support = std::numeric_limits<A>::infinity();
        while (t.rise(found)) found = above(t.high, t.low);
        return t;
      };
      // The threshold of some elements is below that of all. So it rises from that of the largest of every 64 elements
      // to that of every 8, which leaves little to do for all of them.
      A* const tops = row.scratch(0).data;
      const std::size_t eighth = fold(row, in_vector<T>{x.row(row.i), row.cols}, tops);
      const bool again = eighth >= 64;
      const std::size_t few = again ? fold(row, in_vector<A>{tops, eighth}, tops + eighth) : eighth;
      const vector_view<const A> highest{again ? tops + eighth : tops, few};
      detail::sparsemax_threshold<A> t{row.narrow(few).max([](auto v) { return v; }, highest), A(-1)};
      t = project(row.narrow(few), t, highest);
      if (again) t = project(row.narrow(eighth), t, vector_view<const A>{tops, eighth});
      t = project(row, t, read_again(x));
      const A total = row.map_sum(
          y,
          [=](auto v) {
            const auto p = detail::excess(v, t.high, t.low).v[0];
            return pack{p, p};
          },
          x);
      if (math::is_nan(total))
        row.map(
            y, [](auto bad) { return bad; }, constant(total));
    });
  }

  /// The largest of every eight elements, which lie an eighth of the row apart, and what is left over; returns their
  /// number. A row of less than 64 is copied.
  template <class Row, class T, class A>
  static TIGON_INLINE std::size_t fold(Row row, vector_view<const T> x, A* out) {
    const std::size_t n = x.size < 64 ? 0 : x.size / 8;
    const auto part = [=](std::size_t k) { return vector_view<const T>{x.data + k * n, n}; };
    row.narrow(n).map(
        vector_view<A>{out, n},
        [](auto a, auto b, auto c, auto d, auto e, auto f, auto g, auto h) {
          return max(max(max(a, b), max(c, d)), max(max(e, f), max(g, h)));
        },
        part(0), part(1), part(2), part(3), part(4), part(5), part(6), part(7));
    const std::size_t rest = x.size - 8 * n;
    row.narrow(rest).map(
        vector_view<A>{out + n, rest}, [](auto v) { return v; }, vector_view<const T>{x.data + 8 * n, rest});
    return n + rest;
  }

  template <backend B, element T>
  static void backward_rows(matrix_view<const T> dy, matrix_view<const T> y, matrix_view<T> dx, context& ctx) {
    using A = accumulator_t<T>;
    for_rows<B, A>(ctx, y.rows, y.cols, [=] TIGON_FN(auto row) {
      // The mean of dy, of its square and the size of the support, all from a number near dy. Where the mean lies far
      // off compared with the deviation, it has lost digits, and is made once more.
      const auto from = [=](A near) {
        return row.sum(
            [=](auto d, auto p) {
              using V = decltype(d);
              const auto inside = p > V(0);
              const V c = select(inside, d - near, V(0));
              return pack{c, c * c, select(inside, V(1), V(0))};
            },
            read_again(dy), read_again(y));
      };
      const A any = row.at(dy, 0);
      A near = any - any == A(0) ? any : A(0);
      auto s = from(near);
      if (s[0] * s[0] > s[1] * s[2] * A(0.99)) {
        near += s[0] / s[2];
        s = from(near);
      }
      const A rest = s[0] / s[2];
      row.map(
          dx,
          [=](auto d, auto p) {
            using V = decltype(d);
            return select(p > V(0), d - near - rest, p);
          },
          dy, y);
    });
  }

  /// Along columns: lines whose sum is made apart.
  static constexpr std::size_t apart = 32;

  /// The lines of scratch that forward_columns takes: what every column has, the largest of every eight lines of the axis,
  /// and of every eight of those, where that is worth while.
  struct column_scratch {
    static constexpr std::size_t high = 0, low = 1, support = 2, sum = 3, number = 4, part = 5, tops = 6;
    std::size_t eighth, few;  // how many of the tops

    constexpr explicit column_scratch(std::size_t axis)
        : eighth(axis < 64 ? 0 : (axis + 7) / 8), few(eighth < 64 ? 0 : (eighth + 7) / 8) {}
    constexpr std::size_t lines() const { return tops + eighth + few; }
  };
  static constexpr std::size_t backward_lines = 7;

  /// f(k...), k = 0, ..., N - 1.
  template <std::size_t N, class F>
  static TIGON_INLINE auto at_once(F f) {
    return [&]<std::size_t... k>(std::index_sequence<k...>)
               TIGON_LAMBDA { return f(k...); }(std::make_index_sequence<N>{});
  }
  /// f(row, k...) for two lines of the axis at a time and one that is left over: row is on the first, operands
  /// detail::lines(v, o, k, ...) are the others.
  template <class Row, class F>
  static TIGON_INLINE void in_pairs(Row row, std::size_t first, std::size_t last, F f) {
    for (; first + 2 <= last; first += 2) f(row.asking(2).on(first), std::size_t{0}, std::size_t{1});
    if (first < last) f(row.on(first), std::size_t{0});
  }

  template <class Row, class A>
  static TIGON_INLINE void fill(Row row, vector_view<A> line, A value) {
    row.map(
        line, [](auto v) { return v; }, constant(value));
  }
  /// sum += part, and part is 0 again.
  template <class Row, class A>
  static TIGON_INLINE void add_part(Row row, vector_view<A> sum, vector_view<A> part) {
    row.map(
        outs(sum, part),
        [](auto s, auto p) {
          const decltype(s) zero(0);
          return pack{s + p, zero};
        },
        sum, part);
  }

  template <backend B, element T>
  static void forward_columns(axis_view<const T> x, axis_view<T> y, context& ctx) {
    using A = accumulator_t<T>;
    using tiles = detail::column_tiles<B>;
    constexpr A infinity = std::numeric_limits<A>::infinity();
    const std::size_t width = tiles::width_of_tops(x.axis, x.inner), n = tiles::count(x.inner, width);
    const column_scratch in(x.axis);
    for_rows_with_scratch<tiles, A>(ctx, x.outer * n, width, in.lines(), [=] TIGON_FN(auto worker) {
      const std::size_t o = worker.i / n, first = worker.i % n * width, count = std::min(width, x.inner - first);
      const auto row = worker.narrow(count);
      const auto high = row.scratch(in.high), low = row.scratch(in.low), support = row.scratch(in.support),
                 sum = row.scratch(in.sum), number = row.scratch(in.number), part = row.scratch(in.part);
      // What stands for line `at.i + k` of the axis, of the largest of every eight, and of those.
      const auto all = [=](auto, std::size_t k) TIGON_LAMBDA { return detail::lines(x, o, k, first, count); };
      const auto eighth = [=](auto at, std::size_t k) TIGON_LAMBDA { return row.scratch(in.tops + at.i + k); };
      const auto few = [=](auto at, std::size_t k) TIGON_LAMBDA { return row.scratch(in.tops + in.eighth + at.i + k); };

      const auto larger = [=](vector_view<A> top, auto line, std::size_t begin, std::size_t end) TIGON_LAMBDA {
        for (; begin < end; ++begin) {
          const auto at = row.on(begin);
          at.map(
              top, [](auto t, auto v) { return max(t, v); }, top, line(at, 0));
        }
      };
      const auto fold = [=](auto line, std::size_t lines, auto to) TIGON_LAMBDA {
        for (std::size_t k = 0; 8 * k < lines; ++k) {
          const auto at = row.asking(8).on(8 * k);
          const auto top = to(row.on(k), 0);
          if (at.i + 8 <= lines) {
            at_once<8>([=](auto... j) TIGON_LAMBDA {
              at.map(
                  top,
                  [](auto a, auto b, auto c, auto d, auto e, auto f, auto g, auto h) {
                    return max(max(max(a, b), max(c, d)), max(max(e, f), max(g, h)));
                  },
                  line(at, j)...);
            });
          } else {
            fill(row, top, -infinity);
            larger(top, line, at.i, lines);
          }
        }
      };
      // The rounds of forward_rows.
      const auto project = [=](auto line, std::size_t lines) TIGON_LAMBDA {
        fill(row, support, infinity);
        for (A moved(1); moved > A(0);) {
          for (std::size_t begin = 0; begin < lines; begin += apart) {
            in_pairs(row, begin, std::min(begin + apart, lines), [=](auto at, auto... k) TIGON_LAMBDA {
              at.map(
                  outs(part, number),
                  [](auto h, auto l, auto s, auto m, auto... v) {
                    const std::array e{detail::excess(v, h, l)...};
                    return at_once<sizeof...(v)>([=](auto... j) TIGON_LAMBDA {
                      return pack{s + (e[j].v[0] + ...), m + (e[j].v[1] + ...)};
                    });
                  },
                  high, low, part, number, line(at, k)...);
            });
            add_part(row, sum, part);
          }
          // As sparsemax_threshold; a column that is done has a support of 0 and keeps what it has.
          moved = row.map_sum(
              outs(high, low, support, sum, number),
              [](auto s, auto k, auto h, auto l, auto before) {
                using V = decltype(s);
                const V zero(0), next = l + (s - V(1)) / k;
                const auto shrinks = k < before;
                const V total = select(shrinks, h + next, h);
                return pack{total,
                            select(before > zero, next - (total - h), l),
                            select(shrinks, k, zero),
                            zero,
                            zero,
                            select(shrinks, V(1), zero)};
              },
              sum, number, high, low, support);
        }
      };

      fill(row, high, -infinity), fill(row, low, A(-1));
      for (const auto zero : {sum, number, part}) fill(row, zero, A(0));
      if (in.eighth != 0) fold(all, x.axis, eighth);
      if (in.few != 0) {
        fold(eighth, in.eighth, few);
        larger(high, few, 0, in.few);
        project(few, in.few);
      } else if (in.eighth != 0) {
        larger(high, eighth, 0, in.eighth);
      } else {
        larger(high, all, 0, x.axis);
      }
      if (in.eighth != 0) project(eighth, in.eighth);
      project(all, x.axis);
      in_pairs(row, 0, x.axis, [=](auto at, auto... k) TIGON_LAMBDA {
        at.map(
            outs(detail::lines(y, o, k, first, count)...),
            [](auto h, auto l, auto... v) { return pack{detail::excess(v, h, l).v[0]...}; }, high, low, all(at, k)...);
      });
    });
  }

  template <backend B, element T>
  static void backward_columns(axis_view<const T> dy, axis_view<const T> y, axis_view<T> dx, context& ctx) {
    using A = accumulator_t<T>;
    using tiles = detail::column_tiles<B>;
    constexpr A infinity = std::numeric_limits<A>::infinity();
    const std::size_t width = tiles::width(y.inner), n = tiles::count(y.inner, width);
    for_rows_with_scratch<tiles, A>(ctx, y.outer * n, width, backward_lines, [=] TIGON_FN(auto worker) {
      const std::size_t o = worker.i / n, first = worker.i % n * width, count = std::min(width, y.inner - first);
      const auto row = worker.narrow(count);
      const auto near = row.scratch(0);
      const std::array sum{row.scratch(1), row.scratch(2), row.scratch(3)};
      const std::array part{row.scratch(4), row.scratch(5), row.scratch(6)};
      // As in backward_rows; where one column's mean is made once more, those of the tile are.
      row.map(
          near, [](auto d) { return select(d - d == decltype(d)(0), d, decltype(d)(0)); }, dy.line(o, 0, first, count));
      A moved(1);
      for (const A share : {A(0.99), infinity}) {
        if (!(moved > A(0))) break;
        for (std::size_t k = 0; k < 3; ++k) fill(row, sum[k], A(0)), fill(row, part[k], A(0));
        for (std::size_t begin = 0; begin < y.axis; begin += apart) {
          in_pairs(row, begin, std::min(begin + apart, y.axis), [=](auto at, auto... k) TIGON_LAMBDA {
            at.map(
                outs(part[0], part[1], part[2]),
                [](auto m, auto s, auto squares, auto number, auto... v) {
                  using V = decltype(m);
                  constexpr std::size_t lines = sizeof...(v) / 2;
                  const std::array dp{v...};
                  return at_once<lines>([=](auto... j) TIGON_LAMBDA {
                    const std::array c{select(dp[lines + j] > V(0), dp[j] - m, V(0))...};
                    return pack{s + (c[j] + ...), squares + ((c[j] * c[j]) + ...),
                                number + (select(dp[lines + j] > V(0), V(1), V(0)) + ...)};
                  });
                },
                near, part[0], part[1], part[2], detail::lines(dy, o, k, first, count)...,
                detail::lines(y, o, k, first, count)...);
          });
          for (std::size_t k = 0; k < 3; ++k) add_part(row, sum[k], part[k]);
        }
        moved = row.map_sum(
            outs(near, sum[0]),
            [=](auto m, auto s, auto squares, auto number) {
              using V = decltype(m);
              const V mean = s / number;
              const auto far = s * s > squares * number * V(share);
              return pack{select(far, m + mean, m), mean, select(far, V(1), V(0))};
            },
            near, sum[0], sum[1], sum[2]);
      }
      in_pairs(row, 0, y.axis, [=](auto at, auto... k) TIGON_LAMBDA {
        at.map(
            outs(detail::lines(dx, o, k, first, count)...),
            [](auto m, auto rest, auto... v) {
              using V = decltype(m);
              constexpr std::size_t lines = sizeof...(v) / 2;
              const std::array dp{v...};
              return at_once<lines>([=](auto... j) TIGON_LAMBDA {
                return pack{select(dp[lines + j] > V(0), dp[j] - m - rest, dp[lines + j])...};
              });
            },
            near, sum[0], detail::lines(dy, o, k, first, count)..., detail::lines(y, o, k, first, count)...);
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
  const typename kernel<op::sparsemax, backends::generic>::column_scratch in(axis);
  return simd::scratch_workspace<tiles, accumulator_t<T>>(tiles::width_of_tops(axis, inner), in.lines(), ctx);
}

/// Bytes of workspace that sparsemax_backward takes; none along the last axis.
template <class B = default_backend, class T>
std::size_t sparsemax_backward_workspace(std::size_t axis, std::size_t inner, const context& ctx = default_context()) {
  (void)axis;
  using tiles = detail::column_tiles<B>;
  constexpr std::size_t lines = kernel<op::sparsemax, backends::generic>::backward_lines;
  return simd::scratch_workspace<tiles, accumulator_t<T>>(tiles::width(inner), lines, ctx);
}

/// y from x along the columns. See sparsemax_options for the contract.
template <class B = default_backend, class T>
void sparsemax_forward(in_matrix<T> x, matrix_view<T> y, sparsemax_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const expects expect("sparsemax_forward");
  expect.at_least_one("cols", x.cols);
  expect.memory("x", x);
  expect.matrix("y", y, x.rows, x.cols);
  expect.same_or_disjoint("y", y, "x", x);
  ctx.workspace().expect("sparsemax_forward", sparsemax_workspace<B, T>(x.cols, ctx));
  kernel_for<op::sparsemax, B>::template forward<B, T>(axis_view(x), axis_view(y), opt, ctx);
}

/// y from x along any axis. See sparsemax_options for the contract.
template <class B = default_backend, class T>
void sparsemax_forward(in_axis<T> x, axis_view<T> y, sparsemax_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const expects expect("sparsemax_forward");
  expect.at_least_one("axis", x.axis);
  detail::expect_axis("sparsemax_forward", "x", x, x);
  detail::expect_axis("sparsemax_forward", "y", y, x);
  expect.same_or_disjoint("y", y.heads().memory(), "x", x.heads().memory());
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
  const expects expect("sparsemax_backward");
  expect.at_least_one("cols", y.cols);
  expect.memory("y", y);
  expect.matrix("dy", dy, y.rows, y.cols);
  expect.matrix("dx", dx, y.rows, y.cols);
  expect.same_or_disjoint("dx", dx, "dy", dy);
  expect.same_or_disjoint("dx", dx, "y", y);
  kernel_for<op::sparsemax, B>::template backward<B, T>(axis_view(dy), axis_view(y), axis_view(dx), opt, ctx);
}

/// dx from dy and y along any axis. See sparsemax_options for the contract.
template <class B = default_backend, class T>
void sparsemax_backward(in_axis<T> dy, in_axis<T> y, axis_view<T> dx, sparsemax_options opt = {},
                        context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const expects expect("sparsemax_backward");
  expect.at_least_one("axis", y.axis);
  detail::expect_axis("sparsemax_backward", "y", y, y);
  detail::expect_axis("sparsemax_backward", "dy", dy, y);
  detail::expect_axis("sparsemax_backward", "dx", dx, y);
  expect.same_or_disjoint("dx", dx.heads().memory(), "dy", dy.heads().memory());
  expect.same_or_disjoint("dx", dx.heads().memory(), "y", y.heads().memory());
  if (!dy.is_last() || !y.is_last() || !dx.is_last())
    ctx.workspace().expect("sparsemax_backward", sparsemax_backward_workspace<B, T>(y.axis, y.inner, ctx));
  kernel_for<op::sparsemax, B>::template backward<B, T>(dy, y, dx, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_SPARSEMAX_HPP
