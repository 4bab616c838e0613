// The contract of include/tigon/ops/tiled_mlp.hpp, promise by promise.
#include <gtest/gtest.h>

#include <tigon/ops/tiled_mlp.hpp>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/mlp_problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace tigon::backends {
inline namespace TIGON_ABI {

/// An MLP of its own.
struct own_mlp : test::usual_backend {
  using parent = test::usual_backend;
  static constexpr backend_info info{"own_mlp", {device::cpu}};
  using overrides = op_list<op::mlp>;
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

inline std::size_t forward_calls = 0, backward_calls = 0;
using usual_mlp = tigon::kernel<tigon::op::mlp, tigon::provider_t<tigon::op::mlp, tigon::test::usual_backend>>;

template <>
struct tigon::kernel<tigon::op::mlp, tigon::backends::own_mlp> : usual_mlp {
  template <backend B, element T, element W, class... Rest>
  static void forward(Rest... rest) {
    ++forward_calls;
    usual_mlp::template forward<B, T, W>(rest...);
  }
  template <backend B, element T, element W, element G, class... Rest>
  static void backward(Rest... rest) {
    ++backward_calls;
    usual_mlp::template backward<B, T, W, G>(rest...);
  }
};

namespace {

using namespace tigon::test;
using tigon::bfloat16, tigon::context, tigon::gradient, tigon::matrix_view, tigon::mlp_options, tigon::transpose;
using shards = std::optional<std::size_t>;

template <class T, class W = T, class G = W>
struct problem : mlp_problem<T, W, G> {
  tigon::tiled_mlp_options tiled;

  TIGON_TEST_NOINLINE explicit problem(mlp_sizes s, mlp_options o, shards k, guard side = guard::behind)
      : mlp_problem<T, W, G>(s, o, side), tiled{o, k} {}

  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    tigon::tiled_mlp_forward<B, T>(this->x, tigon::mlp_weights{this->wg.view(), this->wu.view(), this->wd.view()},
                                   this->y.view(), tiled, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(matrix_view<T> dx, matrix_view<G> dwg, matrix_view<G> dwu, matrix_view<G> dwd,
                                    context& ctx = tigon::default_context()) {
    tigon::tiled_mlp_backward<B, T>(this->dy, this->x,
                                    tigon::mlp_weights{this->wg.view(), this->wu.view(), this->wd.view()}, dx,
                                    tigon::mlp_weights{dwg, dwu, dwd}, tiled, ctx);
  }
  template <class B>
  void backward(context& ctx = tigon::default_context()) {
    backward<B>(this->dx.view(), this->dwg.view(), this->dwu.view(), this->dwd.view(), ctx);
  }
};

template <class On>
class tiled_mlp : public testing::Test {};
TYPED_TEST_SUITE(tiled_mlp, mlp_pairs, names);

TYPED_TEST(tiled_mlp, keeps_its_error_for_any_number_of_shards) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const mlp_sizes s : every_mlp_size)
    for (const mlp_variant& v : mlp_variants)
      for (const shards k : {shards(), shards(1), shards(2), shards(3), shards(s.tokens + 5)}) {
        SCOPED_TRACE(testing::Message() << s << ", " << v.name << ", shards " << k.value_or(0));
        problem<T> p(s, v.opt, k, s.tokens % 2 == 0 ? guard::behind : guard::before);
        const auto wanted = p.wanted();
        p.template forward<B>();
        p.template backward<B>();
        p.expect_value(wanted);
        p.expect_gradients(wanted);
      }
}

TYPED_TEST(tiled_mlp, each_gradient_may_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const mlp_sizes s{20, 17, 45};
  problem<T> full(s, {}, 3);
  full.template backward<B>();
  for (int which = 0; which < 16; ++which) {
    problem<T> p(s, {}, 3);
    const bool dx = which & 1, dwg = which & 2, dwu = which & 4, dwd = which & 8;
    const auto given = [](bool is, auto& m) { return is ? m.view() : decltype(m.view()){}; };
    p.template backward<B>(given(dx, p.dx), given(dwg, p.dwg), given(dwu, p.dwu), given(dwd, p.dwd));
    EXPECT_TRUE(dx ? bits_of(p.dx) == bits_of(full.dx) : p.dx.untouched()) << which;
    EXPECT_TRUE(dwg ? bits_of(p.dwg) == bits_of(full.dwg) : p.dwg.untouched()) << which;
    EXPECT_TRUE(dwu ? bits_of(p.dwu) == bits_of(full.dwu) : p.dwu.untouched()) << which;
    EXPECT_TRUE(dwd ? bits_of(p.dwd) == bits_of(full.dwd) : p.dwd.untouched()) << which;
  }
}

TYPED_TEST(tiled_mlp, dx_may_overwrite_dy_or_x) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const mlp_sizes s{20, 17, 45, 2};
  problem<T> apart(s, {}, 3);
  apart.template backward<B>();
  for (const auto to : {&problem<T>::dy, &problem<T>::x}) {
    problem<T> p(s, {}, 3);
    p.template backward<B>((p.*to).view(), p.dwg.view(), p.dwu.view(), p.dwd.view());
    EXPECT_EQ(bits_of(p.*to, p.dwg, p.dwu, p.dwd), apart.gradients());
  }
}

TYPED_TEST(tiled_mlp, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({70, 40, 230}, {}, 3);
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.clear();
    p.template forward<B>(ctx);
    p.template backward<B>(ctx);
    return bits_of(p.y, p.dx, p.dwg, p.dwu, p.dwd);
  }));
}

