// One row of cross entropy and a divergence of the same logits.
#ifndef TIGON_LOSSES_SOFTMAX_DIVERGENCE_OF_ROW_HPP
#define TIGON_LOSSES_SOFTMAX_DIVERGENCE_OF_ROW_HPP

#include <tigon/losses/divergence/tvd_program.hpp>
#include <tigon/losses/softmax/label_terms.hpp>
#include <tigon/losses/softmax/partial_softmax.hpp>
#include <tigon/simd/math/divergence.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

// What a divergence makes of a column of the student and of the teacher: u and the value, where
//   d divergence / dz_j = factor / temperature (u_j - Q_j sum_k u_k)

/// Of probabilities.
template <class A>
struct tvd_columns {
  static constexpr bool of_logarithms = false;
  A factor = A(0.5);

  template <class V>
  TIGON_INLINE pack<V, 2> operator()(V q, V p) const {
    const V difference = q - p;
    return {{q * sign(difference), A(0.5) * abs(difference)}};
  }
};
/// Of their logarithms.
template <class A, class Divergence>
struct jsd_columns {
  static constexpr bool of_logarithms = true;
  Divergence divergence;
  A factor;

  explicit jsd_columns(const Divergence& of) : divergence(of), factor(-of.weight) {}
  template <class V>
  TIGON_INLINE pack<V, 2> operator()(V log_q, V log_p) const {
    const auto term = divergence(log_q, log_p);
    return {{term.qc, term.value}};
  }
};

/// What a call reads and writes, and what its rows share.
template <element T>
struct cross_entropy_divergence_call {
  using A = accumulator_t<T>;
  matrix_view<const T> logits, teacher;
  matrix_view<T> dlogits;  ///< without memory: not computed
  in_vector<A> weight;     ///< of the classes, or without memory
  cross_entropy_terms<A> terms;
  cross_entropy_rows ce;   ///< losses of rows
  double* divergence;      ///< the same; null: not computed
  A of_ce, of_divergence;  ///< factors of their gradients
  A inverse;               ///< 1 / temperature
  bool smooth, same;       ///< labels are smoothed; the temperature is 1
  std::int64_t ignored;
};

/// Cross entropy of a row and its divergence in steps: exponentials, loss, divergence, gradient.
template <element T, class Columns>
struct cross_entropy_divergence_row {
  using A = accumulator_t<T>;
  cross_entropy_divergence_call<T> of;
  Columns columns;
  static constexpr plain_logits<A> kind{};

  /// exp(z - top) for every column; rest, their sum without the maximum's own 1; if labels are smoothed
  /// sum_j w_j (z_j - top).
  struct row_exponentials {
    vector_view<A> e;
    A top, rest, weighted;
  };
  /// exp((z - top) / temperature), 1 / (their sum) and the logarithm of the sum; u of the columns, and what is
  /// subtracted of each, -sum_k Q_k u_k over the sum.
  struct row_divergence {
    vector_view<A> e, u;
    A inverse_sum, tail, of_q;
  };

  /// A row whose label is ignore_index.
  template <class Row>
  TIGON_INLINE void ignore(const Row& row) const {
    if (row.first()) put_ignored(of.ce, row.i);
    if (row.first() && of.divergence != nullptr) of.divergence[row.i] = 0;
    if (of.dlogits.data != nullptr) row.map(reads(constant(A(0))), writes(of.dlogits), [](auto zero) { return zero; });
  }

  template <class Row>
  TIGON_INLINE row_exponentials exponentials(const Row& row) const {
    const vector_view<A> e = row.scratch(0);
    const auto part = part_of_row<false>(row, e, kind, of.logits, constant(A(1))).parts;
    const A top = part.top;
    A weighted(0);
    if (of.smooth)
      weighted = row.sum(reads(of.logits, of.weight), [=](auto v, auto w) {
        const decltype(v) zero(A(0));
        return select(w == zero, zero, w * (v - top));
      });
    return {e, top, part.rest, weighted};
  }

  /// The terms of the row, and its loss.
  template <class Row>
  TIGON_INLINE auto loss(const Row& row, const row_exponentials& s, std::size_t column, A own) const {
    const auto r = of.terms.of(kind, s.top, own, s.rest, of.weight ? of.weight.data[column] : A(1));
    if (row.first()) of.terms.put_loss(of.ce, row.i, r, s.weighted);
    return r;
  }

