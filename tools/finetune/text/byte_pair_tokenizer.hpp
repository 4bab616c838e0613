// A tokenizer of byte pairs: its stages, one behind the other.
#ifndef EXAMPLE_FINETUNE_TEXT_BYTE_PAIR_TOKENIZER_HPP
#define EXAMPLE_FINETUNE_TEXT_BYTE_PAIR_TOKENIZER_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "added_tokens.hpp"
#include "byte_pair_encoding.hpp"
#include "decoder.hpp"
#include "pretokenizer.hpp"
#include "tokenizer.hpp"

namespace example::finetune {

/// The stages of a tokenizer.json, run one behind the other.
class byte_pair_tokenizer : public tokenizer_model {
 public:
  struct stages {
    std::vector<normalizer_step> normalizer;
    pretokenizer words;
    byte_pair_encoding pairs;
    std::optional<std::vector<decoder_step>> decoder;  ///< without one, decoded tokens are joined by blanks
    added_token_finder raw, normalized;                ///< tokens looked for before and behind the normalizer
    std::vector<std::string> tokens;                   ///< by id; an unused id has an empty one
    std::unordered_map<std::string, std::int32_t> ids;
    std::unordered_set<std::int32_t> special;
  };

  explicit byte_pair_tokenizer(stages parts) : parts_(std::move(parts)) {}

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    byte_pair_encoding::scratch work;
    const auto token = [&](std::int32_t id) { ids.push_back(id); };
    const auto word = [&](std::string_view one) { parts_.pairs.encode(one, ids, work); };
    parts_.raw(
        text,
        [&](std::string_view plain, std::size_t begin) {
          std::string changed;
          if (!parts_.normalizer.empty()) {
            changed = normalize(parts_.normalizer, plain);
            plain = changed;
          }
          parts_.normalized(
              plain,
              [&](std::string_view part, std::size_t at) {
                parts_.words({part, begin + at == 0}, word);
              },
              token);
        },
        token);
  }

  std::string decode(std::span<const std::int32_t> ids, specials special) const override {
    std::vector<std::string> tokens;
    for (const std::int32_t id : ids) {
      if (id < 0 || static_cast<std::size_t>(id) >= parts_.tokens.size()) continue;
      if (special == specials::dropped && parts_.special.contains(id)) continue;
      if (const std::string& token = parts_.tokens[static_cast<std::size_t>(id)]; !token.empty())
        tokens.push_back(token);
    }
    if (parts_.decoder) return finetune::decode(*parts_.decoder, std::move(tokens));
    for (std::size_t i = 1; i < tokens.size(); ++i) tokens[i].insert(0, " ");
    return detail::concatenated(tokens);
  }

  std::optional<std::int32_t> id_of(std::string_view token) const override {
    const auto found = parts_.ids.find(std::string(token));
    return found == parts_.ids.end() ? std::nullopt : std::optional(found->second);
  }

  std::string token_of(std::int32_t id) const override {
    return id >= 0 && static_cast<std::size_t>(id) < parts_.tokens.size() ? parts_.tokens[static_cast<std::size_t>(id)]
                                                                          : std::string();
  }

  std::size_t vocab_size() const override { return parts_.tokens.size(); }

 private:
  stages parts_;
};

}  // namespace example::finetune
#endif
