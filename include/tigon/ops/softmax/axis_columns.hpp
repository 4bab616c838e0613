// Sparsemax along an axis that is not the last: lanes are columns.
#ifndef TIGON_OPS_SOFTMAX_AXIS_COLUMNS_HPP
#define TIGON_OPS_SOFTMAX_AXIS_COLUMNS_HPP

#include <tigon/ops/softmax/axis_lines.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Forward and backward of kernel<op::sparsemax, generic> along such an axis.
struct sparsemax_columns {
  /// A sum over the axis is made of partial sums of `apart` lines; after `plain` lines it is added to a compensated
  /// total. So neither the rounding error nor that of a count grows with the axis.
  static constexpr std::size_t apart = 32, plain = simd::plain_rows * apart;

  /// The lines of scratch that forward takes: tau, support and sums of every column; the largest of every eight lines
  /// of the axis, and of every eight of those, where that pays; behind them the totals of the sum and of the number.
  struct scratch_lines {
    static constexpr std::size_t high = 0, low = 1, support = 2, sum = 3, number = 4, part = 5, tops = 6;
    std::size_t eighth, few;  // how many of the tops
    bool totals;

    constexpr explicit scratch_lines(std::size_t axis)
        : eighth(axis < 64 ? 0 : (axis + 7) / 8), few(eighth < 64 ? 0 : (eighth + 7) / 8), totals(axis > plain) {}
    constexpr std::size_t of_totals() const { return tops + eighth + few; }
    constexpr std::size_t lines() const { return of_totals() + (totals ? 4 : 0); }
  };
  /// Of backward: the origin of the sums, three sums, their parts and their totals.
  static constexpr std::size_t backward_lines(std::size_t axis) { return axis > plain ? 13 : 7; }

  /// f(k...), k = 0, ..., N - 1.
  template <std::size_t N, class F>
  static TIGON_INLINE auto at_once(F f) {
    return [&]<std::size_t... k>(std::index_sequence<k...>)
               TIGON_LAMBDA { return f(k...); }(std::make_index_sequence<N>{});
  }
  /// f(row, k...) for two lines of the axis at a time and one that is left over: row is on the first, operands
  /// lines_from(v, o, k, ...) are the others.
  template <class Row, class F>
  static TIGON_INLINE void in_pairs(Row row, std::size_t first, std::size_t last, F f) {
    for (; first + 2 <= last; first += 2) f(row.on(first, 2), std::size_t{0}, std::size_t{1});
    if (first < last) f(row.on(first), std::size_t{0});
  }

  template <class Row, class A>
  static TIGON_INLINE void fill(Row row, vector_view<A> line, A value) {
    row.map(reads(constant(value)), writes(line), [](auto v) { return v; });
  }
  /// sum += part, and part is 0 again.
  template <class Row, class A>
  static TIGON_INLINE void add_part(Row row, vector_view<A> sum, vector_view<A> part) {
    row.map(reads(sum, part), writes(sum, part), [](auto s, auto p) {
      const decltype(s) zero(0);
      return pack{s + p, zero};
    });
  }

  /// A sum's compensated total, two lines.
  template <class A>
  struct total {
    vector_view<A> sum, high, low;

    /// The total += sum, and sum is 0 again.
    template <class Row>
    TIGON_INLINE void add(Row row) const {
      row.map(reads(high, low, sum), writes(high, low, sum), [](auto h, auto l, auto s) {
        const auto t = simd::add_compensated(h, l, s);
        return pack{t.v[0], t.v[1], decltype(s)(0)};
      });
    }
    /// sum += the total, and the total is 0 again.
    template <class Row>
    TIGON_INLINE void take(Row row) const {
      row.map(reads(high, low, sum), writes(high, low, sum), [](auto h, auto l, auto s) {
        const auto t = simd::add_compensated(h, l, s);
        const decltype(s) zero(0);
        return pack{zero, zero, t.v[0] + t.v[1]};
      });
    }
  };

