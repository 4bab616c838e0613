// The regular expressions by which byte-level tokenizers split text into words, matched by hand.
#ifndef EXAMPLE_FINETUNE_TEXT_WORD_PATTERNS_HPP
#define EXAMPLE_FINETUNE_TEXT_WORD_PATTERNS_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "unicode_classes.hpp"

namespace example::finetune {

/// What a known regular expression consists of. Its alternatives are tried in the order of the members.
struct word_pattern {
  enum class contraction { none, exact, any_case, behind_words };
  enum class word { behind_space, led, led_with_marks, led_by_case };

  std::string_view regex;
  contraction contractions;  ///< 's|'t|'re|'ve|'m|'ll|'d: first of all, or as an optional end of words
  word words;                ///<  ?\p{L}+, or [^\r\n\p{L}\p{N}]?\p{L}+ (with \p{M}, or capitals before small letters)
  std::size_t digits;        ///< most of one piece; 0:  ?\p{N}+
  std::string_view tail;     ///< what may follow  ?[^\s\p{L}\p{N}]+ any number of times
  bool newlines = true;      ///< \s*[\r\n]+ comes before \s+(?!\S)|\s+
};

// clang-format off
inline constexpr std::array<word_pattern, 7> known_word_patterns{{
    // GPT-2, and the ByteLevel pre-tokenizer.
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     word_pattern::contraction::exact, word_pattern::word::behind_space, 0, "", false},
    // Llama 3, and others that follow cl100k.
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     word_pattern::contraction::any_case, word_pattern::word::led, 3, "\r\n"},
    // Qwen2, Qwen2.5, Qwen3.
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     word_pattern::contraction::any_case, word_pattern::word::led, 1, "\r\n"},
    // Qwen with marks as parts of words.
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     word_pattern::contraction::any_case, word_pattern::word::led_with_marks, 1, "\r\n"},
    // Mistral since Nemo.
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     word_pattern::contraction::none, word_pattern::word::led_by_case, 1, "\r\n/"},
    // o200k, with which Llama 4 and gpt-oss were made.
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     word_pattern::contraction::behind_words, word_pattern::word::led_by_case, 3, "\r\n/"},
    // The same with single digits.
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     word_pattern::contraction::behind_words, word_pattern::word::led_by_case, 1, "\r\n/"},
}};
// clang-format on

/// The pattern with this expression, or null.
inline const word_pattern* find_word_pattern(std::string_view regex) {
  for (const word_pattern& pattern : known_word_patterns)
    if (pattern.regex == regex) return &pattern;
  return nullptr;
}

/// Matches one pattern along a text of valid UTF-8. The matches lie one behind the other and cover it.
class word_matcher {
 public:
  word_matcher(const word_pattern& pattern, std::string_view text)
      : pattern_(&pattern), text_(text), classes_(&unicode_classes::get()) {
    if (pattern.words == word_pattern::word::led_with_marks) letters_ = letter | mark;
    others_ = static_cast<std::uint8_t>(letters_ | number | space);
  }

  /// The end of the match that begins at `at`, which lies inside the text.
  std::size_t end_of(std::size_t at) const {
    std::size_t end = 0;
    const bool first = pattern_->contractions == word_pattern::contraction::exact ||
                       pattern_->contractions == word_pattern::contraction::any_case;
    if (first && (end = contraction(at)) != 0) return end;
    if ((end = word(at)) != 0) return end;
    if ((end = digits(at)) != 0) return end;
    const std::size_t start = skip_space(at);
    if ((end = run_without(start, others_)) != start) {
      while (end < text_.size() && pattern_->tail.find(text_[end]) != std::string_view::npos) ++end;
      return end;
    }
    return blanks(at);
  }

 private:
  std::uint8_t class_at(std::size_t at, std::size_t& bytes) const {
    const auto first = static_cast<unsigned char>(text_[at]);
    bytes = 1;
    if (first < 0x80) return (*classes_)(first);
    const code_point c = decode_utf8(text_, at);
    bytes = c.bytes;
    return (*classes_)(c.value);
  }

