// What lies in a vector core's unified buffer: its guard zones, its tiles, and how many elements each of them has.
#ifndef TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_TILES_HPP
#define TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_TILES_HPP

#include <tigon/backend/tiling.hpp>
#include <tigon/core/division.hpp>
#include <tigon/rows/row.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>

namespace tigon::unified_buffer {
inline namespace TIGON_ABI {

/// When the lines of a copy may leave the cache that the cores share, relative to others. A hint to the copy, which
/// changes no result: what is copied once makes room for what every program copies again.
enum class evict {
  normally,  ///< parts of a row that further passes copy again, and numbers of rows
  first,     ///< blocks that a kernel copies once, and results
  last,      ///< parameters that all rows share, and partial rows of their gradients
};
inline constexpr std::size_t evict_hints = 3;

/// The copies of a backend that states none (`copier`): the CPU that plays the chip has no such hint.
struct plain_copies {
  static TIGON_INLINE void in(void* to, const void* from, std::size_t bytes, evict) { std::memcpy(to, from, bytes); }
  static TIGON_INLINE void out(void* to, const void* from, std::size_t bytes, evict) { std::memcpy(to, from, bytes); }
};

/// What one program did with its core's buffer.
struct usage {
  std::size_t bytes = 0, capacity = 0;        ///< of all tiles and guard zones, of the buffer
  std::size_t copied_in = 0, copied_out = 0;  ///< bytes
  std::size_t in_by[evict_hints]{};           ///< the same bytes by hint
  std::size_t out_by[evict_hints]{};
  bool intact = true;  ///< no guard zone was written to
};

/// The ledger of a backend that states none. It cannot throw: programs run on any thread.
struct abort_on_damage {
  static constexpr bool poison = false;  ///< fill the buffer with NaN before every program
  static void note(const usage& u) {
    if (u.intact && u.bytes <= u.capacity) return;
    std::fprintf(stderr, "tigon: a kernel wrote outside its tiles in a unified buffer of %zu bytes\n", u.capacity);
    std::abort();
  }
};

/// Bytes between tiles, and around the buffer.
inline constexpr std::size_t guard_bytes = 64;

/// The unified buffer of the core that this thread simulates.
template <std::size_t Capacity>
std::byte* this_core() {
  struct alignas(guard_bytes) buffer {
    std::byte bytes[Capacity + 2 * guard_bytes];
  };
  static thread_local buffer own;
  return own.bytes;
}

// Operands beside matrices, vectors and constants.

/// A number for every row.
template <class T>
struct column {
  T* data;
  constexpr TIGON_INLINE explicit column(T* d) : data(d) {}
};
/// As column, but it never leaves the buffer.
template <class T>
struct local {};
/// A matrix block of intermediates that never leaves.
template <class T>
struct scratch {};
/// A program's partial row of a parameter gradient.
template <class A>
struct partial {
  A* data;
};

/// Extents of a block, and in how many programs the blocks are worked on at most.
struct cut {
  std::size_t rows, cols, programs;
};

/// The numbers of operator Op's pass P on B, with accumulators of type A.
template <backend B, class Op, tiling::pass P, class A>
struct plan {
  using backend = B;
  using accumulator = A;
  static constexpr const tiling::rule& rule = rule_for<Op, P, B>;
  static constexpr std::size_t capacity = tile_capacity_of<B> / 8;
  static constexpr std::size_t buffers = tile_buffers_of<B>;
  static constexpr std::size_t safe = tiling::budget{tile_capacity_of<B>, rule.margin}.safe_bits() / 8;
  static constexpr std::size_t block = block_of<Op, P, B, A>();
  static constexpr std::size_t area = area_of<Op, P, B, A>();
  static constexpr std::size_t matrix_elements = std::max(block, area);
  static constexpr std::size_t programs = rule.programs * vector_cores_of<B>;
  /// Blocks of rows that share a block of columns where a row has several.
  static constexpr std::size_t group = 16;
  static constexpr std::size_t most_rows = std::min(rule.most_rows, area);
  static constexpr std::size_t column_elements = std::max(most_rows, group);

  /// What so many live tiles may take.
  static constexpr tiling::budget budget(tiling::ratio tiles) { return budget_of<Op, P, B, A>(tiles); }
  /// Short rows together, long rows in blocks of columns.
  static constexpr cut cut_of(std::size_t cols) {
    const std::size_t width = tiling::next_power_of_two(std::max<std::size_t>(cols, 1));
    return {std::clamp<std::size_t>(area / width, 1, most_rows), std::clamp<std::size_t>(cols, 1, block), programs};
  }
};

using detail::ceil_div;
constexpr std::size_t whole_lines(std::size_t bytes) { return ceil_div(bytes, guard_bytes) * guard_bytes; }

inline constexpr std::size_t nothing = ~std::size_t{0};

/// The place of an operand in the buffer, and which block of it is there.
template <class Operand>
struct tile;

/// Double buffering: a tile has two places, and every block is copied to the one that the block before does not take.
/// `to_other`: elements from the place in use to the other; 0 where there is one place.
struct tile_places {
  std::ptrdiff_t to_other = 0;

  template <class T>
  TIGON_INLINE void swap(T*& data) {
    data += to_other;
    to_other = -to_other;
  }
};

template <class T>
struct tile<matrix_view<T>> {
  using element_type = std::remove_const_t<T>;
  template <class Plan>
  static constexpr std::size_t elements = Plan::matrix_elements;
  matrix_view<T> global;
  element_type* data = nullptr;
  std::size_t held_row = nothing, held_col = nothing;
  tile_places places{};
};
template <class T>
struct tile<vector_view<T>> {
  using element_type = std::remove_const_t<T>;
  template <class Plan>
  static constexpr std::size_t elements = Plan::block;
  vector_view<T> global;
  element_type* data = nullptr;
  std::size_t held_col = nothing;
  tile_places places{};
};
/// A vector that may be absent: a block of the number that stands for it.
template <class T, int Value>
struct tile<simd::given_or<vector_view<T>, Value>> : tile<vector_view<T>> {};
template <class A>
struct tile<partial<A>> {
  using element_type = A;
  template <class Plan>
  static constexpr std::size_t elements = Plan::block;
  partial<A> global;
  A* data = nullptr;
  std::size_t held_col = nothing, held_count = 0;
  tile_places places{};
};
template <class T>
struct tile<column<T>> {
  using element_type = std::remove_const_t<T>;
  template <class Plan>
  static constexpr std::size_t elements = Plan::column_elements;
  column<T> global;
  element_type* data = nullptr;
  TIGON_INLINE element_type& operator[](std::size_t i) const { return data[i]; }
};
template <class T>
struct tile<local<T>> {
  using element_type = T;
  template <class Plan>
  static constexpr std::size_t elements = Plan::column_elements;
  local<T> global;
  T* data = nullptr;
  TIGON_INLINE T& operator[](std::size_t i) const { return data[i]; }
};
template <class T>
struct tile<scratch<T>> {
  using element_type = T;
  template <class Plan>
  static constexpr std::size_t elements = Plan::matrix_elements;
  scratch<T> global;
  T* data = nullptr;
};
template <class A>
struct tile<constant<A>> {
  using element_type = std::byte;
  template <class Plan>
  static constexpr std::size_t elements = 0;
  constant<A> global;
  std::byte* data = nullptr;
};

template <class... Tile>
struct reads : std::tuple<Tile&...> {
  TIGON_INLINE explicit reads(Tile&... t) : std::tuple<Tile&...>(t...) {}
};
template <class... Tile>
struct writes : std::tuple<Tile&...> {
  TIGON_INLINE explicit writes(Tile&... t) : std::tuple<Tile&...>(t...) {}
};

}  // namespace TIGON_ABI
}  // namespace tigon::unified_buffer

namespace tigon {
namespace ub = unified_buffer;
}

#endif  // TIGON_BACKENDS_ASCEND_UNIFIED_BUFFER_TILES_HPP
