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

/// The first eight digits of the numbers x, in the upper halves; x becomes the rest, exactly. All parts have the sign
/// of their number, so their magnitudes add up to its own. A part that would leave nothing is halved: no part of a
/// number is zero, which would make NaN of an infinity in b, all parts of an infinity are infinite, and one of NaN
/// stays NaN. Digits below 2^-125 may be lost. Line is word_line; a template, as compilers warn of functions with
/// vectors that the flags do not have.
template <class Line>
TIGON_INLINE Line take_part(Line& x) {
  using numbers = words<float, 16>;
  Line halved, rest;
  numbers v, first;
  const Line top = x & 0xffff0000u;
  const auto ends = (x & 0xffffu) == 0;
  std::memcpy(&v, &x, sizeof v);
  std::memcpy(&first, &top, sizeof first);
  const numbers half = v * 0.5f, less = v - first;
  std::memcpy(&halved, &half, sizeof halved);
  std::memcpy(&rest, &less, sizeof rest);
  x = ends ? halved : rest;
  return ends ? halved : top;
}

/// Words of the parts of 16 pairs of numbers: the smallest part first.
template <class Line>
struct parts_of_pairs {
  Line part[3];

  TIGON_INLINE parts_of_pairs(Line first, Line second) {
    for (int i = 2; i > 0; --i) {
      const Line a = take_part(first), b = take_part(second);
      part[i] = a >> 16 | (b & 0xffff0000u);
    }
    part[0] = first >> 16 | (second & 0xffff0000u);
  }
};

}  // namespace TIGON_ABI
}  // namespace packed
}  // namespace tigon

#endif  // TIGON_GEMM_BF16_PARTS_HPP
