// The contract of include/tigon/ops/neighborhood_attention_layer.hpp, promise by promise.
#include <gtest/gtest.h>

#include <tigon/ops/neighborhood_attention_layer.hpp>

#include <numeric>

#include "support/backends.hpp"
#include "support/central_difference.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::gradient, tigon::matrix_view, tigon::accumulator_t;
using options = tigon::neighborhood_attention_layer_options;
using pass = tigon::neighborhood_attention_layer_pass;
using reals = std::vector<double>;

struct sizes {
  std::size_t batch, seq_len, heads, d, taps = 5, dilation = 1, padding = 0;
  bool optional = true;  ///< biases, norm and norm_bias are there
  gradient mode = gradient::overwrite;

  std::size_t hidden() const { return heads * d; }
  std::size_t tokens() const { return batch * seq_len; }
  /// Of a weight, so that projections keep the size of what they multiply.
  double size() const { return 1 / std::sqrt(static_cast<double>(hidden())); }
  options opt() const {
    return {.heads = heads,
            .seq_len = seq_len,
            .attention = {.kernel_size = taps, .dilation = dilation},
            .eps = 1e-3,
            .dparams = mode};
  }
  friend std::ostream& operator<<(std::ostream& out, const sizes& s) {
    return out << s.batch << " x " << s.seq_len << " tokens, " << s.heads << " heads of " << s.d << ", padding "
               << s.padding << (s.optional ? "" : ", without biases")
               << (s.mode == gradient::overwrite ? "" : ", added");
  }
};

/// Parameters in f64; absent biases are zeros and an absent norm is ones.
struct parameters {
  reals wqkv, wo, bqkv, bo, norm, norm_bias;
};
struct gradients {
  reals dx;
  parameters dw;
};

reals product(const reals& a, const reals& w, const reals& bias, std::size_t in, std::size_t out) {  // a w^T + bias
  reals c(a.size() / in * out);
  for (std::size_t i = 0; i < c.size(); ++i)
    c[i] = bias[i % out] + std::inner_product(&a[i / out * in], &a[i / out * in] + in, &w[i % out * in], 0.0);
  return c;
}

/// The definition, token by token, and its gradient by the chain rule.
struct reference {
  reals y;
  gradients g;

