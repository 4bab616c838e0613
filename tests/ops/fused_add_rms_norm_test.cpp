// The contract of include/tigon/ops/fused_add_rms_norm.hpp, promise by promise, on every backend.
#include <gtest/gtest.h>

#include <tigon/ops/fused_add_rms_norm.hpp>

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
// twice.
constexpr by_type forward_bound{.f32 = 4e-7, .bf16 = 6e-3, .f16 = 8e-4, .f64 = 2e-15};
constexpr by_type gradient_bound{.f32 = 2e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1e-14};

struct variant {
  const char* name;
  bool affine, sum_is_used;  // ds is given
  tigon::fused_add_rms_norm_options opt;
};
const variant variants[] = {
    {"llama", true, true, {.eps = 1e-5}},
    {"gemma, the sum has no other use", true, false, {.offset = 1, .casting = casting::gemma}},
    {"without a weight", false, true, {.offset = 3, .casting = casting::none}},
};

template <class T, class W = T>
struct problem : norm_buffers<T, W> {
  using norm_buffers<T, W>::x, norm_buffers<T, W>::dy, norm_buffers<T, W>::y, norm_buffers<T, W>::dx;
  using norm_buffers<T, W>::w, norm_buffers<T, W>::dw, norm_buffers<T, W>::rstd;
  variant v;
  guarded_matrix<T> r, s, ds, dr;

  TIGON_TEST_NOINLINE explicit problem(shape of, variant which = variants[0], guard side = guard::behind)
      : norm_buffers<T, W>(of, which.affine, side),
        v(which),
        r(random_matrix<T>(of, 4, side)),
        s(of.rows, of.cols, of.padding, side),
        ds(random_matrix<T>(of, 5, side)),
        dr(of.rows, of.cols, of.padding, side) {}

  template <class B>
  TIGON_TEST_NOINLINE void forward(tigon::matrix_view<T> to_y, tigon::matrix_view<T> to_s,
                                   context& ctx = tigon::default_context()) {
    if (v.affine)
      tigon::fused_add_rms_norm_forward<B>(x, r, w, to_y, to_s, rstd, v.opt, ctx);
    else
      tigon::fused_add_rms_norm_forward<B>(x, r, absent, to_y, to_s, rstd, v.opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::matrix_view<T> to, tigon::matrix_view<T> copy = {},
                                    context& ctx = tigon::default_context()) {
    const tigon::matrix_view<const T> extra = v.sum_is_used ? std::as_const(ds).view() : tigon::matrix_view<const T>{};
    if (v.affine)
      tigon::fused_add_rms_norm_backward<B>(dy, extra, s, w, rstd, tigon::fused_add_rms_norm_gradients{to, dw, copy},
                                            v.opt, ctx);
    else
      tigon::fused_add_rms_norm_backward<B>(dy, extra, s, absent, rstd,
                                            tigon::fused_add_rms_norm_gradients{to, absent, copy}, v.opt, ctx);
  }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(y.view(), s.view(), ctx);
    backward<B>(dx.view(), dr.view(), ctx);
  }

  std::vector<guarded<W>*> gradients() { return v.affine ? std::vector{&dw} : std::vector<guarded<W>*>{}; }
  void accumulate() { v.opt.dw = tigon::gradient::accumulate; }
  TIGON_TEST_NOINLINE std::vector<double> s_wanted() const {
    std::vector<double> out;
    for (std::size_t i = 0; i < x.rows(); ++i)
      for (std::size_t j = 0; j < x.cols(); ++j)
        out.push_back(
            to_f64(static_cast<T>(static_cast<accumulator_t<T>>(x(i, j)) + static_cast<accumulator_t<T>>(r(i, j)))));
    return out;
  }
  /// Of the norm, which is taken of the stored sum; dx has ds besides.
  TIGON_TEST_NOINLINE norm_reference wanted() const {
    return {s_wanted(), norm_buffers<T, W>::factor(v.opt.offset), dy.f64(), v.opt.eps};
  }
  TIGON_TEST_NOINLINE std::vector<double> dx_wanted(const std::vector<std::size_t>& at) const {
    auto out = wanted().dx(at);
    for (std::size_t k = 0; v.sum_is_used && k < at.size(); ++k) out[k] += ds.f64()[at[k]];
    return out;
  }
};

template <class On>
class fused_add_rms_norm : public testing::Test {};
TYPED_TEST_SUITE(fused_add_rms_norm, every_pair, names);

