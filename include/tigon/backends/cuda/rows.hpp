// The driver of row programs on a GPU (rows/reduce_map.hpp says what they are).
//
//   group   the threads of a row: lanes of a warp, or a block (group.hpp)
//   kept    vectors that a thread keeps of a row, which is then read once (row.hpp)
//   task    rows that a block adds up: with sums over the rows (kernels.hpp)
//
// Shapes alone decide how many there are and in which order sums are made (plan.hpp), so results are the same bits
// every time.
#ifndef TIGON_BACKENDS_CUDA_ROWS_HPP
#define TIGON_BACKENDS_CUDA_ROWS_HPP

#include <tigon/backends/cuda/kernels.hpp>
#include <tigon/backends/cuda/runtime.hpp>
// Behind them: they say how these are compiled.
#include <tigon/rows/reduce_map.hpp>

#include <algorithm>
#include <bit>
#include <limits>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// A matrix, or pairs, whose rows lie one behind the other, as one row; what has no row of its own stays as it is.
template <class M>
constexpr bool in_one_piece(const M& m) {
  if constexpr (requires { m.row_stride; })
    return m.row_stride == m.cols || m.rows <= 1;
  else if constexpr (requires { m.pairs; })
    return in_one_piece(m.pairs);
  else
    return requires { m.value; };
}
template <class M>
constexpr M as_one_row(M m) {
  if constexpr (requires { m.row_stride; })
    m.cols *= m.rows, m.rows = 1, m.row_stride = m.cols;
  else if constexpr (requires { m.pairs; })
    m.pairs = as_one_row(m.pairs);
  return m;
}

/// A group of reduce_map with sums over rows: the rows are so many groups, each with its own sums, which go to rows of
/// a matrix for each gradient, so many elements apart. Without it all rows are one.
template <class... Stride>
struct groups_of_rows {
  std::size_t count = 1;
  std::tuple<Stride...> strides = {};
};
template <class... Stride>
constexpr groups_of_rows<Stride...> in_groups(std::size_t count, Stride... strides) {
  return {count, std::tuple(strides...)};
}

/// The driver, as `rows` of a backend.
template <class B>
struct rows_on_groups {
  template <class P, class... Group>
  static void reduce_map(context& ctx, P program, Group... groups) {
    using rows::group;
    const auto in = group<simd::reads>(groups...);
    const auto gradients = group<adds_to>(groups...);
    const rows::bound_program bound(program, group<of_rows>(groups...), group<saves>(groups...));
    const rows::extents of = std::apply([](auto... x) { return rows::first_extents(x...); }, in.x);
    const auto call = call_of<true, decltype(vector_of(in))>(
        bound, all_plain(in.x), all_plain(group<map_reads>(groups...).x), all_plain(group<simd::writes>(groups...).y),
        all_plain(group<reduce_writes>(groups...).y), group<kept_rows>(groups...));
    if constexpr (std::tuple_size_v<decltype(gradients.g)> != 0)
      adding(ctx, call, gradients, of, group<groups_of_rows>(groups...));
    else
      each_row(ctx, call, of, []<class Shape, int N>(Shape, std::integral_constant<int, N>) {
        return reduce_and_map<Shape, N, std::remove_const_t<decltype(call)>>;
      });
  }

  template <class P, class... X, class... Y, class... Group>
  static void map_rows(context& ctx, P program, simd::reads<X...> in, simd::writes<Y...> out, Group... groups) {
    const auto gradients = rows::group<adds_to>(groups...);
    const rows::bound_program bound(program, of_rows<>(), saves<>());
    const rows::extents of =
        std::apply([](auto... o) { return rows::first_extents(o...); }, std::tuple_cat(out.y, in.x));
    const auto call = call_of<false, typename decltype(vector_of_map(in, out))::type>(
        bound, all_plain(in.x), std::tuple<>(), all_plain(out.y), std::tuple<>(), rows::group<kept_rows>(groups...));
    if constexpr (std::tuple_size_v<decltype(gradients.g)> != 0)
      adding(ctx, call, gradients, of, groups_of_rows<>());
    else if (of.rows != 0 && of.cols != 0)
      each_column(ctx, call, of);
  }

  /// Bytes of the partial rows of so many parameter gradients.
  template <class A>
  static constexpr std::size_t partials_workspace(std::size_t rows, std::size_t cols, std::size_t count) {
    return workspace::bytes_for<A>(most_tasks(rows), count, workspace::padded<A>(cols));
  }

  /// Starts a kernel with a row for each group: kernel_of(shape, columns at a time) is it.
  template <class Call, class KernelOf>
  static void each_row(context& ctx, const Call& call, rows::extents of, KernelOf kernel_of) {
    if (of.rows == 0) return;
    const auto run = [&](auto n, auto shape, std::size_t vectors) {
      launch(ctx, kernel_of(shape, n), blocks(tigon::detail::ceil_div(of.rows, shape.rows)), shape.threads(vectors),
             call, of.rows, columns(of.cols));
    };
    with_shape_of(shapes_of_rows<Call::vector_bytes + Call::direct * access_bytes>(), call, of.cols, run);
  }

