// A function of the caller's own on tiles of rows, forward and backward: what it computes in between never exists for
// all rows.
#ifndef TIGON_OPS_TILED_HPP
#define TIGON_OPS_TILED_HPP

#include <tigon/ops/mlp/row_tiles.hpp>

namespace tigon {

/// f on one tile of rows after the other.
///
///   tile t: rows [t c, (t + 1) c), c = ceil(rows / tiles); the last may be shorter, and there may be fewer
///   forward:  f(x of the tile, y of the tile, tile, ctx) for every tile
///   backward: f(dy of the tile, x of the tile, dx of the tile, sums, tile, ctx) for every tile; it computes again what
///             it needs of forward. sums.of[k] is where its share of dw[k] goes: written, or added with
///             gradient::accumulate in sums.mode.
///
/// f is any callable. Views are of the tile's rows; `tile` says which these are, and tile.of(m) has them of another
/// matrix. It may call operators with ctx, whose workers it has to itself: tiles come one after the other.
///
/// Formula    docs/formulas/tiled.md.
/// Shapes     x, dx [rows, m]; y, dy [rows, n]; dw[k] of any shape, a vector as a matrix of one row. Any extent may be
///            0; without rows f is called once, for no rows, so that it writes the sums.
/// Types      x, y, dw each any element type; all dw of one; sums.of in f32 (f64 for f64).
/// Precision  shares are summed in f32 (f64 for f64) and rounded once, with an error that does not grow with the tiles.
/// Writes     what f writes; dw is overwritten, or added to with gradient::accumulate. dx and any dw may have no
///            memory: f is given none then.
/// Aliasing   y may be x and dx may be dy or x, if f allows that. Otherwise no output shares an element with another
///            argument.
/// Memory     what f takes for a tile, `workspace` bytes; where dw has 16 bits, also f32 sums for all dw; of more than
///            64 tiles (4096 where they are large and dw has 16 bits) two more such sums. See tiled_workspace.
/// Threads    the same bits for any number of them, if f has; the number of tiles changes the last bits of dw.
/// Throws     tigon::error: shape, stride, alias, argument (tiles is 0), workspace; before the first write. What f
///            throws.
/// Max error  of the sums over tiles: f32 2.5e-6, bf16 4.1e-3, f16 7e-4, f64 5e-15 of the sum of magnitudes, for any
///            number of tiles (tests/ops/tiled_test.cpp).
///
/// ```cpp
/// std::vector<float> x(8 * 64, 0.5f), y(8 * 64), dx(8 * 64);
/// const tigon::matrix_view in(x.data(), 8, 64), out(y.data(), 8, 64), gradient(dx.data(), 8, 64);
/// const auto f = [](auto x, auto y, tigon::tile, tigon::context& ctx) { tigon::relu_squared_forward(x, y, {}, ctx); };
/// const auto df = [](auto dy, auto x, auto dx, tigon::tile, tigon::context& ctx) {
///   tigon::relu_squared_backward(dy, x, dx, {}, ctx);
/// };
/// tigon::tiled_forward(in, out, {.tiles = 4}, f);
/// tigon::tiled_backward(out, in, gradient, {.tiles = 4}, df);  // dy = y
/// ```
struct tiled_options {
  std::size_t tiles = 1;
  std::size_t workspace = 0;  ///< bytes that f takes from the workspace, for the largest tile
  gradient dw = gradient::overwrite;
};

/// Bytes of workspace that tiled_backward takes for gradients of type G with so many elements each, beside those of f.
template <class B = default_backend, element G, std::size_t N>
std::size_t tiled_workspace(std::size_t rows, std::size_t tiles, const std::size_t (&elements)[N]) {
  const std::size_t count = detail::ceil_div(rows, detail::tile_rows(rows, tiles));
  std::size_t bytes = 0;
  for (const std::size_t n : elements) bytes += detail::tiled_gradients<B, G, accumulator_t<G>>::bytes(n, count);
  return bytes;
}

namespace detail {
inline namespace TIGON_ABI {
inline void expect_tiles(const expects& expect, tiled_options opt) {
  expect.option(opt.tiles != 0, "tiles", 0, "at least 1");
}
}  // namespace TIGON_ABI
}  // namespace detail

/// y = f(x). See tiled_options for the contract.
template <class B = default_backend, class X, class Y, class F>
void tiled_forward(matrix_view<X> x, matrix_view<Y> y, tiled_options opt, F&& f, context& ctx = default_context<B>()) {
  static_assert(element<std::remove_const_t<X>> && element<Y>);
  arguments args("tiled_forward");
  args.in("x", x);
  args.out("y", y, x.rows, y.cols).may_be("x");
  args.check();
  detail::expect_tiles(args, opt);
  ctx.workspace().expect("tiled_forward", opt.workspace);
  detail::for_tiles(x.rows, detail::tile_rows(x.rows, opt.tiles),
                    [&](tile t) { f(matrix_view<const X>(t.of(x)), t.of(y), t, ctx); });
}

/// dx and dw from dy and x: tiled_backward(dy, x, dx, {dw, db}, opt, f, ctx). See tiled_options for the contract.
template <class B = default_backend, class Y, class X, class T, class G, std::size_t N, class F>
void tiled_backward(matrix_view<Y> dy, matrix_view<X> x, matrix_view<T> dx, const matrix_view<G> (&dw)[N],
                    tiled_options opt, F&& f, context& ctx = default_context<B>()) {
  static_assert(element<std::remove_const_t<X>> && element<std::remove_const_t<Y>> && element<T> && element<G>);
  using gradients = detail::tiled_gradients<B, G, accumulator_t<G>>;
  arguments args("tiled_backward");
  args.in("x", x);
  args.in("dy", dy, x.rows, dy.cols);
  args.optional_out("dx", dx, x.rows, x.cols).may_be("dy", "x");
  for (const matrix_view<G>& g : dw) args.optional_out("dw", g, g.rows, g.cols);
  args.check();
  detail::expect_tiles(args, opt);
  const std::size_t rows = detail::tile_rows(x.rows, opt.tiles), tiles = detail::ceil_div(x.rows, rows);
  std::size_t bytes = opt.workspace;
  for (const matrix_view<G>& g : dw)
    if (g.data != nullptr) bytes += gradients::bytes(g.rows * g.cols, tiles);
  ctx.workspace().expect("tiled_backward", bytes);
  gradients::run(x.rows, rows, dw, opt.dw, ctx, [&](tile t, const tile_sums<accumulator_t<G>, N>& sums) {
    f(matrix_view<const Y>(t.of(dy)), matrix_view<const X>(t.of(x)), t.of(dx), sums, t, ctx);
  });
}

/// dx alone: f(dy of the tile, x of the tile, dx of the tile, tile, ctx).
template <class B = default_backend, class Y, class X, class T, class F>
void tiled_backward(matrix_view<Y> dy, matrix_view<X> x, matrix_view<T> dx, tiled_options opt, F&& f,
                    context& ctx = default_context<B>()) {
  static_assert(element<std::remove_const_t<X>> && element<std::remove_const_t<Y>> && element<T>);
  arguments args("tiled_backward");
  args.in("x", x);
  args.in("dy", dy, x.rows, dy.cols);
  args.out("dx", dx, x.rows, x.cols).may_be("dy", "x");
  args.check();
  detail::expect_tiles(args, opt);
  ctx.workspace().expect("tiled_backward", opt.workspace);
  detail::for_tiles(x.rows, detail::tile_rows(x.rows, opt.tiles), [&](tile t) {
    f(matrix_view<const Y>(t.of(dy)), matrix_view<const X>(t.of(x)), t.of(dx), t, ctx);
  });
}

TIGON_EXPLAINS(tiled_forward)
TIGON_EXPLAINS(tiled_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_TILED_HPP
