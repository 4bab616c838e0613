// The inner loops of a convolution: a tap is a number times a shifted line of numbers. Lines are accumulators in
// scratch memory, so long that whole vectors may be read behind what is wanted.
#ifndef TIGON_OPS_ATTENTION_TAP_SUMS_HPP
#define TIGON_OPS_ATTENTION_TAP_SUMS_HPP

#include <tigon/simd/packs.hpp>
#include <tigon/simd/registers.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Columns that sum_taps computes at a time are a divisor of so many vectors.
inline constexpr std::size_t tap_vectors = 4;

/// to[t] = row[first + stride * t] for t < n, 0 where that is not in [0, valid). Reads nothing else of the row.
template <class V, class T, class A = typename V::value_type>
[[gnu::noinline]] void load_line(const T* row, std::ptrdiff_t first, std::size_t stride, std::size_t valid, A* to,
                                 std::size_t n) {
  const auto at = [=](std::ptrdiff_t x) {  // the first t whose place is not before x
    const std::ptrdiff_t s = static_cast<std::ptrdiff_t>(stride), apart = x - first;
    return apart <= 0 ? std::size_t{0} : std::min(n, static_cast<std::size_t>((apart + s - 1) / s));
  };
  const std::size_t end = at(static_cast<std::ptrdiff_t>(valid)), begin = std::min(at(0), end);
  std::memset(static_cast<void*>(to), 0, begin * sizeof(A));
  std::memset(static_cast<void*>(to + end), 0, (n - end) * sizeof(A));
  if (begin == end) return;
  const T* from = row + (first + static_cast<std::ptrdiff_t>(begin * stride));
  if (stride != 1) {
    for (std::size_t t = begin; t < end; ++t) to[t] = static_cast<A>(from[(t - begin) * stride]);
    return;
  }
  std::size_t t = begin;
  for (; t + V::size <= end; t += V::size, from += V::size) simd::store(simd::load<V>(from), to + t);
  if (t < end) simd::store_n(simd::load_n<V>(from, end - t), to + t, end - t);
}

/// y[j] = line[j] for j < n, each rounded once.
template <class V, class T, class A = typename V::value_type>
[[gnu::noinline]] void store_line(const A* line, T* y, std::size_t n) {
  std::size_t j = 0;
  for (; j + V::size <= n; j += V::size) simd::store(simd::load<V>(line + j), y + j);
  if (j < n) simd::store_n(simd::load_n<V>(line + j, n - j), y + j, n - j);
}

/// Tap t of output o is weight[t * outputs + o] times the line that begins at x + offset[t].
template <class A>
struct tap_list {
  const A* x;
  const std::size_t* offset;
  const A* weight;
  std::size_t outputs, count;
};

/// `count` lines, one every `stride` numbers.
template <class A>
struct line_list {
  A* first;
  std::size_t stride, count;
};

/// y[o * y_stride + j] = start[o] + sum_t weight x for O outputs and U vectors of columns at a time. 64 terms are added
/// one after the other, and then their sums, in y: the rounding error grows with the number of these.
template <class V, std::size_t O, std::size_t U, class A = typename V::value_type>
[[gnu::noinline]] void sum_some_taps(tap_list<A> taps, const A* start, A* y, std::size_t y_stride, std::size_t n) {
  constexpr std::size_t plain = 64, N = V::size;
  for (std::size_t j = 0; j < n; j += U * N) {
    std::size_t first = 0;
    do {
      simd::pack<simd::pack<V, U>, O> part;
      simd::unrolled<O>(
          [&](auto o) TIGON_LAMBDA { simd::unrolled<U>([&](auto u) TIGON_LAMBDA { part.v[o].v[u] = V(A(0)); }); });
      const std::size_t end = std::min(taps.count, first + plain);
      const A* w = taps.weight + first * taps.outputs;
      for (std::size_t t = first; t < end; ++t, w += taps.outputs) {
        const A* const x = taps.x + taps.offset[t] + j;
        simd::pack<V, U> of;
        simd::unrolled<U>([&](auto u) TIGON_LAMBDA { of.v[u] = simd::load_once<V>(x + u * N); });
        simd::unrolled<O>([&](auto o) TIGON_LAMBDA {
          const V factor(w[o]);
          simd::unrolled<U>(
              [&](auto u) TIGON_LAMBDA { part.v[o].v[u] = simd::fma_in_registers(factor, of.v[u], part.v[o].v[u]); });
        });
      }
      simd::unrolled<O>([&](auto o) TIGON_LAMBDA {
        simd::unrolled<U>([&](auto u) TIGON_LAMBDA {
          A* const to = y + o * y_stride + j + u * N;
          const V before = first != 0 ? simd::load<V>(to) : V(start == nullptr ? A(0) : start[o]);
          simd::store(before + part.v[o].v[u], to);
        });
      });
      first = end;
    } while (first < taps.count);
  }
}

