// The contract of include/tigon/ops/group_norm.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <tigon/ops/group_norm.hpp>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/problem.hpp"
#include "support/row_norm.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::absent, tigon::accumulator_t, tigon::bfloat16, tigon::context;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
constexpr double eps = 1e-5;

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type forward_bound{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 5e-15};
constexpr by_type gradient_bound{.f32 = 2e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 1e-14};

struct variant {
  const char* name;
  bool weight, bias;
};
const variant variants[] = {
    {"affine", true, true}, {"weight", true, false}, {"bias", false, true}, {"plain", false, false}};

struct extents {
  std::size_t batch, channels, groups, positions, padding = 0;
  std::size_t rows() const { return batch * channels; }
  std::size_t size() const { return channels / groups * positions; }  // of a group
  friend std::ostream& operator<<(std::ostream& out, const extents& e) {
    return out << e.batch << " x " << e.channels << " in " << e.groups << " x " << e.positions << " (padding "
               << e.padding << ')';
  }
};

/// The reference: y, and the derivatives of sum(dy * y) at the probed entries.
struct reference {
  extents e;
  std::vector<double> x, w, b, dy;

  template <class X, class W>
  std::vector<decltype(X() * W())> norm(const std::vector<X>& values, const std::vector<W>& weight) const {
    const std::vector<X> xh = normalised(values, std::vector<double>(e.size(), 1.0), eps, origin::mean);
    std::vector<decltype(X() * W())> out;
    for (std::size_t k = 0; k < xh.size(); ++k) {
      const std::size_t c = k / e.positions % e.channels;
      out.push_back(xh[k] * weight[c] + b[c]);
    }
    return out;
  }
  std::vector<double> y() const { return norm(x, w); }
  TIGON_TEST_NOINLINE std::vector<double> dx(const std::vector<std::size_t>& at) const {
    return complex_step([this](const auto& z) { return with_dy(norm(z, w)); }, x, at);
  }
  TIGON_TEST_NOINLINE std::vector<double> dw() const {
    return complex_step([this](const auto& z) { return with_dy(norm(x, z)); }, w, probes(w.size()));
  }
  TIGON_TEST_NOINLINE std::vector<double> db() const {
    std::vector<double> out(e.channels);
    for (std::size_t k = 0; k < dy.size(); ++k) out[k / e.positions % e.channels] += dy[k];
    return out;
  }

 private:
  template <class N>
  N with_dy(const std::vector<N>& values) const {
    N sum = 0;
    for (std::size_t k = 0; k < dy.size(); ++k) sum += dy[k] * values[k];
    return sum;
  }
};

/// Every buffer at a guard page, outputs full of canaries.
template <class T, class W = T>
struct problem {
  extents e;
  variant v;
  tigon::group_norm_options opt;
  guarded_matrix<T> x, dy, y, dx;
  guarded<W> w, b, dw, db;
  guarded<accumulator_t<T>> mean, rstd;

