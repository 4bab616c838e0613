// The matrix product: the canonical kernel, by Eigen, what it packs, and the memory that products take. Operators that
// are made of products include this: unlike the public functions it brings no backend, which may be made of those
// operators.
#ifndef TIGON_GEMM_KERNEL_HPP
#define TIGON_GEMM_KERNEL_HPP

#if defined(__has_include) && !__has_include(<Eigen/Core>)
#error \
    "tigon: products need <Eigen/Core> on every backend; install libeigen3-dev (vcpkg eigen3, Conan eigen) and add its include directory (-isystem /usr/include/eigen3)"
#include <the_error_above_ends_compilation>
#endif

#include <Eigen/Core>
#if !EIGEN_VERSION_AT_LEAST(3, 4, 0)
#error "tigon: Eigen 3.4 or newer is needed"
#include <the_error_above_ends_compilation>
#endif

#include <tigon/core/arguments.hpp>
#include <tigon/gemm/contract.hpp>
#include <tigon/simd/totals.hpp>

#include <algorithm>
#include <string>

namespace tigon {

namespace gemm_detail {
inline namespace TIGON_ABI {

// Eigen's threads would change the bits, and be started by each of the caller's threads. Eigen computes serially where
// the destination has at most 32 rows at compile time; without OpenMP there are no threads, and tall tiles pack less.
#if defined(EIGEN_HAS_OPENMP)
inline constexpr std::size_t eigen_tile_rows = 32;
#else
inline constexpr std::size_t eigen_tile_rows = 256;
#endif
inline constexpr std::size_t eigen_tile_cols = 256;
/// Depth of one call of a product with depth k. Of equal terms the error of a call grows as a quarter of its depth, and
/// the contract allows 4 + sqrt(k): so a short sum is cut into several calls. Not where the elements have so few digits
/// that such sums are exact.
template <element TA, element TB>
constexpr std::size_t eigen_depth(std::size_t k) {
  constexpr std::size_t chain = 64;
  constexpr bool exact = std::same_as<TA, bfloat16> && std::same_as<TB, bfloat16>;
  if (exact || k >= 228) return chain;
  return std::max<std::size_t>(1, ceil_div(k, k < 36 ? 1 : k < 100 ? 2 : k < 164 ? 3 : 4));
}
/// Calls that are added up one after the other. Of more calls, sums of so many are added to a compensated total. The
/// error of the plain sums stays below what the contract allows for their depth.
inline constexpr std::size_t eigen_calls = 32;
/// Rows of a tile whose bits do not depend on their place and number: Eigen takes up to eight at a time, the rest one
/// by one in another order, and matrices of few rows in yet another.
constexpr std::size_t even_rows(std::size_t rows) { return std::max<std::size_t>(24, round_up(rows, 8)); }

template <class A>
using eigen_matrix = Eigen::Matrix<A, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class A>
using eigen_input = Eigen::Map<const eigen_matrix<A>, Eigen::Unaligned, Eigen::OuterStride<>>;
template <class A>
using eigen_tile = Eigen::Map<
    Eigen::Matrix<A, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor,
                  eigen_tile_rows <= 32 ? static_cast<int>(eigen_tile_rows) : static_cast<int>(Eigen::Dynamic),
                  Eigen::Dynamic>,
    Eigen::Unaligned>;

/// A part of an operand, in storage order, in the type it is summed in.
template <class A>
struct panel {
  const A* data;
  std::size_t rows, cols, stride;

  eigen_input<A> map() const {
    const auto i = [](std::size_t x) { return static_cast<Eigen::Index>(x); };
    return {data, i(rows), i(cols), Eigen::OuterStride<>(i(stride))};
  }
};

/// Rows [row, row + rows) by columns [col, col + cols) of op(x); 16-bit elements are widened into `scratch`.
template <class V, element T>
panel<typename V::value_type> part_of(matrix_view<const T> x, transpose t, std::size_t row, std::size_t rows,
                                      std::size_t col, std::size_t cols, typename V::value_type* scratch) {
  if (t == transpose::yes) std::swap(row, col), std::swap(rows, cols);
  const T* first = x.data + row * x.row_stride + col;
  if constexpr (std::same_as<T, typename V::value_type>) {
    return {first, rows, cols, x.row_stride};
  } else {
    for (std::size_t i = 0; i < rows; ++i) widen<V>(first + i * x.row_stride, cols, scratch + i * cols);
    return {scratch, rows, cols, cols};
  }
}

/// A panel with rows of zeros behind its own; a copy in `scratch`, unless it is there already.
template <class A>
panel<A> with_zeros(panel<A> a, std::size_t rows, A* scratch) {
  if (a.data != scratch)
    for (std::size_t i = 0; i < a.rows; ++i) std::copy_n(a.data + i * a.stride, a.cols, scratch + i * a.cols);
  std::fill(scratch + a.rows * a.cols, scratch + rows * a.cols, A(0));
  return {scratch, rows, a.cols, a.cols};
}

template <class A>
void eigen_product(panel<A> a, transpose ta, panel<A> b, transpose tb, eigen_tile<A>& c, bool add) {
  const auto multiply = [&](const auto& x, const auto& y) {
    if (add)
      c.noalias() += x * y;
    else
      c.noalias() = x * y;
  };
  const auto left = [&](const auto& x) {
    if (tb == transpose::yes)
      multiply(x, b.map().transpose());
    else
      multiply(x, b.map());
  };
  if (ta == transpose::yes)
    left(a.map().transpose());
  else
    left(a.map());
}

}  // namespace TIGON_ABI
}  // namespace gemm_detail

/// The canonical product: tiles of c fixed by the shape alone, each a serial call of Eigen for every panel of depth
/// (16-bit operands are widened first, because Eigen sums them in 16 bits).
template <>
struct kernel<op::gemm, backends::generic> : detail::gemm_kernel {
  template <element TA, element TB>
  static constexpr std::string_view layout = "rows of f32 or f64";

