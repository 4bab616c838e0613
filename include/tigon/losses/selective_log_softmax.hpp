// Log-probability of one given column a row, and its gradient: what policy and preference losses are made of.
#ifndef TIGON_LOSSES_SELECTIVE_LOG_SOFTMAX_HPP
#define TIGON_LOSSES_SELECTIVE_LOG_SOFTMAX_HPP

#include <tigon/ops/contract.hpp>
#include <tigon/simd/row.hpp>

namespace tigon {

namespace op {
struct selective_log_softmax {
  static constexpr std::string_view name = "selective_log_softmax";
};
}  // namespace op

/// log softmax(logits / temperature) at the column k of each row, a row a token, for s = logits / temperature:
///
///   lse  = m + log1p(d),   m = max_j s,   d = sum_j exp(s_j - m) without the maximal element's own 1
///   logp = (s_k - m) - log1p(d)
///   dlogits_j = dlogp / temperature * ([j = k] - p_j),   p_j = exp(s_j - m) / (1 + d),   1 - p_k = -expm1(logp)
///
/// Formula    docs/formulas/policy.md. Leaving the maximum's 1 out of the sum keeps logp exact where it is near 0.
/// Shapes     ids, mask, logp, dlogp [batch, len]; logits, dlogits [batch * len, vocab], row b * len + t for token t of
///            sequence b, or [batch * (len + 1), vocab] as a model leaves them: position len of a sequence predicts
///            nothing. saved [rows of logits]. vocab >= 1, batch and len may be 0.
/// Types      logits and dlogits one of f32, bf16, f16, f64; logp, dlogp and saved f32 (f64 for f64); ids std::int32_t
///            or std::int64_t; mask of any type of numbers, 0 or 1, or `absent`.
/// Precision  f32 (f64 for f64) inside; one rounding at logp and dlogits.
/// Writes     logp, 0 where masked; saved, where it has memory; dlogits, 0 where masked or at a position len. Masked
///            rows and positions len are not read, nor are their ids.
/// Aliasing   dlogits may be logits, which are then gone; nothing else.
/// Throws     tigon::error: shape, stride, alias, argument (temperature), workspace, and in every build index for an id
///            outside [0, vocab) or a mask that is neither 0 nor 1; before the first write.
/// Edges      NaN or +inf in a row: that row is NaN. -inf at the id: logp -inf, finite gradient. A gradient below the
///            smallest normal f32 (f64) is written as 0, and a row with dlogp = 0 without being read.
/// Max error  logp 4e-7, dlogits f32 1e-6, bf16 4e-3 of |reference| + its root mean square
///            (tests/losses/selective_log_softmax_test.cpp).
struct selective_log_softmax_options {
  double temperature = 1;  ///< above 0
};

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
      : rows(m.rows), cols(m.cols), data_(m.data), stride_(m.row_stride), bytes_(sizeof(N)), read_(&read<N>) {}

  explicit operator bool() const { return read_ != nullptr; }
  R operator()(std::size_t b, std::size_t t) const { return read_(data_, b * stride_ + t); }
  /// The memory, for checks of shape and aliasing.
  matrix_view<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(data_), rows, cols * bytes_, stride_ * bytes_};
  }

 private:
  template <class N>
  static R read(const void* data, std::size_t at) {
    return static_cast<R>(static_cast<const N*>(data)[at]);
  }
  const void* data_ = nullptr;
  std::size_t stride_ = 0, bytes_ = 1;
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
  std::size_t rows() const { return batch * stride; }
};

/// [batch, len] of the ids, and stride len or len + 1 by the rows of logits.
TIGON_NOINLINE inline token_rows expect_tokens(const expects& expect, std::string_view op, const token_ids& ids,
                                               const token_mask& mask, std::size_t rows) {
  const std::size_t batch = ids.rows, len = ids.cols;
  expect.memory("ids", ids.bytes());
  if (mask) {
    expect.memory("mask", mask.bytes());
    if (mask.rows != batch || mask.cols != len)
      fail_argument(error_code::shape, op, "mask", shape_text(mask.rows, mask.cols), shape_text(batch, len));
  }
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

/// A temperature by which logits of accumulator A can be divided.
template <class A>
void expect_temperature(const expects& expect, double temperature) {
  constexpr double most = std::min<double>(1e300, std::numeric_limits<A>::max());
  expect.option(temperature >= 1 / most && temperature <= most, "temperature", temperature, "a finite number above 0");
}

/// Sum of a row of exponentials, the largest of which is 1, without that one.
template <class Row, class A>
TIGON_INLINE A sum_without_one(const Row& row, vector_view<A> e) {
  const auto parts = row.sum(
      [](auto p) {
        const decltype(p) zero(A(0)), one(A(1));
        return pack{select(p == one, zero, p), select(p == one, one, zero)};
      },
      e);
  return parts[0] + (parts[1] - A(1));
}

}  // namespace TIGON_ABI
}  // namespace detail

