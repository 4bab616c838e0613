// Fuzzing of what is made of other operators: layers between hyper-connections and of neighborhood attention, experts
// of one rank, distillation by angles, and a loss whose vocabulary one rank has.
#include <tigon/comm/communicator.hpp>
#include <tigon/losses/fused_linear_cosine_distillation.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_scaled_cross_entropy.hpp>
#include <tigon/ops/expert_parallel_moe.hpp>
#include <tigon/ops/mhc.hpp>
#include <tigon/ops/neighborhood_attention_layer.hpp>

#include "labels.hpp"
#include "layers.hpp"
#include "linear.hpp"
#include "support/kernels.hpp"

namespace {

using namespace tigon::fuzz;

constexpr const char* ranks_talk = "what ranks tell each other";

/// The layer of the user's own halves its input: what it takes and what it gives have the same digits.
template <class E>
void halve(tigon::matrix_view<const E> in, tigon::matrix_view<E> out) {
  for (std::size_t i = 0; i < in.rows; ++i)
    for (std::size_t j = 0; j < in.cols; ++j)
      out.row(i)[j] = tigon::test::from_f64<E>(0.5 * tigon::test::to_f64(in.row(i)[j]));
}

/// Of n numbers from `first` on.
double largest(const argument& of, std::size_t first, std::size_t n) {
  double most = 0;
  for (std::size_t k = 0; k < n; ++k) most = std::max(most, of.wanted(first + k));
  return most;
}

template <class P>
void mhc(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds of_y{.f32 = 7e-7, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1e-15};
  constexpr bounds of_layer{.f32 = 3.5e-7, .bf16 = 9e-3, .f16 = 1.2e-3, .f64 = 2e-16};
  constexpr bounds of_dx{.f32 = 9e-7, .bf16 = 9e-3, .f16 = 1.2e-3, .f64 = 5e-16};
  constexpr bounds of_parameters{.f32 = 5e-7, .bf16 = 7e-3, .f16 = 9e-4, .f64 = 3e-16};
  const std::size_t tokens = p.some_rows(20), n = p.in.between(1, 4), channels = p.some_cols(40), cols = n * (n + 2);
  tigon::mhc_coeffs_options opt{.rms_eps = p.in.pick({1e-6, 1e-3})};
  opt.tmax = p.in.template pick<std::size_t>({20, 1, 3});
  opt.dx = p.in.pick({tigon::gradient::overwrite, tigon::gradient::accumulate});
  opt.dparams = p.in.pick({tigon::gradient::overwrite, tigon::gradient::accumulate});
  some_hyper_connections<P> given(p, tokens, n, channels, opt.tmax);
  auto &pre = given.pre, &post = given.post, &res = given.res, &mix = given.mix, &rstd = given.rstd;
  auto& x = given.x;
  auto& history = given.history;
  auto &in = p.matrix("in", tokens, channels), &f = p.matrix("f", tokens, channels);
  auto &y = p.matrix("y", tokens, n * channels), &dy = p.filled(p.matrix("dy", tokens, n * channels), 0, 1, false);
  auto &dx = p.matrix("dx", tokens, n * channels), &dphi = p.matrix("dphi", n * channels, cols);
  auto &db = p.template vector<A>("db", cols), &dalpha = p.template vector<A>("dalpha", 3);
  auto &df = p.matrix("df", tokens, channels), &d_in = p.matrix("d_in", tokens, channels);
  if (opt.dx == tigon::gradient::accumulate) p.fill(dx, 0, 1, false);
  if (opt.dparams == tigon::gradient::accumulate)
    for (argument* g : {static_cast<argument*>(&dphi), static_cast<argument*>(&db), static_cast<argument*>(&dalpha)})
      p.fill(*g, 0, 1, false);
  const auto saved = [&](auto s) {
    return tigon::mhc_saved<typename decltype(s)::element>{
        {pre.at(s), post.at(s), res.at(s)}, {mix.at(s), rstd.vec(s), history.at(s)}, in.at(s), f.at(s)};
  };
  p.call({&pre, &post, &res, &mix, &rstd, &in, &f, &y}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    tigon::mhc_forward<typename S::backend, E>(x.at(s), given.weights(s), halve<E>, y.at(s), saved(s), opt, s.ctx);
  });
  const double of_x = p.size_of_terms({&x}) * static_cast<double>(n);
  p.compare(in, {.bound = of_y.of<T>(), .scale = of_x});
  p.compare(y, {.bound = of_y.of<T>(), .scale = of_x});
  // What backward begins from is the same on both sides.
  for (argument* a : {static_cast<argument*>(&pre), static_cast<argument*>(&post), static_cast<argument*>(&res),
                      static_cast<argument*>(&mix), static_cast<argument*>(&rstd), static_cast<argument*>(&in),
                      static_cast<argument*>(&f)})
    a->hand_over();
  p.call({&dx, &dphi, &db, &dalpha, &df, &d_in}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    tigon::mhc_backward<typename S::backend, E>(
        dy.at(s), x.at(s), given.weights(s), halve<E>, saved(s),
        tigon::mhc_gradients{dx.at(s), dphi.at(s), db.vec(s), dalpha.vec(s), df.at(s), d_in.at(s)}, opt, s.ctx);
  });
  const double steepest = largest(rstd, 0, tokens);
  const double of_dy = p.size_of_terms({&dy}) * static_cast<double>(n);
  const double dh = of_dy * of_x * std::sqrt(static_cast<double>(channels));
  const double sum = dh * std::sqrt(static_cast<double>(tokens + 1) * static_cast<double>(cols));
  p.compare(df, {.bound = of_layer.of<T>(), .scale = of_dy});
  p.compare(d_in, {.bound = of_layer.of<T>(), .scale = of_dy});
  p.compare(dx, {.bound = of_dx.of<T>(),
                 .scale = of_dy + steepest * dh * given.of_phi * std::sqrt(static_cast<double>(cols))});
  p.compare(dphi, {.bound = of_parameters.of<T>(), .scale = sum * std::max(1.0, of_x * steepest)});
  p.compare(db, {.bound = of_parameters.of<T>(), .scale = sum});
  p.compare(dalpha, {.bound = of_parameters.of<T>(), .scale = sum});
}

