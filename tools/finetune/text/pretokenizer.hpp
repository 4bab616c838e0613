// The steps of tokenizer.json between a text and the words that merges are applied to.
#ifndef EXAMPLE_FINETUNE_TEXT_PRETOKENIZER_HPP
#define EXAMPLE_FINETUNE_TEXT_PRETOKENIZER_HPP

#include <algorithm>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unicode_classes.hpp"
#include "word_patterns.hpp"

namespace example::finetune {

/// Every `from` becomes `to`.
inline std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t at = 0;
  for (std::size_t found = 0; !from.empty() && (found = text.find(from, at)) != std::string_view::npos;
       at = found + from.size()) {
    out += text.substr(at, found - at);
    out += to;
  }
  out += text.substr(at);
  return out;
}

/// One step of normalization.
struct normalizer_step {
  enum class kind { nfc, prepend, replace } what;
  std::string from, to;  ///< replace: from and to; prepend: to
};

inline std::string normalize(const std::vector<normalizer_step>& steps, std::string_view text) {
  std::string out(text);
  for (const normalizer_step& step : steps) {
    switch (step.what) {
      case normalizer_step::kind::nfc: out = nfc_normalizer::get()(out); break;
      case normalizer_step::kind::prepend: out = out.empty() ? out : step.to + out; break;
      case normalizer_step::kind::replace: out = replace_all(out, step.from, step.to); break;
    }
  }
  return out;
}

/// A part of a text, and whether it stands at the text's begin.
struct text_piece {
  std::string_view text;
  bool first;
};

/// What happens to the separators that a split finds.
enum class separators { removed, isolated, with_previous, with_next, contiguous };

/// Parts of a text, in order, each a separator or what lies between two.
struct split_part {
  std::size_t begin, end;
  bool separator;
};

/// Joins separators to their neighbours; what is left is emitted in order.
inline std::vector<split_part> join_separators(const std::vector<split_part>& parts, separators how) {
  if (how == separators::isolated) return parts;
  std::vector<split_part> out;
  bool before = false;
  if (how == separators::with_next) {
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (part->separator && !before && !out.empty())
        out.back().begin = part->begin;
      else
        out.push_back(*part);
      before = part->separator;
    }
    std::reverse(out.begin(), out.end());
    return out;
  }
  for (const split_part& part : parts) {
    const bool joins = how == separators::contiguous ? part.separator == before : part.separator && !before;
    if (how == separators::removed) {
      if (!part.separator) out.push_back(part);
    } else if (joins && !out.empty()) {
      out.back().end = part.end;
    } else {
      out.push_back(part);
    }
    before = part.separator;
  }
  return out;
}

/// One step of pre-tokenization.
struct pretokenizer_step {
  enum class kind { pattern, literal, digits, metaspace, bytes } what;
  const word_pattern* pattern = nullptr;        ///< pattern; bytes: GPT-2's, or null for no split
  std::string literal = {};                     ///< literal: the separator; metaspace: what stands for a blank
  separators behaviour = separators::isolated;  ///< pattern, literal, digits
  bool inverted = false;                        ///< what is found is kept, the rest is the separator
  enum class prefix { never, first, always } put = prefix::never;  ///< metaspace, bytes: a blank before the text
  bool split = true;                                               ///< metaspace
};

/// Texts in parts. A step that changes text owns the changed one.
class pretokenizer {
 public:
  explicit pretokenizer(std::vector<pretokenizer_step> steps = {}) : steps_(std::move(steps)) {}

