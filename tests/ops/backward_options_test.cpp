// What forward saved decides: an option that has had its effect on it changes no bit of backward, or is refused.
//
// Every operator stands in one of the lists below. Where backward takes what forward saved, each option is named once,
// in a structured binding that does not compile when there is another: it is decided by what was saved, and checked
// here; or backward needs it and nothing holds it, so that the caller repeats it; or it is backward's own.
// Operators: several
#include <gtest/gtest.h>

#include <tigon/tigon.hpp>

#include "support/backends.hpp"
#include "support/problem.hpp"

#include "support/kernels.hpp"

#include <algorithm>
#include <string_view>

namespace {

using namespace tigon::test;
using tigon::accumulator_t, tigon::matrix_view, tigon::heads_view;
using B = tigon::test::usual_backend;
namespace op = tigon::op;

/// Has a test below.
using decided = tigon::op_list<op::rms_norm, op::fused_add_rms_norm, op::modulated_rms_norm, op::layer_norm,
                               op::group_norm, op::poly_norm, op::attn_res, op::mhc_coeffs, op::attention,
                               op::neighborhood_attention, op::neighborhood_attention_layer>;
/// What these save holds the effect of no option: products for gates, probabilities, sums of exponentials.
using repeated = tigon::op_list<op::mlp, op::moe, op::multi_token_attention, op::vocab_parallel_cross_entropy,
                                op::selective_log_softmax, op::selective_logprob, op::grpo_loss>;
/// Backward takes no options: what was saved is the gradient.
using without_options =
    tigon::op_list<op::cross_entropy, op::jsd, op::fused_linear_grpo, op::fused_linear_preference, op::fused_linear_dpo,
                   op::fused_linear_orpo, op::fused_linear_cpo, op::fused_linear_simpo,
                   op::fused_linear_unpaired_preference, op::fused_linear_kto>;

template <class Op, class... Ops>
constexpr int count(tigon::op_list<Ops...>) {
  return (0 + ... + std::is_same_v<Op, Ops>);
}
template <class Op>
constexpr bool in_its_list() {
  using K = tigon::kernel<Op, tigon::backends::generic>;
  const int times = count<Op>(decided{}) + count<Op>(repeated{}) + count<Op>(without_options{});
  if constexpr (requires { typename K::forward_only; })
    return times == 0;
  else
    return times == (std::is_same_v<typename K::template saved<float>, tigon::no_state> ? 0 : 1);
}

TEST(backward_options, every_operator_whose_forward_saves_is_in_a_list) {
  const auto check = []<class Op>() {
    EXPECT_TRUE(in_its_list<Op>()) << Op::name << ": what forward saves for backward says whether it is in a list";
  };
  [&]<class... Op>(tigon::op_list<Op...>) { (check.template operator()<Op>(), ...); }(tigon::all_ops{});
}

template <class T>
std::vector<T> numbers(std::size_t count, std::uint64_t seed) {
  std::vector<T> out(count);
  std::ranges::transform(normal_values(count, seed), out.begin(), [](double v) { return from_f64<T>(v); });
  return out;
}
/// Those of f32 in every type.
template <class T>
std::vector<T> of_f32(std::size_t count, std::uint64_t seed) {
  const std::vector<float> all = numbers<float>(count, seed);
  return {all.begin(), all.end()};
}
template <class... T>
std::vector<double> joined(const std::vector<T>&... parts) {
  std::vector<double> out;
  (out.insert(out.end(), parts.begin(), parts.end()), ...);
  return out;
}

/// backward(options) gives the same numbers for these options, or refuses them.
template <class Options, class Backward>
void expect_decided(const Options& as_in_forward, std::initializer_list<Options> changed, Backward backward) {
  const std::vector<double> wanted = backward(as_in_forward);
  EXPECT_TRUE(std::ranges::all_of(wanted, [](double v) { return std::isfinite(v); }));
  std::size_t k = 0;
  for (const Options& opt : changed) {
    try {
      EXPECT_EQ(backward(opt), wanted) << "changed options " << k;
    } catch (const tigon::error& e) {
      EXPECT_EQ(std::string_view(e.what()).substr(0, 7), "tigon: ");
    }
    ++k;
  }
}

// Norms: rstd (and mean) decide, eps does not count.
template <class T>
struct rows_of_norm {
  using A = accumulator_t<T>;
  std::size_t rows = 6, cols;
  std::vector<T> x = of_f32<T>(rows * cols, 1), dy = of_f32<T>(rows * cols, 2), w = of_f32<T>(cols, 3),
                 y = std::vector<T>(rows * cols), dx = y, dw = std::vector<T>(cols), db = dw;

