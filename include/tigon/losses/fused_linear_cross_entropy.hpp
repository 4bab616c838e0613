// Cross entropy of a linear layer's output that never exists as a whole, with all gradients.
#ifndef TIGON_LOSSES_FUSED_LINEAR_CROSS_ENTROPY_HPP
#define TIGON_LOSSES_FUSED_LINEAR_CROSS_ENTROPY_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/losses/softmax/fused_linear_cross_entropy_kernel.hpp>

namespace tigon {

/// Cross entropy of z = x w^T + b, a chunk of rows at a time.
///
///   loss and D = d loss / d z as cross_entropy has them; token_scaling multiplies a row's loss and D by p_t
///   dx = D w,   dw = D^T x,   db[j] = sum_i D[i,j];   row i of D times upstream[i] first, where that is given
///
/// Formula    docs/formulas/fused_linear_cross_entropy.md.
/// Shapes     x, dx [rows, hidden]; w, dw [vocab, hidden]; bias, dbias [vocab], or none; target [rows]; class weight
///            [vocab] or `absent`; loss and metrics as cross_entropy. vocab >= 1; rows and hidden may be 0.
/// Types      x, w, bias and their gradients of one type, f32, bf16, f16 or f64; loss and metrics f32 (f64 for f64);
///            target std::int32_t or std::int64_t. With linear_types x and dx have one type, w and bias one, their
///            gradients one (f64 is refused), and each output has the error of its own type.
/// Precision  logits, D and the sums of dw and db over all chunks in f32 (f64 for f64); one rounding at each output. A
///            call of at most 8 rows of f32, ignored ones included, computes everything in f64, and the limits in Edges
///            are those of f64: it takes no longer, because most of its time goes into reading w.
/// Options    backward takes those of forward.
/// Writes     loss, metrics, dx, dw, dbias; a gradient whose view has no memory is not computed. dw and dbias are added
///            to with gradient::accumulate.
/// Ignored    a row whose target is ignore_index is not read, nor is its upstream gradient; it takes part in no
///            product, so that a call costs what its other rows cost. Its loss and dx are 0, whatever x and w hold. The
///            bits of a row's loss and dx do not depend on which other rows count, where they are and how many there
///            are, unless a mean divides by their number. Two calls of as many rows, both with dx or both without, have
///            the same bits of dw and dbias where the rows that count are the same and in the same order, wherever the
///            ignored ones are.
/// Aliasing   no output shares an element with another argument; any layout.
/// Memory     logits: chunk * vocab in f32, by default at most 64 MiB, or 128 MiB where 256 rows (on `amx` 1024) take
///            more (B::chunk, context::logit_rows); for 16-bit w also an f32 dw. With chunk_tuning::stream rows * cols
///            logits, and for 16-bit w an f32 dx and cols rows of an f32 dw; the logits are then made twice, which is a
///            fourth product. More than 64 chunks (4096 where dw is large and has 16 bits) take two more f32 sums for
///            dw, and more than 64 tiles of columns two for dx, so that errors do not grow with their number. Where
///            some rows are ignored, x of the others is copied to where their dx will be; without dx it is copied to
///            the workspace, and chunks are smaller, so that it fits beside the logits, but of at least 64 rows. See
///            fused_linear_cross_entropy_workspace. w may come packed (linear_layer); tiles and calls of few rows do
///            not use it. A call of at most 8 rows of f32 has rows * vocab logits in f64 instead, in any tuning,
///            rows * hidden numbers of x and up to 16 times as many for dx.
/// Throws     tigon::error as cross_entropy; before the first write.
/// Edges      as cross_entropy.
/// Max error  loss 4e-7 of |reference| + its root mean square, in bf16 too, or where that is more, of what the loss
///            changes by when every logit changes by the root of the sum of the squares of its terms x_k w_k: in a
///            loss near 0 the rounding of logits shows. Gradients f32 2e-6, bf16 8e-3. For any number of rows, chunks
///            and tiles. Of at most 8 rows of f32 loss and gradients within 2.4e-7 of their L2 norms, for logits of 20
///            and more (tests/losses/fused_linear_cross_entropy_test.cpp, chunk_policies_test.cpp,
///            tests/fuzz/products.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), w(100 * 16, 0.1f), dx(x), dw(w), loss(1), upstream(1, 2);
/// const std::vector<std::int64_t> target{1, -100, 3, 99};
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), v.size() / 16, 16); };
/// const tigon::linear_layer layer{rows(x), rows(w)};
/// const tigon::linear_gradients gradients{rows(dx), rows(dw)};
/// tigon::fused_linear_cross_entropy_forward(layer, std::span(target), {loss}, gradients);
/// tigon::fused_linear_cross_entropy_backward(layer, std::span(target), upstream, gradients);
/// ```
struct fused_linear_cross_entropy_options;

