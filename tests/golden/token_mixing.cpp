// Multi-token attention, dense and sparse: one adapter for the cases of both; and the sparsemax inside.
#include "adapters/multi_token_attention.hpp"
#include "adapters/sparse_multi_token_attention.hpp"
#include "adapters/sparsemax.hpp"
#include "add_adapter.hpp"

#include "../support/kernels.hpp"

namespace {

using namespace golden;
const bool added[] = {add_adapter<adapters::multi_token_attention>("multi_token_attention"),
                      add_adapter<adapters::sparse_multi_token_attention>("sparse_multi_token_attention"),
                      add_adapter<adapters::sparsemax>("sparsemax")};

}  // namespace
