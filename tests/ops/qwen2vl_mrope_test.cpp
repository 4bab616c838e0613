// The contract of include/tigon/ops/qwen2vl_mrope.hpp, promise by promise, on every backend and in every element type.
#include <tigon/ops/qwen2vl_mrope.hpp>

#include "support/rotary_checks.hpp"
#include "support/scratch.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::context, tigon::heads_view, tigon::in_heads, tigon::matrix_view;

struct mrope_rotary {
  using options = tigon::qwen2vl_mrope_options;
  static constexpr std::string_view name = "qwen2vl_mrope";
  // In units of the pair's length; at most ten times the worst that was seen.
  static constexpr by_type bounds{.f32 = 2e-7, .bf16 = 4e-3, .f16 = 5e-4, .f64 = 4e-16};

  /// Sections as the models have them (16, 24 and 24 of 64), time alone, and none of it.
  static constexpr std::size_t variants = 3;
  static options options_of(const rotary_sizes& s) {
    const std::size_t half = s.d / 2, part = half * 3 / 8;
    if (s.variant == 0) return {.sections = {half - 2 * part, part, part}};
    return s.variant == 1 ? options{.sections = {half, 0, 0}} : options{.sections = {0, half - part, part}};
  }
  static std::size_t pairs(const rotary_sizes& s) { return s.d / 2; }
  static std::array<std::size_t, 2> pair(const rotary_sizes& s, std::size_t j) { return {j, j + s.d / 2}; }

  /// Only what has to be read is there: the rest of each table is NaN.
  template <class U>
  struct tables {
    guarded_matrix<U> cos, sin;
    std::vector<std::size_t> of_pair;
    std::size_t tokens, seq_len;
    TIGON_TEST_NOINLINE tables(const rotary_sizes& s, guard side)
        : cos(3 * s.batch * s.seq_len, pairs(s), s.padding, side),
          sin(cos.rows(), pairs(s), s.padding, side),
          tokens(s.batch * s.seq_len),
          seq_len(s.seq_len) {
      const auto sections = options_of(s).sections;
      for (std::size_t t = 0; t < 3; ++t) of_pair.insert(of_pair.end(), sections[t], t);
      for (std::size_t i = 0; i < cos.rows(); ++i)
        for (std::size_t j = 0; j < pairs(s); ++j) {
          if (of_pair[j] != i / tokens) continue;
          const auto by = rotary_angle(i, j, pairs(s));
          cos(i, j) = from_f64<U>(by.real()), sin(i, j) = from_f64<U>(by.imag());
        }
    }
    std::complex<double> by(std::size_t b, std::size_t s, std::size_t j) const {
      const std::size_t row = of_pair[j] * tokens + b * seq_len + s;
      return {to_f64(cos(row, j)), to_f64(sin(row, j))};
    }
    std::array<matrix_view<const U>, 2> views() const { return {cos.view(), sin.view()}; }
  };
  template <class B, class T, class Views>
  static void forward(in_heads<T> q, in_heads<T> k, const Views& t, heads_view<T> q_out, heads_view<T> k_out,
                      options opt, context& ctx) {
    tigon::qwen2vl_mrope_forward<B>(q, k, t[0], t[1], q_out, k_out, opt, ctx);
  }
  template <class B, class T, class Views>
  static void backward(in_heads<T> q, in_heads<T> k, const Views& t, heads_view<T> q_out, heads_view<T> k_out,
                       options opt, context& ctx) {
    tigon::qwen2vl_mrope_backward<B>(q, k, t[0], t[1], q_out, k_out, opt, ctx);
  }
};

TIGON_TEST_ROTARY(mrope_rotary, qwen2vl_mrope)

TEST_F(qwen2vl_mrope_doors, refuse_wrong_sections) {
  using enum tigon::error_code;
  const auto t = p.tables.views();
  const std::size_t below_zero = ~std::size_t{0};
  for (const std::array<std::size_t, 3>& sections : {std::array<std::size_t, 3>{1, 1, 1},  // the rest is not width
                                                     {1, 2, 2},
                                                     {0, 0, 0},
                                                     {5, 0, 0},
                                                     {2, 3, below_zero},
                                                     {below_zero, 4, 1},
                                                     {1, below_zero, 4}})
    call(q, k, t, q_out, k_out, argument, "sum of the sections is not head_dim / 2; expected head_dim / 2",
         {.sections = sections});
}

TEST_F(qwen2vl_mrope_doors, refuse_wrong_tables) {
  using enum tigon::error_code;
  const auto [cos, sin] = p.tables.views();
  call({cos.cols_from(0, 3), sin}, shape, "cos is narrower than head_dim / 2; expected at least head_dim / 2 columns");
  call({cos.rows_from(0, 9), sin}, shape, "cos is 9 x 4; expected 18 x 4");  // one table for both sequences
  call({cos, sin.rows_from(0, 6)}, shape, "sin is 6 x 4; expected 18 x 4");
  call({cos, sin.cols_from(0, 3)}, shape, "sin is 18 x 3; expected 18 x 4");
  call({cos, {nullptr, 18, 4}}, shape, "sin is a null pointer");
  call({cos, {sin.data, 18, 4, 3}}, stride, "sin is of row stride 3");
}

TEST_F(qwen2vl_mrope_doors, refuse_overlapping_tables) {
  using enum tigon::error_code;
  const auto t = p.tables.views();
  const matrix_view<const float> inside(buffer.data(), 18, 4);
  call(q, k, {inside, t[1]}, front, k_out, alias, "q_out overlaps cos", p.opt);
  call(q, k, {t[0], inside}, front, k_out, alias, "q_out overlaps sin", p.opt);
  call(q, k, {inside, t[1]}, q_out, narrow, alias, "k_out overlaps cos", p.opt);
  call(q, k, {t[0], inside}, q_out, narrow, alias, "k_out overlaps sin", p.opt);
}

TEST_F(qwen2vl_mrope_doors, need_the_workspace_that_they_name) {
  for (const std::size_t threads : {1u, 3u})
    for (const bool forward : {true, false})
      with_workspace_of(
          64,
          [&](context& of_size) {
            const std::size_t bytes = tigon::qwen2vl_mrope_workspace<tigon::default_backend, float>(3, 8, of_size);
            const auto call = [&](context& ctx) {
              forward ? p.forward<tigon::default_backend>(q_out, k_out, ctx)
                      : p.backward<tigon::default_backend>(q_out, k_out, ctx);
            };
            p.q_out.clear(), p.k_out.clear();
            EXPECT_TIGON_ERROR(
                with_workspace_of(bytes - 1, call, threads), workspace,
                forward ? "qwen2vl_mrope_forward: workspace is of" : "qwen2vl_mrope_backward: workspace is of", p.q_out,
                p.k_out);
            with_workspace_of(bytes, call, threads);
            EXPECT_TRUE(p.turned(p.q, p.q_out, forward ? 1 : -1));
          },
          threads);
  // Without heads nothing is assembled.
  rotary_problem<mrope_rotary, float> none({2, 0, 0, 3, 8});
  with_workspace_of(
      0, [&](context& ctx) { none.forward<tigon::default_backend>(none.q_out.view(), none.k_out.view(), ctx); });
}

}  // namespace
