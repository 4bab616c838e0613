// The table of one instruction set. Nothing here names one.
#include <tigon/backend/default.hpp>

#include "groups.hpp"

extern "C" const tigon_torch::kernel_table* TIGON_MULTI_ARCH_ENTRY() {
  static const tigon_torch::kernel_table table{TIGON_STRING(TIGON_TARGET), tigon_torch::norms(), tigon_torch::gates(),
                                               tigon_torch::rotary()};
  return &table;
}