/// The longest row of any head in a part of what the layer keeps side by side: n, q, k, v, o.
double longest(const argument& values, std::size_t hidden, std::size_t part, std::size_t heads) {
  const std::size_t d = hidden / heads;
  double most = 0;
  for (std::size_t t = 0; t < values.rows(); ++t)
    for (std::size_t h = 0; h < heads; ++h) {
      double square = 0;
      for (std::size_t c = 0; c < d; ++c) {
        const double v = values.wanted(t * values.cols() + part * hidden + h * d + c);
        square += v * v;
      }
      most = std::max(most, square);
    }
  return std::sqrt(most);
}

template <class P>
void neighborhood_attention_layer(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds of_values{.f32 = 5e-7, .bf16 = 7e-3, .f16 = 9e-4, .f64 = 5e-16};
  constexpr bounds of_y{.f32 = 2e-6, .bf16 = 5e-2, .f16 = 5e-3, .f64 = 9e-16};  // of equal weights errors do not cancel
  constexpr bounds of_dx{.f32 = 1.5e-6, .bf16 = 7e-3, .f16 = 6e-4, .f64 = 3.4e-15};
  constexpr bounds of_parameters{.f32 = 6e-7, .bf16 = 1.5e-2, .f16 = 1.8e-3, .f64 = 7e-16};
  tigon::neighborhood_attention_layer_options opt{
      .heads = p.in.between(1, 3),
      .seq_len = p.in.between(1, 12),
      .attention = {.kernel_size = 1 + 2 * p.in.below(4), .dilation = p.in.between(1, 3)},
      .eps = p.in.pick({1e-5, 1e-3}),
      .dparams = p.in.pick({tigon::gradient::overwrite, tigon::gradient::accumulate})};
  const std::size_t hidden = opt.heads * p.in.between(1, 20), tokens = p.in.below(4) * opt.seq_len;
  const bool biased = p.in.one_in(2), scaled = p.in.one_in(2);
  auto &x = p.filled(p.matrix("x", tokens, hidden), 0, 1, false),
       &dy = p.filled(p.matrix("dy", tokens, hidden), 0, 1, false);
  const double of_w = 1 / (p.stretch() * std::sqrt(static_cast<double>(hidden)));
  auto& wqkv = p.filled(p.matrix("wqkv", 3 * hidden, hidden), 0, of_w, false);
  auto& wo = p.filled(p.matrix("wo", hidden, hidden), 0, of_w, false);
  const auto parameter = [&](const char* name, bool there, std::size_t size, double mean) -> auto& {
    return p.filled(p.vector(name, there ? size : 0), mean, 0.3 / p.stretch(), false);
  };
  auto &bqkv = parameter("bqkv", biased, 3 * hidden, 0), &bo = parameter("bo", biased, hidden, 0);
  auto &norm = parameter("norm", scaled, hidden, 1), &norm_bias = parameter("norm_bias", scaled, hidden, 0);
  auto &y = p.matrix("y", tokens, hidden), &values = p.matrix("values", tokens, 5 * hidden);
  auto& numbers = p.template vector<A>("numbers", tigon::neighborhood_attention_layer_numbers(tokens, opt));
  auto &dx = p.matrix("dx", tokens, hidden), &dwqkv = p.matrix("dwqkv", 3 * hidden, hidden);
  auto &dwo = p.matrix("dwo", hidden, hidden), &dbqkv = p.vector("dbqkv", biased ? 3 * hidden : 0);
  auto &dbo = p.vector("dbo", biased ? hidden : 0), &dnorm = p.vector("dnorm", scaled ? hidden : 0);
  auto& dnorm_bias = p.vector("dnorm_bias", scaled ? hidden : 0);
  const std::initializer_list<twin<T>*> parameters{&dwqkv, &dwo, &dbqkv, &dbo, &dnorm, &dnorm_bias};
  if (opt.dparams == tigon::gradient::accumulate)
    for (twin<T>* g : parameters) p.fill(*g, 0, 1, false);
  // Parameters that are absent have no memory.
  const auto weights = [&](auto s) {
    using E = typename decltype(s)::element;
    const auto vec = [&](twin<T>& v) { return v.size() != 0 ? v.vec(s) : std::span<E>{}; };
    return tigon::neighborhood_attention_layer_weights<const E>{wqkv.at(s), wo.at(s),  vec(bqkv),
                                                                vec(bo),    vec(norm), vec(norm_bias)};
  };
  p.call({&y, &values, &numbers}, [&](auto s) {
    using S = decltype(s);
    tigon::neighborhood_attention_layer_forward<typename S::backend, typename S::element>(
        x.at(s), weights(s), y.at(s), {values.at(s), numbers.vec(s)}, opt, s.ctx);
  });
  // What the norm makes of a row that is nearly constant, and what softmax makes of large scores.
  const double of_x = p.size_of_terms({&x}), steepest = largest(numbers, tokens, tokens);
  const double of_score = longest(values, hidden, 1, opt.heads) * longest(values, hidden, 2, opt.heads) *
                          std::sqrt(static_cast<double>(opt.heads) / static_cast<double>(hidden));
  const double hard = (1 + steepest * of_x) * (1 + of_score);
  const double wide = std::sqrt(static_cast<double>(hidden));
  const double of_wo = std::max(1.0, wide * p.size_of_terms({&wo}));
  const double of_wqkv = std::max(1.0, wide * p.size_of_terms({&wqkv}));
  p.compare(values, {.bound = of_values.of<T>(), .scale = hard * of_wqkv});
  p.compare(y, {.bound = of_y.of<T>(), .scale = hard * of_wo + of_x});
  values.hand_over(), numbers.hand_over();
  p.call({&dx, &dwqkv, &dwo, &dbqkv, &dbo, &dnorm, &dnorm_bias}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    const auto vec = [&](twin<T>& v) { return v.size() != 0 ? v.vec(s) : std::span<E>{}; };
    tigon::neighborhood_attention_layer_backward<typename S::backend, E>(
        dy.at(s), x.at(s), weights(s), {values.at(s), numbers.vec(s)}, dx.at(s),
        tigon::neighborhood_attention_layer_weights<E>{dwqkv.at(s), dwo.at(s), vec(dbqkv), vec(dbo), vec(dnorm),
                                                       vec(dnorm_bias)},
        opt, s.ctx);
  });
  const double of_dy = hard * of_wo * of_wqkv * p.size_of_terms({&dy}),
               sum = of_dy * std::sqrt(static_cast<double>(tokens + 1));
  p.compare(dx, {.bound = of_dx.of<T>(), .scale = of_dy * (1 + steepest)});
  for (twin<T>* g : parameters) p.compare(*g, {.bound = of_parameters.of<T>(), .scale = sum});
}

