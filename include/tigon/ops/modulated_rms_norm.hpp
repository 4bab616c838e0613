// RMSNorm with a scale and a shift for every group of rows, forward and backward.
#ifndef TIGON_OPS_MODULATED_RMS_NORM_HPP
#define TIGON_OPS_MODULATED_RMS_NORM_HPP

#include <tigon/ops/modulated_rms_norm_contract.hpp>
#include <tigon/ops/rms_norm.hpp>

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
                       std::span<const accumulator_t<T>> rstd, matrix_view<T> dx, vector_view<W> dw,
                       matrix_view<S> dscale, matrix_view<S> dshift, modulated_rms_norm_options opt, context& ctx) {
    opt = detail::options_for_weight(opt, w);
    if (by_row(x.rows, x.cols, scale.rows))
      detail::with_casting<T>(opt.casting, [&](auto rule) {
        backward_rows<B, rule.value, T, W, S>(dy, x, w, scale, rstd.data(), dx, dw, dscale, dshift, opt, ctx);
      });
    else
      backward_groups<B, T, W, S>(dy, x, w, scale, rstd.data(), dx, dw, dscale, dshift, opt, ctx);
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
    for_rows<B, A>(ctx, out.rows, out.cols, [=] TIGON_FN(auto row) {
      row.map(reads(scale, or_ones(w)), writes(out), [=](auto s, auto g) { return (s + A(1)) * (g + offset); });
    });
    return out;
  }

  template <backend B, casting C, element T, element W, element S, class A>
  static void forward_rows(matrix_view<const T> x, in_vector<W> w, matrix_view<const S> scale,
                           matrix_view<const S> shift, matrix_view<T> y, A* rstd, modulated_rms_norm_options opt,
                           context& ctx) {
    const A eps = static_cast<A>(opt.eps), offset = static_cast<A>(opt.offset);
    for_rows<B, A>(ctx, x.rows, x.cols, [=] TIGON_FN(auto row) {
      const A r = detail::keep_rstd(row, x, rstd, eps);
      row.map(reads(x, or_ones(w), scale, or_zeros(shift)), writes(y), [=](auto v, auto g, auto s, auto t) {
        return fma(detail::cast_normalised<C, T>(v * r) * (g + offset), s + A(1), t);
      });
    });
  }

  template <backend B, casting C, element T, element S, class A>
  static void forward_groups(matrix_view<const T> x, matrix_view<A> w, matrix_view<const S> shift, matrix_view<T> y,
                             A* rstd, modulated_rms_norm_options opt, context& ctx) {
    const A eps = static_cast<A>(opt.eps);
    const std::size_t size = std::max<std::size_t>(x.rows / std::max<std::size_t>(w.rows, 1), 1);
    const auto statistic = [=] TIGON_FN(const auto& row) { return detail::keep_rstd(row, x, rstd, eps); };
    map_rows<B, A>(ctx, x.rows, size, x.cols, statistic, [=](std::size_t group) {
      return row_map(
          y,
          [](std::size_t, A r) {
            return [=](auto v, auto g, auto t) { return pack{fma(detail::cast_normalised<C, T>(v * r), g, t)}; };
          },
          x, row_of(w, group), or_zeros(row_of(shift, group)));
    });
  }

  template <backend B, casting C, element T, element W, element S, class A>
  static void backward_rows(matrix_view<const T> dy, matrix_view<const T> x, in_vector<W> w, matrix_view<const S> scale,
                            const A* rstd, matrix_view<T> dx, vector_view<W> dw, matrix_view<S> dscale,
                            matrix_view<S> dshift, modulated_rms_norm_options opt, context& ctx) {
    const A n = static_cast<A>(x.cols), offset = static_cast<A>(opt.offset);
    const auto old_scale = added_to(dscale, opt.dscale), old_shift = added_to(dshift, opt.dscale);
    const parameter_gradient<W> to_dw{dw, opt.dw};
    const auto dot_of = [=](std::size_t i) TIGON_LAMBDA {
      const A p = detail::scale_of_row(rstd[i]);
      return [=](auto d, auto v, auto g, auto s) TIGON_LAMBDA { return d * fma(s, p, p) * (g + offset) * v; };
    };
    const auto gradients = [=](std::size_t i, A k) TIGON_LAMBDA {  // dx, dscale, the sum for dw
      const A r = detail::canonical(rstd[i]), c = r / detail::scale_of_row(r) * k / n;
      return [=](auto d, auto v, auto g, auto s, auto s_was, auto acc) TIGON_LAMBDA {
        const auto f = g + offset, u = d * (s + A(1)), exact = v * r, xh = detail::cast_normalised_again<C, T>(exact);
        return pack{fnma(exact, c, u * f) * r, fma(d, xh * f, s_was), fma(u, xh, acc)};
      };
    };
    if constexpr (B::row.cpu.order != row_order::lookahead) {
      // Memory is written while it is read: dshift, which needs no sum, is written by the pass that makes it.
      if (simd::rows_begin_lines(dshift)) {
        for_rows_with_partials<B, A>(
            ctx, x.rows, x.cols, own_statistic{},
            [=] TIGON_FN(auto row, int) {
              const auto dot = dot_of(row.i);
              const A k = row.map_sum(reads(dy, x, or_ones(w), scale, old_shift), writes(dshift),
                                      [=](auto d, auto v, auto g, auto s, auto was) {
                                        return pack{d + was, dot(d, v, g, s)};
                                      });
              const auto dw_row = row.partial(0);
              row.map(reads(dy, x, or_ones(w), scale, old_scale, dw_row), writes(dx, dscale, dw_row),
                      gradients(row.i, k));
            },
            to_dw);
        return;
      }
    }
    // Without a shift, what would be its gradient is overwritten by that of scale.
    const matrix_view<S> to_shift = dshift.data == nullptr ? dscale : dshift;
    for_rows_with_partials<B, A>(
        ctx, x.rows, x.cols, row_sum(dot_of, dy, x, or_ones(w), scale),
        [=] TIGON_FN(auto row, A k) {
          const auto others = gradients(row.i, k);
          const auto dw_row = row.partial(0);
          row.map(reads(dy, x, or_ones(w), scale, old_shift, old_scale, dw_row), writes(dx, to_shift, dscale, dw_row),
                  [=](auto d, auto v, auto g, auto s, auto t_was, auto s_was, auto acc) {
                    const auto r = others(d, v, g, s, s_was, acc);
                    return pack{r.v[0], d + t_was, r.v[1], r.v[2]};
                  });
        },
        to_dw);
  }

  /// The gradient of a group's weight takes its place; dscale and dw are multiples of it.
  template <backend B, element T, element W, element S, class A>
  static void backward_groups(matrix_view<const T> dy, matrix_view<const T> x, in_vector<W> w,
                              matrix_view<const S> scale, const A* rstd, matrix_view<T> dx, vector_view<W> dw,
                              matrix_view<S> dscale, matrix_view<S> dshift, modulated_rms_norm_options opt,
                              context& ctx) {
    const std::size_t groups = scale.rows, cols = x.cols;
    const auto beside = rows_beside<B>(x.rows, groups);
    const std::size_t size = beside.count;
    const A offset = static_cast<A>(opt.offset);
    workspace::frame frame(ctx.workspace());
    const matrix_view<A> weights = group_weights<B, A>(frame, scale, w, opt, ctx);
    const std::size_t bytes = x.rows * x.cols * sizeof(T);
    const bool held = detail::holds_products(rstd, x.rows);
    const auto backward = [=](std::size_t j, context& own) {
      const auto rows = [=](auto m) { return m.rows_from(j * size, size); };
      const vector_view<A> weight = row_of(weights, j);
      const parameter_gradient<S> shift{row_of(dshift, j), opt.dscale};
      if (cols <= plain::narrow || !held)
        group_in_f64<B, T>(cols <= plain::narrow ? size : beside, rows(dy), rows(x), weight, rstd + j * size, rows(dx),
                           shift, opt, own);
      else
        detail::with_casting<T>(opt.casting, [&](auto rule) {
          backward_group<B, rule.value, T>({rows(dy), bytes}, {rows(x), bytes}, weight, rstd + j * size,
                                           {rows(dx), bytes}, shift, beside, own);
        });
    };
    if (!side_by_side<B>(groups)) {  // threads inside
      for (std::size_t j = 0; j < groups; ++j) backward(j, ctx);
    } else {
      const std::size_t share = group_workspace<B, A>(beside, cols);
      std::byte* memory = frame.template take<std::byte>(ctx.executor().workers() * share);
      ctx.executor().run(groups, [&](std::size_t j, std::size_t worker) {
        workspace scratch(std::span(memory + worker * share, share));
        context own(serial(), scratch);
        backward(j, own);
      });
    }
    const auto old = added_to(dscale, opt.dscale);
    for_rows_with_partials<B, A>(
        ctx, groups, cols, no_statistic{},
        [=] TIGON_FN(auto row, int) {
          const auto dw_row = row.partial(0);
          row.map(reads(weights, or_ones(w), scale, old, dw_row), writes(dscale, dw_row),
                  [=](auto p, auto g, auto s, auto was, auto acc) {
                    return pack{fma(p, g + offset, was), fma(p, s + A(1), acc)};
                  });
        },
        parameter_gradient<W>{dw, opt.dw});
  }
  /// Whether groups are tasks, or each is cut into tasks.
  template <backend B>
  static constexpr bool side_by_side(std::size_t groups) {
    return groups >= most_tasks_with_sums<B>() / 2;
  }
  /// The rows of a group, and those that are gone over beside it.
  template <backend B>
  static constexpr simd::rows_of_all rows_beside(std::size_t rows, std::size_t groups) {
    const std::size_t size = rows / std::max<std::size_t>(groups, 1);
    return {size, side_by_side<B>(groups) ? rows : size};
  }
  template <backend B, class A>
  static std::size_t group_workspace(simd::rows_of_all rows, std::size_t cols) {
    return simd::partials_workspace<B, A>(cols <= plain::narrow ? rows.count : rows, cols, 2);
  }

  /// dx and dshift of a group, and in place of its weight the gradient of that.
  template <backend B, element T, element S, class A>
  static void group_in_f64(simd::rows_of_all of, matrix_view<const T> dy, matrix_view<const T> x, vector_view<A> w,
                           const A* rstd, matrix_view<T> dx, parameter_gradient<S> dshift,
                           modulated_rms_norm_options opt, context& ctx) {
    for_rows_with_partials<B, A>(
        ctx, of, x.cols, no_statistic{},
        [=] TIGON_FN(auto row, int) {
          const auto sum = row.partial(0);
          row.map(reads(sum, dy), writes(sum), [](auto acc, auto d) { return acc + d; });
        },
        dshift);
    plain::backward_in_f64<B, T>(of, dy, x, {}, in_vector<A>(w), rstd, dx, w, {.eps = opt.eps, .casting = opt.casting},
                                 ctx);
  }
  template <backend B, casting C, element T, element S, class A>
  static void backward_group(rows_of<const T> dy, rows_of<const T> x, vector_view<A> w, const A* rstd, rows_of<T> dx,
                             parameter_gradient<S> dshift, simd::rows_of_all rows, context& ctx) {
    const A n = static_cast<A>(x.part.cols);
    for_rows_with_partials<B, A>(
        ctx, rows, x.part.cols,
        row_sum([=](std::size_t) { return [](auto d, auto v, auto g) { return d * g * v; }; }, dy, x, w),
        row_map(
            dx,
            [=](std::size_t i, A k) {
              const A r = detail::canonical(rstd[i]), c = r * k / n * r * r;
              return [=](auto d, auto v, auto g, auto sw, auto st) {
                return pack{fnma(v, c, d * g * r), fma(d, detail::cast_normalised_again<C, T>(v * r), sw), st + d};
              };
            },
            dy, x, w),
        parameter_gradient<A>{w}, dshift);
  }
};

