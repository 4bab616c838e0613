// What cases of layers have in common with those of their parts: the arguments of a mixture of experts, and what
// hyper-connections keep.
#ifndef TIGON_TESTS_FUZZ_LAYERS_HPP
#define TIGON_TESTS_FUZZ_LAYERS_HPP

#include <tigon/ops/mhc_coeffs.hpp>
#include <tigon/ops/mlp/mlp_options.hpp>
#include <tigon/ops/moe/moe_options.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "problem.hpp"
#include "support/gate_value.hpp"

namespace tigon::fuzz {

// At least three times the worst of 20,000 cases; of the roots of mlp_roots, where they are above the size of the
// result. The contract states 8e-6, 3e-2 and 5e-2.
inline constexpr bounds mlp_forward_bound{.f32 = 1.3e-6, .bf16 = 1e-2, .f16 = 1.3e-3, .f64 = 8e-16};
inline constexpr bounds mlp_backward_bound{.f32 = 1.3e-6, .bf16 = 1.7e-2, .f16 = 2e-3, .f64 = 1e-15};

/// A gated MLP whose weights lie at at.gate(l, c), at.up(l, c) and at.down(j, l) of their arguments.
template <class At>
struct gated_layer {
  std::size_t hidden, n;
  const argument &gate, &up, &down, *gate_bias, *up_bias;
  At at;
  tigon::mlp_gate act = tigon::mlp_gate::swiglu;
  double gate_multiplier = 1, down_multiplier = 1;
};

/// Of each element of the results of a gated MLP the root of the sum of the squares of its terms, in f64. A factor
/// counts as what it is a sum of, since that is what its own error is a part of.
struct mlp_roots {
  std::vector<double> y, dx, dgate, dup, ddown, dgate_bias, dup_bias, ddown_bias, drouting;
  double largest = 0;  ///< magnitude of what is held between the products: g, u, a, dg and du

  /// Token i of x and dy through `layer`, its result times w. gate and up may be one argument: then dup is dgate.
  template <class At>
  void add(const gated_layer<At>& layer, const argument& x, const argument& dy, std::size_t i, double w, double& of_w) {
    const std::size_t hidden = layer.hidden, n = layer.n;
    auto& of_up = &layer.gate == &layer.up ? dgate : dup;
    grow(y, x.size()), grow(dx, x.size()), grow(dgate, layer.gate.size()), grow(of_up, layer.up.size());
    grow(ddown, layer.down.size()), grow(dgate_bias, n), grow(dup_bias, n), grow(ddown_bias, hidden);
    const auto in = [&](std::size_t c) { return x.wanted(i * hidden + c); };
    const auto upstream = [&](std::size_t j) { return dy.wanted(i * hidden + j) * layer.down_multiplier; };
    for (std::size_t j = 0; j < hidden; ++j) add_square(ddown_bias[j], w * upstream(j));
    for (std::size_t l = 0; l < n; ++l) {
      sum g, u, p;
      for (std::size_t c = 0; c < hidden; ++c) {
        g.add(layer.gate_multiplier * layer.gate.wanted(layer.at.gate(l, c)) * in(c));
        u.add(layer.up.wanted(layer.at.up(l, c)) * in(c));
      }
      if (layer.gate_bias != nullptr) g.add(layer.gate_multiplier * layer.gate_bias->wanted(l));
      if (layer.up_bias != nullptr) u.add(layer.up_bias->wanted(l));
      for (std::size_t j = 0; j < hidden; ++j) p.add(upstream(j) * layer.down.wanted(layer.at.down(j, l)));
      const test::gate_value of = test::gate_value_of(layer.act, g.value);
      const double bend = std::min(0.8, 2 / (g.value * g.value));  // |act''| is below
      const double act = std::abs(of.act), slope = std::abs(of.slope), value_u = std::abs(u.value);
      const double unweighted = act * u.size() + slope * g.size() * value_u, a = w * unweighted;
      const double dg = w * (p.size() * value_u * slope + std::abs(p.value) * u.size() * slope +
                             std::abs(p.value) * value_u * bend * g.size());
      const double du = w * (p.size() * act + std::abs(p.value) * slope * g.size());
      for (const double held : {g.value, u.value, of.act * u.value, w * of.act * u.value, p.value * u.value * of.slope,
                                p.value * of.act, w * p.value * u.value * of.slope, w * p.value * of.act})
        largest = std::max(largest, std::abs(held));
      add_square(dgate_bias[l], layer.gate_multiplier * dg), add_square(dup_bias[l], du);
      add_square(of_w, p.size() * act * value_u), add_square(of_w, p.value * unweighted);
      for (std::size_t c = 0; c < hidden; ++c) {
        const std::size_t at_gate = layer.at.gate(l, c), at_up = layer.at.up(l, c), at_down = layer.at.down(c, l);
        add_square(y[i * hidden + c], layer.down_multiplier * a * layer.down.wanted(at_down));
        add_square(ddown[at_down], a * upstream(c));
        add_square(dgate[at_gate], layer.gate_multiplier * dg * in(c)), add_square(of_up[at_up], du * in(c));
        add_square(dx[i * hidden + c], layer.gate_multiplier * dg * layer.gate.wanted(at_gate));
        add_square(dx[i * hidden + c], du * layer.up.wanted(at_up));
      }
    }
  }
  /// What a gradient is added to is a term, too.
  static void add_terms(std::vector<double>& to, const argument& of) {
    grow(to, of.size());
    for (std::size_t k = 0; k < of.size(); ++k) add_square(to[k], of.wanted(k));
  }
  void take_roots() {
    for (auto* v : {&y, &dx, &dgate, &dup, &ddown, &dgate_bias, &dup_bias, &ddown_bias, &drouting})
      for (double& r : *v) r = std::sqrt(r);
  }
  /// Whether all that is held between the products is finite in the type of `a`.
  bool fits(const argument& a) const { return largest < a.largest_held() / 2; }

