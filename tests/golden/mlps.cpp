// An MLP whole and in tiles of rows, which are one kernel, and its gate alone.
#include "adapters/swiglu.hpp"
#include "adapters/swiglu_fused_gate_up.hpp"
#include "adapters/swiglu_mlp.hpp"
#include "adapters/tiled_mlp.hpp"
#include "add_adapter.hpp"

#include "../support/kernels.hpp"

namespace {

using namespace golden;
const bool added[] = {add_adapter<adapters::swiglu_mlp>("swiglu_mlp"), add_adapter<adapters::tiled_mlp>("tiled_mlp"),
                      add_adapter<adapters::swiglu>("swiglu"),
                      add_adapter<adapters::swiglu_fused_gate_up>("swiglu_fused_gate_up")};

}  // namespace
