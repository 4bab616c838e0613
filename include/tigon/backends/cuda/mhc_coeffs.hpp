// Coefficients of hyper-connections on a GPU: a thread has a token, whose matrices are in its registers; products with phi are
// narrow, so that they are made here, in f32, but that of forward.
#ifndef TIGON_BACKENDS_CUDA_MHC_COEFFS_HPP
#define TIGON_BACKENDS_CUDA_MHC_COEFFS_HPP

#include <tigon/backends/cuda/gemm.hpp>
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/rows.hpp>
#include <tigon/ops/depth/mhc_coeffs_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

template <class A, class W>
struct mhc_token_call {
  const W *b, *alpha;
  matrix_view<A> mix;
  std::size_t n, tmax;
  A sinkhorn_eps, pre_eps, post_mult;

  TIGON_DEVICE_INLINE A alpha_of(std::size_t k) const {
    return static_cast<A>(alpha[tigon::detail::mhc_part_of(k, n)]);
  }
  template <class V>
  TIGON_DEVICE_INLINE V logit(V z, std::size_t k) const {
    return fma(z, V(alpha_of(k)), V(static_cast<A>(b[k])));
  }
};
inline constexpr unsigned threads_of_coefficients = 64;

/// The coefficients of a token, from the products with phi, which are multiplied by its rstd. Streams: how many there are, or 0;
/// then the numbers of a token are in memory, 2 n^2 of them.
template <unsigned Streams, class A, class W>
__global__ void __launch_bounds__(threads_of_coefficients)
    coefficients_of_tokens(mhc_token_call<A, W> call, const A* rstd, mhc_coefficients<A> h, A* scratch) {
  using V = simd::vec<simd::cuda, A>;
  using block = tigon::detail::mhc_block<V>;
  const std::size_t token = blockIdx.x * std::size_t{threads_of_coefficients} + threadIdx.x;
  if (token >= call.mix.rows) return;
  const std::size_t n = Streams != 0 ? Streams : call.n, mixes = n * (n + 2);
  A own[Streams != 0 ? 2 * Streams * Streams : 1];
  const block values{Streams != 0 ? own : scratch + token * 2 * n * n};
  A* const mix = call.mix.data + token * call.mix.row_stride;
#pragma unroll
  for (std::size_t k = 0; k < mixes; ++k) {
    mix[k] *= rstd[token];
    const V z = call.logit(V(mix[k]), k);
    if (k < n)
      h.h_pre.data[token * h.h_pre.row_stride + k] = (simd::sigmoid(z) + V(call.pre_eps)).r;
    else if (k < 2 * n)
      h.h_post.data[token * h.h_post.row_stride + k - n] = (simd::sigmoid(z) * V(call.post_mult)).r;
    else
      values.put(k - 2 * n, z);
  }
  const tigon::detail::mhc_sinkhorn<V> iteration{n, call.tmax, call.sinkhorn_eps};
  iteration.softmax(values, values);
  const block last = iteration.run(values, values.from(n * n), false);
#pragma unroll
  for (std::size_t k = 0; k < n * n; ++k) h.h_res.data[token * h.h_res.row_stride + k] = last(k).r;
}

