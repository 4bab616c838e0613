// Coefficients of hyper-connections: what is computed of a token, and how much memory that takes.
#ifndef TIGON_OPS_DEPTH_MHC_COEFFS_PROGRAM_HPP
#define TIGON_OPS_DEPTH_MHC_COEFFS_PROGRAM_HPP

#include <tigon/ops/depth/mhc_coeffs_options.hpp>
#include <tigon/ops/depth/sinkhorn.hpp>

#include <algorithm>
#include <array>

namespace tigon {

namespace detail {
inline namespace TIGON_ABI {

/// q = sum_m alpha g mix,   shrink = q rstd^2 / cols,   gz = alpha g rstd;   db += g,   dm += g mix
template <class A>
struct mhc_mix_gradient {
  A cols;

  template <class V>
  TIGON_INLINE V reduce(V g, V mix, V alpha) const {
    return alpha * g * mix;
  }
  TIGON_INLINE std::array<A, 2> finish(A q, A rstd) const { return {rstd, rstd / cols * q * rstd}; }
  TIGON_INLINE A save(std::array<A, 2> row) const { return row[1]; }
  template <class V>
  TIGON_INLINE V map(std::array<A, 2> row, V g, V, V alpha) const {
    return alpha * g * row[0];
  }
  template <class V>
  TIGON_INLINE pack<V, 3> map(std::array<A, 2> row, V g, V mix, V alpha, V db, V dm) const {
    return {{alpha * g * row[0], db + g, fma(g, mix, dm)}};
  }
};

/// The terms that a part of dx, those of stream h from channel c on, has beside gz phi^T.
template <class T, class A>
struct mhc_dx_terms {
  matrix_view<const T> x, dx;  ///< dx where it is added to, of 16 bits
  mhc_more<T> more;
  const A* shrink;
  std::size_t n, h, c, width, row;

  TIGON_INLINE std::size_t count() const { return 1 + (more.dy.data != nullptr ? n + 1 : 0) + (dx.data != nullptr); }
  /// Term k of row i of the part.
  TIGON_INLINE mhc_term<T, A> operator()(std::size_t k, std::size_t i) const {
    const std::size_t channels = x.cols / n;
    const auto part = [=, this](matrix_view<const T> of, std::size_t stream) TIGON_LAMBDA {
      return matrix_view<const T>(of.data + row * of.row_stride + stream * channels + c, of.rows, width, of.row_stride);
    };
    if (k == 0) return {part(x, h), -shrink[row + i]};
    if (k + 1 == count() && dx.data != nullptr) return {part(dx, h), A(1)};
    if (k == 1) return {part(more.d_in, 0), more.h_pre.row(row + i)[h]};
    return {part(more.dy, k - 2), more.h_res.row(row + i)[(k - 2) * n + h]};
  }
};

/// Of pre, post and res: the part to which number k of mix belongs.
constexpr TIGON_INLINE std::size_t mhc_part_of(std::size_t k, std::size_t n) { return k < n ? 0 : k < 2 * n ? 1 : 2; }
/// alpha mix + b, number k of every token; and that alpha.
template <class V, class Weights>
TIGON_INLINE V mhc_logit(mhc_block<V> mix, std::size_t k, std::size_t n, const Weights& w) {
  using A = typename V::value_type;
  return fma(mix(k), V(static_cast<A>(w.alpha.data[mhc_part_of(k, n)])), V(static_cast<A>(w.b.data[k])));
}
template <class Weights>
auto mhc_alpha_of(std::size_t k, std::size_t n, const Weights& w) {
  using A = accumulator_t<view_element_t<decltype(w.alpha)>>;
  return static_cast<A>(w.alpha.data[mhc_part_of(k, n)]);
}
template <class V>
constexpr std::size_t mhc_blocks(std::size_t tokens) {
  return gemm_detail::ceil_div(tokens, std::size_t{V::size});
}
/// Scratch numbers of a worker in backward: values, gradients, p, a matrix, and all steps unless they were kept.
template <class V>
constexpr std::size_t mhc_scratch_width(std::size_t n, std::size_t tmax, bool kept) {
  const std::size_t steps = kept ? 0 : workspace::product(n, n, tmax);
  return workspace::product(V::size, 2 * mhc_columns(n) + workspace::product(n, n, 2) + steps);
}
/// Tokens whose sums of dx exist at a time, where dx has 16 bits.
template <class B, class A>
constexpr std::size_t mhc_rows_of_sums(std::size_t tokens, std::size_t cols) {
  const std::size_t fitting = B::chunk.logits_bytes / 8 / sizeof(A) / std::max<std::size_t>(cols, 1);
  return std::clamp<std::size_t>(fitting, std::min<std::size_t>(tokens, 16), tokens);
}

/// db and dalpha from sums over all tokens.
template <class A, element W>
void mhc_store(vector_view<A> db, vector_view<A> dm, std::size_t n, vector_view<W> to_db, vector_view<W> to_dalpha,
               gradient mode) {
  const auto put = [=](W& to, double sum) {
    to = static_cast<W>(
        static_cast<A>(mode == gradient::accumulate ? sum + static_cast<double>(static_cast<A>(to)) : sum));
  };
  for (std::size_t k = 0; to_db && k < db.size; ++k) put(to_db.data[k], static_cast<double>(db.data[k]));
  const std::size_t ends[] = {n, 2 * n, dm.size};
  for (std::size_t part = 0, k = 0; to_dalpha && part < 3; ++part) {
    double sum = 0;
    for (; k < ends[part]; ++k) sum += static_cast<double>(dm.data[k]);
    put(to_dalpha.data[part], sum);
  }
}

}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_OPS_DEPTH_MHC_COEFFS_PROGRAM_HPP
