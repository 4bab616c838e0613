// The generic kernel of mhc_coeffs.
#ifndef TIGON_OPS_DEPTH_MHC_COEFFS_KERNEL_HPP
#define TIGON_OPS_DEPTH_MHC_COEFFS_KERNEL_HPP

#include <tigon/gemm/kernel.hpp>
#include <tigon/ops/depth/mhc_coeffs_options.hpp>
#include <tigon/ops/depth/mhc_coeffs_program.hpp>
#include <tigon/ops/norm/rms_norm_program.hpp>
#include <tigon/rows/reduce_map.hpp>

#include <algorithm>

namespace tigon {

template <>
struct kernel<op::mhc_coeffs, backends::generic> {
  template <class A>
  using saved = mhc_coeffs_saved<A>;

  template <backend B, element T, element P, element W>
  static void forward(in_matrix<T> x, detail::mhc_weight_views<P, W> w, mhc_coefficients<accumulator_t<T>> h,
                      mhc_coeffs_saved<accumulator_t<T>> saved, mhc_coeffs_options opt, context& ctx) {
    forward_on<B, row_backend<B>, T>(x, w, h, saved, opt, ctx);
  }
  template <backend B, element T, element P, element W, element DP>
  static void backward(mhc_coefficients<const accumulator_t<T>> dh, in_matrix<T> x, detail::mhc_weight_views<P, W> w,
                       mhc_coeffs_saved<const accumulator_t<T>> saved, detail::mhc_gradient_views<T, DP, W> to,
                       mhc_coeffs_options opt, detail::mhc_more<T> more, context& ctx) {
    backward_on<B, row_backend<B>, T>(dh, x, w, saved, to, opt, more, ctx);
  }

  /// Products by B, rows by R; backward's vectors of tokens by Tokens.
  template <backend B, backend R, element T, element P, element W>
  static void forward_on(in_matrix<T> x, detail::mhc_weight_views<P, W> w, mhc_coefficients<accumulator_t<T>> h,
                         mhc_coeffs_saved<accumulator_t<T>> saved, mhc_coeffs_options opt, context& ctx) {
    using A = accumulator_t<T>;
    using V = simd::vec<typename R::engine, A>;
    using block = detail::mhc_block<V>;
    const std::size_t n = h.h_pre.cols, mixes = detail::mhc_columns(n), tokens = x.rows;
    A* const rstd = saved.rstd.data();
    A* const history = saved.history.empty() ? nullptr : saved.history.data();
    const matrix_view<A> mix = saved.mix;
    reduce_map<R>(ctx, detail::inverse_rms<A>{static_cast<A>(x.cols), static_cast<A>(opt.rms_eps)}, reads(x),
                  saves(rstd));
    product<B, T, P, A>(x, w.phi, mix, {}, ctx);
    const detail::mhc_sinkhorn<V> iteration{n, opt.tmax, static_cast<A>(opt.sinkhorn_eps)};
    const A pre_eps = static_cast<A>(opt.pre_eps), post_mult = static_cast<A>(opt.post_mult);
    const std::size_t width = (mixes + n * n) * V::size;
    for_rows<R, A>(ctx, detail::mhc_blocks<V>(tokens), width, {.scratch = 1}, [=] TIGON_FN(auto row) {
      const std::size_t first = row.i * V::size;
      const block values{row.scratch(0).data};
      detail::mhc_gather(row, values, mix, first, mixes);
      for (std::size_t l = 0; l < V::size && first + l < tokens; ++l)
        for (std::size_t k = 0; k < mixes; ++k) values.lane(k, l) *= rstd[first + l];
      detail::mhc_scatter(row, values, mix, first, mixes);
      for (std::size_t k = 0; k < mixes; ++k) values.put(k, detail::mhc_logit(values, k, n, w));
      for (std::size_t k = 0; k < n; ++k) values.put(k, simd::sigmoid(values(k)) + V(pre_eps));
      for (std::size_t k = n; k < 2 * n; ++k) values.put(k, simd::sigmoid(values(k)) * V(post_mult));
      const block p = values.from(2 * n);
      iteration.softmax(p, p);
      const bool keep = history != nullptr;
      const block steps = keep ? block{history + row.i * opt.tmax * n * n * V::size} : values.from(mixes);
      const block last = iteration.run(p, steps, keep);
      detail::mhc_scatter(row, values, h.h_pre, first, n);
      detail::mhc_scatter(row, values.from(n), h.h_post, first, n);
      detail::mhc_scatter(row, last, h.h_res, first, n * n);
    });
  }

