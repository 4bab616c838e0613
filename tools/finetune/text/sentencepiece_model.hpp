// tokenizer.model, read by the SentencePiece library.
#ifndef EXAMPLE_FINETUNE_TEXT_SENTENCEPIECE_MODEL_HPP
#define EXAMPLE_FINETUNE_TEXT_SENTENCEPIECE_MODEL_HPP

#include <sentencepiece_processor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer.hpp"

namespace example::finetune {

class sentencepiece_tokenizer : public tokenizer_model {
 public:
  /// `file` is what tokenizer.model holds.
  sentencepiece_tokenizer(const std::filesystem::path& path, const std::string& file) {
    const auto status = file.empty() ? sentencepiece::util::Status(sentencepiece::util::StatusCode::kDataLoss, "empty")
                                     : pieces_.LoadFromSerializedProto(absl::string_view(file.data(), file.size()));
    if (!status.ok() || pieces_.GetPieceSize() <= 0)
      throw std::runtime_error("the tokenizer " + path.string() + " is no model of SentencePiece");
  }

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    std::vector<int> out;
    check(pieces_.Encode(absl::string_view(text.data(), text.size()), &out));
    ids.insert(ids.end(), out.begin(), out.end());
  }

  std::string decode(std::span<const std::int32_t> ids, specials special) const override {
    // SentencePiece spells no control tokens: between two runs of others they are put in as they are named.
    std::string out, text;
    std::vector<int> run;
    const auto flush = [&] {
      if (run.empty()) return;
      check(pieces_.Decode(run, &text));
      out += text;
      run.clear();
    };
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= pieces_.GetPieceSize()) continue;
      if (!pieces_.IsControl(id)) {
        run.push_back(id);
      } else if (special == specials::kept) {
        flush();
        out += pieces_.IdToPiece(id);
      }
    }
    flush();
    return out;
  }

  std::optional<std::int32_t> id_of(std::string_view token) const override {
    const int id = pieces_.PieceToId(absl::string_view(token.data(), token.size()));
    if (id < 0 || id >= pieces_.GetPieceSize() || pieces_.IdToPiece(id) != token) return std::nullopt;
    return id;
  }

  std::string token_of(std::int32_t id) const override {
    return id >= 0 && id < pieces_.GetPieceSize() ? pieces_.IdToPiece(id) : std::string();
  }

  std::size_t vocab_size() const override { return static_cast<std::size_t>(pieces_.GetPieceSize()); }

  std::optional<std::int32_t> bos() const { return optional(pieces_.bos_id()); }
  std::optional<std::int32_t> eos() const { return optional(pieces_.eos_id()); }
  std::optional<std::int32_t> pad() const { return optional(pieces_.pad_id()); }

 private:
  static std::optional<std::int32_t> optional(int id) { return id < 0 ? std::nullopt : std::optional(id); }

  static void check(const sentencepiece::util::Status& status) {
    if (!status.ok()) throw std::runtime_error("SentencePiece: " + status.ToString());
  }

  sentencepiece::SentencePieceProcessor pieces_;
};

}  // namespace example::finetune
#endif
