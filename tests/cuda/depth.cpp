// Kernels of backend cuda for groups, projections and streams, on the model of a GPU.
#include "problem.hpp"
// Behind it: it says how these are compiled.
#include <tigon/ops/attn_res.hpp>
#include <tigon/ops/group_norm.hpp>
#include <tigon/ops/mhc_post_res.hpp>
#include <tigon/ops/mhc_pre.hpp>
#include <tigon/ops/sparsemax.hpp>

namespace {

using namespace cuda_tests;

// Two samples; rows are channels.
template <class T>
auto group_norm_both_ways(std::size_t groups, float middle = 1) {
  return [=](problem<T>& p) {
    const std::size_t channels = p.of().rows / 2, count = 2 * groups;
    const auto x = p.matrix(1, middle), dy = p.matrix(2);
    if (middle == 0) p.scale_some_rows();
    const auto w = numbers<T>(1, channels).fill(3), b = numbers<T>(1, channels).fill(4);
    const auto y = p.made("y"), dx = p.made("dx"), dw = p.made("dw", 1, channels), db = p.made("db", 1, channels);
    const numbers<accumulator_t<T>> mean(1, count), rstd(1, count);
    const group_norm_options opt{.groups = groups};
    return [=]<class B>(context& ctx) {
      group_norm_forward<B>(x.matrix(), w.vector(), b.vector(), y.matrix(), mean.vector(), rstd.vector(), opt, ctx);
      group_norm_backward<B>(dy.matrix(), x.matrix(), w.vector(), mean.vector(), rstd.vector(),
                             norm_gradients{dx.matrix(), dw.vector(), db.vector()}, opt, ctx);
    };
  };
}
// Along the columns, and where there are not too many along the rows.
template <class T>
auto sparsemax_both_ways() {
  return [](problem<T>& p) {
    const auto x = p.matrix(1), dy = p.matrix(2);
    const auto y = p.made("y"), dx = p.made("dx");
    const bool both = p.of().cols < 150;
    const auto yt = both ? p.made("y of columns") : y, dxt = both ? p.made("dx of columns") : dx;
    return [=]<class B>(context& ctx) {
      sparsemax_forward<B>(x.matrix(), y.matrix(), {}, ctx);
      sparsemax_backward<B>(dy.matrix(), y.matrix(), dx.matrix(), {}, ctx);
      const auto axis = [](const numbers<T>& m) { return axis_view<T>(m.data, 1, m.rows, m.cols, 0, m.stride); };
      if (!both) return;
      sparsemax_forward<B>(axis(x), axis(yt), {}, ctx);
      sparsemax_backward<B>(axis(dy), axis(yt), axis(dxt), {}, ctx);
    };
  };
}
template <class T>
auto attn_res_both_ways(std::size_t blocks, attn_res_options opt) {
  return [=](problem<T>& p) {
    const std::size_t rows = p.of().rows, cols = p.of().cols;
    const auto query = p.row(1), norm = p.row(2), dy = p.matrix(3), y = p.made("y");
    const auto dquery = p.made("dw_query", 1, cols), dnorm = p.made("dw_norm", 1, cols);
    std::vector<T*> v, dv;
    for (std::size_t n = 0; n < blocks; ++n) {
      v.push_back(p.matrix(static_cast<unsigned>(n) + 10).data), dv.push_back(p.made("dv").data);
    }
    if (opt.dparams == gradient::accumulate) numbers<T>(dquery).fill(5), numbers<T>(dnorm).fill(6);
    const numbers<accumulator_t<T>> alpha(1, rows * blocks), rstd(1, rows * blocks);
    return [=]<class B>(context& ctx) {
      const auto of = [&](const std::vector<T*>& list) {
        return blocks_view<T>::of_pointers(list, rows, cols, y.stride);
      };
      attn_res_forward<B>(of(v), query.vector(), norm.vector(), y.matrix(), alpha.vector(), rstd.vector(), opt, ctx);
      attn_res_backward<B>(dy.matrix(), of(v), query.vector(), norm.vector(), {alpha.vector(), rstd.vector()},
                           attn_res_gradients{of(dv), dquery.vector(), dnorm.vector()}, opt, ctx);
    };
  };
}
template <class T>
auto streams_both_ways(std::size_t n, gradient mode) {
  return [=](problem<T>& p) {
    using A = accumulator_t<T>;
    const std::size_t rows = p.of().rows, cols = p.of().cols, apart = p.of().apart;
    const auto f = p.matrix(1), dy = p.matrix(2), y = p.made("pre y"), df = p.made("post df");
    const auto x = numbers<T>(rows, n * cols, apart).fill(3), dys = numbers<T>(rows, n * cols, apart).fill(4);
    numbers<T> ys = p.made("post y", rows, n * cols), pre_dx = p.made("pre dx", rows, n * cols),
               post_dx = p.made("post dx", rows, n * cols);
    if (mode == gradient::accumulate) pre_dx.fill(5), post_dx.fill(6);
    const auto pre = numbers<A>(rows, n).fill(7), post = numbers<A>(rows, n).fill(8),
               res = numbers<A>(rows, n * n).fill(9);
    const auto dpre = numbers<A>(rows, n), dpost = numbers<A>(rows, n), dres = numbers<A>(rows, n * n);
    const auto sums = p.made("sums", rows, n * n + 2 * n);
    p.after([=] {
      for (std::size_t i = 0; i < rows; ++i) {
        T* const to = sums.data + i * sums.stride;
        for (std::size_t k = 0; k < n; ++k) to[k] = T(dpre.data[i * n + k]), to[n + k] = T(dpost.data[i * n + k]);
        for (std::size_t k = 0; k < n * n; ++k) to[2 * n + k] = T(dres.data[i * n * n + k]);
      }
    });
    return [=]<class B>(context& ctx) {
      mhc_pre_forward<B>(x.matrix(), pre.matrix(), y.matrix(), ctx);
      mhc_pre_backward<B>(dy.matrix(), x.matrix(), pre.matrix(), mhc_pre_gradients<T>{pre_dx.matrix(), dpre.matrix()},
                          {.dx = mode}, ctx);
      mhc_post_res_forward<B>(x.matrix(), f.matrix(), post.matrix(), res.matrix(), ys.matrix(), ctx);
      mhc_post_res_backward<B>(dys.matrix(), x.matrix(), f.matrix(), post.matrix(), res.matrix(),
                               mhc_post_res_gradients<T>{post_dx.matrix(), df.matrix(), dpost.matrix(), dres.matrix()},
                               {.dx = mode}, ctx);
    };
  };
}

TEST(cuda_depth, group_norm) {
  for (const shape& s : {shape{16, 96}, shape{8, 4104}, shape{12, 37}, shape{12, 40, 8}, shape{12, 3, 1}, shape{24, 1}})
    expect_as_single_numbers<float>(s, group_norm_both_ways<float>(2));
  expect_as_single_numbers<bfloat16>({16, 512}, group_norm_both_ways<bfloat16>(4));
  expect_as_single_numbers<double>({16, 96}, group_norm_both_ways<double>(8));
}
TEST(cuda_depth, groups_in_f64) { expect_as_single_numbers<float>({12, 40}, group_norm_both_ways<float>(6, 0)); }
TEST(cuda_depth, sparsemax) {
  for (const shape& s :
       {shape{70, 24}, shape{300, 128}, shape{3, 4104}, shape{2, 40000}, shape{40, 37}, shape{6, 1000, 3}})
    expect_as_single_numbers<float>(s, sparsemax_both_ways<float>());
  expect_as_single_numbers<bfloat16>({9, 504, 16}, sparsemax_both_ways<bfloat16>());
}
TEST(cuda_depth, sparsemax_of_what_has_no_maximum) {
  problem<float> p({4, 64});
  const auto run = [](problem<float>& of) {
    const auto x = of.matrix(1), y = of.made("y");
    x.data[3] = std::numeric_limits<float>::quiet_NaN(), x.data[64 + 5] = std::numeric_limits<float>::infinity();
    for (std::size_t j = 0; j < 63; ++j) x.data[2 * 64 + j] = -std::numeric_limits<float>::infinity();
    for (std::size_t j = 0; j < 64; ++j) x.data[3 * 64 + j] = -std::numeric_limits<float>::infinity();
    return [=]<class B>(context& ctx) { sparsemax_forward<B>(x.matrix(), y.matrix(), {}, ctx); };
  };
  const auto wanted = p.on<generic>(run), got = p.on<cuda>(run);
  for (std::size_t k = 0; k < got[0].second.size(); ++k)
    EXPECT_TRUE(got[0].second[k] == wanted[0].second[k] ||
                (std::isnan(got[0].second[k]) && std::isnan(wanted[0].second[k])))
        << k << ": " << got[0].second[k] << ", " << wanted[0].second[k];
}
// In f32 within half of what the contract allows: single numbers add up a row in f32.
TEST(cuda_depth, attn_res) {
  for (const shape& s : {shape{70, 64}, shape{9, 512}, shape{2, 4104}, shape{9, 100, 3}})
    for (const std::size_t blocks : {1, 5, 10})
      expect_as_single_numbers<float>(s, attn_res_both_ways<float>(blocks, {}), 1e-5);
  expect_as_single_numbers<bfloat16>(
      {9, 512}, attn_res_both_ways<bfloat16>(5, {.round_key = true, .dparams = gradient::accumulate}));
}
TEST(cuda_depth, streams) {
  for (const shape& s : {shape{7, 512}, shape{3, 2056}, shape{9, 50, 3}})
    for (const std::size_t n : {2, 4, 6})
      for (const gradient mode : {gradient::overwrite, gradient::accumulate})
        expect_as_single_numbers<float>(s, streams_both_ways<float>(n, mode));
  expect_as_single_numbers<bfloat16>({7, 512}, streams_both_ways<bfloat16>(4, gradient::overwrite));
}

}  // namespace
