// The tag, options and operands of fused_add_rms_norm.
#ifndef TIGON_OPS_NORM_FUSED_ADD_RMS_NORM_OPTIONS_HPP
#define TIGON_OPS_NORM_FUSED_ADD_RMS_NORM_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/norm/rms_norm_options.hpp>

namespace tigon {

namespace op {
struct fused_add_rms_norm {
  static constexpr std::string_view name = "fused_add_rms_norm";
};
}  // namespace op

/// The contract is in ops/fused_add_rms_norm.hpp.
using fused_add_rms_norm_options = rms_norm_options;

/// fused_add_rms_norm_gradients{dx, dw, dr}, or with the names of the fields. dw is a range of elements or `absent`; dr
/// may be left out.
template <class T, class DW>
struct fused_add_rms_norm_gradients {
  matrix_view<T> dx;
  DW dw;
  matrix_view<T> dr = {};
};
template <class T, class DW>
fused_add_rms_norm_gradients(matrix_view<T>, DW&&) -> fused_add_rms_norm_gradients<T, DW>;
template <class T, class DW>
fused_add_rms_norm_gradients(matrix_view<T>, DW&&, std::type_identity_t<matrix_view<T>>)
    -> fused_add_rms_norm_gradients<T, DW>;

}  // namespace tigon

#endif  // TIGON_OPS_NORM_FUSED_ADD_RMS_NORM_OPTIONS_HPP
