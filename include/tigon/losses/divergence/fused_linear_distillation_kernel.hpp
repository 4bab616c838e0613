// The generic kernel of fused_linear_distillation.
#ifndef TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_DISTILLATION_KERNEL_HPP
#define TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_DISTILLATION_KERNEL_HPP

#include <tigon/losses/divergence/fused_linear_distillation_options.hpp>
#include <tigon/losses/softmax/cross_entropy_kernel.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
/// log sum_j exp(s_j) = top / temperature + log1p(d) for s = z / temperature, d the sum of exp((z_j - top) /
/// temperature) without the maximal element's own 1.
template <class A>
struct log_sum {
  A top, d, tail;  ///< tail = log1p(d)
};
template <class Row, class A>
TIGON_RARE log_sum<A> log_sum_of(Row row, vector_view<A> z, tempered<A> by) {
  if constexpr (requires { row.log_sum(z, by); }) return row.log_sum(z, by);
  const A top = row.max(reads(z), [](auto v) { return v; });
  const auto p = [=](auto v) { return exp_nonpositive(by.distance(v - top)); };
  A d = row.sum(reads(z), p) - A(1);
  if (d < A(1)) {
    const auto rest = row.sum(reads(z), [=](auto v) { return apart_from_one(p(v)); });
    d = rest[0] + (rest[1] - A(1));
  }
  return {top, d, math::log1p(d)};
}
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::distillation, backends::generic> {
  using forward_only = void;

  /// Losses of rows from z and teacher [rows, width], and D over z; teacher is used up too. target may be null.
  template <backend B, class A, token_id I, class Soft>
  static void forward(matrix_view<A> z, matrix_view<A> teacher, const I* target, Soft soft,
                      detail::distillation_rows<A> rows, context& ctx) {
    const std::size_t vocab = rows.vocab;
    for_rows<B, A>(ctx, z.rows, rows.width, {.scratch = 1}, [=] TIGON_FN(auto row) {
      const bool kept = target == nullptr || static_cast<std::int64_t>(target[row.i]) != rows.ignored;
      const bool is_soft = rows.soft != nullptr && (kept || !rows.mask_soft), is_hard = rows.hard != nullptr && kept;
      const auto student = row.part(0, vocab);
      const vector_view<A> v{z.row(row.i), row.cols}, t{teacher.row(row.i), row.cols};
      const cached to_z{z}, to_teacher{teacher};  // written in place
      const std::size_t column = is_hard ? static_cast<std::size_t>(target[row.i]) : 0;
      // The hard part first: exp(z - m) beside the logits, which the soft part overwrites.
      const vector_view<A> e = student.scratch(0);
      A nll(0), factor(0);
      if (is_hard) {
        const A own = row.at(v, column);
        const auto of_z = detail::log_sum_of(student, v, detail::tempered<A>(1));
        nll = of_z.tail - (own - of_z.top);
        factor = rows.of_hard * math::exp(-of_z.tail);
        if (rows.gradient) student.map(reads(v), writes(e), [=](auto s) { return exp_nonpositive(s - of_z.top); });
      }
      soft_loss_row<A> of_soft{};
      if (is_soft) {
        if (vocab < row.cols)
          row.part(vocab, row.cols - vocab).map(reads(constant(rows.pad)), writes(to_z), [](auto pad) { return pad; });
        const auto terms = soft(row, v, t);
        const auto sums = row.map_sum(reads(v, t), writes(to_z, to_teacher),
                                      [=](auto of_student, auto of_teacher) { return terms(of_student, of_teacher); });
        of_soft = terms.finish(sums[0], sums[1]);
      }
      if (row.first()) {
        if (rows.soft != nullptr) rows.soft[row.i] = static_cast<double>(of_soft.loss);
        if (rows.hard != nullptr) rows.hard[row.i] = static_cast<double>(nll);
      }
      if (!rows.gradient) return;
      const bool bends = is_soft && rows.of_soft != A(0), pulls = is_hard && rows.of_hard != A(0);
      const A b = rows.of_soft * of_soft.factor, k = of_soft.k;
      const A at_target = bends && pulls ? b * (row.at(v, column) + k * row.at(t, column)) : A(0);
      if (bends && pulls)
        student.map(reads(v, t, e), writes(to_z),
                    [=](auto u, auto q, auto p) { return normal_or_zero(p * factor + b * (u + k * q)); });
      else if (bends)
        student.map(reads(v, t), writes(to_z), [=](auto u, auto q) { return normal_or_zero(b * (u + k * q)); });
      else if (pulls)
        student.map(reads(e), writes(to_z), [=](auto p) { return normal_or_zero(p * factor); });
      else
        student.map(reads(constant(A(0))), writes(to_z), [](auto zero) { return zero; });
      // The target's column is computed again: p_t - 1 cancels where p_t is near 1.
      if (pulls && row.first()) row.put(z, column, at_target + rows.of_hard * math::expm1(-nll));
    });
  }
};

