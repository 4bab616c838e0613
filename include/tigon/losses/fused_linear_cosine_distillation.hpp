// Distillation by labels and by the angle between the logits of student and teacher.
#ifndef TIGON_LOSSES_FUSED_LINEAR_COSINE_DISTILLATION_HPP
#define TIGON_LOSSES_FUSED_LINEAR_COSINE_DISTILLATION_HPP

#include <tigon/losses/divergence/fused_linear_cosine_distillation_kernel.hpp>

namespace tigon {

/// fused_linear_distillation with, for s = z_i / |z_i| and t = t_i / |t_i| of the teacher and r = s - t,
///
///   soft_i = beta (1 - s t) = beta / 2 |r|^2             d soft_i / dz = beta / |z_i| (r - |r|^2 / 2 s)
///
/// The second forms do not cancel where student and teacher agree. Everything else is as
/// fused_linear_distillation_options has it (losses/fused_linear_distillation.hpp), but the temperature has no effect,
/// and a teacher with a larger vocabulary requires zero_logit or drop_teacher. Edges: a row of zeros (or of numbers
/// below the smallest normal one) has soft_i = beta and no gradient of it.
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), w(100 * 16, 0.1f), dx(x), dw(w), loss(1);
/// const std::vector<std::int64_t> target{1, -100, 3, 99};
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), v.size() / 16, 16); };
/// const tigon::linear_layer layer{rows(x), rows(w)};
/// const tigon::linear_gradients gradients{rows(dx), rows(dw)};
/// const tigon::linear_layer teacher = layer;
/// tigon::fused_linear_cosine_distillation_forward(layer, teacher, target, {loss}, gradients);
/// tigon::fused_linear_cosine_distillation_backward(layer, teacher, target, 2, gradients);
/// ```
struct fused_linear_cosine_distillation_options;

/// Losses and gradients in one call. See fused_linear_cosine_distillation_options and fused_linear_distillation_options
/// for the contract.
template <class B = default_backend, class T, class Target>
void fused_linear_cosine_distillation_forward(const linear_layer<T>& student,
                                              const std::type_identity_t<distillation_teacher<T>>& teacher,
                                              const Target& target,
                                              std::type_identity_t<distillation_losses<accumulator_t<T>>> losses,
                                              std::type_identity_t<linear_gradients<T>> gradients = {},
                                              fused_linear_cosine_distillation_options opt = {},
                                              context& ctx = default_context<B>()) {
  constexpr std::string_view name = "fused_linear_cosine_distillation_forward";
  expects(name).finite<accumulator_t<T>>("beta", opt.beta);
  detail::distil<B, T, Target, op_list<op::fused_linear_cosine_distillation>>(
      name, {student, teacher, target, &losses, gradients, opt.distillation, opt.distillation.upstream, false}, ctx,
      [&]<layer_types L, class I>(const detail::distillation_call<L>& call, const I* labels, const auto& rows) {
        kernel_for<op::fused_linear_cosine_distillation, B>::template forward<B, L, I>(call, labels, opt, rows, ctx);
      });
}

/// dx, dw and dbias for an upstream gradient of the loss; everything is computed again.
template <class B = default_backend, class T, class Target>
void fused_linear_cosine_distillation_backward(const linear_layer<T>& student,
                                               const std::type_identity_t<distillation_teacher<T>>& teacher,
                                               const Target& target, double upstream,
                                               std::type_identity_t<linear_gradients<T>> gradients,
                                               fused_linear_cosine_distillation_options opt = {},
                                               context& ctx = default_context<B>()) {
  constexpr std::string_view name = "fused_linear_cosine_distillation_backward";
  expects(name).finite<accumulator_t<T>>("beta", opt.beta);
  detail::distil<B, T, Target, op_list<op::fused_linear_cosine_distillation>>(
      name, {student, teacher, target, nullptr, gradients, opt.distillation, upstream, false}, ctx,
      [&]<layer_types L, class I>(const detail::distillation_call<L>& call, const I* labels, const auto& rows) {
        kernel_for<op::fused_linear_cosine_distillation, B>::template backward<B, L, I>(call, labels, opt, rows, ctx);
      });
}

TIGON_EXPLAINS(fused_linear_cosine_distillation_forward)
TIGON_EXPLAINS(fused_linear_cosine_distillation_backward)

}  // namespace tigon

#include <tigon/losses/fused_linear_distillation.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_COSINE_DISTILLATION_HPP
