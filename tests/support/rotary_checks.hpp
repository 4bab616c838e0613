// What the rotary operators promise alike. A Rotary has `name`, `options`, `variants`, `bounds`, `tables<U>(sizes,
// side)` with `by(b, s, j)`, the factor of pair j, and `views()`, `options_of(sizes)`, `pairs(sizes)`,
// `pair(sizes, j)`, and `forward<B, T>(q, k, views, q_out, k_out, options, ctx)` and `backward` of the same arguments.
#ifndef TIGON_TESTS_SUPPORT_ROTARY_CHECKS_HPP
#define TIGON_TESTS_SUPPORT_ROTARY_CHECKS_HPP

#include <gtest/gtest.h>

#include <complex>
#include <string>

#include "backends.hpp"
#include "complex_step.hpp"
#include "errors.hpp"
#include "guarded_heads.hpp"
#include "problem.hpp"
#include "threads.hpp"
#include "throws.hpp"

namespace tigon::test {

struct rotary_sizes {
  std::size_t batch, heads, kv_heads, seq_len, d;
  layout in = layout::tokens;
  std::size_t padding = 0;
  std::size_t variant = 0;  ///< of options and tables; 0 are the defaults
  friend std::ostream& operator<<(std::ostream& out, const rotary_sizes& s) {
    return out << s.batch << " x " << s.heads << '/' << s.kv_heads << " heads x " << s.seq_len << " x " << s.d
               << (s.in == layout::tokens ? ", of tokens" : ", of heads") << ", padding " << s.padding << ", variant "
               << s.variant;
  }
};

/// cos + i sin of row i and pair j, times a length that is not 1: the transpose is then not the inverse.
inline std::complex<double> rotary_angle(std::size_t i, std::size_t j, std::size_t pairs) {
  const double angle =
      static_cast<double>(i) * std::pow(100.0, -static_cast<double>(j) / static_cast<double>(std::max(pairs, j + 1)));
  return std::polar(1 + 0.25 * static_cast<double>(j % 3), angle);
}

/// Heads as [batch, heads, seq_len, d], turned by their definition in any number type.
template <class Rotary, class N, class Tables>
std::vector<N> turn_by_definition(const std::vector<N>& x, const rotary_sizes& s, const Tables& tables, double sign) {
  std::vector<N> y = x;
  const std::size_t rows = s.d == 0 ? 0 : x.size() / s.d, heads = rows == 0 ? 1 : rows / (s.batch * s.seq_len);
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t j = 0; j < Rotary::pairs(s); ++j) {
      const std::complex<double> by = tables.by(row / s.seq_len / heads, row % s.seq_len, j);
      const auto [first, second] = Rotary::pair(s, j);
      const N u = x[row * s.d + first], v = x[row * s.d + second];
      y[row * s.d + first] = u * by.real() - v * (sign * by.imag());
      y[row * s.d + second] = v * by.real() + u * (sign * by.imag());
    }
  return y;
}

/// Every buffer at a guard page, outputs full of canaries.
template <class Rotary, class T, class U = T>
struct rotary_problem {
  rotary_sizes s;
  typename Rotary::options opt;
  typename Rotary::template tables<U> tables;
  guarded_heads<T> q, k, q_out, k_out;

  TIGON_TEST_NOINLINE explicit rotary_problem(rotary_sizes of, guard side = guard::behind)
      : s(of),
        opt(Rotary::options_of(of)),
        tables(of, side),
        q({s.batch, s.heads, s.seq_len, s.d, s.in, s.padding}, side),
        k({s.batch, s.kv_heads, s.seq_len, s.d, s.in, s.padding}, side),
        q_out({s.batch, s.heads, s.seq_len, s.d, s.in, s.padding}, side),
        k_out({s.batch, s.kv_heads, s.seq_len, s.d, s.in, s.padding}, side) {
    q.assign(normal_values(q.count(), 1)), k.assign(normal_values(k.count(), 2));
  }

