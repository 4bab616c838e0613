// Maps of whole matrices that operators with products need beside them: converted, added, cleared, and sums of columns.
#ifndef TIGON_ROWS_MATRICES_HPP
#define TIGON_ROWS_MATRICES_HPP

#include <tigon/rows/reduce_map.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// to = from, or to += from
struct sum_program {
  template <class V>
  TIGON_INLINE V map(V from) const {
    return from;
  }
  template <class V>
  TIGON_INLINE V map(V from, V to) const {
    return to + from;
  }
};

/// sum of a column += x
struct column_sum_program {
  template <class V>
  TIGON_INLINE V map(V x, V sum) const {
    return sum + x;
  }
};

/// to = from, in another type or the same.
template <class B, element To, class From>
void convert_matrix(matrix_view<From> from, matrix_view<To> to, context& ctx) {
  map_rows<B>(ctx, sum_program(), reads(from), writes(to));
}

/// to = from, or to += from; sums in A.
template <class B, class A, element To, element From>
void round_sums(matrix_view<To> to, matrix_view<const From> from, bool add, context& ctx) {
  if (add)
    map_rows<B>(ctx, sum_program(), reads(from, to), writes(to));
  else
    convert_matrix<B>(from, to, ctx);
}

/// to = 0.
template <class B, element T>
void clear_matrix(matrix_view<T> to, context& ctx) {
  map_rows<B>(ctx, sum_program(), reads(constant(accumulator_t<T>(0))), writes(to));
}

/// sums[j] = sum_i x[i,j], or added to that. Takes simd::partials_workspace<B, A>(rows, cols, 1) from the workspace.
template <class B, class X, element S>
void sum_columns(matrix_view<X> x, vector_view<S> sums, gradient mode, context& ctx) {
  map_rows<B>(ctx, column_sum_program(), reads(x), writes(), adds_to(parameter_gradient<S>{sums, mode}));
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_ROWS_MATRICES_HPP
