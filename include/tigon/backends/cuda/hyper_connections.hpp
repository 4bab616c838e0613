// Hyper-connections on a GPU: weighted sums of the streams of a token, and products of streams summed over their
// channels.
#ifndef TIGON_BACKENDS_CUDA_HYPER_CONNECTIONS_HPP
#define TIGON_BACKENDS_CUDA_HYPER_CONNECTIONS_HPP

#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/block_sums.hpp>
#include <tigon/backends/cuda/rows.hpp>
#include <tigon/ops/depth/mhc_post_res_kernel.hpp>
#include <tigon/ops/depth/mhc_pre_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// Streams of a token beside one another in a row of a matrix, and perhaps one more, of a matrix of its own.
template <class T>
struct streams {
  matrix_view<T> all, more;
  unsigned count, channels;

  TIGON_DEVICE_INLINE unsigned size() const { return count + (more.data != nullptr ? 1u : 0u); }
  TIGON_DEVICE_INLINE T* at(std::size_t token, unsigned k, unsigned j) const {
    return k < count ? all.data + token * all.row_stride + std::size_t{k} * channels + j
                     : more.data + token * more.row_stride + j;
  }
  template <int N>
  bool wide() const {
    return channels % N == 0 && begins_accesses<N>(all.data, all.row_stride) &&
           begins_accesses<N>(more.data, more.row_stride);
  }
};
/// What stream i adds to stream o: of_all[o by_out + i by_in], of_more[o] from the source that is one more, and
/// to_more[i] to the output that is one more; a row for every token.
template <class A>
struct stream_weights {
  matrix_view<const A> of_all;
  unsigned by_out, by_in;
  matrix_view<const A> of_more, to_more;

  TIGON_DEVICE_INLINE A at(std::size_t token, unsigned o, unsigned i, unsigned outputs, unsigned sources) const {
    if (i == sources) return of_more.data[token * of_more.row_stride + o];
    if (o == outputs) return to_more.data[token * to_more.row_stride + i];
    return of_all.data[token * of_all.row_stride + o * by_out + i * by_in];
  }
};

inline constexpr unsigned threads_of_streams = 128, sources_at_once = 5;

/// out_o = sum_i weight(o, i) in_i, or added to it. A thread has N channels of a token, of all streams, which it keeps
/// where they are few.
template <int N, bool Kept, class T>
__global__ void __launch_bounds__(threads_of_streams)
    sum_streams(const __grid_constant__ streams<const T> in, const __grid_constant__ streams<T> out,
                const __grid_constant__ stream_weights<accumulator_t<T>> w, std::size_t tokens, bool add) {
  using A = accumulator_t<T>;
  using V = simd::vec<simd::cuda, A>;
  const unsigned vectors = in.channels / N, sources = in.size(), outputs = out.size();
  const std::size_t at = blockIdx.x * std::size_t{threads_of_streams} + threadIdx.x, token = at / vectors;
  if (token >= tokens) return;
  const unsigned j = static_cast<unsigned>(at - token * vectors) * N;
  elements<N, T> kept[Kept ? sources_at_once : 1];
#pragma unroll
  for (unsigned k = 0; k < (Kept ? sources_at_once : 0); ++k)
    if (k < sources) kept[k].load(in.at(token, k, j));
  for (unsigned o = 0; o < outputs; ++o) {
    T* const to = out.at(token, o, j);
    elements<N, T> e;
    A sum[N];
    if (add) e.load(to);
#pragma unroll
    for (int n = 0; n < N; ++n) sum[n] = add ? e.template get<A>(n) : A(0);
#pragma unroll
    for (unsigned k = 0; k < (Kept ? sources_at_once : sources); ++k) {
      if (k >= sources) break;
      if constexpr (!Kept) kept[0].load(in.at(token, k, j));
      const V weight(w.at(token, o, k, out.count, in.count));
#pragma unroll
      for (int n = 0; n < N; ++n) sum[n] = fma(V(kept[Kept ? k : 0].template get<A>(n)), weight, V(sum[n])).r;
    }
    e.set_all(sum);
    e.store(to);
  }
}

