// What mlp and tiled_mlp share: weights, tokens, gradients, and products as the limit.
#ifndef TIGON_BENCH_OPS_GATED_MLP_HPP
#define TIGON_BENCH_OPS_GATED_MLP_HPP

#include "ops/products.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"
#include "support/registry.hpp"

namespace tigon_bench {

template <class T>
struct gated_mlp {
  matrix<T> x, wg, wu, wd, y, dy, dx, dwg, dwu, dwd;

  gated_mlp(std::size_t tokens, std::size_t hidden, std::size_t intermediate, bool forward, bool backward)
      : x(uniform_matrix<T>(tokens, hidden, -1, 1, 1)),
        wg(uniform_matrix<T>(intermediate, hidden, -0.05, 0.05, 2)),
        wu(uniform_matrix<T>(intermediate, hidden, -0.05, 0.05, 3)),
        wd(uniform_matrix<T>(hidden, intermediate, -0.05, 0.05, 4)) {
    if (forward) y = matrix<T>(tokens, hidden);
    if (!backward) return;
    dy = uniform_matrix<T>(tokens, hidden, -1, 1, 5);
    dx = matrix<T>(tokens, hidden);
    dwg = matrix<T>(intermediate, hidden), dwu = matrix<T>(intermediate, hidden);
    dwd = matrix<T>(hidden, intermediate);
  }
};

/// `products` products of tokens, hidden and intermediate. In 16 bits all of them multiply 16-bit operands.
template <class T>
limit_request product_limit(const request& r, double products) {
  return product_peak<T>(products * 2 * static_cast<double>(r.shape[0]) * static_cast<double>(r.shape[1]) *
                         static_cast<double>(r.shape[2]));
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_OPS_GATED_MLP_HPP
