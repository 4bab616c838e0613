// The contract of include/tigon/losses/fused_linear_preference.hpp and of the losses on pairs, promise by promise.
// Operators: fused_linear_preference fused_linear_dpo fused_linear_orpo fused_linear_cpo fused_linear_simpo
#include <gtest/gtest.h>

#include <tigon/losses/fused_linear_dpo.hpp>
#include <tigon/losses/fused_linear_orpo.hpp>
#include <tigon/losses/fused_linear_simpo.hpp>

#include "support/backends.hpp"
#include "support/central_difference.hpp"
#include "support/chunk_backends.hpp"
#include "support/linear_problem.hpp"
#include "support/sequence_problem.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::dpo_loss, tigon::gradient;
using tigon::backends::small_chunks, tigon::backends::small_counting, tigon::backends::small_generic;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

// ---- The losses by their textbook formulas.

struct numbers {
  double c, r, xi, nu, c_tokens, r_tokens;
};
double s(double x) { return 1 / (1 + std::exp(-x)); }
double sp(double x) { return std::log(1 + std::exp(x)); }

enum class op_of { base, dpo, orpo, cpo, simpo };
struct variant {
  const char* name;
  op_of op;
  double (*f)(const numbers&, double beta, double e);
  dpo_loss loss = dpo_loss::sigmoid;
  double beta = 0.1, e = 0;
  bool nll = false, average = false, biased = false, reference = false, own_nll = false;
  double alpha = 1;
  gradient dparams = gradient::overwrite;
  double softcap = 0;
};
constexpr double tau = 0.5, margin = 0.7;

/// 1 - e^x; a sequence without tokens has x = 0.
double rest(double x) { return x == 0 ? double{std::numeric_limits<float>::min()} : 1 - std::exp(x); }
double cpo_of(double u, double e) { return (1 - e) * sp(-u) + e * sp(u); }
const variant variants[] = {
    {"any function", op_of::base, [](const numbers& n, double, double) { return n.c * n.c - std::sin(n.nu) * n.xi; },
     dpo_loss::sigmoid, 0.3, 0, true, true, true, true, false, 0.5, gradient::accumulate},
    {"sigmoid", op_of::dpo, [](const numbers& n, double beta, double) { return sp(-beta * (n.xi - n.nu)); }},
    {"conservative sigmoid", op_of::dpo,
     [](const numbers& n, double beta, double e) { return cpo_of(beta * (n.xi - n.nu), e); }, dpo_loss::sigmoid, 0.4,
     0.2, true, true, true, true, true, 0.7, gradient::accumulate},
    {"hinge", op_of::dpo, [](const numbers& n, double beta, double) { return std::max(0.0, 1 - beta * (n.xi - n.nu)); },
     dpo_loss::hinge, 0.1, 0, false, false, true, true},
    {"exo_pair", op_of::dpo,
     [](const numbers& n, double beta, double e) {
       const double u = beta * (n.xi - n.nu);
       return s(u) * (std::log(s(u)) - std::log(1 - e)) + s(-u) * (std::log(s(-u)) - std::log(e));
     },
     dpo_loss::exo_pair, 0.2, 1e-3, false, false, false, true},
    {"nca_pair", op_of::dpo,
     [](const numbers& n, double b, double) { return sp(-b * n.xi) + sp(b * n.xi) / 2 + sp(b * n.nu) / 2; },
     dpo_loss::nca_pair, 0.3, 0, true, true, false, true, false, 0.7},
    {"robust", op_of::dpo,
     [](const numbers& n, double beta, double e) {
       const double u = beta * (n.xi - n.nu);
       return ((1 - e) * sp(-u) - e * sp(u)) / (1 - 2 * e);
     },
     dpo_loss::robust, 0.5, 0.1, false, true, false, true},
    {"bco_pair", op_of::dpo, [](const numbers& n, double b, double) { return sp(-b * n.xi) + sp(b * n.nu); },
     dpo_loss::bco_pair, 0.3, 0, false, false, true, true},
    {"sppo_hard", op_of::dpo,
     [](const numbers& n, double b, double) {
       return std::pow(n.xi - 1 / (2 * b), 2) + std::pow(n.nu + 1 / (2 * b), 2);
     },
     dpo_loss::sppo_hard, 0.4, 0, false, true, false, true},
    {"apo_zero", op_of::dpo, [](const numbers& n, double b, double) { return 1 - s(b * n.xi) + s(b * n.nu); },
     dpo_loss::apo_zero, 0.3, 0, false, false, false, true},
    {"apo_down", op_of::dpo, [](const numbers& n, double b, double) { return s(b * n.xi) + 1 - s(b * (n.xi - n.nu)); },
     dpo_loss::apo_down, 0.3, 0, true, false, true, false, true},
    {"discopop", op_of::dpo,
     [](const numbers& n, double beta, double) {
       const double u = beta * (n.xi - n.nu), eta = s(u / tau);
       return sp(-u) * (1 - eta) + std::exp(-u) * eta;
     },
     dpo_loss::discopop, 0.3, 0, false, true, false, true},
    {"ipo", op_of::dpo,
     [](const numbers& n, double b, double) {
       return std::pow(n.xi / n.c_tokens - n.nu / n.r_tokens - 1 / (2 * b), 2);
     },
     dpo_loss::ipo, 0.6, 0, false, false, true, true},
    {"ipo of means", op_of::dpo,
     [](const numbers& n, double b, double) { return std::pow(n.xi - n.nu - 1 / (2 * b), 2); }, dpo_loss::ipo, 0.6, 0,
     false, true, true, true},
    {"orpo", op_of::orpo,
     [](const numbers& n, double beta, double) {
       return beta * sp(-(n.c - n.r - std::log(rest(n.c)) + std::log(rest(n.r))));
     },
     dpo_loss::sigmoid, 0.4, 0, true, true, true, false, true, 1.5},
    {"cpo", op_of::cpo, [](const numbers& n, double beta, double e) { return cpo_of(beta * (n.c - n.r), e); },
     dpo_loss::sigmoid, 0.2, 0.1, true, false, true, false, false, 0.85},
    {"cpo of means", op_of::cpo, [](const numbers& n, double beta, double e) { return cpo_of(beta * (n.c - n.r), e); },
     dpo_loss::sigmoid, 0.2, 0, false, true},
    {"simpo", op_of::simpo,
     [](const numbers& n, double beta, double e) { return cpo_of(beta * (n.c - n.r) - margin, e); }, dpo_loss::sigmoid,
     2, 0.1, true, true, true, false, false, 0.5},
    {"sigmoid of capped logits", op_of::dpo,
     [](const numbers& n, double beta, double) { return sp(-beta * (n.xi - n.nu)); }, dpo_loss::sigmoid, 0.4, 0, true,
     false, true, true, true, 0.7, gradient::accumulate, 1.5},
    {"simpo of capped logits", op_of::simpo,
     [](const numbers& n, double beta, double e) { return cpo_of(beta * (n.c - n.r) - margin, e); }, dpo_loss::sigmoid,
     2, 0.1, false, true, false, false, false, 1, gradient::overwrite, 0.5},
};

