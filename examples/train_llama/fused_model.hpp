#ifndef EXAMPLE_TRAIN_LLAMA_FUSED_MODEL_HPP
#define EXAMPLE_TRAIN_LLAMA_FUSED_MODEL_HPP

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../../support/memory.hpp"
#include "../../support/router_balance.hpp"
#include "operators.hpp"
#include "parameters.hpp"
#include "rotary.hpp"

namespace example {

/// A Llama by tigon's fused operators, forward and backward by hand. All activations lie in one arena, and so do the
/// gradients: those of a layer where activations of later layers were, which backward has done with. A layer keeps
/// what it read, what attention read and wrote, and gate and up; the residual stream between attention and MLP, the
/// norms' outputs and the gated product are made again in backward: the first takes a product of hidden x hidden
/// weights, the others a pass. With experts, a layer keeps gate and up of every choice, and the choices. T is the type
/// of weights and activations; S that of gradients, of the norms' weights, and of the state of the optimizer.
template <tigon::element T, tigon::element S>
class llama_model {
 public:
  llama_model(const model_config& config, const parameter_layout& layout, std::size_t seq_len, std::size_t batch,
              tigon::context& ctx, profile* timed = nullptr)
      : c_(config),
        layout_(layout),
        seq_len_(seq_len),
        ctx_(ctx),
        profile_(timed),
        do_(ctx, timed),
        rotary_(seq_len, config.head_dim(), config.rope_theta) {
    lay_out(seq_len * batch);
    arena_.allocate();
    lay_out(seq_len * batch);
  }

  /// Mean loss of at most `batch` windows.
  double loss(weight_views<T, S> weights, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets) {
    weights_ = weights;
    uncache();
    const auto y = forward(ids);
    head_loss(y, targets);
    return last_loss();
  }

  /// The same, and the gradient of every parameter.
  double step(weight_views<T, S> weights, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets) {
    weights_ = weights;
    uncache();
    const auto dy = first(dy_, ids.size());
    {
      const auto timed = profile::part(profile_, "forward");
      head_loss(forward(ids), targets, dy);
    }
    const auto timed = profile::part(profile_, "backward");
    backward(dy, ids);
    return last_loss();
  }

  /// What step() made, as the layout has it. Activations share its memory: the next call of the model writes over it.
  std::span<S> gradient() const { return gradient_; }

  /// What the last loss() or step() left out of its result though step() differentiates it: the routers' balance losses
  /// with their weight; 0 without experts.
  double balance_loss() const { return balance_loss_; }

  /// Scores of the token that follows ids[position]; ids is one window. The layers' keys and values of the call before
  /// are a cache: only tokens from the first on that is another are computed. step() and loss() empty it; so does
  /// uncache(), which is needed after weights have changed otherwise.
  void next_logits(weight_views<T, S> weights, std::span<const std::int32_t> ids, std::size_t position,
                   std::span<float> out) {
    weights_ = weights;
    std::size_t known = 0;
    while (known < position && known < cached_.size() && cached_[known] == ids[known]) ++known;
    const auto y = forward(ids.subspan(known, position + 1 - known), known);
    cached_.assign(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(position + 1));
    const auto product = [&](float* to) {
      do_.gemm(y.rows_from(position - known, 1), weight(layout_.head), matrix<float>(to, 1, out.size()),
               {.b = tigon::transpose::yes});
    };
    if constexpr (on_host) {
      product(out.data());
    } else {
      kernel_vector<float> logits(out.size());
      product(logits.data());
      std::ranges::copy(copy_of(std::span<const float>(logits)), out.begin());
    }
  }
  void uncache() { cached_.clear(); }

  /// Most bytes of activations, temporaries and workspace so far, beyond those of a gradient.
  std::size_t peak_bytes() const { return arena_.bytes() - gradient_.size_bytes() + ctx_.workspace().high_water(); }

