// The generic kernel of attention.
#ifndef TIGON_OPS_ATTENTION_ATTENTION_KERNEL_HPP
#define TIGON_OPS_ATTENTION_ATTENTION_KERNEL_HPP

#include <tigon/ops/attention/attention_options.hpp>
#include <tigon/ops/attention/backward_keys.hpp>
#include <tigon/ops/attention/forward_part.hpp>
#include <tigon/ops/attention/own_tasks.hpp>

#include <algorithm>
#include <span>

namespace tigon {

template <>
struct kernel<op::attention, backends::generic> {
  template <class A>
  using saved = std::span<A>;  // lse

  /// Bytes of one worker, for keys of d columns and values of e.
  template <backend B, element T>
  static std::size_t forward_workspace(std::size_t d, std::size_t e) {
    return detail::forward_part<B, T>::bytes(d, e);
  }
  template <backend B, element T>
  static std::size_t backward_workspace(std::size_t d, std::size_t e) {
    using A = accumulator_t<T>;
    using sums = detail::chunk_sums<row_backend<B>, A>;
    constexpr std::size_t rows = detail::tile_extents<B>::rows;
    return detail::backward_rows<B, T>::bytes(d, e) + detail::backward_rows<B, T>::product_bytes(d, e) +
           workspace::bytes_for<A>(rows, d) + workspace::bytes_for<double>(rows) +
           std::max(detail::backward_keys<B, T>::bytes(d, e),
                    detail::key_tiles<B, T>::bytes(d) + detail::key_tiles<B, T>::bytes(e) +
                        sums::bytes(workspace::product(rows, d), detail::backward_keys<B, T>::many, false));
  }

  template <backend B, element T>
  static void forward(in_heads<T> q, in_heads<T> k, in_heads<T> v, heads_view<T> o, std::span<accumulator_t<T>> lse,
                      const attention_options& opt, context& ctx) {
    if (q.seq_len == 0 || q.batch == 0) return;
    const detail::query_parts parts(q.batch, k.heads, q.heads, q.seq_len, detail::tile_extents<B>::rows,
                                    B::attention.query_tiles);
    const std::size_t bytes = forward_workspace<B, T>(q.head_dim, v.head_dim);
    detail::for_tasks<B>(ctx, parts.size(), bytes, [&](std::size_t task, context& own) {
      workspace::frame frame(own.workspace());
      detail::forward_part<B, T>(frame, parts[task], parts.of_tile, q, k, v, opt).run(o, lse, own);
    });
  }

  template <backend B, element T>
  static void backward(in_heads<T> d_o, in_heads<T> q, in_heads<T> k, in_heads<T> v,
                       attention_saved<const T, std::span<const accumulator_t<T>>> of_forward,
                       attention_gradients<T> gradients, const attention_options& opt, context& ctx) {
    const detail::backward_inputs<T> in{
        d_o, q, k, v, of_forward.o, of_forward.lse, opt, detail::attention_scale(opt, q.head_dim)};
    constexpr std::size_t block = detail::tile_extents<B>::keys;
    const std::size_t blocks = std::max(detail::ceil_div(q.seq_len, block), detail::ceil_div(k.seq_len, block));
    const bool of_queries = gradients.dq.data != nullptr;
    const bool of_both = of_queries && gradients.dk.data != nullptr && gradients.dv.data != nullptr;
    if (std::same_as<T, accumulator_t<T>> && blocks <= simd::plain_rows && of_both)
      by_pairs<B, T>(in, gradients, blocks, ctx);
    else if (of_queries || has_keys(gradients))
      by_keys_and_queries<B, T>(in, gradients, ctx);
    if (!gradients.dsinks.empty()) sink_gradients<B, T>(in, gradients.dsinks, ctx);
  }

  template <class T>
  static bool has_keys(const attention_gradients<T>& to) {
    return to.dk.data != nullptr || to.dv.data != nullptr;
  }

  /// Five products: each pair of a block of queries and a block of keys adds its shares to the outputs, which are as
  /// wide as the sums. In step t the block of keys j meets the block of queries j + t: no two tasks of a step add to
  /// one block, and every block gets its shares in the order of the steps.
  template <backend B, element T>
  static void by_pairs(const detail::backward_inputs<T>& in, attention_gradients<T> to, std::size_t blocks,
                       context& ctx) {
    clear<B, T>(to, ctx);
    constexpr std::size_t block = detail::tile_extents<B>::keys;
    const std::size_t across = in.k.batch * in.k.heads;
    const std::size_t bytes = backward_workspace<B, T>(in.q.head_dim, in.v.head_dim);
    for (std::size_t step = 0; step < blocks; ++step)
      detail::for_tasks<B>(ctx, blocks * across, bytes, [&](std::size_t task, context& own) {
        const std::size_t j = task / across * block, i = (task / across + step) % blocks * block;
        if (j >= in.k.seq_len || i >= in.q.seq_len) return;
        block_of_keys<B, T>(in, to, task % across, j, {i, std::min(i + block, in.q.seq_len)}, own);
      });
  }

