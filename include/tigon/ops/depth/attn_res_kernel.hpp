// The generic kernel of attn_res.
//
// Written row by row (rows/row.hpp), not as a program: a row of each of N blocks is reduced and mapped, where N is
// known at run time. Forward needs the highest score of the blocks before, and backward all sums of a token.
#ifndef TIGON_OPS_DEPTH_ATTN_RES_KERNEL_HPP
#define TIGON_OPS_DEPTH_ATTN_RES_KERNEL_HPP

#include <tigon/backend/caches.hpp>
#include <tigon/ops/depth/attn_res_options.hpp>
#include <tigon/ops/depth/attn_res_program.hpp>
#include <tigon/ops/norm/row_scale.hpp>
#include <tigon/rows/reduce_map.hpp>

namespace tigon {

template <>
struct kernel<op::attn_res, backends::generic> {
  template <class A>
  using saved = std::span<A>;  // alpha and rstd, a row of numbers a token each

  static constexpr std::size_t together = detail::blocks_together;

  template <backend B, element T, element W>
  static void forward(in_blocks<T> v, in_vector<W> w_query, in_vector<W> w_norm, matrix_view<T> y,
                      std::span<accumulator_t<T>> alpha, std::span<accumulator_t<T>> rstd, attn_res_options opt,
                      context& ctx) {
    using A = accumulator_t<T>;
    workspace::frame frame(ctx.workspace());
    const in_vector<A> u = query<B, A>(w_query, w_norm, frame, ctx);
    const double eps = opt.eps;
    const bool round_key = opt.round_key;
    A *const alphas = alpha.data(), *const rstds = rstd.data();
    for_rows<B, A>(ctx, y.rows, y.cols, {.scratch = 1}, [=] TIGON_FN(auto row) {
      A *const as = alphas + row.i * v.blocks, *const rs = rstds + row.i * v.blocks;
      const auto mean = row.scratch(0);
      row.map(reads(constant(A(0))), writes(mean), [](auto zero) { return zero; });
      detail::depth_softmax<A> over;
      for (std::size_t n = 0; n < v.blocks; n += together) {
        const std::size_t count = std::min(together, v.blocks - n);
        const bool last = n + count == v.blocks;
        const auto at = [=](std::size_t k) { return v[n + std::min(k, count - 1)]; };
        const auto s = sums(
            row,
            [](auto x0, auto x1, auto x2, auto x3, auto c) {
              using detail::score_terms, simd::joined;
              return joined(joined(score_terms(x0, c), score_terms(x1, c)),
                            joined(score_terms(x2, c), score_terms(x3, c)));
            },
            read_again(at(0)), read_again(at(1)), read_again(at(2)), read_again(at(3)), u);
        for (std::size_t k = 0; k < count; ++k) {
          const double width = static_cast<double>(row.cols);
          double square = s[2 * k] / width + eps, product = s[2 * k + 1];
          const double p = detail::scale_for_squares<A>(square);
          if (row.cols <= narrow || p != 1) {
            const auto exact = exact_sums(row, at(k), w_query, w_norm, p);
            square = exact[0] / width + eps * p * p, product = exact[1];
          }
          const double r = square <= std::numeric_limits<double>::max() ? math::rsqrt(square) : nan;
          const A scale = static_cast<A>(r * p);
          double score = product * r;
          if (round_key)
            score = row.sum(reads(at(k), w_query, w_norm),
                            [=](auto x, auto q, auto g) { return round_to<W>(round_to<W>(x * scale) * g) * q; });
          row.save(rs[n + k], scale);
          over.add(k, score);
        }
        over.weigh(count);
        const A f = over.factor(last), b = over.before * f, w0 = over.weight[0] * f, w1 = over.weight[1] * f,
                w2 = over.weight[2] * f, w3 = over.weight[3] * f;
        if (row.first()) {
          for (std::size_t m = 0; m < n; ++m) as[m] *= over.before;
          for (std::size_t k = 0; k < count; ++k) as[n + k] = over.weight[k];
        }
        const auto add_to = [=](auto to) {
          row.map(reads(at(0), at(1), at(2), at(3), mean), writes(to), [=](auto x0, auto x1, auto x2, auto x3, auto m) {
            return fma(x0, w0, x1 * w1) + fma(x2, w2, fma(x3, w3, m * b));
          });
        };
        if (last)
          add_to(y);
        else
          add_to(mean);
      }
      for (std::size_t n = 0; n < v.blocks; ++n)
        if (row.first()) as[n] *= over.factor(true);
    });
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_blocks<T> v, in_vector<W> w_query, in_vector<W> w_norm,
                       attn_res_saved<std::span<const accumulator_t<T>>> of_forward,
                       attn_res_gradients<T, vector_view<W>, vector_view<W>> gradients, attn_res_options opt,
                       context& ctx) {
    const std::span<const accumulator_t<T>> alpha = of_forward.alpha, rstd = of_forward.rstd;
    const blocks_view<T> dv = gradients.dv;
    const vector_view<W> dw_query = gradients.dw_query, dw_norm = gradients.dw_norm;
    using A = accumulator_t<T>;
    workspace::frame frame(ctx.workspace());
    const in_vector<A> u = query<B, A>(w_query, w_norm, frame, ctx);
    const bool sums_p = dw_query || dw_norm;
    const vector_view<A> p{sums_p ? frame.template take<A>(dy.cols) : nullptr, dy.cols};
    A* const products = frame.template take<A>(2 * dy.rows * v.blocks);
    const A *const alphas = alpha.data(), *const rstds = rstd.data();
    const A per_col = A(1) / static_cast<A>(dy.cols);
    for_rows<B, A>(ctx, dy.rows, dy.cols, adds_to(parameter_gradient<A>{p}), [=] TIGON_FN(auto row) TIGON_LAMBDA {
      const A *const as = alphas + row.i * v.blocks, *const rs = rstds + row.i * v.blocks;
      A* const of = products + 2 * row.i * v.blocks;  // sums of dy v and u v, block by block
      const auto p_row = row.partial(0);
      for (std::size_t n = 0; n < v.blocks; n += together) {
        const std::size_t count = std::min(together, v.blocks - n);
        const auto at = [=](std::size_t k) { return v[n + std::min(k, count - 1)]; };
        const auto s = sums(
            row,
            [](auto x0, auto x1, auto x2, auto x3, auto d, auto c) {
              return pack{x0 * d, x1 * d, x2 * d, x3 * d, x0 * c, x1 * c, x2 * c, x3 * c};
            },
            at(0), at(1), at(2), at(3), dy, u);
        for (std::size_t k = 0; k < count; ++k) {
          row.save(of[2 * (n + k)], static_cast<A>(s[k]));
          row.save(of[2 * (n + k) + 1], static_cast<A>(s[together + k]));
        }
      }
      row.sync();  // all workers read the sums of all blocks
      // Relative to the da of the block with most weight: where that has nearly all weight, its da is nearly the
      // mean, and their difference is the sum over the other blocks.
      std::size_t most = 0;
      for (std::size_t n = 1; n < v.blocks; ++n) most = as[n] > as[most] ? n : most;
      const A base = of[2 * most];
      A mean(0);
      for (std::size_t n = 0; n < v.blocks; ++n) mean += as[n] * (of[2 * n] - base);
      const auto ds = [=](std::size_t n) { return as[n] * (of[2 * n] - base - mean) * rs[n]; };
      const auto shrink = [=](std::size_t n) { return ds(n) * (rs[n] * of[2 * n + 1]) * rs[n] * per_col; };
      // dv in a part of the row, and what it adds to p, if that is wanted.
      const auto map_part = [=](const auto& part, auto... p_part) TIGON_LAMBDA {
        std::size_t n = 0;
        for (; n + 2 <= v.blocks; n += 2) {
          const A a0 = as[n], d0 = ds(n), c0 = shrink(n), a1 = as[n + 1], d1 = ds(n + 1), c1 = shrink(n + 1);
          part.map(reads(dy, u, v[n], v[n + 1], p_part...), writes(dv[n], dv[n + 1], p_part...),
                   [=](auto d, auto c, auto x0, auto x1, auto... sum) {
                     return pack{fma(d, a0, fnma(x0, c0, c * d0)), fma(d, a1, fnma(x1, c1, c * d1)),
                                 fma(x0, d0, fma(x1, d1, sum))...};
                   });
        }
        if (n == v.blocks) return;
        const A a = as[n], d0 = ds(n), c0 = shrink(n);
        part.map(reads(dy, u, v[n], p_part...), writes(dv[n], p_part...), [=](auto d, auto c, auto x, auto... sum) {
          return pack{fma(d, a, fnma(x, c0, c * d0)), fma(x, d0, sum)...};
        });
      };
      // Some columns at a time: dy, u and p stay in L1 from block to block.
      constexpr std::size_t width = 2 * columns_per_block<B>();
      for (std::size_t first = 0; first < row.cols; first += width) {
        const auto part = row.part(first, std::min(width, row.cols - first));
        if (p_row)
          map_part(part, p_row);
        else
          map_part(part);
      }
    });
    weight_gradients<B, A>(p, w_query, w_norm, dw_query, dw_norm, opt, ctx);
  }