/// to[a by_left + b] = the sum over the channels of left_a right_b; that with the right stream that is one more to
/// of_more[a].
template <class A>
struct stream_products {
  matrix_view<A> to;
  unsigned by_left;
  matrix_view<A> of_more;
};
/// Products of up to L left and R right streams at a time; a block for each token.
template <int N, int L, int R, class T>
__global__ void __launch_bounds__(256)
    multiply_streams(const __grid_constant__ streams<const T> left, const __grid_constant__ streams<const T> right,
                     const __grid_constant__ stream_products<accumulator_t<T>> p) {
  using A = accumulator_t<T>;
  constexpr int K = static_cast<int>(std::bit_ceil(static_cast<unsigned>(L * R)));
  __shared__ sums_of_block<K> sums;
  const std::size_t token = blockIdx.x;
  const unsigned lefts = left.count, rights = right.size();
  for (unsigned a = 0; a < lefts; a += L)
    for (unsigned b = 0; b < rights; b += R) {
      double s[K] = {};
      for (unsigned j = threadIdx.x * N; j < left.channels; j += blockDim.x * N) {
        elements<N, T> x[R];
#pragma unroll
        for (unsigned k = 0; k < R; ++k)
          if (b + k < rights) x[k].load(right.at(token, b + k, j));
#pragma unroll
        for (unsigned h = 0; h < L; ++h) {
          if (a + h >= lefts) break;
          elements<N, T> g;
          g.load(left.at(token, a + h, j));
#pragma unroll
          for (unsigned k = 0; k < R; ++k) {
            if (b + k >= rights) break;
            A sum(0);
#pragma unroll
            for (int n = 0; n < N; ++n) sum += g.template get<A>(n) * x[k].template get<A>(n);
            s[h * R + k] += static_cast<double>(sum);
          }
        }
      }
      sums.add(s);
      const unsigned h = threadIdx.x / R, k = threadIdx.x - h * R;
      if (h >= L || a + h >= lefts || b + k >= rights) continue;
      const A total = static_cast<A>(sums.total[threadIdx.x]);
      if (b + k == right.count) {
        if (p.of_more.data != nullptr) p.of_more.data[token * p.of_more.row_stride + a + h] = total;
      } else if (p.to.data != nullptr) {
        p.to.data[token * p.to.row_stride + (a + h) * p.by_left + b + k] = total;
      }
    }
}

