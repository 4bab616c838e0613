// Pairs of neighbouring lanes by the compiler's own shuffles, for libraries that have none: every register that the
// compiler knows as a vector, on every architecture.
#ifndef TIGON_SIMD_ENGINES_PAIRS_HPP
#define TIGON_SIMD_ENGINES_PAIRS_HPP

#include <tigon/config.hpp>

#include <cstddef>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {
namespace pairs {

/// Lanes I of a and, from their number on, of b.
template <int... I, class R>
TIGON_INLINE R shuffled(R a, R b) {
#if defined(__CUDACC__)  // nvcc loses the pack of the compiler's own shuffle
  constexpr int from[] = {I...}, lanes = sizeof...(I);
  R r = a;
  for (int k = 0; k < lanes; ++k) r[k] = from[k] < lanes ? a[from[k]] : b[from[k] - lanes];
  return r;
#else
  return __builtin_shufflevector(a, b, I...);
#endif
}

/// Of N lanes, those whose numbers differ in the bit Bit exchanged: with 1, lanes 1, 0, 3, 2, ...
template <std::size_t Bit, std::size_t N, class R>
TIGON_INLINE R exchange(R a) {
  return [a]<std::size_t... I>(std::index_sequence<I...>)
             TIGON_LAMBDA { return shuffled<static_cast<int>(I ^ Bit)...>(a, a); }(std::make_index_sequence<N>{});
}

/// Lanes First, First, First + 2, First + 2, ... of N.
template <std::size_t First, std::size_t N, class R>
TIGON_INLINE R dup(R a) {
  return [a]<std::size_t... I>(std::index_sequence<I...>) TIGON_LAMBDA {
    return shuffled<static_cast<int>(I / 2 * 2 + First)...>(a, a);
  }(std::make_index_sequence<N>{});
}

/// Lanes First, First + 2, ... of a and then of b, which have N each.
template <std::size_t First, std::size_t N, class R>
TIGON_INLINE R every_second(R a, R b) {
  return [a, b]<std::size_t... I>(std::index_sequence<I...>)
             TIGON_LAMBDA { return shuffled<static_cast<int>(2 * I + First)...>(a, b); }(std::make_index_sequence<N>{});
}

/// Lanes First, First + 1, ... of a and b, interleaved; a and b have N lanes each.
template <std::size_t First, std::size_t N, class R>
TIGON_INLINE R zip(R a, R b) {
  return [a, b]<std::size_t... I>(std::index_sequence<I...>) TIGON_LAMBDA {
    return shuffled<static_cast<int>(First + I / 2 + I % 2 * N)...>(a, b);
  }(std::make_index_sequence<N>{});
}

}  // namespace pairs
}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_ENGINES_PAIRS_HPP
