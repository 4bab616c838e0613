// The contracts of fused_linear_unpaired_preference.hpp and fused_linear_kto.hpp in include/tigon/losses, promise by
// promise. The driver that they share with the losses on pairs is tested with those.
// Operators: fused_linear_unpaired_preference fused_linear_kto
#include <gtest/gtest.h>

#include <tigon/losses/fused_linear_kto.hpp>

#include "support/backends.hpp"
#include "support/central_difference.hpp"
#include "support/chunk_backends.hpp"
#include "support/linear_problem.hpp"
#include "support/sequence_problem.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::gradient;
using tigon::backends::small_chunks, tigon::backends::small_generic;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

enum class baseline { none, one, each };
struct variant {
  const char* name;
  bool biased = false, reference = false, average = false;
  baseline kl = baseline::none;
  double beta = 0.1, liked = 1, disliked = 1;
  gradient dparams = gradient::overwrite;
  double softcap = 0;
};
const variant variants[] = {
    {"plain"},
    {"with a reference", false, true, false, baseline::one},
    {"means, a baseline each", true, true, true, baseline::each, 0.5, 1, 1, gradient::accumulate},
    {"weighted", true, true, false, baseline::each, 0.3, 0.7, 1.3},
    {"capped logits", true, true, false, baseline::one, 0.3, 1, 1, gradient::accumulate, 1.5},
};
/// A chunk of 1024 bytes holds one sequence and more, several, or none.
const sequence_sizes every_size[] = {{0, 3, 2, 5}, {1, 1, 1, 1}, {5, 3, 5, 17, 1}, {3, 40, 7, 11, 3}, {9, 2, 3, 6}};

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type loss_bound{.f32 = 2e-7, .bf16 = 2e-7, .f16 = 2e-7, .f64 = 2e-14};
constexpr by_type gradient_bound{.f32 = 2e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 4e-14};

template <class T>
struct problem : sequence_problem<T> {
  using A = accumulator_t<T>;
  variant v;
  std::vector<std::uint8_t> desirable;
  std::vector<A> kl;
  guarded<A> loss, logps, rewards, sums;
  guarded<std::int64_t> empty;
  tigon::unpaired_options opt;

  TIGON_TEST_NOINLINE explicit problem(sequence_sizes of, const variant& which, guard side = guard::behind)
      : sequence_problem<T>(of, which.biased, which.reference, -100, side),
        v(which),
        loss(1, side),
        logps(of.sequences, side),
        rewards(of.sequences, side),
        sums(6, side),
        empty(1, side) {
    for (std::size_t b = 0; b < of.sequences; ++b) desirable.push_back(b % 3 != 1);
    for (std::size_t b = 0; b < (v.kl == baseline::none ? 0 : v.kl == baseline::one ? 1 : of.sequences); ++b)
      kl.push_back(static_cast<A>(0.25 + 0.5 * static_cast<double>(b)));
    this->softcap = opt.softcap = v.softcap;
    clear();
  }
  TIGON_TEST_NOINLINE void clear() {
    loss.clear(), logps.clear(), rewards.clear(), sums.clear(), empty.clear();
    this->dx.clear(), this->dw.clear(), this->dbias.clear();
    if (v.dparams != gradient::accumulate) return;
    this->dw.assign(normal_values(this->s.vocab * this->s.hidden, 27));
    this->dbias.assign(normal_values(this->dbias.size(), 28));
  }
  tigon::unpaired_results<A> views() {
    const std::span<A> all(sums);
    const auto sum = [&](std::size_t k) {  // those of capped logits are not made
      return v.softcap != 0 && (k == 2 || k == 3) ? std::span<A>() : all.subspan(k, 1);
    };
    return {loss, logps, rewards, sum(0), sum(1), sum(2), sum(3), sum(4), sum(5), empty};
  }
  template <class B>
  TIGON_TEST_NOINLINE void forward(tigon::matrix_view<T> to_dx, tigon::matrix_view<T> to_dw, std::span<T> to_db,
                                   context& ctx = tigon::default_context()) {
    tigon::fused_linear_kto_forward<B>(this->layer(), {this->target.view(), desirable}, kl, views(),
                                       {to_dx, to_dw, to_db, v.dparams}, {opt, v.beta, v.liked, v.disliked, v.average},
                                       this->reference(), ctx);
  }
  template <class B>
  void forward(context& ctx = tigon::default_context()) {
    forward<B>(this->dx.view(), this->dw.view(), this->given_dbias(), ctx);
  }
  auto results() const { return bits_of(loss, logps, rewards, sums, empty); }
  auto bits() const { return bits_of(loss, logps, rewards, sums, empty, this->dx, this->dw, this->dbias); }

