// The contract of include/tigon/losses/fused_linear_grpo.hpp, promise by promise.
#include <gtest/gtest.h>

#include <tigon/losses/fused_linear_grpo.hpp>

#include "support/backends.hpp"
#include "support/central_difference.hpp"
#include "support/chunk_backends.hpp"
#include "support/linear_problem.hpp"
#include "support/policy_loss.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::gradient, tigon::importance;
using tigon::luspo_reduction, tigon::matrix_view, tigon::policy_loss;
using tigon::backends::small_chunks, tigon::backends::small_counting;
using small_generic = tigon::backends::small_chunks_of<single_numbers, 100>;  // less than a sequence
using options = tigon::policy_options;
using enum policy_loss;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type loss_bound{.f32 = 4e-7, .bf16 = 4e-7, .f16 = 4e-7, .f64 = 2e-14};
constexpr by_type gradient_bound{.f32 = 1e-5, .bf16 = 8e-3, .f16 = 2e-3, .f64 = 5e-14};

constexpr policy_loss every_type[] = {grpo, bnpo, dr_grpo, dapo, luspo, cispo, sapo, vespo, gmpo};
bool by_token_only(policy_loss type) { return type == cispo || type == sapo || type == vespo || type == gmpo; }

enum class reference { given, layer };

struct sizes {
  std::size_t batch, len, hidden, vocab, gap = 0;
};

template <class T>
struct problem {
  using A = accumulator_t<T>;
  sizes s;
  options opt;
  gradient dparams = gradient::overwrite;
  std::size_t rows, stride;
  guarded_matrix<T> x, w, ref_x, ref_w, dx, dw;
  guarded<T> bias, ref_bias, dbias;
  guarded<A> loss, kl, clipped, upstream;
  policy_inputs in;
  reference from;
  guarded<std::int32_t> ids;
  guarded<float> mask;
  guarded<A> advantages, old_logp, ref_logp, sampling_ratio;