namespace detail {
inline namespace TIGON_ABI {
/// Whether calls of few rows are computed in f64.
template <class B, layer_types T>
inline constexpr bool few_cross_entropy_in_f64 =
    few_rows_in_f64<B, T, op::fused_linear_cross_entropy> && few_rows_in_f64<row_backend<B>, T, op::cross_entropy>;
}  // namespace TIGON_ABI
}  // namespace detail

/// Bytes of workspace that fused_linear_cross_entropy_forward takes for a call with a bias and all gradients, or those
/// of x alone.
template <class B = default_backend, class T>
std::size_t fused_linear_cross_entropy_workspace(std::size_t rows, std::size_t hidden, std::size_t vocab,
                                                 const context& ctx = default_context<B>(),
                                                 parameters of = parameters::trained) {
  using A = accumulator_t<T>;
  const std::size_t chunk = detail::cross_entropy_chunk<B, A>(rows, hidden, vocab, ctx);
  const detail::layer_extents layer{rows, hidden, vocab};
  const std::size_t scratch = simd::scratch_workspace<B, A>(vocab, 1, ctx);
  const std::size_t of_rows = cross_entropy_workspace<B, input_t<T>>(rows, vocab, ctx) - scratch +
                              detail::kept_labels<std::int64_t>::bytes<A>(rows, 1);
  if constexpr (!host_memory<B>)
    return of_rows +
           kernel_for<op::fused_linear_cross_entropy, B>::template workspace_bytes<B, T>(rows, hidden, vocab, ctx, of);
  if constexpr (detail::few_cross_entropy_in_f64<B, T>)
    if (rows <= detail::few_rows)
      return of_rows + workspace::bytes_for<double>(vocab) + workspace::bytes_for<double>(rows) +
             detail::few_rows_workspace<B, T>(layer, ctx);
  if constexpr (detail::tiled_backend<B>)
    if (detail::streams<B>(vocab)) {
      const std::size_t chosen = detail::gathered_chunk(chunk, rows, detail::bytes_of_tile_row<B, T>(hidden), false);
      return of_rows + detail::tiled_rows<A>::bytes(rows) +
             std::max(detail::tiled_layer_workspace<B, T>(layer, {chunk, chunk}, false, ctx, of),
                      detail::tiled_layer_workspace<B, T>(layer, {chosen, chunk}, true, ctx, of));
    }
  return of_rows +
         detail::kept_linear_workspace<B, T>(layer, chunk, detail::bytes_of_row<T>(hidden, vocab), ctx, scratch, of,
                                             [=](std::size_t n) { return workspace::bytes_for<A>(n, vocab); });
}

