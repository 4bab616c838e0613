// What cases of fused linear losses have in common: a layer, where its gradients go, chunks of some rows.
#ifndef TIGON_TESTS_FUZZ_LINEAR_HPP
#define TIGON_TESTS_FUZZ_LINEAR_HPP

#include <tigon/losses/linear/linear_layer.hpp>

#include "problem.hpp"

namespace tigon::fuzz {

/// Chunks of so many rows, 0 for those of the backend, until the end of a scope.
class rows_at_a_time {
 public:
  rows_at_a_time(context& ctx, std::size_t rows) : ctx_(ctx) { ctx_.logit_rows(rows); }
  rows_at_a_time(const rows_at_a_time&) = delete;
  ~rows_at_a_time() { ctx_.logit_rows(0); }

 private:
  context& ctx_;
};

/// What a cross entropy of logits x w changes by when every logit changes by the root of the sum of the squares of its
/// terms, in a row twice as large as others: it shows in a loss near 0. Of one class only the square of lse is left.
inline double loss_of_logits(const argument& x, const argument& w, double lse_square_scale) {
  const double logit =
      std::sqrt(static_cast<double>(x.cols())) * any_problem::size_of_terms({&x}) * any_problem::size_of_terms({&w});
  return ((w.rows() > 1 ? 1 : 0) + 4 * lse_square_scale * logit) * 2 * logit;
}

template <class P>
struct some_layer {
  using T = typename P::element;
  P& p;
  std::size_t rows, hidden, vocab;
  bool biased;
  twin<T>&x, &w, &bias, &dx, &dw, &dbias;
  std::size_t at_a_time;

  some_layer(P& of, std::size_t count, std::size_t most_hidden = 40, std::size_t most_vocab = 80)
      : p(of),
        rows(count),
        hidden(p.some_cols(most_hidden)),
        vocab(p.some_cols(most_vocab)),
        biased(p.in.one_in(2)),
        x(p.filled(p.matrix("x", rows, hidden), 0, 1, false)),
        w(p.filled(p.matrix("w", vocab, hidden), 0, 1 / std::sqrt(static_cast<double>(hidden)), false)),
        bias(p.filled(p.vector("bias", biased ? vocab : 0), 0, 0.5, false)),
        dx(p.matrix("dx", rows, hidden)),
        dw(p.matrix("dw", vocab, hidden)),
        dbias(p.vector("dbias", biased ? vocab : 0)),
        at_a_time(p.in.one_in(2) ? p.in.between(1, 10) : 0) {}

  /// Logits of at most this magnitude: of larger ones weights and bias are made smaller.
  void limit_logits(double most) {
    double largest = 0;
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < vocab; ++j) largest = std::max(largest, std::abs(logit(i, j)));
    if (largest <= most) return;
    for (std::size_t k = 0; k < w.size(); ++k) w.set(k, w.got(k) * most / largest);
    for (std::size_t k = 0; k < bias.size(); ++k) bias.set(k, bias.got(k) * most / largest);
  }
  double logit(std::size_t row, std::size_t column) const {
    double z = biased ? bias.wanted(column) : 0;
    for (std::size_t h = 0; h < hidden; ++h) z += x.wanted(row * hidden + h) * w.wanted(column * hidden + h);
    return z;
  }

  template <class S>
  auto layer(S s) const {
    using E = typename S::element;
    return tigon::linear_layer<E>{x.at(s), w.at(s), biased ? bias.vec(s) : std::span<E>{}};
  }
  template <class S>
  auto gradients(S s) const {
    using E = typename S::element;
    return tigon::linear_gradients<E>{dx.at(s), dw.at(s), biased ? dbias.vec(s) : std::span<E>{}};
  }
  /// Logits are products of two numbers that were stretched.
  double stretch() const { return p.stretch() * p.stretch(); }
  /// The three gradients, whose terms of both signs are as large as `one` times a weight, an input, or 1.
  void compare(double bound, double one) const { compare(bound, bound, one); }
  void compare(double bound, double of_bias, double one) const {
    p.compare(dx, {.bound = stretch() * bound, .scale = one * p.size_of_terms({&w})});
    p.compare(dw, {.bound = stretch() * bound, .scale = one * p.size_of_terms({&x})});
    p.compare(dbias, {.bound = stretch() * of_bias, .scale = one});
  }
};

}  // namespace tigon::fuzz

#endif  // TIGON_TESTS_FUZZ_LINEAR_HPP
