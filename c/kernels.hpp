// What the library asks of its kernels, compiled once for every instruction set: pointers to functions, over which
// views, numbers and a context cross. Shapes are checked by the functions behind them.
#ifndef TIGON_C_KERNELS_HPP
#define TIGON_C_KERNELS_HPP

#include <cstdint>
#include <span>
#include <tigon/core/context.hpp>
#include <tigon/core/views.hpp>

#include "tigon_c.h"

namespace c_api {

using ids = std::span<const std::int64_t>;
using tigon::context;
template <class T>
using in = tigon::matrix_view<const T>;
template <class T>
using out = tigon::matrix_view<T>;
template <class T>
using in_heads = tigon::heads_view<const T>;
template <class T>
using out_heads = tigon::heads_view<T>;

template <class T>
struct parameter {
  std::span<float> w;
  std::span<const T> g;
  std::span<float> m, v;
  std::span<tigon::bfloat16> rounded;
  double decay;
};

/// Tensors of attention; forward reads q, k and v, and writes o and lse.
template <class T>
struct attention_tensors {
  in_heads<T> q, k, v;
  std::span<const std::int32_t> cumulative_lengths, key_begins, key_ends;
};
template <class T>
struct attention_backward_tensors {
  attention_tensors<T> of;
  in_heads<T> o;
  std::span<const float> lse;
  in_heads<T> d_o;
  out_heads<T> dq, dk, dv;
};

/// The layer in front of a loss, and where its gradients go.
template <class T>
struct linear_tensors {
  in<T> x, w;
  std::span<const T> bias;
  ids target;
  out<T> dx, dw;
  std::span<T> dbias;
};

template <class T>
struct kernels {
  void (*embedding_forward)(in<T> weight, ids, out<T> y, context&);
  void (*embedding_backward)(in<T> dy, ids, out<T> dweight, bool accumulate, context&);
  void (*rms_norm_forward)(in<T> x, std::span<const T> w, out<T> y, std::span<float> rstd, const tigon_rms_norm&,
                           context&);
  void (*rms_norm_backward)(in<T> dy, in<T> x, std::span<const T> w, std::span<const float> rstd, out<T> dx,
                            std::span<T> dw, const tigon_rms_norm&, context&);
  void (*fused_add_rms_norm_forward)(in<T> x, in<T> r, std::span<const T> w, out<T> y, out<T> s, std::span<float> rstd,
                                     const tigon_fused_add_rms_norm&, context&);
  void (*fused_add_rms_norm_backward)(in<T> dy, in<T> ds, in<T> s, std::span<const T> w, std::span<const float> rstd,
                                      out<T> dx, std::span<T> dw, const tigon_fused_add_rms_norm&, context&);
  void (*rope)(in_heads<T> q, in_heads<T> k, in<float> cos, in<float> sin, out_heads<T> q_out, out_heads<T> k_out,
               const tigon_rope&, bool backward, context&);
  void (*attention_forward)(const attention_tensors<T>&, out_heads<T> o, std::span<float> lse, const tigon_attention&,
                            context&);
  void (*attention_backward)(const attention_backward_tensors<T>&, const tigon_attention&, context&);
  void (*swiglu_forward)(in<T> gate, in<T> up, out<T> y, context&);
  void (*swiglu_backward)(in<T> dy, in<T> gate, in<T> up, out<T> dgate, out<T> dup, context&);
  void (*gemm_forward)(in<T> a, in<T> b, out<T> c, std::span<const T> bias, const tigon_gemm&, context&);
  void (*gemm_backward)(in<T> dc, in<T> a, in<T> b, out<T> da, out<T> db, const tigon_gemm&, context&);
  void (*cross_entropy_forward)(in<T> logits, ids target, std::span<float> loss, out<T> dlogits,
                                const tigon_loss_options&, context&);
  void (*fused_linear_cross_entropy_forward)(const linear_tensors<T>&, std::span<float> loss,
                                             const tigon_fused_linear_cross_entropy&, context&);
  void (*fused_linear_cross_entropy_backward)(const linear_tensors<T>&, std::span<const float> upstream,
                                              const tigon_fused_linear_cross_entropy&, context&);
  double (*adamw)(std::span<const parameter<T>>, const tigon_adamw&, context&);
};

struct kernel_table {
  kernels<float> f32;
  kernels<tigon::bfloat16> bf16;
  void (*rope_tables)(out<float> cos, out<float> sin, double theta, std::int64_t first, context&);
};

}  // namespace c_api

using c_api_kernel_table = c_api::kernel_table;

#endif  // TIGON_C_KERNELS_HPP
