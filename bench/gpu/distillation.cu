#include "doors.hpp"
// Behind it: it says how these are compiled.
#include <tigon/losses/fused_linear_jsd.hpp>
#include <tigon/losses/fused_linear_kl_div.hpp>

namespace {
struct layer {
  tigon::linear_layer<T> of;
  tigon::linear_gradients<T> gradients;
  layer(void* x, void* w, void* dx, void* dw, size_t rows, size_t hidden, size_t vocab)
      : of{matrix(x, rows, hidden), matrix(w, vocab, hidden)},
        gradients{matrix(dx, rows, hidden), matrix(dw, vocab, hidden)} {}
};
}  // namespace

TIGON_BENCH_DOOR int fused_linear_jsd_forward(void* x, void* w, void* teacher_x, void* teacher_w, void* loss, void* dx,
                                              void* dw, size_t rows, size_t hidden, size_t vocab) {
  return call([=](auto& ctx) {
    const layer student(x, w, dx, dw, rows, hidden, vocab);
    const tigon::linear_layer teacher{matrix(teacher_x, rows, hidden), matrix(teacher_w, vocab, hidden)};
    tigon::fused_linear_jsd_forward<B>(student.of, teacher, tigon::absent, vector<float>(loss, 1), student.gradients,
                                       {}, ctx);
  });
}
TIGON_BENCH_DOOR size_t fused_linear_jsd_workspace(size_t rows, size_t hidden, size_t vocab) {
  return tigon::fused_linear_distillation_workspace<B, T>(rows, hidden, vocab, hidden, vocab, context_of_calls());
}
TIGON_BENCH_DOOR int fused_linear_kl_div_forward(void* x, void* w, void* teacher, void* loss, void* dx, void* dw,
                                                 size_t rows, size_t hidden, size_t vocab) {
  return call([=](auto& ctx) {
    const layer student(x, w, dx, dw, rows, hidden, vocab);
    tigon::fused_linear_kl_div_forward<B>(student.of, matrix(teacher, rows, vocab), tigon::absent,
                                          vector<float>(loss, 1), student.gradients, {}, ctx);
  });
}
TIGON_BENCH_DOOR size_t fused_linear_kl_div_workspace(size_t rows, size_t hidden, size_t vocab) {
  return tigon::fused_linear_kl_div_workspace<B, T>(rows, hidden, vocab, context_of_calls());
}
