// The contract of include/tigon/ops/mhc.hpp, promise by promise: a layer between hyper-connections.
// Operators: mhc_coeffs mhc_pre mhc_post_res
#include <gtest/gtest.h>

#include <tigon/ops/mhc.hpp>

#include <stdexcept>
#include <string>

#include "support/mhc_problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::gradient, tigon::matrix_view;

/// The layer is f = in / 2 + in^2 / 4, rounded to T.
template <class T>
struct problem : mhc_problem<T> {
  using A = accumulator_t<T>;
  guarded_matrix<T> y, in, f, dy, df, d_in;
  int calls = 0;

  TIGON_TEST_NOINLINE explicit problem(mhc_shape s, std::size_t history_size = 0, guard side = guard::behind)
      : mhc_problem<T>(s, history_size, side),
        y(s.tokens, s.cols(), s.padding, side),
        in(s.tokens, s.channels, s.padding, side),
        f(s.tokens, s.channels, s.padding, side),
        dy(random_matrix<T>({s.tokens, s.cols(), s.padding}, 7, side)),
        df(s.tokens, s.channels, s.padding, side),
        d_in(s.tokens, s.channels, s.padding, side) {}

  tigon::mhc_coefficients<A> h() { return {this->h_pre.view(), this->h_post.view(), this->h_res.view()}; }
  tigon::mhc_saved<T> kept() { return {h(), this->saved(), in.view(), f.view()}; }
  auto gradients() {
    return tigon::mhc_gradients{this->dx.view(), this->dphi.view(), this->db, this->dalpha, df.view(), d_in.view()};
  }
  TIGON_TEST_NOINLINE void layer(matrix_view<const T> from, matrix_view<T> to) {
    ++calls;
    for (std::size_t i = 0; i < from.rows; ++i)
      for (std::size_t j = 0; j < from.cols; ++j) {
        const double v = to_f64(from.row(i)[j]);
        to.row(i)[j] = from_f64<T>(v / 2 + v * v / 4);
      }
  }
  TIGON_TEST_NOINLINE void layer_gradient(matrix_view<const T> from, matrix_view<T> to) {
    ++calls;
    for (std::size_t i = 0; i < from.rows; ++i)
      for (std::size_t j = 0; j < from.cols; ++j)
        to.row(i)[j] = from_f64<T>(to_f64(from.row(i)[j]) * (1 + to_f64(in(i, j))) / 2);
  }
  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    tigon::mhc_forward<B>(
        this->x.view(), this->weights(), [&](auto from, auto to) { layer(from, to); }, y.view(), kept(), this->opt,
        ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(context& ctx = tigon::default_context()) {
    tigon::mhc_backward<B>(
        dy.view(), this->x.view(), this->weights(), [&](auto from, auto to) { layer_gradient(from, to); }, kept(),
        gradients(), this->opt, ctx);
  }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(ctx);
    backward<B>(ctx);
  }

  /// The same by the doors of the three operators. dx is left out: its three parts are rounded once, not each.
  template <class B>
  TIGON_TEST_NOINLINE void apart() {
    tigon::mhc_coeffs_forward<B>(this->x.view(), this->weights(), h(), this->saved(), this->opt);
    tigon::mhc_pre_forward<B>(this->x, this->h_pre, in.view());
    layer(in, f.view());
    tigon::mhc_post_res_forward<B>(this->x, f, this->h_post, this->h_res, y.view());
    tigon::mhc_post_res_backward<B>(
        dy, this->x, f, this->h_post, this->h_res,
        tigon::mhc_post_res_gradients<T>{{}, df.view(), this->dh_post.view(), this->dh_res.view()});
    layer_gradient(df, d_in.view());
    tigon::mhc_pre_backward<B>(d_in, this->x, this->h_pre, tigon::mhc_pre_gradients<T>{{}, this->dh_pre.view()});
    tigon::mhc_coeffs_backward<B>(
        this->incoming(), this->x.view(), this->weights(), this->saved(),
        tigon::mhc_coeffs_gradients{matrix_view<T>{}, this->dphi.view(), this->db, this->dalpha}, this->opt);
  }

