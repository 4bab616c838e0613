#include "doors.hpp"
// Behind it: it says how these are compiled.
#include <tigon/ops/llama4_rope.hpp>
#include <tigon/ops/qk_norm_rope.hpp>
#include <tigon/ops/qwen2vl_mrope.hpp>
#include <tigon/ops/rope.hpp>

// Heads of [batch, heads, seq, dim], as PyTorch's models have them, each sequence's heads beside one another in memory:
// strides of [batch, seq, heads, dim].
namespace {
struct sizes {
  size_t batch, seq, heads, kv_heads, dim;
};
tigon::heads_view<T> heads(void* p, sizes n, size_t count) {
  return tigon::heads_view<T>::of_tokens(static_cast<T*>(p), n.batch, n.seq, count, n.dim);
}
}  // namespace

TIGON_BENCH_DOOR int rope_forward(void* q, void* k, void* cos, void* sin, void* yq, void* yk, size_t b, size_t s,
                                  size_t h, size_t kv, size_t d) {
  const sizes n{b, s, h, kv, d};
  return call([=](auto& ctx) {
    tigon::rope_forward<B>(heads(q, n, h), heads(k, n, kv), matrix(cos, s, d / 2), matrix(sin, s, d / 2),
                           heads(yq, n, h), heads(yk, n, kv), {}, ctx);
  });
}
TIGON_BENCH_DOOR int rope_backward(void* q, void* k, void* cos, void* sin, void* yq, void* yk, size_t b, size_t s,
                                   size_t h, size_t kv, size_t d) {
  const sizes n{b, s, h, kv, d};
  return call([=](auto& ctx) {
    tigon::rope_backward<B>(heads(q, n, h), heads(k, n, kv), matrix(cos, s, d / 2), matrix(sin, s, d / 2),
                            heads(yq, n, h), heads(yk, n, kv), {}, ctx);
  });
}
TIGON_BENCH_DOOR int llama4_rope_forward(void* q, void* k, void* freqs, void* yq, void* yk, size_t b, size_t s,
                                         size_t h, size_t kv, size_t d) {
  const sizes n{b, s, h, kv, d};
  return call([=](auto& ctx) {
    const tigon::matrix_view<float> f(static_cast<float*>(freqs), s, d);
    tigon::llama4_rope_forward<B>(heads(q, n, h), heads(k, n, kv), f, heads(yq, n, h), heads(yk, n, kv), {}, ctx);
  });
}
TIGON_BENCH_DOOR int qwen2vl_mrope_forward(void* q, void* k, void* cos, void* sin, void* yq, void* yk, size_t b,
                                           size_t s, size_t h, size_t kv, size_t d) {
  const sizes n{b, s, h, kv, d};
  return call([=](auto& ctx) {
    tigon::qwen2vl_mrope_forward<B>(heads(q, n, h), heads(k, n, kv), matrix(cos, 3 * b * s, d / 2),
                                    matrix(sin, 3 * b * s, d / 2), heads(yq, n, h), heads(yk, n, kv),
                                    {.sections = {d / 8, 3 * d / 16, 3 * d / 16}}, ctx);
  });
}
TIGON_BENCH_DOOR int qk_norm_rope_forward(void* q, void* k, void* wq, void* wk, void* cos, void* sin, void* yq,
                                          void* yk, size_t b, size_t s, size_t h, size_t kv, size_t d) {
  const sizes n{b, s, h, kv, d};
  return call([=](auto& ctx) {
    tigon::qk_norm_rope_forward<B>({heads(q, n, h), heads(k, n, kv)},
                                   tigon::qk_norm_weights{vector(wq, d), vector(wk, d)},
                                   tigon::rope_tables{matrix(cos, s, d / 2), matrix(sin, s, d / 2)},
                                   tigon::qk_heads{heads(yq, n, h), heads(yk, n, kv)}, {}, ctx);
  });
}
TIGON_BENCH_DOOR int qk_norm_rope_backward(void* gq, void* gk, void* q, void* k, void* wq, void* wk, void* cos,
                                           void* sin, void* dq, void* dk, void* dwq, void* dwk, size_t b, size_t s,
                                           size_t h, size_t kv, size_t d) {
  const sizes n{b, s, h, kv, d};
  return call([=](auto& ctx) {
    tigon::qk_norm_rope_backward<B>(
        {heads(gq, n, h), heads(gk, n, kv)}, {heads(q, n, h), heads(k, n, kv)},
        tigon::qk_norm_weights{vector(wq, d), vector(wk, d)},
        tigon::rope_tables{matrix(cos, s, d / 2), matrix(sin, s, d / 2)},
        tigon::qk_norm_rope_gradients{heads(dq, n, h), heads(dk, n, kv), vector(dwq, d), vector(dwk, d)}, {}, ctx);
  });
}
