// The tag, options and operands of neighborhood_attention_layer.
#ifndef TIGON_OPS_ATTENTION_NEIGHBORHOOD_ATTENTION_LAYER_OPTIONS_HPP
#define TIGON_OPS_ATTENTION_NEIGHBORHOOD_ATTENTION_LAYER_OPTIONS_HPP

#include <tigon/ops/attention/neighborhood_attention_options.hpp>

namespace tigon {

namespace op {
struct neighborhood_attention_layer {
  static constexpr std::string_view name = "neighborhood_attention_layer";
};
}  // namespace op

/// The contract is in ops/neighborhood_attention_layer.hpp.
struct neighborhood_attention_layer_options {
  std::size_t heads = 1;
  std::size_t seq_len = 1;  ///< tokens of a sequence
  neighborhood_attention_options attention = {};
  double eps = 1e-5;                       ///< of layer_norm
  gradient dparams = gradient::overwrite;  ///< of all parameters
};

/// Parameters, or their gradients. A field without memory: a parameter that is absent, a gradient that is not computed.
template <class E>
struct neighborhood_attention_layer_weights {
  matrix_view<E> wqkv, wo;
  std::span<E> bqkv, bo, norm, norm_bias;

  constexpr TIGON_INLINE bool any() const {
    return wqkv.data != nullptr || wo.data != nullptr || bqkv.data() != nullptr || bo.data() != nullptr ||
           norm.data() != nullptr || norm_bias.data() != nullptr;
  }
  constexpr TIGON_INLINE operator neighborhood_attention_layer_weights<const E>() const
    requires(!std::is_const_v<E>)
  {
    return {wqkv, wo, bqkv, bo, norm, norm_bias};
  }
};

/// What forward leaves for backward, in memory of the caller.
template <class T>
struct neighborhood_attention_layer_saved {
  using A = std::conditional_t<std::is_const_v<T>, const accumulator_t<std::remove_const_t<T>>,
                               accumulator_t<std::remove_const_t<T>>>;
  matrix_view<T> values;  ///< n, q, k, v and o of a token side by side
  std::span<A> numbers;   ///< mean and rstd of every token, then p of every head and token

  constexpr TIGON_INLINE operator neighborhood_attention_layer_saved<const T>() const
    requires(!std::is_const_v<T>)
  {
    return {values, numbers};
  }
};

enum class neighborhood_attention_layer_pass { forward, backward };

}  // namespace tigon

#endif  // TIGON_OPS_ATTENTION_NEIGHBORHOOD_ATTENTION_LAYER_OPTIONS_HPP
