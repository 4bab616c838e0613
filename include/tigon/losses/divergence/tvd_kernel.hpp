// The generic kernel of tvd.
#ifndef TIGON_LOSSES_DIVERGENCE_TVD_KERNEL_HPP
#define TIGON_LOSSES_DIVERGENCE_TVD_KERNEL_HPP

#include <tigon/losses/divergence/divergence_rows.hpp>
#include <tigon/losses/divergence/tvd_options.hpp>
#include <tigon/losses/divergence/tvd_program.hpp>

namespace tigon {

template <>
struct kernel<op::tvd, backends::generic> {
  template <class>
  using saved = no_state;  // the inputs

  template <backend B, element T>
  static void forward(in_matrix<T> student, in_matrix<T> teacher, matrix_view<accumulator_t<T>> loss,
                      matrix_view<T> dstudent, const detail::divergence_rows& out, tvd_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const detail::tvd_program<A> program{static_cast<A>(out.scale / 2)};
    const bool elements = opt.reduction == divergence_reduction::none, write = dstudent.data != nullptr;
    const kept_rows kept(out.kept);
    if (elements)
      map_rows<B>(ctx, program, reads(student, teacher), writes(loss), kept);
    else if (write)
      reduce_map<B>(ctx, program, reads(student, teacher), reduce_writes(often_zero{dstudent}), saves(out.loss), kept);
    else
      reduce_map<B>(ctx, program, reads(student, teacher), saves(out.loss), kept);
    if (elements && write) backward<B, T>(student, teacher, {}, A(1), dstudent, out, ctx);
  }

  /// upstream: a matrix, or without memory, and `factor` for all.
  template <backend B, element T>
  static void backward(in_matrix<T> student, in_matrix<T> teacher, in_matrix<accumulator_t<T>> upstream,
                       accumulator_t<T> factor, matrix_view<T> dstudent, const detail::divergence_rows& out,
                       context& ctx) {
    const detail::tvd_gradient<accumulator_t<T>> program{factor / 2};
    const kept_rows kept(out.kept);
    if (upstream.data != nullptr)
      map_rows<B>(ctx, program, reads(student, teacher, upstream), writes(often_zero{dstudent}), kept);
    else
      map_rows<B>(ctx, program, reads(student, teacher), writes(often_zero{dstudent}), kept);
  }
};

}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_TVD_KERNEL_HPP
