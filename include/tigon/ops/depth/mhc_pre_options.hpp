// The tag, options and operands of mhc_pre.
#ifndef TIGON_OPS_DEPTH_MHC_PRE_OPTIONS_HPP
#define TIGON_OPS_DEPTH_MHC_PRE_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/core/views.hpp>

namespace tigon {

namespace op {
struct mhc_pre {
  static constexpr std::string_view name = "mhc_pre";
};
}  // namespace op

/// The contract is in ops/mhc_pre.hpp.
struct mhc_pre_options {
  gradient dx = gradient::overwrite;
};

/// mhc_pre_gradients{dx, dh_pre}, or with the names of the fields. Either may be an empty view.
template <class T>
struct mhc_pre_gradients {
  matrix_view<T> dx;
  matrix_view<accumulator_t<T>> dh_pre;
};

}  // namespace tigon

#endif  // TIGON_OPS_DEPTH_MHC_PRE_OPTIONS_HPP
