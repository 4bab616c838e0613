// The generic kernel of vocab_parallel_cross_entropy.
#ifndef TIGON_LOSSES_RANKS_VOCAB_PARALLEL_CROSS_ENTROPY_KERNEL_HPP
#define TIGON_LOSSES_RANKS_VOCAB_PARALLEL_CROSS_ENTROPY_KERNEL_HPP

#include <tigon/losses/ranks/vocab_parallel_cross_entropy_options.hpp>
#include <tigon/losses/softmax/cross_entropy_kernel.hpp>
#include <tigon/losses/softmax/partial_softmax.hpp>

namespace tigon {

template <>
struct kernel<op::vocab_parallel_cross_entropy, backends::generic> {
  template <class T>
  using saved = vocab_parallel_statistics<accumulator_t<T>>;

  template <backend B, element T, token_id I>
  static void forward(communicator_ref comm, std::span<const detail::vocab_record> shards, in_matrix<T> logits,
                      std::span<const I> target, vocab_parallel_results<accumulator_t<T>> to,
                      vocab_parallel_cross_entropy_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const detail::vocab_message numbers(opt);
    const std::size_t n = numbers.sent * logits.rows;
    workspace::frame frame(ctx.workspace());
    A* mine = frame.template take<A>(numbers.kept * logits.rows);
    A* all = comm.size() == 1 ? mine : frame.template take<A>(comm.size() * n);
    reduce_shard<B>(logits, target.data(), shards[comm.rank()].first, mine, opt, ctx);
    if (comm.size() != 1) comm::all_gather<A>(comm, {mine, n}, std::span(all, comm.size() * n));
    merge<B>(shards, comm.rank(), gathered<A>{mine, all}, target.data(), to, opt, ctx);
  }

  /// Number k of row i is mine[k * rows + i]. Without a column, or of -inf alone: m = -inf and d = -1, no mass at all.
  template <backend B, class T, token_id I, class A>
  static void reduce_shard(matrix_view<const T> logits, const I* target, std::size_t first, A* mine,
                           vocab_parallel_cross_entropy_options opt, context& ctx) {
    const std::size_t rows = logits.rows;
    const std::int64_t ignored = opt.ignore_index;
    const bool smooth = opt.label_smoothing > 0;
    for_rows<B, A>(ctx, logits.rows, logits.cols, {.scratch = 1}, [=] TIGON_FN(auto row) {
      const auto t = static_cast<std::int64_t>(target[row.i]);
      if (t == ignored) {
        if (row.first()) mine[row.i] = mine[rows + row.i] = mine[2 * rows + row.i] = 0;
        if (row.first() && smooth) mine[3 * rows + row.i] = 0;
        return;
      }
      const std::size_t column = static_cast<std::size_t>(t) - first;
      const A own = column < row.cols ? row.at(logits, column) : A(0);
      const detail::plain_logits<A> kind;
      detail::softmax_part<A> part;
      if (smooth)
        part = detail::part_of_row<true>(row, row.scratch(0), kind, logits, constant(A(1)));
      else
        part = detail::part_of_row<false>(row, row.scratch(0), kind, logits, constant(A(1)));
      if (row.first()) {
        mine[row.i] = part.parts.top;
        mine[rows + row.i] = part.parts.rest;
        mine[2 * rows + row.i] = own;
        if (smooth) mine[3 * rows + row.i] = part.weighted;
      }
    });
  }

