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

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::attention_mask, tigon::context, tigon::heads_view, tigon::matrix_view;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

struct sizes {
  std::size_t batch, heads, kv_heads, seq_len, d;
  layout in = layout::tokens;
  std::size_t padding = 0;
  attention_mask mask = attention_mask::causal;
  double scale = 0;
  auto operator<=>(const sizes&) const = default;

  bool sees(std::size_t query, std::size_t key) const { return mask == attention_mask::none || key <= query; }
  double factor() const { return scale == 0 ? 1 / std::sqrt(static_cast<double>(d)) : scale; }
  tigon::attention_options options() const { return {.mask = mask, .scale = scale}; }
  friend std::ostream& operator<<(std::ostream& out, const sizes& s) {
    return out << s.batch << " x " << s.heads << '/' << s.kv_heads << " heads x " << s.seq_len << " x " << s.d
               << (s.in == layout::tokens ? ", of tokens" : ", of heads") << ", padding " << s.padding
               << (s.mask == attention_mask::none ? ", no mask" : "") << ", scale " << s.scale;
  }
};

/// The definition, head by head and row by row, in f64 and with the whole matrix of p: values [batch, heads, seq_len,
/// d].
struct reference {
  std::vector<double> o, lse, dq, dk, dv;

  TIGON_TEST_NOINLINE reference(const sizes& s, const std::vector<double>& q, const std::vector<double>& k,
                                const std::vector<double>& v, const std::vector<double>& d_o)
      : o(q.size()), dq(q.size()), dk(k.size()), dv(v.size()) {
    const std::size_t n = s.seq_len, d = s.d;
    std::vector<double> p(n), dp(n);
    const auto dot = [d](const double* a, const double* b) {
      double sum = 0;
      for (std::size_t c = 0; c < d; ++c) sum += a[c] * b[c];
      return sum;
    };
    for (std::size_t head = 0; head < s.batch * s.heads; ++head) {
      const std::size_t b = head / s.heads, h = head % s.heads, kv = b * s.kv_heads + h * s.kv_heads / s.heads;
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t at = (head * n + i) * d;
        double top = -infinity, sum = 0, mean = 0;
        for (std::size_t j = 0; j < n; ++j)
          if (s.sees(i, j)) top = std::max(top, p[j] = s.factor() * dot(&q[at], &k[(kv * n + j) * d]));
        for (std::size_t j = 0; j < n; ++j) sum += p[j] = s.sees(i, j) ? std::exp(p[j] - top) : 0;
        lse.push_back(top + std::log(sum));
        for (std::size_t j = 0; j < n; ++j) {
          p[j] /= sum;
          for (std::size_t c = 0; c < d; ++c) o[at + c] += p[j] * v[(kv * n + j) * d + c];
          mean += p[j] * (dp[j] = dot(&d_o[at], &v[(kv * n + j) * d]));
        }
        for (std::size_t j = 0; j < n; ++j) {
          const double ds = p[j] * (dp[j] - mean) * s.factor();
          for (std::size_t c = 0; c < d; ++c) {
            const std::size_t key = (kv * n + j) * d + c;
            dq[at + c] += ds * k[key];
            dk[key] += ds * q[at + c];
            dv[key] += p[j] * d_o[at + c];
          }
        }
      }
    }
  }
};

template <class T>
struct problem {
  sizes s;
  guarded_heads<T> q, k, v, o, d_o, dq, dk, dv;
  guarded<accumulator_t<T>> lse;

