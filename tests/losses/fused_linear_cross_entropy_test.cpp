// The contract of include/tigon/losses/fused_linear_cross_entropy.hpp, promise by promise.
#include <gtest/gtest.h>

#include "support/backends.hpp"
#include "support/chunk_backends.hpp"
#if !defined(TIGON_CONFORMANCE_BACKEND)
#include "support/emulated_tiles.hpp"
#endif
#include "support/linear_cross_entropy.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::float16, tigon::gradient, tigon::reduction;
using tigon::backends::small_chunks;
using options = tigon::fused_linear_cross_entropy_options;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

const linear_sizes every_size[] = {{0, 5, 7}, {1, 1, 1}, {5, 3, 2, 1}, {3, 0, 9}, {7, 33, 65, 3}, {40, 16, 123}};

using variant = linear_cross_entropy_variant;
const variant variants[] = {
    {"plain", false, false, {}},
    {"biased sum, added", true, false, {.loss = {.reduction = reduction::sum}}, gradient::accumulate},
    {"scaled by p", true, false, {.loss = {.ignore_index = 0}, .token_scaling = true}},
    {"all",
     true,
     true,
     {.loss = {.label_smoothing = 0.1, .lse_square_scale = 0.01, .softcap = 5, .denominator = 3},
      .token_scaling = true}},
    {"rows", true, true, {.loss = {.reduction = reduction::none}}, gradient::accumulate},
};

template <class T>
using problem = linear_cross_entropy_problem<T>;

// Not every type on every backend: three products and the loss are compiled for each. Golden values are compared on
// every engine; here are single numbers and lanes, many chunks and one, every type, and products of a backend's own.
#if defined(TIGON_CONFORMANCE_BACKEND)
using pairs = testing::Types<on<usual_backend, float>, on<small_chunks, float>, on<small_chunks, bfloat16>,
                             on<small_chunks, float16>, on<small_chunks, double>>;
#else
using pairs = with_engines<
    list<on<single_numbers, double>, on<small_chunks, float>, on<small_chunks, bfloat16>, on<bf16_backend, bfloat16>>,
    on<tigon::backends::generic, float>, on<small_chunks, double>,
#if TIGON_FLAGS_amx
    on<tigon::backends::amx, bfloat16>,
#endif
#if defined(TIGON_TESTS_ONEDNN)
    on<tigon::backends::onednn, bfloat16>,
#endif
    on<small_chunks, float16>, on<tigon::backends::emulated_amx, bfloat16>>;
#endif

template <class On>
class fused_linear_cross_entropy : public testing::Test {};
TYPED_TEST_SUITE(fused_linear_cross_entropy, pairs, names);

TYPED_TEST(fused_linear_cross_entropy, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const linear_sizes s : every_size)
    for (const variant& v : variants)
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", " << v.name << ", " << side);
        problem<T> p(s, v, side);
        const auto wanted = p.wanted();
        p.template forward<B>();
        p.expect_results(wanted);
      }
}

TYPED_TEST(fused_linear_cross_entropy, backward_takes_one_upstream_gradient_or_one_a_row) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants) {
    SCOPED_TRACE(v.name);
    expect_backward_with_an_upstream_gradient<B>(problem<T>({20, 17, 67, 2}, v));
  }
}

TYPED_TEST(fused_linear_cross_entropy, backward_without_rows_needs_no_upstream_gradient) {
  problem<typename TypeParam::element> p({0, 5, 7}, variants[1]);
  const auto wanted = p.wanted();
  p.template backward<typename TypeParam::backend>({});
  p.expect_gradients(wanted);
}

TYPED_TEST(fused_linear_cross_entropy, each_gradient_may_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t which : {1, 3})
    expect_gradients_may_be_left_out<B>([=] { return problem<T>({20, 17, 67}, variants[which]); });
}

