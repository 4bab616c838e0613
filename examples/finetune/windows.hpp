// Windows of packed samples: those of training without end, in an order of each epoch's own, and those of an evaluation.
#ifndef EXAMPLE_FINETUNE_WINDOWS_HPP
#define EXAMPLE_FINETUNE_WINDOWS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "model.hpp"
#include "packing.hpp"

namespace example {

using finetune::sample;
using finetune::window;

inline packed_documents documents_of(const window& w) { return {w.ids, w.targets, w.begins}; }
inline std::size_t counted(const window& w) {
  return w.targets.size() - static_cast<std::size_t>(std::ranges::count(w.targets, finetune::not_counted));
}

/// All samples in windows of at most so many tokens.
inline std::vector<window> windows_of(std::span<const sample> samples, std::size_t tokens) {
  std::vector<window> out;
  for (const std::vector<finetune::slice>& slices : finetune::pack(samples, tokens))
    out.push_back(finetune::make_window(samples, slices, tokens));
  return out;
}

/// The samples are packed once; each epoch takes the windows in an order of its own, which the seed and its number decide,
/// so that the place in the data is two numbers.
class window_source {
 public:
  window_source(std::vector<sample> samples, std::size_t tokens, std::uint64_t seed)
      : samples_(std::move(samples)),
        tokens_(tokens),
        seed_(seed),
        packed_(finetune::pack(samples_, tokens)),
        order_(packed_.size(), seed) {}

  const window& next() {
    window_ = finetune::make_window(samples_, packed_[order_.next()], tokens_);
    return window_;
  }
  const finetune::cursor& at() const { return order_.at(); }
  std::size_t windows() const { return packed_.size(); }
  const std::vector<sample>& samples() const { return samples_; }

  /// False if the epoch has fewer windows than were taken.
  bool go_to(const finetune::cursor& at) {
    if (at.taken > packed_.size()) return false;
    order_ = finetune::shuffled_order(packed_.size(), seed_, at);
    return true;
  }

 private:
  std::vector<sample> samples_;
  std::size_t tokens_;
  std::uint64_t seed_;
  std::vector<std::vector<finetune::slice>> packed_;
  finetune::shuffled_order order_;
  window window_;
};

}  // namespace example
#endif
