// Fuzzing of losses on logits, log-probabilities and probabilities.
#include <tigon/comm/communicator.hpp>
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/losses/cross_entropy_divergence.hpp>
#include <tigon/losses/grpo_loss.hpp>
#include <tigon/losses/jsd.hpp>
#include <tigon/losses/kl_div.hpp>
#include <tigon/losses/selective_log_softmax.hpp>
#include <tigon/losses/tvd.hpp>
#include <tigon/losses/vocab_parallel_cross_entropy.hpp>

#include <algorithm>

#include "labels.hpp"
#include "support/kernels.hpp"

namespace {

using namespace tigon::fuzz;
using tigon::absent, tigon::reduction, tigon::divergence_reduction, tigon::lse_parts;

constexpr bounds f32_everywhere(double f32, double f64) { return {f32, f32, f32, f64}; }

/// The log-sum-exp of each row, and what else backward takes of it.
template <class P>
struct saved_lse : saved_buffer<lse_parts<typename P::A>, lse_parts<double>> {
  explicit saved_lse(std::size_t rows) : saved_lse::saved_buffer(rows, rows) {}
};

reduction some_reduction(source& in) { return in.pick({reduction::mean, reduction::sum, reduction::none}); }

template <class P>
void cross_entropy(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds of_loss = f32_everywhere(4e-7, 5e-16);
  constexpr bounds of_gradient{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 1.2e-15};
  const std::size_t rows = p.some_rows(), vocab = p.some_cols(p.in.one_in(16) ? 3000 : 300);
  tigon::cross_entropy_options opt{.ignore_index = p.in.template pick<std::int64_t>({-100, 0, 2}),
                                   .reduction = some_reduction(p.in)};
  opt.label_smoothing = p.in.pick({0.0, 0.1, 1.0}), opt.lse_square_scale = p.in.pick({0.0, 0.05});
  opt.softcap = p.in.pick({0.0, 0.0, 5.0}), opt.denominator = p.in.pick({0.0, 0.0, 7.0});
  p.note_options(static_cast<int>(opt.reduction), opt.label_smoothing, opt.lse_square_scale, opt.softcap,
                 opt.denominator);
  const bool weighted = p.in.one_in(3), upstream_again = p.in.one_in(2);
  const std::size_t results = opt.reduction == reduction::none ? rows : 1;
  // A softcap leaves no digits of the gradient of logits far beyond it.
  auto& logits = p.filled(p.matrix("logits", rows, vocab), 0, opt.softcap != 0 ? 1 / p.stretch() : 2);
  auto& target = some_labels(p, p.template vector<std::int64_t>("target", rows), vocab, opt.ignore_index);
  auto& weight = p.vector("class weight", weighted ? vocab : 0);
  for (std::size_t j = 0; j < weight.size(); ++j) weight.set(j, 0.25 * static_cast<double>(j % 7 + 1));
  auto &loss = p.template vector<A>("loss", results), &z_loss = p.template vector<A>("z_loss", results);
  auto& predicted = p.template vector<std::int64_t>("predicted", rows);
  auto& upstream = p.template vector<A>("upstream", results);
  auto& dlogits = p.matrix("dlogits", rows, vocab);
  for (std::size_t i = 0; i < results; ++i) upstream.set(i, 0.5 + 0.25 * static_cast<double>(i));
  auto &again = p.matrix("dlogits again", rows, vocab), &to = p.in_place(dlogits, {&logits});
  const auto given_weight = [&](auto s) { return weighted ? weight.vec(s) : decltype(weight.vec(s))(); };
  const auto if_tame = [&](auto& of, double bound, double scale) {
    if (!p.is_wild()) p.compare(of, {.bound = bound, .scale = scale});
  };
  // What smoothing subtracts, and what a softcap makes small.
  const double part = (opt.label_smoothing + (opt.softcap != 0 ? 1 : 0)) / static_cast<double>(vocab);
  const double terms = opt.reduction != reduction::mean ? part
                       : opt.denominator != 0           ? part / opt.denominator
                                                        : part / counted_labels(target, opt.ignore_index);
  if (upstream_again) {
    p.call({&again}, [&](auto s) {
      tigon::cross_entropy_backward_recompute<typename decltype(s)::backend>(
          logits.at(s), target.vec(s), upstream.vec(s), again.at(s), opt, given_weight(s), s.ctx);
    });
    p.compare(again, {.bound = 2 * of_gradient.of<T>(), .scale = terms, .of = {&logits}});
  }
  p.call({&loss, &z_loss, &predicted, &to}, [&](auto s) {
    tigon::cross_entropy_forward<typename decltype(s)::backend>(logits.at(s), target.vec(s), loss.vec(s), to.at(s), opt,
                                                                given_weight(s),
                                                                {z_loss.vec(s), {}, predicted.vec(s), {}}, s.ctx);
  });
  // The square of a log-sum-exp near 0, which is a difference: its error is that of the root.
  double largest = 0;
  for (std::size_t k = 0; k < z_loss.size(); ++k) largest = std::max(largest, z_loss.wanted(k));
  if_tame(loss, of_loss.of<T>(), 0), if_tame(z_loss, of_loss.of<T>(), std::sqrt(opt.lse_square_scale * largest));
  p.compare(predicted, {.bound = 0, .of = {&logits}});
  p.compare(to, {.bound = of_gradient.of<T>(), .scale = terms, .of = {&logits}});
  to.hand_over();
  p.call({&to}, [&](auto s) {
    tigon::cross_entropy_backward<typename decltype(s)::backend>(to.at(s), upstream.vec(s), to.at(s), s.ctx);
  });
  p.compare(to, {.bound = of_gradient.of<T>(), .of = {&logits}});
}

template <bool TVD, class P>
void with_divergence(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds of_ce = f32_everywhere(3.5e-7, 5e-16), of_loss = f32_everywhere(6e-7, 5e-16);
  constexpr bounds of_divergence = TVD ? f32_everywhere(4e-7, 5e-16) : f32_everywhere(1e-6, 1.5e-15);
  constexpr bounds of_gradient{.f32 = TVD ? 2e-6 : 7e-7, .bf16 = 4e-3, .f16 = 6e-4, .f64 = TVD ? 6e-15 : 7e-16};
  const std::size_t rows = p.some_rows(), vocab = p.some_cols();
  tigon::cross_entropy_divergence_options opt{.reduction = some_reduction(p.in)};
  opt.label_smoothing = p.in.pick({0.0, 0.1}), opt.lse_square_scale = p.in.pick({0.0, 0.05});
  opt.weight_ce = p.in.pick({1.0, 0.25}), opt.weight_divergence = p.in.pick({1.0, 2.0});
  opt.temperature = p.in.pick({1.0, 2.0, 0.5}), opt.beta = p.in.pick({0.5, 0.1, 0.0, 1.0});
  opt.upstream = p.in.pick({1.0, -0.5});
  p.note_options(static_cast<int>(opt.reduction), opt.label_smoothing, opt.lse_square_scale, opt.weight_ce,
                 opt.weight_divergence, opt.temperature, opt.beta);
  const std::size_t results = opt.reduction == reduction::none ? rows : 1;
  auto& logits = p.filled(p.matrix("logits", rows, vocab), 0, opt.temperature, !TVD);
  auto& teacher = p.filled(p.matrix("teacher", rows, vocab), 0, 1, false);
  // Of probabilities: of all of a row the sum is about 1.
  for (std::size_t k = 0; k < teacher.size(); ++k) {
    const double share = std::exp(-std::abs(teacher.got(k))) / static_cast<double>(vocab);
    teacher.set(k, TVD ? share : std::log(share));
  }
  auto& target = some_labels(p, p.template vector<std::int64_t>("target", rows), vocab, opt.ignore_index);
  auto &loss = p.template vector<A>("loss", results), &ce = p.template vector<A>("ce", results);
  auto& divergence = p.template vector<A>("divergence", results);
  auto& dlogits = p.matrix("dlogits", rows, vocab);
  // Where the two probabilities are equal, the gradient of their distance jumps. The terms of that of jsd cancel:
  // Q_j (log Q_j - log M_j - KL).
  std::vector<bool> even(rows, false);
  double terms = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    double sum = 0;
    const auto power = [&](std::size_t j) { return std::exp(logits.got(i * vocab + j) / opt.temperature); };
    for (std::size_t j = 0; j < vocab; ++j) sum += power(j);
    for (std::size_t j = 0; j < vocab; ++j) {
      const double q = power(j) / sum, t = teacher.got(i * vocab + j);
      if (TVD && std::abs(q - t) < (sizeof(T) == 2 ? 2e-2 : 1e-4) * t) even[i] = true;
      if (const double size = q * (std::abs(t) + std::abs(std::log(q))); !TVD && std::isfinite(size))
        terms = std::max(terms, size * opt.weight_divergence / opt.temperature);
    }
  }
  if (TVD) logits.wild = even;
  auto& to = p.in_place(dlogits, {&logits, &teacher});
  p.call({&loss, &ce, &divergence, &to}, [&](auto s) {
    using B = typename decltype(s)::backend;
    if constexpr (TVD)
      tigon::cross_entropy_tvd_forward<B>(logits.at(s), target.vec(s), teacher.at(s),
                                          {loss.vec(s), ce.vec(s), divergence.vec(s)}, to.at(s), opt, absent, s.ctx);
    else
      tigon::cross_entropy_jsd_forward<B>(logits.at(s), target.vec(s), teacher.at(s),
                                          {loss.vec(s), ce.vec(s), divergence.vec(s)}, to.at(s), opt, absent, s.ctx);
  });
  if (!p.is_wild()) {
    // The terms of a divergence cancel where both are alike.
    p.compare(loss, {.bound = p.stretch() * of_loss.of<T>(), .scale = 1});
    p.compare(ce, {.bound = p.stretch() * of_ce.of<T>(), .scale = 1});
    p.compare(divergence, {.bound = p.stretch() * of_divergence.of<T>(), .scale = 1});
  }
  const double part = (1 / static_cast<double>(vocab) + terms) /
                      (opt.reduction == reduction::mean ? counted_labels(target, opt.ignore_index) : 1);
  p.compare(to, {.bound = p.stretch() * of_gradient.of<T>(), .scale = part, .of = {&logits}});
}
template <class P>
void cross_entropy_tvd(P& p) {
  with_divergence<true>(p);
}
template <class P>
void cross_entropy_jsd(P& p) {
  with_divergence<false>(p);
}

