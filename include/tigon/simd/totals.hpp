// Compensated totals of rows of numbers.
#ifndef TIGON_SIMD_TOTALS_HPP
#define TIGON_SIMD_TOTALS_HPP

#include <tigon/simd/vec.hpp>

#include <cstddef>

namespace tigon::simd {
inline namespace TIGON_ABI {

/// What add_to_total leaves in the row of sums: what it finds, zeros for the next sums, or high + low.
enum class sums_after { same, zero, total };

/// high + low += sums for n numbers; with `first` there is no total yet, and it begins as the sums.
template <class V, sums_after After, class A = typename V::value_type>
[[gnu::noinline]] void add_to_total(A* sums, A* high, A* low, std::size_t n, bool first = false) {
  const V zero(A(0));
  const auto add = [&](std::size_t j, auto load_from, auto store_to) TIGON_LAMBDA {
    const auto t =
        add_compensated(first ? zero : load_from(high + j), first ? zero : load_from(low + j), load_from(sums + j));
    store_to(t.v[0], high + j), store_to(t.v[1], low + j);
    if constexpr (After == sums_after::zero) store_to(zero, sums + j);
    if constexpr (After == sums_after::total) store_to(t.v[0] + t.v[1], sums + j);
  };
  std::size_t j = 0;
  for (; j + V::size <= n; j += V::size)
    add(
        j, [](const A* p) TIGON_LAMBDA { return load<V>(p); }, [](V v, A* p) TIGON_LAMBDA { store(v, p); });
  if (const std::size_t rest = n - j; rest != 0)
    add(
        j, [=](const A* p) TIGON_LAMBDA { return load_n<V>(p, rest); },
        [=](V v, A* p) TIGON_LAMBDA { store_n(v, p, rest); });
}

/// The same without a low part: total += sums.
template <class V, sums_after After, class A = typename V::value_type>
void add_to_plain_total(A* sums, A* total, std::size_t n, bool first = false) {
  const V zero(A(0));
  for (std::size_t j = 0; j < n; j += V::size) {
    const std::size_t some = n - j < V::size ? n - j : V::size;
    const V of = load_n<V>(sums + j, some), t = first ? of : load_n<V>(total + j, some) + of;
    store_n(t, total + j, some);
    if constexpr (After != sums_after::same) store_n(After == sums_after::zero ? zero : t, sums + j, some);
  }
}

}  // namespace TIGON_ABI
}  // namespace tigon::simd

#endif  // TIGON_SIMD_TOTALS_HPP
