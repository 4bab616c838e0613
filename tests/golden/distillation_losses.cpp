// The losses of a student and a teacher, which share their products: compiled together, because each for itself would
// be those once more.
#include "adapters/fused_linear_distill_cosine.hpp"
#include "adapters/fused_linear_distill_jsd.hpp"
#include "adapters/fused_linear_jsd.hpp"
#include "add_adapter.hpp"

#include "../support/kernels.hpp"

namespace {

using namespace golden;
const bool added[] = {add_adapter<adapters::fused_linear_jsd>("fused_linear_jsd"),
                      add_adapter<adapters::fused_linear_distill_jsd>("fused_linear_distill_jsd"),
                      add_adapter<adapters::fused_linear_distill_cosine>("fused_linear_distill_cosine")};

}  // namespace
