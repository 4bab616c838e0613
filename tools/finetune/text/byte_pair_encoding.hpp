// Byte-pair encoding: a word of characters or bytes, merged by rank.
#ifndef EXAMPLE_FINETUNE_TEXT_BYTE_PAIR_ENCODING_HPP
#define EXAMPLE_FINETUNE_TEXT_BYTE_PAIR_ENCODING_HPP

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "unicode_classes.hpp"

namespace example::finetune {

/// The character that stands for each byte in byte-level vocabularies: itself where it is printable.
inline const std::array<char32_t, 256>& byte_characters() {
  static const std::array<char32_t, 256> table = [] {
    std::array<char32_t, 256> out{};
    char32_t next = 256;
    for (char32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      out[b] = printable ? b : next++;
    }
    return out;
  }();
  return table;
}

/// The byte for which a character stands, or nothing.
inline std::optional<unsigned char> byte_of_character(char32_t c) {
  static const std::unordered_map<char32_t, unsigned char> table = [] {
    std::unordered_map<char32_t, unsigned char> out;
    for (std::size_t b = 0; b < 256; ++b) out.emplace(byte_characters()[b], static_cast<unsigned char>(b));
    return out;
  }();
  const auto found = table.find(c);
  return found == table.end() ? std::nullopt : std::optional(found->second);
}

/// The bytes that a token of a byte-level vocabulary stands for, or nothing if one of its characters stands for none.
inline std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string out;
  for (std::size_t at = 0; at < token.size();) {
    const code_point c = decode_utf8(token, at);
    const auto byte = byte_of_character(c.value);
    if (!byte) return std::nullopt;
    out.push_back(static_cast<char>(*byte));
    at += c.bytes;
  }
  return out;
}

/// What two neighbours become, and how early.
struct merge_rule {
  std::uint32_t rank;
  std::int32_t whole;
};

/// Pairs of ids in a table with open addressing, at most half full.
class merge_table {
 public:
  explicit merge_table(std::size_t count = 0) : slots_(std::bit_ceil(2 * count + 2)) {}

  /// A later rule of the same pair replaces the earlier.
  void insert(std::int32_t left, std::int32_t right, merge_rule rule) {
    slot& s = slots_[find(key(left, right))];
    s = {key(left, right), rule};
  }

  const merge_rule* operator()(std::int32_t left, std::int32_t right) const {
    const slot& s = slots_[find(key(left, right))];
    return s.pair == none ? nullptr : &s.rule;
  }

