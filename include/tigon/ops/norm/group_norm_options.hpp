// The tag and options of group_norm.
#ifndef TIGON_OPS_NORM_GROUP_NORM_OPTIONS_HPP
#define TIGON_OPS_NORM_GROUP_NORM_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/norm/norm_gradients.hpp>
#include <tigon/rows/row.hpp>

namespace tigon {

namespace op {
struct group_norm {
  static constexpr std::string_view name = "group_norm";
};
}  // namespace op

/// The contract is in ops/group_norm.hpp.
struct group_norm_options {
  std::size_t groups = 1;    ///< into which the channels of a sample are cut, in succession; divides channels
  std::size_t channels = 0;  ///< of a sample; 0: as many as w or b (dw or db) has
  double eps = 1e-6;         ///< inside the square root
  gradient dparams = gradient::overwrite;
};

}  // namespace tigon

#endif  // TIGON_OPS_NORM_GROUP_NORM_OPTIONS_HPP
