// Fuzzing of fused linear losses: scaled cross entropy, divergences from a teacher, and losses of a part of the
// vocabulary.
#include <tigon/comm/communicator.hpp>
#include <tigon/losses/fused_linear_jsd.hpp>
#include <tigon/losses/fused_linear_kl_div.hpp>
#include <tigon/losses/fused_linear_scaled_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_cross_entropy.hpp>

#include "labels.hpp"
#include "linear.hpp"
#include "support/kernels.hpp"

namespace {

using namespace tigon::fuzz;

template <class P>
void fused_linear_scaled_cross_entropy(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds of_nll{.f32 = 7e-7, .bf16 = 6e-7, .f16 = 6e-7, .f64 = 4e-16};
  constexpr bounds of_results{.f32 = 1.2e-6, .bf16 = 6e-7, .f16 = 6e-7, .f64 = 7e-16};
  constexpr bounds of_gradient{.f32 = 2e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1.3e-15};
  constexpr bounds of_dbias{.f32 = 1.2e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 6e-16};
  const some_layer<P> l(p, p.some_rows(30));
  const tigon::fused_linear_scaled_cross_entropy_options opt{.temperature = p.in.pick({1.0, 0.7, 2.0})};
  auto& target = some_labels(p, p.template vector<std::int64_t>("target", l.rows), l.vocab);
  const bool each = p.in.one_in(2), with_entropy = p.in.one_in(2);
  auto& g = p.filled(p.template vector<A>("upstream", each ? l.rows : 1), 1, 0.3, false);
  auto& h = p.filled(p.template vector<A>("upstream of entropy", with_entropy ? l.rows : 0), 0, 0.3, false);
  auto &nll = p.template vector<A>("nll", l.rows), &entropy = p.template vector<A>("entropy", l.rows);
  auto& lse = p.template vector<A>("lse", l.rows);
  const auto upstream = [&](auto s) {
    using N = std::conditional_t<decltype(s)::is_reference, double, A>;
    return tigon::scaled_cross_entropy_upstream<N>{g.vec(s), with_entropy ? h.vec(s) : std::span<N>{}};
  };
  p.call({&nll, &entropy, &lse}, [&](auto s) {
    using S = decltype(s);
    using N = std::conditional_t<S::is_reference, double, A>;
    const rows_at_a_time chunk(s.ctx, l.at_a_time);
    tigon::fused_linear_scaled_cross_entropy_forward<typename S::backend>(
        l.layer(s), target.vec(s), tigon::scaled_cross_entropy_results<N>{nll.vec(s), entropy.vec(s), lse.vec(s)}, {},
        opt, {}, s.ctx);
  });
  const double stretch = std::max(1.0, l.stretch() / opt.temperature);
  p.compare(nll, {.bound = stretch * of_nll.of<T>(), .scale = 1});
  p.compare(entropy, {.bound = stretch * of_results.of<T>(), .scale = 1});
  p.compare(lse, {.bound = stretch * of_results.of<T>(), .scale = 1});
  p.call({&l.dx, &l.dw, &l.dbias}, [&](auto s) {
    const rows_at_a_time chunk(s.ctx, l.at_a_time);
    tigon::fused_linear_scaled_cross_entropy_backward<typename decltype(s)::backend>(
        l.layer(s), target.vec(s), upstream(s), l.gradients(s), opt, s.ctx);
  });
  l.compare(of_gradient.of<T>(), of_dbias.of<T>(), (p.stretch() + p.stretch() * p.stretch()) / opt.temperature);
}

template <class P>
void fused_linear_jsd(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds of_loss{.f32 = 4e-7, .bf16 = 4e-7, .f16 = 4e-7, .f64 = 4e-16};
  constexpr bounds of_gradient{.f32 = 1.2e-5, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1.4e-14};
  constexpr bounds of_dbias{.f32 = 5e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 4e-15};
  const some_layer<P> l(p, p.some_rows(30));
  tigon::fused_linear_jsd_options opt{.beta = p.in.pick({0.5, 0.1, 0.0, 1.0})};
  opt.temperature = p.in.pick({1.0, 2.0}), opt.upstream = p.in.pick({1.0, 0.5});
  auto& teacher = p.filled(p.matrix("teacher", l.rows, l.vocab), 0, 1, false);
  auto& labels = some_labels(p, p.template vector<std::int64_t>("labels", l.rows), l.vocab, -100, false);
  auto& loss = p.template vector<A>("loss", 1);
  p.call({&loss, &l.dx, &l.dw, &l.dbias}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    const rows_at_a_time chunk(s.ctx, l.at_a_time);
    tigon::fused_linear_jsd_forward<typename S::backend, E>(l.layer(s), tigon::matrix_view<const E>(teacher.at(s)),
                                                            labels.vec(s), loss.vec(s), l.gradients(s), opt, s.ctx);
  });
  // The terms of a divergence cancel where both are alike.
  p.compare(loss, {.bound = l.stretch() * of_loss.of<T>(), .scale = 1});
  l.compare(of_gradient.of<T>(), of_dbias.of<T>(),
            p.stretch() / static_cast<double>(l.vocab) * (l.rows == 0 ? 0.0 : 1.0));
}

