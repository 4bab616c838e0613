// The contract of include/tigon/ops/moe_router.hpp, promise by promise.
#include <gtest/gtest.h>

#include <tigon/ops/moe_router.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/backends.hpp"
#include "support/complex_step.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::matrix_view, tigon::moe_router_options, tigon::router_group_score, tigon::router_score;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
constexpr by_type bound{.f32 = 2e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 4e-15};

struct sizes {
  std::size_t tokens, experts, k, padding = 0;
  friend std::ostream& operator<<(std::ostream& out, sizes s) {
    return out << s.tokens << " tokens, " << s.k << " of " << s.experts << " experts, padding " << s.padding;
  }
};
const sizes every_size[] = {{1, 1, 1},   {5, 7, 2, 3}, {3, 64, 8}, {4, 33, 33, 1},
                            {2, 16, 16}, {9, 17, 1},   {0, 5, 2},  {3, 5, 0, 1}};
const moe_router_options every_option[] = {
    {},
    {.normalise = false, .scale = 2.5},
    {.score = router_score::sigmoid, .scale = 2.5},
    {.score = router_score::sigmoid, .normalise = false, .scale = -0.5},
    {.score = router_score::sqrt_softplus, .scale = 1.5},
    {.score = router_score::sqrt_softplus, .normalise = false, .scale = 2.5},
};
/// Groups of 24 experts, of which 8 can be chosen.
const moe_router_options every_group[] = {
    {.groups = 3, .kept_groups = 1},
    {.normalise = false, .groups = 4, .kept_groups = 2, .group_score = router_group_score::largest},
    {.normalise = false, .groups = 6, .kept_groups = 5},
    {.score = router_score::sigmoid, .scale = 2.5, .groups = 12, .kept_groups = 4},
    {.score = router_score::sigmoid, .groups = 8, .kept_groups = 3, .group_score = router_group_score::largest},
    {.score = router_score::sqrt_softplus, .groups = 4, .kept_groups = 2},
    {.score = router_score::sqrt_softplus, .normalise = false, .groups = 24, .kept_groups = 9},
};
testing::Message text_of(const moe_router_options& opt) {
  return testing::Message() << "score " << static_cast<int>(opt.score) << ", normalise " << opt.normalise << ", "
                            << opt.kept_groups << " of " << opt.groups << " groups by "
                            << static_cast<int>(opt.group_score);
}

/// The score of a logit of which all scores are needed, for any number type.
template <class N>
N score_of(N z, N all, router_score score) {
  using std::exp, std::log, std::sqrt;
  if (score == router_score::softmax) return exp(z) / all;
  return score == router_score::sigmoid ? N(1) / (N(1) + exp(-z)) : sqrt(log(N(1) + exp(z)));
}

/// Weights of the chosen experts, for any number type.
template <class N>
std::vector<N> weights_of(sizes s, const std::vector<N>& logits, const std::vector<std::size_t>& chosen,
                          moe_router_options opt) {
  using std::exp;
  std::vector<N> out(s.tokens * s.k);
  for (std::size_t t = 0; t < s.tokens; ++t) {
    const N* z = logits.data() + t * s.experts;
    N all{}, some{};
    for (std::size_t e = 0; e < s.experts; ++e) all += exp(z[e]);
    const auto score = [&](std::size_t e) { return score_of(z[e], all, opt.score); };
    for (std::size_t j = 0; j < s.k; ++j) some += score(chosen[t * s.k + j]);
    for (std::size_t j = 0; j < s.k; ++j)
      out[t * s.k + j] = opt.scale * score(chosen[t * s.k + j]) / (opt.normalise ? some : N(1));
  }
  return out;
}

/// Every buffer at a guard page, outputs full of canaries.
template <class T, class R = T, class I = std::int32_t>
struct problem {
  sizes s;
  moe_router_options opt;
  guarded_matrix<T> logits, dlogits;
  guarded<T> bias;
  guarded_matrix<I> indices;
  guarded_matrix<R> weights, dweights;