  auto bits() const {
    return bits_of(this->h_pre, this->h_post, this->h_res, this->mix, this->rstd, in, f, y, df, d_in, this->dphi,
                   this->db, this->dalpha);
  }

  /// dx by its definition, from what the layer was given and has returned; added to `start`.
  TIGON_TEST_NOINLINE std::vector<double> wanted_dx(const std::vector<double>& start = {}) const {
    const mhc_shape s = this->s;
    const std::size_t n = s.n;
    const auto x64 = this->x.f64(), f64 = f.f64(), dy64 = dy.f64(), d_in64 = d_in.f64();
    std::vector<double> dh_pre(s.tokens * n), dh_post(s.tokens * n), dh_res(s.tokens * n * n);
    for (std::size_t t = 0; t < s.tokens; ++t)
      for (std::size_t o = 0; o < n; ++o)
        for (std::size_t c = 0; c < s.channels; ++c) {
          const std::size_t at = t * s.cols() + o * s.channels + c, layer_at = t * s.channels + c;
          dh_pre[t * n + o] += d_in64[layer_at] * x64[at];
          dh_post[t * n + o] += dy64[at] * f64[layer_at];
          for (std::size_t i = 0; i < n; ++i)
            dh_res[(t * n + o) * n + i] += dy64[at] * x64[t * s.cols() + i * s.channels + c];
        }
    mhc_reference r = this->wanted(dh_pre, dh_post, dh_res);
    for (std::size_t t = 0; t < s.tokens; ++t)
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t c = 0; c < s.channels; ++c) {
          double& sum = r.dx[t * s.cols() + i * s.channels + c];
          sum += r.h_pre[t * n + i] * d_in64[t * s.channels + c];
          for (std::size_t o = 0; o < n; ++o)
            sum += r.h_res[(t * n + o) * n + i] * dy64[t * s.cols() + o * s.channels + c];
        }
    for (std::size_t k = 0; k < start.size(); ++k) r.dx[k] += start[k];
    return r.dx;
  }
};

#if defined(TIGON_CONFORMANCE_BACKEND) || defined(TIGON_TESTS_ALL_PAIRS)
using pairs = every_product_pair;
#else
using pairs = testing::Types<on<single_numbers, double>, on<usual_backend, float>, on<usual_backend, bfloat16> >;
#endif

template <class On>
class mhc : public testing::Test {};
TYPED_TEST_SUITE(mhc, pairs, names);

TYPED_TEST(mhc, has_the_bits_of_its_operators_and_sums_dx_once) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const mhc_shape s : {mhc_shape{0, 2, 3}, {1, 1, 1}, {5, 2, 40, 3}, {20, 3, 7}, {4, 4, 33, 1}, {3, 7, 20}})
    for (const guard side : both_guards) {
      SCOPED_TRACE(testing::Message() << s << ", " << side);
      problem<T> p(s, 0, side), apart(s, 0, side);
      p.template both_ways<B>();
      apart.template apart<B>();
      EXPECT_EQ(p.calls, 2);
      EXPECT_EQ(p.bits(), apart.bits());
      const comparison with{.may_be_empty = s.tokens == 0};
      EXPECT_TRUE(close(p.dx.f64(), p.wanted_dx(), mhc_bound.of<T>(), with));
      EXPECT_TRUE(p.dx.padding_intact() && p.y.padding_intact() && p.d_in.padding_intact());

      p.dx.assign(normal_values(s.tokens * s.cols(), 8));
      const auto start = p.dx.f64();
      p.opt.dx = gradient::accumulate;
      p.template backward<B>();
      EXPECT_TRUE(close(p.dx.f64(), p.wanted_dx(start), mhc_bound.of<T>(), with));
      EXPECT_EQ(p.bits(), apart.bits());
    }
}

