// swiglu and geglu, a block of the flat arrays at a time: the parent's programs, tiles around them.
#ifndef TIGON_BACKENDS_ASCEND_GATES_HPP
#define TIGON_BACKENDS_ASCEND_GATES_HPP

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/backends/ascend/unified_buffer.hpp>
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/swiglu.hpp>

namespace tigon {

namespace unified_buffer {
inline namespace TIGON_ABI {

/// y of a program of gate and up.
template <class Plan, class T, class P>
void gate(context& ctx, matrix_view<const T> a, matrix_view<const T> b, matrix_view<T> c, P program) {
  const auto f = [=](auto... v) TIGON_LAMBDA { return program.map(v...); };
  for_blocks<Plan>(
      ctx,
      [=](auto& core, auto& at, auto& bt, auto& ct) TIGON_LAMBDA {
        core.flat_part(reads(at, bt), writes(ct), [=](auto row, auto av, auto bv, auto cv) TIGON_LAMBDA {
          row.map(tigon::reads(av, bv), tigon::writes(cv), f);
        });
      },
      a, b, c);
}

/// dgate and dup of a program of dy, gate and up.
template <class Plan, class T, class P>
void gate_gradient(context& ctx, matrix_view<const T> dc, matrix_view<const T> a, matrix_view<const T> b,
                   matrix_view<T> da, matrix_view<T> db, P program) {
  const auto f = [=](auto... v) TIGON_LAMBDA { return program.map(v...); };
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
  template <class>
  using saved = no_state;
  template <class B, class T, tiling::pass P>
  using plan = ub::plan<B, op::swiglu, P, accumulator_t<T>>;

  template <backend B, element T>
  static void forward(in_matrix<T> a, in_matrix<T> b, matrix_view<T> c, swiglu_options opt, context& ctx) {
    with_program<B, T>(opt,
                       [&](auto program) { ub::gate<plan<B, T, tiling::pass::forward>, T>(ctx, a, b, c, program); });
  }
  template <backend B, element T>
  static void backward(in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da, matrix_view<T> db,
                       swiglu_options opt, context& ctx) {
    with_program<B, T>(opt, [&](auto program) {
      ub::gate_gradient<plan<B, T, tiling::pass::backward>, T>(ctx, dc, a, b, da, db, program);
    });
  }

  /// Without multipliers as with those of 1.
  template <class B, class T, class Run>
  static void with_program(const swiglu_options& opt, Run run) {
    constexpr std::size_t bits = detail::result_bits<B, T>;
    if (opt.limit != std::numeric_limits<double>::infinity() || opt.slope != 1 || opt.up_offset != 0)
      run(detail::clamped_swiglu_program<T, bits, false>(opt));
    else
      run(detail::scaled_swiglu_program<T, bits>(opt));
  }
};

template <>
struct kernel<op::geglu, backends::ascend> {
  template <class>
  using saved = no_state;
  template <class B, class T, tiling::pass P>
  using plan = ub::plan<B, op::geglu, P, accumulator_t<T>>;

  template <backend B, element T>
  static void forward(in_matrix<T> a, in_matrix<T> b, matrix_view<T> c, geglu_options opt, context& ctx) {
    kernel<op::geglu, backends::generic>::with_program<B, T>(
        opt, [&](auto program) { ub::gate<plan<B, T, tiling::pass::forward>, T>(ctx, a, b, c, program); });
  }
  template <backend B, element T>
  static void backward(in_matrix<T> dc, in_matrix<T> a, in_matrix<T> b, matrix_view<T> da, matrix_view<T> db,
                       geglu_options opt, context& ctx) {
    kernel<op::geglu, backends::generic>::with_program<B, T>(opt, [&](auto program) {
      ub::gate_gradient<plan<B, T, tiling::pass::backward>, T>(ctx, dc, a, b, da, db, program);
    });
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_ASCEND_GATES_HPP
