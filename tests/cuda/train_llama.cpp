// train_llama for backend cuda on the model of a GPU: the program as nvcc compiles it, whose losses are those of the
// CPU's.
#include "model.hpp"
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/attention.hpp>

#include "../../support/operators_f32.cpp"
//
#include "../../support/operators_bf16.cpp"
//
#include "../../examples/train_llama/operators_f32.cpp"
//
#include "../../examples/train_llama/operators_bf16.cpp"
//
#include "../../support/ranks.cpp"

template class example::timed_operators<bfloat16, bfloat16>;
template class example::operators<bfloat16, bfloat16>;
namespace example {
EXAMPLE_PRODUCT_OF(bfloat16, bfloat16, bfloat16, bfloat16, float);
}
#include "../../examples/train_llama/main.cpp"
