// Sparsemax along the last axis, a row at a time. Of a row with several blocks, those without an element of the
// support are left where they are while the threshold rises. Along other axes it is the parent's.
#ifndef TIGON_BACKENDS_ASCEND_SPARSEMAX_HPP
#define TIGON_BACKENDS_ASCEND_SPARSEMAX_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/sparsemax.hpp>

namespace tigon {

template <>
struct kernel<op::sparsemax, backends::ascend> {
  template <class>
  using saved = no_state;
  using parents = kernel_for<op::sparsemax, backends::ascend::parent>;

  template <backend B, element T>
  static void forward(in_axis<T> x, axis_view<T> y, sparsemax_options opt, context& ctx) {
    if (x.is_last() && y.is_last())
      forward_rows<B>(x.rows(), y.rows(), ctx);
    else
      parents::template forward<B, T>(x, y, opt, ctx);
  }
  template <backend B, element T>
  static void backward(in_axis<T> dy, in_axis<T> y, axis_view<T> dx, sparsemax_options opt, context& ctx) {
    if (dy.is_last() && y.is_last() && dx.is_last())
      backward_rows<B>(dy.rows(), y.rows(), dx.rows(), ctx);
    else
      parents::template backward<B, T>(dy, y, dx, opt, ctx);
  }

  template <class Plan>
  static constexpr ub::cut one_row(std::size_t cols) {
    return {1, std::min(cols, Plan::block), Plan::programs};
  }

  /// Elements of which the largest is kept: a power of two, as blocks are, and few enough of them for a tile.
  template <class Plan>
  static constexpr std::size_t group_width(std::size_t cols) {
    constexpr std::size_t most = std::min<std::size_t>(Plan::block, 256);
    return tiling::next_power_of_two(std::max<std::size_t>(ub::ceil_div(cols, most), 64));
  }

  template <backend B, element T>
  static void forward_rows(matrix_view<const T> x, matrix_view<T> y, context& ctx) {
    using A = accumulator_t<T>;
    using plan = ub::plan<B, op::sparsemax, tiling::pass::forward, A>;
    using threshold = detail::sparsemax_threshold<A>;
    constexpr A infinity = std::numeric_limits<A>::infinity();
    const std::size_t width = group_width<plan>(x.cols), groups = ub::ceil_div(x.cols, width);
    ub::for_row_blocks<plan>(
        ctx, x.rows, x.cols, one_row<plan>(x.cols),
        [=](auto& core, auto& xt, auto& yt, auto& tops) TIGON_LAMBDA {
          A* const top = tops.data;
          std::fill(top, top + groups, -infinity);
          core.pass(ub::reads(xt), ub::writes(), [&](auto row, auto xv) TIGON_LAMBDA {
            for (std::size_t first = 0; first < row.cols; first += width) {
              A& t = top[(core.col + first) / width];
              const auto group = row.part(first, std::min(width, row.cols - first));
              t = math::max(t, group.max(reads(xv), [](auto v) { return v; }));
            }
          });
          const auto highest = [=](std::size_t begin, std::size_t end) TIGON_LAMBDA {
            A all = -infinity;
            for (std::size_t k = begin / width; k * width < end; ++k) all = math::max(all, top[k]);
            return all;
          };
          // The threshold of some elements is a lower bound of that of all: first that of the largest of every group.
          threshold t{highest(0, x.cols), A(-1)};
          const auto above = [&](auto row, auto from) TIGON_LAMBDA {
            return row.sum(reads(from), [=](auto v) { return detail::excess(v, t.high, t.low); });
          };
          while (t.rise(above(simd::row_worker<B, A>(0, groups), vector_view<const A>{top, groups}))) {
          }
          t = threshold{t.high, t.low};
          const auto support = [&]() TIGON_LAMBDA {
            std::array<double, 2> all{};
            for (std::size_t j = 0; j < core.col_blocks(); ++j) {
              core.cols_at(j);
              if (!(highest(core.col, core.col + core.col_count) - t.high > t.low)) continue;
              core.part(ub::reads(xt), ub::writes(), [&](auto row, auto xv) TIGON_LAMBDA {
                const auto s = above(row, xv);
                all[0] += s[0], all[1] += s[1];
              });
            }
            return std::array{static_cast<A>(all[0]), static_cast<A>(all[1])};
          };
          while (t.rise(support())) {
          }
          A total(0);
          core.pass(ub::reads(xt), ub::writes(yt), [&](auto row, auto xv, auto yv) TIGON_LAMBDA {
            total += row.map_sum(reads(xv), writes(yv), [=](auto v) {
              const auto p = detail::excess(v, t.high, t.low).v[0];
              return pack{p, p};
            });
          });
          if (math::is_nan(total))
            core.pass(ub::reads(), ub::writes(yt), [=](auto row, auto yv) TIGON_LAMBDA {
              row.map(reads(constant(total)), writes(yv), [](auto bad) { return bad; });
            });
        },
        x, y, ub::scratch<A>{});
  }

  template <backend B, element T>
  static void backward_rows(matrix_view<const T> dy, matrix_view<const T> y, matrix_view<T> dx, context& ctx) {
    using A = accumulator_t<T>;
    using plan = ub::plan<B, op::sparsemax, tiling::pass::backward, A>;
    ub::for_row_blocks<plan>(
        ctx, y.rows, y.cols, one_row<plan>(y.cols),
        [=](auto& core, auto& dt, auto& yt, auto& dxt) TIGON_LAMBDA {
          // As the parent: the mean from an origin close to dy, once more where it is far from that compared with the
          // deviation.
          const auto from = [&](A origin) TIGON_LAMBDA {
            std::array<double, 3> all{};
            core.pass(ub::reads(dt, yt), ub::writes(), [&](auto row, auto dv, auto yv) TIGON_LAMBDA {
              const auto s = row.sum(reads(dv, yv), [=](auto d, auto p) {
                using V = decltype(d);
                const auto inside = p > V(0);
                const V c = select(inside, d - origin, V(0));
                return pack{c, c * c, select(inside, V(1), V(0))};
              });
              for (std::size_t k = 0; k < 3; ++k) all[k] += s[k];
            });
            return std::array{static_cast<A>(all[0]), static_cast<A>(all[1]), static_cast<A>(all[2])};
          };
          const A any = static_cast<A>(*dy.row(core.row));
          A origin = any - any == A(0) ? any : A(0);
          auto s = from(origin);
          if (s[0] * s[0] > s[1] * s[2] * A(0.99)) {
            origin += s[0] / s[2];
            s = from(origin);
          }
          const A rest = s[0] / s[2];
          core.pass(ub::reads(dt, yt), ub::writes(dxt), [=](auto row, auto dv, auto yv, auto dxv) TIGON_LAMBDA {
            row.map(reads(dv, yv), writes(dxv), [=](auto d, auto p) {
              using V = decltype(d);
              return select(p > V(0), d - origin - rest, p);
            });
          });
        },
        dy, y, dx);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_SPARSEMAX_HPP