  template <class B>
  TIGON_TEST_NOINLINE void forward(heads_view<T> to_q, heads_view<T> to_k, context& ctx = default_context()) {
    Rotary::template forward<B, T>(q, k, tables.views(), to_q, to_k, opt, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(heads_view<T> to_q, heads_view<T> to_k, context& ctx = default_context()) {
    Rotary::template backward<B, T>(q, k, tables.views(), to_q, to_k, opt, ctx);
  }

  /// Each pair within the bound of its length, and what is in no pair as it was.
  TIGON_TEST_NOINLINE testing::AssertionResult turned(const guarded_heads<T>& from, const guarded_heads<T>& to,
                                                      double sign) const {
    const auto x = from.f64(), y = to.f64(), want = turn_by_definition<Rotary>(x, s, tables, sign);
    std::vector<double> length(s.d, 0);
    const std::size_t rows = s.d == 0 ? 0 : x.size() / s.d, heads = rows == 0 ? 1 : rows / (s.batch * s.seq_len);
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t j = 0; j < Rotary::pairs(s); ++j) {
        const auto [first, second] = Rotary::pair(s, j);
        length[first] = length[second] = std::abs(tables.by(row / s.seq_len / heads, row % s.seq_len, j)) *
                                         std::hypot(x[row * s.d + first], x[row * s.d + second]);
      }
      for (std::size_t j = 0; j < s.d; ++j)
        if (!(std::abs(y[row * s.d + j] - want[row * s.d + j]) <= Rotary::bounds.template of<T>() * length[j]))
          return testing::AssertionFailure()
                 << "row " << row << ", column " << j << " is " << y[row * s.d + j] << " and should be "
                 << want[row * s.d + j] << ": error " << (y[row * s.d + j] - want[row * s.d + j]) / length[j];
    }
    return testing::AssertionSuccess();
  }
};

/// Pairs around the lane count; grouped heads, both layouts, every variant, and nothing in every extent.
template <class Rotary, class B, class T>
std::vector<rotary_sizes> every_rotary_size() {
  constexpr std::size_t n = lanes<B, T>;
  std::vector<rotary_sizes> out;
  for (std::size_t variant = 0; variant < Rotary::variants; ++variant) {
    for (const auto& [batch, heads, kv_heads, seq_len, d] : std::initializer_list<std::array<std::size_t, 5>>{
             {0, 2, 1, 3, 8}, {2, 0, 1, 3, 8}, {2, 2, 0, 3, 8}, {2, 0, 0, 3, 8}, {2, 2, 1, 0, 8}, {2, 2, 1, 3, 0}})
      out.push_back({batch, heads, kv_heads, seq_len, d, layout::tokens, 0, variant});
    for (const std::size_t half :
         {std::size_t{1}, std::max<std::size_t>(n, 2) - 1, n, n + 1, 2 * n + 3, 4 * n, std::size_t{64}}) {
      out.push_back({1, 1, 1, 1, 2 * half, layout::tokens, 0, variant});
      out.push_back({2, 4, 2, 3, 2 * half, layout::tokens, 3, variant});
      out.push_back({2, 1, 3, 5, 2 * half, layout::heads, 1, variant});
    }
  }
  return out;
}

template <class Rotary, class B, class T>
void check_rotary_errors() {
  for (const rotary_sizes& s : every_rotary_size<Rotary, B, T>())
    for (const guard side : both_guards) {
      SCOPED_TRACE(testing::Message() << s << ", " << side);
      rotary_problem<Rotary, T> p(s, side);
      const auto inputs = bits_of(p.q, p.k);
      p.template forward<B>(p.q_out.view(), p.k_out.view());
      EXPECT_TRUE(p.turned(p.q, p.q_out, 1));
      EXPECT_TRUE(p.turned(p.k, p.k_out, 1));
      EXPECT_TRUE(p.q_out.padding_intact() && p.k_out.padding_intact());
      p.q_out.clear(), p.k_out.clear();
      p.template backward<B>(p.q_out.view(), p.k_out.view());
      EXPECT_TRUE(p.turned(p.q, p.q_out, -1));
      EXPECT_TRUE(p.turned(p.k, p.k_out, -1));
      EXPECT_TRUE(p.q_out.padding_intact() && p.k_out.padding_intact());
      EXPECT_EQ(bits_of(p.q, p.k), inputs);
    }
}

template <class Rotary, class B, class T>
void check_rotary_in_place() {
  for (std::size_t variant = 0; variant < Rotary::variants; ++variant)
    for (const layout in : {layout::tokens, layout::heads})
      for (const std::size_t d : {2 * lanes<B, T> + 2, 8 * lanes<B, T> + 6}) {
        const rotary_sizes s{2, 4, 2, 5, d, in, 2, variant};
        rotary_problem<Rotary, T> apart(s), p(s), back(s);
        apart.template forward<B>(apart.q_out.view(), apart.k_out.view());
        p.template forward<B>(p.q.view(), p.k.view());
        EXPECT_EQ(bits_of(p.q, p.k), bits_of(apart.q_out, apart.k_out)) << s;
        apart.template backward<B>(apart.q_out.view(), apart.k_out.view());
        back.template backward<B>(back.q.view(), back.k.view());
        EXPECT_EQ(bits_of(back.q, back.k), bits_of(apart.q_out, apart.k_out)) << s;
      }
}

