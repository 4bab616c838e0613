// The operators of the model, each in a scope of the profile with its least work.
#ifndef EXAMPLE_TRAIN_LLAMA_OPERATORS_HPP
#define EXAMPLE_TRAIN_LLAMA_OPERATORS_HPP

#include <tigon/losses/fused_linear_cross_entropy.hpp>
#include <tigon/ops/attention.hpp>
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/moe.hpp>
#include <tigon/ops/moe_router.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/rope.hpp>
#include <tigon/ops/swiglu.hpp>
#include <tigon/rows/row.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "../support/products.hpp"
#include "../support/profile.hpp"

namespace example {

/// The default backend with a smaller budget for the chunk of logits that exists at a time: 16 MiB are enough rows for
/// an efficient product of f32 at the vocabularies of this program, and less than a layer's activations. Products of
/// bf16 by tile registers want more: there the default's chunks take 0.7 of the time.
struct small_chunks : tigon::default_backend {
  using parent = tigon::default_backend;
  static constexpr tigon::backend_info info{"train_llama", {tigon::device::cpu}};
  using overrides = tigon::op_list<>;
  static constexpr tigon::chunk_tuning chunk{.logits_bytes = std::size_t{16} << 20};
};

/// The doors that a model calls, without the context.
template <tigon::element T>
class operators {
 public:
  operators(tigon::context& ctx, profile* to) : ctx_(ctx), to_(to) {}

  void embedding_forward(matrix<const T> w, std::span<const std::int32_t> ids, matrix<T> y) {
    const auto timed = call("embedding", {0, 2 * bytes(y)});
    tigon::embedding_forward(w, ids, y, {}, ctx_);
  }
  void embedding_backward(matrix<const float> dy, std::span<const std::int32_t> ids, matrix<float> dw) {
    const auto timed = call("embedding", {0, bytes(dy, dw)});
    tigon::embedding_backward(dy, ids, dw, {}, ctx_);
  }

  void rms_norm_forward(matrix<const T> x, std::span<const float> w, matrix<T> y, std::span<float> rstd,
                        tigon::rms_norm_options opt) {
    const auto timed = call("rms_norm", {0, bytes(x, y)});
    tigon::rms_norm_forward(x, w, y, rstd, opt, ctx_);
  }
  void fused_add_rms_norm_forward(matrix<const T> x, matrix<const T> r, std::span<const float> w, matrix<T> y,
                                  matrix<T> s, std::span<float> rstd, tigon::rms_norm_options opt) {
    const auto timed = call("fused_add_rms_norm", {0, bytes(x, r, y, s)});
    tigon::fused_add_rms_norm_forward(x, r, w, y, s, rstd, opt, ctx_);
  }
  /// ds may be empty.
  void fused_add_rms_norm_backward(matrix<const T> dy, matrix<const T> ds, matrix<const T> s, std::span<const float> w,
                                   std::span<const float> rstd, matrix<T> dx, std::span<float> dw,
                                   tigon::rms_norm_options opt) {
    const auto timed = call("fused_add_rms_norm", {0, bytes(dy, ds, s, dx)});
    tigon::fused_add_rms_norm_backward(dy, ds, s, w, rstd, tigon::fused_add_rms_norm_gradients{dx, dw}, opt, ctx_);
  }

  void product_xwt(matrix<const T> x, matrix<const T> w, matrix<T> y) {
    const auto timed = product(x.rows, x.cols, w.rows, bytes(x, w, y));
    example::product_xwt<T>(x, w, y, ctx_);
  }
  void product_xw(matrix<const T> dy, matrix<const T> w, matrix<T> dx) {
    const auto timed = product(dy.rows, dy.cols, w.cols, bytes(dy, w, dx));
    example::product_xw<T>(dy, w, dx, ctx_);
  }
  void product_xty(matrix<const T> dy, matrix<const T> x, matrix<float> dw) {
    const auto timed = product(dy.cols, dy.rows, x.cols, bytes(dy, x, dw));
    example::product_xty<T>(dy, x, dw, ctx_);
  }
  /// Any of the three, of m x k and k x n.
  template <class A, class B, class C>
  void gemm(matrix<A> a, matrix<B> b, matrix<C> c, tigon::gemm_options opt) {
    const std::size_t k = opt.a == tigon::transpose::yes ? a.rows : a.cols;
    const auto timed = product(c.rows, k, c.cols, bytes(a, b, c));
    tigon::gemm(a, b, c, opt, ctx_);
  }

  void rope_forward(tigon::heads_view<T> q, tigon::heads_view<T> k, matrix<const float> cos, matrix<const float> sin) {
    const auto timed = call("rope", {0, 2 * bytes(q, k)});
    tigon::rope_forward(q, k, cos, sin, q, k, {}, ctx_);
  }
  void rope_backward(tigon::heads_view<T> dq, tigon::heads_view<T> dk, matrix<const float> cos,
                     matrix<const float> sin) {
    const auto timed = call("rope", {0, 2 * bytes(dq, dk)});
    tigon::rope_backward(dq, dk, cos, sin, dq, dk, {}, ctx_);
  }

