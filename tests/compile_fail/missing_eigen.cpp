// Asked for and not installed: the package is named.
// errors: 2
// expect: tigon: backend eigen needs <Eigen/Core>; install libeigen3-dev
// flags: -DTIGON_BACKEND=eigen
// hide rejected: Eigen eigen3
#include <tigon/ops/rms_norm.hpp>
