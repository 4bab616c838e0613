// Attention over depth: every token attends to what the blocks before have left for it, forward and backward.
//
// Written row by row (rows/row.hpp), not as a program: a row of each of N blocks is reduced and mapped, where N is known at
// run time; forward goes on from block to block by the highest score so far, and backward by all of a token's sums.
#ifndef TIGON_OPS_ATTN_RES_HPP
#define TIGON_OPS_ATTN_RES_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/row_scale.hpp>
#include <tigon/rows/reduce_map.hpp>

namespace tigon {

namespace op {
struct attn_res {
  static constexpr std::string_view name = "attn_res";
};
}  // namespace op

/// Matrices of one shape and row stride: each at a pointer of its own, or all at one distance in one buffer.
template <class T>
struct blocks_view {
  T* const* list = nullptr;  ///< a pointer a block; null where they are stacked
  T* data = nullptr;         ///< the first block, where they are stacked
  std::size_t blocks = 0, rows = 0, cols = 0, row_stride = 0, block_stride = 0;

  /// `list` is read by every call and is not copied.
  static constexpr TIGON_INLINE blocks_view of_pointers(std::type_identity_t<std::span<T* const>> list,
                                                        std::size_t rows, std::size_t cols, std::size_t row_stride) {
    return {list.data(), nullptr, list.size(), rows, cols, row_stride, 0};
  }
  /// [blocks, rows, cols] without gaps.
  static constexpr TIGON_INLINE blocks_view stacked(T* data, std::size_t blocks, std::size_t rows, std::size_t cols) {
    return {nullptr, data, blocks, rows, cols, cols, rows * cols};
  }

  constexpr TIGON_INLINE operator blocks_view<const T>() const
    requires(!std::is_const_v<T>)
  {
    return {list, data, blocks, rows, cols, row_stride, block_stride};
  }

