#include <tigon/ops/neighborhood_attention_layer.hpp>

#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cmath>
#include <type_traits>

namespace tigon_bench {
namespace {

/// Bound by its products: forward two, of 4 * tokens * hidden^2 multiply-adds, backward twice as many.
template <class B, class T>
plan neighborhood_attention_layer_plan(const request& r) {
  const std::size_t batch = r.shape[0], seq_len = r.shape[1], heads = r.shape[2], hidden = heads * r.shape[3];
  const std::size_t tokens = batch * seq_len;
  const tigon::neighborhood_attention_layer_options opt{
      .heads = heads, .seq_len = seq_len, .attention = {.kernel_size = r.shape[4], .dilation = r.shape[5]}};
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  const double products = 8 * static_cast<double>(tokens) * static_cast<double>(hidden) * static_cast<double>(hidden);
  const limit_bound bound = std::is_same_v<T, double> ? limit_bound::fma_f64 : limit_bound::fma_f32;
  plan p;
  p.limits.push_back(limit_request::peak(bound, products * ((forward ? 1 : 0) + (backward ? 2 : 0))));
  p.set_up = [=](tigon::context& ctx) -> runnable {
    using A = tigon::accumulator_t<T>;
    const double size = 1 / std::sqrt(static_cast<double>(hidden));
    const auto x = uniform_matrix<T>(tokens, hidden, -1, 1, 1), dy = uniform_matrix<T>(tokens, hidden, -1, 1, 2),
               wqkv = uniform_matrix<T>(3 * hidden, hidden, -size, size, 3),
               wo = uniform_matrix<T>(hidden, hidden, -size, size, 4);
    const auto bqkv = uniform<T>(3 * hidden, -1, 1, 5), bo = uniform<T>(hidden, -1, 1, 6),
               norm = uniform<T>(hidden, 0.5, 1.5, 7), norm_bias = uniform<T>(hidden, -1, 1, 8);
    const matrix<T> y(tokens, hidden), values(tokens, 5 * hidden), dx(tokens, hidden), dwqkv(3 * hidden, hidden),
        dwo(hidden, hidden);
    const buffer<T> dbqkv(3 * hidden), dbo(hidden), dnorm(hidden), dnorm_bias(hidden);
    const buffer<A> numbers(tigon::neighborhood_attention_layer_numbers(tokens, opt));
    const auto run_forward = [=, &ctx] {
      tigon::neighborhood_attention_layer_forward<B, T>(
          x.view(), {wqkv.view(), wo.view(), bqkv.span(), bo.span(), norm.span(), norm_bias.span()}, y.view(),
          {values.view(), numbers.span()}, opt, ctx);
    };
    const std::size_t forward_bytes = y.bytes() + values.bytes() + numbers.bytes();
    if (!backward) return {.run = run_forward, .restore = {}, .output_bytes = forward_bytes};
    run_forward();  // leaves values and numbers
    return {.run =
                [=, &ctx] {
                  if (forward) run_forward();
                  tigon::neighborhood_attention_layer_backward<B, T>(
                      dy.view(), x.view(),
                      {wqkv.view(), wo.view(), bqkv.span(), bo.span(), norm.span(), norm_bias.span()},
                      {values.view(), numbers.span()}, dx.view(),
                      {dwqkv.view(), dwo.view(), dbqkv.span(), dbo.span(), dnorm.span(), dnorm_bias.span()}, opt, ctx);
                },
            .restore = {},
            .output_bytes = dx.bytes() + dwqkv.bytes() + dwo.bytes() + dbqkv.bytes() + dbo.bytes() + dnorm.bytes() +
                            dnorm_bias.bytes() + (forward ? forward_bytes : 0)};
  };
  return p;
}

}  // namespace

op_entry neighborhood_attention_layer() {
  return {.name = "neighborhood_attention_layer",
          .dims = "batch x seq_len x heads x head_dim x kernel_size x dilation",
          .dtypes = all_dtypes(),
          .variants = {{"default", {1, 1024, 8, 64, 7, 1}, {mode::forward, mode::backward, mode::full}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return neighborhood_attention_layer_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
