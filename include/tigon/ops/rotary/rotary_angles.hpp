// What tables of cosines and sines are made of: positions, their checks, and the angles of rows and pairs.
#ifndef TIGON_OPS_ROTARY_ROTARY_ANGLES_HPP
#define TIGON_OPS_ROTARY_ROTARY_ANGLES_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/core/context.hpp>
#include <tigon/core/division.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tigon {

/// Positions of the rows of a table: first, first + 1, ...
struct positions_from {
  std::int64_t first = 0;
};
/// Positions of the rows of a table: a list of them.
struct positions_in {
  std::span<const std::int64_t> list;
};

/// Positions in time, in height and in width of the tokens (Qwen2-VL), and which pairs have which:
///   t(j) = 0 for the first sections[0] pairs, 1 for the next sections[1], 2 for the last sections[2];
///   interleaved (Qwen3-VL): t(j) = j mod 3 for j < 3 sections[j mod 3], otherwise 0
/// Where a token's three positions are equal, as those of text are, its row is that of positions_in.
struct multimodal_positions {
  matrix_view<const std::int64_t> of;     ///< [3, rows]
  std::array<std::size_t, 3> sections{};  ///< pairs of time, of height, of width; together r/2
  bool interleaved = false;
};

namespace detail {
inline namespace TIGON_ABI {

inline constexpr std::int64_t most_position = std::int64_t{1} << 32;

/// What a table is made of: row i and pair j have position(i, j) and frequency f[j].
struct rotary_angles {
  std::span<const double> f;
  double factor;
  std::int64_t first = 0;
  const std::int64_t* list = nullptr;
  matrix_view<const std::int64_t> of = {};
  std::array<std::size_t, 3> sections = {};
  bool interleaved = false;

  std::size_t axis(std::size_t j) const {
    if (interleaved) return j < 3 * sections[j % 3] ? j % 3 : 0;
    return j < sections[0] ? 0 : j < sections[0] + sections[1] ? 1 : 2;
  }
  std::int64_t position(std::size_t i, std::size_t j) const {
    if (of.data != nullptr) return of.row(axis(j))[i];
    return list != nullptr ? list[i] : first + static_cast<std::int64_t>(i);
  }
  /// factor (cos, sin) of the exact product p f: that of the rounded product, rotated by the rest, which is at most
  /// 2^-14.
  std::array<double, 2> at(std::size_t i, std::size_t j) const {
    const auto p = static_cast<double>(position(i, j));
    const double angle = p * f[j], rest = std::fma(p, f[j], -angle), square = rest * rest;
    const double c = std::cos(angle), z = std::sin(angle);
    const double cos_less_1 = square * -0.5, sin = rest - rest * square / 6;
    return {factor * (c + (c * cos_less_1 - z * sin)), factor * (z + (z * cos_less_1 + c * sin))};
  }
};

/// Calls put(i, j, cos, sin) for every row and pair.
template <class Put>
void for_rotary_angles(const rotary_angles& angles, std::size_t rows, context& ctx, Put put) {
  const std::size_t pairs = angles.f.size(), per_task = ceil_div(std::size_t{4096}, std::max<std::size_t>(pairs, 1));
  ctx.executor().run(ceil_div(rows, per_task), [&](std::size_t task, std::size_t) {
    const std::size_t end = std::min(rows, (task + 1) * per_task);
    for (std::size_t i = task * per_task; i < end; ++i)
      for (std::size_t j = 0; j < pairs; ++j) {
        const std::array<double, 2> by = angles.at(i, j);
        put(i, j, by[0], by[1]);
      }
  });
}

template <class A>
void expect_frequencies(arguments& args, std::span<const double> f, double factor) {
  args.in("f", f);
  for (const double v : f) args.option(v >= -256 && v <= 256, "a frequency", v, "a number from -256 to 256");
  args.finite<A>("factor", factor);
}

inline void expect_position(const expects& expect, std::int64_t p) {
  expect.that(p >= -most_position && p <= most_position, error_code::index, "a position", "beyond 2^32",
              "at most 2^32, in either direction");
}

inline rotary_angles angles_of(arguments& args, std::span<const double> f, const positions_from& positions,
                               std::size_t rows, double factor) {
  expect_position(args, positions.first);
  if (rows != 0) {
    args.that(rows <= std::size_t{1} << 32, error_code::index, "the last position", "beyond 2^32", "at most 2^32");
    expect_position(args, positions.first + static_cast<std::int64_t>(rows - 1));
  }
  return {.f = f, .factor = factor, .first = positions.first};
}

inline rotary_angles angles_of(arguments& args, std::span<const double> f, const positions_in& positions,
                               std::size_t rows, double factor) {
  args.in("positions", positions.list, rows);
  for (const std::int64_t p : positions.list) expect_position(args, p);
  return {.f = f, .factor = factor, .list = positions.list.data()};
}

inline rotary_angles angles_of(arguments& args, std::span<const double> f, const multimodal_positions& positions,
                               std::size_t rows, double factor) {
  args.in("positions", positions.of, 3, rows);
  const auto [time, height, width] = positions.sections;
  const std::size_t half = f.size();
  args.that(time <= half && height <= half - time && width == half - time - height, error_code::argument,
            "sum of the sections", "not r / 2", "r / 2");
  if (positions.interleaved)
    args.that((height == 0 || 3 * height - 2 < half) && (width == 0 || 3 * width - 1 < half), error_code::argument,
              "a section", "too long to be interleaved", "at most r / 6 pairs");
  for (std::size_t t = 0; t < 3; ++t)
    for (std::size_t i = 0; i < rows; ++i) expect_position(args, positions.of.row(t)[i]);
  return {.f = f,
          .factor = factor,
          .of = positions.of,
          .sections = positions.sections,
          .interleaved = positions.interleaved};
}

}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_ROTARY_ROTARY_ANGLES_HPP
