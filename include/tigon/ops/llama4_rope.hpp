// Rotary position embedding, neighbours paired, forward and backward.
#ifndef TIGON_OPS_LLAMA4_ROPE_HPP
#define TIGON_OPS_LLAMA4_ROPE_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/rotary/llama4_rope_kernel.hpp>

namespace tigon {

/// Multiplies the pairs (2j, 2j + 1) of every head of q and k, as complex numbers, by the table of their position.
///
///   c = freqs[s, 2j],  z = freqs[s, 2j + 1],  j < d/2
///   q'[2j]     = q[2j] c - q[2j + 1] z
///   q'[2j + 1] = q[2j + 1] c + q[2j] z                    k alike
///   backward is the conjugate: dq[2j] = dq'[2j] c + dq'[2j + 1] z,  dq[2j + 1] = dq'[2j + 1] c - dq'[2j] z
///
/// Formula    docs/formulas/llama4_rope.md; Su et al., "RoFormer", 2021, in its own pairing.
/// Shapes     q, q' [batch, heads, seq_len, d], k, k' [batch, kv_heads, seq_len, d] with any strides; d even;
///            freqs [>= seq_len, d], of which the first seq_len rows are used, or [batch * seq_len, d] per sequence: a
///            complex [positions, d/2] as real numbers, as std::complex<float>* may be read. Any extent may be 0.
/// Types      q and k one of f32, bf16, f16, f64; freqs any of them (f64 only with f64).
/// Precision  f32 (f64 for f64), one rounding at each output.
/// Options    backward takes those of forward.
/// Writes     q', k' (backward: dq, dk).
/// Aliasing   q' may be q and k' may be k (in place). Otherwise no output shares an element with another argument; any
///            layout.
/// Throws     tigon::error: shape (also odd d, too few positions and a table of d/2 columns, which has no imaginary
///            parts), stride, alias; before the first write.
/// Max error  f32 2e-7, bf16 4e-3 of the pair's length times |c + i z| (tests/ops/llama4_rope_test.cpp).
///
/// ```cpp
/// std::vector<float> q(4 * 8 * 16, 0.5f), k(2 * 8 * 16, 0.5f), pairs(8 * 16);
/// std::vector<double> frequencies(8);
/// const auto heads = [](auto& v, std::size_t n) { return tigon::heads_view<float>::of_heads(v.data(), 1, n, 8, 16); };
/// const tigon::matrix_view table(pairs.data(), 8, 16);
/// tigon::rotary_frequencies(frequencies, 5e5);
/// tigon::fill_rotary_pairs(frequencies, tigon::positions_from{}, table);
/// tigon::llama4_rope_forward(heads(q, 4), heads(k, 2), table, heads(q, 4), heads(k, 2));   // in place
/// tigon::llama4_rope_backward(heads(q, 4), heads(k, 2), table, heads(q, 4), heads(k, 2));  // and back again
/// ```
struct llama4_rope_options;

namespace detail {
inline namespace TIGON_ABI {
template <class T, class U>
void expect_llama4_rope(std::string_view op, in_heads<T> q, in_heads<T> k, matrix_view<U> freqs, heads_view<T> q_out,
                        heads_view<T> k_out, llama4_rope_options opt) {
  arguments args(op);
  args.that(q.head_dim % 2 == 0, error_code::shape, "head_dim of q", "odd", "an even number");
  declare_rotated<T>(args, q, k, q_out, k_out);
  const bool more = opt.freqs == rotary_table::shared && freqs.rows > q.seq_len;
  args.in("freqs", freqs,
          more                                      ? freqs.rows
          : opt.freqs == rotary_table::per_sequence ? q.batch * q.seq_len
                                                    : q.seq_len,
          q.head_dim);
  args.check();
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Rotated q and k. See llama4_rope_options for the contract.
template <class B = default_backend, class T, class U>
void llama4_rope_forward(in_heads<T> q, in_heads<T> k, matrix_view<U> freqs, heads_view<T> q_out, heads_view<T> k_out,
                         llama4_rope_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using table = std::remove_const_t<U>;
  static_assert(admits_parameter<T, vector_view<U>>());
  detail::expect_llama4_rope<T>("llama4_rope_forward", q, k, freqs, q_out, k_out, opt);
  kernel_for<op::llama4_rope, B>::template forward<B, T, table>(q, k, freqs, q_out, k_out, opt, ctx);
}

/// dq and dk from the gradients of the rotated q and k. See llama4_rope_options for the contract.
template <class B = default_backend, class T, class U>
void llama4_rope_backward(in_heads<T> dq_out, in_heads<T> dk_out, matrix_view<U> freqs, heads_view<T> dq,
                          heads_view<T> dk, llama4_rope_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using table = std::remove_const_t<U>;
  static_assert(admits_parameter<T, vector_view<U>>());
  detail::expect_llama4_rope<T>("llama4_rope_backward", dq_out, dk_out, freqs, dq, dk, opt);
  kernel_for<op::llama4_rope, B>::template backward<B, T, table>(dq_out, dk_out, freqs, dq, dk, opt, ctx);
}

TIGON_EXPLAINS(llama4_rope_forward)
TIGON_EXPLAINS(llama4_rope_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_LLAMA4_ROPE_HPP
