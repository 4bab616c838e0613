// Rotary position embedding with positions in time, height and width, halves paired, forward and backward.
#ifndef TIGON_OPS_QWEN2VL_MROPE_HPP
#define TIGON_OPS_QWEN2VL_MROPE_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/rotary/qwen2vl_mrope_kernel.hpp>

namespace tigon {

/// Rotates the pair (j, j + d/2) of every head of q and k by one of a token's three angles.
///
///   t = 0 for the first sections[0] pairs, 1 for the next sections[1], 2 for the last sections[2]
///   c = cos[t, b, s, j],  z = sin[t, b, s, j],  j < d/2
///   q'[j]       = q[j] c - q[j + d/2] z
///   q'[j + d/2] = q[j + d/2] c + q[j] z                   k alike
///   backward is the transpose: dq[j] = dq'[j] c + dq'[j + d/2] z,  dq[j + d/2] = dq'[j + d/2] c - dq'[j] z
///
/// Formula    docs/formulas/qwen2vl_mrope.md; Wang et al., "Qwen2-VL", 2024.
/// Shapes     q, q' [batch, heads, seq_len, d], k, k' [batch, kv_heads, seq_len, d] with any strides; d even;
///            cos, sin [3 * batch * seq_len, >= d/2]: the tables of time, of height, of width, each with a row for
///            every token. Only the d/2 entries that a token uses are read. Any extent may be 0.
/// Types      q and k one of f32, bf16, f16, f64; tables any of them (f64 only with f64).
/// Precision  f32 (f64 for f64), one rounding at each output.
/// Options    backward takes those of forward.
/// Writes     q', k' (backward: dq, dk).
/// Aliasing   q' may be q and k' may be k (in place). Otherwise no output shares an element with another argument; any
///            layout.
/// Throws     tigon::error: shape (also odd d and tables of another length), stride, alias, argument (sections that
///            are not d/2 together), workspace; before the first write.
/// Max error  f32 2e-7, bf16 4e-3 of the pair's length times hypot(cos, sin) (tests/ops/qwen2vl_mrope_test.cpp).
///
/// ```cpp
/// std::vector<float> q(4 * 8 * 16, 0.5f), k(2 * 8 * 16, 0.5f), c(3 * 8 * 16, 1), s(c.size());
/// const auto heads = [](auto& v, std::size_t n) { return tigon::heads_view<float>::of_heads(v.data(), 1, n, 8, 16); };
/// const tigon::matrix_view cos(c.data(), 3 * 8, 16), sin(s.data(), 3 * 8, 16);
/// const tigon::qwen2vl_mrope_options opt{.sections = {2, 3, 3}};
/// tigon::qwen2vl_mrope_forward(heads(q, 4), heads(k, 2), cos, sin, heads(q, 4), heads(k, 2), opt);   // in place
/// tigon::qwen2vl_mrope_backward(heads(q, 4), heads(k, 2), cos, sin, heads(q, 4), heads(k, 2), opt);  // and back again
/// ```
struct qwen2vl_mrope_options;

namespace detail {
inline namespace TIGON_ABI {
template <class T, class U>
void expect_qwen2vl_mrope(std::string_view op, in_heads<T> q, in_heads<T> k, matrix_view<U> cos, matrix_view<U> sin,
                          heads_view<T> q_out, heads_view<T> k_out, qwen2vl_mrope_options opt) {
  arguments args(op);
  const std::size_t half = q.head_dim / 2;
  args.that(q.head_dim % 2 == 0, error_code::shape, "head_dim of q", "odd", "an even number");
  const auto [time, height, width] = opt.sections;
  args.that(time <= half && height <= half - time && width == half - time - height, error_code::argument,
            "sum of the sections", "not head_dim / 2", "head_dim / 2");
  declare_rotated<T>(args, q, k, q_out, k_out);
  args.that(cos.cols >= half, error_code::shape, "cos", "narrower than head_dim / 2", "at least head_dim / 2 columns");
  args.in("cos", cos, 3 * q.batch * q.seq_len, cos.cols);
  args.in("sin", sin, 3 * q.batch * q.seq_len, cos.cols);
  args.check();
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Bytes of workspace that qwen2vl_mrope_forward and qwen2vl_mrope_backward take; `heads` of q and k together.
template <class B = default_backend, class T>
std::size_t qwen2vl_mrope_workspace(std::size_t heads, std::size_t head_dim,
                                    const context& ctx = default_context<B>()) {
  return simd::scratch_workspace<B, accumulator_t<T>>(workspace::product(heads, head_dim), 1, ctx);
}

/// Rotated q and k. See qwen2vl_mrope_options for the contract.
template <class B = default_backend, class T, class U>
void qwen2vl_mrope_forward(in_heads<T> q, in_heads<T> k, matrix_view<U> cos, std::type_identity_t<matrix_view<U>> sin,
                           heads_view<T> q_out, heads_view<T> k_out, qwen2vl_mrope_options opt,
                           context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using table = std::remove_const_t<U>;
  static_assert(admits_parameter<T, vector_view<U>>());
  detail::expect_qwen2vl_mrope<T>("qwen2vl_mrope_forward", q, k, cos, sin, q_out, k_out, opt);
  ctx.workspace().expect("qwen2vl_mrope_forward", qwen2vl_mrope_workspace<B, T>(q.heads + k.heads, q.head_dim, ctx));
  kernel_for<op::qwen2vl_mrope, B>::template forward<B, T, table>(q, k, cos, sin, q_out, k_out, opt, ctx);
}

/// dq and dk from the gradients of the rotated q and k. See qwen2vl_mrope_options for the contract.
template <class B = default_backend, class T, class U>
void qwen2vl_mrope_backward(in_heads<T> dq_out, in_heads<T> dk_out, matrix_view<U> cos,
                            std::type_identity_t<matrix_view<U>> sin, heads_view<T> dq, heads_view<T> dk,
                            qwen2vl_mrope_options opt, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using table = std::remove_const_t<U>;
  static_assert(admits_parameter<T, vector_view<U>>());
  detail::expect_qwen2vl_mrope<T>("qwen2vl_mrope_backward", dq_out, dk_out, cos, sin, dq, dk, opt);
  ctx.workspace().expect("qwen2vl_mrope_backward",
                         qwen2vl_mrope_workspace<B, T>(dq_out.heads + dk_out.heads, dq_out.head_dim, ctx));
  kernel_for<op::qwen2vl_mrope, B>::template backward<B, T, table>(dq_out, dk_out, cos, sin, dq, dk, opt, ctx);
}

TIGON_EXPLAINS(qwen2vl_mrope_forward)
TIGON_EXPLAINS(qwen2vl_mrope_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_QWEN2VL_MROPE_HPP
