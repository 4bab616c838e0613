// The limit of operators that are made of products, and the entry of a loss behind a linear layer.
#ifndef TIGON_BENCH_OPS_PRODUCTS_HPP
#define TIGON_BENCH_OPS_PRODUCTS_HPP

#include <tigon/core/element.hpp>

#include "ops/table.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tigon_bench {

/// So many operations at the peak of T: the FMA peak, or that of the bf16 dot product.
template <class T>
limit_request product_peak(double flops) {
  return limit_request::peak(std::is_same_v<T, double>            ? limit_bound::fma_f64
                             : std::is_same_v<T, tigon::bfloat16> ? limit_bound::bf16_dot
                                                                  : limit_bound::fma_f32,
                             flops);
}

/// Operations of products of tokens, hidden and vocab.
inline double linear_flops(double products, const request& r) {
  return products * 2 * static_cast<double>(r.shape[0]) * static_cast<double>(r.shape[1]) *
         static_cast<double>(r.shape[2]);
}

/// The modes of a fused linear loss: the loss alone, or all gradients in the same call.
inline std::vector<mode> linear_loss_modes() { return {mode::no_grad_forward, mode::full}; }

/// The entry of a fused linear loss; make is a generic callable that makes the plan of a backend, or of `plain`, and a
/// type.
template <class Make>
op_entry linear_loss_entry(std::string name, extents shape, Make make) {
  return with_plain({.name = std::move(name),
                     .dims = "tokens x hidden x vocab",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", std::move(shape), linear_loss_modes()}},
                     .backends = {},
                     .make_plan = {}},
                    make);
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_OPS_PRODUCTS_HPP
