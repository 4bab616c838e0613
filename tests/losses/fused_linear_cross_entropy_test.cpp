// The contract of include/tigon/losses/fused_linear_cross_entropy.hpp, promise by promise.
#include <gtest/gtest.h>

#include <tigon/losses/fused_linear_cross_entropy.hpp>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/logit_loss.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

namespace tigon::backends {
inline namespace TIGON_ABI {

/// A few rows of logits at a time.
struct small_chunks : test::usual_backend {
  using parent = test::usual_backend;
  static constexpr backend_info info{"small_chunks", {device::cpu}};
  using overrides = op_list<>;
  static constexpr chunk_tuning chunk{.logits_bytes = 1024, .row_multiple = 2};
};

/// The same, with a product of its own.
struct own_product : small_chunks {
  using parent = small_chunks;
  static constexpr backend_info info{"own_product", {device::cpu}};
  using overrides = op_list<op::gemm>;
};

}  // namespace TIGON_ABI
}  // namespace tigon::backends

inline std::size_t products = 0;
using usual_product = tigon::kernel<tigon::op::gemm, tigon::provider_t<tigon::op::gemm, tigon::test::usual_backend>>;

template <>
struct tigon::kernel<tigon::op::gemm, tigon::backends::own_product> : usual_product {
  template <backend B, element TA, element TB, element TC, class Epilogue>
  static void forward(matrix_view<const TA> a, gemm_operand<TB> b, in_vector<TC> bias, matrix_view<TC> c,
                      const Epilogue& epilogue, gemm_options opt, context& ctx) {
    ++products;
    usual_product::template forward<B, TA, TB, TC>(a, b, bias, c, epilogue, opt, ctx);
  }
};

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::float16, tigon::gradient, tigon::reduction;
using tigon::backends::small_chunks;
using options = tigon::fused_linear_cross_entropy_options;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

struct sizes {
  std::size_t rows, hidden, vocab, padding = 0;
  friend std::ostream& operator<<(std::ostream& out, sizes s) {
    return out << s.rows << " rows of " << s.hidden << ", " << s.vocab << " classes, padding " << s.padding;
  }
};
const sizes every_size[] = {{0, 5, 7}, {1, 1, 1}, {5, 3, 2, 1}, {3, 0, 9}, {7, 33, 65, 3}, {40, 16, 123}};

struct variant {
  const char* name;
  bool biased, weighted;
  options opt;
};
const variant variants[] = {
    {"plain", false, false, {}},
    {"biased sum, added", true, false, {.loss = {.reduction = reduction::sum}, .dparams = gradient::accumulate}},
    {"scaled by p", true, false, {.loss = {.ignore_index = 0}, .token_scaling = true}},
    {"all",
     true,
     true,
     {.loss = {.label_smoothing = 0.1, .lse_square_scale = 0.01, .softcap = 5, .denominator = 3},
      .token_scaling = true}},
    {"rows", true, true, {.loss = {.reduction = reduction::none}, .dparams = gradient::accumulate}},
};

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type loss_bound{.f32 = 4e-7, .bf16 = 4e-7, .f16 = 4e-7, .f64 = 2e-15};
constexpr by_type gradient_bound{.f32 = 2e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1e-14};

/// What a door is given: nothing where a buffer is empty.
template <class T>
std::span<T> given(guarded<T>& buffer) {
  return buffer.size() == 0 ? std::span<T>() : std::span<T>(buffer);
}

/// Every buffer at a guard page, outputs full of canaries.
template <class T>
struct problem {
  using A = accumulator_t<T>;
  sizes s;
  variant v;
  guarded_matrix<T> x, w, dx, dw;
  guarded<T> bias, dbias, weight;
  guarded<std::int64_t> target;
  guarded<A> upstream, loss, z_loss, accuracy;
  guarded<std::int64_t> predicted;

