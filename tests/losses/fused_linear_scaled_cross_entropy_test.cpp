// The contract of include/tigon/losses/fused_linear_scaled_cross_entropy.hpp, promise by promise.
// Operators: scaled_cross_entropy fused_linear_scaled_cross_entropy
#include <gtest/gtest.h>

#include <tigon/losses/fused_linear_scaled_cross_entropy.hpp>

#include "support/backends.hpp"
#include "support/chunk_backends.hpp"
#include "support/complex_step.hpp"
#include "support/linear_problem.hpp"
#include "support/linear_scaled_cross_entropy.hpp"
#include "support/logit_loss.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::gradient, tigon::matrix_view;
using tigon::backends::small_chunks;
using options = tigon::fused_linear_scaled_cross_entropy_options;
template <class A>
using upstream = tigon::scaled_cross_entropy_upstream<A>;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();

const linear_sizes every_size[] = {{0, 5, 7}, {1, 1, 1}, {5, 3, 2, 1}, {3, 0, 9}, {7, 33, 65, 3}, {40, 16, 123}};

struct variant {
  const char* name;
  std::size_t of_nll, of_entropy;  ///< upstream numbers: 0 none, 1 one, 2 one a row
  options opt;
  bool biased = false;
  gradient mode = gradient::overwrite;
};
const variant variants[] = {
    {"nll", 2, 0, {}},
    {"entropy, biased, added", 0, 2, {.temperature = 2}, true, gradient::accumulate},
    {"both", 2, 2, {.temperature = 0.7, .ignore_index = 0}, true},
    {"both, one number each", 1, 1, {.temperature = 1.5}},
};

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type result_bound{.f32 = 2e-6, .bf16 = 2e-6, .f16 = 2e-6, .f64 = 4e-15};
constexpr by_type gradient_bound{.f32 = 2e-5, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 6e-14};

/// nll, entropy and lse of a row by their definitions, with the target as the point of reference; for any number type.
template <class N>
struct token {
  N nll, entropy = 0, lse;
  std::vector<N> log_p;

  TIGON_TEST_NOINLINE token(const std::vector<N>& logits, std::size_t target, double temperature) {
    using std::exp, std::log;
    using real = decltype(std::real(N()));
    const real t = temperature;
    N others = 0;
    for (std::size_t j = 0; j < logits.size(); ++j)
      if (j != target) others += exp((logits[j] - logits[target]) / t);
    if constexpr (std::same_as<N, real>)
      nll = std::log1p(others);
    else
      nll = log(N(1) + others);
    lse = logits[target] / t + nll;
    for (const N& z : logits) log_p.push_back((z - logits[target]) / t - nll);
    for (const N& l : log_p) entropy -= exp(l) * l;
  }
};

/// Every buffer at a guard page, outputs full of canaries.
template <class T>
struct problem : linear_problem<T> {
  using A = accumulator_t<T>;
  using linear_problem<T>::x, linear_problem<T>::w, linear_problem<T>::dx, linear_problem<T>::dw;
  linear_sizes s;
  variant v;
  guarded<std::int64_t> target;
  guarded<A> nll, entropy, lse, of_nll, of_entropy;

  TIGON_TEST_NOINLINE explicit problem(linear_sizes of, variant which = variants[2], guard side = guard::behind)
      : linear_problem<T>(of, which.biased, which.mode, side),
        s(of),
        v(which),
        target(s.rows, side),
        nll(s.rows, side),
        entropy(s.rows, side),
        lse(s.rows, side),
        of_nll(random_vector<A>(numbers(v.of_nll), 3, side)),
        of_entropy(random_vector<A>(numbers(v.of_entropy), 4, side)) {
    std::ranges::copy(random_labels(s.rows, s.vocab, v.opt.ignore_index, 5), target.begin());
  }
  TIGON_TEST_NOINLINE void clear() {
    this->clear_gradients();
    nll.clear(), entropy.clear(), lse.clear();
  }
  std::size_t numbers(std::size_t which) const { return which == 2 ? s.rows : which; }

