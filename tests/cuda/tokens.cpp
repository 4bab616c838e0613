// Kernels of backend cuda for heads, tables of tokens and optimizers, on the model of a GPU.
#include "problem.hpp"
// Behind it: it says how these are compiled.
#include <array>
#include <cstdint>
#include <thread>
#include <tigon/ops/adamw.hpp>
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/llama4_rope.hpp>
#include <tigon/ops/qk_norm_rope.hpp>
#include <tigon/ops/qwen2vl_mrope.hpp>
#include <tigon/ops/rope.hpp>

namespace {

using namespace cuda_tests;

// Two sequences; 3 heads of q and 2 of k beside one another, in rows of a matrix of tokens.
constexpr std::size_t batch = 2, q_heads = 3, k_heads = 2;
template <class T>
qk_heads<T> heads_of(const numbers<T>& m, std::size_t d) {
  const std::size_t seq = m.rows / batch;
  const auto part = [&](std::size_t first, std::size_t heads) {
    return heads_view<T>(m.data + first * d, batch, heads, seq, d, seq * m.stride, d, m.stride);
  };
  return {part(0, q_heads), part(q_heads, k_heads)};
}
struct heads_case {
  std::size_t tokens, d, apart = 0;
  shape of() const { return {tokens, (q_heads + k_heads) * d, apart}; }
};

template <class T>
auto rotations(std::size_t d, rope_options opt) {
  return [=](problem<T>& p) {
    const std::size_t tokens = p.of().rows, seq = tokens / batch, turned = std::min(opt.rotary_dim, d);
    const auto x = p.matrix(1);
    const auto cos = numbers<T>(seq, turned / 2).fill(2), sin = numbers<T>(tokens, turned / 2).fill(3);
    const auto own = numbers<T>(tokens, turned / 2).fill(4), freqs = numbers<T>(seq, d).fill(5);
    const auto cos3 = numbers<T>(3 * tokens, d / 2).fill(6), sin3 = numbers<T>(3 * tokens, d / 2).fill(7);
    const auto y = p.made("rope"), dx = p.made("rope backward"), l = p.made("llama4_rope"), m = p.made("qwen2vl_mrope");
    const std::array<std::size_t, 3> sections{d / 8 + 1, d / 8, d / 2 - 2 * (d / 8) - 1};  // within an access, too
    return [=]<class B>(context& ctx) {
      const auto in = heads_of(x, d), out = heads_of(y, d), back = heads_of(dx, d), of_l = heads_of(l, d),
                 of_m = heads_of(m, d);
      rope_forward<B>(in.q, in.k, cos.matrix(), sin.matrix().rows_from(0, seq), out.q, out.k, opt, ctx);
      rope_backward<B>(in.q, in.k, own.matrix(), sin.matrix(), back.q, back.k, opt, ctx);
      llama4_rope_forward<B>(in.q, in.k, freqs.matrix(), of_l.q, of_l.k, {}, ctx);
      qwen2vl_mrope_forward<B>(in.q, in.k, cos3.matrix(), sin3.matrix(), of_m.q, of_m.k, {.sections = sections}, ctx);
    };
  };
}
template <class T>
auto normed_rotations(std::size_t d, qk_norm_rope_options opt, bool large = false) {
  return [=](problem<T>& p) {
    const std::size_t tokens = p.of().rows, seq = tokens / batch, turned = std::min(opt.rotary_dim, d);
    const auto x = p.matrix(1), dy = p.matrix(2);
    if (large) p.scale_some_rows();
    const auto cos = numbers<T>(seq, turned / 2).fill(2), sin = numbers<T>(seq, turned / 2).fill(3);
    const auto w_q = numbers<T>(1, d).fill(4, 1), w_k = numbers<T>(1, d).fill(5, 1);
    const auto y = p.made("y"), dx = p.made("dx"), dw_q = p.made("dw_q", 1, d), dw_k = p.made("dw_k", 1, d);
    return [=]<class B>(context& ctx) {
      const auto in = heads_of(x, d), of_dy = heads_of(dy, d), out = heads_of(y, d), of_dx = heads_of(dx, d);
      const rope_tables tables{cos.matrix(), sin.matrix()};
      qk_norm_rope_forward<B>({in.q, in.k}, qk_norm_weights{w_q.vector(), w_k.vector()}, tables, out, opt, ctx);
      qk_norm_rope_backward<B>({of_dy.q, of_dy.k}, {in.q, in.k}, qk_norm_weights{w_q.vector(), w_k.vector()}, tables,
                               qk_norm_rope_gradients{of_dx.q, of_dx.k, dw_q.vector(), dw_k.vector()}, opt, ctx);
    };
  };
}

TEST(cuda_tokens, rotations) {
  for (const heads_case& c : {heads_case{6, 128}, heads_case{4, 20}, heads_case{10, 64, 3}})
    for (const rotary_pairs pairs : {rotary_pairs::halves, rotary_pairs::neighbours}) {
      expect_as_single_numbers<float>(c.of(), rotations<float>(c.d, {.pairs = pairs}));
      expect_as_single_numbers<float>(
          c.of(), rotations<float>(c.d, {.rotary_dim = c.d / 4 * 2, .columns = rotary_columns::last, .pairs = pairs}));
    }
  expect_as_single_numbers<bfloat16>({6, 640}, rotations<bfloat16>(128, {}));
}
TEST(cuda_tokens, qk_norm_rope) {
  for (const heads_case& c : {heads_case{40, 64}, heads_case{6, 20}, heads_case{10, 64, 3}, heads_case{4, 300}})
    for (const rotary_pairs pairs : {rotary_pairs::halves, rotary_pairs::neighbours})
      expect_as_single_numbers<float>(c.of(), normed_rotations<float>(c.d, {.offset = 1, .pairs = pairs}));
  expect_as_single_numbers<float>({8, 5 * 37},
                                  normed_rotations<float>(37, {.rotary_dim = 6, .columns = rotary_columns::last}));
  expect_as_single_numbers<float>({8, 5 * 128}, normed_rotations<float>(128, {.rotary_dim = 64}));
  expect_as_single_numbers<float>({22, 5 * 64}, normed_rotations<float>(64, {}, true));
  expect_as_single_numbers<bfloat16>({22, 5 * 128}, normed_rotations<bfloat16>(128, {}));
}

// Tokens of which few occur, one of them often.
template <class T>
auto lookups(gradient mode) {
  return [=](problem<T>& p) {
    const std::size_t rows = p.of().rows, cols = p.of().cols, vocab = cols > 100 ? 300 : 3000;
    const auto dy = p.matrix(1);
    const auto weight = numbers<T>(vocab, cols, p.of().apart).fill(2);
    const auto y = p.made("y");
    numbers<T> dweight = p.made("dweight", vocab, cols);
    if (mode == gradient::accumulate) dweight.fill(3);
    auto* const ids = static_cast<std::int32_t*>(device_memory::instance().take(rows * sizeof(std::int32_t)));
    for (std::size_t i = 0; i < rows; ++i)
      ids[i] = static_cast<std::int32_t>(i % 3 == 0 ? vocab - 1 : i % 7 == 0 ? 5 : (i * 2654435761u >> 7) % 300);
    const std::span<const std::int32_t> tokens(ids, rows);
    return [=]<class B>(context& ctx) {
      const embedding_options opt{.padding_index = 5, .dweight = mode};
      embedding_forward<B>(weight.matrix(), tokens, y.matrix(), opt, ctx);
      embedding_backward<B>(dy.matrix(), tokens, dweight.matrix(), opt, ctx);
    };
  };
}
TEST(cuda_tokens, embedding) {
  expect_as_single_numbers<float>({4000, 16}, lookups<float>(gradient::overwrite));
  for (const shape& s : {shape{300, 1032}, shape{70, 9}, shape{70, 8, 3}, shape{0, 8}})
    for (const gradient mode : {gradient::overwrite, gradient::accumulate})
      expect_as_single_numbers<float>(s, lookups<float>(mode));
  expect_as_single_numbers<bfloat16>({70, 64}, lookups<bfloat16>(gradient::overwrite));
}

TEST(cuda_tokens, embedding_adds_rows_in_the_order_of_positions) {
  device_memory::instance().clear();
  const auto dy = numbers<float>(3, 16), dweight = numbers<float>(2, 16);
  auto* const ids = static_cast<std::int32_t*>(device_memory::instance().take(3 * sizeof(std::int32_t)));
  const float row[3] = {1e8f, -1e8f, 1.f};  // any other order makes 0
  for (std::size_t i = 0; i < 3; ++i) {
    ids[i] = 1;
    std::fill_n(dy.data + i * 16, 16, row[i]);
  }
  workspace scratch(gpu::memory(nullptr));
  context ctx(serial(), scratch, gpu::queue(nullptr));
  embedding_backward<cuda>(dy.matrix(), std::span<const std::int32_t>(ids, 3), dweight.matrix(), {}, ctx);
  ctx.wait();
  EXPECT_EQ(dweight.data[0], 0.f);
  EXPECT_EQ(dweight.data[16], 1.f);
}

TEST(cuda_tokens, ids_out_of_range) {
  for (const std::int32_t wrong : {-1, 20}) {
    std::size_t count = 0;
    device_memory::instance().clear();
    const auto weight = numbers<float>(20, 16).fill(1), y = numbers<float>(8, 16), dweight = numbers<float>(20, 16);
    auto* const ids = static_cast<std::int32_t*>(device_memory::instance().take(8 * sizeof(std::int32_t)));
    for (const std::int32_t id : {3, 4, 5, wrong, 7, -5, 0, 19}) ids[count++] = id;
    workspace scratch(gpu::memory(nullptr));
    context ctx(serial(), scratch, gpu::queue(nullptr));
    const std::span<const std::int32_t> tokens(ids, count);
    // A later launch throws what an earlier one has reported, or wait() does.
    const auto expect = [&](const char* op, auto call) {
      try {
        call();
        ctx.wait();
        ADD_FAILURE() << "no error";
      } catch (const error& e) {
        EXPECT_EQ(e.code(), error_code::index);
        const std::string sentence = std::string(op) + ": ids[3] is " + std::to_string(wrong) + "; expected at least 0";
        EXPECT_NE(std::string(e.what()).find(sentence), std::string::npos) << e.what();
      }
      ctx.wait();
    };
    expect("embedding_forward", [&] { embedding_forward<cuda>(weight.matrix(), tokens, y.matrix(), {}, ctx); });
    EXPECT_TRUE(std::isnan(y.data[3 * 16]));
    EXPECT_EQ(y.data[4 * 16], weight.data[7 * 16]);
    expect("embedding_backward",
           [&] { embedding_backward<cuda>(weight.matrix().rows_from(0, 8), tokens, dweight.matrix(), {}, ctx); });
  }
}

// More parameters than a launch takes, one of several tasks, one that begins anywhere.
template <class T, class M>
auto steps(adamw_options opt) {
  return [=](problem<T>& p) {
    using parameter = adamw_parameter<T, T, M>;
    const auto sizes = [](std::size_t k) { return k == 3 ? std::size_t{40000} : k == 4 ? std::size_t{1001} : 24 + k; };
    std::vector<parameter> list;
    for (std::size_t k = 0; k < 44; ++k) {
      const std::size_t n = sizes(k), at = k == 4;
      const auto g = numbers<T>(1, n + 1).fill(static_cast<unsigned>(k));
      numbers<T> w = k < 6 || k == 42 ? p.made("w", 1, n + 1) : numbers<T>(1, n + 1);
      w.fill(static_cast<unsigned>(k) + 100);
      const auto m = numbers<M>(1, n + 1).fill(static_cast<unsigned>(k) + 200, 1),
                 v = numbers<M>(1, n + 1).fill(static_cast<unsigned>(k) + 300, 2);
      list.push_back(
          {w.vector().subspan(at, n), g.vector().subspan(at, n), m.vector().subspan(at, n), v.vector().subspan(at, n)});
    }
    return [=]<class B>(context& ctx) { (void)adamw<B>(list, opt, ctx); };
  };
}
TEST(cuda_tokens, adamw) {
  for (const double max_norm : {0.0, 0.5})
    expect_as_single_numbers<float>({1, 1}, steps<float, float>({.step = 3, .max_norm = max_norm}));
  // Random bits are those of a CPU.
  problem<bfloat16> p({1, 1});
  const auto run = steps<bfloat16, bfloat16>({.stochastic_rounding = true, .seed = 7});
  const auto wanted = p.on<generic>(run), got = p.on<cuda>(run);
  for (std::size_t k = 0; k < got.size(); ++k) EXPECT_LT(distance(got[k].second, wanted[k].second), 1e-4);
}
// Its checks loop on the host, in a workspace that is empty in a new thread.
TEST(cuda_tokens, adamw_has_asked_for_the_memory_of_its_checks) {
  problem<float> p({1, 1});
  const auto call = steps<float, float>({.step = 3})(p);
  std::string said;
  std::thread([&] {
    workspace scratch(gpu::memory(nullptr));
    context ctx(serial(), scratch, gpu::queue(nullptr));
    try {
      call.template operator()<cuda>(ctx);
      ctx.wait();
    } catch (const error& e) {
      said = e.what();
    }
  }).join();
  EXPECT_EQ(said, "");
}
TEST(cuda_tokens, adamw_skips_what_is_not_finite) {
  problem<float> p({1, 1});
  const auto made = p.made("w", 1, 64);
  numbers<float>(made).fill(1);
  const auto g = numbers<float>(1, 64).fill(2), m = numbers<float>(1, 64).fill(3), v = numbers<float>(1, 64).fill(4, 2);
  g.data[5] = std::numeric_limits<float>::infinity();
  const std::vector<float> before = made.all();
  workspace scratch(gpu::memory(nullptr));
  context ctx(serial(), scratch, gpu::queue(nullptr));
  const std::array list{adamw_parameter<float>{made.vector(), g.vector(), m.vector(), v.vector()}};
  (void)adamw<cuda>(list, {.skip_non_finite = true}, ctx);
  ctx.wait();
  EXPECT_EQ(made.all(), before);
  (void)adamw<cuda>(list, {}, ctx);
  ctx.wait();
  EXPECT_NE(made.all(), before);
}

}  // namespace
