// Kernels of row programs on the model of a device without their public functions, which read on the host: what counts
// labels or ids, sorts them, or adds up what rows have left.
#include <tigon/losses/cross_entropy_divergence.hpp>
#include <tigon/losses/fused_linear_scaled_cross_entropy.hpp>
#include <tigon/ops/adamw.hpp>
#include <tigon/ops/embedding.hpp>
#include <tigon/ops/modulated_rms_norm.hpp>
#include <tigon/ops/moe.hpp>

#include "on_device.hpp"

namespace {

using namespace tigon::test::on_device;

template <class Op>
using generic_kernel = kernel<Op, backends::generic>;

template <class B>
numbers embedding(std::size_t vocab, std::size_t cols) {
  numbers weight = some(vocab * cols, 1), y(4 * cols, unwritten);
  const array<std::int64_t> ids{3, 0, 2, 3};
  context& ctx = default_context<B>();
  on<B>([&] {
    generic_kernel<op::embedding>::forward<B, float>(matrix(weight, cols), std::span(ids), matrix(y, cols),
                                                     {.padding_index = 2}, ctx);
  });
  return y;
}

/// `groups` of rows; each row alone is another kernel.
template <class B>
numbers modulated_rms_norm(std::size_t rows, std::size_t cols, std::size_t groups) {
  numbers x = some(rows * cols, 1), w = some(cols, 2), scale = some(groups * cols, 3), shift = some(groups * cols, 4);
  numbers dy = some(rows * cols, 5), y(rows * cols, unwritten), rstd(rows, unwritten), dx(rows * cols, unwritten),
          dw(cols, unwritten);
  numbers dscale(groups * cols, unwritten), dshift(groups * cols, unwritten);
  using K = generic_kernel<op::modulated_rms_norm>;
  const modulated_rms_norm_options opt{.group_rows = rows / groups};
  context& ctx = default_context<B>();
  on<B>([&] {
    ctx.workspace().expect("test", std::size_t{1} << 16);
    K::template forward<B, float, float, float>(matrix(x, cols), in_vector<float>{w.data(), w.size()},
                                                matrix(scale, cols), matrix(shift, cols), matrix(y, cols), rstd, opt,
                                                ctx);
    if (groups != rows) return;
    K::template backward_rows<B, casting::none, float, float, float>(
        matrix(dy, cols), matrix(x, cols), in_vector<float>{w.data(), w.size()}, matrix(scale, cols),
        static_cast<const float*>(rstd.data()),
        {matrix(dx, cols), vector_view<float>(dw.data(), cols), matrix(dscale, cols), matrix(dshift, cols)}, opt, ctx);
  });
  return groups == rows ? joined({y, rstd, dx, dw, dscale, dshift}) : joined({y, rstd});
}

/// Pairs of two tokens, of which the first has two; three choices a token.
template <class B>
numbers moe_pairs(std::size_t cols) {
  numbers x = some(2 * cols, 1), weights = some(2 * 3, 2), p = some(3 * cols, 3), dweights(2 * 3, 0);
  numbers gathered(3 * cols, unwritten), sums = some(2 * cols, 4), weighted(3 * cols, unwritten);
  const array<std::int64_t> pair{0, 2, 4};
  const detail::moe_chunk chunk{pair.data(), 3, 3, 0};
  context& ctx = default_context<B>();
  on<B>([&] {
    kernel_for<op::moe_gather, B>::template forward<B, float>(matrix(x, cols), chunk, matrix(gathered, cols), ctx);
    using K = kernel_for<op::moe_scatter, B>;
    K::template forward<B, float, float>(matrix(gathered, cols), chunk, matrix(weights, 3), matrix(sums, cols), ctx);
    K::template backward<B, float, float>(matrix(p, cols), matrix(gathered, cols), matrix(weighted, cols), chunk,
                                          matrix(weights, 3), matrix(dweights, 3), nullptr, ctx);
  });
  return joined({gathered, sums, p, weighted, dweights});
}

/// The list of parameters and their tasks are the host's.
template <class B>
numbers weights_after_adamw(std::size_t size) {
  numbers w = some(size, 1), g = some(size, 2), m = some(size, 3), v(size, 0.5f);
  std::vector<adamw_parameter<float>> list{{w, g, m, v}};
  const std::vector<std::size_t> first{0, detail::adamw_tasks_of(size)};
  context& ctx = default_context<B>();
  on<B>([&] {
    generic_kernel<op::adamw>::forward<B>(detail::adamw_tasks<adamw_parameter<float>>{list.data(), first.data(), 1},
                                          2.0, {.max_norm = 1}, ctx);
  });
  return joined({w, m, v});
}

/// A row that is ignored, one whose label has nearly all probability.
const array<std::int64_t> labels{3, -100, 5};

template <class B>
numbers cross_entropy(std::size_t cols, cross_entropy_options opt) {
  numbers logits = some(3 * cols, 1), weight = some(cols, 2), dlogits(3 * cols, unwritten);
  logits[2 * cols + 5] = 25;
  array<double> loss(3, 0), z_loss(3, 0);
  array<std::int64_t> predicted(3, 0);
  const cross_entropy_rows out{loss.data(), z_loss.data(), predicted.data()};
  context& ctx = default_context<B>();
  on<B>([&] {
    ctx.workspace().expect("test", std::size_t{1} << 16);
    kernel_for<op::cross_entropy, B>::template forward<B, float, std::int64_t>(
        matrix(logits, cols), std::span<const std::int64_t>(labels), weight.data(), matrix(dlogits, cols), out,
        {.weight_sum = 3}, opt, ctx);
  });
  numbers rows(predicted.begin(), predicted.end());
  for (const array<double>& one : {loss, z_loss}) rows.insert(rows.end(), one.begin(), one.end());
  return joined({dlogits, rows});
}

template <class B>
numbers scaled_cross_entropy(std::size_t cols) {
  numbers z = some(3 * cols, 1), nll(3, unwritten), entropy(3, unwritten), lse(3, unwritten), g = some(3, 2),
          h = some(3, 3);
  z[2 * cols + 5] = 25;
  const detail::scaled_cross_entropy_rows<float> rows({nll, entropy, lse}, {g, h});
  context& ctx = default_context<B>();
  on<B>([&] {
    ctx.workspace().expect("test", std::size_t{1} << 16);
    kernel_for<op::scaled_cross_entropy, B>::template forward<B, float, std::int64_t>(
        matrix(z, cols), labels.data(), rows, true, {.temperature = 1.5}, ctx);
  });
  return joined({z, nll, entropy, lse});
}

template <class B, class Op>
numbers cross_entropy_divergence(std::size_t cols, double temperature) {
  numbers logits = some(3 * cols, 1), teacher = some(3 * cols, 2), dlogits(3 * cols, unwritten);
  for (float& p : teacher) p = std::same_as<Op, op::cross_entropy_tvd> ? std::abs(p) / static_cast<float>(cols) : p - 4;
  array<double> loss(3, 0), z_loss(3, 0), divergence(3, 0);
  const cross_entropy_rows out{loss.data(), z_loss.data()};
  const cross_entropy_options ce;
  const detail::cross_entropy_divergence_call<float> call{.logits = matrix(logits, cols),
                                                          .teacher = matrix(teacher, cols),
                                                          .dlogits = matrix(dlogits, cols),
                                                          .weight = {},
                                                          .terms = {ce, {.weight_sum = 1.0 * cols}, out, cols},
                                                          .ce = out,
                                                          .divergence = divergence.data(),
                                                          .of_ce = 1,
                                                          .of_divergence = 0.5f,
                                                          .inverse = static_cast<float>(1 / temperature),
                                                          .smooth = false,
                                                          .same = temperature == 1,
                                                          .ignored = -100};
  context& ctx = default_context<B>();
  on<B>([&] {
    ctx.workspace().expect("test", std::size_t{1} << 16);
    kernel_for<Op, B>::template forward<B, float, std::int64_t>(call, labels.data(), {}, ctx);
  });
  numbers rows;
  for (const array<double>& one : {loss, divergence}) rows.insert(rows.end(), one.begin(), one.end());
  return joined({dlogits, rows});
}

using test::block_model;

TEST(block_model_alone, embedding) { expect_same(embedding<block_model>(5, 37), embedding<backends::generic>(5, 37)); }
TEST(block_model_alone, modulated_rms_norm) {
  for (const std::size_t groups : {2, 4})
    expect_same(modulated_rms_norm<block_model>(4, 37, groups), modulated_rms_norm<backends::generic>(4, 37, groups));
}
TEST(block_model_alone, moe_pairs) { expect_same(moe_pairs<block_model>(37), moe_pairs<backends::generic>(37)); }
TEST(block_model_alone, adamw) {
  const std::size_t size = detail::adamw_task + 5;
  expect_same(weights_after_adamw<block_model>(size), weights_after_adamw<backends::generic>(size));
}
TEST(block_model_alone, cross_entropy) {
  for (const cross_entropy_options& opt :
       {cross_entropy_options{.lse_square_scale = 0.1}, {.label_smoothing = 0.1}, {.softcap = 3}})
    expect_same(cross_entropy<block_model>(37, opt), cross_entropy<backends::generic>(37, opt));
}
TEST(block_model_alone, scaled_cross_entropy) {
  expect_same(scaled_cross_entropy<block_model>(37), scaled_cross_entropy<backends::generic>(37));
}
TEST(block_model_alone, cross_entropy_divergence) {
  for (const double temperature : {1.0, 2.0}) {
    expect_same(cross_entropy_divergence<block_model, op::cross_entropy_tvd>(37, temperature),
                cross_entropy_divergence<backends::generic, op::cross_entropy_tvd>(37, temperature));
    expect_same(cross_entropy_divergence<block_model, op::cross_entropy_jsd>(37, temperature),
                cross_entropy_divergence<backends::generic, op::cross_entropy_jsd>(37, temperature));
  }
}

}  // namespace
