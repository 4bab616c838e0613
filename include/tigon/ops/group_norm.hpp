// GroupNorm over the channels of a group and all positions, forward and backward.
//
// Written row by row (rows/row.hpp), not as a program: what is reduced together are several rows, a channel each, which are
// mapped with numbers of their own; how often they are reduced depends on the data; and backward's map makes sums too.
#ifndef TIGON_OPS_GROUP_NORM_HPP
#define TIGON_OPS_GROUP_NORM_HPP

#include <tigon/ops/group_norm_contract.hpp>
#include <tigon/ops/group_norm_program.hpp>
#include <tigon/ops/row_scale.hpp>
#include <tigon/rows/reduce_map.hpp>

namespace tigon {

template <>
struct kernel<op::group_norm, backends::generic> {
  template <class A>
  using saved = std::span<A>;  // mean and rstd, a row of numbers each

  template <backend B, element T, element W>
  static void forward(in_matrix<T> x, in_vector<W> w, in_vector<W> b, matrix_view<T> y,
                      std::span<accumulator_t<T>> mean, std::span<accumulator_t<T>> rstd, group_norm_options opt,
                      context& ctx) {
    using A = accumulator_t<T>;
    const double eps = opt.eps;
    A *means = mean.data(), *rstds = rstd.data();
    const std::size_t groups = opt.groups, size = opt.channels / groups, positions = x.cols;
    // Without padding a group is one piece of memory.
    const std::size_t pieces = x.row_stride == positions ? 1 : size, width = size * positions / pieces;
    for_rows<B, A>(ctx, x.rows / size, size * positions, [=] TIGON_FN(auto row) {
      const double n = static_cast<double>(row.cols);
      const auto means_of = [=](auto centred) {
        std::array<double, 2> sum{};
        for (std::size_t k = 0; k < pieces; ++k) {
          const auto s = row.narrow(width).sum(reads(read_again(detail::channel_rows(x, size, k))), [=](auto v) {
            const auto c = centred(v);
            return pack{c, c * c};
          });
          sum[0] += s[0], sum[1] += s[1];
        }
        return std::array{sum[0] / n, sum[1] / n};
      };
      detail::row_moments<A, double> of;
      auto s = means_of([](auto v) { return v; });
      while (of.again(s[0], s[1], eps, row.cols <= 16))
        s = means_of([p = of.scale, m = of.about](auto v) { return fma(v, p, -m); });
      const A p = of.scale, m = of.about, e = static_cast<A>(of.mean), r = of.rstd(eps);
      if (row.first()) means[row.i] = (m + e) / p, rstds[row.i] = r * p;
      for (std::size_t k = 0; k < size; ++k) {
        const std::size_t c = row.i % groups * size + k;
        const A scale = w ? row.at(w, c) * r : r, shift = b ? row.at(b, c) : A(0);
        row.narrow(positions).map(reads(detail::channel_rows(x, size, k)), writes(detail::channel_rows(y, size, k)),
                                  [=](auto v) { return fma(fma(v, p, -m) - e, scale, shift); });
      }
    });
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, std::span<const accumulator_t<T>> mean,
                       std::span<const accumulator_t<T>> rstd, matrix_view<T> dx, vector_view<W> dw, vector_view<W> db,
                       group_norm_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t channels = opt.channels, size = channels / opt.groups, positions = x.cols;
    // What each channel of each sample adds to dw and db.
    workspace::frame frame(ctx.workspace());
    const matrix_view<A> dw_share{frame.template take<A>(x.rows), x.rows / size, size},
        db_share{frame.template take<A>(x.rows), x.rows / size, size};
    const A *const means = mean.data(), *const rstds = rstd.data();
    if (size * positions <= narrow)
      for_rows<B, A>(ctx, x.rows / size, size * positions, [=] TIGON_FN(auto row) {
        backward_in_f64(row, dy, x, w, means[row.i], rstds[row.i], dx, dw_share, db_share, opt);
      });
    else
      backward_groups<B, T, W, A>(dy, x, w, mean.data(), rstd.data(), dx, dw_share, db_share, opt, ctx);
    const in_matrix<A> dw_shares{dw_share.data, x.rows / channels, channels},
        db_shares{db_share.data, x.rows / channels, channels};
    map_rows<B>(ctx, detail::sum_of_shares{}, reads(dw_shares, db_shares), writes(),
                adds_to(parameter_gradient<W>{dw, opt.dparams}, parameter_gradient<W>{db, opt.dparams}));
  }

