// Attention over depth: a token at a time, four blocks side by side. All weights are known before the first block is
// added, so that nothing but a tile of the mean has to stay.
#ifndef TIGON_BACKENDS_ASCEND_ATTN_RES_HPP
#define TIGON_BACKENDS_ASCEND_ATTN_RES_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/attn_res.hpp>

namespace tigon {

template <>
struct kernel<op::attn_res, backends::ascend> {
  template <class A>
  using saved = std::span<A>;  // alpha and rstd, a row of numbers a token each

  using parent = kernel<op::attn_res, backends::generic>;
  static constexpr std::size_t together = detail::blocks_together;
  static_assert(together == 4);

  template <class Plan>
  static constexpr ub::cut one_token(std::size_t cols) {
    return {1, std::min(cols, Plan::block), Plan::programs};
  }

  /// Blocks n, n + 1, ... behind the tiles; none, which reads as zeros and is not written, where there are no more.
  template <class Core, class T, class... Tile>
  static TIGON_INLINE void aim(const Core& core, blocks_view<T> v, std::size_t n, Tile&... tile) {
    const auto one = [&](auto& t) TIGON_LAMBDA {
      const matrix_view<T> block = n < v.blocks ? v[n] : matrix_view<T>{};
      if (t.global.data != block.data) core.point(t, block);
      ++n;
    };
    (one(tile), ...);
  }
  template <class A, std::size_t N>
  static TIGON_INLINE void add(std::array<double, N>& sums, const std::array<A, N>& more) {
    for (std::size_t k = 0; k < N; ++k) sums[k] += more[k];
  }

  /// y = sum_n as[n] v[n] of one token, `together` blocks at a time.
  template <class Core, class T, class A, class Mean, class Y, class... Tile>
  static TIGON_INLINE void write_mean(Core& core, blocks_view<const T> v, const A* as, Mean& mt, Y& yt, Tile&... tile) {
    for (std::size_t j = 0; j < core.col_blocks(); ++j) {
      core.cols_at(j);
      core.part(ub::reads(mt), ub::writes(), [](auto row, auto mv) TIGON_LAMBDA {
        row.map(reads(constant(A(0))), writes(mv), [](auto zero) { return zero; });
      });
      for (std::size_t n = 0; n < v.blocks; n += together) {
        aim(core, v, n, tile...);
        const auto weight = [=](std::size_t k) TIGON_LAMBDA { return n + k < v.blocks ? as[n + k] : A(0); };
        const A w0 = weight(0), w1 = weight(1), w2 = weight(2), w3 = weight(3);
        const auto mean = [=](auto row, auto v0, auto v1, auto v2, auto v3, auto mv, auto to) TIGON_LAMBDA {
          row.map(reads(v0, v1, v2, v3, mv), writes(to), [=](auto x0, auto x1, auto x2, auto x3, auto m) {
            return fma(x0, w0, x1 * w1) + fma(x2, w2, fma(x3, w3, m));
          });
        };
        if (n + together < v.blocks)
          core.part(ub::reads(tile..., mt), ub::writes(),
                    [=](auto row, auto v0, auto v1, auto v2, auto v3, auto mv)
                        TIGON_LAMBDA { mean(row, v0, v1, v2, v3, mv, mv); });
        else
          core.part(ub::reads(tile..., mt), ub::writes(yt), mean);
      }
    }
  }

