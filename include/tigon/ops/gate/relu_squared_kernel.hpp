// The generic kernel of relu_squared.
#ifndef TIGON_OPS_GATE_RELU_SQUARED_KERNEL_HPP
#define TIGON_OPS_GATE_RELU_SQUARED_KERNEL_HPP

#include <tigon/ops/gate/relu_squared_options.hpp>
#include <tigon/rows/reduce_map.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
/// max(x, 0), with the operands in the order that keeps NaN.
template <class V>
TIGON_INLINE V positive(V x) {
  return max(V(0), x);
}

/// y = max(x, 0)^2
struct relu_squared_program {
  template <class V>
  TIGON_INLINE V map(V x) const {
    const V u = positive(x);
    return u * u;
  }
};

/// dx = 2 dy u,   u = max(x, 0), or sqrt(x) where x is y
template <bool FromY>
struct relu_squared_gradient {
  template <class V>
  TIGON_INLINE V map(V dy, V x) const {
    if constexpr (FromY) {
      const V u = sqrt(x);
      return dy * (u + u);
    } else {
      const V u = positive(x);
      return dy * (u + u);
    }
  }
};
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::relu_squared, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T>
  static void forward(in_matrix<T> x, matrix_view<T> y, context& ctx) {
    map_rows<B>(ctx, detail::relu_squared_program(), reads(x), writes(y));
  }

  template <backend B, element T>
  static void backward(in_matrix<T> dy, in_matrix<T> x, matrix_view<T> dx, relu_squared_options opt, context& ctx) {
    if (opt.from_y)
      map_rows<B>(ctx, detail::relu_squared_gradient<true>(), reads(dy, x), writes(dx));
    else
      map_rows<B>(ctx, detail::relu_squared_gradient<false>(), reads(dy, x), writes(dx));
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_GATE_RELU_SQUARED_KERNEL_HPP
