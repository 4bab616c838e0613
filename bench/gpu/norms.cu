#include "doors.hpp"
// Behind it: it says how these are compiled.
#include <memory>
#include <tigon/ops/layer_norm.hpp>
#include <tigon/ops/rms_norm.hpp>

namespace {
std::unique_ptr<tigon::workspace> scratch;
std::unique_ptr<tigon::context> all_calls;
}  // namespace
tigon::context& context_of_calls() { return *all_calls; }

TIGON_BENCH_DOOR void begin(void* stream, void* memory, size_t bytes) {
  scratch = std::make_unique<tigon::workspace>(std::span(static_cast<std::byte*>(memory), bytes));
  all_calls =
      std::make_unique<tigon::context>(tigon::serial(), *scratch, tigon::gpu::queue(static_cast<cudaStream_t>(stream)));
}
TIGON_BENCH_DOOR int rms_norm_forward(void* x, void* w, void* y, void* rstd, size_t r, size_t c) {
  return call([=](auto& ctx) {
    tigon::rms_norm_forward<B>(matrix(x, r, c), vector(w, c), matrix(y, r, c), vector<float>(rstd, r), {}, ctx);
  });
}
TIGON_BENCH_DOOR int rms_norm_backward(void* dy, void* x, void* w, void* rstd, void* dx, void* dw, size_t r, size_t c) {
  return call([=](auto& ctx) {
    tigon::rms_norm_backward<B>(matrix(dy, r, c), matrix(x, r, c), vector(w, c), vector<float>(rstd, r),
                                matrix(dx, r, c), vector(dw, c), {}, ctx);
  });
}
TIGON_BENCH_DOOR int layer_norm_forward(void* x, void* w, void* b, void* y, void* mean, void* rstd, size_t r,
                                        size_t c) {
  return call([=](auto& ctx) {
    tigon::layer_norm_forward<B>(matrix(x, r, c), vector(w, c), vector(b, c), matrix(y, r, c), vector<float>(mean, r),
                                 vector<float>(rstd, r), {}, ctx);
  });
}
TIGON_BENCH_DOOR int layer_norm_backward(void* dy, void* x, void* w, void* mean, void* rstd, void* dx, void* dw,
                                         void* db, size_t r, size_t c) {
  return call([=](auto& ctx) {
    tigon::layer_norm_backward<B>(matrix(dy, r, c), matrix(x, r, c), vector(w, c), vector<float>(mean, r),
                                  vector<float>(rstd, r),
                                  tigon::norm_gradients{matrix(dx, r, c), vector(dw, c), vector(db, c)}, {}, ctx);
  });
}
