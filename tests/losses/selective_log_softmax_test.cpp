// The contract of include/tigon/losses/selective_log_softmax.hpp, promise by promise.
#include <gtest/gtest.h>

#include <tigon/losses/selective_log_softmax.hpp>

#include "support/backends.hpp"
#include "support/central_difference.hpp"
#include "support/errors.hpp"
#include "support/guarded.hpp"
#include "support/policy_loss.hpp"
#include "support/problem.hpp"
#include "support/scratch.hpp"
#include "support/threads.hpp"
#include "support/throws.hpp"

#include "support/kernels.hpp"

namespace {

using namespace tigon::test;
using tigon::absent, tigon::accumulator_t, tigon::bfloat16, tigon::context, tigon::lse_parts, tigon::matrix_view;
using options = tigon::selective_log_softmax_options;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

// In units of |reference| + its root mean square; at most ten times the worst that was seen.
constexpr by_type logp_bound{.f32 = 4e-7, .bf16 = 4e-7, .f16 = 4e-7, .f64 = 1e-15};
constexpr by_type gradient_bound{.f32 = 1e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-15};

/// batch * len tokens, and with a gap a position len in each sequence; the second token is masked where there are
/// three.
template <class T, class I = std::int64_t>
struct problem {
  using A = accumulator_t<T>;
  std::size_t batch, len, stride;
  guarded_matrix<T> logits, dlogits;
  guarded_matrix<I> ids;
  guarded_matrix<std::uint8_t> mask;
  guarded_matrix<A> logp, dlogp;
  guarded<lse_parts<A>> saved;
  options opt{.temperature = 0.9};

  TIGON_TEST_NOINLINE problem(std::size_t b, std::size_t l, std::size_t vocab, bool gap, std::size_t padding = 0,
                              guard side = guard::behind)
      : batch(b),
        len(l),
        stride(gap ? l + 1 : l),
        logits(random_matrix<T>({b * stride, vocab, padding}, 1, side, {.deviation = 2})),
        dlogits(b * stride, vocab, padding, side),
        ids(b, l, 2, side),
        mask(b, l, 1, side),
        logp(b, l, 3, side),
        dlogp(random_matrix<A>({b, l, 1}, 2, side)),
        saved(b * stride, side) {
    for (std::size_t i = 0; i < b; ++i)
      for (std::size_t t = 0; t < l; ++t)
        ids(i, t) = static_cast<I>((7 * i + 3 * t + 1) % vocab), mask(i, t) = b * l < 3 || i * l + t != 1;
  }
  template <class B>
  TIGON_TEST_NOINLINE void forward(context& ctx = tigon::default_context()) {
    tigon::selective_log_softmax_forward<B>(logits.view(), ids.view(), logp.view(), opt, mask.view(), saved, ctx);
  }
  template <class B>
  TIGON_TEST_NOINLINE void backward(matrix_view<T> to, context& ctx = tigon::default_context()) {
    tigon::selective_log_softmax_backward<B>(logits, ids.view(), saved, dlogp.view(), to, opt, mask.view(), ctx);
  }
  struct reference {
    std::vector<double> logp, dlogits;
  };
  TIGON_TEST_NOINLINE reference wanted() const {
    reference out;
    const auto z = logits.f64();
    const std::size_t vocab = logits.cols();
    out.dlogits.assign(z.size(), 0);
    for (std::size_t b = 0; b < batch; ++b)
      for (std::size_t t = 0; t < len; ++t) {
        if (mask(b, t) == 0) {
          out.logp.push_back(0);
          continue;
        }
        const std::size_t row = b * stride + t, k = static_cast<std::size_t>(ids(b, t));
        const log_softmax_row log_p(z.data() + row * vocab, vocab, opt.temperature);
        out.logp.push_back(log_p.at(k));
        for (std::size_t j = 0; j < vocab; ++j) {
          const double hit = j == k ? -std::expm1(log_p.at(j)) : -std::exp(log_p.at(j));
          out.dlogits[row * vocab + j] = to_f64(dlogp(b, t)) / opt.temperature * hit;
        }
      }
    return out;
  }
};

#if defined(TIGON_CONFORMANCE_BACKEND)
using pairs = testing::Types<on<usual_backend, float>, on<usual_backend, bfloat16>, on<usual_backend, double>>;
#else
using pairs = with_engines<list<on<single_numbers, double>, on<usual_backend, float>, on<usual_backend, bfloat16>>,
                           on<tigon::backends::generic, float>, on<tigon::backends::eigen, float>,
                           on<tigon::backends::xsimd, float>, on<tigon::backends::highway, tigon::float16>,
                           on<tigon::backends::highway, double>>;
#endif

template <class On>
class selective_log_softmax : public testing::Test {};
TYPED_TEST_SUITE(selective_log_softmax, pairs, names);

TYPED_TEST(selective_log_softmax, keeps_its_error_and_the_padding) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const shape s : row_shapes<B, T>())
    for (const bool gap : {false, true})
      for (const guard side : both_guards) {
        SCOPED_TRACE(testing::Message() << s << (gap ? ", gap, " : ", ") << side);
        problem<T> p(s.rows == 0 ? 0 : 1 + s.rows / 3, 3, s.cols, gap, s.padding, side);
        const auto wanted = p.wanted();
        p.template forward<B>();
        p.template backward<B>(p.dlogits.view());
        const comparison with{.may_be_empty = s.rows == 0};
        EXPECT_TRUE(close(p.logp.f64(), wanted.logp, logp_bound.of<T>(), with));
        EXPECT_TRUE(close(p.dlogits.f64(), wanted.dlogits, gradient_bound.of<T>(), with));
        EXPECT_TRUE(p.dlogits.padding_intact() && p.logp.padding_intact());
      }
}

