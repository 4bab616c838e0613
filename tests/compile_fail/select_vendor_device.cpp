// A device of a vendor is chosen by its name, with the backend that runs on it; another device is refused as ever.
// expect: tigon: backend mine does not run on device gpu (TIGON_BACKEND, TIGON_DEVICE); there are ascend (npu),
// flags: -DTIGON_BACKEND=mine '-DTIGON_BACKEND_HEADER="select_vendor_device.hpp"'
// reject flags: -DTIGON_DEVICE=gpu
#ifndef SHOULD_NOT_COMPILE
#define TIGON_DEVICE card
#endif
#include <tigon/ops/rms_norm.hpp>

void use(tigon::matrix_view<const float> x, std::span<const float> w, tigon::matrix_view<float> y,
         std::span<float> rstd) {
  tigon::rms_norm_forward(x, w, y, rstd);
}
