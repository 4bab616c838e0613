// AdamW with clipping by the norm of all gradients: the norm, then one pass over memory.
#ifndef TIGON_OPS_ADAMW_HPP
#define TIGON_OPS_ADAMW_HPP

#include <tigon/ops/optimizer/adamw_program.hpp>

#include <cmath>
#include <limits>
#include <type_traits>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {

/// Elements that one task takes, from the first of a parameter on. It decides which random bits an element gets.
inline constexpr std::size_t adamw_task = std::size_t{1} << 14;

/// The list, and the number of the first task of every parameter, of which there is one more.
template <class P>
struct adamw_tasks {
  const P* parameters;
  const std::size_t* first;
  std::size_t count;

  struct part {
    std::size_t parameter, begin, size;
  };
  /// The part of task i.
  TIGON_INLINE part of(std::size_t i) const {
    std::size_t low = 0, high = count;  // first[low] <= i < first[high]
    while (high - low > 1) {
      const std::size_t middle = low + (high - low) / 2;
      (first[middle] <= i ? low : high) = middle;
    }
    const std::size_t begin = (i - first[low]) * adamw_task, size = parameters[low].w.size();
    return {low, begin, size - begin < adamw_task ? size - begin : adamw_task};
  }
};

constexpr TIGON_INLINE std::size_t adamw_tasks_of(std::size_t size) {
  return size / adamw_task + (size % adamw_task != 0);
}

template <class T>
TIGON_INLINE matrix_view<T> part_of(std::span<T> all, std::size_t begin, std::size_t size) {
  return {all.data() + begin, 1, size};
}

}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::adamw, backends::generic> {
  using forward_only = void;

  /// The norm, of gradients that are not scaled yet. partials: a number for every task.
  template <backend B, class P>
  static double norm(detail::adamw_tasks<P> tasks, double* partials, context& ctx) {
    const std::size_t count = tasks.first[tasks.count];
    for_rows<with_row_tasks<B>, double>(ctx, count, detail::adamw_task, [=] TIGON_FN(auto row) {
      const auto part = tasks.of(row.i);
      const auto g = detail::part_of(tasks.parameters[part.parameter].g, part.begin, part.size);
      const double sum = row.on(0).narrow(part.size).sum(reads(in_f64(g)), [](auto x) { return x * x; });
      if (row.first()) partials[row.i] = sum;
    });
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += partials[i];
    return std::sqrt(sum);
  }

  template <backend B, class P>
  static void forward(detail::adamw_tasks<P> tasks, double norm, const adamw_options& opt, context& ctx) {
    constexpr bool some_bf16 = std::same_as<typename P::weight, bfloat16> || std::same_as<typename P::moment, bfloat16>;
    if constexpr (some_bf16)
      if (opt.stochastic_rounding) return run<B, true>(tasks, norm, opt, ctx);
    run<B, false>(tasks, norm, opt, ctx);
  }

  template <class B, bool Stochastic, class P>
  static void run(detail::adamw_tasks<P> tasks, double norm, const adamw_options& opt, context& ctx) {
    using A = accumulator_t<typename P::weight>;
    const detail::adamw_factors<A> all(opt, norm);
    const std::uint64_t seed = opt.seed, step = opt.step;
    for_rows<with_row_tasks<B>, A>(ctx, tasks.first[tasks.count], detail::adamw_task, [=] TIGON_FN(auto row) {
      const auto part = tasks.of(row.i);
      const P& p = tasks.parameters[part.parameter];
      const auto key = simd::random_key_of(seed, step, part.parameter, part.begin);
      const auto worker = row.on(0).narrow(part.size);
      const auto factors = all.decayed_by(p.decay);
      if constexpr (P::may_have_rounded)
        if (p.rounded.data() != nullptr) return update<Stochastic, true>(worker, p, part, factors, key);
      update<Stochastic, false>(worker, p, part, factors, key);
    });
  }

  template <bool Stochastic, bool Rounded, class Row, class P, class Part, class A>
  static TIGON_INLINE void update(const Row& row, const P& p, Part part, const detail::adamw_factors<A>& factors,
                                  simd::random_key key) {
    using program = detail::adamw_program<A, typename P::weight, typename P::moment, Rounded, Stochastic>;
    const program of{factors, key};
    const auto of_part = [=](auto span) TIGON_LAMBDA { return detail::part_of(span, part.begin, part.size); };
    const auto g = of_part(p.g);
    const auto m = of_part(p.m), v = of_part(p.v);
    const auto w = of_part(p.w);
    const auto map = [=](auto... x) TIGON_LAMBDA { return of.map(x...); };
    const auto run = [=](auto in) TIGON_LAMBDA {
      if constexpr (Rounded)
        row.map(in, writes(m, v, w, rows_of<typename P::rounded_type>{of_part(p.rounded), p.rounded.size_bytes()}),
                map);
      else
        row.map(in, writes(m, v, w), map);
    };
    if constexpr (Stochastic)
      run(reads(g, m, v, w, columns));
    else
      run(reads(g, m, v, w));
  }
};

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
  expect_adamw_parameters(op, list, opt, ctx);
  workspace::frame frame(ctx.workspace());
  auto* const first = frame.template take<std::size_t>(list.size() + 1);
  first[0] = 0;
  for (std::size_t i = 0; i < list.size(); ++i) first[i + 1] = first[i] + adamw_tasks_of(list[i].w.size());
  const adamw_tasks<P> tasks{list.data(), first, list.size()};
  using kernels = kernel_for<op::adamw, B>;
  double norm = 0;
  if (known != nullptr)
    norm = *known;
  else
    norm = std::fabs(opt.gradient_scale) *
           kernels::template norm<B>(tasks, frame.template take<double>(first[list.size()]), ctx);
  const bool finite = norm <= std::numeric_limits<double>::max();
  if (steps && (finite || !opt.skip_non_finite)) kernels::template forward<B>(tasks, norm, opt, ctx);
  return norm;
}

template <class List>
using adamw_parameter_of =
    std::remove_cv_t<std::remove_pointer_t<decltype(std::span(std::declval<const List&>()).data())>>;
}  // namespace TIGON_ABI
}  // namespace detail

/// A step of all parameters, a contiguous range of adamw_parameter. Returns the norm of their gradients before clipping:
/// where it is not finite and skip_non_finite is set, nothing was written. See adamw_options for the contract.
template <class B = default_backend, class List>
double adamw(const List& parameters, adamw_options opt = {}, context& ctx = default_context()) {
  using P = detail::adamw_parameter_of<List>;
  return detail::adamw_call<B, P>("adamw", parameters, opt, nullptr, true, ctx);
}

/// The norm alone, of gradient_scale g.
template <class B = default_backend, class List>
double adamw_norm(const List& parameters, adamw_options opt = {}, context& ctx = default_context()) {
  using P = detail::adamw_parameter_of<List>;
  return detail::adamw_call<B, P>("adamw_norm", parameters, opt, nullptr, false, ctx);
}

/// A step with a norm that the caller knows, for example of several lists or ranks: the root of the sum of the squares of
/// theirs. g is read once. Returns the norm.
template <class B = default_backend, class List>
double adamw_with_norm(const List& parameters, double norm, adamw_options opt = {}, context& ctx = default_context()) {
  using P = detail::adamw_parameter_of<List>;
  return detail::adamw_call<B, P>("adamw_with_norm", parameters, opt, &norm, true, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_ADAMW_HPP
