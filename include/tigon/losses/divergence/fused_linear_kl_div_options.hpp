// The tag and options of fused_linear_kl_div.
#ifndef TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_KL_DIV_OPTIONS_HPP
#define TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_KL_DIV_OPTIONS_HPP

#include <tigon/losses/divergence/divergence_rows.hpp>
#include <tigon/losses/linear/few_rows_linear.hpp>

namespace tigon {

namespace op {
struct fused_linear_kl_div {
  static constexpr std::string_view name = "fused_linear_kl_div";
};
}  // namespace op

/// The contract is in losses/fused_linear_kl_div.hpp.
struct fused_linear_kl_div_options {
  divergence_reduction reduction = divergence_reduction::batchmean;
  bool log_target = false;  ///< teacher holds log-probabilities
  double eps = 0;           ///< log P is taken of no less than this, without log_target; 0: of every P, 0 log 0 = 0
  double temperature = 1;   ///< of the layer's logits, from 1e-30 to 1e30; P is taken as it comes
  std::int64_t ignore_index = -100;
  double denominator = 0;  ///< the n of a batch in several calls; 0: kept rows
  double upstream = 1;     ///< gradients of forward are those of the loss times this
};

namespace detail {
inline namespace TIGON_ABI {
/// What a call reads and writes; a view without memory is an absent argument.
template <layer_types T>
struct linear_kl_div {
  using A = accumulator_t<input_t<T>>;
  linear_layer<T> head;
  linear_gradients<T> out;
  matrix_view<const input_t<T>> teacher;
  matrix_view<A> elements;        ///< losses of elements
  matrix_view<const A> upstream;  ///< of elements; without memory: 1
  chosen_rows kept{};             ///< rows that count
};

/// What the rows of a chunk share.
template <class A>
struct kl_div_rows {
  double* loss;
  const std::size_t* row;  ///< in the matrices of the call, from that of the chunk's first on; null: those of the chunk
  A lowest;                ///< of P in its logarithm
  A inverse;               ///< 1 / temperature
  A factor;                ///< of D
  bool gradient;
};
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_KL_DIV_OPTIONS_HPP