TYPED_TEST(fused_linear_cross_entropy, nothing_kept_is_zero) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({9, 5, 30}, variants[3]);
  std::ranges::fill(p.target, -100);
  p.template forward<B>();
  for (const auto& zeros : {p.loss.f64(), p.z_loss.f64(), p.accuracy.f64(), p.dx.f64(), p.dw.f64(), p.dbias.f64()})
    EXPECT_EQ(std::ranges::count(zeros, 0.0), std::ssize(zeros));
  EXPECT_EQ(p.predicted.f64(), std::vector<double>(9, -1));
}

TYPED_TEST(fused_linear_cross_entropy, ignored_rows_contribute_nothing) {
  for (const variant& v : variants) {
    SCOPED_TRACE(v.name);
    for (const std::size_t hidden : {17, 300})
      expect_nothing_of_ignored_rows<typename TypeParam::backend, typename TypeParam::element>({20, hidden, 67, 2}, v);
  }
}

TYPED_TEST(fused_linear_cross_entropy, rows_do_not_depend_on_which_others_count) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  expect_rows_for_themselves(rows_of_cross_entropy<B, T>({130, 40, 60, 1}, variants[4], 100));
  expect_rows_for_themselves(rows_of_cross_entropy<B, T>({21, 7, 33, 1}, variants[3]));
  // The loss alone: x is gathered in the workspace.
  auto loss = rows_of_cross_entropy<B, T>({130, 40, 60, 1}, variants[4], 100);
  loss.call = [](problem<T>& p, context& ctx) { p.template forward<B>({}, {}, {}, ctx); };
  loss.results = [](const problem<T>& p, std::size_t i) { return std::vector<double>{to_f64(p.loss[i])}; };
  expect_rows_for_themselves(loss);
}

TYPED_TEST(fused_linear_cross_entropy, capped_logits_may_be_infinite) {
  expect_capped_infinities<typename TypeParam::backend, typename TypeParam::element>({9, 5, 67});
}

TYPED_TEST(fused_linear_cross_entropy, keeps_the_digits_of_logits_beyond_the_cap) {
  if constexpr (std::same_as<typename TypeParam::element, float>)
    for (const std::size_t vocab : {67, 5000}) expect_digits_beyond_the_cap<typename TypeParam::backend>(vocab);
}

/// Calls whose gradients f32 inside does not give to within the bar of golden sets: logits of 10, and the cap near
/// them.
struct few_rows_case {
  linear_sizes sizes;
  double deviation;  ///< of logits
  variant of;
};
const few_rows_case few_rows_cases[] = {
    {{5, 32, 200}, 10, {"capped", false, false, {.loss = {.label_smoothing = 0.1, .softcap = 30}}}},
    {{4, 40, 301}, 10, {"smoothed", true, false, {.loss = {.label_smoothing = 0.1}}}},
    {{8, 16, 90}, 1, {"scaled by p", false, false, {.loss = {.lse_square_scale = 0.01}, .token_scaling = true}}},
    {{7, 24, 130}, 8, {"weighted", true, true, {.loss = {.label_smoothing = 0.1, .softcap = 12}}}},
};

TYPED_TEST(fused_linear_cross_entropy, few_rows_keep_to_the_bar_of_golden_sets) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  if constexpr (tigon::detail::few_cross_entropy_in_f64<B, T>)
    for (const few_rows_case& c : few_rows_cases)
      for (std::uint64_t seed = 0; seed < 50; ++seed) {
        SCOPED_TRACE(testing::Message() << c.of.name << ", seed " << seed);
        problem<T> p(c.sizes, c.of);
        const auto [rows, hidden, vocab, padding] = c.sizes;
        p.x.assign(normal_values(rows * hidden, 2 * seed + 100));
        p.w.assign(normal_values(vocab * hidden, 2 * seed + 101,
                                 {.deviation = c.deviation / std::sqrt(static_cast<double>(hidden))}));
        const auto wanted = p.wanted();
        p.template forward<B>();
        expect_golden_bar(p, p.loss.f64(), wanted.loss, wanted);
      }
}

