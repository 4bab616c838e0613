// Tiles that fit: the largest power of two such that all tiles that live at a time stay within a share of a core's
// scratch memory. Constant expressions throughout; no operator and no vendor is known here.
//
//   compat   the numbers of Liger-Kernel's unified-buffer manager, its weaknesses included, for comparison
//   strict   what the library uses: fixed extents as they are padded, all tiled extents in one budget, and a refusal
//            where nothing fits
//   fixed    strict for extents that are known to the compiler: a tile that cannot fit does not compile
#ifndef TIGON_BACKEND_TILING_HPP
#define TIGON_BACKEND_TILING_HPP

#include <tigon/backend/backend.hpp>
#include <tigon/backend/capacity.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <limits>

namespace tigon {
namespace tiling {
inline namespace TIGON_ABI {

/// A number that is no whole one, exactly.
struct ratio {
  std::size_t n = 0, d = 1;
  friend constexpr bool operator==(ratio, ratio) = default;
};

/// What tiles may take: `margin` of the capacity, shared by `tiles` tiles of elements of `element_bytes` each. A margin
/// below one leaves room for what is not counted; 0 tiles and 0 bytes mean their defaults.
struct budget {
  std::size_t capacity_bits;
  ratio margin{8, 10};
  ratio tiles{10};
  std::size_t element_bytes = 4;

  constexpr std::size_t safe_bits() const;
  /// Elements of one tile where every element stands for `unit` of them.
  constexpr std::size_t elements(std::size_t unit = 1) const;
};

inline constexpr std::size_t max_rank = 4;
inline constexpr std::size_t max_shapes = 4;

/// Extents of a tensor or of its tile.
struct extents {
  std::size_t rank = 0;
  std::array<std::size_t, max_rank> at{};

  template <std::convertible_to<std::size_t>... N>
    requires(sizeof...(N) <= max_rank)
  constexpr extents(N... n) : rank(sizeof...(N)), at{static_cast<std::size_t>(n)...} {}  // NOLINT: braces of numbers
  constexpr std::size_t operator[](std::size_t i) const { return at[i]; }
  friend constexpr bool operator==(const extents&, const extents&) = default;
};

/// The dimensions of one shape that are cut, the first to be cut first. None, or one outside the shape, is a mistake.
struct dims {
  std::size_t count = 0;
  std::array<std::ptrdiff_t, max_rank> at{};

  template <std::integral... I>
    requires(sizeof...(I) <= max_rank)
  constexpr dims(I... i) : count(sizeof...(I)), at{static_cast<std::ptrdiff_t>(i)...} {}  // NOLINT: braces of numbers
  constexpr bool contains(std::size_t i) const {
    return std::find(at.begin(), at.begin() + count, static_cast<std::ptrdiff_t>(i)) != at.begin() + count;
  }
  constexpr bool within(std::size_t rank) const {
    return count != 0 && std::all_of(at.begin(), at.begin() + count,
                                     [=](std::ptrdiff_t i) { return static_cast<std::size_t>(i) < rank; });
  }
};

enum class outcome {
  tiles,    ///< one for every shape
  none,     ///< no shapes, or not one entry for each of them
  invalid,  ///< an entry without dimensions or with one outside its shape
  no_fit,   ///< strict: not even a single element of the tiled dimensions fits
};

struct answer {
  outcome what = outcome::none;
  std::size_t count = 0;
  std::array<extents, max_shapes> tile{};

  constexpr explicit operator bool() const { return what == outcome::tiles; }
  constexpr const extents& operator[](std::size_t i) const { return tile[i]; }
};

/// The smallest power of two that is not below n; 0 for 0.
constexpr std::size_t next_power_of_two(std::size_t n) {
  constexpr std::size_t largest = ~(~std::size_t{0} >> 1);
  return n == 0 ? 0 : n > largest ? largest : std::bit_ceil(n);
}

/// The largest number there is where the product has no room.
constexpr std::size_t saturating_product(std::size_t a, std::size_t b) {
  return b != 0 && a > std::numeric_limits<std::size_t>::max() / b ? std::numeric_limits<std::size_t>::max() : a * b;
}

constexpr std::size_t budget::safe_bits() const { return saturating_product(capacity_bits, margin.n) / margin.d; }

constexpr std::size_t budget::elements(std::size_t unit) const {
  const ratio live = tiles.n == 0 ? ratio{10} : tiles;
  const std::size_t bits = 8 * (element_bytes == 0 ? 4 : element_bytes);
  return saturating_product(safe_bits(), live.d) / saturating_product(saturating_product(live.n, unit), bits);
}

namespace detail {

// What compat and strict share: a tile for every shape by one function, or the reason why there is none.
template <class Tile>
constexpr answer for_shapes(std::initializer_list<extents> shapes, std::initializer_list<dims> tiled, Tile tile) {
  if (shapes.size() == 0 || shapes.size() != tiled.size()) return {};
  if (shapes.size() > max_shapes) return {.what = outcome::invalid};
  answer result{.what = outcome::tiles, .count = shapes.size()};
  for (std::size_t s = 0; s < shapes.size(); ++s) {
    const extents& shape = shapes.begin()[s];
    const dims& cut = tiled.begin()[s];
    if (!cut.within(shape.rank)) return {.what = outcome::invalid};
    result.tile[s] = shape;
    for (std::size_t i = 0; i < shape.rank; ++i) result.tile[s].at[i] = next_power_of_two(shape[i]);
    if (!tile(shape, cut, result.tile[s])) return {.what = outcome::no_fit};
  }
  return result;
}

// The product of the extents that are not cut; 1 where one of them is 0.
constexpr std::size_t fixed_elements(const extents& shape, const dims& cut) {
  std::size_t unit = 1;
  for (std::size_t i = 0; i < shape.rank; ++i)
    if (!cut.contains(i)) unit = saturating_product(unit, shape[i]);
  return std::max<std::size_t>(unit, 1);
}

}  // namespace detail

/// As Liger-Kernel 0.8 computes it. Every tiled extent gets the whole budget, fixed extents count unpadded, and a tile
/// that cannot fit is one element: see strict.
constexpr answer compat(budget b, std::initializer_list<extents> shapes, std::initializer_list<dims> tiled) {
  return detail::for_shapes(shapes, tiled, [b](const extents& shape, const dims& cut, extents& tile) {
    const std::size_t fitting =
        std::bit_floor(std::max<std::size_t>(b.elements(detail::fixed_elements(shape, cut)), 1));
    for (std::size_t i = 0; i < shape.rank; ++i)
      if (cut.contains(i)) tile.at[i] = std::max<std::size_t>(std::min(tile[i], fitting), 1);
    return true;
  });
}

/// The tile, as it is padded, fits: tiles * (product of its extents) * element_bytes stays within the margin. Tiled
/// dimensions are halved in the order in which they are listed.
constexpr answer strict(budget b, std::initializer_list<extents> shapes, std::initializer_list<dims> tiled) {
  return detail::for_shapes(shapes, tiled, [b](const extents&, const dims& cut, extents& tile) {
    std::size_t fitting = b.elements(detail::fixed_elements(tile, cut)), taken = 1;
    if (fitting == 0) return false;
    for (std::size_t i = 0; i < tile.rank; ++i)
      if (cut.contains(i)) {
        tile.at[i] = std::max<std::size_t>(tile[i], 1);
        taken = saturating_product(taken, tile[i]);
      }
    for (std::size_t k = 0; k < cut.count; ++k)
      for (std::size_t& extent = tile.at[static_cast<std::size_t>(cut.at[k])]; taken > fitting && extent > 1;) {
        extent /= 2;
        taken = 1;
        for (std::size_t i = 0; i < tile.rank; ++i)
          if (cut.contains(i)) taken = saturating_product(taken, tile[i]);
      }
    return true;
  });
}

/// strict for one shape that the compiler knows.
consteval extents fixed(budget b, extents shape, dims tiled) {
  const answer a = strict(b, {shape}, {tiled});
  if (a.what == outcome::invalid) tigon::detail::refuse("tigon: a tiled dimension lies outside the shape");
  if (a.what == outcome::no_fit) tigon::detail::refuse("tigon: the fixed extents of this tile exceed the capacity");
  return a[0];
}

/// The tile of a row of n elements is min(next_power_of_two(n), cap): the cap does not depend on n. 0: nothing fits.
constexpr std::size_t cap(budget b) { return b.elements() == 0 ? 0 : std::bit_floor(b.elements()); }

/// plain: the path that needs fewer tiles, where an operator has two.
enum class pass { forward, backward, plain_forward, plain_backward };

/// Which work item comes next to a program: the one a grid away, or its neighbour.
enum class schedule { strided, chunked };

/// How an operator's pass is cut for a backend with scratch memory: numbers that change the speed only. A block is cut
/// from one row, or takes several rows that are short enough.
struct rule {
  ratio margin{9, 10};
  ratio tiles{10};            ///< that live at a time, in units of a block of accumulators
  std::size_t floor = 1;      ///< a block of fewer elements is refused
  ratio area_tiles{0};        ///< the same as `tiles` for a block of several rows; 0: `tiles`
  std::size_t area = 0;       ///< elements of a block of several rows at most; 0: as many as fit
  std::size_t most_rows = 1;  ///< rows of a block at most
  std::size_t programs = 1;   ///< in flight for every core at most
  schedule order = schedule::strided;
};

}  // namespace TIGON_ABI
}  // namespace tiling

/// The rule of one operator's pass on backend B, in a member `static constexpr tiling::rule value`. A backend
/// specialises it for itself; its children inherit it along `parent`, as they do kernels, and may state their own.
template <class Op, tiling::pass P, class B>
struct tile_rule {
  using not_stated = void;
};

namespace detail {

template <class Op, tiling::pass P, class B>
struct find_rule : find_rule<Op, P, parent_t<B>> {};
template <class Op, tiling::pass P, class B>
  requires(!requires { typename tile_rule<Op, P, B>::not_stated; })
struct find_rule<Op, P, B> : tile_rule<Op, P, B> {};
template <class Op, tiling::pass P>
struct find_rule<Op, P, void> {
  static_assert(!std::same_as<Op, Op>,
                "tigon: no backend on the chain of parents states a tile_rule for this operator and pass");
};

}  // namespace detail

/// The nearest rule on the chain B, B::parent, ...
template <class Op, tiling::pass P, class B>
inline constexpr const tiling::rule& rule_for = detail::find_rule<Op, P, B>::value;

/// Places in the buffer that a tile takes on B: its `tile_buffers`, if it states them.
template <class B>
inline constexpr std::size_t tile_buffers_of = 1;
template <class B>
  requires requires { B::tile_buffers; }
inline constexpr std::size_t tile_buffers_of<B> = B::tile_buffers;

/// What the pass may take on B for so many live tiles of accumulators of type A.
template <class Op, tiling::pass P, class B, class A>
constexpr tiling::budget budget_of(tiling::ratio tiles) {
  return {tile_capacity_of<B>, rule_for<Op, P, B>.margin, {tiles.n * tile_buffers_of<B>, tiles.d}, sizeof(A)};
}

/// Elements of the largest block of accumulators of type A that the pass may use on B: a power of two, at least the
/// rule's floor, or a sentence.
template <class Op, tiling::pass P, class B, class A>
consteval std::size_t block_of() {
  constexpr const tiling::rule& r = rule_for<Op, P, B>;
  constexpr std::size_t block = tiling::cap(budget_of<Op, P, B, A>(r.tiles));
  static_assert(block >= std::max<std::size_t>(r.floor, 1),
                "tigon: the smallest tile that this operator works on exceeds the backend's tile_capacity_bits");
  return block;
}

/// The same for a block of several rows.
template <class Op, tiling::pass P, class B, class A>
consteval std::size_t area_of() {
  constexpr const tiling::rule& r = rule_for<Op, P, B>;
  constexpr std::size_t fits = tiling::cap(budget_of<Op, P, B, A>(r.area_tiles.n == 0 ? r.tiles : r.area_tiles));
  return r.area == 0 ? fits : std::min(r.area, fits);
}

}  // namespace tigon

#endif  // TIGON_BACKEND_TILING_HPP
