// Log-probability of one given column of each row of a linear layer's output that never exists as a whole.
#ifndef TIGON_LOSSES_SELECTIVE_LOGPROB_HPP
#define TIGON_LOSSES_SELECTIVE_LOGPROB_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/losses/softmax/selective_logprob_kernel.hpp>

namespace tigon {

/// log softmax((x w^T + bias) / temperature) at the target of each row, a chunk of rows at a time. For
/// s = (x w^T + bias) / temperature:
///
///   lse = log sum_j exp(s_j) in two parts,   logp = s_target - lse
///   D_j = u / temperature * ([j = target] - p_j),   dx = D w,   dw = D^T x,   db[j] = sum_i D[i,j]
///
/// Formula    docs/formulas/preference.md; lse and D as selective_log_softmax has them.
/// Shapes     x, dx [rows, hidden]; w, dw [vocab, hidden]; bias, dbias [vocab], or none; target, logp, saved,
///            upstream u [rows]. vocab >= 1; rows and hidden may be 0.
/// Types      x, w, bias and their gradients of one type, f32, bf16, f16 or f64; logp, saved and u f32 (f64 for f64);
///            target std::int32_t or std::int64_t. With linear_types x and dx have one type, w and bias one, their
///            gradients one (f64 is refused), and each output has the error of its own type.
/// Precision  logits, D and the sums of dw and db over all chunks in f32 (f64 for f64); one rounding at each output.
/// Options    backward takes those of forward.
/// Writes     logp, saved (saved[i].lse(temperature) is the log-sum-exp); dx, dw, dbias: a gradient whose view has no
///            memory is not computed, dw and dbias are added to with gradient::accumulate. Rows whose target is
///            ignore_index, and in backward rows with u = 0, are not read; their logp and dx are 0.
/// Aliasing   no output shares an element with another argument; any layout.
/// Memory     chunk * vocab logits in f32, by default at most 64 MiB (B::chunk, context::logit_rows), and chunk rows of
///            x and dx; for 16-bit w also an f32 dw. With chunk_tuning::stream only rows * cols logits, rows of x, for
///            16-bit x an f32 dx and for 16-bit w cols rows of an f32 dw; more than 64 tiles of columns take two more
///            f32 dx. See selective_logprob_workspace. w may come packed (linear_layer); tiles do not use it.
/// Throws     tigon::error: shape, stride, alias, argument (a temperature that is not above 0, or outside
///            option_range), workspace, and in every build index for a target outside [0, vocab) that is not
///            ignore_index; before the first write.
/// Max error  logp 4e-7, in bf16 too, gradients f32 4e-6, bf16 8e-3 of |reference| + its root mean square
///            (tests/losses/selective_logprob_test.cpp), for any number of rows, chunks and tiles.
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), w(100 * 16, 0.1f), dx(x), dw(w), logp(4);
/// const std::vector<std::int64_t> target{1, 2, 3, 99};
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), v.size() / 16, 16); };
/// const tigon::linear_layer layer{rows(x), rows(w)};
/// const tigon::linear_gradients gradients{rows(dx), rows(dw)};
/// std::vector<tigon::lse_parts<float>> lse(4);
/// tigon::selective_logprob_forward(layer, std::span(target), logp, lse);
/// tigon::selective_logprob_backward(layer, std::span(target), logp, lse, gradients);  // dlogp = logp
/// ```
struct selective_logprob_options;

/// Bytes of workspace that selective_logprob_forward and _backward take for a call with a bias and all gradients,
/// or those of x alone.
template <class B = default_backend, class T>
std::size_t selective_logprob_workspace(std::size_t rows, std::size_t hidden, std::size_t vocab,
                                        const context& ctx = default_context<B>(),
                                        parameters of = parameters::trained) {
  using A = accumulator_t<T>;
  const std::size_t chunk = detail::chunk_rows<B, A>(rows, hidden, vocab, ctx);
  if constexpr (!host_memory<B>)
    return kernel_for<op::selective_logprob, B>::template workspace_bytes<B, T>(rows, hidden, vocab, ctx, of);
  const std::size_t of_rows = workspace::bytes_for<std::size_t>(rows) + workspace::bytes_for<std::int64_t>(rows) +
                              workspace::bytes_for<A>(rows) + workspace::bytes_for<lse_parts<A>>(rows);
  if constexpr (B::chunk.rule == chunk_rule::stream)
    if (detail::streams<B>(vocab))
      return of_rows + detail::tiled_layer_workspace<B, T>(
                           {rows, hidden, vocab}, {chunk, chunk}, true, ctx, of,
                           workspace::bytes_for<lse_parts<double>>(rows) + workspace::bytes_for<lse_parts<A>>(chunk) +
                               workspace::bytes_for<A>(chunk) + workspace::bytes_for<std::int64_t>(chunk));
  return of_rows + workspace::bytes_for<A>(chunk, vocab) +
         detail::gathered_linear_workspace<B, T>(rows, hidden, vocab, chunk, ctx, 0, of);
}