/// Student and teacher of divergences: log-probabilities of either, or probabilities. A loss of all, or of each
/// element.
template <class P>
struct pair_of_rows {
  using T = typename P::element;
  using A = typename P::A;
  P& p;
  std::size_t rows, vocab;
  bool each;
  twin<T>&student, &teacher, &gradient;
  twin<A>&loss, &upstream;

  pair_of_rows(P& of, bool student_logs, bool teacher_logs, bool each_element)
      : p(of),
        rows(p.some_rows()),
        vocab(p.some_cols()),
        each(each_element),
        student(make("student", student_logs)),
        teacher(make("teacher", teacher_logs)),
        gradient(p.matrix("gradient", rows, vocab)),
        loss(p.template matrix<A>("loss", each ? rows : 1, each ? vocab : 1)),
        upstream(p.filled(p.template matrix<A>("upstream", loss.rows(), loss.cols()), 0.5, 0.2, false)) {}

  twin<T>& make(const char* name, bool logs) const {
    auto& m = p.filled(p.matrix(name, rows, vocab), 0, 1, false);
    for (std::size_t k = 0; k < m.size(); ++k) {
      const double log_p = std::min(-3 - m.got(k), 11.0);  // of what f16 holds
      m.set(k, logs ? log_p : std::exp(log_p));
    }
    if (rows != 0 && p.in.one_in(4))  // what an impossible token has
      m.set(p.in.below(m.size()), logs ? -std::numeric_limits<double>::infinity() : 0);
    return m;
  }
  /// Labels, some of which are ignored; no class is looked for.
  auto& labels() const {
    auto& all = p.template vector<std::int64_t>("labels", rows);
    for (std::size_t i = 0; i < rows; ++i) all.set(i, p.in.one_in(4) ? -100 : 5);
    return all;
  }
  /// Size of what a loss is the sum of, for `parts` of the rows.
  double terms(double per) const { return 4 * 0.5 * static_cast<double>(rows * vocab) / per; }

