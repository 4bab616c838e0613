// swiglu and geglu, a block of the flat arrays at a time: the parent's functions of one element, tiles around them.
#ifndef TIGON_BACKENDS_ASCEND_GATES_HPP
#define TIGON_BACKENDS_ASCEND_GATES_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/swiglu.hpp>

namespace tigon {

namespace unified_buffer {
inline namespace TIGON_ABI {

/// c = value(a) * b * factor.
template <class Plan, class T, class Value>
void gate(context& ctx, matrix_view<const T> a, matrix_view<const T> b, matrix_view<T> c,
          typename Plan::accumulator factor, Value value) {
  for_blocks<Plan>(
      ctx,
      [=](auto& core, auto& at, auto& bt, auto& ct) TIGON_LAMBDA {
        core.flat_part(reads(at, bt), writes(ct), [=](auto row, auto av, auto bv, auto cv) TIGON_LAMBDA {
          row.map(
              cv, [=](auto x, auto y) TIGON_LAMBDA { return value(x) * y * factor; }, av, bv);
        });
      },
      a, b, c);
}

/// da = dc * b * v[1] * of_a, db = dc * v[0] * of_b, where v is value and slope of the gate at a.
template <class Plan, class T, class Value>
void gate_gradient(context& ctx, matrix_view<const T> dc, matrix_view<const T> a, matrix_view<const T> b,
                   matrix_view<T> da, matrix_view<T> db, typename Plan::accumulator of_a,
                   typename Plan::accumulator of_b, Value value_and_slope) {
  for_blocks<Plan>(
      ctx,
      [=](auto& core, auto& dct, auto& at, auto& bt, auto& dat, auto& dbt) TIGON_LAMBDA {
        core.flat_part(reads(dct, at, bt), writes(dat, dbt),
                       [=](auto row, auto dcv, auto av, auto bv, auto dav, auto dbv) TIGON_LAMBDA {
                         row.map(
                             outs(dav, dbv),
                             [=](auto d, auto x, auto y) TIGON_LAMBDA {
                               const auto v = value_and_slope(x);
                               return pack{d * y * v[1] * of_a, d * v[0] * of_b};
                             },
                             dcv, av, bv);
                       });
      },
      dc, a, b, da, db);
}

}  // namespace TIGON_ABI
}  // namespace unified_buffer

template <>
struct kernel<op::swiglu, backends::ascend> {
  using lanes = kernel<op::swiglu, backends::generic>;
  template <class>
  using saved = no_state;
  template <class B, class T, tiling::pass P>
  using plan = ub::plan<B, op::swiglu, P, accumulator_t<T>>;

  template <backend B, element T>
  static void forward(in_matrix<T> a, in_matrix<T> b, matrix_view<T> c, swiglu_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const A g = static_cast<A>(opt.gate_multiplier), d = static_cast<A>(opt.down_multiplier);
    using P = plan<B, T, tiling::pass::forward>;
    const bool round_gate = opt.round_gate && sizeof(T) == 2;
    ub::gate<P, T>(ctx, a, b, c, d, [=](auto z) TIGON_LAMBDA {
      const auto v = lanes::template silu<detail::gate_bits<B, T>>(z * g);
      return round_gate ? round_to<T>(v) : v;
    });
  }
  template <backend B, element T>
  static void backward(in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da, matrix_view<T> db,
                       swiglu_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const A g = static_cast<A>(opt.gate_multiplier), d = static_cast<A>(opt.down_multiplier);
    using P = plan<B, T, tiling::pass::backward>;
    const bool round_gate = opt.round_gate && sizeof(T) == 2;
    ub::gate_gradient<P, T>(ctx, dc, a, b, da, db, d * g, d, [=](auto z) TIGON_LAMBDA {
      auto v = lanes::template silu_and_slope<detail::gate_bits<B, T>>(z * g);
      if (round_gate) v[0] = round_to<T>(v[0]);
      return v;
    });
  }
};

template <>
struct kernel<op::geglu, backends::ascend> {
  using lanes = kernel<op::geglu, backends::generic>;
  template <class>
  using saved = no_state;
  template <class B, class T, tiling::pass P>
  using plan = ub::plan<B, op::geglu, P, accumulator_t<T>>;

  template <backend B, element T>
  static void forward(in_matrix<T> a, in_matrix<T> b, matrix_view<T> c, geglu_options opt, context& ctx) {
    const bool round_gate = opt.round_gate && sizeof(T) == 2;
    const auto with = [&]<gelu_form F>(std::integral_constant<gelu_form, F>) {
      ub::gate<plan<B, T, tiling::pass::forward>, T>(ctx, a, b, c, accumulator_t<T>(1), [=](auto z) TIGON_LAMBDA {
        const auto v = lanes::template gelu<F, detail::gate_bits<B, T>>(z);
        return round_gate ? round_to<T>(v) : v;
      });
    };
    opt.form == gelu_form::tanh ? with(form<gelu_form::tanh>{}) : with(form<gelu_form::erf>{});
  }
  template <backend B, element T>
  static void backward(in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da, matrix_view<T> db,
                       geglu_options opt, context& ctx) {
    const bool round_gate = opt.round_gate && sizeof(T) == 2;
    const auto with = [&]<gelu_form F>(std::integral_constant<gelu_form, F>) {
      ub::gate_gradient<plan<B, T, tiling::pass::backward>, T>(
          ctx, dc, a, b, da, db, accumulator_t<T>(1), accumulator_t<T>(1), [=](auto z) TIGON_LAMBDA {
            auto v = lanes::template gelu_and_slope<F, detail::gate_bits<B, T>>(z);
            if (round_gate) v[0] = round_to<T>(v[0]);
            return v;
          });
    };
    opt.form == gelu_form::tanh ? with(form<gelu_form::tanh>{}) : with(form<gelu_form::erf>{});
  }

  template <gelu_form F>
  using form = std::integral_constant<gelu_form, F>;
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_GATES_HPP
