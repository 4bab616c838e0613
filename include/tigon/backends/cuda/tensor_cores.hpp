// The tensor cores of sm_90a and the copies that feed them: matrices that the copy unit (TMA) reads by tiles, barriers
// in shared memory that count bytes, and products of tiles. Of a GPU alone; code for other GPUs has no such functions.
#ifndef TIGON_BACKENDS_CUDA_TENSOR_CORES_HPP
#define TIGON_BACKENDS_CUDA_TENSOR_CORES_HPP

#include <tigon/backends/cuda/runtime.hpp>
#include <tigon/backends/cuda/staged.hpp>
// Behind them: they say how these are compiled.
#include <tigon/core/views.hpp>

#include <cstdint>
#if defined(__CUDACC__)
#include <cuda.h>
#endif

namespace tigon::gpu {
inline namespace TIGON_ABI {

#if defined(__CUDACC__)
/// Columns of a tile of 16-bit elements: 128 bytes, which the copy unit stores in eights of rows whose 16-byte parts
/// are swapped so that reading a column meets no bank twice.
inline constexpr unsigned tile_depth = 64;

/// A matrix of 16-bit elements as the copy unit reads it: tiles of `rows` x tile_depth; what is beyond its edges is 0.
/// False if the driver does not take it: it begins at a multiple of 16 bytes, and so do its rows.
template <class T>
bool describe_tiles(CUtensorMap& map, matrix_view<const T> m, unsigned rows) {
  static_assert(sizeof(T) == 2);
  using encode = decltype(&cuTensorMapEncodeTiled);
  static const encode function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    if (error != cudaSuccess) (void)cudaGetLastError();
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<encode>(found) : nullptr;
  }();
  if (function == nullptr) return false;
  const cuuint64_t extents[] = {m.cols, m.rows}, strides[] = {m.row_stride * sizeof(T)};
  const cuuint32_t box[] = {tile_depth, rows}, steps[] = {1, 1};
  return function(&map,
                  std::is_same_v<T, bfloat16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2,
                  const_cast<T*>(m.data), extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A barrier in shared memory, by its address. A phase of it ends when as many threads have arrived as it was made for,
/// and the bytes that they expect have.
struct tile_barrier {
  unsigned at;

  TIGON_DEVICE_INLINE void make(unsigned arrivals) const {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
  }
  TIGON_DEVICE_INLINE void arrive_and_expect(unsigned bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
  }
  /// At that of another block of the cluster, or of this one.
  TIGON_DEVICE_INLINE void arrive_in(unsigned block) const {
    asm volatile(
        "{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\t"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(at),
        "r"(block)
        : "memory");
  }
  /// Until the phase of this parity has ended.
  TIGON_DEVICE_INLINE void wait(unsigned parity) const {
    unsigned done = 0;
    while (done == 0)
      asm volatile(
          "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
          "selp.u32 %0, 1, 0, p;\n\t}"
          : "=r"(done)
          : "r"(at), "r"(parity)
          : "memory");
  }
};

/// The tile of `map` whose first column and row these are goes to an address of shared memory; `arrived` counts its
/// bytes.
TIGON_DEVICE_INLINE void copy_tile(const CUtensorMap& map, unsigned col, unsigned row, unsigned to,
                                   tile_barrier arrived) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(&map), "r"(col), "r"(row), "r"(arrived.at)
      : "memory");
}
/// The same to that address, and barrier, in each block of the cluster whose bit is set.
TIGON_DEVICE_INLINE void copy_tile_to_blocks(const CUtensorMap& map, unsigned col, unsigned row, unsigned to,
                                             tile_barrier arrived, std::uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(col), "r"(row), "r"(arrived.at), "h"(blocks)
      : "memory");
}

/// What a tensor core reads: rows of 128 bytes as the copy unit stores them, from an address of shared memory that is a
/// multiple of 1024. The depth of the product goes along the rows, and 16 of it are 2 more; or across them, 64 columns
/// every `next_columns` bytes, and 16 of it are 128 more.
TIGON_DEVICE_INLINE std::uint64_t tile_at(unsigned address, unsigned next_columns = 16) {
  constexpr std::uint64_t eight_rows = 1024, swapped = std::uint64_t{1} << 62;
  return (address & 0x3ffffu) >> 4 | std::uint64_t{next_columns >> 4} << 16 | eight_rows >> 4 << 32 | swapped;
}

TIGON_DEVICE_INLINE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TIGON_DEVICE_INLINE void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Until no more than the last `Later` groups between begin and end are on their way.
template <int Later>
TIGON_DEVICE_INLINE void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Later) : "memory");
}

// 128 operands.
#define TIGON_EIGHT(i)                                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define TIGON_THIRTY_TWO(i) TIGON_EIGHT(i), TIGON_EIGHT(i + 8), TIGON_EIGHT(i + 16), TIGON_EIGHT(i + 24)
#define TIGON_TEN(t) "%" t "0, %" t "1, %" t "2, %" t "3, %" t "4, %" t "5, %" t "6, %" t "7, %" t "8, %" t "9, "
#define TIGON_PRODUCT(types, across)                                                                                 \
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %130, 0;\n\twgmma.mma_async.sync.aligned.m64n256k16.f32." types \
               " {" TIGON_TEN("") TIGON_TEN("1") TIGON_TEN("2") TIGON_TEN("3") TIGON_TEN("4") TIGON_TEN("5")         \
                   TIGON_TEN("6") TIGON_TEN("7") TIGON_TEN("8") TIGON_TEN("9") TIGON_TEN("10") TIGON_TEN(            \
                       "11") "%120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, p, 1, 1, 0, " across      \
                             ";\n\t}"                                                                                \
               : TIGON_THIRTY_TWO(0), TIGON_THIRTY_TWO(32), TIGON_THIRTY_TWO(64), TIGON_THIRTY_TWO(96)               \
               : "l"(a), "l"(b), "r"(add))
/// d = a b + d for 64 rows of a, 256 columns of b and a depth of 16, d = a b without `add`: by the four warps of a
/// group. The depth goes along the rows of the tile of b, or Across them. Thread t has the numbers of rows r and r + 8,
/// r = t / 4 % 8 + 16 (t / 32 % 4): d[4 j] and d[4 j + 1] are columns c and c + 1 of row r, c = 8 j + t % 4 * 2, and
/// d[4 j + 2] and d[4 j + 3] those of row r + 8.
template <class T, bool Across>
TIGON_DEVICE_INLINE void multiply_tiles(float (&d)[128], std::uint64_t a, std::uint64_t b, unsigned add) {
  if constexpr (std::is_same_v<T, bfloat16> && Across)
    TIGON_PRODUCT("bf16.bf16", "1");
  else if constexpr (std::is_same_v<T, bfloat16>)
    TIGON_PRODUCT("bf16.bf16", "0");
  else if constexpr (Across)
    TIGON_PRODUCT("f16.f16", "1");
  else
    TIGON_PRODUCT("f16.f16", "0");
}
#undef TIGON_PRODUCT
#undef TIGON_TEN
#undef TIGON_THIRTY_TWO
#undef TIGON_EIGHT

/// Registers of each thread of a group of four warps from here on: some give back what others take.
template <int Registers>
TIGON_DEVICE_INLINE void give_back_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
TIGON_DEVICE_INLINE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

#endif
#endif

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_TENSOR_CORES_HPP