  TIGON_TEST_NOINLINE explicit problem(sizes of, moe_router_options o = {}, guard side = guard::behind)
      : s(of),
        opt(o),
        logits(random_matrix<T>({s.tokens, s.experts, s.padding}, 1, side, {.deviation = 2})),
        dlogits(s.tokens, s.experts, s.padding, side),
        bias(random_vector<T>(s.experts, 2, side, {.deviation = 0.3})),
        indices(s.tokens, s.k, s.padding, side),
        weights(s.tokens, s.k, s.padding, side),
        dweights(random_matrix<R>({s.tokens, s.k, s.padding}, 3, side)) {}

  template <class B>
  TIGON_TEST_NOINLINE void forward(bool biased, context& ctx = tigon::default_context()) {
    if (biased)
      tigon::moe_router_forward<B>(logits.view(), bias, indices.view(), weights.view(), opt, ctx);
    else
      tigon::moe_router_forward<B>(logits.view(), tigon::absent, indices.view(), weights.view(), opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(matrix_view<T> to, context& ctx = tigon::default_context()) {
    tigon::moe_router_backward<B>(dweights.view(), logits.view(), indices.view(), to, opt, ctx);
  }
  std::vector<std::size_t> chosen() const {
    std::vector<std::size_t> out;
    for (const double e : indices.f64()) out.push_back(static_cast<std::size_t>(e));
    return out;
  }
  /// The experts of the groups that are kept, in descending order of what is compared.
  TIGON_TEST_NOINLINE std::vector<std::size_t> wanted(bool biased) const {
    std::vector<std::size_t> out;
    for (std::size_t t = 0; t < s.tokens; ++t) {
      double sum = 0;
      for (std::size_t e = 0; e < s.experts; ++e) sum += std::exp(to_f64(logits(t, e)));
      const auto score = [&](std::size_t e) {
        return score_of(to_f64(logits(t, e)), sum, opt.score) + (biased ? to_f64(bias[e]) : 0);
      };
      const auto key = [&](std::size_t e) { return biased ? -score(e) : -to_f64(logits(t, e)); };
      std::vector<std::size_t> order;
      for (const std::size_t g : groups_by(score))
        for (std::size_t e = 0; e < s.experts / opt.groups; ++e) order.push_back(g * (s.experts / opt.groups) + e);
      std::ranges::stable_sort(order, {}, key);
      out.insert(out.end(), order.begin(), order.begin() + static_cast<std::ptrdiff_t>(s.k));
    }
    return out;
  }
  /// The groups that are kept, the first ones first.
  template <class Score>
  std::vector<std::size_t> groups_by(Score score) const {
    const std::size_t n = s.experts / opt.groups;
    const auto value = [&](std::size_t g) {
      std::vector<double> scores;
      for (std::size_t e = 0; e < n; ++e) scores.push_back(-score(g * n + e));
      std::ranges::sort(scores);
      return opt.group_score == router_group_score::largest || n < 2 ? scores[0] : scores[0] + scores[1];
    };
    std::vector<std::size_t> order(opt.groups);
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (opt.kept_groups == opt.groups) return order;
    std::ranges::stable_sort(order, {}, value);
    order.resize(opt.kept_groups);
    std::ranges::sort(order);
    return order;
  }
};

/// The derivative of dweights . weights.
TIGON_TEST_NOINLINE std::vector<double> derivative(sizes s, const std::vector<double>& logits,
                                                   const std::vector<std::size_t>& chosen,
                                                   const std::vector<double>& dweights, moe_router_options opt) {
  std::vector<std::size_t> everywhere(logits.size());
  std::iota(everywhere.begin(), everywhere.end(), std::size_t{0});
  const auto loss = [&](const std::vector<std::complex<double>>& z) {
    const auto w = weights_of(s, z, chosen, opt);
    std::complex<double> sum = 0;
    for (std::size_t i = 0; i < w.size(); ++i) sum += dweights[i] * w[i];
    return sum;
  };
  return complex_step(loss, logits, everywhere);
}

template <class On>
class moe_router : public testing::Test {};
TYPED_TEST_SUITE(moe_router, every_pair, names);

TYPED_TEST(moe_router, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const comparison with{.may_be_empty = true};
  const auto check = [&](const sizes s, const moe_router_options& opt) {
    for (const bool biased : {false, true})
      for (const guard side : both_guards) {
        SCOPED_TRACE(text_of(opt) << ", " << s << ", bias " << biased << ", " << side);
        problem<T> p(s, opt, side);
        p.template forward<B>(biased);
        EXPECT_EQ(p.chosen(), p.wanted(biased));
        const auto logits = p.logits.f64();
        EXPECT_TRUE(close(p.weights.f64(), weights_of(s, logits, p.chosen(), opt), bound.of<T>(), with));
        p.template backward<B>(p.dlogits.view());
        const auto want = derivative(s, logits, p.chosen(), p.dweights.f64(), opt);
        EXPECT_TRUE(close(p.dlogits.f64(), want, bound.of<T>(), {.scale = 0.2, .may_be_empty = true}));
        EXPECT_TRUE(p.indices.padding_intact() && p.weights.padding_intact() && p.dlogits.padding_intact());

        const auto apart = p.dlogits.f64();
        p.template backward<B>(p.logits.view());
        EXPECT_EQ(p.logits.f64(), apart);
      }
  };
  for (const sizes s : every_size)
    for (const moe_router_options& opt : every_option) check(s, opt);
  for (const moe_router_options& opt : every_group)
    for (const std::size_t k : {1u, 5u, 8u}) check({11, 24, k, 3}, opt);
}

TYPED_TEST(moe_router, groups_decide_the_choice_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const moe_router_options& plain : every_option) {
    SCOPED_TRACE(text_of(plain));
    moe_router_options all = plain, some = plain;
    all.groups = all.kept_groups = 4;
    some.groups = 6, some.kept_groups = 1;
    const auto run = [](const moe_router_options& opt, const moe_router_options& then) {
      problem<T> p({7, 24, 4, 1}, opt);
      p.template forward<B>(true);
      p.opt = then;
      p.template backward<B>(p.dlogits.view());
      return bits_of(p.indices, p.weights, p.dlogits);
    };
    EXPECT_EQ(run(all, all), run(plain, plain));  // no limit: the same choice
    EXPECT_TRUE(run(some, some) != run(plain, plain));
    EXPECT_EQ(run(some, plain), run(some, some));  // backward does not look at groups
  }
}

TYPED_TEST(moe_router, breaks_ties_of_groups_by_the_index_and_sees_their_nan_first) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using list = std::vector<std::size_t>;
  const auto chosen = [](std::vector<double> logits, std::size_t k, moe_router_options opt,
                         std::vector<double> bias = {}) {
    problem<T> p({1, logits.size(), k}, opt);
    p.logits.assign(logits);
    if (!bias.empty()) p.bias.assign(bias);
    p.template forward<B>(!bias.empty());
    return p.chosen();
  };
  for (const router_score score : {router_score::softmax, router_score::sigmoid, router_score::sqrt_softplus})
    for (const auto by : {router_group_score::two_largest, router_group_score::largest}) {
      const moe_router_options one{.score = score, .groups = 3, .kept_groups = 1, .group_score = by};
      const moe_router_options two{.score = score, .groups = 3, .kept_groups = 2, .group_score = by};
      SCOPED_TRACE(text_of(one));
      const bool sum = by == router_group_score::two_largest;
      // Two large scores, or the largest of all.
      EXPECT_EQ(chosen({0, 1, 2, 0, 2, 2, 2.25, -4, -4}, 3, one), (sum ? list{4, 5, 3} : list{6, 7, 8}));
      EXPECT_EQ(chosen({0, 1, 2, 0, 2, 2, 2.25, -4, -4}, 3, two), (sum ? list{2, 4, 5} : list{6, 2, 1}));
      // Groups of one value.
      EXPECT_EQ(chosen({1, 2, 2, 1, 1, 2}, 2, one), (list{1, 0}));
      EXPECT_EQ(chosen({1, 2, 2, 1, 1, 2}, 3, two), (list{1, 2, 0}));
      EXPECT_EQ(chosen({0, 0, 1, 2, 2, 1}, 2, one, {0, 0, 0, 0, 0, 0}), (list{3, 2}));
      // A group of scores of 0.
      EXPECT_EQ(chosen({-inf, -inf, 0, 1}, 2, {.score = score, .groups = 2, .group_score = by}), (list{3, 2}));
      // A bias brings a group in, and keeps one out.
      EXPECT_EQ(chosen({3, 3, 0, 0, 1, 1}, 2, one, {0, 0, 4, 4, 0, 0}), (list{2, 3}));
      EXPECT_EQ(chosen({3, 3, 0, 0, 1, 1}, 2, one, {-inf, -inf, 0, 0, 0, 0}), (list{4, 5}));
      // A NaN keeps its group and is chosen, in the first group of those that have one.
      EXPECT_EQ(chosen({5, 5, 0, nan, 7, 7}, 2, one), (list{3, 2}));
      EXPECT_EQ(chosen({5, 5, nan, 0, nan, 7}, 2, one), (list{2, 3}));
      if (score == router_score::softmax) {  // of which two or more scores are one number
        EXPECT_EQ(
            chosen({900, 900, -1, -900, -1, -800, -inf, 0}, 4, {.groups = 4, .kept_groups = 2, .group_score = by}),
            (list{0, 1, 7, 6}));
      } else {
        EXPECT_EQ(chosen({5, 5, 0, nan, 7, 7}, 3, two, {0, 0, 0, 0, 0, 0}), (list{3, 4, 5}));
      }
      // An expert that is masked is chosen before any of another group.
      EXPECT_EQ(
          chosen({2, 2, 9, -inf, 3, 4}, 2, {.score = score, .groups = 3, .group_score = router_group_score::largest}),
          (list{2, 3}));
      EXPECT_EQ(chosen({0, 0, 3, -inf, 3, -inf}, 3,
                       {.score = score, .groups = 3, .kept_groups = 2, .group_score = router_group_score::largest},
                       {-1, 0, 0, -inf, 0, -inf}),
                (list{2, 4, 3}));
    }
}