  template <backend B, element T, element W>
  static void forward(in_blocks<T> v, in_vector<W> w_query, in_vector<W> w_norm, matrix_view<T> y,
                      std::span<accumulator_t<T>> alpha, std::span<accumulator_t<T>> rstd, attn_res_options opt,
                      context& ctx) {
    using A = accumulator_t<T>;
    using plan = ub::plan<B, op::attn_res, tiling::pass::forward, A>;
    using block = matrix_view<const T>;
    A *const alphas = alpha.data(), *const rstds = rstd.data();
    const double eps = opt.eps, cols = static_cast<double>(y.cols);
    const bool round_key = opt.round_key;
    ub::for_row_blocks<plan>(
        ctx, y.rows, y.cols, one_token<plan>(y.cols),
        [=](auto& core, auto& t0, auto& t1, auto& t2, auto& t3, auto& qt, auto& gt, auto& mt, auto& yt) TIGON_LAMBDA {
          A *const as = alphas + core.row * v.blocks, *const rs = rstds + core.row * v.blocks;
          detail::depth_softmax<A> over;
          for (std::size_t n = 0; n < v.blocks; n += together) {
            const std::size_t count = std::min(together, v.blocks - n);
            aim(core, v, n, t0, t1, t2, t3);
            std::array<double, 2 * together> s{};
            core.pass(
                ub::reads(t0, t1, t2, t3, qt, gt), ub::writes(),
                [&](auto row, auto v0, auto v1, auto v2, auto v3, auto qv, auto gv) TIGON_LAMBDA {
                  add(s, row.sum(reads(v0, v1, v2, v3, qv, gv), [](auto x0, auto x1, auto x2, auto x3, auto q, auto g) {
                    const auto c = q * g;
                    return pack{x0 * x0, x1 * x1, x2 * x2, x3 * x3, x0 * c, x1 * c, x2 * c, x3 * c};
                  }));
                });
            std::array<double, together> r;
            std::array<double, together> scale, score;
            bool in_range = true;
            for (std::size_t k = 0; k < together; ++k) {
              const double square = static_cast<A>(s[k]) / cols + eps;
              scale[k] = k < count ? detail::scale_for_squares<A>(square) : A(1);
              in_range &= scale[k] == 1;
              r[k] = math::rsqrt(square);
              score[k] = s[together + k] * r[k];
            }
            if (!in_range) {  // as the parent: in f64, multiplied by a power of two
              std::array<double, 2 * together> wide{};
              core.pass(ub::reads(t0, t1, t2, t3, qt, gt), ub::writes(),
                        [&](auto row, auto v0, auto v1, auto v2, auto v3, auto qv, auto gv) TIGON_LAMBDA {
                          const auto add_block = [&](std::size_t k, auto vk) TIGON_LAMBDA {
                            const auto more = parent::exact_sums(row, vk, qv, gv, scale[k]);
                            wide[k] += more[0], wide[together + k] += more[1];
                          };
                          add_block(0, v0), add_block(1, v1), add_block(2, v2), add_block(3, v3);
                        });
              for (std::size_t k = 0; k < together; ++k) {
                if (scale[k] == 1) continue;
                const double square = wide[k] / cols + eps * scale[k] * scale[k];
                const double of_scaled =
                    square <= std::numeric_limits<double>::max() ? math::rsqrt(square) : parent::nan;
                r[k] = of_scaled * scale[k], score[k] = wide[together + k] * of_scaled;
              }
            }
            std::array<double, together> key{};
            if (round_key) {
              const A r0 = static_cast<A>(r[0]), r1 = static_cast<A>(r[1]), r2 = static_cast<A>(r[2]),
                      r3 = static_cast<A>(r[3]);
              core.pass(ub::reads(t0, t1, t2, t3, qt, gt), ub::writes(),
                        [&](auto row, auto v0, auto v1, auto v2, auto v3, auto qv, auto gv) TIGON_LAMBDA {
                          add(key, row.sum(reads(v0, v1, v2, v3, qv, gv), [=](auto x0, auto x1, auto x2, auto x3,
                                                                              auto q, auto g) {
                            const auto met = [=](auto x) { return round_to<W>(round_to<W>(x) * g) * q; };
                            return pack{met(x0 * r0), met(x1 * r1), met(x2 * r2), met(x3 * r3)};
                          }));
                        });
            }
            for (std::size_t k = 0; k < count; ++k) {
              rs[n + k] = static_cast<A>(r[k]);
              over.add(k, round_key ? key[k] : score[k]);
            }
            over.weigh(count);
            for (std::size_t m = 0; m < n; ++m) as[m] *= over.before;
            for (std::size_t k = 0; k < count; ++k) as[n + k] = over.weight[k];
          }
          for (std::size_t n = 0; n < v.blocks; ++n) as[n] *= over.factor(true);
          write_mean(core, v, as, mt, yt, t0, t1, t2, t3);
        },
        block{}, block{}, block{}, block{}, w_query, w_norm, ub::scratch<A>{}, y);
  }

