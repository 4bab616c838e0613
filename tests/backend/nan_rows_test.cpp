// NaN in each place of a row stays in its row, also in the tiles of ascend. Products, rotations and attention, which
// mix rows, have this in their own tests.
#include <gtest/gtest.h>

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/losses/jsd.hpp>
#include <tigon/losses/kl_div.hpp>
#include <tigon/losses/tvd.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/layer_norm.hpp>
#include <tigon/ops/poly_norm.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/sparsemax.hpp>

#include "support/backends.hpp"
#include "support/nan_rows.hpp"

namespace {

using namespace tigon::test;
namespace backends = tigon::backends;
using enum reach;
using T = float;
using tables = std::vector<table<T>>;

table<T> draw(unsigned seed) { return table<T>::drawn(seed); }
table<T> draw_positive(unsigned seed) { return table<T>::drawn(seed, true); }

template <class P>
struct nan_in_rows : testing::Test {};
// One engine of its own library and the tiles: each operator's test has NaN on the other engines.
TYPED_TEST_SUITE(nan_in_rows, decltype(as_types(with_element<float>(list<backends::xsimd, backends::ascend>{}))),
                 names);

// The six on the engines are in tests/smoke/engines.cpp.
TEST(nan_in_rows_on_ascend, of_six_operators) { EXPECT_EQ((first_lost_nan_of_six<backends::ascend, float>()), ""); }

TYPED_TEST(nan_in_rows, of_norms) {
  using B = typename TypeParam::backend;
  const std::vector<T> w(nan_cols, T(1.5f)), three{T(0.5f), T(0.25f), T(2)}, one(1, T(0.5f));
  std::vector<T> dw(nan_cols), db(nan_cols), dthree(3), done(1);
  std::vector<float> mean(nan_rows), rstd(nan_rows);
  // Inputs x and dy, outputs y and dx.
  const std::vector<std::vector<reach>> whole_rows{{row, row}, {nothing, row}};
  EXPECT_EQ(first_lost_nan<T>("rms_norm", {draw(1), draw(2)}, tables(2), whole_rows,
                              [&](auto& in, auto& out) {
                                tigon::rms_norm_forward<B, T>(in[0], w, out[0], rstd);
                                tigon::rms_norm_backward<B, T>(in[1], in[0], w, rstd, out[1], dw);
                              }),
            "");
  EXPECT_EQ(first_lost_nan<T>("layer_norm", {draw(1), draw(2)}, tables(2), whole_rows,
                              [&](auto& in, auto& out) {
                                tigon::layer_norm_forward<B, T>(in[0], w, w, out[0], mean, rstd);
                                tigon::layer_norm_backward<B, T>(
                                    in[1], in[0], w, mean, rstd,
                                    tigon::norm_gradients{tigon::matrix_view<T>(out[1]), dw, db});
                              }),
            "");
  EXPECT_EQ(first_lost_nan<T>("poly_norm", {draw(1), draw(2)}, tables(2), whole_rows,
                              [&](auto& in, auto& out) {
                                std::vector<float> three_rstd(3 * nan_rows);
                                tigon::poly_norm_forward<B, T>(in[0], three, one, out[0], three_rstd);
                                tigon::poly_norm_backward<B, T>(
                                    in[1], in[0], three, three_rstd,
                                    tigon::norm_gradients{tigon::matrix_view<T>(out[1]), dthree, done});
                              }),
            "");
  // Inputs x, r, dy and ds, outputs y, s and dx.
  EXPECT_EQ(first_lost_nan<T>(
                "fused_add_rms_norm", {draw(1), draw(2), draw(3), draw(4)}, tables(3),
                {{row, element, row}, {row, element, row}, {nothing, nothing, row}, {nothing, nothing, element}},
                [&](auto& in, auto& out) {
                  tigon::fused_add_rms_norm_forward<B, T>(in[0], in[1], w, out[0], out[1], rstd);
                  tigon::fused_add_rms_norm_backward<B, T>(
                      in[2], in[3], out[1], w, rstd,
                      tigon::fused_add_rms_norm_gradients{tigon::matrix_view<T>(out[2]), dw});
                }),
            "");
}

TYPED_TEST(nan_in_rows, of_sparsemax) {
  using B = typename TypeParam::backend;
  EXPECT_EQ(first_lost_nan<T>("sparsemax", {draw(1), draw(2)}, tables(2), {{row, row}, {nothing, within_row}},
                              [](auto& in, auto& out) {
                                tigon::sparsemax_forward<B, T>(tigon::in_matrix<T>(in[0]),
                                                               tigon::matrix_view<T>(out[0]));
                                tigon::sparsemax_backward<B, T>(tigon::in_matrix<T>(in[1]), tigon::in_matrix<T>(out[0]),
                                                                tigon::matrix_view<T>(out[1]));
                              }),
            "");
}

TYPED_TEST(nan_in_rows, of_divergences) {
  using B = typename TypeParam::backend;
  const std::vector<float> upstream(1, 1.0f);
  const table<T> total(1, 1);
  // Inputs student and teacher.
  for (const double beta : {0.0, 0.5, 0.75, 1.0}) {
    const auto of_student = beta == 0 ? nothing : element;  // there the gradient is -P
    EXPECT_EQ(
        first_lost_nan<T>(
            "jsd, beta " + std::to_string(beta), {draw(1), draw(2)}, {total, {}}, {{all, of_student}, {all, element}},
            [&](auto& in, auto& out) { tigon::jsd_forward<B, T>(in[0], in[1], out[0].v, out[1], {.beta = beta}); }),
        "");
  }
  EXPECT_EQ(first_lost_nan<T>("kl_div", {draw(1), draw_positive(2)}, {total, {}, {}},
                              {{all, nothing, element}, {all, element, element}},
                              [&](auto& in, auto& out) {
                                tigon::kl_div_forward<B, T>(in[0], in[1], out[0].v, out[1]);
                                tigon::kl_div_teacher_backward<B, T>(in[0], in[1], upstream, out[2]);
                              }),
            "");
  EXPECT_EQ(first_lost_nan<T>("tvd", {draw_positive(1), draw_positive(2)}, {total, {}, {}},
                              {{all, element, element}, {all, element, element}},
                              [&](auto& in, auto& out) {
                                tigon::tvd_forward<B, T>(in[0], in[1], out[0].v, out[1]);
                                tigon::tvd_teacher_backward<B, T>(in[0], in[1], upstream, out[2]);
                              }),
            "");
}

}  // namespace
