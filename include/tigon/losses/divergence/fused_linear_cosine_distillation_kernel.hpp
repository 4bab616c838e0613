// The generic kernel of fused_linear_cosine_distillation.
#ifndef TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_COSINE_DISTILLATION_KERNEL_HPP
#define TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_COSINE_DISTILLATION_KERNEL_HPP

#include <tigon/losses/divergence/fused_linear_cosine_distillation_options.hpp>
#include <tigon/losses/divergence/fused_linear_distillation_kernel.hpp>

namespace tigon {

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
  static TIGON_RARE unit unit_of(Row row, vector_view<A> z) {
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

}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_COSINE_DISTILLATION_KERNEL_HPP
