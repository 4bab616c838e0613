// Rotations in elementary steps: x cos + (x with its halves exchanged) sin, a step a pass.
#ifndef TIGON_BENCH_PLAIN_ROTARY_HPP
#define TIGON_BENCH_PLAIN_ROTARY_HPP

#include <tigon/ops/rotary/rotation.hpp>

#include "plain/norms.hpp"

#include <array>

namespace tigon_bench::passes {

/// The heads of tokens, a head a row, as of_tokens() lays them out.
template <class T>
tigon::matrix_view<T> head_rows(tigon::heads_view<T> of) {
  return {of.data, of.batch * of.seq_len * of.heads, of.head_dim};
}

/// Which row of a table a head has: that of its position, or of its token.
struct position_of {
  std::size_t heads, seq_len;
  bool of_token = false;

  std::size_t operator()(std::size_t row) const { return of_token ? row / heads : row / heads % seq_len; }
};

/// y = x cos + sign (-x2, x1) sin, for the halves x1, x2 of every row. sign -1: the way back.
template <class T, class U>
void turn_halves(tigon::context& ctx, in<T> x, in<U> cos, in<U> sin, position_of at, out<T> y,
                 tigon::accumulator_t<T> sign) {
  using A = tigon::accumulator_t<T>;
  temporaries<A> own(ctx, 2, x.rows, x.cols);
  const out<A> t = own.matrix(), u = own.matrix();
  const std::size_t half = x.cols / 2;
  const auto c = look_up(cos, at), z = look_up(sin, at);
  each(ctx, t.cols_from(0, half), times(-sign), x.cols_from(half, half));
  each(ctx, t.cols_from(half, half), times(sign), x.cols_from(0, half));
  for (const std::size_t first : {std::size_t{0}, half}) {
    each(ctx, t.cols_from(first, half), product, in<A>(t.cols_from(first, half)), z);
    each(ctx, u.cols_from(first, half), product, x.cols_from(first, half), c);
  }
  each(ctx, y, sum, in<A>(u), in<A>(t));
}

/// The table of each token, put together of those of time, height and width: `sections` columns of each.
template <class U>
void section_table(tigon::context& ctx, in<U> all, std::array<std::size_t, 3> sections, out<U> table) {
  for (std::size_t part = 0, first = 0; part < 3; first += sections[part++])
    each(ctx, table.cols_from(first, sections[part]), same,
         all.rows_from(part * table.rows, table.rows).cols_from(first, sections[part]));
}

/// Neighbours as complex numbers, as a framework has them: widened, multiplied by the table, and rounded.
template <class T, class U>
void turn_neighbours(tigon::context& ctx, in<T> x, in<U> freqs, position_of at, out<T> y,
                     tigon::accumulator_t<T> sign) {
  using A = tigon::accumulator_t<T>;
  temporaries<A> own(ctx, 2, x.rows, x.cols);
  const out<A> t = own.matrix(), u = own.matrix();
  each(ctx, t, same, x);
  tigon::simd::for_rows<lanes, A>(ctx, x.rows, x.cols, [=] TIGON_FN(auto row) {
    tigon::detail::turn_neighbours<lanes>(row, static_cast<const A*>(t.row(row.i)),
                                          tigon::detail::row_at<A>{u.row(row.i), 0}, x.cols, freqs.row(at(row.i)),
                                          sign);
  });
  each(ctx, y, same, in<A>(u));
}

}  // namespace tigon_bench::passes

#endif  // TIGON_BENCH_PLAIN_ROTARY_HPP
