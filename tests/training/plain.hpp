// The steps as plain loops in the type R: each elementary step is a pass of its own over whole tensors, and nothing of
// the library computes.
#ifndef TIGON_TESTS_TRAINING_PLAIN_HPP
#define TIGON_TESTS_TRAINING_PLAIN_HPP

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "steps.hpp"

namespace tigon::test::training {

template <class R>
class plain : public steps<R> {
 public:
  using typename steps<R>::in;
  using typename steps<R>::out;
  using typename steps<R>::layer_function;

  explicit plain(const model_config& config) : c_(config) {}

  void embed(in w, tokens ids, out y) override {
    for (std::size_t t = 0; t < y.rows; ++t)
      for (std::size_t j = 0; j < y.cols; ++j) y.row(t)[j] = w.row(static_cast<std::size_t>(ids[t]))[j];
  }
  void embed_backward(in dy, tokens ids, out dw, bool adds) override {
    if (!adds) fill(dw, R(0));
    for (std::size_t t = 0; t < dy.rows; ++t)
      for (std::size_t j = 0; j < dy.cols; ++j) dw.row(static_cast<std::size_t>(ids[t]))[j] += dy.row(t)[j];
  }

  void linear(in x, in w, out y) override {
    for (std::size_t i = 0; i < x.rows; ++i)
      for (std::size_t o = 0; o < w.rows; ++o) y.row(i)[o] = dot(x.row(i), w.row(o), x.cols);
  }
  void linear_backward(in dy, in x, in w, out dx, out dw) override {
    fill(dx, R(0)), fill(dw, R(0));
    for (std::size_t i = 0; i < dy.rows; ++i)
      for (std::size_t o = 0; o < dy.cols; ++o)
        for (std::size_t j = 0; j < x.cols; ++j) dx.row(i)[j] += dy.row(i)[o] * w.row(o)[j];
    for (std::size_t i = 0; i < dy.rows; ++i)
      for (std::size_t o = 0; o < dy.cols; ++o)
        for (std::size_t j = 0; j < x.cols; ++j) dw.row(o)[j] += dy.row(i)[o] * x.row(i)[j];
  }

  void norm(in x, in w, out y, std::span<R> rstd) override {
    for (std::size_t i = 0; i < x.rows; ++i)
      rstd[i] = 1 / std::sqrt(dot(x.row(i), x.row(i), x.cols) / R(x.cols) + R(c_.norm_eps));
    for (std::size_t i = 0; i < x.rows; ++i)
      for (std::size_t j = 0; j < x.cols; ++j) y.row(i)[j] = x.row(i)[j] * rstd[i];
    for (std::size_t i = 0; i < x.rows; ++i)
      for (std::size_t j = 0; j < x.cols; ++j) y.row(i)[j] *= R(c_.norm_offset) + w.data[j];
  }
  void add_norm(in x, in r, in w, out y, out s, std::span<R> rstd) override {
    for (std::size_t i = 0; i < x.rows; ++i)
      for (std::size_t j = 0; j < x.cols; ++j) s.row(i)[j] = x.row(i)[j] + r.row(i)[j];
    norm(s, w, y, rstd);
  }
  void add_norm_backward(in dy, in ds, in s, in w, std::span<const R> rstd, out dx, out dw) override {
    buffer<R> normal(s.rows, s.cols), dnormal(s.rows, s.cols);
    fill(dw, R(0));
    for (std::size_t i = 0; i < s.rows; ++i)
      for (std::size_t j = 0; j < s.cols; ++j) normal.view().row(i)[j] = s.row(i)[j] * rstd[i];
    for (std::size_t i = 0; i < s.rows; ++i)
      for (std::size_t j = 0; j < s.cols; ++j) dw.data[j] += dy.row(i)[j] * normal.view().row(i)[j];
    for (std::size_t i = 0; i < s.rows; ++i)
      for (std::size_t j = 0; j < s.cols; ++j)
        dnormal.view().row(i)[j] = dy.row(i)[j] * (R(c_.norm_offset) + w.data[j]);
    for (std::size_t i = 0; i < s.rows; ++i) {
      const R share = dot(dnormal.view().row(i), normal.view().row(i), s.cols) / R(s.cols);
      for (std::size_t j = 0; j < s.cols; ++j)
        dx.row(i)[j] = rstd[i] * (dnormal.view().row(i)[j] - share * normal.view().row(i)[j]);
    }
    if (ds.data != nullptr) add(ds, dx);
  }

