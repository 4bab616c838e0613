// The data of a run: texts by the folder's tokenizer, or ids as they are.
#ifndef EXAMPLE_FINETUNE_INPUT_HPP
#define EXAMPLE_FINETUNE_INPUT_HPP

#include <cstddef>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "samples.hpp"

#if __has_include("data.hpp")
#include "data.hpp"
#include "text/load_tokenizer.hpp"
#endif

namespace example {

/// Samples of a file whose name ends in .jsonl (objects with "text", or with "prompt" and "completion"), .txt (one
/// document) or .ids (a document a line); none is longer than `seq_len`, and each has something to learn.
inline std::vector<sample> read_data(const std::filesystem::path& folder, const std::filesystem::path& path,
                                     std::size_t vocab, std::size_t seq_len) {
  if (path.extension() == ".ids") return read_ids(path, vocab, seq_len);
#if __has_include("data.hpp")
  finetune::data_options options;
  options.vocab = vocab;
  std::vector<sample> out;
  for (const finetune::sample& s : finetune::read_samples(path, finetune::load_tokenizer(folder), options))
    for (std::size_t begin = 0; begin < s.ids.size(); begin += seq_len) {
      const auto first = static_cast<std::ptrdiff_t>(begin),
                 last = static_cast<std::ptrdiff_t>(std::min(s.ids.size(), begin + seq_len));
      sample part{{s.ids.begin() + first, s.ids.begin() + last}, {s.targets.begin() + first, s.targets.begin() + last}};
      if (counted(part) != 0) out.push_back(std::move(part));
    }
  if (out.empty()) throw std::runtime_error(path.string() + " holds nothing to learn");
  return out;
#else
  (void)folder;
  throw std::runtime_error(path.string() +
                           " is no file of ids, whose name would end in .ids; this build reads no other");
#endif
}

}  // namespace example
#endif