  /// Sums of dy v and u v of a token, block by block, to `of`.
  template <class Core, class A, class V, class... Tile>
  static TIGON_INLINE void add_products(Core& core, V v, A* of, Tile&... t) {
    const std::tuple<Tile&...> tiles(t...);
    auto &t0 = std::get<0>(tiles), &t1 = std::get<1>(tiles), &t2 = std::get<2>(tiles), &t3 = std::get<3>(tiles);
    auto& dt = std::get<4>(tiles);
    auto &qt = std::get<5>(tiles), &gt = std::get<6>(tiles);
    for (std::size_t n = 0; n < v.blocks; n += together) {
      aim(core, v, n, t0, t1, t2, t3);
      std::array<double, 2 * together> s{};
      core.pass(ub::reads(t0, t1, t2, t3, dt, qt, gt), ub::writes(),
                [&](auto row, auto v0, auto v1, auto v2, auto v3, auto dyv, auto qv, auto gv) TIGON_LAMBDA {
                  add(s, row.sum(reads(v0, v1, v2, v3, dyv, qv, gv),
                                 [](auto x0, auto x1, auto x2, auto x3, auto d, auto q, auto g) {
                                   const auto c = q * g;
                                   return pack{x0 * d, x1 * d, x2 * d, x3 * d, x0 * c, x1 * c, x2 * c, x3 * c};
                                 }));
                });
      for (std::size_t k = 0; k < together && n + k < v.blocks; ++k)
        of[2 * (n + k)] = static_cast<A>(s[k]), of[2 * (n + k) + 1] = static_cast<A>(s[together + k]);
    }
  }
  /// da of the block with most weight, and what the mean of da lies above it. As the parent: where one block has nearly
  /// all weight, its da and the mean nearly cancel.
  template <class A>
  static TIGON_INLINE std::array<A, 2> base_and_mean(const A* as, const A* of, std::size_t blocks) {
    std::size_t most = 0;
    for (std::size_t n = 1; n < blocks; ++n) most = as[n] > as[most] ? n : most;
    const A base = of[2 * most];
    A mean(0);
    for (std::size_t n = 0; n < blocks; ++n) mean += as[n] * (of[2 * n] - base);
    return {base, mean};
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
    using plan = ub::plan<B, op::attn_res, tiling::pass::backward, A>;
    using about = std::array<A, 2>;  // da of the block with most weight, and what the mean of da lies above it
    using block = matrix_view<const T>;
    using gradient_block = matrix_view<T>;
    workspace::frame frame(ctx.workspace());
    const bool sums_p = dw_query || dw_norm;
    const vector_view<A> p{sums_p ? frame.template take<A>(dy.cols) : nullptr, dy.cols};
    A* const products = frame.template take<A>(2 * dy.rows * v.blocks);
    const A *const alphas = alpha.data(), *const rstds = rstd.data();
    const A per_col = A(1) / static_cast<A>(dy.cols);
    const auto sums = [=](auto& core, about* of_mean, auto& t0, auto& t1, auto& t2, auto& t3, auto& dt, auto& qt,
                          auto& gt, auto&...) TIGON_LAMBDA {
      const A* const as = alphas + core.row * v.blocks;
      A* const of = products + 2 * core.row * v.blocks;  // sums of dy v and u v, block by block
      add_products(core, v, of, t0, t1, t2, t3, dt, qt, gt);
      *of_mean = base_and_mean(as, of, v.blocks);
    };
    const auto map = [=](auto& core, const about* of_mean, auto& t0, auto& t1, auto& t2, auto& t3, auto& dt, auto& qt,
                         auto& gt, auto& o0, auto& o1, auto& o2, auto& o3, auto&... pt) TIGON_LAMBDA {
      const A *const as = alphas + core.row * v.blocks, *const rs = rstds + core.row * v.blocks;
      const A *const of = products + 2 * core.row * v.blocks, base = (*of_mean)[0], mean = (*of_mean)[1];
      for (std::size_t n = 0; n < v.blocks; n += together) {
        aim(core, v, n, t0, t1, t2, t3);
        aim(core, dv, n, o0, o1, o2, o3);
        A a[together] = {}, ds[together] = {}, c[together] = {};
        for (std::size_t k = 0; k < together && n + k < v.blocks; ++k) {
          const A r = rs[n + k];
          a[k] = as[n + k];
          ds[k] = a[k] * (of[2 * (n + k)] - base - mean) * r;
          c[k] = ds[k] * (r * of[2 * (n + k) + 1]) * r * per_col;
        }
        const auto dv_of = [=](auto d, auto q, auto g, auto x0, auto x1, auto x2, auto x3) {
          const auto u = q * g;
          return pack{fma(d, a[0], fnma(x0, c[0], u * ds[0])), fma(d, a[1], fnma(x1, c[1], u * ds[1])),
                      fma(d, a[2], fnma(x2, c[2], u * ds[2])), fma(d, a[3], fnma(x3, c[3], u * ds[3]))};
        };
        if constexpr (sizeof...(pt) == 0)
          core.part(ub::reads(dt, qt, gt, t0, t1, t2, t3), ub::writes(o0, o1, o2, o3),
                    [=](auto row, auto dyv, auto qv, auto gv, auto v0, auto v1, auto v2, auto v3, auto dv0, auto dv1,
                        auto dv2, auto dv3) TIGON_LAMBDA {
                      row.map(reads(dyv, qv, gv, v0, v1, v2, v3), writes(dv0, dv1, dv2, dv3), dv_of);
                    });
        else
          core.part(ub::reads(pt..., dt, qt, gt, t0, t1, t2, t3), ub::writes(o0, o1, o2, o3),
                    [=](auto row, auto pv, auto dyv, auto qv, auto gv, auto v0, auto v1, auto v2, auto v3, auto dv0,
                        auto dv1, auto dv2, auto dv3) TIGON_LAMBDA {
                      row.map(reads(dyv, qv, gv, v0, v1, v2, v3, pv), writes(dv0, dv1, dv2, dv3, pv),
                              [=](auto d, auto q, auto g, auto x0, auto x1, auto x2, auto x3, auto sum) {
                                const auto o = dv_of(d, q, g, x0, x1, x2, x3);
                                return pack{o.v[0], o.v[1], o.v[2], o.v[3],
                                            fma(x0, ds[0], fma(x1, ds[1], fma(x2, ds[2], fma(x3, ds[3], sum))))};
                              });
                    });
      }
    };
    const auto run = [&](auto sum_tiles, auto map_tiles, auto gradients_of) {
      ub::for_row_blocks_with_partials<plan, about>(ctx, dy.rows, dy.cols, one_token<plan>(dy.cols), sum_tiles,
                                                    map_tiles, gradients_of, block{}, block{}, block{}, block{}, dy,
                                                    w_query, w_norm, gradient_block{}, gradient_block{},
                                                    gradient_block{}, gradient_block{});
    };
    if (!sums_p) return run(sums, map, std::tuple<>());
    run([=](auto& core, about* of_mean, auto&, auto&... t) TIGON_LAMBDA { sums(core, of_mean, t...); },
        [=](auto& core, const about* of_mean, auto& pt, auto&... t) TIGON_LAMBDA { map(core, of_mean, t..., pt); },
        std::tuple(simd::parameter_gradient<A>{p}));
    if (dw_query && dw_norm)
      weight_gradients<plan, A, W>(p, w_query, w_norm, dw_query, dw_norm, opt, ctx);
    else
      kernel<op::attn_res, backends::generic>::template weight_gradients<B, A, W>(p, w_query, w_norm, dw_query, dw_norm,
                                                                                  opt, ctx);
  }

