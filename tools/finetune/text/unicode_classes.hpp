// Characters: UTF-8, the classes that regular expressions of tokenizers name, and canonical composition (NFC).
#ifndef EXAMPLE_FINETUNE_TEXT_UNICODE_CLASSES_HPP
#define EXAMPLE_FINETUNE_TEXT_UNICODE_CLASSES_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "unicode_tables.hpp"

namespace example::finetune {

/// Bits of what a character is.
enum unicode_class : std::uint8_t {
  letter = 1,   ///< \p{L}
  number = 2,   ///< \p{N}
  space = 4,    ///< \s
  numeric = 8,  ///< what the Digits pre-tokenizer takes for a digit: \p{N} of a later Unicode
  mark = 16,    ///< \p{M}
  upper = 32,   ///< [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
  lower = 64,   ///< [\p{Ll}\p{Lm}\p{Lo}\p{M}]
};

/// A character and how many bytes it has.
struct code_point {
  char32_t value;
  std::size_t bytes;
};

/// The character at `at` of valid UTF-8.
inline code_point decode_utf8(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xe0) return {(first & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if (first < 0xf0) return {(first & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  return {(first & 7) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f), 4};
}

inline void append_utf8(std::string& text, char32_t c) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xc0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xe0 | c >> 12);
    } else {
      put(0xf0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3f));
    }
    put(0x80 | (c >> 6 & 0x3f));
  }
  put(0x80 | (c & 0x3f));
}

/// What stands at `at`: a character of `bytes` bytes, or, if not valid, the longest beginning of one (at least a byte).
struct utf8_step {
  bool valid;
  std::size_t bytes;
};

inline utf8_step step_utf8(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return {true, 1};
  if (first < 0xc2 || first > 0xf4) return {false, 1};
  const std::size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  // No overlong forms, no surrogates, nothing beyond U+10FFFF.
  const unsigned least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < least || byte(1) > most) return {false, 1};
  for (std::size_t i = 2; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return {false, i};
  return {true, length};
}

/// The first byte that begins no character, or npos.
inline std::size_t invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const utf8_step step = step_utf8(text, at);
    if (!step.valid) return at;
    at += step.bytes;
  }
  return std::string_view::npos;
}

/// Valid UTF-8: each longest beginning of a character that is not whole becomes U+FFFD.
inline std::string repair_utf8(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const utf8_step step = step_utf8(text, at);
    out += step.valid ? text.substr(at, step.bytes) : std::string_view("\xef\xbf\xbd");
    at += step.bytes;
  }
  return out;
}

/// The classes of all characters, one byte each.
class unicode_classes {
 public:
  static const unicode_classes& get() {
    static const unicode_classes all;
    return all;
  }

  std::uint8_t operator()(char32_t c) const { return of_[c]; }

 private:
  unicode_classes() : of_(0x110000) {
    auto to = of_.begin();
    for (const std::uint32_t run : detail::unicode_runs) {
      const auto end = to + run / 8;
      std::fill(to, end, detail::unicode_masks[run % 8]);
      to = end;
    }
  }

  std::vector<std::uint8_t> of_;
};

/// Normalization form C: canonical decomposition, order of combining marks, composition.
class nfc_normalizer {
 public:
  static const nfc_normalizer& get() {
    static const nfc_normalizer all;
    return all;
  }

