// The contract of include/tigon/ops/adamw.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <tigon/ops/adamw.hpp>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/problem.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::bfloat16, tigon::float16, tigon::adamw_options, tigon::adamw_parameter;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

// In units of |reference| + its root mean square.
constexpr by_type bound{.f32 = 3e-7, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 1e-15};
constexpr double stochastic_bound = 8e-3;

/// A parameter of size n whose buffers end, or begin, at guard pages.
template <class P>
struct buffers {
  guarded<typename P::weight> w;
  guarded<typename P::gradient_type> g;
  guarded<typename P::moment> m, v;
  guarded<typename P::rounded_type> rounded;
  bool is_rounded;
  double decay;

  TIGON_TEST_NOINLINE buffers(std::size_t n, std::uint64_t seed, guard side, bool with_rounded)
      : w(random_vector<typename P::weight>(n, seed, side)),
        g(random_vector<typename P::gradient_type>(n, seed + 1, side)),
        m(random_vector<typename P::moment>(n, seed + 2, side, {.deviation = 0.1})),
        v(random_vector<typename P::moment>(n, seed + 3, side, {.deviation = 0.1})),
        rounded(with_rounded ? n : 0, side),
        is_rounded(with_rounded),
        decay(seed % 2 == 0 ? 1 : 0.5) {
    for (auto& x : v) x = from_f64<typename P::moment>(to_f64(x) * to_f64(x));
  }
  P view() {
    return {{w.data(), w.size()},
            {g.data(), g.size()},
            {m.data(), m.size()},
            {v.data(), v.size()},
            {is_rounded ? rounded.data() : nullptr, rounded.size()},
            decay};
  }
};

/// As torch.optim.AdamW's documentation writes it, in f64.
struct reference {
  std::vector<std::vector<double>> w, m, v;
  double norm = 0;

  template <class P>
  TIGON_TEST_NOINLINE reference(const std::vector<buffers<P>>& all, const adamw_options& o) {
    long double square = 0;
    for (const auto& p : all)
      for (const double g : p.g.f64()) square += static_cast<long double>(g) * g;
    norm = std::abs(o.gradient_scale) * static_cast<double>(std::sqrt(square));
    const double clip = o.max_norm > 0 && norm > o.max_norm ? o.max_norm / norm : 1;
    const double corrected1 = 1 - std::pow(o.beta1, static_cast<double>(o.step)),
                 corrected2 = 1 - std::pow(o.beta2, static_cast<double>(o.step));
    for (const auto& p : all) {
      w.push_back(p.w.f64()), m.push_back(p.m.f64()), v.push_back(p.v.f64());
      const auto gradients = p.g.f64();
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        const double g = gradients[i] * o.gradient_scale * clip;
        double &wi = w.back()[i], &mi = m.back()[i], &vi = v.back()[i];
        wi *= 1 - o.learning_rate * o.weight_decay * p.decay;
        mi += (g - mi) * (1 - o.beta1);
        vi = vi * o.beta2 + (1 - o.beta2) * g * g;
        wi -= o.learning_rate / corrected1 * (mi / (std::sqrt(vi) / std::sqrt(corrected2) + o.eps));
      }
    }
  }
};

/// A list of parameters: sizes at which loops turn a corner, none, and more than a task.
template <class P>
struct problem {
  std::vector<buffers<P>> all;

  TIGON_TEST_NOINLINE explicit problem(const std::vector<std::size_t>& sizes, guard side = guard::behind,
                                       bool with_rounded = false) {
    for (std::size_t i = 0; i < sizes.size(); ++i) all.emplace_back(sizes[i], 10 * i + i % 2, side, with_rounded);
  }
  TIGON_TEST_NOINLINE std::vector<P> list() {
    std::vector<P> out;
    for (auto& p : all) out.push_back(p.view());
    return out;
  }
  TIGON_TEST_NOINLINE std::vector<std::byte> bits() const {
    std::vector<std::byte> out;
    for (const auto& p : all) {
      const auto one = bits_of(p.w, p.m, p.v, p.rounded);
      out.insert(out.end(), one.begin(), one.end());
    }
    return out;
  }
  template <class B>
  TIGON_TEST_NOINLINE double step(const adamw_options& o, context& ctx = tigon::default_context()) {
    return tigon::adamw<B>(list(), o, ctx);
  }
};

