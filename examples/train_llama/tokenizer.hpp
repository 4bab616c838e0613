#ifndef EXAMPLE_TRAIN_LLAMA_TOKENIZER_HPP
#define EXAMPLE_TRAIN_LLAMA_TOKENIZER_HPP

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "../../support/output_file.hpp"
#include "text.hpp"

namespace example {

/// Where a trained tokenizer is kept between runs unless --cache-dir says otherwise.
inline std::filesystem::path default_cache_dir() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) return std::filesystem::path(cache) / "tigon";
  if (const char* home = std::getenv("HOME"); home && *home) return std::filesystem::path(home) / ".cache" / "tigon";
  return std::filesystem::temp_directory_path() / "tigon";
}

/// Text to ids and back: BPE pieces by SentencePiece, or the bytes themselves. UTF-8 comes back unchanged
/// (but for U+2581, SentencePiece's sign for a blank). A line's end is an id of its own.
class tokenizer {
 public:
  static tokenizer bytes() { return tokenizer(256, "bytes"); }

  /// For random ids, which stand for no text: only vocab() and name() may be called.
  static tokenizer none(std::size_t vocab) { return tokenizer(static_cast<int>(vocab), "none"); }

  /// Trained on `text` at the first run; later runs read `cache_dir`. The cache is named after text and
  /// vocabulary, so a changed text is trained anew.
  static tokenizer bpe(std::string_view text, int vocab, const std::filesystem::path& cache_dir) {
    char name[64];
    std::snprintf(name, sizeof name, "bpe-%016llx-%d", static_cast<unsigned long long>(text_hash(text)), vocab);
    tokenizer out(vocab, name);
    const std::filesystem::path cached = cache_dir / (out.name_ + ".model");
    if (out.load(read(cached))) return out;
    const auto keep = [&](const auto& how) {
      try {
        how();
      } catch (const std::runtime_error& error) {
        throw std::runtime_error("the tokenizer cannot be kept in " + cache_dir.string() +
                                 "; choose another --cache-dir (" + error.what() + ")");
      }
    };
    keep([&] {  // before the training, which takes long
      std::error_code code;
      std::filesystem::create_directories(cache_dir, code);
      check_writable({"the cache", cached});
    });
    const std::string model = train(text, vocab);
    if (!out.load(model))
      throw std::runtime_error("SentencePiece trained a model that does not have " + std::to_string(vocab) + " pieces");
    keep([&] { replace_file(cached, seal(model) + model); });
    return out;
  }

  /// Whether a file is one that bpe() keeps.
  static bool is_cached_in(const std::filesystem::path& file) {
    return file.filename().string().starts_with("bpe-") && file.extension() == ".model";
  }

  int vocab() const { return vocab_; }

  /// Says which ids these are: a checkpoint only fits the tokenizer it was trained with.
  const std::string& name() const { return name_; }

