// Cross entropy of a linear layer's output that never exists as a whole, with all gradients.
#ifndef TIGON_LOSSES_FUSED_LINEAR_CROSS_ENTROPY_HPP
#define TIGON_LOSSES_FUSED_LINEAR_CROSS_ENTROPY_HPP

#include <tigon/gemm/gemm.hpp>
#include <tigon/losses/cross_entropy.hpp>

namespace tigon {

namespace op {
struct fused_linear_cross_entropy {
  static constexpr std::string_view name = "fused_linear_cross_entropy";
};
}  // namespace op

/// Cross entropy of z = x w^T + b, a chunk of rows at a time.
///
///   loss and D = d loss / d z as cross_entropy has them; token_scaling multiplies a row's loss and D by p_t
///   dx = D w,   dw = D^T x,   db[j] = sum_i D[i,j];   row i of D times upstream[i] first, where that is given
///
/// Formula    docs/formulas/fused_linear_cross_entropy.md.
/// Shapes     x, dx [rows, hidden]; w, dw [vocab, hidden]; bias, dbias [vocab] or `absent`; target [rows]; class weight
///            [vocab] or `absent`; loss and metrics as cross_entropy. vocab >= 1; rows and hidden may be 0.
/// Types      x, w, bias and their gradients of one type, f32, bf16, f16 or f64; loss and metrics f32 (f64 for f64);
///            target std::int32_t or std::int64_t.
/// Precision  logits, D and the sums of dw and db over all chunks in f32 (f64 for f64); one rounding at each output.
/// Writes     loss, metrics, dx, dw, dbias; a gradient whose view has no memory is not computed. dw and dbias are added
///            to with gradient::accumulate.
/// Aliasing   none.
/// Memory     chunk * vocab logits in f32, by default at most 64 MiB (B::chunk); for 16-bit w also an f32 dw; see
///            fused_linear_cross_entropy_workspace.
/// Throws     tigon::error as cross_entropy; before the first write.
/// Max error  loss 4e-7 of |reference| + its root mean square, in bf16 too; gradients f32 2e-6, bf16 8e-3
///            (tests/losses/fused_linear_cross_entropy_test.cpp).
struct fused_linear_cross_entropy_options {
  cross_entropy_options loss;
  bool token_scaling = false;              ///< loss and gradient of a row times the probability of its target
  gradient dparams = gradient::overwrite;  ///< of dw and dbias
};

namespace detail {
inline namespace TIGON_ABI {

/// What a fused linear cross entropy reads and writes; views without memory stand for what is absent.
template <element T>
struct linear_loss {
  matrix_view<const T> x, w;
  vector_view<const T> bias;
  matrix_view<T> dx, dw;
  vector_view<T> dbias;
  vector_view<const accumulator_t<T>> upstream;  ///< empty: 1
};

/// Rows of a chunk: as many as the budget of B holds, then equal for all chunks. Fixed by shape.
template <class B, class A>
constexpr std::size_t chunk_rows(std::size_t rows, std::size_t vocab) {
  const std::size_t multiple = B::chunk.row_multiple;
  const auto rounded = [=](std::size_t n) { return n < multiple ? n : n / multiple * multiple; };
  const std::size_t most = rounded(std::max<std::size_t>(B::chunk.logits_bytes / (vocab * sizeof(A)), 1));
  const std::size_t chunks = (rows + most - 1) / most;
  if (chunks <= 1) return std::max<std::size_t>(rows, 1);
  const std::size_t even = (rows + chunks - 1) / chunks;
  return std::min(most, (even + multiple - 1) / multiple * multiple);
}

}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::fused_linear_cross_entropy, backends::generic> {
  template <class>
  using saved = no_state;

  /// Everything in one pass over the rows.
  template <backend B, element T, token_id I>
  static void forward(detail::linear_loss<T> t, std::span<const I> target, const accumulator_t<T>* class_weight,
                      cross_entropy_rows out, cross_entropy_scale scale, fused_linear_cross_entropy_options opt,
                      context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t rows = t.x.rows, hidden = t.x.cols, vocab = t.w.rows;
    const std::size_t chunk = detail::chunk_rows<B, A>(rows, vocab);
    const bool gradients = t.dx.data != nullptr || t.dw.data != nullptr || t.dbias.data != nullptr;
    const bool add = opt.dparams == gradient::accumulate;
    constexpr bool wide = std::same_as<T, A>;

    workspace::frame frame(ctx.workspace());
    A* logits = frame.template take<A>(chunk * vocab);
    const vector_view<A> bias{t.bias ? frame.template take<A>(vocab) : nullptr, vocab};
    if (t.bias)
      for_rows<B, A>(ctx, 1, vocab, [=] TIGON_FN(auto row) {
        row.map(
            bias, [](auto v) { return v; }, t.bias);
      });
    // Sums over the chunks: dw itself where it is wide enough, db always apart because it is short.
    matrix_view<A> dw;
    if constexpr (wide)
      dw = t.dw;
    else if (t.dw.data != nullptr)
      dw = {frame.template take<A>(vocab * hidden), vocab, hidden};
    const vector_view<A> dbias{t.dbias ? frame.template take<A>(vocab) : nullptr, vocab};
    out.token_scaling = opt.token_scaling;

    bool first = true;
    for (std::size_t begin = 0; begin < rows; begin += chunk) {
      const std::size_t n = std::min(chunk, rows - begin);
      const matrix_view<A> z(logits, n, vocab);
      const matrix_view<const T> x = t.x.rows_from(begin, n);
      product<B>(x, t.w, z, in_vector<A>(bias), {.b = transpose::yes}, ctx);
      const cross_entropy_rows part{out.loss + begin, out.z_loss + begin,
                                    out.predicted == nullptr ? nullptr : out.predicted + begin, out.token_scaling};
      kernel_for<op::cross_entropy, B>::template forward<B, A, I>(
          z, target.subspan(begin, n), class_weight, gradients ? z : matrix_view<A>{}, part, scale, opt.loss, ctx);
      if (!gradients) continue;
      if (t.upstream) multiply_rows<B>(z, t.upstream, begin, ctx);
      if (t.dx.data != nullptr) product<B>(z, t.w, t.dx.rows_from(begin, n), {}, {}, ctx);
      if (dw.data != nullptr)
        product<B>(z, x, dw, {}, {.beta = first && !(wide && add) ? 0.0 : 1.0, .a = transpose::yes}, ctx);
      if (t.dbias)
        for_rows_with_partials<B, A>(
            ctx, n, vocab, no_statistic{},
            [=] TIGON_FN(auto row, int) {
              const auto sum = row.partial(0);
              row.map(
                  sum, [](auto d, auto s) { return s + d; }, z, sum);
            },
            parameter_gradient<A>{dbias, first ? gradient::overwrite : gradient::accumulate});
      first = false;
    }
    if (first) clear<B>(t, add, ctx);
    if (first) return;
    if constexpr (!wide)
      if (t.dw.data != nullptr) store_sums<B>(matrix_view<const A>(dw), t.dw, add, ctx);
    if (t.dbias) store_sums<B>(matrix_view<const A>(as_row(dbias)), as_row(t.dbias), add, ctx);
  }

  /// The gradients alone, recomputed: for reduction::none, where the upstream gradient differs from row to row.
  template <backend B, element T, token_id I>
  static void backward(detail::linear_loss<T> t, std::span<const I> target, const accumulator_t<T>* class_weight,
                       cross_entropy_rows out, cross_entropy_scale scale, fused_linear_cross_entropy_options opt,
                       context& ctx) {
    forward<B, T, I>(t, target, class_weight, out, scale, opt, ctx);
  }

  template <backend B, class TA, class TB, element TC>
  static void product(matrix_view<TA> a, matrix_view<TB> b, matrix_view<TC> c, in_vector<TC> bias, gemm_options opt,
                      context& ctx) {
    kernel_for<op::gemm, B>::template forward<B, std::remove_const_t<TA>, std::remove_const_t<TB>, TC>(
        a, {b}, bias, c, no_epilogue{}, opt, ctx);
  }

  template <backend B, class A>
  static void multiply_rows(matrix_view<A> z, vector_view<const A> upstream, std::size_t begin, context& ctx) {
    const A* g = upstream.data + (upstream.size == 1 ? 0 : begin);
    const std::size_t step = upstream.size == 1 ? 0 : 1;
    for_rows<B, A>(ctx, z.rows, z.cols, [=] TIGON_FN(auto row) {
      const A factor = g[row.i * step];
      row.map(
          z, [=](auto d) { return d * factor; }, z);
    });
  }

  template <backend B, class A, element T>
  static void store_sums(matrix_view<const A> sums, matrix_view<T> to, bool add, context& ctx) {
    for_rows<B, A>(ctx, to.rows, to.cols, [=] TIGON_FN(auto row) {
      if (add)
        row.map(
            to, [](auto s, auto old) { return old + s; }, sums, to);
      else
        row.map(
            to, [](auto s) { return s; }, sums);
    });
  }

  template <backend B, element T>  // no rows: gradients of parameters are zeros
  static void clear(detail::linear_loss<T> t, bool add, context& ctx) {
    using A = accumulator_t<T>;
    if (add) return;
    const auto zero = [&](matrix_view<T> m) {
      for_rows<B, A>(ctx, m.rows, m.cols, [=] TIGON_FN(auto row) {
        row.map(
            m, [](auto v) { return v; }, constant(A(0)));
      });
    };
    if (t.dw.data != nullptr) zero(t.dw);
    if (t.dbias) zero(as_row(t.dbias));
  }
};

/// Bytes of workspace that fused_linear_cross_entropy_forward takes for a call with all gradients and a bias.
template <class B = default_backend, class T>
std::size_t fused_linear_cross_entropy_workspace(std::size_t rows, std::size_t hidden, std::size_t vocab,
                                                 const context& ctx = default_context()) {
  using A = accumulator_t<T>;
  const std::size_t chunk = detail::chunk_rows<B, A>(rows, vocab), workers = ctx.executor().workers();
  std::size_t inner = simd::scratch_workspace<B, A>(vocab, 1, ctx);
  // The last chunk is shorter, and a shorter product may want more.
  for (const std::size_t n : {chunk, rows == 0 ? chunk : (rows - 1) % chunk + 1})
    inner =
        std::max({inner, gemm_workspace<B, T, T, A>(n, vocab, hidden, workers),
                  gemm_workspace<B, A, T, T>(n, hidden, vocab, workers),
                  gemm_workspace<B, A, T, A>(vocab, hidden, n, workers), simd::partials_workspace<B, A>(n, vocab, 1)});
  return cross_entropy_workspace<B, T>(rows, vocab, ctx) - simd::scratch_workspace<B, A>(vocab, 1, ctx) + inner +
         workspace::bytes_for<A>(chunk * vocab) + 2 * workspace::bytes_for<A>(vocab) +
         (std::same_as<T, A> ? 0 : workspace::bytes_for<A>(vocab * hidden));
}

namespace detail {
inline namespace TIGON_ABI {

/// Checks and the call that forward and backward share.
template <class B, element T, class Target, class Weight>
void linear_cross_entropy(std::string_view name, linear_loss<T> t, const Target& target, Weight weight,
                          std::span<accumulator_t<T>> loss, cross_entropy_metrics<accumulator_t<T>> metrics,
                          fused_linear_cross_entropy_options opt, context& ctx) {
  using A = accumulator_t<T>;
  const std::span labels(target);
  using I = std::remove_const_t<typename decltype(labels)::element_type>;
  static_assert(token_id<I>, "tigon: targets are std::int32_t or std::int64_t");
  const expects expect(name);
  const bool backward = loss.data() == nullptr && t.upstream;
  expect.at_least_one("vocab", t.w.rows);
  expect.memory("x", t.x);
  expect.matrix("w", t.w, t.w.rows, t.x.cols);
  if (t.bias) expect.size("bias", t.bias.size, t.w.rows);
  if (t.dx.data != nullptr) expect.matrix("dx", t.dx, t.x.rows, t.x.cols);
  if (t.dw.data != nullptr) expect.matrix("dw", t.dw, t.w.rows, t.w.cols);
  if (t.dbias) expect.size("dbias", t.dbias.size, t.w.rows);
  if (t.upstream && t.upstream.size != 1) expect.size("upstream", t.upstream.size, t.x.rows);
  const auto bias = as_row(t.bias);
  const auto upstream = as_row(t.upstream);
  const auto dbias = as_row(t.dbias);
  const auto apart = [&](std::string_view written, auto gradient, auto... more) {
    expect.outside(written, gradient, "x", t.x, "w", t.w, "bias", bias, "upstream", upstream, "target",
                   as_row(std::span<const I>(labels)), "class_weight", as_row(weight), more...);
  };
  apart("dx", t.dx, "dw", t.dw, "dbias", dbias);
  apart("dw", t.dw, "dbias", dbias);
  apart("dbias", dbias);
  A unused{};
  auto checked = opt.loss;
  if (backward) checked.reduction = reduction::sum;
  expect_loss<A>(expect, name, labels, t.x.rows, t.w.rows, weight, backward ? std::span<A>(&unused, 1) : loss, metrics,
                 checked, "x", t.x, "w", t.w, "bias", bias, "upstream", upstream, "dx", t.dx, "dw", t.dw, "dbias",
                 dbias);
  ctx.workspace().expect(name, fused_linear_cross_entropy_workspace<B, T>(t.x.rows, t.x.cols, t.w.rows, ctx));

  workspace::frame frame(ctx.workspace());
  const loss_rows<A> rows(frame, std::span<const I>(labels), t.w.rows, weight, metrics, opt.loss);
  using K = kernel_for<op::fused_linear_cross_entropy, B>;
  if (backward)
    K::template backward<B, T, I>(t, labels, rows.weight, rows.out, rows.scale, opt, ctx);
  else
    K::template forward<B, T, I>(t, labels, rows.weight, rows.out, rows.scale, opt, ctx);
  if (!backward) rows.finish(std::span<const I>(labels), loss, metrics, opt.loss);
}

}  // namespace TIGON_ABI
}  // namespace detail

/// Loss, metrics and, for mean and sum, all gradients in one call. dx and dw may be views without memory. With
/// reduction::none the gradients belong to fused_linear_cross_entropy_backward, unless the upstream gradient is known
/// beforehand and given here. See fused_linear_cross_entropy_options for the contract.
template <class B = default_backend, class T, class Target, parameter Bias = absent_t, parameter DBias = absent_t,
          parameter Weight = absent_t>
void fused_linear_cross_entropy_forward(in_matrix<T> x, in_matrix<T> w, const Target& target,
                                        std::type_identity_t<std::span<accumulator_t<T>>> loss, matrix_view<T> dx,
                                        std::type_identity_t<matrix_view<T>> dw,
                                        fused_linear_cross_entropy_options opt = {}, const Bias& bias = absent,
                                        DBias&& dbias = absent_t{}, const Weight& class_weight = absent,
                                        cross_entropy_metrics<accumulator_t<T>> metrics = {},
                                        std::type_identity_t<std::span<const accumulator_t<T>>> upstream = {},
                                        context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const in_vector<T> b = as_in_vector<T>(bias);
  const vector_view<T> db = as_out_vector<T>(dbias);
  const auto weight = as_in_vector<T>(class_weight);
  static_assert(admits_parameter<T, decltype(weight)>());
  detail::linear_cross_entropy<B, T>("fused_linear_cross_entropy_forward",
                                     {x, w, b, dx, dw, db, {upstream.data(), upstream.size()}}, target, weight, loss,
                                     metrics, opt, ctx);
}

/// dx, dw and dbias for an upstream gradient of one number, or one a row; the logits are computed again.
template <class B = default_backend, class T, class Target, parameter Bias = absent_t, parameter DBias = absent_t,
          parameter Weight = absent_t>
void fused_linear_cross_entropy_backward(in_matrix<T> x, in_matrix<T> w, const Target& target,
                                         std::type_identity_t<std::span<const accumulator_t<T>>> upstream,
                                         matrix_view<T> dx, std::type_identity_t<matrix_view<T>> dw,
                                         fused_linear_cross_entropy_options opt = {}, const Bias& bias = absent,
                                         DBias&& dbias = absent_t{}, const Weight& class_weight = absent,
                                         context& ctx = default_context()) {
  static_assert(admits<B, T>());
  const in_vector<T> b = as_in_vector<T>(bias);
  const vector_view<T> db = as_out_vector<T>(dbias);
  const auto weight = as_in_vector<T>(class_weight);
  static_assert(admits_parameter<T, decltype(weight)>());
  expects("fused_linear_cross_entropy_backward")
      .that(upstream.data() != nullptr || x.rows == 0, error_code::shape, "upstream", "empty",
            "one number, or one for each row");
  const accumulator_t<T> one(1);
  const auto* g = upstream.data() == nullptr ? &one : upstream.data();
  detail::linear_cross_entropy<B, T>("fused_linear_cross_entropy_backward",
                                     {x, w, b, dx, dw, db, {g, upstream.data() == nullptr ? 1 : upstream.size()}},
                                     target, weight, {}, {}, opt, ctx);
}

}  // namespace tigon

#endif  // TIGON_LOSSES_FUSED_LINEAR_CROSS_ENTROPY_HPP