TYPED_TEST(fused_linear_cross_entropy, few_rows_of_several_blocks) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  if constexpr (tigon::detail::few_cross_entropy_in_f64<B, T>)
    // Two blocks of depth, two tasks of columns, two segments of the vocabulary.
    for (const linear_sizes s :
         {linear_sizes{1, 2100, 70, 1}, linear_sizes{3, 1100, 80}, linear_sizes{8, 20, 1061, 1}}) {
      SCOPED_TRACE(testing::Message() << s);
      problem<T> p(s, variants[4]);
      const auto wanted = p.wanted();
      p.template forward<B>();
      p.expect_results(wanted);
      EXPECT_TRUE(same_forward_for_any_threads<B>(p));
    }
  expect_rows_for_themselves(rows_of_cross_entropy<B, T>({8, 40, 70, 1}, variants[3]));
  expect_nothing_of_ignored_rows<B, T>({8, 17, 67, 2}, variants[4]);
}

TYPED_TEST(fused_linear_cross_entropy, bad_rows_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> clean({9, 5, 30}, variants[4]), p({9, 5, 30}, variants[4]);
  p.x(4, 2) = from_f64<T>(nan);
  clean.template forward<B>(), p.template forward<B>();
  for (std::size_t i = 0; i < 9; ++i) {
    EXPECT_TRUE(i == 4 ? std::isnan(p.loss[i]) : p.loss[i] == clean.loss[i]) << i;
    for (std::size_t h = 0; h < 5; ++h)
      EXPECT_TRUE(i == 4 ? std::isnan(to_f64(p.dx(i, h))) : to_f64(p.dx(i, h)) == to_f64(clean.dx(i, h))) << i;
  }
  EXPECT_EQ(p.predicted[4], -1);
}

TYPED_TEST(fused_linear_cross_entropy, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({120, 40, 700}, variants[3]);
  EXPECT_TRUE(same_forward_for_any_threads<B>(p));
}

TYPED_TEST(fused_linear_cross_entropy, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t rows : {20u, 6u}) {
    problem<T> p({rows, 17, 67}, variants[3]);
    const guarded<accumulator_t<T>> one{1};
    const auto bytes = [=](context& ctx) {
      return tigon::fused_linear_cross_entropy_workspace<B, T>(rows, 17, 67, ctx);
    };
    expect_takes_its_workspace("fused_linear_cross_entropy_backward", p, bytes,
                               [&](context& ctx) { p.template backward<B>(one, ctx); });
    p.clear();
    expect_takes_its_workspace("fused_linear_cross_entropy_forward", p, bytes,
                               [&](context& ctx) { p.template forward<B>(ctx); });
  }
}

template <class B>
std::size_t chunk_of(std::size_t rows, std::size_t vocab) {
  return tigon::detail::cross_entropy_chunk<B, float>(rows, 16, vocab, tigon::default_context());
}

TEST(chunks, are_even_and_within_the_budget) {
  using B = usual_backend;
  constexpr std::size_t most = B::chunk.logits_bytes / (32000 * sizeof(float)), step = B::chunk.row_multiple;
  for (const std::size_t rows : {most + 1, 2 * most + 5, std::size_t{2048}, std::size_t{8192}}) {
    const std::size_t chunk = chunk_of<B>(rows, 32000), chunks = (rows + chunk - 1) / chunk;
    EXPECT_LE(chunk, most);
    EXPECT_EQ(chunk % step, 0u);
    EXPECT_LE(chunk, (rows + chunks - 1) / chunks + step) << "chunks of different sizes";
  }
  EXPECT_EQ((chunk_of<B>(most / step * step, 32000)), most / step * step);
  EXPECT_EQ((chunk_of<B>(step + 1, 32000)), step + 1) << "one chunk need not be a multiple";
  EXPECT_EQ((chunk_of<B>(100, 100'000'000)), 1u);
  EXPECT_EQ((chunk_of<small_chunks>(40, 123)), 2u);
  EXPECT_EQ((chunk_of<small_chunks>(0, 123)), 1u);
}

TEST(chunks, stay_below_140_MiB_for_2048_tokens_of_128256_classes) {
  constexpr std::size_t mib = std::size_t{1} << 20;
  const std::size_t bytes = tigon::fused_linear_cross_entropy_workspace<usual_backend, float>(2048, 2048, 128256);
  EXPECT_LT(bytes, 140 * mib);
  const std::size_t rows = chunk_of<usual_backend>(2048, 128256);
  EXPECT_GT(bytes, rows * 128256 * sizeof(float));
}

