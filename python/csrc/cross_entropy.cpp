// Cross entropy of logits, and of a linear layer's output.
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/losses/fused_linear_cross_entropy.hpp>

#include "groups.hpp"
#include "linear.hpp"

namespace tigon_torch {
namespace {

tigon::cross_entropy_options options(const cross_entropy_options& o) {
  tigon::cross_entropy_options opt;
  opt.ignore_index = o.ignore_index, opt.reduction = static_cast<tigon::reduction>(o.reduce);
  opt.label_smoothing = o.label_smoothing, opt.lse_square_scale = o.z_loss, opt.softcap = o.softcap;
  return opt;
}

void cross_entropy(const host& h, matrix logits, vector target, vector loss, const cross_entropy_options& o) {
  with_type("cross_entropy", logits.of, [&]<class T>() {
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::cross_entropy_workspace<tigon::default_backend, T>(logits.rows, logits.cols, ctx);
        },
        [&](tigon::context& ctx) {
          tigon::cross_entropy_forward(view<const T>(logits), view<const std::int64_t>(target),
                                       view<tigon::accumulator_t<T>>(loss), tigon::matrix_view<T>{}, options(o),
                                       tigon::absent, {}, ctx);
        });
  });
}

void cross_entropy_backward(const host& h, matrix logits, vector target, vector upstream, matrix dlogits,
                            const cross_entropy_options& o) {
  with_type("cross_entropy_backward", logits.of, [&]<class T>() {
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::cross_entropy_workspace<tigon::default_backend, T>(logits.rows, logits.cols, ctx);
        },
        [&](tigon::context& ctx) {
          tigon::cross_entropy_backward_recompute(view<const T>(logits), view<const std::int64_t>(target),
                                                  view<const tigon::accumulator_t<T>>(upstream), view<T>(dlogits),
                                                  options(o), tigon::absent, ctx);
        });
  });
}

/// The loss and the gradients that have memory; or, with an upstream gradient and no loss, those gradients.
void fused_linear_cross_entropy(const host& h, const linear_layer& l, vector target, vector upstream, vector loss,
                                const linear_gradients& to, const cross_entropy_options& o) {
  with_type("fused_linear_cross_entropy", l.x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const auto layer = layer_of<T>(l);
    const auto gradients = gradients_of<T>(to);
    const tigon::fused_linear_cross_entropy_options opt{options(o)};
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::fused_linear_cross_entropy_workspace<tigon::default_backend, T>(l.x.rows, l.x.cols, l.w.rows,
                                                                                        ctx, gradients.of_weights());
        },
        [&](tigon::context& ctx) {
          const auto labels = view<const std::int64_t>(target);
          if (loss.data != nullptr)
            tigon::fused_linear_cross_entropy_forward(layer, labels, {view<A>(loss)}, gradients, opt, tigon::absent, {},
                                                      ctx);
          else
            tigon::fused_linear_cross_entropy_backward(layer, labels, view<const A>(upstream), gradients, opt,
                                                       tigon::absent, ctx);
        });
  });
}

}  // namespace

const cross_entropy_kernels* cross_entropies() {
  static constexpr cross_entropy_kernels table{&cross_entropy, &cross_entropy_backward, &fused_linear_cross_entropy};
  return &table;
}

}  // namespace tigon_torch
