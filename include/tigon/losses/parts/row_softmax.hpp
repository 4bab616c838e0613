// What losses over a vocabulary share of one row's softmax: logits as they come or capped, exponentials and their sums.
#ifndef TIGON_LOSSES_PARTS_ROW_SOFTMAX_HPP
#define TIGON_LOSSES_PARTS_ROW_SOFTMAX_HPP

#include <tigon/rows/row.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// Logits s as they come. A maximum is one of squash(v), and distance(v, top) is s - max s: exactly 0 at the maximum,
/// however the compiler fuses.
template <class A>
struct plain_logits {
  TIGON_INLINE static plain_logits of(double) { return {}; }
  template <class V>
  TIGON_INLINE V squash(V v) const {
    return v;
  }
  template <class V>
  TIGON_INLINE V distance(V v, A top) const {
    return v - top;
  }
  template <class Engine>
  TIGON_INLINE A squash_one(A v) const {
    return v;
  }
  TIGON_INLINE A scale() const { return A(1); }
  TIGON_INLINE A slope(A) const { return A(1); }
};

/// s = cap * tanh(logit / cap); the maximum is that of the tanh, and slope(squash(v)) is ds / dlogit.
template <class A>
struct capped_logits {
  A cap;
  TIGON_INLINE static capped_logits of(double softcap) { return {static_cast<A>(softcap)}; }
  template <class V>
  TIGON_INLINE V squash(V v) const {
    return tanh(v / cap);
  }
  template <class V>
  TIGON_INLINE V distance(V v, A top) const {
    return (squash(v) - top) * cap;
  }
  /// Of a single number, by the same lanes as the rest of the row: its tanh may differ in the last bit.
  template <class Engine>
  TIGON_INLINE A squash_one(A v) const {
    return max_lanes(squash(simd::vec<Engine, A>(v)));
  }
  TIGON_INLINE A scale() const { return cap; }
  template <class V>
  TIGON_INLINE V slope(V capped) const {
    const V one(A(1));
    return (one - capped) * (one + capped);
  }
};

template <bool Capped, class A>
using logits_kind = std::conditional_t<Capped, capped_logits<A>, plain_logits<A>>;

/// z = softcap tanh(z / softcap); with memory in `slope`, there the derivative of that. softcap = 0: nothing is done.
template <backend B, class A>
void cap_logits(matrix_view<A> z, double softcap, context& ctx, matrix_view<A> slope = {}) {
  if (softcap == 0) return;
  const auto kind = capped_logits<A>::of(softcap);
  for_rows<B, A>(ctx, z.rows, z.cols, [=] TIGON_FN(auto row) {
    if (slope.data == nullptr)
      return row.map(reads(z), writes(z), [=](auto v) { return kind.squash(v) * kind.scale(); });
    row.map(reads(z), writes(z, slope), [=](auto v) {
      const auto s = kind.squash(v);
      return pack{s * kind.scale(), kind.slope(s)};
    });
  });
}

/// The gradient of logits from that of their caps, in place. One that is 0 stays 0: its logit counts for nothing, and may
/// be a NaN.
template <backend B, class A>
void gradient_of_capped(matrix_view<A> d, matrix_view<A> slope, context& ctx) {
  for_rows<B, A>(ctx, d.rows, d.cols, [=] TIGON_FN(auto row) {
    row.map(reads(d, slope), writes(d), [](auto v, auto by) {
      const decltype(v) zero(A(0));
      return select(v == zero, zero, normal_or_zero(v * by));
    });
  });
}

/// Summands of a sum of exponentials without the maximum's own 1: p unless it is 1, and how many are 1.
template <class V>
TIGON_INLINE auto apart_from_one(V p) {
  using A = typename V::value_type;
  const V zero(A(0)), one(A(1));
  return pack{select(p == one, zero, p), select(p == one, one, zero)};
}

/// Sum of a row of exponentials, the largest of which is 1, without that one.
template <class Row, class A>
TIGON_INLINE A sum_without_one(const Row& row, vector_view<A> e) {
  const auto parts = row.sum(reads(e), [](auto p) { return apart_from_one(p); });
  return parts[0] + (parts[1] - A(1));
}

/// A row in pieces of `width` columns, each with its own maximum as pivot; one piece, or few enough for the arrays.
template <class A>
struct row_pieces {
  static constexpr std::size_t most = 64;
  std::size_t cols, width, count;
  A top[most], sum[most];  ///< maxima, later e^(maximum - that of the row), and sums of exponentials

  TIGON_INLINE row_pieces(std::size_t columns, std::size_t wanted)
      : cols(columns),
        width(std::max(wanted, (columns + most - 1) / most)),
        count(columns == 0 ? 0 : (columns - 1) / width + 1) {}