  constexpr TIGON_INLINE matrix_view<T> operator[](std::size_t n) const {
    return {list != nullptr ? list[n] : data + n * block_stride, rows, cols, row_stride};
  }
};

template <class T>
using in_blocks = std::type_identity_t<blocks_view<const T>>;

/// Every token's weighted mean of N blocks; the weights come from a learned query and the normalised blocks.
///
///   rstd[i,n]  = 1 / sqrt(mean_j v[n,i,j]^2 + eps)
///   score[i,n] = sum_j w_query[j] * w_norm[j] * v[n,i,j] * rstd[i,n],   alpha[i,:] = softmax of score[i,:]
///   y[i,j]     = sum_n alpha[i,n] * v[n,i,j]
///   da[i,n]    = sum_j dy[i,j] v[n,i,j],   ds = alpha * (da - sum_n alpha da),   u = w_query * w_norm
///   dv[n]      = alpha * dy + ds * rstd * (u - rstd * score / cols * v)
///   dw_query   = p * w_norm,   dw_norm = p * w_query,   p[j] = sum_i,n ds * rstd * v[n,i,j]
///
/// Formula    docs/formulas/attn_res.md; Kimi Team, "Attention Residuals", 2026.
/// Shapes     v, dv N blocks [rows, cols]; y, dy [rows, cols]; w_query, w_norm, dw_query, dw_norm [cols]; alpha and
///            rstd [rows * N], a row of N numbers a token. N and cols at least 1, rows may be 0.
/// Types      v, y, dy, dv one of f32, bf16, f16, f64; w_query and w_norm of one type, any of them (f64 only with
///            f64).
/// Precision  f32 (f64 for f64), f64 for scores and what they are made of; y, dv, dw_query and dw_norm are rounded
///            once. round_key also rounds what the query meets; backward takes that rounding for the identity.
/// Writes     y, alpha, rstd, dv; dw_query and dw_norm are overwritten, or added to with gradient::accumulate.
/// Aliasing   backward: each block of dv may be the same block of v. forward: none. Otherwise any layout in which no
///            element is shared.
/// Throws     tigon::error: shape, stride, alias, argument (eps negative or NaN), workspace; before the first write.
/// Range      forward: blocks of any size that their type holds, where rstd is a number of its own; backward: where
///            sums of dy v are finite. NaN or an infinity makes its token of y and dv NaN, and dw_query and dw_norm.
/// Max error  f32 4e-6, bf16 4e-3 of |reference| + its root mean square; gradients 2e-5, 8e-3
///            (tests/ops/attn_res_test.cpp).
struct attn_res_options {
  double eps = 1e-6;       ///< inside the square root
  bool round_key = false;  ///< v * rstd and its product with w_norm are rounded to the type of the weights
  gradient dparams = gradient::overwrite;
};

namespace detail {
inline namespace TIGON_ABI {

/// Blocks that are read side by side. Where fewer are left, the last of them stands in, with weight 0.
inline constexpr std::size_t blocks_together = 4;

/// Softmax over the blocks, a few at a time: what came before is scaled down where a higher score turns up. Scores are
/// f64, because the error of a score is the relative error of its weight.
template <class A>
struct depth_softmax {
  double top = -std::numeric_limits<double>::infinity();
  double score[blocks_together];
  A weight[blocks_together], before = A(0), sum = A(0);  ///< of the blocks last added, and of all before them

  TIGON_INLINE void add(std::size_t k, double s) { score[k] = s; }
  /// Takes `count` scores.
  TIGON_INLINE void weigh(std::size_t count) {
    const double lower = top;
    for (std::size_t k = 0; k < count; ++k) top = math::max(top, score[k]);
    before = math::exp_nonpositive(static_cast<A>(lower - top));
    sum *= before;
    for (std::size_t k = 0; k < blocks_together; ++k) {
      weight[k] = k < count ? math::exp_nonpositive(static_cast<A>(score[k] - top)) : A(0);
      sum += weight[k];
    }
  }
  /// The factor of a weight that is part of the mean, after the last.
  TIGON_INLINE A factor(bool last) const { return last ? A(1) / sum : A(1); }
};

/// u = w_query w_norm
struct product_program {
  template <class V>
  TIGON_INLINE V map(V query, V norm) const {
    return query * norm;
  }
};

/// dw_query = p w_norm,   dw_norm = p w_query;   or added to what they are
struct attn_res_weight_gradients {
  template <class V>
  TIGON_INLINE pack<V, 2> map(V p, V query, V norm) const {
    return {{p * norm, p * query}};
  }
  template <class V>
  TIGON_INLINE pack<V, 2> map(V p, V query, V norm, V dquery, V dnorm) const {
    return {{fma(p, norm, dquery), fma(p, query, dnorm)}};
  }
};

}  // namespace TIGON_ABI
}  // namespace detail

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
    for_rows_with_scratch<B, A>(ctx, y.rows, y.cols, 1, [=] TIGON_FN(auto row) {
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
              return pack{x0 * x0, x1 * x1, x2 * x2, x3 * x3, x0 * c, x1 * c, x2 * c, x3 * c};
            },
            read_again(at(0)), read_again(at(1)), read_again(at(2)), read_again(at(3)), u);
        for (std::size_t k = 0; k < count; ++k) {
          const double width = static_cast<double>(row.cols);
          double square = s[k] / width + eps, product = s[together + k];
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
          if (row.first()) rs[n + k] = scale;
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
                       std::span<const accumulator_t<T>> alpha, std::span<const accumulator_t<T>> rstd,
                       blocks_view<T> dv, vector_view<W> dw_query, vector_view<W> dw_norm, attn_res_options opt,
                       context& ctx) {
    using A = accumulator_t<T>;
    workspace::frame frame(ctx.workspace());
    const in_vector<A> u = query<B, A>(w_query, w_norm, frame, ctx);
    const vector_view<A> p{frame.template take<A>(dy.cols), dy.cols};
    A* const products = frame.template take<A>(2 * dy.rows * v.blocks);
    const A *const alphas = alpha.data(), *const rstds = rstd.data();
    const A per_col = A(1) / static_cast<A>(dy.cols);
    for_rows_with_partials<with_whole_rows<B>, A>(
        ctx, dy.rows, dy.cols, no_statistic{},
        [=] TIGON_FN(auto row, int) {
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
            for (std::size_t k = 0; k < count; ++k)
              if (row.first())
                of[2 * (n + k)] = static_cast<A>(s[k]), of[2 * (n + k) + 1] = static_cast<A>(s[together + k]);
          }
          // From the block with most weight: where that is nearly all, its da is nearly the mean, and their difference
          // is the sum of the others'.
          std::size_t most = 0;
          for (std::size_t n = 1; n < v.blocks; ++n) most = as[n] > as[most] ? n : most;
          const A base = of[2 * most];
          A mean(0);
          for (std::size_t n = 0; n < v.blocks; ++n) mean += as[n] * (of[2 * n] - base);
          const auto ds = [=](std::size_t n) { return as[n] * (of[2 * n] - base - mean) * rs[n]; };
          const auto shrink = [=](std::size_t n) { return ds(n) * (rs[n] * of[2 * n + 1]) * rs[n] * per_col; };
          // Some columns at a time: dy, u and p stay in the first-level cache from block to block.
          constexpr std::size_t width = 2 * columns_per_block<B>();
          for (std::size_t first = 0; first < row.cols; first += width) {
            const auto part = row.part(first, std::min(width, row.cols - first));
            std::size_t n = 0;
            for (; n + 2 <= v.blocks; n += 2) {
              const A a0 = as[n], d0 = ds(n), c0 = shrink(n), a1 = as[n + 1], d1 = ds(n + 1), c1 = shrink(n + 1);
              part.map(reads(dy, u, v[n], v[n + 1], p_row), writes(dv[n], dv[n + 1], p_row),
                       [=](auto d, auto c, auto x0, auto x1, auto sum) {
                         return pack{fma(d, a0, fnma(x0, c0, c * d0)), fma(d, a1, fnma(x1, c1, c * d1)),
                                     fma(x0, d0, fma(x1, d1, sum))};
                       });
            }
            if (n == v.blocks) continue;
            const A a = as[n], d0 = ds(n), c0 = shrink(n);
            part.map(reads(dy, u, v[n], p_row), writes(dv[n], p_row), [=](auto d, auto c, auto x, auto sum) {
              return pack{fma(d, a, fnma(x, c0, c * d0)), fma(x, d0, sum)};
            });
          }
        },
        parameter_gradient<A>{p});
    weight_gradients<B, A>(p, w_query, w_norm, dw_query, dw_norm, opt, ctx);
  }

  /// Sums over a row; of a short one in parts, because the error of a score is the relative error of its weight.
  template <class Row, class F, class... X>
  static TIGON_INLINE std::array<double, 2 * together> sums(Row row, F f, X... x) {
    std::array<double, 2 * together> total{};
    const std::size_t width = row.cols <= 512 ? 64 : row.cols;
    for (std::size_t first = 0; first < row.cols; first += width) {
      const auto part = row.part(first, std::min(width, row.cols - first)).sum(reads(x...), f);
      for (std::size_t k = 0; k < 2 * together; ++k) total[k] += part[k];
    }
    return total;
  }
  static constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  /// A few columns, or squares that leave the range: all of it in f64, of p v.
  static constexpr std::size_t narrow = 64;
  template <class Row, class X, class W>
  static TIGON_INLINE std::array<double, 2> exact_sums(Row row, X x, W w_query, W w_norm, double p) {
    double square = 0, product = 0;
    for (std::size_t j = 0; j < row.cols; ++j) {
      const double v = row.at(x, j) * p, q = row.at(w_query, j), g = row.at(w_norm, j);
      square += v * v;
      product += v * q * g;
    }
    return {square, product};
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
    const auto run = [&](auto... old) {
      map_rows<B>(ctx, detail::attn_res_weight_gradients{}, reads(as_row(p), as_row(w_query), as_row(w_norm), old...),
                  writes(as_row(dw_query), as_row(dw_norm)));
    };
    if (opt.dparams == gradient::accumulate)
      run(as_row(dw_query), as_row(dw_norm));
    else
      run();
  }
};

