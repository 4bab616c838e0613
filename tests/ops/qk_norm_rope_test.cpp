// The contract of include/tigon/ops/qk_norm_rope.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <tigon/ops/qk_norm_rope.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/rope.hpp>

#include "support/backends.hpp"
#include "support/complex_step.hpp"
#include "support/errors.hpp"
#include "support/guarded_heads.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::absent, tigon::bfloat16, tigon::casting, tigon::context, tigon::heads_view, tigon::matrix_view;
using tigon::qk_heads, tigon::qk_norm_rope_gradients, tigon::qk_norm_weights, tigon::rope_tables;
using tigon::rotary_columns, tigon::rotary_pairs;

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type forward_bound{.f32 = 1e-6, .bf16 = 1.5e-2, .f16 = 2e-3, .f64 = 4e-15};
constexpr by_type gradient_bound{.f32 = 2e-6, .bf16 = 2e-2, .f16 = 3e-3, .f64 = 4e-15};

struct variant {
  const char* name;
  bool affine, per_sequence;
  std::size_t part;  ///< of a head that is rotated: 1 / part
  tigon::qk_norm_rope_options opt;
};
const variant variants[] = {
    {"llama", true, false, 1, {.eps = 1e-5}},
    {"gemma", true, true, 2, {.offset = 1, .casting = casting::gemma}},
    {"without weights", false, false, 4, {.offset = 3, .casting = casting::none, .columns = rotary_columns::last}},
    {"neighbours", true, true, 1, {.eps = 1e-5, .casting = casting::none, .pairs = rotary_pairs::neighbours}},
    {"the last neighbours",
     true,
     false,
     2,
     {.offset = -1, .columns = rotary_columns::last, .pairs = rotary_pairs::neighbours}},
};

struct sizes {
  std::size_t batch, heads, kv_heads, seq_len, d;
  layout in = layout::tokens;
  std::size_t padding = 0;
  friend std::ostream& operator<<(std::ostream& out, const sizes& s) {
    return out << s.batch << " x " << s.heads << '/' << s.kv_heads << " heads x " << s.seq_len << " x " << s.d
               << (s.in == layout::tokens ? ", of tokens" : ", of heads") << ", padding " << s.padding;
  }
};

/// What the definition needs of heads of q or of k, in f64.
struct definition {
  std::size_t heads, seq_len, d, rotated;
  variant v;
  std::vector<double> cos, sin, w;

  /// y of one head, of whatever numbers.
  template <class N>
  std::vector<N> head(const N* x, const std::vector<N>& weight, std::size_t angle) const {
    N squares = N(0);
    for (std::size_t j = 0; j < d; ++j) squares += x[j] * x[j];
    const N rstd = 1.0 / std::sqrt(squares / static_cast<double>(d) + v.opt.eps);
    std::vector<N> y(d);
    for (std::size_t j = 0; j < d; ++j) y[j] = v.affine ? x[j] * rstd * (v.opt.offset + weight[j]) : x[j] * rstd;
    return turned(y, angle, 1);
  }
  template <class N>
  std::vector<N> turned(std::vector<N> y, std::size_t angle, double sign) const {
    const std::size_t half = rotated / 2, first = v.opt.columns == rotary_columns::last ? d - rotated : 0;
    for (std::size_t j = 0; j < half; ++j) {
      const bool halves = v.opt.pairs == rotary_pairs::halves;
      const std::size_t a = first + (halves ? j : 2 * j), b = a + (halves ? half : 1);
      const double c = cos[angle * half + j], z = sign * sin[angle * half + j];
      const N p = y[a], q = y[b];
      y[a] = p * c - q * z, y[b] = q * c + p * z;
    }
    return y;
  }
  std::size_t angle(std::size_t row) const {
    const std::size_t s = row % seq_len, b = row / seq_len / heads;
    return v.per_sequence ? b * seq_len + s : s;
  }

