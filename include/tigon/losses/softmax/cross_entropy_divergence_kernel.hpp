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

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_CROSS_ENTROPY_DIVERGENCE_KERNEL_HPP
