#include <tigon/ops/embedding.hpp>

#include "ops/table.hpp"
#include "plain/embedding.hpp"
#include "plain/provider.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <cstdint>

namespace tigon_bench {
namespace {

template <class B, class T>
plan embedding_plan(const request& r) {
  const std::size_t tokens = r.shape[0], vocab = r.shape[1], cols = r.shape[2];
  const std::size_t rows_bytes = tokens * cols * sizeof(T), table_bytes = vocab * cols * sizeof(T);
  const bool forward = r.direction != mode::backward, backward = r.direction != mode::forward;
  plan p;
  if (forward) p.limits.push_back(limit_request::stream(1, 1, rows_bytes));
  if (backward) {  // reads dy, writes all of dweight
    p.limits.push_back(limit_request::stream(1, 0, rows_bytes));
    p.limits.push_back(limit_request::stream(0, 1, table_bytes));
  }
  p.set_up = [=](tigon::context& ctx) -> runnable {
    const auto ids = uniform<std::int32_t>(tokens, 0, static_cast<double>(vocab) - 1, 1);
    const auto weight = forward ? uniform_matrix<T>(vocab, cols, -1, 1, 2) : matrix<T>();
    const auto y = forward ? matrix<T>(tokens, cols) : matrix<T>();
    const auto dy = backward ? uniform_matrix<T>(tokens, cols, -1, 1, 3) : matrix<T>();
    const auto dweight = backward ? matrix<T>(vocab, cols) : matrix<T>();
    return {.run =
                [=, &ctx] {
                  if constexpr (std::same_as<B, plain>) {
                    if (forward) passes::embedding_forward<T>(ctx, weight.view(), ids.span(), y.view());
                    if (backward) passes::embedding_backward<T>(ctx, dy.view(), ids.span(), dweight.view());
                  } else {
                    if (forward) tigon::embedding_forward<B>(weight.view(), ids.span(), y.view(), {}, ctx);
                    if (backward) tigon::embedding_backward<B>(dy.view(), ids.span(), dweight.view(), {}, ctx);
                  }
                },
            .restore = {},
            .output_bytes = y.bytes() + dweight.bytes()};
  };
  return p;
}

}  // namespace

op_entry embedding() {
  return with_plain({.name = "embedding",
                     .dims = "tokens x vocab x hidden",
                     .dtypes = all_dtypes(),
                     .variants = {{"default", {2048, 32000, 2048}, {mode::forward, mode::backward, mode::full}}},
                     .backends = {},
                     .make_plan = {}},
                    []<class B, class T>(const request& r) { return embedding_plan<B, T>(r); });
}

}  // namespace tigon_bench