  TIGON_TEST_NOINLINE std::vector<double> forward(const std::vector<double>& x) const {
    std::vector<double> y;
    for (std::size_t row = 0; row * d < x.size(); ++row)
      for (const double value : head(x.data() + row * d, w, angle(row))) y.push_back(value);
    return y;
  }
  struct gradients {
    std::vector<double> dx, dw;
    double dx_terms = 0, dw_terms = 0;  ///< size of what adds up to them, where that cancels
  };
  TIGON_TEST_NOINLINE gradients backward(const std::vector<double>& dy, const std::vector<double>& x) const {
    gradients out{{}, std::vector<double>(d, 0.0)};
    std::vector<double> most(d, 0.0);
    const double n = static_cast<double>(d);
    for (std::size_t row = 0; row * d < x.size(); ++row) {
      const double* const u = x.data() + row * d;
      const auto g = turned(std::vector<double>(dy.begin() + static_cast<std::ptrdiff_t>(row * d),
                                                dy.begin() + static_cast<std::ptrdiff_t>((row + 1) * d)),
                            angle(row), -1);
      double squares = 0, k = 0;
      const auto m = [&](std::size_t j) { return v.affine ? g[j] * (v.opt.offset + w[j]) : g[j]; };
      for (std::size_t j = 0; j < d; ++j) squares += u[j] * u[j], k += m(j) * u[j];
      const double rstd = 1 / std::sqrt(squares / n + v.opt.eps);
      for (std::size_t j = 0; j < d; ++j) {
        out.dx.push_back(rstd * m(j) - rstd * rstd * rstd * k / n * u[j]);
        out.dw[j] += g[j] * u[j] * rstd, most[j] += std::abs(g[j] * u[j] * rstd);
        out.dx_terms += rstd * m(j) * rstd * m(j);
      }
    }
    out.dx_terms = std::sqrt(out.dx_terms / static_cast<double>(std::max<std::size_t>(x.size(), 1)));
    for (const double value : most) out.dw_terms += value / n;
    return out;
  }
};

/// Every buffer at a guard page, outputs full of canaries.
template <class T, class W = T>
struct problem {
  sizes s;
  variant v;
  guarded_heads<T> q, k, q_out, k_out, dq_out, dk_out, dq, dk;
  guarded<W> w_q, w_k, dw_q, dw_k;
  std::size_t rotated;
  guarded_matrix<W> cos, sin;

  TIGON_TEST_NOINLINE explicit problem(sizes of, variant what = variants[0], guard side = guard::behind)
      : s(of),
        v(what),
        q(shape(s.heads), side),
        k(shape(s.kv_heads), side),
        q_out(shape(s.heads), side),
        k_out(shape(s.kv_heads), side),
        dq_out(shape(s.heads), side),
        dk_out(shape(s.kv_heads), side),
        dq(shape(s.heads), side),
        dk(shape(s.kv_heads), side),
        w_q(v.affine ? s.d : 0, side),
        w_k(v.affine ? s.d : 0, side),
        dw_q(v.affine ? s.d : 0, side),
        dw_k(v.affine ? s.d : 0, side),
        rotated(s.d / v.part / 2 * 2),
        cos((v.per_sequence ? s.batch : 1) * s.seq_len, rotated / 2, s.padding, side),
        sin(cos.rows(), rotated / 2, s.padding, side) {
    v.opt.rotary_dim = rotated;
    q.assign(normal_values(q.count(), 1)), k.assign(normal_values(k.count(), 2));
    dq_out.assign(normal_values(q.count(), 3)), dk_out.assign(normal_values(k.count(), 4));
    w_q.assign(normal_values(w_q.size(), 5, {1, 0.5})), w_k.assign(normal_values(w_k.size(), 6, {1, 0.5}));
    for (std::size_t i = 0; i < cos.rows(); ++i)
      for (std::size_t j = 0; j < cos.cols(); ++j) {
        const double angle = static_cast<double>(i + 1) / static_cast<double>(j + 1);
        cos(i, j) = from_f64<W>(std::cos(angle)), sin(i, j) = from_f64<W>(std::sin(angle));
      }
  }
  heads_shape shape(std::size_t heads) const { return {s.batch, heads, s.seq_len, s.d, s.in, s.padding}; }
  definition of(bool of_q) const {
    return {of_q ? s.heads : s.kv_heads, s.seq_len, s.d, rotated, v, cos.f64(), sin.f64(), (of_q ? w_q : w_k).f64()};
  }