  /// call(side) makes the loss, with an error of `of_loss`, and a gradient.
  template <class F>
  void forward(twin<T>& to, const any_problem::comparison& of_loss, bounds of_gradient, F call) const {
    p.call({&loss, &to}, call);
    p.compare(loss, of_loss);
    p.compare(to, {.bound = of_gradient.of<T>()});
  }
  template <class F>
  void backward(twin<T>& to, bounds of_gradient, F call, std::span<const double> terms_of_gradient = {}) const {
    p.call({&to}, call);
    p.compare(to, {.bound = of_gradient.of<T>(), .terms = terms_of_gradient});
  }
};

template <class P>
void jsd(P& p) {
  constexpr bounds of_loss = f32_everywhere(1e-6, 4e-16);
  constexpr bounds of_gradient{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 1e-3, .f64 = 4e-15};
  const tigon::jsd_options opt{.beta = p.in.pick({0.5, 0.1, 0.9, 0.0, 1.0}), .ignore_index = -100};
  const pair_of_rows<P> of(p, true, true, false);
  auto& labels = of.labels();
  auto& to = p.in_place(of.gradient, {&of.student, &of.teacher});
  const double terms = opt.beta == 0 || opt.beta == 1 ? of.terms(counted_labels(labels)) : 0;
  of.forward(to, {.bound = of_loss.of<typename P::element>(), .scale = terms}, of_gradient, [&](auto s) {
    tigon::jsd_forward<typename decltype(s)::backend>(of.student.at(s), of.teacher.at(s), of.loss.vec(s), to.at(s), opt,
                                                      labels.vec(s), s.ctx);
  });
  to.hand_over();
  of.backward(to, of_gradient, [&](auto s) {
    tigon::jsd_backward<typename decltype(s)::backend>(to.at(s), of.upstream.vec(s), to.at(s), s.ctx);
  });
}