constexpr std::size_t task = tigon::detail::adamw_task;
TIGON_TEST_NOINLINE std::vector<std::size_t> corners(std::size_t lanes) {
  std::vector<std::size_t> sizes{1, lanes + 1, 0, 4 * lanes, 257, task, task + 1, 2 * task + lanes + 3};
  if (lanes > 1) sizes.push_back(lanes - 1);
  return sizes;
}

template <class P>
TIGON_TEST_NOINLINE void expect_close(const problem<P>& p, const reference& want, bool stochastic = false) {
  const auto limit = [&]<class T>(T) { return stochastic && sizeof(T) == 2 ? stochastic_bound : bound.of<T>(); };
  for (std::size_t i = 0; i < p.all.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "parameter " << i << " of " << p.all[i].w.size());
    const comparison with{.may_be_empty = p.all[i].w.size() == 0};
    EXPECT_TRUE(close(p.all[i].m.f64(), want.m[i], limit(typename P::moment()), with)) << "m";
    EXPECT_TRUE(close(p.all[i].v.f64(), want.v[i], limit(typename P::moment()), with)) << "v";
    EXPECT_TRUE(close(p.all[i].w.f64(), want.w[i], limit(typename P::weight()), with)) << "w";
  }
}

template <class On>
class adamw : public testing::Test {};
TYPED_TEST_SUITE(adamw, every_pair, names);

TYPED_TEST(adamw, follows_the_published_formula) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using P = adamw_parameter<T>;
  for (const guard side : both_guards) {
    problem<P> p(corners(lanes<B, T>), side);
    for (const adamw_options& o :
         {adamw_options{},
          adamw_options{.learning_rate = 0.1, .beta1 = 0.5, .eps = 1e-3, .weight_decay = 0.5, .step = 7, .max_norm = 2},
          adamw_options{.beta1 = 0, .beta2 = 0, .eps = 0, .step = 1000, .max_norm = 1e6, .gradient_scale = -0.25}}) {
      const reference want(p.all, o);  // of what the last step has left
      EXPECT_NEAR(p.template step<B>(o), want.norm, 1e-14 * want.norm);
      expect_close(p, want);
    }
  }
}

TYPED_TEST(adamw, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using P = adamw_parameter<T>;
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    problem<P> p({5, 3 * task + 7, 100, task});
    const double norm = p.template step<B>({.max_norm = 1}, ctx);
    auto bits = p.bits();
    const auto* first = reinterpret_cast<const std::byte*>(&norm);
    bits.insert(bits.end(), first, first + sizeof norm);
    return bits;
  }));
}

TYPED_TEST(adamw, skips_a_step_that_is_not_finite) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using P = adamw_parameter<T>;
  for (const double bad : {nan, infinity, -infinity}) {
    problem<P> p({3, task + 9});
    p.all[1].g[task + 4] = from_f64<T>(bad);
    const auto before = p.bits();
    const double norm = p.template step<B>({.skip_non_finite = true});
    EXPECT_TRUE(std::isnan(bad) ? std::isnan(norm) : norm == infinity) << norm;
    EXPECT_EQ(p.bits(), before);
    // Otherwise: the element alone; with clipping, all where the norm is NaN.
    problem<P> one = std::move(p), clipped({3, task + 9});
    clipped.all[1].g[task + 4] = from_f64<T>(bad);
    const auto m = clipped.all[0].m.f64();
    one.template step<B>({}), clipped.template step<B>({.max_norm = 1});
    EXPECT_FALSE(std::isfinite(to_f64(one.all[1].m[task + 4])) && std::isfinite(to_f64(one.all[1].w[task + 4])));
    EXPECT_TRUE(std::isfinite(to_f64(one.all[1].w[task + 3])) && std::isfinite(to_f64(one.all[0].w[0])));
    EXPECT_EQ(std::isnan(to_f64(clipped.all[0].m[1])), std::isnan(bad));
    if (std::isnan(bad)) continue;
    EXPECT_NEAR(to_f64(clipped.all[0].m[1]), 0.9 * m[1], 1e-6);
  }
}

