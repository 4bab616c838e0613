// The contract of include/tigon/ops/attn_res.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <tigon/ops/attn_res.hpp>

#include "support/backends.hpp"
#include "support/complex_step.hpp"
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
using tigon::accumulator_t, tigon::bfloat16, tigon::context;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type forward_bound{.f32 = 4e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 1e-14};
constexpr by_type gradient_bound{.f32 = 2e-5, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 4e-14};

struct tensor {
  std::size_t blocks, rows, cols, padding = 0;
  friend std::ostream& operator<<(std::ostream& out, tensor t) {
    return out << t.blocks << " blocks of " << t.rows << " x " << t.cols << " (padding " << t.padding << ')';
  }
};

/// y of every token by its definition, for any number type.
template <class X>
std::vector<X> combined(tensor t, const std::vector<X>& v, const std::vector<X>& w_query, const std::vector<X>& w_norm,
                        double eps) {
  std::vector<X> y;
  for (std::size_t i = 0; i < t.rows; ++i) {
    std::vector<X> alpha;
    X sum = 0;
    for (std::size_t n = 0; n < t.blocks; ++n) {
      const X* block = &v[(n * t.rows + i) * t.cols];
      X square = 0, score = 0;
      for (std::size_t j = 0; j < t.cols; ++j) square += block[j] * block[j];
      const X rms = sqrt(square / static_cast<double>(t.cols) + eps);
      for (std::size_t j = 0; j < t.cols; ++j) score += w_query[j] * (block[j] / rms * w_norm[j]);
      alpha.push_back(exp(score));
      sum += alpha.back();
    }
    for (std::size_t j = 0; j < t.cols; ++j) {
      X mean = 0;
      for (std::size_t n = 0; n < t.blocks; ++n) mean += alpha[n] / sum * v[(n * t.rows + i) * t.cols + j];
      y.push_back(mean);
    }
  }
  return y;
}

/// Everything by its definition, the chain rule step by step. `round` is applied to the key twice, as round_key does.
struct reference {
  std::vector<double> y, alpha, rstd, dv, dw_query, dw_norm;
  double terms = 0;  ///< the largest term of the weights' gradients

  template <class Round>
  TIGON_TEST_NOINLINE reference(tensor t, const std::vector<double>& v, const std::vector<double>& w_query,
                                const std::vector<double>& w_norm, const std::vector<double>& dy, double eps,
                                Round round)
      : y(t.rows * t.cols), dv(v.size()), dw_query(t.cols), dw_norm(t.cols) {
    std::vector<long double> dq(t.cols), dg(t.cols);
    for (std::size_t i = 0; i < t.rows; ++i) {
      const auto block = [&](std::size_t n) { return &v[(n * t.rows + i) * t.cols]; };
      std::vector<long double> score(t.blocks), r(t.blocks), a(t.blocks), da(t.blocks);
      long double top = -infinity, sum = 0, mean = 0;
      for (std::size_t n = 0; n < t.blocks; ++n) {
        long double square = 0;
        for (std::size_t j = 0; j < t.cols; ++j) square += (long double)block(n)[j] * block(n)[j];
        r[n] = 1 / std::sqrt(square / t.cols + eps);
        for (std::size_t j = 0; j < t.cols; ++j) score[n] += w_query[j] * round(round(block(n)[j] * r[n]) * w_norm[j]);
        top = std::max(top, score[n]);
      }
      for (std::size_t n = 0; n < t.blocks; ++n) sum += a[n] = std::exp(score[n] - top);
      for (std::size_t n = 0; n < t.blocks; ++n) {
        a[n] /= sum;
        for (std::size_t j = 0; j < t.cols; ++j) {
          y[i * t.cols + j] += a[n] * block(n)[j];
          da[n] += (long double)dy[i * t.cols + j] * block(n)[j];
        }
        mean += a[n] * da[n];
        alpha.push_back(a[n]), rstd.push_back(r[n]);
      }
      for (std::size_t n = 0; n < t.blocks; ++n) {
        const long double ds = a[n] * (da[n] - mean);
        long double along = 0;  // what of the key's gradient points along the block
        for (std::size_t j = 0; j < t.cols; ++j) along += ds * w_query[j] * w_norm[j] * block(n)[j];
        for (std::size_t j = 0; j < t.cols; ++j) {
          const long double key = block(n)[j] * r[n], dkey = ds * w_query[j] * w_norm[j];
          dv[(n * t.rows + i) * t.cols + j] = static_cast<double>(a[n] * dy[i * t.cols + j] + r[n] * dkey -
                                                                  r[n] * r[n] * r[n] / t.cols * along * block(n)[j]);
          dq[j] += ds * w_norm[j] * key, dg[j] += ds * w_query[j] * key;
          terms = std::max(
              terms, static_cast<double>(std::abs(ds * key) * std::max(std::abs(w_norm[j]), std::abs(w_query[j]))));
        }
      }
    }
    dw_query.assign(dq.begin(), dq.end()), dw_norm.assign(dg.begin(), dg.end());
  }
};

