// tokenizer.json of the tokenizers package, for byte-pair encodings. What is not known is refused by name.
#ifndef EXAMPLE_FINETUNE_TEXT_TOKENIZER_JSON_HPP
#define EXAMPLE_FINETUNE_TEXT_TOKENIZER_JSON_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../json_file.hpp"
#include "added_tokens.hpp"
#include "byte_pair_encoding.hpp"
#include "byte_pair_tokenizer.hpp"
#include "decoder.hpp"
#include "pretokenizer.hpp"
#include "tokenizer.hpp"

namespace example::finetune {

/// What a tokenizer.json holds.
struct tokenizer_json {
  std::shared_ptr<const tokenizer_model> model;
  std::vector<std::int32_t> prefix, suffix;  ///< what its post-processor puts around a text
};

/// Reads the parts of one file.
class tokenizer_json_reader {
 public:
  /// More ids than any known vocabulary has.
  static constexpr std::size_t most_ids = std::size_t{1} << 22;

  explicit tokenizer_json_reader(const std::filesystem::path& path) : source_("the tokenizer " + path.string()) {}

  tokenizer_json read(std::string_view text) {
    const json root = source_.parse_object(text);
    read_normalizer(json_source::find(root, "normalizer"));
    read_pretokenizer(json_source::find(root, "pre_tokenizer"), true);
    read_model(source_.at(root, "model"));
    read_added(json_source::find(root, "added_tokens"));
    if (const json* decoder = json_source::find(root, "decoder")) read_decoder(*decoder, parts_.decoder.emplace());
    tokenizer_json out;
    read_ends(json_source::find(root, "post_processor"), out);
    parts_.words = pretokenizer(std::move(steps_));
    out.model = std::make_shared<byte_pair_tokenizer>(std::move(parts_));
    return out;
  }

 private:
  using json = nlohmann::json;

  [[noreturn]] void unknown(const std::string& part, const std::string& what) const {
    source_.fail("has the " + part + " " + json_source::quoted(what) + ", which is not known here");
  }

  /// An option that would change ids and that no known model sets.
  void refuse_option(const json& part, const char* key, const std::string& of) const {
    const json* value = json_source::find(part, key);
    const bool off = value == nullptr || *value == false || *value == "" || *value == 0.0;
    if (!off) source_.fail("sets " + json_source::quoted(key) + " of its " + of + ", which is not known here");
  }

  const json& list(const json& part, const char* key) const {
    const json& out = source_.at(part, key);
    if (!out.is_array()) source_.fail("has " + json_source::quoted(key) + " that are not a list");
    return out;
  }

  /// A pattern of "String"; `regex` gets one of "Regex".
  std::string literal(const json& part, const std::string& of, std::string* regex = nullptr) const {
    const json& pattern = source_.at(part, "pattern");
    if (regex != nullptr && pattern.is_object() && pattern.contains("Regex")) {
      *regex = source_.text(pattern, "Regex");
      return {};
    }
    if (pattern.is_object() && pattern.contains("Regex"))
      unknown("regular expression of its " + of, source_.text(pattern, "Regex"));
    const std::string out = source_.text(pattern, "String");
    if (out.empty()) source_.fail("looks for an empty text in its " + of);
    return out;
  }

  void read_normalizer(const json* part) {
    if (part == nullptr) return;
    const std::string type = source_.text(*part, "type");
    if (type == "Sequence") {
      for (const json& one : list(*part, "normalizers")) read_normalizer(&one);
    } else if (type == "NFC") {
      parts_.normalizer.push_back({normalizer_step::kind::nfc, {}, {}});
    } else if (type == "Prepend") {
      parts_.normalizer.push_back({normalizer_step::kind::prepend, {}, source_.text(*part, "prepend")});
    } else if (type == "Replace") {
      parts_.normalizer.push_back(
          {normalizer_step::kind::replace, literal(*part, "normalizer"), source_.text(*part, "content")});
    } else {
      unknown("normalizer", type);
    }
  }

  void read_pretokenizer(const json* part, bool last) {
    if (part == nullptr) return;
    const std::string type = source_.text(*part, "type");
    if (byte_level_) source_.fail("has the pre-tokenizer " + json_source::quoted(type) + " behind ByteLevel");
    pretokenizer_step step{};
    if (type == "Sequence") {
      for (const json& one : list(*part, "pretokenizers")) read_pretokenizer(&one, last);
      return;
    }
    if (type == "ByteLevel") {
      step.what = pretokenizer_step::kind::bytes;
      if (source_.flag(*part, "use_regex", true)) step.pattern = &known_word_patterns[0];
      if (source_.flag(*part, "add_prefix_space", true)) step.put = pretokenizer_step::prefix::always;
      byte_level_ = true;
    } else if (type == "Digits") {
      step.what = pretokenizer_step::kind::digits;
      step.behaviour = source_.flag(*part, "individual_digits", false) ? separators::isolated : separators::contiguous;
    } else if (type == "Metaspace") {
      step = metaspace(*part);
    } else if (type == "Split") {
      step = split(*part);
    } else {
      unknown("pre-tokenizer", type);
    }
    steps_.push_back(std::move(step));
  }

