// The table of one instruction set. Nothing here names one.
#include <tigon/backend/default.hpp>

#include "groups.hpp"

extern "C" const tigon_torch::kernel_table* TIGON_MULTI_ARCH_ENTRY() {
  using namespace tigon_torch;
  static const kernel_table table{TIGON_STRING(TIGON_TARGET), norms(),  gates(),       rotary(), attention_group(),
                                  cross_entropies(),          losses(), preferences(), experts()};
  return &table;
}
