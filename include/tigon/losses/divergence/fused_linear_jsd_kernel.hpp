// The generic kernel of fused_linear_jsd.
#ifndef TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_JSD_KERNEL_HPP
#define TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_JSD_KERNEL_HPP

#include <tigon/losses/divergence/fused_linear_jsd_distillation_kernel.hpp>
#include <tigon/losses/divergence/fused_linear_jsd_options.hpp>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
inline fused_linear_jsd_distillation_options distillation_options(const fused_linear_jsd_options& opt) {
  return {{.weight_hard = 0,
           .weight_soft = 1,
           .temperature = opt.temperature,
           .ignore_index = opt.ignore_index,
           .padding = opt.padding,
           .denominator = opt.denominator,
           .upstream = opt.upstream},
          opt.beta};
}
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::fused_linear_jsd, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, layer_types T, token_id I>
  static void forward(detail::distillation_call<T> t, const I* labels, fused_linear_jsd_options opt,
                      detail::distillation_rows<accumulator_t<T>> rows, context& ctx) {
    kernel_for<op::fused_linear_jsd_distillation, B>::template forward<B, T, I>(
        t, labels, detail::distillation_options(opt), rows, ctx);
  }

  template <backend B, layer_types T, token_id I>
  static void backward(detail::distillation_call<T> t, const I* labels, fused_linear_jsd_options opt,
                       detail::distillation_rows<accumulator_t<T>> rows, context& ctx) {
    kernel_for<op::fused_linear_jsd_distillation, B>::template backward<B, T, I>(
        t, labels, detail::distillation_options(opt), rows, ctx);
  }
};

}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_JSD_KERNEL_HPP
