// Dynamic tanh, forward and backward.
#ifndef TIGON_OPS_DYT_HPP
#define TIGON_OPS_DYT_HPP

#include <tigon/ops/contract.hpp>
#include <tigon/simd/row_gradients.hpp>

#include <cmath>
#include <limits>

namespace tigon {

namespace op {
struct dyt {
  static constexpr std::string_view name = "dyt";
};
}  // namespace op

/// Dynamic tanh, which takes the place of a norm.
///
///   t  = tanh(alpha * x),   y = gamma[j] * t + beta[j]             beta absent: 0
///   q  = (1 - t^2) * dy * gamma,   dx = alpha * q
///   dalpha = sum_ij x * q,   dgamma[j] = sum_i dy * t,   dbeta[j] = sum_i dy
///
/// Formula    docs/formulas/dyt.md; Zhu et al., "Transformers without Normalization", 2025.
/// Shapes     x, y, dy, dx [rows, cols]; alpha, dalpha [1]; gamma, beta, dgamma, dbeta [cols]; beta and gradients of
///            parameters may be `absent`. rows and cols may be 0.
/// Types      x, y, dy, dx one of f32, bf16, f16, f64; parameters of one type, any of them (f64 only with f64).
/// Precision  f32 (f64 for f64), dalpha of small problems f64; 1 - t^2 without cancellation; one rounding at y, dx and
///            gradients of parameters. In bf16 backward's t has an error of 1.5e-8 beside its relative one.
/// Writes     y, dx; dalpha, dgamma and dbeta are overwritten, or added to with gradient::accumulate.
/// Aliasing   backward: dx may be dy or x. forward: y may not be x, which backward needs. Otherwise any layout in which
///            no element is shared.
/// Throws     tigon::error: shape, stride, alias, workspace; before the first write.
/// Edges      at x = +inf and -inf t is 1 and -1 and dx is 0; dalpha, a sum with inf * 0 then, is NaN. NaN stays NaN.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square; gradients 2e-6, 4e-3, those of parameters
///            of |reference| + the root sum of squares of what it is the sum of (tests/ops/dyt_test.cpp), for any number of
///            rows (tests/simd/many_rows_test.cpp).
struct dyt_options {
  gradient dparams = gradient::overwrite;
};

namespace detail {
inline namespace TIGON_ABI {
/// Bits of results of these types, for functions that need not be more exact; all, but where every type is bf16.
template <class B, class... T>
inline constexpr std::size_t dyt_bits = (std::same_as<T, bfloat16> && ...) && B::relaxed_16bit ? 8 : 53;

/// tanh(alpha v) for many v, in f32 by fewer operations than simd::tanh: u P(u^2) / Q(u^2) for u = unit alpha v, which
/// reaches 1 at alpha v = 9.01. Error: 5 ULP. The coefficients minimise the largest relative error; each is rounded and
/// the next ones make up for it. They leave 3.2e-8.
template <class A>
struct scaled_tanh {
  // With it P and Q both begin with their highest power itself: a sum is cheaper than a product.
  static constexpr double unit = sizeof(A) == 4 ? 0x1.1940f95f8b24dp-6 : 1;
  A scale;

  explicit scaled_tanh(A alpha) : scale(static_cast<A>(unit * static_cast<double>(alpha))) {}

  template <class V>
  TIGON_INLINE V operator()(V v) const {
    const V u = v * V(scale);
    if constexpr (sizeof(A) == 8) {
      return tanh(u);
    } else {
      static constexpr A limit = static_cast<A>(9.01 * 9.01 * unit * unit);
      static constexpr A p[] = {0x1.2f8b06p-21f, 0x1.0d31dep-12f, 0x1.74d146p-6f, 0x1.d2005ap-2f};
      static constexpr A q[] = {0x1.4d7ca4p-27f, 0x1.022122p-16f, 0x1.7b0d76p-9f, 0x1.fe41a6p-4f};
      const V s = min(V(limit), u * u);
      const V ratio = simd::quotient(simd::detail::monic_polynomial(s, p), simd::detail::monic_polynomial(s, q));
      return min(V(1), max(V(-1), u * ratio));
    }
  }
};

/// The same for results that are rounded to 8 bits and alpha of usual size: v (c + a / (v^2 + b) + d / (v^2 + e)), by
/// fewer operations than a quotient. No term is negative, so estimates of reciprocals serve. Error: 1.2e-4 of the result,
/// of which the coefficients leave 5e-5; 1 from |alpha v| = 4.96 on.
template <class V>
struct relaxed_tanh {
  using A = typename V::value_type;
  A limit, a, b, c, d, e;

  static bool serves(A alpha) { return std::abs(alpha) >= A(0x1p-20) && std::abs(alpha) <= A(0x1p20); }

  explicit relaxed_tanh(double alpha)
      : limit(static_cast<A>(4.96 / std::abs(alpha))),
        a(static_cast<A>(2.01709136 / alpha)),
        b(static_cast<A>(2.47696806 / (alpha * alpha))),
        d(static_cast<A>(4.18108052 / alpha)),
        e(static_cast<A>(31.3988564 / (alpha * alpha))) {
    // c is 0.05245 alpha, less what the estimates are off at the limit. Where no c makes 1 of it, the next number is the
    // limit; there is one well before 5.
    const auto at_limit = [&](A factor, A shift) {
      return static_cast<double>(factor) * max_lanes(inverse(V(limit), shift));
    };
    const double sign = std::copysign(1, alpha);
    do {
      c = static_cast<A>(sign / static_cast<double>(limit) - at_limit(a, b) - at_limit(d, e));
      if (max_lanes((*this)(V(limit))) == static_cast<A>(sign)) break;
      limit = std::nextafter(limit, std::numeric_limits<A>::infinity());
    } while (limit < static_cast<A>(5 / std::abs(alpha)));
  }

  static TIGON_INLINE V inverse(V near, A shift) {
    return simd::detail::reciprocal_estimate(fma(near, near, V(shift)));
  }
  TIGON_INLINE V operator()(V v) const {
    const V near = min(V(limit), max(V(-limit), v));
    return near * fma(V(d), inverse(near, e), fma(V(a), inverse(near, b), V(c)));
  }
};

/// run(f), where f(v) is tanh(alpha v) as exact as results of type T show.
template <class B, class T, class A, class Run>
void with_tanh(A alpha, Run run) {
  if constexpr (dyt_bits<B, T> == 8) {
    using relaxed = relaxed_tanh<simd::vec<typename B::engine, A>>;
    if (relaxed::serves(alpha)) return run(relaxed(static_cast<double>(alpha)));
  }
  run(scaled_tanh<A>(alpha));
}

/// What tanh(alpha v) and 1 - tanh(alpha v)^2 are made of: up * y and 4 q y^2 with q = e^(-2 |alpha v|), y = 1 / (1 +
/// q) and up = 1 - q with the sign of alpha v. q is 0 below the smallest normal number. Error of the two: 5 ULP.
/// With Bits = 8, for results that are rounded to so many bits, 1.1e-4 and 1.4e-4 of them, and 1.5e-8 of any tanh, which is
/// made of q - 1.
template <std::size_t Bits, class A>
struct tanh_parts : simd::times_log2e<A> {
  using c = simd::detail::constants<A>;
  using simd::times_log2e<A>::high, simd::times_log2e<A>::low;  // q = 2^-((high + low) |v|)
  static constexpr bool full = Bits > 8;
  // In f64 2 alpha v is rounded first and tanh is made before its sum: kernels that have both agree to the last bits.
  static constexpr bool product_first = sizeof(A) == 8;
  A lowest, flip, twice;

  explicit tanh_parts(A alpha)
      : simd::times_log2e<A>(product_first ? 1 : 2 * std::abs(static_cast<double>(alpha))),
        lowest(-c::bias / high),
        flip(std::copysign(A(1), -alpha)),
        twice(2 * alpha) {}

  template <class V>
  struct result {
    V up, q, y;
  };
  template <class V>
  TIGON_INLINE result<V> operator()(V v) const {
    return rest(power(v), v);
  }

  // Its long chain, and what follows from it.
  template <class V>
  TIGON_INLINE auto power(V v) const {
    if constexpr (product_first) v = v * V(twice);
    constexpr int parts = simd::detail::exp2_parts<V, 16>;
    const V mark(A(-0.0)), magic(c::whole + parts * c::bias), minus = max(V(lowest), bit_or(v, mark));
    const V index = fma(minus, V(parts * high), magic);
    V f = fma(minus, V(parts * high), magic - index);
    if constexpr (full) f = fma(minus, V(parts * low), f);
    const V s = simd::detail::exp2_field<parts>(index), sf = s * f, growth = growth_by<parts>(f),
            q = fma(growth, sf, s);
    if constexpr (full) {
      V base = s - V(1);
      if constexpr (parts == 16) base = base + simd::detail::looked_up(lost, index);
      return pack{q, fma(growth, sf, base)};  // and q - 1, without cancellation
    } else {
      return pack{q};
    }
  }
  template <class V, std::size_t K>
  TIGON_INLINE result<V> rest(const pack<V, K>& p, V v) const {
    const V mark(A(-0.0)), q = p.v[0];
    if constexpr (full)
      return {bit_xor(p.v[1], bit_and(bit_xor(v, V(flip)), mark)), q, simd::reciprocal(V(1) + q)};
    else
      return {bit_xor(fma(q, V(flip), V(-flip)), bit_and(v, mark)), q, simd::detail::reciprocal_estimate(V(1) + q)};
  }

 private:
  // Half of what each of the sixteen roots of two lost when it was rounded: what q lost from 1/2 to 1, where it shows.
  // Below that too much is added, which is too little to show.
  alignas(64) static constexpr float lost[] = {+0x0.000000p-26f, +0x1.9f3122p-26f, -0x1.c15742p-28f, +0x1.ceac48p-26f,
                                               +0x1.4636e2p-26f, +0x1.824684p-26f, -0x1.593abcp-26f, -0x1.5bd5ecp-28f,
                                               +0x1.9fcef4p-27f, -0x1.829fd0p-26f, +0x1.15506ep-28f, +0x1.51f848p-28f,
                                               -0x1.a94b14p-27f, -0x1.3d56b2p-28f, -0x1.822dbcp-28f, +0x1.52486cp-28f};

  // (2^(f / Parts) - 1) / f for |f| <= 1/2; the error is 1.5e-8 of tanh and its slope, with 16 parts 1.1e-7 of a tanh
  // near 0 and 3e-9 of all else, in bf16 1.3e-5 and 4e-5. In pairs, because the length of the chain counts here.
  template <int Parts, class V>
  static TIGON_INLINE V growth_by(V f) {
    if constexpr (Parts == 16 && full) {
      return fma(fma(V(A(0x1.c6b29ap-17)), f, V(A(0x1.ebff92p-11))), f, V(A(0x1.62e43p-5)));
    } else if constexpr (Parts == 16) {
      return fma(V(A(0x1.ebfe56p-11)), f, V(A(0x1.62e7bep-5)));
    } else if constexpr (sizeof(A) == 8) {
      return simd::detail::polynomial(f, c::exp2_q24);
    } else if constexpr (full) {
      const V upper = fma(fma(V(A(0x1.3de7ep-13)), f, V(A(0x1.5f09c4p-10))), f * f,
                          fma(V(A(0x1.3b3326p-7)), f, V(A(0x1.c6af74p-5))));
      return fma(upper, f * f, fma(V(A(0x1.ebfbd4p-3)), f, V(A(0x1.62e43p-1))));
    } else {
      return fma(fma(V(A(0x1.35256ap-7)), f, V(A(0x1.c9641ep-5))), f * f,
                 fma(V(A(0x1.ec1404p-3)), f, V(A(0x1.62e34cp-1))));
    }
  }
};

/// tanh(u) and 1 - tanh(u)^2 for twice u. Error: 5 ULP.
template <class V>
TIGON_INLINE std::array<V, 2> tanh_and_slope(V twice) {
  using A = typename V::value_type;
  const tanh_parts<53, A> parts(A(0.5));
  const auto [up, q, y] = parts(twice);
  const V y2 = y + y;
  return {up * y, y2 * y2 * q};
}
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::dyt, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T, element W>
  static void forward(in_matrix<T> x, in_vector<W> alpha, in_vector<W> gamma, in_vector<W> beta, matrix_view<T> y,
                      context& ctx) {
    using A = accumulator_t<T>;
    detail::with_tanh<B, T>(static_cast<A>(alpha.data[0]), [&](auto tanh_of) {
      const auto write = [=](std::size_t, int) {
        return [=](auto v, auto g, auto b) { return pack{fma(tanh_of(v), g, b)}; };
      };
      map_rows<B, A>(ctx, x.rows, x.cols, no_statistic{}, row_map(y, write, x, gamma, or_zeros(beta)));
    });
  }

  template <backend B, element T, element W>
  static void backward(in_matrix<T> dy, in_matrix<T> x, in_vector<W> alpha, in_vector<W> gamma, matrix_view<T> dx,
                       vector_view<W> dalpha, vector_view<W> dgamma, vector_view<W> dbeta, dyt_options opt,
                       context& ctx) {
    using A = accumulator_t<T>;
    const A factor = static_cast<A>(alpha.data[0]);
    const detail::tanh_parts<detail::dyt_bits<B, T, W>, A> parts(factor);
    const bool in_f64 = is_small(x.rows, x.cols);
    workspace::frame frame(ctx.workspace());
    const vector_view<double> weight{frame.template take<double>(x.cols), x.cols};  // 4 gamma, so that lanes are of f64
    const vector_view<double> by_row{frame.template take<double>(in_f64 ? x.rows : 0), x.rows};
    const vector_view<A> scaled{frame.template take<A>(x.cols), x.cols};  // 4 alpha gamma
    const vector_view<A> by_column{frame.template take<A>(x.cols), x.cols};
    for (std::size_t j = 0; j < x.cols; ++j) {
      const A g = static_cast<A>(gamma.data[j]);
      weight.data[j] = 4 * static_cast<double>(g), scaled.data[j] = 4 * (g * factor);
    }
    if (in_f64) {
      const detail::tanh_parts<53, double> wide(static_cast<double>(factor));
      for_rows<B, double>(ctx, x.rows, x.cols, [=] TIGON_FN(auto row) {
        const double sum = row.sum(
            [=](auto g, auto d, auto v) {
              const auto [up, q, y] = wide(v);
              return q * y * y * d * g * v;
            },
            weight, dy, x);
        if (row.first()) by_row.data[row.i] = sum;
      });
    }
    for_rows_with_partials<B, A>(
        ctx, x.rows, x.cols, no_statistic{},
        row_map(
            dx,
            [=](std::size_t, int) {
              return staged{[=](auto v) { return parts.power(v); },
                            [=](auto power, auto v, auto d, auto f, auto sa, auto sg, auto sb) {
                              const auto [up, q, y] = parts.rest(power, v);
                              const auto yd = y * d,
                                         slope = y * q * yd;  // a quarter of what the formula calls q, without gamma
                              const auto gamma_sum = sizeof(A) == 8 ? fma(d, up * y, sg) : fma(up, yd, sg);
                              return pack{slope * f, fma(v, slope, sa), gamma_sum, sb + d};
                            }};
            },
            x, dy, scaled),
        parameter_gradient<A>{by_column}, parameter_gradient<W>{dgamma, opt.dparams},
        parameter_gradient<W>{dbeta, opt.dparams});
    if (!dalpha) return;
    const bool accumulate = opt.dparams == gradient::accumulate;
    for_rows<B, double>(ctx, 1, in_f64 ? x.rows : x.cols, [=] TIGON_FN(auto row) {
      const double sum = in_f64 ? row.sum([](auto s) { return s; }, by_row)
                                : row.sum([](auto g, auto s) { return g * s; }, weight, by_column);
      if (row.first()) dalpha.data[0] = static_cast<W>(static_cast<A>(accumulate ? row.at(dalpha, 0) + sum : sum));
    });
  }

  /// The terms of dalpha cancel. Where there are few, so that it costs little, their sum is made anew in f64.
  static constexpr bool is_small(std::size_t rows, std::size_t cols) { return rows * cols <= std::size_t{1} << 15; }
};

/// Bytes of workspace that dyt_backward takes.
template <class B = default_backend, class T>
std::size_t dyt_workspace(std::size_t rows, std::size_t cols) {
  using A = accumulator_t<T>;
  const std::size_t by_row = kernel<op::dyt, backends::generic>::is_small(rows, cols) ? rows : 0;
  return workspace::bytes_for<double>(cols) + workspace::bytes_for<double>(by_row) + 2 * workspace::bytes_for<A>(cols) +
         simd::partials_workspace<B, A>(rows, cols, 3);
}

/// y from x, alpha, gamma and beta. See dyt_options for the contract.
template <class B = default_backend, class T, parameter Alpha, parameter Gamma, parameter Beta>
void dyt_forward(in_matrix<T> x, const Alpha& alpha, const Gamma& gamma, const Beta& beta, matrix_view<T> y,
                 dyt_options = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using P = parameter_element_t<T, Alpha, Gamma, Beta>;
  const auto factor = as_in_vector<P>(alpha);
  const auto weight = as_in_vector<P>(gamma);
  const auto bias = as_in_vector<P>(beta);
  static_assert(admits_parameter<T, decltype(factor), decltype(weight), decltype(bias)>());
  const expects expect("dyt_forward");
  expect.memory("x", x);
  expect.matrix("y", y, x.rows, x.cols);
  expect.size("alpha", factor.size, 1);
  expect.size("gamma", weight.size, x.cols);
  if (bias) expect.size("beta", bias.size, x.cols);
  expect.outside("y", y, "x", x, "alpha", as_row(factor), "gamma", as_row(weight), "beta", as_row(bias));
  kernel_for<op::dyt, B>::template forward<B, T>(x, factor, weight, bias, y, ctx);
}

/// dx, dalpha, dgamma and dbeta from dy and what forward was given. See dyt_options for the contract.
template <class B = default_backend, class T, parameter Alpha, parameter Gamma, parameter DAlpha, parameter DGamma,
          parameter DBeta>
void dyt_backward(in_matrix<T> dy, in_matrix<T> x, const Alpha& alpha, const Gamma& gamma, matrix_view<T> dx,
                  DAlpha&& dalpha, DGamma&& dgamma, DBeta&& dbeta, dyt_options opt = {},
                  context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using P = parameter_element_t<T, Alpha, Gamma, DAlpha, DGamma, DBeta>;
  const auto factor = as_in_vector<P>(alpha);
  const auto weight = as_in_vector<P>(gamma);
  const auto dfactor = as_out_vector<P>(dalpha);
  const auto dweight = as_out_vector<P>(dgamma);
  const auto dbias = as_out_vector<P>(dbeta);
  static_assert(
      admits_parameter<T, decltype(factor), decltype(weight), decltype(dfactor), decltype(dweight), decltype(dbias)>());
  const expects expect("dyt_backward");
  expect.memory("x", x);
  expect.matrix("dy", dy, x.rows, x.cols);
  expect.matrix("dx", dx, x.rows, x.cols);
  expect.size("alpha", factor.size, 1);
  expect.size("gamma", weight.size, x.cols);
  if (dfactor) expect.size("dalpha", dfactor.size, 1);
  if (dweight) expect.size("dgamma", dweight.size, x.cols);
  if (dbias) expect.size("dbeta", dbias.size, x.cols);
  expect.same_or_disjoint("dx", dx, "dy", dy);
  expect.same_or_disjoint("dx", dx, "x", x);
  expect.outside("dx", dx, "alpha", as_row(factor), "gamma", as_row(weight));
  const auto apart = [&](const char* name, auto gradient) {
    expect.outside(name, as_row(gradient), "dy", dy, "x", x, "dx", dx, "alpha", as_row(factor), "gamma",
                   as_row(weight));
  };
  apart("dalpha", dfactor), apart("dgamma", dweight), apart("dbeta", dbias);
  expect.outside("dalpha", as_row(dfactor), "dgamma", as_row(dweight), "dbeta", as_row(dbias));
  expect.disjoint("dgamma", as_row(dweight), "dbeta", as_row(dbias));
  ctx.workspace().expect("dyt_backward", dyt_workspace<B, T>(x.rows, x.cols));
  kernel_for<op::dyt, B>::template backward<B, T>(dy, x, factor, weight, dx, dfactor, dweight, dbias, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_DYT_HPP
