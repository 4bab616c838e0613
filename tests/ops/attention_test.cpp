// The contract of include/tigon/ops/attention.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <tigon/ops/attention.hpp>

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
using tigon::accumulator_t, tigon::attention_mask, tigon::context, tigon::heads_view, tigon::matrix_view;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

struct sizes {
  std::size_t batch, heads, kv_heads, queries, d;
  layout in = layout::tokens;
  std::size_t padding = 0;
  attention_mask mask = attention_mask::causal;
  double scale = 0, softcap = 0;
  std::size_t left = everything, right = everything, prefix = 0, offset = 0;
  std::size_t keys_of_none = everything;      // keys without the causal mask; everything: as many as queries
  std::vector<std::int32_t> cumulative = {};  // of packed documents
  std::vector<float> sinks = {};
  std::vector<std::int32_t> begins = {}, ends = {};  // of the keys of a batch entry that are no padding
  std::size_t v_dim = 0;                             // columns of v; 0: d
  auto operator<=>(const sizes&) const = default;

  static constexpr std::size_t everything = tigon::attention_options::unlimited;
  std::size_t e() const { return v_dim != 0 ? v_dim : d; }
  std::size_t keys() const {
    return mask == attention_mask::causal || keys_of_none == everything ? offset + queries : keys_of_none;
  }
  /// The definition, word by word.
  bool sees(std::size_t of_batch, std::size_t query, std::size_t key) const {
    const auto t = static_cast<std::int64_t>(offset + query), j = static_cast<std::int64_t>(key);
    std::int64_t begin = begins.empty() ? 0 : begins[of_batch];
    if (j < begin || (!ends.empty() && j >= ends[of_batch])) return false;
    for (std::size_t i = 1; i < cumulative.size(); ++i) {
      if (cumulative[i - 1] <= t && t < cumulative[i]) {
        if (j < cumulative[i - 1] || j >= cumulative[i]) return false;
        begin = std::max<std::int64_t>(begin, cumulative[i - 1]);
      }
    }
    if (prefix != 0 && j - begin < static_cast<std::int64_t>(prefix)) return true;
    if (mask == attention_mask::causal && j > t) return false;
    if (left != everything && j < t - static_cast<std::int64_t>(left)) return false;
    return right == everything || j <= t + static_cast<std::int64_t>(right);
  }
  double factor() const { return scale == 0 ? 1 / std::sqrt(static_cast<double>(d)) : scale; }
  tigon::attention_options options() const {
    return {.mask = mask,
            .scale = scale,
            .softcap = softcap,
            .window_left = left,
            .window_right = right,
            .prefix = prefix,
            .offset = offset,
            .cumulative_lengths = cumulative,
            .sinks = sinks,
            .key_begins = begins,
            .key_ends = ends};
  }
  friend std::ostream& operator<<(std::ostream& out, const sizes& s) {
    return out << s.batch << " x " << s.heads << '/' << s.kv_heads << " heads x " << s.queries << '/' << s.keys()
               << " x " << s.d << ", values x " << s.e() << (s.in == layout::tokens ? ", of tokens" : ", of heads")
               << ", padding " << s.padding << (s.mask == attention_mask::none ? ", no mask" : "") << ", scale "
               << s.scale << ", softcap " << s.softcap << ", window " << s.left << " and " << s.right << ", prefix "
               << s.prefix << ", offset " << s.offset << ", " << s.cumulative.size() << " document ends, "
               << s.sinks.size() << " sinks, " << s.begins.size() << " begins and " << s.ends.size() << " ends of keys";
  }
};

/// The definition, head by head and row by row, in f64 and with the whole matrix of p: q [batch, heads, queries, d], v
/// [batch, kv_heads, keys, e].
struct reference {
  std::vector<double> o, lse, dq, dk, dv, dsinks;
  std::vector<double> of_dsinks;  // the sums of the magnitudes of the terms of dsinks

  TIGON_TEST_NOINLINE reference(const sizes& s, const std::vector<double>& q, const std::vector<double>& k,
                                const std::vector<double>& v, const std::vector<double>& d_o)
      : o(d_o.size()), dq(q.size()), dk(k.size()), dv(v.size()), dsinks(s.sinks.size()), of_dsinks(dsinks) {
    const std::size_t n = s.queries, m = s.keys(), d = s.d, e = s.e();
    std::vector<double> p(m), dp(m), slope(m, 1);
    const auto dot = [](const double* a, const double* b, std::size_t cols) {
      double sum = 0;
      for (std::size_t c = 0; c < cols; ++c) sum += a[c] * b[c];
      return sum;
    };
    for (std::size_t head = 0; head < s.batch * s.heads; ++head) {
      const std::size_t b = head / s.heads, h = head % s.heads, kv = b * s.kv_heads + h * s.kv_heads / s.heads;
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t at = (head * n + i) * d, to = (head * n + i) * e;
        const double sink = s.sinks.empty() ? -infinity : static_cast<double>(s.sinks[h]);
        double top = sink, sum = 0, mean = 0;
        for (std::size_t j = 0; j < m; ++j) {
          if (!s.sees(b, i, j)) continue;
          p[j] = s.factor() * dot(&q[at], &k[(kv * m + j) * d], d);
          if (s.softcap != 0) {
            const double t = std::tanh(p[j] / s.softcap);
            p[j] = s.softcap * t, slope[j] = 1 - t * t;
          }
          top = std::max(top, p[j]);
        }
        const double of_sink = sink == -infinity ? 0 : std::exp(sink - top);
        for (std::size_t j = 0; j < m; ++j) sum += p[j] = s.sees(b, i, j) ? std::exp(p[j] - top) : 0;
        sum += of_sink;
        lse.push_back(top + std::log(sum));
        if (sum == 0) continue;  // it sees nothing
        for (std::size_t j = 0; j < m; ++j) {
          p[j] /= sum;
          for (std::size_t c = 0; c < e; ++c) o[to + c] += p[j] * v[(kv * m + j) * e + c];
          mean += p[j] * (dp[j] = dot(&d_o[to], &v[(kv * m + j) * e], e));
        }
        if (!s.sinks.empty()) dsinks[h] -= of_sink / sum * mean;
        for (std::size_t c = 0; c < e && !s.sinks.empty(); ++c)
          of_dsinks[h] += of_sink / sum * std::abs(d_o[to + c] * o[to + c]);
        for (std::size_t j = 0; j < m; ++j) {
          const double ds = p[j] * (dp[j] - mean) * slope[j] * s.factor();
          for (std::size_t c = 0; c < d; ++c) {
            const std::size_t key = (kv * m + j) * d + c;
            dq[at + c] += ds * k[key];
            dk[key] += ds * q[at + c];
          }
          for (std::size_t c = 0; c < e; ++c) dv[(kv * m + j) * e + c] += p[j] * d_o[to + c];
        }
      }
    }
  }
};

template <class T>
struct problem {
  sizes s;
  guarded_heads<T> q, k, v, o, d_o, dq, dk, dv;
  guarded<accumulator_t<T>> lse, dsinks;

  TIGON_TEST_NOINLINE explicit problem(sizes of, guard side = guard::behind)
      : s(std::move(of)),
        q(of_q(), side),
        k(of_k(), side),
        v(of_v(), side),
        o(of_o(), side),
        d_o(of_o(), side),
        dq(of_q(), side),
        dk(of_k(), side),
        dv(of_v(), side),
        lse(s.batch * s.heads * s.queries, side),
        dsinks(s.sinks.size(), side) {
    std::uint64_t seed = 0;
    for (guarded_heads<T>* in : {&q, &k, &v, &d_o}) in->assign(normal_values(in->count(), ++seed));
  }

  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    tigon::attention_forward<B, T>(q, k, v, o.view(), lse, s.options(), ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(context& ctx = tigon::default_context()) {
    tigon::attention_backward<B, T>(
        d_o, q, k, v, {o, lse}, tigon::attention_gradients{dq.view(), dk.view(), dv.view(), dsinks}, s.options(), ctx);
  }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(ctx);
    backward<B>(ctx);
  }
  heads_shape of_q() const { return {s.batch, s.heads, s.queries, s.d, s.in, s.padding}; }
  heads_shape of_k() const { return {s.batch, s.kv_heads, s.keys(), s.d, s.in, s.padding}; }
  heads_shape of_v() const { return {s.batch, s.kv_heads, s.keys(), s.e(), s.in, s.padding}; }
  heads_shape of_o() const { return {s.batch, s.heads, s.queries, s.e(), s.in, s.padding}; }
  reference wanted() const { return {s, q.f64(), k.f64(), v.f64(), d_o.f64()}; }
  /// Made once for all backends: the inputs depend on sizes and element type alone.
  TIGON_TEST_NOINLINE const reference& wanted_once() const {
    static std::map<sizes, reference> known;
    return known.try_emplace(s, wanted()).first->second;
  }
};