  TIGON_TEST_NOINLINE explicit problem(sizes of, guard side = guard::behind)
      : s(of),
        q(of_q(), side),
        k(of_k(), side),
        v(of_k(), side),
        o(of_q(), side),
        d_o(of_q(), side),
        dq(of_q(), side),
        dk(of_k(), side),
        dv(of_k(), side),
        lse(s.batch * s.heads * s.seq_len, side) {
    std::uint64_t seed = 0;
    for (guarded_heads<T>* in : {&q, &k, &v, &d_o}) in->assign(normal_values(in->count(), ++seed));
  }

  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    tigon::attention_forward<B, T>(q, k, v, o.view(), lse, s.options(), ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(context& ctx = tigon::default_context()) {
    tigon::attention_backward<B, T>(d_o, q, k, v, {o, lse}, tigon::attention_gradients{dq.view(), dk.view(), dv.view()},
                                    s.options(), ctx);
  }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(ctx);
    backward<B>(ctx);
  }
  heads_shape of_q() const { return {s.batch, s.heads, s.seq_len, s.d, s.in, s.padding}; }
  heads_shape of_k() const { return {s.batch, s.kv_heads, s.seq_len, s.d, s.in, s.padding}; }
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

/// One row, around the block of queries, two blocks and a bit; groups of 1, 2 and 4; odd widths; both layouts.
template <class B>
std::vector<sizes> every_size() {
  constexpr std::size_t block = B::attention.query_block;
  constexpr attention_mask none = attention_mask::none;
  return {{2, 4, 2, 1, 8},
          {1, 4, 1, 2, 33, layout::heads, 3},
          {2, 2, 1, block - 1, 8, layout::tokens, 5},
          {1, 4, 2, block, 33, layout::heads, 1},
          {2, 4, 1, block + 1, 8, layout::tokens, 0, none},
          {1, 2, 2, block + 1, 64, layout::heads, 0},
          {1, 4, 2, 2 * block + 2, 33, layout::tokens, 2, attention_mask::causal, 0.3},
          {1, 2, 1, 2 * block + 2, 64, layout::heads, 7, none, -0.1}};
}

template <class On>
class attention : public testing::Test {};
TYPED_TEST_SUITE(attention, every_product_pair, names);

TYPED_TEST(attention, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sizes& s : every_size<B>())
    for (const guard side : both_guards) {
      SCOPED_TRACE(testing::Message() << s << ", " << side);
      problem<T> p(s, side);
      p.template both_ways<B>();
      const reference& wanted = p.wanted_once();
      EXPECT_TRUE(close(p.o.f64(), wanted.o, forward_bound.of<T>()));
      EXPECT_TRUE(close(p.lse.f64(), wanted.lse, lse_bound.of<T>()));
      // In a sequence of one token p is 1, and the terms of dq and dk cancel.
      EXPECT_TRUE(close(p.dq.f64(), wanted.dq, gradient_bound.of<T>(), {.scale = 0.5}));
      EXPECT_TRUE(close(p.dk.f64(), wanted.dk, gradient_bound.of<T>(), {.scale = 0.5}));
      EXPECT_TRUE(close(p.dv.f64(), wanted.dv, gradient_bound.of<T>()));
      EXPECT_TRUE(p.o.padding_intact() && p.dq.padding_intact() && p.dk.padding_intact() && p.dv.padding_intact());
    }
}

TYPED_TEST(attention, rows_do_not_feel_the_bad_ones_that_they_do_not_see) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const sizes s{1, 4, 2, 70, 8};
  problem<T> clean(s);
  clean.template both_ways<B>();
  for (const double bad : {nan, infinity}) {
    problem<T> in_q(s), in_k(s);
    in_q.q[(1 * s.seq_len + 30) * s.d + 3] = from_f64<T>(bad);  // head 1, row 30
    in_k.k[(0 * s.seq_len + 30) * s.d + 3] = from_f64<T>(bad);  // of heads 0 and 1
    in_q.template both_ways<B>();
    in_k.template forward<B>();
    const auto same = [&](auto& got, auto& of_clean, std::size_t row) {
      return std::equal(&got[row * s.d], &got[row * s.d] + s.d, &of_clean[row * s.d],
                        [](T a, T b) { return to_f64(a) == to_f64(b); });
    };
    for (std::size_t h = 0; h < s.heads; ++h)
      for (std::size_t i = 0; i < s.seq_len; ++i) {
        const std::size_t row = h * s.seq_len + i;
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
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({1, 2, 1, 40, 16, layout::heads, 0, attention_mask::causal, 30});  // scores of hundreds
  p.template both_ways<B>();
  const reference wanted = p.wanted();
  EXPECT_TRUE(close(p.o.f64(), wanted.o, std::same_as<T, double> ? 4e-14 : std::max(4e-5, forward_bound.of<T>())));
  for (const double g : p.dk.f64()) ASSERT_TRUE(std::isfinite(g));
}

TYPED_TEST(attention, of_nothing_writes_nothing) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sizes& s : {sizes{0, 2, 1, 5, 8}, sizes{2, 2, 1, 0, 8}}) {
    problem<T> p(s);
    p.template both_ways<B>();
    EXPECT_EQ(p.o.count(), 0u);
  }
}

TYPED_TEST(attention, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({2, 4, 2, 2 * B::attention.query_block + 2, 33});
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.o.clear(), p.lse.clear(), p.dq.clear(), p.dk.clear(), p.dv.clear();
    p.template both_ways<B>(ctx);
    return bits_of(p.o, p.lse, p.dq, p.dk, p.dv);
  }));
}

