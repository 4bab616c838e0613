// Cross entropy of logits, and of a linear layer's output.
#include <tigon/losses/cross_entropy.hpp>
#include <tigon/losses/fused_linear_cross_entropy.hpp>

#include "declared.hpp"
#include "groups.hpp"
#include "linear.hpp"

namespace tigon_torch {
namespace {

tigon::cross_entropy_options options(std::int64_t ignore_index, int reduction, double smoothing, double z_loss,
                                     double softcap) {
  tigon::cross_entropy_options opt;
  opt.ignore_index = ignore_index, opt.reduction = static_cast<tigon::reduction>(reduction);
  opt.label_smoothing = smoothing, opt.lse_square_scale = z_loss, opt.softcap = softcap;
  return opt;
}
template <class A>
tigon::cross_entropy_metrics<A> metrics(vector z_loss, vector accuracy, id_vector predicted) {
  tigon::cross_entropy_metrics<A> to;
  to.z_loss = view<A>(z_loss), to.token_accuracy = view<A>(accuracy);
  to.predicted_tokens = view<std::int64_t>(predicted);
  return to;
}

/// The last number says which metrics are wanted, which their memory says, too.
void cross_entropy(const host& h, matrix logits, id_vector target, vector weight, vector loss, vector z_loss_part,
                   vector accuracy, id_vector predicted, std::int64_t ignore_index, int reduction, double smoothing,
                   double z_loss, double softcap, int) {
  with_type<tigon::op::cross_entropy>("cross_entropy", logits.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::cross_entropy_workspace<tigon::default_backend, T>(logits.rows, logits.cols, ctx);
        },
        [&](tigon::context& ctx) {
          tigon::cross_entropy_forward(view<const T>(logits), view<const std::int64_t>(target), view<A>(loss),
                                       tigon::matrix_view<T>{},
                                       options(ignore_index, reduction, smoothing, z_loss, softcap),
                                       view<const A>(weight), metrics<A>(z_loss_part, accuracy, predicted), ctx);
        });
  });
}

void cross_entropy_backward(const host& h, vector upstream, matrix logits, id_vector target, vector weight,
                            matrix dlogits, std::int64_t ignore_index, int reduction, double smoothing, double z_loss,
                            double softcap, int) {
  with_type<tigon::op::cross_entropy>("cross_entropy_backward", logits.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::cross_entropy_workspace<tigon::default_backend, T>(logits.rows, logits.cols, ctx);
        },
        [&](tigon::context& ctx) {
          tigon::cross_entropy_backward_recompute(
              view<const T>(logits), view<const std::int64_t>(target), view<const A>(upstream), view<T>(dlogits),
              options(ignore_index, reduction, smoothing, z_loss, softcap), view<const A>(weight), ctx);
        });
  });
}

/// door(layer, labels, gradients, options, class weight, ctx) with memory for it.
template <class Door>
void of_layer(const char* op, const host& h, const linear_layer& l, const linear_gradients& to,
              const tigon::fused_linear_cross_entropy_options& opt, Door door) {
  with_type<tigon::op::fused_linear_cross_entropy>(op, l.x.of, [&]<class T>() {
    const auto gradients = gradients_of<T>(to);
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::fused_linear_cross_entropy_workspace<tigon::default_backend, T>(l.x.rows, l.x.cols, l.w.rows,
                                                                                        ctx, gradients.of_weights());
        },
        [&](tigon::context& ctx) { door(layer_of<T>(l), gradients, opt, ctx); });
  });
}

void fused_linear_cross_entropy(const host& h, matrix x, matrix w, narrow_vector bias, id_vector target, vector weight,
                                vector loss, vector z_loss_part, vector accuracy, id_vector predicted, matrix dx,
                                matrix dw, narrow_vector db, std::int64_t ignore_index, int reduction, double smoothing,
                                double z_loss, double softcap, bool token_scaling, int) {
  of_layer("fused_linear_cross_entropy", h, {x, w, bias}, {dx, dw, db},
           {options(ignore_index, reduction, smoothing, z_loss, softcap), token_scaling},
           [&]<class T>(const tigon::linear_layer<T>& layer, const tigon::linear_gradients<T>& gradients,
                        const auto& opt, tigon::context& ctx) {
             using A = tigon::accumulator_t<T>;
             tigon::fused_linear_cross_entropy_forward(layer, view<const std::int64_t>(target),
                                                       {view<A>(loss), metrics<A>(z_loss_part, accuracy, predicted)},
                                                       gradients, opt, view<const A>(weight), {}, ctx);
           });
}

void fused_linear_cross_entropy_backward(const host& h, vector upstream, matrix x, matrix w, narrow_vector bias,
                                         id_vector target, vector weight, matrix dx, matrix dw, narrow_vector db,
                                         std::int64_t ignore_index, int reduction, double smoothing, double z_loss,
                                         double softcap, bool token_scaling, int) {
  of_layer("fused_linear_cross_entropy_backward", h, {x, w, bias}, {dx, dw, db},
           {options(ignore_index, reduction, smoothing, z_loss, softcap), token_scaling},
           [&]<class T>(const tigon::linear_layer<T>& layer, const tigon::linear_gradients<T>& gradients,
                        const auto& opt, tigon::context& ctx) {
             using A = tigon::accumulator_t<T>;
             tigon::fused_linear_cross_entropy_backward(layer, view<const std::int64_t>(target),
                                                        view<const A>(upstream), gradients, opt, view<const A>(weight),
                                                        ctx);
           });
}

/// A gradient that was made in forward times its upstream gradient, in place: on CUDA, where the host does not look at
/// a number.
void times_upstream([[maybe_unused]] const host& h, [[maybe_unused]] vector upstream,
                    [[maybe_unused]] matrix gradient) {
#if TIGON_TORCH_CUDA
  with_type<tigon::op::cross_entropy>("times_upstream", gradient.of, [&]<class T>() {
    run(h, [&](tigon::context& ctx) { times_upstream<T>(gradient, upstream, ctx); });
  });
#endif
}
constexpr declared_operator times_upstream_on_cuda() {
  using of = unpacked<&times_upstream>;
  return {"times_upstream", of::all, 0, TIGON_TORCH_CUDA ? &of::run : nullptr};
}

}  // namespace

declared_operators declared_cross_entropies() {
  static constexpr declared_operator table[] = {
      times_upstream_on_cuda(),
      declared<&cross_entropy, tigon::op::cross_entropy>("cross_entropy"),
      declared<&cross_entropy_backward, tigon::op::cross_entropy>("cross_entropy_backward"),
      declared<&fused_linear_cross_entropy, tigon::op::fused_linear_cross_entropy>("fused_linear_cross_entropy"),
      declared<&fused_linear_cross_entropy_backward, tigon::op::fused_linear_cross_entropy>(
          "fused_linear_cross_entropy_backward"),
  };
  return declared_in(table);
}

}  // namespace tigon_torch
