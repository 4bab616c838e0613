// Whose code runs, with whose numbers: the rules of backend/kernel.hpp that are not refusals (those are in
// compile_fail).
#include <gtest/gtest.h>

#include <tigon/tigon.hpp>

#include "own_backend.hpp"
#include "support/backend_list.hpp"

namespace {

namespace tb = tigon::backends;
namespace op = tigon::op;
using tigon::matrix_view;

using strings = std::vector<std::string>;

constexpr std::size_t rows = 3, cols = 21;

struct norm {
  std::vector<float> x = std::vector<float>(rows * cols), w = std::vector<float>(cols, 0.5f);
  std::vector<float> y = std::vector<float>(rows * cols), dx = y, dw = w, rstd = std::vector<float>(rows);

  norm() {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 2.5f;
  }
  static matrix_view<float> view(std::vector<float>& v) { return {v.data(), rows, cols}; }
  template <class B>
  void forward() {
    tigon::rms_norm_forward<B>(view(x), w, view(y), rstd);
  }
  template <class B>
  void backward() {
    tigon::rms_norm_backward<B>(view(x), view(x), w, rstd, view(dx), dw);
  }
};

TEST(Provider, IsTheNearestOnTheChain) {
  static_assert(std::same_as<tigon::provider_t<op::rms_norm, tb::generic>, tb::generic>);
  static_assert(std::same_as<tigon::provider_t<op::rms_norm, tb::highway>, tb::generic>);
  static_assert(std::same_as<tigon::provider_t<op::gemm, tb::highway>, tb::highway>);
  static_assert(std::same_as<tigon::provider_t<op::gemm, tb::xsimd>, tb::generic>);
  static_assert(std::same_as<tigon::provider_t<op::gemm, tb::acme>, tb::acme>);
  static_assert(std::same_as<tigon::provider_t<op::softmax, tb::acme>, tb::generic>);
  static_assert(std::same_as<tigon::provider_t<op::rms_norm, tb::acme2>, tb::acme>);
}

struct other_products : tb::highway {
  using self = other_products;
  using parent = tb::highway;
  static constexpr tigon::backend_info info{"other_products", {tigon::device::cpu}, {}};
  using overrides = tigon::op_list<op::gemm>;
};
struct exact_rows : other_products {
  using parent = other_products;
  static constexpr tigon::backend_info info{"exact_rows", {tigon::device::cpu}, {}};
  static constexpr bool relaxed_16bit = !tb::highway::relaxed_16bit;
};
struct other_steps : other_products {
  using parent = other_products;
  static constexpr tigon::backend_info info{"other_steps", {tigon::device::cpu}, {}};
  static constexpr tigon::row_tuning row{.unroll = 1};
};
struct same_steps : other_steps {
  using parent = other_steps;
  static constexpr tigon::backend_info info{"same_steps", {tigon::device::cpu}, {}};
};

struct acme_products : tb::acme {
  using self = acme_products;
  using parent = tb::acme;
  static constexpr tigon::backend_info info{"acme_products", {tigon::device::cpu}, {}};
  using overrides = tigon::op_list<op::gemm>;
};

TEST(Provider, RowsOfABackendWithOtherProductsAreItsParents) {
  static_assert(std::same_as<tigon::row_backend<other_products>, tb::highway>);
  static_assert(std::same_as<tigon::row_backend<tb::highway>, tb::highway>);  // other lanes than its parent's
  static_assert(std::same_as<tigon::row_backend<tb::generic>, tb::generic>);
  static_assert(std::same_as<tigon::row_backend<tb::tuned>, tb::tuned>);  // other numbers
  static_assert(std::same_as<tigon::row_backend<other_steps>, other_steps>);
  static_assert(std::same_as<tigon::row_backend<same_steps>, other_steps>);
  static_assert(std::same_as<tigon::row_backend<exact_rows>, exact_rows>);
  static_assert(std::same_as<tigon::row_backend<tb::acme>, tb::acme>);            // rows of its own
  static_assert(std::same_as<tigon::row_backend<acme_products>, acme_products>);  // acme's may have other numbers
}

TEST(Provider, TuningAloneOverridesNothing) {
  static_assert(std::same_as<tigon::provider_t<op::rms_norm, tb::tuned>, tb::generic>);
  static_assert(std::same_as<tigon::provider_t<op::gemm, tb::tuned>, tb::highway>);
  static_assert(tb::tuned::row.unroll == 1 && tb::tuned::row != tb::highway::row);
  static_assert(tb::tuned::chunk == tb::highway::chunk);
  norm a, b;
  a.forward<tb::tuned>(), a.backward<tb::tuned>();
  b.forward<tb::highway>(), b.backward<tb::highway>();
  for (std::size_t i = 0; i < a.y.size(); ++i) {
    EXPECT_NEAR(a.y[i], b.y[i], 1e-6f);
    EXPECT_NEAR(a.dx[i], b.dx[i], 1e-5f);
  }
}

// A type that restates a number and nothing else is its base with that number, by the base's kernels.
TEST(Provider, NumbersAloneNeedNoKernelAndNoName) {
  static_assert(std::same_as<tigon::parent_t<tb::my_cpu>, tb::highway>);
  static_assert(std::same_as<tigon::parent_t<tb::my_acme>, tb::acme>);
  static_assert(std::same_as<tigon::provider_t<op::gemm, tb::my_cpu>, tb::highway>);
  static_assert(std::same_as<tigon::provider_t<op::softmax, tb::my_cpu>, tb::generic>);
  static_assert(std::same_as<tigon::provider_t<op::gemm, tb::renamed>, tb::highway>);
  static_assert(std::same_as<tigon::provider_t<op::rms_norm, tb::my_acme>, tb::acme>);
  static_assert(tb::my_cpu::info.name == "highway" && tb::my_cpu::row != tb::highway::row);
  calls().clear();
  norm a, b, c, d;
  a.forward<tb::my_cpu>(), a.backward<tb::my_cpu>();
  b.forward<tb::renamed>(), b.backward<tb::renamed>();
  c.forward<tb::highway>(), c.backward<tb::highway>();
  EXPECT_TRUE(calls().empty());
  EXPECT_EQ(b.y, c.y);
  EXPECT_EQ(b.dw, c.dw);
  for (std::size_t i = 0; i < a.y.size(); ++i) EXPECT_NEAR(a.dx[i], c.dx[i], 1e-5f);
  d.forward<tb::my_acme>(), d.backward<tb::my_acme>();
  EXPECT_EQ(calls(), (strings{"rms_norm forward acme", "rms_norm backward acme"}));
}

TEST(Provider, AnOverrideIsSeenByTheDoor) {
  calls().clear();
  norm a, b;
  a.forward<tb::acme>(), a.backward<tb::acme>();
  EXPECT_EQ(calls(), (strings{"rms_norm forward acme", "rms_norm backward acme"}));
  b.forward<tb::highway>(), b.backward<tb::highway>();
  EXPECT_EQ(calls().size(), 2u) << "a parent does not see the overrides of its children";
  EXPECT_EQ(a.y, b.y);
  EXPECT_EQ(a.dx, b.dx);
  EXPECT_EQ(a.dw, b.dw);
}

TEST(Provider, AChildInheritsTheOverrideAndKeepsItsNumbers) {
  calls().clear();
  norm a;
  a.forward<tb::acme2>(), a.backward<tb::acme2>();
  EXPECT_EQ(calls(), (strings{"rms_norm forward acme2", "rms_norm backward acme2"}));
  a.forward<tb::my_acme2>();
  EXPECT_EQ(calls().back(), "rms_norm forward my_acme2");
}

TEST(Provider, SavedComesFromIt) {
  static_assert(std::same_as<tigon::saved_t<op::rms_norm, tb::acme2, float>, acme_saved<float>>);
  static_assert(std::same_as<tigon::saved_t<op::rms_norm, tb::highway, float>, std::span<float>>);
}

// R4: an operator that is made of operators calls them through the backend.
TEST(Composite, BackwardOfAProductSeesTheOverride) {
  calls().clear();
  std::vector<float> a(6, 1), b(6, 1), dc(4, 1), da(6), db(6);
  tigon::gemm_backward<tb::acme2>(matrix_view(dc.data(), 2, 2), matrix_view(a.data(), 2, 3),
                                  matrix_view(b.data(), 3, 2), matrix_view(da.data(), 2, 3),
                                  matrix_view(db.data(), 3, 2));
  EXPECT_EQ(calls(), (strings{"gemm forward acme2", "gemm forward acme2"}));
  EXPECT_EQ(da, std::vector<float>(6, 2));
}

TEST(Composite, FusedLinearCrossEntropySeesTheOverride) {
  calls().clear();
  std::vector<float> x(4 * 5, 0.25f), w(7 * 5, 0.5f), dx(x.size()), dw(w.size()), loss(1);
  const std::vector<std::int32_t> target{0, 3, 6, 1};
  tigon::fused_linear_cross_entropy_forward<tb::acme2>(
      tigon::linear_layer{matrix_view(x.data(), 4, 5), matrix_view(w.data(), 7, 5)}, target, {loss},
      {matrix_view(dx.data(), 4, 5), matrix_view(dw.data(), 7, 5)});
  EXPECT_EQ(calls(), strings(3, "gemm forward acme2")) << "logits, dx, dw";
  EXPECT_NEAR(loss[0], std::log(7.0), 1e-6);
}

TEST(Composite, AttentionSeesTheOverride) {
  calls().clear();
  std::vector<float> q(2 * 4, 0.5f), k = q, v = q, o(q.size()), lse(2);
  const auto heads = [](auto& m) { return tigon::heads_view<float>::of_heads(m.data(), 1, 1, 2, 4); };
  tigon::attention_forward<tb::acme>(heads(q), heads(k), heads(v), heads(o), lse);
  EXPECT_EQ(calls(), strings(2, "gemm forward acme")) << "scores, o";
  calls().clear();
  std::vector<float> d(2 * 4, 0.25f), dq(d.size()), dk(d.size()), dv(d.size());
  tigon::attention_backward<tb::acme>(heads(d), heads(q), heads(k), heads(v), {heads(o), lse},
                                      tigon::attention_gradients{heads(dq), heads(dk), heads(dv)});
  EXPECT_EQ(calls(), strings(5, "gemm forward acme")) << "scores, dp, dq, dk, dv";
}

// A composite of the user's own: a gated MLP, whose products and gate are the backend's.
template <class B>
void mlp(matrix_view<float> x, matrix_view<float> up, matrix_view<float> down, matrix_view<float> gated,
         matrix_view<float> y) {
  std::vector<float> wide(x.rows * up.rows);
  const matrix_view<float> h(wide.data(), x.rows, up.rows);
  tigon::gemm<B>(x, up, h, {.b = tigon::transpose::yes});
  tigon::swiglu_forward<B>(h, h, gated);
  tigon::gemm<B>(gated, down, y, {.b = tigon::transpose::yes});
}

TEST(Composite, AnMlpSeesTheOverride) {
  std::vector<float> x(2 * 3, 1), up(5 * 3, 0.5f), down(3 * 5, 0.5f), gated(2 * 5), y(2 * 3), expected(2 * 3);
  const auto run = [&]<class B>(B*, std::vector<float>& out) {
    mlp<B>(matrix_view(x.data(), 2, 3), matrix_view(up.data(), 5, 3), matrix_view(down.data(), 3, 5),
           matrix_view(gated.data(), 2, 5), matrix_view(out.data(), 2, 3));
  };
  calls().clear();
  run(static_cast<tb::highway*>(nullptr), expected);
  EXPECT_TRUE(calls().empty());
  run(static_cast<tb::acme2*>(nullptr), y);
  EXPECT_EQ(calls(), strings(2, "gemm forward acme2"));
  EXPECT_EQ(y, expected);
}

TEST(Audit, AcceptsEveryBackendOfThisBuild) {
  const auto audited = []<class... B>(tigon::test::list<B...>) { return (tigon::audit<B>(tigon::all_ops{}) && ...); };
  static_assert(audited(tigon::test::all_backends{}));
  static_assert(tigon::audit<tb::acme>(tigon::all_ops{}) && tigon::audit<tb::acme2>(tigon::all_ops{}));
}

TEST(Coverage, ListsOperatorsAndWhoProvidesThem) {
  constexpr auto rows = tigon::coverage<tb::acme2>(tigon::op_list<op::rms_norm, op::softmax, op::gemm>{});
  EXPECT_EQ(rows[0].op, "rms_norm");
  EXPECT_EQ(rows[0].provider, "acme");
  EXPECT_EQ(rows[1].op, "softmax");
  EXPECT_EQ(rows[1].provider, "generic");
  EXPECT_EQ(rows[2].op, "gemm");
  EXPECT_EQ(rows[2].provider, "acme");
}

template <class B>
void print_coverage() {
  std::printf("%s:", std::string(B::info.name).c_str());
  for (const auto& [name, provider] : tigon::coverage<B>(tigon::all_ops{})) {
    EXPECT_FALSE(name.empty());
    EXPECT_FALSE(provider.empty());
    if (provider != "generic") std::printf(" %s by %s", std::string(name).c_str(), std::string(provider).c_str());
  }
  std::puts("");
}

TEST(Coverage, EveryBackendHasEveryOperator) {
  static_assert(tigon::all_ops::size > 0);
  []<class... B>(tigon::test::list<B...>) { (print_coverage<B>(), ...); }(tigon::test::all_backends{});
}

}  // namespace
