// Samples packed into windows, in an order of each epoch's own.
#ifndef EXAMPLE_FINETUNE_WINDOWS_HPP
#define EXAMPLE_FINETUNE_WINDOWS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "model.hpp"
#include "samples.hpp"

namespace example {

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
