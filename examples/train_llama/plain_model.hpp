#ifndef EXAMPLE_TRAIN_LLAMA_PLAIN_MODEL_HPP
#define EXAMPLE_TRAIN_LLAMA_PLAIN_MODEL_HPP

#include <tigon/ops/embedding.hpp>
#include <tigon/rows/reduce_map.hpp>
#include <tigon/simd/math.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "memory.hpp"
#include "parameters.hpp"
#include "products.hpp"
#include "rotary.hpp"

namespace example {

/// sum of a column += x
struct column_sum {
  template <class V>
  TIGON_INLINE V map(V x, V sum) const {
    return sum + x;
  }
};

/// The elementary steps of a framework without fusion: each is a pass over whole tensors that reads its operands
/// from memory and writes its result there. They use the same vectors, threads and products as the fused operators,
/// so that what a comparison shows is fusion alone.
template <tigon::element T>
class passes {
 public:
  using kernels = tigon::default_backend;

  passes(memory_pool& pool, tigon::context& ctx) : pool_(pool), ctx_(ctx) {}

  template <class Out = T>
  tensor<Out> make(std::size_t rows, std::size_t cols) {
    return tensor<Out>(pool_, rows, cols);
  }

  /// y = f(x...), element by element; a vector operand is the same for every row.
  template <class Out = T, class F, class U, class... X>
  tensor<Out> map(F f, matrix<U> x, X... more) {
    auto y = make<Out>(x.rows, x.cols);
    map_into(y.view(), f, x, more...);
    return y;
  }
  template <class Out, class F, class... X>
  void map_into(matrix<Out> y, F f, X... x) {
    tigon::for_rows<kernels>(ctx_, y.rows, y.cols,
                             [=] TIGON_FN(auto row) { row.map(tigon::reads(x...), tigon::writes(y), f); });
  }

  /// y = f(x..., s[i]) with one number for each row.
  template <class Out = T, class F, class U, class... X>
  tensor<Out> map_rows(F f, const tensor<float>& scale, matrix<U> x, X... more) {
    auto out = make<Out>(x.rows, x.cols);
    const auto y = out.view();
    const float* s = scale.data();
    tigon::for_rows<kernels>(ctx_, y.rows, y.cols, [=] TIGON_FN(auto row) {
      const float si = s[row.i];
      row.map(tigon::reads(x, more...), tigon::writes(y), [=](auto... v) { return f(v..., si); });
    });
    return out;
  }

  /// One number for each row: finish(sum over the row of f(x...)).
  template <class F, class Finish, class U, class... X>
  tensor<float> sum_rows(F f, Finish finish, matrix<U> x, X... more) {
    auto out = make<float>(x.rows, 1);
    float* s = out.data();
    tigon::for_rows<kernels>(ctx_, x.rows, x.cols, [=] TIGON_FN(auto row) {
      const float sum = row.sum(tigon::reads(x, more...), f);
      if (row.first()) s[row.i] = finish(sum);
    });
    return out;
  }

  /// out[j] = sum over the rows of x.
  template <class U>
  void sum_columns(matrix<U> x, vector<float> out) {
    ctx_.workspace().expect("sum_columns", tigon::simd::partials_workspace<kernels, float>(x.rows, x.cols, 1));
    tigon::map_rows<kernels>(ctx_, column_sum(), tigon::reads(x), tigon::writes(),
                             tigon::adds_to(tigon::parameter_gradient<float>{out, tigon::gradient::overwrite}));
  }

  /// Softmax of each row, or its logarithm: one operator in every framework.
  template <class U>
  tensor<T> softmax(matrix<U> x) {
    auto out = make(x.rows, x.cols);
    const auto y = out.view();
    tigon::for_rows<kernels>(ctx_, x.rows, x.cols, [=] TIGON_FN(auto row) {
      const float top = row.max(tigon::reads(x), [](auto v) { return v; });
      const float sum = row.sum(tigon::reads(x), [=](auto v) { return exp(v - top); });
      const float part = 1.0f / sum;
      row.map(tigon::reads(x), tigon::writes(y), [=](auto v) { return exp(v - top) * part; });
    });
    return out;
  }
  template <class U>
  tensor<float> log_softmax(matrix<U> x) {
    auto out = make<float>(x.rows, x.cols);
    const auto y = out.view();
    tigon::for_rows<kernels>(ctx_, x.rows, x.cols, [=] TIGON_FN(auto row) {
      const float top = row.max(tigon::reads(x), [](auto v) { return v; });
      const float sum = row.sum(tigon::reads(x), [=](auto v) { return exp(v - top); });
      const float lse = top + tigon::math::log(sum);
      row.map(tigon::reads(x), tigon::writes(y), [=](auto v) { return v - lse; });
    });
    return out;
  }

 private:
  memory_pool& pool_;
  tigon::context& ctx_;
};

/// The model as that composition: same mathematics and same parameters as fused_model. A tensor lives as long as a
/// framework's tape would keep it.
template <tigon::element T>
class plain_model {
 public:
  static constexpr const char* name = "plain";

