// The tag, options, operands and checks of selective_log_softmax.
#ifndef TIGON_LOSSES_SOFTMAX_SELECTIVE_LOG_SOFTMAX_OPTIONS_HPP
#define TIGON_LOSSES_SOFTMAX_SELECTIVE_LOG_SOFTMAX_OPTIONS_HPP

#include <tigon/backend/host.hpp>
#include <tigon/backend/operator.hpp>
#include <tigon/core/arguments.hpp>
#include <tigon/losses/softmax/either_side.hpp>
#include <tigon/rows/row.hpp>

namespace tigon {

namespace op {
struct selective_log_softmax {
  static constexpr std::string_view name = "selective_log_softmax";
};
}  // namespace op

/// The contract is in losses/selective_log_softmax.hpp.
struct selective_log_softmax_options {
  double temperature = 1;  ///< above 0
};

namespace detail {
inline namespace TIGON_ABI {
/// Types of numbers that a device reads by their name, where a pointer to a function of the host is of no use.
enum class number_kind { i8, u8, i16, u16, i32, u32, i64, u64, f32, f64, other };
template <class N>
constexpr number_kind kind_of_number() {
  if constexpr (std::is_floating_point_v<N>)
    return sizeof(N) == 4 ? number_kind::f32 : sizeof(N) == 8 ? number_kind::f64 : number_kind::other;
  const int u = std::is_signed_v<N> ? 0 : 1;
  switch (sizeof(N)) {
    case 1: return static_cast<number_kind>(static_cast<int>(number_kind::i8) + u);
    case 2: return static_cast<number_kind>(static_cast<int>(number_kind::i16) + u);
    case 4: return static_cast<number_kind>(static_cast<int>(number_kind::i32) + u);
    case 8: return static_cast<number_kind>(static_cast<int>(number_kind::i64) + u);
    default: return number_kind::other;
  }
}
}  // namespace TIGON_ABI
}  // namespace detail

inline namespace TIGON_ABI {
/// Log-sum-exp of a row of logits in two parts that lose nothing: lse = top / temperature + log1p(rest).
template <class A>
struct lse_parts {
  A top = 0;   ///< the largest logit
  A rest = 0;  ///< sum of exp((logit - top) / temperature) without the largest one's own 1

  TIGON_INLINE double log_p(A logit, double temperature) const {
    return (static_cast<double>(logit) - static_cast<double>(top)) / temperature -
           math::log1p(static_cast<double>(rest));
  }
  TIGON_INLINE double lse(double temperature) const {
    return static_cast<double>(top) / temperature + math::log1p(static_cast<double>(rest));
  }
};

/// A matrix of numbers of any type, [batch, len], read one at a time: ids and masks as callers have them.
template <class R>
class number_view {
 public:
  std::size_t rows = 0, cols = 0;

  constexpr number_view() = default;
  constexpr number_view(absent_t) {}
  template <class N>
    requires(std::is_arithmetic_v<N>)
  number_view(matrix_view<N> m)
      : rows(m.rows),
        cols(m.cols),
        data_(m.data),
        stride_(m.row_stride),
        bytes_(sizeof(N)),
        kind_(detail::kind_of_number<std::remove_const_t<N>>()),
        read_(&read<N>) {}

  TIGON_EITHER_SIDE explicit operator bool() const { return read_ != nullptr; }
  TIGON_EITHER_SIDE R operator()(std::size_t b, std::size_t t) const {
#if defined(TIGON_DEVICE_CODE) || defined(TIGON_CUDA_MODEL)
    return read_by_kind(b * stride_ + t);
#else
    return read_(data_, b * stride_ + t);
#endif
  }
  /// Whether a device can read them.
  bool of_known_type() const { return !*this || kind_ != detail::number_kind::other; }
  /// The memory, for checks of shape and aliasing.
  matrix_view<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(data_), rows, cols * bytes_, stride_ * bytes_};
  }

 private:
  template <class N>
  static R read(const void* data, std::size_t at) {
    return static_cast<R>(static_cast<const N*>(data)[at]);
  }
  TIGON_EITHER_SIDE R read_by_kind(std::size_t at) const {
    using kind = detail::number_kind;
    const auto of = [=, this](auto one) { return static_cast<R>(static_cast<const decltype(one)*>(data_)[at]); };
    switch (kind_) {
      case kind::i8: return of(std::int8_t());
      case kind::u8: return of(std::uint8_t());
      case kind::i16: return of(std::int16_t());
      case kind::u16: return of(std::uint16_t());
      case kind::i32: return of(std::int32_t());
      case kind::u32: return of(std::uint32_t());
      case kind::i64: return of(std::int64_t());
      case kind::u64: return of(std::uint64_t());
      case kind::f32: return of(float());
      case kind::f64: return of(double());
      default: return R();
    }
  }
  const void* data_ = nullptr;
  std::size_t stride_ = 0, bytes_ = 1;
  detail::number_kind kind_ = detail::number_kind::other;
  R (*read_)(const void*, std::size_t) = nullptr;
};

