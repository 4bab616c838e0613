// A mixture of experts with biases and with every option of its gate, forward and backward.
// Operators: moe
#include <gtest/gtest.h>

#include <tigon/ops/moe.hpp>

#include <complex>

#include "support/backends.hpp"
#include "support/complex_gates.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/moe_problem.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace tigon::backends {
inline namespace TIGON_ABI {

/// A few pairs at a time.
using few_pairs = small_chunks_of<test::usual_backend, 512, 2>;

}  // namespace TIGON_ABI
}  // namespace tigon::backends

namespace {

using namespace tigon::test;
using tigon::bfloat16, tigon::context, tigon::gate_layout, tigon::geglu_options, tigon::gelu_form, tigon::gradient,
    tigon::mlp_gate, tigon::moe_options_for, tigon::moe_pass, tigon::swiglu_options;
using tigon::backends::few_pairs;

using tigon::test::act;
number act(mlp_gate gate, number g, number u) {
  return gate == mlp_gate::swiglu ? act(swiglu_options{}, g, u) : act(geglu_options{}, g, u);
}
/// How close g or u comes to where the gate has no derivative, in units of that.
double distance_of(const swiglu_options& o, double g, double u) {
  if (o.limit > 1e300) return 1;
  return std::min(std::abs(o.gate_multiplier * g - o.limit), std::abs(std::abs(u) - o.limit)) / o.limit;
}
template <class Gate>
double distance_of(const Gate&, double, double) {
  return 1;
}

/// In the order of `names`; gate_up and its bias as they lie.
using operands = std::array<std::vector<number>, 6>;
constexpr const char* names_of[] = {"dx", "dweights", "dgate_up", "ddown", "dgate_up_bias", "ddown_bias"};

/// Which are there.
struct biases {
  bool gate_up = true, down = true;
};

template <class T, class W, class G, class Gate>
struct problem : moe_problem<T, W, G> {
  using base = moe_problem<T, W, G>;
  using base::s, base::opt, base::expert, base::x, base::dy, base::y, base::dx, base::weights, base::gate_up,
      base::down, base::dweights, base::dgate_up, base::ddown;
  Gate gate;
  biases with;
  guarded_matrix<W> bgu, bd;
  guarded_matrix<G> dbgu, dbd;

  TIGON_TEST_NOINLINE problem(moe_sizes of, const moe_options_for<Gate>& o, biases which = {})
      : base(of, {.layout = o.layout}),
        gate(o.gate),
        with(which),
        bgu(random_matrix<W>({s.experts, 2 * s.intermediate, s.padding}, 11)),
        bd(random_matrix<W>({s.experts, s.hidden, s.padding}, 12)),
        dbgu(s.experts, 2 * s.intermediate, s.padding),
        dbd(s.experts, s.hidden, s.padding) {}

  moe_options_for<Gate> options() const { return {opt.layout, opt.dw, gate}; }
  tigon::moe_weights<W> all_weights() {
    tigon::moe_weights<W> w{gate_up.view(), down.view(), s.experts};
    if (with.gate_up) w.gate_up_bias = bgu.view();
    if (with.down) w.down_bias = bd.view();
    return w;
  }
  tigon::moe_gradients<T, G, T> all_gradients() {
    tigon::moe_gradients<T, G, T> to{dx.view(), dgate_up.view(), ddown.view(), dweights.view()};
    if (with.gate_up) to.dgate_up_bias = dbgu.view();
    if (with.down) to.ddown_bias = dbd.view();
    return to;
  }
  auto bits() const { return bits_of(y, dx, dweights, dgate_up, ddown, dbgu, dbd); }
  void clear_all() { this->clear(), dbgu.clear(), dbd.clear(); }

