// expect: tigon: parameters of one call and their gradients have one element type
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

#ifdef SHOULD_NOT_COMPILE
using W = tigon::bfloat16;
#else
using W = float;
#endif
void use(tigon::matrix_view<const float> x, std::span<const W> w, std::span<const float> rstd,
         tigon::matrix_view<float> dx, std::span<float> dw) {
  tigon::rms_norm_backward(x, x, w, rstd, dx, dw);
}
