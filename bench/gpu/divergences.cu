#include "doors.hpp"
// Behind it: it says how these are compiled.
#include <tigon/losses/cross_entropy_divergence.hpp>
#include <tigon/losses/jsd.hpp>
#include <tigon/losses/kl_div.hpp>
#include <tigon/losses/tvd.hpp>

TIGON_BENCH_DOOR int jsd_forward(void* x, void* t, void* loss, void* dx, size_t r, size_t c) {
  return call([=](auto& ctx) {
    tigon::jsd_forward<B>(matrix(x, r, c), matrix(t, r, c), vector<float>(loss, 1), matrix(dx, r, c), {}, tigon::absent,
                          ctx);
  });
}
TIGON_BENCH_DOOR int kl_div_forward(void* x, void* t, void* loss, size_t r, size_t c) {
  return call([=](auto& ctx) {
    tigon::kl_div_forward<B>(matrix(x, r, c), matrix(t, r, c), vector<float>(loss, 1), tigon::matrix_view<T>(),
                             {.log_target = true}, ctx);
  });
}
TIGON_BENCH_DOOR int kl_div_backward(void* t, void* upstream, void* dx, size_t r, size_t c) {
  return call([=](auto& ctx) {
    tigon::kl_div_backward<B>(matrix(t, r, c), vector<float>(upstream, 1), matrix(dx, r, c), {.log_target = true}, ctx);
  });
}
TIGON_BENCH_DOOR int tvd_forward(void* x, void* t, void* loss, void* dx, size_t r, size_t c) {
  return call([=](auto& ctx) {
    tigon::tvd_forward<B>(matrix(x, r, c), matrix(t, r, c), vector<float>(loss, 1), matrix(dx, r, c), {}, tigon::absent,
                          ctx);
  });
}
TIGON_BENCH_DOOR int cross_entropy_tvd_forward(void* z, void* target, void* t, void* loss, void* dz, size_t r,
                                               size_t c) {
  return call([=](auto& ctx) {
    tigon::cross_entropy_tvd_forward<B>(matrix(z, r, c), labels(target, r), matrix(t, r, c), {vector<float>(loss, 1)},
                                        matrix(dz, r, c), {}, tigon::absent, ctx);
  });
}
TIGON_BENCH_DOOR int cross_entropy_jsd_forward(void* z, void* target, void* t, void* loss, void* dz, double beta,
                                               size_t r, size_t c) {
  return call([=](auto& ctx) {
    tigon::cross_entropy_jsd_forward<B>(matrix(z, r, c), labels(target, r), matrix(t, r, c), {vector<float>(loss, 1)},
                                        matrix(dz, r, c), {.beta = beta}, tigon::absent, ctx);
  });
}