/// sums[o * sums_stride + k * N + lane] += d[o * d_stride + j] * x[offset[k] + j], a lane a sum of its own.
template <class V, std::size_t O, std::size_t K, class A = typename V::value_type>
[[gnu::noinline]] void add_some_products(const A* x, const std::size_t* offset, const A* d, std::size_t d_stride,
                                         A* sums, std::size_t sums_stride, std::size_t vectors) {
  constexpr std::size_t N = V::size;
  simd::pack<simd::pack<V, K>, O> acc;
  simd::unrolled<O>([&](auto o) TIGON_LAMBDA {
    simd::unrolled<K>([&](auto k) TIGON_LAMBDA { acc.v[o].v[k] = simd::load<V>(sums + o * sums_stride + k * N); });
  });
  const A* line[K];
  simd::unrolled<K>([&](auto k) TIGON_LAMBDA { line[k] = x + offset[k]; });
  for (std::size_t j = 0; j < vectors * N; j += N) {
    simd::pack<V, O> of;
    simd::unrolled<O>([&](auto o) TIGON_LAMBDA { of.v[o] = simd::load_once<V>(d + o * d_stride + j); });
    simd::unrolled<K>([&](auto k) TIGON_LAMBDA {
      const V a = simd::load<V>(line[k] + j);
      simd::unrolled<O>([&](auto o)
                            TIGON_LAMBDA { acc.v[o].v[k] = simd::fma_in_registers(a, of.v[o], acc.v[o].v[k]); });
    });
  }
  simd::unrolled<O>([&](auto o) TIGON_LAMBDA {
    simd::unrolled<K>([&](auto k) TIGON_LAMBDA { simd::store(acc.v[o].v[k], sums + o * sums_stride + k * N); });
  });
}

/// Line o of y at column j = start[first + o] + the taps of output first + o. The width is rounded up to tap_vectors
/// vectors. Where start is null, sums begin at 0.
template <class V, class A = typename V::value_type>
void sum_taps(tap_list<A> taps, std::size_t first, const std::type_identity_t<A>* start, line_list<A> y,
              std::size_t width) {
  for (std::size_t o = 0; o < y.count;) {
    const bool four = y.count - o >= 4;
    tap_list<A> of = taps;
    of.weight += first + o;
    const A* const from = start == nullptr ? nullptr : start + first + o;
    if (four)
      sum_some_taps<V, 4, 2>(of, from, y.first + o * y.stride, y.stride, width);
    else
      sum_some_taps<V, 1, tap_vectors>(of, from, y.first + o * y.stride, y.stride, width);
    o += four ? 4 : 1;
  }
}

/// sums[(o * row + t) * V::size + lane] += d[o][j] * x[offset[t] + j] for outputs o, taps t and so many vectors of
/// columns j. An output has `row` sums.
template <class V, class A = typename V::value_type>
void add_tap_products(const A* x, const std::size_t* offset, std::size_t taps, line_list<const A> d, A* sums,
                      std::size_t row, std::size_t vectors) {
  const std::size_t stride = row * V::size;
  for (std::size_t o = 0; o < d.count;) {
    const A* const of = d.first + o * d.stride;
    A* const to = sums + o * stride;
    std::size_t t = 0;
    if (d.count - o >= 4) {
      for (; t + 2 <= taps; t += 2)
        add_some_products<V, 4, 2>(x, offset + t, of, d.stride, to + t * V::size, stride, vectors);
      for (; t < taps; ++t) add_some_products<V, 4, 1>(x, offset + t, of, d.stride, to + t * V::size, stride, vectors);
      o += 4;
    } else {
      for (; t + 4 <= taps; t += 4)
        add_some_products<V, 1, 4>(x, offset + t, of, d.stride, to + t * V::size, stride, vectors);
      for (; t < taps; ++t) add_some_products<V, 1, 1>(x, offset + t, of, d.stride, to + t * V::size, stride, vectors);
      ++o;
    }
  }
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_ATTENTION_TAP_SUMS_HPP
