// The contract of include/tigon/ops/expert_parallel_moe.hpp, promise by promise. Ranks are threads.
#include <gtest/gtest.h>

#include <tigon/comm/threads.hpp>
#include <tigon/ops/expert_parallel_moe.hpp>

#include <deque>
#include <mutex>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/moe_problem.hpp"
#include "support/scratch.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace tigon::backends {
inline namespace TIGON_ABI {

/// A few pairs at a time.
using few_pairs = small_chunks_of<test::usual_backend, 4096>;

}  // namespace TIGON_ABI
}  // namespace tigon::backends

namespace {

using namespace tigon::test;
using tigon::bfloat16, tigon::context, tigon::gate_layout, tigon::gradient, tigon::matrix_view, tigon::moe_options,
    tigon::moe_pass;
using tigon::backends::few_pairs;
using tigon::comm::threads;

/// The same problem for all ranks together, and dealt out to each.
template <class B, class T>
struct problem {
  using whole_problem = moe_problem<T>;
  whole_problem whole;
  std::size_t ranks;
  std::deque<whole_problem> part;

  TIGON_TEST_NOINLINE problem(moe_sizes s, std::size_t count, moe_options opt = {}) : whole(s, opt), ranks(count) {
    for (std::size_t r = 0; r < ranks; ++r) {
      moe_sizes own = s;
      own.tokens /= ranks, own.experts /= ranks;
      part.emplace_back(own, opt);
      whole_problem& p = part.back();
      for (auto [to, from] : {std::pair{&p.x, &whole.x}, {&p.dy, &whole.dy}, {&p.weights, &whole.weights}})
        take(*to, *from, r);
      take(p.indices, whole.indices, r);
      take(p.gate_up, whole.gate_up, r), take(p.down, whole.down, r);
      take(p.dgate_up, whole.dgate_up, r), take(p.ddown, whole.ddown, r);
    }
  }
  template <class M>
  static void take(M& to, const M& from, std::size_t r) {
    for (std::size_t i = 0; i < to.rows(); ++i)
      for (std::size_t j = 0; j < to.cols(); ++j) to(i, j) = from(r * to.rows() + i, j);
  }
  TIGON_TEST_NOINLINE void at_once() {
    tigon::moe_forward_inference<B, T>(whole.x, whole.choices(), whole.experts(), whole.y.view(), whole.opt);
    tigon::moe_backward_recompute<B, T>(whole.dy, whole.x, whole.choices(), whole.experts(), whole.all(), whole.opt);
  }
  /// change(rank, gradients) may leave some out.
  template <class Change>
  TIGON_TEST_NOINLINE void by_ranks(Change change, std::size_t workers = 1) {
    threads::run(ranks, [&](const threads& c) {
      whole_problem& p = part[c.rank()];
      auto to = p.all();
      change(c.rank(), to);
      tigon::thread_pool pool(workers);
      tigon::workspace scratch;
      context ctx(pool, scratch);
      tigon::expert_parallel_moe_forward<B, T>(c, p.x, p.choices(), p.experts(), p.y.view(), p.opt, ctx);
      tigon::expert_parallel_moe_backward<B, T>(c, p.dy, p.x, p.choices(), p.experts(), to, p.opt, ctx);
    });
  }
  /// Rows of all ranks, one behind the other.
  template <class M>
  std::vector<double> all(M member) const {
    std::vector<double> out;
    for (const whole_problem& p : part) {
      const auto own = (p.*member).f64();
      out.insert(out.end(), own.begin(), own.end());
    }
    return out;
  }
  TIGON_TEST_NOINLINE void expect_the_same() const {
    EXPECT_EQ(all(&whole_problem::y), whole.y.f64());
    EXPECT_EQ(all(&whole_problem::dx), whole.dx.f64());
    EXPECT_EQ(all(&whole_problem::dweights), whole.dweights.f64());
    EXPECT_EQ(all(&whole_problem::dgate_up), whole.dgate_up.f64());
    EXPECT_EQ(all(&whole_problem::ddown), whole.ddown.f64());
    for (const whole_problem& p : part)
      EXPECT_TRUE(p.y.padding_intact() && p.dx.padding_intact() && p.dweights.padding_intact() &&
                  p.dgate_up.padding_intact() && p.ddown.padding_intact());
  }
};
const auto everything = [](std::size_t, auto&) {};

template <class On>
class expert_parallel_moe : public testing::Test {};
using some_pairs = testing::Types<on<usual_backend, float>, on<few_pairs, float>, on<few_pairs, bfloat16>>;
TYPED_TEST_SUITE(expert_parallel_moe, some_pairs, names);

TYPED_TEST(expert_parallel_moe, has_the_bits_of_one_rank) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const moe_sizes& s :
       {moe_sizes{24, 2, 12, 17, 9, 1}, moe_sizes{36, 3, 6, 33, 21}, moe_sizes{12, 4, 12, 8, 5, 0, chosen::few},
        moe_sizes{48, 2, 6, 5, 12, 2, chosen::one_expert}, moe_sizes{0, 2, 6, 5, 4}, moe_sizes{6, 0, 6, 5, 4}})
    for (const moe_options& opt : {moe_options{}, moe_options{gate_layout::interleaved, gradient::accumulate}})
      for (const std::size_t ranks : {1u, 2u, 3u, 6u}) {
        SCOPED_TRACE(testing::Message() << s << ", ranks " << ranks);
        problem<B, T> p(s, ranks, opt);
        p.at_once();
        p.by_ranks(everything, ranks == 2 ? 3 : 1);
        p.expect_the_same();
      }
}

