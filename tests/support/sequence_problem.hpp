// A linear layer, a reference model and labelled sequences, for the tests of losses on log-probabilities of sequences.
#ifndef TIGON_TESTS_SUPPORT_SEQUENCE_PROBLEM_HPP
#define TIGON_TESTS_SUPPORT_SEQUENCE_PROBLEM_HPP

#include <tigon/losses/sequence/sequence_kernel.hpp>

#include <functional>
#include <vector>

#include "linear_problem.hpp"

namespace tigon::test {

struct sequence_sizes {
  std::size_t sequences, length, hidden, vocab, padding = 0;
  std::size_t rows() const { return sequences * length; }
  friend std::ostream& operator<<(std::ostream& out, sequence_sizes s) {
    return out << s.sequences << " sequences of " << s.length << ", hidden " << s.hidden << ", " << s.vocab
               << " classes, padding " << s.padding;
  }
};

/// Every buffer at a guard page, outputs full of canaries. The reference has one hidden unit more.
template <class T>
struct sequence_problem {
  using A = accumulator_t<T>;
  sequence_sizes s;
  std::int64_t ignore_index = -100;
  double softcap = 0;  ///< of both layers
  guarded_matrix<T> x, w, dx, dw, ref_x, ref_w;
  guarded<T> bias, dbias, ref_bias;
  guarded_matrix<std::int64_t> target;

  TIGON_TEST_NOINLINE sequence_problem(sequence_sizes of, bool biased, bool reference, std::int64_t ignored,
                                       guard side = guard::behind)
      : s(of),
        ignore_index(ignored),
        x(random_matrix<T>({s.rows(), s.hidden, s.padding}, 1, side)),
        w(random_matrix<T>({s.vocab, s.hidden, s.padding}, 2, side, {.deviation = 0.4})),
        dx(s.rows(), s.hidden, s.padding, side),
        dw(s.vocab, s.hidden, s.padding, side),
        ref_x(random_matrix<T>({reference ? s.rows() : 0, s.hidden + 1, s.padding}, 3, side)),
        ref_w(random_matrix<T>({reference ? s.vocab : 0, s.hidden + 1, s.padding}, 4, side, {.deviation = 0.4})),
        bias(random_vector<T>(biased ? s.vocab : 0, 5, side)),
        dbias(bias.size(), side),
        ref_bias(random_vector<T>(biased && reference ? s.vocab : 0, 6, side)),
        target(labels(7, 0.3, side)) {}

  /// Labels of which a share is ignored, and of the last sequence all.
  TIGON_TEST_NOINLINE guarded_matrix<std::int64_t> labels(std::uint64_t seed, double share,
                                                          guard side = guard::behind) {
    guarded_matrix<std::int64_t> out(s.sequences, s.length, s.padding, side);
    std::mt19937_64 generator(seed);
    for (std::size_t b = 0; b < s.sequences; ++b)
      for (std::size_t t = 0; t < s.length; ++t) {
        const bool ignored = static_cast<double>(generator() % 1000) < share * 1000;
        out(b, t) = static_cast<std::int64_t>(generator() % s.vocab);
        if (ignored || (b + 1 == s.sequences && b > 2)) out(b, t) = ignore_index;
      }
    return out;
  }
  reference_model<T> reference() const {
    if (ref_w.rows() == 0) return {};
    return {.layer = {ref_x, ref_w, {ref_bias.size() == 0 ? nullptr : ref_bias.data(), ref_bias.size()}}};
  }
  std::span<T> given_dbias() { return {dbias.size() == 0 ? nullptr : dbias.data(), dbias.size()}; }
  linear_layer<T> layer() const { return {x, w, {bias.size() == 0 ? nullptr : bias.data(), bias.size()}}; }
  linear_gradients<T> gradients(gradient mode = gradient::overwrite) {
    return {dx.view(), dw.view(), given_dbias(), mode};
  }

  whole_layer policy() const { return {x.f64(), w.f64(), bias.f64(), s.rows(), s.hidden, s.vocab, softcap}; }
  whole_layer other() const {
    return {ref_x.f64(), ref_w.f64(), ref_bias.f64(), ref_x.rows(), s.hidden + 1, s.vocab, softcap};
  }
  std::int64_t label(std::size_t row) const { return target(row / s.length, row % s.length); }
  bool counts(std::size_t row) const { return label(row) != ignore_index; }
  /// Log-probabilities of the targets, 0 where there is none.
  TIGON_TEST_NOINLINE std::vector<double> token_logps(const whole_layer& of) const {
    std::vector<double> out(s.rows());
    if (of.rows == 0) return out;
    const auto all = of.log_probs();
    for (std::size_t i = 0; i < s.rows(); ++i)
      if (counts(i)) out[i] = all[i * s.vocab + static_cast<std::size_t>(label(i))];
    return out;
  }
  std::size_t tokens(std::size_t sequence) const {
    std::size_t n = 0;
    for (std::size_t t = 0; t < s.length; ++t) n += counts(sequence * s.length + t) ? 1 : 0;
    return n;
  }
  TIGON_TEST_NOINLINE double sum(const std::vector<double>& of_tokens, std::size_t sequence, bool average) const {
    double total = 0;
    for (std::size_t t = 0; t < s.length; ++t) total += of_tokens[sequence * s.length + t];
    return average && tokens(sequence) != 0 ? total / static_cast<double>(tokens(sequence)) : total;
  }
};

/// The derivative of f at x, by differences of fourth order.
inline double slope(const std::function<double(double)>& f, double x) {
  const double h = 1e-3;
  return (8 * (f(x + h) - f(x - h)) - (f(x + 2 * h) - f(x - 2 * h))) / (12 * h);
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_SEQUENCE_PROBLEM_HPP
