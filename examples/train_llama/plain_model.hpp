#ifndef EXAMPLE_TRAIN_LLAMA_PLAIN_MODEL_HPP
#define EXAMPLE_TRAIN_LLAMA_PLAIN_MODEL_HPP

#include <tigon/ops/embedding.hpp>
#include <tigon/rows/row.hpp>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "../../support/memory.hpp"
#include "../../support/products.hpp"
#include "../../support/profile.hpp"
#include "parameters.hpp"
#include "passes.hpp"
#include "plain_experts.hpp"
#include "rotary.hpp"

namespace example {

/// The model as that composition: same mathematics and same parameters as fused_model. A tensor lives as long as a
/// framework's tape would keep it.
template <tigon::element T>
class plain_model {
 public:
  static constexpr const char* name = "plain";

  plain_model(const model_config& config, const parameter_layout& layout, std::size_t seq_len, std::size_t,
              tigon::context& ctx, profile* = nullptr)
      : c_(config),
        layout_(layout),
        seq_len_(seq_len),
        ctx_(ctx),
        each_(ctx),
        do_(pool_, ctx),
        mlp_(do_, ctx),
        experts_(config, do_, mlp_, ctx),
        rotary_(seq_len, config.head_dim(), config.rope_theta),
        mask_(pool_, seq_len, seq_len),
        gradient_(layout.total) {
    for (std::size_t i = 0; i < seq_len; ++i)
      for (std::size_t j = 0; j < seq_len; ++j)
        mask_.view().row(i)[j] = j <= i ? 0.0f : -std::numeric_limits<float>::infinity();
  }

  /// Mean loss of any number of windows.
  double loss(weight_views<T> weights, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets) {
    weights_ = weights;
    const auto log_probs = do_.log_softmax(logits(forward(ids)).view());
    return nll(log_probs, targets);
  }

  /// The same, and the gradient of every parameter.
  double step(weight_views<T> weights, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets) {
    weights_ = weights;
    const auto y = forward(ids);
    const auto log_probs = do_.log_softmax(logits(y).view());
    const double out = nll(log_probs, targets);
    backward(dlogits(log_probs, targets), y, ids);
    return out;
  }

  /// As fused_model's, in memory of its own.
  std::span<float> gradient() { return gradient_; }

  /// As fused_model's.
  double balance_loss() const { return balance_loss_; }

  /// Scores of the token that follows ids[position]; ids is one window.
  void next_logits(weight_views<T> weights, std::span<const std::int32_t> ids, std::size_t position,
                   std::span<float> out) {
    weights_ = weights;
    const auto y = forward(ids);
    const auto row = linear(y.view().rows_from(position, 1), weight(layout_.head));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(row.data()[i]);
  }

  /// Most bytes of activations, temporaries and workspace so far.
  std::size_t peak_bytes() const { return pool_.peak() + ctx_.workspace().high_water() + each_.peak_bytes(); }

 private:
  struct norm_saved {
    tensor<T> x;
    tensor<float> wide, rstd;  // frameworks compute norms in f32; of f32 there is no second copy
    tensor<T> normal;

    matrix<float> x_wide() const {
      if constexpr (std::same_as<T, float>)
        return x.view();
      else
        return wide.view();
    }
  };
  struct layer_saved {
    norm_saved norm1;
    tensor<T> y1, q, k, v, probs, attention;
    norm_saved norm2;
    tensor<T> y2;
    typename plain_mlp<T>::saved mlp;
    typename plain_experts<T>::saved experts;
  };

  std::size_t tokens() const { return windows_ * seq_len_; }

  matrix<const T> weight(std::size_t tensor) const {
    const auto& t = layout_.tensors[tensor];
    return {weights_.matrices.data() + t.offset, t.rows, t.cols};
  }
  vector<const float> norm_weight(std::size_t tensor) const {
    return {weights_.master.data() + layout_.tensors[tensor].offset, layout_.tensors[tensor].cols};
  }
  matrix<float> grad(std::size_t tensor) {
    const auto& t = layout_.tensors[tensor];
    return {gradient_.data() + t.offset, t.rows, t.cols};
  }

