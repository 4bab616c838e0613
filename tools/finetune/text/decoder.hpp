// Tokens back to text, by the steps of tokenizer.json.
#ifndef EXAMPLE_FINETUNE_TEXT_DECODER_HPP
#define EXAMPLE_FINETUNE_TEXT_DECODER_HPP

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "byte_pair_encoding.hpp"
#include "pretokenizer.hpp"
#include "unicode_classes.hpp"

namespace example::finetune {

/// One step: it takes the tokens of the step before.
struct decoder_step {
  enum class kind { byte_level, byte_fallback, fuse, replace, strip, metaspace } what;
  std::string from = {}, to = {};             ///< replace; strip: the character; metaspace: what stands for a blank
  std::size_t most_left = 0, most_right = 0;  ///< strip
  bool drops_first = false;                   ///< metaspace: the first token's
};

namespace detail {

inline std::string concatenated(const std::vector<std::string>& tokens) {
  std::string out;
  for (const std::string& token : tokens) out += token;
  return out;
}

inline std::vector<std::string> from_byte_level(const std::vector<std::string>& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += bytes_of_token(token).value_or(token);
  return {repair_utf8(bytes)};
}

/// The byte of <0x..>.
inline std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : token.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9', small = c >= 'a' && c <= 'f', large = c >= 'A' && c <= 'F';
    if (!digit && !small && !large) return std::nullopt;
    value = 16 * value + static_cast<unsigned>(digit ? c - '0' : small ? c - 'a' + 10 : c - 'A' + 10);
  }
  return static_cast<char>(static_cast<unsigned char>(value));
}

/// Neighbours become the characters that they spell, or one U+FFFD each.
inline std::vector<std::string> from_byte_fallback(const std::vector<std::string>& tokens) {
  std::vector<std::string> out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (invalid_utf8(bytes) == std::string_view::npos)
      out.push_back(bytes);
    else
      out.insert(out.end(), bytes.size(), "\xef\xbf\xbd");
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const auto byte = fallback_byte(token)) {
      bytes.push_back(*byte);
      continue;
    }
    flush();
    out.push_back(token);
  }
  flush();
  return out;
}

inline std::string stripped(std::string_view token, const decoder_step& step) {
  for (std::size_t i = 0; i < step.most_left && token.starts_with(step.from); ++i)
    token.remove_prefix(step.from.size());
  for (std::size_t i = 0; i < step.most_right && token.ends_with(step.from); ++i) token.remove_suffix(step.from.size());
  return std::string(token);
}

}  // namespace detail

inline std::string decode(const std::vector<decoder_step>& steps, std::vector<std::string> tokens) {
  using kind = decoder_step::kind;
  for (const decoder_step& step : steps) {
    switch (step.what) {
      case kind::byte_level: tokens = detail::from_byte_level(tokens); break;
      case kind::byte_fallback: tokens = detail::from_byte_fallback(tokens); break;
      case kind::fuse: tokens = {detail::concatenated(tokens)}; break;
      case kind::replace:
        for (std::string& token : tokens) token = replace_all(token, step.from, step.to);
        break;
      case kind::strip:
        for (std::string& token : tokens) token = detail::stripped(token, step);
        break;
      case kind::metaspace:
        for (std::size_t i = 0; i < tokens.size(); ++i)
          tokens[i] = replace_all(tokens[i], step.from, i == 0 && step.drops_first ? "" : " ");
        break;
    }
  }
  return detail::concatenated(tokens);
}

}  // namespace example::finetune
#endif
