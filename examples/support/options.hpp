// Checks of options that programs share, for CLI11.
#ifndef EXAMPLE_SUPPORT_OPTIONS_HPP
#define EXAMPLE_SUPPORT_OPTIONS_HPP

#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <system_error>

namespace example {

inline CLI::Validator whole(std::uint64_t low, std::uint64_t high) {
  return {[=](std::string& text) -> std::string {
            std::uint64_t value = 0;
            const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
            if (code == std::errc() && end == text.data() + text.size() && value >= low && value <= high) return {};
            return text + " is not a whole number from " + std::to_string(low) + " to " + std::to_string(high);
          },
          ""};
}

/// A finite number that is the whole of a text.
inline std::optional<double> number_in(const std::string& text) {
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return {};
  return value;
}

/// Why a number would be another one in f32, in which the programs compute: 1e-50 is 0 there, 1e39 is infinite, and
/// 0.99999999 is 1, which matters to a number of which 1 is the end. Empty for 0 and for a number that keeps 24 bits.
inline std::string lost_in_f32(const std::string& text, double value, bool ends_at_one) {
  const double size = std::abs(value);
  if (size > static_cast<double>(std::numeric_limits<float>::max()))
    return text + " is infinite in f32, whose largest number is 3.4e38";
  if (size != 0 && size < static_cast<double>(std::numeric_limits<float>::min()))
    return text + " rounds away in f32, whose smallest number with all its digits is 1.2e-38";
  if (ends_at_one && size < 1 && static_cast<float>(size) == 1)
    return text + " is 1 in f32, whose next number below is 0.99999994";
  return {};
}

enum class bound { positive, from_zero, below_one, from_zero_to_one };

/// A number within bounds, as f32 holds it too.
inline CLI::Validator real(bound kind) {
  return {[=](std::string& text) -> std::string {
            const std::optional<double> number = number_in(text);
            const double value = number.value_or(-1);
            bool within = false;
            const char* name = "";
            switch (kind) {
              case bound::positive: within = value > 0, name = "above 0"; break;
              case bound::from_zero: within = value >= 0, name = "from 0 up"; break;
              case bound::below_one: within = value >= 0 && value < 1, name = "from 0 to below 1"; break;
              case bound::from_zero_to_one: within = value >= 0 && value <= 1, name = "from 0 to 1"; break;
            }
            const bool ends_at_one = kind == bound::below_one || kind == bound::from_zero_to_one;
            return within ? lost_in_f32(text, value, ends_at_one) : text + " is not a number " + name;
          },
          ""};
}

/// A number from low to high. Unlike CLI::Range it refuses NaN.
inline CLI::Validator between(double low, double high) {
  return {[=](std::string& text) -> std::string {
            const std::optional<double> number = number_in(text);
            if (number && *number >= low && *number <= high) return {};
            char bounds[64];
            std::snprintf(bounds, sizeof bounds, "%g to %g", low, high);
            return text + " is not a number from " + bounds;
          },
          ""};
}

}  // namespace example
#endif