template <>
struct kernel<op::fused_linear_distillation, backends::generic> {
  template <class>
  using saved = no_state;

  /// Losses of rows and gradients in one pass over the rows that count.
  template <backend B, layer_types T, token_id I, class Soft>
  static void forward(detail::distillation_call<T> t, const I* target, Soft soft,
                      detail::distillation_rows<accumulator_t<T>> rows, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t vocab = t.student.w.rows, wide = t.teacher.vocab();
    const bool capped = t.softcap != 0;
    const std::size_t all = t.student.x.rows, hidden = t.student.x.cols;
    const detail::kept_chunk chunk = detail::chunk_of<T>(
        t.kept, detail::chunk_rows<B, A>(all, hidden, wide, ctx, capped ? 3 : 2), all,
        detail::bytes_of_distillation<T>(hidden, t.teacher.layer.x.cols, wide, capped), t.out.dx.data != nullptr);
    workspace::frame frame(ctx.workspace());
    A* slopes = capped ? frame.template take<A>(chunk.rows * vocab) : nullptr;
    A* logits = frame.template take<A>(chunk.rows * wide);
    A* teacher_logits = frame.template take<A>(chunk.rows * wide);
    detail::kept_linear<B, T> student(frame, t.student, t.out, t.kept, chunk, t.out.dx, ctx);
    detail::kept_linear<B, T> teacher(frame, t.teacher.layer, {}, t.kept, chunk, {}, ctx);
    detail::for_chunks(t.kept.n, chunk.rows, [&](std::size_t begin, std::size_t n) {
      const matrix_view<A> z(logits, n, vocab, wide), of_teacher(teacher_logits, n, wide);
      student.logits(begin, z);
      if (rows.soft != nullptr && t.teacher.is_layer) teacher.logits(begin, of_teacher);
      if (rows.soft != nullptr && !t.teacher.is_layer)
        detail::copy_chosen<row_backend<B>, A>(t.teacher.logits, t.kept, begin, of_teacher, ctx);
      const matrix_view<A> slope(slopes, n, vocab);
      detail::cap_logits<row_backend<B>, A>(z, t.softcap, ctx, slope);
      if (rows.soft != nullptr) detail::cap_logits<row_backend<B>, A>(of_teacher, t.teacher_softcap, ctx);
      kernel_for<op::distillation, row_backend<B>>::template forward<row_backend<B>, A, I>(
          matrix_view<A>(logits, n, wide), of_teacher, target == nullptr ? nullptr : target + begin, soft,
          rows.from(begin), ctx);
      if (!t.out.any()) return;
      if (capped) detail::gradient_of_capped<row_backend<B>, A>(z, slope, ctx);
      student.backward(begin, z);
    });
    student.finish();
  }

  /// The gradients, recomputed: for another upstream gradient than 1.
  template <backend B, layer_types T, token_id I, class Soft>
  static void backward(detail::distillation_call<T> t, const I* target, Soft soft,
                       detail::distillation_rows<accumulator_t<T>> rows, context& ctx) {
    forward<B, T, I>(t, target, soft, rows, ctx);
  }
};

