// The tag, options, operands and checks of multi_token_attention.
#ifndef TIGON_OPS_ATTENTION_MULTI_TOKEN_ATTENTION_OPTIONS_HPP
#define TIGON_OPS_ATTENTION_MULTI_TOKEN_ATTENTION_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/attention/plane_windows.hpp>

#include <algorithm>
#include <cstddef>
#include <span>

namespace tigon {

namespace op {
struct multi_token_attention {
  static constexpr std::string_view name = "multi_token_attention";
};
}  // namespace op

/// A number for the axis of the queries (rows of scores) and one for that of the keys (columns), or one for both.
struct query_key {
  std::size_t queries, keys;

  constexpr TIGON_INLINE query_key(std::size_t both) : queries(both), keys(both) {}  // NOLINT: a number stands for both
  constexpr TIGON_INLINE query_key(std::size_t of_queries, std::size_t of_keys) : queries(of_queries), keys(of_keys) {}
};

/// The contract is in ops/multi_token_attention.hpp.
struct multi_token_attention_options {
  query_key stride = 1, padding = 0, dilation = 1;
  std::size_t groups = 1;
  bool sparse = false;                     ///< sparsemax instead of softmax
  gradient dparams = gradient::overwrite;  ///< dw and db
};

/// multi_token_attention_gradients{dscores, dw, db}, or with the names of the fields; {} is frozen parameters.
template <class T>
struct multi_token_attention_gradients {
  heads_view<T> dscores, dw;
  std::span<T> db;
};
template <class T>
multi_token_attention_gradients(heads_view<T>, std::type_identity_t<heads_view<T>>, std::type_identity_t<std::span<T>>)
    -> multi_token_attention_gradients<T>;

namespace detail {
inline namespace TIGON_ABI {
inline convolution_axis query_axis(std::size_t len, std::size_t taps, multi_token_attention_options opt) {
  return {len, taps, std::max<std::size_t>(opt.stride.queries, 1), opt.padding.queries, opt.dilation.queries};
}
inline convolution_axis key_axis(std::size_t len, std::size_t taps, multi_token_attention_options opt) {
  return {len, taps, std::max<std::size_t>(opt.stride.keys, 1), opt.padding.keys, opt.dilation.keys};
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_ATTENTION_MULTI_TOKEN_ATTENTION_OPTIONS_HPP