TEST(chunks, of_a_backend_with_its_own_product_use_it) {
  if (!std::same_as<usual_provider<tigon::op::fused_linear_cross_entropy>, tigon::backends::generic>)
    GTEST_SKIP() << "a loss of the backend's own makes its products as it likes";
  problem<float> p({40, 16, 123}, variants[3]);
  p.keep_all();
  const auto wanted = p.wanted();
  counted = {};
  p.forward<tigon::backends::small_counting>();
  EXPECT_EQ(counted.products, 3 * 20u);  // logits, dx and dw of twenty chunks of two rows
  p.expect_gradients(wanted);
}

TEST(ignored_rows, are_not_multiplied) {
  using B = tigon::backends::small_counting;
  for (const std::size_t chunk : {0u, 100u})
    expect_products_of_kept_rows(rows_of_cross_entropy<B, float>({130, 16, 123, 1}, variants[3], chunk),
                                 counted.multiplications, 3 * 16 * 123);
}

TEST(ignored_rows, take_the_memory_of_dx_or_of_logits_that_do_not_exist) {
  using tigon::detail::bytes_of_row, tigon::detail::gathered_chunk;
  EXPECT_EQ(gathered_chunk(512, 2048, bytes_of_row<float>(2048, 32000), true), 512u);
  const auto rows = [](std::size_t chunk, std::size_t all, std::size_t hidden, std::size_t vocab) {
    return gathered_chunk(chunk, all, bytes_of_row<float>(hidden, vocab), false);
  };
  EXPECT_EQ(rows(512, 2048, 2048, 32000), 480u);
  EXPECT_EQ(rows(256, 2048, 2048, 128256), 224u);
  EXPECT_EQ(rows(512, 2048, 2048, 60), 64u) << "at least 64";
  EXPECT_EQ(rows(9, 2048, 2048, 60), 9u) << "not more than of all rows";
  EXPECT_EQ(rows(512, 512 * 64, 2048, 32000), 512u) << "no more chunks than are added up one after the other";
  EXPECT_EQ(rows(512, 512 * 65, 2048, 32000), 512u);
  constexpr std::size_t mib = std::size_t{1} << 20;
  EXPECT_LT((tigon::fused_linear_cross_entropy_workspace<usual_backend, float>(2048, 2048, 32000)), 70 * mib);
}

// What the aggregates deduce from views that may write and views that may not; what is left out is absent.
using tigon::linear_gradients, tigon::linear_layer, tigon::saved_gradients;
constexpr tigon::matrix_view<float> writable;
constexpr tigon::matrix_view<const float> readable;
static_assert(std::same_as<decltype(linear_layer{writable, readable}), linear_layer<float>>);
static_assert(std::same_as<decltype(linear_layer{readable, writable, std::span<float>()}), linear_layer<float>>);
static_assert(std::same_as<decltype(linear_gradients{writable}), linear_gradients<float>>);
static_assert(std::same_as<decltype(saved_gradients{writable, readable}), saved_gradients<float>>);
static_assert(linear_layer{writable, readable}.bias.data() == nullptr);
static_assert(!linear_gradients<float>{.mode = tigon::gradient::accumulate}.any());

