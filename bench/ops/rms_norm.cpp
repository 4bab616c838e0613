#include <tigon/ops/rms_norm.hpp>

#include "ops/norm.hpp"
#include "ops/table.hpp"
#include "plain/norms.hpp"

namespace tigon_bench {
namespace {

template <class T>
struct root_mean_square {
  using view = tigon::matrix_view<T>;
  static constexpr bool steps = true;
  buffer<T> w, dw;
  buffer<tigon::accumulator_t<T>> rstd;

  root_mean_square(std::size_t rows, std::size_t cols) : w(uniform<T>(cols, 0.5, 1.5, 2)), dw(cols), rstd(rows) {}
  std::size_t saved_bytes() const { return rstd.bytes(); }
  std::size_t gradient_bytes() const { return dw.bytes(); }

  template <class B>
  void forward(view x, view y, tigon::context& ctx) const {
    if constexpr (std::same_as<B, plain>)
      passes::rms_norm_forward<T>(ctx, x, tigon::vector_view<const T>{w.data(), w.size()}, y, rstd.data(), 1e-6);
    else
      tigon::rms_norm_forward<B>(x, w.span(), y, rstd.span(), {}, ctx);
  }
  template <class B>
  void backward(view dy, view x, view dx, tigon::context& ctx) const {
    if constexpr (std::same_as<B, plain>)
      passes::rms_norm_backward<T>(ctx, dy, x, tigon::vector_view<const T>{w.data(), w.size()}, rstd.data(), dx,
                                   {dw.data(), dw.size()});
    else
      tigon::rms_norm_backward<B>(dy, x, w.span(), rstd.span(), dx, dw.span(), {}, ctx);
  }
};

}  // namespace

op_entry rms_norm() { return norm_entry<root_mean_square>("rms_norm"); }

}  // namespace tigon_bench
