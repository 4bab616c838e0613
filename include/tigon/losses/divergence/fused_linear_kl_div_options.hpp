// The contract of a fused linear Kullback-Leibler divergence, and what its call and the rows of a chunk share.
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

/// kl_div of a teacher's probabilities that were made before, P = teacher or exp(teacher) with log_target, from those of
/// a linear layer, a chunk of rows at a time. With s = (x w^T + bias) / temperature, y = log softmax(s), Q = exp(y):
///
///   loss_ij = P (log max(P, eps) - y),   loss = c sum loss_ij
///   D_j     = c / temperature (Q_j sum_k g P_k - g P_j)        g: upstream of the loss, or of each element
///   dx = D w,   dw = D^T x,   db[j] = sum_i D[i,j]
///   c = 1 / n (batchmean), 1 / (n vocab) (mean), 1 (sum, none)            n = number of kept rows
///
/// Formula    docs/formulas/divergences.md. Rows of P need not sum to 1.
/// Shapes     x, dx [rows, hidden]; w, dw [vocab, hidden]; bias, dbias [vocab], or none; teacher [rows, vocab]; labels
///            [rows] or `absent`; loss and upstream [1], with reduction none [rows, vocab]. vocab >= 1; rows and hidden
///            may be 0.
/// Types      x, w, bias, their gradients and teacher of one type, f32, bf16, f16 or f64; loss and upstream f32 (f64 for
///            f64); labels std::int32_t or std::int64_t.
///            With linear_types x, dx and teacher have one, w and bias one, their gradients one (no f64), and each its
///            own error.
/// Precision  logits, D and the sums of dw and db over all chunks in f32 (f64 for f64), totals in f64; one rounding at
///            each output. A call of at most 8 rows in f32 is f64 throughout
///            (docs/formulas/fused_linear_cross_entropy.md, few rows).
/// Options    backward: as in forward.
/// Writes     loss, dx, dw, dbias; a gradient whose view has no memory is not computed. dw and dbias are added to with
///            gradient::accumulate. Labels are no indices: every value is legal.
/// Ignored    a row whose label is ignore_index is neither read, nor its teacher, nor its upstream gradients, nor
///            multiplied; its losses and dx are 0. The bits of a row's losses and dx do not depend on which other rows
///            count, where they stand and how many there are, unless a mean divides by their number. dw and dbias have the
///            same bits for the same rows in the same order, wherever ignored rows stand between them, in calls of as
///            many rows, both with dx or both without.
/// Aliasing   none: any layout in which no written element is shared.
/// Memory     chunk * vocab logits in f32, by default at most 64 MiB (B::chunk), D over them; for 16-bit w also an f32
///            dw; see fused_linear_kl_div_workspace. w may come packed (linear_layer). A call of at most 8 rows in f32 has
///            these numbers in f64, of all rows at a time.
/// Threads    the same bits for any number of them.
/// Throws     tigon::error: shape, stride, alias, argument (a number outside option_range), workspace; before the first
///            write.
/// Edges      no kept row: loss 0, gradients 0. P = 0 adds 0, also where a logit is -inf; P > 0 there makes the loss inf
///            and leaves D finite. NaN or +inf in a row of logits: that row is NaN. P < 0 or NaN: the loss is NaN.
///            exp(teacher) below the smallest normal f32 (f64) counts as 0. A D below that number is taken as 0.
/// Max error  loss 4e-7 of sum P (|log P| + |y|), c times that over all elements, where sums are f32, in bf16 too; with
///            reduction none 1e-6, and gradients f32 1e-5, bf16 8e-3, of |reference| + its root mean square;
///            of at most 8 rows of f32 loss and gradients within 2.4e-7 of their L2 norms
///            (tests/losses/fused_linear_kl_div_test.cpp).
struct fused_linear_kl_div_options {
  divergence_reduction reduction = divergence_reduction::batchmean;
  bool log_target = false;  ///< teacher holds log-probabilities
  double eps = 0;           ///< log P is taken of no less than this, without log_target; 0: of every P, 0 log 0 = 0
  double temperature = 1;   ///< of the layer's logits, from 1e-30 to 1e30; P is taken as it comes
  std::int64_t ignore_index = -100;
  double denominator = 0;  ///< what stands for n, for a batch in several calls; 0: kept rows
  double upstream = 1;     ///< gradients of forward are those of the loss times this
};

namespace detail {
inline namespace TIGON_ABI {

/// What a call reads and writes; views without memory stand for what is absent.
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