TYPED_TEST(expert_parallel_moe, each_gradient_may_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using one = moe_problem<T>;
  const moe_sizes s{12, 2, 4, 7, 5};
  problem<B, T> full(s, 2);
  full.by_ranks(everything);
  for (int which = 0; which < 16; ++which) {
    problem<B, T> p(s, 2);
    p.by_ranks([&](std::size_t rank, auto& to) {
      if (!(which & 1)) to.dx = {};
      if (!(which & 2) && rank == 0) to.dgate_up = {};  // of weights each rank may choose
      if (!(which & 4)) to.ddown = {};
      if (!(which & 8)) to.dweights = {};
    });
    const auto same = [&](bool made, auto member, std::size_t rank) {
      const auto& got = p.part[rank].*member;
      EXPECT_TRUE(made ? bits_of(got) == bits_of(full.part[rank].*member) : got.untouched()) << which << rank;
    };
    for (const std::size_t rank : {0u, 1u}) {
      same(which & 1, &one::dx, rank), same(which & 4, &one::ddown, rank), same(which & 8, &one::dweights, rank);
      same((which & 2) || rank == 1, &one::dgate_up, rank);
    }
  }
}

TYPED_TEST(expert_parallel_moe, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<B, T> p({24, 2, 6, 17, 9, 0, chosen::few}, 3);
  const tigon::moe_shape own = p.part[0].s;
  const auto bytes = [&](moe_pass pass) {
    return tigon::expert_parallel_moe_workspace<B, T, T, T, std::int32_t>(pass, own, 3);
  };
  for (const std::size_t less : {0u, 1u}) {
    std::mutex lock;
    std::vector<std::string> refused;
    const auto attempt = [&](auto call) {
      try {
        call();
      } catch (const tigon::error& e) {
        const std::lock_guard guard(lock);
        refused.emplace_back(e.what());
      }
    };
    threads::run(3, [&](const threads& c) {
      auto& q = p.part[c.rank()];
      // One rank alone has too little, and all refuse.
      const std::size_t missing = c.rank() == 1 ? less : 0;
      attempt([&] {
        with_workspace_of(bytes(moe_pass::inference) - missing, [&](context& ctx) {
          tigon::expert_parallel_moe_forward<B, T>(c, q.x, q.choices(), q.experts(), q.y.view(), q.opt, ctx);
        });
      });
      attempt([&] {
        with_workspace_of(bytes(moe_pass::recompute) - missing, [&](context& ctx) {
          tigon::expert_parallel_moe_backward<B, T>(c, q.dy, q.x, q.choices(), q.experts(), q.all(), q.opt, ctx);
        });
      });
    });
    EXPECT_EQ(refused.size(), less == 0 ? 0u : 6u);
    for (const std::string& sentence : refused) EXPECT_NE(sentence.find("workspace is of"), sentence.npos) << sentence;
  }
}

