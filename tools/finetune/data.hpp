// Data to learn from: JSON lines, plain text, or ids. Every error names the file, and the line where there is one.
#ifndef EXAMPLE_FINETUNE_DATA_HPP
#define EXAMPLE_FINETUNE_DATA_HPP

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "json_file.hpp"
#include "packing.hpp"
#include "text/chat.hpp"
#include "text/tokenizer.hpp"

namespace example::finetune {

/// Two answers to one prompt, which neither of them learns.
struct preference {
  sample chosen, rejected;

  bool operator==(const preference&) const = default;
};

/// An answer that is liked or not. Prompt and answer are apart, so that a prompt may be put before another answer.
struct labelled_answer {
  std::vector<std::int32_t> prompt, answer;
  bool desirable = false;

  bool operator==(const labelled_answer&) const = default;
};

/// json_lines  objects with "text", with "prompt" and "completion" (the prompt is not learned), with "messages" of
///             "role" and "content" (the assistant's are learned), with "input_ids" and "labels" (-100 is not learned),
///             or, for preferences, with "prompt", "chosen" and "rejected", or with "prompt", "completion" and "label";
///             one a line
/// text        the whole file is one document
/// ids         a document a line, as numbers with white space between them
enum class data_kind { json_lines, text, ids };

struct data_options {
  std::optional<data_kind> kind;  ///< without one, what the file's name ends in says it: .jsonl, .txt or .ids
  std::size_t vocab = 0;          ///< ids of the model; 0: the tokenizer's
  std::size_t most_tokens = 0;    ///< longer samples lose their end; 0: none does
  chat_template chat = {};        ///< of conversations
};

inline data_kind kind_of(const std::filesystem::path& path) {
  const std::string end = path.extension().string();
  if (end == ".jsonl") return data_kind::json_lines;
  if (end == ".txt") return data_kind::text;
  if (end == ".ids") return data_kind::ids;
  throw std::runtime_error("the file " + path.string() +
                           " is of no known kind: its name ends in neither .jsonl nor "
                           ".txt nor .ids");
}

namespace detail {

inline std::string line_of(const std::filesystem::path& path, std::size_t number) {
  return "the file " + path.string() + ", line " + std::to_string(number) + ",";
}

/// Calls each(line, number) for all lines that hold more than white space, without their ends.
template <class Each>
void each_line(std::string_view text, Each&& each) {
  for (std::size_t at = 0, number = 1; at < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) each(line, number);
    at = end + 1;
  }
}

/// Texts to the tokens of samples.
class sample_maker {
 public:
  sample_maker(const tokenizer& tokens, const data_options& options)
      : tokens_(&tokens),
        vocab_(options.vocab == 0 ? tokens.vocab_size() : options.vocab),
        most_(options.most_tokens),
        chat_(options.chat) {}

  /// What the tokenizer puts before a text, the text, and the token that ends it.
  std::vector<std::int32_t> document(const json_source& where, std::string_view text) const {
    std::vector<std::int32_t> out = begun(where, text);
    end(where, out);
    return out;
  }

  /// Null if there are fewer than two tokens, or none that is learned is within the longest sample.
  std::optional<sample> make(std::vector<std::int32_t> tokens, std::size_t masked = 0) const {
    if (most_ != 0 && tokens.size() > most_) tokens.resize(most_);
    if (tokens.size() < 2 || masked >= tokens.size()) return std::nullopt;
    return sample_of(tokens, masked);
  }

  /// Prompt and completion are encoded one by one, so that the border between them is one between tokens.
  std::optional<sample> make(const json_source& where, std::string_view prompt, std::string_view completion) const {
    std::vector<std::int32_t> out = begun(where, prompt);
    const std::size_t masked = out.size();
    const std::vector<std::int32_t> rest = encoded(where, completion);
    out.insert(out.end(), rest.begin(), rest.end());
    end(where, out);
    return make(std::move(out), masked);
  }

  /// Null if the answer has no token, or none within the longest sample.
  std::optional<labelled_answer> make(const json_source& where, std::string_view prompt, std::string_view completion,
                                      bool desirable) const {
    labelled_answer out{begun(where, prompt), encoded(where, completion), desirable};
    if (out.prompt.empty()) where.fail("has a \"prompt\" without a token");
    end(where, out.answer);
    if (out.answer.empty() || (most_ != 0 && out.prompt.size() >= most_)) return std::nullopt;
    return out;
  }