  TIGON_TEST_NOINLINE explicit problem(sizes of, variant which = variants[0], guard side = guard::behind)
      : s(of),
        v(which),
        x(random_matrix<T>({s.rows, s.hidden, s.padding}, 1, side)),
        w(random_matrix<T>({s.vocab, s.hidden, s.padding}, 2, side, {.deviation = 0.4})),
        dx(s.rows, s.hidden, s.padding, side),
        dw(s.vocab, s.hidden, s.padding, side),
        bias(random_vector<T>(v.biased ? s.vocab : 0, 3, side)),
        dbias(bias.size(), side),
        weight(v.weighted ? s.vocab : 0, side),
        target(s.rows, side),
        upstream(v.opt.loss.reduction == reduction::none ? random_vector<A>(s.rows, 5, side) : guarded<A>(0, side)),
        loss(v.opt.loss.reduction == reduction::none ? s.rows : 1, side),
        z_loss(loss.size(), side),
        accuracy(loss.size(), side),
        predicted(s.rows, side) {
    std::ranges::copy(random_labels(s.rows, s.vocab, v.opt.loss.ignore_index, 4), target.begin());
    if (v.weighted) weight.assign(random_class_weights(s.vocab, 6));
    if (v.opt.dparams == gradient::accumulate)
      dw.assign(normal_values(s.vocab * s.hidden, 7)), dbias.assign(normal_values(dbias.size(), 8));
  }

  template <class B>
  TIGON_TEST_NOINLINE void forward(tigon::matrix_view<T> to_dx, tigon::matrix_view<T> to_dw, std::span<T> to_db,
                                   context& ctx = tigon::default_context()) {
    tigon::fused_linear_cross_entropy_forward<B, T>(x, w, target, loss, to_dx, to_dw, v.opt, given(bias), to_db,
                                                    given(weight), {z_loss, accuracy, predicted}, given(upstream), ctx);
  }
  template <class B>
  void forward(context& ctx = tigon::default_context()) {
    forward<B>(dx.view(), dw.view(), given(dbias), ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(std::span<const A> g, context& ctx = tigon::default_context()) {
    tigon::fused_linear_cross_entropy_backward<B, T>(x, w, target, g, dx.view(), dw.view(), v.opt, given(bias),
                                                     given(dbias), given(weight), ctx);
  }
  auto results() const { return bits_of(loss, z_loss, accuracy, predicted); }

  struct reference {
    std::vector<double> loss, z_loss, dx, dw, dbias;
  };
  /// The definition in f64 with all logits at once; to be asked for before the call, because dw and dbias may be added
  /// to.
  TIGON_TEST_NOINLINE reference wanted(double factor = 1) const {
    const auto xv = x.f64(), wv = w.f64(), bv = bias.f64(), uv = upstream.f64();
    std::vector<double> logits(s.rows * s.vocab);
    for (std::size_t i = 0; i < s.rows; ++i)
      for (std::size_t j = 0; j < s.vocab; ++j) {
        double z = v.biased ? bv[j] : 0;
        for (std::size_t h = 0; h < s.hidden; ++h) z += xv[i * s.hidden + h] * wv[j * s.hidden + h];
        logits[i * s.vocab + j] = z;
      }
    const auto of_classes = v.weighted ? weight.f64() : std::vector<double>(s.vocab, 1);
    loss_reference r(logits, {target.begin(), target.end()}, s.vocab, of_classes, v.opt.loss);
    reference out{{},
                  {},
                  std::vector<double>(s.rows * s.hidden),
                  std::vector<double>(s.vocab * s.hidden),
                  std::vector<double>(dbias.size())};
    if (v.opt.dparams == gradient::accumulate) out.dw = dw.f64(), out.dbias = dbias.f64();
    double total = 0, z_total = 0;
    for (std::size_t i = 0; i < s.rows; ++i) {
      const double scale = v.opt.token_scaling ? r.p_target[i] : 1;
      total += r.loss[i] *= scale, z_total += r.z_loss[i] *= scale;
      for (std::size_t j = 0; j < s.vocab; ++j) {
        const double d = r.dlogits[i * s.vocab + j] * scale * factor * (uv.empty() ? 1 : uv[i]);
        if (v.biased) out.dbias[j] += d;
        for (std::size_t h = 0; h < s.hidden; ++h) {
          out.dx[i * s.hidden + h] += d * wv[j * s.hidden + h];
          out.dw[j * s.hidden + h] += d * xv[i * s.hidden + h];
        }
      }
    }
    const bool rows = v.opt.loss.reduction == reduction::none;
    out.loss = rows ? r.loss : std::vector<double>{total}, out.z_loss = rows ? r.z_loss : std::vector<double>{z_total};
    return out;
  }
  TIGON_TEST_NOINLINE void expect_gradients(const reference& r) const {
    // A vocabulary of one class has no gradient, and what cancels is of the size of x and w.
    const comparison with{.scale = s.vocab == 1 ? 1.0 : 0, .may_be_empty = true};
    EXPECT_TRUE(close(dx.f64(), r.dx, gradient_bound.of<T>(), with)) << "dx";
    EXPECT_TRUE(close(dw.f64(), r.dw, gradient_bound.of<T>(), with)) << "dw";
    EXPECT_TRUE(close(dbias.f64(), r.dbias, gradient_bound.of<T>(), with)) << "dbias";
    EXPECT_TRUE(dx.padding_intact() && dw.padding_intact());
  }
};

// Not every type on every backend: three products and the loss are compiled for each.
#if defined(TIGON_CONFORMANCE_BACKEND)
using pairs = testing::Types<on<usual_backend, float>, on<small_chunks, float>, on<small_chunks, bfloat16>,
                             on<small_chunks, float16>, on<small_chunks, double>>;
#else
using pairs = testing::Types<on<tigon::backends::generic, float>, on<tigon::backends::eigen, float>,
                             on<tigon::backends::xsimd, float>, on<tigon::backends::highway, float>,
                             on<small_chunks, float>, on<small_chunks, bfloat16>, on<small_chunks, float16>,
#if defined(__AVX512BF16__)
                             on<tigon::backends::avx512_bf16, bfloat16>,
#endif
#if defined(TIGON_TESTS_ONEDNN)
                             on<tigon::backends::onednn, bfloat16>,
#endif
                             on<small_chunks, double>>;
#endif

template <class On>
class fused_linear_cross_entropy : public testing::Test {};
TYPED_TEST_SUITE(fused_linear_cross_entropy, pairs, names);

TYPED_TEST(fused_linear_cross_entropy, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sizes s : every_size)
    for (const variant& v : variants)
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", " << v.name << ", " << side);
        problem<T> p(s, v, side);
        const auto wanted = p.wanted();
        p.template forward<B>();
        EXPECT_TRUE(close(p.loss.f64(), wanted.loss, loss_bound.of<T>(), {.scale = 1e-3, .may_be_empty = true}));
        EXPECT_TRUE(close(p.z_loss.f64(), wanted.z_loss, loss_bound.of<T>(), {.scale = 1e-3, .may_be_empty = true}));
        p.expect_gradients(wanted);
      }
}

