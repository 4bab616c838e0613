// The contract of include/tigon/ops/mhc_post_res.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <tigon/ops/mhc_post_res.hpp>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/mhc_reference.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::context, tigon::gradient;

template <class T>
struct problem {
  using A = accumulator_t<T>;
  mhc_shape s;
  guarded_matrix<T> x, f, y, dy, dx, df;
  guarded_matrix<A> h_post, h_res, dh_post, dh_res;

  TIGON_TEST_NOINLINE explicit problem(mhc_shape of, guard side = guard::behind)
      : s(of),
        x(random_matrix<T>({s.tokens, s.cols(), s.padding}, 1, side)),
        f(random_matrix<T>({s.tokens, s.channels, s.padding}, 2, side)),
        y(s.tokens, s.cols(), s.padding, side),
        dy(random_matrix<T>({s.tokens, s.cols(), s.padding}, 3, side)),
        dx(s.tokens, s.cols(), s.padding, side),
        df(s.tokens, s.channels, s.padding, side),
        h_post(random_matrix<A>({s.tokens, s.n, s.padding}, 4, side)),
        h_res(random_matrix<A>({s.tokens, s.n * s.n, s.padding}, 5, side)),
        dh_post(s.tokens, s.n, s.padding, side),
        dh_res(s.tokens, s.n * s.n, s.padding, side) {}

  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    tigon::mhc_post_res_forward<B>(x, f, h_post, h_res, y.view(), ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::mhc_post_res_gradients<T> to, gradient mode = gradient::overwrite,
                                    context& ctx = tigon::default_context()) {
    tigon::mhc_post_res_backward<B>(dy, x, f, h_post, h_res, to, {.dx = mode}, ctx);
  }
  tigon::mhc_post_res_gradients<T> all() { return {dx.view(), df.view(), dh_post.view(), dh_res.view()}; }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(ctx);
    backward<B>(all(), gradient::overwrite, ctx);
  }
  auto bits() const { return bits_of(y, dx, df, dh_post, dh_res); }
};

/// dx begins with `start`, to which it is added.
template <class T>
TIGON_TEST_NOINLINE void check(const problem<T>& p, const std::vector<double>& start = {}) {
  using A = accumulator_t<T>;
  const mhc_shape s = p.s;
  const std::size_t n = s.n;
  const auto x = p.x.f64(), f = p.f.f64(), h_post = p.h_post.f64(), h_res = p.h_res.f64(), dy = p.dy.f64();
  std::vector<double> y(s.tokens * s.cols()), dx(start), df(s.tokens * s.channels), dh_post(s.tokens * n),
      dh_res(s.tokens * n * n);
  dx.resize(s.tokens * s.cols());
  for (std::size_t t = 0; t < s.tokens; ++t)
    for (std::size_t o = 0; o < n; ++o)
      for (std::size_t c = 0; c < s.channels; ++c) {
        const std::size_t to = t * s.cols() + o * s.channels + c, layer = t * s.channels + c;
        y[to] += h_post[t * n + o] * f[layer];
        df[layer] += h_post[t * n + o] * dy[to];
        dh_post[t * n + o] += dy[to] * f[layer];
        for (std::size_t i = 0; i < n; ++i) {
          const std::size_t from = t * s.cols() + i * s.channels + c, h = (t * n + o) * n + i;
          y[to] += h_res[h] * x[from];
          dx[from] += h_res[h] * dy[to];
          dh_res[h] += dy[to] * x[from];
        }
      }
  const comparison with{.may_be_empty = s.tokens == 0};
  EXPECT_TRUE(close(p.y.f64(), y, mhc_row_bound.of<T>(), with));
  EXPECT_TRUE(close(p.dx.f64(), dx, mhc_row_bound.of<T>(), with));
  EXPECT_TRUE(close(p.df.f64(), df, mhc_row_bound.of<T>(), with));
  EXPECT_TRUE(close(p.dh_post.f64(), dh_post, mhc_row_bound.of<A>(), with));
  EXPECT_TRUE(close(p.dh_res.f64(), dh_res, mhc_row_bound.of<A>(), with));
  EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact() && p.df.padding_intact());
  EXPECT_TRUE(p.dh_post.padding_intact() && p.dh_res.padding_intact());
}