/// Every buffer at a guard page, outputs full of canaries; the blocks are stacked.
template <class T, class W = T>
struct problem {
  tensor t;
  tigon::attn_res_options opt{.eps = 1e-5};
  guarded_matrix<T> v, dv, y, dy;
  guarded<W> w_query, w_norm, dw_query, dw_norm;
  guarded<accumulator_t<T>> alpha, rstd;

  TIGON_TEST_NOINLINE explicit problem(tensor of, double sharpness = 1.5, guard side = guard::behind)
      : t(of),
        v(random_matrix<T>({of.blocks * of.rows, of.cols, of.padding}, 1, side, {.deviation = 2})),
        dv(of.blocks * of.rows, of.cols, of.padding, side),
        y(of.rows, of.cols, of.padding, side),
        dy(random_matrix<T>({of.rows, of.cols, of.padding}, 2, side)),
        w_query(random_vector<W>(of.cols, 3, side, {.deviation = sharpness / std::sqrt(of.cols)})),
        w_norm(random_vector<W>(of.cols, 4, side, {.mean = 1, .deviation = 0.3})),
        dw_query(of.cols, side),
        dw_norm(of.cols, side),
        alpha(of.rows * of.blocks, side),
        rstd(of.rows * of.blocks, side) {}

  template <class U>
  tigon::blocks_view<U> blocks(tigon::matrix_view<U> m) const {
    return {nullptr, m.data, t.blocks, t.rows, t.cols, m.row_stride, t.rows * m.row_stride};
  }
  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    tigon::attn_res_forward<B>(blocks(v.view()), w_query, w_norm, y.view(), alpha, rstd, opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::matrix_view<T> to, context& ctx = tigon::default_context()) {
    tigon::attn_res_backward<B>(dy, blocks(v.view()), w_query, w_norm, {alpha, rstd},
                                tigon::attn_res_gradients{blocks(to), dw_query, dw_norm}, opt, ctx);
  }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(ctx);
    backward<B>(dv.view(), ctx);
  }

  template <class Round>
  reference wanted(Round round) const {
    return {t, v.f64(), w_query.f64(), w_norm.f64(), dy.f64(), opt.eps, round};
  }
  TIGON_TEST_NOINLINE void check() const {
    const reference want = wanted([](long double x) { return x; });
    const comparison with{.may_be_empty = t.rows == 0};
    using A = accumulator_t<T>;
    EXPECT_TRUE(close(y.f64(), want.y, forward_bound.of<T>(), with));
    EXPECT_TRUE(close(alpha.f64(), want.alpha, forward_bound.of<A>(), with));
    EXPECT_TRUE(close(rstd.f64(), want.rstd, forward_bound.of<A>(), with));
    EXPECT_TRUE(close(dv.f64(), want.dv, gradient_bound.of<T>(), with));
    const double bound = std::max(gradient_bound.of<W>(), gradient_bound.of<A>());
    const comparison of_terms{.scale =
                                  t.cols == 1 ? want.terms : 1e-30};  // of one column the keys are 1 or -1, and cancel
    EXPECT_TRUE(close(dw_query.f64(), want.dw_query, bound, of_terms));
    EXPECT_TRUE(close(dw_norm.f64(), want.dw_norm, bound, of_terms));
    EXPECT_TRUE(y.padding_intact() && dv.padding_intact());
  }
  auto bits() const { return bits_of(y, alpha, rstd, dv, dw_query, dw_norm); }
};

template <class On>
class attn_res : public testing::Test {};
TYPED_TEST_SUITE(attn_res, every_pair, names);

