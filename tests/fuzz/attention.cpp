// Fuzzing of attention: whole, of neighbours, and of mixed heads.
#include <tigon/ops/attention.hpp>
#include <tigon/ops/multi_token_attention.hpp>
#include <tigon/ops/neighborhood_attention.hpp>

#include "problem.hpp"
#include "support/kernels.hpp"

namespace {

using namespace tigon::fuzz;
using tigon::attention_mask;

/// Of the contract, for f32. In f64 it states 2^-29 of it, which is four times what two results differ by.
constexpr double of_terms = 4e-7;

/// Sums of the magnitudes of the terms of attention's results, in f64, and the largest score, its terms without their
/// signs, or lse: what errors scale with where terms cancel. `tiny`: below it exponentials lose digits.
struct attention_terms {
  std::vector<double> o, dq, dk, dv, dsinks;
  double score = 0;

  TIGON_TEST_NOINLINE attention_terms(const argument& q, const argument& k, const argument& v, const argument& d_o,
                                      const argument& lse, const tigon::attention_options& opt, double tiny)
      : o(d_o.size()), dq(q.size()), dk(k.size()), dv(v.size()), dsinks(opt.sinks.size()) {
    const auto values = [](const argument& of) {
      std::vector<double> out(of.size());
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = of.wanted(i);
      return out;
    };
    const std::vector<double> all_q = values(q), all_k = values(k), all_v = values(v), all_g = values(d_o);
    const std::size_t heads = q.extents[1], queries = q.extents[2], keys = k.extents[2], d = q.cols(), e = v.cols();
    const double scale = tigon::detail::attention_scale(opt, d);
    std::vector<double> p(keys), dp(keys);
    for (std::size_t row = 0; row < q.rows(); ++row) {
      const std::size_t h = row / queries % heads, group = heads / k.extents[1];
      const std::size_t batch = row / queries / heads, first = (batch * k.extents[1] + h / group) * keys;
      const auto seen = tigon::detail::visibility{opt, keys, batch}.of(row % queries);
      double delta = 0, of_g = 0;
      for (std::size_t c = 0; c < e; ++c) of_g += std::abs(all_g[row * e + c]);
      if (std::isfinite(lse.wanted(row))) score = std::max(score, std::abs(lse.wanted(row)));
      const auto for_seen = [&](auto f) {
        for (const auto& range : {seen.prefix, seen.window})
          for (std::size_t j = range.first; j < range.end; ++j) f(j, (first + j) * d, (first + j) * e);
      };
      for_seen([&](std::size_t j, std::size_t key, std::size_t value) {
        double s = 0, size = 0;
        dp[j] = 0;
        for (std::size_t c = 0; c < d; ++c) {
          const double product = scale * all_q[row * d + c] * all_k[key + c];
          s += product, size += std::abs(product);
        }
        for (std::size_t c = 0; c < e; ++c) dp[j] += std::abs(all_g[row * e + c] * all_v[value + c]);
        score = std::max(score, size);
        if (opt.softcap != 0) s = opt.softcap * std::tanh(s / opt.softcap);
        p[j] = std::exp(s - lse.wanted(row)) + tiny;
        delta += p[j] * dp[j];
      });
      for_seen([&](std::size_t j, std::size_t key, std::size_t value) {
        const double ds = scale * p[j] * (dp[j] + delta);
        for (std::size_t c = 0; c < d; ++c)
          dq[row * d + c] += ds * std::abs(all_k[key + c]), dk[key + c] += ds * std::abs(all_q[row * d + c]);
        for (std::size_t c = 0; c < e; ++c)
          o[row * e + c] += p[j] * std::abs(all_v[value + c]), dv[value + c] += p[j] * std::abs(all_g[row * e + c]);
      });
      if (!dsinks.empty())  // an f16 o below 2^-14 has steps of one size
        dsinks[h] += std::exp(static_cast<double>(opt.sinks[h]) - lse.wanted(row)) * (delta + 0x1p-14 * of_g);
    }
  }
};

template <class P>
void attention(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  const std::size_t batch = p.in.between(1, 2), kv_heads = p.in.between(1, 2), heads = kv_heads * p.in.between(1, 3);
  const std::size_t queries = p.in.one_in(8) ? 0 : p.in.between(1, p.in.one_in(4) ? 150 : 40), d = p.in.between(1, 40);
  tigon::attention_options opt{.mask = p.in.pick({attention_mask::causal, attention_mask::none})};
  const bool causal = opt.mask == attention_mask::causal;
  opt.softcap = p.in.pick({0.0, 0.0, 5.0}), opt.offset = p.in.one_in(3) ? p.in.below(60) : 0;
  if (p.in.one_in(3)) opt.window_left = p.in.below(50);
  if (p.in.one_in(3)) opt.window_right = causal ? opt.window_right : p.in.below(50);
  if (p.in.one_in(4)) opt.prefix = p.in.below(30);
  const std::size_t keys = causal ? opt.offset + queries : p.in.below(70);
  std::vector<std::int32_t> cumulative;
  if (keys != 0 && p.in.one_in(3)) {
    cumulative = {0};
    while (static_cast<std::size_t>(cumulative.back()) < keys)
      cumulative.push_back(
          static_cast<std::int32_t>(std::min(keys, static_cast<std::size_t>(cumulative.back()) + p.in.between(1, 60))));
    opt.cumulative_lengths = cumulative;
    p.may_refuse = keys < opt.offset + queries;  // the last queries are of no document
  }
  std::vector<float> sinks(p.in.one_in(3) ? heads : 0);
  for (std::size_t h = 0; h < sinks.size(); ++h) sinks[h] = 0.5f * static_cast<float>(h) - 0.5f;
  opt.sinks = sinks;
  const std::size_t e = p.in.one_in(2) ? d : p.in.between(1, 40);
  auto& q = p.filled(p.heads("q", batch, heads, queries, d), 0, 1, false);
  auto& k = p.filled(p.heads("k", batch, kv_heads, keys, d), 0, 1, false);
  auto& v = p.filled(p.heads("v", batch, kv_heads, keys, e), 0, 1, false);
  auto &d_o = p.filled(p.heads("do", batch, heads, queries, e), 0, 1, false),
       &o = p.heads("o", batch, heads, queries, e);
  auto &dq = p.heads("dq", batch, heads, queries, d), &dk = p.heads("dk", batch, kv_heads, keys, d);
  auto& dv = p.heads("dv", batch, kv_heads, keys, e);
  auto &lse = p.template vector<A>("lse", batch * heads * queries),
       &dsinks = p.template vector<A>("dsinks", sinks.size());
  std::vector<std::int32_t> begins(p.in.one_in(4) ? batch : 0), ends(p.in.one_in(4) ? batch : 0);
  for (std::int32_t& begin : begins) begin = static_cast<std::int32_t>(p.in.below(keys + 1));
  for (std::size_t b = 0; b < ends.size(); ++b) {
    const std::size_t begin = begins.empty() ? 0 : static_cast<std::size_t>(begins[b]);
    ends[b] = static_cast<std::int32_t>(begin + p.in.below(keys - begin + 1));
  }
  opt.key_begins = begins, opt.key_ends = ends;
  p.note_options(static_cast<int>(opt.mask), opt.softcap, opt.offset, opt.window_left, opt.window_right, opt.prefix,
                 cumulative.size(), sinks.size(), begins.size(), ends.size());
  p.call({&o, &lse}, [&](auto s) {
    using S = decltype(s);
    tigon::attention_forward<typename S::backend, typename S::element>(q.heads(s), k.heads(s), v.heads(s), o.heads(s),
                                                                       lse.vec(s), opt, s.ctx);
  });
  // What the contract states, for inputs of any size.
  const attention_terms terms(q, k, v, d_o, lse, opt, std::same_as<A, float> ? 0x1p-100 : 0x1p-960);
  const double unit = std::same_as<A, float> ? 1 : 0x1p-30, bound = unit * of_terms * (1 + terms.score);
  p.compare(o, {.bound = bound, .terms = terms.o});
  p.compare(lse, {.bound = bound / 2, .scale = 1});
  // Without dq a dk of 16 bits is refused, and one of the reference is not.
  if (sizeof(T) == 2 && dq.damage == tigon::fuzz::fault::null) throw tigon::fuzz::end_of_case{};
  // Each side goes on with its own o: of a rounded one the reference would make a delta that is worse than that of
  // bf16.
  p.call({&dq, &dk, &dv, &dsinks}, [&](auto s) {
    using S = decltype(s);
    tigon::attention_backward<typename S::backend, typename S::element>(
        d_o.heads(s), q.heads(s), k.heads(s), v.heads(s), {o.heads(s), lse.vec(s)},
        tigon::attention_gradients{dq.heads(s), dk.heads(s), dv.heads(s), dsinks.vec(s)}, opt, s.ctx);
  });
  const double of_ds = bound + (d == 1 ? q.unit() * q.unit() : 0);  // a row of dq has room for half of delta's digits
  p.compare(dq, {.bound = of_ds, .terms = terms.dq});
  p.compare(dk, {.bound = of_ds, .terms = terms.dk});
  p.compare(dv, {.bound = bound, .terms = terms.dv});
  p.compare(dsinks, {.bound = bound + q.unit(), .terms = terms.dsinks});  // of the rounded o
}

template <class P>
void neighborhood_attention(P& p) {
  using T = typename P::element;
  using A = typename P::A;
  constexpr bounds forward{.f32 = 2e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 4e-15};
  constexpr bounds backward{.f32 = 3e-6, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 2.5e-15};
  const std::size_t batch = p.in.below(3), heads = p.in.between(1, 3), n = p.in.below(60), d = p.in.between(1, 40);
  const tigon::neighborhood_attention_options opt{.kernel_size = 1 + 2 * p.in.below(8), .dilation = p.in.between(1, 4)};
  auto &q = p.filled(p.heads("q", batch, heads, n, d), 0, 1, false),
       &k = p.filled(p.heads("k", batch, heads, n, d), 0, 1, false);
  auto &v = p.filled(p.heads("v", batch, heads, n, d), 0, 1, false),
       &d_o = p.filled(p.heads("do", batch, heads, n, d), 0, 1, false);
  auto &o = p.heads("o", batch, heads, n, d), &dq = p.heads("dq", batch, heads, n, d);
  auto &dk = p.heads("dk", batch, heads, n, d), &dv = p.heads("dv", batch, heads, n, d);
  const bool kept = p.in.one_in(2);
  auto& probs = p.template matrix<A>("probs", kept ? batch * heads * n : 0, kept ? opt.kernel_size : 0);
  auto& lse = p.template vector<A>("lse", kept ? batch * heads * n : 0);
  const auto saved_of = [&](auto s) {
    return kept ? std::pair(probs.at(s), lse.vec(s)) : decltype(std::pair(probs.at(s), lse.vec(s)))();
  };
  p.call({&o, &probs, &lse}, [&](auto s) {
    using S = decltype(s);
    tigon::neighborhood_attention_forward<typename S::backend, typename S::element>(
        q.heads(s), k.heads(s), v.heads(s), o.heads(s), {saved_of(s).first, saved_of(s).second}, opt, s.ctx);
  });
  const double stretch = p.stretch() * p.stretch();
  p.compare(o, {.bound = stretch * forward.of<T>()});
  probs.hand_over();
  const double terms =
      0.25 * p.size_of_terms({&d_o}) * (n == 0 ? 0 : p.size_of_terms({&v})) * std::sqrt(static_cast<double>(d));
  p.call({&dq, &dk, &dv}, [&](auto s) {
    using S = decltype(s);
    tigon::neighborhood_attention_backward<typename S::backend, typename S::element>(
        d_o.heads(s), q.heads(s), k.heads(s), v.heads(s), {saved_of(s).first, {}},
        tigon::neighborhood_attention_gradients{dq.heads(s), dk.heads(s), dv.heads(s)}, opt, s.ctx);
  });
  p.compare(dq, {.bound = stretch * backward.of<T>(), .scale = terms});
  p.compare(dk, {.bound = stretch * backward.of<T>(), .scale = terms});
  p.compare(dv, {.bound = stretch * backward.of<T>()});
}

template <class P>
void multi_token_attention(P& p) {
  using T = typename P::element;
  constexpr bounds forward{.f32 = 4e-7, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 2e-16};
  constexpr bounds of_probs{.f32 = 2e-6, .bf16 = 4e-3, .f16 = 6e-4, .f64 = 1e-15};
  constexpr bounds of_scores{.f32 = 4e-6, .bf16 = 1.2e-2, .f16 = 2e-3, .f64 = 2e-15};
  constexpr bounds of_parameters{.f32 = 6e-7, .bf16 = 8e-3, .f16 = 1e-3, .f64 = 1.2e-15};
  const std::size_t batch = p.in.between(1, 2), groups = p.in.between(1, 2), each = p.in.between(1, 2);
  const std::size_t heads_in = groups * each, heads_out = groups * p.in.between(1, 2), n = p.in.between(1, 40);
  const std::size_t half = p.in.below(3), taps = 1 + 2 * half;
  tigon::multi_token_attention_options opt{.padding = {half, half}, .groups = groups, .sparse = p.in.one_in(3)};
  opt.dparams = p.in.pick({tigon::gradient::overwrite, tigon::gradient::accumulate});
  auto& scores = p.filled(p.heads("scores", batch, heads_in, n, n), 0, 1, false);
  auto &w = p.filled(p.heads("w", heads_out, each, taps, taps), 0, 0.5, false),
       &b = p.filled(p.vector("b", heads_out), 0, 1, false);
  auto &y = p.heads("y", batch, heads_out, n, n), &probs = p.heads("probs", batch, heads_in, n, n);
  auto &dy = p.filled(p.heads("dy", batch, heads_out, n, n), 0, 1, false),
       &dscores = p.heads("dscores", batch, heads_in, n, n);
  auto &dw = p.heads("dw", heads_out, each, taps, taps), &db = p.vector("db", heads_out);
  if (opt.dparams == tigon::gradient::accumulate) p.fill(dw, 0, 1, false), p.fill(db, 0, 1, false);
  for (std::size_t c = 0; c < probs.size(); ++c) probs.set(c, 0);  // what is above the diagonal is not written
  p.call({&y, &probs}, [&](auto s) {
    using S = decltype(s);
    tigon::multi_token_attention_forward<typename S::backend, typename S::element>(
        scores.heads(s), w.heads(s), b.vec(s), y.heads(s), probs.heads(s), opt, s.ctx);
  });
  p.compare(probs, {.bound = of_probs.of<T>() * p.stretch()});
  p.compare(
      y, {.bound = forward.of<T>() * p.stretch() * 2, .scale = 1 + p.size_of_terms({&w}) * static_cast<double>(taps)});
  probs.hand_over();
  const double count = std::sqrt(static_cast<double>(batch * n * n));
  const double terms = p.size_of_terms({&dy}), of_w = p.size_of_terms({&w}) * static_cast<double>(taps) * terms;
  p.call({&dscores, &dw, &db}, [&](auto s) {
    using S = decltype(s);
    tigon::multi_token_attention_backward<typename S::backend, typename S::element>(
        dy.heads(s), w.heads(s), probs.heads(s),
        tigon::multi_token_attention_gradients{dscores.heads(s), dw.heads(s), db.vec(s)}, opt, s.ctx);
  });
  p.compare(dscores, {.bound = of_scores.of<T>(), .scale = of_w});
  p.compare(dw, {.bound = of_parameters.of<T>(), .scale = terms * std::sqrt(static_cast<double>(batch * n))});
  p.compare(db, {.bound = of_parameters.of<T>(), .scale = count * terms});
}

constexpr target all[] = {TIGON_FUZZ_TARGET(attention), TIGON_FUZZ_TARGET(neighborhood_attention),
                          TIGON_FUZZ_TARGET(multi_token_attention)};

}  // namespace

#include "driver.hpp"

std::span<const tigon::fuzz::target> tigon::fuzz::targets() { return all; }
