// The generic kernel of cross_entropy_divergence.
#ifndef TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_DIVERGENCE_KERNEL_HPP
#define TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_DIVERGENCE_KERNEL_HPP

#include <tigon/losses/divergence/divergence_rows.hpp>
#include <tigon/losses/softmax/cross_entropy_divergence_options.hpp>
#include <tigon/losses/softmax/cross_entropy_kernel.hpp>
#include <tigon/losses/softmax/divergence_of_row.hpp>

namespace tigon {

template <>
struct kernel<op::cross_entropy_tvd, backends::generic> {
  using forward_only = void;

  /// Losses of rows, and dlogits if there is memory for it.
  template <backend B, element T, token_id I>
  static void forward(const detail::cross_entropy_divergence_call<T>& of, const I* target,
                      const cross_entropy_divergence_options&, context& ctx) {
    detail::cross_entropy_divergence<B, T, I>(of, target, detail::tvd_columns<accumulator_t<T>>{}, ctx);
  }
};

template <>
struct kernel<op::cross_entropy_jsd, backends::generic> {
  using forward_only = void;

  /// The same.
  template <backend B, element T, token_id I>
  static void forward(const detail::cross_entropy_divergence_call<T>& of, const I* target,
                      const cross_entropy_divergence_options& opt, context& ctx) {
    using A = accumulator_t<T>;
    simd::with_divergence<A>(opt.beta, [&](const auto& divergence) {
      using D = std::remove_cvref_t<decltype(divergence)>;
      detail::cross_entropy_divergence<B, T, I>(of, target, detail::jsd_columns<A, D>(divergence), ctx);
    });
  }
};

namespace detail {
inline namespace TIGON_ABI {
/// The call of Op's kernel, and the totals of the losses of rows. `ce` are the options of cross entropy.
template <class Op, class B, element T, token_id I, class Weight>
void cross_entropy_divergence_on_host(const cross_entropy_divergence_arguments<T>& of, std::span<const I> targets,
                                      Weight weight, const cross_entropy_options& ce, context& ctx) {
  using A = accumulator_t<T>;
  const auto& opt = of.opt;
  const std::size_t rows = of.logits.rows, vocab = of.logits.cols;
  workspace::frame frame(ctx.workspace());
  const loss_rows<A> of_rows(of.name, frame, targets, vocab, weight, {}, ce, ctx);
  double* divergence = frame.template take<double>(rows);
  const double n = opt.denominator != 0 ? opt.denominator : static_cast<double>(of_rows.kept);
  const double share = opt.reduction != reduction::mean ? 1 : of_rows.kept == 0 ? 0 : 1 / n;
  const bool diverges = opt.weight_divergence != 0 || of.losses.divergence.data() != nullptr;
  const cross_entropy_divergence_call<T> call{of.logits,
                                              of.teacher,
                                              of.dlogits,
                                              {of_rows.weight, of_rows.weight == nullptr ? 0 : vocab},
                                              {ce, of_rows.scale, of_rows.out, vocab},
                                              of_rows.out,
                                              diverges ? divergence : nullptr,
                                              static_cast<A>(opt.upstream * opt.weight_ce),
                                              static_cast<A>(opt.upstream * opt.weight_divergence * share),
                                              static_cast<A>(1 / opt.temperature),
                                              opt.label_smoothing > 0,
                                              opt.temperature == 1,
                                              opt.ignore_index};
  kernel_for<Op, B>::template forward<B, T, I>(call, targets.data(), opt, ctx);

  const auto put = [&](std::span<A> to, auto value) {
    if (to.data() == nullptr) return;
    double total = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      total += value(i);
      if (opt.reduction == reduction::none) to[i] = static_cast<A>(value(i));
    }
    if (opt.reduction != reduction::none) to[0] = static_cast<A>(total);
  };
  const auto part = [](double weight_of, double value) { return weight_of == 0 ? 0 : weight_of * value; };
  const auto distance = [&](std::size_t i) { return diverges ? share * divergence[i] : 0; };
  put(of.losses.ce, [&](std::size_t i) { return of_rows.out.loss[i]; });
  put(of.losses.divergence, distance);
  put(of.losses.loss, [&](std::size_t i) {
    return part(opt.weight_ce, of_rows.out.loss[i]) + part(opt.weight_divergence, distance(i));
  });
}
/// The same; the kernel of a device with memory of its own takes these arguments, and makes the totals there.
template <class Op, class B, element T, token_id I, class Weight>
void compute_cross_entropy_divergence(const cross_entropy_divergence_arguments<T>& of, std::span<const I> targets,
                                      Weight weight, const cross_entropy_options& ce, context& ctx) {
  if constexpr (host_memory<B>)
    cross_entropy_divergence_on_host<Op, B, T, I>(of, targets, weight, ce, ctx);
  else
    kernel_for<Op, B>::template forward<B, T, I>(of, targets, weight, ce, ctx);
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_DIVERGENCE_KERNEL_HPP
