// Cross entropy and a divergence of the same logits on the model of a GPU.
#include "problem.hpp"
// Behind it: it says how these are compiled.
#include <cstdint>
#include <tigon/losses/cross_entropy_divergence.hpp>

namespace {

using namespace cuda_tests;

struct options {
  cross_entropy_divergence_options of{};
  bool weighted = false;
  float scale = 1;           ///< of the logits
  bool only_losses = false;  ///< no gradient
};
// With gradients over the logits and over the teacher as well.
template <class T>
auto both_divergences(options opt) {
  return [=](problem<T>& p) {
    using A = accumulator_t<T>;
    const std::size_t rows = p.of().rows, vocab = p.of().cols;
    const std::size_t losses = opt.of.reduction == reduction::none ? rows : 1;
    const auto z = p.matrix(1), probabilities = p.matrix(2), logarithms = p.matrix(3);
    for (std::size_t i = 0; i < rows; ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < vocab; ++j) {
        T& v = z.data[i * z.stride + j];
        v = T(static_cast<float>(v) * opt.scale);
        sum += std::exp(4 * static_cast<double>(probabilities.data[i * z.stride + j]));
      }
      for (std::size_t j = 0; j < vocab; ++j) {
        T& of = probabilities.data[i * z.stride + j];
        const double log_p = 4 * static_cast<double>(of) - std::log(sum);
        logarithms.data[i * z.stride + j] = T(static_cast<float>(log_p));
        of = T(static_cast<float>(std::exp(log_p)));
      }
    }
    auto* const target = static_cast<std::int32_t*>(device_memory::instance().take(rows * sizeof(std::int32_t)));
    for (std::size_t i = 0; i < rows; ++i)
      target[i] = i % 4 == 2 ? opt.of.ignore_index : static_cast<std::int32_t>((i * 7919 + 3) % vocab);
    const std::span<const std::int32_t> labels(target, rows);
    const auto weight = numbers<A>(1, vocab).fill(4, 1.5f);
    auto tvd = p.made("tvd dlogits"), jsd = p.made("jsd dlogits"), over = p.made("jsd dlogits over the logits"),
         over_teacher = p.made("tvd dlogits over the teacher's rows");
    const auto all = p.made("losses", 1, 6 * losses);
    const numbers<A> of_tvd(3, losses), of_jsd(3, losses);
    p.after([=] {
      for (std::size_t k = 0; k < 3; ++k)
        for (std::size_t i = 0; i < losses; ++i) {
          all.data[k * losses + i] = T(of_tvd.data[k * losses + i]);
          all.data[(3 + k) * losses + i] = T(of_jsd.data[k * losses + i]);
        }
    });
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < vocab; ++j) {
        over.data[i * z.stride + j] = z.data[i * z.stride + j];
        over_teacher.data[i * z.stride + j] = probabilities.data[i * z.stride + j];
        if (opt.only_losses) tvd.data[i * z.stride + j] = jsd.data[i * z.stride + j] = T(0.0f);
      }
    return [=]<class B>(context& ctx) {
      const auto row = [=](const numbers<A>& of, std::size_t k) { return std::span<A>(of.data + k * losses, losses); };
      const cross_entropy_divergence_losses<A> to_tvd{row(of_tvd, 0), row(of_tvd, 1), row(of_tvd, 2)},
          to_jsd{row(of_jsd, 0), row(of_jsd, 1), row(of_jsd, 2)};
      const auto d = [=](const numbers<T>& to) { return opt.only_losses ? matrix_view<T>() : to.matrix(); };
      const auto run = [&](auto w) {
        cross_entropy_tvd_forward<B>(z.matrix(), labels, probabilities.matrix(), to_tvd, d(tvd), opt.of, w, ctx);
        cross_entropy_jsd_forward<B>(z.matrix(), labels, logarithms.matrix(), to_jsd, d(jsd), opt.of, w, ctx);
        if (opt.only_losses) return;
        const matrix_view<const T> of_over(over.matrix()), of_teacher(over_teacher.matrix());
        cross_entropy_jsd_forward<B>(of_over, labels, logarithms.matrix(), to_jsd, over.matrix(), opt.of, w, ctx);
        cross_entropy_tvd_forward<B>(z.matrix(), labels, of_teacher, to_tvd, over_teacher.matrix(), opt.of, w, ctx);
      };
      opt.weighted ? run(weight.vector()) : run(absent);
    };
  };
}