  tensor<T> linear(matrix<const T> x, matrix<const T> w) { return do_.linear(x, w); }
  tensor<T> linear_dx(matrix<const T> dy, matrix<const T> w) { return do_.linear_dx(dy, w); }
  tensor<T> sum(matrix<const T> a, matrix<const T> b) { return do_.sum(a, b); }

  // y = w * (x * rsqrt(mean(x^2) + eps)); x stays in `saved` for the sum around it.
  tensor<T> norm(tensor<T> x, std::size_t w, norm_saved& saved) {
    const float eps = c_.norm_eps, cols = static_cast<float>(x.cols());
    saved.x = std::move(x);
    if constexpr (!std::same_as<T, float>)
      saved.wide = do_.template map<float>([](auto v) { return v; }, saved.x.view());
    {
      const auto square = do_.template map<float>([](auto v) { return v * v; }, saved.x_wide());
      saved.rstd =
          do_.sum_rows([](auto v) { return v; }, [=](float s) { return 1 / std::sqrt(s / cols + eps); }, square.view());
    }
    saved.normal = do_.map_rows([](auto v, auto r) { return v * r; }, saved.rstd, saved.x_wide());
    return do_.map([](auto v, auto g) { return v * g; }, saved.normal.view(), norm_weight(w));
  }

  // x + update; afterwards the tape keeps what the norm has widened.
  tensor<T> add_to_stream(norm_saved& saved, const tensor<T>& update) {
    auto out = sum(saved.x.view(), update.view());
    if constexpr (!std::same_as<T, float>) saved.x = {};
    return out;
  }

  tensor<T> norm_backward(matrix<const T> dy, std::size_t w, const norm_saved& saved) {
    {
      const auto dw_rows = do_.template map<float>([](auto d, auto v) { return d * v; }, dy, saved.normal.view());
      do_.sum_columns(dw_rows.view(), {grad(w).data, grad(w).cols});
    }
    const auto dnormal = do_.template map<float>([](auto d, auto g) { return d * g; }, dy, norm_weight(w));
    // Through the scale: rstd' = -rstd^3 / 2, and the mean of squares gives every x its share 2 x / cols.
    tensor<float> share;
    {
      const auto products =
          do_.template map<float>([](auto d, auto v) { return d * v; }, dnormal.view(), saved.x_wide());
      share = do_.sum_rows([](auto v) { return v; }, [](float s) { return s; }, products.view());
    }
    const float cols = static_cast<float>(dy.cols);
    for (std::size_t i = 0; i < dy.rows; ++i) {
      const float r = saved.rstd.data()[i];
      share.data()[i] *= -r * r * r / cols;
    }
    const auto through_scale =
        do_.template map_rows<float>([](auto v, auto s) { return v * s; }, share, saved.x_wide());
    const auto direct = do_.template map_rows<float>([](auto d, auto r) { return d * r; }, saved.rstd, dnormal.view());
    return do_.map([](auto a, auto b) { return a + b; }, direct.view(), through_scale.view());
  }

  // x cos + rotate_half(x) sin on rows of one head; backward turns the other way.
  tensor<T> rotate(const tensor<T>& x, bool backward) {
    const std::size_t dim = c_.head_dim(), half = dim / 2, heads = x.cols() / dim;
    const auto rows = x.view(dim);
    const auto by_position = [&](const std::vector<float>& table, matrix<T> in) {
      auto out = do_.make(in.rows, dim);
      const auto y = out.view();
      const float* factors = table.data();
      const std::size_t seq_len = seq_len_;
      tigon::for_rows<tigon::default_backend>(ctx_, y.rows, dim, [=] TIGON_FN(auto row) {
        const vector<const float> factor{factors + row.i / heads % seq_len * dim, dim};
        row.map(tigon::reads(in, factor), tigon::writes(y), [](auto v, auto f) { return v * f; });
      });
      return out;
    };
    const auto rotate_half = [&](matrix<T> in) {
      auto out = do_.make(in.rows, dim);
      const auto negative = [](auto v) { return -v; };
      const auto positive = [](auto v) { return v; };
      if (backward) {
        do_.map_into(out.view().cols_from(0, half), positive, in.cols_from(half, half));
        do_.map_into(out.view().cols_from(half, half), negative, in.cols_from(0, half));
      } else {
        do_.map_into(out.view().cols_from(0, half), negative, in.cols_from(half, half));
        do_.map_into(out.view().cols_from(half, half), positive, in.cols_from(0, half));
      }
      return out;
    };
    const auto with_cos = by_position(rotary_.cos, rows);
    const auto with_sin = backward ? rotate_half(by_position(rotary_.sin, rows).view())
                                   : by_position(rotary_.sin, rotate_half(rows).view());
    auto out = do_.make(x.rows(), x.cols());
    do_.map_into(
        out.view(dim), [](auto a, auto b) { return a + b; }, with_cos.view(), with_sin.view());
    return out;
  }

