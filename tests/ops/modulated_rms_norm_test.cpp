// The contract of include/tigon/ops/modulated_rms_norm.hpp, promise by promise, on every backend.
#include <gtest/gtest.h>

#include <tigon/ops/modulated_rms_norm.hpp>

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
using tigon::absent, tigon::accumulator_t, tigon::bfloat16, tigon::casting, tigon::context;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

// In units of |reference| + its root mean square; at most ten times the worst that was seen. casting::llama rounds
// twice, and then a shift or another row may cancel most of what was rounded.
constexpr by_type forward_bound{.f32 = 1e-6, .bf16 = 1e-2, .f16 = 2e-3, .f64 = 5e-15};
constexpr by_type gradient_bound{.f32 = 2e-6, .bf16 = 2e-2, .f16 = 3e-3, .f64 = 1e-14};

struct variant {
  const char* name;
  bool affine, shifted, by_row;  // by_row: a scale for every row; otherwise one for group_rows, or for all
  tigon::modulated_rms_norm_options opt;

  std::size_t groups(std::size_t rows) const { return by_row ? rows : opt.group_rows != 0 ? rows / opt.group_rows : 1; }
};
const variant variants[] = {
    {"llama, by row", true, true, true, {.eps = 1e-5}},
    {"gemma, by row without a shift", true, false, true, {.offset = 1, .casting = casting::gemma}},
    {"by row without a weight", false, true, true, {.offset = 3}},
    {"gemma, pairs of rows", true, true, false, {.offset = 1, .group_rows = 2, .casting = casting::gemma}},
    {"llama, all rows", true, true, false, {.eps = 1e-5}},
    {"all rows without weight and shift", false, false, false, {.offset = 3, .casting = casting::none}},
};

/// y by its definition, for any number types: derivatives come from it.
template <class X, class F, class S>
auto modulated(const std::vector<X>& x, const std::vector<F>& factor, const std::vector<S>& scale,
               const std::vector<double>& shift, double eps, std::size_t group_rows) {
  const std::size_t n = factor.size();
  const std::vector<X> xh = normalised(x, std::vector<double>(n, 1.0), eps, origin::zero);
  std::vector<decltype(X() * F() * S())> y;
  for (std::size_t k = 0; k < x.size(); ++k) {
    const std::size_t at = k / n / group_rows * n + k % n;
    y.push_back(xh[k] * factor[k % n] * (1.0 + scale[at]) + shift[at]);
  }
  return y;
}

template <class T, class W = T, class S = T>
struct problem : norm_buffers<T, W> {
  using norm_buffers<T, W>::x, norm_buffers<T, W>::dy, norm_buffers<T, W>::y, norm_buffers<T, W>::dx;
  using norm_buffers<T, W>::w, norm_buffers<T, W>::dw, norm_buffers<T, W>::rstd;
  variant v;
  std::size_t groups;
  guarded_matrix<S> scale, shift, dscale, dshift;

  TIGON_TEST_NOINLINE explicit problem(shape of, variant which = variants[0], guard side = guard::behind)
      : norm_buffers<T, W>(of, which.affine, side),
        v(which),
        groups(v.groups(of.rows)),
        scale(random_matrix<S>({groups, of.cols, of.padding}, 4, side, {.deviation = 0.5})),
        shift(random_matrix<S>({v.shifted ? groups : 0, of.cols, of.padding}, 5, side)),
        dscale(groups, of.cols, of.padding, side),
        dshift(shift.rows(), of.cols, of.padding, side) {}

  tigon::matrix_view<S> shift_view() { return v.shifted ? shift.view() : tigon::matrix_view<S>{}; }
  tigon::matrix_view<S> dshift_view() { return v.shifted ? dshift.view() : tigon::matrix_view<S>{}; }

  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    if (v.affine)
      tigon::modulated_rms_norm_forward<B>(x, w, scale.view(), shift_view(), y.view(), rstd, v.opt, ctx);
    else
      tigon::modulated_rms_norm_forward<B>(x, absent, scale.view(), shift_view(), y.view(), rstd, v.opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::matrix_view<T> to, context& ctx = tigon::default_context()) {
    if (v.affine)
      tigon::modulated_rms_norm_backward<B>(
          dy, x, w, scale, rstd, tigon::modulated_rms_norm_gradients{to, dw, dscale.view(), dshift_view()}, v.opt, ctx);
    else
      tigon::modulated_rms_norm_backward<B>(
          dy, x, absent, scale, rstd, tigon::modulated_rms_norm_gradients{to, absent, dscale.view(), dshift_view()},
          v.opt, ctx);
  }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(ctx);
    backward<B>(dx.view(), ctx);
  }
  TIGON_TEST_NOINLINE bool padding_intact() const {
    return y.padding_intact() && dx.padding_intact() && dscale.padding_intact() && dshift.padding_intact();
  }
  std::vector<std::byte> gradients() const { return bits_of(dw, dscale, dshift); }
};