/// Sequences of which a pair fits into 1024 bytes of logits, of which it does not, and of which several do.
const sequence_sizes every_size[] = {{2, 1, 1, 5}, {6, 3, 5, 17, 1}, {4, 25, 7, 11, 3}, {10, 2, 3, 6}, {2, 4, 0, 9}};

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type loss_bound{.f32 = 4e-7, .bf16 = 4e-7, .f16 = 4e-7, .f64 = 2e-14};
// The derivatives of pair functions are differences in the reference; that is what is seen in f64.
constexpr by_type gradient_bound{.f32 = 4e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1e-10};

template <class T>
struct problem : sequence_problem<T> {
  using A = accumulator_t<T>;
  variant v;
  guarded_matrix<std::int64_t> nll_target;
  guarded<A> loss, chosen, rejected, chosen_rewards, rejected_rewards, nll, chosen_mean, rejected_mean, metrics;
  guarded<std::int64_t> empty;
  std::vector<A> reference_logps;  ///< instead of the layer, where it is not empty
  tigon::preference_options opt;

  TIGON_TEST_NOINLINE explicit problem(sequence_sizes of, const variant& which = variants[1],
                                       guard side = guard::behind, std::int64_t ignored = -100)
      : sequence_problem<T>(of, which.biased, which.reference, ignored, side),
        v(which),
        nll_target(this->labels(17, 0.4, side)),
        loss(1, side),
        chosen(of.sequences / 2, side),
        rejected(of.sequences / 2, side),
        chosen_rewards(of.sequences / 2, side),
        rejected_rewards(of.sequences / 2, side),
        nll(1, side),
        chosen_mean(1, side),
        rejected_mean(1, side),
        metrics(2, side),
        empty(1, side),
        opt{.ignore_index = ignored, .alpha = v.alpha, .softcap = v.softcap} {
    this->softcap = v.softcap;
    clear();
  }

  tigon::reference_model<T> model() const {
    if (!reference_logps.empty()) return {.logps = reference_logps};
    return this->reference();
  }
  tigon::token_ids nll_ids() const { return v.own_nll ? tigon::token_ids(nll_target.view()) : tigon::token_ids(); }
  tigon::preference_results<A> views() {
    const bool means = v.softcap == 0;
    return {loss,
            chosen,
            rejected,
            chosen_rewards,
            rejected_rewards,
            nll,
            means ? std::span<A>(chosen_mean) : std::span<A>(),
            means ? std::span<A>(rejected_mean) : std::span<A>(),
            metrics,
            empty};
  }
  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    forward<B>(this->dx.view(), this->dw.view(), this->given_dbias(), ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void forward(tigon::matrix_view<T> to_dx, tigon::matrix_view<T> to_dw, std::span<T> to_db,
                                   context& ctx = tigon::default_context()) {
    const tigon::linear_layer<T> layer = this->layer();
    const tigon::preference_batch batch{this->target.view(), nll_ids()};
    const tigon::linear_gradients<T> gradients{to_dx, to_dw, to_db, v.dparams};
    switch (v.op) {
      case op_of::base:
        return tigon::fused_linear_preference_forward<B, T>(
            layer, batch,
            [](const tigon::preference_pair& p) {  // the textbook's derivative is that of the first variant
              return tigon::pair_value{p.chosen * p.chosen - std::sin(p.rejected_ratio) * p.chosen_ratio,
                                       2 * p.chosen - std::sin(p.rejected_ratio),
                                       -std::cos(p.rejected_ratio) * p.chosen_ratio};
            },
            views(), gradients, {opt, v.beta, v.nll, v.average}, model(), ctx);
      case op_of::dpo:
        return tigon::fused_linear_dpo_forward<B>(layer, batch, views(), gradients,
                                                  {opt, v.loss, v.beta, v.e, tau, v.nll, v.average}, model(), ctx);
      case op_of::orpo:
        return tigon::fused_linear_orpo_forward<B>(layer, batch, views(), gradients, {opt, v.beta, v.nll}, ctx);
      case op_of::cpo:
        return tigon::fused_linear_cpo_forward<B>(layer, batch.target, views(), gradients,
                                                  {opt, v.beta, v.e, v.nll, v.average}, ctx);
      case op_of::simpo:
        return tigon::fused_linear_simpo_forward<B>(layer, batch.target, views(), gradients,
                                                    {opt, v.beta, margin, v.e, v.nll}, ctx);
    }
  }
  auto results() const {
    return bits_of(loss, chosen, rejected, chosen_rewards, rejected_rewards, nll, chosen_mean, rejected_mean, metrics,
                   empty);
  }
  auto bits() const {
    return bits_of(loss, chosen, rejected, chosen_rewards, rejected_rewards, nll, chosen_mean, rejected_mean, metrics,
                   empty, this->dx, this->dw, this->dbias);
  }
  TIGON_TEST_NOINLINE void clear() {
    loss.clear(), chosen.clear(), rejected.clear(), chosen_rewards.clear(), rejected_rewards.clear(), nll.clear();
    chosen_mean.clear(), rejected_mean.clear(), metrics.clear(), empty.clear();
    this->dx.clear(), this->dw.clear(), this->dbias.clear();
    if (v.dparams != gradient::accumulate) return;
    this->dw.assign(normal_values(this->s.vocab * this->s.hidden, 27));
    this->dbias.assign(normal_values(this->dbias.size(), 28));
  }

  std::int64_t nll_label(std::size_t row) const {
    return v.own_nll ? nll_target(row / this->s.length, row % this->s.length) : this->label(row);
  }

  struct reference_results {
    std::vector<double> loss, nll, chosen, rejected, chosen_rewards, rejected_rewards, chosen_mean, rejected_mean, dx,
        dw, dbias;
    double empty = 0;
  };
  /// The definition in f64 for a policy of the same shapes; derivatives of the pair function by differences. To be
  /// computed before the call, because dw and dbias may be added to.
  TIGON_TEST_NOINLINE reference_results wanted(const whole_layer& policy) const {
    const std::size_t pairs = this->s.sequences / 2, length = this->s.length, vocab = this->s.vocab;
    const auto all = policy.log_probs(), z = policy.logits();
    const auto own = this->token_logps(policy), other = this->token_logps(this->other());
    reference_results out;
    layer_gradients grad(policy);
    const double g = opt.upstream;
    double loss_sum = 0, nll_sum = 0, nll_count = 0, mean[2] = {};
    for (std::size_t i = 0; i < pairs * length; ++i) nll_count += nll_label(i) != this->ignore_index ? 1 : 0;
    if (opt.nll_denominator != 0) nll_count = opt.nll_denominator;
    const double over = opt.denominator != 0 ? opt.denominator : static_cast<double>(pairs);
    for (std::size_t b = 0; b < pairs; ++b) {
      const std::size_t partner = pairs + b;
      numbers n{this->sum(own, b, v.average), this->sum(own, partner, v.average), 0, 0, 1, 1};
      double c0 = this->sum(other, b, v.average), r0 = this->sum(other, partner, v.average);
      if (reference_logps.size() == this->s.sequences) c0 = reference_logps[b], r0 = reference_logps[partner];
      n.xi = n.c - c0, n.nu = n.r - r0;
      const double c_count = static_cast<double>(this->tokens(b)), r_count = static_cast<double>(this->tokens(partner));
      if (!v.average && c_count > 0) n.c_tokens = c_count;
      if (!v.average && r_count > 0) n.r_tokens = r_count;
      out.empty += (c_count == 0) + (r_count == 0);
      loss_sum += v.f(n, v.beta, v.e) / over;
      out.chosen.push_back(n.c), out.rejected.push_back(n.r);
      out.chosen_rewards.push_back(v.beta * n.xi), out.rejected_rewards.push_back(v.beta * n.nu);
      const auto shifted = [&](double c, double r) {
        numbers m = n;
        m.c += c, m.xi += c, m.r += r, m.nu += r;
        return v.f(m, v.beta, v.e);
      };
      double dc = slope([&](double h) { return shifted(h, 0); }, 0) / over * g;
      double dr = slope([&](double h) { return shifted(0, h); }, 0) / over * g;
      if (v.average && c_count > 0) dc /= c_count;
      if (v.average && r_count > 0) dr /= r_count;
      for (std::size_t t = 0; t < length; ++t) {
        const std::size_t i = b * length + t, j = partner * length + t;
        if (this->counts(i)) grad.add(policy, all, i, this->label(i), dc);
        if (this->counts(j)) grad.add(policy, all, j, this->label(j), dr);
        if (v.nll && nll_label(i) != this->ignore_index) {
          nll_sum -= all[i * vocab + static_cast<std::size_t>(nll_label(i))];
          grad.add(policy, all, i, nll_label(i), -v.alpha / nll_count * g);
        }
      }
    }
    for (std::size_t k = 0; k < z.size(); ++k)
      mean[k < z.size() / 2 ? 0 : 1] += 2 * z[k] / static_cast<double>(z.size());
    const double nll_loss = v.nll && nll_count != 0 ? nll_sum / nll_count : 0;
    out.loss = {v.alpha * nll_loss + loss_sum}, out.nll = {nll_loss};
    out.chosen_mean = {mean[0]}, out.rejected_mean = {mean[1]};
    out.dx = grad.dx, out.dw = grad.dw, out.dbias = grad.dbias;
    if (!v.biased) out.dbias.clear();
    if (v.dparams == gradient::accumulate) {
      const auto dw = this->dw.f64(), db = this->dbias.f64();
      for (std::size_t k = 0; k < dw.size(); ++k) out.dw[k] += dw[k];
      for (std::size_t k = 0; k < db.size(); ++k) out.dbias[k] += db[k];
    }
    return out;
  }
  TIGON_TEST_NOINLINE void expect(const reference_results& r) const {
    const double bound = loss_bound.of<T>();
    EXPECT_TRUE(close(loss.f64(), r.loss, bound, {.scale = 1e-2})) << "loss";
    EXPECT_TRUE(close(nll.f64(), r.nll, bound, {.scale = 1e-3})) << "nll";
    EXPECT_TRUE(close(chosen.f64(), r.chosen, bound, {.scale = 1e-3})) << "chosen";
    EXPECT_TRUE(close(rejected.f64(), r.rejected, bound, {.scale = 1e-3})) << "rejected";
    EXPECT_TRUE(close(chosen_rewards.f64(), r.chosen_rewards, bound, {.scale = 0.1})) << "chosen_rewards";
    EXPECT_TRUE(close(rejected_rewards.f64(), r.rejected_rewards, bound, {.scale = 0.1})) << "rejected_rewards";
    if (v.softcap == 0) {
      EXPECT_TRUE(close(chosen_mean.f64(), r.chosen_mean, bound, {.scale = 0.1})) << "chosen_mean";
      EXPECT_TRUE(close(rejected_mean.f64(), r.rejected_mean, bound, {.scale = 0.1})) << "rejected_mean";
    }
    EXPECT_EQ(empty[0], r.empty);
    expect_layer_gradients(*this, r, gradient_bound.of<T>(), {.scale = this->s.vocab == 1 ? 1.0 : 0.01});
  }
};

#if defined(TIGON_CONFORMANCE_BACKEND)
using pairs = testing::Types<on<small_chunks, float>, on<small_chunks, bfloat16>>;
#else
using pairs = with_engines<list<on<small_chunks, float>, on<small_chunks, bfloat16>, on<small_generic, double>>,
                           on<tigon::backends::xsimd, float>>;
#endif
template <class On>
class fused_linear_preference : public testing::Test {};
TYPED_TEST_SUITE(fused_linear_preference, pairs, names);

TYPED_TEST(fused_linear_preference, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sequence_sizes& size : every_size)
    for (const variant& v : variants)
      for (const guard side : both_guards) {
        // 1 - e^c cancels in the textbook where a class is certain.
        SCOPED_TRACE(testing::Message() << size << ", " << v.name << ", " << side);
        problem<T> p(size, v, side, size.vocab == 11 ? 2 : -100);
        const auto wanted = p.wanted(p.policy());
        p.template forward<B>();
        p.expect(wanted);
      }
}

