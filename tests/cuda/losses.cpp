// Losses of logits on the model of a GPU: rows below their label's logit and below their maximum, labels that do not
// count, labels out of range, and layers in front.
#include "problem.hpp"
// Behind it: it says how these are compiled.
#include <cstdint>
#include <tigon/gemm/gemm.hpp>
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/losses/fused_linear_cross_entropy.hpp>

namespace {

using namespace cuda_tests;

// Labels in memory of the device, every fifth of them ignored.
std::span<std::int64_t> labels_of(std::size_t rows, std::size_t vocab) {
  auto* const target = static_cast<std::int64_t*>(device_memory::instance().take(rows * sizeof(std::int64_t)));
  for (std::size_t i = 0; i < rows; ++i)
    target[i] = i % 5 == 3 ? -100 : static_cast<std::int64_t>((i * 7919 + 3) % vocab);
  return {target, rows};
}

struct options {
  cross_entropy_options of{};
  bool weighted = false;
  float scale = 1;  ///< of the logits: large ones overflow below the label's
};
template <class T>
auto of_logits(options opt) {
  return [=](problem<T>& p) {
    const std::size_t rows = p.of().rows, vocab = p.of().cols;
    const auto z = p.matrix(1);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < vocab; ++j)
        z.data[i * z.stride + j] = T(static_cast<float>(z.data[i * z.stride + j]) * opt.scale);
    const auto target = labels_of(rows, vocab);
    const auto weight = numbers<float>(1, vocab).fill(2, 1.5f);
    const std::size_t losses = opt.of.reduction == reduction::none ? rows : 1;
    const auto loss = numbers<float>(1, losses), z_loss = numbers<float>(1, losses), hits = numbers<float>(1, losses);
    const auto dz = p.made("dlogits"), back = p.made("backward"), again = p.made("backward_recompute");
    // What is of f32 or an integer, as T.
    const auto others = p.made("loss, z_loss, accuracy, predictions, kept", 1, 3 * losses + rows + 1);
    auto* const integers =
        static_cast<std::int64_t*>(device_memory::instance().take((rows + 1) * sizeof(std::int64_t)));
    const auto upstream = numbers<float>(1, losses).fill(5, 2);
    p.after([=] {
      for (std::size_t k = 0; k < losses; ++k) {
        others.data[k] = T(loss.data[k]), others.data[losses + k] = T(z_loss.data[k]);
        others.data[2 * losses + k] = T(hits.data[k]);
      }
      for (std::size_t k = 0; k <= rows; ++k) others.data[3 * losses + k] = T(static_cast<float>(integers[k]));
    });
    return [=]<class B>(context& ctx) {
      const cross_entropy_metrics<float> metrics{
          z_loss.vector(), hits.vector(), {integers, rows}, {integers + rows, 1}};
      const auto run = [&](auto w) {
        cross_entropy_forward<B>(z.matrix(), target, loss.vector(), dz.matrix(), opt.of, w, metrics, ctx);
        cross_entropy_backward<B>(dz.matrix(), upstream.vector(), back.matrix(), ctx);
        cross_entropy_backward_recompute<B>(z.matrix(), target, upstream.vector(), again.matrix(), opt.of, w, ctx);
      };
      opt.weighted ? run(weight.vector()) : run(absent);
    };
  };
}
const shape shapes[] = {{7, 1000}, {6, 1001}, {4, 20000, 8}, {11, 36, 1}};

TEST(cuda_losses, cross_entropy) {
  for (const shape& s : shapes) {
    expect_as_single_numbers<float>(s, of_logits<float>({}));
    expect_as_single_numbers<bfloat16>(s, of_logits<bfloat16>({.scale = 8}));
  }
}
TEST(cuda_losses, cross_entropy_with_options) {
  const cross_entropy_options all{.reduction = reduction::sum, .label_smoothing = 0.2, .lse_square_scale = 1e-3};
  for (const shape& s : {shapes[0], shapes[1]}) {
    expect_as_single_numbers<float>(s, of_logits<float>({all, true}));
    expect_as_single_numbers<float>(s, of_logits<float>({{.reduction = reduction::none, .softcap = 2}, true, 4}));
    expect_as_single_numbers<float>(s, of_logits<float>({{.lse_square_scale = 1e-3, .denominator = 3}}));
  }
}
// e^300 is no number of f32: such rows are taken below their maximum.
TEST(cuda_losses, cross_entropy_of_large_logits) {
  expect_as_single_numbers<float>(shapes[0], of_logits<float>({.scale = 300}));
  expect_as_single_numbers<float>(shapes[1], of_logits<float>({{.label_smoothing = 0.1}, true, 300}));
}