  /// The divergence of the row, if it is wanted.
  template <class Row>
  TIGON_INLINE row_divergence divergence(const Row& row, const row_exponentials& s, A tail) const {
    row_divergence q{s.e, row.scratch(2), A(1) / (A(1) + s.rest), tail, A(0)};
    if (of.divergence == nullptr) return q;
    const A top = s.top, inverse = of.inverse;
    if (!of.same) {
      q.e = row.scratch(1);
      const A sum = row.map_sum(reads(cached{of.logits}), writes(q.e), [=](auto v) {
        const auto p = exp_nonpositive((v - top) * inverse);
        return pack{p, p};
      });
      const A rest = sum - A(1) < A(1) ? sum_without_one(row, q.e) : sum - A(1);
      q.inverse_sum = A(1) / (A(1) + rest), q.tail = math::log1p(rest);
    }
    const auto sums = [&]() TIGON_LAMBDA {
      if constexpr (Columns::of_logarithms)
        return row.map_sum(reads(cached{of.logits}, of.teacher), writes(q.u),
                           [=, columns = columns, tail = q.tail](auto v, auto p) {
                             using V = decltype(v);
                             const auto c = columns(fma(V(v - top), V(inverse), V(-tail)), p);
                             return pack{c.v[0], c.v[0], c.v[1]};
                           });
      else
        return row.map_sum(reads(cached{q.e}, of.teacher), writes(q.u),
                           [=, columns = columns, scale = q.inverse_sum](auto p_of_student, auto p) {
                             const auto c = columns(p_of_student * scale, p);
                             return pack{c.v[0], c.v[0], c.v[1]};
                           });
    }();
    q.of_q = -sums[0] * q.inverse_sum;
    if (row.first()) of.divergence[row.i] = static_cast<double>(sums[1]);
    return q;
  }

  /// dlogits, if it is wanted; where it is the logits, their lines are cached. The label's column is computed again.
  template <class Row, class Terms>
  TIGON_INLINE void gradient(const Row& row, const row_exponentials& s, const row_divergence& q, const Terms& r,
                             std::size_t column, A own) const {
    if (of.dlogits.data == nullptr) return;
    const A factor = of.terms.factor(r, of.of_ce), subtract = of.terms.subtract(of.of_ce), of_q = q.of_q;
    const bool bends = of.divergence != nullptr && of.of_divergence != A(0);
    const A b = bends ? of.of_divergence * columns.factor * of.inverse : A(0);
    const A at_target = bends ? b * (row.at(q.u, column) + of_q * row.at(q.e, column)) : A(0);
    const cached to{of.dlogits, of.dlogits.data == of.logits.data};
    if (bends && of.smooth)
      row.map(reads(cached{s.e}, q.e, q.u, of.weight), writes(to), [=](auto p, auto e, auto c, auto w) {
        return normal_or_zero(p * factor - w * subtract + b * (c + of_q * e));
      });
    else if (bends)
      row.map(reads(cached{s.e}, q.e, q.u), writes(to),
              [=](auto p, auto e, auto c) { return normal_or_zero(p * factor + b * (c + of_q * e)); });
    else if (of.smooth)
      row.map(reads(cached{s.e}, of.weight), writes(to),
              [=](auto p, auto w) { return normal_or_zero(p * factor - w * subtract); });
    else
      row.map(reads(cached{s.e}), writes(to), [=](auto p) { return normal_or_zero(p * factor); });
    // p_t - 1 cancels where p_t is near 1.
    if (row.first()) row.put(of.dlogits, column, of.terms.at_target(r, of.of_ce, kind, own) + at_target);
  }
};

template <class B, element T, token_id I, class Columns>
void cross_entropy_divergence(const cross_entropy_divergence_call<T>& of, const I* target, const Columns& columns,
                              context& ctx) {
  using A = accumulator_t<T>;
  const cross_entropy_divergence_row<T, Columns> of_row{of, columns};
  for_rows<B, A>(ctx, of.logits.rows, of.logits.cols, {.scratch = 3}, [=] TIGON_FN(auto row) {
    const I t = target[row.i];
    if (static_cast<std::int64_t>(t) == of_row.of.ignored) return of_row.ignore(row);
    const std::size_t column = static_cast<std::size_t>(t);
    const A own = row.at(of_row.of.logits, column);
    const auto s = of_row.exponentials(row);
    const auto r = of_row.loss(row, s, column, own);
    const auto q = of_row.divergence(row, s, r.tail);
    of_row.gradient(row, s, q, r, column, own);
  });
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_SOFTMAX_DIVERGENCE_OF_ROW_HPP