/// logp of every row, and in `saved` what backward needs. See selective_logprob_options for the contract.
template <class B = default_backend, class T, class Target>
void selective_logprob_forward(const linear_layer<T>& layer, const Target& target,
                               std::type_identity_t<std::span<accumulator_t<T>>> logp,
                               std::type_identity_t<std::span<lse_parts<accumulator_t<T>>>> saved,
                               selective_logprob_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  constexpr std::string_view name = "selective_logprob_forward";
  const std::size_t rows = layer.x.rows, vocab = layer.w.rows;
  const token_ids labels(as_row(std::span(target)));
  arguments args(name);
  detail::declare_layer<B>(args, name, layer);
  args.size("target", labels.cols, rows);
  args.in("target", labels.bytes());
  args.out("saved", saved, rows);
  args.out("logp", logp, rows);
  args.check();
  detail::expect_temperature<A>(args, opt.temperature);
  if constexpr (host_memory<B>) detail::expect_ids(name, "target", labels, vocab, opt.ignore_index);
  ctx.workspace().expect(name, selective_logprob_workspace<B, T>(rows, layer.x.cols, vocab, ctx, parameters::frozen));
  if constexpr (!host_memory<B>)
    return kernel_for<op::selective_logprob, B>::template forward<B, T>(name, layer, labels, opt, logp.data(),
                                                                        saved.data(), ctx);
  else {
    workspace::frame frame(ctx.workspace());
    auto* row = frame.template take<std::size_t>(rows);
    auto* column = frame.template take<std::int64_t>(rows);
    auto* lp = frame.template take<A>(rows);
    auto* lse = frame.template take<lse_parts<A>>(rows);
    std::size_t n = 0;
    for (std::size_t i = 0; i < rows; ++i)
      if (labels(0, i) != opt.ignore_index) row[n] = i, column[n++] = labels(0, i);
    kernel_for<op::selective_logprob, B>::template forward<B, T>(layer, detail::selected_columns{row, column, n},
                                                                 opt.temperature, lp, lse, ctx);
    std::fill(logp.begin(), logp.end(), A(0));
    for (std::size_t i = 0; i < rows; ++i) saved[i] = {};
    for (std::size_t k = 0; k < n; ++k) logp[row[k]] = lp[k], saved[row[k]] = lse[k];
  }
}

/// dx, dw and dbias from the gradient u of logp and what forward saved; the logits are computed again.
template <class B = default_backend, class T, class Target>
void selective_logprob_backward(const linear_layer<T>& layer, const Target& target,
                                std::type_identity_t<std::span<const accumulator_t<T>>> upstream,
                                std::type_identity_t<std::span<const lse_parts<accumulator_t<T>>>> saved,
                                std::type_identity_t<linear_gradients<T>> gradients, selective_logprob_options opt = {},
                                context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  constexpr std::string_view name = "selective_logprob_backward";
  const std::size_t rows = layer.x.rows, vocab = layer.w.rows;
  const token_ids labels(as_row(std::span(target)));
  arguments args(name);
  detail::declare_layer<B>(args, name, layer);
  args.size("target", labels.cols, rows);
  args.in("target", labels.bytes());
  args.in("upstream", upstream, rows);
  args.in("saved", saved, rows);
  detail::declare_gradients(args, layer, gradients);
  args.check();
  detail::expect_temperature<A>(args, opt.temperature);
  if constexpr (host_memory<B>) detail::expect_ids(name, "target", labels, vocab, opt.ignore_index);
  ctx.workspace().expect(name,
                         selective_logprob_workspace<B, T>(rows, layer.x.cols, vocab, ctx, gradients.of_weights()));
  if constexpr (!host_memory<B>)
    return kernel_for<op::selective_logprob, B>::template backward<B, T>(name, layer, gradients, labels, opt,
                                                                         upstream.data(), saved.data(), ctx);
  else {
    workspace::frame frame(ctx.workspace());
    auto* row = frame.template take<std::size_t>(rows);
    auto* column = frame.template take<std::int64_t>(rows);
    auto* u = frame.template take<A>(rows);
    auto* lse = frame.template take<lse_parts<A>>(rows);
    std::size_t n = 0;
    for (std::size_t i = 0; i < rows; ++i)
      if (labels(0, i) != opt.ignore_index && upstream[i] != A(0))
        row[n] = i, column[n] = labels(0, i), u[n] = upstream[i], lse[n++] = saved[i];
    kernel_for<op::selective_logprob, B>::template backward<B, T>(
        layer, gradients, detail::selected_columns{row, column, n}, opt.temperature, u, lse, ctx);
  }
}

TIGON_EXPLAINS(selective_logprob_forward)
TIGON_EXPLAINS(selective_logprob_backward)

}  // namespace tigon

#include <tigon/losses/selective_log_softmax.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_SELECTIVE_LOGPROB_HPP
