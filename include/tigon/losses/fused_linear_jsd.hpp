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
  double denominator = 0;                  ///< n, for a batch in several calls; 0: count
  gradient dparams = gradient::overwrite;  ///< of dw and dbias
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
           .dparams = opt.dparams},
          opt.beta};
}
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::fused_linear_jsd, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T, token_id I>
  static void forward(detail::distillation_call<T> t, const I* labels, fused_linear_jsd_options opt,
                      detail::distillation_rows<accumulator_t<T>> rows, context& ctx) {
    kernel_for<op::fused_linear_jsd_distillation, B>::template forward<B, T, I>(
        t, labels, detail::distillation_options(opt), rows, ctx);
  }

  template <backend B, element T, token_id I>
  static void backward(detail::distillation_call<T> t, const I* labels, fused_linear_jsd_options opt,
                       detail::distillation_rows<accumulator_t<T>> rows, context& ctx) {
    kernel_for<op::fused_linear_jsd_distillation, B>::template backward<B, T, I>(
        t, labels, detail::distillation_options(opt), rows, ctx);
  }
};

/// The loss and the student's gradients in one call. dx and dw may be views without memory. See
/// fused_linear_jsd_options for the contract.
template <class B = default_backend, class T, class Labels = absent_t, parameter Bias = absent_t,
          parameter DBias = absent_t>
void fused_linear_jsd_forward(in_matrix<T> x, std::type_identity_t<linear_weights<T>> w,
                              std::type_identity_t<distillation_teacher<T>> teacher, const Labels& labels,
                              std::type_identity_t<std::span<accumulator_t<T>>> loss, matrix_view<T> dx,
                              std::type_identity_t<matrix_view<T>> dw, fused_linear_jsd_options opt = {},
                              const Bias& bias = absent, DBias&& dbias = absent_t{}, double upstream = 1,
                              context& ctx = default_context()) {
  constexpr std::string_view name = "fused_linear_jsd_forward";
  detail::expect_beta(name, opt.beta);
  const distillation_losses<accumulator_t<T>> losses{loss};
  detail::distil<B, T>(name, x, w, teacher, labels, &losses, dx, dw, detail::distillation_options(opt).distillation,
                       bias, dbias, upstream, true, false, ctx,
                       [&]<class I>(const auto& call, const I* of_rows, const auto& rows) {
                         kernel_for<op::fused_linear_jsd, B>::template forward<B, T, I>(call, of_rows, opt, rows, ctx);
                       });
}

/// dx, dw and dbias for an upstream gradient of the loss; everything is computed again.
template <class B = default_backend, class T, class Labels = absent_t, parameter Bias = absent_t,
          parameter DBias = absent_t>
void fused_linear_jsd_backward(in_matrix<T> x, std::type_identity_t<linear_weights<T>> w,
                               std::type_identity_t<distillation_teacher<T>> teacher, const Labels& labels,
                               double upstream, matrix_view<T> dx, std::type_identity_t<matrix_view<T>> dw,
                               fused_linear_jsd_options opt = {}, const Bias& bias = absent, DBias&& dbias = absent_t{},
                               context& ctx = default_context()) {
  constexpr std::string_view name = "fused_linear_jsd_backward";
  detail::expect_beta(name, opt.beta);
  detail::distil<B, T>(name, x, w, teacher, labels, nullptr, dx, dw, detail::distillation_options(opt).distillation,
                       bias, dbias, upstream, true, false, ctx,
                       [&]<class I>(const auto& call, const I* of_rows, const auto& rows) {
                         kernel_for<op::fused_linear_jsd, B>::template backward<B, T, I>(call, of_rows, opt, rows, ctx);
                       });
}

}  // namespace tigon

#endif  // TIGON_LOSSES_FUSED_LINEAR_JSD_HPP
