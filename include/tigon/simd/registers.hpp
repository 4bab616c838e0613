// What a compiler is to keep in registers.
#ifndef TIGON_SIMD_REGISTERS_HPP
#define TIGON_SIMD_REGISTERS_HPP

#include <tigon/simd/vec.hpp>

#include <cstddef>
#include <type_traits>

namespace tigon::simd {
inline namespace TIGON_ABI {

/// The value is computed here and lies in a register. So a product that is added next is rounded first: a sum has the
/// same bits in every loop that makes it.
template <class R>
TIGON_INLINE void keep_in_register(R& r) {
  if constexpr (requires { r.r; })
    keep_in_register(r.r);
  else if constexpr (requires { r.raw; })
    keep_in_register(r.raw);
  else if constexpr (requires { r.data; })
    keep_in_register(r.data);
  else
#if defined(__x86_64__) || defined(__i386__)
    asm("" : "+v"(r));
#elif defined(__aarch64__)
    asm("" : "+w"(r));
#else
    asm("" : "+m"(r));
#endif
}

/// load<V>(p), which lies in a register until it was used last: g++ may otherwise read it again for each use, or
/// multiply by memory. On x86 alone: elsewhere multiplications have no operands in memory.
template <class V, class T>
TIGON_INLINE V load_once(const T* p) {
  V v = load<V>(p);
#if defined(__x86_64__) || defined(__i386__)
  keep_in_register(v);
#endif
  return v;
}

/// Nothing that follows is computed before here: for a loop whose order is faster than the one that a compiler finds.
TIGON_INLINE void order_barrier() { asm volatile(""); }
/// And what was loaded before here stays before.
TIGON_INLINE void load_barrier() { asm volatile("" ::: "memory"); }

/// Nothing that follows is computed before here, where the compiler orders instructions before it assigns registers, as
/// g++ does on 64-bit ARM: it would load all operands of a step first, and spill sums for them.
TIGON_INLINE void keep_order() {
#if defined(__aarch64__)
  asm volatile("");
#endif
}

#if defined(__x86_64__) && defined(__FMA__)
namespace detail {
/// `A` is the type of a lane.
template <class A, class R>
TIGON_INLINE R fma_in_registers(R a, R b, R c) {
  if constexpr (requires { c.raw; })
    c.raw = fma_in_registers<A>(a.raw, b.raw, c.raw);
  else if constexpr (requires { c.data; })
    c.data = fma_in_registers<A>(a.data, b.data, c.data);
  else if constexpr (std::is_same_v<A, float>)
    asm("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+v"(c) : "v"(a), "v"(b));
  else
    asm("vfmadd231pd {%2, %1, %0|%0, %1, %2}" : "+v"(c) : "v"(a), "v"(b));
  return c;
}
}  // namespace detail
#endif

/// fma(a, b, c) for a loop with as many sums as there are registers: the sum stays in its register, and a and b lie in
/// registers. Left to itself, g++ reads b from memory again in every multiplication where it is tuned for an AMD CPU,
/// and copies or spills sums where it is not; both cost up to a third of the speed (docs/tuning.md, "Loops of
/// products").
template <class E, class A>
TIGON_INLINE vec<E, A> fma_in_registers(vec<E, A> a, vec<E, A> b, vec<E, A> c) {
#if defined(__x86_64__) && defined(__FMA__)
  if constexpr (sizeof(c) >= 16) return vec<E, A>::from(detail::fma_in_registers<A>(a.r, b.r, c.r));
#elif defined(__x86_64__)
  c = c + a * b;
  keep_in_register(c);
  return c;
#endif
  return fma(a, b, c);
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_REGISTERS_HPP
