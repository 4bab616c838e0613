// Gated MLP on shards of the tokens, recomputed in backward: the intermediate values never exist for all tokens.
#ifndef TIGON_OPS_TILED_MLP_HPP
#define TIGON_OPS_TILED_MLP_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/mlp/tiled_mlp_kernel.hpp>

#include <optional>

namespace tigon {

/// op::mlp of the backend, shard by shard.
///
///   shard s: tokens [s c, (s + 1) c), c = ceil(tokens / shards); the last may be shorter, and there may be fewer
///   forward: y of a shard is the mlp of its x;  backward: dx likewise, dwg, dwu and dwd are sums over the shards
///
/// Formula    docs/formulas/tiled_mlp.md.
/// Shapes     as mlp; nothing is saved but x. Tokens are all rows of x, whatever sequences they belong to.
/// Types      as mlp.
/// Precision  as mlp; gradients of weights are summed over the shards in f32 (f64 for f64) and rounded once.
/// Options    backward takes those of forward.
/// Writes     y; dx, gradients of weights and biases; a gradient whose view has no memory is not computed. Gradients of
///            weights are added to with gradient::accumulate.
/// Aliasing   forward: no overlap. backward: dx may be dy or x. Otherwise no output shares an element with another
///            argument; any layout.
/// Memory     what mlp takes for a shard: in forward a, intermediate values a token, in backward g, u and a; where dwg
///            has 16 bits and there is more than one shard, also f32 sums for all gradients of weights; of more than 64
///            shards (4096 where they are large and dwg has 16 bits) two more such sums. See tiled_mlp_workspace.
/// Threads    the same bits for any number of them; the number of shards changes the last bits.
/// Throws     tigon::error: as mlp, and argument (shards is 0); before the first write.
/// Max error  as mlp, for any number of shards (tests/ops/tiled_mlp_test.cpp).
///
/// ```cpp
/// std::vector<float> x(8 * 16, 0.5f), wg(32 * 16, 0.1f), wu(wg), wd(wg), y(x.size()), dx(x.size());
/// std::vector<float> dwg(wg.size()), dwu(wg.size()), dwd(wg.size());
/// const auto rows = [](auto& v, std::size_t cols) { return tigon::matrix_view(v.data(), v.size() / cols, cols); };
/// const tigon::mlp_weights w{rows(wg, 16), rows(wu, 16), rows(wd, 32)};
/// const tigon::mlp_weights dw{rows(dwg, 16), rows(dwu, 16), rows(dwd, 32)};
/// tigon::tiled_mlp_forward(rows(x, 16), w, rows(y, 16), {.shards = 4});
/// tigon::tiled_mlp_backward(rows(y, 16), rows(x, 16), w, rows(dx, 16), dw, {.shards = 4});  // dy = y
/// ```
template <class Gate>
struct tiled_mlp_options_for;

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
void expect_shards(const expects& expect, const tiled_mlp_options_for<Gate>& opt) {
  mlp_gate_kernel<B, T, Gate>::check(expect, opt.mlp.gate);
  expect.option(!opt.shards || *opt.shards != 0, "shards", 0, "at least 1");
}
}  // namespace TIGON_ABI
}  // namespace detail

/// y from x and the weights. See tiled_mlp_options for the contract.
template <class B = default_backend, class T, class W, class Gate = mlp_gate>
void tiled_mlp_forward(in_matrix<T> x, mlp_weights<W> w, matrix_view<T> y, tiled_mlp_options_for<Gate> opt = {},
                       context& ctx = default_context<B>()) {
  using E = gemm_detail::bare<W>;
  static_assert(gemm_detail::admits_types<B, T, E, T>());
  arguments args("tiled_mlp_forward");
  const std::size_t n = detail::declare_mlp<T, E>(args, x, w, opt.mlp);
  args.out("y", y, x.rows, x.cols);
  args.check();
  detail::expect_shards<B, T>(args, opt);
  ctx.workspace().expect("tiled_mlp_forward", tiled_mlp_workspace<B, T, E>(x.rows, x.cols, n, opt.shards,
                                                                           ctx.executor().workers(), w.any_bias()));
  kernel_for<op::tiled_mlp, B>::template forward<B, T, E>(x, w, y, opt, ctx);
}

/// dx and the gradients of the weights from dy, x and the weights.
template <class B = default_backend, class T, class W, class G, class Gate = mlp_gate>
void tiled_mlp_backward(in_matrix<T> dy, in_matrix<T> x, mlp_weights<W> w, matrix_view<T> dx, mlp_weights<G> dw,
                        tiled_mlp_options_for<Gate> opt = {}, context& ctx = default_context<B>()) {
  using E = gemm_detail::bare<W>;
  static_assert(gemm_detail::admits_types<B, T, E, G>());
  arguments args("tiled_mlp_backward");
  const std::size_t n = detail::declare_mlp_backward<T, E, G>(args, dy, x, w, nullptr, dx, dw, opt.mlp);
  args.check();
  detail::expect_shards<B, T>(args, opt);
  ctx.workspace().expect("tiled_mlp_backward", tiled_mlp_backward_workspace<B, T, E, G>(
                                                   x.rows, x.cols, n, opt.shards, ctx.executor().workers(),
                                                   trained_if(dw.any()), w.any_bias() || dw.any_bias()));
  kernel_for<op::tiled_mlp, B>::template backward<B, T, E, G>(dy, x, w, dx, dw, opt, ctx);
}

TIGON_EXPLAINS(tiled_mlp_forward)
TIGON_EXPLAINS(tiled_mlp_backward)

}  // namespace tigon

#include <tigon/ops/mlp.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_TILED_MLP_HPP
