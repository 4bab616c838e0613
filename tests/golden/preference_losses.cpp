// The losses on pairs, single sequences and groups, which are one kernel with different functions of a few numbers:
// compiled together, because each for itself would be that kernel once more.
#include "adapters/fused_linear_cpo.hpp"
#include "adapters/fused_linear_dpo.hpp"
#include "adapters/fused_linear_grpo.hpp"
#include "adapters/fused_linear_kto.hpp"
#include "adapters/fused_linear_orpo.hpp"
#include "adapters/fused_linear_simpo.hpp"
#include "add_adapter.hpp"

#include "../support/kernels.hpp"

namespace {

using namespace golden;
const bool added[] = {add_adapter<adapters::fused_linear_dpo>("fused_linear_dpo"),
                      add_adapter<adapters::fused_linear_orpo>("fused_linear_orpo"),
                      add_adapter<adapters::fused_linear_cpo>("fused_linear_cpo"),
                      add_adapter<adapters::fused_linear_simpo>("fused_linear_simpo"),
                      add_adapter<adapters::fused_linear_kto>("fused_linear_kto"),
                      add_adapter<adapters::fused_linear_grpo>("fused_linear_grpo")};

}  // namespace
