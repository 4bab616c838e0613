// Cross entropy of a linear layer's output whose classes are split over ranks, with all gradients.
#ifndef TIGON_LOSSES_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_HPP
#define TIGON_LOSSES_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/losses/ranks/vocab_parallel_fused_linear_cross_entropy_kernel.hpp>

namespace tigon {

/// fused_linear_cross_entropy where every rank has some of the classes: w, bias and their gradients are those of its
/// shard; the shards follow one another in the order of ranks.
///
///   z_r  = x w_r^T + b_r                          a chunk of rows at a time, on rank r
///   loss and D = d loss / d z over the classes of all ranks, as cross_entropy has them
///   dx   = upstream sum_r D_r w_r,   dw_r = upstream D_r^T x,   db_r[j] = upstream sum_i D_r[i,j]
///
/// Formula    docs/formulas/vocab_parallel_fused_linear_cross_entropy.md. A chunk takes one gather of up to five
///            numbers a row and rank, which are merged in the order of ranks in f64, and one of the shares of dx.
/// Shapes     x, dx [rows, hidden]; w, dw [classes of this rank, hidden]; bias, dbias [classes of this rank], or none;
///            target [rows], in the whole vocabulary; class weight [vocab] or `absent`; loss and metrics as
///            cross_entropy; upstream of backward one number or [rows]. vocab >= 1; a shard may be empty; rows and
///            hidden may be 0. All but w, dw, bias and dbias have to be equal on all ranks; of x only the shape is
///            compared.
/// Types      as fused_linear_cross_entropy, the same on all ranks.
/// Precision  logits, D, the sums of dw and db over all chunks and that of dx over all ranks in f32 (f64 for f64); one
///            rounding at each output.
/// Options    backward takes those of forward.
/// Writes     as fused_linear_cross_entropy: loss, metrics and dx the same bits on all ranks. Whether dx is computed is
///            the same on all ranks; dw and dbias each rank may leave out for itself.
/// Ignored    as fused_linear_cross_entropy; nothing is sent for such rows.
/// Aliasing   no output shares an element with another argument; any layout.
/// Memory     chunk * (classes of this rank) logits in f32; for 16-bit w an f32 dw; with dx two chunks of it in f32 and
///            up to 1 MiB a rank. See vocab_parallel_fused_linear_cross_entropy_workspace. w may come packed.
/// Threads    the same bits for any number of them, and for ranks that are threads or processes.
/// Throws     tigon::error as cross_entropy, the same on all ranks, whichever of them found it; state where ranks
///            differ in what has to be equal; before the first write.
/// Edges      as fused_linear_cross_entropy. NaN or +inf in a row of logits on any rank: that row is NaN on all.
/// Max error  as fused_linear_cross_entropy: loss 4e-7 of |reference| + its root mean square, in bf16 too, or where
///            that is more, as in a loss near 0, of what the rounding of logits changes it by; gradients f32 2e-6, bf16
///            8e-3 (tests/losses/vocab_parallel_fused_linear_cross_entropy_test.cpp, tests/fuzz/fused.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), w(100 * 16, 0.1f), dx(x), dw(w), loss(1), upstream(1, 2);
/// const std::vector<std::int64_t> target{1, -100, 3, 99};
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), v.size() / 16, 16); };
/// const tigon::linear_layer layer{rows(x), rows(w)};
/// const tigon::linear_gradients gradients{rows(dx), rows(dw)};
/// const tigon::comm::serial ranks;
/// const tigon::linear_shard shard{layer, tigon::vocab_shard{.first = 0, .vocab = 100}};
/// tigon::vocab_parallel_fused_linear_cross_entropy_forward(ranks, shard, std::span(target), {loss}, gradients);
/// tigon::vocab_parallel_fused_linear_cross_entropy_backward(ranks, shard, std::span(target), upstream, gradients);
/// ```
struct vocab_parallel_fused_linear_cross_entropy_options;

/// Bytes of workspace that vocab_parallel_fused_linear_cross_entropy_forward takes with all gradients and a bias, or
/// with the gradient of x alone, for `cols` classes on one of so many ranks.
template <class B = default_backend, class T>
std::size_t vocab_parallel_fused_linear_cross_entropy_workspace(std::size_t rows, std::size_t hidden, std::size_t cols,
                                                                std::size_t vocab, std::size_t ranks,
                                                                const context& ctx = default_context<B>(),
                                                                parameters of = parameters::trained) {
  using A = accumulator_t<T>;
  using I = std::int64_t;
  const std::size_t chunk = detail::cross_entropy_shard_chunk<B, A>(rows, hidden, vocab, ranks, ctx);
  const std::size_t of_rows = cross_entropy_workspace<B, input_t<T>>(rows, vocab, ctx) -
                              simd::scratch_workspace<B, A>(vocab, 1, ctx) + detail::kept_labels<I>::bytes<A>(rows, 1);
  if constexpr (!host_memory<B>)
    return of_rows + kernel_for<op::vocab_parallel_fused_linear_cross_entropy, B>::template workspace_bytes<B, T>(
                         {rows, hidden, cols}, ranks, chunk, ctx, of);
  return of_rows +
         detail::shard_linear<B, T>::bytes({rows, hidden, cols}, vocab, ranks, chunk, ctx, of, [=](std::size_t n) {
           return workspace::bytes_for<A>(n, cols) + detail::tiled_rows<A>::bytes(n) +
                  detail::shard_cross_entropy<row_backend<B>, true, true, I, A>::bytes(ranks, n);
         });
}

