// The tag, options and operands of modulated_rms_norm.
#ifndef TIGON_OPS_NORM_MODULATED_RMS_NORM_OPTIONS_HPP
#define TIGON_OPS_NORM_MODULATED_RMS_NORM_OPTIONS_HPP

#include <tigon/ops/norm/rms_norm_kernel.hpp>

namespace tigon {

namespace op {
struct modulated_rms_norm {
  static constexpr std::string_view name = "modulated_rms_norm";
};
}  // namespace op

/// The contract is in ops/modulated_rms_norm.hpp.
struct modulated_rms_norm_options {
  double eps = 1e-6;           ///< inside the square root
  double offset = 0;           ///< added to w
  std::size_t group_rows = 0;  ///< rows in succession that share a row of scale: the length of a sequence, for example
  tigon::casting casting = casting::llama;
  gradient dw = gradient::overwrite;
  gradient dscale = gradient::overwrite;  ///< and dshift
};

/// modulated_rms_norm_gradients{dx, dw, dscale, dshift}, or with the names of the fields. dw is a range of elements or
/// `absent`; dshift may be left out.
template <class T, class DW, class S>
struct modulated_rms_norm_gradients {
  matrix_view<T> dx;
  DW dw;
  matrix_view<S> dscale, dshift = {};
};
template <class T, class DW, class S>
modulated_rms_norm_gradients(matrix_view<T>, DW&&, matrix_view<S>) -> modulated_rms_norm_gradients<T, DW, S>;
template <class T, class DW, class S>
modulated_rms_norm_gradients(matrix_view<T>, DW&&, matrix_view<S>, std::type_identity_t<matrix_view<S>>)
    -> modulated_rms_norm_gradients<T, DW, S>;

}  // namespace tigon

#endif  // TIGON_OPS_NORM_MODULATED_RMS_NORM_OPTIONS_HPP
