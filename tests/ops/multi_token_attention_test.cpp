// The contract of include/tigon/ops/multi_token_attention.hpp, promise by promise, on single numbers and on lanes of
// every element type.
#include <gtest/gtest.h>

#include <tigon/ops/multi_token_attention.hpp>

#include <map>
#include <numeric>
#include <tuple>

#include "support/backends.hpp"
#include "support/central_difference.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/guarded_heads.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::heads_view;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

struct axis {
  std::size_t taps = 3, stride = 1, padding = 1, dilation = 1;
  auto operator<=>(const axis&) const = default;

  std::size_t out(std::size_t len) const {
    const std::size_t padded = len + 2 * padding, span = dilation * (taps - 1);
    return padded <= span ? 0 : (padded - span - 1) / stride + 1;
  }
  /// The place that output place i reads with tap u, or -1.
  std::ptrdiff_t read(std::size_t i, std::size_t u, std::size_t len) const {
    const std::size_t at = stride * i + dilation * u;
    return at < padding || at - padding >= len ? -1 : static_cast<std::ptrdiff_t>(at - padding);
  }
};

struct sizes {
  std::size_t batch, inputs, outputs, len;
  axis queries = {}, keys = queries;
  std::size_t groups = 1;
  bool sparse = false, bias = true;
  layout in = layout::heads;
  std::size_t padding = 0;
  auto operator<=>(const sizes&) const = default;

  std::size_t out() const { return queries.out(len); }
  std::size_t group_inputs() const { return inputs / groups; }
  std::size_t score_count() const { return batch * inputs * len * len; }
  std::size_t y_count() const { return batch * outputs * out() * out(); }
  std::size_t w_count() const { return outputs * group_inputs() * queries.taps * keys.taps; }
  tigon::multi_token_attention_options options() const {
    return {.stride = {queries.stride, keys.stride},
            .padding = {queries.padding, keys.padding},
            .dilation = {queries.dilation, keys.dilation},
            .groups = groups,
            .sparse = sparse};
  }
  friend std::ostream& operator<<(std::ostream& out, const sizes& s) {
    out << s.batch << " x " << s.inputs << " to " << s.outputs << " heads x " << s.len << " in " << s.groups
        << " groups";
    for (const axis& a : {s.queries, s.keys})
      out << ", " << a.taps << " taps, stride " << a.stride << ", padding " << a.padding << ", dilation " << a.dilation;
    return out << (s.sparse ? ", sparse" : "") << (s.bias ? ", bias" : "") << ", padded by " << s.padding;
  }
};

/// One row of p, in place.
TIGON_TEST_NOINLINE void softmax(double* x, std::size_t n) {
  const double top = *std::max_element(x, x + n);
  double sum = 0;
  for (std::size_t j = 0; j < n; ++j) sum += x[j] = std::exp(x[j] - top);
  for (std::size_t j = 0; j < n; ++j) x[j] /= sum;
}
TIGON_TEST_NOINLINE void sparsemax(double* x, std::size_t n) {
  std::vector<double> sorted(x, x + n);
  std::sort(sorted.rbegin(), sorted.rend());
  long double sum = 0, tau = 0;
  for (std::size_t r = 0; r < n; ++r) {
    sum += sorted[r];
    if (sorted[r] * static_cast<long double>(r + 1) > sum - 1) tau = (sum - 1) / static_cast<long double>(r + 1);
  }
  for (std::size_t j = 0; j < n; ++j) x[j] = static_cast<double>(std::max(0.0L, x[j] - tau));
}

/// The definition in f64. What lies above the diagonal is not looked at.
struct reference {
  std::vector<double> p, y, dscores, dw, db;
  std::vector<double> terms;  ///< of y: |b| + sum |w| p

  TIGON_TEST_NOINLINE reference(const sizes& s, const std::vector<double>& scores, const std::vector<double>& w,
                                const std::vector<double>& b, const std::vector<double>& dy)
      : p(s.score_count()), y(s.y_count()), dscores(p.size()), terms(y.size(), 1), sums_w(w.size()), sums_b(s.outputs) {
    const std::size_t n = s.len, out = s.out();
    for (std::size_t row = 0; row < s.batch * s.inputs * n; ++row) {
      const std::size_t some = row % n + 1;
      std::copy_n(&scores[row * n], some, &p[row * n]);
      s.sparse ? sparsemax(&p[row * n], some) : softmax(&p[row * n], some);
    }
    std::vector<double> dp(p.size());
    for (std::size_t head = 0; head < s.batch * s.outputs; ++head)
      for (std::size_t i = 0; i < out; ++i)
        for (std::size_t j = 0; j <= i; ++j) {
          const std::size_t o = head % s.outputs, at = (head * out + i) * out + j;
          y[at] = s.bias ? b[o] : 0, terms[at] = std::abs(y[at]);
          sums_b[o] += dy[at];
          for (std::size_t c = 0; c < s.group_inputs(); ++c) position(s, head, c, i, j, at, w, dy, dp);
        }
    for (std::size_t row = 0; row < s.batch * s.inputs * n; ++row) normaliser_gradient(s, row, dp);
    dw.assign(sums_w.begin(), sums_w.end()), db.assign(sums_b.begin(), sums_b.end());
  }

