// The gated MLP with biases and with every option of its gate, forward and backward, also sharded; and weights and
// gradients of types of their own.
// Operators: mlp tiled_mlp
#include <gtest/gtest.h>

#include <tigon/ops/tiled_mlp.hpp>

#include <complex>

#include "support/backends.hpp"
#include "support/complex_gates.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/mlp_problem.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::bfloat16, tigon::context, tigon::geglu_options, tigon::gelu_form, tigon::gradient, tigon::mlp_options_for,
    tigon::mlp_pass, tigon::swiglu_options, tigon::transpose;
using tigon::backends::small_blocks;

/// In the order of all_of: x, wg, wu, wd, bg, bu, bd.
using operands = std::array<std::vector<number>, 7>;
template <class Gate>
number value(mlp_sizes s, const mlp_options_for<Gate>& opt, const operands& o, const std::vector<double>& dy,
             std::vector<double>* y) {
  const auto& [x, wg, wu, wd, bg, bu, bd] = o;
  number total = 0;
  for (std::size_t t = 0; t < s.tokens; ++t) {
    std::vector<number> out(bd.empty() ? std::vector<number>(s.hidden) : bd);
    for (std::size_t j = 0; j < s.intermediate; ++j) {
      number g = bg.empty() ? 0 : bg[j], u = bu.empty() ? 0 : bu[j];
      for (std::size_t h = 0; h < s.hidden; ++h) {
        g += x[t * s.hidden + h] * wg[j * s.hidden + h];
        u += x[t * s.hidden + h] * wu[j * s.hidden + h];
      }
      const number a = act(opt.gate, opt.gate_multiplier * g, u);
      for (std::size_t h = 0; h < s.hidden; ++h) out[h] += a * wd[h * s.intermediate + j];
    }
    for (std::size_t h = 0; h < s.hidden; ++h) {
      out[h] *= opt.down_multiplier;
      total += dy[t * s.hidden + h] * out[h];
      if (y != nullptr) y->push_back(out[h].real());
    }
  }
  return total;
}

template <class T, class W, class G, class Gate>
struct problem {
  mlp_sizes s;
  mlp_options_for<Gate> opt;
  bool biased;
  guarded_matrix<T> x, dy, y, dx;
  guarded_matrix<W> wg, wu, wd;
  guarded<W> bg, bu, bd;
  guarded_matrix<G> dwg, dwu, dwd;
  guarded<G> dbg, dbu, dbd;

  TIGON_TEST_NOINLINE problem(mlp_sizes of, const mlp_options_for<Gate>& o, bool biases = true)
      : s(of),
        opt(o),
        biased(biases),
        x(random_matrix<T>({s.tokens, s.hidden, s.padding}, 1)),
        dy(random_matrix<T>({s.tokens, s.hidden, s.padding}, 2)),
        y(s.tokens, s.hidden, s.padding),
        dx(s.tokens, s.hidden, s.padding),
        wg(random_matrix<W>({s.intermediate, s.hidden, s.padding}, 3, guard::behind, size())),
        wu(random_matrix<W>({s.intermediate, s.hidden, s.padding}, 4, guard::behind, size())),
        wd(random_matrix<W>({s.hidden, s.intermediate, s.padding}, 5, guard::behind, size())),
        bg(random_vector<W>(biases ? s.intermediate : 0, 6)),
        bu(random_vector<W>(biases ? s.intermediate : 0, 7)),
        bd(random_vector<W>(biases ? s.hidden : 0, 8)),
        dwg(s.intermediate, s.hidden, s.padding),
        dwu(s.intermediate, s.hidden, s.padding),
        dwd(s.hidden, s.intermediate, s.padding),
        dbg(bg.size()),
        dbu(bu.size()),
        dbd(bd.size()) {}

  distribution size() const { return {.deviation = 1 / std::sqrt(static_cast<double>(s.hidden + 1))}; }
  template <class E>
  std::span<E> bias(guarded<E>& b) const {
    return biased ? std::span<E>(b) : std::span<E>();
  }
  tigon::mlp_weights<W> weights() { return {wg.view(), wu.view(), wd.view(), bias(bg), bias(bu), bias(bd)}; }
  tigon::mlp_weights<G> gradients() { return {dwg.view(), dwu.view(), dwd.view(), bias(dbg), bias(dbu), bias(dbd)}; }
  void clear() { y.clear(), dx.clear(), dwg.clear(), dwu.clear(), dwd.clear(), dbg.clear(), dbu.clear(), dbd.clear(); }
  auto bits() const { return bits_of(y, dx, dwg, dwu, dwd, dbg, dbu, dbd); }

