#include <tigon/ops/layer_norm.hpp>

#include "ops/norm.hpp"
#include "ops/table.hpp"
#include "plain/norms.hpp"

namespace tigon_bench {
namespace {

template <class T>
struct mean_and_deviation {
  using view = tigon::matrix_view<T>;
  static constexpr bool steps = true;
  buffer<T> w, b, dw, db;
  buffer<tigon::accumulator_t<T>> mean, rstd;

  mean_and_deviation(std::size_t rows, std::size_t cols)
      : w(uniform<T>(cols, 0.5, 1.5, 2)), b(uniform<T>(cols, -1, 1, 3)), dw(cols), db(cols), mean(rows), rstd(rows) {}
  std::size_t saved_bytes() const { return mean.bytes() + rstd.bytes(); }
  std::size_t gradient_bytes() const { return dw.bytes() + db.bytes(); }

  template <class B>
  void forward(view x, view y, tigon::context& ctx) const {
    if constexpr (std::same_as<B, plain>)
      passes::layer_norm_forward<T>(ctx, x, tigon::vector_view<const T>{w.data(), w.size()},
                                    tigon::vector_view<const T>{b.data(), b.size()}, y, mean.data(), rstd.data(), 1e-6);
    else
      tigon::layer_norm_forward<B>(x, w.span(), b.span(), y, mean.span(), rstd.span(), {}, ctx);
  }
  template <class B>
  void backward(view dy, view x, view dx, tigon::context& ctx) const {
    if constexpr (std::same_as<B, plain>)
      passes::layer_norm_backward<T>(ctx, dy, x, tigon::vector_view<const T>{w.data(), w.size()}, mean.data(),
                                     rstd.data(), dx, {dw.data(), dw.size()}, {db.data(), db.size()});
    else
      tigon::layer_norm_backward<B>(dy, x, w.span(), mean.span(), rstd.span(),
                                    tigon::norm_gradients{dx, dw.span(), db.span()}, {}, ctx);
  }
};

}  // namespace

op_entry layer_norm() { return norm_entry<mean_and_deviation>("layer_norm"); }

}  // namespace tigon_bench
