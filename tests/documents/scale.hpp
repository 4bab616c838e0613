// The operator of docs/add_an_op.md: what its blocks show stands here, and compiles.
#ifndef TIGON_TESTS_DOCUMENTS_SCALE_HPP
#define TIGON_TESTS_DOCUMENTS_SCALE_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/core/arguments.hpp>
#include <tigon/rows/reduce_map.hpp>

namespace tigon {

namespace op {
struct scale {
  static constexpr std::string_view name = "scale";
};
}  // namespace op

/// The contract is in ops/scale.hpp.
struct scale_options {
  gradient ds = gradient::overwrite;
};

/// scale_gradients{dx, ds}, or with the names of the fields.
template <class T, class DS>
struct scale_gradients {
  matrix_view<T> dx;
  DS ds;
};
template <class T, class DS>
scale_gradients(matrix_view<T>, DS&&) -> scale_gradients<T, DS>;

namespace detail {
inline namespace TIGON_ABI {
/// y = x s
struct scale_program {
  template <class V>
  TIGON_INLINE V map(V x, V s) const {
    return x * s;
  }
};

/// dx = dy s,   ds += dy x
struct scale_gradient {
  template <class V>
  TIGON_INLINE pack<V, 2> map(V dy, V x, V s, V ds) const {
    return {{dy * s, fma(dy, x, ds)}};
  }
};
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::scale, backends::generic> {
  template <class A>
  using saved = no_state;

  template <backend B, element T>
  static void forward(in_matrix<T> x, in_vector<T> s, matrix_view<T> y, context& ctx) {
    map_rows<B>(ctx, detail::scale_program(), reads(x, s), writes(y));
  }
  template <backend B, element T>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<T> s, matrix_view<T> dx, vector_view<T> ds,
                       scale_options opt, context& ctx) {
    map_rows<B>(ctx, detail::scale_gradient(), reads(dy, x, s), writes(dx), adds_to(parameter_gradient<T>{ds, opt.ds}));
  }
};

/// y from x and s.
template <class B = default_backend, class T, parameter S>
void scale_forward(in_matrix<T> x, const S& s, matrix_view<T> y, scale_options = {},
                   context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const in_vector<T> factors = as_in_vector<T>(s);
  arguments args("scale_forward");
  args.in("x", x);
  args.in("s", factors, x.cols);
  args.out("y", y, x.rows, x.cols).may_be("x");
  args.check();
  kernel_for<op::scale, B>::template forward<B, T>(x, factors, y, ctx);
}

/// dx and ds from dy, x and s.
template <class B = default_backend, class T, parameter S, parameter DS>
void scale_backward(in_matrix<T> dy, in_matrix<T> x, const S& s, const scale_gradients<T, DS>& gradients,
                    scale_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const in_vector<T> factors = as_in_vector<T>(s);
  using P = T;
  const scale_gradients to{gradients.dx, as_out_vector<P>(gradients.ds)};
  arguments args("scale_backward");
  args.in("x", x);
  args.in("dy", dy, x.rows, x.cols);
  args.in("s", factors, x.cols);
  args.out("dx", to.dx, x.rows, x.cols).may_be("dy");
  args.optional_out("ds", to.ds, x.cols);
  args.check();
  ctx.workspace().expect("scale_backward", simd::partials_workspace<B, accumulator_t<T>>(x.rows, x.cols, 1));
  kernel_for<op::scale, B>::template backward<B, T>(dy, x, factors, to.dx, to.ds, opt, ctx);
}

TIGON_EXPLAINS(scale_forward)
TIGON_EXPLAINS(scale_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_TESTS_DOCUMENTS_SCALE_HPP