// In units of |reference| + its root mean square; at most ten times the worst that was seen. o, dq, dk and dv are
// rounded once.
constexpr by_type forward_bound{.f32 = 2e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-15};
constexpr by_type lse_bound{.f32 = 5e-7, .bf16 = 5e-7, .f16 = 5e-7, .f64 = 1e-15};
constexpr by_type gradient_bound{.f32 = 4e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1e-14};
// Of the terms of dsinks, which are made of a rounded o.
constexpr by_type half_a_unit{.f32 = 0, .bf16 = 0x1p-9, .f16 = 0x1p-12, .f64 = 0};

/// B with tiles that are small, so that few tokens have many of them.
template <class B>
struct small_tiles : B {
  using parent = B;
  static constexpr tigon::backend_info info{"small_tiles", {tigon::device::cpu}};
  static constexpr tigon::attention_tuning attention{.key_block = 20, .query_rows = 12, .query_tiles = 2};
  using overrides = tigon::op_list<>;
};

/// One row, around tiles of rows and of keys, several and a bit; groups of 1, 2 and 4; odd widths; both layouts.
std::vector<sizes> every_size() {
  constexpr attention_mask none = attention_mask::none;
  return {{2, 4, 2, 1, 8},
          {1, 4, 1, 2, 33, layout::heads, 3},
          {2, 2, 1, 19, 8, layout::tokens, 5},
          {1, 4, 2, 20, 33, layout::heads, 1},
          {2, 4, 1, 21, 8, layout::tokens, 0, none},
          {1, 2, 2, 25, 64, layout::heads, 0},
          {1, 26, 2, 9, 5, layout::tokens, 0},
          {1, 4, 2, 62, 33, layout::tokens, 2, attention_mask::causal, 0.3},
          {1, 2, 1, 83, 16, layout::heads, 7, none, -0.1}};
}

/// With values of this many columns.
sizes with_values(sizes s, std::size_t v_dim) {
  s.v_dim = v_dim;
  return s;
}

/// Values that are narrower or wider than keys: of one column, and of none but one of a vector; one column of keys.
std::vector<sizes> every_width() {
  constexpr attention_mask none = attention_mask::none;
  return {with_values({2, 4, 2, 21, 24, layout::tokens, 1}, 16), with_values({1, 4, 1, 62, 8, layout::heads, 3}, 33),
          with_values({1, 2, 1, 45, 33, layout::tokens, 0, none}, 1),
          with_values({1, 2, 2, 25, 1, layout::heads, 1}, 17),
          with_values({1, 26, 2, 9, 2, layout::tokens, 2, attention_mask::causal, 0.3}, 3)};
}

/// Every option, alone and with others; border tiles, whole ones, hidden ones; queries that see nothing; no keys.
std::vector<sizes> every_mask() {
  constexpr attention_mask none = attention_mask::none, causal = attention_mask::causal;
  const auto with = [](std::size_t queries, attention_mask mask, auto set) {
    sizes s{1, 4, 2, queries, 9, layout::tokens, 1, mask};
    set(s);
    return s;
  };
  const float no_weight = -std::numeric_limits<float>::infinity();
  const std::vector<float> sinks{0.5f, -1.0f, 2.0f, 0.0f}, one_of_none{0.5f, no_weight, 2.0f, no_weight};
  return {with(70, causal, [](sizes& s) { s.left = 13; }),
          with(70, causal, [](sizes& s) { s.left = 0; }),
          with(64, none, [](sizes& s) { s.left = 5, s.right = 30; }),
          with(64, none, [](sizes& s) { s.right = 2; }),
          with(70, causal, [](sizes& s) { s.prefix = 27; }),
          with(90, causal, [](sizes& s) { s.prefix = 3, s.left = 20; }),
          with(70, causal, [](sizes& s) { s.cumulative = {0, 3, 3, 30, 61, 70}; }),
          with(70, none,
               [](sizes& s) {
                 s.cumulative = {0, 40, 41, 70};
               }),
          with(75, causal,
               [](sizes& s) {
                 s.cumulative = {0, 33, 75}, s.prefix = 4, s.left = 6, s.offset = 0;
               }),
          with(1, causal, [](sizes& s) { s.offset = 57; }),
          with(23, causal, [](sizes& s) { s.offset = 41, s.left = 30; }),
          with(23, none, [](sizes& s) { s.keys_of_none = 47; }),
          with(23, none, [](sizes& s) { s.keys_of_none = 0; }),
          with(50, none, [](sizes& s) { s.keys_of_none = 30, s.left = 4; }),  // the last queries see nothing
          with(50, none, [&](sizes& s) { s.keys_of_none = 30, s.left = 4, s.sinks = sinks; }),
          with(50, none, [&](sizes& s) { s.keys_of_none = 30, s.left = 4, s.sinks = one_of_none; }),
          with(23, none, [&](sizes& s) { s.keys_of_none = 0, s.sinks = one_of_none; }),
          with(50, causal, [](sizes& s) { s.softcap = 0.8; }),
          with(50, causal, [&](sizes& s) { s.sinks = sinks; }),
          with(75, causal,
               [&](sizes& s) {
                 s.sinks = sinks, s.softcap = 2, s.cumulative = {0, 44, 80}, s.prefix = 2, s.left = 11, s.offset = 5;
               }),
          with(70, causal,
               [](sizes& s) {
                 s.batch = 3, s.ends = {70, 24, 37};
               }),
          with(70, causal,
               [](sizes& s) {
                 s.batch = 3, s.begins = {0, 55, 35};
               }),
          with(40, none,
               [](sizes& s) {
                 s.batch = 4, s.begins = {0, 33, 5, 20}, s.ends = {40, 40, 17, 20};
               }),
          with(9, causal,
               [](sizes& s) {
                 s.batch = 2, s.begins = {34, 0}, s.ends = {50, 48}, s.offset = 41;
               }),
          with(75, causal, [&](sizes& s) {
            s.batch = 2, s.begins = {50, 3}, s.ends = {80, 60}, s.cumulative = {0, 44, 80};
            s.sinks = sinks, s.softcap = 2, s.prefix = 2, s.left = 11, s.offset = 5;
          })};
}

template <class On>
class attention : public testing::Test {};
TYPED_TEST_SUITE(attention, every_product_pair, names);

