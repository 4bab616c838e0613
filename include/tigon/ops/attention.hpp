// Causal softmax attention with grouped key/value heads, forward and backward, without the matrix of scores.
#ifndef TIGON_OPS_ATTENTION_HPP
#define TIGON_OPS_ATTENTION_HPP

#include <tigon/gemm/kernel.hpp>
#include <tigon/ops/attention_contract.hpp>
#include <tigon/ops/key_sums.hpp>
#include <tigon/ops/own_tasks.hpp>
#include <tigon/ops/query_sums.hpp>
#include <tigon/rows/row.hpp>

#include <algorithm>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {

/// Queries [first, first + rows) and the keys [0, keys) that at least one of them sees.
struct query_block {
  std::size_t first, rows, keys;
};

/// The scores of a block; every row begins at a cache line.
template <class A>
matrix_view<A> scores(workspace::frame& scratch, query_block at) {
  const std::size_t stride = workspace::padded<A>(at.keys);
  return {scratch.take<A>(at.rows * stride), at.rows, at.keys, stride};
}
template <class A>
std::size_t scores_bytes(query_block at) {
  return workspace::bytes_for<A>(at.rows, workspace::padded<A>(at.keys));
}

/// The blocks of a sequence, the last one first: it sees every key, and it is the one with most work.
template <class B>
struct query_blocks {
  std::size_t seq_len;
  attention_mask mask;

