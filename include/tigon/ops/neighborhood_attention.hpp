// Softmax attention of a window of keys around every query, forward and backward.
#ifndef TIGON_OPS_NEIGHBORHOOD_ATTENTION_HPP
#define TIGON_OPS_NEIGHBORHOOD_ATTENTION_HPP

#include <tigon/core/division.hpp>
#include <tigon/ops/neighborhood_attention_contract.hpp>
#include <tigon/ops/own_tasks.hpp>
#include <tigon/ops/softmax.hpp>
#include <tigon/rows/row.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {

/// What a token sees: `count` tokens from `first` on, one every dilation. `tap` is the m of the first.
struct neighbors {
  std::size_t tap, count, first;
};

/// A tap is an m: one of the places of a window.
struct neighborhood {
  std::size_t seq_len, taps, dilation;

  TIGON_INLINE neighbors of(std::size_t i) const {
    const std::size_t most = taps / 2, below = std::min(most, i / dilation);
    return {most - below, below + 1 + std::min(most, (seq_len - 1 - i) / dilation), i - below * dilation};
  }
  /// Tokens from one to the farthest that it sees.
  std::size_t reach() const { return seq_len == 0 ? 0 : std::min(taps / 2, (seq_len - 1) / dilation) * dilation; }
  /// From a row of a head to that of the next token that is seen.
  TIGON_INLINE std::ptrdiff_t step(std::size_t row_stride) const {
    return static_cast<std::ptrdiff_t>(dilation * row_stride);
  }
};

/// Tokens [first, first + count) of a head.
struct token_range {
  std::size_t first, count;

  template <class T>
  TIGON_INLINE matrix_view<T> of(matrix_view<T> head) const {
    return head.rows_from(first, count);
  }
};