  /// Past all characters that are of one of these classes.
  std::size_t run_of(std::size_t at, unsigned mask) const {
    for (std::size_t bytes = 0; at < text_.size() && (class_at(at, bytes) & mask) != 0;) at += bytes;
    return at;
  }
  std::size_t run_without(std::size_t at, unsigned mask) const {
    for (std::size_t bytes = 0; at < text_.size() && (class_at(at, bytes) & mask) == 0;) at += bytes;
    return at;
  }

  std::size_t skip_space(std::size_t at) const { return at < text_.size() && text_[at] == ' ' ? at + 1 : at; }

  bool newline_at(std::size_t at) const { return text_[at] == '\n' || text_[at] == '\r'; }

  /// The end of an apostrophe and its letters, or 0.
  std::size_t contraction(std::size_t at) const {
    if (at + 1 >= text_.size() || text_[at] != '\'') return 0;
    const bool exact = pattern_->contractions == word_pattern::contraction::exact;
    const auto small = [&](std::size_t i) {
      const char c = i < text_.size() ? text_[i] : '\0';
      return !exact && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    const char a = small(at + 1), b = small(at + 2);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
    if (((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l')) return at + 3;
    // Without regard to case, the long s is an s.
    return !exact && text_.substr(at + 1, 2) == "\xc5\xbf" ? at + 3 : 0;
  }

  std::size_t word(std::size_t at) const {
    if (pattern_->words == word_pattern::word::behind_space) {
      const std::size_t start = skip_space(at), end = run_of(start, letters_);
      return end == start ? 0 : end;
    }
    std::size_t bytes = 0;
    const bool leads = (class_at(at, bytes) & (letter | number)) == 0 && !newline_at(at);
    if (pattern_->words == word_pattern::word::led_by_case) {
      std::size_t end = leads ? small_word(at + bytes) : 0;
      if (end == 0) end = small_word(at);
      if (end == 0 && leads) end = large_word(at + bytes);
      if (end == 0) end = large_word(at);
      if (end == 0 || pattern_->contractions != word_pattern::contraction::behind_words) return end;
      const std::size_t contracted = contraction(end);
      return contracted == 0 ? end : contracted;
    }
    for (const std::size_t start : {leads ? at + bytes : at, at})
      if (const std::size_t end = run_of(start, letters_); end != start) return end;
    return 0;
  }

  /// upper* lower+ as a regular expression matches it, or 0: what follows the capitals, or, if no small letter does,
  /// the last of them that has no case.
  std::size_t small_word(std::size_t at) const {
    std::size_t last = 0, end = at;
    for (std::size_t bytes = 0; end < text_.size(); end += bytes) {
      const std::uint8_t kind = class_at(end, bytes);
      if ((kind & upper) == 0) break;
      if ((kind & lower) != 0) last = end + bytes;
    }
    const std::size_t small = run_of(end, lower);
    return small != end ? small : last;
  }

  /// upper+ lower*, or 0.
  std::size_t large_word(std::size_t at) const {
    const std::size_t end = run_of(at, upper);
    return end == at ? 0 : run_of(end, lower);
  }

  std::size_t digits(std::size_t at) const {
    if (pattern_->digits == 0) {
      const std::size_t start = skip_space(at), end = run_of(start, number);
      return end == start ? 0 : end;
    }
    std::size_t end = at, bytes = 0;
    for (std::size_t i = 0; i < pattern_->digits && end < text_.size() && (class_at(end, bytes) & number) != 0; ++i)
      end += bytes;
    return end == at ? 0 : end;
  }

  /// White space: up to its last newline, or all but its last character if something follows it, or all.
  std::size_t blanks(std::size_t at) const {
    std::size_t end = at, last = at, newline = 0;
    for (std::size_t bytes = 0; end < text_.size() && (class_at(end, bytes) & space) != 0; end += bytes) {
      last = end;
      if (newline_at(end)) newline = end + 1;
    }
    if (pattern_->newlines && newline != 0) return newline;
    if (end == at) return at + decode_utf8(text_, at).bytes;  // no pattern leaves a character out
    return end < text_.size() && last != at ? last : end;
  }

  const word_pattern* pattern_;
  std::string_view text_;
  const unicode_classes* classes_;
  std::uint8_t letters_ = letter;
  std::uint8_t others_ = 0;
};

}  // namespace example::finetune
#endif
