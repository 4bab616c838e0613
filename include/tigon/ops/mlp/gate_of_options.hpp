// The gate of the gated MLP, by the options that name it, and what its biases are made of.
#ifndef TIGON_OPS_MLP_GATE_OF_OPTIONS_HPP
#define TIGON_OPS_MLP_GATE_OF_OPTIONS_HPP

#include <tigon/ops/gate/geglu_kernel.hpp>
#include <tigon/ops/gate/swiglu_kernel.hpp>
#include <tigon/ops/mlp/mlp_options.hpp>
#include <tigon/ops/mlp/sum_blocks.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// factor x
template <class A>
struct multiple_program {
  A factor;

  template <class V>
  TIGON_INLINE V map(V x) const {
    return x * V(factor);
  }
};
/// sum of a column += factor x
template <class A>
struct multiple_sum_program {
  A factor;

  template <class V>
  TIGON_INLINE V map(V x, V sum) const {
    return fma(x, V(factor), sum);
  }
};

/// a of a gate's program, and g and u as they come.
template <class P>
struct gate_with_operands {
  P program;
  template <class V>
  TIGON_INLINE pack<V, 3> map(V g, V u) const {
    return {{program.map(g, u), g, u}};
  }
};

/// Whether the gates of R are the library's programs. Then a pass over sums in f32 has operands of other types besides;
/// otherwise a gate has operands of one type.
template <class R>
inline constexpr bool gates_are_programs = std::same_as<provider_t<op::swiglu, R>, backends::generic> &&
                                           std::same_as<provider_t<op::geglu, R>, backends::generic>;

/// The gate Op of an MLP of type T on R, which has rows alone, by sums of type A. `own`: of a part, whose sums may be
/// overwritten.
///
///   forward(g, u, a)         a = act(g) u
///   backward(p, g, u)        g and u become dg and du
///   forward(g, u, to)        as T: a, and g and u where they have memory
///   backward(p, g, u, at)    as T; `at`: for sums of g and u, unless gates_are_programs
template <class R, element T, class Op, class Options>
struct gate_of_op {
  using A = accumulator_t<T>;
  using K = kernel_for<Op, R>;
  Options options;
  context& own;

  /// run(program) with the one that the options select for results of type E, if gates_are_programs.
  template <element E, class Run>
  void with_program(Run run) const {
    K::template with_program<R, E>(options, run);
  }
  void forward(in_matrix<A> g, in_matrix<A> u, matrix_view<A> a) const {
    K::template forward<R, A>(g, u, a, options, own);
  }
  void backward(in_matrix<A> p, matrix_view<A> g, matrix_view<A> u) const {
    K::template backward<R, A>(p, g, u, g, u, options, own);
  }
  void forward(matrix_view<A> g, matrix_view<A> u, mlp_values<T> to) const {
    const in_matrix<A> of_g(g), of_u(u);
    if constexpr (std::same_as<T, A>) {  // g and u are where they belong
      forward(of_g, of_u, to.a);
    } else if constexpr (gates_are_programs<R>) {
      with_program<A>([&]<class P>(P program) {
        if (to.g.data == nullptr)
          map_rows<R>(own, program, reads(of_g, of_u), writes(to.a));
        else
          map_rows<R>(own, gate_with_operands<P>{program}, reads(of_g, of_u), writes(to.a, to.g, to.u));
      });
    } else {
      if (to.g.data != nullptr) convert_matrix<R>(g, to.g, own), convert_matrix<R>(u, to.u, own);
      forward(of_g, of_u, u);
      convert_matrix<R>(u, to.a, own);
    }
  }
  void backward(matrix_view<A> p, matrix_view<T> g, matrix_view<T> u, mlp_values<A> at) const {
    if constexpr (std::same_as<T, A>) {
      backward(p, g, u);
    } else if constexpr (gates_are_programs<R>) {
      with_program<A>([&](auto program) {
        map_rows<R>(own, program, reads(in_matrix<A>(p), in_matrix<T>(g), in_matrix<T>(u)), writes(g, u));
      });
    } else {
      convert_matrix<R>(g, at.g, own), convert_matrix<R>(u, at.u, own);
      backward(p, at.g, at.u);
      convert_matrix<R>(at.g, g, own), convert_matrix<R>(at.u, u, own);
    }
  }
};

/// The gate that options name: with(own, f) calls f(gate_of_op).
template <class R, element T>
struct mlp_gate_kernel<R, T, mlp_gate> {
  mlp_gate gate;

  static void check(const expects&, mlp_gate) {}
  template <class F>
  void with(context& own, F f) const {
    if (gate == mlp_gate::swiglu)
      f(gate_of_op<R, T, op::swiglu, default_swiglu>{{}, own});
    else
      f(gate_of_op<R, T, op::geglu, default_geglu>{{}, own});
  }
};

template <class Gate>
struct operator_of_gate;
template <>
struct operator_of_gate<swiglu_options> {
  using type = op::swiglu;
};
template <>
struct operator_of_gate<geglu_options> {
  using type = op::geglu;
};
/// Of one operator, with all of its options; round_gate rounds to T.
template <class R, element T, class Gate>
struct mlp_gate_kernel {
  using gate_op = typename operator_of_gate<Gate>::type;
  Gate gate;

  static void check(const expects& expect, const Gate& options) {
    if constexpr (std::same_as<Gate, swiglu_options>) expect_swiglu_options<accumulator_t<T>>(expect, options);
  }
  template <class F>
  void with(context& own, F f) const {
    f(gate_of_op<R, T, gate_op, gate_of_stored<T, Gate>>{{gate}, own});
  }
};

/// The biases times their multipliers, in the type of the sums; that of y in the type of y. Those that are absent have
/// no memory.
template <element T>
struct mlp_biases {
  using A = accumulator_t<T>;
  vector_view<A> gate, up;
  vector_view<T> down;

  template <class R, element W, class Options>
  static mlp_biases of(workspace::frame& frame, mlp_weights<const W> w, const Options& opt, context& ctx) {
    const auto scaled = [&]<class E>(std::type_identity<E>, std::span<const W> b, double factor) {
      if (b.data() == nullptr) return vector_view<E>{};
      const vector_view<E> to{frame.template take<E>(b.size()), b.size()};
      map_rows<R>(ctx, multiple_program<A>{static_cast<A>(factor)}, reads(as_row(b)), writes(as_row(to)));
      return to;
    };
    return {scaled(std::type_identity<A>{}, w.gate_bias, opt.gate_multiplier),
            scaled(std::type_identity<A>{}, w.up_bias, 1),
            scaled(std::type_identity<T>{}, w.down_bias, opt.down_multiplier)};
  }
  static std::size_t bytes(std::size_t hidden, std::size_t intermediate) {
    return 2 * workspace::bytes_for<A>(intermediate) + workspace::bytes_for<T>(hidden);
  }
};
/// Columns of it.
template <class E>
TIGON_INLINE in_vector<E> part_of_bias(vector_view<E> b, std::size_t first, std::size_t n) {
  if (!b) return {};
  return {b.data + first, n};
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_MLP_GATE_OF_OPTIONS_HPP
