// A decoder of any known family, forward and backward by tigon's operators.
#ifndef EXAMPLE_FINETUNE_MODEL_HPP
#define EXAMPLE_FINETUNE_MODEL_HPP

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../../support/router_balance.hpp"
#include "model_lora.hpp"
#include "model_memory.hpp"
#include "model_operators.hpp"
#include "model_parameters.hpp"

namespace example {

/// A layer keeps its input, what attention read and wrote, the sum behind it, and gate and up; norms' outputs and the
/// gated product are made again in backward.
template <tigon::element T>
class causal_model : model_parameters<T> {
  using parameters = model_parameters<T>;
  using parameters::a_, parameters::layout_, parameters::lora_, parameters::weights_, parameters::to_;
  using parameters::a_of, parameters::b_of, parameters::adapter_gradient, parameters::adapters;
  using parameters::matrix_at, parameters::matrix_of, parameters::gradient_at, parameters::gradient_of;
  using parameters::norm, parameters::dnorm, parameters::head_norm, parameters::dhead_norm;

 public:
  causal_model(const architecture& a, const weight_layout& layout, const lora_layout& lora, model_options options,
               tigon::context& ctx, profile* timed = nullptr)
      : parameters(a, layout, lora),
        options_(options),
        ctx_(ctx),
        profile_(timed),
        do_(ctx, timed),
        m_(a, options, lora.options.rank) {}

  using operators = model_operators<T>;
  using head_layer = typename operators::head_layer;
  using head_gradients = typename operators::head_gradients;

  operators& doors() { return do_; }
  const architecture& of() const { return a_; }

  /// The head, with the last norm's outputs as x: what losses of one's own read.
  head_layer answer(const model_weights<T>& weights, const packed_documents& of) {
    const auto y = begin(weights, {}, of);
    forward(of.ids);
    return {y, matrix_at(layout_.head, a_.vocab, a_.hidden)};
  }

  /// head(layer, gradients) is a loss that is a sum over `count` of something; with experts, count times their balance
  /// loss is added. Gradients are those of the sum, not of a mean.
  template <class Head>
  double step(const model_weights<T>& weights, const model_gradients& gradients, const packed_documents& of,
              double count, const Head& head) {
    double out = 0;
    head_gradients to;
    {
      const auto timed = profile::part(profile_, "forward");
      const auto y = begin(weights, gradients, of);
      forward(of.ids);
      to.dx = first(m_.dy), to.dw = gradient_at(layout_.head, a_.vocab, a_.hidden), to.mode = to_.mode;
      out = head(head_layer{y, matrix_at(layout_.head, a_.vocab, a_.hidden)}, to);
    }
    const auto timed = profile::part(profile_, "backward");
    balance_factor_ = count * a_.balance;
    if (a_.balance != 0) out += balance_factor_ * balance_.loss();
    backward(to.dx, of.ids);
    return out;
  }
  template <class Head>
  double loss(const model_weights<T>& weights, const packed_documents& of, double count, const Head& head) {
    const double out = head(answer(weights, of), head_gradients{});
    return a_.balance == 0 ? out : out + count * a_.balance * balance_.loss();
  }

  /// The sum of the cross entropies of all targets.
  double step(const model_weights<T>& weights, const model_gradients& gradients, const packed_documents& of) {
    return step(weights, gradients, of, counted(of), cross_entropy(of));
  }
  double loss(const model_weights<T>& weights, const packed_documents& of) {
    return loss(weights, of, counted(of), cross_entropy(of));
  }
  auto cross_entropy(const packed_documents& of) {
    return [this, of](const head_layer& layer, const head_gradients& to) {
      return do_.cross_entropy(layer, of.targets, a_.logit_softcap, to);
    };
  }

  /// Scores of the tokens that follow ids[rows[i]], a row each.
  void logits(const model_weights<T>& weights, const packed_documents& of, std::span<const std::size_t> rows,
              matrix<float> out) {
    const auto y = begin(weights, {}, of);
    forward(of.ids);
    const auto head = matrix_at(layout_.head, a_.vocab, a_.hidden);
    for (std::size_t i = 0; i < rows.size(); ++i)
      do_.gemm(y.rows_from(rows[i], 1), head, out.rows_from(i, 1), {.b = tigon::transpose::yes});
    if (a_.logit_softcap == 0) return;
    const double cap = a_.logit_softcap;
    for (std::size_t i = 0; i < out.rows; ++i)
      for (std::size_t j = 0; j < out.cols; ++j)
        out.row(i)[j] = static_cast<float>(cap * std::tanh(static_cast<double>(out.row(i)[j]) / cap));
  }

