// The root of every chain: the canonical kernels, on scalar lanes.
#ifndef TIGON_BACKENDS_GENERIC_BACKEND_HPP
#define TIGON_BACKENDS_GENERIC_BACKEND_HPP

#include <tigon/backend/backend.hpp>
#include <tigon/simd/engines/scalar.hpp>

namespace tigon::backends {
inline namespace TIGON_ABI {

/// Has a kernel for every operator: the one in the operator's own header. On this backend the lanes are single
/// numbers, which makes it the reference that the others are compared with.
struct generic {
  using self = generic;
  using parent = void;
  static constexpr backend_info info{"generic", {device::cpu, device::npu}};
  using engine = simd::scalar;
  using overrides = op_list<>;
  static constexpr row_tuning row{};
  // fused_linear_cross_entropy, one thread of a Zen 5 (AVX-512), 2026-11-22, 256 rows against the 128 of the budget at
  // vocab 128256: f32 512 x 2048 1.12x (worst 1.10, best 1.22), bf16 1024 x 1024 1.06x (worst 1.04, best 1.07).
  static constexpr chunk_tuning chunk{.least_rows = 256};
  static constexpr attention_tuning attention{};
  static constexpr hyper_connection_tuning hyper_connections{};
  static constexpr double error_scale = 1.0;
  static constexpr bool relaxed_16bit = true;  ///< gates for 16-bit results are exact to an eighth of their last bit
  static constexpr std::size_t tile_capacity_bits = 48 * 8192;  ///< one core's L1
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

#endif  // TIGON_BACKENDS_GENERIC_BACKEND_HPP
