// Acme's own operator: its contract and its doors. The kernel is in backend.hpp, and on other backends there is none.
#ifndef ACME_CLIP_HPP
#define ACME_CLIP_HPP

#include <tigon/backend/operator.hpp>

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

template <class B = tigon::default_backend, class T>
void clip_forward(tigon::in_matrix<T> x, tigon::matrix_view<T> y, double limit,
                  tigon::context& ctx = tigon::default_context()) {
  static_assert(tigon::admits<B, T>());
  tigon::arguments args("clip_forward");
  args.in("x", x, y.rows, y.cols);
  args.out("y", y).may_be("x");
  args.option(limit > 0 && limit <= 1e300, "limit", limit, "a finite number above 0");
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
  args.option(limit > 0 && limit <= 1e300, "limit", limit, "a finite number above 0");
  args.check();
  tigon::kernel_for<clip, B>::template backward<B, T>(dy, x, dx, limit, ctx);
}

}  // namespace acme

#include <tigon/backend/select.hpp>

#endif  // ACME_CLIP_HPP