template <class On>
class mhc_post_res : public testing::Test {};
TYPED_TEST_SUITE(mhc_post_res, every_pair, names);

TYPED_TEST(mhc_post_res, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const mhc_shape s : mhc_shapes(lanes<B, T>))
    for (const guard side : both_guards) {
      SCOPED_TRACE(testing::Message() << s << ", " << side);
      problem<T> p(s, side);
      p.template both_ways<B>();
      check(p);
      p.dx.assign(normal_values(s.tokens * s.cols(), 6));
      const auto start = p.dx.f64();
      p.template backward<B>(p.all(), gradient::accumulate);
      check(p, start);
    }
}

TYPED_TEST(mhc_post_res, each_gradient_may_be_absent) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> all({5, 3, 9});
  all.template both_ways<B>();
  for (int given = 0; given < 16; ++given) {
    problem<T> p({5, 3, 9});
    auto to = p.all();
    if ((given & 1) == 0) to.dx = {};
    if ((given & 2) == 0) to.df = {};
    if ((given & 4) == 0) to.dh_post = {};
    if ((given & 8) == 0) to.dh_res = {};
    p.template backward<B>(to);
    EXPECT_TRUE((given & 1) != 0 ? bits_of(p.dx) == bits_of(all.dx) : p.dx.untouched()) << given;
    EXPECT_TRUE((given & 2) != 0 ? bits_of(p.df) == bits_of(all.df) : p.df.untouched()) << given;
    EXPECT_TRUE((given & 4) != 0 ? bits_of(p.dh_post) == bits_of(all.dh_post) : p.dh_post.untouched()) << given;
    EXPECT_TRUE((given & 8) != 0 ? bits_of(p.dh_res) == bits_of(all.dh_res) : p.dh_res.untouched()) << given;
  }
}

TYPED_TEST(mhc_post_res, bad_tokens_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> clean({4, 6, 33}), p({4, 6, 33});
  p.x(1, 40) = p.f(1, 3) = p.dy(1, 7) = from_f64<T>(std::numeric_limits<double>::quiet_NaN());
  for (problem<T>* each : {&clean, &p}) each->template both_ways<B>();
  for (std::size_t t = 0; t < 4; ++t) {
    const auto same = [&](const auto& a, const auto& b) {
      for (std::size_t j = 0; j < a.cols(); ++j)
        if (to_f64(a(t, j)) != to_f64(b(t, j))) return false;
      return true;
    };
    EXPECT_EQ(same(p.y, clean.y) && same(p.dx, clean.dx) && same(p.df, clean.df) && same(p.dh_post, clean.dh_post) &&
                  same(p.dh_res, clean.dh_res),
              t != 1)
        << t;
  }
  EXPECT_TRUE(std::isnan(to_f64(p.y(1, 7))) && std::isnan(to_f64(p.dx(1, 7))) && std::isnan(to_f64(p.df(1, 7))));
}

TYPED_TEST(mhc_post_res, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  EXPECT_TRUE(same_bits_for_any_threads([](context& ctx) {
    problem<T> p({70, 6, 1030});
    p.template both_ways<B>(ctx);
    return p.bits();
  }));
}

