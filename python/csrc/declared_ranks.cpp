// Losses of a vocabulary that is split over ranks.
#include <tigon/losses/vocab_parallel_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_cross_entropy.hpp>
#include <tigon/losses/vocab_parallel_fused_linear_scaled_cross_entropy.hpp>

#include "declared.hpp"
#include "groups.hpp"
#include "linear.hpp"
#include "process_group.hpp"

namespace tigon_torch {
namespace {

using backend = tigon::default_backend;
using split_op = tigon::op::vocab_parallel_cross_entropy;
using split_linear_op = tigon::op::vocab_parallel_fused_linear_cross_entropy;
using split_scaled_op = tigon::op::vocab_parallel_fused_linear_scaled_cross_entropy;

tigon::vocab_parallel_cross_entropy_options smoothed(std::int64_t ignore_index, double smoothing, bool megatron,
                                                     bool partition) {
  tigon::vocab_parallel_cross_entropy_options opt;
  opt.ignore_index = ignore_index, opt.label_smoothing = smoothing;
  opt.formula = megatron ? tigon::smoothing_formula::megatron : tigon::smoothing_formula::pytorch;
  opt.classes = partition ? tigon::smoothing_classes::partition : tigon::smoothing_classes::global;
  return opt;
}
void vocab_parallel_cross_entropy(const host& h, matrix logits, id_vector target, vector loss, vector top, vector rest,
                                  std::int64_t group, std::size_t rank, std::size_t ranks, std::size_t first,
                                  std::size_t vocab, std::int64_t ignore_index, double smoothing, bool megatron,
                                  bool partition) {
  with_type<split_op>("vocab_parallel_cross_entropy", logits.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const auto opt = smoothed(ignore_index, smoothing, megatron, partition);
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::vocab_parallel_cross_entropy_workspace<backend, T>(logits.rows, logits.cols, ranks, opt, ctx);
        },
        [&](tigon::context& ctx) {
          tigon::vocab_parallel_cross_entropy_forward(process_group(h, group, rank, ranks), view<const T>(logits),
                                                      {first, vocab}, view<const std::int64_t>(target),
                                                      {view<A>(loss), view<A>(top), view<A>(rest)}, opt, ctx);
        });
  });
}
void vocab_parallel_cross_entropy_backward(const host& h, vector upstream, matrix logits, id_vector target, vector top,
                                           vector rest, matrix dlogits, std::int64_t, std::size_t, std::size_t,
                                           std::size_t first, std::size_t vocab, std::int64_t ignore_index,
                                           double smoothing, bool megatron, bool partition) {
  with_type<split_op>("vocab_parallel_cross_entropy_backward", logits.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(h, [&](tigon::context& ctx) {
      tigon::vocab_parallel_cross_entropy_backward(view<const T>(logits), {first, vocab},
                                                   view<const std::int64_t>(target), view<const A>(upstream),
                                                   {view<const A>(top), view<const A>(rest)}, view<T>(dlogits),
                                                   smoothed(ignore_index, smoothing, megatron, partition), ctx);
    });
  });
}

struct shard_of_layer {
  linear_layer layer;
  std::size_t first, vocab, ranks;

  template <class T>
  tigon::linear_shard<T> view_of() const {
    return {layer_of<T>(layer), tigon::vocab_shard{first, vocab}};
  }
  template <class T>
  std::size_t bytes(const tigon::linear_gradients<T>& to, const tigon::context& ctx) const {
    return tigon::vocab_parallel_fused_linear_cross_entropy_workspace<backend, T>(
        layer.x.rows, layer.x.cols, layer.w.rows, vocab, ranks, ctx, to.of_weights());
  }
};
struct shard_numbers {
  int reduction;
  std::int64_t ignore_index;
  double smoothing, z_loss, softcap;
  bool token_scaling;
};
tigon::vocab_parallel_fused_linear_cross_entropy_options shard_options(const shard_numbers& n) {
  tigon::vocab_parallel_fused_linear_cross_entropy_options opt;
  opt.loss.ignore_index = n.ignore_index, opt.loss.reduction = static_cast<tigon::reduction>(n.reduction);
  opt.loss.label_smoothing = n.smoothing, opt.loss.lse_square_scale = n.z_loss, opt.loss.softcap = n.softcap;
  opt.token_scaling = n.token_scaling;
  return opt;
}
void vocab_parallel_fused_linear_cross_entropy(const host& h, matrix x, matrix w, narrow_vector bias, id_vector target,
                                               vector loss, matrix dx, matrix dw, narrow_vector db, std::int64_t group,
                                               std::size_t rank, std::size_t ranks, std::size_t first,
                                               std::size_t vocab, std::int64_t ignore_index, int reduction,
                                               double smoothing, double z_loss, double softcap, bool token_scaling) {
  const shard_of_layer shard{{x, w, bias}, first, vocab, ranks};
  with_type<split_linear_op>("vocab_parallel_fused_linear_cross_entropy", x.of, [&]<class T>() {
    const auto to = gradients_of<T>({dx, dw, db});
    run(
        h, [&](const tigon::context& ctx) { return shard.bytes<T>(to, ctx); },
        [&](tigon::context& ctx) {
          tigon::vocab_parallel_fused_linear_cross_entropy_forward(
              process_group(h, group, rank, ranks), shard.view_of<T>(), view<const std::int64_t>(target),
              {view<tigon::accumulator_t<T>>(loss)}, to,
              shard_options({reduction, ignore_index, smoothing, z_loss, softcap, token_scaling}), tigon::absent, ctx);
        });
  });
}
void vocab_parallel_fused_linear_cross_entropy_backward(const host& h, vector upstream, matrix x, matrix w,
                                                        narrow_vector bias, id_vector target, matrix dx, matrix dw,
                                                        narrow_vector db, std::int64_t group, std::size_t rank,
                                                        std::size_t ranks, std::size_t first, std::size_t vocab,
                                                        std::int64_t ignore_index, int reduction, double smoothing,
                                                        double z_loss, double softcap, bool token_scaling) {
  const shard_of_layer shard{{x, w, bias}, first, vocab, ranks};
  with_type<split_linear_op>("vocab_parallel_fused_linear_cross_entropy_backward", x.of, [&]<class T>() {
    const auto to = gradients_of<T>({dx, dw, db});
    run(
        h, [&](const tigon::context& ctx) { return shard.bytes<T>(to, ctx); },
        [&](tigon::context& ctx) {
          tigon::vocab_parallel_fused_linear_cross_entropy_backward(
              process_group(h, group, rank, ranks), shard.view_of<T>(), view<const std::int64_t>(target),
              view<const tigon::accumulator_t<T>>(upstream), to,
              shard_options({reduction, ignore_index, smoothing, z_loss, softcap, token_scaling}), tigon::absent, ctx);
        });
  });
}