  /// Seven products: dk and dv of every block of keys, over all queries; then dq of every tile of rows, over all keys.
  /// In 16 bits nine: delta is made before, and waits in the rows of dq or apart. Fewer where some of them are not
  /// wanted.
  template <backend B, element T>
  static void by_keys_and_queries(detail::backward_inputs<T> in, attention_gradients<T> to, context& ctx) {
    using extents = detail::tile_extents<B>;
    const std::size_t bytes = backward_workspace<B, T>(in.q.head_dim, in.v.head_dim);
    const std::size_t across = in.k.batch * in.k.heads;
    const bool has_rows = in.q.seq_len != 0 && in.q.batch != 0 && to.dq.data != nullptr;
    const detail::query_parts parts(in.q.batch, in.k.heads, in.q.heads, in.q.seq_len, extents::rows, 1);
    const heads_view<T> kept = has_rows ? to.dq : detail::rows_for_delta(in.q, to);
    if (kept.data != nullptr && sizeof(T) < sizeof(accumulator_t<T>)) {
      detail::for_tasks<B>(ctx, parts.size(), bytes,
                           [&](std::size_t task, context& own) { deltas_of_rows<B, T>(in, kept, parts[task], own); });
      in.kept_delta = kept;
    }
    detail::for_tasks<B>(
        ctx, has_keys(to) ? across * detail::ceil_div(in.k.seq_len, std::size_t{extents::keys}) : 0, bytes,
        [&](std::size_t task, context& own) {
          block_of_keys<B, T>(in, to, task % across, task / across * extents::keys, {0, in.q.seq_len}, own, false);
        });
    if (has_rows)
      detail::for_tasks<B>(ctx, parts.size(), bytes,
                           [&](std::size_t task, context& own) { tile_of_rows<B, T>(in, to.dq, parts[task], own); });
  }

  /// f(first, n, k, v) for every tile of keys that these rows see.
  template <backend B, element T, class F>
  static void for_keys(detail::backward_rows<B, T>& rows, const detail::backward_inputs<T>& in,
                       const detail::query_part& part, workspace::frame& frame, F f) {
    using extents = detail::tile_extents<B>;
    detail::key_tiles<B, T> keys(frame, in.k.head(part.batch, part.kv_head));
    detail::key_tiles<B, T> values(frame, in.v.head(part.batch, part.kv_head));
    const detail::key_range seen = rows.begin(part);
    for (std::size_t j = seen.first / extents::keys * extents::keys; j < seen.end; j += extents::keys) {
      const std::size_t n = extents::padded_keys(std::min(extents::keys, seen.end - j));
      if (rows.kind({j, j + n}) != detail::tile_kind::hidden)
        f(j, n, gemm_operand<T>{keys.at(j, n)}, gemm_operand<T>{values.at(j, n)});
    }
  }

  /// delta of a tile of rows, in their rows of `to`.
  template <backend B, element T>
  static void deltas_of_rows(const detail::backward_inputs<T>& in, heads_view<T> to, const detail::query_part& part,
                             context& own) {
    workspace::frame frame(own.workspace());
    detail::backward_rows<B, T> rows(frame, in);
    double* sums = frame.template take<double>(detail::tile_extents<B>::rows);
    std::fill_n(sums, part.rows(), 0.0);
    for_keys<B, T>(rows, in, part, frame, [&](std::size_t j, std::size_t n, gemm_operand<T> k, gemm_operand<T> v) {
      rows.add_to_delta(j, n, k, v, sums, own);
    });
    for (std::size_t h = 0; h < part.heads; ++h)
      for (std::size_t i = 0; i < part.queries; ++i) rows.keep_delta(h, i, sums[i * part.heads + h], to);
  }

