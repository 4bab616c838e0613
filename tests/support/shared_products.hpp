// The default's tiles of a product and what packs for them, which half of the programs call: compiled once, in
// shared_products.cpp. Precompiled with what tests include first; a test that is compiled by itself has its own.
#ifndef TIGON_TESTS_SUPPORT_SHARED_PRODUCTS_HPP
#define TIGON_TESTS_SUPPORT_SHARED_PRODUCTS_HPP

#include <tigon/backends/highway/backend.hpp>
#include <tigon/gemm/gemm.hpp>

namespace tigon::test {

using shared_lanes = packed::fma_lanes<simd::highway, float>;
using shared_shape = packed::tile_shape<shared_lanes>;

}  // namespace tigon::test

#define TIGON_TESTS_TILE(PREFIX, R, N)                                                                           \
  PREFIX template void tigon::packed::tile<tigon::test::shared_lanes, R, N>(                                     \
      std::size_t, const tigon::test::shared_lanes::word*, const tigon::test::shared_lanes::word*, const float*, \
      const tigon::packed::tile_target<float>&, tigon::packed::prefetch_cursor&);
#define TIGON_TESTS_TILES(PREFIX, R) \
  TIGON_TESTS_TILE(PREFIX, R, 1)     \
  TIGON_TESTS_TILE(PREFIX, R, 2)     \
  TIGON_TESTS_TILE(PREFIX, R, tigon::test::shared_shape::vectors)
#define TIGON_TESTS_PACKING(PREFIX, U, T)                                                 \
  PREFIX template void tigon::packed::pack_along<tigon::test::shared_lanes, U, T>(        \
      const T*, std::size_t, std::size_t, std::size_t, tigon::test::shared_lanes::word*); \
  PREFIX template void tigon::packed::pack_across<tigon::test::shared_lanes, U, T>(       \
      const T*, std::size_t, std::size_t, std::size_t, tigon::test::shared_lanes::word*);
#define TIGON_TESTS_PRODUCTS(PREFIX)                                            \
  TIGON_TESTS_TILES(PREFIX, tigon::test::shared_shape::rows)                    \
  TIGON_TESTS_TILES(PREFIX, tigon::test::shared_shape::rows / 2)                \
  TIGON_TESTS_TILES(PREFIX, 1)                                                  \
  TIGON_TESTS_PACKING(PREFIX, tigon::test::shared_shape::rows, float)           \
  TIGON_TESTS_PACKING(PREFIX, tigon::test::shared_shape::rows, tigon::bfloat16) \
  TIGON_TESTS_PACKING(PREFIX, tigon::test::shared_shape::cols, float)           \
  TIGON_TESTS_PACKING(PREFIX, tigon::test::shared_shape::cols, tigon::bfloat16)

TIGON_TESTS_PRODUCTS(extern)

#endif  // TIGON_TESTS_SUPPORT_SHARED_PRODUCTS_HPP
