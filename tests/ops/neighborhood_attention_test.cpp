// The contract of include/tigon/ops/neighborhood_attention.hpp, promise by promise, on every backend and in every
// element type.
#include <gtest/gtest.h>

#include <tigon/ops/neighborhood_attention.hpp>

#include <cstring>
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
using tigon::accumulator_t, tigon::context, tigon::heads_view, tigon::matrix_view;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

struct sizes {
  std::size_t batch, heads, seq_len, d, taps = 7, dilation = 1;
  layout in = layout::tokens;
  std::size_t padding = 0;
  double scale = 0;
  auto operator<=>(const sizes&) const = default;

  std::size_t queries() const { return batch * heads * seq_len; }
  /// The place of the key in the query's window; `taps` where it has none.
  std::size_t tap(std::size_t query, std::size_t key) const {
    const std::size_t apart = key < query ? query - key : key - query, steps = apart / dilation;
    if (apart % dilation != 0 || steps > taps / 2) return taps;
    return key < query ? taps / 2 - steps : taps / 2 + steps;
  }
  bool sees(std::size_t query, std::size_t key) const { return tap(query, key) != taps; }
  double factor() const { return scale == 0 ? 1 / std::sqrt(static_cast<double>(d)) : scale; }
  tigon::neighborhood_attention_options options() const {
    return {.kernel_size = taps, .dilation = dilation, .scale = scale};
  }
  friend std::ostream& operator<<(std::ostream& out, const sizes& s) {
    return out << s.batch << " x " << s.heads << " heads x " << s.seq_len << " x " << s.d << ", " << s.taps
               << " keys, dilation " << s.dilation << (s.in == layout::tokens ? ", of tokens" : ", of heads")
               << ", padding " << s.padding << ", scale " << s.scale;
  }
};

/// The definition in f64: the whole matrix of p, with zeros where a key is not seen.
struct reference {
  std::vector<double> o, lse, p, dq, dk, dv;

  TIGON_TEST_NOINLINE reference(const sizes& s, const std::vector<double>& q, const std::vector<double>& k,
                                const std::vector<double>& v, const std::vector<double>& d_o)
      : o(q.size()), p(s.queries() * s.taps), dq(q.size()), dk(q.size()), dv(q.size()) {
    const std::size_t n = s.seq_len, d = s.d;
    const auto dot = [d](const double* a, const double* b) { return std::inner_product(a, a + d, b, 0.0); };
    for (std::size_t head = 0; head < s.batch * s.heads; ++head)
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t at = (head * n + i) * d;
        std::vector<double> e(n), dp(n);
        double top = -infinity, sum = 0, mean = 0;
        for (std::size_t j = 0; j < n; ++j)
          if (s.sees(i, j)) top = std::max(top, e[j] = s.factor() * dot(&q[at], &k[(head * n + j) * d]));
        for (std::size_t j = 0; j < n; ++j) sum += e[j] = s.sees(i, j) ? std::exp(e[j] - top) : 0;
        lse.push_back(top + std::log(sum));
        for (std::size_t j = 0; j < n; ++j) {
          if (!s.sees(i, j)) continue;
          p[(head * n + i) * s.taps + s.tap(i, j)] = e[j] /= sum;
          for (std::size_t c = 0; c < d; ++c) o[at + c] += e[j] * v[(head * n + j) * d + c];
          mean += e[j] * (dp[j] = dot(&d_o[at], &v[(head * n + j) * d]));
        }
        for (std::size_t j = 0; j < n; ++j) {
          if (!s.sees(i, j)) continue;
          const double ds = e[j] * (dp[j] - mean) * s.factor();
          for (std::size_t c = 0; c < d; ++c) {
            const std::size_t key = (head * n + j) * d + c;
            dq[at + c] += ds * k[key];
            dk[key] += ds * q[at + c];
            dv[key] += e[j] * d_o[at + c];
          }
        }
      }
  }
};

template <class T>
struct problem {
  using A = accumulator_t<T>;
  sizes s;
  guarded_heads<T> q, k, v, o, d_o, dq, dk, dv;
  guarded_matrix<A> probs;
  guarded<A> lse;