 private:
  std::vector<long double> sums_w, sums_b;  // over very many positions

  void position(const sizes& s, std::size_t head, std::size_t c, std::size_t i, std::size_t j, std::size_t at,
                const std::vector<double>& w, const std::vector<double>& dy, std::vector<double>& dp) {
    const std::size_t o = head % s.outputs, input = o / (s.outputs / s.groups) * s.group_inputs() + c;
    for (std::size_t u = 0; u < s.queries.taps; ++u)
      for (std::size_t v = 0; v < s.keys.taps; ++v) {
        const std::ptrdiff_t k = s.queries.read(i, u, s.len), l = s.keys.read(j, v, s.len);
        if (k < 0 || l < 0) continue;
        const std::size_t from = ((head / s.outputs * s.inputs + input) * s.len + static_cast<std::size_t>(k)) * s.len +
                                 static_cast<std::size_t>(l);
        const std::size_t tap = ((o * s.group_inputs() + c) * s.queries.taps + u) * s.keys.taps + v;
        y[at] += w[tap] * p[from], terms[at] += std::abs(w[tap]) * p[from];
        sums_w[tap] += static_cast<long double>(dy[at]) * p[from];
        dp[from] += dy[at] * w[tap];
      }
  }
  void normaliser_gradient(const sizes& s, std::size_t row, const std::vector<double>& dp) {
    const std::size_t first = row * s.len, end = first + row % s.len + 1;
    double mean = 0, support = 0;
    for (std::size_t j = first; j < end; ++j)
      mean += s.sparse ? (p[j] > 0 ? dp[j] : 0) : p[j] * dp[j], support += p[j] > 0 ? 1 : 0;
    if (s.sparse) mean /= support;
    for (std::size_t j = first; j < end; ++j) dscores[j] = (s.sparse ? (p[j] > 0 ? 1.0 : 0.0) : p[j]) * (dp[j] - mean);
  }
};

/// y in units of its terms.
TIGON_TEST_NOINLINE std::vector<double> per_term(std::vector<double> y, const std::vector<double>& terms) {
  for (std::size_t k = 0; k < y.size(); ++k) y[k] /= terms[k] == 0 ? 1 : terms[k];
  return y;
}

/// NaN above the diagonals of planes of n x n.
TIGON_TEST_NOINLINE std::vector<double> causal(std::vector<double> x, std::size_t n) {
  for (std::size_t k = 0; k < x.size(); ++k)
    if (k % n > k / n % n) x[k] = nan;
  return x;
}

template <class T>
struct problem {
  using gradients = tigon::multi_token_attention_gradients<T>;
  sizes s;
  guarded_heads<T> scores, probs, dscores, w, dw, y, dy;
  guarded<T> b, db;

  TIGON_TEST_NOINLINE explicit problem(sizes of, guard side = guard::behind)
      : s(of),
        scores(plane(), side),
        probs(plane(), side),
        dscores(plane(), side),
        w(weights(), side),
        dw(weights(), side),
        y(mixed(), side),
        dy(mixed(), side),
        b(s.outputs, side),
        db(s.outputs, side) {
    // What lies above the diagonal is NaN: nobody may read it.
    scores.assign(causal(normal_values(scores.count(), 1), s.len));
    dy.assign(causal(normal_values(dy.count(), 2), s.out()));
    w.assign(normal_values(w.count(), 3)), b.assign(normal_values(b.size(), 4));
  }
  gradients all() { return {dscores.view(), dw.view(), db}; }

  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    if (s.bias)
      tigon::multi_token_attention_forward<B, T>(scores, w, b, y.view(), probs.view(), s.options(), ctx);
    else
      tigon::multi_token_attention_forward<B, T>(scores, w, tigon::absent, y.view(), probs.view(), s.options(), ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(gradients to, context& ctx = tigon::default_context()) {
    tigon::multi_token_attention_backward<B, T>(dy, w, probs.view(), to, s.options(), ctx);
  }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(ctx), backward<B>(all(), ctx);
  }
  std::vector<std::byte> outputs() const { return bits_of(y, probs, dscores, dw, db); }
  void clear() { y.clear(), probs.clear(), dscores.clear(), dw.clear(), db.clear(); }
  heads_shape plane() const { return {s.batch, s.inputs, s.len, s.len, s.in, s.padding}; }
  heads_shape mixed() const { return {s.batch, s.outputs, s.out(), s.out(), s.in, s.padding}; }
  heads_shape weights() const {
    return {s.outputs, s.group_inputs(), s.queries.taps, s.keys.taps, layout::heads, s.padding};
  }
  reference wanted() const { return {s, scores.f64(), w.f64(), b.f64(), dy.f64()}; }
  /// Made once for all backends: the inputs depend on sizes and element type alone.
  TIGON_TEST_NOINLINE const reference& wanted_once() const {
    static std::map<sizes, reference> known;
    return known.try_emplace(s, wanted()).first->second;
  }
};

