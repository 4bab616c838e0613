// How a GPU's threads share the rows of a program: what follows from the width of a row alone, so that results are the
// same bits on every GPU.
#ifndef TIGON_BACKENDS_CUDA_PLAN_HPP
#define TIGON_BACKENDS_CUDA_PLAN_HPP

#include <tigon/backends/cuda/group.hpp>
// Behind it: it says how these are compiled.
#include <tigon/core/division.hpp>

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// The threads of a row and what each keeps of it. A type, since nvcc takes no constants of classes in a kernel's
/// arguments. Lanes: of a warp; 0: the threads of a block. Kept: vectors that a thread keeps of a row, which is then
/// read once; 0: every pass reads it.
template <unsigned Lanes, int Kept, unsigned MostThreads>
struct row_shape {
  static constexpr unsigned lanes = Lanes, most_threads = MostThreads;
  static constexpr int kept = Kept;
  /// With K sums over the rows, for which a multiprocessor has so many threads, each with 64 or 80 registers: whether
  /// vectors stay in registers for all rows, and whether the next row is on its way while one is reduced. Groups of
  /// lanes are so many that they need not.
  static constexpr unsigned threads_at_once = lanes == 0 ? 1024 : 768;
  static constexpr bool keeps_vectors = kept != 0 && kept * most_threads <= 512;
  template <int K, std::size_t VectorBytes>
  static constexpr bool loads_ahead = lanes == 0 && kept != 0 && (K == 1 || most_threads < 1024) && VectorBytes <= 64;
  /// Or whether two rows are reduced together: where a multiprocessor has one block, which waits alone at barriers. And
  /// whether L2 gets the next two meanwhile. 8192 x 8192 bf16 on an H200, ms of layer_norm backward: 0.194, 0.168 with
  /// two rows, 0.159 with both; 8192 x 16384, rms_norm: 0.268, 0.248, 0.324.
  template <std::size_t VectorBytes>
  static constexpr bool takes_two = lanes == 0 && kept != 0 && most_threads == 1024 && kept * VectorBytes <= 64;
  static constexpr bool prefetches = kept == 1;
  static constexpr unsigned rows = lanes == 0 ? 1 : most_threads / lanes;  ///< that a block takes at a time
  /// The widest row, in vectors.
  static constexpr std::size_t reach =
      kept == 0 ? ~std::size_t{0} : static_cast<std::size_t>(kept) * (lanes == 0 ? most_threads : lanes);
  /// Threads of a block for rows of so many vectors.
  static constexpr unsigned threads(std::size_t vectors) {
    if (lanes != 0) return most_threads;
    const std::size_t each = kept == 0 ? 2 : static_cast<std::size_t>(kept);
    const std::size_t wanted = tigon::detail::round_up(tigon::detail::ceil_div(vectors, each), warp);
    return static_cast<unsigned>(std::clamp<std::size_t>(wanted, warp, most_threads));
  }
};

/// Shapes, of which the first that reaches is taken.
template <class... Shape>
struct row_shapes {};
template <class First, class... More, class F>
void with_shape(row_shapes<First, More...>, std::size_t vectors, F f) {
  if constexpr (sizeof...(More) == 0)
    f(First());
  else
    vectors <= First::reach ? f(First()) : with_shape(row_shapes<More...>(), vectors, f);
}

/// Whether rows that are read by every pass have two vectors on their way, which keep so many bytes each.
constexpr bool two_vectors_at_a_time(std::size_t vector_bytes) { return vector_bytes <= 48; }

/// Rows that are reduced and mapped, and keep so many bytes a vector.
template <std::size_t VectorBytes>
using shapes_of_rows = std::conditional_t<
    VectorBytes <= 16,
    row_shapes<row_shape<4, 4, 128>, row_shape<8, 4, 128>, row_shape<16, 4, 128>, row_shape<32, 4, 128>,
               row_shape<0, 4, 1024>, row_shape<0, 0, 1024>>,
    std::conditional_t<VectorBytes <= 32,
                       row_shapes<row_shape<8, 2, 128>, row_shape<16, 2, 128>, row_shape<32, 2, 128>,
                                  row_shape<0, 2, 512>, row_shape<0, 4, 1024>, row_shape<0, 0, 1024>>,
                       row_shapes<row_shape<8, 2, 128>, row_shape<16, 2, 128>, row_shape<32, 2, 128>,
                                  row_shape<0, 2, 512>, row_shape<0, 1, 1024>, row_shape<0, 0, 1024>>>>;
/// The same with K sums over the rows, which take registers of their own.
template <int K, std::size_t VectorBytes>
using shapes_of_sums = std::conditional_t<K == 1 && VectorBytes <= 32,
                                          row_shapes<row_shape<8, 2, 256>, row_shape<16, 2, 256>, row_shape<32, 2, 256>,
                                                     row_shape<0, 2, 512>, row_shape<0, 2, 1024>, row_shape<0, 0, 512>>,
                                          row_shapes<row_shape<16, 1, 256>, row_shape<32, 1, 256>, row_shape<0, 1, 512>,
                                                     row_shape<0, 1, 1024>, row_shape<0, 0, 512>>>;
/// Rows that no access of several elements may begin.
using shape_of_elements = row_shape<0, 0, 512>;

/// Rows of a task of sums over the rows, whose blocks have so many groups. A group adds up 64 rows at most, so that the
/// rounding error does not grow with their number; fewer, where all blocks that 132 multiprocessors have at once have
/// work then, but 4 at least, since a task has a partial row. Were it more tasks than blocks at once, a few would come
/// late: 0.093 ms instead of 0.077 for rms_norm backward of 8192 x 4096 bf16 on an H200.
constexpr std::size_t rows_of_task(std::size_t rows, std::size_t groups, std::size_t blocks_at_once) {
  return std::clamp<std::size_t>(detail::ceil_div(rows, 132 * blocks_at_once), 4 * groups, 64 * groups);
}
/// The most tasks of so many rows.
constexpr std::size_t most_tasks(std::size_t rows) { return detail::ceil_div(rows, rows_of_task(rows, 1, 32)); }
static_assert(rows_of_task(8192, 1, 4) == 16 && rows_of_task(1 << 20, 1, 2) == 64);
static_assert(rows_of_task(1 << 20, 32, 3) == 2048 && rows_of_task(100, 32, 3) == 128);

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_PLAN_HPP