TYPED_TEST(selective_log_softmax, is_exact_where_the_id_is_confident) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const double lift : {16.0, 25.0}) {
    problem<T> p(2, 4, 1000, false);
    p.opt.temperature = 1;
    for (std::size_t i = 0; i < 8; ++i) {
      const auto row = std::span(&p.logits(i, 0), 1000);
      const double top = to_f64(*std::ranges::max_element(row, {}, to_f64<T>));
      p.logits(i, static_cast<std::size_t>(p.ids(i / 4, i % 4))) = from_f64<T>(top + lift);
    }
    p.template forward<B>();
    p.template backward<B>(p.dlogits.view());
    const auto wanted = p.wanted();
    constexpr double bound = std::same_as<T, double> ? 1e-10 : 1e-6;
    for (const std::size_t i : {0u, 2u, 3u, 4u, 5u, 6u, 7u}) {
      EXPECT_NEAR(to_f64(p.logp(i / 4, i % 4)) / wanted.logp[i], 1, bound);
      const std::size_t k = static_cast<std::size_t>(p.ids(i / 4, i % 4));
      if (std::same_as<T, tigon::float16>) continue;  // has no numbers that small
      EXPECT_NEAR(to_f64(p.dlogits(i, k)) / wanted.dlogits[i * 1000 + k], 1,
                  (std::same_as<T, bfloat16> ? 4e-3 : bound));
    }
  }
}

TYPED_TEST(selective_log_softmax, an_offset_of_all_logits_costs_nothing) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p(1, 2, 300, false), far(1, 2, 300, false);
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t j = 0; j < 300; ++j) {
      p.logits(i, j) = from_f64<T>(static_cast<double>((7 * i + 13 * j) % 8));
      far.logits(i, j) = from_f64<T>(to_f64(p.logits(i, j)) - 256);
    }
  for (problem<T>* q : {&p, &far}) {
    q->template forward<B>();
    q->template backward<B>(q->dlogits.view());
  }
  EXPECT_EQ(p.logp.f64(), far.logp.f64());
  EXPECT_EQ(p.dlogits.f64(), far.dlogits.f64());
}

TYPED_TEST(selective_log_softmax, gradient_may_overwrite_the_logits) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p(2, 3, 4 * lanes<B, T> + 3, true, 2);
  p.template forward<B>();
  p.template backward<B>(p.dlogits.view());
  p.template backward<B>(p.logits.view());
  EXPECT_EQ(bits_of(p.logits), bits_of(p.dlogits));
}

