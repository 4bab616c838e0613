// The generic kernel of matmul_int8_int2.
#ifndef TIGON_OPS_MATMUL_MATMUL_INT8_INT2_KERNEL_HPP
#define TIGON_OPS_MATMUL_MATMUL_INT8_INT2_KERNEL_HPP

#include <tigon/gemm/int2.hpp>
#include <tigon/gemm/int2_rows.hpp>
#include <tigon/ops/matmul/matmul_int8_int2_options.hpp>

namespace tigon {

template <>
struct kernel<op::matmul_int8_int2, backends::generic> {
  using forward_only = void;

  template <class B>
  static constexpr std::size_t lanes = simd::vec<typename B::engine, float>::size;

  template <backend B>
  static std::size_t workspace_bytes(std::size_t m, std::size_t n, std::size_t packed_rows, std::size_t workers) {
    return int2::plan<lanes<B>>(m, n, packed_rows).workspace_bytes(workers);
  }
  template <backend B>
  static void forward(matrix_view<const std::int8_t> a, matrix_view<const std::uint8_t> packed,
                      matrix_view<std::int32_t> c, context& ctx) {
    const int2::plan<lanes<B>> plan(c.rows, c.cols, packed.rows);
    int2::product<lanes<B>>(plan, a, packed, c).template run<B>(ctx);
  }
  template <backend B>
  static void pack(matrix_view<const std::int8_t> w, matrix_view<std::uint8_t> packed, context& ctx) {
    int2::for_rows_of_weights<B>(packed.rows, packed.cols, ctx,
                                 [&](std::size_t r) { int2::pack_row<lanes<B>>(w, r, packed.rows, packed.row(r)); });
  }
  template <backend B>
  static void unpack(matrix_view<const std::uint8_t> packed, matrix_view<std::int8_t> w, context& ctx) {
    int2::for_rows_of_weights<B>(w.rows, w.cols, ctx, [&](std::size_t p) {
      int2::unpack_row<lanes<B>>(packed.row(p % packed.rows), w.cols, p / packed.rows, w.row(p));
    });
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_MATMUL_MATMUL_INT8_INT2_KERNEL_HPP
