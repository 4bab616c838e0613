#include <tigon/ops/dyt.hpp>

#include "ops/norm.hpp"
#include "ops/table.hpp"
#include "plain/norms.hpp"

namespace tigon_bench {
namespace {

template <class T>
struct dynamic_tanh {
  using view = tigon::matrix_view<T>;
  static constexpr bool steps = true;
  buffer<T> alpha, gamma, beta, dalpha, dgamma, dbeta;

  dynamic_tanh(std::size_t, std::size_t cols)
      : alpha(uniform<T>(1, 0.5, 0.5, 2)),
        gamma(uniform<T>(cols, 0.5, 1.5, 3)),
        beta(uniform<T>(cols, -1, 1, 4)),
        dalpha(1),
        dgamma(cols),
        dbeta(cols) {}
  std::size_t saved_bytes() const { return 0; }
  std::size_t gradient_bytes() const { return dalpha.bytes() + dgamma.bytes() + dbeta.bytes(); }

  template <class B>
  void forward(view x, view y, tigon::context& ctx) const {
    using A = tigon::accumulator_t<T>;
    if constexpr (std::same_as<B, plain>)
      passes::dyt_forward<T>(ctx, x, static_cast<A>(alpha[0]), {gamma.data(), gamma.size()}, {beta.data(), beta.size()},
                             y);
    else
      tigon::dyt_forward<B>(x, alpha.span(), gamma.span(), beta.span(), y, {}, ctx);
  }
  template <class B>
  void backward(view dy, view x, view dx, tigon::context& ctx) const {
    using A = tigon::accumulator_t<T>;
    if constexpr (std::same_as<B, plain>)
      passes::dyt_backward<T>(ctx, dy, x, static_cast<A>(alpha[0]), {gamma.data(), gamma.size()}, dx, dalpha.data(),
                              {dgamma.data(), dgamma.size()}, {dbeta.data(), dbeta.size()});
    else
      tigon::dyt_backward<B>(dy, x, alpha.span(), gamma.span(),
                             tigon::dyt_gradients{dx, dalpha.span(), dgamma.span(), dbeta.span()}, {}, ctx);
  }
};

}  // namespace

op_entry dyt() { return norm_entry<dynamic_tanh>("dyt"); }

}  // namespace tigon_bench
