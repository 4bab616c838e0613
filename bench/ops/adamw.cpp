#include <tigon/ops/adamw.hpp>

#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

namespace tigon_bench {
namespace {

/// default: weights and gradients of the type, moments in f32 (f64), the norm and the step. known_norm: the step alone.
/// stochastic: bf16 throughout.
template <class B, class T, class M>
plan adamw_plan(const request& r) {
  const std::size_t n = r.shape[0], bytes = n * sizeof(T), moment_bytes = n * sizeof(M);
  const bool known = r.variant == "known_norm";
  plan p;
  if (!known) p.limits.push_back(limit_request::stream(1, 0, bytes));
  if constexpr (sizeof(T) == sizeof(M)) {
    p.limits.push_back(limit_request::stream(4, 3, bytes, true));
  } else {
    p.limits.push_back(limit_request::stream(2, 1, bytes, true));
    p.limits.push_back(limit_request::stream(2, 2, moment_bytes, true));
  }
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto w = uniform<T>(n, -1, 1, 1), g = uniform<T>(n, -1, 1, 2);
    const auto m = uniform<M>(n, -1, 1, 3), v = uniform<M>(n, 0, 1, 4);
    const tigon::adamw_options options{.max_norm = 1, .stochastic_rounding = r.variant == "stochastic"};
    return {.run =
                [=, &ctx] {
                  const tigon::adamw_parameter<T, T, M> list[] = {{w.span(), g.span(), m.span(), v.span()}};
                  if (known)
                    tigon::adamw_with_norm<B>(list, 1, options, ctx);
                  else
                    tigon::adamw<B>(list, options, ctx);
                },
            .restore =
                [=] {
                  fill_uniform(w.span(), -1, 1, 1), fill_uniform(m.span(), -1, 1, 3), fill_uniform(v.span(), 0, 1, 4);
                },
            .output_bytes = bytes + 2 * moment_bytes};
  };
  return p;
}

}  // namespace

op_entry adamw() {
  return {.name = "adamw",
          .dims = "parameters",
          .dtypes = all_dtypes(),
          .variants = {{"default", {1 << 24}, {mode::forward}},
                       {"known_norm", {1 << 24}, {mode::forward}},
                       {"stochastic", {1 << 24}, {mode::forward}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() {
              if (r.variant != "stochastic") return adamw_plan<B, T, tigon::accumulator_t<T>>(r);
              if constexpr (std::same_as<T, tigon::bfloat16>) return adamw_plan<B, T, T>(r);
              throw unsupported("stochastic rounding is of bf16");
            });
          }};
}

}  // namespace tigon_bench