/// Bytes of workspace that a fused linear distillation takes for a call with both biases and all gradients, or those
/// of x alone; for a teacher whose logits are given teacher_hidden is 0. `capped`: with a softcap of the student's.
template <class B = default_backend, class T>
std::size_t fused_linear_distillation_workspace(std::size_t rows, std::size_t hidden, std::size_t vocab,
                                                std::size_t teacher_hidden, std::size_t teacher_vocab,
                                                const context& ctx = default_context<B>(),
                                                parameters of = parameters::trained, bool capped = false) {
  using A = accumulator_t<T>;
  if constexpr (!host_memory<B>)
    return kernel_for<op::fused_linear_distillation, B>::template workspace_bytes<B, T>(
        rows, hidden, vocab, teacher_hidden, teacher_vocab, ctx, of, capped);
  const std::size_t chunk = detail::chunk_rows<B, A>(rows, hidden, teacher_vocab, ctx, capped ? 3 : 2);
  const detail::kept_bytes row = detail::bytes_of_distillation<T>(hidden, teacher_hidden, teacher_vocab, capped);
  const std::size_t between = std::max(
      simd::scratch_workspace<B, A>(teacher_vocab, 1, ctx),
      gemm_workspace<B, input_t<T>, weight_t<T>, A>(chunk, teacher_vocab, teacher_hidden, ctx.executor().workers()));
  std::size_t bytes =
      workspace::bytes_for<A>(teacher_vocab) +
      detail::kept_linear_workspace<B, T>({rows, hidden, vocab}, chunk, row, ctx, between, of, [=](std::size_t n) {
        return (capped ? workspace::bytes_for<A>(n, vocab) : 0) + 2 * workspace::bytes_for<A>(n, teacher_vocab);
      });
  if constexpr (detail::few_rows_in_f64<B, T>)
    if (rows <= detail::few_rows)
      bytes = std::max(bytes, detail::few_distillation_workspace<B, T>(
                                  {rows, hidden, vocab}, {rows, teacher_hidden, teacher_vocab}, ctx, capped));
  return 2 * workspace::bytes_for<double>(rows) + detail::kept_labels<std::int64_t>::bytes<A>(rows, 0) + bytes;
}

namespace detail {
inline namespace TIGON_ABI {
/// What the public functions of distillation are called with; losses is null in backward.
template <layer_types T, class Target>
struct distillation_arguments {
  linear_layer<T> student;
  distillation_teacher<T> teacher;
  const Target& target;
  const distillation_losses<accumulator_t<T>>* losses;
  linear_gradients<T> gradients;
  const fused_linear_distillation_options& opt;
  double upstream;
  bool takes_neg_inf = true;  ///< of the soft loss
  bool indices = true;        ///< the target's numbers are classes
};

/// Checks them; then kernel(call, target, rows) and the totals. Ops: what the kernel is made of, if it takes calls in
/// f64.
template <class B, layer_types T, class Target, class Ops, class Kernel>
void distil(std::string_view name, const distillation_arguments<T, Target>& of, context& ctx, const Kernel& kernel) {
  static_assert(admits<B, T>());
  const auto labels = labels_of(of.target);
  using I = std::remove_const_t<typename decltype(labels)::element_type>;
  const distillation_door<T, I> door{name,
                                     {of.student, of.teacher, of.gradients, of.opt.softcap, of.opt.teacher_softcap},
                                     labels,
                                     of.losses != nullptr ? *of.losses : distillation_losses<accumulator_t<T>>{},
                                     of.opt,
                                     of.upstream,
                                     of.losses == nullptr};
  door.template check<B>(of.takes_neg_inf, of.indices);
  ctx.workspace().expect(name, fused_linear_distillation_workspace<B, T>(
                                   of.student.x.rows, of.student.x.cols, of.student.w.rows, of.teacher.layer.x.cols,
                                   of.teacher.vocab(), ctx, of.gradients.of_weights(), of.opt.softcap != 0));
  if constexpr (!host_memory<B>) return door.template run_on<B>(ctx, kernel, of.indices);
  if constexpr (few_distillation_in_f64<B, T, Ops>)
    if (of.student.x.rows <= few_rows) return door.template run<in_f64<T>>(ctx, kernel);
  door.template run<T>(ctx, kernel);
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_DISTILLATION_KERNEL_HPP