  template <class B>
  TIGON_TEST_NOINLINE void both_ways(context& ctx = tigon::default_context()) {
    guarded_matrix<T> memory(s.tokens, 3 * s.intermediate, 2);
    tigon::mlp_saved<T> saved{memory.view()};
    tigon::mlp_forward<B, T>(x, weights(), y.view(), saved, opt, ctx);
    tigon::mlp_backward<B, T>(dy, x, weights(), saved, dx.view(), gradients(), opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void from_x_alone(context& ctx = tigon::default_context()) {
    tigon::mlp_forward_inference<B, T>(x, weights(), y.view(), opt, ctx);
    tigon::mlp_backward_recompute<B, T>(dy, x, weights(), dx.view(), gradients(), opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void sharded(std::size_t shards, context& ctx = tigon::default_context()) {
    const tigon::tiled_mlp_options_for<Gate> of{.mlp = opt, .shards = shards};
    tigon::tiled_mlp_forward<B, T>(x, weights(), y.view(), of, ctx);
    tigon::tiled_mlp_backward<B, T>(dy, x, weights(), dx.view(), gradients(), of, ctx);
  }

  struct reference {
    std::vector<double> y;
    std::array<std::vector<double>, 7> gradients;  // of x, wg, wu, wd, bg, bu, bd
  };
  TIGON_TEST_NOINLINE reference wanted() const {
    operands all;
    const auto put = [&](std::size_t k, const std::vector<double>& v) { all[k].assign(v.begin(), v.end()); };
    put(0, x.f64()), put(1, wg.f64()), put(2, wu.f64()), put(3, wd.f64());
    if (biased) put(4, bg.f64()), put(5, bu.f64()), put(6, bd.f64());
    reference r;
    const auto upstream = dy.f64();
    (void)value(s, opt, all, upstream, &r.y);
    for (std::size_t k = 0; k < all.size(); ++k)
      for (number& v : all[k]) {
        const number before = v;
        v += number(0, step);
        r.gradients[k].push_back(value(s, opt, all, upstream, nullptr).imag() / step);
        v = before;
      }
    return r;
  }
  /// All, times `times` where gradients are added up.
  TIGON_TEST_NOINLINE void expect(const reference& r, double times = 1) const {
    const comparison with{.may_be_empty = true};
    const double twice = rounds() ? 2 : 1,
                 bound = twice * std::max(mlp_gradient_bound.of<T>(), mlp_gradient_bound.of<G>());
    EXPECT_TRUE(close(y.f64(), r.y, twice * mlp_bound.of<T>(), with)) << "y";
    EXPECT_TRUE(close(dx.f64(), r.gradients[0], twice * mlp_gradient_bound.of<T>(), with)) << "dx";
    const std::vector<double> got[] = {dwg.f64(), dwu.f64(), dwd.f64(), dbg.f64(), dbu.f64(), dbd.f64()};
    for (std::size_t k = 0; k < 6; ++k) {
      auto want = r.gradients[k + 1];
      for (double& v : want) v *= times;
      EXPECT_TRUE(close(got[k], want, bound, with)) << "gradient " << k;
    }
    EXPECT_TRUE(y.padding_intact() && dx.padding_intact() && dwg.padding_intact() && dwd.padding_intact());
  }
  bool rounds() const { return opt.gate.round_gate; }
};

const mlp_sizes sizes[] = {{0, 5, 7}, {1, 1, 1}, {5, 6, 19, 1}, {21, 9, 13}};

const mlp_options_for<swiglu_options> swiglu_variants[] = {
    {},
    {.gate = {.limit = 7, .slope = 1.702, .up_offset = 1}},  // gpt-oss
    {.gate = {.gate_multiplier = 1.3, .down_multiplier = -0.8, .limit = 0.6, .slope = 1.1, .up_offset = -0.5},
     .gate_multiplier = 0.7,
     .down_multiplier = 1.9},
    {.gate = {.gate_multiplier = 0.9, .round_gate = true}},
};
const mlp_options_for<geglu_options> geglu_variants[] = {
    {.gate = {.form = gelu_form::erf}},
    {.gate = {.form = gelu_form::tanh, .round_gate = true}, .gate_multiplier = 1.2},
    {.gate = {.form = gelu_form::erf, .round_gate = true}},
};

template <class X, class Weight, class Gradient>
struct types {
  using T = X;
  using W = Weight;
  using G = Gradient;
};
template <class Y>
class mlp_gates : public testing::Test {};
#if defined(TIGON_TESTS_ALL_PAIRS)
using all_types =
    testing::Types<types<float, float, float>, types<bfloat16, bfloat16, bfloat16>, types<bfloat16, bfloat16, float>,
                   types<bfloat16, float, float>, types<double, double, double>>;
#else
using all_types =
    testing::Types<types<float, float, float>, types<bfloat16, bfloat16, float>, types<bfloat16, float, bfloat16>>;
#endif
TYPED_TEST_SUITE(mlp_gates, all_types);

template <class Y, class Gate, std::size_t N>
void check(const mlp_options_for<Gate> (&variants)[N]) {
  using T = typename Y::T;
  using P = problem<T, typename Y::W, typename Y::G, Gate>;
  for (const mlp_sizes s : sizes)
    for (std::size_t v = 0; v < N; ++v)
      for (const bool biased : {true, false}) {
        SCOPED_TRACE(testing::Message() << s << ", variant " << v << (biased ? ", biased" : ""));
        P p(s, variants[v], biased), again(s, variants[v], biased), shards(s, variants[v], biased);
        const auto wanted = p.wanted();
        p.template both_ways<small_blocks>();
        p.expect(wanted);
        again.template from_x_alone<small_blocks>();
        again.expect(wanted);
        if constexpr (!products_by_eigen<small_blocks>) {
          EXPECT_EQ(again.bits(), p.bits());
        }
        shards.template sharded<small_blocks>(3);
        shards.expect(wanted);
        shards.opt.dw = gradient::accumulate;
        shards.template sharded<small_blocks>(2);
        shards.expect(wanted, 2);
        p.opt.dw = gradient::accumulate;
        p.template both_ways<small_blocks>();
        p.expect(wanted, 2);
      }
}

TYPED_TEST(mlp_gates, swiglu_with_its_options) { check<TypeParam>(swiglu_variants); }
TYPED_TEST(mlp_gates, geglu_with_its_options) { check<TypeParam>(geglu_variants); }

/// More than 64 shards: sums of biases have totals.
TEST(mlp_biases, many_shards) {
  const mlp_sizes s{70, 4, 5};
  problem<bfloat16, bfloat16, float, swiglu_options> p(s, swiglu_variants[1]);
  const auto wanted = p.wanted();
  p.sharded<small_blocks>(70);
  p.expect(wanted);
}

TEST(mlp_biases, bits_do_not_depend_on_threads) {
  problem<bfloat16, bfloat16, float, swiglu_options> p({300, 33, 65}, swiglu_variants[1]);
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.clear();
    p.both_ways<small_blocks>(ctx);
    return p.bits();
  }));
}

TEST(mlp_biases, workspace_is_what_the_call_says) {
  problem<bfloat16, bfloat16, float, swiglu_options> p({300, 33, 65}, swiglu_variants[1]);
  for (const mlp_pass pass : {mlp_pass::inference, mlp_pass::recompute}) {
    const std::size_t bytes = tigon::mlp_workspace<small_blocks, bfloat16, bfloat16, float>(
        pass, 300, 33, 65, 1, tigon::parameters::trained, true);
    const auto call = [&](context& ctx) {
      if (pass == mlp_pass::inference)
        tigon::mlp_forward_inference<small_blocks, bfloat16>(p.x, p.weights(), p.y.view(), p.opt, ctx);
      else
        tigon::mlp_backward_recompute<small_blocks, bfloat16>(p.dy, p.x, p.weights(), p.dx.view(), p.gradients(), p.opt,
                                                              ctx);
    };
    p.clear();
    EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call), workspace, "workspace is of", p.y, p.dx, p.dbg);
    with_workspace_of(bytes, call);
    EXPECT_NE(p.y.untouched(), p.dx.untouched());
  }
}

