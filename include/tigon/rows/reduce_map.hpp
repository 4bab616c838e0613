// Row programs: a kernel as a struct of three plain functions, and the driver that runs it over all rows.
//
//   /// rstd = rsqrt(mean x^2 + eps),   y = x rstd w
//   template <class A>
//   struct rms_norm_program {
//     A cols, eps;
//     TIGON_INLINE auto reduce(auto x) const { return x * x; }                              // summed over the row
//     TIGON_INLINE A finish(A sum) const { return math::rsqrt(sum / cols + eps); }          // once for the row
//     TIGON_INLINE A save(A rstd) const { return rstd; }                                    // kept for backward
//     TIGON_INLINE auto map(A rstd, auto x, auto w) const { return x * rstd * w; }          // every element
//   };
//   reduce_map<B>(ctx, rms_norm_program<A>{n, eps}, reads(x), map_reads(w), writes(y), saves(rstd));
//
// The words. A program computes one row; operands are data, and the driver passes their elements to it as vectors of
// the engine. How many rows are computed at a time, in which order, what is prefetched and in which pass an output is
// stored is the driver's choice (rows/lanes/schedule.hpp), and no result depends on it.
//
//   reads(x...)          operands of reduce and of map: matrices (their row i), vectors (the same for every row),
//                        or_ones(w) and or_zeros(b), which may be absent, constant(a), columns
//   map_reads(x...)      operands of map alone; it takes them behind those
//   writes(y...)         what map returns: a vector for each output, as a pack if there are several. often_zero{y}
//                        where scattered numbers are 0
//   adds_to(g...)        parameter gradients. map takes, last, the sums of its column over the rows before, and
//                        returns, last, these sums with what its row adds. Without outputs, writes(): sums of columns
//   of_rows(s...)        a number for every row, from memory: first arguments of reduce, last ones of finish
//   saves(s...)          a number for every row, to memory: what save(value) returns
//   reduce_writes(y)     an output that needs no reduction: what direct(x...) returns, stored in either pass. Without a
//                        map, direct may return a pack of it and of what reduce(x...) returns, where both have a part
//                        in common
//   row_of_group(m, n)   operand of map: a matrix whose row i / n is read in row i, which n rows in succession share
//   kept_rows(flags)     rows whose flag is 0 are not read: their outputs are zeros, and nothing is saved. Of programs
//                        that have a map or a reduction, not both
//   rows_of_all{n, all}  where many small programs with adds_to run side by side: the rows of one, and of all
//
//   reduce(x...)         what is summed over the row: a vector, or a pack of several
//   finish(sum)          what map needs of the whole row, its value: any type. An array of sums where there are several
//   map(value, x...)     the outputs at one column
//
// A program may also have
//   state, again(state&, sum), reduce(state, x...)   a reduction that depends on the one before: while `again` is true
//                        the row is reduced again; finish then takes the state first.
//                        Or, where this one makes other sums than the first, every row is reduced twice
//   in_f64(value)        a row that A does not hold: std::optional of a program in f64 whose reduce, finish, save and
//                        map compute it, on the same operands as lanes of f64. Such a row is not mapped
//   prepare(x0)          the first part of a long chain of operations on the first operand, which the driver may
//                        compute a step ahead; map takes it behind the value
//
// A program without a map, whose rows are only reduced, has no writes. One without a reduction is a struct with
// map(x...) alone, run by map_rows. What depends on data in other ways is written with for_rows (rows/row.hpp).
//
// A backend may have a driver of its own, its type `rows` (rows/driver.hpp): the same structs then run there. What runs
// them on the lanes of a CPU is in rows/lanes/, which none of these headers includes but at its end.
#ifndef TIGON_ROWS_REDUCE_MAP_HPP
#define TIGON_ROWS_REDUCE_MAP_HPP

#include <tigon/core/context.hpp>
#include <tigon/rows/driver.hpp>
#include <tigon/rows/program.hpp>
#include <tigon/rows/row.hpp>