TYPED_TEST(fused_linear_preference, backward_scales_what_is_saved) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({6, 3, 5, 17, 1}, variants[3]);
  p.template forward<B>();
  const auto dx = p.dx.f64(), dw = p.dw.f64(), db = p.dbias.f64();
  const auto scaled = [](std::vector<double> v, double g) {
    for (double& e : v) e = to_f64(from_f64<T>(e * g));
    return v;
  };
  // Twice: the second call must not see the first one's factor.
  problem<T> out({6, 3, 5, 17, 1}, variants[3]);
  for (const double g : {-0.5, 4.0}) {
    tigon::fused_linear_backward<tigon::op::fused_linear_dpo, B, T>(
        {p.dx, p.dw, p.dbias}, static_cast<accumulator_t<T>>(g), {out.dx.view(), out.dw.view(), out.dbias});
    EXPECT_EQ(out.dx.f64(), scaled(dx, g));
    EXPECT_EQ(out.dw.f64(), scaled(dw, g));
    EXPECT_EQ(out.dbias.f64(), scaled(db, g));
  }
  tigon::fused_linear_backward<tigon::op::fused_linear_dpo, B, T>(
      {p.dx, p.dw, p.dbias}, accumulator_t<T>(2), {p.dx.view(), out.dw.view(), out.dbias, gradient::accumulate});
  EXPECT_EQ(p.dx.f64(), scaled(dx, 2));
  EXPECT_TRUE(close(out.dw.f64(), scaled(dw, 6), 4e-3)) << "4 and 2 more";
}

TYPED_TEST(fused_linear_preference, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({8, 9, 40, 70}, variants[8]);
  EXPECT_TRUE(same_forward_for_any_threads<B>(p));
}

TYPED_TEST(fused_linear_preference, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({8, 7, 5, 17}, variants[2]);
  std::ranges::replace(p.target.view().data, p.target.view().data + 56, -100, 3);
  expect_takes_its_workspace(
      "fused_linear_dpo_forward", p,
      [](context& ctx) { return tigon::fused_linear_preference_workspace<B, T>(4, 7, 5, 17, 6, ctx); },
      [&](context& ctx) { p.template forward<B>(ctx); });
}

