// The contract of include/tigon/losses/fused_linear_kl_div.hpp, promise by promise.
#include <gtest/gtest.h>

#include <tigon/losses/fused_linear_kl_div.hpp>
#include <tigon/losses/kl_div.hpp>

#include "support/backends.hpp"
#include "support/chunk_backends.hpp"
#include "support/ignored_rows.hpp"
#include "support/linear_problem.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::gradient, tigon::matrix_view;
using tigon::backends::small_chunks;
using reduction = tigon::divergence_reduction;
using options = tigon::fused_linear_kl_div_options;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

const linear_sizes every_size[] = {{0, 5, 7}, {1, 1, 1}, {5, 3, 2, 1}, {3, 0, 9}, {7, 33, 65, 3}, {40, 16, 123}};

struct variant {
  const char* name;
  options opt;
  bool labelled = false, biased = false;
  gradient mode = gradient::overwrite;
};
const variant variants[] = {
    {"probabilities", {}},
    {"log-probabilities, biased, labelled, added",
     {.log_target = true, .temperature = 1.7, .ignore_index = 3},
     true,
     true,
     gradient::accumulate},
    {"mean of probabilities of at least eps", {.reduction = reduction::mean, .eps = 0.01, .denominator = 3}, true},
    {"sum, upstream", {.reduction = reduction::sum, .log_target = true, .temperature = 0.5, .upstream = -2.5}},
    {"elements", {.reduction = reduction::none, .temperature = 2}, true, true},
    {"elements of log-probabilities", {.reduction = reduction::none, .log_target = true}},
};

// The loss in units of sum P (|log P| + |y|), the others of |reference| + its root mean square; at most ten times the
// worst that was seen.
constexpr by_type loss_bound{.f32 = 4e-7, .bf16 = 4e-7, .f16 = 4e-7, .f64 = 8e-16};
constexpr by_type element_bound{.f32 = 1e-6, .bf16 = 1e-6, .f16 = 1e-6, .f64 = 4e-15};
constexpr by_type gradient_bound{.f32 = 1e-5, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1.2e-14};

/// Every buffer at a guard page, outputs full of canaries.
template <class T>
struct problem : linear_problem<T> {
  using A = accumulator_t<T>;
  linear_sizes s;
  variant v;
  bool elements;
  guarded_matrix<T> teacher;
  std::vector<std::int64_t> labels;
  guarded_matrix<A> loss, upstream;

  TIGON_TEST_NOINLINE explicit problem(linear_sizes of, const variant& which = variants[0], guard side = guard::behind)
      : linear_problem<T>(of, which.biased, which.mode, side),
        s(of),
        v(which),
        elements(v.opt.reduction == reduction::none),
        teacher(s.rows, s.vocab, s.padding, side),
        labels(s.rows, 1),
        loss(elements ? s.rows : 1, elements ? s.vocab : 1, s.padding, side),
        upstream(random_matrix<A>({elements ? s.rows : 1, elements ? s.vocab : 1}, 9, side)) {
    // Rows of the softmax of random numbers, one of them a hard target; in f32 nearly of sum 1.
    const auto numbers = normal_values(s.rows * s.vocab, 11);
    for (std::size_t i = 0; i < s.rows; ++i) {
      long double sum = 0;
      for (std::size_t j = 0; j < s.vocab; ++j) sum += std::exp((long double)numbers[i * s.vocab + j]);
      for (std::size_t j = 0; j < s.vocab; ++j) {
        const double log_p = numbers[i * s.vocab + j] - static_cast<double>(std::log(sum));
        const double hard = j == i % s.vocab ? 0 : -infinity, of_row = i == 2 ? hard : log_p;
        teacher(i, j) = from_f64<T>(v.opt.log_target ? of_row : std::exp(of_row));
      }
    }
    if (s.rows > 3) labels[1] = labels[3] = v.opt.ignore_index;
  }
  bool kept(std::size_t i) const { return !v.labelled || labels[i] != v.opt.ignore_index; }
  TIGON_TEST_NOINLINE void clear() { this->clear_gradients(), loss.clear(); }

