// The contract of the pointwise Kullback-Leibler divergence.
#ifndef TIGON_LOSSES_DIVERGENCE_KL_DIV_OPTIONS_HPP
#define TIGON_LOSSES_DIVERGENCE_KL_DIV_OPTIONS_HPP

#include <tigon/losses/divergence/divergence_rows.hpp>

namespace tigon {

namespace op {
struct kl_div {
  static constexpr std::string_view name = "kl_div";
};
}  // namespace op

/// Divergence of the teacher P from the student, y = student_log_probs:
///
///   loss_ij  = P (log max(P, eps) - y),   P = teacher, or exp(teacher) with log_target
///   loss     = c sum loss_ij,   dstudent = -c g P          c = 1 / n (batchmean), 1 / (n vocab) (mean), 1 (sum, none)
///   dteacher = c g (log max(P, eps) - y + [P > eps]),   c g P (teacher - y + 1) with log_target
///
/// Formula    docs/formulas/divergences.md. log P - y is made in one piece, without the rounding of log P.
/// Shapes     student_log_probs, teacher, dstudent, dteacher [rows, vocab]; loss and upstream [1], with reduction none
///            [rows, vocab]. n = rows. vocab >= 1, rows may be 0.
/// Types      one of f32, bf16, f16, f64 for all; loss and upstream f32 (f64 for f64).
/// Precision  f32 (f64 for f64) inside; totals in f64; one rounding at dstudent and dteacher.
/// Options    backward: as in forward.
/// Writes     loss, dstudent; dteacher, by kl_div_teacher_backward alone. forward makes dstudent for g = 1 in the same
///            pass, unless its data is null.
/// Aliasing   dstudent may be student_log_probs (forward) or teacher, dteacher either, which is then gone. Otherwise
///            any layout in which no written element is shared.
/// Throws     tigon::error: shape, stride, alias, argument (a number outside option_range), workspace; before the first
///            write.
/// Edges      no rows: loss 0. P = 0 adds 0, also where y is -inf; P > 0 there makes the loss inf and leaves the
///            gradient finite. NaN in y or P < 0: the loss of the element; NaN in teacher: its gradient too.
///            exp(teacher) below the smallest normal f32 (f64) counts as 0. dteacher is 0 where P is, though its limit
///            without log_target is -inf (with eps it is log eps - y, unless y is -inf); inf where P > 0 alone.
/// Max error  loss 1e-6 of c P (|log P| + |y|), whose two terms cancel where log P is near y, summed over all elements or,
///            with reduction none, of one, where sums are f32; dstudent f32 8e-7, bf16 4e-3, of |reference| + its root
///            mean square (tests/losses/kl_div_test.cpp).
///            dteacher the same of the sum of its terms' absolute values, which cancel at log P near y - 1:
///            c |g| (|log max(P, eps) - y| + 1), c |g| P (|teacher - y| + 1) with log_target (tests/fuzz/losses.cpp).
struct kl_div_options {
  divergence_reduction reduction = divergence_reduction::batchmean;
  bool log_target = false;  ///< teacher holds log-probabilities
  double eps = 0;           ///< log P is taken of no less than this, without log_target; 0: of every P, 0 log 0 = 0
  double denominator = 0;   ///< what stands for n, for a batch in several calls; 0: rows
};

namespace detail {
inline namespace TIGON_ABI {

/// The gradient of the loss as a backward pass takes it: one for each element, or without memory and one for all.
template <class A>
struct kl_div_upstream {
  matrix_view<const A> each;
  A factor;

  kl_div_upstream(matrix_view<const A> upstream, std::size_t rows, std::size_t vocab, const kl_div_options& opt) {
    const bool elements = opt.reduction == divergence_reduction::none;
    const double n = opt.denominator != 0 ? opt.denominator : static_cast<double>(rows);
    if (elements) each = upstream;
    factor = static_cast<A>(
        elements ? 1 : divergence_scale(opt.reduction, n, vocab) * static_cast<double>(upstream.data[0]));
  }
};

}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_KL_DIV_OPTIONS_HPP