/// Relative to each result, where scores are close to 0, to the logit's root, or of no number between.
TYPED_TEST(moe_router, roots_of_softplus_are_exact_for_all_logits) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = tigon::accumulator_t<T>;
  const double largest = sizeof(T) == 8 ? 1e300 : std::is_same_v<T, tigon::float16> ? 6e4 : 3e38;
  const double least = sizeof(T) == 8 ? -1300 : -165;
  const std::vector<double> all{least, -120,  -104, -90,  -60, -41, -40.25, -40, -39.75, -30, -18, -9,     -3,
                                -1,    -0.25, 0,    0.25, 1,   3,   18,     30,  90,     1e3, 2e4, largest};
  const double ulps = sizeof(A) == 8 ? 1e-15 : 6e-7;
  const auto softplus = [](double z) { return std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z))); };
  const auto root = [&](double z) { return z < -700 ? std::exp(z / 2) : std::sqrt(softplus(z)); };
  const auto slope = [&](double z) { return z < -700 ? 0.5 : 0.5 / (1 + std::exp(-z)) / softplus(z); };
  const auto near = [](double came, double want, double relative, double absolute) {
    return std::abs(came - want) <= relative * std::abs(want) + absolute;
  };
  const sizes s{1, all.size(), all.size()};
  problem<T, A> p(s, {.score = router_score::sqrt_softplus, .normalise = false});
  p.logits.assign(all);
  p.dweights.assign(std::vector<double>(s.k, 1));
  p.template forward<B>(false);
  p.template backward<B>(p.dlogits.view());
  // What the element type of dlogits rounds, and has no numbers for.
  constexpr bool half = std::is_same_v<T, tigon::float16>;
  const double of_type = sizeof(T) == 2 ? (half ? 0x1p-10 : 0x1p-8) : ulps;
  const double tiny = half ? 0x1p-24 : sizeof(T) == 2 ? 0x1p-133 : 0;
  for (std::size_t j = 0; j < s.k; ++j) {
    const std::size_t e = p.chosen()[j];
    const double z = p.logits.f64()[e];
    SCOPED_TRACE(z);
    EXPECT_EQ(e, s.experts - 1 - j);
    EXPECT_TRUE(near(p.weights.f64()[j], root(z), ulps, 0)) << p.weights.f64()[j] << " for " << root(z);
    const double want = root(z) * slope(z);
    EXPECT_TRUE(near(p.dlogits.f64()[e], want, of_type + 2 * ulps, tiny)) << p.dlogits.f64()[e] << " for " << want;
  }
  // Shares of two, of which the first has the larger one; the gradients add up to 0 where the slopes are one number.
  std::vector<double> shared = all;
  shared.push_back(-5000);  // whose score is no number
  for (const double z : shared)
    for (const double below : {0.0, 0.5, 16.0}) {
      problem<T, A> two({1, 2, 2}, {.score = router_score::sqrt_softplus});
      two.logits.assign({z, z - below});
      two.dweights.assign({1, -1});
      two.template forward<B>(false);
      two.template backward<B>(two.dlogits.view());
      const double a = two.logits.f64()[0], b = two.logits.f64()[1];
      SCOPED_TRACE(testing::Message() << a << " and " << b);
      const double ratio = a < -40 ? std::exp((b - a) / 2) : root(b) / root(a);
      const double wa = 1 / (1 + ratio), wb = ratio / (1 + ratio);
      EXPECT_TRUE(near(two.weights.f64()[0], wa, 2 * ulps, 0)) << two.weights.f64()[0] << " for " << wa;
      EXPECT_TRUE(near(two.weights.f64()[1], wb, 2 * ulps, 0)) << two.weights.f64()[1] << " for " << wb;
      const double da = 2 * wa * wb * slope(a), db = -2 * wa * wb * slope(b);
      EXPECT_TRUE(near(two.dlogits.f64()[0], da, of_type + 6 * ulps, 4 * ulps * slope(a) + tiny)) << da;
      EXPECT_TRUE(near(two.dlogits.f64()[1], db, of_type + 6 * ulps, tiny)) << db;
    }
}

