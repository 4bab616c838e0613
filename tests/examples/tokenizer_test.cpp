#include "../../examples/train_llama/tokenizer.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "../../examples/train_llama/text.hpp"

namespace {

using example::tokenizer;

class tokens : public testing::Test {
 protected:
  tokens() : folder_(std::filesystem::temp_directory_path() / ("tigon-tokens-" + std::to_string(getpid()))) {
    std::filesystem::remove_all(folder_);
    for (int i = 0; i < 400; ++i)
      text_ += "   the " + std::to_string(i * i) + " quick foxes,\tnaïve  dogs\n\nand a “quoted” line " +
               std::string(static_cast<std::size_t>(i % 7), 'x') + "\n";
  }
  ~tokens() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path only_file() const {
    std::vector<std::filesystem::path> files(std::filesystem::directory_iterator(folder_), {});
    EXPECT_EQ(files.size(), 1u);
    return files.empty() ? std::filesystem::path() : files[0];
  }
  static std::string read(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::string refusal(const std::function<void()>& call) {
    try {
      call();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return {};
  }

  std::filesystem::path folder_;
  std::string text_;
};

TEST_F(tokens, bytes_are_themselves) {
  const auto plain = tokenizer::bytes();
  EXPECT_EQ(plain.vocab(), 256);
  EXPECT_EQ(plain.encode("a\xff\n"), (std::vector<std::int32_t>{'a', 255, '\n'}));
  EXPECT_EQ(plain.decode(plain.encode(text_)), text_);
}

TEST_F(tokens, bpe_gives_the_text_back) {
  const auto bpe = tokenizer::bpe(text_, 400, folder_);
  const auto ids = bpe.encode(text_);
  EXPECT_LT(ids.size(), text_.size() / 2);
  for (const auto id : ids) ASSERT_TRUE(id >= 0 && id < 400);
  EXPECT_EQ(bpe.decode(ids), text_);
  // Letters that the training text did not have, no newline at the end, blanks at both ends.
  for (const std::string other : {"", "\n", " ", "日本 Ω!", "\n\n  two\r\n", "end  "})
    EXPECT_EQ(bpe.decode(bpe.encode(other)), other);
}

TEST_F(tokens, training_is_cached_and_deterministic) {
  const auto first = tokenizer::bpe(text_, 400, folder_);
  const std::string model = read(only_file());
  const auto written = std::filesystem::last_write_time(only_file());
  const auto cached = tokenizer::bpe(text_, 400, folder_);
  EXPECT_EQ(std::filesystem::last_write_time(only_file()), written);
  EXPECT_EQ(cached.encode(text_), first.encode(text_));
  EXPECT_EQ(cached.name(), first.name());

  std::filesystem::remove_all(folder_);
  tokenizer::bpe(text_, 400, folder_);
  EXPECT_EQ(read(only_file()), model);
  EXPECT_NE(tokenizer::bpe(text_ + "more", 400, folder_).name(), first.name());
  EXPECT_NE(tokenizer::bpe(text_, 401, folder_).name(), first.name());
}

TEST_F(tokens, a_damaged_cache_is_trained_anew) {
  const auto first = tokenizer::bpe(text_, 400, folder_);
  const std::string model = read(only_file());
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, model.size() / 2}) {
    std::ofstream(only_file(), std::ios::binary) << model.substr(0, length);
    EXPECT_EQ(tokenizer::bpe(text_, 400, folder_).encode(text_), first.encode(text_));
    EXPECT_EQ(read(only_file()), model);
  }
  // A model of another size under this name is no better.
  tokenizer::bpe(text_, 300, folder_ / "other");
  const std::filesystem::path other = std::filesystem::directory_iterator(folder_ / "other")->path();
  const std::string small = read(other);
  std::filesystem::remove_all(folder_ / "other");
  std::ofstream(only_file(), std::ios::binary) << small;
  EXPECT_EQ(tokenizer::bpe(text_, 400, folder_).encode(text_), first.encode(text_));
}

TEST_F(tokens, a_changed_byte_of_the_cache_is_noticed) {
  // SentencePiece itself takes a model with another letter in a piece, and has other pieces then.
  const auto first = tokenizer::bpe(text_, 300, folder_);
  const std::string kept = read(only_file());
  for (std::size_t part = 0; part < 12; ++part) {
    std::string changed = kept;
    changed[part * kept.size() / 12] ^= 1;
    std::ofstream(only_file(), std::ios::binary) << changed;
    EXPECT_EQ(tokenizer::bpe(text_, 300, folder_).encode(text_), first.encode(text_)) << part;
    EXPECT_EQ(read(only_file()), kept) << part;
  }
  std::ofstream(only_file(), std::ios::binary) << kept << "more";
  tokenizer::bpe(text_, 300, folder_);
  EXPECT_EQ(read(only_file()), kept);
}

TEST_F(tokens, programs_that_find_no_cache_make_it_together) {
  const std::string expected = [&] {
    tokenizer::bpe(text_, 300, folder_);
    return read(only_file());
  }();
  for (int round = 0; round < 10; ++round) {
    std::filesystem::remove_all(folder_);
    int gate[2];
    ASSERT_EQ(pipe(gate), 0);
    std::vector<pid_t> programs;
    for (int i = 0; i < 6; ++i) {
      programs.push_back(fork());
      if (programs.back() != 0) continue;
      char end = 0;
      close(gate[1]);
      (void)!::read(gate[0], &end, 1);  // until all are there
      _exit(refusal([&] { tokenizer::bpe(text_, 300, folder_); }).empty() ? 0 : 1);
    }
    close(gate[0]), close(gate[1]);
    for (const pid_t program : programs) {
      int status = 0;
      ASSERT_EQ(waitpid(program, &status, 0), program);
      EXPECT_EQ(status, 0) << "round " << round;
    }
    EXPECT_EQ(read(only_file()), expected);
  }
}

TEST_F(tokens, what_an_ended_program_left_in_the_cache_does_no_harm) {
  const auto first = tokenizer::bpe(text_, 300, folder_);
  const auto model = only_file();
  std::filesystem::remove(model);
  // Under the name that a partial file had, and as one has it now.
  std::filesystem::create_directories(model.string() + ".partial");
  std::ofstream(folder_ / ".tigon-1-00000000.partial") << "half a model";
  EXPECT_EQ(tokenizer::bpe(text_, 300, folder_).encode(text_), first.encode(text_));
  EXPECT_TRUE(std::filesystem::is_regular_file(model));
  std::filesystem::remove(model);
  std::filesystem::create_directory(model);
  const auto sentence = refusal([&] { tokenizer::bpe(text_, 300, folder_); });
  EXPECT_NE(sentence.find("choose another --cache-dir"), std::string::npos) << sentence;
}

TEST_F(tokens, one_long_line_is_not_dropped) {
  std::string line;
  for (int i = 0; i < 30000; ++i) line += "abracadabra ";
  const auto bpe = tokenizer::bpe(line, 270, folder_);
  EXPECT_LT(bpe.encode(line).size(), line.size() / 5);
}

TEST_F(tokens, impossible_vocabularies_are_refused_with_the_possible) {
  const auto with = [&](int vocab) { return refusal([&] { tokenizer::bpe(text_, vocab, folder_); }); };
  EXPECT_NE(with(100).find("no vocabulary of 100 pieces"), std::string::npos) << with(100);
  EXPECT_NE(with(100).find("smallest is --vocab "), std::string::npos) << with(100);
  EXPECT_NE(with(500000).find("largest is --vocab "), std::string::npos) << with(500000);
  const std::string sentence = with(500000);
  const int largest = std::stoi(sentence.substr(sentence.rfind(' ')));
  EXPECT_EQ(with(largest), "");
  EXPECT_NE(with(largest + 1), "");
}

TEST_F(tokens, a_cache_that_cannot_be_written_is_said) {
  std::ofstream(folder_.string() + "-file") << "not a folder";
  const auto sentence = refusal([&] { tokenizer::bpe(text_, 400, folder_.string() + "-file"); });
  EXPECT_NE(sentence.find("--cache-dir"), std::string::npos) << sentence;
  std::filesystem::remove(folder_.string() + "-file");
}

TEST_F(tokens, text_is_read_plain_and_compressed) {
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ / "plain") << text_;
  EXPECT_EQ(example::load_text(folder_ / "plain"), text_);

