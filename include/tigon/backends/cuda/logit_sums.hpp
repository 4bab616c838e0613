// Sums of the logits of rows on a GPU, which need no logits: the sum over rows of x times that over rows of w. In f64.
#ifndef TIGON_BACKENDS_CUDA_LOGIT_SUMS_HPP
#define TIGON_BACKENDS_CUDA_LOGIT_SUMS_HPP

#include <tigon/backends/cuda/group.hpp>
#include <tigon/backends/cuda/runtime.hpp>
// Behind them: they say how these are compiled.
#include <tigon/core/division.hpp>
#include <tigon/losses/linear/linear_layer.hpp>

#include <algorithm>

namespace tigon::gpu {
inline namespace TIGON_ABI {

// Which of two sums a row belongs to.

/// The chosen rows come first.
struct halves_of_rows {
  std::size_t half;
  TIGON_DEVICE_INLINE bool operator()(std::size_t i) const { return i >= half; }
};
/// Rows of desirable sequences belong to the first.
struct desirable_rows {
  const std::uint8_t* desirable;
  std::size_t length;
  TIGON_DEVICE_INLINE bool operator()(std::size_t i) const { return desirable[i / length] == 0; }
};
struct all_rows {
  TIGON_DEVICE_INLINE bool operator()(std::size_t) const { return false; }
};

/// Tasks of rows, each of which has partial sums.
inline constexpr std::size_t most_row_tasks = 64, columns_of_sums = 256;

/// to[task][which][column], the sums over the task's rows.
template <class E, class A, class Which>
__global__ void __launch_bounds__(columns_of_sums)
    sum_rows(matrix_view<const E> m, std::size_t per_task, Which which, double* to) {
  const std::size_t j = blockIdx.x * columns_of_sums + threadIdx.x, begin = blockIdx.y * per_task,
                    end = begin + per_task < m.rows ? begin + per_task : m.rows;
  if (j >= m.cols) return;
  double sum[2] = {0, 0};
#pragma unroll 4
  for (std::size_t i = begin; i < end; ++i) {
    const double v = static_cast<double>(static_cast<A>(m.row(i)[j]));
    const bool second = which(i);
    sum[0] += second ? 0 : v, sum[1] += second ? v : 0;
  }
  to[(blockIdx.y * 2 + 0) * m.cols + j] = sum[0], to[(blockIdx.y * 2 + 1) * m.cols + j] = sum[1];
}
/// A layer's sums, and what becomes of them.
template <class W, class A>
struct logit_sums_of {
  const double *x, *w;
  std::size_t x_tasks, w_tasks, rows, hidden, vocab;
  const W* bias;
  double factor;
  A *first, *second;
};
/// One block.
template <class W, class A, class Which>
__global__ void __launch_bounds__(columns_of_sums)
    multiply_sums(const __grid_constant__ logit_sums_of<W, A> of, Which which) {
  double sum[5] = {};  // both sums; the bias; rows of both
  for (std::size_t h = threadIdx.x; h < of.hidden; h += blockDim.x) {
    double x[2] = {0, 0}, w = 0;
    for (std::size_t t = 0; t < of.x_tasks; ++t)
      x[0] += of.x[2 * t * of.hidden + h], x[1] += of.x[(2 * t + 1) * of.hidden + h];
    for (std::size_t t = 0; t < of.w_tasks; ++t) w += of.w[2 * t * of.hidden + h];
    sum[0] += x[0] * w, sum[1] += x[1] * w;
  }
  if (of.bias != nullptr)
    for (std::size_t j = threadIdx.x; j < of.vocab; j += blockDim.x)
      sum[2] += static_cast<double>(static_cast<A>(of.bias[j]));
  for (std::size_t i = threadIdx.x; i < of.rows; i += blockDim.x) sum[which(i) ? 4 : 3] += 1;
  group<0>::reduce<add>(sum);
  if (threadIdx.x != 0) return;
  if (of.first != nullptr) *of.first = static_cast<A>(of.factor * (sum[0] + sum[3] * sum[2]));
  if (of.second != nullptr) *of.second = static_cast<A>(of.factor * (sum[1] + sum[4] * sum[2]));
}

inline std::size_t sums_of_logits_bytes(std::size_t hidden) {
  return 2 * workspace::bytes_for<double>(2 * most_row_tasks, hidden);
}
/// factor times the sums of the logits of the rows of both kinds; one without memory is not written.
template <layer_types T, class Which, class A = accumulator_t<T>>
void put_logit_sums(const linear_layer<T>& head, Which which, double factor, std::span<A> first, std::span<A> second,
                    context& ctx) {
  if (first.data() == nullptr && second.data() == nullptr) return;
  using W = weight_t<T>;
  const std::size_t hidden = head.x.cols;
  workspace::frame frame(ctx.workspace());
  const auto sums = [&]<class E, class Of>(matrix_view<const E> m, Of of, std::size_t& tasks) {
    double* const to = frame.template take<double>(2 * most_row_tasks * hidden);
    const std::size_t per_task = std::max<std::size_t>(tigon::detail::ceil_div(m.rows, most_row_tasks), 1);
    tasks = tigon::detail::ceil_div(m.rows, per_task);
    if (tasks != 0 && hidden != 0)
      launch(ctx, sum_rows<E, A, Of>,
             dim3(blocks(tigon::detail::ceil_div(hidden, columns_of_sums)), static_cast<unsigned>(tasks)),
             dim3(columns_of_sums), m, per_task, of, to);
    return to;
  };
  logit_sums_of<W, A> of{};
  of.x = sums(head.x, which, of.x_tasks), of.w = sums(head.w, all_rows{}, of.w_tasks);
  of.rows = head.x.rows, of.hidden = hidden, of.vocab = head.w.rows, of.bias = head.bias.data(), of.factor = factor;
  of.first = first.data(), of.second = second.data();
  launch(ctx, multiply_sums<W, A, Which>, dim3(1), dim3(columns_of_sums), of, which);
}

}  // namespace TIGON_ABI
}  // namespace tigon::gpu

#endif  // TIGON_BACKENDS_CUDA_LOGIT_SUMS_HPP