/// The kernel takes rows one by one: an element of each array a row of logits.
template <>
struct kernel<op::selective_log_softmax, backends::generic> {
  template <class T>
  using saved = std::span<lse_parts<accumulator_t<T>>>;

  static constexpr std::size_t block_cols = 4096;  ///< that forward takes at a time

  /// A row whose column is negative is not read: its logp and its parts are 0.
  template <backend B, element T>
  static void forward(in_matrix<T> logits, const std::int64_t* column, double temperature, accumulator_t<T>* logp,
                      lse_parts<accumulator_t<T>>* saved_lse, context& ctx) {
    using A = accumulator_t<T>;
    const A inverse = static_cast<A>(1 / temperature);
    for_rows<B, A>(ctx, logits.rows, logits.cols, [=] TIGON_FN(auto row) {
      lse_parts<A> lse{std::numeric_limits<A>::lowest(), A(-1)};  // of nothing: 1 + rest = 0
      A log_p(0);
      if (column[row.i] < 0) {
        lse = {};
      } else {
        // A block of columns is read from memory once, and its exponentials stay in the first-level cache.
        alignas(64) A near[block_cols];
        for (std::size_t first = 0; first < row.cols; first += block_cols) {
          const auto block = row.narrow(std::min(block_cols, row.cols - first));
          const auto z = logits.cols_from(first, block.cols);
          const vector_view<A> e{near, block.cols};
          const A top = math::max(std::numeric_limits<A>::lowest(), block.max([](auto v) { return v; }, z));
          const A sum = block.map_sum(
              e,
              [=](auto v) {
                const auto p = exp_nonpositive((v - top) * inverse);
                return pack{p, p};
              },
              z);
          if (!(top > lse.top)) {
            lse.rest += sum * math::exp_nonpositive((top - lse.top) * inverse);
            continue;
          }
          // The row's maximum so far. Where sum - 1 cancels, the rest is summed without the maximum.
          A rest = sum - A(1);
          if (rest < A(1)) rest = detail::sum_without_one(block, e);
          lse.rest = (A(1) + lse.rest) * math::exp_nonpositive((lse.top - top) * inverse) + rest;
          lse.top = top;
        }
        log_p = static_cast<A>(lse.log_p(row.at(logits, static_cast<std::size_t>(column[row.i])), temperature));
      }
      if (row.first()) logp[row.i] = log_p;
      if (row.first()) saved_lse[row.i] = lse;
    });
  }

  /// dlogits_j = sum over both selections of u / temperature ([j = column] - p_j). `second` may be empty: it serves
  /// losses that ask for two columns of the same row.
  template <backend B, element T>
  static void backward(in_matrix<T> logits, const lse_parts<accumulator_t<T>>* saved_lse,
                       selected_gradient<accumulator_t<T>> selected, selected_gradient<accumulator_t<T>> second,
                       double temperature, matrix_view<T> dlogits, context& ctx) {
    using A = accumulator_t<T>;
    const A inverse = static_cast<A>(1 / temperature);
    for_rows<B, A>(ctx, logits.rows, logits.cols, [=] TIGON_FN(auto row) {
      A u = selected.u[row.i];
      A v = second.u == nullptr ? A(0) : second.u[row.i];
      if (u == A(0) && v == A(0)) {
        row.map(
            dlogits, [](auto zero) { return zero; }, constant(A(0)));
        return;
      }
      const std::int64_t j = u == A(0) ? second.column[row.i] : selected.column[row.i];
      const std::int64_t k = v == A(0) ? j : second.column[row.i];
      const A total = u + v;
      if (u == A(0) || j == k) u = v = total;
      const lse_parts<A> lse = saved_lse[row.i];
      const A top = lse.top, factor = -total * inverse / (A(1) + lse.rest);
      // At a selected column anew, u - total p in two terms that do not cancel. Read before anything is written.
      const auto at_column = [=](std::int64_t column, A own) {
        const double log_p = lse.log_p(row.at(logits, static_cast<std::size_t>(column)), temperature);
        const A hit = -own * static_cast<A>(math::expm1(log_p));
        return inverse * (own == total ? hit : hit - (total - own) * static_cast<A>(math::exp(log_p)));
      };
      const A at_j = at_column(j, u), at_k = k == j ? at_j : at_column(k, v);
      row.map(
          dlogits, [=](auto z) { return normal_or_zero(exp_nonpositive((z - top) * inverse) * factor); }, logits);
      if (row.first()) {
        row.put(dlogits, static_cast<std::size_t>(j), at_j);
        row.put(dlogits, static_cast<std::size_t>(k), at_k);
      }
    });
  }
};

