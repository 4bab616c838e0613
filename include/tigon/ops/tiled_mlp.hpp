// Gated MLP on shards of the tokens, recomputed in backward: the intermediate values never exist for all tokens.
#ifndef TIGON_OPS_TILED_MLP_HPP
#define TIGON_OPS_TILED_MLP_HPP

#include <tigon/gemm/chunk_sums.hpp>
#include <tigon/ops/mlp.hpp>

#include <optional>

namespace tigon {

namespace op {
struct tiled_mlp {
  static constexpr std::string_view name = "tiled_mlp";
};
}  // namespace op

/// op::mlp of the backend, shard by shard.
///
///   shard s: tokens [s c, (s + 1) c), c = ceil(tokens / shards); the last may be shorter, and there may be fewer
///   forward: y of a shard is the mlp of its x;  backward: dx likewise, dwg, dwu and dwd are sums over the shards
///
/// Formula    docs/formulas/tiled_mlp.md.
/// Shapes     as mlp; nothing is saved but x. Tokens are all rows of x, whatever sequences they belong to.
/// Types      as mlp.
/// Precision  as mlp; gradients of weights are summed over the shards in f32 (f64 for f64) and rounded once.
/// Writes     y; dx, gradients of weights and biases; a gradient whose view has no memory is not computed. Gradients of
///            weights are added to with gradient::accumulate.
/// Aliasing   forward: none. backward: dx may be dy or x. Otherwise any layout in which no element is shared.
/// Memory     what mlp takes for a shard: an a in forward, 3 * intermediate values a token in backward; where dwg has 16
///            bits and there is more than one shard, also f32 sums for all gradients of weights; of more than 64 shards
///            (4096 where they are large and dwg has 16 bits) two more such sums. See tiled_mlp_workspace.
/// Threads    the same bits for any number of them; the number of shards changes the last bits.
/// Throws     tigon::error: as mlp, and argument (shards is 0); before the first write.
/// Max error  as mlp, for any number of shards (tests/ops/tiled_mlp_test.cpp).
template <class Gate = mlp_gate>
struct tiled_mlp_options_for {
  mlp_options_for<Gate> mlp = {};
  std::optional<std::size_t> shards = {};  ///< absent: ceil(tokens / hidden)
};
using tiled_mlp_options = tiled_mlp_options_for<>;

namespace detail {
inline namespace TIGON_ABI {

/// Tokens of a shard, 1 or more.
constexpr std::size_t shard_rows(std::size_t tokens, std::size_t hidden, std::optional<std::size_t> shards) {
  const std::size_t wanted = shards ? *shards : gemm_detail::ceil_div(tokens, std::max<std::size_t>(hidden, 1));
  return std::max<std::size_t>(gemm_detail::ceil_div(tokens, std::max<std::size_t>(wanted, 1)), 1);
}

}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::tiled_mlp, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T, element W, class Options>
  static void forward(in_matrix<T> x, mlp_weights<const W> w, matrix_view<T> y, const Options& opt, context& ctx) {
    const std::size_t shard = detail::shard_rows(x.rows, x.cols, opt.shards);
    for (std::size_t begin = 0; begin < x.rows; begin += shard) {
      const std::size_t rows = std::min(shard, x.rows - begin);
      kernel_for<op::mlp, B>::template forward<B, T, W>(x.rows_from(begin, rows), w, y.rows_from(begin, rows),
                                                        matrix_view<T>{}, opt.mlp, ctx);
    }
  }