/// Bytes of workspace that attn_res_forward takes.
template <class B = default_backend, class T>
std::size_t attn_res_workspace(std::size_t cols, const context& ctx = default_context()) {
  using A = accumulator_t<T>;
  return workspace::bytes_for<A>(cols) + simd::scratch_workspace<B, A>(cols, 1, ctx);
}

/// Bytes of workspace that attn_res_backward takes.
template <class B = default_backend, class T>
std::size_t attn_res_backward_workspace(std::size_t blocks, std::size_t rows, std::size_t cols) {
  using A = accumulator_t<T>;
  return 2 * workspace::bytes_for<A>(cols) + workspace::bytes_for<A>(2, rows, blocks) +
         simd::partials_workspace<B, A>(rows, cols, 1);
}

namespace detail {
inline namespace TIGON_ABI {
/// N matrices of that shape.
template <class T>
void expect_blocks(const expects& expect, std::string_view name, blocks_view<T> v, std::size_t blocks, std::size_t rows,
                   std::size_t cols) {
  expect.size(std::string("blocks of ") + std::string(name), v.blocks, blocks);
  for (std::size_t n = 0; n < v.blocks; ++n) expect.matrix(name, v[n], rows, cols);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// y, alpha and rstd from the blocks and the weights. See attn_res_options for the contract.
template <class B = default_backend, class T, parameter Q, parameter N>
void attn_res_forward(in_blocks<T> v, const Q& w_query, const N& w_norm, matrix_view<T> y,
                      std::type_identity_t<saved_t<op::attn_res, B, accumulator_t<T>>> alpha,
                      std::type_identity_t<saved_t<op::attn_res, B, accumulator_t<T>>> rstd, attn_res_options opt = {},
                      context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const auto query = as_in_vector<T>(w_query);
  const auto norm = as_in_vector<T>(w_norm);
  static_assert(admits_parameter<T, decltype(query), decltype(norm)>());
  const expects expect("attn_res_forward");
  expect.at_least_one("blocks of v", v.blocks);
  expect.at_least_one("cols", v.cols);
  detail::expect_blocks(expect, "v", v, v.blocks, v.rows, v.cols);
  expect.matrix("y", y, v.rows, v.cols);
  expect.size("w_query", query.size, v.cols);
  expect.size("w_norm", norm.size, v.cols);
  expect.size("alpha", alpha.size(), v.rows * v.blocks);
  expect.size("rstd", rstd.size(), v.rows * v.blocks);
  expect.eps(opt.eps);
  for (std::size_t n = 0; n < v.blocks; ++n) {
    expect.disjoint("y", y, "v", v[n]);
    expect.disjoint("alpha", as_row(alpha), "v", v[n]);
    expect.disjoint("rstd", as_row(rstd), "v", v[n]);
  }
  expect.outside("y", y, "w_query", as_row(query), "w_norm", as_row(norm));
  expect.outside("alpha", as_row(alpha), "y", y, "rstd", as_row(rstd), "w_query", as_row(query), "w_norm",
                 as_row(norm));
  expect.outside("rstd", as_row(rstd), "y", y, "w_query", as_row(query), "w_norm", as_row(norm));
  ctx.workspace().expect("attn_res_forward", attn_res_workspace<B, T>(v.cols, ctx));
  kernel_for<op::attn_res, B>::template forward<B, T>(v, query, norm, y, alpha, rstd, opt, ctx);
}

/// dv, dw_query and dw_norm from dy and what forward left. See attn_res_options for the contract.
template <class B = default_backend, class T, parameter Q, parameter N, parameter DQ, parameter DN>
void attn_res_backward(in_matrix<T> dy, in_blocks<T> v, const Q& w_query, const N& w_norm,
                       std::type_identity_t<saved_t<op::attn_res, B, const accumulator_t<T>>> alpha,
                       std::type_identity_t<saved_t<op::attn_res, B, const accumulator_t<T>>> rstd, blocks_view<T> dv,
                       DQ&& dw_query, DN&& dw_norm, attn_res_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const auto query = as_in_vector<T>(w_query);
  const auto norm = as_in_vector<T>(w_norm);
  const auto dquery = as_out_vector<T>(dw_query);
  const auto dnorm = as_out_vector<T>(dw_norm);
  static_assert(admits_parameter<T, decltype(query), decltype(norm), decltype(dquery), decltype(dnorm)>());
  const expects expect("attn_res_backward");
  expect.at_least_one("blocks of v", v.blocks);
  expect.at_least_one("cols", v.cols);
  detail::expect_blocks(expect, "v", v, v.blocks, v.rows, v.cols);
  detail::expect_blocks(expect, "dv", dv, v.blocks, v.rows, v.cols);
  expect.matrix("dy", dy, v.rows, v.cols);
  expect.size("w_query", query.size, v.cols);
  expect.size("w_norm", norm.size, v.cols);
  expect.size("dw_query", dquery.size, v.cols);
  expect.size("dw_norm", dnorm.size, v.cols);
  expect.size("alpha", alpha.size(), v.rows * v.blocks);
  expect.size("rstd", rstd.size(), v.rows * v.blocks);
  for (std::size_t n = 0; n < v.blocks; ++n) {
    for (std::size_t m = 0; m < v.blocks; ++m) {
      if (m == n)
        expect.same_or_disjoint("dv", dv[n], "v", v[m]);
      else
        expect.disjoint("dv", dv[n], "v", v[m]);
      if (m < n) expect.disjoint("dv", dv[n], "another block of dv", dv[m]);
    }
    expect.outside("dv", dv[n], "dy", dy, "w_query", as_row(query), "w_norm", as_row(norm), "alpha", as_row(alpha),
                   "rstd", as_row(rstd));
    expect.outside("dw_query", as_row(dquery), "v", v[n], "dv", dv[n]);
    expect.outside("dw_norm", as_row(dnorm), "v", v[n], "dv", dv[n]);
  }
  expect.outside("dw_query", as_row(dquery), "dy", dy, "w_query", as_row(query), "w_norm", as_row(norm), "alpha",
                 as_row(alpha), "rstd", as_row(rstd), "dw_norm", as_row(dnorm));
  expect.outside("dw_norm", as_row(dnorm), "dy", dy, "w_query", as_row(query), "w_norm", as_row(norm), "alpha",
                 as_row(alpha), "rstd", as_row(rstd));
  ctx.workspace().expect("attn_res_backward", attn_res_backward_workspace<B, T>(v.blocks, v.rows, v.cols));
  kernel_for<op::attn_res, B>::template backward<B, T>(dy, v, query, norm, alpha, rstd, dv, dquery, dnorm, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_ATTN_RES_HPP