template <class B, class T>
void keeps_its_error(const sizes& s, guard side) {
  SCOPED_TRACE(testing::Message() << s << ", " << side);
  problem<T> p(s, side);
  p.template both_ways<B>();
  const reference& wanted = p.wanted_once();
  EXPECT_TRUE(close(p.o.f64(), wanted.o, forward_bound.of<T>()));
  std::vector<double> lse = p.lse.f64(), wanted_lse = wanted.lse;
  for (std::size_t i = 0; i < lse.size(); ++i)
    if (lse[i] == -infinity && wanted_lse[i] == -infinity) lse[i] = wanted_lse[i] = 0;  // it sees nothing
  EXPECT_TRUE(close(lse, wanted_lse, lse_bound.of<T>()));
  // In a sequence of one token p is 1, and the terms of dq and dk cancel.
  EXPECT_TRUE(close(p.dq.f64(), wanted.dq, gradient_bound.of<T>(), {.scale = 0.5}));
  if (s.keys() != 0) {
    EXPECT_TRUE(close(p.dk.f64(), wanted.dk, gradient_bound.of<T>(), {.scale = 0.5}));
    EXPECT_TRUE(close(p.dv.f64(), wanted.dv, gradient_bound.of<T>()));
  }
  if (!s.sinks.empty() && (sizeof(T) > 2 || s.e() == s.d)) {
    EXPECT_TRUE(close(p.dsinks.f64(), wanted.dsinks, gradient_bound.of<T>()));
  }
  for (std::size_t h = 0; sizeof(T) == 2 && h < s.sinks.size(); ++h)  // terms of many columns cancel
    EXPECT_NEAR(static_cast<double>(p.dsinks[h]), wanted.dsinks[h],
                (half_a_unit.of<T>() + gradient_bound.f32) * wanted.of_dsinks[h]);
  EXPECT_TRUE(p.o.padding_intact() && p.dq.padding_intact() && p.dk.padding_intact() && p.dv.padding_intact());
}

TYPED_TEST(attention, keeps_its_error_and_the_padding) {
  using B = small_tiles<typename TypeParam::backend>;
  using T = typename TypeParam::element;
  for (const sizes& s : every_size())
    for (const guard side : both_guards) keeps_its_error<B, T>(s, side);
}

TYPED_TEST(attention, keeps_its_error_with_every_mask) {
  using B = small_tiles<typename TypeParam::backend>;
  using T = typename TypeParam::element;
  for (const sizes& s : every_mask()) keeps_its_error<B, T>(s, guard::behind);
}

TYPED_TEST(attention, of_values_of_another_width_keeps_its_error) {
  using B = small_tiles<typename TypeParam::backend>;
  using T = typename TypeParam::element;
  for (const sizes& s : every_width())
    for (const guard side : both_guards) keeps_its_error<B, T>(s, side);
  for (const sizes& s : every_mask())
    for (const std::size_t v_dim : {5u, 14u}) keeps_its_error<B, T>(with_values(s, v_dim), guard::behind);
}

TYPED_TEST(attention, rows_do_not_feel_the_bad_ones_that_they_do_not_see) {
  using B = small_tiles<typename TypeParam::backend>;
  using T = typename TypeParam::element;
  const sizes s{1, 4, 2, 70, 8};
  problem<T> clean(s);
  clean.template both_ways<B>();
  for (const double bad : {nan, infinity}) {
    problem<T> in_q(s), in_k(s);
    in_q.q[(1 * s.queries + 30) * s.d + 3] = from_f64<T>(bad);  // head 1, row 30
    in_k.k[(0 * s.queries + 30) * s.d + 3] = from_f64<T>(bad);  // of heads 0 and 1
    in_q.template both_ways<B>();
    in_k.template forward<B>();
    const auto same = [&](auto& got, auto& of_clean, std::size_t row) {
      return std::equal(&got[row * s.d], &got[row * s.d] + s.d, &of_clean[row * s.d],
                        [](T a, T b) { return to_f64(a) == to_f64(b); });
    };
    for (std::size_t h = 0; h < s.heads; ++h)
      for (std::size_t i = 0; i < s.queries; ++i) {
        const std::size_t row = h * s.queries + i;
        const bool lost_by_q = h == 1 && i == 30, may_be_lost_by_k = h < 2 && i >= 30;
        ASSERT_EQ(same(in_q.o, clean.o, row), !lost_by_q) << h << ", " << i;
        ASSERT_EQ(same(in_q.dq, clean.dq, row), !lost_by_q) << h << ", " << i;
        ASSERT_EQ(in_q.lse[row] == clean.lse[row], !lost_by_q) << h << ", " << i;
        ASSERT_TRUE(!lost_by_q || (std::isnan(to_f64(in_q.o[row * s.d])) && std::isnan(in_q.lse[row])));
        ASSERT_TRUE(may_be_lost_by_k || same(in_k.o, clean.o, row)) << h << ", " << i;
        ASSERT_TRUE(!may_be_lost_by_k || !std::isnan(bad) || std::isnan(to_f64(in_k.o[row * s.d]))) << h << ", " << i;
      }
  }
}

TYPED_TEST(attention, large_scores_do_not_overflow) {
  using B = small_tiles<typename TypeParam::backend>;
  using T = typename TypeParam::element;
  problem<T> p({1, 2, 1, 40, 16, layout::heads, 0, attention_mask::causal, 30});  // scores of hundreds
  p.template both_ways<B>();
  const reference wanted = p.wanted();
  EXPECT_TRUE(close(p.o.f64(), wanted.o, std::same_as<T, double> ? 4e-14 : std::max(4e-5, forward_bound.of<T>())));
  for (const double g : p.dk.f64()) ASSERT_TRUE(std::isfinite(g));
}

TYPED_TEST(attention, rows_of_infinite_scores_are_nan_and_rows_without_keys_are_zero) {
  using B = small_tiles<typename TypeParam::backend>;
  using T = typename TypeParam::element;
  sizes s{1, 1, 1, 40, 4, layout::tokens, 0, attention_mask::none};
  s.keys_of_none = 25, s.left = 2;  // queries from 27 on see nothing
  for (const double sink : {nan, 0.25, -infinity}) {
    const bool with_sink = sink == sink;
    if (with_sink) s.sinks = {static_cast<float>(sink)};
    problem<T> p(s);
    for (std::size_t c = 0; c < s.d; ++c) p.q[7 * s.d + c] = from_f64<T>(c == 0 ? -infinity : 0);
    for (std::size_t j = 0; j < s.keys(); ++j) p.k[j * s.d] = from_f64<T>(1);  // all scores of query 7 are -infinity
    p.template both_ways<B>();
    for (std::size_t i = 0; i < s.queries; ++i) {
      const double o = to_f64(p.o[i * s.d]), lse = static_cast<double>(p.lse[i]);
      SCOPED_TRACE(i);
      if (i == 7 && !with_sink) {
        EXPECT_TRUE(std::isnan(o) && std::isnan(lse));
      } else if (i == 7 || i >= 27) {
        EXPECT_EQ(o, 0);
        EXPECT_EQ(lse, with_sink ? sink : -infinity);
        if (i >= 27) {
          EXPECT_EQ(to_f64(p.dq[i * s.d]), 0);
        }
      } else {
        EXPECT_TRUE(std::isfinite(o) && std::isfinite(lse));
      }
    }
    if (with_sink) {
      EXPECT_TRUE(std::isfinite(static_cast<double>(p.dsinks[0])));
    }
    if (sink == -infinity) {
      EXPECT_EQ(static_cast<double>(p.dsinks[0]), 0);
    }
  }
}

TYPED_TEST(attention, of_nothing_writes_nothing) {
  using B = small_tiles<typename TypeParam::backend>;
  using T = typename TypeParam::element;
  for (const sizes& s : {sizes{0, 2, 1, 5, 8}, sizes{2, 2, 1, 0, 8}}) {
    problem<T> p(s);
    p.template both_ways<B>();
    EXPECT_EQ(p.o.count(), 0u);
  }
}

TYPED_TEST(attention, without_queries_gradients_of_keys_are_zero) {
  using B = small_tiles<typename TypeParam::backend>;
  using T = typename TypeParam::element;
  sizes s{1, 2, 1, 0, 8, layout::tokens, 0, attention_mask::none};
  s.keys_of_none = 23;
  problem<T> p(s);
  p.template both_ways<B>();
  EXPECT_EQ(p.dk.f64(), std::vector<double>(23 * 8));
  EXPECT_EQ(p.dv.f64(), std::vector<double>(23 * 8));
}