  matrix_view<T> m(std::vector<T>& of) const { return {of.data(), rows, cols}; }
  matrix_view<const T> in(const std::vector<T>& of) const { return {of.data(), rows, cols}; }
};

struct rms_norm {
  template <class T>
  static auto forward(rows_of_norm<T>& n, double eps) {
    std::vector<accumulator_t<T>> rstd(n.rows);
    tigon::rms_norm_forward<B>(n.in(n.x), n.w, n.m(n.y), rstd, {.eps = eps});
    return rstd;
  }
  template <class T>
  static auto backward(rows_of_norm<T>& n, const std::vector<accumulator_t<T>>& rstd, double by) {
    tigon::rms_norm_options opt{.casting = tigon::casting::none};
    auto& [eps, offset, casting, dw] = opt;  // decided; repeated: offset, casting; its own: dw
    (void)offset, (void)casting, (void)dw;
    eps = by;
    tigon::rms_norm_backward<B>(n.in(n.dy), n.in(n.x), n.w, rstd, n.m(n.dx), n.dw, opt);
    return joined(n.dx, n.dw);
  }
};
struct fused_add_rms_norm : rms_norm {
  template <class T>
  static auto backward(rows_of_norm<T>& n, const std::vector<accumulator_t<T>>& rstd, double by) {
    tigon::fused_add_rms_norm_backward<B>(n.in(n.dy), n.in(n.dy), n.in(n.x), n.w, rstd,
                                          tigon::fused_add_rms_norm_gradients{n.m(n.dx), n.dw}, {.eps = by});
    return joined(n.dx, n.dw);
  }
};
struct modulated_rms_norm : rms_norm {
  template <class T>
  static auto backward(rows_of_norm<T>& n, const std::vector<accumulator_t<T>>& rstd, double by) {
    tigon::modulated_rms_norm_options opt{.group_rows = 3, .casting = tigon::casting::none};
    auto& [eps, offset, group_rows, casting, dw, dscale] = opt;  // decided; repeated: offset to casting; its own
    (void)offset, (void)group_rows, (void)casting, (void)dw, (void)dscale;
    eps = by;
    std::vector<T> scale = of_f32<T>(2 * n.cols, 4), to_scale(scale.size()), to_shift(scale.size());
    const auto of_groups = [&](std::vector<T>& of) { return matrix_view<T>(of.data(), 2, n.cols); };
    tigon::modulated_rms_norm_backward<B>(
        n.in(n.dy), n.in(n.x), n.w, of_groups(scale), rstd,
        tigon::modulated_rms_norm_gradients{n.m(n.dx), n.dw, of_groups(to_scale), of_groups(to_shift)}, opt);
    return joined(n.dx, n.dw, to_scale, to_shift);
  }
};
struct layer_norm {
  template <class T>
  static auto forward(rows_of_norm<T>& n, double eps) {
    std::vector<accumulator_t<T>> saved(2 * n.rows);
    const std::span both(saved);
    tigon::layer_norm_forward<B>(n.in(n.x), n.w, n.w, n.m(n.y), both.first(n.rows), both.last(n.rows), {.eps = eps});
    return saved;
  }
  template <class T>
  static auto backward(rows_of_norm<T>& n, const std::vector<accumulator_t<T>>& saved, double by) {
    tigon::layer_norm_options opt;
    auto& [eps, dparams] = opt;  // decided; its own
    (void)dparams;
    eps = by;
    const std::span both(saved);
    tigon::layer_norm_backward<B>(n.in(n.dy), n.in(n.x), n.w, both.first(n.rows), both.last(n.rows),
                                  tigon::norm_gradients{n.m(n.dx), n.dw, n.db}, opt);
    return joined(n.dx, n.dw, n.db);
  }
};
/// Three groups of two channels.
struct group_norm {
  static tigon::group_norm_options options(double by) {
    tigon::group_norm_options opt{.groups = 3, .channels = 6};
    auto& [groups, channels, eps, dparams] = opt;  // repeated: groups, channels; decided: eps; its own
    (void)groups, (void)channels, (void)dparams;
    eps = by;
    return opt;
  }
  template <class T>
  static auto forward(rows_of_norm<T>& n, double eps) {
    std::vector<accumulator_t<T>> saved(6);
    const std::span both(saved);
    tigon::group_norm_forward<B>(n.in(n.x), tigon::absent, tigon::absent, n.m(n.y), both.first(3), both.last(3),
                                 options(eps));
    return saved;
  }
  template <class T>
  static auto backward(rows_of_norm<T>& n, const std::vector<accumulator_t<T>>& saved, double by) {
    const std::span both(saved);
    tigon::group_norm_backward<B>(n.in(n.dy), n.in(n.x), tigon::absent, both.first(3), both.last(3),
                                  tigon::norm_gradients{n.m(n.dx), tigon::absent, tigon::absent}, options(by));
    return n.dx;
  }
};
struct poly_norm {
  template <class T>
  static auto forward(rows_of_norm<T>& n, double eps) {
    std::vector<accumulator_t<T>> rstd(3 * n.rows);
    tigon::poly_norm_forward<B>(n.in(n.x), of_f32<T>(3, 5), of_f32<T>(1, 6), n.m(n.y), rstd, {.eps = eps});
    return rstd;
  }
  template <class T>
  static auto backward(rows_of_norm<T>& n, const std::vector<accumulator_t<T>>& rstd, double by) {
    tigon::poly_norm_options opt;
    auto& [eps, dparams] = opt;  // decided; its own
    (void)dparams;
    eps = by;
    std::vector<T> dw(3), db(1);
    tigon::poly_norm_backward<B>(n.in(n.dy), n.in(n.x), of_f32<T>(3, 5), rstd, tigon::norm_gradients{n.m(n.dx), dw, db},
                                 opt);
    return joined(n.dx, dw, db);
  }
};

constexpr double of_forward = 0.1, others[] = {0, 1e-6, 0.3, 7};

template <class Norm, class T>
void expect_same_bits(std::size_t cols) {
  SCOPED_TRACE(cols);
  rows_of_norm<T> n{.cols = cols};
  const auto saved = Norm::template forward<T>(n, of_forward);
  const auto wanted = Norm::template backward<T>(n, saved, of_forward);
  for (const double eps : others) EXPECT_EQ(Norm::template backward<T>(n, saved, eps), wanted) << "eps " << eps;
}
/// In f32, where eps may add to the digits of rstd if it is that of forward: otherwise what rstd alone says, as f64 has
/// it.
template <class Norm>
void expect_of_rstd(std::size_t cols) {
  SCOPED_TRACE(cols);
  rows_of_norm<float> n{.cols = cols};
  rows_of_norm<double> exact{.cols = cols};
  const auto saved = Norm::template forward<float>(n, of_forward);
  const auto wanted = Norm::template backward<double>(exact, {saved.begin(), saved.end()}, of_forward);
  double size = 0;
  for (const double r : saved) size = std::max(size, 3 * std::abs(r));
  for (const double eps : {0.1, 0.0, 1e-6, 0.3, 7.0}) {
    const auto got = Norm::template backward<float>(n, saved, eps);
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t k = 0; k < got.size(); ++k)
      EXPECT_NEAR(got[k], wanted[k], 1e-6 * (size + std::abs(wanted[k]))) << k;
  }
}

