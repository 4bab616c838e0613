// cross_entropy on ascend: what the parents give, through tiles.
#include <tigon/losses/cross_entropy.hpp>

#include "ascend_chips.hpp"
#include "support/logit_loss.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::absent, tigon::accumulator_t, tigon::context, tigon::default_context, tigon::matrix_view;
using tigon::reduction;

struct variant {
  const char* name;
  tigon::cross_entropy_options opt;
  bool weighted = false, metrics = false;
};
const variant variants[] = {
    {"plain", {}},
    {"rows, a class is ignored", {.ignore_index = 0, .reduction = reduction::none}, true, true},
    {"smoothed sum", {.reduction = reduction::sum, .label_smoothing = 0.1}},
    {"softcap, z-loss", {.lse_square_scale = 0.01, .softcap = 3}, false, true},
    {"all",
     {.ignore_index = 2, .label_smoothing = 0.2, .lse_square_scale = 0.05, .softcap = 5, .denominator = 7},
     true,
     true},
};

template <class T>
struct problem {
  using A = accumulator_t<T>;
  variant v;
  guarded_matrix<T> logits, dlogits, scaled;
  guarded<std::int64_t> target;
  guarded<T> weight;
  guarded<A> loss, z_loss, accuracy, upstream;
  guarded<std::int64_t> predicted;

  TIGON_TEST_NOINLINE explicit problem(shape s, variant of = variants[0], guard side = guard::behind)
      : v(of),
        logits(random_matrix<T>(s, 1, side, {.deviation = 2})),
        dlogits(s.rows, s.cols, s.padding, side),
        scaled(s.rows, s.cols, s.padding, side),
        target(s.rows, side),
        weight(s.cols, side),
        loss(v.opt.reduction == reduction::none ? s.rows : 1, side),
        z_loss(loss.size(), side),
        accuracy(loss.size(), side),
        upstream(random_vector<A>(loss.size(), 4, side)),
        predicted(s.rows, side) {
    std::ranges::copy(random_labels(s.rows, s.cols, v.opt.ignore_index, 2), target.begin());
    weight.assign(random_class_weights(s.cols, 3));
  }
  template <class B>
  TIGON_TEST_NOINLINE void forward(matrix_view<T> to, context& ctx = default_context()) {
    tigon::cross_entropy_metrics<A> metrics{};
    if (v.metrics) metrics = {z_loss, accuracy, predicted};
    if (v.weighted)
      tigon::cross_entropy_forward<B>(logits, target, loss, to, v.opt, weight, metrics, ctx);
    else
      tigon::cross_entropy_forward<B>(logits, target, loss, to, v.opt, absent, metrics, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void run(context& ctx = default_context()) {
    forward<B>(dlogits.view(), ctx);
    tigon::cross_entropy_backward<B>(dlogits, upstream, scaled.view(), ctx);
  }
};

// A row more than the door's plain path gives programs to, and vocabularies around the blocks of every capacity.
std::vector<shape> shapes() {
  return {{0, 5},       {1, 1},    {3, 7, 3},  {9, 41},       {41, 17},      {1030, 6},
          {5, 1023, 1}, {3, 4097}, {2, 16385}, {1, 40000, 3}, {43, 2049, 1}, {1, 140001}};
}

template <class P>
struct ascend_cross_entropy : testing::Test {};
TYPED_TEST_SUITE(ascend_cross_entropy, chip_pairs, names);

template <class T>
void expect_equal(const problem<T>& p, const problem<T>& q) {
  const comparison with{.may_be_empty = p.logits.rows() == 0};
  // The loss of a row may be small beside its terms, the logits.
  const comparison beside{.scale = 1, .may_be_empty = p.logits.rows() == 0};
  EXPECT_TRUE(close(p.loss.f64(), q.loss.f64(), parity.of<accumulator_t<T>>(), beside));
  EXPECT_TRUE(close(p.dlogits.f64(), q.dlogits.f64(), parity.of<T>(), with));
  EXPECT_TRUE(close(p.scaled.f64(), q.scaled.f64(), 2 * parity.of<T>(), with));
  if (p.v.metrics) {
    EXPECT_TRUE(close(p.z_loss.f64(), q.z_loss.f64(), parity.of<accumulator_t<T>>(), with));
    EXPECT_EQ(p.predicted.f64(), q.predicted.f64());
    EXPECT_EQ(p.accuracy.f64(), q.accuracy.f64());
  }
  EXPECT_TRUE(p.dlogits.padding_intact() && p.scaled.padding_intact());
}

TYPED_TEST(ascend_cross_entropy, agrees_with_its_parents) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const audited ledger;
  for (const shape s : shapes())
    for (const variant& v : variants) {
      SCOPED_TRACE(testing::Message() << s << ", " << v.name);
      problem<T> p(s, v, s.rows % 2 == 0 ? guard::behind : guard::before), q(s, v);
      p.template run<B>();
      q.template run<usual_backend>();
      expect_equal(p, q);
    }
  if constexpr (compared_with_generic<T>) {
    problem<T> p({50, 300, 4}), q({50, 300, 4});
    p.template run<B>();
    q.template run<tigon::backends::generic>();
    expect_equal(p, q);
  }
}

TYPED_TEST(ascend_cross_entropy, works_in_place_and_without_a_gradient) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : {shape{45, 300, 9}, shape{3, 40000}})
    for (const variant& v : variants) {
      problem<T> p(s, v), q(s, v), r(s, v);
      p.template run<B>();
      q.template forward<B>(q.logits.view());
      EXPECT_EQ(q.logits.f64(), p.dlogits.f64());
      tigon::cross_entropy_backward<B>(q.logits, q.upstream, q.logits.view());
      EXPECT_EQ(q.logits.f64(), p.scaled.f64());
      r.template forward<B>({});
      EXPECT_EQ(r.loss.f64(), p.loss.f64());
      EXPECT_TRUE(r.dlogits.untouched());
    }
}

