// Softmax attention with grouped key/value heads, forward and backward, by tiles of scores.
#ifndef TIGON_OPS_ATTENTION_HPP
#define TIGON_OPS_ATTENTION_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/attention/attention_kernel.hpp>

#include <algorithm>
#include <cstdint>
#include <span>

namespace tigon {

/// Softmax attention. Query head h reads key/value head h / (heads / kv_heads); i is a query, j a key that it sees.
/// Values may have another width than keys, as in multi-head latent attention.
///
///   s[i,j] = scale * sum_c q[i,c] k[j,c], or softcap * tanh(that / softcap)
///   lse[i] = log(exp(sink[h]) + sum_j exp(s[i,j])),   p[i,j] = exp(s[i,j] - lse[i]),   o[i] = sum_j p[i,j] v[j]
///   delta[i] = sum_c do[i,c] o[i,c],   ds[i,j] = p[i,j] * (sum_c do[i,c] v[j,c] - delta[i])
///   ds[i,j] *= 1 - (s[i,j] / softcap)^2, with a softcap;   dsink[h] = -sum_i exp(sink[h] - lse[i]) * delta[i]
///   dq[i] = scale * sum_j ds[i,j] k[j]
///   dk[j] = scale * sum_i ds[i,j] q[i],   dv[j] = sum_i p[i,j] do[i]     over the queries of all heads of the group
///
/// Masks      query i is at position t = offset + i of the keys. It sees key j of its own document where
///              j is one of the first `prefix` keys of the document, or
///              t - window_left <= j <= t + window_right, and j <= t with attention_mask::causal.
///            Without cumulative_lengths all keys are one document. Keys of batch entry b outside [key_begins[b],
///            key_ends[b]) are padding: they belong to no document. Blocks that no query sees are not computed.
/// Formula    docs/formulas/attention.md; Vaswani et al., "Attention Is All You Need", 2017; the block-wise backward of
///            Dao et al., "FlashAttention", 2022.
/// Shapes     q, dq [batch, heads, queries, d], o, do [batch, heads, queries, e], k, dk [batch, kv_heads, keys, d],
///            v, dv [batch, kv_heads, keys, e], any strides; lse [batch * heads * queries]; sinks, dsinks [heads] or
///            empty. heads a multiple of kv_heads; both, d and e >= 1; batch, queries, keys may be 0. keys = offset +
///            queries with attention_mask::causal, else any.
///            cumulative_lengths: 0, then where each document ends, the last one at `keys`; the same for every batch
///            entry. key_begins, key_ends [batch]. Or empty.
/// Types      one of f32, bf16, f16, f64 for all; lse and dsinks f32 (f64 for f64); sinks f32.
/// Precision  s, p, ds, lse, delta and every sum in f32 (f64 for f64): p and ds are not rounded to 16 bits between two
///            products. o, dq, dk, dv are rounded once. delta is made of p and do v^T where o is rounded. Products are
///            op::gemm of the backend, with its precision.
/// Options    backward takes those of forward. It needs sinks for their own gradient alone: lse includes them.
/// Writes     o, lse; dq, dk, dv, dsinks; rows of a 16-bit dq hold delta for a while. A gradient whose view has no
///            memory is not computed; a 16-bit dk without dq needs memory for delta [batch * heads * queries] in its
///            place. Scratch of each worker, whatever the lengths: a tile of scores (two in backward), of
///            B::attention.query_rows rows by B::attention.key_block keys, and the operands and sums of it.
/// Aliasing   no output shares an element with another argument; any layout.
/// Threads    the same bits for any number of them. Tasks: blocks of queries in forward, blocks of keys in backward.
/// Throws     tigon::error: shape, stride, alias, argument (softcap negative, a number outside option_range,
///            cumulative_lengths that are no partition of the keys, key_begins or key_ends that are no keys, dsinks
///            without sinks, a 16-bit dk without dq and delta), workspace; before the first write.
/// Edges      a query that sees no key has o = 0, dq = 0 and lse = -inf, or the logit of its sink. A sink of -inf
///            weighs nothing: its dsink is 0. A row whose scores hold NaN or +inf, or are all -inf without a sink, is
///            NaN. Keys that are not seen do not matter; NaN and infinity in v (backward: in q and do) may also reach
///            queries of the same block that do not see them.
/// Max error  f32 2e-6, bf16 4e-3 of |reference| + its root mean square; lse 5e-7; gradients 4e-6, 8e-3
///            (tests/ops/attention_test.cpp), for scores of a few units and terms that do not cancel.
///            For every input (tests/fuzz/attention.cpp), in f32 (f64: 2^-29 of it): 4e-7 * (1 + S) of the sum of the
///            magnitudes of the terms, which are p v[j] of o, p do[i] of dv, and of ds p (|do v[j]| + sum_j p |do
///            v[j]|), each product without its signs; S is the largest scale * sum_c |q[i,c] k[j,c]| or |lse|. In 16
///            bits also half a unit of the result; dsinks, made of the rounded o, half a unit of its terms; dq and dk
///            of one column (d = 1) 2^-16 (f16 2^-22) of their terms, as a row has room for no more of delta. p below
///            2^-100 (f64 2^-960) loses digits. Errors do not grow with the lengths: more than 64 blocks are added up
///            by compensated sums.
///
/// ```cpp
/// std::vector<float> q(4 * 8 * 16, 0.5f), k(2 * 8 * 16, 0.5f), v(k), o(q.size()), lse(4 * 8);
/// std::vector<float> dq(q.size()), dk(k.size()), dv(v.size());
/// const auto heads = [](auto& v, std::size_t n) { return tigon::heads_view<float>::of_heads(v.data(), 1, n, 8, 16); };
/// tigon::attention_forward(heads(q, 4), heads(k, 2), heads(v, 2), heads(o, 4), lse);
/// tigon::attention_backward(heads(o, 4), heads(q, 4), heads(k, 2), heads(v, 2), {heads(o, 4), lse},
///                           tigon::attention_gradients{heads(dq, 4), heads(dk, 2), heads(dv, 2)});  // do = o
/// ```
struct attention_options;

namespace detail {
inline namespace TIGON_ABI {
/// Whether these are a partition of so many keys.
TIGON_NOINLINE inline bool is_partition(std::span<const std::int32_t> cumulative, std::size_t keys) {
  if (cumulative.size() < 2 || cumulative.front() != 0) return false;
  for (std::size_t i = 1; i < cumulative.size(); ++i)
    if (cumulative[i] < cumulative[i - 1]) return false;
  return static_cast<std::size_t>(cumulative.back()) == keys;
}
/// Whether 0 <= begins[b] <= ends[b] <= keys for every batch entry b; empty begins are 0, empty ends `keys`.
TIGON_NOINLINE inline bool are_key_ranges(std::span<const std::int32_t> begins, std::span<const std::int32_t> ends,
                                          std::size_t keys) {
  const auto last = static_cast<std::int64_t>(keys);
  for (std::size_t b = 0; b < std::max(begins.size(), ends.size()); ++b) {
    const std::int64_t begin = begins.empty() ? 0 : begins[b], end = ends.empty() ? last : ends[b];
    if (begin < 0 || end < begin || end > last) return false;
  }
  return true;
}

struct attention_shapes {
  heads_shape q, k, v, o;  ///< o has the width of v
};
/// Declares q, k and v, and what the options point to. Throws unless these fit together.
template <class T>
attention_shapes declare_attention(arguments& args, in_heads<T> q, in_heads<T> k, in_heads<T> v,
                                   const attention_options& opt) {
  using A = accumulator_t<T>;
  args.at_least_one("heads", q.heads);
  args.at_least_one("kv_heads", k.heads);
  args.at_least_one("head_dim", q.head_dim);
  args.at_least_one("v_head_dim", v.head_dim);
  args.that(q.heads % std::max<std::size_t>(k.heads, 1) == 0, error_code::shape, "heads", "no multiple of kv_heads",
            "as many query heads for every key/value head");
  args.finite<A>("scale", opt.scale);
  args.softcap<A>(opt.softcap);
  args.that(opt.offset <= workspace::most_bytes, error_code::argument, "offset", "too large", "a position");
  const bool causal = opt.mask == attention_mask::causal;
  const std::size_t keys = causal ? opt.offset + q.seq_len : k.seq_len;
  const attention_shapes of{{q.batch, q.heads, q.seq_len, q.head_dim},
                            {q.batch, k.heads, keys, q.head_dim},
                            {q.batch, k.heads, keys, v.head_dim},
                            {q.batch, q.heads, q.seq_len, v.head_dim}};
  args.in("q", q, of.q);
  args.in("k", k, of.k);
  args.in("v", v, of.v);
  const std::span<const std::int32_t> cumulative = opt.cumulative_lengths;
  args.optional_in("cumulative_lengths", cumulative, cumulative.size());
  args.that(cumulative.empty() || is_partition(cumulative, keys), error_code::argument, "cumulative_lengths",
            "no partition of the keys", "0, and the ends of all documents, the last one at the number of keys");
  args.that(cumulative.empty() || opt.offset + q.seq_len <= keys, error_code::argument, "cumulative_lengths",
            "of fewer keys than the position of the last query", "a document for every query");
  const auto given = [](auto option) { return option.empty() ? decltype(option){} : option; };
  args.optional_in("key_begins", given(opt.key_begins), q.batch);
  args.optional_in("key_ends", given(opt.key_ends), q.batch);
  args.that(are_key_ranges(opt.key_begins, opt.key_ends, keys), error_code::argument, "key_ends",
            "before key_begins or outside of the keys", "0 <= key_begins[b] <= key_ends[b] <= keys for every b");
  args.optional_in("sinks", given(opt.sinks), q.heads);
  return of;
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Bytes of workspace that attention_forward takes on `workers` workers: ctx.executor().workers(). The same for every
/// length. Values have v_head_dim columns; 0: as keys have, head_dim.
template <class B = default_backend, class T>
std::size_t attention_workspace([[maybe_unused]] std::size_t seq_len, std::size_t head_dim,
                                [[maybe_unused]] const attention_options& opt = {}, std::size_t workers = 1,
                                std::size_t v_head_dim = 0) {
  return workspace::bytes_for<std::byte>(workers, kernel_for<op::attention, B>::template forward_workspace<B, T>(
                                                      head_dim, v_head_dim != 0 ? v_head_dim : head_dim));
}
/// Bytes of workspace that attention_backward takes.
template <class B = default_backend, class T>
std::size_t attention_backward_workspace([[maybe_unused]] std::size_t seq_len, std::size_t head_dim,
                                         [[maybe_unused]] const attention_options& opt = {}, std::size_t workers = 1,
                                         std::size_t v_head_dim = 0) {
  return workspace::bytes_for<std::byte>(workers, kernel_for<op::attention, B>::template backward_workspace<B, T>(
                                                      head_dim, v_head_dim != 0 ? v_head_dim : head_dim));
}

/// o and lse from q, k and v. See attention_options for the contract.
template <class B = default_backend, class T>
void attention_forward(in_heads<T> q, in_heads<T> k, in_heads<T> v, heads_view<T> o,
                       std::type_identity_t<saved_t<op::attention, B, accumulator_t<T>>> lse,
                       attention_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("attention_forward");
  const detail::attention_shapes of = detail::declare_attention<T>(args, q, k, v, opt);
  args.out("o", o, of.o);
  args.out("lse", lse, q.batch * q.heads * q.seq_len);
  args.check();
  ctx.workspace().expect("attention_forward",
                         attention_workspace<B, T>(q.seq_len, q.head_dim, opt, ctx.executor().workers(), v.head_dim));
  kernel_for<op::attention, B>::template forward<B, T>(q, k, v, o, lse, opt, ctx);
}

/// dq, dk and dv from do, the inputs and what forward left. See attention_options for the contract.
template <class B = default_backend, class T>
void attention_backward(
    in_heads<T> d_o, in_heads<T> q, in_heads<T> k, in_heads<T> v,
    std::type_identity_t<attention_saved<const T, saved_t<op::attention, B, const accumulator_t<T>>>> saved,
    attention_gradients<T> gradients, attention_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("attention_backward");
  const detail::attention_shapes of = detail::declare_attention<T>(args, q, k, v, opt);
  args.in("do", d_o, of.o);
  args.in("o", saved.o, of.o);
  args.in("lse", saved.lse, q.batch * q.heads * q.seq_len);
  if (gradients.dv.data != nullptr) args.out("dv", gradients.dv, of.v);
  if (gradients.dk.data != nullptr) args.out("dk", gradients.dk, of.k);
  if (gradients.dq.data != nullptr) args.out("dq", gradients.dq, of.q);
  args.that(sizeof(T) == sizeof(accumulator_t<T>) || gradients.dk.data == nullptr || gradients.dq.data != nullptr ||
                !gradients.delta.empty() || q.batch == 0 || q.seq_len == 0,
            error_code::argument, "dq", "absent, beside a dk of 16 bits", "dq, whose rows hold delta, or delta");
  if (gradients.delta.empty()) gradients.delta = {};
  args.optional_out("delta", gradients.delta, q.batch * q.heads * q.seq_len);
  if (gradients.dsinks.empty()) gradients.dsinks = {};
  args.optional_out("dsinks", gradients.dsinks, q.heads);
  args.that(gradients.dsinks.empty() || !opt.sinks.empty(), error_code::argument, "dsinks", "given without sinks",
            "sinks, or no dsinks");
  args.check();
  ctx.workspace().expect("attention_backward", attention_backward_workspace<B, T>(
                                                   q.seq_len, q.head_dim, opt, ctx.executor().workers(), v.head_dim));
  kernel_for<op::attention, B>::template backward<B, T>(d_o, q, k, v, saved, gradients, opt, ctx);
}

TIGON_EXPLAINS(attention_forward)
TIGON_EXPLAINS(attention_backward)

}  // namespace tigon

#include <tigon/gemm/gemm.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_ATTENTION_HPP
