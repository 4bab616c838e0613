#include "doors.hpp"
// Behind it: it says how these are compiled.
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/losses/fused_linear_cross_entropy.hpp>

TIGON_BENCH_DOOR int cross_entropy_forward(void* z, void* target, void* loss, void* dz, size_t r, size_t c) {
  return call([=](auto& ctx) {
    tigon::cross_entropy_forward<B>(matrix(z, r, c), labels(target, r), vector<float>(loss, 1), matrix(dz, r, c), {},
                                    tigon::absent, {}, ctx);
  });
}
TIGON_BENCH_DOOR int fused_linear_cross_entropy_forward(void* x, void* w, void* target, void* loss, void* dx, void* dw,
                                                        size_t rows, size_t hidden, size_t vocab, size_t chunk) {
  return call([=](auto& ctx) {
    ctx.logit_rows(chunk);
    const tigon::linear_layer layer{matrix(x, rows, hidden), matrix(w, vocab, hidden)};
    const tigon::linear_gradients gradients{matrix(dx, rows, hidden), matrix(dw, vocab, hidden)};
    tigon::fused_linear_cross_entropy_forward<B>(layer, labels(target, rows), {vector<float>(loss, 1)}, gradients, {},
                                                 tigon::absent, {}, ctx);
    ctx.logit_rows(0);
  });
}
TIGON_BENCH_DOOR size_t fused_linear_cross_entropy_workspace(size_t rows, size_t hidden, size_t vocab) {
  return tigon::fused_linear_cross_entropy_workspace<B, T>(rows, hidden, vocab, context_of_calls());
}