TYPED_TEST(attn_res, blocks_of_the_range_of_the_type) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t cols : {5u, 100u}) {
    const tensor t{6, 3, cols};
    problem<T> near(t);
    near.opt.eps = 0;
    near.template both_ways<B>();
    for (int exponent : far_exponents<T>()) {
      exponent -= exponent / 10;  // the sums of dy v are in the range too
      SCOPED_TRACE(testing::Message() << cols << " columns, times 2^" << exponent);
      problem<T> far(t);
      far.opt.eps = 0;
      for (std::size_t k = 0; k < t.blocks * t.rows; ++k)
        for (std::size_t j = 0; j < cols; ++j) far.v(k, j) = from_f64<T>(std::ldexp(to_f64(far.v(k, j)), exponent));
      far.template both_ways<B>();
      auto y = far.y.f64();
      for (double& v : y) v = std::ldexp(v, -exponent);
      EXPECT_TRUE(close(y, near.y.f64(), forward_bound.of<T>()));
      EXPECT_TRUE(close(far.alpha.f64(), near.alpha.f64(), forward_bound.of<accumulator_t<T>>()));
      EXPECT_TRUE(close(far.dv.f64(), near.dv.f64(), gradient_bound.of<T>()));
    }
  }
}

TYPED_TEST(attn_res, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : row_shapes<B, T>())
    for (const std::size_t blocks : {2u, 5u})
      for (const guard side : both_guards) {
        const tensor t{blocks, s.rows, s.cols, s.padding};
        SCOPED_TRACE(testing::Message() << t << ", " << side);
        problem<T> p(t, 1.5, side);
        p.template both_ways<B>();
        p.check();
      }
}

TYPED_TEST(attn_res, takes_any_number_of_blocks) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t blocks : {1u, 2u, 3u, 4u, 6u, 7u, 8u, 9u, 33u, 40u}) {
    SCOPED_TRACE(blocks);
    problem<T> p({blocks, 3, 67});
    p.template both_ways<B>();
    p.check();
    if (blocks == 1) {
      EXPECT_EQ(bits_of(p.y), bits_of(p.v));
      EXPECT_EQ(bits_of(p.dv), bits_of(p.dy));
      for (const double g : p.dw_query.f64()) EXPECT_EQ(g, 0);
      for (const double g : p.dw_norm.f64()) EXPECT_EQ(g, 0);
    }
  }
}

TYPED_TEST(attn_res, blocks_may_lie_anywhere) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const tensor t{5, 3, 19};
  problem<T> p(t), out(t);
  p.template both_ways<B>();
  const auto run = [&](auto v, auto dv) {
    tigon::attn_res_forward<B>(v, p.w_query, p.w_norm, out.y.view(), out.alpha, out.rstd, p.opt);
    tigon::attn_res_backward<B>(p.dy, v, p.w_query, p.w_norm, {out.alpha, out.rstd},
                                tigon::attn_res_gradients{dv, out.dw_query, out.dw_norm}, p.opt);
    EXPECT_EQ(bits_of(out.y, out.alpha, out.rstd, out.dw_query, out.dw_norm),
              bits_of(p.y, p.alpha, p.rstd, p.dw_query, p.dw_norm));
  };
  // Each at a pointer of its own, in any order.
  std::vector<guarded_matrix<T>> v, dv;
  guarded<T*> pv(t.blocks), pdv(t.blocks);
  for (std::size_t n = 0; n < t.blocks; ++n) v.emplace_back(t.rows, t.cols), dv.emplace_back(t.rows, t.cols);
  for (std::size_t n = 0; n < t.blocks; ++n) {
    const std::size_t at = n * 2 % t.blocks;
    std::copy_n(&p.v(n * t.rows, 0), t.rows * t.cols, v[at].view().data);
    pv[n] = v[at].view().data, pdv[n] = dv[at].view().data;
  }
  using blocks = tigon::blocks_view<T>;
  run(blocks::of_pointers(pv, t.rows, t.cols, t.cols), blocks::of_pointers(pdv, t.rows, t.cols, t.cols));
  for (std::size_t n = 0; n < t.blocks; ++n)
    EXPECT_TRUE(std::equal(pdv[n], pdv[n] + t.rows * t.cols, &p.dv(n * t.rows, 0),
                           [](T a, T b) { return to_f64(a) == to_f64(b); }));
  // The blocks of a token side by side.
  guarded_matrix<T> wide(t.rows, t.blocks * t.cols), dwide(t.rows, t.blocks * t.cols);
  const auto each = [&](auto f) {
    for (std::size_t n = 0; n < t.blocks; ++n)
      for (std::size_t i = 0; i < t.rows; ++i)
        for (std::size_t j = 0; j < t.cols; ++j) f(n * t.rows + i, i, n * t.cols + j, j);
  };
  each([&](std::size_t row, std::size_t i, std::size_t at, std::size_t j) { wide(i, at) = p.v(row, j); });
  const auto of = [&](auto& m) {
    return blocks{nullptr, m.view().data, t.blocks, t.rows, t.cols, t.blocks * t.cols, t.cols};
  };
  run(of(wide), of(dwide));
  each([&](std::size_t row, std::size_t i, std::size_t at, std::size_t j) {
    ASSERT_EQ(to_f64(dwide(i, at)), to_f64(p.dv(row, j)));
  });
}

