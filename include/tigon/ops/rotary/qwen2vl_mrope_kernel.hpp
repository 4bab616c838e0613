// Rotary position embedding with positions in time, height and width, halves paired, forward and backward.
#ifndef TIGON_OPS_QWEN2VL_MROPE_HPP
#define TIGON_OPS_QWEN2VL_MROPE_HPP

#include <tigon/ops/rotary/rotation.hpp>

namespace tigon {

namespace op {
struct qwen2vl_mrope {
  static constexpr std::string_view name = "qwen2vl_mrope";
};
}  // namespace op

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
/// Options    backward: as in forward.
/// Writes     q', k' (backward: dq, dk).
/// Aliasing   q' may be q and k' may be k (in place). Otherwise any layout in which no written element is shared.
/// Throws     tigon::error: shape (also odd d and tables of another length), stride, alias, argument (sections that
///            are not d/2 together), workspace; before the first write.
/// Max error  f32 2e-7, bf16 4e-3 of the pair's length times hypot(cos, sin) (tests/ops/qwen2vl_mrope_test.cpp).
struct qwen2vl_mrope_options {
  std::array<std::size_t, 3> sections{};  ///< pairs rotated by time, by height, by width; together d/2
};

template <>
struct kernel<op::qwen2vl_mrope, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T, element U>
  static void forward(in_heads<T> q, in_heads<T> k, in_matrix<U> cos, in_matrix<U> sin, heads_view<T> q_out,
                      heads_view<T> k_out, qwen2vl_mrope_options opt, context& ctx) {
    rotate<B>(q, k, detail::rotary_tables<U>{cos, sin}, q_out, k_out, opt, accumulator_t<T>(1), ctx);
  }

  template <backend B, element T, element U>
  static void backward(in_heads<T> dq_out, in_heads<T> dk_out, in_matrix<U> cos, in_matrix<U> sin, heads_view<T> dq,
                       heads_view<T> dk, qwen2vl_mrope_options opt, context& ctx) {
    rotate<B>(dq_out, dk_out, detail::rotary_tables<U>{cos, sin}, dq, dk, opt, accumulator_t<T>(-1), ctx);
  }

  template <backend B, element T, element U, class A>
  static void rotate(heads_view<const T> q, heads_view<const T> k, detail::rotary_tables<U> tables, heads_view<T> q_out,
                     heads_view<T> k_out, qwen2vl_mrope_options opt, A sign, context& ctx) {
    const matrix_view<const U> cos = tables.cos, sin = tables.sin;
    const std::size_t tokens = q.batch * q.seq_len, half = q.head_dim / 2, width = (q.heads + k.heads) * q.head_dim;
    if (width == 0) return;
    for_rows_with_scratch<B, A>(ctx, tokens, width, 1, [=] TIGON_FN(auto token) {
      const std::size_t b = token.i / q.seq_len, s = token.i % q.seq_len;
      // One row of each table for all heads of the token: a token is at least as wide as both.
      const vector_view<A> c{token.scratch(0).data, half}, z{token.scratch(0).data + half, half};
      for (std::size_t t = 0, first = 0; t < 3; first += opt.sections[t++])
        token.part(first, opt.sections[t])
            .map(reads(in_vector<U>{cos.row(t * tokens + token.i), half},
                       in_vector<U>{sin.row(t * tokens + token.i), half}),
                 writes(c, z), [](auto cv, auto zv) {
                   return pack{cv, zv};
                 });
      detail::for_heads_of_token<B>(q, k, q_out, k_out, b, s, [=](const T* from, row_at<T> to) TIGON_LAMBDA {
        detail::turn_halves(token, from, to, half, c, z, sign);
      });
    });
  }
};

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
std::size_t qwen2vl_mrope_workspace(std::size_t heads, std::size_t head_dim, const context& ctx = default_context()) {
  return simd::scratch_workspace<B, accumulator_t<T>>(workspace::product(heads, head_dim), 1, ctx);
}

/// Rotated q and k. See qwen2vl_mrope_options for the contract.
template <class B = default_backend, class T, class U>
void qwen2vl_mrope_forward(in_heads<T> q, in_heads<T> k, matrix_view<U> cos, std::type_identity_t<matrix_view<U>> sin,
                           heads_view<T> q_out, heads_view<T> k_out, qwen2vl_mrope_options opt,
                           context& ctx = default_context()) {
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
                            qwen2vl_mrope_options opt, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using table = std::remove_const_t<U>;
  static_assert(admits_parameter<T, vector_view<U>>());
  detail::expect_qwen2vl_mrope<T>("qwen2vl_mrope_backward", dq_out, dk_out, cos, sin, dq, dk, opt);
  ctx.workspace().expect("qwen2vl_mrope_backward",
                         qwen2vl_mrope_workspace<B, T>(dq_out.heads + dk_out.heads, dq_out.head_dim, ctx));
  kernel_for<op::qwen2vl_mrope, B>::template backward<B, T, table>(dq_out, dk_out, cos, sin, dq, dk, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_QWEN2VL_MROPE_HPP