/// All experts on one rank.
template <class P>
void expert_parallel_moe(P& p) {
  some_moe<P> m(p);
  const mlp_roots of = m.roots();
  tigon::comm::serial alone;
  p.may_allocate = ranks_talk;
  p.call({&m.y}, [&](auto s) {
    using S = decltype(s);
    tigon::expert_parallel_moe_forward<typename S::backend, typename S::element>(alone, m.x.at(s), m.choices(s),
                                                                                 m.weights(s), m.y.at(s), m.opt, s.ctx);
  });
  m.compare_forward(of);
  p.call({&m.dx, &m.dgate_up, &m.ddown, &m.drouting}, [&](auto s) {
    using S = decltype(s);
    tigon::expert_parallel_moe_backward<typename S::backend, typename S::element>(
        alone, m.dy.at(s), m.x.at(s), m.choices(s), m.weights(s), m.gradients(s), m.opt, s.ctx);
  });
  m.compare_backward(of);
}

/// 1 / the shortest row of logits x w^T + bias, in f64: how much an angle feels an error of the logits.
template <class P>
double steepest_angle(const some_layer<P>& l) {
  double shortest = 1e300;
  for (std::size_t i = 0; i < l.rows; ++i) {
    double square = 0;
    for (std::size_t j = 0; j < l.vocab; ++j) {
      const double z = l.logit(i, j);
      square += z * z;
    }
    shortest = std::min(shortest, std::sqrt(square));
  }
  return 1 / shortest;
}