TYPED_TEST(fused_add_rms_norm, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape of : row_shapes<B, T>())
    for (const variant& v : variants) {
      const auto at_x = probes(of.rows * of.cols, 24), at_w = probes(v.affine ? of.cols : 0, 24);
      const problem<T> given(of, v);
      const norm_reference wanted = given.wanted();
      const auto y = wanted.y(), dx = given.dx_wanted(at_x), dw = wanted.dfactor(at_w);
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << of << ", " << v.name << ", " << side);
        problem<T> p(of, v, side);
        p.template both_ways<B>();
        EXPECT_EQ(p.s.f64(), wanted.x);  // exact: one rounding of one addition
        EXPECT_TRUE(close(p.y.f64(), y, forward_bound.of<T>(), {.may_be_empty = of.rows == 0}));
        const double terms = of.cols == 1 ? p.dx_terms(v.opt.offset) : 0;  // they cancel but for eps
        EXPECT_TRUE(
            close(pick(p.dx.f64(), at_x), dx, gradient_bound.of<T>(), {.scale = terms, .may_be_empty = of.rows == 0}));
        EXPECT_TRUE(close(pick(p.dw.f64(), at_w), dw, gradient_bound.of<T>(), {.may_be_empty = !v.affine}));
        EXPECT_EQ(p.dr.f64(), p.dx.f64());
        EXPECT_TRUE(p.y.padding_intact() && p.s.padding_intact() && p.dx.padding_intact() && p.dr.padding_intact());
      }
    }
}

TYPED_TEST(fused_add_rms_norm, has_the_bits_of_an_addition_and_a_norm) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants) {
    problem<T> p({3, 4 * lanes<B, T> + 3}, v);
    p.template forward<B>(p.y.view(), p.s.view());
    guarded_matrix<T> y(3, p.x.cols());
    guarded<accumulator_t<T>> rstd(3);
    if (v.affine)
      tigon::rms_norm_forward<B>(p.s, p.w, y.view(), rstd, v.opt);
    else
      tigon::rms_norm_forward<B>(p.s, absent, y.view(), rstd, v.opt);
    EXPECT_EQ(bits_of(p.y, p.rstd), bits_of(y, rstd)) << v.name;
  }
}

TYPED_TEST(fused_add_rms_norm, results_may_overwrite_inputs) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t cols = 4 * lanes<B, T> + 3;
  for (const std::size_t padding : {std::size_t{2}, 128 - cols % 128}) {  // with the second rows begin at cache lines
    const auto fresh = [=] { return problem<T>({3, cols, padding}, variants[0], guard::before); };
    auto apart = fresh(), p = fresh(), q = fresh(), no_copy = fresh();
    apart.template both_ways<B>();
    p.template forward<B>(p.r.view(), p.x.view());  // y over r, s over x
    EXPECT_EQ(bits_of(p.r, p.x), bits_of(apart.y, apart.s));
    q.template forward<B>(q.x.view(), q.r.view());  // y over x, s over r
    EXPECT_EQ(bits_of(q.x, q.r), bits_of(apart.y, apart.s));
    for (const bool over_dy : {true, false}) {
      auto back = fresh();
      auto& to = over_dy ? back.dy : back.ds;
      back.template forward<B>(back.y.view(), back.s.view());
      back.template backward<B>(to.view(), back.dr.view());
      EXPECT_EQ(bits_of(to, back.dr, back.dw), bits_of(apart.dx, apart.dr, apart.dw)) << over_dy;
    }
    no_copy.template forward<B>(no_copy.y.view(), no_copy.s.view());
    no_copy.template backward<B>(no_copy.dx.view());
    EXPECT_EQ(bits_of(no_copy.dx, no_copy.dw), bits_of(apart.dx, apart.dw));
  }
}

/// The sum's gradient alone: y has no use.
TYPED_TEST(fused_add_rms_norm, without_dy_the_gradient_is_that_of_the_sum) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t count : {0u, 3u}) {
    problem<T> p({count, 4 * lanes<B, T> + 3, 2});
    p.template forward<B>(p.y.view(), p.s.view());
    const auto backward = [&](auto&& w, auto&& dw, tigon::matrix_view<T> dx, tigon::matrix_view<T> dr) {
      tigon::fused_add_rms_norm_backward<B>({}, p.ds, p.s, w, p.rstd, tigon::fused_add_rms_norm_gradients{dx, dw, dr},
                                            p.v.opt);
    };
    backward(p.w, p.dw, p.dx.view(), p.dr.view());
    EXPECT_EQ(p.dx.f64(), p.ds.f64());
    EXPECT_EQ(p.dr.f64(), p.ds.f64());
    EXPECT_EQ(p.dw.f64(), std::vector<double>(p.x.cols(), 0.0));
    EXPECT_TRUE(p.dx.padding_intact() && p.dr.padding_intact());
    p.dw.assign(normal_values(p.dw.size(), 9));
    const auto before = p.dw.f64(), ds = p.ds.f64();
    p.accumulate();
    backward(p.w, p.dw, p.ds.view(), {});  // in place, and without a copy
    EXPECT_EQ(p.ds.f64(), ds);
    EXPECT_EQ(p.dw.f64(), before);
    backward(absent, absent, p.dx.view(), {});
    EXPECT_EQ(p.dx.f64(), ds);
  }
}

