// Frozen weights of operators with products: dx has the bits that it has beside dw, nothing else is written, and there
// are neither partial rows nor sums.
// Operators: several
#include <gtest/gtest.h>

#include <tigon/ops/moe.hpp>
#include <tigon/ops/multi_token_attention.hpp>
#include <tigon/ops/neighborhood_attention_layer.hpp>
#include <tigon/ops/tiled_mlp.hpp>

#include "support/backends.hpp"
#include "support/frozen.hpp"
#include "support/problem.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::parameters;

constexpr std::size_t tokens = 70, hidden = 24, intermediate = 40;

template <class On>
class frozen_layers : public testing::Test {};
#if defined(TIGON_CONFORMANCE_BACKEND)
using pairs = pairs_of<float, tigon::bfloat16>;
#else
using pairs = with_engines<list<on<usual_backend, float>>, on<usual_backend, tigon::bfloat16>>;
#endif
TYPED_TEST_SUITE(frozen_layers, pairs, names);

/// x, dy and dx, and gradients of parameters in one list.
template <class T>
struct layer {
  guarded_matrix<T> x, dy, y, dx;

  layer()
      : x(random_matrix<T>({tokens, hidden}, 1)),
        dy(random_matrix<T>({tokens, hidden}, 2)),
        y(tokens, hidden),
        dx(tokens, hidden) {}

  template <class... Gradient>
  frozen_case of(std::string name, Gradient&... gradients) {
    frozen_case c;
    c.name = std::move(name);
    c.clear = [&] { dx.clear(), (gradients.clear(), ...); };
    c.others = [&] { return bits_of(dx); };
    (c.of_parameters.push_back([&] { return bits_of(gradients); }), ...);
    return c;
  }
};
template <class T>
guarded_matrix<T> weight(std::size_t out, std::size_t in, std::uint64_t seed) {
  return random_matrix<T>({out, in}, seed, guard::behind, {.deviation = 0.2});
}

TYPED_TEST(frozen_layers, mlp_and_tiled_mlp) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  layer<T> p;
  auto wg = weight<T>(intermediate, hidden, 3), wu = weight<T>(intermediate, hidden, 4),
       wd = weight<T>(hidden, intermediate, 5);
  auto bg = random_vector<T>(intermediate, 6), bu = random_vector<T>(intermediate, 7), bd = random_vector<T>(hidden, 8);
  guarded_matrix<T> dwg(intermediate, hidden), dwu(intermediate, hidden), dwd(hidden, intermediate);
  guarded<T> dbg(intermediate), dbu(intermediate), dbd(hidden);
  const tigon::mlp_weights w{wg.view(), wu.view(), wd.view(), bg, bu, bd};
  const auto gradients = [&](unsigned given) {
    return tigon::mlp_weights{if_given(given, 0, dwg), if_given(given, 1, dwu), if_given(given, 2, dwd),
                              if_given(given, 3, dbg), if_given(given, 4, dbu), if_given(given, 5, dbd)};
  };
  // Their workspace may be that of another product, as large.
  frozen_case c = p.of("mlp", dwg, dwu, dwd, dbg, dbu, dbd);
  c.run = [&](unsigned given, context& ctx) {
    guarded_matrix<T> memory(tokens, 3 * intermediate);
    tigon::mlp_saved<T> saved{memory.view()};
    tigon::mlp_forward<B, T>(p.x, w, p.y.view(), saved);
    tigon::mlp_backward<B, T>(p.dy, p.x, w, saved, p.dx.view(), gradients(given), {}, ctx);
  };
  c.bytes = [](parameters of, const context& ctx) {
    return tigon::mlp_workspace<B, T>(tigon::mlp_pass::backward, tokens, hidden, intermediate, ctx.executor().workers(),
                                      of, true);
  };
  c.smaller = false;
  check_frozen(c);

  frozen_case t = p.of("tiled_mlp", dwg, dwu, dwd, dbg, dbu, dbd);
  for (const std::size_t shards : {3u, 70u}) {
    t.smaller = shards == 70;  // which have totals
    t.name = shards == 3 ? "tiled_mlp" : "tiled_mlp, a shard a token";
    t.run = [&](unsigned given, context& ctx) {
      tigon::tiled_mlp_backward<B, T>(p.dy, p.x, w, p.dx.view(), gradients(given), {.shards = shards}, ctx);
    };
    t.bytes = [&](parameters of, const context& ctx) {
      return tigon::tiled_mlp_backward_workspace<B, T>(tokens, hidden, intermediate, shards, ctx.executor().workers(),
                                                       of, true);
    };
    check_frozen(t);
  }
}

TYPED_TEST(frozen_layers, moe) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  layer<T> p;
  constexpr std::size_t experts = 3, choices = 2;
  auto gate_up = weight<T>(experts * 2 * intermediate, hidden, 3), down = weight<T>(experts * hidden, intermediate, 4);
  guarded_matrix<std::int32_t> indices(tokens, choices);
  for (std::size_t t = 0; t < tokens; ++t)
    for (std::size_t j = 0; j < choices; ++j) indices(t, j) = static_cast<std::int32_t>((t * 5 + j) % experts);
  const auto routing = random_matrix<T>({tokens, choices}, 5);
  guarded_matrix<T> dgate_up(experts * 2 * intermediate, hidden), ddown(experts * hidden, intermediate);
  guarded_matrix<T> drouting(tokens, choices);
  frozen_case c = p.of("moe", dgate_up, ddown);
  c.others = [&] { return bits_of(p.dx, drouting); };
  c.run = [&](unsigned given, context& ctx) {
    tigon::moe_backward_recompute<B, T>(
        p.dy, p.x, tigon::moe_choices{indices.view(), routing.view()},
        tigon::moe_weights{gate_up.view(), down.view(), experts},
        tigon::moe_gradients{p.dx.view(), if_given(given, 0, dgate_up), if_given(given, 1, ddown), drouting.view()}, {},
        ctx);
  };
  c.bytes = [](parameters of, const context& ctx) {
    return tigon::moe_workspace<B, T>(tigon::moe_pass::recompute, {tokens, choices, experts, hidden, intermediate},
                                      ctx.executor().workers(), of);
  };
  // By Eigen another product of the pass takes as much as those of the gradients.
  c.smaller = !products_by_eigen<B>;
  check_frozen(c);
}

