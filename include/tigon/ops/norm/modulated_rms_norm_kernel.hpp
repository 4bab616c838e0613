// The generic kernel of modulated_rms_norm.
#ifndef TIGON_OPS_NORM_MODULATED_RMS_NORM_KERNEL_HPP
#define TIGON_OPS_NORM_MODULATED_RMS_NORM_KERNEL_HPP

#include <tigon/ops/norm/modulated_rms_norm_options.hpp>
#include <tigon/ops/norm/modulated_rms_norm_program.hpp>
#include <tigon/ops/norm/rms_norm_kernel.hpp>

namespace tigon {

template <>
struct kernel<op::modulated_rms_norm, backends::generic> {
  template <class A>
  using saved = std::span<A>;  // rstd

  template <backend B, element T, element W, element S>
  static void forward(in_matrix<T> x, in_vector<W> w, matrix_view<const S> scale, in_matrix<S> shift, matrix_view<T> y,
                      std::span<accumulator_t<T>> rstd, modulated_rms_norm_options opt, context& ctx) {
    opt = detail::options_for_weight(opt, w);
    if (by_row(x.rows, x.cols, scale.rows)) {
      detail::with_casting<T>(
          opt.casting, [&](auto rule) { forward_rows<B, rule.value>(x, w, scale, shift, y, rstd.data(), opt, ctx); });
    } else {
      workspace::frame frame(ctx.workspace());
      const auto weights = group_weights<B, accumulator_t<T>>(frame, scale, w, opt, ctx);
      detail::with_casting<T>(
          opt.casting, [&](auto rule) { forward_groups<B, rule.value>(x, weights, shift, y, rstd.data(), opt, ctx); });
    }
  }

  template <backend B, element T, element W, element S>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> w, in_matrix<S> scale,
                       std::span<const accumulator_t<T>> rstd,
                       modulated_rms_norm_gradients<T, vector_view<W>, S> gradients, modulated_rms_norm_options opt,
                       context& ctx) {
    opt = detail::options_for_weight(opt, w);
    if (by_row(x.rows, x.cols, scale.rows))
      detail::with_casting<T>(opt.casting, [&](auto rule) {
        backward_rows<B, rule.value, T, W, S>(dy, x, w, scale, rstd.data(), gradients, opt, ctx);
      });
    else
      backward_groups<B, T, W, S>(dy, x, w, scale, rstd.data(), gradients, opt, ctx);
  }

  using plain = kernel<op::rms_norm, backends::generic>;
  /// Whether every row has a scale of its own, which is then read, and its gradient written, with x. Otherwise a group
  /// is an rms_norm of weight (1 + scale) * (offset + w); so is a row of a few columns, whose dx is made in f64.
  static constexpr bool by_row(std::size_t rows, std::size_t cols, std::size_t groups) {
    return groups == rows && cols > plain::narrow;
  }

  /// The row of a group; none where the matrix is absent.
  template <class S>
  static TIGON_INLINE vector_view<S> row_of(matrix_view<S> m, std::size_t group) {
    if (m.data == nullptr) return {};
    return {m.row(group), m.cols};
  }
  /// What a gradient is added to: zeros where it is overwritten or absent.
  template <class S>
  static auto added_to(matrix_view<S> gradient, tigon::gradient mode) {
    return or_zeros(mode == gradient::accumulate ? in_matrix<S>(gradient) : in_matrix<S>());
  }

  template <backend B, class A, element W, element S>
  static matrix_view<A> group_weights(workspace::frame& frame, matrix_view<const S> scale, in_vector<W> w,
                                      const modulated_rms_norm_options& opt, context& ctx) {
    const A offset = static_cast<A>(opt.offset);
    const matrix_view<A> out{frame.template take<A>(scale.rows * scale.cols), scale.rows, scale.cols};
    map_rows<B>(ctx, detail::group_weight_program<A>{offset}, reads(scale, or_ones(w)), writes(out));
    return out;
  }