  template <backend B, backend R, element T, backend Tokens = R, element P, element W, element DP>
  static void backward_on(mhc_coefficients<const accumulator_t<T>> dh, in_matrix<T> x, detail::mhc_weight_views<P, W> w,
                          mhc_coeffs_saved<const accumulator_t<T>> saved, detail::mhc_gradient_views<T, DP, W> to,
                          mhc_coeffs_options opt, detail::mhc_more<T> more, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t mixes = saved.mix.cols, n = detail::mhc_streams(mixes), tokens = x.rows;
    workspace::frame frame(ctx.workspace());
    const matrix_view<A> g(frame.template take<A>(tokens * mixes), tokens, mixes);
    A* const shrink = frame.template take<A>(tokens);
    const vector_view<A> alpha{frame.template take<A>(mixes), mixes};
    for (std::size_t k = 0; k < mixes; ++k) alpha.data[k] = detail::mhc_alpha_of(k, n, w);
    gradients_of_logits<Tokens, A>(dh, w, saved, g, opt, ctx);
    const detail::mhc_mix_gradient<A> program{static_cast<A>(x.cols)};
    const A* const rstd = saved.rstd.data();
    if (to.db || to.dalpha) {
      workspace::frame inner(ctx.workspace());
      const vector_view<A> db{inner.template take<A>(mixes), mixes}, dm{inner.template take<A>(mixes), mixes};
      reduce_map<R>(ctx, program, reads(g, saved.mix, alpha), of_rows(rstd), writes(g), saves(shrink),
                    adds_to(parameter_gradient<A>{db}, parameter_gradient<A>{dm}));
      detail::mhc_store(db, dm, n, to.db, to.dalpha, opt.dparams);
    } else {
      reduce_map<R>(ctx, program, reads(g, saved.mix, alpha), of_rows(rstd), writes(g), saves(shrink));
    }
    if (to.dphi.data != nullptr)
      product<B, T, A, DP>(x, g, to.dphi,
                           {.beta = opt.dparams == gradient::accumulate ? 1.0 : 0.0, .a = transpose::yes}, ctx);
    if (to.dx.data != nullptr) streams_gradient<B, R, T>(g, w.phi, x, shrink, to.dx, opt.dx, more, ctx);
  }

  /// The gradients of alpha mix + b, from those of the coefficients.
  template <backend R, class A, class W>
  static void gradients_of_logits(mhc_coefficients<const A> dh, W w, mhc_coeffs_saved<const A> saved, matrix_view<A> to,
                                  mhc_coeffs_options opt, context& ctx) {
    using V = simd::vec<typename R::engine, A>;
    using block = detail::mhc_block<V>;
    const std::size_t mixes = to.cols, n = detail::mhc_streams(mixes), tokens = to.rows;
    const detail::mhc_sinkhorn<V> iteration{n, opt.tmax, static_cast<A>(opt.sinkhorn_eps)};
    const A post_mult = static_cast<A>(opt.post_mult);
    const matrix_view<const A> mix = saved.mix;
    // Read only.
    A* const history = saved.history.empty() ? nullptr : const_cast<A*>(saved.history.data());
    const bool res = dh.h_res.data != nullptr;
    for_rows<R, A>(ctx, detail::mhc_blocks<V>(tokens), detail::mhc_scratch_width<V>(n, opt.tmax, history != nullptr),
                   {.scratch = 1}, [=] TIGON_FN(auto row) {
                     const std::size_t first = row.i * V::size;
                     const block values{row.scratch(0).data}, g = values.from(mixes), p = g.from(mixes),
                                                              one = p.from(n * n);
                     detail::mhc_gather(row, values, mix, first, mixes);
                     detail::mhc_gather(row, g, dh.h_pre, first, n);
                     detail::mhc_gather(row, g.from(n), dh.h_post, first, n);
                     detail::mhc_gather(row, g.from(2 * n), dh.h_res, first, n * n);
                     for (std::size_t k = 0; k < 2 * n; ++k) {
                       const auto s = simd::sigmoid_both(detail::mhc_logit(values, k, n, w));
                       g.put(k, g(k) * V(k < n ? A(1) : post_mult) * (s.of_x * s.of_minus_x));
                     }
                     if (res) {
                       for (std::size_t k = 0; k < n * n; ++k) p.put(k, detail::mhc_logit(values, 2 * n + k, n, w));
                       iteration.softmax(p, p);
                       const bool kept = history != nullptr;
                       const block steps = kept ? block{history + row.i * opt.tmax * n * n * V::size} : one.from(n * n);
                       if (!kept) iteration.run(p, steps, true);
                       iteration.backward(p, steps, g.from(2 * n), one);
                     }
                     detail::mhc_scatter(row, g, to, first, mixes);
                   });
  }

