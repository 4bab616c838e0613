// The generalised Jensen-Shannon divergence of a student's linear layer from a teacher's, neither of whose logits exist
// as a whole.
#ifndef TIGON_LOSSES_FUSED_LINEAR_JSD_HPP
#define TIGON_LOSSES_FUSED_LINEAR_JSD_HPP

#include <tigon/losses/divergence/fused_linear_jsd_kernel.hpp>

namespace tigon {

/// fused_linear_jsd_distillation without its hard part: labels, if there are any, only say which rows count.
///
///   loss = 1/n sum_i beta KL(P_i || M_i) + (1 - beta) KL(Q_i || M_i);   beta = 0: KL(P || Q),   beta = 1: KL(Q || P)
///
/// P, Q and M are those of fused_linear_jsd_distillation_options. All else, workspace and largest error included,
/// is as fused_linear_distillation_options has it (losses/fused_linear_distillation.hpp), with these differences:
/// labels [rows] may be `absent`, and have any value, as a row counts if its label is not ignore_index, and no
/// error_code::index is thrown; the loss is one number (tests/losses/fused_linear_distillation_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), w(100 * 16, 0.1f), dx(x), dw(w), loss(1);
/// const std::vector<std::int64_t> target{1, -100, 3, 99};
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), v.size() / 16, 16); };
/// const tigon::linear_layer layer{rows(x), rows(w)};
/// const tigon::linear_gradients gradients{rows(dx), rows(dw)};
/// const tigon::linear_layer teacher = layer;
/// tigon::fused_linear_jsd_forward(layer, teacher, target, loss, gradients);
/// tigon::fused_linear_jsd_backward(layer, teacher, target, 2, gradients);  // for a gradient of the loss of 2
/// ```
struct fused_linear_jsd_options;

/// The loss and the student's gradients in one call. See fused_linear_jsd_options for the contract.
template <class B = default_backend, class T, class Labels = absent_t>
void fused_linear_jsd_forward(const linear_layer<T>& student,
                              const std::type_identity_t<distillation_teacher<T>>& teacher, const Labels& labels,
                              std::type_identity_t<std::span<accumulator_t<T>>> loss,
                              std::type_identity_t<linear_gradients<T>> gradients = {},
                              fused_linear_jsd_options opt = {}, context& ctx = default_context<B>()) {
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
                               fused_linear_jsd_options opt = {}, context& ctx = default_context<B>()) {
  constexpr std::string_view name = "fused_linear_jsd_backward";
  detail::expect_beta<accumulator_t<T>>(expects(name), opt.beta);
  const auto of = detail::distillation_options(opt).distillation;
  detail::distil<B, T, Labels, op_list<op::fused_linear_jsd, op::fused_linear_jsd_distillation>>(
      name, {student, teacher, labels, nullptr, gradients, of, upstream, true, false}, ctx,
      [&]<layer_types L, class I>(const detail::distillation_call<L>& call, const I* of_rows, const auto& rows) {
        kernel_for<op::fused_linear_jsd, B>::template backward<B, L, I>(call, of_rows, opt, rows, ctx);
      });
}

TIGON_EXPLAINS(fused_linear_jsd_forward)
TIGON_EXPLAINS(fused_linear_jsd_backward)

}  // namespace tigon

#include <tigon/losses/fused_linear_jsd_distillation.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_JSD_HPP
