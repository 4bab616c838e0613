// The contract of include/tigon/losses/selective_logprob.hpp, promise by promise.
#include <gtest/gtest.h>

#include <tigon/losses/selective_logprob.hpp>

#include "support/backends.hpp"
#include "support/central_difference.hpp"
#include "support/chunk_backends.hpp"
#include "support/errors.hpp"
#include "support/scratch.hpp"
#include "support/sequence_problem.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::gradient;
using tigon::backends::small_chunks, tigon::backends::small_generic;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
const sequence_sizes every_size[] = {{0, 1, 5, 7}, {1, 1, 1, 1},      {5, 1, 3, 2, 1},
                                     {3, 1, 0, 9}, {7, 1, 33, 65, 3}, {40, 1, 16, 123}};

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type logp_bound{.f32 = 4e-7, .bf16 = 4e-7, .f16 = 4e-7, .f64 = 2e-15};
constexpr by_type gradient_bound{.f32 = 4e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 2e-14};

template <class T>
struct problem : sequence_problem<T> {
  using A = accumulator_t<T>;
  tigon::selective_logprob_options opt;
  gradient mode;
  guarded<A> logp, upstream;
  std::vector<tigon::lse_parts<A>> saved;
  std::vector<std::int64_t> target;

  TIGON_TEST_NOINLINE problem(sequence_sizes of, bool biased, tigon::selective_logprob_options with = {},
                              guard side = guard::behind, gradient how = gradient::overwrite)
      : sequence_problem<T>(of, biased, false, with.ignore_index, side),
        opt(with),
        mode(how),
        logp(of.sequences, side),
        upstream(random_vector<A>(of.sequences, 9, side)),
        saved(of.sequences) {
    for (std::size_t i = 0; i < of.sequences; ++i) target.push_back(this->label(i));
    if (of.sequences > 4) upstream[4] = 0;
    if (mode == gradient::accumulate) {
      this->dw.assign(normal_values(of.vocab * of.hidden, 27));
      this->dbias.assign(normal_values(this->dbias.size(), 28));
    }
  }
  template <class B>
  TIGON_TEST_NOINLINE void run(context& ctx = tigon::default_context()) {
    forward<B>(ctx);
    tigon::selective_logprob_backward<B>(this->layer(), target, upstream, saved, this->gradients(mode), opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    tigon::selective_logprob_forward<B>(this->layer(), target, logp, saved, opt, ctx);
  }
  auto bits() const { return bits_of(logp, this->dx, this->dw, this->dbias); }

  /// sum_i u_i logp_i, what it is the sum of, and its gradients.
  struct reference_results {
    double loss = 0;
    std::vector<double> logp, dx, dw, dbias;
  };
  TIGON_TEST_NOINLINE reference_results wanted(const whole_layer& policy) const {
    const auto all = policy.log_probs(opt.temperature);
    layer_gradients grad(policy);
    reference_results out;
    for (std::size_t i = 0; i < target.size(); ++i) {
      const bool counts = target[i] != opt.ignore_index;
      out.logp.push_back(counts ? all[i * policy.vocab + static_cast<std::size_t>(target[i])] : 0);
      const double u = to_f64(upstream[i]);
      out.loss += u * out.logp.back();
      if (counts) grad.add(policy, all, i, target[i], u / opt.temperature);
    }
    out.dx = grad.dx, out.dw = grad.dw, out.dbias = grad.dbias;
    if (this->bias.size() == 0) out.dbias.clear();
    if (mode == gradient::accumulate) {
      const auto dw = this->dw.f64(), db = this->dbias.f64();
      for (std::size_t k = 0; k < dw.size(); ++k) out.dw[k] += dw[k];
      for (std::size_t k = 0; k < db.size(); ++k) out.dbias[k] += db[k];
    }
    return out;
  }
};

using pairs = testing::Types<on<small_chunks, float>, on<small_chunks, bfloat16>, on<small_generic, double>>;
template <class On>
class selective_logprob : public testing::Test {};
TYPED_TEST_SUITE(selective_logprob, pairs, names);

TYPED_TEST(selective_logprob, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sequence_sizes& size : every_size)
    for (const tigon::selective_logprob_options& opt :
         {tigon::selective_logprob_options{}, {.temperature = 0.6}, {.temperature = 2, .ignore_index = 0}})
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << size << ", temperature " << opt.temperature << ", " << side);
        problem<T> p(size, opt.temperature != 1, opt, side,
                     opt.temperature < 1 ? gradient::accumulate : gradient::overwrite);
        const auto wanted = p.wanted(p.policy());
        p.template run<B>();
        EXPECT_TRUE(close(p.logp.f64(), wanted.logp, logp_bound.of<T>(), {.scale = 1e-3, .may_be_empty = true}));
        const comparison with{.scale = size.vocab == 1 ? 1.0 : 0, .may_be_empty = true};
        EXPECT_TRUE(close(p.dx.f64(), wanted.dx, gradient_bound.of<T>(), with)) << "dx";
        EXPECT_TRUE(close(p.dw.f64(), wanted.dw, gradient_bound.of<T>(), with)) << "dw";
        EXPECT_TRUE(close(p.dbias.f64(), wanted.dbias, gradient_bound.of<T>(), with)) << "dbias";
        EXPECT_TRUE(p.dx.padding_intact() && p.dw.padding_intact());
      }
}

