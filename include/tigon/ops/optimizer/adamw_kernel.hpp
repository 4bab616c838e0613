// The generic kernel of adamw.
#ifndef TIGON_OPS_OPTIMIZER_ADAMW_KERNEL_HPP
#define TIGON_OPS_OPTIMIZER_ADAMW_KERNEL_HPP

#include <tigon/ops/optimizer/adamw_options.hpp>
#include <tigon/ops/optimizer/adamw_program.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {
/// Elements that one task takes, from the first of a parameter on. It decides which random bits an element gets.
inline constexpr std::size_t adamw_task = std::size_t{1} << 14;

constexpr TIGON_INLINE std::size_t adamw_tasks_of(std::size_t size) {
  return size / adamw_task + (size % adamw_task != 0);
}

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
    for_rows<B, double>(ctx, count, detail::adamw_task, {.row_tasks = true}, [=] TIGON_FN(auto row) {
      const auto part = tasks.of(row.i);
      const auto g = detail::part_of(tasks.parameters[part.parameter].g, part.begin, part.size);
      const double sum = row.on(0).part(0, part.size).sum(reads(in_f64(g)), [](auto x) { return x * x; });
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
    for_rows<B, A>(ctx, tasks.first[tasks.count], detail::adamw_task, {.row_tasks = true}, [=] TIGON_FN(auto row) {
      const auto part = tasks.of(row.i);
      const P& p = tasks.parameters[part.parameter];
      const auto key = simd::random_key_of(seed, step, part.parameter, part.begin);
      const auto worker = row.on(0).part(0, part.size);
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

namespace detail {
inline namespace TIGON_ABI {
/// The norm of a list, computed or `known`, and the step unless it is skipped; returns the norm.
template <class B, class P>
double adamw_step(std::span<const P> list, const adamw_options& opt, const double* known, bool steps, context& ctx) {
  using kernels = kernel_for<op::adamw, B>;
  workspace::frame frame(ctx.workspace());
  auto* const first = frame.template take<std::size_t>(list.size() + 1);
  first[0] = 0;
  for (std::size_t i = 0; i < list.size(); ++i) first[i + 1] = first[i] + adamw_tasks_of(list[i].w.size());
  const adamw_tasks<P> tasks{list.data(), first, list.size()};
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
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_OPTIMIZER_ADAMW_KERNEL_HPP
