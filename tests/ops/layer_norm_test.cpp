// The contract of include/tigon/ops/layer_norm.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <tigon/ops/layer_norm.hpp>

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
constexpr by_type forward_bound{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 2e-15};
constexpr by_type gradient_bound{.f32 = 2e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 1e-14};

struct variant {
  const char* name;
  bool weight, bias;
};
const variant variants[] = {
    {"affine", true, true}, {"weight", true, false}, {"bias", false, true}, {"plain", false, false}};

template <class T, class W = T>
struct problem : norm_buffers<T, W> {
  using norm_buffers<T, W>::x, norm_buffers<T, W>::dy, norm_buffers<T, W>::y, norm_buffers<T, W>::dx;
  using norm_buffers<T, W>::w, norm_buffers<T, W>::dw, norm_buffers<T, W>::rstd;
  variant v;
  tigon::layer_norm_options opt{.eps = eps};
  guarded<W> b, db;
  guarded<accumulator_t<T>> mean;

  TIGON_TEST_NOINLINE explicit problem(shape s, variant of = variants[0], guard side = guard::behind)
      : norm_buffers<T, W>(s, of.weight, side),
        v(of),
        b(random_vector<W>(v.bias ? s.cols : 0, 4, side)),
        db(b.size(), side),
        mean(s.rows, side) {}

  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    const auto with = [&](const auto& weight, const auto& bias) {
      tigon::layer_norm_forward<B>(x, weight, bias, y.view(), mean, rstd, opt, ctx);
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
      tigon::layer_norm_backward<B>(dy, x, weight, mean, rstd, tigon::norm_gradients{to, dweight, dbias}, opt, ctx);
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

  std::vector<guarded<W>*> gradients() {
    std::vector<guarded<W>*> out;
    if (v.weight) out.push_back(&dw);
    if (v.bias) out.push_back(&db);
    return out;
  }
  void accumulate() { opt.dparams = tigon::gradient::accumulate; }
  TIGON_TEST_NOINLINE norm_reference wanted() const { return {x.f64(), this->factor(), dy.f64(), eps, origin::mean}; }
  TIGON_TEST_NOINLINE std::vector<double> y_wanted() const {
    auto out = wanted().y();
    for (std::size_t k = 0; v.bias && k < out.size(); ++k) out[k] += to_f64(b[k % b.size()]);
    return out;
  }
  TIGON_TEST_NOINLINE std::vector<double> db_wanted() const {
    std::vector<double> out(x.cols());
    for (std::size_t i = 0; i < x.rows(); ++i)
      for (std::size_t j = 0; j < x.cols(); ++j) out[j] += to_f64(dy(i, j));
    return out;
  }
};

template <class On>
class layer_norm : public testing::Test {};
TYPED_TEST_SUITE(layer_norm, every_pair, names);

TYPED_TEST(layer_norm, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : row_shapes<B, T>())
    for (const variant& v : variants) {
      const auto at_x = probes(s.rows * s.cols), at_w = probes(v.weight ? s.cols : 0);
      const problem<T> given(s, v);
      const norm_reference wanted = given.wanted();
      const auto y = given.y_wanted(), dx = wanted.dx(at_x), dw = wanted.dfactor(at_w), db = given.db_wanted();
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", " << v.name << ", " << side);
        problem<T> p(s, v, side);
        p.template both_ways<B>();
        EXPECT_TRUE(close(p.y.f64(), y, forward_bound.of<T>(), {.scale = 1, .may_be_empty = s.rows == 0}));
        const double terms = s.cols < 3 ? p.dx_terms() : 0;  // they cancel
        EXPECT_TRUE(
            close(pick(p.dx.f64(), at_x), dx, gradient_bound.of<T>(), {.scale = terms, .may_be_empty = s.rows == 0}));
        EXPECT_TRUE(close(pick(p.dw.f64(), at_w), dw, gradient_bound.of<T>(), {.may_be_empty = !v.weight}));
        if (v.bias) {
          EXPECT_TRUE(close(p.db.f64(), db, gradient_bound.of<T>()));
        }
        EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
      }
    }
}

