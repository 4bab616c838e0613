// The operators of the model, each in a scope of the profile with its least work.
#ifndef EXAMPLE_FINETUNE_MODEL_OPERATORS_HPP
#define EXAMPLE_FINETUNE_MODEL_OPERATORS_HPP

#include <tigon/losses/fused_linear_cross_entropy.hpp>
#include <tigon/ops/attention.hpp>
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/moe.hpp>
#include <tigon/ops/moe_router.hpp>
#include <tigon/ops/qk_norm_rope.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/rope.hpp>
#include <tigon/ops/swiglu.hpp>
#include <tigon/rows/reduce_map.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "../support/products.hpp"
#include "../support/profile.hpp"
#include "config.hpp"

namespace example {

/// The default backend with a smaller budget for the chunk of logits that exists at a time.
struct chunks_of_16_mib : tigon::default_backend {
  using parent = tigon::default_backend;
  static constexpr tigon::backend_info info{"finetune", {tigon::device::cpu}};
  using overrides = tigon::op_list<>;
  static constexpr tigon::chunk_tuning chunk{.logits_bytes = std::size_t{16} << 20};
};

/// The doors that the model calls, without the context.
template <tigon::element T>
class model_operators {
 public:
  using heads = tigon::heads_view<T>;
  using tables = tigon::rope_tables<const float>;
  /// Activations and weights in T, gradients of weights in f32.
  using head_types = std::conditional_t<std::same_as<T, float>, float, tigon::linear_types<T, T, float>>;

  model_operators(tigon::context& ctx, profile* to) : ctx_(ctx), to_(to) {}

  void embedding_forward(matrix<const T> w, std::span<const std::int32_t> ids, double scale, matrix<T> y) {
    const auto timed = call("embedding", {0, 2 * bytes(y)});
    tigon::embedding_forward(w, ids, y, {}, ctx_);
    multiply(y, y, scale);
  }
  /// `wide` is scratch of dy's extents where T has 16 bits; dy is not kept.
  void embedding_backward(matrix<T> dy, matrix<float> wide, std::span<const std::int32_t> ids, double scale,
                          matrix<float> dw, tigon::embedding_options opt) {
    const auto timed = call("embedding", {0, bytes(dy, dw)});
    if constexpr (std::same_as<T, float>) {
      multiply(dy, dy, scale);
      tigon::embedding_backward(dy, ids, dw, opt, ctx_);
    } else {
      multiply(dy, wide, scale);
      tigon::embedding_backward(wide, ids, dw, opt, ctx_);
    }
  }

  void rms_norm_forward(matrix<const T> x, std::span<const float> w, matrix<T> y, std::span<float> rstd,
                        tigon::rms_norm_options opt) {
    const auto timed = call("rms_norm", {0, bytes(x, y)});
    tigon::rms_norm_forward(x, w, y, rstd, opt, ctx_);
  }
  void rms_norm_backward(matrix<const T> dy, matrix<const T> x, std::span<const float> w, std::span<const float> rstd,
                         matrix<T> dx, std::span<float> dw, tigon::rms_norm_options opt) {
    const auto timed = call("rms_norm", {0, bytes(dy, x, dx)});
    tigon::rms_norm_backward(dy, x, w, rstd, dx, dw, opt, ctx_);
  }
  void fused_add_rms_norm_forward(matrix<const T> x, matrix<const T> r, std::span<const float> w, matrix<T> y,
                                  matrix<T> s, std::span<float> rstd, tigon::rms_norm_options opt) {
    const auto timed = call("fused_add_rms_norm", {0, bytes(x, r, y, s)});
    tigon::fused_add_rms_norm_forward(x, r, w, y, s, rstd, opt, ctx_);
  }
  /// dx is that of the stream: ds, which may be empty, on entry.
  void fused_add_rms_norm_backward(matrix<const T> dy, matrix<const T> ds, matrix<const T> s, std::span<const float> w,
                                   std::span<const float> rstd, matrix<T> dx, std::span<float> dw,
                                   tigon::rms_norm_options opt) {
    const auto timed = call("fused_add_rms_norm", {0, bytes(dy, ds, s, dx)});
    tigon::fused_add_rms_norm_backward(dy, ds, s, w, rstd, tigon::fused_add_rms_norm_gradients{dx, dw}, opt, ctx_);
  }

