// The matrix product: its contract, its options, and what every provider of it is given. No product is computed here.
#ifndef TIGON_GEMM_CONTRACT_HPP
#define TIGON_GEMM_CONTRACT_HPP

#include <tigon/backend/operator.hpp>
#include <tigon/core/division.hpp>
#include <tigon/simd/vec.hpp>

#include <string_view>

namespace tigon {

namespace op {
struct gemm {
  static constexpr std::string_view name = "gemm";
};
}  // namespace op

enum class transpose { no, yes };

constexpr transpose operator!(transpose t) { return t == transpose::no ? transpose::yes : transpose::no; }

/// Rows of op(a) and depth k that a product is cut by; 0: its own.
struct gemm_extents {
  std::size_t rows = 0, depth = 0;
  friend constexpr bool operator==(gemm_extents, gemm_extents) = default;
};

/// The product of two matrices.
///
///   c[i,j] = alpha * sum_p op(a)[i,p] * op(b)[p,j] + beta * c[i,j] + bias[j]
///   backward, with the dc of alpha * op(a) op(b):   d op(a) = alpha * dc op(b)^T,   d op(b) = alpha * op(a)^T dc
///
/// Shapes     c, dc [m, n]; op(a) [m, k], so a is [m, k], or [k, m] with transpose::yes; op(b) [k, n]; bias [n] or
///            `absent`. Any extent may be 0: with k = 0 the sum is 0. Row strides everywhere.
/// Types      a, b, c, bias each one of f32, bf16, f16; or all f64.
/// Precision  sums in f32 (f64 for f64), one rounding at the store, also where c has 16 bits. On `avx512_bf16`,
///            `arm_bf16`, `amx` and `onednn` the product of two bf16 matrices reads and sums subnormal numbers as zero.
///            So does `amx` where a is f32 and b bf16: there a number of a is the exact sum of three bf16 numbers, of
///            which digits below 2^-125 are lost, as those of its products with b are.
/// Writes     c; with beta = 0 it is not read, so that NaN in fresh memory does no harm. Backward writes da and db,
///            or adds to them with gradient::accumulate; either may be `absent`.
/// Aliasing   c shares no element with a, b, a packed b or bias; da and db share none with any argument. Any layout.
/// Threads    the same bits for any number of them, and for b packed or not.
/// Parts      rows that are multiplied in several products, some in each, have the same bits in any of them and at any
///            place, where each product is cut as that of at least the most rows: cut_as.rows, with transpose::no of a.
///            So have sums over the same depth that are cut as those of one depth: cut_as.depth, for b not packed. A
///            product takes no more workspace than the one that it is cut as. A kernel of a backend's own that does
///            not know cut_as gives this up, and has to do with that workspace.
/// Throws     tigon::error: shape, stride, alias, argument (alpha or beta outside option_range), state (b packed for
///            another kernel; on `amx`, no tile registers), workspace; before the first write.
/// Max error  eps * (4 + sqrt(k)) * (|alpha| * |op(a)| |op(b)| + |beta c| + |bias|) elementwise, plus half a unit of
///            c's type; eps = 2^-24, 2^-53 in f64 (tests/gemm/gemm_test.cpp). For any k, where roundings are
///            independent and where all terms of a sum are alike; on `onednn` a product of two bf16 matrices takes them
///            to be independent. Whatever the terms: eps * (4 + min(k, 704)), as no more roundings follow each other.
///
/// ```cpp
/// std::vector<float> x(4 * 16, 0.5f), w(8 * 16, 2), y(4 * 8), dx(x.size()), dw(w.size());
/// const tigon::matrix_view a(x.data(), 4, 16), b(w.data(), 8, 16), c(y.data(), 4, 8);
/// tigon::gemm(a, b, c, {.b = tigon::transpose::yes});  // y = x w^T
/// const tigon::matrix_view da(dx.data(), 4, 16), db(dw.data(), 8, 16);
/// tigon::gemm_backward(c, a, b, da, db, {.b = tigon::transpose::yes});  // dy = y
/// ```
struct gemm_options {
  double alpha = 1;
  double beta = 0;
  transpose a = transpose::no;
  transpose b = transpose::no;
  gemm_extents cut_as{};  ///< of the largest product that this one is a part of; less than its own extents is those
};

struct gemm_backward_options {
  double alpha = 1;
  transpose a = transpose::no;  ///< as in forward
  transpose b = transpose::no;  ///< as in forward
  gradient da = gradient::overwrite;
  gradient db = gradient::overwrite;
};

/// An epilogue is called once for every finished part of c while it is in the cache, by the worker that finished it:
///   epilogue(part, row, col, worker)      part is c[row, row + part.rows) x [col, col + part.cols)
/// Parts cover c without overlap; their extents depend on shapes alone. Calls come from several workers at a time.
struct no_epilogue {
  template <class T>
  void operator()(matrix_view<T>, std::size_t, std::size_t, std::size_t) const {}
};

/// op(b) in the order in which a kernel wants it: made once by gemm_pack, used in place of b many times. The bytes
/// belong to the caller.
template <element T>
struct packed_operand {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t rows = 0;              ///< k
  std::size_t cols = 0;              ///< n
  transpose stored = transpose::no;  ///< how b lay in memory
  std::string_view layout;           ///< of the kernel that packed it
};

/// b as a kernel receives it: a view in storage order, or a packed operand.
template <element T>
struct gemm_operand {
  matrix_view<const T> view;
  const std::byte* packed = nullptr;
};

/// How a kernel cuts a product for many workers, for whoever wants to see it (tigon_info --plans). A kernel says so by
/// a function
///   template <backend B, element TA, element TB, element TC>
///   static constexpr gemm_cut cut_of(std::size_t m, std::size_t n, std::size_t k);
struct gemm_cut {
  std::size_t tile_rows = 0, tile_cols = 0;  ///< of sums that are in registers, or in one call of a library
  std::size_t depth = 0;                     ///< of a block: sums go to memory after so many terms
  std::size_t packed_depth = 0;              ///< of what is packed at a time; 0: nothing is
  std::size_t shared = 0;                    ///< rows (or columns) packed for all tasks
  std::size_t segment = 0, part = 0;         ///< of them in a task, and columns (or rows) of the other operand
  bool shares_a = false;                     ///< those of a are shared, or else those of b
};

namespace gemm_detail {
inline namespace TIGON_ABI {

using detail::ceil_div;
using detail::round_up;

template <class T>
constexpr std::size_t rows_of(matrix_view<T> m, transpose t) {
  return t == transpose::no ? m.rows : m.cols;
}
template <class T>
constexpr std::size_t cols_of(matrix_view<T> m, transpose t) {
  return t == transpose::no ? m.cols : m.rows;
}

/// to[i] = from[i], widened.
template <class V, element T>
TIGON_INLINE void widen(const T* from, std::size_t n, typename V::value_type* to) {
  std::size_t i = 0;
  for (; i + V::size <= n; i += V::size) simd::store(simd::load<V>(from + i), to + i);
  if (i < n) simd::store_n(simd::load_n<V>(from + i, n - i), to + i, n - i);
}

template <class A>
struct scaling {
  A alpha, beta;
};

/// One row of c from a row of sums: the only place where a 16-bit c is rounded.
template <class V, element T>
TIGON_INLINE void finish(const typename V::value_type* sums, std::size_t n, scaling<typename V::value_type> s,
                         const T* bias, T* c) {
  const V alpha(s.alpha), beta(s.beta);
  const auto value = [&](V v, auto old, auto add) TIGON_LAMBDA {
    v = alpha * v;
    if (s.beta != 0) v = fma(beta, old(), v);
    if (bias != nullptr) v = v + add();
    return v;
  };
  std::size_t j = 0;
  for (; j + V::size <= n; j += V::size)
    simd::store(
        value(
            simd::load<V>(sums + j), [&] { return simd::load<V>(c + j); }, [&] { return simd::load<V>(bias + j); }),
        c + j);
  if (const std::size_t rest = n - j; rest != 0)
    simd::store_n(value(
                      simd::load_n<V>(sums + j, rest), [&] { return simd::load_n<V>(c + j, rest); },
                      [&] { return simd::load_n<V>(bias + j, rest); }),
                  c + j, rest);
}

template <class T>
using bare = std::remove_const_t<T>;

template <class B, class TA, class TB, class TC>
consteval bool admits_types() {
  static_assert(admits<B, TA>() && admits<B, TB>() && admits<B, TC>());
  static_assert(mixes_with<TA, TB> && mixes_with<TA, TC>,
                "tigon: double matrices multiply only double matrices; convert one of them");
  return true;
}

}  // namespace TIGON_ABI
}  // namespace gemm_detail

namespace detail {
inline namespace TIGON_ABI {

/// What all providers share: backward is two products, each through B.
struct gemm_kernel {
  template <class T>
  using saved = no_state;

  template <backend B, element TC, element TA, element TB>
  static void backward(matrix_view<const TC> dc, matrix_view<const TA> a, matrix_view<const TB> b, matrix_view<TA> da,
                       matrix_view<TB> db, gemm_backward_options opt, context& ctx) {
    const auto product = [&](auto x, transpose tx, auto y, transpose ty, auto out, gradient mode) {
      using X = std::remove_const_t<std::remove_pointer_t<decltype(x.data)>>;
      using Y = std::remove_const_t<std::remove_pointer_t<decltype(y.data)>>;
      using Z = std::remove_pointer_t<decltype(out.data)>;
      kernel_for<op::gemm, B>::template forward<B, X, Y, Z>(
          x, {y}, in_vector<Z>{}, out, no_epilogue{},
          {.alpha = opt.alpha, .beta = mode == gradient::accumulate ? 1.0 : 0.0, .a = tx, .b = ty}, ctx);
    };
    if (da.data != nullptr) {
      if (opt.a == transpose::no)
        product(dc, transpose::no, b, !opt.b, da, opt.da);
      else
        product(b, opt.b, dc, transpose::yes, da, opt.da);
    }
    if (db.data != nullptr) {
      if (opt.b == transpose::no)
        product(a, !opt.a, dc, transpose::no, db, opt.db);
      else
        product(dc, transpose::yes, a, opt.a, db, opt.db);
    }
  }
};

}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_GEMM_CONTRACT_HPP