  upstream<A> given() const {
    return {v.of_nll == 0 ? std::span<const A>() : of_nll, v.of_entropy == 0 ? std::span<const A>() : of_entropy};
  }
  template <class B>
  TIGON_TEST_NOINLINE void forward(matrix_view<T> to_dx, matrix_view<T> to_dw, std::span<T> to_db,
                                   context& ctx = tigon::default_context()) {
    tigon::fused_linear_scaled_cross_entropy_forward<B>(this->head(), target, {nll, entropy, lse},
                                                        {to_dx, to_dw, to_db, this->dparams}, v.opt, given(), ctx);
  }
  template <class B>
  void forward(context& ctx = tigon::default_context()) {
    forward<B>(dx.view(), dw.view(), tigon::test::given(this->dbias), ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(context& ctx = tigon::default_context()) {
    tigon::fused_linear_scaled_cross_entropy_backward<B>(this->head(), target, given(), this->gradients(), v.opt, ctx);
  }

  auto results() const { return bits_of(nll, entropy, lse); }
  auto bits() const { return bits_of(nll, entropy, lse, dx, dw, this->dbias); }

  struct reference : layer_gradients {
    std::vector<double> nll, entropy, lse;
  };
  /// The definition in long double with all logits at once; to be computed before the call, because dw may be added
  /// to.
  TIGON_TEST_NOINLINE reference wanted() const {
    const whole_layer layer = this->layer();
    const auto g = of_nll.f64(), h = of_entropy.f64();
    const auto of_row = [&](const std::vector<double>& values, std::size_t i) {
      return values.empty() ? 0 : values[values.size() == 1 ? 0 : i];
    };
    reference out{this->before(), {}, {}, {}};
    for (std::size_t i = 0; i < s.rows; ++i) {
      if (target[i] == v.opt.ignore_index) {
        for (auto* to : {&out.nll, &out.entropy, &out.lse}) to->push_back(0);
        continue;
      }
      const auto t = static_cast<std::size_t>(target[i]);
      std::vector<long double> z(layer.bias.begin(), layer.bias.end());
      z.resize(s.vocab);
      for (std::size_t j = 0; j < s.vocab; ++j)
        for (std::size_t k = 0; k < s.hidden; ++k)
          z[j] += static_cast<long double>(layer.x[i * s.hidden + k]) * layer.w[j * s.hidden + k];
      const token<long double> r(z, t, v.opt.temperature);
      out.nll.push_back(static_cast<double>(r.nll));
      out.entropy.push_back(static_cast<double>(r.entropy));
      out.lse.push_back(static_cast<double>(r.lse));
      for (std::size_t j = 0; j < s.vocab; ++j) {
        const long double p = std::exp(r.log_p[j]);
        const auto d = static_cast<double>(
            (of_row(g, i) * (j == t ? std::expm1(-r.nll) : p) - of_row(h, i) * p * (r.log_p[j] + r.entropy)) /
            v.opt.temperature);
        add_logit_gradient(out, layer, i, j, d);
      }
    }
    return out;
  }
  TIGON_TEST_NOINLINE void expect_results(const reference& r) const {
    const comparison with{.scale = 1e-3, .may_be_empty = true};
    EXPECT_TRUE(close(nll.f64(), r.nll, result_bound.of<T>(), with)) << "nll";
    EXPECT_TRUE(close(entropy.f64(), r.entropy, result_bound.of<T>(), with)) << "entropy";
    EXPECT_TRUE(close(lse.f64(), r.lse, result_bound.of<T>(), with)) << "lse";
  }
  TIGON_TEST_NOINLINE void expect_gradients(const reference& r) const {
    // A vocabulary of one class has no gradient.
    expect_layer_gradients(*this, r, gradient_bound.of<T>(), {.scale = s.vocab == 1 ? 1.0 : 0});
  }
};

// Golden values are compared on every backend; here one instantiation each of what differs.
#if defined(TIGON_CONFORMANCE_BACKEND)
using pairs = testing::Types<on<usual_backend, float>, on<small_chunks, bfloat16>>;
#else
using pairs = with_engines<list<on<single_numbers, double>, on<small_chunks, float>, on<small_chunks, bfloat16>>,
                           on<tigon::backends::xsimd, float>>;
#endif

template <class On>
class fused_linear_scaled_cross_entropy : public testing::Test {};
TYPED_TEST_SUITE(fused_linear_scaled_cross_entropy, pairs, names);

TYPED_TEST(fused_linear_scaled_cross_entropy, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const linear_sizes s : every_size)
    for (const variant& v : variants)
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", " << v.name << ", " << side);
        problem<T> p(s, v, side), q(s, v, side);
        const auto wanted = p.wanted();
        p.template forward<B>();
        p.expect_results(wanted);
        p.expect_gradients(wanted);
        q.template backward<B>();
        EXPECT_EQ(bits_of(q.dx, q.dw), bits_of(p.dx, p.dw)) << "backward is another computation than forward";
        EXPECT_TRUE(q.nll.untouched() && q.entropy.untouched() && q.lse.untouched());
      }
}