TYPED_TEST(tiled_mlp, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  struct {
    mlp_sizes s;
    shards k;
  } const cases[] = {
      {{20, 17, 67}, {}}, {{20, 17, 67}, 1}, {{20, 17, 67}, 3}, {{11, 5, 5}, 2}};  // there the shorter shard wants more
  for (const auto& [s, k] : cases)
    for (const std::size_t threads : {1u, 3u}) {
      problem<T> p(s, {}, k);
      const std::size_t H = s.hidden, I = s.intermediate;
      const std::size_t forward = tigon::tiled_mlp_workspace<B, T>(s.tokens, H, I, k, threads),
                        backward = tigon::tiled_mlp_backward_workspace<B, T>(s.tokens, H, I, k, threads);
      if (threads == 1) {
        EXPECT_EQ((tigon::tiled_mlp_workspace<B, T>(s.tokens, H, I, k)), forward);
      }
      const auto run_forward = [&p](context& ctx) { p.template forward<B>(ctx); };
      const auto run_backward = [&p](context& ctx) { p.template backward<B>(ctx); };
      EXPECT_TIGON_ERROR(with_workspace_of(forward - 1, run_forward, threads), workspace,
                         "tiled_mlp_forward: workspace is of", p.y);
      EXPECT_TIGON_ERROR(with_workspace_of(backward - 1, run_backward, threads), workspace,
                         "tiled_mlp_backward: workspace is of", p.dx, p.dwg, p.dwu, p.dwd);
      with_workspace_of(forward, run_forward, threads);
      with_workspace_of(backward, run_backward, threads);
    }
}

// Every token adds one to an entry of dwd. Added up in bf16 the sum stays at 256.
TEST(tiled_mlp_of_16_bits, sums_over_shards_in_f32) {
  const std::size_t tokens = 600;
  guarded_matrix<bfloat16> x(tokens, 1), dy(tokens, 1), wg(1, 1), wu(1, 1), wd(1, 1), dwg(1, 1), dwu(1, 1), dwd(1, 1);
  x.assign(std::vector<double>(tokens, 32)), dy.assign(std::vector<double>(tokens, 1));
  wg.assign({1}), wu.assign({1.0 / 1024}), wd.assign({0});  // a = 32 * 1 * 32 / 1024
  for (const gradient mode : {gradient::overwrite, gradient::accumulate})
    for (const std::size_t k : {1u, 16u, 600u, 1000u}) {
      dwg.assign({0}), dwu.assign({0}), dwd.assign({mode == gradient::accumulate ? 24.0 : -1.0});
      tigon::tiled_mlp_backward<usual_backend, bfloat16>(
          dy, x, tigon::mlp_weights{wg.view(), wu.view(), wd.view()}, matrix_view<bfloat16>{},
          tigon::mlp_weights{dwg.view(), dwu.view(), dwd.view()}, {.mlp = {.dw = mode}, .shards = k});
      EXPECT_EQ(to_f64(dwd(0, 0)), mode == gradient::accumulate ? 624 : 600) << k << " shards";
    }
}

