// JSON of files that somebody else wrote: every error is a sentence that names the file.
#ifndef EXAMPLE_FINETUNE_JSON_FILE_HPP
#define EXAMPLE_FINETUNE_JSON_FILE_HPP

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "../../support/safetensors.hpp"

namespace example::finetune {

/// A whole file.
inline std::string read_file(const std::filesystem::path& path) {
  std::error_code code;
  // Opening a pipe would wait for somebody to write.
  std::ifstream in;
  if (std::filesystem::is_regular_file(path, code)) in.open(path, std::ios::binary);
  if (!in.is_open()) throw std::runtime_error("the file " + path.string() + " cannot be opened");
  std::ostringstream all;
  all << in.rdbuf();
  if (in.bad() || all.fail()) {
    // An empty file writes nothing, which sets the same bit.
    if (std::filesystem::file_size(path, code) == 0) return {};
    throw std::runtime_error("the file " + path.string() + " could not be read to its end");
  }
  return std::move(all).str();
}

/// Values of a JSON text, each asked for with its type. `where` begins every sentence.
class json_source {
 public:
  using json = nlohmann::json;
  /// More than any known file nests.
  static constexpr int most_depth = 64;

  explicit json_source(std::string where) : where_(std::move(where)) {}

  [[noreturn]] void fail(const std::string& what) const { throw std::runtime_error(where_ + " " + what); }

  static std::string quoted(std::string_view name) { return '"' + printable(std::string(name)) + '"'; }

  json parse(std::string_view text) const {
    check_depth(text);
    try {
      return json::parse(text);
    } catch (const json::parse_error& error) {
      fail("is not JSON: it breaks off or has something foreign at byte " + std::to_string(error.byte));
    } catch (const json::exception&) {
      fail("is JSON with a number that is too large");
    }
  }

  json parse_object(std::string_view text) const {
    json out = parse(text);
    if (!out.is_object()) fail("is not a JSON object");
    return out;
  }

  /// The member, or null where there is none; JSON's null counts as none.
  static const json* find(const json& object, const char* key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }

  const json& at(const json& object, const char* key) const {
    const json* found = object.is_object() ? find(object, key) : nullptr;
    if (found == nullptr) fail("has no " + quoted(key));
    return *found;
  }

  std::string text(const json& object, const char* key) const {
    const json& value = at(object, key);
    if (!value.is_string()) fail("has a " + quoted(key) + " that is not a string");
    return value.get<std::string>();
  }

  bool flag(const json& object, const char* key, bool otherwise) const {
    const json* value = find(object, key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) fail("has a " + quoted(key) + " that is neither true nor false");
    return value->get<bool>();
  }

  /// A whole number from 0 to `most`.
  std::size_t whole(const json& value, std::string_view name, std::size_t most) const {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most)
      fail("has a " + quoted(name) + " that is not a whole number from 0 to " + std::to_string(most));
    return value.get<std::size_t>();
  }

 private:
  void check_depth(std::string_view text) const {
    int depth = 0;
    bool inside = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (inside) {
        if (c == '\\')
          ++i;
        else if (c == '"')
          inside = false;
      } else if (c == '"') {
        inside = true;
      } else if (c == '{' || c == '[') {
        if (++depth > most_depth) fail("nests its JSON too deeply");
      } else if (c == '}' || c == ']') {
        --depth;
      }
    }
  }

  std::string where_;
};

}  // namespace example::finetune
#endif
