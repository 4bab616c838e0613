// Connections over depth that are rows alone: attention residuals, hyper-connections before and after a layer.
#include <tigon/ops/attn_res.hpp>
#include <tigon/ops/mhc_post_res.hpp>
#include <tigon/ops/mhc_pre.hpp>

#include "declared.hpp"
#include "groups.hpp"

namespace tigon_torch {
namespace {

using backend = tigon::default_backend;

template <class T>
tigon::blocks_view<T> blocks_of(const cube& c) {
  return tigon::blocks_view<T>::stacked(static_cast<T*>(c.data), c.sizes[0], c.sizes[1], c.sizes[2]);
}
void attn_res(const host& h, cube v, vector w_query, vector w_norm, matrix y, vector alpha, vector rstd, double eps) {
  with_type<tigon::op::attn_res>("attn_res", v.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h, [&](const tigon::context& ctx) { return tigon::attn_res_workspace<backend, T>(v.sizes[2], ctx); },
        [&](tigon::context& ctx) {
          tigon::attn_res_forward(blocks_of<const T>(v), view<const A>(w_query), view<const A>(w_norm), view<T>(y),
                                  view<A>(alpha), view<A>(rstd), {eps}, ctx);
        });
  });
}
void attn_res_backward(const host& h, matrix dy, cube v, vector w_query, vector w_norm, vector alpha, vector rstd,
                       cube dv, vector dw_query, vector dw_norm, double eps) {
  with_type<tigon::op::attn_res>("attn_res_backward", v.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const auto of = tigon::trained_if(dw_query.data != nullptr || dw_norm.data != nullptr);
    run(
        h,
        [&](const tigon::context&) {
          return tigon::attn_res_backward_workspace<backend, T>(v.sizes[0], v.sizes[1], v.sizes[2], of);
        },
        [&](tigon::context& ctx) {
          tigon::attn_res_backward(view<const T>(dy), blocks_of<const T>(v), view<const A>(w_query),
                                   view<const A>(w_norm), {view<const A>(alpha), view<const A>(rstd)},
                                   tigon::attn_res_gradients{blocks_of<T>(dv), view<A>(dw_query), view<A>(dw_norm)},
                                   {eps}, ctx);
        });
  });
}

void mhc_pre(const host& h, matrix x, wide_matrix h_pre, matrix y) {
  with_type<tigon::op::mhc_pre>("mhc_pre", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h, [&](const tigon::context& ctx) { return tigon::mhc_pre_workspace<backend, T>(y.cols, h_pre.cols, ctx); },
        [&](tigon::context& ctx) { tigon::mhc_pre_forward(view<const T>(x), view<const A>(h_pre), view<T>(y), ctx); });
  });
}
void mhc_pre_backward(const host& h, matrix dy, matrix x, wide_matrix h_pre, matrix dx, wide_matrix dh_pre) {
  with_type<tigon::op::mhc_pre>("mhc_pre_backward", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(h, [&](tigon::context& ctx) {
      tigon::mhc_pre_backward(view<const T>(dy), view<const T>(x), view<const A>(h_pre),
                              tigon::mhc_pre_gradients<T>{view<T>(dx), view<A>(dh_pre)}, {}, ctx);
    });
  });
}

void mhc_post_res(const host& h, matrix x, matrix f, wide_matrix h_post, wide_matrix h_res, matrix y) {
  with_type<tigon::op::mhc_post_res>("mhc_post_res", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context& ctx) { return tigon::mhc_post_res_workspace<backend, T>(f.cols, h_post.cols, ctx); },
        [&](tigon::context& ctx) {
          tigon::mhc_post_res_forward(view<const T>(x), view<const T>(f), view<const A>(h_post), view<const A>(h_res),
                                      view<T>(y), ctx);
        });
  });
}
void mhc_post_res_backward(const host& h, matrix dy, matrix x, matrix f, wide_matrix h_post, wide_matrix h_res,
                           matrix dx, matrix df, wide_matrix dh_post, wide_matrix dh_res) {
  with_type<tigon::op::mhc_post_res>("mhc_post_res_backward", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::mhc_post_res_backward_workspace<backend, T>(f.cols, h_post.cols, ctx);
        },
        [&](tigon::context& ctx) {
          tigon::mhc_post_res_backward(
              view<const T>(dy), view<const T>(x), view<const T>(f), view<const A>(h_post), view<const A>(h_res),
              tigon::mhc_post_res_gradients<T>{view<T>(dx), view<T>(df), view<A>(dh_post), view<A>(dh_res)}, {}, ctx);
        });
  });
}

}  // namespace

declared_operators declared_depth() {
  static constexpr declared_operator table[] = {
      declared<&attn_res, tigon::op::attn_res>("attn_res"),
      declared<&attn_res_backward, tigon::op::attn_res>("attn_res_backward"),
      declared<&mhc_pre, tigon::op::mhc_pre>("mhc_pre"),
      declared<&mhc_pre_backward, tigon::op::mhc_pre>("mhc_pre_backward"),
      declared<&mhc_post_res, tigon::op::mhc_post_res>("mhc_post_res"),
      declared<&mhc_post_res_backward, tigon::op::mhc_post_res>("mhc_post_res_backward"),
  };
  return declared_in(table);
}

}  // namespace tigon_torch