  TIGON_TEST_NOINLINE problem(sizes of, options o, reference r = reference::given)
      : s(of),
        opt(o),
        rows(s.batch * (s.len + s.gap)),
        stride(s.len + s.gap),
        x(random_matrix<T>({rows, s.hidden, 1}, 1)),
        w(random_matrix<T>({s.vocab, s.hidden, 2}, 2, guard::behind, {.deviation = 0.6})),
        ref_x(random_matrix<T>({rows, s.hidden + 1}, 3)),
        ref_w(random_matrix<T>({s.vocab, s.hidden + 1}, 4, guard::behind, {.deviation = 0.6})),
        dx(rows, s.hidden, 3),
        dw(s.vocab, s.hidden, 1),
        bias(random_vector<T>(s.vocab, 5)),
        ref_bias(random_vector<T>(s.vocab, 6)),
        dbias(s.vocab),
        loss(o.reduce ? 1 : s.batch * s.len),
        kl(loss.size()),
        clipped(loss.size()),
        upstream(loss.size()),
        in(example()),
        from(r),
        ids(s.batch * s.len),
        mask(s.batch * s.len),
        advantages(s.batch),
        old_logp(s.batch * s.len),
        ref_logp(s.batch * s.len),
        sampling_ratio(s.batch * s.len) {
    upstream.assign(o.reduce ? std::vector<double>{-1.5} : normal_values(s.batch * s.len, 9));
    if (from == reference::layer) {
      const auto rounded = log_probabilities(ref_x.f64(), ref_w.f64(), ref_bias.f64(), s.hidden + 1, in.ids);
      in.ref_logp = rounded;  // the reference takes them in f64; they do not stand in the batch
    }
    fill();
  }
  TIGON_TEST_NOINLINE void fill() {
    std::ranges::copy(in.ids, ids.begin()), std::ranges::copy(in.mask, mask.begin());
    advantages.assign(in.advantages), old_logp.assign(in.old_logp), ref_logp.assign(in.ref_logp);
    sampling_ratio.assign(in.sampling_ratio);
  }
  policy_inputs example() const {
    const auto made = [&](const std::vector<double>& logp) { return policy_example(s.batch, s.len, s.vocab, logp); };
    const auto first = made(std::vector<double>(s.batch * s.len, 0.0)).ids;
    return made(log_probabilities(x.f64(), w.f64(), bias.f64(), s.hidden, first));
  }
  TIGON_TEST_NOINLINE std::vector<double> log_probabilities(const std::vector<double>& xv,
                                                            const std::vector<double>& wv,
                                                            const std::vector<double>& bv, std::size_t hidden,
                                                            const std::vector<std::int64_t>& at) const {
    std::vector<double> out, z(s.vocab);
    for (std::size_t b = 0; b < s.batch; ++b)
      for (std::size_t t = 0; t < s.len; ++t) {
        for (std::size_t j = 0; j < s.vocab; ++j) {
          z[j] = bv[j];
          for (std::size_t h = 0; h < hidden; ++h) z[j] += xv[(b * stride + t) * hidden + h] * wv[j * hidden + h];
        }
        out.push_back(
            log_softmax_row(z.data(), s.vocab, opt.temperature).at(static_cast<std::size_t>(at[b * s.len + t])));
      }
    return out;
  }
  TIGON_TEST_NOINLINE policy_outputs wanted(const std::vector<double>& xv, const std::vector<double>& wv,
                                            const std::vector<double>& bv) const {
    return policy_reference(in, opt, log_probabilities(xv, wv, bv, s.hidden, in.ids),
                            log_probabilities(x.f64(), w.f64(), bias.f64(), s.hidden, in.ids));
  }
  TIGON_TEST_NOINLINE tigon::policy_batch<A> given() const {
    const auto view = [&](const guarded<A>& v, const std::vector<double>& of) {
      return of.empty() ? matrix_view<const A>{} : matrix_view<const A>(v.data(), s.batch, s.len);
    };
    tigon::policy_batch<A> out{.ids = matrix_view(ids.data(), s.batch, s.len),
                               .advantages = advantages,
                               .old_logp = view(old_logp, in.old_logp),
                               .sampling_ratio = view(sampling_ratio, in.sampling_ratio)};
    if (from == reference::given) out.ref_logp = view(ref_logp, in.ref_logp);
    if (!in.mask.empty()) out.mask = matrix_view(mask.data(), s.batch, s.len);
    return out;
  }
  tigon::reference_model<T> layer() const {
    if (from == reference::given || in.ref_logp.empty()) return {};
    return {.layer = {ref_x, ref_w, ref_bias}};
  }
  TIGON_TEST_NOINLINE void clear() { dx.clear(), dw.clear(), dbias.clear(), loss.clear(), kl.clear(), clipped.clear(); }
  template <class B>
  TIGON_TEST_NOINLINE void forward(matrix_view<T> to_dx, matrix_view<T> to_dw, std::span<T> to_db,
                                   context& ctx = tigon::default_context()) {
    const std::span<A> kl_of = in.ref_logp.empty() ? std::span<A>{} : std::span<A>(kl);
    tigon::fused_linear_grpo_forward<B, T>({x, w, bias}, given(), {loss, {kl_of, clipped}},
                                           {to_dx, to_dw, to_db, dparams}, opt, layer(), upstream, ctx);
  }
  template <class B>
  void forward(context& ctx = tigon::default_context()) {
    forward<B>(dx.view(), dw.view(), dbias, ctx);
  }
  auto results() const { return bits_of(loss, kl, clipped); }
  auto bits() const { return bits_of(loss, kl, clipped, dx, dw, dbias); }
  TIGON_TEST_NOINLINE void expect_loss() const {
    const policy_outputs out = wanted(x.f64(), w.f64(), bias.f64());
    const auto compare = [&](const guarded<A>& got, const std::vector<double>& each, double total) {
      return close(got.f64(), opt.reduce ? std::vector<double>{total} : each, loss_bound.of<T>(), {.scale = 1e-2});
    };
    EXPECT_TRUE(compare(loss, out.loss, out.total));
    if (!in.ref_logp.empty()) {
      EXPECT_TRUE(compare(kl, out.kl, out.kl_mean));
    }
    EXPECT_TRUE(compare(clipped, out.clipped, out.clip_ratio));
  }
  /// By central differences in x, w and bias.
  TIGON_TEST_NOINLINE void expect_gradients() const {
    const auto objective = [&](const std::vector<double>& xv, const std::vector<double>& wv,
                               const std::vector<double>& bv) {
      const policy_outputs out = wanted(xv, wv, bv);
      if (opt.reduce) return out.total * to_f64(upstream[0]);
      double sum = 0;
      for (std::size_t i = 0; i < out.loss.size(); ++i) sum += out.loss[i] * to_f64(upstream[i]);
      return sum;
    };
    const auto xv = x.f64(), wv = w.f64(), bv = bias.f64();
    const auto compare = [&](const std::vector<double>& got, const std::vector<double>& at, auto f) {
      const auto where = probes(at.size(), 80);
      return close(pick(got, where), central_difference(f, at, where), 1e-8, {.scale = 1e-3});
    };
    EXPECT_TRUE(compare(dx.f64(), xv, [&](const auto& v) { return objective(v, wv, bv); })) << "dx";
    EXPECT_TRUE(compare(dw.f64(), wv, [&](const auto& v) { return objective(xv, v, bv); })) << "dw";
    EXPECT_TRUE(compare(dbias.f64(), bv, [&](const auto& v) { return objective(xv, wv, v); })) << "dbias";
  }
};

