// A gated MLP with every buffer at a guard page, and its definition in f64.
#ifndef TIGON_TESTS_SUPPORT_MLP_PROBLEM_HPP
#define TIGON_TESTS_SUPPORT_MLP_PROBLEM_HPP

#include <tigon/ops/mlp/mlp_options.hpp>

#include <cmath>
#include <ostream>
#include <vector>

#include "backends.hpp"
#include "errors.hpp"
#include "gate_value.hpp"
#include "guarded.hpp"
#include "problem.hpp"

namespace tigon::backends {
inline namespace TIGON_ABI {

/// A few sums at a time: blocks of eight by eight, and inference on a few tokens.
using small_blocks = small_chunks_of<test::usual_backend, 4096>;

}  // namespace TIGON_ABI
}  // namespace tigon::backends

namespace tigon::test {

// Not every type on every backend: six products are compiled for each, and golden values run on every engine in f32.
#if defined(TIGON_CONFORMANCE_BACKEND)
using mlp_pairs =
    testing::Types<on<usual_backend, float>, on<backends::small_blocks, float>, on<backends::small_blocks, bfloat16>,
                   on<backends::small_blocks, float16>, on<backends::small_blocks, double>>;
#else
using mlp_pairs = with_engines<
    list<on<single_numbers, double>, on<backends::small_blocks, float>, on<backends::small_blocks, bfloat16>>,
    on<backends::generic, float>, on<backends::small_blocks, double>, on<usual_backend, float>,
    on<backends::small_blocks, float16>, on<bf16_backend, bfloat16>>;
#endif

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
inline constexpr by_type mlp_bound{.f32 = 8e-6, .bf16 = 3e-2, .f16 = 4e-3, .f64 = 2e-14};
inline constexpr by_type mlp_gradient_bound{.f32 = 8e-6, .bf16 = 5e-2, .f16 = 6e-3, .f64 = 2e-14};

struct mlp_sizes {
  std::size_t tokens, hidden, intermediate, padding = 0;
  friend std::ostream& operator<<(std::ostream& out, mlp_sizes s) {
    return out << s.tokens << " tokens of " << s.hidden << ", intermediate " << s.intermediate << ", padding "
               << s.padding;
  }
};
inline const mlp_sizes every_mlp_size[] = {{0, 5, 7},      {1, 1, 1},     {5, 3, 2, 1},    {3, 0, 9},    {4, 6, 0},
                                           {7, 33, 65, 3}, {40, 16, 123}, {3, 17, 431, 1}, {37, 9, 5, 2}};

struct mlp_variant {
  const char* name;
  mlp_options opt;
};
inline const mlp_variant mlp_variants[] = {
    {"plain", {}},
    {"scaled", {.gate_multiplier = 0.7, .down_multiplier = -1.3}},
    {"geglu, other way round", {.gate = mlp_gate::geglu, .weights = transpose::yes}},
    {"all",
     {.gate = mlp_gate::geglu,
      .gate_multiplier = 1.5,
      .down_multiplier = 0.5,
      .weights = transpose::yes,
      .dw = gradient::accumulate}},
    {"added", {.dw = gradient::accumulate}},
};

/// y, for any number type.
template <class N>
std::vector<N> mlp_value(mlp_sizes s, const std::vector<N>& x, const std::vector<N>& wg, const std::vector<N>& wu,
                         const std::vector<N>& wd, mlp_options opt) {
  const auto act = [&](N g) {
    using std::exp, std::tanh;
    if (opt.gate == mlp_gate::swiglu) return g / (N(1) + exp(-g));
    return N(0.5) * g * (N(1) + tanh(N(std::sqrt(2 / 3.14159265358979323846)) * (g + N(0.044715) * g * g * g)));
  };
  std::vector<N> y(s.tokens * s.hidden);
  for (std::size_t i = 0; i < s.tokens; ++i)
    for (std::size_t j = 0; j < s.intermediate; ++j) {
      N g{}, u{};
      for (std::size_t h = 0; h < s.hidden; ++h) {
        g += x[i * s.hidden + h] * wg[j * s.hidden + h];
        u += x[i * s.hidden + h] * wu[j * s.hidden + h];
      }
      const N a = act(N(opt.gate_multiplier) * g) * u;
      for (std::size_t h = 0; h < s.hidden; ++h)
        y[i * s.hidden + h] += N(opt.down_multiplier) * a * wd[h * s.intermediate + j];
    }
  return y;
}

struct mlp_results {
  std::vector<double> y, dx, dwg, dwu, dwd;
};

/// y and the gradients of dy . y, with weights [out, in].
TIGON_TEST_NOINLINE inline mlp_results mlp_reference(mlp_sizes s, const std::vector<double>& x,
                                                     const std::vector<double>& wg, const std::vector<double>& wu,
                                                     const std::vector<double>& wd, const std::vector<double>& dy,
                                                     mlp_options opt) {
  const std::size_t H = s.hidden, I = s.intermediate;
  mlp_results r{mlp_value(s, x, wg, wu, wd, opt), std::vector<double>(s.tokens * H), std::vector<double>(I * H),
                std::vector<double>(I * H), std::vector<double>(H * I)};
  for (std::size_t i = 0; i < s.tokens; ++i)
    for (std::size_t j = 0; j < I; ++j) {
      double g = 0, u = 0, p = 0;
      for (std::size_t h = 0; h < H; ++h) {
        g += opt.gate_multiplier * x[i * H + h] * wg[j * H + h];
        u += x[i * H + h] * wu[j * H + h];
        p += opt.down_multiplier * dy[i * H + h] * wd[h * I + j];
      }
      const auto [act, slope] = gate_value_of(opt.gate, g);
      for (std::size_t h = 0; h < H; ++h) {
        r.dwd[h * I + j] += opt.down_multiplier * dy[i * H + h] * act * u;
        r.dwg[j * H + h] += opt.gate_multiplier * p * u * slope * x[i * H + h];
        r.dwu[j * H + h] += p * act * x[i * H + h];
        r.dx[i * H + h] += p * u * slope * opt.gate_multiplier * wg[j * H + h] + p * act * wu[j * H + h];
      }
    }
  return r;
}

/// [rows, cols] the other way round.
inline std::vector<double> turned(const std::vector<double>& m, std::size_t rows, std::size_t cols) {
  std::vector<double> out(m.size());
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < cols; ++j) out[j * rows + i] = m[i * cols + j];
  return out;
}

