// Conversations as text, in the forms that most models were trained with. A folder's template says which of them it is;
// one that says anything else is refused, because this program does not run templates.
#ifndef EXAMPLE_FINETUNE_TEXT_CHAT_HPP
#define EXAMPLE_FINETUNE_TEXT_CHAT_HPP

#include <array>
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

namespace detail {

/// A template without the white space of its code. A string of the code stands between two of these, with its escapes
/// resolved, and is joined with one that is added to it.
inline constexpr char chat_quote = '\x01';

inline std::string chat_code(std::string_view text) {
  std::string out;
  bool inside = false;  // of {{ }} or {% %}
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view two = text.substr(i, 2);
    if (two == "{{" || two == "{%" || two == "{#") inside = two != "{#";
    if (two == "}}" || two == "%}" || two == "#}") inside = false;
    const char quote = text[i];
    if (!inside || (quote != '\'' && quote != '"')) {
      if (std::string_view(" \t\r\n-").find(quote) == std::string_view::npos) out += quote;
      continue;
    }
    const std::string joint = {chat_quote, '+'};
    if (out.ends_with(joint))
      out.resize(out.size() - 2);
    else
      out += chat_quote;
    for (++i; i < text.size() && text[i] != quote; ++i) {
      const bool escaped = text[i] == '\\' && i + 1 < text.size();
      const char c = escaped ? text[++i] : text[i];
      out += escaped && c == 'n' ? '\n' : escaped && c == 't' ? '\t' : c;
    }
    out += chat_quote;
  }
  for (const auto& [from, to] : {std::pair{".role", "[\x01role\x01]"}, std::pair{".content",
                                                                                 "[\x01"
                                                                                 "content\x01]"}})
    for (std::size_t at = out.find(from); at != std::string::npos; at = out.find(from, at + 1))
      out.replace(at, std::string_view(from).size(), to);
  return out;
}

inline std::string trimmed(const std::string& text) {
  constexpr std::string_view blanks = " \t\n\r\f\v";
  const std::size_t first = text.find_first_not_of(blanks);
  return first == std::string::npos ? std::string() : text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

}  // namespace detail

/// What a turn is made of, by the template's words.
class chat_template {
 public:
  enum class form { none, chatml, llama3, gemma, mistral };

  chat_template() : refusal_("has no chat template") {}
  explicit chat_template(std::string_view text) {
    const std::string code = detail::chat_code(text);
    const auto has = [&](std::string_view part) {
      std::string wanted(part);  // ' stands for the mark of a string
      for (char& c : wanted) c = c == '\'' ? detail::chat_quote : c;
      return code.find(wanted) != std::string::npos;
    };
    constexpr std::string_view content = "message['content']", role = "message['role']";
    const auto turn = [&](std::string_view begin, std::string_view who, std::string_view between, std::string_view what,
                          std::string_view end) {
      return has("'" + std::string(begin) + "'+" + std::string(who) + "+'" + std::string(between) + "'+" +
                 std::string(what) + "+'" + std::string(end) + "'");
    };
    const std::string trimmed = std::string(content) + "|trim";
    if (turn("<|im_start|>", role, "\n", content, "<|im_end|>\n")) {
      form_ = form::chatml;
      find_default_system(code);
    } else if (turn("<|start_header_id|>", role, "<|end_header_id|>\n\n", trimmed, "<|eot_id|>")) {
      form_ = form::llama3;
      dated_ = has("Cutting Knowledge Date: December 2023\n");
    } else if (turn("<start_of_turn>", "role", "\n", trimmed, "<end_of_turn>\n") ||
               (has("'<start_of_turn>'+role+'\n'+(first_user_prefix") && has(trimmed) && has("'<end_of_turn>\n'"))) {
      form_ = form::gemma;
      knows_system_ = has("first_user_prefix");
    } else {
      read_mistral(has);
    }
    if (form_ == form::none)
      refusal_ = "has a chat template of no form that this program knows: ChatML, Llama 3, Gemma or Mistral";
  }

  /// chat_template.jinja, or what tokenizer_config.json has.
  static chat_template of_folder(const std::filesystem::path& folder) {
    std::error_code code;
    if (const auto file = folder / "chat_template.jinja"; std::filesystem::is_regular_file(file, code))
      return chat_template(read_file(file));
    const auto path = folder / "tokenizer_config.json";
    if (!std::filesystem::is_regular_file(path, code)) return {};
    const json_source source("the file " + path.string());
    const nlohmann::json config = source.parse_object(read_file(path));
    const nlohmann::json* value = json_source::find(config, "chat_template");
    if (value != nullptr && value->is_array())  // of several, the default
      for (const nlohmann::json& one : *value)
        if (one.is_object() && one.value("name", "") == "default") return chat_template(source.text(one, "template"));
    return value != nullptr && value->is_string() ? chat_template(value->get<std::string>()) : chat_template();
  }

  form kind() const { return form_; }
  /// Whether the text begins with the token for that.
  bool has_bos() const { return form_ != form::chatml; }

