// Negative log-likelihood and entropy of every token, of a linear layer's output that never exists as a whole.
#ifndef TIGON_LOSSES_FUSED_LINEAR_SCALED_CROSS_ENTROPY_HPP
#define TIGON_LOSSES_FUSED_LINEAR_SCALED_CROSS_ENTROPY_HPP

#include <tigon/losses/cross_entropy.hpp>
#include <tigon/losses/parts/chunked_linear.hpp>

namespace tigon {

namespace op {
struct fused_linear_scaled_cross_entropy {
  static constexpr std::string_view name = "fused_linear_scaled_cross_entropy";
};
/// Its work on a chunk of logits.
struct scaled_cross_entropy {
  static constexpr std::string_view name = "scaled_cross_entropy";
};
}  // namespace op

/// With s = (x w^T + bias) / temperature and p = softmax(s), for a row with target t, m = max_j s_j, d = sum_j exp(s_j - m)
/// without the maximal element's own 1, and u = sum_j p_j (s_j - m):
///
///   nll     = (m - s_t) + log1p(d)                     entropy = log1p(d) - u          lse = m + log1p(d)
///   D_j     = (g (p_j - [j = t]) - h p_j ((s_j - m) - u)) / temperature      g, h: upstream of nll and of entropy
///   dx = D w,   dw = D^T x,   db[j] = sum_i D[i,j]
///
/// Formula    docs/formulas/fused_linear_scaled_cross_entropy.md.
/// Shapes     x, dx [rows, hidden]; w, dw [vocab, hidden]; bias, dbias [vocab], or none; target, nll, entropy, lse [rows]; upstream one number or
///            [rows]. vocab >= 1; rows and hidden may be 0.
/// Types      x, w, bias and their gradients of one type, f32, bf16, f16 or f64; results and upstream f32 (f64 for f64);
///            target std::int32_t or std::int64_t.
/// Precision  logits, D and the sums of dw and db over all chunks in f32 (f64 for f64); one rounding at each output.
/// Writes     the results that have memory, dx, dw, dbias; a gradient without memory is not computed. dw and dbias are
///            added to with gradient::accumulate. A row whose target is ignore_index has results and D of 0; neither its logits
///            nor its upstream gradient are read.
/// Aliasing   none: any layout in which no element is shared.
/// Memory     chunk * vocab logits in f32, by default at most 64 MiB (B::chunk); for 16-bit w also an f32 dw; see
///            fused_linear_scaled_cross_entropy_workspace. w may come packed (linear_layer).
/// Throws     tigon::error: shape, stride, alias, argument, workspace, and index (in every build) for a target outside
///            [0, vocab) that is not ignore_index; before the first write.
/// Edges      vocab = 1: zeros. An ignored row contributes nothing to dw and db and has a dx of 0, whatever stands in its x. NaN or +inf in a row of logits: that row is NaN. -inf at the target: nll inf, finite D.
///            A D below the smallest normal f32 (f64) is taken as 0.
/// Max error  results 2e-6 of |reference| + their root mean square, in bf16 too; gradients f32 2e-5, bf16 8e-3
///            (tests/losses/fused_linear_scaled_cross_entropy_test.cpp).
struct fused_linear_scaled_cross_entropy_options {
  double temperature = 1;  ///< from 1e-30 to 1e30
  std::int64_t ignore_index = -100;
};

/// A number a row each; a span without memory is not written.
template <class A>
struct scaled_cross_entropy_results {
  std::span<A> nll{}, entropy{}, lse{};
};

/// Upstream gradients, each one number, one a row, or without memory: 0.
template <class A>
struct scaled_cross_entropy_upstream {
  std::span<const A> nll{}, entropy{};
};

namespace detail {
inline namespace TIGON_ABI {

/// Results and upstream gradients of the rows from some row on.
template <class A>
struct scaled_cross_entropy_rows {
  A *nll, *entropy, *lse;
  const A *upstream_nll, *upstream_entropy;
  std::size_t step_nll, step_entropy;  ///< to the next row's upstream gradient

  scaled_cross_entropy_rows(const scaled_cross_entropy_results<A>& out, const scaled_cross_entropy_upstream<A>& g)
      : nll(out.nll.data()),
        entropy(out.entropy.data()),
        lse(out.lse.data()),
        upstream_nll(g.nll.data()),
        upstream_entropy(g.entropy.data()),
        step_nll(g.nll.size() > 1),
        step_entropy(g.entropy.size() > 1) {}

  scaled_cross_entropy_rows from(std::size_t begin) const {
    auto rows = *this;
    const auto on = [=](auto*& p, std::size_t n) {
      if (p != nullptr) p += n;
    };
    on(rows.nll, begin), on(rows.entropy, begin), on(rows.lse, begin);
    on(rows.upstream_nll, begin * step_nll), on(rows.upstream_entropy, begin * step_entropy);
    return rows;
  }
  TIGON_INLINE void put(std::size_t i, A row_nll, A row_entropy, A row_lse) const {
    if (nll != nullptr) nll[i] = row_nll;
    if (entropy != nullptr) entropy[i] = row_entropy;
    if (lse != nullptr) lse[i] = row_lse;
  }
};

}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::scaled_cross_entropy, backends::generic> {
  using forward_only = void;

  /// The results of the logits' rows and, where `gradient` is wanted, D over the logits; what they hold is gone anyway.
  template <backend B, class A, token_id I>
  static void forward(matrix_view<A> z, const I* target, detail::scaled_cross_entropy_rows<A> rows, bool gradient,
                      fused_linear_scaled_cross_entropy_options opt, context& ctx) {
    const A inverse = static_cast<A>(1 / opt.temperature);
    const std::int64_t ignored = opt.ignore_index;
    const bool of_entropy = gradient && rows.upstream_entropy != nullptr;
    for_rows_with_scratch<B, A>(ctx, z.rows, z.cols, 1, [=] TIGON_FN(auto row) {
      const I t = target[row.i];
      if (static_cast<std::int64_t>(t) == ignored) {
        if (row.first()) rows.put(row.i, A(0), A(0), A(0));
        if (gradient)
          row.map(
              z, [](auto zero) { return zero; }, constant(A(0)));
        return;
      }
      const std::size_t column = static_cast<std::size_t>(t);
      const A own = row.at(z, column);
      const A top = row.max([](auto v) { return v; }, z);
      // exp(s - m) goes over the logits, unless D needs these once more.
      const vector_view<A> e = of_entropy ? row.scratch(0) : vector_view<A>{z.row(row.i), row.cols};
      const auto sums = row.map_sum(
          e,
          [=](auto v) {
            const auto s = (v - top) * inverse;
            const auto p = exp_nonpositive(s);
            const decltype(v) zero(A(0));
            return pack{p, p, select(p == zero, zero, p * s)};
          },
          z);
      // d = sum - 1. Where that cancels, the rest is summed without the maximum.
      A d = sums[0] - A(1);
      if (d < A(1)) {
        const auto rest = row.sum(
            [](auto p) {
              const decltype(p) zero(A(0)), one(A(1));
              return pack{select(p == one, zero, p), select(p == one, one, zero)};
            },
            e);
        d = rest[0] + (rest[1] - A(1));
      }
      const A tail = math::log1p(d), u = sums[1] / (A(1) + d), below = (own - top) * inverse;
      const A nll = tail - below;
      if (row.first()) rows.put(row.i, nll, tail - u, top * inverse + tail);
      if (!gradient) return;
      const A g = rows.upstream_nll != nullptr ? rows.upstream_nll[row.i * rows.step_nll] : A(0);
      const A h = of_entropy ? rows.upstream_entropy[row.i * rows.step_entropy] : A(0);
      const A factor = inverse / (A(1) + d), of_p = g * factor, of_slope = h * factor;
      if (of_entropy) {
        row.map(
            z,
            [=](auto p, auto v) {
              // Where p is 0, s may be -inf.
              const decltype(v) zero(A(0)), s = select(p == zero, zero, (v - top) * inverse);
              return normal_or_zero(p * fnma(of_slope, s - u, of_p));
            },
            e, z);
      } else {
        row.map(
            z, [=](auto p) { return normal_or_zero(p * of_p); }, z);
      }
      if (row.first()) {
        // The target's column anew: p_t - 1 cancels where p_t is near 1.
        const A p_t = math::exp(-nll), bent = p_t == A(0) ? A(0) : h * p_t * (below - u);
        row.put(z, column, inverse * (g * math::expm1(-nll) - bent));
      }
    });
  }
};

template <>
struct kernel<op::fused_linear_scaled_cross_entropy, backends::generic> {
  template <class>
  using saved = no_state;

