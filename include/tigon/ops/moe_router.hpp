// Router of a mixture of experts: which experts a token chooses, and with which weights, forward and backward.
#ifndef TIGON_OPS_MOE_ROUTER_HPP
#define TIGON_OPS_MOE_ROUTER_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/ops/moe/moe_router_kernel.hpp>

namespace tigon {

/// The k experts of every token with the highest scores.
///
///   s[e] = softmax(logits[t])[e], or sigmoid(logits[t,e]), or sqrt(softplus(logits[t,e])), softplus(z) = log(1 + e^z)
///   indices[t] = the k experts with the largest s[e] + bias[e], the largest first, of the groups that are kept
///   weights[t,j] = scale * s[e] / sum over the k chosen of s,   or scale * s[e];   e = indices[t,j]
///   d = scale * dweights[t],   w = weights[t] / scale,   D = sum over j of w d; 0 without softmax if not normalised
///   dlogits[t,e] = w (d - D) l where e was chosen;  l = 1 with softmax, 1 - s[e] with sigmoid,
///                  sigmoid(z) / (2 softplus(z)), z = logits[t,e], with sqrt_softplus;
///                  elsewhere 0, or -s[e] D with a softmax that is not normalised
///
/// `groups` of experts beside each other, e / (experts / groups) that of expert e, have as score the sum of their two
/// largest s[e] + bias[e], or the largest. The `kept_groups` groups with the largest scores are kept.
///
/// Formula    docs/formulas/moe.md.
/// Shapes     logits, dlogits [tokens, experts]; bias [experts] or `absent`; indices, weights, dweights [tokens, k].
///            tokens and k may be 0, k <= experts in the groups that are kept.
/// Types      logits and dlogits one of f32, bf16, f16, f64; bias any one, weights and dweights any one (f64 only with
///            f64); indices std::int32_t or std::int64_t.
/// Precision  f32 (f64 for f64), one rounding at weights and dlogits.
/// Order      ties: the lower index first, of groups too. Without a bias the logits are compared, which have the order
///            of their scores, with one s + bias as it was computed. Sums of two scores are compared as they were
///            computed, those of a softmax without a bias as logarithms. A NaN comes before all numbers, and so does
///            its group, so that a bad logit is not passed over.
/// Options    backward takes those of forward; groups have no part in it.
/// Writes     indices, weights; dlogits. The bias decides the choice alone: it has no gradient here, and no part in
///            weights.
/// Aliasing   forward: no overlap. backward: dlogits may be logits. Otherwise no output shares an element with another
///            argument; any layout.
/// Throws     tigon::error: shape, stride, alias, argument (scale is outside option_range, groups is 0 or does not
///            divide experts, kept_groups is 0 or above groups, k is above the experts in kept_groups groups),
///            workspace, and index (in every build) for an index outside [0, experts) or twice in a token, in backward;
///            before the first write.
/// Edges      a logit of -inf has score 0; where all that were chosen have, their weights and gradients are 0. It is
///            chosen before an expert of a group that is not kept. A NaN, and with softmax +inf, makes NaN of all
///            weights of its token that depend on it; with sqrt_softplus +inf has weight +inf, normalised NaN.
///            Normalised weights are exact where the scores themselves underflow.
/// Max error  f32 2e-6, bf16 8e-3 of |reference| + its root mean square, both ways (tests/ops/moe_router_test.cpp).
///
/// ```cpp
/// std::vector<float> logits(4 * 8), weights(4 * 2), dlogits(logits);
/// std::vector<std::int32_t> experts(4 * 2);
/// for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 8);
/// const tigon::matrix_view in(logits.data(), 4, 8), gradient(dlogits.data(), 4, 8), weight(weights.data(), 4, 2);
/// const tigon::matrix_view chosen(experts.data(), 4, 2);
/// tigon::moe_router_forward(in, tigon::absent, chosen, weight);
/// tigon::moe_router_backward(weight, in, chosen, gradient);  // dweights = weights
/// ```
struct moe_router_options;

/// Bytes of workspace that moe_router_forward and moe_router_backward take.
template <class B = default_backend, class T>
std::size_t moe_router_workspace(std::size_t experts, const context& ctx = default_context<B>()) {
  return simd::scratch_workspace<B, accumulator_t<T>>(experts, 3, ctx);
}

namespace detail {
inline namespace TIGON_ABI {
template <class A>
void expect_choices(const expects& expect, std::size_t k, std::size_t experts, const moe_router_options& opt) {
  expect.that(k <= experts, error_code::argument, "indices", "of more columns than there are experts",
              "a token to choose an expert once");
  expect.finite<A>("scale", opt.scale);
  expect.option(opt.groups != 0 && experts % opt.groups == 0, "groups", static_cast<double>(opt.groups),
                "at least 1, and a divisor of the number of experts");
  expect.option(opt.kept_groups != 0 && opt.kept_groups <= opt.groups, "kept_groups",
                static_cast<double>(opt.kept_groups), "at least 1, and at most groups");
  expect.that(k <= opt.kept_groups * (experts / opt.groups), error_code::argument, "indices",
              "of more columns than there are experts in the groups that are kept",
              "kept_groups * experts / groups at most");
}
template <token_id I>
void expect_distinct(std::string_view op, matrix_view<const I> indices) {
  for (std::size_t t = 0; t < indices.rows; ++t)
    for (std::size_t j = 0; j < indices.cols; ++j)
      for (std::size_t i = 0; i < j; ++i)
        if (indices.row(t)[i] == indices.row(t)[j])
          fail_argument(error_code::index, op, "indices[" + std::to_string(t) + ", " + std::to_string(j) + "]",
                        std::to_string(indices.row(t)[j]) + " again", "a token to choose an expert once");
}
}  // namespace TIGON_ABI
}  // namespace detail

/// indices and weights from logits. See moe_router_options for the contract.
template <class B = default_backend, class T, parameter S, class I, class R>
void moe_router_forward(matrix_view<T> logits, const S& bias, matrix_view<I> indices, matrix_view<R> weights,
                        moe_router_options opt = {}, context& ctx = default_context<B>()) {
  using E = std::remove_const_t<T>;
  static_assert(admits<B, E>() && admits<B, R>());
  static_assert(token_id<I>, "tigon: indices of experts are std::int32_t or std::int64_t");
  const auto add = as_in_vector<E>(bias);
  using P = detail::view_element_t<decltype(add)>;
  static_assert(admits_parameter<E, decltype(add)>() && admits_parameter<E, vector_view<R>>());
  arguments args("moe_router_forward");
  args.in("logits", logits);
  args.optional_in("bias", add, logits.cols);
  args.out("indices", indices, logits.rows, indices.cols);
  args.out("weights", weights, logits.rows, indices.cols);
  detail::expect_choices<accumulator_t<E>>(args, indices.cols, logits.cols, opt);
  args.check();
  ctx.workspace().expect("moe_router_forward", moe_router_workspace<B, E>(logits.cols, ctx));
  kernel_for<op::moe_router, B>::template forward<B, E, P, I, R>(logits, add, indices, weights, opt, ctx);
}

/// dlogits from dweights, and the logits and indices of forward. See moe_router_options for the contract.
template <class B = default_backend, class R, class T, class I>
void moe_router_backward(matrix_view<R> dweights, in_matrix<T> logits, matrix_view<I> indices, matrix_view<T> dlogits,
                         moe_router_options opt = {}, context& ctx = default_context<B>()) {
  using D = std::remove_const_t<R>;
  using J = std::remove_const_t<I>;
  static_assert(admits<B, T>() && admits<B, D>() && admits_parameter<T, vector_view<D>>());
  static_assert(token_id<J>, "tigon: indices of experts are std::int32_t or std::int64_t");
  arguments args("moe_router_backward");
  args.in("logits", logits);
  args.in("indices", indices, logits.rows, indices.cols);
  args.in("dweights", dweights, logits.rows, indices.cols);
  args.out("dlogits", dlogits, logits.rows, logits.cols).may_be("logits");
  detail::expect_choices<accumulator_t<T>>(args, indices.cols, logits.cols, opt);
  args.check();
  detail::expect_experts<J>("moe_router_backward", indices, logits.cols);
  detail::expect_distinct<J>("moe_router_backward", indices);
  ctx.workspace().expect("moe_router_backward", moe_router_workspace<B, T>(logits.cols, ctx));
  kernel_for<op::moe_router, B>::template backward<B, T, J, D>(dweights, logits, indices, dlogits, opt, ctx);
}

TIGON_EXPLAINS(moe_router_forward)
TIGON_EXPLAINS(moe_router_backward)

}  // namespace tigon

#include <tigon/ops/moe_routing.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_MOE_ROUTER_HPP
