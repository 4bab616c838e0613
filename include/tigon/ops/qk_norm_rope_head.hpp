// RMS norm of one head and its rotation, forward and backward.
#ifndef TIGON_OPS_QK_NORM_ROPE_HEAD_HPP
#define TIGON_OPS_QK_NORM_ROPE_HEAD_HPP

#include <tigon/ops/rms_norm_program.hpp>
#include <tigon/ops/rotary.hpp>
#include <tigon/ops/row_scale.hpp>

#include <array>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// 1 / rms of a head from its sum of squares, which is made again at another scale where it leaves the range.
template <class Row, class T, class A>
TIGON_INLINE A rstd_of_head(Row row, in_vector<T> x, inverse_rms<A> rms, A squares) {
  typename inverse_rms<A>::state state;
  while (rms.again(state, squares))
    squares = row.sum(reads(x), [=](auto v) TIGON_LAMBDA { return rms.reduce(state, v); });
  return rms.finish(state, squares);
}

/// A head of q or of k: its weight, and the angles of its position.
template <class W, class U, class A>
struct normed_head {
  rotated_part part;
  inverse_rms<A> rms;
  A offset;
  in_vector<W> w;
  in_vector<U> cos, sin;

  std::size_t dim() const { return static_cast<std::size_t>(rms.cols); }
  std::size_t rest() const { return dim() - part.count; }
  std::size_t first_of_rest() const { return part.first == 0 ? part.count : 0; }

  /// y = R v,   v = x rstd (offset + w).   v [dim] is scratch.
  template <casting C, class Row, class T>
  TIGON_INLINE void forward(Row row, const T* from, row_at<T> y, vector_view<A> v) const {
    const in_vector<T> x{from, dim()};
    const A squares = row.sum(reads(x), [](auto u) TIGON_LAMBDA { return u * u; });
    const A rstd = rstd_of_head(row, x, rms, squares), add = offset;
    row.map(reads(x, or_ones(w)), writes(v),
            [=](auto u, auto g) TIGON_LAMBDA { return cast_normalised<C, T>(u * rstd) * (g + add); });
    rotate(row, static_cast<const A*>(v.data), y, A(1));
  }

  /// g = R^T dy,   m = g (offset + w),   k = sum_j m x,   dx = rstd m - rstd^3 k / dim x,   dw += g (x rstd)
  /// g [dim] is scratch. dx is not written where it has no memory, dw where it has none.
  template <casting C, class Row, class T>
  TIGON_INLINE void backward(Row row, const T* dy, const T* from, row_at<T> dx, vector_view<A> dw,
                             vector_view<A> g) const {
    const in_vector<T> x{from, dim()};
    const A add = offset, n = rms.cols;
    rotate(row, dy, row_at<A>{g.data, 0}, A(-1));
    const auto [squares, k] = row.sum(reads(x, g, or_ones(w)), [=](auto u, auto d, auto f) TIGON_LAMBDA {
      return pack{u * u, d * (f + add) * u};
    });
    const A rstd = canonical(rstd_of_head(row, x, rms, squares));
    if (!holds_products(rstd)) {
      if (row.first()) backward_in_f64<C>(row, x, dx, dw, g, rstd);
      return;
    }
    const A c = rstd / n * (rstd * k) * rstd;
    const auto dx_of = [=](auto u, auto d, auto f)
                           TIGON_LAMBDA { return fnma(u, decltype(u)(c), d * (f + add) * rstd); };
    const auto dw_of = [=](auto u, auto d, auto sum)
                           TIGON_LAMBDA { return fma(d, cast_normalised_again<C, T>(u * rstd), sum); };
    if (dw.data == nullptr)
      row.map(reads(x, g, or_ones(w)), writes(dx), dx_of);
    else if (dx.data == nullptr)
      row.map(reads(x, g, dw), writes(dw), dw_of);
    else
      row.map(reads(x, g, or_ones(w), dw), writes(dx, dw), [=](auto u, auto d, auto f, auto sum) TIGON_LAMBDA {
        return pack{dx_of(u, d, f), dw_of(u, d, sum)};
      });
  }

 private:
  /// to = R from, or R^T from
  template <class Row, class X, class Y>
  TIGON_INLINE void rotate(Row row, const X* from, row_at<Y> to, A sign) const {
    part.turn(row, from, to, cos, sin, sign);
    if (rest() != 0)
      row.narrow(rest()).map(reads(in_vector<X>{from + first_of_rest(), rest()}),
                             writes(row_at<Y>{to.data + first_of_rest(), to.bytes}), [](auto v) { return v; });
  }

  /// Where sums of products leave the range of A.
  template <casting C, class Row, class T>
  TIGON_NOINLINE void backward_in_f64(Row row, in_vector<T> x, row_at<T> dx, vector_view<A> dw, vector_view<A> g,
                                      A rstd) const {
    const double n = static_cast<double>(dim()), scale = scale_of_row(rstd), r = static_cast<double>(rstd) / scale;
    const auto m = [&](std::size_t j) {
      return static_cast<double>(g.data[j]) *
             (w ? static_cast<double>(row.at(w, j)) + static_cast<double>(offset) : 1.0);
    };
    const auto scaled = [&](std::size_t j) { return static_cast<double>(row.at(x, j)) * scale; };
    double k = 0;
    for (std::size_t j = 0; j < dim(); ++j) k += m(j) * scaled(j);
    const double c = r * r * k / n;
    for (std::size_t j = 0; j < dim(); ++j) {
      const double v = scaled(j);
      const A xh = static_cast<A>(v * r);
      if (dw.data != nullptr) dw.data[j] += g.data[j] * (C == casting::llama ? static_cast<A>(static_cast<T>(xh)) : xh);
      if (dx.data != nullptr) dx.data[j] = static_cast<T>(static_cast<A>(r * (m(j) - v * c) * scale));
    }
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_QK_NORM_ROPE_HEAD_HPP
