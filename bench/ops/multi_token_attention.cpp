#include <tigon/ops/multi_token_attention.hpp>

#include "ops/table.hpp"
#include "plain/attention.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

namespace tigon_bench {
namespace {

template <class B, class T>
plan multi_token_attention_plan(const request& r) {
  const typename passes::mixing_steps<T>::sizes s{r.shape[0], r.shape[1], r.shape[2],
                                                  r.shape[3], r.shape[4], r.variant == "sparse"};
  const tigon::multi_token_attention_options opt{.padding = s.taps / 2, .sparse = s.sparse};
  const std::size_t planes_in = s.batch * s.inputs, planes_out = s.batch * s.outputs;
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  plan p;
  // Multiplications and additions of the convolution up to the diagonal; backward has two such.
  const double flops =
      static_cast<double>(planes_out * s.inputs * s.taps * s.taps) * static_cast<double>(s.len * (s.len + 1));
  const limit_bound bound = std::same_as<T, double> ? limit_bound::fma_f64 : limit_bound::fma_f32;
  p.limits.push_back(limit_request::peak(bound, flops * ((forward ? 1 : 0) + (backward ? 2 : 0))));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const std::size_t in = planes_in * s.len * s.len, out = planes_out * s.len * s.len,
                      weights = s.outputs * s.inputs * s.taps * s.taps;
    const auto scores = uniform<T>(in, -2, 2, 1), w = uniform<T>(weights, -1, 1, 2),
               b = uniform<T>(s.outputs, -1, 1, 3), dy = uniform<T>(out, -1, 1, 4);
    const buffer<T> y(out), probs(std::same_as<B, plain> ? 0 : in), dscores(backward ? in : 0), dw(weights),
        db(s.outputs);
    using planes = tigon::heads_view<T>;
    const auto plane_in = [=](const buffer<T>& m) {
      return planes::of_heads(m.data(), s.batch, s.inputs, s.len, s.len);
    };
    const auto plane_out = [=](const buffer<T>& m) {
      return planes::of_heads(m.data(), s.batch, s.outputs, s.len, s.len);
    };
    const auto rows = [=](const buffer<T>& m) { return tigon::matrix_view<T>(m.data(), m.size() / s.len, s.len); };
    const auto taps = [=](const buffer<T>& m) {
      return planes::of_heads(m.data(), s.outputs, s.inputs, s.taps, s.taps);
    };
    const tigon::multi_token_attention_gradients<T> to{plane_in(dscores), taps(dw), db.span()};
    const std::size_t gradient_bytes = backward ? dscores.bytes() + dw.bytes() + db.bytes() : 0;
    const auto steps = steps_for<B, passes::mixing_steps<T>>(s, backward);
    const auto run_forward = [=, &ctx] {
      if constexpr (std::same_as<B, plain>)
        steps->forward(ctx, rows(scores), {w.data(), weights / s.taps, s.taps}, b.data(), rows(y));
      else
        tigon::multi_token_attention_forward<B, T>(plane_in(scores), taps(w), b.span(), plane_out(y), plane_in(probs),
                                                   opt, ctx);
    };
    if (!forward) run_forward();  // leaves probs
    return {.run =
                [=, &ctx] {
                  if (forward) run_forward();
                  if (!backward) return;
                  if constexpr (std::same_as<B, plain>)
                    steps->backward(ctx, rows(dy), {w.data(), weights / s.taps, s.taps}, rows(dscores), dw.data(),
                                    db.data());
                  else
                    tigon::multi_token_attention_backward<B, T>(plane_out(dy), taps(w), plane_in(probs), to, opt, ctx);
                },
            .restore = {},
            .output_bytes = (forward ? y.bytes() + probs.bytes() : 0) + gradient_bytes + bytes_of(steps)};
  };
  return p;
}

}  // namespace

op_entry multi_token_attention() {
  const std::vector<std::size_t> shape{1, 1024, 4, 4, 3};
  return with_plain({.name = "multi_token_attention",
                     .dims = "batch x seq_len x heads_in x heads_out x taps",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", shape, {mode::forward, mode::backward, mode::full}},
                                  {"sparse", shape, {mode::forward, mode::backward, mode::full}}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return multi_token_attention_plan<B, T>(r); },
                    {"default", "sparse"});
}

}  // namespace tigon_bench