TYPED_TEST(layer_norm, centres_before_it_squares) {
  using B = typename TypeParam::backend;
  using A = accumulator_t<typename TypeParam::element>;
  // Far from zero the mean of squares has no digits left for the variance.
  problem<A> p({3, 1000});
  p.x.assign(normal_values(3000, 1, {.mean = 3000, .deviation = 1}));
  p.template forward<B>();
  EXPECT_TRUE(close(p.y.f64(), p.y_wanted(), std::same_as<A, float> ? forward_bound.f32 : 1e-12));
}

TYPED_TEST(layer_norm, squares_of_a_large_mean_may_overflow) {
  using B = typename TypeParam::backend;
  using A = accumulator_t<typename TypeParam::element>;
  const A large = std::ldexp(A(1), std::numeric_limits<A>::max_exponent / 2 + 2);
  problem<A> p({2, 256});
  for (std::size_t j = 0; j < 256; ++j) p.x(0, j) = large, p.x(1, j) = j % 2 == 0 ? large : 2 * large;
  p.template forward<B>();
  for (std::size_t j = 0; j < 256; ++j) ASSERT_EQ(p.y(0, j), p.b[j]);
  EXPECT_EQ(p.mean[0], large);
  EXPECT_NEAR(to_f64(p.rstd[0]) * std::sqrt(p.opt.eps), 1, 1e-6) << "a row without variance";
  EXPECT_EQ(p.mean[1], large * A(1.5));
}

TYPED_TEST(layer_norm, any_mean_beside_the_deviation) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t cols : {3u, 16u, 17u, 64u, 1000u}) {
    SCOPED_TRACE(testing::Message() << cols << " columns");
    check_norm_forgets_the_mean<B, T>(
        [=] {
          return problem<T>({6, cols});
        },
        forward_bound.of<T>(), gradient_bound.of<T>());
  }
}

TYPED_TEST(layer_norm, a_row_of_one_number_far_from_zero_is_the_bias) {
  using B = typename TypeParam::backend;
  using A = accumulator_t<typename TypeParam::element>;
  problem<A> p({3, 1000});
  for (std::size_t j = 0; j < 1000; ++j) p.x(0, j) = A(1234567), p.x(1, j) = A(-0.1), p.x(2, j) = A(1e38);
  p.opt.eps = 1e-12;
  p.template forward<B>();
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < 1000; ++j) ASSERT_EQ(p.y(i, j), p.b[j]) << i << ", " << j;
}

TYPED_TEST(layer_norm, rows_of_the_range_of_the_type) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t cols : {5u, 1000u}) {
    SCOPED_TRACE(testing::Message() << cols << " columns");
    const auto make = [=] {
      problem<T> p({6, cols});
      p.opt.eps = 0;
      return p;
    };
    check_norm_over_the_range<B, T>(make, forward_bound.of<T>(), gradient_bound.of<T>());
  }
}

TYPED_TEST(layer_norm, any_mean_beside_the_deviation_of_large_and_small_rows) {
  using B = typename TypeParam::backend;
  using A = accumulator_t<typename TypeParam::element>;
  problem<A> p({4, 1000});
  p.opt.eps = 0;
  const int moved = std::numeric_limits<A>::digits / 2, most = std::numeric_limits<A>::max_exponent * 5 / 8;
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < 1000; ++j)
      p.x(i, j) = std::round(8 * p.x(i, j)) / 8 + std::ldexp(A(i < 2 ? 1 : -1), moved);
  p.template both_ways<B>();
  const auto y = p.y.f64(), dx = p.dx.f64(), dw = p.dw.f64();
  for (const int exponent : {-most, 2 * most}) {  // from the other end of the range
    scale_every_other(p.x, exponent);
    p.template both_ways<B>();
    EXPECT_TRUE(close(p.y.f64(), y, forward_bound.of<A>()));
    scale_every_other(p.dx, exponent < 0 ? -most : most);
    EXPECT_TRUE(close(p.dx.f64(), dx, gradient_bound.of<A>()));
    EXPECT_TRUE(close(p.dw.f64(), dw, gradient_bound.of<A>()));
  }
}

