// Backend cuda: a GPU of NVIDIA. Row programs run on groups of its threads (backends/cuda/rows.hpp).
#ifndef TIGON_BACKENDS_CUDA_BACKEND_HPP
#define TIGON_BACKENDS_CUDA_BACKEND_HPP

#include <tigon/backends/cuda/device_code.hpp>
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/rows.hpp>
#include <tigon/backends/generic/backend.hpp>

namespace tigon {
namespace op {
struct dyt;
struct fused_add_rms_norm;
struct geglu;
struct kl_div;
struct jsd;
struct layer_norm;
struct modulated_rms_norm;
struct poly_norm;
struct relu_squared;
struct rms_norm;
struct softmax;
struct swiglu;
struct swiglu_fused;
struct tvd;
}  // namespace op

namespace gpu {
inline namespace TIGON_ABI {
struct divergence_rows;
template <class A>
struct scaled_number;
}  // namespace TIGON_ABI
}  // namespace gpu

namespace backends {
inline namespace TIGON_ABI {

/// Doors take pointers of the device, and return when their work is in the queue of the context (docs/cuda.md).
struct cuda : generic {
  using self = cuda;
  using parent = generic;
  static constexpr backend_info info{"cuda", {device::gpu}, {device::gpu}};
  using engine = simd::cuda;
  using rows = gpu::rows_on_groups<cuda>;
  static constexpr bool host_memory = false;
  using divergence_rows = gpu::divergence_rows;
  template <class A>
  using number = gpu::scaled_number<A>;
  using overrides =
      op_list<op::dyt, op::jsd, op::kl_div, op::modulated_rms_norm, op::poly_norm, op::rms_norm, op::softmax, op::tvd>;
  /// Operators that are made of row programs alone.
  using shared =
      op_list<op::fused_add_rms_norm, op::geglu, op::layer_norm, op::relu_squared, op::swiglu, op::swiglu_fused>;
  /// CUDA's default stream, with a growing workspace of the calling thread's own.
  static context& default_context() {
    thread_local workspace scratch(gpu::memory(nullptr));
    thread_local context instance(serial(), scratch, gpu::queue(nullptr));
    return instance;
  }
};

}  // namespace TIGON_ABI
}  // namespace backends
}  // namespace tigon

// Everything it overrides:
#include <tigon/backends/cuda/divergences.hpp>
#include <tigon/backends/cuda/dyt.hpp>
#include <tigon/backends/cuda/norms.hpp>
#include <tigon/backends/cuda/softmax.hpp>

#endif  // TIGON_BACKENDS_CUDA_BACKEND_HPP