TYPED_TEST(selective_log_softmax, masked_rows_and_the_last_positions_are_not_read) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p(2, 2, 37, true), q(2, 2, 37, true);
  q.ids(0, 1) = 1000;  // masked
  for (const std::size_t row : {1u, 2u, 5u})
    for (std::size_t j = 0; j < 37; ++j) q.logits(row, j) = from_f64<T>(nan);
  q.dlogp(0, 1) = static_cast<accumulator_t<T>>(nan);
  for (problem<T>* each : {&p, &q}) {
    each->template forward<B>();
    each->template backward<B>(each->dlogits.view());
  }
  EXPECT_EQ(bits_of(p.logp, p.dlogits), bits_of(q.logp, q.dlogits));
  for (const std::size_t row : {1u, 2u, 5u}) {
    EXPECT_TRUE(q.saved[row].top == 0 && q.saved[row].rest == 0);
    for (std::size_t j = 0; j < 37; ++j) EXPECT_EQ(to_f64(q.dlogits(row, j)), 0);
  }
}

TYPED_TEST(selective_log_softmax, bad_rows_stay_alone) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  const std::size_t vocab = 2 * lanes<B, T> + 3;
  const auto with = [&](std::size_t column, double bad, bool everywhere = false) {
    problem<T> p(1, 4, vocab, false);
    p.ids(0, 2) = 0;
    for (std::size_t j = 0; j < vocab; ++j)
      if (everywhere || j == column) p.logits(2, j) = from_f64<T>(bad);
    p.template forward<B>();
    p.template backward<B>(p.dlogits.view());
    const auto wanted = problem<T>(1, 4, vocab, false).wanted();
    for (const std::size_t t : {0u, 3u}) EXPECT_NEAR(to_f64(p.logp(0, t)), wanted.logp[t], 1e-5);
    return p;
  };
  const auto is_nan = [&](const problem<T>& p) {
    EXPECT_TRUE(std::isnan(p.logp(0, 2)));
    for (std::size_t j = 0; j < vocab; ++j) EXPECT_TRUE(std::isnan(to_f64(p.dlogits(2, j)))) << j;
  };
  for (const std::size_t column : {std::size_t{0}, lanes<B, T> - 1, lanes<B, T>, vocab - 1})
    for (const double bad : {nan, infinity}) is_nan(with(column, bad));
  is_nan(with(0, -infinity, true));
  const problem<T> other = with(vocab - 1, -infinity), at_id = with(0, -infinity);
  EXPECT_TRUE(std::isfinite(other.logp(0, 2)));
  EXPECT_EQ(to_f64(other.dlogits(2, vocab - 1)), 0);
  EXPECT_EQ(to_f64(at_id.logp(0, 2)), -infinity);
  for (std::size_t j = 0; j < vocab; ++j) EXPECT_TRUE(std::isfinite(to_f64(at_id.dlogits(2, j)))) << j;
}

TYPED_TEST(selective_log_softmax, rows_in_several_blocks) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  for (const bool rising : {false, true}) {  // the maximum in the first block, and in the last
    problem<T> p(1, 3, B::row.cpu.in_place_cols + 1001, false);
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t j = 0; j < p.logits.cols(); ++j)
        p.logits(i, j) =
            from_f64<T>((rising ? 1 : -1) * 20.0 * static_cast<double>(j) / static_cast<double>(p.logits.cols()) +
                        (i == 2 ? j % 3 : 0));
    p.template forward<B>();
    p.template backward<B>(p.dlogits.view());
    const auto wanted = p.wanted();
    EXPECT_TRUE(close(p.logp.f64(), wanted.logp, logp_bound.of<T>()));
    EXPECT_TRUE(close(p.dlogits.f64(), wanted.dlogits, gradient_bound.of<T>()));
  }
}

TYPED_TEST(selective_log_softmax, takes_a_second_column_a_row) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  using A = accumulator_t<T>;
  using K = tigon::kernel_for<tigon::op::selective_log_softmax, B>;
  const std::size_t vocab = 2 * lanes<B, T> + 3;
  problem<T> p(1, 5, vocab, false), q(1, 5, vocab, false);
  p.mask(0, 1) = q.mask(0, 1) = 1;
  const std::int64_t first[] = {1, 2, -1, 0, 3}, second[] = {0, 2, 2, -1, 4};
  const A u[] = {1, 2, 0, A(-0.5), 0}, v[] = {A(0.5), A(-3), 2, 0, 0};
  std::vector<double> sum(5 * vocab, 0);
  const auto add = [&](const std::int64_t* columns, const A* weights) {
    for (std::size_t t = 0; t < 5; ++t) q.ids(0, t) = std::max<std::int64_t>(columns[t], 0), q.dlogp(0, t) = weights[t];
    const auto wanted = q.wanted().dlogits;
    for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += wanted[k];
  };
  add(first, u), add(second, v);
  p.template forward<B>();
  using selected = tigon::selected_gradient<A>;
  K::template backward<B, T>(p.logits, p.saved.data(), selected{first, u}, selected{second, v}, p.opt.temperature,
                             p.dlogits.view(), tigon::default_context());
  EXPECT_TRUE(close(p.dlogits.f64(), sum, 2 * gradient_bound.of<T>()));
}