  /// What these queries of a group of heads add to dk and dv of the block of keys that begins at `first`. In pairs it
  /// is added to what is there, and so is their share of dq; else it is all of dk and dv, and dq is not written.
  template <backend B, element T>
  static void block_of_keys(const detail::backward_inputs<T>& in, attention_gradients<T> to, std::size_t group,
                            std::size_t first, detail::key_range queries, context& own, bool pairs = true) {
    using A = accumulator_t<T>;
    using extents = detail::tile_extents<B>;
    workspace::frame frame(own.workspace());
    const std::size_t d = in.q.head_dim, batch = group / in.k.heads, kv = group % in.k.heads;
    const std::size_t count = std::min(extents::keys, in.k.seq_len - first), heads = in.q.heads / in.k.heads;
    detail::backward_rows<B, T> rows(frame, in);
    const std::size_t together = std::min(heads, extents::rows), of_tile = extents::rows / together;
    const std::size_t of_strip = std::min(of_tile, extents::strip(of_tile, together));
    detail::backward_keys<B, T> keys(
        frame, in, batch, kv, detail::ceil_div(queries.size(), of_strip) * detail::ceil_div(heads, extents::rows));
    matrix_view<A> dq(pairs ? frame.template take<A>(extents::rows * d) : nullptr, extents::rows, d);
    keys.begin(first, count, in, to.dk.data != nullptr, to.dv.data != nullptr);
    for (std::size_t h = 0; h < heads; h += extents::rows)
      for (std::size_t i = queries.first, step = 0; i < queries.end; i += step) {
        detail::query_part part{
            batch, kv, kv * heads + h, std::min(extents::rows, heads - h), i, std::min(of_tile, queries.end - i)};
        detail::key_range seen = rows.begin(part);
        if (of_strip < part.queries && rows.kind({first, first + count}) == detail::tile_kind::border)
          part = part.from(0, of_strip), seen = rows.begin(part);
        step = part.queries;
        if (rows.kind({first, first + count}) == detail::tile_kind::hidden) continue;
        dq.rows = pairs ? rows.padded() : 0;
        keys.add(rows, seen, dq, own);
        if constexpr (std::same_as<T, A>)
          for (std::size_t of = 0; pairs && of < part.heads; ++of)
            detail::round_sums<row_backend<B>, A>(part.tensor(to.dq, of), matrix_view<const A>(part.of_head(dq, of)),
                                                  true, own);
      }
    keys.finish(to.dk, to.dv, batch, kv, pairs, own);
  }

  /// dq of a tile of rows.
  template <backend B, element T>
  static void tile_of_rows(const detail::backward_inputs<T>& in, heads_view<T> to, const detail::query_part& part,
                           context& own) {
    using A = accumulator_t<T>;
    using extents = detail::tile_extents<B>;
    workspace::frame frame(own.workspace());
    const std::size_t d = in.q.head_dim, blocks = detail::ceil_div(in.k.seq_len, std::size_t{extents::keys});
    detail::backward_rows<B, T> rows(frame, in);
    const matrix_view<A> dq(frame.template take<A>(extents::rows * d), part.rows(), d);
    detail::chunk_sums<row_backend<B>, A> sums(frame, extents::rows * d, blocks, false);
    sums.begin(part.rows(), d, {}, false);
    bool begun = false;
    for_keys<B, T>(rows, in, part, frame, [&](std::size_t j, std::size_t n, gemm_operand<T> k, gemm_operand<T> v) {
      rows.scores(j, n, k, v, own);
      auto to_sum = sums.next(own);
      to_sum.sum.rows = rows.padded();
      rows.dq(k, to_sum.sum, to_sum.more, own);
      begun = true;
    });
    if (begun) sums.finish(dq, false, own);
    for (std::size_t h = 0; h < part.heads; ++h) {
      if (begun)
        detail::round_sums<row_backend<B>, A>(part.tensor(to, h), matrix_view<const A>(part.of_head(dq, h)), false,
                                              own);
      else
        detail::clear_matrix<row_backend<B>>(part.tensor(to, h), own);
    }
  }

  /// dsinks, a task for each head.
  template <backend B, element T>
  static void sink_gradients(const detail::backward_inputs<T>& in, std::span<accumulator_t<T>> dsinks, context& ctx) {
    using A = accumulator_t<T>;
    using V = simd::vec<simd::scalar, double>;
    constexpr std::size_t block = 256;
    detail::for_tasks<B>(ctx, in.q.heads, 0, [&](std::size_t h, context& own) {
      const A sink = static_cast<A>(in.opt.sinks[h]);
      A delta[block];
      pack<V, 2> total{{V(0.0), V(0.0)}};
      for (std::size_t b = 0; b < in.q.batch; ++b)
        for (std::size_t i = 0; i < in.q.seq_len; i += block) {
          const std::size_t count = std::min(block, in.q.seq_len - i);
          detail::row_products<B, T>(in.d_o.head(b, h).rows_from(i, count), in.o.head(b, h).rows_from(i, count), delta,
                                     1, own);
          const A* lse = in.lse.data() + (b * in.q.heads + h) * in.q.seq_len + i;
          for (std::size_t r = 0; r < count; ++r)
            total =
                simd::add_compensated(total.v[0], total.v[1],
                                      V(-static_cast<double>(math::exp_nonpositive(sink - detail::finite_top(lse[r]))) *
                                        static_cast<double>(delta[r])));
        }
      double sum;
      simd::store(total.v[0] + total.v[1], &sum);
      dsinks[h] = static_cast<A>(sum);
    });
  }

  /// dq, dk and dv become 0.
  template <backend B, element T>
  static void clear(attention_gradients<T> to, context& ctx) {
    const heads_view<T> all[] = {to.dq, to.dk, to.dv};
    for (const heads_view<T>& of : all)
      detail::for_tasks<B>(ctx, of.batch * of.heads, 0, [&](std::size_t task, context& own) {
        detail::clear_matrix<row_backend<B>>(of.head(task / of.heads, task % of.heads), own);
      });
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_ATTENTION_ATTENTION_KERNEL_HPP