/// The gradients of alpha mix + b of a token, from those of the coefficients. steps: tmax n^2 numbers of every token; scratch as
/// above, but 3 n^2.
template <unsigned Streams, class A, class W>
__global__ void __launch_bounds__(threads_of_coefficients)
    gradients_of_logits(mhc_token_call<const A, W> call, mhc_coefficients<const A> dh, matrix_view<A> to, A* steps,
                        A* scratch) {
  using V = simd::vec<simd::cuda, A>;
  using block = tigon::detail::mhc_block<V>;
  const std::size_t token = blockIdx.x * std::size_t{threads_of_coefficients} + threadIdx.x;
  if (token >= call.mix.rows) return;
  const std::size_t n = Streams != 0 ? Streams : call.n, mixes = n * (n + 2);
  A own[Streams != 0 ? 3 * Streams * Streams : 1];
  const block p{Streams != 0 ? own : scratch + token * 3 * n * n}, g = p.from(n * n), one = g.from(n * n);
  const A* const mix = call.mix.data + token * call.mix.row_stride;
  A* const out = to.data + token * to.row_stride;
  const auto gradient = [&](matrix_view<const A> m, std::size_t k) {
    return V(m.data == nullptr ? A(0) : m.data[token * m.row_stride + k]);
  };
#pragma unroll
  for (std::size_t k = 0; k < mixes; ++k) {
    const V z = call.logit(V(mix[k]), k);
    if (k >= 2 * n) {
      p.put(k - 2 * n, z), g.put(k - 2 * n, gradient(dh.h_res, k - 2 * n));
    } else {
      const auto s = simd::sigmoid_both(z);
      const V from = k < n ? gradient(dh.h_pre, k) : gradient(dh.h_post, k - n) * V(call.post_mult);
      out[k] = (from * (s.of_x * s.of_minus_x)).r;
    }
  }
  if (dh.h_res.data != nullptr) {
    const tigon::detail::mhc_sinkhorn<V> iteration{n, call.tmax, call.sinkhorn_eps};
    const block history{steps + token * call.tmax * n * n};
    iteration.softmax(p, p);
    iteration.run(p, history, true);
    iteration.backward(p, history, g, one);
  }
#pragma unroll
  for (std::size_t k = 0; k < n * n; ++k) out[2 * n + k] = g(k).r;
}

/// alpha of every column of mix.
template <class A, class W>
__global__ void __launch_bounds__(256) spread_alpha(const W* alpha, A* to, std::size_t n, std::size_t mixes) {
  for (std::size_t k = threadIdx.x; k < mixes; k += 256)
    to[k] = static_cast<A>(alpha[tigon::detail::mhc_part_of(k, n)]);
}
/// db and dalpha from sums over all tokens. One block.
template <class A, class W>
__global__ void __launch_bounds__(256)
    store_parameters(const A* db, const A* dm, std::size_t n, W* to_db, W* to_dalpha, bool accumulate) {
  const std::size_t mixes = n * (n + 2);
  const auto put = [=](W& to, double sum) {
    to = static_cast<W>(static_cast<A>(accumulate ? sum + static_cast<double>(static_cast<A>(to)) : sum));
  };
  if (to_db != nullptr)
    for (std::size_t k = threadIdx.x; k < mixes; k += 256) put(to_db[k], static_cast<double>(db[k]));
  if (to_dalpha == nullptr || threadIdx.x >= 3) return;
  double sum = 0;
  for (std::size_t k = 0; k < mixes; ++k)
    if (tigon::detail::mhc_part_of(k, n) == threadIdx.x) sum += static_cast<double>(dm[k]);
  put(to_dalpha[threadIdx.x], sum);
}

/// Threads of a block in the products below, five of which are on a multiprocessor; columns of phi that a thread has at a time, of one and of the other; tokens of a block.
inline constexpr unsigned product_threads = 128, stream_mixes = 8, slab_mixes = 24, product_tokens = 16;

/// gz of product_tokens tokens from `begin` on and Mixes columns from `first` on; zeros behind the last of either.
template <unsigned Mixes, class A>
struct token_gradients {
  A of[product_tokens][Mixes];

