// group_norm on ascend: what the parents give, through tiles.
#include <tigon/ops/group_norm.hpp>

#include "ascend_chips.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::absent, tigon::accumulator_t, tigon::context, tigon::default_context;

struct sizes {
  std::size_t batch, channels, groups, positions, padding = 0;
};

/// No sample; groups of one number and of a few; groups that fit and that do not, with padding and without; more groups
/// than programs.
const sizes every_size[] = {{0, 4, 2, 5},       {2, 6, 6, 1},    {2, 6, 3, 3},       {1, 4, 2, 3, 2}, {30, 8, 4, 50},
                            {2, 4, 1, 1000, 5}, {1, 4, 2, 2048}, {1, 3, 3, 4097, 1}, {2, 4, 2, 20000}};

template <class T, class W = T>
struct problem {
  using A = accumulator_t<T>;
  tigon::group_norm_options opt;
  bool parameters;
  guarded_matrix<T> x, dy, y, dx;
  guarded<W> w, b, dw, db;
  guarded<A> mean, rstd;

  TIGON_TEST_NOINLINE explicit problem(sizes s, bool given = true, guard side = guard::behind)
      : opt{.groups = s.groups,
            .channels = s.channels,
            .dparams = given ? tigon::gradient::overwrite : tigon::gradient::accumulate},
        parameters(given),
        x(random_matrix<T>({s.batch * s.channels, s.positions, s.padding}, 1, side, {.mean = 0.5})),
        dy(random_matrix<T>({s.batch * s.channels, s.positions, s.padding}, 2, side)),
        y(s.batch * s.channels, s.positions, s.padding, side),
        dx(s.batch * s.channels, s.positions, s.padding, side),
        w(random_vector<W>(s.channels, 3, side)),
        b(random_vector<W>(s.channels, 4, side)),
        dw(random_vector<W>(s.channels, 5, side)),
        db(random_vector<W>(s.channels, 6, side)),
        mean(s.batch * s.groups, side),
        rstd(s.batch * s.groups, side) {}
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::matrix_view<T> to, context& ctx = default_context()) {
    const tigon::norm_gradients gradients{to, dw, db};
    if (parameters)
      tigon::group_norm_backward<B>(dy, x, w, mean, rstd, gradients, opt, ctx);
    else
      tigon::group_norm_backward<B>(dy, x, absent, mean, rstd, gradients, opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void run(context& ctx = default_context()) {
    if (parameters)
      tigon::group_norm_forward<B>(x, w, b, y.view(), mean, rstd, opt, ctx);
    else
      tigon::group_norm_forward<B>(x, absent, absent, y.view(), mean, rstd, opt, ctx);
    backward<B>(dx.view(), ctx);
  }
};

template <class P>
struct ascend_group_norm : testing::Test {};
TYPED_TEST_SUITE(ascend_group_norm, chip_pairs, names);

TYPED_TEST(ascend_group_norm, agrees_with_its_parents) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const audited ledger;
  for (const sizes& s : every_size)
    for (const bool parameters : {true, false}) {
      SCOPED_TRACE(testing::Message() << s.batch << " x " << s.channels << " x " << s.positions << ", " << s.groups
                                      << " groups" << (parameters ? "" : ", no parameters, accumulating"));
      const comparison with{.may_be_empty = s.batch == 0};
      problem<T> p(s, parameters, guard::before), q(s, parameters);
      p.template run<B>();
      q.template run<usual_backend>();
      EXPECT_TRUE(close(p.mean.f64(), q.mean.f64(), parity.of<accumulator_t<T>>(), with));
      EXPECT_TRUE(close(p.rstd.f64(), q.rstd.f64(), parity.of<accumulator_t<T>>(), with));
      EXPECT_TRUE(close(p.y.f64(), q.y.f64(), parity.of<T>(), {.scale = 1, .may_be_empty = s.batch == 0}));
      EXPECT_TRUE(close(p.dx.f64(), q.dx.f64(), 2 * parity.of<T>(), {.scale = 1, .may_be_empty = s.batch == 0}));
      EXPECT_TRUE(close(p.dw.f64(), q.dw.f64(), 2 * parity.of<T>(), {.scale = 1}));
      EXPECT_TRUE(close(p.db.f64(), q.db.f64(), 2 * parity.of<T>(), {.scale = 1}));
      EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
    }
}

TYPED_TEST(ascend_group_norm, works_in_place) {
  using B = typename TypeParam::backend;
  for (const sizes& s : every_size) {
    problem<typename TypeParam::element> p(s), q(s), r(s);
    p.template run<B>();
    for (auto* each : {&q, &r}) each->mean.assign(p.mean.f64()), each->rstd.assign(p.rstd.f64());
    q.template backward<B>(q.dy.view());
    r.template backward<B>(r.x.view());
    EXPECT_EQ(q.dy.f64(), p.dx.f64());
    EXPECT_EQ(r.x.f64(), p.dx.f64());
    EXPECT_EQ(q.dw.f64(), p.dw.f64());
    EXPECT_EQ(r.dw.f64(), p.dw.f64());
  }
}

TYPED_TEST(ascend_group_norm, gives_the_same_bits_for_any_threads) {
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    problem<typename TypeParam::element> p(every_size[4]);
    p.template run<typename TypeParam::backend>(ctx);
    return bits_of(p.y, p.mean, p.rstd, p.dx, p.dw, p.db);
  }));
}

// A group that fits a block is copied in once for its sums and stays for its channels; a longer one is read again.
TEST(ascend_group_norm_copies, depend_on_the_group) {
  struct {
    sizes of;
    std::size_t copies;
  } const cases[] = {{{8, 4, 4, 4096}, 1}, {{8, 8, 2, 1024}, 1}, {{8, 2, 1, 32768}, 2}};
  for (const auto& c : cases) {
    problem<float> p(c.of);
    const audited ledger;
    tigon::group_norm_forward<usual_chip>(p.x, p.w, p.b, p.y.view(), p.mean, p.rstd, p.opt);
    EXPECT_EQ(counting_ledger::total.copied_in, c.copies * p.x.rows() * p.x.cols() * sizeof(float));
    EXPECT_EQ(counting_ledger::total.copied_out, p.x.rows() * p.x.cols() * sizeof(float));
  }
}

}  // namespace
