// The tag, options and operands of dyt.
#ifndef TIGON_OPS_NORM_DYT_OPTIONS_HPP
#define TIGON_OPS_NORM_DYT_OPTIONS_HPP

#include <tigon/backend/operator.hpp>

namespace tigon {

namespace op {
struct dyt {
  static constexpr std::string_view name = "dyt";
};
}  // namespace op

/// The contract is in ops/dyt.hpp.
struct dyt_options {
  gradient dparams = gradient::overwrite;
};

/// dyt_gradients{dx, dalpha, dgamma, dbeta}, or with the names of the fields; all but dx a range of elements or
/// `absent`.
template <class T, class DAlpha, class DGamma, class DBeta>
struct dyt_gradients {
  matrix_view<T> dx;
  DAlpha dalpha;
  DGamma dgamma;
  DBeta dbeta;
};
template <class T, class DAlpha, class DGamma, class DBeta>
dyt_gradients(matrix_view<T>, DAlpha&&, DGamma&&, DBeta&&) -> dyt_gradients<T, DAlpha, DGamma, DBeta>;

}  // namespace tigon

#endif  // TIGON_OPS_NORM_DYT_OPTIONS_HPP
