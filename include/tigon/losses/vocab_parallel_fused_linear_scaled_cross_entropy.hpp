// Negative log-likelihood and entropy of every token, of a linear layer's output whose classes are split over ranks.
#ifndef TIGON_LOSSES_VOCAB_PARALLEL_FUSED_LINEAR_SCALED_CROSS_ENTROPY_HPP
#define TIGON_LOSSES_VOCAB_PARALLEL_FUSED_LINEAR_SCALED_CROSS_ENTROPY_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/losses/ranks/vocab_parallel_fused_linear_scaled_cross_entropy_kernel.hpp>

namespace tigon {

/// fused_linear_scaled_cross_entropy where every rank has some of the classes: w, bias and their gradients are those of
/// its shard; the shards follow one another in the order of ranks. With nll, entropy, lse and D of the classes of all
/// ranks,
///
///   s_r = (x w_r^T + b_r) / temperature on rank r,   dx = sum_r D_r w_r,   dw_r = D_r^T x,   db_r[j] = sum_i D_r[i,j]
///
/// Formula    docs/formulas/vocab_parallel_fused_linear_cross_entropy.md. A chunk takes one gather of four numbers a
///            row and rank, which are merged in the order of ranks in f64, and one of the shares of dx.
/// Shapes     x, dx [rows, hidden]; w, dw [classes of this rank, hidden]; bias, dbias [classes of this rank], or none;
///            target [rows], in the whole vocabulary; nll, entropy, lse [rows]; upstream one number or [rows]. vocab >=
///            1; a shard may be empty; rows and hidden may be 0. All but w, dw, bias and dbias have to be equal on all
///            ranks; of x only the shape is compared.
/// Types      as fused_linear_scaled_cross_entropy, the same on all ranks.
/// Precision  logits, D, the sums of dw and db over all chunks and that of dx over all ranks in f32 (f64 for f64); one
///            rounding at each output.
/// Options    backward takes those of forward.
/// Writes     as fused_linear_scaled_cross_entropy: nll, entropy, lse and dx the same bits on all ranks. Whether dx is
///            computed is the same on all ranks; dw, dbias and results each rank may leave out for itself.
/// Ignored    as fused_linear_scaled_cross_entropy; nothing is sent for such rows.
/// Aliasing   no output shares an element with another argument; any layout.
/// Memory     chunk * (classes of this rank) logits in f32; for 16-bit w an f32 dw; with dx two chunks of it in f32 and
///            up to 1 MiB a rank. See vocab_parallel_fused_linear_scaled_cross_entropy_workspace. w may come packed.
/// Threads    the same bits for any number of them, and for ranks that are threads or processes.
/// Throws     tigon::error as fused_linear_scaled_cross_entropy, the same on all ranks, whichever of them found it;
///            state where ranks differ in what has to be equal; before the first write.
/// Edges      as fused_linear_scaled_cross_entropy. NaN or +inf in a row of logits on any rank: that row is NaN on all.
/// Max error  as fused_linear_scaled_cross_entropy: results 2e-6 of |reference| + their root mean square, in bf16 too;
///            gradients f32 2e-5, bf16 8e-3 (tests/losses/vocab_parallel_fused_linear_scaled_cross_entropy_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), w(100 * 16, 0.1f), dx(x), dw(w), nll(4), upstream(4, 1);
/// const std::vector<std::int64_t> target{1, 2, 3, 99};
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), v.size() / 16, 16); };
/// const tigon::linear_layer layer{rows(x), rows(w)};
/// const tigon::linear_gradients gradients{rows(dx), rows(dw)};
/// const tigon::comm::serial ranks;
/// const tigon::linear_shard shard{layer, tigon::vocab_shard{.first = 0, .vocab = 100}};
/// tigon::vocab_parallel_fused_linear_scaled_cross_entropy_forward(ranks, shard, std::span(target), {nll}, gradients,
///                                                                 {}, {upstream});
/// tigon::vocab_parallel_fused_linear_scaled_cross_entropy_backward(ranks, shard, std::span(target), {upstream},
///                                                                  gradients);
/// ```
using vocab_parallel_fused_linear_scaled_cross_entropy_options = fused_linear_scaled_cross_entropy_options;

