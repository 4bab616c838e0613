// The tag, options, operands and checks of attention.
#ifndef TIGON_OPS_ATTENTION_ATTENTION_OPTIONS_HPP
#define TIGON_OPS_ATTENTION_ATTENTION_OPTIONS_HPP

#include <tigon/backend/operator.hpp>

#include <cmath>
#include <cstdint>
#include <span>

namespace tigon {

/// Which keys a query sees, before the other options of attention_options.
enum class attention_mask {
  causal,  ///< its own and those before it
  none,    ///< all of its sequence
};

namespace op {
struct attention {
  static constexpr std::string_view name = "attention";
};
}  // namespace op

/// The contract is in ops/attention.hpp.
struct attention_options {
  static constexpr std::size_t unlimited = static_cast<std::size_t>(-1);

  attention_mask mask = attention_mask::causal;
  double scale = 0;                      ///< 0: 1 / sqrt(d)
  double softcap = 0;                    ///< 0: none
  std::size_t window_left = unlimited;   ///< keys before its position that a query sees
  std::size_t window_right = unlimited;  ///< keys behind it; none with attention_mask::causal
  std::size_t prefix = 0;                ///< keys at the beginning of a document that all of its queries see
  std::size_t offset = 0;  ///< position of the first query among the keys: the length of a cache before it
  std::span<const std::int32_t> cumulative_lengths = {};  ///< of packed documents
  std::span<const float> sinks = {};                      ///< a logit for every head
  std::span<const std::int32_t> key_begins = {};          ///< of a batch entry: its keys before it are padding
  std::span<const std::int32_t> key_ends = {};            ///< of a batch entry: its keys from it on are padding
};

/// What attention_forward left: {o, lse}, or {.o = o, .lse = lse}.
template <class T, class Lse>
struct attention_saved {
  heads_view<T> o;
  Lse lse;
};

/// attention_gradients{dq, dk, dv}, or with the names of the fields; with sinks also dsinks, where they are wanted. {}
/// in the place of one is an input that needs no gradient.
template <class T>
struct attention_gradients {
  heads_view<T> dq, dk, dv;
  std::span<accumulator_t<T>> dsinks = {};
  std::span<accumulator_t<T>> delta = {};  ///< written for a 16-bit dk without dq
};
template <class T>
attention_gradients(heads_view<T>, std::type_identity_t<heads_view<T>>, std::type_identity_t<heads_view<T>>)
    -> attention_gradients<T>;
template <class T>
attention_gradients(heads_view<T>, std::type_identity_t<heads_view<T>>, std::type_identity_t<heads_view<T>>,
                    std::type_identity_t<std::span<accumulator_t<T>>>) -> attention_gradients<T>;

namespace detail {
inline namespace TIGON_ABI {
inline double attention_scale(const attention_options& opt, std::size_t head_dim) {
  return opt.scale != 0 ? opt.scale : 1 / std::sqrt(static_cast<double>(head_dim));
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_ATTENTION_ATTENTION_OPTIONS_HPP
