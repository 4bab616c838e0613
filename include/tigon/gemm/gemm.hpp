// The matrix product: its public functions.
#ifndef TIGON_GEMM_GEMM_HPP
#define TIGON_GEMM_GEMM_HPP

#include <tigon/core/arguments.hpp>
#include <tigon/gemm/kernel.hpp>

#include <string>

namespace tigon {

namespace gemm_detail {
inline namespace TIGON_ABI {

/// m, n, k as the first operand and c have them.
struct extents {
  std::size_t m, n, k;
  constexpr extents at_least(gemm_extents of) const { return {std::max(m, of.rows), n, std::max(k, of.depth)}; }
};

/// Declares op(a) and the numbers of a product.
template <class TA, class TC>
extents declare(arguments& args, matrix_view<TA> a, matrix_view<TC> c, gemm_options opt) {
  using A = accumulator_t<bare<TC>>;
  const extents e{c.rows, c.cols, cols_of(a, opt.a)};
  args.in("a", a, opt.a == transpose::no ? e.m : e.k, opt.a == transpose::no ? e.k : e.m);
  args.finite<A>("alpha", opt.alpha);
  args.finite<A>("beta", opt.beta);
  return e;
}

template <class T>
void declare_second(arguments& args, matrix_view<T> b, transpose t, extents e) {
  args.in("b", b, t == transpose::no ? e.k : e.n, t == transpose::no ? e.n : e.k);
}

}  // namespace TIGON_ABI
}  // namespace gemm_detail

/// c from a and b, with a bias and an epilogue. See gemm_options for the contract, no_epilogue for the callable.
template <class B = default_backend, class TA, class TB, class TC, parameter Bias, class Epilogue>
void gemm(matrix_view<TA> a, matrix_view<TB> b, matrix_view<TC> c, const Bias& bias, const Epilogue& epilogue,
          gemm_options opt = {}, context& ctx = default_context<B>()) {
  using A = gemm_detail::bare<TA>;
  using W = gemm_detail::bare<TB>;
  static_assert(gemm_detail::admits_types<B, A, W, TC>());
  const in_vector<TC> add = as_in_vector<TC>(bias);
  arguments args("gemm");
  const auto e = gemm_detail::declare(args, a, c, opt);
  gemm_detail::declare_second(args, b, opt.b, e);
  args.optional_in("bias", add, e.n);
  args.out("c", c);
  args.check();
  const auto whole = e.at_least(opt.cut_as);
  ctx.workspace().expect("gemm", gemm_workspace<B, A, W, TC>(whole.m, whole.n, whole.k, ctx.executor().workers()));
  kernel_for<op::gemm, B>::template forward<B, A, W, TC>(a, {b}, add, c, epilogue, opt, ctx);
}

/// c from a and b. See gemm_options for the contract.
template <class B = default_backend, class TA, class TB, class TC>
void gemm(matrix_view<TA> a, matrix_view<TB> b, matrix_view<TC> c, gemm_options opt = {},
          context& ctx = default_context<B>()) {
  tigon::gemm<B>(a, b, c, absent, no_epilogue{}, opt, ctx);
}

/// c from a and a packed b; opt.b is not read, gemm_pack got it.
template <class B = default_backend, class TA, element TB, class TC, parameter Bias, class Epilogue>
void gemm(matrix_view<TA> a, packed_operand<TB> b, matrix_view<TC> c, const Bias& bias, const Epilogue& epilogue,
          gemm_options opt = {}, context& ctx = default_context<B>()) {
  using A = gemm_detail::bare<TA>;
  static_assert(gemm_detail::admits_types<B, A, TB, TC>());
  using K = kernel_for<op::gemm, B>;
  const in_vector<TC> add = as_in_vector<TC>(bias);
  arguments args("gemm");
  const auto e = gemm_detail::declare(args, a, c, opt);
  if (b.rows != e.k || b.cols != e.n)
    detail::fail_argument(error_code::shape, "gemm", "b", "packed from " + detail::shape_text(b.rows, b.cols),
                          detail::shape_text(e.k, e.n));
  if (b.layout != K::template layout<A, TB>)
    detail::fail_argument(error_code::state, "gemm", "b", "packed as \"" + std::string(b.layout) + '"',
                          std::string(1, '"').append(K::template layout<A, TB>) + '"');
  args.in("b", std::span(b.data, b.bytes));
  args.optional_in("bias", add, e.n);
  args.out("c", c);
  args.check();
  opt.cut_as.depth = 0;
  const auto whole = e.at_least(opt.cut_as);
  ctx.workspace().expect("gemm",
                         gemm_packed_workspace<B, A, TB, TC>(whole.m, whole.n, whole.k, ctx.executor().workers()));
  opt.b = b.stored;
  const std::byte nothing{};  // a packed b of no elements may have no memory
  K::template forward<B, A, TB, TC>(a, {{nullptr, e.k, e.n}, b.data != nullptr ? b.data : &nothing}, add, c, epilogue,
                                    opt, ctx);
}

template <class B = default_backend, class TA, element TB, class TC>
void gemm(matrix_view<TA> a, packed_operand<TB> b, matrix_view<TC> c, gemm_options opt = {},
          context& ctx = default_context<B>()) {
  tigon::gemm<B>(a, b, c, absent, no_epilogue{}, opt, ctx);
}

/// da and db, in the storage order of a and b, from dc. Either may be `absent`. See gemm_options for the contract.
template <class B = default_backend, class TC, class TA, class TB, class DA, class DB>
void gemm_backward(matrix_view<TC> dc, matrix_view<TA> a, matrix_view<TB> b, DA da, DB db,
                   gemm_backward_options opt = {}, context& ctx = default_context<B>()) {
  using A = gemm_detail::bare<TA>;
  using W = gemm_detail::bare<TB>;
  using C = gemm_detail::bare<TC>;
  static_assert(gemm_detail::admits_types<B, A, W, C>());
  matrix_view<A> out_a;
  matrix_view<W> out_b;
  if constexpr (!std::same_as<DA, absent_t>) out_a = da;
  if constexpr (!std::same_as<DB, absent_t>) out_b = db;
  arguments args("gemm_backward");
  args.in("dc", dc);
  const auto e = gemm_detail::declare(args, a, dc, {.alpha = opt.alpha, .a = opt.a});
  gemm_detail::declare_second(args, b, opt.b, e);
  if constexpr (!std::same_as<DB, absent_t>) args.out("db", out_b, b.rows, b.cols);
  if constexpr (!std::same_as<DA, absent_t>) args.out("da", out_a, a.rows, a.cols);
  args.check();
  ctx.workspace().expect("gemm_backward",
                         gemm_backward_workspace<B, A, W, C>(e.m, e.n, e.k, opt, ctx.executor().workers()));
  kernel_for<op::gemm, B>::template backward<B, C, A, W>(dc, a, b, out_a, out_b, opt, ctx);
}

TIGON_EXPLAINS(gemm)
TIGON_EXPLAINS(gemm_backward)

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_GEMM_GEMM_HPP
