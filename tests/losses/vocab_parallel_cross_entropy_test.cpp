// The contract of include/tigon/losses/vocab_parallel_cross_entropy.hpp, promise by promise. Ranks are threads.
#include <gtest/gtest.h>

#include <tigon/comm/threads.hpp>
#include <tigon/losses/vocab_parallel_cross_entropy.hpp>

#include <deque>
#include <numeric>

#include "support/backends.hpp"
#include "support/complex_step.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/logit_loss.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::communicator_ref, tigon::context, tigon::vocab_shard;
using tigon::smoothing_classes, tigon::smoothing_formula;
using options = tigon::vocab_parallel_cross_entropy_options;
using cuts = std::vector<std::size_t>;  // columns of each rank

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type loss_bound{.f32 = 4e-7, .bf16 = 4e-7, .f16 = 4e-7, .f64 = 2e-15};
constexpr by_type gradient_bound{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-15};

const options plain{}, smooth{.label_smoothing = 0.1},
    partition{.label_smoothing = 0.1, .classes = smoothing_classes::partition},
    megatron{.ignore_index = 0, .label_smoothing = 0.2, .formula = smoothing_formula::megatron}, preset = [] {
      options o = tigon::megatron_cross_entropy;
      o.label_smoothing = 0.05;
      return o;
    }();

/// As many ranks, of as equal a width as there can be.
cuts even(std::size_t vocab, std::size_t ranks) {
  cuts out;
  for (std::size_t r = 0; r < ranks; ++r) out.push_back(vocab * (r + 1) / ranks - vocab * r / ranks);
  return out;
}
std::vector<cuts> all_cuts(std::size_t vocab) {
  const std::size_t some = vocab / 3;
  return {{vocab}, even(vocab, 2), {some, vocab - some, 0}, {0, vocab - some, 0, some, 0}, even(vocab, 5)};
}

/// Loss and gradient of one row by the definition, with the target as the point of reference. The classes that
/// smoothing looks at, and of which the gradient is made, are [first, first + cols); K = 0 stands for none.
double smoothing_mass(const options& opt, std::size_t k) {
  if (opt.formula == smoothing_formula::pytorch || opt.label_smoothing == 0) return opt.label_smoothing;
  return opt.label_smoothing * static_cast<double>(k) / static_cast<double>(k - 1);
}
template <class N>
TIGON_TEST_NOINLINE N loss_of_row(const std::vector<N>& row, std::size_t target, const options& opt, std::size_t first,
                                  std::size_t cols) {
  using real = decltype(std::real(N()));
  const row_of_loss<N> plain_row(row, target, std::vector<double>(row.size(), 1), {});
  const bool global = opt.classes == smoothing_classes::global;
  const std::size_t begin = global ? 0 : first, k = global ? row.size() : cols;
  const real a = static_cast<real>(smoothing_mass(opt, k));
  if (a == 0) return plain_row.minus_log_p;
  N uniform = 0;
  for (std::size_t j = begin; j < begin + k; ++j) uniform += plain_row.lse - row[j];
  return (1 - a) * plain_row.minus_log_p + a / static_cast<real>(k) * uniform;
}

/// One problem, cut among ranks: every buffer at a guard page, outputs full of canaries.
template <class B, class T>
struct problem {
  using A = accumulator_t<T>;
  struct rank {
    guarded_matrix<T> logits, dlogits;
    guarded<A> loss, top, rest;
    vocab_shard shard;
    std::string error;
  };
  options opt;
  std::size_t rows, vocab;
  std::vector<double> values;  // of the logits, as T has them
  guarded<std::int64_t> target;
  guarded<A> upstream;
  std::deque<rank> ranks;