TYPED_TEST(moe_router, breaks_ties_by_the_index_and_sees_nan_first) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const auto chosen = [](std::vector<double> logits, std::size_t k, moe_router_options opt = {},
                         std::vector<double> bias = {}) {
    problem<T> p({1, logits.size(), k}, opt);
    p.logits.assign(logits);
    if (!bias.empty()) p.bias.assign(bias);
    p.template forward<B>(!bias.empty());
    return p.chosen();
  };
  using list = std::vector<std::size_t>;
  EXPECT_EQ(chosen({1, 1, 1, 1, 1}, 3), (list{0, 1, 2}));
  EXPECT_EQ(chosen({1, 2, 1, 2, 3}, 4), (list{4, 1, 3, 0}));
  EXPECT_EQ(chosen({0, 3, nan, 5, nan}, 3), (list{2, 4, 3}));
  EXPECT_EQ(chosen({-inf, 0, -inf, 1}, 3), (list{3, 1, 0}));
  EXPECT_EQ(chosen({0.0, -0.0, 0.0}, 2), (list{0, 1}));
  // Scores that are one number, of logits that are not.
  for (const moe_router_options& opt : every_option) {
    EXPECT_EQ(chosen({-200, -300, -100, 400}, 4, opt), (list{3, 2, 0, 1}));
    EXPECT_EQ(chosen({1, 1, 1, 1}, 2, opt, {0, 0.5, 0, 0.5}), (list{1, 3}));
  }
  EXPECT_EQ(chosen({2, 1, 0}, 2, {}, {-inf, 0, 0}), (list{1, 2}));
  EXPECT_EQ(chosen({2, 1, nan}, 2, {.score = router_score::sigmoid}, {0, 0, 0}), (list{2, 0}));
}

