// Sums over many chunks of rows (of a loss, not the chunks of depth of a packed product): the share of each chunk is
// made by a product or a sum of columns.
#ifndef TIGON_GEMM_CHUNK_SUMS_HPP
#define TIGON_GEMM_CHUNK_SUMS_HPP

#include <tigon/rows/matrices.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// to = high + low, or to += high + low;   high + low += sums
struct total_program {
  template <class V>
  TIGON_INLINE V map(V high, V low) const {
    return high + low;
  }
  template <class V>
  TIGON_INLINE V map(V high, V low, V to) const {
    return to + (high + low);
  }
};
struct compensated_program {
  template <class V>
  TIGON_INLINE pack<V, 2> map(V high, V low, V sums) const {
    return simd::add_compensated(high, low, sums);
  }
};

/// A sum of matrices of A, one for each chunk of rows. Up to simd::plain_rows chunks are added up one after the other;
/// where there are more, those are added to a compensated total, so that the rounding error does not grow with the
/// number of chunks. That takes two more matrices, the high and the low parts of the total. Large sums that are rounded
/// to 16 bits at the end tolerate the error of 64 times as many chunks, and take the two matrices from there on.
template <class B, class A>
class chunk_sums {
 public:
  /// Whether a sum of so many chunks has a total.
  static constexpr bool many(std::size_t elements, std::size_t chunks, bool in_place) {
    constexpr std::size_t few = std::size_t{1} << 20;
    return chunks > (in_place || elements <= few ? simd::plain_rows : 64 * simd::plain_rows);
  }
  /// Bytes that it takes for sums of `elements` numbers. `in_place`: where begin() is given what they are sums for.
  static constexpr std::size_t bytes(std::size_t elements, std::size_t chunks, bool in_place) {
    const std::size_t arrays = many(elements, chunks, in_place) ? 3 : 1, there = in_place ? 1 : 0;
    return (arrays - there) * workspace::bytes_for<A>(elements);
  }

  /// Where a chunk's share goes, and whether it is added to what is there.
  struct place {
    matrix_view<A> sum;
    bool more;
  };

  chunk_sums() = default;
  chunk_sums(workspace::frame& frame, std::size_t elements, std::size_t chunks, bool in_place)
      : many_(many(elements, chunks, in_place)) {
    if (many_) low_.data = frame.template take<A>(elements);
    if (many_ && !in_place) high_.data = frame.template take<A>(elements);
    if (many_ || !in_place) plain_.data = frame.template take<A>(elements);
    in_place_ = in_place, exists_ = true;
  }
  explicit operator bool() const { return exists_; }

  /// A new sum. In place it is made in `to`, where it is added to what is there if `add`.
  void begin(std::size_t rows, std::size_t cols, matrix_view<A> to, bool add) {
    plain_ = {plain_.data, rows, cols}, high_ = {high_.data, rows, cols}, low_ = {low_.data, rows, cols};
    if (in_place_) (many_ ? high_ : plain_) = to;
    holds_ = in_place_ && add, has_total_ = false, chunks_ = 0;
  }
  /// For the next chunk.
  place next(context& ctx) {
    if (many_ && chunks_ == simd::plain_rows) add_to_total(ctx);
    return {plain_, chunks_++ > 0 || (!many_ && holds_)};
  }
  /// to = the sum, or to += the sum. In place, `to` is that of begin().
  template <element To>
  void finish(matrix_view<To> to, bool add, context& ctx) {
    if (!many_) {
      if (!in_place_) round_sums<B, A>(to, matrix_view<const A>(plain_), add, ctx);
      return;
    }
    add_to_total(ctx);
    const matrix_view<const A> high = high_, low = low_;
    if (add && !in_place_)
      map_rows<B>(ctx, total_program(), reads(high, low, to), writes(to));
    else
      map_rows<B>(ctx, total_program(), reads(high, low), writes(to));
  }

  /// The chunks since the last total.
  void add_to_total(context& ctx) {
    if (!has_total_) clear_matrix<B>(low_, ctx);
    if (!has_total_ && !holds_) clear_matrix<B>(high_, ctx);
    map_rows<B>(ctx, compensated_program(), reads(high_, low_, plain_), writes(high_, low_));
    has_total_ = true, chunks_ = 0;
  }

 private:
  matrix_view<A> plain_, high_, low_;
  std::size_t chunks_ = 0;  ///< in plain_
  bool exists_ = false, many_ = false, in_place_ = false;
  bool holds_ = false;      ///< what is there counts
  bool has_total_ = false;  ///< high_ and low_ hold something
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_GEMM_CHUNK_SUMS_HPP
