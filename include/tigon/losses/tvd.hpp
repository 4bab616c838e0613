// Total variation distance of probabilities.
#ifndef TIGON_LOSSES_TVD_HPP
#define TIGON_LOSSES_TVD_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/losses/divergence/tvd_kernel.hpp>

namespace tigon {

/// Half the sum of absolute differences, Q = student_probs, P = teacher_probs:
///
///   loss_ij = |Q - P| / 2,   loss = c sum loss_ij,   dstudent = c g sign(Q - P) / 2,   sign(0) = 0
///   dteacher = -dstudent
///   c = 1 / n (batchmean), 1 / (n vocab) (mean), 1 (sum, none)            n = number of kept rows
///
/// Formula    docs/formulas/divergences.md.
/// Shapes     student_probs, teacher_probs, dstudent, dteacher [rows, vocab]; labels [rows] or `absent`; loss and
///            upstream [1], with reduction none [rows, vocab]. vocab >= 1, rows may be 0.
/// Types      one of f32, bf16, f16, f64 for all; loss and upstream f32 (f64 for f64); labels std::int32_t or
///            std::int64_t.
/// Precision  f32 (f64 for f64) inside; totals in f64; one rounding at dstudent.
/// Options    backward takes those of forward.
/// Writes     loss, dstudent. A row whose label is ignore_index is not read; its losses and gradient are 0. Labels are
///            no indices: every value is legal. forward makes dstudent for g = 1 in the same pass, unless its data is
///            null; backward computes it from the inputs, and so does teacher_backward with dteacher.
/// Aliasing   dstudent or dteacher may be student_probs or teacher_probs, which are then overwritten. Otherwise no
///            output shares an element with another argument; any layout.
/// Throws     tigon::error: shape, stride, alias, argument (a number outside option_range), workspace; before the first
///            write.
/// Edges      no kept row: loss 0, gradients 0. NaN: the loss and the gradient of its element.
/// Max error  loss 5e-7 of |reference| where sums are f32; with reduction none 5e-7, and the gradients f32 2e-7, bf16
///            4e-3, of |reference| + its root mean square (tests/losses/tvd_test.cpp).
///
/// ```cpp
/// std::vector<float> student(4 * 100, 0.01f), teacher(student), gradient(student), loss(1), upstream(1, 2);
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), 4, 100); };
/// tigon::tvd_forward(rows(student), rows(teacher), loss, rows(gradient));
/// tigon::tvd_backward(rows(student), rows(teacher), upstream, rows(gradient));
/// ```
struct tvd_options;

inline namespace TIGON_ABI {
/// Bytes of workspace that tvd_forward takes, and tvd_backward from the inputs.
constexpr std::size_t tvd_workspace(std::size_t rows) { return detail::divergence_workspace(rows); }
}  // namespace TIGON_ABI

namespace detail {
inline namespace TIGON_ABI {
/// Checks what both ways from the inputs take; f(rows) with the rows' results in the workspace.
template <class B, class A, class Labels, class F>
void with_tvd_rows(std::string_view door, const divergence_operands& call, const divergence_loss& loss,
                   const tvd_options& opt, const Labels& labels, context& ctx, F f) {
  const auto ids = label_span(labels);
  const std::size_t rows = call.student.rows;
  arguments args(door);
  if constexpr (!std::same_as<Labels, absent_t>) args.size("labels", ids.size(), rows);
  declare_divergence<A>(args, call, loss, ids, opt.denominator);
  args.check();
  ctx.workspace().expect(door, tvd_workspace(rows));
  workspace::frame frame(ctx.workspace());
  f(rows_of_divergence<B>(ctx, frame, rows, call.student.cols, opt.reduction, opt.denominator, ids, opt.ignore_index));
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Loss, and dstudent for an upstream gradient of 1. See tvd_options for the contract.
template <class B = default_backend, class T, class Labels = absent_t>
void tvd_forward(in_matrix<T> student_probs, in_matrix<T> teacher_probs,
                 std::type_identity_t<loss_elements<accumulator_t<T>>> loss, matrix_view<T> dstudent,
                 tvd_options opt = {}, const Labels& labels = absent, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const bool elements = opt.reduction == divergence_reduction::none;
  detail::with_tvd_rows<B, accumulator_t<T>>("tvd_forward",
                                             {"student_probs", "teacher_probs", student_probs, teacher_probs, dstudent},
                                             {"loss", loss.view, elements}, opt, labels, ctx, [&](const auto& rows) {
                                               kernel_for<op::tvd, B>::template forward<B, T>(
                                                   student_probs, teacher_probs, loss.view, dstudent, rows, opt, ctx);
                                               if (!elements) rows.put_total(loss.view.data, ctx);
                                             });
}

namespace detail {
inline namespace TIGON_ABI {
/// One of the two gradients: that of the student times `sign`.
struct tvd_door {
  std::string_view name, gradient;
  double sign;
};
template <class B, class T, class Labels>
void run_tvd_door(const tvd_door& door, matrix_view<const T> student, matrix_view<const T> teacher,
                  matrix_view<const accumulator_t<T>> upstream, matrix_view<T> gradient, const tvd_options& opt,
                  const Labels& labels, context& ctx) {
  using A = accumulator_t<T>;
  expects(door.name).memory(door.gradient, gradient);
  const bool each = opt.reduction == divergence_reduction::none;
  with_tvd_rows<B, accumulator_t<T>>(
      door.name, {"student_probs", "teacher_probs", student, teacher, gradient, door.gradient},
      {"upstream", upstream, each}, opt, labels, ctx, [&](const auto& rows) {
        const auto factor = number_of<B>(each ? nullptr : upstream.data, door.sign * (each ? 1 : rows.scale));
        kernel_for<op::tvd, B>::template backward<B, T>(student, teacher, each ? upstream : matrix_view<const A>{},
                                                        factor, gradient, rows, ctx);
      });
}
}  // namespace TIGON_ABI
}  // namespace detail

/// dstudent from the inputs and the gradient of the loss: nothing is saved between.
template <class B = default_backend, class T, class Labels = absent_t>
void tvd_backward(in_matrix<T> student_probs, in_matrix<T> teacher_probs,
                  std::type_identity_t<loss_elements<const accumulator_t<T>>> upstream, matrix_view<T> dstudent,
                  tvd_options opt = {}, const Labels& labels = absent, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  detail::run_tvd_door<B, T>({"tvd_backward", "dstudent", 1}, student_probs, teacher_probs, upstream.view, dstudent,
                             opt, labels, ctx);
}

/// dteacher = -dstudent from the same, for a teacher that learns too.
template <class B = default_backend, class T, class Labels = absent_t>
void tvd_teacher_backward(in_matrix<T> student_probs, in_matrix<T> teacher_probs,
                          std::type_identity_t<loss_elements<const accumulator_t<T>>> upstream, matrix_view<T> dteacher,
                          tvd_options opt = {}, const Labels& labels = absent, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  detail::run_tvd_door<B, T>({"tvd_teacher_backward", "dteacher", -1}, student_probs, teacher_probs, upstream.view,
                             dteacher, opt, labels, ctx);
}

TIGON_EXPLAINS(tvd_forward)
TIGON_EXPLAINS(tvd_backward)
TIGON_EXPLAINS(tvd_teacher_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_TVD_HPP
