// Conversations as text. Templates are programs of Jinja, which are not run here: those that are known as a whole
// (chat_forms.hpp) are made by the same rules in C++, and any other is refused.
#ifndef EXAMPLE_FINETUNE_TEXT_CHAT_HPP
#define EXAMPLE_FINETUNE_TEXT_CHAT_HPP

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "../json_file.hpp"
#include "chat_forms.hpp"
#include "unicode_classes.hpp"

namespace example::finetune {

struct chat_message {
  std::string role, content;
};

/// A part of a conversation's text. Of the assistant's turns content and end are learned.
struct chat_piece {
  std::string text;
  bool learned;

  bool operator==(const chat_piece&) const = default;
};

/// The tokens that templates write by name; none where the tokenizer's files name none.
struct chat_marks {
  std::optional<std::string> bos, eos;
};

namespace detail {

/// What Python's str.strip() takes away.
inline bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

inline std::string python_strip(std::string_view text) {
  std::size_t begin = text.size(), end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const code_point c = decode_utf8(text, at);
    if (!is_python_space(c.value)) begin = std::min(begin, at), end = at + c.bytes;
    at += c.bytes;
  }
  return begin < end ? std::string(text.substr(begin, end - begin)) : std::string();
}

/// `text` without line ends at its begin and its end.
inline std::string_view without_lines(std::string_view text, bool at_begin, bool at_end) {
  while (at_begin && text.starts_with('\n')) text.remove_prefix(1);
  while (at_end && text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

/// Qwen3: thoughts of an answer before the last question are left out, and one that has none gets empty ones.
inline std::string reasoned_answer(std::string_view content, bool after_question, bool last) {
  constexpr std::string_view opens = "<think>", closes = "</think>";
  std::string_view thoughts;
  if (const std::size_t first = content.find(closes); first != std::string_view::npos) {
    thoughts = without_lines(content.substr(0, first), false, true);
    if (const std::size_t open = thoughts.rfind(opens); open != std::string_view::npos)
      thoughts.remove_prefix(open + opens.size());
    thoughts = without_lines(thoughts, true, false);
    content = without_lines(content.substr(content.rfind(closes) + closes.size()), true, false);
  }
  if (!after_question || (!last && thoughts.empty())) return std::string(content);
  return "<think>\n" + std::string(without_lines(thoughts, true, true)) + "\n</think>\n\n" +
         std::string(without_lines(content, true, false));
}

/// The last message of a user that is not the answer of a tool.
inline std::size_t last_question(const std::vector<chat_message>& messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    const std::string& content = messages[i].content;
    if (messages[i].role == "user" &&
        !(content.starts_with("<tool_response>") && content.ends_with("</tool_response>")))
      return i;
  }
  return messages.size() - 1;
}

/// The token that tokenizer_config.json names, or else special_tokens_map.json, as a string or with its options.
inline std::optional<std::string> chat_mark(const std::filesystem::path& folder, const char* key) {
  for (const char* const name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    std::error_code code;
    const auto path = folder / name;
    if (!std::filesystem::is_regular_file(path, code)) continue;
    const json_source source("the file " + path.string());
    const nlohmann::json config = source.parse_object(read_file(path));
    const nlohmann::json* const value = json_source::find(config, key);
    if (value != nullptr) return value->is_string() ? value->get<std::string>() : source.text(*value, "content");
  }
  return std::nullopt;
}

}  // namespace detail

class chat_template {
 public:
  chat_template() = default;
  explicit chat_template(std::string_view text, chat_marks marks = {})
      : known_(find_chat_template(text)), marks_(std::move(marks)) {
    if (known_ == nullptr)
      refusal_ =
          "has a chat template that this program does not know as a whole; render_chats.py beside this program's "
          "source makes data of its conversations";
  }
  chat_template(const known_chat_template& known, chat_marks marks) : known_(&known), marks_(std::move(marks)) {}

  /// chat_template.jinja, or what tokenizer_config.json has.
  static chat_template of_folder(const std::filesystem::path& folder) {
    std::error_code code;
    const chat_marks marks{detail::chat_mark(folder, "bos_token"), detail::chat_mark(folder, "eos_token")};
    chat_template out = of_text(folder, marks);
    // Its library takes the special tokens of a text for text.
    if (out.known_ != nullptr && !std::filesystem::is_regular_file(folder / "tokenizer.json", code))
      out.refuse("is tokenizer.model alone; expected tokenizer.json, which splits special tokens from a text");
    return out;
  }

  const known_chat_template* known() const { return known_; }