TYPED_TEST(attention, bits_do_not_depend_on_threads) {
  using B = small_tiles<typename TypeParam::backend>;
  using T = typename TypeParam::element;
  sizes packed{2, 4, 2, 70, 33};
  packed.cumulative = {0, 31, 70}, packed.prefix = 2, packed.left = 25, packed.sinks = {0, 1, -1, 0.5f};
  for (const sizes& s : {sizes{2, 4, 2, 130, 33}, sizes{1, 2, 1, 65, 8, layout::heads, 1, attention_mask::none}, packed,
                         with_values(packed, 20)}) {
    problem<T> p(s);
    EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
      p.o.clear(), p.lse.clear(), p.dq.clear(), p.dk.clear(), p.dv.clear(), p.dsinks.clear();
      p.template both_ways<B>(ctx);
      return bits_of(p.o, p.lse, p.dq, p.dk, p.dv, p.dsinks);
    }));
  }
}

TYPED_TEST(attention, takes_the_workspace_that_it_names_of_any_length) {
  using B = small_tiles<typename TypeParam::backend>;
  using T = typename TypeParam::element;
  EXPECT_EQ((tigon::attention_workspace<B, T>(1, 33, {}, 3)), (tigon::attention_workspace<B, T>(1, 33, {}, 3, 33)));
  EXPECT_EQ((tigon::attention_backward_workspace<B, T>(1, 33, {}, 3)),
            (tigon::attention_backward_workspace<B, T>(1, 33, {}, 3, 33)));
  for (const std::size_t v_dim : {33u, 12u, 70u, 1u}) {
    const std::size_t forward = tigon::attention_workspace<B, T>(1, 33, {}, 3, v_dim);
    const std::size_t backward = tigon::attention_backward_workspace<B, T>(1, 33, {}, 3, v_dim);
    for (const std::size_t seq_len : {std::size_t{200}, std::size_t{1} << 40}) {
      EXPECT_EQ((tigon::attention_workspace<B, T>(seq_len, 33, {}, 3, v_dim)), forward);
      EXPECT_EQ((tigon::attention_backward_workspace<B, T>(seq_len, 33, {}, 3, v_dim)), backward);
    }
    for (const auto& [mask, seq_len] : {std::pair(attention_mask::causal, 3u),
                                        {attention_mask::causal, 90u},
                                        {attention_mask::none, 3u},
                                        {attention_mask::none, 90u}}) {
      problem<T> p(with_values({2, 2, 1, seq_len, 33, layout::tokens, 0, mask}, v_dim));
      const auto runs = [](std::size_t bytes, auto call) { with_workspace_of(bytes, call, 3); };
      EXPECT_TIGON_ERROR(runs(forward - 1, [&](context& ctx) { p.template forward<B>(ctx); }), workspace,
                         "attention_forward: workspace is of", p.o, p.lse);
      runs(forward, [&](context& ctx) { p.template forward<B>(ctx); });
      EXPECT_TIGON_ERROR(runs(backward - 1, [&](context& ctx) { p.template backward<B>(ctx); }), workspace,
                         "attention_backward: workspace is of", p.dq, p.dk, p.dv);
      runs(backward, [&](context& ctx) { p.template backward<B>(ctx); });
    }
  }
}

TYPED_TEST(attention, of_a_cache_is_that_of_the_whole_sequence) {
  using B = small_tiles<typename TypeParam::backend>;
  using T = typename TypeParam::element;
  sizes whole{1, 4, 2, 55, 9}, last = whole;
  last.queries = 3, last.offset = 52;
  problem<T> all(whole), some(last);
  for (std::size_t i = 0; i < all.k.count(); ++i) some.k[i] = all.k[i], some.v[i] = all.v[i];
  const auto each = [&](auto f) {
    for (std::size_t h = 0; h < whole.heads; ++h)
      for (std::size_t i = 0; i < last.queries; ++i)
        for (std::size_t c = 0; c < whole.d; ++c)
          f((h * last.queries + i) * whole.d + c, (h * whole.queries + 52 + i) * whole.d + c);
  };
  each([&](std::size_t to, std::size_t from) { some.q[to] = all.q[from]; });
  all.template forward<B>();
  some.template forward<B>();
  std::vector<double> wanted(some.o.count());
  each([&](std::size_t to, std::size_t from) { wanted[to] = to_f64(all.o[from]); });
  EXPECT_TRUE(close(some.o.f64(), wanted, forward_bound.of<T>()));
}

// Where values are almost equal, what the rounding of o takes away is as large as dp - delta. A row of one 16-bit dq
// has no room for a delta of 32 bits. With one sign of do no terms of delta cancel between columns.
TEST(attention_gradients, of_one_column_are_made_of_an_o_before_its_rounding) {
  using B = small_tiles<usual_backend>;
  for (const std::size_t v_dim : {1u, 2u, 7u}) {
    problem<tigon::bfloat16> p(with_values({1, 4, 2, 61, 1}, v_dim));
    for (std::size_t k = 0; k < p.v.count(); ++k)
      p.v[k] = tigon::bfloat16(1 + 0x1p-6f * static_cast<float>(k / v_dim % 3));
    for (std::size_t k = 0; v_dim != 1 && k < p.d_o.count(); ++k)
      p.d_o[k] = tigon::bfloat16(std::abs(static_cast<float>(p.d_o[k])));
    p.both_ways<B>();
    const reference wanted = p.wanted();
    EXPECT_TRUE(close(p.dq.f64(), wanted.dq, gradient_bound.bf16)) << v_dim;
    EXPECT_TRUE(close(p.dk.f64(), wanted.dk, gradient_bound.bf16)) << v_dim;
  }
}

// The tiles of a usual backend: more than one part of queries, and a bit.
TEST(attention_tiles, of_the_usual_size_keep_their_error) {
  using B = usual_backend;
  constexpr std::size_t rows = B::attention.query_rows, keys = B::attention.key_block;
  keeps_its_error<B, float>({1, 3, 1, keys + rows / 3 + 1, 16}, guard::behind);
  sizes s{1, 2, 1, 2 * keys + 5, 8, layout::heads, 3};
  s.left = keys + 7, s.softcap = 5;
  keeps_its_error<B, float>(s, guard::before);
  // Strips of a tile of rows that see none of its first keys, and have a sink before them.
  sizes narrow{1, 2, 2, 2 * rows + 5, 8};
  narrow.left = rows / 10, narrow.sinks = {0.5f, -1.0f};
  keeps_its_error<B, float>(narrow, guard::behind);
  keeps_its_error<B, float>(with_values({1, 2, 1, keys + rows + 5, 48, layout::tokens, 3}, 32), guard::behind);
}

// The reference itself: its gradients are the differences of its values, and so are those of the f64 kernels.
template <class On>
class attention_gradient : public testing::Test {};
TYPED_TEST_SUITE(attention_gradient, pairs_of<double>, names);

TYPED_TEST(attention_gradient, is_that_of_central_differences) {
  using B = typename TypeParam::backend;
  sizes capped{1, 2, 1, 9, 3};
  capped.softcap = 1.5, capped.sinks = {0.25f, -0.5f}, capped.left = 4;
  for (const sizes& s : {sizes{1, 4, 2, 5, 3}, sizes{2, 2, 1, 6, 4, layout::heads, 1, attention_mask::none, 0.7},
                         capped, with_values(capped, 2), with_values({1, 2, 1, 6, 2}, 5)}) {
    problem<double> p(s);
    p.both_ways<B>();
    const auto q = p.q.f64(), k = p.k.f64(), v = p.v.f64(), d_o = p.d_o.f64();
    const auto loss = [&](const auto& q, const auto& k, const auto& v) {
      const reference r(s, q, k, v, d_o);
      return std::inner_product(d_o.begin(), d_o.end(), r.o.begin(), 0.0);
    };
    const auto at_q = probes(q.size()), at_k = probes(k.size()), at_v = probes(v.size());
    const auto dq = central_difference([&](const auto& x) { return loss(x, k, v); }, q, at_q);
    const auto dk = central_difference([&](const auto& x) { return loss(q, x, v); }, k, at_k);
    const auto dv = central_difference([&](const auto& x) { return loss(q, k, x); }, v, at_v);
    const reference r = p.wanted();
    for (std::size_t h = 0; h < s.sinks.size(); ++h) {
      std::vector<double> change;
      for (const float step : {0x1p-6f, -0x1p-6f}) {
        sizes moved = s;
        moved.sinks[h] += step;
        const reference at(moved, q, k, v, d_o);
        change.push_back(std::inner_product(d_o.begin(), d_o.end(), at.o.begin(), 0.0));
      }
      EXPECT_NEAR(r.dsinks[h], (change[0] - change[1]) * 0x1p5, 1e-3);
      EXPECT_NEAR(p.dsinks[h], r.dsinks[h], 1e-12);
    }
    for (const auto& [got_q, got_k, got_v] :
         {std::tuple(r.dq, r.dk, r.dv), std::tuple(p.dq.f64(), p.dk.f64(), p.dv.f64())}) {
      EXPECT_TRUE(close(pick(got_q, at_q), dq, 4e-11)) << s;
      EXPECT_TRUE(close(pick(got_k, at_k), dk, 4e-11)) << s;
      EXPECT_TRUE(close(pick(got_v, at_v), dv, 4e-11)) << s;
    }
  }
}

}  // namespace