TYPED_TEST(selective_log_softmax, bits_do_not_depend_on_threads) {
  using B = typename TypeParam::backend;
  using T = typename TypeParam::element;
  problem<T> p(4, 10, 5003, false);
  EXPECT_TRUE(same_bits_for_any_threads([&](context& ctx) {
    p.logp.clear(), p.dlogits.clear(), p.saved.clear();
    p.template forward<B>(ctx);
    p.template backward<B>(p.dlogits.view(), ctx);
    return bits_of(p.logp, p.dlogits, p.saved);
  }));
}

using usual = problem<float, std::int32_t>;
using B = usual_backend;

TEST(selective_log_softmax_edges, nothing_to_do_and_one_class) {
  for (const auto& [batch, len] : {std::pair{0u, 3u}, {2u, 0u}}) {
    usual p(batch, len, 5, true);
    p.forward<B>();
    p.backward<B>(p.dlogits.view());
    for (const double d : p.dlogits.f64()) EXPECT_EQ(d, 0);
  }
  usual one(1, 2, 1, true);
  one.forward<B>();
  one.backward<B>(one.dlogits.view());
  EXPECT_EQ(one.logp.f64(), std::vector<double>(2, 0.0));
  EXPECT_EQ(one.dlogits.f64(), std::vector<double>(3, 0.0));
}

/// 1 / 0.9 is not a number of f32: rounded, it shifts every log-sum-exp to the same side, which adds up over rows.
TEST(selective_log_softmax_edges, a_temperature_that_rounds_shifts_nothing) {
  constexpr std::size_t rows = 200, cols = 300;
  for (const bool single_lanes : {true, false}) {
    guarded_matrix<float> logits = random_matrix<float>({rows, cols}, 1, guard::behind, {.deviation = 3});
    guarded_matrix<float> logp(1, rows);
    guarded_matrix<std::int64_t> ids(1, rows);
    for (std::size_t i = 0; i < rows; ++i) ids(0, i) = static_cast<std::int64_t>(i);
    guarded<lse_parts<float>> saved(rows);
    if (single_lanes)
      tigon::selective_log_softmax_forward<tigon::backends::generic>(logits.view(), ids.view(), logp.view(),
                                                                     {.temperature = 0.9}, absent, saved);
    else
      tigon::selective_log_softmax_forward(logits.view(), ids.view(), logp.view(), {.temperature = 0.9}, absent, saved);
    double shift = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < cols; ++j) sum += std::exp((double{logits(i, j)} - double{saved[i].top}) / 0.9);
      shift += saved[i].lse(0.9) - (double{saved[i].top} / 0.9 + std::log(sum));
    }
    EXPECT_LT(std::abs(shift / rows), 4e-8) << (single_lanes ? "single lanes" : "vectors");
  }
}

TEST(selective_log_softmax_edges, a_wide_vocabulary) {
  usual p(1, 2, 256000, false);
  p.forward<B>();
  p.backward<B>(p.dlogits.view());
  const std::size_t k = static_cast<std::size_t>(p.ids(0, 1));
  const auto z = p.logits.f64();
  const double want = log_softmax_row(z.data() + 256000, 256000, 0.9).at(k);
  EXPECT_NEAR(to_f64(p.logp(0, 1)) / want, 1, 4e-7);
  EXPECT_NEAR(to_f64(p.dlogits(1, k)) / (-std::expm1(want) * to_f64(p.dlogp(0, 1)) / 0.9), 1, 1e-6);
}

