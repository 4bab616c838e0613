// The tag and options of poly_norm.
#ifndef TIGON_OPS_NORM_POLY_NORM_OPTIONS_HPP
#define TIGON_OPS_NORM_POLY_NORM_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/norm/norm_gradients.hpp>
#include <tigon/rows/row.hpp>

namespace tigon {

namespace op {
struct poly_norm {
  static constexpr std::string_view name = "poly_norm";
};
}  // namespace op

/// The contract is in ops/poly_norm.hpp.
struct poly_norm_options {
  double eps = 1e-6;  ///< inside the square roots
  gradient dparams = gradient::overwrite;
};

}  // namespace tigon

#endif  // TIGON_OPS_NORM_POLY_NORM_OPTIONS_HPP
