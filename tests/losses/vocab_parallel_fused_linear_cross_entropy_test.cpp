// The contract of include/tigon/losses/vocab_parallel_fused_linear_cross_entropy.hpp, promise by promise. Ranks are
// threads.
#include <gtest/gtest.h>

#include <tigon/losses/vocab_parallel_fused_linear_cross_entropy.hpp>

#include "support/backends.hpp"
#include "support/chunk_backends.hpp"
#include "support/linear_cross_entropy.hpp"
#include "support/linear_shards.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::error_code, tigon::gradient, tigon::reduction;
using tigon::backends::small_chunks;
using options = tigon::vocab_parallel_fused_linear_cross_entropy_options;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

const linear_sizes every_size[] = {{0, 5, 7}, {1, 1, 1}, {5, 3, 2, 1}, {3, 0, 9}, {7, 33, 65, 3}, {40, 16, 123}};

using variant = linear_cross_entropy_variant;
const variant variants[] = {
    {"plain", false, false, {}},
    {"biased sum, added", true, false, {.loss = {.reduction = reduction::sum}}, gradient::accumulate},
    {"smoothed, scaled by p", true, true, {.loss = {.ignore_index = 0, .label_smoothing = 0.1}, .token_scaling = true}},
    {"all",
     true,
     true,
     {.loss = {.label_smoothing = 0.1, .lse_square_scale = 0.01, .softcap = 5, .denominator = 3},
      .token_scaling = true}},
    {"rows", true, true, {.loss = {.reduction = reduction::none}}, gradient::accumulate},
};

/// The whole problem, whose w, dw, bias and dbias the ranks share out; loss, metrics and dx each rank has for itself.
template <class T>
struct problem : linear_cross_entropy_problem<T> {
  using whole = linear_cross_entropy_problem<T>;
  using A = accumulator_t<T>;
  struct results {
    guarded<A> loss, z_loss, accuracy;
    guarded<std::int64_t> predicted;
    guarded_matrix<T> dx;
    TIGON_TEST_NOINLINE explicit results(const whole& p)
        : loss(p.loss.size()),
          z_loss(p.z_loss.size()),
          accuracy(p.accuracy.size()),
          predicted(p.predicted.size()),
          dx(p.s.rows, p.s.hidden, p.s.padding) {}
  };
  cuts columns;
  std::deque<results> of;

  TIGON_TEST_NOINLINE problem(linear_sizes s, const variant& v, const cuts& split, guard side = guard::behind)
      : whole(s, v, side), columns(split) {
    for (std::size_t r = 0; r < columns.size(); ++r) of.emplace_back(*this);
  }
  options opt() const { return {this->v.opt.loss, this->v.opt.token_scaling}; }