  template <backend B, casting C, element T, element W, element S, class A>
  static void forward_rows(matrix_view<const T> x, in_vector<W> w, matrix_view<const S> scale,
                           matrix_view<const S> shift, matrix_view<T> y, A* rstd, modulated_rms_norm_options opt,
                           context& ctx) {
    const detail::modulated_rms_norm_program<C, T, A> program{{static_cast<A>(x.cols), static_cast<A>(opt.eps)},
                                                              static_cast<A>(opt.offset)};
    reduce_map<B>(ctx, program, reads(x), map_reads(or_ones(w), scale, or_zeros(shift)), writes(y), saves(rstd));
  }

  template <backend B, casting C, element T, element S, class A>
  static void forward_groups(matrix_view<const T> x, matrix_view<A> w, matrix_view<const S> shift, matrix_view<T> y,
                             A* rstd, modulated_rms_norm_options opt, context& ctx) {
    const std::size_t size = x.rows / std::max<std::size_t>(w.rows, 1);
    const detail::shifted_rms_norm_program<C, T, A> program{{static_cast<A>(x.cols), static_cast<A>(opt.eps)}};
    reduce_map<B>(ctx, program, reads(x), map_reads(row_of_group(w, size), row_of_group(or_zeros(shift), size)),
                  writes(y), saves(rstd));
  }

  template <backend B, casting C, element T, element W, element S, class A>
  static void backward_rows(matrix_view<const T> dy, matrix_view<const T> x, in_vector<W> w, matrix_view<const S> scale,
                            const A* rstd, modulated_rms_norm_gradients<T, vector_view<W>, S> to,
                            modulated_rms_norm_options opt, context& ctx) {
    const detail::modulated_rms_norm_gradient<C, T, A> program{static_cast<A>(x.cols), static_cast<A>(opt.offset)};
    // Without a shift, what would be its gradient is overwritten by that of scale.
    const matrix_view<S> to_shift = to.dshift.data == nullptr ? to.dscale : to.dshift;
    reduce_map<B>(ctx, program, reads(dy, x, or_ones(w), scale, added_to(to.dshift, opt.dscale)), of_rows(rstd),
                  map_reads(added_to(to.dscale, opt.dscale)), reduce_writes(to_shift), writes(to.dx, to.dscale),
                  adds_to(parameter_gradient<W>{to.dw, opt.dw}));
  }