  /// The text is encoded as a whole; a token that reaches from what is not learned into what is, is learned.
  std::optional<sample> make(const json_source& where, std::vector<chat_message> messages) const {
    std::string text;
    std::vector<chat_piece> pieces;
    for (chat_piece& piece : chat_.pieces(where, std::move(messages))) {
      text += piece.text;
      if (!pieces.empty() && pieces.back().learned == piece.learned)
        pieces.back().text += piece.text;
      else
        pieces.push_back(std::move(piece));
    }
    std::vector<std::int32_t> ids = encoded(where, text);
    std::vector<bool> learned(ids.size());
    std::size_t begin = 0;
    text.clear();
    for (const chat_piece& piece : pieces) {
      const std::size_t end = tokens_of_begin(where, ids, text += piece.text);
      if (piece.learned)
        for (std::size_t i = begin; i < end; ++i) learned[i] = true;
      begin = std::max(begin, end);
    }
    return make(std::move(ids), learned);
  }

  /// Null if nothing that is learned is within the longest sample.
  std::optional<sample> make(std::vector<std::int32_t> ids, const std::vector<bool>& learned) const {
    if (most_ != 0 && ids.size() > most_) ids.resize(most_);
    if (ids.size() < 2) return std::nullopt;
    sample out = sample_of(ids);
    for (std::size_t i = 0; i < out.targets.size(); ++i)
      if (!learned[i + 1]) out.targets[i] = not_counted;
    return counted(out) == 0 ? std::nullopt : std::optional(std::move(out));
  }

  std::size_t vocab() const { return vocab_; }

 private:
  std::vector<std::int32_t> encoded(const json_source& where, std::string_view text) const {
    std::vector<std::int32_t> out = tokens_->encode(text);
    for (const std::int32_t id : out) expect_known(where, id);
    return out;
  }
  /// How many of a longer text's tokens lie within `begin`, with which it begins. Those that `begin` alone has, too,
  /// do; a tokenizer may split its last characters in another way where a text ends, and then the tokens spell them
  /// out.
  std::size_t tokens_of_begin(const json_source& where, const std::vector<std::int32_t>& ids,
                              std::string_view begin) const {
    const auto same = std::ranges::mismatch(ids, encoded(where, begin)).in1;
    auto out = static_cast<std::size_t>(same - ids.begin());
    constexpr std::size_t of_one_character = 4;
    for (std::size_t i = out + 1; i <= std::min(ids.size(), out + of_one_character); ++i)
      if (const std::string text = tokens_->decode(std::span(ids).first(i)); begin.starts_with(text)) out = i;
    return out;
  }
  void expect_known(const json_source& where, std::int32_t id) const {
    if (static_cast<std::size_t>(id) >= vocab_)
      where.fail("has a token with the id " + std::to_string(id) + ", and the model has " + std::to_string(vocab_));
  }

  std::vector<std::int32_t> begun(const json_source& where, std::string_view text) const {
    std::vector<std::int32_t> out = encoded(where, text);
    const auto& prefix = tokens_->prefix();
    // A text may spell it out.
    const bool there = out.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), out.begin());
    if (!there) out.insert(out.begin(), prefix.begin(), prefix.end());
    for (const std::int32_t id : prefix) expect_known(where, id);
    return out;
  }

  void end(const json_source& where, std::vector<std::int32_t>& ids) const {
    const auto eos = tokens_->eos();
    if (eos && (ids.empty() || ids.back() != *eos)) ids.push_back(*eos);
    if (eos) expect_known(where, *eos);
  }

  const tokenizer* tokens_;
  std::size_t vocab_, most_;
  chat_template chat_;
};

/// Other members than role and content could be written by a template, and are not known here.
inline std::vector<chat_message> messages_of(const json_source& where, const nlohmann::json& list) {
  if (!list.is_array()) where.fail("has \"messages\" that are not a list");
  std::vector<chat_message> out;
  for (const nlohmann::json& one : list) {
    out.push_back({where.text(one, "role"), where.text(one, "content")});
    for (const auto& [key, value] : one.items())
      if (key != "role" && key != "content")
        where.fail("has a message with " + json_source::quoted(key) +
                   ", of which this program does not know what the template makes; render_chats.py beside its source "
                   "makes data of it");
  }
  return out;
}