// In units of |y| + |b| + sum |w| p: p is rounded to the element type before it is mixed, and so is y.
constexpr by_type forward_bound{.f32 = 2e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-15};
// In units of |reference| + its root mean square.
constexpr by_type probs_bound{.f32 = 2e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-15};
constexpr by_type score_bound{.f32 = 4e-6, .bf16 = 1.2e-2, .f16 = 2e-3, .f64 = 1e-14};
constexpr by_type parameter_bound{.f32 = 4e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1e-14};

/// Lengths that no vector divides, one and a few; planes of several tiles; strides that divide and that do not, smaller
/// and larger than the taps; dilations that share a divisor with the stride and that do not; axes that differ; groups;
/// more than 64 taps; rows that lie close and apart.
TIGON_TEST_NOINLINE std::vector<sizes> every_size() {
  return {{2, 4, 4, 8},
          {1, 1, 1, 1},
          {1, 2, 3, 17, {5, 1, 2}, {5, 1, 2}, 1, false, false, layout::tokens, 3},
          {2, 4, 6, 67, {}, {}, 2, false, true, layout::heads, 5},
          {1, 2, 2, 5, {1, 1, 0}},
          {1, 2, 2, 31, {3, 1, 2, 2}, {3, 1, 2, 2}, 1, true},
          {1, 2, 5, 10, {3, 2, 1}},
          {2, 3, 3, 11, {3, 2, 1}, {3, 2, 1}, 3, true, true, layout::tokens, 1},
          {1, 4, 2, 20, {3, 3, 2, 2}, {3, 3, 2, 2}, 2},
          {1, 2, 9, 37, {3, 4, 5, 2}},
          {1, 5, 1, 40, {2, 1, 0, 3}, {4, 1, 0, 1}},
          {2, 2, 2, 9, {5, 2, 0}, {7, 1, 0}},
          {1, 2, 1, 100, {2, 40, 3, 1}},
          {1, 2, 2, 60, {2, 1, 25, 50}},
          {1, 1, 2, 6, {3, 1, 7}},
          {1, 8, 1, 530},
          {1, 1, 1, 1030, {3, 1, 2}}};
}

#if defined(TIGON_CONFORMANCE_BACKEND) || defined(TIGON_TESTS_ALL_PAIRS)
using pairs = every_pair;
using f64_pairs = pairs_of<double>;
#else
/// The default's lanes; with TIGON_TESTS_ENGINES single numbers, and lanes of every type.
using pairs = with_engines<list<on<usual_backend, float>, on<usual_backend, tigon::bfloat16> >,
                           on<tigon::backends::generic, tigon::float16>, on<tigon::backends::xsimd, double> >;
using f64_pairs = with_engines<list<on<single_numbers, double> >, on<tigon::backends::xsimd, double> >;
#endif

template <class On>
class multi_token_attention : public testing::Test {};
TYPED_TEST_SUITE(multi_token_attention, pairs, names);

TYPED_TEST(multi_token_attention, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sizes& s : every_size())
    for (const guard side : both_guards) {
      if (s.len > 500 && side == guard::before) continue;
      SCOPED_TRACE(testing::Message() << s << ", " << side);
      problem<T> p(s, side);
      p.template both_ways<B>();
      const reference& wanted = p.wanted_once();
      EXPECT_TRUE(close(per_term(p.y.f64(), wanted.terms), per_term(wanted.y, wanted.terms), forward_bound.of<T>(),
                        {.scale = 1}));
      EXPECT_TRUE(close(p.probs.f64(), causal(wanted.p, s.len), probs_bound.of<T>()));  // NaN: not written
      // Where there is one key, or dp is the same for all keys, the terms of dscores cancel.
      EXPECT_TRUE(close(p.dscores.f64(), wanted.dscores, score_bound.of<T>(), {.scale = 0.5}));
      EXPECT_TRUE(close(p.dw.f64(), wanted.dw, parameter_bound.of<T>(), {.scale = 0.5}));
      EXPECT_TRUE(close(p.db.f64(), wanted.db, parameter_bound.of<T>(), {.scale = 0.5}));
      EXPECT_TRUE(p.y.padding_intact() && p.probs.padding_intact() && p.dscores.padding_intact() &&
                  p.dw.padding_intact());
    }
}

