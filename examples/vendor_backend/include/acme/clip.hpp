// Acme's own operators: their contracts, their kernels as row programs, and their doors. On acme the programs run on
// tiles (backend.hpp), on any other backend by tigon's driver.
#ifndef ACME_CLIP_HPP
#define ACME_CLIP_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/rows/reduce_map.hpp>

namespace acme {

/// y = x within [-limit, limit], else the nearer end;   dx = dy where |x| < limit, 0 elsewhere
///
/// Shapes     x, y, dy, dx [rows, cols]; both may be 0.
/// Types      f32, bf16, f16, f64, one for all.
/// Writes     y; dx.
/// Aliasing   y may be x; dx may be dy.
/// Throws     tigon::error: shape, stride, alias, argument (a limit that is not positive); before the first write.
/// Edges      NaN stays NaN, and its gradient is 0.
/// Max error  none, for a limit that the element type can hold.
struct clip {
  static constexpr std::string_view name = "clip";
};

/// y = x c,   c = min(1, limit / norm),   norm = sqrt(sum_j x^2)                     of every row
///
/// Shapes     x, y [rows, cols]; both may be 0.
/// Types      f32, bf16, f16, f64, one for all.
/// Precision  the norm in f32 (f64 for f64), in which squares and their sum have to hold.
/// Writes     y.
/// Aliasing   y may be x.
/// Throws     tigon::error: shape, stride, alias, argument (a limit that is not positive); before the first write.
/// Edges      NaN makes its row NaN; an infinity becomes NaN and the rest of its row 0.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square.
struct clip_norm {
  static constexpr std::string_view name = "clip_norm";
};

inline namespace TIGON_ABI {

template <class A>
struct clip_program {
  A limit;

  template <class V>
  TIGON_INLINE V map(V x) const {
    return min(V(limit), max(V(-limit), x));
  }
  template <class V>
  TIGON_INLINE V map(V dy, V x) const {
    return select(abs(x) < V(limit), dy, V(0));
  }
};

template <class A>
struct clip_norm_program {
  A limit;

  template <class V>
  TIGON_INLINE V reduce(V x) const {
    return x * x;
  }
  TIGON_INLINE A finish(A square) const {
    const A norm = tigon::math::sqrt(square);
    return norm > limit ? limit / norm : norm == norm ? A(1) : norm;
  }
  template <class V>
  TIGON_INLINE V map(A c, V x) const {
    return x * c;
  }
};

}  // namespace TIGON_ABI

template <class B = tigon::default_backend, class T>
void clip_forward(tigon::in_matrix<T> x, tigon::matrix_view<T> y, double limit,
                  tigon::context& ctx = tigon::default_context()) {
  static_assert(tigon::admits<B, T>());
  tigon::arguments args("clip_forward");
  args.in("x", x, y.rows, y.cols);
  args.out("y", y).may_be("x");
  args.above_zero<tigon::accumulator_t<T>>("limit", limit);
  args.check();
  tigon::kernel_for<clip, B>::template forward<B, T>(x, y, limit, ctx);
}

template <class B = tigon::default_backend, class T>
void clip_backward(tigon::in_matrix<T> dy, tigon::in_matrix<T> x, tigon::matrix_view<T> dx, double limit,
                   tigon::context& ctx = tigon::default_context()) {
  static_assert(tigon::admits<B, T>());
  tigon::arguments args("clip_backward");
  args.in("x", x, dx.rows, dx.cols);
  args.in("dy", dy, dx.rows, dx.cols);
  args.out("dx", dx).may_be("dy");
  args.above_zero<tigon::accumulator_t<T>>("limit", limit);
  args.check();
  tigon::kernel_for<clip, B>::template backward<B, T>(dy, x, dx, limit, ctx);
}

template <class B = tigon::default_backend, class T>
void clip_norm_forward(tigon::in_matrix<T> x, tigon::matrix_view<T> y, double limit,
                       tigon::context& ctx = tigon::default_context()) {
  static_assert(tigon::admits<B, T>());
  const tigon::expects expect("clip_norm_forward");
  expect.memory("y", y);
  expect.matrix("x", x, y.rows, y.cols);
  expect.above_zero<tigon::accumulator_t<T>>("limit", limit);
  expect.same_or_disjoint("y", y, "x", x);
  tigon::kernel_for<clip_norm, B>::template forward<B, T>(x, y, limit, ctx);
}

}  // namespace acme

template <>
struct tigon::kernel<acme::clip, tigon::backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T>
  static void forward(in_matrix<T> x, matrix_view<T> y, double limit, context& ctx) {
    const acme::clip_program<accumulator_t<T>> program{static_cast<accumulator_t<T>>(limit)};
    map_rows<B>(ctx, program, tigon::reads(x), tigon::writes(y));
  }
  template <backend B, element T>
  static void backward(in_matrix<T> dy, in_matrix<T> x, matrix_view<T> dx, double limit, context& ctx) {
    const acme::clip_program<accumulator_t<T>> program{static_cast<accumulator_t<T>>(limit)};
    map_rows<B>(ctx, program, tigon::reads(dy, x), tigon::writes(dx));
  }
};

template <>
struct tigon::kernel<acme::clip_norm, tigon::backends::generic> {
  using forward_only = void;

  template <backend B, element T>
  static void forward(in_matrix<T> x, matrix_view<T> y, double limit, context& ctx) {
    const acme::clip_norm_program<accumulator_t<T>> program{static_cast<accumulator_t<T>>(limit)};
    reduce_map<B>(ctx, program, tigon::reads(x), tigon::writes(y));
  }
};

#include <tigon/backend/select.hpp>

#endif  // ACME_CLIP_HPP