  TIGON_DEVICE_INLINE void load(matrix_view<const A> gz, std::size_t begin, std::size_t end, std::size_t first) {
    for (unsigned e = threadIdx.x; e < product_tokens * Mixes; e += product_threads) {
      const std::size_t t = begin + e / Mixes, k = first + e % Mixes;
      of[e / Mixes][e % Mixes] = t < end && k < gz.cols ? gz.data[t * gz.row_stride + k] : A(0);
    }
  }
};
/// A row of phi, of which `wide` says that it has whole accesses of 16 bytes.
template <unsigned Mixes, class P, class A>
TIGON_DEVICE_INLINE void load_mixes(const P* row, std::size_t count, bool wide, A (&to)[Mixes]) {
  if (wide && count >= Mixes) {
    constexpr int N = static_cast<int>(access_bytes / sizeof(P));
#pragma unroll
    for (int from = 0; from < static_cast<int>(Mixes); from += N) {
      elements<N, P> e;
      e.load(row + from);
#pragma unroll
      for (int k = 0; k < N; ++k) to[from + k] = e.template get<A>(k);
    }
  } else {
#pragma unroll
    for (unsigned k = 0; k < Mixes; ++k) to[k] = k < count ? static_cast<A>(row[k]) : A(0);
  }
}

/// dx = gz phi^T - shrink x, and what else adds to it. C columns a thread.
template <int C, class T, class P, class A>
__global__ void __launch_bounds__(product_threads, 5)
    gradients_of_streams(matrix_view<const A> gz, matrix_view<const P> phi, matrix_view<const T> x, const A* shrink,
                         matrix_view<T> dx, bool add, tigon::detail::mhc_more<T> more, std::size_t n, bool wide) {
  __shared__ token_gradients<stream_mixes, A> tokens;
  const std::size_t c = (blockIdx.y * std::size_t{product_threads} + threadIdx.x) * C,
                    begin = blockIdx.x * std::size_t{product_tokens}, channels = x.cols / n;
  const bool here = c < x.cols;
  const std::size_t h = here ? c / channels : 0, channel = here ? c - h * channels : 0;
  A sum[product_tokens][C];
#pragma unroll
  for (unsigned t = 0; t < product_tokens; ++t)
#pragma unroll
    for (int u = 0; u < C; ++u) sum[t][u] = A(0);
  for (std::size_t first = 0; first < gz.cols; first += stream_mixes) {
    __syncthreads();
    tokens.load(gz, begin, gz.rows, first);
    A row[C][stream_mixes];
#pragma unroll
    for (int u = 0; u < C; ++u)
      load_mixes(phi.data + (c + static_cast<std::size_t>(u)) * phi.row_stride + first, here ? gz.cols - first : 0,
                 wide, row[u]);
    __syncthreads();
#pragma unroll
    for (unsigned t = 0; t < product_tokens; ++t)
#pragma unroll
      for (unsigned k = 0; k < stream_mixes; ++k)
#pragma unroll
        for (int u = 0; u < C; ++u) sum[t][u] += tokens.of[t][k] * row[u][k];
  }
  if (!here) return;
  // All of them before the first store, behind which none could be read ahead: dx may be x.
  elements<C, T> own[product_tokens];
#pragma unroll
  for (unsigned t = 0; t < product_tokens; ++t)
    if (begin + t < x.rows) own[t].load(x.data + (begin + t) * x.row_stride + c);
#pragma unroll
  for (unsigned t = 0; t < product_tokens; ++t) {
    const std::size_t i = begin + t;
    if (i >= x.rows) continue;
    T* const to = dx.data + i * dx.row_stride + c;
    elements<C, T> e;
#pragma unroll
    for (int u = 0; u < C; ++u) sum[t][u] -= shrink[i] * own[t].template get<A>(u);
    const auto add_scaled = [&](A scale, const T* from) {
      e.load(from);
#pragma unroll
      for (int u = 0; u < C; ++u) sum[t][u] += scale * e.template get<A>(u);
    };
    if (more.dy.data != nullptr) {
      add_scaled(more.h_pre.data[i * more.h_pre.row_stride + h], more.d_in.data + i * more.d_in.row_stride + channel);
      for (std::size_t o = 0; o < n; ++o)
        add_scaled(more.h_res.data[i * more.h_res.row_stride + o * n + h],
                   more.dy.data + i * more.dy.row_stride + o * channels + channel);
    }
    if (add) add_scaled(A(1), to);
    e.set_all(sum[t]);
    e.store(to);
  }
}