namespace detail {
inline namespace TIGON_ABI {
/// Checks and the call that forward and backward share; backward has an upstream gradient and no loss.
template <class B, layer_types T, class Target, class Weight>
void linear_cross_entropy(std::string_view name, linear_loss<T> t, const Target& target, Weight weight,
                          const cross_entropy_results<accumulator_t<T>>& to,
                          const fused_linear_cross_entropy_options& opt, context& ctx) {
  using A = accumulator_t<T>;
  const std::span labels(target);
  using I = std::remove_const_t<typename decltype(labels)::element_type>;
  static_assert(token_id<I>, "tigon: targets are std::int32_t or std::int64_t");
  const bool backward = to.loss.data() == nullptr && t.upstream;
  const std::span<const I> targets(labels);
  const auto x = t.head.x;
  const auto w = t.head.w;
  arguments args(name);
  declare_layer<B>(args, name, t.head);
  declare_labels(args, targets, weight, x.rows, w.rows);
  args.optional_in("upstream", t.upstream, t.upstream.size == 1 ? 1 : x.rows);
  declare_gradients(args, t.head, t.out);
  if (!backward) declare_loss<A>(args, to.loss, to.metrics, x.rows, opt.loss.reduction);
  args.check();
  expect_loss_options<A>(args, opt.loss);
  expect_labels_of<B>(name, targets, w.rows, opt.loss.ignore_index);
  ctx.workspace().expect(name,
                         fused_linear_cross_entropy_workspace<B, T>(x.rows, x.cols, w.rows, ctx, t.out.of_weights()));

  workspace::frame frame(ctx.workspace());
  const loss_rows_of<row_backend<B>, A> rows(name, frame, targets, w.rows, weight, to.metrics, opt.loss, ctx);
  const auto kept = kept_labels<I>::template of<B>(frame, targets, x.rows, opt.loss.ignore_index);
  const auto upstream = kept.template of_kept<A>(frame, {t.upstream.data, t.upstream.size});
  t.kept = kept.rows(), t.upstream = {upstream.data(), upstream.size()};
  const auto run = [&]<layer_types L>(const linear_loss<L>& call, const accumulator_t<L>* weights) {
    using K = kernel_for<op::fused_linear_cross_entropy, B>;
    if (backward) return K::template backward<B, L, I>(call, kept.labels(), weights, rows.out, rows.scale, opt, ctx);
    K::template forward<B, L, I>(call, kept.labels(), weights, rows.out, rows.scale, opt, ctx);
    spread_results(rows.out, x.rows, t.kept);
    rows.finish(targets, to.loss, to.metrics, opt.loss);
  };
  if constexpr (few_cross_entropy_in_f64<B, T>)
    if (x.rows <= few_rows) {
      const auto wide = numbers_in_f64(frame, upstream);
      const auto weights = numbers_in_f64(frame, std::span(rows.weight, rows.weight == nullptr ? 0 : w.rows));
      return run(
          linear_loss<in_f64<T>>{layer_in_f64(t.head), gradients_in_f64(t.out), {wide.data(), wide.size()}, t.kept},
          weights.data());
    }
  run(t, rows.weight);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Loss, metrics and, for mean and sum, all gradients in one call. With reduction::none the gradients belong to
/// fused_linear_cross_entropy_backward, unless the upstream gradient is known beforehand and given here. See
/// fused_linear_cross_entropy_options for the contract.
template <class B = default_backend, class T, class Target, parameter Weight = absent_t>
void fused_linear_cross_entropy_forward(const linear_layer<T>& layer, const Target& target,
                                        std::type_identity_t<cross_entropy_results<accumulator_t<T>>> to,
                                        std::type_identity_t<linear_gradients<T>> gradients = {},
                                        fused_linear_cross_entropy_options opt = {},
                                        const Weight& class_weight = absent,
                                        std::type_identity_t<std::span<const accumulator_t<T>>> upstream = {},
                                        context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<input_t<T>>(class_weight);
  static_assert(admits_parameter<input_t<T>, decltype(weight)>());
  detail::linear_cross_entropy<B, T>("fused_linear_cross_entropy_forward",
                                     {layer, gradients, {upstream.data(), upstream.size()}}, target, weight, to, opt,
                                     ctx);
}

/// dx, dw and dbias for an upstream gradient of one number, or one a row; the logits are computed again.
template <class B = default_backend, class T, class Target, parameter Weight = absent_t>
void fused_linear_cross_entropy_backward(const linear_layer<T>& layer, const Target& target,
                                         std::type_identity_t<std::span<const accumulator_t<T>>> upstream,
                                         std::type_identity_t<linear_gradients<T>> gradients,
                                         fused_linear_cross_entropy_options opt = {},
                                         const Weight& class_weight = absent, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  const auto weight = as_in_vector<input_t<T>>(class_weight);
  static_assert(admits_parameter<input_t<T>, decltype(weight)>());
  expects("fused_linear_cross_entropy_backward")
      .that(upstream.data() != nullptr || layer.x.rows == 0, error_code::shape, "upstream", "empty",
            "one number, or one for each row");
  const accumulator_t<T> one(1);
  const vector_view<const accumulator_t<T>> g{upstream.data() == nullptr ? &one : upstream.data(),
                                              upstream.data() == nullptr ? 1 : upstream.size()};
  detail::linear_cross_entropy<B, T>("fused_linear_cross_entropy_backward", {layer, gradients, g}, target, weight, {},
                                     opt, ctx);
}

TIGON_EXPLAINS(fused_linear_cross_entropy_forward)
TIGON_EXPLAINS(fused_linear_cross_entropy_backward)

}  // namespace tigon

#include <tigon/losses/cross_entropy.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_CROSS_ENTROPY_HPP