TYPED_TEST(multi_token_attention, frozen_parameters_change_no_other_bit) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sizes& s : {sizes{2, 2, 2, 33}, sizes{1, 2, 2, 12, {3, 2, 1}}}) {
    problem<T> p(s);
    p.template both_ways<B>();
    const auto dscores = bits_of(p.dscores), dw = bits_of(p.dw), db = bits_of(p.db);
    p.dscores.clear(), p.dw.clear(), p.db.clear();
    p.template backward<B>({p.dscores.view(), {}, {}});
    EXPECT_EQ(bits_of(p.dscores), dscores);
    EXPECT_TRUE(p.dw.untouched() && p.db.untouched());
    p.template backward<B>({p.dscores.view(), {}, p.db});
    EXPECT_EQ(bits_of(p.db), db);
    EXPECT_TRUE(p.dw.untouched());
    p.db.clear();
    p.template backward<B>({p.dscores.view(), p.dw.view(), {}});
    EXPECT_EQ(bits_of(p.dw), dw);
    EXPECT_TRUE(p.db.untouched());
  }
}

TYPED_TEST(multi_token_attention, adds_to_the_gradients_of_parameters) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({2, 2, 4, 19, {}, {}, 2});
  p.template both_ways<B>();
  auto dw = p.dw.f64(), db = p.db.f64();
  const auto before_w = normal_values(dw.size(), 7), before_b = normal_values(db.size(), 8);
  p.dw.assign(before_w), p.db.assign(before_b);
  auto opt = p.s.options();
  opt.dparams = tigon::gradient::accumulate;
  tigon::multi_token_attention_backward<B, T>(p.dy, p.w, p.probs.view(), p.all(), opt);
  for (std::size_t k = 0; k < dw.size(); ++k) dw[k] += before_w[k];
  for (std::size_t k = 0; k < db.size(); ++k) db[k] += before_b[k];
  EXPECT_TRUE(close(p.dw.f64(), dw, parameter_bound.of<T>() * 2));
  EXPECT_TRUE(close(p.db.f64(), db, parameter_bound.of<T>() * 2));
}

TYPED_TEST(multi_token_attention, works_in_the_place_of_its_inputs) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const bool sparse : {false, true}) {
    problem<T> p({2, 4, 2, 23, {}, {}, 2, sparse, true, layout::tokens, 2});
    p.template both_ways<B>();
    const auto y = p.y.f64(), dscores = p.dscores.f64(), dw = p.dw.f64();
    p.y.clear(), p.dscores.clear(), p.dw.clear();
    tigon::multi_token_attention_forward<B, T>(p.scores, p.w, p.b, p.y.view(), p.scores.view(), p.s.options());
    EXPECT_TRUE(close(p.y.f64(), y, forward_bound.of<T>()));
    tigon::multi_token_attention_backward<B, T>(p.dy, p.w, p.probs.view(), {p.probs.view(), p.dw.view(), p.db},
                                                p.s.options());
    EXPECT_EQ(p.probs.f64(), dscores);
    EXPECT_EQ(p.dw.f64(), dw);
  }
}

TYPED_TEST(multi_token_attention, bad_numbers_stay_where_they_are_read) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const sizes s{1, 2, 2, 30, {3, 1, 2, 2}};
  problem<T> clean(s), p(s);
  const std::size_t bad = 11;
  p.scores.view().at(0, 1, bad)[3] = from_f64<T>(nan);
  clean.template forward<B>(), p.template forward<B>();
  for (std::size_t o = 0; o < 2; ++o)
    for (std::size_t i = 0; i < s.out(); ++i) {
      bool reads = false, same = true, lost = false;
      for (std::size_t u = 0; u < s.queries.taps; ++u)
        reads = reads || s.queries.read(i, u, s.len) == static_cast<std::ptrdiff_t>(bad);
      for (std::size_t j = 0; j < s.out(); ++j) {
        const double got = to_f64(p.y.view().at(0, o, i)[j]);
        same = same && got == to_f64(clean.y.view().at(0, o, i)[j]);
        lost = lost || std::isnan(got);
      }
      EXPECT_EQ(lost, reads) << o << ", " << i;
      EXPECT_EQ(same, !reads) << o << ", " << i;
    }
}

