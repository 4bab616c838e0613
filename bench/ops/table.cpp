#include "ops/table.hpp"

namespace tigon_bench {

// Made by the build: TIGON_BENCH_OP(NAME), a line a file.
#define TIGON_BENCH_OP(name) op_entry name();
#include "tigon_bench_ops.inc"
#undef TIGON_BENCH_OP

const std::vector<op_entry>& ops() {
#define TIGON_BENCH_OP(name) name(),
  static const std::vector<op_entry> all{
#include "tigon_bench_ops.inc"
  };
#undef TIGON_BENCH_OP
  return all;
}

}  // namespace tigon_bench
