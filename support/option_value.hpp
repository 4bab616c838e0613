// The values of a program's options as text: what a state, or another rank of the run, has to agree with.
#ifndef EXAMPLE_SUPPORT_OPTION_VALUE_HPP
#define EXAMPLE_SUPPORT_OPTION_VALUE_HPP

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace example {

/// What an option decides.
/// numbers  the bits of the steps to come: the same where a run goes on from a state, and on all ranks of a run
/// course   when the run evaluates, saves and ends: the same on all ranks of a run
/// own      files, threads and what is printed: each process has its own
enum class decides { numbers, course, own };

struct option_value {
  std::string name;  ///< as --lora-alpha
  decides what;
  std::string value;  ///< that no other value has
};

inline std::string exact_text(const std::string& value) { return value.empty() ? "none" : value; }

/// With all digits that tell a number from its neighbours.
template <class N>
  requires std::is_arithmetic_v<N>
std::string exact_text(N value) {
  if constexpr (std::is_same_v<N, bool>) {
    return value ? "true" : "false";
  } else {
    char text[32];
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
  }
}

template <class V>
std::string exact_text(const std::optional<V>& value) {
  return value ? exact_text(*value) : "none";
}

template <class V>
std::string exact_text(const std::vector<V>& values) {
  std::string out;
  for (const V& value : values) (out += out.empty() ? "" : ",") += exact_text(value);
  return out;
}

/// The options that decide numbers, as metadata of a state: lora_alpha is that of --lora-alpha.
inline std::map<std::string, std::string> numbers_of(const std::vector<option_value>& options) {
  std::map<std::string, std::string> out;
  for (const option_value& option : options) {
    if (option.what != decides::numbers) continue;
    std::string key = option.name.substr(option.name.find_first_not_of('-'));
    std::ranges::replace(key, '-', '_');
    out[key] = option.value;
  }
  return out;
}

/// FNV-1a: names a text in a tokenizer's cache, in checkpoints, and between ranks.
constexpr std::uint64_t text_hash(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace example
#endif
