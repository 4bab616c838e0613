// Softmax over the last axis, forward and backward.
#ifndef TIGON_OPS_SOFTMAX_HPP
#define TIGON_OPS_SOFTMAX_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/ops/softmax_program.hpp>
#include <tigon/rows/pipelined.hpp>

namespace tigon {

namespace op {
struct softmax {
  static constexpr std::string_view name = "softmax";
};
}  // namespace op

/// Softmax over the last axis.
///
///   y[i,j] = exp(scale * (x[i,j] - max_j x[i,j])) / sum_j of the same
///   delta[i] = sum_j dy[i,j] y[i,j] / sum_j y[i,j],   dx = scale * y * (dy - delta)
///
/// Formula    docs/formulas/softmax.md.
/// Shapes     x, y, dy, dx [rows, cols]. cols >= 1, rows may be 0.
/// Types      f32, bf16, f16, f64, one for all.
/// Precision  exponentials (for bf16 and f16 as exact as such a y shows), sum and delta in f32 (f64 for f64), one
///            rounding at y and dx. The sum of y is 1 up to the rounding of y, which the division takes out of dy - delta.
/// Writes     y, dx.
/// Aliasing   forward: y may be x, and then rows of more than 1024 columns of f32 or f64 may round otherwise. backward:
///            dx may be dy or y. Otherwise any layout in which no element is shared.
/// Throws     tigon::error: shape, stride, alias, argument (a scale that is not above 0 or not finite in f32),
///            workspace; before the first write.
/// Edges      -inf gives 0; a row of only -inf, with +inf or with NaN is NaN throughout.
/// Max error  f32 1e-6, bf16 4e-3 of |reference| + its root mean square, both ways (tests/ops/softmax_test.cpp).
struct softmax_options {
  double scale = 1;
};

namespace detail {
inline namespace TIGON_ABI {

/// Sums of exponentials over the blocks of a row. Each block has its own reference, which its maximum exceeds by at
/// most 1 / scale.
template <class A>
struct block_sums {
  static constexpr std::size_t most = 64;
  A top[most], sum[most];
  std::size_t count = 0;
  A highest = std::numeric_limits<A>::lowest();  ///< of the references so far

  /// The reference of the next block, if `largest` is its maximum.
  TIGON_INLINE A reference(A largest, A scale) const { return (largest - highest) * scale > A(1) ? largest : highest; }
  TIGON_INLINE void add(A t, A s) {
    top[count] = highest = t;
    sum[count++] = s;
  }
  /// Replaces the sum of each block by the factor that makes its exponentials the softmax of the row.
  TIGON_INLINE void to_factors(A scale) {
    A total(0);
    for (std::size_t k = 0; k < count; ++k) {
      top[k] = top[k] == highest ? A(1) : math::exp_nonpositive((top[k] - highest) * scale);
      total += top[k] * sum[k];
    }
    for (std::size_t k = 0; k < count; ++k) sum[k] = top[k] / total;
  }
  TIGON_INLINE A factor(std::size_t k) const { return sum[k]; }
};

}  // namespace TIGON_ABI
}  // namespace detail

template <>
struct kernel<op::softmax, backends::generic> {
  template <class>
  using saved = no_state;  // y itself

  template <backend B, element T>
  static void forward(in_matrix<T> x, matrix_view<T> y, softmax_options opt, context& ctx) {
    using A = accumulator_t<T>;
    const A scale = static_cast<A>(opt.scale);
    const bool once = std::same_as<T, A> && x.data == y.data;  // the exponentials take the place of x
    const auto e = [=](const auto& block) TIGON_LAMBDA {
      if constexpr (std::same_as<T, A>)
        if (once) return vector_view<A>{y.row(block.i), block.cols};
      return block.scratch(0);
    };
    const simd::pipelined blocks{.rows = x.rows,
                                 .cols = x.cols,
                                 .block_cols = once ? columns_in_place<B>() : columns_per_block<B>(),
                                 .overlap = !once};
    for_rows_pipelined<B, A, detail::block_sums<A>>(
        ctx, blocks,
        [=] TIGON_FN(auto block, auto& sums) {
          // The reference is the largest number of the blocks so far. Where this block has a much larger one, its
          // exponentials are computed again. In place they cannot be, so the maximum of the block is found first.
          A top = sums.highest;
          if (once || sums.count == 0) top = sums.reference(block.max(reads(x), [](auto v) { return v; }), scale);
          for (;;) {
            const auto [sum, largest] = block.map_sum_max(reads(x), writes(e(block)), [=](auto v) {
              const auto p = simd::exp_nonpositive<detail::result_bits<B, T>>((v - top) * scale);
              return pack{p, p, v};
            });
            const A wanted = sums.reference(largest, scale);
            if (once || !(wanted > top)) return sums.add(top, sum);
            top = wanted;
          }
        },
        [=](auto& sums) { sums.to_factors(scale); },
        [=] TIGON_FN(auto block, const auto& sums, std::size_t k) {
          const A r = sums.factor(k);
          // x is an operand, because y may be x: then its lines are cached, and stores to y are not streamed.
          block.map(reads(e(block), x), writes(y), [=](auto p, auto) { return p * r; });
        });
  }

  template <backend B, element T>
  static void backward(in_matrix<T> dy, in_matrix<T> y, matrix_view<T> dx, softmax_options opt, context& ctx) {
    using A = accumulator_t<T>;
    reduce_map<B>(ctx, detail::softmax_gradient<A>{static_cast<A>(opt.scale)}, reads(dy, y), writes(dx));
  }
};

namespace detail {
inline namespace TIGON_ABI {
template <class T>
void expect_scale(const expects& expect, double scale) {
  constexpr double most = std::numeric_limits<accumulator_t<T>>::max();
  expect.option(scale > 0 && scale <= std::min(1e300, most), "scale", scale, "a finite number above 0");
}
}  // namespace TIGON_ABI
}  // namespace detail

/// Bytes of workspace that softmax_forward takes.
template <class B = default_backend, class T>
std::size_t softmax_workspace(std::size_t cols, const context& ctx = default_context()) {
  return simd::pipelined_workspace<B, accumulator_t<T>>(cols, 1, ctx);
}

/// y from x. See softmax_options for the contract.
template <class B = default_backend, class T>
void softmax_forward(in_matrix<T> x, matrix_view<T> y, softmax_options opt = {}, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  arguments args("softmax_forward");
  args.at_least_one("cols", x.cols);
  args.in("x", x);
  args.out("y", y, x.rows, x.cols).may_be("x");
  detail::expect_scale<T>(args, opt.scale);
  args.check();
  ctx.workspace().expect("softmax_forward", softmax_workspace<B, T>(x.cols, ctx));
  kernel_for<op::softmax, B>::template forward<B, T>(x, y, opt, ctx);
}

/// dx from dy and y. See softmax_options for the contract.
template <class B = default_backend, class T>
void softmax_backward(in_matrix<T> dy, in_matrix<T> y, matrix_view<T> dx, softmax_options opt = {},
                      context& ctx = default_context()) {
  static_assert(admits<B, T>());
  arguments args("softmax_backward");
  args.at_least_one("cols", y.cols);
  args.in("y", y);
  args.in("dy", dy, y.rows, y.cols);
  args.out("dx", dx, y.rows, y.cols).may_be("dy", "y");
  detail::expect_scale<T>(args, opt.scale);
  args.check();
  kernel_for<op::softmax, B>::template backward<B, T>(dy, y, dx, opt, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_OPS_SOFTMAX_HPP