  /// The numbers of this rank's rows, and those of all ranks.
  template <class A>
  struct gathered {
    const A *mine, *all;
  };
  template <backend B, token_id I, class A>
  static void merge(std::span<const detail::vocab_record> shards, std::size_t rank, gathered<A> parts_of,
                    const I* target, vocab_parallel_results<A> to, vocab_parallel_cross_entropy_options opt,
                    context& ctx) {
    const std::size_t ranks = shards.size(), rows = to.loss.size();
    const A *mine = parts_of.mine, *all = parts_of.all;
    const std::size_t numbers = detail::vocab_message(opt).sent * rows, own_cols = shards[rank].cols;
    const detail::smoothing_share<A> share(opt, shards[0].vocab, own_cols);
    const std::int64_t ignored = opt.ignore_index;
    const bool smooth = opt.label_smoothing > 0, global = opt.classes == smoothing_classes::global;
    const A of_class = A(1) / static_cast<A>(global ? shards[0].vocab : own_cols);
    const auto* shard = shards.data();
    A *losses = to.loss.data(), *tops = to.top.data(), *rests = to.rest.data();
    for_rows<B, A>(ctx, rows, ranks, [=] TIGON_FN(auto row) {
      const auto t = static_cast<std::int64_t>(target[row.i]);
      if (t == ignored) {
        if (row.first()) losses[row.i] = tops[row.i] = rests[row.i] = 0;
        return;
      }
      lse_parts<double> parts{-std::numeric_limits<double>::infinity(), -1};
      A own(0);
      for (std::size_t r = 0; r < ranks; ++r) {
        const A* of = all + r * numbers + row.i;
        detail::add_part<A>(parts, {of[0], of[rows]}, detail::plain_logits<A>{});
        if (static_cast<std::size_t>(t) - shard[r].first < shard[r].cols) own = of[2 * rows];
      }
      const A top = static_cast<A>(parts.top), d = static_cast<A>(parts.rest);
      const A tail = math::log1p(d), minus_log_p = tail - (own - top);
      A value = minus_log_p;
      if (smooth) {
        double sum = 0;  // of s_j - top over the K classes
        if (global)
          for (std::size_t r = 0; r < ranks; ++r) {
            const A* of = all + r * numbers + row.i;
            sum += detail::seen_from(of[3 * rows], of[0], top, detail::plain_logits<A>{},
                                     static_cast<double>(shard[r].cols));
          }
        else
          sum = detail::seen_from(mine[3 * rows + row.i], mine[row.i], top, detail::plain_logits<A>{},
                                  static_cast<double>(own_cols));
        value = (A(1) - share.target) * minus_log_p + share.target * (tail - static_cast<A>(sum) * of_class);
      }
      if (row.first()) losses[row.i] = value, tops[row.i] = top, rests[row.i] = d;
    });
  }

  template <backend B, element T, token_id I>
  static void backward(vocab_shard shard, in_matrix<T> logits, std::span<const I> target,
                       std::span<const accumulator_t<T>> upstream, saved<T> from, matrix_view<T> dlogits,
                       vocab_parallel_cross_entropy_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const detail::smoothing_share<A> share(opt, shard.vocab, logits.cols);
    const std::int64_t ignored = opt.ignore_index;
    const std::size_t step = upstream.size() == 1 ? 0 : 1, first = shard.first;
    const I* targets = target.data();
    const A *g = upstream.data(), *tops = from.top.data(), *rests = from.rest.data();
    for_rows<B, A>(ctx, logits.rows, logits.cols, [=] TIGON_FN(auto row) {
      const auto t = static_cast<std::int64_t>(targets[row.i]);
      if (t == ignored) {
        row.map(reads(constant(A(0))), writes(dlogits), [](auto zero) { return zero; });
        return;
      }
      const std::size_t column = static_cast<std::size_t>(t) - first;
      const bool owned = column < row.cols;
      const A own = owned ? row.at(logits, column) : A(0), up = g[row.i * step], top = tops[row.i], d = rests[row.i];
      const A factor = up / (A(1) + d), subtract = up * share.each;
      if (subtract == A(0))
        row.map(reads(logits), writes(dlogits),
                [=](auto v) { return normal_or_zero(exp_nonpositive<detail::result_bits<B, T>>(v - top) * factor); });
      else  // the two may cancel
        row.map(reads(logits), writes(dlogits),
                [=](auto v) { return normal_or_zero(exp_nonpositive(v - top) * factor - subtract); });
      if (owned && row.first()) {
        // The target's column is computed again: p_t - 1 cancels where p_t is near 1.
        const A log_p = (own - top) - math::log1p(d);
        row.put(dlogits, column,
                up * ((A(1) - share.target) * math::expm1(log_p) + (share.target * math::exp(log_p) - share.each)));
      }
    });
  }
};

}  // namespace tigon

#endif  // TIGON_LOSSES_RANKS_VOCAB_PARALLEL_CROSS_ENTROPY_KERNEL_HPP
