// A Hugging Face folder's config.json, field by field: every error is a sentence that names the file and the field.
#ifndef EXAMPLE_FINETUNE_CONFIG_READER_HPP
#define EXAMPLE_FINETUNE_CONFIG_READER_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "../../support/safetensors.hpp"

namespace example {

/// The file, with sentences for what is missing or of another kind. null counts as missing, as it does for its readers.
class config_reader {
 public:
  using json = nlohmann::json;

  config_reader(json values, std::string name) : values_(std::move(values)), name_(std::move(name)) {}

  static config_reader of_folder(const std::filesystem::path& folder) {
    const std::filesystem::path path = folder / "config.json";
    const std::string name = path.string();
    std::error_code code;
    if (!std::filesystem::is_directory(folder, code)) throw std::runtime_error(folder.string() + " is not a folder");
    if (!std::filesystem::is_regular_file(path, code)) throw std::runtime_error(name + " cannot be opened");
    if (std::filesystem::file_size(path, code) > (std::size_t{1} << 24) || code)
      throw std::runtime_error(name + " is too long for a configuration");
    std::ifstream in(path, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    json values = json::parse(text.str(), depth_limit, /*allow_exceptions=*/false);
    if (!values.is_object()) throw std::runtime_error(name + " is not a JSON object");
    return {std::move(values), name};
  }

  [[noreturn]] void fail(const std::string& what) const { throw std::runtime_error(name_ + " " + what); }

  bool has(const char* key) const {
    const auto found = values_.find(key);
    return found != values_.end() && !found->is_null();
  }
  const json& values() const { return values_; }
  /// Also where it is null.
  bool contains(const char* key) const { return values_.contains(key); }
  const json& at(const char* key) const {
    if (!has(key)) fail(std::string("has no ") + key);
    return *values_.find(key);
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) fail(std::string("has a ") + key + " that is not a string");
    return at(key).get<std::string>();
  }
  std::string text(const char* key, std::string otherwise) const { return has(key) ? text(key) : otherwise; }
  /// From 1 to 2^31 - 1.
  std::size_t size(const char* key) const {
    const json& v = at(key);
    const std::size_t n = v.is_number_unsigned() ? v.get<std::size_t>() : 0;
    if (n == 0 || n > 0x7fffffff) fail(std::string("has a ") + key + " that is not a whole number from 1 to 2^31 - 1");
    return n;
  }
  std::size_t size(const char* key, std::size_t otherwise) const { return has(key) ? size(key) : otherwise; }
  std::size_t size_or_zero(const char* key, std::size_t otherwise) const {
    return has(key) && at(key).is_number_unsigned() && at(key).get<std::size_t>() == 0 ? 0 : size(key, otherwise);
  }
  double number(const char* key) const {
    const json& v = at(key);
    if (!v.is_number() || !std::isfinite(v.get<double>())) fail(std::string("has a ") + key + " that is not a number");
    return v.get<double>();
  }
  double number(const char* key, double otherwise) const { return has(key) ? number(key) : otherwise; }
  double positive(const char* key) const {
    const double v = number(key);
    if (!(v > 0)) fail(std::string("has a ") + key + " that is not above 0");
    return v;
  }
  double positive(const char* key, double otherwise) const { return has(key) ? positive(key) : otherwise; }
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!at(key).is_boolean()) fail(std::string("has a ") + key + " that is neither true nor false");
    return at(key).get<bool>();
  }
  /// The number of a token, or -1. A negative one counts from the end of the vocabulary, as PyTorch counts.
  std::ptrdiff_t token_id(const char* key, std::size_t vocab) const {
    if (!has(key)) return -1;
    const json& v = at(key);
    const auto most = static_cast<std::int64_t>(vocab);
    const bool whole = v.is_number_integer() && (!v.is_number_unsigned() || v.get<std::uint64_t>() < vocab);
    const std::int64_t id = whole ? v.get<std::int64_t>() : most;
    if (id < -most || id >= most)
      fail(std::string("has a ") + key + " that is not a whole number below its vocab_size of " +
           std::to_string(vocab));
    return static_cast<std::ptrdiff_t>(id < 0 ? id + most : id);
  }
  std::vector<double> numbers(const char* key) const {
    const json& list = at(key);
    std::vector<double> out;
    for (const json& v : list) {
      if (!list.is_array() || !v.is_number()) fail(std::string("has a ") + key + " that is not a list of numbers");
      out.push_back(v.get<double>());
    }
    return out;
  }
  /// A part of the file that is an object of its own.
  config_reader part(const char* key) const {
    if (!at(key).is_object()) fail(std::string("has a ") + key + " that is not a JSON object");
    return {at(key), name_ + ", in " + key + ","};
  }

 private:
  static bool depth_limit(int depth, json::parse_event_t, const json&) { return depth < 32; }

  json values_;
  std::string name_;
};

}  // namespace example
#endif