TYPED_TEST(attn_res, gradients_may_overwrite_the_blocks) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t blocks : {3u, 8u}) {
    const tensor t{blocks, 3, 4 * lanes<B, T> + 3, 2};
    problem<T> apart(t), over(t);
    apart.template both_ways<B>();
    over.template forward<B>();
    over.template backward<B>(over.v.view());
    EXPECT_EQ(bits_of(over.v), bits_of(apart.dv));
    EXPECT_EQ(bits_of(over.dw_query, over.dw_norm), bits_of(apart.dw_query, apart.dw_norm));
  }
}

TYPED_TEST(attn_res, the_key_is_rounded_where_asked) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const tensor t{6, 4, 67};
  problem<T> p(t, 6), plain(t, 6);
  p.opt.round_key = true;
  p.template both_ways<B>(), plain.template both_ways<B>();
  const reference want =
      p.wanted([](long double x) { return (long double)to_f64(from_f64<T>(static_cast<double>(x))); });
  if (std::same_as<T, accumulator_t<T>>) {
    EXPECT_TRUE(close(p.alpha.f64(), plain.alpha.f64(), forward_bound.of<T>()));
  } else {
    // Only that the rounding shows and has the right size: a tie apart, f32 and f64 round to different neighbours.
    EXPECT_TRUE(close(p.alpha.f64(), want.alpha, forward_bound.of<T>() / 8));
    EXPECT_FALSE(close(plain.alpha.f64(), want.alpha, forward_bound.of<T>() / 8));
  }
  EXPECT_TRUE(close(p.y.f64(), want.y, forward_bound.of<T>()));
}

TYPED_TEST(attn_res, scores_may_be_large_and_come_in_any_order) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const tensor t{11, 2, 24};
  for (const double sign : {1.0, -1.0}) {
    problem<T> p(t);
    p.w_norm.assign(std::vector<double>(t.cols, 4));
    p.w_query.assign(std::vector<double>(t.cols, sign * 0.25));
    std::vector<double> v;  // block n has n more columns of one sign: scores from -24 to 24, then 64 times that
    for (std::size_t n = 0; n < t.blocks; ++n)
      for (std::size_t k = 0; k < t.rows * t.cols; ++k) v.push_back(k % t.cols < 2 * n + 2 ? 1 : -1);
    p.v.assign(v);
    for (const double factor : {0.25, 16.0}) {
      p.w_query.assign(std::vector<double>(t.cols, sign * factor));
      p.template both_ways<B>();
      p.check();
    }
  }
}

TYPED_TEST(attn_res, a_block_may_be_zero) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({5, 2, 35});
  for (std::size_t j = 0; j < 35; ++j) p.v(2 * 3, j) = p.v(2 * 3 + 1, j) = T(0.f);
  p.template both_ways<B>();
  p.check();
}