/// Weights that the caller has packed: the same bits, and those of another shape or kernel are refused.
TEST(packed_weights, give_the_same_bits) {
  using B = usual_backend;
  for (const bool biased : {false, true}) {
    problem<tigon::bfloat16> p({40, 16, 123}, {"", biased, false, {}});
    p.forward<B>();
    const auto wanted = bits_of(p.loss, p.dx, p.dw, p.dbias);
    const auto w = p.w.view();
    using tigon::gemm_detail::round_up;  // so that they begin at a cache line and end at the guard
    guarded<std::byte> logits(round_up(tigon::gemm_pack_bytes<B, tigon::bfloat16, tigon::bfloat16>(16, 123), 64)),
        gradient(round_up(tigon::gemm_pack_bytes<B, float, tigon::bfloat16>(123, 16), 64));
    const tigon::packed_weights<tigon::bfloat16> packed{
        tigon::gemm_pack<B, tigon::bfloat16>(w, logits, tigon::transpose::yes),
        tigon::gemm_pack<B, float>(w, gradient)};
    const auto call = [&](tigon::packed_weights<tigon::bfloat16> of) {
      tigon::linear_layer<tigon::bfloat16> layer = p.head();
      layer.packed = of;
      tigon::fused_linear_cross_entropy_forward<B>(layer, p.target, {p.loss}, p.gradients());
    };
    p.dx.clear(), p.dw.clear(), p.dbias.clear(), p.loss.clear();
    call(packed);
    EXPECT_EQ(bits_of(p.loss, p.dx, p.dw, p.dbias), wanted);
    const std::string op = "fused_linear_cross_entropy_forward: packed.";
    const tigon::packed_weights<tigon::bfloat16> turned{packed.gradient, packed.gradient};
    EXPECT_TRUE(refuses([&] { call(turned); }, tigon::error_code::shape, op + "logits", p.dx, p.dw, p.loss));
    auto foreign = packed;
    foreign.gradient.layout = "another's";
    EXPECT_TRUE(refuses([&] { call(foreign); }, tigon::error_code::state, op + "gradient", p.dx, p.dw, p.loss));
    // Nothing is written over them.
    const auto in_place = [&](std::span<float> loss, tigon::matrix_view<tigon::bfloat16> dw) {
      tigon::linear_layer<tigon::bfloat16> layer = p.head();
      layer.packed = packed;
      tigon::fused_linear_cross_entropy_forward<B>(layer, p.target, {loss}, {.dx = p.dx.view(), .dw = dw});
    };
    const std::span<float> in_logits(reinterpret_cast<float*>(logits.data()), 1);
    const tigon::matrix_view<tigon::bfloat16> in_gradient(reinterpret_cast<tigon::bfloat16*>(gradient.data()), 123, 16);
    const std::string door = "fused_linear_cross_entropy_forward: ";
    EXPECT_TRUE(refuses([&] { in_place(in_logits, p.dw.view()); }, tigon::error_code::alias,
                        door + "loss overlaps packed.logits", p.dx, p.dw, logits));
    EXPECT_TRUE(refuses([&] { in_place(p.loss, in_gradient); }, tigon::error_code::alias,
                        door + "dw overlaps packed.gradient", p.dx, p.loss, gradient));
  }
}

/// The doors, which are the same for every backend: refused before the first write.
class fused_linear_doors : public testing::Test {
 protected:
  using view = tigon::matrix_view<float>;
  using floats = std::span<float>;
  struct arguments {
    view x, w;
    std::span<const std::int64_t> target;
    floats loss;
    view dx, dw;
    options opt;
    std::span<const float> bias;
    floats dbias;
    std::span<const float> weight;
    tigon::cross_entropy_metrics<float> metrics;
    std::span<const float> upstream;
  };
  using change_of = std::function<void(arguments&)>;

  TIGON_TEST_NOINLINE void refuses_both(tigon::error_code code, const std::string& part, const change_of& change) {
    refuses_forward(code, part, change);
    arguments a = good;
    a.upstream = g;
    change(a);
    EXPECT_TRUE(refuses(
        [&] {
          tigon::fused_linear_cross_entropy_backward(tigon::linear_layer{a.x, a.w, a.bias}, a.target, a.upstream,
                                                     {a.dx, a.dw, a.dbias}, a.opt, a.weight);
        },
        code, "fused_linear_cross_entropy_backward: " + part, p.dx, p.dw, p.dbias, m.all));
  }
  TIGON_TEST_NOINLINE void refuses_forward(tigon::error_code code, const std::string& part, const change_of& change) {
    arguments a = good;
    change(a);
    EXPECT_TRUE(refuses(
        [&] {
          tigon::fused_linear_cross_entropy_forward(tigon::linear_layer{a.x, a.w, a.bias}, a.target,
                                                    {a.loss, a.metrics}, {a.dx, a.dw, a.dbias}, a.opt, a.weight,
                                                    a.upstream);
        },
        code, "fused_linear_cross_entropy_forward: " + part, p.dx, p.dw, p.dbias, p.loss, p.z_loss, p.predicted,
        m.all));
  }

