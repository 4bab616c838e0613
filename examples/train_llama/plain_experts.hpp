#ifndef EXAMPLE_TRAIN_LLAMA_PLAIN_EXPERTS_HPP
#define EXAMPLE_TRAIN_LLAMA_PLAIN_EXPERTS_HPP

#include <tigon/ops/embedding.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "../../support/memory.hpp"
#include "../../support/products.hpp"
#include "parameters.hpp"
#include "passes.hpp"

namespace example {

/// Weights of one or more gated MLPs, or their gradients.
template <class E>
struct gated_weights {
  matrix<E> gate_up, down;
  std::size_t intermediate = 0;

  std::size_t hidden() const { return gate_up.cols; }
  matrix<E> gate_of(std::size_t e) const { return gate_up.rows_from(2 * e * intermediate, intermediate); }
  matrix<E> up_of(std::size_t e) const { return gate_up.rows_from((2 * e + 1) * intermediate, intermediate); }
  matrix<E> down_of(std::size_t e) const { return down.rows_from(e * hidden(), hidden()); }
};

/// The MLP of one layer, each step a pass of its own.
template <tigon::element T>
class plain_mlp {
 public:
  struct saved {
    tensor<T> gate, up, activated, product;
  };

  plain_mlp(passes<T>& passes, tigon::context& ctx) : do_(passes), ctx_(ctx) {}

  tensor<T> forward(matrix<T> x, gated_weights<const T> w, saved& s, std::size_t expert = 0) {
    s.gate = do_.linear(x, w.gate_of(expert));
    s.up = do_.linear(x, w.up_of(expert));
    s.activated = do_.map([](auto g) { return g * sigmoid(g); }, s.gate.view());
    s.product = do_.map([](auto a, auto u) { return a * u; }, s.activated.view(), s.up.view());
    return do_.linear(s.product.view(), w.down_of(expert));
  }

  tensor<T> backward(matrix<T> dy, matrix<T> x, gated_weights<const T> w, const saved& s, gated_weights<float> dw,
                     std::size_t expert = 0) {
    product_xty<T>(dy, s.product.view(), dw.down_of(expert), ctx_);
    auto dproduct = do_.linear_dx(dy, w.down_of(expert));
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
    product_xty<T>(dgate.view(), x, dw.gate_of(expert), ctx_);
    product_xty<T>(dup.view(), x, dw.up_of(expert), ctx_);
    return do_.sum(do_.linear_dx(dgate.view(), w.gate_of(expert)).view(),
                   do_.linear_dx(dup.view(), w.up_of(expert)).view());
  }

 private:
  passes<T>& do_;
  tigon::context& ctx_;
};

/// A mixture of experts as a loop over them: gather an expert's tokens, its MLP, add its rows to the tokens.
template <tigon::element T>
class plain_experts {
 public:
  struct one_expert {
    std::vector<std::int32_t> tokens;
    std::vector<std::size_t> choices;  ///< places in the matrix of choices
    tensor<T> x, y;                    ///< gathered, and not yet weighted
    typename plain_mlp<T>::saved mlp;
  };
  struct saved {
    tensor<float> scores, weights;  ///< [tokens, experts], [tokens, top_k]
    std::vector<std::size_t> chosen;
    std::vector<one_expert> experts;
    double balance = 0;
  };
  template <class E, class R>
  struct mixture {
    matrix<R> router;
    gated_weights<E> mlps;
  };

  plain_experts(const model_config& config, passes<T>& passes, plain_mlp<T>& mlp, tigon::context& ctx)
      : c_(config), do_(passes), mlp_(mlp), ctx_(ctx) {}

  tensor<T> forward(matrix<T> x, matrix<const T> router, gated_weights<const T> w, saved& s) {
    route(x, router, s);
    auto sum = zeros(x.rows);
    for (std::size_t e = 0; e < c_.experts; ++e) {
      one_expert& of = s.experts[e];
      if (of.tokens.empty()) continue;
      of.x = gather(x, of);
      of.y = mlp_.forward(of.x.view(), w, of.mlp, e);
      add_rows(of, of.y.view(), sum.view(), s.weights.data());
    }
    return do_.map([](auto v) { return v; }, sum.view());
  }