  /// The conversation, without the token that begins a text. Throws a sentence that `where` begins. `eos` is what ends
  /// an answer in Mistral's form.
  std::vector<chat_piece> pieces(const json_source& where, std::vector<chat_message> messages,
                                 const std::string& eos) const {
    if (form_ == form::none) where.fail("holds a conversation, and the tokenizer " + refusal_);
    if (messages.empty()) where.fail("holds a conversation without messages");
    for (const chat_message& m : messages)
      if (m.role != "system" && m.role != "user" && m.role != "assistant")
        where.fail("has the role " + json_source::quoted(m.role) + ", and system, user and assistant are known");
    switch (form_) {
      case form::chatml: return chatml(messages);
      case form::llama3: return llama3(messages);
      default: break;
    }
    const std::string before = take_system(where, messages);
    for (std::size_t i = 0; i < messages.size(); ++i)
      if (messages[i].role != (i % 2 == 0 ? "user" : "assistant"))
        where.fail("has messages that do not go from user to assistant and back");
    return form_ == form::gemma ? gemma(messages, before) : mistral(messages, eos);
  }

 private:
  /// Of a conversation that has no system message.
  void find_default_system(const std::string& code) {
    const std::string begin = std::string("<|im_start|>system\n"), end = "<|im_end|>\n\x01";
    for (std::size_t at = code.find(begin); at != std::string::npos; at = code.find(begin, at + 1)) {
      const std::size_t last = code.find(detail::chat_quote, at);
      if (last == std::string::npos || last + 1 < at + end.size()) continue;
      const std::string_view text = std::string_view(code).substr(at, last + 1 - at);
      if (text.ends_with(end)) {
        system_ = text.substr(begin.size(), text.size() - begin.size() - end.size());
        return;
      }
    }
  }

  template <class Has>
  void read_mistral(const Has& has) {
    for (const char* const space : {" ", ""})
      if (has("'[INST] '+message['content']+'" + std::string(space) + "[/INST]'")) before_answer_ = space;
    if (!before_answer_) return;
    struct answer {
      const char *code, *before, *behind;
    };
    for (const answer& one : {answer{"{{message['content']+eos_token+' '}}", "", " "},
                              {"{{message['content']+eos_token}}", "", ""},
                              {"{{' '+message['content']+eos_token}}", " ", ""}})
      if (has(one.code)) {
        form_ = form::mistral;
        answer_ = {one.before, one.behind};
      }
  }

  static chat_piece turn_of(const chat_message& m, std::string text) {
    return {std::move(text), m.role == "assistant"};
  }

  std::vector<chat_piece> chatml(const std::vector<chat_message>& messages) const {
    std::vector<chat_piece> out;
    if (system_ && messages[0].role != "system")
      out.push_back({"<|im_start|>system\n" + *system_ + "<|im_end|>\n", false});
    for (const chat_message& m : messages) {
      out.push_back({"<|im_start|>" + m.role + "\n", false});
      out.push_back(turn_of(m, m.content + "<|im_end|>"));
      out.push_back({"\n", false});
    }
    return out;
  }

  std::vector<chat_piece> llama3(std::vector<chat_message> messages) const {
    std::vector<chat_piece> out;
    if (dated_) {  // of Llama 3.1 and 3.2; the date is that of a template which is not told one
      const bool there = messages[0].role == "system";
      const std::string system = there ? detail::trimmed(messages[0].content) : std::string();
      if (there) messages.erase(messages.begin());
      out.push_back(
          {"<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
           "Today Date: 26 Jul 2024\n\n" +
               system + "<|eot_id|>",
           false});
    }
    for (const chat_message& m : messages) {
      out.push_back({"<|start_header_id|>" + m.role + "<|end_header_id|>\n\n", false});
      out.push_back(turn_of(m, detail::trimmed(m.content) + "<|eot_id|>"));
    }
    return out;
  }

  std::string take_system(const json_source& where, std::vector<chat_message>& messages) const {
    if (messages[0].role != "system") return {};
    if (!knows_system_) where.fail("has a system message, which the model's template does not know");
    const std::string out = messages[0].content + "\n\n";
    messages.erase(messages.begin());
    return out;
  }

  std::vector<chat_piece> gemma(const std::vector<chat_message>& messages, const std::string& before) const {
    std::vector<chat_piece> out;
    for (const chat_message& m : messages) {
      const bool answers = m.role == "assistant";
      out.push_back(
          {std::string("<start_of_turn>") + (answers ? "model\n" : "user\n") + (out.empty() ? before : ""), false});
      out.push_back(turn_of(m, detail::trimmed(m.content) + "<end_of_turn>"));
      out.push_back({"\n", false});
    }
    return out;
  }

  std::vector<chat_piece> mistral(const std::vector<chat_message>& messages, const std::string& eos) const {
    std::vector<chat_piece> out;
    for (const chat_message& m : messages)
      if (m.role == "user") {
        out.push_back({"[INST] " + m.content + *before_answer_ + "[/INST]", false});
      } else {
        out.push_back(turn_of(m, answer_.first + m.content + eos));
        if (!answer_.second.empty()) out.push_back({answer_.second, false});
      }
    return out;
  }

  form form_ = form::none;
  std::string refusal_;
  std::optional<std::string> system_;  ///< ChatML's default
  bool dated_ = false, knows_system_ = false;
  std::optional<std::string> before_answer_;  ///< what Mistral's form has before [/INST]
  std::pair<std::string, std::string> answer_;
};

}  // namespace example::finetune
#endif