/// The reference of one problem: y, and the derivatives of sum(dy * y) at the probed entries.
struct reference {
  std::vector<double> x, factor, scale, shift, dy;
  double eps;
  std::size_t group_rows;

  template <class T, class W, class S>
  TIGON_TEST_NOINLINE explicit reference(const problem<T, W, S>& p)
      : x(p.x.f64()),
        factor(p.factor(p.v.opt.offset)),
        scale(p.scale.f64()),
        shift(p.v.shifted ? p.shift.f64() : std::vector<double>(scale.size())),
        dy(p.dy.f64()),
        eps(p.v.opt.eps),
        group_rows(std::max<std::size_t>(p.x.rows() / std::max<std::size_t>(p.groups, 1), 1)) {}

  std::vector<double> y() const { return modulated(x, factor, scale, shift, eps, group_rows); }
  TIGON_TEST_NOINLINE std::vector<double> dx(const std::vector<std::size_t>& at) const {
    return complex_step([this](const auto& z) { return loss(z, factor, scale); }, x, at);
  }
  TIGON_TEST_NOINLINE std::vector<double> dw(const std::vector<std::size_t>& at) const {
    return complex_step([this](const auto& z) { return loss(x, z, scale); }, factor, at);
  }
  TIGON_TEST_NOINLINE std::vector<double> dscale(const std::vector<std::size_t>& at) const {
    return complex_step([this](const auto& z) { return loss(x, factor, z); }, scale, at);
  }
  TIGON_TEST_NOINLINE std::vector<double> dshift() const {
    std::vector<double> out(shift.size());
    for (std::size_t k = 0, n = factor.size(); k < dy.size(); ++k) out[k / n / group_rows * n + k % n] += dy[k];
    return out;
  }

 private:
  template <class X, class F, class S>
  auto loss(const std::vector<X>& xs, const std::vector<F>& fs, const std::vector<S>& ss) const {
    const auto ys = modulated(xs, fs, ss, shift, eps, group_rows);
    decltype(X() * F() * S()) sum = 0;
    for (std::size_t k = 0; k < dy.size(); ++k) sum += dy[k] * ys[k];
    return sum;
  }
};

template <class On>
class modulated_rms_norm : public testing::Test {};
TYPED_TEST_SUITE(modulated_rms_norm, every_pair, names);

template <class B, class T>
void check(shape of, const variant& v) {
  const reference wanted{problem<T>(of, v)};
  const auto at_x = probes(of.rows * of.cols, 16), at_w = probes(v.affine ? of.cols : 0, 16),
             at_scale = probes(wanted.scale.size(), 16);
  const auto y = wanted.y(), dx = wanted.dx(at_x), dw = wanted.dw(at_w), dscale = wanted.dscale(at_scale);
  for (const guard side : both_guards) {
    SCOPED_TRACE(testing::Message() << of << ", " << v.name << ", " << side);
    problem<T> p(of, v, side);
    p.template both_ways<B>();
    EXPECT_TRUE(close(p.y.f64(), y, forward_bound.of<T>(), {.may_be_empty = of.rows == 0}));
    // In a row of one column the terms of dx cancel but for eps. There is nothing wider than f64 to make it in, and
    // what is left is too small for the digits of f16.
    const double terms = of.cols > 1                       ? 0
                         : std::same_as<T, double>         ? p.dx_terms(v.opt.offset)
                         : std::same_as<T, tigon::float16> ? 0x1p-14
                                                           : 0;
    EXPECT_TRUE(
        close(pick(p.dx.f64(), at_x), dx, gradient_bound.of<T>(), {.scale = terms, .may_be_empty = of.rows == 0}));
    EXPECT_TRUE(close(pick(p.dw.f64(), at_w), dw, gradient_bound.of<T>(), {.may_be_empty = !v.affine}));
    EXPECT_TRUE(close(pick(p.dscale.f64(), at_scale), dscale, gradient_bound.of<T>(), {.may_be_empty = p.groups == 0}));
    if (v.shifted) {
      EXPECT_TRUE(close(p.dshift.f64(), wanted.dshift(), gradient_bound.of<T>(), {.may_be_empty = p.groups == 0}));
    }
    EXPECT_TRUE(p.padding_intact());
  }
}

