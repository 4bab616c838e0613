#include "../../support/safetensors.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "../../support/inventory.hpp"
#include "../../support/output_file.hpp"
#include "refusals.hpp"

namespace {

using example::dtype, example::safetensors_file;

thread_local std::vector<std::string> calls;

class safetensors : public testing::Test {
 protected:
  safetensors()
      : folder_(std::filesystem::temp_directory_path() / ("tigon-safetensors-" + std::to_string(getpid()))),
        path_(folder_ / "file.safetensors") {
    std::filesystem::create_directories(folder_);
  }
  ~safetensors() override { std::filesystem::remove_all(folder_); }

  /// A file by hand: the claimed header length, the header, `data` bytes counting up.
  void put(const std::string& header, std::size_t data, std::uint64_t claim) {
    std::ofstream out(path_, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&claim), sizeof claim);
    out << header;
    for (std::size_t i = 0; i < data; ++i) out.put(static_cast<char>(i));
  }
  void put(const std::string& header, std::size_t data) { put(header, data, header.size()); }

  /// The sentence with which the file is refused, or "" if it is not.
  std::string refusal() const {
    try {
      safetensors_file::load(path_);
      return {};
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(path_.string()), std::string::npos) << error.what();
      return error.what();
    }
  }
  void refused_with(const std::string& part) const {
    const std::string sentence = refusal();
    EXPECT_NE(sentence.find(part), std::string::npos) << "wanted \"" << part << "\", got \"" << sentence << '"';
  }

  void only_file_is(const std::string& name) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) EXPECT_EQ(entry.path().filename(), name);
  }

  std::filesystem::path folder_, path_;
};

TEST_F(safetensors, comes_back_as_it_was_saved) {
  const std::vector<float> weights{1.5f, -2.0f, 0.0f, 1e-40f, 3.0f, 4.0f};
  const std::vector<std::int64_t> step{-7};
  const std::vector<std::uint8_t> flags{1, 0, 1};
  const std::vector<std::uint16_t> halves{0x3f80, 0xbf80};
  example::save_safetensors(path_,
                            {{"a flags", example::view_of(dtype::boolean, {3}, flags)},
                             {"b halves", example::view_of(dtype::bf16, {2, 1}, halves)},
                             {"c weights", example::view_of(dtype::f32, {2, 3}, weights)},
                             {"d step", example::view_of(dtype::i64, {}, step)},
                             {"e none", example::view_of(dtype::f32, {0, 5}, std::vector<float>{})}},
                            {{"format", "test"}, {"quote", "\"\n"}});

  const auto file = safetensors_file::load(path_);
  EXPECT_EQ(file.tensors().size(), 5u);
  EXPECT_EQ(file.at("c weights").shape, (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(file.at("c weights").type, dtype::f32);
  EXPECT_EQ(file.at("c weights").values<float>(), weights);
  EXPECT_EQ(file.at("d step").shape, std::vector<std::size_t>{});
  EXPECT_EQ(file.at("d step").values<std::int64_t>(), step);
  EXPECT_EQ(file.at("a flags").values<std::uint8_t>(), flags);
  EXPECT_EQ(file.at("b halves").values<std::uint16_t>(), halves);
  EXPECT_EQ(file.at("e none").numel(), 0u);
  EXPECT_EQ(file.meta("format"), "test");
  EXPECT_EQ(file.meta("quote"), "\"\n");
  only_file_is("file.safetensors");

  for (const auto& [name, tensor] : file.tensors())
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) % example::info(tensor.type).size, 0u) << name;
  EXPECT_THROW(file.at("c weights").values<double>(), std::runtime_error);
  EXPECT_THROW(file.at("missing"), std::runtime_error);
  EXPECT_THROW(file.meta("missing"), std::runtime_error);
}

