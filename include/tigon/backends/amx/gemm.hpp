// op::gemm of two bf16 matrices by tile registers. Every other combination of types is the parent's.
#ifndef TIGON_BACKENDS_AMX_GEMM_HPP
#define TIGON_BACKENDS_AMX_GEMM_HPP

#include <tigon/backends/amx/backend.hpp>
#include <tigon/gemm/tile_panels.hpp>

namespace tigon {

template <>
struct kernel<op::gemm, backends::amx> : packed::gemm_by_tiles<simd::tile_registers, backends::avx512_bf16> {};

}  // namespace tigon

#endif  // TIGON_BACKENDS_AMX_GEMM_HPP