TYPED_TEST(mhc, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  EXPECT_TRUE(same_bits_for_any_threads([](context& ctx) {
    problem<T> p({70, 3, 9});
    p.template both_ways<B>(ctx);
    auto bits = p.bits();
    const auto dx = bits_of(p.dx);
    bits.insert(bits.end(), dx.begin(), dx.end());
    return bits;
  }));
}

TYPED_TEST(mhc, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const mhc_shape s{19, 6, 7};
  for (const std::size_t threads : {1u, 3u}) {
    problem<T> p(s);
    std::size_t forward = 0, backward = 0;
    with_workspace_of(
        64,
        [&](context& ctx) {
          forward = tigon::mhc_workspace<B, T>(s.tokens, s.channels, s.n, ctx);
          backward = tigon::mhc_backward_workspace<B, T>(s.tokens, s.channels, s.n, p.opt.tmax, {}, ctx);
        },
        threads);
    const auto run_forward = [&](context& ctx) { p.template forward<B>(ctx); };
    const auto run_backward = [&](context& ctx) { p.template backward<B>(ctx); };
    EXPECT_TIGON_ERROR(with_workspace_of(forward - 1, run_forward, threads), workspace, "mhc_forward: workspace is of",
                       p.h_pre, p.y, p.in);
    with_workspace_of(forward, run_forward, threads);
    EXPECT_TIGON_ERROR(with_workspace_of(backward - 1, run_backward, threads), workspace,
                       "mhc_backward: workspace is of", p.dx, p.df, p.dphi);
    with_workspace_of(backward, run_backward, threads);
    EXPECT_TRUE(close(p.dx.f64(), p.wanted_dx(), mhc_bound.of<T>()));
  }
}

TEST(mhc_gradients, each_may_be_absent) {
  using B = usual_backend;
  problem<float> all({5, 2, 9}), some({5, 2, 9});
  all.both_ways<B>();
  some.forward<B>();
  const auto run = [&](matrix_view<float> dx, matrix_view<float> dphi, auto&& db, auto&& dalpha) {
    some.dx.clear(), some.dphi.clear(), some.db.clear(), some.dalpha.clear();
    tigon::mhc_backward<B>(
        some.dy.view(), some.x.view(), some.weights(), [&](auto from, auto to) { some.layer_gradient(from, to); },
        some.kept(), tigon::mhc_gradients{dx, dphi, db, dalpha, some.df.view(), some.d_in.view()}, some.opt);
  };
  run(some.dx.view(), {}, tigon::absent, tigon::absent);
  EXPECT_EQ(bits_of(some.dx), bits_of(all.dx));
  EXPECT_TRUE(some.dphi.untouched() && some.db.untouched() && some.dalpha.untouched());
  run({}, some.dphi.view(), some.db, some.dalpha);
  EXPECT_EQ(bits_of(some.dphi, some.db, some.dalpha), bits_of(all.dphi, all.db, all.dalpha));
  EXPECT_TRUE(some.dx.untouched());
}

TEST(mhc_layer, may_use_the_context_and_may_throw) {
  using B = usual_backend;
  problem<float> p({40, 6, 9}), other({40, 6, 9});
  tigon::thread_pool pool(2);
  tigon::workspace scratch;
  context ctx(pool, scratch);
  // Inside the layer the workspace is free: it may grow.
  const auto layer = [&](matrix_view<const float> from, matrix_view<float> to) {
    EXPECT_EQ(ctx.workspace().used(), 0u);
    other.both_ways<B>(ctx);
    ctx.workspace().expect("layer", std::size_t{1} << 20);
    p.layer(from, to);
  };
  tigon::mhc_forward<B>(p.x.view(), p.weights(), layer, p.y.view(), p.kept(), p.opt, ctx);
  problem<float> plain({40, 6, 9});
  plain.forward<B>();
  EXPECT_EQ(bits_of(p.y, p.f), bits_of(plain.y, plain.f));

  const auto throws = [](matrix_view<const float>, matrix_view<float>) { throw std::runtime_error("layer"); };
  EXPECT_THROW(tigon::mhc_forward<B>(p.x.view(), p.weights(), throws, p.y.view(), p.kept(), p.opt, ctx),
               std::runtime_error);
  EXPECT_THROW(
      tigon::mhc_backward<B>(p.dy.view(), p.x.view(), p.weights(), throws, p.kept(), p.gradients(), p.opt, ctx),
      std::runtime_error);
  EXPECT_EQ(ctx.workspace().used(), 0u);
}