  TIGON_INLINE void set(std::size_t k, A t, A s) {
    top[k] = t;
    sum[k] = s;
  }
  template <class Row>
  TIGON_INLINE auto of(const Row& row, std::size_t k) const {
    return row.part(k * width, std::min(width, cols - k * width));
  }
  /// The row's maximum; `total` becomes its sum of exponentials with that as pivot.
  TIGON_INLINE A join(A& total) {
    A highest = -std::numeric_limits<A>::infinity();
    for (std::size_t k = 0; k < count; ++k) highest = math::max(highest, top[k]);
    total = 0;
    for (std::size_t k = 0; k < count; ++k) {
      top[k] = count == 1 ? A(1) : math::exp_nonpositive(top[k] - highest);
      total += top[k] * sum[k];
    }
    return highest;
  }
  /// The exponentials e of every piece with its own maximum as pivot, and both numbers.
  template <class Row, element T>
  TIGON_INLINE void exponentials(const Row& row, matrix_view<const T> logits, vector_view<A> e) {
    // Maps prefetch the next row of a matrix. So the row is an operand as row i of a matrix whose rows are its pieces:
    // row i begins where the row does, and row i + 1 one piece later.
    const matrix_view<const T> steps(logits.row(row.i) - row.i * width, logits.rows * count, width, width);
    const matrix_view<const T> pieces = count > 1 ? steps : logits;
    for (std::size_t k = 0; k < count; ++k) {
      const auto part = of(row, k);
      const A m = part.max(reads(logits), [](auto v) { return v; });
      // A piece of -inf alone adds nothing to the others.
      const A under = count > 1 && m == -std::numeric_limits<A>::infinity() ? A(0) : m;
      const A partial = part.map_sum(reads(pieces), writes(e), [=](auto v) {
        const auto p = simd::exp_of_distance<true>(v - under);
        return pack{p, p};
      });
      set(k, m, partial);
    }
  }
  /// total - 1 after join(). Where that cancels, the rest is summed without the maximum.
  template <class Row>
  TIGON_INLINE A without_one(const Row& row, vector_view<A> e, A total) const {
    const A d = total - A(1);
    if (!(d < A(1))) return d;
    A rest(0), ones(0);
    for (std::size_t k = 0; k < count; ++k) {
      if (top[k] != A(1)) {
        rest += top[k] * sum[k];
        continue;
      }
      const auto of_piece = of(row, k).sum(reads(e), [](auto p) { return apart_from_one(p); });
      rest += of_piece[0], ones += of_piece[1];
    }
    return rest + (ones - A(1));
  }
  /// out = factor times the exponentials below the row's maximum, from the last piece, which is still in the cache, to
  /// the first. `read` is an operand of the loop that has no part in the result.
  template <class Row, class Read, class Out>
  TIGON_INLINE void multiply(const Row& row, vector_view<A> e, Read read, Out out, A factor) const {
    for (std::size_t k = count; k-- > 0;) {
      const A f = factor * top[k];
      // normal_or_zero(p * f), by fewer operations: p is at least 0.
      const A lowest = std::numeric_limits<A>::min() * (A(1) + 4 * std::numeric_limits<A>::epsilon()) / math::abs(f);
      of(row, k).map(reads(e, read), writes(out), [=](auto p, auto) {
        const decltype(p) zero(A(0));
        return select(p < decltype(p)(lowest), zero, p * f);
      });
    }
  }
};

/// (logit - top) / temperature in f32, where 1 / temperature is not a number of f32: its rounding would be the same in
/// every column and add up. Beyond 1e6 exponentials are 0 or 1. The distance of -inf is clamped to a finite number for
/// the second product.
template <class A>
struct tempered {
  A inverse, rest;
  TIGON_INLINE explicit tempered(double temperature)
      : inverse(static_cast<A>(1 / temperature)),
        rest(static_cast<A>(1 / temperature - static_cast<double>(inverse))) {}
  TIGON_INLINE bool exact() const { return !(math::abs(rest) > A(0)) || inverse > A(1e6); }
  template <class V>
  TIGON_INLINE V exact_distance(V below) const {
    return below * inverse;
  }
  template <class V>
  TIGON_INLINE V distance(V below) const {
    const V d = max(V(std::numeric_limits<A>::lowest() / 4), below);
    return fma(d, V(inverse), d * rest);
  }
};

/// e = exp((z - top) / temperature) over a row, and its sum. Single lanes add up one number after the other: in f64.
template <class Engine, class Row, class A, class Z>
TIGON_INLINE A tempered_exponentials(const Row& row, vector_view<A> e, Z z, A top, tempered<A> by) {
  A sum;
  if (by.exact())
    sum = row.map_sum(reads(z), writes(e), [=](auto v) {
      const auto p = simd::exp_of_distance<true>(by.exact_distance(v - top));
      return pack{p, p};
    });
  else
    sum = row.map_sum(reads(z), writes(e), [=](auto v) {
      const auto p = simd::exp_of_distance<true>(by.distance(v - top));
      return pack{p, p};
    });
  if constexpr (simd::vec<Engine, A>::size == 1 && !std::same_as<A, double>) {
    double exact = 0;
    for (std::size_t j = 0; j < row.cols; ++j) exact += static_cast<double>(e.data[j]);
    sum = static_cast<A>(exact);
  }
  return sum;
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_PARTS_ROW_SOFTMAX_HPP
