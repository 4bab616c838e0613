// Divergences of rows. kl_div: blocks of 128 columns and many rows; jsd and tvd: a row at a time.
#ifndef TIGON_BACKENDS_ASCEND_DIVERGENCES_HPP
#define TIGON_BACKENDS_ASCEND_DIVERGENCES_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/losses/jsd.hpp>
#include <tigon/losses/kl_div.hpp>
#include <tigon/losses/tvd.hpp>

namespace tigon {

template <>
struct kernel<op::jsd, backends::ascend> : ub::kernel_on_tiles<op::jsd> {};

template <>
struct kernel<op::tvd, backends::ascend> : ub::kernel_on_tiles<op::tvd> {};

template <>
struct kernel<op::kl_div, backends::ascend> : kernel<op::kl_div, backends::generic> {
  using lanes = kernel<op::kl_div, backends::generic>;
  template <backend B, tiling::pass P>
  using tiles = ub::on_tiles<B, op::kl_div, P>;

  /// Blocks of 128 columns, of as many rows as fit.
  template <class Plan>
  static constexpr ub::cut forward_cut(std::size_t rows, std::size_t cols) {
    const std::size_t width = std::clamp<std::size_t>(tiling::next_power_of_two(cols), 1, 128);
    const std::size_t fits = std::min(Plan::area / width, tiling::next_power_of_two(rows));
    return {std::clamp<std::size_t>(fits, 1, Plan::most_rows), std::clamp<std::size_t>(cols, 1, width), Plan::programs};
  }

  /// A teacher of logarithms takes fewer tiles.
  template <backend B, element T>
  static void forward(in_matrix<T> student, in_matrix<T> teacher, matrix_view<accumulator_t<T>> loss,
                      matrix_view<T> dstudent, const detail::divergence_rows& out, kl_div_options opt, context& ctx) {
    if (opt.log_target)
      lanes::template forward<tiles<B, tiling::pass::plain_forward>, T>(student, teacher, loss, dstudent, out, opt,
                                                                        ctx);
    else
      lanes::template forward<tiles<B, tiling::pass::forward>, T>(student, teacher, loss, dstudent, out, opt, ctx);
  }
  /// So does one upstream gradient for all.
  template <backend B, element T>
  static void backward(in_matrix<T> teacher, in_matrix<accumulator_t<T>> upstream, accumulator_t<T> factor,
                       matrix_view<T> dstudent, kl_div_options opt, context& ctx) {
    if (upstream.data != nullptr)
      return lanes::template backward<tiles<B, tiling::pass::backward>, T>(teacher, upstream, factor, dstudent, opt,
                                                                           ctx);
    lanes::with_target(opt, [&](auto log) {
      map_rows<tiles<B, tiling::pass::plain_backward>>(
          ctx, detail::kl_div_gradient<log.value, accumulator_t<T>>{-factor}, reads(teacher), writes(dstudent));
    });
  }
  template <backend B, element T, class... Argument>
  static void teacher_backward(Argument&&... argument) {
    lanes::template teacher_backward<tiles<B, tiling::pass::forward>, T>(argument...);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_DIVERGENCES_HPP
