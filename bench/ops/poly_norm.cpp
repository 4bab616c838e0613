#include <tigon/ops/poly_norm.hpp>

#include "ops/norm.hpp"
#include "ops/table.hpp"
#include "plain/norms.hpp"

namespace tigon_bench {
namespace {

template <class T>
struct normalised_powers {
  using view = tigon::matrix_view<T>;
  static constexpr bool steps = true;
  buffer<T> w, b, dw, db;
  buffer<tigon::accumulator_t<T>> rstd;

  normalised_powers(std::size_t rows, std::size_t)
      : w(uniform<T>(3, 0.25, 0.5, 2)), b(uniform<T>(1, 0.5, 1, 3)), dw(3), db(1), rstd(3 * rows) {}
  std::size_t saved_bytes() const { return rstd.bytes(); }
  std::size_t gradient_bytes() const { return dw.bytes() + db.bytes(); }

  template <class B>
  void forward(view x, view y, tigon::context& ctx) const {
    if constexpr (std::same_as<B, plain>)
      passes::poly_norm_forward<T>(ctx, x, w.data(), b[0], y, rstd.data(), 1e-6);
    else
      tigon::poly_norm_forward<B>(x, w.span(), b.span(), y, rstd.span(), {}, ctx);
  }
  template <class B>
  void backward(view dy, view x, view dx, tigon::context& ctx) const {
    using A = tigon::accumulator_t<T>;
    if constexpr (std::same_as<B, plain>)
      passes::poly_norm_backward<T>(ctx, dy, x, w.data(), static_cast<const A*>(rstd.data()), dx, dw.data(), db.data());
    else
      tigon::poly_norm_backward<B>(dy, x, w.span(), rstd.span(), tigon::norm_gradients{dx, dw.span(), db.span()}, {},
                                   ctx);
  }
};

}  // namespace

op_entry poly_norm() { return norm_entry<normalised_powers>("poly_norm"); }

}  // namespace tigon_bench
