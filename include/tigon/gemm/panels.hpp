// Operands of the packed product (gemm/packed.hpp): panels, how their words are multiplied, and how they are packed.
#ifndef TIGON_GEMM_PANELS_HPP
#define TIGON_GEMM_PANELS_HPP

#include <tigon/gemm/contract.hpp>
#include <tigon/simd/engines/pairs.hpp>
#include <tigon/simd/registers.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

namespace tigon {
namespace packed {
inline namespace TIGON_ABI {

using gemm_detail::ceil_div;
using gemm_detail::round_up;

template <std::size_t N, class F>
TIGON_INLINE void unroll(F&& f) {
  [&]<std::size_t... I>(std::index_sequence<I...>)
      TIGON_LAMBDA { (f(std::integral_constant<std::size_t, I>{}), ...); }(std::make_index_sequence<N>{});
}

// ---- Transposition in registers, on the compilers' own vectors: the engines have no common shuffle.

template <class W, std::size_t L>
struct word_vector {
  typedef W type __attribute__((vector_size(sizeof(W) * L)));
};
template <class W, std::size_t L>
using words = typename word_vector<W, L>::type;

/// Exchanges bit S of the lane number with the bit that tells a from b.
template <std::size_t L, std::size_t S, class R, std::size_t... J>
TIGON_INLINE void swap_bit(R& a, R& b, std::index_sequence<J...>) {
  const R low = simd::pairs::shuffled<static_cast<int>((J & S) != 0 ? L + J - S : J)...>(a, b);
  b = simd::pairs::shuffled<static_cast<int>((J & S) != 0 ? L + J : J + S)...>(a, b);
  a = low;
}

/// Lane (row, depth) becomes lane (depth, row); H rows.
template <std::size_t L, std::size_t H, class R, std::size_t... J>
TIGON_INLINE R rows_inward(R a, std::index_sequence<J...>) {
  return simd::pairs::shuffled<static_cast<int>((J % H) * (L / H) + J / H)...>(a, a);
}

/// H rows of L depths in; out, vector q holds L / H depths of H rows each. A square if H == L.
template <std::size_t L, std::size_t H, std::size_t S = H / 2, class R>
TIGON_INLINE void transpose_block(R (&x)[H]) {
  if constexpr (S > 0) {
    unroll<H>([&](auto i) TIGON_LAMBDA {
      if constexpr ((i & S) == 0) swap_bit<L, S*(L / H)>(x[i], x[i + S], std::make_index_sequence<L>{});
    });
    transpose_block<L, H, S / 2>(x);
  } else if constexpr (H < L) {
    unroll<H>([&](auto i) TIGON_LAMBDA { x[i] = rows_inward<L, H>(x[i], std::make_index_sequence<L>{}); });
  }
}

// ---- What a product is made of: how words are read, multiplied and summed.

/// Widened elements, multiplied by fma. A word is one element.
template <class E, class A>
struct fma_lanes {
  using value = A;
  using sums = simd::vec<E, A>;
  using operand = sums;
  using word = A;
  static constexpr std::size_t group = 1;  ///< elements of depth in a word
  static constexpr std::size_t size = sums::size;
  using block = words<word, size>;

  static TIGON_INLINE operand load(const word* p) { return simd::load_once<sums>(p); }
  static TIGON_INLINE operand broadcast(const word* p) { return operand(*p); }
  static TIGON_INLINE sums multiply_add(operand a, operand b, sums c) { return simd::fma_in_registers(a, b, c); }

  /// `count` <= size * group elements that follow each other in depth.
  template <element T>
  static TIGON_INLINE block along(const T* p, std::size_t count) {
    return bits(count == size ? simd::load<sums>(p) : simd::load_n<sums>(p, count));
  }
  /// `count` <= size columns of `depth` <= group rows.
  template <element T>
  static TIGON_INLINE block across(const T* p, std::size_t, std::size_t, std::size_t count) {
    return bits(count == size ? simd::load<sums>(p) : simd::load_n<sums>(p, count));
  }

 private:
  static TIGON_INLINE block bits(sums v) {
    block b;
    std::memcpy(&b, &v, sizeof b);
    return b;
  }
};

/// Rows and vectors of a tile: as many sums as the registers hold beside the row of b and two broadcasts. A step reads
/// `vectors` vectors and `rows` broadcasts for rows * vectors multiplications.
template <class P>
struct tile_shape {
#if defined(__aarch64__)
  static constexpr std::size_t registers = 32;
#else
  static constexpr std::size_t registers = sizeof(typename P::sums) == 64 ? 32 : 16;
#endif
#if defined(__x86_64__) && !defined(__FMA__)
  static constexpr std::size_t rows = 4;  // a product takes a register, too
#else
  static constexpr std::size_t rows = registers == 32 ? 8 : 6;
#endif
  static constexpr std::size_t vectors = registers == 32 ? 3 : 2;
  static constexpr std::size_t cols = vectors * P::size;
};

/// Rows of the lowest tile that holds `rows` <= U rows: 1, 2, 4 or U.
template <std::size_t U>
constexpr std::size_t tile_height(std::size_t rows) {
  return rows > std::bit_floor(U - 1) ? U : std::bit_ceil(rows);
}

/// f(height), the height of the lowest tile that holds `rows` as a constant.
template <std::size_t U, class F>
TIGON_INLINE void with_tile_height(std::size_t rows, F f) {
  switch (tile_height<U>(rows)) {
    case 1: return f(std::integral_constant<std::size_t, 1>{});
    case 2: return f(std::integral_constant<std::size_t, 2>{});
    case 4:
      if constexpr (U > 4) return f(std::integral_constant<std::size_t, 4>{});
      [[fallthrough]];
    default: return f(std::integral_constant<std::size_t, U>{});
  }
}

// ---- Packing

template <class R, class W>
TIGON_INLINE void put(const R& r, W* p) {
  std::memcpy(p, &r, sizeof r);
}

/// The first N words of r.
template <std::size_t N, class R, class W>
TIGON_INLINE void put_first(const R& r, W* p) {
  std::memcpy(p, &r, N * sizeof(W));
}

/// One panel of U rows whose depth is contiguous. Missing rows and depth become zeros.
///
/// Vectors of H rows, where U is no multiple of H, reach into the next word of depth. That word is written later; the
/// last word is written apart.
template <class P, std::size_t U, element T>
void pack_along(const T* from, std::size_t stride, std::size_t rows, std::size_t depth, typename P::word* to) {
  constexpr std::size_t L = P::size, H = std::min(std::bit_ceil(U), L), per = L / H, step = L * P::group;
  constexpr bool reaches = U % H != 0;
  static_assert(!reaches || per == 1);
  const std::size_t length = ceil_div(depth, P::group);
  for (std::size_t end = round_up(U, H); end != 0; end -= H) {  // the last rows first
    const std::size_t first = end - H, height = std::min(H, U - first);
    const std::size_t have = rows > first ? std::min(height, rows - first) : 0;
    const T* source = from + first * stride;
    for (std::size_t p = 0; p < length; p += L) {
      const T* at = source + p * P::group;
      const std::size_t count = std::min(step, depth - p * P::group);
      typename P::block x[H];
      if (have == height && count == step)
        unroll<H>([&](auto i)
                      TIGON_LAMBDA { x[i] = i < height ? P::along(at + i * stride, step) : typename P::block{}; });
      else
        unroll<H>([&](auto i)
                      TIGON_LAMBDA { x[i] = i < have ? P::along(at + i * stride, count) : typename P::block{}; });
      transpose_block<L, H>(x);
      typename P::word* out = to + p * U + first;
      if (p + L <= length) {
        unroll<H - reaches>([&](auto q) TIGON_LAMBDA { put(x[q], out + q * per * U); });
        if constexpr (reaches) {
          if (p + L < length || height == H)
            put(x[H - 1], out + (H - 1) * U);
          else
            put_first<U % H>(x[H - 1], out + (H - 1) * U);
        }
      } else {
        alignas(64) typename P::word buffer[H * L];
        std::memcpy(buffer, x, sizeof buffer);
        for (std::size_t q = 0; q < length - p; ++q) std::copy_n(buffer + q * H, height, out + q * U);
      }
    }
  }
}

/// Panels of U columns that lie side by side in rows of depth. Missing columns become zeros.
template <class P, std::size_t U, element T>
void pack_across(const T* from, std::size_t stride, std::size_t cols, std::size_t depth, typename P::word* to) {
  constexpr std::size_t L = P::size;
  using word = typename P::word;
  const std::size_t length = ceil_div(depth, P::group), panels = ceil_div(cols, U);
  for (std::size_t p = 0; p < length; ++p) {
    const T* source = from + p * P::group * stride;
    const std::size_t have = std::min(P::group, depth - p * P::group);
    word* out = to + p * U;
    const auto read = [&](std::size_t j) TIGON_LAMBDA {
      if (j + L <= cols) return P::across(source + j, stride, have, L);
      return j < cols ? P::across(source + j, stride, have, cols - j) : typename P::block{};
    };
    if constexpr (U % L == 0) {
      for (std::size_t q = 0; q < panels; ++q, out += U * length)
        unroll<U / L>([&](auto v) TIGON_LAMBDA { put(read(q * U + v * L), out + v * L); });
    } else if constexpr (L % U == 0) {
      for (std::size_t q = 0; q < panels;) {
        alignas(64) word buffer[L];
        put(read(q * U), buffer);
        for (std::size_t h = 0; h < L / U && q < panels; ++h, ++q, out += U * length)
          std::copy_n(buffer + h * U, U, out);
      }
    } else {
      constexpr std::size_t whole = U / L;
      for (std::size_t q = 0; q < panels; ++q, out += U * length) {
        unroll<whole>([&](auto v) TIGON_LAMBDA { put(read(q * U + v * L), out + v * L); });
        if (p + 1 < length)  // reaches into the next word, as in pack_along
          put(read(q * U + whole * L), out + whole * L);
        else
          put_first<U % L>(read(q * U + whole * L), out + whole * L);
      }
    }
  }
}

/// An operand in memory: its depth is contiguous (`along`) or its rows (columns, for b) are.
template <element T>
struct source {
  const T* data;
  std::size_t stride;
  bool along;
};

/// Panels for rows (columns) [first, first + count) and depth [p, p + depth). Of rows of memory eight panels at a time:
/// panels often lie a multiple of 4 KiB apart, and more of them than L1 has ways would drive each other out.
template <class P, std::size_t U, element T>
void pack(source<T> s, std::size_t first, std::size_t count, std::size_t p, std::size_t depth, typename P::word* to) {
  const std::size_t length = ceil_div(depth, P::group), step = s.along ? U : 8 * U;
  for (std::size_t i = 0; i < count; i += step) {
    if (s.along)
      pack_along<P, U>(s.data + (first + i) * s.stride + p, s.stride, count - i, depth, to + i * length);
    else
      pack_across<P, U>(s.data + p * s.stride + first + i, s.stride, std::min(step, count - i), depth, to + i * length);
  }
}

/// A policy that multiplies by tile registers: it has panels of its own (gemm/tile_panels.hpp).
template <class P>
concept by_tile_registers = requires { typename P::tiles; };

/// One whose instruction has a block of 2 x 2 sums in a register: it too has panels of its own (gemm/block_panels.hpp).
template <class P>
concept by_blocks = requires { typename P::blocks; };

/// Panels of rows of a, and of columns of b, as P has them.
template <class P, element T>
TIGON_INLINE void pack_a(source<T> a, std::size_t first, std::size_t count, std::size_t p, std::size_t depth,
                         typename P::word* to) {
  if constexpr (by_tile_registers<P> || by_blocks<P>)
    P::template pack<true>(a, first, count, p, depth, to);
  else
    pack<P, tile_shape<P>::rows>(a, first, count, p, depth, to);
}
template <class P, element T>
TIGON_INLINE void pack_b(source<T> b, std::size_t first, std::size_t count, std::size_t p, std::size_t depth,
                         typename P::word* to) {
  if constexpr (by_tile_registers<P> || by_blocks<P>)
    P::template pack<false>(b, first, count, p, depth, to);
  else
    pack<P, tile_shape<P>::cols>(b, first, count, p, depth, to);
}

/// Prefetches a rectangle of memory, one cache line at a time: the part of an operand that is packed next.
class prefetch_cursor {
 public:
  prefetch_cursor() = default;
  template <element T>
  prefetch_cursor(source<T> s, std::size_t first, std::size_t count, std::size_t p, std::size_t depth)
      : line_(reinterpret_cast<const char*>(s.data + (s.along ? first * s.stride + p : p * s.stride + first))),
        width_((s.along ? depth : count) * sizeof(T)),
        stride_(s.stride * sizeof(T)),
        rows_(s.along ? count : depth) {}

  TIGON_INLINE void next() {
    if (rows_ == 0) return;
    __builtin_prefetch(line_ + x_, 0, 2);
    x_ += 64;
    if (x_ >= width_) {
      x_ = 0;
      line_ += stride_;
      --rows_;
    }
  }

 private:
  const char* line_ = nullptr;
  std::size_t width_ = 0, stride_ = 0, x_ = 0, rows_ = 0;
};

// ---- The tile

}  // namespace TIGON_ABI
}  // namespace packed
}  // namespace tigon

#endif  // TIGON_GEMM_PANELS_HPP
