// Norms over the range of a type: powers of two for rows whose squares leave it.
#ifndef TIGON_OPS_NORM_ROW_SCALE_HPP
#define TIGON_OPS_NORM_ROW_SCALE_HPP

#include <tigon/config.hpp>
#include <tigon/rows/row.hpp>

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// The range in which sums of squares in A keep their digits. A mean square (with eps) below `least` may lack squares
/// that became subnormal; one above the largest number has overflowed. Rows outside are multiplied by `up` or `down`:
/// then the square of any number in them, and the sum of 2^32 of these, is well within the range.
template <class A>
struct square_range {
  static constexpr bool wide = sizeof(A) == 8;
  static constexpr A least = wide ? A(0x1p-900) : A(0x1p-96), most = std::numeric_limits<A>::max();
  static constexpr A up = wide ? A(0x1p600) : A(0x1p96), down = A(1) / up;
  static constexpr A small_mean = wide ? A(0x1p400) : A(0x1p30);  ///< a number that may be multiplied by `up`
};

/// The power of two for a row with this mean square, in which eps is included; 1 for nearly all. `down` for NaN.
template <class A, class S>
TIGON_INLINE A scale_for_squares(S square) {
  using range = square_range<A>;
  if (square >= range::least && square <= range::most) return A(1);
  return square < range::least ? range::up : range::down;
}

/// 1 / sqrt(square) of a row that was multiplied by `scale`. An infinite square is one of an infinity in the row: 0.
template <class A, class S>
TIGON_INLINE A rstd_of_scaled(S square, A scale) {
  return static_cast<A>(math::rsqrt(square) * scale);
}

/// 1 / sqrt(mean of value(x...)^2 + eps) of a row that is multiplied by `scale` for it.
template <class Row, class A, class F, class... X>
TIGON_NOINLINE A rstd_by_scale(Row row, A scale, A eps, F value, X... x) {
  const A squares = row.sum(reads(x...), [=](auto... from) {
    const auto v = value(from...) * scale;
    return v * v;
  });
  return rstd_of_scaled(squares / static_cast<A>(row.cols) + eps * scale * scale, scale);
}

/// Whether sums of products with the numbers of a row with this rstd, which are about 1 / rstd, are within the range,
/// as nearly always. Where not, its gradients are computed in f64. True of NaN, and of 0, for a row with an infinity.
template <class A>
TIGON_INLINE bool holds_products(A rstd) {
  constexpr A extreme = sizeof(A) == 8 ? A(0x1p300) : A(0x1p40);
  if (rstd >= A(1) / extreme && rstd <= extreme) return true;
  return rstd == A(0) || rstd != rstd;
}

/// The power of two by which a row with such an rstd is multiplied there.
template <class A>
TIGON_INLINE A scale_of_row(A rstd) {
  constexpr A up = sizeof(A) == 8 ? A(0x1p520) : A(0x1p64);
  return rstd < A(0x1p-24) ? A(1) / up : rstd > A(0x1p24) ? up : A(1);
}

/// The power of two that brings a row with this rstd to about 1, where it is computed in f64: of numbers of f64 alone,
/// which holds all products of others.
template <class A>
TIGON_INLINE double scale_in_f64(A rstd) {
  if constexpr (sizeof(A) < 8) return 1;
  constexpr std::uint64_t exponent = 0x7ffull << 52;
  const double power = std::bit_cast<double>(std::bit_cast<std::uint64_t>(static_cast<double>(rstd)) & exponent);
  return math::min(math::max(power, 0x1p-1022), 0x1p1022);
}
/// What in_f64 of a program returns: `program`, if it computes the row.
template <class P>
TIGON_INLINE std::optional<P> in_f64_if(bool computes, const P& program) {
  return computes ? std::optional(program) : std::nullopt;
}

/// Sums over a row of m^2, m v and v^2.
struct sums_along_row {
  double m_m = 0, m_v = 0, v_v = 0;

  TIGON_INLINE void add(double m, double v) { m_m += m * m, m_v += m * v, v_v += v * v; }
};

/// What c = r^2 mean(m v) is multiplied by in dx = r (m - c v), the gradient of n numbers v times r, 1 / sqrt(mean
/// square + eps), whose own gradient is m. r, a number of A, was saved and decides alone: 1.
///
/// But where m lies along v the two terms nearly cancel, of one number down to eps r^2 of each, and the rounding of r
/// in f32 would be all that is left. There mean(v^2) r^2 + eps r^2 = 1 gives the digits that r lacks, if it holds to
/// the rounding of r: an eps other than forward's does not count.
template <class A>
TIGON_INLINE double correction_along_row(const sums_along_row& s, double n, double r, double eps) {
  if constexpr (sizeof(A) == 8) return 1;
  const double saved = r * r * s.v_v / n, exact = 1 - eps * r * r;
  const bool cancels = 8 * s.m_v * s.m_v >= 7 * s.m_m * s.v_v && exact > 0.5;
  const bool agrees = math::abs(exact - saved) <= 5 * static_cast<double>(std::numeric_limits<A>::epsilon());
  return cancels && agrees ? exact / saved : 1;
}

/// Mean and variance of a row from the sums of c = scale * x - about and of c^2, first with about = 0. Where the mean
/// is further from `about` than the deviation, the second sum has lost digits. Then both are computed again about the
/// rounded mean, and once more where the error of that mean still shows. Where squares leave the range of A, they are
/// computed again at another scale. S is the type of the means.
template <class A, class S = A>
struct row_moments {
  A scale = A(1), about = A(0);
  S mean = S(0), square = S(0);  ///< of c and c^2

  /// Begins about a number near the mean, for a driver that has one before the first reduction.
  TIGON_INLINE void begin_about(A guess) { about = math::abs(guess) <= square_range<A>::small_mean ? guess : A(0); }
  /// Takes the sums, divided by the columns; true if the row has to be reduced once more. In a row of `few` columns,
  /// whose dx nearly cancels, it has to be, about the mean.
  TIGON_INLINE bool again(S mean_of, S square_of, S eps, bool few) {
    using range = square_range<A>;
    mean = mean_of, square = square_of;
    const bool in_range = square <= range::most, finite = math::abs(mean) <= range::most;
    if (centred_ < 2 && finite && mean != S(0) &&
        (in_range ? mean * mean >= square * S(0.5) || (few && centred_ == 0) : centred_ == 0)) {
      about += static_cast<A>(mean), ++centred_;
      return true;
    }
    const S variance = square - mean * mean;
    if (scaled_ == 0 && !in_range) return rescale(range::down);
    if (scaled_ == 0 && variance + eps < range::least && math::abs(about) < range::small_mean)
      return rescale(range::up);
    // A large mean, of which alone the sum has overflown: eps does not show to this scale.
    if (scaled_ == 1 && scale < A(1) && variance < range::least) return rescale(range::up);
    return false;
  }
  /// 1 / sqrt(variance of c + eps).
  TIGON_INLINE A rstd(S eps) const {
    return static_cast<A>(math::rsqrt(math::max(S(0), square - mean * mean) + eps * scale * scale));
  }
  /// Of the row itself, whose mean is the sum of the first two.
  TIGON_INLINE std::array<A, 3> about_mean_rstd(S eps) const {
    return {about / scale, static_cast<A>(mean) / scale, rstd(eps) * scale};
  }

 private:
  TIGON_INLINE bool rescale(A by) {
    scale *= by, about *= by, ++scaled_;
    return true;
  }
  int centred_ = 0, scaled_ = 0;
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_NORM_ROW_SCALE_HPP
