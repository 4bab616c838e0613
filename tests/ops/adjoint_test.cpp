// Backward of an operator that is linear in an argument is the adjoint of its forward: <A x, y> = <x, A^T y> for every
// x and y. It needs no reference: an element that forward reads once too often, or backward adds to the wrong place,
// shows.
// Operators: several
#include <gtest/gtest.h>

#include <tigon/gemm/gemm.hpp>
#include <tigon/ops/attention.hpp>
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/layer_norm.hpp>
#include <tigon/ops/mhc_post_res.hpp>
#include <tigon/ops/mhc_pre.hpp>
#include <tigon/ops/moe.hpp>
#include <tigon/ops/qwen2vl_mrope.hpp>
#include <tigon/ops/rope.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/swiglu.hpp>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/problem.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::heads_view, tigon::matrix_view;

/// A matrix of normal numbers, or a result.
template <class T>
struct matrix {
  std::size_t rows, cols;
  guarded<T> data;

  TIGON_TEST_NOINLINE matrix(std::size_t r, std::size_t c, std::uint64_t seed)
      : rows(r), cols(c), data(r * c, guard::behind) {
    const std::vector<double> values = normal_values(r * c, seed);
    for (std::size_t k = 0; k < values.size(); ++k) data[k] = from_f64<T>(values[k]);
  }
  operator matrix_view<T>() { return {data.data(), rows, cols}; }
  operator matrix_view<const T>() const { return {data.data(), rows, cols}; }
  matrix_view<T> view() { return *this; }
  std::span<T> span() { return {data.data(), rows * cols}; }
  /// batch 1, `heads` heads of `cols` columns, tokens in the rows
  heads_view<T> of_heads(std::size_t heads) {
    return heads_view<T>::of_heads(data.data(), 1, heads, rows / heads, cols);
  }
};

/// Sums of products, and of their magnitudes.
template <class T>
struct product {
  double sum = 0, size = 0;
  TIGON_TEST_NOINLINE product add(const matrix<T>& a, const matrix<T>& b) const {
    product out = *this;
    for (std::size_t k = 0; k < a.rows * a.cols; ++k) {
      const double term = to_f64(a.data[k]) * to_f64(b.data[k]);
      out.sum += term, out.size += std::abs(term);
    }
    return out;
  }
};

/// <A x, y> and <x, A^T y>, up to the rounding of their terms.
template <class T>
void expect_equal(product<T> forward, product<T> backward) {
  ASSERT_GT(forward.size, 0);
  const double rounding = std::same_as<T, double> ? 1e-14 : 4e-6;
  EXPECT_NEAR(forward.sum, backward.sum, rounding * (forward.size + backward.size));
}

#if defined(TIGON_CONFORMANCE_BACKEND)
using usual_pairs = pairs_of<float, double>;
#else
using usual_pairs = with_engines<list<on<usual_backend, float>>, on<usual_backend, double>>;
#endif

template <class On>
class adjoint : public testing::Test {};
TYPED_TEST_SUITE(adjoint, usual_pairs, names);

TYPED_TEST(adjoint, of_lookups_adds_rows) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  matrix<T> w(7, 19, 1), y(23, 19, 2), dy(23, 19, 3), dw(7, 19, 4);
  std::vector<std::int32_t> ids(23);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * i % 7);
  tigon::embedding_forward<B>(w.view(), ids, y.view());
  tigon::embedding_backward<B>(dy.view(), ids, dw.view());
  expect_equal(product<T>{}.add(y, dy), product<T>{}.add(w, dw));
}

