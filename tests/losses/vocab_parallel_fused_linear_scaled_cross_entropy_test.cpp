// The contract of include/tigon/losses/vocab_parallel_fused_linear_scaled_cross_entropy.hpp, promise by promise. Ranks
// are threads.
#include <gtest/gtest.h>

#include <tigon/losses/vocab_parallel_fused_linear_scaled_cross_entropy.hpp>

#include "support/backends.hpp"
#include "support/chunk_backends.hpp"
#include "support/linear_scaled_cross_entropy.hpp"
#include "support/linear_shards.hpp"
#include "support/logit_loss.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::error_code, tigon::gradient;
using tigon::backends::small_chunks;
using options = tigon::vocab_parallel_fused_linear_scaled_cross_entropy_options;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

const linear_sizes every_size[] = {{0, 5, 7}, {1, 1, 1}, {5, 3, 2, 1}, {3, 0, 9}, {7, 33, 65, 3}, {40, 16, 123}};

struct variant {
  const char* name;
  std::size_t of_nll, of_entropy;  ///< upstream numbers: 0 none, 1 one, 2 one a row
  options opt;
  bool biased = false;
  gradient mode = gradient::overwrite;
};
const variant variants[] = {
    {"nll", 2, 0, {}},
    {"entropy, biased, added", 0, 2, {.temperature = 2}, true, gradient::accumulate},
    {"both", 2, 2, {.temperature = 0.7, .ignore_index = 0}, true},
    {"both, one number each", 1, 1, {.temperature = 1.5}},
};

// In units of |reference| + its root mean square, as the loss of one rank has them.
constexpr by_type result_bound{.f32 = 2e-6, .bf16 = 2e-6, .f16 = 2e-6, .f64 = 4e-15};
constexpr by_type gradient_bound{.f32 = 2e-5, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 6e-14};

/// The whole problem, whose w, dw, bias and dbias the ranks share out; results and dx each rank has for itself.
template <class T>
struct problem : linear_problem<T> {
  using A = accumulator_t<T>;
  struct results {
    guarded<A> nll, entropy, lse;
    guarded_matrix<T> dx;
  };
  linear_sizes s;
  variant v;
  cuts columns;
  guarded<std::int64_t> target;
  guarded<A> of_nll, of_entropy;
  std::deque<results> of;

  TIGON_TEST_NOINLINE problem(linear_sizes sizes, const variant& which, const cuts& split)
      : linear_problem<T>(sizes, which.biased, which.mode),
        s(sizes),
        v(which),
        columns(split),
        target(s.rows),
        of_nll(random_vector<A>(numbers(v.of_nll), 3)),
        of_entropy(random_vector<A>(numbers(v.of_entropy), 4)) {
    std::ranges::copy(random_labels(s.rows, s.vocab, v.opt.ignore_index, 5), target.begin());
    for (std::size_t r = 0; r < columns.size(); ++r)
      of.push_back(
          {guarded<A>(s.rows), guarded<A>(s.rows), guarded<A>(s.rows), guarded_matrix<T>(s.rows, s.hidden, s.padding)});
  }
  std::size_t numbers(std::size_t which) const { return which == 2 ? s.rows : which; }
  tigon::scaled_cross_entropy_upstream<A> upstream() const {
    return {v.of_nll == 0 ? std::span<const A>() : of_nll, v.of_entropy == 0 ? std::span<const A>() : of_entropy};
  }