 private:
  struct sum {
    double value = 0, squares = 0;
    void add(double term) { value += term, squares += term * term; }
    double size() const { return std::abs(value) + std::sqrt(squares); }
  };
  static void add_square(double& to, double a) { to += a * a; }
  static void grow(std::vector<double>& v, std::size_t n) {
    if (v.size() < n) v.resize(n);
  }
};

/// Experts that tokens chose, in a few cases one that is not there.
template <class P>
auto& some_choices(P& p, std::size_t tokens, std::size_t k, std::size_t experts) {
  auto& indices = p.template matrix<std::int32_t>("indices", tokens, k);
  generator next(p.in.seed());
  const bool same = p.in.one_in(4);
  for (std::size_t c = 0; c < indices.size(); ++c)
    indices.set(c, static_cast<double>(same ? experts - 1 : next() % experts));
  if (indices.size() != 0 && p.in.one_in(16)) {
    indices.set(p.in.below(indices.size()), p.in.pick({static_cast<double>(experts), -1.0, -2147483648.0}));
    p.may_refuse = true;
  }
  return indices;
}

/// The arguments of moe and expert_parallel_moe.
template <class P>
struct some_moe {
  using T = typename P::element;
  P& p;
  std::size_t tokens, k, experts, hidden, n;
  tigon::moe_options opt;
  bool again;  ///< backward from x alone
  twin<T>&x, &dy;
  twin<std::int32_t>& indices;
  twin<T>&routing, &gate_up, &down, &y, &saved, &dx, &dgate_up, &ddown, &drouting;

  explicit some_moe(P& of)
      : p(of),
        tokens(p.some_rows(20)),
        k(p.in.below(4)),
        experts(p.in.between(1, 5)),
        hidden(p.some_cols(30)),
        n(p.some_cols(30)),
        opt{.layout = p.in.pick({tigon::gate_layout::halves, tigon::gate_layout::interleaved}),
            .dw = p.in.pick({tigon::gradient::overwrite, tigon::gradient::accumulate})},
        again(p.in.one_in(3)),
        x(p.filled(p.matrix("x", tokens, hidden), 0, 1, false)),
        dy(p.filled(p.matrix("dy", tokens, hidden), 0, 1, false)),
        indices(some_choices(p, tokens, k, experts)),
        routing(p.filled(p.matrix("weights", tokens, k), 0.5, 0.2 / p.stretch(), false)),
        gate_up(p.filled(p.matrix("gate_up", experts * 2 * n, hidden), 0, of_weights(hidden), false)),
        down(p.filled(p.matrix("down", experts * hidden, n), 0, of_weights(n), false)),
        y(p.matrix("y", tokens, hidden)),
        saved(p.matrix("saved", tokens * k, 2 * n)),
        dx(p.matrix("dx", tokens, hidden)),
        dgate_up(p.matrix("dgate_up", experts * 2 * n, hidden)),
        ddown(p.matrix("ddown", experts * hidden, n)),
        drouting(p.matrix("dweights", tokens, k)) {
    if (opt.dw == tigon::gradient::accumulate) p.fill(dgate_up, 0, 1, false), p.fill(ddown, 0, 1, false);
  }
  double of_weights(std::size_t in) const { return 1 / (p.stretch() * std::sqrt(static_cast<double>(in))); }

