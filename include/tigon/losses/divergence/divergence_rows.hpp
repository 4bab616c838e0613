// What the losses that compare two distributions row by row share: reductions, ignored rows, checks, row sums.
#ifndef TIGON_LOSSES_DIVERGENCE_DIVERGENCE_ROWS_HPP
#define TIGON_LOSSES_DIVERGENCE_DIVERGENCE_ROWS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/core/arguments.hpp>
#include <tigon/losses/linear/scaled_program.hpp>

#include <cstdint>

namespace tigon {

/// How the terms of a divergence become the loss, n being the rows that count:
///   batchmean  sum / n,   mean  sum / (n vocab),   sum,   none  a loss for every element
enum class divergence_reduction { batchmean, mean, sum, none };

inline namespace TIGON_ABI {

/// A loss or its upstream gradient: one number, or with divergence_reduction::none a matrix of them.
template <class A>
struct loss_elements {
  matrix_view<A> view;

  constexpr loss_elements(matrix_view<A> m) : view(m) {}
  template <class M>
    requires(std::is_const_v<A> && std::convertible_to<M, matrix_view<A>>)
  constexpr loss_elements(const M& m) : view(m) {}
  template <class R>
    requires std::convertible_to<R&&, std::span<A>>
  constexpr loss_elements(R&& range) : view(as_row(std::span<A>(range))) {}
};

}  // namespace TIGON_ABI

namespace detail {
inline namespace TIGON_ABI {

/// The labels of the rows, which only say what is ignored; none where `absent`.
template <class Labels>
auto label_span(const Labels& labels) {
  if constexpr (std::same_as<Labels, absent_t>) {
    return std::span<const std::int64_t>{};
  } else {
    const std::span all(labels);
    using I = std::remove_const_t<typename decltype(all)::element_type>;
    static_assert(token_id<I>, "tigon: labels are std::int32_t or std::int64_t");
    return std::span<const I>(all);
  }
}

/// What a sum over n rows is multiplied with.
TIGON_INLINE double divergence_scale(divergence_reduction reduction, double n, std::size_t vocab) {
  if (reduction == divergence_reduction::mean) n *= static_cast<double>(vocab);
  const bool mean = reduction == divergence_reduction::mean || reduction == divergence_reduction::batchmean;
  return !mean ? 1 : n == 0 ? 0 : 1 / n;
}

/// What the rows of one call leave in the workspace, and what their sum is multiplied with.
struct divergence_rows {
  double* loss;
  std::uint8_t* kept;  ///< 0: the row is ignored
  std::size_t rows;
  double scale = 1;

  template <class I>
  divergence_rows(workspace::frame& frame, std::size_t count, std::size_t vocab, divergence_reduction reduction,
                  double denominator, std::span<const I> labels = {}, std::int64_t ignore_index = 0)
      : loss(frame.take<double>(count)), kept(frame.take<std::uint8_t>(count)), rows(count) {
    std::fill_n(loss, rows, 0.0);
    std::fill_n(kept, rows, std::uint8_t{1});
    for (std::size_t i = 0; i < labels.size(); ++i) kept[i] = labels[i] != ignore_index;
    double counted = 0;
    for (std::size_t i = 0; i < rows; ++i) counted += kept[i];
    scale = divergence_scale(reduction, denominator != 0 ? denominator : counted, vocab);
  }

  double total() const {
    double sum = 0;
    for (std::size_t i = 0; i < rows; ++i) sum += loss[i];
    return sum * scale;
  }
  template <class A>
  void put_total(A* to, context&) const {
    *to = static_cast<A>(total());
  }

 protected:
  divergence_rows(double* losses, std::uint8_t* flags, std::size_t count, double of_sum)
      : loss(losses), kept(flags), rows(count), scale(of_sum) {}
};

/// The same on backend B: of its type divergence_rows, where that has a memory of its own.
template <class B, class I>
auto rows_of_divergence(context& ctx, workspace::frame& frame, std::size_t count, std::size_t vocab,
                        divergence_reduction reduction, double denominator, std::span<const I> labels,
                        std::int64_t ignore_index) {
  if constexpr (requires { typename B::divergence_rows; })
    return typename B::divergence_rows(ctx, frame, count, vocab, reduction, denominator, labels, ignore_index);
  else
    return divergence_rows(frame, count, vocab, reduction, denominator, labels, ignore_index);
}

/// by times a number of the call, or times nothing where that is null: a number of A. Where the memory of B is
/// elsewhere, it is of B's type number, which the device reads.
template <class B, class A>
auto number_of(const A* p, double by) {
  if constexpr (requires { typename B::template number<A>; })
    return typename B::template number<A>{p, by};
  else
    return static_cast<A>(p == nullptr ? by : by * static_cast<double>(*p));
}

/// Bytes of workspace for so many rows.
constexpr std::size_t divergence_workspace(std::size_t rows) {
  return workspace::bytes_for<double>(rows) + workspace::bytes_for<std::uint8_t>(rows) +
         workspace::bytes_for<double>(1);
}

/// Names and views of a call's operands. A student without a name is not read, and a gradient without memory not
/// wanted; the gradient may be either operand.
struct divergence_operands {
  std::string_view student_name, teacher_name;
  extent student, teacher, gradient;
  std::string_view gradient_name = "dstudent";
};

/// The loss, which is written, or by another name its upstream gradient: one number, or one for each element.
struct divergence_loss {
  std::string_view name;
  extent view;
  bool elements = false;
};

/// The weight of the teacher in a generalised Jensen-Shannon divergence.
template <class A>
void expect_beta(const expects& expect, double beta) {
  expect.number<A>(beta >= 0 && beta <= 1, "beta", beta, "a number from 0 to 1");
}

/// Declares the operands of a call, and checks its denominator.
template <class A, class I>
TIGON_NOINLINE void declare_divergence(arguments& args, const divergence_operands& call, const divergence_loss& loss,
                                       std::span<const I> labels, double denominator) {
  const std::size_t rows = call.student.rows, cols = call.student.cols;
  args.at_least_one("vocab", cols);
  if (!call.student_name.empty()) args.in(call.student_name, call.student);
  args.in(call.teacher_name, call.teacher, rows, cols);
  args.optional_in("labels", labels, rows);
  const std::size_t loss_rows = loss.elements ? rows : 1, loss_cols = loss.elements ? cols : 1;
  if (loss.name == "loss")
    args.out(loss.name, loss.view, loss_rows, loss_cols);
  else
    args.in(loss.name, loss.view, loss_rows, loss_cols);
  args.optional_out(call.gradient_name, call.gradient, rows, cols).may_be(call.teacher_name);
  if (!call.student_name.empty()) args.may_be(call.student_name);
  args.denominator<A>(denominator);
}

/// out = factor * saved.
template <class B, element T>
void scale_gradient(matrix_view<const T> saved, accumulator_t<T> factor, matrix_view<T> out, context& ctx) {
  map_rows<B>(ctx, scaled_program<accumulator_t<T>>{factor}, reads(saved), writes(out));
}

/// The checks before it.
template <class T, class A>
void check_saved(std::string_view op, matrix_view<const T> saved, std::span<const A> upstream,
                 matrix_view<T> dstudent) {
  arguments args(op);
  args.in("saved_dstudent", saved, dstudent.rows, dstudent.cols);
  args.in("upstream", upstream, 1);
  args.out("dstudent", dstudent).may_be("saved_dstudent");
  args.check();
}

}  // namespace TIGON_ABI
}  // namespace detail
}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_DIVERGENCE_ROWS_HPP
