// How much of the logits exists at a time: the rules of chunk_tuning, rows by the context, and tiles. Results do not
// depend on any of it beyond rounding; what each loss promises otherwise is tested beside it.
// Operators: several
#include <gtest/gtest.h>

#include <tigon/losses/fused_linear_simpo.hpp>
#include <tigon/losses/selective_logprob.hpp>

#include "support/backends.hpp"
#include "support/chunk_backends.hpp"
#include "support/linear_cross_entropy.hpp"
#include "support/sequence_problem.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::chunk_tuning, tigon::context, tigon::gradient, tigon::reduction;
using tigon::detail::chunk_rows;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

constexpr chunk_tuning tiles = chunk_tuning::stream(7, 50);
/// The tiles of `in_tiles`. Kernels read them while they run, so that those for all sizes are compiled once. Tiles of a
/// backend's constants: losses/linear_types.
chunk_tuning tiles_of_calls = tiles;
struct tiles_for_calls {
  tiles_for_calls(std::size_t rows, std::size_t cols) { tiles_of_calls = chunk_tuning::stream(rows, cols); }
  tiles_for_calls(const tiles_for_calls&) = delete;
  tiles_for_calls& operator=(const tiles_for_calls&) = delete;
  ~tiles_for_calls() { tiles_of_calls = tiles; }
};
template <std::size_t chunk_tuning::*Size>
struct size_of_tiles {
  operator std::size_t() const { return tiles_of_calls.*Size; }
  friend constexpr bool operator>(size_of_tiles, int) { return true; }  // for a static_assert
};
template <class Base>
struct in_tiles : Base {
  struct sizes {
    static constexpr tigon::chunk_rule rule = tigon::chunk_rule::stream;
    static constexpr std::size_t logits_bytes = tiles.logits_bytes, row_multiple = tiles.row_multiple,
                                 least_rows = tiles.least_rows;
    size_of_tiles<&chunk_tuning::rows> rows;
    size_of_tiles<&chunk_tuning::cols> cols;
    operator chunk_tuning() const { return tiles_of_calls; }
  };
  static constexpr sizes chunk{};
};
using sevens = with_chunks<tigon::backends::counting, chunk_tuning::fixed(7)>;
using streamed = in_tiles<tigon::backends::counting>;
using streamed_scalar = in_tiles<tigon::backends::generic>;

/// Whether a loss of this backend is tigon's own, and so can do with tiles.
template <class B>
constexpr bool by_tiles = tigon::detail::tiled_backend<B>;

// ---- The rules.

TEST(chunk_rules, liger_has_about_as_many_logits_as_inputs) {
  struct numbers {
    std::size_t rows, hidden, vocab, chunk, chunks;
  };
  constexpr numbers of_the_spec[] = {{16384, 4096, 32000, 2048, 8},
                                     {8192, 4096, 128256, 256, 32},
                                     {16384, 8192, 152064, 1024, 16},
                                     {2048, 2048, 32000, 128, 16},
                                     {100, 64, 10, 100, 1},  // not more than there are
                                     {0, 64, 1000, 1, 0},
                                     {9, 0, 5, 2, 5}};
  tigon::workspace scratch;
  const context ctx(tigon::serial(), scratch);
  for (const numbers& n : of_the_spec) {
    const std::size_t chunk = chunk_rows<liger, float>(n.rows, n.hidden, n.vocab, ctx);
    EXPECT_EQ(chunk, n.chunk) << n.rows << " x " << n.hidden << " x " << n.vocab;
    EXPECT_EQ((n.rows + chunk - 1) / chunk, n.chunks);
  }
  static_assert(chunk_rows(chunk_tuning::liger(), 4, 8192, 4096, 128256) == 256);
}

TEST(chunk_rules, fixed_rows_and_those_of_the_context_are_exact) {
  tigon::workspace scratch;
  context ctx(tigon::serial(), scratch);
  EXPECT_EQ(ctx.logit_rows(), 0u);
  for (const std::size_t vocab : {std::size_t{1}, std::size_t{123}, std::size_t{100'000'000}}) {
    EXPECT_EQ((chunk_rows<sevens, float>(40, 16, vocab, ctx)), 7u);
    EXPECT_EQ((chunk_rows<sevens, float>(5, 16, vocab, ctx)), 5u);
    EXPECT_EQ((chunk_rows<sevens, float>(0, 16, vocab, ctx)), 1u);
    EXPECT_EQ((chunk_rows<streamed, float>(40, 16, vocab, ctx, 2)), 7u);
  }
  ctx.logit_rows(11);
  EXPECT_EQ((chunk_rows<usual_backend, float>(40, 16, 123, ctx)), 11u);
  EXPECT_EQ((chunk_rows<usual_backend, float>(40, 16, 100'000'000, ctx, 2)), 11u);
  EXPECT_EQ((chunk_rows<sevens, float>(40, 16, 123, ctx)), 11u);
  EXPECT_EQ((chunk_rows<liger, float>(9, 16, 123, ctx)), 9u);
}

