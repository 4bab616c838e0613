#include "../../tools/finetune/data.hpp"
#include "../examples/refusals.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace example::finetune;
using tigon::test::refusal;
using ids_t = std::vector<std::int32_t>;

constexpr std::int32_t bos = 257, eos = 258, none = not_counted;

/// Bytes are their own ids, but for ^ and $, which stand for begin and end.
class byte_tokenizer : public tokenizer_model {
 public:
  void encode(std::string_view text, ids_t& ids) const override {
    for (const char c : text) ids.push_back(c == '^' ? bos : c == '$' ? eos : static_cast<unsigned char>(c));
  }
  std::string decode(std::span<const std::int32_t> ids, specials) const override { return {ids.begin(), ids.end()}; }
  std::optional<std::int32_t> id_of(std::string_view) const override { return std::nullopt; }
  std::string token_of(std::int32_t) const override { return {}; }
  std::size_t vocab_size() const override { return 260; }
};

const tokenizer plain_bytes(std::make_shared<byte_tokenizer>(), {});
const tokenizer marked_bytes(std::make_shared<byte_tokenizer>(), {bos, eos, 259, {bos}, {}});

testing::AssertionResult says(const std::string& sentence, const std::string& part) {
  if (sentence.find(part) != std::string::npos && sentence.find('\n') == std::string::npos)
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << '"' << sentence << "\" does not say \"" << part << '"';
}

class finetune_data : public testing::Test {
 protected:
  finetune_data() {
    folder_ = std::filesystem::temp_directory_path() / ("tigon-finetune-data-" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~finetune_data() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path file(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  std::string refused(const std::string& name, const std::string& text, const data_options& options = {}) {
    return refusal([&] { read_samples(file(name, text), marked_bytes, options); });
  }

  std::filesystem::path folder_;
};

TEST_F(finetune_data, texts_are_learned_from_their_begin_to_their_end) {
  const auto path = file("a.jsonl", "{\"text\": \"ab\"}\r\n\n  \n{\"text\": \"c\", \"more\": [1]}\n{\"text\": \"\"}");
  EXPECT_EQ(read_samples(path, marked_bytes),
            (std::vector<sample>{{{bos, 'a', 'b'}, {'a', 'b', eos}}, {{bos, 'c'}, {'c', eos}}, {{bos}, {eos}}}));
  // Without begin and end of texts, a single token leaves nothing to learn.
  EXPECT_EQ(read_samples(path, plain_bytes), (std::vector<sample>{{{'a'}, {'b'}}}));
  EXPECT_TRUE(says(refusal([&] { read_samples(file("b.jsonl", "{\"text\": \"c\"}\n"), plain_bytes); }),
                   "holds no text of two tokens"));
}

TEST_F(finetune_data, tokens_are_learned_where_their_labels_are) {
  const auto path = file("a.jsonl",
                         "{\"input_ids\": [5, 6, 7]}\n{\"input_ids\": [5, 6, 7, 8], \"labels\": [5, -100, 7, -100]}\n"
                         "{\"input_ids\": [5, 6], \"labels\": [5, -100]}\n");
  EXPECT_EQ(read_samples(path, marked_bytes), (std::vector<sample>{{{5, 6}, {6, 7}}, {{5, 6, 7}, {none, 7, none}}}));
  data_options options;
  options.most_tokens = 2;
  EXPECT_EQ(read_samples(path, marked_bytes, options), (std::vector<sample>{{{5}, {6}}}));
  options.vocab = 258;
  for (const auto& [line, part] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"input_ids": [1, 260]})", "\"input_ids\" that is not a whole number from 0 to 259"},
           {R"({"input_ids": [1, -1]})", "\"input_ids\" that is not a whole number"},
           {R"({"input_ids": 1})", "\"input_ids\" that are not a list"},
           {R"({"input_ids": [1, 2], "labels": [1]})", "another number of \"labels\""},
           {R"({"input_ids": [1, 2], "labels": [1, 3]})", "neither the id of their token nor -100"},
           {R"({"input_ids": [1, 2], "labels": [1, "2"]})", "neither the id of their token nor -100"},
           {R"({"input_ids": [1, 2], "attention_mask": [1, 0]})", "\"attention_mask\" beside \"input_ids\""},
           {R"({"input_ids": [1, 2], "text": "a"})", "both \"text\" and \"input_ids\""}})
    EXPECT_TRUE(says(refused("b.jsonl", line), part)) << line;
  EXPECT_TRUE(says(refused("b.jsonl", R"({"text": "a"})", options),
                   "line 1, has a token with the id 258, and the model has 258"));
}