  /// Most bytes of activations, temporaries and workspace so far.
  std::size_t peak_bytes() const { return m_.bytes() + ctx_.workspace().high_water(); }

 private:
  using layer = weight_layout::layer;
  using heads = tigon::heads_view<T>;
  using routing = typename model_memory<T>::routing;
  using layer_saved = typename model_memory<T>::layer_saved;

  /// Takes the arguments of a call; returns where the last norm's output will be.
  matrix<T> begin(const model_weights<T>& weights, const model_gradients& to, const packed_documents& of) {
    n_ = of.ids.size();
    if (n_ == 0 || n_ > options_.most_tokens || of.targets.size() != n_ || of.begins.size() < 2 ||
        of.begins.front() != 0 || static_cast<std::size_t>(of.begins.back()) != n_ ||
        !std::is_sorted(of.begins.begin(), of.begins.end()))
      throw std::logic_error("documents of a step that do not fit their lengths");
    weights_ = weights, to_ = to;
    balance_ = router_balance(a_.experts);
    begins_.assign(of.begins.begin(), of.begins.end());
    for (const bool local : {false, true}) {
      const auto uses = [&](const auto& kind) { return kind.local == local; };
      if (std::any_of(a_.of_layer.begin(), a_.of_layer.end(), uses))
        fill_packed_tables(local ? a_.local_rotary : a_.rotary, begins_, m_.tables[local].cos.rows_from(0, n_),
                           m_.tables[local].sin.rows_from(0, n_), ctx_);
    }
    return first(m_.y);
  }

  matrix<T> first(matrix<T> m) const { return m.rows_from(0, n_); }
  std::span<float> of_rows(float* p) const { return {p, n_}; }
  static matrix<T> shaped(matrix<T> m, std::size_t rows, std::size_t cols) { return {m.data, rows, cols}; }

  static double counted(const packed_documents& of) {
    return static_cast<double>(std::count_if(of.targets.begin(), of.targets.end(), [](auto t) { return t >= 0; }));
  }
  tigon::casting casting() const { return a_.gemma_norms ? tigon::casting::gemma : tigon::casting::llama; }
  tigon::rms_norm_options norm_options() const {
    return {.eps = a_.norm_eps, .offset = a_.norm_offset, .casting = casting(), .dw = to_.mode};
  }
  tigon::qk_norm_rope_options head_norm_options() const {
    return {.eps = a_.norm_eps, .offset = a_.norm_offset, .casting = casting(), .dw = to_.mode};
  }
  tigon::attention_options attention_options(std::size_t l) const {
    tigon::attention_options opt;
    opt.scale = a_.attention_scale, opt.softcap = a_.attention_softcap;
    if (a_.of_layer[l].window != 0) opt.window_left = a_.of_layer[l].window - 1;
    if (begins_.size() > 2) opt.cumulative_lengths = begins_;
    return opt;
  }
  tigon::moe_router_options router_options() const { return {.normalise = a_.normalised_choices}; }
  tigon::rope_tables<const float> tables_of(std::size_t l) const {
    const auto& t = m_.tables[a_.of_layer[l].local];
    return {t.cos.rows_from(0, n_), t.sin.rows_from(0, n_)};
  }

  static heads heads_of(matrix<T> rows, std::size_t begin, std::size_t count, std::size_t dim) {
    return {rows.data + begin, 1, count, rows.rows, dim, rows.rows * rows.row_stride, dim, rows.row_stride};
  }
  heads q_of(matrix<T> qkv) const { return heads_of(qkv, 0, a_.heads, a_.head_dim); }
  heads k_of(matrix<T> qkv) const { return heads_of(qkv, a_.q_width(), a_.kv_heads, a_.head_dim); }
  heads v_of(matrix<T> qkv) const { return heads_of(qkv, a_.q_width() + a_.kv_width(), a_.kv_heads, a_.head_dim); }
  heads all_heads(matrix<T> rows) const { return heads_of(rows, 0, a_.heads, a_.head_dim); }
  /// q and k as attention reads them.
  matrix<T> turned(matrix<T> qkv) const { return a_.head_norms ? first(m_.turned) : qkv; }

