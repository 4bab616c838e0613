// Cross entropy of logits, and of products by chunks of rows, of which it is a part.
#include "adapters/cross_entropy.hpp"
#include "adapters/fused_linear_cross_entropy.hpp"
#include "adapters/fused_linear_scaled_cross_entropy.hpp"
#include "add_adapter.hpp"

#include "../support/kernels.hpp"

namespace {

using namespace golden;
const bool added[] = {add_adapter<adapters::cross_entropy>("cross_entropy"),
                      add_adapter<adapters::fused_linear_cross_entropy>("fused_linear_cross_entropy"),
                      add_adapter<adapters::fused_linear_scaled_cross_entropy>("fused_linear_scaled_cross_entropy")};

}  // namespace