// ---- What holds for every type is seen in two.

constexpr double loose = 1e-8;

TEST(pairs_in_f64, differentiate_the_textbook) {
  for (const variant& v : variants) {
    SCOPED_TRACE(v.name);
    problem<double> p({6, 3, 4, 7}, v);
    p.v.dparams = gradient::overwrite;
    const whole_layer policy = p.policy();
    p.forward<small_generic>();
    const auto probes = [](std::size_t n) {
      std::vector<std::size_t> out;
      for (std::size_t k = 0; k < n; k += 5) out.push_back(k);
      return out;
    };
    const auto expect = [&](const guarded_matrix<double>& got, std::vector<double> whole_layer::*part, std::size_t n) {
      const auto at = probes(n);
      const auto want = central_difference(
          [&](const std::vector<double>& values) {
            whole_layer moved = policy;
            moved.*part = values;
            return p.wanted(moved).loss[0];
          },
          policy.*part, at);
      std::vector<double> values;
      for (const std::size_t k : at) values.push_back(got.f64()[k]);
      EXPECT_TRUE(close(values, want, loose, {.scale = 1e-2}));
    };
    expect(p.dx, &whole_layer::x, 72), expect(p.dw, &whole_layer::w, 28);
    if (!v.biased) continue;
    const auto want = central_difference(
        [&](const std::vector<double>& values) {
          whole_layer moved = policy;
          moved.bias = values;
          return p.wanted(moved).loss[0];
        },
        policy.bias, {0, 1, 2, 3, 4, 5, 6});
    EXPECT_TRUE(close(p.dbias.f64(), want, loose, {.scale = 1e-2}));
  }
}

TEST(pairs, that_fit_take_three_products_a_piece_and_others_make_logits_again) {
  if (!std::same_as<usual_provider<tigon::op::fused_linear_preference>, tigon::backends::generic>)
    GTEST_SKIP() << "a loss of the backend's own makes its products as it likes";
  // 1024 bytes are 8 rows of 32 classes. Two pairs of two rows a sequence fit, a pair of six does not.
  for (const auto& [size, expected] : {std::pair<sequence_sizes, std::size_t>{{8, 2, 3, 32}, 2 * 3},
                                       std::pair<sequence_sizes, std::size_t>{{4, 6, 3, 32}, 2 * (2 * 3 + 1)}}) {
    problem<float> p(size);
    for (std::size_t b = 0; b < size.sequences; ++b)
      for (std::size_t t = 0; t < size.length; ++t) p.target(b, t) = 1;
    counted = {};
    p.forward<small_counting>();
    EXPECT_EQ(counted.products, expected) << size;
    counted = {};
    p.forward<small_counting>({}, {}, {});
    EXPECT_EQ(counted.products, size.length == 2 ? 2u : 4u) << "logits alone";
  }
}

TEST(pairs, each_gradient_may_be_left_out) {
  for (const std::size_t which : {0u, 3u})
    expect_gradients_may_be_left_out<small_chunks>([=] { return problem<float>({6, 3, 5, 17}, variants[which]); });
}

TEST(pairs, reference_may_be_its_log_probabilities) {
  for (const bool of_tokens : {false, true}) {
    problem<double> layer({6, 3, 5, 17}, variants[6]), given({6, 3, 5, 17}, variants[6]);
    layer.forward<small_generic>();
    const auto logps = layer.token_logps(layer.other());
    for (std::size_t b = 0; b < 6; ++b) given.reference_logps.push_back(layer.sum(logps, b, true));
    if (of_tokens) given.reference_logps = logps;
    given.forward<small_generic>();
    EXPECT_TRUE(close(given.loss.f64(), layer.loss.f64(), 1e-13));
    EXPECT_TRUE(close(given.chosen_rewards.f64(), layer.chosen_rewards.f64(), 1e-13));
    EXPECT_TRUE(close(given.dx.f64(), layer.dx.f64(), 1e-12));
  }
}

TEST(pairs, options_of_a_batch_in_several_calls) {
  variant v = variants[2];
  v.dparams = gradient::overwrite;
  for (const bool own_nll : {false, true}) {
    v.own_nll = own_nll;
    problem<double> p({6, 3, 5, 17}, v);
    p.opt.upstream = -3, p.opt.denominator = 7, p.opt.nll_denominator = 11;
    const auto wanted = p.wanted(p.policy());
    p.forward<small_generic>();
    p.expect(wanted);
  }
  // alpha multiplies the nll, and nothing else.
  problem<double> once({6, 3, 5, 17}, v), twice({6, 3, 5, 17}, v), none({6, 3, 5, 17}, v);
  once.opt.alpha = 1, twice.opt.alpha = 2, none.opt.alpha = 0;
  once.forward<small_generic>(), twice.forward<small_generic>(), none.forward<small_generic>();
  EXPECT_NEAR(twice.loss[0] - once.loss[0], once.nll[0], 1e-12);
  EXPECT_NEAR(once.loss[0] - none.loss[0], once.nll[0], 1e-12);
  EXPECT_EQ(once.nll[0], none.nll[0]);
}

TEST(pairs, may_be_given_nll_labels_of_the_chosen_half_alone) {
  variant v = variants[2];
  v.dparams = gradient::overwrite;
  problem<double> whole({6, 3, 5, 17}, v), half({6, 3, 5, 17}, v);
  whole.forward<small_generic>();
  tigon::fused_linear_dpo_forward<small_generic>(
      half.layer(), {half.target.view(), std::as_const(half).nll_target.view().rows_from(0, 3)}, half.views(),
      half.gradients(v.dparams), {half.opt, v.loss, v.beta, v.e, tau, v.nll, v.average}, half.model());
  EXPECT_EQ(half.bits(), whole.bits());
}

TEST(pairs, a_policy_like_its_reference_is_exactly_even) {
  // Two sums of hundreds would differ in their last bits, and the rewards with them.
  problem<float> p({2, 60, 12, 90}, variants[1]);
  p.v.reference = true;
  tigon::reference_model<float> same{.layer = {p.x, p.w}};
  tigon::fused_linear_dpo_forward<small_chunks, float>({p.x, p.w}, {p.target.view()}, p.views(),
                                                       {p.dx.view(), p.dw.view()}, {}, same);
  EXPECT_EQ(p.chosen_rewards[0], 0);
  EXPECT_EQ(p.rejected_rewards[0], 0);
  EXPECT_EQ(p.loss[0], static_cast<float>(std::log(2.0)));
  // Almost alike: the difference itself keeps its digits.
  guarded_matrix<float> near_x(120, 12);
  auto moved = p.x.f64();
  for (std::size_t k = 0; k < moved.size(); ++k) moved[k] += 1e-4 * std::sin(static_cast<double>(k));
  near_x.assign(moved);
  same.layer.x = near_x;
  const whole_layer policy = p.policy(), other{near_x.f64(), policy.w, {}, 120, 12, 90};
  const double xi = p.sum(p.token_logps(policy), 0, false) - p.sum(p.token_logps(other), 0, false);
  tigon::fused_linear_dpo_forward<small_chunks, float>({p.x, p.w}, {p.target.view()}, p.views(),
                                                       {p.dx.view(), p.dw.view()}, {}, same);
  EXPECT_NEAR(p.chosen_rewards[0], 0.1 * xi, 1e-7) << "f32 log-probabilities would leave 1e-5";
}