  TIGON_TEST_NOINLINE problem(shape s, const cuts& columns, options o = {}, guard side = guard::behind,
                              double deviation = 2)
      : opt(o),
        rows(s.rows),
        vocab(s.cols),
        values(normal_values(s.rows * s.cols, 1, {0, deviation})),
        target(s.rows, side),
        upstream(random_vector<A>(s.rows, 3, side)) {
    std::ranges::copy(random_labels(rows, vocab, opt.ignore_index, 2), target.begin());
    std::size_t first = 0;
    for (const std::size_t cols : columns) {
      const guarded<A> a_row(rows, side);
      ranks.push_back({guarded_matrix<T>(rows, cols, s.padding, side),
                       guarded_matrix<T>(rows, cols, s.padding, side),
                       guarded<A>(rows, side),
                       guarded<A>(rows, side),
                       guarded<A>(rows, side),
                       {first, vocab},
                       {}});
      first += cols;
    }
    deal();
  }
  /// Gives every rank its part of the values.
  TIGON_TEST_NOINLINE void deal() {
    for (double& v : values) v = to_f64(from_f64<T>(v));
    for (rank& r : ranks)
      for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < r.logits.cols(); ++j)
          r.logits(i, j) = from_f64<T>(values[i * vocab + r.shard.first + j]);
  }
  double& at(std::size_t i, std::size_t j) { return values[i * vocab + j]; }

  TIGON_TEST_NOINLINE void forward_of(rank& r, communicator_ref c, context& ctx) {
    tigon::vocab_parallel_cross_entropy_forward<B>(c, r.logits.view(), r.shard, target, {r.loss, r.top, r.rest}, opt,
                                                   ctx);
  }
  TIGON_TEST_NOINLINE void backward_of(rank& r, tigon::matrix_view<T> to, context& ctx) {
    tigon::vocab_parallel_cross_entropy_backward<B>(r.logits, r.shard, target, upstream, {r.top, r.rest}, to, opt, ctx);
  }
  /// fn(rank, communicator) on a thread for each rank.
  template <class F>
  static void on_all(std::deque<rank>& ranks, F fn) {
    tigon::comm::threads::run(ranks.size(), [&](const tigon::comm::threads& c) { fn(ranks[c.rank()], c); });
  }
  TIGON_TEST_NOINLINE void run() {
    on_all(ranks, [&](rank& r, const tigon::comm::threads& c) {
      forward_of(r, c, tigon::default_context());
      backward_of(r, r.dlogits.view(), tigon::default_context());
    });
  }
  TIGON_TEST_NOINLINE void run_serial(context& ctx = tigon::default_context()) {
    forward_of(ranks[0], tigon::comm::serial{}, ctx);
    backward_of(ranks[0], ranks[0].dlogits.view(), ctx);
  }

  TIGON_TEST_NOINLINE std::vector<double> gradient() const {
    std::vector<double> out(rows * vocab, nan);
    for (const rank& r : ranks)
      for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < r.dlogits.cols(); ++j) out[i * vocab + r.shard.first + j] = to_f64(r.dlogits(i, j));
    return out;
  }
  template <class N>
  std::vector<N> row(const std::vector<N>& z, std::size_t i) const {
    const auto begin = z.begin() + static_cast<std::ptrdiff_t>(i * vocab);
    return {begin, begin + static_cast<std::ptrdiff_t>(vocab)};
  }
  TIGON_TEST_NOINLINE std::vector<double> wanted_loss(const rank& r) const {
    std::vector<double> out;
    for (std::size_t i = 0; i < rows; ++i) {
      const auto z = row(values, i);
      out.push_back(target[i] == opt.ignore_index
                        ? 0
                        : static_cast<double>(loss_of_row(std::vector<long double>(z.begin(), z.end()),
                                                          static_cast<std::size_t>(target[i]), opt, r.shard.first,
                                                          r.logits.cols())));
    }
    return out;
  }
  /// upstream (p - a / K - (1 - a) [j = t]) in long double; at the target from p - 1 in one piece.
  TIGON_TEST_NOINLINE std::vector<double> wanted_gradient() const {
    std::vector<double> out(rows * vocab, 0);
    for (const rank& r : ranks)
      for (std::size_t i = 0; i < rows; ++i) {
        if (target[i] == opt.ignore_index) continue;
        const auto t = static_cast<std::size_t>(target[i]);
        const auto z = row(values, i);
        const row_of_loss<long double> of(std::vector<long double>(z.begin(), z.end()), t,
                                          std::vector<double>(vocab, 1), {});
        const std::size_t k = opt.classes == smoothing_classes::global ? vocab : r.logits.cols();
        const long double a = k == 0 ? 0 : smoothing_mass(opt, k), g = static_cast<long double>(to_f64(upstream[i]));
        for (std::size_t j = r.shard.first; j < r.shard.first + r.logits.cols(); ++j) {
          const long double log_p = static_cast<long double>(z[j]) - of.lse;
          const long double hard =
              j == t ? (1 - a) * std::expm1(-of.minus_log_p) + a * std::exp(log_p) : std::exp(log_p);
          out[i * vocab + j] = static_cast<double>(g * (hard - (k == 0 ? 0 : a / static_cast<long double>(k))));
        }
      }
    return out;
  }
  TIGON_TEST_NOINLINE void expect_wanted() const {
    const comparison with{.may_be_empty = rows == 0};
    for (const rank& r : ranks) {
      EXPECT_TRUE(close(r.loss.f64(), wanted_loss(r), loss_bound.of<T>(), with));
      if (opt.label_smoothing == 0 || opt.classes == smoothing_classes::global) {
        EXPECT_EQ(bits_of(r.loss), bits_of(ranks[0].loss));
      }
      EXPECT_EQ(bits_of(r.top, r.rest), bits_of(ranks[0].top, ranks[0].rest));
      EXPECT_TRUE(r.dlogits.padding_intact());
    }
    EXPECT_TRUE(close(gradient(), wanted_gradient(), gradient_bound.of<T>(), with));
  }
  auto results() const {
    std::vector<std::byte> out;
    for (const rank& r : ranks) {
      const auto bits = bits_of(r.loss, r.top, r.rest, r.dlogits);
      out.insert(out.end(), bits.begin(), bits.end());
    }
    return out;
  }
};

