// The contract of include/tigon/ops/rope.hpp, promise by promise, on every backend and in every element type.
#include <gtest/gtest.h>

#include <tigon/ops/rope.hpp>

#include "support/backends.hpp"
#include "support/errors.hpp"
#include "support/guarded_heads.hpp"
#include "support/problem.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::heads_view;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

struct sizes {
  std::size_t batch, heads, kv_heads, seq_len, d;
  layout in = layout::tokens;
  std::size_t padding = 0;
  bool table_for_each = false;  // sequence
  friend std::ostream& operator<<(std::ostream& out, const sizes& s) {
    return out << s.batch << " x " << s.heads << '/' << s.kv_heads << " heads x " << s.seq_len << " x " << s.d
               << (s.in == layout::tokens ? ", of tokens" : ", of heads") << ", padding " << s.padding;
  }
};

// In units of the pair's length; at most ten times the worst that was seen.
constexpr by_type bound{.f32 = 2e-7, .bf16 = 4e-3, .f16 = 5e-4, .f64 = 4e-16};

/// Every buffer at a guard page, outputs full of canaries. Tables are as wide as heads: the second half must not
/// matter.
template <class T, class U = T>
struct problem {
  sizes s;
  guarded_matrix<U> cos, sin;
  guarded_heads<T> q, k, q_out, k_out;

  TIGON_TEST_NOINLINE explicit problem(sizes of, guard side = guard::behind)
      : s(of),
        cos((s.table_for_each ? s.batch : 1) * s.seq_len, s.d / 2, s.padding, side),
        sin(cos.rows(), s.d / 2, s.padding, side),
        q({s.batch, s.heads, s.seq_len, s.d, s.in, s.padding}, side),
        k({s.batch, s.kv_heads, s.seq_len, s.d, s.in, s.padding}, side),
        q_out({s.batch, s.heads, s.seq_len, s.d, s.in, s.padding}, side),
        k_out({s.batch, s.kv_heads, s.seq_len, s.d, s.in, s.padding}, side) {
    q.assign(normal_values(q.count(), 1)), k.assign(normal_values(k.count(), 2));
    for (std::size_t i = 0; i < cos.rows(); ++i)
      for (std::size_t j = 0; j < s.d / 2; ++j) {
        const double angle =
            static_cast<double>(i) * std::pow(100.0, -2.0 * static_cast<double>(j) / static_cast<double>(s.d));
        cos(i, j) = from_f64<U>(std::cos(angle)), sin(i, j) = from_f64<U>(std::sin(angle));
      }
  }

