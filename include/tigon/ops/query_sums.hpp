// Sums over the keys of a block of queries: outputs of attention and gradients of queries.
#ifndef TIGON_OPS_QUERY_SUMS_HPP
#define TIGON_OPS_QUERY_SUMS_HPP

#include <tigon/gemm/chunk_sums.hpp>
#include <tigon/gemm/kernel.hpp>

#include <algorithm>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// alpha * of x, in A: of [rows, keys], x [keys, d]. One product where there are no more keys than B::attention.key_block.
/// Otherwise a product for every block of so many, added to a compensated total, so that the rounding error does not grow
/// with seq_len. The sums lie in `scratch`.
template <class B, class A, element T>
matrix_view<A> sum_over_keys(matrix_view<A> of, matrix_view<const T> x, double alpha, workspace::frame& scratch,
                             context& own) {
  using V = simd::vec<typename row_backend<B>::engine, A>;
  constexpr std::size_t most = B::attention.key_block;
  const std::size_t keys = of.cols, n = of.rows * x.cols;
  const matrix_view sums(scratch.take<A>(n), of.rows, x.cols);
  A* const total = keys > most ? scratch.take<A>(2 * n) : nullptr;
  for (std::size_t first = 0; first < keys; first += most) {
    const std::size_t some = std::min(most, keys - first);
    gemm<B>(of.cols_from(first, some), x.rows_from(first, some), sums, {.alpha = alpha}, own);
    if (total == nullptr) continue;
    if (first + some < keys)
      simd::add_to_total<V, simd::sums_after::same>(sums.data, total, total + n, n, first == 0);
    else
      simd::add_to_total<V, simd::sums_after::total>(sums.data, total, total + n, n);
  }
  return sums;
}

/// The workspace of as many products as there are blocks of keys: of the full ones, and of the last.
template <class B, class A, element T, element To>
std::size_t key_product_bytes(std::size_t rows, std::size_t d, std::size_t keys) {
  constexpr std::size_t most = B::attention.key_block;
  return std::max(gemm_workspace<B, A, T, To>(rows, d, std::min(keys, most)),
                  gemm_workspace<B, A, T, To>(rows, d, keys % most));
}
template <class B, class A, element T>
std::size_t sum_over_keys_bytes(std::size_t rows, std::size_t d, std::size_t keys) {
  return workspace::bytes_for<A>(rows, d) +
         (keys > B::attention.key_block ? workspace::bytes_for<A>(2, rows, d) : std::size_t{0}) +
         key_product_bytes<B, A, T, A>(rows, d, keys);
}

/// The same, rounded to T once. One product writes `to` where there is one block of keys.
template <class B, class A, element T>
void sum_over_keys_to(matrix_view<T> to, matrix_view<A> of, matrix_view<const T> x, double alpha, context& own) {
  if (of.cols <= B::attention.key_block) return gemm<B>(of, x, to, {.alpha = alpha}, own);
  workspace::frame scratch(own.workspace());
  const matrix_view<const A> sums = sum_over_keys<B, A, T>(of, x, alpha, scratch, own);
  round_sums<row_backend<B>, A>(to, sums, false, own);
}
template <class B, class A, element T>
std::size_t sum_over_keys_to_bytes(std::size_t rows, std::size_t d, std::size_t keys) {
  return keys > B::attention.key_block ? sum_over_keys_bytes<B, A, T>(rows, d, keys)
                                       : gemm_workspace<B, A, T, T>(rows, d, keys);
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_QUERY_SUMS_HPP
