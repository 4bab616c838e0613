// The Kullback-Leibler divergence of given probabilities from a linear layer's softmax, which never exists as a whole.
#ifndef TIGON_LOSSES_FUSED_LINEAR_KL_DIV_HPP
#define TIGON_LOSSES_FUSED_LINEAR_KL_DIV_HPP

#include <tigon/losses/parts/fused_linear_kl_div_contract.hpp>
#include <tigon/losses/parts/kl_div_program.hpp>
#include <tigon/losses/parts/row_softmax.hpp>

namespace tigon {

template <>
struct kernel<op::fused_linear_kl_div, backends::generic> {
  template <class>
  using saved = no_state;

  /// Losses and gradients in one pass over the rows that count; the gradients times `factor`. loss: of these rows.
  template <backend B, layer_types T>
  static void forward(const detail::linear_kl_div<T>& t, double* loss, double factor,
                      const fused_linear_kl_div_options& opt, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t all = t.head.x.rows, hidden = t.head.x.cols, vocab = t.head.w.rows;
    const detail::kept_chunk chunk =
        detail::chunk_of<T>(t.kept, detail::chunk_rows<B, A>(all, hidden, vocab, ctx), all,
                            detail::bytes_of_row<T>(hidden, vocab), t.out.dx.data != nullptr);
    workspace::frame frame(ctx.workspace());
    A* logits = frame.template take<A>(chunk.rows * vocab);
    detail::kept_linear<B, T> layer(frame, t.head, t.out, t.kept, chunk, t.out.dx, ctx);
    detail::for_chunks(t.kept.n, chunk.rows, [&](std::size_t begin, std::size_t n) {
      const matrix_view<A> z(logits, n, vocab);
      const bool whole = t.kept.all();
      const detail::kl_div_rows<A> of{loss + begin,
                                      whole ? nullptr : t.kept.row + begin,
                                      std::max(static_cast<A>(opt.eps), std::numeric_limits<A>::min()),
                                      static_cast<A>(1 / opt.temperature),
                                      static_cast<A>(factor / opt.temperature),
                                      t.out.any()};
      const auto part = [=](auto m) { return m.data == nullptr || !whole ? m : m.rows_from(begin, n); };
      layer.logits(begin, z);
      if (opt.log_target)
        chunk_rows<row_backend<B>, true, input_t<T>, A>(z, part(t.teacher), part(t.elements), part(t.upstream), of,
                                                        ctx);
      else
        chunk_rows<row_backend<B>, false, input_t<T>, A>(z, part(t.teacher), part(t.elements), part(t.upstream), of,
                                                         ctx);
      if (t.out.any()) layer.backward(begin, z);
    });
    layer.finish();
    detail::clear_other_rows<B>(t.elements, t.kept, ctx);
  }

  /// The gradients, from logits that are computed again.
  template <backend B, layer_types T>
  static void backward(const detail::linear_kl_div<T>& t, double* loss, double factor,
                       const fused_linear_kl_div_options& opt, context& ctx) {
    forward<B, T>(t, loss, factor, opt, ctx);
  }