void vocab_parallel_scaled_cross_entropy(const host& h, matrix x, matrix w, narrow_vector bias, id_vector target,
                                         vector nll, vector entropy, std::int64_t group, std::size_t rank,
                                         std::size_t ranks, std::size_t first, std::size_t vocab,
                                         std::int64_t ignore_index, double temperature, bool) {
  const shard_of_layer shard{{x, w, bias}, first, vocab, ranks};
  with_type<split_scaled_op>("vocab_parallel_scaled_cross_entropy", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::vocab_parallel_fused_linear_scaled_cross_entropy_workspace<backend, T>(
              x.rows, x.cols, w.rows, vocab, ranks, ctx, tigon::parameters::frozen);
        },
        [&](tigon::context& ctx) {
          tigon::vocab_parallel_fused_linear_scaled_cross_entropy_forward(
              process_group(h, group, rank, ranks), shard.view_of<T>(), view<const std::int64_t>(target),
              {view<A>(nll), view<A>(entropy), {}}, {}, {temperature, ignore_index}, {}, ctx);
        });
  });
}
void vocab_parallel_scaled_cross_entropy_backward(const host& h, vector of_nll, vector of_entropy, matrix x, matrix w,
                                                  narrow_vector bias, id_vector target, matrix dx, matrix dw,
                                                  narrow_vector db, std::int64_t group, std::size_t rank,
                                                  std::size_t ranks, std::size_t first, std::size_t vocab,
                                                  std::int64_t ignore_index, double temperature, bool) {
  const shard_of_layer shard{{x, w, bias}, first, vocab, ranks};
  with_type<split_scaled_op>("vocab_parallel_scaled_cross_entropy_backward", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const auto to = gradients_of<T>({dx, dw, db});
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::vocab_parallel_fused_linear_scaled_cross_entropy_workspace<backend, T>(
              x.rows, x.cols, w.rows, vocab, ranks, ctx, to.of_weights());
        },
        [&](tigon::context& ctx) {
          tigon::vocab_parallel_fused_linear_scaled_cross_entropy_backward(
              process_group(h, group, rank, ranks), shard.view_of<T>(), view<const std::int64_t>(target),
              {view<const A>(of_nll), view<const A>(of_entropy)}, to, {temperature, ignore_index}, ctx);
        });
  });
}

}  // namespace

declared_operators declared_ranks() {
  static constexpr declared_operator table[] = {
      declared<&vocab_parallel_cross_entropy, split_op>("vocab_parallel_cross_entropy"),
      declared<&vocab_parallel_cross_entropy_backward, split_op>("vocab_parallel_cross_entropy_backward"),
      declared<&vocab_parallel_fused_linear_cross_entropy, split_linear_op>(
          "vocab_parallel_fused_linear_cross_entropy"),
      declared<&vocab_parallel_fused_linear_cross_entropy_backward, split_linear_op>(
          "vocab_parallel_fused_linear_cross_entropy_backward"),
      declared<&vocab_parallel_scaled_cross_entropy, split_scaled_op>("vocab_parallel_scaled_cross_entropy"),
      declared<&vocab_parallel_scaled_cross_entropy_backward, split_scaled_op>(
          "vocab_parallel_scaled_cross_entropy_backward"),
  };
  return declared_in(table);
}

}  // namespace tigon_torch