TYPED_TEST(layer_norm, differences_from_the_mean_may_overflow) {
  using B = typename TypeParam::backend;
  using A = accumulator_t<typename TypeParam::element>;
  const auto make = [] {
    problem<A> p({2, 64});
    p.opt.eps = 0;
    for (std::size_t j = 0; j < 64; ++j) p.x(0, j) = p.x(1, j) = j % 4 == 0 ? A(-1.75) : A(1.75);
    return p;
  };
  problem<A> near = make(), far = make();
  scale_every_other(far.x, std::numeric_limits<A>::max_exponent - 1);
  near.template both_ways<B>(), far.template both_ways<B>();
  EXPECT_TRUE(close(far.y.f64(), near.y.f64(), forward_bound.of<A>()));
  EXPECT_TRUE(close(far.dw.f64(), near.dw.f64(), gradient_bound.of<A>()));
}

TYPED_TEST(layer_norm, first_columns_may_be_far_from_the_others) {
  using B = typename TypeParam::backend;
  using A = accumulator_t<typename TypeParam::element>;
  // A mean that is estimated from the first columns is no use here.
  problem<A> p({2, 20000});
  p.x.assign(normal_values(40000, 1, {.mean = 0, .deviation = 1}));
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t j = 0; j < 16; ++j) p.x(i, j) = A(1000);
  p.template forward<B>();
  EXPECT_TRUE(
      close(p.y.f64(), p.y_wanted(), 2 * forward_bound.of<A>()));  // the largest are 35 times the root mean square
}

TEST(layer_norm_options, have_the_eps_of_the_contract) {
  problem<float> p({1, 8});
  for (std::size_t j = 0; j < 8; ++j) p.x(0, j) = 3;
  p.opt = {};
  p.forward<tigon::default_backend>();
  EXPECT_NEAR(p.rstd[0], 1000, 1e-3);
}

TYPED_TEST(layer_norm, dx_may_be_dy_or_x) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants) {
    SCOPED_TRACE(v.name);
    check_norm_in_place<problem<T>, B>(shape{3, 4 * lanes<B, T> + 3, 2}, v);
  }
}

TYPED_TEST(layer_norm, accumulates_when_asked) {
  using T = typename TypeParam::element;
  check_norm_accumulates<problem<T>, typename TypeParam::backend>(gradient_bound.of<T>());
}

TYPED_TEST(layer_norm, nan_and_infinity_stay_in_their_rows) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t n = lanes<B, T>;
  const shape s{4, 2 * n + 3};
  problem<T> clean(s);
  clean.template both_ways<B>();
  for (const std::size_t column : {std::size_t{0}, n - 1, n, s.cols - 1})  // first, edges of a vector, tail
    for (const double bad : {nan, infinity, -infinity}) {
      SCOPED_TRACE(testing::Message() << bad << " in column " << column);
      problem<T> p(s);
      p.x(1, column) = from_f64<T>(bad);
      p.template both_ways<B>();
      auto y = clean.y.f64(), dx = clean.dx.f64();
      std::fill_n(y.begin() + static_cast<std::ptrdiff_t>(s.cols), s.cols, nan);
      std::fill_n(dx.begin() + static_cast<std::ptrdiff_t>(s.cols), s.cols, nan);
      EXPECT_TRUE(close(p.y.f64(), y, 0));
      EXPECT_TRUE(close(p.dx.f64(), dx, 0));
      EXPECT_EQ(bits_of(p.db), bits_of(clean.db));
    }
}

