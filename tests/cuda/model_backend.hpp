// Backend cuda on the model of a GPU, as a backend for the conformance suite and golden cases.
#ifndef TIGON_TESTS_CUDA_MODEL_BACKEND_HPP
#define TIGON_TESTS_CUDA_MODEL_BACKEND_HPP

#include "model.hpp"
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/backend.hpp>

#endif  // TIGON_TESTS_CUDA_MODEL_BACKEND_HPP
