// Text to ids and back, whatever file the tokenizer came from. load_tokenizer.hpp makes one.
#ifndef EXAMPLE_FINETUNE_TEXT_TOKENIZER_HPP
#define EXAMPLE_FINETUNE_TEXT_TOKENIZER_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unicode_classes.hpp"

namespace example::finetune {

/// Whether special tokens appear in a decoded text.
enum class specials { kept, dropped };

/// Whether encode() puts the ids around a text that the tokenizer's own template has (bos, eos).
enum class text_ends { bare, marked };

/// What a kind of tokenizer has to do. Calls may run concurrently.
class tokenizer_model {
 public:
  virtual ~tokenizer_model() = default;
  /// Appends the ids of a text of valid UTF-8.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  virtual std::string decode(std::span<const std::int32_t> ids, specials special) const = 0;
  /// The id of a token as the vocabulary spells it, or nothing.
  virtual std::optional<std::int32_t> id_of(std::string_view token) const = 0;
  /// A token as the vocabulary spells it; empty where the id stands for none.
  virtual std::string token_of(std::int32_t id) const = 0;
  /// One more than the largest id.
  virtual std::size_t vocab_size() const = 0;
};

/// Ids with a meaning; not every tokenizer has each.
struct special_ids {
  std::optional<std::int32_t> bos, eos, pad;
  std::vector<std::int32_t> prefix = {}, suffix = {};  ///< what the template puts around a text
};

class tokenizer {
 public:
  tokenizer(std::shared_ptr<const tokenizer_model> model, special_ids ids)
      : model_(std::move(model)), ids_(std::move(ids)) {}

  /// Throws std::runtime_error if the text is not UTF-8. Special tokens that the text spells out are recognised, but
  /// for those of a SentencePiece model, whose library takes them for text.
  std::vector<std::int32_t> encode(std::string_view text, text_ends ends = text_ends::bare) const {
    if (const std::size_t at = invalid_utf8(text); at != std::string_view::npos)
      throw std::runtime_error("a text is not valid UTF-8: byte " + std::to_string(at) + " begins no character");
    std::vector<std::int32_t> out;
    if (ends == text_ends::marked) out = ids_.prefix;
    model_->encode(text, out);
    if (ends == text_ends::marked) out.insert(out.end(), ids_.suffix.begin(), ids_.suffix.end());
    return out;
  }

  /// Ids that stand for no token are left out.
  std::string decode(std::span<const std::int32_t> ids, specials special = specials::kept) const {
    return model_->decode(ids, special);
  }

  std::optional<std::int32_t> bos() const { return ids_.bos; }
  std::optional<std::int32_t> eos() const { return ids_.eos; }
  std::optional<std::int32_t> pad() const { return ids_.pad; }
  const std::vector<std::int32_t>& prefix() const { return ids_.prefix; }
  const std::vector<std::int32_t>& suffix() const { return ids_.suffix; }
  std::optional<std::int32_t> id_of(std::string_view token) const { return model_->id_of(token); }
  std::string token_of(std::int32_t id) const { return model_->token_of(id); }
  std::size_t vocab_size() const { return model_->vocab_size(); }

 private:
  std::shared_ptr<const tokenizer_model> model_;
  special_ids ids_;
};

}  // namespace example::finetune
#endif