using generic = single_numbers;
template <class P>
using problem_on = problem<typename P::backend, typename P::element>;

template <class On>
class vocab_parallel_cross_entropy : public testing::Test {};
#if defined(TIGON_CONFORMANCE_BACKEND)
using pairs = testing::Types<on<usual_backend, double>, on<usual_backend, float>, on<usual_backend, bfloat16>>;
#else
using pairs = testing::Types<on<generic, double>, on<usual_backend, float>, on<usual_backend, bfloat16>>;
#endif
TYPED_TEST_SUITE(vocab_parallel_cross_entropy, pairs, names);

TYPED_TEST(vocab_parallel_cross_entropy, one_rank_keeps_the_error_and_the_padding) {
  using P = problem_on<TypeParam>;
  for (const shape s : row_shapes<typename TypeParam::backend, typename TypeParam::element>())
    for (const options& opt : {plain, smooth, megatron}) {
      if (s.cols == 1 && opt.formula == smoothing_formula::megatron) continue;
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", smoothing " << opt.label_smoothing << ", " << side);
        P p(s, {s.cols}, opt, side);
        p.run_serial();
        p.expect_wanted();
      }
    }
}

TYPED_TEST(vocab_parallel_cross_entropy, any_cut_keeps_the_error_of_one_rank) {
  using P = problem_on<TypeParam>;
  for (const shape s : {shape{5, 123, 3}, shape{4, 1000}, shape{3, 4}})
    for (const cuts& columns : all_cuts(s.cols))
      for (const options& opt : {plain, smooth, megatron}) {
        SCOPED_TRACE(testing::Message() << s << ", " << columns.size() << " ranks, smoothing " << opt.label_smoothing);
        P p(s, columns, opt);
        p.run();
        p.expect_wanted();
        P one(s, {s.cols}, opt);
        one.run_serial();
        EXPECT_TRUE(
            close(p.ranks[0].loss.f64(), one.ranks[0].loss.f64(), 2 * loss_bound.of<typename TypeParam::element>()));
        if (columns.size() == 1) {
          EXPECT_EQ(p.results(), one.results());
        }
      }
}

TYPED_TEST(vocab_parallel_cross_entropy, partition_smoothing_is_of_each_rank_alone) {
  using P = problem_on<TypeParam>;
  for (const options& opt : {partition, preset})
    for (const cuts& columns : {cuts{123}, even(123, 3), cuts{2, 100, 21}}) {
      SCOPED_TRACE(testing::Message() << columns.size() << " ranks, smoothing " << opt.label_smoothing);
      P p({5, 123, 1}, columns, opt);
      p.run();
      p.expect_wanted();
      // Over all columns the gradient sums to upstream * a * (1 - ranks), not to 0.
      if (columns.size() == 3 && opt.formula == smoothing_formula::pytorch)
        for (std::size_t i = 0; i < 5; ++i) {
          if (p.target[i] == opt.ignore_index) continue;
          const auto row = p.row(p.gradient(), i);
          const double sum = std::accumulate(row.begin(), row.end(), 0.0);
          EXPECT_NEAR(sum, -2 * opt.label_smoothing * to_f64(p.upstream[i]), 2e-2);
        }
    }
}

TYPED_TEST(vocab_parallel_cross_entropy, is_exact_where_the_target_is_confident) {
  using P = problem_on<TypeParam>;
  using T = typename TypeParam::element;
  const double bound = std::same_as<T, double> ? 1e-12 : 1e-6;
  for (const double lift : {16.0, 25.0})
    for (const cuts& columns : {cuts{1000}, even(1000, 3)}) {
      P p({8, 1000}, columns);
      p.target[1] = 7;
      for (std::size_t i = 0; i < 8; ++i) {
        const auto row = p.row(p.values, i);
        p.at(i, static_cast<std::size_t>(p.target[i])) = to_f64(from_f64<T>(*std::ranges::max_element(row) + lift));
      }
      p.deal();
      p.run();
      const auto loss = p.wanted_loss(p.ranks[0]), gradient = p.wanted_gradient(), got = p.gradient();
      double textbook_worst = 0;
      for (std::size_t i = 0; i < 8; ++i) {
        const std::size_t t = i * 1000 + static_cast<std::size_t>(p.target[i]);
        EXPECT_NEAR(to_f64(p.ranks[0].loss[i]) / loss[i], 1, bound);
        EXPECT_NEAR(got[t] / gradient[t], 1, (std::same_as<T, bfloat16> ? 4e-3 : bound));
        // log of the whole sum, as textbooks have it: no digit is left.
        typename P::A sum = 0;
        for (const double v : p.row(p.values, i)) sum += static_cast<typename P::A>(std::exp(v - p.values[t]));
        textbook_worst = std::max(textbook_worst, std::abs(to_f64(std::log(sum)) / loss[i] - 1));
      }
      EXPECT_GT(textbook_worst, (std::same_as<T, double> ? 0 : 1e-2));
    }
}

