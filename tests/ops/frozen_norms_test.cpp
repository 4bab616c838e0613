// Frozen parameters of operators on rows: dx has the bits that it has beside dw, nothing else is written, and there are
// no partial rows.
// Operators: several
#include <gtest/gtest.h>

#include <tigon/ops/attn_res.hpp>
#include <tigon/ops/dyt.hpp>
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/group_norm.hpp>
#include <tigon/ops/layer_norm.hpp>
#include <tigon/ops/modulated_rms_norm.hpp>
#include <tigon/ops/poly_norm.hpp>
#include <tigon/ops/rms_norm.hpp>

#include "support/backends.hpp"
#include "support/frozen.hpp"
#include "support/problem.hpp"

#include "support/kernels.hpp"

namespace tigon::backends {
inline namespace TIGON_ABI {

/// As other cores run rows.
struct on_zen4 : test::usual_backend {
  using parent = test::usual_backend;
  static constexpr backend_info info{"on_zen4", {device::cpu}};
  using overrides = op_list<>;
  static constexpr row_tuning row{.cpu = cores::zen4};
};
struct on_intel : test::usual_backend {
  using parent = test::usual_backend;
  static constexpr backend_info info{"on_intel", {device::cpu}};
  using overrides = op_list<>;
  static constexpr row_tuning row{.cpu = cores::intel};
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::context, tigon::parameters;

/// Rows of which a gradient has several partial rows.
constexpr std::size_t rows = 70;

template <class B, class T>
struct rows_of {
  using A = accumulator_t<T>;
  std::size_t cols;
  guarded_matrix<T> x, dy, y, dx;
  guarded<T> w, dw, db, other;
  guarded<A> rstd, mean;

  TIGON_TEST_NOINLINE explicit rows_of(std::size_t width, double size = 1)
      : cols(width),
        x(random_matrix<T>({rows, width, 3}, 1, guard::behind, {.mean = size, .deviation = size})),
        dy(random_matrix<T>({rows, width, 1}, 2)),
        y(rows, width),
        dx(rows, width, 2),
        w(random_vector<T>(width, 3)),
        dw(width),
        db(width),
        other(1),
        rstd(rows),
        mean(rows) {}

  /// With these gradients.
  frozen_case of(std::string name, std::vector<guarded<T>*> gradients, std::vector<guarded_matrix<T>*> others = {}) {
    frozen_case c;
    c.name = std::move(name) + ", " + std::to_string(cols) + " columns";
    others.push_back(&dx);
    c.clear = [=] {
      for (auto* m : others) m->clear();
      for (auto* g : gradients) g->clear();
    };
    c.others = [=] {
      std::vector<std::byte> all;
      for (auto* m : others) all.insert(all.end(), m->bytes().begin(), m->bytes().end());
      return all;
    };
    for (auto* g : gradients) c.of_parameters.push_back([=] { return bits_of(*g); });
    return c;
  }
};

template <class On>
class frozen_norms : public testing::Test {};
#if defined(TIGON_CONFORMANCE_BACKEND)
using pairs = pairs_of<float, tigon::bfloat16>;
#elif defined(TIGON_TESTS_ALL_PAIRS)
using pairs = testing::Types<on<tigon::backends::generic, float>, on<usual_backend, tigon::bfloat16>,
                             on<tigon::backends::on_zen4, float>, on<tigon::backends::on_intel, float>>;
#else
/// The machine's own order of rows, and another.
using other_core = std::conditional_t<usual_backend::row.cpu.order == tigon::row_order::lookahead,
                                      tigon::backends::on_zen4, tigon::backends::on_intel>;
using pairs = testing::Types<on<usual_backend, tigon::bfloat16>, on<other_core, float>>;
#endif
TYPED_TEST_SUITE(frozen_norms, pairs, names);

// Wide rows, rows of which f64 takes care because they are narrow, and because of their size. Large ones: beside small
// ones eps keeps rstd in range.
const std::pair<std::size_t, double> widths[] = {{1500, 1}, {5, 1}, {260, 1e17}};

TYPED_TEST(frozen_norms, rms_norm) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const auto& [cols, size] : widths) {
    rows_of<B, T> p(cols, size);
    tigon::rms_norm_forward<B>(p.x, p.w, p.y.view(), p.rstd);
    frozen_case c = p.of("rms_norm", {&p.dw});
    c.run = [&](unsigned given, context& ctx) {
      tigon::rms_norm_backward<B>(p.dy, p.x, p.w, p.rstd, p.dx.view(), if_given(given, 0, p.dw), {}, ctx);
    };
    c.bytes = [&, n = cols](parameters of, const context&) { return tigon::rms_norm_workspace<B, T>(rows, n, of); };
    c.bytes_without_sums = [](const context&) { return 0; };
    check_frozen(c);
  }
}

TYPED_TEST(frozen_norms, fused_add_rms_norm) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const auto& [cols, size] : widths) {
    rows_of<B, T> p(cols, size);
    const auto ds = random_matrix<T>({rows, cols}, 5);
    guarded_matrix<T> dr(rows, cols);
    tigon::rms_norm_forward<B>(p.x, p.w, p.y.view(), p.rstd);
    frozen_case c = p.of("fused_add_rms_norm", {&p.dw}, {&dr});
    c.run = [&](unsigned given, context& ctx) {
      tigon::fused_add_rms_norm_backward<B>(
          p.dy, ds, p.x, p.w, p.rstd,
          tigon::fused_add_rms_norm_gradients{p.dx.view(), if_given(given, 0, p.dw), dr.view()}, {}, ctx);
    };
    c.bytes = [&, n = cols](parameters of, const context&) {
      return tigon::fused_add_rms_norm_workspace<B, T>(rows, n, of);
    };
    c.bytes_without_sums = [](const context&) { return 0; };
    check_frozen(c);
  }
}

