// Rotary position embedding by tables of cosines and sines, forward and backward.
#ifndef TIGON_OPS_ROPE_HPP
#define TIGON_OPS_ROPE_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/rotary/rope_kernel.hpp>

namespace tigon {

/// Rotates r = rotary_dim columns of every head of q and k, pair by pair, by the angles of their position.
///
///   c = cos[s, j],  z = sin[s, j],  j < r/2
///   (a, b) = (f + j, f + j + r/2) for halves, (f + 2j, f + 2j + 1) for neighbours;  f = 0, d - r for the last columns
///   q'[a] = q[a] c - q[b] z
///   q'[b] = q[b] c + q[a] z
///   q'[j] = q[j] for the other columns                    k alike
///   backward is the transpose: dq[a] = dq'[a] c + dq'[b] z,  dq[b] = dq'[b] c - dq'[a] z
///
/// Formula    docs/formulas/rope.md; Su et al., "RoFormer", 2021. Tables: ops/rotary_tables.hpp.
/// Shapes     q, q' [batch, heads, seq_len, d], k, k' [batch, kv_heads, seq_len, d] with any strides; r even, at most
///            d; cos, sin [seq_len, >= r/2], or [batch * seq_len, >= r/2] with a table for every sequence. Columns from
///            r/2 on are not read. Any extent may be 0. k and k' may be left out: where heads of k are narrower than
///            those of q, as DeepSeek's are, k is rotated by a call of its own.
/// Types      q and k one of f32, bf16, f16, f64; tables any of them (f64 only with f64).
/// Precision  f32 (f64 for f64), one rounding at each output.
/// Options    backward takes those of forward.
/// Writes     q', k' (backward: dq, dk); in place, columns that are not rotated are not touched.
/// Aliasing   q' may be q and k' may be k (in place). Otherwise no output shares an element with another argument; any
///            layout.
/// Throws     tigon::error: shape (also odd r and a table of another length), stride, alias, argument (r above d);
///            before the first write.
/// Max error  f32 2e-7, bf16 4e-3 of the pair's length times hypot(cos, sin) (tests/ops/rope_test.cpp).
///
/// ```cpp
/// std::vector<float> q(4 * 8 * 16, 0.5f), k(2 * 8 * 16, 0.5f), c(8 * 8), s(8 * 8);
/// std::vector<double> frequencies(8);
/// const auto heads = [](auto& v, std::size_t n) { return tigon::heads_view<float>::of_heads(v.data(), 1, n, 8, 16); };
/// const tigon::matrix_view cos(c.data(), 8, 8), sin(s.data(), 8, 8);
/// tigon::rotary_frequencies(frequencies, 1e4);
/// tigon::fill_rotary_tables(frequencies, tigon::positions_from{}, cos, sin);
/// tigon::rope_forward(heads(q, 4), heads(k, 2), cos, sin, heads(q, 4), heads(k, 2));   // in place
/// tigon::rope_backward(heads(q, 4), heads(k, 2), cos, sin, heads(q, 4), heads(k, 2));  // and back again
/// ```
struct rope_options;

namespace detail {
inline namespace TIGON_ABI {
template <class T, class U>
void expect_rope(std::string_view op, in_heads<T> q, in_heads<T> k, matrix_view<U> cos, matrix_view<U> sin,
                 heads_view<T> q_out, heads_view<T> k_out, rope_options opt) {
  arguments args(op);
  const std::size_t turned = declare_rotary_dim(args, q.head_dim, opt.rotary_dim);
  declare_rotated<T>(args, q, k, q_out, k_out);
  declare_rotary_tables(args, rotary_tables<std::remove_const_t<U>>{cos, sin}, q.batch, q.seq_len, turned,
                        opt.rotary_dim == whole_head);
  args.check();
}

/// In the place of k, where only q is rotated.
template <class T>
heads_view<T> no_heads_beside(heads_view<T> q) {
  return {nullptr, q.batch, 0, q.seq_len, q.head_dim, 0, 0, 0};
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Rotated q and k. See rope_options for the contract.
template <class B = default_backend, class T, class U>
void rope_forward(in_heads<T> q, in_heads<T> k, matrix_view<U> cos, std::type_identity_t<matrix_view<U>> sin,
                  heads_view<T> q_out, heads_view<T> k_out, rope_options opt = {},
                  context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using table = std::remove_const_t<U>;
  static_assert(admits_parameter<T, vector_view<U>>());
  detail::expect_rope<T>("rope_forward", q, k, cos, sin, q_out, k_out, opt);
  kernel_for<op::rope, B>::template forward<B, T, table>(q, k, cos, sin, q_out, k_out, opt, ctx);
}

/// Rotated q alone.
template <class B = default_backend, class T, class U>
void rope_forward(in_heads<T> q, matrix_view<U> cos, std::type_identity_t<matrix_view<U>> sin, heads_view<T> q_out,
                  rope_options opt = {}, context& ctx = default_context<B>()) {
  rope_forward<B, T, U>(q, detail::no_heads_beside(q), cos, sin, q_out, detail::no_heads_beside(q_out), opt, ctx);
}

/// dq and dk from the gradients of the rotated q and k. See rope_options for the contract.
template <class B = default_backend, class T, class U>
void rope_backward(in_heads<T> dq_out, in_heads<T> dk_out, matrix_view<U> cos, std::type_identity_t<matrix_view<U>> sin,
                   heads_view<T> dq, heads_view<T> dk, rope_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using table = std::remove_const_t<U>;
  static_assert(admits_parameter<T, vector_view<U>>());
  detail::expect_rope<T>("rope_backward", dq_out, dk_out, cos, sin, dq, dk, opt);
  kernel_for<op::rope, B>::template backward<B, T, table>(dq_out, dk_out, cos, sin, dq, dk, opt, ctx);
}

/// dq alone.
template <class B = default_backend, class T, class U>
void rope_backward(in_heads<T> dq_out, matrix_view<U> cos, std::type_identity_t<matrix_view<U>> sin, heads_view<T> dq,
                   rope_options opt = {}, context& ctx = default_context<B>()) {
  rope_backward<B, T, U>(dq_out, detail::no_heads_beside(dq_out), cos, sin, dq, detail::no_heads_beside(dq), opt, ctx);
}

TIGON_EXPLAINS(rope_forward)
TIGON_EXPLAINS(rope_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_ROPE_HPP
