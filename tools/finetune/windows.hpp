// What passes of training and evaluation see: windows of packed samples, or pairs of answers.
#ifndef EXAMPLE_FINETUNE_WINDOWS_HPP
#define EXAMPLE_FINETUNE_WINDOWS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "model_memory.hpp"
#include "packing.hpp"

namespace example {

using finetune::sample;
using finetune::window;

inline packed_documents documents_of(const window& w) { return {w.ids, w.targets, w.begins}; }
inline std::size_t counted(const window& w) {
  return w.targets.size() - static_cast<std::size_t>(std::ranges::count(w.targets, finetune::not_counted));
}

/// With pairs, document i < pairs is a chosen answer and document pairs + i the rejected one; with `desirable`, a label
/// for each, document i is an answer, and document i of `others` its prompt with another's. `reference` has log p of
/// every target by the reference, if there is one, and `others_reference` those of `others`.
struct training_pass {
  window of;
  std::size_t pairs = 0;  ///< or answers with a label
  std::vector<float> reference = {};
  std::vector<std::uint8_t> desirable = {};
  window others = {};
  std::vector<float> others_reference = {};

  /// Of how many terms its loss is a sum.
  double terms() const { return static_cast<double>(pairs != 0 ? pairs : counted(of)); }
};

/// Samples in units, of which a pass takes one or several: windows of at most so many tokens; or, where samples are
/// paired, sample 2 i and sample 2 i + 1, with a label where answers are not compared with each other.
class training_data {
 public:
  training_data(std::vector<sample> samples, bool paired, std::size_t tokens, std::vector<std::uint8_t> labels = {})
      : samples_(std::move(samples)), labels_(std::move(labels)), paired_(paired) {
    if (!paired_) {
      units_ = finetune::pack(samples_, tokens);
      return;
    }
    for (std::size_t i = 0; i + 1 < samples_.size(); i += 2)
      units_.push_back({{i, 0, samples_[i].ids.size()}, {i + 1, 0, samples_[i + 1].ids.size()}});
  }

  const std::vector<sample>& samples() const { return samples_; }
  std::size_t units() const { return units_.size(); }
  bool paired() const { return paired_; }
  std::span<const std::uint8_t> labels() const { return labels_; }
  /// A number for each target of each sample.
  void set_reference(std::vector<std::vector<float>> of_samples) { reference_ = std::move(of_samples); }
  std::vector<std::vector<float>>& reference() { return reference_; }

  training_pass pass(std::span<const std::size_t> units) const {
    std::vector<finetune::slice> slices, second;
    for (const std::size_t unit : units) {
      const auto& all = units_[unit];
      slices.insert(slices.end(), all.begin(), paired_ ? all.begin() + 1 : all.end());
      if (paired_) second.push_back(all[1]);
    }
    training_pass out;
    out.pairs = paired_ ? units.size() : 0;
    if (!labels_.empty()) {
      for (const std::size_t unit : units) out.desirable.push_back(labels_[unit]);
      out.others = finetune::make_window(samples_, second, 0), out.others_reference = reference_of(second);
    } else {
      slices.insert(slices.end(), second.begin(), second.end());
    }
    out.of = finetune::make_window(samples_, slices, 0), out.reference = reference_of(slices);
    return out;
  }

  /// All units in their order, so many a pass.
  std::vector<training_pass> passes(std::size_t units_of_pass) const {
    std::vector<training_pass> out;
    for (std::size_t begin = 0; begin < units_.size(); begin += units_of_pass) {
      std::vector<std::size_t> units(std::min(units_of_pass, units_.size() - begin));
      for (std::size_t i = 0; i < units.size(); ++i) units[i] = begin + i;
      out.push_back(pass(units));
    }
    return out;
  }

 private:
  std::vector<float> reference_of(std::span<const finetune::slice> slices) const {
    std::vector<float> out;
    if (!reference_.empty())
      for (const finetune::slice& part : slices)
        out.insert(out.end(), reference_[part.sample].begin(), reference_[part.sample].end());
    return out;
  }

  std::vector<sample> samples_;
  std::vector<std::uint8_t> labels_;
  bool paired_;
  std::vector<std::vector<finetune::slice>> units_;
  std::vector<std::vector<float>> reference_;
};

/// Units without end: each epoch takes them in an order of its own, which the seed and its number decide, so that the
/// place in the data is two numbers.
class pass_source {
 public:
  pass_source(training_data data, std::uint64_t seed)
      : data_(std::move(data)), seed_(seed), order_(data_.units(), seed) {}

  training_pass next(std::size_t units) {
    std::vector<std::size_t> drawn(units);
    for (std::size_t& unit : drawn) unit = order_.next();
    return data_.pass(drawn);
  }
  const finetune::cursor& at() const { return order_.at(); }
  training_data& data() { return data_; }
  const training_data& data() const { return data_; }

  /// False if the epoch has fewer units than were taken.
  bool go_to(const finetune::cursor& at) {
    if (at.taken > data_.units()) return false;
    order_ = finetune::shuffled_order(data_.units(), seed_, at);
    return true;
  }

 private:
  training_data data_;
  std::uint64_t seed_;
  finetune::shuffled_order order_;
};

}  // namespace example
#endif