TYPED_TEST(modulated_rms_norm, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  auto shapes = row_shapes<B, T>();
  shapes.insert(shapes.end(), {{3, 2}, {5, 8, 1}, {3, 9}});  // few columns: terms of dx that nearly cancel
  for (const shape s : shapes)
    for (const variant& v : variants) check<B, T>({v.opt.group_rows == 2 ? 2 * s.rows : s.rows, s.cols, s.padding}, v);
  variant sequences = variants[3];
  sequences.opt.group_rows = 40;
  for (const std::size_t cols : {5u, 37u}) {  // so many groups that they are tasks, of one partial row and of two
    check<B, T>({80, cols}, variants[3]);
    check<B, T>({640, cols}, sequences);
  }
}

TYPED_TEST(modulated_rms_norm, casting_decides_where_is_rounded) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  if (sizeof(T) != 2) return;  // rounding to the type of the sums is none
  for (const variant& v : variants) {
    SCOPED_TRACE(v.name);
    problem<T> p({2, 4 * lanes<B, T> + 3}, v);
    p.template both_ways<B>();
    for (std::size_t i = 0; i < 2; ++i)
      for (std::size_t j = 0; j < p.x.cols(); ++j) {
        A normalised = static_cast<A>(p.x(i, j)) * p.rstd[i];
        if (v.affine && v.opt.casting == casting::llama) normalised = static_cast<A>(static_cast<T>(normalised));
        const std::size_t group = v.by_row ? i : 0;
        const A f = static_cast<A>(p.factor(v.opt.offset)[j]), s = static_cast<A>(p.scale(group, j)) + A(1),
                t = v.shifted ? static_cast<A>(p.shift(group, j)) : A(0);
        const A y = v.by_row ? std::fma(normalised * f, s, t) : std::fma(normalised, s * f, t);
        ASSERT_EQ(to_f64(p.y(i, j)), to_f64(static_cast<T>(y))) << i << ", " << j;
        if (v.by_row) {
          ASSERT_EQ(to_f64(p.dscale(i, j)), to_f64(static_cast<T>(static_cast<A>(p.dy(i, j)) * (normalised * f))));
        }
      }
  }
}

TYPED_TEST(modulated_rms_norm, dx_may_be_dy_or_x) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants)
    for (const std::size_t cols : {std::size_t{5}, 4 * lanes<B, T> + 3}) {
      SCOPED_TRACE(testing::Message() << cols << " columns, " << v.name);
      const shape of{4, cols, 2};
      problem<T> apart(of, v), over_dy(of, v), over_x(of, v);
      for (problem<T>* p : {&apart, &over_dy, &over_x}) p->template forward<B>();
      apart.template backward<B>(apart.dx.view());
      over_dy.template backward<B>(over_dy.dy.view());
      over_x.template backward<B>(over_x.x.view());
      EXPECT_EQ(bits_of(over_dy.dy), bits_of(apart.dx));
      EXPECT_EQ(bits_of(over_x.x), bits_of(apart.dx));
      EXPECT_EQ(over_dy.gradients(), apart.gradients());
      EXPECT_EQ(over_x.gradients(), apart.gradients());
    }
}

