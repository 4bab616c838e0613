// The contract of include/tigon/ops/mhc_pre.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <tigon/ops/mhc_pre.hpp>

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
  guarded_matrix<T> x, y, dy, dx;
  guarded_matrix<A> h, dh;

  TIGON_TEST_NOINLINE explicit problem(mhc_shape of, guard side = guard::behind)
      : s(of),
        x(random_matrix<T>({s.tokens, s.cols(), s.padding}, 1, side)),
        y(s.tokens, s.channels, s.padding, side),
        dy(random_matrix<T>({s.tokens, s.channels, s.padding}, 2, side)),
        dx(s.tokens, s.cols(), s.padding, side),
        h(random_matrix<A>({s.tokens, s.n, s.padding}, 3, side)),
        dh(s.tokens, s.n, s.padding, side) {}

  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    tigon::mhc_pre_forward<B>(x, h, y.view(), ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::mhc_pre_gradients<T> to, gradient mode = gradient::overwrite,
                                    context& ctx = tigon::default_context()) {
    tigon::mhc_pre_backward<B>(dy, x, h, to, {.dx = mode}, ctx);
  }
  tigon::mhc_pre_gradients<T> all() { return {dx.view(), dh.view()}; }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(ctx);
    backward<B>(all(), gradient::overwrite, ctx);
  }
  auto bits() const { return bits_of(y, dx, dh); }
};

/// dx begins with `start`, to which it is added.
template <class T>
TIGON_TEST_NOINLINE void check(const problem<T>& p, const std::vector<double>& start = {}) {
  using A = accumulator_t<T>;
  const mhc_shape s = p.s;
  const auto x = p.x.f64(), h = p.h.f64(), dy = p.dy.f64();
  std::vector<double> y(s.tokens * s.channels), dx(start), dh(s.tokens * s.n);
  dx.resize(s.tokens * s.cols());
  for (std::size_t t = 0; t < s.tokens; ++t)
    for (std::size_t k = 0; k < s.n; ++k)
      for (std::size_t c = 0; c < s.channels; ++c) {
        const std::size_t at = t * s.cols() + k * s.channels + c;
        y[t * s.channels + c] += h[t * s.n + k] * x[at];
        dx[at] += h[t * s.n + k] * dy[t * s.channels + c];
        dh[t * s.n + k] += dy[t * s.channels + c] * x[at];
      }
  const comparison with{.may_be_empty = s.tokens == 0};
  EXPECT_TRUE(close(p.y.f64(), y, mhc_row_bound.of<T>(), with));
  EXPECT_TRUE(close(p.dx.f64(), dx, mhc_row_bound.of<T>(), with));
  EXPECT_TRUE(close(p.dh.f64(), dh, mhc_row_bound.of<A>(), with));
  EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact() && p.dh.padding_intact());
}

template <class On>
class mhc_pre : public testing::Test {};
TYPED_TEST_SUITE(mhc_pre, every_pair, names);

TYPED_TEST(mhc_pre, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const mhc_shape s : mhc_shapes(lanes<B, T>))
    for (const guard side : both_guards) {
      SCOPED_TRACE(testing::Message() << s << ", " << side);
      problem<T> p(s, side);
      p.template both_ways<B>();
      check(p);
      const std::vector<double> start = normal_values(s.tokens * s.cols(), 4);
      p.dx.assign(start);
      const auto rounded = p.dx.f64();
      p.template backward<B>(p.all(), gradient::accumulate);
      check(p, rounded);
    }
}

TYPED_TEST(mhc_pre, each_gradient_may_be_absent) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> all({5, 3, 9}), some({5, 3, 9});
  all.template both_ways<B>();
  some.template backward<B>({some.dx.view(), {}});
  EXPECT_EQ(bits_of(some.dx), bits_of(all.dx));
  EXPECT_TRUE(some.dh.untouched());
  some.dx.clear();
  some.template backward<B>({{}, some.dh.view()});
  EXPECT_EQ(bits_of(some.dh), bits_of(all.dh));
  EXPECT_TRUE(some.dx.untouched());
}

