// The operators that the examples' models have in common, each in a scope of the profile with its least work.
#ifndef EXAMPLE_SUPPORT_OPERATORS_HPP
#define EXAMPLE_SUPPORT_OPERATORS_HPP

#include <tigon/losses/linear/linear_layer.hpp>
#include <tigon/ops/attention.hpp>
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/moe.hpp>
#include <tigon/ops/moe_router.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/rope.hpp>
#include <tigon/ops/rotary/qk_norm_rope_options.hpp>
#include <tigon/ops/swiglu.hpp>
#include <tigon/rows/row.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "kernel_memory.hpp"
#include "products.hpp"
#include "profile.hpp"

namespace example {

/// The default backend with a smaller budget for the chunk of logits that exists at a time: 16 MiB are enough rows for
/// an efficient product of f32 at the vocabularies of these programs, and less than a layer's activations. Products of
/// bf16 by tile registers want more: there the default's chunks take 0.7 of the time.
struct small_chunks : tigon::default_backend {
  using parent = tigon::default_backend;
  static constexpr tigon::backend_info info{"small_chunks", {tigon::device::cpu}};
  using overrides = tigon::op_list<>;
  static constexpr tigon::chunk_tuning chunk{.logits_bytes = std::size_t{16} << 20};
};

/// The doors that a model calls, without the context.
/// T is the type of weights and activations, S that of gradients of weights, and of the norms' weights.
template <tigon::element T, tigon::element S = float>
class timed_operators {
 public:
  using heads = tigon::heads_view<T>;
  using tables = tigon::rope_tables<const float>;
  using choices = tigon::moe_choices<std::int32_t, float>;
  /// The types of the head.
  using head_types = std::conditional_t<std::same_as<T, S>, T, tigon::linear_types<T, T, S>>;
  using head_backend = std::conditional_t<std::same_as<T, float> && on_host, small_chunks, tigon::default_backend>;

  timed_operators(tigon::context& ctx, profile* to) : ctx_(ctx), to_(to) {}

  void rms_norm_forward(matrix<const T> x, std::span<const S> w, matrix<T> y, std::span<float> rstd,
                        tigon::rms_norm_options opt);
  void fused_add_rms_norm_forward(matrix<const T> x, matrix<const T> r, std::span<const S> w, matrix<T> y, matrix<T> s,
                                  std::span<float> rstd, tigon::rms_norm_options opt);
  /// dx is that of the stream: ds, which may be empty, on entry.
  void fused_add_rms_norm_backward(matrix<const T> dy, matrix<const T> ds, matrix<const T> s, std::span<const S> w,
                                   std::span<const float> rstd, matrix<T> dx, std::span<S> dw,
                                   tigon::rms_norm_options opt);

  /// Any product c = alpha op(a) op(b) + beta c.
  template <class A, class B, class C>
  void gemm(matrix<A> a, matrix<B> b, matrix<C> c, tigon::gemm_options opt) {
    product_of<std::remove_const_t<A>, std::remove_const_t<B>, C>(a, b, c, opt);
  }

  void rope_forward(heads q, heads k, tables by);
  void rope_backward(heads dq, heads dk, tables by);

  void attention_forward(heads q, heads k, heads v, heads o, std::span<float> lse, const tigon::attention_options& opt);
  void attention_backward(heads d, heads q, heads k, heads v, tigon::attention_saved<T, std::span<const float>> saved,
                          const tigon::attention_gradients<T>& to, const tigon::attention_options& opt);

  void moe_router_forward(matrix<const float> logits, matrix<std::int32_t> chosen, matrix<float> weights,
                          tigon::moe_router_options opt);
  void moe_router_backward(matrix<const float> dweights, matrix<const float> logits, matrix<const std::int32_t> chosen,
                           matrix<float> dlogits, tigon::moe_router_options opt);
  void moe_forward(matrix<const T> x, const choices& to, const tigon::moe_weights<const T>& w, matrix<T> y,
                   tigon::moe_saved<T>& saved);
  void moe_backward(matrix<const T> dy, matrix<const T> x, const choices& to, const tigon::moe_weights<const T>& w,
                    const tigon::moe_saved<T>& saved, const tigon::moe_gradients<T, float, float>& gradients,
                    tigon::gradient mode);

 protected:
  profile::scope call(std::string_view name, work does) const { return profile::call(to_, name, does); }
  profile::scope product(std::size_t m, std::size_t k, std::size_t n, double moved) const {
    return call("gemm", {flops(m, k, n), moved});
  }
  /// The head with a loss behind it, and those of its gradients that have memory.
  profile::scope head(std::string_view name, const tigon::linear_layer<head_types>& layer,
                      const tigon::linear_gradients<head_types>& to) const {
    const double products = 1 + (to.dx.data != nullptr) + (to.dw.data != nullptr);
    return call(name,
                {products * flops(layer.x.rows, layer.x.cols, layer.w.rows), bytes(layer.x, layer.w, to.dx, to.dw)});
  }