TEST(selective_log_softmax_edges, masks_of_any_type_and_the_last_ids_of_longer_ones) {
  usual p(2, 3, 9, false), q(2, 3, 9, false);
  p.forward<B>();
  std::vector<std::int64_t> longer(2 * 5);
  std::vector<float> mask(2 * 5, 0.0f);
  for (std::size_t b = 0; b < 2; ++b)
    for (std::size_t t = 0; t < 3; ++t) longer[b * 5 + t + 2] = p.ids(b, t), mask[b * 5 + t + 2] = p.mask(b, t);
  tigon::selective_log_softmax_forward<B>(q.logits.view(), matrix_view(longer.data(), 2, 5).cols_from(2, 3),
                                          q.logp.view(), q.opt, matrix_view(mask.data(), 2, 5).cols_from(2, 3));
  EXPECT_EQ(bits_of(q.logp), bits_of(p.logp));
}

TEST(selective_log_softmax_edges, takes_the_workspace_that_it_names) {
  const std::size_t bytes = tigon::selective_log_softmax_workspace<B, float>(8);
  usual p(2, 3, 9, true);
  const auto forward = [&](context& ctx) {
    tigon::selective_log_softmax_forward<B>(p.logits.view(), p.ids.view(), p.logp.view(), {}, absent, {}, ctx);
  };
  EXPECT_TIGON_ERROR(with_workspace_of(bytes - 1, forward), workspace, "selective_log_softmax_forward: workspace is of",
                     p.logp);
  with_workspace_of(bytes, [&](context& ctx) {
    forward(ctx);
    EXPECT_EQ(ctx.workspace().high_water(), bytes);
  });
}

TEST(selective_log_softmax_doors, refuse_before_the_first_write) {
  usual p(2, 3, 6, true);
  const auto refused = [&](const std::string& part, tigon::error_code code, auto change) {
    usual q(2, 3, 6, true);
    auto z = q.logits.view();
    auto logp = q.logp.view();
    auto dz = q.dlogits.view();
    change(q, z, logp, dz);
    EXPECT_TRUE(refuses(
        [&] {
          tigon::selective_log_softmax_forward<B>(z, q.ids.view(), logp, q.opt, q.mask.view(), q.saved);
          tigon::selective_log_softmax_backward<B>(z, q.ids.view(), q.saved, q.dlogp.view(), dz, q.opt, q.mask.view());
        },
        code, part, q.dlogits));
  };
  using enum tigon::error_code;
  refused("logits is of 7 rows; expected 6 or 8 for 2 x 3 ids", shape,
          [](auto&, auto& z, auto&, auto&) { z.rows = 7; });
  refused("vocab is 0", shape, [](auto&, auto& z, auto&, auto&) { z.cols = 0; });
  refused("logp is 2 x 2; expected 2 x 3", shape, [](auto&, auto&, auto& logp, auto&) { logp.cols = 2; });
  refused("dlogits is 8 x 5; expected 8 x 6", shape, [](auto&, auto&, auto&, auto& dz) { dz.cols = 5; });
  refused("dlogits overlaps logits", alias, [](auto&, auto& z, auto&, auto& dz) {
    dz = {z.data + 1, z.rows, z.cols, z.row_stride};
  });
  for (const double t : {0.0, -1.0, nan, infinity, 1e-45})
    refused("temperature is", argument, [=](auto& q, auto&, auto&, auto&) { q.opt.temperature = t; });
  for (const int bad : {-1, 6})
    refused("ids[1, 2] is " + std::to_string(bad) + "; expected at least 0 and below 6", index,
            [=](auto& q, auto&, auto&, auto&) { q.ids(1, 2) = bad; });
  refused("mask[1, 0] is 2; expected 0 or 1", index, [](auto& q, auto&, auto&, auto&) { q.mask(1, 0) = 2; });
  const auto with_mask = [&](matrix_view<std::uint8_t> mask, const char* part) {
    EXPECT_TRUE(refuses(
        [&] {
          tigon::selective_log_softmax_forward<B>(p.logits.view(), p.ids.view(), p.logp.view(), p.opt, mask, p.saved);
        },
        shape, part, p.logp));
  };
  with_mask(p.mask.view().rows_from(0, 1), "mask is 1 x 3; expected 2 x 3");
  with_mask(p.mask.view().cols_from(0, 2), "mask is 2 x 2; expected 2 x 3");
}

}  // namespace