TEST_F(finetune_data, ends_that_a_text_spells_out_are_not_put_there_again) {
  const auto path =
      file("a.jsonl", "{\"text\": \"^a$\"}\n{\"prompt\": \"^x\", \"completion\": \"a$\"}\n{\"text\": \"^\"}");
  EXPECT_EQ(read_samples(path, marked_bytes),
            (std::vector<sample>{{{bos, 'a'}, {'a', eos}}, {{bos, 'x', 'a'}, {none, 'a', eos}}, {{bos}, {eos}}}));
}

TEST_F(finetune_data, prompts_are_not_learned) {
  const auto path = file("a.jsonl",
                         "{\"prompt\": \"xy\", \"completion\": \"ab\"}\n{\"prompt\": \"\", \"completion\": \"a\"}\n"
                         "{\"prompt\": \"x\", \"completion\": \"\"}");
  EXPECT_EQ(read_samples(path, marked_bytes),
            (std::vector<sample>{{{bos, 'x', 'y', 'a', 'b'}, {none, none, 'a', 'b', eos}},
                                 {{bos, 'a'}, {'a', eos}},
                                 {{bos, 'x'}, {none, eos}}}));
  // Without begin and end: the first token of all follows nothing.
  EXPECT_EQ(read_samples(path, plain_bytes), (std::vector<sample>{{{'x', 'y', 'a'}, {none, 'a', 'b'}}}));
  // Cut behind three tokens, nothing of an answer is left of one sample.
  EXPECT_EQ(read_samples(path, marked_bytes, {{}, 0, 3}),
            (std::vector<sample>{{{bos, 'a'}, {'a', eos}}, {{bos, 'x'}, {none, eos}}}));
}

TEST_F(finetune_data, pairs_share_their_prompt) {
  const auto path = file("a.jsonl", "{\"prompt\": \"x\", \"chosen\": \"ab\", \"rejected\": \"c\"}\n");
  EXPECT_EQ(
      read_preferences(path, marked_bytes),
      (std::vector<preference>{{{{bos, 'x', 'a', 'b'}, {none, 'a', 'b', eos}}, {{bos, 'x', 'c'}, {none, 'c', eos}}}}));
  EXPECT_TRUE(
      says(refusal([&] { read_preferences(file("b.jsonl", "\n{\"prompt\": \"x\", \"chosen\": \"a\"}"), plain_bytes); }),
           R"(b.jsonl, line 2, has no "rejected", but "chosen", "prompt")"));
  EXPECT_TRUE(says(refusal([&] { read_preferences(file("b.jsonl", "\n"), plain_bytes); }), "holds no pair of answers"));
}

TEST_F(finetune_data, plain_text_is_one_document_and_ids_are_one_a_line) {
  EXPECT_EQ(read_samples(file("a.txt", "a\nb"), marked_bytes),
            (std::vector<sample>{{{bos, 'a', '\n', 'b'}, {'a', '\n', 'b', eos}}}));
  const auto path = file("a.ids", "1 2\t3\r\n\n7\n0 259");
  EXPECT_EQ(read_samples(path, marked_bytes), (std::vector<sample>{{{1, 2}, {2, 3}}, {{0}, {259}}}));
  EXPECT_EQ(read_ids(path, 300, 2), (std::vector<sample>{{{1}, {2}}, {{0}, {259}}}));
  EXPECT_EQ(read_samples(file("any", "5 6"), marked_bytes, {data_kind::ids}), (std::vector<sample>{{{5}, {6}}}));
}