template <class P>
void fused_linear_cosine_distillation(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds of_loss{.f32 = 3e-7, .bf16 = 2e-7, .f16 = 4e-7, .f64 = 4e-16};
  constexpr bounds of_gradient{.f32 = 6e-7, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 4e-16};
  const some_layer<P> l(p, p.some_rows(30));
  tigon::fused_linear_cosine_distillation_options opt{.beta = p.in.pick({0.5, 1.0, -0.3})};
  auto& of = opt.distillation;
  of.weight_hard = p.in.pick({0.5, 0.0}), of.upstream = p.in.pick({1.0, 0.5}), of.mask_soft = p.in.one_in(2);
  auto& teacher = p.filled(p.matrix("teacher", l.rows, l.vocab), 0, 1, false);
  auto& target = some_labels(p, p.template vector<std::int64_t>("target", l.rows), l.vocab);
  auto &loss = p.template vector<A>("loss", 1), &soft = p.template vector<A>("soft", 1);
  auto& hard = p.template vector<A>("hard", 1);
  p.call({&loss, &soft, &hard, &l.dx, &l.dw, &l.dbias}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    using N = std::conditional_t<S::is_reference, double, A>;
    const rows_at_a_time chunk(s.ctx, l.at_a_time);
    tigon::fused_linear_cosine_distillation_forward<typename S::backend, E>(
        l.layer(s), tigon::matrix_view<const E>(teacher.at(s)), target.vec(s),
        tigon::distillation_losses<N>{loss.vec(s), soft.vec(s), hard.vec(s)}, l.gradients(s), opt, s.ctx);
  });
  // Of a short row the logits' own errors turn the angle.
  const double steep = l.rows == 0 ? 0 : steepest_angle(l), turn = 1 + steep * l.stretch();
  const double each = static_cast<double>(l.rows) / counted_labels(target), of_hard = 1 + 2 * l.stretch();
  p.compare(hard, {.bound = of_loss.of<T>(), .scale = of_hard});
  p.compare(soft, {.bound = of_loss.of<T>(), .scale = each * turn});
  p.compare(loss, {.bound = of_loss.of<T>(), .scale = of_hard + each * turn});
  l.compare(of_gradient.of<T>(), (steep * turn + of_hard) / counted_labels(target));
}