TEST(tiled_mlp_of_16_bits, sixteen_shards_are_as_exact_as_one) {
  const mlp_sizes s{320, 40, 60};
  problem<bfloat16> one(s, {}, 1), many(s, {}, 16);
  const auto wanted = one.wanted();
  one.backward<usual_backend>(), many.backward<usual_backend>();
  const auto error = [](const auto& got, const std::vector<double>& want) { return measure(got.f64(), want).rel_l2; };
  const auto compare = [&](auto which, const std::vector<double>& want) {
    EXPECT_LE(error(many.*which, want), 1.01 * error(one.*which, want));
    EXPECT_LE(measure((many.*which).f64(), (one.*which).f64()).rel_l2, 1e-3);
  };
  using of = mlp_problem<bfloat16>;
  compare(&of::dwg, wanted.dwg), compare(&of::dwu, wanted.dwu), compare(&of::dwd, wanted.dwd);
  compare(&of::dx, wanted.dx);
}

/// Tokens that are all alike, one a shard: every addition of a shard's share is rounded the same way.
TEST(tiled_mlp_shards, keep_the_error_of_one_in_any_number) {
  using B = usual_backend;
  constexpr std::size_t tokens = 1 << 14;
  const std::vector<float> x(tokens, 0.7f), dy(tokens, 0.3f), w(1, 1);
  std::vector<float> dx(tokens), dwg(1, 8), dwu(1, 8), dwd(1, 8);
  const auto of = [](auto& v) { return matrix_view(v.data(), v.size(), 1); };
  const double silu = 0.7f / (1 + std::exp(-0.7f)), slope = silu / 0.7f * (1 + 0.7f * (1 - silu / 0.7f));
  for (const gradient mode : {gradient::overwrite, gradient::accumulate}) {
    tigon::tiled_mlp_backward<B, float>(of(dy), of(x), tigon::mlp_weights{of(w), of(w), of(w)}, of(dx),
                                        tigon::mlp_weights{of(dwg), of(dwu), of(dwd)},
                                        {.mlp = {.dw = mode}, .shards = tokens});
    const double times = (mode == gradient::accumulate ? 2.0 : 1.0) * tokens * 0.3f;
    EXPECT_NEAR(dwd[0], times * silu * 0.7f, 8e-6 * dwd[0]);
    EXPECT_NEAR(dwu[0], times * silu * 0.7f, 8e-6 * dwu[0]);
    EXPECT_NEAR(dwg[0], times * slope * 0.7f * 0.7f, 8e-6 * dwg[0]);
  }
}

TEST(tiled_mlp_types, gradients_of_weights_may_be_f32) {
  problem<bfloat16, bfloat16, float> p({12, 20, 33, 1}, {.dw = gradient::accumulate}, 4);
  const auto wanted = p.wanted();
  p.backward<usual_backend>();
  p.expect_gradients(wanted);
}

TEST(tiled_mlp_shards, are_even_and_cover_the_tokens) {
  using tigon::detail::shard_rows;
  EXPECT_EQ(shard_rows(10, 4, {}), 4u);  // three shards, because 10 > 2 * 4
  EXPECT_EQ(shard_rows(10, 100, {}), 10u);
  EXPECT_EQ(shard_rows(10, 0, {}), 1u);
  EXPECT_EQ(shard_rows(0, 4, {}), 1u);
  EXPECT_EQ(shard_rows(10, 4, 1), 10u);
  EXPECT_EQ(shard_rows(10, 4, 4), 3u);
  EXPECT_EQ(shard_rows(10, 4, 6), 2u);  // five shards
  EXPECT_EQ(shard_rows(10, 4, 99), 1u);
}

