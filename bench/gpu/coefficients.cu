#include "doors.hpp"
// Behind it: it says how these are compiled.
#include <tigon/ops/mhc_coeffs.hpp>

namespace {
// Of four streams: numbers of [r, 4], [r, 4] and [r, 16].
tigon::mhc_coefficients<float> coefficients(void* pre, void* post, void* res, size_t r) {
  const auto of = [=](void* p, size_t c) { return tigon::matrix_view<float>(static_cast<float*>(p), r, c); };
  return {of(pre, 4), of(post, 4), of(res, 16)};
}
tigon::mhc_coeffs_saved<float> saved(void* mix, void* rstd, size_t r) {
  return {tigon::matrix_view<float>(static_cast<float*>(mix), r, 24), vector<float>(rstd, r)};
}
}  // namespace

TIGON_BENCH_DOOR int mhc_coeffs_forward(void* x, void* phi, void* b, void* alpha, void* pre, void* post, void* res,
                                        void* mix, void* rstd, size_t r, size_t cols) {
  return call([=](auto& ctx) {
    tigon::mhc_coeffs_forward<B>(
        matrix(x, r, cols), tigon::mhc_weights{matrix(phi, cols, 24), vector<float>(b, 24), vector<float>(alpha, 3)},
        coefficients(pre, post, res, r), saved(mix, rstd, r), {}, ctx);
  });
}
TIGON_BENCH_DOOR int mhc_coeffs_backward(void* dpre, void* dpost, void* dres, void* x, void* phi, void* b, void* alpha,
                                         void* mix, void* rstd, void* dx, void* dphi, void* db, void* dalpha, size_t r,
                                         size_t cols) {
  return call([=](auto& ctx) {
    tigon::mhc_coeffs_backward<B>(
        coefficients(dpre, dpost, dres, r), matrix(x, r, cols),
        tigon::mhc_weights{matrix(phi, cols, 24), vector<float>(b, 24), vector<float>(alpha, 3)}, saved(mix, rstd, r),
        tigon::mhc_coeffs_gradients{matrix(dx, r, cols), matrix(dphi, cols, 24), vector<float>(db, 24),
                                    vector<float>(dalpha, 3)},
        {}, ctx);
  });
}
