// One function an op, each in a file of its own so that they compile in parallel.
#ifndef TIGON_BENCH_OPS_TABLE_HPP
#define TIGON_BENCH_OPS_TABLE_HPP

#include "support/registry.hpp"

namespace tigon_bench {

op_entry stream_copy();
op_entry rms_norm();
op_entry fused_add_rms_norm();
op_entry layer_norm();
op_entry swiglu();
op_entry geglu();
op_entry softmax();
op_entry embedding();
op_entry rope();
op_entry attention();
op_entry gemm();
op_entry cross_entropy();
op_entry fused_linear_cross_entropy();

}  // namespace tigon_bench

#endif  // TIGON_BENCH_OPS_TABLE_HPP
