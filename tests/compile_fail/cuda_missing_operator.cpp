// Operators that backend cuda does not have yet are refused by a sentence; all others have a kernel there.
// expect: tigon: the kernel of this operator is written for memory that the host reads, and that of the chosen backend is
// flags: -DTIGON_BACKEND=generic -Wno-unknown-pragmas
#include "../cuda/model.hpp"
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/attention.hpp>
#include <tigon/backends/cuda/backend.hpp>
#include <tigon/tigon.hpp>

using tigon::backends::cuda;
namespace op = tigon::op;

/// docs/cuda.md lists them.
using missing = tigon::op_list<op::expert_parallel_moe, op::matmul_int8_int2, op::moe, op::moe_gather, op::moe_router,
                               op::moe_routing, op::moe_scatter, op::multi_token_attention, op::neighborhood_attention,
                               op::neighborhood_attention_layer>;
/// Rows of losses behind a layer, which have no public function: cuda has the losses themselves.
using inner = tigon::op_list<op::distillation, op::scaled_cross_entropy>;
template <class... Op>
consteval bool refused_or_there(tigon::op_list<Op...>) {
  return ((tigon::detail::reaches_data<Op, cuda> != (missing::contains<Op> || inner::contains<Op>)) && ...);
}
static_assert(refused_or_there(tigon::all_ops{}));

#ifdef SHOULD_NOT_COMPILE
using chosen = tigon::kernel_for<op::moe_router, cuda>;
#else
using chosen = tigon::kernel_for<op::softmax, cuda>;
#endif
