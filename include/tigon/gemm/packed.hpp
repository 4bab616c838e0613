// A matrix product on packed operands, over the lanes of any engine.
//
// One operand, the shared one (the smaller extent of c), is packed once by all workers, a chunk of depth at a time. The
// other is packed by each task for itself, a block of depth at a time, while the memory of the block after it is asked
// for. Sums stay in registers over a block and in a tile-sized scratch between blocks, so c is written once a chunk.
//
//   chunk  depth whose shared panels fit into `shared_bytes`
//   block  depth of one pass of the tile kernel, at most `depth`: three vectors of b and eight rows of a stream through
//          the first-level cache
//   panel  tile-high rows of a, or tile-wide columns of b, depth-major: word (p, i) at p * width + i
//   tile   rows x vectors of sums in registers
#ifndef TIGON_GEMM_PACKED_HPP
#define TIGON_GEMM_PACKED_HPP

#include <tigon/gemm/contract.hpp>
#include <tigon/simd/totals.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace tigon {

/// The packed product. Changes the speed and, through the order of sums, the last bits.
///
/// Measured on an Intel Xeon (family 6, model 207, AVX-512, 48 KiB L1, 2 MiB L2), one thread, f32, g++ 12, 2026-11-20,
/// shared_bytes 8 MiB, as fractions of the FMA peak of the same run; 512 tokens, hidden 2048, vocab 32000: forward
/// 0.91, gradient of tokens 0.88, of weights 0.89 (accumulated). Runs differ by up to 0.05. The values were picked on a
/// prototype of this kernel; differences between neighbouring values are within that noise.
struct gemm_tuning {
  std::size_t depth = 512;                          ///< most depth of a block
  std::size_t rows_per_task = 256;                  ///< rows of a in a task, where b is shared
  std::size_t cols_per_task = 96;                   ///< columns of b in a task, where a is shared
  std::size_t shared_rows = 1024;                   ///< most rows of a shared a
  std::size_t shared_cols = 2048;                   ///< most columns of a shared b
  std::size_t shared_bytes = std::size_t{6} << 20;  ///< most bytes of shared panels
  std::size_t carry_bytes = std::size_t{8} << 20;   ///< most bytes of sums kept between chunks, for a 16-bit c
  friend constexpr bool operator==(gemm_tuning, gemm_tuning) = default;
};

