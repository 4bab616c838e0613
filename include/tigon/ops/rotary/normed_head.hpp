// RMS norm of one head and its rotation, forward and backward.
#ifndef TIGON_OPS_ROTARY_NORMED_HEAD_HPP
#define TIGON_OPS_ROTARY_NORMED_HEAD_HPP

#include <tigon/ops/norm/rms_norm_program.hpp>
#include <tigon/ops/norm/row_scale.hpp>
#include <tigon/ops/rotary/rotation.hpp>

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

  in_vector<W> weight(std::size_t first, std::size_t count) const {
    return w ? in_vector<W>{w.data + first, count} : in_vector<W>{};
  }

  template <class Row, class T>
  TIGON_INLINE A rstd(Row row, const T* from) const {
    const in_vector<T> x{from, dim()};
    return rstd_of_head(row, x, rms, row.sum(reads(x), [](auto u) TIGON_LAMBDA { return u * u; }));
  }

  /// y = R v,   v = x rstd (offset + w).   v [dim] is scratch for pairs of neighbours.
  template <casting C, class Row, class T>
  TIGON_INLINE void forward(Row row, const T* from, A r, row_at<T> y, vector_view<A> v) const {
    const A add = offset;
    const auto norm = [=](auto u, auto g) TIGON_LAMBDA { return cast_normalised<C, T>(u * r) * (g + add); };
    if (part.pairs == rotary_pairs::neighbours) {
      row.map(reads(in_vector<T>{from, dim()}, or_ones(w)), writes(v), norm);
      return rotate(row, static_cast<const A*>(v.data), y, A(1));
    }
    const std::size_t half = part.half(), a = part.first, b = a + half, c = first_of_rest();
    row.part(0, half).map(reads(in_vector<T>{from + a, half}, in_vector<T>{from + b, half}, or_ones(weight(a, half)),
                                or_ones(weight(b, half)), cos, sin),
                          writes(row_at<T>{y.data + a, y.bytes}, row_at<T>{y.data + b, y.bytes}),
                          [=](auto p, auto q, auto f, auto g, auto cv, auto zv)
                              TIGON_LAMBDA { return rotation()(norm(p, f), norm(q, g), cv, zv); });
    if (rest() != 0)
      row.part(0, rest()).map(reads(in_vector<T>{from + c, rest()}, or_ones(weight(c, rest()))),
                              writes(row_at<T>{y.data + c, y.bytes}), norm);
  }

  /// g = R^T dy; returns the sums of x^2 and of g (offset + w) x.
  template <class Row, class T>
  TIGON_INLINE std::array<A, 2> rotate_back(Row row, const T* dy, const T* from, vector_view<A> g) const {
    const A add = offset;
    if (part.pairs == rotary_pairs::neighbours) {
      rotate(row, dy, row_at<A>{g.data, 0}, A(-1));
      return row.sum(reads(in_vector<T>{from, dim()}, g, or_ones(w)), [=](auto u, auto d, auto f) TIGON_LAMBDA {
        return pack{u * u, d * (f + add) * u};
      });
    }
    std::array<A, 2> sums{};
    const std::size_t half = part.half(), a = part.first, b = a + half, c = first_of_rest();
    if (half != 0)
      sums = row.part(0, half).map_sum(
          reads(in_vector<T>{dy + a, half}, in_vector<T>{dy + b, half}, cos, sin, in_vector<T>{from + a, half},
                in_vector<T>{from + b, half}, or_ones(weight(a, half)), or_ones(weight(b, half))),
          writes(vector_view<A>{g.data + a, half}, vector_view<A>{g.data + b, half}),
          [=](auto p, auto q, auto cv, auto zv, auto u, auto v, auto f, auto h) TIGON_LAMBDA {
            const auto d = rotation()(p, q, cv, zv * A(-1));
            return pack{d.v[0], d.v[1], fma(u, u, v * v), fma(d.v[0] * (f + add), u, d.v[1] * (h + add) * v)};
          });
    if (rest() != 0) {
      const std::array<A, 2> more = row.part(0, rest()).map_sum(
          reads(in_vector<T>{dy + c, rest()}, in_vector<T>{from + c, rest()}, or_ones(weight(c, rest()))),
          writes(vector_view<A>{g.data + c, rest()}), [=](auto d, auto u, auto f) TIGON_LAMBDA {
            return pack{d, u * u, d * (f + add) * u};
          });
      sums[0] += more[0], sums[1] += more[1];
    }
    return sums;
  }

  /// g = R^T dy,   m = g (offset + w),   k = sum_j m x,   dx = rstd m - rstd^3 k / dim x,   dw += g (x rstd)
  /// g [dim] is scratch. dx is not written where it has no memory, dw where it has none.
  template <casting C, class Row, class T>
  TIGON_INLINE void backward(Row row, const T* dy, const T* from, row_at<T> dx, vector_view<A> dw,
                             vector_view<A> g) const {
    const in_vector<T> x{from, dim()};
    const std::array<A, 2> sums = rotate_back(row, dy, from, g);
    const A r = rstd_of_head(row, x, rms, sums[0]);
    const rms_norm_gradient<C, T, A> program{rms.cols, offset, rms.eps};
    const auto value = program.finish(sums[1], r);
    if (const auto wide = program.in_f64(value))
      gradients_in_f64(row, *wide, r, x, g, dx, dw);
    else
      gradients(row, program, value, x, g, dx, dw);
  }

 private:
  /// to = R from, or R^T from
  template <class Row, class X, class Y>
  TIGON_INLINE void rotate(Row row, const X* from, row_at<Y> to, A sign) const {
    if (part.pairs == rotary_pairs::halves)
      part.template turn<rotary_pairs::halves>(row, from, to, cos, sin, sign);
    else
      part.template turn<rotary_pairs::neighbours>(row, from, to, cos, sin, sign);
    if (rest() != 0)
      row.part(0, rest()).map(reads(in_vector<X>{from + first_of_rest(), rest()}),
                              writes(row_at<Y>{to.data + first_of_rest(), to.bytes}), [](auto v) { return v; });
  }

  template <class Row, class P, class X, class T>
  TIGON_INLINE void gradients(Row row, const P& program, const typename P::row& of, X x, vector_view<A> g, row_at<T> dx,
                              vector_view<A> dw) const {
    const auto dx_of = [=](auto u, auto d, auto f) TIGON_LAMBDA { return program.dx(of, d, u, f); };
    const auto dw_of = [=](auto u, auto d, auto sum) TIGON_LAMBDA { return program.dw(of, d, u, sum); };
    if (dw.data == nullptr)
      row.map(reads(x, g, or_ones(w)), writes(dx), dx_of);
    else if (dx.data == nullptr)
      row.map(reads(x, g, dw), writes(dw), dw_of);
    else
      row.map(reads(x, g, or_ones(w), dw), writes(dx, dw), [=](auto u, auto d, auto f, auto sum) TIGON_LAMBDA {
        return pack{dx_of(u, d, f), dw_of(u, d, sum)};
      });
  }
  template <class Row, class P, class T>
  TIGON_NOINLINE void gradients_in_f64(Row row, P program, A r, in_vector<T> x, vector_view<A> g, row_at<T> dx,
                                       vector_view<A> dw) const {
    const auto sums = row.sum(reads(tigon::in_f64(x), g, or_ones(w)),
                              [=](auto u, auto d, auto f) TIGON_LAMBDA { return program.reduce(r, d, u, f); });
    gradients(row, program, program.finish(sums, r), tigon::in_f64(x), g, dx, dw);
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_ROTARY_NORMED_HEAD_HPP