TYPED_TEST(moe_router, numbers_at_the_edge) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const auto run = [](std::vector<double> logits, std::size_t k, moe_router_options opt) {
    problem<T> p({1, logits.size(), k}, opt);
    p.logits.assign(logits);
    p.template forward<B>(false);
    p.template backward<B>(p.dlogits.view());
    return std::pair(p.weights.f64(), p.dlogits.f64());
  };
  const auto all_of = [](const std::vector<double>& v, auto test) { return std::ranges::all_of(v, test); };
  const auto is_nan = [](double v) { return std::isnan(v); };
  const auto is_zero = [](double v) { return v == 0; };
  for (moe_router_options opt : every_option) {
    SCOPED_TRACE(text_of(opt));
    opt.scale = 1;
    const bool sigmoid = opt.score == router_score::sigmoid, roots = opt.score == router_score::sqrt_softplus;
    const bool alone = !opt.normalise && (sigmoid || roots);
    // Scores that underflow: the shares of those that were chosen are exact still.
    if (opt.normalise) {
      const auto [w, d] = run({-200, -200, -300}, 2, opt);
      EXPECT_EQ(w, (std::vector<double>{0.5, 0.5}));
      EXPECT_FALSE(all_of(d, is_nan));
    }
    // -inf is an expert that cannot be chosen but for want of others.
    const auto [masked, dmasked] = run({0, -inf, -inf}, 2, opt);
    if (roots && !opt.normalise)
      EXPECT_TRUE(close(masked, std::vector<double>{std::sqrt(std::log(2.0)), 0}, bound.of<T>()));
    else
      EXPECT_EQ(masked, (std::vector<double>{sigmoid && !opt.normalise ? 0.5 : 1, 0}));
    EXPECT_EQ(dmasked[1], 0);
    const auto [none, dnone] = run({-inf, -inf, -inf}, 2, opt);
    EXPECT_TRUE(all_of(none, is_zero) && all_of(dnone, is_zero));
    // A NaN is chosen, and seen.
    const auto [bad, dbad] = run({0, 1, nan}, 2, opt);
    EXPECT_TRUE(is_nan(bad[0]));
    EXPECT_TRUE(alone ? bad[1] > 0.7 : is_nan(bad[1]));
    EXPECT_TRUE(is_nan(dbad[2]));
    const auto [infinite, dinfinite] = run({0, inf, 1}, 2, opt);
    if (roots && !opt.normalise)
      EXPECT_EQ(infinite[0], inf);
    else
      EXPECT_TRUE(sigmoid ? infinite[0] > 0.5 : is_nan(infinite[0]));
    EXPECT_TRUE(sigmoid || is_nan(dinfinite[1]));
  }
}

