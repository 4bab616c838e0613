// The contract of include/tigon/ops/llama4_rope.hpp, promise by promise, on every backend and in every element type.
#include <tigon/ops/llama4_rope.hpp>

#include "support/rotary_checks.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::heads_view, tigon::in_heads, tigon::matrix_view, tigon::rotary_table;

struct llama4_rotary {
  using options = tigon::llama4_rope_options;
  static constexpr std::string_view name = "llama4_rope";
  // In units of the pair's length; at most ten times the worst that was seen.
  static constexpr by_type bounds{.f32 = 2e-7, .bf16 = 4e-3, .f16 = 5e-4, .f64 = 4e-16};

  /// A table for all sequences, one for each, and one of more positions than there are tokens.
  static constexpr std::size_t variants = 3;
  static options options_of(const rotary_sizes& s) {
    return s.variant == 1 ? options{.freqs = rotary_table::per_sequence} : options{};
  }
  static std::size_t pairs(const rotary_sizes& s) { return s.d / 2; }
  static std::array<std::size_t, 2> pair(const rotary_sizes&, std::size_t j) { return {2 * j, 2 * j + 1}; }

  template <class U>
  struct tables {
    guarded_matrix<U> freqs;
    std::size_t sequence;  // rows from the table of one sequence to that of the next
    TIGON_TEST_NOINLINE tables(const rotary_sizes& s, guard side)
        : freqs(s.variant == 1 ? s.batch * s.seq_len : s.seq_len + (s.variant == 2 ? s.seq_len + 1 : 0), s.d, s.padding,
                side),
          sequence(s.variant == 1 ? s.seq_len : 0) {
      for (std::size_t i = 0; i < freqs.rows(); ++i)
        for (std::size_t j = 0; j < pairs(s); ++j) {
          const auto by = rotary_angle(i, j, pairs(s));
          freqs(i, 2 * j) = from_f64<U>(by.real()), freqs(i, 2 * j + 1) = from_f64<U>(by.imag());
        }
    }
    std::complex<double> by(std::size_t b, std::size_t s, std::size_t j) const {
      return {to_f64(freqs(b * sequence + s, 2 * j)), to_f64(freqs(b * sequence + s, 2 * j + 1))};
    }
    matrix_view<const U> views() const { return freqs.view(); }
  };
  template <class B, class T, class Views>
  static void forward(in_heads<T> q, in_heads<T> k, Views freqs, heads_view<T> q_out, heads_view<T> k_out, options opt,
                      context& ctx) {
    tigon::llama4_rope_forward<B>(q, k, freqs, q_out, k_out, opt, ctx);
  }
  template <class B, class T, class Views>
  static void backward(in_heads<T> q, in_heads<T> k, Views freqs, heads_view<T> q_out, heads_view<T> k_out, options opt,
                       context& ctx) {
    tigon::llama4_rope_backward<B>(q, k, freqs, q_out, k_out, opt, ctx);
  }
};

TIGON_TEST_ROTARY(llama4_rotary, llama4_rope)

/// Two sequences at different positions: the same heads come out turned differently.
TEST(llama4_rope_tables, of_each_sequence_are_its_own) {
  const rotary_sizes s{2, 1, 1, 3, 8, layout::tokens, 0, 1};
  rotary_problem<llama4_rotary, float> p(s);
  for (std::size_t i = 0; i < p.q.count() / 2; ++i) p.q[p.q.count() / 2 + i] = p.q[i];
  p.forward<tigon::default_backend>(p.q_out.view(), p.k_out.view());
  EXPECT_TRUE(p.turned(p.q, p.q_out, 1));
  std::size_t same = 0;
  for (std::size_t i = 0; i < p.q.count() / 2; ++i) same += p.q_out[i] == p.q_out[p.q.count() / 2 + i];
  EXPECT_EQ(same, 0u);
}

/// std::complex may be read as two real numbers.
TEST(llama4_rope_tables, are_complex_numbers) {
  const std::complex<float> table[] = {{0, 1}, {2, 0}, {0.6f, -0.8f}, {0, -1}};  // 2 positions of 2 pairs
  const float q[] = {1, 2, 3, 4, 5, 10, 7, 8};
  float out[8];
  const auto heads = [](auto* p) { return heads_view<std::remove_pointer_t<decltype(p)>>::of_tokens(p, 1, 2, 1, 4); };
  const auto none = heads_view<float>(nullptr, 1, 0, 2, 4, 0, 0, 0);
  tigon::llama4_rope_forward(heads(q), none, matrix_view(reinterpret_cast<const float*>(table), 2, 4), heads(out),
                             none);
  const float wanted[] = {-2, 1, 6, 8, 11, 2, 8, -7};  // i (1 + 2i), 2 (3 + 4i), (0.6 - 0.8i)(5 + 10i), -i (7 + 8i)
  for (std::size_t i = 0; i < 8; ++i) EXPECT_FLOAT_EQ(out[i], wanted[i]) << i;
}

TEST_F(llama4_rope_doors, refuse_wrong_tables) {
  using enum tigon::error_code;
  const auto freqs = p.tables.views();
  call(freqs.rows_from(0, 2), shape, "freqs is 2 x 8; expected 3 x 8");
  call(freqs.cols_from(0, 4), shape, "freqs is 3 x 4; expected 3 x 8");  // real parts alone
  call({freqs.data, 3, 10}, shape, "freqs is 3 x 10; expected 3 x 8");
  call({nullptr, 3, 8}, shape, "freqs is a null pointer");
  call({freqs.data, 3, 8, 7}, stride, "freqs is of row stride 7");
  const tigon::llama4_rope_options each{.freqs = rotary_table::per_sequence};
  guarded_matrix<float> many(7, 8);
  call(q, k, freqs, q_out, k_out, shape, "freqs is 3 x 8; expected 6 x 8", each);
  call(q, k, many.view(), q_out, k_out, shape, "freqs is 7 x 8; expected 6 x 8", each);
}

TEST_F(llama4_rope_doors, refuse_overlapping_tables) {
  using enum tigon::error_code;
  const matrix_view<const float> inside(buffer.data(), 3, 8);
  call(q, k, inside, front, k_out, alias, "q_out overlaps freqs", {});
  call(q, k, inside, q_out, narrow, alias, "k_out overlaps freqs", {});
}

}  // namespace