  TIGON_TEST_NOINLINE explicit problem(sizes of, guard side = guard::behind)
      : s(of),
        q(shape(), side),
        k(shape(), side),
        v(shape(), side),
        o(shape(), side),
        d_o(shape(), side),
        dq(shape(), side),
        dk(shape(), side),
        dv(shape(), side),
        probs(s.queries(), s.taps, s.padding, side),
        lse(s.queries(), side) {
    std::uint64_t seed = 0;
    for (guarded_heads<T>* in : {&q, &k, &v, &d_o}) in->assign(normal_values(in->count(), ++seed));
  }

  tigon::neighborhood_attention_saved<A> all_saved() { return {probs.view(), lse}; }
  template <class B>
  TIGON_TEST_NOINLINE void forward(tigon::neighborhood_attention_saved<A> to, context& ctx = tigon::default_context()) {
    tigon::neighborhood_attention_forward<B, T>(q, k, v, o.view(), to, s.options(), ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(tigon::neighborhood_attention_saved<A> from,
                                    context& ctx = tigon::default_context()) {
    tigon::neighborhood_attention_backward<B, T>(
        d_o, q, k, v, from, tigon::neighborhood_attention_gradients{dq.view(), dk.view(), dv.view()}, s.options(), ctx);
  }
  template <class B>
  void both_ways(context& ctx = tigon::default_context()) {
    forward<B>(all_saved(), ctx);
    backward<B>(all_saved(), ctx);
  }
  std::vector<std::byte> outputs() const { return bits_of(o, dq, dk, dv); }
  void clear() { o.clear(), dq.clear(), dk.clear(), dv.clear(), probs.clear(), lse.clear(); }
  heads_shape shape() const { return {s.batch, s.heads, s.seq_len, s.d, s.in, s.padding}; }
  reference wanted() const { return {s, q.f64(), k.f64(), v.f64(), d_o.f64()}; }
  /// Made once for all backends: the inputs depend on sizes and element type alone.
  TIGON_TEST_NOINLINE const reference& wanted_once() const {
    static std::map<sizes, reference> known;
    return known.try_emplace(s, wanted()).first->second;
  }
};

// In units of |reference| + its root mean square. o, dq, dk and dv are rounded once; probs and lse are f32 (f64).
constexpr by_type forward_bound{.f32 = 2e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-15};
constexpr by_type saved_bound{.f32 = 5e-7, .bf16 = 5e-7, .f16 = 5e-7, .f64 = 1e-15};
constexpr by_type probs_bound{.f32 = 2e-6, .bf16 = 2e-6, .f16 = 2e-6, .f64 = 4e-15};
constexpr by_type gradient_bound{.f32 = 4e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1e-14};

/// One token; fewer tokens than a window has; around the block of queries and two blocks; windows of 1 and of more than
/// 64 keys; odd widths; both layouts; a window that reaches beyond a block.
template <class B>
std::vector<sizes> every_size() {
  constexpr std::size_t block = B::attention.query_block;
  return {{2, 2, 1, 8, 7, 1},
          {1, 3, 4, 33, 9, 1, layout::heads, 3},
          {2, 1, block - 1, 8, 3, 2, layout::tokens, 5},
          {1, 2, block, 33, 5, 1, layout::heads, 1},
          {1, 2, block + 1, 64, 7, 3, layout::tokens, 0, 0.3},
          {1, 1, 2 * block + 2, 33, 1, 1},
          {1, 1, 2 * block + 2, 24, 7, block / 2, layout::heads, 7, -0.1},
          {2, 1, 2 * block + 9, 16, 2 * block + 5, 1, layout::tokens, 2}};
}

template <class On>
class neighborhood_attention : public testing::Test {};
TYPED_TEST_SUITE(neighborhood_attention, every_pair, names);

TYPED_TEST(neighborhood_attention, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sizes& s : every_size<B>())
    for (const guard side : both_guards) {
      SCOPED_TRACE(testing::Message() << s << ", " << side);
      problem<T> p(s, side);
      p.template both_ways<B>();
      const reference& wanted = p.wanted_once();
      EXPECT_TRUE(close(p.o.f64(), wanted.o, forward_bound.of<T>()));
      EXPECT_TRUE(close(p.probs.f64(), wanted.p, probs_bound.of<T>()));
      EXPECT_TRUE(close(p.lse.f64(), wanted.lse, saved_bound.of<T>()));
      // Where a query sees one key p is 1, and the terms of dq and dk cancel.
      EXPECT_TRUE(close(p.dq.f64(), wanted.dq, gradient_bound.of<T>(), {.scale = 0.5}));
      EXPECT_TRUE(close(p.dk.f64(), wanted.dk, gradient_bound.of<T>(), {.scale = 0.5}));
      EXPECT_TRUE(close(p.dv.f64(), wanted.dv, gradient_bound.of<T>()));
      EXPECT_TRUE(p.o.padding_intact() && p.dq.padding_intact() && p.dk.padding_intact() && p.dv.padding_intact() &&
                  p.probs.padding_intact());
    }
}

TYPED_TEST(neighborhood_attention, has_the_same_bits_whatever_is_saved) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sizes& s : {sizes{2, 2, 130, 24, 5, 2}, sizes{1, 1, 3, 8, 7, 1, layout::heads, 1}}) {
    problem<T> p(s);
    p.template both_ways<B>();
    const auto wanted = p.outputs(), wanted_lse = bits_of(p.lse), wanted_probs = bits_of(p.probs);
    p.clear();
    p.template forward<B>({}), p.template backward<B>({});
    EXPECT_EQ(p.outputs(), wanted);
    EXPECT_TRUE(p.lse.untouched() && p.probs.untouched());
    p.clear();
    p.template forward<B>({{}, p.lse}), p.template backward<B>({{}, p.lse});
    EXPECT_EQ(p.outputs(), wanted);
    EXPECT_EQ(bits_of(p.lse), wanted_lse);
    p.clear();
    p.template forward<B>({p.probs.view(), {}}), p.template backward<B>({p.probs.view(), {}});
    EXPECT_EQ(p.outputs(), wanted);
    EXPECT_EQ(bits_of(p.probs), wanted_probs);
    EXPECT_TRUE(p.lse.untouched());
  }
}