TYPED_TEST(fused_linear_cross_entropy, backward_takes_one_upstream_gradient_or_one_a_row) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants) {
    SCOPED_TRACE(v.name);
    problem<T> p({20, 17, 67, 2}, v);
    const bool rows = v.opt.loss.reduction == reduction::none;
    const guarded<accumulator_t<T>> one{-0.5};
    const auto wanted = p.wanted(rows ? 1 : -0.5);
    p.template backward<B>(rows ? std::span<const accumulator_t<T>>(p.upstream)
                                : std::span<const accumulator_t<T>>(one));
    p.expect_gradients(wanted);
    EXPECT_TRUE(p.loss.untouched());
  }
}

TYPED_TEST(fused_linear_cross_entropy, each_gradient_may_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const variant& v = variants[3];
  const sizes s{20, 17, 67};
  problem<T> full(s, v);
  full.template forward<B>();
  for (int which = 0; which < 8; ++which) {
    problem<T> p(s, v);
    const bool dx = which & 1, dw = which & 2, db = which & 4;
    p.template forward<B>(dx ? p.dx.view() : tigon::matrix_view<T>{}, dw ? p.dw.view() : tigon::matrix_view<T>{},
                          db ? std::span<T>(p.dbias) : std::span<T>{});
    EXPECT_EQ(p.results(), full.results());
    EXPECT_TRUE(dx ? bits_of(p.dx) == bits_of(full.dx) : p.dx.untouched());
    EXPECT_TRUE(dw ? bits_of(p.dw) == bits_of(full.dw) : p.dw.untouched());
    EXPECT_TRUE(db ? bits_of(p.dbias) == bits_of(full.dbias) : p.dbias.untouched());
  }
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
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.dx.clear(), p.dw.clear(), p.dbias.clear(), p.loss.clear(), p.predicted.clear();
    p.template forward<B>(ctx);
    return bits_of(p.dx, p.dw, p.dbias, p.loss, p.predicted);
  }));
}