// Rule R4: the products are those of the backend.
namespace mine {
struct counting : tigon::backends::generic {
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"counting", {tigon::device::cpu}};
  static constexpr tigon::attention_tuning attention{.key_block = 5, .query_rows = 6};
  using overrides = tigon::op_list<tigon::op::gemm>;
};
std::size_t products = 0;

/// Products that add up their terms one after the other, of few keys each.
struct plain_sums : tigon::backends::generic {
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"plain_sums", {tigon::device::cpu}};
  static constexpr tigon::attention_tuning attention{.key_block = 4, .query_rows = 32};
  using overrides = tigon::op_list<tigon::op::gemm>;
};
}  // namespace mine

template <>
struct tigon::kernel<tigon::op::gemm, mine::counting> : tigon::kernel<tigon::op::gemm, tigon::backends::generic> {
  template <tigon::backend B, tigon::element TA, tigon::element TB, tigon::element TC, class Epilogue>
  static void forward(tigon::matrix_view<const TA> a, tigon::gemm_operand<TB> b, tigon::in_vector<TC> bias,
                      tigon::matrix_view<TC> c, const Epilogue& epilogue, tigon::gemm_options opt,
                      tigon::context& ctx) {
    ++mine::products;
    tigon::kernel<tigon::op::gemm, tigon::backends::generic>::forward<B, TA, TB, TC>(a, b, bias, c, epilogue, opt, ctx);
  }
};

template <>
struct tigon::kernel<tigon::op::gemm, mine::plain_sums> : tigon::kernel<tigon::op::gemm, tigon::backends::generic> {
  template <tigon::backend B, tigon::element TA, tigon::element TB, tigon::element TC, class Epilogue>
  static void forward(tigon::matrix_view<const TA> a, tigon::gemm_operand<TB> b, tigon::in_vector<TC>,
                      tigon::matrix_view<TC> c, const Epilogue&, tigon::gemm_options opt, tigon::context&) {
    using A = tigon::accumulator_t<TC>;
    const bool ta = opt.a == tigon::transpose::yes, tb = opt.b == tigon::transpose::yes;
    for (std::size_t i = 0; i < c.rows; ++i)
      for (std::size_t j = 0; j < c.cols; ++j) {
        A sum = 0;
        for (std::size_t p = 0; p < (ta ? a.rows : a.cols); ++p)
          sum +=
              static_cast<A>(ta ? a.row(p)[i] : a.row(i)[p]) * static_cast<A>(tb ? b.view.row(j)[p] : b.view.row(p)[j]);
        sum *= static_cast<A>(opt.alpha);
        if (opt.beta != 0) sum += static_cast<A>(opt.beta) * static_cast<A>(c.row(i)[j]);
        c.row(i)[j] = static_cast<TC>(sum);
      }
  }
};

namespace {

TEST(attention_products, are_those_of_the_backend_and_its_blocks_change_nothing_but_the_order) {
  problem<float> p({1, 2, 1, 12, 8});
  mine::products = 0;
  p.forward<mine::counting>();
  EXPECT_EQ(mine::products, 2u * 8);  // four tiles of three queries and two heads see 1, 2, 2 and 3 blocks of keys
  mine::products = 0;
  p.backward<mine::counting>();
  EXPECT_EQ(mine::products, 5u * 9);  // of six pairs of blocks; two tiles of rows are in each but the last block
  EXPECT_TRUE(close(p.o.f64(), p.wanted().o, forward_bound.f32));
  EXPECT_TRUE(close(p.dk.f64(), p.wanted().dk, gradient_bound.f32));
}

/// Tiles of so few rows that a short sequence has very many.
template <std::size_t Rows>
struct few_queries : usual_backend {
  using parent = usual_backend;
  static constexpr tigon::backend_info info{"few_queries", {tigon::device::cpu}};
  static constexpr tigon::attention_tuning attention{.key_block = 24, .query_rows = Rows};
  using overrides = tigon::op_list<>;
};

/// Scores of 0, so that every query of a group adds the same to dk and dv of a key: each addition to a running sum is
/// rounded the same way.
template <class T, std::size_t Rows>
void sums_over_queries_keep_their_error(std::size_t heads, std::size_t n, attention_mask mask, double bound) {
  using B = few_queries<Rows>;
  using A = accumulator_t<T>;
  for (const double g : {0.1, 1.0 / 3, 0.7}) {
    std::vector<T> q(heads * n, from_f64<T>(0.75)), k(n, from_f64<T>(0)), v(n), o(heads * n),
        d_o(heads * n, from_f64<T>(g));
    std::vector<T> dq(heads * n), dk(n), dv(n);
    std::vector<A> lse(heads * n);
    std::vector<double> want_dk(n), want_dv(n);
    for (std::size_t j = 0; j < n; ++j) v[j] = from_f64<T>(j % 2 == 0 ? 1 : -1);
    const double up = to_f64(d_o[0]);
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t seen = mask == attention_mask::causal ? i + 1 : n;
      const double p = 1 / static_cast<double>(seen), mean = seen % 2 == 0 ? 0 : p;
      for (std::size_t h = 0; h < heads; ++h)
        o[h * n + i] = from_f64<T>(mean), lse[h * n + i] = static_cast<A>(std::log(static_cast<double>(seen)));
      for (std::size_t j = 0; j < seen; ++j) {
        want_dv[j] += static_cast<double>(heads) * p * up;
        want_dk[j] += static_cast<double>(heads) * p * up * 0.75 * (to_f64(v[j]) - mean);
      }
    }
    const auto view = [&](auto& of, std::size_t of_heads) {
      return heads_view<std::remove_reference_t<decltype(of[0])>>::of_heads(of.data(), 1, of_heads, n, 1);
    };
    const auto backward = [&](context& ctx) {
      tigon::attention_backward<B, T>(
          view(std::as_const(d_o), heads), view(std::as_const(q), heads), view(std::as_const(k), 1),
          view(std::as_const(v), 1), {view(std::as_const(o), heads), lse},
          tigon::attention_gradients{view(dq, heads), view(dk, 1), view(dv, 1)}, {.mask = mask}, ctx);
    };
    with_workspace_of(tigon::attention_backward_workspace<B, T>(n, 1, {.mask = mask}), backward);
    const auto f64 = [](const std::vector<T>& from) {
      std::vector<double> to;
      for (const T x : from) to.push_back(to_f64(x));
      return to;
    };
    EXPECT_TRUE(close(f64(dv), want_dv, bound)) << g;
    EXPECT_TRUE(close(f64(dk), want_dk, bound)) << g;
  }
}

TEST(attention_sums, over_very_many_blocks_of_queries_keep_their_error) {
  for (const attention_mask mask : {attention_mask::causal, attention_mask::none})
    sums_over_queries_keep_their_error<float, 1>(1, 2048, mask, gradient_bound.f32);
  sums_over_queries_keep_their_error<tigon::bfloat16, 1>(1, 2048, attention_mask::none, gradient_bound.bf16);
}

TEST(attention_sums, over_a_large_group_of_heads_keep_their_error) {
  sums_over_queries_keep_their_error<float, 1>(128, 48, attention_mask::none, gradient_bound.f32);
}

