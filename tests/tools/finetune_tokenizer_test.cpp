#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "../../tools/finetune/text/load_tokenizer.hpp"
#include "../../tools/finetune/text/same_tokenizer.hpp"
#include "../examples/refusals.hpp"

namespace {

using namespace example::finetune;
using nlohmann::json;
using tigon::test::refusal;
using ids_t = std::vector<std::int32_t>;

const std::filesystem::path fixtures = std::filesystem::path(TIGON_TOOLS_FIXTURES) / "finetune_text";

testing::AssertionResult says(const std::string& sentence, const std::string& part) {
  if (sentence.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << '"' << sentence << "\" does not say \"" << part << '"';
}

class finetune_tokenizer : public testing::Test {
 protected:
  finetune_tokenizer() {
    folder_ = std::filesystem::temp_directory_path() / ("tigon-finetune-tokenizer-" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~finetune_tokenizer() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  tokenizer load(const std::string& file) {
    write("tokenizer.json", file);
    return load_tokenizer(folder_);
  }
  /// The sentence that a changed tokenizer.json is refused with.
  std::string with(const std::function<void(json&)>& change, const std::string& name = "llama3.json") {
    json file = json::parse(read_file(fixtures / name));
    change(file);
    const std::string sentence = refusal([&] { load(file.dump()); });
    EXPECT_EQ(sentence.find('\n'), std::string::npos);
    return sentence;
  }

  std::filesystem::path folder_;
};

TEST_F(finetune_tokenizer, ids_are_those_of_the_tokenizers_package) {
  const json cases = json::parse(read_file(fixtures / "cases.json"));
  const auto texts = cases["texts"].get<std::vector<std::string>>();
  ASSERT_EQ(cases["tokenizers"].size(), 15u);
  for (const auto& [name, expected] : cases["tokenizers"].items()) {
    const tokenizer tokens = load(read_file(fixtures / (name + ".json")));
    EXPECT_EQ(tokens.vocab_size(), expected["vocab_size"].get<std::size_t>());
    for (std::size_t i = 0; i < texts.size(); ++i)
      EXPECT_EQ(tokens.encode(texts[i]), expected["ids"][i].get<ids_t>()) << name << ", text " << i << ": " << texts[i];
    EXPECT_EQ(tokens.encode(texts[0], text_ends::marked), expected["marked"].get<ids_t>()) << name;
    for (std::size_t i = 0; i < expected["decoded"].size(); ++i) {
      ids_t ids = expected["ids"][i].get<ids_t>();
      if (i % 2 != 0) std::reverse(ids.begin(), ids.end());
      EXPECT_EQ(tokens.decode(ids, i % 3 == 0 ? specials::dropped : specials::kept),
                expected["decoded"][i].get<std::string>())
          << name << ", text " << i;
    }
  }
}

TEST_F(finetune_tokenizer, sentencepiece_models_give_the_librarys_ids) {
  const json cases = json::parse(read_file(fixtures / "cases.json"))["sentencepiece"];
  write("tokenizer.model", read_file(fixtures / "sentencepiece.model"));
  const tokenizer tokens = load_tokenizer(folder_);
  EXPECT_EQ(tokens.vocab_size(), 600u);
  EXPECT_EQ(tokens.bos(), 1);
  EXPECT_EQ(tokens.eos(), 2);
  EXPECT_FALSE(tokens.pad().has_value());
  EXPECT_EQ(tokens.prefix(), ids_t{1});
  ASSERT_GT(cases["texts"].size(), 20u);
  for (std::size_t i = 0; i < cases["texts"].size(); ++i) {
    const auto text = cases["texts"][i].get<std::string>();
    const auto ids = tokens.encode(text);
    EXPECT_EQ(ids, cases["ids"][i].get<ids_t>()) << text;
    EXPECT_EQ(tokens.decode(ids), cases["decoded"][i].get<std::string>());
  }
  const auto a = tokens.encode("a");
  ids_t marked{1};
  marked.insert(marked.end(), a.begin(), a.end());
  EXPECT_EQ(tokens.encode("a", text_ends::marked), marked);
  EXPECT_EQ(tokens.decode(marked, specials::kept), "<s>a");
  EXPECT_EQ(tokens.decode(marked, specials::dropped), "a");
  EXPECT_EQ(tokens.decode(ids_t{-1, 600, 1000000}), "");
  EXPECT_EQ(tokens.id_of("</s>"), 2);
  EXPECT_FALSE(tokens.id_of("no such piece").has_value());

  for (const std::string& damaged : {std::string(), std::string("not a model"), std::string(100, '\xff')}) {
    write("tokenizer.model", damaged);
    EXPECT_TRUE(says(refusal([&] { load_tokenizer(folder_); }), "is no model of SentencePiece"));
  }
}

TEST_F(finetune_tokenizer, special_ids_come_from_the_first_file_that_names_them) {
  const std::string file = read_file(fixtures / "llama3.json");
  EXPECT_FALSE(load(file).bos().has_value());
  write("config.json", R"({"bos_token_id": 7, "eos_token_id": [9, 8], "pad_token_id": 100000})");
  EXPECT_EQ(load(file).bos(), 7);
  EXPECT_EQ(load(file).eos(), 9);
  EXPECT_FALSE(load(file).pad().has_value());  // stands for no token
  write("special_tokens_map.json", R"({"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}})");
  EXPECT_EQ(load(file).bos(), 0);
  EXPECT_EQ(load(file).eos(), 1);
  write("tokenizer_config.json", R"({"bos_token": null, "eos_token": "<mask>", "pad_token": {"content": "<tool>"}})");
  EXPECT_EQ(load(file).bos(), 0);
  EXPECT_EQ(load(file).eos(), 600);
  EXPECT_EQ(load(file).pad(), 601);
  EXPECT_EQ(load(file).prefix(), ids_t{0});
  EXPECT_EQ(load(file).suffix(), ids_t{1});
  write("tokenizer_config.json", R"({"eos_token": "<nobody>"})");
  EXPECT_TRUE(says(refusal([&] { load(file); }), R"(names "<nobody>" as its eos_token, which the tokenizer lacks)"));
  write("tokenizer_config.json", R"({"eos_token": 5})");
  EXPECT_TRUE(says(refusal([&] { load(file); }), "tokenizer_config.json has no \"content\""));
  write("tokenizer_config.json", "[]");
  EXPECT_TRUE(says(refusal([&] { load(file); }), "tokenizer_config.json is not a JSON object"));
  write("tokenizer_config.json", "{}");
  write("special_tokens_map.json", "{}");
  write("config.json", R"({"bos_token_id": -1})");
  EXPECT_TRUE(says(refusal([&] { load(file); }), "config.json has a \"bos_token_id\" that is not a whole number"));
}

TEST_F(finetune_tokenizer, invalid_utf8_is_refused_and_any_ids_decode) {
  const tokenizer tokens = load(read_file(fixtures / "gpt2.json"));
  for (const std::string bad : {"ab\xff", "ab\xc3", "ab\xed\xa0\x80", "ab\xf4\x90\x80\x80", "ab\xc0\x80", "ab\xe2\x82"})
    EXPECT_TRUE(says(refusal([&] { tokens.encode(bad); }), "not valid UTF-8: byte 2"));
  EXPECT_EQ(refusal([&] { tokens.encode("\xf4\x8f\xbf\xbf \xee\x80\x80 \xc2\x80"); }), "");
  EXPECT_EQ(tokens.decode(ids_t{-5, 100000, 1 << 30}), "");
  std::string all;
  for (std::int32_t id = 0; id < 602; ++id) all += tokens.decode(ids_t{id});
  EXPECT_EQ(invalid_utf8(all), std::string_view::npos);
}

TEST_F(finetune_tokenizer, ids_are_spelled_as_their_vocabulary_has_them) {
  const tokenizer pairs = load(read_file(fixtures / "gpt2.json"));
  std::filesystem::remove(folder_ / "tokenizer.json");
  write("tokenizer.model", read_file(fixtures / "sentencepiece.model"));
  const tokenizer pieces = load_tokenizer(folder_);
  for (const tokenizer& tokens : {pairs, pieces}) {
    std::size_t spelled = 0;
    for (std::int32_t id = 0; static_cast<std::size_t>(id) < tokens.vocab_size(); ++id)
      if (const std::string token = tokens.token_of(id); !token.empty()) {
        EXPECT_EQ(tokens.id_of(token), id);
        ++spelled;
      }
    EXPECT_GT(spelled, 500u);
    EXPECT_EQ(tokens.token_of(-1) + tokens.token_of(100000), "");
  }
}

TEST_F(finetune_tokenizer, tokenizers_of_two_models_are_compared) {
  const auto compared = [&](const std::function<void(json&)>& change, const std::string& name = "llama3.json") {
    for (const char* of : {"own", "other"}) {
      std::filesystem::create_directories(folder_ / of);
      json file = json::parse(read_file(fixtures / name));
      if (std::string(of) == "other") change(file);
      std::ofstream(folder_ / of / "tokenizer.json", std::ios::binary) << file.dump();
    }
    return refusal([&] { expect_same_tokenizer("--teacher", folder_ / "other", folder_ / "own"); });
  };
  EXPECT_EQ(compared([](json&) {}), "");
  EXPECT_EQ(compared([](json& file) { file["truncation"] = nullptr, file["version"] = "2.0"; }), "");
  const auto added = [](json& file, const char* content, int id) {
    json token = file["added_tokens"][0];
    token["content"] = content, token["id"] = id;
    file["added_tokens"].push_back(token);
  };
  EXPECT_EQ(compared([&](json& file) { added(file, "<more>", 700); }), "");  // the other may have ids beyond
  EXPECT_TRUE(says(compared([](json& file) { std::swap(file["model"]["vocab"]["a"], file["model"]["vocab"]["b"]); }),
                   "differ: the id "));
  EXPECT_TRUE(says(compared([](json& file) { std::swap(file["model"]["vocab"]["a"], file["model"]["vocab"]["b"]); }),
                   " is \"a\" in the one, and \"b\" in the other"));
  EXPECT_TRUE(says(compared([](json& file) { file["added_tokens"].erase(file["added_tokens"].size() - 1); }),
                   "in the one, and no token in the other"));
  // The same vocabulary, another order of the merges; or words that end elsewhere.
  EXPECT_TRUE(says(compared([](json& file) {
                     auto& merges = file["model"]["merges"];
                     std::reverse(merges.begin(), merges.end());
                   }),
                   "their vocabularies are the same, but not how they split \"The quick brown fox"));
  EXPECT_TRUE(says(compared([](json& file) {
                     file["pre_tokenizer"] = json::parse(read_file(fixtures / "gpt2.json"))["pre_tokenizer"];
                   }),
                   "their vocabularies are the same, but not how they split"));
  // Nothing is known of a folder without a tokenizer; a tokenizer of another kind is read.
  std::filesystem::remove(folder_ / "other" / "tokenizer.json");
  EXPECT_EQ(refusal([&] { expect_same_tokenizer("--teacher", folder_ / "other", folder_ / "own"); }), "");
  std::filesystem::copy_file(fixtures / "sentencepiece.model", folder_ / "other" / "tokenizer.model");
  EXPECT_TRUE(says(refusal([&] { expect_same_tokenizer("--reference", folder_ / "other", folder_ / "own"); }),
                   "/own and of --reference " + (folder_ / "other").string() + " differ: the id 0 is"));
}

TEST_F(finetune_tokenizer, long_words_take_no_quadratic_time) {
  const tokenizer tokens = load(read_file(fixtures / "llama2.json"));
  std::string word;
  for (int i = 0; i < 200000; ++i) word += "the copyright ";
  const auto ids = tokens.encode(word);  // one word of 2.8 million characters
  EXPECT_GT(ids.size(), 400000u);
  EXPECT_EQ(tokens.decode(ids), word);
}

TEST_F(finetune_tokenizer, what_is_not_known_is_refused_by_name) {
  const auto type = [](const char* part, const char* name) {
    return [=](json& file) { file[part] = {{"type", name}}; };
  };
  EXPECT_TRUE(says(with(type("normalizer", "NFKC")), R"(has the normalizer "NFKC", which is not known here)"));
  EXPECT_TRUE(says(with(type("pre_tokenizer", "Whitespace")), R"(the pre-tokenizer "Whitespace")"));
  EXPECT_TRUE(says(with(type("post_processor", "BertProcessing")), R"(the post-processor "BertProcessing")"));
  EXPECT_TRUE(says(with(type("decoder", "WordPiece")), R"(the decoder "WordPiece")"));
  EXPECT_TRUE(says(with([](json& file) { file["model"]["type"] = "Unigram"; }), R"(the model "Unigram")"));
  EXPECT_TRUE(says(with([](json& file) { file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+\n"; }),
                   R"(has the regular expression of its pre-tokenizer "\\w+\n")"));
  EXPECT_TRUE(says(with([](json& file) { file["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Contiguous"; }),
                   R"(behavior of its regular expression "Contiguous")"));
  EXPECT_TRUE(says(with([](json& file) { file["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Shredded"; }),
                   R"(the behavior "Shredded")"));
  EXPECT_TRUE(says(with([](json& file) {
                     auto& list = file["pre_tokenizer"]["pretokenizers"];
                     list.push_back({{"type", "Digits"}});
                   }),
                   R"(the pre-tokenizer "Digits" behind ByteLevel)"));
  EXPECT_TRUE(says(with([](json& file) { file["model"]["dropout"] = 0.1; }), R"(sets "dropout" of its model)"));
  EXPECT_TRUE(
      says(with([](json& file) { file["model"]["end_of_word_suffix"] = "</w>"; }), R"(sets "end_of_word_suffix")"));
  EXPECT_TRUE(
      says(with([](json& file) { file["added_tokens"][0]["single_word"] = true; }), "single_word of the added token"));
  EXPECT_TRUE(says(with([](json& file) {
                     file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "a+"}}}, {"content", "b"}};
                   }),
                   R"(has the regular expression of its normalizer "a+")"));
  EXPECT_TRUE(says(with([](json& file) { file["pre_tokenizer"]["prepend_scheme"] = "sometimes"; }, "metaspace.json"),
                   R"(the prepend_scheme "sometimes")"));
  // The options that are off in many files, in each spelling.
  EXPECT_EQ(with([](json& file) {
              file["model"]["dropout"] = 0.0, file["model"]["end_of_word_suffix"] = "", file["model"].erase("type");
            }),
            "");
}

TEST_F(finetune_tokenizer, damaged_files_are_refused) {
  const auto set = [](auto pointer, json value) {
    return [=](json& file) { file[json::json_pointer(pointer)] = value; };
  };
  EXPECT_TRUE(says(with(set("/model/merges/5", "a \xc4\xa0nowhere")),
                   "merges to or from \"\\u0120nowhere\" in merge 5, which its vocabulary lacks"));
  EXPECT_TRUE(says(with(set("/model/merges/5", "Q Z")), R"("QZ" in merge 5)"));
  for (const json& merge : {json("a"), json("a b c"), json(5), json({"a"}), json({"a", 5}), json({"a", "b", "c"})})
    EXPECT_TRUE(says(with(set("/model/merges/7", merge)), "has merge 7 that is not of two tokens"));
  EXPECT_TRUE(says(with(set("/model/vocab/a", 0)), "gives the id 0 to both "));
  for (const json& id : {json(-1), json(1e3), json("1"), json(nullptr), json(1u << 22), json(~0ull)})
    EXPECT_TRUE(says(with(set("/model/vocab/a", id)), "\"id of vocab\" that is not a whole number from 0 to 4194303"));
  EXPECT_TRUE(says(with(set("/model/vocab", json::object())), "empty vocab"));
  EXPECT_TRUE(says(with(set("/model/vocab", 5)), "vocab that is not an object"));
  EXPECT_TRUE(says(with(set("/model/merges", 5)), "\"merges\" that are not a list"));
  EXPECT_TRUE(says(with(set("/model", 5)), "model that is not an object"));
  EXPECT_TRUE(says(with(set("/model", nullptr)), "has no \"model\""));
  EXPECT_TRUE(says(with(set("/model/unk_token", "<nobody>")), "unk_token that its vocabulary lacks"));
  EXPECT_TRUE(says(with(set("/model/ignore_merges", 5)), "\"ignore_merges\" that is neither true nor false"));
  EXPECT_TRUE(says(with(set("/added_tokens/1/id", 0)), R"(gives the added token "<|end|>" the id 0, and its vocab 1)"));
  EXPECT_TRUE(says(with(set("/added_tokens/3/id", 600)), R"(gives the id 600 to both "<mask>" and "<tool>")"));
  EXPECT_TRUE(says(with(set("/added_tokens/1/content", "<|begin|>")), "twice"));
  EXPECT_TRUE(says(with(set("/added_tokens/1/content", "")), "empty added token"));
  EXPECT_TRUE(says(with(set("/added_tokens/1/id", 1u << 30)), "\"id of added_tokens\""));
  EXPECT_TRUE(says(with(set("/added_tokens", 5)), "added_tokens that are not a list"));
  EXPECT_TRUE(says(with(set("/post_processor/special_tokens/<|end|>/ids/0", 5000)), "template with the id 5000"));
  EXPECT_TRUE(says(with(set("/post_processor/single/0", {{"Sequence", {{"id", "A"}}}})), "the text in it twice"));
  EXPECT_TRUE(says(with(set("/post_processor/single", json::array())), "without the text in it"));
  EXPECT_TRUE(says(with(set("/post_processor/special_tokens", json::object())), "has no \"<|begin|>\""));
  EXPECT_TRUE(says(with([](json& file) {
                     file["model"]["vocab"].erase("\xc4\xa0"), file["model"]["merges"] = json::array();
                     file["model"]["byte_fallback"] = true;
                   }),
                   R"(lacks the byte "\u0120")"));
}

TEST_F(finetune_tokenizer, broken_json_is_refused) {
  const std::string file = read_file(fixtures / "o200k.json");
  for (std::size_t length = 0; length + 2 < file.size(); length += length < 40 ? 1 : 509)
    EXPECT_TRUE(says(refusal([&] { load(file.substr(0, length)); }), "is not JSON"));
  for (const char open : {'[', '{'}) {
    std::string deep(1000000, open);
    if (open == '{') deep = "{\"a\":" + std::string(500000, '[');
    EXPECT_TRUE(says(refusal([&] { load(deep); }), "nests its JSON too deeply"));
    EXPECT_TRUE(says(refusal([&] { load("{\"model\":" + deep); }), "nests its JSON too deeply"));
  }
  std::string nested = R"({"type": "NFC"})";
  for (int i = 0; i < 25; ++i) nested = R"({"type": "Sequence", "normalizers": [)" + nested + "]}";
  EXPECT_EQ(with([&](json& all) { all["normalizer"] = json::parse(nested); }), "");
  EXPECT_TRUE(says(refusal([&] { load("[]"); }), "is not a JSON object"));
  EXPECT_TRUE(says(refusal([&] { load("{\"model\": 1e999}"); }), "JSON"));
  EXPECT_TRUE(says(refusal([&] { load("{\"a\": \"\xff\"}"); }), "is not JSON"));
  // A byte changed anywhere: a sentence, or a tokenizer that still works.
  for (std::size_t at = 0; at < file.size(); at += 97) {
    std::string changed = file;
    changed[at] = static_cast<char>(changed[at] ^ 0x15);
    const std::string sentence = refusal([&] { load(changed).encode("The copyright 12 \xe2\x82\xac"); });
    EXPECT_EQ(sentence.find('\n'), std::string::npos) << sentence;
  }
  std::filesystem::remove(folder_ / "tokenizer.json");
  EXPECT_TRUE(says(refusal([&] { load_tokenizer(folder_); }), "holds neither tokenizer.json nor tokenizer.model"));
  EXPECT_TRUE(says(refusal([&] { load_tokenizer(folder_ / "nowhere"); }), "holds neither"));
}

}  // namespace
