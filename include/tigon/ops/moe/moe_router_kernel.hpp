// The generic kernel of moe_router.
#ifndef TIGON_OPS_MOE_MOE_ROUTER_KERNEL_HPP
#define TIGON_OPS_MOE_MOE_ROUTER_KERNEL_HPP

#include <tigon/ops/moe/moe_router_options.hpp>
#include <tigon/ops/moe/moe_routing_kernel.hpp>
#include <tigon/ops/moe/router_scores.hpp>

namespace tigon {

template <>
struct kernel<op::moe_router, backends::generic> {
  template <class>
  using saved = no_state;

  template <backend B, element T, element P, token_id I, element R>
  static void forward(in_matrix<T> logits, in_vector<P> bias, matrix_view<I> indices, matrix_view<R> weights,
                      moe_router_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const router_score score = opt.score;
    const bool soft = score == router_score::softmax, biased = bias.data != nullptr;
    const bool all = soft && (biased || !opt.normalise);
    const A scale = static_cast<A>(opt.scale);
    const std::size_t k = indices.cols;
    for_rows<B, A>(ctx, logits.rows, logits.cols, {.scratch = 3}, [=] TIGON_FN(auto row) {
      const vector_view<A> key = row.scratch(0), weight = row.scratch(1), of_groups = row.scratch(2);
      const auto whole = all ? detail::row_scores<A>::of(row, logits) : detail::row_scores<A>();
      if (!biased)
        row.map(reads(logits), writes(key), [](auto z) { return z; });
      else if (soft)
        row.map(reads(logits, bias), writes(key), [=](auto z, auto b) { return whole.score(z) + b; });
      else if (score == router_score::sigmoid)
        row.map(reads(logits, bias), writes(key), [](auto z, auto b) { return simd::sigmoid(z) + b; });
      else
        row.map(reads(logits, bias), writes(key), [](auto z, auto b) { return detail::sqrt_softplus(z) + b; });
      if (!row.first()) return;
      I* chosen = indices.row(row.i);
      const detail::chosen_scores<A> scores{score, opt.normalise, whole};
      const detail::expert_choice<A> choice{scores, biased, opt.groups, opt.kept_groups, opt.group_score};
      choice.choose(key.data, row.cols, of_groups.data, chosen, k);
      detail::take_chosen(logits.row(row.i), chosen, k, weight.data);
      scores.weigh(weight.data, k);
      detail::put_scaled(weight.data, k, scale, weights.row(row.i));
    });
  }

  template <backend B, element T, token_id I, element R>
  static void backward(in_matrix<R> dweights, in_matrix<T> logits, matrix_view<const I> indices, matrix_view<T> dlogits,
                       moe_router_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const bool all = opt.score == router_score::softmax && !opt.normalise;
    const A scale = static_cast<A>(opt.scale);
    const std::size_t k = indices.cols;
    for_rows<B, A>(ctx, logits.rows, logits.cols, {.scratch = 3}, [=] TIGON_FN(auto row) {
      const vector_view<A> weight = row.scratch(0), d = row.scratch(1), slope = row.scratch(2);
      const I* chosen = indices.row(row.i);
      const auto whole = all ? detail::row_scores<A>::of(row, logits) : detail::row_scores<A>();
      const detail::chosen_scores<A> of{opt.score, opt.normalise, whole};
      A sum(0);
      if (row.first()) {
        detail::take_chosen(logits.row(row.i), chosen, k, weight.data);
        detail::take_chosen(logits.row(row.i), chosen, k, slope.data);
        detail::put_scaled(dweights.row(row.i), k, scale, d.data);
        of.weigh(weight.data, k);
        sum = of.differentiate(weight.data, d.data, slope.data, k);
        if (k != 0) d.data[0] = sum;
      }
      row.sync();  // the other workers read the sum
      if (!row.first() && k != 0) sum = d.data[0];
      if (all)
        row.map(reads(logits), writes(dlogits), [=](auto z) { return whole.score(z) * -sum; });
      else
        row.map(reads(constant(A(0))), writes(dlogits), [](auto zero) { return zero; });
      if (row.first()) detail::put_chosen(slope.data, chosen, k, dlogits.row(row.i));
    });
  }
};

}  // namespace tigon

#endif  // TIGON_OPS_MOE_MOE_ROUTER_KERNEL_HPP