TYPED_TEST(modulated_rms_norm, accumulates_where_asked) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const auto sum = [](std::vector<double> a, const std::vector<double>& b) {
    for (std::size_t k = 0; k < a.size(); ++k) a[k] += b[k];
    return a;
  };
  for (const variant& v : variants)
    for (const std::size_t rows : {0u, 4u})
      for (const bool only_dw : {true, false}) {
        SCOPED_TRACE(testing::Message() << rows << " rows, " << v.name << (only_dw ? ", dw" : ", dscale and dshift"));
        problem<T> once({rows, 37}, v), added({rows, 37}, v);
        once.template both_ways<B>();
        (only_dw ? added.v.opt.dw : added.v.opt.dscale) = tigon::gradient::accumulate;
        added.dw.assign(normal_values(added.dw.size(), 10));
        added.dscale.assign(normal_values(added.groups * 37, 11));
        if (v.shifted) added.dshift.assign(normal_values(added.groups * 37, 12));
        const auto dw = added.dw.f64(), dscale = added.dscale.f64(), dshift = added.dshift.f64();
        added.template both_ways<B>();
        const bool none = added.groups == 0;
        const auto same = [&](const auto& got, const auto& before, const auto& share, bool adds, bool may_be_empty) {
          // `once` is rounded too.
          return close(got, adds ? sum(before, share) : share, 2 * gradient_bound.of<T>(),
                       {.may_be_empty = may_be_empty});
        };
        EXPECT_TRUE(same(added.dw.f64(), dw, once.dw.f64(), only_dw, !v.affine));
        EXPECT_TRUE(same(added.dscale.f64(), dscale, once.dscale.f64(), !only_dw, none));
        EXPECT_TRUE(same(added.dshift.f64(), dshift, once.dshift.f64(), !only_dw, none || !v.shifted));
      }
}

TYPED_TEST(modulated_rms_norm, any_nan_in_rstd_stays_one) {
  for (const variant& v : variants)
    if (v.affine) check_norm_keeps_any_nan<problem<typename TypeParam::element>, typename TypeParam::backend>(v);
}

TYPED_TEST(modulated_rms_norm, rows_of_the_range_of_the_type) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t cols : {5u, 1000u})
    for (variant v : variants) {
      SCOPED_TRACE(testing::Message() << cols << " columns, " << v.name);
      v.opt.eps = 0;
      check_norm_over_the_range<B, T>(
          [=] {
            return problem<T>({6, cols}, v);
          },
          forward_bound.of<T>(), gradient_bound.of<T>());
    }
}

TYPED_TEST(modulated_rms_norm, nan_and_infinity_stay_in_their_rows) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t n = lanes<B, T>;
  const shape of{4, 2 * n + 3};
  for (const variant& v : variants) {
    problem<T> clean(of, v);
    clean.template both_ways<B>();
    for (const std::size_t column : {std::size_t{0}, n, of.cols - 1})
      for (const double bad : {nan, infinity}) {
        SCOPED_TRACE(testing::Message() << bad << " in column " << column << ", " << v.name);
        problem<T> p(of, v);
        p.x(1, column) = from_f64<T>(bad);
        p.template both_ways<B>();
        auto y = clean.y.f64(), dx = clean.dx.f64();
        for (std::size_t j = 0; j < of.cols; ++j) {
          const bool lost = std::isnan(bad) || j == column;  // an infinite mean square scales the rest of the row to 0
          y[of.cols + j] = lost ? nan : v.shifted ? to_f64(p.shift(v.by_row ? 1 : 0, j)) : 0;
          dx[of.cols + j] = nan;
        }
        EXPECT_TRUE(close(p.y.f64(), y, 0));
        EXPECT_TRUE(close(p.dx.f64(), dx, 0));
        EXPECT_TRUE(std::isnan(to_f64(p.dscale(v.by_row ? 1 : 0, column))));
        EXPECT_EQ(bits_of(p.dshift), bits_of(clean.dshift));
      }
  }
}

