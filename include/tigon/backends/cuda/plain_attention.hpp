// Attention on a GPU as the formula stands: a block a query, and for the gradients of keys and values a block a key.
// For f32 and f64, and for what cuDNN lacks; slow, as no tensor core multiplies.
#ifndef TIGON_BACKENDS_CUDA_PLAIN_ATTENTION_HPP
#define TIGON_BACKENDS_CUDA_PLAIN_ATTENTION_HPP

#include <tigon/backends/cuda/backend.hpp>
#include <tigon/backends/cuda/group.hpp>
// Behind them: they say how these are compiled.
#include <tigon/ops/attention/attention_options.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// Threads of a block: keys, or queries, that it takes at a time, and columns that it sums.
inline constexpr unsigned attention_threads = 128;

/// Which keys a query sees: detail::visibility without documents.
struct attention_band {
  std::size_t keys, offset, left, right, prefix;

  attention_band(const attention_options& opt, std::size_t number)
      : keys(number),
        offset(opt.offset),
        left(opt.window_left),
        right(opt.mask == attention_mask::causal ? 0 : opt.window_right),
        prefix(opt.prefix < number ? opt.prefix : number) {}

  /// The window of a query is [first, end).
  TIGON_DEVICE_INLINE std::size_t first(std::size_t query) const {
    const std::size_t at = offset + query;
    return left < at ? at - left : 0;
  }
  TIGON_DEVICE_INLINE std::size_t end(std::size_t query) const {
    const std::size_t at = offset + query;
    return right < keys && at + right + 1 < keys ? at + right + 1 : keys;
  }
  TIGON_DEVICE_INLINE bool sees(std::size_t query, std::size_t key) const {
    return key < prefix || (first(query) <= key && key < end(query));
  }
  /// All keys that a query sees are in [first_of_all, end_of_all).
  TIGON_DEVICE_INLINE std::size_t first_of_all(std::size_t query) const { return prefix != 0 ? 0 : first(query); }
  TIGON_DEVICE_INLINE std::size_t end_of_all(std::size_t query) const {
    return end(query) > prefix ? end(query) : prefix;
  }
};

/// Operands of all kernels.
template <class T>
struct attention_operands {
  using A = accumulator_t<T>;
  heads_view<const T> q, k, v;
  const float* sinks;  ///< or null
  attention_band band;
  A scale, softcap;

  attention_operands(heads_view<const T> queries, heads_view<const T> of_keys, heads_view<const T> values,
                     const attention_options& opt)
      : q(queries),
        k(of_keys),
        v(values),
        sinks(opt.sinks.empty() ? nullptr : opt.sinks.data()),
        band(opt, of_keys.seq_len),
        scale(static_cast<A>(tigon::detail::attention_scale(opt, queries.head_dim))),
        softcap(static_cast<A>(opt.softcap)) {}

  static TIGON_DEVICE_INLINE A dot(const T* x, const T* y, std::size_t d) {
    A sum = A(0);
    for (std::size_t c = 0; c < d; ++c) sum += static_cast<A>(x[c]) * static_cast<A>(y[c]);
    return sum;
  }
  TIGON_DEVICE_INLINE A score(const T* query, const T* key) const {
    const A s = dot(query, key, q.head_dim) * scale;
    return softcap == A(0) ? s : softcap * std::tanh(s / softcap);
  }
  /// The derivative of a score by scale * q k.
  TIGON_DEVICE_INLINE A slope(A s) const { return softcap == A(0) ? A(1) : 1 - (s / softcap) * (s / softcap); }
};

/// A query of a head of a batch entry, by the number of a block; its key/value head.
struct attention_row {
  std::size_t index, query, head, batch, kv_head;

  template <class T>
  TIGON_DEVICE_INLINE attention_row(const attention_operands<T>& x)
      : index(blockIdx.x),
        query(index % x.q.seq_len),
        head(index / x.q.seq_len % x.q.heads),
        batch(index / x.q.seq_len / x.q.heads),
        kv_head(head / (x.q.heads / x.k.heads)) {}
};
/// The column of a thread, of the piece of columns that a block sums.
TIGON_DEVICE_INLINE std::size_t attention_column() { return blockIdx.y * std::size_t{attention_threads} + threadIdx.x; }

/// Adds p[j] * rows[j][column] of n rows to a sum in f64.
template <class T, class A>
TIGON_DEVICE_INLINE void add_weighted(double& sum, const A* p, const T* rows, std::size_t stride, std::size_t n) {
  A part = A(0);
  for (std::size_t j = 0; j < n; ++j) part += p[j] * static_cast<A>(rows[j * stride]);
  sum += static_cast<double>(part);
}

