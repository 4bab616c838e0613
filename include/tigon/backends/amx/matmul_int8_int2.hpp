// op::matmul_int8_int2 by tile registers, which multiply signed bytes: weights are unpacked to them. Packing is the
// parent's.
#ifndef TIGON_BACKENDS_AMX_MATMUL_INT8_INT2_HPP
#define TIGON_BACKENDS_AMX_MATMUL_INT8_INT2_HPP

#include <tigon/backends/amx/backend.hpp>
#include <tigon/gemm/int2_tiles.hpp>
#include <tigon/ops/matmul_int8_int2.hpp>

namespace tigon {

template <>
struct kernel<op::matmul_int8_int2, backends::amx> : kernel<op::matmul_int8_int2, backends::generic> {
  using tiles = int2::matmul_by_tiles<simd::tile_registers>;

  template <backend B>
  static std::size_t workspace_bytes(std::size_t m, std::size_t n, std::size_t packed_rows, std::size_t workers) {
    return tiles::workspace_bytes(m, n, packed_rows, workers);
  }
  template <backend B>
  static void forward(matrix_view<const std::int8_t> a, matrix_view<const std::uint8_t> packed,
                      matrix_view<std::int32_t> c, context& ctx) {
    tiles::forward(a, packed, c, ctx);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_AMX_MATMUL_INT8_INT2_HPP