  template <class B>
  TIGON_TEST_NOINLINE void forward_of(tigon::communicator_ref c, context& ctx, tigon::linear_gradients<T> to,
                                      options o) {
    results& own = of[c.rank()];
    const layer_part<T> part(*this, columns, c.rank(), {});
    tigon::vocab_parallel_fused_linear_cross_entropy_forward<B, T>(
        c, part.layer, this->target, {own.loss, {own.z_loss, own.accuracy, own.predicted}}, to, o, given(this->weight),
        ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward_of(tigon::communicator_ref c, std::span<const A> g, context& ctx) {
    const layer_part<T> part(*this, columns, c.rank(), of[c.rank()].dx.view());
    tigon::vocab_parallel_fused_linear_cross_entropy_backward<B, T>(c, part.layer, this->target, g, part.gradients,
                                                                    opt(), given(this->weight), ctx);
  }
  /// Where losses are of rows, the gradients of its upstream gradients come from backward.
  template <class B>
  TIGON_TEST_NOINLINE void run_rank(tigon::communicator_ref c, context& ctx) {
    const layer_part<T> part(*this, columns, c.rank(), of[c.rank()].dx.view());
    forward_of<B>(c, ctx, this->rows ? tigon::linear_gradients<T>{} : part.gradients, opt());
    if (this->rows) backward_of<B>(c, this->upstream, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void run(std::size_t threads = 1) {
    on_ranks(
        columns.size(), [&](const tigon::comm::threads& c, context& ctx) { run_rank<B>(c, ctx); }, threads);
  }
  template <class B>
  void forward(context& ctx = tigon::default_context()) {
    run_rank<B>(tigon::comm::serial{}, ctx);
  }
  void clear() {
    this->clear_gradients();
    for (results& r : of) r.loss.clear(), r.z_loss.clear(), r.accuracy.clear(), r.predicted.clear(), r.dx.clear();
  }
  auto bits() const {
    auto out = bits_of(this->dw, this->dbias);
    for (const results& r : of) {
      const auto more = bits_of(r.loss, r.z_loss, r.accuracy, r.predicted, r.dx);
      out.insert(out.end(), more.begin(), more.end());
    }
    return out;
  }
  /// All ranks have the same; it becomes that of the whole problem.
  TIGON_TEST_NOINLINE void join() {
    const auto copy = [](auto& to, const auto& from) { std::ranges::copy(from, to.begin()); };
    for (const results& r : of) {
      EXPECT_EQ(bits_of(r.loss, r.z_loss, r.accuracy, r.predicted, r.dx),
                bits_of(of[0].loss, of[0].z_loss, of[0].accuracy, of[0].predicted, of[0].dx));
      EXPECT_TRUE(r.dx.padding_intact());
    }
    copy(this->loss, of[0].loss), copy(this->z_loss, of[0].z_loss), copy(this->accuracy, of[0].accuracy);
    copy(this->predicted, of[0].predicted);
    for (std::size_t i = 0; i < this->s.rows; ++i)
      for (std::size_t h = 0; h < this->s.hidden; ++h) this->dx(i, h) = of[0].dx(i, h);
  }
  template <class B>
  TIGON_TEST_NOINLINE void expect_wanted() {
    const auto wanted = this->wanted();
    run<B>();
    join();
    this->expect_results(wanted);
  }
};

#if defined(TIGON_CONFORMANCE_BACKEND)
using pairs = testing::Types<on<usual_backend, float>, on<small_chunks, bfloat16>>;
#else
using pairs = testing::Types<on<single_numbers, double>, on<small_chunks, float>, on<small_chunks, bfloat16>>;
#endif

template <class On>
class vocab_parallel_fused_linear : public testing::Test {};
TYPED_TEST_SUITE(vocab_parallel_fused_linear, pairs, names);

TYPED_TEST(vocab_parallel_fused_linear, keeps_its_error_for_any_cut) {
  using T = typename TypeParam::element;
  for (const linear_sizes s : every_size)
    for (const variant& v : variants)
      for (const cuts& columns : all_cuts(s.vocab)) {
        SCOPED_TRACE(testing::Message() << s << ", " << v.name << ", " << columns.size() << " ranks");
        problem<T>(s, v, columns, columns.size() == 2 ? guard::before : guard::behind)
            .template expect_wanted<typename TypeParam::backend>();
      }
}

TYPED_TEST(vocab_parallel_fused_linear, takes_an_upstream_gradient) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : {variants[0], variants[3]}) {
    const linear_sizes s{20, 17, 67, 2};
    problem<T> p(s, v, even_cuts(67, 3)), q(s, v, even_cuts(67, 3));
    const auto wanted = p.wanted(-2.5);
    const guarded<accumulator_t<T>> g{-2.5};
    on_ranks(3, [&](const tigon::comm::threads& c, context& ctx) {
      p.template backward_of<B>(c, g, ctx);
      options scaled = q.opt();
      scaled.upstream = -2.5;
      q.template forward_of<B>(c, ctx, layer_part<T>(q, q.columns, c.rank(), q.of[c.rank()].dx.view()).gradients,
                               scaled);
    });
    EXPECT_TRUE(p.of[1].loss.untouched());
    for (std::size_t r = 0; r < 3; ++r) EXPECT_EQ(bits_of(p.of[r].dx), bits_of(q.of[r].dx));
    EXPECT_EQ(bits_of(p.dw, p.dbias), bits_of(q.dw, q.dbias));
    p.join();
    p.expect_gradients(wanted);
  }
}

TYPED_TEST(vocab_parallel_fused_linear, each_gradient_may_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const linear_sizes s{20, 17, 67};
  const cuts columns = even_cuts(67, 3);
  const problem<T> before(s, variants[1], columns);
  problem<T> full(s, variants[1], columns);
  full.template run<B>();
  for (int some = 0; some < 8; ++some) {
    SCOPED_TRACE(some);
    const bool dx = some & 1, dw = some & 2, db = some & 4;
    problem<T> p(s, variants[1], columns);
    on_ranks(3, [&](const tigon::comm::threads& c, context& ctx) {
      auto to = layer_part<T>(p, columns, c.rank(), p.of[c.rank()].dx.view()).gradients;
      if (!dx) to.dx = {};
      if (!dw) to.dw = {};
      if (!db) to.dbias = {};
      p.template forward_of<B>(c, ctx, to, p.opt());
    });
    EXPECT_EQ(bits_of(p.of[2].dx), bits_of((dx ? full : before).of[2].dx));
    EXPECT_EQ(bits_of(p.dw), bits_of(dw ? full.dw : before.dw));
    EXPECT_EQ(bits_of(p.dbias), bits_of(db ? full.dbias : before.dbias));
    EXPECT_EQ(bits_of(p.of[0].loss), bits_of(full.of[0].loss));
  }
}

TYPED_TEST(vocab_parallel_fused_linear, ignored_rows_contribute_nothing) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : {variants[0], variants[3], variants[4]}) {
    const linear_sizes s{20, 17, 67, 2};
    problem<T> p(s, v, even_cuts(67, 3)), zeros(s, v, even_cuts(67, 3));
    for (const std::size_t i : {1, 7, 19}) {
      p.target[i] = zeros.target[i] = v.opt.loss.ignore_index;
      for (std::size_t h = 0; h < 17; ++h) zeros.x(i, h) = from_f64<T>(0), p.x(i, h) = from_f64<T>(nan);
      if (p.rows) p.upstream[i] = static_cast<accumulator_t<T>>(nan);
    }
    p.template run<B>(), zeros.template run<B>();
    EXPECT_EQ(p.bits(), zeros.bits());
    for (const double g : p.dw.f64()) ASSERT_TRUE(std::isfinite(g));
    for (std::size_t h = 0; h < 17; ++h) EXPECT_EQ(to_f64(p.of[1].dx(7, h)), 0);
    problem<T> w(s, v, even_cuts(67, 3));
    for (const std::size_t i : {1, 7, 19}) w.target[i] = v.opt.loss.ignore_index;
    w.w(40, 3) = from_f64<T>(nan);  // of rank 1
    w.template run<B>();
    for (const auto& r : w.of)
      for (std::size_t h = 0; h < 17; ++h) EXPECT_EQ(to_f64(r.dx(7, h)), 0) << "w has a NaN";
  }
}

