#include <tigon/ops/matmul_int8_int2.hpp>

#include "ops/table.hpp"
#include "support/backends.hpp"
#include "support/matrix.hpp"

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace tigon_bench {
namespace {

/// The loop that one writes without the operator, on weights that were unpacked first.
void plain_product(tigon::matrix_view<const std::int8_t> a, tigon::matrix_view<const std::int8_t> w,
                   tigon::matrix_view<std::int32_t> c) {
  for (std::size_t i = 0; i < c.rows; ++i) {
    std::fill_n(c.row(i), c.cols, 0);
    for (std::size_t p = 0; p < a.cols; ++p)
      for (std::size_t j = 0; j < c.cols; ++j) c.row(i)[j] += a.row(i)[p] * w.row(p)[j];
  }
}

/// Two operations a weight and row. With few rows it is the packed weights that take the time, k n / 4 bytes; beside
/// them a has m k, and c 4 m n.
template <class B>
plan int2_plan(const request& r) {
  const std::size_t m = r.shape[0], n = r.shape[1], k = (r.shape[2] + 3) / 4 * 4;
  const double operations = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  plan p;
  p.limits.push_back(m < 4 ? limit_request::stream(1, 0, k / 4 * n)
                           : limit_request::peak(limit_bound::int8_dot, operations));
  p.set_up = [=, variant = r.variant](tigon::context& ctx) -> runnable {
    const auto a = uniform_matrix<std::int8_t>(m, k, -128, 127, 1);
    const auto packed = uniform_matrix<std::uint8_t>(k / 4, n, 0, 255, 2);
    const matrix<std::int32_t> c(m, n);
    if (variant == "plain") {
      const matrix<std::int8_t> w(k, n);
      return {.run =
                  [=, &ctx] {
                    tigon::matmul_int8_int2_unpack<B>(packed.view(), w.view(), ctx);
                    plain_product(a.view(), w.view(), c.view());
                  },
              .restore = {},
              .output_bytes = c.bytes() + w.bytes()};
    }
    if (variant == "pack") {
      const matrix<std::int8_t> w(k, n);
      tigon::matmul_int8_int2_unpack<B>(packed.view(), w.view(), ctx);
      return {.run = [=, &ctx] { tigon::matmul_int8_int2_pack<B>(w.view(), packed.view(), ctx); },
              .restore = {},
              .output_bytes = packed.bytes()};
    }
    return {.run = [=, &ctx] { tigon::matmul_int8_int2<B>(a.view(), packed.view(), c.view(), ctx); },
            .restore = {},
            .output_bytes = c.bytes()};
  };
  if (r.variant == "pack") p.limits = {limit_request::stream(4, 1, k / 4 * n)};
  return p;
}

}  // namespace

op_entry matmul_int8_int2() {
  return {.name = "matmul_int8_int2",
          .dims = "tokens x intermediate x hidden",
          .dtypes = {dtype::i8},
          .variants = {{"default", {2048, 4096, 8192}, {mode::forward}},
                       {"few", {16, 4096, 8192}, {mode::forward}},
                       {"row", {1, 4096, 8192}, {mode::forward}},
                       {"plain", {16, 4096, 8192}, {mode::forward}},
                       {"pack", {1, 4096, 8192}, {mode::forward}}},
          .backends = all_backends::names(),
          .make_plan = [](const request& r) {
            return all_backends::call<plan>(r.backend, [&]<class B>(std::type_identity<B>) { return int2_plan<B>(r); });
          }};
}

}  // namespace tigon_bench
