// What moe and expert_parallel_moe share: tokens, their choices, experts and gradients.
#ifndef TIGON_BENCH_OPS_EXPERTS_HPP
#define TIGON_BENCH_OPS_EXPERTS_HPP

#include <tigon/ops/moe/moe_options.hpp>

#include "support/matrix.hpp"
#include "support/registry.hpp"

#include <cstdint>

namespace tigon_bench {

/// Of tokens x experts x top_k x hidden x intermediate.
template <class T>
struct experts {
  std::size_t count;
  matrix<std::int32_t> indices;
  matrix<T> x, weights, gate_up, down, y, saved, dy, dx, dgate_up, ddown, dweights;

  experts(const extents& e, bool saves, bool backward)
      : count(e[1]),
        indices(uniform_matrix<std::int32_t>(e[0], e[2], 0, static_cast<double>(e[1]), 1)),
        x(uniform_matrix<T>(e[0], e[3], -1, 1, 2)),
        weights(uniform_matrix<T>(e[0], e[2], 0, 1, 3)),
        gate_up(uniform_matrix<T>(e[1] * 2 * e[4], e[3], -0.05, 0.05, 4)),
        down(uniform_matrix<T>(e[1] * e[3], e[4], -0.05, 0.05, 5)),
        y(e[0], e[3]) {
    if (saves) saved = matrix<T>(e[0] * e[2], 2 * e[4]);
    if (!backward) return;
    dy = uniform_matrix<T>(e[0], e[3], -1, 1, 6);
    dx = matrix<T>(e[0], e[3]), dweights = matrix<T>(e[0], e[2]);
    dgate_up = matrix<T>(gate_up.rows, gate_up.cols), ddown = matrix<T>(down.rows, down.cols);
  }
  auto choices() const { return tigon::moe_choices{indices.view(), weights.view()}; }
  auto matrices() const { return tigon::moe_weights{gate_up.view(), down.view(), count}; }
  auto gradients() const { return tigon::moe_gradients{dx.view(), dgate_up.view(), ddown.view(), dweights.view()}; }
};

}  // namespace tigon_bench

#endif  // TIGON_BENCH_OPS_EXPERTS_HPP