 private:
  template <class... X>
  static rows::vec_of<B, X...> vector_of(simd::reads<X...>);
  template <class... X, class... Y>
  static auto vector_of_map(simd::reads<X...>, simd::writes<Y...>) {
    if constexpr ((!std::is_void_v<typename rows::element_of<X>::type> || ...))
      return std::type_identity<rows::vec_of<B, X...>>();
    else
      return std::type_identity<rows::vec_of<B, decltype(plain(std::declval<Y>()))...>>();
  }
  template <bool Reduces, class V, class Bound, class X, class More, class Y, class Direct, class Kept>
  static auto call_of(const Bound& bound, X x, More more, Y y, Direct direct, Kept kept) {
    return row_call<Reduces, V, Bound, X, More, Y, Direct, Kept>{bound, std::tuple_cat(x, more),
                                                                 std::tuple_cat(direct, y), kept};
  }
  /// Whether every row of every operand begins at a vector of the call, and has whole ones.
  template <class Call>
  static bool takes_vectors(const Call& call, std::size_t cols) {
    return cols % Call::N == 0 && all_wide<Call::N>(call.x, call.y);
  }

  /// run(columns at a time, shape, vectors of a row).
  template <class Shapes, class Call, class Run>
  static void with_shape_of(Shapes shapes, const Call& call, std::size_t cols, const Run& run) {
    constexpr std::integral_constant<int, Call::N> n;
    if (takes_vectors(call, cols))
      with_shape(shapes, cols / Call::N, [&](auto shape) { run(n, shape, cols / Call::N); });
    else
      run(std::integral_constant<int, 1>(), shape_of_elements(), cols);
  }

  template <class Call>
  static void each_column(context& ctx, Call call, rows::extents of) {
    const auto all = [](const auto&... m) { return (in_one_piece(m) && ... && true); };
    if (std::tuple_size_v<decltype(call.kept.flags)> == 0 && std::apply(all, std::tuple_cat(call.x, call.y))) {
      const auto as_rows = [](auto... m) { return std::make_tuple(as_one_row(m)...); };
      call.x = std::apply(as_rows, call.x), call.y = std::apply(as_rows, call.y);
      of = {1, of.rows * of.cols};
    }
    const auto run = [&](auto n) {
      constexpr unsigned threads = threads_of_map, most_rows = 65535;
      const std::size_t vectors = of.cols / n.value;
      const auto wide = static_cast<unsigned>(std::bit_ceil(std::min<std::size_t>(vectors, threads)));
      const unsigned high = of.rows == 1 ? 1 : threads / wide;
      const auto rows = static_cast<unsigned>(std::min<std::size_t>(tigon::detail::ceil_div(of.rows, high), most_rows));
      launch(ctx, map_columns<n.value, Call>, dim3(blocks(tigon::detail::ceil_div(vectors, wide)), rows),
             dim3(wide, high), call, of.rows, of.cols);
    };
    if (takes_vectors(call, of.cols))
      run(std::integral_constant<int, Call::N>());
    else
      run(std::integral_constant<int, 1>());
  }

  template <class Call, class... T, class... Stride>
  static void adding(context& ctx, const Call& call, const adds_to<T...>& gradients, rows::extents of,
                     const groups_of_rows<Stride...>& in) {
    using A = typename Call::A;
    constexpr int K = sizeof...(T);
    if (of.cols == 0 || in.count == 0) return;
    const std::size_t stride = workspace::padded<A>(of.cols), rows = of.rows / in.count;
    const unsigned groups = fitting(in.count, "groups of rows");
    workspace::frame frame(ctx.workspace());
    A* const partials = frame.template take<A>(in.count * most_tasks(rows) * K * stride);
    std::size_t tasks = 0;
    const auto run = [&](auto n, auto shape, std::size_t vectors) {
      constexpr unsigned at_once = shape.rows;
      const std::size_t per_task = rows_of_task(of.rows, at_once, shape.threads_at_once / shape.threads(vectors));
      tasks = tigon::detail::ceil_div(rows, per_task);
      if (tasks != 0)
        launch(ctx, add_rows<decltype(shape), n.value, K, Call>, dim3(blocks(tasks), groups), shape.threads(vectors),
               call, rows, per_task, columns(of.cols), partials, stride);
    };
    with_shape_of(shapes_of_sums<K, Call::vector_bytes>(), call, of.cols, run);

    [&]<std::size_t... g>(std::index_sequence<g...>) {
      std::size_t strides[K] = {};
      if constexpr (sizeof...(Stride) != 0) ((strides[g] = std::get<g>(in.strides)), ...);
      const auto mode = [](const auto& to) { return to.mode == gradient::accumulate; };
      const auto of_gradient = [&](const auto& to, std::size_t k) {
        using P = std::remove_pointer_t<decltype(to.out.data)>;
        launch_add_tasks<A>(ctx, partials + k * stride, tasks, K * stride, 0, {groups, of.cols},
                            sums_of_tasks<P, 1>{{to.out.data}, {strides[k]}, {mode(to)}});
      };
      using P = std::remove_pointer_t<decltype(std::get<0>(gradients.g).out.data)>;
      if constexpr ((std::is_same_v<P*, decltype(std::get<g>(gradients.g).out.data)> && ...))
        launch_add_tasks<A>(
            ctx, partials, tasks, K * stride, stride, {groups, of.cols},
            sums_of_tasks<P, K>{
                {std::get<g>(gradients.g).out.data...}, {strides[g]...}, {mode(std::get<g>(gradients.g))...}});
      else
        (of_gradient(std::get<g>(gradients.g), g), ...);
    }(std::index_sequence_for<T...>());
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_ROWS_HPP