TEST(chunk_rules, cross_entropy_takes_256_rows_for_up_to_twice_the_budget) {
  using tigon::detail::cross_entropy_chunk;
  using generic = tigon::backends::generic;
  tigon::workspace scratch;
  const context ctx(tigon::serial(), scratch);
  EXPECT_EQ((cross_entropy_chunk<generic, float>(2048, 2048, 32000, ctx)), 512u);
  EXPECT_EQ((cross_entropy_chunk<generic, float>(2048, 2048, 128256, ctx)), 256u);
  EXPECT_EQ((cross_entropy_chunk<generic, float>(2048, 2048, 262144, ctx)), 128u) << "twice the budget";
  EXPECT_EQ((chunk_rows<generic, float>(2048, 2048, 128256, ctx)), 128u) << "the others stay within it";
  constexpr std::size_t mib = std::size_t{1} << 20;
  EXPECT_LT((tigon::fused_linear_cross_entropy_workspace<usual_backend, float>(2048, 2048, 32000, ctx)), 70 * mib);
}

TEST(chunk_rules, have_names) {
  EXPECT_EQ(chunk_tuning::budget(1000), (chunk_tuning{.logits_bytes = 1000}));
  EXPECT_NE(chunk_tuning::fixed(7), chunk_tuning::fixed(8));
  EXPECT_EQ(tiles.rows, 7u);
  EXPECT_EQ(tiles.cols, 50u);
}

// ---- Cross entropy.

/// Nothing, less than a tile, exactly some tiles, and a rest both ways; 250 columns are five tiles.
const linear_sizes every_size[] = {{0, 5, 77},    {3, 5, 30, 1},   {1, 1, 51},
                                   {3, 0, 77, 2}, {14, 3, 250, 1}, {40, 16, 223, 3}};
const linear_sizes ragged = {40, 16, 223, 1};

using variant = linear_cross_entropy_variant;
const variant variants[] = {
    {"plain", false, false, {}},
    {"biased sum, added", true, false, {.loss = {.reduction = reduction::sum}}, gradient::accumulate},
    {"scaled by p", true, false, {.loss = {.ignore_index = 0}, .token_scaling = true}},
    {"smoothed", true, true, {.loss = {.label_smoothing = 0.1, .lse_square_scale = 0.01, .denominator = 3}}},
    {"all",
     true,
     true,
     {.loss = {.label_smoothing = 0.1, .lse_square_scale = 0.01, .softcap = 5, .denominator = 3},
      .token_scaling = true}},
    {"rows", true, true, {.loss = {.reduction = reduction::none}}, gradient::accumulate},
    {"capped rows", false, false, {.loss = {.reduction = reduction::none, .softcap = 3}}},
};

template <class T>
using problem = linear_cross_entropy_problem<T>;
constexpr by_type loss_bound = linear_loss_bound, gradient_bound = linear_gradient_bound;

template <class P>
struct policy_names {
  static std::string of() {
    const chunk_tuning by = P::backend::chunk;
    const char* rule = by.rule == tigon::chunk_rule::stream  ? "stream"
                       : by.rule == tigon::chunk_rule::liger ? "liger"
                                                             : "fixed";
    return rule + ("_" + names::GetName<P>(0));
  }
};
struct policies {
  template <class P>
  static std::string GetName(int) {
    return policy_names<P>::of();
  }
};
/// The rule `liger` is a number of rows, as `fixed` is; what it is and that losses take it is tested elsewhere.
#if defined(TIGON_TESTS_ALL_PAIRS)
using pairs =
    testing::Types<on<sevens, float>, on<streamed, float>, on<streamed, bfloat16>, on<streamed_scalar, float>>;
#else
using pairs = testing::Types<on<sevens, float>, on<streamed, float>, on<streamed, bfloat16>>;
#endif
template <class On>
class chunked_cross_entropy : public testing::Test {};
TYPED_TEST_SUITE(chunked_cross_entropy, pairs, policies);

TYPED_TEST(chunked_cross_entropy, keeps_its_error_with_every_option) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const linear_sizes s : every_size)
    for (const variant& v : variants) {
      SCOPED_TRACE(testing::Message() << s << ", " << v.name);
      problem<T> p(s, v);
      const auto wanted = p.wanted();
      p.template forward<B>();
      p.expect_results(wanted);
    }
}

