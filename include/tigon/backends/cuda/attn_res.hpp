// Attention over the blocks of a network on a GPU: a block of threads has a token, and keeps its rows of up to eight
// blocks of the network.
#ifndef TIGON_BACKENDS_CUDA_ATTN_RES_HPP
#define TIGON_BACKENDS_CUDA_ATTN_RES_HPP

#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/block_sums.hpp>
#include <tigon/backends/cuda/rows.hpp>
#include <tigon/ops/depth/attn_res_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// As many as the arguments of a kernel hold; of how many a thread keeps its columns; how many sums are made together.
inline constexpr unsigned most_blocks = 192, kept_blocks = 8, blocks_at_once = 4;
/// Matrices of one shape.
template <class T>
struct matrices {
  T* at[most_blocks];
  std::size_t row_stride;
  unsigned count;

  explicit matrices(const blocks_view<T>& v) : at(), row_stride(v.row_stride), count(static_cast<unsigned>(v.blocks)) {
    if (v.blocks > most_blocks)
      tigon::detail::fail(error_code::argument, "tigon: cuda: attn_res of " + std::to_string(v.blocks) +
                                                    " blocks; expected at most " + std::to_string(most_blocks));
    for (unsigned n = 0; n < count; ++n) at[n] = v[n].data;
  }
  TIGON_DEVICE_INLINE T* row(unsigned n, std::size_t i) const { return at[n] + i * row_stride; }
  template <int N>
  bool wide() const {
    bool all = true;
    for (unsigned n = 0; n < count; ++n) all = all && begins_accesses<N>(at[n], row_stride);
    return all;
  }
};

/// What both ways read.
template <class T, class W>
struct depth_call {
  matrices<const T> v;
  const W *w_query, *w_norm;
  unsigned cols;

  /// w_query w_norm of N columns.
  template <int N, class A>
  TIGON_DEVICE_INLINE void query(A (&u)[N], unsigned j) const {
    elements<N, W> q, g;
    q.load(w_query + j), g.load(w_norm + j);
#pragma unroll
    for (int k = 0; k < N; ++k) u[k] = q.template get<A>(k) * g.template get<A>(k);
  }
};
/// Memory of a block for a token.
template <class A>
struct depth_memory {
  sums_of_block<2 * blocks_at_once> sums;
  sums_of_block<2> exact;
  sums_of_block<blocks_at_once> keys;
  double score[most_blocks];
  A scale[blocks_at_once], weight[most_blocks];
};

/// A token's rows: those of up to eight blocks are kept where they fit.
template <int N, bool Kept, class T, class W>
struct token_rows {
  using A = accumulator_t<T>;
  using V = simd::vec<simd::cuda, A>;
  using part = std::conditional_t<Kept, A, double>;  // of sums
  static constexpr unsigned together = blocks_at_once;
  const depth_call<T, W>& call;
  std::size_t i;
  elements<N, T> kept[Kept ? kept_blocks : 1];

