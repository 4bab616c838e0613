// errors: 2
// expect: tigon: Eigen 3.4 or newer is needed
// flags: -DTIGON_BACKEND=generic
#include <Eigen/Core>
#ifdef SHOULD_NOT_COMPILE
#undef EIGEN_MAJOR_VERSION
#undef EIGEN_MINOR_VERSION
#define EIGEN_MAJOR_VERSION 2
#define EIGEN_MINOR_VERSION 0
#endif
#include <tigon/gemm/kernel.hpp>
