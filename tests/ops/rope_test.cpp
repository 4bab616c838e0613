// The contract of include/tigon/ops/rope.hpp, promise by promise, on every backend and in every element type.
#include <tigon/ops/rope.hpp>

#include "support/rotary_checks.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::heads_view, tigon::in_heads, tigon::matrix_view;

struct rope_rotary {
  using options = tigon::rope_options;
  static constexpr std::string_view name = "rope";
  // In units of the pair's length; at most ten times the worst that was seen.
  static constexpr by_type bounds{.f32 = 2e-7, .bf16 = 4e-3, .f16 = 5e-4, .f64 = 4e-16};

  /// A table for all sequences, one for each; half of every head turned, the first columns or the last; neighbours
  /// paired, in whole heads, with a table for each sequence, and in the last columns.
  static constexpr std::size_t variants = 6;
  static bool partial(const rotary_sizes& s) { return s.variant == 2 || s.variant == 3 || s.variant == 5; }
  static bool last(const rotary_sizes& s) { return s.variant == 3 || s.variant == 5; }
  static bool neighbours(const rotary_sizes& s) { return s.variant >= 4; }
  static options options_of(const rotary_sizes& s) {
    return {.rotary_dim = partial(s) ? s.d / 4 * 2 : tigon::whole_head,
            .columns = last(s) ? tigon::rotary_columns::last : tigon::rotary_columns::first,
            .pairs = neighbours(s) ? tigon::rotary_pairs::neighbours : tigon::rotary_pairs::halves};
  }
  static std::size_t pairs(const rotary_sizes& s) { return partial(s) ? s.d / 4 : s.d / 2; }
  static std::array<std::size_t, 2> pair(const rotary_sizes& s, std::size_t j) {
    const std::size_t first = last(s) ? s.d - 2 * pairs(s) : 0;
    if (neighbours(s)) return {first + 2 * j, first + 2 * j + 1};
    return {first + j, first + j + pairs(s)};
  }

  /// No wider than what is read.
  template <class U>
  struct tables {
    guarded_matrix<U> cos, sin;
    std::size_t seq_len;
    TIGON_TEST_NOINLINE tables(const rotary_sizes& s, guard side)
        : cos((s.variant % 3 == 1 ? s.batch : 1) * s.seq_len, pairs(s), s.padding, side),
          sin(cos.rows(), pairs(s), s.padding, side),
          seq_len(s.seq_len) {
      for (std::size_t i = 0; i < cos.rows(); ++i)
        for (std::size_t j = 0; j < pairs(s); ++j) {
          const auto by = rotary_angle(i, j, pairs(s));
          cos(i, j) = from_f64<U>(by.real()), sin(i, j) = from_f64<U>(by.imag());
        }
    }
    std::complex<double> by(std::size_t b, std::size_t s, std::size_t j) const {
      const std::size_t row = cos.rows() == seq_len ? s : b * seq_len + s;
      return {to_f64(cos(row, j)), to_f64(sin(row, j))};
    }
    std::array<matrix_view<const U>, 2> views() const { return {cos.view(), sin.view()}; }
  };
  template <class B, class T, class Views>
  static void forward(in_heads<T> q, in_heads<T> k, const Views& t, heads_view<T> q_out, heads_view<T> k_out,
                      options opt, context& ctx) {
    tigon::rope_forward<B>(q, k, t[0], t[1], q_out, k_out, opt, ctx);
  }
  template <class B, class T, class Views>
  static void backward(in_heads<T> q, in_heads<T> k, const Views& t, heads_view<T> q_out, heads_view<T> k_out,
                       options opt, context& ctx) {
    tigon::rope_backward<B>(q, k, t[0], t[1], q_out, k_out, opt, ctx);
  }
};

TIGON_TEST_ROTARY(rope_rotary, rope)

