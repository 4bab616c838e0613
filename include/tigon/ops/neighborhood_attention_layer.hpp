// Layer of neighborhood attention: norm, projections, attention and residual as one operator, forward and backward.
#ifndef TIGON_OPS_NEIGHBORHOOD_ATTENTION_LAYER_HPP
#define TIGON_OPS_NEIGHBORHOOD_ATTENTION_LAYER_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/attention/neighborhood_attention_layer_kernel.hpp>

#include <algorithm>

namespace tigon {

/// A layer with a norm in front and a residual: projections to q, k and v, neighborhood attention, a projection back.
///
///   n = layer_norm(x),   [q k v] = n wqkv^T + bqkv,   o = neighborhood_attention(q, k, v),   y = x + o wo^T + bo
///   do = dy wo,   [dq dk dv] from do by neighborhood attention,   dn = [dq dk dv] wqkv
///   dwo = dy^T o,   dwqkv = [dq dk dv]^T n,   dbo and dbqkv sums over the tokens
///   dx = dy + the gradient of layer_norm from dn
///
/// Head h has columns [h d, (h + 1) d) of q, k, v and o each, d = hidden / heads. The weights of three projections are
/// the rows of wqkv, one after the other.
///
/// Formula    docs/formulas/neighborhood_attention.md.
/// Shapes     x, y, dy, dx [batch * seq_len, hidden]; wqkv [3 * hidden, hidden], bqkv [3 * hidden], wo [hidden,
///            hidden], bo [hidden], norm and norm_bias of layer_norm [hidden]; gradients alike. bqkv, bo, norm and
///            norm_bias may be absent, and each gradient of a parameter: that parameter is frozen. saved.values
///            [tokens, 5 * hidden], saved.numbers [tokens * (2 + heads * kernel_size)]. hidden a multiple of heads;
///            tokens one of seq_len. tokens may be 0.
/// Types      one of f32, bf16, f16, f64 for all; saved.numbers f32 (f64 for f64).
/// Precision  sums in f32 (f64 for f64). One rounding at n, q, k, v, o, do, [dq dk dv], dn, y and the gradients of
///            parameters; dx is rounded before and after dy is added. Products, norm, attention and softmax are those
///            of the backend.
/// Options    backward uses the saved mean and rstd; eps has no effect, and the others are those of forward.
/// Writes     y, saved; dx; gradients of parameters are overwritten, or added to with gradient::accumulate.
/// Aliasing   no output shares an element with another argument; any layout.
/// Memory     saved; in the workspace what the operators take, and backward [tokens, 4 * hidden] elements. See
///            neighborhood_attention_layer_workspace.
/// Threads    the same bits for any number of them.
/// Throws     tigon::error: shape (also hidden that is no multiple of heads, tokens of seq_len), stride, alias,
///            argument (those of neighborhood_attention and layer_norm), workspace; before the first write.
/// Max error  f32 8e-6, bf16 3e-2 of |reference| + its root mean square; gradients 8e-6, 5e-2, of
///            projections that keep the size of what they multiply (tests/ops/neighborhood_attention_layer_test.cpp).
///
/// ```cpp
/// std::vector<float> x(8 * 16, 0.5f), wqkv(48 * 16, 0.1f), wo(16 * 16, 0.1f), y(x.size()), values(8 * 80);
/// std::vector<float> numbers(8 * (2 + 2 * 7)), dx(x.size()), dwqkv(wqkv.size()), dwo(wo.size());
/// const auto rows = [](auto& v, std::size_t cols) { return tigon::matrix_view(v.data(), v.size() / cols, cols); };
/// const tigon::neighborhood_attention_layer_weights<float> w{rows(wqkv, 16), rows(wo, 16), {}, {}, {}, {}};
/// const tigon::neighborhood_attention_layer_saved<float> saved{rows(values, 80), numbers};
/// const tigon::neighborhood_attention_layer_options opt{.heads = 2, .seq_len = 8};
/// tigon::neighborhood_attention_layer_forward(rows(x, 16), w, rows(y, 16), saved, opt);
/// tigon::neighborhood_attention_layer_backward(rows(y, 16), rows(x, 16), w, saved, rows(dx, 16),
///                                              {rows(dwqkv, 16), rows(dwo, 16), {}, {}, {}, {}}, opt);  // dy = y
/// ```
struct neighborhood_attention_layer_options;

/// The size of saved.numbers.
constexpr TIGON_INLINE std::size_t neighborhood_attention_layer_numbers(std::size_t tokens,
                                                                        neighborhood_attention_layer_options opt) {
  const std::size_t of_token = workspace::product(opt.heads, opt.attention.kernel_size) + 2;
  return workspace::product(tokens, of_token);
}

namespace detail {
inline namespace TIGON_ABI {
/// Declares x and the parameters, and checks the options.
template <class T>
void declare_neighborhood_layer(arguments& args, matrix_view<const T> x,
                                neighborhood_attention_layer_weights<const T> w,
                                neighborhood_attention_layer_options opt) {
  const std::size_t hidden = x.cols;
  args.at_least_one("hidden", hidden);
  args.at_least_one("heads", opt.heads);
  args.at_least_one("seq_len", opt.seq_len);
  args.that(hidden % std::max<std::size_t>(opt.heads, 1) == 0, error_code::shape, "hidden", "no multiple of heads",
            "as many columns for every head");
  args.that(x.rows % std::max<std::size_t>(opt.seq_len, 1) == 0, error_code::shape, "x",
            "of tokens that are no multiple of seq_len", "whole sequences");
  check_neighborhood<accumulator_t<T>>(args, opt.attention);
  args.eps<accumulator_t<T>>(opt.eps);
  args.in("x", x);
  args.in("wqkv", w.wqkv, 3 * hidden, hidden);
  args.in("wo", w.wo, hidden, hidden);
  args.optional_in("bqkv", w.bqkv, 3 * hidden);
  args.optional_in("bo", w.bo, hidden);
  args.optional_in("norm", w.norm, hidden);
  args.optional_in("norm_bias", w.norm_bias, hidden);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Bytes of workspace that a pass takes on `workers` workers: ctx.executor().workers(). Backward with gradients of
/// parameters, or without any.
template <class B = default_backend, class T>
std::size_t neighborhood_attention_layer_workspace(neighborhood_attention_layer_pass pass, std::size_t tokens,
                                                   std::size_t hidden, neighborhood_attention_layer_options opt,
                                                   std::size_t workers = 1, parameters of = parameters::trained) {
  using K = kernel_for<op::neighborhood_attention_layer, B>;
  return pass == neighborhood_attention_layer_pass::forward
             ? K::template forward_workspace<B, T>(tokens, hidden, opt, workers)
             : K::template backward_workspace<B, T>(tokens, hidden, opt, workers, of);
}

/// y and what is saved from x. See neighborhood_attention_layer_options for the contract.
template <class B = default_backend, class T>
void neighborhood_attention_layer_forward(in_matrix<T> x,
                                          std::type_identity_t<neighborhood_attention_layer_weights<const T>> w,
                                          matrix_view<T> y,
                                          std::type_identity_t<saved_t<op::neighborhood_attention_layer, B, T>> saved,
                                          neighborhood_attention_layer_options opt,
                                          context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("neighborhood_attention_layer_forward");
  detail::declare_neighborhood_layer<T>(args, x, w, opt);
  args.out("y", y, x.rows, x.cols);
  args.out("saved.values", saved.values, x.rows, 5 * x.cols);
  args.out("saved.numbers", saved.numbers, neighborhood_attention_layer_numbers(x.rows, opt));
  args.check();
  ctx.workspace().expect("neighborhood_attention_layer_forward",
                         neighborhood_attention_layer_workspace<B, T>(neighborhood_attention_layer_pass::forward,
                                                                      x.rows, x.cols, opt, ctx.executor().workers()));
  kernel_for<op::neighborhood_attention_layer, B>::template forward<B, T>(x, w, y, saved, opt, ctx);
}

/// dx and the gradients of the parameters. See neighborhood_attention_layer_options for the contract.
template <class B = default_backend, class T>
void neighborhood_attention_layer_backward(
    in_matrix<T> dy, in_matrix<T> x, std::type_identity_t<neighborhood_attention_layer_weights<const T>> w,
    std::type_identity_t<saved_t<op::neighborhood_attention_layer, B, const T>> saved, matrix_view<T> dx,
    std::type_identity_t<neighborhood_attention_layer_weights<T>> dw, neighborhood_attention_layer_options opt,
    context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  arguments args("neighborhood_attention_layer_backward");
  detail::declare_neighborhood_layer<T>(args, x, w, opt);
  args.in("dy", dy, x.rows, x.cols);
  args.in("saved.values", saved.values, x.rows, 5 * x.cols);
  args.in("saved.numbers", saved.numbers, neighborhood_attention_layer_numbers(x.rows, opt));
  args.optional_out("dnorm_bias", dw.norm_bias, x.cols);
  args.optional_out("dnorm", dw.norm, x.cols);
  args.optional_out("dbo", dw.bo, x.cols);
  args.optional_out("dbqkv", dw.bqkv, 3 * x.cols);
  args.optional_out("dwo", dw.wo, x.cols, x.cols);
  args.optional_out("dwqkv", dw.wqkv, 3 * x.cols, x.cols);
  args.out("dx", dx, x.rows, x.cols);
  args.check();
  ctx.workspace().expect(
      "neighborhood_attention_layer_backward",
      neighborhood_attention_layer_workspace<B, T>(neighborhood_attention_layer_pass::backward, x.rows, x.cols, opt,
                                                   ctx.executor().workers(), trained_if(dw.any())));
  kernel_for<op::neighborhood_attention_layer, B>::template backward<B, T>(dy, x, w, saved, dx, dw, opt, ctx);
}

TIGON_EXPLAINS(neighborhood_attention_layer_forward)
TIGON_EXPLAINS(neighborhood_attention_layer_backward)

}  // namespace tigon

#include <tigon/ops/layer_norm.hpp>              // the public functions beside these, for callers
#include <tigon/ops/neighborhood_attention.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_NEIGHBORHOOD_ATTENTION_LAYER_HPP