template <class P>
void fused_linear_kl_div(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds of_loss{.f32 = 4e-7, .bf16 = 4e-7, .f16 = 4e-7, .f64 = 3e-16};
  constexpr bounds of_element{.f32 = 1e-6, .bf16 = 1e-6, .f16 = 1e-6, .f64 = 6e-16};
  constexpr bounds of_gradient{.f32 = 6e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 8e-15};
  using enum tigon::divergence_reduction;
  const some_layer<P> l(p, p.some_rows(30));
  tigon::fused_linear_kl_div_options opt{.reduction = p.in.pick({batchmean, mean, sum, none})};
  opt.log_target = p.in.one_in(2), opt.temperature = p.in.pick({1.0, 2.0}), opt.eps = p.in.pick({0.0, 1e-3});
  if (opt.log_target) opt.eps = 0;
  const bool each = opt.reduction == none;
  auto& teacher = p.filled(p.matrix("teacher", l.rows, l.vocab), 0, 1, false);
  double terms = 0;
  std::vector<double> of_rows(l.rows);
  for (std::size_t k = 0; k < teacher.size(); ++k) {
    const double log_p = std::min(-3 - teacher.got(k), 0.0);
    teacher.set(k, opt.log_target ? log_p : std::exp(log_p));
    terms += std::exp(log_p) * (std::abs(log_p) + 6 + 4 * l.stretch());
    of_rows[k / l.vocab] += std::exp(log_p);
  }
  const double of_row = l.rows == 0 ? 0 : *std::ranges::max_element(of_rows);
  auto& labels = some_labels(p, p.template vector<std::int64_t>("labels", l.rows), l.vocab, -100, false);
  auto& loss = p.template matrix<A>("loss", each ? l.rows : 1, each ? l.vocab : 1);
  auto& upstream = p.filled(p.template matrix<A>("upstream", each ? l.rows : 1, each ? l.vocab : 1), 0.5, 0.2, false);
  p.call({&loss}, [&](auto s) {
    using S = decltype(s);
    using N = std::conditional_t<S::is_reference, double, A>;
    const rows_at_a_time chunk(s.ctx, l.at_a_time);
    tigon::fused_linear_kl_div_forward<typename S::backend>(l.layer(s), teacher.at(s), labels.vec(s),
                                                            tigon::loss_elements<N>(loss.at(s)), {}, opt, s.ctx);
  });
  p.compare(loss, {.bound = l.stretch() * (each ? of_element : of_loss).of<T>(), .scale = each ? 1.0 : terms});
  p.call({&l.dx, &l.dw, &l.dbias}, [&](auto s) {
    using S = decltype(s);
    using N = std::conditional_t<S::is_reference, const double, const A>;
    const rows_at_a_time chunk(s.ctx, l.at_a_time);
    tigon::fused_linear_kl_div_backward<typename S::backend>(
        l.layer(s), teacher.at(s), labels.vec(s), tigon::loss_elements<N>(upstream.at(s)), l.gradients(s), opt, s.ctx);
  });
  const double c = opt.reduction == sum || each ? 1 : 1 / static_cast<double>(l.rows + 1);
  // Gradients of the logits of a row have the sum 0: with equal weights dx is what the rounding of all of them leaves.
  const double classes = static_cast<double>(l.vocab);
  l.compare(of_gradient.of<T>(), c * of_row / (std::sqrt(classes) * (opt.reduction == mean ? classes : 1)));
}

template <class P>
void vocab_parallel_fused_linear_cross_entropy(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds of_loss{.f32 = 4e-7, .bf16 = 4e-7, .f16 = 4e-7, .f64 = 8e-16};
  constexpr bounds of_gradient{.f32 = 2e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1.5e-15};
  const some_layer<P> l(p, p.some_rows(30));
  tigon::vocab_parallel_fused_linear_cross_entropy_options opt;
  opt.loss.reduction = p.in.pick({tigon::reduction::mean, tigon::reduction::sum, tigon::reduction::none});
  opt.loss.label_smoothing = p.in.pick({0.0, 0.1}), opt.loss.lse_square_scale = p.in.pick({0.0, 0.01});
  auto& target = some_labels(p, p.template vector<std::int64_t>("target", l.rows), l.vocab);
  auto& loss = p.template vector<A>("loss", opt.loss.reduction == tigon::reduction::none ? l.rows : 1);
  tigon::comm::serial alone;
  p.may_allocate = "what ranks tell each other";
  p.call({&loss, &l.dx, &l.dw, &l.dbias}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    const rows_at_a_time chunk(s.ctx, l.at_a_time);
    tigon::vocab_parallel_fused_linear_cross_entropy_forward<typename S::backend, E>(
        alone, tigon::linear_shard<E>{l.layer(s), tigon::vocab_shard{0, l.vocab}}, target.vec(s), {.loss = loss.vec(s)},
        l.gradients(s), opt, tigon::absent, s.ctx);
  });
  const double one = opt.loss.reduction == tigon::reduction::mean ? 1 / counted_labels(target) : 1;
  p.compare(loss, {.bound = l.stretch() * of_loss.of<T>(),
                   .scale = one * loss_of_logits(l.x, l.w, opt.loss.lse_square_scale)});
  l.compare(of_gradient.of<T>(), one);
}

constexpr target all[] = {TIGON_FUZZ_TARGET(fused_linear_scaled_cross_entropy), TIGON_FUZZ_TARGET(fused_linear_jsd),
                          TIGON_FUZZ_TARGET(fused_linear_kl_div),
                          TIGON_FUZZ_TARGET(vocab_parallel_fused_linear_cross_entropy)};

}  // namespace

#include "driver.hpp"

std::span<const tigon::fuzz::target> tigon::fuzz::targets() { return all; }