/// Scores of 0, so that every key adds the same to o, and to dq of every query.
template <class B, class T>
void sums_over_keys_keep_their_error(std::size_t n, std::initializer_list<double> values, double forward,
                                     double backward) {
  using A = accumulator_t<T>;
  for (const double value : values) {
    SCOPED_TRACE(value);
    const std::vector<T> q(n, from_f64<T>(0)), d_o(n, from_f64<T>(1));
    std::vector<T> k(n, from_f64<T>(1)), v(n, from_f64<T>(value)), o(n), dq(n), dk(n), dv(n);
    std::vector<A> lse(n);
    const auto view = [&](auto& of) {
      return heads_view<std::remove_reference_t<decltype(of[0])>>::of_heads(of.data(), 1, 1, n, 1);
    };
    const auto f64 = [](const std::vector<T>& from) {
      std::vector<double> to;
      for (const T x : from) to.push_back(to_f64(x));
      return to;
    };
    const tigon::attention_options opt{.mask = attention_mask::none};
    const auto run = [&](context& ctx) {
      tigon::attention_forward<B, T>(view(q), view(std::as_const(k)), view(std::as_const(v)), view(o), lse, opt, ctx);
    };
    with_workspace_of(tigon::attention_workspace<B, T>(n, 1, opt), run);
    EXPECT_TRUE(close(f64(o), std::vector<double>(n, to_f64(v[0])), forward));
    if (backward == 0) continue;
    for (std::size_t j = 0; j < n; ++j) {  // ds are 1 and -1 over n
      v[j] = from_f64<T>(j % 2 == 0 ? 1 : -1);
      k[j] = from_f64<T>(j % 2 == 0 ? value : -value);
      o[j] = from_f64<T>(0);
    }
    with_workspace_of(tigon::attention_backward_workspace<B, T>(n, 1, opt), [&](context& ctx) {
      tigon::attention_backward<B, T>(view(d_o), view(q), view(std::as_const(k)), view(std::as_const(v)),
                                      {view(std::as_const(o)), lse},
                                      tigon::attention_gradients{view(dq), view(dk), view(dv)}, opt, ctx);
    });
    EXPECT_TRUE(close(f64(dq), std::vector<double>(n, to_f64(k[0])), backward));
  }
}

TEST(attention_sums, over_very_many_keys_keep_their_error) {
  sums_over_keys_keep_their_error<usual_backend, float>(20480, {0.191}, forward_bound.f32, 0);
}

TEST(attention_sums, over_keys_do_not_grow_with_the_blocks_of_keys) {
  using B = mine::plain_sums;
  sums_over_keys_keep_their_error<B, float>(2048, {0.1, 1.0 / 3, 0.7}, forward_bound.f32, gradient_bound.f32);
  sums_over_keys_keep_their_error<B, tigon::bfloat16>(256, {0.1, 0.7}, forward_bound.bf16, gradient_bound.bf16);
}

/// One query of very many keys, whose exponentials are rounded: their sum is, too.
TEST(attention_sums, of_exponentials_keep_their_error) {
  using B = mine::plain_sums;
  constexpr std::size_t n = std::size_t{1} << 17;
  const float q = -0.35f;
  std::vector<float> k(n, 1), v(n, 1);
  k[0] = 0;  // a score of 0; all others are -0.35
  float o = 0, lse = 0;
  const auto of = [](auto* data, std::size_t keys) {
    return heads_view<std::remove_reference_t<decltype(*data)>>::of_heads(data, 1, 1, keys, 1);
  };
  tigon::attention_forward<B, float>(of(&q, 1), of(std::as_const(k).data(), n), of(std::as_const(v).data(), n),
                                     of(&o, 1), std::span(&lse, 1), {.mask = attention_mask::none});
  EXPECT_NEAR(o, 1, 2 * forward_bound.f32);
  EXPECT_NEAR(lse, std::log(1 + (n - 1) * std::exp(static_cast<double>(q))), 24 * lse_bound.f32);
}

/// The doors, which are the same for every backend: refused before the first write.
class attention_doors : public testing::Test {
 protected:
  using view = heads_view<float>;
  using B = tigon::default_backend;

  attention_doors() { p.forward<B>(), p.o.clear(); }
  void forward(view q, view k, view v, view o, std::span<float> lse, tigon::attention_options opt = {}) {
    tigon::attention_forward<B, float>(q, k, v, o, lse, opt);
  }
  void backward(view d_o, view q, view k, view v, view o, std::span<const float> lse, view dq, view dk, view dv,
                tigon::attention_options opt = {}) {
    tigon::attention_backward<B, float>(d_o, q, k, v, {o, lse}, tigon::attention_gradients{dq, dk, dv}, opt);
  }
  template <class M>
  static view with(view v, M view::*member, M value) {
    v.*member = value;
    return v;
  }

  problem<float> p{{2, 4, 2, 3, 8}};
  const view q = p.q.view(), k = p.k.view(), v = p.v.view(), o = p.o.view(), d_o = p.d_o.view(), dq = p.dq.view(),
             dk = p.dk.view(), dv = p.dv.view();
  const std::span<float> lse{p.lse};
};

TEST_F(attention_doors, forward_refuses_wrong_shapes) {
  guarded<float> r(lse.size());
  EXPECT_TIGON_ERROR(forward(with(q, &view::heads, 0ul), k, v, with(o, &view::heads, 0ul), {}), shape,
                     "attention_forward: heads is 0; expected at least 1", p.o, r);
  EXPECT_TIGON_ERROR(forward(q, with(k, &view::heads, 0ul), with(v, &view::heads, 0ul), o, r), shape,
                     "attention_forward: kv_heads is 0; expected at least 1", p.o, r);
  EXPECT_TIGON_ERROR(forward(with(q, &view::head_dim, 0ul), k, v, o, r), shape,
                     "attention_forward: head_dim is 0; expected at least 1", p.o, r);
  EXPECT_TIGON_ERROR(forward(with(q, &view::heads, 3ul), k, v, with(o, &view::heads, 3ul), r), shape,
                     "attention_forward: heads is no multiple of kv_heads; expected", p.o, r);
  EXPECT_TIGON_ERROR(forward(q, with(k, &view::seq_len, 2ul), v, o, r), shape, "attention_forward: k is 2 sequences",
                     p.o, r);
  EXPECT_TIGON_ERROR(forward(q, with(k, &view::head_dim, 7ul), v, o, r), shape, "attention_forward: k is 2 sequences",
                     p.o, r);
  EXPECT_TIGON_ERROR(forward(q, k, with(v, &view::head_dim, 0ul), o, r), shape,
                     "attention_forward: v_head_dim is 0; expected at least 1", p.o, r);
  EXPECT_TIGON_ERROR(forward(q, k, with(v, &view::head_dim, 7ul), o, r), shape, "attention_forward: o is 2 sequences",
                     p.o, r);
  EXPECT_TIGON_ERROR(forward(q, k, with(v, &view::heads, 1ul), o, r), shape, "attention_forward: v is 2 sequences", p.o,
                     r);
  EXPECT_TIGON_ERROR(forward(q, k, with(v, &view::seq_len, 2ul), o, r), shape, "attention_forward: v is 2 sequences",
                     p.o, r);
  EXPECT_TIGON_ERROR(forward(q, k, with(v, &view::batch, 1ul), o, r), shape, "attention_forward: v is 1 sequences", p.o,
                     r);
  EXPECT_TIGON_ERROR(forward(q, k, v, with(o, &view::batch, 1ul), r), shape, "attention_forward: o is 1 sequences", p.o,
                     r);
  EXPECT_TIGON_ERROR(forward(q, k, v, o, std::span<float>(r).first(23)), shape,
                     "attention_forward: lse is of 23 elements; expected 24", p.o, r);
  EXPECT_TIGON_ERROR(forward(with(q, &view::seq_stride, 7ul), k, v, o, r), stride,
                     "attention_forward: q is of a stride of", p.o, r);
  EXPECT_TIGON_ERROR(forward(q, with(k, &view::data, static_cast<float*>(nullptr)), v, o, r), shape,
                     "attention_forward: k is a null pointer", p.o, r);
}

