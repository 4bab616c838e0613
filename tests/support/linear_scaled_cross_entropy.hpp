// Rows of a fused linear scaled cross entropy, of one rank or several.
#ifndef TIGON_TESTS_SUPPORT_LINEAR_SCALED_CROSS_ENTROPY_HPP
#define TIGON_TESTS_SUPPORT_LINEAR_SCALED_CROSS_ENTROPY_HPP

#include "ignored_rows.hpp"
#include "linear_problem.hpp"

namespace tigon::test {

/// Its rows, those that are ignored full of NaN and infinities.
template <class P>
TIGON_TEST_NOINLINE loss_of_rows<P> rows_of_scaled_cross_entropy(linear_sizes s, const std::function<P()>& make) {
  return {.rows = s.rows,
          .make =
              [=] {
                P p = make();
                for (std::size_t i = 0; i < s.rows; ++i)
                  if (p.target[i] == p.v.opt.ignore_index)
                    p.target[i] = static_cast<std::int64_t>(1 + i % (s.vocab - 1));
                return p;
              },
          .ignore =
              [](P& p, std::size_t i) {
                p.target[i] = p.v.opt.ignore_index;
                spoil_row(p.x, i, p.s.hidden);
                for (auto* upstream : {&p.of_nll, &p.of_entropy})
                  if (upstream->size() > 1) (*upstream)[i] = std::numeric_limits<typename P::A>::quiet_NaN();
              },
          .copy =
              [](P& p, std::size_t i, const P& from, std::size_t k) {
                for (std::size_t h = 0; h < p.s.hidden; ++h) p.x(i, h) = from.x(k, h);
                p.target[i] = from.target[k];
                if (p.of_nll.size() > 1) p.of_nll[i] = from.of_nll[k];
                if (p.of_entropy.size() > 1) p.of_entropy[i] = from.of_entropy[k];
              },
          .results = {},
          .parameters = [](const P& p) { return bits_of(p.dw, p.dbias); },
          .call = {},
          .bytes = {}};
}
/// What `out` has of a row: a problem, or what a rank has of it.
template <class Out>
TIGON_TEST_NOINLINE std::vector<double> scaled_results_of(const Out& out, std::size_t i, std::size_t hidden) {
  std::vector<double> results{to_f64(out.nll[i]), to_f64(out.entropy[i]), to_f64(out.lse[i])};
  append_row(results, out.dx, i, hidden);
  return results;
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_LINEAR_SCALED_CROSS_ENTROPY_HPP
