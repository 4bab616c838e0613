// The generic kernel of group_norm.
//
// Written row by row (rows/row.hpp), not as a program: what is reduced together are several rows, a channel each, which
// are mapped with numbers of their own; how often they are reduced depends on the data; and backward's map makes sums
// too.
#ifndef TIGON_OPS_NORM_GROUP_NORM_KERNEL_HPP
#define TIGON_OPS_NORM_GROUP_NORM_KERNEL_HPP

#include <tigon/ops/norm/group_norm_options.hpp>
#include <tigon/ops/norm/row_scale.hpp>
#include <tigon/rows/reduce_map.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
/// dx = rstd (w dy - c2 - xh c1),   dw = sum dy xh,   xh = (c - error) rstd,   c1 = mean_j xh w dy,   c2 = mean_j w dy
/// of a group, whose mean is rounded: error is the mean of c = x - mean. Made of the group's sums of w dy c, w dy and
/// c.
template <class N>
struct group_norm_gradient {
  N rstd, slope, level;
  double error;

  TIGON_INLINE group_norm_gradient(N r, double n, double product, double sum, double rest, double correction = 1)
      : rstd(r), error(rest / n) {
    const double c1 = (product - sum * error) / n * r * correction, c2 = sum / n;
    slope = static_cast<N>(r * r * c1), level = static_cast<N>(c2 * r - r * r * c1 * error);
  }
  /// `scale` is w rstd.
  template <class V>
  TIGON_INLINE V dx(V dy, V c, N scale) const {
    return fma(dy, V(scale), fnma(c, V(slope), V(-level)));
  }
  /// Of the sums of dy c and of dy over a channel.
  TIGON_INLINE double dw(double product, double sum) const { return (product - sum * error) * rstd; }
};

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
          const auto s = row.part(0, width).sum(reads(read_again(channel(x, size, k))), [=](auto v) {
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
      row.save(means[row.i], (m + e) / p), row.save(rstds[row.i], r * p);
      for (std::size_t k = 0; k < size; ++k) {
        const std::size_t c = row.i % groups * size + k;
        const A scale = w ? row.at(w, c) * r : r, shift = b ? row.at(b, c) : A(0);
        row.part(0, positions).map(reads(channel(x, size, k)), writes(channel(y, size, k)), [=](auto v) {
          return fma(fma(v, p, -m) - e, scale, shift);
        });
      }
    });
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, std::span<const accumulator_t<T>> mean,
                       std::span<const accumulator_t<T>> rstd,
                       norm_gradients<T, vector_view<W>, vector_view<W>> gradients, group_norm_options opt,
                       context& ctx) {
    const matrix_view<T> dx = gradients.dx;
    const vector_view<W> dw = gradients.dw, db = gradients.db;
    using A = accumulator_t<T>;
    const std::size_t channels = opt.channels, size = channels / opt.groups, positions = x.cols;
    // What each channel of each sample adds to dw and db, if either is wanted.
    workspace::frame frame(ctx.workspace());
    const bool sums = dw || db;
    const matrix_view<A> dw_share{sums ? frame.template take<A>(x.rows) : nullptr, x.rows / size, size},
        db_share{sums ? frame.template take<A>(x.rows) : nullptr, x.rows / size, size};
    const norm_gradients<T, matrix_view<A>, matrix_view<A>> shares{dx, dw_share, db_share};
    const A *const means = mean.data(), *const rstds = rstd.data();
    if (size * positions <= narrow)
      for_rows<B, A>(ctx, x.rows / size, size * positions, [=] TIGON_FN(auto row) {
        backward_in_f64(row, dy, x, w, means[row.i], rstds[row.i], shares, opt);
      });
    else
      backward_groups<B, T, W, A>(dy, x, w, mean.data(), rstd.data(), shares, opt, ctx);
    if (!sums) return;
    const in_matrix<A> dw_shares{dw_share.data, x.rows / channels, channels},
        db_shares{db_share.data, x.rows / channels, channels};
    map_rows<B>(ctx, detail::sum_of_shares{}, reads(dw_shares, db_shares), writes(),
                adds_to(parameter_gradient<W>{dw, opt.dparams}, parameter_gradient<W>{db, opt.dparams}));
  }

  template <backend B, element T, element W, class A>
  static void backward_groups(matrix_view<const T> dy, matrix_view<const T> x, in_vector<W> w, const A* mean,
                              const A* rstd, norm_gradients<T, matrix_view<A>, matrix_view<A>> shares,
                              group_norm_options opt, context& ctx) {
    const matrix_view<T> dx = shares.dx;
    const matrix_view<A> dw_share = shares.dw, db_share = shares.db;
    const std::size_t groups = opt.groups, size = opt.channels / groups, positions = x.cols;
    const bool sums = dw_share.data != nullptr;
    // dw is small beside the terms that it adds up. Their sum is exact, unless dw has 16 bits, where it makes no
    // difference.
    constexpr bool exact = sizeof(W) > 2 || !B::relaxed_16bit;
    // Sums of so many columns in f32, and those together in f64.
    constexpr std::size_t block = 64 * simd::vec<typename B::engine, A>::size;
    for_rows<B, A>(ctx, x.rows / size, size * positions, [=] TIGON_FN(auto row) {
      const double n = static_cast<double>(row.cols);
      const A m = mean[row.i], r = rstd[row.i];
      if (!detail::holds_products(r)) return backward_in_f64(row, dy, x, w, m, r, shares, opt);
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
        if (row.first() && sums)
          row.put(dw_share, k, static_cast<A>(exact ? most : p)), row.put(db_share, k, static_cast<A>(q));
        product += weight(k) * p, sum += weight(k) * q;
      }
      row.sync();  // all workers read the shares
      const detail::group_norm_gradient<A> of(r, n, product, sum, rest);
      for (std::size_t k = 0; k < size; ++k) {
        const A scale = weight(k) * r;
        const auto result = [=](auto d, auto c) { return of.dx(d, c, scale); };
        const auto store = [=]() TIGON_LAMBDA {
          row.part(0, positions)
              .map(reads(channel(dy, size, k), channel(x, size, k)), writes(channel(dx, size, k)),
                   [=](auto d, auto v) { return result(d, v - m); });
        };
        if (!sums) {
          store();
          continue;
        }
        double own = row.at(dw_share, k);
        if constexpr (exact) {
          // Terms that are rounded to a multiple of 2^-22 of all of them have an exact sum; the remainders are summed
          // separately.
          const A grid = 4 * row.at(dw_share, k);
          const auto p = row.part(0, positions)
                             .map_sum(reads(channel(dy, size, k), channel(x, size, k)), writes(channel(dx, size, k)),
                                      [=](auto d, auto v) {
                                        const auto c = v - m, t = d * c, high = (t + grid) - grid;
                                        return pack{result(d, c), high, (t - high) + fma(d, c, -t)};
                                      });
          own = static_cast<double>(p[0]) + p[1];
        } else {
          store();
        }
        if (row.first()) row.put(dw_share, k, static_cast<A>(of.dw(own, row.at(db_share, k))));
      }
    });
  }

  /// Bytes of the numbers of rows that backward takes.
  template <class A>
  static std::size_t numbers_workspace(std::size_t rows, parameters of) {
    return of == parameters::frozen ? 0 : 2 * workspace::bytes_for<A>(rows);
  }

  /// In a group of a few values the terms of dx nearly cancel (of one value, to nothing): there everything is computed
  /// in f64. In a larger group only the rounding error of the mean is.
  static constexpr std::size_t narrow = 8;
  template <class Row, element T, element W, class A>
  static void backward_in_f64(const Row& row, matrix_view<const T> dy, matrix_view<const T> x, in_vector<W> w, A mean,
                              A rstd, norm_gradients<T, matrix_view<A>, matrix_view<A>> shares,
                              group_norm_options opt) {
    const matrix_view<T> dx = shares.dx;
    const matrix_view<A> dw_share = shares.dw, db_share = shares.db;
    if (!row.first()) return;
    const std::size_t groups = opt.groups, size = opt.channels / groups, positions = x.cols;
    const double n = static_cast<double>(row.cols), p = detail::scale_of_row(rstd);
    const double r = row.cols == 1 ? 0 : static_cast<double>(rstd) / p;
    const auto weight = [=](std::size_t k) {
      return w ? static_cast<double>(row.at(w, row.i % groups * size + k)) : 1.0;
    };
    const auto each = [=](std::size_t k, auto f) {  // of channel k: f(j, dy, c)
      for (std::size_t j = 0; j < positions; ++j)
        f(j, static_cast<double>(row.at(channel(dy, size, k).part, j)),
          static_cast<double>(row.at(channel(x, size, k).part, j)) * p - mean * p);
    };
    double sum = 0, rest = 0;
    detail::sums_along_row sums;
    for (std::size_t k = 0; k < size; ++k)
      each(k, [&, wk = weight(k)](std::size_t, double d, double c) { sum += wk * d, rest += c, sums.add(wk * d, c); });
    const double product = sums.m_v, error = rest / n, mean_h = sum / n;
    sums = {sums.m_m - sum * mean_h, product - sum * error, sums.v_v - rest * error};
    const detail::group_norm_gradient<double> of(r, n, product, sum, rest,
                                                 detail::correction_along_row<A>(sums, n, r, opt.eps * p * p));
    for (std::size_t k = 0; k < size; ++k) {
      double of_dw = 0, of_db = 0;
      each(k, [&, scale = weight(k) * r](std::size_t j, double d, double c) {
        of_dw += d * c, of_db += d;
        const auto result = of.dx(math::lane<double>(d), math::lane<double>(c), scale).r * p;
        row.put(channel(dx, size, k).part, j, static_cast<A>(result));
      });
      if (dw_share.data == nullptr) continue;
      row.put(dw_share, k, static_cast<A>(of.dw(of_dw, of_db))), row.put(db_share, k, static_cast<A>(of_db));
    }
  }

  /// Every size-th row of m from row k on: row g is channel k of group g.
  template <class T>
  static TIGON_INLINE rows_of<T> channel(matrix_view<T> m, std::size_t size, std::size_t k) {
    return {{m.data + k * m.row_stride, m.rows / size, m.cols, size * m.row_stride}, m.rows * m.row_stride * sizeof(T)};
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_NORM_GROUP_NORM_KERNEL_HPP
