// RMS norm of each head of q and k and its rotation, in one pass, forward and backward.
#ifndef TIGON_OPS_QK_NORM_ROPE_HPP
#define TIGON_OPS_QK_NORM_ROPE_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/rotary/qk_norm_rope_kernel.hpp>

namespace tigon {

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
/// Options    backward takes those of forward.
/// Writes     q_out, k_out; dq, dk, dw_q, dw_k: a gradient that has no memory or is `absent` is not computed. dw_q and
///            dw_k are overwritten, or added to with gradient::accumulate. Nothing is saved: backward takes q and k.
/// Aliasing   q_out may be q and k_out may be k, where no backward follows. dq may be dq_out or q, dk may be dk_out or
///            k. Otherwise no output shares an element with another argument; any layout.
/// Throws     tigon::error: shape (also odd rotary_dim), stride, alias, argument (eps negative, a number outside
///            option_range, rotary_dim above d), workspace; before the first write.
/// Range      as rms_norm: every finite head. NaN and infinities stay in their head, and reach dw.
/// Max error  f32 1e-6, bf16 1.5e-2, f16 2e-3 of |reference| + its root mean square, for tables of unit length;
///            gradients 2e-6, 2e-2, 3e-3, of the terms that add up to them where these cancel
///            (tests/ops/qk_norm_rope_test.cpp).
///
/// ```cpp
/// std::vector<float> q(4 * 8 * 16, 0.5f), k(2 * 8 * 16, 0.5f), wq(16, 1), wk(16, 1), c(8 * 8, 1), s(8 * 8);
/// std::vector<float> yq(q.size()), yk(k.size()), dq(q.size()), dk(k.size()), dwq(16), dwk(16);
/// const auto heads = [](auto& v, std::size_t n) { return tigon::heads_view<float>::of_heads(v.data(), 1, n, 8, 16); };
/// const tigon::qk_norm_weights w{wq, wk};
/// const tigon::rope_tables tables{tigon::matrix_view(c.data(), 8, 8), tigon::matrix_view(s.data(), 8, 8)};
/// const tigon::qk_heads y{heads(yq, 4), heads(yk, 2)};
/// tigon::qk_norm_rope_forward({heads(q, 4), heads(k, 2)}, w, tables, y);
/// tigon::qk_norm_rope_backward({heads(yq, 4), heads(yk, 2)}, {heads(q, 4), heads(k, 2)}, w, tables,
///                              tigon::qk_norm_rope_gradients{heads(dq, 4), heads(dk, 2), dwq, dwk});  // dy = y
/// ```
struct qk_norm_rope_options;

/// Bytes of workspace that qk_norm_rope_forward takes.
template <class B = default_backend, class T>
std::size_t qk_norm_rope_workspace(std::size_t head_dim, const context& ctx = default_context<B>()) {
  using of = kernel<op::qk_norm_rope, backends::generic>;
  return simd::scratch_workspace<B, accumulator_t<T>>(workspace::product(of::group, head_dim), 1, ctx);
}
/// Bytes of workspace that qk_norm_rope_backward takes for so many heads: batch * seq_len * (heads + kv_heads).
template <class B = default_backend, class T>
std::size_t qk_norm_rope_backward_workspace(std::size_t heads, std::size_t head_dim,
                                            const context& ctx = default_context<B>()) {
  return std::max(simd::partials_workspace<B, accumulator_t<T>>(heads, head_dim, 3),
                  qk_norm_rope_workspace<B, T>(head_dim, ctx));
}

namespace detail {
inline namespace TIGON_ABI {
/// Weights, options and tables, of heads that are declared.
template <class A, class W, class U>
void declare_qk_norm(arguments& args, in_vector<W> w_q, in_vector<W> w_k, rope_tables<const U> tables, heads_shape q,
                     qk_norm_rope_options opt) {
  args.at_least_one("head_dim of q", q.head_dim);
  const std::size_t turned = declare_rotary_dim(args, q.head_dim, opt.rotary_dim);
  args.optional_in("w_q", w_q, q.head_dim);
  args.optional_in("w_k", w_k, q.head_dim);
  declare_rotary_tables(args, rotary_tables<U>{tables.cos, tables.sin}, q.batch, q.seq_len, turned,
                        opt.rotary_dim == whole_head);
  args.eps<A>(opt.eps);
  args.finite<A>("offset", opt.offset);
}
template <class W>
vector_view<W> absent_if_empty(vector_view<W> v) {
  return v.size == 0 ? vector_view<W>{} : v;
}
template <class T>
heads_shape shape_of(heads_view<T> h) {
  return {h.batch, h.heads, h.seq_len, h.head_dim};
}
}  // namespace TIGON_ABI
}  // namespace detail

/// q_out and k_out from q, k and the weights: qk_norm_rope_forward({q, k}, qk_norm_weights{w_q, w_k},
/// rope_tables{cos, sin}, qk_heads{q_out, k_out}). See qk_norm_rope_options for the contract.
template <class B = default_backend, class T, class WQ, class WK, class U>
void qk_norm_rope_forward(std::type_identity_t<qk_heads<const T>> x, const qk_norm_weights<WQ, WK>& w,
                          rope_tables<U> tables, qk_heads<T> y, qk_norm_rope_options opt = {},
                          context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using P = parameter_element_t<T, WQ, WK>;
  using E = std::remove_const_t<U>;
  const auto w_q = as_in_vector<P>(w.q), w_k = as_in_vector<P>(w.k);
  static_assert(admits_parameter<T, decltype(w_q), decltype(w_k)>() && admits_parameter<T, vector_view<E>>());
  arguments args("qk_norm_rope_forward");
  detail::declare_rotated<T>(args, x.q, x.k, y.q, y.k);
  detail::declare_qk_norm<accumulator_t<T>, P, E>(args, w_q, w_k, {tables.cos, tables.sin}, detail::shape_of(x.q), opt);
  args.check();
  ctx.workspace().expect("qk_norm_rope_forward", qk_norm_rope_workspace<B, T>(x.q.head_dim, ctx));
  kernel_for<op::qk_norm_rope, B>::template forward<B, T, P, E>(
      x, qk_norm_weights<in_vector<P>, in_vector<P>>{w_q, w_k}, rope_tables<const E>{tables.cos, tables.sin}, y, opt,
      ctx);
}

/// dq, dk, dw_q and dw_k from dq_out, dk_out, q, k and the weights: qk_norm_rope_backward({dq_out, dk_out}, {q, k},
/// ..., qk_norm_rope_gradients{dq, dk, dw_q, dw_k}). See qk_norm_rope_options for the contract.
template <class B = default_backend, class T, class WQ, class WK, class U, class DWQ, class DWK>
void qk_norm_rope_backward(std::type_identity_t<qk_heads<const T>> dy, std::type_identity_t<qk_heads<const T>> x,
                           const qk_norm_weights<WQ, WK>& w, rope_tables<U> tables,
                           const qk_norm_rope_gradients<T, DWQ, DWK>& gradients, qk_norm_rope_options opt = {},
                           context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using P = parameter_element_t<T, WQ, WK, DWQ, DWK>;
  using E = std::remove_const_t<U>;
  const auto w_q = as_in_vector<P>(w.q), w_k = as_in_vector<P>(w.k);
  const auto dw_q = detail::absent_if_empty(as_out_vector<P>(gradients.dw_q)),
             dw_k = detail::absent_if_empty(as_out_vector<P>(gradients.dw_k));
  static_assert(admits_parameter<T, decltype(w_q), decltype(w_k), decltype(dw_q), decltype(dw_k)>() &&
                admits_parameter<T, vector_view<E>>());
  arguments args("qk_norm_rope_backward");
  const detail::heads_shape of_q = detail::shape_of(x.q), of_k{of_q.batch, x.k.heads, of_q.seq_len, of_q.head_dim};
  args.in("q", x.q, of_q);
  args.in("k", x.k, of_k);
  args.in("dq_out", dy.q, of_q);
  args.in("dk_out", dy.k, of_k);
  detail::declare_qk_norm<accumulator_t<T>, P, E>(args, w_q, w_k, {tables.cos, tables.sin}, of_q, opt);
  if (gradients.dk.data != nullptr) args.out("dk", gradients.dk, of_k).may_be("dk_out", "k");
  if (gradients.dq.data != nullptr) args.out("dq", gradients.dq, of_q).may_be("dq_out", "q");
  args.optional_out("dw_k", dw_k, w_k.size);
  args.optional_out("dw_q", dw_q, w_q.size);
  args.check();
  const std::size_t heads = workspace::product(of_q.batch, of_q.seq_len, of_q.heads + of_k.heads);
  ctx.workspace().expect("qk_norm_rope_backward", qk_norm_rope_backward_workspace<B, T>(heads, of_q.head_dim, ctx));
  kernel_for<op::qk_norm_rope, B>::template backward<B, T, P, E>(
      dy, x, qk_norm_weights<in_vector<P>, in_vector<P>>{w_q, w_k}, rope_tables<const E>{tables.cos, tables.sin},
      qk_norm_rope_gradients<T, vector_view<P>, vector_view<P>>{gradients.dq, gradients.dk, dw_q, dw_k}, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_QK_NORM_ROPE_HPP