  template <backend B, element TA, element TB, element TC>
  static constexpr gemm_cut cut_of(std::size_t m, std::size_t n, std::size_t k) {
    const std::size_t rows = std::min(m, tile_rows), cols = std::min(n, tile_cols);
    return {.tile_rows = rows, .tile_cols = cols, .depth = std::min(k, gemm_detail::eigen_depth<TA, TB>(k))};
  }

  template <backend B, element TA, element TB>
  static constexpr std::size_t packed_bytes(std::size_t k, std::size_t n) {
    return workspace::product(k, n, sizeof(accumulator_t<TB>));
  }

  template <backend B, element TA, element TB>
  static void pack(matrix_view<const TB> b, transpose, std::byte* to, context& ctx) {
    using A = accumulator_t<TB>;
    using V = simd::vec<typename B::engine, A>;
    A* out = reinterpret_cast<A*>(to);
    static_assert(detail::loops_on_host<B>());
    ctx.executor().run(gemm_detail::ceil_div(b.rows, 64), [&](std::size_t task, std::size_t) {
      const std::size_t first = task * 64, end = std::min(b.rows, first + 64);
      for (std::size_t i = first; i < end; ++i) gemm_detail::widen<V>(b.row(i), b.cols, out + i * b.cols);
    });
  }

  template <backend B, element TA, element TB, element TC>
  static std::size_t workspace_bytes(std::size_t m, std::size_t n, std::size_t k, std::size_t workers, bool packed_b) {
    const scratch s = scratch_of<TA, TB, TC>(m, n, k, packed_b);
    using A = accumulator_t<TC>;
    return workspace::bytes_for<A>(workspace::padded<A>(s.a + s.b + s.c), workers);
  }