using f32 = adamw_parameter<float>;

TEST(adamw_norm, is_summed_in_f64) {
  problem<f32> p({task + 100});
  for (float& g : p.all[0].g) g = 3e30f;  // whose squares overflow in f32
  const double root = std::sqrt(static_cast<double>(task + 100));
  EXPECT_NEAR(tigon::adamw_norm<usual_backend>(p.list()), static_cast<double>(3e30f) * root, 1e16 * root);
  for (float& g : p.all[0].g) g = 1;
  p.all[0].g[0] = 1e5f;  // beside whose square those of the others vanish in f32
  const double norm = std::sqrt(1e10 + static_cast<double>(task + 99));
  EXPECT_NEAR(tigon::adamw_norm<usual_backend>(p.list(), {.gradient_scale = -2}), 2 * norm, 1e-9);
  const auto before = p.bits();
  (void)tigon::adamw_norm<usual_backend>(p.list(), {.max_norm = 1});
  EXPECT_EQ(p.bits(), before);
  EXPECT_EQ(tigon::adamw_norm<usual_backend>(std::vector<f32>{}), 0);
}

TEST(adamw_norm, of_several_lists_clips_each_as_of_one) {
  problem<f32> all({40, 300}), first({40, 300}), second({40, 300});
  const adamw_options o{.max_norm = 0.5};
  const double norm = all.step<usual_backend>(o);
  const auto a = first.list(), b = second.list();
  const std::vector<f32> x{a[0]}, y{b[1]};
  const double both = std::hypot(tigon::adamw_norm<usual_backend>(x), tigon::adamw_norm<usual_backend>(y));
  EXPECT_NEAR(both, norm, 1e-14 * norm);
  EXPECT_EQ(tigon::adamw_with_norm<usual_backend>(x, norm, o), norm);
  EXPECT_EQ(tigon::adamw_with_norm<usual_backend>(y, norm, o), norm);
  EXPECT_EQ(bits_of(first.all[0].w, first.all[0].m), bits_of(all.all[0].w, all.all[0].m));
  EXPECT_EQ(bits_of(second.all[1].w, second.all[1].v), bits_of(all.all[1].w, all.all[1].v));
}

TEST(adamw_scale, undoes_that_of_the_loss) {
  problem<f32> p({500}), scaled({500});
  for (float& g : scaled.all[0].g) g *= 1024;
  const double norm = p.step<usual_backend>({.max_norm = 3});
  EXPECT_NEAR(scaled.step<usual_backend>({.max_norm = 3, .gradient_scale = 1.0 / 1024}), norm, 1e-14 * norm);
  EXPECT_TRUE(close(scaled.all[0].w.f64(), p.all[0].w.f64(), 2e-7));
}

TEST(adamw_masters, leave_rounded_weights) {
  using P = adamw_parameter<float, bfloat16, float, bfloat16>;
  problem<P> p({1, 40, task + 33}, guard::behind, true), plain({1, 40, task + 33}), some({1, 40, task + 33});
  const adamw_options o{.learning_rate = 0.01, .max_norm = 1};
  const reference want(p.all, o);
  p.step<usual_backend>(o), plain.step<usual_backend>(o);
  expect_close(p, want);
  for (std::size_t i = 0; i < p.all.size(); ++i) {
    EXPECT_EQ(bits_of(p.all[i].w, p.all[i].m, p.all[i].v), bits_of(plain.all[i].w, plain.all[i].m, plain.all[i].v));
    for (std::size_t k = 0; k < p.all[i].w.size(); ++k)
      ASSERT_EQ(p.all[i].rounded[k].bits, bfloat16(p.all[i].w[k]).bits) << i << ' ' << k;
  }
}