  TIGON_TEST_NOINLINE reference(const sizes& s, const reals& x, const parameters& w, const reals& dy) {
    const std::size_t H = s.hidden(), N = s.tokens(), d = s.d;
    const double eps = s.opt().eps, scale = 1 / std::sqrt(static_cast<double>(d));
    reals xh(N * H), n(N * H), rstd(N);
    for (std::size_t t = 0; t < N; ++t) {
      const double mean = std::accumulate(&x[t * H], &x[t * H] + H, 0.0) / static_cast<double>(H);
      double square = 0;
      for (std::size_t c = 0; c < H; ++c) square += (x[t * H + c] - mean) * (x[t * H + c] - mean);
      rstd[t] = 1 / std::sqrt(square / static_cast<double>(H) + eps);
      for (std::size_t c = 0; c < H; ++c) {
        xh[t * H + c] = (x[t * H + c] - mean) * rstd[t];
        n[t * H + c] = xh[t * H + c] * w.norm[c] + w.norm_bias[c];
      }
    }
    const reals qkv = product(n, w.wqkv, w.bqkv, H, 3 * H);
    reals o(N * H), d_qkv(N * 3 * H), d_o(N * H), dn(N * H), dxh(H);
    for (std::size_t t = 0; t < N; ++t)
      for (std::size_t c = 0; c < H; ++c)
        for (std::size_t e = 0; e < H; ++e) d_o[t * H + e] += dy[t * H + c] * w.wo[c * H + e];
    for (std::size_t t = 0; t < N; ++t)
      for (std::size_t h = 0; h < s.heads; ++h) {
        const auto at = [&](std::size_t token, std::size_t part) { return token * 3 * H + part * H + h * d; };
        const std::size_t first = t / s.seq_len * s.seq_len;
        reals p(s.seq_len), dp(s.seq_len);
        double sum = 0, mean = 0;
        const auto sees = [&](std::size_t j) {
          const std::size_t i = t - first, apart = i < j ? j - i : i - j;
          return apart % s.dilation == 0 && apart / s.dilation <= s.taps / 2;
        };
        for (std::size_t j = 0; j < s.seq_len; ++j)
          if (sees(j))
            sum += p[j] =
                std::exp(scale * std::inner_product(&qkv[at(t, 0)], &qkv[at(t, 0)] + d, &qkv[at(first + j, 1)], 0.0));
        for (std::size_t j = 0; j < s.seq_len; ++j) {
          p[j] /= sum;
          for (std::size_t c = 0; c < d; ++c) {
            o[t * H + h * d + c] += p[j] * qkv[at(first + j, 2) + c];
            dp[j] += d_o[t * H + h * d + c] * qkv[at(first + j, 2) + c];
          }
          mean += p[j] * dp[j];
        }
        for (std::size_t j = 0; j < s.seq_len; ++j)
          for (std::size_t c = 0; c < d; ++c) {
            const double ds = scale * p[j] * (dp[j] - mean);
            d_qkv[at(t, 0) + c] += ds * qkv[at(first + j, 1) + c];
            d_qkv[at(first + j, 1) + c] += ds * qkv[at(t, 0) + c];
            d_qkv[at(first + j, 2) + c] += p[j] * d_o[t * H + h * d + c];
          }
      }
    y = product(o, w.wo, w.bo, H, H);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += x[i];
    g.dx = dy;
    g.dw = {reals(3 * H * H), reals(H * H), reals(3 * H), reals(H), reals(H), reals(H)};
    for (std::size_t t = 0; t < N; ++t) {
      for (std::size_t c = 0; c < H; ++c) {
        g.dw.bo[c] += dy[t * H + c];
        for (std::size_t e = 0; e < H; ++e) g.dw.wo[c * H + e] += dy[t * H + c] * o[t * H + e];
      }
      for (std::size_t c = 0; c < 3 * H; ++c) {
        g.dw.bqkv[c] += d_qkv[t * 3 * H + c];
        for (std::size_t e = 0; e < H; ++e) {
          g.dw.wqkv[c * H + e] += d_qkv[t * 3 * H + c] * n[t * H + e];
          dn[t * H + e] += d_qkv[t * 3 * H + c] * w.wqkv[c * H + e];
        }
      }
      double c1 = 0, c2 = 0;
      for (std::size_t c = 0; c < H; ++c) {
        dxh[c] = dn[t * H + c] * w.norm[c];
        c1 += dxh[c] * xh[t * H + c] / static_cast<double>(H), c2 += dxh[c] / static_cast<double>(H);
        g.dw.norm[c] += dn[t * H + c] * xh[t * H + c], g.dw.norm_bias[c] += dn[t * H + c];
      }
      for (std::size_t c = 0; c < H; ++c) g.dx[t * H + c] += rstd[t] * (dxh[c] - c2 - xh[t * H + c] * c1);
    }
  }
};

template <class T>
struct problem {
  using A = accumulator_t<T>;
  sizes s;
  guarded_matrix<T> x, dy, wqkv, wo, y, values, dx, dwqkv, dwo;
  guarded<T> bqkv, bo, norm, norm_bias, dbqkv, dbo, dnorm, dnorm_bias;
  guarded<A> numbers;

