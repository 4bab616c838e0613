#include <tigon/ops/relu_squared.hpp>

#include "ops/norm.hpp"
#include "ops/table.hpp"
#include "plain/norms.hpp"

namespace tigon_bench {
namespace {

template <class T>
struct positive_part {
  using view = tigon::matrix_view<T>;
  static constexpr bool steps = true;

  positive_part(std::size_t, std::size_t) {}
  std::size_t saved_bytes() const { return 0; }
  std::size_t gradient_bytes() const { return 0; }

  template <class B>
  void forward(view x, view y, tigon::context& ctx) const {
    if constexpr (std::same_as<B, plain>)
      passes::relu_squared_forward<T>(ctx, x, y);
    else
      tigon::relu_squared_forward<B>(x, y, {}, ctx);
  }
  template <class B>
  void backward(view dy, view x, view dx, tigon::context& ctx) const {
    if constexpr (std::same_as<B, plain>)
      passes::relu_squared_backward<T>(ctx, dy, x, dx);
    else
      tigon::relu_squared_backward<B>(dy, x, dx, {}, ctx);
  }
};

}  // namespace

op_entry relu_squared() { return norm_entry<positive_part>("relu_squared"); }

}  // namespace tigon_bench