TYPED_TEST(layer_norm, large_outputs_have_the_bits_of_small_ones) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const shape s{B::row.stream_bytes / (1000 * sizeof(T)) + 2, 1001, 4};
  problem<T> p(s), small({7, s.cols, s.padding});
  p.template both_ways<B>();
  EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact());
  for (const std::size_t first : {std::size_t{0}, s.rows - 7}) {
    const auto part = [&](auto& m) { return m.view().rows_from(first, 7); };
    const auto of_rows = [&](auto& numbers) { return std::span(numbers).subspan(first, 7); };
    tigon::layer_norm_forward<B>(part(p.x), p.w, p.b, small.y.view(), small.mean, small.rstd, p.opt);
    tigon::layer_norm_backward<B>(part(p.dy), part(p.x), p.w, of_rows(p.mean), of_rows(p.rstd),
                                  tigon::norm_gradients{small.dx.view(), small.dw, small.db}, p.opt);
    for (std::size_t i = 0; i < 7; ++i)
      for (std::size_t j = 0; j < s.cols; ++j) {
        ASSERT_EQ(to_f64(p.y(first + i, j)), to_f64(small.y(i, j))) << "row " << first + i << ", column " << j;
        ASSERT_EQ(to_f64(p.dx(first + i, j)), to_f64(small.dx(i, j))) << "row " << first + i << ", column " << j;
      }
  }
}

TYPED_TEST(layer_norm, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({190, 2049});  // a dozen tasks of rows, three of columns
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.y.clear(), p.dx.clear(), p.dw.clear(), p.db.clear(), p.mean.clear(), p.rstd.clear();
    p.template both_ways<B>(ctx);
    return bits_of(p.y, p.mean, p.rstd, p.dx, p.dw, p.db);
  }));
}

TEST(layer_norm_mixed, parameters_keep_their_own_type) {
  problem<bfloat16, float> p({5, 67});
  p.both_ways<tigon::default_backend>();
  EXPECT_TRUE(close(p.y.f64(), p.y_wanted(), forward_bound.bf16));
  EXPECT_TRUE(close(p.dw.f64(), p.wanted().dfactor(probes(67)), gradient_bound.f32));
  EXPECT_TRUE(close(p.db.f64(), p.db_wanted(), gradient_bound.f32));
}

TEST(layer_norm_mixed, one_gradient_of_two) {
  problem<float> both({5, 67}), one({5, 67}), other({5, 67});
  both.both_ways<tigon::default_backend>(), one.forward<tigon::default_backend>(),
      other.forward<tigon::default_backend>();
  tigon::layer_norm_backward(one.dy, one.x, one.w, one.mean, one.rstd,
                             tigon::norm_gradients{one.dx.view(), one.dw, absent}, one.opt);
  tigon::layer_norm_backward(other.dy, other.x, other.w, other.mean, other.rstd,
                             tigon::norm_gradients{other.dx.view(), absent, other.db}, other.opt);
  EXPECT_EQ(bits_of(one.dx, one.dw), bits_of(both.dx, both.dw));
  EXPECT_EQ(bits_of(other.dx, other.db), bits_of(both.dx, both.db));
}

/// The doors, which are the same for every backend: refused before the first write.
class layer_norm_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;
  using floats = std::span<float>;
  using in_floats = std::span<const float>;

  layer_norm_doors() { p.forward<tigon::default_backend>(), p.y.clear(); }
  void forward(tigon::in_matrix<float> x, view y, in_floats w, in_floats b, floats mean, floats rstd, double e = eps) {
    tigon::layer_norm_forward(x, w, b, y, mean, rstd, {.eps = e});
  }
  void backward(tigon::in_matrix<float> dy, tigon::in_matrix<float> x, in_floats w, in_floats mean, in_floats rstd,
                view dx, floats dw, floats db) {
    tigon::layer_norm_backward(dy, x, w, mean, rstd, tigon::norm_gradients{dx, dw, db});
  }

  problem<float> p{{3, 8, 2}};
  guarded<float> all = guarded<float>(64);
  const view x = p.x.view(), y = p.y.view(), dy = p.dy.view(), dx = p.dx.view();
  const view front{all.data(), 3, 8}, shifted{all.data() + 8, 3, 8};
  const floats w{p.w}, b{p.b}, dw{p.dw}, db{p.db}, mean{p.mean}, rstd{p.rstd};
  const floats row = floats(all).first(8), three = row.first(3);
};