  plain_model(const model_config& config, const parameter_layout& layout, std::size_t seq_len, std::size_t,
              tigon::context& ctx)
      : c_(config),
        layout_(layout),
        seq_len_(seq_len),
        ctx_(ctx),
        each_(ctx),
        do_(pool_, ctx),
        rotary_(seq_len, config.head_dim(), config.rope_theta),
        mask_(pool_, seq_len, seq_len) {
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
  double step(weight_views<T> weights, std::span<float> gradient, std::span<const std::int32_t> ids,
              std::span<const std::int32_t> targets) {
    weights_ = weights;
    gradient_ = gradient;
    const auto y = forward(ids);
    const auto log_probs = do_.log_softmax(logits(y).view());
    const double out = nll(log_probs, targets);
    backward(dlogits(log_probs, targets), y, ids);
    return out;
  }

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
    tensor<T> y2, gate, up, activated, product;
  };

  std::size_t tokens() const { return windows_ * seq_len_; }

  matrix<const T> weight(std::size_t tensor) const {
    const auto& t = layout_.tensors[tensor];
    return {weights_.matrices.data() + t.offset, t.rows, t.cols};
  }
  vector<const float> norm_weight(std::size_t tensor) const {
    return {weights_.master.data() + layout_.tensors[tensor].offset, layout_.tensors[tensor].cols};
  }
  matrix<float> grad(std::size_t tensor) const {
    const auto& t = layout_.tensors[tensor];
    return {gradient_.data() + t.offset, t.rows, t.cols};
  }

  tensor<T> linear(matrix<const T> x, matrix<const T> w) {
    auto y = do_.make(x.rows, w.rows);
    product_xwt(x, w, y.view(), ctx_);
    return y;
  }
  tensor<T> linear_dx(matrix<const T> dy, matrix<const T> w) {
    auto dx = do_.make(dy.rows, w.cols);
    product_xw(dy, w, dx.view(), ctx_);
    return dx;
  }
  tensor<T> sum(matrix<const T> a, matrix<const T> b) {
    return do_.map([](auto u, auto v) { return u + v; }, a, b);
  }

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
    auto dscores = do_.make(dprobs.rows(), seq_len_);
    {
      const auto y = dscores.view(), p = saved.probs.view(), d = dprobs.view();
      tigon::for_rows<tigon::default_backend>(ctx_, y.rows, y.cols, [=] TIGON_FN(auto row) {
        const float dot = row.sum(tigon::reads(p, d), [](auto a, auto b) { return a * b; });
        row.map(tigon::reads(p, d), tigon::writes(y), [=](auto a, auto b) { return a * (b - dot); });
      });
      dprobs = {};
    }
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

  // Returns the last norm's output; the head follows.
  tensor<T> forward(std::span<const std::int32_t> ids) {
    windows_ = ids.size() / seq_len_;
    auto x = do_.make(tokens(), c_.hidden);
    tigon::embedding_forward(weight(layout_.embedding), ids, x.view(), {}, ctx_);
    layers_.clear();
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
      s.gate = linear(s.y2.view(), weight(at.gate_up).rows_from(0, c_.intermediate));
      s.up = linear(s.y2.view(), weight(at.gate_up).rows_from(c_.intermediate, c_.intermediate));
      s.activated = do_.map([](auto g) { return g * sigmoid(g); }, s.gate.view());
      s.product = do_.map([](auto a, auto u) { return a * u; }, s.activated.view(), s.up.view());
      x = add_to_stream(s.norm2, linear(s.product.view(), weight(at.down)));
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
      {
        const auto w_gate = weight(at.gate_up).rows_from(0, c_.intermediate);
        const auto w_up = weight(at.gate_up).rows_from(c_.intermediate, c_.intermediate);
        product_xty<T>(dx.view(), s.product.view(), grad(at.down), ctx_);
        auto dproduct = linear_dx(dx.view(), weight(at.down));
        auto dactivated = do_.map([](auto d, auto u) { return d * u; }, dproduct.view(), s.up.view());
        const auto dup = do_.map([](auto d, auto a) { return d * a; }, dproduct.view(), s.activated.view());
        dproduct = {};
        const auto dgate = do_.map(
            [](auto d, auto g) {
              const auto sigma = sigmoid(g);
              return d * sigma * (g * (1.0f - sigma) + 1.0f);
            },
            dactivated.view(), s.gate.view());
        dactivated = {};
        product_xty<T>(dgate.view(), s.y2.view(), grad(at.gate_up).rows_from(0, c_.intermediate), ctx_);
        product_xty<T>(dup.view(), s.y2.view(), grad(at.gate_up).rows_from(c_.intermediate, c_.intermediate), ctx_);
        dy = sum(linear_dx(dgate.view(), w_gate).view(), linear_dx(dup.view(), w_up).view());
      }
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
  rotary_tables rotary_;
  tensor<float> mask_;
  weight_views<T> weights_;
  std::span<float> gradient_;
  std::vector<layer_saved> layers_;
  norm_saved final_;
};

}  // namespace example
#endif