TYPED_TEST(attn_res, bad_tokens_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const tensor t{6, 3, 37};
  problem<T> clean(t);
  clean.template both_ways<B>();
  for (const std::size_t block : {0u, 3u, 5u})
    for (const double bad : {nan, infinity, -infinity}) {
      SCOPED_TRACE(testing::Message() << bad << " in block " << block);
      problem<T> p(t);
      p.v(block * t.rows + 1, 20) = from_f64<T>(bad);
      p.template both_ways<B>();
      for (std::size_t j = 0; j < t.cols; ++j) {
        ASSERT_TRUE(std::isnan(to_f64(p.y(1, j))));
        ASSERT_TRUE(std::isnan(to_f64(p.dw_query[j])) && std::isnan(to_f64(p.dw_norm[j])));
        for (const std::size_t i : {0u, 2u}) {
          ASSERT_EQ(to_f64(p.y(i, j)), to_f64(clean.y(i, j)));
          for (std::size_t n = 0; n < t.blocks; ++n) {
            ASSERT_EQ(to_f64(p.dv(n * t.rows + i, j)), to_f64(clean.dv(n * t.rows + i, j)));
            ASSERT_TRUE(std::isnan(to_f64(p.dv(n * t.rows + 1, j))));
          }
        }
      }
    }
}

TYPED_TEST(attn_res, gradients_of_weights_are_overwritten_or_added_to) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t rows : {0u, 3u}) {
    problem<T> once({3, rows, 37}), added({3, rows, 37});
    once.template both_ways<B>();
    added.opt.dparams = tigon::gradient::accumulate;
    added.dw_query.assign(normal_values(37, 10)), added.dw_norm.assign(normal_values(37, 11));
    std::vector<double> want = added.dw_query.f64(), want_norm = added.dw_norm.f64();
    added.template both_ways<B>();
    for (std::size_t j = 0; j < 37; ++j) {
      ASSERT_TRUE(rows != 0 || (to_f64(once.dw_query[j]) == 0 && to_f64(once.dw_norm[j]) == 0));
      want[j] += to_f64(once.dw_query[j]), want_norm[j] += to_f64(once.dw_norm[j]);
    }
    EXPECT_TRUE(close(added.dw_query.f64(), want, gradient_bound.of<T>()));
    EXPECT_TRUE(close(added.dw_norm.f64(), want_norm, gradient_bound.of<T>()));
  }
}

// Backward takes some columns of all blocks at a time: an even and an odd number of blocks over three such parts.
TYPED_TEST(attn_res, long_rows_keep_the_error) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t blocks : {4u, 5u}) {
    SCOPED_TRACE(blocks);
    problem<T> p({blocks, 2, 4 * B::row.block_cols + 35});
    p.template both_ways<B>();
    p.check();
  }
}

TYPED_TEST(attn_res, large_outputs_have_the_bits_of_small_ones) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const tensor t{3, B::row.stream_bytes / (1000 * sizeof(T)) + 2, 1001};
  problem<T> p(t), small({3, 3, t.cols});
  p.template both_ways<B>();
  for (const std::size_t first : {std::size_t{0}, t.rows - 3}) {
    const auto part = [&](auto& m) {
      return tigon::blocks_view<T>{nullptr, &m(first, 0), 3, 3, t.cols, t.cols, t.rows * t.cols};
    };
    tigon::attn_res_forward<B>(part(p.v), p.w_query, p.w_norm, small.y.view(), small.alpha, small.rstd, p.opt);
    tigon::attn_res_backward<B>(
        p.dy.view().rows_from(first, 3), part(p.v), p.w_query, p.w_norm, {small.alpha, small.rstd},
        tigon::attn_res_gradients{small.blocks(small.dv.view()), small.dw_query, small.dw_norm}, p.opt);
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t j = 0; j < t.cols; ++j) {
        ASSERT_EQ(to_f64(p.y(first + i, j)), to_f64(small.y(i, j))) << "row " << first + i << ", column " << j;
        for (std::size_t n = 0; n < 3; ++n)
          ASSERT_EQ(to_f64(p.dv(n * t.rows + first + i, j)), to_f64(small.dv(n * 3 + i, j)))
              << "block " << n << ", row " << first + i << ", column " << j;
      }
  }
}

TYPED_TEST(attn_res, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({3, 100, 1025});
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.y.clear(), p.dv.clear(), p.alpha.clear(), p.rstd.clear(), p.dw_query.clear(), p.dw_norm.clear();
    p.template both_ways<B>(ctx);
    return p.bits();
  }));
}

template <class On>
class attn_res_gradient : public testing::Test {};
TYPED_TEST_SUITE(attn_res_gradient, pairs_of<double>, names);

