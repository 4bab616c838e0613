// The steps by the operators of one backend, TIGON_TRAINING_BACKEND.
#include TIGON_TRAINING_HEADER

#include <tigon/core/executor.hpp>
#include <tigon/gemm/gemm.hpp>
#include <tigon/losses/fused_linear_cross_entropy.hpp>
#include <tigon/ops/attention.hpp>
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/mhc.hpp>
#include <tigon/ops/moe.hpp>
#include <tigon/ops/moe_router.hpp>
#include <tigon/ops/qwen2vl_mrope.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/rope.hpp>
#include <tigon/ops/swiglu.hpp>
#include <tigon/ops/swiglu_fused.hpp>

#include "steps.hpp"
#include "support/backend_list.hpp"

#include "support/kernels.hpp"

namespace tigon::test::training {
namespace {

using B = usual_if<backends::TIGON_TRAINING_BACKEND>;

class fused final : public steps<float> {
 public:
  explicit fused(const model_config& config) : c_(config) {}

  void embed(in w, tokens ids, out y) override { embedding_forward<B>(w, ids, y, {}, ctx_); }
  void embed_backward(in dy, tokens ids, out dw, bool adds) override {
    embedding_options opt;
    opt.dweight = adds ? gradient::accumulate : gradient::overwrite;
    embedding_backward<B>(dy, ids, dw, opt, ctx_);
  }

  void linear(in x, in w, out y) override { gemm<B>(x, w, y, {.b = transpose::yes}, ctx_); }
  void linear_backward(in dy, in x, in w, out dx, out dw) override {
    gemm<B>(dy, w, dx, {}, ctx_);
    gemm<B>(dy, x, dw, {.a = transpose::yes}, ctx_);
  }

  void norm(in x, in w, out y, std::span<float> rstd) override {
    rms_norm_forward<B>(x, row(w), y, rstd, {.eps = c_.norm_eps, .offset = c_.norm_offset}, ctx_);
  }
  void add_norm(in x, in r, in w, out y, out s, std::span<float> rstd) override {
    fused_add_rms_norm_forward<B>(x, r, row(w), y, s, rstd, {.eps = c_.norm_eps, .offset = c_.norm_offset}, ctx_);
  }
  void add_norm_backward(in dy, in ds, in s, in w, std::span<const float> rstd, out dx, out dw) override {
    fused_add_rms_norm_backward<B>(dy, ds, s, row(w), rstd,
                                   fused_add_rms_norm_gradients{dx, std::span(dw.data, dw.cols)},
                                   {.eps = c_.norm_eps, .offset = c_.norm_offset}, ctx_);
  }

  void rotate(out qkv, const rotary_tables<float>& t) override {
    const auto q = q_of(qkv), k = k_of(qkv);
    if (c_.rotary == rotary_form::multimodal)
      qwen2vl_mrope_forward<B>(q, k, t.cos.view(), t.sin.view(), q, k, sections(), ctx_);
    else
      rope_forward<B>(q, k, t.cos.view(), t.sin.view(), q, k, {.rotary_dim = rotary_dim()}, ctx_);
  }
  void rotate_backward(out dqkv, const rotary_tables<float>& t) override {
    const auto q = q_of(dqkv), k = k_of(dqkv);
    if (c_.rotary == rotary_form::multimodal)
      qwen2vl_mrope_backward<B>(q, k, t.cos.view(), t.sin.view(), q, k, sections(), ctx_);
    else
      rope_backward<B>(q, k, t.cos.view(), t.sin.view(), q, k, {.rotary_dim = rotary_dim()}, ctx_);
  }

  void attend(in qkv, out o, std::span<float> lse) override {
    attention_forward<B>(q_of(qkv), k_of(qkv), v_of(qkv), heads(o, 0, c_.heads), lse, {}, ctx_);
  }
  void attend_backward(in d_o, in qkv, in o, std::span<const float> lse, out dqkv) override {
    attention_backward<B>(heads(d_o, 0, c_.heads), q_of(qkv), k_of(qkv), v_of(qkv), {heads(o, 0, c_.heads), lse},
                          attention_gradients{q_of(dqkv), k_of(dqkv), v_of(dqkv)}, {}, ctx_);
  }

  void gate(in gate_up, out y) override {
    if (c_.gate == gate_form::packed)
      swiglu_fused_forward<B>(gate_up, y, gate_layout::halves, {}, ctx_);
    else if (c_.gate == gate_form::geglu)
      geglu_forward<B>(gate_of(gate_up), up_of(gate_up), y, {}, ctx_);
    else
      swiglu_forward<B>(gate_of(gate_up), up_of(gate_up), y, {}, ctx_);
  }
  void gate_backward(in dy, in gate_up, out d) override {
    if (c_.gate == gate_form::packed)
      swiglu_fused_backward<B>(dy, gate_up, d, gate_layout::halves, {}, ctx_);
    else if (c_.gate == gate_form::geglu)
      geglu_backward<B>(dy, gate_of(gate_up), up_of(gate_up), gate_of(d), up_of(d), {}, ctx_);
    else
      swiglu_backward<B>(dy, gate_of(gate_up), up_of(gate_up), gate_of(d), up_of(d), {}, ctx_);
  }