TYPED_TEST(neighborhood_attention, of_one_key_is_its_value) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({1, 2, 70, 17, 1, 3});
  p.template both_ways<B>();
  EXPECT_EQ(p.o.f64(), p.v.f64());
  EXPECT_EQ(p.dv.f64(), p.d_o.f64());
  for (const auto& gradient : {p.dq.f64(), p.dk.f64()})
    for (const double g : gradient) ASSERT_EQ(g, 0);
}

TYPED_TEST(neighborhood_attention, bad_numbers_stay_where_they_are_seen) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const sizes s{1, 2, 150, 8, 5, 3};
  const std::size_t bad_row = 63, head = 1;
  problem<T> clean(s);
  clean.template both_ways<B>();
  // What a row of each output depends on: the window, or the windows of all that it sees.
  const auto near = [&](std::size_t i) { return s.sees(i, bad_row); };
  const auto nearer = [&](std::size_t i) {
    for (std::size_t j = 0; j < s.seq_len; ++j)
      if (s.sees(i, j) && near(j)) return true;
    return false;
  };
  const auto itself = [&](std::size_t i) { return i == bad_row; };
  const auto nowhere = [](std::size_t) { return false; };
  const auto check = [&](const char* name, guarded_heads<T>& got, guarded_heads<T>& want, auto is_lost) {
    for (std::size_t row = 0; row < s.heads * s.seq_len; ++row) {
      bool same = true, lost = true;
      for (std::size_t c = 0; c < s.d; ++c) {
        same = same && to_f64(got[row * s.d + c]) == to_f64(want[row * s.d + c]);
        lost = lost && std::isnan(to_f64(got[row * s.d + c]));
      }
      const bool wanted = row / s.seq_len == head && is_lost(row % s.seq_len);
      ASSERT_EQ(same, !wanted) << name << ", row " << row;
      ASSERT_EQ(lost, wanted) << name << ", row " << row;
    }
  };
  const auto with_nan_in = [&](guarded_heads<T> problem<T>::*in, auto of_o, auto of_dq, auto of_dk, auto of_dv) {
    problem<T> p(s);
    for (std::size_t c = 0; c < s.d; ++c) (p.*in)[(head * s.seq_len + bad_row) * s.d + c] = from_f64<T>(nan);
    p.template both_ways<B>();
    check("o", p.o, clean.o, of_o), check("dq", p.dq, clean.dq, of_dq);
    check("dk", p.dk, clean.dk, of_dk), check("dv", p.dv, clean.dv, of_dv);
  };
  with_nan_in(&problem<T>::q, itself, itself, near, near);
  with_nan_in(&problem<T>::k, near, near, nearer, nearer);
  with_nan_in(&problem<T>::v, near, near, nearer, nowhere);
  with_nan_in(&problem<T>::d_o, nowhere, itself, near, near);
}

