// What the public functions of a mixture of experts take and leave: the choices of tokens, weights with biases, and
// gradients.
#ifndef TIGON_OPS_MOE_ARGUMENTS_HPP
#define TIGON_OPS_MOE_ARGUMENTS_HPP

#include <tigon/backend/operator.hpp>

#include <cstddef>
#include <type_traits>

namespace tigon {

/// moe_choices{indices, weights}
template <class I, class R>
struct moe_choices {
  matrix_view<const I> indices;
  matrix_view<const R> weights;
};
template <class I, class R>
moe_choices(matrix_view<I>, matrix_view<R>) -> moe_choices<std::remove_const_t<I>, std::remove_const_t<R>>;

/// moe_weights{gate_up, down, experts}, with biases moe_weights{gate_up, down, experts, gate_up_bias, down_bias}
template <class E>
struct moe_weights {
  matrix_view<E> gate_up, down;
  std::size_t experts = 0;
  matrix_view<E> gate_up_bias = {}, down_bias = {};

  constexpr TIGON_INLINE bool any_bias() const { return gate_up_bias.data != nullptr || down_bias.data != nullptr; }
  constexpr TIGON_INLINE operator moe_weights<const E>() const
    requires(!std::is_const_v<E>)
  {
    return {gate_up, down, experts, gate_up_bias, down_bias};
  }
};
template <class E>
moe_weights(matrix_view<E>, std::type_identity_t<matrix_view<E>>, std::size_t) -> moe_weights<E>;
template <class E>
moe_weights(matrix_view<E>, std::type_identity_t<matrix_view<E>>, std::size_t, std::type_identity_t<matrix_view<E>>,
            std::type_identity_t<matrix_view<E>>) -> moe_weights<E>;

/// moe_gradients{dx, dgate_up, ddown, dweights}, with biases moe_gradients{dx, dgate_up, ddown, dweights,
/// dgate_up_bias, ddown_bias}: those without memory are not computed.
template <class T, class G, class R>
struct moe_gradients {
  matrix_view<T> dx;
  matrix_view<G> dgate_up, ddown;
  matrix_view<R> dweights;
  matrix_view<G> dgate_up_bias = {}, ddown_bias = {};

  constexpr TIGON_INLINE bool any_bias() const { return dgate_up_bias.data != nullptr || ddown_bias.data != nullptr; }
  /// Whether the experts are frozen.
  constexpr TIGON_INLINE parameters of_weights() const {
    return trained_if(dgate_up.data != nullptr || ddown.data != nullptr || any_bias());
  }
};
template <class T, class G, class R>
moe_gradients(matrix_view<T>, matrix_view<G>, std::type_identity_t<matrix_view<G>>, matrix_view<R>)
    -> moe_gradients<T, G, R>;
template <class T, class G, class R>
moe_gradients(matrix_view<T>, matrix_view<G>, std::type_identity_t<matrix_view<G>>, matrix_view<R>,
              std::type_identity_t<matrix_view<G>>, std::type_identity_t<matrix_view<G>>) -> moe_gradients<T, G, R>;

}  // namespace tigon

#endif  // TIGON_OPS_MOE_ARGUMENTS_HPP