 private:
  static constexpr std::uint64_t none = ~std::uint64_t{0};
  struct slot {
    std::uint64_t pair = none;
    merge_rule rule{};
  };

  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }

  std::size_t find(std::uint64_t pair) const {
    std::uint64_t hash = pair * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
    std::size_t at = hash & (slots_.size() - 1);
    while (slots_[at].pair != none && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  std::vector<slot> slots_;
};

/// Words to ids. Time is proportional to n log n for a word of n characters.
class byte_pair_encoding {
 public:
  struct description {
    std::unordered_map<std::string, std::int32_t> vocabulary;
    merge_table merges;
    std::optional<std::int32_t> unknown;  ///< stands for characters that the vocabulary lacks, which else are dropped
    bool one_unknown = false;             ///< neighbours that are unknown become one
    bool byte_fallback = false;           ///< they become <0x..> tokens instead, if all of them are there
    bool whole_words = false;             ///< a word that is a token is not merged from parts
    bool byte_level = false;              ///< words are bytes, which characters of the vocabulary stand for
  };

  /// What encode() keeps between words.
  struct scratch {
    struct symbol {
      std::int32_t id, previous, next;  ///< neighbours, or -1; id -1: merged into its left neighbour
    };
    struct candidate {
      std::uint32_t rank, at;
      std::int32_t whole;
      bool operator>(const candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
    };
    std::vector<symbol> symbols;
    std::vector<candidate> queue;
  };

  byte_pair_encoding() = default;
  explicit byte_pair_encoding(description what) : what_(std::move(what)) {
    for (std::size_t b = 0; b < 256; ++b) {
      std::string name;
      if (what_.byte_level) {
        append_utf8(name, byte_characters()[b]);
      } else {
        constexpr std::string_view hex = "0123456789ABCDEF";
        name = {'<', '0', 'x', hex[b / 16], hex[b % 16], '>'};
      }
      bytes_[b] = find(name);
    }
    if (what_.byte_level && what_.whole_words)
      for (const auto& [token, id] : what_.vocabulary)
        if (const auto bytes = bytes_of_token(token)) whole_.emplace(*bytes, id);
  }

  /// Appends the ids of a word of valid UTF-8.
  void encode(std::string_view word, std::vector<std::int32_t>& ids, scratch& work) const {
    if (what_.whole_words) {
      const auto& whole = what_.byte_level ? whole_ : what_.vocabulary;
      if (const auto found = whole.find(std::string(word)); found != whole.end()) return ids.push_back(found->second);
    }
    work.symbols.clear();
    if (what_.byte_level)
      for (const char c : word) add_byte(static_cast<unsigned char>(c), work);
    else
      add_characters(word, work);
    merge(work);
    for (const auto& symbol : work.symbols)
      if (symbol.id >= 0) ids.push_back(symbol.id);
  }

 private:
  std::int32_t find(const std::string& token) const {
    const auto found = what_.vocabulary.find(token);
    return found == what_.vocabulary.end() ? -1 : found->second;
  }

  static void add(std::int32_t id, scratch& work) {
    const auto at = static_cast<std::int32_t>(work.symbols.size());
    work.symbols.push_back({id, at - 1, at + 1});
  }

  void add_byte(unsigned char byte, scratch& work) const {
    if (bytes_[byte] >= 0)
      add(bytes_[byte], work);
    else if (what_.unknown && !(what_.one_unknown && !work.symbols.empty() && work.symbols.back().id == *what_.unknown))
      add(*what_.unknown, work);
  }

  void add_characters(std::string_view word, scratch& work) const {
    bool pending = false;  // an unknown that the next known character ends
    std::string token;
    for (std::size_t at = 0, bytes = 0; at < word.size(); at += bytes) {
      bytes = decode_utf8(word, at).bytes;
      token.assign(word.substr(at, bytes));
      if (const std::int32_t id = find(token); id >= 0) {
        if (std::exchange(pending, false)) add(*what_.unknown, work);
        add(id, work);
        continue;
      }
      const auto known = [&](char c) { return bytes_[static_cast<unsigned char>(c)] >= 0; };
      if (what_.byte_fallback && std::ranges::all_of(token, known)) {
        for (const char c : token) add(bytes_[static_cast<unsigned char>(c)], work);
        continue;
      }
      if (!what_.unknown) continue;
      if (pending && !what_.one_unknown) add(*what_.unknown, work);
      pending = true;
    }
    if (pending) add(*what_.unknown, work);
  }

  void propose(std::size_t at, scratch& work) const {
    const auto& left = work.symbols[at];
    if (left.next < 0) return;
    const merge_rule* rule = what_.merges(left.id, work.symbols[static_cast<std::size_t>(left.next)].id);
    if (rule == nullptr) return;
    work.queue.push_back({rule->rank, static_cast<std::uint32_t>(at), rule->whole});
  }

  /// The pair of the lowest rank first, of equal ones the leftmost.
  void merge(scratch& work) const {
    auto& symbols = work.symbols;
    if (symbols.size() < 2) return;
    symbols.back().next = -1;
    work.queue.clear();
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) propose(i, work);
    std::ranges::make_heap(work.queue, std::greater{});
    const auto propose_next = [&](std::int32_t at) {
      const std::size_t before = work.queue.size();
      propose(static_cast<std::size_t>(at), work);
      if (work.queue.size() != before) std::ranges::push_heap(work.queue, std::greater{});
    };
    while (!work.queue.empty()) {
      std::ranges::pop_heap(work.queue, std::greater{});
      const auto top = work.queue.back();
      work.queue.pop_back();
      auto& left = symbols[top.at];
      if (left.id < 0 || left.next < 0) continue;
      auto& right = symbols[static_cast<std::size_t>(left.next)];
      // The neighbours may have changed since.
      const merge_rule* rule = what_.merges(left.id, right.id);
      if (rule == nullptr || rule->whole != top.whole) continue;
      left.id = top.whole;
      left.next = right.next;
      right.id = -1;
      if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = static_cast<std::int32_t>(top.at);
      if (left.previous >= 0) propose_next(left.previous);
      propose_next(static_cast<std::int32_t>(top.at));
    }
  }

  description what_;
  std::array<std::int32_t, 256> bytes_{};
  std::unordered_map<std::string, std::int32_t> whole_;
};

}  // namespace example::finetune
#endif