  template <class B>
  TIGON_TEST_NOINLINE void forward(heads_view<T> to_q, heads_view<T> to_k, context& ctx = tigon::default_context()) {
    const rope_tables tables{cos.view(), sin.view()};
    if (v.affine)
      tigon::qk_norm_rope_forward<B>({q, k}, qk_norm_weights{w_q, w_k}, tables, qk_heads{to_q, to_k}, v.opt, ctx);
    else
      tigon::qk_norm_rope_forward<B>({q, k}, qk_norm_weights{absent, absent}, tables, qk_heads{to_q, to_k}, v.opt, ctx);
  }
  template <class B, class DWQ, class DWK>
  void backward(heads_view<T> to_q, heads_view<T> to_k, DWQ&& to_wq, DWK&& to_wk, context& ctx) {
    const qk_norm_rope_gradients to{to_q, to_k, to_wq, to_wk};
    const rope_tables tables{cos.view(), sin.view()};
    if (v.affine)
      tigon::qk_norm_rope_backward<B>({dq_out, dk_out}, {q, k}, qk_norm_weights{w_q, w_k}, tables, to, v.opt, ctx);
    else
      tigon::qk_norm_rope_backward<B>({dq_out, dk_out}, {q, k}, qk_norm_weights{absent, absent}, tables, to, v.opt,
                                      ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(heads_view<T> to_q, heads_view<T> to_k, std::span<W> to_wq, std::span<W> to_wk,
                                    context& ctx = tigon::default_context()) {
    backward<B, std::span<W>, std::span<W>>(to_q, to_k, std::move(to_wq), std::move(to_wk), ctx);
  }
  template <class B>
  void run(context& ctx = tigon::default_context()) {
    forward<B>(q_out.view(), k_out.view(), ctx);
    backward<B>(dq.view(), dk.view(), dw_q, dw_k, ctx);
  }
  std::vector<std::byte> results() const { return bits_of(q_out, k_out, dq, dk, dw_q, dw_k); }
  void clear() { q_out.clear(), k_out.clear(), dq.clear(), dk.clear(), dw_q.clear(), dw_k.clear(); }

  /// Everything within its bound.
  TIGON_TEST_NOINLINE void expect_close() const {
    const comparison with{.may_be_empty = true};
    for (const bool of_q : {true, false}) {
      const definition by = of(of_q);
      const auto x = (of_q ? q : k).f64();
      const auto wanted = by.backward((of_q ? dq_out : dk_out).f64(), x);
      EXPECT_TRUE(close((of_q ? q_out : k_out).f64(), by.forward(x), forward_bound.of<T>(), with));
      EXPECT_TRUE(close((of_q ? dq : dk).f64(), wanted.dx, gradient_bound.of<T>(),
                        {.scale = wanted.dx_terms, .may_be_empty = true}));
      if (v.affine) {
        EXPECT_TRUE(close((of_q ? dw_q : dw_k).f64(), wanted.dw, gradient_bound.of<W>(), {.scale = wanted.dw_terms}));
      }
    }
    EXPECT_TRUE(q_out.padding_intact() && k_out.padding_intact() && dq.padding_intact() && dk.padding_intact());
  }
};

template <class On>
class qk_norm_rope : public testing::Test {};
TYPED_TEST_SUITE(qk_norm_rope, every_pair, names);

/// Columns around the lane count; grouped heads, both layouts, and nothing in every extent.
template <class B, class T>
std::vector<sizes> every_size() {
  constexpr std::size_t n = lanes<B, T>;
  std::vector<sizes> out{{0, 2, 1, 3, 8}, {2, 0, 1, 3, 8}, {2, 2, 0, 3, 8}, {2, 0, 0, 3, 8}, {2, 2, 1, 0, 8}};
  for (const std::size_t d :
       {std::size_t{1}, std::size_t{2}, std::size_t{8}, n + 1, 2 * n, 2 * n + 2, 8 * n + 6, std::size_t{128}}) {
    out.push_back({1, 1, 1, 1, d});
    out.push_back({2, 4, 2, 3, d, layout::tokens, 3});
    out.push_back({2, 1, 3, 5, d, layout::heads, 1});
  }
  return out;
}

TYPED_TEST(qk_norm_rope, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants)
    for (const sizes& s : every_size<B, T>())
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << v.name << ", " << s << ", " << side);
        problem<T> p(s, v, side);
        const auto inputs = bits_of(p.q, p.k, p.dq_out, p.dk_out, p.w_q, p.w_k, p.cos, p.sin);
        p.template run<B>();
        p.expect_close();
        EXPECT_EQ(bits_of(p.q, p.k, p.dq_out, p.dk_out, p.w_q, p.w_k, p.cos, p.sin), inputs);
      }
}

