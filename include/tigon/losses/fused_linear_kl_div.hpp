// The Kullback-Leibler divergence of given probabilities from a linear layer's softmax, which never exists as a whole.
#ifndef TIGON_LOSSES_FUSED_LINEAR_KL_DIV_HPP
#define TIGON_LOSSES_FUSED_LINEAR_KL_DIV_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/losses/divergence/fused_linear_kl_div_kernel.hpp>

namespace tigon {

/// kl_div of a teacher's probabilities that were made before, P = teacher or exp(teacher) with log_target, from those
/// of a linear layer, a chunk of rows at a time. With s = (x w^T + bias) / temperature, y = log softmax(s), Q = exp(y):
///
///   loss_ij = P (log max(P, eps) - y),   loss = c sum loss_ij
///   D_j     = c / temperature (Q_j sum_k g P_k - g P_j)        g: upstream of the loss, or of each element
///   dx = D w,   dw = D^T x,   db[j] = sum_i D[i,j]
///   c = 1 / n (batchmean), 1 / (n vocab) (mean), 1 (sum, none)            n = number of kept rows
///
/// Formula    docs/formulas/divergences.md. Rows of P need not sum to 1.
/// Shapes     x, dx [rows, hidden]; w, dw [vocab, hidden]; bias, dbias [vocab], or none; teacher [rows, vocab]; labels
///            [rows] or `absent`; loss and upstream [1], with reduction none [rows, vocab]. vocab >= 1; rows and hidden
///            may be 0.
/// Types      x, w, bias, their gradients and teacher of one type, f32, bf16, f16 or f64; loss and upstream f32 (f64
///            for f64); labels std::int32_t or std::int64_t. With linear_types x, dx and teacher have one type, w and
///            bias one, their gradients one (f64 is refused), and each output has the error of its own type.
/// Precision  logits, D and the sums of dw and db over all chunks in f32 (f64 for f64), totals in f64; one rounding at
///            each output. A call of at most 8 rows in f32 is f64 throughout
///            (docs/formulas/fused_linear_cross_entropy.md, few rows).
/// Options    backward takes those of forward.
/// Writes     loss, dx, dw, dbias; a gradient whose view has no memory is not computed. dw and dbias are added to with
///            gradient::accumulate. Labels are no indices: every value is legal.
/// Ignored    a row whose label is ignore_index is not read, nor are its teacher and its upstream gradients; it takes
///            part in no product. Its losses and dx are 0. The bits of a row's losses and dx do not depend on which
///            other rows count, where they are and how many there are, unless a mean divides by their number. Two calls
///            of as many rows, both with dx or both without, have the same bits of dw and dbias where the rows that
///            count are the same and in the same order, wherever the ignored ones are.
/// Aliasing   no output shares an element with another argument; any layout.
/// Memory     chunk * vocab logits in f32, by default at most 64 MiB (B::chunk), D over them; for 16-bit w also an f32
///            dw; see fused_linear_kl_div_workspace. w may come packed (linear_layer). A call of at most 8 rows in f32
///            has these numbers in f64, of all rows at a time.
/// Threads    the same bits for any number of them.
/// Throws     tigon::error: shape, stride, alias, argument (a number outside option_range), workspace; before the first
///            write.
/// Edges      no kept row: loss 0, gradients 0. P = 0 adds 0, also where a logit is -inf; P > 0 there makes the loss
///            inf and leaves D finite. NaN or +inf in a row of logits: that row is NaN. P < 0 or NaN: the loss is NaN.
///            exp(teacher) below the smallest normal f32 (f64) counts as 0. A D below that number is taken as 0.
/// Max error  loss 4e-7 of sum P (|log P| + |y|), c times that over all elements, where sums are f32, in bf16 too; with
///            reduction none 1e-6, and gradients f32 1e-5, bf16 8e-3, of |reference| + its root mean square;
///            of at most 8 rows of f32 loss and gradients within 2.4e-7 of their L2 norms
///            (tests/losses/fused_linear_kl_div_test.cpp).
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), w(100 * 16, 0.1f), dx(x), dw(w), loss(1), upstream(1, 2);
/// const std::vector<std::int64_t> target{1, -100, 3, 99};
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), v.size() / 16, 16); };
/// const tigon::linear_layer layer{rows(x), rows(w)};
/// const tigon::linear_gradients gradients{rows(dx), rows(dw)};
/// const std::vector<float> teacher(4 * 100, 0.01f);
/// const tigon::matrix_view probs(teacher.data(), 4, 100);
/// tigon::fused_linear_kl_div_forward(layer, probs, std::span(target), loss, gradients);
/// tigon::fused_linear_kl_div_backward(layer, probs, std::span(target), upstream, gradients);
/// ```
struct fused_linear_kl_div_options;

