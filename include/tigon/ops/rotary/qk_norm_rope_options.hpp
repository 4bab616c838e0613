// The tag, options and operands of qk_norm_rope.
#ifndef TIGON_OPS_ROTARY_QK_NORM_ROPE_OPTIONS_HPP
#define TIGON_OPS_ROTARY_QK_NORM_ROPE_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/norm/rms_norm_program.hpp>
#include <tigon/ops/rotary/rotation.hpp>

namespace tigon {

namespace op {
struct qk_norm_rope {
  static constexpr std::string_view name = "qk_norm_rope";
};
}  // namespace op

/// The contract is in ops/qk_norm_rope.hpp.
struct qk_norm_rope_options {
  double eps = 1e-6;  ///< inside the square root
  double offset = 0;  ///< added to the weights; 1 for checkpoints that store w - 1
  tigon::casting casting = casting::llama;
  std::size_t rotary_dim = whole_head;  ///< columns of a head that are rotated; all of them are normed
  rotary_columns columns = rotary_columns::first;
  rotary_pairs pairs = rotary_pairs::halves;
  gradient dw = gradient::overwrite;
};

/// Heads of q and of k.
template <class T>
struct qk_heads {
  heads_view<T> q, k;
};
template <class T>
qk_heads(heads_view<T>, heads_view<T>) -> qk_heads<T>;

/// Weights of the heads of q and of k: ranges of elements, or `absent`.
template <class WQ, class WK>
struct qk_norm_weights {
  WQ q;
  WK k;
};
template <class WQ, class WK>
qk_norm_weights(WQ&&, WK&&) -> qk_norm_weights<WQ, WK>;

/// Tables of cosines and sines, of any element type.
template <class U>
struct rope_tables {
  matrix_view<U> cos, sin;
};
template <class U>
rope_tables(matrix_view<U>, matrix_view<U>) -> rope_tables<U>;

/// What backward writes: heads, and ranges of elements or `absent`.
template <class T, class DWQ, class DWK>
struct qk_norm_rope_gradients {
  heads_view<T> dq, dk;
  DWQ dw_q;
  DWK dw_k;
};
template <class T, class DWQ, class DWK>
qk_norm_rope_gradients(heads_view<T>, heads_view<T>, DWQ&&, DWK&&) -> qk_norm_rope_gradients<T, DWQ, DWK>;

}  // namespace tigon

#endif  // TIGON_OPS_ROTARY_QK_NORM_ROPE_OPTIONS_HPP
