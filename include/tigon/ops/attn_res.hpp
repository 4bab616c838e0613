// Attention over depth: every token attends to the outputs of all earlier blocks for it, forward and backward.
#ifndef TIGON_OPS_ATTN_RES_HPP
#define TIGON_OPS_ATTN_RES_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/depth/attn_res_kernel.hpp>

namespace tigon {

/// Every token's weighted mean of N blocks; the weights come from a learned query and the normalised blocks.
///
///   rstd[i,n]  = 1 / sqrt(mean_j v[n,i,j]^2 + eps)
///   score[i,n] = sum_j w_query[j] * w_norm[j] * v[n,i,j] * rstd[i,n],   alpha[i,:] = softmax of score[i,:]
///   y[i,j]     = sum_n alpha[i,n] * v[n,i,j]
///   da[i,n]    = sum_j dy[i,j] v[n,i,j],   ds = alpha * (da - sum_n alpha da),   u = w_query * w_norm
///   dv[n]      = alpha * dy + ds * rstd * (u - rstd * score / cols * v)
///   dw_query   = p * w_norm,   dw_norm = p * w_query,   p[j] = sum_i,n ds * rstd * v[n,i,j]
///
/// Formula    docs/formulas/attn_res.md; Kimi Team, "Attention Residuals", 2026.
/// Shapes     v, dv N blocks [rows, cols]; y, dy [rows, cols]; w_query, w_norm, dw_query, dw_norm [cols], either of
///            the last two may be `absent`: that weight is frozen; alpha and rstd [rows * N], a row of N numbers a
///            token. N and cols at least 1, rows may be 0.
/// Types      v, y, dy, dv one of f32, bf16, f16, f64; w_query and w_norm of one type, any of them (f64 only with
///            f64).
/// Precision  f32 (f64 for f64), f64 for scores and what they are made of; y, dv, dw_query and dw_norm are rounded
///            once. round_key also rounds what the query meets; backward takes that rounding for the identity.
/// Options    backward uses alpha and rstd; eps and round_key have no effect.
/// Writes     y, alpha, rstd, dv; dw_query and dw_norm are overwritten, or added to with gradient::accumulate.
/// Aliasing   backward: each block of dv may be the same block of v. forward: no overlap. Otherwise no output shares an
///            element with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias, argument (eps negative, or outside option_range), workspace; before
///            the first write.
/// Range      forward: every finite block whose rstd is finite in its type; backward: where sums of dy v are finite.
///            NaN or an infinity makes its token of y and dv NaN, and dw_query and dw_norm.
/// Max error  f32 4e-6, bf16 4e-3 of |reference| + its root mean square; gradients 2e-5, 8e-3
///            (tests/ops/attn_res_test.cpp). Of scores whose terms |v w_query w_norm| rstd have a sum S above 64,
///            forward's is 4e-6 (S / 64 - 1) more. Where blocks cancel, forward's is of their root mean square
///            (tests/fuzz/norms.cpp).
///
/// ```cpp
/// std::vector<float> v(3 * 4 * 64, 0.5f), w(64, 1), query(64, 0.1f), h(4 * 64), alpha(3 * 4), rstd(3 * 4);
/// std::vector<float> dv(v.size()), dw(64), dquery(64);
/// const auto blocks = tigon::blocks_view<float>::stacked(v.data(), 3, 4, 64);
/// const tigon::matrix_view out(h.data(), 4, 64);
/// tigon::attn_res_forward(blocks, w, query, out, alpha, rstd);
/// tigon::attn_res_backward(
///     out, blocks, w, query, {alpha, rstd},
///     tigon::attn_res_gradients{tigon::blocks_view<float>::stacked(dv.data(), 3, 4, 64), dw, dquery});  // dy = y
/// ```
struct attn_res_options;

/// Bytes of workspace that attn_res_forward takes.
template <class B = default_backend, class T>
std::size_t attn_res_workspace(std::size_t cols, const context& ctx = default_context<B>()) {
  using A = accumulator_t<T>;
  return workspace::bytes_for<A>(cols) + simd::scratch_workspace<B, A>(cols, 1, ctx);
}

/// Bytes of workspace that attn_res_backward takes, with gradients of weights or without both.
template <class B = default_backend, class T>
std::size_t attn_res_backward_workspace(std::size_t blocks, std::size_t rows, std::size_t cols,
                                        parameters of = parameters::trained) {
  using A = accumulator_t<T>;
  const std::size_t all = workspace::bytes_for<A>(cols) + workspace::bytes_for<A>(2, rows, blocks);
  if (of == parameters::frozen) return all;
  return all + workspace::bytes_for<A>(cols) + simd::partials_workspace<B, A>(rows, cols, 1);
}

namespace detail {
inline namespace TIGON_ABI {
/// N matrices of that shape.
template <class T>
void expect_blocks(const expects& expect, std::string_view name, blocks_view<T> v, std::size_t blocks, std::size_t rows,
                   std::size_t cols) {
  expect.size(std::string("blocks of ") + std::string(name), v.blocks, blocks);
  for (std::size_t n = 0; n < v.blocks; ++n)
    expect.matrix(name, v[n], rows, cols, std::is_const_v<T> ? view_use::read : view_use::written);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// y, alpha and rstd from the blocks and the weights. See attn_res_options for the contract.
template <class B = default_backend, class T, parameter Q, parameter N>
void attn_res_forward(in_blocks<T> v, const Q& w_query, const N& w_norm, matrix_view<T> y,
                      std::type_identity_t<saved_t<op::attn_res, B, accumulator_t<T>>> alpha,
                      std::type_identity_t<saved_t<op::attn_res, B, accumulator_t<T>>> rstd, attn_res_options opt = {},
                      context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto query = as_in_vector<T>(w_query);
  const auto norm = as_in_vector<T>(w_norm);
  static_assert(admits_parameter<T, decltype(query), decltype(norm)>());
  const expects expect("attn_res_forward");
  expect.at_least_one("blocks of v", v.blocks);
  expect.at_least_one("cols", v.cols);
  expect.eps<accumulator_t<T>>(opt.eps);
  detail::expect_blocks(expect, "v", v, v.blocks, v.rows, v.cols);
  for (std::size_t n = 0; n < v.blocks; ++n) {
    arguments args("attn_res_forward");
    args.in("v", v[n]);
    args.in("w_query", query, v.cols);
    args.in("w_norm", norm, v.cols);
    args.out("y", y, v.rows, v.cols);
    args.out("rstd", rstd, v.rows * v.blocks);
    args.out("alpha", alpha, v.rows * v.blocks);
    args.check();
  }
  ctx.workspace().expect("attn_res_forward", attn_res_workspace<B, T>(v.cols, ctx));
  kernel_for<op::attn_res, B>::template forward<B, T>(v, query, norm, y, alpha, rstd, opt, ctx);
}

/// dv, dw_query and dw_norm from dy and what forward left. See attn_res_options for the contract.
template <class B = default_backend, class T, parameter Q, parameter N, parameter DQ, parameter DN>
void attn_res_backward(in_matrix<T> dy, in_blocks<T> v, const Q& w_query, const N& w_norm,
                       std::type_identity_t<attn_res_saved<saved_t<op::attn_res, B, const accumulator_t<T>>>> saved,
                       const attn_res_gradients<T, DQ, DN>& gradients, attn_res_options opt = {},
                       context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto query = as_in_vector<T>(w_query);
  const auto norm = as_in_vector<T>(w_norm);
  const attn_res_gradients to{gradients.dv, as_out_vector<T>(gradients.dw_query), as_out_vector<T>(gradients.dw_norm)};
  static_assert(admits_parameter<T, decltype(query), decltype(norm), decltype(to.dw_query), decltype(to.dw_norm)>());
  const expects expect("attn_res_backward");
  expect.at_least_one("blocks of v", v.blocks);
  expect.at_least_one("cols", v.cols);
  detail::expect_blocks(expect, "v", v, v.blocks, v.rows, v.cols);
  detail::expect_blocks(expect, "dv", to.dv, v.blocks, v.rows, v.cols);
  for (std::size_t n = 0; n < v.blocks; ++n) {
    arguments args("attn_res_backward");
    args.in("v", v[n]);
    args.in("dy", dy, v.rows, v.cols);
    args.in("w_query", query, v.cols);
    args.in("w_norm", norm, v.cols);
    args.in("alpha", saved.alpha, v.rows * v.blocks);
    args.in("rstd", saved.rstd, v.rows * v.blocks);
    args.out("dv", to.dv[n]).may_be("v");
    args.optional_out("dw_norm", to.dw_norm, v.cols);
    args.optional_out("dw_query", to.dw_query, v.cols);
    args.check();
    // A block of dv may be that of v with its number, and no other.
    for (std::size_t m = 0; m < v.blocks; ++m) {
      if (m != n) expect.disjoint("dv", to.dv[n], "v", v[m]);
      if (m < n) expect.disjoint("dv", to.dv[n], "another block of dv", to.dv[m]);
    }
  }
  const parameters of = trained_if(to.dw_query.data != nullptr || to.dw_norm.data != nullptr);
  ctx.workspace().expect("attn_res_backward", attn_res_backward_workspace<B, T>(v.blocks, v.rows, v.cols, of));
  kernel_for<op::attn_res, B>::template backward<B, T>(dy, v, query, norm, saved, to, opt, ctx);
}

TIGON_EXPLAINS(attn_res_forward)
TIGON_EXPLAINS(attn_res_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_ATTN_RES_HPP