TYPED_TEST(chunked_cross_entropy, backward_makes_the_logits_again) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : {variants[4], variants[5]}) {
    SCOPED_TRACE(v.name);
    expect_backward_with_an_upstream_gradient<B>(problem<T>(ragged, v));
  }
}

TYPED_TEST(chunked_cross_entropy, each_gradient_may_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  expect_gradients_may_be_left_out<B>([] { return problem<T>(ragged, variants[4]); });
}

TYPED_TEST(chunked_cross_entropy, rows_do_not_depend_on_which_others_count) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  expect_rows_for_themselves(rows_of_cross_entropy<B, T>({130, 40, 223, 1}, variants[5], 100));
  expect_rows_for_themselves(rows_of_cross_entropy<B, T>({40, 16, 223, 1}, variants[4]));
}

TEST(chunked_cross_entropy, multiplies_no_ignored_row) {
  if (!by_tiles<streamed>) GTEST_SKIP() << "a loss of the backend's own makes its products as it likes";
  for (const std::size_t chunk : {0u, 100u})
    expect_products_of_kept_rows(rows_of_cross_entropy<streamed, float>({130, 16, 223, 1}, variants[4], chunk),
                                 counted.multiplications, 4 * 16 * 223);
}

TYPED_TEST(chunked_cross_entropy, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({60, 20, 130}, variants[4]);
  EXPECT_TRUE(same_forward_for_any_threads<B>(p));
}

/// Rows that are all alike, two at a time: every addition of a chunk's share is rounded the same way.
TYPED_TEST(chunked_cross_entropy, keeps_its_error_over_very_many_chunks) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  constexpr std::size_t rows = 1 << 13, hidden = 2, vocab = 60;
  guarded_matrix<T> x(rows, hidden, 0), w(vocab, hidden, 0), dx(rows, hidden, 0), dw(vocab, hidden, 0);
  guarded<T> bias(vocab), dbias(vocab);
  w.assign(std::vector<double>(vocab * hidden, 0));
  bias.assign(std::vector<double>(vocab, 0));
  std::vector<double> inputs(rows * hidden), old(vocab * hidden, 1000), old_bias(vocab, -1000);
  for (std::size_t k = 0; k < inputs.size(); ++k) inputs[k] = k % 2 == 0 ? 0.1 : 0.7;
  x.assign(inputs), dw.assign(old), dbias.assign(old_bias);
  const std::vector<std::int64_t> target(rows, 0);
  std::vector<accumulator_t<T>> loss(1);
  for (const gradient mode : {gradient::overwrite, gradient::accumulate}) {
    const auto call = [&](context& ctx) {
      ctx.logit_rows(2);
      tigon::fused_linear_cross_entropy_forward<B, T>({x, w.view(), bias}, target, {loss},
                                                      {dx.view(), dw.view(), dbias, mode},
                                                      {.loss = {.reduction = reduction::sum}}, tigon::absent, {}, ctx);
    };
    tigon::workspace scratch;
    context sizes(tigon::serial(), scratch);
    sizes.logit_rows(2);
    const std::size_t bytes = tigon::fused_linear_cross_entropy_workspace<B, T>(rows, hidden, vocab, sizes);
    with_workspace_of(bytes, call);
    std::vector<double> want_dw, want_dbias;
    for (std::size_t j = 0; j < vocab; ++j) {
      const double d = static_cast<double>(rows) * (1.0 / vocab - (j == 0 ? 1 : 0));
      const double times = mode == gradient::accumulate ? 2 : 1;
      want_dbias.push_back(times * d);
      for (std::size_t h = 0; h < hidden; ++h) want_dw.push_back(times * d * to_f64(x(0, h)));
    }
    EXPECT_TRUE(close(dw.f64(), want_dw, gradient_bound.of<T>()));
    EXPECT_TRUE(close(dbias.f64(), want_dbias, gradient_bound.of<T>()));
  }
}

TYPED_TEST(chunked_cross_entropy, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t rows : {std::size_t{0}, std::size_t{9}}) {
    problem<T> p(ragged, variants[4]);
    const guarded<accumulator_t<T>> one{1};
    const auto bytes = [&](context& ctx) {
      ctx.logit_rows(rows);
      return tigon::fused_linear_cross_entropy_workspace<B, T>(ragged.rows, ragged.hidden, ragged.vocab, ctx);
    };
    expect_takes_its_workspace("fused_linear_cross_entropy_backward", p, bytes,
                               [&](context& ctx) { ctx.logit_rows(rows), p.template backward<B>(one, ctx); });
    p.clear();
    expect_takes_its_workspace("fused_linear_cross_entropy_forward", p, bytes,
                               [&](context& ctx) { ctx.logit_rows(rows), p.template forward<B>(ctx); });
  }
}