TYPED_TEST(mhc_pre, bad_tokens_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> clean({4, 7, 33}), p({4, 7, 33});
  p.x(1, 40) = p.dy(1, 7) = from_f64<T>(std::numeric_limits<double>::quiet_NaN());
  for (problem<T>* each : {&clean, &p}) each->template both_ways<B>();
  for (std::size_t t = 0; t < 4; ++t) {
    const auto same = [&](const auto& a, const auto& b) {
      for (std::size_t j = 0; j < a.cols(); ++j)
        if (to_f64(a(t, j)) != to_f64(b(t, j))) return false;
      return true;
    };
    EXPECT_EQ(same(p.y, clean.y) && same(p.dx, clean.dx) && same(p.dh, clean.dh), t != 1) << t;
  }
  EXPECT_TRUE(std::isnan(to_f64(p.y(1, 7))) && std::isnan(to_f64(p.dh(1, 1))) && std::isnan(to_f64(p.dx(1, 7))));
}

TYPED_TEST(mhc_pre, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  EXPECT_TRUE(same_bits_for_any_threads([](context& ctx) {
    problem<T> p({150, 7, 1030});
    p.template both_ways<B>(ctx);
    return p.bits();
  }));
}

TYPED_TEST(mhc_pre, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t threads : {1u, 3u}) {
    problem<T> p({7, 7, 35});
    std::size_t bytes = 0;
    with_workspace_of(
        64, [&](context& ctx) { bytes = tigon::mhc_pre_workspace<B, T>(35, 7, ctx); }, threads);
    ASSERT_GT(bytes, 0u);
    const auto run = [&](context& ctx) { p.template forward<B>(ctx); };
    EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, run, threads), workspace, "mhc_pre_forward: workspace is of", p.y);
    with_workspace_of(bytes, run, threads);
    with_workspace_of(
        0, [&](context& ctx) { p.template backward<B>(p.all(), gradient::overwrite, ctx); }, threads);
    check(p);
    problem<T> at_once({7, 5, 35});
    with_workspace_of(
        0, [&](context& ctx) { at_once.template forward<B>(ctx); }, threads);
  }
}

TEST(mhc_pre_doors, refuse_before_the_first_write) {
  using B = usual_backend;
  problem<float> p({3, 2, 4});
  const auto x = p.x.view(), y = p.y.view();
  const auto h = p.h.view();
  const auto forward = [&](auto of_x, auto of_h, auto to) { tigon::mhc_pre_forward<B>(of_x, of_h, to); };
  EXPECT_TIGON_ERROR(forward(x.cols_from(0, 7), h, y), shape, "mhc_pre_forward: x is 3 x 7; expected 3 x 8", p.y);
  EXPECT_TIGON_ERROR(forward(x, h.cols_from(0, 0), y), shape, "mhc_pre_forward: streams is 0", p.y);
  EXPECT_TIGON_ERROR(forward(x, h, y.cols_from(0, 0)), shape, "mhc_pre_forward: channels is 0", p.y);
  EXPECT_TIGON_ERROR(forward(x, h.rows_from(0, 2), y), shape, "mhc_pre_forward: h_pre is 2 x 2", p.y);
  EXPECT_TIGON_ERROR(forward(x, h, x.cols_from(0, 4)), alias, "mhc_pre_forward: y overlaps x", p.x);
  auto narrow = x;
  narrow.row_stride = 7;
  EXPECT_TIGON_ERROR(forward(narrow, h, y), stride, "mhc_pre_forward: x is of row stride 7", p.y);
  const auto backward = [&](tigon::mhc_pre_gradients<float> to) { tigon::mhc_pre_backward<B>(p.dy, x, h, to); };
  EXPECT_TIGON_ERROR(backward({x, p.dh.view()}), alias, "mhc_pre_backward: dx overlaps x", p.x, p.dh);
  EXPECT_TIGON_ERROR(backward({p.dx.view(), h}), alias, "mhc_pre_backward: dh_pre overlaps h_pre", p.dx, p.h);
  EXPECT_TIGON_ERROR(backward({p.dx.view().rows_from(0, 2), {}}), shape, "mhc_pre_backward: dx is 2 x 8", p.dx);
  EXPECT_TIGON_ERROR(backward({{}, p.dh.view().cols_from(0, 1)}), shape, "mhc_pre_backward: dh_pre is 3 x 1", p.dh);
}

}  // namespace
