// Lanes by Eigen: the packets beneath its arrays, so that a kernel decides what is fused, not an expression.
#ifndef TIGON_SIMD_ENGINES_EIGEN_HPP
#define TIGON_SIMD_ENGINES_EIGEN_HPP

#include <tigon/simd/engines/native.hpp>
#include <tigon/simd/engines/pairs.hpp>

#include <Eigen/Core>
#if !EIGEN_VERSION_AT_LEAST(3, 4, 0)
#error "tigon: Eigen 3.4 or newer is needed"
#include <the_error_above_ends_compilation>
#endif

namespace tigon::simd {
inline namespace TIGON_ABI {

struct eigen {
  static constexpr std::string_view name = "eigen";
  static constexpr std::string_view target =
#if defined(EIGEN_VECTORIZE_AVX512)
      "AVX512";
#elif defined(EIGEN_VECTORIZE_AVX2)
      "AVX2";
#elif defined(EIGEN_VECTORIZE)
      "128 bit";
#else
      "scalar";
#endif
  template <class A>
  struct lanes;
};

#if defined(__AVX512F__) && defined(__AVX512DQ__)
static_assert(Eigen::internal::packet_traits<float>::size == 16,
              "tigon: the flags promise AVX-512 but Eigen was configured for less");
#elif defined(__AVX2__)
static_assert(Eigen::internal::packet_traits<float>::size >= 8,
              "tigon: the flags promise AVX2 but Eigen was configured for less");
#endif

template <class A>
struct eigen::lanes {
  using reg = typename Eigen::internal::packet_traits<A>::type;
  using mask = reg;  // all bits of a lane are set where the comparison holds
  static constexpr std::size_t size = Eigen::internal::unpacket_traits<reg>::size;

  static TIGON_HOST_INLINE reg set(A value) { return Eigen::internal::pset1<reg>(value); }
  static TIGON_HOST_INLINE reg iota() { return Eigen::internal::plset<reg>(A(0)); }
  static TIGON_HOST_INLINE reg load(const A* p) { return Eigen::internal::ploadu<reg>(p); }
  static TIGON_HOST_INLINE void store(reg v, A* p) { Eigen::internal::pstoreu<A>(p, v); }

  static TIGON_HOST_INLINE reg add(reg a, reg b) { return Eigen::internal::padd(a, b); }
  static TIGON_HOST_INLINE reg sub(reg a, reg b) { return Eigen::internal::psub(a, b); }
  static TIGON_HOST_INLINE reg mul(reg a, reg b) { return Eigen::internal::pmul(a, b); }
  static TIGON_HOST_INLINE reg div(reg a, reg b) { return Eigen::internal::pdiv(a, b); }
  static TIGON_HOST_INLINE reg neg(reg a) { return bit_xor(a, set(A(-0.0))); }
  static TIGON_HOST_INLINE reg fma(reg a, reg b, reg c) { return Eigen::internal::pmadd(a, b, c); }
  static TIGON_HOST_INLINE reg fnma(reg a, reg b, reg c) {
    if constexpr (requires { native::fnma(a, b, c); })
      return native::fnma(a, b, c);
    else
      return Eigen::internal::pmadd(neg(a), b, c);
  }
  // Eigen leaves open which operand it keeps where one is a NaN.
  static TIGON_HOST_INLINE reg min(reg a, reg b) {
    if constexpr (requires { native::min(a, b); })
      return native::min(a, b);
    else
      return select(lt(a, b), a, b);
  }
  static TIGON_HOST_INLINE reg max(reg a, reg b) {
    if constexpr (requires { native::max(a, b); })
      return native::max(a, b);
    else
      return select(lt(b, a), a, b);
  }
  static TIGON_HOST_INLINE reg abs(reg a) { return Eigen::internal::pabs(a); }
  // Eigen's approximates, flushes subnormal numbers and loses the sign of zero.
  static TIGON_HOST_INLINE reg sqrt(reg a) {
    if constexpr (requires { native::square_root(a); })
      return native::square_root(a);
    else
      return Eigen::internal::psqrt(a);
  }
  static TIGON_HOST_INLINE reg round(reg a) {
#if defined(__SSE2__) && !defined(__SSE4_1__)
    return bit_or(Eigen::internal::print(a), bit_and(a, set(A(-0.0))));  // else -0 and what rounds to it lose the sign
#else
    return Eigen::internal::print(a);
#endif
  }

  static TIGON_HOST_INLINE mask lt(reg a, reg b) { return Eigen::internal::pcmp_lt(a, b); }
  static TIGON_HOST_INLINE mask le(reg a, reg b) { return Eigen::internal::pcmp_le(a, b); }
  static TIGON_HOST_INLINE mask eq(reg a, reg b) { return Eigen::internal::pcmp_eq(a, b); }
  static TIGON_HOST_INLINE mask both(mask a, mask b) { return bit_and(a, b); }
  static TIGON_HOST_INLINE mask either(mask a, mask b) { return bit_or(a, b); }
  static TIGON_HOST_INLINE mask no(mask a) { return bit_xor(a, Eigen::internal::ptrue(a)); }
  static TIGON_HOST_INLINE reg select(mask m, reg a, reg b) { return Eigen::internal::pselect(m, a, b); }

  static TIGON_HOST_INLINE reg bit_and(reg a, reg b) { return Eigen::internal::pand(a, b); }
  static TIGON_HOST_INLINE reg bit_or(reg a, reg b) { return Eigen::internal::por(a, b); }
  static TIGON_HOST_INLINE reg bit_xor(reg a, reg b) { return Eigen::internal::pxor(a, b); }
  template <int K>
  static TIGON_HOST_INLINE reg shl(reg a) {
    return shift(a, [](auto bits) { return bits << K; });
  }
  template <int K>
  static TIGON_HOST_INLINE reg shr(reg a) {
    return shift(a, [](auto bits) { return bits >> K; });
  }

  template <std::size_t Bit>
    requires(size > 1)
  static TIGON_HOST_INLINE reg exchange(reg a) {
    return pairs::exchange<Bit, size>(a);
  }
  static TIGON_HOST_INLINE reg swap_pairs(reg a) { return pairs::exchange<1, size>(a); }
  static TIGON_HOST_INLINE reg dup_even(reg a) { return pairs::dup<0, size>(a); }
  static TIGON_HOST_INLINE reg dup_odd(reg a) { return pairs::dup<1, size>(a); }
  static TIGON_HOST_INLINE reg even_lanes(reg a, reg b) { return pairs::every_second<0, size>(a, b); }
  static TIGON_HOST_INLINE reg odd_lanes(reg a, reg b) { return pairs::every_second<1, size>(a, b); }
  static TIGON_HOST_INLINE reg zip_low(reg a, reg b) { return pairs::zip<0, size>(a, b); }
  static TIGON_HOST_INLINE reg zip_high(reg a, reg b) { return pairs::zip<size / 2, size>(a, b); }

  static TIGON_HOST_INLINE A sum(reg a) { return Eigen::internal::predux(a); }

#if defined(TIGON_X86)
  static TIGON_HOST_INLINE auto raw(reg a) { return a; }
  template <class R>
  static TIGON_HOST_INLINE reg from_raw(R r) {
    return r;
  }
#endif

 private:
  // Shifts of 64-bit lanes are not among Eigen's packets: the compiler's own vectors of integers serve both widths.
  template <class F>
  static TIGON_HOST_INLINE reg shift(reg a, F f) {
    using word = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
    if constexpr (size == 1) {
      return std::bit_cast<reg>(f(std::bit_cast<word>(a)));
    } else {
      return native::on_words<word>(a, f);
    }
  }
};

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_ENGINES_EIGEN_HPP