 protected:
  /// Which experts a token chose, and with which weights.
  struct routing {
    matrix<float> logits;         ///< [tokens, experts]
    matrix<std::int32_t> chosen;  ///< [tokens, top_k]
    matrix<float> weights;        ///< [tokens, top_k]

    routing first(std::size_t rows) const {
      return {logits.rows_from(0, rows), chosen.rows_from(0, rows), weights.rows_from(0, rows)};
    }
  };
  struct layer_saved {
    matrix<T> stream;  ///< [tokens, hidden], what the attention's norm reads
    float* rstd1;
    matrix<T> qkv;  ///< q and k after the rotation
    matrix<T> attention;
    float* lse;         ///< [tokens * heads]
    matrix<T> gate_up;  ///< [tokens, 2 * intermediate], of every choice with experts
    routing routes;     ///< empty without experts
  };

  void lay_out(std::size_t tokens) {
    layers_.resize(c_.layers);
    // Where the gradient begins, so that no layer's part touches what that layer or an earlier one keeps.
    std::size_t gradient = 0;
    for (std::size_t l = 0; l < c_.layers; ++l) {
      layer_saved& s = layers_[l];
      s.stream = arena_.matrix<T>(tokens, c_.hidden);
      s.rstd1 = arena_.take<float>(tokens);
      s.qkv = arena_.matrix<T>(tokens, c_.qkv());
      s.attention = arena_.matrix<T>(tokens, c_.hidden);
      s.lse = arena_.take<float>(tokens * c_.heads);
      s.gate_up = arena_.matrix<T>(tokens * c_.mlps_of_token(), 2 * c_.intermediate);
      if (c_.experts != 0) s.routes = make_routes(tokens);
      const std::size_t before = layout_.tensors[layout_.layers[l].attention_norm].offset * sizeof(S);
      gradient = std::max(gradient, arena_.bytes() - std::min(arena_.bytes(), before));
    }
    gradient_ = {arena_.take_at<S>(gradient, layout_.total), layout_.total};
    if (c_.experts != 0) droutes_ = make_routes(tokens);
    middle_ = arena_.matrix<T>(tokens, c_.hidden);
    middle_rstd_ = arena_.take<float>(tokens);
    last_rstd_ = arena_.take<float>(tokens);
    y_ = arena_.matrix<T>(tokens, c_.hidden);
    update_ = arena_.matrix<T>(tokens, c_.hidden);
    dy_ = arena_.matrix<T>(tokens, c_.hidden);
    product_ = arena_.matrix<T>(tokens, std::max(c_.intermediate, c_.qkv()));
    last_ = shaped(product_, tokens, c_.hidden);  // from the end of the last layer to the beginning of its backward
    if constexpr (!std::same_as<T, S>) wide_ = arena_.matrix<S>(tokens, c_.hidden);
    loss_ = arena_.take<float>(1);
  }

  routing make_routes(std::size_t tokens) {
    return {arena_.matrix<float>(tokens, c_.experts), arena_.matrix<std::int32_t>(tokens, c_.top_k),
            arena_.matrix<float>(tokens, c_.top_k)};
  }

  static matrix<T> first(matrix<T> m, std::size_t rows) { return m.rows_from(0, rows); }
  /// The front of a buffer as a narrower matrix.
  static matrix<T> shaped(matrix<T> m, std::size_t rows, std::size_t cols) { return {m.data, rows, cols}; }

  matrix<const T> weight(std::size_t tensor) const {
    const auto& t = layout_.tensors[tensor];
    return {weights_.matrices.data() + t.offset, t.rows, t.cols};
  }
  std::span<const S> norm_weight(std::size_t tensor) const { return layout_.of(weights_.master, tensor); }
  std::span<S> norm_grad(std::size_t tensor) const { return layout_.of(gradient_, tensor); }
  matrix<S> grad(std::size_t tensor) const {
    const auto& t = layout_.tensors[tensor];
    return {gradient_.data() + t.offset, t.rows, t.cols};
  }
  tigon::rms_norm_options norm_options() const { return {.eps = c_.norm_eps}; }
  matrix<const float> table(const kernel_vector<float>& values) const {
    return {values.data(), seq_len_, c_.head_dim()};
  }

