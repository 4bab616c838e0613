// Panels of the packed product (gemm/packed.hpp) of two bf16 matrices for an instruction that multiplies two rows and
// two columns, four elements of depth each, into 2 x 2 sums of f32 (BFMMLA of 64-bit ARM).
//
//   word     four elements of depth of a row of a or a column of b: half an operand of the instruction
//   operand  words of two rows that follow each other, or of two columns
//   sums     (0, 0), (0, 1), (1, 0), (1, 1) of a register, until a chain of steps is added up: then rows of four
//   panel    of a, 8 rows; of b, 8 columns; depth-major, as in gemm/packed.hpp
#ifndef TIGON_GEMM_BLOCK_PANELS_HPP
#define TIGON_GEMM_BLOCK_PANELS_HPP

#include <tigon/gemm/packed.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tigon {
namespace packed {
inline namespace TIGON_ABI {

/// The policy. Instruction is the CPU's, or what computes the same:
///   operand, sums    registers of 16 bytes
///   multiply_add(operand a, operand b, sums c)
/// adds to c, for each of its sums, the products of elements 0 and 1, then those of 2 and 3. Both additions, and that
/// of the two products, round to odd: a sum that is not exact is cut off, and its last bit set. Subnormal numbers are
/// zeros.
///
/// A single row wastes half of each multiplication. A dot product (BFDOT) would need as many, of the same operands.
template <class E, class Instruction>
struct block_lanes {
  using blocks = Instruction;
  using value = float;
  using sums = simd::vec<E, float>;
  using word = std::uint64_t;
  static constexpr std::size_t group = 4;
  static constexpr std::size_t size = sums::size;
  static_assert(size == 4, "tigon: products by blocks of bf16 need an engine with lanes of 128 bits");

  /// A block of depth of a panel has 16 KiB.
  static constexpr gemm_tuning tuning{.depth = 256};

  /// Steps, four at a time, of a chain. An addition that rounds to odd has up to twice the error of one to nearest, and
  /// a step has two. Equal terms are exact in chains of up to 64 steps: their sums have no more than 24 digits.
  static constexpr std::size_t fours_of_chain(std::size_t fours) { return fours > 32 ? 8 : fours > 16 ? 4 : 2; }

  /// One word of depth: R rows by N vectors of columns.
  template <std::size_t R, std::size_t N>
  static TIGON_INLINE void step(const word* a, const word* b, sums (&acc)[R][N]) {
    static_assert(R % 2 == 0);
    typename Instruction::operand cols[2 * N];
    unroll<2 * N>([&](auto j) TIGON_LAMBDA { cols[j] = load(b + 2 * j); });
    unroll<R / 2>([&](auto i) TIGON_LAMBDA {
      const typename Instruction::operand rows = load(a + 2 * i);
      unroll<N>([&](auto j) TIGON_LAMBDA {
        multiply_add(rows, cols[2 * j], acc[2 * i][j]);
        multiply_add(rows, cols[2 * j + 1], acc[2 * i + 1][j]);
      });
    });
  }

  /// Sums of 2 x 2 become rows.
  template <std::size_t R, std::size_t N>
  static TIGON_INLINE void to_rows(sums (&acc)[R][N]) {
    using half_rows = words<std::uint64_t, 2>;
    unroll<R / 2>([&](auto i) TIGON_LAMBDA {
      unroll<N>([&](auto j) TIGON_LAMBDA {
        half_rows left, right;
        std::memcpy(&left, &acc[2 * i][j], sizeof left);
        std::memcpy(&right, &acc[2 * i + 1][j], sizeof right);
        const half_rows first = __builtin_shufflevector(left, right, 0, 2);
        const half_rows second = __builtin_shufflevector(left, right, 1, 3);
        std::memcpy(static_cast<void*>(&acc[2 * i][j]), &first, sizeof first);
        std::memcpy(static_cast<void*>(&acc[2 * i + 1][j]), &second, sizeof second);
      });
    });
  }

  /// Panels of a or of b. Missing rows, columns and depth become zeros.
  template <bool OfA>
  static void pack(source<bfloat16> s, std::size_t first, std::size_t count, std::size_t p, std::size_t depth,
                   word* to) {
    constexpr std::size_t U = OfA ? tile_shape<block_lanes>::rows : tile_shape<block_lanes>::cols;
    const std::size_t length = ceil_div(depth, group);
    if (s.along) {
      const bfloat16* from = s.data + first * s.stride + p;
      for (std::size_t i = 0; i < count; i += U)
        pack_along<U>(from + i * s.stride, s.stride, std::min(U, count - i), depth, to + i * length);
    } else {  // a row of memory has all panels
      const bfloat16* from = s.data + p * s.stride + first;
      for (std::size_t q = 0; q < length; ++q)
        for (std::size_t i = 0; i < count; i += U)
          pack_across<U>(from + q * group * s.stride + i, s.stride, std::min(U, count - i),
                         std::min(group, depth - q * group), to + i * length + q * U);
    }
  }

 private:
  static TIGON_INLINE typename Instruction::operand load(const word* p) {
    typename Instruction::operand x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  static TIGON_INLINE void multiply_add(typename Instruction::operand a, typename Instruction::operand b, sums& c) {
    typename Instruction::sums s;
    static_assert(sizeof s == sizeof c);
    std::memcpy(&s, &c, sizeof s);
    s = Instruction::multiply_add(a, b, s);
    std::memcpy(static_cast<void*>(&c), &s, sizeof s);
  }

  /// A panel of `rows` <= U rows whose depth is contiguous: two rows by two words at a time.
  template <std::size_t U>
  static void pack_along(const bfloat16* from, std::size_t stride, std::size_t rows, std::size_t depth, word* to) {
    using two_words = words<std::uint64_t, 2>;
    const std::size_t length = ceil_div(depth, group);
    for (std::size_t i = 0; i < U; i += 2) {
      const bfloat16 *x = from + i * stride, *y = x + stride;
      std::size_t q = 0;
      if (i + 1 < rows)
        for (; (q + 2) * group <= depth; q += 2) {
          two_words a, b;
          std::memcpy(&a, x + q * group, sizeof a);
          std::memcpy(&b, y + q * group, sizeof b);
          put(two_words(__builtin_shufflevector(a, b, 0, 2)), to + q * U + i);
          put(two_words(__builtin_shufflevector(a, b, 1, 3)), to + (q + 1) * U + i);
        }
      for (; q < length; ++q) {
        const std::size_t have = std::min(group, depth - q * group);
        to[q * U + i] = i < rows ? word_at(x + q * group, have) : word(0);
        to[q * U + i + 1] = i + 1 < rows ? word_at(y + q * group, have) : word(0);
      }
    }
  }
  /// One word of depth, `depth` <= group rows of memory, for `cols` <= U columns: four at a time.
  template <std::size_t U>
  static TIGON_INLINE void pack_across(const bfloat16* from, std::size_t stride, std::size_t cols, std::size_t depth,
                                       word* to) {
    using four = words<std::uint16_t, 4>;
    using eight = words<std::uint16_t, 8>;
    using pairs = words<std::uint32_t, 4>;
    unroll<U / 4>([&](auto v) TIGON_LAMBDA {
      constexpr std::size_t j = v * 4;
      const std::size_t have = j < cols ? std::min<std::size_t>(4, cols - j) : 0;
      four row[4];
      if (have == 4 && depth == 4) {
        unroll<4>([&](auto r) TIGON_LAMBDA { std::memcpy(&row[r], from + r * stride + j, sizeof(four)); });
      } else {
        unroll<4>([&](auto r) TIGON_LAMBDA {
          const word w = r < depth && have != 0 ? word_at(from + r * stride + j, have) : word(0);
          std::memcpy(&row[r], &w, sizeof w);
        });
      }
      const auto low = (pairs)(eight)__builtin_shufflevector(row[0], row[1], 0, 4, 1, 5, 2, 6, 3, 7);
      const auto high = (pairs)(eight)__builtin_shufflevector(row[2], row[3], 0, 4, 1, 5, 2, 6, 3, 7);
      put(pairs(__builtin_shufflevector(low, high, 0, 4, 1, 5)), to + j);
      put(pairs(__builtin_shufflevector(low, high, 2, 6, 3, 7)), to + j + 2);
    });
  }
  static TIGON_INLINE word word_at(const bfloat16* p, std::size_t count) {
    word w = 0;
    std::memcpy(&w, p, count * sizeof *p);
    return w;
  }
};

/// 16 registers of sums, four of columns and four of rows: enough sums for two instructions a cycle of five cycles
/// each, and registers to spare for loads that g++ schedules early.
template <class E, class Instruction>
struct tile_shape<block_lanes<E, Instruction>> {
  static constexpr std::size_t rows = 8, vectors = 2, cols = 8;
};

}  // namespace TIGON_ABI

template <class Instruction, class Parent>
struct blocks_or_parent {
  template <class B, class TA, class TB>
  using policy = block_lanes<typename B::engine, Instruction>;
  template <class TA, class TB>
  static constexpr bool takes = std::same_as<TA, bfloat16> && std::same_as<TB, bfloat16>;
  template <class TA, class TB>
  using provider = std::conditional_t<takes<TA, TB>, gemm_by_panels<policy>, kernel<op::gemm, Parent>>;
};

/// A kernel of op::gemm: two bf16 matrices by blocks, every other combination of types as on Parent.
template <class Instruction, class Parent>
struct gemm_by_blocks : gemm_by_types<blocks_or_parent<Instruction, Parent>::template provider> {
  template <element TA, element TB>
  static constexpr std::string_view layout =
      blocks_or_parent<Instruction, Parent>::template takes<TA, TB> ? std::string_view("panels of four bf16")
                                                                    : kernel<op::gemm, Parent>::template layout<TA, TB>;
};

}  // namespace packed
}  // namespace tigon

#endif  // TIGON_GEMM_BLOCK_PANELS_HPP