TEST(pairs, gradients_of_16_bits_are_added_up_in_32) {
  // Sixty-four equal shares: in bf16 the sum would stop growing.
  variant v = variants[16];
  problem<bfloat16> p({128, 2, 4, 5}, v);
  for (std::size_t i = 0; i < 256; ++i)
    for (std::size_t h = 0; h < 4; ++h) p.x(i, h) = p.x(i < 128 ? 0 : 128, h);
  for (std::size_t b = 0; b < 128; ++b)
    for (std::size_t t = 0; t < 2; ++t) p.target(b, t) = b < 64 ? 1 : 3;
  const auto wanted = p.wanted(p.policy());
  p.forward<small_chunks>();
  EXPECT_TRUE(close(p.dw.f64(), wanted.dw, 2e-3));  // half a unit of bf16
}

TEST(pairs, a_wide_vocabulary_in_a_few_rows) {
  problem<float> p({2, 2, 3, 256000}, variants[3]);
  p.target(0, 0) = 255999, p.target(1, 1) = 0;
  // One chunk a row; the reference sums 256000 terms a class, so only the classes that are given.
  p.forward<small_chunks>();
  const whole_layer policy = p.policy(), other = p.other();
  const auto ratio = [&](std::size_t sequence) {
    double total = 0;
    for (std::size_t t = 0; t < 2; ++t) {
      const std::size_t i = sequence * 2 + t;
      if (!p.counts(i)) continue;
      const auto log_p = [&](const whole_layer& of) {
        const whole_layer row{{of.x.begin() + static_cast<std::ptrdiff_t>(i * of.hidden),
                               of.x.begin() + static_cast<std::ptrdiff_t>((i + 1) * of.hidden)},
                              of.w,
                              of.bias,
                              1,
                              of.hidden,
                              of.vocab};
        const auto z = row.logits();
        long double sum = 0;
        for (const double v : z) sum += std::exp((long double)v);
        return z[static_cast<std::size_t>(p.label(i))] - static_cast<double>(std::log(sum));
      };
      total += log_p(policy) - log_p(other);
    }
    return total;
  };
  EXPECT_NEAR(p.chosen_rewards[0], 0.1 * ratio(0), 1e-6);
  EXPECT_NEAR(p.rejected_rewards[0], 0.1 * ratio(1), 1e-6);
  double sum = 0;
  for (const double d : p.dbias.f64()) sum += d;
  EXPECT_NEAR(sum, 0, 1e-6) << "what a softmax gives to the classes adds up to what it takes";
}

TEST(pairs, one_class_is_certain) {
  // log(1 - e^0) is -inf and its derivative 1 / 0, in the textbook.
  for (const std::size_t which : {14, 1, 17}) {
    SCOPED_TRACE(variants[which].name);
    problem<float> p({4, 2, 3, 1}, variants[which]);
    p.forward<small_chunks>();
    EXPECT_TRUE(std::isfinite(p.loss[0]));
    EXPECT_EQ(p.chosen[0], 0);
    for (const double d : p.dx.f64()) EXPECT_EQ(d, 0);
  }
}

// ---- Sequences without tokens, rows that are not numbers.

TEST(pairs, nothing_kept_is_zero) {
  for (const std::size_t which : {2, 11, 14, 15, 17}) {
    SCOPED_TRACE(variants[which].name);
    variant v = variants[which];
    v.dparams = gradient::overwrite, v.own_nll = false;
    problem<float> p({4, 3, 5, 17}, v);
    for (std::size_t b = 0; b < 4; ++b)
      for (std::size_t t = 0; t < 3; ++t) p.target(b, t) = -100;
    p.forward<small_chunks>();
    EXPECT_TRUE(std::isfinite(p.loss[0]));
    EXPECT_EQ(p.empty[0], 4);
    for (const auto& zeros : {p.nll.f64(), p.chosen.f64(), p.rejected.f64(), p.dx.f64(), p.dw.f64(), p.dbias.f64()})
      EXPECT_EQ(std::ranges::count(zeros, 0.0), std::ssize(zeros));
  }
}

TEST(pairs, sequences_without_length) {
  problem<float> p({4, 0, 5, 17}, variants[2]);
  p.v.dparams = gradient::overwrite;
  p.forward<small_chunks>();
  EXPECT_FLOAT_EQ(p.loss[0], static_cast<float>(cpo_of(0, 0.2)));
  EXPECT_EQ(p.chosen_mean[0], 0);
  EXPECT_EQ(p.dw.f64(), std::vector<double>(17 * 5, 0.0));
  // The reference may have given its log-probabilities, of which there is one a sequence all the same.
  problem<float> given({4, 0, 5, 17}, variants[6]);
  given.reference_logps = {-1, -2, -3, -4};
  given.forward<small_chunks>();
  EXPECT_GT(given.chosen_rewards[0], 0);
  EXPECT_EQ(given.chosen_rewards[1], 2 * given.chosen_rewards[0]);
  EXPECT_EQ(given.rejected_rewards[1], 4 * given.chosen_rewards[0]);
}

TEST(pairs, an_empty_sequence_leaves_the_others_alone) {
  // 0 / 0 in one mean made the whole loss NaN.
  variant v = variants[17];
  problem<double> p({4, 3, 5, 17}, v);
  for (std::size_t t = 0; t < 3; ++t) p.target(1, t) = -100;
  const auto wanted = p.wanted(p.policy());
  p.forward<small_generic>();
  p.expect(wanted);
  EXPECT_EQ(p.chosen[1], 0);
  EXPECT_GE(p.empty[0], 1);
}

TEST(pairs, either_mean_of_logits_may_be_alone) {
  problem<float> both({6, 4, 5, 17}, variants[3]), p({6, 4, 5, 17}, variants[3]);
  both.forward<small_chunks>();
  for (const bool chosen : {false, true}) {
    auto out = p.views();
    (chosen ? out.rejected_logits_mean : out.chosen_logits_mean) = {};
    tigon::fused_linear_dpo_forward<small_chunks>(p.layer(), {p.target.view()}, out, p.gradients(), {}, p.model());
    EXPECT_EQ(chosen ? p.chosen_mean[0] : p.rejected_mean[0], chosen ? both.chosen_mean[0] : both.rejected_mean[0]);
    if (!chosen) {
      EXPECT_TRUE(p.chosen_mean.untouched());
    }
  }
}

