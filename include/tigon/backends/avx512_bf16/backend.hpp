// Child of highway for CPUs with the bf16 dot instruction: products of bf16 operands, nothing else. The default where
// the flags have the instruction.
#ifndef TIGON_BACKENDS_AVX512_BF16_BACKEND_HPP
#define TIGON_BACKENDS_AVX512_BF16_BACKEND_HPP

#if !defined(__AVX512BF16__)
#error \
    "tigon: backend avx512_bf16 needs a CPU with AVX512_BF16; compile with -mavx512bf16 or -march=cooperlake and later"
#include <the_error_above_ends_compilation>
#endif

#include <tigon/backends/highway/backend.hpp>

namespace tigon::backends {
inline namespace TIGON_ABI {

struct avx512_bf16 : highway {
  using self = avx512_bf16;
  using parent = highway;
  static constexpr backend_info info{"avx512_bf16", {device::cpu}, {device::cpu}};
  using overrides = op_list<op::gemm>;
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

// Everything it overrides:
#include <tigon/backends/avx512_bf16/gemm.hpp>

#endif  // TIGON_BACKENDS_AVX512_BF16_BACKEND_HPP