template <class T>
void sum_streams_of_tokens(context& ctx, const streams<const T>& in, const streams<T>& out,
                           const stream_weights<accumulator_t<T>>& w, std::size_t tokens, bool add) {
  const unsigned sources = in.count + (in.more.data != nullptr ? 1u : 0u);
  const auto run = [&](auto n) {
    const std::size_t threads = workspace::product(tokens, in.channels / n.value);
    const unsigned grid = blocks(tigon::detail::ceil_div(threads, threads_of_streams));
    if (grid == 0) return;
    if (sources <= sources_at_once)
      launch(ctx, sum_streams<n.value, true, T>, grid, threads_of_streams, in, out, w, tokens, add);
    else
      launch(ctx, sum_streams<n.value, false, T>, grid, threads_of_streams, in, out, w, tokens, add);
  };
  constexpr int N = static_cast<int>(access_bytes / sizeof(T));
  if (in.template wide<N>() && out.template wide<N>())
    run(std::integral_constant<int, N>());
  else
    run(std::integral_constant<int, 1>());
}
template <int L, int R, class T>
void multiply_streams_of_tokens(context& ctx, const streams<const T>& left, const streams<const T>& right,
                                const stream_products<accumulator_t<T>>& p, std::size_t tokens) {
  if (tokens == 0) return;
  const auto run = [&](auto n) {
    const std::size_t wanted =
        tigon::detail::round_up(tigon::detail::ceil_div(std::size_t{left.channels}, n.value), std::size_t{warp});
    launch(ctx, multiply_streams<n.value, L, R, T>, blocks(tokens),
           static_cast<unsigned>(std::min<std::size_t>(wanted, 256)), left, right, p);
  };
  constexpr int N = static_cast<int>(access_bytes / sizeof(T));
  if (left.template wide<N>() && right.template wide<N>())
    run(std::integral_constant<int, N>());
  else
    run(std::integral_constant<int, 1>());
}
template <class T>
streams<T> streams_of(matrix_view<T> all, std::size_t count, std::size_t channels, matrix_view<T> more = {}) {
  (void)columns(count * channels);
  return {all, more, static_cast<unsigned>(count), static_cast<unsigned>(channels)};
}

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::mhc_pre, backends::cuda> {
  template <class A>
  using saved = no_state;

  template <backend B, element T>
  static void forward(in_matrix<T> x, in_matrix<accumulator_t<T>> h_pre, matrix_view<T> y, context& ctx) {
    gpu::sum_streams_of_tokens<T>(ctx, gpu::streams_of<const T>(x, h_pre.cols, y.cols), gpu::streams_of(y, 1, y.cols),
                                  {h_pre, 0, 1, {}, {}}, y.rows, false);
  }
  template <backend B, element T>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_matrix<accumulator_t<T>> h_pre, mhc_pre_gradients<T> to,
                       mhc_pre_options opt, context& ctx) {
    const std::size_t n = h_pre.cols;
    const auto of_dy = gpu::streams_of<const T>(dy, 1, dy.cols);
    if (to.dh_pre.data != nullptr)
      gpu::multiply_streams_of_tokens<1, 4, T>(ctx, of_dy, gpu::streams_of<const T>(x, n, dy.cols), {to.dh_pre, 0, {}},
                                               dy.rows);
    if (to.dx.data != nullptr)
      gpu::sum_streams_of_tokens<T>(ctx, of_dy, gpu::streams_of(to.dx, n, dy.cols), {h_pre, 1, 0, {}, {}}, dy.rows,
                                    opt.dx == gradient::accumulate);
  }
};

template <>
struct kernel<op::mhc_post_res, backends::cuda> {
  template <class A>
  using saved = no_state;

  template <backend B, element T>
  static void forward(in_matrix<T> x, in_matrix<T> f, in_matrix<accumulator_t<T>> h_post,
                      in_matrix<accumulator_t<T>> h_res, matrix_view<T> y, context& ctx) {
    const auto n = static_cast<unsigned>(h_post.cols);
    gpu::sum_streams_of_tokens<T>(ctx, gpu::streams_of<const T>(x, n, f.cols, f), gpu::streams_of(y, n, f.cols),
                                  {h_res, n, 1, h_post, {}}, f.rows, false);
  }
  template <backend B, element T>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_matrix<T> f, in_matrix<accumulator_t<T>> h_post,
                       in_matrix<accumulator_t<T>> h_res, mhc_post_res_gradients<T> to, mhc_post_res_options opt,
                       context& ctx) {
    const auto n = static_cast<unsigned>(h_post.cols);
    const auto of_dy = gpu::streams_of<const T>(dy, n, f.cols);
    if (to.dh_res.data != nullptr || to.dh_post.data != nullptr)
      gpu::multiply_streams_of_tokens<4, 5, T>(ctx, of_dy, gpu::streams_of<const T>(x, n, f.cols, f),
                                               {to.dh_res, n, to.dh_post}, f.rows);
    const bool add = opt.dx == gradient::accumulate;
    const auto run = [&](const gpu::streams<T>& out, const gpu::stream_weights<accumulator_t<T>>& w, bool adds) {
      gpu::sum_streams_of_tokens<T>(ctx, of_dy, out, w, f.rows, adds);
    };
    // df in the pass of dx, unless that is added to, or is not wanted.
    if (to.dx.data != nullptr)
      run(gpu::streams_of(to.dx, n, f.cols, add ? matrix_view<T>() : to.df), {h_res, 1, n, {}, h_post}, add);
    if (to.df.data != nullptr && (add || to.dx.data == nullptr))
      run(gpu::streams_of(to.df, 1, f.cols), {h_post, 0, 1, {}, {}}, false);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_HYPER_CONNECTIONS_HPP