TYPED_TEST(vocab_parallel_cross_entropy, smoothing_bears_deep_tails) {
  // exp(s_j - m) is 0 here, and its logarithm -inf: a loss made of it is infinite.
  using P = problem_on<TypeParam>;
  for (const options& opt : {smooth, preset}) {
    P p({3, 40}, even(40, 2), opt);
    p.target[1] = 3;
    for (std::size_t i = 0; i < 3; ++i) p.at(i, 20 + i) = 3000;
    p.deal();
    p.run();
    for (const auto& r : p.ranks)
      for (const double loss : r.loss.f64()) EXPECT_TRUE(std::isfinite(loss));
    p.expect_wanted();
  }
}

TYPED_TEST(vocab_parallel_cross_entropy, backward_may_come_again_and_in_place) {
  using P = problem_on<TypeParam>;
  P p({3, 61, 2}, even(61, 3), smooth);
  const auto before = bits_of(p.ranks[1].logits);
  p.run();
  EXPECT_EQ(bits_of(p.ranks[1].logits), before);
  const auto once = p.results();
  for (auto& r : p.ranks) {
    p.backward_of(r, r.dlogits.view(), tigon::default_context());
    p.backward_of(r, r.logits.view(), tigon::default_context());
    EXPECT_EQ(bits_of(r.logits), bits_of(r.dlogits));
  }
  EXPECT_EQ(p.results(), once);
  // One number for all rows.
  using A = typename P::A;
  const guarded<A> half{0.5};
  P one({3, 61}, {61}), each({3, 61}, {61});
  std::ranges::fill(each.upstream, A(0.5));
  each.run_serial(), one.run_serial();
  tigon::vocab_parallel_cross_entropy_backward<typename TypeParam::backend>(
      one.ranks[0].logits, one.ranks[0].shard, one.target, half, {one.ranks[0].top, one.ranks[0].rest},
      one.ranks[0].dlogits.view());
  EXPECT_EQ(one.results(), each.results());
}

TYPED_TEST(vocab_parallel_cross_entropy, ignored_rows_are_not_read) {
  using P = problem_on<TypeParam>;
  for (const std::int64_t ignore : {-100, 0, 2, -123, -300})
    for (options opt : {plain, smooth, preset}) {
      opt.ignore_index = ignore;
      P p({3, 37}, even(37, 2), opt);
      std::ranges::fill(p.target, ignore);
      std::ranges::fill(p.values, nan);
      std::ranges::fill(p.upstream, static_cast<typename P::A>(nan));
      p.deal();
      p.run();
      for (const auto& r : p.ranks)
        for (const auto& zeros : {r.loss.f64(), r.top.f64(), r.rest.f64(), r.dlogits.f64()})
          EXPECT_EQ(std::ranges::count(zeros, 0.0), std::ssize(zeros));
    }
}

