// Distillation by labels and by the angle between the logits of student and teacher.
#ifndef TIGON_LOSSES_FUSED_LINEAR_COSINE_DISTILLATION_HPP
#define TIGON_LOSSES_FUSED_LINEAR_COSINE_DISTILLATION_HPP

#include <tigon/losses/fused_linear_distillation.hpp>

namespace tigon {

namespace op {
struct fused_linear_cosine_distillation {
  static constexpr std::string_view name = "fused_linear_cosine_distillation";
};
}  // namespace op

/// fused_linear_distillation with, for s = z_i / |z_i| and t = t_i / |t_i| of the teacher and r = s - t,
///
///   soft_i = beta (1 - s t) = beta / 2 |r|^2             d soft_i / dz = beta / |z_i| (r - |r|^2 / 2 s)
///
/// The second forms do not cancel where student and teacher agree. Everything else as
/// fused_linear_distillation_options, but the temperature has no effect, and a teacher with a larger vocabulary
/// requires zero_logit or drop_teacher. Edges: a row of zeros (or of numbers below the smallest normal one) has soft_i
/// = beta and no gradient of it.
struct fused_linear_cosine_distillation_options {
  fused_linear_distillation_options distillation;
  double beta = 0.5;
};

/// The soft loss.
template <class A>
struct cosine_soft {
  static constexpr bool takes_neg_inf = false;
  A beta;

  /// A row times by_largest, then times by_length, has length 1; in two steps, so that no square overflows.
  struct unit {
    A by_largest, by_length;
    template <class V>
    TIGON_INLINE V operator()(V v) const {
      return (v * by_largest) * by_length;
    }
    TIGON_INLINE bool zero() const { return by_length == A(0); }
  };
  template <class Row>
  static TIGON_NOINLINE unit unit_of(Row row, vector_view<A> z) {
    constexpr A least = std::numeric_limits<A>::min();
    const A most = row.max(reads(z), [](auto v) { return abs(v); }), by_largest = most < least ? A(1) : A(1) / most;
    const A square = row.sum(reads(z), [=](auto v) { return (v * by_largest) * (v * by_largest); });
    return {by_largest, square == A(0) ? A(0) : math::rsqrt(square)};
  }

  struct terms {
    A beta;
    unit student, teacher;

    template <class V>
    TIGON_INLINE pack<V, 4> operator()(V v, V t) const {
      const V s = student(v), r = s - teacher(t);
      return {{r, s, r * r, r * r}};
    }
    TIGON_INLINE soft_loss_row<A> finish(A square, A) const {
      if (student.zero() || teacher.zero()) return {beta, A(0), A(0)};
      return {beta * (A(0.5) * square), A(-0.5) * square, (beta * student.by_largest) * student.by_length};
    }
  };
  template <class Row>
  TIGON_INLINE terms operator()(Row row, vector_view<A> z, vector_view<A> teacher) const {
    return {beta, unit_of(row, z), unit_of(row, teacher)};
  }
};

template <>
struct kernel<op::fused_linear_cosine_distillation, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, layer_types T, token_id I>
  static void forward(detail::distillation_call<T> t, const I* target, fused_linear_cosine_distillation_options opt,
                      detail::distillation_rows<accumulator_t<T>> rows, context& ctx) {
    using A = accumulator_t<T>;
    kernel_for<op::fused_linear_distillation, B>::template forward<B, T, I>(
        t, target, cosine_soft<A>{static_cast<A>(opt.beta)}, rows, ctx);
  }

  template <backend B, layer_types T, token_id I>
  static void backward(detail::distillation_call<T> t, const I* target, fused_linear_cosine_distillation_options opt,
                       detail::distillation_rows<accumulator_t<T>> rows, context& ctx) {
    using A = accumulator_t<T>;
    kernel_for<op::fused_linear_distillation, B>::template backward<B, T, I>(
        t, target, cosine_soft<A>{static_cast<A>(opt.beta)}, rows, ctx);
  }
};

/// Losses and gradients in one call. See fused_linear_cosine_distillation_options and fused_linear_distillation_options
/// for the contract.
template <class B = default_backend, class T, class Target>
void fused_linear_cosine_distillation_forward(const linear_layer<T>& student,
                                              const std::type_identity_t<distillation_teacher<T>>& teacher,
                                              const Target& target,
                                              std::type_identity_t<distillation_losses<accumulator_t<T>>> losses,
                                              std::type_identity_t<linear_gradients<T>> gradients = {},
                                              fused_linear_cosine_distillation_options opt = {},
                                              context& ctx = default_context()) {
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
                                               context& ctx = default_context()) {
  constexpr std::string_view name = "fused_linear_cosine_distillation_backward";
  expects(name).finite<accumulator_t<T>>("beta", opt.beta);
  detail::distil<B, T, Target, op_list<op::fused_linear_cosine_distillation>>(
      name, {student, teacher, target, nullptr, gradients, opt.distillation, upstream, false}, ctx,
      [&]<layer_types L, class I>(const detail::distillation_call<L>& call, const I* labels, const auto& rows) {
        kernel_for<op::fused_linear_cosine_distillation, B>::template backward<B, L, I>(call, labels, opt, rows, ctx);
      });
}

}  // namespace tigon

#endif  // TIGON_LOSSES_FUSED_LINEAR_COSINE_DISTILLATION_HPP
