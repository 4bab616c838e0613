// Operators on heads: norm and rotation, neighborhood attention, multi-token attention.
#include <tigon/ops/multi_token_attention.hpp>
#include <tigon/ops/neighborhood_attention.hpp>
#include <tigon/ops/qk_norm_rope.hpp>

#include "declared.hpp"
#include "groups.hpp"

namespace tigon_torch {
namespace {

using backend = tigon::default_backend;

struct qk_numbers {
  double eps, offset;
  int casting;
  bool last, neighbours;
};
tigon::qk_norm_rope_options qk_options(const qk_numbers& n, std::size_t rotary_dim) {
  tigon::qk_norm_rope_options opt;
  opt.eps = n.eps, opt.offset = n.offset, opt.casting = static_cast<tigon::casting>(n.casting);
  opt.rotary_dim = rotary_dim;
  opt.columns = n.last ? tigon::rotary_columns::last : tigon::rotary_columns::first;
  opt.pairs = n.neighbours ? tigon::rotary_pairs::neighbours : tigon::rotary_pairs::halves;
  return opt;
}
/// Tables have a column for each pair.
void qk_norm_rope(const host& h, heads q, heads k, vector wq, vector wk, wide_matrix cos, wide_matrix sin, heads q_out,
                  heads k_out, double eps, double offset, int casting, bool last, bool neighbours) {
  with_type<tigon::op::qk_norm_rope>("qk_norm_rope", q.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h, [&](const tigon::context& ctx) { return tigon::qk_norm_rope_workspace<backend, T>(q.head_dim, ctx); },
        [&](tigon::context& ctx) {
          tigon::qk_norm_rope_forward<backend, T>(
              {view<const T>(q), view<const T>(k)}, tigon::qk_norm_weights{view<const A>(wq), view<const A>(wk)},
              tigon::rope_tables{view<const A>(cos), view<const A>(sin)},
              tigon::qk_heads{view<T>(q_out), view<T>(k_out)},
              qk_options({eps, offset, casting, last, neighbours}, 2 * cos.cols), ctx);
        });
  });
}
void qk_norm_rope_backward(const host& h, heads dq_out, heads dk_out, heads q, heads k, vector wq, vector wk,
                           wide_matrix cos, wide_matrix sin, heads dq, heads dk, vector dwq, vector dwk, double eps,
                           double offset, int casting, bool last, bool neighbours) {
  with_type<tigon::op::qk_norm_rope>("qk_norm_rope_backward", q.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::qk_norm_rope_backward_workspace<backend, T>(q.batch * q.seq_len * (q.heads + k.heads),
                                                                    q.head_dim, ctx);
        },
        [&](tigon::context& ctx) {
          tigon::qk_norm_rope_backward<backend, T>(
              {view<const T>(dq_out), view<const T>(dk_out)}, {view<const T>(q), view<const T>(k)},
              tigon::qk_norm_weights{view<const A>(wq), view<const A>(wk)},
              tigon::rope_tables{view<const A>(cos), view<const A>(sin)},
              tigon::qk_norm_rope_gradients{view<T>(dq), view<T>(dk), view<A>(dwq), view<A>(dwk)},
              qk_options({eps, offset, casting, last, neighbours}, 2 * cos.cols), ctx);
        });
  });
}

/// Probabilities are made again in backward.
void neighborhood_attention(const host& h, heads q, heads k, heads v, heads o, std::size_t kernel_size,
                            std::size_t dilation, double scale) {
  with_type<tigon::op::neighborhood_attention>("neighborhood_attention", q.of, [&]<class T>() {
    const tigon::neighborhood_attention_options opt{kernel_size, dilation, scale};
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::neighborhood_attention_workspace<backend, T>(q.batch * q.heads * q.seq_len, opt,
                                                                     ctx.executor().workers(), false);
        },
        [&](tigon::context& ctx) {
          tigon::neighborhood_attention_forward(view<const T>(q), view<const T>(k), view<const T>(v), view<T>(o), {},
                                                opt, ctx);
        });
  });
}
void neighborhood_attention_backward(const host& h, heads d_o, heads q, heads k, heads v, heads dq, heads dk, heads dv,
                                     std::size_t kernel_size, std::size_t dilation, double scale) {
  with_type<tigon::op::neighborhood_attention>("neighborhood_attention_backward", q.of, [&]<class T>() {
    const tigon::neighborhood_attention_options opt{kernel_size, dilation, scale};
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::neighborhood_attention_backward_workspace<backend, T>(q.batch * q.heads * q.seq_len, opt,
                                                                              ctx.executor().workers(), false);
        },
        [&](tigon::context& ctx) {
          tigon::neighborhood_attention_backward(
              view<const T>(d_o), view<const T>(q), view<const T>(k), view<const T>(v), {},
              tigon::neighborhood_attention_gradients<T>{view<T>(dq), view<T>(dk), view<T>(dv)}, opt, ctx);
        });
  });
}