  TIGON_TEST_NOINLINE explicit problem(sizes of, guard side = guard::behind)
      : s(of),
        x(random_matrix<T>({s.tokens(), s.hidden(), s.padding}, 1, side)),
        dy(random_matrix<T>({s.tokens(), s.hidden(), s.padding}, 2, side)),
        wqkv(random_matrix<T>({3 * s.hidden(), s.hidden(), s.padding}, 3, side, {.deviation = s.size()})),
        wo(random_matrix<T>({s.hidden(), s.hidden(), s.padding}, 4, side, {.deviation = s.size()})),
        y(s.tokens(), s.hidden(), s.padding, side),
        values(s.tokens(), 5 * s.hidden(), s.padding, side),
        dx(s.tokens(), s.hidden(), s.padding, side),
        dwqkv(random_matrix<T>({3 * s.hidden(), s.hidden(), s.padding}, 5, side)),
        dwo(random_matrix<T>({s.hidden(), s.hidden(), s.padding}, 6, side)),
        bqkv(random_vector<T>(3 * s.hidden(), 7, side)),
        bo(random_vector<T>(s.hidden(), 8, side)),
        norm(random_vector<T>(s.hidden(), 9, side, {.mean = 1, .deviation = 0.3})),
        norm_bias(random_vector<T>(s.hidden(), 10, side)),
        dbqkv(random_vector<T>(3 * s.hidden(), 11, side)),
        dbo(random_vector<T>(s.hidden(), 12, side)),
        dnorm(random_vector<T>(s.hidden(), 13, side)),
        dnorm_bias(random_vector<T>(s.hidden(), 14, side)),
        numbers(tigon::neighborhood_attention_layer_numbers(s.tokens(), s.opt()), side) {}

  tigon::neighborhood_attention_layer_weights<T> weights() {
    if (!s.optional) return {wqkv.view(), wo.view(), {}, {}, {}, {}};
    return {wqkv.view(), wo.view(), bqkv, bo, norm, norm_bias};
  }
  tigon::neighborhood_attention_layer_weights<T> to() {
    return {dwqkv.view(), dwo.view(), dbqkv, dbo, dnorm, dnorm_bias};
  }
  tigon::neighborhood_attention_layer_saved<T> saved() { return {values.view(), numbers}; }
  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    tigon::neighborhood_attention_layer_forward<B, T>(x, weights(), y.view(), saved(), s.opt(), ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::neighborhood_attention_layer_weights<T> dw,
                                    context& ctx = tigon::default_context()) {
    tigon::neighborhood_attention_layer_backward<B, T>(dy, x, weights(), saved(), dx.view(), dw, s.opt(), ctx);
  }
  TIGON_TEST_NOINLINE parameters f64() const {
    const std::size_t H = s.hidden();
    if (!s.optional) return {wqkv.f64(), wo.f64(), reals(3 * H), reals(H), reals(H, 1), reals(H)};
    return {wqkv.f64(), wo.f64(), bqkv.f64(), bo.f64(), norm.f64(), norm_bias.f64()};
  }
  TIGON_TEST_NOINLINE parameters gradients_f64() const {
    return {dwqkv.f64(), dwo.f64(), dbqkv.f64(), dbo.f64(), dnorm.f64(), dnorm_bias.f64()};
  }
  std::vector<std::byte> bits() const {
    return bits_of(y, values, numbers, dx, dwqkv, dwo, dbqkv, dbo, dnorm, dnorm_bias);
  }
};

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type value_bound{.f32 = 8e-6, .bf16 = 3e-2, .f16 = 4e-3, .f64 = 2e-14};
constexpr by_type gradient_bound{.f32 = 8e-6, .bf16 = 5e-2, .f16 = 6e-3, .f64 = 2e-14};

#if defined(TIGON_CONFORMANCE_BACKEND)
using layer_pairs = every_pair;
#else
/// Not every type on every backend: four products are compiled for each.
using layer_pairs =
    with_engines<list<on<single_numbers, double>, on<usual_backend, float>, on<bf16_backend, tigon::bfloat16> >,
                 on<tigon::backends::xsimd, float>, on<tigon::backends::eigen, tigon::float16> >;
#endif

template <class On>
class neighborhood_attention_layer : public testing::Test {};
TYPED_TEST_SUITE(neighborhood_attention_layer, layer_pairs, names);

