// The tag, options and operands of cross_entropy_divergence.
#ifndef TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_DIVERGENCE_OPTIONS_HPP
#define TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_DIVERGENCE_OPTIONS_HPP

#include <tigon/losses/softmax/cross_entropy_options.hpp>

namespace tigon {

namespace op {
struct cross_entropy_tvd {
  static constexpr std::string_view name = "cross_entropy_tvd";
};
struct cross_entropy_jsd {
  static constexpr std::string_view name = "cross_entropy_jsd";
};
}  // namespace op

/// The contract is in losses/cross_entropy_divergence.hpp.
struct cross_entropy_divergence_options {
  std::int64_t ignore_index = -100;
  tigon::reduction reduction = tigon::reduction::mean;
  double label_smoothing = 0;    ///< of ce, in [0, 1]
  double lse_square_scale = 0;   ///< of ce, weight of the z-loss, at least 0
  double weight_ce = 1;          ///< of ce in the loss
  double weight_divergence = 1;  ///< of the divergence in the loss
  double temperature = 1;        ///< of Q, from 1e-30 to 1e30; ce is of the logits as they come
  double beta = 0.5;             ///< of jsd, in [0, 1]
  double denominator = 0;  ///< what mean divides by instead of its counts, for a batch in several calls; 0: counts
  double upstream = 1;     ///< dlogits is that of the loss times this
};

/// A span without memory is not written; ce and divergence are without their weights.
template <class A>
struct cross_entropy_divergence_losses {
  std::span<A> loss{}, ce{}, divergence{};
};

namespace detail {
inline namespace TIGON_ABI {
/// What the public functions are called with.
template <element T>
struct cross_entropy_divergence_arguments {
  std::string_view name, teacher_name;
  matrix_view<const T> logits, teacher;
  cross_entropy_divergence_losses<accumulator_t<T>> losses;
  matrix_view<T> dlogits;
  const cross_entropy_divergence_options& opt;
};
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_DIVERGENCE_OPTIONS_HPP
