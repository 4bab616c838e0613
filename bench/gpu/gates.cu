#include "doors.hpp"
// Behind it: it says how these are compiled.
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/relu_squared.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/swiglu.hpp>

TIGON_BENCH_DOOR int swiglu_forward(void* a, void* b, void* y, size_t r, size_t c) {
  return call([=](auto& ctx) { tigon::swiglu_forward<B>(matrix(a, r, c), matrix(b, r, c), matrix(y, r, c), {}, ctx); });
}
TIGON_BENCH_DOOR int swiglu_backward(void* dy, void* a, void* b, void* da, void* db, size_t r, size_t c) {
  return call([=](auto& ctx) {
    tigon::swiglu_backward<B>(matrix(dy, r, c), matrix(a, r, c), matrix(b, r, c), matrix(da, r, c), matrix(db, r, c),
                              {}, ctx);
  });
}
TIGON_BENCH_DOOR int geglu_forward(void* a, void* b, void* y, size_t r, size_t c) {
  return call([=](auto& ctx) { tigon::geglu_forward<B>(matrix(a, r, c), matrix(b, r, c), matrix(y, r, c), {}, ctx); });
}
TIGON_BENCH_DOOR int geglu_backward(void* dy, void* a, void* b, void* da, void* db, size_t r, size_t c) {
  return call([=](auto& ctx) {
    tigon::geglu_backward<B>(matrix(dy, r, c), matrix(a, r, c), matrix(b, r, c), matrix(da, r, c), matrix(db, r, c), {},
                             ctx);
  });
}
TIGON_BENCH_DOOR int relu_squared_forward(void* x, void* y, size_t r, size_t c) {
  return call([=](auto& ctx) { tigon::relu_squared_forward<B>(matrix(x, r, c), matrix(y, r, c), {}, ctx); });
}
TIGON_BENCH_DOOR int relu_squared_backward(void* dy, void* x, void* dx, size_t r, size_t c) {
  return call([=](auto& ctx) {
    tigon::relu_squared_backward<B>(matrix(dy, r, c), matrix(x, r, c), matrix(dx, r, c), {}, ctx);
  });
}
TIGON_BENCH_DOOR int softmax_forward(void* x, void* y, size_t r, size_t c) {
  return call([=](auto& ctx) { tigon::softmax_forward<B>(matrix(x, r, c), matrix(y, r, c), {}, ctx); });
}
TIGON_BENCH_DOOR int softmax_backward(void* dy, void* y, void* dx, size_t r, size_t c) {
  return call(
      [=](auto& ctx) { tigon::softmax_backward<B>(matrix(dy, r, c), matrix(y, r, c), matrix(dx, r, c), {}, ctx); });
}