TEST(cuda_divergences, of_plain_options) {
  for (const shape& s : {shape{7, 1000}, shape{6, 1001}, shape{5, 36, 1}, shape{2, 9000, 8}})
    expect_as_single_numbers<float>(s, both_divergences<float>({}));
  expect_as_single_numbers<bfloat16>({7, 1000, 8}, both_divergences<bfloat16>({.scale = 4}));
  expect_as_single_numbers<double>({6, 101}, both_divergences<double>({}));
}
TEST(cuda_divergences, of_all_options) {
  const cross_entropy_divergence_options all{.reduction = reduction::sum,
                                             .label_smoothing = 0.2,
                                             .lse_square_scale = 1e-3,
                                             .weight_ce = 0.3,
                                             .weight_divergence = 0.7,
                                             .temperature = 2.5,
                                             .beta = 0.3,
                                             .upstream = 2};
  cross_entropy_divergence_options each = all;
  each.reduction = reduction::none, each.beta = 0;
  cross_entropy_divergence_options shared = all;
  shared.reduction = reduction::mean, shared.denominator = 3, shared.beta = 1;
  for (const shape& s : {shape{7, 1000}, shape{6, 1001}})
    for (const auto& of : {all, each, shared}) {
      expect_as_single_numbers<float>(s, both_divergences<float>({of, true, 3}));
      expect_as_single_numbers<float>(s, both_divergences<float>({of}));
    }
}
TEST(cuda_divergences, of_one_loss_alone) {
  for (const auto& of :
       {cross_entropy_divergence_options{.weight_divergence = 0}, cross_entropy_divergence_options{.weight_ce = 0}}) {
    expect_as_single_numbers<float>({7, 1000}, both_divergences<float>({of}));
    expect_as_single_numbers<float>({7, 1001}, both_divergences<float>({.of = of, .only_losses = true}));
  }
}
// A label that dominates its row, of which p - 1 cancels.
TEST(cuda_divergences, of_large_logits) {
  expect_as_single_numbers<float>({9, 300}, both_divergences<float>({.scale = 60}), 3e-6);
}
// A label out of range is reported; nothing is read for it, its loss is NaN and its gradient 0.
TEST(cuda_divergences, report_labels_out_of_range) {
  device_memory::instance().clear();
  const auto z = numbers<float>(2, 50).fill(1), t = numbers<float>(2, 50).fill(2), d = numbers<float>(2, 50);
  const numbers<float> loss(1, 2), divergence(1, 2);
  auto* const target = static_cast<std::int32_t*>(device_memory::instance().take(2 * sizeof(std::int32_t)));
  target[0] = 3, target[1] = 50;
  context& ctx = cuda::default_context();
  const auto call = [&] {
    cross_entropy_tvd_forward<cuda>(z.matrix(), std::span<const std::int32_t>(target, 2), t.matrix(),
                                    {loss.vector(), {}, divergence.vector()}, d.matrix(),
                                    {.reduction = reduction::none}, absent, ctx);
    ctx.wait();
  };
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const error& e) {
    EXPECT_EQ(e.code(), error_code::index);
    EXPECT_STREQ(
        e.what(),
        "tigon: cross_entropy_tvd_forward: target[1] is 50; expected at least 0 and below 50, or ignore_index -100");
  }
#if !defined(TIGON_TESTS_ON_GPU)
  cuda_model::after_kernel = [] { gpu::report_of(nullptr)->made = 0; };  // so that the call goes on
  call();
  cuda_model::after_kernel = nullptr;
  EXPECT_FALSE(std::isnan(loss.data[0]));
  EXPECT_TRUE(std::isnan(loss.data[1]) && std::isnan(divergence.data[1]));
  for (std::size_t j = 0; j < 50; ++j) EXPECT_EQ(d.data[d.stride + j], 0.0f);
#endif
}

}  // namespace
