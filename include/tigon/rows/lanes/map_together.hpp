// Maps of R rows together: out = f(x..., sums...), row after row in every few columns, with sums over the rows in
// registers.
#ifndef TIGON_ROWS_LANES_MAP_TOGETHER_HPP
#define TIGON_ROWS_LANES_MAP_TOGETHER_HPP

#include <tigon/rows/lanes/loop.hpp>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace detail {

// Rows that are mapped together compute `prepare` of the next columns beside `rest` of these, by software pipelining:
// of a long chain of operations, too few columns fit into the reorder buffer of a CPU.
template <class F>
inline constexpr bool is_prepared = false;
template <class Prepare, class Rest>
inline constexpr bool is_prepared<prepared_map<Prepare, Rest>> = true;

// One step of columns of R rows. K sums; U vectors.
template <class V, std::size_t R, std::size_t U, std::size_t K, class F, class X>
struct rows_step;
template <class V, std::size_t R, std::size_t U, std::size_t K, class F, class... Source>
struct rows_step<V, R, U, K, F, std::tuple<Source...>> {
  static constexpr std::size_t N = V::size;
  using sums = pack<V, K == 0 ? 1 : K>;
  const std::array<F, R>& f;
  const std::array<std::tuple<Source...>, R>& x;

  // f of row r: what goes to its sink, and the new sums.
  template <class I, class Load>
  TIGON_INLINE auto call(I r, Load load, const sums& sum) const {
    return [&]<std::size_t... k>(std::index_sequence<k...>) TIGON_LAMBDA {
      return unpacked([&](auto... from) TIGON_LAMBDA { return f[r](load(from)..., sum.v[k]...); }, x[r]);
    }(std::make_index_sequence<K>{});
  }
  // The first operand of a step of columns, and what is prepared of it.
  template <class I>
  TIGON_INLINE auto begun(I r, std::size_t j, std::size_t more) const {
    if constexpr (is_prepared<F>) {
      const V v = std::get<0>(x[r]).template load<V>(j, more);
      return std::pair{v, f[r].prepare(v)};
    } else {
      return 0;
    }
  }
  template <class I, class First, class Load>
  TIGON_INLINE auto finished(I r, const First& first, Load load, const sums& sum) const {
    return [&]<std::size_t... k>(std::index_sequence<k...>) TIGON_LAMBDA {
      return unpacked([&](auto, auto... from)
                          TIGON_LAMBDA { return f[r].rest(first.second, first.first, load(from)..., sum.v[k]...); },
                      x[r]);
    }(std::make_index_sequence<K>{});
  }
  template <int Level>
  TIGON_INLINE void prefetch(std::size_t j) const {  // not by std::apply: g++ drops calls that do nothing but prefetch
    unrolled<R * U>([&](auto k) TIGON_LAMBDA {
      unrolled<sizeof...(Source)>([&](auto s)
                                      TIGON_LAMBDA { std::get<s>(x[k / U]).template prefetch<k % U * N, Level>(j); });
    });
  }
};

// Every f returns what goes to its sink and the new sums. All rows are loaded before one is stored: 4K aliasing, a load
// that waits for an earlier store whose address is equal modulo 4096, is likely where rows are long. False, and nothing
// done, where outputs are to be stored past the caches and the rows do not begin at whole vectors.
template <class B, bool Prefetches, std::size_t K, class Sink, std::size_t R, class F, class... Source, class A>
TIGON_INLINE bool map_together(std::size_t cols, const std::array<Sink, R>& y, const std::array<F, R>& f,
                               const std::array<std::tuple<Source...>, R>& x, A* sums, std::size_t stride) {
  using V = vec_of_elements<B, typename Source::element_type..., typename Sink::element_type>;
  constexpr std::size_t N = V::size, U = std::min<std::size_t>(B::row.unroll, 2);
  // Compilers keep what is loaded after a store behind it. Rows of 16 bits, which compute for longer, mix the vectors
  // of a step and store their sums at its end; wider ones are bandwidth-bound, and go on vector by vector.
  constexpr bool mixes = sizeof(typename Sink::element_type) == 2 && !is_prepared<F>;
  bool wanted = true, possible = true;
  unrolled<R>([&](auto r) TIGON_LAMBDA {
    wanted =
        wanted &&
        unpacked([&](auto... from) TIGON_LAMBDA { return y[r].streams(B::row.stream_bytes, from.begin()...); }, x[r]);
    possible = possible && y[r].template head<V>() == 0;
  });
  if (wanted && !possible) return false;
  using step_of = rows_step<V, R, U, K, F, std::tuple<Source...>>;
  const step_of rows{f, x};
  decltype(rows.begun(std::integral_constant<std::size_t, 0>{}, 0, 0)) ahead[R][U];
  if constexpr (is_prepared<F>)
    if (U * N <= cols)
      unrolled<U>([&](auto u) TIGON_LAMBDA {
        unrolled<R>([&](auto r) TIGON_LAMBDA { ahead[r][u] = rows.begun(r, 0, u * N); });
      });
  const auto step = [&](std::size_t j, auto ignore) TIGON_LAMBDA {
    constexpr bool whole = !ignores<decltype(ignore)>, prepared = whole && is_prepared<F>;
    constexpr std::size_t count = vectors_of_step<decltype(ignore), U>;
    if constexpr (whole && Prefetches) rows.template prefetch<B::row.cpu.prefetch_into>(j);
    pack<V, 1> out[R][count];
    typename step_of::sums acc[count];
    [[maybe_unused]] const std::size_t next = j + 2 * U * N <= cols ? j + U * N : j;
    const auto keep_sums = [&]([[maybe_unused]] auto u) TIGON_LAMBDA {
      unrolled<K>([&](auto k) TIGON_LAMBDA { store(acc[u].v[k], sums + k * stride + j + u * N, ignore); });
    };
    unrolled<count>([&](auto u) TIGON_LAMBDA {
      unrolled<K>([&](auto k) TIGON_LAMBDA { acc[u].v[k] = load<V>(sums + k * stride + j + u * N, ignore); });
      unrolled<R>([&](auto r) TIGON_LAMBDA {
        const auto load = [&](auto from) TIGON_LAMBDA { return from.template load<V>(j, u * N, ignore); };
        const auto v = [&]() TIGON_LAMBDA {
          if constexpr (prepared)
            return rows.finished(r, ahead[r][u], load, acc[u]);
          else
            return rows.call(r, load, acc[u]);
        }();
        out[r][u].v[0] = v.v[0];
        unrolled<K>([&](auto k) TIGON_LAMBDA { acc[u].v[k] = v.v[k + 1]; });
        if constexpr (prepared) {
          ahead[r][u] = rows.begun(r, next, u * N);
          order_barrier();  // as it is written: mixed with what follows, the chain is as long as before
        }
      });
      if constexpr (!mixes) keep_sums(u);
    });
    if constexpr (mixes) unrolled<count>(keep_sums);
    constexpr std::integral_constant<std::size_t, 0> k{};
    if (whole && wanted)
      unrolled<R>([&](auto r) TIGON_LAMBDA { y[r].template put<whole>(out[r], k, j, ignore); });
    else
      unrolled<R>([&](auto r) TIGON_LAMBDA { y[r].template put<false>(out[r], k, j, ignore); });
  };
  for_columns<U * N, N>(cols, step);
  return true;
}

}  // namespace detail
}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_ROWS_LANES_MAP_TOGETHER_HPP