TYPED_TEST(adjoint, of_a_rotation_turns_back) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  matrix<T> q(3 * 9, 34, 1), k(2 * 9, 34, 2), q_out(3 * 9, 34, 3), k_out(2 * 9, 34, 4), cos(9, 17, 5), sin(9, 17, 6);
  matrix<T> gq(3 * 9, 34, 7), gk(2 * 9, 34, 8), dq(3 * 9, 34, 9), dk(2 * 9, 34, 10);
  for (const auto pairs : {tigon::rotary_pairs::halves, tigon::rotary_pairs::neighbours}) {
    const tigon::rope_options opt{.pairs = pairs};
    tigon::rope_forward<B, T>(q.of_heads(3), k.of_heads(2), cos.view(), sin.view(), q_out.of_heads(3),
                              k_out.of_heads(2), opt);
    tigon::rope_backward<B, T>(gq.of_heads(3), gk.of_heads(2), cos.view(), sin.view(), dq.of_heads(3), dk.of_heads(2),
                               opt);
    expect_equal(product<T>{}.add(q_out, gq).add(k_out, gk), product<T>{}.add(q, dq).add(k, dk));
  }
  matrix<T> cos3(3 * 9, 17, 11), sin3(3 * 9, 17, 12);
  const tigon::qwen2vl_mrope_options opt{.sections = {5, 8, 4}};
  tigon::qwen2vl_mrope_forward<B, T>(q.of_heads(3), k.of_heads(2), cos3.view(), sin3.view(), q_out.of_heads(3),
                                     k_out.of_heads(2), opt);
  tigon::qwen2vl_mrope_backward<B, T>(gq.of_heads(3), gk.of_heads(2), cos3.view(), sin3.view(), dq.of_heads(3),
                                      dk.of_heads(2), opt);
  expect_equal(product<T>{}.add(q_out, gq).add(k_out, gk), product<T>{}.add(q, dq).add(k, dk));
}

TYPED_TEST(adjoint, of_a_product_is_that_of_the_transpose) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  matrix<T> a(13, 37, 1), x(37, 21, 2), y(13, 21, 3), ax(13, 21, 4), aty(37, 21, 5);
  tigon::gemm<B>(a.view(), x.view(), ax.view());
  tigon::gemm<B>(a.view(), y.view(), aty.view(), {.a = tigon::transpose::yes});
  expect_equal(product<T>{}.add(ax, y), product<T>{}.add(x, aty));
}

TYPED_TEST(adjoint, of_attention_in_v) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  matrix<T> q(4 * 29, 11, 1), k(2 * 29, 11, 2), v(2 * 29, 11, 3), o(4 * 29, 11, 4), d_o(4 * 29, 11, 5);
  matrix<T> dq(4 * 29, 11, 6), dk(2 * 29, 11, 7), dv(2 * 29, 11, 8);
  std::vector<tigon::accumulator_t<T>> lse(4 * 29);
  tigon::attention_forward<B, T>(q.of_heads(4), k.of_heads(2), v.of_heads(2), o.of_heads(4), lse);
  tigon::attention_backward<B, T>(d_o.of_heads(4), q.of_heads(4), k.of_heads(2), v.of_heads(2), {o.of_heads(4), lse},
                                  tigon::attention_gradients{dq.of_heads(4), dk.of_heads(2), dv.of_heads(2)});
  expect_equal(product<T>{}.add(o, d_o), product<T>{}.add(v, dv));
}

TYPED_TEST(adjoint, of_the_experts_last_projection) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t tokens = 9, experts = 3, hidden = 14, n = 10;
  matrix<T> x(tokens, hidden, 1), gate_up(experts * 2 * n, hidden, 2), down(experts * hidden, n, 3);
  matrix<T> w(tokens, 2, 4), y(tokens, hidden, 5), dy(tokens, hidden, 6), saved(tokens * 2, 2 * n, 7);
  matrix<T> ddown(experts * hidden, n, 8), dw(tokens, 2, 9);
  std::vector<std::int32_t> ids(tokens * 2);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 5 % 7 % experts);
  const tigon::moe_choices<std::int32_t, T> choices{matrix_view<const std::int32_t>(ids.data(), tokens, 2), w.view()};
  const tigon::moe_weights<T> of{gate_up.view(), down.view(), experts};
  tigon::moe_saved<T> kept{saved.view()};
  tigon::moe_forward<B, T>(x.view(), choices, of, y.view(), kept);
  tigon::moe_backward<B, T>(dy.view(), x.view(), choices, of, kept,
                            tigon::moe_gradients<T, T, T>{{}, {}, ddown.view(), dw.view()});
  expect_equal(product<T>{}.add(y, dy), product<T>{}.add(down, ddown));
  expect_equal(product<T>{}.add(y, dy), product<T>{}.add(w, dw));  // linear in the routing weights, too
}

