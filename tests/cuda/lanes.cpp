// Functions of a GPU's single numbers against f64: the errors that they state.
#include "problem.hpp"
// Behind it: it says how these are compiled.
#include <tigon/backends/cuda/jensen_shannon.hpp>
#include <tigon/backends/cuda/tokens.hpp>

namespace cuda_tests {

using lanes = simd::cuda::lanes<float>;
using V = simd::vec<simd::cuda, float>;

/// f(x, y), of so many results, for all columns of two rows.
template <class F>
struct of_columns {
  F f;
  matrix_view<const float> in;
  matrix_view<float> out;
  TIGON_DEVICE_INLINE void operator()(std::size_t j) const {
    float to[4] = {};
    f(in.row(0)[j], in.row(1)[j], to);
    for (std::size_t k = 0; k < out.rows; ++k) out.row(k)[j] = to[k];
  }
};
/// Checks f(x, y, results) of pairs, given as fill(column) -> {x, y}, with check(x, y, results).
template <class F, class Fill, class Check>
void check_columns(F f, std::size_t n, Fill fill, Check check) {
  problem<float> p({2, n});
  const auto got = p.template on<cuda>([&](problem<float>& of) {
    const auto in = of.matrix(1), out = of.made("results", 4, n);
    for (std::size_t j = 0; j < n; ++j) std::tie(in.data[j], in.data[n + j]) = fill(j);
    return [=]<class B>(context& ctx) { gpu::for_each_of(ctx, n, of_columns<F>{f, in.matrix(), out.matrix()}); };
  });
  const auto& out = got.front().second;
  for (std::size_t j = 0; j < n; ++j) {
    const auto [x, y] = fill(j);
    const float to[4] = {out[j], out[n + j], out[2 * n + j], out[3 * n + j]};
    check(x, y, to);
    if (testing::Test::HasFailure()) return;
  }
}
void expect_near(double got, double wanted, double relative, double x, double y = 0) {
  EXPECT_LE(std::abs(got - wanted), relative * std::abs(wanted))
      << got << " for " << wanted << " of " << x << ", " << y;
}

struct exponentials_of {
  lanes::exp_of_multiple third{1. / 3};
  TIGON_DEVICE_INLINE void operator()(float x, float, float* to) const {
    to[0] = lanes::exp_nonpositive(x), to[1] = third.of(x), to[2] = lanes::exp_rough(x), to[3] = third.rough(x);
  }
};
TEST(cuda_lanes, exponentials) {
  const auto fill = [](std::size_t j) { return std::pair{-static_cast<float>(j) * 0.0087131f, 0.f}; };
  check_columns(exponentials_of(), 10000, fill, [](double x, double, const float* got) {
    expect_near(got[0], std::exp(x), 2.1e-7, x);
    expect_near(got[1], std::exp(x / 3), 2.1e-7, x);
    if (x > -40) expect_near(got[2], std::exp(x), 2e-6, x);
    if (x > -120) expect_near(got[3], std::exp(x / 3), 2e-6, x);
  });
  const float infinity = std::numeric_limits<float>::infinity(),
              edges[] = {-infinity, std::numeric_limits<float>::lowest(), -265, 0,
                         std::numeric_limits<float>::quiet_NaN()};
  check_columns(
      exponentials_of(), 5,
      [&](std::size_t j) {
        return std::pair{edges[j], 0.f};
      },
      [](float x, float, const float* got) {
        for (int k = 0; k < 2; ++k)
          if (std::isnan(x))
            EXPECT_TRUE(std::isnan(got[k]));
          else
            EXPECT_EQ(got[k], x == 0 ? 1 : 0) << x;
      });
}

struct logarithms_of {
  TIGON_DEVICE_INLINE void operator()(float x, float y, float* to) const {
    const auto [e, f] = lanes::split(x);
    to[0] = e, to[1] = f, to[2] = simd::log(V(x)).r, to[3] = lanes::log2_rough(y);
  }
};
TEST(cuda_lanes, logarithms) {
  const auto fill = [](std::size_t j) {
    return std::pair{std::ldexp(1 + static_cast<float>(j % 97) / 97, static_cast<int>(j % 270) - 145),
                     0.5f + static_cast<float>(j) / 7000};
  };
  check_columns(logarithms_of(), 10000, fill, [](double x, double y, const float* got) {
    EXPECT_TRUE(got[1] >= -0.25f && got[1] < 0.5f) << x;
    EXPECT_EQ(std::ldexp(1 + static_cast<double>(got[1]), static_cast<int>(got[0])), x);
    expect_near(got[2], std::log(x), 1.2e-7, x);
    EXPECT_LE(std::abs(static_cast<double>(got[3]) - std::log2(y)), 0x1p-22) << y;
  });
}

struct jensen_shannon_of {
  TIGON_DEVICE_INLINE void operator()(float x, float y, float* to) const {
    const auto t = gpu::even_jensen_shannon()(V(x), V(y));
    to[0] = t.value.r, to[1] = t.q.r, to[2] = t.qc.r, to[3] = gpu::even_jensen_shannon().rough(V(x), V(y), 0.125f);
  }
};
// Pairs whose difference is of any size from 1e-5 to 60.
TEST(cuda_lanes, even_jensen_shannon) {
  const auto fill = [](std::size_t j) {
    const auto deep = -static_cast<float>(j % 101) * 0.29f,
               apart = std::pow(10.f, static_cast<float>(j % 331) / 331 * 6.8f - 5) * (j % 2 == 0 ? 1.f : -1.f);
    return std::pair{std::min(deep + apart, 0.f), deep};
  };
  check_columns(jensen_shannon_of(), 30000, fill, [](double x, double y, const float* got) {
    const long double q = std::exp(static_cast<long double>(x)), p = std::exp(static_cast<long double>(y)),
                      c = std::log((p + q) / 2) - x, s = std::abs(static_cast<long double>(x) - y), m = (p + q) / 2,
                      u = std::tanh(s / 2);
    const auto value = static_cast<double>(m * (u * std::atanh(u) + std::log1p(-u * u) / 2));
    if (s > 1e-3L && value > 1e-30) {
      // In this form the reference itself cancels where s is large.
      const long double plain = -(m * (std::log(m) - std::max(x, y)) + std::min(p, q) * s / 2);
      expect_near(got[0], s > 1 ? static_cast<double>(plain) : value, 1.1e-6, x, y);
    }
    if (q < 1e-37L) return;  // subnormal numbers are 0
    expect_near(got[1], static_cast<double>(q), 2.5e-7, x, y);
    expect_near(got[2], static_cast<double>(q * c), 8e-7, x, y);
    const auto rough = static_cast<double>(q * (c + 0.125L));
    EXPECT_LE(std::abs(got[3] - rough), 4e-6 * static_cast<double>(q * (std::abs(c) + 0.125L))) << x << ", " << y;
  });
}
TEST(cuda_lanes, even_jensen_shannon_of_nothing) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::pair<float, float> edges[] = {{-infinity, -infinity}, {-2000, -2100}, {-infinity, -1}, {-1, -infinity}};
  check_columns(
      jensen_shannon_of(), 4, [&](std::size_t j) { return edges[j]; },
      [&](double x, double y, const float* got) {
        const double p = std::exp(y), q = std::exp(x), log2 = std::log(2.), c = q > 0 ? -log2 : 0;
        EXPECT_NEAR(got[0], log2 / 2 * (p + q), 1e-7);
        EXPECT_NEAR(got[1], q, 1e-7);
        EXPECT_NEAR(got[2], q * c, 1e-7);
        EXPECT_NEAR(got[3], q * (c + 0.125), 1e-6);
      });
}

}  // namespace cuda_tests