TEST(pairs, rows_that_do_not_count_are_not_read) {
  problem<float> clean({6, 4, 5, 17}, variants[3]), p({6, 4, 5, 17}, variants[3]);
  for (std::size_t i = 0; i < 24; ++i)
    if (!p.counts(i)) p.x(i, 2) = static_cast<float>(nan), p.ref_x(i, 0) = static_cast<float>(infinity);
  const auto without_means = [](problem<float>& q) {
    auto out = q.views();
    out.chosen_logits_mean = out.rejected_logits_mean = {};
    tigon::fused_linear_dpo_forward<small_chunks>(q.layer(), {q.target.view()}, out, q.gradients(),
                                                  {.loss = dpo_loss::hinge}, q.model());
  };
  without_means(clean), without_means(p);
  EXPECT_EQ(p.bits(), clean.bits());
  EXPECT_TRUE(std::isfinite(p.loss[0]));
}

TEST(pairs, bad_rows_stay_in_their_pair) {
  for (const double bad : {nan, infinity}) {
    problem<float> clean({6, 3, 5, 17}, variants[3]), p({6, 3, 5, 17}, variants[3]);
    for (auto* q : {&clean, &p}) q->target(1, 0) = 4;
    p.x(3, 2) = static_cast<float>(bad);  // the first token of the second chosen sequence
    clean.forward<small_chunks>(), p.forward<small_chunks>();
    EXPECT_TRUE(std::isnan(p.loss[0]));
    for (std::size_t b = 0; b < 3; ++b) {
      EXPECT_TRUE(b == 1 ? std::isnan(p.chosen[b]) : p.chosen[b] == clean.chosen[b]) << b;
      EXPECT_EQ(p.rejected[b], clean.rejected[b]);
    }
    for (std::size_t i = 0; i < 18; ++i)
      for (std::size_t h = 0; h < 5; ++h)
        if (i / 3 % 3 != 1 || !p.counts(i))
          EXPECT_EQ(p.dx(i, h), clean.dx(i, h)) << i;
        else
          EXPECT_TRUE(std::isnan(p.dx(i, h))) << i;
  }
}

TEST(pairs, a_class_of_probability_zero) {
  problem<float> p({2, 1, 3, 5}, variants[7]);
  p.target(0, 0) = 2, p.target(1, 0) = 3;
  p.bias[2] = static_cast<float>(-infinity);
  p.v.reference = false;
  auto out = p.views();
  out.chosen_logits_mean = out.rejected_logits_mean = {};
  tigon::fused_linear_dpo_forward<small_chunks>(p.layer(), {p.target.view()}, out, p.gradients());
  EXPECT_EQ(p.chosen[0], -infinity);
  EXPECT_EQ(p.loss[0], infinity);
  for (const double d : p.dbias.f64()) EXPECT_TRUE(std::isfinite(d));
  EXPECT_FLOAT_EQ(p.dbias[2], -0.1f) << "all of it pulls at the class that was chosen";
}

// ---- The functions of a pair, where the textbook has no digits left.

tigon::pair_value of_ratio(dpo_loss loss, double u, double e = 0, double of_tau = 0.05) {
  return tigon::detail::dpo_pair{{.loss = loss, .beta = 1, .label_smoothing = e, .discopop_tau = of_tau}}(
      {u, 0, u, 0, 1, 1});
}

TEST(pair_functions, exo_is_a_divergence_that_does_not_cancel) {
  for (const double e : {1e-3, 0.3})
    for (const double delta : {1e-3, -1e-5, 1e-8}) {
      const long double v = std::log1p(-(long double)e) - std::log((long double)e), u = static_cast<double>(v) + delta;
      const long double d = u - v, p = 1 / (1 + std::exp(-u)), t = 1 - p;
      // Taylor: p t d^2 / 2 + p t (p - t) d^3 / 6 + ...
      const double want = static_cast<double>(p * t * d * d / 2 + p * t * (p - t) * d * d * d / 6);
      const double got = of_ratio(dpo_loss::exo_pair, static_cast<double>(u), e).loss;
      EXPECT_NEAR(got / want, 1, 1e-6) << e << ' ' << delta;
      EXPECT_GE(got, 0);
    }
  EXPECT_EQ(of_ratio(dpo_loss::exo_pair, 0, 0.5 - 1e-18).loss, 0);
  EXPECT_NEAR(of_ratio(dpo_loss::exo_pair, 800, 0.1).loss, -std::log(0.9), 1e-12);
  EXPECT_NEAR(of_ratio(dpo_loss::exo_pair, -800, 0.1).loss, -std::log(0.1), 1e-12);
  for (const double u : {2.0, 6.9, 7.0}) {  // both forms meet
    const double e = 1e-3;
    EXPECT_NEAR(of_ratio(dpo_loss::exo_pair, u, e).loss, variants[4].f({0, 0, u, 0, 1, 1}, 1, e), 1e-15) << u;
  }
  EXPECT_NEAR(of_ratio(dpo_loss::exo_pair, -0.01, 0.48).loss, variants[4].f({0, 0, -0.01, 0, 1, 1}, 1, 0.48), 1e-15)
      << "the other class has more than half";
}

TEST(pair_functions, large_ratios_are_finite) {
  for (int k = 0; k <= static_cast<int>(dpo_loss::ipo); ++k)
    for (const double u : {-2000.0, -90.0, 90.0, 2000.0}) {
      const auto loss = static_cast<dpo_loss>(k);
      const double e = loss == dpo_loss::exo_pair ? 0.1 : 0;
      for (const double of_tau : {0.05, 1.0, 2.0}) {
        const auto v = of_ratio(loss, u, e, of_tau);
        EXPECT_TRUE(std::isfinite(v.loss) && std::isfinite(v.dchosen) && std::isfinite(v.drejected)) << k << ' ' << u;
      }
    }
  EXPECT_EQ(of_ratio(dpo_loss::sigmoid, -2000).loss, 2000);
  // A rejected sequence of probability zero.
  EXPECT_EQ(of_ratio(dpo_loss::sigmoid, infinity).loss, 0);
  EXPECT_EQ(of_ratio(dpo_loss::hinge, infinity).loss, 0);
  EXPECT_NEAR(of_ratio(dpo_loss::exo_pair, infinity, 0.1).loss, -std::log1p(-0.1), 1e-15);
  EXPECT_EQ(of_ratio(dpo_loss::hinge, 1.5).dchosen, 0);
  EXPECT_TRUE(std::isnan(of_ratio(dpo_loss::hinge, nan).dchosen));
  EXPECT_NEAR(of_ratio(dpo_loss::sigmoid, 40).loss / std::exp(-40.0), 1, 1e-12) << "1 + e^-40 is 1";
  EXPECT_NEAR(of_ratio(dpo_loss::discopop, -100, 0, 1).loss, 101, 1e-12) << "e^100 times e^-100";
}

TEST(pair_functions, orpo_of_certain_sequences) {
  const tigon::detail::orpo_pair f{1};
  // 1 - e^c is 0 in f64 from c = -1e-17 on; the odds are -c.
  const auto sure = f({-1e-20, -2, 0, 0, 1, 1});
  const double odds = std::log(1e20) - 2.0 * -1 - 2 - (-2 - std::log(1 - std::exp(-2.0)));
  EXPECT_NEAR(sure.metrics[1], odds, 1e-12);
  EXPECT_NEAR(sure.loss / std::exp(-odds), 1, 1e-12);
  EXPECT_NEAR(sure.dchosen * -std::exp(2.0) * (1 - std::exp(-2.0)), 1, 1e-9) << "-s(-o) / (1 - e^c)";
  for (const auto& v : {f({0, -2, 0, 0, 1, 1}), f({-2, 0, 0, 0, 1, 1}), f({0, 0, 0, 0, 1, 1}),
                        f({-2000, -1, 0, 0, 1, 1}), f({-1, -2000, 0, 0, 1, 1})})
    EXPECT_TRUE(std::isfinite(v.loss) && std::isfinite(v.dchosen) && std::isfinite(v.drejected));
}