TYPED_TEST(moe_router, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const auto check = [](problem<T> p) {
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      p.indices.clear(), p.weights.clear(), p.dlogits.clear();
      p.template forward<B>(true, ctx);
      p.template backward<B>(p.dlogits.view(), ctx);
      return bits_of(p.indices, p.weights, p.dlogits);
    }));
  };
  for (const moe_router_options& opt : every_option) check(problem<T>({2000, 67, 6}, opt));
  for (const moe_router_options& opt : every_group) check(problem<T>({2000, 72, 6}, opt));
}

TYPED_TEST(moe_router, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({7, 21, 3});
  for (const std::size_t threads : {1u, 3u}) {
    thread_local tigon::workspace unused;
    tigon::thread_pool pool(threads);
    const std::size_t bytes = tigon::moe_router_workspace<B, T>(21, context(pool, unused));
    const auto forward = [&](context& ctx) { p.template forward<B>(true, ctx); };
    const auto backward = [&](context& ctx) { p.template backward<B>(p.dlogits.view(), ctx); };
    EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, forward, threads), workspace, "moe_router_forward: workspace is of",
                       p.indices, p.weights);
    with_workspace_of(bytes, forward, threads);
    EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, backward, threads), workspace,
                       "moe_router_backward: workspace is of", p.dlogits);
    with_workspace_of(bytes, backward, threads);
  }
}

TEST(moe_router_types, may_be_mixed) {
  using tigon::bfloat16;
  const sizes s{6, 19, 4, 1};
  for (const moe_router_options& opt : every_option) {
    problem<bfloat16, float, std::int64_t> p(s, opt);
    p.forward<usual_backend>(true);
    EXPECT_EQ(p.chosen(), p.wanted(true));
    EXPECT_TRUE(close(p.weights.f64(), weights_of(s, p.logits.f64(), p.chosen(), opt), bound.f32));
    p.backward<usual_backend>(p.dlogits.view());
    const auto want = derivative(s, p.logits.f64(), p.chosen(), p.dweights.f64(), opt);
    EXPECT_TRUE(close(p.dlogits.f64(), want, bound.bf16, {.scale = 0.2}));
  }
}

