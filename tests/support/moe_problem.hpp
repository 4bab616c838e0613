// A mixture of experts with every buffer at a guard page, and its definition in f64.
#ifndef TIGON_TESTS_SUPPORT_MOE_PROBLEM_HPP
#define TIGON_TESTS_SUPPORT_MOE_PROBLEM_HPP

#include <tigon/ops/moe/moe_options.hpp>

#include <cmath>
#include <ostream>
#include <vector>

#include "backends.hpp"
#include "errors.hpp"
#include "gate_value.hpp"
#include "guarded.hpp"
#include "problem.hpp"

namespace tigon::test {

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
inline constexpr by_type moe_bound{.f32 = 8e-6, .bf16 = 3e-2, .f16 = 4e-3, .f64 = 2e-14};
inline constexpr by_type moe_gradient_bound{.f32 = 8e-6, .bf16 = 5e-2, .f16 = 6e-3, .f64 = 2e-14};

/// Which experts the tokens choose.
enum class chosen {
  by_turns,    ///< all experts alike
  few,         ///< two experts, the first and the last; the same one twice in some tokens
  one_expert,  ///< the last one, every time
};

struct moe_sizes {
  std::size_t tokens, choices, experts, hidden, intermediate, padding = 0;
  chosen by = chosen::by_turns;
  std::size_t pairs() const { return tokens * choices; }
  operator moe_shape() const { return {tokens, choices, experts, hidden, intermediate}; }
  friend std::ostream& operator<<(std::ostream& out, const moe_sizes& s) {
    return out << s.tokens << " tokens of " << s.hidden << ", " << s.choices << " of " << s.experts
               << " experts, intermediate " << s.intermediate << ", padding " << s.padding << ", choice "
               << static_cast<int>(s.by);
  }
};

/// [tokens * choices]
TIGON_TEST_NOINLINE inline std::vector<std::size_t> experts_of(const moe_sizes& s) {
  std::vector<std::size_t> out(s.pairs());
  for (std::size_t t = 0; t < s.tokens; ++t)
    for (std::size_t j = 0; j < s.choices; ++j) {
      const std::size_t last = s.experts - 1;
      out[t * s.choices + j] = s.by == chosen::by_turns ? (7 * t + 3 * j + t * t / 5) % s.experts
                               : s.by == chosen::few    ? ((t + j / 2) % 2 != 0 ? last : 0)
                                                        : last;
    }
  return out;
}

/// x and dy [tokens, hidden], gate and up [experts, intermediate, hidden], down [experts, hidden, intermediate].
template <class N>
struct moe_operands {
  std::vector<N> x, weights, gate, up, down;
};

/// y, for any number type.
template <class N>
std::vector<N> moe_value(const moe_sizes& s, const std::vector<std::size_t>& expert, const moe_operands<N>& o) {
  const std::size_t H = s.hidden, I = s.intermediate;
  std::vector<N> y(s.tokens * H);
  for (std::size_t q = 0; q < s.pairs(); ++q) {
    const N* x = o.x.data() + q / s.choices * H;
    for (std::size_t i = 0; i < I; ++i) {
      const std::size_t row = expert[q] * I + i;
      N g{}, u{};
      for (std::size_t h = 0; h < H; ++h) g += x[h] * o.gate[row * H + h], u += x[h] * o.up[row * H + h];
      using std::exp;
      const N a = o.weights[q] * g / (N(1) + exp(-g)) * u;
      for (std::size_t h = 0; h < H; ++h) y[q / s.choices * H + h] += a * o.down[(expert[q] * H + h) * I + i];
    }
  }
  return y;
}

struct moe_results {
  std::vector<double> y, dx, dweights, dgate, dup, ddown;
};

/// y and the gradients of dy . y.
TIGON_TEST_NOINLINE inline moe_results moe_reference(const moe_sizes& s, const std::vector<std::size_t>& expert,
                                                     const moe_operands<double>& o, const std::vector<double>& dy) {
  const std::size_t H = s.hidden, I = s.intermediate;
  moe_results r{moe_value(s, expert, o),          std::vector<double>(s.tokens * H),
                std::vector<double>(s.pairs()),   std::vector<double>(o.gate.size()),
                std::vector<double>(o.up.size()), std::vector<double>(o.down.size())};
  for (std::size_t q = 0; q < s.pairs(); ++q) {
    const std::size_t t = q / s.choices;
    const double *x = o.x.data() + t * H, *d = dy.data() + t * H, w = o.weights[q];
    for (std::size_t i = 0; i < I; ++i) {
      const std::size_t row = expert[q] * I + i;
      const auto down = [&](std::size_t h) { return (expert[q] * H + h) * I + i; };
      double g = 0, u = 0, p = 0;
      for (std::size_t h = 0; h < H; ++h)
        g += x[h] * o.gate[row * H + h], u += x[h] * o.up[row * H + h], p += d[h] * o.down[down(h)];
      const auto [silu, slope] = gate_value_of(mlp_gate::swiglu, g);
      r.dweights[q] += p * silu * u;
      const double dg = w * p * u * slope, du = w * p * silu;
      for (std::size_t h = 0; h < H; ++h) {
        r.ddown[down(h)] += d[h] * w * silu * u;
        r.dgate[row * H + h] += dg * x[h];
        r.dup[row * H + h] += du * x[h];
        r.dx[t * H + h] += dg * o.gate[row * H + h] + du * o.up[row * H + h];
      }
    }
  }
  return r;
}

/// Rows of gate and up [experts * intermediate, cols] as they lie in gate_up, or, backwards, apart.
TIGON_TEST_NOINLINE inline std::vector<double> joined(const moe_sizes& s, const std::vector<double>& gate,
                                                      const std::vector<double>& up, gate_layout layout) {
  const std::size_t H = s.hidden, I = s.intermediate;
  std::vector<double> out(gate.size() + up.size());
  for (std::size_t e = 0; e < s.experts; ++e)
    for (std::size_t i = 0; i < I; ++i)
      for (std::size_t h = 0; h < H; ++h) {
        const std::size_t from = (e * I + i) * H + h, first = e * 2 * I;
        const bool halves = layout == gate_layout::halves;
        out[(first + (halves ? i : 2 * i)) * H + h] = gate[from];
        out[(first + (halves ? I + i : 2 * i + 1)) * H + h] = up[from];
      }
  return out;
}
TIGON_TEST_NOINLINE inline void part(const moe_sizes& s, const std::vector<double>& both, gate_layout layout,
                                     std::vector<double>& gate, std::vector<double>& up) {
  const std::size_t H = s.hidden, I = s.intermediate;
  gate.resize(s.experts * I * H), up.resize(gate.size());
  for (std::size_t e = 0; e < s.experts; ++e)
    for (std::size_t i = 0; i < I; ++i)
      for (std::size_t h = 0; h < H; ++h) {
        const std::size_t to = (e * I + i) * H + h, first = e * 2 * I;
        const bool halves = layout == gate_layout::halves;
        gate[to] = both[(first + (halves ? i : 2 * i)) * H + h];
        up[to] = both[(first + (halves ? I + i : 2 * i + 1)) * H + h];
      }
}

/// Every buffer at a guard page, outputs full of canaries. W is the type of the weights, G of their gradients, R of the
/// routing weights.
template <class T, class W = T, class G = W, class R = T, class I = std::int32_t>
struct moe_problem {
  moe_sizes s;
  moe_options opt;
  std::vector<std::size_t> expert;
  guarded_matrix<I> indices;
  guarded_matrix<T> x, dy, y, dx, memory;
  guarded_matrix<R> weights, dweights;
  guarded_matrix<W> gate_up, down;
  guarded_matrix<G> dgate_up, ddown;
  moe_saved<T> saved;