  static double flops(std::size_t m, std::size_t k, std::size_t n) {
    return 2.0 * static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n);
  }
  template <class... View>
  static double bytes(const View&... views) {
    return (bytes_of(views) + ...);
  }

  tigon::context& ctx_;

 private:
  template <class A, class B, class C>
  void product_of(matrix<const A> a, matrix<const B> b, matrix<C> c, tigon::gemm_options opt);

  /// Flops of one product of queries and the keys that they see.
  static double seen_pairs(const heads& q, const tigon::attention_options& opt) {
    double pairs = 0;
    const auto of = opt.cumulative_lengths;
    for (std::size_t i = 0; i + 1 < of.size(); ++i) pairs += seen(static_cast<double>(of[i + 1] - of[i]), opt);
    if (of.empty()) pairs = static_cast<double>(q.batch) * seen(static_cast<double>(q.seq_len), opt);
    return 2 * pairs * static_cast<double>(q.heads * q.head_dim);
  }
  static double seen(double n, const tigon::attention_options& opt) {
    const double window = opt.window_left >= static_cast<std::size_t>(n) ? n : static_cast<double>(opt.window_left + 1);
    return window * n - window * (window - 1) / 2;
  }
  static work experts(matrix<const T> x, const choices& to, const tigon::moe_weights<const T>& w, double passes) {
    const std::size_t pairs = to.weights.rows * to.weights.cols, width = w.gate_up.rows / w.experts;
    return {passes * (flops(pairs, x.cols, width) + flops(pairs, width / 2, x.cols)),
            passes * (2 * bytes(x) + bytes(w.gate_up, w.down))};
  }
  template <class U>
  static double bytes_of(matrix<U> m) {
    return m.data == nullptr ? 0 : static_cast<double>(m.rows * m.cols * sizeof(U));
  }
  template <class U>
  static double bytes_of(tigon::heads_view<U> h) {
    return static_cast<double>(h.batch * h.heads * h.seq_len * h.head_dim * sizeof(U));
  }

  profile* to_;
};

template <tigon::element T, tigon::element S>
void timed_operators<T, S>::rms_norm_forward(matrix<const T> x, std::span<const S> w, matrix<T> y,
                                             std::span<float> rstd, tigon::rms_norm_options opt) {
  const auto timed = call("rms_norm", {0, bytes(x, y)});
  tigon::rms_norm_forward(x, w, y, rstd, opt, ctx_);
}

template <tigon::element T, tigon::element S>
void timed_operators<T, S>::fused_add_rms_norm_forward(matrix<const T> x, matrix<const T> r, std::span<const S> w,
                                                       matrix<T> y, matrix<T> s, std::span<float> rstd,
                                                       tigon::rms_norm_options opt) {
  const auto timed = call("fused_add_rms_norm", {0, bytes(x, r, y, s)});
  tigon::fused_add_rms_norm_forward(x, r, w, y, s, rstd, opt, ctx_);
}

template <tigon::element T, tigon::element S>
void timed_operators<T, S>::fused_add_rms_norm_backward(matrix<const T> dy, matrix<const T> ds, matrix<const T> s,
                                                        std::span<const S> w, std::span<const float> rstd, matrix<T> dx,
                                                        std::span<S> dw, tigon::rms_norm_options opt) {
  const auto timed = call("fused_add_rms_norm", {0, bytes(dy, ds, s, dx)});
  tigon::fused_add_rms_norm_backward(dy, ds, s, w, rstd, tigon::fused_add_rms_norm_gradients{dx, dw}, opt, ctx_);
}

template <tigon::element T, tigon::element S>
void timed_operators<T, S>::rope_forward(heads q, heads k, tables by) {
  const auto timed = call("rope", {0, 2 * bytes(q, k)});
  tigon::rope_forward(q, k, by.cos, by.sin, q, k, {}, ctx_);
}

template <tigon::element T, tigon::element S>
void timed_operators<T, S>::rope_backward(heads dq, heads dk, tables by) {
  const auto timed = call("rope", {0, 2 * bytes(dq, dk)});
  tigon::rope_backward(dq, dk, by.cos, by.sin, dq, dk, {}, ctx_);
}

template <tigon::element T, tigon::element S>
void timed_operators<T, S>::attention_forward(heads q, heads k, heads v, heads o, std::span<float> lse,
                                              const tigon::attention_options& opt) {
  const auto timed = call("attention", {2 * seen_pairs(q, opt), bytes(q, k, v, o)});
  tigon::attention_forward(q, k, v, o, lse, opt, ctx_);
}

