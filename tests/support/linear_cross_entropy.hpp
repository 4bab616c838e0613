// A fused linear cross entropy, its options and its reference.
#ifndef TIGON_TESTS_SUPPORT_LINEAR_CROSS_ENTROPY_HPP
#define TIGON_TESTS_SUPPORT_LINEAR_CROSS_ENTROPY_HPP

#include <tigon/losses/fused_linear_cross_entropy.hpp>

#include "ignored_rows.hpp"
#include "linear_problem.hpp"
#include "logit_loss.hpp"

namespace tigon::test {

struct linear_cross_entropy_variant {
  const char* name;
  bool biased, weighted;
  fused_linear_cross_entropy_options opt;
  gradient mode = gradient::overwrite;
};

/// As the contract states them: in units of |reference| + its root mean square, at most ten times the worst seen.
constexpr by_type linear_loss_bound{.f32 = 4e-7, .bf16 = 4e-7, .f16 = 4e-7, .f64 = 2e-15};
constexpr by_type linear_gradient_bound{.f32 = 2e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1e-14};

/// Every buffer at a guard page, outputs full of canaries.
template <class T>
struct linear_cross_entropy_problem : linear_problem<T> {
  using A = accumulator_t<T>;
  linear_sizes s;
  linear_cross_entropy_variant v;
  bool rows;  ///< a loss and an upstream gradient a row
  guarded<T> weight;
  guarded<std::int64_t> target;
  guarded<A> upstream, loss, z_loss, accuracy;
  guarded<std::int64_t> predicted;

  TIGON_TEST_NOINLINE explicit linear_cross_entropy_problem(linear_sizes of, const linear_cross_entropy_variant& which,
                                                            guard side = guard::behind)
      : linear_problem<T>(of, which.biased, which.mode, side),
        s(of),
        v(which),
        rows(v.opt.loss.reduction == reduction::none),
        weight(v.weighted ? s.vocab : 0, side),
        target(s.rows, side),
        upstream(rows ? random_vector<A>(s.rows, 5, side) : guarded<A>(0, side)),
        loss(rows ? s.rows : 1, side),
        z_loss(loss.size(), side),
        accuracy(loss.size(), side),
        predicted(s.rows, side) {
    std::ranges::copy(random_labels(s.rows, s.vocab, v.opt.loss.ignore_index, 4), target.begin());
    if (v.weighted) weight.assign(random_class_weights(s.vocab, 6));
  }
  /// No row is ignored.
  TIGON_TEST_NOINLINE void keep_all() {
    for (std::size_t i = 0; i < s.rows; ++i)
      if (target[i] == v.opt.loss.ignore_index) target[i] = static_cast<std::int64_t>((3 * i + 1) % s.vocab);
  }
  TIGON_TEST_NOINLINE void clear() {
    this->clear_gradients();
    loss.clear(), z_loss.clear(), accuracy.clear(), predicted.clear();
  }