/// Bytes of workspace that selective_log_softmax_forward and _backward take for so many rows of logits.
template <class B = default_backend, class T>
constexpr std::size_t selective_log_softmax_workspace(std::size_t rows) {
  using A = accumulator_t<T>;
  return workspace::bytes_for<std::int64_t>(rows) + workspace::bytes_for<A>(rows) +
         workspace::bytes_for<lse_parts<A>>(rows);
}

/// logp, and in `saved` what backward needs. See selective_log_softmax_options for the contract.
template <class B = default_backend, class Z, class T = std::remove_const_t<Z>>
void selective_log_softmax_forward(matrix_view<Z> logits, const token_ids& ids,
                                   std::type_identity_t<matrix_view<accumulator_t<T>>> logp,
                                   selective_log_softmax_options opt = {}, const token_mask& mask = absent,
                                   std::type_identity_t<std::span<lse_parts<accumulator_t<T>>>> saved = {},
                                   context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  constexpr std::string_view name = "selective_log_softmax_forward";
  const expects expect(name);
  expect.at_least_one("vocab", logits.cols);
  expect.memory("logits", logits);
  const detail::token_rows at = detail::expect_tokens(expect, name, ids, mask, logits.rows);
  expect.matrix("logp", logp, at.batch, at.len);
  if (saved.data() != nullptr) expect.size("saved", saved.size(), logits.rows);
  detail::expect_temperature<A>(expect, opt.temperature);
  expect.outside("logp", logp, "logits", logits, "ids", ids.bytes(), "mask", mask.bytes(), "saved", as_row(saved));
  expect.outside("saved", as_row(saved), "logits", logits, "ids", ids.bytes(), "mask", mask.bytes());
  ctx.workspace().expect(name, selective_log_softmax_workspace<B, T>(logits.rows));

  workspace::frame frame(ctx.workspace());
  auto* column = frame.template take<std::int64_t>(logits.rows);
  A* of_row = frame.template take<A>(logits.rows);
  auto* lse = saved.data() != nullptr ? saved.data() : frame.template take<lse_parts<A>>(logits.rows);
  detail::select_columns(name, at, ids, mask, logits.cols, column);
  kernel_for<op::selective_log_softmax, B>::template forward<B, T>(logits, column, opt.temperature, of_row, lse, ctx);
  for (std::size_t b = 0; b < at.batch; ++b) std::copy_n(of_row + b * at.stride, at.len, logp.row(b));
}

/// dlogits from the gradient of logp, and what forward saved of the same logits.
template <class B = default_backend, class T>
void selective_log_softmax_backward(in_matrix<T> logits, const token_ids& ids,
                                    std::type_identity_t<std::span<const lse_parts<accumulator_t<T>>>> saved,
                                    std::type_identity_t<matrix_view<const accumulator_t<T>>> dlogp,
                                    matrix_view<T> dlogits, selective_log_softmax_options opt = {},
                                    const token_mask& mask = absent, context& ctx = default_context()) {
  static_assert(admits<B, T>());
  using A = accumulator_t<T>;
  constexpr std::string_view name = "selective_log_softmax_backward";
  const expects expect(name);
  expect.at_least_one("vocab", logits.cols);
  expect.memory("logits", logits);
  const detail::token_rows at = detail::expect_tokens(expect, name, ids, mask, logits.rows);
  expect.size("saved", saved.size(), logits.rows);
  expect.matrix("dlogp", dlogp, at.batch, at.len);
  expect.matrix("dlogits", dlogits, logits.rows, logits.cols);
  detail::expect_temperature<A>(expect, opt.temperature);
  expect.same_or_disjoint("dlogits", dlogits, "logits", logits);
  expect.outside("dlogits", dlogits, "ids", ids.bytes(), "mask", mask.bytes(), "saved", as_row(saved), "dlogp", dlogp);
  ctx.workspace().expect(name, selective_log_softmax_workspace<B, T>(logits.rows));

  workspace::frame frame(ctx.workspace());
  auto* column = frame.template take<std::int64_t>(logits.rows);
  A* u = frame.template take<A>(logits.rows);
  detail::select_columns(name, at, ids, mask, logits.cols, column);
  for (std::size_t i = 0; i < logits.rows; ++i) u[i] = column[i] < 0 ? A(0) : dlogp.row(i / at.stride)[i % at.stride];
  kernel_for<op::selective_log_softmax, B>::template backward<B, T>(logits, saved.data(), {column, u}, {},
                                                                    opt.temperature, dlogits, ctx);
}

}  // namespace tigon

#include <tigon/backend/select.hpp>

#endif  // TIGON_LOSSES_SELECTIVE_LOG_SOFTMAX_HPP
