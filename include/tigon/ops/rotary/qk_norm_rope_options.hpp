// qk_norm_rope: its contract, and the aggregates of its doors.
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

/// RMS norm over each head of q and of k, with a weight for either, and the rotation of the result (Qwen3, Gemma 3,
/// GLM).
///
///   rstd = 1 / sqrt(mean_j x[j]^2 + eps)                     x a head of q with w = w_q, or of k with w_k
///   v[j] = x[j] * rstd * (offset + w[j])                     w absent: v = x * rstd
///   y    = R v, as rope has it for the options of the rotation: q_out, k_out
///   g    = R^T dy,   m = g * (offset + w),   k = sum_j m[j] x[j]
///   dx   = rstd * m - rstd^3 * k / d * x                     dq, dk
///   dw[j] = sum over all heads of q (or k) of g[j] * x[j] * rstd
///
/// Formula    docs/formulas/qk_norm_rope.md.
/// Shapes     q, q_out [batch, heads, seq_len, d], k, k_out [batch, kv_heads, seq_len, d] with any strides, kv_heads
///            maybe 0; w_q, w_k, dw_q, dw_k [d] or `absent`; cos, sin as of rope. d >= 1, any other extent may be 0.
/// Types      q and k one of f32, bf16, f16, f64; weights and their gradients any of them, tables any of them (f64 only
///            with f64).
/// Precision  sums and rstd in f32 (f64 for f64); v is not rounded (llama rounds x * rstd, whether w is there or not);
///            one rounding at each output.
/// Options    backward: as in forward.
/// Writes     q_out, k_out; dq, dk, dw_q, dw_k: a gradient that has no memory or is `absent` is not computed. dw_q and
///            dw_k are overwritten, or added to with gradient::accumulate. Nothing is saved: backward takes q and k.
/// Aliasing   q_out may be q and k_out may be k, where no backward follows. dq may be dq_out or q, dk may be dk_out or
///            k. Otherwise any layout in which no written element is shared.
/// Throws     tigon::error: shape (also odd rotary_dim), stride, alias, argument (eps negative, a number outside
///            option_range, rotary_dim above d), workspace; before the first write.
/// Range      as rms_norm: heads of any size that their type holds. NaN and infinities stay in their head, and reach
///            dw.
/// Max error  f32 1e-6, bf16 1.5e-2, f16 2e-3 of |reference| + its root mean square, for tables of unit length;
///            gradients 2e-6, 2e-2, 3e-3, of the terms that add up to them where these cancel
///            (tests/ops/qk_norm_rope_test.cpp).
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
