// The generic kernel of tiled_mlp.
#ifndef TIGON_OPS_MLP_TILED_MLP_KERNEL_HPP
#define TIGON_OPS_MLP_TILED_MLP_KERNEL_HPP

#include <tigon/ops/mlp/mlp_kernel.hpp>
#include <tigon/ops/mlp/row_tiles.hpp>
#include <tigon/ops/mlp/tiled_mlp_options.hpp>

#include <optional>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
/// Tokens of a shard, 1 or more.
constexpr std::size_t shard_rows(std::size_t tokens, std::size_t hidden, std::optional<std::size_t> shards) {
  return tile_rows(tokens, shards ? *shards : ceil_div(tokens, std::max<std::size_t>(hidden, 1)));
}
}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::tiled_mlp, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T, element W, class Options>
  static void forward(in_matrix<T> x, mlp_weights<const W> w, matrix_view<T> y, const Options& opt, context& ctx) {
    if (x.rows == 0) return;
    detail::for_tiles(x.rows, detail::shard_rows(x.rows, x.cols, opt.shards), [&](tile shard) {
      kernel_for<op::mlp, B>::template forward<B, T, W>(shard.of(x), w, shard.of(y), matrix_view<T>{}, opt.mlp, ctx);
    });
  }

  template <backend B, element T, element W, element G, class Options>
  static void backward(in_matrix<T> dy, in_matrix<T> x, mlp_weights<const W> w, matrix_view<T> dx, mlp_weights<G> dw,
                       const Options& opt, context& ctx) {
    using A = accumulator_t<T>;
    const std::size_t rows = detail::shard_rows(x.rows, x.cols, opt.shards);
    if (rows >= x.rows)  // without tokens too, which writes the gradients of the weights
      return kernel_for<op::mlp, B>::template backward<B, T, W, G>(dy, x, w, matrix_view<T>{}, dx, dw, opt.mlp, ctx);
    const matrix_view<G> all[] = {
        dw.gate, dw.up, dw.down, as_row(dw.gate_bias), as_row(dw.up_bias), as_row(dw.down_bias)};
    detail::tiled_gradients<B, G, A>::run(
        x.rows, rows, all, opt.mlp.dw, ctx, [&](tile shard, const tile_sums<A, 6>& sums) {
          const auto bias = [&](std::size_t k) { return std::span<A>(sums.of[k].data, sums.of[k].cols); };
          auto of_shard = opt.mlp;
          of_shard.dw = sums.mode;
          kernel_for<op::mlp, B>::template backward<B, T, W, A>(
              shard.of(dy), shard.of(x), w, matrix_view<T>{}, shard.of(dx),
              mlp_weights<A>{sums.of[0], sums.of[1], sums.of[2], bias(3), bias(4), bias(5)}, of_shard, ctx);
        });
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
    if (pass == mlp_pass::inference || of == parameters::frozen || whole) return bytes_of(std::type_identity<G>{});
    using sums = detail::tiled_gradients<B, G, A>;
    const std::size_t count = detail::ceil_div(tokens, shard);
    const std::size_t of_biases = biases ? 2 * sums::bytes(n, count) + sums::bytes(hidden, count) : 0;
    return 3 * sums::bytes(workspace::product(hidden, n), count) + of_biases + bytes_of(std::type_identity<A>{});
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_MLP_TILED_MLP_KERNEL_HPP