TYPED_TEST(multi_token_attention, of_nothing_has_no_gradients) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> none({0, 2, 2, 5});
  none.template both_ways<B>();
  for (const double g : none.dw.f64()) ASSERT_EQ(g, 0);
  for (const double g : none.db.f64()) ASSERT_EQ(g, 0);
  // No scores, and their padding is all that is read: y is b up to the diagonal.
  problem<T> padding({1, 2, 2, 0});
  padding.template both_ways<B>();
  EXPECT_EQ(padding.s.out(), 0u);
  EXPECT_EQ(padding.y.count(), 0u);
  for (const double g : padding.dw.f64()) ASSERT_EQ(g, 0);
  problem<T> wide({1, 2, 2, 0, {3, 1, 2}});
  wide.template both_ways<B>();
  EXPECT_TRUE(close(wide.y.f64(), wide.wanted().y, 0));
  EXPECT_TRUE(close(wide.db.f64(), wide.wanted().db, parameter_bound.of<T>()));
}

TYPED_TEST(multi_token_attention, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sizes& s :
       {sizes{2, 4, 6, 43, {}, {}, 2}, sizes{3, 2, 5, 50, {3, 2, 1}, {3, 2, 1}, 1, true, true, layout::tokens, 1}}) {
    problem<T> p(s);
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      p.clear();
      p.template both_ways<B>(ctx);
      return p.outputs();
    }));
  }
}

TYPED_TEST(multi_token_attention, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sizes& s : {sizes{2, 4, 6, 43, {}, {}, 2}, sizes{1, 2, 5, 300, {3, 2, 1}, {3, 2, 1}, 1, true}})
    for (const bool frozen : {false, true}) {
      problem<T> p(s);
      const auto to = frozen ? typename problem<T>::gradients{p.dscores.view(), {}, {}} : p.all();
      const auto runs = [](std::size_t bytes, auto call) { with_workspace_of(bytes, call, 3); };
      const std::size_t forward = tigon::multi_token_attention_workspace<B, T>(s.len, p.w, s.options(), 3);
      const std::size_t backward =
          tigon::multi_token_attention_backward_workspace<B, T>(s.batch, s.len, p.w, s.options(), 3, !frozen);
      EXPECT_TIGON_ERROR(runs(forward - 1, [&](context& ctx) { p.template forward<B>(ctx); }), workspace,
                         "multi_token_attention_forward: workspace is of", p.y, p.probs);
      runs(forward, [&](context& ctx) {
        p.template forward<B>(ctx);
        EXPECT_EQ(ctx.workspace().high_water(), forward);
      });
      EXPECT_TIGON_ERROR(runs(backward - 1, [&](context& ctx) { p.template backward<B>(to, ctx); }), workspace,
                         "multi_token_attention_backward: workspace is of", p.dscores, p.dw, p.db);
      runs(backward, [&](context& ctx) {
        p.template backward<B>(to, ctx);
        EXPECT_EQ(ctx.workspace().high_water(), backward);
      });
    }
}

// The reference itself: its gradients are the differences of its values, and so are those of the f64 kernels.
template <class On>
class multi_token_attention_gradient : public testing::Test {};
TYPED_TEST_SUITE(multi_token_attention_gradient, f64_pairs, names);

TYPED_TEST(multi_token_attention_gradient, is_that_of_central_differences) {
  using B = typename TypeParam::backend;
  for (const sizes& s : {sizes{1, 2, 2, 6, {3, 1, 1}}, sizes{2, 2, 4, 10, {3, 2, 1}, {3, 2, 1}, 2},
                         sizes{1, 2, 3, 7, {2, 1, 1, 2}, {3, 1, 1, 1}, 1, true}}) {
    problem<double> p(s);
    p.both_ways<B>();
    const auto finite = [](std::vector<double> x) {
      for (double& v : x) v = std::isnan(v) ? 0 : v;
      return x;
    };
    const auto scores = finite(p.scores.f64()), w = p.w.f64(), b = p.b.f64(), dy = finite(p.dy.f64());
    const auto loss = [&](const auto& of_scores, const auto& of_w, const auto& of_b) {
      const reference r(s, of_scores, of_w, of_b, dy);
      return std::inner_product(dy.begin(), dy.end(), r.y.begin(), 0.0);
    };
    const auto at = probes(scores.size()), at_w = probes(w.size()), at_b = probes(b.size());
    const auto dscores = central_difference([&](const auto& x) { return loss(x, w, b); }, scores, at);
    const auto dw = central_difference([&](const auto& x) { return loss(scores, x, b); }, w, at_w);
    const auto db = central_difference([&](const auto& x) { return loss(scores, w, x); }, b, at_b);
    const reference r = p.wanted();
    for (const auto& [got, got_w, got_b] :
         {std::tuple(r.dscores, r.dw, r.db), std::tuple(p.dscores.f64(), p.dw.f64(), p.db.f64())}) {
      EXPECT_TRUE(close(pick(got, at), dscores, 1e-10)) << s;
      EXPECT_TRUE(close(pick(got_w, at_w), dw, 1e-10)) << s;
      EXPECT_TRUE(close(pick(got_b, at_b), db, 1e-10)) << s;
    }
  }
}

