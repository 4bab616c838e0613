#include <tigon/gemm/gemm.hpp>

#include "ops/products.hpp"
#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

namespace tigon_bench {
namespace {

/// Variants are named by the storage order of the operands: nt is x w^T, nn is dy w, tn is dy^T x; packed is nt with
/// the second operand packed beforehand. Products of 16-bit operands leave f32, as the fused losses use them.
template <class B, class T>
plan gemm_plan(const request& r) {
  using C = tigon::accumulator_t<T>;
  const std::size_t m = r.shape[0], n = r.shape[1], k = r.shape[2];
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  plan p;
  p.limits.push_back(product_peak<T>(flops));
  p.set_up = [=, variant = r.variant](tigon::context& ctx) -> runnable {
    using tigon::transpose;
    const transpose ta = variant == "tn" ? transpose::yes : transpose::no;
    const transpose tb = variant == "nt" || variant == "packed" ? transpose::yes : transpose::no;
    const auto a = ta == transpose::no ? uniform_matrix<T>(m, k, -1, 1, 1) : uniform_matrix<T>(k, m, -1, 1, 1);
    const auto b = tb == transpose::no ? uniform_matrix<T>(k, n, -1, 1, 2) : uniform_matrix<T>(n, k, -1, 1, 2);
    const matrix<C> c(m, n);
    const tigon::gemm_options options{.a = ta, .b = tb};
    if (variant == "packed") {
      const buffer<std::byte> memory(tigon::gemm_pack_bytes<B, T, T>(k, n));
      const auto packed = tigon::gemm_pack<B, T>(b.view(), memory.span(), tb, ctx);
      return {.run = [=, &ctx] { (void)memory, tigon::gemm<B>(a.view(), packed, c.view(), options, ctx); },
              .restore = {},
              .output_bytes = c.bytes()};
    }
    return {.run = [=, &ctx] { tigon::gemm<B>(a.view(), b.view(), c.view(), options, ctx); },
            .restore = {},
            .output_bytes = c.bytes()};
  };
  return p;
}

}  // namespace

op_entry gemm() {
  return {.name = "gemm",
          .dims = "m x n x k",
          .dtypes = all_dtypes(),
          .variants = {{"nt", {512, 32000, 2048}, {mode::forward}, "tokens x vocab x hidden"},
                       {"nn", {512, 2048, 32000}, {mode::forward}, "tokens x hidden x vocab"},
                       {"tn", {32000, 2048, 512}, {mode::forward}, "vocab x hidden x tokens"},
                       {"packed", {512, 32000, 2048}, {mode::forward}, "tokens x vocab x hidden"},
                       {"square", {2048, 2048, 2048}, {mode::forward}, "m x n x k"}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return with_types<plan>(r, [&]<class B, class T>() { return gemm_plan<B, T>(r); });
          }};
}

}  // namespace tigon_bench