TYPED_TEST(fused_linear_scaled_cross_entropy, each_gradient_may_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t which : {1, 2})
    expect_gradients_may_be_left_out<B>([=] { return problem<T>({20, 17, 67}, variants[which]); });
}

TYPED_TEST(fused_linear_scaled_cross_entropy, nothing_kept_is_zero_and_bad_rows_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({9, 5, 30});
  std::ranges::fill(p.target, 0);
  std::ranges::fill(p.of_nll, p.of_nll[0] + std::numeric_limits<accumulator_t<T>>::quiet_NaN());  // not read
  p.template forward<B>();
  for (const auto& zeros : {p.nll.f64(), p.entropy.f64(), p.lse.f64(), p.dx.f64(), p.dw.f64()})
    EXPECT_EQ(std::ranges::count(zeros, 0.0), std::ssize(zeros));

  problem<T> clean({9, 5, 30}), bad({9, 5, 30});
  bad.x(4, 2) = from_f64<T>(nan), clean.target[4] = bad.target[4] = 7;
  clean.template forward<B>(), bad.template forward<B>();
  for (std::size_t i = 0; i < 9; ++i) {
    EXPECT_TRUE(i == 4 ? std::isnan(bad.nll[i]) && std::isnan(bad.entropy[i]) && std::isnan(bad.lse[i])
                       : bad.nll[i] == clean.nll[i] && bad.entropy[i] == clean.entropy[i])
        << i;
    for (std::size_t h = 0; h < 5; ++h)
      EXPECT_TRUE(i == 4 ? std::isnan(to_f64(bad.dx(i, h))) : to_f64(bad.dx(i, h)) == to_f64(clean.dx(i, h))) << i;
  }
}

TYPED_TEST(fused_linear_scaled_cross_entropy, ignored_rows_contribute_nothing) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants) {
    problem<T> p({20, 17, 67, 2}, v), zeros({20, 17, 67, 2}, v);
    for (const std::size_t i : {1, 7, 19}) {
      p.target[i] = zeros.target[i] = v.opt.ignore_index;
      for (std::size_t h = 0; h < 17; ++h) zeros.x(i, h) = from_f64<T>(0), p.x(i, h) = from_f64<T>(nan);
    }
    p.template forward<B>(), zeros.template forward<B>();
    EXPECT_EQ(p.bits(), zeros.bits());
    for (const double g : p.dw.f64()) ASSERT_TRUE(std::isfinite(g));
    for (std::size_t h = 0; h < 17; ++h) EXPECT_EQ(to_f64(p.dx(7, h)), 0);
  }
}

template <class B, class T>
TIGON_TEST_NOINLINE loss_of_rows<problem<T>> rows_of(linear_sizes s, const variant& v, std::size_t chunk) {
  using P = problem<T>;
  auto of = rows_of_scaled_cross_entropy<P>(s, [=] { return P(s, v); });
  of.results = [](const P& p, std::size_t i) { return scaled_results_of(p, i, p.s.hidden); };
  of.call = [](P& p, context& ctx) { p.template forward<B>(ctx); };
  of.bytes = [=](context& ctx) {
    return tigon::fused_linear_scaled_cross_entropy_workspace<B, T>(s.rows, s.hidden, s.vocab, ctx);
  };
  of.chunk = chunk;
  return of;
}

TYPED_TEST(fused_linear_scaled_cross_entropy, rows_do_not_depend_on_which_others_count) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  expect_rows_for_themselves(rows_of<B, T>({130, 40, 60, 1}, variants[2], 100));
  expect_rows_for_themselves(rows_of<B, T>({21, 7, 33, 1}, variants[3], 0));
  expect_rows_for_themselves(rows_of<B, T>({8, 7, 33, 1}, variants[2], 0));
}

