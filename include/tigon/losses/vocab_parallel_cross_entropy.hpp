// Cross entropy of logits whose vocabulary is split over ranks.
#ifndef TIGON_LOSSES_VOCAB_PARALLEL_CROSS_ENTROPY_HPP
#define TIGON_LOSSES_VOCAB_PARALLEL_CROSS_ENTROPY_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/losses/ranks/vocab_parallel_cross_entropy_kernel.hpp>

namespace tigon {

/// Cross entropy of each row, where every rank has some columns of the logits s: those of its shard; the shards follow
/// one another in the order of ranks. With m = max_j s_j and d = sum_j exp(s_j - m) over the columns of all ranks,
/// without the maximal element's own 1, and a row's target t:
///
///   lse  = m + log1p(d),   p_j = exp(s_j - m) / (1 + d),   -log p_t = (m - s_t) + log1p(d)
///   loss = (1 - a) (-log p_t) + a / K sum_j (lse - s_j)             the sum over the K columns of `classes`
///   dlogits_j = upstream (p_j - a / K - (1 - a) [j = t])            for the columns of this rank
///   a    = l (pytorch) or l K / (K - 1) (megatron)                  l = label_smoothing
///
/// Formula    docs/formulas/vocab_parallel_cross_entropy.md. Forward takes one gather of three numbers a row and rank
///            (four with global smoothing), which are merged in the order of ranks; backward sends nothing.
/// Shapes     logits, dlogits [rows, columns of this rank]; target [rows], the same on all ranks, in the whole
///            vocabulary; loss, top, rest [rows]; upstream one number or [rows]. A shard may be empty; rows may be 0.
/// Types      logits and dlogits one of f32, bf16, f16, f64, the same on all ranks; loss, top, rest and upstream f32
///            (f64 for f64); target std::int32_t or std::int64_t.
/// Precision  f32 (f64 for f64); one rounding at dlogits.
/// Options    backward takes those of forward.
/// Writes     loss, top (m) and rest (d), which backward needs, the same bits on all ranks (with partition smoothing
///            each rank has a loss of its own); dlogits. A row whose target is ignore_index is not read: loss and
///            gradient are 0.
/// Aliasing   dlogits may be logits, which are then overwritten. Otherwise no output shares an element with another
///            argument; any layout.
/// Throws     tigon::error: shape, stride, alias, argument (a number outside option_range), workspace, and index (in
///            every build) for a target outside [0, vocab) that is not ignore_index; before the first write. From
///            forward all ranks throw the same error, whichever of them found it; state where ranks differ in what has
///            to be equal.
/// Edges      NaN or +inf in a row on any rank: that row is NaN on all. -inf at the target: loss inf, finite gradient.
///            All -inf: NaN. A gradient below the smallest normal f32 (f64) is written as 0.
/// Max error  loss 4e-7 of |reference| + its root mean square where sums are f32; dlogits f32 1e-6, bf16 4e-3 of the
///            same (tests/losses/vocab_parallel_cross_entropy_test.cpp). The ranks' parts are put together in f64.
///
/// ```cpp
/// std::vector<float> logits(4 * 100, 0.5f), dlogits(logits), loss(4), top(4), rest(4);
/// const std::vector<std::int64_t> target{1, -100, 3, 99};
/// const tigon::matrix_view in(logits.data(), 4, 100), gradient(dlogits.data(), 4, 100);
/// const tigon::comm::serial ranks;
/// const tigon::vocab_shard shard{.first = 0, .vocab = 100};
/// tigon::vocab_parallel_cross_entropy_forward(ranks, in, shard, std::span(target), {loss, top, rest});
/// tigon::vocab_parallel_cross_entropy_backward(in, shard, std::span(target), loss, {top, rest}, gradient);
/// ```
struct vocab_parallel_cross_entropy_options;

namespace detail {
inline namespace TIGON_ABI {
/// Declares what both public functions read of one rank, and checks what it says.
template <class B, class A, class I>
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
  expect_labels_of<B>(op, target, shard.vocab, opt.ignore_index);
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

/// Bytes of workspace that vocab_parallel_cross_entropy_forward takes for a shard of so many rows and columns on one of
/// so many ranks.
template <class B = default_backend, class T>
std::size_t vocab_parallel_cross_entropy_workspace(std::size_t rows, std::size_t cols, std::size_t ranks,
                                                   vocab_parallel_cross_entropy_options opt = {},
                                                   const context& ctx = default_context<B>()) {
  using A = accumulator_t<T>;
  if constexpr (!host_memory<B>)
    return kernel_for<op::vocab_parallel_cross_entropy, B>::template workspace_bytes<T>(rows, ranks, opt);
  const detail::vocab_message numbers(opt);
  const std::size_t scratch = simd::scratch_workspace<B, A>(cols, 1, ctx);
  const std::size_t all = ranks == 1 ? 0 : workspace::bytes_for<A>(ranks, numbers.sent, rows);
  return workspace::bytes_for<A>(numbers.kept, rows) + all + scratch;
}

/// Loss of every row, and what backward needs. All ranks call it together. See
/// vocab_parallel_cross_entropy_options for the contract.
template <class B = default_backend, class X, class Target, class T = std::remove_const_t<X>>
void vocab_parallel_cross_entropy_forward(communicator_ref comm, matrix_view<X> logits, vocab_shard shard,
                                          const Target& target,
                                          std::type_identity_t<vocab_parallel_results<accumulator_t<T>>> to,
                                          vocab_parallel_cross_entropy_options opt = {},
                                          context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  const std::span labels(target);
  using I = std::remove_const_t<typename decltype(labels)::element_type>;
  static_assert(token_id<I>, "tigon: targets are std::int32_t or std::int64_t");
  const std::span<const I> targets(labels);
  constexpr std::string_view name = "vocab_parallel_cross_entropy_forward";
  const auto record =
      detail::vocab_record(logits.rows, logits.cols, shard, element_number<T>(), detail::read_on_host<B>(targets), opt);
  const auto ranks = comm::agree(comm, record, [&] {
    detail::expect_place<B>(name, comm, ctx);
    arguments args(name);
    detail::declare_vocab_shard<B, A>(args, name, logits, shard, targets, opt);
    args.out("rest", to.rest, logits.rows);
    args.out("top", to.top, logits.rows);
    args.out("loss", to.loss, logits.rows);
    args.check();
    ctx.workspace().expect(
        name, vocab_parallel_cross_entropy_workspace<B, T>(logits.rows, logits.cols, comm.size(), opt, ctx));
  });
  if (ranks.size() == comm.size()) detail::expect_vocab_shards(name, ranks);
  using K = kernel_for<op::vocab_parallel_cross_entropy, B>;
  if constexpr (host_memory<B>)
    return K::template forward<B, T, I>(comm, ranks, logits, targets, to, opt, ctx);
  else {
    const detail::call_of_ranks<B> guard;
    detail::expect_labels_in<B>(name, targets, shard.vocab, opt.ignore_index, ctx);
    K::template forward<B, T, I>(comm, shard, logits, targets, to, opt, ctx);
  }
}

/// dlogits of this rank's columns, from what forward left of the same logits. Sends nothing; may be
/// called again.
template <class B = default_backend, class T, class Target>
void vocab_parallel_cross_entropy_backward(in_matrix<T> logits, vocab_shard shard, const Target& target,
                                           std::type_identity_t<std::span<const accumulator_t<T>>> upstream,
                                           std::type_identity_t<vocab_parallel_statistics<accumulator_t<T>>> saved,
                                           matrix_view<T> dlogits, vocab_parallel_cross_entropy_options opt = {},
                                           context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const std::span labels(target);
  using I = std::remove_const_t<typename decltype(labels)::element_type>;
  static_assert(token_id<I>, "tigon: targets are std::int32_t or std::int64_t");
  const std::span<const I> targets(labels);
  constexpr std::string_view name = "vocab_parallel_cross_entropy_backward";
  arguments args(name);
  detail::declare_vocab_shard<B, accumulator_t<T>>(args, name, logits, shard, targets, opt);
  args.in("upstream", upstream, upstream.size() == 1 ? 1 : logits.rows);
  args.in("top", saved.top, logits.rows);
  args.in("rest", saved.rest, logits.rows);
  args.out("dlogits", dlogits, logits.rows, logits.cols).may_be("logits");
  args.check();
  if constexpr (!host_memory<B>) detail::expect_labels_in<B>(name, targets, shard.vocab, opt.ignore_index, ctx);
  kernel_for<op::vocab_parallel_cross_entropy, B>::template backward<B, T, I>(shard, logits, targets, upstream, saved,
                                                                              dlogits, opt, ctx);
}

TIGON_EXPLAINS(vocab_parallel_cross_entropy_forward)
TIGON_EXPLAINS(vocab_parallel_cross_entropy_backward)

}  // namespace tigon

#include <tigon/losses/cross_entropy.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_VOCAB_PARALLEL_CROSS_ENTROPY_HPP
