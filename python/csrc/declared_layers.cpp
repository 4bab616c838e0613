// Layers that are made of products: coefficients of hyper-connections, an MLP in tiles.
#include <tigon/ops/mhc_coeffs.hpp>
#include <tigon/ops/tiled_mlp.hpp>

#include "declared.hpp"
#include "groups.hpp"

namespace tigon_torch {
namespace {

using backend = tigon::default_backend;

struct mhc_numbers {
  std::size_t tmax;
  double rms_eps, pre_eps, sinkhorn_eps, post_mult;
};
tigon::mhc_coeffs_options mhc_of(const mhc_numbers& n) {
  tigon::mhc_coeffs_options opt;
  opt.tmax = n.tmax, opt.rms_eps = n.rms_eps, opt.pre_eps = n.pre_eps, opt.sinkhorn_eps = n.sinkhorn_eps;
  opt.post_mult = n.post_mult;
  return opt;
}
/// phi in the type of the sums.
void mhc_coeffs(const host& h, matrix x, wide_matrix phi, vector b, vector alpha, wide_matrix h_pre, wide_matrix h_post,
                wide_matrix h_res, wide_matrix mix, vector rstd, std::size_t streams, std::size_t tmax, double rms_eps,
                double pre_eps, double sinkhorn_eps, double post_mult) {
  static_assert(!backend::hyper_connections.keep_history, "no memory for it is made in Python");
  with_type<tigon::op::mhc_coeffs>("mhc_coeffs", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::mhc_coeffs_workspace<backend, T, A>(x.rows, x.cols / std::max<std::size_t>(streams, 1), streams,
                                                            ctx);
        },
        [&](tigon::context& ctx) {
          tigon::mhc_coeffs_forward(view<const T>(x),
                                    tigon::mhc_weights{view<const A>(phi), view<const A>(b), view<const A>(alpha)},
                                    tigon::mhc_coefficients<A>{view<A>(h_pre), view<A>(h_post), view<A>(h_res)},
                                    tigon::mhc_coeffs_saved<A>{view<A>(mix), view<A>(rstd)},
                                    mhc_of({tmax, rms_eps, pre_eps, sinkhorn_eps, post_mult}), ctx);
        });
  });
}
void mhc_coeffs_backward(const host& h, wide_matrix dh_pre, wide_matrix dh_post, wide_matrix dh_res, matrix x,
                         wide_matrix phi, vector b, vector alpha, wide_matrix mix, vector rstd, matrix dx,
                         wide_matrix dphi, vector db, vector dalpha, std::size_t streams, std::size_t tmax,
                         double rms_eps, double pre_eps, double sinkhorn_eps, double post_mult) {
  with_type<tigon::op::mhc_coeffs>("mhc_coeffs_backward", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const tigon::mhc_coeffs_wanted wanted{dx.data != nullptr, dphi.data != nullptr,
                                          db.data != nullptr || dalpha.data != nullptr};
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::mhc_coeffs_backward_workspace<backend, T, A, A>(
              x.rows, x.cols / std::max<std::size_t>(streams, 1), streams, tmax, wanted, ctx);
        },
        [&](tigon::context& ctx) {
          tigon::mhc_coeffs_backward(
              tigon::mhc_coefficients<const A>{view<const A>(dh_pre), view<const A>(dh_post), view<const A>(dh_res)},
              view<const T>(x), tigon::mhc_weights{view<const A>(phi), view<const A>(b), view<const A>(alpha)},
              tigon::mhc_coeffs_saved<const A>{view<const A>(mix), view<const A>(rstd)},
              tigon::mhc_coeffs_gradients{view<T>(dx), view<A>(dphi), view<A>(db), view<A>(dalpha)},
              mhc_of({tmax, rms_eps, pre_eps, sinkhorn_eps, post_mult}), ctx);
        });
  });
}

/// shards 0: as many as tigon chooses.
tigon::tiled_mlp_options_for<> tiles_of(bool geglu, std::size_t shards) {
  tigon::tiled_mlp_options_for<> opt;
  opt.mlp.gate = geglu ? tigon::mlp_gate::geglu : tigon::mlp_gate::swiglu;
  if (shards != 0) opt.shards = shards;
  return opt;
}
template <class E>
tigon::mlp_weights<E> weights_of(matrix gate, matrix up, matrix down) {
  return {view<E>(gate), view<E>(up), view<E>(down)};
}
void tiled_mlp(const host& h, matrix x, matrix gate, matrix up, matrix down, matrix y, bool geglu, std::size_t shards) {
  with_type<tigon::op::tiled_mlp>("tiled_mlp", x.of, [&]<class T>() {
    const auto opt = tiles_of(geglu, shards);
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::tiled_mlp_workspace<backend, T>(x.rows, x.cols, gate.rows, opt.shards,
                                                        ctx.executor().workers());
        },
        [&](tigon::context& ctx) {
          tigon::tiled_mlp_forward(view<const T>(x), weights_of<const T>(gate, up, down), view<T>(y), opt, ctx);
        });
  });
}
void tiled_mlp_backward(const host& h, matrix dy, matrix x, matrix gate, matrix up, matrix down, matrix dx,
                        matrix dgate, matrix dup, matrix ddown, bool geglu, std::size_t shards) {
  with_type<tigon::op::tiled_mlp>("tiled_mlp_backward", x.of, [&]<class T>() {
    const auto opt = tiles_of(geglu, shards);
    const auto to = weights_of<T>(dgate, dup, ddown);
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::tiled_mlp_backward_workspace<backend, T>(x.rows, x.cols, gate.rows, opt.shards,
                                                                 ctx.executor().workers(), tigon::trained_if(to.any()));
        },
        [&](tigon::context& ctx) {
          tigon::tiled_mlp_backward(view<const T>(dy), view<const T>(x), weights_of<const T>(gate, up, down),
                                    view<T>(dx), to, opt, ctx);
        });
  });
}

}  // namespace

declared_operators declared_layers() {
  static constexpr declared_operator table[] = {
      declared<&mhc_coeffs, tigon::op::mhc_coeffs>("mhc_coeffs"),
      declared<&mhc_coeffs_backward, tigon::op::mhc_coeffs>("mhc_coeffs_backward"),
      declared<&tiled_mlp, tigon::op::tiled_mlp>("tiled_mlp"),
      declared<&tiled_mlp_backward, tigon::op::tiled_mlp>("tiled_mlp_backward"),
  };
  return declared_in(table);
}

}  // namespace tigon_torch