TYPED_TEST(attn_res_gradient, is_that_of_a_complex_step) {
  const tensor t{5, 2, 11};
  problem<double> p(t);
  p.template both_ways<typename TypeParam::backend>();
  using complex = std::complex<double>;
  const auto v = p.v.f64(), q = p.w_query.f64(), g = p.w_norm.f64(), dy = p.dy.f64();
  const auto of = [](const std::vector<double>& x) { return std::vector<complex>(x.begin(), x.end()); };
  const auto loss = [&](const std::vector<complex>& y) {
    complex sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += dy[i] * y[i];
    return sum;
  };
  const auto by_v = [&](const auto& z) { return loss(combined(t, z, of(q), of(g), p.opt.eps)); };
  const auto by_query = [&](const auto& z) { return loss(combined(t, of(v), z, of(g), p.opt.eps)); };
  const auto by_norm = [&](const auto& z) { return loss(combined(t, of(v), of(q), z, p.opt.eps)); };
  EXPECT_TRUE(close(p.dv.f64(), complex_step(by_v, v, probes(110)), 1e-14));
  EXPECT_TRUE(close(p.dw_query.f64(), complex_step(by_query, q, probes(11)), 1e-14));
  EXPECT_TRUE(close(p.dw_norm.f64(), complex_step(by_norm, g, probes(11)), 1e-14));
}

template <class On>
class attn_res_mixed : public testing::Test {};
TYPED_TEST_SUITE(attn_res_mixed, pairs_of<bfloat16>, names);

TYPED_TEST(attn_res_mixed, weights_may_have_a_type_of_their_own) {
  problem<bfloat16, float> p({5, 7, 67});
  p.template both_ways<typename TypeParam::backend>();
  p.check();
}

/// The doors, which are the same for every backend: refused before the first write.
class attn_res_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;
  using blocks = tigon::blocks_view<float>;
  using floats = std::span<float>;
  problem<float> p{{2, 3, 8}};
  const blocks v = p.blocks(p.v.view()), dv = p.blocks(p.dv.view());
  const view y = p.y.view(), dy = p.dy.view();
  const floats q{p.w_query}, g{p.w_norm}, dq{p.dw_query}, dg{p.dw_norm}, alpha{p.alpha}, rstd{p.rstd};

  void forward_refuses(blocks v, floats q, floats g, view y, floats a, floats r, std::string_view says,
                       tigon::error_code code = tigon::error_code::shape, double eps = 1e-6) {
    EXPECT_TRUE(refuses([&] { tigon::attn_res_forward(v, q, g, y, a, r, {.eps = eps}); }, code, says, p.v, p.y, p.alpha,
                        p.rstd, p.w_query, p.w_norm));
  }
  void backward_refuses(view dy, blocks v, floats q, floats g, floats a, floats r, blocks dv, floats dq, floats dg,
                        std::string_view says, tigon::error_code code = tigon::error_code::shape) {
    EXPECT_TRUE(refuses(
        [&] {
          tigon::attn_res_backward(dy, v, q, g, {a, r}, tigon::attn_res_gradients{dv, dq, dg});
        },
        code, says, p.v, p.dy, p.dv, p.alpha, p.rstd, p.w_query, p.w_norm, p.dw_query, p.dw_norm));
  }
  static blocks resized(blocks b, std::size_t n, std::size_t rows, std::size_t cols) {
    b.blocks = n, b.rows = rows, b.cols = cols;
    return b;
  }
  static floats memory(view m, std::size_t count) { return {m.data, count}; }
};