TEST(tiled_mlp_shards, are_the_backends_mlp) {
  if (!std::same_as<usual_provider<tigon::op::tiled_mlp>, tigon::backends::generic>)
    GTEST_SKIP() << "a tiled MLP of the backend's own is made of what it likes";
  using B = tigon::backends::own_mlp;
  problem<bfloat16> p({10, 4, 6}, {}, 4);
  const auto wanted = p.wanted();
  forward_calls = backward_calls = 0;
  p.forward<B>(), p.backward<B>();
  EXPECT_EQ(forward_calls, 4u);
  EXPECT_EQ(backward_calls, 4u);
  p.expect_value(wanted), p.expect_gradients(wanted);
}

TEST(tiled_mlp_memory, is_that_of_a_shard) {
  using B = usual_backend;
  if (!std::same_as<usual_provider<tigon::op::tiled_mlp>, tigon::backends::generic>)
    GTEST_SKIP() << "a tiled MLP of the backend's own takes what it names";
  const std::size_t tokens = 4096, hidden = 64, n = 5632, k = 16, a = tokens / k * n, weights = 3 * hidden * n;
  const std::size_t products = tigon::mlp_workspace<B, float>(tigon::mlp_pass::backward, tokens / k, hidden, n);
  const std::size_t block = B::chunk.logits_bytes / 16;
  EXPECT_LE((tigon::tiled_mlp_workspace<B, float>(tokens, hidden, n, k)), 4 * a + block + products);
  EXPECT_LE((tigon::tiled_mlp_backward_workspace<B, float>(tokens, hidden, n, k)), 3 * 4 * a + products);
  EXPECT_LE((tigon::tiled_mlp_backward_workspace<B, bfloat16>(tokens, hidden, n, k)),
            3 * 2 * a + 4 * weights + 3 * block + 2 * products);
}

/// The doors, which are the same for every backend: refused before the first write. What mlp refuses too is tested
/// there.
TEST(tiled_mlp_doors, refuse_before_the_first_write) {
  problem<float> p({3, 4, 6, 1}, {}, 2);
  using B = tigon::default_backend;
  const auto refused = [&](tigon::error_code code, const std::string& part) {
    EXPECT_TRUE(refuses([&] { p.forward<B>(); }, code, "tiled_mlp_forward: " + part, p.y));
    EXPECT_TRUE(refuses([&] { p.backward<B>(); }, code, "tiled_mlp_backward: " + part, p.dx, p.dwg, p.dwu, p.dwd));
  };
  using enum tigon::error_code;
  p.tiled.shards = 0;
  refused(argument, "shards is 0; expected at least 1");
  p.tiled.shards = 2;
  p.tiled.mlp.gate_multiplier = NAN;
  refused(argument, "gate_multiplier is nan");
  p.tiled.mlp = {.weights = transpose::yes};
  refused(shape, "wg is 6 x 4; expected 4 x 4");
  p.tiled.mlp = {};
  EXPECT_TIGON_ERROR(
      tigon::tiled_mlp_forward(p.x.view(), tigon::mlp_weights{p.wg.view(), p.wu.view(), p.wd.view()}, p.x.view()),
      alias, "tiled_mlp_forward: y overlaps x", p.x);
  EXPECT_TIGON_ERROR(p.backward<B>(p.dx.view(), p.wg.view(), p.dwu.view(), p.dwd.view()), alias,
                     "tiled_mlp_backward: dwg overlaps wg", p.dx, p.wg, p.dwu, p.dwd);
  EXPECT_TIGON_ERROR(p.backward<B>(p.dx.view().rows_from(0, 2), p.dwg.view(), p.dwu.view(), p.dwd.view()), shape,
                     "tiled_mlp_backward: dx is 2 x 4; expected 3 x 4", p.dx, p.dwg, p.dwu, p.dwd);
}

}  // namespace
