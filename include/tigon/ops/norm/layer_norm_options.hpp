// The tag and options of layer_norm.
#ifndef TIGON_OPS_NORM_LAYER_NORM_OPTIONS_HPP
#define TIGON_OPS_NORM_LAYER_NORM_OPTIONS_HPP

#include <tigon/backend/operator.hpp>

namespace tigon {

namespace op {
struct layer_norm {
  static constexpr std::string_view name = "layer_norm";
};
}  // namespace op

/// The contract is in ops/layer_norm.hpp.
struct layer_norm_options {
  double eps = 1e-6;  ///< inside the square root
  gradient dparams = gradient::overwrite;
};

}  // namespace tigon

#endif  // TIGON_OPS_NORM_LAYER_NORM_OPTIONS_HPP
