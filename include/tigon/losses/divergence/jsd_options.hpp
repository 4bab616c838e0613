// The tag and options of jsd.
#ifndef TIGON_LOSSES_DIVERGENCE_JSD_OPTIONS_HPP
#define TIGON_LOSSES_DIVERGENCE_JSD_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/losses/divergence/divergence_rows.hpp>

namespace tigon {

namespace op {
struct jsd {
  static constexpr std::string_view name = "jsd";
};
}  // namespace op

/// The contract is in losses/jsd.hpp.
struct jsd_options {
  double beta = 0.5;  ///< weight of the teacher, in [0, 1]
  std::int64_t ignore_index = -100;
  double denominator = 0;  ///< what the loss divides by instead of n, for a batch in several calls; 0: n
};

}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_JSD_OPTIONS_HPP
