// Where the backward of a norm with weight and bias writes: layer_norm, group_norm, poly_norm.
#ifndef TIGON_OPS_NORM_NORM_GRADIENTS_HPP
#define TIGON_OPS_NORM_NORM_GRADIENTS_HPP

#include <tigon/backend/operator.hpp>

namespace tigon {

/// norm_gradients{dx, dw, db}, or with the names of the fields. dw and db are ranges of elements, or `absent`.
template <class T, class DW, class DB>
struct norm_gradients {
  matrix_view<T> dx;
  DW dw;
  DB db;
};
template <class T, class DW, class DB>
norm_gradients(matrix_view<T>, DW&&, DB&&) -> norm_gradients<T, DW, DB>;

namespace detail {
inline namespace TIGON_ABI {
/// Of gradients as views.
template <class T, class DW, class DB>
constexpr parameters trained(const norm_gradients<T, vector_view<DW>, vector_view<DB>>& to) {
  return trained_if(to.dw.data != nullptr || to.db.data != nullptr);
}

/// Weight and gradients as views, of the element type that the ranges share.
template <class T, class P>
struct norm_views {
  in_vector<P> weight;
  norm_gradients<T, vector_view<P>, vector_view<P>> to;
};
template <class T, class W, class DW, class DB>
norm_views<T, parameter_element_t<T, W, DW, DB>> views_of_norm(const W& w, const norm_gradients<T, DW, DB>& gradients) {
  using P = parameter_element_t<T, W, DW, DB>;
  const auto weight = as_in_vector<P>(w);
  const norm_gradients to{gradients.dx, as_out_vector<P>(gradients.dw), as_out_vector<P>(gradients.db)};
  static_assert(admits_parameter<T, decltype(weight), decltype(to.dw), decltype(to.db)>());
  return {weight, to};
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_NORM_NORM_GRADIENTS_HPP