/// Rows of x that a block of the next kernel adds up.
inline constexpr std::size_t rows_of_slab = 512;
/// partials[slab][c][k] = the sum of x[t][c] gz[t][k] over the tokens of a slab. C columns a thread.
template <int C, class T, class A>
__global__ void __launch_bounds__(product_threads, 5)
    products_of_slabs(matrix_view<const T> x, matrix_view<const A> gz, A* partials) {
  __shared__ token_gradients<slab_mixes, A> tokens;
  const std::size_t c = (blockIdx.y * std::size_t{product_threads} + threadIdx.x) * C,
                    begin = blockIdx.x * rows_of_slab,
                    end = x.rows < begin + rows_of_slab ? x.rows : begin + rows_of_slab;
  for (std::size_t first = 0; first < gz.cols; first += slab_mixes) {
    A sum[C][slab_mixes];
#pragma unroll
    for (int u = 0; u < C; ++u)
#pragma unroll
      for (unsigned k = 0; k < slab_mixes; ++k) sum[u][k] = A(0);
    for (std::size_t from = begin; from < end; from += product_tokens) {
      // On their way while gz comes.
      elements<C, T> own[product_tokens];
#pragma unroll
      for (unsigned t = 0; t < product_tokens; ++t)
        if (c < x.cols && from + t < end)
          own[t].load(x.data + (from + t) * x.row_stride + c);
        else
          own[t].fill(T(0));
      __syncthreads();
      tokens.load(gz, from, end, first);
      __syncthreads();
#pragma unroll
      for (unsigned t = 0; t < product_tokens; ++t)
#pragma unroll
        for (unsigned k = 0; k < slab_mixes; ++k)
#pragma unroll
          for (int u = 0; u < C; ++u) sum[u][k] += own[t].template get<A>(u) * tokens.of[t][k];
    }
    if (c >= x.cols) continue;
#pragma unroll
    for (int u = 0; u < C; ++u)
#pragma unroll
      for (unsigned k = 0; k < slab_mixes; ++k)
        if (first + k < gz.cols)
          partials[(blockIdx.x * x.cols + c + static_cast<std::size_t>(u)) * gz.cols + first + k] = sum[u][k];
  }
}
/// dphi = the sum of the slabs, in f64, or added to it. A thread for each element.
template <class A, class DP>
__global__ void __launch_bounds__(256)
    add_slabs(const A* partials, std::size_t slabs, matrix_view<DP> dphi, bool accumulate) {
  using S = accumulator_t<DP>;
  const std::size_t size = dphi.rows * dphi.cols, e = blockIdx.x * std::size_t{256} + threadIdx.x;
  if (e >= size) return;
  DP& to = dphi.data[e / dphi.cols * dphi.row_stride + e % dphi.cols];
  double sum = accumulate ? static_cast<double>(static_cast<S>(to)) : 0;
  for (std::size_t k = 0; k < slabs; ++k) sum += static_cast<double>(partials[k * size + e]);
  to = static_cast<DP>(static_cast<S>(sum));
}

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::mhc_coeffs, backends::cuda> : kernel<op::mhc_coeffs, backends::generic> {
  template <backend B, element T, element P, element W>
  static void forward(in_matrix<T> x, detail::mhc_weight_views<P, W> w, mhc_coefficients<accumulator_t<T>> h,
                      mhc_coeffs_saved<accumulator_t<T>> saved, mhc_coeffs_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t n = h.h_pre.cols, tokens = x.rows;
    reduce_map<B>(ctx, detail::inverse_rms<A>{static_cast<A>(x.cols), static_cast<A>(opt.rms_eps)}, reads(x),
                  saves(saved.rstd.data()));
    product<B, T, P, A>(x, w.phi, saved.mix, {}, ctx);
    if (tokens == 0) return;
    workspace::frame frame(ctx.workspace());
    A* const scratch = n <= 4 ? nullptr : frame.template take<A>(tokens * 2 * n * n);
    const auto call = call_of<A>(saved.mix, w, n, opt);
    with_streams(n, [&](auto streams) {
      gpu::launch(ctx, gpu::coefficients_of_tokens<streams.value, A, W>, blocks(tokens), gpu::threads_of_coefficients,
                  call, static_cast<const A*>(saved.rstd.data()), h, scratch);
    });
  }

  template <backend B, element T, element P, element W, element DP>
  static void backward(mhc_coefficients<const accumulator_t<T>> dh, in_matrix<T> x, detail::mhc_weight_views<P, W> w,
                       mhc_coeffs_saved<const accumulator_t<T>> saved, detail::mhc_gradient_views<T, DP, W> to,
                       mhc_coeffs_options opt, detail::mhc_more<T> more, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t mixes = saved.mix.cols, n = detail::mhc_streams(mixes), tokens = x.rows;
    workspace::frame frame(ctx.workspace());
    const matrix_view<A> g(frame.template take<A>(tokens * mixes), tokens, mixes);
    A* const shrink = frame.template take<A>(tokens);
    const vector_view<A> alpha{frame.template take<A>(mixes), mixes};
    gpu::launch(ctx, gpu::spread_alpha<A, W>, 1, 256, w.alpha.data, alpha.data, n, mixes);
    if (tokens != 0) {
      workspace::frame inner(ctx.workspace());
      A* const steps = inner.template take<A>(tokens * opt.tmax * n * n);
      A* const scratch = n <= 4 ? nullptr : inner.template take<A>(tokens * 3 * n * n);
      const auto call = call_of<const A>(saved.mix, w, n, opt);
      with_streams(n, [&](auto streams) {
        gpu::launch(ctx, gpu::gradients_of_logits<streams.value, A, W>, blocks(tokens), gpu::threads_of_coefficients,
                    call, dh, g, steps, scratch);
      });
    }
    const detail::mhc_mix_gradient<A> program{static_cast<A>(x.cols)};
    const A* const rstd = saved.rstd.data();
    if (to.db || to.dalpha) {
      workspace::frame inner(ctx.workspace());
      const vector_view<A> db{inner.template take<A>(mixes), mixes}, dm{inner.template take<A>(mixes), mixes};
      reduce_map<B>(ctx, program, reads(g, saved.mix, alpha), of_rows(rstd), writes(g), saves(shrink),
                    adds_to(parameter_gradient<A>{db}, parameter_gradient<A>{dm}));
      gpu::launch(ctx, gpu::store_parameters<A, W>, 1, 256, static_cast<const A*>(db.data),
                  static_cast<const A*>(dm.data), n, to.db.data, to.dalpha.data, opt.dparams == gradient::accumulate);
    } else {
      reduce_map<B>(ctx, program, reads(g, saved.mix, alpha), of_rows(rstd), writes(g), saves(shrink));
    }
    products<T, A, P, DP, W>(g, w.phi, x, shrink, to, opt, more, ctx);
  }

  template <backend B, element T, element P>
  static std::size_t forward_bytes(std::size_t tokens, std::size_t channels, std::size_t n, const context& ctx) {
    using A = accumulator_t<T>;
    return std::max(gemm_workspace<B, T, P, A>(tokens, detail::mhc_columns(n), workspace::product(n, channels),
                                               ctx.executor().workers()),
                    n <= 4 ? 0 : workspace::bytes_for<A>(tokens, 2, n, n));
  }
  template <backend B, element T, element P, element DP>
  static std::size_t backward_bytes(std::size_t tokens, std::size_t channels, std::size_t n, std::size_t tmax,
                                    mhc_coeffs_wanted wanted, const context&) {
    using A = accumulator_t<T>;
    const std::size_t mixes = detail::mhc_columns(n);
    const std::size_t logits = workspace::bytes_for<A>(tokens, tmax, n, n) + workspace::bytes_for<A>(tokens, 3, n, n);
    const std::size_t sums = 2 * workspace::bytes_for<A>(mixes) + simd::partials_workspace<B, A>(tokens, mixes, 2);
    return workspace::bytes_for<A>(tokens, mixes) + workspace::bytes_for<A>(tokens) + workspace::bytes_for<A>(mixes) +
           std::max({logits, wanted.dparams ? sums : 0,
                     wanted.dphi ? workspace::bytes_for<A>(slabs(tokens), n, channels, mixes) : 0});
  }

 private:
  static unsigned blocks(std::size_t tokens) {
    return gpu::blocks(detail::ceil_div(tokens, gpu::threads_of_coefficients));
  }
  static constexpr std::size_t slabs(std::size_t tokens) { return detail::ceil_div(tokens, gpu::rows_of_slab); }
  template <class A, class P, class W>
  static gpu::mhc_token_call<A, W> call_of(matrix_view<A> mix, detail::mhc_weight_views<P, W> w, std::size_t n,
                                           const mhc_coeffs_options& opt) {
    const auto number = [](double value) { return static_cast<A>(value); };
    return {
        w.b.data, w.alpha.data, mix, n, opt.tmax, number(opt.sinkhorn_eps), number(opt.pre_eps), number(opt.post_mult)};
  }
  template <class Run>
  static void with_streams(std::size_t n, Run run) {
    n == 4   ? run(std::integral_constant<unsigned, 4>())
    : n == 3 ? run(std::integral_constant<unsigned, 3>())
    : n == 2 ? run(std::integral_constant<unsigned, 2>())
    : n == 1 ? run(std::integral_constant<unsigned, 1>())
             : run(std::integral_constant<unsigned, 0>());
  }
  /// dphi and dx.
  template <element T, class A, element P, element DP, element W>
  static void products(matrix_view<const A> g, matrix_view<const P> phi, matrix_view<const T> x, const A* shrink,
                       detail::mhc_gradient_views<T, DP, W> to, const mhc_coeffs_options& opt, detail::mhc_more<T> more,
                       context& ctx) {
    const auto with_columns = [&](auto run) {
      const std::size_t channels = x.cols / detail::mhc_streams(g.cols);
      const auto pairs = [](const auto& m) { return gpu::begins_accesses<2>(m.data, m.row_stride); };
      if (channels % 2 == 0 && pairs(x) && pairs(to.dx) && pairs(more.dy) && pairs(more.d_in))
        run(std::integral_constant<int, 2>());
      else
        run(std::integral_constant<int, 1>());
    };
    const auto columns = [&](auto c) {
      return gpu::blocks(detail::ceil_div(x.cols, std::size_t{gpu::product_threads} * c.value));
    };
    if (to.dphi.data != nullptr) {
      workspace::frame frame(ctx.workspace());
      const std::size_t count = slabs(x.rows), size = x.cols * g.cols;
      A* const partials = frame.template take<A>(count * size);
      if (count != 0)
        with_columns([&](auto c) {
          gpu::launch(ctx, gpu::products_of_slabs<c.value, T, A>, dim3(gpu::blocks(count), columns(c)),
                      gpu::product_threads, x, g, partials);
        });
      gpu::launch(ctx, gpu::add_slabs<A, DP>, gpu::blocks(detail::ceil_div(size, 256)), 256,
                  static_cast<const A*>(partials), count, to.dphi, opt.dparams == gradient::accumulate);
    }
    if (to.dx.data == nullptr || x.rows == 0) return;
    const unsigned tiles = gpu::blocks(detail::ceil_div(x.rows, gpu::product_tokens));
    constexpr int N = static_cast<int>(gpu::access_bytes / sizeof(P));
    const bool wide = g.cols % N == 0 && gpu::begins_accesses<N>(phi.data, phi.row_stride);
    with_columns([&](auto c) {
      gpu::launch(ctx, gpu::gradients_of_streams<c.value, T, P, A>, dim3(tiles, columns(c)), gpu::product_threads, g,
                  phi, x, shrink, to.dx, opt.dx == gradient::accumulate, more, detail::mhc_streams(g.cols), wide);
    });
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_MHC_COEFFS_HPP