  TIGON_TEST_NOINLINE explicit problem(extents of, variant which = variants[0], guard side = guard::behind)
      : e(of),
        v(which),
        opt{.groups = e.groups, .channels = v.weight ? 0 : e.channels, .eps = eps},
        x(random_matrix<T>({e.rows(), e.positions, e.padding}, 1, side, {.mean = 1, .deviation = 2})),
        dy(random_matrix<T>({e.rows(), e.positions, e.padding}, 2, side)),
        y(e.rows(), e.positions, e.padding, side),
        dx(e.rows(), e.positions, e.padding, side),
        w(random_vector<W>(v.weight ? e.channels : 0, 3, side)),
        b(random_vector<W>(v.bias ? e.channels : 0, 4, side)),
        dw(w.size(), side),
        db(b.size(), side),
        mean(e.batch * e.groups, side),
        rstd(mean.size(), side) {}

  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    const auto with = [&](const auto& weight, const auto& bias) {
      tigon::group_norm_forward<B>(x, weight, bias, y.view(), mean, rstd, opt, ctx);
    };
    if (v.weight && v.bias)
      with(w, b);
    else if (v.weight)
      with(w, absent);
    else if (v.bias)
      with(absent, b);
    else
      with(absent, absent);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::matrix_view<T> to, context& ctx = tigon::default_context()) {
    const auto with = [&](const auto& weight, auto&& dweight, auto&& dbias) {
      tigon::group_norm_backward<B>(dy, x, weight, mean, rstd, tigon::norm_gradients{to, dweight, dbias}, opt, ctx);
    };
    if (v.weight && v.bias)
      with(w, dw, db);
    else if (v.weight)
      with(w, dw, absent);
    else if (v.bias)
      with(absent, absent, db);
    else
      with(absent, absent, absent);
  }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(ctx);
    backward<B>(dx.view(), ctx);
  }

  std::vector<guarded<W>*> gradients() { return {&dw, &db}; }
  TIGON_TEST_NOINLINE reference wanted() const {
    return {e, x.f64(), v.weight ? w.f64() : std::vector<double>(e.channels, 1.0),
            v.bias ? b.f64() : std::vector<double>(e.channels), dy.f64()};
  }
  /// The largest dy * w * rstd: the size of the terms of dx, for groups so small that they cancel.
  TIGON_TEST_NOINLINE double dx_terms() const {
    const auto weight = wanted().w;
    double largest = 0;
    for (std::size_t i = 0; i < e.rows(); ++i)
      for (std::size_t j = 0; j < e.positions; ++j)
        largest = std::max(
            largest, std::abs(to_f64(dy(i, j)) * weight[i % e.channels] * to_f64(rstd[i / (e.channels / e.groups)])));
    return largest;
  }
};

template <class On>
class group_norm : public testing::Test {};
TYPED_TEST_SUITE(group_norm, every_pair, names);

TYPED_TEST(group_norm, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t n = lanes<B, T>;
  std::vector<extents> shapes{{0, 4, 2, 3},   {0, 1, 1, 1},    {3, 40, 1, 2}, {2, 700, 7, 1},
                              {200, 3, 3, 5}, {3, 8, 4, 4, 1}, {4, 6, 2, 3}};
  for (const std::size_t positions : {std::size_t{1}, n - 1, n, n + 1, 2 * n + 3, 4 * n, std::size_t{257}})
    if (positions != 0)
      shapes.insert(shapes.end(), {{1, 3, 1, positions}, {2, 6, 3, positions, 3}, {3, 4, 4, positions}});
  for (const extents& e : shapes)
    for (const variant& v : variants) {
      const auto at_x = probes(e.rows() * e.positions, 24);
      const problem<T> given(e, v);
      const reference wanted = given.wanted();
      const auto y = wanted.y(), dx = wanted.dx(at_x), dw = wanted.dw(), db = wanted.db();
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << e << ", " << v.name << ", " << side);
        problem<T> p(e, v, side);
        p.template both_ways<B>();
        EXPECT_TRUE(close(p.y.f64(), y, forward_bound.of<T>(), {.scale = 1, .may_be_empty = e.batch == 0}));
        // In groups of a few values the terms of dx cancel. There is nothing wider than f64 to make it in, and what is
        // left is too small for the digits of f16.
        const double terms = e.size() > 8                      ? 0
                             : std::same_as<T, double>         ? p.dx_terms()
                             : std::same_as<T, tigon::float16> ? 0x1p-14
                                                               : 0;
        EXPECT_TRUE(
            close(pick(p.dx.f64(), at_x), dx, gradient_bound.of<T>(), {.scale = terms, .may_be_empty = e.batch == 0}));
        if (v.weight) {
          EXPECT_TRUE(close(pick(p.dw.f64(), probes(e.channels)), dw, gradient_bound.of<T>()));
        }
        if (v.bias) {
          EXPECT_TRUE(close(p.db.f64(), db, gradient_bound.of<T>()));
        }
        EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
      }
    }
}