TYPED_TEST(modulated_rms_norm, large_outputs_have_the_bits_of_small_ones) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const auto& [which, lines] : {std::pair(0u, false), {0u, true}, {1u, false}, {1u, true}, {4u, false}}) {
    // rows begin at cache lines, or not
    const shape of{B::row.stream_bytes / (1000 * sizeof(T)) + 2, 1001, lines ? 23u : 4u};
    problem<T> p(of, variants[which], lines ? guard::before : guard::behind);
    problem<T> small({3, of.cols, 4}, variants[which]);
    p.template both_ways<B>();
    EXPECT_TRUE(p.padding_intact());
    const bool by_row = p.v.by_row;
    for (const std::size_t first : {std::size_t{0}, of.rows - 3}) {
      const auto part = [&](auto& m) { return m.view().rows_from(first, 3); };
      const auto scale = by_row ? part(p.scale) : p.scale.view();
      const auto shift = p.v.shifted ? by_row ? part(p.shift) : p.shift.view() : tigon::matrix_view<T>{};
      tigon::modulated_rms_norm_forward<B>(part(p.x), p.w, scale, shift, small.y.view(), small.rstd, p.v.opt);
      tigon::modulated_rms_norm_backward<B>(
          part(p.dy), part(p.x), p.w, scale, small.rstd,
          tigon::modulated_rms_norm_gradients{small.dx.view(), small.dw, small.dscale.view(), small.dshift_view()},
          p.v.opt);
      for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t j = 0; j < of.cols; ++j) {
          ASSERT_EQ(to_f64(p.y(first + i, j)), to_f64(small.y(i, j))) << "row " << first + i << ", column " << j;
          ASSERT_EQ(to_f64(p.dx(first + i, j)), to_f64(small.dx(i, j))) << "row " << first + i << ", column " << j;
          if (!by_row) continue;
          ASSERT_EQ(to_f64(p.dscale(first + i, j)), to_f64(small.dscale(i, j))) << first + i << ", column " << j;
          if (p.v.shifted) {
            ASSERT_EQ(to_f64(p.dshift(first + i, j)), to_f64(small.dshift(i, j))) << first + i << ", column " << j;
          }
        }
    }
  }
}

TYPED_TEST(modulated_rms_norm, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  struct kind {
    std::size_t rows, group_rows, cols;
  };
  // Twice so many groups that they are tasks: 95 and 16.
  for (const auto [rows, group_rows, cols] :
       {kind{190, 1, 1100}, kind{190, 2, 1100}, kind{190, 38, 1100}, kind{190, 190, 1100}, kind{640, 40, 70}}) {
    variant v = variants[4];
    v.opt.group_rows = group_rows;
    problem<T> p({rows, cols}, v);
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      p.y.clear(), p.dx.clear(), p.dw.clear(), p.rstd.clear(), p.dscale.clear(), p.dshift.clear();
      p.template both_ways<B>(ctx);
      return bits_of(p.y, p.rstd, p.dx, p.dw, p.dscale, p.dshift);
    })) << group_rows;
  }
}

/// At the largest rstd whose products are made as they are.
TEST(modulated_rms_norm_range, a_row_times_a_power_of_two_has_dx_divided_by_it) {
  variant v = variants[0];
  v.opt.eps = 0;
  problem<float> one({3, 37}, v), small({3, 37}, v);
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < 37; ++j)
      one.x(i, j) = j % 3 == 0 ? -1.0f : 1.0f, small.x(i, j) = one.x(i, j) * 0x1p-24f;
  one.both_ways<tigon::default_backend>(), small.both_ways<tigon::default_backend>();
  ASSERT_EQ(small.rstd[0], 0x1p24f);
  EXPECT_EQ(bits_of(small.y), bits_of(one.y));
  EXPECT_EQ(small.gradients(), one.gradients());
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < 37; ++j) EXPECT_EQ(small.dx(i, j), one.dx(i, j) * 0x1p24f) << i << ", " << j;
}

TEST(modulated_rms_norm_mixed, parameters_keep_their_own_types) {
  for (const variant& v : {variants[0], variants[3]}) {
    problem<bfloat16, float, float> p({6, 67}, v);
    p.both_ways<tigon::default_backend>();
    const reference wanted(p);
    EXPECT_TRUE(close(p.y.f64(), wanted.y(), forward_bound.bf16));
    EXPECT_TRUE(close(p.dw.f64(), wanted.dw(probes(67)), gradient_bound.bf16));
    EXPECT_TRUE(close(p.dshift.f64(), wanted.dshift(), gradient_bound.f32));
    problem<float, bfloat16, tigon::float16> q({6, 67}, v);
    q.both_ways<tigon::default_backend>();
    const reference of_q(q);
    const auto at = probes(q.groups * 67);
    EXPECT_TRUE(close(q.y.f64(), of_q.y(), forward_bound.f32));
    EXPECT_TRUE(close(pick(q.dscale.f64(), at), of_q.dscale(at), gradient_bound.f16));
  }
}