/// As a projection to q, k and v leaves them: q and k are columns of one buffer, [tokens, heads + kv_heads, d], or take
/// turns there, [tokens, heads, 3, d].
template <class Rotary, class B, class T>
void check_rotary_columns() {
  for (const bool in_turns : {false, true}) {
    const rotary_sizes s{2, 4, in_turns ? std::size_t{4} : 2, 3, 2 * lanes<B, T> + 6};
    rotary_problem<Rotary, T> p(s);
    const std::size_t head = (in_turns ? 3 : 1) * s.d, width = (in_turns ? 12 : 6) * s.d;  // width: of a token
    guarded<T> all(6 * width);
    const heads_view<T> q(all.data(), 2, 4, 3, s.d, 3 * width, head, width),
        k(all.data() + (in_turns ? 1 : 4) * s.d, 2, s.kv_heads, 3, s.d, 3 * width, head, width);
    const auto at = [&](heads_view<T> v, std::size_t i) {
      return v.at(i / s.d / 3 / v.heads, i / s.d / 3 % v.heads, i / s.d % 3) + i % s.d;
    };
    const auto in_place = [&](auto rotate) {
      for (std::size_t i = 0; i < p.q.count(); ++i) *at(q, i) = p.q[i];
      for (std::size_t i = 0; i < p.k.count(); ++i) *at(k, i) = p.k[i];
      rotate(q, k, p.tables.views(), q, k, p.opt, default_context());
      for (std::size_t i = 0; i < p.q.count(); ++i) ASSERT_EQ(to_f64(*at(q, i)), to_f64(p.q_out[i]));
      for (std::size_t i = 0; i < p.k.count(); ++i) ASSERT_EQ(to_f64(*at(k, i)), to_f64(p.k_out[i]));
    };
    p.template forward<B>(p.q_out.view(), p.k_out.view());
    in_place([](auto... args) { Rotary::template forward<B, T>(args...); });
    p.template backward<B>(p.q_out.view(), p.k_out.view());
    in_place([](auto... args) { Rotary::template backward<B, T>(args...); });
    for (std::size_t i = 0; i < (in_turns ? all.size() : 0); ++i)  // v, which nobody was given
      if (i / s.d % 3 == 2) {
        for (std::size_t byte = 0; byte < sizeof(T); ++byte)
          ASSERT_EQ(all.bytes()[i * sizeof(T) + byte], std::byte{canary<T>});
      }
  }
}

template <class Rotary, class B, class T>
void check_rotary_nan() {
  constexpr double bad[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()};
  for (std::size_t k = 0; k < 3 * Rotary::variants; ++k)
    for (const double value : bad) {
      const rotary_sizes s{1, 2, 1, 3, 4 * lanes<B, T> + 6, layout::tokens, 0, k / 3};
      const std::size_t j = std::array{std::size_t{0}, lanes<B, T>, Rotary::pairs(s) - 1}[k % 3];
      rotary_problem<Rotary, T> p(s);
      const auto pair = Rotary::pair(s, j);
      p.q[4 * s.d + pair[0]] = from_f64<T>(value);  // second head, second token
      p.template forward<B>(p.q_out.view(), p.k_out.view());
      for (std::size_t i = 0; i < p.q.count(); ++i)
        ASSERT_EQ(std::isfinite(to_f64(p.q_out[i])), i != 4 * s.d + pair[0] && i != 4 * s.d + pair[1]) << i;
      EXPECT_TRUE(p.turned(p.k, p.k_out, 1));
    }
}

