#ifndef EXAMPLE_TRAIN_LLAMA_TEXT_HPP
#define EXAMPLE_TRAIN_LLAMA_TEXT_HPP

#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../../support/option_value.hpp"

namespace example {

/// The Jargon File, in the public domain: 1.7 MB of text in Debian's package jargon-text.
inline const std::filesystem::path default_text = "/usr/share/doc/jargon-text/jargon.txt.gz";

/// The whole file. zlib passes a plain file through, so compressed and plain texts read alike.
inline std::string load_text(const std::filesystem::path& path) {
  const auto fail = [&](const char* what) {
    throw std::runtime_error("the text " + path.string() + " " + what +
                             (path == default_text
                                  ? ": it comes with Debian's package jargon-text (which images that leave out "
                                    "/usr/share/doc drop); give another with --text FILE"
                                  : ""));
  };
  if (!std::filesystem::is_regular_file(path)) fail("does not exist");
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) fail("cannot be opened");
  std::string text;
  std::vector<char> block(std::size_t{1} << 16);
  int got = 0;
  while ((got = gzread(file, block.data(), static_cast<unsigned>(block.size()))) > 0)
    text.append(block.data(), static_cast<std::size_t>(got));
  // A compressed file that stops early is reported when it is closed.
  const bool whole = gzclose_r(file) == Z_OK && got == 0;
  if (!whole) fail("is damaged");
  if (text.empty()) fail("is empty");
  return text;
}

/// The end of the text is held out: it is never trained on, only evaluated.
struct corpus {
  std::span<const std::int32_t> train, held_out;
};

/// A window is seq_len inputs and, one further on, seq_len targets.
inline corpus split(std::span<const std::int32_t> tokens, std::size_t seq_len) {
  const std::size_t window = seq_len + 1;
  const std::size_t held_out = std::max(tokens.size() / 20, window);
  if (tokens.size() < held_out + window)
    throw std::runtime_error("the text is too short: it has " + std::to_string(tokens.size()) +
                             " tokens, and one window to train on and one to hold out need " +
                             std::to_string(2 * window) + " at --seq-len " + std::to_string(seq_len));
  return {tokens.first(tokens.size() - held_out), tokens.last(held_out)};
}

}  // namespace example
#endif
