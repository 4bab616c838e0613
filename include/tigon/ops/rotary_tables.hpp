// Tables of cosines and sines for the rotary operators, for positions of any size.
#ifndef TIGON_OPS_ROTARY_TABLES_HPP
#define TIGON_OPS_ROTARY_TABLES_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/rotary/rotary_angles.hpp>
#include <tigon/ops/rotary_frequencies.hpp>

#include <cstddef>
#include <span>
#include <type_traits>

namespace tigon {

inline namespace TIGON_ABI {

/// Tables of rope and, with three times the rows, of qwen2vl_mrope.
///
///   cos[i, j] = factor cos(p[i] f[j]),  sin[i, j] = factor sin(p[i] f[j]),  j < r/2
///   multimodal_positions: p[t(j), i] in the place of p[i]
///
/// Formula    docs/formulas/rotary_tables.md.
/// Shapes     f [r/2], of rotary_frequencies; cos, sin [rows, r/2] with any row stride. Any extent may be 0.
/// Types      cos and sin one of f32, bf16, f16, f64; f and positions f64 and 64-bit integers.
/// Precision  f64, for the exact product of position and frequency, whatever the position; one rounding.
/// Writes     cos, sin.
/// Aliasing   no output shares an element with another argument.
/// Throws     tigon::error: shape, stride, alias, argument (factor outside option_range; a frequency beyond 256;
///            sections that are not r/2 together, or do not fit where they are interleaved), index (a position beyond
///            2^32, in either direction); before the first write.
/// Max error  f32 6e-8, bf16 4e-3, f16 5e-4, f64 6e-16 of |factor|, for every position
///            (tests/ops/rotary_tables_test.cpp).
///
/// ```cpp
/// std::vector<double> frequencies(8);
/// std::vector<float> c(32 * 8), s(32 * 8);
/// tigon::rotary_frequencies(frequencies, 1e4);
/// tigon::fill_rotary_tables(frequencies, tigon::positions_from{}, tigon::matrix_view(c.data(), 32, 8),
///                           tigon::matrix_view(s.data(), 32, 8));
/// ```
template <class Positions, class U>
void fill_rotary_tables(std::span<const double> f, const Positions& positions, matrix_view<U> cos,
                        std::type_identity_t<matrix_view<U>> sin, double factor = 1, context& ctx = default_context()) {
  static_assert(element<U>);
  arguments args("fill_rotary_tables");
  detail::expect_frequencies<accumulator_t<U>>(args, f, factor);
  const detail::rotary_angles angles = detail::angles_of(args, f, positions, cos.rows, factor);
  args.out("cos", cos, cos.rows, f.size());
  args.out("sin", sin, cos.rows, f.size());
  args.check();
  detail::for_rotary_angles(angles, cos.rows, ctx, [=](std::size_t i, std::size_t j, double c, double z) {
    cos.row(i)[j] = static_cast<U>(static_cast<accumulator_t<U>>(c));
    sin.row(i)[j] = static_cast<U>(static_cast<accumulator_t<U>>(z));
  });
}

/// The table of llama4_rope: freqs[i, 2j] = factor cos(p[i] f[j]),  freqs[i, 2j + 1] = factor sin(p[i] f[j]).
/// Everything else as fill_rotary_tables.
template <class Positions, class U>
void fill_rotary_pairs(std::span<const double> f, const Positions& positions, matrix_view<U> freqs, double factor = 1,
                       context& ctx = default_context()) {
  static_assert(element<U>);
  arguments args("fill_rotary_pairs");
  detail::expect_frequencies<accumulator_t<U>>(args, f, factor);
  const detail::rotary_angles angles = detail::angles_of(args, f, positions, freqs.rows, factor);
  args.out("freqs", freqs, freqs.rows, 2 * f.size());
  args.check();
  detail::for_rotary_angles(angles, freqs.rows, ctx, [=](std::size_t i, std::size_t j, double c, double z) {
    freqs.row(i)[2 * j] = static_cast<U>(static_cast<accumulator_t<U>>(c));
    freqs.row(i)[2 * j + 1] = static_cast<U>(static_cast<accumulator_t<U>>(z));
  });
}

}  // namespace TIGON_ABI
}  // namespace tigon

#endif  // TIGON_OPS_ROTARY_TABLES_HPP