TEST(multi_token_attention_values, are_those_that_can_be_made_by_hand) {
  const double ln2 = std::log(2.0), ln3 = std::log(3.0);
  const auto of = [](std::vector<double>& x) { return heads_view<double>::of_heads(x.data(), 1, 1, 3, 3); };
  std::vector<double> w(9), y(9), p(9);
  std::iota(w.begin(), w.end(), 1.0);
  for (double& x : w) x /= 10;
  const std::vector<double> b{0.5};
  const auto forward = [&](std::vector<double> scores, bool sparse) {
    tigon::multi_token_attention_forward<usual_backend, double>(of(scores), of(w), b, of(y), of(p),
                                                                {.padding = 1, .sparse = sparse});
  };
  forward({0, 9, 9, ln3, 0, 9, 0, ln2, 2 * ln2}, false);
  EXPECT_TRUE(close(y,
                    std::vector<double>{1.825, 0, 0, 1.5 + .0964285714285714, 1.8678571428571429, 0, .96785714285714286,
                                        1.1678571428571429, .925},
                    1e-14));
  forward({0, 9, 9, .5, 0, 9, 1, .5, -.2}, true);
  EXPECT_TRUE(close(y, std::vector<double>{1.825, 0, 0, 2.05, 1.75, 0, 1.25, 1.05, .625}, 1e-14));
}

TEST(multi_token_attention_sums, of_very_many_positions_keep_their_error) {
  // All scores are equal, so that a row of p adds up to 1, and every dy is 0.1: plain sums in f32 are off by 1e-4.
  const sizes s{4, 1, 1, 1025, {1, 1, 0}};
  problem<float> p(s);
  const float tenth = 0.1f;
  p.scores.assign(std::vector<double>(p.scores.count(), 0.5)), p.dy.assign(std::vector<double>(p.dy.count(), tenth));
  p.both_ways<usual_backend>();
  const double rows = 4 * 1025, positions = rows * 1026 / 2;
  EXPECT_NEAR(p.dw.f64()[0] / (rows * static_cast<double>(tenth)), 1, parameter_bound.f32);
  EXPECT_NEAR(p.db.f64()[0] / (positions * static_cast<double>(tenth)), 1, parameter_bound.f32);
}

}  // namespace

// Rule R4: softmax and sparsemax are those of the backend.
namespace mine {
struct counting : tigon::backends::generic {
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"counting", {tigon::device::cpu}};
  using overrides = tigon::op_list<tigon::op::softmax, tigon::op::sparsemax>;
};
std::size_t softmax_forward = 0, softmax_backward = 0, sparsemax_forward = 0, sparsemax_backward = 0;
}  // namespace mine

template <>
struct tigon::kernel<tigon::op::softmax, mine::counting> : tigon::kernel<tigon::op::softmax, tigon::backends::generic> {
  using parents = tigon::kernel<tigon::op::softmax, tigon::backends::generic>;
  template <tigon::backend B, tigon::element T>
  static void forward(tigon::in_matrix<T> x, tigon::matrix_view<T> y, tigon::softmax_options opt, tigon::context& ctx) {
    mine::softmax_forward += x.rows * x.cols;
    parents::forward<B, T>(x, y, opt, ctx);
  }
  template <tigon::backend B, tigon::element T>
  static void backward(tigon::in_matrix<T> dy, tigon::in_matrix<T> y, tigon::matrix_view<T> dx,
                       tigon::softmax_options opt, tigon::context& ctx) {
    mine::softmax_backward += y.rows * y.cols;
    parents::backward<B, T>(dy, y, dx, opt, ctx);
  }
};
template <>
struct tigon::kernel<tigon::op::sparsemax, mine::counting>
    : tigon::kernel<tigon::op::sparsemax, tigon::backends::generic> {
  using parents = tigon::kernel<tigon::op::sparsemax, tigon::backends::generic>;
  template <tigon::backend B, tigon::element T>
  static void forward(tigon::in_axis<T> x, tigon::axis_view<T> y, tigon::sparsemax_options opt, tigon::context& ctx) {
    mine::sparsemax_forward += x.outer * x.axis;
    parents::forward<B, T>(x, y, opt, ctx);
  }
  template <tigon::backend B, tigon::element T>
  static void backward(tigon::in_axis<T> dy, tigon::in_axis<T> y, tigon::axis_view<T> dx, tigon::sparsemax_options opt,
                       tigon::context& ctx) {
    mine::sparsemax_backward += y.outer * y.axis;
    parents::backward<B, T>(dy, y, dx, opt, ctx);
  }
};

