// The Jensen-Shannon divergence with weights of one half on a GPU: by its own powers of two and logarithms.
#ifndef TIGON_BACKENDS_CUDA_JENSEN_SHANNON_HPP
#define TIGON_BACKENDS_CUDA_JENSEN_SHANNON_HPP

#include <tigon/backends/cuda/lanes.hpp>
// Behind it: it says how these are compiled.
#include <tigon/simd/math/divergence.hpp>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// simd::even_jensen_shannon in f32. With s = log q - log p, of which M = (P + Q) / 2 has
///   c = log M - log q = -s / 2 + log cosh(s / 2)              a polynomial in s^2 where |s| <= 1
///     = max(-s, 0) + log((1 + e^-|s|) / 2)                    elsewhere
///   value = M (u atanh(u) + log1p(-u^2) / 2), u = tanh(s / 2)           a polynomial in s^2 where |s| <= 1
///         = -M log((1 + e^-|s|) / 2) - min(P, Q) |s| / 2                elsewhere
/// Error: value 1.1e-6, qc 8e-7.
struct even_jensen_shannon {
  static constexpr float weight = 0.5f;
  using lanes = simd::cuda::lanes<float>;
  using V = simd::vec<simd::cuda, float>;

  TIGON_INLINE simd::divergence_terms<V> operator()(V log_q, V log_p, float shift = 0) const {
    const float a = simd::finite_log(log_q).r, b = simd::finite_log(log_p).r, s = a - b, z = s * s;
    const float q = probability(a), p = probability(b), m = 0.5f * (p + q), below = below_larger(s);
    const float close = simd::even_value_near(V(m), V(z)).r;
    const float apart = -lanes::fma(m, below, (p < q ? p : q) * (0.5f * (s < 0 ? -s : s)));
    const float c = log_ratio(s, z, below);
    return {V(z <= 1 ? close : apart), V(q), V(q * (c - shift)), V(c)};
  }
  /// q (c + k) for results of 16 bits: within 4e-6 of q (|c| + |k|).
  TIGON_INLINE float rough(V log_q, V log_p, float k) const {
    const float a = simd::finite_log(log_q).r, s = a - simd::finite_log(log_p).r, z = s * s;
    return lanes::exp_rough(a) * (log_ratio(s, z, below_larger(s)) + k);
  }

 private:
  static TIGON_INLINE float probability(float x) { return lanes::exp_nonpositive(x); }
  // c, both forms of it, because threads of a warp would wait for one another at a branch. log cosh(s / 2) / s^2 is
  // interpolated at Chebyshev's nodes; 4e-8 of c.
  static TIGON_INLINE float log_ratio(float s, float z, float below) {
    const float even =
        lanes::fma(lanes::fma(lanes::fma(-0x1.79fcc6p-16f, z, 0x1.69abd2p-12f), z, -0x1.554db4p-8f), z, 0x1.fffffcp-4f);
    const float close = lanes::fma(even, z, -0.5f * s), apart = (s < 0 ? -s : 0) + below;
    return z <= 1 ? close : apart;
  }
  // log((1 + e^-|s|) / 2), the logarithm of M less that of the larger of both.
  static TIGON_INLINE float below_larger(float s) {
    constexpr float ln2 = 0.693147182f;
    return lanes::fma(lanes::log2_rough(1 + lanes::exp_rough(s < 0 ? s : -s)), ln2, -ln2);
  }
};

/// f(divergence) with what a GPU has for `divergence`.
template <class Divergence, class F>
void with_divergence_on_gpu(Divergence divergence, F f) {
  if constexpr (std::is_same_v<Divergence, simd::even_jensen_shannon<float>>)
    f(even_jensen_shannon());
  else
    f(divergence);
}

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_JENSEN_SHANNON_HPP