  tensor<T> backward(matrix<T> dy, matrix<T> x, mixture<const T, const T> w, saved& s, mixture<float, float> dw) {
    clear(dw.mlps.gate_up), clear(dw.mlps.down);
    auto dscores = do_.template make<float>(x.rows, c_.experts), dweights = do_.template make<float>(x.rows, c_.top_k);
    auto sum = zeros(x.rows);
    for (std::size_t e = 0; e < c_.experts; ++e) {
      const one_expert& of = s.experts[e];
      if (of.tokens.empty()) continue;
      auto dout = gather(dy, of);
      const auto weight = do_.template make<float>(of.tokens.size(), 1);
      const auto dot =
          do_.sum_rows([](auto d, auto v) { return d * v; }, [](float v) { return v; }, dout.view(), of.y.view());
      for (std::size_t i = 0; i < of.tokens.size(); ++i) {
        weight.data()[i] = s.weights.data()[of.choices[i]];
        dweights.data()[of.choices[i]] = dot.data()[i];
      }
      dout = do_.map_rows([](auto d, auto v) { return d * v; }, weight, dout.view());
      const auto dx = mlp_.backward(dout.view(), of.x.view(), w.mlps, of.mlp, dw.mlps, e);
      add_rows(of, dx.view(), sum.view(), nullptr);
    }
    through_weights(s, dweights, dscores.view());
    const auto dlogits = do_.softmax_backward(s.scores.view(), dscores.view());
    tigon::gemm(dlogits.view(), x, dw.router, {.a = tigon::transpose::yes}, ctx_);
    tigon::gemm(dlogits.view(), w.router, sum.view(), {.beta = 1}, ctx_);
    return do_.map([](auto v) { return v; }, sum.view());
  }

 private:
  // The scores of all experts, the top_k of them, and these as shares of their sum.
  void route(matrix<T> x, matrix<const T> router, saved& s) {
    const std::size_t k = c_.top_k;
    auto logits = do_.template make<float>(x.rows, c_.experts);
    tigon::gemm(x, router, logits.view(), {.b = tigon::transpose::yes}, ctx_);
    s.scores = do_.template softmax<float>(logits.view());
    s.weights = do_.template make<float>(x.rows, k);
    s.chosen.resize(x.rows * k);
    s.experts.clear();
    s.experts.resize(c_.experts);
    std::vector<std::size_t> order(c_.experts);
    for (std::size_t t = 0; t < x.rows; ++t) {
      const float *z = logits.view().row(t), *score = s.scores.view().row(t);
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::ranges::sort(order, [=](std::size_t a, std::size_t b) { return z[a] != z[b] ? z[a] > z[b] : a < b; });
      float sum = 0;
      for (std::size_t j = 0; j < k; ++j) sum += score[order[j]];
      for (std::size_t j = 0; j < k; ++j) {
        const std::size_t e = order[j];
        s.chosen[t * k + j] = e;
        s.weights.data()[t * k + j] = score[e] / sum;
        s.experts[e].tokens.push_back(static_cast<std::int32_t>(t));
        s.experts[e].choices.push_back(t * k + j);
      }
    }
    s.balance = 0;
    for (std::size_t i = 0; i < x.rows * c_.experts; ++i)
      s.balance += static_cast<double>(s.scores.data()[i]) * balance_slope(s, i % c_.experts);
  }

  // Of the balance loss, by the score of a token for an expert.
  double balance_slope(const saved& s, std::size_t e) const {
    return static_cast<double>(c_.experts * s.experts[e].tokens.size()) /
           static_cast<double>(s.chosen.size() * s.scores.rows());
  }

  // w[j] = s[j] / sum of s, and the balance loss, which is linear in the scores.
  void through_weights(const saved& s, const tensor<float>& dweights, matrix<float> dscores) const {
    const std::size_t k = c_.top_k;
    for (std::size_t t = 0; t < dscores.rows; ++t) {
      const float *w = s.weights.view().row(t), *dw = dweights.view().row(t), *score = s.scores.view().row(t);
      const std::size_t* chosen = s.chosen.data() + t * k;
      for (std::size_t e = 0; e < c_.experts; ++e)
        dscores.row(t)[e] = c_.balance * static_cast<float>(balance_slope(s, e));
      float sum = 0, mean = 0;
      for (std::size_t j = 0; j < k; ++j) sum += score[chosen[j]], mean += w[j] * dw[j];
      for (std::size_t j = 0; j < k; ++j) dscores.row(t)[chosen[j]] += (dw[j] - mean) / sum;
    }
  }

  tensor<T> gather(matrix<T> from, const one_expert& of) {
    auto out = do_.make(of.tokens.size(), from.cols);
    tigon::embedding_forward(from, std::span<const std::int32_t>(of.tokens), out.view(), {}, ctx_);
    return out;
  }
  // Rows of an expert, times their weights where there are any, go back to the tokens. Sums are f32.
  static void add_rows(const one_expert& of, matrix<T> rows, matrix<float> to, const float* weights) {
    for (std::size_t i = 0; i < of.tokens.size(); ++i) {
      const float w = weights != nullptr ? weights[of.choices[i]] : 1.0f;
      float* sum = to.row(static_cast<std::size_t>(of.tokens[i]));
      for (std::size_t j = 0; j < to.cols; ++j) sum[j] += w * static_cast<float>(rows.row(i)[j]);
    }
  }
  tensor<float> zeros(std::size_t rows) {
    auto out = do_.template make<float>(rows, c_.hidden);
    clear(out.view());
    return out;
  }
  static void clear(matrix<float> m) {
    for (std::size_t i = 0; i < m.rows; ++i) std::fill_n(m.row(i), m.cols, 0.0f);
  }

  model_config c_;
  passes<T>& do_;
  plain_mlp<T>& mlp_;
  tigon::context& ctx_;
};

}  // namespace example
#endif
