// What losses over a vocabulary share of one row's softmax: logits as they come or capped, exponentials and their sums.
#ifndef TIGON_LOSSES_SOFTMAX_ROW_SOFTMAX_HPP
#define TIGON_LOSSES_SOFTMAX_ROW_SOFTMAX_HPP

#include <tigon/rows/reduce_map.hpp>
#include <tigon/rows/row.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

// Kinds of logits: s is what the softmax is of. A maximum is kept as the logit itself, because a capped one has lost
// what tells it from other logits beyond the cap. With `from = kind.from(top)`, from.distance(v) is s - max s: 0 at the
// maximum.

/// s = logit.
template <class A>
struct plain_logits {
  TIGON_INLINE static plain_logits of(double) { return {}; }

  struct below {
    A top;
    template <class V>
    TIGON_INLINE V distance(V v) const {
      return v - V(top);
    }
  };
  TIGON_INLINE below from(A top) const { return {top}; }

  /// The maximum of a row from its largest logit.
  TIGON_INLINE A top_of(A largest) const { return largest; }
  TIGON_INLINE double value(double logit) const { return logit; }
  TIGON_INLINE double difference(double logit, double other) const { return logit - other; }
  TIGON_INLINE A slope(A) const { return A(1); }
  template <class V>
  TIGON_INLINE V slope_of_capped(V) const {
    return V(1);
  }
};

/// s = cap tanh(logit / cap), the slope of which is ds / dlogit. Of a tanh within 1/2 of 1 or -1, 1 - |tanh| is what
/// distances and slopes are computed from.
template <class A>
struct capped_logits {
  A cap;
  TIGON_INLINE static capped_logits of(double softcap) { return {static_cast<A>(softcap)}; }

  struct below {
    A cap, top, tanh, rest;
    A side;  ///< 1 or -1 where the maximum is beyond half of the cap, otherwise 0

    template <class V>
    struct result {
      V distance, slope;
    };
    template <class V>
    TIGON_INLINE result<V> both(V v) const {
      const V zero(A(0)), of_side(side);
      const auto of = tanh_with_rest(v / V(cap));
      const V d = select(of.tanh * of_side > V(A(0.5)), of_side * (V(rest) - of.rest), of.tanh - V(tanh));
      return {select(v == V(top), zero, min(zero, d * V(cap))), of.slope()};
    }
    template <class V>
    TIGON_INLINE V distance(V v) const {
      return both(v).distance;
    }
  };
  TIGON_INLINE below from(A top) const {
    const auto [t, r] = math::tanh_with_rest(static_cast<double>(top) / static_cast<double>(cap));
    return {cap, top, static_cast<A>(t), static_cast<A>(r), t > 0.5 ? A(1) : t < -0.5 ? A(-1) : A(0)};
  }

  /// A cap makes a number of -inf.
  TIGON_INLINE A top_of(A largest) const { return math::max(std::numeric_limits<A>::lowest(), largest); }
  TIGON_INLINE double value(double logit) const { return cap * math::tanh(logit / cap); }
  TIGON_INLINE double difference(double logit, double other) const { return value(logit) - value(other); }
  TIGON_INLINE A slope(A logit) const {
    return static_cast<A>(math::tanh_with_rest(static_cast<double>(logit) / static_cast<double>(cap)).slope());
  }

  // For logits that are replaced by their caps.
  template <class V>
  TIGON_INLINE V capped(V v) const {
    return tanh(v / V(cap)) * V(cap);
  }
  template <class V>
  TIGON_INLINE pack<V, 2> capped_and_slope(V v) const {
    const auto of = tanh_with_rest(v / V(cap));
    return {{of.tanh * V(cap), of.slope()}};
  }
  template <class V>
  TIGON_INLINE V slope_of_capped(V s) const {
    const V t = s / cap, one(A(1));
    return (one - t) * (one + t);
  }
};

template <bool Capped, class A>
using logits_kind = std::conditional_t<Capped, capped_logits<A>, plain_logits<A>>;

