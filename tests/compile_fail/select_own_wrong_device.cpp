// The device is refused by what the type says, so a backend that the library has never heard of is refused too.
// expect: tigon: backend mine does not run on device npu (TIGON_BACKEND, TIGON_DEVICE); there are ascend (npu),
// flags: -DTIGON_BACKEND=mine '-DTIGON_BACKEND_HEADER="select_own_wrong_device.hpp"'
// reject flags: -DTIGON_DEVICE=npu
#include <tigon/ops/rms_norm.hpp>

void use(tigon::matrix_view<const float> x, std::span<const float> w, tigon::matrix_view<float> y,
         std::span<float> rstd) {
  tigon::rms_norm_forward(x, w, y, rstd);
}
