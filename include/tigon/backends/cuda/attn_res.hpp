// Attention over the blocks of a network on a GPU: a block of threads has a token, and keeps its rows of up to eight blocks
// of the network.
#ifndef TIGON_BACKENDS_CUDA_ATTN_RES_HPP
#define TIGON_BACKENDS_CUDA_ATTN_RES_HPP

#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <tigon/ops/depth/attn_res_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// As many as the arguments of a kernel hold; how many a thread keeps its columns of; and of how many sums are made together.
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

/// K sums over a block, K a power of two: every step of a warp halves the numbers of a thread.
template <int K>
struct sums_of_block {
  double of_warp[K][warp];
  double total[K];

  /// All threads come here, with their parts in s, in f64 where those are, or from the sums of K lanes on. The totals are there
  /// when it returns, until all have come again.
  template <class A>
  TIGON_DEVICE_INLINE void add(A (&s)[K]) {
    const unsigned lane = threadIdx.x % warp;
    unsigned which = 0, by = warp / 2;
    halve<K / 2>(s, lane, by, which);
    double sum_of_warp = static_cast<double>(s[0]);
    for (; by != 0; by /= 2) sum_of_warp += __shfl_xor_sync(~0u, sum_of_warp, by);
    if (lane % (warp / K) == 0) of_warp[which][threadIdx.x / warp] = sum_of_warp;
    __syncthreads();
    if (threadIdx.x < K) {
      double sum = 0;
      for (unsigned k = 0; k < blockDim.x / warp; ++k) sum += of_warp[threadIdx.x][k];
      total[threadIdx.x] = sum;
    }
    __syncthreads();
  }

 private:
  /// Half of the lanes keep the first half of the numbers, the others the second.
  template <int Left, class A>
  static TIGON_DEVICE_INLINE void halve(A (&s)[K], unsigned lane, unsigned& by, unsigned& which) {
    if constexpr (Left != 0) {
      const bool up = (lane & by) != 0;
#pragma unroll
      for (int k = 0; k < Left; ++k) {
        const A sent = up ? s[k] : s[k + Left], own = up ? s[k + Left] : s[k];
        s[k] = own + __shfl_xor_sync(~0u, sent, by);
      }
      which += up ? static_cast<unsigned>(Left) : 0;
      by /= 2;
      halve<Left / 2>(s, lane, by, which);
    }
  }
};

/// A token's rows: those of up to eight blocks are kept where they fit.
template <int N, bool Kept, class T>
struct token_rows {
  using A = accumulator_t<T>;
  elements<N, T> kept[Kept ? kept_blocks : 1];

  template <class M>
  TIGON_DEVICE_INLINE void load(const matrices<M>& v, std::size_t i, unsigned cols) {
    if constexpr (Kept) {
      const unsigned j = threadIdx.x * N;
      if (j < cols)
#pragma unroll
        for (unsigned k = 0; k < kept_blocks; ++k)
          if (k < v.count) kept[k].load(v.row(k, i) + j);
    }
  }
  /// f(j) for the first of every N columns of this thread.
  template <class F>
  static TIGON_DEVICE_INLINE void each(unsigned cols, F f) {
    if constexpr (Kept) {
      if (threadIdx.x * N < cols) f(threadIdx.x * N);
    } else {
      for (unsigned j = threadIdx.x * N; j < cols; j += blockDim.x * N) f(j);
    }
  }
  /// f(k, elements) of blocks first + k, k < Count, at column j. Of kept ones `first` is known when loops are unrolled.
  template <unsigned Count, class M, class F>
  TIGON_DEVICE_INLINE void blocks(const matrices<M>& v, std::size_t i, unsigned first, unsigned j, F f) const {
#pragma unroll
    for (unsigned k = 0; k < Count; ++k) {
      if (first + k >= v.count) break;
      if constexpr (Kept) {
        f(k, kept[first + k]);
      } else {
        elements<N, T> e;
        e.load(v.row(first + k, i) + j);
        f(k, e);
      }
    }
  }
};
template <int N, class A, class W>
TIGON_DEVICE_INLINE void load_query(A (&u)[N], const W* w_query, const W* w_norm, unsigned j) {
  elements<N, W> q, g;
  q.load(w_query + j), g.load(w_norm + j);
#pragma unroll
  for (int k = 0; k < N; ++k) u[k] = q.template get<A>(k) * g.template get<A>(k);
}

template <class A>
struct depth_options {
  double eps;
  bool round_key;
};

