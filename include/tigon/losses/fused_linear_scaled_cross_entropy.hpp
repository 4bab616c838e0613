// Negative log-likelihood and entropy of every token, of a linear layer's output that never exists as a whole.
#ifndef TIGON_LOSSES_FUSED_LINEAR_SCALED_CROSS_ENTROPY_HPP
#define TIGON_LOSSES_FUSED_LINEAR_SCALED_CROSS_ENTROPY_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/losses/softmax/fused_linear_scaled_cross_entropy_kernel.hpp>

namespace tigon {

/// With s = (x w^T + bias) / temperature and p = softmax(s), for a row with target t, m = max_j s_j,
/// d = sum_j exp(s_j - m) without the maximal element's own 1, and u = sum_j p_j (s_j - m):
///
///   nll     = (m - s_t) + log1p(d)                     entropy = log1p(d) - u          lse = m + log1p(d)
///   D_j     = (g (p_j - [j = t]) - h p_j ((s_j - m) - u)) / temperature      g, h: upstream of nll and of entropy
///   dx = D w,   dw = D^T x,   db[j] = sum_i D[i,j]
///
/// Formula    docs/formulas/fused_linear_scaled_cross_entropy.md.
/// Shapes     x, dx [rows, hidden]; w, dw [vocab, hidden]; bias, dbias [vocab], or none; target, nll, entropy, lse
///            [rows]; upstream one number or [rows]. vocab >= 1; rows and hidden may be 0.
/// Types      x, w, bias and their gradients of one type, f32, bf16, f16 or f64; results and upstream f32 (f64 for
///            f64); target std::int32_t or std::int64_t. With linear_types x and dx have one type, w and bias one,
///            their gradients one (f64 is refused), and each output has the error of its own type.
/// Precision  logits, D and the sums of dw and db over all chunks in f32 (f64 for f64); one rounding at each output.
///            A call of at most 8 rows in f32 is f64 throughout (docs/formulas/fused_linear_cross_entropy.md, few
///            rows).
/// Options    backward takes those of forward.
/// Writes     the results that have memory, dx, dw, dbias; a gradient without memory is not computed. dw and dbias are
///            added to with gradient::accumulate.
/// Ignored    a row whose target is ignore_index is not read, nor are its upstream gradients; it takes part in no
///            product. Its results and dx are 0, whatever x and w hold. The bits of a row's results and dx do not
///            depend on which other rows count, where they are and how many there are. Two calls of as many rows, both
///            with dx or both without, have the same bits of dw and dbias where the rows that count are the same and in
///            the same order, wherever the ignored ones are.
/// Aliasing   no output shares an element with another argument; any layout.
/// Memory     chunk * vocab logits in f32, by default at most 64 MiB (B::chunk); for 16-bit w also an f32 dw; see
///            fused_linear_scaled_cross_entropy_workspace. w may come packed (linear_layer). A call of at most 8
///            rows in f32 has rows * vocab logits in f64.
/// Throws     tigon::error: shape, stride, alias, argument, workspace, and index (in every build) for a target outside
///            [0, vocab) that is not ignore_index; before the first write.
/// Edges      vocab = 1: zeros. NaN or +inf in a row of logits: that row is NaN. -inf at the target: nll inf, finite D.
///            A D below the smallest normal f32 (f64) is taken as 0.
/// Max error  results 2e-6 of |reference| + their root mean square, in bf16 too; gradients f32 2e-5, bf16 8e-3;
///            of at most 8 rows of f32 results and gradients within 2.4e-7 of their L2 norms
///            (tests/losses/fused_linear_scaled_cross_entropy_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), w(100 * 16, 0.1f), dx(x), dw(w), nll(4), entropy(4), upstream(4, 1);
/// const std::vector<std::int64_t> target{1, 2, 3, 99};
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), v.size() / 16, 16); };
/// const tigon::linear_layer layer{rows(x), rows(w)};
/// const tigon::linear_gradients gradients{rows(dx), rows(dw)};
/// tigon::fused_linear_scaled_cross_entropy_forward(layer, std::span(target), {nll, entropy}, gradients, {},
///                                                  {upstream});
/// tigon::fused_linear_scaled_cross_entropy_backward(layer, std::span(target), {upstream}, gradients);
/// ```
struct fused_linear_scaled_cross_entropy_options;

