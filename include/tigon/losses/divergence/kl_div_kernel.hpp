// Pointwise Kullback-Leibler divergence of probabilities or their logarithms from log-probabilities.
#ifndef TIGON_LOSSES_KL_DIV_HPP
#define TIGON_LOSSES_KL_DIV_HPP

#include <tigon/losses/divergence/kl_div_options.hpp>
#include <tigon/losses/divergence/kl_div_program.hpp>

namespace tigon {

template <>
struct kernel<op::kl_div, backends::generic> {
  template <class>
  using saved = no_state;  // the teacher alone

  template <backend B, element T>
  static void forward(in_matrix<T> student, in_matrix<T> teacher, matrix_view<accumulator_t<T>> loss,
                      matrix_view<T> dstudent, const detail::divergence_rows& out, kl_div_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const A lowest = std::max(static_cast<A>(opt.eps), std::numeric_limits<A>::min());
    const A factor = static_cast<A>(-out.scale);
    const bool elements = opt.reduction == divergence_reduction::none, write = dstudent.data != nullptr;
    with_target(opt, [&](auto log) {
      const detail::kl_div_program<log.value, A> program{lowest, factor};
      if (elements)
        map_rows<B>(ctx, program, reads(student, teacher), writes(loss));
      else if (write)
        reduce_map<B>(ctx, program, reads(student, teacher), reduce_writes(dstudent), saves(out.loss));
      else
        reduce_map<B>(ctx, program, reads(student, teacher), saves(out.loss));
    });
    if (elements && write) backward<B, T>(teacher, {}, A(1), dstudent, opt, ctx);
  }

  /// upstream: a matrix, or without memory, and `factor` for all.
  template <backend B, element T>
  static void backward(in_matrix<T> teacher, in_matrix<accumulator_t<T>> upstream, accumulator_t<T> factor,
                       matrix_view<T> dstudent, kl_div_options opt, context& ctx) {
    with_target(opt, [&](auto log) {
      const detail::kl_div_gradient<log.value, accumulator_t<T>> program{-factor};
      if (upstream.data != nullptr)
        map_rows<B>(ctx, program, reads(teacher, upstream), writes(dstudent));
      else
        map_rows<B>(ctx, program, reads(teacher), writes(dstudent));
    });
  }

  /// As backward, for dteacher.
  template <backend B, element T>
  static void teacher_backward(in_matrix<T> student, in_matrix<T> teacher, in_matrix<accumulator_t<T>> upstream,
                               accumulator_t<T> factor, matrix_view<T> dteacher, kl_div_options opt, context& ctx) {
    using A = accumulator_t<T>;
    with_target(opt, [&](auto log) {
      const detail::kl_div_teacher_gradient<log.value, A> program{static_cast<A>(opt.eps), factor};
      if (upstream.data != nullptr)
        map_rows<B>(ctx, program, reads(student, teacher, upstream), writes(dteacher));
      else
        map_rows<B>(ctx, program, reads(student, teacher), writes(dteacher));
    });
  }

  /// run(log), where the constant `log` says whether the teacher is given as logarithms.
  template <class Run>
  static void with_target(const kl_div_options& opt, Run run) {
    if (opt.log_target)
      run(std::true_type{});
    else
      run(std::false_type{});
  }
};

inline namespace TIGON_ABI {
/// Bytes of workspace that kl_div_forward takes.
constexpr std::size_t kl_div_workspace(std::size_t rows) { return detail::divergence_workspace(rows); }
}  // namespace TIGON_ABI

/// Loss, and dstudent for an upstream gradient of 1. See kl_div_options for the contract.
template <class B = default_backend, class T>
void kl_div_forward(in_matrix<T> student_log_probs, in_matrix<T> teacher,
                    std::type_identity_t<loss_elements<accumulator_t<T>>> loss, matrix_view<T> dstudent,
                    kl_div_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  const std::size_t rows = student_log_probs.rows, vocab = student_log_probs.cols;
  const bool elements = opt.reduction == divergence_reduction::none;
  arguments args("kl_div_forward");
  detail::declare_divergence<accumulator_t<T>>(
      args, {"student_log_probs", "teacher", student_log_probs, teacher, dstudent}, {"loss", loss.view, elements},
      detail::label_span(absent), opt.denominator);
  args.check();
  args.number<A>(opt.eps >= 0 && opt.eps <= 1, "eps", opt.eps, "a number from 0 to 1");
  ctx.workspace().expect("kl_div_forward", kl_div_workspace(rows));

  workspace::frame frame(ctx.workspace());
  const detail::divergence_rows out(frame, rows, vocab, opt.reduction, opt.denominator,
                                    std::span<const std::int64_t>{});
  kernel_for<op::kl_div, B>::template forward<B, T>(student_log_probs, teacher, loss.view, dstudent, out, opt, ctx);
  if (!elements) loss.view.data[0] = static_cast<A>(out.total());
}

/// dstudent from the teacher and the gradient of the loss. See kl_div_options for the contract.
template <class B = default_backend, class T>
void kl_div_backward(in_matrix<T> teacher, std::type_identity_t<loss_elements<const accumulator_t<T>>> upstream,
                     matrix_view<T> dstudent, kl_div_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  arguments args("kl_div_backward");
  args.memory("dstudent", dstudent);
  const detail::divergence_loss g_of{"upstream", upstream.view, opt.reduction == divergence_reduction::none};
  detail::declare_divergence<accumulator_t<T>>(args, {"", "teacher", teacher, teacher, dstudent}, g_of,
                                               detail::label_span(absent), opt.denominator);
  args.check();
  const detail::kl_div_upstream<A> g(upstream.view, dstudent.rows, dstudent.cols, opt);
  kernel_for<op::kl_div, B>::template backward<B, T>(teacher, g.each, g.factor, dstudent, opt, ctx);
}

/// dteacher from both inputs and the gradient of the loss, for a teacher that learns too. See kl_div_options for the
/// contract.
template <class B = default_backend, class T>
void kl_div_teacher_backward(in_matrix<T> student_log_probs, in_matrix<T> teacher,
                             std::type_identity_t<loss_elements<const accumulator_t<T>>> upstream,
                             matrix_view<T> dteacher, kl_div_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  arguments args("kl_div_teacher_backward");
  args.memory("dteacher", dteacher);
  const detail::divergence_loss g_of{"upstream", upstream.view, opt.reduction == divergence_reduction::none};
  detail::declare_divergence<accumulator_t<T>>(
      args, {"student_log_probs", "teacher", student_log_probs, teacher, dteacher, "dteacher"}, g_of,
      detail::label_span(absent), opt.denominator);
  args.check();
  args.number<A>(opt.eps >= 0 && opt.eps <= 1, "eps", opt.eps, "a number from 0 to 1");
  const detail::kl_div_upstream<A> g(upstream.view, dteacher.rows, dteacher.cols, opt);
  kernel_for<op::kl_div, B>::template teacher_backward<B, T>(student_log_probs, teacher, g.each, g.factor, dteacher,
                                                             opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_KL_DIV_HPP