TYPED_TEST(fused_linear_scaled_cross_entropy, few_rows_keep_to_the_bar_of_golden_sets) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  if constexpr (tigon::detail::few_scaled_cross_entropy_in_f64<B, T>)
    for (std::uint64_t seed = 0; seed < 25; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      problem<T> p({6, 20, 90}, {"", 1, 1, {.temperature = 0.5}});
      p.x.assign(normal_values(6 * 20, 2 * seed + 100));
      p.w.assign(normal_values(90 * 20, 2 * seed + 101, {.deviation = 1}));
      const auto wanted = p.wanted();
      p.template forward<B>();
      expect_golden_bar(p, p.nll.f64(), wanted.nll, wanted);
      EXPECT_LE(measure(p.entropy.f64(), wanted.entropy).rel_l2, 2.4e-7);
      EXPECT_LE(measure(p.lse.f64(), wanted.lse).rel_l2, 2.4e-7);
    }
}

TEST(ignored_rows, are_not_multiplied) {
  expect_products_of_kept_rows(rows_of<tigon::backends::small_counting, float>({40, 16, 123}, variants[2], 0),
                               counted.multiplications, 3 * 16 * 123);
}

TYPED_TEST(fused_linear_scaled_cross_entropy, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({120, 40, 700});
  EXPECT_TRUE(same_forward_for_any_threads<B>(p));
}

TYPED_TEST(fused_linear_scaled_cross_entropy, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({20, 17, 67});
  const auto bytes = [](context& ctx) {
    return tigon::fused_linear_scaled_cross_entropy_workspace<B, T>(20, 17, 67, ctx);
  };
  expect_takes_its_workspace("fused_linear_scaled_cross_entropy_backward", p, bytes,
                             [&](context& ctx) { p.template backward<B>(ctx); });
  p.clear();
  expect_takes_its_workspace("fused_linear_scaled_cross_entropy_forward", p, bytes,
                             [&](context& ctx) { p.template forward<B>(ctx); });
}

/// Rows of logits as they are: with hidden = rows and the identity for x, row i of the logits is column i of w.
template <class T>
struct given_logits {
  problem<T> p;

  TIGON_TEST_NOINLINE given_logits(const std::vector<std::vector<double>>& rows, std::vector<std::int64_t> target,
                                   options opt = {})
      : p({rows.size(), rows.size(), rows[0].size()}, {"", 1, 1, opt}) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (std::size_t k = 0; k < rows.size(); ++k) p.x(i, k) = from_f64<T>(i == k);
      for (std::size_t j = 0; j < rows[i].size(); ++j) p.w(j, i) = from_f64<T>(rows[i][j]);
    }
    std::ranges::copy(target, p.target.begin());
  }
};

// Liger's portable path takes the logarithm of a softmax in the textbook's way, and rounds the entropy to x's type.
TEST(tokens, that_are_sure_keep_their_digits) {
  std::vector<std::vector<double>> rows;
  const double lifts[] = {8, 16, 25, 40, 80};
  for (const double lift : lifts) {
    auto row = normal_values(1000, 7);
    row[3] = 4 + lift;
    for (double& v : row) v = static_cast<double>(static_cast<float>(v));
    rows.push_back(row);
  }
  given_logits<float> g(rows, std::vector<std::int64_t>(rows.size(), 3));
  const auto wanted = g.p.wanted();
  g.p.forward<small_chunks>();
  double textbook = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_NEAR(g.p.nll[i] / wanted.nll[i], 1, 1e-6) << "lift " << lifts[i];
    EXPECT_NEAR(g.p.entropy[i] / wanted.entropy[i], 1, 1e-6) << "lift " << lifts[i];
    float sum = 0, dot = 0;
    for (const double v : rows[i]) sum += std::exp(static_cast<float>(v - rows[i][3]));
    for (const double v : rows[i]) {
      const float log_p = static_cast<float>(v - rows[i][3]) - std::log(sum);
      dot -= std::exp(log_p) * log_p;
    }
    textbook = std::max({textbook, std::abs(std::log(sum) / wanted.nll[i] - 1),
                         std::abs(static_cast<double>(dot) / wanted.entropy[i] - 1)});
    // dw of the target's column is D_t x: 1 - p_t must not be 0.
    EXPECT_NEAR(to_f64(g.p.dw(3, i)) / wanted.dw[3 * rows.size() + i], 1, 2e-6) << "lift " << lifts[i];
  }
  EXPECT_GT(textbook, 0.5) << "this test would not notice the textbook's form";
}

