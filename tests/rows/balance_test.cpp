// Tasks of row programs are balanced: at the shapes of a training step (12 layers, hidden 768, 2 x 1024 tokens, a
// vocabulary of 32000), 16 workers and 64 end together, within 15 percent. The task lists are those that operators
// make.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <tigon/backends/highway/backend.hpp>
#include <tigon/ops/adamw.hpp>
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/rope.hpp>
#include <tigon/ops/swiglu.hpp>
#include <tigon/rows/matrices.hpp>
#include <vector>

namespace {

using B = tigon::backends::highway;

/// Notes how many tasks there are, and runs none: what an operator computes is not looked at.
class noting_executor {
 public:
  explicit noting_executor(std::size_t workers) : workers_(workers) {}
  std::size_t workers() const { return workers_; }
  void run(std::size_t tasks, tigon::task_ref) { tasks_.push_back(tasks); }
  const std::vector<std::size_t>& tasks() const { return tasks_; }

 private:
  std::size_t workers_;
  std::vector<std::size_t> tasks_;
};

/// Tasks of equal size, each to the worker that is free first: the time of the last worker over the mean.
double imbalance(std::size_t tasks, std::size_t workers) {
  const std::size_t rounds = (tasks + workers - 1) / workers;
  return static_cast<double>(rounds * workers) / static_cast<double>(tasks);
}

/// Of every run of call(ctx).
template <class Call>
void expect_balanced(const std::string& name, const Call& call) {
  for (const std::size_t workers : {16u, 64u}) {
    noting_executor executor(workers);
    tigon::workspace scratch;
    tigon::context ctx(executor, scratch);
    call(ctx);
    ASSERT_FALSE(executor.tasks().empty()) << name;
    for (const std::size_t tasks : executor.tasks())
      EXPECT_LE(imbalance(tasks, workers), 1.15) << name << ": " << tasks << " tasks for " << workers << " workers";
  }
}

constexpr std::size_t tokens = 2048, hidden = 768, intermediate = 2048, vocab = 32000, seq_len = 1024;

template <class T>
struct tensor {
  std::vector<T> values;
  tigon::matrix_view<T> view;
  tensor(std::size_t rows, std::size_t cols) : values(rows * cols), view(values.data(), rows, cols) {}
};

TEST(balance, of_maps_norms_and_gates) {
  tensor<float> x(tokens, hidden), y(tokens, hidden), gates(tokens, 2 * intermediate), product(tokens, intermediate);
  std::vector<float> w(hidden), rstd(tokens);
  expect_balanced("rms_norm",
                  [&](tigon::context& ctx) { tigon::rms_norm_forward<B>(x.view, w, y.view, rstd, {}, ctx); });
  const auto gate = gates.view.cols_from(0, intermediate), up = gates.view.cols_from(intermediate, intermediate);
  expect_balanced("swiglu", [&](tigon::context& ctx) { tigon::swiglu_forward<B>(gate, up, product.view, {}, ctx); });
  expect_balanced("swiglu backward",
                  [&](tigon::context& ctx) { tigon::swiglu_backward<B>(product.view, gate, up, gate, up, {}, ctx); });
  tensor<tigon::bfloat16> narrow(tokens, hidden);
  expect_balanced("convert", [&](tigon::context& ctx) { tigon::detail::convert_matrix<B>(narrow.view, y.view, ctx); });
}

TEST(balance, of_rope_and_embedding) {
  constexpr std::size_t heads = 12, kv_heads = 4, dim = 64;
  std::vector<float> q(tokens * heads * dim), k(tokens * kv_heads * dim);
  tensor<float> cos(seq_len, dim), sin(seq_len, dim);
  using view = tigon::heads_view<float>;
  const view qs = view::of_tokens(q.data(), 2, seq_len, heads, dim),
             ks = view::of_tokens(k.data(), 2, seq_len, kv_heads, dim);
  expect_balanced("rope",
                  [&](tigon::context& ctx) { tigon::rope_forward<B>(qs, ks, cos.view, sin.view, qs, ks, {}, ctx); });
  tensor<float> x(tokens, hidden), table(vocab, hidden);
  std::vector<std::int32_t> ids(tokens);
  std::iota(ids.begin(), ids.end(), 0);
  expect_balanced("embedding",
                  [&](tigon::context& ctx) { tigon::embedding_forward<B>(table.view, ids, x.view, {}, ctx); });
}

TEST(balance, of_adamw) {
  // A Llama of these sizes: matrices and norms, from one row to a vocabulary.
  std::vector<std::size_t> sizes{vocab * hidden, vocab * hidden, hidden};
  for (int layer = 0; layer < 12; ++layer)
    for (const std::size_t rows :
         {std::size_t{1}, std::size_t{1}, std::size_t{1280}, hidden, 2 * intermediate, intermediate})
      sizes.push_back(rows * hidden);
  const std::size_t largest = *std::max_element(sizes.begin(), sizes.end());
  // No task runs, so that all parameters may do with addresses alone.
  std::vector<tigon::adamw_parameter<float>> list;
  auto* at = reinterpret_cast<float*>(std::uintptr_t{1} << 40);
  for (const std::size_t n : sizes) {
    list.push_back({{at, n}, {at + largest, n}, {at + 2 * largest, n}, {at + 3 * largest, n}});
    at += 4 * largest;
  }
  expect_balanced("adamw", [&](tigon::context& ctx) { (void)tigon::adamw_with_norm<B>(list, 1, {}, ctx); });
}

/// The rule at other shapes: never fewer elements in a task than pay, nor more than the tuning says.
TEST(balance, keeps_tasks_within_their_bounds) {
  for (const std::size_t rows : {1u, 7u, 100u, 2048u, 5000u, 100000u})
    for (const std::size_t cols : {1u, 64u, 768u, 4096u, 70000u}) {
      const std::size_t n = tigon::simd::detail::rows_per_task<B>(rows, cols);
      SCOPED_TRACE(testing::Message() << rows << " x " << cols << ": " << n);
      EXPECT_GE(n, 1u);
      EXPECT_TRUE(n == 1 || n * cols <= B::row.task_elements);
      const std::size_t tasks = (rows + n - 1) / n;
      if (rows * cols >= 128 * 65536) {
        if (rows >= 1024) {
          EXPECT_LE(imbalance(tasks, 64), 1.15);
        }
      } else if (tasks > 1 && n * cols * 2 < B::row.task_elements) {
        EXPECT_GE(n * cols + cols, 8192u);
      }
    }
}

}  // namespace