template <class P>
void kl_div(P& p) {
  constexpr bounds of_loss = f32_everywhere(4e-7, 3e-16);
  constexpr bounds of_gradient{.f32 = 8e-7, .bf16 = 4e-3, .f16 = 1e-3, .f64 = 1.5e-15};
  using enum divergence_reduction;
  tigon::kl_div_options opt{.reduction = p.in.pick({batchmean, mean, sum, none}), .log_target = p.in.one_in(2)};
  opt.eps = p.in.pick({0.0, 1e-3});
  const pair_of_rows<P> of(p, true, opt.log_target, opt.reduction == none);
  auto& again = p.matrix("teacher's gradient", of.rows, of.vocab);
  // log P, y and 1 cancel where they are alike.
  const double n = static_cast<double>(of.rows) * (opt.reduction == mean ? static_cast<double>(of.vocab) : 1);
  const double c = opt.reduction == sum || of.each ? 1 : 1 / n;
  std::vector<double> losses(again.size()), gradients(again.size());
  double all = 0;
  for (std::size_t k = 0; k < again.size(); ++k) {
    const double t = of.teacher.wanted(k), y = of.student.wanted(k), of_y = c * of.upstream.wanted(of.each ? k : 0);
    const double log_p = opt.log_target ? t : std::log(std::max({t, opt.eps, again.smallest_normal()}));
    const double probability = opt.log_target ? std::exp(t) : t;
    losses[k] = probability == 0 ? 0 : c * probability * (std::abs(log_p) + std::abs(y));
    if (std::isfinite(losses[k])) all += losses[k];
    gradients[k] = std::abs(of_y) * (opt.log_target ? probability : 1) * (std::abs(log_p - y) + 1);
  }
  any_problem::comparison loss{.bound = of_loss.of<typename P::element>(), .scale = all};
  if (of.each) loss.terms = losses;
  of.forward(of.gradient, loss, of_gradient, [&](auto s) {
    tigon::kl_div_forward<typename decltype(s)::backend>(of.student.at(s), of.teacher.at(s), of.loss.at(s),
                                                         of.gradient.at(s), opt, s.ctx);
  });
  of.backward(
      again, of_gradient,
      [&](auto s) {
        tigon::kl_div_teacher_backward<typename decltype(s)::backend>(of.student.at(s), of.teacher.at(s),
                                                                      of.upstream.at(s), again.at(s), opt, s.ctx);
      },
      gradients);
  auto& to = p.in_place(of.gradient, {&of.teacher});
  of.backward(to, of_gradient, [&](auto s) {
    tigon::kl_div_backward<typename decltype(s)::backend>(of.teacher.at(s), of.upstream.at(s), to.at(s), opt, s.ctx);
  });
}