  template <class B>
  TIGON_TEST_NOINLINE void forward(matrix_view<T> to_dx, matrix_view<T> to_dw, std::span<T> to_db,
                                   context& ctx = tigon::default_context()) {
    const tigon::linear_gradients<T> to{to_dx, to_dw, to_db, v.mode};
    if (v.labelled)
      tigon::fused_linear_kl_div_forward<B>(this->head(), teacher, labels, loss.view(), to, v.opt, ctx);
    else
      tigon::fused_linear_kl_div_forward<B>(this->head(), teacher, tigon::absent, loss.view(), to, v.opt, ctx);
  }
  template <class B>
  void forward(context& ctx = tigon::default_context()) {
    forward<B>(this->dx.view(), this->dw.view(), given(this->dbias), ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(context& ctx = tigon::default_context()) {
    if (v.labelled)
      tigon::fused_linear_kl_div_backward<B>(this->head(), teacher, labels, upstream.view(), this->gradients(), v.opt,
                                             ctx);
    else
      tigon::fused_linear_kl_div_backward<B>(this->head(), teacher, tigon::absent, upstream.view(), this->gradients(),
                                             v.opt, ctx);
  }
  auto results() const { return bits_of(loss); }
  auto bits() const { return bits_of(loss, this->dx, this->dw, this->dbias); }

  struct reference : layer_gradients {
    std::vector<double> loss;
    double size = 0;  ///< c sum P (|log P| + |y|)
  };
  /// The definition in long double with all logits at once, for these upstream gradients or for one number.
  TIGON_TEST_NOINLINE reference wanted(bool with_upstream, double factor = 1) const {
    using N = long double;
    const whole_layer layer = this->layer();
    const std::vector<double> log_q = layer.log_probs(v.opt.temperature);
    double n = 0;
    for (std::size_t i = 0; i < s.rows; ++i) n += kept(i);
    if (v.opt.denominator != 0) n = v.opt.denominator;
    const double c = tigon::detail::divergence_scale(v.opt.reduction, n, s.vocab);
    reference out{this->before(), {}};
    N total = 0, size = 0;
    for (std::size_t i = 0; i < s.rows; ++i) {
      std::vector<N> gp(s.vocab);
      N mass = 0;
      for (std::size_t j = 0; j < s.vocab; ++j) {
        const N t = static_cast<N>(to_f64(teacher(i, j))), y = static_cast<N>(log_q[i * s.vocab + j]);
        const N p = v.opt.log_target ? std::exp(t) : t;
        const N log_p = v.opt.log_target ? t : std::log(std::max(t, static_cast<N>(v.opt.eps)));
        const N l = !kept(i) || p == 0 ? 0 : p * (log_p - y);
        if (elements) out.loss.push_back(static_cast<double>(l));
        if (!kept(i) || p == 0) continue;
        total += l, size += p * (std::abs(log_p) + std::abs(y));
        const double g = with_upstream ? to_f64(elements ? upstream(i, j) : upstream(0, 0)) : factor;
        mass += gp[j] = static_cast<N>(g) * p;
      }
      if (!kept(i)) continue;
      for (std::size_t j = 0; j < s.vocab; ++j) {
        const N q = std::exp(static_cast<N>(log_q[i * s.vocab + j]));
        add_logit_gradient(out, layer, i, j, static_cast<double>(c / v.opt.temperature * (q * mass - gp[j])));
      }
    }
    if (!elements) out.loss = {static_cast<double>(c * total)};
    out.size = static_cast<double>(c * size);
    return out;
  }
  TIGON_TEST_NOINLINE void expect_loss(const reference& r) const {
    EXPECT_TRUE(loss.padding_intact());
    if (elements)
      EXPECT_TRUE(close(loss.f64(), r.loss, element_bound.of<T>(), {.scale = 1e-3, .may_be_empty = true}));
    else
      EXPECT_NEAR(to_f64(loss(0, 0)), r.loss[0], loss_bound.of<T>() * r.size);
  }
  TIGON_TEST_NOINLINE void expect_gradients(const reference& r) const {
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
class fused_linear_kl_div : public testing::Test {};
TYPED_TEST_SUITE(fused_linear_kl_div, pairs, names);

TYPED_TEST(fused_linear_kl_div, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const linear_sizes s : every_size)
    for (const variant& v : variants)
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << ", " << v.name << ", " << side);
        problem<T> p(s, v, side);
        const auto wanted = p.wanted(false, v.opt.upstream);
        p.template forward<B>();
        p.expect_loss(wanted);
        p.expect_gradients(wanted);
      }
}

TYPED_TEST(fused_linear_kl_div, backward_takes_an_upstream_gradient_or_one_of_each_element) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants) {
    SCOPED_TRACE(v.name);
    problem<T> p({20, 17, 67, 2}, v);
    const auto wanted = p.wanted(true);
    p.template backward<B>();
    p.expect_gradients(wanted);
    EXPECT_TRUE(p.loss.untouched());
  }
}

