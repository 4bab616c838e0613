// Contract of cross entropy over a split vocabulary, and what ranks exchange before they write.
#ifndef TIGON_LOSSES_RANKS_VOCAB_PARALLEL_CROSS_ENTROPY_OPTIONS_HPP
#define TIGON_LOSSES_RANKS_VOCAB_PARALLEL_CROSS_ENTROPY_OPTIONS_HPP

#include <tigon/comm/communicator.hpp>
#include <tigon/losses/softmax/cross_entropy_options.hpp>

namespace tigon {

namespace op {
struct vocab_parallel_cross_entropy {
  static constexpr std::string_view name = "vocab_parallel_cross_entropy";
};
}  // namespace op

/// Which classes the smoothed mass l is spread over: all K classes, or the K - 1 that are not the target.
enum class smoothing_formula { pytorch, megatron };
/// Which K classes: those of all ranks, or those of this rank.
enum class smoothing_classes { global, partition };

/// Cross entropy of each row, where every rank has some columns of the logits s: those of its shard, the shards of all
/// ranks one behind the other in the order of ranks. With m = max_j s_j and d = sum_j exp(s_j - m) over the columns of
/// all ranks, without the maximal element's own 1, and a row's target t:
///
///   lse  = m + log1p(d),   p_j = exp(s_j - m) / (1 + d),   -log p_t = (m - s_t) + log1p(d)
///   loss = (1 - a) (-log p_t) + a / K sum_j (lse - s_j)             the sum over the K columns of `classes`
///   dlogits_j = upstream (p_j - a / K - (1 - a) [j = t])            for the columns of this rank
///   a    = l (pytorch) or l K / (K - 1) (megatron)                  l = label_smoothing
///
/// Formula    docs/formulas/vocab_parallel_cross_entropy.md. One gather of three numbers a row and rank (four with
///            global smoothing), merged in the order of ranks; backward sends nothing.
/// Shapes     logits, dlogits [rows, columns of this rank]; target [rows], the same on all ranks, in the whole
///            vocabulary; loss, top, rest [rows]; upstream one number or [rows]. A shard may be empty; rows may be 0.
/// Types      logits and dlogits one of f32, bf16, f16, f64, the same on all ranks; loss, top, rest and upstream f32
///            (f64 for f64); target std::int32_t or std::int64_t.
/// Precision  f32 (f64 for f64); one rounding at dlogits.
/// Options    backward: as in forward.
/// Writes     loss, top (m) and rest (d), which backward needs, the same bits on all ranks (with partition smoothing
///            each rank has a loss of its own); dlogits. A row whose target is ignore_index is not read: loss and
///            gradient are 0.
/// Aliasing   dlogits may be logits, which are then gone. Otherwise any layout in which no written element is shared.
/// Throws     tigon::error: shape, stride, alias, argument (a number outside option_range), workspace, and index (in
///            every build) for a target outside [0, vocab) that is not ignore_index; before the first write. From
///            forward all ranks throw the same error, whichever of them found it; state where ranks differ in what has
///            to be equal.
/// Edges      NaN or +inf in a row on any rank: that row is NaN on all. -inf at the target: loss inf, finite gradient.
///            All -inf: NaN. A gradient below the smallest normal f32 (f64) is written as 0.
/// Max error  loss 4e-7 of |reference| + its root mean square where sums are f32; dlogits f32 1e-6, bf16 4e-3 of the
///            same (tests/losses/vocab_parallel_cross_entropy_test.cpp). The ranks' parts are put together in f64.
struct vocab_parallel_cross_entropy_options {
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;  ///< l, from 0 to below 1
  smoothing_formula formula = smoothing_formula::pytorch;
  smoothing_classes classes = smoothing_classes::global;
};

/// As Megatron-LM smooths: over the other classes of the rank's own part.
inline constexpr vocab_parallel_cross_entropy_options megatron_cross_entropy{.formula = smoothing_formula::megatron,
                                                                             .classes = smoothing_classes::partition};

/// What forward makes of every row: the loss, and m and d of its contract.
template <class A>
struct vocab_parallel_results {
  std::span<A> loss, top, rest;
};
/// What backward needs of it.
template <class A>
struct vocab_parallel_statistics {
  std::span<const A> top, rest;
};

/// Which columns a rank has: [first, first + logits.cols) of `vocab`.
struct vocab_shard {
  std::size_t first = 0;
  std::size_t vocab = 0;
};

namespace detail {
inline namespace TIGON_ABI {

/// What the ranks exchange before the first write; from `rows` on it is equal on all ranks.
struct vocab_record {
  std::size_t first, cols, rows, vocab;
  std::uint64_t type;  ///< of logits, by number
  std::int64_t ignore_index;
  double label_smoothing;
  smoothing_formula formula;
  smoothing_classes classes;
  std::uint64_t target_hash;

  template <class I>
  vocab_record(std::size_t logits_rows, std::size_t logits_cols, vocab_shard shard, std::uint64_t type_of,
               std::span<const I> target, const vocab_parallel_cross_entropy_options& opt)
      : first(shard.first),
        cols(logits_cols),
        rows(logits_rows),
        vocab(shard.vocab),
        type(type_of),
        ignore_index(opt.ignore_index),
        label_smoothing(opt.label_smoothing),
        formula(opt.formula),
        classes(opt.classes),
        target_hash(0xcbf29ce484222325u) {
    for (const I t : target) target_hash = (target_hash ^ static_cast<std::uint64_t>(t)) * 0x100000001b3u;  // FNV-1a
  }
  vocab_record() = default;
};

/// a and a / K of the smoothing for one rank.
template <class A>
struct smoothing_share {
  A target = 0, each = 0;

  smoothing_share(const vocab_parallel_cross_entropy_options& opt, std::size_t vocab, std::size_t cols) {
    if (opt.label_smoothing == 0) return;
    const auto k = static_cast<double>(opt.classes == smoothing_classes::global ? vocab : cols);
    const double a =
        opt.formula == smoothing_formula::pytorch ? opt.label_smoothing : opt.label_smoothing * k / (k - 1);
    target = static_cast<A>(a), each = static_cast<A>(a / k);
  }
};

/// Numbers a row that a rank keeps, and that it sends: m, d, s_t, and the sum of s_j - m where smoothing needs it.
struct vocab_message {
  std::size_t kept, sent;
  constexpr explicit vocab_message(const vocab_parallel_cross_entropy_options& opt)
      : kept(opt.label_smoothing == 0 ? 3 : 4), sent(opt.classes == smoothing_classes::global ? kept : 3) {}
};

/// Declares what both doors read of one rank, and checks what it says.
template <class A, class I>
void declare_vocab_shard(arguments& args, std::string_view op, extent logits, vocab_shard shard,
                         std::span<const I> target, const vocab_parallel_cross_entropy_options& opt) {
  args.at_least_one("vocab", shard.vocab);
  args.in("logits", logits);
  if (logits.cols > shard.vocab || shard.first > shard.vocab - logits.cols)
    fail_argument(error_code::shape, op, "shard",
                  std::to_string(logits.cols) + " columns from " + std::to_string(shard.first) + " on",
                  "to end within the vocab of " + std::to_string(shard.vocab));
  args.in("target", target, logits.rows);
  args.number<A>(opt.label_smoothing >= 0 && opt.label_smoothing < 1, "label_smoothing", opt.label_smoothing,
                 "a number from 0 to below 1");
  const bool global = opt.classes == smoothing_classes::global, others = opt.formula == smoothing_formula::megatron;
  const std::size_t k = global ? shard.vocab : logits.cols;
  if (opt.label_smoothing > 0 && k < (others ? 2u : 1u))
    fail_argument(
        error_code::argument, op, "label_smoothing", number_text(opt.label_smoothing),
        "0 where it is spread over " + std::to_string(k) + (others ? " classes, the target among them" : " classes"));
  expect_labels(op, target, shard.vocab, opt.ignore_index);
}

/// Fails because a rank has another value of `name` than rank 0.
[[noreturn]] inline void fail_of_ranks(std::string_view op, std::string_view name, std::size_t rank) {
  fail_argument(error_code::state, op, name, "another on rank " + std::to_string(rank), "the same as on rank 0");
}

/// Checks that the shards, [first, first + cols) of each record, are the vocabulary in the order of ranks.
template <class Record>
void expect_order_of_shards(std::string_view op, std::span<const Record> ranks, std::size_t vocab) {
  std::size_t next = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].first != next)
      fail_argument(error_code::state, op, "shard.first",
                    std::to_string(ranks[r].first) + " on rank " + std::to_string(r),
                    std::to_string(next) + ", where the shard before it ends");
    next += ranks[r].cols;
  }
  if (next != vocab)
    fail_argument(error_code::state, op, "vocab", std::to_string(vocab),
                  std::to_string(next) + ", the columns of all ranks");
}

/// Checks that the shards are the vocabulary, and that the ranks agree in all else.
inline void expect_vocab_shards(std::string_view op, std::span<const vocab_record> ranks) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto same = [&](std::string_view name, auto vocab_record::*field) {
      if (ranks[r].*field != ranks[0].*field) fail_of_ranks(op, name, r);
    };
    same("rows", &vocab_record::rows), same("vocab", &vocab_record::vocab);
    same("type", &vocab_record::type), same("ignore_index", &vocab_record::ignore_index);
    same("label_smoothing", &vocab_record::label_smoothing), same("formula", &vocab_record::formula);
    same("classes", &vocab_record::classes), same("target", &vocab_record::target_hash);
  }
  expect_order_of_shards(op, ranks, ranks[0].vocab);
}

}  // namespace TIGON_ABI
}  // namespace detail
}  // namespace tigon

#endif  // TIGON_LOSSES_RANKS_VOCAB_PARALLEL_CROSS_ENTROPY_OPTIONS_HPP