  /// `count` heads that begin at column `begin` of rows of q, k and v together: of windows, or of a part of one.
  template <class U>
  tigon::heads_view<U> heads(matrix<U> rows, std::size_t begin, std::size_t count) const {
    const std::size_t dim = c_.head_dim(), length = std::min(rows.rows, seq_len_);
    return {rows.data + begin, rows.rows / length, count, length, dim, length * rows.row_stride, dim, rows.row_stride};
  }
  tigon::heads_view<T> q_of(matrix<T> qkv) const { return heads(qkv, 0, c_.heads); }
  tigon::heads_view<T> k_of(matrix<T> qkv) const { return heads(qkv, c_.hidden, c_.kv_heads); }
  tigon::heads_view<T> v_of(matrix<T> qkv) const { return heads(qkv, c_.hidden + c_.kv_hidden(), c_.kv_heads); }

  /// Returns the last norm's output; the head follows. `cached` tokens of one window, whose keys and values the layers
  /// have, come before ids.
  matrix<T> forward(std::span<const std::int32_t> ids, std::size_t cached = 0) {
    const std::size_t n = ids.size(), length = std::min(n, seq_len_);
    balance_loss_ = 0;
    const auto y = first(y_, n), update = first(update_, n);
    const auto cos = table(rotary_.cos).rows_from(cached, length), sin = table(rotary_.sin).rows_from(cached, length);
    auto stream = first(layers_[0].stream, n);
    do_.embedding_forward(weight(layout_.embedding), ids_.of(ids), stream);
    do_.rms_norm_forward(stream, norm_weight(layout_.layers[0].attention_norm), y, std::span(layers_[0].rstd1, n),
                         norm_options());
    for (std::size_t l = 0; l < c_.layers; ++l) {
      const auto& at = layout_.layers[l];
      const layer_saved& s = layers_[l];
      const auto qkv = s.qkv.rows_from(cached, n), all = first(s.qkv, cached + n), attention = first(s.attention, n);
      do_.product_xwt(y, weight(at.qkv), qkv);
      do_.rope_forward(q_of(qkv), k_of(qkv), {cos, sin});
      do_.attention_forward(q_of(qkv), k_of(all), v_of(all), heads(attention, 0, c_.heads),
                            std::span(s.lse, n * c_.heads), {.offset = cached});
      after_attention(l, stream, update, y);
      mlp(l, y, update);
      const bool ends = l + 1 == c_.layers;
      stream = first(ends ? last_ : layers_[l + 1].stream, n);
      do_.fused_add_rms_norm_forward(first(middle_, n), update,
                                     norm_weight(ends ? layout_.final_norm : layout_.layers[l + 1].attention_norm), y,
                                     stream, std::span(ends ? last_rstd_ : layers_[l + 1].rstd1, n), norm_options());
    }
    return y;
  }

  /// update = the projection of what attention wrote, middle_ = stream + update, y = its norm.
  void after_attention(std::size_t l, matrix<T> stream, matrix<T> update, matrix<T> y) {
    const auto& at = layout_.layers[l];
    do_.product_xwt(first(layers_[l].attention, y.rows), weight(at.attention_out), update);
    do_.fused_add_rms_norm_forward(stream, update, norm_weight(at.mlp_norm), y, first(middle_, y.rows),
                                   std::span(middle_rstd_, y.rows), norm_options());
  }

