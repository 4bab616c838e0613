// The tag, options, operands and checks of adamw.
#ifndef TIGON_OPS_OPTIMIZER_ADAMW_OPTIONS_HPP
#define TIGON_OPS_OPTIMIZER_ADAMW_OPTIONS_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/core/arguments.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace tigon {

namespace op {
struct adamw {
  static constexpr std::string_view name = "adamw";
};
}  // namespace op

/// The contract is in ops/adamw.hpp.
struct adamw_options {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;           ///< added to the root of the second moment
  double weight_decay = 0.01;  ///< decoupled: times the learning rate, not through the moments
  std::uint64_t step = 1;      ///< of this step, from 1 on: the moments began as zeros
  double max_norm = 0;         ///< largest norm of all gradients together; 0: they are not clipped
  double gradient_scale = 1;   ///< factor on every gradient, before clipping: one over a loss scale
  bool skip_non_finite = false;
  bool stochastic_rounding = false;
  std::uint64_t seed = 0;  ///< of stochastic rounding
};

inline namespace TIGON_ABI {
/// A parameter: its weight, its gradient, and the moments that adamw keeps of it. `rounded`, if given, is the weight
/// rounded to nearest for the passes of a model whose master weights are w.
template <class W, class G = W, class M = accumulator_t<W>, class R = W>
struct adamw_parameter {
  using weight = W;
  using gradient_type = G;
  using moment = M;
  using rounded_type = R;
  static constexpr bool may_have_rounded = !std::same_as<W, R>;

  std::span<W> w;
  std::span<const G> g;
  std::span<M> m, v;
  std::span<R> rounded = {};
  double decay = 1;  ///< factor on weight_decay: 0 for norms and biases, as a rule
};
}  // namespace TIGON_ABI