template <class T>
void check_rms_norm() {
  for (const std::size_t k : {1u, 3u, 5u}) {  // by row, pairs, all
    variant v = variants[k];
    v.shifted = false;
    problem<T> p({4, 67}, v);
    p.scale.assign(std::vector<double>(p.groups * 67));
    p.template forward<tigon::default_backend>();
    guarded_matrix<T> y(4, 67);
    guarded<accumulator_t<T>> rstd(4);
    const tigon::rms_norm_options opt{.eps = v.opt.eps, .offset = v.opt.offset, .casting = v.opt.casting};
    if (v.affine)
      tigon::rms_norm_forward(p.x, p.w, y.view(), rstd, opt);
    else
      tigon::rms_norm_forward(p.x, absent, y.view(), rstd, opt);
    EXPECT_EQ(p.y.f64(), y.f64()) << v.name;  // not of zeros the signs
    EXPECT_EQ(bits_of(p.rstd), bits_of(rstd)) << v.name;
  }
}
TEST(modulated_rms_norm_mixed, without_a_scale_is_rms_norm) { check_rms_norm<float>(), check_rms_norm<bfloat16>(); }

TEST(modulated_rms_norm_mixed, rows_may_be_wide) {
  const auto at = probes(2 * 70001, 8), at_w = probes(70001, 8);
  for (const variant& v : {variants[0], variants[4]}) {
    problem<float> p({2, 70001}, v);
    p.both_ways<tigon::default_backend>();
    const reference wanted(p);
    EXPECT_TRUE(close(p.y.f64(), wanted.y(), forward_bound.f32));
    EXPECT_TRUE(close(pick(p.dx.f64(), at), wanted.dx(at), gradient_bound.f32));
    EXPECT_TRUE(close(pick(p.dw.f64(), at_w), wanted.dw(at_w), gradient_bound.f32));
  }
}

/// The doors, which are the same for every backend: refused before the first write.
class modulated_rms_norm_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;
  using floats = std::span<float>;
  using options = tigon::modulated_rms_norm_options;
  static constexpr options pairs{.group_rows = 2};

  modulated_rms_norm_doors() { all.assign(std::vector<double>(96, 1.0)); }
  void forward(view x, floats w, view scale, view shift, view y, floats rstd, tigon::error_code code,
               const std::string& part, options opt = pairs) {
    EXPECT_TRUE(
        refuses([&] { tigon::modulated_rms_norm_forward(x, std::span<const float>(w), scale, shift, y, rstd, opt); },
                code, "modulated_rms_norm_forward: " + part, p.y, p.rstd, all));
  }
  void backward(view dy, view x, floats w, view scale, floats rstd, view dx, floats dw, view dscale, view dshift,
                tigon::error_code code, const std::string& part, options opt = pairs) {
    EXPECT_TRUE(refuses(
        [&] {
          tigon::modulated_rms_norm_backward(dy, x, std::span<const float>(w), scale, rstd,
                                             tigon::modulated_rms_norm_gradients{dx, dw, dscale, dshift}, opt);
        },
        code, "modulated_rms_norm_backward: " + part, p.dx, p.dw, p.dscale, p.dshift, all));
  }

  problem<float> p{{6, 8, 2}, variants[3]};
  guarded<float> all = guarded<float>(96);
  const view x = p.x.view(), y = p.y.view(), dy = p.dy.view(), dx = p.dx.view(), scale = p.scale.view(),
             shift = p.shift.view(), dscale = p.dscale.view(), dshift = p.dshift.view(), front{all.data(), 6, 8},
             shifted{all.data() + 8, 6, 8}, three{all.data(), 3, 8};
  const floats w{p.w}, dw{p.dw}, rstd{p.rstd}, row = floats(all).first(8), six = row.first(6);
};

TEST_F(modulated_rms_norm_doors, refuse_a_scale_whose_rows_are_in_doubt) {
  using enum tigon::error_code;
  // Two sequences of three tokens: three rows of scale are not one for each of the sequences.
  forward(x, w, scale, shift, y, rstd, shape, "scale is 3 x 8; expected 2 x 8", {.group_rows = 3});
  backward(dy, x, w, scale, rstd, dx, dw, dscale, dshift, shape, "scale is 3 x 8; expected 2 x 8", {.group_rows = 3});
  // Nor are they anything where nobody says how many rows share one.
  const std::string doubt = "scale is of other than 1 row or a row for every row of x; expected option group_rows";
  forward(x, w, scale, shift, y, rstd, shape, doubt, {});
  backward(dy, x, w, scale, rstd, dx, dw, dscale, dshift, shape, doubt, {});
  forward(x, w, {scale.data, 0, 8}, shift, y, rstd, shape, doubt, {});
  forward(x, w, scale, shift, y, rstd, shape, "group_rows is no divisor of the rows of x; expected one",
          {.group_rows = 4});
}

