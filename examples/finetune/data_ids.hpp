// Documents of token ids: read from a file, cut to lengths, and packed into windows.
#ifndef EXAMPLE_FINETUNE_DATA_IDS_HPP
#define EXAMPLE_FINETUNE_DATA_IDS_HPP

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "../support/safetensors.hpp"
#include "model.hpp"

namespace example {

/// targets[i] is the id after ids[i], or -100 where nothing is asked for.
struct sample {
  std::vector<std::int32_t> ids, targets;
};

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

/// Samples one behind another: what one pass of the model sees.
struct packed_window {
  std::vector<std::int32_t> ids, targets, begins{0};

  void add(const sample& s) {
    ids.insert(ids.end(), s.ids.begin(), s.ids.end());
    targets.insert(targets.end(), s.targets.begin(), s.targets.end());
    begins.push_back(static_cast<std::int32_t>(ids.size()));
  }
  packed_documents documents() const { return {ids, targets, begins}; }
  std::size_t counted() const {
    return static_cast<std::size_t>(std::count_if(targets.begin(), targets.end(), [](auto t) { return t >= 0; }));
  }
};

/// The samples in this order, in windows of at most so many tokens: a window ends where the next sample does not fit.
inline std::vector<packed_window> pack(std::span<const sample> samples, std::span<const std::size_t> order,
                                       std::size_t tokens) {
  std::vector<packed_window> out;
  for (const std::size_t i : order) {
    if (out.empty() || out.back().ids.size() + samples[i].ids.size() > tokens) out.emplace_back();
    out.back().add(samples[i]);
  }
  return out;
}

inline std::vector<std::size_t> in_order(std::size_t count) {
  std::vector<std::size_t> out(count);
  std::iota(out.begin(), out.end(), std::size_t{0});
  return out;
}

/// Windows without end: each epoch packs the samples in an order of its own, which the seed and its number decide, so
/// that the place in the data is two numbers.
class window_source {
 public:
  window_source(std::vector<sample> samples, std::size_t tokens, std::uint64_t seed)
      : samples_(std::move(samples)), tokens_(tokens), seed_(seed) {
    go_to(0, 0);
  }

  const packed_window& next() {
    if (at_ == windows_.size()) go_to(epoch_ + 1, 0);
    return windows_[at_++];
  }
  std::size_t epoch() const { return epoch_; }
  std::size_t taken() const { return at_; }
  std::size_t windows() const { return windows_.size(); }
  const std::vector<sample>& samples() const { return samples_; }

  /// Behind `taken` windows of an epoch; false if it has fewer.
  bool go_to(std::size_t epoch, std::size_t taken) {
    std::vector<std::size_t> order = in_order(samples_.size());
    std::mt19937_64 draw(seed_ + 0x9e3779b97f4a7c15u * (epoch + 1));
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draw() % i]);
    std::vector<packed_window> windows = pack(samples_, order, tokens_);
    if (taken > windows.size()) return false;
    windows_ = std::move(windows), epoch_ = epoch, at_ = taken;
    return true;
  }

 private:
  std::vector<sample> samples_;
  std::size_t tokens_;
  std::uint64_t seed_;
  std::vector<packed_window> windows_;
  std::size_t epoch_ = 0, at_ = 0;
};

}  // namespace example
#endif