TYPED_TEST(chunked_cross_entropy, has_nan_and_infinities_where_whole_rows_have_them) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  struct change {
    const char* name;
    void (*apply)(problem<T>&);
  };
  const change changes[] = {
      {"a row of nan", [](problem<T>& p) { p.x(4, 2) = from_f64<T>(nan); }},
      {"a column of nan", [](problem<T>& p) { p.bias[120] = from_f64<T>(nan); }},
      {"a column of inf", [](problem<T>& p) { p.bias[60] = from_f64<T>(infinity); }},
      {"two columns of -inf", [](problem<T>& p) { p.bias[0] = p.bias[222] = from_f64<T>(-infinity); }},
      {"first tile of -inf", [](problem<T>& p) { std::fill_n(p.bias.begin(), 50, from_f64<T>(-infinity)); }},
      {"inner tile of -inf", [](problem<T>& p) { std::fill_n(p.bias.begin() + 100, 50, from_f64<T>(-infinity)); }},
      {"targets of -inf",
       [](problem<T>& p) {
         for (const std::int64_t t : p.target)
           if (t >= 0) p.bias[static_cast<std::size_t>(t)] = from_f64<T>(-infinity);
       }},
      {"nothing but -inf", [](problem<T>& p) { std::fill_n(p.bias.begin(), 223, from_f64<T>(-infinity)); }},
      {"ignored alone", [](problem<T>& p) { std::ranges::fill(p.target, p.v.opt.loss.ignore_index); }},
  };
  for (const int which : {3, 5})
    for (const change& c : changes) {
      SCOPED_TRACE(testing::Message() << c.name << ", " << variants[which].name);
      problem<T> p(ragged, variants[which]), usual(ragged, variants[which]);
      c.apply(p), c.apply(usual);
      p.template forward<B>(), usual.template forward<usual_backend>();
      EXPECT_EQ(p.predicted.f64(), usual.predicted.f64());
      const double loss = 2 * loss_bound.of<T>(), gradient = 2 * gradient_bound.of<T>();
      EXPECT_TRUE(close(p.loss.f64(), usual.loss.f64(), loss));
      EXPECT_TRUE(close(p.z_loss.f64(), usual.z_loss.f64(), loss));
      EXPECT_TRUE(close(p.dx.f64(), usual.dx.f64(), gradient)) << "dx";
      EXPECT_TRUE(close(p.dw.f64(), usual.dw.f64(), gradient)) << "dw";
      EXPECT_TRUE(close(p.dbias.f64(), usual.dbias.f64(), gradient)) << "dbias";
    }
}

TEST(chunked_cross_entropy, certain_rows_keep_their_digits) {
  // The target's logit stands 20 above the others, in another tile than half of them.
  problem<float> p({5, 1, 120}, {"", true, false, {.loss = {.reduction = reduction::sum}}});
  for (std::size_t i = 0; i < 5; ++i) p.x(i, 0) = 0, p.target[i] = 70;
  std::ranges::fill(p.bias, 0.f), p.bias[70] = 20;
  p.forward<streamed>();
  const double rest = 119 * std::exp(-20.0);
  EXPECT_NEAR(p.loss[0] / (5 * std::log1p(rest)), 1, 1e-6 * error_scale);
  EXPECT_NEAR(p.dbias[70] / (-5 * rest / (1 + rest)), 1, 1e-6 * error_scale);
}

TEST(chunked_cross_entropy, makes_the_products_of_its_policy) {
  if (!by_tiles<streamed>) GTEST_SKIP() << "a loss of the backend's own makes its products as it likes";
  const auto products = [&](auto run, std::size_t rows, std::size_t cols) {
    counted = {};
    run();
    EXPECT_EQ(counted.logit_rows, rows);
    EXPECT_EQ(counted.logit_cols, cols);
    return counted.products;
  };
  problem<float> p(ragged, variants[3]);
  p.keep_all();
  EXPECT_EQ(products([&] { p.forward<sevens>(); }, 7, 223), 3 * 6u);
  EXPECT_EQ(products([&] { p.forward<streamed>(); }, 7, 50), 4 * 5 * 6u) << "logits twice, dx, dw of 5 x 6 tiles";
  tigon::workspace scratch;
  context ctx(tigon::serial(), scratch);
  ctx.logit_rows(9);
  EXPECT_EQ(products([&] { p.forward<sevens>(ctx); }, 9, 223), 3 * 5u);
  EXPECT_EQ(products([&] { p.forward<streamed>(ctx); }, 9, 50), 4 * 5 * 5u);
  problem<float> narrow({40, 16, 50}, variants[3]);
  narrow.keep_all();
  EXPECT_EQ(products([&] { narrow.forward<streamed>(); }, 7, 50), 3 * 6u) << "rows that fit in a tile are whole";
}

