// Frequencies of rotary position embedding, with the scalings that checkpoints for longer texts come with.
#ifndef TIGON_OPS_ROTARY_FREQUENCIES_HPP
#define TIGON_OPS_ROTARY_FREQUENCIES_HPP

#include <tigon/core/error.hpp>

#include <cmath>
#include <cstddef>
#include <numbers>
#include <span>

namespace tigon {

/// Every frequency is divided by `factor`: positions are interpolated (Chen et al., 2023).
struct linear_rotary {
  double factor;
};

/// The base grows with the length n = max(seq_len, original_positions), m = original_positions:
///   theta' = theta (factor n / m - (factor - 1))^(r / (r - 2))
struct dynamic_ntk_rotary {
  double factor;
  std::size_t original_positions;  ///< of training
  std::size_t seq_len = 0;         ///< of the text at hand
};

/// YaRN (Peng et al., 2023): the slow frequencies are divided by `factor`, the fast ones are left alone, between pairs
/// low and high the share that is left alone falls linearly. pair(b) is where a frequency turns b times in m positions:
///   pair(b) = r ln(m / (2 pi b)) / (2 ln theta)
///   low = max(pair(beta_fast), 0),  high = min(pair(beta_slow), r - 1), first rounded down and up with `truncate`
///   f'[j] = f[j] ((1 - t) + t / factor),  t = clamp((j - low) / (high - low), 0, 1)
/// The attention factor is that which is given, otherwise g(mscale) / g(mscale_all_dim) where both are, otherwise g(1);
///   g(s) = 0.1 s ln(factor) + 1, and 1 for a factor of at most 1
struct yarn_rotary {
  double factor;
  std::size_t original_positions;  ///< of training: m
  double beta_fast = 32, beta_slow = 1;
  double attention_factor = 0;            ///< 0: of the formula
  double mscale = 0, mscale_all_dim = 0;  ///< 0: not given
  bool truncate = true;
};

/// Llama 3.1: wavelengths w = 2 pi / f above m / low_freq_factor are multiplied by `factor`, those below
/// m / high_freq_factor left alone; between them
///   f' = (1 - s) f / factor + s f,  s = (m / w - low_freq_factor) / (high_freq_factor - low_freq_factor)
struct llama3_rotary {
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
  std::size_t original_positions = 8192;  ///< of training: m
};

/// LongRoPE (Ding et al., 2024): f'[j] = f[j] / long_factors[j] where seq_len is above original_positions, otherwise
/// f[j] / short_factors[j]. The attention factor is that which is given, otherwise sqrt(1 + ln(factor) / ln(m)), and 1
/// for a factor of at most 1.
struct long_rotary {
  std::span<const double> short_factors, long_factors;  ///< r/2 each
  double factor;                                        ///< positions of use / of training
  std::size_t original_positions;                       ///< of training: m
  std::size_t seq_len = 0;                              ///< of the text at hand
  double attention_factor = 0;                          ///< 0: of the formula
};

/// The first floor(share * pairs) pairs of a whole head have the frequencies of that head, divided by `factor`; the
/// others have 0 and are not rotated.
struct proportional_rotary {
  double share, factor = 1;
};

namespace detail {
inline namespace TIGON_ABI {

inline void expect_rotary_factor(const expects& expect, double factor) {
  expect.number<double>(factor > 0, "factor", factor, "a positive number");
}
inline void expect_original_positions(const expects& expect, std::size_t m) {
  expect.option(m >= 2, "original_positions", static_cast<double>(m), "at least 2");
}

/// f[j] = theta^(-2j / r), r = 2 * size
inline void plain_frequencies(std::span<double> f, double theta) {
  const double r = 2 * static_cast<double>(f.size());
  for (std::size_t j = 0; j < f.size(); ++j) f[j] = std::pow(theta, -2 * static_cast<double>(j) / r);
}
inline expects expects_of_frequencies(double theta) {
  const expects expect("rotary_frequencies");
  expect.number<double>(theta > 1, "theta", theta, "a number above 1");
  return expect;
}

/// g(s) of yarn_rotary.
inline double yarn_scale(double factor, double s) { return factor <= 1 ? 1 : 0.1 * s * std::log(factor) + 1; }

}  // namespace TIGON_ABI
}  // namespace detail

inline namespace TIGON_ABI {

/// Columns of a head that are rotated: head_dim * share, rounded down. Throws tigon::error: argument (a share outside
/// [0, 1], or a product that is odd).
inline std::size_t partial_rotary_dim(std::size_t head_dim, double share) {
  const expects expect("partial_rotary_dim");
  expect.option(share >= 0 && share <= 1, "share", share, "a number from 0 to 1");
  const auto columns = static_cast<std::size_t>(static_cast<double>(head_dim) * share);
  expect.that(columns % 2 == 0, error_code::argument, "head_dim * share", "odd", "an even number");
  return columns;
}

/// The frequencies f[j], j < r/2, of r rotated columns: radians a position. Returns the attention factor, by which the
/// tables of fill_rotary_tables are multiplied; 1 but for YaRN and LongRoPE.
///
///   f[j] = theta^(-2j / r),  changed as the struct of the scaling says
///
/// Formula    docs/formulas/rotary_tables.md; Su et al., "RoFormer", 2021.
/// Shapes     f of r/2 numbers, maybe 0; r is head_dim, or partial_rotary_dim(head_dim, share).
/// Precision  f64 throughout.
/// Throws     tigon::error: argument (theta at most 1; a factor that is not positive; original_positions below 2;
///            beta_slow above beta_fast; high_freq_factor at most low_freq_factor; dynamic_ntk_rotary of 2 columns,
///            where its exponent is infinite; a share outside [0, 1]), shape (factors of LongRoPE that are not r/2);
///            before the first write.
/// Max error  4e-15 of each frequency, for theta up to 1e8 (tests/ops/rotary_frequencies_test.cpp).
///
/// ```cpp
/// std::vector<double> frequencies(64);
/// const double factor = tigon::rotary_frequencies(frequencies, 1e6, tigon::yarn_rotary{4, 32768});
/// std::printf("cosines and sines times %g\n", factor);
/// ```
inline double rotary_frequencies(std::span<double> f, double theta) {
  detail::expects_of_frequencies(theta);
  detail::plain_frequencies(f, theta);
  return 1;
}

inline double rotary_frequencies(std::span<double> f, double theta, linear_rotary s) {
  detail::expect_rotary_factor(detail::expects_of_frequencies(theta), s.factor);
  detail::plain_frequencies(f, theta);
  for (double& v : f) v /= s.factor;
  return 1;
}

inline double rotary_frequencies(std::span<double> f, double theta, dynamic_ntk_rotary s) {
  const expects expect = detail::expects_of_frequencies(theta);
  expect.number<double>(s.factor >= 1, "factor", s.factor, "a number of at least 1");
  detail::expect_original_positions(expect, s.original_positions);
  expect.that(f.size() != 1, error_code::argument, "r", "2", "more columns, for which the exponent is finite");
  const double m = static_cast<double>(s.original_positions), r = 2 * static_cast<double>(f.size());
  const double n = s.seq_len > s.original_positions ? static_cast<double>(s.seq_len) : m;
  const double growth = s.factor * n / m - (s.factor - 1);
  detail::plain_frequencies(f, theta * std::pow(growth, r / (r - 2)));
  return 1;
}

[[nodiscard]] inline double rotary_frequencies(std::span<double> f, double theta, yarn_rotary s) {
  const expects expect = detail::expects_of_frequencies(theta);
  detail::expect_rotary_factor(expect, s.factor);
  detail::expect_original_positions(expect, s.original_positions);
  expect.number<double>(s.beta_slow > 0, "beta_slow", s.beta_slow, "a positive number");
  expect.number<double>(s.beta_fast >= s.beta_slow, "beta_fast", s.beta_fast, "at least beta_slow");
  expect.finite<double>("attention_factor", s.attention_factor);
  expect.finite<double>("mscale", s.mscale);
  expect.finite<double>("mscale_all_dim", s.mscale_all_dim);
  const double r = 2 * static_cast<double>(f.size()), m = static_cast<double>(s.original_positions);
  const auto pair = [=](double turns) {
    return r * std::log(m / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = pair(s.beta_fast), high = pair(s.beta_slow);
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = low > 0 ? low : 0, high = high < r - 1 ? high : r - 1;
  if (low == high) high += 0.001;
  detail::plain_frequencies(f, theta);
  for (std::size_t j = 0; j < f.size(); ++j) {
    const double at = (static_cast<double>(j) - low) / (high - low), t = at < 0 ? 0 : at > 1 ? 1 : at;
    f[j] = f[j] / s.factor * t + f[j] * (1 - t);
  }
  if (s.attention_factor != 0) return s.attention_factor;
  if (s.mscale != 0 && s.mscale_all_dim != 0)
    return detail::yarn_scale(s.factor, s.mscale) / detail::yarn_scale(s.factor, s.mscale_all_dim);
  return detail::yarn_scale(s.factor, 1);
}

inline double rotary_frequencies(std::span<double> f, double theta, llama3_rotary s) {
  const expects expect = detail::expects_of_frequencies(theta);
  detail::expect_rotary_factor(expect, s.factor);
  detail::expect_original_positions(expect, s.original_positions);
  expect.number<double>(s.low_freq_factor > 0, "low_freq_factor", s.low_freq_factor, "a positive number");
  expect.number<double>(s.high_freq_factor > s.low_freq_factor, "high_freq_factor", s.high_freq_factor,
                        "above low_freq_factor");
  const double m = static_cast<double>(s.original_positions);
  detail::plain_frequencies(f, theta);
  for (double& v : f) {
    const double wave = 2 * std::numbers::pi / v;
    const double share = (m / wave - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
    if (wave > m / s.low_freq_factor)
      v /= s.factor;
    else if (wave >= m / s.high_freq_factor)
      v = (1 - share) * v / s.factor + share * v;
  }
  return 1;
}

[[nodiscard]] inline double rotary_frequencies(std::span<double> f, double theta, long_rotary s) {
  const expects expect = detail::expects_of_frequencies(theta);
  detail::expect_rotary_factor(expect, s.factor);
  detail::expect_original_positions(expect, s.original_positions);
  expect.size("short_factors", s.short_factors.size(), f.size());
  expect.size("long_factors", s.long_factors.size(), f.size());
  expect.finite<double>("attention_factor", s.attention_factor);
  for (const auto factors : {s.short_factors, s.long_factors})
    for (const double by : factors) expect.number<double>(by > 0, "a factor of a pair", by, "a positive number");
  detail::plain_frequencies(f, theta);
  const std::span<const double> by = s.seq_len > s.original_positions ? s.long_factors : s.short_factors;
  for (std::size_t j = 0; j < f.size(); ++j) f[j] /= by[j];
  if (s.attention_factor != 0) return s.attention_factor;
  return s.factor <= 1 ? 1 : std::sqrt(1 + std::log(s.factor) / std::log(static_cast<double>(s.original_positions)));
}

inline double rotary_frequencies(std::span<double> f, double theta, proportional_rotary s) {
  const expects expect = detail::expects_of_frequencies(theta);
  detail::expect_rotary_factor(expect, s.factor);
  expect.option(s.share >= 0 && s.share <= 1, "share", s.share, "a number from 0 to 1");
  detail::plain_frequencies(f, theta);
  const auto rotated = static_cast<std::size_t>(s.share * static_cast<double>(f.size()));
  for (std::size_t j = 0; j < f.size(); ++j) f[j] = j < rotated ? f[j] / s.factor : 0;
  return 1;
}

}  // namespace TIGON_ABI
}  // namespace tigon

#endif  // TIGON_OPS_ROTARY_FREQUENCIES_HPP
