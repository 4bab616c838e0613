#include "ops/table.hpp"

namespace tigon_bench {

const std::vector<op_entry>& ops() {
  static const std::vector<op_entry> all{stream_copy(),
                                         rms_norm(),
                                         fused_add_rms_norm(),
                                         layer_norm(),
                                         swiglu(),
                                         geglu(),
                                         rope(),
                                         softmax(),
                                         embedding(),
                                         attention(),
                                         gemm(),
                                         cross_entropy(),
                                         fused_linear_cross_entropy()};
  return all;
}

}  // namespace tigon_bench