  auto both() { return std::bind_front(&fused_linear_doors::refuses_both, this); }

  problem<float> p{{3, 4, 6, 1}, {"", true, true, {}}};
  overlapping_memory m{p.s};
  const guarded<float> g{1, 2, 3};
  const arguments good{p.x.view(), p.w.view(), p.target, p.loss,   p.dx.view(), p.dw.view(),
                       {},         p.bias,     p.dbias,  p.weight, {},          {}};
};

TEST_F(fused_linear_doors, refuse_wrong_shapes) {
  using enum tigon::error_code;
  refuse_wrong_layers(p.s, both());
  refuses_both(shape, "class_weight is of 5 elements; expected 6", [](auto& a) { a.weight = a.weight.first(5); });
  refuses_both(shape, "target is of 2 elements; expected 3", [](auto& a) { a.target = a.target.first(2); });
  refuses_both(shape, "upstream is of 2 elements; expected 3",
               [&](auto& a) { a.upstream = std::span<const float>(g).first(2); });
  refuses_forward(shape, "loss is of 1 elements; expected 3", [](auto& a) { a.opt.loss.reduction = reduction::none; });
  refuses_forward(shape, "z_loss is of 3 elements; expected 1",
                  [&](auto& a) { a.metrics.z_loss = m.classes.first(3); });
  EXPECT_TIGON_ERROR(tigon::fused_linear_cross_entropy_backward(tigon::linear_layer{good.x, good.w}, good.target, {},
                                                                {good.dx, good.dw}),
                     shape,
                     "fused_linear_cross_entropy_backward: upstream is empty; expected one number, or one for each row",
                     p.dx, p.dw);
}

TEST_F(fused_linear_doors, refuse_wrong_numbers_and_labels) {
  using enum tigon::error_code;
  refuses_both(argument, "label_smoothing is", [](auto& a) { a.opt.loss.label_smoothing = nan; });
  refuses_both(argument, "lse_square_scale is", [](auto& a) { a.opt.loss.lse_square_scale = -1; });
  refuses_both(argument, "softcap is", [](auto& a) { a.opt.loss.softcap = -1; });
  refuses_both(argument, "denominator is", [](auto& a) { a.opt.loss.denominator = nan; });
  for (const std::int64_t bad : {-1, 6}) {
    p.target[1] = bad;
    refuses_both(index, "target[1] is " + std::to_string(bad) + "; expected at least 0 and below 6", [](auto&) {});
  }
}

TEST_F(fused_linear_doors, refuse_overlaps) {
  using enum tigon::error_code;
  refuse_overlapping_layers(m, both());
  refuses_both(alias, "dx overlaps class_weight", [&](auto& a) { a.weight = m.classes, a.dx = m.of_rows; });
  refuses_both(alias, "dx overlaps upstream", [&](auto& a) { a.upstream = m.one, a.dx = m.of_rows; });
  refuses_both(alias, "dw overlaps upstream", [&](auto& a) { a.upstream = m.one, a.dw = m.of_classes; });
  refuses_both(alias, "dbias overlaps upstream", [&](auto& a) { a.upstream = m.one, a.dbias = m.classes; });
  refuses_forward(alias, "loss overlaps x", [&](auto& a) { a.x = m.of_rows, a.loss = m.one; });
  refuses_forward(alias, "loss overlaps dw", [&](auto& a) { a.dw = m.of_classes, a.loss = m.one; });
  refuses_forward(alias, "loss overlaps dbias", [&](auto& a) { a.dbias = m.classes, a.loss = m.one; });
  refuses_forward(alias, "z_loss overlaps loss", [&](auto& a) { a.loss = a.metrics.z_loss = m.one; });
}

}  // namespace