  template <class B>
  TIGON_TEST_NOINLINE void both_ways(context& ctx = tigon::default_context()) {
    this->saved.filled = false;
    tigon::moe_forward<B, T>(x, this->choices(), all_weights(), y.view(), this->saved, options(), ctx);
    tigon::moe_backward<B, T>(dy, x, this->choices(), all_weights(), this->saved, all_gradients(), options(), ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void from_x_alone(tigon::moe_gradients<T, G, T> to, context& ctx = tigon::default_context()) {
    tigon::moe_forward_inference<B, T>(x, this->choices(), all_weights(), y.view(), options(), ctx);
    tigon::moe_backward_recompute<B, T>(dy, x, this->choices(), all_weights(), to, options(), ctx);
  }

  /// dy . y of the pairs of a token, of any token.
  number value_of(std::size_t t, const operands& o, const std::vector<double>& upstream, double* out,
                  double* distance) const {
    const auto& [ox, ow, ogu, od, obgu, obd] = o;
    const std::size_t H = s.hidden, I = s.intermediate;
    const bool halves = opt.layout == gate_layout::halves;
    number total = 0;
    for (std::size_t j = 0; j < s.choices; ++j) {
      const std::size_t q = t * s.choices + j, e = expert[q];
      std::vector<number> row(H);
      if (with.down) std::copy_n(obd.begin() + static_cast<std::ptrdiff_t>(e * H), H, row.begin());
      for (std::size_t i = 0; i < I; ++i) {
        const std::size_t of_g = e * 2 * I + (halves ? i : 2 * i), of_u = e * 2 * I + (halves ? I + i : 2 * i + 1);
        number g = with.gate_up ? obgu[of_g] : 0, u = with.gate_up ? obgu[of_u] : 0;
        for (std::size_t h = 0; h < H; ++h)
          g += ox[t * H + h] * ogu[of_g * H + h], u += ox[t * H + h] * ogu[of_u * H + h];
        if (distance != nullptr) *distance = std::min(*distance, distance_of(gate, g.real(), u.real()));
        const number a = act(gate, g, u);
        for (std::size_t h = 0; h < H; ++h) row[h] += a * od[(e * H + h) * I + i];
      }
      for (std::size_t h = 0; h < H; ++h) {
        total += upstream[t * H + h] * ow[q] * row[h];
        if (out != nullptr) out[t * H + h] += (ow[q] * row[h]).real();
      }
    }
    return total;
  }

  struct reference {
    std::vector<double> y;
    std::array<std::vector<double>, 6> gradients;
    double distance = 1;
  };
  TIGON_TEST_NOINLINE reference wanted() const {
    operands all;
    const auto put = [&](std::size_t k, const std::vector<double>& v) { all[k].assign(v.begin(), v.end()); };
    put(0, x.f64()), put(1, weights.f64()), put(2, gate_up.f64()), put(3, down.f64());
    put(4, bgu.f64()), put(5, bd.f64());
    reference r;
    const auto upstream = dy.f64();
    r.y.resize(s.tokens * s.hidden);
    for (std::size_t t = 0; t < s.tokens; ++t) (void)value_of(t, all, upstream, r.y.data(), &r.distance);
    for (std::size_t k = 0; k < all.size(); ++k)
      for (std::size_t n = 0; n < all[k].size(); ++n) {
        number& v = all[k][n];
        const number before = v;
        v += number(0, step);
        double sum = 0;
        for (std::size_t t = 0; t < s.tokens; ++t) sum += value_of(t, all, upstream, nullptr, nullptr).imag() / step;
        r.gradients[k].push_back(sum);
        v = before;
      }
    return r;
  }
  /// Gradients of weights and biases times `times`, where they are added up.
  TIGON_TEST_NOINLINE void expect(const reference& r, double times = 1) const {
    const comparison may{.may_be_empty = true};
    const double twice = rounds(gate) ? 2 : 1;
    // Otherwise a rounded g may be on the other side of the limit.
    EXPECT_GT(r.distance, sizeof(T) == 2 ? 0x1p-8 : 1e-5);
    EXPECT_TRUE(close(y.f64(), r.y, twice * moe_bound.of<T>(), may)) << "y";
    const std::vector<double> got[] = {dx.f64(), dweights.f64(), dgate_up.f64(), ddown.f64(), dbgu.f64(), dbd.f64()};
    for (std::size_t k = 0; k < 6; ++k) {
      if ((k == 4 && !with.gate_up) || (k == 5 && !with.down)) continue;
      auto want = r.gradients[k];
      if (k >= 2)
        for (double& v : want) v *= times;
      const double bound = std::max(moe_gradient_bound.of<T>(), k < 2 ? 0 : moe_gradient_bound.of<G>());
      EXPECT_TRUE(close(got[k], want, twice * bound, may)) << names_of[k];
    }
    EXPECT_TRUE(with.gate_up || dbgu.untouched());
    EXPECT_TRUE(with.down || dbd.untouched());
    EXPECT_TRUE(y.padding_intact() && dx.padding_intact() && dgate_up.padding_intact() && dbgu.padding_intact() &&
                dbd.padding_intact());
  }
  static bool rounds(mlp_gate) { return false; }
  template <class O>
  static bool rounds(const O& o) {
    return o.round_gate;
  }
};

const moe_sizes sizes[] = {{0, 2, 3, 5, 7},
                           {1, 1, 1, 1, 1},
                           {7, 2, 4, 6, 9, 1},
                           {1, 2, 5, 4, 3},
                           {5, 0, 2, 3, 4},
                           {5, 2, 3, 4, 0, 1},
                           {6, 4, 5, 4, 3, 1, chosen::few}};

const moe_options_for<swiglu_options> swiglu_variants[] = {
    {},
    {.gate = {.limit = 7, .slope = 1.702, .up_offset = 1}},  // gpt-oss
    {.layout = gate_layout::interleaved,
     .gate = {.gate_multiplier = 1.3, .down_multiplier = -0.8, .limit = 0.63, .slope = 1.1, .up_offset = -0.5}},
    {.layout = gate_layout::interleaved, .gate = {.gate_multiplier = 0.9, .round_gate = true}},
};
const moe_options_for<geglu_options> geglu_variants[] = {
    {.gate = {.form = gelu_form::erf}},
    {.layout = gate_layout::interleaved, .gate = {.form = gelu_form::tanh, .round_gate = true}},
};
const moe_options_for<mlp_gate> gates[] = {{.gate = mlp_gate::swiglu}, {.gate = mlp_gate::geglu}};

template <class T, class W, class G, class Gate, std::size_t N>
void check(const moe_options_for<Gate> (&variants)[N]) {
  for (const moe_sizes& s : sizes)
    for (std::size_t v = 0; v < N; ++v)
      for (const biases with : {biases{}, biases{false, true}, biases{true, false}}) {
        SCOPED_TRACE(testing::Message() << s << ", variant " << v << ", biases " << with.gate_up << with.down);
        using P = problem<T, W, G, Gate>;
        P p(s, variants[v], with), again(s, variants[v], with);
        const auto wanted = p.wanted();
        p.template both_ways<few_pairs>();
        p.expect(wanted);
        again.template from_x_alone<few_pairs>(again.all_gradients());
        EXPECT_EQ(again.bits(), p.bits());
        p.opt.dw = gradient::accumulate;
        p.template both_ways<few_pairs>();
        p.expect(wanted, 2);
      }
}

TEST(moe_gates, swiglu_with_its_options) { check<float, float, float>(swiglu_variants); }
TEST(moe_gates, swiglu_with_its_options_in_bf16) { check<bfloat16, bfloat16, float>(swiglu_variants); }
TEST(moe_gates, geglu_with_its_options) { check<bfloat16, float, bfloat16>(geglu_variants); }
TEST(moe_gates, of_a_name) { check<float, float, float>(gates); }

using gpt_oss = problem<bfloat16, bfloat16, float, swiglu_options>;

// More than 64 chunks of an expert: sums of its biases have totals.
TEST(moe_biases, of_many_chunks) {
  gpt_oss p({140, 1, 2, 4, 5, 0, chosen::one_expert}, swiglu_variants[1]);
  const auto wanted = p.wanted();
  p.both_ways<few_pairs>();
  p.expect(wanted);
}

TEST(moe_biases, bits_do_not_depend_on_threads) {
  gpt_oss p({90, 2, 3, 33, 65}, swiglu_variants[1]);
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.clear_all();
    p.both_ways<usual_backend>(ctx);
    return p.bits();
  }));
}