TEST(moe_router_doors, refuse_before_the_first_write) {
  problem<float> p({3, 5, 2, 1});
  struct arguments {
    matrix_view<float> logits, weights, dweights, dlogits;
    matrix_view<std::int32_t> indices;
    std::span<float> bias;
    moe_router_options opt;
  };
  p.forward<tigon::default_backend>(true);
  const arguments good{
      p.logits.view(), p.weights.view(), p.dweights.view(), p.dlogits.view(), p.indices.view(), {p.bias.data(), 5}, {}};
  using enum tigon::error_code;
  const auto forward = [&](tigon::error_code code, const std::string& part, auto change) {
    arguments a = good;
    change(a);
    EXPECT_TRUE(refuses([&] { tigon::moe_router_forward(a.logits, a.bias, a.indices, a.weights, a.opt); }, code,
                        "moe_router_forward: " + part, p.logits, p.indices, p.weights));
  };
  const auto backward = [&](tigon::error_code code, const std::string& part, auto change) {
    arguments a = good;
    change(a);
    EXPECT_TRUE(refuses([&] { tigon::moe_router_backward(a.dweights, a.logits, a.indices, a.dlogits, a.opt); }, code,
                        "moe_router_backward: " + part, p.logits, p.dlogits));
  };
  forward(shape, "logits is a null pointer", [](auto& a) { a.logits.data = nullptr; });
  forward(stride, "logits is of row stride 4", [](auto& a) { a.logits.row_stride = 4; });
  forward(shape, "bias is of 4 elements; expected 5", [](auto& a) { a.bias = a.bias.first(4); });
  forward(shape, "indices is 2 x 2; expected 3 x 2", [](auto& a) { a.indices.rows = 2; });
  forward(shape, "weights is 3 x 1; expected 3 x 2", [](auto& a) { a.weights.cols = 1; });
  forward(argument, "indices is of more columns than there are experts",
          [](auto& a) { a.logits.cols = 1, a.bias = a.bias.first(1); });
  forward(argument, "scale is nan", [](auto& a) { a.opt.scale = nan; });
  forward(argument, "groups is 0; expected at least 1, and a divisor of the number of experts",
          [](auto& a) { a.opt.groups = 0; });
  forward(argument, "groups is 2; expected at least 1, and a divisor of the number of experts",
          [](auto& a) { a.opt.groups = 2; });
  forward(argument, "groups is 10; expected", [](auto& a) { a.opt.groups = a.opt.kept_groups = 10; });
  forward(argument, "kept_groups is 0; expected at least 1, and at most groups",
          [](auto& a) { a.opt.kept_groups = 0; });
  forward(argument, "kept_groups is 6; expected at least 1, and at most groups",
          [](auto& a) { a.opt.groups = 5, a.opt.kept_groups = 6; });
  forward(argument,
          "indices is of more columns than there are experts in the groups that are kept; expected "
          "kept_groups * experts / groups at most",
          [](auto& a) { a.opt.groups = 5; });
  forward(alias, "weights overlaps logits", [](auto& a) { a.weights.data = a.logits.data; });
  backward(shape, "dweights is 3 x 1; expected 3 x 2", [](auto& a) { a.dweights.cols = 1; });
  backward(shape, "dlogits is 3 x 4; expected 3 x 5", [](auto& a) { a.dlogits.cols = 4; });
  backward(argument, "scale is inf", [](auto& a) { a.opt.scale = inf; });
  backward(argument, "groups is 3; expected at least 1", [](auto& a) { a.opt.groups = 3; });
  backward(argument, "kept_groups is 2; expected at least 1, and at most groups",
           [](auto& a) { a.opt.kept_groups = 2; });
  backward(argument, "indices is of more columns than there are experts in the groups",
           [](auto& a) { a.opt.groups = 5; });
  backward(alias, "dlogits overlaps logits", [](auto& a) { a.dlogits.data = a.logits.data + 1; });
  backward(alias, "dlogits overlaps dweights", [](auto& a) { a.dweights.data = a.dlogits.data; });
  p.indices(2, 1) = 5;
  backward(index, "indices[2, 1] is 5; expected at least 0 and below 5", [](auto&) {});
  p.indices(2, 1) = p.indices(2, 0);
  backward(index, "indices[2, 1] is " + std::to_string(p.indices(2, 0)) + " again", [](auto&) {});
  p.indices(0, 1) = p.indices(0, 0);
  backward(index, "indices[0, 1] is " + std::to_string(p.indices(0, 0)) + " again", [](auto&) {});
}

}  // namespace