TYPED_TEST(rope, q_alone_is_what_it_is_beside_k) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  rotary_problem<rope_rotary, T> p({2, 3, 1, 4, 2 * lanes<B, T> + 6, layout::tokens, 1, 2});
  guarded_heads<T> alone({2, 3, 4, p.s.d, layout::tokens, 1});
  const auto t = p.tables.views();
  p.template forward<B>(p.q_out.view(), p.k_out.view());
  tigon::rope_forward<B>(p.q, t[0], t[1], alone.view(), p.opt);
  EXPECT_EQ(bits_of(alone), bits_of(p.q_out));
  p.template backward<B>(p.q_out.view(), p.k_out.view());
  tigon::rope_backward<B>(p.q, t[0], t[1], alone.view(), p.opt);
  EXPECT_EQ(bits_of(alone), bits_of(p.q_out));
}

/// What is not turned may hold anything, bit for bit, and in place it is not even read.
void check_rest(std::size_t variant, std::size_t begin) {
  const rotary_sizes s{1, 2, 1, 3, 20, layout::heads, 0, variant};
  const auto is_rest = [=](std::size_t i) { return i % 20 >= begin && i % 20 < begin + 10; };
  rotary_problem<rope_rotary, float> p(s);
  constexpr float odd_ones[] = {std::numeric_limits<float>::denorm_min(), -0.0f, std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN()};
  for (std::size_t i = 0; i < p.q.count(); ++i)
    if (is_rest(i)) p.q[i] = odd_ones[i % 4];
  p.forward<tigon::default_backend>(p.q_out.view(), p.k_out.view());
  for (std::size_t i = 0; i < p.q.count(); ++i)
    if (is_rest(i)) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(p.q_out[i]), std::bit_cast<std::uint32_t>(p.q[i])) << i;
    }
  const auto q_out = bits_of(p.q_out);
  p.forward<tigon::default_backend>(p.q.view(), p.k.view());
  EXPECT_EQ(bits_of(p.q), q_out);
}
TEST(rope_partial, copies_or_leaves_the_rest) { check_rest(2, 10), check_rest(3, 0), check_rest(5, 0); }

/// A conversion to f32 and back would change such a number.
TEST(rope_partial, leaves_a_signalling_nan_in_its_place) {
  rotary_problem<rope_rotary, tigon::float16> p({1, 2, 1, 3, 20, layout::heads, 0, 2});
  const auto signalling = std::bit_cast<tigon::float16>(std::uint16_t{0x7d01});
  for (std::size_t i = 10; i < p.q.count(); i += 20) p.q[i] = signalling;
  p.forward<tigon::default_backend>(p.q.view(), p.k.view());
  for (std::size_t i = 10; i < p.q.count(); i += 20)
    ASSERT_EQ(std::bit_cast<std::uint16_t>(p.q[i]), std::bit_cast<std::uint16_t>(signalling)) << i;
}

/// Pairs of neighbours are halves of a head whose columns are in another order; also in heads of 5 MiB, whose rotation
/// is stored past the caches.
TEST(rope_pairs, of_neighbours_are_halves_in_another_order) {
  for (const rotary_sizes s : {rotary_sizes{2, 3, 2, 4, 38}, rotary_sizes{1, 8, 1, 1300, 128}}) {
    rotary_problem<rope_rotary, float> p(s), halves(s);
    p.opt.pairs = tigon::rotary_pairs::neighbours;
    const auto column = [&](std::size_t i) { return i / s.d * s.d + (i % s.d % (s.d / 2)) * 2 + i % s.d / (s.d / 2); };
    for (std::size_t i = 0; i < p.q.count(); ++i) halves.q[i] = p.q[column(i)];
    for (std::size_t i = 0; i < p.k.count(); ++i) halves.k[i] = p.k[column(i)];
    const auto same = [&] {
      for (std::size_t i = 0; i < p.q.count(); ++i) ASSERT_EQ(halves.q_out[i], p.q_out[column(i)]) << i;
      for (std::size_t i = 0; i < p.k.count(); ++i) ASSERT_EQ(halves.k_out[i], p.k_out[column(i)]) << i;
    };
    p.forward<tigon::default_backend>(p.q_out.view(), p.k_out.view());
    halves.forward<tigon::default_backend>(halves.q_out.view(), halves.k_out.view());
    same();
    p.backward<tigon::default_backend>(p.q_out.view(), p.k_out.view());
    halves.backward<tigon::default_backend>(halves.q_out.view(), halves.k_out.view());
    same();
  }
}