// Frozen biases, and frozen weights below trained biases: the other gradients have their bits.
TEST(moe_biases, each_gradient_may_be_left_out) {
  const moe_sizes s{20, 2, 3, 17, 45};
  gpt_oss full(s, swiglu_variants[1]);
  full.from_x_alone<few_pairs>(full.all_gradients());
  for (int which = 0; which < 64; ++which) {
    gpt_oss p(s, swiglu_variants[1]);
    auto to = p.all_gradients();
    const auto made = [&](int k) { return (which >> k & 1) != 0; };
    if (!made(0)) to.dx = {};
    if (!made(1)) to.dgate_up = {};
    if (!made(2)) to.ddown = {};
    if (!made(3)) to.dweights = {};
    if (!made(4)) to.dgate_up_bias = {};
    if (!made(5)) to.ddown_bias = {};
    p.from_x_alone<few_pairs>(to);
    const auto same = [&](int k, const auto& got, const auto& want) {
      EXPECT_TRUE(made(k) ? bits_of(got) == bits_of(want) : got.untouched()) << which << " " << k;
    };
    same(0, p.dx, full.dx), same(1, p.dgate_up, full.dgate_up), same(2, p.ddown, full.ddown);
    same(3, p.dweights, full.dweights), same(4, p.dbgu, full.dbgu), same(5, p.dbd, full.dbd);
  }
}