TYPED_TEST(ascend_cross_entropy, keeps_the_edges) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  constexpr double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const std::size_t vocab : {70u, 40000u})
    for (const double odd : {infinity, nan, -infinity, 80.0}) {
      const variant rows{"rows", {.reduction = reduction::none}, false, true};
      problem<T> p({5, vocab}, rows), q({5, vocab}, rows);
      for (problem<T>* each : {&p, &q}) {
        each->logits(0, static_cast<std::size_t>(each->target[0])) = from_f64<T>(odd);
        each->logits(2, vocab / 2) = from_f64<T>(odd);
        each->logits(3, vocab - 1) = from_f64<T>(odd);
        for (std::size_t j = 0; j < vocab; ++j) each->logits(4, j) = from_f64<T>(-infinity);
      }
      p.template forward<B>(p.dlogits.view());
      q.template forward<usual_backend>(q.dlogits.view());
      SCOPED_TRACE(testing::Message() << odd << " of " << vocab);
      EXPECT_TRUE(close(p.loss.f64(), q.loss.f64(), parity.of<A>()));
      EXPECT_TRUE(close(p.dlogits.f64(), q.dlogits.f64(), parity.of<T>()));
      EXPECT_EQ(p.predicted.f64(), q.predicted.f64());
      // A target that is predicted with confidence keeps every digit of its small loss.
      if (odd == 80.0) {
        EXPECT_NEAR(p.loss[0] / q.loss[0], 1, 1e-6);
      }
    }
}

TYPED_TEST(ascend_cross_entropy, gives_the_same_bits_for_any_threads) {
  for (const shape s : {shape{1100, 31}, shape{43, 5000}})
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      problem<typename TypeParam::element> p(s, variants[3]);
      p.template run<typename TypeParam::backend>(ctx);
      return bits_of(p.loss, p.dlogits, p.scaled, p.predicted);
    }));
}

// The plain path has larger tiles than the general one: of 10000 classes it reads the logits once, the other three
// times. It also has a program for every row, up to 1024 of them.
TEST(ascend_cross_entropy_paths, differ_in_tiles_and_programs) {
  for (const bool plain : {true, false})
    for (const std::size_t rows : {64u, 1025u}) {
      const std::size_t vocab = rows == 64 ? 10000 : 8;
      problem<float> p({rows, vocab}, {"", {.lse_square_scale = plain ? 0 : 1e-3}});
      const audited ledger;
      p.forward<usual_chip>(p.dlogits.view());
      std::size_t kept = 0;
      for (const std::int64_t t : p.target) kept += t >= 0;
      EXPECT_EQ(counting_ledger::total.programs, plain && rows <= 1024 ? rows : 20);
      EXPECT_EQ(counting_ledger::total.copied_in, kept * vocab * sizeof(float) * (plain || vocab == 8 ? 1 : 3));
    }
}

}  // namespace
