// Losses whose classes are split over ranks, as one rank has them: what they cost beside the losses of losses.cu.
// Several GPUs: tools/gpu_ranks.cu.
#include "doors.hpp"
// Behind it: it says how these are compiled.
#include <tigon/losses/vocab_parallel_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_scaled_cross_entropy.hpp>

namespace {
using A = tigon::accumulator_t<T>;

tigon::linear_shard<T> all_classes(void* x, void* w, size_t rows, size_t hidden, size_t vocab) {
  return {{matrix(x, rows, hidden), matrix(w, vocab, hidden)}, {0, vocab}};
}
}  // namespace

TIGON_BENCH_DOOR int vocab_parallel_cross_entropy_forward(void* z, void* target, void* loss, void* top, void* rest,
                                                          size_t rows, size_t vocab) {
  return call([=](auto& ctx) {
    tigon::vocab_parallel_cross_entropy_forward<B>(
        tigon::comm::serial(), matrix(z, rows, vocab), {0, vocab}, labels(target, rows),
        {vector<A>(loss, rows), vector<A>(top, rows), vector<A>(rest, rows)}, {}, ctx);
  });
}
TIGON_BENCH_DOOR int vocab_parallel_cross_entropy_backward(void* z, void* target, void* upstream, void* top, void* rest,
                                                           void* dz, size_t rows, size_t vocab) {
  return call([=](auto& ctx) {
    const std::span<const A> of_top = vector<A>(top, rows), of_rest = vector<A>(rest, rows);
    tigon::vocab_parallel_cross_entropy_backward<B>(matrix(z, rows, vocab), {0, vocab}, labels(target, rows),
                                                    vector<A>(upstream, rows), {of_top, of_rest},
                                                    matrix(dz, rows, vocab), {}, ctx);
  });
}
TIGON_BENCH_DOOR int vocab_parallel_fused_linear_cross_entropy_forward(void* x, void* w, void* target, void* loss,
                                                                       void* dx, void* dw, size_t rows, size_t hidden,
                                                                       size_t vocab) {
  return call([=](auto& ctx) {
    tigon::vocab_parallel_fused_linear_cross_entropy_forward<B>(
        tigon::comm::serial(), all_classes(x, w, rows, hidden, vocab), labels(target, rows), {vector<A>(loss, 1)},
        {matrix(dx, rows, hidden), matrix(dw, vocab, hidden)}, {}, tigon::absent, ctx);
  });
}
TIGON_BENCH_DOOR int vocab_parallel_fused_linear_scaled_cross_entropy_forward(void* x, void* w, void* target,
                                                                              void* upstream, void* nll, void* entropy,
                                                                              void* dx, void* dw, size_t rows,
                                                                              size_t hidden, size_t vocab) {
  return call([=](auto& ctx) {
    const std::span<const A> of_nll = vector<A>(upstream, rows);
    tigon::vocab_parallel_fused_linear_scaled_cross_entropy_forward<B>(
        tigon::comm::serial(), all_classes(x, w, rows, hidden, vocab), labels(target, rows),
        {vector<A>(nll, rows), vector<A>(entropy, rows)}, {matrix(dx, rows, hidden), matrix(dw, vocab, hidden)}, {},
        {of_nll, of_nll}, ctx);
  });
}