TEST(moe_biases, workspace_is_what_the_call_says) {
  const moe_sizes s{37, 3, 5, 67, 5};
  gpt_oss p(s, swiglu_variants[1]);
  for (const moe_pass pass : {moe_pass::inference, moe_pass::recompute}) {
    const std::size_t bytes =
        tigon::moe_workspace<few_pairs, bfloat16, bfloat16, float>(pass, s, 1, tigon::parameters::trained, true);
    EXPECT_GT(bytes, (tigon::moe_workspace<few_pairs, bfloat16, bfloat16, float>(pass, s)));
    const auto call = [&](context& ctx) {
      if (pass == moe_pass::inference)
        tigon::moe_forward_inference<few_pairs, bfloat16>(p.x, p.choices(), p.all_weights(), p.y.view(), p.options(),
                                                          ctx);
      else
        tigon::moe_backward_recompute<few_pairs, bfloat16>(p.dy, p.x, p.choices(), p.all_weights(), p.all_gradients(),
                                                           p.options(), ctx);
    };
    p.clear_all();
    EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call), workspace, "workspace is of", p.y, p.dx, p.dbgu, p.dbd);
    with_workspace_of(bytes, call);
    EXPECT_NE(p.y.untouched(), p.dbd.untouched());
  }
}

/// Refused before the first write.
TEST(moe_biases, are_checked) {
  problem<float, float, float, swiglu_options> p({4, 2, 3, 5, 6}, {});
  const auto forward = [&](tigon::moe_weights<float> w, moe_options_for<swiglu_options> opt = {}) {
    tigon::moe_forward_inference<few_pairs>(p.x, p.choices(), w, p.y.view(), opt);
  };
  const auto backward = [&](tigon::moe_gradients<float, float, float> to) {
    tigon::moe_backward_recompute<few_pairs>(p.dy, p.x, p.choices(), p.all_weights(), to, p.options());
  };
  auto w = p.all_weights();
  w.gate_up_bias.cols = 6;
  EXPECT_TIGON_ERROR(forward(w), shape, "moe_forward_inference: gate_up_bias is 3 x 6; expected 3 x 12", p.y);
  w = p.all_weights(), w.down_bias.rows = 2;
  EXPECT_TIGON_ERROR(forward(w), shape, "moe_forward_inference: down_bias is 2 x 5; expected 3 x 5", p.y);
  w = p.all_weights(), w.down_bias = {p.y.view().data, 3, 5};
  EXPECT_TIGON_ERROR(forward(w), alias, "moe_forward_inference: y overlaps down_bias", p.y);
  EXPECT_TIGON_ERROR(forward(p.all_weights(), {.gate = {.limit = 0}}), argument,
                     "limit is 0; expected a number above 0", p.y);
  auto to = p.all_gradients();
  to.ddown_bias.cols = 4;
  EXPECT_TIGON_ERROR(backward(to), shape, "moe_backward_recompute: ddown_bias is 3 x 4; expected 3 x 5", p.dx, p.dbd);
  to = p.all_gradients(), to.dgate_up_bias.cols = 11;
  EXPECT_TIGON_ERROR(backward(to), shape, "dgate_up_bias is 3 x 11; expected 3 x 12", p.dx, p.dbgu);
  to = p.all_gradients(), to.ddown_bias = {p.dbgu.view().data, 3, 5};
  EXPECT_TIGON_ERROR(backward(to), alias, "ddown_bias overlaps dgate_up_bias", p.dx, p.dbgu);
}

}  // namespace