  /// dx = gz phi^T - shrink x, and what else adds to it.
  template <backend B, backend R, element T, class A, element P>
  static void streams_gradient(matrix_view<A> gz, matrix_view<const P> phi, matrix_view<const T> x, const A* shrink,
                               matrix_view<T> dx, gradient mode, detail::mhc_more<T> more, context& ctx) {
    constexpr bool wide = std::same_as<T, A>;
    const std::size_t n = detail::mhc_streams(gz.cols), channels = x.cols / n, tokens = x.rows;
    const bool add = mode == gradient::accumulate;
    const std::size_t chunk = wide ? std::max<std::size_t>(tokens, 1) : detail::mhc_rows_of_sums<B, A>(tokens, x.cols);
    workspace::frame frame(ctx.workspace());
    A* const memory = wide ? nullptr : frame.template take<A>(chunk * x.cols);
    for (std::size_t begin = 0; begin < tokens; begin += chunk) {
      const std::size_t rows = std::min(chunk, tokens - begin);
      matrix_view<A> sums(memory, rows, x.cols);
      if constexpr (wide) sums = dx;
      const auto finish = [=](matrix_view<A> part, std::size_t row, std::size_t col, std::size_t) {
        workspace nothing;
        context own(serial(), nothing);
        for (std::size_t at = col, width; at < col + part.cols; at += width) {
          const std::size_t h = at / channels, c = at % channels;
          width = std::min(channels - c, col + part.cols - at);
          const detail::mhc_dx_terms<T, A> terms{
              x,          add && !wide ? matrix_view<const T>(dx) : matrix_view<const T>{},
              more,       shrink,
              n,          h,
              c,          width,
              begin + row};
          const matrix_view<A> sum = part.cols_from(at - col, width);
          const matrix_view<T> out(dx.row(begin + row) + at, part.rows, width, dx.row_stride);
          for_rows<R, A>(own, part.rows, width, [=] TIGON_FN(auto line) {
            const auto term = [=](std::size_t k) TIGON_LAMBDA { return terms(k, line.i); };
            detail::mhc_add_all(line, sum, terms.count(), term, sum, out);
          });
        }
      };
      kernel_for<op::gemm, B>::template forward<B, A, P, A>(
          matrix_view<const A>(gz.rows_from(begin, rows)), {phi}, in_vector<A>{}, sums, finish,
          {.beta = add && wide ? 1.0 : 0.0, .b = transpose::yes}, ctx);
    }
  }

  template <backend B, element TA, element TB, element TC>
  static void product(matrix_view<const TA> a, matrix_view<const TB> b, matrix_view<TC> c, gemm_options opt,
                      context& ctx) {
    kernel_for<op::gemm, B>::template forward<B, TA, TB, TC>(a, {b}, in_vector<TC>{}, c, no_epilogue{}, opt, ctx);
  }

  template <backend B, element T, element P>
  static std::size_t forward_bytes(std::size_t tokens, std::size_t channels, std::size_t n, const context& ctx) {
    using A = accumulator_t<T>;
    using V = simd::vec<typename row_backend<B>::engine, A>;
    const std::size_t mixes = detail::mhc_columns(n);
    return std::max(
        gemm_workspace<B, T, P, A>(tokens, mixes, workspace::product(n, channels), ctx.executor().workers()),
        simd::scratch_workspace<row_backend<B>, A>((mixes + workspace::product(n, n)) * V::size, 1, ctx));
  }
  template <backend B, element T, element P, element DP>
  static std::size_t backward_bytes(std::size_t tokens, std::size_t channels, std::size_t n, std::size_t tmax,
                                    mhc_coeffs_wanted wanted, const context& ctx) {
    using A = accumulator_t<T>;
    using R = row_backend<B>;
    using V = simd::vec<typename R::engine, A>;
    const std::size_t mixes = detail::mhc_columns(n), cols = workspace::product(n, channels);
    const std::size_t workers = ctx.executor().workers();
    // At a time: the scratch of the gradients of logits; or the sums, and what each product takes.
    const std::size_t logits =
        simd::scratch_workspace<R, A>(detail::mhc_scratch_width<V>(n, tmax, B::hyper_connections.keep_history), 1, ctx);
    const std::size_t sums = 2 * workspace::bytes_for<A>(mixes) + simd::partials_workspace<R, A>(tokens, mixes, 2);
    return workspace::bytes_for<A>(tokens, mixes) + workspace::bytes_for<A>(tokens) + workspace::bytes_for<A>(mixes) +
           std::max({logits, wanted.dparams ? sums : 0,
                     wanted.dphi ? gemm_workspace<B, T, A, DP>(cols, mixes, tokens, workers) : 0,
                     wanted.dx ? dx_bytes<B, T, P>(tokens, cols, mixes, workers) : 0});
  }
  template <backend B, element T, element P>
  static std::size_t dx_bytes(std::size_t tokens, std::size_t cols, std::size_t mixes, std::size_t workers) {
    using A = accumulator_t<T>;
    if (std::same_as<T, A>) return gemm_workspace<B, A, P, A>(tokens, cols, mixes, workers);
    const std::size_t chunk = detail::mhc_rows_of_sums<B, A>(tokens, cols),
                      last = tokens == 0 ? 0 : (tokens - 1) % chunk + 1;
    return workspace::bytes_for<A>(chunk, cols) + std::max(gemm_workspace<B, A, P, A>(chunk, cols, mixes, workers),
                                                           gemm_workspace<B, A, P, A>(last, cols, mixes, workers));
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_DEPTH_MHC_COEFFS_KERNEL_HPP
