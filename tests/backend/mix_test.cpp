// A mix runs the operators that it takes on the backend that they are taken from, and all others on its own.
#include <gtest/gtest.h>

#include <cmath>
#include <tigon/backend/mix.hpp>
#include <tigon/gemm/gemm.hpp>
#include <tigon/ops/dyt.hpp>
#include <tigon/ops/softmax.hpp>

#include "own_backend.hpp"

namespace {

namespace tb = tigon::backends;
namespace op = tigon::op;
using tigon::from;
using tigon::matrix_view;
using tigon::mix;

using strings = std::vector<std::string>;
constexpr std::size_t rows = 5, cols = 1003;

using scalar_softmax = mix<tb::highway, from<tb::generic, op::softmax>>;
using with_acme = mix<tb::highway, from<tb::acme, op::rms_norm>, from<tb::generic, op::softmax>>;

/// With a name and a number of its own.
struct named : with_acme {
  using self = named;
  using parent = with_acme;
  static constexpr tigon::backend_info info{"named", {tigon::device::cpu}};
  using overrides = tigon::op_list<>;
  static constexpr tigon::row_tuning row{.unroll = 1};
};

std::vector<float> numbers(std::size_t n) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = 3 * std::sin(static_cast<float>(i * i % 977));
  return x;
}
matrix_view<float> view(std::vector<float>& v) { return {v.data(), rows, cols}; }

template <class B>
std::vector<float> softmax_of() {
  std::vector<float> x = numbers(rows * cols), y(x.size());
  tigon::softmax_forward<B>(view(x), view(y));
  return y;
}
template <class B>
std::vector<float> norm_both_ways() {
  std::vector<float> x = numbers(rows * cols), y(x.size()), dx(x.size()), w(cols, 0.5f), dw(cols), rstd(rows);
  tigon::rms_norm_forward<B>(view(x), w, view(y), rstd);
  tigon::rms_norm_backward<B>(view(y), view(x), w, rstd, view(dx), dw);
  dx.insert(dx.end(), dw.begin(), dw.end());
  return dx;
}

TEST(Mix, TakesLanesAndKernelTogether) {
  ASSERT_NE(softmax_of<tb::generic>(), softmax_of<tb::highway>()) << "sums in one lane have other bits";
  EXPECT_EQ(softmax_of<scalar_softmax>(), softmax_of<tb::generic>());
  EXPECT_EQ(norm_both_ways<scalar_softmax>(), norm_both_ways<tb::highway>());
}

TEST(Mix, CallsTheKernelOfAnotherVendor) {
  calls().clear();
  const std::vector<float> taken = norm_both_ways<with_acme>();
  EXPECT_EQ(calls(), (strings{"rms_norm forward acme_with_generic", "rms_norm backward acme_with_generic"}));
  EXPECT_EQ(taken, norm_both_ways<tb::acme>());
  EXPECT_EQ(softmax_of<with_acme>(), softmax_of<tb::generic>());
}

TEST(Mix, MayHaveAName) {
  static_assert(tigon::parent_t<named>::info.name == "highway_with_acme_generic");
  static_assert(std::same_as<tigon::provider_t<op::rms_norm, named>, with_acme>);
  calls().clear();
  EXPECT_EQ(norm_both_ways<named>(), norm_both_ways<tb::acme>());
  EXPECT_EQ(calls().size(), 4u);
  EXPECT_EQ(softmax_of<named>(), softmax_of<tb::generic>());
}

TEST(Mix, IsABackend) {
  static_assert(tigon::backend<with_acme> && tigon::backend<named>);
  using ops = tigon::op_list<op::gemm, op::rms_norm, op::softmax, op::dyt>;
  static_assert(tigon::audit<with_acme>(ops{}) && tigon::audit<named>(ops{}) && tigon::audit<scalar_softmax>(ops{}));
  static_assert(with_acme::info.devices == tigon::device_set{tigon::device::cpu});
  static_assert(with_acme::info.default_devices.empty());
}

/// A vendor's chip and the next one, which inherits all.
constexpr tigon::device acme_chip{"acme_chip"};
struct chip : tb::acme {
  using self = chip;
  using parent = tb::acme;
  static constexpr tigon::backend_info info{"chip", {acme_chip}};
  using overrides = tigon::op_list<>;
};