  /// Before the calls, which overwrite what gradients are added to.
  mlp_roots roots() const {
    mlp_roots of;
    of.drouting.resize(indices.size());
    if (opt.dw == tigon::gradient::accumulate) of.add_terms(of.dgate, dgate_up), of.add_terms(of.ddown, ddown);
    const bool halves = opt.layout == tigon::gate_layout::halves;
    for (std::size_t q = 0; q < indices.size(); ++q) {
      const double chosen = indices.wanted(q);
      if (chosen < 0 || chosen >= static_cast<double>(experts)) continue;
      const auto e = static_cast<std::size_t>(chosen);
      const places at{e, n, hidden, halves};
      const gated_layer<places> expert{hidden, n, gate_up, gate_up, down, nullptr, nullptr, at};
      of.add(expert, x, dy, q / k, routing.wanted(q), of.drouting[q]);
    }
    of.take_roots();
    return of;
  }
  /// Where expert e has its weights.
  struct places {
    std::size_t e, n, hidden;
    bool halves;
    std::size_t gate(std::size_t l, std::size_t c) const { return (e * 2 * n + (halves ? l : 2 * l)) * hidden + c; }
    std::size_t up(std::size_t l, std::size_t c) const {
      return (e * 2 * n + (halves ? n + l : 2 * l + 1)) * hidden + c;
    }
    std::size_t down(std::size_t j, std::size_t l) const { return (e * hidden + j) * n + l; }
  };

  template <class S>
  auto choices(S s) const {
    return tigon::moe_choices<std::int32_t, typename S::element>{indices.at(s), routing.at(s)};
  }
  template <class S>
  auto weights(S s) const {
    return tigon::moe_weights<typename S::element>{gate_up.at(s), down.at(s), experts};
  }
  template <class S>
  auto gradients(S s) const {
    using E = typename S::element;
    return tigon::moe_gradients<E, E, E>{dx.at(s), dgate_up.at(s), ddown.at(s), drouting.at(s)};
  }
  void compare_forward(const mlp_roots& of) const {
    if (!of.fits(saved)) return;
    p.compare(y, {.bound = p.stretch() * mlp_forward_bound.template of<T>(),
                  .scale = static_cast<double>(k) * p.size_of_terms({&x}),
                  .roots = of.y});
  }
  void compare_backward(const mlp_roots& of) const {
    if (!of.fits(saved)) return;
    const double of_k = static_cast<double>(k), of_x = std::max(1.0, p.size_of_terms({&x})) * of_k;
    const double of_dy = p.size_of_terms({&dy}), bound = p.stretch() * mlp_backward_bound.template of<T>();
    const double sum = of_dy * of_x * std::sqrt(static_cast<double>(tokens + 1));
    p.compare(dx, {.bound = bound, .scale = of_dy * of_k, .roots = of.dx});
    p.compare(drouting, {.bound = std::same_as<T, double> ? bound / 2 : bound,
                         .scale = of_dy * of_x * std::sqrt(static_cast<double>(n)),
                         .roots = of.drouting});
    p.compare(dgate_up, {.bound = bound, .scale = sum, .roots = of.dgate});
    p.compare(ddown, {.bound = bound, .scale = sum, .roots = of.ddown});
  }
};

/// What mhc_coeffs and mhc read and leave for backward: n streams of so many channels.
template <class P>
struct some_hyper_connections {
  using A = typename P::A;
  double of_phi;  ///< the size of phi
  twin<typename P::element>&x, &phi;
  twin<A>&b, &alpha, &pre, &post, &res, &mix, &rstd;
  saved_buffer<A, double> history;  ///< of Sinkhorn, as long as each backend wants it

  some_hyper_connections(P& p, std::size_t tokens, std::size_t n, std::size_t channels, std::size_t tmax)
      : of_phi(1 / (p.stretch() * std::sqrt(static_cast<double>(n * channels)))),
        x(p.filled(p.matrix("x", tokens, n * channels), 0, 1, false)),
        phi(p.filled(p.matrix("phi", n * channels, n * (n + 2)), 0, of_phi, false)),
        b(p.filled(p.template vector<A>("b", n * (n + 2)), 0, 0.5 / p.stretch(), false)),
        alpha(p.filled(p.template vector<A>("alpha", 3), 0.7, 0.1 / p.stretch(), false)),
        pre(p.template matrix<A>("h_pre", tokens, n)),
        post(p.template matrix<A>("h_post", tokens, n)),
        res(p.template matrix<A>("h_res", tokens, n * n)),
        mix(p.template matrix<A>("mix", tokens, n * (n + 2))),
        rstd(p.template vector<A>("rstd", tokens)),
        history(tigon::mhc_coeffs_history<typename P::backend, typename P::element>(tokens, n, tmax),
                tigon::mhc_coeffs_history<tigon::backends::generic, double>(tokens, n, tmax)) {}

  template <class S>
  auto weights(S s) {
    return tigon::mhc_weights{phi.at(s), b.vec(s), alpha.vec(s)};
  }
};

}  // namespace tigon::fuzz

#endif  // TIGON_TESTS_FUZZ_LAYERS_HPP
