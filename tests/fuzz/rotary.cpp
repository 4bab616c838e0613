// Fuzzing of rotations of heads.
#include <tigon/ops/llama4_rope.hpp>
#include <tigon/ops/qk_norm_rope.hpp>
#include <tigon/ops/qwen2vl_mrope.hpp>
#include <tigon/ops/rope.hpp>

#include "problem.hpp"
#include "support/kernels.hpp"

namespace {

using namespace tigon::fuzz;

constexpr bounds rotated{.f32 = 2e-7, .bf16 = 4e-3, .f16 = 5e-4, .f64 = 4e-16};

/// q, k, where they go, and a table of `width` columns for all sequences or for each.
template <class P>
struct some_heads {
  using T = typename P::element;
  std::size_t batch, heads, kv_heads, n, d;
  twin<T>&q, &k, &q_out, &k_out;
  some_heads(P& p, std::size_t multiple)
      : batch(p.in.below(3)),
        heads(p.in.between(1, 4)),
        kv_heads(p.in.between(1, 2)),
        n(p.in.below(12)),
        d(multiple * p.in.between(1, 40)),
        q(p.filled(p.heads("q", batch, heads, n, d), 0, 1, false)),
        k(p.filled(p.heads("k", batch, kv_heads, n, d), 0, 1, false)),
        q_out(p.heads("q_out", batch, heads, n, d)),
        k_out(p.heads("k_out", batch, kv_heads, n, d)) {}
};

template <class P>
auto& some_table(P& p, const char* name, std::size_t rows, std::size_t cols) {
  auto& table = p.matrix(name, rows, cols);
  generator next(p.in.seed() + rows);
  for (std::size_t c = 0; c < table.size(); ++c) table.set(c, 2 * next.unit() - 1);
  return table;
}

template <class P>
void rope(P& p) {
  using T = typename P::element;
  some_heads<P> h(p, p.in.one_in(4) ? 1 : 2);
  tigon::rope_options opt{.columns = p.in.pick({tigon::rotary_columns::first, tigon::rotary_columns::last}),
                          .pairs = p.in.pick({tigon::rotary_pairs::halves, tigon::rotary_pairs::neighbours})};
  if (h.d % 2 == 1 || p.in.one_in(3)) opt.rotary_dim = 2 * p.in.between(0, h.d / 2);
  const std::size_t turned = opt.rotary_dim == tigon::whole_head ? h.d : opt.rotary_dim;
  const std::size_t rows = p.in.one_in(3) ? h.batch * h.n : h.n;
  auto &cos = some_table(p, "cos", rows, turned / 2), &sin = some_table(p, "sin", rows, turned / 2);
  auto &dq = p.heads("dq", h.batch, h.heads, h.n, h.d), &dk = p.heads("dk", h.batch, h.kv_heads, h.n, h.d);
  const double of_q = 2 * p.size_of_terms({&h.q}), of_k = 2 * p.size_of_terms({&h.k});
  auto &q_to = p.in_place(h.q_out, {&h.q}), &k_to = p.in_place(h.k_out, {&h.k});
  p.call({&q_to, &k_to}, [&](auto s) {
    using S = decltype(s);
    tigon::rope_forward<typename S::backend, typename S::element>(h.q.heads(s), h.k.heads(s), cos.at(s), sin.at(s),
                                                                  q_to.heads(s), k_to.heads(s), opt, s.ctx);
  });
  p.compare(q_to, {.bound = rotated.of<T>(), .scale = of_q});
  p.compare(k_to, {.bound = rotated.of<T>(), .scale = of_k});
  q_to.hand_over(), k_to.hand_over();
  p.call({&dq, &dk}, [&](auto s) {
    using S = decltype(s);
    tigon::rope_backward<typename S::backend, typename S::element>(q_to.heads(s), k_to.heads(s), cos.at(s), sin.at(s),
                                                                   dq.heads(s), dk.heads(s), opt, s.ctx);
  });
  p.compare(dq, {.bound = rotated.of<T>(), .scale = of_q});
  p.compare(dk, {.bound = rotated.of<T>(), .scale = of_k});
}

template <class P>
void llama4_rope(P& p) {
  using T = typename P::element;
  some_heads<P> h(p, 2);
  const tigon::llama4_rope_options opt{.freqs =
                                           p.in.pick({tigon::rotary_table::shared, tigon::rotary_table::per_sequence})};
  const bool shared = opt.freqs == tigon::rotary_table::shared;
  auto& freqs = some_table(p, "freqs", shared ? h.n + p.in.below(3) : h.batch * h.n, h.d);
  auto &dq = p.heads("dq", h.batch, h.heads, h.n, h.d), &dk = p.heads("dk", h.batch, h.kv_heads, h.n, h.d);
  const double of_q = 2 * p.size_of_terms({&h.q}), of_k = 2 * p.size_of_terms({&h.k});
  auto &q_to = p.in_place(h.q_out, {&h.q}), &k_to = p.in_place(h.k_out, {&h.k});
  p.call({&q_to, &k_to}, [&](auto s) {
    using S = decltype(s);
    tigon::llama4_rope_forward<typename S::backend, typename S::element>(h.q.heads(s), h.k.heads(s), freqs.at(s),
                                                                         q_to.heads(s), k_to.heads(s), opt, s.ctx);
  });
  p.compare(q_to, {.bound = rotated.of<T>(), .scale = of_q});
  p.compare(k_to, {.bound = rotated.of<T>(), .scale = of_k});
  q_to.hand_over(), k_to.hand_over();
  p.call({&dq, &dk}, [&](auto s) {
    using S = decltype(s);
    tigon::llama4_rope_backward<typename S::backend, typename S::element>(q_to.heads(s), k_to.heads(s), freqs.at(s),
                                                                          dq.heads(s), dk.heads(s), opt, s.ctx);
  });
  p.compare(dq, {.bound = rotated.of<T>(), .scale = of_q});
  p.compare(dk, {.bound = rotated.of<T>(), .scale = of_k});
}

template <class P>
void qk_norm_rope(P& p) {
  using T = typename P::element;
  constexpr bounds forward{.f32 = 1e-6, .bf16 = 1.5e-2, .f16 = 2e-3, .f64 = 2e-15};
  constexpr bounds backward{.f32 = 2e-6, .bf16 = 2e-2, .f16 = 3e-3, .f64 = 2e-15};
  some_heads<P> h(p, 2);
  tigon::qk_norm_rope_options opt{.eps = p.in.pick({1e-6, 1e-3}), .offset = p.in.pick({0.0, 1.0})};
  opt.casting = p.in.pick({tigon::casting::llama, tigon::casting::none});
  opt.pairs = p.in.pick({tigon::rotary_pairs::halves, tigon::rotary_pairs::neighbours});
  opt.dw = p.in.pick({tigon::gradient::overwrite, tigon::gradient::accumulate});
  if (p.in.one_in(3)) opt.rotary_dim = 2 * p.in.between(0, h.d / 2);
  const std::size_t turned = opt.rotary_dim == tigon::whole_head ? h.d : opt.rotary_dim;
  auto &w_q = p.filled(p.vector("w_q", h.d), 1, 0.5, false), &w_k = p.filled(p.vector("w_k", h.d), 1, 0.5, false);
  auto &cos = some_table(p, "cos", h.n, turned / 2), &sin = some_table(p, "sin", h.n, turned / 2);
  for (std::size_t c = 0; c < cos.size(); ++c) sin.set(c, std::sqrt(1 - cos.got(c) * cos.got(c)));
  auto& dq_out = p.filled(p.heads("dq_out", h.batch, h.heads, h.n, h.d), 0, 1, false);
  auto& dk_out = p.filled(p.heads("dk_out", h.batch, h.kv_heads, h.n, h.d), 0, 1, false);
  auto &dq = p.heads("dq", h.batch, h.heads, h.n, h.d), &dk = p.heads("dk", h.batch, h.kv_heads, h.n, h.d);
  auto &dw_q = p.vector("dw_q", h.d), &dw_k = p.vector("dw_k", h.d);
  if (opt.dw == tigon::gradient::accumulate) p.fill(dw_q, 0, 1, false), p.fill(dw_k, 0, 1, false);
  p.call({&h.q_out, &h.k_out}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    tigon::qk_norm_rope_forward<typename S::backend, E>(
        {h.q.heads(s), h.k.heads(s)}, tigon::qk_norm_weights{w_q.vec(s), w_k.vec(s)},
        tigon::rope_tables<E>{cos.at(s), sin.at(s)}, tigon::qk_heads{h.q_out.heads(s), h.k_out.heads(s)}, opt, s.ctx);
  });
  p.compare(h.q_out, {.bound = forward.of<T>(), .scale = 2});
  p.compare(h.k_out, {.bound = forward.of<T>(), .scale = 2});
  // Heads that are almost zero have gradients of any size, whose terms cancel.
  const auto steepest = [&](const argument& x) {
    double least = 1e300;
    for (std::size_t i = 0; i < x.rows(); ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < h.d; ++j) sum += x.wanted(i * h.d + j) * x.wanted(i * h.d + j);
      least = std::min(least, sum / static_cast<double>(h.d));
    }
    return 4 / std::sqrt(least + opt.eps);
  };
  const double of_q = steepest(h.q), of_k = steepest(h.k);
  auto &q_to = p.in_place(dq, {&dq_out, &h.q}), &k_to = p.in_place(dk, {&dk_out, &h.k});
  p.call({&q_to, &k_to, &dw_q, &dw_k}, [&](auto s) {
    using S = decltype(s);
    using E = typename S::element;
    tigon::qk_norm_rope_backward<typename S::backend, E>(
        {dq_out.heads(s), dk_out.heads(s)}, {h.q.heads(s), h.k.heads(s)},
        tigon::qk_norm_weights{w_q.vec(s), w_k.vec(s)}, tigon::rope_tables<E>{cos.at(s), sin.at(s)},
        tigon::qk_norm_rope_gradients{q_to.heads(s), k_to.heads(s), dw_q.vec(s), dw_k.vec(s)}, opt, s.ctx);
  });
  p.compare(q_to, {.bound = backward.of<T>(), .scale = of_q});
  p.compare(k_to, {.bound = backward.of<T>(), .scale = of_k});
  p.compare(dw_q,
            {.bound = backward.of<T>(), .scale = 2 * std::sqrt(static_cast<double>(h.batch * h.heads * h.n + 1))});
  p.compare(dw_k,
            {.bound = backward.of<T>(), .scale = 2 * std::sqrt(static_cast<double>(h.batch * h.kv_heads * h.n + 1))});
}