TEST_F(attention_doors, forward_refuses_wrong_numbers) {
  for (const double scale : {nan, infinity, -infinity})
    EXPECT_TIGON_ERROR(forward(q, k, v, o, lse, {.scale = scale}), argument, "attention_forward: scale is", p.o, p.lse);
}

TEST_F(attention_doors, refuse_options_that_do_not_fit) {
  const auto both = [&](tigon::attention_options opt, const std::string& sentence) {
    EXPECT_TIGON_ERROR(forward(q, k, v, o, lse, opt), argument, "attention_forward: " + sentence, p.o, p.lse);
    EXPECT_TIGON_ERROR(backward(d_o, q, k, v, o, lse, dq, dk, dv, opt), argument, "attention_backward: " + sentence,
                       p.dq, p.dk, p.dv);
  };
  for (const double softcap : {-1.0, nan, infinity, 1e-300}) both({.softcap = softcap}, "softcap is");
  EXPECT_TIGON_ERROR(forward(q, k, v, o, lse, {.offset = 2}), shape, "attention_forward: k is 2 sequences", p.o);
  both({.offset = std::size_t(-1)}, "offset is too large");
  const std::vector<std::int32_t> wrong[] = {{0}, {3}, {1, 3}, {0, 2}, {0, 4}, {0, 2, 1, 3}, {-1, 3}};
  for (const auto& ends : wrong) both({.cumulative_lengths = ends}, "cumulative_lengths is no partition of the keys");
  const std::vector<std::int32_t> ends{0, 3};
  both({.mask = attention_mask::none, .offset = 1, .cumulative_lengths = ends}, "cumulative_lengths is of fewer keys");
  const std::vector<std::int32_t> low{-1, 0}, one{1, 3}, two{2, 2}, four{3, 4}, of_one{1};
  const std::string within = "key_ends is before key_begins or outside of the keys";
  both({.key_begins = low}, within), both({.key_begins = four}, within), both({.key_ends = four}, within);
  both({.key_begins = one, .key_ends = two}, within), both({.key_ends = low}, within);
  EXPECT_TIGON_ERROR(forward(q, k, v, o, lse, {.key_begins = of_one}), shape,
                     "attention_forward: key_begins is of 1 elements; expected 2", p.o);
  EXPECT_TIGON_ERROR(forward(q, k, v, o, lse, {.key_ends = of_one}), shape,
                     "attention_forward: key_ends is of 1 elements; expected 2", p.o);
  const std::vector<float> three(3);
  EXPECT_TIGON_ERROR(forward(q, k, v, o, lse, {.sinks = three}), shape,
                     "attention_forward: sinks is of 3 elements; expected 4", p.o);
}

TEST_F(attention_doors, backward_refuses_gradients_of_sinks_that_do_not_fit) {
  guarded<float> dsinks(4);
  const std::vector<float> sinks(4);
  const auto run = [&](std::span<float> to, tigon::attention_options opt) {
    tigon::attention_backward<B, float>(d_o, q, k, v, {o, lse}, tigon::attention_gradients{dq, dk, dv, to}, opt);
  };
  EXPECT_TIGON_ERROR(run(dsinks, {}), argument, "attention_backward: dsinks is given without sinks", p.dq, dsinks);
  EXPECT_TIGON_ERROR(run(std::span<float>(dsinks).first(3), {.sinks = sinks}), shape,
                     "attention_backward: dsinks is of 3 elements; expected 4", p.dq, dsinks);
  EXPECT_TIGON_ERROR(run({dq.data, 4}, {.sinks = sinks}), alias, "attention_backward: dsinks overlaps dq", p.dk);
  EXPECT_TIGON_ERROR(run(dsinks, {.sinks = {dsinks.data(), 4}}), alias, "attention_backward: dsinks overlaps sinks",
                     p.dq, dsinks);
  run({}, {.sinks = sinks});  // not wanted
}

TEST_F(attention_doors, forward_refuses_overlaps) {
  const std::span<float> in_q(q.data, lse.size()), in_k(k.data, lse.size()), in_v(v.data, lse.size()),
      in_o(o.data, lse.size());
  EXPECT_TIGON_ERROR(forward(q, k, v, q, lse), alias, "attention_forward: o overlaps q", p.q, p.lse);
  EXPECT_TIGON_ERROR(forward(q, with(k, &view::data, o.data), v, o, lse), alias, "attention_forward: o overlaps k", p.o,
                     p.lse);
  EXPECT_TIGON_ERROR(forward(q, k, with(v, &view::data, o.data), o, lse), alias, "attention_forward: o overlaps v", p.o,
                     p.lse);
  EXPECT_TIGON_ERROR(forward(q, k, v, o, in_q), alias, "attention_forward: lse overlaps q", p.q, p.o);
  EXPECT_TIGON_ERROR(forward(q, k, v, o, in_k), alias, "attention_forward: lse overlaps k", p.k, p.o);
  EXPECT_TIGON_ERROR(forward(q, k, v, o, in_v), alias, "attention_forward: lse overlaps v", p.v, p.o);
  EXPECT_TIGON_ERROR(forward(q, k, v, o, in_o), alias, "attention_forward: lse overlaps o", p.o);
}

TEST_F(attention_doors, backward_refuses_wrong_shapes) {
  const auto wrong = [](view x) { return with(x, &view::seq_len, 2ul); };
  EXPECT_TIGON_ERROR(backward(wrong(d_o), q, k, v, o, lse, dq, dk, dv), shape, "attention_backward: do is", p.dq, p.dk,
                     p.dv);
  EXPECT_TIGON_ERROR(backward(d_o, q, wrong(k), v, o, lse, dq, dk, dv), shape, "attention_backward: k is", p.dq, p.dk,
                     p.dv);
  EXPECT_TIGON_ERROR(backward(d_o, q, k, wrong(v), o, lse, dq, dk, dv), shape, "attention_backward: v is", p.dq, p.dk,
                     p.dv);
  EXPECT_TIGON_ERROR(backward(d_o, q, k, v, wrong(o), lse, dq, dk, dv), shape, "attention_backward: o is", p.dq, p.dk,
                     p.dv);
  EXPECT_TIGON_ERROR(backward(d_o, q, k, v, o, lse.first(7), dq, dk, dv), shape, "attention_backward: lse is", p.dq,
                     p.dk, p.dv);
  EXPECT_TIGON_ERROR(backward(d_o, q, k, v, o, lse, wrong(dq), dk, dv), shape, "attention_backward: dq is", p.dq, p.dk,
                     p.dv);
  EXPECT_TIGON_ERROR(backward(d_o, q, k, v, o, lse, dq, wrong(dk), dv), shape, "attention_backward: dk is", p.dq, p.dk,
                     p.dv);
  EXPECT_TIGON_ERROR(backward(d_o, q, k, v, o, lse, dq, dk, wrong(dv)), shape, "attention_backward: dv is", p.dq, p.dk,
                     p.dv);
  const auto narrow = [](view x) { return with(x, &view::head_dim, 7ul); };
  EXPECT_TIGON_ERROR(backward(d_o, q, k, narrow(v), o, lse, dq, dk, dv), shape, "attention_backward: do is", p.dq, p.dk,
                     p.dv);
  EXPECT_TIGON_ERROR(backward(narrow(d_o), q, k, narrow(v), o, lse, dq, dk, dv), shape, "attention_backward: o is",
                     p.dq, p.dk, p.dv);
  EXPECT_TIGON_ERROR(backward(narrow(d_o), q, k, narrow(v), narrow(o), lse, dq, dk, dv), shape,
                     "attention_backward: dv is", p.dq, p.dk, p.dv);
  EXPECT_TIGON_ERROR(backward(narrow(d_o), q, k, narrow(v), narrow(o), lse, dq, narrow(dk), narrow(dv)), shape,
                     "attention_backward: dk is", p.dq, p.dk, p.dv);
  EXPECT_TIGON_ERROR(backward(d_o, q, k, v, o, lse, dq, dk, dv, {.scale = nan}), argument,
                     "attention_backward: scale is nan; expected a finite number", p.dq, p.dk, p.dv);
}

