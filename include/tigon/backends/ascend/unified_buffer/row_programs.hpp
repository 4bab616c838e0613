// The driver that runs row programs (rows/reduce_map.hpp) on tiles: the same structs, the same groups of operands.
//
//   kernel<op::rms_norm, backends::generic>::forward<ub::on_tiles<B, op::rms_norm, tiling::pass::forward>, T>(...)
//
// is the operator's own kernel with its programs run on B's vector cores, cut as the tile rule of that operator and
// pass says. A block of rows is reduced, as often as its rows require, and mapped. Of what a row needs between the two
// the buffer holds a number of sums in f64, the program's state and its value. Loops over rows that are not programs
// (for_rows) run on lanes.
#ifndef TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_ROW_PROGRAMS_HPP
#define TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_ROW_PROGRAMS_HPP

#include <tigon/backend/kernel.hpp>
#include <tigon/backends/ascend/unified_buffer/maps.hpp>
#include <tigon/backends/generic/backend.hpp>
#include <tigon/rows/below_max.hpp>

#include <array>
#include <limits>
#include <type_traits>

namespace tigon::unified_buffer {
inline namespace TIGON_ABI {

// Totals of the parts of a row: sums of blocks are f64, so that their error does not grow with the row.
template <std::size_t N, class Sum>
TIGON_INLINE void add_part(std::array<double, N>& total, const Sum& part) {
  if constexpr (std::is_arithmetic_v<Sum>)
    total[0] += part;
  else
    for (std::size_t k = 0; k < part.size(); ++k) total[k] += part[k];
}
template <class Sum, std::size_t N>
TIGON_INLINE Sum as_sum(const std::array<double, N>& total) {
  if constexpr (std::is_arithmetic_v<Sum>) {
    return static_cast<Sum>(total[0]);
  } else {
    Sum sum;
    for (std::size_t k = 0; k < sum.size(); ++k) sum[k] = static_cast<typename Sum::value_type>(total[k]);
    return sum;
  }
}

struct no_row_state {};
template <class P>
struct state_of {
  using type = no_row_state;
};
template <simd::detail::has_state P>
struct state_of<P> {
  using type = typename P::state;
};

/// The types of a program with a reduction of these operands.
template <class B, class P, class Numbers, class Saves, class... X>
struct program_types;
template <class B, class P, class... N, class... S, class... X>
struct program_types<B, P, simd::of_rows<N...>, simd::saves<S...>, X...> {
  static constexpr bool has_state = simd::detail::has_state<P>;
  using vector = simd::detail::vec_of<B, X...>;
  using number = typename vector::value_type;
  using bound = simd::detail::bound_program<P, simd::of_rows<N...>, simd::saves<S...>>;
  template <class>
  using lanes = vector;
  using state = typename state_of<P>::type;
  using first_reduction = decltype(std::declval<bound>().template reduction<sizeof...(X)>(0));
  using last_reduction =
      std::conditional_t<has_state, simd::detail::row_reduction<P, sizeof...(X), state>, first_reduction>;
  template <class Reduction>
  static constexpr std::size_t count =
      simd::detail::pack_size<decltype(std::declval<Reduction>()(std::declval<lanes<X>>()...))>;
  template <class Reduction>
  using sum_of = std::conditional_t<count<Reduction> == 1, number, std::array<number, count<Reduction>>>;
  using first_sum = sum_of<first_reduction>;
  using last_sum = sum_of<last_reduction>;

  template <class Bound>
  static TIGON_INLINE auto value_of(const Bound& p, std::size_t i, const last_sum& s,
                                    [[maybe_unused]] const state& of) {
    if constexpr (has_state)
      return p.finished(i, s, of);
    else
      return p.finished(i, s);
  }
  using value = decltype(value_of(std::declval<bound>(), 0, std::declval<last_sum>(), std::declval<state>()));

  using totals = std::array<double, std::max(count<first_reduction>, count<last_reduction>)>;
  struct nothing {};
  /// What the buffer holds of a row: the value takes the place of the sums that it is made of.
  struct of_row {
    union {
      totals total;
      value made;
    };
    [[no_unique_address]] state after;
    [[no_unique_address]] std::conditional_t<has_state, bool, nothing> again;  ///< reduce the row once more
  };
};

/// A program and the numbers of its operands in a core's tuple of tiles: X operands of reduce, M of map alone, N
/// numbers and S saved ones of every row; then come the outputs.
template <class Types, class P, std::size_t X, std::size_t M, std::size_t N, std::size_t S>
struct program_on_tiles {
  using of_row = typename Types::of_row;
  using first_sum = typename Types::first_sum;
  using last_sum = typename Types::last_sum;
  P p;

  /// The values of the present rows: they are reduced until `again` is false for all.
  template <class Core, class... Tile>
  TIGON_INLINE void reduce(Core& core, of_row* rows, const std::tuple<Tile&...>& tiles) const {
    const auto numbers = some<X + M, N>(tiles);
    const auto saved = some<X + M + N, S>(tiles);
    std::apply([&](auto&... t) TIGON_LAMBDA { (core.fetch(t), ...); }, numbers);
    const simd::detail::bound_program bound(
        p, std::apply([](auto&... t) TIGON_LAMBDA { return simd::of_rows(t.data...); }, numbers),
        std::apply([](auto&... t) TIGON_LAMBDA { return simd::saves(t.data...); }, saved));
    core.each_row([=](std::size_t i) TIGON_LAMBDA {
      rows[i].total = {}, rows[i].after = {};
      if constexpr (Types::has_state) rows[i].again = true;
    });
    add(core, rows, tiles, [=](std::size_t i) TIGON_LAMBDA { return bound.template reduction<X>(i); });
    if constexpr (Types::has_state) {
      const auto from_state = [=, this](std::size_t i) TIGON_LAMBDA {
        using state = typename Types::state;
        return simd::detail::row_reduction<P, X, state>{p, std::tuple<state>(rows[i].after)};
      };
      if constexpr (std::same_as<first_sum, last_sum>) {
        while (any_again(core, rows)) add(core, rows, tiles, from_state);
      } else {
        core.each_row([=, this](std::size_t i) TIGON_LAMBDA {
          (void)p.again(rows[i].after, as_sum<first_sum>(rows[i].total));
          rows[i].total = {};
        });
        add(core, rows, tiles, from_state);
      }
    }
    core.each_row([=](std::size_t i) TIGON_LAMBDA {
      rows[i].made = Types::value_of(bound, i, as_sum<last_sum>(rows[i].total), rows[i].after);
    });
    std::apply([&](auto&... t) TIGON_LAMBDA { (core.store(t), ...); }, saved);
  }

  /// The outputs of the present rows in the present block of columns. `Direct` of the outputs need no reduction; the
  /// partial rows of parameter gradients, if there are any, are the last tiles.
  template <bool Direct, std::size_t K, class Core, class... Tile>
  TIGON_INLINE void map(Core& core, const of_row* rows, const std::tuple<Tile&...>& tiles) const {
    constexpr std::size_t Y = sizeof...(Tile) - X - M - N - S - K;
    const auto in = std::tuple_cat(some<0, X + M>(tiles), some<X + M + N + S + Y, K>(tiles));
    for_views(core, in, some<X + M + N + S, Y>(tiles), [=, this](auto row, const auto& views) TIGON_LAMBDA {
      using value = typename Types::value;
      const tile_map<P, Direct ? X : 0, value> f{p, std::tuple<value>(rows[row.i].made)};
      if constexpr (simd::detail::skips_rows<P, value>) {
        const bool skipped = p.skips(rows[row.i].made);
        if (!skipped) map_views<X + M, K>(row, f, views);
        return !skipped;
      } else {
        map_views<X + M, K>(row, f, views);
      }
    });
  }

 private:
  template <class Core, class... Tile, class Reduction>
  TIGON_INLINE void add(Core& core, of_row* rows, const std::tuple<Tile&...>& tiles, Reduction reduction) const {
    for (std::size_t j = 0; j < core.col_blocks(); ++j) {
      core.cols_at(j);
      for_views(core, some<0, X>(tiles), std::tuple<>(), [=](auto row, const auto& views) TIGON_LAMBDA {
        if constexpr (Types::has_state)
          if (!rows[row.i].again) return;
        const auto part = std::apply(
            [&](auto... view) TIGON_LAMBDA { return row.sum(tigon::reads(view...), reduction(row.i)); }, views);
        add_part(rows[row.i].total, part);
      });
    }
  }
  template <class Core>
  TIGON_INLINE bool any_again(const Core& core, of_row* rows) const {
    bool any = false;
    core.each_row([&, this](std::size_t i) TIGON_LAMBDA {
      of_row& r = rows[i];
      if (r.again) r.again = p.again(r.after, as_sum<first_sum>(r.total));
      if (r.again) r.total = {}, any = true;
    });
    return any;
  }
};

/// How the rows of operator Op's pass P are cut: as its kernel on B says, or as the plan of its rule.
template <class Plan, class Op, tiling::pass P>
constexpr cut cut_of_rows(std::size_t rows, std::size_t cols) {
  using on = kernel_for<Op, typename Plan::backend>;
  if constexpr (P == tiling::pass::forward && requires { on::template forward_cut<Plan>(rows, cols); })
    return on::template forward_cut<Plan>(rows, cols);
  else
    return Plan::cut_of(cols);
}

/// What a program writes: outputs that need no reduction, and the others.
template <class Direct, class Out>
struct program_outputs {
  Direct direct;
  Out out;
};
template <class Direct, class Out>
program_outputs(Direct, Out) -> program_outputs<Direct, Out>;

/// B, but programs run on tiles that are cut as the rule of operator Op's pass P says.
template <backend B, class Op, tiling::pass P>
struct on_tiles : B {
  using parent = B;
  using overrides = op_list<>;
  struct rows {
    template <class Program, class... Group>
    static void reduce_map(context& ctx, Program program, Group... groups) {
      using simd::detail::group;
      run(ctx, program, group<simd::reads>(groups...), group<simd::map_reads>(groups...),
          group<simd::of_rows>(groups...), group<simd::saves>(groups...),
          program_outputs{group<simd::reduce_writes>(groups...), group<simd::writes>(groups...)},
          group<simd::adds_to>(groups...));
    }

    template <class Program, class... X, class... Y, class... T>
    static void map_rows(context& ctx, Program program, simd::reads<X...> in, simd::writes<Y...> out,
                         simd::adds_to<T...> gradients) {
      using A = typename simd::detail::vec_of<B, X...>::value_type;
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

    /// Below the row's maximum, which is looked for first, with sums of blocks in f64. What is kept stays in the buffer
    /// where a row has one block, and is made twice where it has several.
    template <class Program, class X, class T>
    static void map_below_max(context& ctx, Program program, simd::reads<matrix_view<X>> in,
                              simd::writes<matrix_view<T>> out) {
      using A = accumulator_t<T>;
      using plan = unified_buffer::plan<B, Op, P, A>;
      const matrix_view<const T> x = std::get<0>(in.x);
      for_row_blocks<plan>(
          ctx, x.rows, x.cols, cut_of_rows<plan, Op, P>(x.rows, x.cols),
          [=](auto& core, auto& xt, auto& yt, auto& kept, auto& top, auto& sum) TIGON_LAMBDA {
            core.each_row([=](std::size_t i)
                              TIGON_LAMBDA { top[i] = -std::numeric_limits<A>::infinity(), sum[i] = 0; });
            core.pass(reads(xt), writes(), [=](auto row, auto xv) TIGON_LAMBDA {
              top[row.i] = math::max(top[row.i], row.max(tigon::reads(xv), [](auto v) { return v; }));
            });
            const auto reduce = [=](auto row, auto xv, auto ev) TIGON_LAMBDA {
              return row.map_sum(tigon::reads(xv), tigon::writes(ev), [=, below = top[row.i]](auto v) {
                const auto e = program.reduce(below, v);
                return simd::pack{e, e};
              });
            };
            core.pass(reads(xt, kept), writes(),
                      [=](auto row, auto xv, auto ev) TIGON_LAMBDA { sum[row.i] += reduce(row, xv, ev); });
            const bool gone = !core.whole_rows();
            core.pass(reads(xt, kept), writes(yt), [=](auto row, auto xv, auto ev, auto yv) TIGON_LAMBDA {
              if (gone) reduce(row, xv, ev);
              const A value = program.finish(static_cast<A>(sum[row.i]), A(1));
              row.map(tigon::reads(ev), tigon::writes(yv), [=](auto e) { return program.map(value, e); });
            });
          },
          x, std::get<0>(out.y), scratch<A>{}, local<A>{}, local<double>{});
    }

   private:
    template <class Program, class... X, class... M, class... N, class... S, class... D, class... Y, class... T>
    static void run(context& ctx, Program program, simd::reads<X...> in, simd::map_reads<M...> more,
                    simd::of_rows<N...> numbers, simd::saves<S...> saves,
                    program_outputs<simd::reduce_writes<D...>, simd::writes<Y...>> to, simd::adds_to<T...> gradients) {
      using types = program_types<B, Program, simd::of_rows<N...>, simd::saves<S...>, X...>;
      using of_row = typename types::of_row;
      using plan = unified_buffer::plan<B, Op, P, typename types::number>;
      constexpr std::size_t K = sizeof...(T);
      constexpr bool has_direct = sizeof...(D) != 0, maps = sizeof...(D) + sizeof...(Y) != 0;
      const program_on_tiles<types, Program, sizeof...(X), sizeof...(M), sizeof...(N), sizeof...(S)> on{program};
      const auto of = std::apply([](auto... x) { return simd::detail::first_extents(x...); }, in.x);
      const cut by = cut_of_rows<plan, Op, P>(of.rows, of.cols);
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
                    on.reduce(core, rows.data, tiles);
                    if constexpr (maps)
                      for (std::size_t j = 0; j < core.col_blocks(); ++j) {
                        core.cols_at(j);
                        on.template map<has_direct, 0>(core, rows.data, tiles);
                      }
                  },
                  local<of_row>{}, operand...);
            else
              for_row_blocks_with_partials<plan, of_row>(
                  ctx, of.rows, of.cols, by,
                  [=](auto& core, of_row* rows, auto&... t) TIGON_LAMBDA {
                    const std::tuple<decltype(t)...> tiles(t...);
                    on.reduce(core, rows, some<K, sizeof...(operand)>(tiles));
                  },
                  [=](auto& core, const of_row* rows, auto&... t) TIGON_LAMBDA {
                    const std::tuple<decltype(t)...> tiles(t...);
                    on.template map<has_direct, K>(
                        core, rows, std::tuple_cat(some<K, sizeof...(operand)>(tiles), some<0, K>(tiles)));
                  },
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