TYPED_TEST(frozen_norms, layer_norm) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const auto& [cols, size] : widths) {
    rows_of<B, T> p(cols, size);
    tigon::layer_norm_forward<B>(p.x, p.w, tigon::absent, p.y.view(), p.mean, p.rstd);
    frozen_case c = p.of("layer_norm", {&p.dw, &p.db});
    c.run = [&](unsigned given, context& ctx) {
      tigon::layer_norm_backward<B>(
          p.dy, p.x, p.w, p.mean, p.rstd,
          tigon::norm_gradients{p.dx.view(), if_given(given, 0, p.dw), if_given(given, 1, p.db)}, {}, ctx);
    };
    c.bytes = [&, n = cols](parameters of, const context&) { return tigon::layer_norm_workspace<B, T>(rows, n, of); };
    c.bytes_without_sums = [](const context&) { return 0; };
    check_frozen(c);
  }
}

TYPED_TEST(frozen_norms, group_norm) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const auto& [cols, size] : widths) {
    rows_of<B, T> p(cols, size);
    const tigon::group_norm_options opt{.groups = 5, .channels = 10};
    auto w = random_vector<T>(10, 3);
    guarded<T> dw(10), db(10);
    guarded<accumulator_t<T>> mean(rows / 2), rstd(rows / 2);
    tigon::group_norm_forward<B>(p.x, w, tigon::absent, p.y.view(), mean, rstd, opt);
    frozen_case c = p.of("group_norm", {&dw, &db});
    c.run = [&](unsigned given, context& ctx) {
      tigon::group_norm_backward<B>(p.dy, p.x, w, mean, rstd,
                                    tigon::norm_gradients{p.dx.view(), if_given(given, 0, dw), if_given(given, 1, db)},
                                    opt, ctx);
    };
    c.bytes = [](parameters of, const context&) { return tigon::group_norm_workspace<B, T>(rows, 10, of); };
    c.bytes_without_sums = [](const context&) { return 0; };
    check_frozen(c);
  }
}

TYPED_TEST(frozen_norms, poly_norm) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const auto& [cols, size] : widths) {
    rows_of<B, T> p(cols, size);
    auto w = random_vector<T>(3, 3), b = random_vector<T>(1, 4);
    guarded<T> dw(3);
    guarded<accumulator_t<T>> rstd(3 * rows);
    tigon::poly_norm_forward<B>(p.x, w, b, p.y.view(), rstd);
    frozen_case c = p.of("poly_norm", {&dw, &p.other});
    c.run = [&](unsigned given, context& ctx) {
      tigon::poly_norm_backward<B>(
          p.dy, p.x, w, rstd, tigon::norm_gradients{p.dx.view(), if_given(given, 0, dw), if_given(given, 1, p.other)},
          {}, ctx);
    };
    c.bytes = [&](parameters of, const context&) { return tigon::poly_norm_workspace<B, T>(rows, of); };
    check_frozen(c);
  }
}