  /// `text` is valid UTF-8.
  std::string operator()(std::string_view text) const {
    // Below U+0300 nothing changes; its first byte is 0xcc.
    if (std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0xcc; }))
      return std::string(text);
    std::vector<marked> all;
    all.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
      const code_point c = decode_utf8(text, at);
      decompose(c.value, all);
      at += c.bytes;
    }
    for (std::size_t i = 0; i < all.size();) {
      std::size_t end = i + 1;
      if (all[i].kind != 0) {
        while (end < all.size() && all[end].kind != 0) ++end;
        if (end - i > 1) sort_marks(all, i, end);
      }
      i = end;
    }
    compose(all);
    std::string out;
    out.reserve(text.size());
    for (const marked& c : all) append_utf8(out, c.value);
    return out;
  }

 private:
  struct marked {
    char32_t value;
    std::uint32_t kind;  ///< canonical combining class; 0: a starter
  };
  struct parts {
    char32_t first, second;
  };
  static constexpr char32_t syllables = 0xac00, leads = 0x1100, vowels = 0x1161, trails = 0x11a7;
  static constexpr char32_t vowel_count = 21, trail_count = 28, syllable_count = 11172;

  nfc_normalizer() {
    char32_t c = 0;
    const auto& triples = detail::unicode_decompositions;
    for (std::size_t i = 0; i < std::size(triples); i += 3) {
      c += triples[i] / 2;
      parts_.emplace(c, parts{triples[i + 1], triples[i + 2]});
      if (triples[i] % 2 != 0) whole_.emplace(key(triples[i + 1], triples[i + 2]), c);
    }
    c = 0;
    const auto& pairs = detail::unicode_combining;
    for (std::size_t i = 0; i < std::size(pairs); i += 2) kinds_.emplace(c += pairs[i], pairs[i + 1]);
  }

  static std::uint64_t key(char32_t first, char32_t second) { return std::uint64_t{first} << 32 | second; }

  /// By their classes; those of one class stay in their order.
  static void sort_marks(std::vector<marked>& all, std::size_t begin, std::size_t end) {
    std::vector<std::pair<std::uint32_t, std::size_t>> order;
    for (std::size_t i = begin; i < end; ++i) order.emplace_back(all[i].kind, i);
    std::ranges::sort(order);
    std::vector<marked> sorted;
    for (const auto& of : order) sorted.push_back(all[of.second]);
    std::ranges::copy(sorted, all.begin() + static_cast<std::ptrdiff_t>(begin));
  }

  void decompose(char32_t c, std::vector<marked>& out) const {
    if (c < 0xc0) return out.push_back({c, 0});
    if (c - syllables < syllable_count) {
      const char32_t at = c - syllables;
      out.push_back({leads + at / (vowel_count * trail_count), 0});
      out.push_back({vowels + at / trail_count % vowel_count, 0});
      if (at % trail_count != 0) out.push_back({trails + at % trail_count, 0});
      return;
    }
    const auto found = parts_.find(c);
    if (found == parts_.end()) {
      const auto kind = kinds_.find(c);
      return out.push_back({c, kind == kinds_.end() ? 0 : kind->second});
    }
    decompose(found->second.first, out);
    if (found->second.second != 0) decompose(found->second.second, out);
  }

  /// The character that the two compose to, or 0.
  char32_t composed(char32_t first, char32_t second) const {
    if (first - leads < 19 && second - vowels < vowel_count)
      return syllables + ((first - leads) * vowel_count + (second - vowels)) * trail_count;
    if (first - syllables < syllable_count && (first - syllables) % trail_count == 0 && second > trails &&
        second < trails + trail_count)
      return first + (second - trails);
    const auto found = whole_.find(key(first, second));
    return found == whole_.end() ? 0 : found->second;
  }

  void compose(std::vector<marked>& all) const {
    std::size_t to = 0, starter = all.size();  // no starter yet
    for (std::size_t from = 0; from < all.size(); ++from) {
      const marked c = all[from];
      // Blocked: a mark of the same or a higher class, or a starter, stands between.
      const bool adjacent = starter < to && starter + 1 == to;
      const bool open = starter < to && (adjacent || (all[to - 1].kind < c.kind && all[to - 1].kind != 0));
      const char32_t whole = open ? composed(all[starter].value, c.value) : 0;
      if (whole != 0) {
        all[starter].value = whole;
        continue;
      }
      if (c.kind == 0) starter = to;
      all[to++] = c;
    }
    all.resize(to);
  }

  std::unordered_map<char32_t, parts> parts_;
  std::unordered_map<std::uint64_t, char32_t> whole_;
  std::unordered_map<char32_t, std::uint32_t> kinds_;
};

}  // namespace example::finetune
#endif
