// The generic kernel of jsd.
#ifndef TIGON_LOSSES_DIVERGENCE_JSD_KERNEL_HPP
#define TIGON_LOSSES_DIVERGENCE_JSD_KERNEL_HPP

#include <tigon/losses/divergence/divergence_rows.hpp>
#include <tigon/losses/divergence/jsd_options.hpp>
#include <tigon/losses/divergence/jsd_program.hpp>

namespace tigon {

template <>
struct kernel<op::jsd, backends::generic> {
  template <class T>
  using saved = std::span<T>;  // dstudent

  template <backend B, element T>
  static void forward(in_matrix<T> student, in_matrix<T> teacher, matrix_view<T> dstudent,
                      const detail::divergence_rows& out, double beta, context& ctx) {
    using A = accumulator_t<T>;
    const A scale = static_cast<A>(out.scale);
    const auto run = [&](auto program) { forward_rows<B>(student, teacher, dstudent, out, program, ctx); };
    if (beta == 0)
      run(detail::forward_kl_program<A>{scale});
    else if (beta == 1)
      run(detail::reverse_kl_program<A>{scale});
    else
      simd::with_jensen_shannon<A>(beta, [&](auto divergence) {
        run(detail::jensen_shannon_program<decltype(divergence), A>{divergence, -divergence.weight * scale});
      });
  }

  /// dstudent = upstream * saved.
  template <backend B, element T>
  static void backward(in_matrix<T> saved_dstudent, accumulator_t<T> upstream, matrix_view<T> dstudent, context& ctx) {
    detail::scale_gradient<B, T>(saved_dstudent, upstream, dstudent, ctx);
  }

  /// The loss of every row, and the gradient if there is memory for it.
  template <backend B, element T, class Program>
  static void forward_rows(matrix_view<const T> student, matrix_view<const T> teacher, matrix_view<T> dstudent,
                           const detail::divergence_rows& out, Program program, context& ctx) {
    const kept_rows kept(out.kept);
    if (dstudent.data != nullptr)
      reduce_map<B>(ctx, program, reads(student, teacher), reduce_writes(often_zero{dstudent}), saves(out.loss), kept);
    else
      reduce_map<B>(ctx, program, reads(student, teacher), saves(out.loss), kept);
  }
};

}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_JSD_KERNEL_HPP