namespace detail {
inline namespace TIGON_ABI {
/// Whether calls of few rows are computed in f64.
template <class B, layer_types T>
inline constexpr bool few_kl_div_in_f64 = few_rows_in_f64<B, T, op::fused_linear_kl_div>;
}  // namespace TIGON_ABI
}  // namespace detail

/// Bytes of workspace that fused_linear_kl_div_forward and _backward take with all gradients and a bias, or with the
/// gradient of x alone.
template <class B = default_backend, class T>
std::size_t fused_linear_kl_div_workspace(std::size_t rows, std::size_t hidden, std::size_t vocab,
                                          const context& ctx = default_context<B>(),
                                          parameters of = parameters::trained) {
  using A = accumulator_t<T>;
  const std::size_t chunk = detail::chunk_rows<B, A>(rows, hidden, vocab, ctx);
  if constexpr (!host_memory<B>)
    return detail::divergence_workspace(rows) +
           kernel_for<op::fused_linear_kl_div, B>::template workspace_bytes<B, T>(rows, hidden, vocab, ctx, of);
  if constexpr (detail::few_kl_div_in_f64<B, T>)
    if (rows <= detail::few_rows)
      return detail::divergence_workspace(rows) + detail::kept_labels<std::int64_t>::bytes<A>(rows, 0) +
             detail::few_rows_workspace<B, T>({rows, hidden, vocab}, ctx);
  return detail::divergence_workspace(rows) + detail::kept_labels<std::int64_t>::bytes<A>(rows, 0) +
         detail::kept_linear_workspace<B, T>({rows, hidden, vocab}, chunk, detail::bytes_of_row<T>(hidden, vocab), ctx,
                                             simd::scratch_workspace<B, A>(vocab, 1, ctx), of,
                                             [=](std::size_t n) { return workspace::bytes_for<A>(n, vocab); });
}