  template <class B>
  TIGON_TEST_NOINLINE void run_rank(tigon::communicator_ref c, context& ctx) {
    results& own = of[c.rank()];
    const layer_part<T> part(*this, columns, c.rank(), own.dx.view());
    tigon::vocab_parallel_fused_linear_scaled_cross_entropy_forward<B, T>(
        c, part.layer, target, {own.nll, own.entropy, own.lse}, part.gradients, v.opt, upstream(), ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void run(std::size_t threads = 1) {
    on_ranks(
        columns.size(), [&](const tigon::comm::threads& c, context& ctx) { run_rank<B>(c, ctx); }, threads);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward() {
    on_ranks(columns.size(), [&](const tigon::comm::threads& c, context& ctx) {
      const layer_part<T> part(*this, columns, c.rank(), of[c.rank()].dx.view());
      tigon::vocab_parallel_fused_linear_scaled_cross_entropy_backward<B, T>(c, part.layer, target, upstream(),
                                                                             part.gradients, v.opt, ctx);
    });
  }
  template <class B>
  void forward(context& ctx) {
    run_rank<B>(tigon::comm::serial{}, ctx);
  }
  void clear() {
    this->clear_gradients();
    for (results& r : of) r.nll.clear(), r.entropy.clear(), r.lse.clear(), r.dx.clear();
  }
  auto bits() const {
    auto out = bits_of(this->dw, this->dbias);
    for (const results& r : of) {
      const auto more = bits_of(r.nll, r.entropy, r.lse, r.dx);
      out.insert(out.end(), more.begin(), more.end());
    }
    return out;
  }

  /// The definition in long double with all logits at once, the target as the point of reference.
  struct reference : layer_gradients {
    std::vector<double> nll, entropy, lse;
  };
  TIGON_TEST_NOINLINE reference wanted() const {
    using N = long double;
    const whole_layer layer = this->layer();
    const std::vector<double> logits = layer.logits();
    const auto of_row = [&](const guarded<A>& numbers, std::size_t i) -> N {
      return numbers.size() == 0 ? 0 : static_cast<N>(to_f64(numbers[numbers.size() == 1 ? 0 : i]));
    };
    const N t = v.opt.temperature;
    reference out{this->before(), {}, {}, {}};
    for (std::size_t i = 0; i < s.rows; ++i) {
      if (target[i] == v.opt.ignore_index) {
        for (auto* to : {&out.nll, &out.entropy, &out.lse}) to->push_back(0);
        continue;
      }
      const auto at = static_cast<std::size_t>(target[i]);
      const double* z = logits.data() + i * s.vocab;
      N others = 0, entropy = 0;
      for (std::size_t j = 0; j < s.vocab; ++j)
        if (j != at) others += std::exp((static_cast<N>(z[j]) - z[at]) / t);
      const N nll = std::log1p(others);
      const auto log_p = [&](std::size_t j) { return (static_cast<N>(z[j]) - z[at]) / t - nll; };
      for (std::size_t j = 0; j < s.vocab; ++j) entropy -= std::exp(log_p(j)) * log_p(j);
      out.nll.push_back(static_cast<double>(nll)), out.entropy.push_back(static_cast<double>(entropy));
      out.lse.push_back(static_cast<double>(z[at] / t + nll));
      for (std::size_t j = 0; j < s.vocab; ++j) {
        const N p = std::exp(log_p(j)), hard = j == at ? std::expm1(-nll) : p;
        const N d = (of_row(of_nll, i) * hard - of_row(of_entropy, i) * p * (log_p(j) + entropy)) / t;
        add_logit_gradient(out, layer, i, j, static_cast<double>(d));
      }
    }
    return out;
  }
  TIGON_TEST_NOINLINE void expect_wanted(const reference& r) {
    const comparison with{.scale = 1e-3, .may_be_empty = true};
    for (const results& own : of) {
      EXPECT_EQ(bits_of(own.nll, own.entropy, own.lse, own.dx), bits_of(of[0].nll, of[0].entropy, of[0].lse, of[0].dx));
      EXPECT_TRUE(own.dx.padding_intact());
    }
    EXPECT_TRUE(close(of[0].nll.f64(), r.nll, result_bound.of<T>(), with)) << "nll";
    EXPECT_TRUE(close(of[0].entropy.f64(), r.entropy, result_bound.of<T>(), with)) << "entropy";
    EXPECT_TRUE(close(of[0].lse.f64(), r.lse, result_bound.of<T>(), with)) << "lse";
    for (std::size_t i = 0; i < s.rows; ++i)
      for (std::size_t h = 0; h < s.hidden; ++h) this->dx(i, h) = of[0].dx(i, h);
    // A vocabulary of one class has no gradient.
    expect_layer_gradients(*this, r, gradient_bound.of<T>(), {.scale = s.vocab == 1 ? 1.0 : 0});
  }
};

#if defined(TIGON_CONFORMANCE_BACKEND)
using pairs = testing::Types<on<usual_backend, float>, on<small_chunks, bfloat16>>;
#else
using pairs = testing::Types<on<single_numbers, double>, on<small_chunks, float>, on<small_chunks, bfloat16>>;
#endif

template <class On>
class vocab_parallel_fused_linear_scaled : public testing::Test {};
TYPED_TEST_SUITE(vocab_parallel_fused_linear_scaled, pairs, names);

TYPED_TEST(vocab_parallel_fused_linear_scaled, keeps_its_error_for_any_cut) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const linear_sizes s : every_size)
    for (const variant& v : variants)
      for (const cuts& columns : all_cuts(s.vocab)) {
        SCOPED_TRACE(testing::Message() << s << ", " << v.name << ", " << columns.size() << " ranks");
        problem<T> p(s, v, columns), q(s, v, columns);
        const auto wanted = p.wanted();
        p.template run<B>();
        q.template backward<B>();
        for (std::size_t r = 0; r < columns.size(); ++r) {
          EXPECT_EQ(bits_of(q.of[r].dx), bits_of(p.of[r].dx)) << "backward is another computation than forward";
          EXPECT_TRUE(s.rows == 0 || q.of[r].nll.untouched());
        }
        EXPECT_EQ(bits_of(q.dw, q.dbias), bits_of(p.dw, p.dbias));
        p.expect_wanted(wanted);
      }
}

TYPED_TEST(vocab_parallel_fused_linear_scaled, ignored_rows_contribute_nothing_and_bad_ones_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants) {
    const linear_sizes s{20, 17, 67, 2};
    problem<T> p(s, v, {30, 0, 37}), zeros(s, v, {30, 0, 37});
    for (const std::size_t i : {1, 7, 19}) {
      p.target[i] = zeros.target[i] = v.opt.ignore_index;
      for (std::size_t h = 0; h < 17; ++h) zeros.x(i, h) = from_f64<T>(0), p.x(i, h) = from_f64<T>(nan);
    }
    p.template run<B>(), zeros.template run<B>();
    EXPECT_EQ(p.bits(), zeros.bits());
    EXPECT_EQ(to_f64(p.of[2].dx(7, 3)), 0);
    problem<T> bad(s, v, {30, 0, 37});
    for (const std::size_t i : {1, 7, 19}) bad.target[i] = v.opt.ignore_index;
    bad.x(4, 2) = from_f64<T>(nan);
    bad.template run<B>();
    for (std::size_t i = 0; i < 20; ++i) {
      EXPECT_TRUE(i == 4 ? std::isnan(bad.of[1].nll[i]) && std::isnan(bad.of[1].entropy[i])
                         : bad.of[1].nll[i] == p.of[0].nll[i] && bad.of[1].entropy[i] == p.of[0].entropy[i])
          << i;
      EXPECT_EQ(std::isnan(to_f64(bad.of[2].dx(i, 5))), i == 4);
    }
  }
}

