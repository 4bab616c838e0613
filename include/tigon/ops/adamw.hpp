// AdamW with clipping by the norm of all gradients: the norm, then one pass over memory.
#ifndef TIGON_OPS_ADAMW_HPP
#define TIGON_OPS_ADAMW_HPP

#include <tigon/ops/optimizer/adamw_kernel.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace tigon {

/// norm = |gradient_scale| sqrt(sum over all parameters of g^2),   c = gradient_scale min(1, max_norm / norm)
/// m = beta1 m + (1 - beta1) c g,   v = beta2 v + (1 - beta2) (c g)^2
/// w = w - learning_rate (mh / (sqrt(vh) + eps) + weight_decay decay w),   mh = m / (1 - beta1^step),   vh likewise
///
/// Formula    docs/formulas/adamw.md; Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019. That of
///            torch.optim.AdamW; of torch.nn.utils.clip_grad_norm_ but for the 1e-6 that it adds to the norm.
/// Shapes     a list of parameters (adamw_parameter), each w, g, m, v and perhaps `rounded` of one size. The list, and
///            a parameter, may be empty.
/// Types      all w of a list have one type, all g have one, and so on. w: f32, bf16, f16, f64. g: any of them, f64
///            only with f64. m and v: f32 or bf16, f64 with f64. rounded: bf16 or f16, of w in f32.
/// Precision  f32 (f64 for f64), one rounding at m, v, w and rounded. w is computed from m and v before they are
///            rounded, and `rounded` from w before w is rounded. The norm is summed in f64, in an order that depends on
///            the sizes of the parameters alone. Roundings are to nearest; with stochastic_rounding those to bf16 of w,
///            m and v are to either neighbour, with the number itself as their mean. Random bits depend on seed, step,
///            place of the parameter in the list, and place of the element.
/// Writes     w, m, v, rounded: one pass over memory after the norm, which reads g.
/// Aliasing   no output shares an element with another argument, also of another parameter; any layout.
/// Throws     tigon::error: shape, alias, argument (a negative option, a beta of 1 or more, step 0; a number outside
///            option_range, or a factor made of them beyond it), workspace; before the first write.
/// Edges      A NaN or an infinity in any g makes the norm NaN or infinite. With skip_non_finite nothing is written
///            then. Otherwise, as in PyTorch: without max_norm only the element's own m, v and w are lost; with it all
///            of them where the norm is NaN, and where it is infinite finite gradients count as 0. In f64 the norm
///            overflows from 1e154 on. Zero gradients and moments move w by its decay alone where eps > 0.
/// Max error  m, v, w: f32 3e-7, f64 1e-15 of |reference| + its root mean square, or of the magnitudes of its two terms
///            where they cancel; where they are stored as bf16 4e-3, by stochastic rounding 8e-3, as f16 6e-4. norm
///            1e-14 (tests/ops/adamw_test.cpp, tests/fuzz/products.cpp)
///
/// ```cpp
/// std::vector<float> w(1000, 1), dw(1000, 0.1f), m(1000), v(1000);
/// const tigon::adamw_parameter<float> parameters[] = {{w, dw, m, v}};
/// tigon::adamw(parameters, {.learning_rate = 1e-3, .step = 1});
/// ```
struct adamw_options;

/// Bytes of workspace that adamw takes for so many parameters, of so many elements together.
constexpr TIGON_INLINE std::size_t adamw_workspace(std::size_t parameters, std::size_t elements) {
  // Every parameter may have one task that is not full. What the checks take is given back before.
  const std::size_t tasks = elements / detail::adamw_task + parameters;
  const std::size_t kernels = workspace::bytes_for<std::size_t>(parameters + 1) + workspace::bytes_for<double>(tasks);
  const std::size_t checks = 2 * workspace::bytes_for<std::uintptr_t>(5, parameters);
  return kernels < checks ? checks : kernels;
}

namespace detail {
inline namespace TIGON_ABI {
/// The norm if it is wanted, and the step unless it is skipped; returns the norm.
template <class B, class P>
double adamw_call(const char* op, std::span<const P> list, const adamw_options& opt, const double* known, bool steps,
                  context& ctx) {
  static_assert(admits_adamw<B, P>());
  std::size_t elements = 0;
  for (const P& p : list) elements += p.w.size();
  expect_adamw_options<P>(op, opt);
  ctx.workspace().expect(op, adamw_workspace(list.size(), elements));
  if constexpr (!host_memory<B>) {
    context& host = default_context();  // the checks loop on it
    host.workspace().expect(op, adamw_workspace(list.size(), elements));
    expect_adamw_parameters(op, list, opt, host);
    if (known == nullptr || *known <= std::numeric_limits<double>::max() || !opt.skip_non_finite)
      kernel_for<op::adamw, B>::template forward<B>(list, known, opt, ctx);
    return known != nullptr ? *known : std::numeric_limits<double>::quiet_NaN();
  } else {
    expect_adamw_parameters(op, list, opt, ctx);
    return adamw_step<B>(list, opt, known, steps, ctx);
  }
}
}  // namespace TIGON_ABI
}  // namespace detail

/// A step of all parameters, a contiguous range of adamw_parameter. Returns the norm of their gradients before
/// clipping: where it is not finite and skip_non_finite is set, nothing was written. In a device's memory, which the
/// host does not read, the norm stays there, and NaN is returned. See adamw_options for the contract.
template <class B = default_backend, class List>
double adamw(const List& parameters, adamw_options opt = {}, context& ctx = default_context<B>()) {
  using P = detail::adamw_parameter_of<List>;
  return detail::adamw_call<B, P>("adamw", parameters, opt, nullptr, true, ctx);
}

/// The norm alone, of gradient_scale g.
template <class B = default_backend, class List>
double adamw_norm(const List& parameters, adamw_options opt = {}, context& ctx = default_context<B>()) {
  static_assert(host_memory<B>,
                "tigon: the norm of gradients is in the memory of this backend, which the host does not read");
  using P = detail::adamw_parameter_of<List>;
  return detail::adamw_call<B, P>("adamw_norm", parameters, opt, nullptr, false, ctx);
}

/// A step with a norm that the caller knows, for example of several lists or ranks: the root of the sum of the squares
/// of theirs. g is read once. Returns the norm.
template <class B = default_backend, class List>
double adamw_with_norm(const List& parameters, double norm, adamw_options opt = {},
                       context& ctx = default_context<B>()) {
  using P = detail::adamw_parameter_of<List>;
  return detail::adamw_call<B, P>("adamw_with_norm", parameters, opt, &norm, true, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_ADAMW_HPP
