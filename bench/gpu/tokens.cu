#include "doors.hpp"
// Behind it: it says how these are compiled.
#include <cstdint>
#include <tigon/ops/adamw.hpp>
#include <tigon/ops/embedding.hpp>
#include <vector>

TIGON_BENCH_DOOR int embedding_forward(void* weight, void* ids, void* y, size_t vocab, size_t rows, size_t cols) {
  return call([=](auto& ctx) {
    tigon::embedding_forward<B>(matrix(weight, vocab, cols), vector<std::int64_t>(ids, rows), matrix(y, rows, cols), {},
                                ctx);
  });
}
TIGON_BENCH_DOOR int embedding_backward(void* dy, void* ids, void* dweight, size_t vocab, size_t rows, size_t cols) {
  return call([=](auto& ctx) {
    tigon::embedding_backward<B>(matrix(dy, rows, cols), vector<std::int64_t>(ids, rows), matrix(dweight, vocab, cols),
                                 {}, ctx);
  });
}
// Pointers and sizes of the parameters: w, g, m, v of each, in memory of the host. Moments in bf16.
TIGON_BENCH_DOOR int adamw(const void* pointers, const void* counts, size_t parameters, size_t step) {
  return call([=](auto& ctx) {
    using parameter = tigon::adamw_parameter<T, T, T>;
    const auto* const p = static_cast<void* const*>(pointers);
    const auto* const n = static_cast<const std::int64_t*>(counts);
    std::vector<parameter> list;
    for (size_t k = 0; k < parameters; ++k) {
      const auto of = [&](size_t which) { return vector(p[4 * k + which], static_cast<size_t>(n[k])); };
      list.push_back({of(0), of(1), of(2), of(3)});
    }
    (void)tigon::adamw<B>(list, {.step = step}, ctx);
  });
}