TEST(tokens, with_a_large_common_offset_keep_their_entropy) {
  std::vector<std::vector<double>> rows(3, std::vector<double>(257));
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < 257; ++j)
      rows[i][j] = (i == 0 ? 0 : i == 1 ? 4096 : -8192) + static_cast<double>(j * 37 % 97) / 16;
  given_logits<float> g(rows, {1, 1, 1}, {.temperature = 0.5});
  g.p.forward<small_chunks>();
  EXPECT_EQ(g.p.entropy[0], g.p.entropy[1]);
  EXPECT_EQ(g.p.entropy[0], g.p.entropy[2]);
  EXPECT_EQ(g.p.nll[0], g.p.nll[1]);
  for (std::size_t j = 0; j < 257; ++j) EXPECT_EQ(g.p.dw(j, 1), -0.0f + g.p.dw(j, 2)) << j;
}

/// The work on a chunk alone, with logits that no finite layer makes.
TEST(rows_of_logits, at_the_edges) {
  using A = float;
  constexpr float none = std::numeric_limits<float>::quiet_NaN(), far = std::numeric_limits<float>::infinity();
  struct edge {
    const char* name;
    std::vector<float> z;
    std::vector<double> results, d;  ///< nll, entropy, lse; D
  };
  const double h = std::log(2.0), g = 0.5;
  const edge edges[] = {
      {"-inf at the target", {0, -far, 0}, {inf, h, h}, {g / 2, -g, g / 2}},
      {"-inf elsewhere", {-far, 0, 0}, {h, h, h}, {0, -g / 2, g / 2}},
      {"-inf everywhere but here", {-far, 3, -far}, {0, 0, 3}, {0, 0, 0}},
      {"-inf everywhere", {-far, -far, -far}, {nan, nan, nan}, {nan, nan, nan}},
      {"+inf", {0, 1, far}, {nan, nan, nan}, {nan, nan, nan}},
      {"NaN", {0, 1, none}, {nan, nan, nan}, {nan, nan, nan}},
  };
  for (const edge& e : edges)
    for (const bool with_entropy : {false, true}) {
      SCOPED_TRACE(e.name);
      guarded<A> z(3), nll(1), entropy(1), lse(1);
      const A of_nll[] = {0.5f}, of_entropy[] = {-2};
      std::ranges::copy(e.z, z.begin());
      const std::int32_t target[] = {1};
      tigon::detail::scaled_cross_entropy_rows<A> rows(
          {nll, entropy, lse}, {of_nll, with_entropy ? std::span<const A>(of_entropy) : std::span<const A>()});
      tigon::default_context().workspace().expect("test", 1 << 16);
      const matrix_view<A> logits(z.data(), 1, 3);
      const tigon::fused_linear_scaled_cross_entropy_options opt;
      tigon::kernel_for<tigon::op::scaled_cross_entropy, small_chunks>::forward<small_chunks, A, std::int32_t>(
          logits, target, rows, true, opt, tigon::default_context());
      EXPECT_TRUE(close(nll.f64(), {{e.results[0]}}, 1e-7));
      EXPECT_TRUE(close(entropy.f64(), {{e.results[1]}}, 1e-7));
      EXPECT_TRUE(close(lse.f64(), {{e.results[2]}}, 1e-7));
      // Both classes that are left are equally likely, so the entropy has no slope.
      EXPECT_TRUE(close(z.f64(), e.d, 1e-7, {.scale = 1}));
    }
}

TEST(gradients, differentiate_the_definition) {
  using B = single_numbers;
  for (const double temperature : {1.0, 0.7, 2.5})
    for (const int which : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << "temperature " << temperature << ", outputs " << which);
      problem<double> p(
          {5, 4, 11}, {"", which & 1 ? 2u : 0u, which & 2 ? 2u : 0u, {.temperature = temperature, .ignore_index = 2}});
      p.forward<B>();
      const auto loss = [&](const auto& xv, const auto& wv) {
        using N = std::complex<double>;
        N total = 0;
        for (std::size_t i = 0; i < 5; ++i) {
          if (p.target[i] == 2) continue;
          std::vector<N> z(11);
          for (std::size_t j = 0; j < 11; ++j)
            for (std::size_t k = 0; k < 4; ++k) z[j] += xv[i * 4 + k] * wv[j * 4 + k];
          const token<N> r(z, static_cast<std::size_t>(p.target[i]), temperature);
          if (which & 1) total += p.of_nll[i] * r.nll;
          if (which & 2) total += p.of_entropy[i] * r.entropy;
        }
        return total;
      };
      const auto xv = p.x.f64(), wv = p.w.f64();
      const auto all_x = probes(xv.size()), all_w = probes(wv.size());
      EXPECT_TRUE(
          close(pick(p.dx.f64(), all_x), complex_step([&](const auto& z) { return loss(z, wv); }, xv, all_x), 1e-13));
      EXPECT_TRUE(
          close(pick(p.dw.f64(), all_w), complex_step([&](const auto& z) { return loss(xv, z); }, wv, all_w), 1e-13));
    }
}

