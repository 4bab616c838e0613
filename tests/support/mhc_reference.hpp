// Hyper-connections by their definition, in long double: the coefficients, and the chain rule step by step.
#ifndef TIGON_TESTS_SUPPORT_MHC_REFERENCE_HPP
#define TIGON_TESTS_SUPPORT_MHC_REFERENCE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <ostream>
#include <vector>

#include "errors.hpp"
#include "guarded.hpp"

namespace tigon::test {

struct mhc_shape {
  std::size_t tokens, n, channels, padding = 0;
  std::size_t cols() const { return n * channels; }
  std::size_t mixes() const { return n * n + 2 * n; }
  friend std::ostream& operator<<(std::ostream& out, mhc_shape s) {
    return out << s.tokens << " tokens of " << s.n << " streams x " << s.channels << " (padding " << s.padding << ')';
  }
};

/// Streams as many and as long as pass each way through the loops over a row; n lanes.
inline std::vector<mhc_shape> mhc_shapes(std::size_t n) {
  return {{0, 2, 3},        {1, 1, 1},  {3, 1, n + 1, 3}, {2, 2, n},       {2, 3, 2 * n + 3, 1},
          {3, 4, 4 * n, 2}, {2, 5, 65}, {2, 6, 600, 1},   {2, 4, 1100, 3}, {1, 11, 5}};
}

/// In units of |reference| + its root mean square, for mhc_pre and mhc_post_res. The longest chain of roundings is that
/// of a product of streams: 1024 terms in four sums of single numbers, of normal values about 5 eps; half a unit of 16
/// bits.
constexpr by_type mhc_row_bound{.f32 = 2e-6, .bf16 = 0x1p-8 + 2e-6, .f16 = 0x1p-11 + 2e-6, .f64 = 4e-15};

struct mhc_numbers {
  double rms_eps, pre_eps, sinkhorn_eps, post_mult;
  std::size_t tmax;
};

struct mhc_reference {
  std::vector<double> h_pre, h_post, h_res, mix, rstd, dx, dphi, db, dalpha;
  double terms = 0, dx_terms = 0;  ///< the largest term of the gradients of parameters, and of dx

