// The product of 8-bit numbers with weights of two bits: packing, unpacking and the product.
#ifndef TIGON_OPS_MATMUL_INT8_INT2_HPP
#define TIGON_OPS_MATMUL_INT8_INT2_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/matmul/matmul_int8_int2_kernel.hpp>

namespace tigon {

inline namespace TIGON_ABI {
/// Rows of packed weights for a depth of k.
constexpr std::size_t matmul_int8_int2_packed_rows(std::size_t k) { return detail::ceil_div(k, 4); }
}  // namespace TIGON_ABI

/// Bytes of workspace that matmul_int8_int2 takes on `workers` workers: ctx.executor().workers().
template <class B = default_backend>
std::size_t matmul_int8_int2_workspace(std::size_t m, std::size_t n, std::size_t packed_rows, std::size_t workers = 1) {
  return kernel_for<op::matmul_int8_int2, B>::template workspace_bytes<B>(m, n, packed_rows, workers);
}

/// The product of 8-bit numbers with weights that are -1, 0, 1 or 2, packed four to a byte.
///
///   c[i,j] = sum_p a[i,p] w[p,j]
///   packed[r,j] = sum_s (w[s q + r, j] + 1) 4^s     s = 0..3,  q = ceil(k / 4);  rows of w beyond k are 0, code 1
///   w[s q + r, j] = (packed[r,j] >> 2 s) % 4 - 1
///
/// Formula    docs/formulas/matmul_int8_int2.md; Ma et al., "The Era of 1-bit LLMs", 2024.
/// Shapes     w [k, n]; packed [q, n]; a [m, 4 q]; c [m, n]. Every extent may be 0: with k = 0 the sum is 0. A depth
///            that is no multiple of 4 is padded by pack, with weights of 0, and not by the product: a has a column for
///            every row of weights, and what it holds beyond k does not matter. unpack writes the first w.rows of the 4
///            q rows; there, too, q = ceil(w.rows / 4).
/// Types      a, w int8; packed uint8; c int32.
/// Precision  exact. 4 q < 2^23, so that no sum leaves int32.
/// Writes     c; packed; w. Inputs are left alone. Scratch: rows of a in another order, 4 MiB of them at a time or 8
///            rows, and one block of weights for each worker.
/// Aliasing   no output shares an element with another argument; any layout, any row stride.
/// Threads    the same result for any number of them.
/// Throws     tigon::error: shape (also of a depth of 2^23 and more), stride, alias, argument (pack: a weight outside
///            -1..2, where TIGON_CHECKS is not 0), state (on `amx`, no tile registers), workspace; before the first
///            write.
/// Max error  none (tests/ops/matmul_int8_int2_test.cpp). No gradient.
///
/// ```cpp
/// std::vector<std::int8_t> a(2 * 8, 3), w(8 * 5, -1);
/// std::vector<std::uint8_t> bytes(2 * 5);
/// std::vector<std::int32_t> c(2 * 5);
/// const tigon::matrix_view packed(bytes.data(), tigon::matmul_int8_int2_packed_rows(8), 5);
/// tigon::matmul_int8_int2_pack(tigon::matrix_view<const std::int8_t>(w.data(), 8, 5), packed);
/// tigon::matmul_int8_int2({a.data(), 2, 8}, packed, {c.data(), 2, 5});
/// ```
template <class B = default_backend>
void matmul_int8_int2(matrix_view<const std::int8_t> a, matrix_view<const std::uint8_t> packed,
                      matrix_view<std::int32_t> c, context& ctx = default_context<B>()) {
  arguments args("matmul_int8_int2");
  args.in("packed", packed);
  args.that(packed.rows < int2::most_depth / 4, error_code::shape, "packed", "of 2^21 rows or more",
            "fewer: sums of 2^23 terms leave int32");
  args.in("a", a, c.rows, 4 * packed.rows);
  args.out("c", c, a.rows, packed.cols);
  args.check();
  ctx.workspace().expect("matmul_int8_int2",
                         matmul_int8_int2_workspace<B>(c.rows, c.cols, packed.rows, ctx.executor().workers()));
  kernel_for<op::matmul_int8_int2, B>::template forward<B>(a, packed, c, ctx);
}

/// Packs w. See matmul_int8_int2 for the contract.
template <class B = default_backend>
void matmul_int8_int2_pack(matrix_view<const std::int8_t> w, matrix_view<std::uint8_t> packed,
                           context& ctx = default_context<B>()) {
  arguments args("matmul_int8_int2_pack");
  args.in("w", w);
  args.out("packed", packed, matmul_int8_int2_packed_rows(w.rows), w.cols);
  args.check();
#if TIGON_CHECKS
  args.that(int2::are_weights<kernel_for<op::matmul_int8_int2, B>::template lanes<B>>(w), error_code::argument, "w",
            "outside of two bits", "-1, 0, 1 or 2");
#endif
  kernel_for<op::matmul_int8_int2, B>::template pack<B>(w, packed, ctx);
}

/// w from what pack made of it. See matmul_int8_int2 for the contract.
template <class B = default_backend>
void matmul_int8_int2_unpack(matrix_view<const std::uint8_t> packed, matrix_view<std::int8_t> w,
                             context& ctx = default_context<B>()) {
  arguments args("matmul_int8_int2_unpack");
  args.in("packed", packed, matmul_int8_int2_packed_rows(w.rows), w.cols);
  args.out("w", w);
  args.check();
  kernel_for<op::matmul_int8_int2, B>::template unpack<B>(packed, w, ctx);
}

TIGON_EXPLAINS_RANGES(matmul_int8_int2)
TIGON_EXPLAINS_RANGES(matmul_int8_int2_pack)
TIGON_EXPLAINS_RANGES(matmul_int8_int2_unpack)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_MATMUL_INT8_INT2_HPP