TYPED_TEST(qk_norm_rope, works_in_place) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const variant& v : variants)
    for (const std::size_t d : {std::size_t{6}, 2 * lanes<B, T> + 2, 8 * lanes<B, T> + 6}) {
      const sizes s{2, 4, 2, 5, d, layout::heads, 2};
      problem<T> apart(s, v), p(s, v), on_dy(s, v), on_x(s, v);
      apart.template run<B>();
      p.template forward<B>(p.q.view(), p.k.view());
      EXPECT_EQ(bits_of(p.q, p.k), bits_of(apart.q_out, apart.k_out)) << v.name << ", " << d;
      on_dy.template backward<B>(on_dy.dq_out.view(), on_dy.dk_out.view(), on_dy.dw_q, on_dy.dw_k);
      EXPECT_EQ(bits_of(on_dy.dq_out, on_dy.dk_out, on_dy.dw_q, on_dy.dw_k),
                bits_of(apart.dq, apart.dk, apart.dw_q, apart.dw_k))
          << v.name << ", " << d;
      on_x.template backward<B>(on_x.q.view(), on_x.k.view(), on_x.dw_q, on_x.dw_k);
      EXPECT_EQ(bits_of(on_x.q, on_x.k, on_x.dw_q, on_x.dw_k), bits_of(apart.dq, apart.dk, apart.dw_q, apart.dw_k))
          << v.name << ", " << d;
    }
}

TYPED_TEST(qk_norm_rope, each_gradient_may_be_left_out) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const std::size_t d : {std::size_t{6}, 4 * lanes<B, T> + 6}) {
    const sizes s{2, 3, 2, 4, d};
    problem<T> full(s);
    full.template run<B>();
    for (int which = 0; which < 16; ++which) {
      problem<T> p(s);
      const bool dq = which & 1, dk = which & 2, dw_q = which & 4, dw_k = which & 8;
      const auto heads = [](bool given, auto& h) { return given ? h.view() : heads_view<T>{}; };
      auto& ctx = tigon::default_context();
      if (dw_q && dw_k)
        p.template backward<B>(heads(dq, p.dq), heads(dk, p.dk), p.dw_q, p.dw_k, ctx);
      else if (dw_q)
        p.template backward<B>(heads(dq, p.dq), heads(dk, p.dk), p.dw_q, absent, ctx);
      else if (dw_k)
        p.template backward<B>(heads(dq, p.dq), heads(dk, p.dk), absent, p.dw_k, ctx);
      else
        p.template backward<B>(heads(dq, p.dq), heads(dk, p.dk), absent, absent, ctx);
      EXPECT_TRUE(dq ? bits_of(p.dq) == bits_of(full.dq) : p.dq.untouched()) << which << ", " << d;
      EXPECT_TRUE(dk ? bits_of(p.dk) == bits_of(full.dk) : p.dk.untouched()) << which << ", " << d;
      EXPECT_TRUE(dw_q ? bits_of(p.dw_q) == bits_of(full.dw_q) : p.dw_q.untouched()) << which << ", " << d;
      EXPECT_TRUE(dw_k ? bits_of(p.dw_k) == bits_of(full.dw_k) : p.dw_k.untouched()) << which << ", " << d;
    }
  }
}