TEST_F(modulated_rms_norm_doors, forward_refuses) {
  using enum tigon::error_code;
  forward({x.data, 6, 0, 8}, {}, scale, shift, {y.data, 6, 0, 8}, rstd, shape, "cols is 0; expected at least 1");
  forward({nullptr, 6, 8}, w, scale, shift, y, rstd, shape, "x is a null pointer");
  forward({x.data, 6, 8, 7}, w, scale, shift, y, rstd, stride, "x is of row stride 7");
  forward(x, w, scale, shift, {y.data, 6, 7, 10}, rstd, shape, "y is 6 x 7; expected 6 x 8");
  forward(x, w, scale, shift, {y.data, 6, 8, 7}, rstd, stride, "y is of row stride 7");
  forward(x, w.first(7), scale, shift, y, rstd, shape, "w is of 7 elements; expected 8");
  forward(x, w, {scale.data, 3, 7, 10}, shift, y, rstd, shape, "scale is 3 x 7; expected 3 x 8");
  forward(x, w, {scale.data, 3, 8, 7}, shift, y, rstd, stride, "scale is of row stride 7");
  forward(x, w, {nullptr, 3, 8}, shift, y, rstd, shape, "scale is a null pointer");
  forward(x, w, scale, {shift.data, 2, 8, 10}, y, rstd, shape, "shift is 2 x 8; expected 3 x 8");
  forward(x, w, scale, shift, y, rstd.first(5), shape, "rstd is of 5 elements; expected 6");
  for (const double bad : {-1.0, nan, infinity})
    forward(x, w, scale, shift, y, rstd, argument, "eps is", {.eps = bad, .group_rows = 2});
  forward(x, w, scale, shift, y, rstd, argument, "offset is nan", {.offset = nan, .group_rows = 2});
  forward(front, w, scale, shift, front, rstd, alias, "y overlaps x; expected no common memory");
  forward(x, row, scale, shift, front, rstd, alias, "y overlaps w");
  forward(x, w, three, shift, front, rstd, alias, "y overlaps scale");
  forward(x, w, scale, three, front, rstd, alias, "y overlaps shift");
  forward(front, w, scale, shift, y, six, alias, "rstd overlaps x");
  forward(x, w, scale, shift, front, six, alias, "rstd overlaps y");
  forward(x, row, scale, shift, y, six, alias, "rstd overlaps w");
  forward(x, w, three, shift, y, six, alias, "rstd overlaps scale");
  forward(x, w, scale, three, y, six, alias, "rstd overlaps shift");
}

TEST_F(modulated_rms_norm_doors, backward_refuses_wrong_shapes) {
  using enum tigon::error_code;
  backward(dy, {x.data, 6, 0, 8}, {}, scale, rstd, dx, {}, dscale, dshift, shape, "cols is 0; expected at least 1");
  backward(dy, {x.data, 6, 8, 7}, w, scale, rstd, dx, dw, dscale, dshift, stride, "x is of row stride 7");
  backward({dy.data, 5, 8, 10}, x, w, scale, rstd, dx, dw, dscale, dshift, shape, "dy is 5 x 8; expected 6 x 8");
  backward(dy, x, w, scale, rstd, {dx.data, 6, 7, 10}, dw, dscale, dshift, shape, "dx is 6 x 7; expected 6 x 8");
  backward(dy, x, w.first(7), scale, rstd, dx, dw, dscale, dshift, shape, "w is of 7 elements; expected 8");
  backward(dy, x, w, scale, rstd, dx, dw.first(7), dscale, dshift, shape, "dw is of 7 elements; expected 8");
  backward(dy, x, w, {scale.data, 2, 8, 10}, rstd, dx, dw, dscale, dshift, shape, "scale is 2 x 8; expected 3 x 8");
  backward(dy, x, w, scale, rstd, dx, dw, {dscale.data, 2, 8, 10}, dshift, shape, "dscale is 2 x 8; expected 3 x 8");
  backward(dy, x, w, scale, rstd, dx, dw, {nullptr, 3, 8}, dshift, shape, "dscale is a null pointer");
  backward(dy, x, w, scale, rstd, dx, dw, dscale, {dshift.data, 2, 8, 10}, shape, "dshift is 2 x 8; expected 3 x 8");
  backward(dy, x, w, scale, rstd.first(5), dx, dw, dscale, dshift, shape, "rstd is of 5 elements; expected 6");
  backward(dy, x, w, scale, rstd, dx, dw, dscale, dshift, argument, "eps is -1", {.eps = -1, .group_rows = 2});
  backward(dy, x, w, scale, rstd, dx, dw, dscale, dshift, argument, "offset is nan", {.offset = nan, .group_rows = 2});
}