TYPED_TEST(neighborhood_attention_layer, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sizes& s : {sizes{1, 1, 1, 3}, sizes{2, 19, 3, 8, 5, 2, 3}, sizes{1, 70, 2, 5, 3, 1, 0, false},
                         sizes{3, 9, 2, 16, 7, 1, 1, true, gradient::accumulate}})
    for (const guard side : both_guards) {
      SCOPED_TRACE(testing::Message() << s << ", " << side);
      problem<T> p(s, side);
      const parameters before = p.gradients_f64();
      p.template forward<B>(), p.template backward<B>(p.to());
      reference want(s, p.x.f64(), p.f64(), p.dy.f64());
      const parameters got = p.gradients_f64();
      EXPECT_TRUE(close(p.y.f64(), want.y, value_bound.of<T>()));
      EXPECT_TRUE(close(p.dx.f64(), want.g.dx, gradient_bound.of<T>()));
      const auto check = [&](const char* name, reals parameters::*of) {
        reals& wanted = want.g.dw.*of;
        if (s.mode == gradient::accumulate)
          for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += (before.*of)[i];
        // A sequence of one token has p = 1 and terms of dq and dk that cancel.
        EXPECT_TRUE(close(got.*of, wanted, gradient_bound.of<T>(), {.scale = 0.5})) << name;
      };
      check("dwqkv", &parameters::wqkv), check("dwo", &parameters::wo), check("dbqkv", &parameters::bqkv);
      check("dbo", &parameters::bo), check("dnorm", &parameters::norm), check("dnorm_bias", &parameters::norm_bias);
      EXPECT_TRUE(p.y.padding_intact() && p.values.padding_intact() && p.dx.padding_intact());
    }
}

TYPED_TEST(neighborhood_attention_layer, leaves_out_what_is_not_asked_for) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const sizes s{2, 11, 2, 8};
  problem<T> p(s), frozen(s);
  p.template forward<B>(), p.template backward<B>(p.to());
  const auto parameters_of = [](const problem<T>& of) {
    return bits_of(of.dwqkv, of.dwo, of.dbqkv, of.dbo, of.dnorm, of.dnorm_bias);
  };
  const auto before = parameters_of(frozen);
  frozen.template forward<B>(), frozen.template backward<B>({});
  EXPECT_EQ(bits_of(frozen.dx), bits_of(p.dx));
  EXPECT_EQ(parameters_of(frozen), before);
}

TYPED_TEST(neighborhood_attention_layer, of_no_tokens_has_gradients_of_zero) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({0, 5, 2, 4});
  p.template forward<B>(), p.template backward<B>(p.to());
  for (const reals& g : {p.dwqkv.f64(), p.dwo.f64(), p.dbqkv.f64(), p.dbo.f64(), p.dnorm.f64(), p.dnorm_bias.f64()})
    for (const double v : g) ASSERT_EQ(v, 0);
}

TYPED_TEST(neighborhood_attention_layer, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    problem<T> p({2, 70, 2, 9});
    p.template forward<B>(ctx), p.template backward<B>(p.to(), ctx);
    return p.bits();
  }));
}

TYPED_TEST(neighborhood_attention_layer, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sizes& s : {sizes{2, 3, 1, 4, 1}, sizes{1, 130, 2, 9, 7}}) {
    problem<T> p(s);
    const auto bytes = [&](pass of) {
      return tigon::neighborhood_attention_layer_workspace<B, T>(of, s.tokens(), s.hidden(), s.opt(), 3);
    };
    const auto forward = [&](context& ctx) { p.template forward<B>(ctx); };
    const auto backward = [&](context& ctx) { p.template backward<B>(p.to(), ctx); };
    EXPECT_TIGON_ERROR(with_workspace_of(bytes(pass::forward) - 1, forward, 3), workspace,
                       "neighborhood_attention_layer_forward: workspace is of", p.y, p.values, p.numbers);
    with_workspace_of(bytes(pass::forward), forward, 3);
    EXPECT_TIGON_ERROR(with_workspace_of(bytes(pass::backward) - 1, backward, 3), workspace,
                       "neighborhood_attention_layer_backward: workspace is of", p.dx, p.dwqkv, p.dbo);
    with_workspace_of(bytes(pass::backward), backward, 3);
  }
}