TYPED_TEST(fused_linear_kl_div, each_gradient_may_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t which : {1, 4})
    expect_gradients_may_be_left_out<B>([=] { return problem<T>({20, 17, 67}, variants[which]); });
}

TYPED_TEST(fused_linear_kl_div, ignored_rows_are_not_read) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t which : {1, 2, 4}) {
    problem<T> p({20, 17, 67, 2}, variants[which]), zeros({20, 17, 67, 2}, variants[which]);
    for (const std::size_t i : {1, 3}) {
      for (std::size_t h = 0; h < 17; ++h) zeros.x(i, h) = from_f64<T>(0), p.x(i, h) = from_f64<T>(nan);
      for (std::size_t j = 0; j < 67; ++j) p.teacher(i, j) = from_f64<T>(nan);
      if (p.elements)
        for (std::size_t j = 0; j < 67; ++j) p.upstream(i, j) = static_cast<accumulator_t<T>>(nan);
    }
    p.template forward<B>(), zeros.template forward<B>();
    EXPECT_EQ(p.bits(), zeros.bits());
    p.clear(), zeros.clear();
    p.template backward<B>(), zeros.template backward<B>();
    EXPECT_EQ(p.bits(), zeros.bits());
    for (std::size_t h = 0; h < 17; ++h) EXPECT_EQ(to_f64(p.dx(3, h)), 0);
    for (const double g : p.dw.f64()) ASSERT_TRUE(std::isfinite(g));
  }
  problem<T> none({9, 5, 30}, variants[2]);
  std::ranges::fill(none.labels, none.v.opt.ignore_index);
  none.template forward<B>();
  EXPECT_EQ(to_f64(none.loss(0, 0)), 0);
  for (const auto& zeros : {none.dx.f64(), none.dw.f64()}) EXPECT_EQ(std::ranges::count(zeros, 0.0), std::ssize(zeros));
}

/// Losses and upstream gradients of elements are read and written in backward and forward.
template <class B, class T>
TIGON_TEST_NOINLINE loss_of_rows<problem<T>> rows_of(linear_sizes s, const variant& v, std::size_t chunk) {
  using P = problem<T>;
  const bool elements = v.opt.reduction == reduction::none;
  return {
      .rows = s.rows,
      .make =
          [=] {
            P p(s, v);
            std::ranges::fill(p.labels, 1);
            return p;
          },
      .ignore =
          [=](P& p, std::size_t i) {
            p.labels[i] = p.v.opt.ignore_index;
            spoil_row(p.x, i, s.hidden), spoil_row(p.teacher, i, s.vocab);
            if (elements) spoil_row(p.upstream, i, s.vocab);
          },
      .copy =
          [=](P& p, std::size_t i, const P& from, std::size_t k) {
            for (std::size_t h = 0; h < s.hidden; ++h) p.x(i, h) = from.x(k, h);
            for (std::size_t j = 0; j < s.vocab; ++j) p.teacher(i, j) = from.teacher(k, j);
            for (std::size_t j = 0; elements && j < s.vocab; ++j) p.upstream(i, j) = from.upstream(k, j);
          },
      .results =
          [=](const P& p, std::size_t i) {
            std::vector<double> out;
            append_row(out, p.dx, i, s.hidden);
            if (elements) append_row(out, p.loss, i, s.vocab);
            return out;
          },
      .parameters = [](const P& p) { return bits_of(p.dw, p.dbias); },
      .call =
          [=](P& p, context& ctx) {
            p.template forward<B>(elements ? matrix_view<T>{} : p.dx.view(), elements ? matrix_view<T>{} : p.dw.view(),
                                  elements ? std::span<T>() : given(p.dbias), ctx);
            if (elements) p.template backward<B>(ctx);
          },
      .bytes = [=](context& ctx) { return tigon::fused_linear_kl_div_workspace<B, T>(s.rows, s.hidden, s.vocab, ctx); },
      .chunk = chunk};
}