TEST_F(finetune_data, errors_name_file_and_line) {
  const std::string good = "{\"text\": \"ab\"}\n";
  EXPECT_TRUE(says(refused("a.jsonl", good + "\n{\"text\": \"a"), "a.jsonl, line 3, is not JSON"));
  EXPECT_TRUE(says(refused("a.jsonl", good + "[1]"), "line 2, is not a JSON object"));
  EXPECT_TRUE(says(
      refused("a.jsonl", good + "{\"texts\": 5, \"b\\n\": 1}"),
      R"(line 2, has neither "text" nor "prompt" and "completion" nor "messages" nor "input_ids", but "b\n", "texts")"));
  EXPECT_TRUE(says(refused("a.jsonl", "{}"), "but nothing"));
  EXPECT_TRUE(says(refused("a.jsonl", "{\"text\": 5}"), R"(line 1, has a "text" that is not a string)"));
  EXPECT_TRUE(says(refused("a.jsonl", "{\"text\": null}"), R"(line 1, has no "text")"));
  EXPECT_TRUE(says(refused("a.jsonl", "{\"text\": \"\\ud800\"}"), "line 1, is not JSON"));
  EXPECT_TRUE(says(refused("a.jsonl", "{\"text\": \"\xff\"}"), "line 1, is not JSON"));
  EXPECT_TRUE(says(refused("a.jsonl", good + "{\"text\": " + std::string(100000, '[')), "line 2, nests its JSON too"));
  std::string many = "{";
  for (int i = 0; i < 50; ++i) many += "\"key" + std::to_string(i) + "\": 1, ";
  EXPECT_LT(refused("a.jsonl", many + "\"z\": 2}").size(), 400u);
  EXPECT_TRUE(says(refused("a.txt", "a\nb\n\xff"), "a.txt, line 3, is not valid UTF-8"));
  EXPECT_TRUE(says(refused("a.ids", "1 2\n3 -4"), R"(a.ids, line 2, has "-4", which is no id below 260)"));
  for (const char* word : {"260", "1x", "0x1", "1.0", "99999999999999999999", "\"", "\xff"})
    EXPECT_TRUE(says(refused("a.ids", std::string("1 2\n5 ") + word), "a.ids, line 2, has "));
  EXPECT_TRUE(says(refused("a.ids", "1\n2\n"), "holds no document of two tokens"));
  EXPECT_TRUE(says(refused("a.jsonl", ""), "holds no text"));
  EXPECT_TRUE(says(refused("a.csv", ""), "a.csv is of no known kind"));
  EXPECT_TRUE(says(refusal([&] { read_samples(folder_ / "none.txt", plain_bytes); }), "none.txt cannot be opened"));
  EXPECT_TRUE(says(refusal([&] { read_samples(folder_, plain_bytes, {data_kind::text}); }), "cannot be opened"));
  data_options small;
  small.vocab = 'b';
  EXPECT_TRUE(
      says(refusal([&] { read_samples(file("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}"), plain_bytes, small); }),
           "line 2, has a token with the id 98, and the model has 98"));
}

std::vector<sample> samples_of(const std::vector<std::size_t>& lengths) {
  std::vector<sample> out;
  std::int32_t next = 0;
  for (const std::size_t length : lengths) {
    ids_t tokens(length + 1);
    for (auto& id : tokens) id = next++;
    out.push_back(sample_of(tokens));
  }
  return out;
}

TEST_F(finetune_data, samples_fill_the_first_window_that_has_room) {
  const auto samples = samples_of({5, 4, 3, 8, 1, 10, 2});
  EXPECT_EQ(pack(samples, 8),
            (std::vector<std::vector<slice>>{
                {{0, 0, 5}, {2, 0, 3}}, {{1, 0, 4}, {4, 0, 1}, {5, 8, 2}}, {{3, 0, 8}}, {{5, 0, 8}}, {{6, 0, 2}}}));
  EXPECT_TRUE(pack({}, 8).empty());
  EXPECT_TRUE(says(refusal([&] { pack(samples, 0); }), "at least one token"));
}

TEST_F(finetune_data, packing_equals_a_plain_first_fit_and_keeps_every_token_once) {
  std::mt19937 draw(4);
  for (const std::size_t seq_len : {std::size_t{1}, std::size_t{7}, std::size_t{64}}) {
    std::vector<std::size_t> lengths(300);
    for (auto& length : lengths) length = 1 + draw() % 90;
    const auto samples = samples_of(lengths);
    const auto packed = pack(samples, seq_len);
    std::vector<std::size_t> room;
    std::vector<std::vector<slice>> expected;
    for (std::size_t i = 0; i < lengths.size(); ++i)
      for (std::size_t first = 0; first < lengths[i]; first += seq_len) {
        const std::size_t count = std::min(seq_len, lengths[i] - first);
        std::size_t at = 0;
        while (at < room.size() && room[at] < count) ++at;
        if (at == room.size()) room.push_back(seq_len), expected.emplace_back();
        room[at] -= count;
        expected[at].push_back({i, first, count});
      }
    EXPECT_EQ(packed, expected);
    std::multiset<std::pair<std::int32_t, std::int32_t>> before, after;
    for (const auto& s : samples)
      for (std::size_t i = 0; i < s.ids.size(); ++i) before.emplace(s.ids[i], s.targets[i]);
    for (const auto& slices : packed) {
      const window w = make_window(samples, slices, seq_len);
      for (std::size_t i = 0; i < w.ids.size(); ++i) after.emplace(w.ids[i], w.targets[i]);
    }
    EXPECT_EQ(before, after);
  }
}

