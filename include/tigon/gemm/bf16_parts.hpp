// An f32 number as the sum of three bf16 numbers, for instructions that multiply bf16: 24 digits are 3 x 8.
#ifndef TIGON_GEMM_BF16_PARTS_HPP
#define TIGON_GEMM_BF16_PARTS_HPP

#include <tigon/gemm/panels.hpp>

#include <cstdint>
#include <cstring>

namespace tigon {
namespace packed {
inline namespace TIGON_ABI {

/// 16 words: the bits of 16 f32 numbers, or of 16 pairs of bf16 numbers.
using word_line = words<std::uint32_t, 16>;

/// The first eight digits of the numbers x, in the upper halves; x becomes the rest, exactly. All parts have the sign of
/// their number, so their magnitudes add up to its own. A part that would leave nothing is halved: no part of a number is
/// zero, which would make NaN of an infinity in b, all parts of an infinity are infinite, and one of NaN stays NaN.
/// Digits below 2^-126 may be lost.
TIGON_INLINE word_line take_part(word_line& x) {
  using numbers = words<float, 16>;
  const auto number_of = [](word_line bits) TIGON_LAMBDA {
    numbers v;
    std::memcpy(&v, &bits, sizeof v);
    return v;
  };
  const auto bits_of = [](numbers v) TIGON_LAMBDA {
    word_line bits;
    std::memcpy(&bits, &v, sizeof bits);
    return bits;
  };
  const numbers v = number_of(x);
  const word_line top = x & 0xffff0000u, ends = word_line((x & 0xffffu) == 0);
  const word_line halved = bits_of(v * 0.5f), rest = bits_of(v - number_of(top));
  x = (ends & halved) | (~ends & rest);
  return (ends & halved) | (~ends & top);
}

/// Words of the parts of 16 pairs of numbers: the smallest part first.
struct parts_of_pairs {
  word_line part[3];

  TIGON_INLINE parts_of_pairs(word_line first, word_line second) {
    for (int i = 2; i > 0; --i) {
      const word_line a = take_part(first), b = take_part(second);
      part[i] = join(a, b);
    }
    part[0] = join(first, second);
  }

 private:
  static TIGON_INLINE word_line join(word_line first, word_line second) { return first >> 16 | (second & 0xffff0000u); }
};

}  // namespace TIGON_ABI
}  // namespace packed
}  // namespace tigon

#endif  // TIGON_GEMM_BF16_PARTS_HPP