// op(a) op(b), with b as it is and packed.
template <class T>
auto of_products(gemm_options opt) {
  return [=](problem<T>& p) {
    const std::size_t m = p.of().rows, k = p.of().cols, n = 21;
    const auto a = opt.a == transpose::no ? numbers<T>(m, k, 3).fill(1) : numbers<T>(k, m, 3).fill(1);
    const auto b = opt.b == transpose::no ? numbers<T>(k, n, 1).fill(2) : numbers<T>(n, k, 1).fill(2);
    const auto bias = numbers<T>(1, n).fill(3);
    auto c = p.made("c", m, n), of_packed = p.made("c of a packed b", m, n);
    c.fill(4), of_packed.fill(4);
    const std::span<std::byte> memory(static_cast<std::byte*>(device_memory::instance().take(k * n * sizeof(double))),
                                      k * n * sizeof(double));
    return [=]<class B>(context& ctx) {
      gemm<B>(a.matrix(), b.matrix(), c.matrix(), bias.vector(), no_epilogue(), opt, ctx);
      const auto packed = gemm_pack<B, T>(b.matrix(), memory, opt.b, ctx);
      gemm<B>(a.matrix(), packed, of_packed.matrix(), bias.vector(), no_epilogue(), opt, ctx);
    };
  };
}
TEST(cuda_losses, products) {
  for (const transpose a : {transpose::no, transpose::yes})
    for (const transpose b : {transpose::no, transpose::yes})
      expect_as_single_numbers<float>({19, 37}, of_products<float>({.alpha = 0.5, .beta = 2, .a = a, .b = b}));
  expect_as_single_numbers<bfloat16>({5, 70}, of_products<bfloat16>({}));
}

struct layer_options {
  fused_linear_cross_entropy_options of{};
  gradient mode = gradient::overwrite;
  std::size_t chunk = 0;  ///< 0: all rows at once
  bool bias = false, upstream = false;
  bool not_finite = false;  ///< x of an ignored row
  std::size_t vocab = 72;
};
template <class T>
auto of_layer(layer_options opt) {
  return [=](problem<T>& p) {
    const std::size_t rows = p.of().rows, hidden = p.of().cols;
    const auto x = p.matrix(1);
    const auto w = numbers<T>(opt.vocab, hidden).fill(2), bias = numbers<T>(1, opt.vocab).fill(3);
    if (opt.not_finite) x.data[3 * x.stride] = T(std::numeric_limits<float>::quiet_NaN());
    const auto target = labels_of(rows, opt.vocab);
    const auto loss = numbers<float>(1, 1), upstream = numbers<float>(1, rows).fill(4, 2);
    const auto dx = p.made("dx"), of_loss = p.made("loss", 1, 1);
    auto dw = p.made("dw", opt.vocab, hidden), dbias = p.made("dbias", 1, opt.vocab);
    dw.fill(5), dbias.fill(6);
    p.after([=] { of_loss.data[0] = T(loss.data[0]); });
    return [=]<class B>(context& ctx) {
      ctx.logit_rows(opt.chunk);
      const linear_layer<T> layer{x.matrix(), w.matrix(), opt.bias ? bias.vector() : std::span<T>()};
      const linear_gradients<T> gradients{dx.matrix(), dw.matrix(), dbias.vector(), opt.mode};
      const auto g = opt.upstream ? upstream.vector() : std::span<float>();
      fused_linear_cross_entropy_forward<B>(layer, target, {loss.vector()}, gradients, opt.of, absent, g, ctx);
      ctx.logit_rows(0);
    };
  };
}
TEST(cuda_losses, fused_linear_cross_entropy) {
  for (const shape& s : {shape{11, 40}, shape{37, 19, 2}}) {
    expect_as_single_numbers<float>(s, of_layer<float>({.bias = true}));
    expect_as_single_numbers<float>(s,
                                    of_layer<float>({{{.reduction = reduction::sum}, true}, gradient::accumulate, 4}));
    expect_as_single_numbers<float>(s, of_layer<float>({.chunk = 8, .upstream = true}));
    expect_as_single_numbers<bfloat16>(s, of_layer<bfloat16>({.chunk = 8, .bias = true}));
    expect_as_single_numbers<bfloat16>(s, of_layer<bfloat16>({.mode = gradient::accumulate}));
    expect_as_single_numbers<bfloat16>(s, of_layer<bfloat16>({.mode = gradient::accumulate, .chunk = 8}));
    expect_as_single_numbers<bfloat16>(s, of_layer<bfloat16>({.chunk = 8, .vocab = 200}));
  }
}
// Half of the sums of a dw of 16 bits that is overwritten, in several chunks, lie in dw itself.
TEST(cuda_losses, sums_of_dw_take_half_the_memory) {
  constexpr std::size_t rows = 61, hidden = 24, vocab = 300, in_dw = 128;
  device_memory::instance().clear();
  const auto x = numbers<bfloat16>(rows, hidden).fill(1), w = numbers<bfloat16>(vocab, hidden).fill(2);
  const auto dw = numbers<bfloat16>(vocab, hidden), apart = numbers<bfloat16>(vocab, hidden, 8);
  const auto loss = numbers<float>(1, 1);
  const auto target = labels_of(rows, vocab);
  workspace none;
  context asked(serial(), none, gpu::queue(nullptr));
  asked.logit_rows(48);
  const auto bytes = [&](parameters of) {
    return fused_linear_cross_entropy_workspace<cuda, bfloat16>(rows, hidden, vocab, asked, of);
  };
  EXPECT_EQ(bytes(parameters::trained) - bytes(parameters::overwritten), in_dw * hidden * sizeof(float));

  const std::span memory(static_cast<std::byte*>(device_memory::instance().take(bytes(parameters::trained))),
                         bytes(parameters::trained));
  const auto call = [&](const numbers<bfloat16>& to, parameters of) {
    workspace scratch(memory.first(bytes(of)));
    context ctx(serial(), scratch, gpu::queue(nullptr));
    ctx.logit_rows(48);
    const linear_gradients<bfloat16> gradients{{}, to.matrix(), {}};
    EXPECT_EQ(gradients.of_weights(), of);
    fused_linear_cross_entropy_forward<cuda>(linear_layer<bfloat16>{x.matrix(), w.matrix()}, target, {loss.vector()},
                                             gradients, {}, absent, {}, ctx);
    ctx.wait();
  };
  call(dw, parameters::overwritten), call(apart, parameters::trained);
  EXPECT_LT(distance(dw.all(), apart.all()), bound<bfloat16>);
  EXPECT_TRUE(dw.is_alone() && apart.is_alone());
}
// The gradients of the logits of few rows are kept, for one product that makes dw, in place of its sums.
TEST(cuda_losses, few_rows_take_less_memory_than_sums_of_dw) {
  constexpr std::size_t hidden = 64, vocab = 300;
  workspace none;
  context asked(serial(), none, gpu::queue(nullptr));
  asked.logit_rows(8);
  const auto bytes = [&](std::size_t rows, parameters of) {
    return fused_linear_cross_entropy_workspace<cuda, bfloat16>(rows, hidden, vocab, asked, of);
  };
  const std::size_t sums = bytes(1000, parameters::trained);
  for (const auto of : {parameters::overwritten, parameters::trained})
    for (const std::size_t rows : {9u, 16u, 48u, 64u, 96u, 128u})
      EXPECT_LE(bytes(rows, of), (of == parameters::trained ? sums : bytes(1000, of))) << rows;
  for (const auto of : {parameters::overwritten, parameters::trained})
    for (std::size_t rows = 9; rows < 160; ++rows) EXPECT_LE(bytes(rows, of), bytes(rows + 1, of)) << rows;
  EXPECT_LE(bytes(16, parameters::overwritten) + 30 * hidden * sizeof(float), bytes(1000, parameters::overwritten));
}
TEST(cuda_losses, ignored_rows_that_are_not_finite) {
  expect_as_single_numbers<float>({11, 40}, of_layer<float>({.not_finite = true}));
  expect_as_single_numbers<bfloat16>({11, 40}, of_layer<bfloat16>({.chunk = 2, .not_finite = true}));
}