/// The maps of the next two functions.
template <class A>
struct capped_program {
  capped_logits<A> kind;
  template <class V>
  TIGON_INLINE V map(V v) const {
    return kind.capped(v);
  }
};
template <class A>
struct capped_and_slope_program {
  capped_logits<A> kind;
  template <class V>
  TIGON_INLINE auto map(V v) const {
    return kind.capped_and_slope(v);
  }
};
struct slope_program {
  template <class V>
  TIGON_INLINE V map(V v, V by) const {
    const V zero(typename V::value_type(0));
    return select(v == zero, zero, normal_or_zero(v * by));
  }
};

/// z = softcap tanh(z / softcap); with memory in `slope`, there the derivative of that. softcap = 0: nothing is done.
template <backend B, class A>
void cap_logits(matrix_view<A> z, double softcap, context& ctx, matrix_view<A> slope = {}) {
  if (softcap == 0) return;
  const auto kind = capped_logits<A>::of(softcap);
  if (slope.data == nullptr)
    map_rows<B>(ctx, capped_program<A>{kind}, reads(z), writes(z));
  else
    map_rows<B>(ctx, capped_and_slope_program<A>{kind}, reads(z), writes(z, slope));
}

/// The gradient of logits from that of their caps, in place. One that is 0 stays 0: its logit counts for nothing, and
/// may be a NaN.
template <backend B, class D, class A>
void gradient_of_capped(matrix_view<D> d, matrix_view<A> slope, context& ctx) {
  map_rows<B>(ctx, slope_program(), reads(matrix_view<const D>(d), slope), writes(d));
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
    for (std::size_t k = 0; k < count; ++k) {
      const auto part = of(row, k);
      const A m = part.max(reads(logits), [](auto v) { return v; });
      // A piece of -inf alone adds nothing to the others.
      const A under = count > 1 && m == -std::numeric_limits<A>::infinity() ? A(0) : m;
      const A partial = part.map_sum(reads(cached{logits}), writes(e), [=](auto v) {
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
    return d < A(1) ? rest_of(row, e) : d;
  }
  // Out of line: what is inlined is compiled once more in each of its callers, and most rows do not need this pass.
  template <class Row>
  TIGON_RARE A rest_of(Row row, vector_view<A> e) const {
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
  /// the first.
  template <class Row, class Out>
  TIGON_INLINE void multiply(const Row& row, vector_view<A> e, Out out, A factor) const {
    for (std::size_t k = count; k-- > 0;) {
      const A f = factor * top[k];
      // normal_or_zero(p * f), by fewer operations: p is at least 0.
      const A lowest = std::numeric_limits<A>::min() * (A(1) + 4 * std::numeric_limits<A>::epsilon()) / math::abs(f);
      of(row, k).map(reads(e), writes(out), [=](auto p) {
        const decltype(p) zero(A(0));
        return select(p < decltype(p)(lowest), zero, p * f);
      });
    }
  }
};

/// (logit - top) / temperature in f32, where 1 / temperature is not a number of f32: its rounding would be the same in
/// every column and add up. Beyond 1e6 exponentials are 0 or 1. For the second product the distance of -inf is clamped
/// to a finite number.
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
  /// (logit - top) / temperature - less
  template <class V>
  TIGON_INLINE V distance(V below, A less = 0) const {
    return fma(below, V(inverse), fma(max(V(std::numeric_limits<A>::lowest() / 4), below), V(rest), V(-less)));
  }
};

/// e = exp((z - top) / temperature) over a row, and its sum. Single lanes add up one number after the other: in f64.
template <class Engine, class Row, class A, class Z>
TIGON_INLINE A tempered_exponentials(const Row& row, vector_view<A> e, Z z, A top, tempered<A> by) {
  A sum;
  if (by.exact())
    sum = row.map_sum(reads(cached{z}), writes(e), [=](auto v) {
      const auto p = simd::exp_of_distance<true>(by.exact_distance(v - top));
      return pack{p, p};
    });
  else
    sum = row.map_sum(reads(cached{z}), writes(e), [=](auto v) {
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

#endif  // TIGON_LOSSES_SOFTMAX_ROW_SOFTMAX_HPP