  /// y = x w^T + b, and what the adapters add.
  void linear(const projection& p, const std::vector<lora_adapter>* adapters, matrix<const T> x, matrix<T> y) {
    const bool biased = p.bias != nowhere;
    do_.linear(x, matrix_of(p), biased ? weights_.matrices.subspan(p.bias, p.rows) : std::span<const T>(), y);
    if (adapters == nullptr) return;
    const auto low = first(m_.low);
    for (const lora_adapter& one : *adapters) {
      do_.linear(x, a_of(one), {}, low);
      do_.linear(low, b_of(one), {}, y.cols_from(one.first, one.out), lora_.options.scale(), 1);
    }
  }
  /// The gradients of w, b and adapters, and then dx, which may have x's memory; it may also have none.
  void linear_backward(const projection& p, const std::vector<lora_adapter>* adapters, matrix<const T> x, matrix<T> dy,
                       matrix<T> dx) {
    if (!to_.weights.empty()) {
      const double beta = to_.mode == tigon::gradient::accumulate ? 1 : 0;
      do_.gemm(dy, x, gradient_of(p), {.beta = beta, .a = tigon::transpose::yes});
      if (p.bias != nowhere) do_.column_sums(dy, to_.weights.subspan(p.bias, p.rows), to_.mode);
    }
    if (adapters != nullptr)
      for (std::size_t i = 0; i < adapters->size(); ++i) adapter_backward((*adapters)[i], x, dy, dlow_of(i));
    if (dx.data == nullptr) return;
    do_.gemm(dy, matrix_of(p), dx, {});
    if (adapters != nullptr)
      for (std::size_t i = 0; i < adapters->size(); ++i) do_.gemm(dlow_of(i), a_of((*adapters)[i]), dx, {.beta = 1});
  }
  void adapter_backward(const lora_adapter& one, matrix<const T> x, matrix<T> dy, matrix<T> dlow) {
    const auto low = first(m_.low), of_rows = dy.cols_from(one.first, one.out);
    const double scale = lora_.options.scale(), beta = to_.mode == tigon::gradient::accumulate ? 1 : 0;
    do_.linear(x, a_of(one), {}, low);
    do_.gemm(of_rows, low, adapter_gradient(one.b, one.out, low.cols),
             {.alpha = scale, .beta = beta, .a = tigon::transpose::yes});
    do_.gemm(of_rows, b_of(one), dlow, {.alpha = scale});
    do_.gemm(dlow, x, adapter_gradient(one.a, low.cols, one.in), {.beta = beta, .a = tigon::transpose::yes});
  }
  matrix<T> dlow_of(std::size_t i) const {
    return first(m_.dlow).cols_from(i * lora_.options.rank, lora_.options.rank);
  }

  void forward(std::span<const std::int32_t> ids) {
    const auto y = first(m_.y), update = first(m_.update);
    auto stream = first(m_.saved[0].stream);
    do_.embedding_forward(matrix_at(layout_.embedding, a_.vocab, a_.hidden), ids, a_.embedding_scale, stream);
    do_.rms_norm_forward(stream, norm(layout_.layers[0].attention_norm), y, of_rows(m_.saved[0].rstd1), norm_options());
    for (std::size_t l = 0; l < a_.layers; ++l) {
      attention_part(l);
      mlp_part(l, true);
      const bool ends = l + 1 == a_.layers;
      do_.fused_add_rms_norm_forward(first(m_.saved[l].middle), update,
                                     norm(ends ? layout_.final_norm : layout_.layers[l + 1].attention_norm), y,
                                     first(ends ? m_.last : m_.saved[l + 1].stream),
                                     of_rows(ends ? m_.last_rstd : m_.saved[l + 1].rstd1), norm_options());
    }
  }

  /// From the norm's output in m_.y to the MLP's norm's output there.
  void attention_part(std::size_t l) {
    const layer& at = layout_.layers[l];
    const layer_saved& s = m_.saved[l];
    const auto y = first(m_.y), update = first(m_.update), qkv = first(s.qkv), attention = first(s.attention);
    linear(at.qkv, adapters(l, &lora_layout::layer::qkv), y, qkv);
    turn(l, qkv);
    do_.attention_forward(q_of(turned(qkv)), k_of(turned(qkv)), v_of(qkv), all_heads(attention), {s.lse, n_ * a_.heads},
                          attention_options(l));
    const auto out = a_.post_norms ? first(s.attended) : update;
    linear(at.out, adapters(l, &lora_layout::layer::out), attention, out);
    if (a_.post_norms)
      do_.rms_norm_forward(out, norm(at.attention_post_norm), update, of_rows(s.post_rstd1), norm_options());
    do_.fused_add_rms_norm_forward(first(s.stream), update, norm(at.mlp_norm), y, first(s.middle), of_rows(s.rstd2),
                                   norm_options());
  }
  void turn(std::size_t l, matrix<T> qkv) {
    const layer& at = layout_.layers[l];
    if (!a_.head_norms) return do_.rope_forward(q_of(qkv), k_of(qkv), tables_of(l));
    do_.qk_norm_rope_forward({q_of(qkv), k_of(qkv)}, head_norm(at.q_norm), head_norm(at.k_norm), tables_of(l),
                             {q_of(turned(qkv)), k_of(turned(qkv))}, head_norm_options());
  }

