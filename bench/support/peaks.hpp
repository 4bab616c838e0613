// Loops that a CPU cannot run faster: streams of arrays, and products in registers. Written without the library's own
// lanes: a loop that shares a mistake with the kernels would be no limit.
#ifndef TIGON_BENCH_SUPPORT_PEAKS_HPP
#define TIGON_BENCH_SUPPORT_PEAKS_HPP

#include <array>
#include <cstddef>
#include <tigon/simd/tile_registers.hpp>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tigon_bench {

// The widest vector that the flags of this build promise, and its streaming store.
#if defined(__AVX512F__)
using words = __m512i;
inline words load(const std::byte* p) { return _mm512_load_si512(p); }
inline words add(words a, words b) { return _mm512_add_epi32(a, b); }
inline void store(std::byte* p, words v) { _mm512_store_si512(p, v); }
inline void stream(std::byte* p, words v) { _mm512_stream_si512(reinterpret_cast<words*>(p), v); }
inline void fence() { _mm_sfence(); }
#elif defined(__AVX2__)
using words = __m256i;
inline words load(const std::byte* p) { return _mm256_load_si256(reinterpret_cast<const words*>(p)); }
inline words add(words a, words b) { return _mm256_add_epi32(a, b); }
inline void store(std::byte* p, words v) { _mm256_store_si256(reinterpret_cast<words*>(p), v); }
inline void stream(std::byte* p, words v) { _mm256_stream_si256(reinterpret_cast<words*>(p), v); }
inline void fence() { _mm_sfence(); }
#elif defined(__SSE2__)
using words = __m128i;
inline words load(const std::byte* p) { return _mm_load_si128(reinterpret_cast<const words*>(p)); }
inline words add(words a, words b) { return _mm_add_epi32(a, b); }
inline void store(std::byte* p, words v) { _mm_store_si128(reinterpret_cast<words*>(p), v); }
inline void stream(std::byte* p, words v) { _mm_stream_si128(reinterpret_cast<words*>(p), v); }
inline void fence() { _mm_sfence(); }
#else
typedef unsigned words __attribute__((vector_size(16), may_alias));
inline words load(const std::byte* p) { return *reinterpret_cast<const words*>(p); }
inline words add(words a, words b) { return a + b; }
inline void store(std::byte* p, words v) { *reinterpret_cast<words*>(p) = v; }
inline void stream(std::byte* p, words v) { store(p, v); }
inline void fence() {}
#endif

template <class V>
inline void keep(V& value) {
#if defined(__x86_64__)
  asm volatile("" : "+v"(value));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(value));
#else
  asm volatile("" : "+m"(value));
#endif
}

constexpr std::size_t lane_bytes = sizeof(words);
constexpr std::size_t turn_bytes = 2 * lane_bytes;
constexpr int most_reads = 5, most_writes = 3;

using pointers = std::array<std::byte*, most_reads + most_writes>;

/// Integer adds: next to no arithmetic, and no value that could be slow.
template <int Reads, int Writes, bool Streaming>
void stream_range(const pointers& p, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; i += turn_bytes)
    for (std::size_t at = i; at < i + turn_bytes; at += lane_bytes) {
      words sum{};
      if constexpr (Reads > 0) sum = load(p[0] + at);
      for (int k = 1; k < Reads; ++k) sum = add(sum, load(p[static_cast<std::size_t>(k)] + at));
      for (int k = 0; k < Writes; ++k) {
        std::byte* const target = p[static_cast<std::size_t>(most_reads + k)] + at;
        if constexpr (Streaming)
          stream(target, sum);
        else
          store(target, sum);
      }
      if constexpr (Writes == 0) keep(sum);
    }
  if constexpr (Streaming) fence();
}

