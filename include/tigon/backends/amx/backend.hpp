// Child of avx512_bf16 for CPUs with tile registers (Intel AMX): products of two bf16 matrices, and of 8-bit numbers
// with weights of two bits. The default where the flags have the instructions.
//
// Which CPU it runs on is known at run time alone: the first product of a process asks Linux to permit the registers,
// and throws tigon::error, code `state`, with what is missing where the CPU or the system has none.
#ifndef TIGON_BACKENDS_AMX_BACKEND_HPP
#define TIGON_BACKENDS_AMX_BACKEND_HPP

#include <tigon/config.hpp>

#if !TIGON_FLAGS_tiles
#error \
    "tigon: backend amx needs a CPU with AMX_TILE, AMX_BF16 and AMX_INT8; compile with -march=sapphirerapids and later"
#include <the_error_above_ends_compilation>
#endif

#include <tigon/backends/avx512_bf16/backend.hpp>

namespace tigon::op {
struct matmul_int8_int2;
}

namespace tigon::backends {
inline namespace TIGON_ABI {

struct amx : avx512_bf16 {
  using self = amx;
  using parent = avx512_bf16;
  static constexpr backend_info info{"amx", {device::cpu}, {device::cpu}};
  using overrides = op_list<op::gemm, op::matmul_int8_int2>;

  // Each chunk reads all of w; with few rows of logits the tile registers wait for it.
  static constexpr chunk_tuning chunk{.least_rows = 1024};
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

// Everything it overrides:
#include <tigon/backends/amx/gemm.hpp>
#include <tigon/backends/amx/matmul_int8_int2.hpp>

#endif  // TIGON_BACKENDS_AMX_BACKEND_HPP
