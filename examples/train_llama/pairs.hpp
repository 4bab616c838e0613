#ifndef EXAMPLE_TRAIN_LLAMA_PAIRS_HPP
#define EXAMPLE_TRAIN_LLAMA_PAIRS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rng.hpp"
#include "text.hpp"

namespace example {

/// What a rejected sequence goes on with after the prompt.
enum class rejected_kind {
  elsewhere,  ///< the same number of tokens from another place in the text, which no window overlaps
  shuffled,   ///< the true continuation's own tokens in random order
};

/// Some pairs as a model reads them: the chosen windows, then the rejected ones in the same order.
struct pair_batch {
  std::size_t pairs = 0;
  std::vector<std::int32_t> ids, targets;  ///< [2 pairs, seq_len]; targets inside the prompt do not count
};

/// The target that counts for no loss.
inline constexpr std::int32_t ignored_token = -100;

/// Pairs from a text: the chosen sequence is a window of it, the rejected one the same prompt with another
/// continuation. The same text and seed give the same pairs.
class preference_pairs {
 public:
  preference_pairs(std::span<const std::int32_t> text, std::size_t count, std::size_t seq_len, std::size_t prompt_len,
                   rejected_kind kind, std::uint64_t seed)
      : seq_len_(seq_len), prompt_len_(prompt_len) {
    rng draw(seed);
    // As in train_llama a window is seq_len inputs and, one further on, seq_len targets.
    const std::size_t window = seq_len + 1, places = text.size() - seq_len;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t begin = draw.below(places);
      chosen_.emplace_back(text.begin() + static_cast<std::ptrdiff_t>(begin),
                           text.begin() + static_cast<std::ptrdiff_t>(begin + window));
      std::vector<std::int32_t> other = chosen_.back();
      const auto rest = std::span(other).subspan(prompt_len);
      if (kind == rejected_kind::elsewhere) {
        const std::size_t there = (begin + window + draw.below(places - 2 * window + 1)) % places;
        std::ranges::copy(text.subspan(there + prompt_len, rest.size()), rest.begin());
      } else {
        for (std::size_t k = rest.size(); k > 1; --k) std::swap(rest[k - 1], rest[draw.below(k)]);
      }
      rejected_.push_back(std::move(other));
    }
  }

  std::size_t size() const { return chosen_.size(); }

  pair_batch batch(std::span<const std::size_t> which) const {
    pair_batch out;
    out.pairs = which.size();
    for (const auto* windows : {&chosen_, &rejected_})
      for (const std::size_t i : which) {
        const auto& window = (*windows)[i];
        out.ids.insert(out.ids.end(), window.begin(), window.end() - 1);
        for (std::size_t t = 1; t <= seq_len_; ++t) out.targets.push_back(t < prompt_len_ ? ignored_token : window[t]);
      }
    return out;
  }

 private:
  std::size_t seq_len_, prompt_len_;
  std::vector<std::vector<std::int32_t>> chosen_, rejected_;
};

/// The end of the text is held out, with room for a window and one elsewhere in either part.
inline corpus split_for_pairs(std::span<const std::int32_t> tokens, std::size_t seq_len) {
  const std::size_t least = 3 * (seq_len + 1);
  if (tokens.size() < 2 * least)
    throw std::runtime_error("the text is too short: it has " + std::to_string(tokens.size()) +
                             " tokens, and pairs to train on and pairs to hold out need " + std::to_string(2 * least) +
                             " at --seq-len " + std::to_string(seq_len));
  return split(tokens, least - 1);
}

}  // namespace example
#endif