/// Tokens as other programs leave them: "input_ids", and "labels" that are the same, or -100 for what is not learned.
inline std::optional<sample> sample_of_ids(const json_source& where, const nlohmann::json& object,
                                           const sample_maker& maker) {
  const auto list = [&](const char* key) -> const nlohmann::json& {
    const nlohmann::json& out = where.at(object, key);
    if (!out.is_array()) where.fail("has " + json_source::quoted(key) + " that are not a list");
    return out;
  };
  for (const auto& [key, value] : object.items())
    if (key != "input_ids" && key != "labels")
      where.fail("has " + json_source::quoted(key) + " beside \"input_ids\"; expected \"labels\" alone");
  const std::size_t most = std::min<std::size_t>(maker.vocab(), std::numeric_limits<std::int32_t>::max());
  std::vector<std::int32_t> ids;
  for (const nlohmann::json& id : list("input_ids"))
    ids.push_back(static_cast<std::int32_t>(where.whole(id, "input_ids", most - 1)));
  std::vector<bool> learned(ids.size(), true);
  if (object.contains("labels")) {
    const nlohmann::json& labels = list("labels");
    if (labels.size() != ids.size()) where.fail("has another number of \"labels\" than of \"input_ids\"");
    for (std::size_t i = 0; i < ids.size(); ++i) {
      learned[i] = labels[i] == ids[i];
      if (!learned[i] && labels[i] != not_counted)
        where.fail("has labels that are neither the id of their token nor -100");
    }
  }
  return maker.make(std::move(ids), learned);
}

inline std::string known_members(const nlohmann::json& object) {
  std::string out;
  for (const auto& [key, value] : object.items()) {
    if (out.size() > 100) return out + ", ...";
    (out += out.empty() ? "" : ", ") += json_source::quoted(key);
  }
  return out.empty() ? "nothing" : out;
}

inline std::optional<sample> sample_of_line(const json_source& where, std::string_view line,
                                            const sample_maker& maker) {
  const nlohmann::json object = where.parse_object(line);
  const char* form = nullptr;
  for (const char* const key : {"text", "messages", "input_ids", "completion"}) {
    if (!object.contains(key)) continue;
    if (form != nullptr) where.fail("has both " + json_source::quoted(form) + " and " + json_source::quoted(key));
    form = key;
  }
  if (object.contains("completion") && object.contains("prompt"))
    return maker.make(where, where.text(object, "prompt"), where.text(object, "completion"));
  if (object.contains("input_ids")) return sample_of_ids(where, object, maker);
  if (object.contains("messages")) {
    for (const char* const key : {"tools", "documents", "chat_template_kwargs"})
      if (json_source::find(object, key) != nullptr)
        where.fail("has " + json_source::quoted(key) +
                   ", which a template may write; render_chats.py beside this program's source makes data of it");
    return maker.make(where, messages_of(where, object["messages"]));
  }
  if (!object.contains("text"))
    where.fail(R"(has neither "text" nor "prompt" and "completion" nor "messages" nor "input_ids", but )" +
               known_members(object));
  return maker.make(maker.document(where, where.text(object, "text")));
}

inline sample sample_of_text(const std::filesystem::path& path, std::string_view text, const sample_maker& maker) {
  const json_source where("the file " + path.string());
  if (const std::size_t at = invalid_utf8(text); at != std::string_view::npos)
    throw std::runtime_error(line_of(path, 1 + static_cast<std::size_t>(std::ranges::count(text.substr(0, at), '\n'))) +
                             " is not valid UTF-8");
  auto out = maker.make(maker.document(where, text));
  if (!out) where.fail("holds no text of two tokens");
  return *std::move(out);
}

inline std::vector<std::int32_t> ids_of_line(const json_source& where, std::string_view line, std::size_t vocab) {
  constexpr std::string_view blanks = " \t\r";
  std::vector<std::int32_t> out;
  for (std::size_t at = line.find_first_not_of(blanks); at != std::string_view::npos;
       at = line.find_first_not_of(blanks, at)) {
    const std::size_t end = std::min(line.find_first_of(blanks, at), line.size());
    const std::string_view word = line.substr(at, end - at);
    std::uint64_t id = 0;
    const auto [stop, code] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (code != std::errc() || stop != word.data() + word.size() || id >= vocab)
      where.fail("has " + json_source::quoted(word.substr(0, 40)) + ", which is no id below " + std::to_string(vocab));
    out.push_back(static_cast<std::int32_t>(id));
    at = end;
  }
  return out;
}

}  // namespace detail

/// A document a line. Ids are below `vocab`; documents of one token are left out.
inline std::vector<sample> read_ids(const std::filesystem::path& path, std::size_t vocab, std::size_t most_tokens = 0) {
  constexpr std::size_t all = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
  std::vector<sample> out;
  detail::each_line(read_file(path), [&](std::string_view line, std::size_t number) {
    auto ids = detail::ids_of_line(json_source(detail::line_of(path, number)), line, std::min(vocab, all));
    if (most_tokens != 0 && ids.size() > most_tokens) ids.resize(most_tokens);
    if (ids.size() >= 2) out.push_back(sample_of(ids));
  });
  if (out.empty()) throw std::runtime_error("the file " + path.string() + " holds no document of two tokens");
  return out;
}

