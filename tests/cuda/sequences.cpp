// Log-probabilities, policies, sequences and distillation on the model of a GPU: several chunks, labels and masks in
// the device's memory, ids out of range.
#include "problem.hpp"
// Behind it: it says how these are compiled.
#include <cstdint>
#include <optional>
#include <tigon/losses/fused_linear_dpo.hpp>
#include <tigon/losses/fused_linear_grpo.hpp>
#include <tigon/losses/fused_linear_jsd_distillation.hpp>
#include <tigon/losses/fused_linear_kl_div.hpp>
#include <tigon/losses/fused_linear_kto.hpp>
#include <tigon/losses/fused_linear_scaled_cross_entropy.hpp>
#include <tigon/losses/grpo_loss.hpp>
#include <tigon/losses/selective_logprob.hpp>

namespace {

using namespace cuda_tests;

template <class N>
N* on_device(std::size_t n) {
  return static_cast<N*>(device_memory::instance().take(n * sizeof(N)));
}
// Labels below vocab, every fifth of them ignored, in some order of `seed`.
std::span<std::int64_t> labels_of(std::size_t n, std::size_t vocab, std::size_t seed = 3, std::int64_t ignored = -100) {
  auto* const target = on_device<std::int64_t>(n);
  for (std::size_t i = 0; i < n; ++i)
    target[i] = i % 5 == seed % 5 ? ignored : static_cast<std::int64_t>((i * 7919 + seed) % vocab);
  return {target, n};
}
token_ids sequences_of(std::span<std::int64_t> of, std::size_t sequences) {
  return matrix_view<std::int64_t>(of.data(), sequences, of.size() / sequences);
}
// Numbers of the type of sums as results of T, once the call has ended.
template <class T>
struct wide_results {
  using A = accumulator_t<T>;
  problem<T>& p;
  std::vector<std::pair<numbers<A>, numbers<T>>> all{};
  std::span<A> take(const char* name, std::size_t n) {
    all.emplace_back(numbers<A>(1, n).fill(0), p.made(name, 1, n));
    return all.back().first.vector();
  }
  void done() {
    p.after([of = all] {
      for (const auto& [from, to] : of)
        for (std::size_t k = 0; k < from.cols; ++k) to.data[k] = T(from.data[k]);
    });
  }
};

// Rows of sequences of 5 tokens; the first numbers of a problem are their x, and w has `vocab` rows.
constexpr std::size_t vocab = 72, len = 5;
template <class T>
struct layers {
  linear_layer<T> of, other;
  linear_gradients<T> gradients;
  std::size_t rows, sequences;
  explicit layers(problem<T>& p, gradient mode = gradient::overwrite, std::size_t words = vocab)
      : rows(p.of().rows), sequences(rows / len) {
    const std::size_t hidden = p.of().cols;
    const auto x = p.matrix(1), other_x = p.matrix(11);
    const auto w = numbers<T>(words, hidden).fill(2), bias = numbers<T>(1, words).fill(3),
               other_w = numbers<T>(words, hidden).fill(12);
    of = {x.matrix(), w.matrix(), bias.vector()}, other = {other_x.matrix(), other_w.matrix()};
    auto dx = p.made("dx"), dw = p.made("dw", words, hidden), dbias = p.made("dbias", 1, words);
    dw.fill(5), dbias.fill(6);
    gradients = {dx.matrix(), dw.matrix(), dbias.vector(), mode};
  }
};
// Runs call<B>(context) with chunks of so many rows.
template <class Call>
auto in_chunks(std::size_t chunk, Call call) {
  return [=]<class B>(context& ctx) {
    ctx.logit_rows(chunk);
    call.template operator()<B>(ctx);
    ctx.logit_rows(0);
  };
}

template <class T>
auto of_pairs(fused_linear_dpo_options opt, std::size_t chunk, bool own_nll = false) {
  return [=](problem<T>& p) {
    const layers<T> l(p);
    const preference_batch batch{sequences_of(labels_of(l.rows, vocab), l.sequences),
                                 own_nll ? sequences_of(labels_of(l.rows, vocab, 1), l.sequences) : token_ids()};
    wide_results<T> wide{p};
    const preference_results<float> to{.loss = wide.take("loss", 1),
                                       .chosen_logps = wide.take("chosen_logps", l.sequences / 2),
                                       .rejected_rewards = wide.take("rejected_rewards", l.sequences / 2),
                                       .nll_loss = wide.take("nll_loss", 1),
                                       .chosen_logits_mean = wide.take("chosen_logits_mean", 1),
                                       .rejected_logits_mean = opt.pairs.softcap == 0
                                                                   ? wide.take("rejected_logits_mean", 1)
                                                                   : std::span<accumulator_t<T>>()};
    auto results = to;
    if (opt.pairs.softcap != 0) results.chosen_logits_mean = {};
    wide.done();
    return in_chunks(chunk, [=]<class B>(context& ctx) {
      fused_linear_dpo_forward<B>(l.of, batch, results, l.gradients, opt, {l.other}, ctx);
      const linear_gradients<T> scaled{l.gradients.dx, l.gradients.dw, l.gradients.dbias};
      fused_linear_backward<op::fused_linear_dpo, B, T>({scaled.dx, scaled.dw, scaled.dbias}, 3, scaled, ctx);
    });
  };
}
TEST(cuda_sequences, pairs) {
  const shape s{4 * len, 24};
  expect_as_single_numbers<float>(s, of_pairs<float>({}, 0));
  // Chunks that hold one pair, and less than one.
  expect_as_single_numbers<float>(s, of_pairs<float>({.compute_nll_loss = true}, 11));
  expect_as_single_numbers<float>(s, of_pairs<float>({.loss = dpo_loss::ipo, .compute_nll_loss = true}, 4, true));
  expect_as_single_numbers<float>(s, of_pairs<float>({.pairs = {.softcap = 2}}, 11), 4e-6);
  expect_as_single_numbers<bfloat16>(s, of_pairs<bfloat16>({.average_log_prob = true}, 11), 8e-3);
}

template <class T>
auto of_sequences(std::size_t chunk) {
  return [=](problem<T>& p) {
    const layers<T> l(p, gradient::accumulate);
    auto* const desirable = on_device<std::uint8_t>(l.sequences);
    for (std::size_t b = 0; b < l.sequences; ++b) desirable[b] = b % 3 == 0;
    const unpaired_batch batch{sequences_of(labels_of(l.rows, vocab), l.sequences), {desirable, l.sequences}};
    const auto kl = numbers<float>(1, l.sequences).fill(9);
    wide_results<T> wide{p};
    const unpaired_results<float> to{.loss = wide.take("loss", 1),
                                     .logps = wide.take("logps", l.sequences),
                                     .rejected_logps_sum = wide.take("rejected_logps_sum", 1),
                                     .chosen_logits_sum = wide.take("chosen_logits_sum", 1),
                                     .rejected_rewards_sum = wide.take("rejected_rewards_sum", 1)};
    wide.done();
    return in_chunks(chunk, [=]<class B>(context& ctx) {
      fused_linear_kto_forward<B>(l.of, batch, kl.vector(), to, l.gradients, {}, {l.other}, ctx);
    });
  };
}
TEST(cuda_sequences, unpaired) {
  expect_as_single_numbers<float>({3 * len, 24}, of_sequences<float>(0));
  expect_as_single_numbers<float>({3 * len, 19, 2}, of_sequences<float>(7));
}

// Gradients of the logits of a pair or a sequence that is longer than a chunk are kept until their factor is known, if
// they take no more than four times the memory of a chunk's logits.
TEST(cuda_sequences, longer_than_a_chunk) {
  const shape s{4 * len, 24};
  expect_as_single_numbers<float>(s, of_pairs<float>({}, 7));
  expect_as_single_numbers<float>(s, of_pairs<float>({.compute_nll_loss = true}, 4));
  expect_as_single_numbers<float>(s, of_pairs<float>({.compute_nll_loss = true}, 2));
  expect_as_single_numbers<float>(s, of_pairs<float>({.pairs = {.softcap = 2}}, 3), 4e-6);
  expect_as_single_numbers<bfloat16>(s, of_pairs<bfloat16>({.average_log_prob = true}, 4), 8e-3);
  expect_as_single_numbers<bfloat16>({2 * len, 19, 2}, of_pairs<bfloat16>({.compute_nll_loss = true}, 2), 8e-3);
  expect_as_single_numbers<float>({3 * len, 19, 2}, of_sequences<float>(3));
  expect_as_single_numbers<bfloat16>({3 * len, 24}, of_sequences<bfloat16>(2), 8e-3);
}

// Layers of long sequences with what may happen to them, without a bias.
template <class T>
struct long_pairs {
  numbers<T> x, w, dx, dw;
  std::span<std::int64_t> target;
  explicit long_pairs(problem<T>& p)
      : x(p.matrix(1)),
        w(numbers<T>(vocab, p.of().cols).fill(2)),
        dx(p.made("dx")),
        dw(p.made("dw", vocab, p.of().cols)),
        target(labels_of(p.of().rows, vocab)) {}
  preference_batch batch() const { return {sequences_of(target, target.size() / len)}; }
  static void scale(const numbers<T>& of, float by) {
    for (std::size_t k = 0; k < of.rows * of.cols; ++k) of.data[k] = T(static_cast<float>(of.data[k]) * by);
  }
};
// A factor of 2^-16 would leave f16 gradients of logits of three or four values: products are multiplied by it instead.
TEST(cuda_sequences, small_factors_of_long_sequences_in_f16) {
  expect_as_single_numbers<float16>({4 * len, 24}, [](problem<float16>& p) {
    long_pairs<float16> l(p);
    l.scale(l.x, 64), l.scale(l.w, 1.0f / 64), l.dx.fill(3);
    const auto loss = numbers<float>(1, 1);
    return in_chunks(4, [=]<class B>(context& ctx) {
      const fused_linear_dpo_options opt{.pairs = {.upstream = 6e-4}};
      fused_linear_dpo_forward<B>(linear_layer<float16>{l.x.matrix(), l.w.matrix()}, l.batch(), {loss.vector()},
                                  {{}, l.dw.matrix()}, opt, {}, ctx);
    });
  });
}
// A pair that a hinge has no gradient of, with an infinite weight; and a NaN in a row that does not count.
TEST(cuda_sequences, long_sequences_without_a_share) {
  expect_as_single_numbers<float>({4 * len, 24}, [](problem<float>& p) {
    const long_pairs<float> l(p);
    for (std::size_t i = 0; i < l.x.rows; ++i) l.x.data[i * 24] = 0.5f;
    for (std::size_t h = 0; h < 24; ++h) l.w.data[5 * 24 + h] = 0;
    l.w.data[5 * 24] = -std::numeric_limits<float>::infinity();
    for (auto& t : l.target) t = t == 5 ? 6 : t;
    l.x.data[3 * 24 + 1] = std::numeric_limits<float>::quiet_NaN();
    const auto loss = numbers<float>(1, 1), reference = numbers<float>(1, 4);
    for (std::size_t b = 0; b < 4; ++b) reference.data[b] = b < 2 ? -1e4f : 0.0f;
    return in_chunks(4, [=]<class B>(context& ctx) {
      fused_linear_dpo_forward<B>(linear_layer<float>{l.x.matrix(), l.w.matrix()}, l.batch(), {loss.vector()},
                                  {l.dx.matrix(), l.dw.matrix()}, {.loss = dpo_loss::hinge}, {{}, reference.vector()},
                                  ctx);
    });
  });
  expect_as_single_numbers<float>({4 * len, 24}, [](problem<float>& p) {
    const long_pairs<float> l(p);
    l.x.data[3 * 24 + 1] = std::numeric_limits<float>::quiet_NaN();
    const auto loss = numbers<float>(1, 1);
    return in_chunks(4, [=]<class B>(context& ctx) {
      fused_linear_dpo_forward<B>(linear_layer<float>{l.x.matrix(), l.w.matrix()}, l.batch(), {loss.vector()},
                                  {l.dx.matrix(), l.dw.matrix()}, {}, {}, ctx);
    });
  });
}
// Rows that one column has nearly all of, and labels that are e^-88 of a row and less. Logits of 150 are rounded by up
// to 8e-6.
TEST(cuda_sequences, peaked_rows) {
  for (const std::size_t chunk : {0u, 4u})
    for (const float by : {3.0f, 30.0f})
      expect_as_single_numbers<float>(
          {4 * len, 24},
          [=](problem<float>& p) {
            const long_pairs<float> l(p);
            l.scale(l.x, by);
            wide_results<float> wide{p};
            const preference_results<float> to{.loss = wide.take("loss", 1),
                                               .chosen_logps = wide.take("chosen_logps", 2),
                                               .rejected_logps = wide.take("rejected_logps", 2)};
            wide.done();
            return in_chunks(chunk, [=]<class B>(context& ctx) {
              fused_linear_dpo_forward<B>(linear_layer<float>{l.x.matrix(), l.w.matrix()}, l.batch(), to,
                                          {l.dx.matrix(), l.dw.matrix()}, {.beta = 1e-3}, {}, ctx);
            });
          },
          4e-6);
}
// Labels of probability 1 - 1e-9, of which a sum of exponentials that has the label's own would keep nothing.
TEST(cuda_sequences, nearly_certain_labels) {
  expect_as_single_numbers<float>({4 * len, 24}, [](problem<float>& p) {
    const long_pairs<float> l(p);
    std::fill_n(l.x.data, l.x.rows * 24, 0.0f), std::fill_n(l.w.data, vocab * 24, 0.0f);
    for (std::size_t i = 0; i < l.x.rows; ++i) l.x.data[i * 24 + i] = 5, l.target[i] = static_cast<std::int64_t>(i);
    for (std::size_t h = 0; h < 24; ++h) l.w.data[h * 24 + h] = 5;
    wide_results<float> wide{p};
    const preference_results<float> to{.loss = wide.take("loss", 1),
                                       .chosen_logps = wide.take("chosen_logps", 2),
                                       .nll_loss = wide.take("nll_loss", 1)};
    wide.done();
    return in_chunks(4, [=]<class B>(context& ctx) {
      const fused_linear_dpo_options opt{.compute_nll_loss = true};
      fused_linear_dpo_forward<B>(linear_layer<float>{l.x.matrix(), l.w.matrix()}, l.batch(), to,
                                  {l.dx.matrix(), l.dw.matrix()}, opt, {}, ctx);
    });
  });
}
// Two bytes a logit of the pair more than where it is too long.
TEST(cuda_sequences, memory_of_long_sequences) {
  workspace none;
  context ctx(serial(), none, gpu::queue(nullptr));
  ctx.logit_rows(16);
  const auto bytes = [&](std::size_t pairs, std::size_t length, parameters of) {
    return fused_linear_preference_workspace<cuda, bfloat16>(pairs, length, 64, 4096, 0, ctx, of);
  };
  const std::size_t kept = 2 * 64 * 4096 * 2, too_long = bytes(3, 65, parameters::frozen);
  EXPECT_GE(bytes(3, 64, parameters::frozen), too_long + kept - (32u << 10));
  EXPECT_LE(bytes(3, 64, parameters::frozen), too_long + kept + (32u << 10));
  for (const auto of : {parameters::frozen, parameters::overwritten, parameters::trained})
    for (std::size_t pairs = 1; pairs < 9; ++pairs) EXPECT_LE(bytes(pairs, 48, of), bytes(pairs + 1, 48, of)) << pairs;
}

// ids, a mask of bytes and numbers of tokens; with `layer` a linear layer makes the log-probabilities.
template <class T>
auto of_policy(policy_options opt, bool layer, std::size_t chunk = 0) {
  return [=](problem<T>& p) {
    const std::size_t sequences = p.of().rows / len, rows = p.of().rows;
    const auto ids = labels_of(rows, layer ? vocab : p.of().cols, 2, 1);
    auto* const mask = on_device<std::uint8_t>(rows);
    for (std::size_t i = 0; i < rows; ++i) mask[i] = i % 4 != 2;
    const auto advantages = numbers<float>(1, sequences).fill(7), old = numbers<float>(sequences, len).fill(8, -4),
               ref = numbers<float>(sequences, len).fill(9, -4),
               upstream = numbers<float>(1, opt.reduce ? 1 : rows).fill(10, 2);
    const policy_batch<float> batch{.ids = sequences_of(ids, sequences),
                                    .advantages = advantages.vector(),
                                    .old_logp = old.matrix(),
                                    .ref_logp = ref.matrix(),
                                    .mask = matrix_view<std::uint8_t>(mask, sequences, len)};
    wide_results<T> wide{p};
    const std::size_t n = opt.reduce ? 1 : rows;
    const policy_results<float> to{wide.take("loss", n), {wide.take("kl", n), wide.take("clipped", n)}};
    wide.done();
    const auto saved = std::span(on_device<lse_parts<float>>(rows), rows);
    const std::optional<layers<T>> l = layer ? std::optional<layers<T>>(layers<T>(p)) : std::nullopt;
    const auto z = layer ? numbers<T>(0, 0) : p.matrix(1), dz = layer ? numbers<T>(0, 0) : p.made("dlogits");
    return in_chunks(chunk, [=]<class B>(context& ctx) {
      if (layer) return fused_linear_grpo_forward<B>(l->of, batch, to, l->gradients, opt, {}, upstream.vector(), ctx);
      grpo_loss_forward<B>(z.matrix(), batch, to.loss, saved, opt, to.metrics, ctx);
      grpo_loss_backward<B>(z.matrix(), batch, saved, upstream.vector(), dz.matrix(), opt, ctx);
    });
  };
}
TEST(cuda_sequences, policies) {
  using enum policy_loss;
  const shape s{3 * len, 200};
  for (const policy_loss type : {dapo, grpo, luspo, gmpo, vespo, sapo})
    expect_as_single_numbers<float>(s, of_policy<float>({.type = type}, false), 1e-5);
  expect_as_single_numbers<float>(s, of_policy<float>({.level = importance::sequence, .reduce = false}, false), 1e-5);
  expect_as_single_numbers<bfloat16>(s, of_policy<bfloat16>({.temperature = 0.7}, false));
}
// A chunk that ends within a sequence, where tokens need one another and where they do not.
TEST(cuda_sequences, policies_of_a_layer) {
  const shape s{3 * len, 24};
  expect_as_single_numbers<float>(s, of_policy<float>({}, true, 5), 1e-5);
  expect_as_single_numbers<float>(s, of_policy<float>({.level = importance::sequence}, true, 9), 1e-5);
  expect_as_single_numbers<bfloat16>(s, of_policy<bfloat16>({.reduce = false}, true, 5), 8e-3);
}

template <class T>
auto of_logprob(std::size_t chunk) {
  return [=](problem<T>& p) {
    const layers<T> l(p);
    const auto target = labels_of(l.rows, vocab);
    using A = accumulator_t<T>;
    const auto upstream = numbers<A>(1, l.rows).fill(4), saved = numbers<A>(1, 2 * l.rows);
    const std::span parts(reinterpret_cast<lse_parts<A>*>(saved.data), l.rows);
    wide_results<T> wide{p};
    const auto logp = wide.take("logp", l.rows), nll = wide.take("nll", l.rows), entropy = wide.take("entropy", l.rows);
    wide.done();
    const auto dx = p.made("dx of nll and entropy");
    return in_chunks(chunk, [=]<class B>(context& ctx) {
      selective_logprob_forward<B>(l.of, target, logp, parts, {.temperature = 0.8}, ctx);
      selective_logprob_backward<B>(l.of, target, upstream.vector(), parts, l.gradients, {.temperature = 0.8}, ctx);
      fused_linear_scaled_cross_entropy_forward<B>(l.of, target, {nll, entropy}, {dx.matrix()}, {.temperature = 0.8},
                                                   {upstream.vector(), upstream.vector()}, ctx);
    });
  };
}
TEST(cuda_sequences, log_probabilities_of_a_layer) {
  expect_as_single_numbers<float>({4 * len, 24}, of_logprob<float>(0), 2e-6);
  expect_as_single_numbers<float>({4 * len, 19, 2}, of_logprob<float>(9), 2e-6);
  expect_as_single_numbers<bfloat16>({4 * len, 24}, of_logprob<bfloat16>(9), 8e-3);
  expect_as_single_numbers<double>({4 * len, 24}, of_logprob<double>(9), 1e-12);
}

template <class T>
auto of_distillation(fused_linear_jsd_distillation_options opt, fused_linear_kl_div_options kl, std::size_t chunk,
                     std::size_t words = vocab) {
  return [=](problem<T>& p) {
    const layers<T> l(p, gradient::overwrite, words);
    const auto target = labels_of(l.rows, words);
    auto teacher = numbers<T>(l.rows, words);
    teacher.fill(8, 1.5f);
    wide_results<T> wide{p};
    const auto loss = wide.take("loss, soft, hard", 3);
    wide.done();
    const bool elements = kl.reduction == divergence_reduction::none;
    const auto of_kl = numbers<float>(elements ? l.rows : 1, elements ? words : 1).fill(0),
               g = numbers<float>(elements ? l.rows : 1, elements ? words : 1).fill(9, 2);
    const auto dx = p.made("dx of kl_div"), back = p.made("dx of its backward");
    return in_chunks(chunk, [=]<class B>(context& ctx) {
      fused_linear_jsd_distillation_forward<B>(
          l.of, l.other, target, {loss.subspan(0, 1), loss.subspan(1, 1), loss.subspan(2, 1)}, l.gradients, opt, ctx);
      fused_linear_kl_div_forward<B>(l.of, teacher.matrix(), target, of_kl.matrix(), {dx.matrix()}, kl, ctx);
      fused_linear_kl_div_backward<B>(l.of, teacher.matrix(), target, g.matrix(), {back.matrix()}, kl, ctx);
    });
  };
}
TEST(cuda_sequences, distillation) {
  const shape s{2 * len, 24};
  expect_as_single_numbers<float>(s, of_distillation<float>({}, {}, 0), 4e-6);
  expect_as_single_numbers<float>(
      s,
      of_distillation<float>({{.temperature = 0.7, .mask_soft = false, .softcap = 3}, 0.2},
                             {.reduction = divergence_reduction::none, .temperature = 2}, 4),
      4e-6);
  expect_as_single_numbers<bfloat16>(s, of_distillation<bfloat16>({}, {.log_target = true}, 4), 8e-3);
}
// More columns than the threads of a row have at a time: gradients of 16 bits go where its logits are still being read.
// On a GPU a cluster has such a row.
TEST(cuda_sequences, distillation_of_wide_rows) {
  expect_as_single_numbers<bfloat16>({2, 8}, of_distillation<bfloat16>({}, {}, 0, 17000), 8e-3);
}

// What is out of range is thrown when the host waits; nothing is read for it.
class cuda_ids : public testing::Test {
 protected:
  static constexpr std::size_t columns = 40;
  cuda_ids() { device_memory::instance().clear(); }
  // On the model the report is kept back until all kernels have run, as it is where the host is ahead of the device.
  template <class F>
  void expect_report(F call, const std::string& sentence) {
    try {
#if !defined(TIGON_TESTS_ON_GPU)
      static gpu::index_report kept;
      kept.made = 0;
      cuda_model::after_kernel = [] {
        gpu::index_report& report = *gpu::report_of(nullptr);
        if (report.made != 0) kept = report;
        report.made = 0;
      };
      call();
      cuda_model::after_kernel = nullptr;
      *gpu::report_of(nullptr) = kept;
#else
      call();
#endif
      ctx_.wait();
      FAIL() << "no error";
    } catch (const error& e) {
      EXPECT_EQ(e.code(), error_code::index);
      EXPECT_EQ(e.what(), "tigon: " + sentence);
    }
  }
  void expect_nan([[maybe_unused]] float v) {
#if !defined(TIGON_TESTS_ON_GPU)
    EXPECT_TRUE(std::isnan(v));
#endif
  }
  workspace scratch_{gpu::memory(nullptr)};
  context ctx_{serial(), scratch_, gpu::queue(nullptr)};
};
TEST_F(cuda_ids, of_tokens_and_masks) {
  const auto z = numbers<float>(4, columns).fill(1), logp = numbers<float>(2, 2).fill(1);
  const auto ids = labels_of(4, columns, 4);
  auto* const mask = on_device<float>(4);
  std::fill_n(mask, 4, 1.0f);
  const auto call = [&] {
    selective_log_softmax_forward<cuda>(z.matrix(), sequences_of(ids, 2), logp.matrix(), {},
                                        matrix_view<float>(mask, 2, 2), {}, ctx_);
  };
  ids[3] = 40;
  expect_report(call, "selective_log_softmax_forward: ids[1, 1] is 40; expected at least 0 and below 40");
  expect_nan(logp.data[3]);
  mask[2] = 0.5f;
  expect_report(call, "selective_log_softmax_forward: mask[1, 0] is 0.5; expected 0 or 1");
}
TEST_F(cuda_ids, of_labels_of_a_layer) {
  const auto x = numbers<float>(4, 8).fill(1), w = numbers<float>(columns, 8).fill(2),
             loss = numbers<float>(1, 4).fill(3);
  const auto target = labels_of(4, columns, 4);
  target[1] = -7;
  const linear_layer<float> layer{x.matrix(), w.matrix()};
  expect_report(
      [&] {
        fused_linear_dpo_forward<cuda>(layer, {sequences_of(target, 2)}, {loss.vector().subspan(0, 1)}, {}, {}, {},
                                       ctx_);
      },
      "fused_linear_dpo_forward: target[1] is -7; expected at least 0 and below 40, or ignore_index -100");
  expect_nan(loss.data[0]);
  expect_report(
      [&] { fused_linear_scaled_cross_entropy_forward<cuda>(layer, target, {loss.vector()}, {}, {}, {}, ctx_); },
      "fused_linear_scaled_cross_entropy_forward: target[1] is -7; expected at least 0 and below 40, or "
      "ignore_index -100");
  expect_nan(loss.data[1]);
  expect_report(
      [&] {
        fused_linear_jsd_distillation_forward<cuda>(layer, layer, target, {loss.vector().subspan(0, 1)}, {}, {}, ctx_);
      },
      "fused_linear_jsd_distillation_forward: target[1] is -7; expected at least 0 and below 40, or ignore_index -100");
}

}  // namespace
