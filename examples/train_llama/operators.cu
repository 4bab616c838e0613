// Operators of train_llama for a GPU: what operators_f32.cpp and operators_bf16.cpp have for the host, and those of a
// state in bf16.
#include <tigon/backends/cuda/attention.hpp>

// Behind it: it says how these are compiled.
#include "../../support/operators_bf16.cpp"
#include "../../support/operators_f32.cpp"
#include "operators_bf16.cpp"
#include "operators_f32.cpp"

template class example::timed_operators<bfloat16, bfloat16>;
template class example::operators<bfloat16, bfloat16>;
namespace example {
EXAMPLE_PRODUCT_OF(bfloat16, bfloat16, bfloat16, bfloat16, float);
}