TYPED_TEST(group_norm, centres_before_it_squares) {
  using B = typename TypeParam::backend;
  using A = accumulator_t<typename TypeParam::element>;
  // Far from zero the mean of squares has no digits left for the variance, and the mean itself not all of its own.
  for (const std::size_t padding : {0u, 3u}) {
    problem<A> p({2, 6, 2, 300, padding});
    p.x.assign(normal_values(3600, 1, {.mean = 1000, .deviation = 1}));
    p.template both_ways<B>();
    const reference wanted = p.wanted();
    const auto at = probes(3600);
    const bool single = std::same_as<A, float>;
    EXPECT_TRUE(close(p.y.f64(), wanted.y(), single ? forward_bound.f32 : 1e-12));
    EXPECT_TRUE(close(pick(p.dx.f64(), at), wanted.dx(at), single ? gradient_bound.f32 : 1e-12));
    EXPECT_TRUE(close(p.dw.f64(), wanted.dw(), single ? gradient_bound.f32 : 1e-12));
  }
}

TYPED_TEST(group_norm, any_mean_beside_the_deviation) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t positions : {2u, 9u, 500u}) {
    SCOPED_TRACE(testing::Message() << positions << " positions");
    check_norm_forgets_the_mean<B, T>(
        [=] {
          return problem<T>({2, 6, 3, positions});
        },
        forward_bound.of<T>(), gradient_bound.of<T>());
  }
}

TYPED_TEST(group_norm, groups_of_the_range_of_the_type) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t positions : {2u, 500u}) {
    SCOPED_TRACE(testing::Message() << positions << " positions");
    const auto make = [=] {
      problem<T> p({2, 6, 3, positions});
      p.opt.eps = 0;
      return p;
    };
    check_norm_over_the_range<B, T>(make, forward_bound.of<T>(), gradient_bound.of<T>(), 2);
  }
}

TYPED_TEST(group_norm, squares_of_a_large_mean_may_overflow) {
  using B = typename TypeParam::backend;
  using A = accumulator_t<typename TypeParam::element>;
  const A large = std::ldexp(A(1), std::numeric_limits<A>::max_exponent / 2 + 2);
  problem<A> p({1, 2, 1, 256});
  for (std::size_t c = 0; c < 2; ++c)
    for (std::size_t j = 0; j < 256; ++j) p.x(c, j) = large;
  p.template forward<B>();
  for (std::size_t c = 0; c < 2; ++c)
    for (std::size_t j = 0; j < 256; ++j) ASSERT_EQ(p.y(c, j), p.b[c]);
  EXPECT_EQ(p.mean[0], large);
  EXPECT_NEAR(to_f64(p.rstd[0]) * std::sqrt(eps), 1, 1e-6);
}

TYPED_TEST(group_norm, channels_may_be_far_from_one_another) {
  using B = typename TypeParam::backend;
  using A = accumulator_t<typename TypeParam::element>;
  // A mean that is estimated from the first values is no use here.
  problem<A> p({1, 1250, 1, 16});
  p.x.assign(normal_values(20000, 1));
  for (std::size_t j = 0; j < 16; ++j) p.x(0, j) = A(1000);
  p.template forward<B>();
  EXPECT_TRUE(
      close(p.y.f64(), p.wanted().y(), 2 * forward_bound.of<A>()));  // the largest are 35 times the root mean square
}