  struct reference_results {
    std::vector<double> loss{0}, logps, rewards, sums = std::vector<double>(6), dx, dw, dbias;
    double empty = 0;
  };
  TIGON_TEST_NOINLINE reference_results wanted(const whole_layer& policy) const {
    const auto all = policy.log_probs(), z = policy.logits();
    const auto own = this->token_logps(policy), other = this->token_logps(this->other());
    reference_results out;
    layer_gradients grad(policy);
    const double over = opt.denominator != 0 ? opt.denominator : static_cast<double>(this->s.sequences);
    for (std::size_t b = 0; b < this->s.sequences; ++b) {
      const double logp = this->sum(own, b, v.average), ratio = logp - this->sum(other, b, v.average);
      const double sign = desirable[b] ? 1 : -1, weight = desirable[b] ? v.liked : v.disliked;
      const double base = kl.empty() ? 0 : static_cast<double>(kl[kl.size() == 1 ? 0 : b]);
      const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
      const double margin = v.beta * sign * (ratio - base);
      out.loss[0] += weight * (1 - sigmoid(margin)) / over;
      out.logps.push_back(logp), out.rewards.push_back(v.beta * ratio);
      out.sums[desirable[b] ? 0 : 1] += logp, out.sums[desirable[b] ? 4 : 5] += v.beta * ratio;
      out.empty += this->tokens(b) == 0;
      double u = -weight * v.beta * sign * sigmoid(margin) * sigmoid(-margin) / over * opt.upstream;
      if (v.average && this->tokens(b) != 0) u /= static_cast<double>(this->tokens(b));
      for (std::size_t i = b * this->s.length; i < (b + 1) * this->s.length; ++i) {
        for (std::size_t j = 0; j < this->s.vocab; ++j) out.sums[desirable[b] ? 2 : 3] += z[i * this->s.vocab + j];
        if (this->counts(i)) grad.add(policy, all, i, this->label(i), u);
      }
    }
    out.dx = grad.dx, out.dw = grad.dw, out.dbias = grad.dbias;
    if (!v.biased) out.dbias.clear();
    if (v.dparams == gradient::accumulate) {
      const auto dw = this->dw.f64(), db = this->dbias.f64();
      for (std::size_t k = 0; k < dw.size(); ++k) out.dw[k] += dw[k];
      for (std::size_t k = 0; k < db.size(); ++k) out.dbias[k] += db[k];
    }
    return out;
  }
  TIGON_TEST_NOINLINE void expect(const reference_results& r) const {
    const double bound = loss_bound.of<T>();
    EXPECT_TRUE(close(loss.f64(), r.loss, bound, {.scale = 1e-2})) << "loss";
    EXPECT_TRUE(close(logps.f64(), r.logps, bound, {.scale = 1e-3, .may_be_empty = true})) << "logps";
    EXPECT_TRUE(close(rewards.f64(), r.rewards, bound, {.scale = 0.1, .may_be_empty = true})) << "rewards";
    auto all = sums.f64();
    if (v.softcap != 0) all[2] = r.sums[2], all[3] = r.sums[3];  // not made
    EXPECT_TRUE(close(all, r.sums, bound, {.scale = 0.1})) << "sums";
    EXPECT_EQ(empty[0], r.empty);
    expect_layer_gradients(*this, r, gradient_bound.of<T>(), {.scale = this->s.vocab == 1 ? 1.0 : 1e-3});
  }
};

using pairs = testing::Types<on<small_chunks, float>, on<small_chunks, bfloat16>, on<small_generic, double>>;
template <class On>
class fused_linear_kto : public testing::Test {};
TYPED_TEST_SUITE(fused_linear_kto, pairs, names);

