// Operators without products need no Eigen, on single numbers as on Highway's lanes; the others say so.
// hide: Eigen eigen3
// flags: -DTIGON_BACKEND=generic
// errors: 2
// expect: tigon: products need <Eigen/Core> on every backend; install libeigen3-dev (vcpkg eigen3, Conan eigen)
#include <tigon/backends/highway/backend.hpp>
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/ops/rms_norm.hpp>
#ifdef SHOULD_NOT_COMPILE
#include <tigon/ops/mlp.hpp>
#endif

void call(tigon::in_matrix<float> x, tigon::matrix_view<float> y, std::span<float> rstd) {
  tigon::rms_norm_forward(x, tigon::absent, y, rstd);
  tigon::rms_norm_forward<tigon::backends::highway>(x, tigon::absent, y, rstd);
}
