// Documents of token ids: read from a file and cut to lengths.
#ifndef EXAMPLE_FINETUNE_SAMPLES_HPP
#define EXAMPLE_FINETUNE_SAMPLES_HPP

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "../support/safetensors.hpp"

namespace example {

/// targets[i] is the id after ids[i], or -100 where nothing is asked for.
struct sample {
  std::vector<std::int32_t> ids, targets;
};

inline std::size_t counted(const sample& s) {
  return static_cast<std::size_t>(std::count_if(s.targets.begin(), s.targets.end(), [](auto t) { return t >= 0; }));
}

/// The ids of a line of text, separated by white space.
inline std::vector<std::int32_t> ids_in(const std::string& line, std::size_t vocab, const std::string& where) {
  std::vector<std::int32_t> out;
  for (const char *at = line.data(), *end = at + line.size();;) {
    while (at != end && (*at == ' ' || *at == '\t' || *at == '\r')) ++at;
    if (at == end) return out;
    const char* word_end = std::find_if(at, end, [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
    std::uint64_t id = 0;
    const auto [stop, code] = std::from_chars(at, word_end, id);
    if (code != std::errc() || stop != word_end || id >= vocab)
      throw std::runtime_error(where + ": " + printable(std::string(at, word_end)) +
                               " is no token id of the model, which has " + std::to_string(vocab));
    out.push_back(static_cast<std::int32_t>(id));
    at = word_end;
  }
}

/// Samples of at most `seq_len` tokens each, one behind another; each asks for the ids that follow, the document's last
/// token for none. A document of one token is left out.
inline void add_samples(const std::vector<std::int32_t>& document, std::size_t seq_len, std::vector<sample>& to) {
  for (std::size_t begin = 0; begin + 1 < document.size(); begin += seq_len) {
    const std::size_t end = std::min(document.size(), begin + seq_len);
    sample s;
    for (std::size_t i = begin; i < end; ++i) {
      s.ids.push_back(document[i]);
      s.targets.push_back(i + 1 < document.size() ? document[i + 1] : -100);
    }
    to.push_back(std::move(s));
  }
}

/// A document a line; empty lines are none.
inline std::vector<sample> read_ids(const std::filesystem::path& path, std::size_t vocab, std::size_t seq_len) {
  std::error_code code;
  if (!std::filesystem::is_regular_file(path, code)) throw std::runtime_error(path.string() + " cannot be opened");
  std::ifstream in(path, std::ios::binary);
  std::vector<sample> out;
  std::string line;
  for (std::size_t number = 1; std::getline(in, line); ++number)
    add_samples(ids_in(line, vocab, path.string() + ", line " + std::to_string(number)), seq_len, out);
  if (in.bad()) throw std::runtime_error(path.string() + " could not be read to its end");
  if (out.empty()) throw std::runtime_error(path.string() + " holds no document of two tokens");
  return out;
}

}  // namespace example
#endif