TEST(mhc_doors, refuse_before_the_first_write) {
  using B = usual_backend;
  problem<float> p({3, 2, 4});
  using tigon::error_code;
  const auto layer = [&](auto from, auto to) { p.layer(from, to); };
  const auto forward = [&](auto change, error_code code, std::string_view says) {
    auto x = p.x.view(), y = p.y.view();
    auto kept = p.kept();
    auto opt = p.opt;
    change(x, y, kept, opt);
    EXPECT_TRUE(refuses([&] { tigon::mhc_forward<B>(x, p.weights(), layer, y, kept, opt); }, code,
                        "mhc_forward: " + std::string(says), p.x, p.y, p.h_pre, p.h_res, p.mix, p.in, p.f));
  };
  forward([](auto& x, auto&...) { x.cols = 7; }, error_code::shape, "x is of columns that n does not divide");
  forward([](auto&, auto& y, auto&...) { y.cols = 7; }, error_code::shape, "y is 3 x 7; expected 3 x 8");
  forward([](auto& x, auto& y, auto&...) { y = x; }, error_code::alias, "y overlaps x");
  forward([](auto&, auto&, auto& k, auto&) { k.in.cols = 3; }, error_code::shape, "in is 3 x 3; expected 3 x 4");
  forward([](auto&, auto&, auto& k, auto&) { k.f = k.in; }, error_code::alias, "f overlaps in");
  forward([](auto&, auto&, auto& k, auto&) { k.h.h_pre.cols = 0; }, error_code::shape, "streams is 0");
  forward([](auto&, auto&, auto& k, auto&) { k.coeffs.mix.rows = 2; }, error_code::shape, "mix is 2 x 8");
  forward([](auto&, auto&, auto&, auto& o) { o.tmax = 0; }, error_code::shape, "tmax is 0");
  forward([](auto&, auto&, auto&, auto& o) { o.rms_eps = -1; }, error_code::argument, "rms_eps is");
  EXPECT_EQ(p.calls, 0);
  p.forward<B>();
  const auto backward = [&](auto change, error_code code, std::string_view says) {
    auto dy = p.dy.view();
    auto to = p.gradients();
    change(dy, to);
    EXPECT_TRUE(refuses([&] { tigon::mhc_backward<B>(dy, p.x.view(), p.weights(), layer, p.kept(), to, p.opt); }, code,
                        "mhc_backward: " + std::string(says), p.dy, p.dx, p.dphi, p.db, p.dalpha, p.df, p.d_in));
  };
  backward([](auto& dy, auto&) { dy.cols = 7; }, error_code::shape, "dy is 3 x 7");
  backward([](auto&, auto& to) { to.dx.cols = 7; }, error_code::shape, "dx is 3 x 7");
  backward([](auto& dy, auto& to) { to.dx = dy; }, error_code::alias, "dx overlaps dy");
  backward([](auto&, auto& to) { to.df.cols = 3; }, error_code::shape, "df is 3 x 3");
  backward([](auto&, auto& to) { to.d_in = to.df; }, error_code::alias, "d_in overlaps df");
  EXPECT_EQ(p.calls, 1);
}

}  // namespace