/// The whole vocabulary on one rank.
template <class P>
void vocab_parallel_fused_linear_scaled_cross_entropy(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds of_results{.f32 = 1.2e-6, .bf16 = 7e-7, .f16 = 7e-7, .f64 = 7e-16};
  constexpr bounds of_gradient{.f32 = 2e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1.3e-15};
  const some_layer<P> l(p, p.some_rows(30));
  const tigon::fused_linear_scaled_cross_entropy_options opt{.temperature = p.in.pick({1.0, 0.7, 2.0})};
  auto& target = some_labels(p, p.template vector<std::int64_t>("target", l.rows), l.vocab);
  auto& g = p.filled(p.template vector<A>("upstream", p.in.one_in(2) ? l.rows : 1), 1, 0.3, false);
  auto &nll = p.template vector<A>("nll", l.rows), &entropy = p.template vector<A>("entropy", l.rows);
  auto& lse = p.template vector<A>("lse", l.rows);
  tigon::comm::serial alone;
  p.may_allocate = ranks_talk;
  p.call({&nll, &entropy, &lse, &l.dx, &l.dw, &l.dbias}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    using N = std::conditional_t<S::is_reference, double, A>;
    const rows_at_a_time chunk(s.ctx, l.at_a_time);
    tigon::vocab_parallel_fused_linear_scaled_cross_entropy_forward<typename S::backend, E>(
        alone, tigon::linear_shard<E>{l.layer(s), tigon::vocab_shard{0, l.vocab}}, target.vec(s),
        tigon::scaled_cross_entropy_results<N>{nll.vec(s), entropy.vec(s), lse.vec(s)}, l.gradients(s), opt,
        {g.vec(s), {}}, s.ctx);
  });
  const double stretch = std::max(1.0, l.stretch() / opt.temperature);
  for (const twin<A>* of : {&nll, &entropy, &lse}) p.compare(*of, {.bound = stretch * of_results.of<T>(), .scale = 1});
  l.compare(of_gradient.of<T>(), (p.stretch() + p.stretch() * p.stretch()) / opt.temperature);
}

constexpr target all[] = {TIGON_FUZZ_TARGET(mhc), TIGON_FUZZ_TARGET(neighborhood_attention_layer),
                          TIGON_FUZZ_TARGET(expert_parallel_moe), TIGON_FUZZ_TARGET(fused_linear_cosine_distillation),
                          TIGON_FUZZ_TARGET(vocab_parallel_fused_linear_scaled_cross_entropy)};

}  // namespace

#include "driver.hpp"

std::span<const tigon::fuzz::target> tigon::fuzz::targets() { return all; }