TYPED_TEST(selective_logprob, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({120, 1, 40, 70}, true);
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.logp.clear(), p.dx.clear(), p.dw.clear(), p.dbias.clear();
    p.template run<B>(ctx);
    return p.bits();
  }));
}

TYPED_TEST(selective_logprob, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t threads : {1u, 3u}) {
    problem<T> p({30, 1, 17, 16}, true, {.ignore_index = -1});
    std::ranges::replace(p.target, -1, 2), std::ranges::replace(p.upstream, 0, 1);
    tigon::thread_pool pool(threads);
    tigon::workspace scratch;
    context of_size(pool, scratch);
    const std::size_t bytes = tigon::selective_logprob_workspace<B, T>(30, 17, 16, of_size);
    EXPECT_TIGON_ERROR(with_workspace_of(
                           bytes - 1, [&](context& ctx) { p.template run<B>(ctx); }, threads),
                       workspace, "selective_logprob_backward: workspace is of", p.dx, p.dw, p.dbias);
    with_workspace_of(
        bytes, [&](context& ctx) { p.template run<B>(ctx); }, threads);
    p.template run<B>(of_size);
    EXPECT_LE(scratch.high_water(), bytes);
  }
}

TEST(selective_logprob_in_f64, differentiates_the_textbook) {
  problem<double> p({6, 1, 4, 7}, true, {.temperature = 0.7});
  const whole_layer policy = p.policy();
  p.run<small_generic>();
  const auto expect = [&](const std::vector<double>& got, std::vector<double> whole_layer::*part) {
    std::vector<std::size_t> at(got.size());
    for (std::size_t k = 0; k < at.size(); ++k) at[k] = k;
    const auto want = central_difference(
        [&](const std::vector<double>& values) {
          whole_layer moved = policy;
          moved.*part = values;
          return p.wanted(moved).loss;
        },
        policy.*part, at);
    EXPECT_TRUE(close(got, want, 1e-9, {.scale = 0.1}));
  };
  expect(p.dx.f64(), &whole_layer::x), expect(p.dw.f64(), &whole_layer::w), expect(p.dbias.f64(), &whole_layer::bias);
}

TEST(selective_logprob_rows, that_do_not_count_are_not_read) {
  problem<float> clean({12, 1, 5, 17}, true), p({12, 1, 5, 17}, true);
  for (auto* q : {&clean, &p}) q->target[4] = 3, q->target[7] = -100, q->target[5] = 2;
  for (std::size_t h = 0; h < 5; ++h) p.x(7, h) = static_cast<float>(nan);
  clean.forward<small_chunks>(), p.forward<small_chunks>();
  EXPECT_EQ(bits_of(p.logp), bits_of(clean.logp));
  EXPECT_EQ(p.logp[7], 0);
  p.x(4, 0) = static_cast<float>(nan);  // u = 0: not read by backward
  clean.run<small_chunks>();
  tigon::selective_logprob_backward<small_chunks>(p.layer(), p.target, p.upstream, p.saved, p.gradients(), p.opt);
  EXPECT_EQ(bits_of(p.dx, p.dw, p.dbias), bits_of(clean.dx, clean.dw, clean.dbias));
  // A row that is read and is no number: that row alone.
  p.x(4, 0) = 1, clean.x(4, 0) = 1;
  p.x(5, 0) = static_cast<float>(infinity);
  clean.run<small_chunks>(), p.run<small_chunks>();
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_TRUE(i == 5 ? std::isnan(p.logp[i]) : p.logp[i] == clean.logp[i]) << i;
    EXPECT_TRUE(i == 5 ? std::isnan(p.dx(i, 1)) : p.dx(i, 1) == clean.dx(i, 1)) << i;
  }
}

TEST(selective_logprob_rows, that_are_certain_keep_their_digits) {
  // log p = -e^-30 in f32, where 1 + e^-30 is 1; and its gradient, where p - 1 is 0.
  problem<float> p({2, 1, 1, 2}, true);
  p.x(0, 0) = p.x(1, 0) = 0, p.bias[0] = 30, p.bias[1] = 0;
  p.target = {0, 1};
  p.upstream[0] = 1, p.upstream[1] = 0;
  p.run<small_chunks>();
  EXPECT_NEAR(p.logp[0] / -std::exp(-30.0), 1, 1e-6);
  EXPECT_FLOAT_EQ(p.logp[1], -30);
  EXPECT_NEAR(p.dbias[0] / std::exp(-30.0), 1, 1e-6);
}