TEST_F(attention_doors, backward_refuses_overlaps) {
  const auto backward_to = [&](view dq, view dk, view dv) { backward(d_o, q, k, v, o, lse, dq, dk, dv); };
  const std::pair<const char*, view> of_q[] = {{"do", d_o}, {"q", q}, {"o", o}}, of_k[] = {{"k", k}, {"v", v}};
  for (const auto& [name, in] : of_q)
    EXPECT_TIGON_ERROR(backward_to(in, dk, dv), alias, std::string("attention_backward: dq overlaps ") + name, p.dk,
                       p.dv);
  for (const auto& [name, in] : of_k) {
    EXPECT_TIGON_ERROR(backward_to(dq, in, dv), alias, std::string("attention_backward: dk overlaps ") + name, p.dq,
                       p.dv);
    EXPECT_TIGON_ERROR(backward_to(dq, dk, in), alias, std::string("attention_backward: dv overlaps ") + name, p.dq,
                       p.dk);
  }
  EXPECT_TIGON_ERROR(backward_to(dq, dk, dk), alias, "attention_backward: dk overlaps dv", p.dq, p.dk);
  EXPECT_TIGON_ERROR(backward_to(dq, with(dk, &view::data, dq.data), dv), alias, "attention_backward: dq overlaps dk",
                     p.dq, p.dv);
  EXPECT_TIGON_ERROR(backward_to(dq, dk, with(dv, &view::data, dq.data)), alias, "attention_backward: dq overlaps dv",
                     p.dq, p.dk);
  EXPECT_TIGON_ERROR(backward(d_o, q, k, v, o, std::span<const float>(dv.data, 24), dq, dk, dv), alias,
                     "attention_backward: dv overlaps lse", p.dq, p.dk, p.dv);
}

TEST_F(attention_doors, accept_q_k_and_v_as_columns_of_one_buffer) {
  // A fused projection: [batch, seq_len, (heads + 2 kv_heads) * d], and its gradient alike.
  const std::size_t width = (4 + 2 + 2) * 8;
  guarded<float> qkv(2 * 3 * width), gradient(qkv.size());
  const auto part = [&](guarded<float>& of, std::size_t first, std::size_t heads) {
    return view(of.data() + first * 8, 2, heads, 3, 8, 3 * width, 8, width);
  };
  const view parts[] = {part(qkv, 0, 4), part(qkv, 4, 2), part(qkv, 6, 2)};
  for (const auto& [to, from] : {std::pair(parts[0], q), {parts[1], k}, {parts[2], v}})
    for (std::size_t b = 0; b < 2; ++b)
      for (std::size_t h = 0; h < to.heads; ++h)
        for (std::size_t i = 0; i < 3; ++i) std::copy_n(from.at(b, h, i), 8, to.at(b, h, i));
  p.both_ways<B>();
  problem<float> fused(p.s);
  forward(parts[0], parts[1], parts[2], fused.o.view(), fused.lse);
  backward(d_o, parts[0], parts[1], parts[2], fused.o.view(), fused.lse, part(gradient, 0, 4), part(gradient, 4, 2),
           part(gradient, 6, 2));
  EXPECT_EQ(bits_of(fused.o, fused.lse), bits_of(p.o, p.lse));
  for (std::size_t b = 0; b < 2; ++b)
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t c = 0; c < 16; ++c) {
        ASSERT_EQ(part(gradient, 0, 4).at(b, 0, i)[c], dq.at(b, 0, i)[c]);
        ASSERT_EQ(part(gradient, 4, 2).at(b, 0, i)[c], dk.at(b, 0, i)[c]);
        ASSERT_EQ(part(gradient, 6, 2).at(b, 0, i)[c], dv.at(b, 0, i)[c]);
      }
}

/// Tensors of [batch, tokens, heads, parts, d] in one buffer.
struct interleaved {
  std::size_t batch, heads, seq_len, parts, d;
  guarded<float> buffer = guarded<float>(batch * seq_len * heads * parts * d);

  heads_view<float> operator()(std::size_t part, std::size_t shift = 0) {
    const std::size_t head = parts * d, token = heads * head;
    return {buffer.data() + part * d + shift, batch, heads, seq_len, d, seq_len * token, head, token};
  }
};

template <class F>
void for_rows(heads_view<float> a, heads_view<float> b, F f) {
  for (std::size_t n = 0; n < a.batch; ++n)
    for (std::size_t h = 0; h < a.heads; ++h)
      for (std::size_t i = 0; i < a.seq_len; ++i) f(a.at(n, h, i), b.at(n, h, i));
}

testing::AssertionResult same_bits(heads_view<float> got, heads_view<float> want) {
  std::size_t wrong = 0;
  for_rows(got, want, [&](float* a, float* b) { wrong += std::memcmp(a, b, got.head_dim * sizeof(float)) != 0; });
  return wrong == 0 ? testing::AssertionSuccess() : testing::AssertionFailure() << wrong << " rows differ";
}

TEST(attention_interleaved, heads_of_one_buffer_keep_their_bits) {
  // As a projection to [heads, 3, d] leaves q, k and v, and as it wants their gradients. Two workers write at a time.
  using B = tigon::default_backend;
  for (const std::size_t d : {8u, 33u}) {
    problem<float> p({2, 4, 4, 70, d});
    p.both_ways<B>();
    interleaved in{2, 4, 70, 4, d}, gradient{2, 4, 70, 3, d};
    const std::pair<heads_view<float>, heads_view<float>> copies[] = {
        {in(0), p.q.view()}, {in(1), p.k.view()}, {in(2), p.v.view()}};
    for (const auto& [to, from] : copies) for_rows(to, from, [d](float* a, const float* b) { std::copy_n(b, d, a); });
    tigon::thread_pool pool(2);
    tigon::workspace scratch;
    context ctx(pool, scratch);
    std::vector<float> lse(p.lse.size());
    tigon::attention_forward<B, float>(in(0), in(1), in(2), in(3), lse, {}, ctx);
    EXPECT_TRUE(same_bits(in(3), p.o.view()));
    tigon::attention_backward<B, float>(p.d_o, in(0), in(1), in(2), {in(3), lse},
                                        tigon::attention_gradients{gradient(0), gradient(1), gradient(2)}, {}, ctx);
    EXPECT_TRUE(same_bits(gradient(0), p.dq.view()));
    EXPECT_TRUE(same_bits(gradient(1), p.dk.view()));
    EXPECT_TRUE(same_bits(gradient(2), p.dv.view()));
  }
}

TEST_F(attention_doors, refuse_interleaved_heads_that_share_an_element) {
  // A part that begins an element late, or whose last token is the first of what lies behind the buffer.
  interleaved gradient{2, 2, 3, 3, 8};
  problem<float> two({2, 2, 2, 3, 8});
  const auto run = [&](view dq, view dk, view dv) {
    backward(two.d_o.view(), two.q.view(), two.k.view(), two.v.view(), two.o.view(), two.lse, dq, dk, dv);
  };
  two.forward<B>();
  EXPECT_TIGON_ERROR(run(gradient(0, 1), gradient(1), gradient(2)), alias, "attention_backward: dq overlaps dk",
                     gradient.buffer);
  EXPECT_TIGON_ERROR(run(gradient(0), gradient(1, 1), gradient(2)), alias, "attention_backward: dk overlaps dv",
                     gradient.buffer);
  const view late = with(gradient(2), &view::head_stride, 25ul);  // the second head alone is shifted
  EXPECT_TIGON_ERROR(run(with(gradient(1), &view::head_stride, 25ul), gradient(0), gradient(2)), alias,
                     "attention_backward: dq overlaps dv", gradient.buffer);
  EXPECT_TIGON_ERROR(run(with(late, &view::batch, 1ul), gradient(0), gradient(1)), shape, "attention_backward: dq is",
                     gradient.buffer);
  EXPECT_NO_THROW(run(gradient(0), gradient(1), gradient(2)));
}

}  // namespace
