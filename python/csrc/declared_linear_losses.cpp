// Losses of a linear layer's output that are neither cross entropy nor of sequences.
#include <tigon/losses/fused_linear_cosine_distillation.hpp>
#include <tigon/losses/fused_linear_jsd_distillation.hpp>
#include <tigon/losses/fused_linear_kl_div.hpp>
#include <tigon/losses/fused_linear_scaled_cross_entropy.hpp>

#include "declared.hpp"
#include "groups.hpp"
#include "labels.hpp"
#include "linear.hpp"

namespace tigon_torch {
namespace {

using backend = tigon::default_backend;
using scaled_op = tigon::op::fused_linear_scaled_cross_entropy;
using kl_div_op = tigon::op::fused_linear_kl_div;
using distillation_op = tigon::op::fused_linear_distillation;

/// nll and entropy of every row, each where it has memory.
void fused_linear_scaled_cross_entropy(const host& h, matrix x, matrix w, narrow_vector bias, id_vector target,
                                       vector nll, vector entropy, std::int64_t ignore_index, double temperature,
                                       bool) {
  with_type<scaled_op>("fused_linear_scaled_cross_entropy", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::fused_linear_scaled_cross_entropy_workspace<backend, T>(x.rows, x.cols, w.rows, ctx,
                                                                                tigon::parameters::frozen);
        },
        [&](tigon::context& ctx) {
          tigon::fused_linear_scaled_cross_entropy_forward(layer_of<T>({x, w, bias}), view<const std::int64_t>(target),
                                                           {view<A>(nll), view<A>(entropy), {}}, {},
                                                           {temperature, ignore_index}, {}, ctx);
        });
  });
}
void fused_linear_scaled_cross_entropy_backward(const host& h, vector of_nll, vector of_entropy, matrix x, matrix w,
                                                narrow_vector bias, id_vector target, matrix dx, matrix dw,
                                                narrow_vector db, std::int64_t ignore_index, double temperature, bool) {
  with_type<scaled_op>("fused_linear_scaled_cross_entropy_backward", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const auto to = gradients_of<T>({dx, dw, db});
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::fused_linear_scaled_cross_entropy_workspace<backend, T>(x.rows, x.cols, w.rows, ctx,
                                                                                to.of_weights());
        },
        [&](tigon::context& ctx) {
          tigon::fused_linear_scaled_cross_entropy_backward(layer_of<T>({x, w, bias}), view<const std::int64_t>(target),
                                                            {view<const A>(of_nll), view<const A>(of_entropy)}, to,
                                                            {temperature, ignore_index}, ctx);
        });
  });
}

tigon::fused_linear_kl_div_options kl_div_of(int reduction, std::int64_t ignore_index, bool log_target, double eps,
                                             double temperature) {
  tigon::fused_linear_kl_div_options opt;
  opt.reduction = static_cast<tigon::divergence_reduction>(reduction), opt.ignore_index = ignore_index;
  opt.log_target = log_target, opt.eps = eps, opt.temperature = temperature;
  return opt;
}
template <class T>
std::size_t kl_div_bytes(const matrix& x, const matrix& w, const tigon::linear_gradients<T>& to,
                         const tigon::context& ctx) {
  return tigon::fused_linear_kl_div_workspace<backend, T>(x.rows, x.cols, w.rows, ctx, to.of_weights());
}
void fused_linear_kl_div(const host& h, matrix x, matrix w, narrow_vector bias, matrix teacher, id_vector labels,
                         wide_matrix loss, matrix dx, matrix dw, narrow_vector db, int reduction,
                         std::int64_t ignore_index, bool log_target, double eps, double temperature) {
  with_type<kl_div_op>("fused_linear_kl_div", x.of, [&]<class T>() {
    const auto to = gradients_of<T>({dx, dw, db});
    run(
        h, [&](const tigon::context& ctx) { return kl_div_bytes<T>(x, w, to, ctx); },
        [&](tigon::context& ctx) {
          with_labels(labels, [&](auto ids) {
            tigon::fused_linear_kl_div_forward(layer_of<T>({x, w, bias}), view<const T>(teacher), ids,
                                               view<tigon::accumulator_t<T>>(loss), to,
                                               kl_div_of(reduction, ignore_index, log_target, eps, temperature), ctx);
          });
        });
  });
}
void fused_linear_kl_div_backward(const host& h, wide_matrix upstream, matrix x, matrix w, narrow_vector bias,
                                  matrix teacher, id_vector labels, matrix dx, matrix dw, narrow_vector db,
                                  int reduction, std::int64_t ignore_index, bool log_target, double eps,
                                  double temperature) {
  with_type<kl_div_op>("fused_linear_kl_div_backward", x.of, [&]<class T>() {
    const auto to = gradients_of<T>({dx, dw, db});
    run(
        h, [&](const tigon::context& ctx) { return kl_div_bytes<T>(x, w, to, ctx); },
        [&](tigon::context& ctx) {
          with_labels(labels, [&](auto ids) {
            tigon::fused_linear_kl_div_backward(layer_of<T>({x, w, bias}), view<const T>(teacher), ids,
                                                view<const tigon::accumulator_t<T>>(upstream), to,
                                                kl_div_of(reduction, ignore_index, log_target, eps, temperature), ctx);
          });
        });
  });
}

enum class distillation_kind : int { jsd, cosine };
struct distillation_numbers {
  distillation_kind kind;
  double weight_hard, weight_soft, beta, temperature;
  std::int64_t ignore_index;
};
/// A teacher whose logits have memory has no layer.
struct distillation {
  linear_layer student, teacher;
  matrix logits;
  id_vector target;
  linear_gradients to;
  distillation_numbers numbers;
};
struct distillation_results {
  vector loss, soft, hard;
};

