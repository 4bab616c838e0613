// The generic kernel of fused_linear_jsd_distillation.
#ifndef TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_JSD_DISTILLATION_KERNEL_HPP
#define TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_JSD_DISTILLATION_KERNEL_HPP

#include <tigon/losses/divergence/divergence_rows.hpp>
#include <tigon/losses/divergence/fused_linear_distillation_kernel.hpp>
#include <tigon/losses/divergence/fused_linear_jsd_distillation_options.hpp>
#include <tigon/simd/math/divergence.hpp>

namespace tigon {

/// The soft loss: `Divergence` is one of divergence.hpp.
template <class A, class Divergence>
struct jsd_soft {
  static constexpr bool takes_neg_inf = true;
  Divergence divergence;
  detail::tempered<A> by;

  jsd_soft(Divergence of, double temperature) : divergence(of), by(temperature) {}

  struct terms {
    Divergence divergence;
    detail::tempered<A> by;
    detail::log_sum<A> student, teacher;
    A shift;

    template <class V>
    TIGON_INLINE simd::divergence_terms<V> of(V v, V t) const {
      return divergence(log_of(v, student), log_of(t, teacher), shift);
    }
    /// log softmax(z / temperature): one rounding where 1 / temperature is a number of A.
    template <class V>
    TIGON_INLINE V log_of(V z, const detail::log_sum<A>& of_row) const {
      return by.distance(z - V(of_row.top), of_row.tail);
    }
    template <class V>
    TIGON_INLINE pack<V, 4> operator()(V v, V t) const {
      const auto d = of(v, t);
      return {{d.qc, d.q, d.value, d.qc}};
    }
    TIGON_INLINE soft_loss_row<A> finish(A value, A of_u) const {
      return {value, -of_u, -divergence.weight * by.inverse};
    }
  };
  template <class Row>
  TIGON_INLINE terms operator()(Row row, vector_view<A> z, vector_view<A> teacher) const {
    terms of_row{divergence, by, detail::log_sum_of(row, z, by), detail::log_sum_of(row, teacher, by), A(0)};
    // One column has more than four fifths of Q. Its c comes from the lanes that the row goes through.
    if (of_row.student.d < A(0.25)) {
      const A top = of_row.student.top, lowest = std::numeric_limits<A>::lowest();
      const A of_teacher = row.max(reads(z, teacher), [=](auto v, auto t) {
        using V = decltype(v);
        return select(v == V(top), t, V(lowest));
      });
      const A c = row.part(0, 1).sum(reads(z, constant(top), constant(of_teacher)),
                                     [=](auto, auto v, auto t) { return of_row.of(v, t).c; });
      if (math::abs(c) <= std::numeric_limits<A>::max()) of_row.shift = c;
    }
    return of_row;
  }
};

template <>
struct kernel<op::fused_linear_jsd_distillation, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, layer_types T, token_id I>
  static void forward(detail::distillation_call<T> t, const I* target, fused_linear_jsd_distillation_options opt,
                      detail::distillation_rows<accumulator_t<T>> rows, context& ctx) {
    using A = accumulator_t<T>;
    simd::with_divergence<A>(opt.beta, [&](auto divergence) {
      kernel_for<op::fused_linear_distillation, B>::template forward<B, T, I>(
          t, target, jsd_soft<A, decltype(divergence)>(divergence, opt.distillation.temperature), rows, ctx);
    });
  }

  template <backend B, layer_types T, token_id I>
  static void backward(detail::distillation_call<T> t, const I* target, fused_linear_jsd_distillation_options opt,
                       detail::distillation_rows<accumulator_t<T>> rows, context& ctx) {
    forward<B, T, I>(t, target, opt, rows, ctx);
  }
};

}  // namespace tigon

#endif  // TIGON_LOSSES_DIVERGENCE_FUSED_LINEAR_JSD_DISTILLATION_KERNEL_HPP