  TIGON_TEST_NOINLINE mhc_reference(mhc_shape s, mhc_numbers opt, const std::vector<double>& x,
                                    const std::vector<double>& phi, const std::vector<double>& b,
                                    const std::vector<double>& alpha, const std::vector<double>& dh_pre,
                                    const std::vector<double>& dh_post, const std::vector<double>& dh_res)
      : dx(x.size()) {
    using real = long double;
    using matrix = std::vector<real>;
    const std::size_t n = s.n, cols = s.cols(), mixes = s.mixes();
    const real eps = opt.sinkhorn_eps;
    std::vector<real> sum_phi(cols * mixes), sum_b(mixes), sum_alpha(3);
    const auto part_of = [=](std::size_t m) { return m < n ? 0u : m < 2 * n ? 1u : 2u; };
    for (std::size_t t = 0; t < s.tokens; ++t) {
      const double* token = &x[t * cols];
      real square = 0;
      for (std::size_t k = 0; k < cols; ++k) square += static_cast<real>(token[k]) * token[k];
      const real r = 1 / std::sqrt(square / static_cast<real>(cols) + opt.rms_eps);
      matrix l(mixes), z(mixes), g(mixes);
      for (std::size_t m = 0; m < mixes; ++m) {
        for (std::size_t k = 0; k < cols; ++k) l[m] += static_cast<real>(token[k]) * phi[k * mixes + m];
        l[m] *= r;
        z[m] = alpha[part_of(m)] * l[m] + b[m];
      }
      rstd.push_back(static_cast<double>(r));
      mix.insert(mix.end(), l.begin(), l.end());
      const auto sigmoid = [](real v) { return 1 / (1 + std::exp(-v)); };
      for (std::size_t h = 0; h < n; ++h) {
        const real pre = sigmoid(z[h]), post = sigmoid(z[n + h]);
        h_pre.push_back(static_cast<double>(pre + opt.pre_eps));
        h_post.push_back(static_cast<double>(opt.post_mult * post));
        g[h] = dh_pre[t * n + h] * pre * (1 - pre);
        g[n + h] = opt.post_mult * dh_post[t * n + h] * post * (1 - post);
      }
      // All matrices of the iteration, and by what each division divided.
      matrix p(n * n);
      for (std::size_t o = 0; o < n; ++o) {
        real sum = 0;
        for (std::size_t i = 0; i < n; ++i) sum += std::exp(z[2 * n + o * n + i]);
        for (std::size_t i = 0; i < n; ++i) p[o * n + i] = std::exp(z[2 * n + o * n + i]) / sum;
      }
      struct step {
        bool rows;
        matrix result, divisors;
      };
      std::vector<step> steps;
      matrix m = p;
      for (real& v : m) v += eps;
      for (std::size_t k = 0; k < 2 * opt.tmax - 1; ++k) {
        step now{k % 2 == 1, matrix(n * n), matrix(n, eps)};
        const auto line = [&](std::size_t o, std::size_t i) { return now.rows ? o : i; };
        for (std::size_t o = 0; o < n; ++o)
          for (std::size_t i = 0; i < n; ++i) now.divisors[line(o, i)] += m[o * n + i];
        for (std::size_t o = 0; o < n; ++o)
          for (std::size_t i = 0; i < n; ++i) now.result[o * n + i] = m[o * n + i] / now.divisors[line(o, i)];
        m = now.result;
        steps.push_back(now);
      }
      h_res.insert(h_res.end(), m.begin(), m.end());
      matrix d(n * n);
      for (std::size_t k = 0; k < n * n; ++k) d[k] = dh_res[t * n * n + k];
      for (std::size_t k = steps.size(); k-- > 0;) {
        const step& now = steps[k];
        matrix along(n);
        for (std::size_t o = 0; o < n; ++o)
          for (std::size_t i = 0; i < n; ++i) along[now.rows ? o : i] += d[o * n + i] * now.result[o * n + i];
        for (std::size_t o = 0; o < n; ++o)
          for (std::size_t i = 0; i < n; ++i)
            d[o * n + i] = (d[o * n + i] - along[now.rows ? o : i]) / now.divisors[now.rows ? o : i];
      }
      for (std::size_t o = 0; o < n; ++o) {
        real along = 0;
        for (std::size_t i = 0; i < n; ++i) along += d[o * n + i] * p[o * n + i];
        for (std::size_t i = 0; i < n; ++i) g[2 * n + o * n + i] = p[o * n + i] * (d[o * n + i] - along);
      }
      // mix_m = r sum_k x_k phi_km, and r depends on every x.
      real by_r = 0;
      for (std::size_t k = 0; k < mixes; ++k) by_r += alpha[part_of(k)] * g[k] * l[k] / r;
      for (std::size_t k = 0; k < cols; ++k) {
        real sum = -by_r * r * r * r / static_cast<real>(cols) * token[k];
        for (std::size_t j = 0; j < mixes; ++j) {
          const real along = alpha[part_of(j)] * g[j] * r;
          sum += along * phi[k * mixes + j];
          dx_terms = std::max(dx_terms, static_cast<double>(std::abs(along * phi[k * mixes + j])));
          sum_phi[k * mixes + j] += along * token[k];
          terms = std::max(terms, static_cast<double>(std::abs(along * token[k])));
        }
        dx[t * cols + k] = static_cast<double>(sum);
      }
      for (std::size_t k = 0; k < mixes; ++k) {
        sum_b[k] += g[k], sum_alpha[part_of(k)] += g[k] * l[k];
        terms = std::max(terms, static_cast<double>(std::max(std::abs(g[k]), std::abs(g[k] * l[k]))));
      }
    }
    dphi.assign(sum_phi.begin(), sum_phi.end());
    db.assign(sum_b.begin(), sum_b.end());
    dalpha.assign(sum_alpha.begin(), sum_alpha.end());
  }
};

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_MHC_REFERENCE_HPP
