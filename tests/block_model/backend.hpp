// The model of a device as a backend: kernels of row programs alone, listed in `shared`. Not listed: what has products
// or loops over data on the host, of which kernels_alone.cpp calls the parts that are row programs.
#ifndef TIGON_TESTS_BLOCK_MODEL_BACKEND_HPP
#define TIGON_TESTS_BLOCK_MODEL_BACKEND_HPP

#include <tigon/backend/choices.hpp>

#include "block_model.hpp"

namespace tigon {

namespace test {

template <lacking Lacking>
struct block_model_lacking : backends::generic {
  using self = block_model_lacking;
  using parent = backends::generic;
  static constexpr backend_info info{"block_model", {device::cpu}};
  static constexpr bool host_memory = false;
  using overrides = op_list<>;
  using shared =
      op_list<op::attn_res, op::cross_entropy, op::cross_entropy_jsd, op::cross_entropy_tvd, op::dyt,
              op::fused_add_rms_norm, op::geglu, op::group_norm, op::jsd, op::kl_div, op::layer_norm, op::llama4_rope,
              op::mhc_post_res, op::mhc_pre, op::moe_gather, op::moe_router, op::moe_scatter, op::poly_norm,
              op::qk_norm_rope, op::qwen2vl_mrope, op::relu_squared, op::rms_norm, op::rope, op::scaled_cross_entropy,
              op::selective_log_softmax, op::softmax, op::sparsemax, op::swiglu, op::swiglu_fused, op::tvd>;
  using rows = rows_on_blocks<Lacking>;
  /// Its workspace is in the memory of the device.
  static context& default_context() {
    static const memory_source source{[](void*, std::size_t n) { return device_memory::instance().take(n); },
                                      [](void*, void* p, std::size_t n) { device_memory::instance().give(p, n); }};
    static workspace scratch(source);
    static context instance(serial(), scratch);
    return instance;
  }
};
using block_model = block_model_lacking<lacking::nothing>;

}  // namespace test
}  // namespace tigon

#endif  // TIGON_TESTS_BLOCK_MODEL_BACKEND_HPP