namespace detail {
inline namespace TIGON_ABI {
/// Checks on all ranks, and the call.
template <class B, layer_types T, class Target, class Weight>
void shard_linear_cross_entropy(std::string_view name, const shard_cross_entropy_call<T>& of, const Target& target,
                                Weight weight, const vocab_parallel_fused_linear_cross_entropy_options& opt,
                                context& ctx) {
  using A = accumulator_t<T>;
  const std::span labels(target);
  using I = std::remove_const_t<typename decltype(labels)::element_type>;
  static_assert(token_id<I>, "tigon: targets are std::int32_t or std::int64_t");
  const std::span<const I> targets(labels);
  const linear_layer<T>& head = of.part.layer;
  const vocab_shard shard = of.part.shard;
  const std::size_t rows = head.x.rows, hidden = head.x.cols, cols = head.w.rows, ranks = of.comm.size();
  const std::size_t chunk = cross_entropy_shard_chunk<B, A>(rows, hidden, shard.vocab, ranks, ctx);
  const bool predicts =
      of.to.metrics.token_accuracy.data() != nullptr || of.to.metrics.predicted_tokens.data() != nullptr;
  const equal_number equal[] = {{"ignore_index", opt.loss.ignore_index},
                                {"reduction", static_cast<std::int64_t>(opt.loss.reduction)},
                                {"label_smoothing", opt.loss.label_smoothing},
                                {"lse_square_scale", opt.loss.lse_square_scale},
                                {"softcap", opt.loss.softcap},
                                {"denominator", opt.loss.denominator},
                                {"token_scaling", std::int64_t{opt.token_scaling}},
                                {"the choice of predicted tokens", std::int64_t{predicts}},
                                {"class_weight", hash_of_numbers<B>(weight.data, weight.size)},
                                {"upstream", hash_of_numbers<B>(of.upstream.data(), of.upstream.size())},
                                {"upstream", host_memory<B> || of.backward ? 1.0 : opt.upstream}};
  const equal_numbers<A, I> layer(of.part, read_on_host<B>(targets), chunk, of.gradients.dx.data != nullptr);
  const auto agreed = agree_on_shards(name, of.comm, shard, cols, layer, equal, [&] {
    expect_place<B>(name, of.comm, ctx);
    arguments args(name);
    declare_linear_shard<B>(args, name, of.part);
    declare_labels(args, targets, weight, rows, shard.vocab);
    if (of.backward) args.in("upstream", of.upstream, of.upstream.size() == 1 ? 1 : rows);
    declare_gradients(args, head, of.gradients);
    if (!of.backward) declare_loss<A>(args, of.to.loss, of.to.metrics, rows, opt.loss.reduction);
    args.check();
    expect_loss_options<A>(args, opt.loss);
    args.finite<A>("upstream", of.backward ? 1 : opt.upstream);
    expect_labels_of<B>(name, targets, shard.vocab, opt.loss.ignore_index);
    ctx.workspace().expect(name, vocab_parallel_fused_linear_cross_entropy_workspace<B, T>(
                                     rows, hidden, cols, shard.vocab, ranks, ctx, of.gradients.of_weights()));
  });
  const auto columns = columns_of(agreed, of.comm);
  compute_shard_cross_entropy<B, T, I>(name, of, columns.data(), targets, weight, chunk, opt, ctx);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Loss, metrics and gradients in one call, which all ranks make together. With reduction::none gradients for another
/// upstream gradient a row belong to vocab_parallel_fused_linear_cross_entropy_backward. See
/// vocab_parallel_fused_linear_cross_entropy_options for the contract.
template <class B = default_backend, class T, class Target, parameter Weight = absent_t>
void vocab_parallel_fused_linear_cross_entropy_forward(communicator_ref comm, const linear_shard<T>& part,
                                                       const Target& target,
                                                       std::type_identity_t<cross_entropy_results<accumulator_t<T>>> to,
                                                       std::type_identity_t<linear_gradients<T>> gradients = {},
                                                       vocab_parallel_fused_linear_cross_entropy_options opt = {},
                                                       const Weight& class_weight = absent,
                                                       context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<input_t<T>>(class_weight);
  static_assert(admits_parameter<input_t<T>, decltype(weight)>());
  const accumulator_t<T> g = static_cast<accumulator_t<T>>(opt.upstream);
  detail::shard_linear_cross_entropy<B, T>(
      "vocab_parallel_fused_linear_cross_entropy_forward",
      {comm, part, gradients, detail::read_on_host<B>(std::span(&g, 1)), to, false}, target, weight, opt, ctx);
}

/// dx, dw and dbias for an upstream gradient of one number, or one a row; the logits are computed again. All ranks call
/// it together.
template <class B = default_backend, class T, class Target, parameter Weight = absent_t>
void vocab_parallel_fused_linear_cross_entropy_backward(
    communicator_ref comm, const linear_shard<T>& part, const Target& target,
    std::type_identity_t<std::span<const accumulator_t<T>>> upstream,
    std::type_identity_t<linear_gradients<T>> gradients, vocab_parallel_fused_linear_cross_entropy_options opt = {},
    const Weight& class_weight = absent, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<input_t<T>>(class_weight);
  static_assert(admits_parameter<input_t<T>, decltype(weight)>());
  detail::shard_linear_cross_entropy<B, T>("vocab_parallel_fused_linear_cross_entropy_backward",
                                           {comm, part, gradients, upstream, {}, true}, target, weight, opt, ctx);
}

}  // namespace tigon

#include <tigon/losses/cross_entropy.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_VOCAB_PARALLEL_FUSED_LINEAR_CROSS_ENTROPY_HPP