  // One head of one window: rows of q, k, v or an output; and its square of scores.
  matrix<T> head_of(matrix<T> x, std::size_t window, std::size_t head) const {
    return x.rows_from(window * seq_len_, seq_len_).cols_from(head * c_.head_dim(), c_.head_dim());
  }
  matrix<T> scores_of(const tensor<T>& scores, std::size_t window, std::size_t head) const {
    return scores.view().rows_from((window * c_.heads + head) * seq_len_, seq_len_);
  }
  std::size_t group() const { return c_.heads / c_.kv_heads; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(c_.head_dim())); }

  // softmax(q k^T / sqrt(head_dim) + mask) v, the scores of all heads in memory.
  tensor<T> attention(layer_saved& saved) {
    auto scores = do_.make(windows_ * c_.heads * seq_len_, seq_len_);
    each_.run(windows_ * c_.heads, [&](std::size_t i, tigon::context& ctx) {
      const std::size_t window = i / c_.heads, head = i % c_.heads;
      product_xwt<T>(head_of(saved.q.view(), window, head), head_of(saved.k.view(), window, head / group()),
                     scores_of(scores, window, head), ctx);
    });
    const float factor = scale();
    scores = do_.map([=](auto v) { return v * factor; }, scores.view());
    {
      auto masked = do_.make(scores.rows(), seq_len_);
      const auto y = masked.view(), x = scores.view();
      const auto mask = mask_.view();
      tigon::for_rows<tigon::default_backend>(ctx_, y.rows, y.cols, [=] TIGON_FN(auto row) {
        row.map(tigon::reads(x, vector<const float>{mask.row(row.i % mask.rows), mask.cols}), tigon::writes(y),
                [](auto v, auto m) { return v + m; });
      });
      scores = std::move(masked);
    }
    saved.probs = do_.softmax(scores.view());
    scores = {};
    auto out = do_.make(tokens(), c_.hidden);
    each_.run(windows_ * c_.heads, [&](std::size_t i, tigon::context& ctx) {
      const std::size_t window = i / c_.heads, head = i % c_.heads;
      product_xw<T>(scores_of(saved.probs, window, head), head_of(saved.v.view(), window, head / group()),
                    head_of(out.view(), window, head), ctx);
    });
    return out;
  }

