// Counter-based random bits: a function of a key and a number, so that they depend neither on threads nor on lanes. And
// stochastic rounding by them.
#ifndef TIGON_SIMD_MATH_RANDOM_HPP
#define TIGON_SIMD_MATH_RANDOM_HPP

#include <tigon/simd/vec.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace detail {

// The bits of the lanes as whole numbers, in the compiler's own vectors.
template <class V>
struct words;
template <class V>
  requires(V::size == 1)
struct words<V> {
  static TIGON_INLINE std::uint32_t of(V v) { return std::bit_cast<std::uint32_t>(v.r); }
  static TIGON_INLINE V vector(std::uint32_t bits) { return V(std::bit_cast<float>(bits)); }
};
#if !defined(TIGON_DEVICE_CODE)
template <class V>
  requires(V::size > 1)
struct words<V> {
  using lanes = typename V::lanes;
  typedef std::uint32_t type __attribute__((vector_size(sizeof(std::uint32_t) * V::size)));
  static constexpr bool has_raw = requires(typename lanes::reg r) { lanes::raw(r); };

  static TIGON_HOST_INLINE type of(V v) {
    if constexpr (has_raw) {
      return (type)lanes::raw(v.r);
    } else {
      alignas(64) float buffer[V::size];
      store(v, buffer);
      type bits;
      std::memcpy(&bits, buffer, sizeof bits);
      return bits;
    }
  }
  static TIGON_HOST_INLINE V vector(type bits) {
    if constexpr (has_raw) {
      return V::from(lanes::from_raw((decltype(lanes::raw(typename lanes::reg{})))bits));
    } else {
      alignas(64) float buffer[V::size];
      std::memcpy(buffer, &bits, sizeof bits);
      return load<V>(static_cast<const float*>(buffer));
    }
  }
};
#endif

}  // namespace detail

/// What random bits depend on besides their counter.
struct random_key {
  std::uint32_t first, second;
};

/// The output function of splitmix64 (Steele, Lea, Flood 2014): a bijection, every bit of which depends on every bit of
/// x.
constexpr TIGON_INLINE std::uint64_t mixed_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// A key of several numbers, their order counted.
template <class... N>
constexpr TIGON_INLINE random_key random_key_of(N... numbers) {
  std::uint64_t x = 0;
  ((x = mixed_bits(x + 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(numbers))), ...);
  return {static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(x >> 32)};
}

/// 32 random bits in every lane, in the place of a number. counter: whole numbers in [0, 2^23), each a stream's next.
/// lowbias32 (Wellons 2018) of the counter, with the key added before and between its products.
template <class V>
TIGON_INLINE V random_bits(V counter, random_key key) {
  using words = detail::words<V>;
  auto x = words::of(counter + V(0x1p23f)) ^ key.first;  // the last bits of which are the whole number
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = ((x ^ (x >> 15)) + key.second) * 0x846ca68bu;
  return words::vector(x ^ (x >> 16));
}

/// v rounded to bf16 by the last 16 bits of every lane of `random`: to the nearer or the farther neighbour, with
/// probabilities whose mean is v. What bf16 has stays, infinities and NaN too; beyond its largest number lies infinity.
template <class V>
TIGON_INLINE V round_to_bfloat16_by(V v, V random) {
  using words = detail::words<V>;
  const V rounded = words::vector((words::of(v) + (words::of(random) & 0xffffu)) & 0xffff0000u);
  return select(v == v, rounded, v);
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_MATH_RANDOM_HPP
