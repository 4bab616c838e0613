// Softmax attention of a window of keys around every query, forward and backward.
#ifndef TIGON_OPS_NEIGHBORHOOD_ATTENTION_HPP
#define TIGON_OPS_NEIGHBORHOOD_ATTENTION_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/attention/neighborhood_attention_kernel.hpp>

#include <cstddef>

namespace tigon {

/// Softmax attention in which a query sees the keys around it. With r = kernel_size / 2, query i sees the keys
/// j = i + (m - r) * dilation, m = 0, ..., kernel_size - 1, that exist: 0 <= j < seq_len. Query i sees key j where
/// query j sees key i.
///
///   s[i,m] = scale * sum_c q[i,c] k[j,c],   p[i] = softmax of s[i],   o[i] = sum_m p[i,m] v[j]
///   dp[i,m] = sum_c do[i,c] v[j,c],   ds[i,m] = p[i,m] * (dp[i,m] - sum_n p[i,n] dp[i,n])
///   dq[i] = scale * sum_m ds[i,m] k[j]
///   dk[j] = scale * sum_i ds[i,m] q[i],   dv[j] = sum_i p[i,m] do[i]     over the queries that see key j
///
/// The window is clipped at both ends of a sequence: queries there see fewer keys. That of NATTEN is shifted inwards
/// instead, so that every query sees kernel_size keys.
///
/// Formula    docs/formulas/neighborhood_attention.md; Hassani et al., "Neighborhood Attention Transformer", 2023, and
///            "Dilated Neighborhood Attention Transformer", 2022, in one dimension and with a clipped window.
/// Shapes     q, k, v, o, do, dq, dk, dv [batch, heads, seq_len, d], any strides; probs [batch * heads * seq_len,
///            kernel_size], lse [batch * heads * seq_len]. d >= 1; batch, heads, seq_len may be 0.
/// Types      one of f32, bf16, f16, f64 for all; probs and lse f32 (f64 for f64).
/// Precision  s, p, dp, ds and every sum in f32 (f64 for f64): nothing is rounded to 16 bits on the way. o, dq, dk, dv
///            are rounded once. Softmax is op::softmax of the backend, forward and backward, with its precision.
/// Options    backward takes those of forward.
/// Writes     o, and of p and lse[i] = log(sum_m exp(s[i,m])) what is given memory; dq, dk, dv. probs holds p, and 0
///            where no key exists. backward makes p again where it is given none, with the same bits; it does not read
///            lse, which is for callers that merge o with that of other keys. Scratch: in forward the scores of a
///            block of queries for each worker, where probs is absent; in backward ds, and p where it is absent: of the
///            size of probs. Nothing is of size seq_len * seq_len.
/// Aliasing   no output shares an element with another argument; any layout.
/// Threads    the same bits for any number of them, and for any B::attention.query_block. Tasks: batch * heads *
///            query blocks.
/// Throws     tigon::error: shape, stride, alias, argument (kernel_size even, dilation 0, scale outside option_range),
///            workspace; before the first write.
/// Edges      a row whose scores hold NaN, +inf or only -inf is NaN. What a query does not see does not matter: NaN in
///            k[j] and v[j] reaches o[i] only where query i sees key j. kernel_size may be larger than seq_len.
/// Max error  f32 2e-6, bf16 4e-3 of |reference| + its root mean square; lse 5e-7; gradients 4e-6, 8e-3
///            (tests/ops/neighborhood_attention_test.cpp). It does not grow with seq_len, nor with kernel_size up to
///            64.
///
/// ```cpp
/// std::vector<float> q(4 * 8 * 16, 0.5f), k(q), v(q), o(q.size()), probs(4 * 8 * 7), lse(4 * 8), dq(q), dk(q), dv(q);
/// const auto heads = [](auto& v) { return tigon::heads_view<float>::of_heads(v.data(), 1, 4, 8, 16); };
/// const tigon::neighborhood_attention_saved<float> saved{tigon::matrix_view(probs.data(), 4 * 8, 7), lse};
/// tigon::neighborhood_attention_forward(heads(q), heads(k), heads(v), heads(o), saved, {.kernel_size = 7});
/// tigon::neighborhood_attention_backward(heads(o), heads(q), heads(k), heads(v), saved,
///                                        tigon::neighborhood_attention_gradients{heads(dq), heads(dk), heads(dv)});
/// ```
struct neighborhood_attention_options;

namespace detail {
inline namespace TIGON_ABI {
/// Declares q, k and v, and checks the options.
template <class T>
heads_shape declare_neighborhood(arguments& args, in_heads<T> q, in_heads<T> k, in_heads<T> v,
                                 neighborhood_attention_options opt) {
  args.at_least_one("head_dim", q.head_dim);
  check_neighborhood<accumulator_t<T>>(args, opt);
  const heads_shape of{q.batch, q.heads, q.seq_len, q.head_dim};
  args.in("q", q, of);
  args.in("k", k, of);
  args.in("v", v, of);
  return of;
}
}  // namespace TIGON_ABI
}  // namespace detail

/// o and what is saved from q, k and v. See neighborhood_attention_options for the contract.
template <class B = default_backend, class T>
void neighborhood_attention_forward(
    in_heads<T> q, in_heads<T> k, in_heads<T> v, heads_view<T> o,
    std::type_identity_t<saved_t<op::neighborhood_attention, B, accumulator_t<T>>> saved,
    neighborhood_attention_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("neighborhood_attention_forward");
  const detail::heads_shape of = detail::declare_neighborhood<T>(args, q, k, v, opt);
  const std::size_t queries = q.batch * q.heads * q.seq_len;
  args.out("o", o, of);
  args.optional_out("probs", saved.probs, queries, opt.kernel_size);
  args.optional_out("lse", saved.lse, queries);
  args.check();
  ctx.workspace().expect(
      "neighborhood_attention_forward",
      neighborhood_attention_workspace<B, T>(queries, opt, ctx.executor().workers(), saved.probs.data != nullptr));
  kernel_for<op::neighborhood_attention, B>::template forward<B, T>(q, k, v, o, saved, opt, ctx);
}

/// dq, dk and dv from do, the inputs and what forward left. See neighborhood_attention_options for the contract.
template <class B = default_backend, class T>
void neighborhood_attention_backward(
    in_heads<T> d_o, in_heads<T> q, in_heads<T> k, in_heads<T> v,
    std::type_identity_t<saved_t<op::neighborhood_attention, B, const accumulator_t<T>>> saved,
    neighborhood_attention_gradients<T> gradients, neighborhood_attention_options opt = {},
    context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("neighborhood_attention_backward");
  const detail::heads_shape of = detail::declare_neighborhood<T>(args, q, k, v, opt);
  const std::size_t queries = q.batch * q.heads * q.seq_len;
  args.in("do", d_o, of);
  args.optional_in("probs", saved.probs, queries, opt.kernel_size);
  args.out("dv", gradients.dv, of);
  args.out("dk", gradients.dk, of);
  args.out("dq", gradients.dq, of);
  args.check();
  ctx.workspace().expect("neighborhood_attention_backward",
                         neighborhood_attention_backward_workspace<B, T>(queries, opt, ctx.executor().workers(),
                                                                         saved.probs.data != nullptr));
  kernel_for<op::neighborhood_attention, B>::template backward<B, T>(d_o, q, k, v, saved.probs, gradients, opt, ctx);
}

TIGON_EXPLAINS(neighborhood_attention_forward)
TIGON_EXPLAINS(neighborhood_attention_backward)

}  // namespace tigon

#include <tigon/ops/softmax.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_NEIGHBORHOOD_ATTENTION_HPP