  template <class B>
  TIGON_TEST_NOINLINE void forward(matrix_view<T> to_dx, matrix_view<T> to_dw, std::span<T> to_db,
                                   context& ctx = default_context()) {
    fused_linear_cross_entropy_forward<B, T>(this->head(), target, {loss, {z_loss, accuracy, predicted}},
                                             {to_dx, to_dw, to_db, v.mode}, v.opt, given(weight), given(upstream), ctx);
  }
  template <class B>
  void forward(context& ctx = default_context()) {
    forward<B>(this->dx.view(), this->dw.view(), given(this->dbias), ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(std::span<const A> g, context& ctx = default_context()) {
    fused_linear_cross_entropy_backward<B, T>(this->head(), target, g, this->gradients(), v.opt, given(weight), ctx);
  }
  auto results() const { return bits_of(loss, z_loss, accuracy, predicted); }
  auto bits() const { return bits_of(loss, z_loss, accuracy, predicted, this->dx, this->dw, this->dbias); }

  struct reference : layer_gradients {
    using layer_gradients::layer_gradients;
    std::vector<double> loss, z_loss, accuracy, predicted;
  };
  /// The definition in f64, all logits at once; to be computed before the call, because dw and dbias may be added to.
  TIGON_TEST_NOINLINE reference wanted(double factor = 1) const {
    const whole_layer layer = this->layer();
    const std::vector<double> logits = layer.logits(), g = upstream.f64();
    const std::vector<std::int64_t> labels(target.begin(), target.end());
    loss_reference r(logits, labels, s.vocab, v.weighted ? weight.f64() : std::vector<double>(s.vocab, 1), v.opt.loss);
    reference out(layer);
    static_cast<layer_gradients&>(out) = this->before();
    const auto kept = static_cast<double>(std::ssize(labels) - std::ranges::count(labels, v.opt.loss.ignore_index));
    double total = 0, z_total = 0, hits = 0;
    for (std::size_t i = 0; i < s.rows; ++i) {
      const double scale = v.opt.token_scaling ? r.p_target[i] : 1;
      total += r.loss[i] *= scale, z_total += r.z_loss[i] *= scale;
      const auto row = logits.begin() + static_cast<std::ptrdiff_t>(i * s.vocab);
      const bool ignored = labels[i] == v.opt.loss.ignore_index;
      out.predicted.push_back(
          ignored ? -1 : static_cast<double>(std::max_element(row, row + static_cast<std::ptrdiff_t>(s.vocab)) - row));
      const bool hit = !ignored && out.predicted.back() == static_cast<double>(labels[i]);
      hits += hit;
      if (rows) out.accuracy.push_back(hit);
      for (std::size_t j = 0; j < s.vocab; ++j)
        add_logit_gradient(out, layer, i, j, r.dlogits[i * s.vocab + j] * scale * factor * (g.empty() ? 1 : g[i]));
    }
    out.loss = rows ? r.loss : std::vector<double>{total}, out.z_loss = rows ? r.z_loss : std::vector<double>{z_total};
    if (!rows) out.accuracy = {kept == 0 ? 0 : hits / kept};
    return out;
  }
  TIGON_TEST_NOINLINE void expect_results(const reference& r) const {
    const comparison with{.scale = 1e-3, .may_be_empty = true};
    EXPECT_TRUE(close(loss.f64(), r.loss, linear_loss_bound.of<T>(), with)) << "loss";
    EXPECT_TRUE(close(z_loss.f64(), r.z_loss, linear_loss_bound.of<T>(), with)) << "z_loss";
    EXPECT_TRUE(close(accuracy.f64(), r.accuracy, 1e-6, {.may_be_empty = true})) << "accuracy";
    EXPECT_EQ(predicted.f64(), r.predicted);
    expect_gradients(r);
  }
  /// A vocabulary of one class has no gradient, and what cancels is of the size of x and w.
  void expect_gradients(const reference& r) const {
    expect_layer_gradients(*this, r, linear_gradient_bound.of<T>(), {.scale = s.vocab == 1 ? 1.0 : 0});
  }
};

/// backward with one upstream gradient, or with one a row where the variant has them.
template <class B, class P>
void expect_backward_with_an_upstream_gradient(P p) {
  using A = typename P::A;
  const guarded<A> one{-0.5};
  const auto wanted = p.wanted(p.rows ? 1 : -0.5);
  p.template backward<B>(p.rows ? std::span<const A>(p.upstream) : std::span<const A>(one));
  p.expect_gradients(wanted);
  EXPECT_TRUE(p.loss.untouched());
}

/// A NaN in the x or in the upstream gradient of an ignored row leaves the bits of a call with zeros there.
template <class B, class T>
void expect_nothing_of_ignored_rows(linear_sizes s, const linear_cross_entropy_variant& v) {
  using P = linear_cross_entropy_problem<T>;
  constexpr double bad[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()};
  P p(s, v), zeros(s, v), w(s, v);
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}, s.rows / 2, s.rows - 1}) {
    for (P* each : {&p, &zeros, &w}) each->target[i] = v.opt.loss.ignore_index;
    for (std::size_t h = 0; h < s.hidden; ++h) zeros.x(i, h) = from_f64<T>(0);
    for (std::size_t h = i % 2; h < s.hidden; h += 2) p.x(i, h) = from_f64<T>(bad[h / 2 % 2]);
    if (p.rows) p.upstream[i] = static_cast<typename P::A>(bad[i % 2]);
  }
  w.w(s.vocab / 2, 1) = from_f64<T>(bad[0]);
  p.template forward<B>(), zeros.template forward<B>(), w.template forward<B>();
  EXPECT_EQ(p.bits(), zeros.bits());
  for (const std::size_t i : {std::size_t{1}, s.rows - 1})
    for (std::size_t h = 0; h < s.hidden; ++h) {
      EXPECT_EQ(to_f64(p.dx(i, h)), 0);
      EXPECT_EQ(to_f64(w.dx(i, h)), 0) << "w has a NaN";
    }
  for (const double g : p.dw.f64()) ASSERT_TRUE(std::isfinite(g));
}