  /// Queries stand behind `offset` keys.
  void attention_forward(tigon::heads_view<T> q, tigon::heads_view<T> k, tigon::heads_view<T> v, tigon::heads_view<T> o,
                         std::span<float> lse, std::size_t offset) {
    const auto timed = call("attention", {2 * causal_product(q), bytes(q, k, v, o)});
    tigon::attention_forward(q, k, v, o, lse, {.offset = offset}, ctx_);
  }
  void attention_backward(tigon::heads_view<T> d, tigon::heads_view<T> q, tigon::heads_view<T> k,
                          tigon::heads_view<T> v, tigon::heads_view<T> o, std::span<const float> lse,
                          const tigon::attention_gradients<T>& gradients) {
    const auto timed = call("attention", {5 * causal_product(q), 2 * bytes(q, k, v) + bytes(d, o)});
    tigon::attention_backward(d, q, k, v, {o, lse}, gradients, {}, ctx_);
  }

  void swiglu_forward(matrix<const T> gate, matrix<const T> up, matrix<T> y) {
    const auto timed = call("swiglu", {0, bytes(gate, up, y)});
    tigon::swiglu_forward(gate, up, y, {}, ctx_);
  }
  void swiglu_backward(matrix<const T> dy, matrix<const T> gate, matrix<const T> up, matrix<T> dgate, matrix<T> dup) {
    const auto timed = call("swiglu", {0, bytes(dy, gate, up, dgate, dup)});
    tigon::swiglu_backward(dy, gate, up, dgate, dup, {}, ctx_);
  }

  void moe_router_forward(matrix<const float> logits, matrix<std::int32_t> chosen, matrix<float> weights) {
    const auto timed = call("moe_router", {0, bytes(logits, chosen, weights)});
    tigon::moe_router_forward(logits, tigon::absent, chosen, weights, {}, ctx_);
  }
  void moe_router_backward(matrix<const float> dweights, matrix<const float> logits, matrix<const std::int32_t> chosen,
                           matrix<float> dlogits) {
    const auto timed = call("moe_router", {0, bytes(dweights, logits, chosen, dlogits)});
    tigon::moe_router_backward(dweights, logits, chosen, dlogits, {}, ctx_);
  }
  template <class Choices, class Weights>
  void moe_forward(matrix<const T> x, const Choices& choices, const Weights& w, matrix<T> y,
                   tigon::moe_saved<T>& saved) {
    const auto timed = call("moe", experts(x, choices, w, 1));
    tigon::moe_forward(x, choices, w, y, saved, {}, ctx_);
  }
  template <class Choices, class Weights, class Gradients>
  void moe_backward(matrix<const T> dy, matrix<const T> x, const Choices& choices, const Weights& w,
                    const tigon::moe_saved<T>& saved, const Gradients& gradients) {
    const auto timed = call("moe", experts(x, choices, w, 2));
    tigon::moe_backward(dy, x, choices, w, saved, gradients, {}, ctx_);
  }

  /// The types of the head: its gradients are f32, whatever T is.
  using head_types = std::conditional_t<std::same_as<T, float>, float, tigon::linear_types<T, T, float>>;
  using head_backend = std::conditional_t<std::same_as<T, float>, small_chunks, tigon::default_backend>;

  /// The head, the loss, and with dx that has memory their gradients.
  void head_loss(const tigon::linear_layer<head_types>& head, std::span<const std::int32_t> targets, float& loss,
                 matrix<T> dx, matrix<float> dw) {
    const double products = dx.data != nullptr ? 3 : 1;
    const auto timed = call("fused_linear_cross_entropy",
                            {products * flops(head.x.rows, head.x.cols, head.w.rows), bytes(head.x, head.w, dx, dw)});
    tigon::fused_linear_cross_entropy_forward<head_backend>(head, targets, {std::span(&loss, 1)}, {.dx = dx, .dw = dw},
                                                            {}, tigon::absent, {}, ctx_);
  }

  /// to = from
  template <class To>
  void convert(matrix<const T> from, matrix<To> to) {
    const auto timed = call("convert", {0, bytes(from, to)});
    tigon::for_rows<tigon::default_backend>(ctx_, to.rows, to.cols, [=] TIGON_FN(auto row) {
      row.map(tigon::reads(from), tigon::writes(to), [](auto v) { return v; });
    });
  }

 private:
  profile::scope call(std::string_view name, work does) const { return profile::call(to_, name, does); }
  profile::scope product(std::size_t m, std::size_t k, std::size_t n, double moved) const {
    return call("gemm", {flops(m, k, n), moved});
  }

  static double flops(std::size_t m, std::size_t k, std::size_t n) {
    return 2.0 * static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n);
  }
  /// One product of queries and keys, of the half that is not masked.
  static double causal_product(tigon::heads_view<T> q) {
    return static_cast<double>(q.batch * q.heads) * flops(q.seq_len, q.head_dim, q.seq_len + 1) / 2;
  }
  template <class Choices, class Weights>
  static work experts(matrix<const T> x, const Choices& choices, const Weights& w, double passes) {
    const std::size_t pairs = choices.weights.rows * choices.weights.cols;
    const std::size_t width = w.gate_up.rows / w.experts;
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
  template <class... View>
  static double bytes(const View&... views) {
    return (bytes_of(views) + ...);
  }

  tigon::context& ctx_;
  profile* to_;
};

}  // namespace example
#endif
