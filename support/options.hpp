// Checks of options that programs share, for CLI11.
#ifndef EXAMPLE_SUPPORT_OPTIONS_HPP
#define EXAMPLE_SUPPORT_OPTIONS_HPP

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "option_value.hpp"

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

namespace detail {

/// The items of a list, of which several stand in one text, separated by commas. `name` begins what refuses them.
inline std::vector<std::string> items_of(const std::string& name, const std::vector<std::string>& texts) {
  std::vector<std::string> out;
  const auto refuse = [&](const std::string& sentence) { throw CLI::ValidationError(name, sentence); };
  for (const std::string& text : texts)
    for (std::size_t begin = 0, end = 0; begin <= text.size(); begin = end + 1) {
      end = std::min(text.find(',', begin), text.size());
      const std::string item = text.substr(begin, end - begin);
      if (item.empty()) refuse("\"" + text + "\" has an empty item");
      if (item.find_first_of(" \t\r\n") != std::string::npos) refuse("the item \"" + item + "\" has a blank");
      if (std::ranges::find(out, item) != out.end()) refuse(item + " is given twice");
      out.push_back(item);
    }
  return out;
}

}  // namespace detail

/// An option for a list: its items are separated by commas, or the option is given several times. Each of them passes
/// `check`; one that is empty, has a blank or comes twice is refused.
template <class T>
CLI::Option* add_list(CLI::App& app, const std::string& name, std::vector<T>& to, const std::string& description,
                      const CLI::Validator& check = {}) {
  const auto read = [&to, name, check](const std::vector<std::string>& texts) {
    std::vector<T> read;
    for (std::string& item : detail::items_of(name, texts)) {
      if (const std::string wrong = check(item); !wrong.empty()) throw CLI::ValidationError(name, wrong);
      if constexpr (std::is_same_v<T, std::string>) {
        read.push_back(item);
      } else {
        T value{};
        const auto [end, code] = std::from_chars(item.data(), item.data() + item.size(), value);
        if (code != std::errc() || end != item.data() + item.size())
          throw CLI::ValidationError(name, item + " is not a whole number");
        if (std::ranges::find(read, value) != read.end()) throw CLI::ValidationError(name, item + " is given twice");
        read.push_back(value);
      }
    }
    to = std::move(read);
  };
  CLI::Option* const option = app.add_option_function<std::vector<std::string>>(name, read, description);
  return option->default_str(exact_text(to))->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

/// The options of a command line, and what each of them decides.
class option_table {
 public:
  explicit option_table(CLI::App& app) : app_(&app) {}

  /// `value` stays where it is as long as the table.
  template <class T>
  CLI::Option* add(decides what, const std::string& name, T& value, const std::string& description = {}) {
    known_.push_back({name, what, [&value] { return exact_text(value); }});
    if constexpr (std::is_same_v<T, bool>)
      return app_->add_flag(name, value, description);
    else if constexpr (std::is_same_v<T, std::vector<std::string>>)
      return add_list(*app_, name, value, description);
    else
      return app_->add_option(name, value, description);
  }

  /// As they are now.
  std::vector<option_value> values() const {
    std::vector<option_value> out;
    for (const known& one : known_) out.push_back({one.name, one.what, one.text()});
    return out;
  }

 private:
  struct known {
    std::string name;
    decides what;
    std::function<std::string()> text;
  };
  CLI::App* app_;
  std::vector<known> known_;
};

constexpr std::uint64_t most_steps = 1'000'000'000;

/// The learning rate and AdamW of a run, which has a member for each. `clip` names the option for the gradient's norm.
template <class Run>
void add_optimizer_options(option_table& all, Run& o, const std::string& clip) {
  const auto add = [&](const std::string& name, auto& value, const std::string& description, CLI::Validator check) {
    all.add(decides::numbers, name, value, description)->check(std::move(check))->group("Optimizer");
  };
  add("--lr", o.lr, "peak learning rate", real(bound::positive));
  add("--min-lr", o.min_lr, "that the rate falls to", real(bound::from_zero));
  add("--warmup", o.warmup, "steps in which the rate rises", whole(0, most_steps));
  add("--weight-decay", o.weight_decay, "of matrices", real(bound::from_zero));
  add("--beta1", o.beta1, "of the mean of gradients", real(bound::below_one));
  add("--beta2", o.beta2, "of the mean of their squares", real(bound::below_one));
  add("--eps", o.eps, "added to the root of that mean", real(bound::positive));
  add(clip, o.clip, "largest norm of the gradient; 0: any", real(bound::from_zero));
}

}  // namespace example
#endif
