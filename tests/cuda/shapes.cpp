// Backend cuda on the model of a GPU: every shape of its driver, with the results of single numbers; what the host may
// not touch; and that the model sees a barrier that is missing.
#include "problem.hpp"
// Behind it: it says how these are compiled.
#include <tigon/backend/lookup.hpp>
#include <tigon/ops/geglu.hpp>
#include <tigon/ops/layer_norm.hpp>
#include <tigon/ops/relu_squared.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/ops/swiglu.hpp>
#include <tigon/ops/swiglu_fused.hpp>

namespace {

using namespace cuda_tests;

template <class T>
auto rms_norm_both_ways(gradient mode = gradient::overwrite) {
  return [mode](problem<T>& p) {
    using S = accumulator_t<T>;
    const auto x = p.matrix(1), dy = p.matrix(2), w = p.row(3), y = p.made("y"), dx = p.made("dx");
    const auto dw = p.made("dw", 1, p.of().cols);
    const numbers<S> rstd(1, p.of().rows);
    if (mode == gradient::accumulate) numbers<T>(dw).fill(4);
    return [=]<class B>(context& ctx) {
      rms_norm_forward<B>(x.matrix(), w.vector(), y.matrix(), rstd.vector(), {}, ctx);
      rms_norm_backward<B>(dy.matrix(), x.matrix(), w.vector(), rstd.vector(), dx.matrix(), dw.vector(), {.dw = mode},
                           ctx);
    };
  };
}
template <class T>
auto layer_norm_both_ways() {
  return [](problem<T>& p) {
    using S = accumulator_t<T>;
    const auto x = p.matrix(1, 3), dy = p.matrix(2), w = p.row(3), b = p.row(4), y = p.made("y"), dx = p.made("dx");
    const auto dw = p.made("dw", 1, p.of().cols), db = p.made("db", 1, p.of().cols);
    const numbers<S> mean(1, p.of().rows), rstd(1, p.of().rows);
    return [=]<class B>(context& ctx) {
      layer_norm_forward<B>(x.matrix(), w.vector(), b.vector(), y.matrix(), mean.vector(), rstd.vector(), {}, ctx);
      layer_norm_backward<B>(dy.matrix(), x.matrix(), w.vector(), mean.vector(), rstd.vector(),
                             norm_gradients{dx.matrix(), dw.vector(), db.vector()}, {}, ctx);
    };
  };
}
template <class T>
auto softmax_both_ways() {
  return [](problem<T>& p) {
    const auto x = p.matrix(1), dy = p.matrix(2), y = p.made("y"), dx = p.made("dx");
    return [=]<class B>(context& ctx) {
      softmax_forward<B>(x.matrix(), y.matrix(), {}, ctx);
      softmax_backward<B>(dy.matrix(), y.matrix(), dx.matrix(), {}, ctx);
    };
  };
}
template <class T>
auto gates_both_ways() {
  return [](problem<T>& p) {
    const auto a = p.matrix(1), b = p.matrix(2), dy = p.matrix(3);
    const auto s = p.made("swiglu"), sa = p.made("swiglu da"), sb = p.made("swiglu db");
    const auto g = p.made("geglu"), ga = p.made("geglu da"), gb = p.made("geglu db");
    const auto r = p.made("relu_squared"), ra = p.made("relu_squared dx");
    return [=]<class B>(context& ctx) {
      swiglu_forward<B>(a.matrix(), b.matrix(), s.matrix(), {}, ctx);
      swiglu_backward<B>(dy.matrix(), a.matrix(), b.matrix(), sa.matrix(), sb.matrix(), {}, ctx);
      geglu_forward<B>(a.matrix(), b.matrix(), g.matrix(), {}, ctx);
      geglu_backward<B>(dy.matrix(), a.matrix(), b.matrix(), ga.matrix(), gb.matrix(), {}, ctx);
      relu_squared_forward<B>(a.matrix(), r.matrix(), {}, ctx);
      relu_squared_backward<B>(dy.matrix(), a.matrix(), ra.matrix(), {}, ctx);
    };
  };
}

// Rows of every shape in backends/cuda/plan.hpp: lanes of a warp, several rows a group; a block that keeps a row, or
// two, also of an odd number; rows that are read again; rows that begin anywhere, or lie apart.
const shape narrow[] = {{70, 24, 8}, {300, 128}, {37, 256}, {9, 504, 16}, {5, 1024}};
const shape wide[] = {{3, 4096}, {3, 8200}, {2, 20000}};
const shape awkward[] = {{40, 37}, {3, 5001}, {6, 1000, 24}, {6, 1000, 3}, {1, 64}};

TEST(cuda_model, rms_norm_of_narrow_rows) {
  for (const shape& s : narrow) expect_as_single_numbers<bfloat16>(s, rms_norm_both_ways<bfloat16>());
  expect_as_single_numbers<float>(narrow[1], rms_norm_both_ways<float>());
  expect_as_single_numbers<double>(narrow[0], rms_norm_both_ways<double>());
}
TEST(cuda_model, rms_norm_of_wide_rows) {
  for (const shape& s : wide) expect_as_single_numbers<bfloat16>(s, rms_norm_both_ways<bfloat16>());
  expect_as_single_numbers<float>({2, 40000}, rms_norm_both_ways<float>());
}
TEST(cuda_model, rms_norm_of_awkward_rows) {
  for (const shape& s : awkward) expect_as_single_numbers<float16>(s, rms_norm_both_ways<float16>());
  expect_as_single_numbers<float>(awkward[3], rms_norm_both_ways<float>());
}
TEST(cuda_model, gradients_of_many_rows_are_added_to) {
  expect_as_single_numbers<float>({1100, 24}, rms_norm_both_ways<float>(gradient::accumulate));
}
// Rows of a few columns, and rows whose products f32 does not hold, are computed in f64.
template <class Run>
auto scaled_rows(Run run) {
  return [run](problem<float>& p) {
    const auto both = run(p);
    p.scale_some_rows();
    return both;
  };
}
TEST(cuda_model, rows_in_f64) {
  expect_as_single_numbers<float>({30, 8}, rms_norm_both_ways<float>());
  expect_as_single_numbers<bfloat16>({30, 6}, rms_norm_both_ways<bfloat16>());
  for (const shape& s : {shape{70, 24}, shape{39, 4096}, shape{3, 20000}, shape{40, 37}}) {
    expect_as_single_numbers<float>(s, scaled_rows(rms_norm_both_ways<float>()));
    expect_as_single_numbers<float>(s, scaled_rows(layer_norm_both_ways<float>()));
  }
}
TEST(cuda_model, layer_norm) {
  for (const shape& s : {narrow[1], narrow[4], wide[0], wide[1], wide[2], awkward[0]})
    expect_as_single_numbers<float>(s, layer_norm_both_ways<float>());
}
TEST(cuda_model, softmax) {
  for (const shape& s : {narrow[0], narrow[3], wide[0], awkward[1]})
    expect_as_single_numbers<float>(s, softmax_both_ways<float>());
  expect_as_single_numbers<bfloat16>({2, 40000}, softmax_both_ways<bfloat16>());
  EXPECT_EQ((softmax_workspace<cuda, float>(4096)), 0u);  // parameter gradients alone take memory
}
TEST(cuda_model, gates) {
  for (const shape& s : {narrow[0], awkward[0], awkward[2], awkward[3]})
    expect_as_single_numbers<float>(s, gates_both_ways<float>());
  expect_as_single_numbers<bfloat16>(narrow[2], gates_both_ways<bfloat16>());
}
TEST(cuda_model, gates_of_pairs) {
  for (const shape& s : {shape{7, 48}, shape{5, 22}})
    expect_as_single_numbers<float>(s, [](problem<float>& p) {
      const auto x = p.matrix(1), dy = numbers<float>(p.of().rows, p.of().cols / 2).fill(2);
      const auto y = p.made("y", p.of().rows, p.of().cols / 2), dx = p.made("dx");
      return [=]<class B>(context& ctx) {
        swiglu_fused_forward<B>(x.matrix(), y.matrix(), gate_layout::interleaved, {}, ctx);
        swiglu_fused_backward<B>(dy.matrix(), x.matrix(), dx.matrix(), gate_layout::interleaved, {}, ctx);
      };
    });
}
#if TIGON_FOUND_cuda
TEST(cuda_registry, finds_the_backend_and_asks_cuda_for_a_gpu) {
  const tigon::registered_backend* const line = tigon::find_backend("gpu");
  ASSERT_NE(line, nullptr);
  EXPECT_EQ(line->info.name, "cuda");
  EXPECT_TRUE(line->info.devices.present()) << "this test needs a GPU";
  EXPECT_TRUE(line->info.devices == backends::cuda::info.devices);
}
#endif

TEST(cuda_model, no_rows) {
  expect_as_single_numbers<float>({0, 64}, rms_norm_both_ways<float>());
  expect_as_single_numbers<float>({0, 64}, gates_both_ways<float>());
}

TEST(cuda_model, a_context_without_a_queue_is_refused) {
  device_memory::instance().clear();
  const auto x = numbers<float>(2, 64).fill(1), y = numbers<float>(2, 64);
  workspace scratch(gpu::memory(nullptr));
  context ctx(serial(), scratch);
  try {
    softmax_forward<cuda>(x.matrix(), y.matrix(), {}, ctx);
    FAIL() << "no error";
  } catch (const error& e) {
    EXPECT_EQ(e.code(), error_code::state);
    EXPECT_NE(std::string(e.what()).find("queue"), std::string::npos) << e.what();
  }
}

#if !defined(TIGON_TESTS_ON_GPU)
TEST(cuda_model, what_the_device_reports_is_thrown_by_wait) {
  workspace scratch(gpu::memory(nullptr));
  context ctx(serial(), scratch, gpu::queue(nullptr));
  EXPECT_NO_THROW(ctx.wait());
  reported = cudaErrorMemoryAllocation;
  try {
    ctx.wait();
    ADD_FAILURE() << "no error";
  } catch (const error& e) {
    EXPECT_EQ(e.code(), error_code::device);
    EXPECT_STREQ(e.what(), "tigon: cuda: the device reports: an error");
  }
  reported = cudaSuccess;
}

// A row of several warps is wrong without the barriers of its block.
TEST(cuda_model, sees_barriers_that_are_missing) {
  problem<float> p({3, 4096});
  const auto wanted = p.on<generic>(rms_norm_both_ways<float>());
  cuda_model::without = cuda_model::lacking::barriers;
  const auto got = p.on<cuda>(rms_norm_both_ways<float>());
  cuda_model::without = cuda_model::lacking::nothing;
  EXPECT_GT(distance(got[0].second, wanted[0].second), 1e-3);
}
#endif

}  // namespace
