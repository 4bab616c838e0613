// Tokens that are found in the text itself, before it is split into words: special ones and others that were added.
#ifndef EXAMPLE_FINETUNE_TEXT_ADDED_TOKENS_HPP
#define EXAMPLE_FINETUNE_TEXT_ADDED_TOKENS_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unicode_classes.hpp"

namespace example::finetune {

/// A token as it stands in texts.
struct added_token {
  std::string content;
  std::int32_t id;
  bool special = false;                            ///< left out of decoded texts on request
  bool normalized = false;                         ///< looked for behind the normalizer
  bool strips_left = false, strips_right = false;  ///< white space beside it belongs to it
};

/// Finds tokens from left to right; of several at one place, the longest.
class added_token_finder {
 public:
  void add(added_token token) {
    if (token.content.empty()) return;
    auto& list = by_first_[static_cast<unsigned char>(token.content[0])];
    const auto shorter = [&](const added_token& other) { return other.content.size() < token.content.size(); };
    list.insert(std::ranges::find_if(list, shorter), std::move(token));
    any_ = true;
  }

  /// Calls plain(text, begin) for what lies between tokens and found(id) for each token, in order.
  template <class Plain, class Found>
  void operator()(std::string_view text, Plain&& plain, Found&& found) const {
    std::size_t done = 0;
    for (std::size_t at = 0; any_ && at < text.size();) {
      const added_token* token = match(text.substr(at));
      if (token == nullptr) {
        ++at;
        continue;
      }
      std::size_t begin = at;
      at += token->content.size();
      if (token->strips_left) begin = std::max(blanks_before(text, begin), done);
      const std::size_t end = token->strips_right ? blanks_behind(text, at) : at;
      if (done < begin) plain(text.substr(done, begin - done), done);
      found(token->id);
      done = end;
    }
    if (done < text.size()) plain(text.substr(done), done);
  }

 private:
  const added_token* match(std::string_view text) const {
    for (const added_token& token : by_first_[static_cast<unsigned char>(text[0])])
      if (text.starts_with(token.content)) return &token;
    return nullptr;
  }

  static std::size_t blanks_behind(std::string_view text, std::size_t at) {
    while (at < text.size()) {
      const code_point c = decode_utf8(text, at);
      if ((unicode_classes::get()(c.value) & space) == 0) break;
      at += c.bytes;
    }
    return at;
  }

  static std::size_t blanks_before(std::string_view text, std::size_t at) {
    while (at > 0) {
      std::size_t first = at - 1;
      while ((static_cast<unsigned char>(text[first]) & 0xc0) == 0x80) --first;
      if ((unicode_classes::get()(decode_utf8(text, first).value) & space) == 0) break;
      at = first;
    }
    return at;
  }

  std::array<std::vector<added_token>, 256> by_first_;
  bool any_ = false;
};

}  // namespace example::finetune
#endif