TEST(adamw_masters, leave_large_rounded_weights_past_the_caches) {
  using P = adamw_parameter<float, float, bfloat16, float16>;
  const std::size_t n = usual_backend::row.stream_bytes / sizeof(float16) + 77;
  problem<P> p({n}, guard::behind, true);
  const reference want(p.all, {});
  p.step<usual_backend>({});
  expect_close(p, want);
  for (std::size_t k = 0; k < n; ++k) ASSERT_EQ(p.all[0].rounded[k].bits, float16(p.all[0].w[k]).bits) << k;
}

using narrow = adamw_parameter<bfloat16, bfloat16, bfloat16>;
constexpr adamw_options by_chance{.stochastic_rounding = true, .seed = 5};

TEST(adamw_stochastic, follows_the_formula_within_a_whole_rounding) {
  problem<narrow> p(corners(lanes<usual_backend, float>));
  const reference want(p.all, by_chance);
  p.step<usual_backend>(by_chance);
  expect_close(p, want, true);
}

TEST(adamw_stochastic, bits_depend_on_seed_step_and_place_alone) {
  const auto run = [](adamw_options o, std::vector<std::size_t> sizes, context& ctx) {
    problem<narrow> p(sizes);
    p.step<usual_backend>(o, ctx);
    return bits_of(p.all[0].w, p.all[0].m, p.all[0].v);
  };
  context& ctx = tigon::default_context();
  const auto bits = run(by_chance, {2 * task + 5, 9}, ctx);
  EXPECT_TRUE(same_bits_for_any_threads([&](context& c) { return run(by_chance, {2 * task + 5, 9}, c); }));
  EXPECT_EQ(run(by_chance, {2 * task + 5}, ctx), bits);  // others in the list do not count
  auto other = by_chance;
  other.seed = 6;
  EXPECT_NE(run(other, {2 * task + 5, 9}, ctx), bits);
  other = by_chance;
  other.stochastic_rounding = false;
  EXPECT_NE(run(other, {2 * task + 5, 9}, ctx), bits);
}

/// Equal numbers everywhere: of the neighbours between which they lie, the shares that make them the mean.
TEST(adamw_stochastic, is_unbiased_and_moves_what_nearest_leaves) {
  const std::size_t n = 1 << 17;
  const auto run = [&](adamw_options o) {
    problem<narrow> p({n});
    for (auto& w : p.all[0].w) w = bfloat16(1.0f);
    for (auto& g : p.all[0].g) g = bfloat16(0.5f);
    for (auto& m : p.all[0].m) m = bfloat16(0.25f);
    for (auto& v : p.all[0].v) v = bfloat16(1.0f);
    const reference want(p.all, o);
    p.step<usual_backend>(o);
    struct {
      double w, m, v, want_w, want_m, want_v, both;
    } out{};
    double up_w = 0, up_m = 0, up_v = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double w = to_f64(p.all[0].w[i]), m = to_f64(p.all[0].m[i]), v = to_f64(p.all[0].v[i]);
      out.w += w / n, out.m += m / n, out.v += v / n;
      const bool a = w > want.w[0][0], b = m > want.m[0][0], c = v > want.v[0][0];
      up_w += a, up_m += b, up_v += c;
      out.both += (a && b) + (a && c) + (b && c);
    }
    // Pairs of roundings are independent: as many go up together as their shares say.
    out.both = (out.both - (up_w * up_m + up_w * up_v + up_m * up_v) / n) / n;
    out.want_w = want.w[0][0], out.want_m = want.m[0][0], out.want_v = want.v[0][0];
    return out;
  };
  auto o = by_chance;
  o.learning_rate = 1e-3, o.step = 1000, o.beta2 = 0.999, o.weight_decay = 0;
  const auto chance = run(o);
  // Six standard deviations of a mean of n draws from two neighbours, which lie a step apart.
  const double sigmas = 6 * 0.5 / std::sqrt(static_cast<double>(n));
  EXPECT_NEAR(chance.w, chance.want_w, sigmas * 0x1p-8);
  EXPECT_NEAR(chance.m, chance.want_m, sigmas * 0x1p-9);
  EXPECT_NEAR(chance.v, chance.want_v, sigmas * 0x1p-8);
  EXPECT_NEAR(chance.both, 0, 3 * sigmas);
  o.stochastic_rounding = false;
  const auto nearest = run(o);
  EXPECT_EQ(nearest.w, 1.0);  // the step is smaller than half of that of bf16
  EXPECT_EQ(nearest.v, 1.0);
  EXPECT_LT(chance.w, 1.0 - 1e-4);
}