// A label out of range is thrown by the call or a later one, or when the host waits; nothing is read for it.
class cuda_labels : public testing::Test {
 protected:
  static constexpr std::size_t rows = 5, vocab = 40;
  cuda_labels() {
    device_memory::instance().clear();
    z_ = numbers<float>(rows, vocab).fill(1), dz_ = numbers<float>(rows, vocab), loss_ = numbers<float>(1, rows);
    target_ = labels_of(rows, vocab);
    target_[2] = 40, target_[4] = -7;
  }
  void call() {
    cross_entropy_forward<cuda>(z_.matrix(), target_, loss_.vector(), dz_.matrix(), {.reduction = reduction::none},
                                absent, {}, ctx_);
  }
  template <class F>
  static void expect_report(F f) {
    try {
      f();
      FAIL() << "no error";
    } catch (const error& e) {
      EXPECT_EQ(e.code(), error_code::index);
      EXPECT_STREQ(
          e.what(),
          "tigon: cross_entropy_forward: target[2] is 40; expected at least 0 and below 40, or ignore_index -100");
    }
  }

  numbers<float> z_{0, 0}, dz_{0, 0}, loss_{0, 0};
  std::span<std::int64_t> target_;
  workspace scratch_{gpu::memory(nullptr)};
  context ctx_{serial(), scratch_, gpu::queue(nullptr)};
};
TEST_F(cuda_labels, out_of_range_are_thrown_once) {
  expect_report([&] {
    call();
    ctx_.wait();
  });
  ctx_.wait();
}
#if !defined(TIGON_TESTS_ON_GPU)
TEST_F(cuda_labels, out_of_range_are_thrown_by_wait_and_make_nan) {
  static gpu::index_report kept;
  kept.made = 0;
  cuda_model::after_kernel = [] {  // the host looks when all is done
    gpu::index_report& report = *gpu::report_of(nullptr);
    if (report.made != 0) kept = report;
    report.made = 0;
  };
  call();
  cuda_model::after_kernel = nullptr;
  *gpu::report_of(nullptr) = kept;
  expect_report([&] { ctx_.wait(); });
  EXPECT_TRUE(std::isnan(loss_.data[2]) && std::isnan(loss_.data[4]));
  EXPECT_TRUE(loss_.data[0] > 0 && loss_.data[3] == 0);
  for (std::size_t j = 0; j < vocab; ++j) EXPECT_EQ(dz_.data[2 * vocab + j], 0);
}
#endif

}  // namespace
