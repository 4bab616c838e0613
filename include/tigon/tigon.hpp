// Everything: all operators, losses and the product, on the default backend. A program that counts its compile time
// includes the headers of the operators that it calls instead.
#ifndef TIGON_TIGON_HPP
#define TIGON_TIGON_HPP

#include <tigon/gemm/gemm.hpp>
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/losses/fused_linear_cross_entropy.hpp>
#include <tigon/ops/attention.hpp>
#include <tigon/ops/attn_res.hpp>
#include <tigon/ops/dyt.hpp>
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/group_norm.hpp>
#include <tigon/ops/layer_norm.hpp>
#include <tigon/ops/llama4_rope.hpp>
#include <tigon/ops/mlp.hpp>
#include <tigon/ops/modulated_rms_norm.hpp>
#include <tigon/ops/poly_norm.hpp>
#include <tigon/ops/qwen2vl_mrope.hpp>
#include <tigon/ops/relu_squared.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/rope.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/sparsemax.hpp>
#include <tigon/ops/swiglu.hpp>
#include <tigon/ops/swiglu_fused.hpp>
#include <tigon/ops/tiled_mlp.hpp>

namespace tigon {

/// Every operator there is, for audit and coverage.
using all_ops =
    op_list<op::gemm, op::embedding, op::rms_norm, op::fused_add_rms_norm, op::modulated_rms_norm, op::layer_norm,
            op::group_norm, op::poly_norm, op::dyt, op::swiglu, op::swiglu_fused, op::geglu, op::relu_squared, op::mlp,
            op::tiled_mlp, op::rope, op::llama4_rope, op::qwen2vl_mrope, op::softmax, op::sparsemax, op::attention,
            op::attn_res, op::cross_entropy, op::fused_linear_cross_entropy>;

}  // namespace tigon

#endif  // TIGON_TIGON_HPP