TEST(adamw_stochastic, keeps_what_bf16_has) {
  problem<narrow> p({task + 20});
  auto o = by_chance;
  o.learning_rate = 0, o.beta1 = 0, o.beta2 = 0.5;
  for (auto& v : p.all[0].v) v = bfloat16(0.0f);
  for (auto& g : p.all[0].g) g = bfloat16(0.5f);
  const auto w = bits_of(p.all[0].w);
  p.step<usual_backend>(o);
  EXPECT_EQ(bits_of(p.all[0].w), w);
  for (std::size_t i = 0; i < task + 20; ++i) {
    ASSERT_EQ(to_f64(p.all[0].m[i]), 0.5);
    ASSERT_EQ(to_f64(p.all[0].v[i]), 0.125);
  }
}

/// All gradients are g, the norm is g sqrt(n): the clipped one is max_norm / sqrt(n), however small the factor is.
template <class P>
void keeps_digits_of_the_clipped(double g, double max_norm) {
  constexpr std::size_t n = 67;
  using A = typename P::moment;
  problem<P> p({n});
  auto& all = p.all[0];
  for (std::size_t i = 0; i < n; ++i)
    all.g[i] = from_f64<typename P::gradient_type>(i % 2 == 0 ? g : -g), all.m[i] = A(0), all.v[i] = A(0);
  (void)p.template step<usual_backend>({.beta1 = 0.5, .max_norm = max_norm, .gradient_scale = 0.25});
  const double clipped = max_norm / std::sqrt(static_cast<double>(n));
  std::vector<double> m, v;
  for (std::size_t i = 0; i < n; ++i)
    m.push_back((i % 2 == 0 ? 0.5 : -0.5) * clipped), v.push_back(1e-3 * clipped * clipped);
  EXPECT_TRUE(close(all.m.f64(), m, bound.of<A>())) << g << ", " << max_norm;
  if (max_norm > 1e-20) {  // or their squares are 0
    EXPECT_TRUE(close(all.v.f64(), v, bound.of<A>())) << g << ", " << max_norm;
  }
}

TEST(adamw_clipping, keeps_the_digits_of_huge_gradients) {
  for (const double max_norm : {1.0, 1e-3, 1e-12, 1e-34}) keeps_digits_of_the_clipped<f32>(3e38, max_norm);
  keeps_digits_of_the_clipped<adamw_parameter<bfloat16>>(3e38, 1e-3);
  for (const double max_norm : {1e-160, 1e-200, 1e-290})
    keeps_digits_of_the_clipped<adamw_parameter<double>>(1e150, max_norm);
}