template <int N, bool Kept, class T, class W>
__global__ void __launch_bounds__(512, Kept ? 2 : 1)
    mix_blocks(const __grid_constant__ matrices<const T> v, const W* w_query, const W* w_norm, matrix_view<T> y,
               accumulator_t<T>* alpha, accumulator_t<T>* rstd, depth_options<accumulator_t<T>> opt) {
  using A = accumulator_t<T>;
  using V = simd::vec<simd::cuda, A>;
  using part = std::conditional_t<Kept, A, double>;
  constexpr unsigned together = blocks_at_once;
  __shared__ sums_of_block<2 * together> sums;
  __shared__ sums_of_block<2> exact;
  __shared__ sums_of_block<together> keys;
  __shared__ double score[most_blocks];
  [[maybe_unused]] __shared__ A scale[together], weight[most_blocks];  // lambdas use them
  const std::size_t i = blockIdx.x;
  const unsigned cols = static_cast<unsigned>(y.cols), count = v.count;
  const double width = static_cast<double>(cols);
  token_rows<N, Kept, T> rows;
  rows.load(v, i, cols);
#pragma unroll(Kept ? 2 : 1)
  for (unsigned first = 0; first < (Kept ? kept_blocks : count); first += together) {
    if (first >= count) break;
    const unsigned here = count - first < together ? count - first : together;
    part s[2 * together] = {};
    rows.each(cols, [&](unsigned j) {
      A u[N];
      load_query(u, w_query, w_norm, j);
      rows.template blocks<together>(v, i, first, j, [&](unsigned k, const auto& e) {
        A square(0), product(0);
#pragma unroll
        for (int n = 0; n < N; ++n) {
          const A x = e.template get<A>(n);
          square += x * x, product += x * u[n];
        }
        s[k] += static_cast<part>(square), s[together + k] += static_cast<part>(product);
      });
    });
    sums.add(s);
    for (unsigned k = 0; k < here; ++k) {
      double square = sums.total[k] / width + opt.eps, product = sums.total[together + k];
      const double p = tigon::detail::scale_for_squares<A>(square);
      if (cols <= kernel<op::attn_res, backends::generic>::narrow || p != 1) {  // all of it in f64, of p v
        double e[2] = {0, 0};
        const T* const x = v.row(first + k, i);
        for (unsigned j = threadIdx.x; j < cols; j += blockDim.x) {
          const double scaled = static_cast<double>(static_cast<A>(x[j])) * p;
          e[0] += scaled * scaled;
          e[1] += scaled *
                  (static_cast<double>(static_cast<A>(w_query[j])) * static_cast<double>(static_cast<A>(w_norm[j])));
        }
        exact.add(e);
        square = exact.total[0] / width + opt.eps * p * p, product = exact.total[1];
      }
      if (threadIdx.x != k) continue;
      const double r =
          square <= std::numeric_limits<double>::max() ? math::rsqrt(square) : std::numeric_limits<double>::quiet_NaN();
      scale[k] = static_cast<A>(r * p);
      rstd[i * count + first + k] = scale[k];
      score[first + k] = product * r;
    }
    if (opt.round_key) {
      __syncthreads();
      part s8[together] = {};
      rows.each(cols, [&](unsigned j) {
        elements<N, W> q, g;
        q.load(w_query + j), g.load(w_norm + j);
        rows.template blocks<together>(v, i, first, j, [&](unsigned k, const auto& e) {
#pragma unroll
          for (int n = 0; n < N; ++n) {
            const V key = round_to<W>(round_to<W>(V(e.template get<A>(n)) * V(scale[k])) * V(g.template get<A>(n)));
            s8[k] += static_cast<part>((key * V(q.template get<A>(n))).r);
          }
        });
      });
      keys.add(s8);
      if (threadIdx.x < here) score[first + threadIdx.x] = keys.total[threadIdx.x];
    }
  }
  __syncthreads();
  double top = -std::numeric_limits<double>::infinity();
  for (unsigned n = 0; n < count; ++n) top = math::max(top, score[n]);
  A sum(0);
  for (unsigned n = 0; n < count; ++n) sum += math::exp_nonpositive(static_cast<A>(score[n] - top));
  for (unsigned n = threadIdx.x; n < count; n += blockDim.x)
    alpha[i * count + n] = weight[n] = math::exp_nonpositive(static_cast<A>(score[n] - top)) * (A(1) / sum);
  __syncthreads();
  rows.each(cols, [&](unsigned j) {
    A mean[N];
#pragma unroll
    for (int n = 0; n < N; ++n) mean[n] = A(0);
    for (unsigned first = 0; first < (Kept ? 1 : count); first += kept_blocks)
      rows.template blocks<kept_blocks>(v, i, first, j, [&](unsigned k, const auto& e) {
        const A w = weight[first + k];
#pragma unroll
        for (int n = 0; n < N; ++n) mean[n] = fma(V(e.template get<A>(n)), V(w), V(mean[n])).r;
      });
    elements<N, T> to;
    to.set_all(mean);
    to.store(y.data + i * y.row_stride + j);
  });
}

