// Sums over chunks of rows for a gradient of 16 bits, half of which lie in the gradient's own memory.
#ifndef TIGON_BACKENDS_CUDA_HALVED_SUMS_HPP
#define TIGON_BACKENDS_CUDA_HALVED_SUMS_HPP

#include <tigon/backends/cuda/rows.hpp>
// Behind it: it says how these are compiled.
#include <tigon/rows/matrices.hpp>

#include <algorithm>

namespace tigon::gpu {
inline namespace TIGON_ABI {

/// Sums in A, which has twice the bytes of G, for a gradient without gaps that is overwritten. The sums of its first
/// rows fill the memory of the whole gradient until finish() rounds them; those of the other rows take the workspace.
template <class B, class A, element G>
class halved_sums {
 public:
  /// Whether there can be such sums for a gradient of G.
  static constexpr bool exist = sizeof(A) == 2 * sizeof(G);
  /// Bytes that they take.
  static constexpr std::size_t bytes(std::size_t rows, std::size_t cols) {
    return workspace::bytes_for<A>(rows - in_place(rows), cols);
  }

  halved_sums() = default;
  halved_sums(workspace::frame& frame, matrix_view<G> to)
      : to_(to),
        first_(reinterpret_cast<A*>(to.data), in_place(to.rows), to.cols),
        other_(nullptr, to.rows - first_.rows, to.cols) {
    other_.data = frame.template take<A>(other_.rows * other_.cols);
  }
  explicit operator bool() const { return to_.data != nullptr; }

  /// f(sums, row) for both parts: sums of the gradient's rows from `row` on.
  template <class F>
  void each(F f) const {
    if (first_.rows != 0) f(first_, std::size_t{0});
    f(other_, first_.rows);
  }

  /// The gradient. `scratch` has memory for at least one element.
  void finish(std::span<G> scratch, context& ctx) const {
    const std::size_t n = first_.rows * first_.cols;
    // An element of the gradient has half the offset of its sum: the first ones would be written over sums that are to
    // be read.
    std::size_t done = std::min(n, scratch.size());
    round(first_.data, scratch.data(), done, ctx);
    round(scratch.data(), to_.data, done, ctx);
    while (done < n) {
      const std::size_t some = std::min(done, n - done);
      round(first_.data + done, to_.data + done, some, ctx);
      done += some;
    }
    round(other_.data, to_.data + n, other_.rows * other_.cols, ctx);
  }

 private:
  /// Of so many rows those whose sums lie in the gradient: whole pairs of tiles of 128 rows, for the product, of a
  /// large gradient, else whole lines.
  static constexpr std::size_t in_place(std::size_t rows) {
    const std::size_t multiple = rows >= 4096 ? 256 : 64;
    return rows / 2 / multiple * multiple;
  }

  template <class From>
  static void round(const From* from, G* to, std::size_t n, context& ctx) {
    if (n != 0) tigon::detail::convert_matrix<B>(matrix_view(from, 1, n), matrix_view(to, 1, n), ctx);
  }

  matrix_view<G> to_;
  matrix_view<A> first_, other_;
};

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_HALVED_SUMS_HPP