TYPED_TEST(qk_norm_rope, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  problem<typename TypeParam::element> p({2, 8, 4, 100, 66}, variants[1]);
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.clear();
    p.template run<B>(ctx);
    return p.results();
  }));
}

/// The norm and the rotation one after the other, which round y in between.
TYPED_TEST(qk_norm_rope, is_rms_norm_and_then_rope) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = tigon::accumulator_t<T>;
  const sizes s{2, 3, 2, 7, 64};
  problem<T> p(s);
  p.template run<B>();
  const auto compare = [&](guarded_heads<T>& x, guarded_heads<T>& dy, const guarded<T>& w, std::size_t heads,
                           const guarded_heads<T>& y_fused, const guarded_heads<T>& dx_fused,
                           const guarded<T>& dw_fused) {
    const std::size_t rows = s.batch * s.seq_len * heads;
    guarded_heads<T> y({s.batch, heads, s.seq_len, s.d}), g({s.batch, heads, s.seq_len, s.d}),
        dx({s.batch, heads, s.seq_len, s.d});
    guarded<A> rstd(rows);
    guarded<T> dw(s.d);
    const auto matrix = [&](guarded_heads<T>& h) { return matrix_view<T>(h.view().data, rows, s.d); };
    const tigon::rms_norm_options opt{.eps = p.v.opt.eps};
    tigon::rms_norm_forward<B>(matrix(x), w, matrix(y), rstd, opt);
    tigon::rope_forward<B>(heads_view<const T>(y), p.cos.view(), p.sin.view(), y.view());
    tigon::rope_backward<B>(heads_view<const T>(dy), p.cos.view(), p.sin.view(), g.view());
    tigon::rms_norm_backward<B>(matrix(g), matrix(x), w, rstd, matrix(dx), dw, opt);
    EXPECT_TRUE(close(y_fused.f64(), y.f64(), 1.5 * forward_bound.of<T>()));
    EXPECT_TRUE(close(dx_fused.f64(), dx.f64(), 1.5 * gradient_bound.of<T>()));
    EXPECT_TRUE(close(dw_fused.f64(), dw.f64(), 1.5 * gradient_bound.of<T>()));
  };
  compare(p.q, p.dq_out, p.w_q, s.heads, p.q_out, p.dq, p.dw_q);
  compare(p.k, p.dk_out, p.w_k, s.kv_heads, p.k_out, p.dk, p.dw_k);
}

/// Without a rotation it is rms_norm, bit by bit: squares of small whole numbers have one sum in any order.
TYPED_TEST(qk_norm_rope, rounds_where_rms_norm_does) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const casting rule : {casting::llama, casting::gemma, casting::none})
    for (const double offset : {0.0, 1.0}) {
      const sizes s{2, 3, 2, 7, 64};
      problem<T> p(s, {"", true, false, 64, {.offset = offset, .casting = rule}});
      for (std::size_t i = 0; i < p.q.count(); ++i) p.q[i] = from_f64<T>(static_cast<double>(i * i % 11) - 5);
      p.template forward<B>(p.q_out.view(), p.k_out.view());
      const std::size_t rows = s.batch * s.seq_len * s.heads;
      guarded_matrix<T> y(rows, s.d);
      guarded<tigon::accumulator_t<T>> rstd(rows);
      tigon::rms_norm_forward<B>(matrix_view<const T>(p.q.view().data, rows, s.d), p.w_q, y.view(), rstd,
                                 {.offset = offset, .casting = rule});
      EXPECT_EQ(bits_of(p.q_out), bits_of(y)) << "rule " << static_cast<int>(rule) << ", offset " << offset;
    }
}