TYPED_TEST(adjoint, of_streams_in_each_of_their_arguments) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t tokens = 6, n = 3, c = 21;
  matrix<T> x(tokens, n * c, 1), h(tokens, n, 2), y(tokens, c, 3), dy(tokens, c, 4), dx(tokens, n * c, 5),
      dh(tokens, n, 6);
  tigon::mhc_pre_forward<B, T>(x.view(), h.view(), y.view());
  tigon::mhc_pre_backward<B, T>(dy.view(), x.view(), h.view(), {dx.view(), dh.view()});
  expect_equal(product<T>{}.add(y, dy), product<T>{}.add(x, dx));
  expect_equal(product<T>{}.add(y, dy), product<T>{}.add(h, dh));
  matrix<T> res(tokens, n * n, 7), dres(tokens, n * n, 8), z(tokens, n * c, 9), dz(tokens, n * c, 10),
      df(tokens, c, 11);
  tigon::mhc_post_res_forward<B, T>(x.view(), y.view(), h.view(), res.view(), z.view());
  tigon::mhc_post_res_backward<B, T>(dz.view(), x.view(), y.view(), h.view(), res.view(),
                                     {dx.view(), df.view(), dh.view(), dres.view()});
  expect_equal(product<T>{}.add(z, dz), product<T>{}.add(x, dx).add(y, df));
  expect_equal(product<T>{}.add(z, dz), product<T>{}.add(res, dres).add(h, dh));
}

TYPED_TEST(adjoint, of_a_norm_in_its_parameters) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t rows = 11, cols = 37;
  matrix<T> x(rows, cols, 1), w(1, cols, 2), b(1, cols, 3), y(rows, cols, 4), dy(rows, cols, 5), dx(rows, cols, 6);
  matrix<T> dw(1, cols, 7), db(1, cols, 8);
  std::vector<tigon::accumulator_t<T>> mean(rows), rstd(rows);
  tigon::layer_norm_forward<B>(x.view(), w.span(), b.span(), y.view(), mean, rstd);
  tigon::layer_norm_backward<B>(dy.view(), x.view(), w.span(), mean, rstd,
                                tigon::norm_gradients{dx.view(), dw.span(), db.span()});
  expect_equal(product<T>{}.add(y, dy), product<T>{}.add(w, dw).add(b, db));
}

TYPED_TEST(adjoint, of_a_gate_in_up_and_of_softmax_is_its_own) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t rows = 7, cols = 41;
  matrix<T> g(rows, cols, 1), u(rows, cols, 2), y(rows, cols, 3), dy(rows, cols, 4), dg(rows, cols, 5),
      du(rows, cols, 6);
  tigon::swiglu_forward<B>(g.view(), u.view(), y.view());
  tigon::swiglu_backward<B>(dy.view(), g.view(), u.view(), dg.view(), du.view());
  expect_equal(product<T>{}.add(y, dy), product<T>{}.add(u, du));
  matrix<T> p(rows, cols, 7), of_u(rows, cols, 8), of_dy(rows, cols, 9);
  tigon::softmax_forward<B>(g.view(), p.view());
  tigon::softmax_backward<B>(u.view(), p.view(), of_u.view());
  tigon::softmax_backward<B>(dy.view(), p.view(), of_dy.view());
  expect_equal(product<T>{}.add(of_u, dy), product<T>{}.add(u, of_dy));
}

}  // namespace
