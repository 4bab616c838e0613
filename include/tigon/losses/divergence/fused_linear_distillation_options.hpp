// The tag, options, operands and checks of fused_linear_distillation.
#ifndef TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_DISTILLATION_OPTIONS_HPP
#define TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_DISTILLATION_OPTIONS_HPP

#include <tigon/losses/linear/few_rows_linear.hpp>
#include <tigon/losses/softmax/cross_entropy_options.hpp>
#include <tigon/losses/softmax/either_side.hpp>

namespace tigon {

namespace op {
struct fused_linear_distillation {
  static constexpr std::string_view name = "fused_linear_distillation";
};
/// The kernel on a chunk of both logits.
struct distillation {
  static constexpr std::string_view name = "distillation";
};
}  // namespace op

/// What the student has in the columns of a teacher with a larger vocabulary.
enum class teacher_padding {
  neg_inf,      ///< logits of -inf: probability 0
  zero_logit,   ///< logits of 0
  drop_teacher  ///< nothing: the teacher's columns beyond the student's vocabulary do not exist
};

inline namespace TIGON_ABI {
/// The teacher: a linear layer, of which only the logits matter, or logits that were made before.
template <layer_types T>
struct distillation_teacher {
  linear_layer<T> layer{};
  matrix_view<const input_t<T>> logits{};  ///< [rows, teacher_vocab], where they are given
  bool is_layer = true;

  distillation_teacher(const linear_layer<T>& of) : layer(of) {}
  distillation_teacher(matrix_view<const input_t<T>> x, matrix_view<const weight_t<T>> w,
                       std::span<const weight_t<T>> bias = {}, packed_weights<T> packed = {})
      : layer{x, w, bias, packed} {}
  template <class M>
    requires std::convertible_to<const M&, matrix_view<const input_t<T>>>
  distillation_teacher(const M& of_rows) : logits(of_rows), is_layer(false) {}

  constexpr std::size_t vocab() const { return is_layer ? layer.w.rows : logits.cols; }
};
}  // namespace TIGON_ABI

/// What a soft loss makes of a row: with u_j and q_j of each column, d soft / dz_j = factor (u_j + k q_j).
///
/// A soft loss is a type with
///   static constexpr bool takes_neg_inf        whether a student's logit may be -inf
///   auto operator()(row, z, teacher) const     reads both rows, returns an object `terms` with
///     terms(v, t)                                pack{u, q, a, b} for vectors of logits
///     terms.finish(a, b)                         soft_loss_row from the sums of the last two over the row
template <class A>
struct soft_loss_row {
  A loss, k, factor;
};

/// The contract is in losses/fused_linear_distillation.hpp.
struct fused_linear_distillation_options {
  double weight_hard = 0.5;
  double weight_soft = 0.5;
  double temperature = 1;  ///< of the soft part, from 1e-30 to 1e30
  std::int64_t ignore_index = -100;
  teacher_padding padding = teacher_padding::neg_inf;
  bool mask_soft = true;       ///< false: ignored rows have a soft loss too, as n has them not
  double denominator = 0;      ///< n, for a batch in several calls; 0: count
  double upstream = 1;         ///< gradients of forward are those of the loss times this
  double softcap = 0;          ///< above 0: softcap tanh(z / softcap) in the place of z; 0: none
  double teacher_softcap = 0;  ///< likewise of t
};

/// One number each; a span without memory is not written. soft and hard are without their weights.
template <class A>
struct distillation_losses {
  std::span<A> loss{}, soft{}, hard{};
};

namespace detail {
inline namespace TIGON_ABI {
/// The means of both parts, and their weighted sum; a weight of 0 takes a part away, whatever it is.
template <class A>
TIGON_EITHER_SIDE void put_losses(const distillation_losses<A>& to, double weight_soft, double soft, double weight_hard,
                                  double hard) {
  put_where_wanted(to.soft, 0, soft), put_where_wanted(to.hard, 0, hard);
  put_where_wanted(to.loss, 0,
                   (weight_hard == 0 ? 0 : weight_hard * hard) + (weight_soft == 0 ? 0 : weight_soft * soft));
}

/// What the rows of one call of the distillation kernel share.
template <class A>
struct distillation_rows {
  double *soft, *hard;               ///< losses of rows; null: not computed
  A of_soft = 0, of_hard = 0;        ///< factors of their gradients
  std::size_t vocab = 0, width = 0;  ///< columns of the student; of the rows
  A pad = 0;                         ///< what is in the columns between
  std::int64_t ignored = 0;
  bool mask_soft = true, gradient = false;
  const double* share = nullptr;  ///< of one row in the means, where a device counts: the factors are without it

  distillation_rows from(std::size_t begin) const {
    auto rows = *this;
    if (soft != nullptr) rows.soft += begin;
    if (hard != nullptr) rows.hard += begin;
    return rows;
  }
};

/// What a call reads and writes.
template <layer_types T>
struct distillation_call {
  linear_layer<T> student;
  distillation_teacher<T> teacher;
  linear_gradients<T> out;
  double softcap = 0, teacher_softcap = 0;
  chosen_rows kept{};  ///< rows that are multiplied: labels and losses are of them, in their order
};

template <layer_types T>
distillation_call<in_f64<T>> call_in_f64(const distillation_call<T>& call) {
  using teacher = distillation_teacher<in_f64<T>>;
  return {layer_in_f64(call.student),
          call.teacher.is_layer ? teacher(layer_in_f64(call.teacher.layer)) : teacher(call.teacher.logits),
          gradients_in_f64(call.out),
          call.softcap,
          call.teacher_softcap,
          call.kept};
}

/// Whether calls of few rows are computed in f64, by a loss that is made of Ops; without Ops they are not.
template <class B, layer_types T, class Ops>
inline constexpr bool few_distillation_in_f64 = false;
template <class B, layer_types T, class... Ops>
  requires(sizeof...(Ops) != 0)
inline constexpr bool few_distillation_in_f64<B, T, op_list<Ops...>> =
    few_rows_in_f64<B, T, op::fused_linear_distillation, Ops...> &&
    few_rows_in_f64<row_backend<B>, T, op::distillation>;

/// Bytes of such a call.
template <class B, layer_types T>
std::size_t few_distillation_workspace(layer_extents student, layer_extents teacher, const context& ctx, bool capped) {
  return few_rows_workspace<B, T>(student, ctx) + few_rows_workspace<B, T>(teacher, ctx) +
         (student.vocab < teacher.vocab ? workspace::bytes_for<double>(student.rows, teacher.vocab) : 0) +
         (capped ? workspace::bytes_for<double>(student.rows, student.vocab) : 0);
}

/// Bytes of a row: of its logits, of the student's x and of the teacher's.
template <layer_types T>
constexpr kept_bytes bytes_of_distillation(std::size_t hidden, std::size_t teacher_hidden, std::size_t wide,
                                           bool capped) {
  return {workspace::product(wide, (capped ? 3 : 2) * sizeof(accumulator_t<T>)),
          workspace::product(hidden, sizeof(input_t<T>)), workspace::product(teacher_hidden, sizeof(input_t<T>))};
}

/// Labels of a call: those of the caller, or none.
template <class Labels>
constexpr auto labels_of(const Labels& labels) {
  if constexpr (std::same_as<Labels, absent_t>) {
    return std::span<const std::int32_t>();
  } else {
    const std::span s(labels);
    using I = std::remove_const_t<typename decltype(s)::element_type>;
    static_assert(token_id<I>, "tigon: targets are std::int32_t or std::int64_t");
    return std::span<const I>(s);
  }
}

/// What all distillation public functions do: the arguments of the kernel, and the totals of the losses of rows.
template <layer_types T, token_id I>
struct distillation_door {
  using A = accumulator_t<T>;
  std::string_view name;
  distillation_call<T> call;
  std::span<const I> target;
  distillation_losses<A> losses;
  fused_linear_distillation_options opt;
  double upstream = 1;
  bool backward = false;  ///< no losses

  /// `takes_neg_inf` of the soft loss; `indices`: the target's numbers are classes.
  template <class B>
  TIGON_NOINLINE void check(bool takes_neg_inf, bool indices) const {
    arguments args(name);
    const linear_layer<T>& student = call.student;
    const distillation_teacher<T>& teacher = call.teacher;
    const std::size_t rows = student.x.rows, vocab = student.w.rows;
    declare_layer<B>(args, name, student);
    if (teacher.is_layer && teacher.layer.w.rows < vocab)
      fail_argument(error_code::shape, name, "teacher.w", shape_text(teacher.layer.w.rows, teacher.layer.x.cols),
                    "at least the student's " + std::to_string(vocab) + " rows");
    if (!teacher.is_layer && teacher.logits.cols < vocab)
      fail_argument(error_code::shape, name, "teacher.logits", shape_text(teacher.logits.rows, teacher.logits.cols),
                    "at least the student's " + std::to_string(vocab) + " columns");
    if (teacher.is_layer)
      declare_layer<B>(args, name, teacher.layer, rows, teacher.layer.w.rows, teacher_names);
    else
      args.in("teacher.logits", teacher.logits, rows, teacher.logits.cols);
    if (target.data() != nullptr || indices) args.in("target", target, rows);
    declare_gradients(args, student, call.out);
    if (!backward) args.out("loss", losses.loss, 1);
    args.optional_out("soft", losses.soft, 1);
    args.optional_out("hard", losses.hard, 1);
    args.check();
    args.finite<A>("weight_hard", opt.weight_hard);
    args.finite<A>("weight_soft", opt.weight_soft);
    args.finite<A>("upstream", upstream);
    args.option(opt.temperature >= 1e-30 && opt.temperature <= 1e30, "temperature", opt.temperature,
                "a number from 1e-30 to 1e30");
    args.softcap<A>(opt.softcap);
    args.softcap<A>(opt.teacher_softcap, "teacher_softcap");
    args.denominator<A>(opt.denominator);
    const double per_row = upstream / (opt.denominator != 0 ? opt.denominator : 1);
    args.made<A>("upstream weight_hard over the denominator", per_row * opt.weight_hard);
    args.made<A>("upstream weight_soft over the denominator and the temperature",
                 per_row * opt.weight_soft / std::min(opt.temperature, 1.0));
    args.that(takes_neg_inf || opt.padding != teacher_padding::neg_inf || teacher.vocab() == vocab,
              error_code::argument, "padding", "neg_inf",
              "zero_logit or drop_teacher, because this soft loss knows no logits of -inf");
    if constexpr (host_memory<B>)
      if (indices) expect_labels(name, target, vocab, opt.ignore_index);
  }

  /// The same where a device counts, checks labels and adds up, by functions of the kernel of B: of all rows.
  template <class B, class Kernel>
  void run_on(context& ctx, const Kernel& kernel, bool indices) const {
    using K = kernel_for<op::fused_linear_distillation, B>;
    const std::size_t rows = call.student.x.rows;
    workspace::frame frame(ctx.workspace());
    double* memory[] = {frame.template take<double>(rows), frame.template take<double>(rows)};
    double* const share = frame.template take<double>(1);
    distillation_rows<A> of{opt.weight_soft != 0 || losses.soft.data() != nullptr ? memory[0] : nullptr,
                            opt.weight_hard != 0 || losses.hard.data() != nullptr ? memory[1] : nullptr};
    share_of_row(of, 1);
    of.share = share;
    K::begin(name, target, rows, of.vocab, opt, indices, share, ctx);
    distillation_call<T> all = call;
    all.kept = rows;
    kernel(all, target.data(), of);
    K::finish(of, rows, opt, losses, ctx);
  }

  /// kernel(call, labels, rows) of the rows that count, with memory for their losses; then the totals. L: T or
  /// in_f64<T>.
  template <layer_types L, class Kernel>
  void run(context& ctx, const Kernel& kernel) const {
    using S = accumulator_t<L>;
    const std::size_t rows = call.student.x.rows;
    double kept = static_cast<double>(rows);
    for (const I t : target) kept -= static_cast<std::int64_t>(t) == opt.ignore_index;
    const double n = opt.denominator != 0 && kept != 0 ? opt.denominator : kept, share = n == 0 ? 0 : 1 / n;
    workspace::frame frame(ctx.workspace());
    double* memory[] = {frame.template take<double>(rows), frame.template take<double>(rows)};
    const bool soft = kept != 0 && (opt.weight_soft != 0 || losses.soft.data() != nullptr);
    const bool hard = kept != 0 && (opt.weight_hard != 0 || losses.hard.data() != nullptr);
    distillation_rows<S> of{soft ? memory[0] : nullptr, hard ? memory[1] : nullptr};
    share_of_row(of, share);
    // Without mask_soft the soft part is of all rows.
    const kept_labels<I> labels(frame, soft && !opt.mask_soft ? std::span<const I>() : target, rows, opt.ignore_index);
    distillation_call<L> of_kept = [&] {
      if constexpr (is_in_f64<L>)
        return call_in_f64(call);
      else
        return call;
    }();
    of_kept.kept = labels.rows();
    kernel(of_kept, soft && !opt.mask_soft ? target.data() : labels.labels().data(), of);
    const auto total = [&](const double* of_row) {
      double sum = 0;
      if (of_row != nullptr)
        for (std::size_t i = 0; i < of_kept.kept.n; ++i) sum += of_row[i];
      return sum * share;
    };
    put_losses(losses, opt.weight_soft, total(of.soft), opt.weight_hard, total(of.hard));
  }

 private:
  /// What all rows of a call share, `share` being that of one row in the means.
  template <class S>
  void share_of_row(distillation_rows<S>& of, double share) const {
    of.of_soft = static_cast<S>(upstream * opt.weight_soft * share);
    of.of_hard = static_cast<S>(upstream * opt.weight_hard * share);
    of.vocab = call.student.w.rows;
    of.width = opt.padding == teacher_padding::drop_teacher ? of.vocab : call.teacher.vocab();
    of.pad = opt.padding == teacher_padding::neg_inf ? -std::numeric_limits<S>::infinity() : S(0);
    of.ignored = opt.ignore_index;
    of.mask_soft = opt.mask_soft;
    of.gradient = call.out.any();
  }
};
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_DISTILLATION_OPTIONS_HPP