  pretokenizer_step metaspace(const json& part) const {
    pretokenizer_step step{};
    step.what = pretokenizer_step::kind::metaspace;
    step.literal = source_.text(part, "replacement");
    step.split = source_.flag(part, "split", true);
    step.put = metaspace_prefix(part);
    if (step.literal.empty()) source_.fail("has a Metaspace with an empty replacement");
    return step;
  }

  pretokenizer_step::prefix metaspace_prefix(const json& part) const {
    using prefix = pretokenizer_step::prefix;
    if (json_source::find(part, "prepend_scheme") == nullptr)
      return source_.flag(part, "add_prefix_space", true) ? prefix::always : prefix::never;
    const std::string scheme = source_.text(part, "prepend_scheme");
    if (scheme == "never") return prefix::never;
    if (scheme == "first") return prefix::first;
    if (scheme != "always") unknown("prepend_scheme", scheme);
    return prefix::always;
  }

  pretokenizer_step split(const json& part) const {
    pretokenizer_step step{};
    std::string regex;
    step.literal = literal(part, "pre-tokenizer", &regex);
    step.inverted = source_.flag(part, "invert", false);
    const std::string how = source_.text(part, "behavior");
    constexpr std::pair<std::string_view, separators> known[] = {{"Removed", separators::removed},
                                                                 {"Isolated", separators::isolated},
                                                                 {"MergedWithPrevious", separators::with_previous},
                                                                 {"MergedWithNext", separators::with_next},
                                                                 {"Contiguous", separators::contiguous}};
    const auto* found =
        std::ranges::find(known, std::string_view(how), &std::pair<std::string_view, separators>::first);
    if (found == std::end(known)) unknown("behavior", how);
    step.behaviour = found->second;
    step.what = pretokenizer_step::kind::literal;
    if (regex.empty()) return step;
    step.what = pretokenizer_step::kind::pattern;
    step.pattern = find_word_pattern(regex);
    if (step.pattern == nullptr) unknown("regular expression of its pre-tokenizer", regex);
    // These expressions match all of a text: what is kept are the matches, each by itself.
    const bool each =
        step.behaviour == separators::isolated || (step.behaviour == separators::removed && step.inverted);
    if (!each) unknown("behavior of its regular expression", how);
    return step;
  }

  void read_model(const json& model) {
    if (!model.is_object()) source_.fail("has a model that is not an object");
    if (json_source::find(model, "type") != nullptr && model["type"] != "BPE")
      unknown("model", source_.text(model, "type"));
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
      refuse_option(model, key, "model");
    read_vocabulary(source_.at(model, "vocab"));
    byte_pair_encoding::description what;
    what.merges = read_merges(list(model, "merges"));
    if (const json* token = json_source::find(model, "unk_token")) {
      what.unknown = find(token->is_string() ? token->get<std::string>() : std::string());
      if (!what.unknown) source_.fail("has an unk_token that its vocabulary lacks");
    }
    what.one_unknown = source_.flag(model, "fuse_unk", false);
    what.byte_fallback = source_.flag(model, "byte_fallback", false);
    what.whole_words = source_.flag(model, "ignore_merges", false);
    what.byte_level = byte_level_;
    if (byte_level_ && (what.byte_fallback || what.unknown)) check_bytes();
    what.vocabulary = parts_.ids;
    parts_.pairs = byte_pair_encoding(std::move(what));
  }

  /// With all bytes in the vocabulary, neither unknown tokens nor fallbacks ever occur.
  void check_bytes() const {
    for (const char32_t c : byte_characters()) {
      std::string name;
      append_utf8(name, c);
      if (!parts_.ids.contains(name))
        source_.fail("is byte-level with an unk_token or byte_fallback, and its vocabulary lacks the byte " +
                     json_source::quoted(name));
    }
  }

  void read_vocabulary(const json& vocabulary) {
    if (!vocabulary.is_object()) source_.fail("has a vocab that is not an object");
    for (const auto& [token, id] : vocabulary.items()) add_token(token, source_.whole(id, "id of vocab", most_ids - 1));
    if (parts_.ids.empty()) source_.fail("has an empty vocab");
  }

  void add_token(const std::string& token, std::size_t id) {
    if (id >= parts_.tokens.size()) parts_.tokens.resize(id + 1), used_.resize(id + 1);
    if (used_[id])
      source_.fail("gives the id " + std::to_string(id) + " to both " + json_source::quoted(parts_.tokens[id]) +
                   " and " + json_source::quoted(token));
    used_[id] = true;
    parts_.tokens[id] = token;
    parts_.ids.emplace(token, static_cast<std::int32_t>(id));
  }

  std::optional<std::int32_t> find(const std::string& token) const {
    const auto found = parts_.ids.find(token);
    return found == parts_.ids.end() ? std::nullopt : std::optional(found->second);
  }

