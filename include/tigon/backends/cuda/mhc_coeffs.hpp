// Coefficients of hyper-connections on a GPU: a thread has a token, whose matrices are in its registers; products with
// phi are narrow, so that they are own kernels, in f32, but that of forward.
#ifndef TIGON_BACKENDS_CUDA_MHC_COEFFS_HPP
#define TIGON_BACKENDS_CUDA_MHC_COEFFS_HPP

#include <tigon/backends/cuda/gemm.hpp>
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/mhc_products.hpp>
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

/// The coefficients of a token, from the products with phi, which are multiplied by its rstd. Streams: how many there
/// are, or 0; then the numbers of a token are in memory, 2 n^2 of them.
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

/// The gradients of alpha mix + b of a token, from those of the coefficients. steps: tmax n^2 numbers of every token;
/// scratch as above, but 3 n^2.
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
    with_columns([&](auto c) {
      gpu::launch(ctx, gpu::gradients_of_streams<c.value, T, P, A>, dim3(tiles, columns(c)), gpu::product_threads, g,
                  phi, x, shrink, to.dx, opt.dx == gradient::accumulate, more, detail::mhc_streams(g.cols));
    });
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_MHC_COEFFS_HPP