// Liger's portable path adds dw up in w's type, 512 rows at a time: of many small shares most are lost.
TEST(chunks, lose_nothing_of_dw_in_bf16) {
  problem<bfloat16> p({600, 2, 64}, {"", 1, 0, {}});
  std::ranges::fill(p.target, 5);
  for (std::size_t i = 0; i < 600; ++i) p.x(i, 0) = from_f64<bfloat16>(1), p.x(i, 1) = from_f64<bfloat16>(0.5);
  const auto wanted = p.wanted();
  p.forward<small_chunks>();
  EXPECT_TRUE(close(p.dw.f64(), wanted.dw, 4e-3));
}

TEST(chunks, change_the_results_by_rounding_alone) {
  problem<float> a({60, 16, 200}), b({60, 16, 200});
  const auto wanted = a.wanted();
  a.forward<usual_backend>(), b.forward<small_chunks>();
  EXPECT_EQ((tigon::detail::chunk_rows<usual_backend, float>(60, 16, 200, tigon::default_context())), 60u);
  EXPECT_EQ((tigon::detail::chunk_rows<small_chunks, float>(60, 16, 200, tigon::default_context())), 1u);
  a.expect_gradients(wanted), b.expect_gradients(wanted);
  a.expect_results(wanted), b.expect_results(wanted);
}

TEST(chunks, of_a_wide_vocabulary) {
  problem<float> p({3, 2, 256000}, variants[3]);
  p.target[0] = 255999;
  const auto wanted = p.wanted();
  p.forward<usual_backend>();
  p.expect_results(wanted);
  p.expect_gradients(wanted);
}

// docs/formulas/fused_linear_scaled_cross_entropy.md: the logits of a chunk, an f32 dw where w has 16 bits, and what
// the largest product packs.
TEST(chunks, take_the_memory_that_the_page_says) {
  const std::size_t rows = 160, hidden = 32, vocab = 20000;
  tigon::workspace scratch;
  context ctx(tigon::serial(), scratch);
  problem<float> p({rows, hidden, vocab}, variants[2]);
  p.forward<usual_backend>(ctx);
  const std::size_t chunk = tigon::detail::chunk_rows<usual_backend, float>(rows, hidden, vocab, ctx);
  const std::size_t page =
      4 * chunk * vocab + tigon::gemm_workspace<usual_backend, float, float, float>(chunk, hidden, vocab);
  EXPECT_NEAR(static_cast<double>(scratch.high_water()) / static_cast<double>(page), 1, 0.1);
}

/// By this rule the rows of a chunk depend on the hidden size, too: here 8, where 64 were without it.
TEST(chunks, of_liger_take_the_workspace_that_they_name) {
  problem<float> p({64, 8, 64});
  const auto bytes = [](context& ctx) {
    return tigon::fused_linear_scaled_cross_entropy_workspace<liger, float>(64, 8, 64, ctx);
  };
  expect_takes_its_workspace("fused_linear_scaled_cross_entropy_backward", p, bytes,
                             [&](context& ctx) { p.backward<liger>(ctx); });
}

/// The doors, which are the same for every backend: refused before the first write.
class scaled_doors : public testing::Test {
 protected:
  using view = matrix_view<float>;
  using floats = std::span<float>;
  struct arguments {
    view x, w;
    std::span<const std::int64_t> target;
    tigon::scaled_cross_entropy_results<float> out;
    upstream<float> g;
    view dx, dw;
    floats bias, dbias;
    options opt;
  };
  using change_of = std::function<void(arguments&)>;