namespace {

TEST(multi_token_attention_normaliser, is_that_of_the_backend) {
  const std::size_t seen = 2 * 12 * 13 / 2;  // scores up to the diagonal
  problem<float> dense({1, 2, 2, 12}), sparse({1, 2, 2, 12, {}, {}, 1, true});
  dense.both_ways<mine::counting>();
  EXPECT_EQ(mine::softmax_forward, seen);
  EXPECT_EQ(mine::softmax_backward, seen);
  EXPECT_EQ(mine::sparsemax_forward + mine::sparsemax_backward, 0u);
  sparse.both_ways<mine::counting>();
  EXPECT_EQ(mine::sparsemax_forward, seen);
  EXPECT_EQ(mine::sparsemax_backward, seen);
  EXPECT_EQ(mine::softmax_forward, seen);
}

TEST(multi_token_attention_memory, does_not_grow_with_the_square_of_the_length) {
  problem<float> p({1, 4, 4, 8});
  const tigon::multi_token_attention_options opt{.padding = 1};
  const auto backward = [&](std::size_t batch, std::size_t len, bool with_parameters) {
    return tigon::multi_token_attention_backward_workspace<usual_backend, float>(batch, len, p.w, opt, 1,
                                                                                 with_parameters);
  };
  const std::size_t n = 1 << 16, few = 1 << 20;
  EXPECT_LT((tigon::multi_token_attention_workspace<usual_backend, float>(n, p.w, opt)), 8 * n * sizeof(float) + few);
  EXPECT_LT(backward(64, n, true), 32 * n * sizeof(float) + few);
  EXPECT_LT(backward(64, 8, false), backward(64, 8, true));  // nothing is summed for frozen parameters
  EXPECT_EQ((tigon::multi_token_attention_backward_workspace<usual_backend, float>(64, 8, p.w, opt)),
            backward(64, 8, true));  // unless it is said
}

/// The doors, which are the same for every backend: refused before the first write.
class multi_token_attention_doors : public testing::Test {
 protected:
  using view = heads_view<float>;
  using B = usual_backend;
  using options = tigon::multi_token_attention_options;

  // Not made by an initialiser of its member, which g++ 13 does not compile.
  multi_token_attention_doors() : p({2, 2, 4, 5}) { p.forward<B>(), p.y.clear(); }
  void forward(view of_scores, view of_w, std::span<float> of_b, view of_y, view of_probs,
               options opt = {.padding = 1}) {
    tigon::multi_token_attention_forward<B, float>(of_scores, of_w, of_b, of_y, of_probs, opt);
  }
  void backward(view of_dy, view of_w, view of_probs, view of_dscores, view of_dw, std::span<float> of_db,
                options opt = {.padding = 1}) {
    tigon::multi_token_attention_backward<B, float>(
        of_dy, of_w, of_probs, tigon::multi_token_attention_gradients{of_dscores, of_dw, of_db}, opt);
  }
  template <class M>
  static view with(view v, M view::*member, M value) {
    v.*member = value;
    return v;
  }