// Of a mapped file, released pages are read from it again; of a loaded one nothing can be released.
TEST_F(safetensors, a_released_tensor_can_be_read_again) {
  std::vector<float> values(50'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 0.5f;
  example::save_safetensors(path_, {{"a", example::view_of(dtype::f32, {3}, std::vector<float>{1, 2, 3})},
                                    {"b", example::view_of(dtype::f32, {values.size()}, values)}});
  for (const bool mapped : {false, true}) {
    const auto file = mapped ? safetensors_file::map(path_) : safetensors_file::load(path_);
    EXPECT_EQ(file.at("b").values<float>(), values);
    file.release(file.at("b"));
    EXPECT_EQ(file.at("b").values<float>(), values);
    EXPECT_EQ(file.at("a").values<float>(), (std::vector<float>{1, 2, 3}));
  }
}

TEST_F(safetensors, every_dtype_has_its_name_and_size) {
  const std::size_t sizes[]{8, 4, 2, 2, 8, 4, 1, 1};
  const char* names[]{"F64", "F32", "BF16", "F16", "I64", "I32", "U8", "BOOL"};
  for (std::size_t i = 0; i < std::size(sizes); ++i) {
    put(R"({"x":{"dtype":")" + std::string(names[i]) + R"(","shape":[3],"data_offsets":[0,)" +
            std::to_string(3 * sizes[i]) + "]}}",
        3 * sizes[i]);
    const auto file = safetensors_file::load(path_);
    EXPECT_EQ(file.at("x").type, static_cast<dtype>(i));
    EXPECT_EQ(file.at("x").numel(), 3u);
    EXPECT_EQ(file.at("x").bytes[1], std::byte{1});
  }
}

TEST_F(safetensors, a_file_cut_anywhere_is_refused) {
  std::vector<float> values(37);
  std::iota(values.begin(), values.end(), 0.0f);
  example::save_safetensors(path_, {{"x", example::view_of(dtype::f32, {37}, values)}}, {{"k", "v"}});
  const auto whole = std::filesystem::file_size(path_);
  for (std::uintmax_t length = 0; length < whole; ++length) {
    std::filesystem::resize_file(path_, whole - 1 - length);
    EXPECT_NE(refusal(), "") << whole - 1 - length;
  }
  std::filesystem::remove(path_);
  refused_with("cannot be opened");
}

TEST_F(safetensors, refuses_a_wrong_header_length) {
  put("{}", 0, 3);
  refused_with("claims a header of 3 bytes, but is only 10 bytes long");
  put("{}", 0, 100'000'001);
  refused_with("more than the format allows");
  put("{}", 0, ~std::uint64_t{0} - 3);
  refused_with("more than the format allows");
}

TEST_F(safetensors, refuses_what_is_not_a_header) {
  for (const char* header : {"", "[]", "{", "3", "GGUF", "{\"x\":}"}) {
    put(header, 0);
    refused_with("not a JSON object");
  }
  put(R"({"__metadata__":{"k":1}})", 0);
  refused_with("not a string");
  put(R"({"__metadata__":[]})", 0);
  refused_with("__metadata__");
  put(R"({"x":3})", 0);
  refused_with("without a dtype");
  put(R"({"x":{"dtype":"F32","data_offsets":[0,0]}})", 0);
  refused_with("without a list shape");
}

TEST_F(safetensors, refuses_a_name_that_comes_twice) {
  const std::string x = R"("x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})",
                    y = R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})";
  put("{" + x + ",\"x\":" + y + "}", 2);
  refused_with("two entries \"x\"");
  put("{" + x + "," + x + "}", 1);
  refused_with("two entries \"x\"");
  put("{" + x + ",\"\\u0078\":" + y + "}", 2);  // x as JSON may write it, too
  refused_with("two entries \"x\"");
  put("{" + x + R"(,"x2":{"dtype":"U8","shape":[1],"data_offsets":[1,2],"dtype":"BOOL"}})", 2);
  refused_with("two entries \"dtype\"");
  put(R"({"__metadata__":{"k":"1","k":"2"}})", 0);
  refused_with("two entries \"k\"");
  put(R"({"__metadata__":{"k":"1"},"__metadata__":{}})", 0);
  refused_with("two entries \"__metadata__\"");
  // One name in two places is no such thing.
  put("{" + x + R"(,"y":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"__metadata__":{"x":"y","dtype":"z"}})", 2);
  EXPECT_EQ(refusal(), "");
}

