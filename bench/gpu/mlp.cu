#include "doors.hpp"
// Behind it: it says how these are compiled.
#include <tigon/ops/mlp.hpp>
#include <tigon/ops/tiled_mlp.hpp>

namespace {
tigon::mlp_weights<T> weights(void* gate, void* up, void* down, size_t hidden, size_t n) {
  return {matrix(gate, n, hidden), matrix(up, n, hidden), matrix(down, hidden, n)};
}
}  // namespace

TIGON_BENCH_DOOR size_t mlp_workspace(size_t tokens, size_t hidden, size_t n) {
  return std::max(tigon::mlp_workspace<B, T>(tigon::mlp_pass::forward, tokens, hidden, n),
                  tigon::mlp_workspace<B, T>(tigon::mlp_pass::backward, tokens, hidden, n));
}
TIGON_BENCH_DOOR int mlp_forward(void* x, void* wg, void* wu, void* wd, void* y, void* saved, size_t tokens,
                                 size_t hidden, size_t n) {
  return call([=](auto& ctx) {
    tigon::mlp_saved<T> to{matrix(saved, tokens, 3 * n)};
    tigon::mlp_forward<B>(matrix(x, tokens, hidden), weights(wg, wu, wd, hidden, n), matrix(y, tokens, hidden), to, {},
                          ctx);
  });
}
TIGON_BENCH_DOOR int mlp_backward(void* dy, void* x, void* wg, void* wu, void* wd, void* saved, void* dx, void* dwg,
                                  void* dwu, void* dwd, size_t tokens, size_t hidden, size_t n) {
  return call([=](auto& ctx) {
    tigon::mlp_saved<T> from{matrix(saved, tokens, 3 * n), true};
    tigon::mlp_backward<B>(matrix(dy, tokens, hidden), matrix(x, tokens, hidden), weights(wg, wu, wd, hidden, n), from,
                           matrix(dx, tokens, hidden), weights(dwg, dwu, dwd, hidden, n), {}, ctx);
  });
}
TIGON_BENCH_DOOR size_t tiled_mlp_workspace(size_t tokens, size_t hidden, size_t n, size_t shards) {
  return std::max(tigon::tiled_mlp_workspace<B, T>(tokens, hidden, n, shards),
                  tigon::tiled_mlp_backward_workspace<B, T>(tokens, hidden, n, shards));
}
TIGON_BENCH_DOOR int tiled_mlp_forward(void* x, void* wg, void* wu, void* wd, void* y, size_t tokens, size_t hidden,
                                       size_t n, size_t shards) {
  return call([=](auto& ctx) {
    tigon::tiled_mlp_forward<B>(matrix(x, tokens, hidden), weights(wg, wu, wd, hidden, n), matrix(y, tokens, hidden),
                                {.shards = shards}, ctx);
  });
}
TIGON_BENCH_DOOR int tiled_mlp_backward(void* dy, void* x, void* wg, void* wu, void* wd, void* dx, void* dwg, void* dwu,
                                        void* dwd, size_t tokens, size_t hidden, size_t n, size_t shards) {
  return call([=](auto& ctx) {
    tigon::tiled_mlp_backward<B>(matrix(dy, tokens, hidden), matrix(x, tokens, hidden), weights(wg, wu, wd, hidden, n),
                                 matrix(dx, tokens, hidden), weights(dwg, dwu, dwd, hidden, n), {.shards = shards},
                                 ctx);
  });
}