  std::size_t size() const { return gemm_detail::ceil_div(seq_len, B::attention.query_block); }
  query_block operator[](std::size_t i) const {
    const std::size_t first = (size() - 1 - i) * B::attention.query_block;
    const std::size_t rows = std::min(B::attention.query_block, seq_len - first);
    return {first, rows, mask == attention_mask::causal ? first + rows : seq_len};
  }
  /// The largest of f(block): of bytes, which shrink with the keys but for the scratch of products. Blocks of one shape
  /// are asked once, and no more than 2^16 of them: the keys of any other are fewer by more than that scratch can grow.
  template <class F>
  std::size_t most(F f) const {
    const std::size_t blocks = std::min<std::size_t>(size(), mask == attention_mask::causal ? std::size_t{1} << 16 : 2);
    std::size_t most = 0;
    for (std::size_t i = 0; i < blocks; ++i) most = std::max(most, f((*this)[i]));
    return most;
  }
};

}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::attention, backends::generic> {
  template <class A>
  using saved = std::span<A>;  // lse

  template <backend B, element T>
  static void forward(in_heads<T> q, in_heads<T> k, in_heads<T> v, heads_view<T> o, std::span<accumulator_t<T>> lse,
                      attention_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t d = q.head_dim, group = q.heads / k.heads;
    const detail::query_blocks<B> blocks{q.seq_len, opt.mask};
    const std::size_t tasks = q.batch * q.heads * blocks.size();
    detail::for_tasks(ctx, tasks, forward_workspace<B, T>(q.seq_len, d, opt), [&](std::size_t task, context& own) {
      workspace::frame scratch(own.workspace());
      const std::size_t head = task / blocks.size(), b = head / q.heads, h = head % q.heads;
      const detail::query_block at = blocks[task % blocks.size()];
      const matrix_view p = detail::scores<A>(scratch, at);
      const vector_view<A> inverse{scratch.take<A>(at.rows), at.rows};
      const vector_view<A> lse_of_block{lse.data() + head * q.seq_len + at.first, at.rows};

      gemm<B>(q.head(b, h).rows_from(at.first, at.rows), k.head(b, h / group).rows_from(0, at.keys), p,
              {.alpha = detail::attention_scale(opt, d), .b = transpose::yes}, own);
      exponentials<row_backend<B>>(p, at, opt.mask, lse_of_block, inverse, own);
      const matrix_view sums =
          detail::sum_over_keys<B, A, T>(p, v.head(b, h / group).rows_from(0, at.keys), 1, scratch, own);
      scaled_rows<row_backend<B>>(sums, inverse, o.head(b, h).rows_from(at.first, at.rows), own);
    });
  }

  template <backend B, element T>
  static void backward(in_heads<T> d_o, in_heads<T> q, in_heads<T> k, in_heads<T> v,
                       attention_saved<const T, std::span<const accumulator_t<T>>> of_forward,
                       attention_gradients<T> gradients, attention_options opt, context& ctx) {
    const heads_view<const T> o = of_forward.o;
    const std::span<const accumulator_t<T>> lse = of_forward.lse;
    const heads_view<T> dq = gradients.dq, dk = gradients.dk, dv = gradients.dv;
    using A = accumulator_t<T>;
    const std::size_t d = q.head_dim, n = q.seq_len, group = q.heads / k.heads;
    const double scale = detail::attention_scale(opt, d);
    const detail::query_blocks<B> blocks{n, opt.mask};
    const std::size_t tasks = n == 0 ? 0 : k.batch * k.heads;
    detail::for_tasks(ctx, tasks, backward_workspace<B, T>(n, d, opt), [&](std::size_t task, context& own) {
      workspace::frame scratch(own.workspace());
      const std::size_t b = task / k.heads, h_kv = task % k.heads;
      const auto keys = [&](heads_view<T> gradient) {
        return detail::key_sums<row_backend<B>, T>(scratch, gradient.head(b, h_kv), blocks.size());
      };
      auto dk_sums = keys(dk), dv_sums = keys(dv);

      for (std::size_t h = h_kv * group; h < (h_kv + 1) * group; ++h)
        for (std::size_t i = 0; i < blocks.size(); ++i) {
          const detail::query_block at = blocks[i];
          const auto block_of = [&](auto heads) { return heads.head(b, h).rows_from(at.first, at.rows); };
          const auto keys_of = [&](auto heads) { return heads.head(b, h_kv).rows_from(0, at.keys); };
          workspace::frame scratch_of_block(own.workspace());
          const matrix_view p = detail::scores<A>(scratch_of_block, at), ds = detail::scores<A>(scratch_of_block, at);
          const in_vector<A> lse_of_block{lse.data() + (b * q.heads + h) * n + at.first, at.rows};

          gemm<B>(block_of(q), keys_of(k), p, {.alpha = scale, .b = transpose::yes}, own);
          gemm<B>(block_of(d_o), keys_of(v), ds, {.b = transpose::yes}, own);
          score_gradients<row_backend<B>>(block_of(d_o), block_of(o), lse_of_block, p, ds, at, opt.mask, own);
          detail::sum_over_keys_to<B, A>(block_of(dq), ds, keys_of(k), scale, own);
          const auto add_share = [&](auto& sums, matrix_view<A> of, matrix_view<const T> x) {
            const auto [to, more] = sums.next();
            gemm<B>(of, x, to.rows_from(0, at.keys), {.beta = more ? 1.0 : 0.0, .a = transpose::yes}, own);
          };
          add_share(dk_sums, ds, block_of(q)), add_share(dv_sums, p, block_of(d_o));
        }
      key_gradients<row_backend<B>>(dk_sums.finish(), dv_sums.finish(), static_cast<A>(scale), dk.head(b, h_kv),
                                    dv.head(b, h_kv), own);
    });
  }

  /// Scores become exp(score - maximum), zeros where a key is not seen; lse and 1 / sum of every row.
  template <backend B, class A>
  static void exponentials(matrix_view<A> p, detail::query_block at, attention_mask mask, vector_view<A> lse,
                           vector_view<A> inverse, context& ctx) {
    for_rows<B, A>(ctx, p.rows, p.cols, [=] TIGON_FN(auto line) {
      const std::size_t seen = mask == attention_mask::causal ? at.first + line.i + 1 : p.cols;
      const auto row = line.narrow(seen);
      const A m = row.max(reads(p), [](auto s) { return s; });
      const A sum = row.map_sum(reads(p), writes(p), [=](auto s) {
        const auto e = exp_nonpositive(s - m);
        return pack{e, e};
      });
      line.narrow(p.cols - seen).map(reads(constant(A(0))), writes(p.cols_from(seen, p.cols - seen)), [](auto zero) {
        return zero;
      });
      if (row.first()) lse.data[row.i] = m, inverse.data[row.i] = sum;
    });
    for_rows<B, A>(ctx, 1, p.rows, [=] TIGON_FN(auto row) {  // one logarithm for many rows
      row.map(reads(lse, inverse), writes(lse, inverse), [](auto m, auto sum) {
        return pack{m + log(sum), decltype(m)(A(1)) / sum};
      });
    });
  }

  /// o = x * factor of the row.
  template <backend B, element T, class A>
  static void scaled_rows(matrix_view<A> x, vector_view<A> factor, matrix_view<T> o, context& ctx) {
    for_rows<B, A>(ctx, o.rows, o.cols, [=] TIGON_FN(auto row) {
      const A r = factor.data[row.i];
      row.map(reads(x), writes(o), [=](auto v) { return v * r; });
    });
  }

  /// Scores become p, and ds, which holds do v^T, becomes p * (ds - delta); zeros where a key is not seen.
  template <backend B, element T, class A>
  static void score_gradients(matrix_view<const T> d_o, matrix_view<const T> o, in_vector<A> lse, matrix_view<A> p,
                              matrix_view<A> ds, detail::query_block at, attention_mask mask, context& ctx) {
    for_rows<B, A>(ctx, p.rows, p.cols, [=] TIGON_FN(auto line) {
      const std::size_t seen = mask == attention_mask::causal ? at.first + line.i + 1 : p.cols;
      const A l = lse.data[line.i];
      const auto row = line.narrow(seen);
      if constexpr (std::same_as<T, A>) {
        const A delta = line.narrow(o.cols).sum(reads(d_o, o), [](auto g, auto v) { return g * v; });
        row.map(reads(p, ds), writes(p, ds), [=](auto s, auto g) {
          const auto e = exp_nonpositive(s - l);
          return pack{e, e * (g - delta)};
        });
      } else {  // o was rounded to 16 bits: delta from p and do v^T, which were not
        const A delta = row.map_sum(reads(p, ds), writes(p), [=](auto s, auto g) {
          const auto e = exp_nonpositive(s - l);
          return pack{e, e * g};
        });
        row.map(reads(p, ds), writes(ds), [=](auto e, auto g) { return e * (g - delta); });
      }
      const std::size_t hidden = p.cols - seen;
      line.narrow(hidden).map(reads(constant(A(0))), writes(p.cols_from(seen, hidden), ds.cols_from(seen, hidden)),
                              [](auto zero) {
                                return pack{zero, zero};
                              });
    });
  }

  template <backend B, element T, class A>
  static void key_gradients(matrix_view<A> dk_sums, matrix_view<A> dv_sums, A scale, matrix_view<T> dk,
                            matrix_view<T> dv, context& ctx) {
    for_rows<B, A>(ctx, dk.rows, dk.cols, [=] TIGON_FN(auto row) {
      row.map(reads(dk_sums, dv_sums), writes(dk, dv), [=](auto k, auto v) { return pack{k * scale, v}; });
    });
  }

  /// Bytes of one worker.
  template <backend B, element T>
  static std::size_t forward_workspace(std::size_t seq_len, std::size_t d, attention_options opt) {
    using A = accumulator_t<T>;
    return detail::query_blocks<B>{seq_len, opt.mask}.most([=](detail::query_block at) {
      return detail::scores_bytes<A>(at) + workspace::bytes_for<A>(at.rows) +
             std::max(gemm_workspace<B, T, T, A>(at.rows, at.keys, d),
                      detail::sum_over_keys_bytes<B, A, T>(at.rows, d, at.keys));
    });
  }
  template <backend B, element T>
  static std::size_t backward_workspace(std::size_t seq_len, std::size_t d, attention_options opt) {
    using A = accumulator_t<T>;
    const detail::query_blocks<B> blocks{seq_len, opt.mask};
    const std::size_t of_block = blocks.most([=](detail::query_block at) {
      return 2 * detail::scores_bytes<A>(at) + std::max({gemm_workspace<B, T, T, A>(at.rows, at.keys, d),
                                                         detail::sum_over_keys_to_bytes<B, A, T>(at.rows, d, at.keys),
                                                         gemm_workspace<B, A, T, A>(at.keys, d, at.rows)});
    });
    return of_block + 2 * detail::key_sums<row_backend<B>, T>::bytes(seq_len, d, blocks.size());
  }
};

}  // namespace tigon

#include <tigon/gemm/gemm.hpp>  // the doors beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_ATTENTION_HPP
