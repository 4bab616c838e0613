// Attention weights that are mixed over heads, queries and keys by a convolution, forward and backward.
#ifndef TIGON_OPS_MULTI_TOKEN_ATTENTION_HPP
#define TIGON_OPS_MULTI_TOKEN_ATTENTION_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/attention/multi_token_attention_kernel.hpp>

#include <cstddef>

namespace tigon {

/// Causal attention weights of heads, mixed by a grouped convolution over queries and keys, and made causal again. With
/// stride s, padding p, dilation d of each axis, and c over the inputs of the group of output o:
///
///   p[b,c,i] = softmax of scores[b,c,i,0..i], or sparsemax of it;   p[b,c,i,j] = 0 for j > i
///   y[b,o,i,j] = b[o] + sum_{c,u,v} w[o,c,u,v] p[b,c,s i + d u - p, s j + d v - p] for j <= i, 0 for j > i;
///                p is 0 outside of its plane
///   e[b,o,i,j] = dy[b,o,i,j] for j <= i, 0 for j > i
///   db[o] = sum_{b,i,j} e[b,o,i,j],   dw[o,c,u,v] = sum_{b,i,j} e[b,o,i,j] p[b,c,s i + d u - p, s j + d v - p]
///   dp[b,c,k,l] = sum w[o,c,u,v] e[b,o,i,j] over all o, u, v, i, j with s i + d u - p = k and s j + d v - p = l
///   dscores[b,c,i,0..i] = the gradient of softmax, or of sparsemax, of dp[b,c,i,0..i];   0 for j > i
///
/// With padding of the queries, and with a stride, y[i] depends on scores of queries after i: that is how the operator
/// is defined.
///
/// Formula    docs/formulas/multi_token_attention.md; Golovneva et al., "Multi-Token Attention", 2025.
/// Shapes     scores, probs, dscores [batch, heads_in, len, len]; w, dw [heads_out, heads_in / groups, taps of queries,
///            taps of keys]; b, db [heads_out]; y, dy [batch, heads_out, out, out], out = (len + 2 p - d (taps - 1) -
///            1) / s + 1 rounded down, the same on both axes. Any strides. groups divides heads_in and heads_out, which
///            are at least 1, as taps are; batch and len may be 0. Any len, and any stride: it need not divide.
/// Types      one of f32, bf16, f16, f64 for all.
/// Precision  softmax and sparsemax are op::softmax and op::sparsemax of the backend, with their precision; p is
///            rounded once, to probs. Sums of y, dp, dw and db in f32 (f64 for f64); dp is not rounded to 16 bits. y,
///            dscores, dw and db are rounded once. Sums of y and dp are made of sums of 64 terms; those of dw and db
///            are compensated, so that their error does not grow with batch and len.
/// Options    backward takes those of forward.
/// Writes     y, and of probs p[i,j] for j <= i: what lies above the diagonal is neither written nor read. dscores; dw
///            and db where they are given memory, overwritten or added to. Without both, nothing is summed for them.
///            Above the diagonal scores and dy are not read. What is saved is probs: batch * heads_in * len * len
///            elements. Scratch memory of a worker grows with taps and heads, and with up to 32 len; not with batch,
///            nor with len * len.
/// Aliasing   forward: probs may be scores, and then rows of more than 1024 keys of f32 or f64 may be rounded
///            differently. backward: dscores may be probs. Otherwise no output shares an element with another argument;
///            any layout.
/// Threads    the same bits for any number of them. Tasks: blocks of 16 rows of probs, 8 rows of y, 8 rows of dscores,
///            of a sequence and head or group; up to 64 sums of dw and db of a group.
/// Throws     tigon::error: shape (also planes of y that are not square, and taps that reach over len + 2 p), stride,
///            alias, argument (groups, stride, padding, dilation), workspace; before the first write.
/// Edges      a row of p whose scores up to the diagonal hold NaN, +inf or only -inf is NaN. Zeros outside of the plane
///            of p are multiplied with w too, which infinite weights show.
/// Max error  y f32 2e-6, bf16 4e-3 of |y| + |b| + sum |w| p; of |reference| + its root mean square: dscores 4e-6,
///            1.2e-2, dw and db 4e-6, 8e-3 (tests/ops/multi_token_attention_test.cpp), for up to 64 taps in all of an
///            output, and of any len.
///
/// ```cpp
/// std::vector<float> scores(2 * 8 * 8, 0.5f), w(2 * 2 * 3 * 3, 0.1f), b(2), probs(scores), y(scores), dscores(scores);
/// std::vector<float> dw(w), db(2);
/// const auto square = [](auto& v) { return tigon::heads_view<float>::of_heads(v.data(), 1, 2, 8, 8); };
/// const auto taps = [](auto& v) { return tigon::heads_view<float>::of_heads(v.data(), 2, 2, 3, 3); };
/// const tigon::multi_token_attention_options opt{.padding = {1, 1}};
/// tigon::multi_token_attention_forward(square(scores), taps(w), b, square(y), square(probs), opt);
/// tigon::multi_token_attention_backward(
///     square(y), taps(w), square(probs), tigon::multi_token_attention_gradients{square(dscores), taps(dw), db}, opt);
/// ```
struct multi_token_attention_options;

namespace detail {
inline namespace TIGON_ABI {
/// Checks the options, and declares w: [heads_out, heads_in / groups, taps, taps]. Returns the shape of y.
template <class T>
heads_shape declare_convolution(arguments& args, heads_shape scores, in_heads<T> w, multi_token_attention_options opt) {
  args.at_least_one("heads_in", scores.heads);
  args.at_least_one("heads_out", w.batch);
  args.at_least_one("taps of queries", w.seq_len);
  args.at_least_one("taps of keys", w.head_dim);
  const auto number = [&](std::string_view name, std::size_t n, std::size_t least) {
    args.option(n >= least && n <= std::size_t{1} << 30, name, static_cast<double>(n),
                least == 0 ? "at most 2^30" : "at least 1 and at most 2^30");
  };
  for (const bool keys : {false, true}) {
    number("stride", keys ? opt.stride.keys : opt.stride.queries, 1);
    number("padding", keys ? opt.padding.keys : opt.padding.queries, 0);
    number("dilation", keys ? opt.dilation.keys : opt.dilation.queries, 1);
  }
  args.option(opt.groups != 0 && scores.heads % opt.groups == 0 && w.batch % opt.groups == 0, "groups",
              static_cast<double>(opt.groups), "a divisor of heads_in and of heads_out");
  args.in("w", w, heads_shape{w.batch, scores.heads / opt.groups, w.seq_len, w.head_dim});
  const std::size_t out = query_axis(scores.seq_len, w.seq_len, opt).out(),
                    keys = key_axis(scores.seq_len, w.head_dim, opt).out();
  args.that(scores.seq_len == 0 || (out != 0 && keys != 0), error_code::shape, "w",
            "of taps that reach over scores and padding", "taps within them");
  args.that(out == keys, error_code::shape, "y", "of unequal numbers of queries and keys",
            "stride, padding, dilation and taps that make it square");
  return {scores.batch, w.batch, out, out};
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Queries, and keys, of y: `taps` of w along the queries.
TIGON_INLINE std::size_t multi_token_attention_length(std::size_t len, std::size_t taps,
                                                      multi_token_attention_options opt = {}) {
  return detail::query_axis(len, taps, opt).out();
}

/// Bytes of workspace that multi_token_attention_forward takes on `workers` workers, ctx.executor().workers(). Of w the
/// extents are looked at.
template <class B = default_backend, class T>
std::size_t multi_token_attention_workspace(std::size_t len, in_heads<T> w, multi_token_attention_options opt = {},
                                            std::size_t workers = 1) {
  return kernel_for<op::multi_token_attention, B>::template forward_workspace<B, T>(len, w, opt, workers);
}
/// Bytes of workspace that multi_token_attention_backward takes, with dw or db, or for dscores alone.
template <class B = default_backend, class T>
std::size_t multi_token_attention_backward_workspace(std::size_t batch, std::size_t len, in_heads<T> w,
                                                     multi_token_attention_options opt = {}, std::size_t workers = 1,
                                                     bool with_parameters = true) {
  return kernel_for<op::multi_token_attention, B>::template backward_workspace<B, T>(batch, len, w, opt, workers,
                                                                                     with_parameters);
}

/// y and probs from scores, w and b, which may be `absent`. See multi_token_attention_options for the contract.
template <class B = default_backend, class T, parameter Bias>
void multi_token_attention_forward(in_heads<T> scores, in_heads<T> w, const Bias& b, heads_view<T> y,
                                   std::type_identity_t<saved_t<op::multi_token_attention, B, T>> probs,
                                   multi_token_attention_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const in_vector<T> bias = as_in_vector<T>(b);
  arguments args("multi_token_attention_forward");
  const detail::heads_shape of{scores.batch, scores.heads, scores.seq_len, scores.seq_len};
  args.in("scores", scores, of);
  const detail::heads_shape out = detail::declare_convolution<T>(args, of, w, opt);
  args.optional_in("b", bias, w.batch);
  args.out("y", y, out);
  args.out("probs", probs, of).may_be("scores");
  args.check();
  ctx.workspace().expect("multi_token_attention_forward",
                         multi_token_attention_workspace<B, T>(of.seq_len, w, opt, ctx.executor().workers()));
  kernel_for<op::multi_token_attention, B>::template forward<B, T>(scores, w, bias, y, probs, opt, ctx);
}

/// dscores, dw and db from dy, w and probs. See multi_token_attention_options for the contract.
template <class B = default_backend, class T>
void multi_token_attention_backward(in_heads<T> dy, in_heads<T> w,
                                    std::type_identity_t<saved_t<op::multi_token_attention, B, const T>> probs,
                                    multi_token_attention_gradients<T> gradients,
                                    multi_token_attention_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("multi_token_attention_backward");
  const detail::heads_shape of{probs.batch, probs.heads, probs.seq_len, probs.seq_len};
  args.in("probs", probs, of);
  args.in("dy", dy, detail::declare_convolution<T>(args, of, w, opt));
  args.optional_out("db", gradients.db, w.batch);
  const bool with_dw = gradients.dw.data != nullptr;
  if (with_dw) args.out("dw", gradients.dw, detail::heads_shape{w.batch, w.heads, w.seq_len, w.head_dim});
  args.out("dscores", gradients.dscores, of).may_be("probs");
  args.check();
  ctx.workspace().expect("multi_token_attention_backward", multi_token_attention_backward_workspace<B, T>(
                                                               of.batch, of.seq_len, w, opt, ctx.executor().workers(),
                                                               with_dw || gradients.db.data() != nullptr));
  kernel_for<op::multi_token_attention, B>::template backward<B, T>(dy, w, probs, gradients, opt, ctx);
}

TIGON_EXPLAINS(multi_token_attention_forward)
TIGON_EXPLAINS(multi_token_attention_backward)

}  // namespace tigon

#include <tigon/ops/softmax.hpp>    // the public functions beside these, for callers
#include <tigon/ops/sparsemax.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_MULTI_TOKEN_ATTENTION_HPP
