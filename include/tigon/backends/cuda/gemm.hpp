// Products on a GPU: by cuBLASLt where a and b have one type, and c that or f32; otherwise, and for strides and depths
// of 0, by a kernel that is plain and slow.
#ifndef TIGON_BACKENDS_CUDA_GEMM_HPP
#define TIGON_BACKENDS_CUDA_GEMM_HPP

#include <tigon/backends/cuda/backend.hpp>
#if !defined(TIGON_CUDA_MODEL)
#include <tigon/backends/cuda/cublas.hpp>
#endif
// Behind them: they say how these are compiled.
#include <tigon/gemm/kernel.hpp>
#include <tigon/rows/matrices.hpp>

namespace tigon {
namespace gpu {
inline namespace TIGON_ABI {

/// Rows and columns of c that a block of plain_product makes, and terms that it adds up in A before they go to f64.
inline constexpr unsigned plain_tile = 16;

/// A number in the device's memory that multiplies a product in place of alpha, and what beta then points to.
template <class A>
struct product_factor {
  A value, zero, one;
};

/// op(m)
template <class T>
struct plain_operand {
  matrix_view<const T> m;
  bool transposed;
  template <class A>
  TIGON_DEVICE_INLINE A at(std::size_t i, std::size_t j) const {
    return static_cast<A>(transposed ? m.row(j)[i] : m.row(i)[j]);
  }
};
/// c = alpha op(a) op(b) + beta c + bias: one element a thread. `factor` may be null.
template <class TA, class TB, class TC>
__global__ void __launch_bounds__(plain_tile* plain_tile)
    plain_product(plain_operand<TA> a, plain_operand<TB> b, const TC* bias, matrix_view<TC> c, std::size_t depth,
                  double alpha, double beta, const product_factor<accumulator_t<TC>>* factor) {
  using A = accumulator_t<TC>;
  __shared__ A of_a[plain_tile][plain_tile + 1], of_b[plain_tile][plain_tile + 1];
  const unsigned y = threadIdx.y, x = threadIdx.x;
  const std::size_t i = blockIdx.y * std::size_t{plain_tile} + y, j = blockIdx.x * std::size_t{plain_tile} + x;
  double sum = 0;
  for (std::size_t begin = 0; begin < depth; begin += plain_tile) {
    const std::size_t p = begin + x, q = begin + y;
    of_a[y][x] = i < c.rows && p < depth ? a.template at<A>(i, p) : A(0);
    of_b[y][x] = j < c.cols && q < depth ? b.template at<A>(q, j) : A(0);
    __syncthreads();
    A part(0);
#pragma unroll
    for (unsigned k = 0; k < plain_tile; ++k) part += of_a[y][k] * of_b[k][x];
    sum += static_cast<double>(part);
    __syncthreads();
  }
  if (i >= c.rows || j >= c.cols) return;
  TC& to = c.row(i)[j];
  double value = (factor == nullptr ? alpha : static_cast<double>(factor->value)) * sum;
  if (beta != 0) value += beta * static_cast<double>(static_cast<A>(to));
  if (bias != nullptr) value += static_cast<double>(static_cast<A>(bias[j]));
  to = as_element<TC>(static_cast<A>(value));
}

}  // namespace TIGON_ABI
}  // namespace gpu

template <>
struct kernel<op::gemm, backends::cuda> : detail::gemm_kernel {
  /// Whether cuBLASLt has such products.
#if defined(TIGON_CUDA_MODEL)
  template <element, element, element>
  static constexpr bool in_library = false;
#else
  template <element TA, element TB, element TC>
  static constexpr bool in_library =
      std::same_as<TA, TB> && (std::same_as<TC, TA> || (std::same_as<TC, float> && !std::same_as<TA, double>));
#endif
  template <element TA, element TB>
  static constexpr std::string_view layout = "rows";