TYPED_TEST(neighborhood_attention, large_scores_do_not_overflow) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({1, 2, 40, 16, 7, 1, layout::heads, 0, 30});  // scores of hundreds
  p.template both_ways<B>();
  EXPECT_TRUE(close(p.o.f64(), p.wanted().o, std::same_as<T, double> ? 4e-14 : std::max(4e-5, forward_bound.of<T>())));
  for (const double g : p.dk.f64()) ASSERT_TRUE(std::isfinite(g));
  for (const double l : p.lse.f64()) ASSERT_TRUE(std::isfinite(l));
}

TYPED_TEST(neighborhood_attention, of_nothing_writes_nothing) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sizes& s : {sizes{0, 2, 5, 8}, sizes{2, 0, 5, 8}, sizes{2, 2, 0, 8}}) {
    problem<T> p(s);
    p.template both_ways<B>();
    EXPECT_EQ(p.o.count(), 0u);
  }
}

TYPED_TEST(neighborhood_attention, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({2, 2, 2 * B::attention.query_block + 2, 33, 9, 2});
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.clear();
    p.template both_ways<B>(ctx);
    return bits_of(p.o, p.probs, p.lse, p.dq, p.dk, p.dv);
  }));
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.clear();
    p.template forward<B>({}, ctx), p.template backward<B>({}, ctx);
    return p.outputs();
  }));
}

TYPED_TEST(neighborhood_attention, takes_the_workspace_that_it_names) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t seq_len : {3u, 130u})
    for (const bool keep : {true, false}) {
      problem<T> p({2, 2, seq_len, 9, 5, 2});
      const auto saved = keep ? p.all_saved() : tigon::neighborhood_attention_saved<accumulator_t<T>>{};
      const auto runs = [](std::size_t bytes, auto call) { with_workspace_of(bytes, call, 3); };
      const std::size_t forward = tigon::neighborhood_attention_workspace<B, T>(p.s.queries(), p.s.options(), 3, keep);
      const std::size_t backward =
          tigon::neighborhood_attention_backward_workspace<B, T>(p.s.queries(), p.s.options(), 3, keep);
      EXPECT_TIGON_ERROR(runs(forward - 1, [&](context& ctx) { p.template forward<B>(saved, ctx); }), workspace,
                         "neighborhood_attention_forward: workspace is of", p.o, p.lse, p.probs);
      runs(forward, [&](context& ctx) { p.template forward<B>(saved, ctx); });
      EXPECT_TIGON_ERROR(runs(backward - 1, [&](context& ctx) { p.template backward<B>(saved, ctx); }), workspace,
                         "neighborhood_attention_backward: workspace is of", p.dq, p.dk, p.dv);
      runs(backward, [&](context& ctx) { p.template backward<B>(saved, ctx); });
    }
}

// The reference itself: its gradients are the differences of its values, and so are those of the f64 kernels.
template <class On>
class neighborhood_attention_gradient : public testing::Test {};
TYPED_TEST_SUITE(neighborhood_attention_gradient, pairs_of<double>, names);

TYPED_TEST(neighborhood_attention_gradient, is_that_of_central_differences) {
  using B = typename TypeParam::backend;
  for (const sizes& s : {sizes{1, 2, 6, 3, 3, 2}, sizes{2, 1, 7, 4, 5, 1, layout::heads, 1, 0.7}}) {
    problem<double> p(s);
    p.both_ways<B>();
    const auto q = p.q.f64(), k = p.k.f64(), v = p.v.f64(), d_o = p.d_o.f64();
    const auto loss = [&](const auto& of_q, const auto& of_k, const auto& of_v) {
      const reference r(s, of_q, of_k, of_v, d_o);
      return std::inner_product(d_o.begin(), d_o.end(), r.o.begin(), 0.0);
    };
    const auto at = probes(q.size());
    const auto dq = central_difference([&](const auto& x) { return loss(x, k, v); }, q, at);
    const auto dk = central_difference([&](const auto& x) { return loss(q, x, v); }, k, at);
    const auto dv = central_difference([&](const auto& x) { return loss(q, k, x); }, v, at);
    const reference r = p.wanted();
    for (const auto& [got_q, got_k, got_v] :
         {std::tuple(r.dq, r.dk, r.dv), std::tuple(p.dq.f64(), p.dk.f64(), p.dv.f64())}) {
      EXPECT_TRUE(close(pick(got_q, at), dq, 4e-11)) << s;
      EXPECT_TRUE(close(pick(got_k, at), dk, 4e-11)) << s;
      EXPECT_TRUE(close(pick(got_v, at), dv, 4e-11)) << s;
    }
  }
}