TYPED_TEST(group_norm, has_any_number_of_axes) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  // [2, 6, 3, 2, 5] by its own indices; two axes are the row of one number.
  constexpr std::size_t N = 2, C = 6, D1 = 3, D2 = 2, D3 = 5, G = 2;
  problem<T> p({N, C, G, D1 * D2 * D3});
  p.template both_ways<B>();
  const auto at = [](std::size_t s, std::size_t c, std::size_t i, std::size_t j, std::size_t k) {
    return (((s * C + c) * D1 + i) * D2 + j) * D3 + k;
  };
  const auto x = p.x.f64(), y = p.y.f64(), dx = p.dx.f64(), dy = p.dy.f64(), w = p.w.f64(), b = p.b.f64();
  std::vector<double> y_wanted(x.size()), dx_wanted(x.size());
  for (std::size_t s = 0; s < N; ++s)
    for (std::size_t g = 0; g < G; ++g) {
      const auto each = [&](auto f) {
        for (std::size_t c = g * C / G; c < (g + 1) * C / G; ++c)
          for (std::size_t i = 0; i < D1; ++i)
            for (std::size_t j = 0; j < D2; ++j)
              for (std::size_t k = 0; k < D3; ++k) f(at(s, c, i, j, k), c);
      };
      constexpr double n = C / G * D1 * D2 * D3;
      double mean = 0, square = 0, c1 = 0, c2 = 0;
      each([&](std::size_t at, std::size_t) { mean += x[at] / n; });
      each([&](std::size_t at, std::size_t) { square += (x[at] - mean) * (x[at] - mean) / n; });
      const double r = 1 / std::sqrt(square + eps);
      each([&](std::size_t at, std::size_t c) {
        y_wanted[at] = (x[at] - mean) * r * w[c] + b[c];
        c1 += dy[at] * w[c] * (x[at] - mean) * r / n, c2 += dy[at] * w[c] / n;
      });
      each([&](std::size_t at, std::size_t c) { dx_wanted[at] = r * (dy[at] * w[c] - c2 - (x[at] - mean) * r * c1); });
    }
  EXPECT_TRUE(close(y, y_wanted, forward_bound.of<T>(), {.scale = 1}));
  EXPECT_TRUE(close(dx, dx_wanted, gradient_bound.of<T>()));
}

TYPED_TEST(group_norm, a_group_of_one_value_is_its_bias) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({3, 5, 5, 1});
  p.template both_ways<B>();
  for (std::size_t i = 0; i < 15; ++i) {
    EXPECT_EQ(to_f64(p.y(i, 0)), to_f64(p.b[i % 5]));
    EXPECT_EQ(to_f64(p.dx(i, 0)), 0);
  }
  EXPECT_EQ(p.dw.f64(), std::vector<double>(5));
  p.opt.eps = 0, p.dx.clear();
  p.template backward<B>(p.dx.view());
  EXPECT_EQ(p.dx.f64(), std::vector<double>(15));
}

TYPED_TEST(group_norm, dx_may_be_dy_or_x) {
  for (const variant& v : variants) {
    SCOPED_TRACE(v.name);
    using T = typename TypeParam::element;
    check_norm_in_place<problem<T>, typename TypeParam::backend>(
        extents{2, 6, 3, 4 * lanes<typename TypeParam::backend, T> + 3, 2}, v);
  }
}

TYPED_TEST(group_norm, accumulates_when_asked) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t batch : {0u, 3u}) {
    problem<T> once({batch, 37, 1, 5}), added({batch, 37, 1, 5});
    once.template both_ways<B>();
    added.opt.dparams = tigon::gradient::accumulate;
    added.dw.assign(normal_values(37, 10)), added.db.assign(normal_values(37, 11));
    auto dw = added.dw.f64(), db = added.db.f64();
    for (std::size_t c = 0; c < 37; ++c) dw[c] += to_f64(once.dw[c]), db[c] += to_f64(once.db[c]);
    added.template both_ways<B>();
    EXPECT_TRUE(close(added.dw.f64(), dw, 2 * gradient_bound.of<T>()));  // `once` is rounded too
    EXPECT_TRUE(close(added.db.f64(), db, 2 * gradient_bound.of<T>()));
  }
}

TYPED_TEST(group_norm, nan_and_infinity_stay_in_their_groups) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t n = lanes<B, T>;
  const extents e{2, 4, 2, 2 * n + 3};
  problem<T> clean(e);
  clean.template both_ways<B>();
  for (const std::size_t column : {std::size_t{0}, n, e.positions - 1})
    for (const double bad : {nan, infinity, -infinity}) {
      SCOPED_TRACE(testing::Message() << bad << " in column " << column);
      problem<T> p(e);
      p.x(3, column) = from_f64<T>(bad);  // second group of the first sample
      p.template both_ways<B>();
      auto y = clean.y.f64(), dx = clean.dx.f64(), dw = clean.dw.f64();
      const auto lost = static_cast<std::ptrdiff_t>(2 * e.positions);
      std::fill_n(y.begin() + lost, lost, nan);
      std::fill_n(dx.begin() + lost, lost, nan);
      dw[2] = dw[3] = nan;
      EXPECT_TRUE(close(p.y.f64(), y, 0));
      EXPECT_TRUE(close(p.dx.f64(), dx, 0));
      EXPECT_TRUE(close(p.dw.f64(), dw, 0));
      EXPECT_EQ(bits_of(p.db), bits_of(clean.db));
    }
}