TEST(fused_linear_grpo_gradient, is_that_of_the_definition) {
  for (const policy_loss type : every_type)
    for (const importance level : {importance::token, importance::sequence})
      for (const int kl : {0, 1, 2})
        for (const double delta : {0.0, 1.1})
          for (const bool reduce : {true, false}) {
            if (by_token_only(type) && (level == importance::sequence || delta != 0)) continue;
            options opt{.type = type, .level = level, .reduce = reduce, .temperature = 0.8, .beta = kl == 0 ? 0 : 0.3};
            opt.epsilon_high = type == cispo ? 1.2 : 0.4, opt.delta = delta, opt.bias_corrected_kl = kl == 2;
            SCOPED_TRACE(testing::Message()
                         << "type " << static_cast<int>(type) << ", level " << static_cast<int>(level) << ", kl " << kl
                         << ", delta " << delta << (reduce ? "" : ", of tokens"));
            for (const reference from : {reference::given, reference::layer}) {
              problem<double> p({4, 3, 2, 5, kl == 0 ? 0u : 1u}, opt, from);
              if (delta == 0) p.in.sampling_ratio.clear();
              p.forward<small_generic>();
              p.expect_loss();
              p.expect_gradients();
            }
          }
}

TEST(fused_linear_grpo_gradient, where_inputs_are_left_out) {
  for (const policy_loss type : every_type)
    for (int without = 0; without < 8; ++without) {
      options opt{.type = type, .epsilon_high = type == cispo ? 1.2 : 0.4};
      if (without & 2) opt.beta = 0;
      problem<double> p({3, 3, 2, 5}, opt);
      if (without & 1) p.in.old_logp.clear();
      if (without & 2) p.in.ref_logp.clear();
      if (without & 4) p.in.mask.clear();
      p.forward<small_generic>();
      p.expect_loss();
      p.expect_gradients();
    }
}

TEST(fused_linear_grpo_gradient, of_every_luspo_reduction) {
  for (const luspo_reduction how : {luspo_reduction::sequences, luspo_reduction::tokens, luspo_reduction::padded})
    for (const importance level : {importance::token, importance::sequence})
      for (const double beta : {0.0, 0.2}) {
        problem<double> p({3, 3, 2, 5}, {.type = luspo, .level = level, .beta = beta, .luspo = how});
        p.in.sampling_ratio.clear();
        p.forward<small_generic>();
        p.expect_loss();
        p.expect_gradients();
      }
}

TEST(fused_linear_grpo_gradient, of_a_loss_of_the_users_own) {
  const auto f = [](const tigon::policy_token& t) -> tigon::policy_value {
    const double rho = std::exp(t.log_ratio);
    return {.loss = -rho * t.advantage, .dlog_ratio = -rho * t.advantage};
  };
  for (const importance level : {importance::token, importance::sequence})
    for (const reference from : {reference::given, reference::layer}) {
      options opt{.type = dapo, .level = level, .beta = 0.3, .epsilon_low = 1, .epsilon_high = 1e6};
      problem<double> p({3, 3, 2, 5}, opt, from), q({3, 3, 2, 5}, opt, from);
      p.upstream[0] = 1;
      p.forward<small_generic>();
      q.opt.type = own;
      tigon::fused_linear_grpo_forward<small_generic, double>({q.x, q.w, q.bias}, q.given(), f,
                                                              {q.loss, {q.kl, q.clipped}},
                                                              {q.dx.view(), q.dw.view(), q.dbias}, q.opt, q.layer());
      EXPECT_EQ(p.bits(), q.bits());
    }
}