  void attention_backward(matrix<T> dout, const layer_saved& saved, tensor<T>& dq, tensor<T>& dk, tensor<T>& dv) {
    auto dprobs = do_.make(saved.probs.rows(), seq_len_);
    dv = do_.make(tokens(), c_.kv_hidden());
    each_.run(windows_ * c_.kv_heads, [&](std::size_t i, tigon::context& ctx) {
      const std::size_t window = i / c_.kv_heads, kv_head = i % c_.kv_heads;
      for (std::size_t g = 0; g < group(); ++g) {
        const std::size_t head = kv_head * group() + g;
        product_xwt<T>(head_of(dout, window, head), head_of(saved.v.view(), window, kv_head),
                       scores_of(dprobs, window, head), ctx);
        product_xty<T>(scores_of(saved.probs, window, head), head_of(dout, window, head),
                       head_of(dv.view(), window, kv_head), ctx, accumulate_after(g));
      }
    });
    auto dscores = do_.softmax_backward(saved.probs.view(), dprobs.view());
    dprobs = {};
    const float factor = scale();
    dscores = do_.map([=](auto v) { return v * factor; }, dscores.view());
    dq = do_.make(tokens(), c_.hidden);
    dk = do_.make(tokens(), c_.kv_hidden());
    each_.run(windows_ * c_.kv_heads, [&](std::size_t i, tigon::context& ctx) {
      const std::size_t window = i / c_.kv_heads, kv_head = i % c_.kv_heads;
      for (std::size_t g = 0; g < group(); ++g) {
        const std::size_t head = kv_head * group() + g;
        product_xw<T>(scores_of(dscores, window, head), head_of(saved.k.view(), window, kv_head),
                      head_of(dq.view(), window, head), ctx);
        product_xty<T>(scores_of(dscores, window, head), head_of(saved.q.view(), window, head),
                       head_of(dk.view(), window, kv_head), ctx, accumulate_after(g));
      }
    });
  }

  // Of one MLP or of all experts.
  gated_weights<const T> mlp_weights(std::size_t l) const {
    return {weight(layout_.layers[l].gate_up), weight(layout_.layers[l].down), c_.intermediate};
  }
  gated_weights<float> mlp_grads(std::size_t l) {
    return {grad(layout_.layers[l].gate_up), grad(layout_.layers[l].down), c_.intermediate};
  }
  tensor<T> mlp(std::size_t l, layer_saved& s) {
    if (c_.experts == 0) return mlp_.forward(s.y2.view(), mlp_weights(l), s.mlp);
    auto y = experts_.forward(s.y2.view(), weight(layout_.layers[l].router), mlp_weights(l), s.experts);
    balance_loss_ += static_cast<double>(c_.balance) * s.experts.balance;
    return y;
  }
  tensor<T> mlp_backward(std::size_t l, matrix<T> dupdate, layer_saved& s) {
    if (c_.experts == 0) return mlp_.backward(dupdate, s.y2.view(), mlp_weights(l), s.mlp, mlp_grads(l));
    const std::size_t router = layout_.layers[l].router;
    return experts_.backward(dupdate, s.y2.view(), {weight(router), mlp_weights(l)}, s.experts,
                             {grad(router), mlp_grads(l)});
  }

  // Returns the last norm's output; the head follows.
  tensor<T> forward(std::span<const std::int32_t> ids) {
    windows_ = ids.size() / seq_len_;
    auto x = do_.make(tokens(), c_.hidden);
    tigon::embedding_forward(weight(layout_.embedding), ids, x.view(), {}, ctx_);
    layers_.clear();
    balance_loss_ = 0;
    layers_.resize(c_.layers);
    const std::size_t kv = c_.kv_hidden();
    for (std::size_t l = 0; l < c_.layers; ++l) {
      const auto& at = layout_.layers[l];
      layer_saved& s = layers_[l];
      s.y1 = norm(std::move(x), at.attention_norm, s.norm1);
      s.q = rotate(linear(s.y1.view(), weight(at.qkv).rows_from(0, c_.hidden)), false);
      s.k = rotate(linear(s.y1.view(), weight(at.qkv).rows_from(c_.hidden, kv)), false);
      s.v = linear(s.y1.view(), weight(at.qkv).rows_from(c_.hidden + kv, kv));
      s.attention = attention(s);
      x = add_to_stream(s.norm1, linear(s.attention.view(), weight(at.attention_out)));

      s.y2 = norm(std::move(x), at.mlp_norm, s.norm2);
      x = add_to_stream(s.norm2, mlp(l, s));
    }
    return norm(std::move(x), layout_.final_norm, final_);
  }

  tensor<T> logits(const tensor<T>& y) { return linear(y.view(), weight(layout_.head)); }

  double nll(const tensor<float>& log_probs, std::span<const std::int32_t> targets) const {
    double sum = 0;
    for (std::size_t i = 0; i < targets.size(); ++i) sum -= static_cast<double>(log_probs.view().row(i)[targets[i]]);
    return sum / static_cast<double>(targets.size());
  }

