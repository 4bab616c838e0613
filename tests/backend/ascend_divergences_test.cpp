// kl_div, jsd and tvd on ascend: what the parents give, through tiles.
#include <tigon/losses/jsd.hpp>
#include <tigon/losses/kl_div.hpp>
#include <tigon/losses/tvd.hpp>

#include "ascend_chips.hpp"
#include "support/row_loss.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::absent, tigon::accumulator_t, tigon::context, tigon::default_context, tigon::divergence_reduction;
using tigon::matrix_view;

enum class loss { kl_div, kl_div_of_logs, jsd, tvd };

/// All losses in f32, and one of them in every other type, on another chip: what a type can break are copies.
template <class T>
constexpr bool is_tested(loss of) {
  return std::same_as<T, float> || (std::same_as<T, tigon::bfloat16> ? of < loss::jsd : of == loss::tvd);
}
struct variant {
  loss of;
  divergence_reduction reduction = divergence_reduction::batchmean;
  bool masked = false;  // every third row is ignored
  double beta = 0.5;
};
const variant variants[] = {{loss::kl_div},
                            {loss::kl_div, divergence_reduction::none},
                            {loss::kl_div_of_logs},
                            {loss::jsd},
                            {loss::jsd, divergence_reduction::batchmean, true, 0},
                            {loss::tvd, divergence_reduction::sum, true},
                            {loss::tvd, divergence_reduction::none, true},
                            {loss::tvd, divergence_reduction::none}};

template <class T>
struct problem {
  using A = accumulator_t<T>;
  variant v;
  guarded_matrix<T> student, teacher, made, dstudent, dteacher;
  guarded_matrix<A> losses, upstream;
  guarded<A> total;
  guarded<std::int64_t> labels;

  TIGON_TEST_NOINLINE explicit problem(shape s, variant of = variants[0], guard side = guard::behind)
      : v(of),
        student(s.rows, s.cols, s.padding, side),
        teacher(s.rows, s.cols, s.padding + 1, side),
        made(s.rows, s.cols, s.padding, side),
        dstudent(s.rows, s.cols, s.padding, side),
        dteacher(s.rows, s.cols, s.padding, side),
        losses(s.rows, s.cols, s.padding, side),
        upstream(random_matrix<A>(s, 9, side)),
        total(1, side),
        labels(s.rows) {
    const auto probs = [&](std::uint64_t seed, bool logs) {
      std::vector<double> out = log_probs(s, seed);
      if (!logs)
        for (double& p : out) p = std::exp(p);
      return out;
    };
    student.assign(probs(1, v.of != loss::tvd));
    teacher.assign(probs(2, v.of == loss::jsd || v.of == loss::kl_div_of_logs));
    for (std::size_t i = 0; i < s.rows; ++i) labels[i] = v.masked && i % 3 == 1 ? -100 : 5;
  }
  tigon::loss_elements<A> to() {
    if (v.reduction == divergence_reduction::none) return losses.view();
    return std::span<A>(total);
  }
  tigon::loss_elements<const A> from() const {
    if (v.reduction == divergence_reduction::none) return matrix_view<const A>(upstream);
    return std::span<const A>(upstream.view().data, 1);
  }
  template <class B>
  TIGON_TEST_NOINLINE void run(context& ctx = default_context()) {
    const bool backward = student.rows() != 0 || v.reduction == divergence_reduction::none;
    if (v.of == loss::jsd) {
      if constexpr (is_tested<T>(loss::jsd)) {
        tigon::jsd_forward<B>(student, teacher, total, made.view(), {.beta = v.beta}, labels, ctx);
        if (backward) tigon::jsd_backward<B>(made, std::span(upstream.view().data, 1), dstudent.view(), ctx);
      }
    } else if (v.of == loss::tvd) {
      if constexpr (is_tested<T>(loss::tvd)) {
        const tigon::tvd_options opt{.reduction = v.reduction};
        tigon::tvd_forward<B>(student, teacher, to(), made.view(), opt, labels, ctx);
        if (backward) tigon::tvd_backward<B>(student, teacher, from(), dstudent.view(), opt, labels, ctx);
      }
    } else if constexpr (is_tested<T>(loss::kl_div)) {
      const tigon::kl_div_options opt{.reduction = v.reduction, .log_target = v.of == loss::kl_div_of_logs};
      tigon::kl_div_forward<B>(student, teacher, to(), made.view(), opt, ctx);
      if (backward) tigon::kl_div_backward<B>(teacher, from(), dstudent.view(), opt, ctx);
      if (backward) tigon::kl_div_teacher_backward<B>(student, teacher, from(), dteacher.view(), opt, ctx);
    }
  }
};

template <class P>
struct ascend_divergences : testing::Test {};
TYPED_TEST_SUITE(ascend_divergences, chip_pairs, names);