template <class On>
class fused_linear_grpo : public testing::Test {};
#if defined(TIGON_CONFORMANCE_BACKEND)
using pairs = testing::Types<on<small_chunks, float>, on<small_chunks, bfloat16>>;
#else
using pairs =
    with_engines<list<on<small_chunks, float>, on<small_chunks, bfloat16>>, on<tigon::backends::xsimd, float>>;
#endif
TYPED_TEST_SUITE(fused_linear_grpo, pairs, names);

TYPED_TEST(fused_linear_grpo, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const policy_loss type : every_type)
    for (const importance level : {importance::token, importance::sequence})
      for (const sizes s : {sizes{4, 5, 9, 33}, {5, 7, 16, 123, 1}}) {
        if (by_token_only(type) && level == importance::sequence) continue;
        SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type) << ", level " << static_cast<int>(level)
                                        << ", vocab " << s.vocab);
        const reference from = s.gap != 0 ? reference::layer : reference::given;
        problem<T> p(s, {.type = type, .level = level, .temperature = 0.9, .epsilon_high = 0.4}, from);
        problem<double> q(s, p.opt, from);
        for (const auto& [to, of] : {std::pair{&q.x, &p.x}, {&q.w, &p.w}, {&q.ref_x, &p.ref_x}, {&q.ref_w, &p.ref_w}})
          to->assign(of->f64());
        q.bias.assign(p.bias.f64()), q.ref_bias.assign(p.ref_bias.f64());
        q.in = p.in;
        q.fill();
        p.template forward<B>(), q.forward<small_generic>();
        p.expect_loss();
        const struct {
          std::vector<double> dx, dw, dbias;
        } wanted{q.dx.f64(), q.dw.f64(), q.dbias.f64()};
        expect_layer_gradients(p, wanted, gradient_bound.of<T>());
      }
}

TYPED_TEST(fused_linear_grpo, each_gradient_may_be_left_out_and_be_added_to) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  expect_gradients_may_be_left_out<B>([] { return problem<T>({4, 5, 9, 33}, {}); });
  problem<T> full({4, 5, 9, 33}, {}), twice(full.s, {});
  full.template forward<B>();
  twice.dw.assign(std::vector<double>(33 * 9, 0.0)), twice.dbias.assign(std::vector<double>(33, 0.0));
  twice.dparams = gradient::accumulate;
  twice.template forward<B>();
  twice.template forward<B>();
  auto doubled = full.dw.f64();
  for (double& v : doubled) v *= 2;
  EXPECT_TRUE(close(twice.dw.f64(), doubled, gradient_bound.of<T>()));
}

TYPED_TEST(fused_linear_grpo, backward_multiplies_what_forward_made) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  problem<T> p({3, 4, 9, 33}, {});
  p.template forward<B>();
  for (int again = 0; again < 2; ++again) {  // g, not g squared
    guarded_matrix<T> dx(p.rows, 9), dw(33, 9);
    guarded<T> dbias(33);
    tigon::fused_linear_backward<tigon::op::fused_linear_grpo, B, T>({p.dx, p.dw, p.dbias}, A(-0.5),
                                                                     {dx.view(), dw.view(), dbias});
    for (std::size_t i = 0; i < 9; ++i) {
      EXPECT_EQ(to_f64(dx(2, i)), -0.5 * to_f64(p.dx(2, i)));
      EXPECT_EQ(to_f64(dw(5, i)), -0.5 * to_f64(p.dw(5, i)));
    }
    EXPECT_EQ(to_f64(dbias[7]), -0.5 * to_f64(p.dbias[7]));
  }
}

TYPED_TEST(fused_linear_grpo, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const importance level : {importance::token, importance::sequence}) {
    problem<T> p({6, 20, 20, 500}, {.level = level});
    EXPECT_TRUE(same_forward_for_any_threads<B>(p));
  }
}

