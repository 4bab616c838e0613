// Rotations, and attention with all scores in memory.
#include <tigon/ops/attention.hpp>
#include <tigon/ops/llama4_rope.hpp>
#include <tigon/ops/multi_token_attention.hpp>
#include <tigon/ops/neighborhood_attention.hpp>
#include <tigon/ops/qk_norm_rope.hpp>
#include <tigon/ops/qwen2vl_mrope.hpp>
#include <tigon/ops/rope.hpp>

#include "plain/attention.hpp"
#include "plain/check.hpp"
#include "plain/rotary.hpp"

namespace tigon_bench {
namespace {

using B = passes::lanes;
constexpr std::size_t batch = 2, len = 37, heads = 4, kv_heads = 2, dim = 24, tokens = batch * len;
using heads_view = tigon::heads_view<float>;

heads_view of(const buffer<float>& b, std::size_t h) { return heads_view::of_tokens(b.data(), batch, len, h, dim); }
tigon::matrix_view<float> rows(const buffer<float>& b, std::size_t h) { return passes::head_rows(of(b, h)); }

void rotations(tigon::context& ctx) {
  const auto q = uniform<float>(tokens * heads * dim, -2, 2, 1), k = uniform<float>(tokens * kv_heads * dim, -2, 2, 2);
  const auto cos = uniform_matrix<float>(3 * tokens, dim / 2, -1, 1, 3),
             sin = uniform_matrix<float>(3 * tokens, dim / 2, -1, 1, 4),
             freqs = uniform_matrix<float>(len, dim, -1, 1, 5);
  const auto short_cos = cos.view().rows_from(0, len), short_sin = sin.view().rows_from(0, len);
  both_buffers y(q.size()), y_k(k.size());
  const passes::position_of at{heads, len}, at_k{kv_heads, len};
  for (const bool back : {false, true}) {
    const float sign = back ? -1 : 1;
    passes::turn_halves<float, float>(ctx, rows(q, heads), cos.view(), sin.view(), at, rows(y.got, heads), sign);
    passes::turn_halves<float, float>(ctx, rows(k, kv_heads), cos.view(), sin.view(), at_k, rows(y_k.got, kv_heads),
                                      sign);
    if (back)
      tigon::rope_backward<B>(of(q, heads), of(k, kv_heads), short_cos, short_sin, of(y.want, heads),
                              of(y_k.want, kv_heads), {}, ctx);
    else
      tigon::rope_forward<B>(of(q, heads), of(k, kv_heads), short_cos, short_sin, of(y.want, heads),
                             of(y_k.want, kv_heads), {}, ctx);
    y.agree(back ? "rope dq" : "rope q"), y_k.agree(back ? "rope dk" : "rope k");

    passes::turn_neighbours<float, float>(ctx, rows(q, heads), freqs.view(), at, rows(y.got, heads), sign);
    if (back)
      tigon::llama4_rope_backward<B>(of(q, heads), of(k, kv_heads), freqs.view(), of(y.want, heads),
                                     of(y_k.want, kv_heads), {}, ctx);
    else
      tigon::llama4_rope_forward<B>(of(q, heads), of(k, kv_heads), freqs.view(), of(y.want, heads),
                                    of(y_k.want, kv_heads), {}, ctx);
    y.agree(back ? "llama4_rope dq" : "llama4_rope q");

    const tigon::qwen2vl_mrope_options sections{.sections = {4, 5, 3}};
    const matrix<float> c(tokens, dim / 2), z(tokens, dim / 2);
    passes::section_table<float>(ctx, cos.view(), sections.sections, c.view());
    passes::section_table<float>(ctx, sin.view(), sections.sections, z.view());
    passes::turn_halves<float, float>(ctx, rows(q, heads), c.view(), z.view(), {heads, len, true}, rows(y.got, heads),
                                      sign);
    if (back)
      tigon::qwen2vl_mrope_backward<B>(of(q, heads), of(k, kv_heads), cos.view(), sin.view(), of(y.want, heads),
                                       of(y_k.want, kv_heads), sections, ctx);
    else
      tigon::qwen2vl_mrope_forward<B>(of(q, heads), of(k, kv_heads), cos.view(), sin.view(), of(y.want, heads),
                                      of(y_k.want, kv_heads), sections, ctx);
    y.agree(back ? "qwen2vl_mrope dq" : "qwen2vl_mrope q");
  }

  // qk_norm_rope: the norm, then the rotation.
  const auto w = uniform<float>(dim, 0.5, 1.5, 6), dy = uniform<float>(q.size(), -1, 1, 7),
             dy_k = uniform<float>(k.size(), -1, 1, 8);
  const buffer<float> between(q.size()), rstd(tokens * heads);
  both_buffers dq(q.size()), dk(k.size()), dw(dim), dw_k(dim);
  passes::rms_norm_forward<float>(ctx, rows(q, heads), in(w), rows(between, heads), rstd.data(), 1e-6);
  passes::turn_halves<float, float>(ctx, rows(between, heads), cos.view(), sin.view(), at, rows(y.got, heads), 1);
  passes::turn_halves<float, float>(ctx, rows(dy, heads), cos.view(), sin.view(), at, rows(between, heads), -1);
  passes::rms_norm_backward<float>(ctx, rows(between, heads), rows(q, heads), in(w),
                                   static_cast<const float*>(rstd.data()), rows(dq.got, heads), out(dw.got));
  const tigon::rope_tables tables{short_cos, short_sin};
  tigon::qk_norm_rope_forward<B>({of(q, heads), of(k, kv_heads)}, tigon::qk_norm_weights{w.span(), w.span()}, tables,
                                 tigon::qk_heads{of(y.want, heads), of(y_k.want, kv_heads)}, {}, ctx);
  tigon::qk_norm_rope_backward<B>(
      {of(dy, heads), of(dy_k, kv_heads)}, {of(q, heads), of(k, kv_heads)}, tigon::qk_norm_weights{w.span(), w.span()},
      tables,
      tigon::qk_norm_rope_gradients{of(dq.want, heads), of(dk.want, kv_heads), dw.want.span(), dw_k.want.span()}, {},
      ctx);
  y.agree("qk_norm_rope q"), dq.agree("qk_norm_rope dq"), dw.agree("qk_norm_rope dw_q");
}

void scores(tigon::context& ctx) {
  const std::size_t of_q = tokens * heads * dim, of_k = tokens * kv_heads * dim;
  const auto q = uniform<float>(of_q, -1, 1, 1), k = uniform<float>(of_q, -1, 1, 2), v = uniform<float>(of_q, -1, 1, 3),
             dy = uniform<float>(of_q, -1, 1, 4);
  both_buffers y(of_q), dq(of_q), dk(of_k), dv(of_k), dk_all(of_q), dv_all(of_q);
  const passes::attention_steps<float, passes::causal_keys> causal(batch, len, heads, dim, {}, true);
  causal.forward(ctx, of(q, heads), of(k, kv_heads), of(v, kv_heads), of(y.got, heads));
  causal.backward(ctx, of(dy, heads), of(q, heads), of(k, kv_heads), of(v, kv_heads),
                  {of(dq.got, heads), of(dk.got, kv_heads), of(dv.got, kv_heads)});
  const buffer<float> lse(batch * heads * len);
  tigon::attention_forward<B, float>(of(q, heads), of(k, kv_heads), of(v, kv_heads), of(y.want, heads), lse.span(), {},
                                     ctx);
  tigon::attention_backward<B, float>(
      of(dy, heads), of(q, heads), of(k, kv_heads), of(v, kv_heads), {of(y.want, heads), lse.span()},
      tigon::attention_gradients{of(dq.want, heads), of(dk.want, kv_heads), of(dv.want, kv_heads)}, {}, ctx);
  y.agree("attention o"), dq.agree("attention dq"), dk.agree("attention dk"), dv.agree("attention dv");

  for (const std::size_t dilation : {1, 3}) {
    const tigon::neighborhood_attention_options opt{.kernel_size = 5, .dilation = dilation};
    const passes::attention_steps<float, passes::near_keys> near(batch, len, heads, dim, {5, dilation}, true);
    near.forward(ctx, of(q, heads), of(k, heads), of(v, heads), of(y.got, heads));
    near.backward(ctx, of(dy, heads), of(q, heads), of(k, heads), of(v, heads),
                  {of(dq.got, heads), of(dk_all.got, heads), of(dv_all.got, heads)});
    const matrix<float> probs(batch * heads * len, 5);
    tigon::neighborhood_attention_forward<B, float>(of(q, heads), of(k, heads), of(v, heads), of(y.want, heads),
                                                    {probs.view(), lse.span()}, opt, ctx);
    tigon::neighborhood_attention_backward<B, float>(
        of(dy, heads), of(q, heads), of(k, heads), of(v, heads), {probs.view(), {}},
        {of(dq.want, heads), of(dk_all.want, heads), of(dv_all.want, heads)}, opt, ctx);
    y.agree("neighborhood_attention o"), dq.agree("neighborhood_attention dq");
    dk_all.agree("neighborhood_attention dk"), dv_all.agree("neighborhood_attention dv");
  }
}

void mixing(tigon::context& ctx) {
  for (const bool sparse : {false, true}) {
    constexpr std::size_t from = 3, to = 2, taps = 3, weights = to * from * taps * taps;
    const auto planes = [](const matrix<float>& m) {
      return heads_view::of_heads(m.view().data, batch, m.rows / batch / len, len, len);
    };
    const auto as_taps = [](const buffer<float>& m) { return heads_view::of_heads(m.data(), to, from, taps, taps); };
    const auto x = uniform_matrix<float>(batch * from * len, len, -2, 2, 1),
               dy = uniform_matrix<float>(batch * to * len, len, -1, 1, 2);
    const auto w = uniform<float>(weights, -1, 1, 3), b = uniform<float>(to, -1, 1, 4);
    both_matrices y(dy.rows, len), dx(x.rows, len);
    both_buffers dw(weights), db(to);
    const passes::mixing_steps<float> steps({batch, len, from, to, taps, sparse}, true);
    const passes::in<float> w_rows(w.data(), weights / taps, taps);
    steps.forward(ctx, x.view(), w_rows, b.data(), y.got.view());
    steps.backward(ctx, dy.view(), w_rows, dx.got.view(), dw.got.data(), db.got.data());
    const matrix<float> probs(x.rows, len);
    const tigon::multi_token_attention_options opt{.padding = taps / 2, .sparse = sparse};
    tigon::multi_token_attention_forward<B, float>(planes(x), as_taps(w), b.span(), planes(y.want), planes(probs), opt,
                                                   ctx);
    tigon::multi_token_attention_backward<B, float>(
        planes(dy), as_taps(w), planes(probs),
        tigon::multi_token_attention_gradients<float>{planes(dx.want), as_taps(dw.want), db.want.span()}, opt, ctx);
    y.agree("multi_token_attention y"), dx.agree("multi_token_attention dscores");
    dw.agree("multi_token_attention dw"), db.agree("multi_token_attention db");
  }
}

}  // namespace

void check_heads(tigon::context& ctx) { rotations(ctx), scores(ctx), mixing(ctx); }

}  // namespace tigon_bench