TYPED_TEST(vocab_parallel_fused_linear, rows_do_not_depend_on_which_others_count) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using P = problem<T>;
  const linear_sizes s{130, 40, 67, 1};
  for (const cuts& columns : {cuts{30, 0, 37}, cuts{67}}) {
    auto of = rows_of_cross_entropy<P>(s, [=] { return P(s, variants[4], columns); });
    of.results = [](const P& p, std::size_t i) { return cross_entropy_results_of(p, p.of.back(), i); };
    of.call = [=](P& p, context& like) {
      on_ranks_with_workspace(
          columns.size(), like,
          [&](std::size_t rank, context& ctx) {
            return tigon::vocab_parallel_fused_linear_cross_entropy_workspace<B, T>(s.rows, s.hidden, columns[rank],
                                                                                    s.vocab, columns.size(), ctx);
          },
          [&](const tigon::comm::threads& c, context& ctx) { p.template run_rank<B>(c, ctx); });
    };
    of.bytes = [](context&) { return std::size_t{0}; };
    of.chunk = 100;
    expect_rows_for_themselves(of);
  }
}

TEST(ignored_rows, are_not_multiplied) {
  using B = tigon::backends::small_counting;
  using P = problem<float>;
  const linear_sizes s{40, 16, 123};
  auto of = rows_of_cross_entropy<P>(s, [=] { return P(s, variants[3], {123}); });
  of.call = [](P& p, context& ctx) { p.forward<B>(ctx); };
  of.bytes = [](context&) { return std::size_t{1} << 20; };
  expect_products_of_kept_rows(of, counted.multiplications, 3 * 16 * 123);
}

TYPED_TEST(vocab_parallel_fused_linear, bad_rows_stay_alone_and_are_bad_on_all_ranks) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const linear_sizes s{9, 5, 30};
  problem<T> clean(s, variants[4], {10, 20}), p(s, variants[4], {10, 20}), edge(s, variants[4], {10, 20});
  p.x(4, 2) = from_f64<T>(nan);
  // A class of -inf: never the largest, infinite as a target.
  edge.bias[15] = from_f64<T>(-infinity), edge.target[3] = 15;
  clean.template run<B>(), p.template run<B>(), edge.template run<B>();
  for (const auto& r : p.of) {
    for (std::size_t i = 0; i < 9; ++i) {
      EXPECT_TRUE(i == 4 ? std::isnan(r.loss[i]) : r.loss[i] == clean.of[0].loss[i]) << i;
      for (std::size_t h = 0; h < 5; ++h)
        EXPECT_TRUE(i == 4 ? std::isnan(to_f64(r.dx(i, h))) : to_f64(r.dx(i, h)) == to_f64(clean.of[0].dx(i, h))) << i;
    }
    EXPECT_EQ(r.predicted[4], -1);
  }
  EXPECT_EQ(edge.of[1].loss[3], infinity);
  EXPECT_TRUE(std::isfinite(edge.of[1].loss[2]));
  for (std::size_t h = 0; h < 5; ++h) EXPECT_TRUE(std::isfinite(to_f64(edge.of[0].dx(3, h))));
}