TYPED_TEST(group_norm, large_outputs_have_the_bits_of_small_ones) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t padding : {0u, 4u}) {
    const std::size_t batch = B::row.stream_bytes / (6 * 1000 * sizeof(T)) + 2;
    problem<T> p({batch, 6, 3, 1001, padding}), small({1, 6, 3, 1001, padding});
    p.template both_ways<B>();
    EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
    for (const std::size_t sample : {std::size_t{0}, batch - 1}) {
      const auto part = [&](auto& m) { return m.view().rows_from(6 * sample, 6); };
      tigon::group_norm_forward<B>(part(p.x), p.w, p.b, small.y.view(), small.mean, small.rstd, p.opt);
      tigon::group_norm_backward<B>(part(p.dy), part(p.x), p.w, small.mean, small.rstd,
                                    tigon::norm_gradients{small.dx.view(), small.dw, small.db}, p.opt);
      for (std::size_t i = 0; i < 6; ++i)
        for (std::size_t j = 0; j < 1001; ++j) {
          ASSERT_EQ(to_f64(p.y(6 * sample + i, j)), to_f64(small.y(i, j))) << "row " << i << ", column " << j;
          ASSERT_EQ(to_f64(p.dx(6 * sample + i, j)), to_f64(small.dx(i, j))) << "row " << i << ", column " << j;
        }
    }
  }
}

TYPED_TEST(group_norm, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const extents& e : {extents{60, 12, 3, 500}, extents{20, 1100, 11, 3, 1}}) {
    problem<T> p(e);
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      p.y.clear(), p.dx.clear(), p.dw.clear(), p.db.clear(), p.mean.clear(), p.rstd.clear();
      p.template both_ways<B>(ctx);
      return bits_of(p.y, p.mean, p.rstd, p.dx, p.dw, p.db);
    }));
  }
}

TEST(group_norm_mixed, parameters_keep_their_own_type) {
  problem<bfloat16, float> p({5, 12, 3, 67});
  p.both_ways<tigon::default_backend>();
  const reference wanted = p.wanted();
  EXPECT_TRUE(close(p.y.f64(), wanted.y(), forward_bound.bf16));
  EXPECT_TRUE(close(p.dw.f64(), wanted.dw(), gradient_bound.f32));
  EXPECT_TRUE(close(p.db.f64(), wanted.db(), gradient_bound.f32));
}

TEST(group_norm_mixed, one_gradient_of_two) {
  problem<float> both({2, 6, 3, 67}), one({2, 6, 3, 67}), other({2, 6, 3, 67});
  both.both_ways<tigon::default_backend>(), one.forward<tigon::default_backend>(),
      other.forward<tigon::default_backend>();
  tigon::group_norm_backward(one.dy, one.x, one.w, one.mean, one.rstd,
                             tigon::norm_gradients{one.dx.view(), one.dw, absent}, one.opt);
  tigon::group_norm_backward(other.dy, other.x, other.w, other.mean, other.rstd,
                             tigon::norm_gradients{other.dx.view(), absent, other.db}, other.opt);
  EXPECT_EQ(bits_of(one.dx, one.dw), bits_of(both.dx, both.dw));
  EXPECT_EQ(bits_of(other.dx, other.db), bits_of(both.dx, both.db));
}