  /// Results and gradients in one pass over the rows.
  template <backend B, element T, token_id I>
  static void forward(linear_layer<T> head, linear_gradients<T> out, std::span<const I> target,
                      detail::scaled_cross_entropy_rows<accumulator_t<T>> rows,
                      fused_linear_scaled_cross_entropy_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t vocab = head.w.rows, chunk = detail::chunk_rows<B, A>(head.x.rows, head.x.cols, vocab, ctx);
    workspace::frame frame(ctx.workspace());
    A* logits = frame.template take<A>(chunk * vocab);
    detail::chunked_linear<B, T> layer(frame, head, out, gemm_detail::ceil_div(head.x.rows, chunk), ctx);
    detail::for_chunks(head.x.rows, chunk, [&](std::size_t begin, std::size_t n) {
      const matrix_view<A> z(logits, n, vocab);
      layer.logits(begin, z);
      kernel_for<op::scaled_cross_entropy, row_backend<B>>::template forward<row_backend<B>, A, I>(
          z, target.data() + begin, rows.from(begin), out.any(), opt, ctx);
      if (out.any()) layer.backward(begin, z);
    });
    layer.finish();
  }

  /// The gradients, from logits and statistics that are made again: a saved lse has lost the digits that p needs.
  template <backend B, element T, token_id I>
  static void backward(linear_layer<T> head, linear_gradients<T> out, std::span<const I> target,
                       detail::scaled_cross_entropy_rows<accumulator_t<T>> rows,
                       fused_linear_scaled_cross_entropy_options opt, context& ctx) {
    forward<B, T, I>(head, out, target, rows, opt, ctx);
  }
};

/// Bytes of workspace that fused_linear_scaled_cross_entropy_forward and _backward take with all gradients.
template <class B = default_backend, class T>
std::size_t fused_linear_scaled_cross_entropy_workspace(std::size_t rows, std::size_t hidden, std::size_t vocab,
                                                        const context& ctx = default_context()) {
  using A = accumulator_t<T>;
  const std::size_t chunk = detail::chunk_rows<B, A>(rows, hidden, vocab, ctx);
  return workspace::bytes_for<A>(chunk, vocab) +
         detail::chunked_linear_workspace<B, T>(rows, hidden, vocab, chunk, gemm_detail::ceil_div(rows, chunk), ctx,
                                                simd::scratch_workspace<B, A>(vocab, 1, ctx));
}

namespace detail {
inline namespace TIGON_ABI {

/// Checks and the call that forward and backward share.
template <class B, element T, class Target>
void linear_scaled_cross_entropy(std::string_view name, const linear_layer<T>& head, const linear_gradients<T>& to,
                                 const Target& target, const scaled_cross_entropy_results<accumulator_t<T>>& out,
                                 const scaled_cross_entropy_upstream<accumulator_t<T>>& g,
                                 const fused_linear_scaled_cross_entropy_options& opt, context& ctx) {
  const std::span labels(target);
  using I = std::remove_const_t<typename decltype(labels)::element_type>;
  static_assert(token_id<I>, "tigon: targets are std::int32_t or std::int64_t");
  const std::span<const I> targets(labels);
  const expects expect(name);
  const std::size_t rows = head.x.rows, vocab = head.w.rows, hidden = head.x.cols;
  const auto label_row = as_row(targets);
  const auto g_nll = as_row(g.nll), g_entropy = as_row(g.entropy);
  expect_linear(expect, head, to, "target", label_row, "upstream.nll", g_nll, "upstream.entropy", g_entropy);
  expect_packed<B>(name, head);
  expect.size("target", targets.size(), rows);
  expect.that(!to.any() || rows == 0 || g.nll.data() != nullptr || g.entropy.data() != nullptr, error_code::shape,
              "upstream", "empty", "a gradient of nll or of entropy: one number, or one for each row");
  const auto upstream = [&](std::string_view which, std::span<const accumulator_t<T>> values) {
    if (values.data() != nullptr && values.size() != 1) expect.size(which, values.size(), rows);
  };
  upstream("upstream.nll", g.nll);
  upstream("upstream.entropy", g.entropy);
  const auto result = [&](std::string_view which, std::span<accumulator_t<T>> values, auto... others) {
    if (values.data() != nullptr) expect.size(which, values.size(), rows);
    expect.outside(which, as_row(values), "x", head.x, "w", head.w, "target", label_row, "upstream.nll", g_nll, "bias",
                   as_row(head.bias), "upstream.entropy", g_entropy, "dx", to.dx, "dw", to.dw, "dbias",
                   as_row(to.dbias), others...);
  };
  result("nll", out.nll);
  result("entropy", out.entropy, "nll", as_row(out.nll));
  result("lse", out.lse, "nll", as_row(out.nll), "entropy", as_row(out.entropy));
  expect.option(opt.temperature >= 1e-30 && opt.temperature <= 1e30, "temperature", opt.temperature,
                "a number from 1e-30 to 1e30");
  expect_labels(name, targets, vocab, opt.ignore_index);
  ctx.workspace().expect(name, fused_linear_scaled_cross_entropy_workspace<B, T>(rows, hidden, vocab, ctx));

  using K = kernel_for<op::fused_linear_scaled_cross_entropy, B>;
  const scaled_cross_entropy_rows<accumulator_t<T>> of_rows(out, g);
  const bool results = out.nll.data() != nullptr || out.entropy.data() != nullptr || out.lse.data() != nullptr;
  if (!results && to.any())
    K::template backward<B, T, I>(head, to, targets, of_rows, opt, ctx);
  else
    K::template forward<B, T, I>(head, to, targets, of_rows, opt, ctx);
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
    context& ctx = default_context()) {
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
    context& ctx = default_context()) {
  static_assert(admits<B, T>());
  detail::linear_scaled_cross_entropy<B, T>("fused_linear_scaled_cross_entropy_backward", layer, gradients, target, {},
                                            upstream, opt, ctx);
}

}  // namespace tigon

#endif  // TIGON_LOSSES_FUSED_LINEAR_SCALED_CROSS_ENTROPY_HPP