TYPED_TEST(fused_add_rms_norm, accumulates_into_dw_when_asked) {
  using T = typename TypeParam::element;
  check_norm_accumulates<problem<T>, typename TypeParam::backend>(gradient_bound.of<T>());
}

TYPED_TEST(fused_add_rms_norm, any_nan_in_rstd_stays_one) {
  check_norm_keeps_any_nan<problem<typename TypeParam::element>, typename TypeParam::backend>();
}

TYPED_TEST(fused_add_rms_norm, rows_of_the_range_of_the_type) {
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

TYPED_TEST(fused_add_rms_norm, nan_and_infinity_stay_in_their_rows) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t n = lanes<B, T>;
  const shape of{4, 2 * n + 3};
  problem<T> clean(of);
  clean.template both_ways<B>();
  for (const std::size_t column : {std::size_t{0}, n, of.cols - 1})
    for (const double bad : {nan, infinity}) {
      SCOPED_TRACE(testing::Message() << bad << " in column " << column);
      problem<T> p(of);
      p.r(1, column) = from_f64<T>(bad);
      p.template both_ways<B>();
      auto y = clean.y.f64(), dx = clean.dx.f64();
      for (std::size_t j = 0; j < of.cols; ++j) {
        y[of.cols + j] = std::isnan(bad) || j == column ? nan : 0;  // an infinite mean square scales the rest to 0
        dx[of.cols + j] = nan;
      }
      EXPECT_TRUE(close(p.y.f64(), y, 0));
      EXPECT_TRUE(close(p.dx.f64(), dx, 0));
    }
}

TYPED_TEST(fused_add_rms_norm, large_outputs_have_the_bits_of_small_ones) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const bool lines : {false, true}) {  // rows that begin at cache lines, or not
    const shape of{B::row.stream_bytes / (1000 * sizeof(T)) + 2, 1001, lines ? 23u : 4u};
    problem<T> p(of, variants[0], lines ? guard::before : guard::behind), small({3, of.cols, 4});
    p.template both_ways<B>();
    EXPECT_TRUE(p.y.padding_intact() && p.s.padding_intact() && p.dx.padding_intact() && p.dr.padding_intact());
    for (const std::size_t first : {std::size_t{0}, of.rows - 3}) {
      const auto part = [&](auto& m) { return m.view().rows_from(first, 3); };
      tigon::fused_add_rms_norm_forward<B>(part(p.x), part(p.r), p.w, small.y.view(), small.s.view(), small.rstd,
                                           p.v.opt);
      tigon::fused_add_rms_norm_backward<B>(part(p.dy), part(p.ds), part(p.s), p.w, small.rstd,
                                            tigon::fused_add_rms_norm_gradients{small.dx.view(), small.dw}, p.v.opt);
      for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t j = 0; j < of.cols; ++j) {
          ASSERT_EQ(to_f64(p.s(first + i, j)), to_f64(small.s(i, j))) << "row " << first + i << ", column " << j;
          ASSERT_EQ(to_f64(p.y(first + i, j)), to_f64(small.y(i, j))) << "row " << first + i << ", column " << j;
          ASSERT_EQ(to_f64(p.dx(first + i, j)), to_f64(small.dx(i, j))) << "row " << first + i << ", column " << j;
          ASSERT_EQ(to_f64(p.dr(first + i, j)), to_f64(small.dx(i, j))) << "row " << first + i << ", column " << j;
        }
    }
  }
}

TYPED_TEST(fused_add_rms_norm, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({190, 2049});
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.y.clear(), p.s.clear(), p.dx.clear(), p.dr.clear(), p.dw.clear(), p.rstd.clear();
    p.template both_ways<B>(ctx);
    return bits_of(p.y, p.s, p.rstd, p.dx, p.dr, p.dw);
  }));
}