TYPED_TEST(fused_linear_kto, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sequence_sizes& size : every_size)
    for (const variant& v : variants)
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << size << ", " << v.name << ", " << side);
        problem<T> p(size, v, side);
        const auto wanted = p.wanted(p.policy());
        p.template forward<B>();
        p.expect(wanted);
      }
}

TYPED_TEST(fused_linear_kto, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t which : {2, 3}) {
    problem<T> p({9, 9, 40, 70}, variants[which]);
    EXPECT_TRUE(same_forward_for_any_threads<B>(p));
  }
}

TYPED_TEST(fused_linear_kto, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({9, 5, 5, 17}, variants[3]);
  expect_takes_its_workspace(
      "fused_linear_kto_forward", p,
      [](context& ctx) { return tigon::fused_linear_unpaired_preference_workspace<B, T>(9, 5, 5, 17, 6, ctx); },
      [&](context& ctx) { p.template forward<B>(ctx); });
}

TEST(kto, each_gradient_may_be_left_out) {
  for (const std::size_t which : {1, 2})
    expect_gradients_may_be_left_out<small_chunks>([=] { return problem<float>({5, 3, 5, 17}, variants[which]); });
}

TEST(kto, differentiates_the_textbook) {
  for (const variant& v : variants) {
    SCOPED_TRACE(v.name);
    problem<double> p({5, 3, 4, 7}, v);
    p.v.dparams = gradient::overwrite;
    p.opt.upstream = 1, p.opt.denominator = 4;
    const whole_layer policy = p.policy();
    p.forward<small_generic>();
    const auto expect = [&](const std::vector<double>& got, std::vector<double> whole_layer::*part) {
      std::vector<std::size_t> at;
      std::vector<double> values;
      for (std::size_t k = 0; k < got.size(); k += 3) at.push_back(k), values.push_back(got[k]);
      const auto want = central_difference(
          [&](const std::vector<double>& moved_part) {
            whole_layer moved = policy;
            moved.*part = moved_part;
            return p.wanted(moved).loss[0];
          },
          policy.*part, at);
      EXPECT_TRUE(close(values, want, 1e-8, {.scale = 1e-2, .may_be_empty = true}));
    };
    expect(p.dx.f64(), &whole_layer::x), expect(p.dw.f64(), &whole_layer::w), expect(p.dbias.f64(), &whole_layer::bias);
  }
}

TEST(kto, a_baseline_a_sequence_is_that_sequences_own) {
  // A vector that meets every sequence of a chunk gives a double sum: three sequences, two of them with a baseline that
  // would push their loss to 1 and to 0.
  problem<double> p({3, 2, 4, 7}, variants[0]);
  p.v.beta = 1;
  p.kl = {0, 1000, -1000}, p.desirable = {1, 1, 1};
  p.forward<small_generic>();
  const double first = 1 / (1 + std::exp(p.logps[0]));
  EXPECT_NEAR(p.loss[0], (first + 1 + 0) / 3, 1e-12);
}

TEST(kto, sums_are_over_the_sequences_of_a_label) {
  // Three sequences in one chunk, of which one is liked: sums do not meet other sequences' labels.
  problem<double> p({3, 2, 4, 7}, variants[0]);
  p.desirable = {0, 1, 0};
  p.forward<small_generic>();
  EXPECT_NEAR(p.sums[0], p.logps[1], 1e-13);
  EXPECT_NEAR(p.sums[1], p.logps[0] + p.logps[2], 1e-13);
  p.desirable = {1, 1, 1};
  p.forward<small_generic>();
  EXPECT_EQ(p.sums[1], 0);
  EXPECT_EQ(p.sums[3], 0);
}

