// Views of Eigen's matrices name the package.
// hide: Eigen eigen3
// errors: 2
// expect: tigon: interop/eigen.hpp needs <Eigen/Core>; install libeigen3-dev (vcpkg eigen3, Conan eigen)
#include <tigon/core/views.hpp>
#ifdef SHOULD_NOT_COMPILE
#include <tigon/interop/eigen.hpp>
#endif