  TIGON_DEVICE_INLINE void load() {
    if constexpr (Kept) {
      const unsigned j = threadIdx.x * N;
      if (j < call.cols)
#pragma unroll
        for (unsigned k = 0; k < kept_blocks; ++k)
          if (k < call.v.count) kept[k].load(call.v.row(k, i) + j);
    }
  }
  /// f(j) for the first of every N columns of this thread.
  template <class F>
  TIGON_DEVICE_INLINE void each(F f) const {
    if constexpr (Kept) {
      if (threadIdx.x * N < call.cols) f(threadIdx.x * N);
    } else {
      for (unsigned j = threadIdx.x * N; j < call.cols; j += blockDim.x * N) f(j);
    }
  }
  /// f(k, elements) of blocks first + k, k < Count, at column j. Of kept ones `first` is known when loops are unrolled.
  template <unsigned Count, class F>
  TIGON_DEVICE_INLINE void blocks(unsigned first, unsigned j, F f) const {
#pragma unroll
    for (unsigned k = 0; k < Count; ++k) {
      if (first + k >= call.v.count) break;
      if constexpr (Kept) {
        f(k, kept[first + k]);
      } else {
        elements<N, T> e;
        e.load(call.v.row(first + k, i) + j);
        f(k, e);
      }
    }
  }
  /// f(first) for every four blocks.
  template <class F>
  TIGON_DEVICE_INLINE void each_four(F f) const {
#pragma unroll(Kept ? 2 : 1)
    for (unsigned first = 0; first < (Kept ? kept_blocks : call.v.count); first += together)
      if (first < call.v.count) f(first);
  }
  /// Sums over the row of products of blocks first, ... with themselves, or with `with`, and of those with the query.
  template <class With>
  TIGON_DEVICE_INLINE void multiply(unsigned first, sums_of_block<2 * together>& to, With with) const {
    part s[2 * together] = {};
    each([&](unsigned j) {
      A u[N];
      call.query(u, j);
      const auto other = with(j);
      blocks<together>(first, j, [&](unsigned k, const auto& e) {
        A product(0), with_u(0);
#pragma unroll
        for (int n = 0; n < N; ++n) {
          const A x = e.template get<A>(n);
          product += x * other(n, x), with_u += x * u[n];
        }
        s[k] += static_cast<part>(product), s[together + k] += static_cast<part>(with_u);
      });
    });
    to.add(s);
  }
  /// The same of one block in f64, of p v, with itself and with the query.
  TIGON_DEVICE_INLINE void multiply_in_f64(unsigned n, double p, sums_of_block<2>& to) const {
    const auto wide = [](auto x) { return static_cast<double>(static_cast<A>(x)); };
    double s[2] = {0, 0};
    const T* const x = call.v.row(n, i);
    for (unsigned j = threadIdx.x; j < call.cols; j += blockDim.x) {
      const double scaled = wide(x[j]) * p;
      s[0] += scaled * scaled, s[1] += scaled * (wide(call.w_query[j]) * wide(call.w_norm[j]));
    }
    to.add(s);
  }
  /// rstd and scores of blocks first, ...
  TIGON_DEVICE_INLINE void score(unsigned first, depth_memory<A>& m, A* rstd, double eps) const {
    const double width = static_cast<double>(call.cols);
    for (unsigned k = 0; k < together && first + k < call.v.count; ++k) {
      double square = m.sums.total[k] / width + eps, product = m.sums.total[together + k];
      const double p = tigon::detail::scale_for_squares<A>(square);
      if (call.cols <= kernel<op::attn_res, backends::generic>::narrow || p != 1) {
        multiply_in_f64(first + k, p, m.exact);
        square = m.exact.total[0] / width + eps * p * p, product = m.exact.total[1];
      }
      if (threadIdx.x != k) continue;
      const double r =
          square <= std::numeric_limits<double>::max() ? math::rsqrt(square) : std::numeric_limits<double>::quiet_NaN();
      rstd[first + k] = m.scale[k] = static_cast<A>(r * p);
      m.score[first + k] = product * r;
    }
  }
  /// Scores of keys that are rounded to the type of the weights.
  TIGON_DEVICE_INLINE void score_rounded(unsigned first, depth_memory<A>& m) const {
    __syncthreads();  // scales are there
    part s[together] = {};
    each([&](unsigned j) {
      elements<N, W> q, g;
      q.load(call.w_query + j), g.load(call.w_norm + j);
      blocks<together>(first, j, [&](unsigned k, const auto& e) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
          const V key = round_to<W>(round_to<W>(V(e.template get<A>(n)) * V(m.scale[k])) * V(g.template get<A>(n)));
          s[k] += static_cast<part>((key * V(q.template get<A>(n))).r);
        }
      });
    });
    m.keys.add(s);
    if (threadIdx.x < together && first + threadIdx.x < call.v.count)
      m.score[first + threadIdx.x] = m.keys.total[threadIdx.x];
  }
};

template <class A>
struct depth_options {
  double eps;
  bool round_key;
};

template <int N, bool Kept, class T, class W>
__global__ void __launch_bounds__(512, Kept ? 2 : 1)
    mix_blocks(const __grid_constant__ depth_call<T, W> call, matrix_view<T> y, accumulator_t<T>* alpha,
               accumulator_t<T>* rstd, depth_options<accumulator_t<T>> opt) {
  using A = accumulator_t<T>;
  using V = simd::vec<simd::cuda, A>;
  __shared__ depth_memory<A> m;
  const std::size_t i = blockIdx.x;
  const unsigned count = call.v.count;
  token_rows<N, Kept, T, W> rows{call, i, {}};
  rows.load();
  rows.each_four([&](unsigned first) {
    rows.multiply(first, m.sums, [](unsigned) { return [](int, A x) { return x; }; });
    rows.score(first, m, rstd + i * count, opt.eps);
    if (opt.round_key) rows.score_rounded(first, m);
  });
  __syncthreads();
  double top = -std::numeric_limits<double>::infinity();
  for (unsigned n = 0; n < count; ++n) top = math::max(top, m.score[n]);
  const auto weight_of = [&](unsigned n) { return math::exp_nonpositive(static_cast<A>(m.score[n] - top)); };
  A sum(0);
  for (unsigned n = 0; n < count; ++n) sum += weight_of(n);
  for (unsigned n = threadIdx.x; n < count; n += blockDim.x)
    alpha[i * count + n] = m.weight[n] = weight_of(n) * (A(1) / sum);
  __syncthreads();
  rows.each([&](unsigned j) {
    A mean[N];
#pragma unroll
    for (int n = 0; n < N; ++n) mean[n] = A(0);
    for (unsigned first = 0; first < (Kept ? 1 : count); first += kept_blocks)
      rows.template blocks<kept_blocks>(first, j, [&](unsigned k, const auto& e) {
        const A w = m.weight[first + k];
#pragma unroll
        for (int n = 0; n < N; ++n) mean[n] = fma(V(e.template get<A>(n)), V(w), V(mean[n])).r;
      });
    elements<N, T> to;
    to.set_all(mean);
    to.store(y.data + i * y.row_stride + j);
  });
}