  TIGON_TEST_NOINLINE explicit moe_problem(moe_sizes of, moe_options o = {}, guard side = guard::behind)
      : s(of),
        opt(o),
        expert(experts_of(of)),
        indices(s.tokens, s.choices, s.padding, side),
        x(random_matrix<T>({s.tokens, s.hidden, s.padding}, 1, side)),
        dy(random_matrix<T>({s.tokens, s.hidden, s.padding}, 2, side)),
        y(s.tokens, s.hidden, s.padding, side),
        dx(s.tokens, s.hidden, s.padding, side),
        memory(s.pairs(), 2 * s.intermediate, s.padding, side),
        weights(random_matrix<R>({s.tokens, s.choices, s.padding}, 3, side, {.mean = 0.5, .deviation = 0.3})),
        dweights(s.tokens, s.choices, s.padding, side),
        gate_up(s.experts * 2 * s.intermediate, s.hidden, s.padding, side),
        down(s.experts * s.hidden, s.intermediate, s.padding, side),
        dgate_up(s.experts * 2 * s.intermediate, s.hidden, s.padding, side),
        ddown(s.experts * s.hidden, s.intermediate, s.padding, side),
        saved{memory.view()} {
    indices.assign(std::vector<double>(expert.begin(), expert.end()));
    const distribution of_weights{.deviation = 1 / std::sqrt(static_cast<double>(s.hidden + 1))};
    gate_up.assign(normal_values(gate_up.rows() * s.hidden, 4, of_weights));
    down.assign(normal_values(down.rows() * s.intermediate, 5, of_weights));
    if (opt.dw == gradient::accumulate) {
      dgate_up.assign(normal_values(gate_up.rows() * s.hidden, 6));
      ddown.assign(normal_values(down.rows() * s.intermediate, 7));
    }
  }