namespace detail {
inline namespace TIGON_ABI {
template <class B, class A>
std::size_t scaled_cross_entropy_shard_chunk(std::size_t rows, std::size_t hidden, std::size_t vocab, std::size_t ranks,
                                             const context& ctx) {
  return shard_chunk_rows<A>(chunk_within_bytes<B>(), rows, hidden, vocab, ranks, ctx);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Bytes of workspace that the public functions take with all gradients and a bias, or with the gradient of x alone,
/// for `cols` classes on one of so many ranks.
template <class B = default_backend, class T>
std::size_t vocab_parallel_fused_linear_scaled_cross_entropy_workspace(std::size_t rows, std::size_t hidden,
                                                                       std::size_t cols, std::size_t vocab,
                                                                       std::size_t ranks,
                                                                       const context& ctx = default_context<B>(),
                                                                       parameters of = parameters::trained) {
  using A = accumulator_t<T>;
  const std::size_t chunk = detail::scaled_cross_entropy_shard_chunk<B, A>(rows, hidden, vocab, ranks, ctx);
  if constexpr (!host_memory<B>)
    return kernel_for<op::vocab_parallel_fused_linear_scaled_cross_entropy, B>::template workspace_bytes<B, T>(
        {rows, hidden, cols}, ranks, chunk, ctx, of);
  return detail::kept_labels<std::int64_t>::bytes<A>(rows, 2) +
         detail::shard_linear<B, T>::bytes({rows, hidden, cols}, vocab, ranks, chunk, ctx, of, [=](std::size_t n) {
           return workspace::bytes_for<A>(n, cols) +
                  detail::shard_scaled_cross_entropy<row_backend<B>, std::int64_t, A>::bytes(ranks, n);
         });
}

namespace detail {
inline namespace TIGON_ABI {
/// What the public functions are called with.
template <layer_types T>
struct shard_scaled_call {
  communicator_ref comm;
  const linear_shard<T>& part;
  linear_gradients<T> gradients;
  scaled_cross_entropy_results<accumulator_t<T>> out;
  scaled_cross_entropy_upstream<accumulator_t<T>> g;
  bool backward;
};

/// Checks on all ranks, and the call.
template <class B, layer_types T, class Target>
void shard_linear_scaled_cross_entropy(std::string_view name, const shard_scaled_call<T>& of, const Target& target,
                                       const fused_linear_scaled_cross_entropy_options& opt, context& ctx) {
  using A = accumulator_t<T>;
  const std::span labels(target);
  using I = std::remove_const_t<typename decltype(labels)::element_type>;
  static_assert(token_id<I>, "tigon: targets are std::int32_t or std::int64_t");
  const std::span<const I> targets(labels);
  const linear_layer<T>& head = of.part.layer;
  const vocab_shard shard = of.part.shard;
  const std::size_t rows = head.x.rows, hidden = head.x.cols, cols = head.w.rows, ranks = of.comm.size();
  const std::size_t chunk = scaled_cross_entropy_shard_chunk<B, A>(rows, hidden, shard.vocab, ranks, ctx);
  const equal_number equal[] = {{"ignore_index", opt.ignore_index},
                                {"temperature", opt.temperature},
                                {"upstream.nll", hash_of_numbers<B>(of.g.nll.data(), of.g.nll.size())},
                                {"upstream.entropy", hash_of_numbers<B>(of.g.entropy.data(), of.g.entropy.size())}};
  const equal_numbers<A, I> layer(of.part, read_on_host<B>(targets), chunk, of.gradients.dx.data != nullptr);
  const auto agreed = agree_on_shards(name, of.comm, shard, cols, layer, equal, [&] {
    expect_place<B>(name, of.comm, ctx);
    arguments args(name);
    declare_linear_shard<B>(args, name, of.part);
    args.in("target", targets, rows);
    args.that(!of.gradients.any() || rows == 0 || of.g.nll.data() != nullptr || of.g.entropy.data() != nullptr,
              error_code::shape, "upstream", "empty",
              "a gradient of nll or of entropy: one number, or one for each row");
    args.optional_in("upstream.nll", of.g.nll, of.g.nll.size() == 1 ? 1 : rows);
    args.optional_in("upstream.entropy", of.g.entropy, of.g.entropy.size() == 1 ? 1 : rows);
    declare_gradients(args, head, of.gradients);
    args.optional_out("nll", of.out.nll, rows);
    args.optional_out("entropy", of.out.entropy, rows);
    args.optional_out("lse", of.out.lse, rows);
    args.check();
    args.option(opt.temperature >= 1e-30 && opt.temperature <= 1e30, "temperature", opt.temperature,
                "a number from 1e-30 to 1e30");
    expect_labels_of<B>(name, targets, shard.vocab, opt.ignore_index);
    ctx.workspace().expect(name, vocab_parallel_fused_linear_scaled_cross_entropy_workspace<B, T>(
                                     rows, hidden, cols, shard.vocab, ranks, ctx, of.gradients.of_weights()));
  });
  const auto columns = columns_of(agreed, of.comm);

  using K = kernel_for<op::vocab_parallel_fused_linear_scaled_cross_entropy, B>;
  const call_of_ranks<B> guard;
  if constexpr (!host_memory<B>) expect_labels_in<B>(name, targets, shard.vocab, opt.ignore_index, ctx);
  workspace::frame frame(ctx.workspace());
  const auto kept = kept_labels<I>::template of<B>(frame, targets, rows, opt.ignore_index);
  const linear_shard_loss<T> t{
      of.comm,     columns.data(),
      shard.vocab, shard_chunk_of(kept.rows(), chunk, of.part, ranks, of.gradients.dx.data != nullptr),
      head,        of.gradients,
      kept.rows()};
  const scaled_cross_entropy_rows<A> of_rows(of.out,
                                             {kept.of_kept(frame, of.g.nll), kept.of_kept(frame, of.g.entropy)});
  if (of.backward) return K::template backward<B, T, I>(t, kept.labels(), of_rows, opt, ctx);
  K::template forward<B, T, I>(t, kept.labels(), of_rows, opt, ctx);
  of_rows.spread(rows, kept.rows());
}
}  // namespace TIGON_ABI
}  // namespace detail

/// The results and, where the upstream gradients are known beforehand, the gradients in the same pass. All ranks call
/// it together. See vocab_parallel_fused_linear_scaled_cross_entropy_options for the contract.
template <class B = default_backend, class T, class Target>
void vocab_parallel_fused_linear_scaled_cross_entropy_forward(
    communicator_ref comm, const linear_shard<T>& part, const Target& target,
    std::type_identity_t<scaled_cross_entropy_results<accumulator_t<T>>> to,
    std::type_identity_t<linear_gradients<T>> gradients = {},
    vocab_parallel_fused_linear_scaled_cross_entropy_options opt = {},
    std::type_identity_t<scaled_cross_entropy_upstream<accumulator_t<T>>> upstream = {},
    context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  detail::shard_linear_scaled_cross_entropy<B, T>("vocab_parallel_fused_linear_scaled_cross_entropy_forward",
                                                  {comm, part, gradients, to, upstream, false}, target, opt, ctx);
}

/// dx, dw and dbias for upstream gradients of nll, of entropy, or of both; the logits are computed again. All ranks
/// call it together.
template <class B = default_backend, class T, class Target>
void vocab_parallel_fused_linear_scaled_cross_entropy_backward(
    communicator_ref comm, const linear_shard<T>& part, const Target& target,
    std::type_identity_t<scaled_cross_entropy_upstream<accumulator_t<T>>> upstream,
    std::type_identity_t<linear_gradients<T>> gradients,
    vocab_parallel_fused_linear_scaled_cross_entropy_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  detail::shard_linear_scaled_cross_entropy<B, T>("vocab_parallel_fused_linear_scaled_cross_entropy_backward",
                                                  {comm, part, gradients, {}, upstream, true}, target, opt, ctx);
}

}  // namespace tigon

#include <tigon/losses/cross_entropy.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_VOCAB_PARALLEL_FUSED_LINEAR_SCALED_CROSS_ENTROPY_HPP