/// o and lse: keys that the query sees are taken a block of threads at a time, below the maximum of those so far.
template <class T>
__global__ void __launch_bounds__(attention_threads)
    attend(const __grid_constant__ attention_operands<T> x, heads_view<T> o, accumulator_t<T>* lse) {
  using A = accumulator_t<T>;
  constexpr A infinity = std::numeric_limits<A>::infinity();
  __shared__ A p[attention_threads];
  const attention_row row(x);
  const std::size_t column = attention_column(), end = x.band.end_of_all(row.query);
  const T* const query = x.q.at(row.batch, row.head, row.query);
  A top[1] = {x.sinks != nullptr ? static_cast<A>(x.sinks[row.head]) : -infinity};
  double sum = top[0] > -infinity ? 1 : 0, weighted = 0;
  bool any = false;
  for (std::size_t j = x.band.first_of_all(row.query); j < end; j += attention_threads) {
    const std::size_t key = j + threadIdx.x, n = end - j < attention_threads ? end - j : attention_threads;
    const bool sees = key < end && x.band.sees(row.query, key);
    const A s = sees ? x.score(query, x.k.at(row.batch, row.kv_head, key)) : -infinity, before = top[0];
    any = __syncthreads_or(sees) != 0 || any;
    A tops[1] = {s};
    group<0>::reduce<larger>(tops);
    top[0] = larger::join(before, tops[0]);
    if (top[0] == -infinity) continue;
    double weight[1] = {sees ? static_cast<double>(std::exp(s - top[0])) : 0};
    p[threadIdx.x] = static_cast<A>(weight[0]);
    group<0>::reduce<add>(weight);
    const double kept = before == -infinity ? 0 : static_cast<double>(std::exp(before - top[0]));
    sum = sum * kept + weight[0], weighted *= kept;
    if (column < x.v.head_dim) add_weighted(weighted, p, x.v.at(row.batch, row.kv_head, j) + column, x.v.seq_stride, n);
    __syncthreads();
  }
  if (column < o.head_dim) o.at(row.batch, row.head, row.query)[column] = T(static_cast<A>(any ? weighted / sum : 0));
  if (column == 0)
    lse[row.index] = !any      ? top[0]
                     : sum > 0 ? static_cast<A>(static_cast<double>(top[0]) + std::log(sum))
                               : std::numeric_limits<A>::quiet_NaN();
}

/// What backward reads beside the operands.
template <class T>
struct attention_upstream {
  using A = accumulator_t<T>;
  heads_view<const T> d_o;
  const A* lse;
  A* delta;  ///< of every row; made by the first kernel
};

/// delta, and dq where it has memory.
template <class T>
__global__ void __launch_bounds__(attention_threads)
    gradients_of_queries(const __grid_constant__ attention_operands<T> x,
                         const __grid_constant__ attention_upstream<T> y, heads_view<T> dq) {
  using A = accumulator_t<T>;
  __shared__ A ds[attention_threads];
  const attention_row row(x);
  const std::size_t column = attention_column(), begin = x.band.first_of_all(row.query),
                    end = x.band.end_of_all(row.query);
  const T *const query = x.q.at(row.batch, row.head, row.query), *const d = y.d_o.at(row.batch, row.head, row.query);
  const A lse = y.lse[row.index];
  const auto weight = [&](std::size_t key, A& s, A& dp) {
    s = x.score(query, x.k.at(row.batch, row.kv_head, key));
    dp = x.dot(d, x.v.at(row.batch, row.kv_head, key), x.v.head_dim);
    return std::exp(s - lse);
  };
  double delta[1] = {0};
  A s, dp;
  for (std::size_t key = begin + threadIdx.x; key < end; key += attention_threads)
    if (x.band.sees(row.query, key)) {
      const A p = weight(key, s, dp);
      delta[0] += static_cast<double>(p) * static_cast<double>(dp);
    }
  group<0>::reduce<add>(delta);
  if (column == 0) y.delta[row.index] = static_cast<A>(delta[0]);
  if (dq.data == nullptr) return;
  double sum = 0;
  for (std::size_t j = begin; j < end; j += attention_threads) {
    const std::size_t key = j + threadIdx.x, n = end - j < attention_threads ? end - j : attention_threads;
    A share = A(0);
    if (key < end && x.band.sees(row.query, key)) {
      const A p = weight(key, s, dp);
      share = p * (dp - static_cast<A>(delta[0])) * x.slope(s);
    }
    ds[threadIdx.x] = share;
    __syncthreads();
    if (column < x.k.head_dim) add_weighted(sum, ds, x.k.at(row.batch, row.kv_head, j) + column, x.k.seq_stride, n);
    __syncthreads();
  }
  if (column < dq.head_dim)
    dq.at(row.batch, row.head, row.query)[column] = T(static_cast<A>(static_cast<double>(x.scale) * sum));
}

