// One operator on every backend. Compiled once an operator, with its name in TIGON_GOLDEN_OP.
#include "add_adapter.hpp"

// Spaces, which clang-format would insert, become part of the path.
// clang-format off
#define TIGON_GOLDEN_PATH_(op) adapters/op.hpp
// clang-format on
#define TIGON_GOLDEN_PATH(op) TIGON_GOLDEN_PATH_(op)
#include TIGON_STRING(TIGON_GOLDEN_PATH(TIGON_GOLDEN_OP))

#include "../support/kernels.hpp"

namespace {

const bool added = golden::add_adapter<golden::adapters::TIGON_GOLDEN_OP>(TIGON_STRING(TIGON_GOLDEN_OP));

}  // namespace
