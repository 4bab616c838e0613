// The limit of operators that are made of products, and the entry of a loss behind a linear layer.
#ifndef TIGON_BENCH_OPS_PRODUCTS_HPP
#define TIGON_BENCH_OPS_PRODUCTS_HPP

#include <tigon/core/element.hpp>

#include "ops/table.hpp"
#include "support/backends.hpp"

#include <string>
#include <type_traits>
#include <utility>

namespace tigon_bench {

/// So many operations at the peak of T: the FMA peak, or that of the bf16 dot product.
template <class T>
limit_request product_peak(double flops) {
  return limit_request::peak(std::is_same_v<T, double>            ? limit_bound::fma_f64
                             : std::is_same_v<T, tigon::bfloat16> ? limit_bound::bf16_dot
                                                                  : limit_bound::fma_f32,
                             flops);
}

/// The entry of a fused linear loss, all gradients in one call; make is a generic callable that makes the plan of a
/// backend and a type.
template <class Make>
op_entry linear_loss_entry(std::string name, extents shape, Make make) {
  return {.name = std::move(name),
          .dims = "tokens x hidden x vocab",
          .dtypes = all_dtypes(),
          .variants = {{"default", std::move(shape), {mode::full}}},
          .backends = all_backends::names(),
          .make_plan = [make](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return make.template operator()<B, T>(r); });
          }};
}

}  // namespace tigon_bench

#endif  // TIGON_BENCH_OPS_PRODUCTS_HPP