template <tigon::element T, tigon::element S>
void timed_operators<T, S>::attention_backward(heads d, heads q, heads k, heads v,
                                               tigon::attention_saved<T, std::span<const float>> saved,
                                               const tigon::attention_gradients<T>& to,
                                               const tigon::attention_options& opt) {
  const auto timed = call("attention", {5 * seen_pairs(q, opt), 2 * bytes(q, k, v) + bytes(d, saved.o)});
  tigon::attention_backward(d, q, k, v, {saved.o, saved.lse}, to, opt, ctx_);
}

template <tigon::element T, tigon::element S>
void timed_operators<T, S>::moe_router_forward(matrix<const float> logits, matrix<std::int32_t> chosen,
                                               matrix<float> weights, tigon::moe_router_options opt) {
  const auto timed = call("moe_router", {0, bytes(logits, chosen, weights)});
  if constexpr (on_host) tigon::moe_router_forward(logits, tigon::absent, chosen, weights, opt, ctx_);
}

template <tigon::element T, tigon::element S>
void timed_operators<T, S>::moe_router_backward(matrix<const float> dweights, matrix<const float> logits,
                                                matrix<const std::int32_t> chosen, matrix<float> dlogits,
                                                tigon::moe_router_options opt) {
  const auto timed = call("moe_router", {0, bytes(dweights, logits, chosen, dlogits)});
  if constexpr (on_host) tigon::moe_router_backward(dweights, logits, chosen, dlogits, opt, ctx_);
}

template <tigon::element T, tigon::element S>
void timed_operators<T, S>::moe_forward(matrix<const T> x, const choices& to, const tigon::moe_weights<const T>& w,
                                        matrix<T> y, tigon::moe_saved<T>& saved) {
  const auto timed = call("moe", experts(x, to, w, 1));
  if constexpr (on_host) tigon::moe_forward(x, to, w, y, saved, {}, ctx_);
}

template <tigon::element T, tigon::element S>
void timed_operators<T, S>::moe_backward(matrix<const T> dy, matrix<const T> x, const choices& to,
                                         const tigon::moe_weights<const T>& w, const tigon::moe_saved<T>& saved,
                                         const tigon::moe_gradients<T, float, float>& gradients, tigon::gradient mode) {
  const auto timed = call("moe", experts(x, to, w, gradients.ddown.data != nullptr ? 2 : 1));
  if constexpr (on_host) tigon::moe_backward(dy, x, to, w, saved, gradients, {.dw = mode}, ctx_);
}

template <tigon::element T, tigon::element S>
template <class A, class B, class C>
void timed_operators<T, S>::product_of(matrix<const A> a, matrix<const B> b, matrix<C> c, tigon::gemm_options opt) {
  const std::size_t k = opt.a == tigon::transpose::yes ? a.rows : a.cols;
  const auto timed = product(c.rows, k, c.cols, bytes(a, b, c));
  tigon::gemm(a, b, c, opt, ctx_);
}

// Compiled once an element type, in operators_f32.cpp and operators_bf16.cpp. That a definition is not in its class
// keeps it from being compiled with every source that includes this file.
extern template class timed_operators<float>;
extern template class timed_operators<tigon::bfloat16>;
#define EXAMPLE_PRODUCT_OF(T, S, A, B, C)                                                               \
  template void timed_operators<T, S>::product_of<A, B, C>(matrix<const A>, matrix<const B>, matrix<C>, \
                                                           tigon::gemm_options)
#define EXAMPLE_PRODUCT(T, A, B, C) EXAMPLE_PRODUCT_OF(T, float, A, B, C)
#if defined(EXAMPLE_ON_DEVICE)
extern template class timed_operators<tigon::bfloat16, tigon::bfloat16>;
extern EXAMPLE_PRODUCT_OF(tigon::bfloat16, tigon::bfloat16, tigon::bfloat16, tigon::bfloat16, float);
#endif
extern EXAMPLE_PRODUCT(float, float, float, float);
extern EXAMPLE_PRODUCT(tigon::bfloat16, tigon::bfloat16, tigon::bfloat16, tigon::bfloat16);
extern EXAMPLE_PRODUCT(tigon::bfloat16, tigon::bfloat16, tigon::bfloat16, float);
extern EXAMPLE_PRODUCT(tigon::bfloat16, float, tigon::bfloat16, tigon::bfloat16);
extern EXAMPLE_PRODUCT(tigon::bfloat16, float, tigon::bfloat16, float);

}  // namespace example
#endif