// The reference itself: its gradients are the differences of its values.
TEST(neighborhood_attention_layer_reference, has_the_gradients_of_central_differences) {
  const sizes s{2, 6, 2, 3, 3, 2};
  const problem<double> p(s);
  const reals x = p.x.f64(), dy = p.dy.f64();
  const parameters w = p.f64();
  const reference r(s, x, w, dy);
  const auto loss = [&](const reals& of_x, const parameters& of_w) {
    const reals y = reference(s, of_x, of_w, dy).y;
    return std::inner_product(dy.begin(), dy.end(), y.begin(), 0.0);
  };
  const auto check = [&](const char* name, const reals& at, const reals& got, auto of) {
    const auto places = probes(at.size());
    EXPECT_TRUE(close(pick(got, places), central_difference(of, at, places), 1e-9)) << name;
  };
  check("x", x, r.g.dx, [&](const reals& of_x) { return loss(of_x, w); });
  for (reals parameters::*of : {&parameters::wqkv, &parameters::wo, &parameters::bqkv, &parameters::bo,
                                &parameters::norm, &parameters::norm_bias})
    check("a parameter", w.*of, r.g.dw.*of, [&](const reals& value) {
      parameters changed = w;
      changed.*of = value;
      return loss(x, changed);
    });
}

TEST(neighborhood_attention_layer_doors, refuse_what_does_not_fit) {
  using B = tigon::default_backend;
  problem<float> p({2, 5, 2, 4, 3});
  const auto forward = [&](options opt, auto weights, auto y, auto saved) {
    tigon::neighborhood_attention_layer_forward<B, float>(p.x, weights, y, saved, opt);
  };
  const auto refused = [&](auto change, tigon::error_code code, const char* sentence) {
    options opt = p.s.opt();
    auto w = p.weights();
    auto y = p.y.view();
    auto saved = p.saved();
    change(opt, w, y, saved);
    EXPECT_TRUE(refuses([&] { forward(opt, w, y, saved); }, code,
                        std::string("neighborhood_attention_layer_forward: ") + sentence, p.y, p.values, p.numbers));
  };
  using enum tigon::error_code;
  refused([](auto& opt, auto&, auto&, auto&) { opt.heads = 3; }, shape, "hidden is no multiple of heads");
  refused([](auto& opt, auto&, auto&, auto&) { opt.heads = 0; }, shape, "heads is 0");
  refused([](auto& opt, auto&, auto&, auto&) { opt.seq_len = 3; }, shape, "x is of tokens that are no multiple");
  refused([](auto& opt, auto&, auto&, auto&) { opt.attention.kernel_size = 4; }, argument, "kernel_size is 4");
  refused([](auto& opt, auto&, auto&, auto&) { opt.eps = -1; }, argument, "eps is -1");
  refused([](auto&, auto& w, auto&, auto&) { w.wqkv = w.wqkv.rows_from(0, 9); }, shape, "wqkv is 9 x 8");
  refused([](auto&, auto& w, auto&, auto&) { w.bo = w.bo.first(7); }, shape, "bo is of 7 elements");
  refused([](auto&, auto&, auto&, auto& s) { s.values = s.values.cols_from(0, 39); }, shape, "saved.values is 10 x 39");
  refused([](auto&, auto&, auto&, auto& s) { s.numbers = s.numbers.first(9); }, shape, "saved.numbers is of 9");
  refused([](auto&, auto&, auto& y, auto& s) { y = s.values.cols_from(0, 8); }, alias, "saved.values overlaps y");
  refused([](auto&, auto& w, auto& y, auto&) { y = w.wo.rows_from(0, 8), y.rows = 10; }, alias, "y overlaps");

  p.forward<B>();
  const auto backward = [&](tigon::neighborhood_attention_layer_weights<float> to, matrix_view<float> dx) {
    tigon::neighborhood_attention_layer_backward<B, float>(p.dy, p.x, p.weights(), p.saved(), dx, to, p.s.opt());
  };
  auto to = p.to();
  to.wo = to.wqkv.rows_from(0, 8);
  EXPECT_TIGON_ERROR(backward(to, p.dx.view()), alias, "neighborhood_attention_layer_backward: dwqkv overlaps dwo",
                     p.dx, p.dwqkv, p.dwo);
  EXPECT_TIGON_ERROR(backward(p.to(), p.x.view()), alias, "neighborhood_attention_layer_backward: dx overlaps x", p.x,
                     p.dwqkv, p.dwo);
  EXPECT_TIGON_ERROR(backward(p.to(), p.dy.view()), alias, "neighborhood_attention_layer_backward: dx overlaps dy",
                     p.dy, p.dwqkv, p.dwo);
}

}  // namespace
