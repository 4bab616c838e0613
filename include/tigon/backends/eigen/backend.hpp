// The canonical kernels on the lanes of eigen.
#ifndef TIGON_BACKENDS_EIGEN_BACKEND_HPP
#define TIGON_BACKENDS_EIGEN_BACKEND_HPP

#if defined(__has_include) && !__has_include(<Eigen/Core>)
#error \
    "tigon: backend eigen needs <Eigen/Core>; install libeigen3-dev (vcpkg eigen3, Conan eigen) and add its include directory (-isystem /usr/include/eigen3)"
#include <the_error_above_ends_compilation>
#endif

#include <tigon/backends/generic/backend.hpp>
#include <tigon/simd/engines/eigen.hpp>

namespace tigon::backends {
inline namespace TIGON_ABI {

struct eigen : generic {
  using self = eigen;
  using parent = generic;
  static constexpr backend_info info{"eigen", {device::cpu}};
  using engine = simd::eigen;
  using overrides = op_list<>;
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

#endif  // TIGON_BACKENDS_EIGEN_BACKEND_HPP