/// Every buffer at a guard page, outputs full of canaries. G is the type of the weights' gradients.
template <class T, class W = T, class G = W>
struct mlp_problem {
  mlp_sizes s;
  mlp_options opt;
  guarded_matrix<T> x, dy, y, dx;
  guarded_matrix<W> wg, wu, wd;
  guarded_matrix<G> dwg, dwu, dwd;

  TIGON_TEST_NOINLINE explicit mlp_problem(mlp_sizes of, mlp_options o = {}, guard side = guard::behind)
      : s(of),
        opt(o),
        x(random_matrix<T>({s.tokens, s.hidden, s.padding}, 1, side)),
        dy(random_matrix<T>({s.tokens, s.hidden, s.padding}, 2, side)),
        y(s.tokens, s.hidden, s.padding, side),
        dx(s.tokens, s.hidden, s.padding, side),
        wg(weight<W>(s.intermediate, s.hidden, side)),
        wu(weight<W>(s.intermediate, s.hidden, side)),
        wd(weight<W>(s.hidden, s.intermediate, side)),
        dwg(weight<G>(s.intermediate, s.hidden, side)),
        dwu(weight<G>(s.intermediate, s.hidden, side)),
        dwd(weight<G>(s.hidden, s.intermediate, side)) {
    const distribution of_weights{.deviation = 1 / std::sqrt(static_cast<double>(s.hidden + 1))};
    const std::size_t count = s.hidden * s.intermediate;
    wg.assign(normal_values(count, 3, of_weights));
    wu.assign(normal_values(count, 4, of_weights));
    wd.assign(normal_values(count, 5, of_weights));
    if (opt.dw == gradient::accumulate) {
      dwg.assign(normal_values(count, 6));
      dwu.assign(normal_values(count, 7));
      dwd.assign(normal_values(count, 8));
    }
  }

  /// As the reference has it; to be computed before the call, because gradients may be added to.
  TIGON_TEST_NOINLINE mlp_results wanted() const {
    const std::size_t H = s.hidden, I = s.intermediate;
    const bool other = opt.weights == transpose::yes;
    const auto plain = [&](const auto& m, std::size_t out, std::size_t in) {
      return other ? turned(m.f64(), in, out) : m.f64();
    };
    mlp_results r = mlp_reference(s, x.f64(), plain(wg, I, H), plain(wu, I, H), plain(wd, H, I), dy.f64(), opt);
    if (other) r.dwg = turned(r.dwg, I, H), r.dwu = turned(r.dwu, I, H), r.dwd = turned(r.dwd, H, I);
    const auto add = [&](std::vector<double>& to, const auto& before) {
      if (opt.dw == gradient::overwrite) return;
      const auto old = before.f64();
      for (std::size_t k = 0; k < to.size(); ++k) to[k] += old[k];
    };
    add(r.dwg, dwg), add(r.dwu, dwu), add(r.dwd, dwd);
    return r;
  }
  TIGON_TEST_NOINLINE void expect_value(const mlp_results& r) const {
    EXPECT_TRUE(close(y.f64(), r.y, mlp_bound.of<T>(), {.may_be_empty = true})) << "y";
    EXPECT_TRUE(y.padding_intact());
  }
  TIGON_TEST_NOINLINE void expect_gradients(const mlp_results& r) const {
    const comparison with{.may_be_empty = true};
    // The weights' gradients are as exact as they are stored, of values that are rounded to T.
    constexpr double bound = std::max(mlp_gradient_bound.of<T>(), mlp_gradient_bound.of<G>());
    EXPECT_TRUE(close(dx.f64(), r.dx, mlp_gradient_bound.of<T>(), with)) << "dx";
    EXPECT_TRUE(close(dwg.f64(), r.dwg, bound, with)) << "dwg";
    EXPECT_TRUE(close(dwu.f64(), r.dwu, bound, with)) << "dwu";
    EXPECT_TRUE(close(dwd.f64(), r.dwd, bound, with)) << "dwd";
    EXPECT_TRUE(dx.padding_intact() && dwg.padding_intact() && dwu.padding_intact() && dwd.padding_intact());
  }
  void clear() { y.clear(), dx.clear(), dwg.clear(), dwu.clear(), dwd.clear(); }
  auto gradients() const { return bits_of(dx, dwg, dwu, dwd); }

 private:
  template <class E>
  guarded_matrix<E> weight(std::size_t out, std::size_t in, guard side) const {
    return opt.weights == transpose::yes ? guarded_matrix<E>(in, out, s.padding, side)
                                         : guarded_matrix<E>(out, in, s.padding, side);
  }
};

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_MLP_PROBLEM_HPP