TYPED_TEST(fused_linear_kl_div, rows_do_not_depend_on_which_others_count) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  expect_rows_for_themselves(rows_of<B, T>({130, 40, 60, 1}, variants[4], 100));
  expect_rows_for_themselves(rows_of<B, T>({21, 7, 33, 1}, variants[2], 0));
  expect_rows_for_themselves(rows_of<B, T>({8, 7, 33, 1}, variants[4], 0));
}

TEST(ignored_rows, are_not_multiplied) {
  expect_products_of_kept_rows(rows_of<tigon::backends::small_counting, float>({40, 16, 123}, variants[2], 0),
                               counted.multiplications, 3 * 16 * 123);
}

TYPED_TEST(fused_linear_kl_div, few_rows_keep_to_the_bar_of_golden_sets) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  if constexpr (tigon::detail::few_kl_div_in_f64<B, T>)
    for (std::uint64_t seed = 0; seed < 25; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      problem<T> p({6, 20, 90}, {"", {.temperature = 0.5}, true, true});
      p.x.assign(normal_values(6 * 20, 2 * seed + 100));
      p.w.assign(normal_values(90 * 20, 2 * seed + 101, {.deviation = 1.5}));
      const auto wanted = p.wanted(false);
      p.template forward<B>();
      expect_golden_bar(p, p.loss.f64(), wanted.loss, wanted);
    }
}

TYPED_TEST(fused_linear_kl_div, has_the_edges_of_its_contract) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  // A class of probability 0 in the layer: nothing where the teacher has none either, inf where it has some.
  for (const bool some : {false, true}) {
    problem<T> p({4, 5, 30}, {"", {.reduction = reduction::none}, false, true});
    p.bias[7] = from_f64<T>(-infinity);
    for (std::size_t i = 0; i < 4; ++i) p.teacher(i, 7) = from_f64<T>(some && i == 1 ? 0.25 : 0);
    p.template forward<B>();
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(to_f64(p.loss(i, 7)), some && i == 1 ? infinity : 0);
      EXPECT_TRUE(std::isfinite(to_f64(p.loss(i, 8))));
      for (std::size_t h = 0; h < 5; ++h) EXPECT_TRUE(std::isfinite(to_f64(p.dx(i, h))));
    }
  }
  problem<T> clean({9, 5, 30}, {"", {.reduction = reduction::none}}), p({9, 5, 30}, clean.v);
  p.x(4, 2) = from_f64<T>(nan), p.teacher(6, 0) = from_f64<T>(-0.5);
  clean.template forward<B>(), p.template forward<B>();
  for (std::size_t i = 0; i < 9; ++i)
    for (std::size_t j = 0; j < 30; ++j) {
      const double got = to_f64(p.loss(i, j));
      EXPECT_TRUE(i == 4 || (i == 6 && j == 0) ? std::isnan(got) || to_f64(p.teacher(i, j)) == 0
                                               : got == to_f64(clean.loss(i, j)))
          << i << ' ' << j << ' ' << got;
    }
  for (std::size_t h = 0; h < 5; ++h) EXPECT_TRUE(std::isnan(to_f64(p.dx(4, h))) && !std::isnan(to_f64(p.dx(3, h))));
}

TYPED_TEST(fused_linear_kl_div, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({120, 40, 700}, variants[1]);
  EXPECT_TRUE(same_forward_for_any_threads<B>(p));
}

TYPED_TEST(fused_linear_kl_div, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const linear_sizes s : {linear_sizes{20, 17, 67}, {5, 1, 700}}) {  // of the second, scratch is most
    problem<T> p(s, variants[1]);
    const auto bytes = [=](context& ctx) {
      return tigon::fused_linear_kl_div_workspace<B, T>(s.rows, s.hidden, s.vocab, ctx);
    };
    expect_takes_its_workspace("fused_linear_kl_div_backward", p, bytes,
                               [&](context& ctx) { p.template backward<B>(ctx); });
    p.clear();
    expect_takes_its_workspace("fused_linear_kl_div_forward", p, bytes,
                               [&](context& ctx) { p.template forward<B>(ctx); });
  }
}

TEST(chunks, of_any_size_keep_the_error) {
  for (const std::size_t rows : {1u, 3u, 20u, 64u}) {
    problem<float> p({20, 17, 67}, variants[1]);
    const auto wanted = p.wanted(false);
    tigon::workspace scratch;
    tigon::serial_executor executor;
    context ctx(executor, scratch);
    ctx.logit_rows(rows);
    p.forward<usual_backend>(ctx);
    p.expect_loss(wanted);
    p.expect_gradients(wanted);
  }
}