TYPED_TEST(vocab_parallel_cross_entropy, bad_rows_stay_alone) {
  using P = problem_on<TypeParam>;
  const auto with = [](std::size_t column, double bad, const cuts& columns) {
    P clean({4, 70}, columns), p({4, 70}, columns);
    for (P* q : {&clean, &p}) std::ranges::fill(q->target, 0);
    p.at(2, column) = bad;
    p.deal();
    clean.run(), p.run();
    const auto got = p.gradient(), wanted = clean.gradient();
    for (const std::size_t i : {0u, 1u, 3u}) {
      EXPECT_EQ(p.ranks[1].loss[i], clean.ranks[0].loss[i]);
      EXPECT_EQ(p.row(got, i), p.row(wanted, i));
    }
    return p;
  };
  for (const cuts& columns : {even(70, 2), cuts{69, 1}, cuts{1, 0, 69}})
    for (const std::size_t column : {0u, 1u, 34u, 35u, 69u})
      for (const double bad : {nan, infinity}) {
        SCOPED_TRACE(testing::Message() << bad << " in column " << column << " of " << columns[0] << " + ...");
        const P p = with(column, bad, columns);
        for (const auto& r : p.ranks) EXPECT_TRUE(std::isnan(r.loss[2]));
        for (const double d : p.row(p.gradient(), 2)) EXPECT_TRUE(std::isnan(d));
      }
  for (const cuts& columns : {even(70, 2), cuts{69, 1}, cuts{1, 0, 69}}) {
    const P other = with(69, -infinity, columns), at_target = with(0, -infinity, columns);
    EXPECT_TRUE(std::isfinite(to_f64(other.ranks[0].loss[2])));
    EXPECT_EQ(other.row(other.gradient(), 2)[69], 0);
    EXPECT_EQ(to_f64(at_target.ranks[1].loss[2]), infinity);
    const auto row = at_target.row(at_target.gradient(), 2);
    EXPECT_EQ(row[0], to_f64(from_f64<typename TypeParam::element>(-to_f64(at_target.upstream[2]))));
    for (const double d : row) EXPECT_TRUE(std::isfinite(d));
    P nothing({1, 70}, columns), hidden({1, 70}, columns);
    nothing.target[0] = hidden.target[0] = 5;
    std::ranges::fill(nothing.values, -infinity);
    hidden.values = nothing.values, hidden.at(0, 69) = nan;
    for (P* p : {&nothing, &hidden}) {  // no class has any mass, and one that is NaN is not overlooked
      p->deal(), p->run();
      for (const auto& r : p->ranks) EXPECT_TRUE(std::isnan(r.loss[0]));
      for (const double d : p->gradient()) EXPECT_TRUE(std::isnan(d));
    }
    P half({1, 70}, columns, smooth);  // -inf where smoothing looks: the loss is infinite, as with one rank
    half.target[0] = 69;
    for (std::size_t j = 0; j < 35; ++j) half.at(0, j) = -infinity;
    half.deal(), half.run();
    EXPECT_EQ(to_f64(half.ranks[0].loss[0]), infinity);
    for (const double d : half.gradient()) EXPECT_TRUE(std::isfinite(d));
  }
}

TYPED_TEST(vocab_parallel_cross_entropy, small_and_wide_vocabularies) {
  using P = problem_on<TypeParam>;
  P one({2, 1}, {0, 1, 0}), none({0, 10}, even(10, 2)), wide({2, 256000}, {100000, 56000, 100000}, smooth);
  one.run(), none.run(), wide.run();
  for (const auto& r : one.ranks) EXPECT_EQ(r.loss.f64(), std::vector<double>(2, 0));
  EXPECT_EQ(one.gradient(), std::vector<double>(2, 0));
  wide.expect_wanted();
}

TYPED_TEST(vocab_parallel_cross_entropy, bits_do_not_depend_on_threads) {
  using P = problem_on<TypeParam>;
  P p({40, 5003}, {5003}, smooth), cut({40, 5003}, {3000, 2003}, smooth);
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    auto& r = p.ranks[0];
    r.dlogits.clear(), r.loss.clear(), r.top.clear(), r.rest.clear();
    p.run_serial(ctx);
    return p.results();
  }));
  cut.run();
  const auto once = cut.results();
  for (const std::size_t threads : {2u, 3u}) {
    P::on_all(cut.ranks, [&](auto& r, const tigon::comm::threads& c) {
      tigon::thread_pool pool(threads);
      tigon::workspace scratch;
      context ctx(pool, scratch);
      cut.forward_of(r, c, ctx);
      cut.backward_of(r, r.dlogits.view(), ctx);
    });
    EXPECT_EQ(cut.results(), once);
  }
}

TEST(vocab_parallel_cross_entropy_gradient, is_that_of_a_complex_step) {
  for (const cuts& columns : {cuts{11}, cuts{4, 2, 5}, cuts{3, 0, 8}})
    for (const smoothing_formula formula : {smoothing_formula::pytorch, smoothing_formula::megatron})
      for (const smoothing_classes classes : {smoothing_classes::global, smoothing_classes::partition})
        for (const double l : {0.0, 0.2, 0.9}) {
          if (l != 0 && classes == smoothing_classes::partition && std::ranges::count(columns, 0u) != 0) continue;
          problem<generic, double> p({4, 11}, columns, {.label_smoothing = l, .formula = formula, .classes = classes});
          p.run();
          const auto got = p.gradient();
          for (const auto& r : p.ranks)
            for (std::size_t i = 0; i < 4; ++i) {
              const auto loss = [&](const auto& z) {
                using N = typename std::remove_cvref_t<decltype(z)>::value_type;
                return p.target[i] == p.opt.ignore_index ? N(0)
                                                         : loss_of_row(z, static_cast<std::size_t>(p.target[i]), p.opt,
                                                                       r.shard.first, r.logits.cols());
              };
              const auto wanted = complex_step(loss, p.row(p.values, i), probes(11));
              for (std::size_t j = r.shard.first; j < r.shard.first + r.logits.cols(); ++j)
                EXPECT_NEAR(got[i * 11 + j], p.upstream[i] * wanted[j], 1e-14);
            }
        }
}

