// Mixture of experts, of one rank and of several, and its router.
#include <tigon/ops/expert_parallel_moe.hpp>
#include <tigon/ops/moe.hpp>
#include <tigon/ops/moe_router.hpp>

#include "declared.hpp"
#include "groups.hpp"
#include "process_group.hpp"

namespace tigon_torch {
namespace {

using experts_options = tigon::moe_options_for<tigon::swiglu_options>;

struct experts_call {
  matrix x, gate_up, down, gate_up_bias, down_bias;
  id_vector indices;
  wide_matrix weights;

  tigon::moe_shape shape(std::size_t experts) const { return {x.rows, weights.cols, experts, x.cols, down.cols}; }
  template <class A>
  tigon::moe_choices<std::int64_t, A> choices() const {
    const std::size_t k = weights.cols;
    return {{static_cast<const std::int64_t*>(indices.data), weights.rows, k, k}, view<const A>(weights)};
  }
  template <class T>
  tigon::moe_weights<const T> experts(std::size_t count) const {
    return {view<const T>(gate_up), view<const T>(down), count, view<const T>(gate_up_bias), view<const T>(down_bias)};
  }
};
experts_options options_of(bool interleaved, double limit, double slope, double up_offset) {
  experts_options opt;
  opt.layout = interleaved ? tigon::gate_layout::interleaved : tigon::gate_layout::halves;
  opt.gate.limit = limit, opt.gate.slope = slope, opt.gate.up_offset = up_offset;
  return opt;
}

template <class T, class A = tigon::accumulator_t<T>>
tigon::moe_gradients<T, T, A> gradients_of_experts(matrix dx, matrix dgate_up, matrix ddown, wide_matrix dweights,
                                                   matrix dgate_up_bias, matrix ddown_bias) {
  return {view<T>(dx),       view<T>(dgate_up),      view<T>(ddown),
          view<A>(dweights), view<T>(dgate_up_bias), view<T>(ddown_bias)};
}

void moe(const host& h, matrix x, matrix gate_up, matrix down, matrix gate_up_bias, matrix down_bias, id_vector indices,
         wide_matrix weights, matrix y, matrix saved, std::size_t experts, bool interleaved, bool, double limit,
         double slope, double up_offset) {
  const experts_call c{x, gate_up, down, gate_up_bias, down_bias, indices, weights};
  with_type("moe", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const experts_options opt = options_of(interleaved, limit, slope, up_offset);
    const auto w = c.experts<T>(experts);
    const bool keep = saved.data != nullptr;
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::moe_workspace<tigon::default_backend, T>(
              keep ? tigon::moe_pass::forward : tigon::moe_pass::inference, c.shape(experts), ctx.executor().workers(),
              tigon::parameters::trained, w.any_bias());
        },
        [&](tigon::context& ctx) {
          tigon::moe_saved<T> memory{view<T>(saved), false};
          if (keep)
            tigon::moe_forward(view<const T>(x), c.choices<A>(), w, view<T>(y), memory, opt, ctx);
          else
            tigon::moe_forward_inference(view<const T>(x), c.choices<A>(), w, view<T>(y), opt, ctx);
        });
  });
}

void moe_backward(const host& h, matrix dy, matrix x, matrix gate_up, matrix down, matrix gate_up_bias,
                  matrix down_bias, id_vector indices, wide_matrix weights, matrix saved, matrix dx, matrix dgate_up,
                  matrix ddown, matrix dgate_up_bias, matrix ddown_bias, wide_matrix dweights, std::size_t experts,
                  bool interleaved, bool, double limit, double slope, double up_offset) {
  const experts_call c{x, gate_up, down, gate_up_bias, down_bias, indices, weights};
  with_type("moe_backward", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const auto w = c.experts<T>(experts);
    const auto to = gradients_of_experts<T>(dx, dgate_up, ddown, dweights, dgate_up_bias, ddown_bias);
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::moe_workspace<tigon::default_backend, T>(tigon::moe_pass::backward, c.shape(experts),
                                                                 ctx.executor().workers(), to.of_weights(),
                                                                 w.any_bias() || to.any_bias());
        },
        [&](tigon::context& ctx) {
          const tigon::moe_saved<T> memory{view<T>(saved), true};
          tigon::moe_backward(view<const T>(dy), view<const T>(x), c.choices<A>(), w, memory, to,
                              options_of(interleaved, limit, slope, up_offset), ctx);
        });
  });
}