TEST(neighborhood_attention_values, are_those_that_can_be_made_by_hand) {
  // Scores are logarithms of powers of two, so that p is made of whole numbers.
  const double ln2 = std::log(2.0);
  const auto of = [](std::vector<double>& x) { return heads_view<double>::of_heads(x.data(), 1, 1, 4, 1); };
  std::vector<double> q{1, 1, 1, 1}, k{0, ln2, 2 * ln2, 3 * ln2}, v{1, 2, 4, 8}, o(4), p(12), lse(4);
  const auto forward = [&](std::size_t dilation) {
    tigon::neighborhood_attention_forward<usual_backend, double>(of(q), of(k), of(v), of(o),
                                                                 {matrix_view<double>(p.data(), 4, 3), lse},
                                                                 {.kernel_size = 3, .dilation = dilation, .scale = 1});
  };
  forward(1);
  EXPECT_TRUE(close(o, std::vector<double>{5. / 3, 3, 6, 20. / 3}, 1e-15));
  EXPECT_TRUE(close(
      p, std::vector<double>{0, 1. / 3, 2. / 3, 1. / 7, 2. / 7, 4. / 7, 1. / 7, 2. / 7, 4. / 7, 1. / 3, 2. / 3, 0},
      1e-15));
  EXPECT_TRUE(close(lse, std::vector<double>{std::log(3.0), std::log(7.0), std::log(14.0), std::log(12.0)}, 1e-15));
  forward(2);
  EXPECT_TRUE(close(o, std::vector<double>{3.4, 6.8, 3.4, 6.8}, 1e-15));
}

/// Blocks of so few queries.
template <std::size_t Rows>
struct few_queries : usual_backend {
  using parent = usual_backend;
  static constexpr tigon::backend_info info{"few_queries", {tigon::device::cpu}};
  static constexpr tigon::attention_tuning attention{.query_block = Rows};
  using overrides = tigon::op_list<>;
};

TEST(neighborhood_attention_blocks, change_no_bit) {
  for (const sizes& s : {sizes{1, 2, 40, 9, 5, 3}, sizes{1, 1, 40, 9, 99, 1}}) {
    problem<float> p(s);
    p.both_ways<usual_backend>();
    const auto bits = bits_of(p.o, p.probs, p.lse, p.dq, p.dk, p.dv);
    p.clear();
    p.both_ways<few_queries<1>>();
    EXPECT_EQ(bits_of(p.o, p.probs, p.lse, p.dq, p.dk, p.dv), bits) << s;
    p.clear();
    p.both_ways<few_queries<7>>();
    EXPECT_EQ(bits_of(p.o, p.probs, p.lse, p.dq, p.dk, p.dv), bits) << s;
  }
}

TEST(neighborhood_attention_memory, grows_with_the_window_and_not_with_the_square_of_the_sequence) {
  const tigon::neighborhood_attention_options seven{.kernel_size = 7};
  const std::size_t n = 1 << 16, scores = n * 7 * sizeof(float);
  EXPECT_LT((tigon::neighborhood_attention_workspace<usual_backend, float>(n, seven, 1, false)), std::size_t{1} << 16);
  EXPECT_EQ((tigon::neighborhood_attention_workspace<usual_backend, float>(n, seven)),
            (tigon::neighborhood_attention_workspace<usual_backend, float>(n, seven, 1, true)));
  EXPECT_LT((tigon::neighborhood_attention_backward_workspace<usual_backend, float>(n, seven)), 2 * scores);
  EXPECT_LT((tigon::neighborhood_attention_backward_workspace<usual_backend, float>(n, seven, 1, false)), 3 * scores);
}

}  // namespace

// Rule R4: softmax is that of the backend.
namespace mine {
struct counting : tigon::backends::generic {
  using parent = tigon::backends::generic;
  static constexpr tigon::backend_info info{"counting", {tigon::device::cpu}};
  static constexpr tigon::attention_tuning attention{.query_block = 5};
  using overrides = tigon::op_list<tigon::op::softmax>;
};
std::size_t forward_rows = 0, backward_rows = 0;
}  // namespace mine