  template <class B>
  TIGON_TEST_NOINLINE void forward(heads_view<T> to_q, heads_view<T> to_k, context& ctx = tigon::default_context()) {
    tigon::rope_forward<B>(q, k, cos.view(), sin.view(), to_q, to_k, {}, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(heads_view<T> to_q, heads_view<T> to_k, context& ctx = tigon::default_context()) {
    tigon::rope_backward<B>(q, k, cos.view(), sin.view(), to_q, to_k, {}, ctx);
  }

  /// Each pair as a complex number times cos + i sin (backward: cos - i sin), within the bound of the pair's length.
  TIGON_TEST_NOINLINE testing::AssertionResult turned(const guarded_heads<T>& from, const guarded_heads<T>& to,
                                                      double sign) const {
    const auto x = from.f64(), y = to.f64(), c = cos.f64(), z = sin.f64();
    const std::size_t half = s.d / 2,
                      heads = s.d == 0 || s.seq_len == 0 || s.batch == 0 ? 0 : x.size() / (s.batch * s.seq_len * s.d);
    for (std::size_t row = 0; row < s.batch * heads * s.seq_len; ++row) {
      const std::size_t position = row % s.seq_len, sequence = row / s.seq_len / heads;
      const std::size_t table = (s.table_for_each ? sequence * s.seq_len + position : position) * half;
      for (std::size_t j = 0; j < half; ++j) {
        const double u = x[row * s.d + j], v = x[row * s.d + half + j], w = sign * z[table + j];
        const double error = std::hypot(y[row * s.d + j] - (u * c[table + j] - v * w),
                                        y[row * s.d + half + j] - (v * c[table + j] + u * w));
        if (!(error <= bound.of<T>() * std::hypot(u, v) * std::hypot(c[table + j], w)))
          return testing::AssertionFailure()
                 << "row " << row << ", pair " << j << ": error " << error / std::hypot(u, v);
      }
    }
    return testing::AssertionSuccess();
  }
};

/// Halves around the lane count; grouped heads, both layouts, both kinds of tables, and nothing in every extent.
template <class B, class T>
std::vector<sizes> every_size() {
  constexpr std::size_t n = lanes<B, T>;
  std::vector<sizes> out{{0, 2, 1, 3, 8}, {2, 0, 1, 3, 8}, {2, 2, 0, 3, 8}, {2, 2, 1, 0, 8}, {2, 2, 1, 3, 0}};
  for (const std::size_t half :
       {std::size_t{1}, std::max<std::size_t>(n, 2) - 1, n, n + 1, 2 * n + 3, 4 * n, std::size_t{64}}) {
    out.push_back({1, 1, 1, 1, 2 * half});
    out.push_back({2, 4, 2, 3, 2 * half, layout::tokens, 3});
    out.push_back({2, 3, 1, 5, 2 * half, layout::heads, 1, true});
  }
  return out;
}

template <class On>
class rope : public testing::Test {};
TYPED_TEST_SUITE(rope, every_pair, names);

TYPED_TEST(rope, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const sizes& s : every_size<B, T>())
    for (const guard side : both_guards) {
      SCOPED_TRACE(testing::Message() << s << ", " << side);
      problem<T> p(s, side);
      p.template forward<B>(p.q_out.view(), p.k_out.view());
      EXPECT_TRUE(p.turned(p.q, p.q_out, 1));
      EXPECT_TRUE(p.turned(p.k, p.k_out, 1));
      EXPECT_TRUE(p.q_out.padding_intact() && p.k_out.padding_intact());
      p.q_out.clear(), p.k_out.clear();
      p.template backward<B>(p.q_out.view(), p.k_out.view());
      EXPECT_TRUE(p.turned(p.q, p.q_out, -1));
      EXPECT_TRUE(p.turned(p.k, p.k_out, -1));
      EXPECT_TRUE(p.q_out.padding_intact() && p.k_out.padding_intact());
    }
}

TYPED_TEST(rope, works_in_place) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const layout in : {layout::tokens, layout::heads}) {
    const sizes s{2, 4, 2, 5, 8 * lanes<B, T> + 6, in, 2};
    problem<T> apart(s), p(s), back(s);
    apart.template forward<B>(apart.q_out.view(), apart.k_out.view());
    p.template forward<B>(p.q.view(), p.k.view());
    EXPECT_EQ(p.q.f64(), apart.q_out.f64());
    EXPECT_EQ(p.k.f64(), apart.k_out.f64());
    apart.template backward<B>(apart.q_out.view(), apart.k_out.view());
    back.template backward<B>(back.q.view(), back.k.view());
    EXPECT_EQ(back.q.f64(), apart.q_out.f64());
    EXPECT_EQ(back.k.f64(), apart.k_out.f64());
  }
}

TYPED_TEST(rope, q_and_k_may_be_columns_of_one_buffer) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const sizes s{2, 4, 2, 3, 2 * lanes<B, T> + 6};
  problem<T> p(s);
  p.template forward<B>(p.q_out.view(), p.k_out.view());
  const std::size_t width = 6 * s.d;  // of a token: four heads of q, two of k
  guarded<T> both(6 * width);
  const heads_view<T> q(both.data(), 2, 4, 3, s.d, 3 * width, s.d, width),
      k(both.data() + 4 * s.d, 2, 2, 3, s.d, 3 * width, s.d, width);
  for (std::size_t i = 0; i < p.q.count(); ++i) *(q.at(i / s.d / 12, i / s.d / 3 % 4, i / s.d % 3) + i % s.d) = p.q[i];
  for (std::size_t i = 0; i < p.k.count(); ++i) *(k.at(i / s.d / 6, i / s.d / 3 % 2, i / s.d % 3) + i % s.d) = p.k[i];
  tigon::rope_forward<B>(q, k, p.cos.view(), p.sin.view(), q, k);
  for (std::size_t i = 0; i < p.q.count(); ++i)
    ASSERT_EQ(to_f64(*(q.at(i / s.d / 12, i / s.d / 3 % 4, i / s.d % 3) + i % s.d)), to_f64(p.q_out[i]));
  for (std::size_t i = 0; i < p.k.count(); ++i)
    ASSERT_EQ(to_f64(*(k.at(i / s.d / 6, i / s.d / 3 % 2, i / s.d % 3) + i % s.d)), to_f64(p.k_out[i]));
}

