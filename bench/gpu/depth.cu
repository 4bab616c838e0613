#include "doors.hpp"
// Behind it: it says how these are compiled.
#include <tigon/ops/attn_res.hpp>
#include <tigon/ops/group_norm.hpp>
#include <tigon/ops/mhc_post_res.hpp>
#include <tigon/ops/mhc_pre.hpp>
#include <tigon/ops/sparsemax.hpp>

namespace {
tigon::matrix_view<float> numbers(void* p, size_t r, size_t c) { return {static_cast<float*>(p), r, c}; }
}  // namespace

TIGON_BENCH_DOOR int group_norm_forward(void* x, void* w, void* b, void* y, void* mean, void* rstd, size_t n, size_t c,
                                        size_t positions, size_t groups) {
  return call([=](auto& ctx) {
    tigon::group_norm_forward<B>(matrix(x, n * c, positions), vector(w, c), vector(b, c), matrix(y, n * c, positions),
                                 vector<float>(mean, n * groups), vector<float>(rstd, n * groups), {.groups = groups},
                                 ctx);
  });
}
TIGON_BENCH_DOOR int group_norm_backward(void* dy, void* x, void* w, void* mean, void* rstd, void* dx, void* dw,
                                         void* db, size_t n, size_t c, size_t positions, size_t groups) {
  return call([=](auto& ctx) {
    tigon::group_norm_backward<B>(matrix(dy, n * c, positions), matrix(x, n * c, positions), vector(w, c),
                                  vector<float>(mean, n * groups), vector<float>(rstd, n * groups),
                                  tigon::norm_gradients{matrix(dx, n * c, positions), vector(dw, c), vector(db, c)},
                                  {.groups = groups}, ctx);
  });
}
TIGON_BENCH_DOOR int sparsemax_forward(void* x, void* y, size_t r, size_t c) {
  return call([=](auto& ctx) { tigon::sparsemax_forward<B>(matrix(x, r, c), matrix(y, r, c), {}, ctx); });
}
TIGON_BENCH_DOOR int sparsemax_backward(void* dy, void* y, void* dx, size_t r, size_t c) {
  return call(
      [=](auto& ctx) { tigon::sparsemax_backward<B>(matrix(dy, r, c), matrix(y, r, c), matrix(dx, r, c), {}, ctx); });
}
TIGON_BENCH_DOOR int attn_res_forward(void* v, void* query, void* norm, void* y, void* alpha, void* rstd, size_t blocks,
                                      size_t r, size_t c) {
  return call([=](auto& ctx) {
    tigon::attn_res_forward<B>(tigon::blocks_view<T>::stacked(static_cast<T*>(v), blocks, r, c), vector(query, c),
                               vector(norm, c), matrix(y, r, c), vector<float>(alpha, blocks * r),
                               vector<float>(rstd, blocks * r), {}, ctx);
  });
}
TIGON_BENCH_DOOR int attn_res_backward(void* dy, void* v, void* query, void* norm, void* alpha, void* rstd, void* dv,
                                       void* dquery, void* dnorm, size_t blocks, size_t r, size_t c) {
  return call([=](auto& ctx) {
    const auto of = [=](void* p) { return tigon::blocks_view<T>::stacked(static_cast<T*>(p), blocks, r, c); };
    tigon::attn_res_backward<B>(matrix(dy, r, c), of(v), vector(query, c), vector(norm, c),
                                {vector<float>(alpha, blocks * r), vector<float>(rstd, blocks * r)},
                                tigon::attn_res_gradients{of(dv), vector(dquery, c), vector(dnorm, c)}, {}, ctx);
  });
}
TIGON_BENCH_DOOR int mhc_pre_forward(void* x, void* h, void* y, size_t r, size_t n, size_t c) {
  return call(
      [=](auto& ctx) { tigon::mhc_pre_forward<B>(matrix(x, r, n * c), numbers(h, r, n), matrix(y, r, c), ctx); });
}
TIGON_BENCH_DOOR int mhc_pre_backward(void* dy, void* x, void* h, void* dx, void* dh, size_t r, size_t n, size_t c) {
  return call([=](auto& ctx) {
    tigon::mhc_pre_backward<B>(matrix(dy, r, c), matrix(x, r, n * c), numbers(h, r, n),
                               tigon::mhc_pre_gradients<T>{matrix(dx, r, n * c), numbers(dh, r, n)}, {}, ctx);
  });
}
TIGON_BENCH_DOOR int mhc_post_res_forward(void* x, void* f, void* post, void* res, void* y, size_t r, size_t n,
                                          size_t c) {
  return call([=](auto& ctx) {
    tigon::mhc_post_res_forward<B>(matrix(x, r, n * c), matrix(f, r, c), numbers(post, r, n), numbers(res, r, n * n),
                                   matrix(y, r, n * c), ctx);
  });
}
TIGON_BENCH_DOOR int mhc_post_res_backward(void* dy, void* x, void* f, void* post, void* res, void* dx, void* df,
                                           void* dpost, void* dres, size_t r, size_t n, size_t c) {
  return call([=](auto& ctx) {
    tigon::mhc_post_res_backward<B>(matrix(dy, r, n * c), matrix(x, r, n * c), matrix(f, r, c), numbers(post, r, n),
                                    numbers(res, r, n * n),
                                    tigon::mhc_post_res_gradients<T>{matrix(dx, r, n * c), matrix(df, r, c),
                                                                     numbers(dpost, r, n), numbers(dres, r, n * n)},
                                    {}, ctx);
  });
}