TEST(rope_partial, of_nothing_and_of_everything) {
  rotary_problem<rope_rotary, float> p({1, 2, 1, 3, 20});
  const auto t = p.tables.views();
  tigon::rope_forward(p.q, p.k, t[0].cols_from(0, 0), t[1].cols_from(0, 0), p.q_out.view(), p.k_out.view(),
                      {.rotary_dim = 0});
  EXPECT_EQ(bits_of(p.q_out, p.k_out), bits_of(p.q, p.k));
  p.forward<tigon::default_backend>(p.q_out.view(), p.k_out.view());
  const auto whole = bits_of(p.q_out, p.k_out);
  p.q_out.clear(), p.k_out.clear(), p.opt.rotary_dim = 20;
  p.forward<tigon::default_backend>(p.q_out.view(), p.k_out.view());
  EXPECT_EQ(bits_of(p.q_out, p.k_out), whole);
}

TEST_F(rope_doors, refuse_wrong_tables) {
  using enum tigon::error_code;
  const auto [cos, sin] = p.tables.views();
  call({cos.cols_from(0, 3), sin}, shape, "cos is narrower than head_dim / 2; expected at least head_dim / 2 columns");
  call({cos.rows_from(0, 2), sin}, shape, "cos is 2 x 4; expected 3 x 4");
  call({cos, sin.rows_from(0, 2)}, shape, "sin is 2 x 4; expected 3 x 4");
  call({cos, sin.cols_from(0, 3)}, shape, "sin is 3 x 3; expected 3 x 4");
  call({cos, {nullptr, 3, 4}}, shape, "sin is a null pointer");
  call({cos, {sin.data, 3, 4, 3}}, stride, "sin is of row stride 3");
  // Neither one table nor one for each of two sequences.
  guarded_matrix<float> three(9, 4);
  call({three.view(), three.view()}, shape, "cos is 9 x 4; expected 3 x 4");
}

TEST_F(rope_doors, refuse_a_wrong_rotary_dim) {
  using enum tigon::error_code;
  const auto t = p.tables.views();
  call(q, k, t, q_out, k_out, shape, "rotary_dim is odd; expected an even number", {.rotary_dim = 3});
  call(q, k, t, q_out, k_out, argument, "rotary_dim is above head_dim; expected at most head_dim", {.rotary_dim = 10});
  call(q, k, {t[0].cols_from(0, 2), t[1]}, q_out, k_out, shape,
       "cos is narrower than rotary_dim / 2; expected at least rotary_dim / 2 columns", {.rotary_dim = 6});
}

TEST_F(rope_doors, refuse_overlapping_tables) {
  using enum tigon::error_code;
  const auto t = p.tables.views();
  const matrix_view<const float> inside(buffer.data(), 3, 4);
  call(q, k, {inside, t[1]}, front, k_out, alias, "q_out overlaps cos", {});
  call(q, k, {t[0], inside}, front, k_out, alias, "q_out overlaps sin", {});
  call(q, k, {inside, t[1]}, q_out, narrow, alias, "k_out overlaps cos", {});
  call(q, k, {t[0], inside}, q_out, narrow, alias, "k_out overlaps sin", {});
}

TEST_F(rope_doors, refuse_a_wrong_q_alone) {
  const auto t = p.tables.views();
  EXPECT_TIGON_ERROR(tigon::rope_forward(q, t[0], t[1], with(q_out, &view::heads, 1)), shape,
                     "rope_forward: q_out is 2 sequences x 1 heads", p.q_out);
  EXPECT_TIGON_ERROR(tigon::rope_backward(front, t[0], t[1], shifted), alias, "rope_backward: q_out overlaps q",
                     buffer);
}

}  // namespace
