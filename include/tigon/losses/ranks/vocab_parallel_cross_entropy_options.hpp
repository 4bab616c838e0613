// The tag, options, operands and checks of vocab_parallel_cross_entropy.
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

/// The contract is in losses/vocab_parallel_cross_entropy.hpp.
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
/// What a backend says is to exist while ranks call together (its type call_of_ranks), or nothing.
struct call_without_guard {
  TIGON_INLINE call_without_guard() {}
};
template <class B>
struct find_call_of_ranks : std::type_identity<call_without_guard> {};
template <class B>
  requires requires { typename B::call_of_ranks; }
struct find_call_of_ranks<B> : std::type_identity<typename B::call_of_ranks> {};
template <class B>
using call_of_ranks = typename find_call_of_ranks<B>::type;

/// Refuses a communicator that gathers elsewhere than where the data of B are.
template <class B>
void expect_place(std::string_view op, communicator_ref comm, const context& ctx) {
  comm::expect_place(op, comm, host_memory<B>, host_memory<B> ? nullptr : ctx.stream());
}
/// Numbers that hosts compare: none where they do not read them.
template <class B, class T>
std::span<const T> read_on_host(std::span<const T> numbers) {
  return host_memory<B> ? numbers : std::span<const T>();
}

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
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_RANKS_VOCAB_PARALLEL_CROSS_ENTROPY_OPTIONS_HPP
