// The generic kernel of neighborhood_attention.
#ifndef TIGON_OPS_ATTENTION_NEIGHBORHOOD_ATTENTION_KERNEL_HPP
#define TIGON_OPS_ATTENTION_NEIGHBORHOOD_ATTENTION_KERNEL_HPP

#include <tigon/backend/caches.hpp>
#include <tigon/ops/attention/key_windows.hpp>
#include <tigon/ops/attention/neighborhood_attention_options.hpp>
#include <tigon/ops/attention/own_tasks.hpp>
#include <tigon/ops/attention/weighted_rows.hpp>
#include <tigon/ops/softmax/softmax_kernel.hpp>
#include <tigon/rows/row.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace tigon {

template <>
struct kernel<op::neighborhood_attention, backends::generic> {
  template <class A>
  using saved = neighborhood_attention_saved<A>;

  template <backend B, element T>
  static void forward(in_heads<T> q, in_heads<T> k, in_heads<T> v, heads_view<T> o,
                      neighborhood_attention_saved<accumulator_t<T>> to_save, neighborhood_attention_options opt,
                      context& ctx) {
    using A = accumulator_t<T>;
    const detail::neighborhood window{q.seq_len, opt.kernel_size, opt.dilation};
    const detail::token_blocks<B> blocks{q.batch, q.heads, q.seq_len};
    const A scale = scale_of<A>(opt, q.head_dim);
    const bool keep = to_save.probs.data != nullptr;
    const std::size_t bytes = forward_bytes<B, A>(std::min(queries_of(q), blocks.rows), opt, keep);
    detail::for_tasks<B>(ctx, blocks.size(), bytes, [&](std::size_t task, context& own) {
      workspace::frame scratch(own.workspace());
      const detail::token_block at = blocks[task];
      const std::size_t rows = at.count, taps = opt.kernel_size;
      const vector_view<A> peak{scratch.take<A>(rows), rows},
          lse{to_save.lse.empty() ? nullptr : to_save.lse.data() + at.query, rows};
      const matrix_view<A> p = keep ? at.of(to_save.probs) : matrix_view<A>(scratch.take<A>(rows * taps), rows, taps);
      products<B, T>(window, at, {q, k}, p, {scale, absent_score<A>}, own);
      if (lse.data != nullptr) maxima<B>(p, lse, own);
      kernel_for<op::softmax, B>::template forward<B, A>(p, p, softmax_options{}, own);
      weighted_sums<B, T>(window, at, p, v, o, A(1), own);
      if (lse.data == nullptr) return;
      maxima<B>(p, peak, own);
      for_rows<B, A>(own, 1, rows, [=] TIGON_FN(auto row) {  // the highest p is exp(the highest score - lse)
        row.map(reads(lse, peak), writes(lse), [](auto top, auto most) { return top - log(most); });
      });
    });
  }

  template <backend B, element T>
  static void backward(in_heads<T> d_o, in_heads<T> q, in_heads<T> k, in_heads<T> v,
                       matrix_view<const accumulator_t<T>> probs, neighborhood_attention_gradients<T> gradients,
                       neighborhood_attention_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const detail::neighborhood window{q.seq_len, opt.kernel_size, opt.dilation};
    const detail::token_blocks<B> blocks{q.batch, q.heads, q.seq_len};
    const A scale = scale_of<A>(opt, q.head_dim);
    const bool keep = probs.data != nullptr;
    const std::size_t queries = queries_of(q), taps = opt.kernel_size;
    workspace::frame frame(ctx.workspace());
    const matrix_view<A> ds(frame.take<A>(queries * taps), queries, taps),
        again(keep ? nullptr : frame.take<A>(queries * taps), queries, taps);
    const matrix_view<const A> p = keep ? probs : matrix_view<const A>(again);
    detail::for_tasks<B>(ctx, blocks.size(), softmax_bytes<B, A>(opt), [&](std::size_t task, context& own) {
      const detail::token_block at = blocks[task];
      if (!keep) {
        products<B, T>(window, at, {q, k}, at.of(again), {scale, absent_score<A>}, own);
        kernel_for<op::softmax, B>::template forward<B, A>(at.of(again), at.of(again), softmax_options{}, own);
      }
      products<B, T>(window, at, {d_o, v}, at.of(ds), {A(1), A(0)}, own);
      kernel_for<op::softmax, B>::template backward<B, A>(at.of(ds), at.of(p), at.of(ds), softmax_options{}, own);
      weighted_sums<B, T>(window, at, at.of(ds), k, gradients.dq, scale, own);
    });
    detail::for_tasks<B>(ctx, blocks.size(), 0, [&](std::size_t task, context& own) {
      key_gradients<B, T>(window, blocks[task], {q, d_o}, {ds, p}, {gradients.dk, gradients.dv}, scale, own);
    });
  }

