// Direct preference optimisation and its relatives, from hidden states.
#ifndef TIGON_LOSSES_FUSED_LINEAR_DPO_HPP
#define TIGON_LOSSES_FUSED_LINEAR_DPO_HPP

#include <tigon/losses/sequence/fused_linear_dpo_kernel.hpp>

namespace tigon {

/// Direct preference optimisation and its relatives on pairs of sequences. With xi = c - c0, nu = r - r0,
/// u = beta (xi - nu), s(x) = 1 / (1 + e^-x) and sp(x) = log(1 + e^x), where c and r are the log-probabilities of the
/// chosen and of the rejected sequence, and c0 and r0 those of the reference:
///
///   sigmoid    (1 - e) sp(-u) + e sp(u)                    e = label_smoothing
///   hinge      max(0, 1 - u)
///   exo_pair   KL((s(u), s(-u)) || (1 - e, e))
///   nca_pair   sp(-beta xi) + sp(beta xi) / 2 + sp(beta nu) / 2
///   robust     ((1 - e) sp(-u) - e sp(u)) / (1 - 2 e)
///   bco_pair   sp(-beta xi) + sp(beta nu)
///   sppo_hard  (xi - 1 / (2 beta))^2 + (nu + 1 / (2 beta))^2
///   apo_zero   s(-beta xi) + s(beta nu)
///   apo_down   s(beta xi) + s(-u)
///   discopop   (1 - h) sp(-u) + h e^-u,   h = s(u / discopop_tau)
///   ipo        (xi / n_c - nu / n_r - 1 / (2 beta))^2      n_c, n_r: tokens of the chosen and the rejected sequence
///
/// Everything else (shapes, memory, the nll) is as preference_options has it (losses/fused_linear_preference.hpp); the
/// derivatives are in docs/formulas/preference.md. Without a reference c0 = r0 = 0. label_smoothing is refused where
/// the form above has no e. h e^-u is one exponential, and e^-u alone is at most the largest f32.
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), w(100 * 16, 0.1f), dx(x), dw(w), loss(1);
/// const std::vector<std::int64_t> tokens{1, 2, 3, -100};  // a chosen sequence, then a rejected one
/// const tigon::matrix_view target(tokens.data(), 2, 2);
/// const auto rows = [](auto& v) { return tigon::matrix_view(v.data(), v.size() / 16, 16); };
/// const tigon::linear_layer layer{rows(x), rows(w)};
/// const tigon::linear_gradients gradients{rows(dx), rows(dw)};
/// const tigon::linear_layer reference = layer;
/// tigon::fused_linear_dpo_forward(layer, {target}, {loss}, gradients, {.beta = 0.1}, {reference});
/// ```
struct fused_linear_dpo_options;

namespace detail {
inline namespace TIGON_ABI {
template <class A>
void expect_dpo(std::string_view op, const fused_linear_dpo_options& opt) {
  const expects expect(op);
  const double e = opt.label_smoothing;
  expect.above_zero<A>("discopop_tau", opt.discopop_tau);
  const auto smoothing = [&](bool holds, const char* expected) {
    expect.number<A>(holds, "label_smoothing", e, expected);
  };
  switch (opt.loss) {
    case dpo_loss::sigmoid: return smoothing(e >= 0 && e <= 0.5, "a number from 0 to 1/2");
    case dpo_loss::robust: return smoothing(e >= 0 && e < 0.5, "at least 0 and below 1/2");
    case dpo_loss::exo_pair: return smoothing(e > 0 && e < 0.5, "above 0 and below 1/2");
    default: return smoothing(e == 0, "0: only sigmoid, robust and exo_pair have it");
  }
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Loss, results and all gradients in one call. See fused_linear_dpo_options
/// for the contract.
template <class B = default_backend, class T>
void fused_linear_dpo_forward(const linear_layer<T>& layer, const preference_batch& batch,
                              const std::type_identity_t<preference_results<accumulator_t<T>>>& to,
                              const std::type_identity_t<linear_gradients<T>>& gradients = {},
                              fused_linear_dpo_options opt = {},
                              const std::type_identity_t<reference_model<T>>& reference = {},
                              context& ctx = default_context<B>()) {
  static_assert(admits<B, T>());
  using K = kernel_for<op::fused_linear_dpo, B>;
  constexpr std::string_view op = "fused_linear_dpo_forward";
  detail::expect_dpo<accumulator_t<T>>(op, opt);
  const detail::dpo_pair f{opt};
  detail::pair_door<B, T>(op, &K::template forward<B, T>, f, {opt.beta, opt.compute_nll_loss, opt.average_log_prob},
                          {layer, batch, to, gradients, opt.pairs, reference}, ctx);
}

TIGON_EXPLAINS(fused_linear_dpo_forward)

}  // namespace tigon

#include <tigon/losses/fused_linear_preference.hpp>  // the public functions beside these, for callers

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_FUSED_LINEAR_DPO_HPP