  void experts(in x, expert_matrices<const float> w, mixture_state<float>& s, out y) override {
    moe_router_forward<B>(s.logits.view(), absent, s.chosen.view(), s.weights.view(), {}, ctx_);
    moe_saved<float> saved{s.saved.view()};
    moe_forward<B>(x, choices(s), moe_weights<const float>{w.gate_up, w.down, c_.experts}, y, saved, {}, ctx_);
  }
  void experts_backward(in dy, in x, expert_matrices<const float> w, const mixture_state<float>& s, out dx,
                        expert_matrices<float> dw, out dlogits) override {
    buffer<float> dweights(s.weights.rows, s.weights.cols), values = s.saved;
    const moe_saved<float> saved{values.view(), true};
    moe_backward<B>(dy, x, choices(s), moe_weights<const float>{w.gate_up, w.down, c_.experts}, saved,
                    moe_gradients{dx, dw.gate_up, dw.down, dweights.view()}, {}, ctx_);
    moe_router_backward<B>(dweights.view(), s.logits.view(), s.chosen.view(), dlogits, {}, ctx_);
  }

  void connect(in x, connection_matrices<const float> w, const layer_function& layer, connection_state<float>& s,
               out y) override {
    mhc_forward<B>(
        x, mhc_weights{w.phi, row(w.bias), row(w.alpha)}, [&](in from, out to) { layer(from, to); }, y, saved(s),
        connections(), ctx_);
  }
  void connect_backward(in dy, in x, connection_matrices<const float> w, const layer_function& layer,
                        connection_state<float>& s, out dx, connection_matrices<float> dw) override {
    buffer<float> df(s.f.rows, s.f.cols), d_in(s.in.rows, s.in.cols);
    mhc_backward<B>(
        dy, x, mhc_weights{w.phi, row(w.bias), row(w.alpha)}, [&](in from, out to) { layer(from, to); }, saved(s),
        mhc_gradients{dx, dw.phi, std::span(dw.bias.data, dw.bias.cols), std::span(dw.alpha.data, dw.alpha.cols),
                      df.view(), d_in.view()},
        connections(), ctx_);
  }

  double head(in x, in w, tokens targets, out dx, out dw) override {
    float loss = 0;
    fused_linear_cross_entropy_options opt;
    opt.loss.softcap = c_.softcap;
    fused_linear_cross_entropy_forward<B>(linear_layer{x, w}, targets, {std::span(&loss, 1)}, {.dx = dx, .dw = dw}, opt,
                                          absent, {}, ctx_);
    return static_cast<double>(loss);
  }

 private:
  template <class E>
  heads_view<E> heads(matrix_view<E> rows, std::size_t first, std::size_t count) const {
    const std::size_t dim = c_.head_dim();
    return {rows.data + first * dim,      c_.batch, count,          c_.seq_len, dim,
            c_.seq_len * rows.row_stride, dim,      rows.row_stride};
  }
  template <class E>
  heads_view<E> q_of(matrix_view<E> qkv) const {
    return heads(qkv, 0, c_.heads);
  }
  template <class E>
  heads_view<E> k_of(matrix_view<E> qkv) const {
    return heads(qkv, c_.heads, c_.kv_heads);
  }
  template <class E>
  heads_view<E> v_of(matrix_view<E> qkv) const {
    return heads(qkv, c_.heads + c_.kv_heads, c_.kv_heads);
  }
  template <class E>
  matrix_view<E> gate_of(matrix_view<E> gate_up) const {
    return gate_up.cols_from(0, c_.intermediate);
  }
  template <class E>
  matrix_view<E> up_of(matrix_view<E> gate_up) const {
    return gate_up.cols_from(c_.intermediate, c_.intermediate);
  }
  static std::span<const float> row(in w) { return {w.data, w.cols}; }
  static moe_choices<std::int32_t, float> choices(const mixture_state<float>& s) {
    return {s.chosen.view(), s.weights.view()};
  }
  mhc_coeffs_options connections() const {
    return {
        .rms_eps = c_.norm_eps, .sinkhorn_eps = c_.sinkhorn_eps, .post_mult = c_.post_mult, .tmax = c_.sinkhorn_steps};
  }
  static mhc_saved<float> saved(connection_state<float>& s) {
    return {{s.h_pre.view(), s.h_post.view(), s.h_res.view()}, {s.mix.view(), s.rstd}, s.in.view(), s.f.view()};
  }
  std::size_t rotary_dim() const { return c_.rotary == rotary_form::partial ? c_.rotary_dim : c_.head_dim(); }
  qwen2vl_mrope_options sections() const { return {.sections = {c_.sections[0], c_.sections[1], c_.sections[2]}}; }

  model_config c_;
  workspace workspace_;
  context ctx_{serial(), workspace_};
};

[[maybe_unused]] const bool added =
    fused_backends()
        .emplace(std::string(B::info.name), [](const model_config& c) { return std::make_unique<fused>(c); })
        .second;

}  // namespace
}  // namespace tigon::test::training