  void rotate(out qkv, const rotary_tables<R>& tables) override { turn(qkv, tables, R(1)); }
  void rotate_backward(out dqkv, const rotary_tables<R>& tables) override { turn(dqkv, tables, R(-1)); }

  void attend(in qkv, out o, std::span<R> lse) override {
    fill(o, R(0));
    each_head([&](std::size_t b, std::size_t h) {
      const buffer<R> p = probabilities(qkv, b, h, lse.data() + (b * c_.heads + h) * c_.seq_len);
      for (std::size_t i = 0; i < c_.seq_len; ++i)
        for (std::size_t j = 0; j < c_.seq_len; ++j)
          for (std::size_t d = 0; d < c_.head_dim(); ++d)
            at(o, b, i, h)[d] += p.view().row(i)[j] * at(qkv, b, j, v_head(h))[d];
    });
  }
  void attend_backward(in d_o, in qkv, in, std::span<const R>, out dqkv) override {
    fill(dqkv, R(0));
    const std::size_t n = c_.seq_len, dim = c_.head_dim();
    const R scale = 1 / std::sqrt(R(dim));
    each_head([&](std::size_t b, std::size_t h) {
      std::vector<R> lse(n);
      const buffer<R> p = probabilities(qkv, b, h, lse.data());
      buffer<R> ds(n, n);
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < n; ++j)
          for (std::size_t d = 0; d < dim; ++d)
            at(dqkv, b, j, v_head(h))[d] += p.view().row(i)[j] * at(d_o, b, i, h)[d];
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < n; ++j) ds.view().row(i)[j] = dot(at(d_o, b, i, h), at(qkv, b, j, v_head(h)), dim);
      softmax_backward(p, ds);
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < n; ++j)
          for (std::size_t d = 0; d < dim; ++d) {
            at(dqkv, b, i, h)[d] += scale * ds.view().row(i)[j] * at(qkv, b, j, k_head(h))[d];
            at(dqkv, b, j, k_head(h))[d] += scale * ds.view().row(i)[j] * at(qkv, b, i, h)[d];
          }
    });
  }

  void gate(in gate_up, out y) override {
    const std::size_t n = c_.intermediate;
    for (std::size_t i = 0; i < y.rows; ++i)
      for (std::size_t j = 0; j < n; ++j) y.row(i)[j] = activated(gate_up.row(i)[j]);
    for (std::size_t i = 0; i < y.rows; ++i)
      for (std::size_t j = 0; j < n; ++j) y.row(i)[j] *= gate_up.row(i)[n + j];
  }
  void gate_backward(in dy, in gate_up, out d) override {
    const std::size_t n = c_.intermediate;
    for (std::size_t i = 0; i < dy.rows; ++i)
      for (std::size_t j = 0; j < n; ++j) d.row(i)[n + j] = dy.row(i)[j] * activated(gate_up.row(i)[j]);
    for (std::size_t i = 0; i < dy.rows; ++i)
      for (std::size_t j = 0; j < n; ++j) d.row(i)[j] = dy.row(i)[j] * gate_up.row(i)[n + j] * slope(gate_up.row(i)[j]);
  }

  // Every token calls every expert that it chose: a product of one row each.
  void experts(in x, expert_matrices<const R> w, mixture_state<R>& s, out y) override {
    choose(s);
    fill(y, R(0));
    each_choice(s, [&](std::size_t t, std::size_t j, std::size_t e) {
      const auto row = x.rows_from(t, 1);
      const auto saved = s.saved.view().rows_from(t * c_.top_k + j, 1);
      buffer<R> product(1, c_.intermediate), one(1, c_.hidden);
      linear(row, w.gate_up.rows_from(2 * e * c_.intermediate, 2 * c_.intermediate), saved);
      gate(saved, product.view());
      linear(product.view(), w.down.rows_from(e * c_.hidden, c_.hidden), one.view());
      for (std::size_t i = 0; i < c_.hidden; ++i) y.row(t)[i] += s.weights.view().row(t)[j] * one.memory[i];
    });
  }
  void experts_backward(in dy, in x, expert_matrices<const R> w, const mixture_state<R>& s, out dx,
                        expert_matrices<R> dw, out dlogits) override {
    const std::size_t n = c_.intermediate, h = c_.hidden;
    fill(dx, R(0)), fill(dw.gate_up, R(0)), fill(dw.down, R(0));
    buffer<R> dweights(x.rows, c_.top_k);
    each_choice(s, [&](std::size_t t, std::size_t j, std::size_t e) {
      const auto gate_up_e = w.gate_up.rows_from(2 * e * n, 2 * n), down_e = w.down.rows_from(e * h, h);
      const auto saved = s.saved.view().rows_from(t * c_.top_k + j, 1);
      buffer<R> product(1, n), one(1, h), done(1, h), dproduct(1, n), dsaved(1, 2 * n), dx_one(1, h);
      buffer<R> dgate_up_one(2 * n, h), ddown_one(h, n);
      gate(saved, product.view());
      linear(product.view(), down_e, one.view());
      dweights.view().row(t)[j] = dot(dy.row(t), one.memory.data(), h);
      for (std::size_t i = 0; i < h; ++i) done.memory[i] = s.weights.view().row(t)[j] * dy.row(t)[i];
      linear_backward(done.view(), product.view(), down_e, dproduct.view(), ddown_one.view());
      gate_backward(dproduct.view(), saved, dsaved.view());
      linear_backward(dsaved.view(), x.rows_from(t, 1), gate_up_e, dx_one.view(), dgate_up_one.view());
      add(dx_one.view(), dx.rows_from(t, 1));
      add(dgate_up_one.view(), dw.gate_up.rows_from(2 * e * n, 2 * n));
      add(ddown_one.view(), dw.down.rows_from(e * h, h));
    });
    through_choice(s, dweights, dlogits);
  }

  void connect(in x, connection_matrices<const R> w, const layer_function& layer, connection_state<R>& s,
               out y) override {
    const std::size_t n = c_.streams, h = c_.hidden;
    for (std::size_t t = 0; t < x.rows; ++t)
      s.rstd[t] = 1 / std::sqrt(dot(x.row(t), x.row(t), x.cols) / R(x.cols) + R(c_.norm_eps));
    fill(s.mix.view(), R(0));
    for (std::size_t t = 0; t < x.rows; ++t)
      for (std::size_t j = 0; j < x.cols; ++j)
        for (std::size_t k = 0; k < c_.mixes(); ++k) s.mix.view().row(t)[k] += x.row(t)[j] * w.phi.row(j)[k];
    for (std::size_t t = 0; t < x.rows; ++t)
      for (std::size_t k = 0; k < c_.mixes(); ++k) s.mix.view().row(t)[k] *= s.rstd[t];
    for (std::size_t t = 0; t < x.rows; ++t) {
      const std::vector<R> z = logits_of(w, s, t);
      for (std::size_t o = 0; o < n; ++o) s.h_pre.view().row(t)[o] = sigmoid(z[o]);
      for (std::size_t o = 0; o < n; ++o) s.h_post.view().row(t)[o] = R(c_.post_mult) * sigmoid(z[n + o]);
      const buffer<R> last = balance(z).back().result;
      std::copy_n(last.memory.data(), n * n, s.h_res.view().row(t));
    }
    fill(s.in.view(), R(0));
    for (std::size_t t = 0; t < x.rows; ++t)
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < h; ++j) s.in.view().row(t)[j] += s.h_pre.view().row(t)[i] * x.row(t)[i * h + j];
    layer(s.in.view(), s.f.view());
    for (std::size_t t = 0; t < x.rows; ++t)
      for (std::size_t o = 0; o < n; ++o)
        for (std::size_t j = 0; j < h; ++j) {
          R sum = s.h_post.view().row(t)[o] * s.f.view().row(t)[j];
          for (std::size_t i = 0; i < n; ++i) sum += s.h_res.view().row(t)[o * n + i] * x.row(t)[i * h + j];
          y.row(t)[o * h + j] = sum;
        }
  }
  void connect_backward(in dy, in x, connection_matrices<const R> w, const layer_function& layer,
                        connection_state<R>& s, out dx, connection_matrices<R> dw) override {
    const std::size_t n = c_.streams, h = c_.hidden;
    buffer<R> df(x.rows, h), d_in(x.rows, h), dmix(x.rows, c_.mixes());
    for (std::size_t t = 0; t < x.rows; ++t)
      for (std::size_t o = 0; o < n; ++o)
        for (std::size_t j = 0; j < h; ++j) df.view().row(t)[j] += s.h_post.view().row(t)[o] * dy.row(t)[o * h + j];
    layer(df.view(), d_in.view());
    fill(dx, R(0)), fill(dw.phi, R(0)), fill(dw.bias, R(0)), fill(dw.alpha, R(0));
    for (std::size_t t = 0; t < x.rows; ++t)
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < h; ++j) {
          R& sum = dx.row(t)[i * h + j];
          sum = s.h_pre.view().row(t)[i] * d_in.view().row(t)[j];
          for (std::size_t o = 0; mixes_back_ && o < n; ++o)
            sum += s.h_res.view().row(t)[o * n + i] * dy.row(t)[o * h + j];
        }
    for (std::size_t t = 0; t < x.rows; ++t) {
      const std::vector<R> g = logit_gradients(dy.row(t), x.row(t), w, s, d_in.view().row(t), t);
      for (std::size_t k = 0; k < g.size(); ++k) {
        dw.bias.data[k] += g[k];
        dw.alpha.data[part_of(k)] += g[k] * s.mix.view().row(t)[k];
        dmix.view().row(t)[k] = w.alpha.data[part_of(k)] * g[k];
      }
    }
    // mix = rstd (x phi), and rstd depends on all of x.
    for (std::size_t t = 0; t < x.rows; ++t) {
      const R r = s.rstd[t], of_r = dot(dmix.view().row(t), s.mix.view().row(t), c_.mixes()) / r;
      for (std::size_t j = 0; j < x.cols; ++j) {
        for (std::size_t k = 0; k < c_.mixes(); ++k) dw.phi.row(j)[k] += x.row(t)[j] * r * dmix.view().row(t)[k];
        dx.row(t)[j] += r * dot(dmix.view().row(t), w.phi.row(j), c_.mixes());
        dx.row(t)[j] -= of_r * r * r * r / R(x.cols) * x.row(t)[j];
      }
    }
  }

  double head(in x, in w, tokens targets, out dx, out dw) override {
    buffer<R> logits(x.rows, w.rows), d(x.rows, w.rows), slopes(x.rows, w.rows);
    linear(x, w, logits.view());
    const R cap = R(c_.softcap);
    for (std::size_t i = 0; i < logits.memory.size(); ++i) {
      R& z = logits.memory[i];
      const R bent = c_.softcap != 0 ? std::tanh(z / cap) : R(0);
      if (c_.softcap != 0) z = cap * bent;
      slopes.memory[i] = 1 - bent * bent;
    }
    softmax(logits);
    double loss = 0;
    for (std::size_t i = 0; i < x.rows; ++i)
      loss -= std::log(static_cast<double>(logits.view().row(i)[targets[i]])) / static_cast<double>(x.rows);
    for (std::size_t i = 0; i < d.memory.size(); ++i) d.memory[i] = logits.memory[i] / R(x.rows);
    for (std::size_t i = 0; i < x.rows; ++i) d.view().row(i)[targets[i]] -= 1 / R(x.rows);
    for (std::size_t i = 0; i < d.memory.size(); ++i) d.memory[i] *= slopes.memory[i];
    linear_backward(d.view(), x, w, dx, dw);
    return loss;
  }

 protected:
  bool causal_ = true, mixes_back_ = true;

 private:
  static R dot(const R* a, const R* b, std::size_t n) {
    R sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
  }
  static void fill(out m, R value) {
    for (std::size_t i = 0; i < m.rows; ++i) std::fill_n(m.row(i), m.cols, value);
  }
  static void add(in from, out to) {
    for (std::size_t i = 0; i < to.rows; ++i)
      for (std::size_t j = 0; j < to.cols; ++j) to.row(i)[j] += from.row(i)[j];
  }
  /// Of each row, in place. A masked score is -infinity.
  static void softmax(buffer<R>& m, R* lse = nullptr) {
    for (std::size_t i = 0; i < m.rows; ++i) {
      R* z = m.view().row(i);
      const R top = *std::max_element(z, z + m.cols);
      for (std::size_t j = 0; j < m.cols; ++j) z[j] = std::exp(z[j] - top);
      const R sum = std::accumulate(z, z + m.cols, R(0));
      for (std::size_t j = 0; j < m.cols; ++j) z[j] /= sum;
      if (lse != nullptr) lse[i] = top + std::log(sum);
    }
  }
  /// d = p (d - sum p d)
  static void softmax_backward(const buffer<R>& p, buffer<R>& d) {
    for (std::size_t i = 0; i < p.rows; ++i) {
      const R mean = dot(p.view().row(i), d.view().row(i), p.cols);
      for (std::size_t j = 0; j < p.cols; ++j) d.view().row(i)[j] = p.view().row(i)[j] * (d.view().row(i)[j] - mean);
    }
  }

  /// Head h of token i of sequence b, in rows of q, k and v or of q alone.
  template <class E>
  E* at(matrix_view<E> m, std::size_t b, std::size_t i, std::size_t h) const {
    return m.row(b * c_.seq_len + i) + h * c_.head_dim();
  }
  std::size_t k_head(std::size_t h) const { return c_.heads + h / (c_.heads / c_.kv_heads); }
  std::size_t v_head(std::size_t h) const { return k_head(h) + c_.kv_heads; }
  template <class F>
  void each_head(const F& f) const {
    for (std::size_t b = 0; b < c_.batch; ++b)
      for (std::size_t h = 0; h < c_.heads; ++h) f(b, h);
  }
  buffer<R> probabilities(in qkv, std::size_t b, std::size_t h, R* lse) const {
    buffer<R> s(c_.seq_len, c_.seq_len);
    for (std::size_t i = 0; i < s.rows; ++i)
      for (std::size_t j = 0; j < s.cols; ++j)
        s.view().row(i)[j] =
            dot(at(qkv, b, i, h), at(qkv, b, j, k_head(h)), c_.head_dim()) / std::sqrt(R(c_.head_dim()));
    for (std::size_t i = 0; i < s.rows; ++i)
      for (std::size_t j = i + 1; causal_ && j < s.cols; ++j) s.view().row(i)[j] = -std::numeric_limits<R>::infinity();
    softmax(s, lse);
    return s;
  }

  /// Row of the tables for pair j of a token.
  std::size_t table_row(std::size_t token, std::size_t j) const {
    if (c_.rotary != rotary_form::multimodal) return token % c_.seq_len;
    const std::size_t part = j < c_.sections[0] ? 0 : j < c_.sections[0] + c_.sections[1] ? 1 : 2;
    return part * c_.window() + token;
  }
  void turn(out qkv, const rotary_tables<R>& tables, R sign) const {
    const std::size_t half = (c_.rotary == rotary_form::partial ? c_.rotary_dim : c_.head_dim()) / 2;
    for (std::size_t t = 0; t < qkv.rows; ++t)
      for (std::size_t h = 0; h < c_.heads + c_.kv_heads; ++h) {
        R* x = qkv.row(t) + h * c_.head_dim();
        for (std::size_t j = 0; j < half; ++j) {
          const R cos = tables.cos.view().row(table_row(t, j))[j],
                  sin = sign * tables.sin.view().row(table_row(t, j))[j];
          const R a = x[j], b = x[j + half];
          x[j] = a * cos - b * sin;
          x[j + half] = b * cos + a * sin;
        }
      }
  }

  static R sigmoid(R x) { return 1 / (1 + std::exp(-x)); }
  /// silu, or gelu in its tanh form
  R activated(R x) const { return c_.gate == gate_form::geglu ? x / 2 * (1 + bend(x)) : x * sigmoid(x); }
  R slope(R x) const {
    if (c_.gate != gate_form::geglu) return sigmoid(x) * (1 + x * (1 - sigmoid(x)));
    const R t = bend(x);
    return (1 + t) / 2 + x / 2 * (1 - t * t) * root() * (1 + 3 * R(0.044715) * x * x);
  }
  static R root() { return std::sqrt(2 / std::numbers::pi_v<R>); }
  static R bend(R x) { return std::tanh(root() * (x + R(0.044715) * x * x * x)); }

  std::size_t part_of(std::size_t k) const { return k < c_.streams ? 0 : k < 2 * c_.streams ? 1 : 2; }
  std::vector<R> logits_of(connection_matrices<const R> w, const connection_state<R>& s, std::size_t t) const {
    std::vector<R> z(c_.mixes());
    for (std::size_t k = 0; k < z.size(); ++k)
      z[k] = w.alpha.data[part_of(k)] * s.mix.view().row(t)[k] + w.bias.data[k];
    return z;
  }
  /// A matrix whose rows or columns were divided by their sums.
  struct balanced {
    bool rows;
    buffer<R> result;
    std::vector<R> sums;
  };
  /// The softmax of each row, then columns and rows by turns.
  std::vector<balanced> balance(const std::vector<R>& z) const {
    const std::size_t n = c_.streams;
    std::vector<balanced> all;
    buffer<R> m(n, n);
    std::copy_n(z.data() + 2 * n, n * n, m.memory.data());
    softmax(m);
    all.push_back({true, m, {}});
    for (R& v : m.memory) v += R(c_.sinkhorn_eps);
    for (std::size_t k = 0; k + 1 < 2 * c_.sinkhorn_steps; ++k) {
      const bool rows = k % 2 == 1;
      std::vector<R> sums(n, R(c_.sinkhorn_eps));
      for (std::size_t o = 0; o < n; ++o)
        for (std::size_t i = 0; i < n; ++i) sums[rows ? o : i] += m.view().row(o)[i];
      for (std::size_t o = 0; o < n; ++o)
        for (std::size_t i = 0; i < n; ++i) m.view().row(o)[i] /= sums[rows ? o : i];
      all.push_back({rows, m, sums});
    }
    return all;
  }
  /// The gradients of a token's alpha mix + b.
  std::vector<R> logit_gradients(const R* dy, const R* x, connection_matrices<const R> w, const connection_state<R>& s,
                                 const R* d_in, std::size_t t) const {
    const std::size_t n = c_.streams, h = c_.hidden;
    const std::vector<R> z = logits_of(w, s, t);
    std::vector<R> g(c_.mixes());
    for (std::size_t o = 0; o < n; ++o) {
      const R pre = sigmoid(z[o]), post = sigmoid(z[n + o]);
      g[o] = dot(d_in, x + o * h, h) * pre * (1 - pre);
      g[n + o] = R(c_.post_mult) * dot(dy + o * h, s.f.view().row(t), h) * post * (1 - post);
    }
    buffer<R> d(n, n);
    for (std::size_t o = 0; o < n; ++o)
      for (std::size_t i = 0; i < n; ++i) d.view().row(o)[i] = dot(dy + o * h, x + i * h, h);
    const std::vector<balanced> all = balance(z);
    for (std::size_t k = all.size(); k-- > 1;) {
      std::vector<R> along(n);
      for (std::size_t o = 0; o < n; ++o)
        for (std::size_t i = 0; i < n; ++i)
          along[all[k].rows ? o : i] += d.view().row(o)[i] * all[k].result.view().row(o)[i];
      for (std::size_t o = 0; o < n; ++o)
        for (std::size_t i = 0; i < n; ++i) {
          const std::size_t line = all[k].rows ? o : i;
          d.view().row(o)[i] = (d.view().row(o)[i] - along[line]) / all[k].sums[line];
        }
    }
    softmax_backward(all[0].result, d);
    std::copy_n(d.memory.data(), n * n, g.data() + 2 * n);
    return g;
  }

  template <class F>
  void each_choice(const mixture_state<R>& s, const F& f) const {
    for (std::size_t t = 0; t < s.chosen.rows; ++t)
      for (std::size_t j = 0; j < c_.top_k; ++j) f(t, j, static_cast<std::size_t>(s.chosen.view().row(t)[j]));
  }
  /// The k experts with the largest scores, and these as shares of their sum.
  void choose(mixture_state<R>& s) const {
    buffer<R> scores = s.logits;
    softmax(scores);
    for (std::size_t t = 0; t < scores.rows; ++t) {
      std::vector<std::int32_t> order(c_.experts);
      std::iota(order.begin(), order.end(), 0);
      const R *z = s.logits.view().row(t), *score = scores.view().row(t);
      std::stable_sort(order.begin(), order.end(), [=](std::int32_t a, std::int32_t b) { return z[a] > z[b]; });
      R sum = 0;
      for (std::size_t j = 0; j < c_.top_k; ++j) sum += score[order[j]];
      for (std::size_t j = 0; j < c_.top_k; ++j) {
        s.chosen.view().row(t)[j] = order[j];
        s.weights.view().row(t)[j] = score[order[j]] / sum;
      }
    }
  }
  void through_choice(const mixture_state<R>& s, const buffer<R>& dweights, out dlogits) const {
    buffer<R> scores = s.logits, d(dlogits.rows, dlogits.cols);
    softmax(scores);
    for (std::size_t t = 0; t < scores.rows; ++t) {
      const R *w = s.weights.view().row(t), *dw = dweights.view().row(t);
      const std::int32_t* chosen = s.chosen.view().row(t);
      const R mean = dot(w, dw, c_.top_k);
      R sum = 0;
      for (std::size_t j = 0; j < c_.top_k; ++j) sum += scores.view().row(t)[chosen[j]];
      for (std::size_t j = 0; j < c_.top_k; ++j) d.view().row(t)[chosen[j]] += (dw[j] - mean) / sum;
    }
    softmax_backward(scores, d);
    for (std::size_t t = 0; t < d.rows; ++t) std::copy_n(d.view().row(t), d.cols, dlogits.row(t));
  }

  model_config c_;
};

}  // namespace tigon::test::training

#endif  // TIGON_TESTS_TRAINING_PLAIN_HPP
