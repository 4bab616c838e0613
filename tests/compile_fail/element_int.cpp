// expect: tigon: elements are float, double, tigon::bfloat16 or tigon::float16; convert before the call
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

#ifdef SHOULD_NOT_COMPILE
using T = int;
#else
using T = tigon::bfloat16;
#endif
void use(tigon::matrix_view<const T> x, std::span<const float> w, tigon::matrix_view<T> y, std::span<float> rstd) {
  tigon::rms_norm_forward(x, w, y, rstd);
}