TYPED_TEST(fused_linear_cross_entropy, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t threads : {1u, 3u})
    with_workspace_of(
        64,
        [&](context& of_size) {
          problem<T> p({20, 17, 67}, variants[3]);
          const std::size_t bytes = tigon::fused_linear_cross_entropy_workspace<B, T>(20, 17, 67, of_size);
          const auto forward = [&](context& ctx) { p.template forward<B>(ctx); };
          const guarded<accumulator_t<T>> one{1};
          const auto backward = [&](context& ctx) { p.template backward<B>(one, ctx); };
          EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, forward, threads), workspace,
                             "fused_linear_cross_entropy_forward: workspace is of", p.dx, p.dw, p.dbias, p.loss);
          EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, backward, threads), workspace,
                             "fused_linear_cross_entropy_backward: workspace is of", p.dx, p.dw, p.dbias);
          with_workspace_of(bytes, forward, threads);
          with_workspace_of(bytes, backward, threads);
        },
        threads);
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
  if (!std::same_as<tigon::provider_t<tigon::op::fused_linear_cross_entropy, usual_backend>, tigon::backends::generic>)
    GTEST_SKIP() << "a loss of the backend's own makes its products as it likes";
  problem<float> p({40, 16, 123}, variants[3]);
  const auto wanted = p.wanted();
  products = 0;
  p.forward<tigon::backends::own_product>();
  EXPECT_EQ(products, 3 * 20u);  // logits, dx and dw of twenty chunks of two rows
  p.expect_gradients(wanted);
}

