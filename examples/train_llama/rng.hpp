#ifndef EXAMPLE_TRAIN_LLAMA_RNG_HPP
#define EXAMPLE_TRAIN_LLAMA_RNG_HPP

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>

namespace example {

/// xoshiro256** (Blackman and Vigna, 2018), seeded by splitmix64. The four words are the whole state: a
/// checkpoint that keeps them goes on with the same draws. The distributions are our own, because those of
/// <random> differ between standard libraries.
class rng {
 public:
  using state_type = std::array<std::uint64_t, 4>;

  explicit rng(std::uint64_t seed) {
    for (auto& word : state_) {
      seed += 0x9e3779b97f4a7c15u;
      std::uint64_t z = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9u;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
      word = z ^ (z >> 31);
    }
  }
  explicit rng(const state_type& state) : state_(state) {}

  const state_type& state() const { return state_; }

  std::uint64_t next() {
    const std::uint64_t out = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return out;
  }

  /// In [0, 1), every multiple of 2^-53 equally likely.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  /// In [0, n), n >= 1. The bias of the remainder is below n / 2^64.
  std::size_t below(std::size_t n) { return next() % n; }

  /// Standard normal by Box and Muller. The second value of the pair is not kept: it would be state.
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  state_type state_{};
};

}  // namespace example
#endif