/// A head times a power of two, with eps = 0: the same y, and dx divided by it. Squares leave the range of f32 there.
TYPED_TEST(qk_norm_rope, takes_heads_of_any_size) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  if constexpr (!std::same_as<T, tigon::float16>) {
    const double sizes_of[] = {0x1p-80, 0x1p80};
    for (const variant& v : variants)
      for (const double times : sizes_of) {
        SCOPED_TRACE(testing::Message() << v.name << ", " << times);
        problem<T> p({1, 2, 1, 3, 40}, v);
        p.v.opt.eps = 0;
        const auto scaled = [&](guarded_heads<T>& h) {
          for (std::size_t i = 0; i < h.count(); ++i) h[i] = from_f64<T>(to_f64(h[i]) * times);
        };
        scaled(p.q), scaled(p.k);
        p.template run<B>();
        p.expect_close();
      }
  }
}

TYPED_TEST(qk_norm_rope, nan_stays_in_its_head) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({1, 2, 1, 3, 40});
  p.q[4 * 40 + 7] = from_f64<T>(std::numeric_limits<double>::quiet_NaN());  // second head, second token
  p.template run<B>();
  for (std::size_t i = 0; i < p.q.count(); ++i) {
    ASSERT_EQ(std::isnan(to_f64(p.q_out[i])), i / 40 == 4) << i;
    ASSERT_EQ(std::isnan(to_f64(p.dq[i])), i / 40 == 4) << i;
  }
  for (std::size_t j = 0; j < 40; ++j) {
    EXPECT_TRUE(std::isnan(to_f64(p.dw_q[j]))) << j;
    EXPECT_TRUE(std::isfinite(to_f64(p.dw_k[j]))) << j;
  }
}

/// All heads alike, so that every addition to a sum of dw is rounded the same way.
TEST(qk_norm_rope_sums, keep_their_error_for_any_number_of_heads) {
  using B = tigon::default_backend;
  const std::size_t tokens = 1 << 15, d = 16;
  const std::vector<float> x(tokens * d, 0.7f), dy(tokens * d, 0.3f), w(d, 1);
  std::vector<float> dx(tokens * d), dw(d, 8);
  const auto heads = [&](auto& v) {
    return heads_view<std::remove_pointer_t<decltype(v.data())>>::of_tokens(v.data(), 1, tokens, 1, d);
  };
  const auto none = [&](auto h) {
    h.heads = 0;
    return h;
  };
  const matrix_view<const float> no_angles(nullptr, tokens, 0);
  const heads_view<float> to = heads(dx);
  for (const tigon::gradient mode : {tigon::gradient::overwrite, tigon::gradient::accumulate}) {
    std::fill(dw.begin(), dw.end(), 8.0f);
    tigon::qk_norm_rope_backward<B>({heads(dy), none(heads(dy))}, {heads(x), none(heads(x))},
                                    qk_norm_weights{w, absent}, rope_tables{no_angles, no_angles},
                                    qk_norm_rope_gradients{to, none(to), dw, absent},
                                    {.eps = 0, .rotary_dim = 0, .dw = mode});
    const double wanted = static_cast<double>(tokens) * 0.3f + (mode == tigon::gradient::accumulate ? 8 : 0);
    for (const float v : dw) EXPECT_NEAR(v, wanted, 1e-6 * wanted);
  }
}

TEST(qk_norm_rope_types, weights_and_tables_keep_their_own_type) {
  for (const variant& v : variants) {
    problem<bfloat16, float> p({2, 3, 2, 5, 70}, v);
    p.run<tigon::default_backend>();
    const comparison with{.may_be_empty = true};
    const auto wanted = p.of(true).backward(p.dq_out.f64(), p.q.f64());
    EXPECT_TRUE(close(p.q_out.f64(), p.of(true).forward(p.q.f64()), forward_bound.bf16));
    EXPECT_TRUE(close(p.dq.f64(), wanted.dx, gradient_bound.bf16));
    // f32, but for the rounding of x * rstd.
    const double bound = v.opt.casting == casting::llama ? gradient_bound.bf16 : gradient_bound.f32;
    if (v.affine) {
      EXPECT_TRUE(close(p.dw_q.f64(), wanted.dw, bound, with));
    }
  }
}