/// Weights that the caller has packed: the same bits, and those of another shape or kernel are refused.
TEST(packed_weights, give_the_same_bits) {
  using B = usual_backend;
  for (const bool biased : {false, true}) {
    problem<tigon::bfloat16> p({40, 16, 123}, {"", biased, false, {}});
    p.forward<B>();
    const auto wanted = bits_of(p.loss, p.dx, p.dw, p.dbias);
    const auto w = p.w.view();
    guarded<std::byte> logits(tigon::gemm_pack_bytes<B, tigon::bfloat16, tigon::bfloat16>(16, 123)),
        gradient(tigon::gemm_pack_bytes<B, float, tigon::bfloat16>(123, 16));
    const tigon::packed_weights<tigon::bfloat16> packed{
        tigon::gemm_pack<B, tigon::bfloat16>(w, logits, tigon::transpose::yes),
        tigon::gemm_pack<B, float>(w, gradient)};
    const auto call = [&](tigon::packed_weights<tigon::bfloat16> of) {
      tigon::fused_linear_cross_entropy_forward<B, tigon::bfloat16>(p.x, {w, of}, p.target, p.loss, p.dx.view(),
                                                                    p.dw.view(), {}, given(p.bias), given(p.dbias));
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
  fused_linear_doors() { all.assign(std::vector<double>(64, 1.0)); }

  template <class Change>
  void refuses_both(tigon::error_code code, const std::string& part, Change change) {
    refuses_forward(code, part, change);
    arguments a = good;
    a.upstream = g;
    change(a);
    EXPECT_TRUE(refuses(
        [&] {
          tigon::fused_linear_cross_entropy_backward(a.x, a.w, a.target, a.upstream, a.dx, a.dw, a.opt, a.bias, a.dbias,
                                                     a.weight);
        },
        code, "fused_linear_cross_entropy_backward: " + part, p.dx, p.dw, p.dbias, all));
  }
  template <class Change>
  void refuses_forward(tigon::error_code code, const std::string& part, Change change) {
    arguments a = good;
    change(a);
    EXPECT_TRUE(refuses(
        [&] {
          tigon::fused_linear_cross_entropy_forward(a.x, a.w, a.target, a.loss, a.dx, a.dw, a.opt, a.bias, a.dbias,
                                                    a.weight, a.metrics, a.upstream);
        },
        code, "fused_linear_cross_entropy_forward: " + part, p.dx, p.dw, p.dbias, p.loss, p.z_loss, p.predicted, all));
  }

  problem<float> p{{3, 4, 6, 1}, {"", true, true, {}}};
  guarded<float> all = guarded<float>(64);
  const guarded<float> g{1, 2, 3};
  const view front{all.data(), 3, 4}, wide{all.data(), 6, 4};
  const floats six = floats(all).first(6), one = six.first(1);
  const arguments good{p.x.view(), p.w.view(), p.target, p.loss,   p.dx.view(), p.dw.view(),
                       {},         p.bias,     p.dbias,  p.weight, {},          {}};
};

TEST_F(fused_linear_doors, refuse_wrong_shapes) {
  using enum tigon::error_code;
  refuses_both(shape, "vocab is 0; expected at least 1", [](auto& a) { a.w.rows = 0; });
  refuses_both(shape, "x is a null pointer", [](auto& a) { a.x.data = nullptr; });
  refuses_both(stride, "x is of row stride 3", [](auto& a) { a.x.row_stride = 3; });
  refuses_both(shape, "w is 6 x 3; expected 6 x 4", [](auto& a) { a.w.cols = 3; });
  refuses_both(stride, "w is of row stride 3", [](auto& a) { a.w.row_stride = 3; });
  refuses_both(shape, "dx is 2 x 4; expected 3 x 4", [](auto& a) { a.dx.rows = 2; });
  refuses_both(shape, "dw is 6 x 3; expected 6 x 4", [](auto& a) { a.dw.cols = 3; });
  refuses_both(shape, "bias is of 5 elements; expected 6", [](auto& a) { a.bias = a.bias.first(5); });
  refuses_both(shape, "dbias is of 5 elements; expected 6", [](auto& a) { a.dbias = a.dbias.first(5); });
  refuses_both(shape, "class_weight is of 5 elements; expected 6", [](auto& a) { a.weight = a.weight.first(5); });
  refuses_both(shape, "target is of 2 elements; expected 3", [](auto& a) { a.target = a.target.first(2); });
  refuses_both(shape, "upstream is of 2 elements; expected 3",
               [&](auto& a) { a.upstream = std::span<const float>(g).first(2); });
  refuses_forward(shape, "loss is of 1 elements; expected 3", [](auto& a) { a.opt.loss.reduction = reduction::none; });
  refuses_forward(shape, "z_loss is of 3 elements; expected 1",
                  [&](auto& a) { a.metrics.z_loss = floats(all).first(3); });
  EXPECT_TIGON_ERROR(
      tigon::fused_linear_cross_entropy_backward(good.x, good.w, good.target, {}, good.dx, good.dw), shape,
      "fused_linear_cross_entropy_backward: upstream is empty; expected one number, or one for each row", p.dx, p.dw);
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
  refuses_both(alias, "dx overlaps x", [&](auto& a) { a.x = a.dx = front; });
  refuses_both(alias, "dx overlaps w", [&](auto& a) { a.w = wide, a.dx = front; });
  refuses_both(alias, "dx overlaps dw", [&](auto& a) { a.dw = wide, a.dx = front; });
  refuses_both(alias, "dx overlaps bias", [&](auto& a) { a.bias = six, a.dx = front; });
  refuses_both(alias, "dx overlaps dbias", [&](auto& a) { a.dbias = six, a.dx = front; });
  refuses_both(alias, "dx overlaps class_weight", [&](auto& a) { a.weight = six, a.dx = front; });
  refuses_both(alias, "dx overlaps upstream", [&](auto& a) { a.upstream = one, a.dx = front; });
  refuses_both(alias, "dw overlaps x", [&](auto& a) { a.x = front, a.dw = wide; });
  refuses_both(alias, "dw overlaps w", [&](auto& a) { a.w = a.dw = wide; });
  refuses_both(alias, "dw overlaps bias", [&](auto& a) { a.bias = six, a.dw = wide; });
  refuses_both(alias, "dw overlaps dbias", [&](auto& a) { a.dbias = six, a.dw = wide; });
  refuses_both(alias, "dw overlaps upstream", [&](auto& a) { a.upstream = one, a.dw = wide; });
  refuses_both(alias, "dbias overlaps x", [&](auto& a) { a.x = front, a.dbias = six; });
  refuses_both(alias, "dbias overlaps w", [&](auto& a) { a.w = wide, a.dbias = six; });
  refuses_both(alias, "dbias overlaps bias", [&](auto& a) { a.bias = a.dbias = six; });
  refuses_both(alias, "dbias overlaps upstream", [&](auto& a) { a.upstream = one, a.dbias = six; });
  refuses_forward(alias, "loss overlaps x", [&](auto& a) { a.x = front, a.loss = one; });
  refuses_forward(alias, "loss overlaps dw", [&](auto& a) { a.dw = wide, a.loss = one; });
  refuses_forward(alias, "loss overlaps dbias", [&](auto& a) { a.dbias = six, a.loss = one; });
  refuses_forward(alias, "z_loss overlaps loss", [&](auto& a) { a.loss = a.metrics.z_loss = one; });
}

}  // namespace