/// dk and dv, of which one may have no memory: a block a key, over the queries of all heads of its group.
template <class T>
__global__ void __launch_bounds__(attention_threads)
    gradients_of_keys(const __grid_constant__ attention_operands<T> x, const __grid_constant__ attention_upstream<T> y,
                      heads_view<T> dk, heads_view<T> dv) {
  using A = accumulator_t<T>;
  __shared__ A p[attention_threads], ds[attention_threads];
  const std::size_t key = blockIdx.x % x.k.seq_len, kv_head = blockIdx.x / x.k.seq_len % x.k.heads,
                    batch = blockIdx.x / x.k.seq_len / x.k.heads, of_group = x.q.heads / x.k.heads,
                    queries = x.q.seq_len, column = attention_column();
  const T *const k = x.k.at(batch, kv_head, key), *const v = x.v.at(batch, kv_head, key);
  double sum_k = 0, sum_v = 0;
  for (std::size_t head = kv_head * of_group; head < (kv_head + 1) * of_group; ++head)
    for (std::size_t i = 0; i < queries; i += attention_threads) {
      const std::size_t query = i + threadIdx.x, n = queries - i < attention_threads ? queries - i : attention_threads;
      const bool sees = query < queries && x.band.sees(query, key);
      if (__syncthreads_or(sees) == 0) continue;
      A weight = A(0), share = A(0);
      if (sees) {
        const std::size_t row = (batch * x.q.heads + head) * queries + query;
        const A s = x.score(x.q.at(batch, head, query), k), dp = x.dot(y.d_o.at(batch, head, query), v, x.v.head_dim);
        weight = std::exp(s - y.lse[row]);
        share = weight * (dp - y.delta[row]) * x.slope(s);
      }
      p[threadIdx.x] = weight, ds[threadIdx.x] = share;
      __syncthreads();
      if (column < x.k.head_dim) add_weighted(sum_k, ds, x.q.at(batch, head, i) + column, x.q.seq_stride, n);
      if (column < x.v.head_dim) add_weighted(sum_v, p, y.d_o.at(batch, head, i) + column, y.d_o.seq_stride, n);
    }
  if (dk.data != nullptr && column < dk.head_dim)
    dk.at(batch, kv_head, key)[column] = T(static_cast<A>(static_cast<double>(x.scale) * sum_k));
  if (dv.data != nullptr && column < dv.head_dim) dv.at(batch, kv_head, key)[column] = T(static_cast<A>(sum_v));
}

/// dsinks: a block a head.
template <class T>
__global__ void __launch_bounds__(attention_threads)
    gradients_of_sinks(const __grid_constant__ attention_operands<T> x, const __grid_constant__ attention_upstream<T> y,
                       accumulator_t<T>* dsinks) {
  using A = accumulator_t<T>;
  const std::size_t head = blockIdx.x, rows = x.q.batch * x.q.seq_len;
  const A sink = static_cast<A>(x.sinks[head]);
  double sum[1] = {0};
  for (std::size_t r = threadIdx.x; r < rows; r += attention_threads) {
    const std::size_t row = (r / x.q.seq_len * x.q.heads + head) * x.q.seq_len + r % x.q.seq_len;
    if (sink > -std::numeric_limits<A>::infinity())
      sum[0] -= static_cast<double>(std::exp(sink - y.lse[row])) * static_cast<double>(y.delta[row]);
  }
  group<0>::reduce<add>(sum);
  if (threadIdx.x == 0) dsinks[head] = static_cast<A>(sum[0]);
}

/// Attention by these kernels.
template <class T>
struct plain_attention {
  using A = accumulator_t<T>;

  static void forward(const attention_operands<T>& x, heads_view<T> o, A* lse, context& ctx) {
    launch(ctx, attend<T>, grid(x.q.batch * x.q.heads * x.q.seq_len, o.head_dim), dim3(attention_threads), x, o, lse);
  }
  /// delta of every row.
  static std::size_t backward_bytes(const attention_operands<T>& x) {
    return workspace::bytes_for<A>(x.q.batch, x.q.heads, x.q.seq_len);
  }
  static void backward(const attention_operands<T>& x, heads_view<const T> d_o, const A* lse,
                       const attention_gradients<T>& to, context& ctx) {
    workspace::frame frame(ctx.workspace());
    const std::size_t rows = x.q.batch * x.q.heads * x.q.seq_len, keys = x.k.batch * x.k.heads * x.k.seq_len;
    const attention_upstream<T> y{d_o, lse, frame.template take<A>(rows)};
    const dim3 threads(attention_threads);
    if (rows != 0) {
      // Without dq, delta needs no more than one piece of columns.
      const std::size_t cols = to.dq.data != nullptr ? x.q.head_dim : 1;
      launch(ctx, gradients_of_queries<T>, grid(rows, cols), threads, x, y, to.dq);
    }
    if (keys != 0 && (to.dk.data != nullptr || to.dv.data != nullptr))
      launch(ctx, gradients_of_keys<T>, grid(keys, std::max(x.k.head_dim, x.v.head_dim)), threads, x, y, to.dk, to.dv);
    if (!to.dsinks.empty())
      launch(ctx, gradients_of_sinks<T>, dim3(blocks(x.q.heads)), threads, x, y, to.dsinks.data());
  }

 private:
  static dim3 grid(std::size_t rows, std::size_t cols) {
    return dim3(blocks(rows), blocks(tigon::detail::ceil_div(cols, std::size_t{attention_threads})));
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_PLAIN_ATTENTION_HPP