TEST_F(finetune_data, answers_with_labels_have_prompts_apart) {
  const auto read = [&](const std::string& text, std::size_t most = 0) {
    data_options options;
    options.most_tokens = most;
    return read_labelled_answers(file("labels.jsonl", text), marked_bytes, options);
  };
  const std::string two = R"({"prompt": "ab", "completion": "c", "label": true})"
                          "\n"
                          R"({"completion": "$", "label": false, "prompt": ""})";
  EXPECT_EQ(read(two), (std::vector<labelled_answer>{{{bos, 'a', 'b'}, {'c', eos}, true}, {{bos}, {eos}, false}}));
  EXPECT_EQ(read(two, 3), (std::vector<labelled_answer>{{{bos}, {eos}, false}}));  // the other's prompt fills it
  const auto refused_line = [&](const std::string& line) { return refusal([&] { read(line); }); };
  EXPECT_TRUE(says(refused_line(R"({"prompt": "a", "completion": "b"})"),
                   R"(labels.jsonl, line 1, has no "label", but "completion", "prompt")"));
  EXPECT_TRUE(says(refused_line(R"({"prompt": "a", "completion": "b", "label": null})"), R"(has no "label")"));
  EXPECT_TRUE(says(refused_line(R"({"prompt": "a", "completion": "b", "label": 1})"),
                   R"(has a "label" that is neither true nor false)"));
  EXPECT_TRUE(says(refused_line(R"({"prompt": "a", "completion": 5, "label": true})"), R"("completion" that is not)"));
  EXPECT_TRUE(says(refused_line(R"({"prompt": "a", "label": true})"), R"(has no "completion")"));
  EXPECT_TRUE(says(refusal([&] { read(two, 1); }), "holds no answer with a label"));
  EXPECT_TRUE(says(refusal([&] {
                     read_labelled_answers(file("labels.jsonl", R"({"prompt": "", "completion": "b", "label": true})"),
                                           plain_bytes);
                   }),
                   R"(has a "prompt" without a token)"));
}

TEST_F(finetune_data, each_prompt_gets_the_answer_before_it_in_its_group) {
  std::vector<labelled_answer> all;
  for (std::int32_t i = 0; i < 7; ++i) all.push_back({{10 + i, 10 + i}, {20 + i, 30 + i}, i % 2 == 0});
  // The answers that stand behind the prompts.
  const auto answers = [&](std::size_t count, std::size_t group) {
    std::vector<std::int32_t> out;
    const auto samples = with_others_answers(std::span(all).first(count), group, 4);
    EXPECT_EQ(samples.size(), 2 * count);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      EXPECT_EQ(samples[i].ids[0], 10 + static_cast<std::int32_t>(i / 2));
      EXPECT_EQ(samples[i].targets[0], none);
      if (i % 2 == 0) {
        EXPECT_EQ(samples[i].targets[1], 20 + static_cast<std::int32_t>(i / 2));
      } else {
        out.push_back(samples[i].targets[1] - 20);
      }
    }
    return out;
  };
  EXPECT_EQ(answers(6, 3), (ids_t{2, 0, 1, 5, 3, 4}));
  EXPECT_EQ(answers(7, 3), (ids_t{2, 0, 1, 6, 3, 4, 5}));  // none is left alone
  EXPECT_EQ(answers(5, 3), (ids_t{2, 0, 1, 4, 3}));
  EXPECT_EQ(answers(2, 3), (ids_t{1, 0}));
  const auto cut = with_others_answers(std::span(all).first(2), 2, 3);
  EXPECT_EQ(cut[1], (sample{{10, 10}, {none, 21}}));
}