  template <backend B, element T, element W, element G, class Options>
  static void backward(in_matrix<T> dy, in_matrix<T> x, mlp_weights<const W> w, matrix_view<T> dx, mlp_weights<G> dw,
                       const Options& opt, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t shard = detail::shard_rows(x.rows, x.cols, opt.shards);
    const std::size_t count = gemm_detail::ceil_div(x.rows, shard);
    constexpr bool wide = std::same_as<G, A>;
    using sums = detail::chunk_sums<row_backend<B>, A>;
    if (shard >= x.rows || !dw.any() || (wide && !sums::many(0, count, wide)))
      return shards<B, T>(dy, x, w, dx, dw, shard, opt.mlp, ctx);
    workspace::frame frame(ctx.workspace());
    const bool add = opt.mlp.dw == gradient::accumulate;
    const auto sum_of = [&](matrix_view<G> m) {
      if (m.data == nullptr) return sums();
      sums s(frame, m.rows * m.cols, count, wide);
      if constexpr (wide)
        s.begin(m.rows, m.cols, m, add);
      else
        s.begin(m.rows, m.cols, {}, add);
      return s;
    };
    sums gate = sum_of(dw.gate), up = sum_of(dw.up), down = sum_of(dw.down);
    sums gate_bias = sum_of(as_row(dw.gate_bias)), up_bias = sum_of(as_row(dw.up_bias)),
         down_bias = sum_of(as_row(dw.down_bias));
    auto of_shard = opt.mlp;
    for (std::size_t begin = 0; begin < x.rows; begin += shard) {
      const std::size_t rows = std::min(shard, x.rows - begin);
      const auto part = [=](auto m) { return m.data == nullptr ? m : m.rows_from(begin, rows); };
      bool more = false;  // of all alike
      const auto next = [&](sums& s) {
        if (!s) return matrix_view<A>{};
        const auto of = s.next(ctx);
        more = of.more;
        return of.sum;
      };
      const auto next_row = [&](sums& s) {
        const matrix_view<A> sum = next(s);
        return std::span<A>(sum.data, sum.cols);
      };
      const mlp_weights<A> to{next(gate),          next(up),          next(down),
                              next_row(gate_bias), next_row(up_bias), next_row(down_bias)};
      of_shard.dw = more ? gradient::accumulate : gradient::overwrite;
      kernel_for<op::mlp, B>::template backward<B, T, W, A>(part(dy), part(x), w, matrix_view<T>{}, part(dx), to,
                                                            of_shard, ctx);
    }
    if (gate) gate.finish(dw.gate, add, ctx);
    if (up) up.finish(dw.up, add, ctx);
    if (down) down.finish(dw.down, add, ctx);
    if (gate_bias) gate_bias.finish(as_row(dw.gate_bias), add, ctx);
    if (up_bias) up_bias.finish(as_row(dw.up_bias), add, ctx);
    if (down_bias) down_bias.finish(as_row(dw.down_bias), add, ctx);
  }

  /// Without tokens one empty shard, which writes the gradients of the weights.
  template <backend B, element T, element W, element G, class Options>
  static void shards(matrix_view<const T> dy, matrix_view<const T> x, mlp_weights<const W> w, matrix_view<T> dx,
                     mlp_weights<G> dw, std::size_t shard, Options opt, context& ctx) {
    std::size_t begin = 0;
    do {
      const std::size_t rows = std::min(shard, x.rows - begin);
      const auto part = [=](auto m) { return m.data == nullptr ? m : m.rows_from(begin, rows); };
      kernel_for<op::mlp, B>::template backward<B, T, W, G>(part(dy), part(x), w, matrix_view<T>{}, part(dx), dw, opt,
                                                            ctx);
      opt.dw = gradient::accumulate;
    } while ((begin += shard) < x.rows);
  }

