#ifndef EXAMPLE_TRAIN_LLAMA_PASSES_HPP
#define EXAMPLE_TRAIN_LLAMA_PASSES_HPP

#include <tigon/rows/reduce_map.hpp>
#include <tigon/simd/math.hpp>

#include <cstddef>

#include "../../support/memory.hpp"
#include "../../support/products.hpp"

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

  /// x w^T of a projection w [out, in], and back through it.
  tensor<T> linear(matrix<const T> x, matrix<const T> w) {
    auto y = make(x.rows, w.rows);
    product_xwt(x, w, y.view(), ctx_);
    return y;
  }
  tensor<T> linear_dx(matrix<const T> dy, matrix<const T> w) {
    auto dx = make(dy.rows, w.cols);
    product_xw(dy, w, dx.view(), ctx_);
    return dx;
  }
  tensor<T> sum(matrix<const T> a, matrix<const T> b) {
    return map([](auto u, auto v) { return u + v; }, a, b);
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
  template <class Out = T, class U>
  tensor<Out> softmax(matrix<U> x) {
    auto out = make<Out>(x.rows, x.cols);
    const auto y = out.view();
    tigon::for_rows<kernels>(ctx_, x.rows, x.cols, [=] TIGON_FN(auto row) {
      const float top = row.max(tigon::reads(x), [](auto v) { return v; });
      const float sum = row.sum(tigon::reads(x), [=](auto v) { return exp(v - top); });
      const float part = 1.0f / sum;
      row.map(tigon::reads(x), tigon::writes(y), [=](auto v) { return exp(v - top) * part; });
    });
    return out;
  }
  /// p (d - sum over the row of p d)
  template <class U>
  tensor<U> softmax_backward(matrix<U> p, matrix<U> d) {
    auto out = make<U>(p.rows, p.cols);
    const auto y = out.view();
    tigon::for_rows<kernels>(ctx_, y.rows, y.cols, [=] TIGON_FN(auto row) {
      const float dot = row.sum(tigon::reads(p, d), [](auto a, auto b) { return a * b; });
      row.map(tigon::reads(p, d), tigon::writes(y), [=](auto a, auto b) { return a * (b - dot); });
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

}  // namespace example
#endif