  /// update = the layer's MLP of y.
  void mlp(std::size_t l, matrix<T> y, matrix<T> update) {
    if constexpr (on_host)
      if (c_.experts != 0) return experts(l, y, update);
    const auto& at = layout_.layers[l];
    const auto gate_up = first(layers_[l].gate_up, y.rows), product = shaped(product_, y.rows, c_.intermediate);
    do_.product_xwt(y, weight(at.gate_up), gate_up);
    do_.swiglu_forward(gate_of(gate_up), up_of(gate_up), product);
    do_.product_xwt(product, weight(at.down), update);
  }
  /// dy, and the gradients of the weights, from the gradient of what mlp() wrote.
  void mlp_backward(std::size_t l, matrix<T> dupdate, matrix<T> y, matrix<T> dy) {
    if constexpr (on_host)
      if (c_.experts != 0) return experts_backward(l, dupdate, y, dy);
    const auto& at = layout_.layers[l];
    const auto gate_up = first(layers_[l].gate_up, y.rows), product = shaped(product_, y.rows, c_.intermediate);
    const auto gate = gate_of(gate_up), up = up_of(gate_up);
    do_.swiglu_forward(gate, up, product);
    do_.product_xty(dupdate, product, grad(at.down));
    do_.product_xw(dupdate, weight(at.down), product);
    do_.swiglu_backward(product, gate, up, gate, up);
    do_.product_xty(gate_up, y, grad(at.gate_up));
    do_.product_xw(gate_up, weight(at.gate_up), dy);
  }
  matrix<T> gate_of(matrix<T> gate_up) const { return gate_up.cols_from(0, c_.intermediate); }
  matrix<T> up_of(matrix<T> gate_up) const { return gate_up.cols_from(c_.intermediate, c_.intermediate); }

  /// The same with a mixture of experts. Routers are f32, whatever T is.
  void experts(std::size_t l, matrix<T> y, matrix<T> update) {
    const auto& at = layout_.layers[l];
    const routing to = layers_[l].routes.first(y.rows);
    do_.gemm(y, weight(at.router), to.logits, {.b = tigon::transpose::yes});
    do_.moe_router_forward(to.logits, to.chosen, to.weights, {});
    if (c_.balance != 0) balance_loss_ += balance_of_layer() * balance_of(to).loss();
    tigon::moe_saved<T> saved{first(layers_[l].gate_up, y.rows * c_.top_k)};
    do_.moe_forward(y, {to.chosen, to.weights}, experts_of(at), update, saved);
  }
  void experts_backward(std::size_t l, matrix<T> dupdate, matrix<T> y, matrix<T> dy) {
    const auto& at = layout_.layers[l];
    const routing to = layers_[l].routes.first(y.rows), d = droutes_.first(y.rows);
    const tigon::moe_saved<T> saved{first(layers_[l].gate_up, y.rows * c_.top_k), true};
    do_.moe_backward(dupdate, y, {to.chosen, to.weights}, experts_of(at), saved,
                     {dy, grad(at.gate_up), grad(at.down), d.weights}, tigon::gradient::overwrite);
    do_.moe_router_backward(d.weights, to.logits, to.chosen, d.logits, {});
    if (c_.balance != 0) balance_of(to).add_gradient(balance_of_layer(), to.logits, d.logits);
    do_.gemm(d.logits, y, grad(at.router), {.a = tigon::transpose::yes});
    do_.gemm(d.logits, weight(at.router), dy, {.beta = 1});
  }
  router_balance balance_of(const routing& to) const {
    router_balance out(c_.experts);
    out.add(to.logits, to.chosen);
    return out;
  }
  /// 1 is the balance loss of a layer whose experts are chosen alike.
  double balance_of_layer() const { return static_cast<double>(c_.balance) / static_cast<double>(c_.top_k); }
  tigon::moe_weights<const T> experts_of(const parameter_layout::layer& at) const {
    return {weight(at.gate_up), weight(at.down), c_.experts};
  }

  /// The head and the loss; with `dy` that has memory also their gradients.
  void head_loss(matrix<T> y, std::span<const std::int32_t> targets, matrix<T> dy = {}) {
    const matrix<S> dw = dy.data == nullptr ? matrix<S>{} : grad(layout_.head);
    do_.head_loss({y, weight(layout_.head)}, targets_.of(targets), loss_, dy, dw);
  }
  /// What the last head_loss() made.
  double last_loss() const { return static_cast<double>(copy_of(std::span<const float>(loss_, 1))[0]); }