  /// Bytes that forward (pass inference) and backward (pass recompute) take.
  template <backend B, element T, element W, element G>
  static std::size_t workspace_bytes(mlp_pass pass, std::size_t tokens, std::size_t hidden, std::size_t n,
                                     std::optional<std::size_t> shards, std::size_t workers, parameters of,
                                     bool biases) {
    using A = accumulator_t<T>;
    const std::size_t shard = detail::shard_rows(tokens, hidden, shards);
    const bool whole = shard >= tokens;
    const auto bytes_of = [=]<class D>(std::type_identity<D>) {
      const auto tokens_of = [=](std::size_t rows) {
        return mlp_workspace<B, T, W, D>(pass, rows, hidden, n, workers, of, biases);
      };
      return whole ? tokens_of(tokens) : std::max(tokens_of(shard), tokens_of((tokens - 1) % shard + 1));
    };
    constexpr bool wide = std::same_as<G, A>;
    using sums = detail::chunk_sums<row_backend<B>, A>;
    const std::size_t count = gemm_detail::ceil_div(tokens, shard);
    if (pass == mlp_pass::inference || of == parameters::frozen || whole || (wide && !sums::many(0, count, wide)))
      return bytes_of(std::type_identity<G>{});
    const std::size_t of_biases = biases ? 2 * sums::bytes(n, count, wide) + sums::bytes(hidden, count, wide) : 0;
    return 3 * sums::bytes(workspace::product(hidden, n), count, wide) + of_biases + bytes_of(std::type_identity<A>{});
  }
};

/// Bytes of workspace that tiled_mlp_forward takes on `workers` workers: ctx.executor().workers(). `biases`: with any.
template <class B = default_backend, element T, element W = T>
std::size_t tiled_mlp_workspace(std::size_t tokens, std::size_t hidden, std::size_t intermediate,
                                std::optional<std::size_t> shards = {}, std::size_t workers = 1, bool biases = false) {
  return kernel_for<op::tiled_mlp, B>::template workspace_bytes<B, T, W, W>(
      mlp_pass::inference, tokens, hidden, intermediate, shards, workers, parameters::trained, biases);
}
/// Bytes of workspace that tiled_mlp_backward takes, with all gradients, or without those of weights.
template <class B = default_backend, element T, element W = T, element G = W>
std::size_t tiled_mlp_backward_workspace(std::size_t tokens, std::size_t hidden, std::size_t intermediate,
                                         std::optional<std::size_t> shards = {}, std::size_t workers = 1,
                                         parameters of = parameters::trained, bool biases = false) {
  return kernel_for<op::tiled_mlp, B>::template workspace_bytes<B, T, W, G>(mlp_pass::recompute, tokens, hidden,
                                                                            intermediate, shards, workers, of, biases);
}

namespace detail {
inline namespace TIGON_ABI {
template <class B, element T, class Gate>
void expect_tiles(const expects& expect, const tiled_mlp_options_for<Gate>& opt) {
  mlp_gate_kernel<B, T, Gate>::check(expect, opt.mlp.gate);
  expect.option(!opt.shards || *opt.shards != 0, "shards", 0, "at least 1");
}
}  // namespace TIGON_ABI
}  // namespace detail

/// y from x and the weights. See tiled_mlp_options for the contract.
template <class B = default_backend, class T, class W, class Gate = mlp_gate>
void tiled_mlp_forward(in_matrix<T> x, mlp_weights<W> w, matrix_view<T> y, tiled_mlp_options_for<Gate> opt = {},
                       context& ctx = default_context()) {
  using E = gemm_detail::bare<W>;
  static_assert(gemm_detail::admits_types<B, T, E, T>());
  arguments args("tiled_mlp_forward");
  const std::size_t n = detail::declare_mlp<T, E>(args, x, w, opt.mlp);
  args.out("y", y, x.rows, x.cols);
  args.check();
  detail::expect_tiles<B, T>(args, opt);
  ctx.workspace().expect("tiled_mlp_forward", tiled_mlp_workspace<B, T, E>(x.rows, x.cols, n, opt.shards,
                                                                           ctx.executor().workers(), w.any_bias()));
  kernel_for<op::tiled_mlp, B>::template forward<B, T, E>(x, w, y, opt, ctx);
}

/// dx and the gradients of the weights from dy, x and the weights.
template <class B = default_backend, class T, class W, class G, class Gate = mlp_gate>
void tiled_mlp_backward(in_matrix<T> dy, in_matrix<T> x, mlp_weights<W> w, matrix_view<T> dx, mlp_weights<G> dw,
                        tiled_mlp_options_for<Gate> opt = {}, context& ctx = default_context()) {
  using E = gemm_detail::bare<W>;
  static_assert(gemm_detail::admits_types<B, T, E, G>());
  arguments args("tiled_mlp_backward");
  const std::size_t n = detail::declare_mlp_backward<T, E, G>(args, dy, x, w, nullptr, dx, dw, opt.mlp);
  args.check();
  detail::expect_tiles<B, T>(args, opt);
  ctx.workspace().expect("tiled_mlp_backward", tiled_mlp_backward_workspace<B, T, E, G>(
                                                   x.rows, x.cols, n, opt.shards, ctx.executor().workers(),
                                                   trained_if(dw.any()), w.any_bias() || dw.any_bias()));
  kernel_for<op::tiled_mlp, B>::template backward<B, T, E, G>(dy, x, w, dx, dw, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_TILED_MLP_HPP