  template <backend B, element TA, element TB, element TC, class Epilogue>
  static void forward(matrix_view<const TA> a, gemm_operand<TB> b, in_vector<TC> bias, matrix_view<TC> c,
                      const Epilogue& epilogue, gemm_options opt, context& ctx) {
    using A = accumulator_t<TC>;
    using V = simd::vec<typename B::engine, A>;
    const std::size_t m = c.rows, n = c.cols, k = gemm_detail::cols_of(a, opt.a);
    if (m == 0 || n == 0) return;
    const scratch s =
        scratch_of<TA, TB, TC>(std::max(m, opt.cut_as.rows), n, std::max(k, opt.cut_as.depth), b.packed != nullptr);
    const bool part = opt.cut_as.rows != 0 && opt.a == transpose::no;
    const std::size_t step = workspace::padded<A>(s.a + s.b + s.c);
    workspace::frame frame(ctx.workspace());
    A* memory = frame.template take<A>(step * ctx.executor().workers());
    const gemm_detail::scaling<A> scale{static_cast<A>(opt.alpha), static_cast<A>(opt.beta)};
    // Packed means widened, in storage order: Eigen sums a transposed vector in another order than a plain one.
    const matrix_view<const A> packed(reinterpret_cast<const A*>(b.packed), opt.b == transpose::no ? k : n,
                                      opt.b == transpose::no ? n : k);
    const std::size_t across = gemm_detail::ceil_div(n, tile_cols);

    static_assert(detail::loops_on_host<B>());
    ctx.executor().run(gemm_detail::ceil_div(m, tile_rows) * across, [&](std::size_t task, std::size_t worker) {
      const std::size_t i = task / across * tile_rows, j = task % across * tile_cols;
      const std::size_t rows = std::min(tile_rows, m - i), cols = std::min(tile_cols, n - j);
      A* sums = memory + worker * step;
      const std::size_t high = part ? gemm_detail::even_rows(rows) : rows;
      gemm_detail::eigen_tile<A> tile(sums, static_cast<Eigen::Index>(high), static_cast<Eigen::Index>(cols));
      if (k == 0) tile.setZero();
      std::size_t plain = 0;
      for (std::size_t p = 0; p < k; p += s.depth, ++plain) {
        const std::size_t depth = std::min(s.depth, k - p);
        if (s.total && plain == gemm_detail::eigen_calls) {
          add_to_total<V, simd::sums_after::same>(tile, p == plain * s.depth);
          plain = 0;
        }
        auto left = gemm_detail::part_of<V>(a, opt.a, i, rows, p, depth, sums + s.c);
        if (high != rows) left = gemm_detail::with_zeros(left, high, sums + s.c);
        if (b.packed != nullptr)
          gemm_detail::eigen_product(left, opt.a, gemm_detail::part_of<V>(packed, opt.b, p, depth, j, cols, sums),
                                     opt.b, tile, plain != 0);
        else
          gemm_detail::eigen_product(left, opt.a,
                                     gemm_detail::part_of<V>(b.view, opt.b, p, depth, j, cols, sums + s.c + s.a), opt.b,
                                     tile, plain != 0);
      }
      if (s.total) add_to_total<V, simd::sums_after::total>(tile, false);
      for (std::size_t y = 0; y < rows; ++y)
        gemm_detail::finish<V>(sums + y * cols, cols, scale, bias ? bias.data + j : nullptr, c.row(i + y) + j);
      epilogue(c.rows_from(i, rows).cols_from(j, cols), i, j, worker);
    });
  }

 private:
  static constexpr std::size_t tile_rows = gemm_detail::eigen_tile_rows, tile_cols = gemm_detail::eigen_tile_cols;

  /// Adds a tile to its total, the two tiles behind it.
  template <class V, simd::sums_after After, class Tile>
  static void add_to_total(Tile& tile, bool first) {
    const std::size_t n = static_cast<std::size_t>(tile.size());
    simd::add_to_total<V, After>(tile.data(), tile.data() + n, tile.data() + 2 * n, n, first);
  }

