// PolyNorm: short rows several at a time, long rows in blocks of columns, twice; rows that f32 does not hold in f64.
#ifndef TIGON_BACKENDS_ASCEND_POLY_NORM_HPP
#define TIGON_BACKENDS_ASCEND_POLY_NORM_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/poly_norm.hpp>

namespace tigon {

template <>
struct kernel<op::poly_norm, backends::ascend> {
  using lanes = kernel<op::poly_norm, backends::generic>;
  template <class A>
  using saved = std::span<A>;  // rstd_3, rstd_2, rstd_1 of the first row, of the second, ...
  template <class A>
  using of_powers = detail::of_powers<A>;
  using scaled = std::array<double, 4>;  ///< of the powers of a row that was multiplied by the last, a power of two

  template <backend B, element T, element W, element P>
  static void forward(in_matrix<T> x, in_vector<W> w, in_vector<P> b, matrix_view<T> y,
                      std::span<accumulator_t<T>> rstd, poly_norm_options opt, context& ctx) {
    using A = accumulator_t<T>;
    using plan = ub::plan<B, op::poly_norm, tiling::pass::forward, A>;
    const auto weight = lanes::template numbers<A>(w.data);
    const A bias = static_cast<A>(b.data[0]), n = static_cast<A>(x.cols), eps = static_cast<A>(opt.eps);
    const double wide_n = static_cast<double>(x.cols), wide_eps = opt.eps;
    ub::for_row_blocks<plan>(
        ctx, x.rows, x.cols, plan::cut_of(x.cols),
        [=](auto& core, auto& xt, auto& yt, auto& r, auto& q) TIGON_LAMBDA {
          core.each_row([=](std::size_t i) TIGON_LAMBDA { q[i] = {}; });
          core.pass(ub::reads(xt), ub::writes(),
                    [=](auto row, auto xv) TIGON_LAMBDA { add(q[row.i], powers(row, xv)); });
          bool held = true;
          core.each_row([&](std::size_t i) TIGON_LAMBDA {
            const auto s = lanes::template numbers<A>(q[i].data());
            r[i] = detail::rstd_of_powers(s[0], s[1], s[2], n, eps), q[i] = {};
            held &= lanes::holds(r[i][0]);
          });
          if (!held) {
            core.pass(ub::reads(xt), ub::writes(), [=](auto row, auto xv) TIGON_LAMBDA {
              if (!lanes::holds(r[row.i][0])) q[row.i][3] = math::max(q[row.i][3], lanes::largest(row, xv));
            });
            core.each_row([=](std::size_t i) TIGON_LAMBDA { q[i][3] = lanes::scale_of(q[i][3], wide_eps); });
            core.pass(ub::reads(xt), ub::writes(), [=](auto row, auto xv) TIGON_LAMBDA {
              if (!lanes::holds(r[row.i][0])) add(q[row.i], powers_in_f64(row, xv, q[row.i][3]));
            });
            core.each_row([=](std::size_t i) TIGON_LAMBDA {
              put(q[i], detail::rstd_of_scaled_powers(q[i][0], q[i][1], q[i][2], wide_n, wide_eps, q[i][3]));
            });
          }
          core.pass(ub::reads(xt), ub::writes(yt), [=](auto row, auto xv, auto yv) TIGON_LAMBDA {
            if (lanes::holds(r[row.i][0]))
              return row.map(reads(xv), writes(yv), detail::polynomial<A>(weight, r[row.i], bias));
            const detail::polynomial<double> f(weight, lanes::template numbers<double>(q[row.i].data()), bias);
            for (std::size_t j = 0; j < row.cols; ++j)
              yv.data[j] = static_cast<T>(static_cast<A>(f(number(row, xv, j, q[row.i][3])).r));
          });
          core.each_row([=](std::size_t i) TIGON_LAMBDA {
            if (!lanes::holds(r[i][0]))
              r[i] = detail::unscaled<A>(lanes::template numbers<double>(q[i].data()), q[i][3]);
          });
          core.store(r);
        },
        x, y, ub::column(reinterpret_cast<of_powers<A>*>(rstd.data())), ub::local<scaled>{});
  }