  /// Sums over a row; of a short one in parts, because the error of a score is the relative error of its weight.
  template <class Row, class F, class... X>
  static TIGON_INLINE std::array<double, 2 * together> sums(Row row, F f, X... x) {
    std::array<double, 2 * together> total{};
    const std::size_t width = row.cols <= 512 ? 64 : row.cols;
    for (std::size_t first = 0; first < row.cols; first += width) {
      const auto part = row.part(first, std::min(width, row.cols - first)).sum(reads(x...), f);
      for (std::size_t k = 0; k < total.size(); ++k) total[k] += part[k];
    }
    return total;
  }
  static constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  /// A few columns, or squares that leave the range: all of it in f64, of p v.
  static constexpr std::size_t narrow = 64;
  template <class Row, class X, class W>
  static TIGON_INLINE std::array<double, 2> exact_sums(Row row, X x, W w_query, W w_norm, double p) {
    return row.sum(reads(in_f64(x), w_query, w_norm), [=](auto v, auto q, auto g) {
      using V = decltype(v);
      return detail::score_terms(V(v * p), V(detail::product_program{}.map(q, g)));
    });
  }

  /// u = w_query * w_norm.
  template <backend B, class A, element W>
  static in_vector<A> query(in_vector<W> w_query, in_vector<W> w_norm, workspace::frame& frame, context& ctx) {
    const vector_view<A> u{frame.template take<A>(w_query.size), w_query.size};
    map_rows<B>(ctx, detail::product_program{}, reads(as_row(w_query), as_row(w_norm)), writes(as_row(u)));
    return u;
  }

