// GroupNorm, PolyNorm, modulated RMSNorm, dynamic tanh.
#include <tigon/ops/dyt.hpp>
#include <tigon/ops/group_norm.hpp>
#include <tigon/ops/modulated_rms_norm.hpp>
#include <tigon/ops/poly_norm.hpp>

#include "declared.hpp"
#include "groups.hpp"

namespace tigon_torch {
namespace {

using backend = tigon::default_backend;

tigon::group_norm_options group_norm_of(std::size_t groups, std::size_t channels, double eps) {
  tigon::group_norm_options opt;
  opt.groups = groups, opt.channels = channels, opt.eps = eps;
  return opt;
}
void group_norm(const host& h, matrix x, vector w, vector b, matrix y, vector mean, vector rstd, std::size_t groups,
                std::size_t channels, double eps) {
  with_type<tigon::op::group_norm>("group_norm", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(h, [&](tigon::context& ctx) {
      tigon::group_norm_forward(view<const T>(x), view<const A>(w), view<const A>(b), view<T>(y), view<A>(mean),
                                view<A>(rstd), group_norm_of(groups, channels, eps), ctx);
    });
  });
}
void group_norm_backward(const host& h, matrix dy, matrix x, vector w, vector mean, vector rstd, matrix dx, vector dw,
                         vector db, std::size_t groups, std::size_t channels, double eps) {
  with_type<tigon::op::group_norm>("group_norm_backward", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const auto of = tigon::trained_if(dw.data != nullptr || db.data != nullptr);
    run(
        h, [&](const tigon::context&) { return tigon::group_norm_workspace<backend, T>(x.rows, channels, of); },
        [&](tigon::context& ctx) {
          tigon::group_norm_backward(view<const T>(dy), view<const T>(x), view<const A>(w), view<const A>(mean),
                                     view<const A>(rstd), tigon::norm_gradients{view<T>(dx), view<A>(dw), view<A>(db)},
                                     group_norm_of(groups, channels, eps), ctx);
        });
  });
}

void poly_norm(const host& h, matrix x, vector w, vector b, matrix y, vector rstd, double eps) {
  with_type<tigon::op::poly_norm>("poly_norm", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(h, [&](tigon::context& ctx) {
      tigon::poly_norm_forward(view<const T>(x), view<const A>(w), view<const A>(b), view<T>(y), view<A>(rstd), {eps},
                               ctx);
    });
  });
}
void poly_norm_backward(const host& h, matrix dy, matrix x, vector w, vector rstd, matrix dx, vector dw, vector db,
                        double eps) {
  with_type<tigon::op::poly_norm>("poly_norm_backward", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const auto of = tigon::trained_if(dw.data != nullptr || db.data != nullptr);
    run(
        h, [&](const tigon::context&) { return tigon::poly_norm_workspace<backend, T>(x.rows, of); },
        [&](tigon::context& ctx) {
          tigon::poly_norm_backward(view<const T>(dy), view<const T>(x), view<const A>(w), view<const A>(rstd),
                                    tigon::norm_gradients{view<T>(dx), view<A>(dw), view<A>(db)}, {eps}, ctx);
        });
  });
}

tigon::modulated_rms_norm_options modulated_of(std::size_t rows, std::size_t groups, int casting, double eps,
                                               double offset) {
  tigon::modulated_rms_norm_options opt;
  opt.eps = eps, opt.offset = offset, opt.casting = static_cast<tigon::casting>(casting);
  opt.group_rows = groups == 0 ? 0 : rows / groups;
  return opt;
}
void modulated_rms_norm(const host& h, matrix x, vector w, wide_matrix scale, wide_matrix shift, matrix y, vector rstd,
                        double eps, double offset, int casting) {
  with_type<tigon::op::modulated_rms_norm>("modulated_rms_norm", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::modulated_rms_norm_workspace<backend, T>(x.rows, x.cols, scale.rows, ctx);
        },
        [&](tigon::context& ctx) {
          tigon::modulated_rms_norm_forward(view<const T>(x), view<const A>(w), view<const A>(scale),
                                            view<const A>(shift), view<T>(y), view<A>(rstd),
                                            modulated_of(x.rows, scale.rows, casting, eps, offset), ctx);
        });
  });
}
void modulated_rms_norm_backward(const host& h, matrix dy, matrix x, vector w, wide_matrix scale, vector rstd,
                                 matrix dx, vector dw, wide_matrix dscale, wide_matrix dshift, double eps,
                                 double offset, int casting) {
  with_type<tigon::op::modulated_rms_norm>("modulated_rms_norm_backward", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::modulated_rms_norm_workspace<backend, T>(x.rows, x.cols, scale.rows, ctx,
                                                                 tigon::trained_if(dw.data != nullptr));
        },
        [&](tigon::context& ctx) {
          tigon::modulated_rms_norm_backward(
              view<const T>(dy), view<const T>(x), view<const A>(w), view<const A>(scale), view<const A>(rstd),
              tigon::modulated_rms_norm_gradients{view<T>(dx), view<A>(dw), view<A>(dscale), view<A>(dshift)},
              modulated_of(x.rows, scale.rows, casting, eps, offset), ctx);
        });
  });
}

void dyt(const host& h, matrix x, vector alpha, vector gamma, vector beta, matrix y) {
  with_type<tigon::op::dyt>("dyt", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(h, [&](tigon::context& ctx) {
      tigon::dyt_forward(view<const T>(x), view<const A>(alpha), view<const A>(gamma), view<const A>(beta), view<T>(y),
                         {}, ctx);
    });
  });
}
void dyt_backward(const host& h, matrix dy, matrix x, vector alpha, vector gamma, matrix dx, vector dalpha,
                  vector dgamma, vector dbeta) {
  with_type<tigon::op::dyt>("dyt_backward", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const auto of = tigon::trained_if(dalpha.data != nullptr || dgamma.data != nullptr || dbeta.data != nullptr);
    run(
        h, [&](const tigon::context&) { return tigon::dyt_workspace<backend, T>(x.rows, x.cols, of); },
        [&](tigon::context& ctx) {
          tigon::dyt_backward(view<const T>(dy), view<const T>(x), view<const A>(alpha), view<const A>(gamma),
                              tigon::dyt_gradients{view<T>(dx), view<A>(dalpha), view<A>(dgamma), view<A>(dbeta)}, {},
                              ctx);
        });
  });
}

}  // namespace

declared_operators declared_norms() {
  static constexpr declared_operator table[] = {
      declared<&group_norm, tigon::op::group_norm>("group_norm"),
      declared<&group_norm_backward, tigon::op::group_norm>("group_norm_backward"),
      declared<&poly_norm, tigon::op::poly_norm>("poly_norm"),
      declared<&poly_norm_backward, tigon::op::poly_norm>("poly_norm_backward"),
      declared<&modulated_rms_norm, tigon::op::modulated_rms_norm>("modulated_rms_norm"),
      declared<&modulated_rms_norm_backward, tigon::op::modulated_rms_norm>("modulated_rms_norm_backward"),
      declared<&dyt, tigon::op::dyt>("dyt"),
      declared<&dyt_backward, tigon::op::dyt>("dyt_backward"),
  };
  return declared_in(table);
}

}  // namespace tigon_torch