namespace detail {
inline namespace TIGON_ABI {
template <class P>
inline constexpr bool is_adamw_parameter = false;
template <class W, class G, class M, class R>
inline constexpr bool is_adamw_parameter<adamw_parameter<W, G, M, R>> = true;
template <class List>
using adamw_parameter_of =
    std::remove_cv_t<std::remove_pointer_t<decltype(std::span(std::declval<const List&>()).data())>>;

#if TIGON_CHECKS
// Ascending. Of few numbers, and std::sort would be shared by two instruction sets.
inline void sort_addresses(std::uintptr_t* a, std::size_t n) {
  for (std::size_t gap = n / 2; gap > 0; gap = gap == 2 ? 1 : gap * 5 / 11)
    for (std::size_t i = gap; i < n; ++i) {
      const std::uintptr_t x = a[i];
      std::size_t k = i;
      for (; k >= gap && a[k - gap] > x; k -= gap) a[k] = a[k - gap];
      a[k] = x;
    }
}

struct adamw_range {
  const char* name;
  std::uintptr_t begin, end;
};
inline constexpr std::size_t adamw_ranges = 5;

template <class P>
TIGON_INLINE adamw_range adamw_range_of(const P& p, std::size_t k) {
  const auto range = [](const char* name, auto s) TIGON_LAMBDA {
    const auto begin = reinterpret_cast<std::uintptr_t>(s.data());
    return adamw_range{name, begin, begin + s.size_bytes()};
  };
  return k == 0   ? range("w", p.w)
         : k == 1 ? range("g", p.g)
         : k == 2 ? range("m", p.m)
         : k == 3 ? range("v", p.v)
                  : range("rounded", p.rounded);
}

/// No two arrays of all parameters share an element: sorted, every one ends before the next begins.
template <class P>
TIGON_NOINLINE void expect_apart(std::string_view op, std::span<const P> list, context& ctx) {
  const std::size_t most = adamw_ranges * list.size();
  workspace::frame frame(ctx.workspace());
  auto* const begins = frame.template take<std::uintptr_t>(most);
  auto* const ends = frame.template take<std::uintptr_t>(most);
  std::size_t n = 0;
  for (const P& p : list)
    for (std::size_t k = 0; k < adamw_ranges; ++k) {
      const adamw_range r = adamw_range_of(p, k);
      if (r.begin != r.end) begins[n] = r.begin, ends[n++] = r.end;
    }
  sort_addresses(begins, n), sort_addresses(ends, n);
  bool apart = true;
  for (std::size_t i = 1; i < n; ++i) apart = apart && ends[i - 1] <= begins[i];
  for (std::size_t i = 0; !apart && i < most; ++i)
    for (std::size_t j = 0; j < i; ++j) {
      const adamw_range a = adamw_range_of(list[i / adamw_ranges], i % adamw_ranges),
                        b = adamw_range_of(list[j / adamw_ranges], j % adamw_ranges);
      if (a.begin == a.end || b.begin == b.end || a.begin >= b.end || b.begin >= a.end) continue;
      fail(error_code::alias, "tigon: " + std::string(op) + ": " + a.name + " of parameters[" +
                                  std::to_string(i / adamw_ranges) + "] overlaps " + b.name + " of parameters[" +
                                  std::to_string(j / adamw_ranges) + "]; expected no common memory");
    }
}
#endif

/// True for a list of parameters of types that may meet; a sentence otherwise.
template <class B, class P>
consteval bool admits_adamw() {
  static_assert(is_adamw_parameter<P>, "tigon: adamw takes a contiguous range of adamw_parameter<W, G, M, R>");
  using W = typename P::weight;
  static_assert(admits<B, W>());
  static_assert(mixes_with<W, typename P::gradient_type>, "tigon: gradients in f64 go only with weights in f64");
  static_assert(std::same_as<typename P::moment, accumulator_t<W>> ||
                    (std::same_as<typename P::moment, bfloat16> && !std::same_as<W, double>),
                "tigon: moments of adamw are f32 or bf16, f64 of weights in f64");
  static_assert(!P::may_have_rounded || (std::same_as<W, float> && sizeof(typename P::rounded_type) == 2),
                "tigon: rounded weights of adamw are bf16 or f16, of masters in f32");
  return true;
}

/// The arrays of every parameter.
template <class P>
void expect_adamw_parameters(const char* op, std::span<const P> list, const adamw_options& opt,
                             [[maybe_unused]] context& ctx) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    const P& p = list[i];
    char name[64];
    std::snprintf(name, sizeof name, "%s: parameters[%zu]", op, i);
    arguments args(name);
    args.in("g", p.g, p.w.size());
    args.out("w", p.w);
    args.out("m", p.m, p.w.size());
    args.out("v", p.v, p.w.size());
    args.optional_out("rounded", p.rounded, p.w.size());
    using A = accumulator_t<typename P::weight>;
    args.from_zero<A>("decay", p.decay);
    args.made<A>("learning_rate weight_decay decay", opt.learning_rate * opt.weight_decay * p.decay);
    args.check();
  }
#if TIGON_CHECKS
  expect_apart(op, list, ctx);
#endif
}

template <class P>
void expect_adamw_options(const char* op, const adamw_options& opt) {
  using A = accumulator_t<typename P::weight>;
  const expects check(op);
  const auto below_one = [&](const char* name, double came) {
    check.number<A>(came >= 0 && came < 1, name, came, "a number of at least 0 and below 1");
  };
  check.from_zero<A>("learning_rate", opt.learning_rate), check.from_zero<A>("weight_decay", opt.weight_decay);
  check.eps<A>(opt.eps, "eps", "a finite number of at least 0"), check.from_zero<A>("max_norm", opt.max_norm);
  below_one("beta1", opt.beta1), below_one("beta2", opt.beta2);
  check.finite<A>("gradient_scale", opt.gradient_scale);
  check.that(opt.step != 0, error_code::argument, "step", "0", "at least 1: the first step is number 1");
  check.made<A>("learning_rate over 1 - beta1^step",
                opt.learning_rate / (1 - std::pow(opt.beta1, static_cast<double>(opt.step))));
  check.that(!opt.stochastic_rounding || !std::same_as<typename P::weight, float16>, error_code::argument,
             "stochastic_rounding", "set for weights in f16", "weights in bf16 or f32");
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_OPTIMIZER_ADAMW_OPTIONS_HPP
