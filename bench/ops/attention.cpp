#include <tigon/ops/attention.hpp>

#include "ops/table.hpp"
#include "plain/attention.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <type_traits>

namespace tigon_bench {
namespace {

/// Causal: half of the scores exist. Forward has two products of seq_len^2 d / 2 multiply-adds a head, one of them of
/// the width of values, backward five, two of them (the scores are made again). `training` and `wide` are shapes of a
/// model, `latent` one of latent attention; compare them with gemm's variant `square` of the same run.
template <class B, class T>
plan attention_plan(const request& r) {
  const std::size_t batch = r.shape[0], seq_len = r.shape[1], heads = r.shape[2], kv_heads = r.shape[3],
                    head_dim = r.shape[4], v_head_dim = r.shape.size() > 5 ? r.shape[5] : head_dim;
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  const double scores =
      static_cast<double>(batch * heads) * static_cast<double>(seq_len) * (static_cast<double>(seq_len) + 1) / 2;
  const double of_keys = 2 * scores * static_cast<double>(head_dim),
               of_values = 2 * scores * static_cast<double>(v_head_dim);
  // Probabilities stay in f32 between the products, so f32 bounds the 16-bit types as well.
  const limit_bound bound = std::is_same_v<T, double> ? limit_bound::fma_f64 : limit_bound::fma_f32;
  plan p;
  p.limits.push_back(limit_request::peak(bound, of_keys * ((forward ? 1 : 0) + (backward ? 3 : 0)) +
                                                    of_values * ((forward ? 1 : 0) + (backward ? 2 : 0))));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const std::size_t q_size = batch * seq_len * heads * head_dim, k_size = batch * seq_len * kv_heads * head_dim;
    const std::size_t o_size = batch * seq_len * heads * v_head_dim, v_size = batch * seq_len * kv_heads * v_head_dim;
    const auto q = uniform<T>(q_size, -1, 1, 1), k = uniform<T>(k_size, -1, 1, 2), v = uniform<T>(v_size, -1, 1, 3);
    const buffer<T> o(o_size);
    const buffer<A> lse(std::same_as<B, plain> ? 0 : batch * heads * seq_len);
    const auto of_q = [=](const buffer<T>& b) {
      return tigon::heads_view<T>::of_tokens(b.data(), batch, seq_len, heads, head_dim);
    };
    const auto of_k = [=](const buffer<T>& b) {
      return tigon::heads_view<T>::of_tokens(b.data(), batch, seq_len, kv_heads, head_dim);
    };
    const auto of_v = [=](const buffer<T>& b) {
      return tigon::heads_view<T>::of_tokens(b.data(), batch, seq_len, kv_heads, v_head_dim);
    };
    const auto of_o = [=](const buffer<T>& b) {
      return tigon::heads_view<T>::of_tokens(b.data(), batch, seq_len, heads, v_head_dim);
    };
    const auto steps = steps_for<B, passes::attention_steps<T, passes::causal_keys>>(batch, seq_len, heads, head_dim,
                                                                                     passes::causal_keys(), backward);
    const auto run_forward = [=, &ctx] {
      if constexpr (std::same_as<B, plain>)
        steps->forward(ctx, of_q(q), of_k(k), of_v(v), of_o(o));
      else
        tigon::attention_forward<B, T>(of_q(q), of_k(k), of_v(v), of_o(o), lse.span(), {}, ctx);
    };
    if (!backward)
      return {.run = run_forward, .restore = {}, .output_bytes = o.bytes() + lse.bytes() + bytes_of(steps)};

    run_forward();  // leaves o and lse
    const auto d_o = uniform<T>(o_size, -1, 1, 4);
    const buffer<T> dq(q_size), dk(k_size), dv(v_size);
    return {.run =
                [=, &ctx] {
                  if (forward) run_forward();
                  if constexpr (std::same_as<B, plain>)
                    steps->backward(ctx, of_o(d_o), of_q(q), of_k(k), of_v(v), {of_q(dq), of_k(dk), of_v(dv)});
                  else
                    tigon::attention_backward<B, T>(of_o(d_o), of_q(q), of_k(k), of_v(v), {of_o(o), lse.span()},
                                                    tigon::attention_gradients{of_q(dq), of_k(dk), of_v(dv)}, {}, ctx);
                },
            .restore = {},
            .output_bytes =
                dq.bytes() + dk.bytes() + dv.bytes() + (forward ? o.bytes() + lse.bytes() : 0) + bytes_of(steps)};
  };
  return p;
}

}  // namespace

op_entry attention() {
  return with_plain({.name = "attention",
                     .dims = "batch x seq_len x heads x kv_heads x head_dim",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {1, 1024, 8, 2, 64}, {mode::forward, mode::backward, mode::full}},
                                  {"training", {1, 4096, 12, 4, 64}, {mode::forward, mode::backward}},
                                  {"wide", {1, 4096, 12, 4, 128}, {mode::forward, mode::backward}},
                                  {"latent",
                                   {1, 2048, 8, 8, 192, 128},
                                   {mode::forward, mode::backward},
                                   "batch x seq_len x heads x kv_heads x head_dim x v_head_dim"}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return attention_plan<B, T>(r); });
}

}  // namespace tigon_bench