template <class Norm>
class norm_options : public testing::Test {};
using norms = testing::Types<rms_norm, fused_add_rms_norm, modulated_rms_norm, layer_norm, group_norm, poly_norm>;
TYPED_TEST_SUITE(norm_options, norms);

TYPED_TEST(norm_options, rstd_decides) {
  for (const std::size_t cols : {1u, 2u, 3u, 4u, 8u, 9u, 37u}) expect_same_bits<TypeParam, double>(cols);
  for (const std::size_t cols : {9u, 37u}) expect_same_bits<TypeParam, float>(cols);
  for (const std::size_t cols : {1u, 2u, 3u, 4u, 8u}) expect_of_rstd<TypeParam>(cols);
}

TEST(backward_options, of_attn_res) {
  constexpr std::size_t blocks = 3, rows = 4, cols = 5;
  std::vector<float> v = numbers<float>(blocks * rows * cols, 1), dy = numbers<float>(rows * cols, 2), y(dy), dv(v);
  const std::vector<float> query = numbers<float>(cols, 3), norm = numbers<float>(cols, 4);
  std::vector<float> alpha(rows * blocks), rstd(rows * blocks), dquery(cols), dnorm(cols);
  const auto of = [](std::vector<float>& m) {
    return tigon::blocks_view<float>::stacked(m.data(), blocks, rows, cols);
  };
  const tigon::attn_res_options opt{.eps = of_forward};
  const auto [eps, round_key, dparams] = opt;  // decided: eps, round_key; its own
  (void)eps, (void)round_key, (void)dparams;
  tigon::attn_res_forward<B>(of(v), query, norm, matrix_view<float>(y.data(), rows, cols), alpha, rstd, opt);
  expect_decided<tigon::attn_res_options>(
      opt, {{.eps = 0}, {.eps = 7}, {.eps = of_forward, .round_key = true}}, [&](auto by) {
        tigon::attn_res_backward<B>(matrix_view<float>(dy.data(), rows, cols), of(v), query, norm, {alpha, rstd},
                                    tigon::attn_res_gradients{of(dv), dquery, dnorm}, by);
        return joined(dv, dquery, dnorm);
      });
}