template <class Rotary, class B, class T>
void check_rotary_threads() {
  for (const std::size_t variant : {std::size_t{0}, Rotary::variants - 1}) {
    rotary_problem<Rotary, T> p({2, 8, 4, 100, 66, layout::tokens, 0, variant});  // two and a half tasks
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
}

/// Backward against the derivative of the definition, variant by variant.
template <class Rotary, class B>
void check_rotary_gradients() {
  for (std::size_t variant = 0; variant < Rotary::variants; ++variant) {
    rotary_problem<Rotary, double> p({2, 3, 1, 4, 10, layout::tokens, 0, variant});
    p.template backward<B>(p.q_out.view(), p.k_out.view());  // of gradients that stand in q and k
    const auto derivative = [&](const std::vector<double>& g) {
      const auto loss = [&](const auto& x) {
        const auto y = turn_by_definition<Rotary>(x, p.s, p.tables, 1);
        auto sum = y[0] * 0.0;
        for (std::size_t i = 0; i < y.size(); ++i) sum += g[i] * y[i];
        return sum;
      };
      return complex_step(loss, normal_values(g.size(), 9), probes(g.size(), g.size()));
    };
    EXPECT_TRUE(close(p.q_out.f64(), derivative(p.q.f64()), 1e-15)) << "variant " << variant;
    EXPECT_TRUE(close(p.k_out.f64(), derivative(p.k.f64()), 1e-15)) << "variant " << variant;
  }
}

/// Tables of another type are widened, never the heads narrowed.
template <class Rotary>
void check_rotary_mixed() {
  const auto check = []<class T, class U>(T, U) {
    rotary_problem<Rotary, T, U> p({1, 2, 1, 5, 70});
    p.template forward<default_backend>(p.q_out.view(), p.k_out.view());
    EXPECT_TRUE(p.turned(p.q, p.q_out, 1));
    p.template backward<default_backend>(p.q_out.view(), p.k_out.view());
    EXPECT_TRUE(p.turned(p.k, p.k_out, -1));
  };
  check(bfloat16(), float());
  check(float(), bfloat16());
}

/// The checks of heads, which is the same for every backend: refused before the first write.
template <class Rotary>
class rotary_doors : public testing::Test {
 protected:
  using view = heads_view<float>;
  using table = matrix_view<float>;
  using views = decltype(std::declval<typename Rotary::template tables<float>>().views());

  void call(in_heads<float> q, in_heads<float> k, const views& t, view q_out, view k_out, error_code code,
            const std::string& part, typename Rotary::options opt) {
    const auto either = [&](auto f, const char* direction) {
      EXPECT_TRUE(refuses(f, code, std::string(Rotary::name) + direction + part, p.q, p.k, p.q_out, p.k_out, buffer));
    };
    either([&] { Rotary::template forward<default_backend, float>(q, k, t, q_out, k_out, opt, default_context()); },
           "_forward: ");
    either([&] { Rotary::template backward<default_backend, float>(q, k, t, q_out, k_out, opt, default_context()); },
           "_backward: ");
  }
  void call(view q, view k, view q_out, view k_out, error_code code, const std::string& part) {
    call(q, k, p.tables.views(), q_out, k_out, code, part, p.opt);
  }
  void call(const views& t, error_code code, const std::string& part) {
    call(q, k, t, q_out, k_out, code, part, p.opt);
  }
  static view with(view v, std::size_t view::*field, std::size_t value) {
    v.*field = value;
    return v;
  }

  static view with_data(view v, float* data) {
    v.data = data;
    return v;
  }

  void refuse_wrong_heads() {
    using enum error_code;
    const auto odd = [](view v) { return with(v, &view::head_dim, 7); };
    call(odd(q), odd(k), odd(q_out), odd(k_out), shape, "head_dim of q is odd; expected an even number");
    call(q, with(k, &view::head_dim, 6), q_out, k_out, shape, "k is 2 sequences x 1 heads x 3 tokens x 6; expected");
    call(q, with(k, &view::seq_len, 2), q_out, k_out, shape, "k is 2 sequences x 1 heads x 2 tokens x 8; expected");
    call(q, with(k, &view::batch, 1), q_out, k_out, shape, "k is 1 sequences x 1 heads x 3 tokens x 8; expected");
    call(q, k, with(q_out, &view::heads, 1), k_out, shape, "q_out is 2 sequences x 1 heads");
    call(q, k, q_out, with(k_out, &view::heads, 2), shape, "k_out is 2 sequences x 2 heads");
    view no_memory = q;
    no_memory.data = nullptr;
    call(no_memory, k, q_out, k_out, shape, "q is a null pointer");
    call(q, k, no_memory, k_out, shape, "q_out is a null pointer");
    for (const auto stride_of : {&view::batch_stride, &view::head_stride, &view::seq_stride}) {
      call(with(q, stride_of, 7), k, q_out, k_out, stride, "q is of a stride of 7; expected");
      call(q, k, with(q_out, stride_of, 7), k_out, stride, "q_out is of a stride of 7; expected");
    }
  }
  void refuse_overlapping_heads() {
    using enum error_code;
    call(front, k, shifted, k_out, alias, "q_out overlaps q; expected the same buffer or no common memory");
    call(q, narrow, q_out, narrow_shifted, alias, "k_out overlaps k; expected the same buffer or no common memory");
    call(q, narrow, front, k_out, alias, "q_out overlaps k");
    call(q, k, front, narrow, alias, "q_out overlaps k_out");
    call(front, k, q_out, narrow, alias, "k_out overlaps q");
    // The same memory with the axes exchanged: batch x heads x tokens and heads x batch x tokens.
    const view by_batch(buffer.data(), 2, 2, 3, 8, 48, 24, 8), by_head(buffer.data(), 2, 2, 3, 8, 24, 48, 8);
    call(by_batch, k, by_head, k_out, alias, "q_out is q with other strides; expected those of q");
    call(q, by_batch, q_out, by_head, alias, "k_out is k with other strides; expected those of k");
    // Heads of q 20 apart, with room for 12 elements behind each: the head of k fits in there, or is one too far.
    const view apart(buffer.data(), 2, 2, 3, 8, 120, 20, 40), beside(buffer.data() + 12, 2, 1, 3, 8, 120, 20, 40);
    call(apart, with_data(beside, beside.data + 1), apart, with_data(beside, beside.data + 1), alias,
         "k_out overlaps q");  // and q_out overlaps k
    call(apart, with_data(beside, beside.data - 5), apart, with_data(beside, beside.data - 5), alias,
         "k_out overlaps q");
    EXPECT_NO_THROW((Rotary::template forward<default_backend, float>(apart, beside, p.tables.views(), apart, beside,
                                                                      p.opt, default_context())));
  }

  rotary_problem<Rotary, float> p{{2, 2, 1, 3, 8}};
  const view q = p.q.view(), k = p.k.view(), q_out = p.q_out.view(), k_out = p.k_out.view();
  guarded<float> buffer = guarded<float>(256);
  const view front = view::of_tokens(buffer.data(), 2, 3, 2, 8),
             shifted = view::of_tokens(buffer.data() + 16, 2, 3, 2, 8);
  const view narrow = view::of_tokens(buffer.data(), 2, 3, 1, 8),
             narrow_shifted = view::of_tokens(buffer.data() + 8, 2, 3, 1, 8);
  const table in_buffer{buffer.data(), 3, 4};
};

/// The tests that a rotary operator's file begins with.
#define TIGON_TEST_ROTARY(rotary, suite)                                                           \
  template <class On>                                                                              \
  class suite : public testing::Test {};                                                           \
  TYPED_TEST_SUITE(suite, ::tigon::test::every_pair, ::tigon::test::names);                        \
  TIGON_TEST_ROTARY_CHECK(rotary, suite, keeps_its_error_and_the_padding, check_rotary_errors)     \
  TIGON_TEST_ROTARY_CHECK(rotary, suite, works_in_place, check_rotary_in_place)                    \
  TIGON_TEST_ROTARY_CHECK(rotary, suite, q_and_k_are_columns_of_one_buffer, check_rotary_columns)  \
  TIGON_TEST_ROTARY_CHECK(rotary, suite, nan_stays_in_its_pair, check_rotary_nan)                  \
  TIGON_TEST_ROTARY_CHECK(rotary, suite, bits_do_not_depend_on_threads, check_rotary_threads)      \
  template <class On>                                                                              \
  class suite##_gradient : public testing::Test {};                                                \
  TYPED_TEST_SUITE(suite##_gradient, ::tigon::test::pairs_of<double>, ::tigon::test::names);       \
  TYPED_TEST(suite##_gradient, is_that_of_a_complex_step) {                                        \
    ::tigon::test::check_rotary_gradients<rotary, typename TypeParam::backend>();                  \
  }                                                                                                \
  TEST(suite##_mixed, tables_keep_their_own_type) { ::tigon::test::check_rotary_mixed<rotary>(); } \
  using suite##_doors = ::tigon::test::rotary_doors<rotary>;                                       \
  TEST_F(suite##_doors, refuse_wrong_heads) { refuse_wrong_heads(); }                              \
  TEST_F(suite##_doors, refuse_overlapping_heads) { refuse_overlapping_heads(); }
#define TIGON_TEST_ROTARY_CHECK(rotary, suite, name, check) \
  TYPED_TEST(suite, name) { ::tigon::test::check<rotary, typename TypeParam::backend, typename TypeParam::element>(); }

}  // namespace tigon::test

#endif  // TIGON_TESTS_SUPPORT_ROTARY_CHECKS_HPP