TYPED_TEST(vocab_parallel_fused_linear_scaled, rows_do_not_depend_on_which_others_count) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using P = problem<T>;
  const linear_sizes s{130, 40, 67, 1};
  const cuts columns{30, 0, 37};
  auto of = rows_of_scaled_cross_entropy<P>(s, [=] { return P(s, variants[2], columns); });
  of.results = [](const P& p, std::size_t i) { return scaled_results_of(p.of[1], i, p.s.hidden); };
  of.call = [=](P& p, context& like) {
    on_ranks_with_workspace(
        columns.size(), like,
        [&](std::size_t rank, context& ctx) {
          return tigon::vocab_parallel_fused_linear_scaled_cross_entropy_workspace<B, T>(
              s.rows, s.hidden, columns[rank], s.vocab, columns.size(), ctx);
        },
        [&](const tigon::comm::threads& c, context& ctx) { p.template run_rank<B>(c, ctx); });
  };
  of.bytes = [](context&) { return std::size_t{0}; };
  of.chunk = 100;
  expect_rows_for_themselves(of);
}

TEST(ignored_rows, are_not_multiplied) {
  using P = problem<float>;
  const linear_sizes s{40, 16, 123};
  auto of = rows_of_scaled_cross_entropy<P>(s, [=] { return P(s, variants[2], {123}); });
  of.call = [](P& p, context& ctx) { p.forward<tigon::backends::small_counting>(ctx); };
  of.bytes = [](context&) { return std::size_t{1} << 20; };
  expect_products_of_kept_rows(of, counted.multiplications, 3 * 16 * 123);
}

TYPED_TEST(vocab_parallel_fused_linear_scaled, classes_of_minus_infinity_have_no_share) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({9, 5, 30}, variants[2], {10, 5, 15});
  for (std::size_t j = 10; j < 15; ++j) p.bias[j] = from_f64<T>(-infinity);  // all that rank 1 has
  for (auto& t : p.target) t = t >= 10 && t < 15 ? 20 : t;
  p.target[3] = 12;
  p.template run<B>();
  for (std::size_t i = 0; i < 9; ++i) {
    EXPECT_TRUE(std::isfinite(p.of[0].entropy[i])) << i;
    EXPECT_EQ(std::isinf(p.of[0].nll[i]), i == 3);
    for (std::size_t h = 0; h < 5; ++h) EXPECT_TRUE(std::isfinite(to_f64(p.of[2].dx(i, h)))) << i;
  }
}

TYPED_TEST(vocab_parallel_fused_linear_scaled, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> one({60, 24, 300}, variants[2], {300});
  EXPECT_TRUE(same_forward_for_any_threads<B>(one));
  problem<T> p({60, 24, 300}, variants[2], {120, 0, 180}), q({60, 24, 300}, variants[2], {120, 0, 180});
  p.template run<B>(1), q.template run<B>(3);
  EXPECT_EQ(p.bits(), q.bits());
}