  template <backend B, element T, element W, element P>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, std::span<const accumulator_t<T>> rstd,
                       matrix_view<T> dx, vector_view<W> dw, vector_view<P> db, poly_norm_options opt, context& ctx) {
    using A = accumulator_t<T>;
    using plan = ub::plan<B, op::poly_norm, tiling::pass::backward, A>;
    using sums = std::array<double, 7>;  // of gradients: those of the generic kernel; then of powers, where in f64
    const auto weight = lanes::template numbers<A>(w.data);
    const A n = static_cast<A>(x.cols);
    const double wide_n = static_cast<double>(x.cols), eps = opt.eps;
    constexpr bool wider = sizeof(A) < sizeof(double);  // otherwise f64 is what lanes are of
    const bool all_in_f64 = wider && (x.cols <= lanes::narrow || x.rows * x.cols <= lanes::small);
    const auto in_f64 = [=](const of_powers<A>& r) TIGON_LAMBDA { return all_in_f64 || !lanes::holds(r[0]); };
    const ub::cut by = plan::cut_of(x.cols);
    const std::size_t row_blocks = ub::ceil_div(x.rows, by.rows), programs = std::min(by.programs, row_blocks);
    workspace::frame frame(ctx.workspace());
    auto* by_program = frame.template take<std::array<double, 4>>(programs);  // what they add to dw and db
    ub::for_programs<plan>(ctx, row_blocks, programs, [=](auto& core, std::size_t program, auto blocks) TIGON_LAMBDA {
      core.shape(x.rows, x.cols, by);
      auto tiles = core.place(dy, x, dx, ub::column(reinterpret_cast<const of_powers<A>*>(rstd.data())),
                              ub::local<sums>{}, ub::local<scaled>{});
      std::array<double, 4> total{};
      const auto work = [&](auto& dt, auto& xt, auto& dxt, auto& r, auto& s, auto& q) TIGON_LAMBDA {
        core.fetch(r);
        core.each_row([&](std::size_t i) TIGON_LAMBDA { s[i] = {}, q[i] = {}; });
        bool held = true;
        core.each_row([&](std::size_t i) TIGON_LAMBDA { held &= lanes::holds(r[i][0]); });
        if (!held)
          core.pass(ub::reads(xt), ub::writes(), [&](auto row, auto xv) TIGON_LAMBDA {
            if (!lanes::holds(r[row.i][0])) q[row.i][3] = math::max(q[row.i][3], lanes::largest(row, xv));
          });
        core.each_row([&](std::size_t i)
                          TIGON_LAMBDA { q[i][3] = lanes::holds(r[i][0]) ? 1 : lanes::scale_of(q[i][3], eps); });
        core.pass(ub::reads(dt, xt), ub::writes(), [&](auto row, auto dv, auto xv) TIGON_LAMBDA {
          if (in_f64(r[row.i]))
            add(s[row.i], gradients_in_f64(row, dv, xv, q[row.i][3]));
          else
            add(s[row.i], gradients(row, dv, xv));
        });
        core.each_row([&](std::size_t i) TIGON_LAMBDA {
          put(q[i], in_f64(r[i]) ? detail::rstd_of_scaled_powers(s[i][4], s[i][5], s[i][6], wide_n, eps, q[i][3])
                                 : lanes::template numbers<double>(r[i].data()));
          add(total, std::array{q[i][0] * s[i][0], q[i][1] * s[i][1], q[i][2] * s[i][2], s[i][3]});
        });
        core.pass(ub::reads(dt, xt), ub::writes(dxt), [&](auto row, auto dv, auto xv, auto dxv) TIGON_LAMBDA {
          const double* of_row = s[row.i].data();
          if (!in_f64(r[row.i]))
            return row.map(reads(dv, xv), writes(dxv),
                           detail::polynomial_slope<A>(weight, r[row.i], lanes::template numbers<A>(of_row), n));
          const double p = q[row.i][3];
          const detail::polynomial_slope<double> f(weight, lanes::template numbers<double>(q[row.i].data()),
                                                   lanes::template numbers<double>(of_row), wide_n);
          for (std::size_t j = 0; j < row.cols; ++j)
            dxv.data[j] = static_cast<T>(static_cast<A>(f(number(row, dv, j, 1), number(row, xv, j, p)).r * p));
        });
      };
      blocks([&](std::size_t block) TIGON_LAMBDA {
        core.rows_at(block);
        std::apply(work, tiles);
      });
      by_program[program] = total;
    });
    std::array<double, 4> total{};
    for (std::size_t k = 0; k < programs; ++k) add(total, by_program[k]);
    const bool accumulate = opt.dparams == gradient::accumulate;
    for (std::size_t k = 0; k < 3; ++k) lanes::put(dw, k, total[k], accumulate);
    lanes::put(db, 0, total[3], accumulate);
  }

  /// Sums over a part of a row.
  template <class Row, class X>
  static TIGON_INLINE auto powers(Row row, X xv) {
    return row.sum(reads(xv), [](auto v) {
      const auto t = v * v;
      return pack{t * t * t, t * t, t};
    });
  }
  template <class Row, class X>
  static TIGON_INLINE of_powers<double> powers_in_f64(Row row, X xv, double p) {
    of_powers<double> s{};
    for (std::size_t j = 0; j < row.cols; ++j) {
      const double v = row.at(xv, j) * p, t = v * v;
      add(s, std::array{t * t * t, t * t, t});
    }
    return s;
  }
  template <class Row, class X>
  static TIGON_INLINE auto gradients(Row row, X dv, X xv) {
    return row.sum(reads(dv, xv), [](auto d, auto v) {
      const auto t = d * v;
      return pack{t * v * v, t * v, t, d};
    });
  }
  template <class Row, class X>
  static TIGON_INLINE std::array<double, 7> gradients_in_f64(Row row, X dv, X xv, double p) {
    std::array<double, 7> s{};
    for (std::size_t j = 0; j < row.cols; ++j) {
      const double d = row.at(dv, j), v = row.at(xv, j) * p, t = v * v;
      add(s, std::array{d * v * t, d * t, d * v, d, t * t * t, t * t, t});
    }
    return s;
  }
  template <class Row, class X>
  static TIGON_INLINE math::lane<double> number(Row row, X xv, std::size_t j, double p) {
    return math::lane<double>(row.at(xv, j) * p);
  }
  static TIGON_INLINE void put(scaled& to, of_powers<double> r) { to = {r[0], r[1], r[2], to[3]}; }
  template <class To, class From, std::size_t N, std::size_t M>
  static TIGON_INLINE void add(std::array<To, N>& to, const std::array<From, M>& from) {
    for (std::size_t k = 0; k < M; ++k) to[k] += from[k];
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_POLY_NORM_HPP
