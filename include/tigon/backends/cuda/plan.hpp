// How a GPU's threads share the rows of a program: what follows from the width of a row alone, so that results are the same
// bits on every GPU.
#ifndef TIGON_BACKENDS_CUDA_PLAN_HPP
#define TIGON_BACKENDS_CUDA_PLAN_HPP

#include <tigon/backends/cuda/group.hpp>
// After it.
#include <tigon/core/division.hpp>

#include <algorithm>
#include <cstddef>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// The threads of a row and what each keeps of it. A type, since nvcc takes no constants of classes in a kernel's arguments.
/// Lanes: of a warp; 0: the threads of a block. Kept: vectors that a thread keeps of a row, which is then read once; 0: every
/// pass reads it.
template <unsigned Lanes, int Kept, unsigned MostThreads>
struct row_shape {
  static constexpr unsigned lanes = Lanes, most_threads = MostThreads;
  static constexpr int kept = Kept;
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

/// Rows that are reduced and mapped, and keep so many bytes a vector. An H200 takes 0.0503, 0.0410 and 0.0391 ms for rms_norm
/// forward of 8192 x 4096 bf16 with 1, 2 and 4 vectors a thread.
template <std::size_t VectorBytes>
using shapes_of_rows = row_shapes<row_shape<16, 1, 128>, row_shape<32, 1, 128>, row_shape<32, 2, 128>,
                                  row_shape<0, VectorBytes <= 16 ? 4 : 2, 512>, row_shape<0, 4, 1024>,
                                  row_shape<0, 0, 1024>>;
/// The same with sums over the rows, which take registers of their own. An H200 takes 0.0856 and 0.0989 ms for rms_norm
/// backward of 8192 x 4096 bf16 with 2 and 4 vectors a thread.
using shapes_of_sums = row_shapes<row_shape<16, 1, 256>, row_shape<32, 1, 256>, row_shape<0, 1, 512>,
                                  row_shape<0, 2, 512>, row_shape<0, 2, 1024>, row_shape<0, 0, 512>>;
/// Rows that no access of several elements may begin.
using shape_of_elements = row_shape<0, 0, 512>;

/// Rows of a task of sums over the rows, whose blocks have so many groups. A group adds up 64 rows at most, so that the
/// rounding error does not grow with their number; fewer, where all multiprocessors have work then.
constexpr std::size_t rows_of_task(std::size_t rows, std::size_t groups) {
  return std::clamp<std::size_t>(detail::ceil_div(rows, 1056), 16 * groups, 64 * groups);
}
constexpr std::size_t tasks_of(std::size_t rows, std::size_t groups) {
  return detail::ceil_div(rows, rows_of_task(rows, groups));
}
static_assert(tasks_of(8192, 1) == 512 && tasks_of(1 << 20, 1) == 16384 && tasks_of(1 << 20, 16) == 1056);
static_assert(tasks_of(100000, 8) <= tasks_of(100000, 1));

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_PLAN_HPP