  /// Elements of a worker's scratch, the depth of one call, and whether tiles have totals.
  struct scratch {
    std::size_t a, b, c, depth;
    bool total;
  };
  template <element TA, element TB, element TC>
  static constexpr scratch scratch_of(std::size_t m, std::size_t n, std::size_t k, bool packed_b) {
    using A = accumulator_t<TC>;
    // The same calls for b packed or not: they decide the bits.
    constexpr bool wide_b = std::same_as<TB, A>;
    const std::size_t depth = gemm_detail::eigen_depth<TA, TB>(k);
    const std::size_t rows = gemm_detail::even_rows(std::min(m, tile_rows)), cols = std::min(n, tile_cols),
                      deep = std::min(depth, k);
    const bool total = gemm_detail::ceil_div(k, depth) > gemm_detail::eigen_calls;
    return {rows * deep, wide_b || packed_b ? 0 : deep * cols, (total ? 3 : 1) * rows * cols, depth, total};
  }
};

/// Bytes of workspace that a product takes on `workers` workers or fewer: ctx.executor().workers().
template <class B = default_backend, element TA, element TB = TA, element TC = TA>
std::size_t gemm_workspace(std::size_t m, std::size_t n, std::size_t k, std::size_t workers = 1) {
  return kernel_for<op::gemm, B>::template workspace_bytes<B, TA, TB, TC>(m, n, k, workers, false);
}
/// As gemm_workspace, for a packed b.
template <class B = default_backend, element TA, element TB = TA, element TC = TA>
std::size_t gemm_packed_workspace(std::size_t m, std::size_t n, std::size_t k, std::size_t workers = 1) {
  return kernel_for<op::gemm, B>::template workspace_bytes<B, TA, TB, TC>(m, n, k, workers, true);
}

/// Bytes of op(b) [k, n] packed to be multiplied by matrices of TA.
template <class B = default_backend, element TA, element TB = TA>
constexpr std::size_t gemm_pack_bytes(std::size_t k, std::size_t n) {
  return kernel_for<op::gemm, B>::template packed_bytes<B, TA, TB>(k, n);
}

/// Packs op(b) into `to`, for products with matrices of TA. Throws tigon::error: shape, stride, alias, workspace (`to`
/// is too small, or not aligned to 64 bytes).
template <class B = default_backend, element TA, class T>
packed_operand<gemm_detail::bare<T>> gemm_pack(matrix_view<T> b, std::span<std::byte> to, transpose t = transpose::no,
                                               context& ctx = default_context<B>()) {
  using TB = gemm_detail::bare<T>;
  static_assert(gemm_detail::admits_types<B, TA, TB, TB>());
  using K = kernel_for<op::gemm, B>;
  arguments args("gemm_pack");
  args.in("b", b);
  const std::size_t k = gemm_detail::rows_of(b, t), n = gemm_detail::cols_of(b, t);
  const std::size_t bytes = gemm_pack_bytes<B, TA, TB>(k, n);
  if (to.size() < bytes)
    detail::fail_argument(error_code::workspace, "gemm_pack", "to", "of " + std::to_string(to.size()) + " bytes",
                          std::to_string(bytes));
  args.that(bytes == 0 || reinterpret_cast<std::uintptr_t>(to.data()) % workspace::alignment == 0,
            error_code::workspace, "to", "at an unaligned address", "a multiple of 64 bytes");
  args.out("to", to);
  args.check();
  K::template pack<B, TA, TB>(b, t, to.data(), ctx);
  return {to.data(), bytes, k, n, t, K::template layout<TA, TB>};
}

/// Bytes of workspace that gemm_backward takes; m, n, k as in forward.
template <class B = default_backend, element TA, element TB = TA, element TC = TA>
std::size_t gemm_backward_workspace(std::size_t m, std::size_t n, std::size_t k, gemm_backward_options opt = {},
                                    std::size_t workers = 1) {
  const std::size_t da = opt.a == transpose::no ? gemm_workspace<B, TC, TB, TA>(m, k, n, workers)
                                                : gemm_workspace<B, TB, TC, TA>(k, m, n, workers);
  const std::size_t db = opt.b == transpose::no ? gemm_workspace<B, TA, TC, TB>(k, n, m, workers)
                                                : gemm_workspace<B, TC, TA, TB>(n, k, m, workers);
  return std::max(da, db);
}

}  // namespace tigon

#endif  // TIGON_GEMM_KERNEL_HPP
