// The gated MLP of backend cuda on the model of a GPU: products with the gate as a pass of its own.
#include "problem.hpp"
// Behind it: it says how these are compiled.
#include <tigon/ops/mlp.hpp>
#include <tigon/ops/tiled_mlp.hpp>

namespace {

using namespace cuda_tests;

template <class T>
struct mlp_problem {
  numbers<T> x, dy, wg, wu, wd, bg, bu, bd;

  mlp_problem(problem<T>& p, std::size_t n, transpose t)
      : x(p.matrix(1)),
        dy(p.matrix(2)),
        wg(weight(p, n, t, 3)),
        wu(weight(p, n, t, 4)),
        wd(weight(p, n, !t, 5)),
        bg(numbers<T>(1, n).fill(6)),
        bu(numbers<T>(1, n).fill(7)),
        bd(numbers<T>(1, p.of().cols).fill(8)) {}

  mlp_weights<T> weights(bool biases) const {
    mlp_weights<T> w{wg.matrix(), wu.matrix(), wd.matrix()};
    if (biases) w.gate_bias = bg.vector(), w.up_bias = bu.vector(), w.down_bias = bd.vector();
    return w;
  }

 private:
  static numbers<T> weight(problem<T>& p, std::size_t n, transpose t, unsigned seed) {
    const std::size_t hidden = p.of().cols;
    return numbers<T>(t == transpose::no ? n : hidden, t == transpose::no ? hidden : n, p.of().apart).fill(seed);
  }
};
/// Gradients of weights and biases, on entry numbers where they are added to.
template <class T>
mlp_weights<T> gradients(problem<T>& p, const mlp_problem<T>& of, gradient mode) {
  const auto like = [&](const char* name, const numbers<T>& m, unsigned seed) {
    numbers<T> to = p.made(name, m.rows, m.cols);
    if (mode == gradient::accumulate) to.fill(seed);
    return to;
  };
  return {like("dwg", of.wg, 10).matrix(), like("dwu", of.wu, 11).matrix(), like("dwd", of.wd, 12).matrix(),
          like("dbg", of.bg, 13).vector(), like("dbu", of.bu, 14).vector(), like("dbd", of.bd, 15).vector()};
}

template <class T, class Options>
auto mlp_both_ways(std::size_t n, Options opt, bool biases) {
  return [=](problem<T>& p) {
    const mlp_problem<T> of(p, n, opt.weights);
    const auto y = p.made("y"), alone = p.made("y of inference"), dx = p.made("dx");
    const auto dw = gradients(p, of, opt.dw);
    const numbers<T> memory(p.of().rows, 3 * n, p.of().apart);
    return [=]<class B>(context& ctx) {
      const auto w = of.weights(biases);
      mlp_saved<T> saved{memory.matrix()};
      mlp_forward<B>(of.x.matrix(), w, y.matrix(), saved, opt, ctx);
      mlp_forward_inference<B>(of.x.matrix(), w, alone.matrix(), opt, ctx);
      mlp_backward<B>(of.dy.matrix(), of.x.matrix(), w, saved, dx.matrix(), dw, opt, ctx);
    };
  };
}
template <class T>
auto recomputed_both_ways(std::size_t n, std::size_t shards, gradient mode) {
  return [=](problem<T>& p) {
    const mlp_problem<T> of(p, n, transpose::no);
    const auto y = p.made("y"), dx = p.made("dx");
    const auto dw = gradients(p, of, mode);
    const tiled_mlp_options opt{.mlp = {.dw = mode}, .shards = shards};
    return [=]<class B>(context& ctx) {
      tiled_mlp_forward<B>(of.x.matrix(), of.weights(true), y.matrix(), opt, ctx);
      tiled_mlp_backward<B>(of.dy.matrix(), of.x.matrix(), of.weights(true), dx.matrix(), dw, opt, ctx);
    };
  };
}

TEST(cuda_mlp, of_one_gate) {
  expect_as_single_numbers<float>({37, 40}, mlp_both_ways<float>(56, mlp_options{}, false));
  expect_as_single_numbers<float>({5, 24, 8}, mlp_both_ways<float>(33, mlp_options{.gate = mlp_gate::geglu}, true));
  const mlp_options swapped{
      .gate_multiplier = 0.5, .down_multiplier = 2, .weights = transpose::yes, .dw = gradient::accumulate};
  expect_as_single_numbers<float>({12, 16}, mlp_both_ways<float>(20, swapped, true));
  expect_as_single_numbers<double>({12, 16}, mlp_both_ways<double>(20, swapped, true));
}
TEST(cuda_mlp, of_16_bits) {
  expect_as_single_numbers<bfloat16>({37, 40}, mlp_both_ways<bfloat16>(56, mlp_options{}, true));
  expect_as_single_numbers<float16>({9, 40, 8}, mlp_both_ways<float16>(24, mlp_options{}, false));
}
TEST(cuda_mlp, with_options_of_the_gate) {
  const mlp_options_for<swiglu_options> clamped{.gate = {.limit = 0.7, .up_offset = 1}};
  expect_as_single_numbers<float>({9, 24}, mlp_both_ways<float>(32, clamped, true));
  const mlp_options_for<geglu_options> exact{.gate = {.form = gelu_form::erf}};
  expect_as_single_numbers<float>({9, 24}, mlp_both_ways<float>(32, exact, false));
}
TEST(cuda_mlp, shard_by_shard) {
  for (const std::size_t shards : {1, 3, 16})
    expect_as_single_numbers<float>({29, 16}, recomputed_both_ways<float>(24, shards, gradient::accumulate));
  expect_as_single_numbers<bfloat16>({29, 16}, recomputed_both_ways<bfloat16>(24, 4, gradient::overwrite));
  expect_as_single_numbers<float>({200, 8}, recomputed_both_ways<float>(8, 100, gradient::overwrite));
}

// On a GPU wide enough for products with the gate in their kernel (backends/cuda/gated_product.hpp), whose last tiles
// are cut off.
#if defined(TIGON_TESTS_ON_GPU)
constexpr std::size_t wide = 8 * 1057;
#else
constexpr std::size_t wide = 8 * 5;
#endif
TEST(cuda_mlp, with_the_gate_behind_the_sums) {
  expect_as_single_numbers<bfloat16>({130, 72, 8}, mlp_both_ways<bfloat16>(wide, mlp_options{}, true));
  const mlp_options scaled{
      .gate = mlp_gate::geglu, .gate_multiplier = 0.5, .down_multiplier = 2, .dw = gradient::accumulate};
  expect_as_single_numbers<float16>({257, 40}, mlp_both_ways<float16>(wide, scaled, false));
  const mlp_options_for<swiglu_options> clamped{.gate = {.limit = 0.7, .up_offset = 1}};
  expect_as_single_numbers<bfloat16>({128, 64}, mlp_both_ways<bfloat16>(wide, clamped, true));
  const mlp_options_for<geglu_options> exact{.gate = {.form = gelu_form::erf}};
  expect_as_single_numbers<bfloat16>({40, 8}, mlp_both_ways<bfloat16>(wide, exact, false));
}
#if defined(TIGON_TESTS_ON_GPU)
// The tests above would pass without these kernels.
TEST(cuda_mlp, takes_products_that_have_tiles) {
  if (gpu::limits().capability != 9) GTEST_SKIP() << "a kernel of sm_90a";
  using T = bfloat16;
  using gate = tigon::detail::swiglu_program<T, 8>;
  device_memory::instance().clear();
  const numbers<T> x(300, 72), w(wide, 72), wd(72, wide), a(300, wide), g(300, wide), u(300, wide), narrow(300, 60, 4);
  for (const numbers<T>* of : {&x, &w, &wd, &a, &g, &u}) const_cast<numbers<T>*>(of)->fill(1);
  device_memory::instance().reachable(false);
  workspace scratch(gpu::memory(nullptr));
  context ctx(serial(), scratch, gpu::queue(nullptr));
  const auto queued = [&](matrix_view<const T> from, std::size_t n) {
    const auto all = [n](const numbers<T>& m) { return m.matrix().cols_from(0, n); };
    const auto rows = w.matrix().rows_from(0, n).cols_from(0, from.cols);
    gpu::gated_sums<T, gate> sums{from, rows, rows, {all(a), all(g), all(u)}, nullptr, nullptr, 1, {}};
    const bool taken = gpu::queue_tensor_product(ctx, sums);
    ctx.wait();
    return taken;
  };
  EXPECT_TRUE(queued(x.matrix(), wide));
  EXPECT_TRUE(queued(narrow.matrix(), wide));
  EXPECT_FALSE(queued(x.matrix().cols_from(1, 64), wide)) << "x begins at no multiple of 16 bytes";
  EXPECT_FALSE(queued(x.matrix(), wide - 1)) << "a row ends within what a thread stores";
  EXPECT_FALSE(queued(x.matrix(), 128)) << "one tile";
  gpu::gate_gradients<T, gate> gradients{x.matrix(), wd.matrix(), {{}, g.matrix(), u.matrix()}, 1, {}};
  EXPECT_TRUE(gpu::queue_tensor_product(ctx, gradients));
  ctx.wait();
  device_memory::instance().reachable(true);
}
#endif

}  // namespace
