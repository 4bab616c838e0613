// An MLP whole and in tiles of rows, which are one kernel.
#include "adapters/swiglu_mlp.hpp"
#include "adapters/tiled_mlp.hpp"
#include "add_adapter.hpp"

namespace {

using namespace golden;
const bool added[] = {add_adapter<adapters::swiglu_mlp>("swiglu_mlp"), add_adapter<adapters::tiled_mlp>("tiled_mlp")};

}  // namespace
