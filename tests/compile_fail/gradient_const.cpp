// expect: tigon: a gradient is written; pass a range of non-const elements
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

#ifdef SHOULD_NOT_COMPILE
using gradient = const float;
#else
using gradient = float;
#endif
void use(tigon::matrix_view<const float> x, std::span<const float> w, std::span<const float> rstd,
         tigon::matrix_view<float> dx, std::span<gradient> dw) {
  tigon::rms_norm_backward(x, x, w, rstd, dx, dw);
}