  template <class T>
  static std::size_t queries_of(heads_view<T> q) {
    return q.batch * q.heads * q.seq_len;
  }
  template <class A>
  static constexpr A absent_score = -std::numeric_limits<A>::infinity();
  template <class A>
  static A scale_of(neighborhood_attention_options opt, std::size_t head_dim) {
    return static_cast<A>(opt.scale != 0 ? opt.scale : 1 / std::sqrt(static_cast<double>(head_dim)));
  }

  /// What products are multiplied with, and what stands where there is no key.
  template <class A>
  struct product_options {
    A scale, absent;
  };
  template <class M>
  struct two {
    M first, second;
  };

  /// Row k of a head, which is read or written later.
  template <backend B, class T>
  static TIGON_INLINE void prefetch_row(matrix_view<T> m, std::size_t k) {
    prefetch<B>(vector_view<T>{m.row(k), m.cols});
  }
  /// to[i,m] = scale * <a[i], b[j]> for every token of the block and what it sees.
  template <backend B, element T, class A>
  static void products(detail::neighborhood window, detail::token_block at, two<heads_view<const T>> of,
                       matrix_view<A> to, product_options<A> opt, context& ctx) {
    const matrix_view<const T> a = of.first.head(at.batch, at.head), b = of.second.head(at.batch, at.head);
    for_rows<B, A>(ctx, at.count, a.cols, [=] TIGON_FN(auto row) {
      constexpr std::size_t together = 4;
      const std::size_t i = at.first + row.i;
      const detail::neighbors n = window.of(i);
      prefetch_row<B>(a, window.ahead(i, false)), prefetch_row<B>(b, window.ahead(i, true));
      A* const s = to.row(row.i);
      const in_vector<T> x{a.row(i), row.cols};
      for (std::size_t t = 0; t < n.count; t += together) {
        const std::size_t some = std::min(together, n.count - t);
        const auto y = [=](std::size_t k) TIGON_LAMBDA {  // where fewer are left, the last one stands in
          return in_vector<T>{b.row(n.first + (t + std::min(k, some - 1)) * window.dilation), row.cols};
        };
        const auto sums = row.sum(reads(x, y(0), y(1), y(2), y(3)), [](auto u, auto v0, auto v1, auto v2, auto v3) {
          return pack{u * v0, u * v1, u * v2, u * v3};
        });
        for (std::size_t k = 0; k < some; ++k)
          if (row.first()) s[n.tap + t + k] = sums[k] * opt.scale;
      }
      for (std::size_t m = 0; m < n.tap; ++m)
        if (row.first()) s[m] = opt.absent;
      for (std::size_t m = n.tap + n.count; m < to.cols; ++m)
        if (row.first()) s[m] = opt.absent;
    });
  }

  /// The highest number of every row.
  template <backend B, class A>
  static void maxima(matrix_view<A> of, vector_view<A> to, context& ctx) {
    for_rows<B, A>(ctx, of.rows, of.cols, [=] TIGON_FN(auto row) {
      const A top = row.max(reads(of), [](auto v) { return v; });
      if (row.first()) to.data[row.i] = top;
    });
  }