TEST(chunked_cross_entropy, rows_of_the_context_are_those_of_the_policy) {
  problem<float> by_policy(ragged, variants[4]), by_context(ragged, variants[4]);
  const auto wanted = by_policy.wanted();
  tigon::workspace scratch;
  context ctx(tigon::serial(), scratch);
  by_policy.forward<sevens>(ctx);
  const std::size_t high = scratch.high_water();
  scratch.reset_high_water();
  by_context.forward<usual_backend>(ctx);
  EXPECT_GT(scratch.high_water(), high) << "all rows at once";
  by_context.clear();
  scratch.reset_high_water();
  ctx.logit_rows(7);
  by_context.forward<usual_backend>(ctx);
  EXPECT_EQ(scratch.high_water(), high);
  EXPECT_EQ(by_context.bits(), by_policy.bits());
  by_context.expect_results(wanted);
}

TEST(tiles, know_ignored_rows_and_capped_infinities) {
  for (const bool rows : {false, true}) {
    const linear_cross_entropy_variant v{
        "tiles", true, true, {.loss = {.reduction = rows ? reduction::none : reduction::mean}}};
    expect_nothing_of_ignored_rows<streamed, float>({20, 17, 167, 2}, v);
    expect_nothing_of_ignored_rows<streamed, bfloat16>({20, 17, 167, 2}, v);
    expect_nothing_of_ignored_rows<streamed_scalar, float>({20, 17, 167, 2}, v);
  }
  expect_capped_infinities<streamed, float>({9, 5, 167});
  expect_capped_infinities<streamed, bfloat16>({9, 5, 167});
}

/// docs/formulas/fused_linear_cross_entropy.md and docs/formulas/preference.md.
constexpr linear_sizes of_memory = {512, 64, 6000};

template <class T>
std::size_t products_memory() {
  using tigon::gemm_workspace;
  using B = streamed;
  constexpr std::size_t hidden = of_memory.hidden;
  return std::max({gemm_workspace<B, T, T, float>(64, 256, hidden), gemm_workspace<B, float, T, float>(64, hidden, 256),
                   gemm_workspace<B, float, T, float>(256, hidden, 64),
                   tigon::simd::partials_workspace<B, float>(64, 256, 1)});
}

/// Beside the products, which take what gemm_workspace says at most, the call takes what the formula says.
template <class T>
void expect_memory(std::size_t taken, std::size_t formula) {
  EXPECT_LE(static_cast<double>(taken), 1.1 * static_cast<double>(formula));
  EXPECT_GE(static_cast<double>(taken), 0.9 * static_cast<double>(formula - products_memory<T>()));
}

template <class T>
void expect_memory_of_cross_entropy(bool ignored) {
  const tiles_for_calls wide_tiles(64, 256);
  problem<T> p(of_memory, {"", true, false, {}});
  if (!ignored) p.keep_all();
  tigon::workspace scratch;
  context ctx(tigon::serial(), scratch);
  p.template forward<streamed>(ctx);
  const auto [rows, hidden, vocab, padding] = of_memory;
  const std::size_t wide = 4 * 64 * 256 + 44 * rows + 4 * vocab + 8 * 256 + products_memory<T>() +
                           (ignored ? sizeof(T) * 64 * hidden + 16 * rows : 0);
  const std::size_t formula = wide + (std::same_as<T, float> ? 0 : 4 * (rows + 256) * hidden);
  expect_memory<T>(scratch.high_water(), formula);
  EXPECT_LE(scratch.high_water(), (tigon::fused_linear_cross_entropy_workspace<streamed, T>(rows, hidden, vocab, ctx)));
}

TEST(chunked_cross_entropy, tiles_take_the_memory_of_a_tile) {
  if (!by_tiles<streamed>) GTEST_SKIP() << "a loss of the backend's own takes whole rows";
  for (const bool ignored : {false, true}) {
    expect_memory_of_cross_entropy<float>(ignored);
    expect_memory_of_cross_entropy<bfloat16>(ignored);
  }
}

// ---- Log-probabilities of chosen columns.

constexpr by_type logp_gradient_bound{.f32 = 4e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 2e-14};

template <class T>
struct chosen : sequence_problem<T> {
  using A = accumulator_t<T>;
  tigon::selective_logprob_options opt;
  gradient mode;
  guarded<A> logp, upstream;
  guarded<tigon::lse_parts<A>> saved;
  std::vector<std::int64_t> target;