TYPED_TEST(rope, nan_stays_in_its_pair) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const sizes s{1, 2, 1, 3, 4 * lanes<B, T> + 6};
  const std::size_t half = s.d / 2;
  for (const std::size_t j : {std::size_t{0}, lanes<B, T>, half - 1}) {
    problem<T> p(s);
    p.q[4 * s.d + j] = from_f64<T>(nan);  // second head, second token
    p.template forward<B>(p.q_out.view(), p.k_out.view());
    for (std::size_t i = 0; i < p.q.count(); ++i)
      ASSERT_EQ(std::isnan(to_f64(p.q_out[i])), i == 4 * s.d + j || i == 4 * s.d + half + j) << i;
    EXPECT_TRUE(p.turned(p.k, p.k_out, 1));
  }
}

TYPED_TEST(rope, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p({2, 8, 4, 100, 66});  // two and a half tasks
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.q_out.clear(), p.k_out.clear();
    p.template forward<B>(p.q_out.view(), p.k_out.view(), ctx);
    auto bits = bits_of(p.q_out, p.k_out);
    p.template backward<B>(p.q_out.view(), p.k_out.view(), ctx);
    const auto more = bits_of(p.q_out, p.k_out);
    bits.insert(bits.end(), more.begin(), more.end());
    return bits;
  }));
}

template <class On>
class rope_gradient : public testing::Test {};
TYPED_TEST_SUITE(rope_gradient, every_pair_of<double>, names);

TYPED_TEST(rope_gradient, is_the_transpose_of_forward) {
  using B = typename TypeParam::backend;
  // <dq', R q> = <R^T dq', q> for a linear map; here R^T is also the inverse.
  problem<double> p({2, 3, 1, 4, 10}), d({2, 3, 1, 4, 10});
  d.q.assign(normal_values(d.q.count(), 7));
  p.template forward<B>(p.q_out.view(), p.k_out.view()), d.template backward<B>(d.q_out.view(), d.k_out.view());
  double left = 0, right = 0;
  for (std::size_t i = 0; i < p.q.count(); ++i) left += d.q[i] * p.q_out[i], right += d.q_out[i] * p.q[i];
  EXPECT_NEAR(left, right, 1e-13);
  problem<double> back(p.s);
  tigon::rope_backward<B>(p.q_out, p.k_out, p.cos.view(), p.sin.view(), back.q_out.view(), back.k_out.view());
  EXPECT_TRUE(close(back.q_out.f64(), p.q.f64(), 1e-15));
}

TEST(rope_mixed, tables_keep_their_own_type) {
  problem<bfloat16, float> p({1, 2, 1, 5, 70});
  p.forward<tigon::default_backend>(p.q_out.view(), p.k_out.view());
  EXPECT_TRUE(p.turned(p.q, p.q_out, 1));
}

/// The doors, which are the same for every backend: refused before the first write.
class rope_doors : public testing::Test {
 protected:
  using view = heads_view<float>;
  using table = tigon::matrix_view<float>;
  void call(view q, view k, table cos, table sin, view q_out, view k_out, tigon::error_code code,
            const std::string& part) {
    EXPECT_TRUE(refuses([&] { tigon::rope_forward(q, k, cos, sin, q_out, k_out); }, code, "rope_forward: " + part, p.q,
                        p.k, p.q_out, p.k_out, p.cos, p.sin));
    EXPECT_TRUE(refuses([&] { tigon::rope_backward(q, k, cos, sin, q_out, k_out); }, code, "rope_backward: " + part,
                        p.q, p.k, p.q_out, p.k_out, p.cos, p.sin));
  }
  static view with(view v, std::size_t view::*field, std::size_t value) {
    v.*field = value;
    return v;
  }