TYPED_TEST(attention, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const attention_mask mask : {attention_mask::causal, attention_mask::none})
    for (const std::size_t seq_len : {3u, 130u}) {
      problem<T> p({2, 2, 1, seq_len, 33, layout::tokens, 0, mask});
      const auto runs = [](std::size_t bytes, auto call) { with_workspace_of(bytes, call, 3); };
      const std::size_t forward = tigon::attention_workspace<B, T>(seq_len, 33, p.s.options(), 3);
      const std::size_t backward = tigon::attention_backward_workspace<B, T>(seq_len, 33, p.s.options(), 3);
      EXPECT_TIGON_ERROR(runs(forward - 1, [&](context& ctx) { p.template forward<B>(ctx); }), workspace,
                         "attention_forward: workspace is of", p.o, p.lse);
      runs(forward, [&](context& ctx) { p.template forward<B>(ctx); });
      EXPECT_TIGON_ERROR(runs(backward - 1, [&](context& ctx) { p.template backward<B>(ctx); }), workspace,
                         "attention_backward: workspace is of", p.dq, p.dk, p.dv);
      runs(backward, [&](context& ctx) { p.template backward<B>(ctx); });
    }
}

// The reference itself: its gradients are the differences of its values, and so are those of the f64 kernels.
template <class On>
class attention_gradient : public testing::Test {};
TYPED_TEST_SUITE(attention_gradient, pairs_of<double>, names);

TYPED_TEST(attention_gradient, is_that_of_central_differences) {
  using B = typename TypeParam::backend;
  for (const sizes& s : {sizes{1, 4, 2, 5, 3}, sizes{2, 2, 1, 6, 4, layout::heads, 1, attention_mask::none, 0.7}}) {
    problem<double> p(s);
    p.both_ways<B>();
    const auto q = p.q.f64(), k = p.k.f64(), v = p.v.f64(), d_o = p.d_o.f64();
    const auto loss = [&](const auto& q, const auto& k, const auto& v) {
      const reference r(s, q, k, v, d_o);
      return std::inner_product(d_o.begin(), d_o.end(), r.o.begin(), 0.0);
    };
    const auto at_q = probes(q.size()), at_k = probes(k.size());
    const auto dq = central_difference([&](const auto& x) { return loss(x, k, v); }, q, at_q);
    const auto dk = central_difference([&](const auto& x) { return loss(q, x, v); }, k, at_k);
    const auto dv = central_difference([&](const auto& x) { return loss(q, k, x); }, v, at_k);
    const reference r = p.wanted();
    for (const auto& [got_q, got_k, got_v] :
         {std::tuple(r.dq, r.dk, r.dv), std::tuple(p.dq.f64(), p.dk.f64(), p.dv.f64())}) {
      EXPECT_TRUE(close(pick(got_q, at_q), dq, 4e-11)) << s;
      EXPECT_TRUE(close(pick(got_k, at_k), dk, 4e-11)) << s;
      EXPECT_TRUE(close(pick(got_v, at_k), dv, 4e-11)) << s;
    }
  }
}

}  // namespace

// Rule R4: the products are those of the backend.
namespace mine {
struct counting : tigon::backends::generic {
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"counting", {tigon::device::cpu}};
  static constexpr tigon::attention_tuning attention{.query_block = 5};
  using overrides = tigon::op_list<tigon::op::gemm>;
};
std::size_t products = 0;

/// Products that add up their terms one after the other, of few keys each.
struct plain_sums : tigon::backends::generic {
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"plain_sums", {tigon::device::cpu}};
  static constexpr tigon::attention_tuning attention{.key_block = 30};
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
  EXPECT_EQ(mine::products, 2u * 3 * 2);  // heads, blocks, products
  mine::products = 0;
  p.backward<mine::counting>();
  EXPECT_EQ(mine::products, 2u * 3 * 5);
  EXPECT_TRUE(close(p.o.f64(), p.wanted().o, forward_bound.f32));
  EXPECT_TRUE(close(p.dk.f64(), p.wanted().dk, gradient_bound.f32));
}

/// Blocks of so few queries that a short sequence has very many.
template <std::size_t Rows>
struct few_queries : usual_backend {
  using parent = usual_backend;
  static constexpr tigon::backend_info info{"few_queries", {tigon::device::cpu}};
  static constexpr tigon::attention_tuning attention{.query_block = Rows};
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
  EXPECT_TIGON_ERROR(forward(q, k, with(v, &view::head_dim, 7ul), o, r), shape, "attention_forward: v is 2 sequences",
                     p.o, r);
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