template <class Options>
Options options_of(const distillation_numbers& n) {
  Options opt;
  opt.beta = n.beta;
  opt.distillation.weight_hard = n.weight_hard, opt.distillation.weight_soft = n.weight_soft;
  opt.distillation.temperature = n.temperature, opt.distillation.ignore_index = n.ignore_index;
  return opt;
}
/// Losses and gradients, or the gradients for an upstream gradient where there is no loss.
template <class T>
void distil(const distillation& d, double upstream, const distillation_results& to, tigon::context& ctx) {
  using A = tigon::accumulator_t<T>;
  const tigon::linear_layer<T> student = layer_of<T>(d.student);
  const tigon::distillation_teacher<T> teacher = d.logits.data != nullptr
                                                     ? tigon::distillation_teacher<T>(view<const T>(d.logits))
                                                     : tigon::distillation_teacher<T>(layer_of<T>(d.teacher));
  const tigon::linear_gradients<T> gradients = gradients_of<T>(d.to);
  const tigon::distillation_losses<A> losses{view<A>(to.loss), view<A>(to.soft), view<A>(to.hard)};
  const bool forward = to.loss.data != nullptr;
  const auto target = view<const std::int64_t>(d.target);
  if (d.numbers.kind == distillation_kind::jsd) {
    const auto opt = options_of<tigon::fused_linear_jsd_distillation_options>(d.numbers);
    if (forward)
      tigon::fused_linear_jsd_distillation_forward(student, teacher, target, losses, gradients, opt, ctx);
    else
      tigon::fused_linear_jsd_distillation_backward(student, teacher, target, upstream, gradients, opt, ctx);
  } else {
    const auto opt = options_of<tigon::fused_linear_cosine_distillation_options>(d.numbers);
    if (forward)
      tigon::fused_linear_cosine_distillation_forward(student, teacher, target, losses, gradients, opt, ctx);
    else
      tigon::fused_linear_cosine_distillation_backward(student, teacher, target, upstream, gradients, opt, ctx);
  }
}
void distil(const char* op, const host& h, const distillation& d, vector upstream, const distillation_results& to) {
  with_type<distillation_op>(op, d.student.x.of, [&]<class T>() {
    run(
        h,
        [&](const tigon::context& ctx) {
          const std::size_t vocab = d.logits.data != nullptr ? d.logits.cols : d.teacher.w.rows;
          return tigon::fused_linear_distillation_workspace<backend, T>(d.student.x.rows, d.student.x.cols,
                                                                        d.student.w.rows, d.teacher.x.cols, vocab, ctx,
                                                                        gradients_of<T>(d.to).of_weights());
        },
        [&](tigon::context& ctx) {
          const bool times = upstream.data != nullptr;
#if TIGON_TORCH_CUDA
          distil<T>(d, 1, to, ctx);
          if (times) times_upstream<T>(d.to, upstream, ctx);
#else
          distil<T>(d, times ? view<const tigon::accumulator_t<T>>(upstream)[0] : 1, to, ctx);
#endif
        });
  });
}

void fused_linear_distillation(const host& h, matrix x, matrix w, narrow_vector bias, matrix teacher_x,
                               matrix teacher_w, narrow_vector teacher_bias, matrix teacher_logits, id_vector target,
                               vector loss, vector soft, vector hard, matrix dx, matrix dw, narrow_vector db, int kind,
                               double weight_hard, double weight_soft, double beta, double temperature,
                               std::int64_t ignore_index) {
  const distillation_numbers numbers{
      static_cast<distillation_kind>(kind), weight_hard, weight_soft, beta, temperature, ignore_index};
  distil("fused_linear_distillation", h,
         {{x, w, bias}, {teacher_x, teacher_w, teacher_bias}, teacher_logits, target, {dx, dw, db}, numbers}, {},
         {loss, soft, hard});
}
void fused_linear_distillation_backward(const host& h, vector upstream, matrix x, matrix w, narrow_vector bias,
                                        matrix teacher_x, matrix teacher_w, narrow_vector teacher_bias,
                                        matrix teacher_logits, id_vector target, matrix dx, matrix dw, narrow_vector db,
                                        int kind, double weight_hard, double weight_soft, double beta,
                                        double temperature, std::int64_t ignore_index) {
  const distillation_numbers numbers{
      static_cast<distillation_kind>(kind), weight_hard, weight_soft, beta, temperature, ignore_index};
  distil("fused_linear_distillation_backward", h,
         {{x, w, bias}, {teacher_x, teacher_w, teacher_bias}, teacher_logits, target, {dx, dw, db}, numbers}, upstream,
         {});
}

}  // namespace

declared_operators declared_linear_losses() {
  static constexpr declared_operator table[] = {
      declared<&fused_linear_scaled_cross_entropy, scaled_op>("fused_linear_scaled_cross_entropy"),
      declared<&fused_linear_scaled_cross_entropy_backward, scaled_op>("fused_linear_scaled_cross_entropy_backward"),
      declared<&fused_linear_kl_div, kl_div_op>("fused_linear_kl_div"),
      declared<&fused_linear_kl_div_backward, kl_div_op>("fused_linear_kl_div_backward"),
      declared<&fused_linear_distillation, distillation_op>("fused_linear_distillation"),
      declared<&fused_linear_distillation_backward, distillation_op>("fused_linear_distillation_backward"),
  };
  return declared_in(table);
}

}  // namespace tigon_torch