TYPED_TEST(frozen_layers, neighborhood_attention_layer) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  layer<T> p;
  const tigon::neighborhood_attention_layer_options opt{
      .heads = 2, .seq_len = 35, .attention = {.kernel_size = 5}, .eps = 1e-3};
  auto wqkv = weight<T>(3 * hidden, hidden, 3), wo = weight<T>(hidden, hidden, 4);
  auto bqkv = random_vector<T>(3 * hidden, 5), bo = random_vector<T>(hidden, 6), norm = random_vector<T>(hidden, 7),
       norm_bias = random_vector<T>(hidden, 8);
  guarded_matrix<T> dwqkv(3 * hidden, hidden), dwo(hidden, hidden), values(tokens, 5 * hidden);
  guarded<T> dbqkv(3 * hidden), dbo(hidden), dnorm(hidden), dnorm_bias(hidden);
  guarded<tigon::accumulator_t<T>> numbers(tigon::neighborhood_attention_layer_numbers(tokens, opt));
  const tigon::neighborhood_attention_layer_weights<const T> w{wqkv.view(), wo.view(), bqkv, bo, norm, norm_bias};
  tigon::neighborhood_attention_layer_forward<B, T>(p.x, w, p.y.view(), {values.view(), numbers}, opt);
  frozen_case c = p.of("neighborhood_attention_layer", dwqkv, dwo, dbqkv, dbo, dnorm, dnorm_bias);
  c.run = [&](unsigned given, context& ctx) {
    tigon::neighborhood_attention_layer_backward<B, T>(
        p.dy, p.x, w, {values.view(), numbers}, p.dx.view(),
        {if_given(given, 0, dwqkv), if_given(given, 1, dwo), if_given(given, 2, dbqkv), if_given(given, 3, dbo),
         if_given(given, 4, dnorm), if_given(given, 5, dnorm_bias)},
        opt, ctx);
  };
  c.bytes = [&](parameters of, const context& ctx) {
    return tigon::neighborhood_attention_layer_workspace<B, T>(tigon::neighborhood_attention_layer_pass::backward,
                                                               tokens, hidden, opt, ctx.executor().workers(), of);
  };
  // The products of its backward pass take as much where tiles are of four lanes.
  c.smaller = tigon::simd::vec<typename B::engine, float>::size > 4;
  check_frozen(c);
}

TYPED_TEST(frozen_layers, multi_token_attention) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t batch = 2, heads = 2, len = 9;
  const tigon::multi_token_attention_options opt{};
  auto scores = random_matrix<T>({batch * heads * len, len}, 1), w = random_matrix<T>({heads * heads * 3, 3}, 2),
       dy = random_matrix<T>({batch * heads * len, len}, 4);
  guarded_matrix<T> probs(batch * heads * len, len), y(batch * heads * len, len), dscores(batch * heads * len, len),
      dw(heads * heads * 3, 3);
  guarded<T> db(heads);
  std::ranges::fill(probs.view().data, probs.view().data + batch * heads * len * len, static_cast<T>(0.f));
  const auto square = [](auto& m) {
    using E = std::remove_pointer_t<decltype(m.view().data)>;
    return tigon::heads_view<E>::of_heads(m.view().data, batch, heads, len, len);
  };
  const auto taps = [](auto& m) {
    using E = std::remove_pointer_t<decltype(m.view().data)>;
    return tigon::heads_view<E>::of_heads(m.view().data, heads, heads, 3, 3);
  };
  auto opt_padded = opt;
  opt_padded.padding = 1;
  tigon::multi_token_attention_forward<B, T>(square(scores), taps(w), tigon::absent, square(y), square(probs),
                                             opt_padded);
  frozen_case c;
  c.name = "multi_token_attention";
  c.clear = [&] { dscores.clear(), dw.clear(), db.clear(); };
  c.others = [&] { return bits_of(dscores); };
  c.of_parameters = {[&] { return bits_of(dw); }, [&] { return bits_of(db); }};
  c.run = [&](unsigned given, context& ctx) {
    tigon::multi_token_attention_backward<B, T>(
        square(dy), taps(w), square(probs),
        tigon::multi_token_attention_gradients<T>{square(dscores), (given & 1) != 0 ? taps(dw) : tigon::heads_view<T>{},
                                                  if_given(given, 1, db)},
        opt_padded, ctx);
  };
  c.bytes = [&](parameters of, const context& ctx) {
    return tigon::multi_token_attention_backward_workspace<B, T>(batch, len, taps(w), opt_padded,
                                                                 ctx.executor().workers(), of == parameters::trained);
  };
  c.smaller = false;
  check_frozen(c);
}

}  // namespace
