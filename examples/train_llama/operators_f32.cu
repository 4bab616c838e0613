// Operators of train_llama for a GPU: what operators_f32.cpp has for the host.
#include <tigon/backends/cuda/attention.hpp>

// Behind it: it says how these are compiled.
#include "../../support/operators_f32.cpp"
#include "operators_f32.cpp"
