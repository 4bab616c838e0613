#include "../../examples/support/safetensors.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace {

using example::dtype, example::safetensors_file;

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
  EXPECT_FALSE(std::filesystem::exists(path_.string() + ".partial"));

  for (const auto& [name, tensor] : file.tensors())
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) % example::info(tensor.type).size, 0u) << name;
  EXPECT_THROW(file.at("c weights").values<double>(), std::runtime_error);
  EXPECT_THROW(file.at("missing"), std::runtime_error);
  EXPECT_THROW(file.meta("missing"), std::runtime_error);
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
}

}  // namespace