/// The doors, which are the same for every backend: refused before the first write.
TEST(adamw_doors, refuse) {
  problem<f32> p({8, 6});
  const auto& [a, b] = std::tie(p.all[0], p.all[1]);
  const auto call = [&](auto change, adamw_options o = {}) {
    auto list = p.list();
    change(list);
    (void)tigon::adamw<usual_backend>(list, o);
  };
  const auto nothing = [](auto&) {};
  EXPECT_TIGON_ERROR(call([](auto& l) { l[1].g = l[1].g.first(5); }), shape,
                     "adamw: parameters[1]: g is of 5 elements; expected 6", a.w, b.w);
  EXPECT_TIGON_ERROR(call([](auto& l) { l[0].m = l[0].m.first(7); }), shape, "parameters[0]: m is of 7 elements", a.w);
  EXPECT_TIGON_ERROR(call([](auto& l) { l[0].v = {}; }), shape, "parameters[0]: v is of 0 elements", a.w);
  EXPECT_TIGON_ERROR(call([](auto& l) { l[0].v = l[0].m; }), alias, "parameters[0]: v overlaps m", a.w);
  EXPECT_TIGON_ERROR(call([](auto& l) {
                       l[0].w = {const_cast<float*>(l[0].g.data()), 8};
                     }),
                     alias, "parameters[0]: w overlaps g", a.w, a.g);
  EXPECT_TIGON_ERROR(call([](auto& l) { l[1].m = l[0].w.subspan(2, 6); }), alias,
                     "adamw: m of parameters[1] overlaps w of parameters[0]", a.w, b.m);
  EXPECT_TIGON_ERROR(call([](auto& l) { l[1] = l[0]; }), alias, "of parameters[1] overlaps w of parameters[0]", a.w);
  EXPECT_TIGON_ERROR(call([](auto& l) { l[1].decay = -1; }), argument, "parameters[1]: decay is -1", a.w);
  EXPECT_TIGON_ERROR(call(nothing, {.learning_rate = -1}), argument, "adamw: learning_rate is -1", a.w);
  EXPECT_TIGON_ERROR(call(nothing, {.beta1 = 1}), argument, "beta1 is 1; expected a number of at least 0 and below 1",
                     a.w);
  EXPECT_TIGON_ERROR(call(nothing, {.beta2 = nan}), argument, "beta2 is nan", a.w);
  EXPECT_TIGON_ERROR(call(nothing, {.eps = -1e-8}), argument, "eps is -1e-08", a.w);
  EXPECT_TIGON_ERROR(call(nothing, {.weight_decay = infinity}), argument, "weight_decay is inf", a.w);
  EXPECT_TIGON_ERROR(call(nothing, {.step = 0}), argument, "step is 0; expected at least 1", a.w);
  EXPECT_TIGON_ERROR(call(nothing, {.max_norm = -1}), argument, "max_norm is -1", a.w);
  EXPECT_TIGON_ERROR(call(nothing, {.gradient_scale = nan}), argument, "gradient_scale is nan", a.w);
  EXPECT_TIGON_ERROR((void)tigon::adamw_with_norm<usual_backend>(p.list(), 1, {.step = 0}), argument,
                     "adamw_with_norm: step is 0", a.w);
  problem<adamw_parameter<float16>> half({4});
  EXPECT_TIGON_ERROR((void)tigon::adamw<usual_backend>(half.list(), by_chance), argument,
                     "stochastic_rounding is set for weights in f16", half.all[0].w);
}