TYPED_TEST(fused_linear_grpo, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const importance level : {importance::token, importance::sequence}) {
    problem<T> p({4, 7, 17, 400}, {.level = level}, reference::layer);
    p.in.mask.clear();
    std::size_t bytes = 0;
    expect_takes_its_workspace(
        "fused_linear_grpo_forward", p,
        [&](context& ctx) {
          return bytes = tigon::fused_linear_grpo_workspace<B, T>(4, p.rows, 17, 400, p.opt, 18, ctx);
        },
        [&](context& ctx) {
          p.template forward<B>(ctx);
          EXPECT_GE(ctx.workspace().high_water() * 10, bytes * 9);
        });
  }
}

TEST(fused_linear_grpo_edges, takes_the_memory_of_its_page) {
  problem<float> p({8, 16, 32, 2000}, {}, reference::layer);
  p.in.mask.clear();
  tigon::workspace scratch;
  context ctx(tigon::serial(), scratch);
  p.forward<usual_backend>(ctx);
  const auto bytes = tigon::fused_linear_grpo_workspace<usual_backend, float>(8, 128, 32, 2000, p.opt, 33, ctx);
  EXPECT_LE(scratch.high_water(), bytes);
  EXPECT_GE(static_cast<double>(scratch.high_water()), 0.9 * static_cast<double>(bytes));
  // As docs/formulas/policy.md has it, all rows in one chunk.
  constexpr std::size_t rows = 128, hidden = 32, vocab = 2000;
  const std::size_t product = std::max({tigon::gemm_workspace<usual_backend, float>(rows, vocab, hidden),
                                        tigon::gemm_workspace<usual_backend, float>(rows, hidden, vocab),
                                        tigon::gemm_workspace<usual_backend, float>(vocab, hidden, rows),
                                        tigon::simd::partials_workspace<usual_backend, float>(rows, vocab, 1)});
  const std::size_t formula =
      4 * rows * vocab + rows * (3 * hidden + 1) * 4 + 80 * rows + 136 * rows + 8 * vocab + product;
  EXPECT_NEAR(static_cast<double>(scratch.high_water()) / static_cast<double>(formula), 1, 0.1);
}

TEST(fused_linear_grpo_edges, results_do_not_depend_on_chunks) {
  for (const policy_loss type : {dapo, vespo})
    for (const reference from : {reference::given, reference::layer}) {
      problem<float> one({5, 7, 16, 123}, {.type = type}, from), many(one.s, one.opt, from);
      one.forward<usual_backend>(), many.forward<small_chunks>();
      EXPECT_TRUE(close(many.dx.f64(), one.dx.f64(), 2e-6));
      EXPECT_TRUE(close(many.dw.f64(), one.dw.f64(), 2e-6));
      EXPECT_TRUE(close(many.loss.f64(), one.loss.f64(), 2e-6, {.scale = 1e-2}));
    }
}

TEST(fused_linear_grpo_edges, masked_tokens_are_not_read_nor_multiplied) {
  for (const importance level : {importance::token, importance::sequence}) {
    problem<float> p({5, 8, 9, 100}, {.level = level}), q(p.s, p.opt);
    std::size_t counts = 0;
    for (std::size_t i = 0; i < 40; ++i) {
      counts += p.in.mask[i] != 0;
      if (p.in.mask[i] != 0) continue;
      for (std::size_t h = 0; h < 9; ++h) q.x(i, h) = static_cast<float>(nan);
      q.old_logp[i] = q.ref_logp[i] = q.sampling_ratio[i] = static_cast<float>(nan);
      q.ids[i] = 1 << 20;
    }
    p.forward<small_counting>();
    counted = {};
    q.forward<small_counting>();
    EXPECT_EQ(bits_of(p.dx, p.dw, p.dbias, p.loss, p.kl), bits_of(q.dx, q.dw, q.dbias, q.loss, q.kl));
    for (std::size_t h = 0; h < 9; ++h) EXPECT_EQ(p.dx(39, h), 0);
    // Chunks of two rows. Sequences of up to eight tokens do not fit: all but the last chunk of each is made again.
    if (level == importance::token) {
      EXPECT_EQ(counted.products, 3 * (counts + 1) / 2);
    } else {
      EXPECT_GT(counted.all_logit_rows, counts);
      EXPECT_LT(counted.all_logit_rows, 2 * counts + 1);
    }
  }
}

