// The tag, options, operands and checks of neighborhood_attention.
#ifndef TIGON_OPS_ATTENTION_NEIGHBORHOOD_ATTENTION_OPTIONS_HPP
#define TIGON_OPS_ATTENTION_NEIGHBORHOOD_ATTENTION_OPTIONS_HPP

#include <tigon/backend/operator.hpp>

#include <cstddef>
#include <span>

namespace tigon {

namespace op {
struct neighborhood_attention {
  static constexpr std::string_view name = "neighborhood_attention";
};
}  // namespace op

/// The contract is in ops/neighborhood_attention.hpp.
struct neighborhood_attention_options {
  std::size_t kernel_size = 7;  ///< keys that a query sees: odd
  std::size_t dilation = 1;     ///< tokens from one of them to the next
  double scale = 0;             ///< 0: 1 / sqrt(d)
};

/// What neighborhood_attention_forward leaves: {probs, lse}, or {.probs = probs}, or {}. Either may be absent.
template <class A>
struct neighborhood_attention_saved {
  matrix_view<A> probs;
  std::span<A> lse;

  constexpr TIGON_INLINE operator neighborhood_attention_saved<const A>() const
    requires(!std::is_const_v<A>)
  {
    return {probs, lse};
  }
};

/// neighborhood_attention_gradients{dq, dk, dv}, or with the names of the fields.
template <class T>
struct neighborhood_attention_gradients {
  heads_view<T> dq, dk, dv;
};
template <class T>
neighborhood_attention_gradients(heads_view<T>, std::type_identity_t<heads_view<T>>,
                                 std::type_identity_t<heads_view<T>>) -> neighborhood_attention_gradients<T>;

namespace detail {
inline namespace TIGON_ABI {
template <class A>
void check_neighborhood(const expects& expect, neighborhood_attention_options opt) {
  expect.option(opt.kernel_size % 2 == 1, "kernel_size", static_cast<double>(opt.kernel_size), "an odd number");
  expect.option(opt.dilation != 0, "dilation", static_cast<double>(opt.dilation), "at least 1");
  expect.finite<A>("scale", opt.scale);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Bytes of workspace that neighborhood_attention_forward takes for batch * heads * seq_len queries on `workers`
/// workers, ctx.executor().workers(), with probs of its caller or without.
template <class B = default_backend, class T>
std::size_t neighborhood_attention_workspace(std::size_t queries, neighborhood_attention_options opt = {},
                                             std::size_t workers = 1, bool with_probs = true) {
  using K = kernel_for<op::neighborhood_attention, B>;
  return K::template forward_workspace<B, T>(queries, opt, workers, with_probs);
}
/// Bytes of workspace that neighborhood_attention_backward takes.
template <class B = default_backend, class T>
std::size_t neighborhood_attention_backward_workspace(std::size_t queries, neighborhood_attention_options opt = {},
                                                      std::size_t workers = 1, bool with_probs = true) {
  using K = kernel_for<op::neighborhood_attention, B>;
  return K::template backward_workspace<B, T>(queries, opt, workers, with_probs);
}

}  // namespace tigon

#endif  // TIGON_OPS_ATTENTION_NEIGHBORHOOD_ATTENTION_OPTIONS_HPP
