// Attention: its contract, its checks and its doors. Nothing is computed here.
#ifndef TIGON_OPS_ATTENTION_CONTRACT_HPP
#define TIGON_OPS_ATTENTION_CONTRACT_HPP

#include <tigon/backend/operator.hpp>

#include <algorithm>
#include <cmath>

namespace tigon {

/// Which keys a query sees.
enum class attention_mask {
  causal,  ///< its own and those before it
  none,    ///< all of its sequence
};

namespace op {
struct attention {
  static constexpr std::string_view name = "attention";
};
}  // namespace op

/// Softmax attention. Query head h reads key/value head h / (heads / kv_heads); i is a query, j a key that it sees.
///
///   s[i,j] = scale * sum_c q[i,c] k[j,c]
///   lse[i] = log(sum_j exp(s[i,j])),   p[i,j] = exp(s[i,j] - lse[i]),   o[i] = sum_j p[i,j] v[j]
///   delta[i] = sum_c do[i,c] o[i,c],   ds[i,j] = p[i,j] * (sum_c do[i,c] v[j,c] - delta[i])
///   dq[i] = scale * sum_j ds[i,j] k[j]
///   dk[j] = scale * sum_i ds[i,j] q[i],   dv[j] = sum_i p[i,j] do[i]     over the queries of all heads of the group
///
/// Formula    docs/formulas/attention.md; Vaswani et al., "Attention Is All You Need", 2017; the block-wise backward of
///            Dao et al., "FlashAttention", 2022.
/// Shapes     q, o, do, dq [batch, heads, seq_len, d], k, v, dk, dv [batch, kv_heads, seq_len, d], any strides;
///            lse [batch * heads * seq_len]. heads a multiple of kv_heads, both and d >= 1; batch, seq_len may be 0.
/// Types      one of f32, bf16, f16, f64 for all; lse f32 (f64 for f64).
/// Precision  s, p, ds, lse, delta and every sum in f32 (f64 for f64): p and ds are not rounded to 16 bits between two
///            products. o, dq, dk, dv are rounded once; delta is made of p and do v^T where o is rounded. Products are
///            op::gemm of the backend, with its precision.
/// Writes     o, lse; dq, dk, dv. Scratch: one block of queries by the keys it sees (two in backward, and a dk and dv
///            in f32) for each worker, B::attention.query_block rows high; where it sees more than B::attention.key_block
///            keys, two or three blocks of o or dq. Sequences of more than 64 blocks take one more dk and dv, of more
///            than 1024 in 16 bits two more.
/// Aliasing   none: any layout in which no element is shared.
/// Threads    the same bits for any number of them. Tasks: forward batch * heads * query blocks, backward batch *
///            kv_heads.
/// Throws     tigon::error: shape, stride, alias, argument (scale not finite), workspace; before the first write.
/// Edges      a row whose scores hold NaN, +inf or only -inf is NaN. Keys that are not seen do not matter; NaN and
///            infinity in v (backward: in q and do) may also reach their neighbours across the diagonal.
/// Max error  f32 2e-6, bf16 4e-3 of |reference| + its root mean square; lse 5e-7; gradients 4e-6, 8e-3
///            (tests/ops/attention_test.cpp). Of any seq_len: o and dq add up blocks of keys, dk and dv blocks of
///            queries, and their error does not grow with the number of blocks, for groups of up to 128 query heads.
struct attention_options {
  attention_mask mask = attention_mask::causal;
  double scale = 0;  ///< 0: 1 / sqrt(d)
};

/// What attention_forward left: {o, lse}, or {.o = o, .lse = lse}.
template <class T, class Lse>
struct attention_saved {
  heads_view<T> o;
  Lse lse;
};

/// attention_gradients{dq, dk, dv}, or with the names of the fields.
template <class T>
struct attention_gradients {
  heads_view<T> dq, dk, dv;
};
template <class T>
attention_gradients(heads_view<T>, std::type_identity_t<heads_view<T>>, std::type_identity_t<heads_view<T>>)
    -> attention_gradients<T>;

namespace detail {
inline namespace TIGON_ABI {

inline double attention_scale(attention_options opt, std::size_t head_dim) {
  return opt.scale != 0 ? opt.scale : 1 / std::sqrt(static_cast<double>(head_dim));
}

struct attention_shapes {
  heads_shape q, k;
};
/// Declares q, k and v. Throws unless the numbers of heads fit together.
template <class T>
attention_shapes declare_attention(arguments& args, in_heads<T> q, in_heads<T> k, in_heads<T> v,
                                   attention_options opt) {
  args.at_least_one("heads", q.heads);
  args.at_least_one("kv_heads", k.heads);
  args.at_least_one("head_dim", q.head_dim);
  args.that(q.heads % std::max<std::size_t>(k.heads, 1) == 0, error_code::shape, "heads", "no multiple of kv_heads",
            "as many query heads for every key/value head");
  args.finite("scale", opt.scale);
  const attention_shapes of{{q.batch, q.heads, q.seq_len, q.head_dim}, {q.batch, k.heads, q.seq_len, q.head_dim}};
  args.in("q", q, of.q);
  args.in("k", k, of.k);
  args.in("v", v, of.k);
  return of;
}

}  // namespace TIGON_ABI
}  // namespace detail

/// Bytes of workspace that attention_forward takes on `workers` workers: ctx.executor().workers().
template <class B = default_backend, class T>
std::size_t attention_workspace(std::size_t seq_len, std::size_t head_dim, attention_options opt = {},
                                std::size_t workers = 1) {
  return workspace::bytes_for<std::byte>(
      workers, kernel_for<op::attention, B>::template forward_workspace<B, T>(seq_len, head_dim, opt));
}
/// Bytes of workspace that attention_backward takes.
template <class B = default_backend, class T>
std::size_t attention_backward_workspace(std::size_t seq_len, std::size_t head_dim, attention_options opt = {},
                                         std::size_t workers = 1) {
  return workspace::bytes_for<std::byte>(
      workers, kernel_for<op::attention, B>::template backward_workspace<B, T>(seq_len, head_dim, opt));
}

/// o and lse from q, k and v. See attention_options for the contract.
template <class B = default_backend, class T>
void attention_forward(in_heads<T> q, in_heads<T> k, in_heads<T> v, heads_view<T> o,
                       std::type_identity_t<saved_t<op::attention, B, accumulator_t<T>>> lse,
                       attention_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  arguments args("attention_forward");
  const detail::attention_shapes of = detail::declare_attention<T>(args, q, k, v, opt);
  args.out("o", o, of.q);
  args.out("lse", lse, q.batch * q.heads * q.seq_len);
  args.check();
  ctx.workspace().expect("attention_forward",
                         attention_workspace<B, T>(q.seq_len, q.head_dim, opt, ctx.executor().workers()));
  kernel_for<op::attention, B>::template forward<B, T>(q, k, v, o, lse, opt, ctx);
}

/// dq, dk and dv from do, the inputs and what forward left. See attention_options for the contract.
template <class B = default_backend, class T>
void attention_backward(
    in_heads<T> d_o, in_heads<T> q, in_heads<T> k, in_heads<T> v,
    std::type_identity_t<attention_saved<const T, saved_t<op::attention, B, const accumulator_t<T>>>> saved,
    attention_gradients<T> gradients, attention_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  arguments args("attention_backward");
  const detail::attention_shapes of = detail::declare_attention<T>(args, q, k, v, opt);
  args.in("do", d_o, of.q);
  args.in("o", saved.o, of.q);
  args.in("lse", saved.lse, q.batch * q.heads * q.seq_len);
  args.out("dv", gradients.dv, of.k);
  args.out("dk", gradients.dk, of.k);
  args.out("dq", gradients.dq, of.q);
  args.check();
  ctx.workspace().expect("attention_backward",
                         attention_backward_workspace<B, T>(q.seq_len, q.head_dim, opt, ctx.executor().workers()));
  kernel_for<op::attention, B>::template backward<B, T>(d_o, q, k, v, saved, gradients, opt, ctx);
}

}  // namespace tigon

#endif  // TIGON_OPS_ATTENTION_CONTRACT_HPP
