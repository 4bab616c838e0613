// The tag and options of tvd.
#ifndef TIGON_LOSSES_DIVERGENCE_TVD_OPTIONS_HPP
#define TIGON_LOSSES_DIVERGENCE_TVD_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/losses/divergence/divergence_rows.hpp>

namespace tigon {

namespace op {
struct tvd {
  static constexpr std::string_view name = "tvd";
};
}  // namespace op

/// The contract is in losses/tvd.hpp.
struct tvd_options {
  divergence_reduction reduction = divergence_reduction::batchmean;
  std::int64_t ignore_index = -100;
  double denominator = 0;  ///< the n of a batch in several calls; 0: kept rows
};

}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_TVD_OPTIONS_HPP