TEST_F(attn_res_doors, forward_refuses) {
  using enum tigon::error_code;
  forward_refuses(resized(v, 0, 3, 8), q, g, y, {}, {}, "attn_res_forward: blocks of v is 0; expected at least 1");
  forward_refuses(resized(v, 2, 3, 0), {}, {}, {y.data, 3, 0, 8}, alpha, rstd,
                  "attn_res_forward: cols is 0; expected at least 1");
  blocks bad = v;
  bad.row_stride = 7;
  forward_refuses(bad, q, g, y, alpha, rstd, "attn_res_forward: v is of row stride 7", stride);
  bad = v, bad.data = nullptr;
  forward_refuses(bad, q, g, y, alpha, rstd, "attn_res_forward: v is a null pointer");
  float* list[] = {v.data, nullptr};
  forward_refuses(blocks::of_pointers(list, 3, 8, 8), q, g, y, alpha, rstd, "attn_res_forward: v is a null pointer");
  forward_refuses(v, q, g, {y.data, 2, 8}, alpha, rstd, "attn_res_forward: y is 2 x 8; expected 3 x 8");
  forward_refuses(v, q.first(7), g, y, alpha, rstd, "attn_res_forward: w_query is of 7 elements; expected 8");
  forward_refuses(v, q, g.first(7), y, alpha, rstd, "attn_res_forward: w_norm is of 7 elements; expected 8");
  forward_refuses(v, q, g, y, alpha.first(5), rstd, "attn_res_forward: alpha is of 5 elements; expected 6");
  forward_refuses(v, q, g, y, alpha, rstd.first(5), "attn_res_forward: rstd is of 5 elements; expected 6");
  for (const double eps : {-1.0, nan})
    forward_refuses(v, q, g, y, alpha, rstd, "attn_res_forward: eps is", argument, eps);

  for (const std::size_t n : {0u, 1u})
    forward_refuses(v, q, g, v[n], alpha, rstd, "attn_res_forward: y overlaps v", alias);
  forward_refuses(v, q, g, y, memory(v[1], 6), rstd, "attn_res_forward: alpha overlaps v", alias);
  forward_refuses(v, q, g, y, alpha, memory(v[1], 6), "attn_res_forward: rstd overlaps v", alias);
  forward_refuses(v, memory(y, 8), g, y, alpha, rstd, "attn_res_forward: y overlaps w_query", alias);
  forward_refuses(v, q, memory(y, 8), y, alpha, rstd, "attn_res_forward: y overlaps w_norm", alias);
  forward_refuses(v, q, g, y, memory(y, 6), rstd, "attn_res_forward: alpha overlaps y", alias);
  forward_refuses(v, q, g, y, alpha, alpha, "attn_res_forward: alpha overlaps rstd", alias);
  forward_refuses(v, q, g, y, q.first(6), rstd, "attn_res_forward: alpha overlaps w_query", alias);
  forward_refuses(v, q, g, y, g.first(6), rstd, "attn_res_forward: alpha overlaps w_norm", alias);
  forward_refuses(v, q, g, y, alpha, memory(y, 6), "attn_res_forward: rstd overlaps y", alias);
  forward_refuses(v, q, g, y, alpha, q.first(6), "attn_res_forward: rstd overlaps w_query", alias);
  forward_refuses(v, q, g, y, alpha, g.first(6), "attn_res_forward: rstd overlaps w_norm", alias);
}

TEST_F(attn_res_doors, backward_refuses_wrong_shapes) {
  const std::string says = "attn_res_backward: ";
  backward_refuses(dy, resized(v, 0, 3, 8), q, g, {}, {}, dv, dq, dg, says + "blocks of v is 0; expected at least 1");
  backward_refuses({dy.data, 3, 0, 8}, resized(v, 2, 3, 0), {}, {}, alpha, rstd, resized(dv, 2, 3, 0), {}, {},
                   says + "cols is 0; expected at least 1");
  backward_refuses(dy, v, q, g, alpha, rstd, resized(dv, 1, 3, 8), dq, dg,
                   says + "blocks of dv is of 1 elements; expected 2");
  backward_refuses(dy, v, q, g, alpha, rstd, resized(dv, 2, 2, 8), dq, dg, says + "dv is 2 x 8; expected 3 x 8");
  backward_refuses({dy.data, 3, 7, 8}, v, q, g, alpha, rstd, dv, dq, dg, says + "dy is 3 x 7; expected 3 x 8");
  backward_refuses(dy, v, q.first(7), g, alpha, rstd, dv, dq, dg, says + "w_query is of 7 elements; expected 8");
  backward_refuses(dy, v, q, g.first(7), alpha, rstd, dv, dq, dg, says + "w_norm is of 7 elements; expected 8");
  backward_refuses(dy, v, q, g, alpha, rstd, dv, dq.first(7), dg, says + "dw_query is of 7 elements; expected 8");
  backward_refuses(dy, v, q, g, alpha, rstd, dv, dq, dg.first(7), says + "dw_norm is of 7 elements; expected 8");
  backward_refuses(dy, v, q, g, alpha.first(5), rstd, dv, dq, dg, says + "alpha is of 5 elements; expected 6");
  backward_refuses(dy, v, q, g, alpha, rstd.first(5), dv, dq, dg, says + "rstd is of 5 elements; expected 6");
}