  // The gradient of the mean of -log_probs[target], then through log_softmax.
  tensor<T> dlogits(const tensor<float>& log_probs, std::span<const std::int32_t> targets) {
    auto dlog_probs = do_.template make<float>(log_probs.rows(), log_probs.cols());
    const auto d = dlog_probs.view(), lp = log_probs.view();
    do_.map_into(
        d, [](auto v) { return decltype(v)(0.0f); }, tigon::columns);
    for (std::size_t i = 0; i < targets.size(); ++i) d.row(i)[targets[i]] = -1.0f / static_cast<float>(targets.size());
    auto out = do_.make(d.rows, d.cols);
    const auto y = out.view();
    tigon::for_rows<tigon::default_backend>(ctx_, y.rows, y.cols, [=] TIGON_FN(auto row) {
      const float sum = row.sum(tigon::reads(d), [](auto v) { return v; });
      row.map(tigon::reads(d, lp), tigon::writes(y), [=](auto g, auto v) { return g - exp(v) * sum; });
    });
    return out;
  }

  void backward(tensor<T> dlogits, const tensor<T>& y, std::span<const std::int32_t> ids) {
    product_xty<T>(dlogits.view(), y.view(), grad(layout_.head), ctx_);
    auto dy = linear_dx(dlogits.view(), weight(layout_.head));
    dlogits = {};
    auto dx = norm_backward(dy.view(), layout_.final_norm, final_);
    final_ = {};
    const std::size_t kv = c_.kv_hidden();
    for (std::size_t l = c_.layers; l-- > 0;) {
      const auto& at = layout_.layers[l];
      layer_saved& s = layers_[l];
      dy = mlp_backward(l, dx.view(), s);
      dx = sum(dx.view(), norm_backward(dy.view(), at.mlp_norm, s.norm2).view());
      {
        product_xty<T>(dx.view(), s.attention.view(), grad(at.attention_out), ctx_);
        const auto dattention = linear_dx(dx.view(), weight(at.attention_out));
        tensor<T> dq, dk, dv;
        attention_backward(dattention.view(), s, dq, dk, dv);
        dq = rotate(dq, true);
        dk = rotate(dk, true);
        const auto w = weight(at.qkv);
        const auto dw = grad(at.qkv);
        product_xty<T>(dq.view(), s.y1.view(), dw.rows_from(0, c_.hidden), ctx_);
        product_xty<T>(dk.view(), s.y1.view(), dw.rows_from(c_.hidden, kv), ctx_);
        product_xty<T>(dv.view(), s.y1.view(), dw.rows_from(c_.hidden + kv, kv), ctx_);
        dy = sum(linear_dx(dq.view(), w.rows_from(0, c_.hidden)).view(),
                 linear_dx(dk.view(), w.rows_from(c_.hidden, kv)).view());
        dy = sum(dy.view(), linear_dx(dv.view(), w.rows_from(c_.hidden + kv, kv)).view());
      }
      dx = sum(dx.view(), norm_backward(dy.view(), at.attention_norm, s.norm1).view());
      s = {};
    }
    if constexpr (std::same_as<T, float>) {
      tigon::embedding_backward(dx.view(), ids, grad(layout_.embedding), {}, ctx_);
    } else {
      const auto wide = do_.template map<float>([](auto v) { return v; }, dx.view());
      tigon::embedding_backward(wide.view(), ids, grad(layout_.embedding), {}, ctx_);
    }
  }

  model_config c_;
  const parameter_layout& layout_;
  std::size_t seq_len_, windows_ = 0;
  tigon::context& ctx_;
  each_alone each_;
  memory_pool pool_;
  passes<T> do_;
  plain_mlp<T> mlp_;
  plain_experts<T> experts_;
  rotary_tables rotary_;
  tensor<float> mask_;
  weight_views<T> weights_;
  std::vector<float> gradient_;
  std::vector<layer_saved> layers_;
  norm_saved final_;
  double balance_loss_ = 0;
};

}  // namespace example
#endif