/// Tokens of sequences: std::int32_t or std::int64_t.
struct token_ids : number_view<std::int64_t> {
  template <class I>
  token_ids(matrix_view<I> m) : number_view<std::int64_t>(m) {
    static_assert(token_id<std::remove_const_t<I>>, "tigon: token ids are std::int32_t or std::int64_t");
  }
  token_ids() = default;
};

/// 1 for a token that counts, 0 for one that does not; `absent`: all count.
using token_mask = number_view<double>;
}  // namespace TIGON_ABI

/// Columns of rows, and the gradient u of the log-probability there. A row with u = 0 is not looked at.
template <class A>
struct selected_gradient {
  const std::int64_t* column = nullptr;
  const A* u = nullptr;
};

namespace detail {
inline namespace TIGON_ABI {
/// Where the tokens of a batch are among the rows of logits: token t of sequence b in row b * stride + t.
struct token_rows {
  std::size_t batch = 0, len = 0, stride = 0;
  TIGON_EITHER_SIDE std::size_t rows() const { return batch * stride; }
};

/// Declares ids and mask: [batch, len] of the ids, and stride len or len + 1 by the rows of logits.
TIGON_NOINLINE inline token_rows declare_tokens(arguments& args, std::string_view op, const token_ids& ids,
                                                const token_mask& mask, std::size_t rows) {
  const std::size_t batch = ids.rows, len = ids.cols;
  args.in("ids", ids.bytes());
  if (mask && (mask.rows != batch || mask.cols != len))
    fail_argument(error_code::shape, op, "mask", shape_text(mask.rows, mask.cols), shape_text(batch, len));
  args.in("mask", mask.bytes());
  if (rows == batch * len) return {batch, len, len};
  if (rows != batch * (len + 1))
    fail_argument(error_code::shape, op, "logits", "of " + std::to_string(rows) + " rows",
                  std::to_string(batch * len) + " or " + std::to_string(batch * (len + 1)) + " for " +
                      shape_text(batch, len) + " ids");
  return {batch, len, len + 1};
}

/// The column of every row, -1 where there is no token or, unless `padded`, a masked one. Checks what it reads.
TIGON_NOINLINE inline void select_columns(std::string_view op, token_rows at, const token_ids& ids,
                                          const token_mask& mask, std::size_t vocab, std::int64_t* column,
                                          bool padded = false) {
  const auto where = [](std::string_view name, std::size_t b, std::size_t t) {
    return std::string(name) + '[' + std::to_string(b) + ", " + std::to_string(t) + ']';
  };
  for (std::size_t b = 0; b < at.batch; ++b)
    for (std::size_t t = 0; t < at.stride; ++t) {
      std::int64_t& c = column[b * at.stride + t] = -1;
      if (t == at.len) continue;
      const double counts = mask ? mask(b, t) : 1;
      if (counts != 0 && counts != 1)
        fail_argument(error_code::index, op, where("mask", b, t), number_text(counts), "0 or 1");
      if (counts == 0 && !padded) continue;
      c = ids(b, t);
      if (c < 0 || static_cast<std::uint64_t>(c) >= vocab)
        fail_argument(error_code::index, op, where("ids", b, t), std::to_string(c),
                      "at least 0 and below " + std::to_string(vocab));
    }
}

/// The same on backend B: where its memory is elsewhere, by the kernel K of the operator that reads the rows.
template <class B, class K>
void select_columns_of(std::string_view op, token_rows at, const token_ids& ids, const token_mask& mask,
                       std::size_t vocab, std::int64_t* column, bool padded, context& ctx) {
  if constexpr (host_memory<B>)
    select_columns(op, at, ids, mask, vocab, column, padded);
  else
    K::select(op, at, ids, mask, vocab, column, padded, ctx);
}

/// The numbers of tokens from those of their rows; and u of rows from the gradients of tokens, 0 where there is no
/// column.
template <class B, class K, class A>
void put_tokens(token_rows at, const A* of_row, matrix_view<A> to, context& ctx) {
  if constexpr (!host_memory<B>) return K::put_tokens(at, of_row, to, ctx);
  if (at.len == 0) return;
  for (std::size_t b = 0; b < at.batch; ++b) std::copy_n(of_row + b * at.stride, at.len, to.row(b));
}
template <class B, class K, class A>
void take_tokens(token_rows at, const std::int64_t* column, matrix_view<const A> from, A* u, context& ctx) {
  if constexpr (!host_memory<B>) return K::take_tokens(at, column, from, u, ctx);
  for (std::size_t i = 0; i < at.rows(); ++i) u[i] = column[i] < 0 ? A(0) : from.row(i / at.stride)[i % at.stride];
}

/// A temperature by which logits of accumulator A can be divided.
template <class A>
void expect_temperature(const expects& expect, double temperature) {
  expect.above_zero<A>("temperature", temperature);
}
}  // namespace TIGON_ABI
}  // namespace detail

}  // namespace tigon

#endif  // TIGON_LOSSES_SOFTMAX_SELECTIVE_LOG_SOFTMAX_OPTIONS_HPP