/// A row of log-probabilities that the layer has too: nothing to learn, and kl_div of the two says the same.
TEST(defaults, leave_loss_and_gradients_as_they_are) {
  const options opt;
  EXPECT_EQ((std::vector{opt.temperature, opt.upstream, opt.eps, opt.denominator}), (std::vector{1.0, 1.0, 0.0, 0.0}));
}

TEST(teacher, that_agrees_has_a_loss_near_zero) {
  problem<float> p({12, 9, 50}, {"", {.log_target = true}});
  const auto log_q = p.layer().log_probs();
  guarded_matrix<float> y(12, 50);
  for (std::size_t k = 0; k < log_q.size(); ++k)
    p.teacher(k / 50, k % 50) = y(k / 50, k % 50) = static_cast<float>(log_q[k]);
  p.forward<usual_backend>();
  EXPECT_NEAR(p.loss(0, 0), 0, 1e-6);
  for (const double g : p.dx.f64()) EXPECT_NEAR(g, 0, 1e-6);
  const auto before = p.loss(0, 0);
  float alone = 1;
  tigon::kl_div_forward<usual_backend, float>(y, p.teacher, std::span(&alone, 1), {}, {.log_target = true});
  EXPECT_NEAR(before, alone, 1e-6);
}

TEST(doors, refuse_before_the_first_write) {
  struct arguments {
    matrix_view<const float> x, w;
    std::span<const float> bias;
    matrix_view<float> dx, dw;
    std::span<float> dbias;
    matrix_view<const float> teacher;
    std::span<const std::int64_t> labels;
    matrix_view<float> loss;
    options opt;
  };
  const linear_sizes s{4, 6, 9};
  problem<float> p(s, variants[1]);
  const auto refuses = [&](tigon::error_code code, const std::string& part, auto change) {
    arguments a{p.x.view(), p.w.view(), p.bias,   p.dx.view(),   p.dw.view(),
                p.dbias,    p.teacher,  p.labels, p.loss.view(), p.v.opt};
    change(a);
    EXPECT_TRUE(tigon::test::refuses(
        [&] {
          tigon::fused_linear_kl_div_forward<usual_backend, float>({a.x, a.w, a.bias}, a.teacher, a.labels, a.loss,
                                                                   {a.dx, a.dw, a.dbias}, a.opt);
        },
        code, "fused_linear_kl_div_forward: " + part, p.loss));
  };
  refuse_wrong_layers(s, refuses);
  refuse_overlapping_layers(overlapping_memory(s), refuses);
  using enum tigon::error_code;
  refuses(shape, "teacher is 4 x 8; expected 4 x 9", [](auto& a) { --a.teacher.cols; });
  refuses(shape, "labels is of 3 elements; expected 4", [](auto& a) { a.labels = a.labels.first(3); });
  refuses(shape, "loss is 1 x 1; expected 4 x 9", [](auto& a) { a.opt.reduction = reduction::none; });
  refuses(alias, "loss overlaps teacher", [&](auto& a) { a.loss = {p.teacher.view().data, 1, 1}; });
  refuses(alias, "dx overlaps teacher", [&](auto& a) { a.dx = {p.teacher.view().data, 4, 6}; });
  for (const double bad : {-0.1, 1.1, nan}) refuses(argument, "eps is", [=](auto& a) { a.opt.eps = bad; });
  for (const double bad : {0.0, -1.0, nan, infinity})
    refuses(argument, "temperature is", [=](auto& a) { a.opt.temperature = bad; });
  refuses(argument, "denominator is -1", [](auto& a) { a.opt.denominator = -1; });
  refuses(argument, "upstream is inf", [](auto& a) { a.opt.upstream = infinity; });
  EXPECT_TIGON_ERROR((tigon::fused_linear_kl_div_backward<usual_backend, float>(
                         p.head(), p.teacher, p.labels, matrix_view<const float>(p.teacher.view().data, 2, 1),
                         p.gradients(), p.v.opt)),
                     shape, "fused_linear_kl_div_backward: upstream is 2 x 1; expected 1 x 1", p.dx);
}

}  // namespace