/// One head of q, k, v, do, or of dq, dk, dv.
template <class T>
struct head_rows {
  matrix_view<T> q, k, v, d_o;
};

}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::neighborhood_attention, backends::generic> {
  template <class A>
  using saved = neighborhood_attention_saved<A>;

  template <backend B, element T>
  static void forward(in_heads<T> q, in_heads<T> k, in_heads<T> v, heads_view<T> o,
                      neighborhood_attention_saved<accumulator_t<T>> to_save, neighborhood_attention_options opt,
                      context& ctx) {
    using A = accumulator_t<T>;
    constexpr std::size_t block = B::attention.query_block;
    const detail::neighborhood window{q.seq_len, opt.kernel_size, opt.dilation};
    const A scale = scale_of<A>(opt, q.head_dim);
    const bool keep = to_save.probs.data != nullptr;
    const std::size_t blocks = detail::ceil_div(q.seq_len, block), taps = opt.kernel_size;
    const std::size_t bytes = forward_workspace<B, T>(q.seq_len, opt, keep);
    detail::for_tasks(ctx, q.batch * q.heads * blocks, bytes, [&](std::size_t task, context& own) {
      workspace::frame scratch(own.workspace());
      const std::size_t head = task / blocks, b = head / q.heads, h = head % q.heads, first = task % blocks * block;
      const detail::token_range queries{first, std::min(block, q.seq_len - first)};
      const std::size_t at = head * q.seq_len + first, rows = queries.count;
      const vector_view<A> peak{scratch.take<A>(rows), rows},
          lse{to_save.lse.empty() ? nullptr : to_save.lse.data() + at, rows};
      const matrix_view<A> p =
          keep ? to_save.probs.rows_from(at, rows) : matrix_view<A>(scratch.take<A>(rows * taps), rows, taps);
      products<B, T>(window, queries, {q.head(b, h), k.head(b, h)}, p, {scale, absent_score<A>}, own);
      if (lse.data != nullptr) maxima<B>(p, lse, own);
      kernel_for<op::softmax, B>::template forward<B, A>(p, p, softmax_options{}, own);
      weighted_sums<B, T>(window, queries, p, v.head(b, h), queries.of(o.head(b, h)), A(1), own);
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
    constexpr std::size_t block = B::attention.query_block;
    const detail::neighborhood window{q.seq_len, opt.kernel_size, opt.dilation};
    const A scale = scale_of<A>(opt, q.head_dim);
    const std::size_t n = q.seq_len, taps = opt.kernel_size, reach = window.reach();
    const bool keep = probs.data != nullptr;
    const std::size_t bytes = backward_workspace<B, T>(n, opt, keep);
    detail::for_tasks(ctx, n == 0 ? 0 : q.batch * q.heads, bytes, [&](std::size_t head, context& own) {
      workspace::frame scratch(own.workspace());
      const std::size_t b = head / q.heads, h = head % q.heads;
      const detail::head_rows<const T> in{q.head(b, h), k.head(b, h), v.head(b, h), d_o.head(b, h)};
      const detail::head_rows<T> out{gradients.dq.head(b, h), gradients.dk.head(b, h), gradients.dv.head(b, h), {}};
      const matrix_view<A> ds(scratch.take<A>(n * taps), n, taps),
          again(keep ? nullptr : scratch.take<A>(n * taps), n, taps);
      const matrix_view<const A> p = keep ? probs.rows_from(head * n, n) : matrix_view<const A>(again);
      std::size_t done = 0;  // keys whose gradients are written
      for (std::size_t first = 0; first < n; first += block) {
        const detail::token_range queries{first, std::min(block, n - first)};
        if (!keep) {
          const matrix_view<A> to = queries.of(again);
          products<B, T>(window, queries, {in.q, in.k}, to, {scale, absent_score<A>}, own);
          kernel_for<op::softmax, B>::template forward<B, A>(to, to, softmax_options{}, own);
        }
        const matrix_view<A> to = queries.of(ds);
        products<B, T>(window, queries, {in.d_o, in.v}, to, {A(1), A(0)}, own);
        kernel_for<op::softmax, B>::template backward<B, A>(to, queries.of(p), to, softmax_options{}, own);
        weighted_sums<B, T>(window, queries, to, in.k, queries.of(out.q), scale, own);
        // Keys that no later query sees.
        const std::size_t end = first + queries.count, ready = end == n ? n : end - std::min(end, reach);
        if (ready <= done) continue;
        key_gradients<B, T>(window, {done, ready - done}, {p, ds}, in, out, scale, own);
        done = ready;
      }
    });
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
  template <class T>
  struct two_matrices {
    matrix_view<T> a, b;
  };

  /// to[i,m] = scale * <a[i], b[j]> for every query and what it sees.
  template <backend B, element T, class A>
  static void products(detail::neighborhood window, detail::token_range queries, two_matrices<const T> of,
                       matrix_view<A> to, product_options<A> opt, context& ctx) {
    for_rows<B, A>(ctx, queries.count, of.a.cols, [=] TIGON_FN(auto row) {
      constexpr std::size_t together = 4;
      const std::size_t i = queries.first + row.i;
      const detail::neighbors n = window.of(i);
      A* const s = to.row(row.i);
      const in_vector<T> a{of.a.row(i), row.cols};
      for (std::size_t t = 0; t < n.count; t += together) {
        const std::size_t some = std::min(together, n.count - t);
        const auto b = [=](std::size_t k) TIGON_LAMBDA {  // where fewer are left, the last one stands in
          return in_vector<T>{of.b.row(n.first + (t + std::min(k, some - 1)) * window.dilation), row.cols};
        };
        const auto sums = row.sum(reads(a, b(0), b(1), b(2), b(3)), [](auto x, auto b0, auto b1, auto b2, auto b3) {
          return pack{x * b0, x * b1, x * b2, x * b3};
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

  /// y[i] = scale * sum_m weight[i,m] x[j] for every query and what it sees.
  template <backend B, element T, class A>
  static void weighted_sums(detail::neighborhood window, detail::token_range queries, matrix_view<A> weight,
                            matrix_view<const T> x, matrix_view<T> y, A scale, context& ctx) {
    for_rows<B, A>(ctx, y.rows, y.cols, [=] TIGON_FN(auto row) {
      const detail::neighbors n = window.of(queries.first + row.i);
      const weighted_rows<T> seen{x.row(n.first), window.step(x.row_stride), weight.row(row.i) + n.tap, 1, n.count};
      row.map(reads(seen), writes(y), [=](auto sum) { return sum * scale; });
    });
  }

  /// dk and dv of the keys: sums over the queries i that see key j, whose weights stand at [i, m], one tap less from each
  /// query to the next. w holds p and ds.
  template <backend B, element T, class A>
  static void key_gradients(detail::neighborhood window, detail::token_range keys, two_matrices<const A> w,
                            detail::head_rows<const T> in, detail::head_rows<T> out, A scale, context& ctx) {
    const matrix_view<T> dk = keys.of(out.k), dv = keys.of(out.v);
    for_rows<B, A>(ctx, keys.count, dk.cols, [=] TIGON_FN(auto row) {
      const detail::neighbors n = window.of(keys.first + row.i);
      const auto that_see = [=](matrix_view<const T> x, matrix_view<const A> weight) TIGON_LAMBDA {
        return weighted_rows<T>{x.row(n.first), window.step(x.row_stride),
                                weight.row(n.first) + (window.taps - 1 - n.tap), window.step(weight.row_stride) - 1,
                                n.count};
      };
      row.map(reads(that_see(in.q, w.b), that_see(in.d_o, w.a)), writes(dk, dv), [=](auto of_q, auto of_do) {
        return pack{of_q * scale, of_do};
      });
    });
  }

  /// Bytes of one worker.
  template <backend B, element T>
  static std::size_t forward_workspace(std::size_t seq_len, neighborhood_attention_options opt, bool keep) {
    using A = accumulator_t<T>;
    const std::size_t rows = std::min(seq_len, B::attention.query_block);
    return workspace::bytes_for<A>(rows) + (keep ? 0 : workspace::bytes_for<A>(rows, opt.kernel_size)) +
           softmax_bytes<B, A>(opt);
  }
  template <backend B, element T>
  static std::size_t backward_workspace(std::size_t seq_len, neighborhood_attention_options opt, bool keep) {
    using A = accumulator_t<T>;
    return (keep ? 1 : 2) * workspace::bytes_for<A>(seq_len, opt.kernel_size) + softmax_bytes<B, A>(opt);
  }
  template <backend B, class A>
  static std::size_t softmax_bytes(neighborhood_attention_options opt) {
    workspace nothing;
    return softmax_workspace<B, A>(opt.kernel_size, context(serial(), nothing));
  }
};

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_NEIGHBORHOOD_ATTENTION_HPP