TEST(fused_add_rms_norm_mixed, parameters_keep_their_own_type) {
  problem<bfloat16, float> p({5, 67});
  p.both_ways<tigon::default_backend>();
  EXPECT_TRUE(close(p.y.f64(), p.wanted().y(), forward_bound.bf16));
  EXPECT_TRUE(close(p.dw.f64(), p.wanted().dfactor(probes(67)), gradient_bound.bf16));
}

/// The doors, which are the same for every backend: refused before the first write.
class fused_add_rms_norm_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;
  using floats = std::span<float>;
  fused_add_rms_norm_doors() {
    p.forward<tigon::default_backend>(p.y.view(), p.s.view());
    all.assign(std::vector<double>(64, 1.0));
  }
  void forward(view x, view r, floats w, view y, view s, floats rstd, tigon::error_code code, const std::string& part,
               tigon::fused_add_rms_norm_options opt = {}) {
    EXPECT_TRUE(refuses([&] { tigon::fused_add_rms_norm_forward(x, r, std::span<const float>(w), y, s, rstd, opt); },
                        code, "fused_add_rms_norm_forward: " + part, p.y, p.s, p.rstd, all));
  }
  void backward(view dy, view ds, view s, floats w, floats rstd, view dx, floats dw, view dr, tigon::error_code code,
                const std::string& part, tigon::fused_add_rms_norm_options opt = {}) {
    EXPECT_TRUE(refuses(
        [&] {
          tigon::fused_add_rms_norm_backward(dy, ds, s, std::span<const float>(w), rstd,
                                             tigon::fused_add_rms_norm_gradients{dx, dw, dr}, opt);
        },
        code, "fused_add_rms_norm_backward: " + part, p.dx, p.dr, p.dw, all));
  }

  problem<float> p{{3, 8, 2}};
  guarded<float> all = guarded<float>(64);
  const view x = p.x.view(), r = p.r.view(), y = p.y.view(), s = p.s.view(), dy = p.dy.view(), ds = p.ds.view(),
             dx = p.dx.view(), dr = p.dr.view(), front{all.data(), 3, 8}, shifted{all.data() + 8, 3, 8};
  const floats w{p.w}, dw{p.dw}, rstd{p.rstd}, row = floats(all).first(8), three = row.first(3);
};

TEST_F(fused_add_rms_norm_doors, forward_refuses) {
  using enum tigon::error_code;
  forward({x.data, 3, 0, 8}, {r.data, 3, 0, 8}, {}, {y.data, 3, 0, 8}, {s.data, 3, 0, 8}, rstd, shape,
          "cols is 0; expected");
  forward({nullptr, 3, 8}, r, w, y, s, rstd, shape, "x is a null pointer");
  forward({x.data, 3, 8, 7}, r, w, y, s, rstd, stride, "x is of row stride 7");
  forward(x, {r.data, 2, 8, 10}, w, y, s, rstd, shape, "r is 2 x 8; expected 3 x 8");
  forward(x, r, w, {y.data, 3, 7, 10}, s, rstd, shape, "y is 3 x 7; expected 3 x 8");
  forward(x, r, w, y, {s.data, 2, 8, 10}, rstd, shape, "s is 2 x 8; expected 3 x 8");
  forward(x, r, w, y, {s.data, 3, 8, 7}, rstd, stride, "s is of row stride 7");
  forward(x, r, w.first(7), y, s, rstd, shape, "w is of 7 elements; expected 8");
  forward(x, r, w, y, s, rstd.first(2), shape, "rstd is of 2 elements; expected 3");
  for (const double bad : {-1.0, nan, infinity}) forward(x, r, w, y, s, rstd, argument, "eps is", {.eps = bad});
  forward(x, r, w, y, s, rstd, argument, "offset is nan", {.offset = nan});
  forward(front, r, w, y, shifted, rstd, alias, "s overlaps x; expected the same buffer or no common memory");
  forward(x, front, w, y, shifted, rstd, alias, "s overlaps r; expected the same buffer or no common memory");
  forward(front, r, w, shifted, s, rstd, alias, "y overlaps x; expected the same buffer or no common memory");
  forward(x, front, w, shifted, s, rstd, alias, "y overlaps r; expected the same buffer or no common memory");
  forward(x, r, w, front, front, rstd, alias, "y overlaps s; expected no common memory");
  forward(x, r, row, front, s, rstd, alias, "y overlaps w");
  forward(x, r, row, y, front, rstd, alias, "s overlaps w");
  forward(front, r, w, y, s, three, alias, "rstd overlaps x");
  forward(x, front, w, y, s, three, alias, "rstd overlaps r");
  forward(x, r, w, front, s, three, alias, "rstd overlaps y");
  forward(x, r, w, y, front, three, alias, "rstd overlaps s");
  forward(x, r, row, y, s, three, alias, "rstd overlaps w");
}

