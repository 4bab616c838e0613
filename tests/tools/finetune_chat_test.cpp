// Conversations as text, against what Jinja makes of the templates (fixtures/finetune_text/make_chats.py).
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../../tools/finetune/data.hpp"
#include "../examples/refusals.hpp"

namespace {

using namespace example::finetune;
using nlohmann::json;
using tigon::test::refusal;
using ids_t = std::vector<std::int32_t>;

const json& chats() {
  static const json all =
      json::parse(read_file(std::filesystem::path(TIGON_TOOLS_FIXTURES) / "finetune_text" / "chats.json"));
  return all;
}

std::vector<chat_message> conversation(const json& turns) {
  return detail::messages_of(json_source("the conversation"), turns);
}

const chat_marks marks{"<s>", "</s>"};

/// The text of a template that chats.json has, or of one that is known by its hash alone.
chat_template template_of(const std::string& name) {
  const json& of = chats()["templates"][name];
  if (of.contains("template")) return chat_template(of["template"].get<std::string>(), marks);
  const auto known = std::ranges::find(known_chat_templates, std::string_view(name), &known_chat_template::name);
  return chat_template(*known, marks);
}

TEST(finetune_chat, texts_are_those_of_the_templates) {
  std::size_t rendered = 0, refused = 0, stricter = 0;
  for (const known_chat_template& known : known_chat_templates) {
    const json& of = chats()["templates"][std::string(known.name)];
    const chat_template form = template_of(std::string(known.name));
    ASSERT_EQ(form.known(), &known) << known.name;
    const json& texts = chats()["forms"][of["form"].get<std::string>()];
    for (std::size_t i = 0; i < texts.size(); ++i) {
      SCOPED_TRACE(std::string(known.name) + " " + chats()["conversations"][i].dump());
      std::string text;
      const std::string fault = refusal([&] {
        for (const chat_piece& piece : form.pieces(json_source("it"), conversation(chats()["conversations"][i])))
          text += piece.text;
      });
      if (!fault.empty()) {
        EXPECT_TRUE(fault.starts_with("it has ")) << fault;
        ++(texts[i].is_null() ? refused : stricter);
      } else {
        EXPECT_EQ(text, texts[i].is_null() ? "(refused)" : texts[i].get<std::string>());
        ++rendered;
      }
    }
  }
  EXPECT_EQ(rendered, 1350u);
  EXPECT_EQ(refused, 275u);
  EXPECT_EQ(stricter, 7u);  // templates that render a system message in the place of an answer
}

TEST(finetune_chat, templates_are_known_as_a_whole_or_not_at_all) {
  for (const auto& [name, of] : chats()["templates"].items()) {
    if (!of.contains("template")) continue;
    const std::string text = of["template"];
    EXPECT_NE(find_chat_template(text + "\n"), nullptr) << name;
    for (std::size_t at = 0; at < text.size(); at += 7) {
      std::string changed = text;
      changed[at] = changed[at] == ' ' ? '_' : ' ';
      EXPECT_EQ(find_chat_template(changed), nullptr) << name << ' ' << at;
    }
    for (const std::string& changed : {text + " ", text + "\n\n", text.substr(1), "{# #}" + text, std::string()})
      EXPECT_EQ(find_chat_template(changed), nullptr) << name;
  }
  // Forms of ChatML, Llama 3 and Gemma that a part of a known one stands in.
  for (const char* const text :
       {"{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] | trim + "
        "'<|im_end|>' + '\n'}}{% endfor %}",
        "{% for message in messages %}{% if message['role'] != 'system' %}{{'<|im_start|>' + message['role'] + '\n' + "
        "message['content'] + '<|im_end|>' + '\n'}}{% endif %}{% endfor %}"}) {
    const std::string fault = refusal([&] { chat_template(text, marks).pieces(json_source("it"), {{"user", "a"}}); });
    EXPECT_NE(fault.find("does not know as a whole; render_chats.py"), std::string::npos) << fault;
  }
  EXPECT_NE(refusal([] {
              chat_template().pieces(json_source("it"), {{"user", "a"}});
            }).find("has no chat template"),
            std::string::npos);
}

TEST(finetune_chat, marks_that_the_tokenizer_lacks_are_not_left_out) {
  const auto fault = [](const char* name, const chat_marks& given) {
    return refusal([&] {
      chat_template(*template_of(name).known(), given).pieces(json_source("it"), {{"user", "a"}, {"assistant", "b"}});
    });
  };
  EXPECT_EQ(fault("chatml", {}), "");
  EXPECT_NE(fault("gemma", {.bos = std::nullopt, .eos = "</s>"}).find("names no bos_token"), std::string::npos);
  EXPECT_NE(fault("zephyr", {.bos = "<s>", .eos = std::nullopt}).find("names no eos_token"), std::string::npos);
  EXPECT_NE(fault("phi3", {.bos = "<s>", .eos = std::nullopt}).find("names no eos_token"), std::string::npos);
}

TEST(finetune_chat, answers_and_their_ends_are_learned) {
  for (const known_chat_template& known : known_chat_templates) {
    const std::string name(known.name);
    std::string learned;
    for (const chat_piece& piece :
         template_of(name).pieces(json_source("it"), conversation(chats()["conversations"][1])))
      if (piece.learned) learned += piece.text;
    const bool has_eos = known.form->assistant.end == "{eos}";
    const std::string end(has_eos ? "</s>" : known.form->assistant.end),
        thoughts(known.form->reasons ? "<think>\n\n</think>\n\n" : "");
    EXPECT_FALSE(end.empty());
    const std::string begin(known.form->begins_answer);
    EXPECT_EQ(learned, begin + (known.form->trims ? "Like this." : "\n Like this. ") + end + begin + thoughts +
                           "it's \"so\"" + end)
        << name;
  }
}

/// Bytes are their own ids, but for bos and eos, for "]e", which is one token, and for two line ends, which are one
/// where the text ends.
class byte_tokenizer : public tokenizer_model {
 public:
  static constexpr std::int32_t bos = 257, eos = 258, joined = 259, lines = 260;
  void encode(std::string_view text, ids_t& ids) const override {
    while (!text.empty()) {
      if (text == "\n\n") return ids.push_back(lines);
      const bool begins = text.starts_with("<s>"), ends = text.starts_with("</s>"), joins = text.starts_with("]e");
      ids.push_back(begins ? bos : ends ? eos : joins ? joined : static_cast<unsigned char>(text[0]));
      text.remove_prefix(begins ? 3 : ends ? 4 : joins ? 2 : 1);
    }
  }
  std::string decode(std::span<const std::int32_t> ids, specials) const override {
    std::string out;
    for (const std::int32_t id : ids)
      out += id == bos      ? "<s>"
             : id == eos    ? "</s>"
             : id == joined ? "]e"
             : id == lines  ? "\n\n"
                            : std::string(1, static_cast<char>(id));
    return out;
  }
  std::optional<std::int32_t> id_of(std::string_view) const override { return std::nullopt; }
  std::string token_of(std::int32_t) const override { return {}; }
  std::size_t vocab_size() const override { return 261; }
};

TEST(finetune_chat, only_answers_have_targets) {
  const auto path =
      std::filesystem::temp_directory_path() / ("tigon-finetune-chat-" + std::to_string(getpid()) + ".jsonl");
  const auto read = [&](const std::string& text, const char* form, std::size_t most) {
    std::ofstream(path) << text;
    data_options options;
    options.chat = template_of(form), options.most_tokens = most;
    const tokenizer tokens(std::make_shared<byte_tokenizer>(),
                           {byte_tokenizer::bos, byte_tokenizer::eos, std::nullopt, {byte_tokenizer::bos}, {}});
    return read_samples(path, tokens, options);
  };
  const std::string line =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]})";
  // <s>[INST] a [/INST]bc</s>
  const std::vector<sample> all = read(line, "mistral_v02", 0);
  ASSERT_EQ(all.size(), 1u);
  const std::string before = "[INST] a [/INST]";
  ids_t ids{byte_tokenizer::bos}, targets(before.size(), not_counted);
  for (const char c : before) ids.push_back(c);
  ids.push_back('b'), ids.push_back('c');
  for (const std::int32_t id : {std::int32_t{'b'}, std::int32_t{'c'}, byte_tokenizer::eos}) targets.push_back(id);
  EXPECT_EQ(all[0].ids, ids);
  EXPECT_EQ(all[0].targets, targets);
  // Cut behind b; cut before it, which leaves nothing to learn.
  EXPECT_EQ(read(line, "mistral_v02", before.size() + 2)[0].targets.back(), 'b');
  EXPECT_NE(refusal([&] { read(line, "mistral_v02", before.size() + 1); }).find("holds no text"), std::string::npos);
  // A token that begins before the answer and ends in it is learned.
  const std::vector<sample> merged = read(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "e"}]})", "mistral_v02", 0);
  EXPECT_EQ(std::ranges::count(merged[0].targets, not_counted), static_cast<std::ptrdiff_t>(before.size() - 1));
  EXPECT_EQ(*(merged[0].targets.end() - 2), byte_tokenizer::joined);
  // So is no end of a line before it that the tokenizer splits in another way where a text ends.
  const std::vector<sample> after_lines = read(line, "llama3_escaped", 0);
  EXPECT_EQ(std::ranges::count_if(after_lines[0].targets, [](std::int32_t t) { return t != not_counted; }),
            static_cast<std::ptrdiff_t>(std::string_view("bc<|eot_id|>").size()));
  for (const char* const wrong :
       {R"({"messages": 1})", R"({"messages": [{"role": "user"}]})", R"({"messages": []})",
        R"({"messages": [{"role": "tool", "content": "a"}]})", R"({"messages": [{"role": "user", "content": ["a"]}]})",
        R"({"messages": [{"role": "user", "content": "a", "tool_calls": null}]})",
        R"({"messages": [{"role": "assistant", "content": "a", "reasoning_content": "b"}]})",
        R"({"messages": [{"role": "user", "content": "a"}], "tools": [{}]})",
        R"({"messages": [{"role": "user", "content": "a"}], "text": "a"})",
        R"({"text": "a", "prompt": "a", "completion": "b"})"})
    EXPECT_NE(refusal([&] { read(wrong, "chatml", 0); }).find(", line 1, "), std::string::npos) << wrong;
  std::filesystem::remove(path);
}

}  // namespace
