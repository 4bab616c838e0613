// Backward of attention for inputs of which some need no gradient.
// Operators: attention
#include <gtest/gtest.h>

#include <tigon/backend/default.hpp>
#include <tigon/ops/attention.hpp>

#include <cmath>
#include <limits>
#include <vector>

#include "support/guarded.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using tigon::heads_view;

struct extents {
  std::size_t queries, keys;
  bool causal;
};

/// Values in f32 and the tensors made of them.
template <class T>
struct layer {
  static constexpr std::size_t batch = 2, heads = 4, kv_heads = 2, d = 16;
  std::size_t e;  ///< columns of v
  extents of;
  std::vector<T> q, k, v, o, d_o, dq, dk, dv;
  std::vector<float> lse, delta;
  bool has_delta = true;
  tigon::attention_options opt;

  TIGON_TEST_NOINLINE explicit layer(extents x, std::size_t v_dim = d)
      : e(v_dim),
        of(x),
        q(batch * heads * x.queries * d),
        k(batch * kv_heads * x.keys * d),
        v(batch * kv_heads * x.keys * e),
        o(batch * heads * x.queries * e),
        d_o(o),
        dq(q),
        dk(k),
        dv(v),
        lse(batch * heads * x.queries),
        delta(lse) {
    unsigned state = 7;
    for (std::vector<T>* t : {&q, &k, &v, &d_o})
      for (T& x : *t) {
        state = state * 1664525u + 1013904223u;
        x = static_cast<T>(static_cast<float>(state >> 8) / 8388608.0f - 1.0f);
      }
    opt.mask = x.causal ? tigon::attention_mask::causal : tigon::attention_mask::none;
    if (x.causal) opt.offset = x.keys - x.queries;
    tigon::attention_forward(in(q, heads, x.queries), in(k, kv_heads, x.keys), in(v, kv_heads, x.keys),
                             out(o, heads, x.queries), std::span<float>(lse), opt);
  }
  static heads_view<const T> in(const std::vector<T>& t, std::size_t n, std::size_t len) {
    return heads_view<const T>::of_tokens(t.data(), batch, len, n, t.size() / (batch * len * n));
  }
  static heads_view<T> out(std::vector<T>& t, std::size_t n, std::size_t len) {
    return heads_view<T>::of_tokens(t.data(), batch, len, n, t.size() / (batch * len * n));
  }
  /// The gradients that are wanted; the others' memory keeps NaN.
  TIGON_TEST_NOINLINE void backward(bool need_q, bool need_k, bool need_v) {
    for (std::vector<T>* t : {&dq, &dk, &dv})
      for (T& x : *t) x = static_cast<T>(std::numeric_limits<float>::quiet_NaN());
    tigon::attention_gradients<T> to;
    if (need_q) to.dq = out(dq, heads, of.queries);
    if (need_k) to.dk = out(dk, kv_heads, of.keys);
    if (need_v) to.dv = out(dv, kv_heads, of.keys);
    if (has_delta) to.delta = delta;
    tigon::attention_backward(in(d_o, heads, of.queries), in(q, heads, of.queries), in(k, kv_heads, of.keys),
                              in(v, kv_heads, of.keys), {in(o, heads, of.queries), std::span<const float>(lse)}, to,
                              opt);
  }
};

/// All of `actual` is `wanted` up to the error that the contract states twice, or NaN where it was not to be made.
template <class T>
TIGON_TEST_NOINLINE void expect_same(const std::vector<T>& actual, const std::vector<T>& wanted, bool made) {
  double squares = 0;
  for (const T x : wanted) squares += static_cast<double>(x) * static_cast<double>(x);
  const double rms = std::sqrt(squares / static_cast<double>(wanted.size()));
  const double bound = sizeof(T) == 4 ? 8e-6 : 1.6e-2;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double x = static_cast<double>(actual[i]), y = static_cast<double>(wanted[i]);
    if (made)
      ASSERT_LE(std::abs(x - y), bound * (std::abs(y) + rms)) << i;
    else
      ASSERT_TRUE(std::isnan(x)) << i;
  }
}

template <class T>
TIGON_TEST_NOINLINE void every_choice(extents of, std::size_t v_dim) {
  layer<T> all(of, v_dim), some(of, v_dim);
  all.backward(true, true, true);
  for (unsigned choice = 0; choice < 8; ++choice) {
    const bool q = choice & 1u, k = choice & 2u, v = choice & 4u;
    some.backward(q, k, v);
    expect_same(some.dq, all.dq, q);
    expect_same(some.dk, all.dk, k);
    expect_same(some.dv, all.dv, v);
  }
}

TEST(attention_of_frozen_inputs, makes_the_wanted_gradients_alone) {
  for (const extents of : {extents{5, 9, true}, {70, 70, true}, {40, 130, false}})
    for (const std::size_t v_dim : {16u, 24u, 3u}) {
      every_choice<float>(of, v_dim);
      every_choice<tigon::bfloat16>(of, v_dim);
    }
}

TEST(attention_of_frozen_inputs, in_16_bits_dk_needs_dq_or_delta) {
  layer<tigon::bfloat16> l({5, 9, true});
  l.has_delta = false;
  EXPECT_TIGON_ERROR(
      l.backward(false, true, true), argument,
      "attention_backward: dq is absent, beside a dk of 16 bits; expected dq, whose rows hold delta, or delta");
  l.has_delta = true;
  l.delta.pop_back();
  EXPECT_TIGON_ERROR(l.backward(false, true, true), shape, "attention_backward: delta is of 39 elements; expected 40");
}

}  // namespace