// Where weights are frozen, on one rank or on all, the other results have their bits, and no sums are taken.
TYPED_TEST(expert_parallel_moe, has_no_sums_of_frozen_weights) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using tigon::parameters;
  const moe_sizes s{48, 2, 4, 17, 9, 1, chosen::few};
  problem<B, T> full(s, 2);
  full.by_ranks(everything);
  const auto bytes = [&](parameters of) {
    return tigon::expert_parallel_moe_workspace<B, T, T, T, std::int32_t>(moe_pass::recompute, full.part[0].s, 2, 1,
                                                                          of);
  };
  EXPECT_LE(bytes(parameters::frozen), bytes(parameters::trained));
  if (std::same_as<T, bfloat16>) {  // an expert has several chunks, and sums beside the gradient
    EXPECT_LT(bytes(parameters::frozen), bytes(parameters::trained));
  }
  for (const std::size_t first_frozen : {0u, 1u, 2u}) {  // the ranks from it on
    SCOPED_TRACE(first_frozen);
    problem<B, T> p(s, 2);
    threads::run(2, [&](const threads& c) {
      auto& q = p.part[c.rank()];
      auto to = q.all();
      const bool frozen = c.rank() >= first_frozen;
      if (frozen) to.dgate_up = {}, to.ddown = {};
      with_workspace_of(bytes(frozen ? parameters::frozen : parameters::trained), [&](context& ctx) {
        tigon::expert_parallel_moe_backward<B, T>(c, q.dy, q.x, q.choices(), q.experts(), to, q.opt, ctx);
      });
    });
    for (const std::size_t rank : {0u, 1u}) {
      const auto &got = p.part[rank], &want = full.part[rank];
      EXPECT_EQ(bits_of(got.dx, got.dweights), bits_of(want.dx, want.dweights)) << rank;
      if (rank >= first_frozen) {
        EXPECT_TRUE(got.dgate_up.untouched() && got.ddown.untouched()) << rank;
      } else {
        EXPECT_EQ(bits_of(got.dgate_up, got.ddown), bits_of(want.dgate_up, want.ddown)) << rank;
      }
    }
  }
}

