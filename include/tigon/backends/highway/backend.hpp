// Lanes by Highway, and a packed matrix product of our own. The default on CPUs without a better one.
#ifndef TIGON_BACKENDS_HIGHWAY_BACKEND_HPP
#define TIGON_BACKENDS_HIGHWAY_BACKEND_HPP

#if defined(__has_include) && !__has_include(<hwy/highway.h>)
#error "tigon: backend highway needs <hwy/highway.h>; install libhwy-dev (vcpkg and Conan highway)"
#include <the_error_above_ends_compilation>
#endif

#include <tigon/backend/kernel.hpp>
#include <tigon/backends/generic/backend.hpp>
#include <tigon/simd/engines/highway.hpp>

namespace tigon::op {
struct gemm;
}

namespace tigon::backends {
inline namespace TIGON_ABI {

struct highway : generic {
  using self = highway;
  using parent = generic;
  static constexpr backend_info info{"highway", {device::cpu}, {device::cpu}};
  using engine = simd::highway;
  using overrides = op_list<op::gemm>;
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

// Everything it overrides:
#include <tigon/backends/highway/gemm.hpp>

#endif  // TIGON_BACKENDS_HIGHWAY_BACKEND_HPP