template <>
struct tigon::kernel<tigon::op::softmax, mine::counting> : tigon::kernel<tigon::op::softmax, tigon::backends::generic> {
  using parents = tigon::kernel<tigon::op::softmax, tigon::backends::generic>;
  template <tigon::backend B, tigon::element T>
  static void forward(tigon::in_matrix<T> x, tigon::matrix_view<T> y, tigon::softmax_options opt, tigon::context& ctx) {
    mine::forward_rows += x.rows;
    // All that its caller has left of the workspace may be written to.
    tigon::workspace& left = ctx.workspace();
    const std::size_t line = tigon::workspace::alignment, lines = (left.capacity() - left.used()) / line;
    if (lines > 1)
      std::memset(tigon::workspace::frame(left).take<std::byte>((lines - 1) * line), 0xff, (lines - 1) * line);
    parents::forward<B, T>(x, y, opt, ctx);
  }
  template <tigon::backend B, tigon::element T>
  static void backward(tigon::in_matrix<T> dy, tigon::in_matrix<T> y, tigon::matrix_view<T> dx,
                       tigon::softmax_options opt, tigon::context& ctx) {
    mine::backward_rows += y.rows;
    parents::backward<B, T>(dy, y, dx, opt, ctx);
  }
};

namespace {

TEST(neighborhood_attention_softmax, is_that_of_the_backend) {
  problem<float> p({1, 2, 12, 8, 3, 1});
  mine::forward_rows = mine::backward_rows = 0;
  p.forward<mine::counting>(p.all_saved());
  EXPECT_EQ(mine::forward_rows, 24u);
  p.backward<mine::counting>(p.all_saved());
  EXPECT_EQ(mine::forward_rows, 24u);
  EXPECT_EQ(mine::backward_rows, 24u);
  p.backward<mine::counting>({});
  EXPECT_EQ(mine::forward_rows, 48u);
  EXPECT_TRUE(close(p.o.f64(), p.wanted().o, forward_bound.f32));
  EXPECT_TRUE(close(p.dk.f64(), p.wanted().dk, gradient_bound.f32));
  problem<float> wide({1, 2, 12, 8, 21, 1});
  wide.forward<mine::counting>({});
  EXPECT_TRUE(close(wide.o.f64(), wide.wanted().o, forward_bound.f32));
}

/// The doors, which are the same for every backend: refused before the first write.
class neighborhood_attention_doors : public testing::Test {
 protected:
  using view = heads_view<float>;
  using B = tigon::default_backend;
  using saved = tigon::neighborhood_attention_saved<float>;
  using options = tigon::neighborhood_attention_options;

  neighborhood_attention_doors() { p.forward<B>(all), p.o.clear(); }
  void forward(view of_q, view of_k, view of_v, view of_o, saved to, options opt = {.kernel_size = 3}) {
    tigon::neighborhood_attention_forward<B, float>(of_q, of_k, of_v, of_o, to, opt);
  }
  void backward(view of_do, view of_q, view of_k, view of_v, saved from, view of_dq, view of_dk, view of_dv,
                options opt = {.kernel_size = 3}) {
    tigon::neighborhood_attention_backward<B, float>(of_do, of_q, of_k, of_v, from,
                                                     tigon::neighborhood_attention_gradients{of_dq, of_dk, of_dv}, opt);
  }
  template <class M>
  static view with(view v, M view::*member, M value) {
    v.*member = value;
    return v;
  }