TEST_F(safetensors, the_header_is_json_from_its_first_byte_to_its_last) {
  put("{}   ", 0);
  EXPECT_EQ(refusal(), "");
  for (const std::string& header : {std::string("{}\0{", 4), std::string("{}\0", 3), std::string("\xef\xbb\xbf{}"),
                                    std::string(" {}"), std::string("{}{}"), std::string("{\"a\xff\":{}}")}) {
    put(header, 0);
    refused_with("not a JSON object");
  }
  put("{\"x\":" + std::string(100000, '[') + std::string(100000, ']') + "}", 0);
  refused_with("nests its header too deeply");
}

TEST_F(safetensors, foreign_names_stay_in_one_line) {
  put(R"({"a\nb\u001b":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})", 1);
  refused_with(R"(tensor "a\nb\u001b" 1 bytes)");
  put(R"({"x":{"dtype":"a\nb","shape":[1],"data_offsets":[0,1]}})", 1);
  refused_with(R"(unknown dtype a\nb)");
}

TEST_F(safetensors, only_files_are_opened) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  refused_with("cannot be opened");
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  refused_with("cannot be opened");
}

TEST_F(safetensors, changed_bytes_are_refused_or_read) {
  const std::vector<std::uint8_t> a(8), b(16);
  example::save_safetensors(
      path_, {{"a", example::view_of(dtype::u8, {4, 2}, a)}, {"bb", example::view_of(dtype::u8, {16}, b)}},
      {{"key", "text"}});
  std::string whole;
  {
    std::ifstream in(path_, std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(in), {});
  }
  std::mt19937 draw(7);
  const std::string likely = "{}[]\",:0123456789-.eE\\u\0\xff ax_";
  for (int round = 0; round < 3000; ++round) {
    std::string changed = whole;
    for (unsigned k = draw() % 4 + 1; k > 0; --k) {
      // The header of most files is changed, of some the length before it.
      const std::size_t at = draw() % 10 == 0 ? draw() % 8 : 8 + draw() % (changed.size() - 8);
      switch (draw() % 4) {
        case 0: changed[at] = static_cast<char>(draw()); break;
        case 1: changed[at] = likely[draw() % likely.size()]; break;
        case 2: changed.erase(at, draw() % 9 + 1); break;
        default: changed.insert(at, changed.substr(8 + draw() % (changed.size() - 8), draw() % 40)); break;
      }
      changed.resize(std::max<std::size_t>(changed.size(), 16));
    }
    std::ofstream(path_, std::ios::binary) << changed;
    try {
      const auto file = safetensors_file::load(path_);
      std::size_t bytes = 0;
      for (const auto& [name, tensor] : file.tensors())
        for (const std::byte b : tensor.bytes) bytes += 1 + 0 * static_cast<std::size_t>(b);
      EXPECT_LE(bytes, changed.size());
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
}

TEST_F(safetensors, refuses_unknown_dtypes) {
  put(R"({"x":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}})", 1);
  refused_with("unknown dtype F8_E4M3");
}

TEST_F(safetensors, refuses_offsets_that_do_not_fit) {
  const auto tensor = [](const char* shape, const char* offsets) {
    return std::string(R"({"x":{"dtype":"F32","shape":)") + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  put(tensor("[2]", "[0,8]"), 7);
  refused_with("ends before tensor \"x\"");
  put(tensor("[2]", "[0,4]"), 4);
  refused_with("need 8");
  put(tensor("[2]", "[8,0]"), 8);
  refused_with("not a begin and an end");
  put(tensor("[2]", "[0]"), 8);
  refused_with("not a begin and an end");
  put(tensor("[-2]", "[0,8]"), 8);
  refused_with("whole numbers");
  put(tensor("[2.0]", "[0,8]"), 8);
  refused_with("whole numbers");
  // 2^62 * 4 elements of 4 bytes wrap around to 0.
  put(tensor("[4611686018427387904,4]", "[0,0]"), 0);
  refused_with("overflows");
}

TEST_F(safetensors, refuses_overlaps_gaps_and_leftovers) {
  const auto two = [](const char* a, const char* b) {
    return std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)") + a +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
  };
  put(two("[0,4]", "[4,8]"), 8);
  EXPECT_EQ(refusal(), "");
  put(two("[4,8]", "[0,4]"), 8);
  EXPECT_EQ(refusal(), "");
  put(two("[0,4]", "[3,7]"), 7);
  refused_with("\"b\" that overlaps");
  put(two("[0,4]", "[0,4]"), 4);
  refused_with("overlaps");
  put(two("[0,4]", "[5,9]"), 9);
  refused_with("gap");
  put(two("[0,4]", "[4,8]"), 9);
  refused_with("behind its last tensor");
}

TEST_F(safetensors, a_save_that_fails_leaves_the_old_file) {
  const std::vector<float> old{1.0f};
  example::save_safetensors(path_, {{"x", example::view_of(dtype::f32, {1}, old)}});
  EXPECT_THROW(example::save_safetensors(path_, {{"x", example::view_of(dtype::f32, {2}, old)}}), std::runtime_error);
  EXPECT_EQ(safetensors_file::load(path_).at("x").values<float>(), old);
  EXPECT_THROW(example::save_safetensors(folder_ / "missing" / "y", {}), std::runtime_error);
  EXPECT_THROW(example::save_safetensors(path_, {{"__metadata__", example::view_of(dtype::f32, {1}, old)}}),
               std::runtime_error);

  // No space left, in the middle of the file.
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit little {
    4096, before.rlim_max
  };
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  std::string sentence;
  try {
    example::save_safetensors(path_, {{"x", example::view_of(dtype::f32, {5000}, std::vector<float>(5000))}});
  } catch (const std::runtime_error& error) {
    sentence = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(sentence, path_.string() + " cannot be written: File too large");
  EXPECT_EQ(safetensors_file::load(path_).at("x").values<float>(), old);
  only_file_is("file.safetensors");
}

TEST_F(safetensors, a_file_is_on_the_disk_before_it_has_its_name) {
  const std::vector<float> values{1.0f};
  calls.clear();
  example::save_safetensors(path_, {{"x", example::view_of(dtype::f32, {1}, values)}});
  EXPECT_EQ(calls, (std::vector<std::string>{"fsync of a file", "rename", "fsync of a folder"}));
}

TEST_F(safetensors, writers_of_one_file_do_not_meet) {
  // Each leaves a whole file, and nobody fails, although all begin and end at the same time.
  std::vector<std::jthread> writers;
  std::atomic<int> failed = 0;
  for (std::size_t k = 1; k <= 6; ++k)
    writers.emplace_back([&, k] {
      const std::vector<float> values(100 * k, static_cast<float>(k));
      for (int round = 0; round < 50; ++round) try {
          example::save_safetensors(path_, {{"x", example::view_of(dtype::f32, {values.size()}, values)}});
          if (safetensors_file::load(path_).at("x").numel() % 100 != 0) ++failed;
        } catch (const std::runtime_error&) {
          ++failed;
        }
    });
  writers.clear();
  EXPECT_EQ(failed, 0);
  only_file_is("file.safetensors");
}

class output_file : public safetensors {
 protected:
  std::string refused_before(const std::filesystem::path& path, std::uintmax_t bytes = 4096) const {
    try {
      example::check_writable({"--out", path}, bytes);
      return {};
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  }
  std::string text(const std::filesystem::path& path) const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

TEST_F(output_file, is_checked_without_a_trace) {
  EXPECT_EQ(refused_before(path_), "");
  only_file_is("no file at all");
  std::ofstream(path_) << "old";
  EXPECT_EQ(refused_before(path_), "");
  EXPECT_EQ(text(path_), "old");
  only_file_is("file.safetensors");
  EXPECT_EQ(refused_before(""), "");
  EXPECT_EQ(refused_before("/dev/null"), "");
}

TEST_F(output_file, that_cannot_be_written_is_refused_before) {
  const auto refuses = [&](const std::filesystem::path& path, const std::string& part, std::uintmax_t bytes = 4096) {
    const std::string sentence = refused_before(path, bytes);
    EXPECT_NE(sentence.find("--out " + path.string() + " cannot be written: "), std::string::npos) << sentence;
    EXPECT_NE(sentence.find(part), std::string::npos) << sentence;
  };
  std::ofstream(path_) << "old";
  refuses(folder_ / "nowhere" / "y", "/nowhere does not exist");
  refuses(folder_, "folder");
  refuses(folder_ / "new" / "", "folder");
  refuses(path_ / "y", "Not a directory");
  refuses(folder_ / std::string(300, 'x'), "File name too long");
  refuses("/dev/full", "No space left on device");
  refuses(folder_ / "y", "less space", std::uintmax_t{1} << 60);
  std::filesystem::create_symlink("loop", folder_ / "loop");
  refuses(folder_ / "loop", "symbolic links");
  std::filesystem::create_symlink("nowhere/y", folder_ / "link");
  refuses(folder_ / "link", "/nowhere does not exist");
  if (geteuid() == 0) return;  // who may write everywhere
  std::filesystem::permissions(path_, std::filesystem::perms::owner_read);
  refuses(path_, "Permission denied");
  std::filesystem::remove(path_);
  std::filesystem::permissions(folder_, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  refuses(path_, "Permission denied");
  std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
}

TEST_F(output_file, of_a_link_is_what_it_leads_to) {
  std::ofstream(path_) << "old";
  std::filesystem::permissions(path_, std::filesystem::perms{0640});
  std::filesystem::create_symlink("file.safetensors", folder_ / "link");
  std::filesystem::create_symlink("not yet", folder_ / "new link");
  example::replace_file(folder_ / "link", "new");
  example::replace_file(folder_ / "new link", "made");
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link"));
  EXPECT_EQ(text(path_), "new");
  EXPECT_EQ(std::filesystem::status(path_).permissions(), std::filesystem::perms{0640});
  EXPECT_EQ(text(folder_ / "not yet"), "made");
  example::replace_file("/dev/null", "gone");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(output_file, is_apart_from_every_other_file) {
  const auto one = [&](const std::filesystem::path& a, const std::filesystem::path& b) {
    try {
      example::keep_apart({{"--a", a}, {"--none", ""}, {"--b", b}});
      return false;
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(std::string(error.what()), "--a and --b name one file, " + b.string());
      return true;
    }
  };
  std::ofstream(path_) << "old";
  std::ofstream(folder_ / "other") << "old";
  std::filesystem::create_symlink("file.safetensors", folder_ / "link");
  std::filesystem::create_symlink("not yet", folder_ / "new link");
  std::filesystem::create_hard_link(path_, folder_ / "hard");
  EXPECT_TRUE(one(path_, path_));
  EXPECT_TRUE(one(path_, folder_ / "." / "file.safetensors"));
  EXPECT_TRUE(one(path_, std::filesystem::relative(path_)));
  EXPECT_TRUE(one(path_, folder_ / "link"));
  EXPECT_TRUE(one(folder_ / "hard", path_));
  EXPECT_FALSE(one(path_, folder_ / "other"));
  // Neither is there.
  EXPECT_TRUE(one(folder_ / "y", folder_ / "." / "y"));
  EXPECT_TRUE(one(folder_ / "y", std::filesystem::relative(folder_) / "z" / ".." / "y"));
  EXPECT_TRUE(one(folder_ / "not yet", folder_ / "new link"));
  EXPECT_FALSE(one(folder_ / "y", folder_ / "z"));
  EXPECT_FALSE(one("/dev/null", "/dev/null"));
}

TEST_F(output_file, may_have_the_name_of_another_in_upper_case) {
  std::ofstream(path_) << "old";
  const bool ignored = std::filesystem::exists(folder_ / "FILE.safetensors");
  EXPECT_EQ(example::ignores_case(folder_), ignored);
  EXPECT_EQ(example::same_file(folder_ / "new", folder_ / "NEW"), ignored);
  EXPECT_FALSE(example::same_file(folder_ / "new", folder_ / "other"));
  only_file_is("file.safetensors");
}

/// A run that reads a model of three files and a text, and writes a folder, a table and a picture.
class run_inventory : public output_file {
 protected:
  run_inventory() : model_(folder_ / "model"), text_(folder_ / "text") {
    std::filesystem::create_directories(model_);
    for (const char* const name : {"config.json", "shard-1", "shard-2"}) std::ofstream(model_ / name) << "of the model";
    std::ofstream(text_) << "a text";
  }
  /// All files, with what they hold.
  std::vector<std::string> files() const {
    std::vector<std::string> out;
    std::error_code none;  // of a link to itself
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_))
      out.push_back(entry.path().string() + (entry.is_regular_file(none) ? ": " + text(entry.path()) : ""));
    std::ranges::sort(out);
    return out;
  }
  /// Both ways leave all files as they are.
  std::string refusal(const std::filesystem::path& out, const std::filesystem::path& csv,
                      const std::filesystem::path& svg = {}, std::uintmax_t bytes = 1) const {
    constexpr const char* names[] = {"config.json", "model", "adapter"};
    const auto before = files();
    const std::string sentence = tigon::test::refusal([&] {
      example::inventory all;
      all.writes({"--csv", csv}, bytes);
      all.writes({"--svg", svg}, bytes);
      all.writes_folder({"--out", out}, {{"state", bytes, true}, {"config.json", 1}, {"model", bytes}}, names);
      all.reads_folder({"the model", model_}, names);
      all.reads({"--text", text_});
      all.check();
    });
    EXPECT_EQ(files(), before) << sentence;
    EXPECT_EQ(sentence.find('\n'), std::string::npos);
    return sentence;
  }

  std::filesystem::path model_, text_;
};

TEST_F(run_inventory, refuses_an_output_that_is_an_input) {
  const auto apart = [&](const std::filesystem::path& csv, const std::string& other) {
    EXPECT_EQ(refusal({}, csv).find("--csv and " + other + " name one file, "), 0u) << refusal({}, csv);
  };
  std::filesystem::create_hard_link(model_ / "shard-2", folder_ / "hard");
  std::filesystem::create_symlink("model/shard-1", folder_ / "link");
  std::filesystem::create_symlink("model", folder_ / "folder");
  std::filesystem::create_symlink("model/adapter", folder_ / "new link");
  apart(text_, "--text");
  apart(folder_ / "model" / ".." / "text", "--text");
  apart(model_ / "config.json", "the model");
  apart(model_ / "shard-1", "the model");
  apart(folder_ / "hard", "the model");
  apart(folder_ / "link", "the model");
  apart(folder_ / "folder" / "shard-2", "the model");
  apart(model_, "the model");
  // Neither is there; the next run would read them.
  apart(model_ / "model", "the model");
  apart(folder_ / "new link", "the model");
  EXPECT_EQ(refusal({}, model_ / "losses.csv"), "");
  EXPECT_EQ(refusal({}, folder_ / "losses.csv"), "");
}

TEST_F(run_inventory, refuses_a_folder_whose_files_are_inputs) {
  std::filesystem::create_symlink("model", folder_ / "folder");
  for (const auto& out : {model_, folder_ / "folder", model_ / ".." / "model" / ""})
    EXPECT_EQ(refusal(out, {}), "--out and the model name one file, " + model_.string());
  EXPECT_EQ(refusal(text_, {}), "--out and --text name one file, " + text_.string());
  std::filesystem::create_directory(folder_ / "out");
  std::filesystem::create_symlink("../model/config.json", folder_ / "out" / "config.json");
  EXPECT_EQ(refusal(folder_ / "out", {}), "--out and the model name one file, " + (model_ / "config.json").string());
  EXPECT_EQ(refusal(model_ / "tuned", {}), "");
  std::filesystem::create_directory(model_ / "tuned");
  EXPECT_EQ(refusal(model_ / "tuned", {}), "");
}

TEST_F(run_inventory, refuses_two_outputs_that_are_one) {
  const auto out = folder_ / "out";
  for (const bool there : {false, true}) {
    if (there) std::filesystem::create_directory(out);
    for (const char* const name : {"state", "config.json", "model", "adapter"}) {
      const std::string sentence = refusal(out, out / name);
      EXPECT_EQ(sentence, "--csv and --out name one file, " + (out / name).string());
    }
    EXPECT_EQ(refusal(out, out / "losses.csv"), "");
    EXPECT_EQ(refusal({}, folder_ / "x", folder_ / "." / "x").find("--csv and --svg name one file"), 0u);
  }
  EXPECT_EQ(refusal(folder_ / "a" / "b", folder_ / "a"), "--csv and --out name one file, " + (folder_ / "a").string());
}

TEST_F(run_inventory, lets_a_run_go_on_in_its_own_file) {
  example::inventory all;
  all.writes({"--checkpoint", text_}, 1);
  all.reads({"--resume", text_}, "--checkpoint");
  all.check();
  all.writes({"--csv", text_}, 1);
  EXPECT_NE(tigon::test::refusal([&] { all.check(); }), "");
}

TEST_F(run_inventory, refuses_what_cannot_be_written_and_leaves_no_folder) {
  const auto out = folder_ / "out";
  EXPECT_EQ(refusal(folder_ / "a" / "b" / "c", {}), "");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a"));
  EXPECT_NE(refusal(text_ / "sub", {}).find("--out " + (text_ / "sub").string() + " cannot be made: "),
            std::string::npos);
  std::ofstream(folder_ / "plain") << "a file";
  EXPECT_NE(refusal(folder_ / "plain", {}).find("cannot be made"), std::string::npos);
  std::filesystem::create_symlink("loop", folder_ / "loop");
  EXPECT_NE(refusal(folder_ / "loop", {}).find("cannot be made"), std::string::npos);
  EXPECT_NE(refusal(out, folder_ / "nowhere" / "x").find("/nowhere does not exist"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(out));
  for (const char* const name : {"state", "config.json", "model"}) {
    std::filesystem::create_directories(out / name / "sub");
    EXPECT_EQ(refusal(out, {}), "--out " + (out / name).string() + " cannot be written: it is a folder");
    std::filesystem::remove_all(out);
  }
}

TEST_F(run_inventory, adds_up_what_is_written_to_a_disk) {
  std::filesystem::create_directory(folder_ / "out");
  const std::uintmax_t room = std::filesystem::space(folder_).free;
  const auto csv = folder_ / "x", svg = folder_ / "y";
  EXPECT_EQ(refusal({}, csv, {}, room / 10 * 6), "");
  EXPECT_NE(refusal({}, csv, svg, room / 10 * 6).find("has less space"), std::string::npos);
  // The state before the end, and beside it that of the end, and the model.
  EXPECT_EQ(refusal(folder_ / "out", {}, {}, room / 10 * 3), "");
  EXPECT_NE(refusal(folder_ / "out", {}, {}, room / 10 * 6).find("has less space"), std::string::npos);

  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit little {
    4096, before.rlim_max
  };
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  const std::string fits = refusal(folder_ / "out", {}, {}, 4096), beyond = refusal(folder_ / "out", {}, {}, 4097);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(fits, "");
  EXPECT_NE(beyond.find("cannot be written: "), std::string::npos) << beyond;
}

}  // namespace

// What the program asks of the system, in its order; the calls are the system's.
extern "C" int fsync(int fd) {
  struct stat file;
  fstat(fd, &file);
  calls.push_back(S_ISDIR(file.st_mode) ? "fsync of a folder" : "fsync of a file");
  return static_cast<int>(syscall(SYS_fsync, fd));
}
extern "C" int rename(const char* from, const char* to) noexcept {
  calls.push_back("rename");
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