namespace packed {
inline namespace TIGON_ABI {

using gemm_detail::ceil_div;
using gemm_detail::round_up;

template <std::size_t N, class F>
TIGON_INLINE void unroll(F&& f) {
  [&]<std::size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
    (f(std::integral_constant<std::size_t, I>{}), ...);
  }
  (std::make_index_sequence<N>{});
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
  const R low = __builtin_shufflevector(a, b, static_cast<int>((J & S) != 0 ? L + J - S : J)...);
  b = __builtin_shufflevector(a, b, static_cast<int>((J & S) != 0 ? L + J : J + S)...);
  a = low;
}

/// Lane (row, depth) becomes lane (depth, row); H rows.
template <std::size_t L, std::size_t H, class R, std::size_t... J>
TIGON_INLINE R rows_inward(R a, std::index_sequence<J...>) {
  return __builtin_shufflevector(a, a, static_cast<int>((J % H) * (L / H) + J / H)...);
}

/// H rows of L depths in; out, vector q holds L / H depths of H rows each. A square if H == L.
template <std::size_t L, std::size_t H, std::size_t S = H / 2, class R>
TIGON_INLINE void transpose_block(R (&x)[H]) {
  if constexpr (S > 0) {
    unroll<H>([&](auto i) __attribute__((always_inline)) {
      if constexpr ((i & S) == 0) swap_bit<L, S*(L / H)>(x[i], x[i + S], std::make_index_sequence<L>{});
    });
    transpose_block<L, H, S / 2>(x);
  } else if constexpr (H < L) {
    unroll<H>([&](auto i)
                  __attribute__((always_inline)) { x[i] = rows_inward<L, H>(x[i], std::make_index_sequence<L>{}); });
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

  static TIGON_INLINE operand load(const word* p) { return simd::load<sums>(p); }
  static TIGON_INLINE operand broadcast(const word* p) { return operand(*p); }
  static TIGON_INLINE sums multiply_add(operand a, operand b, sums c) { return fma(a, b, c); }

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

/// Rows and vectors of a tile: as many sums as the registers hold beside one broadcast and the row of b.
template <class P>
struct tile_shape {
#if defined(__aarch64__)
  static constexpr bool many = true;
#else
  static constexpr bool many = sizeof(typename P::sums) == 64;
#endif
  static constexpr std::size_t rows = many ? 8 : 4;
  static constexpr std::size_t vectors = 3;
  static constexpr std::size_t cols = vectors * P::size;
};

// ---- Packing

template <class R, class W>
TIGON_INLINE void put(const R& r, W* p) {
  std::memcpy(p, &r, sizeof r);
}

/// One panel of U rows whose depth is contiguous. Missing rows and depth become zeros.
template <class P, std::size_t U, element T>
void pack_along(const T* from, std::size_t stride, std::size_t rows, std::size_t depth, typename P::word* to) {
  constexpr std::size_t L = P::size, H = std::min(U, L), per = L / H, step = L * P::group;
  const std::size_t length = ceil_div(depth, P::group);
  for (std::size_t first = 0; first < U; first += H) {
    const std::size_t have = rows > first ? std::min(H, rows - first) : 0;
    const T* source = from + first * stride;
    for (std::size_t p = 0; p < length; p += L) {
      const T* at = source + p * P::group;
      const std::size_t count = std::min(step, depth - p * P::group);
      typename P::block x[H];
      if (have == H && count == step)
        unroll<H>([&](auto i) __attribute__((always_inline)) { x[i] = P::along(at + i * stride, step); });
      else
        unroll<H>([&](auto i) __attribute__((always_inline)) {
          x[i] = i < have ? P::along(at + i * stride, count) : typename P::block{};
        });
      transpose_block<L, H>(x);
      typename P::word* out = to + p * U + first;
      if (p + L <= length) {
        unroll<H>([&](auto q) __attribute__((always_inline)) { put(x[q], out + q * per * U); });
      } else {
        alignas(64) typename P::word buffer[H * L];
        std::memcpy(buffer, x, sizeof buffer);
        for (std::size_t q = 0; q < length - p; ++q) std::copy_n(buffer + q * H, H, out + q * U);
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
    const auto read = [&](std::size_t j) __attribute__((always_inline)) {
      if (j + L <= cols) return P::across(source + j, stride, have, L);
      return j < cols ? P::across(source + j, stride, have, cols - j) : typename P::block{};
    };
    if constexpr (U % L == 0) {
      for (std::size_t q = 0; q < panels; ++q, out += U * length)
        unroll<U / L>([&](auto v) __attribute__((always_inline)) { put(read(q * U + v * L), out + v * L); });
    } else {
      for (std::size_t q = 0; q < panels;) {
        alignas(64) word buffer[L];
        put(read(q * U), buffer);
        for (std::size_t h = 0; h < L / U && q < panels; ++h, ++q, out += U * length)
          std::copy_n(buffer + h * U, U, out);
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

/// Panels for rows (columns) [first, first + count) and depth [p, p + depth).
template <class P, std::size_t U, element T>
void pack(source<T> s, std::size_t first, std::size_t count, std::size_t p, std::size_t depth, typename P::word* to) {
  const std::size_t length = ceil_div(depth, P::group);
  if (s.along)
    for (std::size_t i = 0; i < count; i += U)
      pack_along<P, U>(s.data + (first + i) * s.stride + p, s.stride, count - i, depth, to + i * length);
  else
    pack_across<P, U>(s.data + p * s.stride + first, s.stride, count, depth, to);
}

/// Asks for the lines of a rectangle of memory, one at a time: the part of an operand that is packed next.
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

/// Where the sums of a tile go: to scratch as they are, or scaled to c.
template <class A>
struct tile_target {
  A* scratch;  ///< tile-wide rows; null if the sums go to c
  A* c;
  std::size_t stride;
  gemm_detail::scaling<A> scale;
  const A* bias;
};

/// Steps, four at a time, that are added up one after the other in registers: of equal terms the error of n steps grows
/// as n / 4, and the contract allows 4 + sqrt(depth). So a sum of up to 35 steps is one chain, one of up to 99 two, one of
/// up to 163 three, one of up to 227 four, and the others have chains of 64.
TIGON_INLINE std::size_t fours_of_chain(std::size_t fours) {
  if (fours > 56) return 16;
  if (fours > 40) return (fours + 3) / 4;
  if (fours > 24) return (fours + 2) / 3;
  return fours > 8 ? (fours + 1) / 2 : 8;
}

/// R rows by N vectors: sums = (start or 0) + a b over `length` words of depth.
template <class P, std::size_t R, std::size_t N>
void tile(std::size_t length, const typename P::word* a, const typename P::word* b, const typename P::value* start,
          const tile_target<typename P::value>& to, prefetch_cursor& cursor) {
  using A = typename P::value;
  using V = typename P::sums;
  constexpr std::size_t L = P::size, U = tile_shape<P>::rows, W = tile_shape<P>::cols;
  const auto each = [](auto f) __attribute__((always_inline)) {
    unroll<R>([&](auto i) __attribute__((always_inline)) {
      unroll<N>([&](auto j) __attribute__((always_inline)) { f(i, j); });
    });
  };
  V acc[R][N];
  const auto clear = [&]() __attribute__((always_inline)) {
    each([&](auto i, auto j) __attribute__((always_inline)) { acc[i][j] = V(A(0)); });
  };
  const auto join = [&](const A* sums) __attribute__((always_inline)) {
    each([&](auto i, auto j)
             __attribute__((always_inline)) { acc[i][j] = acc[i][j] + simd::load<V>(sums + i * W + j * L); });
  };
  clear();

  const auto step = [&](const typename P::word* aw, const typename P::word* bw) __attribute__((always_inline)) {
    typename P::operand row[N];
    unroll<N>([&](auto j) __attribute__((always_inline)) { row[j] = P::load(bw + j * L); });
    unroll<R>([&](auto i) __attribute__((always_inline)) {
      const typename P::operand x = P::broadcast(aw + i);
      unroll<N>([&](auto j) __attribute__((always_inline)) { acc[i][j] = P::multiply_add(x, row[j], acc[i][j]); });
    });
  };
  const auto four = [&]() __attribute__((always_inline)) {
    unroll<4>([&](auto u) __attribute__((always_inline)) { step(a + u * U, b + u * W); });
    a += 4 * U;
    b += 4 * W;
  };
  std::size_t fours = length / 4;
  const std::size_t chain = fours_of_chain(fours);
  std::size_t left = chain;     // of this chain
  if (to.scratch == nullptr) {  // a row of c at a time, early enough to come from memory
    const std::size_t rows = std::min({fours, R, chain});
    const char* c = reinterpret_cast<const char*>(to.c);
    for (std::size_t i = 0; i < rows; ++i, c += to.stride * sizeof(A)) {
      unroll<ceil_div(N * L * sizeof(A), 64)>([&](auto line) __attribute__((always_inline)) {
        __builtin_prefetch(c + line * 64, 1, 3);
      });
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
    if (start != nullptr) join(start);
    each([&](auto i, auto j) __attribute__((always_inline)) { simd::store(acc[i][j], folded + i * W + j * L); });
    start = folded;
    left = chain;
    clear();
  }
  for (std::size_t rest = length % 4; rest > 0; --rest, a += U, b += W) step(a, b);
  if (start != nullptr) join(start);

  if (to.scratch != nullptr) {
    each([&](auto i, auto j) __attribute__((always_inline)) { simd::store(acc[i][j], to.scratch + i * W + j * L); });
    return;
  }
  const V alpha(to.scale.alpha), beta(to.scale.beta);
  V bias[N];
  unroll<N>([&](auto j) __attribute__((always_inline)) {
    bias[j] = to.bias != nullptr ? simd::load<V>(to.bias + j * L) : V(A(0));
  });
  A* c = to.c;
  const bool add = to.bias != nullptr;
  unroll<R>([&](auto i) __attribute__((always_inline)) {
    unroll<N>([&](auto j) __attribute__((always_inline)) {
      V v = alpha * acc[i][j];
      if (to.scale.beta != 0) v = fma(beta, simd::load<V>(c + j * L), v);
      if (add) v = v + bias[j];
      simd::store(v, c + j * L);
    });
    c += to.stride;
  });
}

template <class P, std::size_t R>
TIGON_INLINE void tile_of(std::size_t vectors, std::size_t length, const typename P::word* a, const typename P::word* b,
                          const typename P::value* start, const tile_target<typename P::value>& to,
                          prefetch_cursor& cursor) {
  switch (vectors) {
    case 1: return tile<P, R, 1>(length, a, b, start, to, cursor);
    case 2: return tile<P, R, 2>(length, a, b, start, to, cursor);
    default: return tile<P, R, 3>(length, a, b, start, to, cursor);
  }
}

/// The lowest tile that holds `rows` rows.
template <class P>
TIGON_INLINE void any_tile(std::size_t rows, std::size_t vectors, std::size_t length, const typename P::word* a,
                           const typename P::word* b, const typename P::value* start,
                           const tile_target<typename P::value>& to, prefetch_cursor& cursor) {
  constexpr std::size_t U = tile_shape<P>::rows;
  if (rows > U / 2) return tile_of<P, U>(vectors, length, a, b, start, to, cursor);
  if (rows > U / 4) return tile_of<P, U / 2>(vectors, length, a, b, start, to, cursor);
  if (U > 4 && rows > U / 8) return tile_of<P, U / 4>(vectors, length, a, b, start, to, cursor);
  return tile_of<P, 1>(vectors, length, a, b, start, to, cursor);
}

// ---- The plan: every number that depends on the shape, and on nothing else.

template <class P, class T>
struct plan {
  static constexpr std::size_t U = tile_shape<P>::rows, W = tile_shape<P>::cols;
  using A = typename P::value;

  std::size_t m, n, k;
  std::size_t block;   ///< depth of a block, a multiple of four words (less only at the end)
  std::size_t chunk;   ///< depth of a chunk, a multiple of block
  bool share_a;        ///< the shared operand is a, else b
  std::size_t shared;  ///< rows of a (columns of b) that are shared at a time
  std::size_t part;    ///< columns of b (rows of a) in a task
  std::size_t super;   ///< columns of b (rows of a) between two packings of the shared operand
  bool carry;          ///< sums are kept between chunks
  bool total;          ///< sums of plain_blocks blocks are added to compensated totals

  /// So many blocks, and chunks, are added up one after the other: the error of that stays below what the contract allows
  /// for their depth.
  static constexpr std::size_t plain_blocks = 64;

  plan(std::size_t rows, std::size_t cols, std::size_t depth, gemm_tuning t) : m(rows), n(cols), k(depth) {
    const std::size_t quantum = 4 * P::group;
    block = std::max(quantum, block_of(k, t));
    share_a = m <= n;
    shared = share_a ? std::min(round_up(m, U), round_up(t.shared_rows, U))
                     : std::min(round_up(n, W), round_up(t.shared_cols, W));
    shared = std::max(shared, share_a ? U : W);
    const std::size_t fit = t.shared_bytes / (shared * (block / P::group) * sizeof(typename P::word));
    chunk = std::min(std::max<std::size_t>(1, fit), std::max<std::size_t>(1, ceil_div(k, block))) * block;
    part = share_a ? round_up(t.cols_per_task, W) : round_up(t.rows_per_task, U);
    // Small products: at least eight tasks where the extent allows.
    const std::size_t extent = share_a ? n : m, unit = share_a ? W : U;
    part = std::min(part, std::max(unit, round_up(ceil_div(extent, 8), unit)));
    carry = chunk < k && (!std::same_as<T, A> || ceil_div(k, chunk) > plain_blocks);
    total = ceil_div(carry ? k : chunk, block) > plain_blocks;
    super = extent;
    if (carry) super = std::max(part, t.carry_bytes / (shared * sizeof(A)) / part * part);
    super = std::min(super, round_up(std::max<std::size_t>(extent, 1), part));
  }

  /// Depth of a block: of k alone, so that a packed b serves every m.
  static constexpr std::size_t block_of(std::size_t k, gemm_tuning t) {
    const std::size_t quantum = 4 * P::group, most = round_up(t.depth * P::group, quantum);
    return round_up(ceil_div(k, std::max<std::size_t>(1, ceil_div(k, most))), quantum);
  }
  std::size_t extent() const { return share_a ? n : m; }
  std::size_t shared_extent() const { return share_a ? m : n; }
  std::size_t shared_unit() const { return share_a ? U : W; }
  std::size_t part_unit() const { return share_a ? W : U; }

  std::size_t shared_words() const { return shared * (chunk / P::group); }
  std::size_t part_words() const { return part * (block / P::group); }
  /// Sums of one task, tile after tile, between blocks.
  std::size_t part_sums() const { return part * shared * (total ? 3 : 1); }
  std::size_t scratch_parts(std::size_t workers) const {
    if (block >= k) return 0;
    return carry ? ceil_div(super, part) : workers;
  }
  std::size_t workspace_bytes(std::size_t workers, bool packed_b) const {
    using word = typename P::word;
    std::size_t bytes = workspace::bytes_for<A>(workspace::padded<A>(part_sums()), scratch_parts(workers));
    if (share_a || !packed_b) bytes += workspace::bytes_for<word>(shared_words());
    if (!share_a || !packed_b) bytes += workspace::bytes_for<word>(workspace::padded<word>(part_words()), workers);
    return bytes;
  }
};

template <class P>
constexpr std::size_t packed_words(std::size_t k, std::size_t n) {
  return round_up(n, tile_shape<P>::cols) * ceil_div(k, P::group);
}

/// All of op(b), block of depth after block of depth.
template <class P, element T>
void pack_operand(source<T> b, std::size_t k, std::size_t n, gemm_tuning t, typename P::word* to, context& ctx) {
  constexpr std::size_t W = tile_shape<P>::cols;
  if (k == 0 || n == 0) return;
  const std::size_t block = plan<P, typename P::value>::block_of(k, t), panels = 4;
  const std::size_t groups = ceil_div(n, W * panels), width = round_up(n, W);
  ctx.executor().run(ceil_div(k, block) * groups, [&](std::size_t task, std::size_t) {
    const std::size_t p = task / groups * block, j = task % groups * W * panels, depth = std::min(block, k - p);
    pack<P, W>(b, j, std::min(W * panels, n - j), p, depth, to + p / P::group * width + j * ceil_div(depth, P::group));
  });
}

// ---- The product

template <class P, element TA, element TB, element TC, class Epilogue>
class product {
  using A = typename P::value;
  using word = typename P::word;
  using V = typename P::sums;
  static constexpr std::size_t U = tile_shape<P>::rows, W = tile_shape<P>::cols, L = P::size;

 public:
  product(const plan<P, TC>& p, source<TA> a, source<TB> b, const word* packed_b, in_vector<TC> bias, matrix_view<TC> c,
          const Epilogue& epilogue, gemm_detail::scaling<A> scale)
      : plan_(p), a_(a), b_(b), packed_b_(packed_b), bias_(bias.data), c_(c), epilogue_(epilogue), scale_(scale) {}

  void run(context& ctx) {
    if (plan_.m == 0 || plan_.n == 0) return;
    workspace::frame frame(ctx.workspace());
    const executor_ref executor = ctx.executor();
    const std::size_t workers = executor.workers();
    if (plan_.share_a || packed_b_ == nullptr) shared_ = frame.template take<word>(plan_.shared_words());
    if (!plan_.share_a || packed_b_ == nullptr) {
      part_step_ = workspace::padded<word>(plan_.part_words());
      parts_ = frame.template take<word>(part_step_ * workers);
    }
    if (const std::size_t parts = plan_.scratch_parts(workers); parts != 0) {
      sums_step_ = workspace::padded<A>(plan_.part_sums());
      sums_ = frame.template take<A>(sums_step_ * parts);
    }
    for (shared_first_ = 0; shared_first_ < plan_.shared_extent(); shared_first_ += plan_.shared) {
      shared_count_ = std::min(plan_.shared, plan_.shared_extent() - shared_first_);
      for (super_first_ = 0; super_first_ < plan_.extent(); super_first_ += plan_.super) {
        const std::size_t count = std::min(plan_.super, plan_.extent() - super_first_);
        chunk_first_ = 0;
        do {
          chunk_depth_ = std::min(plan_.chunk, plan_.k - chunk_first_);
          if (shared_ != nullptr) pack_shared(executor);
          executor.run(ceil_div(count, plan_.part),
                       [&](std::size_t task, std::size_t worker) { compute(task, worker); });
          chunk_first_ += plan_.chunk;
        } while (chunk_first_ < plan_.k);
      }
    }
  }

 private:
  static std::size_t length_of(std::size_t depth) { return ceil_div(depth, P::group); }

  void pack_shared(const executor_ref& executor) {
    const std::size_t unit = plan_.shared_unit(), span = unit * std::max<std::size_t>(1, 96 / unit);
    const std::size_t groups = ceil_div(shared_count_, span), width = round_up(shared_count_, unit);
    executor.run(groups * ceil_div(chunk_depth_, plan_.block), [&](std::size_t task, std::size_t) {
      const std::size_t p = task / groups * plan_.block, i = task % groups * span;
      const std::size_t depth = std::min(plan_.block, chunk_depth_ - p), count = std::min(span, shared_count_ - i);
      word* to = shared_ + p / P::group * width + i * length_of(depth);
      if (plan_.share_a)
        pack<P, U>(a_, shared_first_ + i, count, chunk_first_ + p, depth, to);
      else
        pack<P, W>(b_, shared_first_ + i, count, chunk_first_ + p, depth, to);
    });
  }

  /// The panels of a packed b from column `first` on, for the block of `depth` at p.
  const word* in_packed_b(std::size_t first, std::size_t p, std::size_t depth) const {
    return packed_b_ + p / P::group * round_up(plan_.n, W) + first * length_of(depth);
  }

  void compute(std::size_t task, std::size_t worker) const {
    const std::size_t first = super_first_ + task * plan_.part, count = std::min(plan_.part, plan_.extent() - first);
    const std::size_t shared_width = round_up(shared_count_, plan_.shared_unit());
    const bool last_chunk = chunk_first_ + chunk_depth_ >= plan_.k;
    word* part = parts_ == nullptr ? nullptr : parts_ + worker * part_step_;
    A* sums = sums_ == nullptr ? nullptr : sums_ + (plan_.carry ? task : worker) * sums_step_;
    std::size_t p = 0;
    do {
      const std::size_t depth = std::min(plan_.block, chunk_depth_ - p), at = chunk_first_ + p;
      const bool starts = plan_.carry ? at == 0 : p == 0;
      const bool ends = p + depth >= chunk_depth_ && (last_chunk || !plan_.carry);
      const word* shared =
          shared_ == nullptr ? in_packed_b(shared_first_, at, depth) : shared_ + p / P::group * shared_width;
      const std::size_t index = (plan_.carry ? at : p) / plan_.block;
      const bool folds =
          plan_.total && index != 0 && (index % plan_.plain_blocks == 0 || (ends && index > plan_.plain_blocks));
      if (folds)
        add_to_total(sums, plan_.share_a ? shared_count_ : count, plan_.share_a ? count : shared_count_,
                     index == plan_.plain_blocks, ends);
      const bool from_zero = starts || (folds && !ends);
      if (plan_.share_a) {
        if (packed_b_ == nullptr) pack<P, W>(b_, first, count, at, depth, part);
        prefetch_cursor cursor = packed_b_ == nullptr ? after(b_, first, p) : prefetch_cursor();
        block(shared_first_, shared_count_, first, count, shared,
              packed_b_ == nullptr ? part : in_packed_b(first, at, depth), depth, sums, from_zero, ends, cursor);
      } else {
        pack<P, U>(a_, first, count, at, depth, part);
        prefetch_cursor cursor = after(a_, first, p);
        block(first, count, shared_first_, shared_count_, part, shared, depth, sums, from_zero, ends, cursor);
      }
      p += plan_.block;
    } while (p < chunk_depth_);
    if (!last_chunk) return;
    const matrix_view<TC> view = plan_.share_a ? c_.rows_from(shared_first_, shared_count_).cols_from(first, count)
                                               : c_.rows_from(first, count).cols_from(shared_first_, shared_count_);
    epilogue_(view, plan_.share_a ? shared_first_ : first, plan_.share_a ? first : shared_first_, worker);
  }

  /// Adds the sums of the tiles of rows x cols to their totals, behind them; at the end the sums are the totals.
  void add_to_total(A* sums, std::size_t rows, std::size_t cols, bool first, bool last) const {
    const std::size_t n = round_up(rows, U) * round_up(cols, W), step = plan_.part * plan_.shared;
    if (last)
      simd::add_to_total<V, simd::sums_after::total>(sums, sums + step, sums + 2 * step, n, first);
    else
      simd::add_to_total<V, simd::sums_after::same>(sums, sums + step, sums + 2 * step, n, first);
  }

  /// What this worker most likely packs next: the next block of this part, or the first of the next part.
  template <element T>
  prefetch_cursor after(source<T> s, std::size_t first, std::size_t p) const {
    p += plan_.block;
    if (p >= chunk_depth_) {
      p = 0;
      first += plan_.part;
    }
    if (first >= plan_.extent()) return {};
    return {s, first, std::min(plan_.part, plan_.extent() - first), chunk_first_ + p,
            std::min(plan_.block, chunk_depth_ - p)};
  }

  /// Rows [row, row + rows) by columns [col, col + cols) of c, one block of depth.
  void block(std::size_t row, std::size_t rows, std::size_t col, std::size_t cols, const word* a, const word* b,
             std::size_t depth, A* sums, bool starts, bool ends, prefetch_cursor& cursor) const {
    const std::size_t length = length_of(depth);
    gemm_detail::scaling<A> scale = scale_;
    const TC* bias = bias_;
    if (!plan_.carry && chunk_first_ != 0) {  // c already holds the chunks before
      scale.beta = 1;
      bias = nullptr;
    }
    alignas(64) A buffer[U * W];
    for (std::size_t j = 0; j < cols; j += W) {
      const std::size_t width = std::min(W, cols - j), vectors = ceil_div(width, L);
      const TC* bias_here = bias == nullptr ? nullptr : bias + col + j;
      for (std::size_t i = 0; i < rows; i += U) {
        const std::size_t height = std::min(U, rows - i);
        const A* start = starts ? nullptr : sums;
        TC* c = c_.data + (row + i) * c_.row_stride + col + j;
        const word *pa = a + i * length, *pb = b + j * length;
        tile_target<A> to{sums, nullptr, 0, scale, nullptr};
        if (!ends) {
          any_tile<P>(height, vectors, length, pa, pb, start, to, cursor);
        } else {
          if constexpr (std::same_as<TC, A>) {
            if (width == vectors * L && std::has_single_bit(height)) {
              to = {nullptr, c, c_.row_stride, scale, bias_here};
              any_tile<P>(height, vectors, length, pa, pb, start, to, cursor);
              sums += sums == nullptr ? 0 : U * W;
              continue;
            }
          }
          to.scratch = buffer;
          any_tile<P>(height, vectors, length, pa, pb, start, to, cursor);
          for (std::size_t y = 0; y < height; ++y)
            gemm_detail::finish<V>(buffer + y * W, width, scale, bias_here, c + y * c_.row_stride);
        }
        sums += sums == nullptr ? 0 : U * W;
      }
    }
  }

  const plan<P, TC>& plan_;
  source<TA> a_;
  source<TB> b_;
  const word* packed_b_;
  const TC* bias_;
  matrix_view<TC> c_;
  const Epilogue& epilogue_;
  gemm_detail::scaling<A> scale_;

  word *shared_ = nullptr, *parts_ = nullptr;
  A* sums_ = nullptr;
  std::size_t part_step_ = 0, sums_step_ = 0;
  std::size_t shared_first_ = 0, shared_count_ = 0, super_first_ = 0, chunk_first_ = 0, chunk_depth_ = 0;
};

}  // namespace TIGON_ABI

/// The tuning values of a backend: its own `gemm`, or the defaults.
template <class B>
consteval gemm_tuning tuning_of() {
  if constexpr (requires {
                  { B::gemm } -> std::convertible_to<gemm_tuning>;
                })
    return B::gemm;
  else
    return {};
}

/// A kernel of op::gemm by packed panels. Policy<B, TA, TB> names the words and how they are multiplied.
template <template <class, class, class> class Policy>
struct gemm_by_panels : tigon::detail::gemm_kernel {
  template <backend B, element TA, element TB>
  static constexpr std::size_t packed_bytes(std::size_t k, std::size_t n) {
    using P = Policy<B, TA, TB>;
    return packed_words<P>(k, n) * sizeof(typename P::word);
  }

  template <backend B, element TA, element TB>
  static void pack(matrix_view<const TB> b, transpose t, std::byte* to, context& ctx) {
    using P = Policy<B, TA, TB>;
    pack_operand<P>(source<TB>{b.data, b.row_stride, t == transpose::yes}, gemm_detail::rows_of(b, t),
                    gemm_detail::cols_of(b, t), tuning_of<B>(), reinterpret_cast<typename P::word*>(to), ctx);
  }

  template <backend B, element TA, element TB, element TC>
  static std::size_t workspace_bytes(std::size_t m, std::size_t n, std::size_t k, std::size_t workers, bool packed_b) {
    return plan<Policy<B, TA, TB>, TC>(m, n, k, tuning_of<B>()).workspace_bytes(workers, packed_b);
  }

  template <backend B, element TA, element TB, element TC, class Epilogue>
  static void forward(matrix_view<const TA> a, gemm_operand<TB> b, in_vector<TC> bias, matrix_view<TC> c,
                      const Epilogue& epilogue, gemm_options opt, context& ctx) {
    using P = Policy<B, TA, TB>;
    using A = typename P::value;
    const plan<P, TC> p(c.rows, c.cols, gemm_detail::cols_of(a, opt.a), tuning_of<B>());
    product<P, TA, TB, TC, Epilogue>(p, {a.data, a.row_stride, opt.a == transpose::no},
                                     {b.view.data, b.view.row_stride, opt.b == transpose::yes},
                                     reinterpret_cast<const typename P::word*>(b.packed), bias, c, epilogue,
                                     {static_cast<A>(opt.alpha), static_cast<A>(opt.beta)})
        .run(ctx);
  }
};

}  // namespace packed
}  // namespace tigon

#endif  // TIGON_GEMM_PACKED_HPP