TEST(fused_linear_grpo_edges, a_loss_of_ones_own_knows_the_reference_and_the_place_of_a_token) {
  problem<double> p({3, 4, 2, 5}, {.type = own, .beta = 0});
  p.in.sampling_ratio.clear();
  const auto logp = p.log_probabilities(p.x.f64(), p.w.f64(), p.bias.f64(), 2, p.in.ids);
  double wanted = 0, count = 0;
  for (std::size_t i = 0; i < 12; ++i)
    if (p.in.mask[i] != 0) wanted += static_cast<double>(i + 1) * (logp[i] - p.in.ref_logp[i]), ++count;
  const auto f = [](const tigon::policy_token& t) -> tigon::policy_value {
    return {.loss = static_cast<double>(4 * t.sequence + t.position + 1) * t.ref_ratio};
  };
  tigon::fused_linear_grpo_forward<small_generic, double>({p.x, p.w, p.bias}, p.given(), f, {p.loss}, {}, p.opt);
  EXPECT_NEAR(p.loss[0], wanted / count, 1e-12);
}

TEST(fused_linear_grpo_edges, a_ratio_at_its_bound_is_not_clipped) {
  const auto run = [](options opt) {
    problem<float> p({4, 5, 9, 33}, opt);
    p.in.old_logp.clear();  // every ratio is 1
    p.forward<small_chunks>();
    EXPECT_EQ(p.clipped[0], 0);
    return bits_of(p.loss, p.dx, p.dw, p.dbias);
  };
  EXPECT_EQ(run({.type = cispo, .epsilon_high = 1}), run({.type = cispo, .epsilon_high = 2}));
  EXPECT_EQ(run({.epsilon_high = 0, .delta = 0.5}), run({.epsilon_high = 0.2, .delta = 0.5}));
}

TEST(fused_linear_grpo_options, are_those_of_the_papers_where_nothing_is_said) {
  const options opt;
  EXPECT_EQ((std::vector{opt.tau_positive, opt.tau_negative}), (std::vector{1.0, 1.05}));
  EXPECT_EQ((std::vector{opt.k_positive, opt.lambda_positive, opt.k_negative, opt.lambda_negative}),
            (std::vector{2.0, 3.0, 3.0, 2.0}));
  EXPECT_EQ((std::vector{opt.temperature, opt.beta, opt.epsilon_low, opt.epsilon_high, opt.delta, opt.max_log_ratio,
                         opt.max_length, opt.denominator}),
            (std::vector{1.0, 0.04, 0.2, 0.2, 0.0, 0.0, 0.0, 0.0}));
}

TEST(fused_linear_grpo_edges, nothing_counts_and_one_class) {
  for (const policy_loss type : {grpo, bnpo, dr_grpo, dapo, luspo, vespo})
    for (const auto& [batch, len] : {std::pair{3u, 4u}, {0u, 4u}, {3u, 0u}}) {
      problem<float> p({batch, len, 3, 7}, {.type = type});
      std::ranges::fill(p.in.mask, 0);
      p.fill();
      if (p.in.ref_logp.empty()) p.opt.beta = 0, p.kl[0] = 0;
      p.forward<usual_backend>();
      for (const auto& zeros : {p.loss.f64(), p.kl.f64(), p.dx.f64(), p.dw.f64(), p.dbias.f64()})
        EXPECT_EQ(std::ranges::count(zeros, 0.0), std::ssize(zeros)) << static_cast<int>(type);
    }
  problem<float> one({2, 3, 4, 1}, {});
  one.forward<usual_backend>();
  one.expect_loss();
  for (const auto& zeros : {one.dx.f64(), one.dw.f64(), one.dbias.f64()})
    EXPECT_EQ(std::ranges::count(zeros, 0.0), std::ssize(zeros));
}

TEST(fused_linear_grpo_edges, bad_tokens_stay_alone) {
  options opt{.reduce = false};
  problem<float> clean({2, 4, 5, 30}, opt), p(clean.s, opt);
  clean.in.mask.clear(), p.in.mask.clear();
  p.x(1, 2) = static_cast<float>(nan);
  clean.forward<small_chunks>(), p.forward<small_chunks>();
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(i == 1 ? std::isnan(p.loss[i]) : p.loss[i] == clean.loss[i]) << i;
    for (std::size_t h = 0; h < 5; ++h)
      EXPECT_TRUE(i == 1 ? std::isnan(p.dx(i, h)) : p.dx(i, h) == clean.dx(i, h)) << i;
  }
}

