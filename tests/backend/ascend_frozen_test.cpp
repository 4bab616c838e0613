// Frozen parameters on tiles: dx has the bits that it has beside dw, and there are no partial rows.
#include <gtest/gtest.h>

#include <tigon/backends/ascend/backend.hpp>
#include <tigon/ops/attn_res.hpp>
#include <tigon/ops/dyt.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/layer_norm.hpp>
#include <tigon/ops/rms_norm.hpp>

#include "support/frozen.hpp"
#include "support/problem.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::parameters;
using B = tigon::backends::ascend;

constexpr std::size_t rows = 140;

struct problem {
  std::size_t cols;
  guarded_matrix<float> x, dy, y, dx;
  guarded<float> w, dw, db, alpha, dalpha, rstd, mean;

  explicit problem(std::size_t width)
      : cols(width),
        x(random_matrix<float>({rows, width, 3}, 1)),
        dy(random_matrix<float>({rows, width, 1}, 2)),
        y(rows, width),
        dx(rows, width),
        w(random_vector<float>(width, 3)),
        dw(width),
        db(width),
        alpha(random_vector<float>(1, 4)),
        dalpha(1),
        rstd(rows),
        mean(rows) {}
  frozen_case of(const char* name, std::vector<guarded<float>*> gradients) {
    frozen_case c;
    c.name = name;
    c.clear = [=, this] {
      dx.clear();
      for (auto* g : gradients) g->clear();
    };
    c.others = [this] { return bits_of(dx); };
    for (auto* g : gradients) c.of_parameters.push_back([g] { return bits_of(*g); });
    return c;
  }
};

// Several rows in a tile, one row in several, and rows that f64 takes care of.
constexpr std::size_t widths[] = {300, 20000, 5};

TEST(ascend_frozen, rms_norm) {
  for (const std::size_t cols : widths) {
    problem p(cols);
    tigon::rms_norm_forward<B>(p.x, p.w, p.y.view(), p.rstd);
    frozen_case c = p.of("rms_norm", {&p.dw});
    c.run = [&](unsigned given, context& ctx) {
      tigon::rms_norm_backward<B>(p.dy, p.x, p.w, p.rstd, p.dx.view(), if_given(given, 0, p.dw), {}, ctx);
    };
    c.bytes = [cols](parameters of, const context&) { return tigon::rms_norm_workspace<B, float>(rows, cols, of); };
    check_frozen(c);
  }
}

TEST(ascend_frozen, fused_add_rms_norm) {
  for (const std::size_t cols : widths) {
    problem p(cols);
    const auto ds = random_matrix<float>({rows, cols}, 5);
    tigon::rms_norm_forward<B>(p.x, p.w, p.y.view(), p.rstd);
    frozen_case c = p.of("fused_add_rms_norm", {&p.dw});
    c.run = [&](unsigned given, context& ctx) {
      tigon::fused_add_rms_norm_backward<B>(p.dy, ds, p.x, p.w, p.rstd,
                                            tigon::fused_add_rms_norm_gradients{p.dx.view(), if_given(given, 0, p.dw)},
                                            {}, ctx);
    };
    c.bytes = [cols](parameters of, const context&) {
      return tigon::fused_add_rms_norm_workspace<B, float>(rows, cols, of);
    };
    check_frozen(c);
    // Without dy.
    tigon::fused_add_rms_norm_backward<B>({}, ds, p.x, p.w, p.rstd,
                                          tigon::fused_add_rms_norm_gradients{p.dx.view(), p.dw});
    EXPECT_EQ(p.dx.f64(), ds.f64());
    EXPECT_EQ(p.dw.f64(), std::vector<double>(cols, 0.0));
  }
}

TEST(ascend_frozen, layer_norm) {
  for (const std::size_t cols : widths) {
    problem p(cols);
    tigon::layer_norm_forward<B>(p.x, p.w, tigon::absent, p.y.view(), p.mean, p.rstd);
    frozen_case c = p.of("layer_norm", {&p.dw, &p.db});
    c.run = [&](unsigned given, context& ctx) {
      tigon::layer_norm_backward<B>(
          p.dy, p.x, p.w, p.mean, p.rstd,
          tigon::norm_gradients{p.dx.view(), if_given(given, 0, p.dw), if_given(given, 1, p.db)}, {}, ctx);
    };
    c.bytes = [cols](parameters of, const context&) { return tigon::layer_norm_workspace<B, float>(rows, cols, of); };
    check_frozen(c);
  }
}

TEST(ascend_frozen, dyt) {
  for (const std::size_t cols : widths) {
    problem p(cols);
    frozen_case c = p.of("dyt", {&p.dalpha, &p.dw, &p.db});
    c.run = [&](unsigned given, context& ctx) {
      tigon::dyt_backward<B>(p.dy, p.x, p.alpha, p.w,
                             tigon::dyt_gradients{p.dx.view(), if_given(given, 0, p.dalpha), if_given(given, 1, p.dw),
                                                  if_given(given, 2, p.db)},
                             {}, ctx);
    };
    c.bytes = [cols](parameters of, const context&) { return tigon::dyt_workspace<B, float>(rows, cols, of); };
    check_frozen(c);
  }
}

TEST(ascend_frozen, attn_res) {
  constexpr std::size_t blocks = 5;
  for (const std::size_t cols : widths) {
    problem p(cols);
    const auto v = random_matrix<float>({blocks * rows, cols}, 5);
    guarded_matrix<float> dv(blocks * rows, cols);
    auto query = random_vector<float>(cols, 6);
    guarded<float> alpha(rows * blocks), rstd(rows * blocks);
    const auto in = tigon::blocks_view<const float>::stacked(v.view().data, blocks, rows, cols);
    const auto out = tigon::blocks_view<float>::stacked(dv.view().data, blocks, rows, cols);
    tigon::attn_res_forward<B>(in, query, p.w, p.y.view(), alpha, rstd);
    frozen_case c = p.of("attn_res", {&p.dw, &p.db});
    c.others = [&] { return bits_of(dv); };
    c.run = [&](unsigned given, context& ctx) {
      tigon::attn_res_backward<B>(p.dy, in, query, p.w, {alpha, rstd},
                                  tigon::attn_res_gradients{out, if_given(given, 0, p.dw), if_given(given, 1, p.db)},
                                  {}, ctx);
    };
    c.bytes = [cols](parameters of, const context&) {
      return tigon::attn_res_backward_workspace<B, float>(blocks, rows, cols, of);
    };
    check_frozen(c);
  }
}

}  // namespace