TEST(Mix, RunsWhereItsBackendsDo) {
  static_assert(mix<tb::generic, from<tb::highway, op::softmax>>::info.devices ==
                tigon::device_set{tigon::device::cpu});  // generic alone: on npu, too
  // What it would inherit anyway, it may take: of acme the product, of highway's the norm.
  using inherits = mix<chip, from<tb::generic, op::rms_norm>, from<tb::acme, op::gemm>>;
  static_assert(inherits::info.devices == tigon::device_set{acme_chip});
  static_assert(std::same_as<tigon::provider_t<op::rms_norm, chip>, tb::acme>);
  calls().clear();
  EXPECT_EQ(norm_both_ways<inherits>(), norm_both_ways<tb::generic>());
  EXPECT_TRUE(calls().empty());
}

// What an operator is made of is looked up in the mix: a product's gradient is two products.
TEST(Mix, OfAProduct) {
  using products = mix<tb::highway, from<tb::acme, op::gemm>>;
  static_assert(std::same_as<tigon::row_backend<products>, tb::highway>);  // rows are compiled once
  std::vector<float> a = numbers(6), b = numbers(8), c(12);
  calls().clear();
  tigon::gemm<products>(matrix_view(a.data(), 3, 2), matrix_view(b.data(), 2, 4), matrix_view(c.data(), 3, 4));
  EXPECT_EQ(calls(), strings{"gemm forward highway_with_acme"});
  std::vector<float> da(6), db(8);
  tigon::gemm_backward<products>(matrix_view(c.data(), 3, 4), matrix_view(a.data(), 3, 2), matrix_view(b.data(), 2, 4),
                                 matrix_view(da.data(), 3, 2), matrix_view(db.data(), 2, 4));
  EXPECT_EQ(calls().size(), 3u);
}

TEST(Mix, ShowsWhereAnOperatorComesFrom) {
  constexpr auto rows_of = tigon::coverage<with_acme>(tigon::op_list<op::gemm, op::rms_norm, op::softmax, op::dyt>{});
  EXPECT_EQ(rows_of[0].provider, "highway");
  EXPECT_EQ(rows_of[1].provider, "acme");
  EXPECT_EQ(rows_of[2].provider, "generic");
  EXPECT_EQ(rows_of[3].provider, "generic");
  constexpr auto table = tigon::coverage_table<tb::acme, with_acme, named>(tigon::op_list<op::gemm, op::rms_norm>{});
  EXPECT_EQ(table[0].providers, (std::array<std::string_view, 3>{"acme", "highway", "highway"}));
  EXPECT_EQ(table[1].providers, (std::array<std::string_view, 3>{"acme", "acme", "acme"}));
  using on_acme = mix<tb::highway, from<tb::acme, op::softmax>>;
  EXPECT_EQ(tigon::coverage<on_acme>(tigon::op_list<op::softmax>{})[0].provider, "generic on acme");
}

/// Wants more partial rows than its parent.
struct many_partials : tb::highway {
  using self = many_partials;
  using parent = tb::highway;
  static constexpr tigon::backend_info info{"many_partials", {tigon::device::cpu}};
  using overrides = tigon::op_list<>;
  static constexpr tigon::row_tuning row{.task_elements = 64, .partials = 128};
};

/// A mix with numbers of its own, for what is not taken.
struct many_in_mix : scalar_softmax {
  using self = many_in_mix;
  using parent = scalar_softmax;
  static constexpr tigon::backend_info info{"many_in_mix", {tigon::device::cpu}};
  using overrides = tigon::op_list<>;
  static constexpr tigon::row_tuning row = many_partials::row;
};

// A door reserves memory before it is known whose kernel runs.
TEST(Mix, ReservesForTheBackendThatTakesMost) {
  using B = mix<tb::highway, from<many_partials, op::dyt>>;
  constexpr std::size_t n = 4000, d = 16;
  ASSERT_GT((tigon::dyt_workspace<many_partials, float>(n, d)), (tigon::dyt_workspace<tb::highway, float>(n, d)));
  EXPECT_EQ((tigon::dyt_workspace<B, float>(n, d)), (tigon::dyt_workspace<many_partials, float>(n, d)));
  EXPECT_EQ((tigon::dyt_workspace<many_in_mix, float>(n, d)), (tigon::dyt_workspace<many_partials, float>(n, d)));
}

}  // namespace