  TIGON_TEST_NOINLINE chosen(sequence_sizes of, tigon::selective_logprob_options with,
                             gradient how = gradient::overwrite)
      : sequence_problem<T>(of, with.temperature != 1, false, with.ignore_index),
        opt(with),
        mode(how),
        logp(of.sequences),
        upstream(random_vector<A>(of.sequences, 9)),
        saved(of.sequences) {
    for (std::size_t i = 0; i < of.sequences; ++i) target.push_back(this->label(i));
    if (of.sequences > 4) upstream[4] = 0;
    clear();
  }
  TIGON_TEST_NOINLINE void clear() {
    logp.clear(), this->dx.clear(), this->dw.clear(), this->dbias.clear();
    if (mode != gradient::accumulate) return;
    this->dw.assign(normal_values(this->s.vocab * this->s.hidden, 27));
    this->dbias.assign(normal_values(this->dbias.size(), 28));
  }
  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    tigon::selective_logprob_forward<B>(this->layer(), target, logp, std::span(saved.data(), saved.size()), opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(context& ctx = tigon::default_context()) {
    tigon::selective_logprob_backward<B>(this->layer(), target, upstream, std::span(saved.data(), saved.size()),
                                         this->gradients(mode), opt, ctx);
  }
  TIGON_TEST_NOINLINE void expect_results(const whole_layer& layer, const std::vector<double>& dw_before,
                                          const std::vector<double>& db_before) const {
    const auto all = layer.log_probs(opt.temperature);
    layer_gradients grad(layer);
    std::vector<double> want;
    for (std::size_t i = 0; i < target.size(); ++i) {
      const bool counts = target[i] != opt.ignore_index;
      want.push_back(counts ? all[i * layer.vocab + static_cast<std::size_t>(target[i])] : 0);
      if (counts) grad.add(layer, all, i, target[i], to_f64(upstream[i]) / opt.temperature);
    }
    if (this->bias.size() == 0) grad.dbias.clear();
    if (mode == gradient::accumulate) {
      for (std::size_t k = 0; k < grad.dw.size(); ++k) grad.dw[k] += dw_before[k];
      for (std::size_t k = 0; k < grad.dbias.size(); ++k) grad.dbias[k] += db_before[k];
    }
    EXPECT_TRUE(close(logp.f64(), want, loss_bound.of<T>(), {.scale = 1e-3, .may_be_empty = true}));
    expect_layer_gradients(*this, grad, logp_gradient_bound.of<T>());
  }
  auto bits() const { return bits_of(logp, saved, this->dx, this->dw, this->dbias); }
};
const sequence_sizes chosen_sizes[] = {{0, 1, 5, 77}, {3, 1, 5, 30, 1}, {1, 1, 1, 51},
                                       {3, 1, 0, 77}, {14, 1, 3, 250},  {40, 1, 16, 223, 2}};

template <class On>
class chunked_logprob : public testing::Test {};
TYPED_TEST_SUITE(chunked_logprob, pairs, policies);

TYPED_TEST(chunked_logprob, keeps_its_error) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sequence_sizes& s : chosen_sizes)
    for (const tigon::selective_logprob_options& opt :
         {tigon::selective_logprob_options{}, {.temperature = 0.6}, {.temperature = 2, .ignore_index = 0}}) {
      SCOPED_TRACE(testing::Message() << s << ", temperature " << opt.temperature);
      chosen<T> p(s, opt, opt.temperature < 1 ? gradient::accumulate : gradient::overwrite);
      const auto layer = p.policy();
      const auto dw = p.dw.f64(), db = p.dbias.f64();
      tigon::workspace scratch;
      context ctx(tigon::serial(), scratch);
      ctx.logit_rows(opt.temperature < 1 ? 20 : 0);  // whole eighths of 20 rows leave some that pad
      p.template forward<B>(ctx), p.template backward<B>(ctx);
      p.expect_results(layer, dw, db);
    }
}

TYPED_TEST(chunked_logprob, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  chosen<T> p({60, 1, 20, 130}, {.temperature = 0.6});
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.clear();
    p.template forward<B>(ctx), p.template backward<B>(ctx);
    return p.bits();
  }));
}

TYPED_TEST(chunked_logprob, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const auto& [rows, threads] : {std::pair<std::size_t, std::size_t>{0, 1}, {0, 3}, {20, 1}, {20, 3}})
    with_workspace_of(
        64,
        [&, rows = rows, threads = threads](context& of_size) {
          of_size.logit_rows(rows);
          chosen<T> p({40, 1, 16, 223}, {.temperature = 0.6});
          const std::size_t bytes = tigon::selective_logprob_workspace<B, T>(40, 16, 223, of_size);
          const auto forward = [&](context& ctx) { ctx.logit_rows(rows), p.template forward<B>(ctx); };
          const auto backward = [&](context& ctx) { ctx.logit_rows(rows), p.template backward<B>(ctx); };
          with_workspace_of(bytes, forward, threads);
          EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, backward, threads), workspace,
                             "selective_logprob_backward: workspace is of", p.dx, p.dw, p.dbias);
          with_workspace_of(bytes, backward, threads);
        },
        threads);
}