struct convolution_numbers {
  std::size_t stride_q, stride_k, padding_q, padding_k, dilation_q, dilation_k, groups;
  bool sparse;
};
tigon::multi_token_attention_options convolution(const convolution_numbers& n) {
  tigon::multi_token_attention_options opt;
  opt.stride = {n.stride_q, n.stride_k}, opt.padding = {n.padding_q, n.padding_k};
  opt.dilation = {n.dilation_q, n.dilation_k}, opt.groups = n.groups, opt.sparse = n.sparse;
  return opt;
}
void multi_token_attention(const host& h, heads scores, heads w, narrow_vector b, heads y, heads probs,
                           std::size_t stride_q, std::size_t stride_k, std::size_t padding_q, std::size_t padding_k,
                           std::size_t dilation_q, std::size_t dilation_k, std::size_t groups, bool sparse) {
  with_type<tigon::op::multi_token_attention>("multi_token_attention", scores.of, [&]<class T>() {
    const auto opt = convolution({stride_q, stride_k, padding_q, padding_k, dilation_q, dilation_k, groups, sparse});
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::multi_token_attention_workspace<backend, T>(scores.seq_len, view<const T>(w), opt,
                                                                    ctx.executor().workers());
        },
        [&](tigon::context& ctx) {
          tigon::multi_token_attention_forward(view<const T>(scores), view<const T>(w), view<const T>(b), view<T>(y),
                                               view<T>(probs), opt, ctx);
        });
  });
}
void multi_token_attention_backward(const host& h, heads dy, heads w, heads probs, heads dscores, heads dw,
                                    narrow_vector db, std::size_t stride_q, std::size_t stride_k, std::size_t padding_q,
                                    std::size_t padding_k, std::size_t dilation_q, std::size_t dilation_k,
                                    std::size_t groups, bool sparse) {
  with_type<tigon::op::multi_token_attention>("multi_token_attention_backward", w.of, [&]<class T>() {
    const auto opt = convolution({stride_q, stride_k, padding_q, padding_k, dilation_q, dilation_k, groups, sparse});
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::multi_token_attention_backward_workspace<backend, T>(
              probs.batch, probs.seq_len, view<const T>(w), opt, ctx.executor().workers(),
              dw.data != nullptr || db.data != nullptr);
        },
        [&](tigon::context& ctx) {
          tigon::multi_token_attention_backward(
              view<const T>(dy), view<const T>(w), view<const T>(probs),
              tigon::multi_token_attention_gradients<T>{view<T>(dscores), view<T>(dw), view<T>(db)}, opt, ctx);
        });
  });
}

}  // namespace

declared_operators declared_heads() {
  static constexpr declared_operator table[] = {
      declared<&qk_norm_rope, tigon::op::qk_norm_rope>("qk_norm_rope"),
      declared<&qk_norm_rope_backward, tigon::op::qk_norm_rope>("qk_norm_rope_backward"),
      declared<&neighborhood_attention, tigon::op::neighborhood_attention>("neighborhood_attention"),
      declared<&neighborhood_attention_backward, tigon::op::neighborhood_attention>("neighborhood_attention_backward"),
      declared<&multi_token_attention, tigon::op::multi_token_attention>("multi_token_attention"),
      declared<&multi_token_attention_backward, tigon::op::multi_token_attention>("multi_token_attention_backward"),
  };
  return declared_in(table);
}

}  // namespace tigon_torch