/// Its rows, those that are ignored full of NaN and infinities; without what is called.
template <class P>
TIGON_TEST_NOINLINE loss_of_rows<P> rows_of_cross_entropy(linear_sizes s, const std::function<P()>& make) {
  return {.rows = s.rows,
          .make =
              [=] {
                P p = make();
                p.keep_all();
                return p;
              },
          .ignore =
              [](P& p, std::size_t i) {
                p.target[i] = p.v.opt.loss.ignore_index;
                spoil_row(p.x, i, p.s.hidden);
                if (p.rows) p.upstream[i] = std::numeric_limits<typename P::A>::quiet_NaN();
              },
          .copy =
              [](P& p, std::size_t i, const P& from, std::size_t k) {
                for (std::size_t h = 0; h < p.s.hidden; ++h) p.x(i, h) = from.x(k, h);
                p.target[i] = from.target[k];
                if (p.rows) p.upstream[i] = from.upstream[k];
              },
          .results = {},
          .parameters = [](const P& p) { return bits_of(p.dw, p.dbias); },
          .call = {},
          .bytes = {}};
}
/// What `out` has of a row: a problem, or what a rank has of it.
template <class P, class Out>
TIGON_TEST_NOINLINE std::vector<double> cross_entropy_results_of(const P& p, const Out& out, std::size_t i) {
  std::vector<double> results{static_cast<double>(out.predicted[i] + 1)};
  if (p.rows)
    for (const auto* of_rows : {&out.loss, &out.z_loss, &out.accuracy}) results.push_back(to_f64((*of_rows)[i]));
  append_row(results, out.dx, i, p.s.hidden);
  return results;
}
template <class B, class T>
TIGON_TEST_NOINLINE loss_of_rows<linear_cross_entropy_problem<T>> rows_of_cross_entropy(
    linear_sizes s, const linear_cross_entropy_variant& v, std::size_t chunk = 0) {
  using P = linear_cross_entropy_problem<T>;
  auto of = rows_of_cross_entropy<P>(s, [=] { return P(s, v); });
  of.results = [](const P& p, std::size_t i) { return cross_entropy_results_of(p, p, i); };
  of.call = [](P& p, context& ctx) { p.template forward<B>(ctx); };
  of.bytes = [=](context& ctx) { return fused_linear_cross_entropy_workspace<B, T>(s.rows, s.hidden, s.vocab, ctx); };
  of.chunk = chunk;
  return of;
}

/// With a cap an infinite logit is any number far beyond the cap; in a row of -inf the first class is the largest.
template <class B, class T>
void expect_capped_infinities(linear_sizes s) {
  using P = linear_cross_entropy_problem<T>;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const linear_cross_entropy_variant v{
      "capped", true, false, {.loss = {.reduction = reduction::none, .label_smoothing = 0.1, .softcap = 4}}};
  P p(s, v), large(s, v), lowest(s, v);
  for (const std::size_t j : {std::size_t{3}, s.vocab - 1})
    p.bias[j] = from_f64<T>(infinity), large.bias[j] = from_f64<T>(j == 3 ? 2e4 : 1e4);
  p.bias[5] = from_f64<T>(-infinity), large.bias[5] = from_f64<T>(-1e4);
  p.target[0] = large.target[0] = 3, p.target[1] = large.target[1] = 5;
  std::ranges::fill(lowest.bias, from_f64<T>(-infinity));
  p.template forward<B>(), large.template forward<B>(), lowest.template forward<B>();
  EXPECT_EQ(p.bits(), large.bits());
  for (std::size_t i = 0; i < s.rows; ++i) {
    const bool kept = p.target[i] != v.opt.loss.ignore_index;
    EXPECT_EQ(p.predicted[i], kept ? 3 : -1);
    EXPECT_EQ(lowest.predicted[i], lowest.target[i] != v.opt.loss.ignore_index ? 0 : -1);
    EXPECT_NEAR(lowest.loss[i], lowest.predicted[i] == 0 ? std::log(static_cast<double>(s.vocab)) : 0, 1e-5);
  }
  for (const double g : lowest.dx.f64()) EXPECT_EQ(g, 0);
}

/// Logits of which each is several times the cap: nearly all of a tanh's digits are those of 1, and what is left tells
/// one logit from another.
template <class B>
void expect_digits_beyond_the_cap(std::size_t vocab) {
  for (const double side : {20.0, -20.0})
    for (const double smoothing : {0.0, 0.1}) {
      linear_cross_entropy_problem<float> p({2, 1, vocab},
                                            {"", true, false, {.loss = {.label_smoothing = smoothing, .softcap = 5}}});
      p.x.assign({1, 1}), p.target[0] = 3, p.target[1] = static_cast<std::int64_t>(vocab - 1);
      for (float& b : p.bias) b = 0;
      const std::vector<double> spread = normal_values(vocab, 9, {.deviation = 2});
      for (std::size_t j = 0; j < vocab; ++j) p.w(j, 0) = static_cast<float>(side + spread[j]);
      const auto wanted = p.wanted();
      p.template forward<B>();
      EXPECT_LT(measure(p.dw.f64(), wanted.dw).rel_l2, 2e-6) << "side " << side << ", smoothing " << smoothing;
      EXPECT_LT(measure(p.dbias.f64(), wanted.dbias).rel_l2, 2e-6) << "side " << side << ", smoothing " << smoothing;
    }
}

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_LINEAR_CROSS_ENTROPY_HPP
