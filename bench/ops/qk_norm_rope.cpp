#include <tigon/ops/qk_norm_rope.hpp>
#include <tigon/ops/rms_norm.hpp>
#include <tigon/ops/rope.hpp>

#include "ops/rotary.hpp"
#include "ops/table.hpp"

namespace tigon_bench {
namespace {

/// `two_operators` is the same by rms_norm and rope, with a buffer between them, as the elementary steps have it.
template <class B, class T>
plan qk_norm_rope_plan(const request& r) {
  using A = tigon::accumulator_t<T>;
  const std::size_t batch = r.shape[0], seq_len = r.shape[1], heads = r.shape[2], kv_heads = r.shape[3],
                    head_dim = r.shape[4];
  const std::size_t tokens = batch * seq_len, q_size = tokens * heads * head_dim, k_size = tokens * kv_heads * head_dim;
  const bool two = std::same_as<B, plain> || r.variant == "two_operators";
  plan p;
  if (r.direction != mode::backward) p.limits.push_back(limit_request::stream(1, 1, (q_size + k_size) * sizeof(T)));
  if (r.direction != mode::forward) p.limits.push_back(limit_request::stream(2, 1, (q_size + k_size) * sizeof(T)));
  p.set_up = [=, direction = r.direction](tigon::context& ctx) -> runnable {
    const auto q = uniform<T>(q_size, -2, 2, 1), k = uniform<T>(k_size, -2, 2, 2),
               dq_out = uniform<T>(q_size, -2, 2, 3), dk_out = uniform<T>(k_size, -2, 2, 4),
               w = uniform<T>(head_dim, 0.5, 1.5, 5);
    const buffer<T> q_out(q_size), k_out(k_size), dq(q_size), dk(k_size), dw_q(head_dim), dw_k(head_dim);
    const buffer<T> between_q(two ? q_size : 0), between_k(two ? k_size : 0);
    const buffer<A> rstd_q(two ? tokens * heads : 0), rstd_k(two ? tokens * kv_heads : 0);
    const matrix<A> cos(seq_len, head_dim / 2), sin(seq_len, head_dim / 2);
    rotary_halves::fill(cos.view(), sin.view(), head_dim);
    const auto of = [=](const buffer<T>& b, std::size_t h) {
      return tigon::heads_view<T>::of_tokens(b.data(), batch, seq_len, h, head_dim);
    };
    const auto rows = [=](const buffer<T>& b, std::size_t h) {
      return tigon::matrix_view<T>(b.data(), tokens * h, head_dim);
    };
    const auto span = [=](const auto& b) { return std::span(b.data(), b.size()); };
    if constexpr (std::same_as<B, plain>)
      return {.run =
                  [=, &ctx] {
                    const tigon::vector_view<const T> weight{w.data(), w.size()};
                    const auto both = [&](auto one) {
                      one(q, between_q, q_out, dq_out, dq, dw_q, rstd_q, heads);
                      one(k, between_k, k_out, dk_out, dk, dw_k, rstd_k, kv_heads);
                    };
                    both([&](const auto& x, const auto& between, const auto& y, const auto& dy, const auto& dx,
                             const auto& dw, const auto& rstd, std::size_t h) {
                      const passes::position_of at{h, seq_len};
                      if (direction != mode::backward) {
                        passes::rms_norm_forward<T>(ctx, rows(x, h), weight, rows(between, h), rstd.data(), 1e-6);
                        passes::turn_halves<T, A>(ctx, rows(between, h), cos.view(), sin.view(), at, rows(y, h), A(1));
                      }
                      if (direction != mode::forward) {
                        passes::turn_halves<T, A>(ctx, rows(dy, h), cos.view(), sin.view(), at, rows(between, h),
                                                  A(-1));
                        passes::rms_norm_backward<T>(ctx, rows(between, h), rows(x, h), weight,
                                                     static_cast<const A*>(rstd.data()), rows(dx, h),
                                                     {dw.data(), dw.size()});
                      }
                    });
                  },
              .restore = {},
              .output_bytes = q_out.bytes() + k_out.bytes() + between_q.bytes() + between_k.bytes()};
    else
      return {
          .run =
              [=, &ctx] {
                if (direction != mode::backward && !two)
                  tigon::qk_norm_rope_forward<B>({of(q, heads), of(k, kv_heads)},
                                                 tigon::qk_norm_weights{span(w), span(w)},
                                                 tigon::rope_tables{cos.view(), sin.view()},
                                                 tigon::qk_heads{of(q_out, heads), of(k_out, kv_heads)}, {}, ctx);
                if (direction != mode::forward && !two)
                  tigon::qk_norm_rope_backward<B>(
                      {of(dq_out, heads), of(dk_out, kv_heads)}, {of(q, heads), of(k, kv_heads)},
                      tigon::qk_norm_weights{span(w), span(w)}, tigon::rope_tables{cos.view(), sin.view()},
                      tigon::qk_norm_rope_gradients{of(dq, heads), of(dk, kv_heads), span(dw_q), span(dw_k)}, {}, ctx);
                if (direction != mode::backward && two) {
                  tigon::rms_norm_forward<B>(rows(q, heads), span(w), rows(between_q, heads), span(rstd_q), {}, ctx);
                  tigon::rms_norm_forward<B>(rows(k, kv_heads), span(w), rows(between_k, kv_heads), span(rstd_k), {},
                                             ctx);
                  tigon::rope_forward<B>(of(between_q, heads), of(between_k, kv_heads), cos.view(), sin.view(),
                                         of(q_out, heads), of(k_out, kv_heads), {}, ctx);
                }
                if (direction != mode::forward && two) {
                  tigon::rope_backward<B>(of(dq_out, heads), of(dk_out, kv_heads), cos.view(), sin.view(),
                                          of(between_q, heads), of(between_k, kv_heads), {}, ctx);
                  tigon::rms_norm_backward<B>(rows(between_q, heads), rows(q, heads), span(w), span(rstd_q),
                                              rows(dq, heads), span(dw_q), {}, ctx);
                  tigon::rms_norm_backward<B>(rows(between_k, kv_heads), rows(k, kv_heads), span(w), span(rstd_k),
                                              rows(dk, kv_heads), span(dw_k), {}, ctx);
                }
              },
          .restore = {},
          .output_bytes = q_out.bytes() + k_out.bytes()};
  };
  return p;
}

}  // namespace

op_entry qk_norm_rope() {
  const extents usual{1, 2048, 32, 8, 128};
  const std::vector<mode> modes{mode::forward, mode::backward, mode::full};
  return with_plain({.name = "qk_norm_rope",
                     .dims = "batch x seq_len x heads x kv_heads x head_dim",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", usual, modes}, {"two_operators", usual, modes}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return qk_norm_rope_plan<B, T>(r); });
}

}  // namespace tigon_bench
