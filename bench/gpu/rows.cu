#include "doors.hpp"
// Behind it: it says how these are compiled.
#include <tigon/ops/dyt.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/modulated_rms_norm.hpp>
#include <tigon/ops/poly_norm.hpp>

TIGON_BENCH_DOOR int fused_add_rms_norm_forward(void* x, void* add, void* w, void* y, void* s, void* rstd, size_t r,
                                                size_t c) {
  return call([=](auto& ctx) {
    tigon::fused_add_rms_norm_forward<B>(matrix(x, r, c), matrix(add, r, c), vector(w, c), matrix(y, r, c),
                                         matrix(s, r, c), vector<float>(rstd, r), {}, ctx);
  });
}
TIGON_BENCH_DOOR int fused_add_rms_norm_backward(void* dy, void* ds, void* s, void* w, void* rstd, void* dx, void* dw,
                                                 size_t r, size_t c) {
  return call([=](auto& ctx) {
    tigon::fused_add_rms_norm_backward<B>(
        matrix(dy, r, c), matrix(ds, r, c), matrix(s, r, c), vector(w, c), vector<float>(rstd, r),
        tigon::fused_add_rms_norm_gradients{matrix(dx, r, c), vector(dw, c)}, {}, ctx);
  });
}
TIGON_BENCH_DOOR int modulated_rms_norm_forward(void* x, void* w, void* scale, void* shift, void* y, void* rstd,
                                                size_t r, size_t c, size_t groups) {
  return call([=](auto& ctx) {
    tigon::modulated_rms_norm_forward<B>(matrix(x, r, c), vector(w, c), matrix(scale, groups, c),
                                         matrix(shift, groups, c), matrix(y, r, c), vector<float>(rstd, r),
                                         {.group_rows = r / groups}, ctx);
  });
}
TIGON_BENCH_DOOR int modulated_rms_norm_backward(void* dy, void* x, void* w, void* scale, void* rstd, void* dx,
                                                 void* dw, void* dscale, void* dshift, size_t r, size_t c,
                                                 size_t groups) {
  return call([=](auto& ctx) {
    tigon::modulated_rms_norm_backward<B>(
        matrix(dy, r, c), matrix(x, r, c), vector(w, c), matrix(scale, groups, c), vector<float>(rstd, r),
        tigon::modulated_rms_norm_gradients{matrix(dx, r, c), vector(dw, c), matrix(dscale, groups, c),
                                            matrix(dshift, groups, c)},
        {.group_rows = r / groups}, ctx);
  });
}
TIGON_BENCH_DOOR int poly_norm_forward(void* x, void* w, void* b, void* y, void* rstd, size_t r, size_t c) {
  return call([=](auto& ctx) {
    tigon::poly_norm_forward<B>(matrix(x, r, c), vector(w, 3), vector(b, 1), matrix(y, r, c),
                                vector<float>(rstd, 3 * r), {}, ctx);
  });
}
TIGON_BENCH_DOOR int poly_norm_backward(void* dy, void* x, void* w, void* rstd, void* dx, void* dw, void* db, size_t r,
                                        size_t c) {
  return call([=](auto& ctx) {
    tigon::poly_norm_backward<B>(matrix(dy, r, c), matrix(x, r, c), vector(w, 3), vector<float>(rstd, 3 * r),
                                 tigon::norm_gradients{matrix(dx, r, c), vector(dw, 3), vector(db, 1)}, {}, ctx);
  });
}
TIGON_BENCH_DOOR int dyt_forward(void* x, void* alpha, void* gamma, void* beta, void* y, size_t r, size_t c) {
  return call([=](auto& ctx) {
    tigon::dyt_forward<B>(matrix(x, r, c), vector(alpha, 1), vector(gamma, c), vector(beta, c), matrix(y, r, c), {},
                          ctx);
  });
}
TIGON_BENCH_DOOR int dyt_backward(void* dy, void* x, void* alpha, void* gamma, void* dx, void* dalpha, void* dgamma,
                                  void* dbeta, size_t r, size_t c) {
  return call([=](auto& ctx) {
    tigon::dyt_backward<B>(
        matrix(dy, r, c), matrix(x, r, c), vector(alpha, 1), vector(gamma, c),
        tigon::dyt_gradients{matrix(dx, r, c), vector(dalpha, 1), vector(dgamma, c), vector(dbeta, c)}, {}, ctx);
  });
}
