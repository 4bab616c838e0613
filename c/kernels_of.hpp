// The kernels of one element type. Nothing here names an instruction set.
#ifndef TIGON_C_KERNELS_OF_HPP
#define TIGON_C_KERNELS_OF_HPP

#include <tigon/gemm/gemm.hpp>
#include <tigon/losses/fused_linear_cross_entropy.hpp>
#include <tigon/ops/adamw.hpp>
#include <tigon/ops/attention.hpp>
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/rope.hpp>
#include <tigon/ops/swiglu.hpp>
#include <vector>

#include "kernels.hpp"

namespace c_api {

inline tigon::gradient mode(std::int32_t accumulate) {
  return accumulate != 0 ? tigon::gradient::accumulate : tigon::gradient::overwrite;
}

/// A number from C that stands for one of `count` enumerators.
template <class E>
E choice(const char* call, const char* name, std::int32_t value, std::int32_t count) {
  if (value < 0 || value >= count)
    tigon::detail::fail_argument(tigon::error_code::argument, call, name, std::to_string(value),
                                 "from 0 to " + std::to_string(count - 1));
  return static_cast<E>(value);
}

inline std::size_t from_zero(const char* call, const char* name, std::int64_t value) {
  if (value < 0)
    tigon::detail::fail_argument(tigon::error_code::argument, call, name, std::to_string(value), "at least 0");
  return static_cast<std::size_t>(value);
}

template <class Arguments>
tigon::rms_norm_options norm_options(const char* call, const Arguments& a) {
  return {.eps = a.eps,
          .offset = a.offset,
          .casting = choice<tigon::casting>(call, "casting", a.casting, 2),
          .dw = mode(a.accumulate)};
}

template <class T>
tigon::attention_options attention_options_of(const char* call, const tigon_attention& a,
                                              const attention_tensors<T>& of) {
  tigon::attention_options opt;
  opt.mask = choice<tigon::attention_mask>(call, "mask", a.mask, 2);
  opt.scale = a.scale;
  opt.softcap = a.softcap;
  if (const std::size_t window = from_zero(call, "window", a.window); window != 0) opt.window_left = window - 1;
  opt.offset = from_zero(call, "offset", a.offset);
  opt.cumulative_lengths = of.cumulative_lengths;
  opt.key_begins = of.key_begins, opt.key_ends = of.key_ends;
  return opt;
}

inline tigon::cross_entropy_options loss_options(const char* call, const tigon_loss_options& a) {
  tigon::cross_entropy_options opt;
  if (a.set_ignore_index != 0) opt.ignore_index = a.ignore_index;
  opt.reduction = choice<tigon::reduction>(call, "reduction", a.reduction, 3);
  opt.label_smoothing = a.label_smoothing;
  opt.lse_square_scale = a.lse_square_scale;
  opt.softcap = a.softcap;
  opt.denominator = a.denominator;
  return opt;
}

inline tigon::transpose transposed(std::int32_t is) { return is != 0 ? tigon::transpose::yes : tigon::transpose::no; }

template <class T>
void embedding_forward(in<T> weight, ids token, out<T> y, context& ctx) {
  tigon::embedding_forward(weight, token, y, {}, ctx);
}
template <class T>
void embedding_backward(in<T> dy, ids token, out<T> dweight, bool accumulate, context& ctx) {
  tigon::embedding_backward(dy, token, dweight, {.dweight = mode(accumulate)}, ctx);
}

template <class T>
void rms_norm_forward(in<T> x, std::span<const T> w, out<T> y, std::span<float> rstd, const tigon_rms_norm& a,
                      context& ctx) {
  tigon::rms_norm_forward(x, w, y, rstd, norm_options("rms_norm_forward", a), ctx);
}
template <class T>
void rms_norm_backward(in<T> dy, in<T> x, std::span<const T> w, std::span<const float> rstd, out<T> dx, std::span<T> dw,
                       const tigon_rms_norm& a, context& ctx) {
  tigon::rms_norm_backward(dy, x, w, rstd, dx, dw, norm_options("rms_norm_backward", a), ctx);
}

template <class T>
void fused_add_rms_norm_forward(in<T> x, in<T> r, std::span<const T> w, out<T> y, out<T> s, std::span<float> rstd,
                                const tigon_fused_add_rms_norm& a, context& ctx) {
  tigon::fused_add_rms_norm_forward(x, r, w, y, s, rstd, norm_options("fused_add_rms_norm_forward", a), ctx);
}
template <class T>
void fused_add_rms_norm_backward(in<T> dy, in<T> ds, in<T> s, std::span<const T> w, std::span<const float> rstd,
                                 out<T> dx, std::span<T> dw, const tigon_fused_add_rms_norm& a, context& ctx) {
  tigon::fused_add_rms_norm_backward(dy, ds, s, w, rstd, tigon::fused_add_rms_norm_gradients{dx, dw},
                                     norm_options("fused_add_rms_norm_backward", a), ctx);
}

template <class T>
void rope(in_heads<T> q, in_heads<T> k, in<float> cos, in<float> sin, out_heads<T> q_out, out_heads<T> k_out,
          const tigon_rope& a, bool backward, context& ctx) {
  const char* call = backward ? "rope_backward" : "rope_forward";
  tigon::rope_options opt;
  if (const std::size_t columns = from_zero(call, "rotary_dim", a.rotary_dim); columns != 0) opt.rotary_dim = columns;
  opt.pairs = choice<tigon::rotary_pairs>(call, "pairs", a.pairs, 2);
  if (a.k == nullptr) k = tigon::detail::no_heads_beside(q), k_out = tigon::detail::no_heads_beside(q_out);
  if (backward)
    tigon::rope_backward(q, k, cos, sin, q_out, k_out, opt, ctx);
  else
    tigon::rope_forward(q, k, cos, sin, q_out, k_out, opt, ctx);
}

template <class T>
void attention_forward(const attention_tensors<T>& of, out_heads<T> o, std::span<float> lse, const tigon_attention& a,
                       context& ctx) {
  tigon::attention_forward(of.q, of.k, of.v, o, lse, attention_options_of("attention_forward", a, of), ctx);
}
template <class T>
void attention_backward(const attention_backward_tensors<T>& t, const tigon_attention& a, context& ctx) {
  tigon::attention_backward(t.d_o, t.of.q, t.of.k, t.of.v, {t.o, t.lse}, tigon::attention_gradients{t.dq, t.dk, t.dv},
                            attention_options_of("attention_backward", a, t.of), ctx);
}

template <class T>
void swiglu_forward(in<T> gate, in<T> up, out<T> y, context& ctx) {
  tigon::swiglu_forward(gate, up, y, {}, ctx);
}
template <class T>
void swiglu_backward(in<T> dy, in<T> gate, in<T> up, out<T> dgate, out<T> dup, context& ctx) {
  tigon::swiglu_backward(dy, gate, up, dgate, dup, {}, ctx);
}

template <class T>
void gemm_forward(in<T> a, in<T> b, out<T> c, std::span<const T> bias, const tigon_gemm& is, context& ctx) {
  tigon::gemm(
      a, b, c, bias, tigon::no_epilogue{},
      {.beta = is.accumulate != 0 ? 1.0 : 0.0, .a = transposed(is.transpose_a), .b = transposed(is.transpose_b)}, ctx);
}
template <class T>
void gemm_backward(in<T> dc, in<T> a, in<T> b, out<T> da, out<T> db, const tigon_gemm& is, context& ctx) {
  const tigon::gemm_backward_options opt{.a = transposed(is.transpose_a),
                                         .b = transposed(is.transpose_b),
                                         .da = mode(is.accumulate_da),
                                         .db = mode(is.accumulate_db)};
  if (is.da == nullptr)
    tigon::gemm_backward(dc, a, b, tigon::absent, db, opt, ctx);
  else if (is.db == nullptr)
    tigon::gemm_backward(dc, a, b, da, tigon::absent, opt, ctx);
  else
    tigon::gemm_backward(dc, a, b, da, db, opt, ctx);
}

template <class T>
void cross_entropy_forward(in<T> logits, ids target, std::span<float> loss, out<T> dlogits, const tigon_loss_options& a,
                           context& ctx) {
  tigon::cross_entropy_forward(logits, target, loss, dlogits, loss_options("cross_entropy_forward", a), tigon::absent,
                               {}, ctx);
}

template <class T>
void fused_linear_cross_entropy_forward(const linear_tensors<T>& t, std::span<float> loss,
                                        const tigon_fused_linear_cross_entropy& a, context& ctx) {
  tigon::fused_linear_cross_entropy_forward(
      tigon::linear_layer<T>{t.x, t.w, t.bias}, t.target, {loss, {}}, {t.dx, t.dw, t.dbias, mode(a.accumulate)},
      {.loss = loss_options("fused_linear_cross_entropy_forward", a.options)}, tigon::absent, {}, ctx);
}
template <class T>
void fused_linear_cross_entropy_backward(const linear_tensors<T>& t, std::span<const float> upstream,
                                         const tigon_fused_linear_cross_entropy& a, context& ctx) {
  tigon::fused_linear_cross_entropy_backward(
      tigon::linear_layer<T>{t.x, t.w, t.bias}, t.target, upstream, {t.dx, t.dw, t.dbias, mode(a.accumulate)},
      {.loss = loss_options("fused_linear_cross_entropy_backward", a.options)}, tigon::absent, ctx);
}

template <class T>
double adamw(std::span<const parameter<T>> list, const tigon_adamw& a, context& ctx) {
  using P = tigon::adamw_parameter<float, T, float, T>;
  std::vector<P> parameters;
  parameters.reserve(list.size());
  for (const parameter<T>& p : list) {
    P to{p.w, p.g, p.m, p.v};
    if constexpr (P::may_have_rounded) to.rounded = p.rounded;
    to.decay = p.decay;
    parameters.push_back(to);
  }
  tigon::adamw_options opt;
  opt.learning_rate = a.learning_rate;
  opt.beta1 = a.beta1;
  opt.beta2 = a.beta2;
  opt.eps = a.eps;
  opt.weight_decay = a.weight_decay;
  opt.step = from_zero("adamw_step", "step", a.step);
  opt.max_norm = a.max_norm;
  opt.gradient_scale = a.gradient_scale != 0 ? a.gradient_scale : 1;
  opt.skip_non_finite = a.skip_non_finite != 0;
  return tigon::adamw(parameters, opt, ctx);
}

template <class T>
inline constexpr kernels<T> kernels_of{&embedding_forward<T>,
                                       &embedding_backward<T>,
                                       &rms_norm_forward<T>,
                                       &rms_norm_backward<T>,
                                       &fused_add_rms_norm_forward<T>,
                                       &fused_add_rms_norm_backward<T>,
                                       &rope<T>,
                                       &attention_forward<T>,
                                       &attention_backward<T>,
                                       &swiglu_forward<T>,
                                       &swiglu_backward<T>,
                                       &gemm_forward<T>,
                                       &gemm_backward<T>,
                                       &cross_entropy_forward<T>,
                                       &fused_linear_cross_entropy_forward<T>,
                                       &fused_linear_cross_entropy_backward<T>,
                                       &adamw<T>};

/// In kernels_bf16.cpp: two files are compiled side by side.
const kernels<tigon::bfloat16>& kernels_of_bf16();

}  // namespace c_api

#endif  // TIGON_C_KERNELS_OF_HPP
