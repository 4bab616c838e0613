// Attention over depth: every token attends to what the blocks before have left for it, forward and backward.
#ifndef TIGON_OPS_ATTN_RES_HPP
#define TIGON_OPS_ATTN_RES_HPP

#include <tigon/ops/attn_res_kernel.hpp>

namespace tigon {

/// Bytes of workspace that attn_res_forward takes.
template <class B = default_backend, class T>
std::size_t attn_res_workspace(std::size_t cols, const context& ctx = default_context()) {
  using A = accumulator_t<T>;
  return workspace::bytes_for<A>(cols) + simd::scratch_workspace<B, A>(cols, 1, ctx);
}

/// Bytes of workspace that attn_res_backward takes.
template <class B = default_backend, class T>
std::size_t attn_res_backward_workspace(std::size_t blocks, std::size_t rows, std::size_t cols) {
  using A = accumulator_t<T>;
  return 2 * workspace::bytes_for<A>(cols) + workspace::bytes_for<A>(2, rows, blocks) +
         simd::partials_workspace<B, A>(rows, cols, 1);
}

/// y, alpha and rstd from the blocks and the weights. See attn_res_options for the contract.
template <class B = default_backend, class T, parameter Q, parameter N>
void attn_res_forward(in_blocks<T> v, const Q& w_query, const N& w_norm, matrix_view<T> y,
                      std::type_identity_t<saved_t<op::attn_res, B, accumulator_t<T>>> alpha,
                      std::type_identity_t<saved_t<op::attn_res, B, accumulator_t<T>>> rstd, attn_res_options opt = {},
                      context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const auto query = as_in_vector<T>(w_query);
  const auto norm = as_in_vector<T>(w_norm);
  static_assert(admits_parameter<T, decltype(query), decltype(norm)>());
  const expects expect("attn_res_forward");
  expect.at_least_one("blocks of v", v.blocks);
  expect.at_least_one("cols", v.cols);
  detail::expect_blocks(expect, "v", v, v.blocks, v.rows, v.cols);
  expect.matrix("y", y, v.rows, v.cols);
  expect.size("w_query", query.size, v.cols);
  expect.size("w_norm", norm.size, v.cols);
  expect.size("alpha", alpha.size(), v.rows * v.blocks);
  expect.size("rstd", rstd.size(), v.rows * v.blocks);
  expect.eps(opt.eps);
  for (std::size_t n = 0; n < v.blocks; ++n) {
    expect.disjoint("y", y, "v", v[n]);
    expect.disjoint("alpha", as_row(alpha), "v", v[n]);
    expect.disjoint("rstd", as_row(rstd), "v", v[n]);
  }
  expect.outside("y", y, "w_query", as_row(query), "w_norm", as_row(norm));
  expect.outside("alpha", as_row(alpha), "y", y, "rstd", as_row(rstd), "w_query", as_row(query), "w_norm",
                 as_row(norm));
  expect.outside("rstd", as_row(rstd), "y", y, "w_query", as_row(query), "w_norm", as_row(norm));
  ctx.workspace().expect("attn_res_forward", attn_res_workspace<B, T>(v.cols, ctx));
  kernel_for<op::attn_res, B>::template forward<B, T>(v, query, norm, y, alpha, rstd, opt, ctx);
}

/// dv, dw_query and dw_norm from dy and what forward left. See attn_res_options for the contract.
template <class B = default_backend, class T, parameter Q, parameter N, parameter DQ, parameter DN>
void attn_res_backward(in_matrix<T> dy, in_blocks<T> v, const Q& w_query, const N& w_norm,
                       std::type_identity_t<saved_t<op::attn_res, B, const accumulator_t<T>>> alpha,
                       std::type_identity_t<saved_t<op::attn_res, B, const accumulator_t<T>>> rstd, blocks_view<T> dv,
                       DQ&& dw_query, DN&& dw_norm, attn_res_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const auto query = as_in_vector<T>(w_query);
  const auto norm = as_in_vector<T>(w_norm);
  const auto dquery = as_out_vector<T>(dw_query);
  const auto dnorm = as_out_vector<T>(dw_norm);
  static_assert(admits_parameter<T, decltype(query), decltype(norm), decltype(dquery), decltype(dnorm)>());
  const expects expect("attn_res_backward");
  expect.at_least_one("blocks of v", v.blocks);
  expect.at_least_one("cols", v.cols);
  detail::expect_blocks(expect, "v", v, v.blocks, v.rows, v.cols);
  detail::expect_blocks(expect, "dv", dv, v.blocks, v.rows, v.cols);
  expect.matrix("dy", dy, v.rows, v.cols);
  expect.size("w_query", query.size, v.cols);
  expect.size("w_norm", norm.size, v.cols);
  expect.size("dw_query", dquery.size, v.cols);
  expect.size("dw_norm", dnorm.size, v.cols);
  expect.size("alpha", alpha.size(), v.rows * v.blocks);
  expect.size("rstd", rstd.size(), v.rows * v.blocks);
  for (std::size_t n = 0; n < v.blocks; ++n) {
    for (std::size_t m = 0; m < v.blocks; ++m) {
      if (m == n)
        expect.same_or_disjoint("dv", dv[n], "v", v[m]);
      else
        expect.disjoint("dv", dv[n], "v", v[m]);
      if (m < n) expect.disjoint("dv", dv[n], "another block of dv", dv[m]);
    }
    expect.outside("dv", dv[n], "dy", dy, "w_query", as_row(query), "w_norm", as_row(norm), "alpha", as_row(alpha),
                   "rstd", as_row(rstd));
    expect.outside("dw_query", as_row(dquery), "v", v[n], "dv", dv[n]);
    expect.outside("dw_norm", as_row(dnorm), "v", v[n], "dv", dv[n]);
  }
  expect.outside("dw_query", as_row(dquery), "dy", dy, "w_query", as_row(query), "w_norm", as_row(norm), "alpha",
                 as_row(alpha), "rstd", as_row(rstd), "dw_norm", as_row(dnorm));
  expect.outside("dw_norm", as_row(dnorm), "dy", dy, "w_query", as_row(query), "w_norm", as_row(norm), "alpha",
                 as_row(alpha), "rstd", as_row(rstd));
  ctx.workspace().expect("attn_res_backward", attn_res_backward_workspace<B, T>(v.blocks, v.rows, v.cols));
  kernel_for<op::attn_res, B>::template backward<B, T>(dy, v, query, norm, alpha, rstd, dv, dquery, dnorm, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_ATTN_RES_HPP
