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

/// c = f(a, b).
template <class Plan, class T, class F>
void gate(context& ctx, matrix_view<const T> a, matrix_view<const T> b, matrix_view<T> c, F f) {
  for_blocks<Plan>(
      ctx,
      [=](auto& core, auto& at, auto& bt, auto& ct) TIGON_LAMBDA {
        core.flat_part(reads(at, bt), writes(ct), [=](auto row, auto av, auto bv, auto cv) TIGON_LAMBDA {
          row.map(tigon::reads(av, bv), tigon::writes(cv), f);
        });
      },
      a, b, c);
}

/// da and db are f(dc, a, b).
template <class Plan, class T, class F>
void gate_gradient(context& ctx, matrix_view<const T> dc, matrix_view<const T> a, matrix_view<const T> b,
                   matrix_view<T> da, matrix_view<T> db, F f) {
  for_blocks<Plan>(
      ctx,
      [=](auto& core, auto& dct, auto& at, auto& bt, auto& dat, auto& dbt) TIGON_LAMBDA {
        core.flat_part(reads(dct, at, bt), writes(dat, dbt),
                       [=](auto row, auto dcv, auto av, auto bv, auto dav, auto dbv)
                           TIGON_LAMBDA { row.map(tigon::reads(dcv, av, bv), tigon::writes(dav, dbv), f); });
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
    with_form<B, T>(opt, [&](auto form) { ub::gate<plan<B, T, tiling::pass::forward>, T>(ctx, a, b, c, form); });
  }
  template <backend B, element T>
  static void backward(in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da, matrix_view<T> db,
                       swiglu_options opt, context& ctx) {
    with_form<B, T>(
        opt, [&](auto form) { ub::gate_gradient<plan<B, T, tiling::pass::backward>, T>(ctx, dc, a, b, da, db, form); });
  }

  /// The parent's forms of one element; without multipliers as with those of 1.
  template <class B, class T, class Run>
  static void with_form(const swiglu_options& opt, Run run) {
    if (lanes::holds(opt))
      run(lanes::held<B, T>(opt));
    else
      run(lanes::scaled<B, T>(opt));
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
      ub::gate<plan<B, T, tiling::pass::forward>, T>(ctx, a, b, c, [=](auto x, auto y) TIGON_LAMBDA {
        const auto v = lanes::template gelu<F, detail::result_bits<B, T>>(x);
        return (round_gate ? round_to<T>(v) : v) * y;
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
          ctx, dc, a, b, da, db, [=](auto d, auto x, auto y) TIGON_LAMBDA {
            const auto [v, slope] = lanes::template gelu_and_slope<F, detail::result_bits<B, T>>(x);
            return pack{d * y * slope, d * (round_gate ? round_to<T>(v) : v)};
          });
    };
    opt.form == gelu_form::tanh ? with(form<gelu_form::tanh>{}) : with(form<gelu_form::erf>{});
  }

  template <gelu_form F>
  using form = std::integral_constant<gelu_form, F>;
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_GATES_HPP