TYPED_TEST(vocab_parallel_fused_linear, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> one({60, 24, 300}, variants[3], {300});
  EXPECT_TRUE(same_forward_for_any_threads<B>(one));
  problem<T> p({60, 24, 300}, variants[3], {120, 0, 180}), q({60, 24, 300}, variants[3], {120, 0, 180});
  p.template run<B>(1), q.template run<B>(3);
  EXPECT_EQ(p.bits(), q.bits());
}

TYPED_TEST(vocab_parallel_fused_linear, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({20, 17, 67}, variants[3], {67});
  expect_takes_its_workspace(
      "vocab_parallel_fused_linear_cross_entropy_forward", p,
      [](context& ctx) {
        return tigon::vocab_parallel_fused_linear_cross_entropy_workspace<B, T>(20, 17, 67, 67, 1, ctx);
      },
      [&](context& ctx) { p.template forward<B>(ctx); });
  for (const cuts& columns : {cuts{30, 37}, cuts{0, 67, 0}}) {
    problem<T> q({20, 17, 67}, variants[3], columns);
    tigon::comm::threads::run(columns.size(), [&](const tigon::comm::threads& c) {
      const std::size_t bytes = tigon::vocab_parallel_fused_linear_cross_entropy_workspace<B, T>(
          20, 17, columns[c.rank()], 67, columns.size());
      with_workspace_of(bytes, [&](context& ctx) { q.template run_rank<B>(c, ctx); });
    });
    EXPECT_FALSE(q.of[1].loss.untouched());
  }
}

/// Three ranks, one of which (or each) calls with something wrong: all throw the same error and write nothing.
class vocab_parallel_fused_linear_doors : public testing::Test {
 protected:
  struct arguments {
    tigon::linear_shard<float> part;
    tigon::linear_gradients<float> to;
    std::vector<std::int64_t> target;
    std::vector<float> weight;
    std::span<float> loss, accuracy;
    options opt;
    std::size_t workspace_bytes = 1 << 20, logit_rows = 0;
  };
  template <class Spoil>
  void refuse(error_code code, const std::string& part, Spoil spoil) {
    for (const std::size_t bad : {0u, 1u, 2u}) {
      SCOPED_TRACE(testing::Message() << "rank " << bad);
      problem<float> p({4, 6, 24}, variants[3], {10, 0, 14});
      p.target[1] = 0;
      const auto before = p.bits();
      EXPECT_TRUE(all_ranks_refuse(code, part, [&](const tigon::comm::threads& c, context&) {
        auto& own = p.of[c.rank()];
        const layer_part<float> mine(p, p.columns, c.rank(), own.dx.view());
        arguments a{
            mine.layer,   mine.gradients, {p.target.begin(), p.target.end()}, std::vector<float>(24, 1.0f), own.loss,
            own.accuracy, p.opt()};
        if (c.rank() == bad) spoil(a);
        with_workspace_of(a.workspace_bytes, [&](context& ctx) {
          ctx.logit_rows(a.logit_rows);
          tigon::vocab_parallel_fused_linear_cross_entropy_forward<usual_backend, float>(
              c, a.part, a.target, {a.loss, {.token_accuracy = a.accuracy}}, a.to, a.opt, a.weight, ctx);
        });
      }));
      EXPECT_EQ(p.bits(), before) << "something was written";
    }
  }
};

