// expect: tigon: double parameters go only with double activations; convert one of them
// flags: -DTIGON_BACKEND=generic
#include <tigon/ops/rms_norm.hpp>

#ifdef SHOULD_NOT_COMPILE
using W = double;
#else
using W = tigon::bfloat16;
#endif
void use(tigon::matrix_view<const float> x, std::span<const W> w, tigon::matrix_view<float> y, std::span<float> rstd) {
  tigon::rms_norm_forward(x, w, y, rstd);
}