  /// The conversation. Throws a sentence that `where` begins.
  std::vector<chat_piece> pieces(const json_source& where, std::vector<chat_message> messages) const {
    if (known_ == nullptr) where.fail("holds a conversation, and the tokenizer " + refusal_);
    if (messages.empty()) where.fail("holds a conversation without messages");
    for (const chat_message& m : messages)
      if (m.role != "system" && m.role != "user" && m.role != "assistant")
        where.fail("has the role " + json_source::quoted(m.role) + ", and system, user and assistant are known");
    const chat_form& form = *known_->form;
    std::vector<chat_piece> out;
    add(where, out, form.begin, false);
    std::string before_user = take_first_system(where, out, messages);
    if (form.alternates) expect_alternating(where, messages);
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const chat_message& m = messages[i];
      const bool answers = m.role == "assistant";
      const chat_turn& turn = answers ? form.assistant : m.role == "user" ? form.user : form.system;
      std::string content = form.trims ? detail::python_strip(m.content) : m.content;
      if (answers && form.reasons)
        content = detail::reasoned_answer(m.content, i > detail::last_question(messages), i + 1 == messages.size());
      add(where, out, turn.before, false);
      out.push_back({std::exchange(before_user, {}), false});
      if (answers) content.insert(0, form.begins_answer);
      out.push_back({std::move(content), answers});
      add(where, out, turn.end, answers);
      add(where, out, turn.behind, false);
    }
    add(where, out, form.close, false);
    std::erase_if(out, [](const chat_piece& piece) { return piece.text.empty(); });
    return out;
  }

 private:
  static chat_template of_text(const std::filesystem::path& folder, const chat_marks& marks) {
    std::error_code code;
    if (const auto file = folder / "chat_template.jinja"; std::filesystem::is_regular_file(file, code))
      return chat_template(read_file(file), marks);
    const auto path = folder / "tokenizer_config.json";
    if (!std::filesystem::is_regular_file(path, code)) return {};
    const json_source source("the file " + path.string());
    const nlohmann::json config = source.parse_object(read_file(path));
    const nlohmann::json* value = json_source::find(config, "chat_template");
    if (value != nullptr && value->is_array())  // of several, the default
      for (const nlohmann::json& one : *value)
        if (one.is_object() && one.value("name", "") == "default")
          return chat_template(source.text(one, "template"), marks);
    return value != nullptr && value->is_string() ? chat_template(value->get<std::string>(), marks) : chat_template();
  }
  void refuse(const char* why) { known_ = nullptr, refusal_ = why; }

  /// The turn that a first system message has, or that a conversation without one gets; returns what it puts before the
  /// first user's content.
  std::string take_first_system(const json_source& where, std::vector<chat_piece>& out,
                                std::vector<chat_message>& messages) const {
    const chat_form& form = *known_->form;
    const bool there = messages[0].role == "system";
    if (form.joins_user) {
      if (!there) return {};
      std::string joined = messages[0].content + std::string(*form.joins_user);
      messages.erase(messages.begin());
      return joined;
    }
    if (there && !form.has_system) where.fail("has a system message, which the model's template does not know");
    if (!form.default_system && form.before_first_system.empty()) return {};
    if (!there && !form.default_system) return {};
    const std::string content = there ? messages[0].content : std::string(*form.default_system);
    add(where, out, form.system.before, false);
    add(where, out, form.before_first_system, false);
    out.push_back({form.trims ? detail::python_strip(content) : content, false});
    add(where, out, form.system.end, false);
    add(where, out, form.system.behind, false);
    if (there) messages.erase(messages.begin());
    return {};
  }

  static void expect_alternating(const json_source& where, const std::vector<chat_message>& messages) {
    for (std::size_t i = 0; i < messages.size(); ++i)
      if (messages[i].role != (i % 2 == 0 ? "user" : "assistant"))
        where.fail("has messages that do not go from user to assistant and back");
  }

  /// A text of the form, with its marks.
  void add(const json_source& where, std::vector<chat_piece>& out, std::string_view text, bool learned) const {
    const bool bos = text == "{bos}";
    if (!bos && text != "{eos}") return out.push_back({std::string(text), learned});
    const std::optional<std::string>& mark = bos ? marks_.bos : marks_.eos;
    if (!mark)
      where.fail(std::string("holds a conversation, and the tokenizer names no ") + (bos ? "bos" : "eos") +
                 "_token, which its chat template writes");
    out.push_back({*mark, learned});
  }

  const known_chat_template* known_ = nullptr;
  chat_marks marks_;
  std::string refusal_ = "has no chat template";
};

}  // namespace example::finetune
#endif
