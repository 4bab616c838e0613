// Samples in windows of one length, their order by seed and epoch, and a part kept for evaluation.
#ifndef EXAMPLE_FINETUNE_PACKING_HPP
#define EXAMPLE_FINETUNE_PACKING_HPP

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace example::finetune {

/// The target of a token that no loss counts.
inline constexpr std::int32_t not_counted = -100;

/// A document: targets[i] is the id that follows ids[i], or not_counted.
struct sample {
  std::vector<std::int32_t> ids, targets;

  bool operator==(const sample&) const = default;
};

/// Of `tokens`, the first `masked` of which are not learned. One fewer than there are tokens, which are at least two.
inline sample sample_of(std::span<const std::int32_t> tokens, std::size_t masked = 0) {
  sample out{{tokens.begin(), tokens.end() - 1}, {tokens.begin() + 1, tokens.end()}};
  for (std::size_t i = 0; i + 1 < masked && i < out.targets.size(); ++i) out.targets[i] = not_counted;
  return out;
}

inline std::size_t counted(const sample& s) {
  return s.targets.size() - static_cast<std::size_t>(std::ranges::count(s.targets, not_counted));
}

/// A part of a sample.
struct slice {
  std::size_t sample, first, count;

  bool operator==(const slice&) const = default;
};

/// What one pass of a model sees. Tokens from begins[d] up to begins[d + 1] are a document, which sees no other one.
struct window {
  std::vector<std::int32_t> ids, targets;
  std::vector<std::int32_t> begins;  ///< 0, ..., ids.size()
};

namespace detail {

/// The first window with enough room, in logarithmic time. Windows that hold nothing yet have all of theirs.
class window_rooms {
 public:
  window_rooms(std::size_t windows, std::size_t room)
      : leaves_(std::bit_ceil(std::max<std::size_t>(windows, 1))), most_(2 * leaves_, room) {}

  /// There is a window with so much room: as many windows as slices, none of them larger than a window.
  std::size_t take(std::size_t size) {
    std::size_t at = 1;
    while (at < leaves_) at = 2 * at + (most_[2 * at] >= size ? 0 : 1);
    const std::size_t leaf = at - leaves_;
    most_[at] -= size;
    for (at /= 2; at >= 1; at /= 2) most_[at] = std::max(most_[2 * at], most_[2 * at + 1]);
    return leaf;
  }

 private:
  std::size_t leaves_;
  std::vector<std::size_t> most_;  ///< of each subtree
};

}  // namespace detail

/// First fit: each sample, in order, goes to the first window that has room for all of it. A sample longer than a
/// window is cut into parts of a window's length and a last one.
inline std::vector<std::vector<slice>> pack(std::span<const sample> samples, std::size_t seq_len) {
  if (seq_len == 0) throw std::runtime_error("a window has at least one token");
  std::vector<slice> parts;
  for (std::size_t i = 0; i < samples.size(); ++i)
    for (std::size_t first = 0; first < samples[i].ids.size(); first += seq_len)
      parts.push_back({i, first, std::min(seq_len, samples[i].ids.size() - first)});
  detail::window_rooms rooms(parts.size(), seq_len);
  std::vector<std::vector<slice>> out;
  for (const slice& part : parts) {
    const std::size_t at = rooms.take(part.count);
    if (at >= out.size()) out.resize(at + 1);
    out[at].push_back(part);
  }
  return out;
}

/// One behind another; with a `padding` id up to `seq_len`, as a document of its own that is not counted.
inline window make_window(std::span<const sample> samples, std::span<const slice> slices, std::size_t seq_len,
                          std::optional<std::int32_t> padding = std::nullopt) {
  if (seq_len > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw std::runtime_error("a window of " + std::to_string(seq_len) + " tokens is too long");
  window out;
  out.begins.push_back(0);
  for (const slice& part : slices) {
    const sample& from = samples[part.sample];
    const auto first = static_cast<std::ptrdiff_t>(part.first), last = first + static_cast<std::ptrdiff_t>(part.count);
    out.ids.insert(out.ids.end(), from.ids.begin() + first, from.ids.begin() + last);
    out.targets.insert(out.targets.end(), from.targets.begin() + first, from.targets.begin() + last);
    out.begins.push_back(static_cast<std::int32_t>(out.ids.size()));
  }
  if (padding && out.ids.size() < seq_len) {
    out.ids.resize(seq_len, *padding);
    out.targets.resize(seq_len, not_counted);
    out.begins.push_back(static_cast<std::int32_t>(seq_len));
  }
  return out;
}

/// 0, ..., count - 1 in an order that depends on seed and epoch alone.
inline std::vector<std::size_t> shuffled(std::size_t count, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::size_t> out(count);
  std::iota(out.begin(), out.end(), std::size_t{0});
  // The generator is the same in every standard library, std::shuffle is not.
  std::mt19937_64 draw(seed + 0x9e3779b97f4a7c15u * (epoch + 1));
  for (std::size_t i = count; i > 1; --i) std::swap(out[i - 1], out[draw() % i]);
  return out;
}

/// A place in endless epochs.
struct cursor {
  std::uint64_t epoch = 0;
  std::size_t taken = 0;  ///< of the epoch

  bool operator==(const cursor&) const = default;
};

/// Numbers of windows without end, each epoch's in an order of its own. It goes on from any cursor.
class shuffled_order {
 public:
  shuffled_order(std::size_t count, std::uint64_t seed, cursor at = {}) : count_(count), seed_(seed), at_(at) {
    if (count == 0) throw std::runtime_error("there is nothing to draw from");
    if (at.taken > count)
      throw std::runtime_error("a place behind " + std::to_string(at.taken) +
                               " windows lies beyond the data, which are " + std::to_string(count));
    order_ = shuffled(count_, seed_, at_.epoch);
  }

  std::size_t next() {
    if (at_.taken == count_) {
      at_ = {at_.epoch + 1, 0};
      order_ = shuffled(count_, seed_, at_.epoch);
    }
    return order_[at_.taken++];
  }

  const cursor& at() const { return at_; }

 private:
  std::size_t count_;
  std::uint64_t seed_;
  cursor at_;
  std::vector<std::size_t> order_;
};

/// Parts of the data that do not share a sample.
template <class T>
struct data_parts {
  std::vector<T> training, evaluation;
};

namespace detail {

/// How many of `count` a share is: at least one, and not all.
inline std::size_t share_of(std::size_t count, double share) {
  if (!(share > 0 && share < 1)) throw std::runtime_error("the part for evaluation lies between 0 and 1");
  if (count < 2)
    throw std::runtime_error("the data are too few: one sample to train on and one to evaluate are needed");
  const auto wanted = static_cast<std::size_t>(std::llround(share * static_cast<double>(count)));
  return std::clamp<std::size_t>(wanted, 1, count - 1);
}

}  // namespace detail

/// Keeps a share of the samples for evaluation, drawn by the seed; both parts stay in order.
template <class T>
data_parts<T> keep_for_evaluation(std::vector<T> samples, double share, std::uint64_t seed) {
  const std::size_t kept = detail::share_of(samples.size(), share);
  std::vector<bool> drawn(samples.size());
  const std::vector<std::size_t> order = shuffled(samples.size(), seed, 0);
  for (std::size_t i = 0; i < kept; ++i) drawn[order[i]] = true;
  data_parts<T> out;
  for (std::size_t i = 0; i < samples.size(); ++i)
    (drawn[i] ? out.evaluation : out.training).push_back(std::move(samples[i]));
  return out;
}

/// Of one long document: its end is kept for evaluation.
inline data_parts<sample> keep_end_for_evaluation(const sample& document, double share) {
  const auto kept = static_cast<std::ptrdiff_t>(detail::share_of(document.ids.size(), share));
  const auto part = [](const std::vector<std::int32_t>& all, std::ptrdiff_t first, std::ptrdiff_t last) {
    return std::vector<std::int32_t>(all.begin() + first, all.begin() + last);
  };
  const auto size = static_cast<std::ptrdiff_t>(document.ids.size()), cut = size - kept;
  data_parts<sample> out;
  out.training.push_back({part(document.ids, 0, cut), part(document.targets, 0, cut)});
  out.evaluation.push_back({part(document.ids, cut, size), part(document.targets, cut, size)});
  return out;
}

}  // namespace example::finetune

namespace example {

/// What a run learns from, and what it evaluates.
struct run_data {
  std::vector<finetune::sample> train, held_out;
  bool paired = false;  ///< sample 2 i is a chosen answer, 2 i + 1 the rejected one; or as with_others_answers has them
  std::vector<std::uint8_t> train_labels = {}, held_out_labels = {};  ///< of labelled answers
};

}  // namespace example
#endif