TEST(vocab_parallel_cross_entropy_values, hold_on_another_engine_and_in_f16) {
#if defined(TIGON_TESTS_ENGINES)
  problem<tigon::backends::xsimd, float> p({5, 1003, 3}, {500, 3, 500}, smooth);
  p.run();
  p.expect_wanted();
#endif
  problem<usual_backend, tigon::float16> half({5, 203}, {100, 103}, smooth);
  half.run();
  half.expect_wanted();
}

TEST(vocab_parallel_cross_entropy_edges, gradients_are_never_subnormal) {
  problem<usual_backend, float> p({1, 64}, even(64, 2));
  for (std::size_t j = 0; j < 64; ++j) p.at(0, j) = static_cast<float>(-1.7 * static_cast<double>(j));
  p.target[0] = 0, p.upstream[0] = 1;
  p.deal(), p.run();
  for (const double d : p.gradient()) EXPECT_TRUE(d == 0 || std::isnormal(static_cast<float>(d)));
  EXPECT_GT(p.gradient()[51], 0);
  EXPECT_EQ(p.gradient()[52], 0);
}

TEST(vocab_parallel_cross_entropy_edges, megatron_is_a_preset) {
  EXPECT_EQ(tigon::megatron_cross_entropy.formula, smoothing_formula::megatron);
  EXPECT_EQ(tigon::megatron_cross_entropy.classes, smoothing_classes::partition);
  EXPECT_EQ(tigon::megatron_cross_entropy.label_smoothing, 0);
  EXPECT_EQ(tigon::megatron_cross_entropy.ignore_index, -100);
}

TEST(vocab_parallel_cross_entropy_memory, is_that_of_the_formula) {
  for (const options& opt : {plain, smooth, partition}) {
    problem<usual_backend, float> p({500, 90}, even(90, 3), opt);
    const std::size_t kept = opt.label_smoothing == 0 ? 3 : 4,
                      sent = opt.classes == smoothing_classes::partition ? 3 : kept;
    problem<usual_backend, float>::on_all(p.ranks, [&](auto& r, const tigon::comm::threads& c) {
      tigon::workspace scratch;
      tigon::serial_executor executor;
      context ctx(executor, scratch);
      p.forward_of(r, c, ctx);
      const double formula = 4.0 * static_cast<double>(500 * (kept + 3 * sent) + 30);
      EXPECT_NEAR(static_cast<double>(scratch.high_water()) / formula, 1, 0.02);
      const std::size_t forward = scratch.high_water();
      p.backward_of(r, r.dlogits.view(), ctx);
      EXPECT_EQ(scratch.high_water(), forward);
    });
  }
}

/// The doors. Three ranks, one of which calls with something wrong: all throw the same error and write nothing.
class vocab_parallel_cross_entropy_doors : public testing::Test {
 protected:
  using P = problem<usual_backend, float>;
  using view = tigon::matrix_view<float>;
  struct arguments {
    view logits;
    vocab_shard shard;
    std::vector<std::int64_t> target;
    std::span<float> loss, top, rest;
    options opt;
    std::size_t workspace_bytes = 1 << 16;
  };
  /// spoil(arguments) changes the call of rank `bad`.
  template <class Spoil>
  testing::AssertionResult all_refuse(std::size_t bad, tigon::error_code code, std::string_view part, Spoil spoil) {
    P p({3, 24}, {10, 0, 14});
    const auto before = p.results();
    std::vector<std::string> said(3);
    std::vector<tigon::error_code> codes(3);
    P::on_all(p.ranks, [&](auto& r, const tigon::comm::threads& c) {
      arguments a{r.logits.view(), r.shard, {p.target.begin(), p.target.end()}, r.loss, r.top, r.rest, {}};
      if (c.rank() == bad || bad == 3) spoil(a);
      try {
        with_workspace_of(a.workspace_bytes, [&](context& ctx) {
          tigon::vocab_parallel_cross_entropy_forward(c, a.logits, a.shard, a.target, {a.loss, a.top, a.rest}, a.opt,
                                                      ctx);
        });
      } catch (const tigon::error& e) {
        said[c.rank()] = e.what(), codes[c.rank()] = e.code();
      }
    });
    for (std::size_t r = 0; r < 3; ++r)
      if (said[r] != said[0] || codes[r] != code || said[r].find(part) == std::string::npos)
        return testing::AssertionFailure()
               << "rank " << r << " says \"" << said[r] << "\", rank 0 \"" << said[0] << '"';
    if (p.results() != before) return testing::AssertionFailure() << "something was written";
    return testing::AssertionSuccess();
  }
  template <class Spoil>
  void refuse(tigon::error_code code, const std::string& part, Spoil spoil) {
    for (const std::size_t bad : {0u, 1u, 2u}) {
      SCOPED_TRACE(testing::Message() << "rank " << bad);
      EXPECT_TRUE(all_refuse(bad, code, "vocab_parallel_cross_entropy_forward: " + part, spoil));
    }
  }
};