/// The tokens of a task; and with partials its sums of p, which the gradients of the weights are made of.
template <int N, bool Kept, class T, class W>
__global__ void __launch_bounds__(672)  // 96 registers
    mix_gradients(matrix_view<const T> dy, const __grid_constant__ matrices<const T> v,
                  const __grid_constant__ matrices<T> dv, const W* w_query, const W* w_norm,
                  const accumulator_t<T>* alpha, const accumulator_t<T>* rstd, std::size_t per_task,
                  accumulator_t<T>* partials, std::size_t stride) {
  using A = accumulator_t<T>;
  using V = simd::vec<simd::cuda, A>;
  using part = std::conditional_t<Kept, A, double>;
  constexpr unsigned together = blocks_at_once;
  __shared__ sums_of_block<2 * together> sums;
  __shared__ A of_dy[most_blocks], of_u[most_blocks];
  [[maybe_unused]] __shared__ A by_u[most_blocks], by_x[most_blocks], by_dy[most_blocks];  // lambdas use them
  const std::size_t begin = blockIdx.x * per_task, end = dy.rows < begin + per_task ? dy.rows : begin + per_task;
  const unsigned cols = static_cast<unsigned>(dy.cols), count = v.count;
  A* const own = partials == nullptr ? nullptr : partials + blockIdx.x * stride;
  const A per_col = A(1) / static_cast<A>(cols);
  A p[Kept ? N : 1];
#pragma unroll
  for (int n = 0; n < (Kept ? N : 1); ++n) p[n] = A(0);
  if (!Kept && own != nullptr)
    for (unsigned j = threadIdx.x; j < cols; j += blockDim.x) own[j] = A(0);
  token_rows<N, Kept, T> rows;
  for (std::size_t i = begin; i < end; ++i) {
    rows.load(v, i, cols);
#pragma unroll(Kept ? 2 : 1)
    for (unsigned first = 0; first < (Kept ? kept_blocks : count); first += together) {
      if (first >= count) break;
      part s[2 * together] = {};
      rows.each(cols, [&](unsigned j) {
        A u[N];
        load_query(u, w_query, w_norm, j);
        elements<N, T> d;
        d.load(dy.data + i * dy.row_stride + j);
        rows.template blocks<together>(v, i, first, j, [&](unsigned k, const auto& e) {
          A with_dy(0), with_u(0);
#pragma unroll
          for (int n = 0; n < N; ++n) {
            const A x = e.template get<A>(n);
            with_dy += x * d.template get<A>(n), with_u += x * u[n];
          }
          s[k] += static_cast<part>(with_dy), s[together + k] += static_cast<part>(with_u);
        });
      });
      sums.add(s);
      if (threadIdx.x < together && first + threadIdx.x < count) {
        of_dy[first + threadIdx.x] = static_cast<A>(sums.total[threadIdx.x]);
        of_u[first + threadIdx.x] = static_cast<A>(sums.total[together + threadIdx.x]);
      }
    }
    __syncthreads();
    if (threadIdx.x < warp) {
      const A *const as = alpha + i * count, *const rs = rstd + i * count;
      unsigned most = 0;
      for (unsigned n = 1; n < count; ++n) most = as[n] > as[most] ? n : most;
      const A base = of_dy[most];
      A mean(0);
      for (unsigned n = 0; n < count; ++n) mean += as[n] * (of_dy[n] - base);
      for (unsigned n = threadIdx.x; n < count; n += warp) {
        const A ds = as[n] * (of_dy[n] - base - mean) * rs[n];
        by_dy[n] = as[n], by_u[n] = ds, by_x[n] = ds * (rs[n] * of_u[n]) * rs[n] * per_col;
      }
    }
    __syncthreads();
    rows.each(cols, [&](unsigned j) {
      A u[N], add_to[N];
      load_query(u, w_query, w_norm, j);
      elements<N, T> d;
      d.load(dy.data + i * dy.row_stride + j);
#pragma unroll
      for (int n = 0; n < N; ++n)
        add_to[n] = Kept ? p[Kept ? n : 0] : own != nullptr ? own[j + static_cast<unsigned>(n)] : A(0);
      for (unsigned first = 0; first < (Kept ? 1 : count); first += kept_blocks)
        rows.template blocks<kept_blocks>(v, i, first, j, [&](unsigned k, const auto& e) {
          const A a = by_dy[first + k], of_query = by_u[first + k], shrink = by_x[first + k];
          A result[N];
#pragma unroll
          for (int n = 0; n < N; ++n) {
            const V x(e.template get<A>(n));
            result[n] = fma(V(d.template get<A>(n)), V(a), fnma(x, V(shrink), V(u[n] * of_query))).r;
            add_to[n] = fma(x, V(of_query), V(add_to[n])).r;
          }
          elements<N, T> to;
          to.set_all(result);
          to.store(dv.row(first + k, i) + j);
        });
#pragma unroll
      for (int n = 0; n < N; ++n) {
        if constexpr (Kept)
          p[n] = add_to[n];
        else if (own != nullptr)
          own[j + static_cast<unsigned>(n)] = add_to[n];
      }
    });
  }
  if constexpr (Kept)
    if (own != nullptr)
      rows.each(cols, [&](unsigned j) {
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
    const gpu::matrices<const T> blocks(v);
    (void)gpu::columns(y.cols);
    with_columns<T, W>(y, w_query, w_norm, blocks, blocks, 512, [&]<int N, bool Kept>(unsigned threads) {
      gpu::launch(ctx, gpu::mix_blocks<N, Kept, T, W>, gpu::blocks(y.rows), threads, blocks, w_query.data, w_norm.data,
                  y, alpha.data(), rstd.data(), gpu::depth_options<A>{opt.eps, opt.round_key});
    });
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_blocks<T> v, in_vector<W> w_query, in_vector<W> w_norm,
                       attn_res_saved<std::span<const accumulator_t<T>>> of_forward,
                       attn_res_gradients<T, vector_view<W>, vector_view<W>> gradients, attn_res_options opt,
                       context& ctx) {
    using A = accumulator_t<T>;
    const bool sums = gradients.dw_query || gradients.dw_norm;
    const gpu::matrices<const T> blocks(v);
    const gpu::matrices<T> to(gradients.dv);
    const std::size_t stride = workspace::padded<A>(dy.cols);
    workspace::frame frame(ctx.workspace());
    const vector_view<A> p{sums ? frame.template take<A>(dy.cols) : nullptr, sums ? dy.cols : 0};
    std::size_t tasks = 0;
    A* const partials = sums ? frame.template take<A>(gpu::most_tasks(dy.rows) * stride) : nullptr;
    if (dy.cols == 0) return;
    (void)gpu::columns(dy.cols);
    with_columns<T, W>(dy, w_query, w_norm, blocks, to, 512, [&]<int N, bool Kept>(unsigned threads) {
      const std::size_t per_task = gpu::rows_of_task(dy.rows, 1, std::max(1024 / threads, 1u));
      tasks = detail::ceil_div(dy.rows, per_task);
      if (tasks != 0)
        gpu::launch(ctx, gpu::mix_gradients<N, Kept, T, W>, gpu::blocks(tasks), threads, matrix_view<const T>(dy),
                    blocks, to, w_query.data, w_norm.data, of_forward.alpha.data(), of_forward.rstd.data(), per_task,
                    partials, stride);
    });
    if (!sums) return;
    gpu::launch(ctx, gpu::add_tasks<A, A>, gpu::blocks(detail::ceil_div(dy.cols, gpu::columns_of_block)), 256,
                static_cast<const A*>(partials), tasks, stride, gpu::columns(dy.cols), p.data, std::size_t{0}, false);
    weight_gradients<B, A>(p, w_query, w_norm, gradients.dw_query, gradients.dw_norm, opt, ctx);
  }

 private:
  /// run<columns of an access, whether a thread keeps its columns of all blocks>(threads)
  template <class T, class W, class M, class In, class Out, class Run>
  static void with_columns(const M& like, in_vector<W> w_query, in_vector<W> w_norm, const In& in, const Out& out,
                           unsigned most, Run run) {
    constexpr int N = static_cast<int>(gpu::access_bytes / sizeof(T));
    const bool wide = like.cols % N == 0 && gpu::begins_accesses<N>(like.data, like.row_stride) &&
                      gpu::begins_accesses<N>(w_query.data, 0) && gpu::begins_accesses<N>(w_norm.data, 0) &&
                      in.template wide<N>() && out.template wide<N>();
    const auto threads = [&](int n) {
      const std::size_t wanted = detail::round_up(detail::ceil_div(like.cols, n), std::size_t{gpu::warp});
      return static_cast<unsigned>(std::min<std::size_t>(wanted, most));
    };
    if (!wide)
      run.template operator()<1, false>(threads(1));
    else if (in.count <= gpu::kept_blocks && like.cols <= std::size_t{most} * N)
      run.template operator()<N, true>(threads(N));
    else
      run.template operator()<N, false>(threads(N));
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_ATTN_RES_HPP
