// Sums over blocks of queries for every key of a head: the gradients of keys and values before they are rounded.
#ifndef TIGON_OPS_KEY_SUMS_HPP
#define TIGON_OPS_KEY_SUMS_HPP

#include <tigon/core/context.hpp>
#include <tigon/core/views.hpp>
#include <tigon/rows/row.hpp>
#include <tigon/simd/totals.hpp>

namespace tigon::detail {
inline namespace TIGON_ABI {

/// keys x d sums of one worker. Up to simd::plain_rows blocks of queries are added up one after the other; sums of so
/// many are added to a total, so that the rounding error does not grow with seq_len.
///
/// The total is compensated where a sequence has more blocks than that: its high part is the output where that is as
/// wide as the sums, its low part is scratch. In shorter sequences only a group of several heads has more blocks: the
/// output is then a plain total of one sum a head. Sums that are rounded to 16 bits at the end tolerate the error of 16
/// times as many blocks.
template <class B, element T>
class key_sums {
 public:
  using A = accumulator_t<T>;

  /// Bytes for sequences of so many blocks of queries.
  static constexpr std::size_t bytes(std::size_t keys, std::size_t d, std::size_t blocks) {
    return workspace::product(many(blocks) ? in_place ? 2 : 3 : 1, workspace::bytes_for<A>(keys, d));
  }
  key_sums(workspace::frame& frame, matrix_view<T> out, std::size_t blocks)
      : sums_(frame.take<A>(out.rows * out.cols), out.rows, out.cols) {
    if (many(blocks)) low_ = {frame.take<A>(out.rows * out.cols), out.rows, out.cols};
    if constexpr (in_place)
      high_ = out;
    else if (many(blocks))
      high_ = {frame.take<A>(out.rows * out.cols), out.rows, out.cols};
  }

  /// What a block's share goes to, and whether it is added to what is there. The first block sees every key.
  struct place {
    matrix_view<A> sums;
    bool more;
  };
  place next() {
    if (high_.data != nullptr && blocks_ == simd::plain_rows) add_to_total<simd::sums_after::zero>();
    const bool more = blocks_++ > 0 || has_total_;
    return {sums_, more};
  }
  /// All of them, after the last block.
  matrix_view<A> finish() {
    if (has_total_) add_to_total<simd::sums_after::total>();
    return sums_;
  }

 private:
  static constexpr bool in_place = std::same_as<T, A>;
  static constexpr bool many(std::size_t blocks) {
    return blocks > (in_place ? simd::plain_rows : 16 * simd::plain_rows);
  }

  template <simd::sums_after After>
  void add_to_total() {
    using V = simd::vec<typename B::engine, A>;
    for (std::size_t i = 0; i < sums_.rows; ++i)
      if (low_.data != nullptr)
        simd::add_to_total<V, After>(sums_.row(i), high_.row(i), low_.row(i), sums_.cols, !has_total_);
      else
        simd::add_to_plain_total<V, After>(sums_.row(i), high_.row(i), sums_.cols, !has_total_);
    has_total_ = true, blocks_ = 0;
  }

  matrix_view<A> sums_, high_, low_;
  std::size_t blocks_ = 0;  ///< in sums_
  bool has_total_ = false;
};

}  // namespace TIGON_ABI
}  // namespace tigon::detail

#endif  // TIGON_OPS_KEY_SUMS_HPP