TEST_F(finetune_data, windows_keep_documents_apart) {
  const auto samples = samples_of({3, 2});  // ids 0 1 2, 4 5
  const auto packed = pack(samples, 8);
  ASSERT_EQ(packed.size(), 1u);
  const window open = make_window(samples, packed[0], 8);
  EXPECT_EQ(open.ids, (ids_t{0, 1, 2, 4, 5}));
  EXPECT_EQ(open.targets, (ids_t{1, 2, 3, 5, 6}));
  EXPECT_EQ(open.begins, (ids_t{0, 3, 5}));
  const window full = make_window(samples, packed[0], 8, 99);
  EXPECT_EQ(full.ids, (ids_t{0, 1, 2, 4, 5, 99, 99, 99}));
  EXPECT_EQ(full.targets, (ids_t{1, 2, 3, 5, 6, none, none, none}));
  EXPECT_EQ(full.begins, (ids_t{0, 3, 5, 8}));
  const window exact = make_window(samples, packed[0], 5, 99);
  EXPECT_EQ(exact.begins, (ids_t{0, 3, 5}));
}

TEST_F(finetune_data, order_depends_on_seed_and_epoch_and_goes_on_from_a_cursor) {
  shuffled_order whole(50, 3);
  std::vector<std::size_t> all;
  std::vector<cursor> saved;
  for (int i = 0; i < 170; ++i) saved.push_back(whole.at()), all.push_back(whole.next());
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(50 * epoch);
    EXPECT_EQ(std::set<std::size_t>(first, first + 50).size(), 50u);
  }
  EXPECT_FALSE(std::equal(all.begin(), all.begin() + 50, all.begin() + 50));
  EXPECT_NE(shuffled(50, 3, 0), shuffled(50, 4, 0));
  // The same numbers with every standard library.
  EXPECT_EQ(shuffled(8, 1, 0), (std::vector<std::size_t>{6, 5, 2, 4, 3, 1, 0, 7}));
  for (const std::size_t cut : {0u, 1u, 49u, 50u, 51u, 120u}) {
    shuffled_order rest(50, 3, saved[cut]);
    for (std::size_t i = cut; i < all.size(); ++i) ASSERT_EQ(rest.next(), all[i]) << cut << ' ' << i;
  }
  EXPECT_TRUE(says(refusal([&] { shuffled_order(50, 3, {0, 51}); }), "lies beyond the data"));
  EXPECT_TRUE(says(refusal([&] { shuffled_order(0, 3); }), "nothing to draw from"));
}

TEST_F(finetune_data, a_share_is_kept_for_evaluation) {
  std::vector<int> numbers(100);
  for (int i = 0; i < 100; ++i) numbers[static_cast<std::size_t>(i)] = i;
  const auto parts = keep_for_evaluation(numbers, 0.1, 5);
  EXPECT_EQ(parts.evaluation.size(), 10u);
  EXPECT_EQ(parts.training.size(), 90u);
  EXPECT_TRUE(std::is_sorted(parts.training.begin(), parts.training.end()));
  std::set<int> both(parts.training.begin(), parts.training.end());
  both.insert(parts.evaluation.begin(), parts.evaluation.end());
  EXPECT_EQ(both.size(), 100u);
  EXPECT_EQ(keep_for_evaluation(numbers, 0.1, 5).evaluation, parts.evaluation);
  EXPECT_NE(keep_for_evaluation(numbers, 0.1, 6).evaluation, parts.evaluation);
  EXPECT_EQ(keep_for_evaluation(numbers, 0.001, 5).evaluation.size(), 1u);
  EXPECT_EQ(keep_for_evaluation(numbers, 0.999, 5).training.size(), 1u);

  const sample document = samples_of({10})[0];
  const auto cut = keep_end_for_evaluation(document, 0.25);
  EXPECT_EQ(cut.training, (std::vector<sample>{{{0, 1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6, 7}}}));
  EXPECT_EQ(cut.evaluation, (std::vector<sample>{{{7, 8, 9}, {8, 9, 10}}}));
  EXPECT_TRUE(says(refusal([&] { keep_for_evaluation(std::vector<int>{1}, 0.5, 1); }), "too few"));
  for (const double share : {0.0, 1.0, -1.0, std::nan("")})
    EXPECT_TRUE(says(refusal([&] { keep_for_evaluation(numbers, share, 1); }), "between 0 and 1"));
}

}  // namespace