  std::vector<std::int32_t> encode(std::string_view text) const {
    std::vector<std::int32_t> ids;
    if (!pieces_) {
      ids.reserve(text.size());
      for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
      return ids;
    }
    std::vector<int> line_ids;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      if (end > at) {
        check(pieces_->Encode(to_sentencepiece(text.substr(at, end - at)), &line_ids));
        ids.insert(ids.end(), line_ids.begin(), line_ids.end());
      }
      if (end < text.size()) ids.push_back(newline_);
      at = end + 1;
    }
    return ids;
  }

  std::string decode(std::span<const std::int32_t> ids) const {
    if (!pieces_) return std::string(ids.begin(), ids.end());
    std::string text;
    check(pieces_->Decode(std::vector<int>(ids.begin(), ids.end()), &text));
    return text;
  }

 private:
  tokenizer(int vocab, std::string name) : vocab_(vocab), name_(std::move(name)) {}

  static absl::string_view to_sentencepiece(std::string_view text) { return {text.data(), text.size()}; }

  static void check(const sentencepiece::util::Status& status) {
    if (!status.ok()) throw std::runtime_error("SentencePiece: " + status.ToString());
  }

  /// False for anything but a model of the wanted size, so that a damaged cache is trained anew.
  bool load(const std::string& model) {
    if (model.empty()) return false;
    auto pieces = std::make_shared<sentencepiece::SentencePieceProcessor>();
    if (!pieces->LoadFromSerializedProto(model).ok() || pieces->GetPieceSize() != vocab_) return false;
    newline_ = pieces->PieceToId("<0x0A>");
    if (!pieces->IsByte(newline_)) return false;
    pieces_ = std::move(pieces);
    return true;
  }

  static std::string train(std::string_view text, int vocab) {
    struct lines : sentencepiece::SentenceIterator {
      explicit lines(std::string_view all) : rest(all) { Next(); }
      bool done() const override { return finished; }
      void Next() override {
        finished = rest.empty();
        const std::size_t end = std::min(rest.find('\n'), rest.size());
        line = rest.substr(0, end);
        rest.remove_prefix(std::min(end + 1, rest.size()));
      }
      const std::string& value() const override { return line; }
      sentencepiece::util::Status status() const override { return {}; }
      std::string_view rest;
      std::string line;
      bool finished = false;
    } sentences(text);

    std::string model;
    const auto status = sentencepiece::SentencePieceTrainer::Train(
        {{"model_type", "bpe"},
         {"vocab_size", std::to_string(vocab)},
         // The text comes back unchanged: nothing is normalised, and what the pieces lack becomes bytes.
         {"normalization_rule_name", "identity"},
         {"remove_extra_whitespaces", "false"},
         {"allow_whitespace_only_pieces", "true"},
         {"add_dummy_prefix", "false"},
         {"byte_fallback", "true"},
         {"character_coverage", "0.9999"},
         // The trainer drops longer lines; a text may well be one long line.
         {"max_sentence_length", std::to_string(text.size() + 1)},
         // No sentence begins or ends in one long text.
         {"bos_id", "-1"},
         {"eos_id", "-1"},
         {"pad_id", "-1"},
         {"num_threads", "1"},
         {"minloglevel", "2"}},
        &sentences, &model);
    if (!status.ok()) throw std::runtime_error(explain(status.ToString(), vocab));
    return model;
  }

  /// SentencePiece answers an impossible size with the nearest possible one at the end of a long status.
  static std::string explain(const std::string& status, int vocab) {
    const auto number_after = [&](std::string_view mark) -> std::string {
      const std::size_t at = status.find(mark);
      if (at == std::string::npos) return {};
      const std::size_t first = at + mark.size();
      return status.substr(first, status.find_first_not_of("0123456789", first) - first);
    };
    const std::string wish = "no vocabulary of " + std::to_string(vocab) + " pieces can be made from this text: ";
    if (const std::string least = number_after(" vs "); !least.empty())
      return wish + "the smallest is --vocab " + least + ", or --bytes";
    if (const std::string most = number_after("value <= "); !most.empty())
      return wish + "the largest is --vocab " + most;
    return wish + status;
  }

  /// The first line of the cache. SentencePiece itself takes many a damaged model, as one with other pieces.
  static std::string seal(std::string_view model) {
    char line[64];
    std::snprintf(line, sizeof line, "tigon tokenizer %016llx\n", static_cast<unsigned long long>(text_hash(model)));
    return line;
  }

  /// The model of a cache, or nothing if the cache is damaged or not there.
  static std::string read(const std::filesystem::path& path) {
    std::error_code code;
    if (!std::filesystem::is_regular_file(path, code)) return {};
    std::ifstream in(path, std::ios::binary);
    std::ostringstream all;
    all << in.rdbuf();
    const std::string file = all.str();
    const std::string model = file.substr(std::min(file.find('\n') + 1, file.size()));
    return file == seal(model) + model ? model : std::string();
  }

  int vocab_ = 0;
  std::string name_;
  int newline_ = 0;
  std::shared_ptr<const sentencepiece::SentencePieceProcessor> pieces_;
};

}  // namespace example
#endif