// Biases of the experts of a rank, in the gate of gpt-oss: the bits of one rank, within the workspace that is named.
TEST(expert_parallel_moe_biases, have_the_bits_of_one_rank) {
  using T = bfloat16;
  using B = few_pairs;
  const moe_sizes s{36, 3, 6, 33, 21, 1, chosen::few};
  constexpr std::size_t ranks = 3;
  const tigon::expert_parallel_moe_options_for<tigon::swiglu_options> opt{
      gate_layout::interleaved, gradient::accumulate, {.limit = 0.7, .slope = 1.702, .up_offset = 1}};
  problem<B, T> p(s, ranks, {opt.layout, opt.dw});
  struct biases {
    guarded_matrix<T> gate_up, down, dgate_up, ddown;
    explicit biases(moe_sizes of)
        : gate_up(random_matrix<T>({of.experts, 2 * of.intermediate, 1}, 11)),
          down(random_matrix<T>({of.experts, of.hidden, 1}, 12)),
          dgate_up(random_matrix<T>({of.experts, 2 * of.intermediate, 1}, 13)),
          ddown(random_matrix<T>({of.experts, of.hidden, 1}, 14)) {}
    tigon::moe_weights<T> with(tigon::moe_weights<T> w) {
      w.gate_up_bias = gate_up.view(), w.down_bias = down.view();
      return w;
    }
    tigon::moe_gradients<T, T, T> with(tigon::moe_gradients<T, T, T> to) {
      to.dgate_up_bias = dgate_up.view(), to.ddown_bias = ddown.view();
      return to;
    }
  };
  biases whole(s);
  std::deque<biases> part;
  for (std::size_t r = 0; r < ranks; ++r) {
    biases& own = part.emplace_back(p.part[r].s);
    for (const auto m : {&biases::gate_up, &biases::down, &biases::dgate_up, &biases::ddown})
      p.take(own.*m, whole.*m, r);
  }
  tigon::moe_forward_inference<B, T>(p.whole.x, p.whole.choices(), whole.with(p.whole.experts()), p.whole.y.view(),
                                     opt);
  tigon::moe_backward_recompute<B, T>(p.whole.dy, p.whole.x, p.whole.choices(), whole.with(p.whole.experts()),
                                      whole.with(p.whole.all()), opt);
  const auto bytes = [&](moe_pass pass) {
    return tigon::expert_parallel_moe_workspace<B, T, T, T, std::int32_t>(pass, p.part[0].s, ranks, 1,
                                                                          tigon::parameters::trained, true);
  };
  threads::run(ranks, [&](const threads& c) {
    auto& q = p.part[c.rank()];
    biases& own = part[c.rank()];
    with_workspace_of(bytes(moe_pass::inference), [&](context& ctx) {
      tigon::expert_parallel_moe_forward<B, T>(c, q.x, q.choices(), own.with(q.experts()), q.y.view(), opt, ctx);
    });
    with_workspace_of(bytes(moe_pass::recompute), [&](context& ctx) {
      tigon::expert_parallel_moe_backward<B, T>(c, q.dy, q.x, q.choices(), own.with(q.experts()), own.with(q.all()),
                                                opt, ctx);
    });
  });
  p.expect_the_same();
  for (const auto m : {&biases::dgate_up, &biases::ddown}) {
    std::vector<double> all;
    for (biases& own : part) {
      const auto values = (own.*m).f64();
      all.insert(all.end(), values.begin(), values.end());
      EXPECT_TRUE((own.*m).padding_intact());
    }
    EXPECT_EQ(all, (whole.*m).f64());
  }
}

/// What all ranks throw where one finds a fault.
template <class Change>
void all_refuse(const std::string& part, Change change) {
  using B = usual_backend;
  problem<B, float> p({12, 2, 4, 5, 6, 1}, 2);
  for (auto& one : p.part) one.y.clear(), one.dx.clear();
  std::mutex lock;
  std::vector<std::string> sentences;
  for (const bool backward : {false, true}) {
    threads::run(2, [&](const threads& c) {
      auto& q = p.part[c.rank()];
      auto to = q.all();
      matrix_view<float> x = q.x.view();
      tigon::moe_weights<float> w = q.experts();
      if (c.rank() == 1) change(q, x, w, to);
      try {
        if (backward)
          tigon::expert_parallel_moe_backward<B, float>(c, q.dy, x, q.choices(), w, to);
        else
          tigon::expert_parallel_moe_forward<B, float>(c, x, q.choices(), w, q.y.view());
      } catch (const tigon::error& e) {
        const std::lock_guard guard(lock);
        sentences.emplace_back(e.what());
      }
    });
  }
  EXPECT_GE(sentences.size(), 2u) << part;
  for (const std::string& sentence : sentences) EXPECT_NE(sentence.find(part), sentence.npos) << sentence;
  for (auto& one : p.part) EXPECT_TRUE(one.dx.untouched() && one.dgate_up.untouched() && one.dweights.untouched());
}

TEST(expert_parallel_moe_doors, all_ranks_refuse_together) {
  all_refuse("indices[2, 1] is 4; expected at least 0 and below 4 (rank 1)",
             [](auto& q, auto&, auto&, auto&) { q.indices(2, 1) = 4; });
  all_refuse("x is a null pointer", [](auto&, auto& x, auto&, auto&) { x.data = nullptr; });
  all_refuse("gate_up is 24 x 5; expected 36 x 5 (rank 1)", [](auto&, auto&, auto& w, auto&) { w.experts = 3; });
  all_refuse("the choice of dx and dweights is 2 on rank 1; expected 3, as on rank 0",
             [](auto&, auto&, auto&, auto& to) { to.dx = {}; });
}

}  // namespace
