// A backend that is named still has to run on the device.
// expect: tigon: backend xsimd does not run on device npu (TIGON_BACKEND, TIGON_DEVICE); there are
// expect: ascend (npu), cuda (gpu), amx (cpu), avx512_bf16 (cpu), arm_bf16 (cpu), highway (cpu)
// flags: -DTIGON_DEVICE=npu
#ifdef SHOULD_NOT_COMPILE
#define TIGON_BACKEND xsimd
#else
#define TIGON_BACKEND generic
#endif
#include <tigon/ops/rms_norm.hpp>

void use(tigon::matrix_view<const float> x, std::span<const float> w, tigon::matrix_view<float> y,
         std::span<float> rstd) {
  tigon::rms_norm_forward(x, w, y, rstd);
}