/// Of a token in backward: sums of dy v and of u v, block by block, and what dv and p are made of.
template <class A>
struct depth_gradient_memory {
  sums_of_block<2 * blocks_at_once> sums;
  A of_dy[most_blocks], of_u[most_blocks];
  A by_dy[most_blocks], by_u[most_blocks], by_x[most_blocks];

  /// Relative to the da of the block with most weight, as on a CPU.
  TIGON_DEVICE_INLINE void finish(const A* alpha, const A* rstd, unsigned count, A per_col) {
    __syncthreads();
    if (threadIdx.x < warp) {
      unsigned most = 0;
      for (unsigned n = 1; n < count; ++n) most = alpha[n] > alpha[most] ? n : most;
      const A base = of_dy[most];
      A mean(0);
      for (unsigned n = 0; n < count; ++n) mean += alpha[n] * (of_dy[n] - base);
      for (unsigned n = threadIdx.x; n < count; n += warp) {
        const A ds = alpha[n] * (of_dy[n] - base - mean) * rstd[n];
        by_dy[n] = alpha[n], by_u[n] = ds, by_x[n] = ds * (rstd[n] * of_u[n]) * rstd[n] * per_col;
      }
    }
    __syncthreads();
  }
};

/// The tokens of a task; and with partials its sums of p, which the gradients of the weights are made of.
template <int N, bool Kept, class T, class W>
__global__ void __launch_bounds__(672)  // 96 registers
    mix_gradients(const __grid_constant__ depth_call<T, W> call, matrix_view<const T> dy,
                  const __grid_constant__ matrices<T> dv, const accumulator_t<T>* alpha, const accumulator_t<T>* rstd,
                  std::size_t per_task, accumulator_t<T>* partials, std::size_t stride) {
  using A = accumulator_t<T>;
  using V = simd::vec<simd::cuda, A>;
  __shared__ depth_gradient_memory<A> m;
  const std::size_t begin = blockIdx.x * per_task, end = dy.rows < begin + per_task ? dy.rows : begin + per_task;
  const unsigned count = call.v.count;
  A* const own = partials == nullptr ? nullptr : partials + blockIdx.x * stride;
  A p[Kept ? N : 1];
#pragma unroll
  for (int n = 0; n < (Kept ? N : 1); ++n) p[n] = A(0);
  if (!Kept && own != nullptr)
    for (unsigned j = threadIdx.x; j < call.cols; j += blockDim.x) own[j] = A(0);
  __syncthreads();
  token_rows<N, Kept, T, W> rows{call, begin, {}};
  const auto dy_at = [&](unsigned j) {
    elements<N, T> d;
    d.load(dy.data + rows.i * dy.row_stride + j);
    return [d](int n, A) { return d.template get<A>(n); };
  };
  for (; rows.i < end; ++rows.i) {
    const std::size_t i = rows.i;
    rows.load();
    rows.each_four([&](unsigned first) {
      rows.multiply(first, m.sums, dy_at);
      if (threadIdx.x >= blocks_at_once || first + threadIdx.x >= count) return;
      m.of_dy[first + threadIdx.x] = static_cast<A>(m.sums.total[threadIdx.x]);
      m.of_u[first + threadIdx.x] = static_cast<A>(m.sums.total[blocks_at_once + threadIdx.x]);
    });
    m.finish(alpha + i * count, rstd + i * count, count, A(1) / static_cast<A>(call.cols));
    rows.each([&](unsigned j) {
      A u[N], sum[N];
      call.query(u, j);
      const auto d = dy_at(j);
#pragma unroll
      for (int n = 0; n < N; ++n)
        sum[n] = Kept ? p[Kept ? n : 0] : own != nullptr ? own[j + static_cast<unsigned>(n)] : A(0);
      for (unsigned first = 0; first < (Kept ? 1 : count); first += kept_blocks)
        rows.template blocks<kept_blocks>(first, j, [&](unsigned k, const auto& e) {
          const A by_dy = m.by_dy[first + k], by_u = m.by_u[first + k], by_x = m.by_x[first + k];
          A result[N];
#pragma unroll
          for (int n = 0; n < N; ++n) {
            const V x(e.template get<A>(n));
            result[n] = fma(V(d(n, A(0))), V(by_dy), fnma(x, V(by_x), V(u[n] * by_u))).r;
            sum[n] = fma(x, V(by_u), V(sum[n])).r;
          }
          elements<N, T> to;
          to.set_all(result);
          to.store(dv.row(first + k, i) + j);
        });
#pragma unroll
      for (int n = 0; n < N; ++n) {
        if constexpr (Kept)
          p[n] = sum[n];
        else if (own != nullptr)
          own[j + static_cast<unsigned>(n)] = sum[n];
      }
    });
  }
  if constexpr (Kept)
    if (own != nullptr)
      rows.each([&](unsigned j) {
#pragma unroll
        for (int n = 0; n < N; ++n) own[j + static_cast<unsigned>(n)] = p[n];
      });
}

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::attn_res, backends::cuda> : kernel<op::attn_res, backends::generic> {
  template <backend B, element T, element W>
  static void forward(in_blocks<T> v, in_vector<W> w_query, in_vector<W> w_norm, matrix_view<T> y,
                      std::span<accumulator_t<T>> alpha, std::span<accumulator_t<T>> rstd, attn_res_options opt,
                      context& ctx) {
    using A = accumulator_t<T>;
    if (y.rows == 0 || y.cols == 0) return;
    const gpu::depth_call<T, W> call{gpu::matrices<const T>(v), w_query.data, w_norm.data, gpu::columns(y.cols)};
    with_columns(y, call, call.v, [&]<int N, bool Kept>(unsigned threads) {
      gpu::launch(ctx, gpu::mix_blocks<N, Kept, T, W>, gpu::blocks(y.rows), threads, call, y, alpha.data(), rstd.data(),
                  gpu::depth_options<A>{opt.eps, opt.round_key});
    });
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_blocks<T> v, in_vector<W> w_query, in_vector<W> w_norm,
                       attn_res_saved<std::span<const accumulator_t<T>>> of_forward,
                       attn_res_gradients<T, vector_view<W>, vector_view<W>> gradients, attn_res_options opt,
                       context& ctx) {
    using A = accumulator_t<T>;
    const bool sums = gradients.dw_query || gradients.dw_norm;
    const gpu::depth_call<T, W> call{gpu::matrices<const T>(v), w_query.data, w_norm.data, gpu::columns(dy.cols)};
    const gpu::matrices<T> to(gradients.dv);
    const std::size_t stride = workspace::padded<A>(dy.cols);
    workspace::frame frame(ctx.workspace());
    const vector_view<A> p{sums ? frame.template take<A>(dy.cols) : nullptr, sums ? dy.cols : 0};
    std::size_t tasks = 0;
    A* const partials = sums ? frame.template take<A>(gpu::most_tasks(dy.rows) * stride) : nullptr;
    if (dy.cols == 0) return;
    with_columns(dy, call, to, [&]<int N, bool Kept>(unsigned threads) {
      const std::size_t per_task = gpu::rows_of_task(dy.rows, 1, std::max(1024 / threads, 1u));
      tasks = detail::ceil_div(dy.rows, per_task);
      if (tasks != 0)
        gpu::launch(ctx, gpu::mix_gradients<N, Kept, T, W>, gpu::blocks(tasks), threads, call, matrix_view<const T>(dy),
                    to, of_forward.alpha.data(), of_forward.rstd.data(), per_task, partials, stride);
    });
    if (!sums) return;
    gpu::launch_add_tasks<A>(ctx, partials, tasks, stride, 0, {1, dy.cols},
                             gpu::sums_of_tasks<A, 1>{{p.data}, {0}, {false}});
    weight_gradients<B, A>(p, w_query, w_norm, gradients.dw_query, gradients.dw_norm, opt, ctx);
  }

 private:
  /// run<columns of an access, whether a thread keeps its columns of all blocks>(threads)
  template <class M, class T, class W, class Out, class Run>
  static void with_columns(const M& like, const gpu::depth_call<T, W>& call, const Out& out, Run run) {
    constexpr int N = static_cast<int>(gpu::access_bytes / sizeof(T));
    constexpr std::size_t most = 512;
    const bool wide = call.cols % N == 0 && gpu::begins_accesses<N>(like.data, like.row_stride) &&
                      gpu::begins_accesses<N>(call.w_query, 0) && gpu::begins_accesses<N>(call.w_norm, 0) &&
                      call.v.template wide<N>() && out.template wide<N>();
    const auto threads = [&](std::size_t n) {
      const std::size_t wanted = detail::round_up(detail::ceil_div(std::size_t{call.cols}, n), std::size_t{gpu::warp});
      return static_cast<unsigned>(std::min(wanted, most));
    };
    if (!wide)
      run.template operator()<1, false>(threads(1));
    else if (call.v.count <= gpu::kept_blocks && call.cols <= most * N)
      run.template operator()<N, true>(threads(N));
    else
      run.template operator()<N, false>(threads(N));
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_ATTN_RES_HPP
