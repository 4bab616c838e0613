// Products of the default's lanes, which half of the programs call: compiled once, in shared_products.cpp. Precompiled
// with what tests include first; a test that is compiled by itself has its own.
#ifndef TIGON_TESTS_SUPPORT_SHARED_PRODUCTS_HPP
#define TIGON_TESTS_SUPPORT_SHARED_PRODUCTS_HPP

#include <tigon/backends/highway/backend.hpp>
#include <tigon/gemm/gemm.hpp>
#if defined(__AVX512BF16__)
#include <tigon/backends/avx512_bf16/backend.hpp>
#endif

namespace tigon::test {

using shared_lanes = packed::fma_lanes<simd::highway, float>;
using shared_f64_lanes = packed::fma_lanes<simd::highway, double>;
#if defined(__AVX512BF16__)
using shared_dot_lanes = packed::dot_lanes<simd::highway>;
#endif

}  // namespace tigon::test

#define TIGON_TESTS_TILE(PREFIX, P, R, N)                                                                  \
  PREFIX template void tigon::packed::tile<tigon::test::P, R, N>(                                          \
      std::size_t, const tigon::test::P::word*, const tigon::test::P::word*, const tigon::test::P::value*, \
      const tigon::packed::tile_target<tigon::test::P::value>&, tigon::packed::prefetch_cursor&);
// The tiles that tile_shape has with wide registers, and with others. No two of a list may be the same, so that they
// cannot be written as numbers of tile_shape.
#if defined(__AVX512F__) || defined(__aarch64__)
#define TIGON_TESTS_TILES_OF(PREFIX, P, R) \
  TIGON_TESTS_TILE(PREFIX, P, R, 1)        \
  TIGON_TESTS_TILE(PREFIX, P, R, 2)        \
  TIGON_TESTS_TILE(PREFIX, P, R, 3)
#define TIGON_TESTS_HIGHEST_TILES(PREFIX, P) TIGON_TESTS_TILES_OF(PREFIX, P, 8)
#else
#define TIGON_TESTS_TILES_OF(PREFIX, P, R) \
  TIGON_TESTS_TILE(PREFIX, P, R, 1)        \
  TIGON_TESTS_TILE(PREFIX, P, R, 2)
#define TIGON_TESTS_HIGHEST_TILES(PREFIX, P) TIGON_TESTS_TILES_OF(PREFIX, P, 6)
#endif
#define TIGON_TESTS_TILES(PREFIX, P) \
  TIGON_TESTS_TILES_OF(PREFIX, P, 1) \
  TIGON_TESTS_TILES_OF(PREFIX, P, 2) \
  TIGON_TESTS_TILES_OF(PREFIX, P, 4) \
  TIGON_TESTS_HIGHEST_TILES(PREFIX, P)
// Of operands in T.
#define TIGON_TESTS_PACKING_OF(PREFIX, P, U, T)                                                                     \
  PREFIX template void tigon::packed::pack_along<tigon::test::P, tigon::packed::tile_shape<tigon::test::P>::U, T>(  \
      const T*, std::size_t, std::size_t, std::size_t, tigon::test::P::word*);                                      \
  PREFIX template void tigon::packed::pack_across<tigon::test::P, tigon::packed::tile_shape<tigon::test::P>::U, T>( \
      const T*, std::size_t, std::size_t, std::size_t, tigon::test::P::word*);
#define TIGON_TESTS_PACKING(PREFIX, P, T)    \
  TIGON_TESTS_PACKING_OF(PREFIX, P, rows, T) \
  TIGON_TESTS_PACKING_OF(PREFIX, P, cols, T)
// Of results in C.
#define TIGON_TESTS_PLAN(PREFIX, P, C)                                                \
  PREFIX template struct tigon::packed::plan<tigon::test::P, C>;                      \
  PREFIX template std::size_t tigon::packed::most_workspace_bytes<tigon::test::P, C>( \
      std::size_t, std::size_t, std::size_t, tigon::gemm_tuning, std::size_t, bool);
#define TIGON_TESTS_PRODUCT(PREFIX, P, A, B, C) \
  PREFIX template class tigon::packed::product<tigon::test::P, A, B, C, tigon::no_epilogue>;

#define TIGON_TESTS_F32_PRODUCTS(PREFIX)                                             \
  TIGON_TESTS_TILES(PREFIX, shared_lanes)                                            \
  TIGON_TESTS_PACKING(PREFIX, shared_lanes, float)                                   \
  TIGON_TESTS_PACKING(PREFIX, shared_lanes, tigon::bfloat16)                         \
  TIGON_TESTS_PLAN(PREFIX, shared_lanes, float)                                      \
  TIGON_TESTS_PLAN(PREFIX, shared_lanes, tigon::bfloat16)                            \
  TIGON_TESTS_PRODUCT(PREFIX, shared_lanes, float, float, float)                     \
  TIGON_TESTS_PRODUCT(PREFIX, shared_lanes, float, tigon::bfloat16, float)           \
  TIGON_TESTS_PRODUCT(PREFIX, shared_lanes, float, tigon::bfloat16, tigon::bfloat16) \
  TIGON_TESTS_PRODUCT(PREFIX, shared_lanes, tigon::bfloat16, float, float)           \
  TIGON_TESTS_PRODUCT(PREFIX, shared_lanes, tigon::bfloat16, tigon::bfloat16, float) \
  TIGON_TESTS_PRODUCT(PREFIX, shared_lanes, tigon::bfloat16, tigon::bfloat16, tigon::bfloat16)
// Without FMA a tile has as many rows as columns of f64.
#if defined(__FMA__) || defined(__aarch64__)
#define TIGON_TESTS_F64_PRODUCTS(PREFIX)                \
  TIGON_TESTS_TILES(PREFIX, shared_f64_lanes)           \
  TIGON_TESTS_PACKING(PREFIX, shared_f64_lanes, double) \
  TIGON_TESTS_PLAN(PREFIX, shared_f64_lanes, double)    \
  TIGON_TESTS_PRODUCT(PREFIX, shared_f64_lanes, double, double, double)
#else
#define TIGON_TESTS_F64_PRODUCTS(PREFIX)
#endif
#if defined(__AVX512BF16__)
#define TIGON_TESTS_DOT_PRODUCTS(PREFIX)                                                 \
  TIGON_TESTS_TILES(PREFIX, shared_dot_lanes)                                            \
  TIGON_TESTS_PACKING(PREFIX, shared_dot_lanes, tigon::bfloat16)                         \
  TIGON_TESTS_PLAN(PREFIX, shared_dot_lanes, float)                                      \
  TIGON_TESTS_PLAN(PREFIX, shared_dot_lanes, tigon::bfloat16)                            \
  TIGON_TESTS_PRODUCT(PREFIX, shared_dot_lanes, tigon::bfloat16, tigon::bfloat16, float) \
  TIGON_TESTS_PRODUCT(PREFIX, shared_dot_lanes, tigon::bfloat16, tigon::bfloat16, tigon::bfloat16)
#else
#define TIGON_TESTS_DOT_PRODUCTS(PREFIX)
#endif
#define TIGON_TESTS_PRODUCTS(PREFIX) \
  TIGON_TESTS_F32_PRODUCTS(PREFIX)   \
  TIGON_TESTS_F64_PRODUCTS(PREFIX)   \
  TIGON_TESTS_DOT_PRODUCTS(PREFIX)

TIGON_TESTS_PRODUCTS(extern)

#endif  // TIGON_TESTS_SUPPORT_SHARED_PRODUCTS_HPP