#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tigon::rows {
inline namespace TIGON_ABI {

/// A program of K sums over the rows where none of its parameter gradients has memory: the sums are zeros before every
/// row, and what it adds to them is dropped.
template <std::size_t K, class P>
struct without_sums : P {
  template <class... X>
  TIGON_INLINE auto map(X... x) const {
    using V = std::tuple_element_t<sizeof...(X) - 1, std::tuple<X...>>;
    const V zero(typename V::value_type(0));
    const auto all = [&]<std::size_t... k>(std::index_sequence<k...>) TIGON_LAMBDA {
      return as_pack(this->P::map(x..., (static_cast<void>(k), zero)...));
    }(std::make_index_sequence<K>{});
    constexpr std::size_t Y = pack_size<std::remove_const_t<decltype(all)>> - K;
    pack<V, Y> outputs;
    unrolled<Y>([&](auto k) TIGON_LAMBDA { outputs.v[k] = all.v[k]; });
    return outputs;
  }
  template <class Value>
    requires has_rows_in_f64<P, Value>
  TIGON_INLINE auto in_f64(const Value& value) const {
    const auto program = this->P::in_f64(value);
    using wide = without_sums<K, typename decltype(this->P::in_f64(value))::value_type>;
    return program ? std::optional(wide{*program}) : std::nullopt;
  }
};
/// run(program, groups...) of a program with outputs: without sums where nobody wants them.
template <class Run, class P, class... Group>
void with_wanted_sums(Run run, P program, Group... groups) {
  constexpr std::size_t sums = std::tuple_size_v<decltype(group<adds_to>(groups...).g)>;
  const auto without = [](auto of) {
    if constexpr (requires { of.wanted(); })
      return adds_to<>();
    else
      return of;
  };
  if constexpr (sums != 0 && std::tuple_size_v<decltype(group<writes>(groups...).y)> != 0)
    if (!group<adds_to>(groups...).wanted()) return run(without_sums<sums, P>{program}, without(groups)...);
  run(program, groups...);
}

}  // namespace TIGON_ABI
}  // namespace tigon::rows

namespace tigon::simd {
inline namespace TIGON_ABI {

/// Runs a program with a reduction over all rows. Groups, in any order: reads; where there are any writes, map_reads,
/// of_rows, saves, adds_to, reduce_writes; where there are none, kept_rows. Outputs may be operands. With adds_to it
/// takes partials_workspace<B, A>(rows, cols, gradients) from the workspace, but none where no gradient has memory;
/// without rows the gradients are zero.
template <class B, class P, class... Group>
void reduce_map(context& ctx, P program, Group... groups) {
  using driver = rows::driver_of<B>;
  static_assert(rows::row_driver<driver, rows::call::reduce_map, P, Group...>,
                "tigon: the driver of this backend (its type rows) has no reduce_map for these groups of operands");
  static_assert(
      !requires { &P::in_f64; } || std::tuple_size_v<decltype(rows::group<reduce_writes>(groups...).y)> == 0,
      "tigon: a program with rows in f64 has no outputs that need no reduction");
  const auto run = [&](auto wanted, auto... of) { driver::reduce_map(ctx, wanted, of...); };
  rows::with_wanted_sums(run, program, groups...);
}

/// Runs a program with map alone over all rows: reads and writes, and one of adds_to, where there are parameter
/// gradients, for which it takes workspace as reduce_map, and kept_rows.
template <class B, class P, class... X, class... Y, class... Group>
void map_rows(context& ctx, P program, reads<X...> in, writes<Y...> out, Group... groups) {
  using driver = rows::driver_of<B>;
  if constexpr (sizeof...(Group) == 0) {
    map_rows<B>(ctx, program, in, out, adds_to<>());
  } else {
    static_assert(rows::row_driver<driver, rows::call::map_rows, P, reads<X...>, writes<Y...>, Group...>,
                  "tigon: the driver of this backend (its type rows) has no map_rows for these operands and gradients");
    const auto run = [&](auto wanted, auto... of) { driver::map_rows(ctx, wanted, of...); };
    if (sizeof...(Y) != 0 || rows::group<adds_to>(groups...).wanted())
      rows::with_wanted_sums(run, program, in, out, groups...);
  }
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

namespace tigon {
using simd::map_rows;
using simd::reduce_map;
}  // namespace tigon

#include <tigon/rows/lanes/programs.hpp>

#endif  // TIGON_ROWS_REDUCE_MAP_HPP
