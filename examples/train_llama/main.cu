// train_llama on a GPU.
#include <tigon/backends/cuda/backend.hpp>

// Behind it: it says how these are compiled.
#include "../../support/ranks.cpp"
#include "main.cpp"