/// Samples of a file, in its order. Those that have nothing to learn are left out.
inline std::vector<sample> read_samples(const std::filesystem::path& path, const tokenizer& tokens,
                                        const data_options& options = {}) {
  const data_kind kind = options.kind ? *options.kind : kind_of(path);
  const detail::sample_maker maker(tokens, options);
  if (kind == data_kind::ids)
    return read_ids(path, options.vocab == 0 ? tokens.vocab_size() : options.vocab, options.most_tokens);
  const std::string text = read_file(path);
  if (kind == data_kind::text) return {detail::sample_of_text(path, text, maker)};
  std::vector<sample> out;
  detail::each_line(text, [&](std::string_view line, std::size_t number) {
    const json_source where(detail::line_of(path, number));
    if (auto one = detail::sample_of_line(where, line, maker)) out.push_back(*std::move(one));
  });
  if (out.empty()) throw std::runtime_error("the file " + path.string() + " holds no text of two tokens");
  return out;
}

/// Pairs of a file of JSON lines, in its order. Those whose prompt alone fills the longest sample are left out.
inline std::vector<preference> read_preferences(const std::filesystem::path& path, const tokenizer& tokens,
                                                const data_options& options = {}) {
  const detail::sample_maker maker(tokens, options);
  std::vector<preference> out;
  detail::each_line(read_file(path), [&](std::string_view line, std::size_t number) {
    const json_source where(detail::line_of(path, number));
    const nlohmann::json object = where.parse_object(line);
    for (const char* key : {"prompt", "chosen", "rejected"})
      if (!object.contains(key))
        where.fail("has no " + json_source::quoted(key) + ", but " + detail::known_members(object));
    const std::string prompt = where.text(object, "prompt");
    auto chosen = maker.make(where, prompt, where.text(object, "chosen"));
    auto rejected = maker.make(where, prompt, where.text(object, "rejected"));
    if (chosen && rejected) out.push_back({*std::move(chosen), *std::move(rejected)});
  });
  if (out.empty()) throw std::runtime_error("the file " + path.string() + " holds no pair of answers");
  return out;
}

/// Answers of a file of JSON lines, in its order. Those whose prompt alone fills the longest sample are left out.
inline std::vector<labelled_answer> read_labelled_answers(const std::filesystem::path& path, const tokenizer& tokens,
                                                          const data_options& options = {}) {
  const detail::sample_maker maker(tokens, options);
  std::vector<labelled_answer> out;
  detail::each_line(read_file(path), [&](std::string_view line, std::size_t number) {
    const json_source where(detail::line_of(path, number));
    const nlohmann::json object = where.parse_object(line);
    for (const char* key : {"prompt", "completion", "label"})
      if (!object.contains(key))
        where.fail("has no " + json_source::quoted(key) + ", but " + detail::known_members(object));
    (void)where.at(object, "label");  // null is none
    const bool desirable = where.flag(object, "label", false);
    if (auto one = maker.make(where, where.text(object, "prompt"), where.text(object, "completion"), desirable))
      out.push_back(*std::move(one));
  });
  if (out.empty()) throw std::runtime_error("the file " + path.string() + " holds no answer with a label");
  return out;
}

/// For answer i sample 2 i, its prompt with it, and sample 2 i + 1, its prompt with the answer before it in its group:
/// the groups are of `group` answers in their order, before the first of which stands the last, and one that is left
/// over belongs to the group before it. Samples of more than `most_tokens` tokens lose their end.
inline std::vector<sample> with_others_answers(std::span<const labelled_answer> all, std::size_t group,
                                               std::size_t most_tokens) {
  const auto joined = [&](const labelled_answer& asked, const labelled_answer& answered) {
    std::vector<std::int32_t> tokens = asked.prompt;
    tokens.insert(tokens.end(), answered.answer.begin(), answered.answer.end());
    if (tokens.size() > most_tokens) tokens.resize(most_tokens);
    return sample_of(tokens, asked.prompt.size());
  };
  std::vector<sample> out;
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    end = all.size() - begin < group + 2 ? all.size() : begin + group;
    for (std::size_t i = begin; i < end; ++i) {
      out.push_back(joined(all[i], all[i]));
      out.push_back(joined(all[i], all[(i == begin ? end : i) - 1]));
    }
  }
  return out;
}

}  // namespace example::finetune
#endif