  template <backend B, element T, element W, class A>
  static void backward_groups(matrix_view<const T> dy, matrix_view<const T> x, in_vector<W> w, const A* mean,
                              const A* rstd, matrix_view<T> dx, matrix_view<A> dw_share, matrix_view<A> db_share,
                              group_norm_options opt, context& ctx) {
    const std::size_t groups = opt.groups, size = opt.channels / groups, positions = x.cols;
    // dw is small beside the terms that it adds up. Their sum is exact, unless dw has 16 bits, which do not show it.
    constexpr bool exact = sizeof(W) > 2 || !B::relaxed_16bit;
    // Sums of so many columns in f32, and those together in f64.
    constexpr std::size_t block = 16 * columns_per_step<B, A>();
    for_rows<B, A>(ctx, x.rows / size, size * positions, [=] TIGON_FN(auto row) {
      const double n = static_cast<double>(row.cols);
      const A m = mean[row.i], r = rstd[row.i];
      if (!detail::holds_products(r)) return backward_in_f64(row, dy, x, w, m, r, dx, dw_share, db_share, opt);
      const auto weight = [=](std::size_t k) { return w ? row.at(w, row.i % groups * size + k) : A(1); };
      double product = 0, sum = 0, rest = 0;
      for (std::size_t k = 0; k < size; ++k) {
        double p = 0, q = 0, most = 0;
        for (std::size_t first = 0; first < positions; first += block) {
          const auto s = row.part(first, std::min(block, positions - first))
                             .sum(reads(read_again(detail::channel_rows(dy, size, k)),
                                        read_again(detail::channel_rows(x, size, k))),
                                  [=](auto d, auto v) {
                                    const auto c = v - m, t = d * c;
                                    if constexpr (exact)
                                      return pack{t, d, c, abs(t)};
                                    else
                                      return pack{t, d, c};
                                  });
          p += s[0], q += s[1], rest += s[2];
          if constexpr (exact) most += s[3];
        }
        if (row.first())
          row.put(dw_share, k, static_cast<A>(exact ? most : p)), row.put(db_share, k, static_cast<A>(q));
        product += weight(k) * p, sum += weight(k) * q;
      }
      const double e = rest / n;  // what mean lost when it was rounded
      const double c1 = (product - sum * e) / n * r, c2 = sum / n;
      const A slope = static_cast<A>(r * r * c1), level = static_cast<A>(c2 * r - r * r * c1 * e);
      for (std::size_t k = 0; k < size; ++k) {
        const A scale = weight(k) * r;
        const auto result = [=](auto d, auto c) { return fma(d, scale, fnma(c, slope, -level)); };
        double own = row.at(dw_share, k);
        if constexpr (exact) {
          // Terms rounded to a grid that is 2^-22 of all of them have an exact sum; what that leaves is summed apart.
          const A grid = 4 * row.at(dw_share, k);
          const auto p =
              row.narrow(positions).map_sum(reads(detail::channel_rows(dy, size, k), detail::channel_rows(x, size, k)),
                                            writes(detail::channel_rows(dx, size, k)), [=](auto d, auto v) {
                                              const auto c = v - m, t = d * c, high = (t + grid) - grid;
                                              return pack{result(d, c), high, (t - high) + fma(d, c, -t)};
                                            });
          own = static_cast<double>(p[0]) + p[1];
        } else {
          row.narrow(positions).map(reads(detail::channel_rows(dy, size, k), detail::channel_rows(x, size, k)),
                                    writes(detail::channel_rows(dx, size, k)),
                                    [=](auto d, auto v) { return result(d, v - m); });
        }
        if (row.first()) row.put(dw_share, k, static_cast<A>((own - row.at(db_share, k) * e) * r));
      }
    });
  }