/// All that a loss on pairs can be given at once.
TEST(pairs, of_two_packed_layers_have_the_same_bits) {
  using B = small_chunks;
  problem<float> p({4, 2, 3, 6}, variants[2]), q({4, 2, 3, 6}, variants[2]);
  using tigon::gemm_detail::round_up;
  const auto bytes = [](std::size_t k, std::size_t n) {
    return round_up(tigon::gemm_pack_bytes<B, float, float>(k, n), 64);
  };
  guarded<std::byte> logits(bytes(3, 6)), gradient(bytes(6, 3)), ref_logits(bytes(4, 6)), ref_gradient(bytes(6, 4));
  const auto packed = [](const guarded_matrix<float>& w, guarded<std::byte>& first, guarded<std::byte>& second) {
    return tigon::packed_weights<float>{tigon::gemm_pack<B, float>(w.view(), first, tigon::transpose::yes),
                                        tigon::gemm_pack<B, float>(w.view(), second)};
  };
  tigon::linear_layer<float> layer = q.layer();
  layer.packed = packed(q.w, logits, gradient);
  tigon::reference_model<float> reference = q.model();
  reference.layer.packed = packed(q.ref_w, ref_logits, ref_gradient);
  const variant& v = q.v;
  p.forward<B>();
  const auto call = [&](const tigon::preference_results<float>& to) {
    tigon::fused_linear_dpo_forward<B>(layer, {q.target.view(), q.nll_ids()}, to, q.gradients(v.dparams),
                                       {q.opt, v.loss, v.beta, v.e, tau, v.nll, v.average}, reference);
  };
  call(q.views());
  EXPECT_EQ(q.bits(), p.bits());
  auto to = q.views();
  to.metrics = {reinterpret_cast<float*>(ref_gradient.data()), 2};
  EXPECT_TRUE(refuses([&] { call(to); }, tigon::error_code::alias,
                      "fused_linear_dpo_forward: metrics overlaps reference.packed.gradient", q.loss, ref_gradient));
}

// ---- The doors.

class pair_doors : public testing::Test {
 protected:
  using T = float;
  struct arguments {
    tigon::matrix_view<T> x, w;
    tigon::matrix_view<const std::int64_t> target, nll;
    tigon::matrix_view<T> dx, dw;
    tigon::fused_linear_dpo_options opt;
    std::span<T> bias, dbias;
    tigon::reference_model<T> reference;
    tigon::preference_results<T> out;
  };
  TIGON_TEST_NOINLINE void refuses_all(tigon::error_code code, const std::string& part,
                                       const std::function<void(arguments&)>& change) {
    arguments a{p.x.view(),
                p.w.view(),
                std::as_const(p).target.view(),
                std::as_const(p).nll_target.view(),
                p.dx.view(),
                p.dw.view(),
                {.compute_nll_loss = true},
                p.bias,
                p.dbias,
                p.model(),
                p.views()};
    change(a);
    EXPECT_TRUE(refuses(
        [&] {
          tigon::fused_linear_dpo_forward<small_chunks>(tigon::linear_layer{a.x, a.w, a.bias}, {a.target, a.nll}, a.out,
                                                        {a.dx, a.dw, a.dbias}, a.opt, a.reference);
        },
        code, "fused_linear_dpo_forward: " + part, p.dx, p.dw, p.dbias, p.loss, p.chosen, p.nll, p.empty, p.x, m.all));
  }
  auto each() { return std::bind_front(&pair_doors::refuses_all, this); }

  problem<float> p{{4, 2, 3, 6}, variants[3]};
  const linear_sizes of_layer{8, 3, 6};
  overlapping_memory m{of_layer};
};

TEST_F(pair_doors, refuse_wrong_shapes) {
  using enum tigon::error_code;
  refuses_all(shape, "target is of 3 sequences; expected an even number of at least 2",
              [](auto& a) { a.target.rows = 3; });
  refuses_all(shape, "target is of 0 sequences", [](auto& a) { a.target.rows = 0; });
  refuses_all(shape, "x is of 8 rows; expected 4 for 2 x 2 targets",
              [](auto& a) { a.target.rows = 2, a.nll = {}, a.out = {.loss = a.out.loss}; });
  refuse_wrong_layers(of_layer, each());
  refuses_all(shape, "loss is of 0 elements; expected 1", [](auto& a) { a.out.loss = a.out.loss.first(0); });
  refuses_all(shape, "nll_target is 1 x 2; expected 2 x 2", [](auto& a) { a.nll.rows = 1; });
  refuses_all(shape, "nll_target is 4 x 1; expected 2 x 2", [](auto& a) { a.nll.cols = 1; });
  refuses_all(shape, "chosen_logps is of 1", [](auto& a) { a.out.chosen_logps = a.out.chosen_logps.first(1); });
  refuses_all(shape, "metrics is of 1", [](auto& a) { a.out.metrics = a.out.metrics.first(1); });
  refuses_all(shape, "reference.w is 5 x 4; expected 6 x 4", [](auto& a) { a.reference.layer.w.rows = 5; });
  refuses_all(shape, "reference.x is 7 x 4; expected 8 x 4", [](auto& a) { a.reference.layer.x.rows = 7; });
  refuses_all(shape, "reference.bias is of 5",
              [](auto& a) { a.reference.layer.bias = a.reference.layer.bias.first(5); });
  refuses_all(argument, "reference.logps is given beside a layer",
              [](auto& a) { a.reference.logps = a.out.chosen_logps; });
  refuses_all(argument, "reference.x is given without reference.w", [](auto& a) { a.reference.layer.w = {}; });
  refuses_all(shape, "reference.logps is of 2 elements; expected 8",
              [](auto& a) { a.reference = {.logps = a.out.chosen_logps}; });
  EXPECT_TIGON_ERROR((tigon::fused_linear_backward<tigon::op::fused_linear_dpo, small_chunks, float>(
                         {p.x, p.w}, 1, {p.dx.view(), p.dw.view(), p.dbias})),
                     shape, "fused_linear_backward: saved_dbias is", p.dx, p.dw, p.dbias);
}