  /// Calls word(text) for each word of a piece. Without steps the piece is one word.
  template <class Word>
  void operator()(text_piece piece, Word&& word) const {
    if (piece.text.empty()) return;
    if (steps_.size() == 1 && steps_[0].what == pretokenizer_step::kind::bytes && steps_[0].pattern != nullptr &&
        steps_[0].put == pretokenizer_step::prefix::never)
      return each_match(*steps_[0].pattern, piece.text,
                        [&](std::size_t begin, std::size_t end) { word(piece.text.substr(begin, end - begin)); });
    std::deque<std::string> owned;
    std::vector<text_piece> pieces{piece}, next;
    for (const pretokenizer_step& step : steps_) {
      next.clear();
      for (const text_piece& one : pieces) apply(step, one, owned, next);
      pieces.swap(next);
    }
    for (const text_piece& one : pieces) word(one.text);
  }

 private:
  template <class Emit>
  static void each_match(const word_pattern& pattern, std::string_view text, Emit&& emit) {
    const word_matcher match(pattern, text);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = match.end_of(at);
      emit(at, end);
      at = end;
    }
  }

  static void emit(text_piece from, const std::vector<split_part>& parts, std::vector<text_piece>& out) {
    for (const split_part& part : parts)
      if (part.begin != part.end)
        out.push_back({from.text.substr(part.begin, part.end - part.begin), from.first && part.begin == 0});
  }

  static std::vector<split_part> by_literal(std::string_view text, std::string_view literal) {
    std::vector<split_part> parts;
    std::size_t at = 0;
    for (std::size_t found = 0; (found = text.find(literal, at)) != std::string_view::npos;
         at = found + literal.size()) {
      if (found != at) parts.push_back({at, found, false});
      parts.push_back({found, found + literal.size(), true});
    }
    if (at != text.size()) parts.push_back({at, text.size(), false});
    return parts;
  }

  static std::vector<split_part> by_digits(std::string_view text) {
    const unicode_classes& classes = unicode_classes::get();
    std::vector<split_part> parts;
    for (std::size_t at = 0; at < text.size();) {
      const code_point c = decode_utf8(text, at);
      if ((classes(c.value) & numeric) != 0)
        parts.push_back({at, at + c.bytes, true});
      else if (!parts.empty() && !parts.back().separator)
        parts.back().end = at + c.bytes;
      else
        parts.push_back({at, at + c.bytes, false});
      at += c.bytes;
    }
    return parts;
  }

  static void by_pattern(const word_pattern& pattern, text_piece piece, std::vector<text_piece>& out) {
    each_match(pattern, piece.text, [&](std::size_t begin, std::size_t end) {
      out.push_back({piece.text.substr(begin, end - begin), piece.first && begin == 0});
    });
  }

  static void apply(const pretokenizer_step& step, text_piece piece, std::deque<std::string>& owned,
                    std::vector<text_piece>& out) {
    using kind = pretokenizer_step::kind;
    using prefix = pretokenizer_step::prefix;
    std::vector<split_part> parts;
    switch (step.what) {
      case kind::bytes:
        if (step.put != prefix::never && piece.text.front() != ' ')
          piece.text = owned.emplace_back(" " + std::string(piece.text));
        if (step.pattern != nullptr) return by_pattern(*step.pattern, piece, out);
        return out.push_back(piece);
      case kind::pattern: return by_pattern(*step.pattern, piece, out);
      case kind::metaspace: {
        std::string& text = owned.emplace_back(replace_all(piece.text, " ", step.literal));
        const bool wanted = step.put == prefix::always || (step.put == prefix::first && piece.first);
        if (wanted && !text.starts_with(step.literal)) text.insert(0, step.literal);
        piece.text = text;
        if (!step.split) return out.push_back(piece);
        return emit(piece, join_separators(by_literal(piece.text, step.literal), separators::with_next), out);
      }
      case kind::literal: parts = by_literal(piece.text, step.literal); break;
      case kind::digits: parts = by_digits(piece.text); break;
    }
    if (step.inverted)
      for (split_part& part : parts) part.separator = !part.separator;
    emit(piece, join_separators(parts, step.behaviour), out);
  }

  std::vector<pretokenizer_step> steps_;
};

}  // namespace example::finetune
#endif
