// Attention of backend cuda: on the model of a GPU by its own kernels, on a GPU also by cuDNN.
#include "problem.hpp"
// Behind it: it says how these are compiled.
#include <cstdint>
#include <tigon/backends/cuda/attention.hpp>
#include <tigon/ops/attention.hpp>

namespace {

using namespace cuda_tests;

struct heads_case {
  std::size_t batch, heads, kv_heads, queries, keys, d;
  attention_options opt = {};
  bool sinks = false;
  std::size_t v_dim = 0;  // columns of v; 0: d

  std::size_t e() const { return v_dim != 0 ? v_dim : d; }
};

/// Columns of a matrix of tokens as heads.
template <class T>
heads_view<T> heads_of(const numbers<T>& m, std::size_t batch, std::size_t heads, std::size_t d) {
  const std::size_t seq = m.rows / batch;
  return {m.data, batch, heads, seq, d, seq * m.stride, d, m.stride};
}

template <class T>
auto attention(const heads_case& c) {
  using A = accumulator_t<T>;
  return [=](problem<T>& p) {
    const std::size_t rows = c.batch * c.queries, keys = c.batch * c.keys, lines = c.batch * c.heads * c.queries;
    const auto filled = [&](std::size_t r, std::size_t cols, unsigned seed) {
      return numbers<T>(r, cols, p.of().apart).fill(seed);
    };
    const auto q = filled(rows, c.heads * c.d, 1), k = filled(keys, c.kv_heads * c.d, 2),
               v = filled(keys, c.kv_heads * c.e(), 3), d_o = filled(rows, c.heads * c.e(), 4);
    const auto sinks = numbers<float>(1, c.heads).fill(5);
    const auto o = p.made("o", rows, c.heads * c.e()), dq = p.made("dq", rows, c.heads * c.d),
               dk = p.made("dk", keys, c.kv_heads * c.d), dv = p.made("dv", keys, c.kv_heads * c.e()),
               dk_alone = p.made("dk alone", keys, c.kv_heads * c.d), of_lse = p.made("lse", 1, lines),
               of_dsinks = p.made("dsinks", 1, c.heads);
    const auto lse = numbers<A>(1, lines), dsinks = numbers<A>(1, c.heads), delta = numbers<A>(1, lines);
    p.after([=] {
      for (std::size_t i = 0; i < lines; ++i) of_lse.data[i] = T(std::isinf(lse.data[i]) ? A(-100) : lse.data[i]);
      for (std::size_t h = 0; h < c.heads; ++h) of_dsinks.data[h] = c.sinks ? T(dsinks.data[h]) : T(A(0));
    });
    return [=]<class B>(context& ctx) {
      const auto of_q = [&](const auto& m) { return heads_of(m, c.batch, c.heads, c.d); };
      const auto of_k = [&](const auto& m) { return heads_of(m, c.batch, c.kv_heads, c.d); };
      const auto of_v = [&](const auto& m) { return heads_of(m, c.batch, c.kv_heads, c.e()); };
      const auto of_o = [&](const auto& m) { return heads_of(m, c.batch, c.heads, c.e()); };
      attention_options opt = c.opt;
      if (c.sinks) opt.sinks = sinks.vector();
      attention_forward<B>(of_q(q), of_k(k), of_v(v), of_o(o), lse.vector(), opt, ctx);
      attention_gradients<T> to{of_q(dq), of_k(dk), of_v(dv)};
      if (c.sinks) to.dsinks = dsinks.vector();
      attention_backward<B>(of_o(d_o), of_q(q), of_k(k), of_v(v), {of_o(o), lse.vector()}, to, opt, ctx);
      attention_gradients<T> one{{}, of_k(dk_alone), {}};
      one.delta = delta.vector();
      attention_backward<B>(of_o(d_o), of_q(q), of_k(k), of_v(v), {of_o(o), lse.vector()}, one, opt, ctx);
    };
  };
}

template <class T>
void expect_as_single_numbers(const heads_case& c, double most = 2 * bound<T>, std::size_t apart = 0) {
  cuda_tests::expect_as_single_numbers<T>({c.batch * c.queries, c.heads * c.d, apart}, attention<T>(c), most);
}

TEST(cuda_attention, masks) {
  using enum attention_mask;
  expect_as_single_numbers<float>({2, 4, 2, 9, 9, 16});
  expect_as_single_numbers<float>({1, 1, 1, 10, 140, 8, {.offset = 130}});             // more keys than threads
  expect_as_single_numbers<float>({1, 2, 1, 132, 3, 4, {.mask = none, .prefix = 1}});  // more queries
  expect_as_single_numbers<float>({1, 2, 2, 5, 7, 12, {.mask = none}});
  expect_as_single_numbers<float>({1, 3, 1, 6, 13, 4, {.offset = 7}}, 2e-6, 3);
  expect_as_single_numbers<float>({1, 2, 1, 11, 11, 8, {.window_left = 3}});
  expect_as_single_numbers<float>(
      {1, 2, 1, 11, 14, 8, {.mask = none, .window_left = 2, .window_right = 1, .offset = 1}});
  expect_as_single_numbers<float>({1, 2, 1, 12, 12, 8, {.window_left = 2, .prefix = 3}});
  expect_as_single_numbers<float>(
      {1, 2, 1, 12, 4, 8, {.mask = none, .window_left = 1}});  // the last queries see nothing
}
TEST(cuda_attention, scores) {
  expect_as_single_numbers<float>({1, 4, 2, 9, 9, 16, {.scale = 3, .softcap = 2}});
  expect_as_single_numbers<float>({2, 4, 2, 9, 9, 16, {.scale = 0.5}, true});
}
TEST(cuda_attention, types) {
  expect_as_single_numbers<double>({1, 2, 1, 9, 9, 130});  // more columns than threads
  expect_as_single_numbers<bfloat16>({1, 2, 1, 9, 9, 16});
  // On a GPU these are cuDNN's.
  expect_as_single_numbers<bfloat16>({2, 4, 2, 17, 17, 16}, 8e-3);
  expect_as_single_numbers<float16>({1, 2, 1, 16, 20, 8, {.window_left = 3, .offset = 4}, true}, 8e-3);
  expect_as_single_numbers<float16>({1, 2, 1, 9, 9, 16, {.softcap = 1}, true});
}
TEST(cuda_attention, values_of_another_width) {
  expect_as_single_numbers<float>({2, 4, 2, 9, 9, 24, {}, false, 16});
  expect_as_single_numbers<float>({1, 2, 1, 6, 13, 4, {.softcap = 2, .window_left = 5, .offset = 7}, true, 140}, 2e-6,
                                  3);  // more columns of v than threads
  expect_as_single_numbers<double>({1, 2, 1, 9, 9, 140, {}, false, 1});
  expect_as_single_numbers<bfloat16>({1, 2, 1, 9, 9, 16, {.prefix = 2}, false, 40});
  // On a GPU these are cuDNN's.
  expect_as_single_numbers<bfloat16>({1, 4, 4, 70, 70, 192, {}, false, 128}, 8e-3);
  expect_as_single_numbers<float16>({2, 4, 2, 17, 17, 16, {}, true, 64}, 8e-3);
}
TEST(cuda_attention, lengths_are_refused) {
  problem<float> p({4, 4});
  const auto x = p.made("x", 4, 4);
  const std::vector<std::int32_t> ends{0, 2, 4}, of_batch{2};
  const auto lse = numbers<float>(1, 4);
  const auto heads = heads_of(x, 1, 1, 4), o = heads_of(p.made("o", 4, 4), 1, 1, 4);
  workspace scratch(gpu::memory(nullptr));
  context ctx(serial(), scratch, gpu::queue(nullptr));
  const auto refuses = [&](const attention_options& opt, const std::string& sentence) {
    try {
      attention_forward<cuda>(heads, heads, heads, o, lse.vector(), opt, ctx);
      ADD_FAILURE() << "no error: " << sentence;
    } catch (const error& e) {
      EXPECT_EQ(e.what(), "tigon: attention_forward: " + sentence);
    }
    EXPECT_TRUE(std::isnan(lse.data[0]));
  };
  refuses({.cumulative_lengths = ends}, "cumulative_lengths is given; expected none on cuda: a call for each document");
  refuses({.key_begins = of_batch}, "key_begins is given; expected none on cuda: a call for each batch entry");
  refuses({.key_ends = of_batch}, "key_ends is given; expected none on cuda: a call for each batch entry");
}

}  // namespace