TEST(backward_options, of_mhc_coeffs) {
  constexpr std::size_t tokens = 5, n = 2, channels = 3, mixes = n * (n + 2);
  std::vector<float> x = numbers<float>(tokens * n * channels, 1), phi = numbers<float>(n * channels * mixes, 2), dx(x);
  const std::vector<float> b = numbers<float>(mixes, 3), alpha = numbers<float>(3, 4);
  std::vector<float> pre(tokens * n), post(pre), res(tokens * n * n), mix(tokens * mixes), rstd(tokens);
  std::vector<float> history(tigon::mhc_coeffs_history<B, float>(tokens, n)), dphi(phi), db(mixes), dalpha(3);
  const std::vector<float> dpre = numbers<float>(pre.size(), 5), dres = numbers<float>(res.size(), 6);
  const auto m = [](auto& of, std::size_t cols) { return matrix_view(of.data(), of.size() / cols, cols); };
  const tigon::mhc_weights weights{m(phi, mixes), b, alpha};
  const tigon::mhc_coeffs_options opt{.rms_eps = of_forward};
  // Decided: the first two, and tmax where a history was saved. Repeated: sinkhorn_eps, post_mult. Its own: the last
  // two.
  const auto [rms_eps, pre_eps, sinkhorn_eps, post_mult, tmax, to_x, to_parameters] = opt;
  (void)rms_eps, (void)pre_eps, (void)sinkhorn_eps, (void)post_mult, (void)tmax, (void)to_x, (void)to_parameters;
  tigon::mhc_coeffs_forward<B>(m(x, n * channels), weights, {m(pre, n), m(post, n), m(res, n * n)},
                               {m(mix, mixes), rstd, history}, opt);
  expect_decided<tigon::mhc_coeffs_options>(
      opt, {{.rms_eps = 0}, {.rms_eps = 7}, {.rms_eps = of_forward, .pre_eps = 3}}, [&](auto by) {
        tigon::mhc_coeffs_backward<B>({m(dpre, n), m(dpre, n), m(dres, n * n)}, m(x, n * channels), weights,
                                      {m(mix, mixes), rstd, history},
                                      tigon::mhc_coeffs_gradients{m(dx, n * channels), m(dphi, mixes), db, dalpha}, by);
        return joined(dx, dphi, db, dalpha);
      });
}

/// q, k, v and the gradient of o, one after the other.
struct heads {
  static constexpr std::size_t count = 2, tokens = 5, d = 4;
  std::vector<float> memory = numbers<float>(8 * count * tokens * d, 1);
  heads_view<float> operator[](std::size_t k) {
    return heads_view<float>::of_heads(memory.data() + k * count * tokens * d, 1, count, tokens, d);
  }
  std::vector<double> gradients() { return {memory.begin() + 5 * count * tokens * d, memory.end()}; }
};