template <class P>
void tvd(P& p) {
  constexpr bounds of_loss = f32_everywhere(5e-7, 4e-16);
  constexpr bounds of_gradient{.f32 = 2e-7, .bf16 = 4e-3, .f16 = 1e-3, .f64 = 4e-16};
  using enum divergence_reduction;
  const tigon::tvd_options opt{.reduction = p.in.pick({batchmean, mean, sum, none})};
  const pair_of_rows<P> of(p, false, false, opt.reduction == none);
  auto& labels = of.labels();
  of.forward(of.gradient, {.bound = of_loss.of<typename P::element>()}, of_gradient, [&](auto s) {
    tigon::tvd_forward<typename decltype(s)::backend>(of.student.at(s), of.teacher.at(s), of.loss.at(s),
                                                      of.gradient.at(s), opt, labels.vec(s), s.ctx);
  });
  auto& to = p.in_place(of.gradient, {&of.teacher, &of.student});
  of.backward(to, of_gradient, [&](auto s) {
    tigon::tvd_backward<typename decltype(s)::backend>(of.student.at(s), of.teacher.at(s), of.upstream.at(s), to.at(s),
                                                       opt, labels.vec(s), s.ctx);
  });
}

template <class P>
void selective_log_softmax(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds of_logp = f32_everywhere(4e-7, 2e-16);
  constexpr bounds of_gradient{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 1.2e-15};
  const std::size_t batch = p.in.below(4), len = p.in.below(5), gap = p.in.below(2), vocab = p.some_cols();
  const std::size_t rows = batch * (len + gap);
  const tigon::selective_log_softmax_options opt{.temperature = p.in.pick({1.0, 0.7, 2.0})};
  auto& logits = p.filled(p.matrix("logits", rows, vocab), 0, 2);
  auto& ids = p.template matrix<std::int64_t>("ids", batch, len);
  auto& logp = p.template matrix<A>("logp", batch, len);
  auto& mask = p.template matrix<std::uint8_t>("mask", batch, len);
  generator next(p.in.seed());
  for (std::size_t k = 0; k < ids.size(); ++k)
    ids.set(k, static_cast<double>(next() % vocab)), mask.set(k, next() % 4 != 0);
  if (ids.size() != 0 && p.in.one_in(16))
    ids.set(p.in.below(ids.size()), p.in.pick({-1.0, static_cast<double>(vocab)})), p.may_refuse = true;
  auto& dlogp = p.filled(p.template matrix<A>("dlogp", batch, len), 0, 1, false);
  auto& dlogits = p.matrix("dlogits", rows, vocab);
  saved_lse<P> saved(rows);
  p.call({&logp}, [&](auto s) {
    tigon::selective_log_softmax_forward<typename decltype(s)::backend>(logits.at(s), ids.at(s), logp.at(s), opt,
                                                                        mask.at(s), saved.at(s), s.ctx);
  });
  if (!p.is_wild()) p.compare(logp, {.bound = p.stretch() * of_logp.of<T>()});
  auto& to = p.in_place(dlogits, {&logits});
  p.call({&to}, [&](auto s) {
    tigon::selective_log_softmax_backward<typename decltype(s)::backend>(logits.at(s), ids.at(s), saved.at(s),
                                                                         dlogp.at(s), to.at(s), opt, mask.at(s), s.ctx);
  });
  p.compare(to, {.bound = of_gradient.of<T>(), .of = {&logits}});
}

template <class P>
void grpo_loss(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds of_loss = f32_everywhere(1.2e-6, 3e-15);
  constexpr bounds of_gradient{.f32 = 1e-5, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 5e-14};
  constexpr bounds of_both{.f32 = 1e-5, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 2e-14};  // in one pass
  const std::size_t batch = p.in.between(1, 3), len = p.in.between(1, 5), vocab = p.some_cols(100);
  auto& logits = p.filled(p.matrix("logits", batch * (len + 1), vocab), 0, 1, false);
  // Ratios to the reference are up to e^(60 / 0.8) then; of larger logits they, and u, would be beyond f32.
  for (std::size_t k = 0; k < logits.size(); ++k) logits.set(k, std::clamp(logits.got(k), -30.0, 30.0));
  const some_policy<P> policy(p, batch, len, vocab);
  auto &loss = p.template vector<A>("loss", policy.results()),
       &upstream = p.template vector<A>("upstream", policy.results());
  for (std::size_t i = 0; i < upstream.size(); ++i) upstream.set(i, 1);
  auto &dlogits = p.matrix("dlogits", batch * (len + 1), vocab),
       &at_once = p.matrix("dlogits at once", batch * (len + 1), vocab);
  saved_lse<P> saved(batch * (len + 1));
  if (p.in.one_in(2)) {
    p.call({&loss, &at_once}, [&](auto s) {
      tigon::grpo_loss_forward_backward<typename decltype(s)::backend>(
          logits.at(s), policy.batch(s), loss.vec(s), at_once.at(s), policy.opt, {}, upstream.vec(s), s.ctx);
    });
    p.compare(loss, {.bound = of_loss.of<T>(), .scale = 1});
    p.compare(at_once, {.bound = of_both.of<T>()});
  }
  p.call({&loss}, [&](auto s) {
    tigon::grpo_loss_forward<typename decltype(s)::backend>(logits.at(s), policy.batch(s), loss.vec(s), saved.at(s),
                                                            policy.opt, {}, s.ctx);
  });
  p.compare(loss, {.bound = of_loss.of<T>(), .scale = 1});
  auto& to = p.in_place(dlogits, {&logits});
  p.call({&to}, [&](auto s) {
    tigon::grpo_loss_backward<typename decltype(s)::backend>(logits.at(s), policy.batch(s), saved.at(s),
                                                             upstream.vec(s), to.at(s), policy.opt, s.ctx);
  });
  p.compare(to, {.bound = of_gradient.of<T>()});
}