TYPED_TEST(chunked_logprob, reads_no_row_that_does_not_count) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  chosen<T> clean({40, 1, 16, 223}, {.temperature = 0.6}), p({40, 1, 16, 223}, {.temperature = 0.6});
  std::size_t ignored = 0;
  for (std::size_t i = 0; i < 40; ++i)
    if (p.target[i] == p.opt.ignore_index) p.x(i, 3) = from_f64<T>(nan), ++ignored;
  ASSERT_GT(ignored, 3u);
  for (chosen<T>* each : {&clean, &p}) each->template forward<B>();
  p.x(4, 2) = from_f64<T>(nan);  // the row with u = 0
  for (chosen<T>* each : {&clean, &p}) each->template backward<B>();
  EXPECT_EQ(p.bits(), clean.bits());
}

TYPED_TEST(chunked_logprob, bad_rows_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  chosen<T> p({9, 1, 5, 223}, {.temperature = 0.6});
  for (std::size_t i = 0; i < 9; ++i) p.target[i] = static_cast<std::int64_t>(20 * i);
  for (std::size_t j = 0; j < 50; ++j) p.bias[j] = p.bias[100 + j] = from_f64<T>(-infinity);
  p.x(8, 2) = from_f64<T>(nan);
  p.upstream[8] = 0;
  p.template forward<B>(), p.template backward<B>();
  for (std::size_t i = 0; i < 8; ++i) {
    const bool outside = p.target[i] < 50 || (p.target[i] >= 100 && p.target[i] < 150);
    EXPECT_EQ(to_f64(p.logp[i]) == -infinity, outside) << i;
    for (std::size_t h = 0; h < 5; ++h) EXPECT_TRUE(std::isfinite(to_f64(p.dx(i, h)))) << i;
  }
  EXPECT_TRUE(std::isnan(p.logp[8]));
  for (const double v : p.dw.f64()) ASSERT_TRUE(std::isfinite(v));
}

template <class T>
void expect_memory_of_logprob() {
  const tiles_for_calls wide_tiles(64, 256);
  chosen<T> p({of_memory.rows, 1, of_memory.hidden, of_memory.vocab}, {.temperature = 0.5});
  for (auto& t : p.target) t = 5;
  tigon::workspace scratch;
  context ctx(tigon::serial(), scratch);
  p.template forward<streamed>(ctx), p.template backward<streamed>(ctx);
  const auto [rows, hidden, vocab, padding] = of_memory;
  const std::size_t wide = 4 * 64 * 256 + sizeof(T) * 64 * hidden + 28 * rows + 8 * 256 + products_memory<T>();
  const std::size_t formula = wide + (std::same_as<T, float> ? 0 : 4 * (rows + 256) * hidden);
  expect_memory<T>(scratch.high_water(), formula);
  EXPECT_LE(scratch.high_water(), (tigon::selective_logprob_workspace<streamed, T>(rows, hidden, vocab, ctx)));
}
TEST(chunked_logprob, tiles_take_the_memory_of_a_tile) {
  expect_memory_of_logprob<float>();
  expect_memory_of_logprob<bfloat16>();
}

// ---- Very many tiles of columns, whose shares are alike: each addition to a running sum is rounded the same way.

/// Logits are the bias, and w is the same for all columns but the target's, which has none.
template <class T>
struct many_tiles {
  static constexpr std::size_t rows = 3, hidden = 2, vocab = 1 << 13, target = 6;
  guarded_matrix<T> x{rows, hidden, 0}, w{vocab, hidden, 0}, dx{rows, hidden, 0}, dw{vocab, hidden, 0};
  guarded<T> bias = guarded<T>(vocab);
  double lse = 0, mean = 0, p_target = 0;

  /// The largest logit comes first, last, or each tile has a larger one than those before it.
  explicit many_tiles(int order) {
    x.assign(std::vector<double>(rows * hidden, 0));
    std::vector<double> of_w(vocab * hidden), b(vocab, -0.3);
    for (std::size_t k = 0; k < of_w.size(); ++k) of_w[k] = k / hidden == target ? 0 : k % 2 == 0 ? 0.1 : 0.7;
    w.assign(of_w);
    if (order == 0) b.front() = 0;
    if (order == 1) b.back() = 0;
    for (std::size_t j = 0; j < vocab && order == 2; ++j) b[j] = static_cast<double>(j / 4) * 0x1p-14;
    bias.assign(b);
    double sum = 0;
    for (const T v : bias) sum += std::exp(to_f64(v)), mean += to_f64(v) / vocab;
    lse = std::log(sum), p_target = std::exp(to_f64(bias[target]) - lse);
  }
  double log_p() const { return to_f64(bias[target]) - lse; }
  /// dx from the gradient `up` of every row's log_p.
  std::vector<double> wanted_dx(double up) const {
    std::vector<double> out;
    for (std::size_t k = 0; k < rows * hidden; ++k) out.push_back(-up * (1 - p_target) * to_f64(w(0, k % hidden)));
    return out;
  }
};