/// Of the experts of this rank.
void expert_parallel_moe(const host& h, matrix x, matrix gate_up, matrix down, matrix gate_up_bias, matrix down_bias,
                         id_vector indices, wide_matrix weights, matrix y, std::int64_t group, std::size_t rank,
                         std::size_t ranks, std::size_t experts, bool interleaved, double limit, double slope,
                         double up_offset) {
  const experts_call c{x, gate_up, down, gate_up_bias, down_bias, indices, weights};
  with_type("expert_parallel_moe", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const auto w = c.experts<T>(experts);
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::expert_parallel_moe_workspace<tigon::default_backend, T>(
              tigon::moe_pass::inference, c.shape(experts), ranks, ctx.executor().workers(), tigon::parameters::trained,
              w.any_bias());
        },
        [&](tigon::context& ctx) {
          tigon::expert_parallel_moe_forward(process_group(h, group, rank, ranks), view<const T>(x), c.choices<A>(), w,
                                             view<T>(y), options_of(interleaved, limit, slope, up_offset), ctx);
        });
  });
}
void expert_parallel_moe_backward(const host& h, matrix dy, matrix x, matrix gate_up, matrix down, matrix gate_up_bias,
                                  matrix down_bias, id_vector indices, wide_matrix weights, matrix dx, matrix dgate_up,
                                  matrix ddown, matrix dgate_up_bias, matrix ddown_bias, wide_matrix dweights,
                                  std::int64_t group, std::size_t rank, std::size_t ranks, std::size_t experts,
                                  bool interleaved, double limit, double slope, double up_offset) {
  const experts_call c{x, gate_up, down, gate_up_bias, down_bias, indices, weights};
  with_type("expert_parallel_moe_backward", x.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    const auto w = c.experts<T>(experts);
    const auto to = gradients_of_experts<T>(dx, dgate_up, ddown, dweights, dgate_up_bias, ddown_bias);
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::expert_parallel_moe_workspace<tigon::default_backend, T>(
              tigon::moe_pass::recompute, c.shape(experts), ranks, ctx.executor().workers(), to.of_weights(),
              w.any_bias() || to.any_bias());
        },
        [&](tigon::context& ctx) {
          tigon::expert_parallel_moe_backward(process_group(h, group, rank, ranks), view<const T>(dy), view<const T>(x),
                                              c.choices<A>(), w, to, options_of(interleaved, limit, slope, up_offset),
                                              ctx);
        });
  });
}

struct router_numbers {
  int score;
  bool normalise;
  double scale;
  std::size_t groups, kept_groups;
  bool largest;
};
tigon::moe_router_options router_options(const router_numbers& n) {
  tigon::moe_router_options opt;
  opt.score = static_cast<tigon::router_score>(n.score);
  opt.normalise = n.normalise, opt.scale = n.scale, opt.groups = n.groups, opt.kept_groups = n.kept_groups;
  if (n.largest) opt.group_score = tigon::router_group_score::largest;
  return opt;
}
/// Which experts the tokens choose.
template <class I>
tigon::matrix_view<I> chosen(const id_vector& indices, const wide_matrix& like) {
  return {static_cast<I*>(indices.data), like.rows, like.cols, like.cols};
}
void moe_router(const host& h, matrix logits, vector bias, id_vector indices, wide_matrix weights, std::size_t,
                int score, bool normalise, double scale, std::size_t groups, std::size_t kept_groups, bool largest) {
  with_type("moe_router", logits.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::moe_router_workspace<tigon::default_backend, T>(logits.cols, ctx);
        },
        [&](tigon::context& ctx) {
          tigon::moe_router_forward(view<const T>(logits), view<const A>(bias), chosen<std::int64_t>(indices, weights),
                                    view<A>(weights),
                                    router_options({score, normalise, scale, groups, kept_groups, largest}), ctx);
        });
  });
}
void moe_router_backward(const host& h, wide_matrix dweights, matrix logits, id_vector indices, matrix dlogits,
                         std::size_t, int score, bool normalise, double scale, std::size_t groups,
                         std::size_t kept_groups, bool largest) {
  with_type("moe_router_backward", logits.of, [&]<class T>() {
    using A = tigon::accumulator_t<T>;
    run(
        h,
        [&](const tigon::context& ctx) {
          return tigon::moe_router_workspace<tigon::default_backend, T>(logits.cols, ctx);
        },
        [&](tigon::context& ctx) {
          tigon::moe_router_backward(view<const A>(dweights), view<const T>(logits),
                                     chosen<const std::int64_t>(indices, dweights), view<T>(dlogits),
                                     router_options({score, normalise, scale, groups, kept_groups, largest}), ctx);
        });
  });
}

}  // namespace

declared_operators declared_experts() {
  static constexpr declared_operator table[] = {
      declared<&moe>("moe"),
      declared<&moe_backward>("moe_backward"),
      declared<&moe_router>("moe_router"),
      declared<&moe_router_backward>("moe_router_backward"),
      declared<&expert_parallel_moe>("expert_parallel_moe"),
      declared<&expert_parallel_moe_backward>("expert_parallel_moe_backward"),
  };
  return declared_in(table);
}

}  // namespace tigon_torch
