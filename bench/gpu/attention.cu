#include "doors.hpp"
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/attention.hpp>
#include <tigon/ops/attention.hpp>

// Heads of [batch, heads, seq, dim], each sequence's heads beside one another in memory; `left` keys before its own
// that a query sees, or all with 0; sinks may be null.
namespace {
struct call_of_attention {
  size_t batch, queries, keys, heads, kv_heads, dim, left;
  void* sinks;

  template <class E>
  tigon::heads_view<E> of_queries(void* p) const {
    return tigon::heads_view<E>::of_tokens(static_cast<E*>(p), batch, queries, heads, dim);
  }
  template <class E>
  tigon::heads_view<E> of_keys(void* p) const {
    return tigon::heads_view<E>::of_tokens(static_cast<E*>(p), batch, keys, kv_heads, dim);
  }
  tigon::attention_options options() const {
    tigon::attention_options opt{.offset = keys - queries};
    if (left != 0) opt.window_left = left;
    if (sinks != nullptr) opt.sinks = {static_cast<const float*>(sinks), heads};
    return opt;
  }
  std::span<float> rows(void* p) const { return {static_cast<float*>(p), batch * heads * queries}; }

  template <class E>
  int forward(void* q, void* k, void* v, void* o, void* lse) const {
    return call([=, this](auto& ctx) {
      tigon::attention_forward<B>(of_queries<E>(q), of_keys<E>(k), of_keys<E>(v), of_queries<E>(o), rows(lse),
                                  options(), ctx);
    });
  }
  template <class E>
  int backward(void* const (&p)[9], void* dsinks) const {
    return call([&, this](auto& ctx) {
      tigon::attention_gradients<E> to{of_queries<E>(p[6]), of_keys<E>(p[7]), of_keys<E>(p[8])};
      if (sinks != nullptr) to.dsinks = {static_cast<float*>(dsinks), heads};
      tigon::attention_backward<B>(of_queries<E>(p[0]), of_queries<E>(p[1]), of_keys<E>(p[2]), of_keys<E>(p[3]),
                                   {of_queries<E>(p[4]), rows(p[5])}, to, options(), ctx);
    });
  }
};
}  // namespace

#define ATTENTION(NAME, E)                                                                                            \
  TIGON_BENCH_DOOR int NAME##_forward(void* q, void* k, void* v, void* sinks, void* o, void* lse, size_t b, size_t m, \
                                      size_t n, size_t h, size_t kv, size_t d, size_t left) {                         \
    return call_of_attention{b, m, n, h, kv, d, left, sinks}.forward<E>(q, k, v, o, lse);                             \
  }                                                                                                                   \
  TIGON_BENCH_DOOR int NAME##_backward(void* d_o, void* q, void* k, void* v, void* o, void* lse, void* sinks,         \
                                       void* dq, void* dk, void* dv, void* dsinks, size_t b, size_t m, size_t n,      \
                                       size_t h, size_t kv, size_t d, size_t left) {                                  \
    return call_of_attention{b, m, n, h, kv, d, left, sinks}.backward<E>({d_o, q, k, v, o, lse, dq, dk, dv}, dsinks); \
  }
ATTENTION(attention, tigon::bfloat16)
ATTENTION(attention_f16, tigon::float16)
ATTENTION(attention_f32, float)
