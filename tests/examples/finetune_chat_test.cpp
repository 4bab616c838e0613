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

#include "../../examples/finetune/data.hpp"
#include "refusals.hpp"

namespace {

using namespace example::finetune;
using nlohmann::json;
using tigon::test::refusal;
using ids_t = std::vector<std::int32_t>;

const json& chats() {
  static const json all = json::parse(
      read_file(std::filesystem::path(__FILE__).parent_path() / "fixtures" / "finetune_text" / "chats.json"));
  return all;
}

std::vector<chat_message> conversation(const json& turns) {
  return detail::messages_of(json_source("the conversation"), turns);
}

TEST(finetune_chat, texts_are_those_of_the_templates) {
  std::size_t rendered = 0, refused = 0;
  for (const auto& [name, of] : chats()["templates"].items()) {
    const chat_template form(of["template"].get<std::string>());
    ASSERT_NE(form.kind(), chat_template::form::none) << name;
    for (std::size_t i = 0; i < of["texts"].size(); ++i) {
      SCOPED_TRACE(name + " " + std::to_string(i));
      std::string text = form.has_bos() ? "<s>" : "";
      const std::string fault = refusal([&] {
        for (const chat_piece& piece :
             form.pieces(json_source("it"), conversation(chats()["conversations"][i]), "</s>"))
          text += piece.text;
      });
      const json& wanted = of["texts"][i];
      if (wanted.is_null()) {
        EXPECT_TRUE(fault.starts_with("it has ")) << fault;
        ++refused;
      } else {
        EXPECT_EQ(text, wanted.get<std::string>());
        ++rendered;
      }
    }
  }
  EXPECT_EQ(rendered, 35u);
  EXPECT_EQ(refused, 9u);
}

TEST(finetune_chat, other_templates_are_refused) {
  for (const auto& [name, text] : chats()["refused"].items()) {
    const chat_template form(text.get<std::string>());
    EXPECT_EQ(form.kind(), chat_template::form::none) << name;
    const std::string fault = refusal([&] { form.pieces(json_source("it"), {{"user", "a"}}, ""); });
    EXPECT_NE(fault.find("chat template of no form that this program knows"), std::string::npos) << fault;
  }
  EXPECT_NE(refusal([] {
              chat_template().pieces(json_source("it"), {{"user", "a"}}, "");
            }).find("has no chat template"),
            std::string::npos);
}

TEST(finetune_chat, answers_and_their_ends_are_learned) {
  for (const auto& [name, of] : chats()["templates"].items()) {
    const chat_template form(of["template"].get<std::string>());
    std::string learned;
    for (const chat_piece& piece : form.pieces(json_source("it"), conversation(chats()["conversations"][1]), "</s>"))
      if (piece.learned) learned += piece.text + "|";
    const std::string end = form.kind() == chat_template::form::chatml   ? "<|im_end|>"
                            : form.kind() == chat_template::form::llama3 ? "<|eot_id|>"
                            : form.kind() == chat_template::form::gemma  ? "<end_of_turn>"
                                                                         : "</s>";
    const bool trims = form.kind() == chat_template::form::llama3 || form.kind() == chat_template::form::gemma;
    const std::string before = name == "mistral_space" ? " " : "";
    EXPECT_EQ(learned,
              before + (trims ? "Like this." : "\n Like this. ") + end + "|" + before + "it's \"so\"" + end + "|")
        << name;
  }
}

/// Bytes are their own ids, but for bos and eos, and for "]e", which is one token.
class byte_tokenizer : public tokenizer_model {
 public:
  static constexpr std::int32_t bos = 257, eos = 258, joined = 259;
  void encode(std::string_view text, ids_t& ids) const override {
    while (!text.empty()) {
      const bool begins = text.starts_with("<s>"), ends = text.starts_with("</s>"), joins = text.starts_with("]e");
      ids.push_back(begins ? bos : ends ? eos : joins ? joined : static_cast<unsigned char>(text[0]));
      text.remove_prefix(begins ? 3 : ends ? 4 : joins ? 2 : 1);
    }
  }
  std::string decode(std::span<const std::int32_t> ids, specials) const override {
    std::string out;
    for (const std::int32_t id : ids)
      out += id == bos ? "<s>" : id == eos ? "</s>" : std::string(1, static_cast<char>(id));
    return out;
  }
  std::optional<std::int32_t> id_of(std::string_view) const override { return std::nullopt; }
  std::string token_of(std::int32_t) const override { return {}; }
  std::size_t vocab_size() const override { return 260; }
};

TEST(finetune_chat, only_answers_have_targets) {
  const auto path =
      std::filesystem::temp_directory_path() / ("tigon-finetune-chat-" + std::to_string(getpid()) + ".jsonl");
  const auto read = [&](const std::string& text, const char* form, std::size_t most) {
    std::ofstream(path) << text;
    data_options options;
    options.chat = chat_template(chats()["templates"][form]["template"].get<std::string>()), options.most_tokens = most;
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
  for (const char* const wrong : {R"({"messages": 1})", R"({"messages": [{"role": "user"}]})", R"({"messages": []})",
                                  R"({"messages": [{"role": "tool", "content": "a"}]})"})
    EXPECT_NE(refusal([&] { read(wrong, "chatml", 0); }).find(", line 1, "), std::string::npos) << wrong;
  std::filesystem::remove(path);
}

}  // namespace