template <class P>
void qwen2vl_mrope(P& p) {
  using T = typename P::element;
  some_heads<P> h(p, 2);
  const std::size_t half = h.d / 2, time = p.in.between(0, half), height = p.in.between(0, half - time);
  const tigon::qwen2vl_mrope_options opt{.sections = {time, height, half - time - height}};
  const std::size_t rows = 3 * h.batch * h.n, width = half + p.in.below(3);
  auto &cos = some_table(p, "cos", rows, width), &sin = some_table(p, "sin", rows, width);
  auto &dq = p.heads("dq", h.batch, h.heads, h.n, h.d), &dk = p.heads("dk", h.batch, h.kv_heads, h.n, h.d);
  const double of_q = 2 * p.size_of_terms({&h.q}), of_k = 2 * p.size_of_terms({&h.k});
  auto &q_to = p.in_place(h.q_out, {&h.q}), &k_to = p.in_place(h.k_out, {&h.k});
  p.call({&q_to, &k_to}, [&](auto s) {
    using S = decltype(s);
    tigon::qwen2vl_mrope_forward<typename S::backend, typename S::element>(
        h.q.heads(s), h.k.heads(s), cos.at(s), sin.at(s), q_to.heads(s), k_to.heads(s), opt, s.ctx);
  });
  p.compare(q_to, {.bound = rotated.of<T>(), .scale = of_q});
  p.compare(k_to, {.bound = rotated.of<T>(), .scale = of_k});
  q_to.hand_over(), k_to.hand_over();
  p.call({&dq, &dk}, [&](auto s) {
    using S = decltype(s);
    tigon::qwen2vl_mrope_backward<typename S::backend, typename S::element>(
        q_to.heads(s), k_to.heads(s), cos.at(s), sin.at(s), dq.heads(s), dk.heads(s), opt, s.ctx);
  });
  p.compare(dq, {.bound = rotated.of<T>(), .scale = of_q});
  p.compare(dk, {.bound = rotated.of<T>(), .scale = of_k});
}

constexpr target all[] = {TIGON_FUZZ_TARGET(rope), TIGON_FUZZ_TARGET(llama4_rope), TIGON_FUZZ_TARGET(qk_norm_rope),
                          TIGON_FUZZ_TARGET(qwen2vl_mrope)};

}  // namespace

#include "driver.hpp"

std::span<const tigon::fuzz::target> tigon::fuzz::targets() { return all; }