TYPED_TEST(vocab_parallel_fused_linear_scaled, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({20, 17, 67}, variants[2], {67});
  expect_takes_its_workspace(
      "vocab_parallel_fused_linear_scaled_cross_entropy_forward", p,
      [](context& ctx) {
        return tigon::vocab_parallel_fused_linear_scaled_cross_entropy_workspace<B, T>(20, 17, 67, 67, 1, ctx);
      },
      [&](context& ctx) { p.template forward<B>(ctx); });
  const cuts columns{30, 0, 37};
  problem<T> q({20, 17, 67}, variants[2], columns);
  tigon::comm::threads::run(3, [&](const tigon::comm::threads& c) {
    const std::size_t bytes =
        tigon::vocab_parallel_fused_linear_scaled_cross_entropy_workspace<B, T>(20, 17, columns[c.rank()], 67, 3);
    with_workspace_of(bytes, [&](context& ctx) { q.template run_rank<B>(c, ctx); });
  });
  EXPECT_FALSE(q.of[1].nll.untouched());
}

/// A token of which the model is sure keeps the digits of its loss and entropy, wherever the others are.
TEST(tokens, that_are_sure_keep_their_digits) {
  for (const cuts& columns : {cuts{1000}, cuts{3, 1, 996}, cuts{500, 500}}) {
    problem<float> p({1, 1, 1000}, variants[3], columns);
    p.x(0, 0) = 1, p.target[0] = 3, p.v.opt.temperature = 1;
    for (std::size_t j = 0; j < 1000; ++j) p.w(j, 0) = static_cast<float>(j * 37 % 97) / 32;
    p.w(3, 0) = 24;
    const auto wanted = p.wanted();
    p.run<small_chunks>();
    EXPECT_NEAR(p.of[0].nll[0] / wanted.nll[0], 1, 1e-6);
    EXPECT_NEAR(p.of[0].entropy[0] / wanted.entropy[0], 1, 1e-6);
  }
}

TEST(doors, of_all_ranks_throw_the_error_of_one) {
  struct arguments {
    tigon::linear_shard<float> part;
    tigon::linear_gradients<float> to;
    std::vector<std::int64_t> target;
    std::span<float> nll, entropy;
    options opt;
    std::size_t workspace_bytes = 1 << 20;
    bool upstream = true;
  };
  const auto refuse = [](error_code code, const std::string& part, auto spoil) {
    for (const std::size_t bad : {0u, 1u, 2u}) {
      SCOPED_TRACE(testing::Message() << "rank " << bad);
      problem<float> p({4, 6, 24}, variants[2], {10, 0, 14});
      for (std::size_t i = 0; i < 4; ++i) p.target[i] = static_cast<std::int64_t>(i) + 3;
      const auto before = p.bits();
      EXPECT_TRUE(all_ranks_refuse(code, part, [&](const tigon::comm::threads& c, context&) {
        auto& own = p.of[c.rank()];
        const layer_part<float> mine(p, p.columns, c.rank(), own.dx.view());
        arguments a{mine.layer, mine.gradients, {p.target.begin(), p.target.end()}, own.nll, own.entropy, p.v.opt};
        if (c.rank() == bad) spoil(a);
        with_workspace_of(a.workspace_bytes, [&](context& ctx) {
          tigon::vocab_parallel_fused_linear_scaled_cross_entropy_forward<usual_backend, float>(
              c, a.part, a.target, {a.nll, a.entropy}, a.to, a.opt,
              a.upstream ? p.upstream() : tigon::scaled_cross_entropy_upstream<float>{}, ctx);
        });
      }));
      EXPECT_EQ(p.bits(), before) << "something was written";
    }
  };
  using enum error_code;
  const std::string name = "vocab_parallel_fused_linear_scaled_cross_entropy_forward: ";
  refuse(index, name + "target[2] is 24; expected at least 0 and below 24", [](arguments& a) { a.target[2] = 24; });
  refuse(shape, name + "shard is", [](arguments& a) { a.part.shard.first = 25; });
  refuse(shape, name + "nll is of 3 elements; expected 4", [](arguments& a) { a.nll = a.nll.first(3); });
  refuse(shape, name + "upstream is empty", [](arguments& a) { a.upstream = false; });
  refuse(alias, name + "entropy overlaps nll", [](arguments& a) { a.entropy = a.nll; });
  refuse(argument, name + "temperature is 0", [](arguments& a) { a.opt.temperature = 0; });
  refuse(workspace, name + "workspace is of", [](arguments& a) { a.workspace_bytes = 64; });
  refuse(state, name + "temperature is another on rank ", [](arguments& a) { a.opt.temperature = 2; });
  refuse(state, name + "ignore_index is another on rank ", [](arguments& a) { a.opt.ignore_index = -3; });
  refuse(state, name + "target is another on rank ", [](arguments& a) { a.target[0] = a.target[0] == 2 ? 1 : 2; });
  refuse(state, name + "the choice of dx is another on rank ", [](arguments& a) { a.to.dx = {}; });
}

}  // namespace