  /// top = the largest of top and lines [begin, end).
  template <class Row, class A, class Line>
  static TIGON_INLINE void raise(const Row& row, vector_view<A> top, Line line, std::size_t begin, std::size_t end) {
    for (; begin < end; ++begin)
      row.on(begin).map(reads(top, line(row.on(begin), 0)), writes(top), [](auto t, auto v) { return max(t, v); });
  }
  /// to = the largest of every eight lines.
  template <class A, class Row, class Line, class To>
  static TIGON_INLINE void fold(const Row& row, Line line, std::size_t lines, To to) {
    for (std::size_t k = 0; 8 * k < lines; ++k) {
      const auto at = row.on(8 * k, 8);
      const auto top = to(row.on(k), 0);
      if (at.i + 8 <= lines) {
        at_once<8>([=](auto... j) TIGON_LAMBDA { at.map(reads(line(at, j)...), writes(top), largest_of_eight); });
      } else {
        fill(row, top, -std::numeric_limits<A>::infinity());
        raise(row, top, line, at.i, lines);
      }
    }
  }

  template <backend B, element T>
  static void forward(axis_view<const T> x, axis_view<T> y, context& ctx) {
    using A = accumulator_t<T>;
    using tiles = column_tiles<B>;
    constexpr A infinity = std::numeric_limits<A>::infinity();
    const std::size_t width = tiles::width_of_tops(x.axis, x.inner), n = tiles::count(x.inner, width);
    const scratch_lines in(x.axis);
    for_rows<B, A>(ctx, x.outer * n, width, {.scratch = in.lines(), .row_tasks = true}, [=] TIGON_FN(auto worker) {
      const std::size_t o = worker.i / n, first = worker.i % n * width, count = std::min(width, x.inner - first);
      const auto row = worker.part(0, count);
      const auto high = row.scratch(in.high), low = row.scratch(in.low), support = row.scratch(in.support),
                 sum = row.scratch(in.sum), number = row.scratch(in.number), part = row.scratch(in.part);
      const auto of_totals = [=](std::size_t k) TIGON_LAMBDA { return row.scratch(in.of_totals() + k); };
      const auto total_of = [=](vector_view<A> of, std::size_t k) TIGON_LAMBDA {
        return total<A>{of, of_totals(k), of_totals(k + 1)};
      };
      // Line `at.i + k` of the axis; the largest of every eight lines; the largest of every eight of those.
      const auto all = [=](auto, std::size_t k) TIGON_LAMBDA { return lines_from(x, o, k, first, count); };
      const auto eighth = [=](auto at, std::size_t k) TIGON_LAMBDA { return row.scratch(in.tops + at.i + k); };
      const auto few = [=](auto at, std::size_t k) TIGON_LAMBDA { return row.scratch(in.tops + in.eighth + at.i + k); };

      // The rounds of forward_rows.
      const auto project = [=](auto line, std::size_t lines) TIGON_LAMBDA {
        fill(row, support, infinity);
        for (A moved(1); moved > A(0);) {
          for (std::size_t begin = 0; begin < lines; begin += apart) {
            in_pairs(row, begin, std::min(begin + apart, lines), [=](auto at, auto... k) TIGON_LAMBDA {
              at.map(reads(high, low, part, number, line(at, k)...), writes(part, number),
                     [](auto h, auto l, auto s, auto m, auto... v) {
                       const std::array e{excess(v, h, l)...};
                       return at_once<sizeof...(v)>([=](auto... j) TIGON_LAMBDA {
                         return pack{s + (e[j].v[0] + ...), m + (e[j].v[1] + ...)};
                       });
                     });
            });
            add_part(row, sum, part);
            if (in.totals && (begin + apart) % plain == 0) total_of(sum, 0).add(row), total_of(number, 2).add(row);
          }
          if (in.totals) total_of(sum, 0).take(row), total_of(number, 2).take(row);
          // As sparsemax_threshold; a column that is done has a support of 0 and keeps what it has.
          moved = row.map_sum(reads(sum, number, high, low, support), writes(high, low, support, sum, number),
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
                              });
        }
      };

      fill(row, high, -infinity), fill(row, low, A(-1));
      for (const auto zero : {sum, number, part}) fill(row, zero, A(0));
      for (std::size_t k = 0; in.totals && k < 4; ++k) fill(row, of_totals(k), A(0));
      if (in.eighth != 0) fold<A>(row, all, x.axis, eighth);
      if (in.few != 0) {
        fold<A>(row, eighth, in.eighth, few);
        raise(row, high, few, 0, in.few);
        project(few, in.few);
      } else if (in.eighth != 0) {
        raise(row, high, eighth, 0, in.eighth);
      } else {
        raise(row, high, all, 0, x.axis);
      }
      if (in.eighth != 0) project(eighth, in.eighth);
      project(all, x.axis);
      in_pairs(row, 0, x.axis, [=](auto at, auto... k) TIGON_LAMBDA {
        at.map(reads(high, low, all(at, k)...), writes(lines_from(y, o, k, first, count)...),
               [](auto h, auto l, auto... v) { return pack{excess(v, h, l).v[0]...}; });
      });
    });
  }

  template <backend B, element T>
  static void backward(axis_view<const T> dy, axis_view<const T> y, axis_view<T> dx, context& ctx) {
    using A = accumulator_t<T>;
    using tiles = column_tiles<B>;
    constexpr A infinity = std::numeric_limits<A>::infinity();
    const std::size_t width = tiles::width(y.inner), n = tiles::count(y.inner, width);
    const bool totals = y.axis > plain;
    for_rows<B, A>(
        ctx, y.outer * n, width, {.scratch = backward_lines(y.axis), .row_tasks = true}, [=] TIGON_FN(auto task) {
          const std::size_t o = task.i / n, first = task.i % n * width, count = std::min(width, y.inner - first);
          const auto row = task.part(0, count);
          const auto origin = row.scratch(0);
          const std::array sum{row.scratch(1), row.scratch(2), row.scratch(3)};
          const std::array part{row.scratch(4), row.scratch(5), row.scratch(6)};
          const auto total_of = [=](std::size_t k) TIGON_LAMBDA {
            return total<A>{sum[k], row.scratch(7 + 2 * k), row.scratch(8 + 2 * k)};
          };
          for (std::size_t k = 7; totals && k < 13; ++k) fill(row, row.scratch(k), A(0));
          // As in backward_rows. Where the sums of one column are computed once more, those of the whole tile are.
          row.map(reads(dy.line(o, 0, first, count)), writes(origin),
                  [](auto d) { return select(d - d == decltype(d)(0), d, decltype(d)(0)); });
          A moved(1);
          for (const A share : {A(0.99), infinity}) {
            if (!(moved > A(0))) break;
            for (std::size_t k = 0; k < 3; ++k) fill(row, sum[k], A(0)), fill(row, part[k], A(0));
            for (std::size_t begin = 0; begin < y.axis; begin += apart) {
              in_pairs(row, begin, std::min(begin + apart, y.axis), [=](auto at, auto... k) TIGON_LAMBDA {
                at.map(reads(origin, part[0], part[1], part[2], lines_from(dy, o, k, first, count)...,
                             lines_from(y, o, k, first, count)...),
                       writes(part[0], part[1], part[2]), [](auto m, auto s, auto squares, auto number, auto... v) {
                         using V = decltype(m);
                         constexpr std::size_t lines = sizeof...(v) / 2;
                         const std::array dp{v...};
                         return at_once<lines>([=](auto... j) TIGON_LAMBDA {
                           const std::array c{select(dp[lines + j] > V(0), dp[j] - m, V(0))...};
                           return pack{s + (c[j] + ...), squares + ((c[j] * c[j]) + ...),
                                       number + (select(dp[lines + j] > V(0), V(1), V(0)) + ...)};
                         });
                       });
              });
              for (std::size_t k = 0; k < 3; ++k) add_part(row, sum[k], part[k]);
              for (std::size_t k = 0; k < 3 && totals && (begin + apart) % plain == 0; ++k) total_of(k).add(row);
            }
            for (std::size_t k = 0; k < 3 && totals; ++k) total_of(k).take(row);
            moved = row.map_sum(reads(origin, sum[0], sum[1], sum[2]), writes(origin, sum[0]),
                                [=](auto m, auto s, auto squares, auto number) {
                                  using V = decltype(m);
                                  const V mean = s / number;
                                  const auto distant = s * s > squares * number * V(share);
                                  return pack{select(distant, m + mean, m), mean, select(distant, V(1), V(0))};
                                });
          }
          in_pairs(row, 0, y.axis, [=](auto at, auto... k) TIGON_LAMBDA {
            at.map(reads(origin, sum[0], lines_from(dy, o, k, first, count)..., lines_from(y, o, k, first, count)...),
                   writes(lines_from(dx, o, k, first, count)...), [](auto m, auto rest, auto... v) {
                     using V = decltype(m);
                     constexpr std::size_t lines = sizeof...(v) / 2;
                     const std::array dp{v...};
                     return at_once<lines>([=](auto... j) TIGON_LAMBDA {
                       return pack{select(dp[lines + j] > V(0), dp[j] - m - rest, dp[lines + j])...};
                     });
                   });
          });
        });
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_SOFTMAX_AXIS_COLUMNS_HPP