/// Bytes of workspace that fused_linear_scaled_cross_entropy_forward and _backward take with all gradients, or
/// those of x alone.
template <class B = default_backend, class T>
std::size_t fused_linear_scaled_cross_entropy_workspace(std::size_t rows, std::size_t hidden, std::size_t vocab,
                                                        const context& ctx = default_context<B>(),
                                                        parameters of = parameters::trained) {
  using A = accumulator_t<T>;
  const std::size_t chunk = detail::chunk_rows<B, A>(rows, hidden, vocab, ctx);
  if constexpr (!host_memory<B>)
    return kernel_for<op::fused_linear_scaled_cross_entropy, B>::template workspace_bytes<B, T>(rows, hidden, vocab,
                                                                                                ctx, of);
  if constexpr (detail::few_scaled_cross_entropy_in_f64<B, T>)
    if (rows <= detail::few_rows)
      return detail::kept_labels<std::int64_t>::bytes<A>(rows, 2) + 5 * workspace::bytes_for<double>(rows) +
             detail::few_rows_workspace<B, T>({rows, hidden, vocab}, ctx);
  return detail::kept_labels<std::int64_t>::bytes<A>(rows, 2) +
         detail::kept_linear_workspace<B, T>({rows, hidden, vocab}, chunk, detail::bytes_of_row<T>(hidden, vocab), ctx,
                                             simd::scratch_workspace<B, A>(vocab, 1, ctx), of,
                                             [=](std::size_t n) { return workspace::bytes_for<A>(n, vocab); });
}

namespace detail {
inline namespace TIGON_ABI {
/// Checks and the call that forward and backward share.
template <class B, layer_types T, class Target>
void linear_scaled_cross_entropy(std::string_view name, const linear_layer<T>& head, const linear_gradients<T>& to,
                                 const Target& target, const scaled_cross_entropy_results<accumulator_t<T>>& out,
                                 const scaled_cross_entropy_upstream<accumulator_t<T>>& g,
                                 const fused_linear_scaled_cross_entropy_options& opt, context& ctx) {
  const std::span labels(target);
  using I = std::remove_const_t<typename decltype(labels)::element_type>;
  static_assert(token_id<I>, "tigon: targets are std::int32_t or std::int64_t");
  const std::span<const I> targets(labels);
  const std::size_t rows = head.x.rows, vocab = head.w.rows, hidden = head.x.cols;
  arguments args(name);
  declare_layer<B>(args, name, head);
  args.in("target", targets, rows);
  args.that(!to.any() || rows == 0 || g.nll.data() != nullptr || g.entropy.data() != nullptr, error_code::shape,
            "upstream", "empty", "a gradient of nll or of entropy: one number, or one for each row");
  args.optional_in("upstream.nll", g.nll, g.nll.size() == 1 ? 1 : rows);
  args.optional_in("upstream.entropy", g.entropy, g.entropy.size() == 1 ? 1 : rows);
  declare_gradients(args, head, to);
  args.optional_out("nll", out.nll, rows);
  args.optional_out("entropy", out.entropy, rows);
  args.optional_out("lse", out.lse, rows);
  args.check();
  args.option(opt.temperature >= 1e-30 && opt.temperature <= 1e30, "temperature", opt.temperature,
              "a number from 1e-30 to 1e30");
  expect_labels_in<B>(name, targets, vocab, opt.ignore_index, ctx);
  ctx.workspace().expect(name,
                         fused_linear_scaled_cross_entropy_workspace<B, T>(rows, hidden, vocab, ctx, to.of_weights()));
  compute_scaled_cross_entropy<B, T, I>(head, to, targets, out, g, opt, ctx);
}
}  // namespace TIGON_ABI
}  // namespace detail

/// The results and, where the upstream gradients are known beforehand, the gradients in the same pass. See
/// fused_linear_scaled_cross_entropy_options for the contract.
template <class B = default_backend, class T, class Target>
void fused_linear_scaled_cross_entropy_forward(
    const linear_layer<T>& layer, const Target& target,
    std::type_identity_t<scaled_cross_entropy_results<accumulator_t<T>>> to,
    std::type_identity_t<linear_gradients<T>> gradients = {}, fused_linear_scaled_cross_entropy_options opt = {},
    std::type_identity_t<scaled_cross_entropy_upstream<accumulator_t<T>>> upstream = {},
    context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  detail::linear_scaled_cross_entropy<B, T>("fused_linear_scaled_cross_entropy_forward", layer, gradients, target, to,
                                            upstream, opt, ctx);
}

/// dx, dw and dbias for upstream gradients of nll, of entropy, or of both; the logits are computed again.
template <class B = default_backend, class T, class Target>
void fused_linear_scaled_cross_entropy_backward(
    const linear_layer<T>& layer, const Target& target,
    std::type_identity_t<scaled_cross_entropy_upstream<accumulator_t<T>>> upstream,
    std::type_identity_t<linear_gradients<T>> gradients, fused_linear_scaled_cross_entropy_options opt = {},
    context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  detail::linear_scaled_cross_entropy<B, T>("fused_linear_scaled_cross_entropy_backward", layer, gradients, target, {},
                                            upstream, opt, ctx);
}

TIGON_EXPLAINS(fused_linear_scaled_cross_entropy_forward)
TIGON_EXPLAINS(fused_linear_scaled_cross_entropy_backward)

}  // namespace tigon

#include <tigon/losses/cross_entropy.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_SCALED_CROSS_ENTROPY_HPP