  merge_table read_merges(const json& merges) const {
    merge_table out(merges.size());
    std::uint32_t rank = 0;
    for (const json& merge : merges) {
      const auto [left, right] = pair(merge, rank);
      const auto known = [&](const std::string& token) {
        if (const auto id = find(token)) return *id;
        source_.fail("merges to or from " + json_source::quoted(token) + " in merge " + std::to_string(rank) +
                     ", which its vocabulary lacks");
      };
      const std::int32_t first = known(left), second = known(right);
      out.insert(first, second, {rank, known(left + right)});
      ++rank;
    }
    return out;
  }

  std::pair<std::string, std::string> pair(const json& merge, std::size_t rank) const {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
      return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const std::size_t blank = text.find(' ');
      if (blank != std::string::npos && text.find(' ', blank + 1) == std::string::npos)
        return {text.substr(0, blank), text.substr(blank + 1)};
    }
    source_.fail("has merge " + std::to_string(rank) + " that is not of two tokens");
  }

  void read_added(const json* tokens) {
    if (tokens == nullptr) return;
    if (!tokens->is_array()) source_.fail("has added_tokens that are not a list");
    std::set<std::string> seen;
    for (const json& one : *tokens) {
      if (!one.is_object()) source_.fail("has an added token that is not an object");
      const std::string content = source_.text(one, "content");
      const std::size_t id = source_.whole(source_.at(one, "id"), "id of added_tokens", most_ids - 1);
      if (content.empty()) source_.fail("has an empty added token");
      if (!seen.insert(content).second) source_.fail("adds the token " + json_source::quoted(content) + " twice");
      if (source_.flag(one, "single_word", false)) unknown("single_word of the added token", content);
      const auto known = find(content);
      if (!known)
        add_token(content, id);
      else if (static_cast<std::size_t>(*known) != id)
        source_.fail("gives the added token " + json_source::quoted(content) + " the id " + std::to_string(id) +
                     ", and its vocab " + std::to_string(*known));
      added_token token{content, static_cast<std::int32_t>(id)};
      token.special = source_.flag(one, "special", false);
      token.normalized = source_.flag(one, "normalized", !token.special);
      token.strips_left = source_.flag(one, "lstrip", false);
      token.strips_right = source_.flag(one, "rstrip", false);
      if (token.special) parts_.special.insert(token.id);
      // It is found, and decoded, as the normalizer leaves it.
      if (token.normalized) parts_.tokens[id] = token.content = normalize(parts_.normalizer, content);
      (token.normalized ? parts_.normalized : parts_.raw).add(token);
    }
  }

  void read_decoder(const json& part, std::vector<decoder_step>& steps) const {
    using kind = decoder_step::kind;
    const std::string type = source_.text(part, "type");
    if (type == "Sequence") {
      for (const json& one : list(part, "decoders")) read_decoder(one, steps);
    } else if (type == "ByteLevel") {
      steps.push_back({kind::byte_level});
    } else if (type == "ByteFallback") {
      steps.push_back({kind::byte_fallback});
    } else if (type == "Fuse") {
      steps.push_back({kind::fuse});
    } else if (type == "Replace") {
      steps.push_back({kind::replace, literal(part, "decoder"), source_.text(part, "content")});
    } else if (type == "Strip") {
      steps.push_back({kind::strip,
                       source_.text(part, "content"),
                       {},
                       source_.whole(source_.at(part, "start"), "start", most_ids),
                       source_.whole(source_.at(part, "stop"), "stop", most_ids)});
    } else if (type == "Metaspace") {
      steps.push_back({kind::metaspace,
                       source_.text(part, "replacement"),
                       {},
                       0,
                       0,
                       metaspace_prefix(part) != pretokenizer_step::prefix::never});
    } else {
      unknown("decoder", type);
    }
  }

  void read_ends(const json* part, tokenizer_json& out) const {
    if (part == nullptr) return;
    const std::string type = source_.text(*part, "type");
    if (type == "ByteLevel") return;
    if (type == "Sequence") {
      for (const json& one : list(*part, "processors")) read_ends(&one, out);
      return;
    }
    if (type != "TemplateProcessing") unknown("post-processor", type);
    bool behind = false;
    for (const json& one : list(*part, "single")) {
      if (one.is_object() && one.contains("Sequence")) {
        if (std::exchange(behind, true)) source_.fail("has a template with the text in it twice");
        continue;
      }
      const std::string name = source_.text(source_.at(one, "SpecialToken"), "id");
      const json& entry = source_.at(source_.at(*part, "special_tokens"), name.c_str());
      for (const json& id : list(entry, "ids")) {
        const std::size_t value = source_.whole(id, "id of a template", most_ids - 1);
        if (value >= parts_.tokens.size() || !used_[value])
          source_.fail("has a template with the id " + std::to_string(value) + ", which stands for no token");
        (behind ? out.suffix : out.prefix).push_back(static_cast<std::int32_t>(value));
      }
    }
    if (!behind) source_.fail("has a template without the text in it");
  }

  json_source source_;
  byte_pair_tokenizer::stages parts_;
  std::vector<pretokenizer_step> steps_;
  std::vector<bool> used_;
  bool byte_level_ = false;
};

inline tokenizer_json read_tokenizer_json(const std::filesystem::path& path) {
  return tokenizer_json_reader(path).read(read_file(path));
}

}  // namespace example::finetune
#endif
