// Whether two views share an element, exactly, for any strides.
//
// An operand of a public function is a set of intervals of bytes, begin + sum_k i_k stride_k + [0, width) with 0 <= i_k
// <= last_k. With the indices of b counted from its end, a and b share a byte if and only if
//
//   sum_k x_k stride_k + y = target    for some 0 <= x_k <= last_k, 0 <= y < window
//
// over the strides of both. target is the distance from the first byte of a to the last byte of b, window is the sum of
// both widths less 1. Bounds alone decide most pairs: 0 <= target <= the largest sum + window - 1.
#ifndef TIGON_CORE_OVERLAP_HPP
#define TIGON_CORE_OVERLAP_HPP

#include <tigon/core/views.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace tigon::detail {
inline namespace TIGON_ABI {

// Views without their element type: a check is compiled once, not once for every public function that makes it.
struct extent {
  const void* data;
  std::size_t rows, cols, row_stride, element;

  template <class T>
  extent(matrix_view<T> m) : data(m.data), rows(m.rows), cols(m.cols), row_stride(m.row_stride), element(sizeof(T)) {}
};

struct heads_extent {
  const void* data;
  std::size_t batch, heads, seq_len, head_dim, batch_stride, head_stride, seq_stride, element;

  template <class T>
  heads_extent(heads_view<T> h)
      : data(h.data),
        batch(h.batch),
        heads(h.heads),
        seq_len(h.seq_len),
        head_dim(h.head_dim),
        batch_stride(h.batch_stride),
        head_stride(h.head_stride),
        seq_stride(h.seq_stride),
        element(sizeof(T)) {}
  explicit heads_extent(const extent& m)
      : data(m.data),
        batch(1),
        heads(1),
        seq_len(m.rows),
        head_dim(m.cols),
        batch_stride(0),
        head_stride(0),
        seq_stride(m.row_stride),
        element(m.element) {}

  bool empty() const { return batch == 0 || heads == 0 || seq_len == 0 || head_dim == 0; }
  /// One element for all of an axis of stride 0.
  heads_extent without_repeats() const {
    heads_extent once = *this;
    if (batch_stride == 0) once.batch = std::min<std::size_t>(batch, 1);
    if (head_stride == 0) once.heads = std::min<std::size_t>(heads, 1);
    if (seq_stride == 0) once.seq_len = std::min<std::size_t>(seq_len, 1);
    return once;
  }
};

/// Sums and products of extents stop here. No object is as large: what reaches it is said to overlap.
inline constexpr std::uint64_t most_bytes = std::uint64_t{1} << 60;

inline std::uint64_t bounded_sum(std::uint64_t a, std::uint64_t b) { return std::min(most_bytes, a + b); }
inline std::uint64_t bounded_product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? most_bytes : std::min(most_bytes, product);
}

/// Every element of one is the element of the same index of the other, given views of one shape.
inline bool same_elements(const extent& a, const extent& b) {
  return a.data == b.data && a.element == b.element && (a.row_stride == b.row_stride || (a.rows <= 1 && b.rows <= 1));
}
inline bool same_elements(const heads_extent& a, const heads_extent& b) {
  const auto same = [](std::size_t count, std::size_t s, std::size_t t) { return count <= 1 || s == t; };
  return a.data == b.data && a.element == b.element && same(a.batch, a.batch_stride, b.batch_stride) &&
         same(a.heads, a.head_stride, b.head_stride) && same(a.seq_len, a.seq_stride, b.seq_stride);
}

/// The least x <= last for which (start + x step) mod modulus <= high, or last + 1. start, step, high < modulus.
///
/// Euclid's algorithm on two jumps: `fall` is the least decrease of the residue by at most `fall_x` steps, `rise` the
/// least increase by at most `rise_x`. The larger one less multiples of the other is the next least, so every x whose
/// residue is below all before is met, in order, after O(log modulus) divisions. Nothing passes the modulus or `last`.
inline std::uint64_t first_residue(std::uint64_t start, std::uint64_t step, std::uint64_t modulus, std::uint64_t high,
                                   std::uint64_t last) {
  if (start <= high) return 0;
  if (step == 0) return last + 1;
  std::uint64_t at = start, x = 0, rise = step, rise_x = 1, fall = modulus - step, fall_x = 1;
  for (;;) {
    if (fall <= at) {
      const std::uint64_t k = std::min((at - high - 1) / fall + 1, at / fall);
      if (k > (last - x) / fall_x) return last + 1;
      x += k * fall_x, at -= k * fall;
      if (at <= high) return x;
    }
    if (rise < fall) {
      const std::uint64_t k = std::min((fall - at - 1) / rise + 1, (fall - 1) / rise);
      if (fall_x > last || k > (last - fall_x) / rise_x) return last + 1;
      fall -= k * rise, fall_x += k * rise_x;
      if (fall <= at) continue;
    }
    if (rise == fall) return last + 1;
    const std::uint64_t k = (rise - 1) / fall;
    if (rise_x > last || k > (last - rise_x) / fall_x) return last + 1;
    rise -= k * fall, rise_x += k * fall_x;
  }
}

