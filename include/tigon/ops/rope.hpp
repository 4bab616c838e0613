// Rotary position embedding, halves paired, forward and backward.
#ifndef TIGON_OPS_ROPE_HPP
#define TIGON_OPS_ROPE_HPP

#include <tigon/ops/contract.hpp>
#include <tigon/simd/row.hpp>

namespace tigon {

namespace op {
struct rope {
  static constexpr std::string_view name = "rope";
};
}  // namespace op

/// Rotates the pair (j, j + d/2) of every head of q and k by the angle of its position.
///
///   c = cos[s, j],  z = sin[s, j],  j < d/2
///   q'[j]       = q[j] c - q[j + d/2] z
///   q'[j + d/2] = q[j + d/2] c + q[j] z                   k alike
///   backward is the transpose: dq[j] = dq'[j] c + dq'[j + d/2] z,  dq[j + d/2] = dq'[j + d/2] c - dq'[j] z
///
/// Formula    docs/formulas/rope.md; Su et al., "RoFormer", 2021, in the pairing of Llama.
/// Shapes     q, q' [batch, heads, seq_len, d], k, k' [batch, kv_heads, seq_len, d] with any strides; d even;
///            cos, sin [seq_len, >= d/2], or [batch * seq_len, >= d/2] with a table for every sequence. Columns from
///            d/2 on are not read. Any extent may be 0.
/// Types      q and k one of f32, bf16, f16, f64; tables any of them (f64 only with f64).
/// Precision  f32 (f64 for f64), one rounding at each output.
/// Writes     q', k' (backward: dq, dk).
/// Aliasing   q' may be q and k' may be k (in place); nothing else.
/// Throws     tigon::error: shape (also odd d and a table of another length), stride, alias; before the first write.
/// Max error  f32 2e-7, bf16 4e-3 of the pair's length times hypot(cos, sin) (tests/ops/rope_test.cpp).
struct rope_options {};

template <>
struct kernel<op::rope, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T, element U>
  static void forward(in_heads<T> q, in_heads<T> k, in_matrix<U> cos, in_matrix<U> sin, heads_view<T> q_out,
                      heads_view<T> k_out, rope_options, context& ctx) {
    rotate<B>(q, k, cos, sin, q_out, k_out, accumulator_t<T>(1), ctx);
  }

  template <backend B, element T, element U>
  static void backward(in_heads<T> dq_out, in_heads<T> dk_out, in_matrix<U> cos, in_matrix<U> sin, heads_view<T> dq,
                       heads_view<T> dk, rope_options, context& ctx) {
    rotate<B>(dq_out, dk_out, cos, sin, dq, dk, accumulator_t<T>(-1), ctx);
  }

  template <backend B, element T, element U, class A>
  static void rotate(heads_view<const T> q, heads_view<const T> k, matrix_view<const U> cos, matrix_view<const U> sin,
                     heads_view<T> q_out, heads_view<T> k_out, A sign, context& ctx) {
    const std::size_t tokens = q.batch * q.seq_len, half = q.head_dim / 2;
    const bool shared = cos.rows == q.seq_len;
    for_rows<B, A>(ctx, tokens, (q.heads + k.heads) * q.head_dim, [=] TIGON_FN(auto token) {
      const std::size_t b = token.i / q.seq_len, s = token.i % q.seq_len;
      const auto row = token.narrow(half);
      const in_vector<U> c{cos.row(shared ? s : token.i), half}, z{sin.row(shared ? s : token.i), half};
      const auto rotate_heads = [=](heads_view<const T> in, heads_view<T> out) {
        for (std::size_t h = 0; h < in.heads; ++h) {
          const T* p = in.at(b, h, s);
          T* r = out.at(b, h, s);
          row.map(
              outs(vector_view<T>{r, half}, vector_view<T>{r + half, half}),
              [=](auto u, auto v, auto cv, auto zv) {
                const auto w = zv * sign;
                return pack{fnma(v, w, u * cv), fma(u, w, v * cv)};
              },
              in_vector<T>{p, half}, in_vector<T>{p + half, half}, c, z);
        }
      };
      rotate_heads(q, q_out);
      rotate_heads(k, k_out);
    });
  }
};

namespace detail {
inline namespace TIGON_ABI {
template <class T, class U>
void expect_rotary(std::string_view op, in_heads<T> q, in_heads<T> k, matrix_view<U> cos, matrix_view<U> sin,
                   heads_view<T> q_out, heads_view<T> k_out) {
  const expects expect(op);
  expect.that(q.head_dim % 2 == 0, error_code::shape, "head_dim of q", "odd", "an even number");
  expect.heads("q", q, q.batch, q.heads, q.seq_len, q.head_dim);
  expect.heads("k", k, q.batch, k.heads, q.seq_len, q.head_dim);
  expect.heads("q_out", q_out, q.batch, q.heads, q.seq_len, q.head_dim);
  expect.heads("k_out", k_out, q.batch, k.heads, q.seq_len, q.head_dim);
  const std::size_t tables = cos.rows == q.batch * q.seq_len ? q.batch * q.seq_len : q.seq_len;
  expect.that(cos.cols >= q.head_dim / 2, error_code::shape, "cos", "narrower than head_dim / 2",
              "at least head_dim / 2 columns");
  expect.matrix("cos", cos, tables, cos.cols);
  expect.matrix("sin", sin, tables, cos.cols);
  expect.same_or_disjoint("q_out", q_out.memory(), "q", q.memory());
  expect.same_or_disjoint("k_out", k_out.memory(), "k", k.memory());
  expect.outside("q_out", q_out.memory(), "k", k.memory(), "k_out", k_out.memory(), "cos", cos, "sin", sin);
  expect.outside("k_out", k_out.memory(), "q", q.memory(), "cos", cos, "sin", sin);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Rotated q and k. See rope_options for the contract.
template <class B = default_backend, class T, class U>
void rope_forward(in_heads<T> q, in_heads<T> k, matrix_view<U> cos, std::type_identity_t<matrix_view<U>> sin,
                  heads_view<T> q_out, heads_view<T> k_out, rope_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using table = std::remove_const_t<U>;
  static_assert(admits_parameter<T, vector_view<U>>());
  detail::expect_rotary<T>("rope_forward", q, k, cos, sin, q_out, k_out);
  kernel_for<op::rope, B>::template forward<B, T, table>(q, k, cos, sin, q_out, k_out, opt, ctx);
}

/// dq and dk from the gradients of the rotated q and k. See rope_options for the contract.
template <class B = default_backend, class T, class U>
void rope_backward(in_heads<T> dq_out, in_heads<T> dk_out, matrix_view<U> cos, std::type_identity_t<matrix_view<U>> sin,
                   heads_view<T> dq, heads_view<T> dk, rope_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using table = std::remove_const_t<U>;
  static_assert(admits_parameter<T, vector_view<U>>());
  detail::expect_rotary<T>("rope_backward", dq_out, dk_out, cos, sin, dq, dk);
  kernel_for<op::rope, B>::template backward<B, T, table>(dq_out, dk_out, cos, sin, dq, dk, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_ROPE_HPP