  template <class Plan, class A, element W>
  static void weight_gradients(in_vector<A> p, in_vector<W> w_query, in_vector<W> w_norm, vector_view<W> dw_query,
                               vector_view<W> dw_norm, attn_res_options opt, context& ctx) {
    using weights = matrix_view<const W>;
    const bool accumulate = opt.dparams == gradient::accumulate;
    const std::size_t cols = p.size;
    ub::for_blocks<Plan>(
        ctx,
        [=](auto& core, auto& pt, auto& qt, auto& gt, auto& old_q, auto& old_g, auto& dqt, auto& dgt) TIGON_LAMBDA {
          if (accumulate)
            core.flat_part(
                ub::reads(pt, qt, gt, old_q, old_g), ub::writes(dqt, dgt),
                [](auto row, auto pv, auto qv, auto gv, auto oqv, auto ogv, auto dqv, auto dgv) TIGON_LAMBDA {
                  row.map(reads(pv, qv, gv, oqv, ogv), writes(dqv, dgv), [](auto s, auto q, auto g, auto dq, auto dg) {
                    return pack{fma(s, g, dq), fma(s, q, dg)};
                  });
                });
          else
            core.flat_part(ub::reads(pt, qt, gt), ub::writes(dqt, dgt),
                           [](auto row, auto pv, auto qv, auto gv, auto dqv, auto dgv) TIGON_LAMBDA {
                             row.map(reads(pv, qv, gv), writes(dqv, dgv), [](auto s, auto q, auto g) {
                               return pack{s * g, s * q};
                             });
                           });
        },
        matrix_view<const A>(p.data, 1, cols), weights(w_query.data, 1, cols), weights(w_norm.data, 1, cols),
        weights(dw_query.data, 1, cols), weights(dw_norm.data, 1, cols), matrix_view<W>(dw_query.data, 1, cols),
        matrix_view<W>(dw_norm.data, 1, cols));
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_ATTN_RES_HPP
