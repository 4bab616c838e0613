// Compiled once for every instruction set, as is kernels_bf16.cpp.
#include <tigon/ops/rotary_frequencies.hpp>
#include <tigon/ops/rotary_tables.hpp>

#include "kernels_of.hpp"

namespace {

void rope_tables(c_api::out<float> cos, c_api::out<float> sin, double theta, std::int64_t first, tigon::context& ctx) {
  std::vector<double> frequencies(cos.cols);
  tigon::rotary_frequencies(frequencies, theta);
  tigon::fill_rotary_tables(std::span<const double>(frequencies), tigon::positions_from{first}, cos, sin, 1, ctx);
}

}  // namespace

extern "C" const c_api_kernel_table* TIGON_MULTI_ARCH_ENTRY() {
  static const c_api_kernel_table table{c_api::kernels_of<float>, c_api::kernels_of_bf16(), &rope_tables};
  return &table;
}