TEST_F(fused_add_rms_norm_doors, backward_refuses) {
  using enum tigon::error_code;
  backward(dy, ds, {s.data, 3, 0, 8}, {}, rstd, dx, {}, dr, shape, "cols is 0; expected at least 1");
  backward(dy, ds, {s.data, 3, 8, 7}, w, rstd, dx, dw, dr, stride, "s is of row stride 7");
  backward({dy.data, 2, 8, 10}, ds, s, w, rstd, dx, dw, dr, shape, "dy is 2 x 8; expected 3 x 8");
  backward({}, {}, s, w, rstd, dx, dw, dr, shape, "dy is absent, as ds is; expected one of the two, or both");
  backward(dy, {ds.data, 2, 8, 10}, s, w, rstd, dx, dw, dr, shape, "ds is 2 x 8; expected 3 x 8");
  backward(dy, ds, s, w, rstd, {dx.data, 3, 7, 10}, dw, dr, shape, "dx is 3 x 7; expected 3 x 8");
  backward(dy, ds, s, w, rstd, dx, dw, {dr.data, 3, 7, 10}, shape, "dr is 3 x 7; expected 3 x 8");
  backward(dy, ds, s, w.first(7), rstd, dx, dw, dr, shape, "w is of 7 elements; expected 8");
  backward(dy, ds, s, w, rstd, dx, dw.first(7), dr, shape, "dw is of 7 elements; expected 8");
  backward(dy, ds, s, w, rstd.first(2), dx, dw, dr, shape, "rstd is of 2 elements; expected 3");
  backward(dy, ds, s, w, rstd, dx, dw, dr, argument, "offset is nan", {.offset = nan});
  backward(front, ds, s, w, rstd, shifted, dw, dr, alias,
           "dx overlaps dy; expected the same buffer or no common memory");
  backward(dy, front, s, w, rstd, shifted, dw, dr, alias,
           "dx overlaps ds; expected the same buffer or no common memory");
  backward(dy, ds, front, w, rstd, front, dw, dr, alias, "dx overlaps s");
  backward(dy, ds, s, row, rstd, front, dw, dr, alias, "dx overlaps w");
  backward(dy, ds, s, w, three, front, dw, dr, alias, "dx overlaps rstd");
  backward(front, ds, s, w, rstd, dx, dw, front, alias, "dr overlaps dy");
  backward(dy, front, s, w, rstd, dx, dw, front, alias, "dr overlaps ds");
  backward(dy, ds, front, w, rstd, dx, dw, front, alias, "dr overlaps s");
  backward(dy, ds, s, w, rstd, front, dw, front, alias, "dr overlaps dx");
  backward(dy, ds, s, row, rstd, dx, dw, front, alias, "dr overlaps w");
  backward(dy, ds, s, w, three, dx, dw, front, alias, "dr overlaps rstd");
  backward(front, ds, s, w, rstd, dx, row, dr, alias, "dw overlaps dy");
  backward(dy, front, s, w, rstd, dx, row, dr, alias, "dw overlaps ds");
  backward(dy, ds, front, w, rstd, dx, row, dr, alias, "dw overlaps s");
  backward(dy, ds, s, w, rstd, front, row, dr, alias, "dw overlaps dx");
  backward(dy, ds, s, w, rstd, dx, row, front, alias, "dw overlaps dr");
  backward(dy, ds, s, row, rstd, dx, row, dr, alias, "dw overlaps w");
  backward(dy, ds, s, w, three, dx, row, dr, alias, "dw overlaps rstd");
}

TEST_F(fused_add_rms_norm_doors, backward_needs_the_workspace_that_it_names) {
  const std::size_t bytes = tigon::fused_add_rms_norm_workspace<tigon::default_backend, float>(3, 8);
  const auto call = [&](context& ctx) {
    tigon::fused_add_rms_norm_backward(dy, ds, s, std::span<const float>(w), rstd,
                                       tigon::fused_add_rms_norm_gradients{dx, dw, dr}, {}, ctx);
  };
  EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call), workspace, "fused_add_rms_norm_backward: workspace is of",
                     p.dx, p.dw);
  with_workspace_of(bytes, call);
  EXPECT_FALSE(p.dx.untouched());
}

}  // namespace
