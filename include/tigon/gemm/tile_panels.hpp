// The packed product (gemm/packed.hpp) of a bf16 or f32 matrix with a bf16 matrix by tile registers
// (simd/tile_registers.hpp): its panels, and its tile kernel of 32 x 32 sums.
//
//   word     32 elements of depth: the 64 bytes of a row of a tile
//   part     an f32 number is the sum of three bf16 numbers: 24 digits are 3 x 8. Each has words of its own
//   panel    of a, 32 rows; of b, 32 columns; step after step of depth
//   step     one word of depth of a panel: two tiles, one after the other, each contiguous; of a in f32, two a part
//   tile     of a, 16 rows of one word; of b, 16 pairs of depth, each of 16 columns
#ifndef TIGON_GEMM_TILE_PANELS_HPP
#define TIGON_GEMM_TILE_PANELS_HPP

#include <tigon/gemm/bf16_parts.hpp>
#include <tigon/gemm/packed.hpp>
#include <tigon/simd/tile_registers.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tigon {

/// Tuning of products by tile registers. A backend states its own as `tile_product`, and as `tile_product_f32` for a in
/// f32. Changes the speed and, through the order of sums, the last bits. Extents of `product` are elements of c; its
/// depth counts words of 32 elements.
struct tile_tuning {
  gemm_tuning product{.depth = 16,
                      .rows_per_task = 64,
                      .cols_per_task = 64,
                      .long_rows = 64,
                      .long_cols = 64,
                      .segment = 768,
                      .shared_rows = 1024,
                      .shared_cols = 2048,
                      .shared_bytes = std::size_t{6} << 20,
                      .carry_bytes = std::size_t{8} << 20};
  std::size_t steps_ahead = 4;     ///< steps of the inner panel that are prefetched into L1; 0: none
  std::size_t lines_per_step = 2;  ///< cache lines of the operand that is packed next, prefetched a step
  friend constexpr bool operator==(tile_tuning, tile_tuning) = default;
};