TEST_F(pair_doors, refuse_wrong_numbers_and_labels) {
  using enum tigon::error_code;
  for (const double bad : {nan, 0.0, -1.0, infinity})
    refuses_all(argument, "beta is", [=](auto& a) { a.opt.beta = bad; });
  refuses_all(argument, "alpha is", [](auto& a) { a.opt.pairs.alpha = nan; });
  refuses_all(argument, "upstream is", [](auto& a) { a.opt.pairs.upstream = infinity; });
  for (const double bad : {nan, -1.0, infinity}) {
    refuses_all(argument, "denominator is", [=](auto& a) { a.opt.pairs.denominator = bad; });
    refuses_all(argument, "nll_denominator is", [=](auto& a) { a.opt.pairs.nll_denominator = bad; });
  }
  for (const double bad : {nan, -1.0, infinity, 1e-40})
    refuses_all(argument, "softcap is", [=](auto& a) {
      a.opt.pairs.softcap = bad, a.out.chosen_logits_mean = a.out.rejected_logits_mean = {};
    });
  refuses_all(argument, "chosen_logits_mean is requested with a softcap; expected no memory for it",
              [](auto& a) { a.opt.pairs.softcap = 30, a.out.chosen_logits_mean = {}; });
  refuses_all(argument, "chosen_logits_mean is requested with a softcap; expected no memory for it",
              [](auto& a) { a.opt.pairs.softcap = 30, a.out.rejected_logits_mean = {}; });
  for (const double bad : {nan, 0.0, infinity})
    refuses_all(argument, "discopop_tau is", [=](auto& a) { a.opt.discopop_tau = bad; });
  refuses_all(argument, "label_smoothing is 0.6", [](auto& a) { a.opt.label_smoothing = 0.6; });
  for (const dpo_loss loss : {dpo_loss::sigmoid, dpo_loss::robust, dpo_loss::exo_pair})
    refuses_all(argument, "label_smoothing is -0.1", [=](auto& a) { a.opt.loss = loss, a.opt.label_smoothing = -0.1; });
  // Not ignored where it has no meaning.
  refuses_all(argument, "label_smoothing is 0.1; expected 0: only",
              [](auto& a) { a.opt.loss = dpo_loss::hinge, a.opt.label_smoothing = 0.1; });
  refuses_all(argument, "label_smoothing is 0;", [](auto& a) { a.opt.loss = dpo_loss::exo_pair; });
  for (const dpo_loss loss : {dpo_loss::robust, dpo_loss::exo_pair})
    refuses_all(argument, "label_smoothing is 0.5;", [=](auto& a) { a.opt.loss = loss, a.opt.label_smoothing = .5; });
  for (const double bad : {1.5, -0.5})
    EXPECT_TIGON_ERROR(
        (tigon::fused_linear_cpo_forward<small_chunks, float>({p.x, p.w}, p.target.view(), {p.loss},
                                                              {p.dx.view(), p.dw.view()}, {.label_smoothing = bad})),
        argument, "fused_linear_cpo_forward: label_smoothing is " + std::string(bad < 0 ? "-0.5" : "1.5"), p.dx,
        p.loss);
  EXPECT_TIGON_ERROR((tigon::fused_linear_simpo_forward<small_chunks, float>(
                         {p.x, p.w}, p.target.view(), {p.loss}, {p.dx.view(), p.dw.view()}, {.gamma = infinity})),
                     argument, "fused_linear_simpo_forward: gamma is inf", p.dx, p.loss);
  for (const std::int64_t bad : {-1, 6}) {
    p.nll_target(1, 1) = bad;
    refuses_all(index, "nll_target[3] is " + std::to_string(bad) + "; expected at least 0 and below 6", [](auto&) {});
    p.target(1, 0) = bad;
    refuses_all(index, "target[2] is " + std::to_string(bad) + "; expected at least 0 and below 6", [](auto&) {});
    p.target(1, 0) = 0;
  }
}

TEST_F(pair_doors, refuse_overlaps) {
  using enum tigon::error_code;
  refuse_overlapping_layers(m, each());
  refuses_all(alias, "loss overlaps x", [](auto& a) { a.out.loss = {a.x.data, 1}; });
  refuses_all(alias, "loss overlaps dw", [](auto& a) { a.out.loss = {a.dw.data, 1}; });
  refuses_all(alias, "chosen_logps overlaps loss",
              [](auto& a) { a.out.nll_loss = {}, a.out.loss = a.out.chosen_logps.first(1); });
  refuses_all(alias, "rejected_rewards overlaps bias", [](auto& a) { a.out.rejected_rewards = a.bias.first(2); });
  refuses_all(alias, "metrics overlaps reference.w", [](auto& a) {
    a.out.metrics = {const_cast<float*>(a.reference.layer.w.data), 2};
  });
  EXPECT_TIGON_ERROR((tigon::fused_linear_backward<tigon::op::fused_linear_dpo, small_chunks, float>(
                         {p.x, p.w}, 1, {p.dx.view(), p.x.view()})),
                     shape, "saved_dw is 6 x 3; expected 8 x 3", p.dx);
  EXPECT_TIGON_ERROR((tigon::fused_linear_backward<tigon::op::fused_linear_dpo, small_chunks, float>(
                         {p.x, p.w}, 1, {p.w.view(), p.dw.view()})),
                     shape, "saved_dx is 8 x 3; expected 6 x 3", p.dw);
}

TEST(pairs_workspace, stays_below_280_MiB_for_2048_tokens_of_128256_classes) {
  const std::size_t bytes = tigon::fused_linear_preference_workspace<usual_backend, float>(1, 1024, 2048, 128256, 2048);
  EXPECT_LE(bytes, std::size_t{280} << 20);
  EXPECT_LE(bytes, std::size_t{96} << 20) << "64 MiB of logits, and little else";
}

TEST(pairs_workspace, of_a_reference_of_one_column_has_its_bias) {
  const auto bytes = [](std::size_t hidden) {
    return tigon::fused_linear_preference_workspace<small_chunks, float>(4, 7, 5, 170, hidden);
  };
  EXPECT_GE(bytes(1), bytes(0) + 170 * sizeof(float));
}

TEST(pairs_workspace, is_taken_but_for_a_tenth) {
  problem<float> p({8, 16, 32, 2000}, variants[2]);
  for (std::size_t b = 0; b < 8; ++b)
    for (std::size_t t = 0; t < 16; ++t) p.target(b, t) = 3;
  tigon::workspace scratch;
  context ctx(tigon::serial(), scratch);
  p.forward<usual_backend>(ctx);
  const auto bytes = tigon::fused_linear_preference_workspace<usual_backend, float>(4, 16, 32, 2000, 33, ctx);
  EXPECT_LE(scratch.high_water(), bytes);
  EXPECT_GE(static_cast<double>(scratch.high_water()), 0.9 * static_cast<double>(bytes));
  // As docs/formulas/preference.md has it.
  constexpr std::size_t rows = 128, hidden = 32, vocab = 2000;
  const std::size_t product = std::max({tigon::gemm_workspace<usual_backend, float>(rows, vocab, hidden),
                                        tigon::gemm_workspace<usual_backend, float>(rows, hidden, vocab),
                                        tigon::gemm_workspace<usual_backend, float>(vocab, hidden, rows),
                                        tigon::simd::partials_workspace<usual_backend, float>(rows, vocab, 1)});
  const std::size_t formula = 4 * rows * vocab + 2 * 4 * rows * hidden + 200 * rows + 8 * vocab + product;
  EXPECT_NEAR(static_cast<double>(scratch.high_water()) / static_cast<double>(formula), 1, 0.1);
}

}  // namespace