TEST(kto, either_sum_of_logits_may_be_alone) {
  problem<double> both({5, 3, 4, 7}, variants[0]), p({5, 3, 4, 7}, variants[0]);
  both.forward<small_generic>();
  for (const bool chosen : {false, true}) {
    p.clear();
    auto out = p.views();
    out.logps = {}, (chosen ? out.rejected_logits_sum : out.chosen_logits_sum) = {};
    tigon::fused_linear_kto_forward<small_generic>(p.layer(), {p.target.view(), p.desirable}, p.kl, out, p.gradients());
    EXPECT_EQ(p.sums[chosen ? 2 : 3], both.sums[chosen ? 2 : 3]);
    EXPECT_EQ(bits_of(p.loss, p.dx, p.dw), bits_of(both.loss, both.dx, both.dw));  // of the options' defaults
  }
  EXPECT_EQ(tigon::unpaired_options().upstream, 1);
}

TEST(kto, edges) {
  problem<float> p({4, 3, 5, 17}, variants[3]), clean({4, 3, 5, 17}, variants[3]);
  for (std::size_t t = 0; t < 3; ++t)
    p.target(1, t) = clean.target(1, t) = 3, p.target(2, t) = clean.target(2, t) = -100;
  clean.forward<small_chunks>();
  EXPECT_EQ(clean.empty[0], 2);
  EXPECT_EQ(clean.logps[2], 0);
  for (std::size_t h = 0; h < 5; ++h) EXPECT_EQ(clean.dx(7, h), 0);
  p.x(4, 0) = static_cast<float>(nan);
  p.x(8, 0) = static_cast<float>(nan);  // does not count, and is not read
  auto out = p.views();
  out.chosen_logits_sum = out.rejected_logits_sum = {};
  tigon::fused_linear_kto_forward<small_chunks>(p.layer(), {p.target.view(), p.desirable}, p.kl, out, p.gradients(),
                                                {p.opt, p.v.beta, p.v.liked, p.v.disliked, false}, p.reference());
  EXPECT_TRUE(std::isnan(p.loss[0]) && std::isnan(p.logps[1]));
  EXPECT_EQ(p.logps[2], 0);
  for (std::size_t i = 0; i < 12; ++i)
    for (std::size_t h = 0; h < 5; ++h)
      EXPECT_TRUE(i / 3 == 1 ? std::isnan(p.dx(i, h)) : p.dx(i, h) == clean.dx(i, h)) << i;
  // Large ratios: 1 - sigmoid(u) is sigmoid(-u), and keeps its digits.
  problem<double> far({1, 1, 1, 2}, variants[0]);
  far.target(0, 0) = 0, far.v.beta = 1, far.kl = {-45};
  far.forward<small_generic>();
  EXPECT_NEAR(far.loss[0] / std::exp(-45 - far.logps[0]), 1, 1e-12);
}

TEST(kto, base_takes_any_function) {
  problem<double> p({5, 3, 4, 7}, variants[0]), kto({5, 3, 4, 7}, variants[0]);
  kto.forward<small_generic>();
  std::vector<std::size_t> order;
  tigon::fused_linear_unpaired_preference_forward<small_generic, double>(
      {p.x, p.w}, {p.target.view(), p.desirable},
      [&](const tigon::preference_sequence& s) {
        order.push_back(s.index);
        const double sign = s.desirable ? 1 : -1, e = 1 / (1 + std::exp(0.1 * sign * s.ratio));
        return tigon::sequence_value{e, -0.1 * sign * e * (1 - e)};
      },
      {p.loss}, {p.dx.view(), p.dw.view()});
  EXPECT_TRUE(close(p.loss.f64(), kto.loss.f64(), 1e-14));
  EXPECT_TRUE(close(p.dw.f64(), kto.dw.f64(), 1e-13));
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 3, 4}));
  tigon::fused_linear_backward<tigon::op::fused_linear_kto, small_generic, double>({kto.dx, kto.dw}, 3,
                                                                                   {p.dx.view(), p.dw.view()});
  for (std::size_t k = 0; k < 28; ++k) EXPECT_EQ(p.dw.f64()[k], 3 * kto.dw.f64()[k]);
  // A loss that gives no derivative has none.
  tigon::fused_linear_unpaired_preference_forward<small_generic, double>(
      {p.x, p.w}, {p.target.view(), p.desirable},
      [](const tigon::preference_sequence&) { return tigon::sequence_value{.loss = 2}; }, {p.loss},
      {p.dx.view(), p.dw.view()});
  EXPECT_NEAR(p.loss[0], 2, 1e-15);
  EXPECT_EQ(p.dw.f64(), std::vector<double>(28));
}