TEST_F(vocab_parallel_fused_linear_doors, a_fault_of_one_rank_is_the_error_of_all) {
  using enum error_code;
  const std::string name = "vocab_parallel_fused_linear_cross_entropy_forward: ";
  refuse(index, name + "target[2] is 24; expected at least 0 and below 24", [](arguments& a) { a.target[2] = 24; });
  refuse(shape, name + "target is of 3 elements; expected 4", [](arguments& a) { a.target.pop_back(); });
  refuse(shape, name + "vocab is 0; expected at least 1", [](arguments& a) { a.part.shard.vocab = 0; });
  refuse(shape, name + "shard is", [](arguments& a) { a.part.shard.first = 25; });
  refuse(shape, name + "loss is of 0 elements; expected 1", [](arguments& a) { a.loss = a.loss.first(0); });
  refuse(shape, name + "class_weight is of 23 elements; expected 24", [](arguments& a) { a.weight.pop_back(); });
  refuse(shape, name + "x is a null pointer", [](arguments& a) { a.part.layer.x.data = nullptr; });
  refuse(stride, name + "x is of row stride 5", [](arguments& a) { a.part.layer.x.row_stride = 5; });
  refuse(shape, name + "dx is 3 x 6; expected 4 x 6", [](arguments& a) { a.to.dx.rows = 3; });
  refuse(alias, name + "dx overlaps x", [](arguments& a) {
    a.to.dx = {const_cast<float*>(a.part.layer.x.data), 4, 6, a.to.dx.row_stride};
  });
  refuse(alias, name + "token_accuracy overlaps loss", [](arguments& a) { a.accuracy = a.loss; });
  refuse(argument, name + "softcap is -1", [](arguments& a) { a.opt.loss.softcap = -1; });
  refuse(argument, name + "upstream is inf", [](arguments& a) { a.opt.upstream = infinity; });
  refuse(workspace, name + "workspace is of", [](arguments& a) { a.workspace_bytes = 64; });
}

TEST_F(vocab_parallel_fused_linear_doors, ranks_have_to_agree) {
  const auto differs = [&](const std::string& what, auto spoil) {
    refuse(error_code::state, what + " is another on rank ", spoil);
  };
  differs("target", [](arguments& a) { a.target[0] = a.target[0] == 0 ? 1 : 0; });
  differs("rows of a chunk", [](arguments& a) { a.logit_rows = 2; });
  differs("the choice of dx", [](arguments& a) { a.to.dx = {}; });
  differs("the choice of predicted tokens", [](arguments& a) { a.accuracy = {}; });
  differs("reduction", [](arguments& a) { a.opt.loss.reduction = reduction::sum; });
  differs("label_smoothing", [](arguments& a) { a.opt.loss.label_smoothing = 0.2; });
  differs("lse_square_scale", [](arguments& a) { a.opt.loss.lse_square_scale = 0; });
  differs("softcap", [](arguments& a) { a.opt.loss.softcap = 6; });
  differs("denominator", [](arguments& a) { a.opt.loss.denominator = 7; });
  differs("ignore_index", [](arguments& a) { a.opt.loss.ignore_index = -1; });
  differs("token_scaling", [](arguments& a) { a.opt.token_scaling = false; });
  differs("class_weight", [](arguments& a) { a.weight[20] = 2; });
  differs("upstream", [](arguments& a) { a.opt.upstream = 2; });
}

TEST(vocab_parallel_fused_linear_shards, have_to_be_the_vocabulary) {
  const auto call = [](const cuts& columns, std::size_t vocab) {
    problem<float> p({4, 6, 24}, variants[0], {10, 0, 14});
    return all_ranks_refuse(error_code::state, "vocab_parallel_fused_linear_cross_entropy_forward: ",
                            [&](const tigon::comm::threads& c, context& ctx) {
                              layer_part<float> mine(p, columns, c.rank(), {});
                              mine.layer.shard.vocab = vocab;
                              tigon::vocab_parallel_fused_linear_cross_entropy_forward<usual_backend, float>(
                                  c, mine.layer, p.target, {p.of[c.rank()].loss}, {}, {}, tigon::absent, ctx);
                            });
  };
  EXPECT_TRUE(call({10, 0, 13}, 24));
  problem<float> p({4, 6, 24}, variants[0], {10, 0, 14});
  EXPECT_TRUE(all_ranks_refuse(error_code::state, "shard.first is 9 on rank 2; expected 10",
                               [&](const tigon::comm::threads& c, context& ctx) {
                                 layer_part<float> mine(p, p.columns, c.rank(), {});
                                 if (c.rank() == 2) mine.layer.shard.first = 9;
                                 tigon::vocab_parallel_fused_linear_cross_entropy_forward<usual_backend, float>(
                                     c, mine.layer, p.target, {p.of[c.rank()].loss}, {}, {}, tigon::absent, ctx);
                               }));
}

}  // namespace