/// Arrays one right behind the other, in any order; and the same with one of them moved onto the end of that before it.
TEST(adamw_doors, find_the_two_arrays_that_overlap) {
  using parameter = adamw_parameter<float, float, float, bfloat16>;
  constexpr const char* names[] = {"w", "g", "m", "v", "rounded"};
  const std::vector<std::size_t> sizes{6, 2, 0, 4};
  std::vector<float> memory(1 + 5 * (6 + 2 + 4));
  std::vector<std::size_t> order;  // array k of parameter i: 5 i + k
  for (std::size_t a = 0; a < 5 * sizes.size(); ++a)
    if (sizes[a / 5] != 0) order.push_back(a);
  const auto step = [&](std::size_t moved) {
    std::vector<parameter> list(sizes.size());
    float* at = memory.data() + 1;
    for (std::size_t n = 0; n < order.size(); ++n) {
      parameter& p = list[order[n] / 5];
      const std::size_t size = sizes[order[n] / 5], k = order[n] % 5;
      float* const begin = n == moved ? at - 1 : at;
      if (k == 0) p.w = {begin, size};
      if (k == 1) p.g = {begin, size};
      if (k == 2) p.m = {begin, size};
      if (k == 3) p.v = {begin, size};
      if (k == 4) p.rounded = {reinterpret_cast<bfloat16*>(begin), size};
      at += k == 4 ? size / 2 : size;
    }
    (void)tigon::adamw<usual_backend>(list);
  };
  std::mt19937_64 generator(1);
  for (int repeat = 0; repeat < 100; ++repeat) {
    std::shuffle(order.begin(), order.end(), generator);
    ASSERT_NO_THROW(step(0));
    for (std::size_t n = 1; n < order.size(); ++n) {
      const auto [first, second] = std::minmax(order[n - 1], order[n]);
      const auto of = [&](std::size_t a) { return " of parameters[" + std::to_string(a / 5) + "]"; };
      EXPECT_TIGON_ERROR(step(n), alias,
                         first / 5 != second / 5
                             ? names[second % 5] + of(second) + " overlaps " + names[first % 5] + of(first)
                             : "adamw: parameters[" + std::to_string(first / 5) + "]: ");
    }
  }
}

TEST(adamw_doors, sort_what_they_compare) {
  std::mt19937_64 generator(1);
  for (std::size_t n = 0; n < 70; ++n) {
    guarded<std::uintptr_t> numbers(n);
    for (auto& x : numbers) x = generator() % 50;
    std::vector<std::uintptr_t> wanted(numbers.begin(), numbers.end());
    std::ranges::sort(wanted);
    tigon::detail::sort_addresses(numbers.data(), n);
    ASSERT_TRUE(std::ranges::equal(numbers, wanted)) << n;
  }
}

TEST(adamw_doors, write_no_more_than_their_workspace) {
  problem<adamw_parameter<float, float, float, bfloat16>> p(std::vector<std::size_t>(64, 3), guard::behind, true);
  guarded<std::byte> memory(tigon::adamw_workspace(64, 64 * 3));
  tigon::workspace exact(std::span<std::byte>(memory.data(), memory.size()));
  context ctx(tigon::serial(), exact);
  EXPECT_NO_THROW(p.step<usual_backend>({}, ctx));
}

TEST(adamw_doors, tell_their_workspace) {
  // What the checks take is more in one list, what the kernels take in another; one element more would take more.
  for (const std::vector<std::size_t>& sizes :
       {std::vector<std::size_t>{3, task, task + 1, 0}, {40 * task + 1}, {8 * task - 1}}) {
    problem<f32> p(sizes);
    std::size_t elements = 0;
    for (const std::size_t n : sizes) elements += n;
    const std::size_t wanted = tigon::adamw_workspace(sizes.size(), elements);
    std::vector<std::byte> memory(wanted);
    const std::span<std::byte> bytes(memory);
    tigon::workspace enough(bytes), less(bytes.first(wanted - 1));
    context good(tigon::serial(), enough), bad(tigon::serial(), less);
    EXPECT_TIGON_ERROR((void)tigon::adamw<usual_backend>(p.list(), {}, bad), workspace, "adamw: workspace is",
                       p.all[0].w);
    (void)tigon::adamw<usual_backend>(p.list(), {}, good);
    EXPECT_LE(enough.high_water(), wanted);
    EXPECT_EQ(enough.used(), 0u);
  }
}

}  // namespace