  problem<float> p{{2, 2, 5, 8, 3}};
  const view q = p.q.view(), k = p.k.view(), v = p.v.view(), o = p.o.view(), d_o = p.d_o.view(), dq = p.dq.view(),
             dk = p.dk.view(), dv = p.dv.view();
  const saved all = p.all_saved();
};

TEST_F(neighborhood_attention_doors, forward_refuses_wrong_shapes) {
  guarded<float> r(p.lse.size());
  guarded_matrix<float> m(20, 3);
  const saved fresh{m.view(), r};
  EXPECT_TIGON_ERROR(forward(with(q, &view::head_dim, 0ul), k, v, o, fresh), shape,
                     "neighborhood_attention_forward: head_dim is 0; expected at least 1", p.o, r, m);
  EXPECT_TIGON_ERROR(forward(q, with(k, &view::seq_len, 4ul), v, o, fresh), shape,
                     "neighborhood_attention_forward: k is 2 sequences", p.o, r, m);
  EXPECT_TIGON_ERROR(forward(q, k, with(v, &view::heads, 1ul), o, fresh), shape,
                     "neighborhood_attention_forward: v is 2 sequences", p.o, r, m);
  EXPECT_TIGON_ERROR(forward(q, k, v, with(o, &view::batch, 1ul), fresh), shape,
                     "neighborhood_attention_forward: o is 1 sequences", p.o, r, m);
  EXPECT_TIGON_ERROR(forward(q, k, v, o, {m.view(), std::span<float>(r).first(19)}), shape,
                     "neighborhood_attention_forward: lse is of 19 elements; expected 20", p.o, r, m);
  EXPECT_TIGON_ERROR(forward(q, k, v, o, {m.view().cols_from(0, 2), r}), shape,
                     "neighborhood_attention_forward: probs is 20 x 2; expected 20 x 3", p.o, r, m);
  EXPECT_TIGON_ERROR(forward(with(q, &view::seq_stride, 7ul), k, v, o, fresh), stride,
                     "neighborhood_attention_forward: q is of a stride of", p.o, r, m);
  EXPECT_TIGON_ERROR(forward(q, with(k, &view::data, static_cast<float*>(nullptr)), v, o, fresh), shape,
                     "neighborhood_attention_forward: k is a null pointer", p.o, r, m);
}

TEST_F(neighborhood_attention_doors, refuse_wrong_options) {
  const auto refused = [&](options opt, const char* sentence) {
    const std::string forwards = std::string("neighborhood_attention_forward: ") + sentence,
                      backwards = std::string("neighborhood_attention_backward: ") + sentence;
    EXPECT_TIGON_ERROR(forward(q, k, v, o, all, opt), argument, forwards, p.o, p.lse, p.probs);
    EXPECT_TIGON_ERROR(backward(d_o, q, k, v, all, dq, dk, dv, opt), argument, backwards, p.dq, p.dk, p.dv);
  };
  refused({.kernel_size = 4}, "kernel_size is 4; expected an odd number");
  refused({.kernel_size = 0}, "kernel_size is 0; expected an odd number");
  refused({.kernel_size = 3, .dilation = 0}, "dilation is 0; expected at least 1");
  for (const double scale : {nan, infinity, -infinity}) refused({.kernel_size = 3, .scale = scale}, "scale is");
}

TEST_F(neighborhood_attention_doors, forward_refuses_overlaps) {
  for (const auto& [name, in] : {std::pair("q", q), {"k", k}, {"v", v}}) {
    const std::string overlaps = std::string(" overlaps ") + name;
    const std::span<float> as_lse(in.data, p.lse.size());
    const matrix_view<float> as_probs(in.data, p.lse.size(), 3);
    EXPECT_TIGON_ERROR(forward(q, k, v, in, all), alias, "neighborhood_attention_forward: o" + overlaps, p.lse,
                       p.probs);
    EXPECT_TIGON_ERROR(forward(q, k, v, o, {all.probs, as_lse}), alias,
                       "neighborhood_attention_forward: lse" + overlaps, p.o, p.probs);
    EXPECT_TIGON_ERROR(forward(q, k, v, o, {as_probs, all.lse}), alias,
                       "neighborhood_attention_forward: probs" + overlaps, p.o, p.lse);
  }
  EXPECT_TIGON_ERROR(forward(q, k, v, o, {all.probs, std::span<float>(o.data, p.lse.size())}), alias,
                     "neighborhood_attention_forward: lse overlaps o", p.o, p.probs);
  EXPECT_TIGON_ERROR(forward(q, k, v, o, {all.probs, std::span<float>(all.probs.data, p.lse.size())}), alias,
                     "neighborhood_attention_forward: lse overlaps probs", p.o, p.probs);
}

TEST_F(neighborhood_attention_doors, backward_refuses_wrong_shapes) {
  const auto wrong = [](view x) { return with(x, &view::seq_len, 4ul); };
  const auto refused = [&](auto call, const char* name) {
    EXPECT_TIGON_ERROR(call(), shape, std::string("neighborhood_attention_backward: ") + name + " is", p.dq, p.dk,
                       p.dv);
  };
  refused([&] { backward(wrong(d_o), q, k, v, all, dq, dk, dv); }, "do");
  refused([&] { backward(d_o, q, wrong(k), v, all, dq, dk, dv); }, "k");
  refused([&] { backward(d_o, q, k, wrong(v), all, dq, dk, dv); }, "v");
  refused([&] { backward(d_o, q, k, v, {all.probs.rows_from(0, 7), {}}, dq, dk, dv); }, "probs");
  refused([&] { backward(d_o, q, k, v, all, wrong(dq), dk, dv); }, "dq");
  refused([&] { backward(d_o, q, k, v, all, dq, wrong(dk), dv); }, "dk");
  refused([&] { backward(d_o, q, k, v, all, dq, dk, wrong(dv)); }, "dv");
}

TEST_F(neighborhood_attention_doors, backward_refuses_overlaps) {
  const matrix_view<float> probs_in_dq(dq.data, p.lse.size(), 3);
  for (const auto& [name, in] : {std::pair("do", d_o), {"q", q}, {"k", k}, {"v", v}}) {
    const std::string overlaps = std::string(" overlaps ") + name;
    EXPECT_TIGON_ERROR(backward(d_o, q, k, v, all, in, dk, dv), alias, "neighborhood_attention_backward: dq" + overlaps,
                       p.dk, p.dv);
    EXPECT_TIGON_ERROR(backward(d_o, q, k, v, all, dq, in, dv), alias, "neighborhood_attention_backward: dk" + overlaps,
                       p.dq, p.dv);
    EXPECT_TIGON_ERROR(backward(d_o, q, k, v, all, dq, dk, in), alias, "neighborhood_attention_backward: dv" + overlaps,
                       p.dq, p.dk);
  }
  EXPECT_TIGON_ERROR(backward(d_o, q, k, v, all, dq, dk, dk), alias, "neighborhood_attention_backward: dk overlaps dv",
                     p.dq, p.dk);
  EXPECT_TIGON_ERROR(backward(d_o, q, k, v, all, dq, dq, dv), alias, "neighborhood_attention_backward: dq overlaps dk",
                     p.dq, p.dv);
  EXPECT_TIGON_ERROR(backward(d_o, q, k, v, {probs_in_dq, {}}, dq, dk, dv), alias,
                     "neighborhood_attention_backward: dq overlaps probs", p.dq, p.dk, p.dv);
}

TEST_F(neighborhood_attention_doors, accept_q_k_and_v_as_columns_of_one_buffer) {
  // A fused projection to [batch, seq_len, 3, heads, d], and its gradient alike.
  const std::size_t width = 3 * 2 * 8;
  guarded<float> qkv(2 * 5 * width), gradient(qkv.size());
  const auto part = [&](guarded<float>& of, std::size_t n) {
    return view(of.data() + n * 16, 2, 2, 5, 8, 5 * width, 8, width);
  };
  for (const auto& [n, from] : {std::pair(0ul, q), {1ul, k}, {2ul, v}})
    for (std::size_t row = 0; row < 20; ++row)
      std::copy_n(from.at(row / 10, row / 5 % 2, row % 5), 8, part(qkv, n).at(row / 10, row / 5 % 2, row % 5));
  p.both_ways<B>();
  problem<float> fused(p.s);
  forward(part(qkv, 0), part(qkv, 1), part(qkv, 2), fused.o.view(), fused.all_saved());
  backward(d_o, part(qkv, 0), part(qkv, 1), part(qkv, 2), fused.all_saved(), part(gradient, 0), part(gradient, 1),
           part(gradient, 2));
  EXPECT_EQ(bits_of(fused.o, fused.lse, fused.probs), bits_of(p.o, p.lse, p.probs));
  for (std::size_t row = 0; row < 20; ++row)
    for (std::size_t c = 0; c < 8; ++c) {
      const std::size_t b = row / 10, h = row / 5 % 2, i = row % 5;
      ASSERT_EQ(part(gradient, 0).at(b, h, i)[c], dq.at(b, h, i)[c]);
      ASSERT_EQ(part(gradient, 1).at(b, h, i)[c], dk.at(b, h, i)[c]);
      ASSERT_EQ(part(gradient, 2).at(b, h, i)[c], dv.at(b, h, i)[c]);
    }
}

}  // namespace
