// No backend is named, and the library of the default one is not installed: refused, with the package and the other ways.
// Nothing takes its place unless it is named.
// hide: hwy
// errors: 2
// expect: tigon: the default backend needs <hwy/highway.h>; install libhwy-dev (vcpkg and Conan highway)
// expect: or choose a backend by name: -DTIGON_BACKEND=xsimd
#ifndef SHOULD_NOT_COMPILE
#define TIGON_BACKEND xsimd
#endif
#include <tigon/ops/rms_norm.hpp>

static_assert(tigon::default_backend::info.name == "xsimd" && TIGON_BACKEND_NAMED);
void call(tigon::in_matrix<float> x, tigon::matrix_view<float> y, std::span<float> rstd) {
  tigon::rms_norm_forward(x, tigon::absent, y, rstd);
}
