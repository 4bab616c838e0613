// The driver that runs row programs (rows/reduce_map.hpp) on tiles: the same structs, the same groups of operands.
//
//   kernel<op::rms_norm, backends::generic>::forward<ub::on_tiles<B, op::rms_norm, tiling::pass::forward>, T>(...)
//
// is the operator's own kernel with its programs run on B's vector cores, cut as the tile rule of that operator and
// pass says. A block of rows is reduced, as often as its rows require, and mapped. Of what a row needs between the two
// the buffer holds a number of sums in f64, the program's state and its value. Loops over rows that are not programs
// (for_rows) run on lanes here; row_loops.hpp runs them too.
#ifndef TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_ROW_PROGRAMS_HPP
#define TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_ROW_PROGRAMS_HPP

#include <tigon/backend/kernel.hpp>
#include <tigon/backends/ascend/unified_buffer/program.hpp>
#include <tigon/backends/generic/backend.hpp>
#include <tigon/rows/reduce_map.hpp>

#include <limits>

namespace tigon::unified_buffer {
inline namespace TIGON_ABI {

/// How the rows of operator Op's pass P are cut: as its kernel on B says, or as the plan of its rule.
template <class Plan, class Op, tiling::pass P>
constexpr cut cut_of_rows(std::size_t rows, std::size_t cols) {
  using on = kernel_for<Op, typename Plan::backend>;
  constexpr bool forward = P == tiling::pass::forward || P == tiling::pass::plain_forward;
  if constexpr (forward && requires { on::template forward_cut<Plan>(rows, cols); })
    return on::template forward_cut<Plan>(rows, cols);
  else
    return Plan::cut_of(cols);
}

/// What a program writes: outputs that need no reduction, and the others; and in which rows it writes zeros instead.
template <class Direct, class Out, class Kept>
struct program_outputs {
  Direct direct;
  Out out;
  Kept kept;
};
template <class Direct, class Out, class Kept>
program_outputs(Direct, Out, Kept) -> program_outputs<Direct, Out, Kept>;

/// The map of a block of a program, and what computes those rows in f64 that are not in the buffer as a whole, on
/// lanes.
template <class Map, class Rest>
struct block_map : Map {
  Rest rest;
  TIGON_INLINE block_map(Map map, Rest others) : Map(map), rest(others) {}
};

/// Zeros in all columns of the present rows of these tiles.
template <class Core, class... Y>
TIGON_INLINE void clear_tiles(Core& core, const std::tuple<Y&...>& out) {
  if constexpr (sizeof...(Y) != 0)
    for (std::size_t j = 0; j < core.col_blocks(); ++j) {
      core.cols_at(j);
      for_views(core, std::tuple<>(), out, [](auto row, const auto& views) TIGON_LAMBDA {
        const auto clear = [&]<class T>(vector_view<T> y) TIGON_LAMBDA {
          row.map(tigon::reads(constant(accumulator_t<T>(0))), tigon::writes(y), [](auto zero) { return zero; });
        };
        std::apply([&](auto... y) TIGON_LAMBDA { (clear(y), ...); }, views);
      });
    }
}

/// B, but programs run on tiles that are cut as the rule of operator Op's pass P says.
template <backend B, class Op, tiling::pass P>
struct on_tiles : B {
  using parent = B;
  using overrides = op_list<>;
  struct rows {
    template <class Program, class... Group>
    static void reduce_map(context& ctx, Program program, Group... groups) {
      using tigon::rows::group;
      run(ctx, program, group<simd::reads>(groups...), group<simd::map_reads>(groups...),
          group<simd::of_rows>(groups...), group<simd::saves>(groups...),
          program_outputs{group<simd::reduce_writes>(groups...), group<simd::writes>(groups...),
                          group<simd::kept_rows>(groups...)},
          group<simd::adds_to>(groups...));
    }

    template <class Program, class... X, class... Y, class... T>
    static void map_rows(context& ctx, Program program, simd::reads<X...> in, simd::writes<Y...> out,
                         simd::adds_to<T...> gradients) {
      using A = typename tigon::rows::vec_of<B, X...>::value_type;
      using plan = unified_buffer::plan<B, Op, P, A>;
      const tile_map<Program, 0> f{program, {}};
      constexpr bool flat = sizeof...(T) == 0 && (is_matrix<decltype(tile_input(std::declval<X>()))> && ...);
      std::apply(
          [&](auto... operand) {
            if constexpr (flat)
              for_blocks<plan>(
                  ctx,
                  [=](auto& core, auto&... t) TIGON_LAMBDA {
                    constexpr std::size_t inputs = sizeof...(X);
                    const std::tuple<decltype(t)...> tiles(t...);
                    for_views<true>(core, some<0, inputs>(tiles), some<inputs, sizeof...(Y)>(tiles),
                                    [=](auto row, const auto& views)
                                        TIGON_LAMBDA { map_views<inputs, 0>(row, f, views); });
                  },
                  operand...);
            else
              map_strips<plan, sizeof...(X)>(ctx, f, gradients.g, operand...);
          },
          std::tuple_cat(std::apply([](auto... x) { return std::tuple(tile_input(x)...); }, in.x),
                         std::apply([](auto... y) { return std::tuple(tile_output(y)...); }, out.y)));
    }

    /// Rows that may be left out are a block each.
    template <class Program, class... X, class... Y, class F>
    static void map_rows(context& ctx, Program program, simd::reads<X...> in, simd::writes<Y...> out,
                         simd::kept_rows<F> kept) {
      using plan = unified_buffer::plan<B, Op, P, typename tigon::rows::vec_of<B, X...>::value_type>;
      const tile_map<Program, 0> f{program, {}};
      const auto of = std::apply([](auto... x) { return tigon::rows::first_extents(x...); }, in.x);
      std::apply(
          [&](auto... operand) {
            for_row_blocks<plan>(
                ctx, of.rows, of.cols, {1, std::clamp<std::size_t>(of.cols, 1, plan::block), plan::programs},
                [=](auto& core, auto&... t) TIGON_LAMBDA {
                  constexpr std::size_t inputs = sizeof...(X);
                  const std::tuple<decltype(t)...> tiles(t...);
                  if (!kept.keeps(core.row)) return clear_tiles(core, some<inputs, sizeof...(Y)>(tiles));
                  for (std::size_t j = 0; j < core.col_blocks(); ++j) {
                    core.cols_at(j);
                    for_views(core, some<0, inputs>(tiles), some<inputs, sizeof...(Y)>(tiles),
                              [=](auto row, const auto& views) TIGON_LAMBDA { map_views<inputs, 0>(row, f, views); });
                  }
                },
                operand...);
          },
          std::tuple_cat(std::apply([](auto... x) { return std::tuple(tile_input(x)...); }, in.x),
                         std::apply([](auto... y) { return std::tuple(tile_output(y)...); }, out.y)));
    }

   private:
    template <class Program, class... X, class... M, class... N, class... S, class... D, class... Y, class... F,
              class... T>
    static void run(context& ctx, Program program, simd::reads<X...> in, simd::map_reads<M...> more,
                    simd::of_rows<N...> numbers, simd::saves<S...> saves,
                    program_outputs<simd::reduce_writes<D...>, simd::writes<Y...>, simd::kept_rows<F...>> to,
                    simd::adds_to<T...> gradients) {
      using types = program_types<B, Program, simd::of_rows<N...>, simd::saves<S...>, X...>;
      using of_row = typename types::of_row;
      using plan = unified_buffer::plan<B, Op, P, typename types::number>;
      constexpr std::size_t K = sizeof...(T);
      constexpr bool has_direct = sizeof...(D) != 0, maps = sizeof...(Y) != 0, may_skip = sizeof...(F) != 0;
      static_assert(!may_skip || (!maps && K == 0), "tigon: a program with a map keeps all rows");
      const program_on_tiles<types, Program, sizeof...(X), sizeof...(M), sizeof...(N), sizeof...(S)> on{program};
      const auto of = std::apply([](auto... x) { return tigon::rows::first_extents(x...); }, in.x);
      const tigon::rows::bound_program bound(program, numbers, saves);
      const auto rest = [=](auto& core, const of_row* rows, [[maybe_unused]] auto flush, auto... sums) TIGON_LAMBDA {
        if constexpr (tigon::rows::has_rows_in_f64<Program, typename types::value>) {
          if (core.whole_rows()) return;
          core.each_row([&](std::size_t i) TIGON_LAMBDA {
            if (!program.in_f64(rows[i].made)) return;
            flush();
            tigon::rows::map_if_in_f64(simd::row_worker<B, typename types::number>(core.row + i, of.cols), bound,
                                       rows[i].made, in, more, to.out, sums...);
          });
        }
      };
      cut by = cut_of_rows<plan, Op, P>(of.rows, of.cols);
      if (may_skip) by.rows = 1;
      const auto inputs =
          std::apply([](auto... x) { return std::tuple(tile_input(x)...); }, std::tuple_cat(in.x, more.x));
      const auto outputs =
          std::apply([](auto... y) { return std::tuple(tile_output(y)...); }, std::tuple_cat(to.direct.y, to.out.y));
      const auto columns = std::tuple_cat(std::apply([](auto... n) { return std::tuple(column(n)...); }, numbers.p),
                                          std::apply([](auto... s) { return std::tuple(column(s)...); }, saves.p));
      std::apply(
          [&](auto... operand) {
            if constexpr (K == 0)
              for_row_blocks<plan>(
                  ctx, of.rows, of.cols, by,
                  [=](auto& core, auto& rows, auto&... t) TIGON_LAMBDA {
                    const std::tuple<decltype(t)...> tiles(t...);
                    if constexpr (may_skip)
                      if (!to.kept.keeps(core.row))
                        return clear_tiles(core, some<sizeof...(operand) - sizeof...(D), sizeof...(D)>(tiles));
                    on.template reduce<maps ? 0 : sizeof...(D)>(core, rows.data, tiles);
                    if constexpr (maps) {
                      for (std::size_t j = 0; j < core.col_blocks(); ++j) {
                        core.cols_at(j);
                        on.template map<has_direct, 0>(core, rows.data, bound, tiles);
                      }
                      rest(core, rows.data, []() {});
                    }
                  },
                  local<of_row>{}, operand...);
            else
              for_row_blocks_with_partials<plan, of_row>(
                  ctx, of.rows, of.cols, by,
                  [=](auto& core, of_row* rows, auto&... t) TIGON_LAMBDA {
                    const std::tuple<decltype(t)...> tiles(t...);
                    on.template reduce<0>(core, rows, some<K, sizeof...(operand)>(tiles));
                  },
                  block_map(
                      [=](auto& core, const of_row* rows, auto&... t) TIGON_LAMBDA {
                        const std::tuple<decltype(t)...> tiles(t...);
                        on.template map<has_direct, K>(
                            core, rows, bound, std::tuple_cat(some<K, sizeof...(operand)>(tiles), some<0, K>(tiles)));
                      },
                      rest),
                  gradients.g, operand...);
          },
          std::tuple_cat(inputs, columns, outputs));
    }
  };
};

/// An operator's own kernel with its programs on tiles.
template <class Op>
struct kernel_on_tiles : kernel<Op, backends::generic> {
  using lanes = kernel<Op, backends::generic>;

  template <backend B, element T, class... Argument>
  static void forward(Argument&&... argument) {
    lanes::template forward<on_tiles<B, Op, tiling::pass::forward>, T>(argument...);
  }
  template <backend B, element T, class... Argument>
  static void backward(Argument&&... argument) {
    lanes::template backward<on_tiles<B, Op, tiling::pass::backward>, T>(argument...);
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::unified_buffer

#endif  // TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_ROW_PROGRAMS_HPP