  /// y = alpha x w^T + beta y + bias; the bias may be empty.
  void linear(matrix<const T> x, matrix<const T> w, std::span<const T> bias, matrix<T> y, double alpha = 1,
              double beta = 0) {
    const auto timed = product(x.rows, x.cols, w.rows, bytes(x, w, y));
    const tigon::gemm_options opt{.alpha = alpha, .beta = beta, .b = tigon::transpose::yes};
    if (bias.empty())
      tigon::gemm(x, w, y, opt, ctx_);
    else
      tigon::gemm(x, w, y, bias, tigon::no_epilogue{}, opt, ctx_);
  }
  /// Any product c = alpha op(a) op(b) + beta c.
  template <class A, class B, class C>
  void gemm(matrix<A> a, matrix<B> b, matrix<C> c, tigon::gemm_options opt) {
    const std::size_t k = opt.a == tigon::transpose::yes ? a.rows : a.cols;
    const auto timed = product(c.rows, k, c.cols, bytes(a, b, c));
    tigon::gemm(a, b, c, opt, ctx_);
  }
  /// db[j] = sum of a column of dy.
  void column_sums(matrix<const T> dy, std::span<float> db, tigon::gradient mode) {
    const auto timed = call("column_sums", {0, bytes(dy)});
    using kernels = tigon::default_backend;
    ctx_.workspace().expect("column_sums", tigon::simd::partials_workspace<kernels, float>(dy.rows, dy.cols, 1));
    tigon::map_rows<kernels>(
        ctx_, column_sum(), tigon::reads(dy), tigon::writes(),
        tigon::adds_to(tigon::parameter_gradient<float>{vector<float>{db.data(), db.size()}, mode}));
  }

  void rope_forward(heads q, heads k, tables by) {
    const auto timed = call("rope", {0, 2 * bytes(q, k)});
    tigon::rope_forward(q, k, by.cos, by.sin, q, k, {}, ctx_);
  }
  void rope_backward(heads dq, heads dk, tables by) {
    const auto timed = call("rope", {0, 2 * bytes(dq, dk)});
    tigon::rope_backward(dq, dk, by.cos, by.sin, dq, dk, {}, ctx_);
  }
  void qk_norm_rope_forward(tigon::qk_heads<T> x, std::span<const float> w_q, std::span<const float> w_k, tables by,
                            tigon::qk_heads<T> y, tigon::qk_norm_rope_options opt) {
    const auto timed = call("qk_norm_rope", {0, 2 * bytes(x.q, x.k)});
    tigon::qk_norm_rope_forward<tigon::default_backend, T>({x.q, x.k}, tigon::qk_norm_weights{w_q, w_k}, by, y, opt,
                                                           ctx_);
  }
  /// In place: d becomes the gradient of x.
  void qk_norm_rope_backward(tigon::qk_heads<T> d, tigon::qk_heads<T> x, std::span<const float> w_q,
                             std::span<const float> w_k, tables by, std::span<float> dw_q, std::span<float> dw_k,
                             tigon::qk_norm_rope_options opt) {
    const auto timed = call("qk_norm_rope", {0, 2 * bytes(x.q, x.k) + bytes(d.q, d.k)});
    tigon::qk_norm_rope_backward<tigon::default_backend, T>({d.q, d.k}, {x.q, x.k}, tigon::qk_norm_weights{w_q, w_k},
                                                            by, tigon::qk_norm_rope_gradients{d.q, d.k, dw_q, dw_k},
                                                            opt, ctx_);
  }

  void attention_forward(heads q, heads k, heads v, heads o, std::span<float> lse,
                         const tigon::attention_options& opt) {
    const auto timed = call("attention", {2 * seen_pairs(q, opt), bytes(q, k, v, o)});
    tigon::attention_forward(q, k, v, o, lse, opt, ctx_);
  }
  void attention_backward(heads d, heads q, heads k, heads v, tigon::attention_saved<T, std::span<const float>> saved,
                          const tigon::attention_gradients<T>& to, const tigon::attention_options& opt) {
    const auto timed = call("attention", {5 * seen_pairs(q, opt), 2 * bytes(q, k, v) + bytes(d, saved.o)});
    tigon::attention_backward(d, q, k, v, {saved.o, saved.lse}, to, opt, ctx_);
  }

  /// y = act(gate) * up
  void gate_forward(activation act, matrix<const T> gate, matrix<const T> up, matrix<T> y) {
    const auto timed = call("gate", {0, bytes(gate, up, y)});
    if (act == activation::silu)
      tigon::swiglu_forward(gate, up, y, {}, ctx_);
    else
      tigon::geglu_forward(gate, up, y, {.form = form_of(act)}, ctx_);
  }
  /// gate and up become their gradients.
  void gate_backward(activation act, matrix<const T> dy, matrix<T> gate, matrix<T> up) {
    const auto timed = call("gate", {0, bytes(dy) + 2 * bytes(gate, up)});
    if (act == activation::silu)
      tigon::swiglu_backward(dy, gate, up, gate, up, {}, ctx_);
    else
      tigon::geglu_backward(dy, gate, up, gate, up, {.form = form_of(act)}, ctx_);
  }