  template <backend B, element TA, element TB>
  static constexpr std::size_t packed_bytes(std::size_t k, std::size_t n) {
    return workspace::product(k, n, sizeof(TB));
  }
  /// Rows without gaps.
  template <backend B, element TA, element TB>
  static void pack(matrix_view<const TB> b, transpose, std::byte* to, context& ctx) {
    detail::convert_matrix<B>(b, matrix_view<TB>(reinterpret_cast<TB*>(to), b.rows, b.cols), ctx);
  }

  template <backend B, element TA, element TB, element TC>
  static constexpr std::size_t workspace_bytes(std::size_t, std::size_t, std::size_t, std::size_t, bool) {
#if !defined(TIGON_CUDA_MODEL)
    if constexpr (in_library<TA, TB, TC>) return workspace::bytes_for<std::byte>(gpu::cublas::workspace_bytes);
#endif
    return 0;
  }

  template <backend B, element TA, element TB, element TC, class Epilogue>
  static void forward(matrix_view<const TA> a, gemm_operand<TB> b, in_vector<TC> bias, matrix_view<TC> c,
                      const Epilogue&, gemm_options opt, context& ctx) {
    static_assert(std::same_as<Epilogue, no_epilogue>,
                  "tigon: on cuda a product has no epilogue: its parts are not on the host");
    run<B, TA, TB, TC>(a, b, bias, c, opt, nullptr, ctx);
  }
  /// The same. `factor`, if it is not null, takes the place of alpha, and beta is 0 or 1.
  template <backend B, element TA, element TB, element TC>
  static void run(matrix_view<const TA> a, gemm_operand<TB> b, in_vector<TC> bias, matrix_view<TC> c, gemm_options opt,
                  const gpu::product_factor<accumulator_t<TC>>* factor, context& ctx) {
    const std::size_t m = c.rows, n = c.cols, k = gemm_detail::cols_of(a, opt.a);
    if (m == 0 || n == 0) return;
    const bool a_transposed = opt.a == transpose::yes, b_transposed = opt.b == transpose::yes;
    if (b.packed != nullptr)
      b.view = {reinterpret_cast<const TB*>(b.packed), b_transposed ? n : k, b_transposed ? k : n};
#if !defined(TIGON_CUDA_MODEL)
    if constexpr (in_library<TA, TB, TC>)
      if (k != 0 && a.row_stride >= a.cols && b.view.row_stride >= b.view.cols) {
        workspace::frame frame(ctx.workspace());
        std::byte* const scratch = gpu::cublas::aligned(frame.template take<std::byte>(gpu::cublas::workspace_bytes));
        const gpu::cublas_product product{a.data,
                                          b.view.data,
                                          c.data,
                                          bias.data,
                                          m,
                                          n,
                                          k,
                                          a.row_stride,
                                          b.view.row_stride,
                                          c.row_stride,
                                          a_transposed,
                                          b_transposed,
                                          gpu::cuda_type<TA>(),
                                          gpu::cuda_type<TC>(),
                                          opt.alpha,
                                          opt.beta,
                                          factor == nullptr ? nullptr : &factor->value,
                                          factor == nullptr ? nullptr : &(opt.beta == 0 ? factor->zero : factor->one)};
        gpu::cublas::of_this_device().run(product, scratch, gpu::stream_of(ctx));
        return gpu::is_queued(ctx);
      }
#endif
    const auto tiles = [](std::size_t extent) { return gpu::blocks(tigon::detail::ceil_div(extent, gpu::plain_tile)); };
    gpu::launch(ctx, gpu::plain_product<TA, TB, TC>, dim3(tiles(n), tiles(m)), dim3(gpu::plain_tile, gpu::plain_tile),
                gpu::plain_operand<TA>{a, a_transposed}, gpu::plain_operand<TB>{b.view, b_transposed}, bias.data, c, k,
                opt.alpha, opt.beta, factor);
  }
};

}  // namespace tigon

#endif  // TIGON_BACKENDS_CUDA_GEMM_HPP
