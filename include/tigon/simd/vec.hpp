// One neutral vector over every engine, with operators, so that a kernel reads like its formula.
//
// A vec<E, A> holds as many numbers of type A (float, double) as engine E has lanes. Elements of any storage type are
// widened by load() and rounded once, to nearest even, by store().
#ifndef TIGON_SIMD_VEC_HPP
#define TIGON_SIMD_VEC_HPP

#include <tigon/simd/engines/arm.hpp>
#include <tigon/simd/engines/x86.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

namespace tigon::simd {
inline namespace TIGON_ABI {

template <class E, class A>
struct mask {
  using lanes = typename E::template lanes<A>;
  typename lanes::mask m;

  friend TIGON_INLINE mask operator&&(mask a, mask b) { return {lanes::both(a.m, b.m)}; }
  friend TIGON_INLINE mask operator||(mask a, mask b) { return {lanes::either(a.m, b.m)}; }
  friend TIGON_INLINE mask operator!(mask a) { return {lanes::no(a.m)}; }
};

template <class E, class A>
struct vec {
  using engine = E;
  using value_type = A;
  using lanes = typename E::template lanes<A>;
  using mask_type = mask<E, A>;
  static constexpr std::size_t size = lanes::size;

  typename lanes::reg r;

  vec() = default;
  TIGON_INLINE vec(A value) : r(lanes::set(value)) {}  // NOLINT: a number is a vector of itself
  static TIGON_INLINE vec from(typename lanes::reg r) {
    vec v;
    v.r = r;
    return v;
  }
  /// 0, 1, 2, ...
  static TIGON_INLINE vec iota() { return from(lanes::iota()); }

  friend TIGON_INLINE vec operator+(vec a, vec b) { return from(lanes::add(a.r, b.r)); }
  friend TIGON_INLINE vec operator-(vec a, vec b) { return from(lanes::sub(a.r, b.r)); }
  friend TIGON_INLINE vec operator*(vec a, vec b) { return from(lanes::mul(a.r, b.r)); }
  friend TIGON_INLINE vec operator/(vec a, vec b) { return from(lanes::div(a.r, b.r)); }
  friend TIGON_INLINE vec operator-(vec a) { return from(lanes::neg(a.r)); }
  TIGON_INLINE vec& operator+=(vec b) { return *this = *this + b; }
  TIGON_INLINE vec& operator*=(vec b) { return *this = *this * b; }

  friend TIGON_INLINE mask_type operator<(vec a, vec b) { return {lanes::lt(a.r, b.r)}; }
  friend TIGON_INLINE mask_type operator<=(vec a, vec b) { return {lanes::le(a.r, b.r)}; }
  friend TIGON_INLINE mask_type operator>(vec a, vec b) { return {lanes::lt(b.r, a.r)}; }
  friend TIGON_INLINE mask_type operator>=(vec a, vec b) { return {lanes::le(b.r, a.r)}; }
  friend TIGON_INLINE mask_type operator==(vec a, vec b) { return {lanes::eq(a.r, b.r)}; }
  /// Not a > b: true where one of them is a NaN.
  friend TIGON_INLINE mask_type not_above(vec a, vec b) {
    if constexpr (requires { lanes::not_above(a.r, b.r); })
      return {lanes::not_above(a.r, b.r)};
    else
      return !(a > b);
  }

  /// a * b + c with one rounding where the target has the instruction.
  friend TIGON_INLINE vec fma(vec a, vec b, vec c) { return from(lanes::fma(a.r, b.r, c.r)); }
  /// c - a * b.
  friend TIGON_INLINE vec fnma(vec a, vec b, vec c) { return from(lanes::fnma(a.r, b.r, c.r)); }
  /// min: b where b is a NaN, whatever a is; where only a is one, b or NaN. The same for max, on every engine and every
  /// architecture: clamp with min(limit, x), and look for NaN in a elsewhere.
  friend TIGON_INLINE vec min(vec a, vec b) { return from(lanes::min(a.r, b.r)); }
  friend TIGON_INLINE vec max(vec a, vec b) { return from(lanes::max(a.r, b.r)); }
  friend TIGON_INLINE vec abs(vec a) { return from(lanes::abs(a.r)); }
  friend TIGON_INLINE vec sqrt(vec a) { return from(lanes::sqrt(a.r)); }
  /// To the nearest whole number, ties to even.
  friend TIGON_INLINE vec round(vec a) { return from(lanes::round(a.r)); }
  friend TIGON_INLINE vec select(mask_type m, vec a, vec b) { return from(lanes::select(m.m, a.r, b.r)); }
  friend TIGON_INLINE mask_type is_nan(vec a) { return !(a == a); }

  friend TIGON_INLINE vec bit_and(vec a, vec b) { return from(lanes::bit_and(a.r, b.r)); }
  friend TIGON_INLINE vec bit_or(vec a, vec b) { return from(lanes::bit_or(a.r, b.r)); }
  friend TIGON_INLINE vec bit_xor(vec a, vec b) { return from(lanes::bit_xor(a.r, b.r)); }
  template <int K>
  TIGON_INLINE vec shl() const {
    return from(lanes::template shl<K>(r));
  }
  template <int K>
  TIGON_INLINE vec shr() const {
    return from(lanes::template shr<K>(r));
  }
  /// The magnitude of a with the sign of b.
  friend TIGON_INLINE vec copysign(vec a, vec b) {
    const vec sign(A(-0.0));
    return bit_or(abs(a), bit_and(b, sign));
  }

  // Pairs of neighbours, lanes 2k and 2k + 1. Not on an engine with one lane, which holds half a pair.
  /// Lanes 1, 0, 3, 2, ...
  friend TIGON_INLINE vec swap_pairs(vec a) { return from(lanes::swap_pairs(a.r)); }
  /// Lanes 0, 0, 2, 2, ...
  friend TIGON_INLINE vec dup_even(vec a) { return from(lanes::dup_even(a.r)); }
  /// Lanes 1, 1, 3, 3, ...
  friend TIGON_INLINE vec dup_odd(vec a) { return from(lanes::dup_odd(a.r)); }
  /// Lanes 0, 2, ... of a, and then of b; and lanes 1, 3, ...
  friend TIGON_INLINE vec even_lanes(vec a, vec b) { return from(lanes::even_lanes(a.r, b.r)); }
  friend TIGON_INLINE vec odd_lanes(vec a, vec b) { return from(lanes::odd_lanes(a.r, b.r)); }
  /// The way back: a0, b0, a1, b1, ... of the lower half of the lanes, and of the upper half.
  friend TIGON_INLINE vec zip_low(vec a, vec b) { return from(lanes::zip_low(a.r, b.r)); }
  friend TIGON_INLINE vec zip_high(vec a, vec b) { return from(lanes::zip_high(a.r, b.r)); }
  /// -1, 1, -1, 1, ...
  static TIGON_INLINE vec pair_signs() { return from(lanes::load(pair_signs_.data())); }

  /// Of all lanes, in a fixed order.
  friend TIGON_INLINE A sum_lanes(vec a) { return lanes::sum(a.r); }
  /// NaN where all lanes are; where some are, NaN or any of the others.
  friend TIGON_INLINE A max_lanes(vec a) {
    return fold(
        a, [](vec x, vec y) TIGON_LAMBDA { return max(x, y); }, [](A x, A y) { return x > y ? x : y; });
  }
  friend TIGON_INLINE A min_lanes(vec a) {
    return fold(
        a, [](vec x, vec y) TIGON_LAMBDA { return min(x, y); }, [](A x, A y) { return x < y ? x : y; });
  }

 private:
  // Not by the libraries' reductions: those of one compiler for AVX-512 make no NaN of NaN alone.
  template <class OfVectors, class OfNumbers>
  static TIGON_INLINE A fold(vec a, OfVectors of_vectors, OfNumbers of_numbers) {
    alignas(64) A buffer[size];
    if constexpr (requires { lanes::template exchange<1>(a.r); }) {
      [&]<std::size_t... I>(std::index_sequence<I...>) TIGON_LAMBDA {
        ((a = of_vectors(a, from(lanes::template exchange<size / (std::size_t{2} << I)>(a.r)))), ...);
      }(std::make_index_sequence<static_cast<std::size_t>(std::bit_width(size)) - 1>());
      lanes::store(a.r, buffer);
      return buffer[0];
    } else {
      lanes::store(a.r, buffer);
      A result = buffer[0];
      for (std::size_t i = 1; i < size; ++i) result = of_numbers(result, buffer[i]);
      return result;
    }
  }

  static constexpr std::array<A, size> pair_signs_ = [] {
    std::array<A, size> signs{};
    for (std::size_t i = 0; i < size; ++i) signs[i] = i % 2 == 0 ? A(-1) : A(1);
    return signs;
  }();
};

namespace detail {

// Whether the shared x86 helpers know this register and this storage type.
template <class L, class T>
concept raw_load = requires(const T* p, decltype(L::raw(typename L::reg{}))& v) { x86::load(p, v); };
template <class L, class T>
concept raw_store = requires(T* p, decltype(L::raw(typename L::reg{})) v) { x86::store(v, p); };
template <class L, class T>
concept raw_stream = requires(T* p, decltype(L::raw(typename L::reg{})) v) { x86::stream(v, p); };
template <class L, class T>
concept raw_pair = requires(T* p, decltype(L::raw(typename L::reg{})) v) { x86::store_pair(v, v, p); };
template <class L, class T>
concept raw_load_n =
    requires(const T* p, decltype(L::raw(typename L::reg{}))& v) { x86::load_n(p, std::size_t{1}, v); };
template <class L, class T>
concept raw_store_n = requires(T* p, decltype(L::raw(typename L::reg{})) v) { x86::store_n(v, p, std::size_t{1}); };
template <class L, class T>
concept raw_round = requires(decltype(L::raw(typename L::reg{})) v) { x86::round_to(v, T()); };
template <class L, class T>
concept raw_round_computed = requires(decltype(L::raw(typename L::reg{})) v) { x86::round_computed_to(v, T()); };
template <class L>
concept raw_scale = requires(decltype(L::raw(typename L::reg{})) v) { x86::scale(v, v); };

}  // namespace detail

/// Elements p[0, size), widened.
template <class V, element T>
TIGON_INLINE V load(const T* p) {
  using L = typename V::lanes;
  using A = typename V::value_type;
  if constexpr (std::same_as<T, A>) {
    return V::from(L::load(p));
  } else if constexpr (V::size == 1) {
    return V(static_cast<A>(*p));
#if defined(TIGON_X86)
  } else if constexpr (detail::raw_load<L, T>) {
    decltype(L::raw(typename L::reg{})) raw;
    x86::load(p, raw);
    return V::from(L::from_raw(raw));
#elif defined(__aarch64__)
  } else if constexpr (arm::converts<V, T>) {
    return arm::load<V>(p);
#endif
  } else {
    alignas(64) A buffer[V::size];
    for (std::size_t i = 0; i < V::size; ++i) buffer[i] = static_cast<A>(p[i]);
    return V::from(L::load(buffer));
  }
}

/// Writes all lanes to p[0, size), each rounded once to T.
template <class V, element T>
TIGON_INLINE void store(V v, T* p) {
  using L = typename V::lanes;
  using A = typename V::value_type;
  if constexpr (std::same_as<T, A>) {
    L::store(v.r, p);
  } else if constexpr (V::size == 1) {
    A value;
    L::store(v.r, &value);
    *p = as_element<T>(value);
#if defined(TIGON_X86)
  } else if constexpr (detail::raw_store<L, T>) {
    x86::store(L::raw(v.r), p);
#elif defined(__aarch64__)
  } else if constexpr (arm::converts<V, T>) {
    arm::store(v, p);
#endif
  } else {
    alignas(64) A buffer[V::size];
    L::store(v.r, buffer);
    for (std::size_t i = 0; i < V::size; ++i) p[i] = as_element<T>(buffer[i]);
  }
}

/// As store, past the caches; p is aligned to the bytes written. Ordered before later stores only by stream_fence().
template <class V, element T>
TIGON_INLINE void stream(V v, T* p) {
#if defined(TIGON_X86)
  using L = typename V::lanes;
  if constexpr (V::size > 1 && detail::raw_stream<L, T>)
    x86::stream(L::raw(v.r), p);
  else
#endif
    store(v, p);
}

/// Whether storing two vectors at once is less work than storing one after the other.
template <class V, element T>
inline constexpr bool stores_pairs =
#if defined(TIGON_X86)
    V::size > 1 && detail::raw_pair<typename V::lanes, T>;
#else
    false;
#endif

/// Two vectors one after the other; streamed, p is aligned to the bytes of both. Zeros: many numbers are 0, scattered.
template <bool Stream, bool Zeros = false, class V, element T>
TIGON_INLINE void store_pair(V first, V second, T* p) {
#if defined(TIGON_X86)
  using L = typename V::lanes;
  if constexpr (stores_pairs<V, T> && Stream)
    x86::stream_pair<Zeros>(L::raw(first.r), L::raw(second.r), p);
  else if constexpr (stores_pairs<V, T>)
    x86::store_pair<Zeros>(L::raw(first.r), L::raw(second.r), p);
  else
#endif
    store(first, p), store(second, p + V::size);
}

/// Two vectors interleaved, even[0], odd[0], even[1], ...; streamed, p is aligned to the bytes of both. Zeros as above.
template <bool Stream, bool Zeros = false, class V, element T>
  requires(V::size > 1)
TIGON_INLINE void store_zipped(V even, V odd, T* p) {
#if defined(TIGON_X86)
  if constexpr (stores_pairs<V, T>) {
    using L = typename V::lanes;
    if constexpr (Stream)
      x86::stream_zipped<Zeros>(L::raw(even.r), L::raw(odd.r), p);
    else
      x86::store_zipped<Zeros>(L::raw(even.r), L::raw(odd.r), p);
    return;
  }
#endif
  const V low = zip_low(even, odd), high = zip_high(even, odd);
  if constexpr (Stream)
    stream(low, p), stream(high, p + V::size);
  else
    store(low, p), store(high, p + V::size);
}

TIGON_INLINE void stream_fence() {
#if defined(TIGON_X86)
  _mm_sfence();
#endif
}

/// The first n <= size elements, zeros behind them. Reads nothing beyond p[n - 1].
template <class V, element T>
TIGON_INLINE V load_n(const T* p, std::size_t n) {
  using L = typename V::lanes;
#if defined(TIGON_X86)
  if constexpr (V::size > 1 && detail::raw_load_n<L, T>) {
    decltype(L::raw(typename L::reg{})) raw;
    x86::load_n(p, n, raw);
    return V::from(L::from_raw(raw));
  } else
#elif defined(__aarch64__)
  if constexpr (arm::converts<V, T>) {
    return n == V::size ? load<V>(p) : arm::load_n<V>(p, n);
  } else
#endif
  {
    using A = typename V::value_type;
    if (n == V::size) return load<V>(p);
    alignas(64) A buffer[V::size] = {};
    for (std::size_t i = 0; i < n; ++i) buffer[i] = static_cast<A>(p[i]);
    return V::from(L::load(buffer));
  }
}

/// The first n <= size lanes. Writes nothing beyond p[n - 1].
template <class V, element T>
TIGON_INLINE void store_n(V v, T* p, std::size_t n) {
  using L = typename V::lanes;
#if defined(TIGON_X86)
  if constexpr (V::size > 1 && detail::raw_store_n<L, T>)
    x86::store_n(L::raw(v.r), p, n);
  else
#elif defined(__aarch64__)
  if constexpr (arm::converts<V, T>)
    n == V::size ? store(v, p) : arm::store_n(v, p, n);
  else
#endif
  {
    using A = typename V::value_type;
    if (n == V::size) return store(v, p);
    alignas(64) A buffer[V::size];
    L::store(v.r, buffer);
    for (std::size_t i = 0; i < n; ++i) p[i] = as_element<T>(buffer[i]);
  }
}

/// v rounded to storage type T and widened again.
template <element T, class V>
TIGON_INLINE V round_to(V v) {
  if constexpr (std::same_as<T, typename V::value_type>) {
    return v;
#if defined(TIGON_X86)
  } else if constexpr (detail::raw_round<typename V::lanes, T>) {
    using L = typename V::lanes;
    return V::from(L::from_raw(x86::round_to(L::raw(v.r), T())));
#endif
  } else {
    alignas(64) T buffer[V::size];
    store(v, buffer);
    return load<V>(buffer);
  }
}

/// How round_computed_to finds the last bit that stays. Results are the same. Passes that add up gradients have
/// execution units free for shifts, others for masks.
enum class odd_by { mask, shift };

/// round_to for results of arithmetic on elements of T, by fewer operations. A NaN among them is quiet, and its payload
/// is that of an element.
template <element T, odd_by Odd = odd_by::mask, class V>
TIGON_INLINE V round_computed_to(V v) {
#if defined(TIGON_X86)
  if constexpr (detail::raw_round_computed<typename V::lanes, T>) {
    using L = typename V::lanes;
    if constexpr (Odd == odd_by::shift)
      return V::from(L::from_raw(x86::round_computed_by_shift_to(L::raw(v.r), T())));
    else
      return V::from(L::from_raw(x86::round_computed_to(L::raw(v.r), T())));
  }
#endif
  return round_to<T>(v);
}

/// Several vectors at once: what a function with several results returns.
template <class V, std::size_t N>
struct pack {
  V v[N];
};
template <class V, class... Rest>
pack(V, Rest...) -> pack<V, 1 + sizeof...(Rest)>;

/// A compensated sum (Knuth's two-sum): the total high + low, and v added to it. What rounding high + v loses goes to
/// the new low part. A total that is infinite or NaN loses nothing, so that it stays what it is.
template <class V>
TIGON_INLINE pack<V, 2> add_compensated(V high, V low, V v) {
  const V sum = high + v, added = sum - high;
  const V lost = (high - (sum - added)) + (v - added);
  return {{sum, low + select(lost == lost, lost, V(typename V::value_type(0)))}};
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_VEC_HPP
