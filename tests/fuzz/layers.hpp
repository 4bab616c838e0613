// What cases of layers have in common with those of their parts: the arguments of a mixture of experts, and what
// hyper-connections keep.
#ifndef TIGON_TESTS_FUZZ_LAYERS_HPP
#define TIGON_TESTS_FUZZ_LAYERS_HPP

#include <tigon/ops/mhc_coeffs.hpp>
#include <tigon/ops/moe_contract.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "problem.hpp"

namespace tigon::fuzz {

// About three times what was measured in f32 and f64, where the contract states 8e-6.
inline constexpr bounds mlp_forward_bound{.f32 = 4e-6, .bf16 = 3e-2, .f16 = 4e-3, .f64 = 2.5e-15};
inline constexpr bounds mlp_backward_bound{.f32 = 4e-6, .bf16 = 5e-2, .f16 = 6e-3, .f64 = 3e-15};

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
  void compare_forward() const {
    p.compare(y, {.bound = p.stretch() * mlp_forward_bound.template of<T>(),
                  .scale = static_cast<double>(k) * p.size_of_terms({&x})});
  }
  void compare_backward() const {
    const double of_k = static_cast<double>(k), of_x = std::max(1.0, p.size_of_terms({&x})) * of_k;
    const double of_dy = p.size_of_terms({&dy}), bound = p.stretch() * mlp_backward_bound.template of<T>();
    const double sum = of_dy * of_x * std::sqrt(static_cast<double>(tokens + 1));
    p.compare(dx, {.bound = bound, .scale = of_dy * of_k});
    p.compare(drouting, {.bound = std::same_as<T, double> ? bound / 3 : bound,
                         .scale = of_dy * of_x * std::sqrt(static_cast<double>(n))});
    p.compare(dgate_up, {.bound = bound, .scale = sum});
    p.compare(ddown, {.bound = bound, .scale = sum});
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