/// The reference is the derivative of the definition.
TEST(qk_norm_rope_reference, is_a_complex_step) {
  for (const variant& v : variants) {
    problem<double> p({2, 3, 1, 2, 10}, v);
    const definition by = p.of(true);
    const auto x = p.q.f64(), dy = p.dq_out.f64();
    const auto wanted = by.backward(dy, x);
    const auto loss_of = [&](const auto& z, const auto& weight) {
      auto sum = z[0] * 0.0;
      for (std::size_t row = 0; row * 10 < z.size(); ++row) {
        const auto y = by.head(z.data() + row * 10, weight, by.angle(row));
        for (std::size_t j = 0; j < 10; ++j) sum += y[j] * dy[row * 10 + j];
      }
      return sum;
    };
    const auto of_x = [&](const auto& z) {
      std::remove_cvref_t<decltype(z)> weight(by.w.begin(), by.w.end());
      return loss_of(z, weight);
    };
    EXPECT_TRUE(close(wanted.dx, complex_step(of_x, x, probes(x.size(), x.size())), 1e-14)) << v.name;
    if (!v.affine) continue;
    const auto of_w = [&](const auto& weight) {
      std::remove_cvref_t<decltype(weight)> z(x.begin(), x.end());
      return loss_of(z, weight);
    };
    EXPECT_TRUE(close(wanted.dw, complex_step(of_w, by.w, probes(10, 10)), 1e-14)) << v.name;
  }
}

class qk_norm_rope_doors : public testing::Test {
 protected:
  using B = tigon::default_backend;
  problem<float> p{{2, 2, 1, 3, 8}, variants[0]};

  void refuse(tigon::error_code code, const std::string& part, auto call) {
    EXPECT_TRUE(refuses(call, code, part, p.q, p.k, p.q_out, p.k_out, p.dq, p.dk, p.dw_q, p.dw_k)) << part;
  }
  void refuse_options(tigon::error_code code, const std::string& part, tigon::qk_norm_rope_options opt) {
    p.v.opt = opt;
    refuse(code, "qk_norm_rope_forward: " + part, [&] { p.forward<B>(p.q_out.view(), p.k_out.view()); });
    refuse(code, "qk_norm_rope_backward: " + part, [&] { p.backward<B>(p.dq.view(), p.dk.view(), p.dw_q, p.dw_k); });
  }
};

TEST_F(qk_norm_rope_doors, refuse_wrong_options) {
  using enum tigon::error_code;
  refuse_options(argument, "eps is -1", {.eps = -1});
  refuse_options(argument, "offset is nan", {.offset = NAN});
  refuse_options(shape, "rotary_dim is odd", {.rotary_dim = 3});
  refuse_options(argument, "rotary_dim is above head_dim", {.rotary_dim = 10});
}