class kto_doors : public testing::Test {
 protected:
  using T = float;
  struct arguments {
    tigon::matrix_view<T> x, w;
    tigon::matrix_view<const std::int64_t> target;
    std::span<const std::uint8_t> desirable;
    std::span<const T> kl;
    tigon::matrix_view<T> dx, dw;
    tigon::fused_linear_kto_options opt;
    std::span<T> bias, dbias;
    tigon::unpaired_results<T> out;
  };
  TIGON_TEST_NOINLINE void refuses_all(tigon::error_code code, const std::string& part,
                                       const std::function<void(arguments&)>& change) {
    arguments a{
        p.x.view(), p.w.view(), std::as_const(p).target.view(), p.desirable, p.kl, p.dx.view(), p.dw.view(), {}, p.bias,
        p.dbias,    p.views()};
    change(a);
    EXPECT_TRUE(refuses(
        [&] {
          tigon::fused_linear_kto_forward<small_chunks>(tigon::linear_layer{a.x, a.w, a.bias}, {a.target, a.desirable},
                                                        a.kl, a.out, {a.dx, a.dw, a.dbias}, a.opt, p.reference());
        },
        code, "fused_linear_kto_forward: " + part, p.dx, p.dw, p.dbias, p.loss, p.logps, p.rewards, p.sums, p.empty,
        p.x, m.all));
  }
  auto each() { return std::bind_front(&kto_doors::refuses_all, this); }

  problem<float> p{{4, 2, 3, 6}, variants[3]};
  const linear_sizes of_layer{8, 3, 6};
  overlapping_memory m{of_layer};
};

TEST_F(kto_doors, refuse_wrong_shapes) {
  using enum tigon::error_code;
  refuse_wrong_layers(of_layer, each());
  refuses_all(shape, "desirable is of 3 elements; expected 4", [](auto& a) { a.desirable = a.desirable.first(3); });
  refuses_all(shape, "desirable is of 0 elements; expected 4", [](auto& a) { a.desirable = a.desirable.first(0); });
  refuses_all(shape, "kl is of 2 elements; expected 4", [](auto& a) { a.kl = a.kl.first(2); });
  refuses_all(shape, "loss is of 0", [](auto& a) { a.out.loss = {}; });
}

TEST_F(kto_doors, refuse_wrong_numbers_and_labels) {
  using enum tigon::error_code;
  for (const double bad : {0.0, HUGE_VAL}) refuses_all(argument, "beta is", [=](auto& a) { a.opt.beta = bad; });
  refuses_all(argument, "desirable_weight is", [](auto& a) { a.opt.desirable_weight = nan; });
  refuses_all(argument, "undesirable_weight is", [](auto& a) { a.opt.undesirable_weight = nan; });
  for (const double bad : {nan, -1.0, HUGE_VAL})
    refuses_all(argument, "denominator is", [=](auto& a) { a.opt.sequences.denominator = bad; });
  for (const double bad : {nan, -1.0, 1e-40})
    refuses_all(argument, "softcap is", [=](auto& a) {
      a.opt.sequences.softcap = bad, a.out.chosen_logits_sum = a.out.rejected_logits_sum = {};
    });
  refuses_all(argument, "chosen_logits_sum is requested with a softcap; expected no memory for it",
              [](auto& a) { a.opt.sequences.softcap = 30, a.out.chosen_logits_sum = {}; });
  for (const std::int64_t bad : {-1, 6}) {
    p.target(1, 1) = bad;
    refuses_all(index, "target[3] is " + std::to_string(bad) + "; expected at least 0 and below 6", [](auto&) {});
  }
}

TEST_F(kto_doors, refuse_overlaps) {
  using enum tigon::error_code;
  refuse_overlapping_layers(m, each());
  refuses_all(alias, "loss overlaps kl", [&](auto& a) { a.out.loss = std::span(p.kl).first(1); });
  refuses_all(alias, "loss overlaps x", [](auto& a) { a.out.loss = {a.x.data, 1}; });
}

}  // namespace
