// The generic kernel of neighborhood_attention_layer.
#ifndef TIGON_OPS_ATTENTION_NEIGHBORHOOD_ATTENTION_LAYER_KERNEL_HPP
#define TIGON_OPS_ATTENTION_NEIGHBORHOOD_ATTENTION_LAYER_KERNEL_HPP

#include <tigon/gemm/chunk_sums.hpp>
#include <tigon/gemm/kernel.hpp>
#include <tigon/ops/attention/neighborhood_attention_kernel.hpp>
#include <tigon/ops/attention/neighborhood_attention_layer_options.hpp>
#include <tigon/ops/norm/layer_norm_kernel.hpp>

#include <algorithm>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
/// sum += d
struct token_sum_program {
  template <class V>
  TIGON_INLINE V map(V d, V sum) const {
    return sum + d;
  }
};

/// The columns of saved.values, and of [dq dk dv] alike: `parts` matrices side by side.
template <class T>
struct side_by_side {
  matrix_view<T> all;
  std::size_t hidden;

  matrix_view<T> part(std::size_t first, std::size_t parts = 1) const {
    return all.cols_from(first * hidden, parts * hidden);
  }
  heads_view<T> heads(std::size_t first, neighborhood_attention_layer_options opt) const {
    const std::size_t d = hidden / opt.heads, token = all.row_stride;
    return {part(first).data, all.rows / opt.seq_len, opt.heads, opt.seq_len, d, opt.seq_len * token, d, token};
  }
};

/// saved.numbers of so many tokens.
template <class A>
struct layer_numbers {
  std::span<A> mean, rstd;
  matrix_view<A> probs;

