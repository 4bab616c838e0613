// The generalised Jensen-Shannon divergence of a student's linear layer from a teacher's, neither of whose logits exist
// as a whole.
#ifndef TIGON_LOSSES_FUSED_LINEAR_JSD_HPP
#define TIGON_LOSSES_FUSED_LINEAR_JSD_HPP

#include <tigon/losses/fused_linear_jsd_distillation.hpp>

namespace tigon {

namespace op {
struct fused_linear_jsd {
  static constexpr std::string_view name = "fused_linear_jsd";
};
}  // namespace op

/// fused_linear_jsd_distillation without its hard part: labels, if there are any, only say which rows count.
///
///   loss = 1/n sum_i beta KL(P_i || M_i) + (1 - beta) KL(Q_i || M_i);   beta = 0: KL(P || Q),   beta = 1: KL(Q || P)
///
/// The contract is that of fused_linear_distillation_options, but labels [rows] may be `absent` and of any value: a row
/// counts if its label is not ignore_index. The loss is one number. Throws no index.
/// Workspace: fused_linear_distillation_workspace. Max error as there
/// (tests/losses/fused_linear_distillation_test.cpp).
struct fused_linear_jsd_options {
  double beta = 0.5;       ///< in [0, 1]
  double temperature = 1;  ///< from 1e-30 to 1e30
  std::int64_t ignore_index = -100;
  teacher_padding padding = teacher_padding::neg_inf;
  double denominator = 0;  ///< n, for a batch in several calls; 0: count
  double upstream = 1;     ///< gradients of forward are those of the loss times this
};

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

/// The loss and the student's gradients in one call. See fused_linear_jsd_options for the contract.
template <class B = default_backend, class T, class Labels = absent_t>
void fused_linear_jsd_forward(const linear_layer<T>& student,
                              const std::type_identity_t<distillation_teacher<T>>& teacher, const Labels& labels,
                              std::type_identity_t<std::span<accumulator_t<T>>> loss,
                              std::type_identity_t<linear_gradients<T>> gradients = {},
                              fused_linear_jsd_options opt = {}, context& ctx = default_context()) {
  constexpr std::string_view name = "fused_linear_jsd_forward";
  detail::expect_beta<accumulator_t<T>>(expects(name), opt.beta);
  const distillation_losses<accumulator_t<T>> losses{loss};
  const auto of = detail::distillation_options(opt).distillation;
  detail::distil<B, T, Labels, op_list<op::fused_linear_jsd, op::fused_linear_jsd_distillation>>(
      name, {student, teacher, labels, &losses, gradients, of, opt.upstream, true, false}, ctx,
      [&]<layer_types L, class I>(const detail::distillation_call<L>& call, const I* of_rows, const auto& rows) {
        kernel_for<op::fused_linear_jsd, B>::template forward<B, L, I>(call, of_rows, opt, rows, ctx);
      });
}

/// dx, dw and dbias for an upstream gradient of the loss; everything is computed again.
template <class B = default_backend, class T, class Labels = absent_t>
void fused_linear_jsd_backward(const linear_layer<T>& student,
                               const std::type_identity_t<distillation_teacher<T>>& teacher, const Labels& labels,
                               double upstream, std::type_identity_t<linear_gradients<T>> gradients,
                               fused_linear_jsd_options opt = {}, context& ctx = default_context()) {
  constexpr std::string_view name = "fused_linear_jsd_backward";
  detail::expect_beta<accumulator_t<T>>(expects(name), opt.beta);
  const auto of = detail::distillation_options(opt).distillation;
  detail::distil<B, T, Labels, op_list<op::fused_linear_jsd, op::fused_linear_jsd_distillation>>(
      name, {student, teacher, labels, nullptr, gradients, of, upstream, true, false}, ctx,
      [&]<layer_types L, class I>(const detail::distillation_call<L>& call, const I* of_rows, const auto& rows) {
        kernel_for<op::fused_linear_jsd, B>::template backward<B, L, I>(call, of_rows, opt, rows, ctx);
      });
}

}  // namespace tigon

#endif  // TIGON_LOSSES_FUSED_LINEAR_JSD_HPP