  /// The gradient of a group's weight takes its place; dscale and dw are multiples of it.
  template <backend B, element T, element W, element S, class A>
  static void backward_groups(matrix_view<const T> dy, matrix_view<const T> x, in_vector<W> w,
                              matrix_view<const S> scale, const A* rstd,
                              modulated_rms_norm_gradients<T, vector_view<W>, S> to, modulated_rms_norm_options opt,
                              context& ctx) {
    const matrix_view<T> dx = to.dx;
    const matrix_view<S> dshift = to.dshift;
    const std::size_t groups = scale.rows, cols = x.cols;
    const auto beside = rows_beside<B>(x.rows, groups);
    const std::size_t size = beside.count;
    workspace::frame frame(ctx.workspace());
    const matrix_view<A> weights = group_weights<B, A>(frame, scale, w, opt, ctx);
    const std::size_t bytes = x.rows * x.cols * sizeof(T);
    const auto backward = [=](std::size_t j, context& own) {
      const auto rows = [=](auto m) { return m.rows_from(j * size, size); };
      const vector_view<A> weight = row_of(weights, j);
      const parameter_gradient<S> shift{row_of(dshift, j), opt.dscale};
      if (cols <= plain::narrow)
        group_in_f64<B>(size, detail::rms_norm_reads{rows(dy), rows(x), in_vector<A>(weight), rstd + j * size},
                        rows(dx), weight, shift, opt, own);
      else
        detail::with_casting<T>(opt.casting, [&](auto rule) {
          backward_group<B, rule.value, T>({rows(dy), bytes}, {rows(x), bytes}, weight, rstd + j * size,
                                           {rows(dx), bytes}, shift, {opt.eps, beside}, own);
        });
    };
    if (!side_by_side<B>(groups)) {  // threads inside
      for (std::size_t j = 0; j < groups; ++j) backward(j, ctx);
    } else {
      const std::size_t share = group_workspace<B, A>(beside, cols);
      std::byte* memory = frame.template take<std::byte>(ctx.executor().workers() * share);
      detail::for_host_tasks<B>(ctx, groups, [&](std::size_t j, std::size_t worker) {
        workspace scratch(std::span(memory + worker * share, share));
        context own(serial(), scratch);
        backward(j, own);
      });
    }
    map_rows<B>(ctx, detail::group_weight_gradient<A>{static_cast<A>(opt.offset)},
                reads(weights, or_ones(w), scale, added_to(to.dscale, opt.dscale)), writes(to.dscale),
                adds_to(parameter_gradient<W>{to.dw, opt.dw}));
  }
  /// Whether groups are tasks, or each is cut into tasks.
  static constexpr std::size_t many_groups = 16;
  template <backend B>
  static constexpr bool side_by_side(std::size_t groups) {
    return groups >= many_groups;
  }
  /// The rows of a group, and those that are gone over beside it.
  template <backend B>
  static constexpr simd::rows_of_all rows_beside(std::size_t rows, std::size_t groups) {
    const std::size_t size = rows / std::max<std::size_t>(groups, 1);
    return {size, side_by_side<B>(groups) ? rows : size};
  }
  /// Bytes of what backward takes for its groups, beside their weights, and for what follows, which is `last`.
  template <backend B, class A>
  static std::size_t groups_workspace(std::size_t rows, std::size_t cols, std::size_t groups, std::size_t last,
                                      const context& ctx) {
    const std::size_t group = group_workspace<B, A>(rows_beside<B>(rows, groups), cols);
    return side_by_side<B>(groups) ? workspace::bytes_for<std::byte>(ctx.executor().workers(), group) + last
                                   : std::max(group, last);
  }
  template <backend B, class A>
  static std::size_t group_workspace(simd::rows_of_all rows, std::size_t cols) {
    return simd::partials_workspace<B, A>(cols <= plain::narrow ? rows.count : rows, cols, 2);
  }

  /// dx and dshift of a group, and in place of its weight the gradient of that.
  template <backend B, element T, element S, class A>
  static void group_in_f64(simd::rows_of_all of, detail::rms_norm_reads<matrix_view<const T>, A, A> in,
                           matrix_view<T> dx, vector_view<A> dw, parameter_gradient<S> dshift,
                           modulated_rms_norm_options opt, context& ctx) {
    map_rows<B>(ctx, detail::shift_gradient{}, reads(in.dy), writes(), adds_to(dshift), of);
    plain::backward_in_f64<B>(of, in, dx, dw, {.eps = opt.eps, .casting = opt.casting}, ctx);
  }
  struct rows_and_eps {
    double eps;
    simd::rows_of_all rows;
  };
  template <backend B, casting C, element T, element S, class A>
  static void backward_group(rows_of<const T> dy, rows_of<const T> x, vector_view<A> w, const A* rstd, rows_of<T> dx,
                             parameter_gradient<S> dshift, rows_and_eps of, context& ctx) {
    const detail::shifted_rms_norm_gradient<C, T, A> program{
        {static_cast<A>(x.part.cols), A(0), static_cast<A>(of.eps)}};
    reduce_map<B>(ctx, program, reads(dy, x, w), of_rows(rstd), writes(dx), adds_to(parameter_gradient<A>{w}, dshift),
                  of.rows);
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_NORM_MODULATED_RMS_NORM_KERNEL_HPP
