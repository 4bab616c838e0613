// The generic kernel of kl_div.
#ifndef TIGON_LOSSES_DIVERGENCE_KL_DIV_KERNEL_HPP
#define TIGON_LOSSES_DIVERGENCE_KL_DIV_KERNEL_HPP

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

}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_KL_DIV_KERNEL_HPP