/// Bytes of workspace that modulated_rms_norm_backward takes, and forward at most; `groups` is the number of rows of
/// scale.
template <class B = default_backend, class T>
std::size_t modulated_rms_norm_workspace(std::size_t rows, std::size_t cols, std::size_t groups,
                                         const context& ctx = default_context()) {
  using A = accumulator_t<T>;
  using generic = kernel<op::modulated_rms_norm, backends::generic>;
  if (generic::by_row(rows, cols, groups)) return simd::partials_workspace<B, A>(rows, cols, 1);
  const std::size_t group = generic::group_workspace<B, A>(generic::rows_beside<B>(rows, groups), cols),
                    last = simd::partials_workspace<B, A>(groups, cols, 1);
  return workspace::bytes_for<A>(groups, cols) +
         (generic::side_by_side<B>(groups) ? workspace::bytes_for<std::byte>(ctx.executor().workers(), group) + last
                                           : std::max(group, last));
}

/// y and rstd from x, w, scale and shift. See modulated_rms_norm_options for the contract.
template <class B = default_backend, class T, parameter W, class S>
void modulated_rms_norm_forward(in_matrix<T> x, const W& w, matrix_view<S> scale,
                                in_matrix<std::remove_const_t<S>> shift, matrix_view<T> y,
                                std::type_identity_t<saved_t<op::modulated_rms_norm, B, accumulator_t<T>>> rstd,
                                modulated_rms_norm_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using M = std::remove_const_t<S>;
  const auto weight = as_in_vector<T>(w);
  static_assert(admits_parameter<T, decltype(weight)>() && admits_parameter<T, vector_view<M>>());
  const expects expect("modulated_rms_norm_forward");
  detail::expect_modulated_rms_norm_forward(expect, x, as_row(weight), scale, shift, y, as_row(rstd), opt);
  ctx.workspace().expect("modulated_rms_norm_forward",
                         modulated_rms_norm_workspace<B, T>(x.rows, x.cols, scale.rows, ctx));
  kernel_for<op::modulated_rms_norm, B>::template forward<B, T>(x, weight, matrix_view<const M>(scale), shift, y, rstd,
                                                                opt, ctx);
}