  gzFile out = gzopen((folder_ / "text.gz").c_str(), "wb");
  gzwrite(out, text_.data(), static_cast<unsigned>(text_.size()));
  gzclose(out);
  EXPECT_EQ(example::load_text(folder_ / "text.gz"), text_);

  // A compressed text with another byte anywhere, or cut anywhere, is damaged or is the text; it never is another one.
  const std::string whole = read(folder_ / "text.gz");
  for (std::size_t at = 2; at < whole.size(); at += at < 24 || whole.size() - at < 24 ? 1 : 37) {
    std::string changed = whole;
    changed[at] ^= 0x10;
    for (const std::string& content : {changed, whole.substr(0, at)}) {
      std::ofstream(folder_ / "changed.gz", std::ios::binary) << content;
      std::string got;
      const std::string sentence = refusal([&] { got = example::load_text(folder_ / "changed.gz"); });
      EXPECT_TRUE(sentence.empty() ? got == text_ : got.empty()) << at << ": " << sentence;
    }
  }

  std::filesystem::resize_file(folder_ / "text.gz", std::filesystem::file_size(folder_ / "text.gz") / 2);
  EXPECT_NE(refusal([&] { example::load_text(folder_ / "text.gz"); }).find("damaged"), std::string::npos);
  EXPECT_NE(refusal([&] { example::load_text(folder_ / "none"); }).find("does not exist"), std::string::npos);
  EXPECT_NE(refusal([&] { example::load_text(folder_); }).find("does not exist"), std::string::npos);
  std::ofstream(folder_ / "empty");
  EXPECT_NE(refusal([&] { example::load_text(folder_ / "empty"); }).find("empty"), std::string::npos);
}

TEST_F(tokens, the_held_out_end_is_at_least_one_window) {
  std::vector<std::int32_t> ids(1000);
  const auto parts = example::split(ids, 16);
  EXPECT_EQ(parts.train.size(), 950u);
  EXPECT_EQ(parts.held_out.size(), 50u);
  EXPECT_EQ(parts.held_out.data(), ids.data() + 950);
  EXPECT_EQ(example::split(ids, 499).held_out.size(), 500u);
  const auto sentence = refusal([&] { example::split(ids, 500); });
  EXPECT_NE(sentence.find("1000 tokens"), std::string::npos) << sentence;
  EXPECT_NE(sentence.find("need 1002"), std::string::npos) << sentence;
}

}  // namespace
