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

/// A row's exponentials below its maximum and 1 / (their sum).
template <class A>
struct row_probabilities {
  vector_view<A> e;
  A inverse_sum, tail;  ///< tail: the logarithm of the sum
};

template <class B, element T, token_id I, class Columns>
void cross_entropy_divergence(const cross_entropy_divergence_call<T>& of, const I* target, const Columns& columns,
                              context& ctx) {
  using A = accumulator_t<T>;
  for_rows<B, A>(ctx, of.logits.rows, of.logits.cols, {.scratch = 3}, [=] TIGON_FN(auto row) {
    const I t = target[row.i];
    const bool write = of.dlogits.data != nullptr, diverges = of.divergence != nullptr;
    if (static_cast<std::int64_t>(t) == of.ignored) {
      if (row.first()) put_ignored(of.ce, row.i);
      if (row.first() && diverges) of.divergence[row.i] = 0;
      if (write) row.map(reads(constant(A(0))), writes(of.dlogits), [](auto zero) { return zero; });
      return;
    }
    const std::size_t column = static_cast<std::size_t>(t);
    const A own = row.at(of.logits, column);
    const plain_logits<A> kind;
    const vector_view<A> e = row.scratch(0), u = row.scratch(2);
    const auto part = part_of_row<false>(row, e, kind, of.logits, constant(A(1))).parts;
    const A top = part.top, d = part.rest;
    A weighted(0);
    if (of.smooth)
      weighted = row.sum(reads(of.logits, of.weight), [=](auto v, auto w) {
        const decltype(v) zero(A(0));
        return select(w == zero, zero, w * (v - top));
      });
    const auto r = of.terms.of(kind, top, own, d, of.weight ? of.weight.data[column] : A(1));
    if (row.first()) of.terms.put_loss(of.ce, row.i, r, weighted);

    row_probabilities<A> q{e, A(1) / (A(1) + d), r.tail};
    A of_q(0);
    if (diverges) {
      if (!of.same) {
        q.e = row.scratch(1);
        const A sum = row.map_sum(reads(cached{of.logits}), writes(q.e), [=](auto v) {
          const auto p = exp_nonpositive((v - top) * of.inverse);
          return pack{p, p};
        });
        const A rest = sum - A(1) < A(1) ? sum_without_one(row, q.e) : sum - A(1);
        q.inverse_sum = A(1) / (A(1) + rest), q.tail = math::log1p(rest);
      }
      std::array<A, 2> sums;
      if constexpr (Columns::of_logarithms)
        sums = row.map_sum(reads(cached{of.logits}, of.teacher), writes(u), [=](auto v, auto p) {
          using V = decltype(v);
          const auto c = columns(fma(V(v - top), V(of.inverse), V(-q.tail)), p);
          return pack{c.v[0], c.v[0], c.v[1]};
        });
      else
        sums = row.map_sum(reads(cached{q.e}, of.teacher), writes(u), [=](auto p_of_student, auto p) {
          const auto c = columns(p_of_student * q.inverse_sum, p);
          return pack{c.v[0], c.v[0], c.v[1]};
        });
      of_q = -sums[0] * q.inverse_sum;
      if (row.first()) of.divergence[row.i] = static_cast<double>(sums[1]);
    }
    if (!write) return;
    const A factor = of.terms.factor(r, of.of_ce), subtract = of.terms.subtract(of.of_ce);
    const bool bends = diverges && of.of_divergence != A(0);
    const A b = bends ? of.of_divergence * columns.factor * of.inverse : A(0);
    const A at_target = bends ? b * (row.at(u, column) + of_q * row.at(q.e, column)) : A(0);
    const cached d_row{of.dlogits, of.dlogits.data == of.logits.data};
    if (bends && of.smooth)
      row.map(reads(cached{e}, q.e, u, of.weight), writes(d_row), [=](auto p, auto s, auto c, auto w) {
        return normal_or_zero(p * factor - w * subtract + b * (c + of_q * s));
      });
    else if (bends)
      row.map(reads(cached{e}, q.e, u), writes(d_row),
              [=](auto p, auto s, auto c) { return normal_or_zero(p * factor + b * (c + of_q * s)); });
    else if (of.smooth)
      row.map(reads(cached{e}, of.weight), writes(d_row),
              [=](auto p, auto w) { return normal_or_zero(p * factor - w * subtract); });
    else
      row.map(reads(cached{e}), writes(d_row), [=](auto p) { return normal_or_zero(p * factor); });
    // The target's column is computed again: p_t - 1 cancels where p_t is near 1.
    if (row.first()) row.put(of.dlogits, column, of.terms.at_target(r, of.of_ce, kind, own) + at_target);
  });
}

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_LOSSES_SOFTMAX_DIVERGENCE_OF_ROW_HPP
