// mhc_pre and mhc_post_res on ascend: within the contract of the operators, through tiles.
#include <tigon/ops/mhc_post_res.hpp>
#include <tigon/ops/mhc_pre.hpp>

#include "ascend_chips.hpp"
#include "support/mhc_reference.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::context, tigon::default_context, tigon::gradient;

/// No tokens; one number; more tokens than programs; as many streams as are added up in one pass, fewer and more;
/// channels around the blocks of each capacity, of several blocks with a tail, and around the parts that are summed.
const mhc_shape every_size[] = {{0, 2, 3},       {1, 1, 1},       {41, 4, 33, 3},  {25, 2, 513, 1},
                                {3, 5, 1025},    {2, 6, 600, 1},  {1, 11, 5},      {3, 4, 2048},
                                {2, 4, 2049, 5}, {2, 3, 4097, 1}, {1, 7, 8192, 2}, {1, 4, 20001, 7}};

template <class T>
struct problem {
  using A = accumulator_t<T>;
  mhc_shape s;
  guarded_matrix<T> x, f, y, in, dy, d_in, dx, dx_pre, df;
  guarded_matrix<A> h_pre, h_post, h_res, dh_pre, dh_post, dh_res;

  TIGON_TEST_NOINLINE explicit problem(mhc_shape of, guard side = guard::behind)
      : s(of),
        x(random_matrix<T>({s.tokens, s.cols(), s.padding}, 1, side)),
        f(random_matrix<T>({s.tokens, s.channels, s.padding}, 2, side)),
        y(s.tokens, s.cols(), s.padding, side),
        in(s.tokens, s.channels, s.padding, side),
        dy(random_matrix<T>({s.tokens, s.cols(), s.padding}, 3, side)),
        d_in(random_matrix<T>({s.tokens, s.channels, s.padding}, 4, side)),
        dx(random_matrix<T>({s.tokens, s.cols(), s.padding}, 5, side)),
        dx_pre(random_matrix<T>({s.tokens, s.cols(), s.padding}, 6, side)),
        df(s.tokens, s.channels, s.padding, side),
        h_pre(random_matrix<A>({s.tokens, s.n, s.padding}, 7, side)),
        h_post(random_matrix<A>({s.tokens, s.n, s.padding}, 8, side)),
        h_res(random_matrix<A>({s.tokens, s.n * s.n, s.padding}, 9, side)),
        dh_pre(s.tokens, s.n, s.padding, side),
        dh_post(s.tokens, s.n, s.padding, side),
        dh_res(s.tokens, s.n * s.n, s.padding, side) {}

  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = default_context()) {
    tigon::mhc_pre_forward<B>(x, h_pre, in.view(), ctx);
    tigon::mhc_post_res_forward<B>(x, f, h_post, h_res, y.view(), ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void pre_backward(tigon::mhc_pre_gradients<T> to, gradient mode = gradient::overwrite,
                                        context& ctx = default_context()) {
    tigon::mhc_pre_backward<B>(d_in, x, h_pre, to, {.dx = mode}, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void post_backward(tigon::mhc_post_res_gradients<T> to, gradient mode = gradient::overwrite,
                                         context& ctx = default_context()) {
    tigon::mhc_post_res_backward<B>(dy, x, f, h_post, h_res, to, {.dx = mode}, ctx);
  }
  tigon::mhc_pre_gradients<T> of_pre() { return {dx_pre.view(), dh_pre.view()}; }
  tigon::mhc_post_res_gradients<T> of_post() { return {dx.view(), df.view(), dh_post.view(), dh_res.view()}; }
  template <class B>
  void run(gradient mode = gradient::overwrite, context& ctx = default_context()) {
    forward<B>(ctx);
    pre_backward<B>(of_pre(), mode, ctx);
    post_backward<B>(of_post(), mode, ctx);
  }
  auto bits() const { return bits_of(in, y, dx, dx_pre, df, dh_pre, dh_post, dh_res); }
};

struct wanted {
  std::vector<double> in, y, dx, dx_pre, df, dh_pre, dh_post, dh_res;
};
/// By the definition; dx and dx_pre come with what they are added to.
TIGON_TEST_NOINLINE void add_reference(mhc_shape s, const wanted& given, const std::vector<double>& x,
                                       const std::vector<double>& f, const std::vector<double>& dy,
                                       const std::vector<double>& d_in, wanted& out) {
  out.in.resize(s.tokens * s.channels), out.df.resize(out.in.size()), out.y.resize(x.size());
  std::vector<long double> pre(s.tokens * s.n), post(pre), res(s.tokens * s.n * s.n);
  for (std::size_t t = 0; t < s.tokens; ++t)
    for (std::size_t o = 0; o < s.n; ++o)
      for (std::size_t c = 0; c < s.channels; ++c) {
        const std::size_t h = t * s.n + o, at = (t * s.n + o) * s.channels + c, of_layer = t * s.channels + c;
        out.in[of_layer] += given.dh_pre[h] * x[at];
        out.y[at] += given.dh_post[h] * f[of_layer];
        out.dx_pre[at] += given.dh_pre[h] * d_in[of_layer];
        out.df[of_layer] += given.dh_post[h] * dy[at];
        pre[h] += d_in[of_layer] * x[at];
        post[h] += f[of_layer] * dy[at];
        for (std::size_t i = 0; i < s.n; ++i) {
          const std::size_t from = (t * s.n + i) * s.channels + c, k = (t * s.n + o) * s.n + i;
          out.y[at] += given.dh_res[k] * x[from];
          out.dx[from] += given.dh_res[k] * dy[at];
          res[k] += dy[at] * x[from];
        }
      }
  out.dh_pre.assign(pre.begin(), pre.end()), out.dh_post.assign(post.begin(), post.end());
  out.dh_res.assign(res.begin(), res.end());
}
template <class T>
TIGON_TEST_NOINLINE void expect_right(const problem<T>& p, std::vector<double> dx, std::vector<double> dx_pre) {
  using A = accumulator_t<T>;
  wanted given, want;
  given.dh_pre = p.h_pre.f64(), given.dh_post = p.h_post.f64(), given.dh_res = p.h_res.f64();
  want.dx = std::move(dx), want.dx_pre = std::move(dx_pre);
  add_reference(p.s, given, p.x.f64(), p.f.f64(), p.dy.f64(), p.d_in.f64(), want);
  const comparison with{.may_be_empty = p.s.tokens == 0};
  EXPECT_TRUE(close(p.in.f64(), want.in, mhc_row_bound.of<T>(), with));
  EXPECT_TRUE(close(p.y.f64(), want.y, mhc_row_bound.of<T>(), with));
  EXPECT_TRUE(close(p.dx.f64(), want.dx, mhc_row_bound.of<T>(), with));
  EXPECT_TRUE(close(p.dx_pre.f64(), want.dx_pre, mhc_row_bound.of<T>(), with));
  EXPECT_TRUE(close(p.df.f64(), want.df, mhc_row_bound.of<T>(), with));
  EXPECT_TRUE(close(p.dh_pre.f64(), want.dh_pre, mhc_row_bound.of<A>(), with));
  EXPECT_TRUE(close(p.dh_post.f64(), want.dh_post, mhc_row_bound.of<A>(), with));
  EXPECT_TRUE(close(p.dh_res.f64(), want.dh_res, mhc_row_bound.of<A>(), with));
  for (const auto* m : {&p.in, &p.y, &p.dx, &p.dx_pre, &p.df}) EXPECT_TRUE(m->padding_intact());
  for (const auto* m : {&p.dh_pre, &p.dh_post, &p.dh_res}) EXPECT_TRUE(m->padding_intact());
}

template <class P>
struct ascend_mhc : testing::Test {};
using pairs = testing::Types<on<double_chip, float>, on<middle_chip, double>>;
TYPED_TEST_SUITE(ascend_mhc, pairs, names);

TYPED_TEST(ascend_mhc, keeps_the_error_of_the_operators) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const audited ledger;
  for (const mhc_shape& s : every_size)
    for (const gradient mode : {gradient::overwrite, gradient::accumulate}) {
      SCOPED_TRACE(testing::Message() << s << (mode == gradient::accumulate ? ", accumulating" : ""));
      problem<T> p(s, s.tokens % 2 == 0 ? guard::before : guard::behind);
      const std::vector<double> none(s.tokens * s.cols());
      const auto dx = mode == gradient::accumulate ? p.dx.f64() : none,
                 dx_pre = mode == gradient::accumulate ? p.dx_pre.f64() : none;
      p.template run<B>(mode);
      expect_right(p, dx, dx_pre);
    }
}

TYPED_TEST(ascend_mhc, each_gradient_may_be_absent) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const mhc_shape s{3, 4, 2500};
  problem<T> all(s);
  all.template run<B>();
  for (unsigned given = 0; given < 16; ++given) {
    problem<T> p(s);
    for (auto* m : {&p.dx, &p.dx_pre}) m->clear();
    p.template pre_backward<B>({given & 1 ? p.dx_pre.view() : tigon::matrix_view<T>(),
                                given & 2 ? p.dh_pre.view() : tigon::matrix_view<accumulator_t<T>>()});
    p.template post_backward<B>({given & 1 ? p.dx.view() : tigon::matrix_view<T>(),
                                 given & 2 ? p.df.view() : tigon::matrix_view<T>(),
                                 given & 4 ? p.dh_post.view() : tigon::matrix_view<accumulator_t<T>>(),
                                 given & 8 ? p.dh_res.view() : tigon::matrix_view<accumulator_t<T>>()});
    const auto expect = [&](unsigned bit, const auto& got, const auto& want) {
      EXPECT_TRUE((given & bit) != 0 ? bits_of(got) == bits_of(want) : got.untouched()) << given << ' ' << bit;
    };
    expect(1, p.dx_pre, all.dx_pre), expect(2, p.dh_pre, all.dh_pre);
    expect(1, p.dx, all.dx), expect(2, p.df, all.df), expect(4, p.dh_post, all.dh_post),
        expect(8, p.dh_res, all.dh_res);
  }
}

TYPED_TEST(ascend_mhc, keeps_what_is_not_a_number_in_its_token) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({3, 4, 5000}), q({3, 4, 5000});
  p.x(1, 5007) = p.dy(1, 5007) = p.d_in(1, 7) = from_f64<T>(std::numeric_limits<double>::quiet_NaN());
  for (problem<T>* each : {&p, &q}) each->template run<B>();
  const auto same = [](const auto& a, const auto& b, std::size_t t) {
    for (std::size_t j = 0; j < a.cols(); ++j)
      if (to_f64(a(t, j)) != to_f64(b(t, j))) return false;
    return true;
  };
  for (std::size_t t = 0; t < 3; ++t)
    EXPECT_EQ(same(p.y, q.y, t) && same(p.in, q.in, t) && same(p.dx, q.dx, t) && same(p.dx_pre, q.dx_pre, t) &&
                  same(p.dh_pre, q.dh_pre, t) && same(p.dh_res, q.dh_res, t),
              t != 1)
        << t;
}

