// The tag, options and operands of mhc_post_res.
#ifndef TIGON_OPS_DEPTH_MHC_POST_RES_OPTIONS_HPP
#define TIGON_OPS_DEPTH_MHC_POST_RES_OPTIONS_HPP

#include <tigon/backend/operator.hpp>

namespace tigon {

namespace op {
struct mhc_post_res {
  static constexpr std::string_view name = "mhc_post_res";
};
}  // namespace op

/// The contract is in ops/mhc_post_res.hpp.
struct mhc_post_res_options {
  gradient dx = gradient::overwrite;
};

/// mhc_post_res_gradients{dx, df, dh_post, dh_res}, or with the names of the fields. Each may be an empty view.
template <class T>
struct mhc_post_res_gradients {
  matrix_view<T> dx, df;
  matrix_view<accumulator_t<T>> dh_post, dh_res;
};

}  // namespace tigon

#endif  // TIGON_OPS_DEPTH_MHC_POST_RES_OPTIONS_HPP
