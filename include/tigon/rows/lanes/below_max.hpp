// Programs below the maximum of their row, part by part, each below a top of its own.
#ifndef TIGON_ROWS_LANES_BELOW_MAX_HPP
#define TIGON_ROWS_LANES_BELOW_MAX_HPP

#include <tigon/rows/lanes/pipelined.hpp>
#include <tigon/rows/program.hpp>

#include <concepts>
#include <limits>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace detail {

// Sums over the parts of a row, each below its top.
template <class A>
struct part_sums {
  static constexpr std::size_t most = 64;
  A top[most], sum[most];
  std::size_t count = 0;
  A highest = std::numeric_limits<A>::lowest();  // of the tops so far

  // What the next part is taken below if this is its maximum.
  template <class P>
  TIGON_INLINE A reference(const P& p, A largest) const {
    return p.exceeds(largest, highest) ? largest : highest;
  }
  TIGON_INLINE void add(A t, A s) {
    top[count] = highest = t;
    sum[count++] = s;
  }
  // The value that map takes for a part comes in the place of its sum.
  template <class P>
  TIGON_INLINE void finish(const P& p) {
    A total(0);
    for (std::size_t k = 0; k < count; ++k) {
      top[k] = top[k] == highest ? A(1) : p.weight(top[k], highest);
      total += top[k] * sum[k];
    }
    for (std::size_t k = 0; k < count; ++k) sum[k] = p.finish(total, top[k]);
  }
  TIGON_INLINE A value(std::size_t k) const { return sum[k]; }
};

}  // namespace detail

template <class B, class A>
std::size_t below_max_workspace(std::size_t cols, const context& ctx) {
  return pipelined_workspace<B, A>(cols, 1, ctx);
}

namespace detail {

template <class B>
template <class P, class X, class T>
void rows_on_lanes<B>::map_below_max(context& ctx, P program, reads<matrix_view<X>> in, writes<matrix_view<T>> out) {
  using A = accumulator_t<T>;
  const matrix_view<const T> x = std::get<0>(in.x);
  const matrix_view<T> y = std::get<0>(out.y);
  const bool once = std::same_as<T, A> && x.data == y.data;  // what is kept takes the place of x
  const auto kept = [=](const auto& part) TIGON_LAMBDA {
    if constexpr (std::same_as<T, A>)
      if (once) return vector_view<A>{y.row(part.i), part.cols};
    return part.scratch(0);
  };
  const pipelined blocks{.rows = x.rows,
                         .cols = x.cols,
                         .block_cols = once ? B::row.cpu.in_place_cols : B::row.block_cols,
                         .overlap = !once};
  for_rows_pipelined<B, A, detail::part_sums<A>>(
      ctx, blocks,
      [=] TIGON_FN(auto part, auto& sums) {
        // The reference is the largest number of the parts so far. Where this part has a much larger one, it is reduced
        // again. In place it cannot be, so its maximum is found first.
        A top = sums.highest;
        if (once || sums.count == 0) top = sums.reference(program, part.max(reads(x), [](auto v) { return v; }));
        for (;;) {
          const auto [sum, largest] = part.map_sum_max(reads(x), writes(kept(part)), [=](auto v) {
            const auto e = program.reduce(top, v);
            return pack{e, e, v};
          });
          const A wanted = sums.reference(program, largest);
          if (once || !(wanted > top)) return sums.add(top, sum);
          top = wanted;
        }
      },
      [=](auto& sums) { sums.finish(program); },
      [=] TIGON_FN(auto part, const auto& sums, std::size_t k) {
        const A value = sums.value(k);
        // x is an operand, because y may be x: then its lines are cached, and stores to y are not streamed.
        part.map(reads(kept(part), x), writes(y), [=](auto e, auto) { return program.map(value, e); });
      });
}

}  // namespace detail
}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_ROWS_LANES_BELOW_MAX_HPP