  /// y[i] = scale * sum_m weight[i,m] x[j] for every token of the block and what it sees.
  template <backend B, element T, class A>
  static void weighted_sums(detail::neighborhood window, detail::token_block at, matrix_view<A> weight,
                            heads_view<const T> of, heads_view<T> to, A scale, context& ctx) {
    const matrix_view<const T> x = of.head(at.batch, at.head);
    const matrix_view<T> y = to.head(at.batch, at.head);
    for_rows<B, A>(ctx, at.count, y.cols, [=] TIGON_FN(auto row) {
      const std::size_t i = at.first + row.i;
      const detail::neighbors n = window.of(i);
      prefetch_row<B>(x, window.ahead(i, true)), prefetch_row<B>(y, window.ahead(i, false));
      const detail::weighted_rows<T> seen{x.row(n.first), window.step(x.row_stride), weight.row(row.i) + n.tap, 1,
                                          n.count};
      row.on(i).map(reads(seen), writes(y), [=](auto sum) { return sum * scale; });
    });
  }

  /// dk and dv of the keys of a block, from q and do, ds and p: sums over the queries i that see key j, whose weights
  /// are at [i, m], one tap less from each query to the next.
  template <backend B, element T, class A>
  static void key_gradients(detail::neighborhood window, detail::token_block at, two<heads_view<const T>> of,
                            two<matrix_view<const A>> weights, two<heads_view<T>> to, A scale, context& ctx) {
    const auto head_of = [=](auto x) { return x.head(at.batch, at.head); };
    const auto weights_of = [=](matrix_view<const A> w) { return w.rows_from(at.query - at.first, window.seq_len); };
    const matrix_view<const T> q = head_of(of.first), d_o = head_of(of.second);
    const matrix_view<const A> ds = weights_of(weights.first), p = weights_of(weights.second);
    const matrix_view<T> dk = head_of(to.first), dv = head_of(to.second);
    for_rows<B, A>(ctx, at.count, dk.cols, [=] TIGON_FN(auto row) {
      const std::size_t j = at.first + row.i;
      const detail::neighbors n = window.of(j);
      prefetch_row<B>(q, window.ahead(j, true)), prefetch_row<B>(d_o, window.ahead(j, true));
      prefetch_row<B>(dk, window.ahead(j, false)), prefetch_row<B>(dv, window.ahead(j, false));
      const auto that_see = [=](matrix_view<const T> x, matrix_view<const A> w) TIGON_LAMBDA {
        return detail::weighted_rows<T>{x.row(n.first), window.step(x.row_stride),
                                        w.row(n.first) + (window.taps - 1 - n.tap), window.step(w.row_stride) - 1,
                                        n.count};
      };
      row.on(j).map(reads(that_see(q, ds), that_see(d_o, p)), writes(dk, dv), [=](auto of_q, auto of_do) {
        return pack{of_q * scale, of_do};
      });
    });
  }

  /// Bytes of all workers.
  template <backend B, element T>
  static std::size_t forward_workspace(std::size_t queries, neighborhood_attention_options opt, std::size_t workers,
                                       bool keep) {
    const std::size_t rows = std::min(queries, B::attention.query_block);
    return workspace::bytes_for<std::byte>(workers, forward_bytes<B, accumulator_t<T>>(rows, opt, keep));
  }
  template <backend B, element T>
  static std::size_t backward_workspace(std::size_t queries, neighborhood_attention_options opt, std::size_t workers,
                                        bool keep) {
    using A = accumulator_t<T>;
    return (keep ? 1 : 2) * workspace::bytes_for<A>(queries, opt.kernel_size) +
           workspace::bytes_for<std::byte>(workers, softmax_bytes<B, A>(opt));
  }
  /// Bytes of one.
  template <backend B, class A>
  static std::size_t forward_bytes(std::size_t rows, neighborhood_attention_options opt, bool keep) {
    return workspace::bytes_for<A>(rows) + (keep ? 0 : workspace::bytes_for<A>(rows, opt.kernel_size)) +
           softmax_bytes<B, A>(opt);
  }
  template <backend B, class A>
  static std::size_t softmax_bytes(neighborhood_attention_options opt) {
    workspace nothing;
    return softmax_workspace<B, A>(opt.kernel_size, context(serial(), nothing));
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_ATTENTION_NEIGHBORHOOD_ATTENTION_KERNEL_HPP