TEST(backward_options, of_attention) {
  heads of;
  std::vector<float> lse(heads::count * heads::tokens);
  const std::vector<float> sinks{0.5f, -1}, other_sinks{7, 3};
  tigon::attention_options opt{.sinks = sinks}, changed = opt;
  // Repeated: mask to cumulative_lengths, key_begins and key_ends. Decided: sinks, which lse has, but for their own
  // gradient.
  const auto& [mask, scale, softcap, left, right, prefix, offset, lengths, of_sinks, begins, ends] = opt;
  (void)mask, (void)scale, (void)softcap, (void)left, (void)right, (void)prefix, (void)offset, (void)lengths;
  (void)of_sinks, (void)begins, (void)ends;
  tigon::attention_forward<B, float>(of[0], of[1], of[2], of[4], lse, opt);
  changed.sinks = other_sinks;
  expect_decided<tigon::attention_options>(opt, {changed, {}}, [&](auto by) {
    tigon::attention_backward<B, float>(of[3], of[0], of[1], of[2], {of[4], lse},
                                        tigon::attention_gradients{of[5], of[6], of[7]}, by);
    return of.gradients();
  });
}

TEST(backward_options, of_neighborhood_attention) {
  heads of;
  constexpr std::size_t queries = heads::count * heads::tokens;
  std::vector<float> probs(queries * 3), lse(queries);
  const tigon::neighborhood_attention_options opt{.kernel_size = 3};
  const auto [kernel_size, dilation, scale] = opt;  // decided; repeated
  (void)kernel_size, (void)dilation, (void)scale;
  const matrix_view<float> p(probs.data(), queries, 3);
  tigon::neighborhood_attention_forward<B, float>(of[0], of[1], of[2], of[4], {p, lse}, opt);
  expect_decided<tigon::neighborhood_attention_options>(opt, {{.kernel_size = 5}, {.kernel_size = 1}}, [&](auto by) {
    tigon::neighborhood_attention_backward<B, float>(of[3], of[0], of[1], of[2], {p, lse},
                                                     tigon::neighborhood_attention_gradients{of[5], of[6], of[7]}, by);
    return of.gradients();
  });
}

TEST(backward_options, of_neighborhood_attention_layer) {
  constexpr std::size_t tokens = 6, hidden = 4;
  const tigon::neighborhood_attention_layer_options opt{
      .heads = 2, .seq_len = 3, .attention = {.kernel_size = 3}, .eps = of_forward};
  const auto [heads, seq_len, attention, eps, dparams] = opt;  // repeated: the first three; decided: eps; its own
  (void)heads, (void)seq_len, (void)attention, (void)eps, (void)dparams;
  std::vector<float> x = numbers<float>(tokens * hidden, 1), dy = numbers<float>(x.size(), 2), y(x), dx(x);
  std::vector<float> wqkv = numbers<float>(3 * hidden * hidden, 3), wo = numbers<float>(hidden * hidden, 4);
  std::vector<float> values(tokens * 5 * hidden), saved(tigon::neighborhood_attention_layer_numbers(tokens, opt));
  std::vector<float> dwqkv(wqkv), dwo(wo);
  const auto m = [](auto& of, std::size_t cols) { return matrix_view(of.data(), of.size() / cols, cols); };
  const tigon::neighborhood_attention_layer_weights<const float> w{m(wqkv, hidden), m(wo, hidden), {}, {}, {}, {}};
  tigon::neighborhood_attention_layer_forward<B, float>(m(x, hidden), w, m(y, hidden), {m(values, 5 * hidden), saved},
                                                        opt);
  auto changed = opt, none = opt;
  changed.eps = 7, none.eps = 0;
  expect_decided<tigon::neighborhood_attention_layer_options>(opt, {changed, none}, [&](auto by) {
    tigon::neighborhood_attention_layer_backward<B, float>(m(dy, hidden), m(x, hidden), w,
                                                           {m(values, 5 * hidden), saved}, m(dx, hidden),
                                                           {m(dwqkv, hidden), m(dwo, hidden), {}, {}, {}, {}}, by);
    return joined(dx, dwqkv, dwo);
  });
}

}  // namespace