TEST(selective_logprob_rows, none_of_them_counts) {
  problem<float> p({9, 1, 5, 30}, true);
  std::ranges::fill(p.target, -100);
  p.run<small_chunks>();
  for (const auto& zeros : {p.logp.f64(), p.dx.f64(), p.dw.f64(), p.dbias.f64()})
    EXPECT_EQ(std::ranges::count(zeros, 0.0), std::ssize(zeros));
}

TEST(selective_logprob_rows, have_the_same_gradients_one_at_a_time) {
  problem<float> all({12, 1, 5, 17}, true), one({12, 1, 5, 17}, true);
  all.target[7] = one.target[7] = -100;
  all.run<small_chunks>(), one.forward<small_chunks>();
  const auto backward = [&](const auto& to) {
    tigon::selective_logprob_backward<small_chunks>(one.layer(), one.target, one.upstream, one.saved, to, one.opt);
  };
  auto to = one.gradients();
  to.dx = {};
  backward(to);
  EXPECT_EQ(bits_of(one.dw, one.dbias), bits_of(all.dw, all.dbias));
  to = one.gradients();
  to.dw = {}, to.dbias = {};
  backward(to);
  EXPECT_EQ(bits_of(one.dx), bits_of(all.dx));
}

TEST(selective_logprob_rows, of_a_wide_vocabulary) {
  problem<float> p({2, 1, 2, 256000}, true);
  p.target = {255999, 128};
  p.run<small_chunks>();
  const whole_layer policy = p.policy();
  const auto z = policy.logits();
  for (std::size_t i = 0; i < 2; ++i) {
    long double sum = 0;
    for (std::size_t j = 0; j < 256000; ++j) sum += std::exp((long double)z[i * 256000 + j]);
    const double lse = static_cast<double>(std::log(sum));
    EXPECT_NEAR(p.logp[i], z[i * 256000 + static_cast<std::size_t>(p.target[i])] - lse, 2e-6);
    EXPECT_NEAR(p.saved[i].lse(1), lse, 2e-6);
  }
}

TEST(selective_logprob_door, refuses) {
  problem<float> p({3, 1, 4, 6}, true, {.ignore_index = -7});
  p.target = {0, 1, 2};
  std::vector<float> all(64, 1.0f);
  const auto both = [&](tigon::error_code code, const std::string& part,
                        const std::function<void(problem<float>&)>& change, tigon::matrix_view<float> dw) {
    problem<float> q({3, 1, 4, 6}, true, {.ignore_index = -7});
    q.target = {0, 1, 2};
    change(q);
    if (dw.data == nullptr) dw = q.dw.view();
    EXPECT_TRUE(refuses([&] { q.forward<small_chunks>(); }, code, "selective_logprob_forward: " + part, q.logp));
    EXPECT_TRUE(refuses(
        [&] {
          tigon::selective_logprob_backward<small_chunks>(q.layer(), q.target, q.upstream, q.saved,
                                                          {q.dx.view(), dw, q.dbias}, q.opt);
        },
        code, "selective_logprob_backward: " + part, q.dx, q.dw, q.dbias));
  };
  using enum tigon::error_code;
  both(shape, "target is of 2 elements; expected 3", [](auto& q) { q.target.pop_back(); }, {});
  both(shape, "saved is of 2 elements; expected 3", [](auto& q) { q.saved.pop_back(); }, {});
  for (const double bad : {0.0, -1.0, nan, infinity})
    both(argument, "temperature is", [=](auto& q) { q.opt.temperature = bad; }, {});
  // Liger takes logp = -lse for a target that is no class.
  for (const std::int64_t bad : {-1, 6, -100})
    both(index, "target[1] is " + std::to_string(bad) + "; expected at least 0 and below 6",
         [=](auto& q) { q.target[1] = bad; }, {});
  const auto backward = [&](tigon::matrix_view<float> dx, tigon::matrix_view<float> dw, std::span<const float> u) {
    tigon::selective_logprob_backward<small_chunks>(p.layer(), p.target, u, p.saved, {dx, dw, p.dbias}, p.opt);
  };
  EXPECT_TIGON_ERROR(backward(p.x.view(), p.dw.view(), p.upstream), alias, "dx overlaps x", p.x);
  EXPECT_TIGON_ERROR(backward(p.dx.view(), p.w.view(), p.upstream), alias, "dw overlaps w", p.w);
  EXPECT_TIGON_ERROR(backward(p.dx.view(), p.dw.view(), {p.dw.view().data, 3}), alias, "dw overlaps upstream", p.dw);
  EXPECT_TIGON_ERROR(backward(p.dx.view(), p.dw.view(), std::span<const float>(p.upstream).first(2)), shape,
                     "upstream is of 2 elements; expected 3", p.dw);
  EXPECT_TIGON_ERROR((tigon::selective_logprob_forward<small_chunks, float>(
                         {p.x, p.w}, p.target, std::span<float>(p.x.view().data, 3), p.saved, p.opt)),
                     alias, "logp overlaps x", p.x);
}

}  // namespace