  layer_numbers(std::span<A> all, std::size_t tokens, neighborhood_attention_layer_options opt)
      : mean(all.first(tokens)),
        rstd(all.subspan(tokens, tokens)),
        probs(all.data() + 2 * tokens, tokens * opt.heads, opt.attention.kernel_size) {}
};
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::neighborhood_attention_layer, backends::generic> {
  template <class T>
  using saved = neighborhood_attention_layer_saved<T>;

  template <backend B, element T>
  static void forward(in_matrix<T> x, neighborhood_attention_layer_weights<const T> w, matrix_view<T> y,
                      neighborhood_attention_layer_saved<T> to_save, neighborhood_attention_layer_options opt,
                      context& ctx) {
    using A = accumulator_t<T>;
    using R = row_backend<B>;
    if (x.rows == 0) return;
    const detail::side_by_side<T> values{to_save.values, x.cols};
    const detail::layer_numbers<A> numbers(to_save.numbers, x.rows, opt);
    kernel_for<op::layer_norm, R>::template forward<R, T>(x, vector(w.norm), vector(w.norm_bias), values.part(0),
                                                          numbers.mean, numbers.rstd,
                                                          layer_norm_options{.eps = opt.eps}, ctx);
    product<B, T>(values.part(0), w.wqkv, values.part(1, 3), vector(w.bqkv), {.b = transpose::yes}, ctx);
    kernel_for<op::neighborhood_attention, R>::template forward<R, T>(
        values.heads(1, opt), values.heads(2, opt), values.heads(3, opt), values.heads(4, opt),
        neighborhood_attention_saved<A>{numbers.probs, {}}, opt.attention, ctx);
    detail::round_sums<R, A>(y, x, false, ctx);
    product<B, T>(values.part(4), w.wo, y, vector(w.bo), {.beta = 1, .b = transpose::yes}, ctx);
  }

  template <backend B, element T>
  static void backward(in_matrix<T> dy, in_matrix<T> x, neighborhood_attention_layer_weights<const T> w,
                       neighborhood_attention_layer_saved<const T> of_forward, matrix_view<T> dx,
                       neighborhood_attention_layer_weights<T> dw, neighborhood_attention_layer_options opt,
                       context& ctx) {
    using A = accumulator_t<T>;
    using R = row_backend<B>;
    const std::size_t tokens = x.rows, hidden = x.cols;
    workspace::frame frame(ctx.workspace());
    const detail::side_by_side<const T> values{of_forward.values, hidden};
    const detail::layer_numbers<const A> numbers(of_forward.numbers, tokens, opt);
    const detail::side_by_side<T> d_qkv{{frame.template take<T>(tokens * 3 * hidden), tokens, 3 * hidden}, hidden};
    const detail::side_by_side<T> d_o{{frame.template take<T>(tokens * hidden), tokens, hidden}, hidden};

    parameter_gradients<B, T>(dy, values.part(4), dw.wo, dw.bo, opt, ctx);
    product<B, T>(dy, w.wo, d_o.all, {}, {}, ctx);
    kernel_for<op::neighborhood_attention, R>::template backward<R, T>(
        d_o.heads(0, opt), values.heads(1, opt), values.heads(2, opt), values.heads(3, opt), numbers.probs,
        neighborhood_attention_gradients<T>{d_qkv.heads(0, opt), d_qkv.heads(1, opt), d_qkv.heads(2, opt)},
        opt.attention, ctx);
    parameter_gradients<B, T>(d_qkv.all, values.part(0), dw.wqkv, dw.bqkv, opt, ctx);
    const matrix_view<T> dn = d_o.all;
    product<B, T>(d_qkv.all, w.wqkv, dn, {}, {}, ctx);
    kernel_for<op::layer_norm, R>::template backward<R, T>(
        dn, x, vector(w.norm), numbers.mean, numbers.rstd,
        norm_gradients<T, vector_view<T>, vector_view<T>>{dx, vector(dw.norm), vector(dw.norm_bias)},
        layer_norm_options{.eps = opt.eps, .dparams = opt.dparams}, ctx);
    detail::round_sums<R, A>(dx, dy, true, ctx);
  }

  /// dw = d^T in, and the sums of d over the tokens: those that have memory.
  template <backend B, element T>
  static void parameter_gradients(matrix_view<const T> d, matrix_view<const T> in, matrix_view<T> dw, std::span<T> db,
                                  neighborhood_attention_layer_options opt, context& ctx) {
    using R = row_backend<B>;
    const double beta = opt.dparams == gradient::accumulate ? 1 : 0;
    if (dw.data != nullptr) product<B, T>(d, in, dw, {}, {.beta = beta, .a = transpose::yes}, ctx);
    if (db.data() != nullptr)
      map_rows<R>(ctx, detail::token_sum_program{}, reads(d), writes(),
                  adds_to(parameter_gradient<T>{vector(db), opt.dparams}));
  }

  template <backend B, element T>
  static void product(matrix_view<const T> a, matrix_view<const T> b, matrix_view<T> c, in_vector<T> bias,
                      gemm_options opt, context& ctx) {
    kernel_for<op::gemm, B>::template forward<B, T, T, T>(a, {b}, bias, c, no_epilogue{}, opt, ctx);
  }
  template <class E>
  static vector_view<E> vector(std::span<E> s) {
    return {s.data(), s.size()};
  }

  template <backend B, element T>
  static std::size_t forward_workspace(std::size_t tokens, std::size_t hidden, neighborhood_attention_layer_options opt,
                                       std::size_t workers) {
    return std::max({gemm_workspace<B, T>(tokens, workspace::product(3, hidden), hidden, workers),
                     gemm_workspace<B, T>(tokens, hidden, hidden, workers),
                     neighborhood_attention_workspace<row_backend<B>, T>(workspace::product(tokens, opt.heads),
                                                                         opt.attention, workers)});
  }
  template <backend B, element T>
  static std::size_t backward_workspace(std::size_t tokens, std::size_t hidden,
                                        neighborhood_attention_layer_options opt, std::size_t workers, parameters of) {
    using R = row_backend<B>;
    const std::size_t wide = workspace::product(3, hidden);
    const bool trains = detail::trains(of);
    const std::size_t sums =
        !trains
            ? 0
            : std::max({gemm_workspace<B, T>(hidden, hidden, tokens, workers),
                        gemm_workspace<B, T>(wide, hidden, tokens, workers), layer_norm_workspace<R, T>(tokens, hidden),
                        simd::partials_workspace<R, accumulator_t<T>>(tokens, wide, 1)});
    return workspace::bytes_for<T>(tokens, wide) + workspace::bytes_for<T>(tokens, hidden) +
           std::max({gemm_workspace<B, T>(tokens, hidden, hidden, workers),
                     gemm_workspace<B, T>(tokens, hidden, wide, workers), sums,
                     neighborhood_attention_backward_workspace<R, T>(workspace::product(tokens, opt.heads),
                                                                     opt.attention, workers)});
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_ATTENTION_NEIGHBORHOOD_ATTENTION_LAYER_KERNEL_HPP