  TIGON_TEST_NOINLINE void refuses_forward(tigon::error_code code, const std::string& part, const change_of& change) {
    arguments a = good;
    change(a);
    EXPECT_TRUE(refuses(
        [&] {
          tigon::fused_linear_scaled_cross_entropy_forward<small_chunks>(
              tigon::linear_layer{a.x, a.w, a.bias}, a.target, a.out, {a.dx, a.dw, a.dbias}, a.opt, a.g);
        },
        code, "fused_linear_scaled_cross_entropy_forward: " + part, p.dx, p.dw, p.nll, p.entropy, p.lse, p.dbias,
        m.all));
  }
  TIGON_TEST_NOINLINE void refuses_both(tigon::error_code code, const std::string& part, const change_of& change) {
    refuses_forward(code, part, change);
    arguments a = good;
    change(a);
    EXPECT_TRUE(refuses(
        [&] {
          tigon::fused_linear_scaled_cross_entropy_backward<small_chunks>(tigon::linear_layer{a.x, a.w, a.bias},
                                                                          a.target, a.g, {a.dx, a.dw, a.dbias}, a.opt);
        },
        code, "fused_linear_scaled_cross_entropy_backward: " + part, p.dx, p.dw, p.dbias, m.all));
  }
  auto both() { return std::bind_front(&scaled_doors::refuses_both, this); }

  problem<float> p{{3, 4, 6, 1}};
  overlapping_memory m{p.s};
  const floats three = m.classes.first(3);
  const arguments good{p.x.view(), p.w.view(), p.target, {p.nll, p.entropy, p.lse}, p.given(), p.dx.view(), p.dw.view(),
                       p.bias,     p.dbias,    {}};
};

TEST_F(scaled_doors, refuse_wrong_shapes_and_numbers) {
  using enum tigon::error_code;
  refuse_wrong_layers(p.s, both());
  refuses_both(shape, "target is of 2 elements; expected 3", [](auto& a) { a.target = a.target.first(2); });
  refuses_both(shape, "upstream is empty", [](auto& a) { a.g = {}; });
  refuses_both(shape, "upstream.nll is of 2 elements; expected 3", [](auto& a) { a.g.nll = a.g.nll.first(2); });
  refuses_both(shape, "upstream.entropy is of 2 elements", [](auto& a) { a.g.entropy = a.g.entropy.first(2); });
  refuses_forward(shape, "nll is of 2 elements; expected 3", [](auto& a) { a.out.nll = a.out.nll.first(2); });
  refuses_forward(shape, "entropy is of 2 elements", [](auto& a) { a.out.entropy = a.out.entropy.first(2); });
  refuses_forward(shape, "lse is of 2 elements", [](auto& a) { a.out.lse = a.out.lse.first(2); });
  for (const double bad : {0.0, -1.0, 1e-31, 1e31, nan, inf})
    refuses_both(argument, "temperature is", [=](auto& a) { a.opt.temperature = bad; });
  for (const std::int64_t bad : {-1, 6}) {
    p.target[0] = bad;
    refuses_both(index, "target[0] is " + std::to_string(bad) + "; expected at least 0 and below 6", [](auto&) {});
  }
}

TEST_F(scaled_doors, refuse_overlaps) {
  using enum tigon::error_code;
  refuse_overlapping_layers(m, both());
  refuses_both(alias, "dx overlaps upstream.nll", [&](auto& a) { a.g.nll = three, a.dx = m.of_rows; });
  refuses_both(alias, "dw overlaps upstream.entropy", [&](auto& a) { a.g.entropy = three, a.dw = m.of_classes; });
  refuses_forward(alias, "nll overlaps x", [&](auto& a) { a.x = m.of_rows, a.out.nll = three; });
  refuses_forward(alias, "nll overlaps upstream.nll", [&](auto& a) { a.g.nll = three, a.out.nll = three; });
  refuses_forward(alias, "entropy overlaps nll", [&](auto& a) { a.out.entropy = a.out.nll = three; });
  refuses_forward(alias, "entropy overlaps dw", [&](auto& a) { a.dw = m.of_classes, a.out.entropy = three; });
  refuses_forward(alias, "lse overlaps nll", [&](auto& a) { a.out.lse = a.out.nll = three; });
  refuses_forward(alias, "lse overlaps entropy", [&](auto& a) { a.out.lse = a.out.entropy = three; });
}

}  // namespace