template <class T>
void expect_errors_of_many_tiles() {
  using B = streamed;
  using A = accumulator_t<T>;
  const tiles_for_calls slivers(2, 4);
  for (const int order : {0, 1, 2})
    for (const double smoothing : {0.0, 0.25}) {
      SCOPED_TRACE(testing::Message() << "order " << order << ", smoothing " << smoothing);
      many_tiles<T> p(order);
      const std::vector<std::int64_t> target(p.rows, p.target);
      std::vector<A> loss(1), logp(p.rows), ones(p.rows, 1);
      std::vector<tigon::lse_parts<A>> saved(p.rows);
      const tigon::fused_linear_cross_entropy_options opt{
          .loss = {.reduction = reduction::sum, .label_smoothing = smoothing}};
      tigon::workspace scratch;
      const context sizes(tigon::serial(), scratch);
      with_workspace_of(
          tigon::fused_linear_cross_entropy_workspace<B, T>(p.rows, p.hidden, p.vocab, sizes), [&](context& ctx) {
            tigon::fused_linear_cross_entropy_forward<B, T>({p.x, p.w, p.bias}, target, {loss},
                                                            {p.dx.view(), p.dw.view()}, opt, tigon::absent, {}, ctx);
          });
      const double value = -(1 - smoothing) * p.log_p() + smoothing * (p.lse - p.mean);
      EXPECT_NEAR(loss[0] / (p.rows * value), 1, 2 * loss_bound.of<T>());
      if (smoothing != 0) continue;
      EXPECT_TRUE(close(p.dx.f64(), p.wanted_dx(-1), gradient_bound.of<T>()));
      const std::size_t bytes = tigon::selective_logprob_workspace<B, T>(p.rows, p.hidden, p.vocab, sizes);
      with_workspace_of(bytes, [&](context& ctx) {
        tigon::selective_logprob_forward<B, T>({p.x, p.w, p.bias}, target, logp, saved, {}, ctx);
      });
      for (const A got : logp) EXPECT_NEAR(got / p.log_p(), 1, 2 * loss_bound.of<T>());
      with_workspace_of(bytes, [&](context& ctx) {
        tigon::selective_logprob_backward<B, T>({p.x, p.w, p.bias}, target, ones, saved, {p.dx.view(), p.dw.view()}, {},
                                                ctx);
      });
      EXPECT_TRUE(close(p.dx.f64(), p.wanted_dx(1), gradient_bound.of<T>()));
    }
}

TEST(very_many_tiles_of_columns, keep_the_errors) {
  expect_errors_of_many_tiles<float>();
  expect_errors_of_many_tiles<bfloat16>();
}

// ---- A loss on sequences: whole rows of logits, as many as the policy says.

TEST(chunked_preference, gives_the_same_for_every_policy) {
  const auto run = [](auto backend, std::size_t rows = 0) {
    using B = typename decltype(backend)::type;
    sequence_problem<float> p({6, 9, 16, 223}, true, false, -100);
    tigon::workspace scratch;
    context ctx(tigon::serial(), scratch);
    ctx.logit_rows(rows);
    guarded<float> loss(1);
    tigon::fused_linear_simpo_forward<B>(p.layer(), p.target.view(), {loss}, p.gradients(), {.compute_nll_loss = true},
                                         ctx);
    return std::array{loss.f64(), p.dx.f64(), p.dw.f64(), p.dbias.f64(),
                      std::vector<double>{static_cast<double>(scratch.high_water())}};
  };
  const auto usual = run(std::type_identity<usual_backend>{});
  const auto same = [&](const auto& got, const char* name) {
    EXPECT_TRUE(close(got[0], usual[0], 4e-7)) << name;
    for (int k = 1; k < 4; ++k) EXPECT_TRUE(close(got[k], usual[k], 4e-6)) << name << ", gradient " << k;
    EXPECT_LT(got[4][0], usual[4][0]) << name << ": memory";
  };
  same(run(std::type_identity<sevens>{}), "fixed rows");
  same(run(std::type_identity<liger>{}), "liger");
  same(run(std::type_identity<streamed>{}), "stream");
  same(run(std::type_identity<usual_backend>{}, 7), "rows of the context");
}

}  // namespace