/// dx, dw, dscale and dshift from dy and what forward left. See modulated_rms_norm_options for the contract.
template <class B = default_backend, class T, parameter W, parameter DW, class S>
void modulated_rms_norm_backward(in_matrix<T> dy, in_matrix<T> x, const W& w, in_matrix<S> scale,
                                 std::type_identity_t<saved_t<op::modulated_rms_norm, B, const accumulator_t<T>>> rstd,
                                 matrix_view<T> dx, DW&& dw, matrix_view<S> dscale,
                                 std::type_identity_t<matrix_view<S>> dshift, modulated_rms_norm_options opt = {},
                                 context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<T>(w);
  const auto dweight = as_out_vector<T>(dw);
  static_assert(admits_parameter<T, decltype(weight), decltype(dweight)>() && admits_parameter<T, vector_view<S>>());
  const expects expect("modulated_rms_norm_backward");
  detail::expect_modulated_rms_norm_backward(expect, dy, x, as_row(weight), scale, as_row(rstd), dx, as_row(dweight),
                                             dscale, dshift, opt);
  ctx.workspace().expect("modulated_rms_norm_backward",
                         modulated_rms_norm_workspace<B, T>(x.rows, x.cols, scale.rows, ctx));
  kernel_for<op::modulated_rms_norm, B>::template backward<B, T>(dy, x, weight, scale, rstd, dx, dweight, dscale,
                                                                 dshift, opt, ctx);
}

}  // namespace tigon

#endif  // TIGON_OPS_MODULATED_RMS_NORM_HPP