  template <backend B, class A, element W>
  static void weight_gradients(in_vector<A> p, in_vector<W> w_query, in_vector<W> w_norm, vector_view<W> dw_query,
                               vector_view<W> dw_norm, attn_res_options opt, context& ctx) {
    if (!dw_query || !dw_norm) {
      if (dw_query) weight_gradient<B, A>(p, w_norm, dw_query, opt, ctx);
      if (dw_norm) weight_gradient<B, A>(p, w_query, dw_norm, opt, ctx);
      return;
    }
    const auto run = [&](auto... old) {
      map_rows<B>(ctx, detail::attn_res_weight_gradients{}, reads(as_row(p), as_row(w_query), as_row(w_norm), old...),
                  writes(as_row(dw_query), as_row(dw_norm)));
    };
    if (opt.dparams == gradient::accumulate)
      run(as_row(dw_query), as_row(dw_norm));
    else
      run();
  }
  /// Of one of the two.
  template <backend B, class A, element W>
  static void weight_gradient(in_vector<A> p, in_vector<W> other, vector_view<W> dw, attn_res_options opt,
                              context& ctx) {
    const auto run = [&](auto... old) {
      map_rows<B>(ctx, detail::attn_res_weight_gradient{}, reads(as_row(p), as_row(other), old...), writes(as_row(dw)));
    };
    if (opt.dparams == gradient::accumulate)
      run(as_row(dw));
    else
      run();
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_DEPTH_ATTN_RES_KERNEL_HPP
