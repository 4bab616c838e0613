// GroupNorm over the channels of a group and all positions, forward and backward.
//
// Written row by row (rows/row.hpp), not as a program: what is reduced together are several rows, a channel each, which are
// mapped with numbers of their own; how often they are reduced depends on the data; and backward's map makes sums too.
#ifndef TIGON_OPS_GROUP_NORM_HPP
#define TIGON_OPS_GROUP_NORM_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/row_scale.hpp>
#include <tigon/rows/reduce_map.hpp>

namespace tigon {

namespace op {
struct group_norm {
  static constexpr std::string_view name = "group_norm";
};
}  // namespace op

/// GroupNorm of a batch of images, sounds or anything else that has channels: a row is one channel of one sample.
///
///   mean[g] = mean of x over the channels and positions of group g,   n of them
///   rstd[g] = 1 / sqrt(mean of (x - mean)^2 + eps)
///   xh      = (x - mean) * rstd,   y = xh * w[c] + b[c]       c the channel; absent: w = 1, b = 0
///   h       = dy * w[c],   c1[g] = mean of xh h,   c2[g] = mean of h
///   dx      = rstd * (h - c2 - xh * c1)
///   dw[c]   = sum over samples and positions of dy * xh,   db[c] = sum over them of dy
///
/// Formula    docs/formulas/group_norm.md; Wu and He, "Group Normalization", 2018.
/// Shapes     x, y, dy, dx [batch * channels, positions]: of x[batch, channels, d1, d2, ...] what follows the channel
///            is one row, and where nothing follows it a row is one number; w, b, dw, db [channels] or `absent`; mean,
///            rstd [batch * groups]. positions, channels and groups >= 1, batch may be 0.
/// Types      x, y, dy, dx one of f32, bf16, f16, f64; parameters of one type, any of them (f64 only with f64).
/// Precision  the variance from sums about 0 or, where that is not within a deviation of it, the mean; sums, mean and
///            rstd in f32 (f64 for f64); backward makes up for the rounding of mean; y, dx, dw, db rounded once.
/// Writes     y, mean, rstd, dx; dw and db are overwritten, or added to with gradient::accumulate.
/// Aliasing   backward: dx may be dy or x. forward: y may not be x, which backward needs. Otherwise any layout in which
///            no element is shared.
/// Throws     tigon::error: shape, stride, alias, argument (eps negative or NaN), workspace; before the first write.
/// Range      any mean that x can hold beside the deviation, and a deviation of any size, where rstd is a number of its
///            type: with eps = 0, from the smallest normal number on. NaN or an infinity makes its group of y and dx
///            NaN, and dw.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square, forward at least of 1; gradients 2e-6, 4e-3
///            (tests/ops/group_norm_test.cpp), for any number of samples and positions (tests/rows/many_rows_test.cpp).
struct group_norm_options {
  std::size_t groups = 1;    ///< into which the channels of a sample are cut, in succession; divides channels
  std::size_t channels = 0;  ///< of a sample; 0: as many as w or b (dw or db) has
  double eps = 1e-6;         ///< inside the square root
  gradient dparams = gradient::overwrite;
};

namespace detail {
inline namespace TIGON_ABI {
/// dw += what a sample's channels add to it, db likewise.
struct sum_of_shares {
  template <class V>
  TIGON_INLINE pack<V, 2> map(V dw_share, V db_share, V dw, V db) const {
    return {{dw + dw_share, db + db_share}};
  }
};
}  // namespace TIGON_ABI
}  // namespace detail

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
          const auto s = row.narrow(width).sum(reads(read_again(channel(x, size, k))), [=](auto v) {
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
        row.narrow(positions).map(reads(channel(x, size, k)), writes(channel(y, size, k)),
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
          const auto s =
              row.part(first, std::min(block, positions - first))
                  .sum(reads(read_again(channel(dy, size, k)), read_again(channel(x, size, k))), [=](auto d, auto v) {
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
          const auto p = row.narrow(positions).map_sum(reads(channel(dy, size, k), channel(x, size, k)),
                                                       writes(channel(dx, size, k)), [=](auto d, auto v) {
                                                         const auto c = v - m, t = d * c, high = (t + grid) - grid;
                                                         return pack{result(d, c), high, (t - high) + fma(d, c, -t)};
                                                       });
          own = static_cast<double>(p[0]) + p[1];
        } else {
          row.narrow(positions).map(reads(channel(dy, size, k), channel(x, size, k)), writes(channel(dx, size, k)),
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
      return static_cast<double>(row.at(channel(m, size, j / positions), j % positions));
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
        row.put(channel(dx, size, k), j % positions, static_cast<A>(result));
      }
      row.put(dw_share, k, static_cast<A>(product)), row.put(db_share, k, static_cast<A>(sum));
    }
  }

  /// Every size-th row of m from row k on: row g is channel k of group g. As wide as the group with its padding, by
  /// which a map sees how much is written in all.
  template <class T>
  static TIGON_INLINE matrix_view<T> channel(matrix_view<T> m, std::size_t size, std::size_t k) {
    return {m.data + k * m.row_stride, m.rows / size, size * m.row_stride, size * m.row_stride};
  }
};

/// Bytes of workspace that group_norm_backward takes; `rows` is batch * channels.
template <class B = default_backend, class T>
std::size_t group_norm_workspace(std::size_t rows, std::size_t channels) {
  using A = accumulator_t<T>;
  return 2 * workspace::bytes_for<A>(rows) +
         simd::partials_workspace<B, A>(rows / std::max<std::size_t>(channels, 1), channels, 2);
}

namespace detail {
inline namespace TIGON_ABI {
/// The options with the number of channels in place: that of the parameter that is there.
inline group_norm_options expect_groups(const expects& expect, std::size_t rows, std::size_t w, std::size_t b,
                                        group_norm_options opt) {
  if (opt.channels == 0) opt.channels = w != 0 ? w : b;
  expect.at_least_one("channels", opt.channels);
  expect.at_least_one("groups", opt.groups);
  expect.that(opt.channels % opt.groups == 0, error_code::shape, "groups", "no divisor of the channels", "one");
  expect.that(rows % opt.channels == 0, error_code::shape, "x", "of rows that are no multiple of the channels",
              "a row for every channel of every sample");
  return opt;
}
}  // namespace TIGON_ABI
}  // namespace detail

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
  arguments args("group_norm_forward");
  args.at_least_one("positions", x.cols);
  args.in("x", x);
  args.out("y", y, x.rows, x.cols);
  opt = detail::expect_groups(args, x.rows, weight.size, bias.size, opt);
  const std::size_t groups = x.rows / opt.channels * opt.groups;
  args.optional_in("w", weight, opt.channels);
  args.optional_in("b", bias, opt.channels);
  args.out("rstd", rstd, groups);
  args.out("mean", mean, groups);
  args.eps(opt.eps);
  args.check();
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
  arguments args("group_norm_backward");
  args.at_least_one("positions", x.cols);
  args.in("x", x);
  args.in("dy", dy, x.rows, x.cols);
  if (opt.channels == 0) opt.channels = weight.size;
  opt = detail::expect_groups(args, x.rows, dweight.size, dbias.size, opt);
  const std::size_t groups = x.rows / opt.channels * opt.groups;
  args.optional_in("w", weight, opt.channels);
  args.in("mean", mean, groups);
  args.in("rstd", rstd, groups);
  args.out("dx", dx, x.rows, x.cols).may_be("dy", "x");
  args.optional_out("db", dbias, opt.channels);
  args.optional_out("dw", dweight, opt.channels);
  args.eps(opt.eps);
  args.check();
  ctx.workspace().expect("group_norm_backward", group_norm_workspace<B, T>(x.rows, opt.channels));
  kernel_for<op::group_norm, B>::template backward<B, T>(dy, x, weight, mean, rstd, dx, dweight, dbias, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_GROUP_NORM_HPP
