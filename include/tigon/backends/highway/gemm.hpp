// op::gemm on packed panels: all element types by fma, 16-bit elements widened while they are packed.
#ifndef TIGON_BACKENDS_HIGHWAY_GEMM_HPP
#define TIGON_BACKENDS_HIGHWAY_GEMM_HPP

#include <tigon/backends/highway/backend.hpp>
#include <tigon/gemm/packed.hpp>

namespace tigon {

namespace packed {
/// The engine of the most derived backend, so that a child with other lanes keeps this kernel.
template <class B, class TA, class TB>
using widened = fma_lanes<typename B::engine, accumulator_t<TA>>;
}  // namespace packed

template <>
struct kernel<op::gemm, backends::highway> : packed::gemm_by_panels<packed::widened> {
  template <element TA, element TB>
  static constexpr std::string_view layout = "panels of f32 or f64";
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_HIGHWAY_GEMM_HPP
