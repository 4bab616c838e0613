// Packs of vectors, and loops over them whose indices are constants.
#ifndef TIGON_SIMD_PACKS_HPP
#define TIGON_SIMD_PACKS_HPP

#include <tigon/simd/vec.hpp>

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {

/// Vectors that a function of a column returns: those of a pack, or one.
template <class R>
inline constexpr std::size_t pack_size = 1;
template <class V, std::size_t N>
inline constexpr std::size_t pack_size<pack<V, N>> = N;

/// max, for members of that name, which hide it.
template <class V>
TIGON_INLINE V larger(V a, V b) {
  return max(a, b);
}

/// f(the elements of a tuple): std::apply, always inlined. A function inside, with a pack of indices, would be one more
/// in which g++ compiles the body of f.
template <class F, class... T>
TIGON_INLINE decltype(auto) unpacked(F f, const std::tuple<T...>& v) {
  using std::get;
  constexpr std::size_t N = sizeof...(T);
  if constexpr (N == 0)
    return f();
  else if constexpr (N == 1)
    return f(get<0>(v));
  else if constexpr (N == 2)
    return f(get<0>(v), get<1>(v));
  else if constexpr (N == 3)
    return f(get<0>(v), get<1>(v), get<2>(v));
  else if constexpr (N == 4)
    return f(get<0>(v), get<1>(v), get<2>(v), get<3>(v));
  else
    return [&]<std::size_t... K>(std::index_sequence<K...>)
               TIGON_LAMBDA -> decltype(auto) { return f(get<K>(v)...); }(std::index_sequence_for<T...>{});
}

/// The elements of both tuples: std::tuple_cat, always inlined.
template <class... A, class... B>
TIGON_INLINE std::tuple<A..., B...> joined(const std::tuple<A...>& a, const std::tuple<B...>& b) {
  const auto join = [&](auto... x) TIGON_LAMBDA {
    return unpacked([&](auto... y) TIGON_LAMBDA { return std::tuple<A..., B...>(x..., y...); }, b);
  };
  return unpacked(join, a);
}

/// f(0), ..., f(N - 1) with constants for indices: an array that is indexed so is known to be registers from the start.
template <std::size_t N, std::size_t First = 0, class F>
TIGON_INLINE void unrolled(F f) {
  if constexpr (First < N) f(std::integral_constant<std::size_t, First>{});
  if constexpr (First + 1 < N) f(std::integral_constant<std::size_t, First + 1>{});
  if constexpr (First + 2 < N) f(std::integral_constant<std::size_t, First + 2>{});
  if constexpr (First + 3 < N) f(std::integral_constant<std::size_t, First + 3>{});
  if constexpr (First + 4 < N) unrolled<N, First + 4>(f);
}

/// f(u, width) for a fold of U values into the first: u < width, and width is U / 2, U / 4, ..., 1.
template <std::size_t U, class F>
TIGON_INLINE void halve(F f) {
  if constexpr (U > 1) {
    unrolled<U / 2>([&](auto u) TIGON_LAMBDA { f(u, std::integral_constant<std::size_t, U / 2>{}); });
    halve<U / 2>(f);
  }
}

/// What a function of a column returned, as a pack.
template <class V>
TIGON_INLINE pack<V, 1> as_pack(V v) {
  return {{v}};
}
template <class V, std::size_t N>
TIGON_INLINE pack<V, N> as_pack(pack<V, N> p) {
  return p;
}

/// The vectors of a, then those of b.
template <class V, std::size_t N, std::size_t M>
TIGON_INLINE pack<V, N + M> joined(pack<V, N> a, pack<V, M> b) {
  pack<V, N + M> all;
  unrolled<N>([&](auto k) TIGON_LAMBDA { all.v[k] = a.v[k]; });
  unrolled<M>([&](auto k) TIGON_LAMBDA { all.v[N + k] = b.v[k]; });
  return all;
}

/// Whether a vector of f32 may be loaded from pairs of elements of type T: vector loads of x86 read what is stored as
/// another type, and lanes lie in the order of memory.
template <class V, class T>
inline constexpr bool loads_as_f32 =
#if defined(TIGON_X86)
    std::same_as<T, bfloat16> && std::same_as<typename V::value_type, float>;
#else
    false;
#endif
template <bool Odd, class V>
TIGON_INLINE V half_of_pairs(V a, V b) {
  return Odd ? odd_lanes(a, b) : even_lanes(a, b);
}

// A loop over columns takes the last of them by the step that takes all others: it gets the lanes to ignore.

/// No lane is ignored.
struct ignore_none {};
/// Lanes from n on are: they are neither read nor written.
struct ignore_from {
  std::size_t n;
};
template <class Ignore>
inline constexpr bool ignores = std::is_same_v<Ignore, ignore_from>;

template <class V, class T>
TIGON_INLINE V load(const T* p, ignore_none) {
  return load<V>(p);
}
template <class V, class T>
TIGON_INLINE V load(const T* p, ignore_from some) {
  return load_n<V>(p, some.n);
}
template <class V, class T>
TIGON_INLINE void store(V v, T* p, ignore_none) {
  store(v, p);
}
template <class V, class T>
TIGON_INLINE void store(V v, T* p, ignore_from some) {
  store_n(v, p, some.n);
}
/// The even ones of the elements from p on, p[0], p[2], ..., or the odd ones.
template <bool Odd, class V, class T, class Ignore>
TIGON_INLINE V load_of_pairs(const T* p, [[maybe_unused]] Ignore ignore) {
  if constexpr (V::size == 1) {
    return load<V>(p + Odd);
  } else if constexpr (ignores<Ignore>) {
    const std::size_t first = std::min(2 * ignore.n, V::size), second = 2 * ignore.n - first;
    const V low = load_n<V>(p, first);
    return half_of_pairs<Odd>(low, second == 0 ? low : load_n<V>(p + V::size, second));
  } else if constexpr (loads_as_f32<V, T>) {
    // A pair of bf16 in a lane of f32 bits: the odd one is its upper half, the even one its lower.
    const V pair = load<V>(reinterpret_cast<const float*>(p));
    return Odd ? bit_and(pair, V(std::bit_cast<float>(0xffff0000u))) : pair.template shl<16>();
  } else {
    return half_of_pairs<Odd>(load<V>(p), load<V>(p + V::size));
  }
}
/// v, and `other` in what is ignored.
template <class V>
TIGON_INLINE V kept(V v, V, ignore_none) {
  return v;
}
template <class V>
TIGON_INLINE V kept(V v, V other, ignore_from some) {
  return select(V::iota() < V(static_cast<typename V::value_type>(some.n)), v, other);
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

namespace tigon {
using simd::pack;
using simd::round_computed_to;
using simd::round_to;
}  // namespace tigon

#endif  // TIGON_SIMD_PACKS_HPP