  /// In a group of a few values the terms of dx nearly cancel (of one value, to nothing): there everything is made anew
  /// in f64. In a larger one only what mean lacks.
  static constexpr std::size_t narrow = 8;
  template <class Row, element T, element W, class A>
  static void backward_in_f64(const Row& row, matrix_view<const T> dy, matrix_view<const T> x, in_vector<W> w, A mean,
                              A rstd, matrix_view<T> dx, matrix_view<A> dw_share, matrix_view<A> db_share,
                              group_norm_options opt) {
    if (!row.first()) return;
    const std::size_t groups = opt.groups, size = opt.channels / groups, positions = x.cols;
    const bool few = row.cols <= narrow;
    const double n = static_cast<double>(row.cols), p = detail::scale_of_row(rstd), eps = opt.eps * p * p;
    const auto at = [=](auto m, std::size_t j) {
      return static_cast<double>(row.at(detail::channel_rows(m, size, j / positions), j % positions));
    };
    const auto h = [=](std::size_t j) {
      return at(dy, j) * (w ? static_cast<double>(row.at(w, row.i % groups * size + j / positions)) : 1.0);
    };
    const double m = mean * p;
    double e = 0, square = 0, c1 = 0, c2 = 0;
    for (std::size_t j = 0; j < row.cols; ++j) e += (at(x, j) * p - m) / n;
    const auto centred = [=](std::size_t j) { return at(x, j) * p - m - e; };
    for (std::size_t j = 0; few && j < row.cols; ++j) square += centred(j) * centred(j);
    const double r = row.cols == 1 ? 0 : few ? math::rsqrt(square / n + eps) : rstd / p;
    for (std::size_t j = 0; j < row.cols; ++j) c1 += h(j) * centred(j) * r / n, c2 += h(j) / n;
    for (std::size_t k = 0; k < size; ++k) {
      double product = 0, sum = 0;
      for (std::size_t j = k * positions; j < (k + 1) * positions; ++j) {
        const double d = at(dy, j), xh = centred(j) * r, result = r * (h(j) - c2 - xh * c1) * p;
        product += d * xh, sum += d;
        row.put(detail::channel_rows(dx, size, k), j % positions, static_cast<A>(result));
      }
      row.put(dw_share, k, static_cast<A>(product)), row.put(db_share, k, static_cast<A>(sum));
    }
  }
};

/// Bytes of workspace that group_norm_backward takes; `rows` is batch * channels.
template <class B = default_backend, class T>
std::size_t group_norm_workspace(std::size_t rows, std::size_t channels) {
  using A = accumulator_t<T>;
  return 2 * workspace::bytes_for<A>(rows) +
         simd::partials_workspace<B, A>(rows / std::max<std::size_t>(channels, 1), channels, 2);
}

/// y, mean and rstd from x, w and b. See group_norm_options for the contract.
template <class B = default_backend, class T, parameter W, parameter Bias>
void group_norm_forward(in_matrix<T> x, const W& w, const Bias& b, matrix_view<T> y,
                        std::type_identity_t<saved_t<op::group_norm, B, accumulator_t<T>>> mean,
                        std::type_identity_t<saved_t<op::group_norm, B, accumulator_t<T>>> rstd,
                        group_norm_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<parameter_element_t<T, W, Bias>>(w);
  const auto bias = as_in_vector<parameter_element_t<T, W, Bias>>(b);
  static_assert(admits_parameter<T, decltype(weight), decltype(bias)>());
  const expects expect("group_norm_forward");
  expect.at_least_one("positions", x.cols);
  expect.memory("x", x);
  expect.matrix("y", y, x.rows, x.cols);
  opt = detail::expect_groups(expect, x.rows, "w", weight, "b", bias, opt);
  const std::size_t groups = x.rows / opt.channels * opt.groups;
  expect.size("mean", mean.size(), groups);
  expect.size("rstd", rstd.size(), groups);
  expect.eps(opt.eps);
  detail::expect_centred_apart(expect, x, as_row(weight), as_row(bias), y, as_row(mean), as_row(rstd));
  kernel_for<op::group_norm, B>::template forward<B, T>(x, weight, bias, y, mean, rstd, opt, ctx);
}

/// dx, dw and db from dy and what forward left. See group_norm_options for the contract.
template <class B = default_backend, class T, parameter W, parameter DW, parameter DB>
void group_norm_backward(in_matrix<T> dy, in_matrix<T> x, const W& w,
                         std::type_identity_t<saved_t<op::group_norm, B, const accumulator_t<T>>> mean,
                         std::type_identity_t<saved_t<op::group_norm, B, const accumulator_t<T>>> rstd,
                         matrix_view<T> dx, DW&& dw, DB&& db, group_norm_options opt = {},
                         context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using P = parameter_element_t<T, W, DW, DB>;
  const auto weight = as_in_vector<P>(w);
  const auto dweight = as_out_vector<P>(dw);
  const auto dbias = as_out_vector<P>(db);
  static_assert(admits_parameter<T, decltype(weight), decltype(dweight), decltype(dbias)>());
  const expects expect("group_norm_backward");
  expect.at_least_one("positions", x.cols);
  expect.memory("x", x);
  expect.matrix("dy", dy, x.rows, x.cols);
  expect.matrix("dx", dx, x.rows, x.cols);
  if (opt.channels == 0) opt.channels = weight.size;
  opt = detail::expect_groups(expect, x.rows, "dw", dweight, "db", dbias, opt);
  if (weight) expect.size("w", weight.size, opt.channels);
  const std::size_t groups = x.rows / opt.channels * opt.groups;
  expect.size("mean", mean.size(), groups);
  expect.size("rstd", rstd.size(), groups);
  expect.eps(opt.eps);
  detail::expect_centred_gradients_apart(expect, dy, x, as_row(weight), as_row(mean), as_row(rstd), dx, as_row(dweight),
                                         as_row(dbias));
  ctx.workspace().expect("group_norm_backward", group_norm_workspace<B, T>(x.rows, opt.channels));
  kernel_for<op::group_norm, B>::template backward<B, T>(dy, x, weight, mean, rstd, dx, dweight, dbias, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_GROUP_NORM_HPP
