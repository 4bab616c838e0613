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
using tigon::context, tigon::matrix_view, tigon::moe_router_options, tigon::router_score;

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
};

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
    const auto score = [&](std::size_t e) {
      return opt.score == router_score::softmax ? exp(z[e]) / all : N(1) / (N(1) + exp(-z[e]));
    };
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
  /// The experts in descending order of what is compared.
  TIGON_TEST_NOINLINE std::vector<std::size_t> wanted(bool biased) const {
    std::vector<std::size_t> out;
    for (std::size_t t = 0; t < s.tokens; ++t) {
      double sum = 0;
      for (std::size_t e = 0; e < s.experts; ++e) sum += std::exp(to_f64(logits(t, e)));
      const auto key = [&](std::size_t e) {
        const double z = to_f64(logits(t, e));
        if (!biased) return -z;
        return -(opt.score == router_score::softmax ? std::exp(z) / sum : 1 / (1 + std::exp(-z))) - to_f64(bias[e]);
      };
      std::vector<std::size_t> order(s.experts);
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::ranges::stable_sort(order, {}, key);
      out.insert(out.end(), order.begin(), order.begin() + static_cast<std::ptrdiff_t>(s.k));
    }
    return out;
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
  for (const sizes s : every_size)
    for (const moe_router_options& opt : every_option)
      for (const bool biased : {false, true})
        for (const guard side : both_guards) {
          SCOPED_TRACE(testing::Message() << s << ", score " << static_cast<int>(opt.score) << ", normalise "
                                          << opt.normalise << ", bias " << biased << ", " << side);
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
    SCOPED_TRACE(testing::Message() << static_cast<int>(opt.score) << opt.normalise);
    opt.scale = 1;
    const bool sigmoid = opt.score == router_score::sigmoid;
    // Scores that underflow: the shares of those that were chosen are exact still.
    if (opt.normalise) {
      const auto [w, d] = run({-200, -200, -300}, 2, opt);
      EXPECT_EQ(w, (std::vector<double>{0.5, 0.5}));
      EXPECT_FALSE(all_of(d, is_nan));
    }
    // -inf is an expert that cannot be chosen but for want of others.
    const auto [masked, dmasked] = run({0, -inf, -inf}, 2, opt);
    EXPECT_EQ(masked, (std::vector<double>{sigmoid && !opt.normalise ? 0.5 : 1, 0}));
    EXPECT_EQ(dmasked[1], 0);
    const auto [none, dnone] = run({-inf, -inf, -inf}, 2, opt);
    EXPECT_TRUE(all_of(none, is_zero) && all_of(dnone, is_zero));
    // A NaN is chosen, and seen.
    const auto [bad, dbad] = run({0, 1, nan}, 2, opt);
    EXPECT_TRUE(is_nan(bad[0]));
    EXPECT_TRUE(sigmoid && !opt.normalise ? bad[1] > 0.7 : is_nan(bad[1]));
    EXPECT_TRUE(is_nan(dbad[2]));
    const auto [infinite, dinfinite] = run({0, inf, 1}, 2, opt);
    EXPECT_TRUE(sigmoid ? infinite[0] > 0.5 : is_nan(infinite[0]));
  }
}

TYPED_TEST(moe_router, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const moe_router_options& opt : every_option) {
    problem<T> p({2000, 67, 6}, opt);
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      p.indices.clear(), p.weights.clear(), p.dlogits.clear();
      p.template forward<B>(true, ctx);
      p.template backward<B>(p.dlogits.view(), ctx);
      return bits_of(p.indices, p.weights, p.dlogits);
    }));
  }
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
  forward(alias, "weights overlaps logits", [](auto& a) { a.weights.data = a.logits.data; });
  backward(shape, "dweights is 3 x 1; expected 3 x 2", [](auto& a) { a.dweights.cols = 1; });
  backward(shape, "dlogits is 3 x 4; expected 3 x 5", [](auto& a) { a.dlogits.cols = 4; });
  backward(argument, "scale is inf", [](auto& a) { a.opt.scale = inf; });
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
