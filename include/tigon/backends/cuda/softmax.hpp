// Softmax on a GPU: a row is in registers, so its maximum is found first, and its exponentials are made twice.
#ifndef TIGON_BACKENDS_CUDA_SOFTMAX_HPP
#define TIGON_BACKENDS_CUDA_SOFTMAX_HPP

#include <tigon/backends/cuda/backend.hpp>
// Behind it: it says how these are compiled.
#include <tigon/ops/softmax/softmax_kernel.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// y = map(value, reduce(top, x)) of a program below the maximum of its row (ops/softmax/below_max.hpp).
template <class P, class A>
struct map_below_top {
  P p;
  A top, value;
  template <class V>
  TIGON_DEVICE_INLINE auto operator()(V x) const {
    return rows::as_pack(p.map(value, p.reduce(top, x)));
  }
};
template <class Shape, int N, class Call>
__global__ void __launch_bounds__(Shape::most_threads)
    reduce_below_max(const Call call, std::size_t rows, unsigned cols) {
  using thread = row_thread<Shape, N, Call>;
  using A = typename Call::A;
  typename thread::columns kept[thread::vectors];
  const thread row = thread::of_launch(call, rows, cols, kept);
  row.load();
  const auto p = call.bound;
  const A top = larger::join(std::numeric_limits<A>::lowest(), row.max(row.reads(), [](auto x) { return x; }));
  const A sum = row.sum(row.reads(), [&](auto x) { return p.reduce(top, x); });
  row.store(map_below_top<std::remove_cvref_t<decltype(p)>, A>{p, top, p.finish(sum, A(1))});
}

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::softmax, backends::cuda> : kernel<op::softmax, backends::generic> {
  template <backend B, element T>
  static void forward(in_matrix<T> x, matrix_view<T> y, softmax_options opt, context& ctx) {
    using A = accumulator_t<T>;
    using program = detail::softmax_program<detail::result_bits<B, T>, A>;
    using call = gpu::row_call<true, simd::vec<simd::cuda, A>, program, std::tuple<in_matrix<T>>, std::tuple<>,
                               std::tuple<matrix_view<T>>, std::tuple<>, kept_rows<>>;
    B::rows::each_row(ctx, call{{static_cast<A>(opt.scale)}, {x}, {y}, kept_rows<>()}, {x.rows, x.cols},
                      []<class Shape, int N>(Shape, std::integral_constant<int, N>) {
                        return gpu::reduce_below_max<Shape, N, call>;
                      });
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_SOFTMAX_HPP