  /// From the norm's output in m_.y to what is added to the stream in m_.update. Backward, which makes a layer's values
  /// again, does not need the latter.
  void mlp_part(std::size_t l, bool whole) {
    const layer& at = layout_.layers[l];
    const layer_saved& s = m_.saved[l];
    const auto y = first(m_.y), update = first(m_.update), out = a_.post_norms ? first(s.mlp_out) : update;
    if (at.router != nowhere) {
      experts(l, y, out, whole);
    } else {
      const auto gate_up = shaped(s.gate_up, n_, 2 * a_.intermediate),
                 product = shaped(m_.product, n_, a_.intermediate);
      linear(at.gate_up, adapters(l, &lora_layout::layer::gate_up), y, gate_up);
      if (!whole && !a_.post_norms) return;
      do_.gate_forward(a_.act, gate_of(gate_up), up_of(gate_up), product);
      linear(at.down, adapters(l, &lora_layout::layer::down), product, out);
    }
    if (a_.post_norms) do_.rms_norm_forward(out, norm(at.mlp_post_norm), update, of_rows(s.post_rstd2), norm_options());
  }
  static matrix<T> gate_of(matrix<T> gate_up) { return gate_up.cols_from(0, gate_up.cols / 2); }
  static matrix<T> up_of(matrix<T> gate_up) { return gate_up.cols_from(gate_up.cols / 2, gate_up.cols / 2); }

  /// Routers' scores are f32, whatever T is.
  void experts(std::size_t l, matrix<T> y, matrix<T> out, bool counts) {
    const layer& at = layout_.layers[l];
    const routing to = m_.saved[l].routes.first(n_);
    do_.gemm(y, matrix_at(at.router, a_.experts, a_.hidden), to.logits, {.b = tigon::transpose::yes});
    do_.moe_router_forward(to.logits, to.chosen, to.weights, router_options());
    if (counts && a_.balance != 0) balance_.add(to.logits, to.chosen);
    tigon::moe_saved<T> saved{choices_of(m_.saved[l])};
    do_.moe_forward(y, to.choices(), experts_of(at), out, saved);
  }
  matrix<T> choices_of(const layer_saved& s) const {
    return shaped(s.gate_up, n_ * a_.top_k, 2 * a_.expert_intermediate);
  }
  tigon::moe_weights<const T> experts_of(const layer& at) const {
    return {matrix_of(at.gate_up), matrix_of(at.down), a_.experts};
  }

  /// `dy` is the gradient of the last norm's output.
  void backward(matrix<T> dy, std::span<const std::int32_t> ids) {
    const auto dstream = first(m_.dstream);
    do_.fused_add_rms_norm_backward(dy, {}, first(m_.last), norm(layout_.final_norm), of_rows(m_.last_rstd), dstream,
                                    dnorm(layout_.final_norm), norm_options());
    for (std::size_t l = a_.layers; l-- > 0;) {
      if (options_.recompute) {
        do_.rms_norm_forward(first(m_.saved[l].stream), norm(layout_.layers[l].attention_norm), first(m_.y),
                             of_rows(m_.saved[l].rstd1), norm_options());
        attention_part(l);
        mlp_part(l, false);
      }
      mlp_backward(l, dstream, dy);
      attention_backward(l, dstream, dy);
    }
    if (to_.weights.empty()) return;
    const auto mode = a_.tied ? tigon::gradient::accumulate : to_.mode;
    do_.embedding_backward(dstream, m_.wide.rows_from(0, std::min(n_, m_.wide.rows)), ids, a_.embedding_scale,
                           gradient_at(layout_.embedding, a_.vocab, a_.hidden),
                           {.padding_index = a_.padding_id, .dweight = mode});
  }

  /// The gradient of what a part wrote before its post norm, from that of the stream.
  matrix<T> through_post_norm(matrix<T> dstream, matrix<T> x, std::size_t weight, float* rstd) {
    if (!a_.post_norms) return dstream;
    const auto d = first(m_.dupdate);
    do_.rms_norm_backward(dstream, x, norm(weight), of_rows(rstd), d, dnorm(weight), norm_options());
    return d;
  }