  /// `dy` is the gradient of the last norm's output; it becomes that of the residual stream.
  void backward(matrix<T> dy, std::span<const std::int32_t> ids) {
    const std::size_t n = ids.size();
    // The gradient of the residual stream, and of what a norm wrote.
    auto dstream = first(update_, n);
    const auto y = first(y_, n);
    const auto cos = table(rotary_.cos), sin = table(rotary_.sin);
    do_.fused_add_rms_norm_backward(dy, {}, first(last_, n), norm_weight(layout_.final_norm), std::span(last_rstd_, n),
                                    dstream, norm_grad(layout_.final_norm), norm_options());
    for (std::size_t l = c_.layers; l-- > 0;) {
      const auto& at = layout_.layers[l];
      const layer_saved& s = layers_[l];
      const auto stream = first(s.stream, n), attention = first(s.attention, n);
      const std::span rstd1(s.rstd1, n), rstd2(middle_rstd_, n);

      after_attention(l, stream, dy, y);
      mlp_backward(l, dstream, y, dy);
      do_.fused_add_rms_norm_backward(dy, dstream, first(middle_, n), norm_weight(at.mlp_norm), rstd2, dstream,
                                      norm_grad(at.mlp_norm), norm_options());

      const auto qkv = first(s.qkv, n), dqkv = shaped(product_, n, c_.qkv());
      do_.product_xty(dstream, attention, grad(at.attention_out));
      do_.product_xw(dstream, weight(at.attention_out), dy);
      do_.attention_backward(heads(dy, 0, c_.heads), q_of(qkv), k_of(qkv), v_of(qkv),
                             {heads(attention, 0, c_.heads), std::span(s.lse, n * c_.heads)},
                             {q_of(dqkv), k_of(dqkv), v_of(dqkv)}, {});
      do_.rope_backward(q_of(dqkv), k_of(dqkv), {cos, sin});
      do_.rms_norm_forward(stream, norm_weight(at.attention_norm), y, rstd1, norm_options());
      do_.product_xty(dqkv, y, grad(at.qkv));
      do_.product_xw(dqkv, weight(at.qkv), dy);
      do_.fused_add_rms_norm_backward(dy, dstream, stream, norm_weight(at.attention_norm), rstd1, dstream,
                                      norm_grad(at.attention_norm), norm_options());
    }
    embedding_backward(dstream, ids);
  }

  void embedding_backward(matrix<T> dstream, std::span<const std::int32_t> ids) {
    // The head's gradient is there already.
    const auto mode = layout_.tied() ? tigon::gradient::accumulate : tigon::gradient::overwrite;
    if constexpr (std::same_as<T, S>) {
      do_.embedding_backward(dstream, ids_.of(ids), grad(layout_.embedding), mode);
    } else {
      const auto wide = wide_.rows_from(0, dstream.rows);
      do_.convert(dstream, wide);
      do_.embedding_backward(wide, ids_.of(ids), grad(layout_.embedding), mode);
    }
  }

  model_config c_;
  const parameter_layout& layout_;
  std::size_t seq_len_;
  tigon::context& ctx_;
  profile* profile_;
  operators<T, S> do_;
  rotary_tables rotary_;
  arena arena_;
  std::vector<layer_saved> layers_;
  routing droutes_;
  double balance_loss_ = 0;
  std::vector<std::int32_t> cached_;  ///< tokens whose keys and values the layers hold
  matrix<T> middle_, last_, y_, update_, dy_, product_;
  matrix<S> wide_;
  float *middle_rstd_ = nullptr, *last_rstd_ = nullptr, *loss_ = nullptr;
  list_for_kernels<std::int32_t> ids_, targets_;
  weight_views<T, S> weights_;
  std::span<S> gradient_;
};

/// With a state in f32, whatever T is.
template <tigon::element T>
using fused_model = llama_model<T, float>;

}  // namespace example
#endif
