// A row program on tiles: its types, its reduction of the present rows, block by block, and its map of the present
// block.
#ifndef TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_PROGRAM_HPP
#define TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_PROGRAM_HPP

#include <tigon/backends/ascend/unified_buffer/maps.hpp>

#include <array>
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
template <tigon::rows::has_state P>
struct state_of<P> {
  using type = typename P::state;
};

/// The types of a program with a reduction of these operands.
template <class B, class P, class Numbers, class Saves, class... X>
struct program_types;
template <class B, class P, class... N, class... S, class... X>
struct program_types<B, P, simd::of_rows<N...>, simd::saves<S...>, X...> {
  static constexpr bool has_state = tigon::rows::has_state<P>;
  using vector = tigon::rows::vec_of<B, X...>;
  using number = typename vector::value_type;
  using bound = tigon::rows::bound_program<P, simd::of_rows<N...>, simd::saves<S...>>;
  template <class>
  using lanes = vector;
  using state = typename state_of<P>::type;
  using first_reduction = decltype(std::declval<bound>().template reduction<sizeof...(X)>(0));
  using last_reduction =
      std::conditional_t<has_state, tigon::rows::row_reduction<P, sizeof...(X), state>, first_reduction>;
  template <class Reduction>
  static constexpr std::size_t count =
      simd::pack_size<decltype(std::declval<Reduction>()(std::declval<lanes<X>>()...))>;
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

  /// The values of the present rows: they are reduced until `again` is false for all. The first D outputs, which need
  /// no reduction, are written beside it.
  template <std::size_t D, class Core, class... Tile>
  TIGON_INLINE void reduce(Core& core, of_row* rows, const std::tuple<Tile&...>& tiles) const {
    const auto numbers = some<X + M, N>(tiles);
    const auto saved = some<X + M + N, S>(tiles);
    std::apply([&](auto&... t) TIGON_LAMBDA { (core.fetch(t), ...); }, numbers);
    const tigon::rows::bound_program bound(
        p, std::apply([](auto&... t) TIGON_LAMBDA { return simd::of_rows(t.data...); }, numbers),
        std::apply([](auto&... t) TIGON_LAMBDA { return simd::saves(t.data...); }, saved));
    core.each_row([=](std::size_t i) TIGON_LAMBDA {
      rows[i].total = {}, rows[i].after = {};
      if constexpr (Types::has_state) rows[i].again = true;
    });
    add<D>(core, rows, tiles, [=](std::size_t i) TIGON_LAMBDA { return bound.template reduction<X>(i); });
    if constexpr (Types::has_state) {
      static_assert(D == 0);
      const auto from_state = [=, this](std::size_t i) TIGON_LAMBDA {
        using state = typename Types::state;
        return tigon::rows::row_reduction<P, X, state>{p, std::tuple<state>(rows[i].after)};
      };
      if constexpr (std::same_as<first_sum, last_sum>) {
        while (any_again(core, rows)) add<0>(core, rows, tiles, from_state);
      } else {
        core.each_row([=, this](std::size_t i) TIGON_LAMBDA {
          (void)p.again(rows[i].after, as_sum<first_sum>(rows[i].total));
          rows[i].total = {};
        });
        add<0>(core, rows, tiles, from_state);
      }
    }
    core.each_row([=](std::size_t i) TIGON_LAMBDA {
      rows[i].made = Types::value_of(bound, i, as_sum<last_sum>(rows[i].total), rows[i].after);
    });
    std::apply([&](auto&... t) TIGON_LAMBDA { (core.store(t), ...); }, saved);
  }

  /// The outputs of the present rows in the present block of columns. `Direct` of the outputs need no reduction; the
  /// partial rows of parameter gradients, if there are any, are the last tiles. Rows in f64 are computed here if they
  /// are in the buffer as a whole, with the numbers that `bound` has of them, and otherwise left alone.
  template <bool Direct, std::size_t K, class Core, class Bound, class... Tile>
  TIGON_INLINE void map(Core& core, const of_row* rows, const Bound& bound, const std::tuple<Tile&...>& tiles) const {
    constexpr std::size_t Y = sizeof...(Tile) - X - M - N - S - K;
    const auto in = std::tuple_cat(some<0, X + M>(tiles), some<X + M + N + S + Y, K>(tiles));
    [[maybe_unused]] const bool whole = core.whole_rows();
    [[maybe_unused]] const std::size_t first = core.row;
    for_views(core, in, some<X + M + N + S, Y>(tiles), [=, this](auto row, const auto& views) TIGON_LAMBDA {
      using value = typename Types::value;
      const tile_map<P, Direct ? X : 0, value> f{p, std::tuple<value>(rows[row.i].made)};
      if constexpr (tigon::rows::has_rows_in_f64<P, value>) {
        const bool in_f64 = p.in_f64(rows[row.i].made).has_value();
        if (!in_f64)
          map_views<X + M, K>(row, f, views);
        else if (whole)
          map_views_in_f64<K>(row.on(first + row.i), bound, rows[row.i].made, views);
        return !in_f64 || whole;
      } else {
        map_views<X + M, K>(row, f, views);
      }
    });
  }

 private:
  template <std::size_t K, class Row, class Bound, class Value, class... View>
  static TIGON_INLINE void map_views_in_f64(const Row& row, const Bound& bound, const Value& value,
                                            const std::tuple<View...>& views) {
    const auto as = [](auto group, const auto& some) TIGON_LAMBDA { return std::apply(group, some); };
    constexpr auto reads = [](auto... x) TIGON_LAMBDA { return tigon::reads(x...); };
    constexpr auto map_reads = [](auto... x) TIGON_LAMBDA { return tigon::map_reads(x...); };
    constexpr auto writes = [](auto... y) TIGON_LAMBDA { return tigon::writes(y...); };
    std::apply(
        [&](auto... sums) TIGON_LAMBDA {
          tigon::rows::map_if_in_f64(row, bound, value, as(reads, some<0, X>(views)), as(map_reads, some<X, M>(views)),
                                     as(writes, some<X + M + K, sizeof...(View) - X - M - K>(views)), sums...);
        },
        some<X + M, K>(views));
  }
  template <std::size_t D, class Core, class... Tile, class Reduction>
  TIGON_INLINE void add(Core& core, of_row* rows, const std::tuple<Tile&...>& tiles, Reduction reduction) const {
    for (std::size_t j = 0; j < core.col_blocks(); ++j) {
      core.cols_at(j);
      for_views(core, some<0, X>(tiles), some<X + M + N + S, D>(tiles),
                [=, this](auto row, const auto& views) TIGON_LAMBDA {
                  if constexpr (Types::has_state)
                    if (!rows[row.i].again) return;
                  const auto part = std::apply(
                      [&](auto... in) TIGON_LAMBDA {
                        return std::apply(
                            [&](auto... out) TIGON_LAMBDA {
                              if constexpr (D == 0)
                                return row.sum(tigon::reads(in...), reduction(row.i));
                              else
                                return row.map_sum(tigon::reads(in...), tigon::writes(out...),
                                                   tigon::rows::direct_and_reduce{p, reduction(row.i)});
                            },
                            some<X, D>(views));
                      },
                      some<0, X>(views));
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

}  // namespace TIGON_ABI
}  // namespace tigon::unified_buffer

#endif  // TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_PROGRAM_HPP