TYPED_TEST(frozen_norms, dyt) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const auto& [cols, size] : widths) {
    rows_of<B, T> p(cols, size);
    auto alpha = random_vector<T>(1, 4);
    frozen_case c = p.of("dyt", {&p.other, &p.dw, &p.db});
    c.run = [&](unsigned given, context& ctx) {
      tigon::dyt_backward<B>(p.dy, p.x, alpha, p.w,
                             tigon::dyt_gradients{p.dx.view(), if_given(given, 0, p.other), if_given(given, 1, p.dw),
                                                  if_given(given, 2, p.db)},
                             {}, ctx);
    };
    c.bytes = [&, n = cols](parameters of, const context&) { return tigon::dyt_workspace<B, T>(rows, n, of); };
    c.bytes_without_sums = [n = cols](const context&) { return tigon::workspace::bytes_for<accumulator_t<T>>(n); };
    check_frozen(c);
  }
}

TYPED_TEST(frozen_norms, modulated_rms_norm) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t group_rows : {1u, 2u, 35u})
    for (const auto& [cols, size] : widths) {
      rows_of<B, T> p(cols, size);
      const tigon::modulated_rms_norm_options opt{.group_rows = group_rows};
      const std::size_t groups = rows / group_rows, n = cols;
      const auto scale = random_matrix<T>({groups, cols}, 5);
      guarded_matrix<T> dscale(groups, cols), dshift(groups, cols);
      tigon::modulated_rms_norm_forward<B>(p.x, p.w, scale.view(), {}, p.y.view(), p.rstd, opt);
      frozen_case c = p.of("modulated_rms_norm, " + std::to_string(groups) + " groups", {&p.dw}, {&dscale, &dshift});
      c.run = [&](unsigned given, context& ctx) {
        tigon::modulated_rms_norm_backward<B>(
            p.dy, p.x, p.w, scale, p.rstd,
            tigon::modulated_rms_norm_gradients{p.dx.view(), if_given(given, 0, p.dw), dscale.view(), dshift.view()},
            opt, ctx);
      };
      c.bytes = [&](parameters of, const context& ctx) {
        return tigon::modulated_rms_norm_workspace<B, T>(rows, n, groups, ctx, of);
      };
      c.smaller = groups != 2;  // the sums of a group are those of dscale
      check_frozen(c);
    }
}

TYPED_TEST(frozen_norms, attn_res) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t blocks : {1u, 5u}) {
    rows_of<B, T> p(260);
    const auto v = random_matrix<T>({blocks * rows, 260}, 5);
    guarded_matrix<T> dv(blocks * rows, 260);
    auto query = random_vector<T>(260, 6);
    guarded<accumulator_t<T>> alpha(rows * blocks), rstd(rows * blocks);
    const auto in = tigon::blocks_view<const T>::stacked(v.view().data, blocks, rows, 260);
    const auto out = tigon::blocks_view<T>::stacked(dv.view().data, blocks, rows, 260);
    tigon::attn_res_forward<B>(in, query, p.w, p.y.view(), alpha, rstd);
    frozen_case c = p.of("attn_res", {&p.dw, &p.db}, {&dv});
    c.run = [&](unsigned given, context& ctx) {
      tigon::attn_res_backward<B>(p.dy, in, query, p.w, {alpha, rstd},
                                  tigon::attn_res_gradients{out, if_given(given, 0, p.dw), if_given(given, 1, p.db)},
                                  {}, ctx);
    };
    c.bytes = [&](parameters of, const context&) {
      return tigon::attn_res_backward_workspace<B, T>(blocks, rows, 260, of);
    };
    check_frozen(c);
    // One of the two, added to itself.
    for (guarded<T>* one : {&p.dw, &p.db}) {
      const auto backward = [&](tigon::attn_res_options opt) {
        const unsigned given = one == &p.dw ? 1 : 2;
        tigon::attn_res_backward<B>(p.dy, in, query, p.w, {alpha, rstd},
                                    tigon::attn_res_gradients{out, if_given(given, 0, p.dw), if_given(given, 1, p.db)},
                                    opt);
        return one->f64();
      };
      const auto once = backward({}), twice = backward({.dparams = tigon::gradient::accumulate});
      const double rounding = std::same_as<T, float> ? 0x1p-23 : 0x1p-7;
      for (std::size_t j = 0; j < once.size(); ++j)
        EXPECT_NEAR(twice[j], 2 * once[j], 2 * rounding * std::abs(once[j])) << j;
    }
  }
}

}  // namespace