TEST_F(layer_norm_doors, forward_refuses_wrong_shapes_and_numbers) {
  guarded<float> r(3), m(3);
  const auto refuses_shape = [&](view x, view y, floats w, floats b, floats m, floats r, std::string_view part,
                                 tigon::error_code code = tigon::error_code::shape) {
    EXPECT_TRUE(refuses([&] { forward(x, y, w, b, m, r); }, code, part, p.y, p.mean, p.rstd));
  };
  refuses_shape({x.data, 3, 0, 8}, {y.data, 3, 0, 8}, {}, {}, m, r,
                "layer_norm_forward: cols is 0; expected at least 1");
  refuses_shape({x.data, 3, 8, 7}, y, w, b, m, r, "layer_norm_forward: x is of row stride 7",
                tigon::error_code::stride);
  refuses_shape({nullptr, 3, 8, 8}, y, w, b, m, r, "layer_norm_forward: x is a null pointer");
  refuses_shape(x, {y.data, 2, 8, 10}, w, b, m, r, "layer_norm_forward: y is 2 x 8; expected 3 x 8");
  refuses_shape(x, {y.data, 3, 8, 7}, w, b, m, r, "layer_norm_forward: y is of row stride 7",
                tigon::error_code::stride);
  refuses_shape(x, {nullptr, 3, 8, 8}, w, b, m, r, "layer_norm_forward: y is a null pointer");
  refuses_shape(x, y, w.first(7), b, m, r, "layer_norm_forward: w is of 7 elements; expected 8");
  refuses_shape(x, y, w, b.first(7), m, r, "layer_norm_forward: b is of 7 elements; expected 8");
  refuses_shape(x, y, w, b, mean.first(2), r, "layer_norm_forward: mean is of 2 elements; expected 3");
  refuses_shape(x, y, w, b, m, rstd.first(2), "layer_norm_forward: rstd is of 2 elements; expected 3");
  for (const double bad : {-1e-6, nan, infinity})
    EXPECT_TIGON_ERROR(forward(x, y, w, b, m, r, bad), argument, "layer_norm_forward: eps is", p.y, m, r);
}

TEST_F(layer_norm_doors, forward_refuses_overlaps) {
  const auto overlaps = [&](tigon::in_matrix<float> x, view y, floats w, floats b, floats m, floats r,
                            std::string_view part) {
    EXPECT_TRUE(refuses([&] { forward(x, y, w, b, m, r); }, tigon::error_code::alias, part, all, p.y, p.mean, p.rstd));
  };
  overlaps(front, front, w, b, mean, rstd, "layer_norm_forward: y overlaps x");
  overlaps(front, shifted, w, b, mean, rstd, "layer_norm_forward: y overlaps x");
  overlaps(x, front, row, b, mean, rstd, "layer_norm_forward: y overlaps w");
  overlaps(x, front, w, row, mean, rstd, "layer_norm_forward: y overlaps b");
  overlaps(front, y, w, b, three, rstd, "layer_norm_forward: mean overlaps x");
  overlaps(x, front, w, b, three, rstd, "layer_norm_forward: mean overlaps y");
  overlaps(x, y, row, b, three, rstd, "layer_norm_forward: mean overlaps w");
  overlaps(x, y, w, row, three, rstd, "layer_norm_forward: mean overlaps b");
  overlaps(x, y, w, b, mean, mean, "layer_norm_forward: mean overlaps rstd");
  overlaps(front, y, w, b, mean, three, "layer_norm_forward: rstd overlaps x");
  overlaps(x, front, w, b, mean, three, "layer_norm_forward: rstd overlaps y");
  overlaps(x, y, row, b, mean, three, "layer_norm_forward: rstd overlaps w");
  overlaps(x, y, w, row, mean, three, "layer_norm_forward: rstd overlaps b");
}

