// Norms over the last axis.
#include <tigon/ops/fused_add_rms_norm.hpp>
#include <tigon/ops/layer_norm.hpp>
#include <tigon/ops/rms_norm.hpp>

#include "call.hpp"
#include "groups.hpp"

namespace tigon_torch {
namespace {

tigon::rms_norm_options options(norm_options o) {
  return {o.eps, o.offset, static_cast<tigon::casting>(o.cast), tigon::gradient::overwrite};
}

void rms_norm(const host& h, matrix x, vector w, matrix y, vector rstd, norm_options o) {
  with_type<tigon::op::rms_norm>("rms_norm", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    with_parameters<T>(w.of, [&]<class P>() {
      run(h, [&](tigon::context& ctx) {
        tigon::rms_norm_forward(view<const T>(x), view<const P>(w), view<T>(y), view<A>(rstd), options(o), ctx);
      });
    });
  });
}

void rms_norm_backward(const host& h, matrix dy, matrix x, vector w, vector rstd, matrix dx, vector dw,
                       norm_options o) {
  with_type<tigon::op::rms_norm>("rms_norm_backward", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const auto of = tigon::trained_if(dw.data != nullptr);
    with_parameters<T>(w.of, [&]<class P>() {
      run(
          h,
          [&](const tigon::context&) {
            return tigon::rms_norm_workspace<tigon::default_backend, T>(x.rows, x.cols, of);
          },
          [&](tigon::context& ctx) {
            tigon::rms_norm_backward(view<const T>(dy), view<const T>(x), view<const P>(w), view<const A>(rstd),
                                     view<T>(dx), view<P>(dw), options(o), ctx);
          });
    });
  });
}

void fused_add_rms_norm(const host& h, matrix x, matrix r, vector w, matrix y, matrix s, vector rstd, norm_options o) {
  with_type<tigon::op::fused_add_rms_norm>("fused_add_rms_norm", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    with_parameters<T>(w.of, [&]<class P>() {
      run(h, [&](tigon::context& ctx) {
        tigon::fused_add_rms_norm_forward(view<const T>(x), view<const T>(r), view<const P>(w), view<T>(y), view<T>(s),
                                          view<A>(rstd), options(o), ctx);
      });
    });
  });
}

void fused_add_rms_norm_backward(const host& h, matrix dy, matrix ds, matrix s, vector w, vector rstd, matrix dx,
                                 vector dw, norm_options o) {
  with_type<tigon::op::fused_add_rms_norm>("fused_add_rms_norm_backward", s.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const auto of = tigon::trained_if(dw.data != nullptr);
    with_parameters<T>(w.of, [&]<class P>() {
      run(
          h,
          [&](const tigon::context&) {
            return tigon::fused_add_rms_norm_workspace<tigon::default_backend, T>(s.rows, s.cols, of);
          },
          [&](tigon::context& ctx) {
            const std::span<P> weight_gradient = view<P>(dw);
            tigon::fused_add_rms_norm_backward(
                view<const T>(dy), view<const T>(ds), view<const T>(s), view<const P>(w), view<const A>(rstd),
                tigon::fused_add_rms_norm_gradients<T, std::span<P>>{view<T>(dx), weight_gradient, {}}, options(o),
                ctx);
          });
    });
  });
}

void layer_norm(const host& h, matrix x, vector w, vector b, matrix y, vector mean, vector rstd, double eps) {
  with_type<tigon::op::layer_norm>("layer_norm", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    with_parameters<T>(w.data != nullptr ? w.of : b.of, [&]<class P>() {
      run(h, [&](tigon::context& ctx) {
        tigon::layer_norm_forward(view<const T>(x), view<const P>(w), view<const P>(b), view<T>(y), view<A>(mean),
                                  view<A>(rstd), {.eps = eps}, ctx);
      });
    });
  });
}

void layer_norm_backward(const host& h, matrix dy, matrix x, vector w, vector mean, vector rstd, matrix dx, vector dw,
                         vector db) {
  with_type<tigon::op::layer_norm>("layer_norm_backward", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const auto of = tigon::trained_if(dw.data != nullptr || db.data != nullptr);
    with_parameters<T>(w.data != nullptr ? w.of : db.of, [&]<class P>() {
      run(
          h,
          [&](const tigon::context&) {
            return tigon::layer_norm_workspace<tigon::default_backend, T>(x.rows, x.cols, of);
          },
          [&](tigon::context& ctx) {
            tigon::layer_norm_backward(
                view<const T>(dy), view<const T>(x), view<const P>(w), view<const A>(mean), view<const A>(rstd),
                tigon::norm_gradients<T, std::span<P>, std::span<P>>{view<T>(dx), view<P>(dw), view<P>(db)}, {}, ctx);
          });
    });
  });
}

}  // namespace

const norm_kernels* norms() {
  static constexpr norm_kernels table{entry<tigon::op::rms_norm>(&rms_norm),
                                      entry<tigon::op::rms_norm>(&rms_norm_backward),
                                      entry<tigon::op::fused_add_rms_norm>(&fused_add_rms_norm),
                                      entry<tigon::op::fused_add_rms_norm>(&fused_add_rms_norm_backward),
                                      entry<tigon::op::layer_norm>(&layer_norm),
                                      entry<tigon::op::layer_norm>(&layer_norm_backward)};
  return &table;
}

}  // namespace tigon_torch