using tigon::error_code;

TEST_F(vocab_parallel_cross_entropy_doors, a_bad_target_on_one_rank_is_the_error_of_all) {
  for (const std::int64_t t : {std::int64_t{-1}, std::int64_t{24}, std::int64_t{1} << 33}) {
    const std::string sentence =
        "target[2] is " + std::to_string(t) + "; expected at least 0 and below 24, or ignore_index -100";
    refuse(error_code::index, sentence, [=](arguments& a) { a.target[2] = t; });
    EXPECT_TRUE(all_refuse(1, error_code::index, sentence + " (rank 1)", [=](arguments& a) { a.target[2] = t; }));
    EXPECT_TRUE(all_refuse(3, error_code::index, sentence + " (rank 0)", [=](arguments& a) { a.target[2] = t; }));
  }
}

TEST_F(vocab_parallel_cross_entropy_doors, so_is_any_other_fault) {
  refuse(error_code::shape, "loss is of 2 elements; expected 3", [](arguments& a) { a.loss = a.loss.first(2); });
  refuse(error_code::shape, "top is of 2 elements; expected 3", [](arguments& a) { a.top = a.top.first(2); });
  refuse(error_code::shape, "rest is of 2 elements; expected 3", [](arguments& a) { a.rest = a.rest.first(2); });
  refuse(error_code::shape, "target is of 2 elements; expected 3", [](arguments& a) { a.target.pop_back(); });
  refuse(error_code::shape, "vocab is 0; expected at least 1", [](arguments& a) { a.shard.vocab = 0; });
  refuse(error_code::shape, "shard is", [](arguments& a) { a.shard.first = 25; });
  refuse(error_code::shape, "shard is", [](arguments& a) { a.shard.first = ~std::size_t{0}; });
  refuse(error_code::alias, "loss overlaps top", [](arguments& a) { a.top = a.loss; });
  refuse(error_code::alias, "top overlaps rest", [](arguments& a) { a.rest = a.top; });
  refuse(error_code::workspace, "workspace is of", [](arguments& a) { a.workspace_bytes = 64; });
  for (const double bad : {-0.1, 1.0, nan, infinity})
    refuse(error_code::argument, "label_smoothing is", [=](arguments& a) { a.opt.label_smoothing = bad; });
  EXPECT_TRUE(
      all_refuse(0, error_code::stride, "logits is of row stride 9", [](arguments& a) { a.logits.row_stride = 9; }));
  EXPECT_TRUE(all_refuse(2, error_code::alias, "loss overlaps logits",
                         [](arguments& a) { a.loss = std::span(a.logits.data, 3); }));
}

TEST_F(vocab_parallel_cross_entropy_doors, ranks_have_to_agree) {
  const auto differs = [&](const std::string& name, auto spoil) {
    const std::string part = name + " is another on rank ";
    refuse(error_code::state, part, spoil);
  };
  differs("rows", [](arguments& a) {
    a.logits.rows = 2, a.target.pop_back();
    a.loss = a.loss.first(2), a.top = a.top.first(2), a.rest = a.rest.first(2);
  });
  differs("vocab", [](arguments& a) { a.shard.vocab = 25; });
  differs("ignore_index", [](arguments& a) { a.opt.ignore_index = -1, a.target[1] = 0; });
  differs("label_smoothing", [](arguments& a) { a.opt.label_smoothing = 0.1; });
  differs("formula", [](arguments& a) { a.opt.formula = smoothing_formula::megatron; });
  differs("classes", [](arguments& a) { a.opt.classes = smoothing_classes::partition; });
  differs("target", [](arguments& a) { a.target[0] = a.target[0] == 0 ? 1 : 0; });
  // Targets are compared by a hash, in which two rows that differ must not cancel.
  for (std::int64_t first = 0; first < 3; ++first)
    for (std::int64_t last = 0; last < 24; ++last)
      differs("target", [=](arguments& a) { a.target[0] = first, a.target[2] = last; });
  EXPECT_TRUE(all_refuse(2, error_code::state,
                         "shard.first is 9 on rank 2; expected 10, where the shard before it ends",
                         [](arguments& a) { a.shard.first = 9; }));
  EXPECT_TRUE(all_refuse(2, error_code::state, "vocab is 24; expected 23, the columns of all ranks",
                         [](arguments& a) { a.logits.cols = 13; }));
  EXPECT_TRUE(all_refuse(0, error_code::state, "shard.first is 10 on rank 1; expected 9",
                         [](arguments& a) { a.logits.cols = 9; }));
}