  /// Losses of a chunk, and D over its logits.
  template <backend B, bool Log, element T, class A>
  static void chunk_rows(matrix_view<A> z, matrix_view<const T> all_teachers,
                         matrix_view<accumulator_t<T>> all_elements, matrix_view<const accumulator_t<T>> upstreams,
                         detail::kl_div_rows<A> of, context& ctx) {
    const detail::kl_div_program<Log, A> program{of.lowest, A(0)};
    for_rows_with_scratch<B, A>(ctx, z.rows, z.cols, 1, [=] TIGON_FN(auto row) {
      // As a vector: what is written in place is not streamed.
      const vector_view<A> v{z.row(row.i), row.cols}, e = row.scratch(0);
      const auto teacher = detail::moved_to(all_teachers, of.row, row.i);
      const auto elements = detail::moved_to(all_elements, of.row, row.i);
      const auto upstream = detail::moved_to(upstreams, of.row, row.i);
      const A top = row.max(reads(v), [](auto s) { return s; });
      const A sum = row.map_sum(reads(v), writes(e), [=](auto s) {
        const auto p = exp_nonpositive((s - top) * of.inverse);
        return pack{p, p};
      });
      A d = sum - A(1);
      if (d < A(1)) d = detail::sum_without_one(row, e);
      const A tail = math::log1p(d);
      // g P takes the place of the logits.
      const auto loss_of = [=](auto s, auto t) {
        return program.map(fma(s - top, decltype(s)(of.inverse), decltype(s)(-tail)), t);
      };
      A loss(0), mass(0);
      if (elements.data != nullptr) {
        const auto sums = row.map_sum(reads(v, teacher), writes(v, elements), [=](auto s, auto t) {
          const auto l = loss_of(s, t), p = detail::teacher_probability<Log>(t);
          return pack{p, l, p};
        });
        mass = sums;
      } else if (upstream.data != nullptr) {
        mass = row.map_sum(reads(v, teacher, upstream), writes(v), [=](auto, auto t, auto g) {
          const auto p = g * detail::teacher_probability<Log>(t);
          return pack{p, p};
        });
      } else {
        const auto sums = row.map_sum(reads(v, teacher), writes(v), [=](auto s, auto t) {
          const auto p = detail::teacher_probability<Log>(t);
          return pack{p, loss_of(s, t), p};
        });
        loss = sums[0], mass = sums[1];
      }
      if (row.first()) of.loss[row.i] = static_cast<double>(loss);
      if (!of.gradient) return;
      const A of_q = of.factor * mass / (A(1) + d), of_p = of.factor;
      row.map(reads(e, v), writes(v),
              [=](auto q, auto p) { return normal_or_zero(fnma(p, decltype(p)(of_p), q * of_q)); });
    });
  }
};

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
                                          const context& ctx = default_context(), parameters of = parameters::trained) {
  using A = accumulator_t<T>;
  const std::size_t chunk = detail::chunk_rows<B, A>(rows, hidden, vocab, ctx);
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
  const divergence_rows of_rows(frame, rows, vocab, opt.reduction, opt.denominator, ids, opt.ignore_index);
  const kept_labels kept(frame, ids, rows, opt.ignore_index);
  t.kept = kept.rows();
  if (elements && backward) t.upstream = upstream;
  if (elements && !backward) t.elements = loss;
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

}  // namespace TIGON_ABI
}  // namespace detail

/// The loss and the gradients in one call. See fused_linear_kl_div_options for the contract.
template <class B = default_backend, class T, class Labels = absent_t>
void fused_linear_kl_div_forward(const linear_layer<T>& layer, in_matrix<input_t<T>> teacher, const Labels& labels,
                                 std::type_identity_t<loss_elements<accumulator_t<T>>> loss,
                                 std::type_identity_t<linear_gradients<T>> gradients = {},
                                 fused_linear_kl_div_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  detail::run_linear_kl_div<B, T>("fused_linear_kl_div_forward", {layer, gradients, teacher, {}, {}, {}}, loss.view, {},
                                  labels, opt, ctx);
}

/// dx, dw and dbias for an upstream gradient of the loss, or of each element with reduction none; the logits are computed
/// again.
template <class B = default_backend, class T, class Labels = absent_t>
void fused_linear_kl_div_backward(const linear_layer<T>& layer, in_matrix<input_t<T>> teacher, const Labels& labels,
                                  std::type_identity_t<loss_elements<const accumulator_t<T>>> upstream,
                                  std::type_identity_t<linear_gradients<T>> gradients,
                                  fused_linear_kl_div_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  detail::run_linear_kl_div<B, T>("fused_linear_kl_div_backward", {layer, gradients, teacher, {}, {}, {}}, {},
                                  upstream.view, labels, opt, ctx);
}

}  // namespace tigon

#include <tigon/losses/cross_entropy.hpp>  // the doors beside these, for callers

#endif  // TIGON_LOSSES_FUSED_LINEAR_KL_DIV_HPP