template <class P>
void vocab_parallel_cross_entropy(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds of_loss = f32_everywhere(4e-7, 3e-16);
  constexpr bounds of_gradient{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-15};
  const std::size_t rows = p.some_rows(), vocab = p.some_cols();
  tigon::vocab_parallel_cross_entropy_options opt{.label_smoothing = p.in.pick({0.0, 0.1})};
  opt.formula = p.in.pick({tigon::smoothing_formula::pytorch, tigon::smoothing_formula::megatron});
  auto& logits = p.filled(p.matrix("logits", rows, vocab), 0, 2);
  auto& target = some_labels(p, p.template vector<std::int64_t>("target", rows), vocab, opt.ignore_index);
  auto &loss = p.template vector<A>("loss", rows), &top = p.template vector<A>("top", rows);
  auto& rest = p.template vector<A>("rest", rows);
  auto& dlogits = p.matrix("dlogits", rows, vocab);
  auto& upstream = p.filled(p.template vector<A>("upstream", rows), 1, 0.3, false);
  tigon::comm::serial alone;
  p.may_allocate = "what ranks tell each other";
  if (vocab == 1 && opt.formula == tigon::smoothing_formula::megatron) p.may_refuse = true;  // K - 1 = 0
  p.call({&loss, &top, &rest}, [&](auto s) {
    tigon::vocab_parallel_cross_entropy_forward<typename decltype(s)::backend>(
        alone, logits.at(s), tigon::vocab_shard{0, vocab}, target.vec(s), {loss.vec(s), top.vec(s), rest.vec(s)}, opt,
        s.ctx);
  });
  if (!p.is_wild()) p.compare(loss, {.bound = of_loss.of<T>()});
  top.hand_over(), rest.hand_over();
  auto& to = p.in_place(dlogits, {&logits});
  p.call({&to}, [&](auto s) {
    tigon::vocab_parallel_cross_entropy_backward<typename decltype(s)::backend>(
        logits.at(s), tigon::vocab_shard{0, vocab}, target.vec(s), upstream.vec(s), {top.vec(s), rest.vec(s)}, to.at(s),
        opt, s.ctx);
  });
  const double smoothed = opt.label_smoothing / static_cast<double>(vocab);  // what smoothing subtracts
  p.compare(to, {.bound = of_gradient.of<T>(), .scale = smoothed, .of = {&logits}});
}

constexpr target all[] = {TIGON_FUZZ_TARGET(cross_entropy),
                          TIGON_FUZZ_TARGET(cross_entropy_tvd),
                          TIGON_FUZZ_TARGET(cross_entropy_jsd),
                          TIGON_FUZZ_TARGET(jsd),
                          TIGON_FUZZ_TARGET(kl_div),
                          TIGON_FUZZ_TARGET(tvd),
                          TIGON_FUZZ_TARGET(selective_log_softmax),
                          TIGON_FUZZ_TARGET(grpo_loss),
                          TIGON_FUZZ_TARGET(vocab_parallel_cross_entropy)};

}  // namespace

#include "driver.hpp"

std::span<const tigon::fuzz::target> tigon::fuzz::targets() { return all; }