  moe_choices<I, R> choices() { return {indices.view(), weights.view()}; }
  moe_weights<W> experts() { return {gate_up.view(), down.view(), s.experts}; }
  moe_gradients<T, G, R> all() { return {dx.view(), dgate_up.view(), ddown.view(), dweights.view()}; }

  /// As the reference has it; to be asked for before the call, because gradients may be added to. dgate holds both.
  TIGON_TEST_NOINLINE moe_results wanted() const {
    moe_operands<double> o{x.f64(), weights.f64(), {}, {}, down.f64()};
    part(s, gate_up.f64(), opt.layout, o.gate, o.up);
    moe_results r = moe_reference(s, expert, o, dy.f64());
    r.dgate = joined(s, r.dgate, r.dup, opt.layout);
    if (opt.dw == gradient::overwrite) return r;
    const auto add = [](std::vector<double>& to, const std::vector<double>& old) {
      for (std::size_t k = 0; k < to.size(); ++k) to[k] += old[k];
    };
    add(r.dgate, dgate_up.f64()), add(r.ddown, ddown.f64());
    return r;
  }
  TIGON_TEST_NOINLINE void expect_value(const moe_results& r) const {
    EXPECT_TRUE(close(y.f64(), r.y, moe_bound.of<T>(), {.may_be_empty = true})) << "y";
    EXPECT_TRUE(y.padding_intact());
  }
  TIGON_TEST_NOINLINE void expect_gradients(const moe_results& r) const {
    const comparison with{.may_be_empty = true};
    // What is stored in another type is as exact as that, of values that are rounded to T.
    constexpr double own = moe_gradient_bound.of<T>();
    constexpr double of_w = std::max(own, moe_gradient_bound.of<G>()), of_r = std::max(own, moe_gradient_bound.of<R>());
    EXPECT_TRUE(close(dx.f64(), r.dx, own, with)) << "dx";
    EXPECT_TRUE(close(dweights.f64(), r.dweights, of_r, with)) << "dweights";
    EXPECT_TRUE(close(dgate_up.f64(), r.dgate, of_w, with)) << "dgate_up";
    EXPECT_TRUE(close(ddown.f64(), r.ddown, of_w, with)) << "ddown";
    EXPECT_TRUE(dx.padding_intact() && dweights.padding_intact() && dgate_up.padding_intact() &&
                ddown.padding_intact());
  }
  void clear() { y.clear(), dx.clear(), dgate_up.clear(), ddown.clear(), dweights.clear(), memory.clear(); }
  auto gradients() const { return bits_of(dx, dgate_up, ddown, dweights); }
};

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_MOE_PROBLEM_HPP