  problem<float> p;
  const view scores = p.scores.view(), w = p.w.view(), y = p.y.view(), probs = p.probs.view(), dy = p.dy.view(),
             dscores = p.dscores.view(), dw = p.dw.view();
};

TEST_F(multi_token_attention_doors, forward_refuses_wrong_shapes) {
  const auto refused = [&](auto call, const char* sentence) {
    EXPECT_TIGON_ERROR(call(), shape, std::string("multi_token_attention_forward: ") + sentence, p.y, p.probs);
  };
  refused([&] { forward(with(scores, &view::head_dim, 4ul), w, p.b, y, probs); }, "scores is 2 sequences");
  refused([&] { forward(with(scores, &view::heads, 0ul), w, p.b, y, probs); }, "heads_in is 0; expected at least 1");
  refused([&] { forward(scores, with(w, &view::heads, 1ul), p.b, y, probs); }, "w is 4 sequences x 1 heads");
  refused([&] { forward(scores, with(w, &view::seq_len, 0ul), p.b, y, probs); }, "taps of queries is 0");
  refused([&] { forward(scores, with(w, &view::head_dim, 0ul), p.b, y, probs); }, "taps of keys is 0");
  refused([&] { forward(scores, with(w, &view::batch, 0ul), p.b, y, probs); }, "heads_out is 0");
  refused([&] { forward(scores, w, std::span<float>(p.b).first(3), y, probs); }, "b is of 3 elements; expected 4");
  refused([&] { forward(scores, w, p.b, with(y, &view::seq_len, 4ul), probs); }, "y is 2 sequences");
  refused([&] { forward(scores, w, p.b, y, with(probs, &view::batch, 1ul)); }, "probs is 1 sequences");
  refused([&] { forward(scores, w, p.b, y, probs, {.padding = 0}); }, "y is 2 sequences");
  refused([&] { forward(scores, w, p.b, y, probs, {.padding = {1, 0}}); }, "y is of unequal numbers");
  refused([&] { forward(scores, w, p.b, y, probs, {.dilation = 3}); }, "w is of taps that reach over");
  refused([&] { forward(with(scores, &view::data, static_cast<float*>(nullptr)), w, p.b, y, probs); },
          "scores is a null pointer");
  EXPECT_TIGON_ERROR(forward(with(scores, &view::seq_stride, 4ul), w, p.b, y, probs), stride,
                     "multi_token_attention_forward: scores is of a stride of", p.y, p.probs);
}

TEST_F(multi_token_attention_doors, refuse_wrong_options) {
  const auto refused = [&](options opt, const char* sentence) {
    EXPECT_TIGON_ERROR(forward(scores, w, p.b, y, probs, opt), argument,
                       std::string("multi_token_attention_forward: ") + sentence, p.y, p.probs);
    EXPECT_TIGON_ERROR(backward(dy, w, probs, dscores, dw, p.db, opt), argument,
                       std::string("multi_token_attention_backward: ") + sentence, p.dscores, p.dw, p.db);
  };
  refused({.stride = 0, .padding = 1}, "stride is 0; expected at least 1");
  refused({.stride = {1, 0}, .padding = 1}, "stride is 0; expected at least 1");
  refused({.padding = 1, .dilation = {0, 1}}, "dilation is 0; expected at least 1");
  refused({.padding = std::size_t{1} << 31}, "padding is");
  refused({.padding = 1, .groups = 0}, "groups is 0; expected a divisor");
  refused({.padding = 1, .groups = 4}, "groups is 4; expected a divisor");
}

TEST_F(multi_token_attention_doors, forward_refuses_overlaps) {
  const auto refused = [&](auto call, const char* sentence) {
    EXPECT_TIGON_ERROR(call(), alias, std::string("multi_token_attention_forward: ") + sentence);
  };
  const view y_in_scores = view::of_heads(scores.data, 2, 4, 5, 5), y_in_w = view::of_heads(w.data, 2, 4, 5, 5);
  refused([&] { forward(scores, w, p.b, y_in_scores, probs); }, "y overlaps scores");
  refused([&] { forward(scores, w, p.b, y_in_w, probs); }, "y overlaps w");
  refused([&] { forward(scores, w, std::span<float>(y.data, 4), y, probs); }, "y overlaps b");
  refused([&] { forward(scores, w, p.b, y, view::of_heads(y.data, 2, 2, 5, 5)); }, "probs overlaps y");
  refused([&] { forward(scores, w, p.b, y, with(scores, &view::data, scores.data + 1)); }, "probs overlaps scores");
}

TEST_F(multi_token_attention_doors, backward_refuses_wrong_shapes_and_overlaps) {
  const auto refused = [&](auto call, tigon::error_code code, const char* sentence) {
    EXPECT_TRUE(refuses(call, code, std::string("multi_token_attention_backward: ") + sentence, p.dscores, p.dw, p.db));
  };
  using enum tigon::error_code;
  const auto db = std::span<float>(p.db);
  refused([&] { backward(with(dy, &view::seq_len, 4ul), w, probs, dscores, dw, db); }, shape, "dy is");
  refused([&] { backward(dy, w, with(probs, &view::seq_len, 4ul), dscores, dw, db); }, shape, "probs is");
  refused([&] { backward(dy, w, probs, with(dscores, &view::heads, 1ul), dw, db); }, shape, "dscores is");
  refused([&] { backward(dy, w, probs, dscores, with(dw, &view::head_dim, 2ul), db); }, shape, "dw is");
  refused([&] { backward(dy, w, probs, dscores, dw, db.first(3)); }, shape, "db is of 3 elements; expected 4");
  refused([&] { backward(dy, w, probs, view::of_heads(dy.data, 2, 2, 5, 5), dw, db); }, alias, "dscores overlaps dy");
  refused([&] { backward(dy, w, probs, dscores, w, db); }, alias, "dw overlaps w");
  refused([&] { backward(dy, w, probs, dscores, dw, {dw.data, 4}); }, alias, "dw overlaps db");
  refused([&] { backward(dy, w, probs, with(probs, &view::data, probs.data + 1), dw, db); }, alias,
          "dscores overlaps probs");
}

}  // namespace