  problem<float> p{{2, 2, 1, 3, 8}};
  const view q = p.q.view(), k = p.k.view(), q_out = p.q_out.view(), k_out = p.k_out.view();
  const table cos = p.cos.view(), sin = p.sin.view();
};

TEST_F(rope_doors, refuse_wrong_shapes) {
  using enum tigon::error_code;
  const auto odd = [](view v) { return with(v, &view::head_dim, 7); };
  call(odd(q), odd(k), cos, sin, odd(q_out), odd(k_out), shape, "head_dim of q is odd; expected an even number");
  call(q, with(k, &view::head_dim, 6), cos, sin, q_out, k_out, shape,
       "k is 2 sequences x 1 heads x 3 tokens x 6; expected");
  call(q, with(k, &view::seq_len, 2), cos, sin, q_out, k_out, shape,
       "k is 2 sequences x 1 heads x 2 tokens x 8; expected");
  call(q, with(k, &view::batch, 1), cos, sin, q_out, k_out, shape,
       "k is 1 sequences x 1 heads x 3 tokens x 8; expected");
  call(q, k, cos, sin, with(q_out, &view::heads, 1), k_out, shape, "q_out is 2 sequences x 1 heads");
  call(q, k, cos, sin, q_out, with(k_out, &view::heads, 2), shape, "k_out is 2 sequences x 2 heads");
  call(q, k, cos.cols_from(0, 3), sin, q_out, k_out, shape, "cos is narrower than head_dim / 2");
  call(q, k, cos.rows_from(0, 2), sin, q_out, k_out, shape, "cos is 2 x 4; expected 3 x 4");
  call(q, k, cos, sin.rows_from(0, 2), q_out, k_out, shape, "sin is 2 x 4; expected 3 x 4");
  call(q, k, cos, sin.cols_from(0, 3), q_out, k_out, shape, "sin is 3 x 3; expected 3 x 4");
  call(q, k, cos, {nullptr, 3, 4}, q_out, k_out, shape, "sin is a null pointer");
  call(q, k, cos, {sin.data, 3, 4, 3}, q_out, k_out, stride, "sin is of row stride 3");
  view no_memory = q;
  no_memory.data = nullptr;
  call(no_memory, k, cos, sin, q_out, k_out, shape, "q is a null pointer");
  call(q, k, cos, sin, no_memory, k_out, shape, "q_out is a null pointer");
  for (const auto stride_of : {&view::batch_stride, &view::head_stride, &view::seq_stride}) {
    call(with(q, stride_of, 7), k, cos, sin, q_out, k_out, stride, "q is of a stride of 7; expected");
    call(q, k, cos, sin, with(q_out, stride_of, 7), k_out, stride, "q_out is of a stride of 7; expected");
  }
}

TEST_F(rope_doors, refuse_overlaps) {
  using enum tigon::error_code;
  guarded<float> buffer(256);
  buffer.assign(std::vector<double>(256, 1.0));
  const view front = view::of_tokens(buffer.data(), 2, 3, 2, 8),
             shifted = view::of_tokens(buffer.data() + 16, 2, 3, 2, 8);
  const view narrow = view::of_tokens(buffer.data(), 2, 3, 1, 8),
             narrow_shifted = view::of_tokens(buffer.data() + 8, 2, 3, 1, 8);
  const table in_buffer(buffer.data(), 3, 4);
  call(front, k, cos, sin, shifted, k_out, alias, "q_out overlaps q; expected the same buffer or no common memory");
  call(q, narrow, cos, sin, q_out, narrow_shifted, alias,
       "k_out overlaps k; expected the same buffer or no common memory");
  call(q, narrow, cos, sin, front, k_out, alias, "q_out overlaps k");
  call(q, k, cos, sin, front, narrow, alias, "q_out overlaps k_out");
  call(q, k, in_buffer, sin, front, k_out, alias, "q_out overlaps cos");
  call(q, k, cos, in_buffer, front, k_out, alias, "q_out overlaps sin");
  call(front, k, cos, sin, q_out, narrow, alias, "k_out overlaps q");
  call(q, k, in_buffer, sin, q_out, narrow, alias, "k_out overlaps cos");
  call(q, k, cos, in_buffer, q_out, narrow, alias, "k_out overlaps sin");
}

}  // namespace
