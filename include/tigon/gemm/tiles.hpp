// The tile kernel of the packed product (gemm/packed.hpp): rows times vectors of sums in registers.
#ifndef TIGON_GEMM_TILES_HPP
#define TIGON_GEMM_TILES_HPP

#include <tigon/gemm/panels.hpp>

#include <algorithm>
#include <utility>

namespace tigon {
namespace packed {
inline namespace TIGON_ABI {

/// Where the sums of a tile go: to scratch as they are, or scaled to c.
template <class A>
struct tile_target {
  A* scratch;  ///< tile-wide rows; null if the sums go to c
  A* c;
  std::size_t stride;
  gemm_detail::scaling<A> scale;
  const A* bias;
};

/// Steps, four at a time, that are added up one after the other in registers. Of equal terms the error of n steps grows
/// as n / 4, and the contract allows 4 + sqrt(depth). So a sum of up to 35 steps is one chain, one of up to 99 two, one
/// of up to 163 three, one of up to 227 four, and the others have chains of 64.
TIGON_INLINE std::size_t fours_of_chain(std::size_t fours) {
  if (fours > 56) return 16;
  if (fours > 40) return (fours + 3) / 4;
  if (fours > 24) return (fours + 2) / 3;
  return fours > 8 ? (fours + 1) / 2 : 8;
}

/// The same of the steps of P.
template <class P>
TIGON_INLINE std::size_t fours_of_chain_of(std::size_t fours) {
  if constexpr (by_blocks<P>)
    return P::fours_of_chain(fours);
  else
    return fours_of_chain(fours);
}

/// f(i, j) for every sum of a tile, with constants for indices.
template <std::size_t R, std::size_t N, class F>
TIGON_INLINE void for_sums(F f) {
  unroll<R>([&](auto i) TIGON_LAMBDA { unroll<N>([&](auto j) TIGON_LAMBDA { f(i, j); }); });
}

/// c = alpha acc + beta c + bias
template <class P, std::size_t R, std::size_t N, class V, std::size_t H>
TIGON_INLINE void store_scaled(const V (&acc)[H][N], const tile_target<typename P::value>& to) {
  using A = typename P::value;
  constexpr std::size_t L = P::size;
  const V alpha(to.scale.alpha), beta(to.scale.beta);
  V bias[N];
  unroll<N>([&](auto j) TIGON_LAMBDA { bias[j] = to.bias != nullptr ? simd::load<V>(to.bias + j * L) : V(A(0)); });
  A* c = to.c;
  const bool add = to.bias != nullptr;
  unroll<R>([&](auto i) TIGON_LAMBDA {
    unroll<N>([&](auto j) TIGON_LAMBDA {
      V v = alpha * acc[i][j];
      if (to.scale.beta != 0) v = fma(beta, simd::load<V>(c + j * L), v);
      if (add) v = v + bias[j];
      simd::store(v, c + j * L);
    });
    c += to.stride;
  });
}

/// R rows by N vectors: sums = (start or 0) + a b over `length` words of depth.
template <class P, std::size_t R, std::size_t N>
void tile(std::size_t length, const typename P::word* a, const typename P::word* b, const typename P::value* start,
          const tile_target<typename P::value>& to, prefetch_cursor& cursor_of_task) {
  using A = typename P::value;
  using V = typename P::sums;
  prefetch_cursor cursor = cursor_of_task;  // in registers
  constexpr std::size_t L = P::size, U = tile_shape<P>::rows, W = tile_shape<P>::cols;
  const auto each = [](auto f) TIGON_LAMBDA { for_sums<R, N>(f); };
  constexpr std::size_t H = by_blocks<P> && R == 1 ? 2 : R;  // rows of sums: blocks have two
  V acc[H][N];
  const auto clear = [&]() TIGON_LAMBDA { for_sums<H, N>([&](auto i, auto j) TIGON_LAMBDA { acc[i][j] = V(A(0)); }); };
  const auto finish_chain = [&]() TIGON_LAMBDA {
    if constexpr (by_blocks<P>) P::to_rows(acc);
  };
  const auto join = [&](const A* sums) TIGON_LAMBDA {
    each([&](auto i, auto j) TIGON_LAMBDA { acc[i][j] = acc[i][j] + simd::load<V>(sums + i * W + j * L); });
  };
  clear();

  const auto step = [&](const typename P::word* aw, const typename P::word* bw) TIGON_LAMBDA {
    if constexpr (by_blocks<P>) {
      P::step(aw, bw, acc);
    } else {
      typename P::operand row[N];
      unroll<N>([&](auto j) TIGON_LAMBDA { row[j] = P::load(bw + j * L); });
      unroll<R>([&](auto i) TIGON_LAMBDA {
        simd::keep_order();
        const typename P::operand x = P::broadcast(aw + i);
        unroll<N>([&](auto j) TIGON_LAMBDA { acc[i][j] = P::multiply_add(x, row[j], acc[i][j]); });
      });
    }
  };
  const auto four = [&]() TIGON_LAMBDA {
    unroll<4>([&](auto u) TIGON_LAMBDA { step(a + u * U, b + u * W); });
    a += 4 * U;
    b += 4 * W;
  };
  std::size_t fours = length / 4;
  const std::size_t chain = fours_of_chain_of<P>(fours);
  std::size_t left = chain;     // of this chain
  if (to.scratch == nullptr) {  // prefetch a row of c at a time, early enough to arrive from memory
    const std::size_t rows = std::min({fours, R, chain});
    const char* c = reinterpret_cast<const char*>(to.c);
    for (std::size_t i = 0; i < rows; ++i, c += to.stride * sizeof(A)) {
      unroll<ceil_div(N * L * sizeof(A), 64)>([&](auto line) TIGON_LAMBDA { __builtin_prefetch(c + line * 64, 1, 3); });
      four();
    }
    fours -= rows, left -= rows;
  }
  // Chains are added up apart: the error grows with a chain, not with the whole depth.
  alignas(64) A folded[R * W];
  for (;;) {
    for (std::size_t count = std::min(fours, left); count > 0; --count, --fours) {
      cursor.next();
      four();
    }
    if (fours == 0) break;
    finish_chain();
    if (start != nullptr) join(start);
    each([&](auto i, auto j) TIGON_LAMBDA { simd::store(acc[i][j], folded + i * W + j * L); });
    start = folded;
    left = chain;
    clear();
  }
  cursor_of_task = cursor;
  for (std::size_t rest = length % 4; rest > 0; --rest, a += U, b += W) step(a, b);
  finish_chain();
  if (start != nullptr) join(start);

  if (to.scratch != nullptr) {
    each([&](auto i, auto j) TIGON_LAMBDA { simd::store(acc[i][j], to.scratch + i * W + j * L); });
    return;
  }
  store_scaled<P, R, N>(acc, to);
}

template <class P, std::size_t R>
TIGON_INLINE void tile_of(std::size_t vectors, std::size_t length, const typename P::word* a, const typename P::word* b,
                          const typename P::value* start, const tile_target<typename P::value>& to,
                          prefetch_cursor& cursor) {
  switch (vectors) {
    case 1: return tile<P, R, 1>(length, a, b, start, to, cursor);
    case 2:
      if constexpr (tile_shape<P>::vectors > 2) return tile<P, R, 2>(length, a, b, start, to, cursor);
      [[fallthrough]];
    default: return tile<P, R, tile_shape<P>::vectors>(length, a, b, start, to, cursor);
  }
}

/// The lowest tile that holds `rows` rows.
template <class P>
TIGON_INLINE void any_tile(std::size_t rows, std::size_t vectors, std::size_t length, const typename P::word* a,
                           const typename P::word* b, const typename P::value* start,
                           const tile_target<typename P::value>& to, prefetch_cursor& cursor) {
  with_tile_height<tile_shape<P>::rows>(
      rows, [&](auto height) TIGON_LAMBDA { tile_of<P, height>(vectors, length, a, b, start, to, cursor); });
}

// ---- What a policy by tile registers does itself

/// One block of depth of a rectangle of c.
template <class P, element TC>
struct block_of_c {
  using A = typename P::value;

  matrix_view<TC> c;
  const typename P::word *a, *b;  ///< panels
  std::size_t length;             ///< words of depth
  A* sums;                        ///< tile after tile, between blocks; null where there is one block
  bool starts, ends;              ///< the first block of the sums, and the last
  gemm_detail::scaling<A> scale;
  const TC* bias;
};

/// Blocks, and chunks, that are added up one after the other before they are added to a compensated total: their error
/// stays below what the contract allows for their depth.
template <class P>
inline constexpr std::size_t plain_blocks_of = 64;
template <by_tile_registers P>
inline constexpr std::size_t plain_blocks_of<P> = P::plain_blocks;
template <class P>
inline constexpr std::size_t plain_chunks_of = 64;
template <by_tile_registers P>
inline constexpr std::size_t plain_chunks_of<P> = P::plain_chunks;

/// Words that P makes of a word of depth of a row of a. Of a column of b it is one.
template <class P>
inline constexpr std::size_t words_of_a = 1;
template <by_tile_registers P>
inline constexpr std::size_t words_of_a<P> = P::words_of_a;

}  // namespace TIGON_ABI
}  // namespace packed
}  // namespace tigon

#endif  // TIGON_GEMM_TILES_HPP
