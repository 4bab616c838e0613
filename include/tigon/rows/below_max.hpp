// Row programs below the maximum of their row, whose map takes what the reduction made of each column:
//
//   /// e = exp(x - top),   y = e / sum_j e
//   template <class A>
//   struct softmax_program {
//     TIGON_INLINE auto reduce(A top, auto x) const { return exp_nonpositive(x - top); }   // summed, and kept for map
//     TIGON_INLINE bool exceeds(A largest, A top) const { return largest - top > 1; }      // too far above for reduce
//     TIGON_INLINE A weight(A top, A highest) const { return exp_nonpositive(top - highest); }
//     TIGON_INLINE A finish(A sum, A weight) const { return weight / sum; }                // once for a part of the row
//     TIGON_INLINE auto map(A factor, auto e) const { return e * factor; }                 // every column
//   };
//   map_below_max<B>(ctx, softmax_program<A>{}, reads(x), writes(y));
//
// A row is taken in parts. Each is reduced below a top of its own, the largest number so far or one that this does not
// exceed; `weight` is by what its sum is multiplied below the row's highest top, and 1 for that one.
#ifndef TIGON_ROWS_BELOW_MAX_HPP
#define TIGON_ROWS_BELOW_MAX_HPP

#include <tigon/rows/pipelined.hpp>
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

/// Bytes that map_below_max takes from the workspace.
template <class B, class A>
std::size_t below_max_workspace(std::size_t cols, const context& ctx) {
  return pipelined_workspace<B, A>(cols, 1, ctx);
}

/// Runs such a program over all rows: y may be x.
template <class B, class P, class X, class T>
void map_below_max(context& ctx, P program, reads<matrix_view<X>> in, writes<matrix_view<T>> out) {
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
                         .block_cols = once ? columns_in_place<B>() : columns_per_block<B>(),
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

template <class B, class P, class X, class T>
  requires detail::brings_driver<B>
void map_below_max(context& ctx, P program, reads<matrix_view<X>> in, writes<matrix_view<T>> out) {
  B::rows::map_below_max(ctx, program, in, out);
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

namespace tigon {
using simd::map_below_max;
}  // namespace tigon

#endif  // TIGON_ROWS_BELOW_MAX_HPP