  void moe_router_forward(matrix<const float> logits, matrix<std::int32_t> chosen, matrix<float> weights,
                          tigon::moe_router_options opt) {
    const auto timed = call("moe_router", {0, bytes(logits, chosen, weights)});
    tigon::moe_router_forward(logits, tigon::absent, chosen, weights, opt, ctx_);
  }
  void moe_router_backward(matrix<const float> dweights, matrix<const float> logits, matrix<const std::int32_t> chosen,
                           matrix<float> dlogits, tigon::moe_router_options opt) {
    const auto timed = call("moe_router", {0, bytes(dweights, logits, chosen, dlogits)});
    tigon::moe_router_backward(dweights, logits, chosen, dlogits, opt, ctx_);
  }
  using choices = tigon::moe_choices<std::int32_t, float>;
  void moe_forward(matrix<const T> x, const choices& to, const tigon::moe_weights<const T>& w, matrix<T> y,
                   tigon::moe_saved<T>& saved) {
    const auto timed = call("moe", experts(x, to, w, 1));
    tigon::moe_forward(x, to, w, y, saved, {}, ctx_);
  }
  void moe_backward(matrix<const T> dy, matrix<const T> x, const choices& to, const tigon::moe_weights<const T>& w,
                    const tigon::moe_saved<T>& saved, const tigon::moe_gradients<T, float, float>& gradients,
                    tigon::gradient mode) {
    const auto timed = call("moe", experts(x, to, w, gradients.ddown.data != nullptr ? 2 : 1));
    tigon::moe_backward(dy, x, to, w, saved, gradients, {.dw = mode}, ctx_);
  }

  /// The sum of the losses of all targets, and the gradients that have memory.
  float head_loss(matrix<const T> x, matrix<const T> w, std::span<const std::int32_t> targets, double softcap,
                  const tigon::linear_gradients<head_types>& to) {
    const double products = 1 + (to.dx.data != nullptr) + (to.dw.data != nullptr);
    const auto timed =
        call("fused_linear_cross_entropy", {products * flops(x.rows, x.cols, w.rows), bytes(x, w, to.dx, to.dw)});
    float loss = 0;
    tigon::fused_linear_cross_entropy_options opt;
    opt.loss.reduction = tigon::reduction::sum, opt.loss.softcap = softcap;
    tigon::fused_linear_cross_entropy_forward<chunks_of_16_mib>(
        tigon::linear_layer<head_types>{x, w}, targets, {std::span(&loss, 1)}, to, opt, tigon::absent, {}, ctx_);
    return loss;
  }

 private:
  struct column_sum {
    template <class V>
    TIGON_INLINE V map(V x, V sum) const {
      return sum + x;
    }
  };

  /// to = from * scale; the scale is rounded to T first, as frameworks do.
  template <class To>
  void multiply(matrix<const T> from, matrix<To> to, double scale) {
    if (scale == 1 && std::same_as<T, To>) return;
    const auto by = static_cast<float>(static_cast<T>(static_cast<float>(scale)));
    tigon::for_rows<tigon::default_backend>(ctx_, to.rows, to.cols, [=] TIGON_FN(auto row) {
      row.map(tigon::reads(from), tigon::writes(to), [=](auto v) { return v * by; });
    });
  }

  static tigon::gelu_form form_of(activation act) {
    return act == activation::gelu_tanh ? tigon::gelu_form::tanh : tigon::gelu_form::erf;
  }

  profile::scope call(std::string_view name, work does) const { return profile::call(to_, name, does); }
  profile::scope product(std::size_t m, std::size_t k, std::size_t n, double moved) const {
    return call("gemm", {flops(m, k, n), moved});
  }

  static double flops(std::size_t m, std::size_t k, std::size_t n) {
    return 2.0 * static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n);
  }
  /// Flops of one product of queries and the keys that they see.
  static double seen_pairs(const heads& q, const tigon::attention_options& opt) {
    double pairs = 0;
    const auto of = opt.cumulative_lengths;
    for (std::size_t i = 0; i + 1 < of.size(); ++i) pairs += seen(static_cast<double>(of[i + 1] - of[i]), opt);
    if (of.empty()) pairs = seen(static_cast<double>(q.seq_len), opt);
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
  template <class... View>
  static double bytes(const View&... views) {
    return (bytes_of(views) + ...);
  }

  tigon::context& ctx_;
  profile* to_;
};

}  // namespace example
#endif
