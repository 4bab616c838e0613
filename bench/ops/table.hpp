// What a file of this folder offers: ops/NAME.cpp defines
//
//   op_entry NAME();
//
// in tigon_bench, and nothing else has to know of it: the build lists the files (bench/CMakeLists.txt).
#ifndef TIGON_BENCH_OPS_TABLE_HPP
#define TIGON_BENCH_OPS_TABLE_HPP

#include "support/registry.hpp"

#endif  // TIGON_BENCH_OPS_TABLE_HPP