/// sum_k x_k stride_k with 0 <= x_k <= last_k, and whether it reaches a window of numbers.
class stride_sum {
 public:
  /// A pair of views has three strides on each side; the fourth, 1 from column to column, is in the width.
  static constexpr std::size_t most = 6;
  /// Cases that a search may look at, some 10 ms. Layouts that are made of one another's rows, columns, heads and parts
  /// take a few, two matrices none; it takes three strides on each side without a common measure, and some 30 steps of
  /// each, to need more.
  static constexpr std::uint64_t most_work = 1 << 18;

  void add(std::uint64_t stride, std::uint64_t last) {
    if (stride == 0 || last == 0) return;
    std::size_t k = count_++;
    for (; k != 0 && term_[k - 1].stride > stride; --k) term_[k] = term_[k - 1];
    term_[k] = {stride, last};
  }

  /// True if the sum and some 0 <= y < window make `target`; all are below 4 `most_bytes`. Exact unless `work` does not
  /// suffice: then true.
  bool reaches(std::uint64_t target, std::uint64_t window, std::uint64_t& work) const {
    stride_sum s = *this;
    s.unite(window);
    std::uint64_t whole = 0;
    for (std::size_t k = 0; k < s.count_; ++k) whole += s.term_[k].stride * s.term_[k].last;
    if (target >= whole + window) return false;
    switch (s.count_) {
      case 0: return true;
      case 1: return target - s.term_[0].stride * std::min(s.term_[0].last, target / s.term_[0].stride) < window;
      case 2: return s.pair_reaches(target, window);
      default: return s.search(whole, target, window, work);
    }
  }

 private:
  struct term {
    std::uint64_t stride, last;
  };

  void erase(std::size_t k) { std::copy(term_ + k + 1, term_ + count_--, term_ + k); }

  /// Terms [first, end) by a common divisor.
  stride_sum part(std::size_t first, std::size_t end, std::uint64_t divisor) const {
    stride_sum s;
    for (; first < end; ++first) s.term_[s.count_++] = {term_[first].stride / divisor, term_[first].last};
    return s;
  }

  /// A stride within the window widens it; a multiple of another stride that begins where that one ends continues it.
  void unite(std::uint64_t& window) {
    while (count_ != 0 && term_[0].stride <= window) {
      window += term_[0].stride * term_[0].last;
      erase(0);
    }
    for (std::size_t i = 0; i < count_; ++i) {
      for (std::size_t k = i + 1; k < count_;) {
        const std::uint64_t ratio = term_[k].stride / term_[i].stride;
        if (ratio <= term_[i].last + 1 && ratio * term_[i].stride == term_[k].stride) {
          term_[i].last += ratio * term_[k].last;
          erase(k);
        } else {
          ++k;
        }
      }
    }
  }

  /// target - x stride_0, modulo the other stride, has to fall into the window for an x that leaves both in bounds.
  bool pair_reaches(std::uint64_t target, std::uint64_t window) const {
    const auto [stride, last] = term_[0];
    const std::uint64_t modulus = term_[1].stride, other = modulus * term_[1].last + window - 1;
    const std::uint64_t from = target > other ? (target - other - 1) / stride + 1 : 0;
    const std::uint64_t to = std::min(last, target / stride);
    if (from > to) return false;
    const std::uint64_t start = (target - from * stride) % modulus, step = modulus - stride;
    return first_residue(start, step, modulus, window - 1, to - from) <= to - from;
  }

