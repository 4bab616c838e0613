#include <tigon/ops/neighborhood_attention.hpp>

#include "ops/table.hpp"
#include "plain/attention.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

namespace tigon_bench {
namespace {

template <class B, class T>
plan neighborhood_attention_plan(const request& r) {
  const std::size_t batch = r.shape[0], seq_len = r.shape[1], heads = r.shape[2], head_dim = r.shape[3];
  const tigon::neighborhood_attention_options opt{.kernel_size = r.shape[4], .dilation = r.shape[5]};
  const bool forward = has_forward(r.direction), backward = has_backward(r.direction),
             saves = r.direction != mode::no_grad_forward;
  const std::size_t size = batch * seq_len * heads * head_dim;
  plan p;
  // q, k, v; o. do, q, k, v; dq, dk, dv. Scores are small beside them, and their arithmetic is hidden behind memory.
  if (forward) p.limits.push_back(limit_request::stream(3, 1, size * sizeof(T)));
  if (backward) p.limits.push_back(limit_request::stream(4, 3, size * sizeof(T)));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const auto q = uniform<T>(size, -1, 1, 1), k = uniform<T>(size, -1, 1, 2), v = uniform<T>(size, -1, 1, 3),
               d_o = uniform<T>(size, -1, 1, 4);
    const buffer<T> o(size), dq(size), dk(size), dv(size);
    const std::size_t queries = std::same_as<B, plain> || !saves ? 0 : batch * heads * seq_len;
    const matrix<A> probs(queries, opt.kernel_size);
    const buffer<A> lse(queries);
    const auto of = [=](const buffer<T>& b) {
      return tigon::heads_view<T>::of_tokens(b.data(), batch, seq_len, heads, head_dim);
    };
    const tigon::neighborhood_attention_gradients<T> to{of(dq), of(dk), of(dv)};
    const std::size_t gradient_bytes = dq.bytes() + dk.bytes() + dv.bytes();
    const auto steps = steps_for<B, passes::attention_steps<T, passes::near_keys>>(
        batch, seq_len, heads, head_dim, passes::near_keys{opt.kernel_size, opt.dilation}, backward);
    const auto run_forward = [=, &ctx] {
      if constexpr (std::same_as<B, plain>)
        steps->forward(ctx, of(q), of(k), of(v), of(o));
      else if (saves)
        tigon::neighborhood_attention_forward<B, T>(of(q), of(k), of(v), of(o), {probs.view(), lse.span()}, opt, ctx);
      else
        tigon::neighborhood_attention_forward<B, T>(of(q), of(k), of(v), of(o), {}, opt, ctx);
    };
    const std::size_t forward_bytes = o.bytes() + probs.bytes() + lse.bytes() + bytes_of(steps);
    if (!backward) return {.run = run_forward, .restore = {}, .output_bytes = forward_bytes};
    run_forward();  // leaves probs
    return {.run =
                [=, &ctx] {
                  if (forward) run_forward();
                  if constexpr (std::same_as<B, plain>)
                    steps->backward(ctx, of(d_o), of(q), of(k), of(v), {to.dq, to.dk, to.dv});
                  else
                    tigon::neighborhood_attention_backward<B, T>(of(d_o), of(q), of(k), of(v), {probs.view(), {}}, to,
                                                                 opt, ctx);
                },
            .restore = {},
            .output_bytes = gradient_bytes + (forward ? forward_bytes : 0)};
  };
  return p;
}

}  // namespace

op_entry neighborhood_attention() {
  return with_plain({.name = "neighborhood_attention",
                     .dims = "batch x seq_len x heads x head_dim x kernel_size x dilation",
                     .dtypes = all_dtypes(),
                     .variants = {{"default",
                                   {1, 4096, 8, 64, 7, 1},
                                   {mode::no_grad_forward, mode::forward, mode::backward, mode::full}}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return neighborhood_attention_plan<B, T>(r); });
}

}  // namespace tigon_bench
