#include "kernels_of.hpp"

const c_api::kernels<tigon::bfloat16>& c_api::kernels_of_bf16() { return kernels_of<tigon::bfloat16>; }
