// The canonical kernels on the lanes of xsimd.
#ifndef TIGON_BACKENDS_XSIMD_BACKEND_HPP
#define TIGON_BACKENDS_XSIMD_BACKEND_HPP

#if defined(__has_include) && !__has_include(<xsimd/xsimd.hpp>)
#error "tigon: backend xsimd needs <xsimd/xsimd.hpp>; install libxsimd-dev (vcpkg and Conan xsimd)"
#include <the_error_above_ends_compilation>
#endif

#include <tigon/backends/generic/backend.hpp>
#include <tigon/simd/engines/xsimd.hpp>

namespace tigon::backends {
inline namespace TIGON_ABI {

struct xsimd : generic {
  using self = xsimd;
  using parent = generic;
  static constexpr backend_info info{"xsimd", {device::cpu}};
  using engine = simd::xsimd;
  using overrides = op_list<>;
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

#endif  // TIGON_BACKENDS_XSIMD_BACKEND_HPP