TEST(mlp_biases, workspace_over_shards_is_what_the_call_takes) {
  problem<bfloat16, float, bfloat16, swiglu_options> p({20, 9, 13}, {});
  const std::size_t bytes = tigon::tiled_mlp_backward_workspace<small_blocks, bfloat16, float, bfloat16>(
      20, 9, 13, 3, 1, tigon::parameters::trained, true);
  with_workspace_of(bytes, [&](context& ctx) {
    p.sharded<small_blocks>(3, ctx);
    EXPECT_EQ(ctx.workspace().high_water(), bytes);
  });
}

/// The gate's product is rounded to bf16 first: seen in a, of sums that bf16 holds.
TEST(mlp_round_gate, rounds_to_the_type_of_x) {
  constexpr std::size_t n = 400;
  guarded_matrix<bfloat16> x(1, 1), wg(random_matrix<bfloat16>({n, 1}, 1)), wu(random_matrix<bfloat16>({n, 1}, 2)),
      wd(random_matrix<bfloat16>({1, n}, 3)), y(1, 1), memory(1, 3 * n);
  x(0, 0) = bfloat16(1.f);
  std::size_t as_rounded[2] = {};
  for (const bool rounds : {false, true}) {
    tigon::mlp_saved<bfloat16> saved{memory.view()};
    tigon::mlp_forward<small_blocks, bfloat16>(x, tigon::mlp_weights{wg.view(), wu.view(), wd.view()}, y.view(), saved,
                                               mlp_options_for<swiglu_options>{.gate = {.round_gate = rounds}});
    for (std::size_t j = 0; j < n; ++j) {
      const double g = to_f64(wg(j, 0)), u = to_f64(wu(j, 0)), act = to_f64(from_f64<bfloat16>(g / (1 + std::exp(-g))));
      as_rounded[rounds] += memory(0, j).bits == from_f64<bfloat16>(act * u).bits;
    }
  }
  EXPECT_GT(as_rounded[1], n * 97 / 100);  // but for ties of the gate
  EXPECT_LT(as_rounded[0], n * 90 / 100);
}