  /// Three strides or more, in the way that leaves the fewest cases. Either a cut: the strides from `cut` on have a
  /// divisor g, and what is below it has to be target modulo g, so that the two parts are decided one by one for each
  /// number below the cut that is. Or one stride after the other: every index of it that leaves the rest in bounds.
  bool search(std::uint64_t whole, std::uint64_t target, std::uint64_t window, std::uint64_t& work) const {
    std::uint64_t divisor[most], cases = ~std::uint64_t{0}, first = 0;
    std::size_t chosen = 0;
    bool cut = false;
    for (std::size_t k = count_; k-- > 0;)
      divisor[k] = k + 1 == count_ ? term_[k].stride : std::gcd(term_[k].stride, divisor[k + 1]);

    std::uint64_t below = window - 1;  // the largest sum of the strides below the cut and y
    for (std::size_t k = 0; k < count_; below += term_[k].stride * term_[k].last, ++k) {
      const std::uint64_t g = divisor[k], above = whole + (window - 1) - below, to = std::min(below, target);
      std::uint64_t from = target % g;
      if (target > above && target - above > from) from += ((target - above - from - 1) / g + 1) * g;
      if (from > to) return false;
      const std::uint64_t numbers = (to - from) / g + 1;
      if (k == 0 && g > 1) return part(0, count_, g).reaches((target - from) / g, numbers, work);
      if (k != 0 && numbers < cases) cases = numbers, first = from, chosen = k, cut = true;
    }
    for (std::size_t k = 0; k + 1 < count_; ++k) {
      const auto [stride, last] = term_[k];
      const std::uint64_t others = whole - stride * last + window - 1;
      const std::uint64_t from = target > others ? (target - others - 1) / stride + 1 : 0;
      const std::uint64_t to = std::min(last, target / stride);
      if (from > to) return false;
      if (to - from + 1 < cases) cases = to - from + 1, first = from, chosen = k, cut = false;
    }

    if (cases > work) return work = 0, true;
    work -= cases;
    if (cut) {
      const std::uint64_t g = divisor[chosen];
      const stride_sum low = part(0, chosen, 1), high = part(chosen, count_, g);
      for (std::uint64_t number = first; cases-- != 0; number += g)
        if (high.reaches((target - number) / g, 1, work) && low.reaches(number, window, work)) return true;
    } else {
      stride_sum rest = *this;
      rest.erase(chosen);
      for (std::uint64_t x = first; cases-- != 0; ++x)
        if (rest.reaches(target - x * term_[chosen].stride, window, work)) return true;
    }
    return false;
  }

  term term_[most];
  std::size_t count_ = 0;
};

/// A view in bytes.
struct byte_layout {
  std::uint64_t stride[3], last[3], width, size;  // size: from the first byte to the last one

  explicit byte_layout(const heads_extent& h)
      : stride{bounded_product(h.batch_stride, h.element), bounded_product(h.head_stride, h.element),
               bounded_product(h.seq_stride, h.element)},
        last{h.batch - 1, h.heads - 1, h.seq_len - 1},
        width(bounded_product(h.head_dim, h.element)),
        size(width) {
    for (int k = 0; k < 3; ++k) size = bounded_sum(size, bounded_product(stride[k], last[k]));
  }
};

/// True if an element of one lies in an element of the other.
TIGON_NOINLINE inline bool overlap(const heads_extent& a, const heads_extent& b) {
  if (a.empty() || b.empty()) return false;
  const byte_layout in_a(a), in_b(b);
  const auto at_a = reinterpret_cast<std::uintptr_t>(a.data), at_b = reinterpret_cast<std::uintptr_t>(b.data);
  if (at_a <= at_b ? at_b - at_a >= in_a.size : at_a - at_b >= in_b.size) return false;
  if (in_a.size >= most_bytes || in_b.size >= most_bytes) return true;
  stride_sum sum;
  for (const byte_layout* layout : {&in_a, &in_b})
    for (int k = 0; k < 3; ++k) sum.add(layout->stride[k], layout->last[k]);
  std::uint64_t work = stride_sum::most_work;
  return sum.reaches(at_b - at_a + in_b.size - 1, in_a.width + in_b.width - 1, work);
}

/// Ends decide most pairs. Those of an empty view may be wrong; so may those of extents whose product
/// could pass 64 bits.
inline bool overlap(const extent& a, const extent& b) {
  const auto end = [](const extent& m) {
    return reinterpret_cast<std::uintptr_t>(m.data) + ((m.rows - 1) * m.row_stride + m.cols) * m.element;
  };
  const bool apart =
      end(a) <= reinterpret_cast<std::uintptr_t>(b.data) || end(b) <= reinterpret_cast<std::uintptr_t>(a.data);
  const bool exact = (a.rows | a.row_stride | a.cols | b.rows | b.row_stride | b.cols) >> 30 == 0;
  return !(apart && exact) && overlap(heads_extent(a), heads_extent(b));
}

/// True if two elements of one view share a byte: the first index in which they differ is larger by 1 + x in one.
TIGON_NOINLINE inline bool overlaps_itself(const heads_extent& h) {
  if (h.empty()) return false;
  const byte_layout in(h);
  if (in.size >= most_bytes) return true;
  std::uint64_t work = stride_sum::most_work;
  for (int first = 0; first < 3; ++first) {
    if (in.last[first] == 0) continue;
    stride_sum sum;
    sum.add(in.stride[first], in.last[first] - 1);
    std::uint64_t target = in.width - 1;
    for (int k = first + 1; k < 3; ++k) {
      sum.add(in.stride[k], 2 * in.last[k]);
      target += in.stride[k] * in.last[k];
    }
    if (target >= in.stride[first] && sum.reaches(target - in.stride[first], 2 * in.width - 1, work)) return true;
  }
  return false;
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_CORE_OVERLAP_HPP