  void mlp_backward(std::size_t l, matrix<T> dstream, matrix<T> dy) {
    const layer& at = layout_.layers[l];
    const layer_saved& s = m_.saved[l];
    const auto y = first(m_.y), middle = first(s.middle);
    const auto d = through_post_norm(dstream, first(s.mlp_out), at.mlp_post_norm, s.post_rstd2);
    do_.rms_norm_forward(middle, norm(at.mlp_norm), y, of_rows(s.rstd2), norm_options());
    if (at.router != nowhere) {
      experts_backward(l, d, y, dy);
    } else {
      const auto gate_up = shaped(s.gate_up, n_, 2 * a_.intermediate),
                 product = shaped(m_.product, n_, a_.intermediate);
      do_.gate_forward(a_.act, gate_of(gate_up), up_of(gate_up), product);
      linear_backward(at.down, adapters(l, &lora_layout::layer::down), product, d, product);
      do_.gate_backward(a_.act, product, gate_of(gate_up), up_of(gate_up));
      linear_backward(at.gate_up, adapters(l, &lora_layout::layer::gate_up), y, gate_up, dy);
    }
    do_.fused_add_rms_norm_backward(dy, dstream, middle, norm(at.mlp_norm), of_rows(s.rstd2), dstream,
                                    dnorm(at.mlp_norm), norm_options());
  }

  void experts_backward(std::size_t l, matrix<T> d, matrix<T> y, matrix<T> dy) {
    const layer& at = layout_.layers[l];
    const routing to = m_.saved[l].routes.first(n_), dto = m_.droutes.first(n_);
    const tigon::moe_saved<T> saved{choices_of(m_.saved[l]), true};
    do_.moe_backward(d, y, to.choices(), experts_of(at), saved,
                     {dy, gradient_of(at.gate_up), gradient_of(at.down), dto.weights}, to_.mode);
    do_.moe_router_backward(dto.weights, to.logits, to.chosen, dto.logits, router_options());
    if (a_.balance != 0) balance_.add_gradient(balance_factor_, to.logits, dto.logits);
    const double beta = to_.mode == tigon::gradient::accumulate ? 1 : 0;
    if (!to_.weights.empty())
      do_.gemm(dto.logits, y, gradient_at(at.router, a_.experts, a_.hidden),
               {.beta = beta, .a = tigon::transpose::yes});
    do_.gemm(dto.logits, matrix_at(at.router, a_.experts, a_.hidden), dy, {.beta = 1});
  }

  void attention_backward(std::size_t l, matrix<T> dstream, matrix<T> dy) {
    const layer& at = layout_.layers[l];
    const layer_saved& s = m_.saved[l];
    const auto y = first(m_.y), stream = first(s.stream), qkv = first(s.qkv), attention = first(s.attention),
               dattention = first(m_.dattention), dqkv = shaped(m_.product, n_, a_.qkv_width());
    const auto d = through_post_norm(dstream, first(s.attended), at.attention_post_norm, s.post_rstd1);
    linear_backward(at.out, adapters(l, &lora_layout::layer::out), attention, d, dattention);
    if (a_.head_norms) turn(l, qkv);
    do_.attention_backward(all_heads(dattention), q_of(turned(qkv)), k_of(turned(qkv)), v_of(qkv),
                           {all_heads(attention), {s.lse, n_ * a_.heads}}, {q_of(dqkv), k_of(dqkv), v_of(dqkv)},
                           attention_options(l));
    if (a_.head_norms)
      do_.qk_norm_rope_backward({q_of(dqkv), k_of(dqkv)}, {q_of(qkv), k_of(qkv)}, head_norm(at.q_norm),
                                head_norm(at.k_norm), tables_of(l), dhead_norm(at.q_norm), dhead_norm(at.k_norm),
                                head_norm_options());
    else
      do_.rope_backward(q_of(dqkv), k_of(dqkv), tables_of(l));
    do_.rms_norm_forward(stream, norm(at.attention_norm), y, of_rows(s.rstd1), norm_options());
    const bool last = l == 0 && to_.weights.empty();  // nothing that is trained lies before it
    linear_backward(at.qkv, adapters(l, &lora_layout::layer::qkv), y, dqkv, last ? matrix<T>{} : dy);
    if (last) return;
    do_.fused_add_rms_norm_backward(dy, dstream, stream, norm(at.attention_norm), of_rows(s.rstd1), dstream,
                                    dnorm(at.attention_norm), norm_options());
  }

  model_options options_;
  tigon::context& ctx_;
  profile* profile_;
  model_operators<T> do_;
  model_memory<T> m_;
  std::size_t n_ = 0;  ///< tokens of the call
  std::vector<std::int32_t> begins_;
  router_balance balance_{0};
  double balance_factor_ = 0;
};

}  // namespace example
#endif
