// Operands of a row program as tiles, its map on their views, and maps without a reduction.
#ifndef TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_MAPS_HPP
#define TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_MAPS_HPP

#include <tigon/backends/ascend/unified_buffer/partials.hpp>
#include <tigon/rows/reduce_map.hpp>

namespace tigon::unified_buffer {
inline namespace TIGON_ABI {

// Operands of a program as operands of a tile. What tells lanes how to read or write says nothing to a copy.
template <class T>
TIGON_INLINE matrix_view<const T> tile_input(matrix_view<T> m) {
  return m;
}
template <class T>
TIGON_INLINE vector_view<const T> tile_input(vector_view<T> v) {
  return v;
}
template <class A>
TIGON_INLINE constant<A> tile_input(constant<A> c) {
  return c;
}
template <class T, int Value>
TIGON_INLINE simd::given_or<vector_view<T>, Value> tile_input(simd::given_or<vector_view<T>, Value> v) {
  return v;
}
template <class T>
TIGON_INLINE matrix_view<const T> tile_input(simd::given_or<matrix_view<T>, 0> m) {
  return m.operand;
}
template <class T>
TIGON_INLINE matrix_view<T> tile_output(matrix_view<T> m) {
  return m;
}
template <class Output>
TIGON_INLINE auto tile_output(simd::often_zero<Output> y) {
  return tile_output(y.output);
}

template <class Operand>
inline constexpr bool is_matrix = false;
template <class T>
inline constexpr bool is_matrix<matrix_view<T>> = true;

/// Operands [First, First + N) of a tuple of tiles or of their views.
template <std::size_t First, std::size_t N, class... T>
TIGON_INLINE auto some(const std::tuple<T...>& all) {
  return [&]<std::size_t... k>(std::index_sequence<k...>) TIGON_LAMBDA {
    return std::tuple<std::tuple_element_t<First + k, std::tuple<T...>>...>(std::get<First + k>(all)...);
  }(std::make_index_sequence<N>{});
}

/// map of a program, and before its results those of `direct`, which takes the first `Direct` operands.
template <class P, std::size_t Direct, class... Value>
struct tile_map {
  P p;
  std::tuple<Value...> value;

  template <class V, class... X>
  TIGON_INLINE auto operator()(V first, X... x) const {
    const auto mapped = std::apply(
        [&](const auto&... of_row) TIGON_LAMBDA {
          if constexpr (tigon::rows::prepares<P, V>)
            return simd::as_pack(p.map(of_row..., p.prepare(first), first, x...));
          else
            return simd::as_pack(p.map(of_row..., first, x...));
        },
        value);
    if constexpr (Direct == 0)
      return mapped;
    else
      return simd::joined(std::apply([&](auto... v) TIGON_LAMBDA { return simd::as_pack(p.direct(v...)); },
                                     some<0, Direct>(std::tuple<V, X...>(first, x...))),
                          mapped);
  }
};

/// y = f(x) for one row of tiles: the first X views are operands, then come K sums of columns, then outputs.
template <std::size_t X, std::size_t K, class Row, class F, class... View>
TIGON_INLINE void map_views(const Row& row, const F& f, const std::tuple<View...>& views) {
  constexpr std::size_t Y = sizeof...(View) - X - K;
  std::apply(
      [&](auto... in) TIGON_LAMBDA {
        std::apply([&](auto... out) TIGON_LAMBDA { row.map(tigon::reads(in...), tigon::writes(out...), f); },
                   std::tuple_cat(some<X + K, Y>(views), some<X, K>(views)));
      },
      some<0, X + K>(views));
}

/// each(row, views) for the present part of these tiles, row by row, or `Flat`, once for all of it.
template <bool Flat = false, class Core, class... X, class... Y, class Each>
TIGON_INLINE void for_views(Core& core, const std::tuple<X&...>& in, const std::tuple<Y&...>& out, Each each) {
  const auto of_views = [=](auto row, auto... view)
                            TIGON_LAMBDA { return each(row, std::tuple<decltype(view)...>(view...)); };
  std::apply(
      [&](auto&... x) TIGON_LAMBDA {
        std::apply(
            [&](auto&... y) TIGON_LAMBDA {
              if constexpr (Flat)
                core.flat_part(reads(x...), writes(y...), of_views);
              else
                core.part(reads(x...), writes(y...), of_views);
            },
            out);
      },
      in);
}

/// A map without a reduction, f, in strips: operands, of which the first X are read, then K partial rows.
template <class Plan, std::size_t X, class F, class... W, class... Operand>
void map_strips(context& ctx, F f, const std::tuple<simd::parameter_gradient<W>...>& gradients, Operand... operand) {
  using B = typename Plan::backend;
  using A = typename Plan::accumulator;
  using V = simd::vec<typename B::engine, A>;
  constexpr std::size_t K = sizeof...(W), Y = sizeof...(Operand) - X;
  const tigon::rows::extents of = tigon::rows::first_extents(operand...);
  const std::size_t rows = of.rows, cols = of.cols;
  const std::size_t stride = workspace::padded<A>(cols);
  cut by = Plan::cut_of(cols);
  std::size_t reserved = nothing;  // partial rows of every gradient for which the public function has reserved memory
  if constexpr (K != 0) {
    reserved = cols == 0 ? 0 : simd::partials_workspace<B, A>(rows, cols, K) / (K * stride * sizeof(A));
    // Few rows are shared by as many programs as may add them up: the shorter the sums, the smaller their error.
    const std::size_t share = ceil_div(rows, std::clamp<std::size_t>(reserved, 1, by.programs));
    by.rows = std::min({by.rows, simd::plain_rows, std::max<std::size_t>(share, 1)});
  }
  strips s(by, rows, cols, reserved);
  std::size_t rows_of_sum = 0;
  if constexpr (K != 0) {
    const sums_of_programs sums(s.down, s.row_blocks, by.rows, reserved);
    s.down = sums.programs, rows_of_sum = sums.rows;
  }
  const std::size_t step = rows_of_sum * K * stride;
  workspace::frame frame(ctx.workspace());
  A* const partials = frame.template take<A>(s.down * step);
  const auto on = [&]<std::size_t... k>(std::index_sequence<k...>) {
    for_strips<Plan>(
        ctx, rows, cols, s,
        [=](auto& core, std::size_t strip, auto blocks, auto&... t) TIGON_LAMBDA {
          core.visits_once();
          const std::tuple<decltype(t)...> tiles(t...);
          const auto in = std::tuple_cat(some<0, X>(tiles), some<X + Y, K>(tiles));
          const auto map = [&]() TIGON_LAMBDA {
            for_views(core, in, some<X, Y>(tiles),
                      [=](auto row, const auto& views) TIGON_LAMBDA { map_views<X, K>(row, f, views); });
          };
          if constexpr (K == 0) {
            blocks(map);
          } else {
            A* const own = partials + strip / s.across * step;
            program_sums<V> partial_rows(own, K, stride, rows_of_sum > 1, core.col, core.col_count);
            (core.point(std::get<X + Y + k>(tiles), partial<A>{own + k * stride}), ...);
            const auto flush = [&]() TIGON_LAMBDA { (core.flush(std::get<X + Y + k>(tiles)), ...); };
            blocks([&]() TIGON_LAMBDA {
              partial_rows.before(by.rows, flush);
              map();
            });
            partial_rows.finish(flush);
          }
        },
        operand..., (static_cast<void>(k), partial<A>{partials})...);
    if (cols != 0)
      (combine<Plan>(ctx, matrix_view<const A>(partials + k * stride, s.down, cols, step), std::get<k>(gradients)),
       ...);
  };
  on(std::make_index_sequence<K>{});
}

}  // namespace TIGON_ABI
}  // namespace tigon::unified_buffer

#endif  // TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_MAPS_HPP
