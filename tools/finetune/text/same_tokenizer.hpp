// Whether two models read the same ids.
#ifndef EXAMPLE_FINETUNE_TEXT_SAME_TOKENIZER_HPP
#define EXAMPLE_FINETUNE_TEXT_SAME_TOKENIZER_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "../json_file.hpp"
#include "load_tokenizer.hpp"
#include "tokenizer.hpp"

namespace example::finetune {
namespace detail {

/// Case, contractions, digits, blanks, code, and scripts with and without blanks: what pre-tokenizers split
/// differently.
inline constexpr std::string_view texts_of_all_kinds[] = {
    "The quick brown fox didn't jump over 1234567890 lazy dogs, HE'LL say; twice!",
    "  for (int i = 0; i < 10; ++i)\n\treturn x[i] != 'a' ? -1.5e-3 : y->z;\n\n\n   # end",
    "Zażółć gęślą jaźń, Straße, e\u0301t\u00e9; Ελληνικά και русский язык",
    "日本語の文章と中文句子、한국어 문장. العربية हिन्दी ไทย \U0001F600\U0001F1E9\U0001F1EA"};

/// The tokenizer's file, or an empty path.
inline std::filesystem::path tokenizer_file(const std::filesystem::path& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"})
    if (is_file(folder / name)) return folder / name;
  return {};
}

}  // namespace detail

/// What `other` does not do as `own` does, as the end of a sentence; empty if every id of `own` is spelled as in
/// `other` and both split the same texts into the same ids. `other` may have ids beyond.
inline std::string difference_between(const tokenizer& own, const tokenizer& other) {
  for (std::size_t i = 0; i < own.vocab_size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    const std::string token = own.token_of(id), there = other.token_of(id);
    if (token.empty() || token == there) continue;
    return "the id " + std::to_string(id) + " is " + json_source::quoted(token) + " in the one, and " +
           (there.empty() ? "no token" : json_source::quoted(there)) + " in the other";
  }
  for (const std::string_view text : detail::texts_of_all_kinds) {
    const auto mine = own.encode(text), theirs = other.encode(text);
    if (mine == theirs) continue;
    const auto at = std::ranges::mismatch(mine, theirs).in1;
    return "their vocabularies are the same, but not how they split " + json_source::quoted(text.substr(0, 24)) +
           "..., from its token " + std::to_string(at - mine.begin()) + " on";
  }
  return {};
}

/// Refuses a folder beside the model's whose tokenizer gives ids another meaning. Nothing is known of a folder without
/// a tokenizer, and equal files need not be read.
inline void expect_same_tokenizer(const std::string& option, const std::filesystem::path& other,
                                  const std::filesystem::path& model) {
  const std::filesystem::path own_file = detail::tokenizer_file(model), other_file = detail::tokenizer_file(other);
  if (own_file.empty() || other_file.empty()) return;
  if (own_file.filename() == other_file.filename() && read_file(own_file) == read_file(other_file)) return;
  const std::string difference = difference_between(load_tokenizer(model), load_tokenizer(other));
  if (!difference.empty())
    throw std::runtime_error("the tokenizers of the model in " + model.string() + " and of " + option + " " +
                             other.string() + " differ: " + difference);
}

}  // namespace example::finetune
#endif
