// The tag and options of rms_norm.
#ifndef TIGON_OPS_NORM_RMS_NORM_OPTIONS_HPP
#define TIGON_OPS_NORM_RMS_NORM_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/norm/rms_norm_program.hpp>

namespace tigon {

namespace op {
struct rms_norm {
  static constexpr std::string_view name = "rms_norm";
};
}  // namespace op

/// The contract is in ops/rms_norm.hpp.
struct rms_norm_options {
  double eps = 1e-6;  ///< inside the square root
  double offset = 0;  ///< added to w; 1 for checkpoints that store w - 1
  tigon::casting casting = casting::llama;
  gradient dw = gradient::overwrite;
};

}  // namespace tigon

#endif  // TIGON_OPS_NORM_RMS_NORM_OPTIONS_HPP