namespace packed {
inline namespace TIGON_ABI {

/// The default for a in f32. A step of a panel of a has 6 KiB, of b 2 KiB: a block of a panel of b stays in L1, and 512
/// rows of a in L2.
inline constexpr tile_tuning tile_tuning_f32{.product = {.depth = 8,
                                                         .rows_per_task = 64,
                                                         .cols_per_task = 128,
                                                         .long_rows = 64,
                                                         .long_cols = 128,
                                                         .segment = 512,
                                                         .shared_rows = 1024,
                                                         .shared_cols = 2048,
                                                         .shared_bytes = std::size_t{6} << 20,
                                                         .carry_bytes = std::size_t{8} << 20},
                                             .steps_ahead = 2,
                                             .lines_per_step = 6};

template <class B, std::size_t Parts>
consteval tile_tuning tile_tuning_of() {
  if constexpr (Parts == 1 && requires {
                  { B::tile_product } -> std::convertible_to<tile_tuning>;
                })
    return B::tile_product;
  else if constexpr (Parts == 3 && requires {
                       { B::tile_product_f32 } -> std::convertible_to<tile_tuning>;
                     })
    return B::tile_product_f32;
  else
    return Parts == 1 ? tile_tuning{} : tile_tuning_f32;
}

/// The policy. Registers is simd::tile_registers, or what computes the same. Elements of a have Parts parts: bf16 one,
/// f32 three.
template <class B, class Registers, std::size_t Parts = 1>
struct tile_lanes {
  using tiles = Registers;
  using value = float;
  using sums = simd::vec<typename B::engine, float>;
  struct word {
    std::uint32_t pairs[16];
  };
  static constexpr std::size_t group = 32;
  static constexpr std::size_t size = 16;
  static constexpr std::size_t words_of_a = Parts;
  static constexpr tile_tuning tuning = tile_tuning_of<B, Parts>();
  /// A multiplication adds 32 products to a sum with one rounding of that sum. Of equal terms the error of 256 of them,
  /// a depth of 8192, is a quarter of that number, and the contract allows 4 + sqrt(8192). Three parts have three
  /// roundings: there the error of 56 words, with the last block, is 42, and the contract allows 4 + sqrt(1792).
  static constexpr std::size_t plain_chunks = std::max<std::size_t>(1, 256 / tuning.product.depth);
  static constexpr std::size_t plain_blocks =
      Parts == 1 ? plain_chunks : std::max<std::size_t>(2, 56 / round_up(tuning.product.depth, 4)) - 1;
  static_assert(Parts == 1 || tuning.product.depth <= 24, "tigon: the depth of tile_product_f32 is at most 24 words");

  using line = word_line;

  /// Panels of a or of b. Missing rows, columns and depth become zeros.
  template <bool OfA, element T>
  static void pack(source<T> s, std::size_t first, std::size_t count, std::size_t p, std::size_t depth, word* to) {
    constexpr std::size_t width = OfA ? 32 * Parts : 32;
    const std::size_t length = ceil_div(depth, group), panels = ceil_div(count, 32);
    const auto step = [&](std::size_t panel, std::size_t q) TIGON_LAMBDA {
      for (std::size_t h = 0; h < 2; ++h) {
        const std::size_t i = panel * 32 + h * 16, have = i < count ? std::min<std::size_t>(16, count - i) : 0;
        word* tile = to + (panel * length + q) * width + h * 16;
        if constexpr (std::same_as<T, float>)
          pack_parts(s, first + i, have, p + q * group, std::min(group, depth - q * group), tile);
        else
          pack_tile<OfA>(s, first + i, have, p + q * group, std::min(group, depth - q * group), tile);
      }
    };
    if (s.along)
      for (std::size_t panel = 0; panel < panels; ++panel)
        for (std::size_t q = 0; q < length; ++q) step(panel, q);
    else  // a row of memory has all panels
      for (std::size_t q = 0; q < length; ++q)
        for (std::size_t panel = 0; panel < panels; ++panel) step(panel, q);
  }

  /// All tiles of a block of depth. Panels of b stay in L1 while those of a stream through.
  template <element TC>
  static void block(const block_of_c<tile_lanes, TC>& t, prefetch_cursor& next) {
    [[maybe_unused]] const typename Registers::configured registers;
    Registers::begin();
    alignas(64) float buffers[2][32 * 32];
    unfinished<TC> before;
    float* sums = t.sums;
    std::size_t turn = 0;
    for (std::size_t j = 0; j < t.c.cols; j += 32) {
      const std::size_t width = std::min<std::size_t>(32, t.c.cols - j);
      for (std::size_t i = 0; i < t.c.rows; i += 32) {
        const std::size_t height = std::min<std::size_t>(32, t.c.rows - i);
        const operands in{t.a + i * t.length * Parts, t.b + j * t.length, t.length, t.starts ? nullptr : sums};
        if (!t.ends) {
          multiply_any(height, width, in, sums, {}, next, before);
        } else {
          const prefetch_cursor c(source<TC>{t.c.data, t.c.row_stride, true}, i, height, j, width);
          multiply_any(height, width, in, buffers[turn], c, next, before);
          before.finish(before.rows);
          before = {buffers[turn],
                    t.c.row(i) + j,
                    t.c.row_stride,
                    height,
                    width,
                    t.scale,
                    t.bias == nullptr ? nullptr : t.bias + j};
          turn ^= 1;
        }
        sums += sums == nullptr ? 0 : 32 * 32;
      }
    }
    before.finish(before.rows);
  }

 private:
  /// One tile: `count` <= 16 rows or columns, `depth` <= 32.
  template <bool OfA>
  static TIGON_INLINE void pack_tile(source<bfloat16> s, std::size_t first, std::size_t count, std::size_t p,
                                     std::size_t depth, word* to) {
    line x[16];
    if (s.along) {
      const bfloat16* from = s.data + first * s.stride + p;
      if (count == 16 && depth == group)
        unroll<16>([&](auto i) TIGON_LAMBDA { x[i] = load(from + i * s.stride); });
      else
        for (std::size_t i = 0; i < 16; ++i) x[i] = i < count ? load_some(from + i * s.stride, depth) : line{};
    } else {
      const bfloat16* from = s.data + p * s.stride + first;
      if (count == 16 && depth == group)
        unroll<16>([&](auto q) TIGON_LAMBDA {
          x[q] = zip(load_half(from + 2 * q * s.stride), load_half(from + (2 * q + 1) * s.stride));
        });
      else
        for (std::size_t q = 0; q < 16; ++q)
          x[q] = zip(load_half_of(from + 2 * q * s.stride, 2 * q < depth ? count : 0),
                     load_half_of(from + (2 * q + 1) * s.stride, 2 * q + 1 < depth ? count : 0));
    }
    if (s.along != OfA) transpose_block<16, 16>(x);
    unroll<16>([&](auto i) TIGON_LAMBDA { put(x[i], to + i); });
  }

  /// The tiles of the parts of one tile of a in f32, the smallest parts first.
  static TIGON_INLINE void pack_parts(source<float> s, std::size_t first, std::size_t count, std::size_t p,
                                      std::size_t depth, word* to) {
    static_assert(Parts == 3);
    const bool full = count == 16 && depth == group;
    const auto put_row = [&](std::size_t i, line even, line odd) TIGON_LAMBDA {
      const parts_of_pairs<line> row(even, odd);
      unroll<3>([&](auto part) TIGON_LAMBDA { put(row.part[part], to + part * 32 + i); });
    };
    if (s.along) {
      const float* from = s.data + first * s.stride + p;
      for (std::size_t i = 0; i < 16; ++i) {
        line low = {}, high = {};
        if (full) {
          low = load(from + i * s.stride), high = load(from + i * s.stride + 16);
        } else if (i < count) {
          low = load_some(from + i * s.stride, std::min<std::size_t>(16, depth));
          if (depth > 16) high = load_some(from + i * s.stride + 16, depth - 16);
        }
        put_row(i, __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
                __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31));
      }
    } else {
      const float* from = s.data + p * s.stride + first;
      line even[16], odd[16];
      if (full)
        unroll<16>([&](auto q) TIGON_LAMBDA {
          even[q] = load(from + 2 * q * s.stride), odd[q] = load(from + (2 * q + 1) * s.stride);
        });
      else
        for (std::size_t q = 0; q < 16; ++q) {
          even[q] = 2 * q < depth ? load_some(from + 2 * q * s.stride, count) : line{};
          odd[q] = 2 * q + 1 < depth ? load_some(from + (2 * q + 1) * s.stride, count) : line{};
        }
      transpose_block<16, 16>(even);
      transpose_block<16, 16>(odd);
      for (std::size_t i = 0; i < 16; ++i) put_row(i, even[i], odd[i]);
    }
  }

  using half = words<std::uint16_t, 16>;
  template <element T>
  static TIGON_INLINE line load(const T* p) {
    line v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  template <element T>
  static TIGON_INLINE line load_some(const T* p, std::size_t count) {
    line v = {};
    if (count != 0) std::memcpy(&v, p, count * sizeof(T));
    return v;
  }
  static TIGON_INLINE half load_half(const bfloat16* p) {
    half v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static TIGON_INLINE half load_half_of(const bfloat16* p, std::size_t count) {
    half v = {};
    if (count != 0) std::memcpy(&v, p, count * sizeof(bfloat16));
    return v;
  }
  static TIGON_INLINE line zip(half low, half high) {
    return __builtin_convertvector(low, line) | __builtin_convertvector(high, line) << 16;
  }

  /// Sums of a tile that are not in c yet: they go there between the multiplications of the tile after it.
  template <element TC>
  struct unfinished {
    const float* from = nullptr;
    TC* c = nullptr;
    std::size_t stride = 0, rows = 0, width = 0;
    gemm_detail::scaling<float> scale{};
    const TC* bias = nullptr;

    void finish(std::size_t count) {
      for (count = std::min(count, rows); count > 0; --count, --rows, from += 32, c += stride)
        gemm_detail::finish<sums>(from, width, scale, bias, c);
    }
  };

  struct operands {
    const word *a, *b;
    std::size_t length;
    const float* start;  ///< sums of the blocks before; null: zeros
  };

  template <element TC>
  static void multiply_any(std::size_t height, std::size_t width, const operands& in, float* to, prefetch_cursor c,
                           prefetch_cursor& next, unfinished<TC>& before) {
    if (height > 16) {
      if (width > 16) return multiply<2, 2>(in, to, c, next, before);
      return multiply<2, 1>(in, to, c, next, before);
    }
    if (width > 16) return multiply<1, 2>(in, to, c, next, before);
    multiply<1, 1>(in, to, c, next, before);
  }

  /// R x N tiles of sums: to = start + a b. Between multiplications, memory of c and of the next panels is prefetched,
  /// and the tile before is finished.
  template <std::size_t R, std::size_t N, element TC>
  static void multiply(const operands& in, float* to, prefetch_cursor c, prefetch_cursor& next,
                       unfinished<TC>& before) {
    constexpr std::size_t stride = 32 * sizeof(float);
    const auto each = [](auto f) TIGON_LAMBDA { for_sums<R, N>(f); };
    if (in.start == nullptr)
      each([&](auto i, auto j) TIGON_LAMBDA { Registers::template zero<i, j>(); });
    else
      each([&](auto i, auto j)
               TIGON_LAMBDA { Registers::template load<i, j>(in.start + i * 16 * 32 + j * 16, stride); });
    const word *a = in.a, *b = in.b;
    const std::size_t rows_per_step = in.length == 0 ? 0 : ceil_div(before.rows, in.length);
    for (std::size_t p = 0; p < in.length; ++p, b += 32) {
      unroll<tuning.lines_per_step>([&](auto) TIGON_LAMBDA { next.next(); });
      unroll<4 * Parts>([&](auto) TIGON_LAMBDA { c.next(); });
      if (before.rows != 0) before.finish(rows_per_step);
      // Smallest parts first: in the first step they are added before there is a sum to be rounded.
      unroll<Parts>([&](auto part) TIGON_LAMBDA {
        if constexpr (tuning.steps_ahead != 0)
          unroll<16 * R>([&](auto i)
                             TIGON_LAMBDA { __builtin_prefetch(a + tuning.steps_ahead * 32 * Parts + i, 0, 3); });
        // Both tiles of b before the second one of a: two loads are under way while two products are computed.
        if constexpr (part == 0) Registers::template load_b<0>(b);
        Registers::template load_a<0>(a);
        if constexpr (N == 2 && part == 0) Registers::template load_b<1>(b + 16);
        Registers::template multiply_bf16<0, 0>();
        if constexpr (R == 2) Registers::template load_a<1>(a + 16);
        if constexpr (N == 2) Registers::template multiply_bf16<0, 1>();
        if constexpr (R == 2) Registers::template multiply_bf16<1, 0>();
        if constexpr (R == 2 && N == 2) Registers::template multiply_bf16<1, 1>();
        a += 32;
      });
    }
    each([&](auto i, auto j) TIGON_LAMBDA { Registers::template store<i, j>(to + i * 16 * 32 + j * 16, stride); });
  }
};

/// 2 x 2 tiles of 16 x 16 sums.
template <class B, class Registers, std::size_t Parts>
struct tile_shape<tile_lanes<B, Registers, Parts>> {
  static constexpr std::size_t rows = 32, vectors = 2, cols = 32;
};

}  // namespace TIGON_ABI

/// Which kernel of op::gemm multiplies which types: tile registers a bf16 or f32 matrix with a bf16 matrix, Parent's
/// all others.
template <class Registers, class Parent>
struct tiles_or_parent {
  template <class B, class TA, class>
  using policy = tile_lanes<B, Registers, std::same_as<TA, float> ? 3 : 1>;
  template <class TA, class TB>
  static constexpr bool by_tiles =
      std::same_as<TB, bfloat16> && (std::same_as<TA, bfloat16> || std::same_as<TA, float>);
  template <class TA, class TB>
  using provider = std::conditional_t<by_tiles<TA, TB>, gemm_by_panels<policy>, kernel<op::gemm, Parent>>;
};

/// That kernel.
template <class Registers, class Parent>
struct gemm_by_tiles : gemm_by_types<tiles_or_parent<Registers, Parent>::template provider> {
  using types = tiles_or_parent<Registers, Parent>;
  template <element TA, element TB>
  static constexpr std::string_view layout =
      !types::template by_tiles<TA, TB> ? kernel<op::gemm, Parent>::template layout<TA, TB>
      : std::same_as<TA, float>         ? std::string_view("tiles of f32 x bf16")
                                        : std::string_view("tiles of bf16 pairs");

  template <backend B, element TA, element TB, element TC, class Epilogue>
  static void forward(matrix_view<const TA> a, gemm_operand<TB> b, in_vector<TC> bias, matrix_view<TC> c,
                      const Epilogue& epilogue, gemm_options opt, context& ctx) {
    if constexpr (types::template by_tiles<TA, TB>) simd::expect_tile_registers("gemm", Registers::missing());
    gemm_by_types<types::template provider>::template forward<B, TA, TB, TC>(a, b, bias, c, epilogue, opt, ctx);
  }
};

}  // namespace packed
}  // namespace tigon

#endif  // TIGON_GEMM_TILE_PANELS_HPP