/// Refused before the first write.
TEST(mlp_biases, are_checked) {
  problem<float, float, float, swiglu_options> p({3, 4, 5}, {});
  const auto forward = [&](tigon::mlp_weights<float> w, mlp_options_for<swiglu_options> opt = {}) {
    tigon::mlp_forward_inference<small_blocks>(p.x, w, p.y.view(), opt);
  };
  const auto backward = [&](tigon::mlp_weights<float> dw) {
    tigon::mlp_backward_recompute<small_blocks>(p.dy, p.x, p.weights(), p.dx.view(), dw, p.opt);
  };
  auto w = p.weights();
  w.gate_bias = w.gate_bias.first(4);
  EXPECT_TIGON_ERROR(forward(w), shape, "mlp_forward_inference: bg is of 4 elements; expected 5", p.y);
  w = p.weights(), w.down_bias = w.down_bias.first(3);
  EXPECT_TIGON_ERROR(forward(w), shape, "mlp_forward_inference: bd is of 3 elements; expected 4", p.y);
  w = p.weights(), w.down_bias = {p.y.view().data, 4};
  EXPECT_TIGON_ERROR(forward(w), alias, "mlp_forward_inference: y overlaps bd", p.bd);
  EXPECT_TIGON_ERROR(forward(p.weights(), {.gate = {.limit = 0}}), argument, "limit is 0; expected a number above 0",
                     p.y);
  auto dw = p.gradients();
  dw.up_bias = dw.up_bias.first(4);
  EXPECT_TIGON_ERROR(backward(dw), shape, "mlp_backward_recompute: dbu is of 4 elements; expected 5", p.dx, p.dbg);
  dw = p.gradients(), dw.gate_bias = dw.up_bias;
  EXPECT_TIGON_ERROR(backward(dw), alias, "dbu overlaps dbg", p.dx, p.dbg, p.dbu);
}

}  // namespace
