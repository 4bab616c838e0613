// The bytes that choose a case: shapes, layouts, options, values. The same bytes, the same case; where they end, zeros.
#ifndef TIGON_TESTS_FUZZ_SOURCE_HPP
#define TIGON_TESTS_FUZZ_SOURCE_HPP

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace tigon::fuzz {

/// What is wrong with a result. Whoever runs cases prints it with the bytes of the case.
struct finding : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// SplitMix64: one seed, one sequence, on every platform.
class generator {
 public:
  explicit generator(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  /// From 0 up to but not including 1.
  double unit() { return static_cast<double>((*this)() >> 11) * 0x1p-53; }
  /// About normal: a sum of four, between -3.5 and 3.5, of mean 0 and deviation 1.
  double normal() { return (unit() + unit() + unit() + unit() - 2) * 1.7320508075688772; }

 private:
  std::uint64_t state_;
};

class source {
 public:
  explicit source(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const std::uint8_t first = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return first;
  }
  std::size_t below(std::size_t n) {
    std::size_t value = byte();
    if (n > 256) value = value << 8 | byte();
    return value % n;
  }
  std::size_t between(std::size_t least, std::size_t most) { return least + below(most - least + 1); }
  bool one_in(std::size_t n) { return below(n) == n - 1; }  // zeros choose what is plain
  template <class N>
  N pick(std::initializer_list<N> of) {
    return of.begin()[below(of.size())];
  }
  std::uint64_t seed() { return static_cast<std::uint64_t>(byte()) << 8 | byte(); }
  std::span<const std::uint8_t> rest() const { return bytes_; }

 private:
  std::span<const std::uint8_t> bytes_;
};

/// Allocations of the calling thread so far, where the driver counts them.
inline thread_local std::size_t allocations = 0;

/// More calls of each kind, each of which has to give the bits of the first.
inline std::size_t repeats = 0;
/// Every input also repeats rows, by a stride of 0.
inline bool expanded = false;

/// One target of a program: what runs a case made of these bytes, and throws a finding.
struct target {
  const char* name;
  void (*run)(source& in);
};

}  // namespace tigon::fuzz

#endif  // TIGON_TESTS_FUZZ_SOURCE_HPP
