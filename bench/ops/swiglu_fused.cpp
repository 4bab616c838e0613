#include <tigon/ops/swiglu_fused.hpp>

#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

namespace tigon_bench {
namespace {

// gpt_oss: interleaved, with its limit, slope and offset.
template <class B, class T>
plan swiglu_fused_plan(const request& r) {
  const std::size_t rows = r.shape[0], cols = r.shape[1], bytes = rows * cols * sizeof(T);
  const bool gpt_oss = r.variant == "gpt_oss", in_place = r.variant == "in_place",
             forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  const auto layout =
      r.variant == "interleaved" || gpt_oss ? tigon::gate_layout::interleaved : tigon::gate_layout::halves;
  tigon::swiglu_options opt;
  if (gpt_oss) opt = {.limit = 7, .slope = 1.702, .up_offset = 1};
  plan p;
  if (forward) p.limits.push_back(limit_request::stream(2, 1, bytes));
  if (backward) p.limits.push_back(limit_request::stream(3, 2, bytes, in_place));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto gate_up = uniform_matrix<T>(rows, 2 * cols, -2, 2, 1);
    const auto dc = backward ? uniform_matrix<T>(rows, cols, 1, 2, 2) : matrix<T>();
    const auto c = forward ? matrix<T>(rows, cols) : matrix<T>();
    const auto dgate_up = !backward ? matrix<T>() : in_place ? gate_up : matrix<T>(rows, 2 * cols);
    runnable run;
    run.run = [=, &ctx] {
      if (forward) tigon::swiglu_fused_forward<B>(gate_up.view(), c.view(), layout, opt, ctx);
      if (backward) tigon::swiglu_fused_backward<B>(dc.view(), gate_up.view(), dgate_up.view(), layout, opt, ctx);
    };
    if (in_place)
      run.restore = [=] { gate_up.fill(-2, 2, 1); };
    else
      run.output_bytes = c.bytes() + dgate_up.bytes();
    return run;
  };
  return p;
}

}  // namespace

op_entry swiglu_fused() {
  return {.name = "swiglu_fused",
          .dims = "tokens x intermediate",
          .dtypes = all_dtypes(),
          .variants = {{"default", {2048, 4096}, {mode::forward, mode::backward, mode::full}},
                       {"in_place", {2048, 4096}, {mode::backward}},
                       {"interleaved", {2048, 4096}, {mode::forward, mode::backward, mode::full}},
                       {"gpt_oss", {2048, 2880}, {mode::forward, mode::backward}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return swiglu_fused_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