TEST_F(qk_norm_rope_doors, refuse_wrong_shapes) {
  using enum tigon::error_code;
  const auto with_heads = [](heads_view<float> h, std::size_t heads) {
    h.heads = heads;
    return h;
  };
  const auto forward = [&](auto& w, auto cos, heads_view<float> q_out, heads_view<float> k_out) {
    tigon::qk_norm_rope_forward<B>({p.q, p.k}, qk_norm_weights{w, p.w_k}, rope_tables{cos, p.sin.view()},
                                   qk_heads{q_out, k_out}, p.v.opt);
  };
  const auto q_out = p.q_out.view(), k_out = p.k_out.view();
  const auto cos = p.cos.view();
  const std::vector<float> seven(7, 1.0f);
  refuse(shape, "qk_norm_rope_forward: q_out is 2 sequences x 1 heads",
         [&] { forward(p.w_q, cos, with_heads(q_out, 1), k_out); });
  refuse(shape, "qk_norm_rope_forward: k_out is 2 sequences x 2 heads",
         [&] { forward(p.w_q, cos, q_out, with_heads(k_out, 2)); });
  refuse(shape, "qk_norm_rope_forward: w_q is of 7 elements; expected 8", [&] { forward(seven, cos, q_out, k_out); });
  refuse(shape, "qk_norm_rope_forward: cos is narrower than rotary_dim / 2",
         [&] { forward(p.w_q, cos.cols_from(0, 3), q_out, k_out); });
  refuse(shape, "qk_norm_rope_forward: cos is 2 x 4; expected 3 x 4",
         [&] { forward(p.w_q, cos.rows_from(0, 2), q_out, k_out); });
  refuse(alias, "qk_norm_rope_forward: q_out overlaps k", [&] { forward(p.w_q, cos, q_out, with_heads(q_out, 1)); });
  auto& ctx = tigon::default_context();
  refuse(shape, "qk_norm_rope_backward: dq is 2 sequences x 1 heads",
         [&] { p.backward<B>(with_heads(p.dq.view(), 1), p.dk.view(), p.dw_q, p.dw_k); });
  refuse(shape, "qk_norm_rope_backward: dw_q is of 7 elements; expected 8",
         [&] { p.backward<B>(p.dq.view(), p.dk.view(), std::span(p.dw_q.data(), 7), p.dw_k); });
  refuse(alias, "qk_norm_rope_backward: dw_q overlaps w_q",
         [&] { p.backward<B>(p.dq.view(), p.dk.view(), p.w_q, absent, ctx); });
  refuse(alias, "qk_norm_rope_backward: dw_q overlaps dw_k",
         [&] { p.backward<B>(p.dq.view(), p.dk.view(), p.dw_q, p.dw_q); });
  refuse(alias, "qk_norm_rope_backward: dk overlaps dq_out",
         [&] { p.backward<B>(p.dq.view(), with_heads(p.dq_out.view(), 1), p.dw_q, p.dw_k); });
}

TEST_F(qk_norm_rope_doors, refuse_a_gradient_of_a_weight_that_is_absent) {
  p.v.affine = false;
  refuse(tigon::error_code::shape, "qk_norm_rope_backward: dw_q is of 8 elements; expected 0",
         [&] { p.backward<B>(p.dq.view(), p.dk.view(), p.dw_q, absent, tigon::default_context()); });
}

TEST_F(qk_norm_rope_doors, take_the_workspace_that_they_name) {
  for (const std::size_t threads : {1u, 3u}) {
    std::size_t forward = 0, backward = 0;
    with_workspace_of(
        0,
        [&](context& ctx) {
          forward = tigon::qk_norm_rope_workspace<B, float>(8, ctx);
          backward = tigon::qk_norm_rope_backward_workspace<B, float>(2 * 3 * 3, 8, ctx);
        },
        threads);
    const auto run_forward = [&](context& ctx) { p.forward<B>(p.q_out.view(), p.k_out.view(), ctx); };
    const auto run_backward = [&](context& ctx) { p.backward<B>(p.dq.view(), p.dk.view(), p.dw_q, p.dw_k, ctx); };
    const auto run_frozen = [&](context& ctx) { p.backward<B>(p.dq.view(), p.dk.view(), absent, absent, ctx); };
    refuse(tigon::error_code::workspace, "qk_norm_rope_forward: workspace is of",
           [&] { with_workspace_of(forward - 1, run_forward, threads); });
    refuse(tigon::error_code::workspace, "qk_norm_rope_backward: workspace is of",
           [&] { with_workspace_of(backward - 1, run_backward, threads); });
    with_workspace_of(forward, run_forward, threads);
    with_workspace_of(backward, run_backward, threads);
    with_workspace_of(backward, run_frozen, threads);
    p.clear();
  }
  // Without gradients of weights it takes less than it names, and touches no more.
  problem<float> wide({1, 2, 1, 3, 64});
  EXPECT_TRUE(touches_what_it_takes(
      [&](context& ctx) { wide.backward<B>(wide.dq.view(), wide.dk.view(), absent, absent, ctx); }));
}

}  // namespace