TEST_F(vocab_parallel_cross_entropy_doors, smoothing_needs_classes) {
  const auto spread = [](options opt) { return [=](arguments& a) { a.opt = opt; }; };
  EXPECT_TRUE(
      all_refuse(3, error_code::argument, "expected 0 where it is spread over 0 classes (rank 1)", spread(partition)));
  P one({2, 1}, {1}, {.label_smoothing = 0.1, .formula = smoothing_formula::megatron});
  EXPECT_TIGON_ERROR(one.run_serial(), argument, "0 where it is spread over 1 classes, the target among them",
                     one.ranks[0].loss);
  P fine({2, 1}, {1}, smooth);
  fine.run_serial();
  EXPECT_EQ(fine.ranks[0].loss[0], 0);
}

TEST_F(vocab_parallel_cross_entropy_doors, forward_needs_the_workspace_that_it_names) {
  for (const options& opt : {plain, smooth})
    for (const bool ignored : {false, true}) {
      problem<usual_backend, float> p({300, 8}, {8}, opt);
      if (ignored) std::ranges::fill(p.target, opt.ignore_index);
      const auto call = [&](context& ctx) { p.forward_of(p.ranks[0], tigon::comm::serial{}, ctx); };
      const std::size_t bytes = tigon::vocab_parallel_cross_entropy_workspace<usual_backend, float>(300, 8, 1, opt);
      EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, call), workspace, "workspace is of", p.ranks[0].loss);
      with_workspace_of(bytes, call);
      EXPECT_FALSE(p.ranks[0].loss.untouched());
    }
}

TEST_F(vocab_parallel_cross_entropy_doors, backward_refuses) {
  P p({3, 8, 2}, {8});
  p.run_serial();
  auto& r = p.ranks[0];
  r.dlogits.clear();
  const view z = r.logits.view(), dz = r.dlogits.view();
  const std::span<const float> g(p.upstream), top(r.top), rest(r.rest);
  std::vector<std::int64_t> t(p.target.begin(), p.target.end());
  const auto backward = [&](view logits, std::span<const float> up, std::span<const float> m, std::span<const float> d,
                            view to, options opt = {}) {
    tigon::vocab_parallel_cross_entropy_backward(logits, r.shard, t, up, {m, d}, to, opt);
  };
  const std::string name = "vocab_parallel_cross_entropy_backward: ";
  EXPECT_TIGON_ERROR(backward(z, g.first(2), top, rest, dz), shape, name + "upstream is of 2 elements", r.dlogits);
  EXPECT_TIGON_ERROR(backward(z, g, top.first(2), rest, dz), shape, name + "top is of 2 elements", r.dlogits);
  EXPECT_TIGON_ERROR(backward(z, g, top, rest.first(2), dz), shape, name + "rest is of 2 elements", r.dlogits);
  EXPECT_TIGON_ERROR(backward(z, g, top, rest, view(dz.data, 3, 7, 10)), shape, name + "dlogits is 3 x 7", r.dlogits);
  EXPECT_TIGON_ERROR(backward(z, g, top, rest, view(z.data + 1, 3, 8, 9)), alias, name + "dlogits overlaps logits",
                     r.logits);
  EXPECT_TIGON_ERROR(backward(z, {dz.data, 3}, top, rest, dz), alias, name + "dlogits overlaps upstream", r.dlogits);
  EXPECT_TIGON_ERROR(backward(z, g, {dz.data, 3}, rest, dz), alias, name + "dlogits overlaps top", r.dlogits);
  EXPECT_TIGON_ERROR(backward(z, g, top, {dz.data, 3}, dz), alias, name + "dlogits overlaps rest", r.dlogits);
  EXPECT_TIGON_ERROR(backward(z, g, top, rest, dz, {.label_smoothing = 2}), argument, name + "label_smoothing is 2",
                     r.dlogits);
  t[1] = 8;
  EXPECT_TIGON_ERROR(backward(z, g, top, rest, dz), index, name + "target[1] is 8; expected at least 0 and below 8",
                     r.dlogits);
}

}  // namespace