namespace detail {
inline namespace TIGON_ABI {
/// Checks and the call that forward and backward share; backward has an upstream gradient and no loss.
template <class B, layer_types T, class Labels>
void run_linear_kl_div(std::string_view name, linear_kl_div<T> t, matrix_view<accumulator_t<T>> loss,
                       matrix_view<const accumulator_t<T>> upstream, const Labels& labels,
                       const fused_linear_kl_div_options& opt, context& ctx) {
  using A = accumulator_t<T>;
  const auto ids = label_span(labels);
  const std::size_t rows = t.head.x.rows, vocab = t.head.w.rows;
  const bool backward = loss.data == nullptr && upstream.data != nullptr;
  const bool elements = opt.reduction == divergence_reduction::none;
  const std::size_t loss_rows = elements ? rows : 1, loss_cols = elements ? vocab : 1;
  arguments args(name);
  declare_layer<B>(args, name, t.head);
  args.in("teacher", t.teacher, rows, vocab);
  if constexpr (!std::same_as<Labels, absent_t>) args.in("labels", ids, rows);
  if (backward) args.in("upstream", upstream, loss_rows, loss_cols);
  declare_gradients(args, t.head, t.out);
  if (!backward) args.out("loss", loss, loss_rows, loss_cols);
  args.check();
  args.number<A>(opt.eps >= 0 && opt.eps <= 1, "eps", opt.eps, "a number from 0 to 1");
  args.option(opt.temperature >= 1e-30 && opt.temperature <= 1e30, "temperature", opt.temperature,
              "a number from 1e-30 to 1e30");
  args.denominator<A>(opt.denominator);
  args.finite<A>("upstream", opt.upstream);
  args.made<A>("upstream over the denominator and the temperature",
               opt.upstream / (opt.denominator != 0 ? opt.denominator : 1) / std::min(opt.temperature, 1.0));
  ctx.workspace().expect(name,
                         fused_linear_kl_div_workspace<B, T>(rows, t.head.x.cols, vocab, ctx, t.out.of_weights()));

  workspace::frame frame(ctx.workspace());
  const auto of_rows =
      rows_of_divergence<B>(ctx, frame, rows, vocab, opt.reduction, opt.denominator, ids, opt.ignore_index);
  if (elements && backward) t.upstream = upstream;
  if (elements && !backward) t.elements = loss;
  if constexpr (!host_memory<B>) {
    using K = kernel_for<op::fused_linear_kl_div, B>;
    const auto g = number_of<B, A>(backward && !elements ? upstream.data : nullptr, backward ? 1 : opt.upstream);
    const auto factor = of_rows.times(g, true);
    if (backward) return K::template backward<B, T>(t, of_rows, factor, opt, ctx);
    K::template forward<B, T>(t, of_rows, factor, opt, ctx);
    if (!elements) of_rows.put_total(loss.data, ctx);
    return;
  } else {
    const kept_labels kept(frame, ids, rows, opt.ignore_index);
    t.kept = kept.rows();
    const double g = !backward ? opt.upstream : elements ? 1 : static_cast<double>(upstream.data[0]);
    const auto run = [&]<layer_types L>(const linear_kl_div<L>& call) {
      using K = kernel_for<op::fused_linear_kl_div, B>;
      if (backward) return K::template backward<B, L>(call, of_rows.loss, of_rows.scale * g, opt, ctx);
      K::template forward<B, L>(call, of_rows.loss, of_rows.scale * g, opt, ctx);
      if (!elements) loss.data[0] = static_cast<A>(of_rows.total());
    };
    if constexpr (few_kl_div_in_f64<B, T>)
      if (rows <= few_rows)
        return run(linear_kl_div<in_f64<T>>{layer_in_f64(t.head), gradients_in_f64(t.out), t.teacher, t.elements,
                                            t.upstream, t.kept});
    run(t);
  }
}
}  // namespace TIGON_ABI
}  // namespace detail

/// The loss and the gradients in one call. See fused_linear_kl_div_options for the contract.
template <class B = default_backend, class T, class Labels = absent_t>
void fused_linear_kl_div_forward(const linear_layer<T>& layer, in_matrix<input_t<T>> teacher, const Labels& labels,
                                 std::type_identity_t<loss_elements<accumulator_t<T>>> loss,
                                 std::type_identity_t<linear_gradients<T>> gradients = {},
                                 fused_linear_kl_div_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  detail::run_linear_kl_div<B, T>("fused_linear_kl_div_forward", {layer, gradients, teacher, {}, {}, {}}, loss.view, {},
                                  labels, opt, ctx);
}

/// dx, dw and dbias for an upstream gradient of the loss, or of each element with reduction none; the logits are
/// computed again.
template <class B = default_backend, class T, class Labels = absent_t>
void fused_linear_kl_div_backward(const linear_layer<T>& layer, in_matrix<input_t<T>> teacher, const Labels& labels,
                                  std::type_identity_t<loss_elements<const accumulator_t<T>>> upstream,
                                  std::type_identity_t<linear_gradients<T>> gradients,
                                  fused_linear_kl_div_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  detail::run_linear_kl_div<B, T>("fused_linear_kl_div_backward", {layer, gradients, teacher, {}, {}, {}}, {},
                                  upstream.view, labels, opt, ctx);
}

TIGON_EXPLAINS(fused_linear_kl_div_forward)
TIGON_EXPLAINS(fused_linear_kl_div_backward)

}  // namespace tigon

#include <tigon/losses/cross_entropy.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_KL_DIV_HPP