TEST_F(layer_norm_doors, backward_refuses_wrong_shapes) {
  const auto refuses_shape = [&](view dy, view x, floats w, floats m, floats r, view dx, floats dw, floats db,
                                 std::string_view part, tigon::error_code code = tigon::error_code::shape) {
    EXPECT_TRUE(refuses([&] { backward(dy, x, w, m, r, dx, dw, db); }, code, part, p.dx, p.dw, p.db));
  };
  refuses_shape({dy.data, 3, 0, 8}, {x.data, 3, 0, 8}, {}, mean, rstd, {dx.data, 3, 0, 8}, {}, {},
                "layer_norm_backward: cols is 0; expected at least 1");
  refuses_shape(dy, {x.data, 3, 8, 7}, w, mean, rstd, dx, dw, db, "layer_norm_backward: x is of row stride 7",
                tigon::error_code::stride);
  refuses_shape({dy.data, 2, 8, 10}, x, w, mean, rstd, dx, dw, db, "layer_norm_backward: dy is 2 x 8; expected 3 x 8");
  refuses_shape(dy, x, w, mean, rstd, {dx.data, 3, 7, 10}, dw, db, "layer_norm_backward: dx is 3 x 7; expected 3 x 8");
  refuses_shape(dy, x, w.first(7), mean, rstd, dx, dw, db, "layer_norm_backward: w is of 7 elements; expected 8");
  refuses_shape(dy, x, w, mean, rstd, dx, dw.first(7), db, "layer_norm_backward: dw is of 7 elements; expected 8");
  refuses_shape(dy, x, w, mean, rstd, dx, dw, db.first(7), "layer_norm_backward: db is of 7 elements; expected 8");
  refuses_shape(dy, x, w, mean.first(2), rstd, dx, dw, db, "layer_norm_backward: mean is of 2 elements; expected 3");
  refuses_shape(dy, x, w, mean, rstd.first(2), dx, dw, db, "layer_norm_backward: rstd is of 2 elements; expected 3");
}

TEST_F(layer_norm_doors, backward_refuses_overlaps) {
  const auto overlaps = [&](tigon::in_matrix<float> dy, tigon::in_matrix<float> x, floats w, floats m, floats r,
                            view dx, floats dw, floats db, std::string_view part) {
    EXPECT_TRUE(
        refuses([&] { backward(dy, x, w, m, r, dx, dw, db); }, tigon::error_code::alias, part, all, p.dx, p.dw, p.db));
  };
  overlaps(front, x, w, mean, rstd, shifted, dw, db,
           "layer_norm_backward: dx overlaps dy; expected the same buffer or");
  overlaps(dy, front, w, mean, rstd, shifted, dw, db,
           "layer_norm_backward: dx overlaps x; expected the same buffer or");
  overlaps(dy, x, row, mean, rstd, front, dw, db, "layer_norm_backward: dx overlaps w");
  overlaps(dy, x, w, three, rstd, front, dw, db, "layer_norm_backward: dx overlaps mean");
  overlaps(dy, x, w, mean, three, front, dw, db, "layer_norm_backward: dx overlaps rstd");
  overlaps(dy, x, w, mean, rstd, dx, row, row, "layer_norm_backward: dw overlaps db");
  for (const bool first : {true, false}) {  // dw, then db
    const floats dw_at = first ? row : dw, db_at = first ? db : row;
    const std::string says = first ? "layer_norm_backward: dw overlaps " : "layer_norm_backward: db overlaps ";
    overlaps(front, x, w, mean, rstd, dx, dw_at, db_at, says + "dy");
    overlaps(dy, front, w, mean, rstd, dx, dw_at, db_at, says + "x");
    overlaps(dy, x, row, mean, rstd, dx, dw_at, db_at, says + "w");
    overlaps(dy, x, w, three, rstd, dx, dw_at, db_at, says + "mean");
    overlaps(dy, x, w, mean, three, dx, dw_at, db_at, says + "rstd");
    overlaps(dy, x, w, mean, rstd, front, dw_at, db_at, says + "dx");
  }
}

TEST_F(layer_norm_doors, backward_needs_the_workspace_that_it_names) {
  const std::size_t bytes = tigon::layer_norm_workspace<tigon::default_backend, float>(3, 8);
  const auto call = [&](context& ctx) {
    tigon::layer_norm_backward(dy, x, w, mean, rstd, tigon::norm_gradients{dx, dw, db}, {}, ctx);
  };
  EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call), workspace, "layer_norm_backward: workspace is of", p.dx, p.dw);
  with_workspace_of(bytes, call);
  EXPECT_FALSE(p.dx.untouched());
}

}  // namespace