TYPED_TEST(ascend_mhc, gives_the_same_bits_for_any_threads) {
  for (const mhc_shape& s : {mhc_shape{61, 4, 301}, {43, 7, 2500}})
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      problem<typename TypeParam::element> p(s);
      p.template run<typename TypeParam::backend>(gradient::overwrite, ctx);
      return p.bits();
    }));
}

// Four streams are copied in once for all of their sums, and once for all of their products where a row is one block.
TEST(ascend_mhc_copies, are_the_streams) {
  const auto copied = [](std::size_t tokens, std::size_t channels, auto run) {
    problem<float> p({tokens, 4, channels});
    const audited ledger;
    run(p);
    EXPECT_EQ(counting_ledger::total.programs, 20u);
    const std::size_t row = tokens * channels * sizeof(float);
    EXPECT_EQ(counting_ledger::total.copied_in % row, 0u);
    return std::pair<std::size_t, std::size_t>(counting_ledger::total.copied_in / row,
                                               counting_ledger::total.copied_out / row);
  };
  using rows = std::pair<std::size_t, std::size_t>;
  const auto pre = [](auto& p) { tigon::mhc_pre_forward<double_chip>(p.x, p.h_pre, p.in.view()); };
  const auto post = [](auto& p) { tigon::mhc_post_res_forward<double_chip>(p.x, p.f, p.h_post, p.h_res, p.y.view()); };
  const auto pre_back = [](auto& p) { p.template pre_backward<double_chip>(p.of_pre()); };
  const auto post_back = [](auto& p) { p.template post_backward<double_chip>(p.of_post()); };
  for (const std::size_t channels : {300u, 4096u, 5000u}) {
    EXPECT_EQ(copied(40, channels, pre), (rows{4, 1})) << channels;
    EXPECT_EQ(copied(40, channels, post), (rows{5, 4})) << channels;
  }
  EXPECT_EQ(copied(40, 4096, pre_back), (rows{5, 4}));
  EXPECT_EQ(copied(40, 2048, post_back), (rows{9, 5}));
}

}  // namespace
