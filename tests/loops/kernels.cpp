// The kernels with as many sums as registers hold, for .ci/loops, which reads what a compiler made of them. Not a test
// program: it is compiled for many instruction sets and not linked.
#include <tigon/gemm/gemm.hpp>
#include <tigon/ops/attention/tap_sums.hpp>
#include <tigon/ops/matmul_int8_int2.hpp>

namespace {

template <auto... Function>
const void* kernels[] = {reinterpret_cast<const void*>(Function)...};

template <class E, class A>
const void* const* products() {
  using P = tigon::packed::fma_lanes<E, A>;
  using shape = tigon::packed::tile_shape<P>;
  constexpr std::size_t U = shape::rows, N = shape::vectors;
  return kernels<&tigon::packed::tile<P, U, N>, &tigon::packed::tile<P, 4, N>, &tigon::packed::tile<P, 2, N>,
                 &tigon::packed::tile<P, U, 1>>;
}

template <class E, class A>
const void* const* taps() {
  using V = tigon::simd::vec<E, A>;
  return kernels<&tigon::detail::sum_some_taps<V, 4, 2>, &tigon::detail::add_some_products<V, 4, 2>>;
}

template <std::size_t N>
const void* const* integer_products() {
  constexpr std::size_t U = tigon::int2::tile_shape<N>::rows, V = tigon::int2::tile_shape<N>::vectors;
  return kernels<&tigon::int2::tile<N, U, V, std::uint8_t>, &tigon::int2::tile<N, U, V, std::uint32_t>>;
}

#if defined(__AVX512BF16__)
const void* const* bf16_products() {
  using P = tigon::packed::dot_lanes<tigon::backends::highway::engine>;
  return kernels<&tigon::packed::tile<P, 8, 3>>;
}
#else
const void* const* bf16_products() { return nullptr; }
#endif

}  // namespace

using engine = tigon::backends::highway::engine;
extern const void* const* const tigon_loops[];
const void* const* const tigon_loops[] = {products<engine, float>(), products<engine, double>(), taps<engine, float>(),
                                          integer_products<tigon::simd::vec<engine, float>::size>(), bf16_products()};