/// The doors, which are the same for every backend: refused before the first write.
class group_norm_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;
  using floats = std::span<float>;
  using in_floats = std::span<const float>;
  using options = tigon::group_norm_options;
  static constexpr options usual{.groups = 2, .eps = eps};

  group_norm_doors() { p.forward<tigon::default_backend>(), p.y.clear(), all.assign(std::vector<double>(96, 1.0)); }
  void forward(view x, floats w, floats b, view y, floats mean, floats rstd, tigon::error_code code,
               const std::string& part, options opt = usual) {
    EXPECT_TRUE(refuses([&] { tigon::group_norm_forward(x, in_floats(w), in_floats(b), y, mean, rstd, opt); }, code,
                        "group_norm_forward: " + part, p.y, p.mean, p.rstd, all));
  }
  void backward(view dy, view x, floats w, floats mean, floats rstd, view dx, floats dw, floats db,
                tigon::error_code code, const std::string& part, options opt = usual) {
    EXPECT_TRUE(refuses(
        [&] {
          tigon::group_norm_backward(dy, x, in_floats(w), mean, rstd, tigon::norm_gradients{dx, dw, db}, opt);
        },
        code, "group_norm_backward: " + part, p.dx, p.dw, p.db, all));
  }

  problem<float> p{{2, 4, 2, 8, 2}};
  guarded<float> all = guarded<float>(96);
  const view x = p.x.view(), y = p.y.view(), dy = p.dy.view(), dx = p.dx.view(), front{all.data(), 8, 8},
             shifted{all.data() + 8, 8, 8};
  const floats w{p.w}, b{p.b}, dw{p.dw}, db{p.db}, mean{p.mean}, rstd{p.rstd}, four = floats(all).first(4);
};

TEST_F(group_norm_doors, forward_refuses_wrong_shapes_and_numbers) {
  using enum tigon::error_code;
  forward({x.data, 8, 0, 8}, w, b, {y.data, 8, 0, 8}, mean, rstd, shape, "positions is 0; expected at least 1");
  forward({x.data, 8, 8, 7}, w, b, y, mean, rstd, stride, "x is of row stride 7");
  forward({nullptr, 8, 8}, w, b, y, mean, rstd, shape, "x is a null pointer");
  forward(x, w, b, {y.data, 4, 8, 10}, mean, rstd, shape, "y is 4 x 8; expected 8 x 8");
  forward(x, w, b, {y.data, 8, 8, 7}, mean, rstd, stride, "y is of row stride 7");
  forward(x, {}, {}, y, mean, rstd, shape, "channels is 0; expected at least 1");
  forward(x, w, b, y, mean, rstd, shape, "groups is 0; expected at least 1", {.groups = 0});
  forward(x, w, b, y, mean, rstd, shape, "groups is no divisor of the channels; expected one", {.groups = 3});
  forward(x, w, b, y, mean, rstd, shape, "w is of 4 elements; expected 8", {.groups = 2, .channels = 8});
  forward(x, w, b.first(3), y, mean, rstd, shape, "b is of 3 elements; expected 4");
  forward({x.data, 6, 8, 10}, w, b, {y.data, 6, 8, 10}, mean, rstd, shape,
          "x is of rows that are no multiple of the channels");
  forward(x, w, b, y, mean.first(3), rstd, shape, "mean is of 3 elements; expected 4");
  forward(x, w, b, y, mean, rstd.first(3), shape, "rstd is of 3 elements; expected 4");
  for (const double bad : {-1e-6, nan, infinity})
    forward(x, w, b, y, mean, rstd, argument, "eps is", {.groups = 2, .eps = bad});
}

TEST_F(group_norm_doors, forward_refuses_overlaps) {
  using enum tigon::error_code;
  forward(front, w, b, front, mean, rstd, alias, "y overlaps x");
  forward(front, w, b, shifted, mean, rstd, alias, "y overlaps x");
  forward(x, four, b, front, mean, rstd, alias, "y overlaps w");
  forward(x, w, four, front, mean, rstd, alias, "y overlaps b");
  forward(front, w, b, y, four, rstd, alias, "mean overlaps x");
  forward(x, w, b, front, four, rstd, alias, "mean overlaps y");
  forward(x, four, b, y, four, rstd, alias, "mean overlaps w");
  forward(x, w, four, y, four, rstd, alias, "mean overlaps b");
  forward(x, w, b, y, mean, mean, alias, "mean overlaps rstd");
  forward(front, w, b, y, mean, four, alias, "rstd overlaps x");
  forward(x, w, b, front, mean, four, alias, "rstd overlaps y");
  forward(x, four, b, y, mean, four, alias, "rstd overlaps w");
  forward(x, w, four, y, mean, four, alias, "rstd overlaps b");
}