// Peaks: as many independent chains as hide the latency of the instruction, registers only.
#if defined(__AVX512F__)
using floats = __m512;
using doubles = __m512d;
inline floats fused(floats a, floats b, floats c) { return _mm512_fmadd_ps(a, b, c); }
inline doubles fused(doubles a, doubles b, doubles c) { return _mm512_fmadd_pd(a, b, c); }
#elif defined(__AVX2__) && defined(__FMA__)
using floats = __m256;
using doubles = __m256d;
inline floats fused(floats a, floats b, floats c) { return _mm256_fmadd_ps(a, b, c); }
inline doubles fused(doubles a, doubles b, doubles c) { return _mm256_fmadd_pd(a, b, c); }
#else
typedef float floats __attribute__((vector_size(16)));
typedef double doubles __attribute__((vector_size(16)));
inline floats fused(floats a, floats b, floats c) { return a * b + c; }
inline doubles fused(doubles a, doubles b, doubles c) { return a * b + c; }
#endif

template <class S>
struct lanes_of;
template <>
struct lanes_of<float> {
  using type = floats;
};
template <>
struct lanes_of<double> {
  using type = doubles;
};

constexpr std::size_t peak_turns = 200'000;
constexpr int fma_chain_count = 12, dot_chain_count = 24;
/// Operations of a call of fma_chains.
template <class S>
constexpr double fma_chains_flops =
    2.0 * fma_chain_count * (sizeof(typename lanes_of<S>::type) / sizeof(S)) * peak_turns;

template <class S>
void fma_chains(std::size_t) {
  using V = typename lanes_of<S>::type;
  V a{}, b{};
  keep(a), keep(b);
  V sum[fma_chain_count]{};
  for (std::size_t turn = 0; turn < peak_turns; ++turn)
#pragma GCC unroll 12
    for (int k = 0; k < fma_chain_count; ++k) {
      sum[k] = fused(sum[k], a, b);
      keep(sum[k]);  // orders nothing, but keeps the chains apart and in registers
    }
}

// Of pairs of bf16, where the flags promise the instruction.
#if defined(__AVX512BF16__) && defined(__AVX512F__)
#define TIGON_BENCH_DOT 1
constexpr double dot_chains_flops = 64.0 * dot_chain_count * peak_turns;
inline void dot_chains(std::size_t) {
  __m512i a{}, b{};
  keep(a), keep(b);
  __m512 sum[dot_chain_count]{};
  for (std::size_t turn = 0; turn < peak_turns; ++turn)
#pragma GCC unroll 24
    for (int k = 0; k < dot_chain_count; ++k) {
      sum[k] = _mm512_dpbf16_ps(sum[k], (__m512bh)a, (__m512bh)b);
      keep(sum[k]);
    }
}
#endif

// Tile registers, where the flags promise them and the system permits them: four sums, as many as a product has.
#if TIGON_FLAGS_tiles
using tile_registers = tigon::simd::tile_registers;
inline bool has_tiles() { return tile_registers::missing().empty(); }
/// Operations of a call of tile_chains: on bytes, or on bf16.
template <bool Bytes>
constexpr double tile_chains_flops = 2.0 * 16 * 16 * (Bytes ? 64 : 32) * 4 * (peak_turns / 8);
template <bool Bytes>
void tile_chains(std::size_t) {
  const tile_registers::configured registers;
  alignas(64) static constexpr std::byte zeros[1024]{};
  tile_registers::load_a<0>(zeros), tile_registers::load_a<1>(zeros);
  tile_registers::load_b<0>(zeros), tile_registers::load_b<1>(zeros);
  tile_registers::zero<0, 0>(), tile_registers::zero<0, 1>(), tile_registers::zero<1, 0>(),
      tile_registers::zero<1, 1>();
  for (std::size_t turn = 0; turn < peak_turns / 8; ++turn)
    if constexpr (Bytes) {
      tile_registers::multiply_int8<0, 0>(), tile_registers::multiply_int8<0, 1>();
      tile_registers::multiply_int8<1, 0>(), tile_registers::multiply_int8<1, 1>();
    } else {
      tile_registers::multiply_bf16<0, 0>(), tile_registers::multiply_bf16<0, 1>();
      tile_registers::multiply_bf16<1, 0>(), tile_registers::multiply_bf16<1, 1>();
    }
}
#else
inline bool has_tiles() { return false; }
#endif

}  // namespace tigon_bench

#endif  // TIGON_BENCH_SUPPORT_PEAKS_HPP