template <class T>
void expect_equal(const problem<T>& p, const problem<T>& q) {
  using A = accumulator_t<T>;
  const comparison with{.may_be_empty = p.student.rows() == 0};
  const bool of_row = p.v.reduction != divergence_reduction::none;
  // A loss in units of its size: probabilities are far from one another.
  if (of_row)
    EXPECT_TRUE(close(p.total.f64(), q.total.f64(), 2 * parity.of<A>()));
  else
    EXPECT_TRUE(close(p.losses.f64(), q.losses.f64(), parity.of<A>(), with));
  EXPECT_TRUE(close(p.made.f64(), q.made.f64(), parity.of<T>(), with));
  EXPECT_TRUE(close(p.dstudent.f64(), q.dstudent.f64(), parity.of<T>(), with));
  EXPECT_TRUE(close(p.dteacher.f64(), q.dteacher.f64(), parity.of<T>(), with));
  EXPECT_TRUE(p.made.padding_intact() && p.dstudent.padding_intact() && p.dteacher.padding_intact() &&
              p.losses.padding_intact());
}

TYPED_TEST(ascend_divergences, agree_with_their_parents) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const audited ledger;
  for (const shape s : chip_shapes())
    for (const variant& v : variants) {
      if (!is_tested<T>(v.of)) continue;
      SCOPED_TRACE(testing::Message() << s << ", loss " << static_cast<int>(v.of) << ", reduction "
                                      << static_cast<int>(v.reduction) << ", masked " << v.masked);
      problem<T> p(s, v, s.rows % 2 == 0 ? guard::behind : guard::before), q(s, v);
      p.template run<B>();
      q.template run<usual_backend>();
      expect_equal(p, q);
    }
}

// The gradient takes the place of an operand.
TEST(ascend_divergences_in_place, have_the_same_results) {
  for (const shape s : {shape{45, 300, 9}, shape{3, 30000}}) {
    const variant of_jsd{loss::jsd, {}, true}, of_kl_div{loss::kl_div};
    problem<float> p(s, of_jsd), q(s, of_jsd), r(s, of_kl_div), t(s, of_kl_div);
    p.run<usual_chip>();
    tigon::jsd_forward<usual_chip>(q.student, q.teacher, q.total, q.student.view(), {}, q.labels);
    EXPECT_EQ(q.student.f64(), p.made.f64());
    EXPECT_EQ(q.total.f64(), p.total.f64());
    r.run<usual_chip>();
    tigon::kl_div_forward<usual_chip>(t.student, t.teacher, t.to(), t.teacher.view());
    EXPECT_EQ(t.teacher.f64(), r.made.f64());
  }
}

// Rows that are left out are not copied in, and their gradients are 0.
TEST(ascend_divergences_ignore, rows_without_reading_them) {
  for (const variant& v : variants) {
    if (!v.masked) continue;
    problem<float> p({9, 700}, v);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < 9; ++i) kept += p.labels[i] != -100;
    const audited ledger;
    if (v.of == loss::jsd)
      tigon::jsd_forward<usual_chip>(p.student, p.teacher, p.total, p.made.view(), {.beta = v.beta}, p.labels);
    else
      tigon::tvd_backward<usual_chip>(p.student, p.teacher, p.from(), p.made.view(), {.reduction = v.reduction},
                                      p.labels);
    const std::size_t operands = v.reduction == divergence_reduction::none ? 3 : 2;
    EXPECT_EQ(counting_ledger::total.copied_in, kept * 700 * operands * sizeof(float));
    for (std::size_t j = 0; j < 700; ++j) EXPECT_EQ(p.made(1, j), 0);
  }
}

TYPED_TEST(ascend_divergences, give_the_same_bits_for_any_threads) {
  for (const variant& v : variants)
    if (is_tested<typename TypeParam::element>(v.of)) {
      EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
        problem<typename TypeParam::element> p({61, 4500}, v);
        p.template run<typename TypeParam::backend>(ctx);
        return bits_of(p.total, p.losses, p.made, p.dstudent);
      }));
    }
}

// A gradient that needs no reduction is written beside it: every operand is copied in once, however long its rows are.
TEST(ascend_divergences_copies, are_one_of_every_operand) {
  for (const shape s : {shape{64, 1000}, shape{24, 20000}})
    for (const variant v : {variant{loss::kl_div}, variant{loss::jsd}, variant{loss::tvd}}) {
      problem<float> p(s, v);
      const audited ledger;
      const std::size_t n = s.rows * s.cols * sizeof(float);
      if (v.of == loss::kl_div)
        tigon::kl_div_forward<usual_chip>(p.student, p.teacher, p.to(), p.made.view());
      else if (v.of == loss::jsd)
        tigon::jsd_forward<usual_chip>(p.student, p.teacher, p.total, p.made.view());
      else
        tigon::tvd_forward<usual_chip>(p.student, p.teacher, p.to(), p.made.view());
      EXPECT_EQ(counting_ledger::total.copied_in, 2 * n);
      EXPECT_EQ(counting_ledger::total.copied_out, n + s.rows * sizeof(double));
      EXPECT_EQ(counting_ledger::total.programs, v.of == loss::kl_div && s.rows == 64 ? 2u
                                                 : v.of == loss::kl_div               ? 1u
                                                                                      : 20u);
    }
}

}  // namespace