TEST_F(modulated_rms_norm_doors, backward_refuses_overlaps) {
  using enum tigon::error_code;
  backward(front, x, w, scale, rstd, shifted, dw, dscale, dshift, alias, "dx overlaps dy; expected the same buffer or");
  backward(dy, front, w, scale, rstd, shifted, dw, dscale, dshift, alias, "dx overlaps x; expected the same buffer or");
  backward(dy, x, row, scale, rstd, front, dw, dscale, dshift, alias, "dx overlaps w");
  backward(dy, x, w, three, rstd, front, dw, dscale, dshift, alias, "dx overlaps scale");
  backward(dy, x, w, scale, six, front, dw, dscale, dshift, alias, "dx overlaps rstd");
  struct outputs {
    const char* name;
    floats dw;
    view dscale, dshift;
  };
  for (const outputs& o : {outputs{"dw", row, dscale, dshift}, outputs{"dscale", dw, three, dshift},
                           outputs{"dshift", dw, dscale, three}}) {
    const std::string says = std::string(o.name) + " overlaps ";
    backward(front, x, w, scale, rstd, dx, o.dw, o.dscale, o.dshift, alias, says + "dy");
    backward(dy, front, w, scale, rstd, dx, o.dw, o.dscale, o.dshift, alias, says + "x");
    backward(dy, x, w, scale, rstd, front, o.dw, o.dscale, o.dshift, alias, says + "dx");
    backward(dy, x, row, scale, rstd, dx, o.dw, o.dscale, o.dshift, alias, says + "w");
    backward(dy, x, w, three, rstd, dx, o.dw, o.dscale, o.dshift, alias, says + "scale");
    backward(dy, x, w, scale, six, dx, o.dw, o.dscale, o.dshift, alias, says + "rstd");
  }
  backward(dy, x, w, scale, rstd, dx, row, three, dshift, alias, "dw overlaps dscale");
  backward(dy, x, w, scale, rstd, dx, row, dscale, three, alias, "dw overlaps dshift");
  backward(dy, x, w, scale, rstd, dx, dw, three, three, alias, "dscale overlaps dshift");
}

TEST_F(modulated_rms_norm_doors, need_the_workspace_that_they_name) {
  struct kind {
    std::size_t rows, groups, cols;
  };
  for (const kind k : {kind{6, 1, 8}, kind{6, 6, 9}, kind{6, 3, 37}, kind{80, 40, 37}, kind{640, 16, 37},
                       kind{18, 9, 9}, kind{6400, 16, 8}, kind{6, 6, 8}})
    for (const std::size_t threads : {1u, 3u}) {
      SCOPED_TRACE(testing::Message() << k.rows << ", " << k.groups << ", " << k.cols);
      variant v = variants[0];
      v.by_row = false, v.opt.group_rows = k.rows / k.groups;
      problem<float> q({k.rows, k.cols}, v);
      std::size_t bytes = 0;
      with_workspace_of(
          0,
          [&](context& ctx) {
            bytes = tigon::modulated_rms_norm_workspace<tigon::default_backend, float>(k.rows, k.cols, k.groups, ctx);
          },
          threads);
      EXPECT_TIGON_ERROR(with_workspace_of(
                             bytes - 1, [&](context& ctx) { q.forward<tigon::default_backend>(ctx); }, threads),
                         workspace, "modulated_rms_norm_forward: workspace is of", q.y, q.rstd);
      q.forward<tigon::default_backend>();
      const auto call = [&](context& ctx) { q.backward<tigon::default_backend>(q.dx.view(), ctx); };
      EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call, threads), workspace,
                         "modulated_rms_norm_backward: workspace is of", q.dx, q.dw, q.dscale, q.dshift);
      with_workspace_of(
          bytes, [&](context& ctx) { q.both_ways<tigon::default_backend>(ctx); }, threads);
      EXPECT_FALSE(q.dx.untouched());
    }
}

}  // namespace
