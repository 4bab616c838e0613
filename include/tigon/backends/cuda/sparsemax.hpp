// Sparsemax on a GPU: Newton's iteration on the threshold of a row, which is in registers.
#ifndef TIGON_BACKENDS_CUDA_SPARSEMAX_HPP
#define TIGON_BACKENDS_CUDA_SPARSEMAX_HPP

#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <tigon/ops/softmax/sparsemax_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// Operand and output: the lines of a tensor along an axis that is not the last, element by element.
template <class T>
struct lines_of_axis {
  using element_type = std::remove_const_t<T>;
  axis_view<T> v;
  TIGON_DEVICE_INLINE T* at(std::size_t i, std::size_t j) const {
    const std::size_t o = i / v.inner;
    return v.data + o * v.outer_stride + j * v.axis_stride + (i - o * v.inner);
  }
};
template <class T>
struct operand<lines_of_axis<T>> {
  using element = std::remove_const_t<T>;
  static constexpr int per_column = 1;
  static constexpr bool has_rows = true, for_all_rows = false;
  static TIGON_DEVICE_INLINE const element* at(const lines_of_axis<T>& x, std::size_t i, std::size_t j) {
    return x.at(i, j);
  }
  template <int N>
  static bool wide(const lines_of_axis<T>&) {
    return N == 1;
  }
};
template <class T>
struct output<lines_of_axis<T>> {
  using element = T;
  static constexpr int results = 1;
  template <int K, int N, class R>
  static TIGON_DEVICE_INLINE void put(const lines_of_axis<T>& y, std::size_t i, std::size_t j, const R (&r)[N]) {
#pragma unroll
    for (int u = 0; u < N; ++u) *y.at(i, j + static_cast<std::size_t>(u)) = as_element<T>(r[u].v[K].r);
  }
  template <int N>
  static bool wide(const lines_of_axis<T>&) {
    return N == 1;
  }
};

/// What is above a threshold; nothing of a row with a NaN is.
template <class A>
struct above_threshold {
  A high, low;
  bool bad;
  template <class V>
  TIGON_DEVICE_INLINE auto operator()(V x) const {
    const V nan(std::numeric_limits<A>::quiet_NaN());
    return rows::as_pack(bad ? nan : tigon::detail::excess(x, high, low).v[0]);
  }
};
template <class Shape, int N, class Call>
__global__ void __launch_bounds__(Shape::most_threads) project_rows(const Call call, std::size_t rows, unsigned cols) {
  using thread = row_thread<Shape, N, Call>;
  using A = typename Call::A;
  typename thread::columns kept[thread::vectors];
  const thread row = thread::of_launch(call, rows, cols, kept);
  row.load();
  tigon::detail::sparsemax_threshold<A> t{row.max(row.reads(), [](auto x) { return x; }), A(-1)};
  const auto above = [&] {
    return row.sum(row.reads(), [&](auto x) { return tigon::detail::excess(x, t.high, t.low); });
  };
  auto found = above();
  const bool bad = !(found[0] - found[0] == A(0));
  while (t.rise(found)) found = above();
  row.store(above_threshold<A>{t.high, t.low, bad});
}

/// dy less its mean over the support.
template <class A>
struct centred_on_support {
  A origin, rest;
  template <class V>
  TIGON_DEVICE_INLINE auto operator()(V d, V p) const {
    return rows::as_pack(select(p > V(A(0)), d - V(origin) - V(rest), p));
  }
};
template <class Shape, int N, class Call>
__global__ void __launch_bounds__(Shape::most_threads)
    project_gradients(const Call call, std::size_t rows, unsigned cols) {
  using thread = row_thread<Shape, N, Call>;
  using A = typename Call::A;
  typename thread::columns kept[thread::vectors];
  const thread row = thread::of_launch(call, rows, cols, kept);
  row.load();
  columns_of<1, std::tuple_element_t<0, typename Call::operands>> first;
  first.load(std::get<0>(call.x), row.i, 0);
  const A any = first.template get<typename Call::V>(0).r;
  A origin = any - any == A(0) ? any : A(0);
  const auto sums_about = [&](A about) {
    return row.sum(row.reads(), [=](auto d, auto p) {
      using V = decltype(d);
      const auto inside = p > V(A(0));
      const V c = select(inside, d - V(about), V(A(0)));
      return simd::pack<V, 3>{{c, c * c, select(inside, V(A(1)), V(A(0)))}};
    });
  };
  auto s = sums_about(origin);
  if (s[0] * s[0] > s[1] * s[2] * A(0.99)) {
    origin += s[0] / s[2];
    s = sums_about(origin);
  }
  row.store(centred_on_support<A>{origin, s[0] / s[2]});
}

struct no_program {};

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::sparsemax, backends::cuda> {
  template <class>
  using saved = no_state;

  template <backend B, element T>
  static void forward(in_axis<T> x, axis_view<T> y, sparsemax_options, context& ctx) {
    if (x.is_last() && y.is_last())
      project<B, T>(std::tuple(x.rows()), y.rows(), {x.outer, x.axis}, ctx);
    else
      project<B, T>(std::tuple(lines<const T>(x)), lines<T>(y), {x.outer * x.inner, x.axis}, ctx);
  }
  template <backend B, element T>
  static void backward(in_axis<T> dy, in_axis<T> y, axis_view<T> dx, sparsemax_options, context& ctx) {
    if (dy.is_last() && y.is_last() && dx.is_last())
      gradients<B, T>(std::tuple(dy.rows(), y.rows()), dx.rows(), {y.outer, y.axis}, ctx);
    else
      gradients<B, T>(std::tuple(lines<const T>(dy), lines<const T>(y)), lines<T>(dx), {y.outer * y.inner, y.axis},
                      ctx);
  }

 private:
  template <class T>
  static gpu::lines_of_axis<T> lines(axis_view<T> v) {
    return {v};
  }
  template <class T, class X, class Y>
  using call_of = gpu::row_call<true, simd::vec<simd::cuda, accumulator_t<T>>, gpu::no_program, X, std::tuple<>,
                                std::tuple<Y>, std::tuple<>, kept_rows<>>;
  template <backend B, element T, class X, class Y>
  static void project(X x, Y y, rows::extents of, context& ctx) {
    using call = call_of<T, X, Y>;
    B::rows::each_row(
        ctx, call{{}, x, {y}, kept_rows<>()}, of,
        []<class Shape, int N>(Shape, std::integral_constant<int, N>) { return gpu::project_rows<Shape, N, call>; });
  }
  template <backend B, element T, class X, class Y>
  static void gradients(X x, Y y, rows::extents of, context& ctx) {
    using call = call_of<T, X, Y>;
    B::rows::each_row(ctx, call{{}, x, {y}, kept_rows<>()}, of,
                      []<class Shape, int N>(Shape, std::integral_constant<int, N>) {
                        return gpu::project_gradients<Shape, N, call>;
                      });
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_SPARSEMAX_HPP