TEST_F(group_norm_doors, backward_refuses_wrong_shapes) {
  using enum tigon::error_code;
  backward({dy.data, 8, 0, 8}, {x.data, 8, 0, 8}, w, mean, rstd, {dx.data, 8, 0, 8}, dw, db, shape,
           "positions is 0; expected at least 1");
  backward(dy, {x.data, 8, 8, 7}, w, mean, rstd, dx, dw, db, stride, "x is of row stride 7");
  backward({dy.data, 4, 8, 10}, x, w, mean, rstd, dx, dw, db, shape, "dy is 4 x 8; expected 8 x 8");
  backward(dy, x, w, mean, rstd, {dx.data, 8, 7, 10}, dw, db, shape, "dx is 8 x 7; expected 8 x 8");
  backward(dy, x, {}, mean, rstd, dx, {}, {}, shape, "channels is 0; expected at least 1");
  backward(dy, x, w, mean, rstd, dx, dw, db, shape, "groups is no divisor of the channels", {.groups = 3});
  backward(dy, x, w, mean, rstd, dx, dw.first(3), db, shape, "dw is of 3 elements; expected 4");
  backward(dy, x, w, mean, rstd, dx, dw, db.first(3), shape, "db is of 3 elements; expected 4");
  backward(dy, x, w, mean, rstd, dx, {}, {}, shape, "w is of 4 elements; expected 2", {.groups = 2, .channels = 2});
  backward(dy, x, w, mean.first(3), rstd, dx, dw, db, shape, "mean is of 3 elements; expected 4");
  backward(dy, x, w, mean, rstd.first(3), dx, dw, db, shape, "rstd is of 3 elements; expected 4");
  backward(dy, x, w, mean, rstd, dx, dw, db, argument, "eps is -1", {.groups = 2, .eps = -1});
}

TEST_F(group_norm_doors, backward_refuses_overlaps) {
  using enum tigon::error_code;
  backward(front, x, w, mean, rstd, shifted, dw, db, alias, "dx overlaps dy; expected the same buffer or");
  backward(dy, front, w, mean, rstd, shifted, dw, db, alias, "dx overlaps x; expected the same buffer or");
  backward(dy, x, four, mean, rstd, front, dw, db, alias, "dx overlaps w");
  backward(dy, x, w, four, rstd, front, dw, db, alias, "dx overlaps mean");
  backward(dy, x, w, mean, four, front, dw, db, alias, "dx overlaps rstd");
  backward(dy, x, w, mean, rstd, dx, four, four, alias, "dw overlaps db");
  for (const bool first : {true, false}) {  // dw, then db
    const floats dw_at = first ? four : dw, db_at = first ? db : four;
    const std::string says = first ? "dw overlaps " : "db overlaps ";
    backward(front, x, w, mean, rstd, dx, dw_at, db_at, alias, says + "dy");
    backward(dy, front, w, mean, rstd, dx, dw_at, db_at, alias, says + "x");
    backward(dy, x, four, mean, rstd, dx, dw_at, db_at, alias, says + "w");
    backward(dy, x, w, four, rstd, dx, dw_at, db_at, alias, says + "mean");
    backward(dy, x, w, mean, four, dx, dw_at, db_at, alias, says + "rstd");
    backward(dy, x, w, mean, rstd, front, dw_at, db_at, alias, says + "dx");
  }
}

TEST_F(group_norm_doors, backward_needs_the_workspace_that_it_names) {
  const std::size_t bytes = tigon::group_norm_workspace<tigon::default_backend, float>(8, 4);
  const auto call = [&](context& ctx) {
    tigon::group_norm_backward(dy, x, w, mean, rstd, tigon::norm_gradients{dx, dw, db}, usual, ctx);
  };
  EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call), workspace, "group_norm_backward: workspace is of", p.dx, p.dw);
  with_workspace_of(bytes, call);
  EXPECT_FALSE(p.dx.untouched());
}

}  // namespace
