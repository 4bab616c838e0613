// The gate of the gated MLP, by the options that name it, and what its biases are made of.
#ifndef TIGON_OPS_MLP_GATE_OF_OPTIONS_HPP
#define TIGON_OPS_MLP_GATE_OF_OPTIONS_HPP

#include <tigon/ops/gate/geglu_kernel.hpp>
#include <tigon/ops/gate/swiglu_kernel.hpp>
#include <tigon/ops/mlp/mlp_options.hpp>

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

/// The gate in the type of the sums, A, of an MLP of type T: its kernel on R, which has rows alone.
///
///   forward(g, u, a, ctx)    a = act(g) u
///   backward(p, g, u, ctx)   g and u become dg and du
template <class R, element T>
struct mlp_gate_kernel<R, T, mlp_gate> {
  using A = accumulator_t<T>;
  mlp_gate gate;

  static void check(const expects&, mlp_gate) {}
  void forward(in_matrix<A> g, in_matrix<A> u, matrix_view<A> a, context& ctx) const {
    if (gate == mlp_gate::swiglu)
      kernel_for<op::swiglu, R>::template forward<R, A>(g, u, a, default_swiglu{}, ctx);
    else
      kernel_for<op::geglu, R>::template forward<R, A>(g, u, a, default_geglu{}, ctx);
  }
  void backward(in_matrix<A> p, matrix_view<A> g, matrix_view<A> u, context& ctx) const {
    if (gate == mlp_gate::swiglu)
      kernel_for<op::swiglu, R>::template backward<R, A>(p, g, u, g, u, default_swiglu{}, ctx);
    else
      kernel_for<op::geglu, R>::template backward<R, A>(p, g, u, g, u, default_geglu{}, ctx);
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
  using A = accumulator_t<T>;
  using gate_op = typename operator_of_gate<Gate>::type;
  Gate gate;

  static void check(const expects& expect, const Gate& options) {
    if constexpr (std::same_as<Gate, swiglu_options>) expect_swiglu_options<accumulator_t<T>>(expect, options);
  }
  void forward(in_matrix<A> g, in_matrix<A> u, matrix_view<A> a, context& ctx) const {
    kernel_for<gate_op, R>::template forward<R, A>(g, u, a, gate_of_stored<T, Gate>{gate}, ctx);
  }
  void backward(in_matrix<A> p, matrix_view<A> g, matrix_view<A> u, context& ctx) const {
    kernel_for<gate_op, R>::template backward<R, A>(p, g, u, g, u, gate_of_stored<T, Gate>{gate}, ctx);
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