/// The door, which is the same for every backend: refused before the first write.
struct arguments {
  problem<float> p{{2, 3, 4, 6}, {}};
  tigon::policy_batch<float> in = p.given();
  matrix_view<float> x = p.x.view(), w = p.w.view(), dx = p.dx.view(), dw = p.dw.view();
  std::span<float> loss = p.loss, kl = p.kl, dbias = p.dbias;
  std::span<const float> bias = p.bias, upstream = p.upstream;
  tigon::reference_model<float> layer;
  options& opt = p.opt;
  std::vector<float> two{1, 1};
};
class fused_linear_grpo_door : public testing::Test {
 protected:
  TIGON_TEST_NOINLINE void refused(tigon::error_code code, const std::string& part,
                                   const std::function<void(arguments&)>& change) {
    arguments a;
    change(a);
    EXPECT_TRUE(refuses(
        [&] {
          tigon::fused_linear_grpo_forward<usual_backend>(tigon::linear_layer{a.x, a.w, a.bias}, a.in,
                                                          {a.loss, {a.kl, a.p.clipped}}, {a.dx, a.dw, a.dbias}, a.opt,
                                                          a.layer, a.upstream);
        },
        code, "fused_linear_grpo_forward: " + part, a.p.dx, a.p.dw, a.p.dbias, a.p.loss, a.p.kl, a.p.clipped, a.p.x,
        m.all));
  }
  auto each() { return std::bind_front(&fused_linear_grpo_door::refused, this); }
  const linear_sizes of_layer{6, 4, 6};
  overlapping_memory m{of_layer};
};

TEST_F(fused_linear_grpo_door, refuses_before_the_first_write) {
  using enum tigon::error_code;
  refuse_wrong_layers(of_layer, each());
  refused(shape, "logits is of 5 rows; expected 6 or 8", [](arguments& a) { a.x.rows = a.dx.rows = 5; });
  refused(shape, "advantages is of 1", [](arguments& a) { a.in.advantages = a.in.advantages.first(1); });
  refused(shape, "upstream is of 2 elements; expected 1", [](arguments& a) { a.upstream = a.two; });
  refused(shape, "loss is of 1 elements; expected 6", [](arguments& a) { a.opt.reduce = false; });
  refused(shape, "reference.w is 5 x 5; expected 6 x 5", [](arguments& a) {
    a.in.ref_logp = {}, a.layer = {a.p.ref_x, a.p.ref_w};
    a.layer.layer.w.rows = 5;
  });
  refused(shape, "reference.w is 6 x 5; expected 6 x 4", [](arguments& a) {
    a.in.ref_logp = {}, a.layer = {a.p.x, a.p.ref_w};
  });
  refused(argument, "ref_logp is given beside a layer", [](arguments& a) { a.layer = {a.p.ref_x, a.p.ref_w}; });
  refused(argument, "reference is not a layer", [](arguments& a) { a.layer.logps = a.two; });
  refused(argument, "beta is 0.04; expected 0 where there is no reference",
          [](arguments& a) { a.in.ref_logp = {}, a.kl = {}; });
  refused(argument, "delta is 2; expected 0 for cispo", [](arguments& a) { a.opt.type = cispo, a.opt.delta = 2; });
  refused(argument, "level is sequence; expected token",
          [](arguments& a) { a.opt.type = sapo, a.opt.level = importance::sequence; });
  refused(argument, "temperature is 0", [](arguments& a) { a.opt.temperature = 0; });
  refused(index, "ids[0, 0] is 6; expected at least 0 and below 6", [](arguments& a) { a.p.ids[0] = 6; });
  refused(index, "mask[0, 0] is 0.5; expected 0 or 1", [](arguments& a) { a.p.mask[0] = 0.5f; });
  refuse_overlapping_layers(m, each());
  refused(alias, "loss overlaps dx", [](arguments& a) { a.loss = {a.dx.data, 1}; });
  refused(alias, "loss overlaps x", [](arguments& a) { a.loss = {a.x.data, 1}; });
  refused(alias, "kl overlaps loss", [](arguments& a) { a.kl = a.loss; });
}

}  // namespace