TYPED_TEST(mhc_post_res, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t threads : {1u, 3u}) {
    problem<T> p({7, 6, 35});
    std::size_t forward = 0, backward = 0;
    with_workspace_of(
        64,
        [&](context& ctx) {
          forward = tigon::mhc_post_res_workspace<B, T>(35, 6, ctx);
          backward = tigon::mhc_post_res_backward_workspace<B, T>(35, 6, ctx);
        },
        threads);
    ASSERT_TRUE(forward > 0 && backward > 0);
    const auto run = [&](context& ctx) { p.template forward<B>(ctx); };
    const auto back = [&](context& ctx) { p.template backward<B>(p.all(), gradient::overwrite, ctx); };
    EXPECT_TIGON_ERROR(with_workspace_of(forward - 1, run, threads), workspace, "mhc_post_res_forward: workspace is of",
                       p.y);
    with_workspace_of(forward, run, threads);
    EXPECT_TIGON_ERROR(with_workspace_of(backward - 1, back, threads), workspace,
                       "mhc_post_res_backward: workspace is of", p.dx, p.df, p.dh_post, p.dh_res);
    with_workspace_of(backward, back, threads);
    check(p);
    problem<T> at_once({7, 4, 35}), one_more({7, 5, 35});
    with_workspace_of(
        0, [&](context& ctx) { at_once.template forward<B>(ctx); }, threads);
    with_workspace_of(
        0, [&](context& ctx) { one_more.template backward<B>(one_more.all(), gradient::overwrite, ctx); }, threads);
    with_workspace_of(
        std::size_t{1} << 12,
        [&](context& ctx) {
          one_more.template forward<B>(ctx);
          const std::size_t named = tigon::mhc_post_res_workspace<B, T>(35, 5, ctx);
          EXPECT_TRUE(named > 0 && ctx.workspace().high_water() == named);
        },
        threads);
  }
}

TEST(mhc_post_res_doors, refuse_before_the_first_write) {
  using B = usual_backend;
  problem<float> p({3, 2, 4});
  const auto forward = [&](auto change, tigon::error_code code, std::string_view says) {
    auto x = p.x.view(), f = p.f.view(), y = p.y.view();
    auto h_post = p.h_post.view(), h_res = p.h_res.view();
    change(x, f, h_post, h_res, y);
    EXPECT_TRUE(refuses([&] { tigon::mhc_post_res_forward<B>(x, f, h_post, h_res, y); }, code,
                        "mhc_post_res_forward: " + std::string(says), p.x, p.f, p.y));
  };
  using tigon::error_code;
  forward([](auto& x, auto&...) { x.cols = 7; }, error_code::shape, "x is 3 x 7; expected 3 x 8");
  forward([](auto&, auto& f, auto&...) { f.cols = 0; }, error_code::shape, "channels is 0");
  forward([](auto&, auto& f, auto&...) { f.row_stride = 3; }, error_code::stride, "f is of row stride 3");
  forward([](auto&, auto&, auto& h, auto&...) { h.cols = 0; }, error_code::shape, "streams is 0");
  forward([](auto&, auto&, auto& h, auto&...) { h.rows = 2; }, error_code::shape, "h_post is 2 x 2");
  forward([](auto&, auto&, auto&, auto& h, auto&) { h.cols = 3; }, error_code::shape, "h_res is 3 x 3");
  forward([](auto& x, auto&, auto&, auto&, auto& y) { y = x; }, error_code::alias, "y overlaps x");
  forward([](auto&, auto&, auto&, auto&, auto& y) { y.data = nullptr; }, error_code::shape, "y is");
  const auto backward = [&](auto change, tigon::error_code code, std::string_view says) {
    auto to = p.all();
    change(to);
    EXPECT_TRUE(refuses([&] { tigon::mhc_post_res_backward<B>(p.dy, p.x, p.f, p.h_post, p.h_res, to); }, code,
                        "mhc_post_res_backward: " + std::string(says), p.dy, p.dx, p.df, p.dh_post, p.dh_res));
  };
  backward([&](auto& to) { to.dx = p.dy.view(); }, error_code::alias, "dx overlaps dy");
  backward([&](auto& to) { to.df = p.f.view(); }, error_code::alias, "df overlaps f");
  backward([&](auto& to) { to.dh_post = to.dh_res.cols_from(0, 2); }, error_code::alias, "dh_res overlaps dh_post");
  backward([](auto& to) { to.dx.rows = 2; }, error_code::shape, "dx is 2 x 8");
  backward([](auto& to) { to.df.cols = 3; }, error_code::shape, "df is 3 x 3");
  backward([](auto& to) { to.dh_post.cols = 1; }, error_code::shape, "dh_post is 3 x 1");
  backward([](auto& to) { to.dh_res.cols = 5; }, error_code::shape, "dh_res is 3 x 5");
}

}  // namespace
