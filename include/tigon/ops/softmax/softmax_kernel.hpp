// The generic kernel of softmax.
#ifndef TIGON_OPS_SOFTMAX_SOFTMAX_KERNEL_HPP
#define TIGON_OPS_SOFTMAX_SOFTMAX_KERNEL_HPP

#include <tigon/ops/softmax/below_max.hpp>
#include <tigon/ops/softmax/softmax_options.hpp>
#include <tigon/ops/softmax/softmax_program.hpp>

namespace tigon {

template <>
struct kernel<op::softmax, backends::generic> {
  template <class>
  using saved = no_state;  // y itself

  template <backend B, element T>
  static void forward(in_matrix<T> x, matrix_view<T> y, softmax_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const detail::softmax_program<detail::result_bits<B, T>, A> program{static_cast<A>(opt.scale)};
    detail::map_below_max<B>(ctx, program, x, y);
  }

  template <backend B, element T>
  static void backward(in_matrix<T> dy, in_matrix<T> y, matrix_view<T> dx, softmax_options opt, context& ctx) {
    using A = accumulator_t<T>;
    reduce_map<B>(ctx, detail::softmax_gradient<A>{static_cast<A>(opt.scale)}, reads(dy, y), writes(dx));
  }
};

/// Bytes of workspace that softmax_forward takes.
template <class B = default_backend, class T>
std::size_t softmax_workspace(std::size_t cols, const context& ctx = default_context<B>()) {
  return detail::below_max_workspace<B, accumulator_t<T>>(cols, ctx);
}

}  // namespace tigon

#endif  // TIGON_OPS_SOFTMAX_SOFTMAX_KERNEL_HPP