TEST_F(attn_res_doors, backward_refuses_overlaps) {
  const auto overlaps = [&](view dy, floats q, floats g, floats a, floats r, blocks dv, floats dq, floats dg,
                            const std::string& says) {
    backward_refuses(dy, v, q, g, a, r, dv, dq, dg, "attn_res_backward: " + says, tigon::error_code::alias);
  };
  float* swapped[] = {v[1].data, v[0].data};
  float* same[] = {dv[0].data, dv[0].data};
  float* shifted[] = {v[0].data + 8, dv[0].data};
  overlaps(dy, q, g, alpha, rstd, blocks::of_pointers(swapped, 3, 8, 8), dq, dg, "dv overlaps v; expected no");
  overlaps(dy, q, g, alpha, rstd, blocks::of_pointers(shifted, 3, 8, 8), dq, dg, "dv overlaps v; expected the same");
  overlaps(dy, q, g, alpha, rstd, blocks::of_pointers(same, 3, 8, 8), dq, dg, "dv overlaps another block of dv");
  overlaps(dv[1], q, g, alpha, rstd, dv, dq, dg, "dv overlaps dy");
  overlaps(dy, memory(dv[1], 8), g, alpha, rstd, dv, dq, dg, "dv overlaps w_query");
  overlaps(dy, q, memory(dv[1], 8), alpha, rstd, dv, dq, dg, "dv overlaps w_norm");
  overlaps(dy, q, g, memory(dv[1], 6), rstd, dv, dq, dg, "dv overlaps alpha");
  overlaps(dy, q, g, alpha, memory(dv[1], 6), dv, dq, dg, "dv overlaps rstd");
  for (const bool first : {true, false}) {
    const auto with = [&](floats bad, const std::string& other) {
      overlaps(dy, q, g, alpha, rstd, dv, first ? bad : dq, first ? dg : bad,
               (first ? "dw_query overlaps " : "dw_norm overlaps ") + other);
    };
    with(memory(v[1], 8), "v");
    with(memory(dv[1], 8), "dv");
    with(memory(dy, 8), "dy");
    with(q, "w_query");
    with(g, "w_norm");
    const floats seven = memory(y, 8);  // memory of another buffer stands for alpha and rstd
    overlaps(dy, q, g, seven.first(6), rstd, dv, first ? seven : dq, first ? dg : seven,
             (first ? "dw_query overlaps " : "dw_norm overlaps ") + std::string("alpha"));
    overlaps(dy, q, g, alpha, seven.first(6), dv, first ? seven : dq, first ? dg : seven,
             (first ? "dw_query overlaps " : "dw_norm overlaps ") + std::string("rstd"));
  }
  overlaps(dy, q, g, alpha, rstd, dv, dq, dq, "dw_query overlaps dw_norm");
}

TEST_F(attn_res_doors, need_the_workspace_that_they_name) {
  using B = tigon::default_backend;
  for (const std::size_t threads : {1u, 3u})
    with_workspace_of(
        64,
        [&](context& of_size) {
          const std::size_t bytes = tigon::attn_res_workspace<B, float>(8, of_size);
          const auto call = [&](context& ctx) { tigon::attn_res_forward(v, q, g, y, alpha, rstd, {}, ctx); };
          p.y.clear();
          EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call, threads), workspace,
                             "attn_res_forward: workspace is of", p.y);
          with_workspace_of(bytes, call, threads);
          EXPECT_FALSE(p.y.untouched());
        },
        threads);
  const std::size_t bytes = tigon::attn_res_backward_workspace<B, float>(2, 3, 8);
  const auto call = [&](context& ctx) {
    tigon::attn_res_backward(dy, v, q, g, {alpha, rstd}, tigon::attn_res_gradients{dv, dq, dg}, {}, ctx);
  };
  EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call), workspace, "attn_res_backward: workspace is of", p.dv);
  with_workspace_of(bytes, call);
  EXPECT_FALSE(p.dv.untouched());
}

}  // namespace
